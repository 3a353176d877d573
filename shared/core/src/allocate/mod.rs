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

/// Decides an allocation. If the caller is bound to a cluster, `cluster` is that cluster, and only nodes of its groups
/// qualify.
pub fn allocate(fleet: &Fleet, spec: &AllocationSpec, cluster: Option<ClusterId>) -> AllocationDecision {
    let pool = Candidates { fleet, spec, cluster, required_traits: required_traits(spec) };
    let mut rejected = RejectCounts::default();
    let mut best: Option<ScoredNode<'_>> = None;
    let mut candidates = 0;
    for view in pool.nodes().into_iter().filter_map(|id| fleet.node_view(id)) {
        match pool.score(view) {
            Ok(fit) => {
                candidates += 1;
                if best.as_ref().is_none_or(|best| fit.cmp(best) == Ordering::Less) {
                    best = Some(fit);
                }
            }
            Err(reason) => rejected.add(reason),
        }
    }
    match best {
        Some(fit) => {
            let surplus = fit.view.traits().names().filter(|name| !pool.required_traits.contains(name)).cloned().collect();
            let because = SelectionReason { candidates, surplus_traits: surplus, headroom: fit.spare };
            AllocationDecision::Chosen { node: fit.view.node().id(), because }
        }
        None => AllocationDecision::Failed { reason: rejected.reason(spec) },
    }
}

/// Returns the requested traits: those that the request names directly, and those in its requirements.
fn required_traits(spec: &AllocationSpec) -> BTreeSet<&Trait> {
    let required = spec.requirements.0.iter().filter_map(|requirement| match requirement {
        Requirement::Trait { name, presence: TraitPresence::Required } => Some(name),
        Requirement::Trait { .. } | Requirement::Field { .. } => None,
    });
    spec.traits.iter().chain(required).collect()
}

/// The first reason why a node does not qualify for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ineligible {
    /// The node has another resource class or owner.
    Class,
    /// The node is parked.
    Parked,
    /// The node is already in use.
    InUse,
    /// The node lacks a requested trait.
    Traits,
    /// The node does not meet a requirement of the request or of its group.
    Requirements,
}

/// The request, with the fleet that it is decided in.
struct Candidates<'a> {
    fleet: &'a Fleet,
    spec: &'a AllocationSpec,
    cluster: Option<ClusterId>,
    required_traits: BTreeSet<&'a Trait>,
}

impl<'a> Candidates<'a> {
    /// Returns the nodes that the request is limited to: by group, by cluster and by the named candidates.
    fn nodes(&self) -> Vec<NodeId> {
        let Self { fleet, spec, cluster, .. } = self;
        let named = &spec.candidate_nodes;
        let nodes: Vec<NodeId> = match (spec.nodegroup, cluster) {
            (Some(group), _) => fleet.nodes_in_group(group).collect(),
            (None, Some(cluster)) => fleet.nodes_in_cluster(*cluster).collect(),
            (None, None) if !named.is_empty() => named.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
            (None, None) => return fleet.nodes().map(|node| node.id()).collect(),
        };
        let is_in_cluster = |id: &NodeId| cluster.is_none_or(|cluster| fleet.cluster_of_node(*id) == Some(cluster));
        nodes.into_iter().filter(|id| (named.is_empty() || named.contains(id)) && is_in_cluster(id)).collect()
    }

    /// Checks that a node qualifies, and computes its surplus. Fails with the first reason why it does not.
    fn score(&self, view: NodeView<'a>) -> Result<ScoredNode<'a>, Ineligible> {
        let (node, spec) = (view.node(), self.spec);
        let extra_text = |name: &str| node.spec.extra.get(name).and_then(Value::as_str);
        let is_owned = |owner: &str| extra_text("owner") == Some(owner) || extra_text("lessee") == Some(owner);
        let group = spec.nodegroup.and_then(|group| self.fleet.group(group));
        let are_met = |requirements: &Requirements| requirements.hold(&view);
        let checks = [
            (Ineligible::Class, extra_text("resource_class") != Some(&spec.resource_class)),
            (Ineligible::Class, spec.owner.as_deref().is_some_and(|owner| !is_owned(owner))),
            (Ineligible::Parked, self.fleet.parked_by(node).is_some()),
            (Ineligible::InUse, node.is_in_use()),
        ];
        if let Some((reason, _)) = checks.into_iter().find(|(_, lacks)| *lacks) {
            return Err(reason);
        }
        if spec.traits.iter().any(|name| !view.has_trait(name)) {
            return Err(Ineligible::Traits);
        }
        if !are_met(&spec.requirements) || !group.is_none_or(|group| are_met(&group.spec.requirements)) {
            return Err(Ineligible::Requirements);
        }
        Ok(ScoredNode::new(view, spec, &self.required_traits))
    }
}

/// A node that qualifies, with its surplus over the request.
struct ScoredNode<'a> {
    view: NodeView<'a>,
    /// Number of traits that were not requested.
    surplus: usize,
    /// The surplus of each requested number, by key.
    spare: BTreeMap<String, f64>,
}

impl<'a> ScoredNode<'a> {
    fn new(view: NodeView<'a>, spec: &AllocationSpec, required: &BTreeSet<&Trait>) -> Self {
        let mut spare: BTreeMap<String, f64> = BTreeMap::new();
        for requirement in &spec.requirements.0 {
            if let Some(surplus) = requirement.headroom(&view) {
                // If a key has two bounds, the nearer one counts.
                let entry = spare.entry(requirement.key()).or_insert(surplus);
                *entry = entry.min(surplus);
            }
        }
        Self { surplus: view.count_other_traits(required), view, spare }
    }

    /// Compares two nodes by fit. Both were scored for the same request, so they have the same keys in `spare`.
    fn cmp(&self, other: &Self) -> Ordering {
        let (node, other_node) = (self.view.node(), other.view.node());
        let spare = || self.spare.values().zip(other.spare.values()).map(|(own, other)| own.total_cmp(other));
        (self.surplus.cmp(&other.surplus))
            .then_with(|| spare().find(|order| order.is_ne()).unwrap_or(Ordering::Equal))
            .then_with(|| natural_cmp(&node.display_name(), &other_node.display_name()))
            .then_with(|| node.id().cmp(&other_node.id()))
    }
}

/// The number of nodes that do not qualify, by reason.
#[derive(Default)]
struct RejectCounts(BTreeMap<Ineligible, usize>);

impl RejectCounts {
    fn add(&mut self, reason: Ineligible) {
        *self.0.entry(reason).or_default() += 1;
    }

    /// Returns Ironic's sentence, followed by the number of rejected nodes for each reason.
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
        let counted = [
            (Ineligible::Parked, "parked"),
            (Ineligible::InUse, "used already"),
            (Ineligible::Traits, "without a trait"),
            (Ineligible::Requirements, "that do not meet a requirement"),
        ];
        let counted = counted.into_iter().filter(|(reason, _)| count(*reason) > 0);
        let counted: Vec<String> = counted.map(|(reason, what)| format!("{} {what}", count(reason))).collect();
        if !counted.is_empty() {
            sentence.push_str(&format!(" Of that class there are {}.", counted.join(", ")));
        }
        sentence
    }
}

#[cfg(test)]
mod tests;
