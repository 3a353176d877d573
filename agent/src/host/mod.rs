//! The one way to touch the machine.
//!
//! Everything that changes a host goes through [`Host`], so that a test can stand in for the machine, cut its
//! power between any two system calls, and ask what was left. A directory is held by a handle, never found
//! again by its path: what was checked is what is changed, whoever moves names about meanwhile.

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

use stemma_core::task::{AGENT_CONFIG, AGENT_RUN, AGENT_STATE, MAX_ACCOUNT, is_at_or_below};

pub use command::{Command, End, Finished};
pub use extras::Extras;
pub use path::{HostPath, PathRefused};

/// A future that need not move between threads: the agent has one.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a future gives; where there is none, this is never over. It is for a branch of `select!`.
pub(crate) async fn or_never<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// A machine, or what stands in for one.
pub trait Host {
    /// The directory at the root of everything (`--root`).
    ///
    /// # Errors
    /// When it cannot be opened.
    fn root(&self) -> Result<Box<dyn Dir>, HostError>;

    /// Opens a directory; `None` when it, or one above it, is not there.
    ///
    /// # Errors
    /// [`HostError::Link`] when a symbolic link stands in the way, [`HostError::Kind`] when another thing does.
    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError>;

    /// The directory that a path lies in; `None` when it is not there.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn parent_of(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        path.parent().map_or_else(|| self.root().map(Some), |parent| self.dir(&parent))
    }

    /// The first of the directories that a path names that somebody with neither root's rights nor this user's could write, and what it is:
    /// whoever can may put another thing in the place of one that was just looked at. The root itself is whoever's who chose it.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn open_to_others(&self, path: &HostPath) -> Result<Option<(String, Stat)>, HostError> {
        let (own, _) = self.identity();
        let (mut dir, mut at) = (self.root()?, String::new());
        for name in path.names() {
            at = format!("{at}/{name}");
            if let Some(stat) = dir.stat(name)?.filter(|stat| stat.is_open_to_others(own)) {
                return Ok(Some((at, stat)));
            }
            let Some(below) = dir.dir(name)? else { break };
            dir = below;
        }
        Ok(None)
    }

    /// The default access control list that governs what is made at a path: that of its directory, or of the last one on the way that is there,
    /// since each new directory has it of the one above. `None` where there is none.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn default_list(&self, path: &HostPath) -> Result<Option<Vec<u8>>, HostError> {
        let dir = path.parent().map_or_else(|| self.root(), |parent| Ok(self.nearest(&parent)?.0))?;
        dir.default_list()
    }

    /// The last directory on the way to one that is there, and the name that is missing in it; `None` where it is that one.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn nearest<'a>(&self, path: &'a HostPath) -> Result<(Box<dyn Dir>, Option<&'a str>), HostError> {
        let mut dir = self.root()?;
        for name in path.names() {
            let Some(below) = dir.dir(name)? else { return Ok((dir, Some(name))) };
            dir = below;
        }
        Ok((dir, None))
    }

    /// Runs a command to its end or its time limit. Its whole process group is ended at the limit, and when
    /// the future is dropped.
    fn run<'a>(&'a self, command: &'a Command) -> Pending<'a, Result<Finished, HostError>>;

    /// Where a path of the host lies for a command, which is not confined to the root.
    fn outside(&self, path: &HostPath) -> PathBuf;

    /// Where the root lies for a command and for the kernel's events.
    fn outside_root(&self) -> PathBuf;

    /// The number of a user, by name or as digits.
    ///
    /// # Errors
    /// [`HostError::NoAccount`] when there is none of that name.
    fn user(&self, name: &str) -> Result<u32, HostError>;

    /// The number of a group, by name or as digits.
    ///
    /// # Errors
    /// [`HostError::NoAccount`] when there is none of that name.
    fn group(&self, name: &str) -> Result<u32, HostError>;

    /// Takes a lock that goes with this process, in a file that is made where it is missing, and gives what holds it; `None` where another process
    /// has it, and on a machine that has no other process.
    ///
    /// # Errors
    /// When the lock's file cannot be made.
    fn hold(&self, _path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        Ok(None)
    }

    /// Whether another process has such a lock.
    ///
    /// # Errors
    /// When the lock's file cannot be opened.
    fn is_held(&self, _path: &HostPath) -> Result<bool, HostError> {
        Ok(false)
    }

    /// Who this process is: user and group.
    fn identity(&self) -> (u32, u32);

    /// A number of this process, by which it knows its own unfinished files.
    fn session(&self) -> u32;

    /// Something that nobody can foresee.
    fn random(&self) -> u64;

    /// The wall clock.
    fn now(&self) -> SystemTime;

    /// Seconds since 1970; 0 for a clock before it.
    fn unix_seconds(&self) -> u64 {
        self.now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Time since the machine started, that no one sets.
    fn uptime(&self) -> Duration;
}

/// A directory, held open.
pub trait Dir {
    /// What stands under a name; `None` when nothing does. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError>;

    /// Which version of what stands under a name; `None` when nothing does. Two are equal if nothing of it was changed meanwhile: bytes, owner,
    /// mode, attributes or the number of its names.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError>;

    /// The bytes of a regular file; `None` when nothing stands there.
    ///
    /// # Errors
    /// [`HostError::Kind`] for anything but a regular file, [`HostError::Links`] for one with several names,
    /// [`HostError::Large`] beyond `limit` bytes.
    fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, HostError> {
        let mut bytes = Vec::new();
        let there = self.pieces(name, limit, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(there.then_some(bytes))
    }

    /// The bytes of a regular file, piece by piece, so that a large one never stands in memory whole; `false` when nothing
    /// stands there.
    ///
    /// # Errors
    /// As [`Self::read`], and what `sink` says.
    fn pieces(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError>;

    /// What a regular file is, and what it has beside its bytes, owner and mode: both of one file, whoever moves names about meanwhile.
    /// `None` when nothing stands there.
    ///
    /// # Errors
    /// As [`Self::read`]. What it has beside may be unreadable where the rest is not, also as [`HostError::ManyExtras`].
    fn look(&self, name: &str) -> Result<Option<Look>, HostError>;

    /// Whether another file may be put in the place of what stands under a name, or of nothing there, as far as can be seen before.
    ///
    /// # Errors
    /// [`HostError::Fixed`] where something stops that for root too, [`HostError::Io`].
    fn check_replaceable(&self, name: &str) -> Result<(), HostError>;

    /// Whether its file system says that it has no room for a new file of so many bytes. Nothing is written to find out, and one that does not say
    /// how full it is is not full.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn is_full(&self, bytes: u64) -> Result<bool, HostError>;

    /// Its default access control list, as the kernel has it; `None` where it has none.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn default_list(&self) -> Result<Option<Vec<u8>>, HostError>;

    /// The names in it that are text in UTF-8, sorted, without `.` and `..`.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn names(&self) -> Result<Vec<String>, HostError>;

    /// What stands in it under names that are no text in UTF-8: each name as it is shown, with U+FFFD for what is no text, and what stands
    /// there. Nothing is opened by such a name. A machine whose names are all text has none.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn unreadable_names(&self) -> Result<Vec<(String, Stat)>, HostError> {
        Ok(Vec::new())
    }

    /// A directory below; `None` when nothing stands there.
    ///
    /// # Errors
    /// [`HostError::Link`] for a symbolic link, [`HostError::Kind`] for another thing.
    fn dir(&self, name: &str) -> Result<Option<Box<dyn Dir>>, HostError>;

    /// Makes a file that was not there, empty, readable by its owner alone.
    ///
    /// # Errors
    /// [`HostError::Io`], also when something stands there.
    fn create(&self, name: &str) -> Result<Box<dyn NewFile>, HostError>;

    /// Makes a directory that was not there.
    ///
    /// # Errors
    /// [`HostError::Io`], also when something stands there.
    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError>;

    /// Sets the mode of this directory itself.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn set_mode(&self, mode: u32) -> Result<(), HostError>;

    /// Gives what stands under `from` the name `to`, in place of what stood there.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn rename(&self, from: &str, to: &str) -> Result<(), HostError>;

    /// Takes a file's (or link's) name away.
    ///
    /// # Errors
    /// [`HostError::Io`], also when nothing stands there.
    fn remove(&self, name: &str) -> Result<(), HostError>;

    /// Makes the names in it durable.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn sync(&self) -> Result<(), HostError>;
}

/// A file that is being written under a name that nobody waits for.
pub trait NewFile {
    /// Appends.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn write(&mut self, bytes: &[u8]) -> Result<(), HostError>;

    /// Sets owner and group; `None` leaves one as it is. Before the mode: a change of owner clears its upper bits.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn set_owner(&mut self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError>;

    /// Sets the mode.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn set_mode(&mut self, mode: u32) -> Result<(), HostError>;

    /// Sets those of its flags that can be set while it is empty alone.
    ///
    /// # Errors
    /// [`HostError::Extra`].
    fn begin_extras(&mut self, extras: &Extras) -> Result<(), HostError>;

    /// Gives it these extended attributes and flags, and takes away an access control list that it has of its directory and is not to
    /// have. After the owner, whose change takes some away; before the mode.
    ///
    /// # Errors
    /// [`HostError::Extra`].
    fn set_extras(&mut self, extras: &Extras) -> Result<(), HostError>;

    /// Makes its bytes durable.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn sync(&mut self) -> Result<(), HostError>;
}

/// What kind of thing a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A FIFO, socket or device.
    Special,
}

/// What stands under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its kind.
    pub kind: Kind,
    /// Permission bits, with setuid, setgid and sticky: `0o7777` at most.
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Bytes.
    pub size: u64,
    /// How many names it has.
    pub links: u64,
}

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Its kind, owner, mode and size: a clock that ticks seldom may not tell two changes apart.
    pub stat: Stat,
    /// Device and inode.
    pub file: (u64, u64),
    /// When it was changed last, in seconds and nanoseconds, by the kernel's clock.
    pub changed: (i64, i64),
}

/// A regular file, as it was looked at once.
#[derive(Debug)]
pub struct Look {
    /// Kind, owner, mode, size.
    pub stat: Stat,
    /// What it has beside them, or why that is not known.
    pub extras: Result<Extras, HostError>,
}

/// What stops a file from being replaced, for root too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// Its flag (`chattr +i`).
    Immutable,
    /// Its flag (`chattr +a`).
    AppendOnly,
    /// Another file is mounted over it.
    Mounted,
    /// The kernel swaps to it.
    Swap,
    /// The flag of its directory.
    ImmutableDirectory,
    /// The flag of its directory.
    AppendOnlyDirectory,
    /// What it lies on is mounted to be read alone.
    ReadOnly,
    /// It lies on another file system than its directory.
    OtherFileSystem,
}

impl Fixed {
    /// Whether it is something of the directory of a file, or of what that lies on, and not of the file.
    #[must_use]
    pub const fn is_of_directory(self) -> bool {
        match self {
            Self::ImmutableDirectory | Self::AppendOnlyDirectory | Self::ReadOnly => true,
            Self::Immutable | Self::AppendOnly | Self::Mounted | Self::Swap | Self::OtherFileSystem => false,
        }
    }
}

/// What stands where a command was to start in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoDirectory {
    /// Nothing.
    Nothing,
    /// A link that leads to no directory, and what it says.
    Link(String),
    /// Something else.
    Other(Kind),
}

/// What the machine would not do, or what the agent would not do to it.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A symbolic link in the way.
    #[error(
        "{}{at} is a symbolic link, and links are not followed: {}",
        opened(path, at),
        instead_of_link(at, real.as_deref())
    )]
    Link {
        /// What was to be opened.
        path: String,
        /// Which part of it is a link.
        at: String,
        /// The path by way of what the link says, where that can be read.
        real: Option<String>,
    },
    /// Something else than was expected stands there.
    #[error("{path} is {found}, where {wanted} was expected: move it away, or name another path")]
    Kind {
        /// Where.
        path: String,
        /// What was expected.
        wanted: &'static str,
        /// What stands there.
        found: &'static str,
    },
    /// A regular file with several names: it may be someone else's.
    #[error(
        "{path} has {links} hard links; another name's file is neither read nor replaced: remove the other names (`find / -samefile {}` \
         lists them), or name another path",
        word(path)
    )]
    Links {
        /// Where.
        path: String,
        /// How many names it has.
        links: u64,
    },
    /// A file larger than what is read.
    #[error("{path} is larger than {limit} bytes")]
    Large {
        /// Where.
        path: String,
        /// How much would have been read.
        limit: u64,
    },
    /// Something stops a file from being replaced, for root too.
    #[error("{}", fixed(path, at, *.by, *.is_there))]
    Fixed {
        /// Where.
        path: String,
        /// Which file, directory or mount point it is that stops it.
        at: String,
        /// What stops it.
        by: Fixed,
        /// Whether something stands there.
        is_there: bool,
    },
    /// More extended attributes than are kept.
    #[error(
        "{path} has more than {limit} bytes of extended attributes, and no more are kept of a file; it is left as it was: take away those that \
         may go (`setfattr -x`)"
    )]
    ManyExtras {
        /// Where.
        path: String,
        /// How many bytes of them would have been kept.
        limit: usize,
    },
    /// The system would not keep something that a file has beside its bytes, owner and mode.
    #[error("cannot give the new file {what} of the old one, which is left as it was")]
    Extra {
        /// Which attribute, or the flags.
        what: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// No such user or group.
    #[error("{}", no_account(kind, name))]
    NoAccount {
        /// `user` or `group`.
        kind: &'static str,
        /// The name asked for.
        name: String,
    },
    /// The directory in which a command was to start is none.
    #[error("cannot enter {path}: {}", unentered(at, found))]
    Unentered {
        /// The directory.
        path: String,
        /// Which part of it is none.
        at: String,
        /// What stands there.
        found: NoDirectory,
    },
    /// The system said no.
    #[error("cannot {operation} {path}")]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

impl HostError {
    /// Wraps the system's answer.
    pub fn io(operation: &'static str, path: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }

    /// The same error, said of the file that an unfinished one is to replace. Nobody knows the name of the unfinished one: it is new at each try.
    #[must_use]
    pub fn of_target(self, in_the_making: &str, target: &str) -> Self {
        match self {
            Self::Io { operation, path, source } => {
                let named = path.strip_suffix(in_the_making).map(|dir| format!("{dir}{target}"));
                Self::Io { operation, path: named.unwrap_or(path), source }
            }
            other => other,
        }
    }

    /// Whether what stands there is at fault, and not the machine: the next try would find the same.
    #[must_use]
    pub const fn is_of_the_file(&self) -> bool {
        match self {
            Self::Link { .. }
            | Self::Kind { .. }
            | Self::Links { .. }
            | Self::Large { .. }
            | Self::Fixed { .. }
            | Self::ManyExtras { .. }
            | Self::Unentered { .. } => true,
            Self::Extra { .. } | Self::NoAccount { .. } | Self::Io { .. } => false,
        }
    }

    /// What the system says, where it is the system that says no.
    #[must_use]
    pub fn cause(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } | Self::Extra { source, .. } => Some(source.kind()),
            Self::Link { .. }
            | Self::Kind { .. }
            | Self::Links { .. }
            | Self::Large { .. }
            | Self::Fixed { .. }
            | Self::ManyExtras { .. }
            | Self::NoAccount { .. }
            | Self::Unentered { .. } => None,
        }
    }

    /// Whether the system says this.
    #[must_use]
    pub fn is(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == kind)
    }

    /// The error and its causes in one line, for a result's message.
    pub fn sentence(&self) -> String {
        match self {
            Self::Io { source, operation, path } => {
                format!("{self}: {source}{}", remedy(operation, path, source.kind()))
            }
            Self::Extra { source, .. } => format!(
                "{self}: {source}: take it off the old file where it may go (`setfattr -x` an attribute, `setfacl -b` a list, `chattr` a flag)"
            ),
            _ => self.to_string(),
        }
    }
}

/// That there is no such user or group here, and what to do.
fn no_account(kind: &str, name: &str) -> String {
    let file = if kind == "group" { "/etc/group" } else { "/etc/passwd" };
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return format!(
            "{name:?} is no number of a {kind}: they go from 0 to {MAX_ACCOUNT}: give one of these, or a name in {file}; nothing was changed"
        );
    }
    format!(
        "no {kind} {name:?} in {file}, and no other place is looked at: name one of those, or give a number, as for an account of a directory \
         service (SSSD, LDAP); nothing was changed"
    )
}

/// What was to be opened, before a sentence about something on the way to it; nothing where the sentence is about that itself.
fn opened(path: &str, at: &str) -> String {
    if path == at { String::new() } else { format!("{path}: ") }
}

/// What to do about a symbolic link in the way, where the path by way of it is this.
fn instead_of_link(at: &str, real: Option<&str>) -> String {
    match real {
        // No path leads through it.
        Some(real) if is_at_or_below(real, at) => "it leads to itself, so take it away or name another path".to_owned(),
        Some(real) => format!("write {real}"),
        None => "write the path that it leads to".to_owned(),
    }
}

/// What stops a file from being replaced, or made, and what to do.
fn fixed(path: &str, at: &str, by: Fixed, is_there: bool) -> String {
    let word = word(at);
    let (what, cure) = match by {
        Fixed::Immutable => ("it is immutable".to_owned(), format!("`chattr -i {word}`")),
        Fixed::AppendOnly => ("it is append-only".to_owned(), format!("`chattr -a {word}`")),
        Fixed::Mounted => ("a file is mounted over it".to_owned(), format!("`umount {word}`")),
        Fixed::Swap => ("it is an active swap file".to_owned(), format!("`swapoff {word}`")),
        Fixed::ImmutableDirectory => (format!("the directory {at} is immutable"), format!("`chattr -i {word}`")),
        Fixed::AppendOnlyDirectory => (format!("the directory {at} is append-only"), format!("`chattr -a {word}`")),
        Fixed::ReadOnly => (format!("what is mounted at {at} is read-only"), format!("`mount -o remount,rw {word}`")),
        Fixed::OtherFileSystem => {
            ("it lies on another file system than its directory".to_owned(), format!("`umount {word}`"))
        }
    };
    let (change, left) = if is_there { ("replaced", "it is left as it was") } else { ("made", "nothing is there") };
    let end = if is_of_agent(path) { "" } else { " or a task that names another path" };
    format!("{path} cannot be {change}: {what}; {left}, until {cure}{end}")
}

/// Why a command cannot start in a directory, and what to do.
fn unentered(at: &str, found: &NoDirectory) -> String {
    let (what, cure) = match found {
        NoDirectory::Nothing => ("not there".to_owned(), "let a task before this one make it"),
        NoDirectory::Link(target) => (
            format!(
                "a symbolic link to {target}, which leads to no directory (links are followed below `--root` alone)"
            ),
            "mend the link",
        ),
        NoDirectory::Other(kind) => (format!("{}, where a directory was expected", kind.word()), "move it away"),
    };
    format!("{at} is {what}: {cure}, or name another directory")
}

/// Whether the agent alone writes there: no task names such a path, and none that names another one would help.
fn is_of_agent(path: &str) -> bool {
    [AGENT_STATE, AGENT_RUN, AGENT_CONFIG].into_iter().any(|own| is_at_or_below(path, own))
}

/// A path as one word of a command that a person copies.
fn word(path: &str) -> String {
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'+' | b'@' | b':' | b',')
    };
    if path.bytes().all(is_plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// What to do about an answer of the system, where there is something to be said of it whatever the file; begins with a colon.
fn remedy(operation: &str, path: &str, kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ReadOnlyFilesystem if is_of_agent(path) => ": mount its file system writable",
        io::ErrorKind::StorageFull => ": make room on its file system (`df` and `df -i` say how full it is)",
        io::ErrorKind::QuotaExceeded => ": make room for its owner there, or raise their quota",
        io::ErrorKind::ReadOnlyFilesystem => ": mount its file system writable, or name another path",
        io::ErrorKind::IsADirectory if operation == "replace" && is_of_agent(path) => {
            ": a directory stands in the place of the file: move it away"
        }
        io::ErrorKind::InvalidFilename => ": its file system takes no name or path of this length; name another path",
        io::ErrorKind::PermissionDenied if operation == "give away" => {
            ": root alone, with `CAP_CHOWN`, gives a file to another user or group; name the one that the agent runs as"
        }
        _ => "",
    }
}

impl Stat {
    /// Whether somebody with neither root's rights nor those of this user can write it.
    #[must_use]
    pub const fn is_open_to_others(&self, own: u32) -> bool {
        self.mode & 0o022 != 0 || (self.user != own && self.user != 0)
    }
}

impl Kind {
    /// The word for it in a sentence.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::File => "a regular file",
            Self::Directory => "a directory",
            Self::Link => "a symbolic link",
            Self::Special => "a device, socket or FIFO",
        }
    }
}
