//! Locks on files, by which the processes of the agent on one host exclude each other.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{FlockType, Pid, fcntl_getlk};

use super::{CONFINED_FLAGS, RealHost, open_at};
use crate::host::{HostError, HostPath, LockHolder};

impl RealHost {
    /// Acquires an exclusive lock on a file. The lock lasts until the returned handle is dropped, this process closes
    /// another handle of the file, or this process ends. Returns `None` if another process has the lock.
    ///
    /// The lock belongs to the process (`fcntl`), not to the open file (`flock`). With `flock`, a forked child would
    /// share the lock until it executes its program. If this process were killed in that moment, the child would still
    /// hold the lock.
    ///
    /// # Errors
    /// If the lock file cannot be created or, on a read-only file system, does not exist.
    pub fn lock(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        let lock_error = |errno: Errno| HostError::io("lock", path.as_str())(errno.into());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // The path is relative to the root directory, so it is passed without its leading slash.
        let (name, mode) = (&path.as_str()[1..], Mode::RUSR | Mode::WUSR);
        let fd = match rustix::fs::openat2(&self.fd, name, flags, mode, CONFINED_FLAGS) {
            Err(Errno::ROFS) => return self.lock_read_only(path),
            result => result.map_err(lock_error)?,
        };
        Ok(try_lock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(lock_error)?.then_some(fd))
    }

    /// Acquires the lock of [`Self::lock`] on a read-only file system. There the file can only be opened for reading,
    /// which allows only a shared lock, so two processes could get it. Therefore a second check searches for a lock of
    /// another process, and the function returns `None` if there is one. If two processes lock the file at the same
    /// time, at least one of the two finds the lock of the other.
    fn lock_read_only(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        let lock_error = |errno: Errno| HostError::io("lock", path.as_str())(errno.into());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match open_at(self.fd.as_fd(), &path.as_str()[1..], flags, CONFINED_FLAGS) {
            // The file is missing and cannot be created.
            Err(Errno::NOENT) => Err(lock_error(Errno::ROFS)),
            result => result.map_err(lock_error),
        }?;
        let is_only_holder = try_lock(&fd, FlockOperation::NonBlockingLockShared).map_err(lock_error)?
            && fcntl_getlk(&fd, &FlockType::WriteLock.into()).map_err(lock_error)?.is_none();
        Ok(is_only_holder.then_some(fd))
    }

    /// Returns whether another process has the lock of [`Self::lock`].
    ///
    /// # Errors
    /// As [`Self::lock_holder`].
    pub fn is_locked(&self, path: &HostPath) -> Result<bool, HostError> {
        Ok(self.lock_holder(path)?.is_some())
    }

    /// Returns the id of the other process that has the lock of [`Self::lock`]. The id is 0 if that process is not in the
    /// PID namespace of this one. The check does not acquire the lock, because a process that tries to acquire it in that
    /// moment would fail. A process that holds the lock must not call this: the check closes the file, which ends its lock.
    ///
    /// # Errors
    /// If the lock file exists and cannot be opened.
    pub fn lock_holder(&self, path: &HostPath) -> Result<Option<i32>, HostError> {
        let lock_error = |errno: Errno| HostError::io("look at the lock", path.as_str())(errno.into());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match open_at(self.fd.as_fd(), &path.as_str()[1..], flags, CONFINED_FLAGS) {
            Ok(fd) => Ok(fcntl_getlk(fd, &FlockType::WriteLock.into()).map_err(lock_error)?.map(|lock| Pid::as_raw(lock.pid))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(lock_error(errno)),
        }
    }

    /// As [`Self::lock_holder`], with the name of the process's program.
    ///
    /// # Errors
    /// As [`Self::lock_holder`].
    pub(super) fn named_lock_holder(&self, path: &HostPath) -> Result<Option<LockHolder>, HostError> {
        let read_name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned();
        Ok(self.lock_holder(path)?.map(|pid| LockHolder { pid, program: read_name(pid) }))
    }
}

/// Acquires a lock on a file for this process, without waiting. Returns `false` if another process has a conflicting
/// lock.
fn try_lock(fd: &OwnedFd, operation: FlockOperation) -> Result<bool, Errno> {
    match rustix::fs::fcntl_lock(fd, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}
