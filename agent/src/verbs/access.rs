//! Who else could write, or read, what the agent lives by (S71).
//!
//! Whoever can replace the pinned root, the accepted desired state or the configuration decides what root does here. So a
//! start is refused, with the command that mends it, rather than warned about.

use std::path::Path;

use crate::host::{Dir, Host, HostError, HostPath, Kind, Stat};

/// What nobody else may write.
const SETTINGS: [&str; 4] =
    ["/etc/stemma", crate::paths::CONFIG, crate::paths::STATE, "/var/lib/stemma-agent/identity.json"];
/// The directories that the agent makes for itself alone, with mode 0700. Whatever is in them decides what is done next, so each file is
/// looked at.
const OWN: [&str; 7] = [
    "/var/lib/stemma-agent/sync",
    crate::paths::APPLY_STATE,
    "/var/lib/stemma-agent/apply/steps",
    "/var/lib/stemma-agent/apply/results",
    "/var/lib/stemma-agent/apply/bodies",
    "/var/lib/stemma-agent/apply/undo",
    "/var/lib/stemma-agent/apply/secret-paths",
];
/// What nobody else may even read.
const SECRETS: [&str; 3] = [
    "/var/lib/stemma-agent/sync/credentials.json",
    "/var/lib/stemma-agent/sync/pending-key",
    "/var/lib/stemma-agent/apply/seal-key",
];

/// What is looked at by its name. Directories stand before what is in them.
fn looked_at() -> impl Iterator<Item = (&'static str, Holds)> {
    let secret = OWN.into_iter().chain(SECRETS).map(|path| (path, Holds::Secret));
    SETTINGS.map(|path| (path, Holds::Settings)).into_iter().chain(secret)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Settings,
    Secret,
}

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error(
        "{path} belongs to user {owner}, not to root or the user that runs this ({own}), so what it says is not trusted; look whether it was changed, then run: chown {own} {path}"
    )]
    Owner { path: String, owner: u32, own: u32 },
    #[error(
        "{path} can be written by others (mode {mode:04o}), so what it says is not trusted; look whether it was changed, then run: chmod go-w {path}"
    )]
    Writable { path: String, mode: u32 },
    #[error("{path} can be read by others (mode {mode:04o}), and it holds a secret; run: chmod go-rwx {path}")]
    Readable { path: String, mode: u32 },
    #[error("the agent's own files cannot be looked at")]
    Host(#[from] HostError),
}

/// Looks at all of it. What is not there is not looked at, and a link is refused where it is opened.
///
/// # Errors
/// [`AccessError`] for the first that others could touch.
pub(super) fn check_access(host: &dyn Host) -> Result<(), AccessError> {
    for (text, holds) in looked_at() {
        let path = HostPath::own(text);
        if let Some(dir) = host.parent_of(&path)? {
            look(host, &*dir, path.name(), &host.outside(&path), holds)?;
        }
    }
    for path in OWN.map(HostPath::own) {
        let Some(dir) = host.dir(&path)? else { continue };
        for name in dir.names()? {
            look(host, &*dir, &name, &host.outside(&path).join(&name), Holds::Settings)?;
        }
    }
    Ok(())
}

fn look(host: &dyn Host, dir: &dyn Dir, name: &str, path: &Path, holds: Holds) -> Result<(), AccessError> {
    let Some(stat) = dir.stat(name)?.filter(|stat| stat.kind != Kind::Link) else { return Ok(()) };
    let (own, _) = host.identity();
    let path = path.display().to_string();
    let Stat { mode, user: owner, .. } = stat;
    if owner != own && owner != 0 {
        Err(AccessError::Owner { path, owner, own })
    } else if mode & 0o022 != 0 {
        Err(AccessError::Writable { path, mode })
    } else if holds == Holds::Secret && mode & 0o055 != 0 {
        Err(AccessError::Readable { path, mode })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    #[test]
    fn s71_each_file_in_the_agents_own_directories_is_looked_at() {
        for directory in OWN {
            let (host, path) = (MemoryHost::new(), format!("{directory}/some record"));
            host.put(&path, "");
            for above in OWN.iter().filter(|above| directory.starts_with(**above)) {
                host.chmod(above, 0o700);
            }
            for mode in [0o600, 0o400, 0o644] {
                host.chmod(&path, mode);
                check_access(&host).unwrap();
            }
            for mode in [0o666, 0o622, 0o606, 0o660] {
                host.chmod(&path, mode);
                let said = check_access(&host).unwrap_err().to_string();
                assert!(said.ends_with(&format!("run: chmod go-w {path}")), "{mode:o}: {said}");
            }
            host.chmod(&path, 0o600);
            host.chown(&path, 65_534);
            let said = check_access(&host).unwrap_err().to_string();
            assert!(said.ends_with(&format!("run: chown 0 {path}")), "{said}");
        }
    }

    #[test]
    fn w10_11_what_others_could_write_or_read_keeps_the_agent_from_starting() {
        let nobody = 65_534;
        let (settings, secret) = ([0o666, 0o646, 0o664, 0o777], [0o644, 0o640, 0o604]);
        for (path, holds) in looked_at() {
            let made = || {
                let host = MemoryHost::new();
                for (path, _) in looked_at() {
                    if OWN.contains(&path) {
                        host.put(&format!("{path}/record"), "");
                    } else if path.contains('.') || path.ends_with("-key") {
                        host.put(path, "");
                    }
                }
                for (path, _) in looked_at() {
                    host.chmod(path, 0o700);
                }
                host
            };
            check_access(&made()).unwrap();
            let modes = settings.iter().chain(secret.iter().filter(|_| holds == Holds::Secret));
            for mode in modes {
                let host = made();
                host.chmod(path, *mode);
                let said = check_access(&host).unwrap_err().to_string();
                let command = if mode & 0o022 == 0 { "chmod go-rwx" } else { "chmod go-w" };
                assert!(said.starts_with(path) && said.contains(&format!("(mode {mode:04o})")), "{said}");
                assert!(said.ends_with(&format!("run: {command} {path}")), "{said}");
            }
            let host = made();
            host.chown(path, nobody);
            let said = check_access(&host).unwrap_err().to_string();
            assert!(
                said.starts_with(&format!("{path} belongs to user 65534"))
                    && said.ends_with(&format!("chown 0 {path}")),
                "{said}"
            );
        }
        check_access(&MemoryHost::new()).unwrap();
    }
}
