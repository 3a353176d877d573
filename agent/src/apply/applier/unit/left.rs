//! Whether a unit that no task manages any more still exists, is enabled or runs. Only files are read, because systemd
//! is asked over a bus, and this check must be cheap.

use super::definition::template;
use crate::host::{Host, HostPath};

/// The directories with the files of units. The later ones have those that systemd made from other files, such as init
/// scripts.
const UNIT_DIRS: [&str; 6] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator",
    "/run/systemd/generator.late",
];

/// The directory in which the links are that enable units.
const ENABLED_DIR: &str = UNIT_DIRS[0];

/// The ends of the names of directories with links that enable units.
const ENABLED_SUFFIXES: [&str; 3] = [".wants", ".requires", ".upholds"];

/// The path of the link that systemd has for a unit from its start until it is inactive, without the name of the unit.
/// A unit that has ended and will be started again has no link. The control groups are no alternative: their place
/// depends on the version of the hierarchy and on `Slice=`, and a unit without processes may have none.
const INVOCATION_LINK: &str = "/run/systemd/units/invocation:";

/// Returns whether a unit still exists: it has a unit file, or it runs without one.
pub(super) fn is_present(host: &dyn Host, unit: &str) -> bool {
    unit_file(host, unit).is_some() || is_running(host, unit)
}

/// Returns whether a unit is enabled or runs. A timer, socket or other unit without processes counts as running as long
/// as its file exists.
pub(super) fn is_enabled_or_running(host: &dyn Host, unit: &str) -> bool {
    let Some(file) = unit_file(host, unit) else { return is_running(host, unit) };
    if !unit.ends_with(".service") {
        return true;
    }
    let own_name = own_name(host, unit, &file);
    let mut names = std::iter::once(unit).chain(own_name.as_deref());
    names.any(|name| is_running(host, name) || is_enabled(host, name))
}

/// Returns the path of the file of a unit, which for an instance may be that of its template.
fn unit_file(host: &dyn Host, unit: &str) -> Option<HostPath> {
    let names = std::iter::once(unit.to_owned()).chain(template(unit));
    let mut paths = names.flat_map(|name| UNIT_DIRS.map(|dir| format!("{dir}/{name}")));
    paths.find_map(|path| HostPath::parse(&path).ok().filter(|path| has_entry(host, path)))
}

/// Returns the name by which systemd knows a unit, if `unit` is only an alias: its file is then a link to the file of
/// the unit, or for an instance to that of another template.
fn own_name(host: &dyn Host, unit: &str, file: &HostPath) -> Option<String> {
    let target = host.parent_dir(file).ok()??.read_link(file.name()).ok()??;
    let target_name = target.rsplit('/').next()?;
    let instance = unit.split_once('@').and_then(|(_, rest)| rest.rsplit_once('.')).map(|(instance, _)| instance);
    Some(match (target_name.split_once("@."), instance) {
        (Some((base, suffix)), Some(instance)) => format!("{base}@{instance}.{suffix}"),
        _ => target_name.to_owned(),
    })
}

fn is_enabled(host: &dyn Host, unit: &str) -> bool {
    let Ok(Some(dir)) = host.dir(&HostPath::from_static(ENABLED_DIR)) else { return false };
    let names = dir.names().unwrap_or_default();
    let mut enabling_dirs = names.iter().filter(|name| ENABLED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)));
    enabling_dirs.any(|name| dir.dir(name).ok().flatten().is_some_and(|dir| dir.stat(unit).ok().flatten().is_some()))
}

fn is_running(host: &dyn Host, unit: &str) -> bool {
    HostPath::parse(&format!("{INVOCATION_LINK}{unit}")).is_ok_and(|path| has_entry(host, &path))
}

fn has_entry(host: &dyn Host, path: &HostPath) -> bool {
    host.stat(path).ok().flatten().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    const NO_LINKS: &[(&str, &str)] = &[];
    const RUNNING: (bool, bool) = (true, true);
    const IDLE: (bool, bool) = (true, false);
    const ABSENT: (bool, bool) = (false, false);

    /// Each row has a unit, files and links of the host, and whether the unit exists, and is enabled or runs.
    /// Regression: a unit counted as running only by its control group below `/sys/fs/cgroup/system.slice`, which hosts
    /// with the first version of control groups do not have, and which units with `Slice=` are not in.
    #[test]
    fn unit_is_left_while_enabled_or_running() {
        for (unit, files, links, expected) in [
            ("a.service", &["/usr/lib/systemd/system/a.service"][..], NO_LINKS, IDLE),
            (
                "a.service",
                &["/usr/lib/systemd/system/a.service", "/etc/systemd/system/multi-user.target.wants/a.service"],
                &[],
                RUNNING,
            ),
            ("a.service", &["/etc/systemd/system/multi-user.target.wants/a.service"], &[], ABSENT),
            ("a.service", &["/etc/systemd/system/a.service"], &[("/run/systemd/units/invocation:a.service", "7")], RUNNING),
            ("a.service", &[], &[("/run/systemd/units/invocation:a.service", "7")], RUNNING),
            ("a.service", &["/run/systemd/generator.late/a.service"], &[], IDLE),
            (
                "my-app@blue.service",
                &["/etc/systemd/system/my-app@.service"],
                &[("/run/systemd/units/invocation:my-app@blue.service", "7")],
                RUNNING,
            ),
            (
                "my-app@blue.service",
                &["/etc/systemd/system/my-app@.service"],
                &[("/run/systemd/units/invocation:my-app@green.service", "7")],
                IDLE,
            ),
            (
                "alias.service",
                &["/usr/lib/systemd/system/a.service"],
                &[
                    ("/etc/systemd/system/alias.service", "/lib/systemd/system/a.service"),
                    ("/run/systemd/units/invocation:a.service", "7"),
                ],
                RUNNING,
            ),
            (
                "alias.service",
                &["/usr/lib/systemd/system/a.service", "/etc/systemd/system/multi-user.target.wants/a.service"],
                &[("/etc/systemd/system/alias.service", "/lib/systemd/system/a.service")],
                RUNNING,
            ),
            (
                "alias@x.service",
                &["/etc/systemd/system/app@.service"],
                &[("/etc/systemd/system/alias@.service", "app@.service"), ("/run/systemd/units/invocation:app@x.service", "7")],
                RUNNING,
            ),
            ("a.service", &[], &[("/etc/systemd/system/a.service", "/dev/null")], IDLE),
            ("a.timer", &["/usr/lib/systemd/system/a.timer"], &[], RUNNING),
            ("a.timer", &[], &[], ABSENT),
        ] {
            let host = MemoryHost::new();
            for file in files {
                host.put(file, "");
            }
            for (link, target) in links {
                host.put_link_to(link, target);
            }
            assert_eq!((is_present(&host, unit), is_enabled_or_running(&host, unit)), expected, "{unit} {files:?} {links:?}");
        }
    }
}
