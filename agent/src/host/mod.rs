//! The only access of the agent to the machine that it runs on.
//!
//! Everything that changes a host goes through [`Host`]. A test can therefore replace the machine, cut its power
//! between any two system calls, and check what was left. A directory is an open handle and is never looked up again by
//! its path. So the agent changes the directory that it checked, even if someone renames entries in between.

pub mod atomic;
pub mod command;
pub mod extras;
#[cfg(test)]
pub mod memory;
pub mod path;
pub mod real;

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use stemma_core::task::{AGENT_CONFIG_FILE, AGENT_RUN_DIR, AGENT_STATE_DIR, MAX_ACCOUNT_ID, is_at_or_below};

pub use command::{CommandResult, ExitKind, HostCommand};
pub use extras::Extras;
pub use path::{HostPath, PathRefused};

/// A future that need not be `Send`, because the agent has one thread.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Awaits a future, or never completes if there is none. For a branch of `select!`.
pub(crate) async fn or_pending<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// A machine, or a test double of one.
pub trait Host {
    /// Opens the root directory (`--root`).
    ///
    /// # Errors
    /// If it cannot be opened.
    fn root(&self) -> Result<Box<dyn Dir>, HostError>;

    /// Opens a directory. `None` if it or a directory above it does not exist.
    ///
    /// # Errors
    /// [`HostError::Link`] if a symbolic link is on the path, [`HostError::WrongKind`] if another kind of file is.
    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError>;

    /// Opens the directory that contains a path. `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn parent_dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        path.parent().map_or_else(|| self.root().map(Some), |parent| self.dir(&parent))
    }

    /// Returns the first directory on the path that a user other than root or the agent's user can write, with its
    /// metadata. Such a user could replace the directories below it after a check. The root directory is not checked,
    /// because whoever started the agent chose it.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn first_untrusted_dir(&self, path: &HostPath) -> Result<Option<(String, Stat)>, HostError> {
        let (user, _) = self.user_and_group();
        let (mut dir, mut at) = (self.root()?, String::new());
        for name in path.names() {
            at = format!("{at}/{name}");
            if let Some(stat) = dir.stat(name)?.filter(|stat| stat.is_open_to_others(user)) {
                return Ok(Some((at, stat)));
            }
            let Some(below) = dir.dir(name)? else { break };
            dir = below;
        }
        Ok(None)
    }

    /// Returns the default access control list that applies to a new file at a path, or `None` if there is none. If
    /// directories of the path are missing, this is the list of the nearest existing one, because each new directory
    /// inherits the list of its parent.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn default_acl(&self, path: &HostPath) -> Result<Option<Vec<u8>>, HostError> {
        let dir = path.parent().map_or_else(|| self.root(), |parent| Ok(self.nearest_existing(&parent)?.0))?;
        dir.default_acl()
    }

    /// Opens the nearest existing directory on a path, and returns the name that is missing in it. The name is `None`
    /// if the whole path exists.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn nearest_existing<'a>(&self, path: &'a HostPath) -> Result<(Box<dyn Dir>, Option<&'a str>), HostError> {
        let mut dir = self.root()?;
        for name in path.names() {
            let Some(below) = dir.dir(name)? else { return Ok((dir, Some(name))) };
            dir = below;
        }
        Ok((dir, None))
    }

    /// Runs a command to its end or its time limit. Its whole process group is killed at the limit, and when the future
    /// is dropped.
    fn run<'a>(&'a self, command: &'a HostCommand) -> Pending<'a, Result<CommandResult, HostError>>;

    /// Returns the path of a file as a command sees it, which is not confined to the root.
    fn system_path(&self, path: &HostPath) -> PathBuf;

    /// Returns the path of the root as a command and the kernel's events see it.
    fn system_root(&self) -> PathBuf;

    /// Returns the id of a user, given by name or in digits.
    ///
    /// # Errors
    /// [`HostError::NoAccount`] if no user has that name.
    fn user_id(&self, name: &str) -> Result<u32, HostError>;

    /// Returns the id of a group, given by name or in digits.
    ///
    /// # Errors
    /// [`HostError::NoAccount`] if no group has that name.
    fn group_id(&self, name: &str) -> Result<u32, HostError>;

    /// Takes a lock that ends with this process, and returns the handle that holds it. The lock file is created if it
    /// is missing. `None` if another process has the lock, or on a machine without other processes.
    ///
    /// # Errors
    /// If the lock file cannot be created.
    fn lock_file(&self, _path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        Ok(None)
    }

    /// Returns whether another process holds the lock of [`Self::lock_file`] on this file.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    fn is_file_locked(&self, _path: &HostPath) -> Result<bool, HostError> {
        Ok(false)
    }

    /// Returns the user and group of this process.
    fn user_and_group(&self) -> (u32, u32);

    /// Returns a random number that stays the same while this process runs. By this number the process recognises its
    /// own unfinished files.
    fn session_id(&self) -> u32;

    /// Returns an unpredictable number.
    fn random(&self) -> u64;

    /// Returns the time of the wall clock.
    fn now(&self) -> SystemTime;

    /// Returns the seconds since 1970, or 0 if the clock is before that.
    fn unix_seconds(&self) -> u64 {
        self.now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Returns the time since the machine started, from a clock that cannot be set.
    fn uptime(&self) -> Duration;
}

/// An open directory.
pub trait Dir {
    /// Returns the metadata of an entry. `None` if it does not exist. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError>;

    /// Returns the version of an entry, or `None` if it does not exist. Two versions of an entry are equal if its
    /// content, owner, mode, attributes and number of links did not change in between.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError>;

    /// Returns the content of a regular file. `None` if it does not exist.
    ///
    /// # Errors
    /// [`HostError::WrongKind`] if it is not a regular file, [`HostError::HardLinks`] if it has several links,
    /// [`HostError::TooLarge`] if it has more than `limit` bytes.
    fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, HostError> {
        let mut bytes = Vec::new();
        let there = self.read_chunks(name, limit, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(there.then_some(bytes))
    }

    /// Reads a regular file in chunks, so that a large file is never in memory as a whole. Returns `false` if it does
    /// not exist.
    ///
    /// # Errors
    /// As [`Self::read`], and the errors of `sink`.
    fn read_chunks(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError>;

    /// Returns the metadata of a regular file and its extended attributes and flags, or `None` if the file does not
    /// exist. All are read from one open file, so they belong together even if someone renames entries in between.
    ///
    /// # Errors
    /// As [`Self::read`]. If only the attributes or flags cannot be read, [`FileDetails::extras`] contains the error.
    fn details(&self, name: &str) -> Result<Option<FileDetails>, HostError>;

    /// Checks that an entry of this name can be replaced or created, as far as this can be known without trying it.
    ///
    /// # Errors
    /// [`HostError::NotReplaceable`] if something prevents it even for root, [`HostError::Io`].
    fn check_replaceable(&self, name: &str) -> Result<(), HostError>;

    /// Returns whether the file system reports too little space for a new file of this size. This writes nothing. A
    /// file system that does not report its space counts as not full.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn is_full(&self, bytes: u64) -> Result<bool, HostError>;

    /// Returns the default access control list of the directory in the kernel's format, or `None` if it has none.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn default_acl(&self) -> Result<Option<Vec<u8>>, HostError>;

    /// Returns the entries whose names are UTF-8, sorted, without `.` and `..`.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn names(&self) -> Result<Vec<String>, HostError>;

    /// Returns the entries whose names are not UTF-8: each name for display, with U+FFFD for invalid bytes, and its
    /// metadata. Such an entry is never opened. A machine on which all names are UTF-8 has none.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn unreadable_names(&self) -> Result<Vec<(String, Stat)>, HostError> {
        Ok(Vec::new())
    }

    /// Opens a subdirectory. `None` if it does not exist.
    ///
    /// # Errors
    /// [`HostError::Link`] if it is a symbolic link, [`HostError::WrongKind`] if it is another kind of file.
    fn dir(&self, name: &str) -> Result<Option<Box<dyn Dir>>, HostError>;

    /// Creates an empty file that only its owner can read.
    ///
    /// # Errors
    /// [`HostError::Io`], also if the name exists.
    fn create(&self, name: &str) -> Result<Box<dyn NewFile>, HostError>;

    /// Creates a directory.
    ///
    /// # Errors
    /// [`HostError::Io`], also if the name exists.
    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError>;

    /// Sets the mode of this directory itself.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn set_mode(&self, mode: u32) -> Result<(), HostError>;

    /// Renames `from` to `to`, and replaces an existing `to`.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn rename(&self, from: &str, to: &str) -> Result<(), HostError>;

    /// Removes a file or a link.
    ///
    /// # Errors
    /// [`HostError::Io`], also if it does not exist.
    fn remove(&self, name: &str) -> Result<(), HostError>;

    /// Makes the entries of the directory durable.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn sync(&self) -> Result<(), HostError>;
}

/// A file that is being written under a temporary name.
pub trait NewFile {
    /// Appends bytes to the content of the file.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn write(&mut self, bytes: &[u8]) -> Result<(), HostError>;

    /// Sets owner and group. `None` leaves the owner or the group unchanged. Call this before [`Self::set_mode`],
    /// because a change of the owner clears the setuid and setgid bits.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn set_owner(&mut self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError>;

    /// Sets the permission bits of the file.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn set_mode(&mut self, mode: u32) -> Result<(), HostError>;

    /// Sets those flags that can be set only while the file is empty.
    ///
    /// # Errors
    /// [`HostError::Extra`].
    fn set_initial_flags(&mut self, extras: &Extras) -> Result<(), HostError>;

    /// Sets extended attributes and flags, and removes an access control list that the file inherited but must not
    /// have. Call this after [`Self::set_owner`], which clears some attributes, and before [`Self::set_mode`].
    ///
    /// # Errors
    /// [`HostError::Extra`].
    fn set_extras(&mut self, extras: &Extras) -> Result<(), HostError>;

    /// Makes the content durable.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn sync(&mut self) -> Result<(), HostError>;
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A FIFO, socket or device.
    Special,
}

/// The metadata of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The kind of the entry.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky, at most `0o7777`.
    pub mode: u32,
    /// The uid of the owner.
    pub user: u32,
    /// The gid of the group.
    pub group: u32,
    /// Size of the content in bytes.
    pub size: u64,
    /// Number of hard links.
    pub links: u64,
}

/// The metadata that changes with each change of a file, so that two versions of the file can be distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Kind, owner, mode and size. These are compared too, because a coarse clock may give two changes the same time.
    pub stat: Stat,
    /// Device and inode.
    pub file: (u64, u64),
    /// Time of the last change (ctime), in seconds and nanoseconds.
    pub changed: (i64, i64),
}

/// The state of a regular file at one moment.
#[derive(Debug)]
pub struct FileDetails {
    /// Kind, owner, mode, size.
    pub stat: Stat,
    /// Extended attributes and flags, or the reason why they are unknown.
    pub extras: Result<Extras, HostError>,
}

/// The reason why a file cannot be replaced, even by root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The file is on another file system than its directory.
    OtherFileSystem,
}

impl ReplaceBlocker {
    /// Returns whether the reason is about the directory or its file system, not about the file.
    #[must_use]
    pub const fn is_about_directory(self) -> bool {
        match self {
            Self::ImmutableDirectory | Self::AppendOnlyDirectory | Self::ReadOnly => true,
            Self::Immutable | Self::AppendOnly | Self::Mounted | Self::Swap | Self::OtherFileSystem => false,
        }
    }
}

/// What exists in place of a command's working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotADirectory {
    /// The path does not exist.
    Nothing,
    /// A link that does not lead to a directory, with its target.
    Link(String),
    /// Another kind of file.
    Other(FileKind),
}

/// An operation that the machine refused, or that the agent refuses to do.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A symbolic link on the path.
    #[error(
        "{}{at} is a symbolic link, and links are not followed: {}",
        opened_clause(path, at),
        link_advice(at, real.as_deref())
    )]
    Link {
        /// The path that was to be opened.
        path: String,
        /// The part of the path that is a link.
        at: String,
        /// The path with the link resolved, if the link can be read.
        real: Option<String>,
    },
    /// Another kind of file than expected.
    #[error("{path} is {found}, where {wanted} was expected: move it away, or name another path")]
    WrongKind {
        /// The path of the file.
        path: String,
        /// The kind that was expected.
        wanted: &'static str,
        /// The kind that was found.
        found: &'static str,
    },
    /// A regular file with several hard links. Under its other name, the file may belong to someone else.
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
    /// A file above the read limit.
    #[error("{path} is larger than {limit} bytes")]
    TooLarge {
        /// The path of the file.
        path: String,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A file that cannot be replaced, even by root.
    #[error("{}", blocker_message(path, at, *.by, *.is_there))]
    NotReplaceable {
        /// The path of the file.
        path: String,
        /// The file, directory or mount point that prevents the replacement.
        at: String,
        /// The reason.
        by: ReplaceBlocker,
        /// True if the file exists.
        is_there: bool,
    },
    /// More extended attributes than the agent can preserve.
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
    /// An extended attribute or flag that the system did not accept for the new file.
    #[error("cannot give the new file {what} of the old one, which is left as it was")]
    Extra {
        /// The attribute, or the flags.
        what: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// No such user or group.
    #[error("{}", no_account_message(kind, name))]
    NoAccount {
        /// `user` or `group`.
        kind: &'static str,
        /// The requested name.
        name: String,
    },
    /// A working directory of a command that is not a directory.
    #[error("cannot enter {path}: {}", working_dir_message(at, found))]
    BadWorkingDir {
        /// The path of the working directory.
        path: String,
        /// The part of the path that is not a directory.
        at: String,
        /// What exists there.
        found: NotADirectory,
    },
    /// A system call that failed.
    #[error("cannot {operation} {path}")]
    Io {
        /// The operation, as a verb.
        operation: &'static str,
        /// The path that the operation was for.
        path: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

impl HostError {
    /// Returns a function that wraps an error of the system with the operation and the path. For `map_err`.
    pub fn io(operation: &'static str, path: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }

    /// Replaces the name of a temporary file in the error by the name of the file that it was to become. A temporary
    /// name means nothing to a reader and differs at each try.
    #[must_use]
    pub fn for_target(self, temporary: &str, target: &str) -> Self {
        match self {
            Self::Io { operation, path, source } => {
                let named = path.strip_suffix(temporary).map(|dir| format!("{dir}{target}"));
                Self::Io { operation, path: named.unwrap_or(path), source }
            }
            other => other,
        }
    }

    /// Returns whether the error is caused by what is at the path, not by the machine. Another try would then fail in
    /// the same way.
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
            Self::Extra { .. } | Self::NoAccount { .. } | Self::Io { .. } => false,
        }
    }

    /// Returns the kind of the system's error, or `None` if no system call failed.
    #[must_use]
    pub fn cause(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } | Self::Extra { source, .. } => Some(source.kind()),
            Self::Link { .. }
            | Self::WrongKind { .. }
            | Self::HardLinks { .. }
            | Self::TooLarge { .. }
            | Self::NotReplaceable { .. }
            | Self::ManyExtras { .. }
            | Self::NoAccount { .. }
            | Self::BadWorkingDir { .. } => None,
        }
    }

    /// Returns whether the system failed with this kind of error.
    #[must_use]
    pub fn has_kind(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == kind)
    }

    /// Returns the error and its causes in one line, for the message of a result.
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

/// Returns the message that no such user or group exists here, with a remedy.
fn no_account_message(kind: &str, name: &str) -> String {
    let file = if kind == "group" { "/etc/group" } else { "/etc/passwd" };
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return format!(
            "{name:?} is not a valid number of a {kind}: use one from 0 to {MAX_ACCOUNT_ID}, or a name in {file}; nothing was changed"
        );
    }
    format!(
        "no {kind} {name:?} in {file}, and no other source is searched: use a name from that file, or a number, as for an account of a directory \
         service (SSSD, LDAP); nothing was changed"
    )
}

/// Returns a prefix that names the path that was to be opened. Empty if the message is about that path itself.
fn opened_clause(path: &str, at: &str) -> String {
    if path == at { String::new() } else { format!("{path}: ") }
}

/// Returns the advice for a symbolic link on a path. `real` is the path with the link resolved.
fn link_advice(at: &str, real: Option<&str>) -> String {
    match real {
        // The link is a loop, so no path leads through it.
        Some(real) if is_at_or_below(real, at) => "it leads to itself, so remove it or name another path".to_owned(),
        Some(real) => format!("write {real}"),
        None => "write the path that it leads to".to_owned(),
    }
}

/// Returns the message that a file cannot be replaced or created, with a remedy.
fn blocker_message(path: &str, at: &str, by: ReplaceBlocker, is_there: bool) -> String {
    let word = shell_word(at);
    let (what, cure) = match by {
        ReplaceBlocker::Immutable => ("it is immutable".to_owned(), format!("`chattr -i {word}`")),
        ReplaceBlocker::AppendOnly => ("it is append-only".to_owned(), format!("`chattr -a {word}`")),
        ReplaceBlocker::Mounted => ("a file is mounted over it".to_owned(), format!("`umount {word}`")),
        ReplaceBlocker::Swap => ("it is an active swap file".to_owned(), format!("`swapoff {word}`")),
        ReplaceBlocker::ImmutableDirectory => (format!("the directory {at} is immutable"), format!("`chattr -i {word}`")),
        ReplaceBlocker::AppendOnlyDirectory => (format!("the directory {at} is append-only"), format!("`chattr -a {word}`")),
        ReplaceBlocker::ReadOnly => (format!("the file system at {at} is read-only"), format!("`mount -o remount,rw {word}`")),
        ReplaceBlocker::OtherFileSystem => {
            ("it lies on another file system than its directory".to_owned(), format!("`umount {word}`"))
        }
    };
    let (change, left) = if is_there { ("replaced", "it is left as it was") } else { ("made", "nothing is there") };
    let end = if is_agent_path(path) { "" } else { " or a task that names another path" };
    format!("{path} cannot be {change}: {what}; {left}, until {cure}{end}")
}

/// Returns the reason why a command cannot start in a directory, with a remedy.
fn working_dir_message(at: &str, found: &NotADirectory) -> String {
    let (what, cure) = match found {
        NotADirectory::Nothing => ("not there".to_owned(), "let an earlier task create it"),
        NotADirectory::Link(target) => (
            format!("a symbolic link to {target}, which leads to no directory (links are followed below `--root` alone)"),
            "correct the link",
        ),
        NotADirectory::Other(kind) => (format!("{}, where a directory was expected", kind.as_str()), "move it away"),
    };
    format!("{at} is {what}: {cure}, or name another directory")
}

/// Returns whether only the agent itself writes at a path. Tasks cannot name such a path, so a message about it does
/// not advise to name another path.
fn is_agent_path(path: &str) -> bool {
    [AGENT_STATE_DIR, AGENT_RUN_DIR, AGENT_CONFIG_FILE].into_iter().any(|dir| is_at_or_below(path, dir))
}

/// Quotes a path as one shell word, for a command that a person copies.
fn shell_word(path: &str) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'+' | b'@' | b':' | b',');
    if path.bytes().all(is_plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Returns advice on a system error, or an empty text if there is none. The advice begins with a colon, so that it can
/// follow the error.
fn advice(operation: &str, path: &str, kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ReadOnlyFilesystem if is_agent_path(path) => ": mount its file system writable",
        io::ErrorKind::StorageFull => ": make room on its file system (`df` and `df -i` say how full it is)",
        io::ErrorKind::QuotaExceeded => ": free space of its owner there, or raise the owner's quota",
        io::ErrorKind::ReadOnlyFilesystem => ": mount its file system writable, or name another path",
        io::ErrorKind::IsADirectory if operation == "replace" && is_agent_path(path) => {
            ": a directory is in the place of the file: move it away"
        }
        io::ErrorKind::InvalidFilename => ": the name or path is too long for its file system; name another path",
        io::ErrorKind::PermissionDenied if operation == "give away" => {
            ": only root, with `CAP_CHOWN`, can give a file to another user or group; name the one that the agent runs as"
        }
        _ => "",
    }
}

impl Stat {
    /// Returns whether a user other than root and `user` can write the entry.
    #[must_use]
    pub const fn is_open_to_others(&self, user: u32) -> bool {
        self.mode & 0o022 != 0 || (self.user != user && self.user != 0)
    }
}

impl FileKind {
    /// Returns the kind as words for a message.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "a regular file",
            Self::Directory => "a directory",
            Self::Link => "a symbolic link",
            Self::Special => "a device, socket or FIFO",
        }
    }
}
