//! Effect of a write on the task sets of the nodes. A write may affect many nodes and change the task sets of few.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::digest::TaskDigest;
use stemma_core::object::NodeId;
use stemma_core::resolve::ResolvedNode as Resolved;

use super::PendingWrite;
use crate::records::request::StoredAnswer;

impl PendingWrite<'_> {
    /// Adds to the answer of a dry run how many hosts the write affects, and how many task sets change. If the answer
    /// names the hosts, it also names those whose task sets change.
    pub(super) fn add_preview(&self, answer: &mut StoredAnswer) {
        let changed = self.changed_task_sets();
        answer.hosts = Some(self.visible_hosts().count());
        answer.task_sets = Some(changed.len());
        if let Value::Object(body) = &mut answer.body
            && body.contains_key("hosts")
        {
            let named: Vec<String> = changed.iter().map(ToString::to_string).collect();
            body.insert("changed_task_sets".to_owned(), json!(named));
        }
    }

    /// Returns the nodes whose task set changes, including nodes that get it later, such as held ones. A node that does
    /// not resolve completely keeps its task set.
    fn changed_task_sets(&self) -> Vec<NodeId> {
        // All nodes after the write first, then all before it: the cache of task sets holds one state of a group at a
        // time.
        let after = |node: NodeId| {
            let resolution = self.model.resolve(node.0);
            Some((node, task_digest(resolution.resolved_node()?)))
        };
        let after: Vec<_> = self.visible_hosts().filter_map(after).collect();
        let before = |node: NodeId| {
            let resolution = self.context.full_model.resolve(node.0);
            resolution.resolved_node().and_then(task_digest)
        };
        after.into_iter().filter(|(node, after)| before(*node) != *after).map(|(node, _)| node).collect()
    }
}

/// Returns the digest of the task set, which rollouts compare, or `None` if the node has no task set.
fn task_digest(node: &Arc<Resolved>) -> Option<TaskDigest> {
    node.task_set().map(|set| set.digest)
}
