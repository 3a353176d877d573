//! Checks that no other user can write the files that the agent depends on, or read its secret files (S71).
//!
//! A user who can replace the pinned root, the accepted desired state or the configuration decides what root does on
//! this host. So the agent refuses to start, with the command that repairs the file. A warning would not be enough.

use std::path::Path;

use crate::host::{Dir, FileKind, Host, HostError, HostPath, Stat};

/// Files and directories that other users must not write.
const SETTINGS_PATHS: [&str; 4] =
    ["/etc/stemma", crate::paths::CONFIG, crate::paths::STATE, "/var/lib/stemma-agent/identity.json"];
/// Directories that only the agent uses, created with mode 0700. Their content decides what the agent does, so each
/// file in them is checked.
const PRIVATE_DIRS: [&str; 7] = [
    "/var/lib/stemma-agent/sync",
    crate::paths::APPLY_STATE,
    "/var/lib/stemma-agent/apply/steps",
    "/var/lib/stemma-agent/apply/results",
    "/var/lib/stemma-agent/apply/bodies",
    "/var/lib/stemma-agent/apply/undo",
    "/var/lib/stemma-agent/apply/secret-paths",
];
/// Files that other users must not even read.
const SECRET_PATHS: [&str; 3] = [
    "/var/lib/stemma-agent/sync/credentials.json",
    "/var/lib/stemma-agent/sync/pending-key",
    "/var/lib/stemma-agent/apply/seal-key",
];

/// Returns the paths that are checked by name, each with its sensitivity. A directory is listed before its content.
fn checked_paths() -> impl Iterator<Item = (&'static str, PathSensitivity)> {
    let secret = PRIVATE_DIRS.into_iter().chain(SECRET_PATHS).map(|path| (path, PathSensitivity::Secret));
    SETTINGS_PATHS.map(|path| (path, PathSensitivity::Settings)).into_iter().chain(secret)
}

/// Which access of other users makes a path unsafe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathSensitivity {
    Settings,
    Secret,
}

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error(
        "{path} belongs to user {owner}, not to root or the user that runs this ({own}), so its content is not trusted; check whether it was changed, then run: chown {own} {path}"
    )]
    Owner { path: String, owner: u32, own: u32 },
    #[error(
        "{path} can be written by others (mode {mode:04o}), so its content is not trusted; check whether it was changed, then run: chmod go-w {path}"
    )]
    Writable { path: String, mode: u32 },
    #[error("{path} can be read by others (mode {mode:04o}), and it holds a secret; run: chmod go-rwx {path}")]
    Readable { path: String, mode: u32 },
    #[error("the agent's own files cannot be checked")]
    Host(#[from] HostError),
}

/// Checks all files that the agent depends on. Files that do not exist are skipped. Links are skipped too, because the
/// agent refuses a link when it opens the file.
///
/// # Errors
/// [`AccessError`] for the first file that other users can change or read.
pub(super) fn check_access(host: &dyn Host) -> Result<(), AccessError> {
    for (text, sensitivity) in checked_paths() {
        let path = HostPath::from_static(text);
        if let Some(dir) = host.parent_dir(&path)? {
            check_entry(host, &*dir, path.name(), &host.system_path(&path), sensitivity)?;
        }
    }
    for path in PRIVATE_DIRS.map(HostPath::from_static) {
        let Some(dir) = host.dir(&path)? else { continue };
        for name in dir.names()? {
            check_entry(host, &*dir, &name, &host.system_path(&path).join(&name), PathSensitivity::Settings)?;
        }
    }
    Ok(())
}

/// Checks the owner and the mode of one directory entry.
fn check_entry(host: &dyn Host, dir: &dyn Dir, name: &str, path: &Path, holds: PathSensitivity) -> Result<(), AccessError> {
    let Some(stat) = dir.stat(name)?.filter(|stat| stat.kind != FileKind::Link) else { return Ok(()) };
    let (own, _) = host.user_and_group();
    let path = path.display().to_string();
    let Stat { mode, user: owner, .. } = stat;
    if owner != own && owner != 0 {
        Err(AccessError::Owner { path, owner, own })
    } else if mode & 0o022 != 0 {
        Err(AccessError::Writable { path, mode })
    } else if holds == PathSensitivity::Secret && mode & 0o055 != 0 {
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
    fn s71_check_access_checks_each_file_in_private_directories() {
        for directory in PRIVATE_DIRS {
            let (host, path) = (MemoryHost::new(), format!("{directory}/some record"));
            host.put(&path, "");
            for above in PRIVATE_DIRS.iter().filter(|above| directory.starts_with(**above)) {
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
    fn w10_11_check_access_fails_when_others_can_write_or_read() {
        let nobody = 65_534;
        let (settings, secret) = ([0o666, 0o646, 0o664, 0o777], [0o644, 0o640, 0o604]);
        for (path, holds) in checked_paths() {
            let made = || {
                let host = MemoryHost::new();
                for (path, _) in checked_paths() {
                    if PRIVATE_DIRS.contains(&path) {
                        host.put(&format!("{path}/record"), "");
                    } else if path.contains('.') || path.ends_with("-key") {
                        host.put(path, "");
                    }
                }
                for (path, _) in checked_paths() {
                    host.chmod(path, 0o700);
                }
                host
            };
            check_access(&made()).unwrap();
            let modes = settings.iter().chain(secret.iter().filter(|_| holds == PathSensitivity::Secret));
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
                said.starts_with(&format!("{path} belongs to user 65534")) && said.ends_with(&format!("chown 0 {path}")),
                "{said}"
            );
        }
        check_access(&MemoryHost::new()).unwrap();
    }
}
