//! Configuration files and key files: read strictly, and not at all when others may write them (S71).
//!
//! Whoever can write a program's configuration is that program; whoever can read its key is its identity. So a start is refused, with the
//! command that mends it, rather than warned about.

mod directories;

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use stemma_core::json::{self, NotUtf8};

use directories::{Fault, Reader};

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
    #[error("{}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why. It is said here, and so not once more as a source.
        why: std::io::Error,
    },
    /// It is no text.
    #[error("{}: {why}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// What it is.
        why: NotUtf8,
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
        /// The directory on the way to it that they may write.
        directory: PathBuf,
        /// The permission bits of that.
        mode: u32,
    },
    /// A directory or link on the way to it belongs to someone who is neither root nor the user that runs this.
    #[error(
        "{}: others may put another file in its place ({} belongs to user {owner}, not to root or the user that runs this ({user})), so it is \
         not trusted; move the file to a directory of your own, or run: {command} {user} {}",
        path.display(), at.display(), at.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The directory or link.
        at: PathBuf,
        /// Whose that is.
        owner: u32,
        /// Who runs this.
        user: u32,
        /// What gives it to another user.
        command: &'static str,
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
    let read_error = |why| ConfigError::Read { path: path.to_owned(), why };
    // A pipe in its place would block the open for good; its kind is looked at first, and checked again on what was opened.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(read_error)?;
    let metadata = file.metadata().map_err(read_error)?;
    check(path, &metadata, holds)?;
    check_directories(path).map_err(read_error)??;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(read_error)?;
    json::utf_8(bytes).map_err(|why| ConfigError::NotText { path: path.to_owned(), why })
}

/// Refuses a file that others may touch, whatever is in it: a store, a certificate that another program reads.
///
/// # Errors
/// [`ConfigError`], but for those of its text.
pub fn check_access(path: &Path, holds: Holds) -> Result<(), ConfigError> {
    let metadata = std::fs::metadata(path).map_err(|why| ConfigError::Read { path: path.to_owned(), why })?;
    check_owned(path, &metadata, holds)
}

/// Refuses a file in whose place others may put another one, from any directory on the way to it.
fn check_directories(path: &Path) -> std::io::Result<Result<(), ConfigError>> {
    let reader = Reader::this();
    let Some(fault) = reader.fault_on_way(path)? else { return Ok(Ok(())) };
    let path = path.to_owned();
    Ok(Err(match fault {
        Fault::Open { directory, mode } => ConfigError::Replaceable { path, directory, mode },
        Fault::Foreign { at, owner, is_link } => {
            let command = if is_link { "chown -h" } else { "chown" };
            ConfigError::Foreign { path, at, owner, user: reader.user, command }
        }
    }))
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

    /// Directories below each other in a fresh one, and what a file in the last of them is called.
    fn below(names: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>, PathBuf) {
        let root = tempfile::tempdir().expect("a directory");
        let mut at = root.path().canonicalize().expect("its name without links");
        let mut directories = Vec::new();
        for name in names {
            at.push(name);
            std::fs::create_dir(&at).expect("a directory");
            std::fs::set_permissions(&at, Permissions::from_mode(0o755)).expect("its mode");
            directories.push(at.clone());
        }
        let file = at.join("agent.toml");
        std::fs::write(&file, "listen = \"[::]:8443\"").expect("a file");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("its mode");
        (root, directories, file)
    }

    fn open_to_others(directory: &Path) -> String {
        std::fs::set_permissions(directory, Permissions::from_mode(0o777)).expect("its mode");
        format!("(directory {0}, mode 0777), so it is not trusted; run: chmod go-w {0}", directory.display())
    }

    /// A directory that others may write was looked at only where the file stood in it.
    #[test]
    fn x04_a_file_below_a_directory_that_others_may_write_is_refused_and_the_directory_is_named() {
        let (_root, directories, path) = below(&["one", "two", "three"]);
        for directory in &directories {
            for (mode, is_taken) in
                [(0o700, true), (0o755, true), (0o775, true), (0o757, false), (0o777, false), (0o1777, true)]
            {
                std::fs::set_permissions(directory, Permissions::from_mode(mode)).expect("its mode");
                assert_eq!(load::<Settings>(&path).is_ok(), is_taken, "{} {mode:o}", directory.display());
            }
            let expected = open_to_others(directory);
            let refused = load::<Settings>(&path).expect_err("refused").to_string();
            assert!(refused.starts_with(&path.display().to_string()) && refused.ends_with(&expected), "{refused}");
            std::fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("its mode");
        }
        load::<Settings>(&path).expect("all are mended");
    }

    #[test]
    fn x04_by_a_link_the_directories_of_its_name_and_of_what_it_means_are_looked_at() {
        let (_real, there, path) = below(&["real"]);
        let (_links, here, _) = below(&["links", "last"]);
        let last = &here[1];
        let to_file = last.join("to-file.toml");
        std::os::unix::fs::symlink(&path, &to_file).expect("a link");
        std::os::unix::fs::symlink(&there[0], last.join("to-directory")).expect("a link");
        std::os::unix::fs::symlink("../last/to-file.toml", last.join("relative.toml")).expect("a link");
        let names = [to_file, last.join("to-directory/agent.toml"), last.join("relative.toml")];
        for name in &names {
            load::<Settings>(name).expect("nobody else may write on the way");
        }
        for open in [&here[0], &here[1], &there[0]] {
            let expected = open_to_others(open);
            for name in &names {
                let refused = load::<Settings>(name).expect_err("refused").to_string();
                assert!(refused.ends_with(&expected), "{}: {refused}", name.display());
            }
            std::fs::set_permissions(open, Permissions::from_mode(0o755)).expect("its mode");
        }
        // What it means alone counts where it is named alone.
        open_to_others(&here[0]);
        load::<Settings>(&path).expect("the links are on no way to it");
    }

    /// The command was `chmod go-w`, also where that changed nothing. Only root gives a directory to another user.
    #[test]
    fn x04_a_directory_or_link_of_another_user_is_refused_with_what_mends_it() {
        const NOBODY: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (_root, directories, path) = below(&["one", "two"]);
        let link = directories[1].join("link.toml");
        std::os::unix::fs::symlink("agent.toml", &link).expect("a link");
        let give = |at: &Path, user| std::os::unix::fs::lchown(at, Some(user), None).expect("its owner");
        for (at, name, command) in
            [(&directories[0], &path, "chown"), (&directories[1], &path, "chown"), (&link, &link, "chown -h")]
        {
            give(at, NOBODY);
            let at_fault = at.display();
            let expected = format!(
                "{}: others may put another file in its place ({at_fault} belongs to user 65534, not to root or the user that runs this (0)), \
                 so it is not trusted; move the file to a directory of your own, or run: {command} 0 {at_fault}",
                name.display()
            );
            assert_eq!(load::<Settings>(name).expect_err("refused").to_string(), expected);
            give(at, 0);
        }
        load::<Settings>(&link).expect("all are given back");
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
    fn y09_a_file_that_is_no_text_in_utf_8_is_said_to_be_that_and_once() {
        let (_directory, path) = file("", 0o600);
        let utf_16: Vec<u8> = "\u{feff}listen = 1\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, why) in [
            (&utf_16[..], "it is a text in UTF-16: save it in UTF-8"),
            (&utf_16[2..], "it is a text in UTF-16: save it in UTF-8"),
            (b"listen = \"\xe4\"\n", "it is no text in UTF-8"),
        ] {
            std::fs::write(&path, bytes).expect("a file");
            let said = load::<Settings>(&path).expect_err("no text");
            assert_eq!(said.to_string(), format!("{}: {why}", path.display()));
            assert!(std::error::Error::source(&said).is_none(), "a chain would say it once more");
        }
        let absent = path.with_file_name("absent");
        let said = read(&absent, Holds::Settings).expect_err("nothing");
        assert!(said.to_string().ends_with("absent: No such file or directory (os error 2)"), "{said}");
        assert!(std::error::Error::source(&said).is_none(), "a chain would say it once more");
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
