//! Whether a unit that no task manages any more is still enabled or runs. Only files are read, because systemd is asked over
//! a bus, and this check must be cheap.

use crate::host::{Host, HostPath};

/// The directories with the files of units.
const UNIT_DIRS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// The directory in which the links are that enable units.
const ENABLED_DIR: &str = UNIT_DIRS[0];

/// The ends of the names of directories with links that enable units.
const ENABLED_SUFFIXES: [&str; 3] = [".wants", ".requires", ".upholds"];

/// The directory with the processes of running services.
const SYSTEM_SLICE: &str = "/sys/fs/cgroup/system.slice";

/// Returns whether a unit still exists, and is enabled or runs. A timer, socket or other unit without processes counts as
/// running as long as it exists.
pub(super) fn is_left(host: &dyn Host, unit: &str) -> bool {
    let has_file = UNIT_DIRS.iter().any(|dir| unit_files(unit).iter().any(|name| has_entry(host, dir, name)));
    has_file && (!unit.ends_with(".service") || is_enabled(host, unit) || is_running(host, unit))
}

/// Returns the names that the file of a unit may have: the name of the unit, and for an instance that of its template.
fn unit_files(unit: &str) -> Vec<String> {
    let template = unit.split_once('@').zip(unit.rsplit_once('.')).map(|((base, _), (_, suffix))| format!("{base}@.{suffix}"));
    std::iter::once(unit.to_owned()).chain(template).collect()
}

fn is_enabled(host: &dyn Host, unit: &str) -> bool {
    let Ok(Some(dir)) = host.dir(&HostPath::from_static(ENABLED_DIR)) else { return false };
    let names = dir.names().unwrap_or_default();
    let mut enabling_dirs = names.iter().filter(|name| ENABLED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)));
    enabling_dirs.any(|name| dir.dir(name).ok().flatten().is_some_and(|dir| dir.stat(unit).ok().flatten().is_some()))
}

/// Returns whether a service has processes. The instances of a template have a slice of their own, in whose name systemd
/// escapes `-` and `\` of the template.
fn is_running(host: &dyn Host, unit: &str) -> bool {
    let escape = |base: &str| base.replace('\\', r"\x5c").replace('-', r"\x2d");
    let template_slice = unit.split_once('@').map(|(base, _)| format!("{SYSTEM_SLICE}/system-{}.slice", escape(base)));
    std::iter::once(SYSTEM_SLICE.to_owned()).chain(template_slice).any(|slice| has_entry(host, &slice, unit))
}

fn has_entry(host: &dyn Host, dir: &str, name: &str) -> bool {
    HostPath::parse(&format!("{dir}/{name}")).is_ok_and(|path| host.stat(&path).ok().flatten().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    #[test]
    fn unit_is_left_while_enabled_or_running() {
        for (unit, files, expected) in [
            ("a.service", &["/usr/lib/systemd/system/a.service"][..], false),
            ("a.service", &["/usr/lib/systemd/system/a.service", "/etc/systemd/system/multi-user.target.wants/a.service"], true),
            ("a.service", &["/etc/systemd/system/multi-user.target.wants/a.service"], false),
            ("a.service", &["/etc/systemd/system/a.service", "/sys/fs/cgroup/system.slice/a.service/cgroup.procs"], true),
            (
                "app@blue.service",
                &[
                    "/etc/systemd/system/app@.service",
                    "/sys/fs/cgroup/system.slice/system-app.slice/app@blue.service/cgroup.procs",
                ],
                true,
            ),
            (
                "my-app@blue.service",
                &[
                    "/etc/systemd/system/my-app@.service",
                    r"/sys/fs/cgroup/system.slice/system-my\x2dapp.slice/my-app@blue.service/cgroup.procs",
                ],
                true,
            ),
            ("a.timer", &["/usr/lib/systemd/system/a.timer"], true),
            ("a.timer", &[], false),
        ] {
            let host = MemoryHost::new();
            for file in files {
                host.put(file, "");
            }
            assert_eq!(is_left(&host, unit), expected, "{unit} {files:?}");
        }
    }
}
