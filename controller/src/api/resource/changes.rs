//! What a write changes: each field with its old and its new value, and the labels that hosts lose by it.
//!
//! A field that its manager leaves out returns to its default, and a level that no longer hands on a key takes it from every host
//! below. Neither stands in what was sent, so the answer says both, also where a write is only tried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::fleet::lost_labels;
use stemma_core::key::LabelKey;
use stemma_core::manifest::{Owners, kept_by_others, owners};
use stemma_core::object::{Kind, NodeId, Object};
use stemma_core::ownership::{Manager, Owner, Said};

use super::objects::Shown;
use super::stored::fields_of;
use super::view;
use crate::api::Api;
use crate::cache::Model;
use crate::registry::names::ModelNames;
use crate::registry::work::Work;

/// How many changed fields one answer lists.
const MOST_CHANGES: usize = 500;
/// How much of a value an answer shows, in characters of its JSON text.
const LONGEST_VALUE: usize = 500;

/// What one answer lists.
#[derive(Default)]
pub(super) struct Changes {
    listed: usize,
}

/// The labels that hosts had and have no longer, each with how many hosts lose it.
#[derive(Default)]
pub(super) struct LostLabels(BTreeMap<LabelKey, usize>);

impl Changes {
    /// The fields of an object that differ, each as `{"field", "old", "new"}`; a value that is not there is the default, or
    /// nothing. Those beyond what an answer lists are counted in one entry.
    pub(super) fn of<S: Shown>(
        &mut self,
        api: &Api,
        (old_model, old): (&Model, &Object<S>),
        (new_model, new): (&Model, &Object<S>),
    ) -> Value {
        let (mut before, mut after) = (said(api, old_model, old), said(api, new_model, new));
        // What one of them shows to nobody, the other does not tell either.
        if old.spec.is_veiled() || new.spec.is_veiled() {
            veil::<S>(&mut before);
            veil::<S>(&mut after);
        }
        match self.between(&before, &after) {
            Value::Array(none) if none.is_empty() => self.owners_between(&old.spec, &new.spec),
            listed => listed,
        }
    }

    /// The old and the new owners of keys and fields whose owners a write changes. It is listed where no value changes.
    fn owners_between<S: Shown>(&mut self, old: &S, new: &S) -> Value {
        let [old, new] = owners_that_differ(old, new);
        self.between(&old, &new)
    }

    /// The fields of an object that goes.
    pub(super) fn gone<S: Shown>(&mut self, api: &Api, model: &Model, object: &Object<S>) -> Value {
        self.lost(&shown_said(api, model, object))
    }

    /// The same of all objects of a kind, each below its name.
    pub(super) fn all_gone<S: Shown>(&mut self, api: &Api, model: &Model, objects: &[Arc<Object<S>>]) -> Value {
        let name = |object: &Object<S>| S::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string());
        let each = objects.iter().map(|object| (name(object), shown_said(api, model, object)));
        self.lost(&json!({S::LIST: each.collect::<Map<_, _>>()}))
    }

    fn lost(&mut self, said: &Value) -> Value {
        let mut listed = self.between(said, &json!({}));
        let is_something = |change: &Value| change["old"] != json!([]) && change["old"] != json!({});
        listed.as_array_mut().expect("a list").retain(is_something);
        listed
    }

    /// The members of a value that differ.
    pub(super) fn between(&mut self, old: &Value, new: &Value) -> Value {
        let mut found = differences(old, new);
        let room = MOST_CHANGES - self.listed;
        let left_out = found.len().saturating_sub(room);
        found.truncate(room);
        self.listed += found.len();
        let mut listed: Vec<Value> = found.into_iter().map(Change::into_json).collect();
        if left_out > 0 {
            listed.push(json!({"field": "…", "left_out": left_out}));
        }
        listed.into()
    }
}

impl LostLabels {
    /// Those that hosts lose by a write so far.
    pub(super) fn by(work: &Work<'_>) -> Self {
        Self(lost_labels(&work.before().fleet, &work.model.fleet, work.told_hosts()))
    }

    /// As an answer lists them.
    pub(super) fn to_json(&self) -> Value {
        self.0.iter().map(|(key, hosts)| (key.to_string(), Value::from(*hosts))).collect::<Map<_, _>>().into()
    }

    /// The sentence about those that an object handed on and did not set itself.
    pub(super) fn inherited<S: Shown>(&self, by: &Object<S>) -> Option<String> {
        let own = by.spec.inherited_ref().and_then(|own| own.labels.provided.as_ref());
        let sets =
            |key: &LabelKey| own.and_then(|own| own.get(key)).is_some_and(|entry| matches!(entry.said, Said::Value(_)));
        let keys: Vec<&str> = self.0.keys().filter(|key| !sets(key)).map(LabelKey::as_str).collect();
        (!keys.is_empty()).then(|| format!("hosts lose the inherited labels {}", keys.join(", ")))
    }
}

/// One field that differs.
pub(super) struct Change {
    /// Its path.
    pub(super) field: String,
    /// What it was; `None`: the default, or nothing.
    pub(super) old: Option<Value>,
    /// What it is, likewise.
    pub(super) new: Option<Value>,
}

impl Change {
    fn into_json(self) -> Value {
        let mut change = json!({"field": self.field});
        for (name, value) in [("old", self.old), ("new", self.new)] {
            if let Some(value) = value {
                change[name] = cut(value);
            }
        }
        change
    }
}

/// What an apply left out and others own, with them, as an answer lists it; `null` where there is nothing.
pub(super) fn shown_kept<S: Shown>(old: &S, new: &S, manager: &Manager) -> Value {
    let kept = kept_by_others(&owners(old), &owners(new), manager);
    if kept.is_empty() {
        return Value::Null;
    }
    kept.iter().map(|(field, owners)| json!({"field": field, "owners": owners})).collect()
}

/// How an answer lists that a certificate or token ends.
pub(super) fn ended(field: &str) -> Value {
    json!({"field": field, "old": "good"})
}

/// Takes out what some objects of a kind show to nobody.
pub(super) fn veil<S: Shown>(said: &mut Value) {
    if let Some(said) = said.as_object_mut() {
        said.retain(|field, _| !S::VEILED.contains(&field.as_str()));
    }
}

/// What an object's authors said of it, as far as it is shown.
fn shown_said<S: Shown>(api: &Api, model: &Model, object: &Object<S>) -> Value {
    let mut said = said(api, model, object);
    if object.spec.is_veiled() {
        veil::<S>(&mut said);
    }
    said
}

/// What an object's authors said of it, in the form of a manifest, and a node's effective tags.
fn said<S: Shown>(api: &Api, model: &Model, object: &Object<S>) -> Value {
    said_with(&ModelNames::new(model, &api.traits), model, object)
}

/// The same, with other objects called by these names.
fn said_with<S: Shown>(names: &ModelNames<'_>, model: &Model, object: &Object<S>) -> Value {
    let mut said = fields_of(&object.spec, names, &|_| true);
    said.insert("name".to_owned(), json!(S::name_text(&object.meta.name)));
    if let Some(own) = object.spec.inherited_ref() {
        said.extend(view::provided_maps(own));
        said.insert("merge_labels".to_owned(), own.labels.merge.into());
    }
    if let Some(node) = object.spec.node_ref() {
        said.insert("traits".to_owned(), json!(node.traits.members().collect::<Vec<_>>()));
        said.insert("provision_state".to_owned(), json!(node.provision_state));
        // With those that its roles give: they come and go with the roles.
        let mut tags = json!({"assigned": node.tags.assigned.members().collect::<Vec<_>>(),
            "unassigned": node.tags.unassigned.members().collect::<Vec<_>>(),
            "effective": model.fleet.node_view(NodeId(object.meta.uuid)).map(|node| node.tags())});
        for (role, decided) in &node.tags.decided {
            tags["decided"][role.as_str()] = json!(decided.tags);
        }
        said.insert("tags".to_owned(), tags);
    }
    said.retain(|_, value| !value.is_null());
    said.into()
}

/// The same of an image in the history: without a node's effective tags, which are of today where roles give them, and without the nodes
/// that an allocation names and who asks does not see. Other objects are called by these names.
pub(super) fn said_then<S: Shown>(names: &ModelNames<'_>, model: &Model, object: &Object<S>) -> Value {
    let mut said = said_with(names, model, object);
    if object.spec.node_ref().is_some() {
        said.pointer_mut("/tags").and_then(Value::as_object_mut).and_then(|tags| tags.remove("effective"));
    }
    if S::KIND == Kind::Allocation && model.within.is_some() {
        let is_seen = |node: &Value| {
            let uuid = node.as_str().and_then(|id| id.parse().ok());
            uuid.is_some_and(|uuid| model.nodes.get(uuid).is_some())
        };
        if let Some(nodes) = said.pointer_mut("/candidate_nodes").and_then(Value::as_array_mut) {
            nodes.retain(is_seen);
        }
    }
    said
}

/// The owners of keys and fields whose owners differ, before and after, each as `{"owners"}`.
pub(super) fn owners_that_differ<S: Shown>(old: &S, new: &S) -> [Value; 2] {
    let (old, new) = (owners(old), owners(new));
    let other: BTreeSet<&String> = old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).collect();
    let named = |owners: &Owners| {
        let all: BTreeSet<&Owner> = other.iter().filter_map(|key| owners.get(*key)).flat_map(|all| &**all).collect();
        if all.is_empty() { json!({}) } else { json!({"owners": all}) }
    };
    [named(&old), named(&new)]
}

/// The members of a value that differ from another's.
pub(super) fn differences(old: &Value, new: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    compare("", Some(old), Some(new), &mut found);
    found
}

/// Objects are compared member by member, and lists of tasks by their ids; anything else is one value.
fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Change>) {
    if old == new {
        return;
    }
    let members = (members_of(old), members_of(new));
    let (Some(old_members), Some(new_members)) = members else {
        return found.push(Change { field: path.to_owned(), old: old.cloned(), new: new.cloned() });
    };
    let names: BTreeSet<&str> = old_members.keys().chain(new_members.keys()).copied().collect();
    if names.is_empty() {
        return found.push(Change { field: path.to_owned(), old: old.cloned(), new: new.cloned() });
    }
    for name in names {
        let below = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        compare(&below, old_members.get(name).copied(), new_members.get(name).copied(), found);
    }
}

/// What a value is made of, by name; nothing for what is not there, and none for one value.
fn members_of(value: Option<&Value>) -> Option<BTreeMap<&str, &Value>> {
    match value {
        None => Some(BTreeMap::new()),
        Some(Value::Object(map)) => Some(map.iter().map(|(name, value)| (name.as_str(), value)).collect()),
        Some(Value::Array(items)) if !items.is_empty() => {
            let named: Option<BTreeMap<&str, &Value>> =
                items.iter().map(|item| Some((item.get("id")?.as_str()?, item))).collect();
            named.filter(|named| named.len() == items.len())
        }
        Some(_) => None,
    }
}

/// A value as an answer shows it: one that is long is the beginning of its text, with how long it is.
pub(super) fn cut(value: Value) -> Value {
    let text = match &value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()).into(),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_with_what_they_were_and_are() {
        for (old, new, expected) in [
            (
                json!({"a": 1, "b": 2}),
                json!({"b": 3}),
                json!([{"field": "a", "old": 1}, {"field": "b", "old": 2, "new": 3}]),
            ),
            (
                json!({}),
                json!({"labels": {"x": "1", "y": null}}),
                json!([{"field": "labels.x", "new": "1"}, {"field": "labels.y", "new": null}]),
            ),
            (
                json!({"tasks": [{"id": "a", "type": "file"}, {"id": "b"}]}),
                json!({"tasks": [{"id": "b"}, {"id": "a", "type": "shell"}]}),
                json!([{"field": "tasks.a.type", "old": "file", "new": "shell"}]),
            ),
            (
                json!({"roles": ["a"]}),
                json!({"roles": ["a", "b"]}),
                json!([{"field": "roles", "old": ["a"], "new": ["a", "b"]}]),
            ),
            (json!({"labels": {}}), json!({}), json!([{"field": "labels", "old": {}}])),
            (
                json!({"a": "x".repeat(600)}),
                json!({"a": ""}),
                json!([{"field": "a", "old": format!("{}… (600 characters)", "x".repeat(500)), "new": ""}]),
            ),
        ] {
            let found: Vec<Value> = differences(&old, &new).into_iter().map(Change::into_json).collect();
            assert_eq!(Value::from(found), expected, "{old} {new}");
        }
    }
}
