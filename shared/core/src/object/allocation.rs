//! An allocation: which node is used for what was asked for. It is decided once, where it is made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClusterId, Extra, FieldOwners, GroupId, NodeId};
use crate::json::free_object;
use crate::requirement::Requirements;
use crate::traits::Trait;

/// What was asked for, and what was decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocationSpec {
    /// The node's own, letter by letter.
    pub resource_class: String,
    /// The node has all of these; they become what its instance wants.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traits: Vec<Trait>,
    /// The node meets these.
    #[serde(skip_serializing_if = "Requirements::is_empty")]
    pub requirements: Requirements,
    /// The node is one of these, if any is named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidate_nodes: Vec<NodeId>,
    /// The node is in this group, and meets what it requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodegroup: Option<GroupId>,
    /// Who owns the node, or leases it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The cluster to which whoever asked is bound: no other node is taken, and who is bound to another does not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<ClusterId>,
    /// What was decided; `None` before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<AllocationDecision>,
    /// Ironic's further fields.
    #[serde(deserialize_with = "free_object", skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
    /// Who gave which field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// What was decided of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationDecision {
    /// A node was chosen.
    Chosen {
        /// The node.
        node: NodeId,
        /// Why this one.
        because: Merits,
    },
    /// None was there.
    Failed {
        /// Why.
        reason: String,
    },
}

/// By what a node was chosen among those that could be taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Merits {
    /// How many could be taken.
    pub candidates: usize,
    /// The traits that it has and nobody asked for.
    pub surplus_traits: Vec<Trait>,
    /// How much it has beyond each number that was asked for, by key.
    pub to_spare: BTreeMap<String, f64>,
}

impl AllocationSpec {
    /// The node that was chosen.
    pub fn node(&self) -> Option<NodeId> {
        match &self.decision {
            Some(AllocationDecision::Chosen { node, .. }) => Some(*node),
            Some(AllocationDecision::Failed { .. }) | None => None,
        }
    }

    /// The state, in Ironic's words.
    pub fn state(&self) -> &'static str {
        match &self.decision {
            None => "allocating",
            Some(AllocationDecision::Chosen { .. }) => "active",
            Some(AllocationDecision::Failed { .. }) => "error",
        }
    }
}
