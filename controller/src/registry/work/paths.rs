//! Refuses a write after which two tasks of a node write the same literal path of its release (docs/adr/0019).
//!
//! A write of nodes alone may come from a host that joins, so it is not refused for the content of a release. Such a
//! node has the finding `task.path`. So does a node whose paths conflict only after they are rendered.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use stemma_core::object::{Kind, NodeId};
use stemma_core::release::TaskIndex;
use stemma_core::resolve::TaskSet;
use stemma_core::task::PathConflict;
use stemma_wire::error::{ApiError, ErrorType};

use super::PendingWrite;
use crate::cache::Model;

impl PendingWrite<'_> {
    /// Refuses a write after which a host would refuse a task of its release, at a place where it did not refuse the
    /// task before. If the same two tasks conflict at another place, that counts as new.
    ///
    /// # Errors
    /// The first such task, with the node, the path and the task that already has the path.
    pub(super) fn check_paths(&self) -> Result<(), ApiError> {
        let is_of_release =
            |kind| matches!(kind, Kind::Release | Kind::ReleaseTags | Kind::ClusterTemplate | Kind::Cluster | Kind::NodeGroup);
        if !self.written_objects().any(|(kind, _)| is_of_release(kind)) {
            return Ok(());
        }
        for node in self.visible_hosts() {
            // Few releases have literal paths that may conflict. Only nodes of such releases are resolved.
            if !self.model.fleet.profile(node).is_some_and(|profile| profile.may_share_plain_paths) {
                continue;
            }
            let Some(set) = task_set(&self.model, node) else { continue };
            let mut literal = refused_paths(&set).filter(|(_, tasks)| is_literal(&set, *tasks)).peekable();
            // Most nodes have no conflict. Resolving their state before the write would evict what is cached for their
            // group.
            if literal.peek().is_none() {
                continue;
            }
            // A conflict that existed before the write is not new, even if its path was rendered then.
            let before = task_set(self.context.full_model, node);
            let sets = before.as_deref().into_iter();
            let known: BTreeSet<(&str, String)> =
                sets.flat_map(|set| refused_paths(set).map(move |(taken, tasks)| conflict_key(set, taken, tasks))).collect();
            if let Some((taken, tasks)) = literal.find(|(taken, tasks)| !known.contains(&conflict_key(&set, taken, *tasks))) {
                return Err(self.path_refusal(node, &set, taken, task_ids(&set, tasks)));
            }
        }
        Ok(())
    }

    /// Builds the error for a task whose path the task `first` of the same node already writes.
    fn path_refusal(&self, node: NodeId, set: &TaskSet, taken: &PathConflict<TaskIndex>, [task, first]: [&str; 2]) -> ApiError {
        let name = self.model.fleet.node(node).map(|node| node.display_name()).unwrap_or_default();
        let message = format!("node {name}: task {task}: {}; nothing was changed", taken.message(first));
        let refusal = ApiError::new(ErrorType::ObjectInvalid, message)
            .field(format!("task {task} parameters.path"))
            .extra("object", json!(format!("release/{}", set.profile.release.name)));
        match self.cause_for_node(node) {
            Some(written) => refusal.extra("written", written.into()),
            None => refusal,
        }
    }
}

/// Returns the task set of a node.
fn task_set(model: &Model, node: NodeId) -> Option<Arc<TaskSet>> {
    model.fleet.profile(node)?;
    Some(Arc::clone(model.resolve(node.0).resolved_node()?.task_set()?))
}

/// Returns the paths that a host refuses, each with the refused task and the first task that has the path.
fn refused_paths(set: &TaskSet) -> impl Iterator<Item = (&PathConflict<TaskIndex>, [TaskIndex; 2])> {
    set.unusable_paths().iter().filter_map(|refusal| {
        let taken = refusal.conflict()?;
        Some((taken, [refusal.task, taken.first_claim.owner]))
    })
}

fn task_ids(set: &TaskSet, tasks: [TaskIndex; 2]) -> [&str; 2] {
    tasks.map(|ix| set.profile.release.id(ix))
}

/// Returns the key that identifies a conflict before and after the write: the refused task and the place. The first
/// task is not part of it. If three tasks write one path and the first is removed, the host still refuses the last.
fn conflict_key<'a>(set: &'a TaskSet, taken: &PathConflict<TaskIndex>, [task, _]: [TaskIndex; 2]) -> (&'a str, String) {
    (set.profile.release.id(task), taken.canonical_path())
}

/// Returns whether the paths of both tasks are literal.
fn is_literal(set: &TaskSet, tasks: [TaskIndex; 2]) -> bool {
    let paths = tasks.map(|ix| set.profile.release.task(ix).path.as_ref());
    paths.iter().flatten().all(|path| path.is_plain())
}
