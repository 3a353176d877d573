//! One change of the model, and whom it reaches.

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use super::Fleet;
use crate::name::{Name, ReleaseRef, TagName};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, InspectionRule, Namespace, Node, NodeGroup, NodeId, Observation,
    Primary, ReleaseTags, SaidOnHost, TemplateId,
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
    /// An inspection rule.
    Rule(Arc<InspectionRule>),
    /// An inspection rule is gone.
    RemoveRule(Uuid),
}

/// The nodes that a change reaches: their answers may be others now. All nodes of a fleet are one value, since they may be many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    nodes: BTreeSet<NodeId>,
    is_of_all: bool,
}

impl Dirty {
    /// The nodes, by uuid, as the fleet has them after the change; then those that are gone.
    pub fn nodes<'a>(&'a self, fleet: &'a Fleet) -> impl Iterator<Item = NodeId> + 'a {
        let all = self.is_of_all.then(|| fleet.nodes.keys().copied());
        let named = self.nodes.iter().copied().filter(|id| !self.is_of_all || fleet.node(*id).is_none());
        all.into_iter().flatten().chain(named)
    }

    /// Whether every node is reached.
    pub fn is_of_all(&self) -> bool {
        self.is_of_all
    }

    /// Takes in what another change reached.
    pub fn extend(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
        self.is_of_all |= other.is_of_all;
    }

    pub(super) fn add(&mut self, id: NodeId) {
        self.nodes.insert(id);
    }

    pub(super) fn add_all(&mut self) {
        self.is_of_all = true;
    }
}
