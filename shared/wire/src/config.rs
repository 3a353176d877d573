//! Configuration files and key files: read strictly, and not at all when others may write them (S71).
//!
//! Whoever can write a program's configuration is that program; whoever can read its key is its identity. So a start is refused, with the
//! command that mends it, rather than warned about.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// The largest configuration file that is read.
const MAX_BYTES: u64 = 1024 * 1024;

/// What a file holds, and so who may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// What others may read: configuration, certificates.
    Settings,
    /// What nobody else may even read: keys, tokens.
    Secret,
}

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is a directory, a device, a pipe.
    #[error("{}: is no regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Others may change it.
    #[error("{}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod go-w {}", path.display(), path.display())]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Others may read a secret.
    #[error("{}: others may read it (mode {mode:04o}), and it holds a secret; run: chmod 0600 {}", path.display(), path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Others may put another file in its place.
    #[error(
        "{}: others may put another file in its place (directory {}, mode {mode:04o}), so it is not trusted; run: chmod go-w {}",
        path.display(), directory.display(), directory.display()
    )]
    Replaceable {
        /// The file.
        path: PathBuf,
        /// The directory in which it is.
        directory: PathBuf,
        /// The permission bits of that.
        mode: u32,
    },
    /// It belongs to someone who is neither root nor the user that runs this.
    #[error("{}: belongs to user {owner}, not to root or the user that runs this ({user}); run: chown {user} {}", path.display(), path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who runs this.
        user: u32,
    },
    /// It is larger than any configuration.
    #[error("{}: {bytes} bytes, and a configuration has at most {MAX_BYTES}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// It is no TOML, has an unknown field, or a value of the wrong kind; the message has line and column.
    #[error("{}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, where.
        message: String,
    },
}

/// Reads a TOML file into `T`, which should refuse unknown fields (`#[serde(deny_unknown_fields)]`).
///
/// # Errors
/// [`ConfigError`].
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = read(path, Holds::Settings)?;
    toml::from_str(&text).map_err(|error| ConfigError::Malformed {
        path: path.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    })
}

/// Reads a file's text, if it is a regular file that nobody else may write (or read, where it holds a secret), owned
/// by root or by the user that runs this. What was checked is what is read: the open file, not its name.
///
/// # Errors
/// [`ConfigError`].
pub fn read(path: &Path, holds: Holds) -> Result<String, ConfigError> {
    let read_error = |source| ConfigError::Read { path: path.to_owned(), source };
    // A pipe in its place would block the open for good; its kind is looked at first, and checked again on what was opened.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(read_error)?;
    let metadata = file.metadata().map_err(read_error)?;
    check(path, &metadata, holds)?;
    check_directory(path).map_err(read_error)??;
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(read_error)?;
    Ok(text)
}

/// Refuses a file that others may touch, whatever is in it: a store, a certificate that another program reads.
///
/// # Errors
/// [`ConfigError`], but for those of its text.
pub fn check_access(path: &Path, holds: Holds) -> Result<(), ConfigError> {
    let metadata = std::fs::metadata(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    check_owned(path, &metadata, holds)
}

/// Refuses a file in a directory where others may put another one in its place. In one like `/tmp`, with the sticky bit, they may not; nor do
/// those of the own group count as others there, where a directory of one's own is often open to a group that has one member.
fn check_directory(path: &Path) -> std::io::Result<Result<(), ConfigError>> {
    let real = std::fs::canonicalize(path)?;
    let Some(directory) = real.parent() else { return Ok(Ok(())) };
    let metadata = std::fs::metadata(directory)?;
    let mode = metadata.permissions().mode() & 0o7777;
    let is_sticky = mode & 0o1000 != 0;
    let is_own_group = metadata.gid() == 0 || metadata.gid() == rustix::process::getegid().as_raw();
    let is_open = mode & 0o002 != 0 || (mode & 0o020 != 0 && !is_own_group);
    let user = rustix::process::geteuid().as_raw();
    let is_others = metadata.uid() != 0 && metadata.uid() != user;
    if !is_others && (is_sticky || !is_open) {
        return Ok(Ok(()));
    }
    let (path, directory) = (path.to_owned(), directory.to_owned());
    Ok(Err(ConfigError::Replaceable { path, directory, mode }))
}

fn check(path: &Path, metadata: &Metadata, holds: Holds) -> Result<(), ConfigError> {
    check_owned(path, metadata, holds)?;
    if metadata.len() > MAX_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned(), bytes: metadata.len() });
    }
    Ok(())
}

fn check_owned(path: &Path, metadata: &Metadata, holds: Holds) -> Result<(), ConfigError> {
    let path = || path.to_owned();
    if !metadata.is_file() {
        return Err(ConfigError::NotAFile { path: path() });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(ConfigError::Writable { path: path(), mode });
    }
    if holds == Holds::Secret && mode & 0o044 != 0 {
        return Err(ConfigError::Readable { path: path(), mode });
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != user {
        return Err(ConfigError::Owner { path: path(), owner: metadata.uid(), user });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        listen: String,
    }

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("agent.toml");
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its mode");
        (directory, path)
    }

    #[test]
    fn a_good_file_is_read() {
        let (_directory, path) = file("listen = \"[::]:8443\"", 0o644);
        assert_eq!(load::<Settings>(&path).expect("a good file"), Settings { listen: "[::]:8443".to_owned() });
    }

    #[test]
    fn x04_a_file_in_a_directory_where_others_may_replace_it_is_refused_with_the_command() {
        for (mode, is_taken) in
            [(0o700, true), (0o755, true), (0o775, true), (0o757, false), (0o777, false), (0o1777, true)]
        {
            let (directory, path) = file("listen = \"[::]:8443\"", 0o600);
            std::fs::set_permissions(directory.path(), Permissions::from_mode(mode)).expect("its mode");
            let taken = load::<Settings>(&path);
            assert_eq!(taken.is_ok(), is_taken, "{mode:o}");
            if let Err(refused) = taken {
                let expected = format!(
                    "(directory {0}, mode {mode:04o}), so it is not trusted; run: chmod go-w {0}",
                    directory.path().display()
                );
                assert!(refused.to_string().ends_with(&expected), "{refused}");
            }
        }
    }

    #[test]
    fn s71_a_file_that_others_may_write_or_a_key_that_they_may_read_is_refused_with_the_command() {
        for (mode, holds, part) in [
            (0o666, Holds::Settings, Some("(mode 0666), so it is not trusted; run: chmod go-w ")),
            (0o660, Holds::Settings, Some("chmod go-w ")),
            (0o646, Holds::Settings, Some("chmod go-w ")),
            (0o644, Holds::Settings, None),
            (0o644, Holds::Secret, Some("(mode 0644), and it holds a secret; run: chmod 0600 ")),
            (0o640, Holds::Secret, Some("chmod 0600 ")),
            (0o602, Holds::Secret, Some("chmod go-w ")),
            (0o600, Holds::Secret, None),
            (0o400, Holds::Secret, None),
        ] {
            let (_directory, path) = file("x", mode);
            let said = read(&path, holds).map_err(|error| error.to_string());
            match part {
                None => assert!(said.is_ok(), "{mode:o} {holds:?}: {said:?}"),
                Some(part) => {
                    let said = said.expect_err("refused");
                    assert!(said.contains(part) && said.ends_with(&path.display().to_string()), "{mode:o}: {said}");
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_place() {
        for (text, parts) in [
            ("listen = 5", &["line 1", "expected a string"][..]),
            ("listen = \"x\"\nlisten_port = 1", &["line 2", "unknown field `listen_port`"]),
            ("", &["missing field `listen`"]),
            ("listen", &["line 1"]),
        ] {
            let (_directory, path) = file(text, 0o600);
            let said = load::<Settings>(&path).expect_err(text).to_string();
            assert!(said.starts_with(&path.display().to_string()), "{said}");
            assert!(parts.iter().all(|part| said.contains(part)), "{text:?}: {said}");
        }
    }

    #[test]
    fn what_is_no_file_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let said = load::<Settings>(directory.path()).expect_err("a directory").to_string();
        assert!(said.ends_with("is no regular file"), "{said}");
        let said = load::<Settings>(&directory.path().join("absent")).expect_err("nothing").to_string();
        assert!(said.contains("No such file"), "{said}");
        let large = directory.path().join("large");
        File::create(&large).and_then(|file| file.set_len(MAX_BYTES + 1)).expect("a sparse file");
        std::fs::set_permissions(&large, Permissions::from_mode(0o600)).expect("its mode");
        assert!(matches!(read(&large, Holds::Settings), Err(ConfigError::TooLarge { .. })));
    }
}
