//! Key and configuration files: written whole and durable, and refused when others could have written them (S71).
//!
//! Whoever can replace an issuer's key or the configuration owns the fleet, so the check is made where a file is
//! read, each time, and its refusal carries the command that puts it right.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The largest file read here, in bytes: a configuration; keys and certificates are far smaller.
const MAX_BYTES: u64 = 1024 * 1024;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
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
    /// Someone else may write it (a key: or read it).
    #[error(
        "{}: {who} may {may} it (mode {mode:04o}), so what it holds cannot be trusted; refusing to start: chmod {fix} {}",
        path.display(), path.display()
    )]
    OpenToOthers {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Whom the bits let in.
        who: &'static str,
        /// What they may do.
        may: &'static str,
        /// The mode or change that `chmod` is to be given.
        fix: &'static str,
    },
    /// It belongs to someone who is neither root nor this process's user.
    #[error("{}: it belongs to user {owner}; refusing to start: chown {expected} {}", path.display(), path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
        /// Who runs this process.
        expected: u32,
    },
    /// It is larger than anything that belongs there, or no regular file.
    #[error("{}: it is no regular file of at most 1 MiB", path.display())]
    Odd {
        /// Which file.
        path: PathBuf,
    },
}

/// What a file holds, which says who may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A private key: nobody else reads or writes it.
    Key,
    /// A certificate or a configuration: anyone may read, nobody else writes.
    Public,
}

impl Holds {
    fn mode(self) -> u32 {
        match self {
            Self::Key => 0o600,
            Self::Public => 0o644,
        }
    }
}

/// Reads a file after a look at who else could have.
///
/// # Errors
/// [`FileError`]; the file is left as it is.
pub fn read(path: &Path, holds: Holds) -> Result<Vec<u8>, FileError> {
    let io = |what| move |source| FileError::Io { path: path.to_owned(), what, source };
    let file = File::open(path).map_err(io("read"))?;
    // Looked at through the descriptor that is read: a look at the path could be of another file.
    let metadata = file.metadata().map_err(io("look at"))?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(FileError::Odd { path: path.to_owned() });
    }
    refuse_open_to_others(path, &metadata, holds)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(io("read"))?;
    Ok(bytes)
}

/// Refuses a directory in which others could replace a file.
///
/// # Errors
/// [`FileError`].
pub fn check_directory(path: &Path) -> Result<(), FileError> {
    let metadata =
        fs::metadata(path).map_err(|source| FileError::Io { path: path.to_owned(), what: "look at", source })?;
    refuse_open_to_others(path, &metadata, Holds::Public)
}

fn refuse_open_to_others(path: &Path, metadata: &fs::Metadata, holds: Holds) -> Result<(), FileError> {
    let mode = metadata.mode() & 0o7777;
    let refused = |who, may, fix| Err(FileError::OpenToOthers { path: path.to_owned(), mode, who, may, fix });
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        return Err(FileError::Foreign { path: path.to_owned(), owner: metadata.uid(), expected: own });
    }
    match holds {
        Holds::Key if mode & 0o002 != 0 => refused("everyone", "write", "600"),
        Holds::Key if mode & 0o020 != 0 => refused("its group", "write", "600"),
        Holds::Key if mode & 0o004 != 0 => refused("everyone", "read", "600"),
        Holds::Key if mode & 0o040 != 0 => refused("its group", "read", "600"),
        Holds::Public if mode & 0o002 != 0 => refused("everyone", "write", "go-w"),
        Holds::Public if mode & 0o020 != 0 => refused("its group", "write", "go-w"),
        Holds::Key | Holds::Public => Ok(()),
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
        OpenOptions::new().write(true).create_new(true).mode(holds.mode()).open(&beside).map_err(io("write"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io("write"))?;
    fs::rename(&beside, path).map_err(io("replace"))?;
    sync_directory(path.parent().unwrap_or(Path::new("."))).map_err(io("sync the directory of"))
}

/// Makes a directory that only its owner enters, if it is not there.
///
/// # Errors
/// [`FileError::Io`].
pub fn make_directory(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| FileError::Io {
        path: path.to_owned(),
        what: "make",
        source,
    })
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn s71_a_key_or_configuration_open_to_others_is_refused_with_the_fixing_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agents.key");
        write(&path, Holds::Key, b"key").unwrap();
        let shown = path.display().to_string();
        for (mode, holds, want) in [
            (0o600, Holds::Key, None),
            (0o400, Holds::Key, None),
            (0o644, Holds::Public, None),
            (0o640, Holds::Key, Some("its group may read it (mode 0640)")),
            (0o604, Holds::Key, Some("everyone may read it (mode 0604)")),
            (0o620, Holds::Key, Some("its group may write it (mode 0620)")),
            (0o666, Holds::Key, Some("everyone may write it (mode 0666)")),
            (0o664, Holds::Public, Some("its group may write it (mode 0664)")),
            (0o646, Holds::Public, Some("everyone may write it (mode 0646)")),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let got = read(&path, holds);
            match want {
                None => assert_eq!(got.unwrap(), b"key", "{mode:o}"),
                Some(sentence) => {
                    let fix = if holds == Holds::Key { "600" } else { "go-w" };
                    let whole = format!(
                        "{shown}: {sentence}, so what it holds cannot be trusted; refusing to start: chmod {fix} {shown}"
                    );
                    assert_eq!(got.unwrap_err().to_string(), whole);
                }
            }
        }
    }

    #[test]
    fn a_written_file_has_its_mode_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("root.pem");
        for (holds, mode) in [(Holds::Key, 0o600), (Holds::Public, 0o644)] {
            write(&path, holds, b"x").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode & !umask());
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    fn umask() -> u32 {
        // The only way to read it is to set it.
        let old = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(old);
        old.bits()
    }
}
