//! Functions about the task sets that were released to nodes, as the model has them.

use std::collections::BTreeSet;

use stemma_core::digest::{DigestVersion, TaskDigest};
use stemma_core::object::NodeId;
use stemma_core::resolve::ResolvedNode;
use stemma_core::rollout::{RecordSize, ReleaseCandidate, ReleaseKey};
use stemma_wire::message::PartDigest;
use uuid::Uuid;

use super::Model;
use crate::records::reported::{ProfileRecord, ReleasedRecord};

/// Returns the ids of the tasks that were released to a node.
pub(crate) fn task_ids<'a>(model: &'a Model, released: &'a ReleasedRecord) -> impl Iterator<Item = &'a str> {
    released.running_tasks(profile(model, released))
}

/// Returns the released tasks that count for the node's state: all that its host runs or checks. A task whose
/// own mode is `observe` does not count, although an older agent checks it as in mode `noop`.
pub(crate) fn counted_task_ids<'a>(model: &'a Model, released: &'a ReleasedRecord) -> impl Iterator<Item = &'a str> {
    let observed = observed_task_ids(model, released);
    task_ids(model, released).filter(move |task| observed.is_none_or(|observed| !observed.contains(*task)))
}

/// Returns the tasks of the released profile that a host neither runs nor checks because of their own mode. `None` if
/// there is no profile.
pub(crate) fn observed_task_ids<'a>(model: &'a Model, released: &ReleasedRecord) -> Option<&'a BTreeSet<String>> {
    profile(model, released).map(ProfileRecord::observed)
}

/// Returns the profile that a released task set names.
fn profile<'a>(model: &'a Model, released: &ReleasedRecord) -> Option<&'a ProfileRecord> {
    released.base().profile.and_then(|hash| model.common_values.get(&hash)).map(|profile| &**profile)
}

/// Returns the digests of the task set that was released to a node, one for each wire version. A host names the task
/// set by the digest in the version that its agent speaks.
pub(crate) fn task_set_digests(model: &Model, released: &ReleasedRecord) -> Vec<PartDigest> {
    released.digests(profile(model, released))
}

/// Returns a function that checks whether a task is among those that were released to a node. Returns `None` if no task
/// was released to the node.
pub(crate) fn task_filter(model: &Model, node: Uuid) -> Option<impl Fn(&str) -> bool> {
    let released = model.released.get(&node)?;
    task_ids(model, released).next()?;
    Some(move |id: &str| task_ids(model, released).any(|task| task == id))
}

/// Returns whether a task is among those that were released to a node.
pub(crate) fn is_released(model: &Model, node: Uuid, task: &str) -> bool {
    model.released.get(&node).is_some_and(|released| task_ids(model, released).any(|id| id == task))
}

/// Returns a resolved node as a candidate for a release, with the released task set that it is compared with.
pub(crate) fn candidate<'a>(model: &Model, resolved: &'a ResolvedNode) -> ReleaseCandidate<'a> {
    let present = model.released.get(&resolved.id().0);
    // The two are compared by the digest version of the released task set, because a newer digest version alone must
    // not cause a release.
    let version =
        present.and_then(|present| DigestVersion::from_number(present.base().digest_version)).unwrap_or(DigestVersion::LATEST);
    let content = present.map(|present| release_key(model, present, version));
    let runs = task_filter(model, resolved.id().0);
    ReleaseCandidate::from_resolved(resolved, content, version, runs.as_ref().map(|runs| runs as &dyn Fn(&str) -> bool))
}

/// Returns the parts of a released task set that decide whether another one is released.
fn release_key(model: &Model, released: &ReleasedRecord, version: DigestVersion) -> ReleaseKey {
    let task_set = released.base();
    let profile = profile(model, released).filter(|_| version == DigestVersion::V1);
    let untranslated = profile.into_iter().flat_map(ProfileRecord::untranslated);
    ReleaseKey {
        mode: task_set.mode,
        tasks: task_set.profile.map(|_| TaskDigest(task_set.task_digest)),
        untranslated: untranslated.filter(|id| released.runs_task(id)).cloned().collect(),
    }
}

/// Returns the size of the record of a node's released task set, for the case that no other is released.
pub(crate) fn record_size(model: &Model, node: Uuid) -> RecordSize {
    RecordSize {
        node: NodeId(node),
        cluster: model.fleet.cluster_of_node(NodeId(node)),
        stored: model.released.get(&node).map(|record| record.own_bytes()),
        next: None,
    }
}
