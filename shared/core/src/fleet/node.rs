//! A node with the data derived from its levels and its host's report.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::{Fleet, ResolvedGroup};
use crate::inspection::{InspectedNode, RuleOutcome, RuleSet};
use crate::labels::{Annotations, FillSource, Labels, Parameters};
use crate::name::{Name, TagName};
use crate::object::{Node, NodeGroup, NodeId, NodeSpec, NodeTags, Observation, ReportedLabel, TraitSet};
use crate::origin::{Level, Origin, ValueWithOrigin, nearest_value};
use crate::ownership::OwnedMap;
use crate::release::Profile;
use crate::task::Mode;
use crate::traits::{InstanceTraitsError, TraitInputs, check_instance_traits};

/// A node with the data that is derived from it, its group and the report of its host.
#[derive(Clone, Debug)]
pub(crate) struct NodeEntry {
    pub(crate) node: Arc<Node>,
    pub(crate) observation: Option<Arc<Observation>>,
    /// The profile: the tags, roles and primaries of the node, with the tasks that follow from them. `None` if the node
    /// has no group, if the group has no release, or if an object above the node is missing.
    pub(crate) profile: Option<Arc<Profile>>,
    rule_cache: RuleCache,
}

/// The results of the inspection rules for this node and report, under the two versions of the rules that were used
/// last. The most recently used version is first. `None` if the host has not reported. Clones of the entry share the
/// cache. A trial write of the rules needs the results under the old and under the new rules.
type RuleCache = Option<Arc<Mutex<[Option<Arc<RuleOutcome>>; 2]>>>;

impl NodeEntry {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node, observation: None, profile: None, rule_cache: None }
    }

    /// Returns a copy of the entry with another version of the node. Cached results of rules are dropped.
    pub(super) fn with_node(&self, node: Arc<Node>) -> Self {
        Self { node, rule_cache: self.observation.is_some().then(Arc::default), ..self.clone() }
    }

    /// Returns a copy of the entry with another report of the host. Cached results of rules are dropped.
    pub(super) fn with_observation(&self, observation: Option<Arc<Observation>>) -> Self {
        Self { rule_cache: observation.is_some().then(Arc::default), observation, ..self.clone() }
    }

    /// Returns a copy of the entry with another profile.
    pub(crate) fn with_profile(&self, profile: Option<Arc<Profile>>) -> Self {
        Self { profile, ..self.clone() }
    }

    /// Returns the labels, properties, traits and notes that the inspection rules give the node. The outcome is empty
    /// if the host of the node has not reported. It is cached until the node, the report or the rules change.
    pub(crate) fn rule_outcome(&self, rules: &RuleSet) -> Arc<RuleOutcome> {
        let (Some(observation), Some(cache)) = (&self.observation, &self.rule_cache) else {
            return Arc::clone(rules.empty_outcome());
        };
        if rules.is_empty() {
            return Arc::clone(rules.empty_outcome());
        }
        let mut outcomes = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |item: &Option<Arc<RuleOutcome>>| item.as_ref().is_some_and(|item| item.is_from_rules(rules.hash()));
        // The result of these rules moves to the front. If neither result is of these rules, the older one is replaced.
        if !is_current(&outcomes[0]) {
            outcomes.swap(0, 1);
        }
        if !is_current(&outcomes[0]) {
            outcomes[0] = Some(rules.run(&InspectedNode::new(&self.node, observation)));
        }
        outcomes[0].clone().expect("the first result is set above")
    }

    /// Returns the effective labels: those of the group merged with those of the node. Keys that no level decides are
    /// then filled by the inspection rules (`rule_outcome`) and last by the labels that the group accepts from the
    /// host.
    pub(crate) fn labels(&self, group: Option<&ResolvedGroup>, rule_outcome: &RuleOutcome) -> Labels {
        let group_labels = group.map(|group| group.maps.labels.clone()).unwrap_or_default();
        let labels = group_labels.with_level(Level::Node, &self.node.spec.inherited.labels);
        let labels = rule_outcome.labels.iter().fold(labels, |labels, source| {
            let origin = Origin::Rule(Arc::clone(&source.rule));
            labels.fill(&FillSource { origin, can_set_restricted: source.may_set_restricted, labels: &source.labels })
        });
        let accepted =
            group.zip(self.observation.as_deref()).map(|(group, report)| group.accepted_labels(report)).unwrap_or_default();
        if accepted.is_empty() {
            return labels;
        }
        labels.fill(&FillSource { origin: Origin::Host, can_set_restricted: false, labels: &accepted })
    }

    /// Returns the effective annotations: those of the group merged with those of the node.
    pub(crate) fn annotations(&self, group: Option<&ResolvedGroup>) -> Annotations {
        let group_annotations = group.map(|group| group.maps.annotations.clone()).unwrap_or_default();
        group_annotations.with_level(Level::Node, &self.node.spec.inherited.annotations)
    }

    /// Returns the effective parameters: those of the group merged with those of the node.
    pub(crate) fn parameters(&self, group: Option<&ResolvedGroup>) -> Parameters {
        let group_parameters = group.map(|group| group.maps.parameters.clone()).unwrap_or_default();
        group_parameters.with_level(Level::Node, &self.node.spec.inherited.parameters)
    }

    /// Returns the traits of the node, listed separately for each source.
    pub(crate) fn traits<'a>(&'a self, rule_outcome: &'a RuleOutcome) -> TraitInputs<'a> {
        static NONE_DETECTED: TraitSet = TraitSet::new();
        TraitInputs {
            from_operators: &self.node.spec.traits,
            from_rules: &rule_outcome.traits,
            detected: self.observation.as_ref().map_or(&NONE_DETECTED, |report| &report.traits),
            suppressed: &self.node.spec.suppressed_traits,
        }
    }

    /// Returns the traits of the node, listed separately for each source, without those from inspection rules.
    pub(super) fn traits_without_rules(&self) -> TraitInputs<'_> {
        static NOTHING: LazyLock<RuleOutcome> = LazyLock::new(RuleOutcome::default);
        self.traits(&NOTHING)
    }

    /// Returns the effective tags. For a node without a profile (it is in no group, its group has no release, or an
    /// object above it is missing), these are the tags that operators assigned to it.
    pub(crate) fn tags(&self) -> impl Iterator<Item = &TagName> {
        let profile_tags = self.profile.as_ref().map(|profile| profile.key.tags.iter());
        let assigned = self.profile.is_none().then(|| self.node.spec.tags.assigned.members());
        profile_tags.into_iter().flatten().chain(assigned.into_iter().flatten())
    }

    /// Returns the labels that the host reports.
    pub(crate) fn reported_labels(&self) -> &[ReportedLabel] {
        self.observation.as_ref().map_or(&[], |report| &report.labels)
    }

    /// Fails if the node lacks a trait that its instance requires, or if the list of required traits is invalid. An
    /// instance is the workload that Ironic has deployed on the node.
    pub(crate) fn check_instance_traits(&self, rule_outcome: &RuleOutcome) -> Result<(), InstanceTraitsError> {
        let traits = self.traits(rule_outcome);
        check_instance_traits(self.node.meta.uuid, &self.node.spec.instance_info, |name| traits.has_trait(name))
    }

    /// Returns the mode of the node, which limits what the host does with its tasks. It is set by the node, else by the
    /// group, and is else `apply`.
    pub(crate) fn mode(&self, group: Option<&NodeGroup>) -> ValueWithOrigin<Mode> {
        let modes = [(Level::NodeGroup, group.and_then(|group| group.spec.mode)), (Level::Node, self.node.spec.mode)];
        nearest_value(modes.into_iter().filter_map(|(level, mode)| Some((level, mode?)))).map_or_else(
            || ValueWithOrigin { value: Mode::default(), origin: Origin::Default },
            |mode| ValueWithOrigin { value: mode.value, origin: Origin::Level(mode.origin) },
        )
    }

    /// Returns the roles of the node: those of its group and its own.
    pub(crate) fn roles(&self, group: Option<&ResolvedGroup>) -> BTreeSet<Name> {
        spec_roles(group, &self.node.spec)
    }
}

/// Returns the roles of a node with this spec: those of its group and its own.
pub(crate) fn spec_roles(group: Option<&ResolvedGroup>, spec: &NodeSpec) -> BTreeSet<Name> {
    group.iter().flat_map(|group| &group.roles).chain(&spec.roles).cloned().collect()
}

impl Fleet {
    /// Returns the size of the labels and properties that inspection rules give a node, in bytes. If no rule sets
    /// labels or properties, no rule is evaluated.
    pub fn rule_outcome_bytes(&self, id: NodeId) -> usize {
        let may_set_attributes_by_rule = || self.rules.possible_effects().may_set_attributes();
        self.entry(id).filter(|_| may_set_attributes_by_rule()).map_or(0, |entry| entry.rule_outcome(&self.rules).size_bytes())
    }

    /// Returns whether the inspection rules give a node other labels, properties, traits or notes in this fleet than in
    /// `other`. The rules, the node and the report may differ between the fleets. The result is `true` if only one of
    /// the fleets has the node.
    pub(crate) fn has_rule_changes(&self, other: &Self, id: NodeId) -> bool {
        let outcome_in = |fleet: &Self| fleet.entry(id).map(|entry| entry.rule_outcome(&fleet.rules));
        match (outcome_in(self), outcome_in(other)) {
            (Some(outcome), Some(other_outcome)) => !outcome.has_same_content(&other_outcome),
            (outcome, other_outcome) => outcome.is_some() != other_outcome.is_some(),
        }
    }

    /// Returns the roles of a node with this spec: those of its group and its own.
    pub fn roles_of_spec(&self, spec: &NodeSpec) -> BTreeSet<Name> {
        spec_roles(self.resolved_parent(spec).map(|group| &**group), spec)
    }
}

/// Returns the tags of a node (as operators assigned and unassigned them) without the unassignments that a write ends.
/// Returns `None` if it ends none, if the node is new, or if an object above the node is missing.
///
/// An unassignment means that the node lacks a tag although a role produces the tag. It ends when no role of the node
/// produces the tag any more. Otherwise the tag would still be missing when a role produces it again later. If no role
/// produced the tag before the write either, the unassignment remains. So applying a manifest again changes nothing.
pub fn ended_unassignments(old_fleet: &Fleet, new_fleet: &Fleet, node: NodeId, spec: &NodeSpec) -> Option<NodeTags> {
    let unassignments = &spec.tags.unassigned;
    if unassignments.is_empty() {
        return None;
    }
    let (was_produced, is_produced) = (produces_tag(old_fleet, &old_fleet.node(node)?.spec)?, produces_tag(new_fleet, spec)?);
    let ends = |tag: &TagName| was_produced(tag) && !is_produced(tag);
    if !unassignments.members().any(ends) {
        return None;
    }
    let remaining = unassignments.iter().filter(|(tag, _)| !ends(tag));
    let unassigned = OwnedMap::from_entries(remaining.map(|(tag, entry)| (tag.clone(), entry.clone())));
    Some(NodeTags { unassigned, ..spec.tags.clone() })
}

/// Returns a function that checks whether the roles of a node with this spec produce a tag, perhaps by an extension's
/// decision. Returns `None` if an object above the node or its release is missing, because its tags are then unknown.
fn produces_tag<'a>(fleet: &'a Fleet, spec: &NodeSpec) -> Option<impl Fn(&TagName) -> bool + use<'a>> {
    let group = spec.nodegroup.map(|id| fleet.resolved_group(id)).transpose().ok()?;
    let (table, roles) = (group.and_then(|group| group.role_table.as_ref()), fleet.roles_of_spec(spec));
    Some(move |tag: &TagName| table.is_some_and(|table| table.may_produce(&roles, tag)))
}
