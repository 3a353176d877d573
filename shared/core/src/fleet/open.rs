//! Which labels a report may still give a node where the condition of a privileged task reads them.
//!
//! What is reported grants nothing. A report is no write, and nobody is asked when it comes: so it is asked when a write opens a label to
//! reports. Look-ups are no matter here, since labels of other nodes that their hosts reported are not among what they give.

use std::collections::BTreeSet;

use super::Fleet;
use crate::input::{Read, Reference};
use crate::key::LabelKey;
use crate::object::NodeId;
use crate::origin::Level;

/// A label that the condition of a privileged task on a node reads, and that a report of the node's host gives it: `host_labels.accept` names
/// its key, and no level sets or stops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenLabel<'a> {
    /// The task's id.
    pub task: &'a str,
    /// What the task is: one of the same id that is defined otherwise is another.
    pub definition: &'a [u8; 32],
    /// The label's key.
    pub key: &'a LabelKey,
}

impl Fleet {
    /// The labels by which reports of a node's host may meet conditions of privileged tasks that stand there.
    pub fn open_labels(&self, node: NodeId) -> BTreeSet<OpenLabel<'_>> {
        let Some(entry) = self.entry(node) else { return BTreeSet::new() };
        let placed = self.fold_above(&entry.node.spec).zip(self.profile(node));
        let Some((fold, profile)) = placed.filter(|(_, profile)| profile.has_privileged_condition()) else {
            return BTreeSet::new();
        };
        let accepted = fold.host_labels.value.accepted();
        if accepted.is_empty() {
            return BTreeSet::new();
        }
        let levels = fold.maps.labels.below(Level::Node, &entry.node.spec.inherited.labels);
        let is_open = |key: &&LabelKey| levels.line(key.as_str()).is_none_or(|line| !line.is_spoken_for());
        let open: Vec<&LabelKey> = accepted.iter().filter(is_open).collect();
        let mut found = BTreeSet::new();
        for task in profile.privileged_tasks() {
            let references = task.condition.iter().flat_map(|condition| condition.references());
            for read in references.map(Reference::read) {
                let keys = open.iter().copied().filter(|key| reads_label(read, key.as_str()));
                found.extend(keys.map(|key| OpenLabel {
                    task: task.task.id.as_str(),
                    definition: &task.definition,
                    key,
                }));
            }
        }
        found
    }
}

/// Whether a label of the host itself is among what is read.
fn reads_label(read: &Read, key: &str) -> bool {
    match read {
        Read::Label(name) => **name == *key,
        Read::LabelsWithPrefix(prefix) => key.starts_with(&**prefix),
        Read::Parameter(_)
        | Read::Trait(_)
        | Read::Tag(_)
        | Read::Fact(_)
        | Read::Node(_)
        | Read::Cluster(_)
        | Read::Nodes { .. }
        | Read::Primary { .. }
        | Read::Secret(_) => false,
    }
}
