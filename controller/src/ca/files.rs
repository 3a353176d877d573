//! Key and certificate files: written whole and durable, in directories that others cannot write (S71).
//!
//! Whoever can replace an issuer's key owns the fleet. That a file is not open to others is looked at where it is read
//! (`stemma_wire::config`); that nobody can put another in its place is looked at here.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
pub use stemma_wire::config::Holds;
use stemma_wire::config::{self, ConfigError};

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It could not be read, or others may write it (a key: or read it).
    #[error(transparent)]
    Read(#[from] ConfigError),
    /// The system said no.
    #[error("{}: cannot {what} it", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Others may put files of theirs in the place of what is in it.
    #[error(
        "{}: others may write in this directory (mode {mode:04o}), so what it holds is not trusted; run: chmod go-w {}",
        path.display(), path.display()
    )]
    OpenDirectory {
        /// Which directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to someone who is neither root nor the user that runs this.
    #[error(
        "{}: this directory belongs to user {owner}, not to root or the user that runs this ({user}), so what it holds is not \
         trusted; look whether it was changed, then run: chown {user} {}",
        path.display(), path.display()
    )]
    DirectoryOwner {
        /// Which directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who runs this.
        user: u32,
    },
    /// Somebody else holds it.
    #[error(
        "{}: a restore, an init or a controller that starts is at work in this directory; nothing was changed: wait until that is over and \
         look what is there then, or give another --data-dir",
        path.display()
    )]
    Busy {
        /// Which directory.
        path: PathBuf,
    },
    /// Not a directory.
    #[error("{}: is no directory", path.display())]
    NotADirectory {
        /// What is there.
        path: PathBuf,
    },
}

/// Reads a file's text after a look at who else could have.
///
/// # Errors
/// [`FileError::Read`]; the file is left as it is.
pub fn read(path: &Path, holds: Holds) -> Result<String, FileError> {
    Ok(config::read(path, holds)?)
}

/// Refuses a directory in which others could replace a file.
///
/// # Errors
/// [`FileError`].
pub fn check_directory(path: &Path) -> Result<(), FileError> {
    let metadata =
        fs::metadata(path).map_err(|source| FileError::Io { path: path.to_owned(), what: "look at", source })?;
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

/// What is in a directory, by name; nothing where there is none.
///
/// # Errors
/// [`FileError::Io`].
pub fn listed(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    let failed = |source| FileError::Io { path: path.to_owned(), what: "list", source };
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    paths.sort();
    Ok(paths)
}

fn mode_of(holds: Holds) -> u32 {
    match holds {
        Holds::Secret => 0o600,
        Holds::Settings => 0o644,
    }
}

/// Writes a file whole: a new one beside it, synced, then renamed over it; a reader never sees half of it.
///
/// # Errors
/// [`FileError::Io`].
pub fn write(path: &Path, holds: Holds, bytes: &[u8]) -> Result<(), FileError> {
    let io = |what| move |source| FileError::Io { path: path.to_owned(), what, source };
    let beside = path.with_added_extension("new");
    // What a crash left there is nobody's.
    let _ = fs::remove_file(&beside);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode_of(holds)).open(&beside).map_err(io("write"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io("write"))?;
    fs::rename(&beside, path).map_err(io("replace"))?;
    sync_directory(path.parent().unwrap_or(Path::new("."))).map_err(io("sync the directory of"))
}

/// Makes a directory that only its owner enters. One that is there is closed to others.
///
/// # Errors
/// [`FileError`]; that another user owns one that is there.
pub fn make_directory(path: &Path) -> Result<(), FileError> {
    let io = |what| move |source| FileError::Io { path: path.to_owned(), what, source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("make"))?;
    let owner = fs::metadata(path).map_err(io("look at"))?.uid();
    check_owner(path, owner, rustix::process::geteuid().as_raw())?;
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(io("set the mode of"))
}

/// A directory that is held, as long as this is there.
#[derive(Debug)]
pub struct HeldDirectory {
    _open: OwnedFd,
    is_locked: bool,
}

impl HeldDirectory {
    /// Whether others are kept out: not where the file system knows no locks.
    pub const fn is_locked(&self) -> bool {
        self.is_locked
    }
}

/// Holds a directory in which a fleet is made, as long as what is returned is there: one at a time makes a fleet there. It is let go of when the
/// process ends, however that comes. Where the file system knows no locks, each may make one: a fleet can be made there too.
///
/// # Errors
/// [`FileError::Busy`] where another holds it, else [`FileError::Io`].
pub fn hold(path: &Path) -> Result<HeldDirectory, FileError> {
    let io = |what| move |errno: Errno| FileError::Io { path: path.to_owned(), what, source: errno.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(path, flags, Mode::empty()).map_err(io("open"))?;
    let is_locked = is_locked(path, flock(&open, FlockOperation::NonBlockingLockExclusive))?;
    Ok(HeldDirectory { _open: open, is_locked })
}

/// Whether a lock was taken; not where the file system knows none.
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
    fn s71_a_key_or_its_directory_open_to_others_is_refused_with_the_fixing_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agents.key");
        write(&path, Holds::Secret, b"key").unwrap();
        let shown = path.display().to_string();
        for (mode, want) in [
            (0o600, None),
            (
                0o640,
                Some(format!(
                    "{shown}: others may read it (mode 0640), and it holds a secret; run: chmod 0600 {shown}"
                )),
            ),
            (
                0o622,
                Some(format!(
                    "{shown}: others may write it (mode 0622), so it is not trusted; run: chmod go-w {shown}"
                )),
            ),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path, Holds::Secret).err().map(|error| error.to_string()), want, "{mode:o}");
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
    fn w10_11_a_directory_of_another_user_is_refused_with_the_fixing_command() {
        let path = Path::new("/var/lib/stemma-controller");
        for (owner, user, refused) in
            [(0, 0, false), (0, 990, false), (990, 990, false), (65_534, 0, true), (990, 0, true)]
        {
            let said = check_owner(path, owner, user).map_err(|error| error.to_string());
            assert_eq!(said.is_err(), refused, "{owner} {user}");
            let Err(said) = said else { continue };
            assert!(said.starts_with(&format!("{}: this directory belongs to user {owner}", path.display())), "{said}");
            assert!(said.ends_with(&format!("run: chown {user} {}", path.display())), "{said}");
        }
    }

    #[test]
    fn x02_a_directory_is_held_by_one_until_that_one_lets_go() {
        let directory = tempfile::tempdir().unwrap();
        let held = hold(directory.path()).unwrap();
        let refused = hold(directory.path()).unwrap_err().to_string();
        let shown = directory.path().display();
        assert!(refused.starts_with(&format!("{shown}: a restore, an init or a controller")), "{refused}");
        assert!(refused.contains("nothing was changed"), "{refused}");
        drop(held);
        assert!(hold(directory.path()).unwrap().is_locked());
    }

    #[test]
    fn x02_where_a_file_system_knows_no_locks_a_directory_is_held_without_one() {
        let path = Path::new("/var/lib/stemma-controller");
        for unknown in [Errno::NOTSUP, Errno::NOSYS, Errno::NOLCK] {
            assert!(!is_locked(path, Err(unknown)).unwrap(), "{unknown}");
        }
        assert!(matches!(is_locked(path, Err(Errno::WOULDBLOCK)), Err(FileError::Busy { .. })));
        let refused = is_locked(path, Err(Errno::IO)).unwrap_err().to_string();
        assert_eq!(refused, "/var/lib/stemma-controller: cannot lock it");
    }

    #[test]
    fn a_written_file_has_its_mode_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("root.pem");
        for (holds, beyond) in [(Holds::Secret, 0o177), (Holds::Settings, 0o133)] {
            write(&path, holds, b"x").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & beyond, 0);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
