//! Files of keys and certificates. Writes are atomic and durable, in directories that others cannot write (S71).
//!
//! A person who can replace an issuer's key controls the fleet. `stemma_wire::config` checks, when a file is read, that
//! others have no access to it. This module checks that nobody can replace the file.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
pub use stemma_wire::config::FileSensitivity;
use stemma_wire::config::{self, ConfigError};

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be read, or other users may write it, or it contains a secret that other users may read.
    #[error(transparent)]
    Read(#[from] ConfigError),
    /// A system call failed.
    #[error("{}: cannot {what} it", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// Others may replace files in the directory.
    #[error(
        "{}: others may write in this directory (mode {mode:04o}), so what it holds is not trusted; run: chmod go-w {}",
        path.display(), path.display()
    )]
    OpenDirectory {
        /// The path of the directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The directory belongs to a user who is neither root nor the user of this process.
    #[error(
        "{}: this directory belongs to user {owner}, not to root or the user that runs this ({user}), so what it holds is not \
         trusted; check whether it was changed, then run: chown {user} {}",
        path.display(), path.display()
    )]
    DirectoryOwner {
        /// The path of the directory.
        path: PathBuf,
        /// The owner of the directory.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Another process has locked the directory.
    #[error(
        "{}: a restore, an init or a controller that starts is using this directory; nothing was changed: wait until it has finished and \
         check the directory again, or give another --data-dir",
        path.display()
    )]
    Busy {
        /// The path of the directory.
        path: PathBuf,
    },
    /// The path is not a directory.
    #[error("{}: not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
}

/// Reads a text file, after a check that other users cannot write it and, if it is secret, cannot read it.
///
/// # Errors
/// [`FileError::Read`]. The file is not changed.
pub fn read(path: &Path, sensitivity: FileSensitivity) -> Result<String, FileError> {
    Ok(config::read(path, sensitivity)?)
}

/// Checks that other users cannot replace a file in this directory.
///
/// # Errors
/// [`FileError`] with the reason.
pub fn check_directory(path: &Path) -> Result<(), FileError> {
    let metadata = fs::metadata(path).map_err(|source| FileError::Io { path: path.to_owned(), what: "look at", source })?;
    let mode = metadata.mode() & 0o7777;
    if !metadata.is_dir() {
        return Err(FileError::NotADirectory { path: path.to_owned() });
    }
    if mode & 0o022 != 0 {
        return Err(FileError::OpenDirectory { path: path.to_owned(), mode });
    }
    check_owner(path, metadata.uid(), rustix::process::geteuid().as_raw())
}

fn check_owner(path: &Path, owner: u32, user: u32) -> Result<(), FileError> {
    if owner == 0 || owner == user {
        return Ok(());
    }
    Err(FileError::DirectoryOwner { path: path.to_owned(), owner, user })
}

/// Returns the paths in a directory, sorted. Empty if there is no directory.
///
/// # Errors
/// [`FileError::Io`].
pub fn list_directory(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    let failed = |source| FileError::Io { path: path.to_owned(), what: "list", source };
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    paths.sort();
    Ok(paths)
}

fn file_mode(sensitivity: FileSensitivity) -> u32 {
    match sensitivity {
        FileSensitivity::Secret => 0o600,
        FileSensitivity::Settings => 0o644,
    }
}

/// Replaces a file atomically: writes and syncs a new file next to it, and renames the new file over the old one. A
/// reader never sees a partly written file.
///
/// # Errors
/// [`FileError::Io`].
pub fn write(path: &Path, sensitivity: FileSensitivity, bytes: &[u8]) -> Result<(), FileError> {
    let io = |what| move |source| FileError::Io { path: path.to_owned(), what, source };
    let temporary = path.with_added_extension("new");
    // A file that a crash left there is of no use.
    let _ = fs::remove_file(&temporary);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(file_mode(sensitivity)).open(&temporary).map_err(io("write"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io("write"))?;
    fs::rename(&temporary, path).map_err(io("replace"))?;
    sync_directory(path.parent().unwrap_or(Path::new("."))).map_err(io("sync the directory of"))
}

/// Creates a directory that only its owner can enter. If the directory exists, takes access to it away from other
/// users.
///
/// # Errors
/// [`FileError`], also if the directory exists and belongs to another user.
pub fn make_directory(path: &Path) -> Result<(), FileError> {
    let io = |what| move |source| FileError::Io { path: path.to_owned(), what, source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("make"))?;
    let owner = fs::metadata(path).map_err(io("look at"))?.uid();
    check_owner(path, owner, rustix::process::geteuid().as_raw())?;
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(io("set the mode of"))
}

/// A lock of a directory. It lasts until this value is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    _fd: OwnedFd,
    is_locked: bool,
}

impl DirectoryLock {
    /// Returns whether the lock excludes others. False if the file system does not support locks.
    pub const fn is_locked(&self) -> bool {
        self.is_locked
    }
}

/// Locks a directory in which a fleet is created, until the returned value is dropped or the process ends. So only one
/// process at a time creates a fleet there. On a file system without locks, the function succeeds without a lock, so
/// that a fleet can be created there too.
///
/// # Errors
/// [`FileError::Busy`] if another process holds the lock, otherwise [`FileError::Io`].
pub fn lock_directory(path: &Path) -> Result<DirectoryLock, FileError> {
    let io = |what| move |errno: Errno| FileError::Io { path: path.to_owned(), what, source: errno.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(io("open"))?;
    let is_locked = is_locked(path, flock(&fd, FlockOperation::NonBlockingLockExclusive))?;
    Ok(DirectoryLock { _fd: fd, is_locked })
}

/// Returns whether the lock was acquired. False if the file system does not support locks.
fn is_locked(path: &Path, locked: Result<(), Errno>) -> Result<bool, FileError> {
    match locked {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) => Ok(false),
        Err(Errno::WOULDBLOCK) => Err(FileError::Busy { path: path.to_owned() }),
        Err(errno) => Err(FileError::Io { path: path.to_owned(), what: "lock", source: errno.into() }),
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s71_read_names_fixing_command_when_others_have_access() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agents.key");
        write(&path, FileSensitivity::Secret, b"key").unwrap();
        let shown = path.display().to_string();
        for (mode, want) in [
            (0o600, None),
            (0o640, Some(format!("{shown}: others may read it (mode 0640), and it holds a secret; run: chmod 0600 {shown}"))),
            (0o622, Some(format!("{shown}: others may write it (mode 0622), so it is not trusted; run: chmod go-w {shown}"))),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path, FileSensitivity::Secret).err().map(|error| error.to_string()), want, "{mode:o}");
        }
        let shown = directory.path().display().to_string();
        for (mode, refused) in [(0o700, false), (0o755, false), (0o775, true), (0o702, true)] {
            fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
            let got = check_directory(directory.path());
            assert_eq!(got.is_err(), refused, "{mode:o}");
            if let Err(error) = got {
                assert_eq!(
                    error.to_string(),
                    format!(
                        "{shown}: others may write in this directory (mode {mode:04o}), so what it holds is not trusted; run: \
                         chmod go-w {shown}"
                    )
                );
            }
        }
    }

    #[test]
    fn w10_11_check_owner_names_fixing_command_when_owner_differs() {
        let path = Path::new("/var/lib/stemma-controller");
        for (owner, user, refused) in [(0, 0, false), (0, 990, false), (990, 990, false), (65_534, 0, true), (990, 0, true)] {
            let said = check_owner(path, owner, user).map_err(|error| error.to_string());
            assert_eq!(said.is_err(), refused, "{owner} {user}");
            let Err(said) = said else { continue };
            assert!(said.starts_with(&format!("{}: this directory belongs to user {owner}", path.display())), "{said}");
            assert!(said.ends_with(&format!("run: chown {user} {}", path.display())), "{said}");
        }
    }

    #[test]
    fn x02_lock_directory_fails_when_locked() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock_directory(directory.path()).unwrap();
        let refused = lock_directory(directory.path()).unwrap_err().to_string();
        let shown = directory.path().display();
        assert!(refused.starts_with(&format!("{shown}: a restore, an init or a controller")), "{refused}");
        assert!(refused.contains("nothing was changed"), "{refused}");
        drop(held);
        assert!(lock_directory(directory.path()).unwrap().is_locked());
    }

    #[test]
    fn x02_lock_directory_succeeds_when_file_system_lacks_locks() {
        let path = Path::new("/var/lib/stemma-controller");
        for unknown in [Errno::NOTSUP, Errno::NOSYS, Errno::NOLCK] {
            assert!(!is_locked(path, Err(unknown)).unwrap(), "{unknown}");
        }
        assert!(matches!(is_locked(path, Err(Errno::WOULDBLOCK)), Err(FileError::Busy { .. })));
        let refused = is_locked(path, Err(Errno::IO)).unwrap_err().to_string();
        assert_eq!(refused, "/var/lib/stemma-controller: cannot lock it");
    }

    #[test]
    fn write_sets_mode_and_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("root.pem");
        for (holds, beyond) in [(FileSensitivity::Secret, 0o177), (FileSensitivity::Settings, 0o133)] {
            write(&path, holds, b"x").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & beyond, 0);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
