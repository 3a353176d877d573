//! The directories on the way to a file: whoever may write one of them may put another file in its place.
//!
//! A directory is itself replaced from the one above it, so the last one alone says nothing: each is looked at up to the root, as OpenSSH
//! does for the files that it trusts (`secure_path`). The way is walked as the kernel walks it, and each link is followed where it stands.
//! So the directories of the name that was given are looked at and those of the file that it means.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// The most links on one way, as for the kernel.
const MAX_LINKS: usize = 40;

/// Who reads a file.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// By what others may put another file in the place of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// They may write a directory.
    Open { directory: PathBuf, mode: u32 },
    /// A directory or link is theirs.
    Foreign { at: PathBuf, owner: u32, is_link: bool },
}

impl Reader {
    /// The user and group that run this.
    pub(super) fn this() -> Self {
        Self { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() }
    }

    /// The first fault on the way to a file. The file itself is looked at elsewhere.
    pub(super) fn fault_on_way(self, path: &Path) -> io::Result<Option<Fault>> {
        let mut at = PathBuf::from("/");
        if let Some(fault) = self.fault_of(&at, &std::fs::symlink_metadata(&at)?) {
            return Ok(Some(fault));
        }
        let mut left = steps(&std::path::absolute(path)?);
        let mut links = 0;
        while let Some(step) = left.pop() {
            if step == ".." {
                // What stands above was looked at on the way down: there are no links in this path.
                at.pop();
                continue;
            }
            let next = at.join(step);
            let found = std::fs::symlink_metadata(&next)?;
            if let Some(fault) = self.fault_of(&next, &found) {
                return Ok(Some(fault));
            }
            if !found.is_symlink() {
                at = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = std::fs::read_link(&next)?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            left.extend(steps(&target));
        }
        Ok(None)
    }

    fn fault_of(self, at: &Path, found: &Metadata) -> Option<Fault> {
        let (is_link, mode) = (found.is_symlink(), found.permissions().mode() & 0o7777);
        if !is_link && !found.is_dir() {
            return None;
        }
        // Its owner may give a directory any mode, and may replace a link also where the sticky bit keeps others from it.
        if !self.trusts(found.uid()) {
            return Some(Fault::Foreign { at: at.to_owned(), owner: found.uid(), is_link });
        }
        let is_open = !is_link && self.is_open(mode, found.gid());
        is_open.then(|| Fault::Open { directory: at.to_owned(), mode })
    }

    fn trusts(self, owner: u32) -> bool {
        owner == 0 || owner == self.user
    }

    /// Whether others may replace what stands in a directory. In one like `/tmp`, with the sticky bit, they may replace their own alone.
    /// Those of the own group do not count as others: a directory of one's own is often open to a group that has one member (umask 002).
    fn is_open(self, mode: u32, group: u32) -> bool {
        let is_sticky = mode & 0o1000 != 0;
        let is_own_group = group == 0 || group == self.group;
        !is_sticky && (mode & 0o002 != 0 || (mode & 0o020 != 0 && !is_own_group))
    }
}

/// The steps of a path, the first last.
fn steps(path: &Path) -> Vec<OsString> {
    let steps = path.components().filter(|step| matches!(step, Component::Normal(_) | Component::ParentDir));
    steps.rev().map(|step| step.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x04_whose_directory_it_is_and_who_may_write_it_decide_whether_it_is_trusted() {
        let reader = Reader { user: 1000, group: 1000 };
        for (owner, trusted) in [(0, true), (1000, true), (1001, false), (65_534, false)] {
            assert_eq!(reader.trusts(owner), trusted, "{owner}");
        }
        // Each with the group of the directory.
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
            assert_eq!(reader.is_open(mode, group), is_open, "{mode:o} of group {group}");
        }
        let root = Reader { user: 0, group: 0 };
        assert!(root.trusts(0) && !root.trusts(1000), "whom root trusts is root");
    }

    #[test]
    fn x04_the_steps_of_a_path_are_taken_from_its_end() {
        assert_eq!(steps(Path::new("/a/../b/./c")), ["c", "b", "..", "a"]);
        assert!(steps(Path::new("/")).is_empty());
    }
}
