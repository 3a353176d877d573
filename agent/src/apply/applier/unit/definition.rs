//! Whether systemd uses an older definition of a unit than the files of the unit give.
//!
//! systemd itself tells (`NeedDaemonReload`) that a file which it has read has changed, and that a directory of drop-ins
//! which it knows has another file. But it remembers the names in its search directories from the last reload. So it tells
//! nothing of a new directory of drop-ins, and of a new unit file that replaces the one in `/usr/lib`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::apply::task::Site;
use crate::host::system_units::{LoadState, UnitStatus};
use crate::host::{Dir, FileKind, Host, HostError, HostPath};

/// The directories in which systemd searches unit files and drop-ins, in the order of their priority (`systemd.unit(5)`).
/// `/lib` has the priority of `/usr/lib`, and is a link to it on most hosts.
const SEARCH_DIRS: [&str; 12] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// The search directories whose files tasks, people and packages write. systemd writes those in the others itself.
const WRITTEN_DIRS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Maximum number of reloads in a row that do not end a reported change. After them, the change does not count as drift.
const MAX_VAIN_RELOADS: u32 = 3;

/// The number of reloads in a row after which systemd still reported a change of a unit, by unit. So a report of systemd
/// that no reload ends, and files that this module reads otherwise than systemd, cause no endless drift.
#[derive(Default)]
pub(super) struct VainReloads(RefCell<BTreeMap<String, u32>>);

/// A search directory that exists.
struct SearchDir {
    dir: Box<dyn Dir>,
    /// The position in [`SEARCH_DIRS`].
    rank: usize,
}

/// What a file with the name of a unit file or drop-in is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DefinitionFile {
    /// A file with settings.
    Settings,
    /// An empty file or a link to `/dev/null`: files with this name and less priority are not used.
    Mask,
}

impl VainReloads {
    /// Records whether systemd still reports a change of a unit after a reload.
    pub(super) fn record(&self, unit: &str, needs_reload: bool) {
        let mut reloads = self.0.borrow_mut();
        if needs_reload {
            *reloads.entry(unit.to_owned()).or_default() += 1;
        } else {
            reloads.remove(unit);
        }
    }

    /// Returns whether no reload ends what systemd reports about a unit.
    fn is_endless(&self, unit: &str) -> bool {
        self.0.borrow().get(unit).is_some_and(|reloads| *reloads >= MAX_VAIN_RELOADS)
    }
}

/// Reads the status of a unit. [`UnitStatus::needs_reload`] is also true if systemd does not notice the change itself.
///
/// # Errors
/// If systemd cannot be asked.
pub(super) async fn read_status(site: &Site, unit: &str) -> Result<UnitStatus, HostError> {
    let mut status = site.host.system_units().status(unit).await?;
    status.needs_reload = status.needs_reload || is_outdated(&*site.host, &status);
    Ok(status)
}

/// As [`read_status`], for a check: a change that no reload ends does not count.
///
/// # Errors
/// As [`read_status`].
pub(super) async fn check_status(site: &Site, unit: &str) -> Result<UnitStatus, HostError> {
    let status = read_status(site, unit).await?;
    let vain_reloads = site.memory.get::<VainReloads>();
    if !status.needs_reload {
        vain_reloads.record(unit, false);
    }
    let needs_reload = status.needs_reload && !vain_reloads.is_endless(unit);
    Ok(UnitStatus { needs_reload, ..status })
}

/// Returns whether a file of the unit exists that systemd would use, and has not read. A mask does not count. A unit that
/// does not exist or is masked has no definition.
fn is_outdated(host: &dyn Host, status: &UnitStatus) -> bool {
    if matches!(status.load_state, LoadState::NotFound | LoadState::Masked) {
        return false;
    }
    let open = |path: &&str| {
        let dir = host.dir(&HostPath::from_static(path)).ok().flatten()?;
        Some(SearchDir { dir, rank: rank(path)? })
    };
    let dirs: Vec<SearchDir> = WRITTEN_DIRS.iter().filter_map(open).collect();
    has_new_unit_file(host, &dirs, status) || has_new_drop_in(host, &dirs, status)
}

/// Returns the position of a directory in [`SEARCH_DIRS`].
fn rank(dir: &str) -> Option<usize> {
    let dir = if dir == "/lib/systemd/system" { "/usr/lib/systemd/system" } else { dir };
    SEARCH_DIRS.iter().position(|known| *known == dir)
}

/// Returns whether a unit file exists that has priority over the one that systemd has read.
fn has_new_unit_file(host: &dyn Host, dirs: &[SearchDir], status: &UnitStatus) -> bool {
    let Some((loaded_dir, loaded_name)) = status.unit_file.rsplit_once('/') else { return false };
    // A file of the instance itself has priority over that of its template, in whatever directories they are.
    let names: Vec<String> = std::iter::once(status.id.clone()).chain(template(&status.id)).collect();
    let loaded_position = names.iter().position(|name| name == loaded_name).zip(rank(loaded_dir));
    // Without a known place, the unit is of a kind of its own, such as a linked file of an older systemd.
    let Some(loaded_position) = loaded_position else { return false };
    let places = names.iter().enumerate().flat_map(|(index, name)| dirs.iter().map(move |place| (index, name, place)));
    let mut preferred = places.filter(|(index, _, place)| (*index, place.rank) < loaded_position);
    preferred.find_map(|(_, name, place)| entry(host, &*place.dir, name)) == Some(DefinitionFile::Settings)
}

/// Returns whether a drop-in exists that systemd would use, and has not read.
fn has_new_drop_in(host: &dyn Host, dirs: &[SearchDir], status: &UnitStatus) -> bool {
    let Some((_, kind)) = status.id.rsplit_once('.') else { return false };
    let (names, kind_dir) = (drop_in_dirs(&status.id), format!("{kind}.d"));
    let own_places = dirs.iter().flat_map(|place| names.iter().map(move |name| (place, name)));
    // Those of all units of a type have the lowest priority.
    let places: Vec<_> = own_places.chain(dirs.iter().map(|place| (place, &kind_dir))).collect();
    let position = |path: &str| {
        let (dir, name) = path.rsplit_once('/')?;
        let rank = rank(dir)?;
        places.iter().position(|(place, place_name)| place.rank == rank && place_name.as_str() == name)
    };
    let loaded: BTreeMap<&str, Option<usize>> =
        status.drop_ins.iter().filter_map(|path| path.rsplit_once('/')).map(|(dir, file)| (file, position(dir))).collect();
    let mut seen = BTreeSet::new();
    for (index, (place, name)) in places.iter().enumerate() {
        let Ok(Some(drop_ins)) = place.dir.dir(name) else { continue };
        for file in drop_ins.names().unwrap_or_default() {
            if file.starts_with('.') || file.rsplit_once('.').is_none_or(|(_, suffix)| suffix != "conf") {
                continue;
            }
            let Some(found) = entry(host, &*drop_ins, &file) else { continue };
            let is_read = match loaded.get(file.as_str()) {
                None => false,
                // A drop-in in another place, such as that of an alias, has an unknown priority.
                Some(position) => position.is_none_or(|position| position <= index),
            };
            // systemd uses the first file with a name.
            if seen.insert(file) && found == DefinitionFile::Settings && !is_read {
                return true;
            }
        }
    }
    false
}

/// Returns what a file is. Returns `None` if there is no such file, and for a link whose target is another file of a search
/// directory (an alias), is relative, or is not a file.
fn entry(host: &dyn Host, dir: &dyn Dir, name: &str) -> Option<DefinitionFile> {
    let of_size = |size| if size == 0 { DefinitionFile::Mask } else { DefinitionFile::Settings };
    let stat = dir.stat(name).ok().flatten()?;
    match stat.kind {
        FileKind::File => Some(of_size(stat.size)),
        FileKind::Link => {
            let target = dir.read_link(name).ok().flatten()?;
            if target == "/dev/null" {
                return Some(DefinitionFile::Mask);
            }
            let is_alias = target.rsplit_once('/').is_some_and(|(dir, _)| rank(dir).is_some());
            let path = HostPath::parse(&target).ok().filter(|_| !is_alias)?;
            let stat = host.stat(&path).ok().flatten()?;
            (stat.kind == FileKind::File).then(|| of_size(stat.size))
        }
        FileKind::Directory | FileKind::Special => None,
    }
}

/// Returns the name of the template of an instance.
pub(super) fn template(unit: &str) -> Option<String> {
    let ((base, _), (_, kind)) = unit.split_once('@').zip(unit.rsplit_once('.'))?;
    Some(format!("{base}@.{kind}"))
}

/// Returns the names of the directories with drop-ins of a unit, without that of its type: those of the unit, of its template,
/// and of all units whose names begin with the same words (`a-.service.d` for `a-b.service`).
fn drop_in_dirs(unit: &str) -> Vec<String> {
    let Some((stem, kind)) = unit.rsplit_once('.') else { return Vec::new() };
    let (name, instance) = stem.split_once('@').map_or((stem, None), |(name, instance)| (name, Some(instance)));
    let dashes = name.match_indices('-').map(|(index, _)| index).filter(|index| *index > 0 && index + 1 < name.len());
    let mut prefixes: Vec<&str> = dashes.map(|index| &name[..=index]).collect();
    prefixes.push(name);
    prefixes.reverse();
    let of_prefix = |prefix: &str| match instance {
        Some(instance) => vec![format!("{prefix}@{instance}.{kind}.d"), format!("{prefix}@.{kind}.d")],
        None => vec![format!("{prefix}.{kind}.d")],
    };
    prefixes.into_iter().flat_map(of_prefix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    /// Returns a loaded unit with these files, of which the first is the unit file.
    fn loaded(unit: &str, files: &[&str]) -> UnitStatus {
        let mut files = files.iter().map(|file| (*file).to_owned());
        UnitStatus {
            id: unit.into(),
            unit_file: files.next().unwrap_or_default(),
            drop_ins: files.collect(),
            ..UnitStatus::default()
        }
    }

    /// Each row has the unit, the files that systemd has read, the files on the host, and the result. The rows are what
    /// systemd 252 reads and reports on a booted machine.
    #[test]
    fn definition_is_outdated_when_systemd_would_read_other_files() {
        const LIB: &str = "/lib/systemd/system/a.service";
        const USR: &str = "/usr/lib/systemd/system/a.service";
        const ETC: &str = "/etc/systemd/system/a.service";
        const DROP_IN: &str = "/etc/systemd/system/a.service.d/10.conf";
        const VENDOR_DROP_IN: &str = "/usr/lib/systemd/system/a.service.d/10.conf";
        const KIND_DROP_IN: &str = "/etc/systemd/system/service.d/10.conf";
        let template = "/usr/lib/systemd/system/app@.service";
        for (unit, read, files, expected) in [
            ("a.service", &[LIB][..], &[USR][..], false),
            ("a.service", &[USR], &[USR, DROP_IN], true),
            ("a.service", &[USR, DROP_IN], &[USR, DROP_IN], false),
            ("a.service", &[USR], &[USR, "/etc/systemd/system/a.service.d/10.conf.bak"], false),
            ("a.service", &[USR], &[USR, "/etc/systemd/system/b.service.d/10.conf"], false),
            // The first drop-in of a name is used.
            ("a.service", &[USR, VENDOR_DROP_IN], &[USR, VENDOR_DROP_IN, DROP_IN], true),
            ("a.service", &[USR, DROP_IN], &[USR, VENDOR_DROP_IN, DROP_IN], false),
            ("a.service", &[USR], &[USR, KIND_DROP_IN], true),
            ("a.service", &[USR, DROP_IN], &[USR, DROP_IN, KIND_DROP_IN], false),
            // A drop-in of an alias.
            ("a.service", &[USR, "/etc/systemd/system/b.service.d/10.conf"], &[USR, DROP_IN], false),
            ("a.service", &[LIB], &[USR, ETC], true),
            ("a.service", &[ETC], &[USR, ETC], false),
            ("a.service", &["/run/systemd/generator.late/a.service"], &[USR], true),
            ("a.service", &["/run/systemd/transient/a.service"], &[ETC], false),
            ("a.service", &["/opt/a.service"], &[ETC], false),
            ("app@b.service", &[template], &[template], false),
            ("app@b.service", &[template], &[template, "/etc/systemd/system/app@.service.d/a.conf"], true),
            ("app@b.service", &[template], &[template, "/etc/systemd/system/app@b.service.d/a.conf"], true),
            ("app@b.service", &[template], &[template, "/etc/systemd/system/app@c.service.d/a.conf"], false),
            ("app@b.service", &["/etc/systemd/system/app@.service"], &["/usr/lib/systemd/system/app@b.service"], true),
            ("app@b.service", &["/usr/lib/systemd/system/app@b.service"], &["/etc/systemd/system/app@.service"], false),
            ("a-b-c.service", &["/usr/lib/systemd/system/a-b-c.service"], &["/etc/systemd/system/a-b-.service.d/a.conf"], true),
            ("a-b-c.service", &["/usr/lib/systemd/system/a-b-c.service"], &["/etc/systemd/system/a-.service.d/a.conf"], true),
            ("-.mount", &[], &[USR], false),
        ] {
            let host = MemoryHost::new();
            for file in files {
                host.put(file, "[Service]\n");
            }
            assert_eq!(is_outdated(&host, &loaded(unit, read)), expected, "{unit} {read:?} {files:?}");
        }
    }

    /// An empty file and a link to `/dev/null` mask, and a link in a search directory is an alias.
    #[test]
    fn masks_and_aliases_do_not_count() {
        const USR: &str = "/usr/lib/systemd/system/a.service";
        const ETC: &str = "/etc/systemd/system/a.service";
        let host = MemoryHost::new();
        host.put(USR, "[Service]\n");
        host.put("/opt/a.service", "[Service]\n");
        host.put(ETC, "");
        assert!(!is_outdated(&host, &loaded("a.service", &[USR])));
        for (target, expected) in [("/dev/null", false), (USR, false), ("../a.service", false), ("/opt/a.service", true)] {
            host.delete(ETC);
            host.put_link_to(ETC, target);
            assert_eq!(is_outdated(&host, &loaded("a.service", &[USR])), expected, "{target}");
        }
        host.delete(ETC);
        // A drop-in that is masked in `/etc` is not used, whether or not systemd reports the mask.
        host.put("/usr/lib/systemd/system/a.service.d/10.conf", "[Service]\n");
        host.put("/etc/systemd/system/a.service.d/10.conf", "");
        for read in [&[USR, "/etc/systemd/system/a.service.d/10.conf"][..], &[USR]] {
            assert!(!is_outdated(&host, &loaded("a.service", read)), "{read:?}");
        }
        for load_state in [LoadState::Masked, LoadState::NotFound] {
            host.put(ETC, "[Service]\n");
            assert!(!is_outdated(&host, &UnitStatus { load_state, ..loaded("a.service", &[USR]) }));
        }
    }
}
