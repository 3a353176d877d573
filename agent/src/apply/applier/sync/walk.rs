//! The walk through a tree and its source at the same time. A first walk only lists the differences. A second one makes
//! the changes.

use std::collections::BTreeMap;

use stemma_core::task::is_temporary_name;
use stemma_core::task::tree_rules::{MAX_SYNCED_FILES, MAX_TREE_DEPTH};
use stemma_wire::message::Hash;

use super::super::body::{FileSource, version_mark};
use super::super::placement::{MAX_DIFF_LINES, changed_error, check_single_link, limited_lines, one_line};
use super::{BlobDir, BlobEntry, Tree, TreeSource};
use crate::apply::ledger::{CopiedFile, SyncRecord};
use crate::apply::task::{HostTask, Site, TaskError};
use crate::host::atomic::{Attributes, TEMPORARY_PREFIX, is_leftover_name};
use crate::host::{Dir, FileKind, FileVersion, HostError, HostPath, Pending, Stat};

/// The changes that a walk has found or made.
#[derive(Default)]
pub(super) struct TreeChanges {
    /// The first changes, for the diff: `+`, `~` or `-`, and the path.
    lines: Vec<String>,
    added: usize,
    changed: usize,
    removed: usize,
}

/// A walk through a tree.
pub(super) struct TreeWalk<'a> {
    site: &'a Site,
    task: &'a HostTask,
    tree: &'a Tree,
    /// What an earlier walk has found out.
    old_record: SyncRecord,
    /// What this walk has found out.
    record: SyncRecord,
    /// The number of further files that the tree may have.
    pub(super) room: usize,
    /// True if the walk makes the changes.
    is_applying: bool,
    /// What prevents the first change that is not possible. Only a walk that lists the changes looks for it.
    obstacle: Option<HostError>,
    pub(super) changes: TreeChanges,
}

/// The directory of the source that corresponds to a directory of the tree.
pub(super) enum SourceDir<'a> {
    Blobs(&'a BlobDir),
    HostDir(Box<dyn Dir>),
    /// The directory is not part of the source, and is removed.
    Nothing,
}

/// An entry of a directory of the source.
enum SourceEntry<'a> {
    Blob(Hash),
    HostFile(FileVersion),
    BlobDir(&'a BlobDir),
    HostDir,
}

impl TreeChanges {
    /// Adds a change. `path` is relative to the tree, apart from that of the tree itself.
    pub(super) fn add(&mut self, sign: char, path: &str) {
        match sign {
            '+' => self.added += 1,
            '-' => self.removed += 1,
            _ => self.changed += 1,
        }
        if self.lines.len() < MAX_DIFF_LINES {
            self.lines.push(format!("{sign}{}\n", one_line(path)));
        }
    }

    /// Returns the number of changes.
    const fn count(&self) -> usize {
        self.added + self.changed + self.removed
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the diff: a line for each of the first changes.
    pub(super) fn diff(&self, path: &HostPath) -> String {
        format!("--- {path}\n+++ {path}\n{}", limited_lines(&self.lines, self.count()))
    }

    /// Returns the numbers of changes in a sentence.
    pub(super) fn summary(&self) -> String {
        format!("{} added, {} changed, {} removed", self.added, self.changed, self.removed)
    }
}

impl<'a> SourceDir<'a> {
    /// Returns the entries of the directory that the task does not ignore. Fails if one is neither a file nor a directory.
    fn entries(&self, walk: &TreeWalk<'_>, prefix: &str) -> Result<BTreeMap<String, SourceEntry<'a>>, TaskError> {
        let is_ignored = |name: &str, is_dir: bool| walk.tree.ignored.matches(&format!("{prefix}{name}"), is_dir);
        match self {
            Self::Nothing => Ok(BTreeMap::new()),
            Self::Blobs(dir) => {
                let entries = dir.0.iter().map(|(name, entry)| match entry {
                    BlobEntry::File(hash) => (name.clone(), SourceEntry::Blob(*hash), false),
                    BlobEntry::Dir(dir) => (name.clone(), SourceEntry::BlobDir(dir), true),
                });
                let entries = entries.filter(|(name, _, is_dir)| !is_ignored(name, *is_dir));
                Ok(entries.map(|(name, entry, _)| (name, entry)).collect())
            }
            Self::HostDir(dir) => {
                if let Some((name, _)) = dir.non_utf8_names()?.first() {
                    return Err(TaskError::new(format!(
                        "parameters.src: the name of {prefix}{} is not UTF-8, and such a file is not copied: rename or remove it",
                        one_line(name)
                    )));
                }
                let mut entries = BTreeMap::new();
                for name in dir.names()? {
                    let Some(version) = dir.version(&name)? else { continue };
                    let kind = version.stat.kind;
                    // Such a file is one that the agent is writing, or that a killed agent left. It is no content.
                    let is_unfinished = is_temporary_name(&name) && kind != FileKind::Directory;
                    if is_unfinished || is_ignored(&name, kind == FileKind::Directory) {
                        continue;
                    }
                    let entry = match kind {
                        FileKind::File => {
                            let path = format!("{prefix}{}", one_line(&name));
                            check_single_link("parameters.src", &path, &version.stat)?;
                            SourceEntry::HostFile(version)
                        }
                        FileKind::Directory => SourceEntry::HostDir,
                        FileKind::Link | FileKind::Special => {
                            return Err(TaskError::new(format!(
                                "parameters.src: {prefix}{} is {}, and only files and directories are copied: remove it, or name it in `ignore`",
                                one_line(&name),
                                kind.as_str()
                            )));
                        }
                    };
                    entries.insert(name, entry);
                }
                Ok(entries)
            }
        }
    }

    /// Opens the subdirectory of an entry.
    fn open(&self, name: &str, entry: &SourceEntry<'a>) -> Result<Self, HostError> {
        Ok(match (self, entry) {
            (_, SourceEntry::BlobDir(dir)) => SourceDir::Blobs(dir),
            (Self::HostDir(dir), _) => dir.dir(name)?.map_or(SourceDir::Nothing, SourceDir::HostDir),
            _ => SourceDir::Nothing,
        })
    }
}

impl<'a> TreeWalk<'a> {
    pub(super) fn new((site, task): (&'a Site, &'a HostTask), tree: &'a Tree, old_record: SyncRecord, is_applying: bool) -> Self {
        let (record, changes) = (SyncRecord::default(), TreeChanges::default());
        Self { site, task, tree, old_record, record, room: MAX_SYNCED_FILES, is_applying, obstacle: None, changes }
    }

    /// Fails if something prevents one of the changes that the walk has listed, such as an immutable file.
    pub(super) fn check_changes(&mut self) -> Result<(), TaskError> {
        self.obstacle.take().map_or(Ok(()), |obstacle| Err(obstacle.into()))
    }

    /// Looks for what prevents a listed change of an entry, unless the walk has found an obstacle already.
    fn find_obstacle(&mut self, dir: &dyn Dir, name: &str) {
        if !self.is_applying && self.obstacle.is_none() {
            self.obstacle = dir.check_replaceable(name).err();
        }
    }

    /// Returns what the walk has found out about the files.
    pub(super) fn into_record(self) -> SyncRecord {
        self.record
    }

    /// Opens the top of the source.
    pub(super) fn open_source(&self) -> Result<SourceDir<'a>, TaskError> {
        match &self.tree.source {
            TreeSource::Blobs(dir) => Ok(SourceDir::Blobs(dir)),
            TreeSource::HostDir(path) => match self.site.host.dir(path)? {
                Some(dir) => Ok(SourceDir::HostDir(dir)),
                None => Err(TaskError::new(format!("parameters.src: {path} does not exist; nothing was changed"))),
            },
        }
    }

    /// Gives an existing directory the owner, group and mode that the author sets.
    pub(super) fn sync_rights(&mut self, dir: &dyn Dir, path: &str) -> Result<(), TaskError> {
        let (stat, rights) = (dir.own_stat()?, &self.tree.rights);
        let (user, group) = (rights.dir_user.unwrap_or(stat.user), rights.dir_group.unwrap_or(stat.group));
        let mode = rights.dir_mode.unwrap_or(stat.mode);
        if (user, group, mode) == (stat.user, stat.group, stat.mode) {
            return Ok(());
        }
        self.changes.add('~', &if path.is_empty() { format!("{}/", self.tree.path) } else { format!("{path}/") });
        // No entry has this name, so only obstacles of the directory and its file system are found.
        self.find_obstacle(dir, "\u{fffd}");
        if self.is_applying {
            if (user, group) != (stat.user, stat.group) {
                // The new owner and group never have rights that only the former ones should have had.
                dir.set_mode(stat.mode & mode)?;
                dir.set_owner(Some(user), Some(group))?;
            }
            dir.set_mode(mode)?;
            dir.sync()?;
        }
        Ok(())
    }

    /// Notes that the task is about to create an entry, so that it can be removed with what the task leaves.
    fn note_creation(&self, path: &str) -> Result<(), HostError> {
        self.site.ledger.note_creation(&self.task.task.id, &format!("{}/{path}", self.tree.path))
    }

    /// Returns the full path of an entry, for a message.
    fn full_path(&self, path: &str) -> String {
        format!("{}/{}", self.tree.path, one_line(path))
    }

    /// Returns the error that another kind of file is in the place of an entry.
    fn wrong_kind(&self, path: &str, wanted: FileKind, found: FileKind) -> TaskError {
        TaskError::new(format!(
            "{} is {}, where {} was expected: move it away, or set `delete: true`",
            self.full_path(path),
            found.as_str(),
            wanted.as_str()
        ))
    }

    /// Returns the rights of a file.
    fn attributes(&self, source: &FileSource<'_>) -> Attributes {
        let rights = &self.tree.rights;
        let mode = rights.mode.or_else(|| source.mode()).unwrap_or(0o644);
        Attributes { user: Some(rights.user), group: Some(rights.group), ..Attributes::with_mode(mode) }
    }

    /// Returns whether an entry is an unfinished file that a killed agent left.
    fn is_leftover(&self, name: &str, stat: &Stat) -> bool {
        let (agent_user, _) = self.site.host.user_and_group();
        matches!(stat.kind, FileKind::File | FileKind::Link)
            && is_leftover_name(&*self.site.host, name)
            && [0, agent_user, self.tree.rights.user].contains(&stat.user)
    }

    /// Copies a file into `dir`, unless it is equal. `dir` is `None` if the directory does not exist yet.
    fn sync_file(
        &mut self,
        dir: Option<&dyn Dir>,
        name: &str,
        source: &FileSource<'_>,
        path: &str,
        present: Option<FileVersion>,
    ) -> Result<(), TaskError> {
        self.room = self.room.checked_sub(1).ok_or_else(|| {
            TaskError::new(format!(
                "{} would get more than {MAX_SYNCED_FILES} files, and no task copies such a tree: use several tasks, or leave files out by `ignore`",
                self.tree.path
            ))
        })?;
        let attributes = self.attributes(source);
        if let (Some(dir), Some(version)) = (dir, present)
            && version.stat.kind == FileKind::File
            // A file with several hard links is replaced, not written through.
            && version.stat.links == 1
            && attributes.matches(&version.stat)
            && source.is_equal(self.site, (dir, name), &version, |pair| self.old_record.contains(path, pair))?
        {
            self.record.insert(path, &CopiedFile { source: source.mark(), copy: version_mark(&version) });
            return Ok(());
        }
        self.changes.add(if present.is_some() { '~' } else { '+' }, path);
        if let Some(dir) = dir {
            self.find_obstacle(dir, name);
        }
        if let (true, Some(dir)) = (self.is_applying, dir) {
            if dir.version(name)? != present {
                return Err(changed_error(&self.full_path(path)));
            }
            if present.is_none() {
                self.note_creation(path)?;
            }
            let copied = source.write(self.site, (dir, name), &attributes)?;
            self.record.insert(path, &copied);
        }
        Ok(())
    }

    /// Opens a subdirectory of the tree. Creates it if it is missing and the walk makes the changes.
    /// `exists` is false if the subdirectory is missing, or if something else is in its place that is removed.
    fn enter(&mut self, dir: Option<&dyn Dir>, name: &str, path: &str, exists: bool) -> Result<Option<Box<dyn Dir>>, TaskError> {
        let parent = dir;
        let Some(dir) = parent.filter(|_| exists || self.is_applying) else {
            self.changes.add('+', &format!("{path}/"));
            if let Some(parent) = parent {
                self.find_obstacle(parent, name);
            }
            return Ok(None);
        };
        if !exists {
            self.changes.add('+', &format!("{path}/"));
            let rights = &self.tree.rights;
            self.note_creation(path)?;
            // Until it has its owner and group, only the agent may use the directory.
            dir.make_dir(name, rights.new_dir_mode & 0o700)?;
            dir.sync()?;
            let Some(new_dir) = dir.dir(name)? else { return Ok(None) };
            new_dir.set_owner(Some(rights.user), Some(rights.group))?;
            new_dir.set_mode(rights.new_dir_mode)?;
            new_dir.sync()?;
            return Ok(Some(new_dir));
        }
        let opened = dir.dir(name)?;
        if let Some(opened) = &opened {
            self.sync_rights(&**opened, path)?;
        }
        Ok(opened)
    }
}

/// Makes a directory of the tree equal to that of the source, or lists the differences. Returns whether the directory keeps
/// an entry. `prefix` is the path of the directory in the tree, with a slash at its end unless it is empty.
pub(super) fn sync_dir<'w, 'a: 'w>(
    walk: &'w mut TreeWalk<'a>,
    target: Option<Box<dyn Dir>>,
    source: SourceDir<'a>,
    prefix: String,
    depth: usize,
) -> Pending<'w, Result<bool, TaskError>> {
    Box::pin(async move {
        if depth > MAX_TREE_DEPTH {
            let path = walk.full_path(prefix.trim_end_matches('/'));
            return Err(TaskError::new(format!(
                "{path} is more than {MAX_TREE_DEPTH} directories deep: no task copies such a tree"
            )));
        }
        let entries = source.entries(walk, &prefix)?;
        let old_count = walk.changes.count();
        let mut keeps_entry = false;
        if let Some(dir) = target.as_deref() {
            keeps_entry = remove_others(walk, dir, &entries, &prefix, depth).await?;
        }
        keeps_entry |= !entries.is_empty();
        for (name, entry) in &entries {
            // Other work of the agent goes on between two files.
            tokio::task::yield_now().await;
            let path = format!("{prefix}{name}");
            let dir = target.as_deref();
            let present = make_way(walk, dir, name, entry, &path, depth).await?;
            let file_source = match (entry, &source) {
                (SourceEntry::Blob(hash), _) => FileSource::Blob(*hash),
                (SourceEntry::HostFile(version), SourceDir::HostDir(dir)) => {
                    FileSource::HostFile { dir: &**dir, name, version: *version }
                }
                _ => {
                    let subdir = walk.enter(dir, name, &path, present.is_some())?;
                    let subsource = source.open(name, entry)?;
                    sync_dir(walk, subdir, subsource, format!("{path}/"), depth + 1).await?;
                    continue;
                }
            };
            walk.sync_file(dir, name, &file_source, &path, present)?;
        }
        if let Some(dir) = target.as_deref()
            && walk.is_applying
            && walk.changes.count() != old_count
        {
            dir.sync()?;
        }
        Ok(keeps_entry)
    })
}

/// Removes an entry of another kind from the place of `entry`. Returns the version of the entry that then is there.
async fn make_way(
    walk: &mut TreeWalk<'_>,
    dir: Option<&dyn Dir>,
    name: &str,
    entry: &SourceEntry<'_>,
    path: &str,
    depth: usize,
) -> Result<Option<FileVersion>, TaskError> {
    let Some(dir) = dir else { return Ok(None) };
    let Some(version) = dir.version(name)? else { return Ok(None) };
    let found = version.stat.kind;
    let wanted = match entry {
        SourceEntry::Blob(_) | SourceEntry::HostFile(_) => FileKind::File,
        SourceEntry::BlobDir(_) | SourceEntry::HostDir => FileKind::Directory,
    };
    if found == wanted {
        return Ok(Some(version));
    }
    if !walk.tree.is_exact {
        return Err(walk.wrong_kind(path, wanted, found));
    }
    // A file replaces a link or a special file by its rename.
    if wanted == FileKind::File && found != FileKind::Directory {
        return Ok(Some(version));
    }
    if remove_entry(walk, dir, name, found, path, depth).await? {
        return Err(TaskError::new(format!(
            "{} has entries that `ignore` names, and {} was expected there: move it away",
            walk.full_path(path),
            wanted.as_str()
        )));
    }
    if walk.is_applying { Ok(dir.version(name)?) } else { Ok(None) }
}

/// Removes what the source does not have from a directory, or lists it. Returns whether an entry is kept.
async fn remove_others(
    walk: &mut TreeWalk<'_>,
    dir: &dyn Dir,
    entries: &BTreeMap<String, SourceEntry<'_>>,
    prefix: &str,
    depth: usize,
) -> Result<bool, TaskError> {
    let mut keeps_entry = false;
    let odd_names = dir.non_utf8_names()?;
    if walk.tree.is_exact && walk.is_applying {
        let random = || format!("{TEMPORARY_PREFIX}{:016x}", walk.site.host.random());
        dir.rename_non_utf8_names(&mut { random })?;
    } else if walk.tree.is_exact {
        for (name, _) in &odd_names {
            walk.changes.add('-', &format!("{prefix}{name}"));
        }
    } else {
        keeps_entry = !odd_names.is_empty();
    }
    for name in dir.names()? {
        if entries.contains_key(&name) {
            continue;
        }
        let Some(stat) = dir.stat(&name)? else { continue };
        let path = format!("{prefix}{name}");
        let is_other = walk.tree.is_exact && !walk.tree.ignored.matches(&path, stat.kind == FileKind::Directory);
        if is_other || walk.is_leftover(&name, &stat) {
            keeps_entry |= remove_entry(walk, dir, &name, stat.kind, &path, depth).await?;
        } else {
            keeps_entry = true;
        }
    }
    Ok(keeps_entry)
}

/// Removes an entry, or lists it. Of a directory, what the task ignores is kept. Returns whether something is kept. Fails
/// before a mount point.
async fn remove_entry(
    walk: &mut TreeWalk<'_>,
    dir: &dyn Dir,
    name: &str,
    kind: FileKind,
    path: &str,
    depth: usize,
) -> Result<bool, TaskError> {
    if dir.is_mount_point(name)? {
        return Err(TaskError::new(format!(
            "something is mounted at {}, and a mount point is not removed: unmount it (`umount`), or name it in `ignore`",
            walk.full_path(path)
        )));
    }
    if kind != FileKind::Directory {
        walk.changes.add('-', path);
        walk.find_obstacle(dir, name);
        if walk.is_applying {
            dir.remove(name)?;
        }
        return Ok(false);
    }
    let subdir = dir.dir(name)?;
    if sync_dir(walk, subdir, SourceDir::Nothing, format!("{path}/"), depth + 1).await? {
        return Ok(true);
    }
    walk.changes.add('-', &format!("{path}/"));
    walk.find_obstacle(dir, name);
    if walk.is_applying {
        dir.remove_dir(name)?;
    }
    Ok(false)
}
