//! The hooks that are there: `/etc/stemma/hooks.d/*`, executables of the host's owner. The root half runs them at a change. The network half
//! reports what is not run, as soon as it is there and until it is gone.

use stemma_core::name::is_run_parts_name;

use crate::findings::{left_out, not_run};
use crate::host::{Host, HostError, HostPath, Kind, Stat};
use crate::paths;

/// What is there and is not run, and why, one sentence each.
pub(crate) fn findings(host: &dyn Host) -> Vec<String> {
    hooks(host).map_or_else(|error| vec![error.sentence()], |(_, findings)| findings)
}

/// The executables, by name; one that others may write is never run as root (S71).
pub(crate) fn hooks(host: &dyn Host) -> Result<(Vec<String>, Vec<String>), HostError> {
    let Some(dir) = host.dir(&HostPath::own(paths::HOOKS))? else { return Ok((Vec::new(), Vec::new())) };
    let (mut names, mut findings) = (Vec::new(), Vec::new());
    let (own, _) = host.identity();
    if let Some((open, _)) = host.open_to_others(&HostPath::own(paths::HOOKS))? {
        findings.push(format!("{open} can be written by others, so no hook is run: chmod go-w, chown root"));
        return Ok((names, findings));
    }
    let (mut left, mut links, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for name in dir.names()?.into_iter().filter(|name| !name.starts_with('.')) {
        let Some(stat) = dir.stat(&name)? else { continue };
        if !may_be_meant(&stat) {
            continue;
        }
        if !is_run_parts_name(&name) {
            left.push(name);
        } else if stat.kind == Kind::Link {
            links.push(name);
        } else if stat.kind != Kind::File {
            others.push(name);
        } else if stat.is_open_to_others(own) {
            findings.push(format!("hook {name} can be written by others and is not run: chmod go-w, chown root"));
        } else {
            names.push(name);
        }
    }
    let unreadable =
        dir.unreadable_names()?.into_iter().filter(|(name, stat)| !name.starts_with('.') && may_be_meant(stat));
    left.extend(unreadable.map(|(name, _)| name));
    findings.extend(left_out(paths::HOOKS, &left));
    findings.extend(not_run(paths::HOOKS, &links, &others));
    Ok((names, findings))
}

/// Whether what stands there may be meant as a hook: a file that nobody may execute, as a README, is none.
const fn may_be_meant(stat: &Stat) -> bool {
    !matches!(stat.kind, Kind::File) || stat.mode & 0o111 != 0
}
