//! The changes of a write: each field with its old and its new value, and the labels that hosts lose.
//!
//! A field that its manager leaves out returns to its default. A key that a level no longer provides is removed from
//! every host below that level. The request shows neither effect, so the answer lists both, also for a dry run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::fleet::lost_labels;
use stemma_core::key::LabelKey;
use stemma_core::manifest::{Owners, owners, retained_by_others};
use stemma_core::object::{Kind, NodeId, Object};
use stemma_core::ownership::{Manager, Owner, ProvidedValue};

use super::objects::ApiResource;
use super::stored::selected_fields;
use super::view;
use crate::api::Api;
use crate::cache::Model;
use crate::registry::names::ModelNames;
use crate::registry::work::PendingWrite;

/// Maximum number of changed fields in one answer.
const MAX_CHANGES: usize = 500;
/// Maximum number of characters of a value in an answer: of a text itself, or of the JSON text of another value.
const MAX_VALUE_CHARS: usize = 500;

/// The counter of the changes that one answer lists, to apply the limit.
#[derive(Default)]
pub(super) struct Changes {
    listed_count: usize,
}

/// The labels that hosts lose by a write, each with the number of these hosts that the caller can see.
#[derive(Default)]
pub(super) struct LostLabels(BTreeMap<LabelKey, usize>);

impl Changes {
    /// Returns the fields of an object that a write changed, each as `{"field", "old", "new"}`. If `old` or `new` is
    /// missing, the field was or is at its default, or does not exist. If no value differs, returns the owners that
    /// differ. The last entry counts the changes beyond the limit of an answer.
    pub(super) fn for_update<S: ApiResource>(
        &mut self,
        api: &Api,
        (old_model, old): (&Model, &Object<S>),
        (new_model, new): (&Model, &Object<S>),
    ) -> Value {
        let (mut before, mut after) = (authored_fields(api, old_model, old), authored_fields(api, new_model, new));
        // If the object is sensitive before or after the write, its sensitive fields are hidden on both sides.
        if old.spec.is_sensitive() || new.spec.is_sensitive() {
            redact::<S>(&mut before);
            redact::<S>(&mut after);
        }
        match self.field_changes(&before, &after) {
            Value::Array(fields) if fields.is_empty() => self.owner_changes(&old.spec, &new.spec),
            changes => changes,
        }
    }

    /// Returns the old and new owners of the keys and fields whose owners change. The caller lists them only if no
    /// value changes.
    fn owner_changes<S: ApiResource>(&mut self, old: &S, new: &S) -> Value {
        let [old, new] = differing_owners(old, new);
        self.field_changes(&old, &new)
    }

    /// Returns the fields of a deleted object, each with its old value.
    pub(super) fn for_delete<S: ApiResource>(&mut self, api: &Api, model: &Model, object: &Object<S>) -> Value {
        self.deleted_fields(&visible_fields(api, model, object))
    }

    /// Returns the fields of deleted objects of one kind, each object under its name.
    pub(super) fn for_delete_all<S: ApiResource>(&mut self, api: &Api, model: &Model, objects: &[Arc<Object<S>>]) -> Value {
        let name = |object: &Object<S>| S::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string());
        let named_fields = objects.iter().map(|object| (name(object), visible_fields(api, model, object)));
        self.deleted_fields(&json!({S::LIST: named_fields.collect::<Map<_, _>>()}))
    }

    /// Returns the fields of deleted objects as changes that have an old value only. Empty lists and maps are omitted.
    fn deleted_fields(&mut self, fields: &Value) -> Value {
        let mut changes = self.field_changes(fields, &json!({}));
        let is_not_empty = |change: &Value| change["old"] != json!([]) && change["old"] != json!({});
        changes.as_array_mut().expect("changes are a list").retain(is_not_empty);
        changes
    }

    /// Returns the members of two values that differ, as the answer lists them. Counts them against the limit of the
    /// answer. The last entry is the number of omitted changes, if there are any.
    pub(super) fn field_changes(&mut self, old: &Value, new: &Value) -> Value {
        let mut diffs = diff(old, new);
        let remaining_count = MAX_CHANGES - self.listed_count;
        let omitted_count = diffs.len().saturating_sub(remaining_count);
        diffs.truncate(remaining_count);
        self.listed_count += diffs.len();
        let mut listed: Vec<Value> = diffs.into_iter().map(FieldDiff::into_json).collect();
        if omitted_count > 0 {
            listed.push(json!({"field": "…", "left_out": omitted_count}));
        }
        listed.into()
    }
}

impl LostLabels {
    /// Finds the labels that hosts lose by the changes of the write so far.
    pub(super) fn from_write(work: &PendingWrite<'_>) -> Self {
        Self(lost_labels(&work.old_model().fleet, &work.model.fleet, work.visible_affected_nodes()))
    }

    /// Returns the labels in the format of an answer: each key with the number of hosts that lose it.
    pub(super) fn to_json(&self) -> Value {
        self.0.iter().map(|(key, hosts)| (key.to_string(), Value::from(*hosts))).collect::<Map<_, _>>().into()
    }

    /// Returns a sentence about the lost labels to which the written object itself gave no value before the write. The
    /// author may not expect to lose these inherited labels. Returns `None` if there are none.
    pub(super) fn inherited_sentence<S: ApiResource>(&self, written: &Object<S>) -> Option<String> {
        let map = written.spec.inherited().and_then(|maps| maps.labels.provided.as_ref());
        let has_value =
            |key: &LabelKey| map.and_then(|map| map.get(key)).is_some_and(|item| matches!(item.value, ProvidedValue::Value(_)));
        let keys: Vec<&str> = self.0.keys().filter(|key| !has_value(key)).map(LabelKey::as_str).collect();
        (!keys.is_empty()).then(|| format!("hosts lose the inherited labels {}", keys.join(", ")))
    }
}

/// A field that differs between two versions of an object.
pub(super) struct FieldDiff {
    /// The path of the field.
    pub(super) field: String,
    /// The old value. `None` if the field was at its default, or did not exist.
    pub(super) old: Option<Value>,
    /// The new value. `None` if the field is at its default, or no longer exists.
    pub(super) new: Option<Value>,
}

impl FieldDiff {
    /// Returns the difference in the format of an answer. Long values are truncated.
    fn into_json(self) -> Value {
        let mut change = json!({"field": self.field});
        for (name, value) in [("old", self.old), ("new", self.new)] {
            if let Some(value) = value {
                change[name] = truncate(value);
            }
        }
        change
    }
}

/// Returns the fields that an apply of this manager gives up, but that remain because other managers own them. Each
/// field is listed with its owners. The answer shows the list as `kept`. Returns `null` if there are no such fields.
pub(super) fn retained_fields<S: ApiResource>(old: &S, new: &S, manager: &Manager) -> Value {
    let retained = retained_by_others(&owners(old), &owners(new), manager);
    if retained.is_empty() {
        return Value::Null;
    }
    retained.iter().map(|(field, owners)| json!({"field": field, "owners": owners})).collect()
}

/// Returns the change that an answer lists for a certificate or token that was revoked.
pub(super) fn revocation_change(field: &str) -> Value {
    json!({"field": field, "old": "good"})
}

/// Removes from a body the fields that a sensitive object of this kind hides.
pub(super) fn redact<S: ApiResource>(body: &mut Value) {
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|field, _| !S::SENSITIVE_FIELDS.contains(&field.as_str()));
    }
}

/// Returns the fields that an object's authors set, without the fields that a sensitive object hides.
fn visible_fields<S: ApiResource>(api: &Api, model: &Model, object: &Object<S>) -> Value {
    let mut fields = authored_fields(api, model, object);
    if object.spec.is_sensitive() {
        redact::<S>(&mut fields);
    }
    fields
}

/// Returns the fields that an object's authors set, in the form of a manifest. For a node, also returns its provision
/// state and its effective tags, which no manifest contains.
fn authored_fields<S: ApiResource>(api: &Api, model: &Model, object: &Object<S>) -> Value {
    authored_fields_with(&ModelNames::new(model, &api.traits), model, object)
}

/// Returns the same fields as [`authored_fields`]. `names` has the names of other objects that the fields refer to.
fn authored_fields_with<S: ApiResource>(names: &ModelNames<'_>, model: &Model, object: &Object<S>) -> Value {
    let mut fields = selected_fields(&object.spec, names, &|_| true);
    fields.insert("name".to_owned(), json!(S::name_text(&object.meta.name)));
    if let Some(inherited) = object.spec.inherited() {
        fields.extend(view::provided_maps(inherited));
        fields.insert("merge_labels".to_owned(), inherited.labels.merge.into());
    }
    if let Some(node) = object.spec.node() {
        fields.insert("traits".to_owned(), json!(node.traits.members().collect::<Vec<_>>()));
        fields.insert("provision_state".to_owned(), json!(node.provision_state));
        // The effective tags include those that the node's roles give, because they change with the roles.
        let mut tags = json!({"assigned": node.tags.assigned.members().collect::<Vec<_>>(),
            "unassigned": node.tags.unassigned.members().collect::<Vec<_>>(),
            "effective": model.fleet.node_view(NodeId(object.meta.uuid)).map(|node| node.tags())});
        // An extension decided these tags, each for a role of the node.
        for (role, decided) in &node.tags.decided {
            tags["decided"][role.as_str()] = json!(decided.tags);
        }
        fields.insert("tags".to_owned(), tags);
    }
    fields.retain(|_, value| !value.is_null());
    fields.into()
}

/// Returns the fields that an object's authors set in a version from the history. Effective tags are omitted, because
/// the tags that roles give can be computed only for the present. Candidate nodes of an allocation that the caller
/// cannot see are omitted too.
pub(super) fn past_authored_fields<S: ApiResource>(names: &ModelNames<'_>, model: &Model, object: &Object<S>) -> Value {
    let mut fields = authored_fields_with(names, model, object);
    if object.spec.node().is_some() {
        fields.pointer_mut("/tags").and_then(Value::as_object_mut).and_then(|tags| tags.remove("effective"));
    }
    if S::KIND == Kind::Allocation && model.visible_cluster.is_some() {
        let is_visible = |node: &Value| {
            let uuid = node.as_str().and_then(|id| id.parse().ok());
            uuid.is_some_and(|uuid| model.nodes.get(uuid).is_some())
        };
        if let Some(nodes) = fields.pointer_mut("/candidate_nodes").and_then(Value::as_array_mut) {
            nodes.retain(is_visible);
        }
    }
    fields
}

/// Returns all owners of the keys and fields whose owners differ. The first value has the owners before the write, and
/// the second those after it, each as `{"owners": […]}`. Without owners the value is `{}`.
pub(super) fn differing_owners<S: ApiResource>(old: &S, new: &S) -> [Value; 2] {
    let (old, new) = (owners(old), owners(new));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).collect();
    let to_json = |owners: &Owners| {
        let set: BTreeSet<&Owner> = keys.iter().filter_map(|key| owners.get(*key)).flat_map(|list| &**list).collect();
        if set.is_empty() { json!({}) } else { json!({"owners": set}) }
    };
    [to_json(&old), to_json(&new)]
}

/// Returns the members of two values that differ, each with its path.
pub(super) fn diff(old: &Value, new: &Value) -> Vec<FieldDiff> {
    let mut diffs = Vec::new();
    compare("", Some(old), Some(new), &mut diffs);
    diffs
}

/// Adds the differences of two values to `diffs`. Objects are compared member by member, and lists whose items have an
/// `id`, such as tasks, item by item. Any other value is compared as a whole.
fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, diffs: &mut Vec<FieldDiff>) {
    if old == new {
        return;
    }
    let members = (members(old), members(new));
    let (Some(old_members), Some(new_members)) = members else {
        return diffs.push(FieldDiff { field: path.to_owned(), old: old.cloned(), new: new.cloned() });
    };
    let names: BTreeSet<&str> = old_members.keys().chain(new_members.keys()).copied().collect();
    // Two values without members can differ too, for example an empty map and a missing one.
    if names.is_empty() {
        return diffs.push(FieldDiff { field: path.to_owned(), old: old.cloned(), new: new.cloned() });
    }
    for name in names {
        let below = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        compare(&below, old_members.get(name).copied(), new_members.get(name).copied(), diffs);
    }
}

/// Returns the members of a map by name, or the items of a list by `id`. A missing value has no members. Returns `None`
/// for a value that can be compared only as a whole, such as a list in which an id is missing or occurs twice.
fn members(value: Option<&Value>) -> Option<BTreeMap<&str, &Value>> {
    match value {
        None => Some(BTreeMap::new()),
        Some(Value::Object(map)) => Some(map.iter().map(|(name, value)| (name.as_str(), value)).collect()),
        Some(Value::Array(items)) if !items.is_empty() => {
            let by_id: Option<BTreeMap<&str, &Value>> =
                items.iter().map(|item| Some((item.get("id")?.as_str()?, item))).collect();
            by_id.filter(|by_id| by_id.len() == items.len())
        }
        Some(_) => None,
    }
}

/// Shortens a long value to the first 500 characters of its text, followed by its length.
pub(super) fn truncate(value: Value) -> Value {
    let text = match &value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()).into(),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists of items with ids are compared item by item, other lists as a whole. The JSON shortens long values.
    #[test]
    fn diff_names_fields_with_old_and_new_values() {
        for (old, new, expected) in [
            (json!({"a": 1, "b": 2}), json!({"b": 3}), json!([{"field": "a", "old": 1}, {"field": "b", "old": 2, "new": 3}])),
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
            (json!({"roles": ["a"]}), json!({"roles": ["a", "b"]}), json!([{"field": "roles", "old": ["a"], "new": ["a", "b"]}])),
            (json!({"labels": {}}), json!({}), json!([{"field": "labels", "old": {}}])),
            (
                json!({"a": "x".repeat(600)}),
                json!({"a": ""}),
                json!([{"field": "a", "old": format!("{}… (600 characters)", "x".repeat(500)), "new": ""}]),
            ),
        ] {
            let changes: Vec<Value> = diff(&old, &new).into_iter().map(FieldDiff::into_json).collect();
            assert_eq!(Value::from(changes), expected, "{old} {new}");
        }
    }
}
