//! The machine that the agent runs on: its files, its accounts, its clock, and the commands that the agent runs.
//!
//! Tasks change a host only through [`Host`]. A test can therefore replace the machine, cut its power between any two
//! changes, and check which files the cut left. Some other modules, for example `facts`, access the machine directly.
//!
//! A directory is an open handle and is never looked up again by its path. So the agent changes the directory that it
//! checked, even if someone renames entries in between.

pub mod atomic;
mod boot;
pub mod command;
mod error;
pub mod extras;
#[cfg(test)]
pub mod memory;
pub mod path;
pub mod real;
pub mod system_units;

use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

pub use boot::boot_id;
pub use command::{CommandPurpose, CommandResult, ExitKind, HostCommand, LeftCommand};
pub use error::{HostError, NotADirectory, ReplaceBlocker, shell_word};
pub use extras::Extras;
pub use path::{HostPath, PathRefused};
pub use system_units::{NoSystemUnits, SystemUnits};

/// A future that need not be `Send`, because the agent has one thread.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Awaits the future. Never completes if `future` is `None`, so that a branch of `select!` without a future never runs.
pub(crate) async fn or_pending<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Maximum size of a file with local accounts, such as `/etc/passwd`, in bytes.
pub const MAX_ACCOUNT_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// The kind of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccountKind {
    /// A user.
    User,
    /// A group.
    Group,
}

impl AccountKind {
    /// Returns the kind as a word for a message.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
        }
    }

    /// Returns the file with the local accounts of this kind.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::User => "/etc/passwd",
            Self::Group => "/etc/group",
        }
    }

    /// Returns the name of the database of NSS with the accounts of this kind.
    #[must_use]
    pub const fn database(self) -> &'static str {
        match self {
            Self::User => "passwd",
            Self::Group => "group",
        }
    }
}

/// The machine that the agent runs on, or a test double of it.
pub trait Host {
    /// Opens the root directory (`--root`).
    ///
    /// # Errors
    /// If the root directory cannot be opened.
    fn root(&self) -> Result<Box<dyn Dir>, HostError>;

    /// Opens a directory. Returns `None` if the directory or one of its parents does not exist.
    ///
    /// # Errors
    /// [`HostError::Link`] if a component of the path is a symbolic link, [`HostError::WrongKind`] if a component is
    /// another kind of file than a directory, [`HostError::Io`] if a system call fails for another reason.
    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError>;

    /// Opens the parent directory of a path. Returns `None` if the parent does not exist.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn parent_dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        path.parent().map_or_else(|| self.root().map(Some), |parent| self.dir(&parent))
    }

    /// Returns the metadata of the entry at a path, or `None` if the entry or its parent does not exist.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn stat(&self, path: &HostPath) -> Result<Option<Stat>, HostError> {
        self.parent_dir(path)?.map_or(Ok(None), |dir| dir.stat(path.name()))
    }

    /// Returns the path and the metadata of the first directory on `path` that a user other than root and the agent's
    /// user can write. Such a user could replace the directories below it after a check. A symbolic link counts too,
    /// because its mode is 0777. The root directory is not checked, because the user who started the agent chose it.
    ///
    /// # Errors
    /// As [`Self::dir`], except [`HostError::Link`].
    fn first_untrusted_dir(&self, path: &HostPath) -> Result<Option<(String, Stat)>, HostError> {
        let (user, _) = self.user_and_group();
        let (mut dir, mut dir_path) = (self.root()?, String::new());
        for name in path.names() {
            dir_path = format!("{dir_path}/{name}");
            if let Some(stat) = dir.stat(name)?.filter(|stat| stat.is_open_to_others(user)) {
                return Ok(Some((dir_path, stat)));
            }
            let Some(subdirectory) = dir.dir(name)? else { break };
            dir = subdirectory;
        }
        Ok(None)
    }

    /// Returns the default access control list that a new file at a path inherits, or `None` if its directory has no
    /// such list. If directories of the path are missing, the list of the nearest existing directory is returned,
    /// because each new directory inherits the list of its parent.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn default_acl(&self, path: &HostPath) -> Result<Option<Vec<u8>>, HostError> {
        let dir = path.parent().map_or_else(|| self.root(), |parent| Ok(self.nearest_existing(&parent)?.0))?;
        dir.default_acl()
    }

    /// Opens the deepest existing directory on a path. Returns the directory and the next name of the path, which is
    /// missing in it. The name is `None` if the whole path exists.
    ///
    /// # Errors
    /// As [`Self::dir`].
    fn nearest_existing<'a>(&self, path: &'a HostPath) -> Result<(Box<dyn Dir>, Option<&'a str>), HostError> {
        let mut dir = self.root()?;
        for name in path.names() {
            let Some(subdirectory) = dir.dir(name)? else { return Ok((dir, Some(name))) };
            dir = subdirectory;
        }
        Ok((dir, None))
    }

    /// Runs a command until it exits or reaches its time limit. At the limit, all processes of the command are ended by
    /// SIGTERM, and later by SIGKILL. If the command fails, its remaining processes are killed. Those of a successful
    /// command, such as a daemon, continue to run.
    ///
    /// If systemd runs the host, the command is a unit of its own, unless its purpose is [`CommandPurpose::Agent`]. The
    /// unit continues if the returned future is dropped or this process ends. Otherwise the command is a child process.
    /// If the future is dropped, the process group of the child is killed.
    ///
    /// # Errors
    /// [`HostError::BadWorkingDir`], [`HostError::NoAccount`], [`HostError::CommandLost`], or [`HostError::Io`] if the
    /// command cannot be started. A command that fails is not an error.
    fn run<'a>(&'a self, command: &'a HostCommand) -> Pending<'a, Result<CommandResult, HostError>>;

    /// As [`Self::run`], for the command of a task. Calls `record` when everything is ready for the start, and does not start
    /// the command if `record` fails. The unit of the command, and how it ended, remain until [`Self::release_unit`].
    ///
    /// # Errors
    /// The errors of [`Self::run`] and of `record`.
    fn run_recorded<'a>(
        &'a self,
        command: &'a HostCommand,
        record: &'a dyn Fn() -> Result<(), HostError>,
    ) -> Pending<'a, Result<CommandResult, HostError>> {
        Box::pin(async move {
            record()?;
            self.run(command).await
        })
    }

    /// Removes the unit of a command that [`Self::run_recorded`] has run. The caller has recorded how the command ended.
    /// Until then, a later agent can ask systemd. This default is for hosts on which no command is a unit.
    fn release_unit<'a>(&'a self, _unit: &'a str) -> Pending<'a, ()> {
        Box::pin(async {})
    }

    /// Returns the name of a new unit in which [`Self::run`] can run a command with this purpose. Returns `None` if the
    /// command will be a child process. This default is for hosts on which no command is a unit.
    fn new_unit(&self, _purpose: &CommandPurpose) -> Option<String> {
        None
    }

    /// Finds the units of commands that an earlier agent left running when it was killed or restarted. Returns those of
    /// tasks, and stops the others. `started` has the unit whose end is not recorded, by task. The caller must ensure
    /// that no other agent applies tasks. This default, for hosts on which no command is a unit, finds none.
    ///
    /// # Errors
    /// [`HostError::Io`] if systemd cannot be asked.
    fn find_left_commands(&self, _started: BTreeMap<String, String>) -> Pending<'_, Result<Vec<LeftCommand>, HostError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns whether systemd has a unit that [`Self::new_unit`] has named, perhaps in another process. Its command runs, or
    /// its end is not recorded yet. This default is for hosts on which no command is a unit.
    fn has_unit(&self, _unit: &str) -> bool {
        false
    }

    /// Returns the units of the system. This default is for hosts whose units the agent cannot manage.
    fn system_units(&self) -> &dyn SystemUnits {
        &NoSystemUnits
    }

    /// Returns the path of a file on the real system, with the `--root` directory in front. A command needs this path,
    /// because commands are not confined to `--root`.
    fn system_path(&self, path: &HostPath) -> PathBuf;

    /// Returns the path of the `--root` directory on the real system, as commands and file events of the kernel use it.
    fn system_root(&self) -> PathBuf;

    /// Returns the id of a user. `name` is a name in `/etc/passwd` or of a directory service, or any id in digits, even one
    /// that no user has.
    ///
    /// # Errors
    /// [`HostError::NoAccount`] if no user has that name or the id is too high, [`HostError::NoDirectoryAnswer`],
    /// [`HostError::Io`].
    fn user_id(&self, name: &str) -> Result<u32, HostError>;

    /// Returns the id of a group, as [`Self::user_id`] does for a user and `/etc/passwd`.
    ///
    /// # Errors
    /// As [`Self::user_id`].
    fn group_id(&self, name: &str) -> Result<u32, HostError>;

    /// Returns the entry of an account by its name, in the format of `/etc/passwd` or `/etc/group`, from a directory
    /// service such as LDAP. Returns `None` if no service has the name. The caller has not found the name in the local file.
    /// This default is for hosts without directory services.
    ///
    /// # Errors
    /// [`HostError::NoDirectoryAnswer`] if it is not known whether a service has the name.
    fn directory_entry(&self, _kind: AccountKind, _name: &str) -> Result<Option<String>, HostError> {
        Ok(None)
    }

    /// Returns the entry of an account by its number, as [`Self::directory_entry`] does by its name. The caller has not
    /// found the number in the local file. This default is for hosts without directory services.
    ///
    /// # Errors
    /// As [`Self::directory_entry`].
    fn directory_entry_with_id(&self, _kind: AccountKind, _id: u32) -> Result<Option<String>, HostError> {
        Ok(None)
    }

    /// Returns the paths at which something is mounted below the root directory, also parts of the same file system
    /// (bind mounts). This default, for a test double without mounts, returns none.
    ///
    /// # Errors
    /// [`HostError::Io`] if they cannot be read.
    fn mount_points(&self) -> Result<Vec<String>, HostError> {
        Ok(Vec::new())
    }

    /// Acquires an exclusive lock on a file, which is created if it is missing. Returns the handle that holds the lock,
    /// or `None` if another process has the lock. The lock ends when the handle is dropped, this process closes another
    /// handle of the file, or this process ends. This default, for a test double without lock files, returns `None`.
    ///
    /// # Errors
    /// If the lock file cannot be created.
    fn lock_file(&self, _path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        Ok(None)
    }

    /// Returns whether another process holds the lock of [`Self::lock_file`] on this file. A process that holds the
    /// lock itself must not call this, because the call would end its lock.
    ///
    /// # Errors
    /// If the lock file exists and cannot be opened.
    fn is_file_locked(&self, _path: &HostPath) -> Result<bool, HostError> {
        Ok(false)
    }

    /// Returns the other process that holds a record lock (`fcntl`) on this file, as package managers do. A process that holds
    /// a lock of the file itself must not call this, because the call would end its lock. This default, for a test double
    /// without lock files, returns `None`.
    ///
    /// # Errors
    /// If the lock file exists and cannot be opened.
    fn find_lock_holder(&self, _path: &HostPath) -> Result<Option<LockHolder>, HostError> {
        Ok(None)
    }

    /// Returns the effective user id and group id of this process.
    fn user_and_group(&self) -> (u32, u32);

    /// Returns an id that is different after each boot of this host, or zeros if it cannot be read.
    fn boot_id(&self) -> [u8; 16] {
        boot_id()
    }

    /// Returns whether `systemctl reboot` boots this host again: systemd runs it, and this process is root. This default is
    /// for hosts without systemd.
    fn can_reboot(&self) -> bool {
        false
    }

    /// Returns the programs that ask systemd not to shut this host down now, each with its reason. This default is for hosts
    /// without systemd.
    ///
    /// # Errors
    /// [`HostError::Io`] if systemd cannot be asked.
    fn shutdown_blockers(&self) -> Pending<'_, Result<Vec<String>, HostError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns the release of the running kernel, as the name of its directory in `/usr/lib/modules`.
    fn kernel_release(&self) -> String {
        rustix::system::uname().release().to_string_lossy().into_owned()
    }

    /// Returns a random number that is constant while this process runs. The number is part of the names of temporary
    /// files, so that the process recognises its own unfinished files.
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
    /// Returns the metadata of an entry, or `None` if the entry does not exist. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError>;

    /// Returns the metadata of this directory itself.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn own_stat(&self) -> Result<Stat, HostError>;

    /// Returns the target of a symbolic link, with U+FFFD for bytes that are not UTF-8. Returns `None` if the entry does
    /// not exist.
    ///
    /// # Errors
    /// [`HostError::WrongKind`] if the entry is no symbolic link, [`HostError::Io`].
    fn read_link(&self, name: &str) -> Result<Option<String>, HostError>;

    /// Returns whether something is mounted at an entry. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn is_mount_point(&self, name: &str) -> Result<bool, HostError>;

    /// Returns the version of an entry, or `None` if the entry does not exist. Two versions are equal only if the entry
    /// did not change in between, apart from the exception that [`FileVersion`] names.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError>;

    /// Returns the content of a regular file, or `None` if the file does not exist.
    ///
    /// # Errors
    /// [`HostError::Link`] if the entry is a symbolic link, [`HostError::WrongKind`] if it is another kind of file,
    /// [`HostError::HardLinks`] if it has several hard links, [`HostError::TooLarge`] if it has more than `limit`
    /// bytes, [`HostError::Io`] if a system call fails for another reason.
    fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, HostError> {
        let mut bytes = Vec::new();
        let exists = self.read_chunks(name, limit, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(exists.then_some(bytes))
    }

    /// Reads a regular file in chunks, so that a large file is never in memory as a whole. Calls `sink` with each
    /// chunk. Returns `false` if the file does not exist.
    ///
    /// # Errors
    /// As [`Self::read`], and the errors of `sink`.
    fn read_chunks(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError>;

    /// Returns the metadata, extended attributes and flags of a regular file, or `None` if the file does not exist. All
    /// are read from one open file, so they describe the same file even if someone renames entries in between.
    ///
    /// # Errors
    /// As [`Self::read`]. If only the attributes or flags cannot be read, [`FileDetails::extras`] contains the error.
    fn details(&self, name: &str) -> Result<Option<FileDetails>, HostError>;

    /// Checks that an entry of this name can be replaced or created. Nothing is changed, so some obstacles are found
    /// only by the change itself.
    ///
    /// # Errors
    /// [`HostError::NotReplaceable`] if something prevents the change even for root, [`HostError::Io`].
    fn check_replaceable(&self, name: &str) -> Result<(), HostError>;

    /// Returns whether the file system of this directory reports too little space, or no inode, for a new file of this
    /// size. Nothing is written. A file system that does not report its space is treated as not full.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn is_full(&self, bytes: u64) -> Result<bool, HostError>;

    /// Returns the default access control list of the directory, which new entries inherit, in the kernel's format.
    /// Returns `None` if the directory has no such list.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn default_acl(&self) -> Result<Option<Vec<u8>>, HostError>;

    /// Returns the sorted names of the entries, without `.` and `..`. Names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn names(&self) -> Result<Vec<String>, HostError>;

    /// Returns the entries whose names are not UTF-8. Each has its name for display, with U+FFFD for invalid bytes, and
    /// its metadata. The agent never opens such an entry. This default, for a test double on which all names are UTF-8,
    /// returns no entries.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn non_utf8_names(&self) -> Result<Vec<(String, Stat)>, HostError> {
        Ok(Vec::new())
    }

    /// Gives each entry whose name is not UTF-8 a name of `new_name`, so that the entry can be removed. This default,
    /// for a test double on which all names are UTF-8, does nothing.
    ///
    /// # Errors
    /// As [`Self::check_replaceable`].
    fn rename_non_utf8_names(&self, _new_name: &mut dyn FnMut() -> String) -> Result<(), HostError> {
        Ok(())
    }

    /// Opens a subdirectory. Returns `None` if the entry does not exist.
    ///
    /// # Errors
    /// [`HostError::Link`] if the entry is a symbolic link, [`HostError::WrongKind`] if it is another kind of file,
    /// [`HostError::Io`] if a system call fails for another reason.
    fn dir(&self, name: &str) -> Result<Option<Box<dyn Dir>>, HostError>;

    /// Creates an empty file that only its owner can read and write.
    ///
    /// # Errors
    /// As [`Self::check_replaceable`]. Also [`HostError::Io`] if the name exists.
    fn create(&self, name: &str) -> Result<Box<dyn NewFile>, HostError>;

    /// Creates a subdirectory with this mode (permission bits).
    ///
    /// # Errors
    /// As [`Self::create`].
    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError>;

    /// Sets the mode of this directory itself.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn set_mode(&self, mode: u32) -> Result<(), HostError>;

    /// Sets owner and group of this directory itself. `None` leaves the owner or the group unchanged.
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError>;

    /// Creates a symbolic link to this target.
    ///
    /// # Errors
    /// As [`Self::create`].
    fn make_link(&self, name: &str, target: &str) -> Result<(), HostError>;

    /// Removes an empty subdirectory.
    ///
    /// # Errors
    /// As [`Self::check_replaceable`]. Also [`HostError::Io`] if the entry does not exist, is no directory, or is not empty.
    fn remove_dir(&self, name: &str) -> Result<(), HostError>;

    /// Renames `from` to `to`, and replaces an existing `to`.
    ///
    /// # Errors
    /// As [`Self::check_replaceable`].
    fn rename(&self, from: &str, to: &str) -> Result<(), HostError>;

    /// Removes a file or a symbolic link.
    ///
    /// # Errors
    /// As [`Self::check_replaceable`]. Also [`HostError::Io`] if the entry does not exist.
    fn remove(&self, name: &str) -> Result<(), HostError>;

    /// Makes the entries of the directory durable (`fsync`).
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

    /// Sets those inode flags (`chattr`) of `extras` that can be set only while the file is empty.
    ///
    /// # Errors
    /// [`HostError::Extra`].
    fn set_initial_flags(&mut self, extras: &Extras) -> Result<(), HostError>;

    /// Sets the extended attributes and inode flags of `extras`. If `extras` contains no access control list, removes
    /// the list that the file inherited. Call this after [`Self::set_owner`], which clears some attributes, and before
    /// [`Self::set_mode`].
    ///
    /// # Errors
    /// [`HostError::Extra`].
    fn set_extras(&mut self, extras: &Extras) -> Result<(), HostError>;

    /// Makes the content of the file durable (`fsync`).
    ///
    /// # Errors
    /// [`HostError::Io`].
    fn sync(&mut self) -> Result<(), HostError>;
}

/// A process that holds a lock on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The id of the process. It is 0 if the process is not in the PID namespace of this one.
    pub pid: i32,
    /// The name of its program, at most 15 bytes (`/proc/PID/comm`). Empty if it cannot be read.
    pub program: String,
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

/// The metadata by which two versions of a file are distinguished. A change of the file changes at least one field,
/// unless it keeps all of `stat` and falls into the same tick of the clock as the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Kind, owner, mode, size and number of hard links. A comparison of the times alone is not enough, because a
    /// coarse clock may give two changes the same time.
    pub stat: Stat,
    /// Device and inode.
    pub file_id: (u64, u64),
    /// Time of the last change (ctime), in seconds and nanoseconds.
    pub changed_at: (i64, i64),
}

/// The metadata, extended attributes and flags of a regular file at one moment.
#[derive(Debug)]
pub struct FileDetails {
    /// Kind, owner, mode, size and number of hard links.
    pub stat: Stat,
    /// Extended attributes and flags, or the error with which their read failed.
    pub extras: Result<Extras, HostError>,
}

impl Stat {
    /// Returns whether a user other than root and `user` can write the entry. This is so if the group or others have
    /// write permission, or if such a user owns the entry.
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
