//! A change of the model, and the nodes that it affects.

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use super::Fleet;
use crate::name::{Name, ReleaseRef, TagName};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, InspectionRule, Namespace, Node, NodeGroup, NodeId, Observation, Primary,
    ReleaseTags, ReportedState, TemplateId,
};
use crate::release::CompiledRelease;

/// A change of one object, which is stored or deleted. An object replaces the stored object with the same id. Storing
/// an identical object affects no node.
#[derive(Clone, Debug)]
pub enum FleetChange {
    /// Stores a compiled release. Has no effect if the stored release of the same name and version has the same hash.
    Release(Arc<CompiledRelease>),
    /// Deletes a release.
    RemoveRelease(ReleaseRef),
    /// Stores the user-defined tags of a release.
    ReleaseTags(Arc<ReleaseTags>),
    /// Deletes the user-defined tags of a release.
    RemoveReleaseTags(Name),
    /// Stores a template.
    Template(Arc<ClusterTemplate>),
    /// Deletes a template.
    RemoveTemplate(TemplateId),
    /// Stores a cluster.
    Cluster(Arc<Cluster>),
    /// Deletes a cluster.
    RemoveCluster(ClusterId),
    /// Stores a group.
    NodeGroup(Arc<NodeGroup>),
    /// Deletes a group.
    RemoveNodeGroup(GroupId),
    /// Stores a node.
    Node(Arc<Node>),
    /// Deletes a node, together with what its host reported.
    RemoveNode(NodeId),
    /// Stores the observation of a host: the facts, traits and labels that the host reports.
    Observation(NodeId, Arc<Observation>),
    /// Deletes the observation of a host.
    RemoveObservation(NodeId),
    /// Stores the pause, hold and park that were set on a host itself. `None` if nothing is set any more.
    ReportedState(NodeId, Option<Arc<ReportedState>>),
    /// Stores the choice of a primary.
    Primary(Arc<Primary>),
    /// Deletes the stored choice of a primary.
    RemovePrimary(ClusterId, TagName),
    /// Stores a namespace of the catalogue.
    Namespace(Arc<Namespace>),
    /// Deletes a namespace.
    RemoveNamespace(Uuid),
    /// Stores an inspection rule.
    Rule(Arc<InspectionRule>),
    /// Deletes an inspection rule.
    RemoveRule(Uuid),
}

/// The nodes whose desired state may have changed, called *marked* nodes. If a change affects all nodes of a fleet, a
/// flag replaces the list, which would be long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtyNodes {
    nodes: BTreeSet<NodeId>,
    is_all: bool,
}

impl DirtyNodes {
    /// Returns the marked nodes. `fleet` is the fleet after the change. If all nodes are marked, the nodes of the fleet
    /// come first, by uuid, and then the marked nodes that were deleted.
    pub fn nodes<'a>(&'a self, fleet: &'a Fleet) -> impl Iterator<Item = NodeId> + 'a {
        let all_nodes = self.is_all.then(|| fleet.nodes.keys().copied());
        let listed = self.nodes.iter().copied().filter(|id| !self.is_all || fleet.node(*id).is_none());
        all_nodes.into_iter().flatten().chain(listed)
    }

    /// Returns whether all nodes are marked.
    pub fn is_all(&self) -> bool {
        self.is_all
    }

    /// Marks the nodes that another change marked.
    pub fn extend(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
        self.is_all |= other.is_all;
    }

    /// Marks one node.
    pub(super) fn add(&mut self, id: NodeId) {
        self.nodes.insert(id);
    }

    /// Marks all nodes of the fleet.
    pub(super) fn add_all(&mut self) {
        self.is_all = true;
    }
}
