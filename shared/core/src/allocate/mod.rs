//! Chooses the node of an allocation. The choice is a pure function: the same fleet and request always give the same
//! node.
//!
//! Ironic picks a random node that fits. Here the best fit is chosen, so that scarce nodes stay free for requests that
//! need them. The order is: fewest traits that were not requested, then the smallest surplus of each requested number
//! (by key), then the first by name. Digits are compared as numbers.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::fleet::{Fleet, NodeView};
use crate::object::{AllocationDecision, AllocationSpec, ClusterId, NodeId, SelectionReason};
use crate::requirement::{FieldLookup as _, Requirement, Requirements, TraitPresence};
use crate::role::natural_cmp;
use crate::traits::Trait;

/// Chooses the node that fits an allocation best. Returns the node with the reason of the choice, or a failure with the
/// reason why no node qualifies. If the caller is bound to a cluster, `cluster` is that cluster, and only nodes of its
/// groups qualify.
pub fn allocate(fleet: &Fleet, spec: &AllocationSpec, cluster: Option<ClusterId>) -> AllocationDecision {
    let request = Candidates { fleet, spec, cluster, required_traits: required_traits(spec) };
    let mut rejected = RejectCounts::default();
    let mut best: Option<ScoredNode<'_>> = None;
    let mut candidates = 0;
    for view in request.nodes().into_iter().filter_map(|id| fleet.node_view(id)) {
        match request.score(view) {
            Ok(scored) => {
                candidates += 1;
                // The node that fits better is less.
                if best.as_ref().is_none_or(|best| scored.cmp(best) == Ordering::Less) {
                    best = Some(scored);
                }
            }
            Err(reason) => rejected.add(reason),
        }
    }
    match best {
        Some(scored) => {
            let surplus = scored.view.traits().names().filter(|name| !request.required_traits.contains(name)).cloned().collect();
            let selection = SelectionReason { candidates, surplus_traits: surplus, headroom: scored.headroom };
            AllocationDecision::Chosen { node: scored.view.node().id(), because: selection }
        }
        None => AllocationDecision::Failed { reason: rejected.reason(spec) },
    }
}

/// Returns the traits that a node must have: those that the request names, and those that its requirements require.
fn required_traits(spec: &AllocationSpec) -> BTreeSet<&Trait> {
    let required = spec.requirements.0.iter().filter_map(|requirement| match requirement {
        Requirement::Trait { name, presence: TraitPresence::Required } => Some(name),
        Requirement::Trait { .. } | Requirement::Field { .. } => None,
    });
    spec.traits.iter().chain(required).collect()
}

/// The first reason why a node does not qualify for an allocation request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ineligible {
    /// The node has another resource class, or the requested owner neither owns nor leases it.
    Class,
    /// The node is parked.
    Parked,
    /// The node is already in use.
    InUse,
    /// The node lacks a trait that the request names directly.
    Traits,
    /// The node does not meet a requirement of the request, or of the group that the request names.
    Requirements,
}

/// An allocation request with the fleet from which its node is chosen.
struct Candidates<'a> {
    fleet: &'a Fleet,
    spec: &'a AllocationSpec,
    cluster: Option<ClusterId>,
    required_traits: BTreeSet<&'a Trait>,
}

impl<'a> Candidates<'a> {
    /// Returns the ids of the nodes that the request allows: those of its node group, else of the caller's cluster,
    /// else of the fleet. If the request names candidates, only the candidates among these nodes are returned. If only
    /// the candidates limit the nodes, no other node is read. A node outside of the caller's cluster is never included.
    fn nodes(&self) -> Vec<NodeId> {
        let Self { fleet, spec, cluster, .. } = self;
        let candidates = &spec.candidate_nodes;
        let nodes: Vec<NodeId> = match (spec.nodegroup, cluster) {
            (Some(group), _) => fleet.nodes_in_group(group).collect(),
            (None, Some(cluster)) => fleet.nodes_in_cluster(*cluster).collect(),
            (None, None) if !candidates.is_empty() => candidates.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
            (None, None) => return fleet.nodes().map(|node| node.id()).collect(),
        };
        let is_in_cluster = |id: &NodeId| cluster.is_none_or(|cluster| fleet.cluster_of_node(*id) == Some(cluster));
        nodes.into_iter().filter(|id| (candidates.is_empty() || candidates.contains(id)) && is_in_cluster(id)).collect()
    }

    /// Returns the score of a node that qualifies for the request. Fails with the first reason why the node does not
    /// qualify.
    fn score(&self, view: NodeView<'a>) -> Result<ScoredNode<'a>, Ineligible> {
        let (node, spec) = (view.node(), self.spec);
        // Fields of Ironic that Stemma does not use otherwise are in `extra`.
        let extra_text = |name: &str| node.spec.extra.get(name).and_then(Value::as_str);
        let is_owned_by = |owner: &str| extra_text("owner") == Some(owner) || extra_text("lessee") == Some(owner);
        let group = spec.nodegroup.and_then(|group| self.fleet.group(group));
        let meets = |requirements: &Requirements| requirements.are_met_by(&view);
        let checks = [
            (Ineligible::Class, extra_text("resource_class") != Some(&spec.resource_class)),
            (Ineligible::Class, spec.owner.as_deref().is_some_and(|owner| !is_owned_by(owner))),
            (Ineligible::Parked, self.fleet.parked_by(node).is_some()),
            (Ineligible::InUse, node.is_in_use()),
        ];
        if let Some((reason, _)) = checks.into_iter().find(|(_, is_ineligible)| *is_ineligible) {
            return Err(reason);
        }
        if spec.traits.iter().any(|name| !view.has_trait(name)) {
            return Err(Ineligible::Traits);
        }
        if !meets(&spec.requirements) || !group.is_none_or(|group| meets(&group.spec.requirements)) {
            return Err(Ineligible::Requirements);
        }
        Ok(ScoredNode::new(view, spec, &self.required_traits))
    }
}

/// A node that qualifies for a request, with the numbers that decide how well it fits.
struct ScoredNode<'a> {
    view: NodeView<'a>,
    /// Number of traits of the node that were not requested.
    surplus_trait_count: usize,
    /// The distance between the node's value and each requested number, by the key of the requirement.
    headroom: BTreeMap<String, f64>,
}

impl<'a> ScoredNode<'a> {
    /// Scores a node: counts its traits that were not requested, and computes the distance between its value and each
    /// requested number.
    fn new(view: NodeView<'a>, spec: &AllocationSpec, required: &BTreeSet<&Trait>) -> Self {
        let mut headroom_by_key: BTreeMap<String, f64> = BTreeMap::new();
        for requirement in &spec.requirements.0 {
            if let Some(surplus) = requirement.headroom(&view) {
                // If a key has a minimum and a maximum, the smaller of both surpluses is stored.
                let entry = headroom_by_key.entry(requirement.key()).or_insert(surplus);
                *entry = entry.min(surplus);
            }
        }
        Self { surplus_trait_count: view.count_other_traits(required), view, headroom: headroom_by_key }
    }

    /// Compares two nodes by fit. The node that fits better is less: it has fewer traits that were not requested, or
    /// else less headroom in the first number that differs, or else the first name. Both were scored for the same
    /// request, so both have the same keys in `headroom`.
    fn cmp(&self, other: &Self) -> Ordering {
        let (node, other_node) = (self.view.node(), other.view.node());
        let orders = || self.headroom.values().zip(other.headroom.values()).map(|(headroom, other)| headroom.total_cmp(other));
        (self.surplus_trait_count.cmp(&other.surplus_trait_count))
            .then_with(|| orders().find(|order| order.is_ne()).unwrap_or(Ordering::Equal))
            .then_with(|| natural_cmp(&node.display_name(), &other_node.display_name()))
            .then_with(|| node.id().cmp(&other_node.id()))
    }
}

/// The number of nodes that do not qualify for an allocation request, by reason.
#[derive(Default)]
struct RejectCounts(BTreeMap<Ineligible, usize>);

impl RejectCounts {
    fn add(&mut self, reason: Ineligible) {
        *self.0.entry(reason).or_default() += 1;
    }

    /// Returns the reason why no node was chosen. The first sentence has the wording of Ironic: about the requirements
    /// if a node was rejected for them, else about the traits if a node was rejected for them, else about the resource
    /// class. The second sentence counts the rejected nodes of the class by reason.
    fn reason(&self, spec: &AllocationSpec) -> String {
        let count = |reason: Ineligible| self.0.get(&reason).copied().unwrap_or(0);
        let class = &spec.resource_class;
        let mut sentence = if count(Ineligible::Requirements) > 0 {
            let texts = spec.requirements.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let texts = if texts.is_empty() { "of their node group".to_owned() } else { texts };
            format!("no suitable nodes meet the requirements {texts}.")
        } else if count(Ineligible::Traits) > 0 {
            let names = spec.traits.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("no suitable nodes have the requested traits {names}.")
        } else if spec.candidate_nodes.is_empty() {
            format!("no available nodes match the resource class {class}.")
        } else {
            format!("none of the requested nodes are available and match the resource class {class}.")
        };
        let rejections = [
            (Ineligible::Parked, "parked"),
            (Ineligible::InUse, "used already"),
            (Ineligible::Traits, "without a trait"),
            (Ineligible::Requirements, "that do not meet a requirement"),
        ];
        let rejections = rejections.into_iter().filter(|(reason, _)| count(*reason) > 0);
        let rejections: Vec<String> = rejections.map(|(reason, text)| format!("{} {text}", count(reason))).collect();
        if !rejections.is_empty() {
            sentence.push_str(&format!(" Of that class there are {}.", rejections.join(", ")));
        }
        sentence
    }
}

#[cfg(test)]
mod tests;
