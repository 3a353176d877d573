//! Reads configuration files and key files strictly, and refuses files that others can write (S71).
//!
//! A user who can write a program's configuration controls the program. A user who can read its key has its identity.
//! So the program does not start if a file is unsafe. It prints the command that fixes the cause. A warning would not
//! be enough.

mod directories;

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use stemma_core::json::{self, NotUtf8};

use directories::{PathFault, ReadingUser};

/// Maximum size of a configuration file, in bytes.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// How sensitive a file is. It decides which access other users may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSensitivity {
    /// A file that others may read: configuration, certificates.
    Settings,
    /// A file that nobody else may read: keys, tokens.
    Secret,
}

/// Why a configuration file or key file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be opened or read.
    #[error("{}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause. The message contains it, so it is not also the source of this error.
        why: std::io::Error,
    },
    /// The file is not text.
    #[error("{}: {why}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Why the file is not UTF-8.
        why: NotUtf8,
    },
    /// The path is a directory, a device or a pipe.
    #[error("{}: is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Other users can write the file.
    #[error("{}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod go-w {}", path.display(), path.display())]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Other users can read a file that must be secret.
    #[error("{}: others may read it (mode {mode:04o}), and it holds a secret; run: chmod 0600 {}", path.display(), path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Other users can replace the file, because they can write a directory on the path to it.
    #[error(
        "{}: others may put another file in its place (directory {}, mode {mode:04o}), so it is not trusted; run: chmod go-w {}",
        path.display(), directory.display(), directory.display()
    )]
    Replaceable {
        /// The file.
        path: PathBuf,
        /// The directory on the path to the file that they can write.
        directory: PathBuf,
        /// The permission bits of the directory.
        mode: u32,
    },
    /// A directory or link on the path to the file belongs to a user other than root and the user of this process.
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
        /// The user it belongs to.
        owner: u32,
        /// The user of this process.
        user: u32,
        /// The command that changes the owner of the directory or link.
        command: &'static str,
    },
    /// The file belongs to a user other than root and the user of this process.
    #[error("{}: belongs to user {owner}, not to root or the user that runs this ({user}); run: chown {user} {}", path.display(), path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// The user it belongs to.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The file is larger than a configuration may be.
    #[error("{}: {bytes} bytes, and a configuration has at most {MAX_CONFIG_BYTES}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size of the file, in bytes.
        bytes: u64,
    },
    /// The file is not TOML, or has an unknown field or a value of the wrong type. The message has the line and column.
    #[error("{}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
}

/// Reads a TOML file into `T`, which should refuse unknown fields (`#[serde(deny_unknown_fields)]`).
///
/// # Errors
/// [`ConfigError`].
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = read(path, FileSensitivity::Settings)?;
    toml::from_str(&text)
        .map_err(|error| ConfigError::Malformed { path: path.to_owned(), message: error.to_string().trim_end().to_owned() })
}

/// Reads a file's text. It must be a regular file that nobody else can write (or read, if it holds a secret), and that
/// belongs to root or to the user of this process. The open file is checked, not its name, so the file that is read is
/// the one that was checked.
///
/// # Errors
/// [`ConfigError`].
pub fn read(path: &Path, sensitivity: FileSensitivity) -> Result<String, ConfigError> {
    let read_error = |why| ConfigError::Read { path: path.to_owned(), why };
    // Opening a pipe would block forever. So the type is checked first, and again on the open file.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(read_error)?;
    let metadata = file.metadata().map_err(read_error)?;
    check_metadata(path, &metadata, sensitivity)?;
    check_directories(path).map_err(read_error)??;
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES).read_to_end(&mut bytes).map_err(read_error)?;
    json::decode_utf8(bytes).map_err(|why| ConfigError::NotText { path: path.to_owned(), why })
}

/// Checks the owner and mode of a file that this module does not read: a store, or a certificate that another program
/// reads.
///
/// # Errors
/// [`ConfigError`], except those about the text.
pub fn check_access(path: &Path, sensitivity: FileSensitivity) -> Result<(), ConfigError> {
    let metadata = std::fs::metadata(path).map_err(|why| ConfigError::Read { path: path.to_owned(), why })?;
    check_owner(path, &metadata, sensitivity)
}

/// Fails if other users can replace a file, because they can write a directory on the path to it.
fn check_directories(path: &Path) -> std::io::Result<Result<(), ConfigError>> {
    let reader = ReadingUser::current();
    let Some(fault) = reader.fault_on_path(path)? else { return Ok(Ok(())) };
    let path = path.to_owned();
    Ok(Err(match fault {
        PathFault::Writable { directory, mode } => ConfigError::Replaceable { path, directory, mode },
        PathFault::Foreign { at, owner, is_link } => {
            let command = if is_link { "chown -h" } else { "chown" };
            ConfigError::Foreign { path, at, owner, user: reader.user, command }
        }
    }))
}

/// Checks the type, mode, owner and size of a configuration file.
fn check_metadata(path: &Path, metadata: &Metadata, sensitivity: FileSensitivity) -> Result<(), ConfigError> {
    check_owner(path, metadata, sensitivity)?;
    if metadata.len() > MAX_CONFIG_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned(), bytes: metadata.len() });
    }
    Ok(())
}

/// Checks that a path is a regular file, that other users cannot write it (or read it, if it is secret), and that it
/// belongs to root or to the user of this process.
fn check_owner(path: &Path, metadata: &Metadata, sensitivity: FileSensitivity) -> Result<(), ConfigError> {
    let path = || path.to_owned();
    if !metadata.is_file() {
        return Err(ConfigError::NotAFile { path: path() });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(ConfigError::Writable { path: path(), mode });
    }
    if sensitivity == FileSensitivity::Secret && mode & 0o044 != 0 {
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
    struct TestSettings {
        listen: String,
    }

    fn temp_file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("agent.toml");
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its mode");
        (directory, path)
    }

    #[test]
    fn load_reads_valid_file() {
        let (_directory, path) = temp_file("listen = \"[::]:8443\"", 0o644);
        assert_eq!(load::<TestSettings>(&path).expect("a good file"), TestSettings { listen: "[::]:8443".to_owned() });
    }

    #[test]
    fn x04_load_fails_when_others_can_replace_file() {
        for (mode, is_taken) in [(0o700, true), (0o755, true), (0o775, true), (0o757, false), (0o777, false), (0o1777, true)] {
            let (directory, path) = temp_file("listen = \"[::]:8443\"", 0o600);
            std::fs::set_permissions(directory.path(), Permissions::from_mode(mode)).expect("its mode");
            let taken = load::<TestSettings>(&path);
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

    /// Creates nested directories in a temporary one, with a file in the last of them. Returns them and the path of the
    /// file.
    fn nested_directories(names: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>, PathBuf) {
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

    fn make_writable_by_others(directory: &Path) -> String {
        std::fs::set_permissions(directory, Permissions::from_mode(0o777)).expect("its mode");
        format!("(directory {0}, mode 0777), so it is not trusted; run: chmod go-w {0}", directory.display())
    }

    /// Only the file's own directory was checked for write access.
    #[test]
    fn x04_load_names_ancestor_directory_when_writable_by_others() {
        let (_root, directories, path) = nested_directories(&["one", "two", "three"]);
        for directory in &directories {
            for (mode, is_taken) in [(0o700, true), (0o755, true), (0o775, true), (0o757, false), (0o777, false), (0o1777, true)]
            {
                std::fs::set_permissions(directory, Permissions::from_mode(mode)).expect("its mode");
                assert_eq!(load::<TestSettings>(&path).is_ok(), is_taken, "{} {mode:o}", directory.display());
            }
            let expected = make_writable_by_others(directory);
            let refused = load::<TestSettings>(&path).expect_err("refused").to_string();
            assert!(refused.starts_with(&path.display().to_string()) && refused.ends_with(&expected), "{refused}");
            std::fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("its mode");
        }
        load::<TestSettings>(&path).expect("all are mended");
    }

    #[test]
    fn x04_load_checks_directories_of_symlink_and_target() {
        let (_real, there, path) = nested_directories(&["real"]);
        let (_links, here, _) = nested_directories(&["links", "last"]);
        let last = &here[1];
        let to_file = last.join("to-file.toml");
        std::os::unix::fs::symlink(&path, &to_file).expect("a link");
        std::os::unix::fs::symlink(&there[0], last.join("to-directory")).expect("a link");
        std::os::unix::fs::symlink("../last/to-file.toml", last.join("relative.toml")).expect("a link");
        let names = [to_file, last.join("to-directory/agent.toml"), last.join("relative.toml")];
        for name in &names {
            load::<TestSettings>(name).expect("nobody else may write on the way");
        }
        for open in [&here[0], &here[1], &there[0]] {
            let expected = make_writable_by_others(open);
            for name in &names {
                let refused = load::<TestSettings>(name).expect_err("refused").to_string();
                assert!(refused.ends_with(&expected), "{}: {refused}", name.display());
            }
            std::fs::set_permissions(open, Permissions::from_mode(0o755)).expect("its mode");
        }
        // The file's own path does not contain the directories of the links.
        make_writable_by_others(&here[0]);
        load::<TestSettings>(&path).expect("the links are on no way to it");
    }

    /// The message named `chmod go-w`, even if that changed nothing. Only root can give a directory to another user.
    #[test]
    fn x04_load_fails_when_another_user_owns_directory_or_symlink() {
        const NOBODY: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (_root, directories, path) = nested_directories(&["one", "two"]);
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
            assert_eq!(load::<TestSettings>(name).expect_err("refused").to_string(), expected);
            give(at, 0);
        }
        load::<TestSettings>(&link).expect("all are given back");
    }

    #[test]
    fn s71_load_fails_when_others_can_write_file_or_read_key() {
        for (mode, holds, part) in [
            (0o666, FileSensitivity::Settings, Some("(mode 0666), so it is not trusted; run: chmod go-w ")),
            (0o660, FileSensitivity::Settings, Some("chmod go-w ")),
            (0o646, FileSensitivity::Settings, Some("chmod go-w ")),
            (0o644, FileSensitivity::Settings, None),
            (0o644, FileSensitivity::Secret, Some("(mode 0644), and it holds a secret; run: chmod 0600 ")),
            (0o640, FileSensitivity::Secret, Some("chmod 0600 ")),
            (0o602, FileSensitivity::Secret, Some("chmod go-w ")),
            (0o600, FileSensitivity::Secret, None),
            (0o400, FileSensitivity::Secret, None),
        ] {
            let (_directory, path) = temp_file("x", mode);
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
    fn load_reports_position_when_toml_is_malformed() {
        for (text, parts) in [
            ("listen = 5", &["line 1", "expected a string"][..]),
            ("listen = \"x\"\nlisten_port = 1", &["line 2", "unknown field `listen_port`"]),
            ("", &["missing field `listen`"]),
            ("listen", &["line 1"]),
        ] {
            let (_directory, path) = temp_file(text, 0o600);
            let said = load::<TestSettings>(&path).expect_err(text).to_string();
            assert!(said.starts_with(&path.display().to_string()), "{said}");
            assert!(parts.iter().all(|part| said.contains(part)), "{text:?}: {said}");
        }
    }

    #[test]
    fn y09_load_explains_once_when_file_is_no_utf8() {
        let (_directory, path) = temp_file("", 0o600);
        let utf_16: Vec<u8> = "\u{feff}listen = 1\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, why) in [
            (&utf_16[..], "it is a text in UTF-16: save it in UTF-8"),
            (&utf_16[2..], "it is a text in UTF-16: save it in UTF-8"),
            (b"listen = \"\xe4\"\n", "it is no text in UTF-8"),
        ] {
            std::fs::write(&path, bytes).expect("a file");
            let said = load::<TestSettings>(&path).expect_err("no text");
            assert_eq!(said.to_string(), format!("{}: {why}", path.display()));
            assert!(std::error::Error::source(&said).is_none(), "a chain would say it once more");
        }
        let absent = path.with_file_name("absent");
        let said = read(&absent, FileSensitivity::Settings).expect_err("nothing");
        assert!(said.to_string().ends_with("absent: No such file or directory (os error 2)"), "{said}");
        assert!(std::error::Error::source(&said).is_none(), "a chain would say it once more");
    }

    #[test]
    fn load_fails_when_path_is_no_regular_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let said = load::<TestSettings>(directory.path()).expect_err("a directory").to_string();
        assert!(said.ends_with("is not a regular file"), "{said}");
        let said = load::<TestSettings>(&directory.path().join("absent")).expect_err("nothing").to_string();
        assert!(said.contains("No such file"), "{said}");
        let large = directory.path().join("large");
        File::create(&large).and_then(|file| file.set_len(MAX_CONFIG_BYTES + 1)).expect("a sparse file");
        std::fs::set_permissions(&large, Permissions::from_mode(0o600)).expect("its mode");
        assert!(matches!(read(&large, FileSensitivity::Settings), Err(ConfigError::TooLarge { .. })));
    }
}
