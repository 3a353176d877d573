//! Elects the primary of each tag. The node that the cluster's `primaries:` names comes first, then the stored choice.
//! A node that was chosen in one of these ways holds the tag for as long as it has the tag, parked or not. Without such
//! a node, the first node by name that is not parked holds the tag.

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use super::Fleet;
use crate::name::{NodeName, TagName};
use crate::object::{Cluster, ClusterId, Node, NodeId};
use crate::role::RoleTable;

/// A tag of a cluster whose primary has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedPrimary {
    /// The cluster with the tag.
    pub cluster: ClusterId,
    /// The tag whose primary has changed.
    pub tag: TagName,
    /// The node that was primary before.
    pub from: NodeId,
    /// The node that is primary now, or `None` if no node is.
    pub to: Option<NodeId>,
}

/// A node name in a cluster's `primaries` that no node has any more, because a write renamed (not deleted) the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostNodeName {
    /// The cluster whose `primaries` contain the name.
    pub cluster: ClusterId,
    /// The first tag for which `primaries` contains the name.
    pub tag: TagName,
    /// The name that no node has now.
    pub name: NodeName,
}

/// The reason why an entry of a cluster's `primaries` has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryRejection {
    /// Neither the cluster nor any release that it or its groups name has such a tag.
    UnknownTag,
    /// `has_primary` of the tag is false in the release of the node, or in all releases of the cluster.
    NoHolder,
    /// No release that could define the tag exists, the group of the node has none, or an object above is missing.
    NoRelease,
    /// The node does not exist.
    UnknownNode,
    /// The node is in another cluster, or in none.
    OtherCluster,
    /// The node is in the cluster but does not have the tag.
    LacksTag,
}

impl PrimaryRejection {
    /// Returns whether the entry is a mistake of its author. A missing release or node is not a mistake, because it may
    /// be created later: a cluster is created before its nodes.
    pub fn is_permanent(self) -> bool {
        match self {
            Self::UnknownTag | Self::NoHolder | Self::OtherCluster | Self::LacksTag => true,
            Self::NoRelease | Self::UnknownNode => false,
        }
    }

    /// Returns the reason for a caller that may not see other clusters. It does not reveal that a node exists in
    /// another cluster.
    #[must_use]
    pub fn redacted(self) -> Self {
        match self {
            Self::OtherCluster => Self::UnknownNode,
            Self::UnknownTag | Self::NoHolder | Self::NoRelease | Self::UnknownNode | Self::LacksTag => self,
        }
    }

    /// Returns the reason as a clause for a message about a cluster.
    pub fn reason(self, tag: &TagName, node: &str) -> String {
        match self {
            Self::UnknownTag => format!("the cluster's release has no tag {tag}"),
            Self::NoHolder => format!("tag {tag} has no primary there (its has_primary is false)"),
            Self::NoRelease => format!("the cluster has no release that has tag {tag}"),
            Self::UnknownNode => format!("there is no node {node} in the cluster"),
            Self::OtherCluster => format!("node {node} is not in the cluster"),
            Self::LacksTag => format!("node {node} does not have the tag"),
        }
    }
}

/// Finds the first of these nodes that a write renames although its cluster refers to it by its name in `primaries`.
/// The entry of `primaries` would then name no node. Deleted nodes, and names that another node has now, are skipped.
pub fn lost_node_name(old_fleet: &Fleet, new_fleet: &Fleet, mut nodes: impl Iterator<Item = NodeId>) -> Option<LostNodeName> {
    nodes.find_map(|id| {
        let name = old_fleet.node(id)?.meta.name.as_ref()?;
        let is_lost = new_fleet.node(id)?.meta.name.as_ref() != Some(name) && new_fleet.node_by_name(name.as_str()).is_none();
        let cluster = old_fleet.cluster_of_node(id).filter(|_| is_lost)?;
        let primaries = &new_fleet.cluster(cluster)?.spec.primaries;
        let (tag, _) = primaries.iter().find(|(_, entry_node)| *entry_node == name.as_str())?;
        Some(LostNodeName { cluster, tag: tag.clone(), name: name.clone() })
    })
}

/// Returns the tags whose primary a write replaces or removes. Only the clusters that contain or contained one of
/// `nodes` are checked. A tag that had no primary before is not included.
pub fn moved_primaries(old_fleet: &Fleet, new_fleet: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<MovedPrimary> {
    let clusters = nodes.flat_map(|node| [old_fleet.cluster_of_node(node), new_fleet.cluster_of_node(node)]);
    let clusters: BTreeSet<ClusterId> = clusters.flatten().collect();
    let mut moved = Vec::new();
    for cluster in clusters {
        for (tag, from) in old_fleet.holders(cluster) {
            let to = new_fleet.holder(cluster, tag.as_str());
            if to != Some(from) {
                moved.push(MovedPrimary { cluster, tag: tag.clone(), from, to });
            }
        }
    }
    moved
}

impl Fleet {
    /// Returns the tags of a cluster whose primary is not the stored choice, each with its primary. The controller
    /// should store these choices. Otherwise a node that is added later and sorts before the primary would replace it.
    pub fn unstored_holders(&self, id: ClusterId) -> Vec<(TagName, NodeId)> {
        let Some(entry) = self.clusters.get(&id) else { return Vec::new() };
        let is_stored =
            |tag: &TagName, node: &NodeId| entry.stored_choices.get(tag).is_some_and(|choice| choice.spec.node == *node);
        let unstored = entry.holders.iter().filter(|(tag, node)| !is_stored(tag, node));
        unstored.map(|(tag, node)| (tag.clone(), *node)).collect()
    }

    /// Returns whether the primary of a tag was chosen: `primaries` of the cluster names the node (even if the entry is
    /// older than the write), or the write stored the choice. A node that is primary only because it is now the first
    /// candidate was not chosen. `old` is the fleet before the write.
    pub fn is_chosen_explicitly(&self, old: &Self, id: ClusterId, tag: &TagName) -> bool {
        let Some(holder) = self.holder(id, tag.as_str()) else { return false };
        let named_node = self.named_primary(id, tag.as_str()).and_then(|text| self.primary_node(text));
        let choice = self.stored_choice(id, tag);
        named_node.is_some_and(|node| node.id() == holder) || (choice == Some(holder) && old.stored_choice(id, tag) != choice)
    }

    /// Returns the node of the stored choice for a tag. The node need not be primary of the tag now.
    fn stored_choice(&self, id: ClusterId, tag: &TagName) -> Option<NodeId> {
        Some(self.clusters.get(&id)?.stored_choices.get(tag)?.spec.node)
    }

    /// Returns the node that an entry of `primaries` names, by its name or its uuid. A name never has the form of a
    /// uuid.
    pub fn primary_node(&self, text: &str) -> Option<&Arc<Node>> {
        self.node_by_name(text).or_else(|| self.node(NodeId(Uuid::parse_str(text).ok()?)))
    }

    /// Returns the reason why an entry of a cluster's `primaries` with this tag and node would have no effect. Returns
    /// `None` if the entry would have an effect.
    pub fn primary_rejection(&self, cluster: &Cluster, tag: &TagName, node: &str) -> Option<PrimaryRejection> {
        let (id, node) = (ClusterId(cluster.meta.uuid), self.primary_node(node));
        if node.is_some_and(|node| self.can_hold(id, tag, node.id())) {
            return None;
        }
        let tables: Vec<&RoleTable> = self.resolved_groups(id).filter_map(|resolved| resolved.role_table.as_deref()).collect();
        // Includes the table of the cluster itself, because its groups may have other releases, or it may have no group
        // yet.
        let cluster_table = self.role_table(cluster);
        let mut all_tables = tables.iter().copied().chain([&cluster_table]);
        let has_release =
            !tables.is_empty() || self.cluster_release(cluster).is_some_and(|release| self.release(release).is_some());
        if !all_tables.clone().any(|table| table.has_primary(tag)) {
            return Some(match (all_tables.any(|table| table.is_declared_or_produced(tag.as_str())), has_release) {
                (true, _) => PrimaryRejection::NoHolder,
                (false, true) => PrimaryRejection::UnknownTag,
                (false, false) => PrimaryRejection::NoRelease,
            });
        }
        let Some(node) = node else { return Some(PrimaryRejection::UnknownNode) };
        if self.cluster_of_node(node.id()) != Some(id) {
            return Some(PrimaryRejection::OtherCluster);
        }
        Some(match self.profile(node.id()) {
            // The node is in the cluster, but its group has no release, or an object above the node is missing.
            None => PrimaryRejection::NoRelease,
            // The release of the node does not declare the tag with `has_primary`.
            Some(profile) if profile.key.tags.contains(tag) => PrimaryRejection::NoHolder,
            Some(_) => PrimaryRejection::LacksTag,
        })
    }

    /// Returns whether a node of the cluster can be primary of a tag: it has the tag, and the tag has `has_primary`.
    pub fn can_hold(&self, id: ClusterId, tag: &TagName, node: NodeId) -> bool {
        let candidates = self.clusters.get(&id).and_then(|entry| entry.candidates.get(tag));
        candidates.is_some_and(|candidates| candidates.members.contains(&node))
    }

    /// Returns the node that would be primary of a tag if node `excluded` were absent and no choice existed: the first
    /// node by name that has the tag and is not parked.
    pub fn next_holder(&self, id: ClusterId, tag: &TagName, excluded: NodeId) -> Option<NodeId> {
        let candidates = self.clusters.get(&id)?.candidates.get(tag)?;
        candidates.unparked.iter().map(|ranked| ranked.id).find(|node| *node != excluded)
    }

    /// Elects the primary of a tag again. If the primary changes, returns the previous and the new primary. The caller
    /// must update the profiles of both.
    pub(super) fn elect(&mut self, id: ClusterId, tag: &TagName) -> Vec<NodeId> {
        let new_holder = self.elected_holder(id, tag);
        let Some(entry) = self.clusters.get_mut(&id) else { return Vec::new() };
        let old_holder = entry.holders.get(tag).copied();
        if old_holder == new_holder {
            return Vec::new();
        }
        match new_holder {
            Some(node) => drop(entry.holders.insert(tag.clone(), node)),
            None => drop(entry.holders.remove(tag)),
        }
        old_holder.into_iter().chain(new_holder).collect()
    }

    /// Returns the node that should be primary of a tag. This is the node that `primaries` names, else the node of the
    /// stored choice, else the first node by name that is not parked. A node that does not have the tag is skipped.
    fn elected_holder(&self, id: ClusterId, tag: &TagName) -> Option<NodeId> {
        let entry = self.clusters.get(&id)?;
        let candidates = entry.candidates.get(tag)?;
        let named_node = self.named_primary(id, tag.as_str()).and_then(|text| self.primary_node(text)).map(|node| node.id());
        let stored_node = entry.stored_choices.get(tag).map(|choice| choice.spec.node);
        let mut choices = named_node.into_iter().chain(stored_node);
        let first_unparked = || candidates.unparked.get_min().map(|ranked| ranked.id);
        choices.find(|node| candidates.members.contains(node)).or_else(first_unparked)
    }
}
