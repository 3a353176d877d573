//! Checks that no other user can write the files that the agent depends on, or read its secret files.
//!
//! A user who can replace the certificate of the fleet's root, the accepted desired state or the configuration
//! determines what root does on this host. So the agent refuses to start, with an error that contains the command to
//! repair the file. A warning would not be enough.

use std::path::Path;

use crate::host::{Dir, FileKind, Host, HostError, HostPath, Stat};

/// Files and directories that other users must not write.
const SETTINGS_PATHS: [&str; 4] =
    ["/etc/stemma", crate::paths::CONFIG, crate::paths::STATE, "/var/lib/stemma-agent/identity.json"];
/// Directories that only the agent uses, created with mode 0700. Each file in these directories is checked too, because
/// it determines what the agent does.
const PRIVATE_DIRS: [&str; 8] = [
    "/var/lib/stemma-agent/sync",
    crate::paths::APPLY_STATE,
    "/var/lib/stemma-agent/apply/steps",
    "/var/lib/stemma-agent/apply/results",
    "/var/lib/stemma-agent/apply/bodies",
    "/var/lib/stemma-agent/apply/undo",
    "/var/lib/stemma-agent/apply/trees",
    "/var/lib/stemma-agent/apply/secret-paths",
];
/// Files that other users must not even read.
const SECRET_PATHS: [&str; 3] = [
    "/var/lib/stemma-agent/sync/credentials.json",
    "/var/lib/stemma-agent/sync/pending-key",
    "/var/lib/stemma-agent/apply/seal-key",
];

/// Returns the fixed paths that are checked, each with the access that other users must not have. A directory is listed
/// before its content.
fn checked_paths() -> impl Iterator<Item = (&'static str, PathSensitivity)> {
    let secret = PRIVATE_DIRS.into_iter().chain(SECRET_PATHS).map(|path| (path, PathSensitivity::Secret));
    SETTINGS_PATHS.map(|path| (path, PathSensitivity::Settings)).into_iter().chain(secret)
}

/// The kind of access that other users must not have to a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathSensitivity {
    /// Other users must not write the path.
    Settings,
    /// Other users must neither read nor write the path.
    Secret,
}

/// The reason why a command does not run: other users could have changed or read the agent's files, or a check failed.
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

/// Checks owner and mode of all files that the agent depends on. Files that do not exist are skipped. Symbolic links
/// are skipped too, because the agent later refuses to open a link.
///
/// # Errors
/// [`AccessError`] for the first file that other users can change, or for the first secret file that they can read.
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

/// Checks the owner and the mode of one entry of `dir`. A missing entry and a symbolic link pass the check. Execute
/// permission counts as read permission, because it lets other users open the files of a directory. `path` is the
/// entry's path for the error.
fn check_entry(host: &dyn Host, dir: &dyn Dir, name: &str, path: &Path, sensitivity: PathSensitivity) -> Result<(), AccessError> {
    let Some(stat) = dir.stat(name)?.filter(|stat| stat.kind != FileKind::Link) else { return Ok(()) };
    let (agent_user, _) = host.user_and_group();
    let path = path.display().to_string();
    let Stat { mode, user: owner, .. } = stat;
    if owner != agent_user && owner != 0 {
        Err(AccessError::Owner { path, owner, own: agent_user })
    } else if mode & 0o022 != 0 {
        Err(AccessError::Writable { path, mode })
    } else if sensitivity == PathSensitivity::Secret && mode & 0o055 != 0 {
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
            for parent in PRIVATE_DIRS.iter().filter(|parent| directory.starts_with(**parent)) {
                host.chmod(parent, 0o700);
            }
            for mode in [0o600, 0o400, 0o644] {
                host.chmod(&path, mode);
                check_access(&host).unwrap();
            }
            for mode in [0o666, 0o622, 0o606, 0o660] {
                host.chmod(&path, mode);
                let message = check_access(&host).unwrap_err().to_string();
                assert!(message.ends_with(&format!("run: chmod go-w {path}")), "{mode:o}: {message}");
            }
            host.chmod(&path, 0o600);
            host.chown(&path, 65_534);
            let message = check_access(&host).unwrap_err().to_string();
            assert!(message.ends_with(&format!("run: chown 0 {path}")), "{message}");
        }
    }

    /// Gives one path after the other a mode that is too open, or another owner. A file of settings may be readable.
    #[test]
    fn w10_11_check_access_fails_when_others_can_write_or_read() {
        let nobody = 65_534;
        let (writable_modes, readable_modes) = ([0o666, 0o646, 0o664, 0o777], [0o644, 0o640, 0o604]);
        for (path, sensitivity) in checked_paths() {
            let host_with_files = || {
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
            check_access(&host_with_files()).unwrap();
            let modes = writable_modes.iter().chain(readable_modes.iter().filter(|_| sensitivity == PathSensitivity::Secret));
            for mode in modes {
                let host = host_with_files();
                host.chmod(path, *mode);
                let message = check_access(&host).unwrap_err().to_string();
                let command = if mode & 0o022 == 0 { "chmod go-rwx" } else { "chmod go-w" };
                assert!(message.starts_with(path) && message.contains(&format!("(mode {mode:04o})")), "{message}");
                assert!(message.ends_with(&format!("run: {command} {path}")), "{message}");
            }
            let host = host_with_files();
            host.chown(path, nobody);
            let message = check_access(&host).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("{path} belongs to user 65534")) && message.ends_with(&format!("chown 0 {path}")),
                "{message}"
            );
        }
        check_access(&MemoryHost::new()).unwrap();
    }
}
