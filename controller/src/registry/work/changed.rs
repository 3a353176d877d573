//! What becomes of the task sets of the nodes that a write reaches: it may reach many, and change what few of them run.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::digest::TaskDigest;
use stemma_core::object::NodeId;
use stemma_core::resolve::Answer as Resolved;

use super::Work;
use crate::records::request::Answer;

impl Work<'_> {
    /// Says how many hosts a write reaches that is tried out, and of which the task sets change. Where the answer names the hosts, it names
    /// these too.
    pub(super) fn tell_reached(&self, answer: &mut Answer) {
        let changed = self.changed_task_sets();
        answer.hosts = Some(self.told_hosts().count());
        answer.task_sets = Some(changed.len());
        if let Value::Object(body) = &mut answer.body
            && body.contains_key("hosts")
        {
            let named: Vec<String> = changed.iter().map(ToString::to_string).collect();
            body.insert("changed_task_sets".to_owned(), json!(named));
        }
    }

    /// The nodes that are to have another task set by the write, those too that get it later, as one that is held. One whose answer is not
    /// complete keeps the task set that it has.
    fn changed_task_sets(&self) -> Vec<NodeId> {
        // One fleet after the other: the memory of task sets holds what was resolved last.
        let after = |node: NodeId| {
            let resolution = self.model.resolve(node.0);
            Some((node, digest(resolution.answer()?)))
        };
        let after: Vec<_> = self.told_hosts().filter_map(after).collect();
        let before = |node: NodeId| {
            let resolution = self.context.whole.resolve(node.0);
            resolution.answer().and_then(digest)
        };
        after.into_iter().filter(|(node, after)| before(*node) != *after).map(|(node, _)| node).collect()
    }
}

/// The digest of a task set, which is what a rollout compares; `None`: the node has none.
fn digest(answer: &Arc<Resolved>) -> Option<TaskDigest> {
    answer.task_set().map(|set| set.digest)
}
