//! A resolved node as plain data. In this form, the results of `stemma resolve`, of the controller and of a host can be
//! compared.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::ResolvedNode;

/// The desired state of one node, without the origins of its values. Every list but `tasks` is sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeOutput {
    /// The effective labels.
    pub labels: BTreeMap<String, String>,
    /// The effective annotations.
    pub annotations: BTreeMap<String, String>,
    /// The traits, without those that an operator suppressed.
    pub traits: BTreeSet<String>,
    /// The roles of the node: those of its group and its own.
    pub roles: BTreeSet<String>,
    /// The names that tag selectors match. On the primary holder of `x`, `primary-x` is added. If the release sets
    /// primary matching to `replaces`, `primary-x` replaces `x`. Empty if the node has no task set.
    pub tags: BTreeSet<String>,
    /// The tags that the node holds as primary, without the prefix `primary-`. Empty if the node has no task set.
    pub primary_tags: BTreeSet<String>,
    /// The ids of the tasks of phase `apply` that run, in order.
    pub tasks: Vec<String>,
    /// The tasks of phase `apply` that are placed on the node and do not run: the reason by the task's id.
    pub skipped: BTreeMap<String, String>,
    /// The digest of the node's task set, or `null` if the node has none.
    pub task_digest: Option<String>,
}

impl NodeOutput {
    /// Converts a resolved node to its plain form.
    pub fn from_node(node: &ResolvedNode) -> Self {
        let labels = node.labels();
        let annotations = node.annotations();
        let mut output = Self {
            labels: labels.iter().map(|(key, entry)| (key.to_string(), entry.value.as_str().to_owned())).collect(),
            annotations: annotations.iter().map(|(key, entry)| (key.to_string(), entry.value.as_str().to_owned())).collect(),
            traits: node.traits().names().map(ToString::to_string).collect(),
            roles: node.roles().iter().map(ToString::to_string).collect(),
            ..Self::default()
        };
        if let Some(set) = node.task_set() {
            output.tags = set.profile.key.names.tag_names().map(str::to_owned).collect();
            output.primary_tags = set.primary_tags().iter().map(ToString::to_string).collect();
            output.tasks = set.task_ids().map(str::to_owned).collect();
            output.skipped = set.skipped_ids().map(|(id, reason)| (id.to_owned(), reason.to_string())).collect();
            output.task_digest = Some(set.digest.to_string());
        }
        output
    }
}
