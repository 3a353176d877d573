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
use crate::traits::{InstanceTraits, TraitInputs, check_instance_traits};

/// A node with its derived data.
#[derive(Clone, Debug)]
pub(crate) struct NodeEntry {
    pub(crate) node: Arc<Node>,
    pub(crate) observation: Option<Arc<Observation>>,
    /// The profile with the node's tags, primaries and tasks. `None` if the node has no group or the group no release,
    /// or if an object above the node is missing.
    pub(crate) profile: Option<Arc<Profile>>,
    rule_cache: RuleCache,
}

/// The last two outcomes of the rules for this node and report, the most recent first. `None` before the first report.
/// Clones of a node's entry share the cache. A trial write evaluates the rules before and after the write, so there is
/// room for two.
type RuleCache = Option<Arc<Mutex<[Option<Arc<RuleOutcome>>; 2]>>>;

impl NodeEntry {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node, observation: None, profile: None, rule_cache: None }
    }

    /// Returns a copy with another version of the node.
    pub(super) fn with_node(&self, node: Arc<Node>) -> Self {
        Self { node, rule_cache: self.observation.is_some().then(Arc::default), ..self.clone() }
    }

    /// Returns a copy with another report.
    pub(super) fn with_observation(&self, observation: Option<Arc<Observation>>) -> Self {
        Self { rule_cache: observation.is_some().then(Arc::default), observation, ..self.clone() }
    }

    /// Returns a copy with another profile.
    pub(crate) fn with_profile(&self, profile: Option<Arc<Profile>>) -> Self {
        Self { profile, ..self.clone() }
    }

    /// Returns what the rules give the node, or nothing before its host has reported. The outcome is cached until the
    /// node, the report or the rules change.
    pub(crate) fn rule_outcome(&self, rules: &RuleSet) -> Arc<RuleOutcome> {
        let (Some(observation), Some(cache)) = (&self.observation, &self.rule_cache) else {
            return Arc::clone(rules.empty_outcome());
        };
        if rules.is_empty() {
            return Arc::clone(rules.empty_outcome());
        }
        let mut outcomes = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |ruled: &Option<Arc<RuleOutcome>>| ruled.as_ref().is_some_and(|ruled| ruled.is_from_rules(rules.hash()));
        if !is_known(&outcomes[0]) {
            outcomes.swap(0, 1);
        }
        if !is_known(&outcomes[0]) {
            outcomes[0] = Some(rules.run(&InspectedNode::new(&self.node, observation)));
        }
        outcomes[0].clone().expect("it was put there")
    }

    /// Returns the effective labels: those of the group and the node, and for keys that no level decides those of the
    /// rules and of the host.
    pub(crate) fn labels(&self, group: Option<&ResolvedGroup>, ruled: &RuleOutcome) -> Labels {
        let above = group.map(|group| group.maps.labels.clone()).unwrap_or_default();
        let labels = above.with_level(Level::Node, &self.node.spec.inherited.labels);
        let labels = ruled.labels.iter().fold(labels, |labels, source| {
            let origin = Origin::Rule(Arc::clone(&source.rule));
            labels.fill(&FillSource { origin, can_set_restricted: source.may_set_restricted, labels: &source.labels })
        });
        let accepted =
            group.zip(self.observation.as_deref()).map(|(group, seen)| group.accepted_labels(seen)).unwrap_or_default();
        if accepted.is_empty() {
            return labels;
        }
        labels.fill(&FillSource { origin: Origin::Host, can_set_restricted: false, labels: &accepted })
    }

    /// Returns the effective annotations: the group's, merged with the node's.
    pub(crate) fn annotations(&self, group: Option<&ResolvedGroup>) -> Annotations {
        let above = group.map(|group| group.maps.annotations.clone()).unwrap_or_default();
        above.with_level(Level::Node, &self.node.spec.inherited.annotations)
    }

    /// Returns the effective parameters: the group's, merged with the node's.
    pub(crate) fn parameters(&self, group: Option<&ResolvedGroup>) -> Parameters {
        let above = group.map(|group| group.maps.parameters.clone()).unwrap_or_default();
        above.with_level(Level::Node, &self.node.spec.inherited.parameters)
    }

    /// Returns the node's traits, separately for each source.
    pub(crate) fn traits<'a>(&'a self, ruled: &'a RuleOutcome) -> TraitInputs<'a> {
        static NONE_DETECTED: TraitSet = TraitSet::new();
        TraitInputs {
            from_operators: &self.node.spec.traits,
            from_rules: &ruled.traits,
            detected: self.observation.as_ref().map_or(&NONE_DETECTED, |seen| &seen.traits),
            suppressed: &self.node.spec.suppressed_traits,
        }
    }

    /// Returns the node's traits, separately for each source, as if no rule gave any.
    pub(super) fn traits_without_rules(&self) -> TraitInputs<'_> {
        static NOTHING: LazyLock<RuleOutcome> = LazyLock::new(RuleOutcome::default);
        self.traits(&NOTHING)
    }

    /// Returns the effective tags. For a node without a profile, returns the manually assigned tags.
    pub(crate) fn tags(&self) -> impl Iterator<Item = &TagName> {
        let placed = self.profile.as_ref().map(|profile| profile.key.tags.iter());
        let assigned = self.profile.is_none().then(|| self.node.spec.tags.assigned.members());
        placed.into_iter().flatten().chain(assigned.into_iter().flatten())
    }

    /// Returns the labels that the host reports.
    pub(crate) fn reported_labels(&self) -> &[ReportedLabel] {
        self.observation.as_ref().map_or(&[], |seen| &seen.labels)
    }

    /// Checks that the node has the traits that its instance requires.
    pub(crate) fn check_instance_traits(&self, ruled: &RuleOutcome) -> Result<(), InstanceTraits> {
        let traits = self.traits(ruled);
        check_instance_traits(self.node.meta.uuid, &self.node.spec.instance_info, |name| traits.has_trait(name))
    }

    /// Returns the mode that limits what the host does with its tasks: the node's, else the group's, else `apply`.
    pub(crate) fn mode(&self, group: Option<&NodeGroup>) -> ValueWithOrigin<Mode> {
        let modes = [(Level::NodeGroup, group.and_then(|group| group.spec.mode)), (Level::Node, self.node.spec.mode)];
        nearest_value(modes.into_iter().filter_map(|(level, mode)| Some((level, mode?)))).map_or_else(
            || ValueWithOrigin { value: Mode::default(), origin: Origin::Default },
            |mode| ValueWithOrigin { value: mode.value, origin: Origin::Level(mode.origin) },
        )
    }

    /// Returns the roles of the group and of the node together.
    pub(crate) fn roles(&self, group: Option<&ResolvedGroup>) -> BTreeSet<Name> {
        spec_roles(group, &self.node.spec)
    }
}

/// Returns the roles of a node with this spec: those of its group and its own.
pub(crate) fn spec_roles(group: Option<&ResolvedGroup>, spec: &NodeSpec) -> BTreeSet<Name> {
    group.iter().flat_map(|group| &group.roles).chain(&spec.roles).cloned().collect()
}

impl Fleet {
    /// Returns the size of the labels and properties that rules give a node, in bytes. If no rule can give any, no rule
    /// is evaluated.
    pub fn rule_outcome_bytes(&self, id: NodeId) -> usize {
        let gives = || self.rules.possible_effects().may_set_attributes();
        self.entry(id).filter(|_| gives()).map_or(0, |entry| entry.rule_outcome(&self.rules).size_bytes())
    }

    /// Returns whether the rules of this fleet give a node another result than those of `other`: other labels,
    /// properties or traits, or other notes.
    pub(crate) fn has_rule_changes(&self, other: &Self, id: NodeId) -> bool {
        let ruled = |fleet: &Self| fleet.entry(id).map(|entry| entry.rule_outcome(&fleet.rules));
        match (ruled(self), ruled(other)) {
            (Some(one), Some(two)) => !one.has_same_content(&two),
            (one, two) => one.is_some() != two.is_some(),
        }
    }

    /// Returns the roles of a node with this spec: those of its group and its own.
    pub fn roles_of_spec(&self, spec: &NodeSpec) -> BTreeSet<Name> {
        spec_roles(self.resolved_parent(spec).map(|group| &**group), spec)
    }
}

/// Returns a node's manual tags without the unassignments that end, or `None` if none ends.
///
/// An unassignment lasts while some role of the node produces its tag, and is removed with the last such role.
/// Otherwise the tag would be missing when the role returns, because of an unassignment that nobody remembers. An
/// unassignment of a tag that no role produced before either stays, so applying a manifest again changes nothing.
pub fn ended_unassignments(before: &Fleet, after: &Fleet, node: NodeId, spec: &NodeSpec) -> Option<NodeTags> {
    let unassignments = &spec.tags.unassigned;
    if unassignments.is_empty() {
        return None;
    }
    let (before, after) = (produces_tag(before, &before.node(node)?.spec)?, produces_tag(after, spec)?);
    let ends = |tag: &TagName| before(tag) && !after(tag);
    if !unassignments.members().any(ends) {
        return None;
    }
    let remaining = unassignments.iter().filter(|(tag, _)| !ends(tag));
    let unassigned = OwnedMap::from_entries(remaining.map(|(tag, entry)| (tag.clone(), entry.clone())));
    Some(NodeTags { unassigned, ..spec.tags.clone() })
}

/// Returns a function that returns whether the roles of a node with this spec produce a tag. `None` if the node's group
/// is incomplete, so that its tags are unknown.
fn produces_tag<'a>(fleet: &'a Fleet, spec: &NodeSpec) -> Option<impl Fn(&TagName) -> bool + use<'a>> {
    let group = spec.nodegroup.map(|id| fleet.resolved_group(id)).transpose().ok()?;
    let (table, roles) = (group.and_then(|group| group.role_table.as_ref()), fleet.roles_of_spec(spec));
    Some(move |tag: &TagName| table.is_some_and(|table| table.may_produce(&roles, tag)))
}
