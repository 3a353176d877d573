//! A resolved node as plain data. `stemma resolve`, the controller's `resolved` and a host are compared in this form.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::ResolvedNode;

/// The desired state of one node, without origins. Every list but `tasks` is sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeOutput {
    /// The effective labels.
    pub labels: BTreeMap<String, String>,
    /// The effective annotations.
    pub annotations: BTreeMap<String, String>,
    /// The traits, without the suppressed ones.
    pub traits: BTreeSet<String>,
    /// The roles: the group's and the node's own.
    pub roles: BTreeSet<String>,
    /// The names that selectors match. Under `replaces`, `primary-x` takes the place of `x`.
    pub tags: BTreeSet<String>,
    /// The plain names of the tags that the node holds as primary.
    pub primary_tags: BTreeSet<String>,
    /// The ids of the tasks that run, in order.
    pub tasks: Vec<String>,
    /// The ids of the tasks that are placed on the node and do not run, with the reason.
    pub skipped: BTreeMap<String, String>,
    /// The digest of the node's task set, or `null` if the node has none.
    pub task_digest: Option<String>,
}

impl NodeOutput {
    /// Converts a resolved node to its plain form.
    pub fn from_node(node: &ResolvedNode) -> Self {
        let labels = node.labels();
        let annotations = node.annotations();
        let mut plain = Self {
            labels: labels.iter().map(|(key, entry)| (key.to_string(), entry.value.as_str().to_owned())).collect(),
            annotations: annotations.iter().map(|(key, entry)| (key.to_string(), entry.value.as_str().to_owned())).collect(),
            traits: node.traits().names().map(ToString::to_string).collect(),
            roles: node.roles().iter().map(ToString::to_string).collect(),
            ..Self::default()
        };
        if let Some(set) = node.task_set() {
            plain.tags = set.profile.key.names.tag_names().map(str::to_owned).collect();
            plain.primary_tags = set.primary_tags().iter().map(ToString::to_string).collect();
            plain.tasks = set.task_ids().map(str::to_owned).collect();
            plain.skipped = set.skipped_ids().map(|(id, why)| (id.to_owned(), why.to_string())).collect();
            plain.task_digest = Some(set.digest.to_string());
        }
        plain
    }
}
