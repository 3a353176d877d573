//! A node, with what follows for it from the levels above and from what its host reported.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::{Fleet, GroupFold};
use crate::inspection::{Inspected, RuleSet, Ruled};
use crate::labels::{Annotations, Fill, Labels, Parameters};
use crate::name::{Name, TagName};
use crate::object::{Node, NodeGroup, NodeId, NodeSpec, NodeTags, Observation, ReportedLabel, TraitSet};
use crate::origin::{Level, Origin, Resolved, nearest};
use crate::ownership::OwnedMap;
use crate::release::Profile;
use crate::task::Mode;
use crate::traits::{InstanceTraits, TraitInputs, check_instance};

/// A node with what follows for it.
#[derive(Clone, Debug)]
pub(crate) struct NodeEntry {
    pub(crate) node: Arc<Node>,
    pub(crate) observation: Option<Arc<Observation>>,
    /// What it is placed by; `None`: unplaced, or not to be placed yet.
    pub(crate) profile: Option<Arc<Profile>>,
    memory: RuleMemory,
}

/// What rules gave the last times that it was asked, in step with the node and its report; `None` before a report. Clones of a node
/// share it. A write that is tried out asks the rules before it and the rules after it, so there is room for two; the last asked is first.
type RuleMemory = Option<Arc<Mutex<[Option<Arc<Ruled>>; 2]>>>;

impl NodeEntry {
    pub(crate) fn bare(node: Arc<Node>) -> Self {
        Self { node, observation: None, profile: None, memory: None }
    }

    /// The same as another says it.
    pub(super) fn with_node(&self, node: Arc<Node>) -> Self {
        Self { node, memory: self.observation.is_some().then(Arc::default), ..self.clone() }
    }

    /// The same after another report.
    pub(super) fn with_observation(&self, observation: Option<Arc<Observation>>) -> Self {
        Self { memory: observation.is_some().then(Arc::default), observation, ..self.clone() }
    }

    /// The same, placed otherwise.
    pub(crate) fn with_profile(&self, profile: Option<Arc<Profile>>) -> Self {
        Self { profile, ..self.clone() }
    }

    /// What rules give it: nothing before its host has reported. It is worked out once, and again when one of the three is another.
    pub(crate) fn ruled(&self, rules: &RuleSet) -> Arc<Ruled> {
        let (Some(seen), Some(memory)) = (&self.observation, &self.memory) else { return Arc::clone(rules.nothing()) };
        if rules.is_empty() {
            return Arc::clone(rules.nothing());
        }
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |ruled: &Option<Arc<Ruled>>| ruled.as_ref().is_some_and(|ruled| ruled.is_by(rules.hash()));
        if !is_known(&memory[0]) {
            memory.swap(0, 1);
        }
        if !is_known(&memory[0]) {
            memory[0] = Some(rules.run(&Inspected::of(&self.node, seen)));
        }
        memory[0].clone().expect("it was put there")
    }

    /// The effective labels below a group's; what rules and the host may fill is filled in.
    pub(crate) fn labels(&self, fold: Option<&GroupFold>, ruled: &Ruled) -> Labels {
        let above = fold.map(|fold| fold.maps.labels.clone()).unwrap_or_default();
        let own = above.below(Level::Node, &self.node.spec.inherited.labels);
        let own = ruled.labels.iter().fold(own, |labels, given| {
            let origin = Origin::Rule(Arc::clone(&given.rule));
            labels.fill(&Fill { origin, grants: given.grants, labels: &given.labels })
        });
        let accepted =
            fold.zip(self.observation.as_deref()).map(|(fold, seen)| fold.accepted(seen)).unwrap_or_default();
        if accepted.is_empty() {
            return own;
        }
        own.fill(&Fill { origin: Origin::Host, grants: false, labels: &accepted })
    }

    /// The effective annotations below a group's.
    pub(crate) fn annotations(&self, fold: Option<&GroupFold>) -> Annotations {
        let above = fold.map(|fold| fold.maps.annotations.clone()).unwrap_or_default();
        above.below(Level::Node, &self.node.spec.inherited.annotations)
    }

    /// The effective parameters below a group's.
    pub(crate) fn parameters(&self, fold: Option<&GroupFold>) -> Parameters {
        let above = fold.map(|fold| fold.maps.parameters.clone()).unwrap_or_default();
        above.below(Level::Node, &self.node.spec.inherited.parameters)
    }

    /// What each source says of its traits.
    pub(crate) fn traits<'a>(&'a self, ruled: &'a Ruled) -> TraitInputs<'a> {
        static NONE_DETECTED: TraitSet = TraitSet::new();
        TraitInputs {
            operators: &self.node.spec.traits,
            ruled: &ruled.traits,
            detected: self.observation.as_ref().map_or(&NONE_DETECTED, |seen| &seen.traits),
            suppressed: &self.node.spec.suppressed_traits,
        }
    }

    /// The same but for what rules give.
    pub(super) fn unruled_traits(&self) -> TraitInputs<'_> {
        static NOTHING: LazyLock<Ruled> = LazyLock::new(Ruled::default);
        self.traits(&NOTHING)
    }

    /// The effective tags; of a node without a place, those assigned by hand.
    pub(crate) fn tags(&self) -> impl Iterator<Item = &TagName> {
        let placed = self.profile.as_ref().map(|profile| profile.place.tags.iter());
        let assigned = self.profile.is_none().then(|| self.node.spec.tags.assigned.members());
        placed.into_iter().flatten().chain(assigned.into_iter().flatten())
    }

    /// The labels that the host reports.
    pub(crate) fn reported(&self) -> &[ReportedLabel] {
        self.observation.as_ref().map_or(&[], |seen| &seen.labels)
    }

    /// Checks that the node has the traits that its instance wants.
    pub(crate) fn check_instance(&self, ruled: &Ruled) -> Result<(), InstanceTraits> {
        let traits = self.traits(ruled);
        check_instance(self.node.meta.uuid, &self.node.spec.instance_info, |name| traits.has(name))
    }

    /// The mode's ceiling: the node's own, else its group's, else `apply`.
    pub(crate) fn mode(&self, group: Option<&NodeGroup>) -> Resolved<Mode> {
        let said = [(Level::NodeGroup, group.and_then(|group| group.spec.mode)), (Level::Node, self.node.spec.mode)];
        nearest(said.into_iter().filter_map(|(level, mode)| Some((level, mode?)))).map_or_else(
            || Resolved { value: Mode::default(), origin: Origin::Default },
            |said| Resolved { value: said.value, origin: Origin::Level(said.origin) },
        )
    }

    /// The plain roles: the group's and the node's own together.
    pub(crate) fn roles(&self, fold: Option<&GroupFold>) -> BTreeSet<Name> {
        roles_below(fold, &self.node.spec)
    }
}

/// The plain roles of a node with this spec below a group: the group's and its own.
pub(crate) fn roles_below(fold: Option<&GroupFold>, spec: &NodeSpec) -> BTreeSet<Name> {
    fold.iter().flat_map(|fold| &fold.roles).chain(&spec.roles).cloned().collect()
}

impl Fleet {
    /// The bytes of the labels and properties that rules give a node. Where no rule may give any, none is asked.
    pub fn ruled_bytes(&self, id: NodeId) -> usize {
        let gives = || self.rules.gives().may_give_attributes();
        self.entry(id).filter(|_| gives()).map_or(0, |entry| entry.ruled(&self.rules).bytes())
    }

    /// Whether rules give a node something else than those of another fleet, or say something else of it.
    pub(crate) fn rules_otherwise(&self, other: &Self, id: NodeId) -> bool {
        let ruled = |fleet: &Self| fleet.entry(id).map(|entry| entry.ruled(&fleet.rules));
        match (ruled(self), ruled(other)) {
            (Some(one), Some(two)) => !one.is_like(&two),
            (one, two) => one.is_some() != two.is_some(),
        }
    }

    /// The plain roles of a node with this spec: its group's and its own.
    pub fn roles_of(&self, spec: &NodeSpec) -> BTreeSet<Name> {
        roles_below(self.fold_above(spec).map(|fold| &**fold), spec)
    }
}

/// A node's tags by hand without the unassignments that end; `None`: none does.
///
/// An unassignment lasts while some role of the node produces its tag, and is forgotten with the last of them. Else the tag would
/// be missing when the role comes back, by a word that nobody remembers. One whose tag nothing produced before either stays: so
/// applying a manifest again changes nothing.
pub fn ended_unassignments(before: &Fleet, after: &Fleet, node: NodeId, spec: &NodeSpec) -> Option<NodeTags> {
    let by_hand = &spec.tags.unassigned;
    if by_hand.is_empty() {
        return None;
    }
    let (before, after) = (produced(before, &before.node(node)?.spec)?, produced(after, spec)?);
    let ends = |tag: &TagName| before(tag) && !after(tag);
    if !by_hand.members().any(ends) {
        return None;
    }
    let kept = by_hand.iter().filter(|(tag, _)| !ends(tag));
    let unassigned = OwnedMap::from_entries(kept.map(|(tag, entry)| (tag.clone(), entry.clone())));
    Some(NodeTags { unassigned, ..spec.tags.clone() })
}

/// Whether the roles of a node with this spec produce a tag; `None`: something above the node is missing, so nobody knows.
fn produced<'a>(fleet: &'a Fleet, spec: &NodeSpec) -> Option<impl Fn(&TagName) -> bool + use<'a>> {
    let fold = spec.nodegroup.map(|group| fleet.fold(group)).transpose().ok()?;
    let roles = fleet.roles_of(spec);
    Some(move |tag: &TagName| {
        fold.and_then(|fold| fold.table.as_ref()).is_some_and(|table| table.may_produce(&roles, tag))
    })
}
