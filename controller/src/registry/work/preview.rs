//! The effect of a write on the task sets of nodes, for a dry run. A write may affect many nodes but change the task
//! sets of few of them.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::digest::TaskDigest;
use stemma_core::object::NodeId;
use stemma_core::resolve::ResolvedNode as Resolved;

use super::PendingWrite;
use crate::records::request::StoredAnswer;

impl PendingWrite<'_> {
    /// Adds to the answer of a dry run the number of affected hosts that the caller can see, and the number of these
    /// whose task sets change. If the answer lists the affected hosts, also lists the hosts whose task sets change.
    pub(super) fn add_preview(&self, answer: &mut StoredAnswer) {
        let changed_nodes = self.changed_task_sets();
        answer.hosts = Some(self.visible_affected_nodes().count());
        answer.task_sets = Some(changed_nodes.len());
        if let Value::Object(body) = &mut answer.body
            && body.contains_key("hosts")
        {
            let node_ids: Vec<String> = changed_nodes.iter().map(ToString::to_string).collect();
            body.insert("changed_task_sets".to_owned(), json!(node_ids));
        }
    }

    /// Returns the visible nodes whose task set changes. This includes nodes that get the new task set later, for
    /// example after a hold. A node whose task set cannot be computed retains its old task set and is left out.
    fn changed_task_sets(&self) -> Vec<NodeId> {
        // The task sets after the write are computed for all nodes first, then those before the write. The cache holds
        // one state of a group at a time, so alternating between the two would be slow.
        let new_digest = |node: NodeId| {
            let resolution = self.model.resolve(node.0);
            Some((node, task_digest(resolution.resolved_node()?)))
        };
        let new_digests: Vec<_> = self.visible_affected_nodes().filter_map(new_digest).collect();
        let old_digest = |node: NodeId| {
            let resolution = self.context.full_model.resolve(node.0);
            resolution.resolved_node().and_then(task_digest)
        };
        new_digests.into_iter().filter(|(node, digest)| old_digest(*node) != *digest).map(|(node, _)| node).collect()
    }
}

/// Returns the task digest of a node, which changes when the host must run something else. Returns `None` if the node
/// has no task set.
fn task_digest(node: &Arc<Resolved>) -> Option<TaskDigest> {
    node.task_set().map(|set| set.digest)
}
