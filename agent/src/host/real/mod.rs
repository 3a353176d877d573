//! The real machine, accessed by system calls of the crate rustix. Every path is opened with `openat2`, below the root
//! and without following links.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{
    AtFlags, FlockOperation, Gid, IFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use rustix::process::{FlockType, fcntl_getlk};

use super::extras::{ACL, ACL_ALIAS, DEFAULT_ACL, EMPTY_FILE_FLAGS, PRESERVED_FLAGS, REPORTED_FLAGS};
use super::{
    CommandResult, Dir, Extras, FileDetails, FileKind, FileVersion, Host, HostCommand, HostError, HostPath, NewFile, Pending,
    ReplaceBlocker, Stat,
};

mod accounts;
mod exec_error;
pub mod process_setup;
mod spawn;

/// Path resolution that follows no link, reaches nothing above the root, and uses no magic link of `/proc`.
const CONFINED_FLAGS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Size of one read from a file, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;

/// Maximum size that the kernel returns for the names of all extended attributes, or for the value of one.
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;

/// Maximum size of the extended attributes that are preserved of a file, in bytes.
const MAX_ATTRIBUTES_BYTES: usize = 1024 * 1024;

/// The kernel's list of active swap files.
const PROC_SWAPS: &str = "/proc/swaps";

/// The machine that this process runs on, below a root directory.
pub struct RealHost {
    root: PathBuf,
    /// The open root directory.
    fd: OwnedFd,
    random: SystemRandom,
    /// Random number of this process ([`Host::session_id`]).
    session: u32,
}

/// An open directory, with its path for messages.
struct RealDir {
    fd: OwnedFd,
    path: String,
}

/// A new file that is open for writing, with its path for messages.
struct RealFile {
    fd: OwnedFd,
    path: String,
}

impl RealHost {
    /// Opens the machine below `root`, which is `/` without `--root`. Links in `root` itself are followed, once.
    ///
    /// # Errors
    /// If `root` is not a directory that can be opened.
    pub fn new(root: &Path) -> Result<Self, HostError> {
        let shown = || root.display().to_string();
        let root = root.canonicalize().map_err(HostError::io("open", shown()))?;
        let fd = rustix::fs::open(&root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| HostError::io("open", shown())(errno.into()))?;
        let mut host = Self { root, fd, random: SystemRandom::new(), session: 0 };
        host.session = u32::try_from(host.random() >> 32).expect("the upper half of 64 bits");
        Ok(host)
    }

    /// Takes a lock that lasts until the returned handle is dropped or this process ends. Returns `None` if another
    /// process has the lock.
    ///
    /// The lock belongs to the process (`fcntl`), not to the open file (`flock`). Otherwise a child that was just
    /// forked when this process is killed would hold the lock until it runs its program.
    ///
    /// # Errors
    /// If the lock file cannot be created or, on a read-only file system, does not exist.
    pub fn lock(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        let failed = |errno: Errno| HostError::io("lock", path.as_str())(errno.into());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let (name, mode) = (&path.as_str()[1..], Mode::RUSR | Mode::WUSR);
        let fd = match rustix::fs::openat2(&self.fd, name, flags, mode, CONFINED_FLAGS) {
            Err(Errno::ROFS) => return self.lock_read_only(path),
            opened => opened.map_err(failed)?,
        };
        Ok(try_flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(failed)?.then_some(fd))
    }

    /// Takes the lock of [`Self::lock`] on a read-only file system. There the file can only be opened for reading,
    /// which allows only a shared lock. So a second check looks for a lock of another process, and if there is one,
    /// returns `None`. Of two processes that take their locks at once, at least one finds the lock of the other.
    fn lock_read_only(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        let failed = |errno: Errno| HostError::io("lock", path.as_str())(errno.into());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match open_at(self.fd.as_fd(), &path.as_str()[1..], flags, CONFINED_FLAGS) {
            // The file is missing and cannot be created.
            Err(Errno::NOENT) => Err(failed(Errno::ROFS)),
            opened => opened.map_err(failed),
        }?;
        let is_alone = try_flock(&fd, FlockOperation::NonBlockingLockShared).map_err(failed)?
            && fcntl_getlk(&fd, &FlockType::WriteLock.into()).map_err(failed)?.is_none();
        Ok(is_alone.then_some(fd))
    }

    /// Returns whether another process has the lock of [`Self::lock`]. The check does not take the lock itself, because
    /// another process that wants the lock at that moment would not get it.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    pub fn is_locked(&self, path: &HostPath) -> Result<bool, HostError> {
        let failed = |errno: Errno| HostError::io("look at the lock", path.as_str())(errno.into());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match open_at(self.fd.as_fd(), &path.as_str()[1..], flags, CONFINED_FLAGS) {
            Ok(fd) => Ok(fcntl_getlk(fd, &FlockType::WriteLock.into()).map_err(failed)?.is_some()),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }
}

impl Host for RealHost {
    fn root(&self) -> Result<Box<dyn Dir>, HostError> {
        let fd = open_dir(self.fd.as_fd(), ".").map_err(|errno| HostError::io("open", "/")(errno.into()))?;
        Ok(Box::new(RealDir { fd, path: String::new() }))
    }

    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        match open_dir(self.fd.as_fd(), &path.as_str()[1..]) {
            Ok(fd) => Ok(Some(Box::new(RealDir { fd, path: path.to_string() }))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.path_error(path, errno)),
        }
    }

    fn run<'a>(&'a self, command: &'a HostCommand) -> Pending<'a, Result<CommandResult, HostError>> {
        Box::pin(spawn::run(&self.root, self.fd.as_fd(), command))
    }

    fn lock_file(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        self.lock(path)
    }

    fn is_file_locked(&self, path: &HostPath) -> Result<bool, HostError> {
        self.is_locked(path)
    }

    fn system_path(&self, path: &HostPath) -> PathBuf {
        self.root.join(&path.as_str()[1..])
    }

    fn system_root(&self) -> PathBuf {
        self.root.clone()
    }

    fn user_id(&self, name: &str) -> Result<u32, HostError> {
        accounts::find_number("user", Path::new("/etc/passwd"), name)
    }

    fn group_id(&self, name: &str) -> Result<u32, HostError> {
        accounts::find_number("group", Path::new("/etc/group"), name)
    }

    fn user_and_group(&self) -> (u32, u32) {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }

    fn session_id(&self) -> u32 {
        self.session
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes).expect("the kernel gives random bytes once it has booted");
        u64::from_ne_bytes(bytes)
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn uptime(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

impl RealHost {
    /// Returns the error for a directory that could not be opened. Walks its path name by name to find the link or the
    /// file that is in the way.
    fn path_error(&self, path: &HostPath, errno: Errno) -> HostError {
        let mut walked = String::new();
        for name in path.names() {
            walked = format!("{walked}/{name}");
            let Ok(stat) = rustix::fs::statat(&self.fd, &walked[1..], AtFlags::SYMLINK_NOFOLLOW) else { break };
            match file_kind(stat.st_mode) {
                FileKind::Directory => {}
                FileKind::Link => {
                    let target = rustix::fs::readlinkat(&self.fd, &walked[1..], Vec::new()).ok();
                    return link_error(path.as_str(), walked, target);
                }
                found => {
                    return HostError::WrongKind { path: walked, wanted: FileKind::Directory.as_str(), found: found.as_str() };
                }
            }
        }
        HostError::io("open", path.as_str())(errno.into())
    }
}

impl RealDir {
    fn child_path(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Maps the error of a system call to one that names the operation and the entry.
    fn check_errno<T>(&self, operation: &'static str, name: &str, result: Result<T, Errno>) -> Result<T, HostError> {
        result.map_err(|errno| HostError::io(operation, self.child_path(name))(errno.into()))
    }

    /// Maps the error of a system call that changes an entry. If something prevents the change even for root, the error
    /// names the obstacle and a remedy. [`Dir::check_replaceable`] before the change does not find every obstacle:
    /// older kernels do not show mount points, and directories that are created on the path are not checked.
    fn check_change<T>(&self, operation: &'static str, name: &str, result: Result<T, Errno>) -> Result<T, HostError> {
        match result.as_ref().err().copied() {
            Some(Errno::BUSY) => return Err(self.blocker_error(name, ReplaceBlocker::Mounted, true)),
            Some(Errno::XDEV) => return Err(self.blocker_error(name, ReplaceBlocker::OtherFileSystem, true)),
            Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => self.check_replaceable(name)?,
            Some(_) | None => {}
        }
        self.check_errno(operation, name, result)
    }

    /// Returns the error that an entry cannot be replaced, with the path of the obstacle.
    fn blocker_error(&self, name: &str, by: ReplaceBlocker, is_there: bool) -> HostError {
        let at = match by {
            ReplaceBlocker::ReadOnly => self.mount_point(),
            _ if by.is_about_directory() => self.display_path(),
            _ => self.child_path(name),
        };
        HostError::NotReplaceable { path: self.child_path(name), at, by, is_there }
    }

    fn link_error(&self, name: &str) -> HostError {
        let target = rustix::fs::readlinkat(&self.fd, c_name(name), Vec::new()).ok();
        link_error(&self.child_path(name), self.child_path(name), target)
    }

    /// Returns the path of this directory, for a message.
    fn display_path(&self) -> String {
        if self.path.is_empty() { "/".to_owned() } else { self.path.clone() }
    }

    /// Returns the mount point of this directory's file system, or the directory itself if the kernel does not tell.
    fn mount_point(&self) -> String {
        let (mut at, mut up) = (self.path.as_str(), ".".to_owned());
        loop {
            let found = rustix::fs::statx(&self.fd, up.as_str(), AtFlags::empty(), StatxFlags::empty());
            let Ok(found) = found else { return self.display_path() };
            if !found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
                return self.display_path();
            }
            if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !at.is_empty() {
                return at.to_owned();
            }
            // The root counts even if it is not a mount point itself.
            let Some((above, _)) = at.rsplit_once('/') else { return "/".to_owned() };
            at = above;
            up.push_str("/..");
        }
    }

    /// Returns whether a file is an active swap file. Compares device and inode, because the kernel's list may name the
    /// file by another path. A file that cannot be examined counts as no swap file.
    fn is_swap(&self, name: &str) -> bool {
        let Ok(found) = rustix::fs::statat(&self.fd, c_name(name), AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let swaps = std::fs::read(PROC_SWAPS).unwrap_or_default();
        file_kind(found.st_mode) == FileKind::File
            && swap_files(&String::from_utf8_lossy(&swaps))
                .any(|path| rustix::fs::stat(path).is_ok_and(|swap| (swap.st_dev, swap.st_ino) == (found.st_dev, found.st_ino)))
    }

    /// Opens a regular file with one link, without following a symbolic link or waiting for the other end of a FIFO.
    fn open_file(&self, name: &str) -> Result<Option<OwnedFd>, HostError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = match rustix::fs::openat2(&self.fd, c_name(name), flags, Mode::empty(), CONFINED_FLAGS) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(self.link_error(name)),
            Err(Errno::NXIO | Errno::NODEV) => return Err(self.not_a_file(name, FileKind::Special)),
            Err(errno) => return self.check_errno("open", name, Err(errno)),
        };
        let stat = self.check_errno("look at", name, rustix::fs::fstat(&fd))?;
        match file_kind(stat.st_mode) {
            FileKind::File if stat.st_nlink > 1 => Err(HostError::HardLinks { path: self.child_path(name), links: links(&stat) }),
            FileKind::File => Ok(Some(fd)),
            found => Err(self.not_a_file(name, found)),
        }
    }

    /// Sets the mode of a directory that was just created. A user who can write the parent directory may have put
    /// another directory in its place, so that the agent opens that one to others. So a directory that does not belong
    /// to the agent, or is not empty, keeps its mode. An inherited setgid bit stays, because it gives new entries their
    /// group.
    fn set_new_dir_mode(&self, name: &str, dir: &OwnedFd, mode: Mode) -> Result<(), HostError> {
        let stat = self.check_errno("look at", name, rustix::fs::fstat(dir))?;
        let mode = mode | Mode::from_raw_mode(stat.st_mode) & Mode::SGID;
        if Mode::from_raw_mode(stat.st_mode) == mode {
            return Ok(());
        }
        let mut entries = self.check_errno("list", name, rustix::fs::Dir::read_from(dir))?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        let is_empty = entries.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")));
        let result = if is_own && is_empty { rustix::fs::fchmod(dir, mode) } else { Err(Errno::EXIST) };
        self.check_errno("set the mode of", name, result)
    }

    fn not_a_file(&self, name: &str, found: FileKind) -> HostError {
        HostError::WrongKind { path: self.child_path(name), wanted: FileKind::File.as_str(), found: found.as_str() }
    }
}

impl Dir for RealDir {
    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError> {
        match rustix::fs::statat(&self.fd, c_name(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(to_stat(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => self.check_errno("look at", name, Err(errno)),
        }
    }

    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError> {
        match rustix::fs::statat(&self.fd, c_name(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(to_version(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => self.check_errno("look at", name, Err(errno)),
        }
    }

    fn read_chunks(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError> {
        let Some(fd) = self.open_file(name)? else { return Ok(false) };
        let (mut piece, mut taken) = ([0; CHUNK_BYTES], 0);
        loop {
            match rustix::io::read(&fd, &mut piece[..]) {
                Ok(0) => return Ok(true),
                Ok(length) => {
                    taken += length as u64;
                    if taken > limit {
                        return Err(HostError::TooLarge { path: self.child_path(name), limit });
                    }
                    sink(&piece[..length])?;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return self.check_errno("read", name, Err(errno)),
            }
        }
    }

    fn details(&self, name: &str) -> Result<Option<FileDetails>, HostError> {
        let Some(fd) = self.open_file(name)? else { return Ok(None) };
        let stat = to_stat(&self.check_errno("look at", name, rustix::fs::fstat(&fd))?);
        let extras = || {
            let attributes = self.check_errno("read the attributes of", name, read_attributes(&fd))?;
            let attributes =
                attributes.ok_or_else(|| HostError::ManyExtras { path: self.child_path(name), limit: MAX_ATTRIBUTES_BYTES })?;
            let flags = self.check_errno("read the flags of", name, read_flags(&fd))?.map(|flags| flags & REPORTED_FLAGS);
            Ok(Extras { attributes, flags })
        };
        Ok(Some(FileDetails { stat, extras: extras() }))
    }

    fn check_replaceable(&self, name: &str) -> Result<(), HostError> {
        let attributes = |at: &CStr, of: AtFlags| match rustix::fs::statx(&self.fd, at, of, StatxFlags::empty()) {
            Ok(found) => Ok(Some(found.stx_attributes)),
            // There is no such file yet, or the kernel cannot tell. In both cases no obstacle is known.
            Err(Errno::NOENT | Errno::NOSYS) => Ok(None),
            Err(errno) => self.check_errno("look at", name, Err(errno)),
        };
        let file = attributes(&c_name(name), AtFlags::SYMLINK_NOFOLLOW)?;
        let dir = attributes(c"", AtFlags::EMPTY_PATH)?.unwrap_or(StatxAttributes::empty());
        let (of_file, is_there) = (file.unwrap_or(StatxAttributes::empty()), file.is_some());
        let by = [
            (of_file, StatxAttributes::MOUNT_ROOT, ReplaceBlocker::Mounted),
            (of_file, StatxAttributes::IMMUTABLE, ReplaceBlocker::Immutable),
            (of_file, StatxAttributes::APPEND, ReplaceBlocker::AppendOnly),
            (dir, StatxAttributes::IMMUTABLE, ReplaceBlocker::ImmutableDirectory),
            (dir, StatxAttributes::APPEND, ReplaceBlocker::AppendOnlyDirectory),
        ];
        let mount = self.check_errno("look at", name, rustix::fs::fstatvfs(&self.fd))?;
        // A read-only file system is reported before the flags, because no flag can be removed there.
        if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(self.blocker_error(name, ReplaceBlocker::ReadOnly, is_there));
        }
        match by.into_iter().find(|(present, flag, _)| present.contains(*flag)) {
            Some((_, _, by)) => Err(self.blocker_error(name, by, is_there)),
            None if is_there && self.is_swap(name) => Err(self.blocker_error(name, ReplaceBlocker::Swap, true)),
            None => Ok(()),
        }
    }

    fn is_full(&self, bytes: u64) -> Result<bool, HostError> {
        let stat = self.check_errno("look at", "", rustix::fs::fstatvfs(&self.fd))?;
        // Only root may use the space that is reserved for root. A file system that reports 0 blocks or inodes in total
        // does not count them, so it is not full.
        let free = if rustix::process::geteuid().is_root() { stat.f_bfree } else { stat.f_bavail };
        let has_no_bytes = stat.f_blocks > 0 && free.saturating_mul(stat.f_frsize) < bytes;
        Ok(has_no_bytes || (stat.f_files > 0 && stat.f_ffree == 0))
    }

    fn default_acl(&self) -> Result<Option<Vec<u8>>, HostError> {
        let mut list = vec![0; MAX_ATTRIBUTE_BYTES];
        match rustix::fs::fgetxattr(&self.fd, DEFAULT_ACL, &mut list[..]) {
            Ok(length) => {
                list.truncate(length);
                Ok(Some(list))
            }
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
            Err(errno) => self.check_errno("read the default list of", "", Err(errno)),
        }
    }

    fn names(&self) -> Result<Vec<String>, HostError> {
        let entries = self.check_errno("list", "", rustix::fs::Dir::read_from(&self.fd))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = self.check_errno("list", "", entry)?;
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn unreadable_names(&self) -> Result<Vec<(String, Stat)>, HostError> {
        let entries = self.check_errno("list", "", rustix::fs::Dir::read_from(&self.fd))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = self.check_errno("list", "", entry)?;
            let name = entry.file_name();
            if name.to_str().is_ok() {
                continue;
            }
            let shown = name.to_string_lossy().into_owned();
            match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => names.push((shown, to_stat(&found))),
                Err(Errno::NOENT) => {}
                Err(errno) => return self.check_errno("look at", &shown, Err(errno)),
            }
        }
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(names)
    }

    fn dir(&self, name: &str) -> Result<Option<Box<dyn Dir>>, HostError> {
        let path = self.child_path(name);
        match open_dir(self.fd.as_fd(), name) {
            Ok(fd) => Ok(Some(Box::new(RealDir { fd, path }))),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(self.link_error(name)),
            Err(Errno::NOTDIR) => match self.stat(name)?.map(|stat| stat.kind) {
                Some(FileKind::Link) => Err(self.link_error(name)),
                found => Err(HostError::WrongKind {
                    path,
                    wanted: FileKind::Directory.as_str(),
                    found: found.unwrap_or(FileKind::Special).as_str(),
                }),
            },
            Err(errno) => self.check_errno("open", name, Err(errno)),
        }
    }

    fn create(&self, name: &str) -> Result<Box<dyn NewFile>, HostError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = self.check_change("make", name, rustix::fs::openat2(&self.fd, c_name(name), flags, mode, CONFINED_FLAGS))?;
        Ok(Box::new(RealFile { fd, path: self.child_path(name) }))
    }

    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError> {
        let mode = Mode::from_raw_mode(mode);
        // The directory is created with its mode, because it would otherwise keep a wrong mode if the agent is killed
        // here. The umask may have removed bits, which the second call restores.
        self.check_change("make", name, rustix::fs::mkdirat(&self.fd, c_name(name), mode))?;
        let fd = self.check_errno("open", name, open_dir(self.fd.as_fd(), name))?;
        self.set_new_dir_mode(name, &fd, mode)
    }

    fn set_mode(&self, mode: u32) -> Result<(), HostError> {
        self.check_errno("set the mode of", "", rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), HostError> {
        self.check_change("replace", to, rustix::fs::renameat(&self.fd, c_name(from), &self.fd, c_name(to)))
    }

    fn remove(&self, name: &str) -> Result<(), HostError> {
        self.check_change("remove", name, rustix::fs::unlinkat(&self.fd, c_name(name), AtFlags::empty()))
    }

    fn sync(&self) -> Result<(), HostError> {
        self.check_errno("sync", "", rustix::fs::fsync(&self.fd))
    }
}

impl RealFile {
    /// Sets the flags in `mask` as they are in `extras`, and leaves all other flags unchanged.
    fn set_flags(&self, extras: &Extras, mask: IFlags) -> Result<(), HostError> {
        let Some(wanted) = extras.flags.map(|flags| flags & mask) else { return Ok(()) };
        match check_preserved("the flags", read_flags(&self.fd))? {
            None if wanted.is_empty() => Ok(()),
            None => check_preserved("the flags", Err(Errno::NOTSUP)),
            Some(present) if present & mask == wanted => Ok(()),
            Some(present) => {
                check_preserved("the flags", rustix::fs::ioctl_setflags(&self.fd, present.difference(mask) | wanted))
            }
        }
    }

    fn check_errno<T>(&self, operation: &'static str, result: Result<T, Errno>) -> Result<T, HostError> {
        result.map_err(|errno| HostError::io(operation, self.path.as_str())(errno.into()))
    }
}

impl NewFile for RealFile {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), HostError> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.fd, bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return self.check_errno("write", Err(errno)),
            }
        }
        Ok(())
    }

    fn set_owner(&mut self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError> {
        self.check_errno("give away", rustix::fs::fchown(&self.fd, user.map(Uid::from_raw), group.map(Gid::from_raw)))
    }

    fn set_mode(&mut self, mode: u32) -> Result<(), HostError> {
        // Some NFS servers drop an access control list when the mode is set, even to its present value.
        if self.check_errno("look at", rustix::fs::fstat(&self.fd))?.st_mode & 0o7777 == mode {
            return Ok(());
        }
        self.check_errno("set the mode of", rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode)))
    }

    fn set_initial_flags(&mut self, extras: &Extras) -> Result<(), HostError> {
        self.set_flags(extras, EMPTY_FILE_FLAGS)
    }

    fn set_extras(&mut self, extras: &Extras) -> Result<(), HostError> {
        let present = check_preserved("the attributes", read_attributes(&self.fd))?.unwrap_or_default();
        // The access control list is set last, because it may take from an agent that is not root the right to set the
        // other attributes.
        let (lists, others): (Vec<_>, Vec<_>) = extras.attributes.iter().partition(|(name, _)| name.as_c_str() == ACL);
        for (name, value) in others.into_iter().chain(lists) {
            if present.get(name) != Some(value) {
                let set = rustix::fs::fsetxattr(&self.fd, name.as_c_str(), value, XattrFlags::empty());
                check_preserved(&name.to_string_lossy().escape_debug().to_string(), set)?;
            }
        }
        if present.contains_key(ACL) && !extras.attributes.contains_key(ACL) {
            check_preserved("no access control list", rustix::fs::fremovexattr(&self.fd, ACL))?;
        }
        self.set_flags(extras, PRESERVED_FLAGS)
    }

    fn sync(&mut self) -> Result<(), HostError> {
        self.check_errno("sync", rustix::fs::fsync(&self.fd))
    }
}

/// Takes a lock for this process. Returns `false` if another process has a conflicting lock.
fn try_flock(fd: &OwnedFd, operation: FlockOperation) -> Result<bool, Errno> {
    match rustix::fs::fcntl_lock(fd, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the error for a symbolic link `at` on a path. It also names the path that results if the link is replaced by
/// its target.
fn link_error(path: &str, at: String, target: Option<CString>) -> HostError {
    let target = target.and_then(|target| target.into_string().ok()).filter(|target| !target.is_empty());
    let real = target.map(|target| {
        let above = at.rsplit_once('/').map_or("", |(above, _)| above);
        let from = if target.starts_with('/') { "" } else { above };
        let mut names = Vec::new();
        for name in [from, &target, path.strip_prefix(&at).unwrap_or_default()].iter().flat_map(|part| part.split('/')) {
            match name {
                "" | "." => {}
                ".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        format!("/{}", names.join("/"))
    });
    HostError::Link { path: path.to_owned(), at, real }
}

/// Maps the error of a system call that gives the new file an attribute or flag of the old file.
fn check_preserved<T>(what: &str, result: Result<T, Errno>) -> Result<T, HostError> {
    result.map_err(|errno| HostError::Extra { what: what.into(), source: errno.into() })
}

/// Returns the extended attributes of a file, or `None` if they exceed [`MAX_ATTRIBUTES_BYTES`]. On a file system
/// without extended attributes, returns an empty map.
fn read_attributes(fd: &OwnedFd) -> Result<Option<BTreeMap<CString, Vec<u8>>>, Errno> {
    let mut names = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        listed => listed?,
    };
    let (mut value, mut total) = (vec![0; MAX_ATTRIBUTE_BYTES], length);
    let mut attributes = BTreeMap::new();
    for name in names[..length].split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        match rustix::fs::fgetxattr(fd, name, &mut value[..]) {
            // The attribute was removed after the names were listed.
            Err(Errno::NODATA) => continue,
            // This is the access control list again, under another name.
            Ok(_) if name.to_bytes().starts_with(ACL_ALIAS) => continue,
            length => {
                let length = length?;
                total += length;
                attributes.insert(name.to_owned(), value[..length].to_vec());
            }
        }
        if total > MAX_ATTRIBUTES_BYTES {
            return Ok(None);
        }
    }
    Ok(Some(attributes))
}

/// Returns the flags of an inode, or `None` if its file system has no flags.
fn read_flags(fd: &OwnedFd) -> Result<Option<IFlags>, Errno> {
    match rustix::fs::ioctl_getflags(fd) {
        Err(Errno::NOTTY | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => Ok(None),
        flags => flags.map(Some),
    }
}

/// Returns the files in the kernel's list of swap areas. The list has a heading, then a line per area with path, type
/// and more. In a path, blanks and backslashes are octal escapes.
fn swap_files(swaps: &str) -> impl Iterator<Item = CString> {
    let fields = swaps.lines().skip(1).map(|line| line.split_ascii_whitespace());
    let files = fields.filter_map(|mut fields| fields.next().filter(|_| fields.next() == Some("file")));
    files.filter_map(|path| CString::new(unescape(path)).ok())
}

/// Decodes a path in which the kernel wrote bytes as a backslash and three octal digits.
fn unescape(path: &str) -> Vec<u8> {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let octal = part.split_at_checked(3);
        if let Some((byte, rest)) = octal.and_then(|(digits, rest)| Some((u8::from_str_radix(digits, 8).ok()?, rest))) {
            bytes.push(byte);
            bytes.extend_from_slice(rest.as_bytes());
        } else {
            bytes.push(b'\\');
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    bytes
}

/// Opens a directory so that it can be listed and synced, and so that its entries can be opened and changed.
fn open_dir(at: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    open_at(at, path, flags, CONFINED_FLAGS)
}

/// Opens an existing file or directory. `within` restricts how its path is resolved.
fn open_at(at: BorrowedFd<'_>, path: &str, flags: OFlags, within: ResolveFlags) -> Result<OwnedFd, Errno> {
    loop {
        match rustix::fs::openat2(at, path, flags, Mode::empty(), within) {
            // The kernel could not exclude that a concurrent rename escapes the root, and requests a retry.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Returns a name as a C string for the kernel. A slash is replaced, so that a name can never become a path. Names from
/// a [`HostPath`] have none.
fn c_name(name: &str) -> CString {
    CString::new(name.replace('/', "\u{fffd}")).expect("names hold no NUL: HostPath and Dir::names see to it")
}

fn to_stat(found: &rustix::fs::Stat) -> Stat {
    Stat {
        kind: file_kind(found.st_mode),
        mode: found.st_mode & 0o7777,
        user: found.st_uid,
        group: found.st_gid,
        size: u64::try_from(found.st_size).unwrap_or(0),
        links: links(found),
    }
}

#[allow(clippy::unnecessary_cast, clippy::cast_possible_wrap, reason = "their widths differ between architectures")]
fn to_version(found: &rustix::fs::Stat) -> FileVersion {
    FileVersion {
        stat: to_stat(found),
        file: (found.st_dev as u64, found.st_ino as u64),
        changed: (found.st_ctime as i64, found.st_ctime_nsec as i64),
    }
}

#[allow(clippy::unnecessary_cast, reason = "its width differs between architectures")]
fn links(stat: &rustix::fs::Stat) -> u64 {
    stat.st_nlink as u64
}

fn file_kind(mode: u32) -> FileKind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => FileKind::File,
        rustix::fs::FileType::Directory => FileKind::Directory,
        rustix::fs::FileType::Symlink => FileKind::Link,
        _ => FileKind::Special,
    }
}

#[cfg(test)]
mod tests;
