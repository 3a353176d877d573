//! Refuses a write after which two tasks of a node write the same literal path (docs/adr/0019). A literal path contains
//! no template.
//!
//! A write of only nodes may come from a host that joins. Such a write is not refused because of the content of a
//! release. The node then has the finding `task.path`. A node whose paths are equal only after templates are rendered
//! has the finding too.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use stemma_core::object::{Kind, NodeId};
use stemma_core::release::{TaskIndex, TaskPath};
use stemma_core::resolve::TaskSet;
use stemma_core::task::PathConflict;
use stemma_wire::error::{ApiError, ErrorType};

use super::PendingWrite;
use crate::cache::Model;

impl PendingWrite<'_> {
    /// Refuses a write after which a host would refuse a task because another task writes the same literal path, or a
    /// literal path above or below it. Checks only writes of releases and of the levels above nodes, and only nodes
    /// that the caller can see. Only new conflicts are refused. A conflict of the same two tasks at another path is
    /// new.
    ///
    /// # Errors
    /// Fails with the first such task. The error names the node, the path and the other task.
    pub(super) fn check_paths(&self) -> Result<(), ApiError> {
        let can_change_tasks =
            |kind| matches!(kind, Kind::Release | Kind::ReleaseTags | Kind::ClusterTemplate | Kind::Cluster | Kind::NodeGroup);
        if !self.written_objects().any(|(kind, _)| can_change_tasks(kind)) {
            return Ok(());
        }
        for node in self.visible_affected_nodes() {
            // Few profiles have a literal path that may conflict. The task set is computed only for nodes with such a
            // profile.
            if !self.model.fleet.profile(node).is_some_and(|profile| profile.may_share_plain_paths) {
                continue;
            }
            let Some(set) = task_set(&self.model, node) else { continue };
            let mut conflicts = conflicting_paths(&set).filter(|(_, tasks)| is_literal(&set, *tasks)).peekable();
            // Most nodes have no conflict. Computing their old task sets would drop the new state of their group from
            // the cache.
            if conflicts.peek().is_none() {
                continue;
            }
            // A conflict that existed before the write is not new, even if its path came from a template then.
            let old_set = task_set(self.context.full_model, node);
            let old_sets = old_set.as_deref().into_iter();
            let old: BTreeSet<(&str, String)> = old_sets
                .flat_map(|set| conflicting_paths(set).map(move |(item, tasks)| conflict_key(set, item, tasks)))
                .collect();
            if let Some((conflict, tasks)) = conflicts.find(|(item, tasks)| !old.contains(&conflict_key(&set, item, *tasks))) {
                return Err(self.path_refusal(node, &set, conflict, task_ids(&set, tasks)));
            }
        }
        Ok(())
    }

    /// Returns the error for a task whose path another task of the same node already writes. `owner` is the other task.
    fn path_refusal(&self, node: NodeId, set: &TaskSet, clash: &PathConflict<TaskIndex>, [task, owner]: [&str; 2]) -> ApiError {
        let name = self.model.fleet.node(node).map(|node| node.display_name()).unwrap_or_default();
        let message = format!("node {name}: task {task}: {}; nothing was changed", clash.message(owner));
        let refusal = ApiError::new(ErrorType::ObjectInvalid, message)
            .field(format!("task {task} parameters.path"))
            .extra("object", json!(format!("release/{}", set.profile.release.name)));
        match self.cause_for_node(node) {
            Some(written) => refusal.extra("written", written.into()),
            None => refusal,
        }
    }
}

fn task_set(model: &Model, node: NodeId) -> Option<Arc<TaskSet>> {
    model.fleet.profile(node)?;
    Some(Arc::clone(model.resolve(node.0).resolved_node()?.task_set()?))
}

/// Returns the paths that a host refuses because of another task, each with two tasks: the refused task, and the task
/// that already has the path. A path that is refused because it is invalid is omitted.
fn conflicting_paths(set: &TaskSet) -> impl Iterator<Item = (&PathConflict<TaskIndex>, [TaskIndex; 2])> {
    set.unusable_paths().iter().filter_map(|refusal| {
        let conflict = refusal.conflict()?;
        Some((conflict, [refusal.task, conflict.first_claim.owner]))
    })
}

fn task_ids(set: &TaskSet, tasks: [TaskIndex; 2]) -> [&str; 2] {
    tasks.map(|index| set.profile.release.id(index))
}

/// Returns the key by which a conflict is compared before and after the write: the refused task and the path. The other
/// task is not part of the key. If three tasks write one path and the first task is removed, the host still refuses the
/// last task.
fn conflict_key<'a>(set: &'a TaskSet, conflict: &PathConflict<TaskIndex>, [task, _]: [TaskIndex; 2]) -> (&'a str, String) {
    (set.profile.release.id(task), conflict.canonical_path())
}

/// Returns whether the paths of both tasks are literal, that is, without a template.
fn is_literal(set: &TaskSet, tasks: [TaskIndex; 2]) -> bool {
    tasks.iter().flat_map(|index| &set.profile.release.task(*index).paths).all(TaskPath::is_plain)
}
