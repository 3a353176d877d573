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

/// Maximum number of files that a report or `status` names.
pub const MAX_NAMED: usize = 64;

/// Maximum size of the record, in paths and in bytes, so that the ledger can read it.
const MAX_RECORDED_FILES: usize = 8192;
const MAX_RECORDED_BYTES: usize = 4 * 1024 * 1024;

/// The task that last wrote each file, by path.
pub type WrittenFiles = BTreeMap<String, String>;

/// Records the files that tasks have written, each with its task. If the record names another task for a file, this
/// does not change while that task still writes the file, which `keeps(path, task)` tells.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn record_written(site: &Site, written: &WrittenFiles, keeps: impl Fn(&str, &str) -> bool) -> Result<(), HostError> {
    let recorded = site.ledger.get(&WRITTEN_FILES)?.unwrap_or_default();
    let mut updated = recorded.clone();
    let mut bytes: usize = updated.iter().map(|(path, task)| path.len() + task.len()).sum();
    for (path, task) in written {
        bytes += path.len() + task.len();
        let has_room = updated.contains_key(path) || (updated.len() < MAX_RECORDED_FILES && bytes <= MAX_RECORDED_BYTES);
        if has_room && updated.get(path).is_none_or(|by| !keeps(path, by)) {
            updated.insert(path.clone(), task.clone());
        }
    }
    if updated == recorded { Ok(()) } else { site.ledger.put(&WRITTEN_FILES, &updated) }
}

/// Creates the record of written files if an older agent, which kept none, ran the tasks: it gets the files of the
/// tasks that ended well. Call this before the task set is replaced. Until then the record is not needed, so an upgrade
/// of the agent alone writes nothing.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn fill_record(site: &Site, desired: &Desired, profile: &Profile) -> Result<(), HostError> {
    if site.ledger.get(&WRITTEN_FILES)?.is_some() || desired.mode() != Mode::Apply {
        return Ok(());
    }
    let progress = site.ledger.get(&PROGRESS)?.unwrap_or_default();
    let ended_well = |task: &&ProfileTask| {
        progress.tasks.get(&task.id).is_some_and(|last| last.task_set == desired.digest && last.outcome.is_success())
    };
    let files = profile.tasks.iter().filter(ended_well).filter_map(|task| {
        let read = HostTask::new(task, &desired.task_set.inputs).ok()?;
        let is_applied = read.task.mode.unwrap_or_default() == Mode::Apply;
        let path = lasting_path(site, &read).filter(|_| is_applied)?;
        Some((path.to_string(), task.id.clone()))
    });
    record_written(site, &files.collect(), |_, _| false)
}

/// Returns the file that a task writes and that stays on the host when the task is removed, if it writes one.
#[must_use]
pub fn lasting_path(site: &Site, task: &HostTask) -> Option<HostPath> {
    written_path(site, task).filter(|(_, content)| *content == PathContent::File).map(|(path, _)| path)
}

/// Returns the files that no task of a set manages and that still exist.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn orphans(site: &Site, desired: &Desired, profile: &Profile) -> Result<Vec<OrphanedPath>, HostError> {
    let written = site.ledger.get(&WRITTEN_FILES)?.unwrap_or_default();
    Ok(find_orphans(site, desired, profile, &written).0)
}

/// Like [`orphans`], and removes files that no longer exist from the record, because a file that appears at such a path
/// later was not written by a task.
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

/// Returns the unmanaged files that exist, and the paths of unmanaged files that do not exist. A path that cannot be
/// checked is in neither result.
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

/// Returns the value of the fact that reports orphans, as JSON: as many files as fit, then the number of the others.
/// Returns `None` if there are no orphans.
pub fn orphans_fact(orphans: &[OrphanedPath]) -> Option<String> {
    let mut named = Vec::new();
    // The initial value leaves room for the brackets and for the number of files that are not named.
    let mut bytes = 64;
    for orphan in orphans.iter().take(MAX_NAMED) {
        let entry = json!(orphan);
        bytes += entry.to_string().len() + 1;
        if bytes > MAX_FACT_VALUE_BYTES {
            break;
        }
        named.push(entry);
    }
    let more = orphans.len() - named.len();
    named.extend((more > 0).then(|| json!({"more": more})));
    (!orphans.is_empty()).then(|| json!(named).to_string())
}

/// Returns the recorded files that no task of a set manages, each with the task that wrote it. If this agent cannot
/// read a task, the files recorded for that task count as managed, because the task may still manage them.
fn unmanaged_files<'a>(
    site: &Site,
    desired: &Desired,
    profile: &Profile,
    written: &'a WrittenFiles,
) -> Vec<(&'a String, &'a String)> {
    if written.is_empty() {
        return Vec::new();
    }
    let (mut paths, mut unreadable) = (BTreeSet::new(), BTreeSet::new());
    for task in profile.tasks.iter().filter(|task| desired.task_set.runs_task(&task.id)) {
        match managed_file(site, desired, task) {
            ManagedFile::File(path) => {
                paths.insert(path.to_string());
            }
            ManagedFile::Unknown => {
                unreadable.insert(task.id.as_str());
            }
            ManagedFile::Nothing => {}
        }
    }
    written.iter().filter(|(path, task)| !paths.contains(*path) && !unreadable.contains(task.as_str())).collect()
}

/// The file that a task manages.
enum ManagedFile {
    File(HostPath),
    Nothing,
    /// The task cannot be read here.
    Unknown,
}

/// Returns which file a task manages, if this agent can tell.
fn managed_file(site: &Site, desired: &Desired, task: &ProfileTask) -> ManagedFile {
    let Ok(task) = HostTask::new(task, &desired.task_set.inputs) else { return ManagedFile::Unknown };
    let Some(kind) = task_type(&task.task.kind).map(|known| known.kind) else { return ManagedFile::Unknown };
    match applier(kind).map(|applier| applier.managed_path(site, &task)) {
        Some(Some(path)) => ManagedFile::File(path),
        Some(None) if kind != TaskKind::File => ManagedFile::Nothing,
        Some(None) | None => ManagedFile::Unknown,
    }
}

/// Returns whether a regular file is at the path. If a link is part of the path, or another object has the name, the
/// file of the task is gone.
fn is_file_present(site: &Site, path: &str) -> Result<bool, HostError> {
    let Ok(path) = HostPath::parse(path) else { return Ok(false) };
    let stat = site.host.parent_dir(&path).and_then(|dir| dir.map_or(Ok(None), |dir| dir.stat(path.name())));
    match stat {
        Ok(stat) => Ok(stat.is_some_and(|stat| stat.kind == FileKind::File)),
        Err(error) if error.is_about_file() => Ok(false),
        Err(error) => Err(error),
    }
}
