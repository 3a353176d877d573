//! Who else could write, or read, what the agent lives by (S71).
//!
//! Whoever can replace the pinned root, the accepted desired state or the configuration decides what root does here. So a
//! start is refused, with the command that mends it, rather than warned about.

use crate::host::{Host, HostError, HostPath, Kind, Stat};

/// What is looked at, and whether nobody else may even read it. Directories stand before what is in them.
const LOOKED_AT: [(&str, Holds); 14] = [
    ("/etc/stemma", Holds::Settings),
    (crate::paths::CONFIG, Holds::Settings),
    (crate::paths::STATE, Holds::Settings),
    ("/var/lib/stemma-agent/identity.json", Holds::Settings),
    ("/var/lib/stemma-agent/sync", Holds::Settings),
    ("/var/lib/stemma-agent/sync/credentials.json", Holds::Secret),
    ("/var/lib/stemma-agent/sync/pending-key", Holds::Secret),
    (crate::paths::APPLY_STATE, Holds::Settings),
    ("/var/lib/stemma-agent/apply/accepted", Holds::Settings),
    ("/var/lib/stemma-agent/apply/seal-key", Holds::Secret),
    ("/var/lib/stemma-agent/apply/steps", Holds::Settings),
    ("/var/lib/stemma-agent/apply/bodies", Holds::Settings),
    ("/var/lib/stemma-agent/apply/undo", Holds::Secret),
    ("/var/lib/stemma-agent/apply/secret-paths", Holds::Settings),
];

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
    for (text, holds) in LOOKED_AT {
        let path = HostPath::own(text);
        let stat = host.parent_of(&path)?.map(|dir| dir.stat(path.name())).transpose()?.flatten();
        if let Some(stat) = stat.filter(|stat| stat.kind != Kind::Link) {
            check(host, &path, stat, holds)?;
        }
    }
    Ok(())
}

fn check(host: &dyn Host, path: &HostPath, stat: Stat, holds: Holds) -> Result<(), AccessError> {
    let (own, _) = host.identity();
    let path = host.outside(path).display().to_string();
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
    fn w10_11_what_others_could_write_or_read_keeps_the_agent_from_starting() {
        let nobody = 65_534;
        let (settings, secret) = ([0o666, 0o646, 0o664, 0o777], [0o644, 0o640, 0o604]);
        for (path, holds) in LOOKED_AT {
            let made = || {
                let host = MemoryHost::new();
                for (path, _) in LOOKED_AT.iter().filter(|(path, _)| path.contains('.') || path.ends_with("ed")) {
                    host.put(path, "");
                }
                for (path, _) in LOOKED_AT {
                    if host.list(path).is_empty() {
                        host.put(path, "");
                    }
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
