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

/// A tag of a cluster whose holder has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedPrimary {
    /// The cluster.
    pub cluster: ClusterId,
    /// The tag.
    pub tag: TagName,
    /// The previous holder.
    pub from: NodeId,
    /// The new holder, or `None` if there is none.
    pub to: Option<NodeId>,
}

/// A node name in a cluster's `primaries` that no node has any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostNodeName {
    /// The cluster.
    pub cluster: ClusterId,
    /// The first tag for which the cluster names the node.
    pub tag: TagName,
    /// The lost name.
    pub name: NodeName,
}

/// The reason why an entry of a cluster's `primaries` has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryRejection {
    /// The cluster has no such tag.
    UnknownTag,
    /// The tag has no primary.
    NoHolder,
    /// There is no release yet that defines the tags.
    NoRelease,
    /// The node does not exist.
    UnknownNode,
    /// The node is in another cluster, or in none.
    OtherCluster,
    /// The node is in the cluster and does not have the tag.
    LacksTag,
}

impl PrimaryRejection {
    /// Returns whether the entry is an error of its author. A missing release or node may still be created, since a
    /// cluster is created before them.
    pub fn is_permanent(self) -> bool {
        match self {
            Self::UnknownTag | Self::NoHolder | Self::OtherCluster | Self::LacksTag => true,
            Self::NoRelease | Self::UnknownNode => false,
        }
    }

    /// Returns the reason as shown to a caller that may not see other clusters. It does not reveal that a node exists
    /// elsewhere.
    #[must_use]
    pub fn redacted(self) -> Self {
        match self {
            Self::OtherCluster => Self::UnknownNode,
            Self::UnknownTag | Self::NoHolder | Self::NoRelease | Self::UnknownNode | Self::LacksTag => self,
        }
    }

    /// Returns the reason as the end of a sentence about a cluster.
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

/// Finds the first of these nodes that loses the name by which its cluster refers to it in `primaries`, so that the
/// cluster would refer to no node. Skips deleted nodes and names that another node has now.
pub fn lost_node_name(before: &Fleet, after: &Fleet, mut nodes: impl Iterator<Item = NodeId>) -> Option<LostNodeName> {
    nodes.find_map(|id| {
        let name = before.node(id)?.meta.name.as_ref()?;
        let is_lost = after.node(id)?.meta.name.as_ref() != Some(name) && after.node_by_name(name.as_str()).is_none();
        let cluster = before.cluster_of_node(id).filter(|_| is_lost)?;
        let primaries = &after.cluster(cluster)?.spec.primaries;
        let (tag, _) = primaries.iter().find(|(_, named)| *named == name.as_str())?;
        Some(LostNodeName { cluster, tag: tag.clone(), name: name.clone() })
    })
}

/// Returns the tags whose holder a change of the fleet replaces or removes, in the clusters that contain or contained
/// one of these nodes. A tag without a previous holder is not included.
pub fn moved_primaries(before: &Fleet, after: &Fleet, nodes: impl Iterator<Item = NodeId>) -> Vec<MovedPrimary> {
    let clusters = nodes.flat_map(|node| [before.cluster_of_node(node), after.cluster_of_node(node)]);
    let clusters: BTreeSet<ClusterId> = clusters.flatten().collect();
    let mut moved = Vec::new();
    for cluster in clusters {
        for (tag, from) in before.holders(cluster) {
            let to = after.holder(cluster, tag.as_str());
            if to != Some(from) {
                moved.push(MovedPrimary { cluster, tag: tag.clone(), from, to });
            }
        }
    }
    moved
}

impl Fleet {
    /// Returns the tags of a cluster whose holder is not the stored choice. The controller should store these holders,
    /// so that a later node that sorts first does not become primary.
    pub fn unstored_holders(&self, id: ClusterId) -> Vec<(TagName, NodeId)> {
        let Some(entry) = self.clusters.get(&id) else { return Vec::new() };
        let is_stored =
            |tag: &TagName, node: &NodeId| entry.stored_choices.get(tag).is_some_and(|choice| choice.spec.node == *node);
        let unstored = entry.holders.iter().filter(|(tag, node)| !is_stored(tag, node));
        unstored.map(|(tag, node)| (tag.clone(), *node)).collect()
    }

    /// Returns whether the changes since another fleet chose the holder of a tag: the cluster names the holder, or the
    /// stored choice became the holder. A choice that was already stored does not count, because another node may have
    /// held the tag without a stored choice.
    pub fn is_newly_chosen(&self, before: &Self, id: ClusterId, tag: &TagName) -> bool {
        let Some(holder) = self.holder(id, tag.as_str()) else { return false };
        let named = self.named_primary(id, tag.as_str()).and_then(|named| self.primary_node(named));
        let stored = self.stored_choice(id, tag);
        named.is_some_and(|node| node.id() == holder) || (stored == Some(holder) && before.stored_choice(id, tag) != stored)
    }

    /// Returns the node of the stored choice for a tag.
    fn stored_choice(&self, id: ClusterId, tag: &TagName) -> Option<NodeId> {
        Some(self.clusters.get(&id)?.stored_choices.get(tag)?.spec.node)
    }

    /// Finds the node that an entry of `primaries` refers to, by its name or its uuid. No name looks like a uuid.
    pub fn primary_node(&self, text: &str) -> Option<&Arc<Node>> {
        self.node_by_name(text).or_else(|| self.node(NodeId(Uuid::parse_str(text).ok()?)))
    }

    /// Returns why an entry of a cluster's `primaries` that gives this tag to this node would have no effect. `None` if
    /// the entry has an effect.
    pub fn primary_rejection(&self, cluster: &Cluster, tag: &TagName, node: &str) -> Option<PrimaryRejection> {
        let (id, node) = (ClusterId(cluster.meta.uuid), self.primary_node(node));
        if node.is_some_and(|node| self.can_hold(id, tag, node.id())) {
            return None;
        }
        let tables: Vec<&RoleTable> = self.resolved_groups(id).filter_map(|resolved| resolved.role_table.as_deref()).collect();
        // Includes the table of the cluster itself, because its groups may have other releases, or it may have no group
        // yet.
        let cluster_table = self.role_table(cluster);
        let mut all = tables.iter().copied().chain([&cluster_table]);
        let has_release =
            !tables.is_empty() || self.cluster_release(cluster).is_some_and(|release| self.release(release).is_some());
        if !all.clone().any(|table| table.has_primary(tag)) {
            return Some(match (all.any(|table| table.is_visible(tag.as_str())), has_release) {
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
            None => PrimaryRejection::NoRelease,
            Some(profile) if profile.key.tags.contains(tag) => PrimaryRejection::NoHolder,
            Some(_) => PrimaryRejection::LacksTag,
        })
    }

    /// Returns whether a node of the cluster can hold a tag as primary. It can if it has the tag and the tag has a
    /// primary.
    pub fn can_hold(&self, id: ClusterId, tag: &TagName, node: NodeId) -> bool {
        let candidates = self.clusters.get(&id).and_then(|entry| entry.candidates.get(tag));
        candidates.is_some_and(|candidates| candidates.all.contains(&node))
    }

    /// Returns the node that would hold a tag if no choice existed and node `excluded` were absent: the first by name
    /// that is not parked.
    pub fn next_holder(&self, id: ClusterId, tag: &TagName, excluded: NodeId) -> Option<NodeId> {
        let candidates = self.clusters.get(&id)?.candidates.get(tag)?;
        candidates.ready.iter().map(|ranked| ranked.id).find(|node| *node != excluded)
    }

    /// Elects the holder of a tag again. If the holder changes, returns the previous and the new one, whose profiles
    /// change.
    pub(super) fn elect(&mut self, id: ClusterId, tag: &TagName) -> Vec<NodeId> {
        let elected = self.elected_holder(id, tag);
        let Some(entry) = self.clusters.get_mut(&id) else { return Vec::new() };
        let before = entry.holders.get(tag).copied();
        if before == elected {
            return Vec::new();
        }
        match elected {
            Some(node) => drop(entry.holders.insert(tag.clone(), node)),
            None => drop(entry.holders.remove(tag)),
        }
        before.into_iter().chain(elected).collect()
    }

    /// Returns the node that should hold a tag: the one that `primaries:` names, else the stored choice, else the first
    /// candidate by name that is not parked.
    fn elected_holder(&self, id: ClusterId, tag: &TagName) -> Option<NodeId> {
        let entry = self.clusters.get(&id)?;
        let candidates = entry.candidates.get(tag)?;
        let named = self.named_primary(id, tag.as_str()).and_then(|named| self.primary_node(named)).map(|node| node.id());
        let stored = entry.stored_choices.get(tag).map(|chosen| chosen.spec.node);
        let mut choices = named.into_iter().chain(stored);
        let first = || candidates.ready.get_min().map(|first| first.id);
        choices.find(|node| candidates.all.contains(node)).or_else(first)
    }
}
