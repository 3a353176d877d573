//! What was released to nodes, as the model has it.

use std::collections::BTreeSet;

use stemma_core::digest::{DigestVersion, TaskDigest};
use stemma_core::object::NodeId;
use stemma_core::resolve::Answer;
use stemma_core::rollout::{Candidate, Content, RecordSize};
use stemma_wire::message::PartDigest;
use uuid::Uuid;

use super::Model;
use crate::records::reported::{ProfileRecord, ReleasedRecord};

/// The ids of the tasks that were released to a node.
pub(crate) fn runs<'a>(model: &'a Model, released: &'a ReleasedRecord) -> impl Iterator<Item = &'a str> {
    released.runs(profile(model, released))
}

/// Those of them that count for its state: not those that its host neither runs nor checks. An older agent checks them as in mode `noop`.
pub(crate) fn counted<'a>(model: &'a Model, released: &'a ReleasedRecord) -> impl Iterator<Item = &'a str> {
    let observed = observed(model, released);
    runs(model, released).filter(move |task| observed.is_none_or(|observed| !observed.contains(*task)))
}

/// The tasks of the released profile that a host neither runs nor checks, by their own mode; `None`: there is no profile.
pub(crate) fn observed<'a>(model: &'a Model, released: &ReleasedRecord) -> Option<&'a BTreeSet<String>> {
    profile(model, released).map(ProfileRecord::observed)
}

/// The profile that a released task set names.
fn profile<'a>(model: &'a Model, released: &ReleasedRecord) -> Option<&'a ProfileRecord> {
    released.head().profile.and_then(|hash| model.profiles.get(&hash)).map(|profile| &**profile)
}

/// The names of the task set that was released to a node: its digest in each wire version, by any of which a host may name it.
pub(crate) fn task_sets(model: &Model, released: &ReleasedRecord) -> Vec<PartDigest> {
    released.digests(profile(model, released))
}

/// Whether a task runs on a node by what was released to it; `None`: none does.
pub(crate) fn runs_task(model: &Model, node: Uuid) -> Option<impl Fn(&str) -> bool> {
    let released = model.released.get(&node)?;
    runs(model, released).next()?;
    Some(move |id: &str| runs(model, released).any(|task| task == id))
}

/// Whether a task is among those that were released to a node.
pub(crate) fn was_released(model: &Model, node: Uuid, task: &str) -> bool {
    model.released.get(&node).is_some_and(|released| runs(model, released).any(|id| id == task))
}

/// A node as its releases are planned.
pub(crate) fn candidate<'a>(model: &Model, answer: &'a Answer) -> Candidate<'a> {
    let present = model.released.get(&answer.id().0);
    // Under the definition that it was released with: a newer one releases nothing.
    let version =
        present.and_then(|present| DigestVersion::of(present.head().digest_version)).unwrap_or(DigestVersion::NEWEST);
    let content = present.map(|present| content(model, present, version));
    let runs = runs_task(model, answer.id().0);
    Candidate::of(answer, content, version, runs.as_ref().map(|runs| runs as &dyn Fn(&str) -> bool))
}

/// What of a released task set decides whether another one is released.
fn content(model: &Model, released: &ReleasedRecord, version: DigestVersion) -> Content {
    let task_set = released.head();
    let profile = profile(model, released).filter(|_| version == DigestVersion::V1);
    let untranslated = profile.into_iter().flat_map(ProfileRecord::untranslated);
    Content {
        mode: task_set.mode,
        tasks: task_set.profile.map(|_| TaskDigest(task_set.task_digest)),
        untranslated: untranslated.filter(|id| released.runs_task(id)).cloned().collect(),
    }
}

/// The size of the record of a node that stays as it is.
pub(crate) fn record_size(model: &Model, node: Uuid) -> RecordSize {
    RecordSize {
        node: NodeId(node),
        cluster: model.fleet.cluster_of_node(NodeId(node)),
        stored: model.released.get(&node).map(|record| record.own_bytes()),
        next: None,
    }
}
