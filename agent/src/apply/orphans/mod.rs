//! Orphans: files and other objects that tasks left on this host and that no task manages now, because the task was
//! removed, moved to other nodes, or names another object. They are reported until a person removes them or a task manages
//! them again. They are removed only if the nodegroup has `remove_orphans` (see [`removal`]).
//!
//! Only the root half knows these objects. A controller forgets the tasks of a release with the release, and does not
//! know for how long a host that was not connected went on to run them.

pub mod removal;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use stemma_core::object::MAX_FACT_VALUE_BYTES;
use stemma_core::status::{CleanUpReport, OrphanedObject};
use stemma_core::task::{Mode, TaskKind, task_type};
use stemma_wire::message::desired::{Profile, ProfileTask};

use super::applier::{ManagedObject, applier};
use super::ledger::{Desired, HostObject, LEFT_OBJECTS, LeftObject, ObjectKind, PROGRESS, WRITTEN_FILES};
use super::task::{HostTask, Site};
use crate::host::{FileKind, HostError, HostPath};

/// Maximum number of orphans that a report or the text output of `stemma-agent status` lists.
pub const MAX_LISTED_ORPHANS: usize = 64;

/// Maximum number of clean-ups that a report lists.
const MAX_LISTED_CLEAN_UPS: usize = 16;
/// Maximum number of objects in the record of left objects.
const MAX_RECORDED_OBJECTS: usize = 8192;
/// Maximum size of all names and task ids in the record of left objects, in bytes. The ledger can read such a record.
const MAX_RECORDED_BYTES: usize = 4 * 1024 * 1024;

/// The objects that tasks left, each with the task that left it. [`record_left`] chooses between several tasks.
pub type LeftObjects = BTreeMap<HostObject, LeftObject>;

/// The recorded objects that no task manages now.
struct Unmanaged {
    /// The objects that still exist, without services that are not enabled and do not run.
    orphans: LeftObjects,
    /// The objects that no longer exist.
    missing: BTreeSet<HostObject>,
}

impl ObjectKind {
    /// Returns the name of the kind in reports and in JSON. The name never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "link",
            Self::Package => "package",
            Self::Unit => "unit",
            Self::User => "user",
            Self::Group => "group",
        }
    }

    /// Returns the kind of the file at the path of such an object. Returns `None` for objects without a path.
    pub(super) const fn file_kind(self) -> Option<FileKind> {
        match self {
            Self::File => Some(FileKind::File),
            Self::Directory => Some(FileKind::Directory),
            Self::Link => Some(FileKind::Link),
            Self::Package | Self::Unit | Self::User | Self::Group => None,
        }
    }

    /// Returns the type of the tasks whose applier knows whether such an object exists. Returns `None` for objects with a
    /// path.
    const fn task_kind(self) -> Option<TaskKind> {
        match self {
            Self::File | Self::Directory | Self::Link => None,
            Self::Package => Some(TaskKind::Package),
            Self::Unit => Some(TaskKind::Service),
            Self::User => Some(TaskKind::User),
            Self::Group => Some(TaskKind::GroupAccount),
        }
    }
}

/// Returns the record of left objects. Objects from the record of an older agent, which recorded only files, are added.
///
/// # Errors
/// [`HostError`] from the ledger.
fn recorded_objects(site: &Site) -> Result<LeftObjects, HostError> {
    let mut objects = site.ledger.get(&LEFT_OBJECTS)?.unwrap_or_default();
    for (path, task) in site.ledger.get(&WRITTEN_FILES)?.unwrap_or_default() {
        let is_secret = HostPath::parse(&path).is_ok_and(|path| site.ledger.is_secret_path(&path).unwrap_or(true));
        let is_created = site.ledger.is_created_by_task(&path)?;
        let left = LeftObject { task, is_secret, is_created, digest: None };
        objects.entry((ObjectKind::File, path)).or_insert(left);
    }
    Ok(objects)
}

/// Stores the record of left objects, which then contains everything of the record of an older agent.
fn store_objects(site: &Site, objects: &LeftObjects) -> Result<(), HostError> {
    site.ledger.put(&LEFT_OBJECTS, objects)?;
    site.ledger.remove(&WRITTEN_FILES)
}

/// Adds the objects that tasks have left to the record on disk, each with its task. An object beyond the size limits of
/// the record is omitted.
///
/// If the record names another task for an object, that entry changes only if `still_leaves(object, task)` is false for
/// the recorded task. An object that a task of an earlier task set created still counts as created.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn record_left(
    site: &Site,
    left: &LeftObjects,
    mut still_leaves: impl FnMut(&HostObject, &str) -> bool,
) -> Result<(), HostError> {
    let recorded = recorded_objects(site)?;
    let mut updated = recorded.clone();
    let mut bytes: usize = updated.iter().map(|((_, name), left)| name.len() + left.task.len()).sum();
    for (object, left) in left {
        let recorded = updated.get(object);
        let added_bytes = if recorded.is_some() { 0 } else { object.1.len() + left.task.len() };
        let has_room = recorded.is_some() || (updated.len() < MAX_RECORDED_OBJECTS && bytes + added_bytes <= MAX_RECORDED_BYTES);
        if has_room && recorded.is_none_or(|recorded| recorded.task == left.task || !still_leaves(object, &recorded.task)) {
            let is_created = recorded.map_or(left.is_created, |recorded| recorded.is_created);
            updated.insert(object.clone(), LeftObject { is_created, ..left.clone() });
            bytes += added_bytes;
        }
    }
    if updated == recorded { Ok(()) } else { store_objects(site, &updated) }
}

/// Creates the record of left objects, with those of the tasks that succeeded, if it does not exist because an older
/// agent ran the tasks. Does nothing if the mode of the desired state is not `apply`.
///
/// The caller does this directly before it replaces the task set, because the record is not needed earlier. So an
/// upgrade of the agent alone writes nothing.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn fill_record(site: &Site, desired: &Desired, profile: &Profile) -> Result<(), HostError> {
    let has_record = site.ledger.get(&LEFT_OBJECTS)?.is_some() || site.ledger.get(&WRITTEN_FILES)?.is_some();
    if has_record || desired.mode() != Mode::Apply {
        return Ok(());
    }
    let progress = site.ledger.get(&PROGRESS)?.unwrap_or_default();
    let has_succeeded = |task: &&ProfileTask| {
        progress.tasks.get(&task.id).is_some_and(|record| record.task_set == desired.digest && record.outcome.is_success())
    };
    let objects = profile.tasks.iter().filter(has_succeeded).flat_map(|task| {
        let host_task = HostTask::new(task, &desired.task_set.inputs).ok();
        let applied_task = host_task.filter(|host_task| host_task.task.mode.unwrap_or_default() == Mode::Apply);
        applied_task.map(|host_task| left_records(site, &host_task)).unwrap_or_default()
    });
    // There is no record yet, so no entry of another task could be replaced.
    record_left(site, &objects.collect(), |_, _| false)
}

/// Returns the objects that a task leaves on the host when the task is removed. Returns none if they cannot be
/// determined.
#[must_use]
pub fn left_objects(site: &Site, task: &HostTask) -> Vec<ManagedObject> {
    let applier = task_type(&task.task.kind).and_then(|definition| applier(definition.kind));
    let mut objects = applier.and_then(|applier| applier.managed_objects(site, task)).unwrap_or_default();
    objects.retain(|object| object.is_left);
    objects
}

/// Returns the objects that a task leaves on the host if it succeeds, in the form of the record.
#[must_use]
pub fn left_records(site: &Site, task: &HostTask) -> Vec<(HostObject, LeftObject)> {
    let applier = task_type(&task.task.kind).and_then(|definition| applier(definition.kind));
    let record = |ManagedObject { key, digest, .. }: ManagedObject| {
        // If the note cannot be read, the object counts as one that existed before.
        let is_created = key.0.file_kind().is_some() && site.ledger.is_created_by_task(&key.1).unwrap_or(false);
        let digest = digest.or_else(|| applier.and_then(|applier| applier.written_digest(site, task)));
        (key, LeftObject { task: task.task.id.clone(), is_secret: task.is_sensitive(), is_created, digest })
    };
    left_objects(site, task).into_iter().map(record).collect()
}

/// Returns the orphans: the recorded objects that still exist and that no task of this desired state manages.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn orphans(site: &Site, desired: &Desired, profile: &Profile) -> Result<Vec<OrphanedObject>, HostError> {
    let recorded = recorded_objects(site)?;
    reported_orphans(site, &find_unmanaged(site, desired, profile, &recorded).orphans, |_| None)
}

/// Returns the same objects as [`orphans`], each with the reason of `kept_reason` why it is not removed. Also removes from
/// the record the unmanaged objects that no longer exist. If an object with such a name appears later, it is not from a
/// task.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn prune_orphans(
    site: &Site,
    desired: &Desired,
    profile: &Profile,
    kept_reason: impl Fn(&HostObject) -> Option<String>,
) -> Result<Vec<OrphanedObject>, HostError> {
    let mut recorded = recorded_objects(site)?;
    let unmanaged = find_unmanaged(site, desired, profile, &recorded);
    remove_records(site, &mut recorded, &unmanaged.missing)?;
    reported_orphans(site, &unmanaged.orphans, kept_reason)
}

/// Removes objects from the record on disk. Also removes the notes that tasks created them.
fn remove_records(site: &Site, recorded: &mut LeftObjects, objects: &BTreeSet<HostObject>) -> Result<(), HostError> {
    if objects.is_empty() {
        return Ok(());
    }
    recorded.retain(|object, _| !objects.contains(object));
    store_objects(site, recorded)?;
    objects.iter().filter(|(kind, _)| kind.file_kind().is_some()).try_for_each(|(_, path)| site.ledger.forget_creation(path))
}

/// Returns orphans in the form of a report.
fn reported_orphans(
    site: &Site,
    orphans: &LeftObjects,
    kept_reason: impl Fn(&HostObject) -> Option<String>,
) -> Result<Vec<OrphanedObject>, HostError> {
    let report = |(object, left): (&HostObject, &LeftObject)| {
        let (kind, name) = object;
        // A path may have held a secret of another task.
        let has_held_secret = match HostPath::parse(name) {
            Ok(path) if kind.file_kind().is_some() => site.ledger.is_secret_path(&path)?,
            Ok(_) | Err(_) => false,
        };
        Ok(OrphanedObject {
            task: left.task.clone(),
            kind: kind.name().to_owned(),
            name: name.clone(),
            is_secret: left.is_secret || has_held_secret,
            kept: kept_reason(object),
        })
    };
    orphans.iter().map(report).collect()
}

/// Returns the recorded objects that no task manages now: those that are still left, and those that no longer exist. An
/// object whose existence cannot be checked is in neither list, and neither is a service that exists and is not in use.
fn find_unmanaged(site: &Site, desired: &Desired, profile: &Profile, recorded: &LeftObjects) -> Unmanaged {
    let mut unmanaged = Unmanaged { orphans: LeftObjects::new(), missing: BTreeSet::new() };
    for (object, left) in unmanaged_objects(site, desired, profile, recorded) {
        match is_present(site, object) {
            Ok(true) if is_left_now(site, object) => drop(unmanaged.orphans.insert(object.clone(), left.clone())),
            Ok(false) => drop(unmanaged.missing.insert(object.clone())),
            Ok(true) | Err(_) => {}
        }
    }
    unmanaged
}

/// Returns the value of the fact that reports orphans and clean-ups: a JSON list, limited by [`MAX_LISTED_ORPHANS`] and
/// [`MAX_FACT_VALUE_BYTES`]. Its last item is the number of omitted orphans, if any. Returns `None` if there is neither an
/// orphan nor a clean-up.
pub fn orphans_fact(orphans: &[OrphanedObject], clean_ups: &[CleanUpReport]) -> Option<String> {
    let mut entries = Vec::new();
    // The initial value reserves room for the brackets and for the number of omitted objects.
    let mut bytes = 64;
    let mut add = |entry: serde_json::Value| {
        // One more byte for the comma.
        bytes += entry.to_string().len() + 1;
        let has_room = bytes <= MAX_FACT_VALUE_BYTES;
        entries.extend(has_room.then_some(entry));
        has_room
    };
    clean_ups.iter().take(MAX_LISTED_CLEAN_UPS).all(|clean_up| add(json!(clean_up)));
    let listed_count = orphans.iter().take(MAX_LISTED_ORPHANS).take_while(|orphan| add(json!(orphan))).count();
    let omitted_count = orphans.len() - listed_count;
    entries.extend((omitted_count > 0).then(|| json!({"more": omitted_count})));
    (!entries.is_empty()).then(|| json!(entries).to_string())
}

/// Returns the recorded objects that no task of this desired state manages, each with the task that left it.
///
/// If this agent cannot read a task, the result omits the objects that are recorded for that task. The task may still
/// manage them.
fn unmanaged_objects<'a>(
    site: &Site,
    desired: &Desired,
    profile: &Profile,
    recorded: &'a LeftObjects,
) -> Vec<(&'a HostObject, &'a LeftObject)> {
    if recorded.is_empty() {
        return Vec::new();
    }
    let (mut managed, mut unreadable_tasks) = (BTreeSet::new(), BTreeSet::new());
    for task in profile.tasks.iter().filter(|task| desired.task_set.runs_task(&task.id)) {
        match managed_objects(site, desired, task) {
            Some(objects) => managed.extend(objects.into_iter().map(|object| object.key)),
            None => drop(unreadable_tasks.insert(task.id.as_str())),
        }
    }
    let is_unmanaged = |(object, left): &(&HostObject, &LeftObject)| {
        !managed.contains(*object) && !unreadable_tasks.contains(left.task.as_str())
    };
    recorded.iter().filter(is_unmanaged).collect()
}

/// Returns the objects that a task manages. The result is `None` if this agent cannot read the task, does not support its
/// type, or cannot determine the objects (invalid parameters, or a template that fails).
fn managed_objects(site: &Site, desired: &Desired, task: &ProfileTask) -> Option<Vec<ManagedObject>> {
    let task = HostTask::new(task, &desired.task_set.inputs).ok()?;
    applier(task_type(&task.task.kind)?.kind)?.managed_objects(site, &task)
}

/// Returns whether an object exists, or it is not known whether it exists.
#[must_use]
pub fn may_exist(site: &Site, object: &HostObject) -> bool {
    is_present(site, object).unwrap_or(true)
}

/// Returns whether an object that exists is reported as left, as its applier decides.
fn is_left_now(site: &Site, object: &HostObject) -> bool {
    object.0.task_kind().and_then(applier).is_none_or(|applier| applier.is_left_now(site, object))
}

/// Returns whether an object still exists. If a link is part of a path, or another kind of file has the name, the file
/// that the task wrote no longer exists, and the result is `false`.
fn is_present(site: &Site, object: &HostObject) -> Result<bool, HostError> {
    let (kind, name) = object;
    let Some(file_kind) = kind.file_kind() else {
        let applier = kind.task_kind().and_then(applier);
        return applier.map_or(Ok(true), |applier| applier.has_object(site, object));
    };
    let Ok(path) = HostPath::parse(name) else { return Ok(false) };
    match site.host.stat(&path) {
        Ok(stat) => Ok(stat.is_some_and(|stat| stat.kind == file_kind)),
        Err(error) if error.is_about_file() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::applier::testing::site;
    use crate::host::memory::MemoryHost;

    /// Regression test: an object that was recorded again took room a second time.
    #[test]
    fn record_has_room_when_objects_are_recorded_again() {
        let site = site(&MemoryHost::new());
        let left = LeftObject { task: "t".to_owned(), is_secret: false, is_created: true, digest: None };
        let objects = |count: usize| -> LeftObjects {
            (0..count).map(|number| ((ObjectKind::File, format!("/{number:03000}")), left.clone())).collect()
        };
        for count in [1000, 1001] {
            record_left(&site, &objects(count), |_, _| true).unwrap();
            assert_eq!(recorded_objects(&site).unwrap().len(), count);
        }
        record_left(&site, &objects(2000), |_, _| true).unwrap();
        let bytes: usize = recorded_objects(&site).unwrap().keys().map(|(_, name)| name.len()).sum();
        assert!((MAX_RECORDED_BYTES - 4096..MAX_RECORDED_BYTES).contains(&bytes), "{bytes}");
    }
}
