//! Orphans: files and other objects that tasks left on this host and that no task manages now, because the task was
//! removed, moved to other nodes, or names another object. They are reported until a person removes them or a task manages
//! them again. They are removed only if the nodegroup has `remove_orphans` (see [`removal`]).
//!
//! Only the root half knows these objects. A controller forgets the tasks of a release with the release, and does not
//! know for how long a host that was not connected went on to run them.

mod record;
pub mod removal;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use stemma_core::object::MAX_FACT_VALUE_BYTES;
use stemma_core::status::{CleanUpReport, OrphanedObject};
use stemma_core::task::{Mode, TaskKind, task_type};
use stemma_wire::message::desired::{Profile, ProfileTask};

pub use self::record::{LeftBatch, record_left};
use self::record::{is_below, recorded_objects, recorded_trees, remove_records};
use super::applier::{ManagedObject, applier};
use super::ledger::{Desired, HostObject, LEFT_OBJECTS, LeftObject, ObjectKind, PROGRESS, WRITTEN_FILES};
use super::task::{HostTask, Site};
use crate::host::{FileKind, HostError, HostPath};

/// Maximum number of orphans that a report or the text output of `stemma-agent status` lists.
pub const MAX_LISTED_ORPHANS: usize = 64;

/// Maximum number of clean-ups that a report lists.
const MAX_LISTED_CLEAN_UPS: usize = 16;

/// The objects that tasks left, each with the task that left it. [`record_left`] chooses between several tasks.
pub type LeftObjects = BTreeMap<HostObject, LeftObject>;

/// The orphans of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanList {
    /// The orphans that the host names.
    pub objects: Vec<OrphanedObject>,
    /// The number of files in orphaned directories of trees that are so large that their files are only counted.
    pub unlisted_count: u64,
    /// The number of objects of tasks, orphaned or not, for which the record has no room. The list lacks them.
    pub omitted_count: u64,
}

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
    let mut batch = LeftBatch::default();
    for task in profile.tasks.iter().filter(has_succeeded) {
        let host_task = HostTask::new(task, &desired.task_set.inputs).ok();
        if let Some(task) = host_task.filter(|host_task| host_task.task.mode.unwrap_or_default() == Mode::Apply) {
            batch.add(site, &task);
        }
    }
    // There is no record yet, so no entry of another task could be replaced.
    record_left(site, &batch, |_, _| false)
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

/// Returns the orphans: the recorded objects that still exist and that no task of this desired state manages.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn orphans(site: &Site, desired: &Desired, profile: &Profile) -> Result<OrphanList, HostError> {
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
) -> Result<OrphanList, HostError> {
    let mut recorded = recorded_objects(site)?;
    let unmanaged = find_unmanaged(site, desired, profile, &recorded);
    remove_records(site, &mut recorded, &unmanaged.missing)?;
    reported_orphans(site, &unmanaged.orphans, kept_reason)
}

/// Returns orphans in the form of a report.
fn reported_orphans(
    site: &Site,
    orphans: &LeftObjects,
    kept_reason: impl Fn(&HostObject) -> Option<String>,
) -> Result<OrphanList, HostError> {
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
    let trees = recorded_trees(site)?;
    let tree_count = |(kind, path): &HostObject| {
        let count = trees.counts.get(path).copied().unwrap_or(0);
        if *kind == ObjectKind::Directory { count } else { 0 }
    };
    Ok(OrphanList {
        unlisted_count: orphans.keys().map(tree_count).sum(),
        objects: orphans.iter().map(report).collect::<Result<_, HostError>>()?,
        omitted_count: trees.omitted_count,
    })
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
/// [`MAX_FACT_VALUE_BYTES`]. Its last item is the number of orphans that are not listed, if any. Returns `None` if there is
/// neither an orphan nor a clean-up.
pub fn orphans_fact(orphans: &OrphanList, clean_ups: &[CleanUpReport]) -> Option<String> {
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
    let listed_count = orphans.objects.iter().take(MAX_LISTED_ORPHANS).take_while(|orphan| add(json!(orphan))).count();
    let more = (orphans.objects.len() - listed_count) as u64 + orphans.unlisted_count;
    entries.extend((more > 0).then(|| json!({"more": more})));
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
    let (mut managed, mut managed_trees, mut unreadable_tasks) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
    for task in profile.tasks.iter().filter(|task| desired.task_set.runs_task(&task.id)) {
        match managed_objects(site, desired, task) {
            Some(objects) => {
                let trees = objects.iter().filter(|object| object.content_count.is_some());
                managed_trees.extend(trees.map(|object| (task.id.as_str(), object.key.1.clone())));
                managed.extend(objects.into_iter().map(|object| object.key));
            }
            None => drop(unreadable_tasks.insert(task.id.as_str())),
        }
    }
    // The task of a large tree does not name its files.
    let is_in_tree = |object: &HostObject, task: &str| managed_trees.get(task).is_some_and(|top| is_below(object, top));
    let is_unmanaged = |(object, left): &(&HostObject, &LeftObject)| {
        !managed.contains(*object) && !unreadable_tasks.contains(left.task.as_str()) && !is_in_tree(object, &left.task)
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
