//! Reads and writes the files of keys and certificates. Writes are atomic and durable. The directories must be writable
//! only for their owner (S71).
//!
//! A person who can replace the private key of a certificate authority controls the fleet. When a file is read,
//! `stemma_wire::config` checks that other users cannot write or replace it and, for a secret, cannot read it.
//! [`check_directory`] checks a whole directory before its files are read.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
pub use stemma_wire::config::FileSensitivity;
use stemma_wire::config::{self, ConfigError};

/// The error of a read, write, check or lock of a file or directory.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be read, or other users have access to it that they must not have.
    #[error(transparent)]
    Read(#[from] ConfigError),
    /// A system call failed.
    #[error("{}: cannot {what} it", path.display())]
    Io {
        /// The path of the file or directory.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// Other users may write in the directory, so they could replace its files.
    #[error(
        "{}: others may write in this directory (mode {mode:04o}), so its content is not trusted; run: chmod go-w {}",
        path.display(), path.display()
    )]
    OpenDirectory {
        /// The path of the directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The directory belongs to a user other than root and the user of this process. That user could replace its files.
    #[error(
        "{}: this directory belongs to user {owner}, not to root or the user that runs this ({user}), so its content is not \
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
    /// The user of this process has no write access to a file of the directory.
    #[error(
        "{}: it belongs to user {owner}, and the user that runs this ({user}) cannot write it; nothing was changed: if the whole \
         directory is for that user, run: chown -R {user}:{group} {}",
        path.display(), directory.display()
    )]
    FileOwner {
        /// The path of the file.
        path: PathBuf,
        /// The directory that contains it.
        directory: PathBuf,
        /// The owner of the file.
        owner: u32,
        /// The user of this process.
        user: u32,
        /// The group of this process.
        group: u32,
    },
    /// Another process has locked the directory, for example a restore.
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

/// Reads a text file. First checks that other users cannot write the file and, for a secret, that they cannot read it.
///
/// # Errors
/// Fails with [`FileError::Read`].
pub fn read(path: &Path, sensitivity: FileSensitivity) -> Result<String, FileError> {
    Ok(config::read(path, sensitivity)?)
}

/// Checks that other users cannot replace a file in this directory: it belongs to root or the user of this process, and
/// only its owner may write in it.
///
/// # Errors
/// Fails with the reason ([`FileError`]).
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

/// Checks that this process can write a file that it must write, if the file exists. This is not the case for a fleet that
/// root created, and that the service of the controller shall use.
///
/// # Errors
/// Fails with [`FileError::FileOwner`].
pub fn check_writable(path: &Path) -> Result<(), FileError> {
    let access = rustix::fs::accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS);
    match (access, fs::metadata(path)) {
        (Err(Errno::ACCESS), Ok(metadata)) => Err(FileError::FileOwner {
            path: path.to_owned(),
            directory: path.parent().unwrap_or(Path::new(".")).to_owned(),
            owner: metadata.uid(),
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        }),
        _ => Ok(()),
    }
}

/// Fails if the owner of a directory is neither root nor `user`, the user of this process.
fn check_owner(path: &Path, owner: u32, user: u32) -> Result<(), FileError> {
    if owner == 0 || owner == user {
        return Ok(());
    }
    Err(FileError::DirectoryOwner { path: path.to_owned(), owner, user })
}

/// Returns the paths of the entries in a directory, sorted. The list is empty if the directory does not exist.
///
/// # Errors
/// Fails with [`FileError::Io`].
pub fn list_directory(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    let list_error = |source| FileError::Io { path: path.to_owned(), what: "list", source };
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(list_error)?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(list_error)?;
    paths.sort();
    Ok(paths)
}

/// Returns the permission bits of a new file: only its owner can read a secret, and everybody can read settings.
fn file_mode(sensitivity: FileSensitivity) -> u32 {
    match sensitivity {
        FileSensitivity::Secret => 0o600,
        FileSensitivity::Settings => 0o644,
    }
}

/// Replaces a file atomically, so a reader never gets a partly written file. It writes and syncs a temporary file, and
/// renames that file over the old one.
///
/// # Errors
/// Fails with [`FileError::Io`].
pub fn write(path: &Path, sensitivity: FileSensitivity, bytes: &[u8]) -> Result<(), FileError> {
    let error = |what| move |source| FileError::Io { path: path.to_owned(), what, source };
    let temporary = path.with_added_extension("new");
    // A crash may have left a temporary file. It is removed, so that a new one can be created.
    let _ = fs::remove_file(&temporary);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(file_mode(sensitivity)).open(&temporary).map_err(error("write"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(error("write"))?;
    fs::rename(&temporary, path).map_err(error("replace"))?;
    sync_directory(path.parent().unwrap_or(Path::new("."))).map_err(error("sync the directory of"))
}

/// Creates a directory to which only its owner has access, and its missing parents in the same way. If the directory
/// exists, its permissions are changed to this.
///
/// # Errors
/// Fails with [`FileError`], for example if the directory exists and belongs to another user.
pub fn make_directory(path: &Path) -> Result<(), FileError> {
    let io_error = |what| move |source| FileError::Io { path: path.to_owned(), what, source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error("make"))?;
    let owner = fs::metadata(path).map_err(io_error("look at"))?.uid();
    check_owner(path, owner, rustix::process::geteuid().as_raw())?;
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(io_error("set the mode of"))
}

/// A lock of a directory. Dropping this value releases the lock.
#[derive(Debug)]
pub struct DirectoryLock {
    _fd: OwnedFd,
    is_locked: bool,
}

impl DirectoryLock {
    /// Returns whether the directory is really locked. The result is false if the file system does not support locks.
    pub const fn is_locked(&self) -> bool {
        self.is_locked
    }
}

/// Locks a directory in which a fleet is created, so that only one process at a time creates a fleet there. The lock
/// ends when the returned value is dropped or the process ends. If the file system does not support locks, the function
/// succeeds without a lock, because a fleet must be possible there too.
///
/// # Errors
/// Fails with [`FileError::Busy`] if another process holds the lock, and otherwise with [`FileError::Io`].
pub fn lock_directory(path: &Path) -> Result<DirectoryLock, FileError> {
    let io_error = |what| move |errno: Errno| FileError::Io { path: path.to_owned(), what, source: errno.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(io_error("open"))?;
    let is_locked = is_locked(path, flock(&fd, FlockOperation::NonBlockingLockExclusive))?;
    Ok(DirectoryLock { _fd: fd, is_locked })
}

/// Converts the result of a lock call: true if the directory is locked, false if the file system does not support
/// locks. Fails if another process holds the lock.
fn is_locked(path: &Path, lock_result: Result<(), Errno>) -> Result<bool, FileError> {
    match lock_result {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) => Ok(false),
        Err(Errno::WOULDBLOCK) => Err(FileError::Busy { path: path.to_owned() }),
        Err(errno) => Err(FileError::Io { path: path.to_owned(), what: "lock", source: errno.into() }),
    }
}

/// Syncs a directory, so that a rename in it is durable. An empty path means the current directory.
///
/// # Errors
/// Fails with the error of the operating system.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a secret file, and checks its directory, in several permission modes.
    #[test]
    fn s71_read_names_fixing_command_when_others_have_access() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agents.key");
        write(&path, FileSensitivity::Secret, b"key").unwrap();
        let path_text = path.display().to_string();
        for (mode, expected) in [
            (0o600, None),
            (
                0o640,
                Some(format!("{path_text}: others may read it (mode 0640), and it holds a secret; run: chmod 0600 {path_text}")),
            ),
            (
                0o622,
                Some(format!("{path_text}: others may write it (mode 0622), so it is not trusted; run: chmod go-w {path_text}")),
            ),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path, FileSensitivity::Secret).err().map(|error| error.to_string()), expected, "{mode:o}");
        }
        let path_text = directory.path().display().to_string();
        for (mode, is_refused) in [(0o700, false), (0o755, false), (0o775, true), (0o702, true)] {
            fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
            let result = check_directory(directory.path());
            assert_eq!(result.is_err(), is_refused, "{mode:o}");
            if let Err(error) = result {
                assert_eq!(
                    error.to_string(),
                    format!(
                        "{path_text}: others may write in this directory (mode {mode:04o}), so its content is not trusted; run: \
                         chmod go-w {path_text}"
                    )
                );
            }
        }
    }

    #[test]
    fn w10_11_check_owner_names_fixing_command_when_owner_differs() {
        let path = Path::new("/var/lib/stemma-controller");
        for (owner, user, is_refused) in [(0, 0, false), (0, 990, false), (990, 990, false), (65_534, 0, true), (990, 0, true)] {
            let result = check_owner(path, owner, user).map_err(|error| error.to_string());
            assert_eq!(result.is_err(), is_refused, "{owner} {user}");
            let Err(result) = result else { continue };
            assert!(result.starts_with(&format!("{}: this directory belongs to user {owner}", path.display())), "{result}");
            assert!(result.ends_with(&format!("run: chown {user} {}", path.display())), "{result}");
        }
    }

    #[test]
    fn x02_lock_directory_fails_when_locked() {
        let directory = tempfile::tempdir().unwrap();
        let lock = lock_directory(directory.path()).unwrap();
        let message = lock_directory(directory.path()).unwrap_err().to_string();
        let path_text = directory.path().display();
        assert!(message.starts_with(&format!("{path_text}: a restore, an init or a controller")), "{message}");
        assert!(message.contains("nothing was changed"), "{message}");
        drop(lock);
        assert!(lock_directory(directory.path()).unwrap().is_locked());
    }

    /// In this test, `NOTSUP`, `NOSYS` and `NOLCK` are the errors of the lock call on a file system without locks. For
    /// the two other errors, `is_locked` fails.
    #[test]
    fn x02_is_locked_is_false_when_file_system_lacks_locks() {
        let path = Path::new("/var/lib/stemma-controller");
        for errno in [Errno::NOTSUP, Errno::NOSYS, Errno::NOLCK] {
            assert!(!is_locked(path, Err(errno)).unwrap(), "{errno}");
        }
        assert!(matches!(is_locked(path, Err(Errno::WOULDBLOCK)), Err(FileError::Busy { .. })));
        let message = is_locked(path, Err(Errno::IO)).unwrap_err().to_string();
        assert_eq!(message, "/var/lib/stemma-controller: cannot lock it");
    }

    #[test]
    fn write_sets_mode_and_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("root.pem");
        for (sensitivity, forbidden_bits) in [(FileSensitivity::Secret, 0o177), (FileSensitivity::Settings, 0o133)] {
            write(&path, sensitivity, b"x").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & forbidden_bits, 0);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
