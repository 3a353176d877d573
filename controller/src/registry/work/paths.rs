//! Refuses a write by which two tasks of a node come to write one path that its release writes out (docs/adr/0019).
//!
//! Whoever writes nodes alone may be a host that joins: it is not refused for what a release says. Such a node has the finding
//! `task.path`, as one has whose paths meet only where they are rendered.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use stemma_core::object::{Kind, NodeId};
use stemma_core::release::TaskIx;
use stemma_core::resolve::TaskSet;
use stemma_core::task::PathTaken;
use stemma_wire::error::{ApiError, ErrorType};

use super::Work;
use crate::cache::Model;

impl Work<'_> {
    /// Refuses what the host of a node would refuse of a release, and would not have before: a task at a place. Another place of the same two
    /// tasks is as new as other tasks are.
    ///
    /// # Errors
    /// The first such task, with the node, the path and the task that has it.
    pub(super) fn check_paths(&self) -> Result<(), ApiError> {
        let is_of_release = |kind| {
            matches!(kind, Kind::Release | Kind::ReleaseTags | Kind::ClusterTemplate | Kind::Cluster | Kind::NodeGroup)
        };
        if !self.written().any(|(kind, _)| is_of_release(kind)) {
            return Ok(());
        }
        for node in self.told_hosts() {
            // Few releases have paths that are written out and may meet: only their nodes are resolved.
            if !self.model.fleet.profile(node).is_some_and(|profile| profile.may_share_plain_paths) {
                continue;
            }
            let Some(set) = task_set(&self.model, node) else { continue };
            let mut plain = refused(&set).filter(|(_, tasks)| is_plain(&set, *tasks)).peekable();
            // Of most nodes nothing is refused. To resolve what they had before would throw away what is remembered of their group.
            if plain.peek().is_none() {
                continue;
            }
            // What was refused before may have been rendered then.
            let before = task_set(self.context.whole, node);
            let sets = before.as_deref().into_iter();
            let known: BTreeSet<(&str, String)> =
                sets.flat_map(|set| refused(set).map(move |(taken, tasks)| at(set, taken, tasks))).collect();
            if let Some((taken, tasks)) = plain.find(|(taken, tasks)| !known.contains(&at(&set, taken, *tasks))) {
                return Err(self.path_taken(node, &set, taken, ids(&set, tasks)));
            }
        }
        Ok(())
    }

    fn path_taken(&self, node: NodeId, set: &TaskSet, taken: &PathTaken<TaskIx>, [task, first]: [&str; 2]) -> ApiError {
        let name = self.model.fleet.node(node).map(|node| node.display_name()).unwrap_or_default();
        let message = format!("node {name}: task {task}: {}; nothing was changed", taken.sentence(first));
        let refusal = ApiError::new(ErrorType::ObjectInvalid, message)
            .field(format!("task {task} parameters.path"))
            .extra("object", json!(format!("release/{}", set.profile.release.name)));
        match self.nearest_to_node(node) {
            Some(written) => refusal.extra("written", written.into()),
            None => refusal,
        }
    }
}

/// What a node runs.
fn task_set(model: &Model, node: NodeId) -> Option<Arc<TaskSet>> {
    model.fleet.profile(node)?;
    Some(Arc::clone(model.resolve(node.0).answer()?.task_set()?))
}

/// The paths that a host refuses, each with the task that would have it and the first task.
fn refused(set: &TaskSet) -> impl Iterator<Item = (&PathTaken<TaskIx>, [TaskIx; 2])> {
    set.without_path().iter().filter_map(|one| {
        let taken = one.taken()?;
        Some((taken, [one.task, taken.first.by]))
    })
}

fn ids(set: &TaskSet, tasks: [TaskIx; 2]) -> [&str; 2] {
    tasks.map(|ix| set.profile.release.id(ix))
}

/// By what a refusal is known again: the task that is refused, and the place. The task that has the place may be another by then: of three that
/// write one path the first may go, and the host refuses the last as before.
fn at<'a>(set: &'a TaskSet, taken: &PathTaken<TaskIx>, [task, _]: [TaskIx; 2]) -> (&'a str, String) {
    (set.profile.release.id(task), taken.place())
}

/// Whether both paths are written out.
fn is_plain(set: &TaskSet, tasks: [TaskIx; 2]) -> bool {
    let paths = tasks.map(|ix| set.profile.release.task(ix).path.as_ref());
    paths.iter().flatten().all(|path| path.is_plain())
}
