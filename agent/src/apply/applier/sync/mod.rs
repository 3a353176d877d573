//! `sync`: a directory tree from blobs or from a directory on the host. With `delete`, nothing else remains in it.
//!
//! Each file is replaced at once, and a file that is equal is left as it is. So a pass after a cut copies only what is left.
//! Each directory is an open handle. No link is followed, neither in the source nor in the tree.

mod walk;

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::task::name_rules::pattern_error;
use stemma_core::task::tree_rules::{MAX_SYNCED_FILES, agent_source_error, overlap_error, relative_path_error};
use stemma_core::task::{PathPatterns, SyncParameters};
use stemma_wire::message::Hash;

use self::walk::{TreeWalk, sync_dir};
use super::body::parse_blob;
use super::placement::{apply_default_acl, check_dir_path, note_created_parents, open_parent, owner_uid, parse_mode};
use super::{Applier, ManagedObject, parameters};
use crate::apply::ledger::{ObjectKind, SyncRecord};
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::atomic::{check_creatable, ensure_dir};
use crate::host::{Dir, HostPath, Pending};
use crate::watch::WatchScope;

/// Maximum number of directories of a tree that are watched for changes. Linux limits the watches of a user, which all
/// programs of root and all tasks share: on older kernels to 8,192.
const MAX_WATCHED_DIRS: usize = 256;

/// Maximum number of files of a tree that are watched for changes.
const MAX_WATCHED_FILES: usize = 4096;

/// The applier of `sync` tasks.
pub(super) struct SyncApplier;

/// The tree that a task wants.
struct Tree {
    path: HostPath,
    source: TreeSource,
    /// True if everything else is removed.
    is_exact: bool,
    ignored: PathPatterns,
    rights: TreeRights,
}

/// The source of a tree.
enum TreeSource {
    Blobs(BlobDir),
    HostDir(HostPath),
}

/// A directory of a tree from blobs.
#[derive(Default)]
struct BlobDir(BTreeMap<String, BlobEntry>);

/// An entry of a directory of a tree from blobs.
enum BlobEntry {
    File(Hash),
    Dir(BlobDir),
}

/// Owner, group and modes of what a task writes.
struct TreeRights {
    user: u32,
    group: u32,
    /// The mode of files, or `None` for that of the source.
    mode: Option<u32>,
    /// The mode of new directories.
    new_dir_mode: u32,
    /// Owner, group and mode that existing directories get, as far as the author sets them.
    dir_user: Option<u32>,
    dir_group: Option<u32>,
    dir_mode: Option<u32>,
}

impl BlobDir {
    /// Adds a file at a path below this directory, and the directories above it.
    fn add(&mut self, path: &str, hash: Hash) {
        match path.split_once('/') {
            None => drop(self.0.insert(path.to_owned(), BlobEntry::File(hash))),
            Some((name, rest)) => {
                let entry = self.0.entry(name.to_owned()).or_insert_with(|| BlobEntry::Dir(Self::default()));
                if let BlobEntry::Dir(dir) = entry {
                    dir.add(rest, hash);
                }
            }
        }
    }
}

impl Applier for SyncApplier {
    fn managed_paths(&self, site: &Site, task: &HostTask) -> Vec<HostPath> {
        let path =
            parameters(task).and_then(|parameters: SyncParameters| render_path(&TaskTemplates::new(site, task), &parameters));
        path.into_iter().collect()
    }

    /// Returns the directory and the files below it with their directories. Of a source on the host, these are the files that
    /// the last run compared. If there are very many, it is only the directory with their number.
    fn managed_objects(&self, site: &Site, task: &HostTask) -> Option<Vec<ManagedObject>> {
        let parameters: SyncParameters = parameters(task).ok()?;
        let top = render_path(&TaskTemplates::new(site, task), &parameters).ok()?;
        let top_key = (ObjectKind::Directory, top.to_string());
        // The digest of a file from the host is not known.
        let files: Vec<(String, Option<[u8; 32]>)> = match &parameters.src {
            Some(_) => {
                // Without a record, for example after an upgrade, it is not known which files the task manages.
                let record = site.ledger.sync_record(&task.task.id).ok()??;
                let Some(names) = record.names() else {
                    let content_count = Some(record.file_count());
                    return Some(vec![ManagedObject { content_count, ..ManagedObject::new(top_key, true) }]);
                };
                names.iter().map(|file| (file.clone(), None)).collect()
            }
            None => {
                let digest = |source: String| Hash::from_source(&source).ok().map(|hash| hash.0);
                parameters.files.into_iter().map(|(file, source)| (file, digest(source))).collect()
            }
        };
        let mut objects = BTreeMap::from([(top_key, None)]);
        for (file, digest) in files {
            let dirs = file.match_indices('/').map(|(index, _)| (ObjectKind::Directory, format!("{top}/{}", &file[..index])));
            objects.extend(dirs.map(|key| (key, None)));
            objects.insert((ObjectKind::File, format!("{top}/{file}")), digest);
        }
        Some(objects.into_iter().map(|(key, digest)| ManagedObject { digest, ..ManagedObject::new(key, true) }).collect())
    }

    /// Returns the directory, and those below it that are nearest to it. In a tree in which nothing else remains, all of their
    /// entries count. In another tree these are the files of the task, so that no file of another program causes a check.
    fn watched_paths(&self, site: &Site, task: &HostTask) -> Vec<(HostPath, WatchScope)> {
        let Ok(parameters) = parameters::<SyncParameters>(task) else { return Vec::new() };
        let Ok(top) = render_path(&TaskTemplates::new(site, task), &parameters) else { return Vec::new() };
        let files: Vec<String> = match &parameters.src {
            // The record of a very large tree has no names. Then only the directory itself is watched.
            Some(_) => {
                let record = site.ledger.sync_record(&task.task.id).ok().flatten().unwrap_or_default();
                record.names().into_iter().flatten().cloned().collect()
            }
            None => parameters.files.into_keys().collect(),
        };
        let dirs = watched_dirs(&files);
        let is_exact = parameters.delete && parameters.ignore.0.is_empty();
        let is_watched = |file: &&String| !is_exact && dirs.contains(file.rsplit_once('/').map_or("", |(dir, _)| dir));
        let scope = if is_exact { WatchScope::Entries } else { WatchScope::File };
        let watched_files = files.iter().filter(is_watched).take(MAX_WATCHED_FILES).map(|file| (file.as_str(), WatchScope::File));
        let below = dirs.iter().filter(|dir| !dir.is_empty()).map(|dir| (*dir, scope)).chain(watched_files);
        let below = below.filter_map(|(path, scope)| Some((top.join(path).ok()?, scope))).collect::<Vec<_>>();
        std::iter::once((top, scope)).chain(below).collect()
    }

    fn path_refusal(&self, site: &Site, path: &HostPath) -> Option<String> {
        let look = || {
            check_dir_path(site, "parameters.dst", path, false)?;
            open_parent(site, path)?.map_or(Ok(None), |parent| Ok(parent.dir(path.name())?))
        };
        look().err().map(|error: TaskError| error.message)
    }

    fn file_owner(&self, site: &Site, task: &HostTask) -> Option<u32> {
        let parameters: SyncParameters = parameters(task).ok()?;
        owner_uid(site, parameters.owner.as_ref()?).ok()
    }

    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            let tree = read_tree(site, task)?;
            let (target, mut walk) = compare(site, task, &tree).await?;
            if walk.changes.is_empty() {
                store_record(site, task, walk.into_record());
                return Ok(CheckResult::Converged);
            }
            let (diff, message) = (walk.changes.diff(&tree.path), walk.changes.summary());
            Ok(match check_changeable(site, &tree, target.is_some()).and_then(|()| walk.check_changes()) {
                Ok(()) => CheckResult::Drifted { diff, message },
                Err(error) => CheckResult::Blocked { diff, message: error.message },
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let tree = read_tree(site, task)?;
            // All errors of the comparison are found before the first change.
            let (target, mut planned) = compare(site, task, &tree).await.map_err(TaskError::without_effect)?;
            check_changeable(site, &tree, target.is_some()).map_err(TaskError::without_effect)?;
            planned.check_changes().map_err(TaskError::without_effect)?;
            let mut walk = TreeWalk::new((site, task), &tree, planned.into_record(), true);
            let target = if let Some(target) = target {
                target
            } else {
                walk.changes.add('+', &format!("{}/", tree.path));
                create_target(site, task, &tree)?
            };
            let result = apply_tree(&mut walk, target).await;
            let (diff, message) = (walk.changes.diff(&tree.path), walk.changes.summary());
            let mut record = walk.into_record();
            if result.is_err() {
                // The task still manages the files that the walk has not reached.
                let earlier = site.ledger.sync_record(&task.task.id).ok().flatten().unwrap_or_default();
                record.add_earlier(earlier, MAX_SYNCED_FILES);
            }
            store_record(site, task, record);
            result?;
            Ok(ApplyResult { message, diff, ..ApplyResult::default() })
        })
    }
}

/// Returns the directories of files whose paths are relative to a tree: the tree itself, which has the empty path, and the
/// nearest ones below it.
fn watched_dirs(files: &[String]) -> BTreeSet<&str> {
    let parents = |file| str::match_indices(file, '/').enumerate().map(move |(depth, (end, _))| (depth + 1, &file[..end]));
    let by_depth: BTreeSet<(usize, &str)> = files.iter().map(String::as_str).flat_map(parents).chain([(0, "")]).collect();
    by_depth.into_iter().take(MAX_WATCHED_DIRS).map(|(_, dir)| dir).collect()
}

/// Makes the changes of a walk in an existing directory.
async fn apply_tree(walk: &mut TreeWalk<'_>, target: Box<dyn Dir>) -> Result<(), TaskError> {
    walk.sync_rights(&*target, "")?;
    let source = walk.open_source()?;
    sync_dir(walk, Some(target), source, String::new(), 0).await.map(|_| ())
}

/// Compares the tree with its source. Changes nothing. Returns the directory of the tree, if it exists, and the walk with
/// the changes.
async fn compare<'a>(
    site: &'a Site,
    task: &'a HostTask,
    tree: &'a Tree,
) -> Result<(Option<Box<dyn Dir>>, TreeWalk<'a>), TaskError> {
    let open_target = || site.host.dir(&tree.path);
    let old_record = site.ledger.sync_record(&task.task.id)?.unwrap_or_default();
    let mut walk = TreeWalk::new((site, task), tree, old_record, false);
    match open_target()? {
        Some(target) => walk.sync_rights(&*target, "")?,
        None => walk.changes.add('+', &format!("{}/", tree.path)),
    }
    let source = walk.open_source()?;
    sync_dir(&mut walk, open_target()?, source, String::new(), 0).await?;
    Ok((open_target()?, walk))
}

/// Reads the parameters of the task and its source. Changes nothing.
fn read_tree(site: &Site, task: &HostTask) -> Result<Tree, TaskError> {
    let parameters: SyncParameters = parameters(task)?;
    let texts = TaskTemplates::new(site, task);
    let path = render_path(&texts, &parameters)?;
    check_dir_path(site, "parameters.dst", &path, parameters.delete)?;
    // Fails if a directory of the path is a link, or if the path belongs to the agent.
    open_parent(site, &path)?;
    let source = match &parameters.src {
        Some(template) => TreeSource::HostDir(render_source(&texts, template, &path)?),
        None => TreeSource::Blobs(blob_tree(&parameters.files)?),
    };
    let (agent_user, agent_group) = site.host.user_and_group();
    let dir_user = parameters.owner.as_ref().map(|owner| owner_uid(site, owner)).transpose()?;
    let dir_group = parameters.group.as_ref().map(|group| site.host.group_id(group)).transpose()?;
    let dir_mode = parameters.dir_mode.as_ref().map(|text| parse_mode("dir_mode", text)).transpose()?;
    let rights = TreeRights {
        user: dir_user.unwrap_or(agent_user),
        group: dir_group.unwrap_or(agent_group),
        mode: parameters.mode.as_ref().map(|text| parse_mode("mode", text)).transpose()?,
        new_dir_mode: dir_mode.map_or_else(|| apply_default_acl(site, &path, 0o755, true), Ok)?,
        dir_user,
        dir_group,
        dir_mode,
    };
    // A stored release of an older controller can have a pattern that this one refuses.
    if let Some(error) = parameters.ignore.0.iter().find_map(|pattern| pattern_error(pattern)) {
        return Err(TaskError::new(format!("parameters.ignore: {error}; nothing was changed")));
    }
    let ignored = PathPatterns::new(parameters.ignore.0);
    Ok(Tree { path, source, is_exact: parameters.delete, ignored, rights })
}

/// Renders the template of the path of the tree.
fn render_path(texts: &TaskTemplates<'_>, parameters: &SyncParameters) -> Result<HostPath, TaskError> {
    texts.path("parameters.dst", parameters.dst.as_deref().unwrap_or_default())
}

/// Renders the template of the path of the source. Fails if the source overlaps with the tree, or has the secrets of the
/// agent.
fn render_source(texts: &TaskTemplates<'_>, template: &str, path: &HostPath) -> Result<HostPath, TaskError> {
    let source = texts.path("parameters.src", template)?;
    let error = agent_source_error(source.as_str()).or_else(|| overlap_error(source.as_str(), path.as_str()));
    error.map_or(Ok(source), |error| Err(TaskError::new(format!("parameters.src: {error}; nothing was changed"))))
}

/// Returns the tree of the parameter `files`.
fn blob_tree(files: &BTreeMap<String, String>) -> Result<BlobDir, TaskError> {
    let mut tree = BlobDir::default();
    for (path, source) in files {
        if let Some(error) = relative_path_error(path) {
            return Err(TaskError::new(format!("parameters.files: {error}; nothing was changed")));
        }
        tree.add(path, parse_blob(&format!("files.{path}"), source)?);
    }
    Ok(tree)
}

/// Checks that the tree can be created or changed. Changes nothing. `exists` is true if its directory exists.
fn check_changeable(site: &Site, tree: &Tree, exists: bool) -> Result<(), TaskError> {
    if !exists {
        return Ok(check_creatable(&*site.host, &tree.path)?);
    }
    let Some(target) = site.host.dir(&tree.path)? else { return Ok(()) };
    // No entry has this name, so only obstacles of the directory and its file system are found.
    Ok(target.check_replaceable("\u{fffd}")?)
}

/// Creates the directory of the tree, and those above it.
fn create_target(site: &Site, task: &HostTask, tree: &Tree) -> Result<Box<dyn Dir>, TaskError> {
    note_created_parents(site, task, &tree.path)?;
    let target = ensure_dir(&*site.host, &tree.path, tree.rights.new_dir_mode)?;
    target.set_owner(Some(tree.rights.user), Some(tree.rights.group))?;
    target.set_mode(tree.rights.new_dir_mode)?;
    target.sync()?;
    Ok(target)
}

/// Stores which files are equal, so that the next check need not read them. An error is ignored, because then they are read
/// again.
fn store_record(site: &Site, task: &HostTask, record: SyncRecord) {
    let _ = site.ledger.set_sync_record(&task.task.id, record);
}

#[cfg(test)]
mod tests;
