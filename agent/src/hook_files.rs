//! Lists the hooks of this host: `/etc/stemma/hooks.d/*`, executables of the host's owner. The root half runs them
//! after a change. The network half reports the entries that are not run, as soon as they appear and until they are
//! removed.

use stemma_core::name::is_run_parts_name;

use crate::findings::{not_executed, skipped_by_name};
use crate::host::{FileKind, Host, HostError, HostPath, Stat};
use crate::paths;

/// Returns the findings about entries of the hooks directory that the agent does not run. A hook is a program of the
/// host's owner that runs after a change. If the directory cannot be read, the error is the only finding.
pub(crate) fn findings(host: &dyn Host) -> Vec<String> {
    list_hooks(host).map_or_else(|error| vec![error.sentence()], |(_, findings)| findings)
}

/// Lists the hooks directory. Returns the names of the hooks to run, and findings about the entries that the agent does
/// not run.
///
/// A file that other users can write is not run, because hooks run as root. If they can write the directory or one
/// above it, no hook is run. Files without execute permission and hidden files cause no finding.
pub(crate) fn list_hooks(host: &dyn Host) -> Result<(Vec<String>, Vec<String>), HostError> {
    let Some(dir) = host.dir(&HostPath::from_static(paths::HOOKS))? else { return Ok((Vec::new(), Vec::new())) };
    let (mut names, mut findings) = (Vec::new(), Vec::new());
    let (agent_user, _) = host.user_and_group();
    if let Some((untrusted_dir, _)) = host.first_untrusted_dir(&HostPath::from_static(paths::HOOKS))? {
        findings.push(format!("{untrusted_dir} can be written by others, so no hook is run: chmod go-w, chown root"));
        return Ok((names, findings));
    }
    let (mut skipped, mut links, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for name in dir.names()?.into_iter().filter(|name| !name.starts_with('.')) {
        let Some(stat) = dir.stat(&name)? else { continue };
        if !may_be_hook(&stat) {
            continue;
        }
        if !is_run_parts_name(&name) {
            skipped.push(name);
        } else if stat.kind == FileKind::Link {
            links.push(name);
        } else if stat.kind != FileKind::File {
            others.push(name);
        } else if stat.is_open_to_others(agent_user) {
            findings.push(format!("hook {name} can be written by others and is not run: chmod go-w, chown root"));
        } else {
            names.push(name);
        }
    }
    // An unreadable name is one that is not UTF-8.
    let unreadable = dir.non_utf8_names()?.into_iter().filter(|(name, stat)| !name.starts_with('.') && may_be_hook(stat));
    skipped.extend(unreadable.map(|(name, _)| name));
    findings.extend(skipped_by_name(paths::HOOKS, &skipped));
    findings.extend(not_executed(paths::HOOKS, &links, &others));
    Ok((names, findings))
}

/// Returns whether a directory entry may be intended as a hook. A regular file that nobody can execute, such as a
/// README, is not. For links and other kinds of files this is true, so that a finding reports them.
const fn may_be_hook(stat: &Stat) -> bool {
    !matches!(stat.kind, FileKind::File) || stat.mode & 0o111 != 0
}
