//! Checks the directories on the path to a file. A user who can write one of these directories can replace the file.
//!
//! A check of the last directory is not enough, because a user who can write its parent can replace this directory. So
//! each directory from the root is checked, as OpenSSH does for files that it trusts (`secure_path`). The path is
//! resolved as the kernel resolves it, and each symbolic link is followed where it occurs. So the directories that
//! contain the links are checked, and also those of the file to which the links lead.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links that are followed in one path, as in Linux.
const MAX_SYMLINKS: usize = 40;

/// The numeric ids of the user and group with whose rights the process reads a file (effective user and group).
#[derive(Clone, Copy)]
pub(super) struct ReadingUser {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// The reason why other users, not root and not the user of this process, can replace a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathFault {
    /// Other users can write `directory`, which is on the path. `mode` has its permission bits.
    Writable { directory: PathBuf, mode: u32 },
    /// The directory or symbolic link `at` on the path belongs to the user `owner`, who can change or replace it.
    Foreign { at: PathBuf, owner: u32, is_link: bool },
}

impl ReadingUser {
    /// Returns the user and group of this process.
    pub(super) fn current() -> Self {
        Self { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() }
    }

    /// Returns the first fault of a directory or link on the path to a file, or `None` if other users cannot replace
    /// the file. The file itself is not checked. Fails if the path cannot be resolved.
    ///
    /// Resolves the path from the root as the kernel does: `checked_directory` is the directory reached so far, and a
    /// link is replaced by the components of its target.
    pub(super) fn fault_on_path(self, path: &Path) -> io::Result<Option<PathFault>> {
        let mut checked_directory = PathBuf::from("/");
        if let Some(fault) = self.fault_at(&checked_directory, &std::fs::symlink_metadata(&checked_directory)?) {
            return Ok(Some(fault));
        }
        let mut remaining_components = path_components(&std::path::absolute(path)?);
        let mut link_count = 0;
        while let Some(component) = remaining_components.pop() {
            if component == ".." {
                // `checked_directory` contains no links, so its parent has been checked before.
                checked_directory.pop();
                continue;
            }
            let next_path = checked_directory.join(component);
            let metadata = std::fs::symlink_metadata(&next_path)?;
            if let Some(fault) = self.fault_at(&next_path, &metadata) {
                return Ok(Some(fault));
            }
            if !metadata.is_symlink() {
                checked_directory = next_path;
                continue;
            }
            link_count += 1;
            if link_count > MAX_SYMLINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let link_target = std::fs::read_link(&next_path)?;
            if link_target.is_absolute() {
                checked_directory = PathBuf::from("/");
            }
            remaining_components.extend(path_components(&link_target));
        }
        Ok(None)
    }

    /// Returns the fault of one directory or link on the path, or `None` if only trusted users can change the directory
    /// or link. Also returns `None` for a file. `metadata` is that of the path itself, not of a link's target.
    fn fault_at(self, path: &Path, metadata: &Metadata) -> Option<PathFault> {
        let (is_link, mode) = (metadata.is_symlink(), metadata.permissions().mode() & 0o7777);
        if !is_link && !metadata.is_dir() {
            return None;
        }
        // The owner of a directory can change its mode. The owner of a link can replace the link even in a directory
        // with the sticky bit.
        if !self.is_trusted_owner(metadata.uid()) {
            return Some(PathFault::Foreign { at: path.to_owned(), owner: metadata.uid(), is_link });
        }
        let is_writable = !is_link && self.is_replaceable_by_others(mode, metadata.gid());
        is_writable.then(|| PathFault::Writable { directory: path.to_owned(), mode })
    }

    /// Returns whether the owner of a directory or link is root or the user of this process.
    fn is_trusted_owner(self, owner: u32) -> bool {
        owner == 0 || owner == self.user
    }

    /// Returns whether other users can replace entries of a directory with this mode and group.
    ///
    /// In a directory with the sticky bit, such as `/tmp`, users can replace only their own entries. Write access of
    /// root's group is allowed. Write access of the process's own group is allowed too, because a user's directories
    /// often belong to a group with one member (umask 002).
    fn is_replaceable_by_others(self, mode: u32, group: u32) -> bool {
        let is_sticky = mode & 0o1000 != 0;
        let is_trusted_group = group == 0 || group == self.group;
        !is_sticky && (mode & 0o002 != 0 || (mode & 0o020 != 0 && !is_trusted_group))
    }
}

/// Returns the names and `..` of a path, the last component first.
fn path_components(path: &Path) -> Vec<OsString> {
    let components = path.components().filter(|component| matches!(component, Component::Normal(_) | Component::ParentDir));
    components.rev().map(|component| component.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x04_reading_user_trusts_directory_by_owner_and_mode() {
        let reader = ReadingUser { user: 1000, group: 1000 };
        for (owner, is_trusted) in [(0, true), (1000, true), (1001, false), (65_534, false)] {
            assert_eq!(reader.is_trusted_owner(owner), is_trusted, "{owner}");
        }
        // Mode of the directory, group of the directory, and whether other users can replace its entries.
        for (mode, group, is_replaceable) in [
            (0o755, 1001, false),
            (0o775, 1000, false),
            (0o775, 0, false),
            (0o775, 1001, true),
            (0o757, 1000, true),
            (0o777, 0, true),
            (0o1777, 0, false),
            (0o1775, 1001, false),
            (0o2775, 1001, true),
        ] {
            assert_eq!(reader.is_replaceable_by_others(mode, group), is_replaceable, "{mode:o} of group {group}");
        }
        let root = ReadingUser { user: 0, group: 0 };
        assert!(root.is_trusted_owner(0) && !root.is_trusted_owner(1000), "root trusts only root");
    }

    #[test]
    fn x04_path_components_are_in_reverse_order() {
        assert_eq!(path_components(Path::new("/a/../b/./c")), ["c", "b", "..", "a"]);
        assert!(path_components(Path::new("/")).is_empty());
    }
}
