//! The errors of a host, with their messages for people.

use std::io;

use stemma_core::task::{AGENT_CONFIG_FILE, AGENT_RUN_DIR, AGENT_STATE_DIR, MAX_ACCOUNT_ID, is_at_or_below};

use super::{AccountKind, FileKind};

/// The files with the local accounts. No task can use others.
const ACCOUNT_FILES: [&str; 4] = ["/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow"];

/// The reason why a file cannot be replaced, created or removed, even by root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplaceBlocker {
    /// The file is immutable (`chattr +i`).
    Immutable,
    /// The file is append-only (`chattr +a`).
    AppendOnly,
    /// Another file is mounted over the file.
    Mounted,
    /// The file is an active swap file.
    Swap,
    /// The directory is immutable.
    ImmutableDirectory,
    /// The directory is append-only.
    AppendOnlyDirectory,
    /// The file system is mounted read-only.
    ReadOnly,
    /// The file is not on the file system of its directory.
    OtherFileSystem,
}

impl ReplaceBlocker {
    /// Returns whether the directory or its file system prevents the change, not the file itself.
    #[must_use]
    pub const fn is_about_directory(self) -> bool {
        match self {
            Self::ImmutableDirectory | Self::AppendOnlyDirectory | Self::ReadOnly => true,
            Self::Immutable | Self::AppendOnly | Self::Mounted | Self::Swap | Self::OtherFileSystem => false,
        }
    }
}

/// The obstacle at the path of a command's working directory, where a directory was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotADirectory {
    /// The path does not exist.
    Nothing,
    /// A symbolic link that does not lead to a directory below `--root`, with its target.
    Link(String),
    /// A file that is neither a directory nor a symbolic link.
    Other(FileKind),
}

/// An operation that the machine refused, or that the agent refuses to do.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A component of the path is a symbolic link.
    #[error(
        "{}{at} is a symbolic link, and links are not followed: {}",
        opened_clause(path, at),
        link_advice(at, real.as_deref())
    )]
    Link {
        /// The path that should be opened.
        path: String,
        /// The path of the link, which is `path` or a directory above it.
        at: String,
        /// The value of `path` with the link replaced by its target. `None` if the target is unreadable or not UTF-8.
        real: Option<String>,
    },
    /// The file is of another kind than expected, for example a directory instead of a regular file.
    #[error("{path} is {found}, where {wanted} was expected: move it away, or name another path")]
    WrongKind {
        /// The path of the file.
        path: String,
        /// The expected kind, in words.
        wanted: &'static str,
        /// The found kind, in words.
        found: &'static str,
    },
    /// A regular file has several hard links. Another user may have created the other names of the file.
    #[error(
        "{path} has {links} hard links; such a file is neither read nor replaced: remove the other names (`find / -samefile {}` \
         lists them), or name another path",
        shell_word(path)
    )]
    HardLinks {
        /// The path of the file.
        path: String,
        /// The number of links.
        links: u64,
    },
    /// A file is larger than the read limit.
    #[error("{path} is larger than {limit} bytes")]
    TooLarge {
        /// The path of the file.
        path: String,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A file that cannot be replaced, created or removed, even by root.
    #[error("{}", blocker_message(path, at, *.by, *.is_there))]
    NotReplaceable {
        /// The path of the file.
        path: String,
        /// The path of the file, directory or mount point that prevents the change.
        at: String,
        /// The reason why the file cannot be replaced, created or removed.
        by: ReplaceBlocker,
        /// True if the file exists. False if the file should be created.
        is_there: bool,
    },
    /// A file has more extended attributes than the agent can preserve when it replaces the file.
    #[error(
        "{path} has more than {limit} bytes of extended attributes, the maximum that can be preserved; it is left as it was: remove those that \
         may go (`setfattr -x`)"
    )]
    ManyExtras {
        /// The path of the file.
        path: String,
        /// The limit, in bytes.
        limit: usize,
    },
    /// It is not known how the unit of a command ended, or whether it has ended.
    #[error("it is not known whether and how the unit {unit} ended; `journalctl -u {unit}` may show it")]
    CommandLost {
        /// The name of the unit.
        unit: String,
    },
    /// An extended attribute or flag of a file that the system did not accept for the new file that replaces it.
    #[error("cannot give the new file {what} of the old one, which is left as it was")]
    Extra {
        /// The name of the attribute, or words such as `the flags` or `no access control list`.
        what: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// It is not known whether a directory service has an account that is not in the local file.
    #[error(
        "cannot look up the {} {name:?}, which is not in {}: {reason}; let the directory service of the host (NSS) answer{}; \
         nothing was changed",
        kind.as_str(),
        kind.file(),
        number_advice(name)
    )]
    NoDirectoryAnswer {
        /// The kind of the account.
        kind: AccountKind,
        /// The requested name.
        name: String,
        /// The reason why there is no answer.
        reason: String,
    },
    /// Neither the local file nor a directory service has the name, or it is a number that is too high.
    #[error("{}", no_account_message(*kind, name))]
    NoAccount {
        /// The kind of the account.
        kind: AccountKind,
        /// The requested name.
        name: String,
    },
    /// The working directory of a command does not exist, is not a directory, or is outside of `--root` through a link.
    #[error("cannot enter {path}: {}", working_dir_message(at, found))]
    BadWorkingDir {
        /// The path of the working directory.
        path: String,
        /// The first part of the path that is not a directory, as an absolute path.
        at: String,
        /// The obstacle at that part of the path.
        found: NotADirectory,
    },
    /// A system call failed.
    #[error("cannot {operation} {path}")]
    Io {
        /// The operation as a verb, for example `open`.
        operation: &'static str,
        /// The path that the operation was for.
        path: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

impl HostError {
    /// Returns a function that converts an [`io::Error`] to [`HostError::Io`] with this operation and path. The
    /// function is meant for `map_err`.
    pub fn io(operation: &'static str, path: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }

    /// Replaces the name of a temporary file in [`HostError::Io`] by the name of the target file. The reader of a
    /// message does not know the temporary name, which also differs in each attempt.
    #[must_use]
    pub fn for_target(self, temporary: &str, target: &str) -> Self {
        match self {
            Self::Io { operation, path, source } => {
                let target_path = path.strip_suffix(temporary).map(|dir| format!("{dir}{target}"));
                Self::Io { operation, path: target_path.unwrap_or(path), source }
            }
            other => other,
        }
    }

    /// Returns whether the file at the path caused the error, not the machine. Until somebody changes the file, another
    /// attempt fails in the same way.
    #[must_use]
    pub const fn is_about_file(&self) -> bool {
        match self {
            Self::Link { .. }
            | Self::WrongKind { .. }
            | Self::HardLinks { .. }
            | Self::TooLarge { .. }
            | Self::NotReplaceable { .. }
            | Self::ManyExtras { .. }
            | Self::BadWorkingDir { .. } => true,
            Self::Extra { .. }
            | Self::NoAccount { .. }
            | Self::NoDirectoryAnswer { .. }
            | Self::CommandLost { .. }
            | Self::Io { .. } => false,
        }
    }

    /// Returns the kind of the I/O error that this error contains, or `None` if it contains no I/O error.
    #[must_use]
    pub fn io_error_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } | Self::Extra { source, .. } => Some(source.kind()),
            Self::Link { .. }
            | Self::WrongKind { .. }
            | Self::HardLinks { .. }
            | Self::TooLarge { .. }
            | Self::NotReplaceable { .. }
            | Self::ManyExtras { .. }
            | Self::NoAccount { .. }
            | Self::NoDirectoryAnswer { .. }
            | Self::CommandLost { .. }
            | Self::BadWorkingDir { .. } => None,
        }
    }

    /// Returns whether the error is [`HostError::Io`] with this kind of I/O error.
    #[must_use]
    pub fn has_kind(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == kind)
    }

    /// Returns the error and its cause in one line, with advice if there is any, for a message.
    pub fn sentence(&self) -> String {
        match self {
            Self::Io { source, operation, path } => {
                format!("{self}: {source}{}", advice(operation, path, source.kind()))
            }
            Self::Extra { source, .. } => format!(
                "{self}: {source}: remove it from the old file if it may go (`setfattr -x` an attribute, `setfacl -b` a list, `chattr` a flag)"
            ),
            _ => self.to_string(),
        }
    }
}

/// Returns the message that a user or group does not exist on this host, with a remedy. A `name` of digits
/// can only fail because the number is too high.
fn no_account_message(kind: AccountKind, name: &str) -> String {
    let (file, database, kind) = (kind.file(), kind.database(), kind.as_str());
    if is_number(name) {
        return format!(
            "{name:?} is not a valid number of a {kind}: use one from 0 to {MAX_ACCOUNT_ID}, or a name in {file}; nothing was changed"
        );
    }
    format!(
        "no {kind} {name:?} in {file}, nor in a directory service of the host (NSS): use a name that `getent {database}` finds, let an \
         earlier task create it, or give a number; nothing was changed"
    )
}

/// Returns the advice to give a number in place of the name of an account, or nothing for a number.
fn number_advice(reference: &str) -> &'static str {
    if is_number(reference) { "" } else { ", or give a number" }
}

/// Returns whether the reference of an account is a number.
fn is_number(reference: &str) -> bool {
    !reference.is_empty() && reference.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns a prefix of a message with the path that should be opened. The prefix is empty if that path itself is the
/// link at `link_path`, because the message then already names it.
fn opened_clause(path: &str, link_path: &str) -> String {
    if path == link_path { String::new() } else { format!("{path}: ") }
}

/// Returns the advice for a path with a symbolic link at `link`. `target` is the path with the link
/// replaced by its target, or `None` if the link cannot be read.
fn link_advice(link: &str, target: Option<&str>) -> String {
    match target {
        // The target is below the link itself. So the link is a loop, and no path through the link can be opened.
        Some(target) if is_at_or_below(target, link) => "it leads to itself, so remove it or name another path".to_owned(),
        Some(target) => format!("write {target}"),
        None => "write the path that it leads to".to_owned(),
    }
}

/// Returns the message that the file at `path` cannot be replaced or, if it does not exist, created. The message
/// contains the command that removes the obstacle at `place`.
fn blocker_message(path: &str, place: &str, blocker: ReplaceBlocker, exists: bool) -> String {
    let word = shell_word(place);
    let (reason, command) = match blocker {
        ReplaceBlocker::Immutable => ("it is immutable".to_owned(), format!("`chattr -i {word}`")),
        ReplaceBlocker::AppendOnly => ("it is append-only".to_owned(), format!("`chattr -a {word}`")),
        ReplaceBlocker::Mounted => ("a file is mounted over it".to_owned(), format!("`umount {word}`")),
        ReplaceBlocker::Swap => ("it is an active swap file".to_owned(), format!("`swapoff {word}`")),
        ReplaceBlocker::ImmutableDirectory => (format!("the directory {place} is immutable"), format!("`chattr -i {word}`")),
        ReplaceBlocker::AppendOnlyDirectory => (format!("the directory {place} is append-only"), format!("`chattr -a {word}`")),
        ReplaceBlocker::ReadOnly => (format!("the file system at {place} is read-only"), format!("`mount -o remount,rw {word}`")),
        ReplaceBlocker::OtherFileSystem => {
            ("it lies on another file system than its directory".to_owned(), format!("`umount {word}`"))
        }
    };
    let (change, outcome) = if exists { ("replaced", "it is left as it was") } else { ("made", "nothing is there") };
    let alternative =
        if is_agent_path(path) || ACCOUNT_FILES.contains(&path) { "" } else { " or a task that names another path" };
    format!("{path} cannot be {change}: {reason}; {outcome}, until {command}{alternative}")
}

/// Returns the reason why a command cannot start in its working directory, with a remedy. `obstacle_path` is the first
/// part of the directory's path that is not a directory.
fn working_dir_message(obstacle_path: &str, obstacle: &NotADirectory) -> String {
    let (description, remedy) = match obstacle {
        NotADirectory::Nothing => ("not there".to_owned(), "let an earlier task create it"),
        NotADirectory::Link(target) => (
            format!("a symbolic link to {target}, which does not lead to a directory (links are followed only below `--root`)"),
            "correct the link",
        ),
        NotADirectory::Other(kind) => (format!("{}, where a directory was expected", kind.as_str()), "move it away"),
    };
    format!("{obstacle_path} is {description}: {remedy}, or name another directory")
}

/// Returns whether a path is in a directory of the agent, or is its configuration file. Tasks may not write to such a
/// path, so a message about the path does not advise the user to name another path.
fn is_agent_path(path: &str) -> bool {
    [AGENT_STATE_DIR, AGENT_RUN_DIR, AGENT_CONFIG_FILE].into_iter().any(|agent_path| is_at_or_below(path, agent_path))
}

/// Returns the path as one shell word, quoted if necessary, for a command that a person copies.
pub fn shell_word(path: &str) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'+' | b'@' | b':' | b',');
    if path.bytes().all(is_plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Returns advice on an I/O error, or an empty text if there is no advice for the error. The advice begins with a
/// colon, so that it can follow the text of the error.
fn advice(operation: &str, path: &str, kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ReadOnlyFilesystem if is_agent_path(path) => ": mount its file system writable",
        io::ErrorKind::StorageFull => ": make room on its file system (`df` and `df -i` show how full it is)",
        io::ErrorKind::QuotaExceeded => ": free space of its owner there, or raise the owner's quota",
        io::ErrorKind::ReadOnlyFilesystem => ": mount its file system writable, or name another path",
        io::ErrorKind::IsADirectory if operation == "replace" && is_agent_path(path) => {
            ": a directory is in the place of the file: move it away"
        }
        io::ErrorKind::InvalidFilename => ": the name or path is too long for its file system; name another path",
        // The operation is a change of the owner or group.
        io::ErrorKind::PermissionDenied if operation == "give away" => {
            ": only root, with `CAP_CHOWN`, can give a file to another user or group; name the one that the agent runs as"
        }
        _ => "",
    }
}
