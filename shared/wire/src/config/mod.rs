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

/// Maximum size of a configuration file or key file, in bytes.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// The sensitivity of a file, which decides the access that other users may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSensitivity {
    /// A file that others may read: configuration, certificates.
    Settings,
    /// A file that nobody else may read: keys, tokens.
    Secret,
}

/// The error for a file that cannot be read, is refused as unsafe, or has invalid content.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file does not exist, or the file or its path cannot be read.
    #[error("{}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause. The message contains the cause, so `source()` does not return it too.
        why: std::io::Error,
    },
    /// The file is not text.
    #[error("{}: {why}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The reason why the file is not UTF-8.
        why: NotUtf8,
    },
    /// The path, or the target of the link at this path, is not a regular file but, for example, a directory.
    #[error("{}: is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// The mode of the file lets its group or all users write the file. This is refused for every group.
    #[error("{}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod go-w {}", path.display(), path.display())]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The mode of a file that must be secret lets its group or all users read the file.
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
        /// The directory on the path to the file that other users can write.
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
        /// The id of the user who owns the directory or link.
        owner: u32,
        /// The id of the user of this process.
        user: u32,
        /// The command that changes the owner, without its arguments: `chown`, or `chown -h` for a link.
        command: &'static str,
    },
    /// The file belongs to a user other than root and the user of this process.
    #[error("{}: belongs to user {owner}, not to root or the user that runs this ({user}); run: chown {user} {}", path.display(), path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// The id of the user who owns the file.
        owner: u32,
        /// The id of the user of this process.
        user: u32,
    },
    /// The configuration file or key file is larger than 1 MiB.
    #[error("{}: {bytes} bytes, and a configuration has at most {MAX_CONFIG_BYTES}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size of the file, in bytes.
        bytes: u64,
    },
    /// The file is not TOML, or a field is missing, unknown or of the wrong type. The message has the line and column.
    #[error("{}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The reason, with the line and column.
        message: String,
    },
}

/// Reads a configuration file in TOML into `T`. The type should refuse unknown fields
/// (`#[serde(deny_unknown_fields)]`).
///
/// # Errors
/// Fails with [`ConfigError`] if the file is unsafe, cannot be read, or is not valid TOML for `T`.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = read(path, FileSensitivity::Settings)?;
    toml::from_str(&text)
        .map_err(|error| ConfigError::Malformed { path: path.to_owned(), message: error.to_string().trim_end().to_owned() })
}

/// Reads the text of a file. Other users must not be able to write or replace the file, or to read a secret file. The
/// file must belong to root or to the user of this process. Its metadata are those of the open file, so another process
/// cannot exchange the file between the check and the reading.
///
/// # Errors
/// Fails with [`ConfigError`] if the file is unsafe, too large, not UTF-8, or cannot be read.
pub fn read(path: &Path, sensitivity: FileSensitivity) -> Result<String, ConfigError> {
    let read_error = |source| ConfigError::Read { path: path.to_owned(), why: source };
    // Opening a pipe would wait forever. So the type is checked before the file is opened, and again on the open file.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(read_error)?;
    let metadata = file.metadata().map_err(read_error)?;
    check_metadata(path, &metadata, sensitivity)?;
    check_directories(path).map_err(read_error)??;
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES).read_to_end(&mut bytes).map_err(read_error)?;
    json::decode_utf8(bytes).map_err(|source| ConfigError::NotText { path: path.to_owned(), why: source })
}

/// Checks the type, owner and mode of a file that another part of the program reads, such as a store. The directories
/// on the path are not checked.
///
/// # Errors
/// Fails with [`ConfigError`] if the file does not exist or is not a regular file, or if its owner or mode is unsafe.
pub fn check_access(path: &Path, sensitivity: FileSensitivity) -> Result<(), ConfigError> {
    let metadata = std::fs::metadata(path).map_err(|source| ConfigError::Read { path: path.to_owned(), why: source })?;
    check_owner(path, &metadata, sensitivity)
}

/// Checks that other users cannot replace a file through a directory or link on its path. The outer error is that of
/// reading the directories. The inner error is [`ConfigError`] for a directory or link that is unsafe.
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

/// Checks the type, mode and owner of a file. Fails if it is not a regular file, if its mode lets the group or all
/// users write it or read a secret file, or if its owner is neither root nor the user of this process.
fn check_owner(path: &Path, metadata: &Metadata, sensitivity: FileSensitivity) -> Result<(), ConfigError> {
    let owned_path = || path.to_owned();
    if !metadata.is_file() {
        return Err(ConfigError::NotAFile { path: owned_path() });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(ConfigError::Writable { path: owned_path(), mode });
    }
    if sensitivity == FileSensitivity::Secret && mode & 0o044 != 0 {
        return Err(ConfigError::Readable { path: owned_path(), mode });
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != user {
        return Err(ConfigError::Owner { path: owned_path(), owner: metadata.uid(), user });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use serde::Deserialize;

    use super::*;

    /// A configuration with one setting.
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct TestSettings {
        listen: String,
    }

    /// Creates a file with this text and mode in a temporary directory. Returns the directory, which is deleted when
    /// the value is dropped, and the path of the file.
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

    /// A directory is accepted if only its owner and the group of this process can write it, or if it is sticky.
    #[test]
    fn x04_load_fails_when_others_can_replace_file() {
        for (mode, is_accepted) in [(0o700, true), (0o755, true), (0o775, true), (0o757, false), (0o777, false), (0o1777, true)] {
            let (directory, path) = temp_file("listen = \"[::]:8443\"", 0o600);
            std::fs::set_permissions(directory.path(), Permissions::from_mode(mode)).expect("its mode");
            let result = load::<TestSettings>(&path);
            assert_eq!(result.is_ok(), is_accepted, "{mode:o}");
            if let Err(error) = result {
                let expected = format!(
                    "(directory {0}, mode {mode:04o}), so it is not trusted; run: chmod go-w {0}",
                    directory.path().display()
                );
                assert!(error.to_string().ends_with(&expected), "{error}");
            }
        }
    }

    /// Creates nested directories with these names in a temporary directory, and a configuration file in the innermost
    /// one. Returns the temporary directory, the paths of the nested directories, and the path of the file.
    fn nested_directories(names: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>, PathBuf) {
        let root = tempfile::tempdir().expect("a directory");
        let mut current_path = root.path().canonicalize().expect("its name without links");
        let mut directories = Vec::new();
        for name in names {
            current_path.push(name);
            std::fs::create_dir(&current_path).expect("a directory");
            std::fs::set_permissions(&current_path, Permissions::from_mode(0o755)).expect("its mode");
            directories.push(current_path.clone());
        }
        let file = current_path.join("agent.toml");
        std::fs::write(&file, "listen = \"[::]:8443\"").expect("a file");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("its mode");
        (root, directories, file)
    }

    /// Lets all users write a directory. Returns the end of the error message that is then expected.
    fn make_writable_by_others(directory: &Path) -> String {
        std::fs::set_permissions(directory, Permissions::from_mode(0o777)).expect("its mode");
        format!("(directory {0}, mode 0777), so it is not trusted; run: chmod go-w {0}", directory.display())
    }

    /// Regression test: only the directory of the file was checked, and not the directories above it.
    #[test]
    fn x04_load_names_ancestor_directory_when_writable_by_others() {
        let (_root, directories, path) = nested_directories(&["one", "two", "three"]);
        for directory in &directories {
            for (mode, is_accepted) in
                [(0o700, true), (0o755, true), (0o775, true), (0o757, false), (0o777, false), (0o1777, true)]
            {
                std::fs::set_permissions(directory, Permissions::from_mode(mode)).expect("its mode");
                assert_eq!(load::<TestSettings>(&path).is_ok(), is_accepted, "{} {mode:o}", directory.display());
            }
            let expected = make_writable_by_others(directory);
            let error = load::<TestSettings>(&path).expect_err("refused").to_string();
            assert!(error.starts_with(&path.display().to_string()) && error.ends_with(&expected), "{error}");
            std::fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("its mode");
        }
        load::<TestSettings>(&path).expect("all modes are restored");
    }

    #[test]
    fn x04_load_checks_directories_of_symlink_and_target() {
        let (_real, real_directories, path) = nested_directories(&["real"]);
        let (_links, link_directories, _) = nested_directories(&["links", "last"]);
        let link_directory = &link_directories[1];
        let link_to_file = link_directory.join("to-file.toml");
        std::os::unix::fs::symlink(&path, &link_to_file).expect("a link");
        std::os::unix::fs::symlink(&real_directories[0], link_directory.join("to-directory")).expect("a link");
        std::os::unix::fs::symlink("../last/to-file.toml", link_directory.join("relative.toml")).expect("a link");
        let link_paths = [link_to_file, link_directory.join("to-directory/agent.toml"), link_directory.join("relative.toml")];
        for link_path in &link_paths {
            load::<TestSettings>(link_path).expect("no directory on the path is writable by others");
        }
        for writable_directory in [&link_directories[0], &link_directories[1], &real_directories[0]] {
            let expected = make_writable_by_others(writable_directory);
            for link_path in &link_paths {
                let error = load::<TestSettings>(link_path).expect_err("refused").to_string();
                assert!(error.ends_with(&expected), "{}: {error}", link_path.display());
            }
            std::fs::set_permissions(writable_directory, Permissions::from_mode(0o755)).expect("its mode");
        }
        // The real path of the file does not lead through the directories of the links.
        make_writable_by_others(&link_directories[0]);
        load::<TestSettings>(&path).expect("the real path does not contain the links");
    }

    /// Regression test: the message advised `chmod go-w`, which does not help against a wrong owner. Without root, this
    /// test checks nothing, because only root can give a directory to another user.
    #[test]
    fn x04_load_fails_when_another_user_owns_directory_or_symlink() {
        const NOBODY: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (_root, directories, path) = nested_directories(&["one", "two"]);
        let link = directories[1].join("link.toml");
        std::os::unix::fs::symlink("agent.toml", &link).expect("a link");
        let change_owner =
            |changed_path: &Path, user| std::os::unix::fs::lchown(changed_path, Some(user), None).expect("its owner");
        for (changed_path, loaded_path, command) in
            [(&directories[0], &path, "chown"), (&directories[1], &path, "chown"), (&link, &link, "chown -h")]
        {
            change_owner(changed_path, NOBODY);
            let displayed_path = changed_path.display();
            let expected = format!(
                "{}: others may put another file in its place ({displayed_path} belongs to user 65534, not to root or the user that runs this (0)), \
                 so it is not trusted; move the file to a directory of your own, or run: {command} 0 {displayed_path}",
                loaded_path.display()
            );
            assert_eq!(load::<TestSettings>(loaded_path).expect_err("refused").to_string(), expected);
            change_owner(changed_path, 0);
        }
        load::<TestSettings>(&link).expect("root owns all of them again");
    }

    #[test]
    fn s71_read_fails_when_others_can_write_file_or_read_key() {
        for (mode, sensitivity, message_part) in [
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
            let result = read(&path, sensitivity).map_err(|error| error.to_string());
            match message_part {
                None => assert!(result.is_ok(), "{mode:o} {sensitivity:?}: {result:?}"),
                Some(message_part) => {
                    let result = result.expect_err("refused");
                    assert!(result.contains(message_part) && result.ends_with(&path.display().to_string()), "{mode:o}: {result}");
                }
            }
        }
    }

    #[test]
    fn load_reports_position_when_toml_is_malformed() {
        for (text, message_parts) in [
            ("listen = 5", &["line 1", "expected a string"][..]),
            ("listen = \"x\"\nlisten_port = 1", &["line 2", "unknown field `listen_port`"]),
            ("", &["missing field `listen`"]),
            ("listen", &["line 1"]),
        ] {
            let (_directory, path) = temp_file(text, 0o600);
            let error = load::<TestSettings>(&path).expect_err(text).to_string();
            assert!(error.starts_with(&path.display().to_string()), "{error}");
            assert!(message_parts.iter().all(|message_part| error.contains(message_part)), "{text:?}: {error}");
        }
    }

    /// The error for a file in another encoding names the reason, such as UTF-16. The message of the error contains the
    /// cause, so `source()` does not return the cause again. This is also checked for a file that does not exist.
    #[test]
    fn y09_load_explains_once_when_file_is_no_utf8() {
        let (_directory, path) = temp_file("", 0o600);
        let utf_16: Vec<u8> = "\u{feff}listen = 1\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, reason) in [
            (&utf_16[..], "it is a text in UTF-16: save it in UTF-8"),
            (&utf_16[2..], "it is a text in UTF-16: save it in UTF-8"),
            (b"listen = \"\xe4\"\n", "it is no text in UTF-8"),
        ] {
            std::fs::write(&path, bytes).expect("a file");
            let error = load::<TestSettings>(&path).expect_err("no text");
            assert_eq!(error.to_string(), format!("{}: {reason}", path.display()));
            assert!(std::error::Error::source(&error).is_none(), "an error chain would repeat the cause");
        }
        let absent = path.with_file_name("absent");
        let error = read(&absent, FileSensitivity::Settings).expect_err("nothing");
        assert!(error.to_string().ends_with("absent: No such file or directory (os error 2)"), "{error}");
        assert!(std::error::Error::source(&error).is_none(), "an error chain would repeat the cause");
    }

    #[test]
    fn load_fails_when_file_is_directory_absent_or_large() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = load::<TestSettings>(directory.path()).expect_err("a directory").to_string();
        assert!(error.ends_with("is not a regular file"), "{error}");
        let error = load::<TestSettings>(&directory.path().join("absent")).expect_err("nothing").to_string();
        assert!(error.contains("No such file"), "{error}");
        let large = directory.path().join("large");
        File::create(&large).and_then(|file| file.set_len(MAX_CONFIG_BYTES + 1)).expect("a sparse file");
        std::fs::set_permissions(&large, Permissions::from_mode(0o600)).expect("its mode");
        assert!(matches!(read(&large, FileSensitivity::Settings), Err(ConfigError::TooLarge { .. })));
    }
}
