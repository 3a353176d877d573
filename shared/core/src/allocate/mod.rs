//! Which node an allocation takes: a pure choice, the same for the same fleet and the same request.
//!
//! Ironic takes any node that fits, by chance. Here the best fit is taken, so that what is scarce is kept for who asks for it: fewest
//! traits that nobody asked for, then least to spare of each number that was asked for (by key), then the first by name, digits compared
//! as numbers.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::fleet::{Fleet, NodeView};
use crate::object::{AllocationDecision, AllocationSpec, ClusterId, Merits, NodeId};
use crate::requirement::{FieldLookup as _, Presence, Requirement, Requirements};
use crate::role::natural_cmp;
use crate::traits::Trait;

/// Decides an allocation. `within`: the one cluster whose groups' nodes may be taken, for who is bound to it.
pub fn allocate(fleet: &Fleet, asked: &AllocationSpec, within: Option<ClusterId>) -> AllocationDecision {
    let pool = Pool { fleet, asked, within, wanted: wanted(asked) };
    let mut failed = Failed::default();
    let mut best: Option<Fit<'_>> = None;
    let mut candidates = 0;
    for view in pool.nodes().into_iter().filter_map(|id| fleet.node_view(id)) {
        match pool.fit(view) {
            Ok(fit) => {
                candidates += 1;
                if best.as_ref().is_none_or(|best| fit.cmp(best) == Ordering::Less) {
                    best = Some(fit);
                }
            }
            Err(lack) => failed.count(lack),
        }
    }
    match best {
        Some(fit) => {
            let surplus = fit.view.traits().names().filter(|name| !pool.wanted.contains(name)).cloned().collect();
            let because = Merits { candidates, surplus_traits: surplus, to_spare: fit.spare };
            AllocationDecision::Chosen { node: fit.view.node().id(), because }
        }
        None => AllocationDecision::Failed { reason: failed.reason(asked) },
    }
}

/// The traits that are asked for, by name or as a requirement.
fn wanted(asked: &AllocationSpec) -> BTreeSet<&Trait> {
    let required = asked.requirements.0.iter().filter_map(|one| match one {
        Requirement::Trait { name, presence: Presence::Required } => Some(name),
        Requirement::Trait { .. } | Requirement::Field { .. } => None,
    });
    asked.traits.iter().chain(required).collect()
}

/// Why a node is none to take, the first reason that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    /// It is of another class, or owner.
    Class,
    /// It is parked.
    Parked,
    /// It is used already.
    Used,
    /// It lacks a trait.
    Traits,
    /// It does not meet a requirement.
    Requirements,
}

struct Pool<'a> {
    fleet: &'a Fleet,
    asked: &'a AllocationSpec,
    within: Option<ClusterId>,
    wanted: BTreeSet<&'a Trait>,
}

impl<'a> Pool<'a> {
    fn nodes(&self) -> Vec<NodeId> {
        let Self { fleet, asked, within, .. } = self;
        let named = &asked.candidate_nodes;
        let of_place: Vec<NodeId> = match (asked.nodegroup, within) {
            (Some(group), _) => fleet.nodes_of(group).collect(),
            (None, Some(cluster)) => fleet.nodes_of_cluster(*cluster).collect(),
            (None, None) if !named.is_empty() => named.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
            (None, None) => return fleet.nodes().map(|node| node.id()).collect(),
        };
        let is_within = |id: &NodeId| within.is_none_or(|cluster| fleet.cluster_of_node(*id) == Some(cluster));
        of_place.into_iter().filter(|id| (named.is_empty() || named.contains(id)) && is_within(id)).collect()
    }

    fn fit(&self, view: NodeView<'a>) -> Result<Fit<'a>, Lack> {
        let (node, asked) = (view.node(), self.asked);
        let said = |name: &str| node.spec.extra.get(name).and_then(Value::as_str);
        let is_owned = |owner: &str| said("owner") == Some(owner) || said("lessee") == Some(owner);
        let of_group = asked.nodegroup.and_then(|group| self.fleet.group(group));
        let held = |wanted: &Requirements| wanted.hold(&view);
        let lacks = [
            (Lack::Class, said("resource_class") != Some(&asked.resource_class)),
            (Lack::Class, asked.owner.as_deref().is_some_and(|owner| !is_owned(owner))),
            (Lack::Parked, self.fleet.parked(node).is_some()),
            (Lack::Used, node.is_used()),
        ];
        if let Some((lack, _)) = lacks.into_iter().find(|(_, lacks)| *lacks) {
            return Err(lack);
        }
        if asked.traits.iter().any(|name| !view.has_trait(name)) {
            return Err(Lack::Traits);
        }
        if !held(&asked.requirements) || !of_group.is_none_or(|group| held(&group.spec.requirements)) {
            return Err(Lack::Requirements);
        }
        Ok(Fit::of(view, asked, &self.wanted))
    }
}

/// A node that could be taken, with what it has beyond what was asked for.
struct Fit<'a> {
    view: NodeView<'a>,
    surplus: usize,
    spare: BTreeMap<String, f64>,
}

impl<'a> Fit<'a> {
    fn of(view: NodeView<'a>, asked: &AllocationSpec, wanted: &BTreeSet<&Trait>) -> Self {
        let mut spare: BTreeMap<String, f64> = BTreeMap::new();
        for one in &asked.requirements.0 {
            if let Some(least) = one.to_spare(&view) {
                // Of two bounds of one key the nearer one counts.
                let known = spare.entry(one.key()).or_insert(least);
                *known = known.min(least);
            }
        }
        Self { surplus: view.count_traits_beyond(wanted), view, spare }
    }

    /// Both were asked for the same, so that what they have to spare has the same keys.
    fn cmp(&self, other: &Self) -> Ordering {
        let (node, others) = (self.view.node(), other.view.node());
        let spare = || self.spare.values().zip(other.spare.values()).map(|(own, other)| own.total_cmp(other));
        (self.surplus.cmp(&other.surplus))
            .then_with(|| spare().find(|order| order.is_ne()).unwrap_or(Ordering::Equal))
            .then_with(|| natural_cmp(&node.display_name(), &others.display_name()))
            .then_with(|| node.id().cmp(&others.id()))
    }
}

/// How many nodes were none to take, by the reason.
#[derive(Default)]
struct Failed(BTreeMap<Lack, usize>);

impl Failed {
    fn count(&mut self, lack: Lack) {
        *self.0.entry(lack).or_default() += 1;
    }

    /// Ironic's sentence, and how many nodes came how far.
    fn reason(&self, asked: &AllocationSpec) -> String {
        let of = |lack: Lack| self.0.get(&lack).copied().unwrap_or(0);
        let class = &asked.resource_class;
        let mut sentence = if of(Lack::Requirements) > 0 {
            let texts = asked.requirements.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let texts = if texts.is_empty() { "of their node group".to_owned() } else { texts };
            format!("no suitable nodes meet the requirements {texts}.")
        } else if of(Lack::Traits) > 0 {
            let names = asked.traits.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("no suitable nodes have the requested traits {names}.")
        } else if asked.candidate_nodes.is_empty() {
            format!("no available nodes match the resource class {class}.")
        } else {
            format!("none of the requested nodes are available and match the resource class {class}.")
        };
        let counted = [
            (Lack::Parked, "parked"),
            (Lack::Used, "used already"),
            (Lack::Traits, "without a trait"),
            (Lack::Requirements, "that do not meet a requirement"),
        ];
        let counted = counted.into_iter().filter(|(lack, _)| of(*lack) > 0);
        let counted: Vec<String> = counted.map(|(lack, what)| format!("{} {what}", of(lack))).collect();
        if !counted.is_empty() {
            sentence.push_str(&format!(" Of that class there are {}.", counted.join(", ")));
        }
        sentence
    }
}

#[cfg(test)]
mod tests;
