//! The machine itself, by rustix: every path is opened with `openat2`, below the root and through no link.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{
    AtFlags, FlockOperation, Gid, IFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes, StatxFlags,
    Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::process::{FlockType, fcntl_getlk};

use super::extras::{ACL, ACL_AGAIN, DEFAULT_ACL, FLAGS_OF_EMPTY, KEPT_FLAGS, TOLD_FLAGS};
use super::{
    Command, Dir, Extras, FileVersion, Finished, Fixed, Host, HostError, HostPath, Kind, Look, NewFile, Pending, Stat,
};

mod accounts;
mod spawn;
pub mod surroundings;
mod unrun;

/// No link followed, nothing above the root reached, no magic link of `/proc` either.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// How much of a file is read at once.
const PIECE: usize = 16 * 1024;

/// The most that the kernel gives at once of extended attributes: their names, or the value of one.
const MOST_OF_ATTRIBUTE: usize = 64 * 1024;

/// The most bytes of extended attributes that are kept of a file.
const MOST_OF_ATTRIBUTES: usize = 1024 * 1024;

/// What the kernel swaps to.
const SWAPS: &str = "/proc/swaps";

/// The machine that this process runs on, seen from a directory on.
pub struct RealHost {
    root: PathBuf,
    fd: OwnedFd,
    random: SystemRandom,
    session: u32,
}

struct RealDir {
    fd: OwnedFd,
    path: String,
}

struct RealFile {
    fd: OwnedFd,
    path: String,
}

impl RealHost {
    /// The machine from `root` on; `/` unless `--root` says otherwise. Links in `root` itself are followed, once.
    ///
    /// # Errors
    /// When `root` is no directory that can be opened.
    pub fn new(root: &Path) -> Result<Self, HostError> {
        let shown = || root.display().to_string();
        let root = root.canonicalize().map_err(HostError::io("open", shown()))?;
        let fd = rustix::fs::open(&root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| HostError::io("open", shown())(errno.into()))?;
        let mut host = Self { root, fd, random: SystemRandom::new(), session: 0 };
        host.session = u32::try_from(host.random() >> 32).expect("the upper half of 64 bits");
        Ok(host)
    }

    /// Takes a lock that lasts until what is returned is dropped, or this process ends; `None` when another process has it.
    ///
    /// It is the process's own (`fcntl`), not the file's (`flock`): a child that was just forked when its parent was
    /// killed would otherwise hold it until it has become another program.
    ///
    /// # Errors
    /// When the lock's file cannot be made, or, where nothing can be written, is not there.
    pub fn lock(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        let failed = |errno: Errno| HostError::io("lock", path.as_str())(errno.into());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let (name, mode) = (&path.as_str()[1..], Mode::RUSR | Mode::WUSR);
        let fd = match rustix::fs::openat2(&self.fd, name, flags, mode, CONFINED) {
            Err(Errno::ROFS) => return self.lock_unwritten(path),
            opened => opened.map_err(failed)?,
        };
        Ok(is_taken(&fd, FlockOperation::NonBlockingLockExclusive).map_err(failed)?.then_some(fd))
    }

    /// The same lock where its file can only be opened to read. Such a file takes only a shared lock, so it is checked afterwards whether another
    /// process has one too: of two that take theirs at once, at least one finds the other's. Where another process has an exclusive one, there is
    /// none to be had.
    fn lock_unwritten(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        let failed = |errno: Errno| HostError::io("lock", path.as_str())(errno.into());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match open_at(self.fd.as_fd(), &path.as_str()[1..], flags, CONFINED) {
            // It is what cannot be made.
            Err(Errno::NOENT) => Err(failed(Errno::ROFS)),
            opened => opened.map_err(failed),
        }?;
        let is_alone = is_taken(&fd, FlockOperation::NonBlockingLockShared).map_err(failed)?
            && fcntl_getlk(&fd, &FlockType::WriteLock.into()).map_err(failed)?.is_none();
        Ok(is_alone.then_some(fd))
    }

    /// Whether another process has that lock. It is not taken to find out: whoever would have it meanwhile would find it held.
    ///
    /// # Errors
    /// When the lock's file cannot be opened.
    pub fn is_locked(&self, path: &HostPath) -> Result<bool, HostError> {
        let failed = |errno: Errno| HostError::io("look at the lock", path.as_str())(errno.into());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match open_at(self.fd.as_fd(), &path.as_str()[1..], flags, CONFINED) {
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
            Err(errno) => Err(self.in_the_way(path, errno)),
        }
    }

    fn run<'a>(&'a self, command: &'a Command) -> Pending<'a, Result<Finished, HostError>> {
        Box::pin(spawn::run(&self.root, self.fd.as_fd(), command))
    }

    fn hold(&self, path: &HostPath) -> Result<Option<OwnedFd>, HostError> {
        self.lock(path)
    }

    fn is_held(&self, path: &HostPath) -> Result<bool, HostError> {
        self.is_locked(path)
    }

    fn outside(&self, path: &HostPath) -> PathBuf {
        self.root.join(&path.as_str()[1..])
    }

    fn outside_root(&self) -> PathBuf {
        self.root.clone()
    }

    fn user(&self, name: &str) -> Result<u32, HostError> {
        accounts::number("user", Path::new("/etc/passwd"), name)
    }

    fn group(&self, name: &str) -> Result<u32, HostError> {
        accounts::number("group", Path::new("/etc/group"), name)
    }

    fn identity(&self) -> (u32, u32) {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }

    fn session(&self) -> u32 {
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
    /// Finds out, name by name, what kept a directory from being opened.
    fn in_the_way(&self, path: &HostPath, errno: Errno) -> HostError {
        let mut walked = String::new();
        for name in path.names() {
            walked = format!("{walked}/{name}");
            let Ok(stat) = rustix::fs::statat(&self.fd, &walked[1..], AtFlags::SYMLINK_NOFOLLOW) else { break };
            match kind(stat.st_mode) {
                Kind::Directory => {}
                Kind::Link => {
                    let target = rustix::fs::readlinkat(&self.fd, &walked[1..], Vec::new()).ok();
                    return link(path.as_str(), walked, target);
                }
                found => return HostError::Kind { path: walked, wanted: Kind::Directory.word(), found: found.word() },
            }
        }
        HostError::io("open", path.as_str())(errno.into())
    }
}

impl RealDir {
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    fn tried<T>(&self, operation: &'static str, name: &str, result: Result<T, Errno>) -> Result<T, HostError> {
        result.map_err(|errno| HostError::io(operation, self.at(name))(errno.into()))
    }

    /// The same, of a change: what stops it for root too is named, with what to do. Not all of it can be seen before: of older kernels a
    /// mount point cannot, and what is made on the way to a file is not looked at.
    fn changed<T>(&self, operation: &'static str, name: &str, result: Result<T, Errno>) -> Result<T, HostError> {
        match result.as_ref().err().copied() {
            Some(Errno::BUSY) => return Err(self.fixed(name, Fixed::Mounted, true)),
            Some(Errno::XDEV) => return Err(self.fixed(name, Fixed::OtherFileSystem, true)),
            Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => self.check_replaceable(name)?,
            Some(_) | None => {}
        }
        self.tried(operation, name, result)
    }

    fn fixed(&self, name: &str, by: Fixed, is_there: bool) -> HostError {
        let at = match by {
            Fixed::ReadOnly => self.mount_point(),
            _ if by.is_of_directory() => self.shown(),
            _ => self.at(name),
        };
        HostError::Fixed { path: self.at(name), at, by, is_there }
    }

    fn link(&self, name: &str) -> HostError {
        let target = rustix::fs::readlinkat(&self.fd, plain(name), Vec::new()).ok();
        link(&self.at(name), self.at(name), target)
    }

    /// This directory, for a sentence.
    fn shown(&self) -> String {
        if self.path.is_empty() { "/".to_owned() } else { self.path.clone() }
    }

    /// Where that is mounted on which this directory lies; the directory itself, where the kernel does not say.
    fn mount_point(&self) -> String {
        let (mut at, mut up) = (self.path.as_str(), ".".to_owned());
        loop {
            let found = rustix::fs::statx(&self.fd, up.as_str(), AtFlags::empty(), StatxFlags::empty());
            let Ok(found) = found else { return self.shown() };
            if !found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
                return self.shown();
            }
            if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !at.is_empty() {
                return at.to_owned();
            }
            // The root, also where that is no mount point itself.
            let Some((above, _)) = at.rsplit_once('/') else { return "/".to_owned() };
            at = above;
            up.push_str("/..");
        }
    }

    /// Whether the kernel swaps to a file: it is the same as one of its list, whatever its path is there. What cannot be looked at is none.
    fn is_swap(&self, name: &str) -> bool {
        let Ok(found) = rustix::fs::statat(&self.fd, plain(name), AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let swaps = std::fs::read(SWAPS).unwrap_or_default();
        kind(found.st_mode) == Kind::File
            && swap_files(&String::from_utf8_lossy(&swaps)).any(|path| {
                rustix::fs::stat(path).is_ok_and(|swap| (swap.st_dev, swap.st_ino) == (found.st_dev, found.st_ino))
            })
    }

    /// A regular file with one name, opened without following a link and without waiting for a FIFO's other end.
    fn open_file(&self, name: &str) -> Result<Option<OwnedFd>, HostError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = match rustix::fs::openat2(&self.fd, plain(name), flags, Mode::empty(), CONFINED) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(self.link(name)),
            Err(Errno::NXIO | Errno::NODEV) => return Err(self.no_file(name, Kind::Special)),
            Err(errno) => return self.tried("open", name, Err(errno)),
        };
        let stat = self.tried("look at", name, rustix::fs::fstat(&fd))?;
        match kind(stat.st_mode) {
            Kind::File if stat.st_nlink > 1 => Err(HostError::Links { path: self.at(name), links: links(&stat) }),
            Kind::File => Ok(Some(fd)),
            found => Err(self.no_file(name, found)),
        }
    }

    /// Gives a directory that was just made its mode. Whoever may write this one may have put another one under the name meanwhile, to have
    /// it opened: one that is not the agent's, or not empty, keeps its mode. Setgid, which it has of the directory above, stays: what is made in
    /// it has its group by that.
    fn give_mode(&self, name: &str, made: &OwnedFd, mode: Mode) -> Result<(), HostError> {
        let found = self.tried("look at", name, rustix::fs::fstat(made))?;
        let mode = mode | Mode::from_raw_mode(found.st_mode) & Mode::SGID;
        if Mode::from_raw_mode(found.st_mode) == mode {
            return Ok(());
        }
        let mut entries = self.tried("list", name, rustix::fs::Dir::read_from(made))?;
        let is_own = found.st_uid == rustix::process::geteuid().as_raw();
        let is_empty =
            entries.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")));
        let given = if is_own && is_empty { rustix::fs::fchmod(made, mode) } else { Err(Errno::EXIST) };
        self.tried("set the mode of", name, given)
    }

    fn no_file(&self, name: &str, found: Kind) -> HostError {
        HostError::Kind { path: self.at(name), wanted: Kind::File.word(), found: found.word() }
    }
}

impl Dir for RealDir {
    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError> {
        match rustix::fs::statat(&self.fd, plain(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(stat(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => self.tried("look at", name, Err(errno)),
        }
    }

    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError> {
        match rustix::fs::statat(&self.fd, plain(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(version(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => self.tried("look at", name, Err(errno)),
        }
    }

    fn pieces(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError> {
        let Some(fd) = self.open_file(name)? else { return Ok(false) };
        let (mut piece, mut taken) = ([0; PIECE], 0);
        loop {
            match rustix::io::read(&fd, &mut piece[..]) {
                Ok(0) => return Ok(true),
                Ok(length) => {
                    taken += length as u64;
                    if taken > limit {
                        return Err(HostError::Large { path: self.at(name), limit });
                    }
                    sink(&piece[..length])?;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return self.tried("read", name, Err(errno)),
            }
        }
    }

    fn look(&self, name: &str) -> Result<Option<Look>, HostError> {
        let Some(fd) = self.open_file(name)? else { return Ok(None) };
        let stat = stat(&self.tried("look at", name, rustix::fs::fstat(&fd))?);
        let extras = || {
            let attributes = self.tried("read the attributes of", name, attributes(&fd))?;
            let attributes =
                attributes.ok_or_else(|| HostError::ManyExtras { path: self.at(name), limit: MOST_OF_ATTRIBUTES })?;
            let flags = self.tried("read the flags of", name, flags(&fd))?.map(|flags| flags & TOLD_FLAGS);
            Ok(Extras { attributes, flags })
        };
        Ok(Some(Look { stat, extras: extras() }))
    }

    fn check_replaceable(&self, name: &str) -> Result<(), HostError> {
        let has = |at: &CStr, of: AtFlags| match rustix::fs::statx(&self.fd, at, of, StatxFlags::empty()) {
            Ok(found) => Ok(Some(found.stx_attributes)),
            // It is made then; or it cannot be seen before.
            Err(Errno::NOENT | Errno::NOSYS) => Ok(None),
            Err(errno) => self.tried("look at", name, Err(errno)),
        };
        let file = has(&plain(name), AtFlags::SYMLINK_NOFOLLOW)?;
        let dir = has(c"", AtFlags::EMPTY_PATH)?.unwrap_or(StatxAttributes::empty());
        let (of_file, is_there) = (file.unwrap_or(StatxAttributes::empty()), file.is_some());
        let by = [
            (of_file, StatxAttributes::MOUNT_ROOT, Fixed::Mounted),
            (of_file, StatxAttributes::IMMUTABLE, Fixed::Immutable),
            (of_file, StatxAttributes::APPEND, Fixed::AppendOnly),
            (dir, StatxAttributes::IMMUTABLE, Fixed::ImmutableDirectory),
            (dir, StatxAttributes::APPEND, Fixed::AppendOnlyDirectory),
        ];
        let mount = self.tried("look at", name, rustix::fs::fstatvfs(&self.fd))?;
        // First: no flag is changed there either.
        if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(self.fixed(name, Fixed::ReadOnly, is_there));
        }
        match by.into_iter().find(|(of, flag, _)| of.contains(*flag)) {
            Some((_, _, by)) => Err(self.fixed(name, by, is_there)),
            None if is_there && self.is_swap(name) => Err(self.fixed(name, Fixed::Swap, true)),
            None => Ok(()),
        }
    }

    fn is_full(&self, bytes: u64) -> Result<bool, HostError> {
        let found = self.tried("look at", "", rustix::fs::fstatvfs(&self.fd))?;
        // What is kept back for root is free for root alone. One without a number of blocks or inodes does not count them.
        let free = if rustix::process::geteuid().is_root() { found.f_bfree } else { found.f_bavail };
        let has_no_bytes = found.f_blocks > 0 && free.saturating_mul(found.f_frsize) < bytes;
        Ok(has_no_bytes || (found.f_files > 0 && found.f_ffree == 0))
    }

    fn default_list(&self) -> Result<Option<Vec<u8>>, HostError> {
        let mut list = vec![0; MOST_OF_ATTRIBUTE];
        match rustix::fs::fgetxattr(&self.fd, DEFAULT_ACL, &mut list[..]) {
            Ok(length) => {
                list.truncate(length);
                Ok(Some(list))
            }
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
            Err(errno) => self.tried("read the default list of", "", Err(errno)),
        }
    }

    fn names(&self) -> Result<Vec<String>, HostError> {
        let entries = self.tried("list", "", rustix::fs::Dir::read_from(&self.fd))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = self.tried("list", "", entry)?;
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
        let entries = self.tried("list", "", rustix::fs::Dir::read_from(&self.fd))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = self.tried("list", "", entry)?;
            let name = entry.file_name();
            if name.to_str().is_ok() {
                continue;
            }
            let shown = name.to_string_lossy().into_owned();
            match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => names.push((shown, stat(&found))),
                Err(Errno::NOENT) => {}
                Err(errno) => return self.tried("look at", &shown, Err(errno)),
            }
        }
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(names)
    }

    fn dir(&self, name: &str) -> Result<Option<Box<dyn Dir>>, HostError> {
        let path = self.at(name);
        match open_dir(self.fd.as_fd(), name) {
            Ok(fd) => Ok(Some(Box::new(RealDir { fd, path }))),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(self.link(name)),
            Err(Errno::NOTDIR) => match self.stat(name)?.map(|stat| stat.kind) {
                Some(Kind::Link) => Err(self.link(name)),
                found => Err(HostError::Kind {
                    path,
                    wanted: Kind::Directory.word(),
                    found: found.unwrap_or(Kind::Special).word(),
                }),
            },
            Err(errno) => self.tried("open", name, Err(errno)),
        }
    }

    fn create(&self, name: &str) -> Result<Box<dyn NewFile>, HostError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = self.changed("make", name, rustix::fs::openat2(&self.fd, plain(name), flags, mode, CONFINED))?;
        Ok(Box::new(RealFile { fd, path: self.at(name) }))
    }

    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError> {
        let mode = Mode::from_raw_mode(mode);
        // With its mode from the first moment: one that is left closed when the agent is killed here would stay so. The umask
        // takes from it and never adds, and the second call gives that back.
        self.changed("make", name, rustix::fs::mkdirat(&self.fd, plain(name), mode))?;
        let fd = self.tried("open", name, open_dir(self.fd.as_fd(), name))?;
        self.give_mode(name, &fd, mode)
    }

    fn set_mode(&self, mode: u32) -> Result<(), HostError> {
        self.tried("set the mode of", "", rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), HostError> {
        self.changed("replace", to, rustix::fs::renameat(&self.fd, plain(from), &self.fd, plain(to)))
    }

    fn remove(&self, name: &str) -> Result<(), HostError> {
        self.changed("remove", name, rustix::fs::unlinkat(&self.fd, plain(name), AtFlags::empty()))
    }

    fn sync(&self) -> Result<(), HostError> {
        self.tried("sync", "", rustix::fs::fsync(&self.fd))
    }
}

impl RealFile {
    /// Sets its flags to those of others, as far as they are among some.
    fn set_flags(&self, extras: &Extras, among: IFlags) -> Result<(), HostError> {
        let Some(wanted) = extras.flags.map(|flags| flags & among) else { return Ok(()) };
        match kept("the flags", flags(&self.fd))? {
            None if wanted.is_empty() => Ok(()),
            None => kept("the flags", Err(Errno::NOTSUP)),
            Some(present) if present & among == wanted => Ok(()),
            Some(present) => {
                kept("the flags", rustix::fs::ioctl_setflags(&self.fd, present.difference(among) | wanted))
            }
        }
    }

    fn tried<T>(&self, operation: &'static str, result: Result<T, Errno>) -> Result<T, HostError> {
        result.map_err(|errno| HostError::io(operation, self.path.as_str())(errno.into()))
    }
}

impl NewFile for RealFile {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), HostError> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.fd, bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return self.tried("write", Err(errno)),
            }
        }
        Ok(())
    }

    fn set_owner(&mut self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError> {
        self.tried("give away", rustix::fs::fchown(&self.fd, user.map(Uid::from_raw), group.map(Gid::from_raw)))
    }

    fn set_mode(&mut self, mode: u32) -> Result<(), HostError> {
        // Some servers of NFS drop a list when the mode is set, also to what it is.
        if self.tried("look at", rustix::fs::fstat(&self.fd))?.st_mode & 0o7777 == mode {
            return Ok(());
        }
        self.tried("set the mode of", rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode)))
    }

    fn begin_extras(&mut self, extras: &Extras) -> Result<(), HostError> {
        self.set_flags(extras, FLAGS_OF_EMPTY)
    }

    fn set_extras(&mut self, extras: &Extras) -> Result<(), HostError> {
        let present = kept("the attributes", attributes(&self.fd))?.unwrap_or_default();
        // The list last: with it, a user who is not root may no longer write the others.
        let (lists, others): (Vec<_>, Vec<_>) = extras.attributes.iter().partition(|(name, _)| name.as_c_str() == ACL);
        for (name, value) in others.into_iter().chain(lists) {
            if present.get(name) != Some(value) {
                let set = rustix::fs::fsetxattr(&self.fd, name.as_c_str(), value, XattrFlags::empty());
                kept(&name.to_string_lossy().escape_debug().to_string(), set)?;
            }
        }
        if present.contains_key(ACL) && !extras.attributes.contains_key(ACL) {
            kept("no access control list", rustix::fs::fremovexattr(&self.fd, ACL))?;
        }
        self.set_flags(extras, KEPT_FLAGS)
    }

    fn sync(&mut self) -> Result<(), HostError> {
        self.tried("sync", rustix::fs::fsync(&self.fd))
    }
}

/// Takes a lock of this process; `false` where that of another process excludes it.
fn is_taken(fd: &OwnedFd, operation: FlockOperation) -> Result<bool, Errno> {
    match rustix::fs::fcntl_lock(fd, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// A link in the way of a path, with the path that leads by what the link says.
fn link(path: &str, at: String, target: Option<CString>) -> HostError {
    let target = target.and_then(|target| target.into_string().ok()).filter(|target| !target.is_empty());
    let real = target.map(|target| {
        let above = at.rsplit_once('/').map_or("", |(above, _)| above);
        let from = if target.starts_with('/') { "" } else { above };
        let mut names = Vec::new();
        for name in [from, &target, path.strip_prefix(&at).unwrap_or_default()].iter().flat_map(|part| part.split('/'))
        {
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

/// What could not be given to a new file of what the old one has.
fn kept<T>(what: &str, result: Result<T, Errno>) -> Result<T, HostError> {
    result.map_err(|errno| HostError::Extra { what: what.into(), source: errno.into() })
}

/// The extended attributes of a file; `None` for more bytes than are kept. A file system without any has none.
fn attributes(fd: &OwnedFd) -> Result<Option<BTreeMap<CString, Vec<u8>>>, Errno> {
    let mut names = vec![0; MOST_OF_ATTRIBUTE];
    let length = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        listed => listed?,
    };
    let (mut value, mut total) = (vec![0; MOST_OF_ATTRIBUTE], length);
    let mut attributes = BTreeMap::new();
    for name in
        names[..length].split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok())
    {
        match rustix::fs::fgetxattr(fd, name, &mut value[..]) {
            // It is gone meanwhile.
            Err(Errno::NODATA) => continue,
            // A file system's second name for the list.
            Ok(_) if name.to_bytes().starts_with(ACL_AGAIN) => continue,
            length => {
                let length = length?;
                total += length;
                attributes.insert(name.to_owned(), value[..length].to_vec());
            }
        }
        if total > MOST_OF_ATTRIBUTES {
            return Ok(None);
        }
    }
    Ok(Some(attributes))
}

/// The flags of an inode; `None` on a file system that has none.
fn flags(fd: &OwnedFd) -> Result<Option<IFlags>, Errno> {
    match rustix::fs::ioctl_getflags(fd) {
        Err(Errno::NOTTY | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => Ok(None),
        flags => flags.map(Some),
    }
}

/// The files of the kernel's list of what it swaps to: a heading, then a line of each, with its path, its type and more. Of a path it writes
/// blanks and backslashes as octal numbers.
fn swap_files(swaps: &str) -> impl Iterator<Item = CString> {
    let fields = swaps.lines().skip(1).map(|line| line.split_ascii_whitespace());
    let files = fields.filter_map(|mut fields| fields.next().filter(|_| fields.next() == Some("file")));
    files.filter_map(|path| CString::new(unescaped(path)).ok())
}

/// A path as the kernel meant it where it wrote bytes as a backslash and three octal digits.
fn unescaped(path: &str) -> Vec<u8> {
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

/// Opens a directory to list it, sync it and work in it.
fn open_dir(at: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    open_at(at, path, flags, CONFINED)
}

/// Opens what is there, within these bounds.
fn open_at(at: BorrowedFd<'_>, path: &str, flags: OFlags, within: ResolveFlags) -> Result<OwnedFd, Errno> {
    loop {
        match rustix::fs::openat2(at, path, flags, Mode::empty(), within) {
            // The kernel could not rule out a rename that escapes: it asks to be asked again.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// A name for the kernel. One with a slash in it never gets here from [`HostPath`]; it would be refused by `openat2`.
fn plain(name: &str) -> CString {
    CString::new(name.replace('/', "\u{fffd}")).expect("names hold no NUL: HostPath and Dir::names see to it")
}

fn stat(found: &rustix::fs::Stat) -> Stat {
    Stat {
        kind: kind(found.st_mode),
        mode: found.st_mode & 0o7777,
        user: found.st_uid,
        group: found.st_gid,
        size: u64::try_from(found.st_size).unwrap_or(0),
        links: links(found),
    }
}

#[allow(clippy::unnecessary_cast, clippy::cast_possible_wrap, reason = "their widths differ between architectures")]
fn version(found: &rustix::fs::Stat) -> FileVersion {
    FileVersion {
        stat: stat(found),
        file: (found.st_dev as u64, found.st_ino as u64),
        changed: (found.st_ctime as i64, found.st_ctime_nsec as i64),
    }
}

#[allow(clippy::unnecessary_cast, reason = "its width differs between architectures")]
fn links(stat: &rustix::fs::Stat) -> u64 {
    stat.st_nlink as u64
}

fn kind(mode: u32) -> Kind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => Kind::File,
        rustix::fs::FileType::Directory => Kind::Directory,
        rustix::fs::FileType::Symlink => Kind::Link,
        _ => Kind::Special,
    }
}

#[cfg(test)]
mod tests;
