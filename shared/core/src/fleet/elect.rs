//! Primaries: who a cluster's `primaries:` names holds the tag, then who was chosen, each for as long as it has the tag, parked or not.
//! Without either it is the first by name of those that are not parked.

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use super::Fleet;
use crate::name::{NodeName, TagName};
use crate::object::{Cluster, ClusterId, Node, NodeId};
use crate::role::RoleTable;

/// A tag of a cluster whose holder holds it no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedPrimary {
    /// The cluster.
    pub cluster: ClusterId,
    /// The tag.
    pub tag: TagName,
    /// Who held it as primary.
    pub from: NodeId,
    /// Who holds it now; `None`: nobody.
    pub to: Option<NodeId>,
}

/// A node that a cluster names for a tag, by a name that is no node's any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostName {
    /// The cluster.
    pub cluster: ClusterId,
    /// The first tag for which it names the node.
    pub tag: TagName,
    /// By which name.
    pub name: NodeName,
}

/// Why an entry of a cluster's `primaries` is not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotObeyed {
    /// The cluster has no such tag.
    NoTag,
    /// Nobody holds the tag as primary.
    NoPrimary,
    /// No release says yet which tags there are.
    NoRelease,
    /// There is no such node.
    NoNode,
    /// The node stands in another cluster, or in none.
    Elsewhere,
    /// The node stands in the cluster and does not have the tag.
    LacksTag,
}

impl NotObeyed {
    /// Whether it was wrong where it was written. A release and a node may be still to come, since a cluster is made before them.
    pub fn is_decided(self) -> bool {
        match self {
            Self::NoTag | Self::NoPrimary | Self::Elsewhere | Self::LacksTag => true,
            Self::NoRelease | Self::NoNode => false,
        }
    }

    /// The same as it is told to who may see nothing beyond the cluster: whether a node stands elsewhere is no matter of theirs.
    #[must_use]
    pub fn beyond_cluster(self) -> Self {
        match self {
            Self::Elsewhere => Self::NoNode,
            Self::NoTag | Self::NoPrimary | Self::NoRelease | Self::NoNode | Self::LacksTag => self,
        }
    }

    /// The reason, as the end of a sentence about a cluster.
    pub fn reason(self, tag: &TagName, node: &str) -> String {
        match self {
            Self::NoTag => format!("the cluster's release has no tag {tag}"),
            Self::NoPrimary => format!("tag {tag} has no primary there (its has_primary is false)"),
            Self::NoRelease => format!("the cluster has no release that has tag {tag}"),
            Self::NoNode => format!("there is no node {node} in the cluster"),
            Self::Elsewhere => format!("node {node} is not in the cluster"),
            Self::LacksTag => format!("node {node} does not have the tag"),
        }
    }
}

/// The first of these nodes that loses the name by which its cluster names it for a tag: the cluster would name nobody. One that is gone, and
/// one whose name another node has now, is none.
pub fn lost_name(before: &Fleet, after: &Fleet, mut nodes: impl Iterator<Item = NodeId>) -> Option<LostName> {
    nodes.find_map(|id| {
        let name = before.node(id)?.meta.name.as_ref()?;
        let is_lost = after.node(id)?.meta.name.as_ref() != Some(name) && after.node_named(name.as_str()).is_none();
        let cluster = before.cluster_of_node(id).filter(|_| is_lost)?;
        let primaries = &after.cluster(cluster)?.spec.primaries;
        let (tag, _) = primaries.iter().find(|(_, named)| *named == name.as_str())?;
        Some(LostName { cluster, tag: tag.clone(), name: name.clone() })
    })
}

/// The primaries that a change of the fleet takes from their holders, in the clusters in which one of these nodes stands or stood. Where
/// nobody held a tag, nothing moves.
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
    /// Tags of a cluster whose holder is not the stored choice: what a controller should choose and store, so that a
    /// node that comes later and sorts first takes nothing over.
    pub fn unstored_holders(&self, id: ClusterId) -> Vec<(TagName, NodeId)> {
        let Some(entry) = self.clusters.get(&id) else { return Vec::new() };
        let is_stored = |tag: &TagName, node: &NodeId| entry.chosen.get(tag).is_some_and(|one| one.spec.node == *node);
        let open = entry.holders.iter().filter(|(tag, node)| !is_stored(tag, node));
        open.map(|(tag, node)| (tag.clone(), *node)).collect()
    }

    /// Whether what came after another fleet chose who holds a tag: the cluster names the holder, or the stored choice became the holder. A
    /// choice that was stored already is none: another may have held the tag, and its choice not be stored yet.
    pub fn is_chosen_since(&self, before: &Self, id: ClusterId, tag: &TagName) -> bool {
        let Some(holder) = self.holder(id, tag.as_str()) else { return false };
        let named = self.named_primary(id, tag.as_str()).and_then(|named| self.node_meant(named));
        let stored = self.stored_choice(id, tag);
        named.is_some_and(|node| node.id() == holder)
            || (stored == Some(holder) && before.stored_choice(id, tag) != stored)
    }

    fn stored_choice(&self, id: ClusterId, tag: &TagName) -> Option<NodeId> {
        Some(self.clusters.get(&id)?.chosen.get(tag)?.spec.node)
    }

    /// The node that a cluster means in `primaries`: by its name, or by its uuid, which no name looks like.
    pub fn node_meant(&self, text: &str) -> Option<&Arc<Node>> {
        self.node_named(text).or_else(|| self.node(NodeId(Uuid::parse_str(text).ok()?)))
    }

    /// Why a cluster's `primaries` would not be obeyed that give this tag to this node; `None`: they are.
    pub fn not_obeyed(&self, cluster: &Cluster, tag: &TagName, node: &str) -> Option<NotObeyed> {
        let (id, node) = (ClusterId(cluster.meta.uuid), self.node_meant(node));
        if node.is_some_and(|node| self.could_hold(id, tag, node.id())) {
            return None;
        }
        let tables: Vec<&RoleTable> = self.folds_of(id).filter_map(|fold| fold.table.as_deref()).collect();
        // The cluster's own: its groups may have other releases, or it has no group yet.
        let own = self.cluster_table(cluster);
        let mut all = tables.iter().copied().chain([&own]);
        let has_release =
            !tables.is_empty() || self.cluster_release(cluster).is_some_and(|release| self.release(release).is_some());
        if !all.clone().any(|table| table.has_primary(tag)) {
            return Some(match (all.any(|table| table.is_visible(tag.as_str())), has_release) {
                (true, _) => NotObeyed::NoPrimary,
                (false, true) => NotObeyed::NoTag,
                (false, false) => NotObeyed::NoRelease,
            });
        }
        let Some(node) = node else { return Some(NotObeyed::NoNode) };
        if self.cluster_of_node(node.id()) != Some(id) {
            return Some(NotObeyed::Elsewhere);
        }
        Some(match self.profile(node.id()) {
            None => NotObeyed::NoRelease,
            Some(profile) if profile.place.tags.contains(tag) => NotObeyed::NoPrimary,
            Some(_) => NotObeyed::LacksTag,
        })
    }

    /// Whether a node of the cluster has a tag that has a primary, and so could hold it.
    pub fn could_hold(&self, id: ClusterId, tag: &TagName, node: NodeId) -> bool {
        let candidates = self.clusters.get(&id).and_then(|entry| entry.candidates.get(tag));
        candidates.is_some_and(|candidates| candidates.all.contains(&node))
    }

    /// Who would hold a tag without any choice, were this node not there: the first by name of those that are not parked.
    pub fn next_holder(&self, id: ClusterId, tag: &TagName, but: NodeId) -> Option<NodeId> {
        let candidates = self.clusters.get(&id)?.candidates.get(tag)?;
        candidates.ready.iter().map(|ranked| ranked.id).find(|node| *node != but)
    }

    /// Chooses the holder of a tag again; returns the nodes whose place it changes.
    pub(super) fn elect(&mut self, id: ClusterId, tag: &TagName) -> Vec<NodeId> {
        let elected = self.elected(id, tag);
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

    fn elected(&self, id: ClusterId, tag: &TagName) -> Option<NodeId> {
        let entry = self.clusters.get(&id)?;
        let candidates = entry.candidates.get(tag)?;
        let named = self.named_primary(id, tag.as_str()).and_then(|named| self.node_meant(named)).map(|node| node.id());
        let stored = entry.chosen.get(tag).map(|chosen| chosen.spec.node);
        let mut choices = named.into_iter().chain(stored);
        let first = || candidates.ready.get_min().map(|first| first.id);
        choices.find(|node| candidates.all.contains(node)).or_else(first)
    }
}
