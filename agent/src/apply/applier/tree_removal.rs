//! Removal of a directory with everything in it. Each directory is an open handle, so no link is followed and nothing
//! outside of the tree is removed, even if someone renames entries at the same time. Other work of the agent goes on between
//! two entries, because a tree may have millions of them.

use std::io::ErrorKind;

use stemma_core::task::tree_rules::MAX_TREE_DEPTH;
use tokio::task::yield_now;

use crate::apply::task::TaskError;
use crate::host::atomic::TEMPORARY_PREFIX;
use crate::host::{Dir, FileKind, Host, HostError, HostPath};

/// Maximum number of entries that a diff or message names.
const MAX_LISTED_ENTRIES: usize = 20;

/// The entries of a tree, for a diff.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TreeContent {
    /// The first entries, as paths relative to the tree. A directory ends with a slash.
    pub(super) first_entries: Vec<String>,
    /// The number of all entries.
    pub(super) count: usize,
}

/// A directory of the tree on the way from its top to the present entry.
struct OpenLevel {
    dir: Box<dyn Dir>,
    /// The name of the directory in the one above.
    name: String,
    /// The entries that are left, the last one first.
    remaining: Vec<String>,
}

/// A walk through a tree from its top.
struct Walk {
    /// The path of the tree, for messages.
    root: HostPath,
    levels: Vec<OpenLevel>,
}

impl OpenLevel {
    fn new(dir: Box<dyn Dir>, name: &str) -> Result<Self, HostError> {
        let mut remaining = dir.names()?;
        remaining.reverse();
        Ok(Self { dir, name: name.to_owned(), remaining })
    }
}

impl Walk {
    fn new(root: &HostPath, dir: Box<dyn Dir>) -> Result<Self, HostError> {
        Ok(Self { root: root.clone(), levels: vec![OpenLevel::new(dir, root.name())?] })
    }

    /// Returns the path of an entry of the present directory, relative to the tree.
    fn relative_path(&self, name: &str) -> String {
        let dirs = self.levels.iter().skip(1).map(|level| level.name.as_str());
        dirs.chain([name]).collect::<Vec<_>>().join("/")
    }

    /// Opens a subdirectory of the present directory, which then is the present one. Returns `false` if the subdirectory
    /// no longer exists. Fails if something is mounted there, or if the tree is too deep.
    fn enter(&mut self, name: &str) -> Result<bool, TaskError> {
        let path = format!("{}/{}", self.root, self.relative_path(name));
        let Some(level) = self.levels.last() else { return Ok(false) };
        if level.dir.is_mount_point(name)? {
            return Err(TaskError::new(format!(
                "something is mounted at {path}, and a tree is not removed across a mount point: unmount it (`umount`), or name another directory"
            )));
        }
        // Each of these directories is an open file of the agent.
        if self.levels.len() == MAX_TREE_DEPTH {
            return Err(TaskError::new(format!(
                "{path} is more than {MAX_TREE_DEPTH} directories below {}: remove this tree by a command",
                self.root
            )));
        }
        let Some(dir) = level.dir.dir(name)? else { return Ok(false) };
        self.levels.push(OpenLevel::new(dir, name)?);
        Ok(true)
    }
}

/// Lists the entries of a tree that would be removed. Changes nothing.
pub(super) async fn list_tree(root: &HostPath, dir: Box<dyn Dir>) -> Result<TreeContent, TaskError> {
    let (mut walk, mut content) = (Walk::new(root, dir)?, TreeContent::default());
    let add = |content: &mut TreeContent, entry: String| {
        content.count += 1;
        if content.first_entries.len() < MAX_LISTED_ENTRIES {
            content.first_entries.push(entry);
        }
    };
    for (name, _) in walk.levels[0].dir.non_utf8_names()? {
        add(&mut content, name);
    }
    while let Some(level) = walk.levels.last_mut() {
        yield_now().await;
        let Some(name) = level.remaining.pop() else {
            walk.levels.pop();
            continue;
        };
        let Some(stat) = level.dir.stat(&name)? else { continue };
        let path = walk.relative_path(&name);
        if stat.kind == FileKind::Directory {
            add(&mut content, format!("{path}/"));
            if walk.enter(&name)?
                && let Some(level) = walk.levels.last()
            {
                for (entry, _) in level.dir.non_utf8_names()? {
                    add(&mut content, format!("{path}/{entry}"));
                }
            }
        } else {
            add(&mut content, path);
        }
    }
    Ok(content)
}

/// Removes the directory `root`, an entry of `parent`, with everything in it. Does nothing if it does not exist. A link
/// in the tree is removed, not followed.
pub(super) async fn remove_tree(host: &dyn Host, parent: &dyn Dir, root: &HostPath) -> Result<(), TaskError> {
    let Some(dir) = parent.dir(root.name())? else { return Ok(()) };
    name_entries(host, &*dir)?;
    let mut walk = Walk::new(root, dir)?;
    while let Some(level) = walk.levels.last_mut() {
        yield_now().await;
        let Some(name) = level.remaining.pop() else {
            let Some(done) = walk.levels.pop() else { break };
            let container = walk.levels.last().map_or(parent, |level| &*level.dir);
            ignore_missing(container.remove_dir(&done.name))?;
            continue;
        };
        match level.dir.stat(&name)?.map(|stat| stat.kind) {
            Some(FileKind::Directory) => {
                if let Some(dir) = level.dir.dir(&name)? {
                    name_entries(host, &*dir)?;
                }
                walk.enter(&name)?;
            }
            Some(_) => ignore_missing(level.dir.remove(&name))?,
            None => {}
        }
    }
    Ok(())
}

/// Gives each entry of a directory a name in UTF-8, under which it can be removed.
fn name_entries(host: &dyn Host, dir: &dyn Dir) -> Result<(), HostError> {
    dir.rename_non_utf8_names(&mut || format!("{TEMPORARY_PREFIX}{:016x}", host.random()))
}

/// Converts the error that an entry does not exist to a success: another process has removed the entry.
fn ignore_missing(result: Result<(), HostError>) -> Result<(), HostError> {
    match result {
        Err(error) if error.has_kind(ErrorKind::NotFound) => Ok(()),
        result => result,
    }
}
