//! What requirements, selectors, conditions and templates see of a node, read one thing at a time.
//!
//! Nothing is folded for a read: of a node with three labels of its own, a label is its own or its group's. So a read
//! costs two look-ups in small maps, and a node that is like its neighbours allocates nothing. A node whose host fills
//! labels is the exception: its labels are folded once for the view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::{Fleet, GroupFold, NodeEntry};
use crate::condition::MAX_STEPS;
use crate::input::{Input, Path, Read, Reference};
use crate::inspection::{Ruled, RuledProperty};
use crate::key::{LabelKey, LabelValue};
use crate::labels::{Annotations, Differences, Labels, Parameters, differences};
use crate::name::{Name, TagName};
use crate::object::{Node, NodeId, ReportedLabel};
use crate::origin::Level;
use crate::ownership::Said;
use crate::requirement::{Field, FieldLookup, Unmet, Value as FieldValue};
use crate::selector::{LabelLookup, Selector};
use crate::traits::{InstanceTraits, NodeTraits, Trait};

/// One node below its group. Where something above it is missing, it is what its own level says.
pub struct NodeView<'a> {
    fleet: &'a Fleet,
    entry: &'a NodeEntry,
    fold: Option<&'a GroupFold>,
    /// What rules give it.
    ruled: Arc<Ruled>,
    /// The effective labels, where a rule or the host may fill some.
    filled: Option<Labels>,
}

impl Fleet {
    /// A node as requirements and selectors see it; `None`: there is none of that uuid.
    pub fn node_view(&self, id: NodeId) -> Option<NodeView<'_>> {
        Some(self.view_of(self.entry(id)?))
    }

    /// Whether a node is selected, as it is or as it was at another revision, with what is inherited and reported now. Of one that is gone
    /// nobody knows what its host reported, nor which labels came of that. Terms about these hold: whoever has followed it hears that it
    /// goes, and so does who never saw it.
    pub fn selects(&self, node: &Node, selector: &Selector) -> bool {
        let Some(present) = self.entry(node.id()) else {
            let gone = NodeEntry::bare(Arc::new(node.clone()));
            let view = self.view_of(&gone);
            return selector.matches_unreported(&view, |key| view.may_have_been_filled(key));
        };
        let is_now = present.node.meta.resource_version == node.meta.resource_version;
        let then = (!is_now).then(|| present.with_node(Arc::new(node.clone())));
        let view = self.view_of(then.as_ref().unwrap_or(present));
        selector.matches(&view, &view.reported())
    }

    fn view_of<'a>(&'a self, entry: &'a NodeEntry) -> NodeView<'a> {
        NodeView::new(self, entry, self.fold_above(&entry.node.spec).map(|fold| &**fold))
    }
}

impl<'a> NodeView<'a> {
    pub(crate) fn new(fleet: &'a Fleet, entry: &'a NodeEntry, fold: Option<&'a GroupFold>) -> Self {
        let fills = fold.zip(entry.observation.as_ref()).is_some_and(|(fold, seen)| fold.accepts_labels(seen));
        let ruled = entry.ruled(fleet.rules());
        let fills = fills || !ruled.labels.is_empty();
        let filled = fills.then(|| entry.labels(fold, &ruled));
        Self { fleet, entry, fold, ruled, filled }
    }

    pub(crate) fn fleet(&self) -> &'a Fleet {
        self.fleet
    }

    /// What rules give it.
    pub(crate) fn ruled(&self) -> &Arc<Ruled> {
        &self.ruled
    }

    /// The node's spec and meta.
    pub fn node(&self) -> &'a Node {
        &self.entry.node
    }

    /// The effective labels, each with its line of descent.
    pub fn labels(&self) -> Labels {
        self.filled.clone().unwrap_or_else(|| self.entry.labels(self.fold, &self.ruled))
    }

    /// The effective parameters.
    pub fn parameters(&self) -> Parameters {
        self.entry.parameters(self.fold)
    }

    /// The effective annotations.
    pub fn annotations(&self) -> Annotations {
        self.entry.annotations(self.fold)
    }

    /// How the labels that operators give differ from those of its group; none where nothing comes down to it.
    pub fn label_differences(&self) -> Option<Differences<LabelKey, LabelValue>> {
        let above = &self.fold?.maps.labels;
        let own = above.below(Level::Node, &self.entry.node.spec.inherited.labels);
        Some(if own.is_same(above) { Differences::default() } else { differences(&above.values(), &own.values()) })
    }

    /// The plain roles, its group's and its own.
    pub fn roles(&self) -> BTreeSet<Name> {
        self.entry.roles(self.fold)
    }

    /// The effective tags; of a node without a place, those assigned by hand.
    pub fn tags(&self) -> Vec<TagName> {
        self.entry.tags().cloned().collect()
    }

    /// The tags that it holds as primary.
    pub fn primary_tags(&self) -> &'a [TagName] {
        self.entry.profile.as_ref().map_or(&[], |profile| &profile.place.primaries)
    }

    /// The traits, each with its sources.
    pub fn traits(&self) -> NodeTraits {
        self.entry.traits(&self.ruled).resolve()
    }

    /// The properties that rules give it, whether or not an operator says them too.
    pub fn ruled_properties(&self) -> &BTreeMap<String, RuledProperty> {
        &self.ruled.properties
    }

    /// How many traits it has that are not among these.
    pub(crate) fn count_traits_beyond(&self, wanted: &BTreeSet<&Trait>) -> usize {
        self.entry.traits(&self.ruled).names().filter(|name| !wanted.contains(name)).count()
    }

    /// Checks that the node has the traits that its instance wants.
    ///
    /// # Errors
    /// [`InstanceTraits`].
    pub fn check_instance(&self) -> Result<(), InstanceTraits> {
        self.entry.check_instance(&self.ruled)
    }

    /// The requirements of its group that it does not meet.
    pub(crate) fn unmet(&self) -> Vec<Unmet> {
        let unmet = self.fold.into_iter().flat_map(|fold| fold.group.spec.requirements.unmet(self));
        unmet.map(|one| one.unmet_by(self)).collect()
    }

    /// The labels that the host reports.
    pub fn reported(&self) -> &'a [ReportedLabel] {
        self.entry.reported()
    }

    /// What a condition that looks nodes up may take for this one.
    pub(crate) fn steps(&self) -> usize {
        self.fold.map_or(MAX_STEPS, |fold| self.fleet.steps(fold.cluster_id()))
    }

    /// What all conditions of this node may take together.
    pub(crate) fn steps_together(&self) -> usize {
        self.fold.map_or(MAX_STEPS, |fold| self.fleet.steps_together(fold.cluster_id()))
    }

    /// Whether a rule or the host may have filled a label while there was a report: no level speaks for it.
    fn may_have_been_filled(&self, key: &str) -> bool {
        let own = self.entry.node.spec.inherited.labels.provided.as_ref().and_then(|map| map.get(key));
        if own.is_some() || self.label(key).is_some() {
            return false;
        }
        self.fold.is_some_and(|fold| fold.host_labels.value.accepts(key))
            || LabelKey::new(key).is_ok_and(|key| self.fleet.rules().gives().may_give_label(&key))
    }

    /// Whether a rule or the host fills labels, so that any of them may be the node's own.
    pub(crate) fn fills_labels(&self) -> bool {
        self.filled.is_some()
    }

    /// The input of a reference.
    pub(crate) fn input(&self, reference: &Reference) -> Input {
        match reference.read() {
            Read::Label(key) => Input::from(self.label(key).map(Value::from)),
            Read::LabelsWithPrefix(prefix) => labels_with_prefix(&self.labels(), prefix),
            Read::Parameter(path) => Input::from(self.parameter(path)),
            Read::Trait(name) => Input::Value(self.entry.traits(&self.ruled).has(name).into()),
            Read::Tag(name) => Input::Value(self.has_tag(name).into()),
            Read::Fact(path) => Input::from(self.entry.observation.as_ref().and_then(|seen| seen.facts.get(path))),
            Read::Node(path) => Input::from(self.node_field(path)),
            Read::Cluster(path) => Input::from(self.cluster_field(path)),
            Read::Nodes { .. } => self.look_up(reference).unwrap_or(Input::Value(Value::Array(Vec::new()))),
            Read::Primary { .. } => self.look_up(reference).unwrap_or(Input::Absent),
            // The controller holds no secret: the host has it, or the task fails there.
            Read::Secret(name) => Input::Secret { name: name.clone(), version: 0 },
        }
    }

    fn look_up(&self, reference: &Reference) -> Option<Input> {
        self.fold.map(|fold| self.fleet.look_up(fold.cluster_id(), reference))
    }

    /// The group's input of a reference, as if the node said nothing itself.
    pub(crate) fn group_input(&self, reference: &Reference) -> Input {
        let Some(fold) = self.fold else { return self.input(reference) };
        match reference.read() {
            Read::Label(key) => Input::from(fold.maps.labels.get(&**key).map(|value| value.as_str().into())),
            Read::Parameter(path) => {
                Input::from(parameter(fold.maps.parameters.get(path.first()).map(|value| &**value), path))
            }
            Read::LabelsWithPrefix(prefix) => labels_with_prefix(&fold.maps.labels, prefix),
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

    fn parameter(&self, path: &Path) -> Option<Value> {
        let own = self.entry.node.spec.inherited.parameters.provided.as_ref().and_then(|map| map.get(path.first()));
        match own.map(|entry| &entry.said) {
            Some(Said::Value(value)) => parameter(Some(value), path),
            Some(Said::Tombstone) => None,
            None => parameter(self.fold?.maps.parameters.get(path.first()).map(|value| &**value), path),
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
            // The pseudo node `master` has a fold of its cluster, and stands in no group.
            ("nodegroup", _) => node.spec.nodegroup.and(self.fold).map(|fold| fold.group.meta.name.as_str().into()),
            ("roles", _) => Some(self.roles().iter().map(Name::as_str).collect()),
            ("address", _) => fact(&["network", "address"]),
            ("hostname", _) => fact(&["hostname"]),
            ("properties", [_, name]) => self.ruled.property(&node.spec.properties, name).cloned(),
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

fn labels_with_prefix(labels: &Labels, prefix: &str) -> Input {
    let below = labels.iter().filter(|(key, _)| key.starts_with(prefix));
    Input::Value(below.map(|(key, said)| (key.to_string(), Value::from(said.value.as_str()))).collect())
}

fn parameter(first: Option<&Value>, path: &Path) -> Option<Value> {
    path.walk_rest(first?).cloned()
}

impl LabelLookup for NodeView<'_> {
    /// The node's own statement, else what comes from above. The rule is that of [`crate::labels::Folded::below`], of
    /// which this is one key.
    fn label(&self, key: &str) -> Option<&str> {
        if let Some(filled) = &self.filled {
            return filled.get(key).map(LabelValue::as_str);
        }
        let own = &self.entry.node.spec.inherited.labels;
        let above = || self.fold?.maps.labels.get(key).map(LabelValue::as_str);
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
        self.entry.traits(&self.ruled).has(name)
    }

    fn value(&self, field: &Field) -> Option<FieldValue<'_>> {
        let read = match field {
            Field::Label(key) => return self.label(key).map(FieldValue::text),
            Field::Property(name) => {
                return FieldValue::of(self.ruled.property(&self.entry.node.spec.properties, name)?);
            }
            Field::Fact(name) => self.entry.observation.as_ref()?.facts.get(&Path::new(name.split('.'))?)?,
            Field::Parameter(key) => self.parameter(&Path::new([key.as_str()])?)?,
        };
        Some(FieldValue::of(&read)?.into_owned())
    }
}
