//! What requirements, selectors, conditions and templates see of a node, read one thing at a time.
//!
//! Nothing is folded for a read: of a node with three labels of its own, a label is its own or its group's. So a read
//! costs two look-ups in small maps, and a node that is like its neighbours allocates nothing. A node whose host fills
//! labels is the exception: its labels are folded once for the view.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Fleet, GroupFold, NodeEntry};
use crate::condition::MAX_STEPS;
use crate::input::{Input, Path, Read, Reference};
use crate::labels::{Labels, Parameters};
use crate::name::{Name, TagName};
use crate::object::{Node, NodeId, ReportedLabel};
use crate::ownership::Said;
use crate::requirement::{Field, FieldLookup, Value as FieldValue};
use crate::selector::LabelLookup;
use crate::traits::{InstanceTraits, NodeTraits, Trait};

/// One node below its group. Where something above it is missing, it is what its own level says.
pub struct NodeView<'a> {
    fleet: &'a Fleet,
    entry: &'a NodeEntry,
    fold: Option<&'a GroupFold>,
    /// The effective labels, where the host may fill some.
    filled: Option<Labels>,
}

impl Fleet {
    /// A node as requirements and selectors see it; `None`: there is none of that uuid.
    pub fn node_view(&self, id: NodeId) -> Option<NodeView<'_>> {
        let entry = self.entry(id)?;
        let fold = entry.node.spec.nodegroup.and_then(|group| self.fold(group).ok());
        Some(NodeView::new(self, entry, fold.map(|fold| &**fold)))
    }
}

impl<'a> NodeView<'a> {
    pub(crate) fn new(fleet: &'a Fleet, entry: &'a NodeEntry, fold: Option<&'a GroupFold>) -> Self {
        let fills = fold.zip(entry.observation.as_ref()).is_some_and(|(fold, seen)| fold.accepts_labels(seen));
        Self { fleet, entry, fold, filled: fills.then(|| entry.labels(fold)) }
    }

    pub(crate) fn fleet(&self) -> &'a Fleet {
        self.fleet
    }

    /// The node's spec and meta.
    pub fn node(&self) -> &'a Node {
        &self.entry.node
    }

    /// The effective labels, each with its line of descent.
    pub fn labels(&self) -> Labels {
        self.filled.clone().unwrap_or_else(|| self.entry.labels(self.fold))
    }

    /// The effective parameters.
    pub fn parameters(&self) -> Parameters {
        self.entry.parameters(self.fold)
    }

    /// The plain roles, its group's and its own, sorted.
    pub fn roles(&self) -> Vec<Name> {
        self.entry.roles(self.fold).into_iter().collect()
    }

    /// The effective tags; of a node without a place, those assigned by hand.
    pub fn tags(&self) -> Vec<TagName> {
        let assigned = || self.entry.node.spec.tags.assigned.members().cloned().collect();
        self.entry.profile.as_ref().map_or_else(assigned, |profile| profile.place.tags.to_vec())
    }

    /// The tags that it holds as primary.
    pub fn primary_tags(&self) -> &'a [TagName] {
        self.entry.profile.as_ref().map_or(&[], |profile| &profile.place.primaries)
    }

    /// The traits, each with its sources.
    pub fn traits(&self) -> NodeTraits {
        self.entry.traits().resolve()
    }

    /// How many traits it has that are not among these.
    pub fn count_traits_beyond(&self, wanted: &BTreeSet<&Trait>) -> usize {
        self.entry.traits().names().filter(|name| !wanted.contains(name)).count()
    }

    /// Checks that the node has the traits that its instance wants.
    ///
    /// # Errors
    /// [`InstanceTraits`].
    pub fn check_instance(&self) -> Result<(), InstanceTraits> {
        self.entry.check_instance()
    }

    /// The labels that the host reports.
    pub fn reported(&self) -> &'a [ReportedLabel] {
        self.entry.observation.as_ref().map_or(&[], |seen| &seen.labels)
    }

    /// What a condition that looks nodes up may take for this one.
    pub(crate) fn steps(&self) -> usize {
        self.fold.map_or(MAX_STEPS, |fold| self.fleet.steps(fold.cluster_id()))
    }

    /// What all conditions of this node may take together.
    pub(crate) fn steps_together(&self) -> usize {
        self.fleet.steps_together()
    }

    /// Whether the host fills labels, so that any of them may be the node's own.
    pub(crate) fn fills_labels(&self) -> bool {
        self.filled.is_some()
    }

    /// The input of a reference.
    pub(crate) fn input(&self, reference: &Reference) -> Input {
        match reference.read() {
            Read::Label(key) => Input::from(self.label(key).map(Value::from)),
            Read::LabelsWithPrefix(prefix) => {
                let labels = self.labels();
                let below = labels.iter().filter(|(key, _)| key.starts_with(&**prefix));
                Input::Value(below.map(|(key, said)| (key.to_string(), Value::from(said.value.as_str()))).collect())
            }
            Read::Parameter(path) => Input::from(self.parameter(path)),
            Read::Trait(name) => Input::Value(self.entry.traits().has(name).into()),
            Read::Tag(name) => Input::Value(self.has_tag(name).into()),
            Read::Fact(path) => Input::from(self.entry.observation.as_ref().and_then(|seen| seen.facts.get(path))),
            Read::Node(path) => Input::from(self.node_field(path)),
            Read::Cluster(path) => Input::from(self.cluster_field(path)),
            Read::Nodes { .. } => self.look_up(reference).unwrap_or(Input::Value(Value::Array(Vec::new()))),
            Read::Primary { .. } => self.look_up(reference).unwrap_or(Input::Absent),
            Read::Secret(name) => Input::Secret { name: name.clone(), version: self.fleet.secret_version(name) },
        }
    }

    fn look_up(&self, reference: &Reference) -> Option<Input> {
        self.fold.map(|fold| self.fleet.look_up(fold.cluster_id(), reference))
    }

    /// The group's input of a reference, as if the node said nothing itself.
    pub(crate) fn group_input(&self, reference: &Reference) -> Input {
        let Some(fold) = self.fold else { return self.input(reference) };
        match reference.read() {
            Read::Label(key) => Input::from(fold.labels.get(&**key).map(|value| value.as_str().into())),
            Read::Parameter(path) => {
                Input::from(parameter(fold.parameters.get(path.first()).map(|value| &**value), path))
            }
            Read::LabelsWithPrefix(_)
            | Read::Trait(_)
            | Read::Tag(_)
            | Read::Fact(_)
            | Read::Node(_)
            | Read::Cluster(_)
            | Read::Nodes { .. }
            | Read::Primary { .. }
            | Read::Secret(_) => self.input(reference),
        }
    }

    fn parameter(&self, path: &Path) -> Option<Value> {
        let own = self.entry.node.spec.inherited.parameters.provided.as_ref().and_then(|map| map.get(path.first()));
        match own.map(|entry| &entry.said) {
            Some(Said::Value(value)) => parameter(Some(value), path),
            Some(Said::Tombstone) => None,
            None => parameter(self.fold?.parameters.get(path.first()).map(|value| &**value), path),
        }
    }

    fn has_tag(&self, name: &str) -> bool {
        self.entry.profile.as_ref().is_some_and(|profile| profile.place.names.tag_names().any(|tag| tag == name))
    }

    fn node_field(&self, path: &Path) -> Option<Value> {
        let node = &self.entry.node;
        let fact = |keys: &[&str]| self.entry.observation.as_ref()?.facts.get(&Path::new(keys.iter().copied())?);
        match (path.first(), path.keys()) {
            ("name", _) => Some(node.display_name().into()),
            ("uuid", _) => Some(node.meta.uuid.to_string().into()),
            ("nodegroup", _) => self.fold.map(|fold| fold.group.meta.name.as_str().into()),
            ("roles", _) => Some(self.roles().iter().map(Name::as_str).collect()),
            ("address", _) => fact(&["network", "address"]),
            ("hostname", _) => fact(&["hostname"]),
            ("properties", [_, name]) => node.spec.properties.get(&**name).cloned(),
            _ => None,
        }
    }

    fn cluster_field(&self, path: &Path) -> Option<Value> {
        let cluster = &self.fold?.cluster;
        match path.first() {
            "name" => Some(cluster.meta.name.as_str().into()),
            "uuid" => Some(cluster.meta.uuid.to_string().into()),
            "release" => cluster.spec.release.as_ref().map(|release| release.to_string().into()),
            _ => None,
        }
    }
}

fn parameter(first: Option<&Value>, path: &Path) -> Option<Value> {
    path.walk_rest(first?).cloned()
}

impl LabelLookup for NodeView<'_> {
    /// The node's own statement, else what comes from above. The rule is that of [`crate::labels::Folded::below`], of
    /// which this is one key.
    fn label(&self, key: &str) -> Option<&str> {
        if let Some(filled) = &self.filled {
            return filled.get(key).map(super::super::key::LabelValue::as_str);
        }
        let own = &self.entry.node.spec.inherited.labels;
        let above = || self.fold?.labels.get(key).map(super::super::key::LabelValue::as_str);
        let Some(provided) = &own.provided else { return above() };
        match provided.get(key).map(|entry| &entry.said) {
            Some(Said::Value(value)) => Some(value.as_str()),
            Some(Said::Tombstone) => None,
            None => own.merges().then(above).flatten(),
        }
    }
}

impl FieldLookup for NodeView<'_> {
    fn has_trait(&self, name: &Trait) -> bool {
        self.entry.traits().has(name)
    }

    fn value(&self, field: &Field) -> Option<FieldValue<'_>> {
        let read = match field {
            Field::Label(key) => return self.label(key).map(FieldValue::text),
            Field::Property(name) => return FieldValue::of(self.entry.node.spec.properties.get(&**name)?),
            Field::Fact(name) => self.entry.observation.as_ref()?.facts.get(&Path::new(name.split('.'))?)?,
            Field::Parameter(key) => self.parameter(&Path::new([key.as_str()])?)?,
        };
        Some(FieldValue::of(&read)?.into_owned())
    }
}
