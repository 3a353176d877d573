//! Which privileged tasks a cluster's `primaries` gives to nodes that are still to come.
//!
//! An entry that names no node of now is obeyed once a host comes by that name, and nobody is asked then: who lets hosts join sees a group
//! and no primary. So it is asked when the entry is written, and when what it decides becomes privileged.

use std::collections::BTreeSet;

use super::Fleet;
use crate::name::TagName;
use crate::object::ClusterId;

/// An entry of a cluster's `primaries` that names no node of the cluster, and by which a privileged task comes to another node, or begins to
/// run, once there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwaitedPrimary<'a> {
    /// The tag.
    pub tag: &'a TagName,
    /// Who is to hold it, as the cluster has it.
    pub node: &'a str,
    /// The task's id.
    pub task: &'a str,
    /// What the task is: one of the same id that is defined otherwise is another.
    pub definition: &'a [u8; 32],
}

impl Fleet {
    /// The entries of a cluster's `primaries` by which privileged tasks of its releases go to nodes that are still to come.
    pub fn awaited_primaries(&self, id: ClusterId) -> BTreeSet<AwaitedPrimary<'_>> {
        let mut found = BTreeSet::new();
        let Some(cluster) = self.cluster(id) else { return found };
        let stands_there =
            |node: &str| self.node_meant(node).is_some_and(|node| self.cluster_of_node(node.id()) == Some(id));
        for (tag, node) in cluster.spec.primaries.iter().filter(|(_, node)| !stands_there(node)) {
            let of_groups = self.folds_of(id).filter_map(|fold| Some(&fold.release.as_ref()?.value));
            // The cluster's own: its groups may have other releases, or it has no group yet.
            let own = self.cluster_release(cluster).and_then(|release| self.release(release));
            for release in of_groups.chain(own) {
                found.extend(release.privileged_by_primary(tag.as_str()).into_iter().map(|task| AwaitedPrimary {
                    tag,
                    node: node.as_str(),
                    task: task.task.id.as_str(),
                    definition: &task.definition,
                }));
            }
        }
        found
    }
}
