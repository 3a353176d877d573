//! Allocations: requests for a node. The node is chosen once, when the allocation is created.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClusterId, Extra, FieldOwners, GroupId, NodeId};
use crate::json::deserialize_free_object;
use crate::requirement::Requirements;
use crate::traits::Trait;

/// A request for a node, and the decision on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocationSpec {
    /// The required resource class. The resource class of the node must be equal, including case.
    pub resource_class: String,
    /// The required traits. They become the requested traits of the node's instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traits: Vec<Trait>,
    /// The requirements that the node must meet.
    #[serde(skip_serializing_if = "Requirements::is_empty")]
    pub requirements: Requirements,
    /// The nodes to choose from. If empty, any node may be chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidate_nodes: Vec<NodeId>,
    /// The group that the node must be in. The node must meet the group's requirements too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodegroup: Option<GroupId>,
    /// The required owner or lessee of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The only cluster in which the creator of the allocation has rights, or `None` for the whole fleet. Only nodes of
    /// this cluster are considered. A caller whose rights are limited to another cluster does not see the allocation,
    /// unless the chosen node was moved to that cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<ClusterId>,
    /// The decision. The write that creates the allocation makes it, and it does not change later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<AllocationDecision>,
    /// Other fields of Ironic's allocation. They are stored and returned, and have no effect here.
    #[serde(deserialize_with = "deserialize_free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// The owners of each field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// The decision on an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationDecision {
    /// A node was chosen.
    Chosen {
        /// The node.
        node: NodeId,
        /// The reason for which this node was chosen.
        because: SelectionReason,
    },
    /// No node qualified.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// The reason for which a node was chosen among the nodes that qualified.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SelectionReason {
    /// The number of nodes that qualified.
    pub candidates: usize,
    /// The traits of the node that were not requested.
    pub surplus_traits: Vec<Trait>,
    /// The smallest distance between the node's value and a number that a requirement compares it with, by the
    /// requirement's key.
    #[serde(rename = "to_spare")]
    pub headroom: BTreeMap<String, f64>,
}

impl AllocationSpec {
    /// Returns the chosen node, or `None` if there is no decision yet or no node qualified.
    pub fn chosen_node(&self) -> Option<NodeId> {
        match &self.decision {
            Some(AllocationDecision::Chosen { node, .. }) => Some(*node),
            Some(AllocationDecision::Failed { .. }) | None => None,
        }
    }

    /// Returns the state of the allocation, by its name in Ironic.
    pub fn state_name(&self) -> &'static str {
        match &self.decision {
            None => "allocating",
            Some(AllocationDecision::Chosen { .. }) => "active",
            Some(AllocationDecision::Failed { .. }) => "error",
        }
    }
}
