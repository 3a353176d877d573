//! One change of the model, and whom it reaches.

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use crate::name::{Name, ReleaseRef, TagName};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, Namespace, Node, NodeGroup, NodeId, Observation, Primary,
    ReleaseTags, SaidOnHost, TemplateId,
};
use crate::release::CompiledRelease;

/// One change: an object is so now, or is gone. A put of what is there already reaches nobody.
#[derive(Clone, Debug)]
pub enum Change {
    /// A release, compiled.
    Release(Arc<CompiledRelease>),
    /// A release is gone.
    RemoveRelease(ReleaseRef),
    /// User-defined tags beside a release.
    ReleaseTags(Arc<ReleaseTags>),
    /// They are gone.
    RemoveReleaseTags(Name),
    /// A template.
    Template(Arc<ClusterTemplate>),
    /// A template is gone.
    RemoveTemplate(TemplateId),
    /// A cluster.
    Cluster(Arc<Cluster>),
    /// A cluster is gone.
    RemoveCluster(ClusterId),
    /// A group.
    NodeGroup(Arc<NodeGroup>),
    /// A group is gone.
    RemoveNodeGroup(GroupId),
    /// A node.
    Node(Arc<Node>),
    /// A node is gone, with what it said.
    RemoveNode(NodeId),
    /// What a host says.
    Observation(NodeId, Arc<Observation>),
    /// What a host said is forgotten.
    RemoveObservation(NodeId),
    /// What was said on a host itself; `None`: nothing any more.
    Said(NodeId, Option<Arc<SaidOnHost>>),
    /// A stored choice of a primary.
    Primary(Arc<Primary>),
    /// A stored choice is gone.
    RemovePrimary(ClusterId, TagName),
    /// A namespace of the catalogue.
    Namespace(Arc<Namespace>),
    /// A namespace is gone.
    RemoveNamespace(Uuid),
    /// A secret has another version; its value is never here.
    Secret(Arc<str>, u64),
    /// A secret is gone.
    RemoveSecret(Arc<str>),
}

/// The nodes that a change reaches: whose answer may be another now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    nodes: BTreeSet<NodeId>,
}

impl Dirty {
    /// The nodes, by uuid. One that is gone is among them.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().copied()
    }

    /// Whether nobody is reached.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many are reached.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a node is reached.
    pub fn contains(&self, id: NodeId) -> bool {
        self.nodes.contains(&id)
    }

    /// Takes in what another change reached.
    pub fn extend(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
    }

    pub(super) fn add(&mut self, id: NodeId) {
        self.nodes.insert(id);
    }
}

impl IntoIterator for Dirty {
    type Item = NodeId;
    type IntoIter = std::collections::btree_set::IntoIter<NodeId>;

    fn into_iter(self) -> Self::IntoIter {
        self.nodes.into_iter()
    }
}
