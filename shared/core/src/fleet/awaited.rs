//! Finds the privileged tasks that a cluster's `primaries` assigns to nodes that do not exist yet.
//!
//! An entry that names a missing node takes effect once a host joins under that name. No permission is checked then,
//! because the principal that lets hosts join sees a group and no primary. So the permission is checked when the entry
//! is written, and when a task that it places becomes privileged.

use std::collections::BTreeSet;

use super::Fleet;
use crate::name::TagName;
use crate::object::ClusterId;

/// An entry of a cluster's `primaries` that names no node of the cluster, and a privileged task that depends on the
/// primary of the tag. Once the node is in the cluster and has the tag, the entry can move or start that task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwaitedPrimary<'a> {
    /// The tag whose primary the entry names.
    pub tag: &'a TagName,
    /// The name or uuid of the node, as the entry contains it.
    pub node: &'a str,
    /// The id of the privileged task that the entry can move or start.
    pub task: &'a str,
    /// The digest of the task's definition. It distinguishes two tasks with the same id.
    pub definition: &'a [u8; 32],
}

impl Fleet {
    /// Returns the entries of a cluster's `primaries` that name no node of the cluster, once for each privileged task
    /// that depends on the primary of the tag, in the releases of the cluster and its groups.
    pub fn awaited_primaries(&self, id: ClusterId) -> BTreeSet<AwaitedPrimary<'_>> {
        let mut entries = BTreeSet::new();
        let Some(cluster) = self.cluster(id) else { return entries };
        let is_in_cluster = |node: &str| self.primary_node(node).is_some_and(|node| self.cluster_of_node(node.id()) == Some(id));
        for (tag, node) in cluster.spec.primaries.iter().filter(|(_, node)| !is_in_cluster(node)) {
            let group_releases = self.resolved_groups(id).filter_map(|resolved| Some(&resolved.release.as_ref()?.value));
            // Includes the release of the cluster itself, because its groups may have other releases, or it may have no
            // group yet.
            let cluster_release = self.cluster_release(cluster).and_then(|release| self.release(release));
            for release in group_releases.chain(cluster_release) {
                entries.extend(release.privileged_by_primary(tag.as_str()).into_iter().map(|task| AwaitedPrimary {
                    tag,
                    node: node.as_str(),
                    task: task.task.id.as_str(),
                    definition: &task.definition,
                }));
            }
        }
        entries
    }
}
