//! Directories and files of the real machine, each as an open handle.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, IFlags, Mode, OFlags, RenameFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::swaps::{PROC_SWAPS, swap_files};
use super::{CONFINED_FLAGS, open_dir};
use crate::host::extras::{ACL, ACL_ALIAS, DEFAULT_ACL, EMPTY_FILE_FLAGS, PRESERVED_FLAGS, REPORTED_FLAGS};
use crate::host::{Dir, Extras, FileDetails, FileKind, FileVersion, HostError, NewFile, ReplaceBlocker, Stat};

/// Maximum size of one read from a file, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;

/// Maximum size of the list of all extended attribute names of a file, and of the value of one attribute, in bytes.
/// Both are limits of the kernel.
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;

/// Maximum total size of the extended attributes (names and values) that a new file gets from the old one, in bytes.
const MAX_ATTRIBUTES_BYTES: usize = 1024 * 1024;

/// An open directory, with its path for messages.
pub(super) struct RealDir {
    pub(super) fd: OwnedFd,
    pub(super) path: String,
}

/// A new file that is open for writing, with its path for messages.
struct RealFile {
    fd: OwnedFd,
    path: String,
}

impl RealDir {
    /// Returns the path of an entry of this directory, for a message.
    fn child_path(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Converts the error of a system call to a [`HostError`] that names the operation and the entry.
    fn check_errno<T>(&self, operation: &'static str, name: &str, result: Result<T, Errno>) -> Result<T, HostError> {
        result.map_err(|errno| HostError::io(operation, self.child_path(name))(errno.into()))
    }

    /// Converts the error of a system call that changes an entry. If something prevents the change even for root, the
    /// error names the obstacle and a remedy. A call of [`Dir::check_replaceable`] before the change does not find
    /// every obstacle: older kernels do not report mount points, and a directory that the agent has just created on the
    /// path was not checked.
    fn check_change<T>(&self, operation: &'static str, name: &str, result: Result<T, Errno>) -> Result<T, HostError> {
        match result.as_ref().err().copied() {
            Some(Errno::BUSY) => return Err(self.blocker_error(name, ReplaceBlocker::Mounted, true)),
            Some(Errno::XDEV) => return Err(self.blocker_error(name, ReplaceBlocker::OtherFileSystem, true)),
            Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => self.check_replaceable(name)?,
            Some(_) | None => {}
        }
        self.check_errno(operation, name, result)
    }

    /// Returns the error that an entry cannot be replaced or created, with the path of the obstacle. `exists` is true
    /// if the entry exists.
    fn blocker_error(&self, name: &str, blocker: ReplaceBlocker, exists: bool) -> HostError {
        let obstacle_path = match blocker {
            ReplaceBlocker::ReadOnly => self.mount_point(),
            _ if blocker.is_about_directory() => self.display_path(),
            _ => self.child_path(name),
        };
        HostError::NotReplaceable { path: self.child_path(name), at: obstacle_path, by: blocker, is_there: exists }
    }

    /// Returns the error for an entry that is a symbolic link.
    fn link_error(&self, name: &str) -> HostError {
        let target = rustix::fs::readlinkat(&self.fd, c_name(name), Vec::new()).ok();
        link_error(&self.child_path(name), self.child_path(name), target)
    }

    /// Returns the path of this directory, for a message. The stored path of the root directory is empty, and `/` is
    /// returned for it.
    fn display_path(&self) -> String {
        if self.path.is_empty() { "/".to_owned() } else { self.path.clone() }
    }

    /// Returns the mount point of this directory's file system, for a message. Searches from this directory upwards,
    /// and not above the agent's root. Returns the path of this directory if the kernel does not report mount points.
    fn mount_point(&self) -> String {
        let (mut dir_path, mut relative_path) = (self.path.as_str(), ".".to_owned());
        loop {
            let metadata = rustix::fs::statx(&self.fd, relative_path.as_str(), AtFlags::empty(), StatxFlags::empty());
            let Ok(metadata) = metadata else { return self.display_path() };
            if !metadata.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
                return self.display_path();
            }
            if metadata.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !dir_path.is_empty() {
                return dir_path.to_owned();
            }
            // The search ends at the agent's root, even if that is not a mount point.
            let Some((parent_path, _)) = dir_path.rsplit_once('/') else { return "/".to_owned() };
            dir_path = parent_path;
            relative_path.push_str("/..");
        }
    }

    /// Returns whether a file is an active swap file. Compares device and inode, because the kernel's list may contain
    /// the file under another path. Returns `false` if the metadata of the file cannot be read.
    fn is_swap(&self, name: &str) -> bool {
        let Ok(stat) = rustix::fs::statat(&self.fd, c_name(name), AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let swaps = std::fs::read(PROC_SWAPS).unwrap_or_default();
        file_kind(stat.st_mode) == FileKind::File
            && swap_files(&String::from_utf8_lossy(&swaps))
                .any(|path| rustix::fs::stat(path).is_ok_and(|swap| (swap.st_dev, swap.st_ino) == (stat.st_dev, stat.st_ino)))
    }

    /// Opens a regular file for reading, or returns `None` if it does not exist. Fails for any other kind of file, and
    /// for a file with several hard links. Does not follow a symbolic link, and does not block on a FIFO.
    fn open_file(&self, name: &str) -> Result<Option<OwnedFd>, HostError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = match rustix::fs::openat2(&self.fd, c_name(name), flags, Mode::empty(), CONFINED_FLAGS) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(self.link_error(name)),
            // The entry is a socket, or a device without a driver.
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

    /// Sets the mode of a directory that was just created. A user who can write the parent directory may have replaced
    /// the new directory by another one, so that the agent would make that one accessible to others. So the function
    /// fails, and sets no mode, if the mode must change and the directory does not belong to the agent or is not empty.
    /// An inherited setgid bit is preserved, because it determines the group of new entries.
    pub(super) fn set_new_dir_mode(&self, name: &str, dir: &OwnedFd, target_mode: Mode) -> Result<(), HostError> {
        let stat = self.check_errno("look at", name, rustix::fs::fstat(dir))?;
        let target_mode = target_mode | Mode::from_raw_mode(stat.st_mode) & Mode::SGID;
        if Mode::from_raw_mode(stat.st_mode) == target_mode {
            return Ok(());
        }
        let mut entries = self.check_errno("list", name, rustix::fs::Dir::read_from(dir))?;
        let is_owned_by_agent = stat.st_uid == rustix::process::geteuid().as_raw();
        let is_empty = entries.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")));
        let result = if is_owned_by_agent && is_empty { rustix::fs::fchmod(dir, target_mode) } else { Err(Errno::EXIST) };
        self.check_errno("set the mode of", name, result)
    }

    /// Returns the error for an entry that should be a regular file and is of the kind `found`.
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

    /// Returns the metadata by which two versions of an entry are distinguished, or `None` if the entry does not exist.
    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError> {
        match rustix::fs::statat(&self.fd, c_name(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(to_version(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => self.check_errno("look at", name, Err(errno)),
        }
    }

    /// Reads a regular file of at most `limit` bytes, and calls `sink` with each chunk. Returns `false` if the file
    /// does not exist.
    fn read_chunks(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError> {
        let Some(fd) = self.open_file(name)? else { return Ok(false) };
        let (mut buffer, mut total_bytes) = ([0; CHUNK_BYTES], 0);
        loop {
            match rustix::io::read(&fd, &mut buffer[..]) {
                Ok(0) => return Ok(true),
                Ok(length) => {
                    total_bytes += length as u64;
                    if total_bytes > limit {
                        return Err(HostError::TooLarge { path: self.child_path(name), limit });
                    }
                    sink(&buffer[..length])?;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return self.check_errno("read", name, Err(errno)),
            }
        }
    }

    /// Returns the metadata, extended attributes and inode flags of a regular file, or `None` if the file does not
    /// exist. If only attributes or flags cannot be read, their error is part of the result.
    fn details(&self, name: &str) -> Result<Option<FileDetails>, HostError> {
        let Some(fd) = self.open_file(name)? else { return Ok(None) };
        let stat = to_stat(&self.check_errno("look at", name, rustix::fs::fstat(&fd))?);
        let read_extras = || {
            let attributes = self.check_errno("read the attributes of", name, read_attributes(&fd))?;
            let attributes =
                attributes.ok_or_else(|| HostError::ManyExtras { path: self.child_path(name), limit: MAX_ATTRIBUTES_BYTES })?;
            let flags = self.check_errno("read the flags of", name, read_flags(&fd))?.map(|flags| flags & REPORTED_FLAGS);
            Ok(Extras { attributes, flags })
        };
        Ok(Some(FileDetails { stat, extras: read_extras() }))
    }

    /// Checks that nothing prevents the replacement or creation of an entry even for root: a read-only file system, a
    /// mount over the entry, the flags "immutable" and "append-only", or an active swap file. Changes nothing.
    fn check_replaceable(&self, name: &str) -> Result<(), HostError> {
        let attributes = |path: &CStr, flags: AtFlags| match rustix::fs::statx(&self.fd, path, flags, StatxFlags::empty()) {
            Ok(metadata) => Ok(Some(metadata.stx_attributes)),
            // The file does not exist yet, or the kernel is too old for `statx`. In both cases no obstacle is known.
            Err(Errno::NOENT | Errno::NOSYS) => Ok(None),
            Err(errno) => self.check_errno("look at", name, Err(errno)),
        };
        let file_attributes = attributes(&c_name(name), AtFlags::SYMLINK_NOFOLLOW)?;
        let dir_attributes = attributes(c"", AtFlags::EMPTY_PATH)?.unwrap_or(StatxAttributes::empty());
        let (known_file_attributes, exists) = (file_attributes.unwrap_or(StatxAttributes::empty()), file_attributes.is_some());
        let obstacles = [
            (known_file_attributes, StatxAttributes::MOUNT_ROOT, ReplaceBlocker::Mounted),
            (known_file_attributes, StatxAttributes::IMMUTABLE, ReplaceBlocker::Immutable),
            (known_file_attributes, StatxAttributes::APPEND, ReplaceBlocker::AppendOnly),
            (dir_attributes, StatxAttributes::IMMUTABLE, ReplaceBlocker::ImmutableDirectory),
            (dir_attributes, StatxAttributes::APPEND, ReplaceBlocker::AppendOnlyDirectory),
        ];
        let mount = self.check_errno("look at", name, rustix::fs::fstatvfs(&self.fd))?;
        // A read-only file system is reported before the flags, because no flag can be removed there.
        if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(self.blocker_error(name, ReplaceBlocker::ReadOnly, exists));
        }
        match obstacles.into_iter().find(|(present, flag, _)| present.contains(*flag)) {
            Some((_, _, blocker)) => Err(self.blocker_error(name, blocker, exists)),
            None if exists && self.is_swap(name) => Err(self.blocker_error(name, ReplaceBlocker::Swap, true)),
            None => Ok(()),
        }
    }

    /// Returns whether the file system of this directory has too little space, or no inode, for a new file of this
    /// size.
    fn is_full(&self, bytes: u64) -> Result<bool, HostError> {
        let stat = self.check_errno("look at", "", rustix::fs::fstatvfs(&self.fd))?;
        // Only root may use the space that is reserved for root. A file system that reports 0 blocks or inodes in total
        // does not count them, so it is not full.
        let free_blocks = if rustix::process::geteuid().is_root() { stat.f_bfree } else { stat.f_bavail };
        let lacks_space = stat.f_blocks > 0 && free_blocks.saturating_mul(stat.f_frsize) < bytes;
        Ok(lacks_space || (stat.f_files > 0 && stat.f_ffree == 0))
    }

    fn own_stat(&self) -> Result<Stat, HostError> {
        Ok(to_stat(&self.check_errno("look at", "", rustix::fs::fstat(&self.fd))?))
    }

    fn read_link(&self, name: &str) -> Result<Option<String>, HostError> {
        match rustix::fs::readlinkat(&self.fd, c_name(name), Vec::new()) {
            Ok(target) => Ok(Some(target.to_string_lossy().into_owned())),
            Err(Errno::NOENT) => Ok(None),
            // The entry exists and is no link.
            Err(Errno::INVAL) => {
                let found = self.stat(name)?.map_or(FileKind::Special, |stat| stat.kind);
                Err(HostError::WrongKind { path: self.child_path(name), wanted: FileKind::Link.as_str(), found: found.as_str() })
            }
            Err(errno) => self.check_errno("read", name, Err(errno)),
        }
    }

    /// Returns whether another file system, or another part of one (a bind mount), is mounted at an entry. Kernels before
    /// 5.8 do not report bind mounts of the same file system.
    fn is_mount_point(&self, name: &str) -> Result<bool, HostError> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let metadata = match rustix::fs::statx(&self.fd, c_name(name), flags, StatxFlags::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            result => self.check_errno("look at", name, result)?,
        };
        let own_metadata = rustix::fs::statx(&self.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
        let own_metadata = self.check_errno("look at", "", own_metadata)?;
        let device = |metadata: &rustix::fs::Statx| (metadata.stx_dev_major, metadata.stx_dev_minor);
        Ok(metadata.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) || device(&metadata) != device(&own_metadata))
    }

    /// Returns the default access control list of this directory in the kernel's format, or `None` if there is none.
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

    /// Returns the sorted names of the entries of this directory. Names that are not UTF-8 are left out.
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

    /// Returns the entries whose names are not UTF-8, each with its name for display and its metadata, sorted by name.
    /// An entry that is removed at the same time is left out.
    fn non_utf8_names(&self) -> Result<Vec<(String, Stat)>, HostError> {
        let entries = self.check_errno("list", "", rustix::fs::Dir::read_from(&self.fd))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = self.check_errno("list", "", entry)?;
            let name = entry.file_name();
            if name.to_str().is_ok() {
                continue;
            }
            let display_name = name.to_string_lossy().into_owned();
            match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => names.push((display_name, to_stat(&stat))),
                Err(Errno::NOENT) => {}
                Err(errno) => return self.check_errno("look at", &display_name, Err(errno)),
            }
        }
        names.sort_unstable_by(|(first, _), (second, _)| first.cmp(second));
        Ok(names)
    }

    /// Renames each entry whose name is not UTF-8. An entry that is removed at the same time is left out.
    fn rename_non_utf8_names(&self, new_name: &mut dyn FnMut() -> String) -> Result<(), HostError> {
        let entries = self.check_errno("list", "", rustix::fs::Dir::read_from(&self.fd))?;
        for entry in entries {
            let entry = self.check_errno("list", "", entry)?;
            let name = entry.file_name();
            if name.to_str().is_ok() {
                continue;
            }
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&self.fd, name, &self.fd, c_name(&new_name()), flags) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return self.check_change("remove", &name.to_string_lossy(), Err(errno)),
            }
        }
        Ok(())
    }

    /// Opens a subdirectory, or returns `None` if it does not exist. Fails if the entry is a link or another kind of
    /// file.
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

    /// Creates a subdirectory with this mode, whatever the umask is, and with the setgid bit that it inherits.
    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError> {
        let mode = Mode::from_raw_mode(mode);
        // The directory gets its mode when it is created, so that it has no wrong mode if the agent is killed before
        // the next call. The umask may have removed bits of the mode. `set_new_dir_mode` adds these bits again.
        self.check_change("make", name, rustix::fs::mkdirat(&self.fd, c_name(name), mode))?;
        let fd = self.check_errno("open", name, open_dir(self.fd.as_fd(), name))?;
        self.set_new_dir_mode(name, &fd, mode)
    }

    fn set_mode(&self, mode: u32) -> Result<(), HostError> {
        self.check_errno("set the mode of", "", rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode)))
    }

    fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError> {
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        self.check_errno("give away", "", rustix::fs::fchown(&self.fd, user, group))
    }

    fn make_link(&self, name: &str, target: &str) -> Result<(), HostError> {
        let Ok(c_target) = CString::new(target) else {
            return self.check_errno("make", name, Err(Errno::INVAL));
        };
        self.check_change("make", name, rustix::fs::symlinkat(c_target, &self.fd, c_name(name)))
    }

    fn remove_dir(&self, name: &str) -> Result<(), HostError> {
        self.check_change("remove", name, rustix::fs::unlinkat(&self.fd, c_name(name), AtFlags::REMOVEDIR))
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
    /// Sets the inode flags of `mask` to their values in `extras`. Other flags are unchanged. Does nothing if
    /// `extras.flags` is `None`. Fails if a flag should be set and the file system does not support flags.
    fn set_flags(&self, extras: &Extras, mask: IFlags) -> Result<(), HostError> {
        let Some(target_flags) = extras.flags.map(|flags| flags & mask) else { return Ok(()) };
        match check_preserved("the flags", read_flags(&self.fd))? {
            None if target_flags.is_empty() => Ok(()),
            None => check_preserved("the flags", Err(Errno::NOTSUP)),
            Some(current_flags) if current_flags & mask == target_flags => Ok(()),
            Some(current_flags) => {
                check_preserved("the flags", rustix::fs::ioctl_setflags(&self.fd, current_flags.difference(mask) | target_flags))
            }
        }
    }

    /// Converts the error of a system call to a [`HostError`] that names the operation and this file.
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
        // The mode is not set to its present value again, because some NFS servers then drop the access control list.
        if self.check_errno("look at", rustix::fs::fstat(&self.fd))?.st_mode & 0o7777 == mode {
            return Ok(());
        }
        self.check_errno("set the mode of", rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode)))
    }

    /// Sets the inode flags that can be set only while the file is empty.
    fn set_initial_flags(&mut self, extras: &Extras) -> Result<(), HostError> {
        self.set_flags(extras, EMPTY_FILE_FLAGS)
    }

    /// Sets the extended attributes and inode flags of `extras` on the new file. If `extras` contains no access control
    /// list, removes the list that the file inherited from its directory.
    fn set_extras(&mut self, extras: &Extras) -> Result<(), HostError> {
        let current_attributes = check_preserved("the attributes", read_attributes(&self.fd))?.unwrap_or_default();
        // The access control list is set last. For an agent that is not root, the list may remove the permission to set
        // the other attributes.
        let (acl, other_attributes): (Vec<_>, Vec<_>) = extras.attributes.iter().partition(|(name, _)| name.as_c_str() == ACL);
        for (name, value) in other_attributes.into_iter().chain(acl) {
            if current_attributes.get(name) != Some(value) {
                let result = rustix::fs::fsetxattr(&self.fd, name.as_c_str(), value, XattrFlags::empty());
                check_preserved(&name.to_string_lossy().escape_debug().to_string(), result)?;
            }
        }
        if current_attributes.contains_key(ACL) && !extras.attributes.contains_key(ACL) {
            check_preserved("no access control list", rustix::fs::fremovexattr(&self.fd, ACL))?;
        }
        self.set_flags(extras, PRESERVED_FLAGS)
    }

    fn sync(&mut self) -> Result<(), HostError> {
        self.check_errno("sync", rustix::fs::fsync(&self.fd))
    }
}

/// Returns the error for a path with a symbolic link at `link`. If the target of the link is known, the error also
/// contains the path with the link replaced by its target.
pub(super) fn link_error(path: &str, link: String, target: Option<CString>) -> HostError {
    let target = target.and_then(|target| target.into_string().ok()).filter(|target| !target.is_empty());
    let resolved_path = target.map(|target| {
        let link_dir = link.rsplit_once('/').map_or("", |(link_dir, _)| link_dir);
        let base = if target.starts_with('/') { "" } else { link_dir };
        let mut names = Vec::new();
        // In order: the directory of the link (if the target is relative), the target, and the rest of `path`.
        for name in [base, &target, path.strip_prefix(&link).unwrap_or_default()].iter().flat_map(|part| part.split('/')) {
            match name {
                "" | "." => {}
                ".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        format!("/{}", names.join("/"))
    });
    HostError::Link { path: path.to_owned(), at: link, real: resolved_path }
}

/// Converts the error of a system call that gives the new file an attribute or flag of the replaced file. `what` names
/// the attribute or flags.
fn check_preserved<T>(what: &str, result: Result<T, Errno>) -> Result<T, HostError> {
    result.map_err(|errno| HostError::Extra { what: what.into(), source: errno.into() })
}

/// Returns the extended attributes of a file by name, or `None` if they exceed [`MAX_ATTRIBUTES_BYTES`]. On a file
/// system without extended attributes, returns an empty map.
fn read_attributes(fd: &OwnedFd) -> Result<Option<BTreeMap<CString, Vec<u8>>>, Errno> {
    let mut names = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        result => result?,
    };
    let (mut value, mut total_bytes) = (vec![0; MAX_ATTRIBUTE_BYTES], length);
    let mut attributes = BTreeMap::new();
    for name in names[..length].split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        match rustix::fs::fgetxattr(fd, name, &mut value[..]) {
            // The attribute was removed after the names were listed.
            Err(Errno::NODATA) => continue,
            // This attribute is the access control list under a second name. The list is read under its first name.
            Ok(_) if name.to_bytes().starts_with(ACL_ALIAS) => continue,
            length => {
                let length = length?;
                total_bytes += length;
                attributes.insert(name.to_owned(), value[..length].to_vec());
            }
        }
        if total_bytes > MAX_ATTRIBUTES_BYTES {
            return Ok(None);
        }
    }
    Ok(Some(attributes))
}

/// Returns the inode flags of a file (`chattr`), or `None` if its file system does not support flags.
fn read_flags(fd: &OwnedFd) -> Result<Option<IFlags>, Errno> {
    match rustix::fs::ioctl_getflags(fd) {
        Err(Errno::NOTTY | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => Ok(None),
        flags => flags.map(Some),
    }
}

/// Returns a name as a C string for the kernel. A slash is replaced, so that a name never works as a path. A name from
/// a [`HostPath`] never contains a slash.
fn c_name(name: &str) -> CString {
    CString::new(name.replace('/', "\u{fffd}")).expect("names hold no NUL: HostPath and Dir::names guarantee this")
}

fn to_stat(kernel_stat: &rustix::fs::Stat) -> Stat {
    Stat {
        kind: file_kind(kernel_stat.st_mode),
        mode: kernel_stat.st_mode & 0o7777,
        user: kernel_stat.st_uid,
        group: kernel_stat.st_gid,
        size: u64::try_from(kernel_stat.st_size).unwrap_or(0),
        links: links(kernel_stat),
    }
}

/// Converts the metadata that the kernel returned, with the fields that change with each change of the file.
#[allow(clippy::unnecessary_cast, clippy::cast_possible_wrap, reason = "their widths differ between architectures")]
fn to_version(kernel_stat: &rustix::fs::Stat) -> FileVersion {
    FileVersion {
        stat: to_stat(kernel_stat),
        file_id: (kernel_stat.st_dev as u64, kernel_stat.st_ino as u64),
        changed_at: (kernel_stat.st_ctime as i64, kernel_stat.st_ctime_nsec as i64),
    }
}

#[allow(clippy::unnecessary_cast, reason = "its width differs between architectures")]
fn links(stat: &rustix::fs::Stat) -> u64 {
    stat.st_nlink as u64
}

/// Returns the kind of a file from the mode that the kernel returned.
pub(super) fn file_kind(mode: u32) -> FileKind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => FileKind::File,
        rustix::fs::FileType::Directory => FileKind::Directory,
        rustix::fs::FileType::Symlink => FileKind::Link,
        _ => FileKind::Special,
    }
}
