//! Functions about the task sets that were released to nodes. They read the released records in the model.

use std::collections::BTreeSet;

use stemma_core::digest::{DigestVersion, TaskDigest};
use stemma_core::object::NodeId;
use stemma_core::resolve::ResolvedNode;
use stemma_core::rollout::{RecordSize, ReleaseCandidate, ReleaseKey};
use stemma_wire::message::PartDigest;
use uuid::Uuid;

use super::Model;
use crate::records::reported::{ProfileRecord, ReleasedRecord};

/// Returns the ids of the tasks in a released task set, without those that are left out (for example by a condition).
pub(crate) fn task_ids<'a>(model: &'a Model, released: &'a ReleasedRecord) -> impl Iterator<Item = &'a str> {
    released.running_tasks(profile(model, released))
}

/// Returns the ids of the released tasks that affect the node's state: those that its host runs or checks. A task whose
/// own mode is `observe` is left out, even though an agent of an older version checks it as in mode `noop`.
pub(crate) fn counted_task_ids<'a>(model: &'a Model, released: &'a ReleasedRecord) -> impl Iterator<Item = &'a str> {
    let observed = observe_mode_task_ids(model, released);
    task_ids(model, released).filter(move |task| observed.is_none_or(|observed| !observed.contains(*task)))
}

/// Returns the ids of the tasks in a task set's profile that hosts neither run nor check, because their own mode is
/// `observe`. Tasks that are left out on this node are included. Returns `None` without a stored profile.
pub(crate) fn observe_mode_task_ids<'a>(model: &'a Model, released: &ReleasedRecord) -> Option<&'a BTreeSet<String>> {
    profile(model, released).map(ProfileRecord::observed)
}

/// Returns the profile of a released task set: the stored definitions and order of its tasks. The task set refers to
/// the profile by its hash. Returns `None` if the task set has no profile, or if the profile is not stored.
fn profile<'a>(model: &'a Model, released: &ReleasedRecord) -> Option<&'a ProfileRecord> {
    released.base().profile.and_then(|hash| model.profiles.get(&hash)).map(|profile| &**profile)
}

/// Returns the digests of a released task set, one for each version of the protocol with agents. A host names its task
/// set by the digest of the version that its agent supports.
pub(crate) fn task_set_digests(model: &Model, released: &ReleasedRecord) -> Vec<PartDigest> {
    released.digests(profile(model, released))
}

/// Returns a function that checks whether a task is in the task set that was released to a node. Returns `None` if no
/// task was released to the node.
pub(crate) fn task_filter(model: &Model, node: Uuid) -> Option<impl Fn(&str) -> bool> {
    let released = model.released.get(&node)?;
    task_ids(model, released).next()?;
    Some(move |id: &str| task_ids(model, released).any(|task| task == id))
}

/// Returns whether a task is in the task set that was released to a node.
pub(crate) fn is_released(model: &Model, node: Uuid, task: &str) -> bool {
    model.released.get(&node).is_some_and(|released| task_ids(model, released).any(|id| id == task))
}

/// Returns the candidate for the next release to a node: the keys of the task set that the node should have now and of
/// the one that was released last, and the reasons that withhold the first, such as a hold.
pub(crate) fn candidate<'a>(model: &Model, resolved: &'a ResolvedNode) -> ReleaseCandidate<'a> {
    let released = model.released.get(&resolved.id().0);
    // Both task sets are compared by the digest version of the released one. Otherwise a newer digest version would
    // cause a release by itself.
    let digest_version =
        released.and_then(|released| DigestVersion::from_number(released.base().digest_version)).unwrap_or(DigestVersion::LATEST);
    // The key of a task set has the values by which it is compared with another task set. `filter` returns whether the
    // released task set runs a task.
    let key = released.map(|released| release_key(model, released, digest_version));
    let filter = task_filter(model, resolved.id().0);
    ReleaseCandidate::from_resolved(resolved, key, digest_version, filter.as_ref().map(|filter| filter as &dyn Fn(&str) -> bool))
}

/// Returns the parts of a released task set with which the next one is compared, to decide whether it must be released.
fn release_key(model: &Model, released: &ReleasedRecord, version: DigestVersion) -> ReleaseKey {
    let task_set = released.base();
    // Hosts do not start untranslated tasks, those that an import of a release could not translate. The digest of
    // version 1 does not depend on them, so the key lists them separately.
    let profile = profile(model, released).filter(|_| version == DigestVersion::V1);
    let untranslated = profile.into_iter().flat_map(ProfileRecord::untranslated);
    ReleaseKey {
        mode: task_set.mode,
        tasks: task_set.profile.map(|_| TaskDigest(task_set.task_digest)),
        untranslated_ids: untranslated.filter(|id| released.runs_task(id)).cloned().collect(),
    }
}

/// Returns the size of a node's own values in the stored record of its released task set. Values that many nodes share
/// are not counted. `next` is `None`: a caller that is about to release another task set must set it.
pub(crate) fn record_size(model: &Model, node: Uuid) -> RecordSize {
    RecordSize {
        node: NodeId(node),
        cluster: model.fleet.cluster_of_node(NodeId(node)),
        stored: model.released.get(&node).map(|record| record.own_bytes()),
        next: None,
    }
}
