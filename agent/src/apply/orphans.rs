//! Orphans: files that tasks wrote on this host and that no task manages now, because the task was removed, moved to
//! other nodes, or names another path. Orphans are not deleted, because nobody requested it. They are reported until a
//! person removes them or a task manages them again.
//!
//! Only the root half knows these files. A controller forgets the tasks of a release with the release, and does not
//! know for how long a host that was not connected went on to run them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use stemma_core::object::MAX_FACT_VALUE_BYTES;
use stemma_core::status::OrphanedPath;
use stemma_core::task::{Mode, PathContent, TaskKind, task_type};
use stemma_wire::message::desired::{Profile, ProfileTask};

use super::applier::{applier, written_path};
use super::ledger::{Desired, PROGRESS, WRITTEN_FILES};
use super::task::{HostTask, Site};
use crate::host::{FileKind, HostError, HostPath};

/// Maximum number of orphans that a report or the text output of `stemma-agent status` lists.
pub const MAX_LISTED_ORPHANS: usize = 64;

/// Maximum number of paths in the record of written files.
const MAX_RECORDED_FILES: usize = 8192;
/// Maximum size of all paths and task ids in the record of written files, in bytes. The ledger can read such a record.
const MAX_RECORDED_BYTES: usize = 4 * 1024 * 1024;

/// The id of a task that wrote each file, by the path of the file. [`record_written`] chooses between several tasks.
pub type WrittenFiles = BTreeMap<String, String>;

/// Adds the files that tasks have written to the record on disk, each with its task. A file beyond the size limits of
/// the record is omitted.
///
/// If the record names another task for a file, that entry changes only if `still_writes(path, task)` is false for the
/// recorded task.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn record_written(site: &Site, written: &WrittenFiles, still_writes: impl Fn(&str, &str) -> bool) -> Result<(), HostError> {
    let recorded = site.ledger.get(&WRITTEN_FILES)?.unwrap_or_default();
    let mut updated = recorded.clone();
    let mut bytes: usize = updated.iter().map(|(path, task)| path.len() + task.len()).sum();
    for (path, task) in written {
        bytes += path.len() + task.len();
        let has_room = updated.contains_key(path) || (updated.len() < MAX_RECORDED_FILES && bytes <= MAX_RECORDED_BYTES);
        if has_room && updated.get(path).is_none_or(|recorded_task| !still_writes(path, recorded_task)) {
            updated.insert(path.clone(), task.clone());
        }
    }
    if updated == recorded { Ok(()) } else { site.ledger.put(&WRITTEN_FILES, &updated) }
}

/// Creates the record of written files, with the files of the tasks that succeeded, if it does not exist because an
/// older agent ran the tasks. Does nothing if the mode of the desired state is not `apply`.
///
/// The caller does this directly before it replaces the task set, because the record is not needed earlier. So an
/// upgrade of the agent alone writes nothing.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn fill_record(site: &Site, desired: &Desired, profile: &Profile) -> Result<(), HostError> {
    if site.ledger.get(&WRITTEN_FILES)?.is_some() || desired.mode() != Mode::Apply {
        return Ok(());
    }
    let progress = site.ledger.get(&PROGRESS)?.unwrap_or_default();
    let has_succeeded = |task: &&ProfileTask| {
        progress.tasks.get(&task.id).is_some_and(|record| record.task_set == desired.digest && record.outcome.is_success())
    };
    let files = profile.tasks.iter().filter(has_succeeded).filter_map(|task| {
        let host_task = HostTask::new(task, &desired.task_set.inputs).ok()?;
        let is_applied = host_task.task.mode.unwrap_or_default() == Mode::Apply;
        let path = lasting_path(site, &host_task).filter(|_| is_applied)?;
        Some((path.to_string(), task.id.clone()))
    });
    // There is no record yet, so no entry of another task could be replaced.
    record_written(site, &files.collect(), |_, _| false)
}

/// Returns the path of the file that a task writes as a whole, or `None` if it writes none. Such a file stays on the
/// host after the task is removed.
#[must_use]
pub fn lasting_path(site: &Site, task: &HostTask) -> Option<HostPath> {
    written_path(site, task).filter(|(_, content)| *content == PathContent::File).map(|(path, _)| path)
}

/// Returns the orphans: the recorded files that still exist and that no task of this desired state manages.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn orphans(site: &Site, desired: &Desired, profile: &Profile) -> Result<Vec<OrphanedPath>, HostError> {
    let written = site.ledger.get(&WRITTEN_FILES)?.unwrap_or_default();
    Ok(find_orphans(site, desired, profile, &written).0)
}

/// Returns the same files as [`orphans`]. Also removes from the record the unmanaged files that no longer exist. If a
/// file appears at such a path later, it is not from a task.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn prune_orphans(site: &Site, desired: &Desired, profile: &Profile) -> Result<Vec<OrphanedPath>, HostError> {
    let mut written = site.ledger.get(&WRITTEN_FILES)?.unwrap_or_default();
    let (orphans, missing_paths) = find_orphans(site, desired, profile, &written);
    if !missing_paths.is_empty() {
        written.retain(|path, _| !missing_paths.contains(path));
        site.ledger.put(&WRITTEN_FILES, &written)?;
    }
    Ok(orphans)
}

/// Returns the recorded files that no task manages now: those that still exist, and the paths of those that no longer
/// exist. A file whose existence cannot be checked is in neither result.
fn find_orphans(
    site: &Site,
    desired: &Desired,
    profile: &Profile,
    written: &WrittenFiles,
) -> (Vec<OrphanedPath>, BTreeSet<String>) {
    let (mut orphans, mut missing_paths) = (Vec::new(), BTreeSet::new());
    for (path, task) in unmanaged_files(site, desired, profile, written) {
        match is_file_present(site, path) {
            Ok(true) => orphans.push(OrphanedPath { task: task.clone(), path: path.clone() }),
            Ok(false) => {
                missing_paths.insert(path.clone());
            }
            Err(_) => {}
        }
    }
    (orphans, missing_paths)
}

/// Returns the value of the fact that reports orphans: a JSON list, limited by [`MAX_LISTED_ORPHANS`] and
/// [`MAX_FACT_VALUE_BYTES`]. Its last item is the number of omitted files, if any. Returns `None` without orphans.
pub fn orphans_fact(orphans: &[OrphanedPath]) -> Option<String> {
    let mut entries = Vec::new();
    // The initial value reserves room for the brackets and for the number of omitted files.
    let mut bytes = 64;
    for orphan in orphans.iter().take(MAX_LISTED_ORPHANS) {
        let entry = json!(orphan);
        // One more byte for the comma.
        bytes += entry.to_string().len() + 1;
        if bytes > MAX_FACT_VALUE_BYTES {
            break;
        }
        entries.push(entry);
    }
    let omitted_count = orphans.len() - entries.len();
    entries.extend((omitted_count > 0).then(|| json!({"more": omitted_count})));
    (!orphans.is_empty()).then(|| json!(entries).to_string())
}

/// Returns the recorded files that no task of this desired state manages, each with the task that wrote it.
///
/// If this agent cannot read a task, the result omits the files that are recorded for that task. The task may still
/// manage them.
fn unmanaged_files<'a>(
    site: &Site,
    desired: &Desired,
    profile: &Profile,
    written: &'a WrittenFiles,
) -> Vec<(&'a String, &'a String)> {
    if written.is_empty() {
        return Vec::new();
    }
    let (mut managed_paths, mut unreadable_tasks) = (BTreeSet::new(), BTreeSet::new());
    for task in profile.tasks.iter().filter(|task| desired.task_set.runs_task(&task.id)) {
        match managed_file(site, desired, task) {
            ManagedFile::Files(paths) => managed_paths.extend(paths.iter().map(ToString::to_string)),
            ManagedFile::Unknown => {
                unreadable_tasks.insert(task.id.as_str());
            }
            ManagedFile::Nothing => {}
        }
    }
    written.iter().filter(|(path, task)| !managed_paths.contains(*path) && !unreadable_tasks.contains(task.as_str())).collect()
}

/// The file that a task manages.
enum ManagedFile {
    /// The paths of the files.
    Files(Vec<HostPath>),
    /// The task manages no file.
    Nothing,
    /// It is unknown which file the task manages ([`managed_file`] names the causes).
    Unknown,
}

/// Returns the file that a task manages. The result is `Unknown` if this agent cannot read the task, does not support
/// its type, or cannot determine the path of a `file` task (invalid parameters, or a template that fails).
fn managed_file(site: &Site, desired: &Desired, task: &ProfileTask) -> ManagedFile {
    let Ok(task) = HostTask::new(task, &desired.task_set.inputs) else { return ManagedFile::Unknown };
    let Some(kind) = task_type(&task.task.kind).map(|task_type_def| task_type_def.kind) else { return ManagedFile::Unknown };
    match applier(kind).map(|applier| applier.managed_paths(site, &task)) {
        Some(paths) if !paths.is_empty() => ManagedFile::Files(paths),
        Some(_) if kind != TaskKind::File => ManagedFile::Nothing,
        Some(_) | None => ManagedFile::Unknown,
    }
}

/// Returns whether a regular file is at the path. If a link is part of the path, or another kind of file has the name,
/// the file that the task wrote no longer exists, and the result is `false`.
fn is_file_present(site: &Site, path: &str) -> Result<bool, HostError> {
    let Ok(path) = HostPath::parse(path) else { return Ok(false) };
    let stat = site.host.parent_dir(&path).and_then(|dir| dir.map_or(Ok(None), |dir| dir.stat(path.name())));
    match stat {
        Ok(stat) => Ok(stat.is_some_and(|stat| stat.kind == FileKind::File)),
        Err(error) if error.is_about_file() => Ok(false),
        Err(error) => Err(error),
    }
}
