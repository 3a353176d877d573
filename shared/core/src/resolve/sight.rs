//! What a node's conditions, templates and requirements can see of it, read one thing at a time.
//!
//! Nothing is folded for a look: of a node with three labels of its own, a label is its own or its group's. So a read
//! costs two look-ups in small maps, and a node that is like its neighbours allocates nothing.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::fleet::{Fleet, GroupFold, NodeEntry};
use crate::input::{Input, Path, Read, Reference};
use crate::name::Name;
use crate::ownership::Said;
use crate::requirement::{Field, NodeView, Value as FieldValue};
use crate::traits::Trait;

/// One node, as its tasks and requirements see it.
pub(super) struct Sight<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) entry: &'a NodeEntry,
    pub(super) fold: Option<&'a GroupFold>,
    /// Whether the host may fill labels: then they are folded in full.
    fills: bool,
}

impl<'a> Sight<'a> {
    pub(super) fn new(fleet: &'a Fleet, entry: &'a NodeEntry, fold: Option<&'a GroupFold>) -> Self {
        let fills = fold.zip(entry.observation.as_ref()).is_some_and(|(fold, seen)| fold.accepts_labels(seen));
        Self { fleet, entry, fold, fills }
    }

    /// Whether the host fills labels, so that any of them may be the node's own.
    pub(super) fn fills_labels(&self) -> bool {
        self.fills
    }

    /// The input of a reference.
    pub(super) fn input(&self, reference: &Reference) -> Input {
        match reference.read() {
            Read::Label(key) => Input::from(self.label(key)),
            Read::LabelsWithPrefix(prefix) => {
                let labels = self.entry.labels(self.fold);
                let below = labels.iter().filter(|(key, _)| key.starts_with(&**prefix));
                Input::Value(below.map(|(key, said)| (key.to_string(), Value::from(said.value.as_str()))).collect())
            }
            Read::Parameter(path) => Input::from(self.parameter(path)),
            Read::Trait(name) => Input::Value(self.has(name).into()),
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
    pub(super) fn group_input(&self, reference: &Reference) -> Input {
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

    /// A label by itself: the node's own statement, else what comes from above. The rule is that of
    /// [`crate::labels::Folded::below`], of which this is one key.
    fn label(&self, key: &str) -> Option<Value> {
        if self.fills {
            let labels = self.entry.labels(self.fold);
            return labels.get(key).map(|value| value.as_str().into());
        }
        let own = &self.entry.node.spec.inherited.labels;
        let above = || self.fold?.labels.get(key).map(|value| value.as_str().into());
        let Some(provided) = &own.provided else { return above() };
        match provided.get(key).map(|entry| &entry.said) {
            Some(Said::Value(value)) => Some(value.as_str().into()),
            Some(Said::Tombstone) => None,
            None => own.merges().then(above).flatten(),
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

    fn has(&self, name: &str) -> bool {
        let spec = &self.entry.node.spec;
        let detected = || self.entry.observation.as_ref().is_some_and(|seen| seen.traits.contains(name));
        spec.traits.get(name).is_some() || (!spec.suppressed_traits.contains(name) && detected())
    }

    fn has_tag(&self, name: &str) -> bool {
        self.entry.profile.as_ref().is_some_and(|profile| profile.place.names.tag_names().any(|tag| tag == name))
    }

    fn roles(&self) -> BTreeSet<Name> {
        self.entry.roles(self.fold)
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

impl NodeView for Sight<'_> {
    fn has_trait(&self, name: &Trait) -> bool {
        self.has(name)
    }

    fn value(&self, field: &Field) -> Option<FieldValue<'_>> {
        let read = match field {
            Field::Label(key) => self.label(key)?,
            Field::Property(name) => return FieldValue::of(self.entry.node.spec.properties.get(&**name)?),
            Field::Fact(name) => self.entry.observation.as_ref()?.facts.get(&Path::new(name.split('.'))?)?,
            Field::Parameter(key) => self.parameter(&Path::new([key.as_str()])?)?,
        };
        Some(match FieldValue::of(&read)? {
            FieldValue::Text(text) => FieldValue::Text(text.into_owned().into()),
            FieldValue::List(items) => {
                FieldValue::List(items.into_iter().map(|item| item.into_owned().into()).collect())
            }
        })
    }
}
