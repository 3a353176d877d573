//! Checks the directories on the path to a file: whoever can write one of them can replace the file.
//!
//! A directory can itself be replaced by whoever can write its parent, so checking the last one is not enough. Each
//! directory up to the root is checked, as OpenSSH does for files that it trusts (`secure_path`). The path is walked as
//! the kernel does, and each link is followed where it occurs. So both the directories of the given name and those of
//! the file it refers to are checked.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Maximum number of links in one path, as in the kernel.
const MAX_SYMLINKS: usize = 40;

/// The user and group of the process that reads a file.
#[derive(Clone, Copy)]
pub(super) struct ReadingUser {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// Why others can replace a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathFault {
    /// Other users can write a directory on the path.
    Writable { directory: PathBuf, mode: u32 },
    /// A directory or link on the path belongs to another user, who can change or replace it.
    Foreign { at: PathBuf, owner: u32, is_link: bool },
}

impl ReadingUser {
    /// Returns the user and group of this process.
    pub(super) fn current() -> Self {
        Self { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() }
    }

    /// Returns the first fault on the path to a file. The file itself is not checked.
    pub(super) fn fault_on_path(self, path: &Path) -> io::Result<Option<PathFault>> {
        let mut current = PathBuf::from("/");
        if let Some(fault) = self.fault_at(&current, &std::fs::symlink_metadata(&current)?) {
            return Ok(Some(fault));
        }
        let mut remaining = path_components(&std::path::absolute(path)?);
        let mut links = 0;
        while let Some(component) = remaining.pop() {
            if component == ".." {
                // `current` contains no links, so its parent was checked on the way down.
                current.pop();
                continue;
            }
            let next = current.join(component);
            let metadata = std::fs::symlink_metadata(&next)?;
            if let Some(fault) = self.fault_at(&next, &metadata) {
                return Ok(Some(fault));
            }
            if !metadata.is_symlink() {
                current = next;
                continue;
            }
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = std::fs::read_link(&next)?;
            if target.is_absolute() {
                current = PathBuf::from("/");
            }
            remaining.extend(path_components(&target));
        }
        Ok(None)
    }

    /// Returns the fault of one directory or link on the path, by its owner and mode.
    fn fault_at(self, path: &Path, metadata: &Metadata) -> Option<PathFault> {
        let (is_link, mode) = (metadata.is_symlink(), metadata.permissions().mode() & 0o7777);
        if !is_link && !metadata.is_dir() {
            return None;
        }
        // The owner of a directory can change its mode. The owner of a link can replace it even if the sticky bit keeps
        // others from it.
        if !self.is_trusted_owner(metadata.uid()) {
            return Some(PathFault::Foreign { at: path.to_owned(), owner: metadata.uid(), is_link });
        }
        let is_writable = !is_link && self.is_replaceable_by_others(mode, metadata.gid());
        is_writable.then(|| PathFault::Writable { directory: path.to_owned(), mode })
    }

    fn is_trusted_owner(self, owner: u32) -> bool {
        owner == 0 || owner == self.user
    }

    /// Returns whether others can replace entries of a directory. With the sticky bit, as in `/tmp`, they can replace
    /// only their own. Members of the process's own group do not count as others: a user's own directory is often
    /// writable by a group with one member (umask 002).
    fn is_replaceable_by_others(self, mode: u32, group: u32) -> bool {
        let is_sticky = mode & 0o1000 != 0;
        let is_own_group = group == 0 || group == self.group;
        !is_sticky && (mode & 0o002 != 0 || (mode & 0o020 != 0 && !is_own_group))
    }
}

/// Returns the components of a path in reverse order.
fn path_components(path: &Path) -> Vec<OsString> {
    let components = path.components().filter(|step| matches!(step, Component::Normal(_) | Component::ParentDir));
    components.rev().map(|step| step.as_os_str().to_owned()).collect()
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
        // Each mode with the group of the directory.
        for (mode, group, is_open) in [
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
            assert_eq!(reader.is_replaceable_by_others(mode, group), is_open, "{mode:o} of group {group}");
        }
        let root = ReadingUser { user: 0, group: 0 };
        assert!(root.is_trusted_owner(0) && !root.is_trusted_owner(1000), "whom root trusts is root");
    }

    #[test]
    fn x04_path_components_are_in_reverse_order() {
        assert_eq!(path_components(Path::new("/a/../b/./c")), ["c", "b", "..", "a"]);
        assert!(path_components(Path::new("/")).is_empty());
    }
}
