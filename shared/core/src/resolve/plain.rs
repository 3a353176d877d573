//! An answer as plain data: the one form in which `stemma resolve`, the controller's `resolved` and a host are compared.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Answer;

/// What one node gets, without origins. Every list but `tasks` is sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlainAnswer {
    /// The effective labels.
    pub labels: BTreeMap<String, String>,
    /// The effective annotations.
    pub annotations: BTreeMap<String, String>,
    /// The traits, less what is suppressed.
    pub traits: BTreeSet<String>,
    /// The plain roles, the group's and the node's own.
    pub roles: BTreeSet<String>,
    /// The names that selectors match: under `replaces`, `primary-x` stands for `x`.
    pub tags: BTreeSet<String>,
    /// The plain names of the tags that it holds as primary.
    pub primary_tags: BTreeSet<String>,
    /// The ids of the tasks that run, in order.
    pub tasks: Vec<String>,
    /// The ids of those that fall to it and do not run, with the reason.
    pub skipped: BTreeMap<String, String>,
    /// The digest of its task set; `null` without one.
    pub task_digest: Option<String>,
}

impl PlainAnswer {
    /// The plain form of a complete answer.
    pub fn of(answer: &Answer) -> Self {
        let labels = answer.labels();
        let annotations = answer.annotations();
        let mut plain = Self {
            labels: labels.iter().map(|(key, said)| (key.to_string(), said.value.as_str().to_owned())).collect(),
            annotations: annotations
                .iter()
                .map(|(key, said)| (key.to_string(), said.value.as_str().to_owned()))
                .collect(),
            traits: answer.traits().names().map(ToString::to_string).collect(),
            roles: answer.roles().iter().map(ToString::to_string).collect(),
            ..Self::default()
        };
        if let Some(set) = answer.task_set() {
            plain.tags = set.profile.place.names.tag_names().map(str::to_owned).collect();
            plain.primary_tags = set.primary_tags().iter().map(ToString::to_string).collect();
            plain.tasks = set.task_ids().map(str::to_owned).collect();
            plain.skipped = set.left_out_ids().map(|(id, why)| (id.to_owned(), why.to_string())).collect();
            plain.task_digest = Some(set.digest.to_string());
        }
        plain
    }
}
