//! What requirements, selectors, conditions and templates read of a node, one value at a time.
//!
//! A read merges no maps. It looks a key up in the node's own map and in the group's map, which are small. It allocates
//! nothing for a node without values of its own. The exception is a node whose labels a rule or the host fills: its
//! labels are merged once for the view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::{Fleet, NodeEntry, ResolvedGroup};
use crate::condition::MAX_CONDITION_STEPS;
use crate::input::{Input, Path, Read, Reference};
use crate::inspection::{RuleOutcome, RuleProperty};
use crate::key::{LabelKey, LabelValue};
use crate::labels::{Annotations, Labels, MapDiff, Parameters, map_diff};
use crate::name::{Name, TagName};
use crate::object::{Node, NodeId, ReportedLabel};
use crate::origin::Level;
use crate::ownership::ProvidedValue;
use crate::requirement::{FieldLookup, LiteralValue as FieldValue, RequirementField, UnmetRequirement};
use crate::selector::{LabelLookup, Selector};
use crate::traits::{InstanceTraitsError, NodeTraits, Trait};

/// A node with everything that it inherits and that its host reports. If an object above the node or its release is
/// missing, the node inherits nothing in the view.
pub struct NodeView<'a> {
    fleet: &'a Fleet,
    entry: &'a NodeEntry,
    group: Option<&'a ResolvedGroup>,
    /// The result of the inspection rules for the node.
    rule_outcome: Arc<RuleOutcome>,
    /// The effective labels, if a rule gives the node labels or the group accepts a label that the host reports.
    /// Otherwise `None`, and each label is read from the maps of the node and its group.
    filled_labels: Option<Labels>,
}

impl Fleet {
    /// Returns a view of a node, from which requirements and selectors read. Returns `None` if no node has this id.
    pub fn node_view(&self, id: NodeId) -> Option<NodeView<'_>> {
        Some(self.entry_view(self.entry(id)?))
    }

    /// Returns whether a selector selects this version of a node. What the node inherits and what its host reported are
    /// read from the current fleet. If the node was deleted, the report of its host is unknown. Terms about reported or
    /// filled labels then count as met. So every client that watches the node gets its deletion, and some other clients
    /// get it too.
    pub fn selects(&self, node: &Node, selector: &Selector) -> bool {
        let Some(current_entry) = self.entry(node.id()) else {
            let deleted_entry = NodeEntry::new(Arc::new(node.clone()));
            let view = self.entry_view(&deleted_entry);
            return selector.matches_without_report(&view, |key| view.may_be_filled(key));
        };
        let is_current = current_entry.node.meta.resource_version == node.meta.resource_version;
        let other_version = (!is_current).then(|| current_entry.with_node(Arc::new(node.clone())));
        let view = self.entry_view(other_version.as_ref().unwrap_or(current_entry));
        selector.matches(&view, &view.reported_labels())
    }

    /// Returns a view of an entry. The entry may be another version of the node than the stored one.
    fn entry_view<'a>(&'a self, entry: &'a NodeEntry) -> NodeView<'a> {
        NodeView::new(self, entry, self.resolved_parent(&entry.node.spec).map(|group| &**group))
    }
}

impl<'a> NodeView<'a> {
    /// Creates a view of a node in a group, and merges its labels now if a rule or the host may fill one.
    pub(crate) fn new(fleet: &'a Fleet, entry: &'a NodeEntry, group: Option<&'a ResolvedGroup>) -> Self {
        let has_accepted = group.zip(entry.observation.as_ref()).is_some_and(|(group, report)| group.has_accepted_labels(report));
        let rule_outcome = entry.rule_outcome(fleet.rules());
        let is_filled = has_accepted || !rule_outcome.labels.is_empty();
        let filled_labels = is_filled.then(|| entry.labels(group, &rule_outcome));
        Self { fleet, entry, group, rule_outcome, filled_labels }
    }

    pub(crate) fn fleet(&self) -> &'a Fleet {
        self.fleet
    }

    /// Returns the result of the inspection rules for the node.
    pub(crate) fn rule_outcome(&self) -> &Arc<RuleOutcome> {
        &self.rule_outcome
    }

    /// Returns the object of the node.
    pub fn node(&self) -> &'a Node {
        &self.entry.node
    }

    /// Returns the effective labels, each with its provenance (what each level provides for the key, and which level
    /// wins).
    pub fn labels(&self) -> Labels {
        self.filled_labels.clone().unwrap_or_else(|| self.entry.labels(self.group, &self.rule_outcome))
    }

    /// Returns the effective parameters.
    pub fn parameters(&self) -> Parameters {
        self.entry.parameters(self.group)
    }

    /// Returns the effective annotations.
    pub fn annotations(&self) -> Annotations {
        self.entry.annotations(self.group)
    }

    /// Returns the difference that the node's own level makes to the labels of its group, without labels that the host
    /// or a rule fills. Returns `None` if the node has no group, or if an object above it or its release is missing.
    pub fn label_diff(&self) -> Option<MapDiff<LabelKey, LabelValue>> {
        let base = &self.group?.maps.labels;
        let labels = base.with_level(Level::Node, &self.entry.node.spec.inherited.labels);
        Some(if labels.shares_data_with(base) { MapDiff::default() } else { map_diff(&base.values(), &labels.values()) })
    }

    /// Returns the roles of the node: those of its group and its own.
    pub fn roles(&self) -> BTreeSet<Name> {
        self.entry.roles(self.group)
    }

    /// Returns the effective tags. For a node without a profile (it is in no group, its group has no release, or an
    /// object above it is missing), these are the tags that operators assigned to it.
    pub fn tags(&self) -> Vec<TagName> {
        self.entry.tags().cloned().collect()
    }

    /// Returns the tags that the node holds as primary.
    pub fn primary_tags(&self) -> &'a [TagName] {
        self.entry.profile.as_ref().map_or(&[], |profile| &profile.key.primaries)
    }

    /// Returns the effective traits, each with its sources: operators, inspection rules, the agent.
    pub fn traits(&self) -> NodeTraits {
        self.entry.traits(&self.rule_outcome).resolve()
    }

    /// Returns the properties that inspection rules give the node. A property that an operator sets is not included,
    /// except `capabilities`, which combines the capabilities of operators and rules.
    pub fn rule_properties(&self) -> &BTreeMap<String, RuleProperty> {
        &self.rule_outcome.properties
    }

    /// Returns the number of traits of the node that are not in `requested`.
    pub(crate) fn count_other_traits(&self, requested: &BTreeSet<&Trait>) -> usize {
        self.entry.traits(&self.rule_outcome).names().filter(|name| !requested.contains(name)).count()
    }

    /// Checks that the node has the traits that its instance requires. An instance is the workload that Ironic has
    /// deployed on the node.
    ///
    /// # Errors
    /// [`InstanceTraitsError`] if a required trait is missing, or if the list of required traits is invalid.
    pub fn check_instance_traits(&self) -> Result<(), InstanceTraitsError> {
        self.entry.check_instance_traits(&self.rule_outcome)
    }

    /// Returns the requirements of the group that the node does not meet.
    pub(crate) fn unmet_requirements(&self) -> Vec<UnmetRequirement> {
        let unmet = self.group.into_iter().flat_map(|group| group.group.spec.requirements.unmet(self));
        unmet.map(|requirement| requirement.unmet(self)).collect()
    }

    /// Returns the labels that the host reports.
    pub fn reported_labels(&self) -> &'a [ReportedLabel] {
        self.entry.reported_labels()
    }

    /// Returns the step limit of this node for one condition that looks up other nodes and reads values of the node.
    pub(crate) fn condition_step_limit(&self) -> usize {
        self.group.map_or(MAX_CONDITION_STEPS, |group| self.fleet.condition_step_limit(group.cluster_id()))
    }

    /// Returns the maximum number of steps that all conditions of this node may use together.
    pub(crate) fn node_step_limit(&self) -> usize {
        self.group.map_or(MAX_CONDITION_STEPS, |group| self.fleet.node_step_limit(group.cluster_id()))
    }

    /// Returns whether a rule or the host may have filled a label of a deleted node. They may if the node neither
    /// provides (or tombstones) nor inherits the label, and a rule may set it or the group accepts it from the host.
    fn may_be_filled(&self, key: &str) -> bool {
        let entry = self.entry.node.spec.inherited.labels.provided.as_ref().and_then(|map| map.get(key));
        if entry.is_some() || self.label(key).is_some() {
            return false;
        }
        self.group.is_some_and(|group| group.host_labels.value.is_accepted(key))
            || LabelKey::new(key).is_ok_and(|key| self.fleet.rules().possible_effects().may_set_label(&key))
    }

    /// Returns whether a rule or the host may fill a label of the node. Any label may then differ from the group's.
    pub(crate) fn has_filled_labels(&self) -> bool {
        self.filled_labels.is_some()
    }

    /// Returns the value of a reference for the node, as a condition or template reads it.
    pub(crate) fn input(&self, reference: &Reference) -> Input {
        match reference.read() {
            Read::Label(key) => Input::from(self.label(key).map(Value::from)),
            Read::LabelsWithPrefix(prefix) => labels_with_prefix(&self.labels(), prefix),
            Read::Parameter(path) => Input::from(self.parameter(path)),
            Read::Trait(name) => Input::Value(self.entry.traits(&self.rule_outcome).has_trait(name).into()),
            Read::Tag(name) => Input::Value(self.has_tag(name).into()),
            Read::Fact(path) => Input::from(self.entry.observation.as_ref().and_then(|report| report.facts.get(path))),
            Read::Node(path) => Input::from(self.node_field(path)),
            Read::Cluster(path) => Input::from(self.cluster_field(path)),
            Read::Nodes { .. } => self.look_up(reference).unwrap_or(Input::Value(Value::Array(Vec::new()))),
            Read::Primary { .. } => self.look_up(reference).unwrap_or(Input::Absent),
            // The controller stores no secret. Either the host has it, or the task fails on the host.
            Read::Secret(name) => Input::Secret { name: name.clone(), version: 0 },
        }
    }

    /// Returns the result of a look-up of other nodes in the cluster of the node. Returns `None` if the node is in no
    /// cluster.
    fn look_up(&self, reference: &Reference) -> Option<Input> {
        self.group.map(|group| self.fleet.look_up(group.cluster_id(), reference))
    }

    /// Returns the value of a reference as if the node provided no labels or parameters itself and no label were
    /// filled. All values other than labels and parameters are those of the node.
    pub(crate) fn group_input(&self, reference: &Reference) -> Input {
        let Some(group) = self.group else { return self.input(reference) };
        match reference.read() {
            Read::Label(key) => Input::from(group.maps.labels.get(&**key).map(|value| value.as_str().into())),
            Read::Parameter(path) => {
                Input::from(value_at_path(group.maps.parameters.get(path.first()).map(|value| &**value), path))
            }
            Read::LabelsWithPrefix(prefix) => labels_with_prefix(&group.maps.labels, prefix),
            Read::Trait(_)
            | Read::Tag(_)
            | Read::Fact(_)
            | Read::Node(_)
            | Read::Cluster(_)
            | Read::Nodes { .. }
            | Read::Primary { .. }
            | Read::Secret(_) => self.input(reference),
        }
    }

    /// Returns the effective value at a path within a parameter. If the node itself has a value or a tombstone for the
    /// key, the inherited value is ignored.
    fn parameter(&self, path: &Path) -> Option<Value> {
        let entry = self.entry.node.spec.inherited.parameters.provided.as_ref().and_then(|map| map.get(path.first()));
        match entry.map(|entry| &entry.value) {
            Some(ProvidedValue::Value(value)) => value_at_path(Some(value), path),
            Some(ProvidedValue::Tombstone) => None,
            None => value_at_path(self.group?.maps.parameters.get(path.first()).map(|value| &**value), path),
        }
    }

    /// Returns whether selectors match this tag name on the node. The name can also be a primary name (`primary-TAG`).
    fn has_tag(&self, name: &str) -> bool {
        self.entry.profile.as_ref().is_some_and(|profile| profile.key.names.tag_names().any(|tag| tag == name))
    }

    /// Returns a field of the node, as templates and conditions read it. Returns `None` if the field does not exist or
    /// has no value.
    fn node_field(&self, path: &Path) -> Option<Value> {
        let node = &self.entry.node;
        let fact = |keys: &[&str]| self.entry.observation.as_ref()?.facts.get(&Path::new(keys.iter().copied())?);
        match (path.first(), path.keys()) {
            ("name", _) => Some(node.display_name().into()),
            ("uuid", _) => Some(node.meta.uuid.to_string().into()),
            // The pseudo node `master` is in no group. Its view has a group nevertheless, to inherit from its cluster.
            ("nodegroup", _) => node.spec.nodegroup.and(self.group).map(|group| group.group.meta.name.as_str().into()),
            ("roles", _) => Some(self.roles().iter().map(Name::as_str).collect()),
            ("address", _) => fact(&["network", "address"]),
            ("hostname", _) => fact(&["hostname"]),
            ("properties", [_, name]) => self.rule_outcome.effective_property(&node.spec.properties, name).cloned(),
            _ => None,
        }
    }

    /// Returns a field of the cluster of the node, as templates and conditions read it. Returns `None` if the field
    /// does not exist or has no value.
    fn cluster_field(&self, path: &Path) -> Option<Value> {
        let cluster = &self.group?.cluster;
        match path.first() {
            "name" => Some(cluster.meta.name.as_str().into()),
            "uuid" => Some(cluster.meta.uuid.to_string().into()),
            "release" => cluster.spec.release.as_ref().map(|release| release.to_string().into()),
            _ => None,
        }
    }
}

/// Returns the labels whose keys begin with a prefix, as an input that is a JSON object.
fn labels_with_prefix(labels: &Labels, prefix: &str) -> Input {
    let matching = labels.iter().filter(|(key, _)| key.starts_with(prefix));
    Input::Value(matching.map(|(key, label)| (key.to_string(), Value::from(label.value.as_str()))).collect())
}

/// Returns a copy of the value at a path. `root` is the value of the first key of the path.
fn value_at_path(root: Option<&Value>, path: &Path) -> Option<Value> {
    path.get_in_first(root?).cloned()
}

impl LabelLookup for NodeView<'_> {
    /// Returns the effective value of a label. Without filled labels, the result is the same as that of
    /// [`crate::labels::EffectiveMap::with_level`] for the key.
    fn label(&self, key: &str) -> Option<&str> {
        if let Some(filled) = &self.filled_labels {
            return filled.get(key).map(LabelValue::as_str);
        }
        let layer = &self.entry.node.spec.inherited.labels;
        let inherited = || self.group?.maps.labels.get(key).map(LabelValue::as_str);
        let Some(provided) = &layer.provided else { return inherited() };
        match provided.get(key).map(|entry| &entry.value) {
            Some(ProvidedValue::Value(value)) => Some(value.as_str()),
            Some(ProvidedValue::Tombstone) => None,
            None => layer.is_merging().then(inherited).flatten(),
        }
    }
}

impl FieldLookup for NodeView<'_> {
    fn has_trait(&self, name: &Trait) -> bool {
        self.entry.traits(&self.rule_outcome).has_trait(name)
    }

    /// Returns the value of a field that a requirement tests, or `None` if the node does not have the field.
    fn value(&self, field: &RequirementField) -> Option<FieldValue<'_>> {
        let json = match field {
            RequirementField::Label(key) => return self.label(key).map(FieldValue::text),
            RequirementField::Property(name) => {
                return FieldValue::from_json(self.rule_outcome.effective_property(&self.entry.node.spec.properties, name)?);
            }
            RequirementField::Fact(name) => self.entry.observation.as_ref()?.facts.get(&Path::new(name.split('.'))?)?,
            RequirementField::Parameter(key) => self.parameter(&Path::new([key.as_str()])?)?,
        };
        Some(FieldValue::from_json(&json)?.into_owned())
    }
}
