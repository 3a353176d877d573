//! How a body changes a spec under a manager's name, by apply or by update.
//!
//! Each top-level field is one entry of an owned map, so fields follow the same server-side apply as labels:
//!
//! - A field that this manager set last time and now omits returns to its default. A field that it never set is
//!   unchanged. A field that another manager owns with another value is a conflict.
//! - The three maps of a level, a node's traits and its tags are owned key by key. A map that an apply omits counts as
//!   a map without keys.
//!
//! The changes are made to a copy of the spec, so an error changes nothing.

mod tags;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::body::{JsonBody, is_null};
use super::error::{BodyError, BodyErrorKind, unknown_field};
use super::fields::{Field, SpecFields};
use super::merge_labels::MERGE_LABELS;
use super::names::NameResolver;
use super::reader::read_json;
use super::write_mode::{ApplyScope, WriteMode};
use super::{bound, maintenance, merge_labels};
use crate::field::FieldDef;
use crate::json::normalize_integers;
use crate::key::{AnnotationsTooLarge, check_annotations};
use crate::labels::{BodyShape, FromJson, IntentJson, Layer, check_parameters, merge_labels_after_write};
use crate::object::{FieldOwners, Inherited, NodeSpec, NodeTags, Timestamp};
use crate::ownership::{Conflict, Intent, Manager, OwnedEntry, OwnedMap, OwnedSet, Owner, ProvidedValue};

pub(super) use tags::tag_choices;

/// A key or field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapConflict {
    /// The map of the key: `labels`, `annotations`, `parameters`, `traits` or `tags`. For a field it is `fields`.
    pub map: &'static str,
    /// The key, or the field's name.
    pub key: String,
    /// The manager that owns the key or field, with the operation (apply or update) by which it wrote the value.
    pub owner: Owner,
    /// The current value. It is `null` for a tombstone, a trait, a field at its default and a hidden field of a
    /// sensitive object. A number at its default is not `null`. A tag of a node is `"assigned"` or `"unassigned"`.
    pub value: Value,
}

impl MapConflict {
    /// Creates a conflict in the map with this name, with its value as JSON.
    pub(super) fn from_conflict<K: fmt::Display, V: Serialize>(map: &'static str, conflict: Conflict<K, V>) -> Self {
        let shown = |value: &V| serde_json::to_value(value).expect("a value of a map is JSON");
        let value = conflict.value.value().map_or(Value::Null, shown);
        Self { map, key: conflict.key.to_string(), owner: conflict.owner, value }
    }
}

/// The error for a body that was refused. The object is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The body is invalid.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// Other managers own what the body would change.
    #[error("{}: agree with them, leave it out, or force", conflict_list(.0))]
    Conflicts(Vec<MapConflict>),
}

/// Returns a text that lists the first ten conflicts and counts the others.
fn conflict_list(conflicts: &[MapConflict]) -> String {
    let text = |conflict: &MapConflict| format!("{}.{} is {} by {}", conflict.map, conflict.key, conflict.value, conflict.owner);
    let shown = conflicts.iter().take(10).map(text).collect::<Vec<_>>().join("; ");
    match conflicts.len().saturating_sub(10) {
        0 => shown,
        remaining_count => format!("{shown} and {remaining_count} more"),
    }
}

/// Writes a body into a spec, under the manager and in the way that `author` defines. `names` resolves references to
/// other objects, and `now_ms` is the time of the write. The `reports` of a node are not written here.
///
/// # Errors
/// [`WriteError`]; the spec is then unchanged.
pub fn write_body<S: SpecFields>(
    spec: &mut S,
    body: &JsonBody,
    author: WriteMode<'_>,
    names: &dyn NameResolver,
    now_ms: u64,
) -> Result<(), WriteError> {
    let mut next = apply_body(spec, body, author, names, now_ms)?;
    next.check()?;
    next.update_dates(spec, Timestamp(now_ms));
    *spec = next;
    Ok(())
}

/// Makes the author of a new object the owner of each field that its body sets, even to the default, but not to `null`.
/// An update of an existing object does not own a field that it leaves at its default.
pub fn own_new_fields<S: SpecFields>(spec: &mut S, body: &JsonBody, manager: &Manager) {
    let fields = body.iter().filter(|(name, raw)| find_field::<S>(name).is_some() && !is_null(raw));
    for (name, _) in fields {
        spec.owners_mut().entry(name.to_owned()).or_insert_with(|| [Owner::update(manager)].into());
    }
}

/// Returns the first error of each field of a body, so that a person can correct several at once. Each field is written
/// alone to a copy of the spec. Conflicts with other managers and rules about several fields are not checked.
pub(super) fn body_errors<S: SpecFields>(
    spec: &S,
    body: &JsonBody,
    author: WriteMode<'_>,
    names: &dyn NameResolver,
) -> Vec<BodyError> {
    let error_of = |name: &str| match apply_body(spec, &body.with_only(name), author, names, 0) {
        Err(WriteError::Body(error)) => Some(error),
        Ok(_) | Err(WriteError::Conflicts(_)) => None,
    };
    body.iter().filter_map(|(name, _)| error_of(name)).collect()
}

/// Returns a copy of the spec with the changes of a body. Rules about several fields are not checked. Fails with the
/// first invalid field, or with all conflicts.
fn apply_body<S: SpecFields>(
    spec: &S,
    body: &JsonBody,
    author: WriteMode<'_>,
    names: &dyn NameResolver,
    now_ms: u64,
) -> Result<S, WriteError> {
    let mut next = spec.clone();
    check_known_fields::<S>(body)?;
    let mut writer = BodyWriter { body, author, names, now_ms, conflicts: Vec::new() };
    writer.write_fields(&mut next, spec)?;
    if let Some(inherited) = next.inherited_mut() {
        writer.write_inherited(inherited)?;
    }
    merge_labels::update_after_body(spec, &mut next, body, author);
    maintenance::clear_reason_if_unparked(spec, &mut next, body, author);
    if let Some(node) = next.node_mut() {
        writer.write_node(node)?;
    }
    if !writer.conflicts.is_empty() {
        return Err(WriteError::Conflicts(hide_sensitive_values(writer.conflicts, spec)));
    }
    Ok(next)
}

/// Returns the conflicts without the values of hidden fields, if the object is sensitive. Such a value becomes `null`.
pub(super) fn hide_sensitive_values<S: SpecFields>(mut conflicts: Vec<MapConflict>, spec: &S) -> Vec<MapConflict> {
    let is_hidden = |item: &&mut MapConflict| item.map == "fields" && S::SENSITIVE_FIELDS.contains(&item.key.as_str());
    for item in conflicts.iter_mut().filter(|_| spec.is_sensitive()).filter(is_hidden) {
        item.value = Value::Null;
    }
    conflicts
}

/// Fails if the body contains a field that the kind of object does not have.
fn check_known_fields<S: SpecFields>(body: &JsonBody) -> Result<(), BodyError> {
    let keyed = S::KEYED_FIELDS.iter().copied().flatten().map(|field| field.name);
    let field_names: Vec<&str> = S::FIELDS.iter().map(|field| field.name).chain(keyed).collect();
    match body.iter().find(|(name, _)| !field_names.contains(name) && !S::is_passthrough(name)) {
        Some((name, _)) => Err(BodyError::with_kind(
            BodyErrorKind::UnknownField,
            crate::name::truncated(name),
            unknown_field_message(name, &field_names),
        )),
        None => Ok(()),
    }
}

/// Returns the message about a field that the kind does not have. Some names of other systems have a message of their
/// own.
fn unknown_field_message(name: &str, field_names: &[&str]) -> String {
    match name {
        "override_labels" | "override-labels" | "labels_override" => "is called merge_labels".to_owned(),
        // Ironic's clients use this name, but no manifest does.
        "maintenance" if field_names.contains(&"parked") => "is called parked".to_owned(),
        _ => unknown_field("of this kind", name, field_names),
    }
}

/// A write in progress: the body, its author, and the conflicts of the parts that were already written.
struct BodyWriter<'a> {
    body: &'a JsonBody,
    author: WriteMode<'a>,
    names: &'a dyn NameResolver,
    now_ms: u64,
    conflicts: Vec<MapConflict>,
}

impl BodyWriter<'_> {
    /// Writes the fields of the kind's table, the passthrough fields and `merge_labels` into `next`. They are treated
    /// as one map, in which each field has its owners. A field that loses its last owner returns to its default.
    fn write_fields<S: SpecFields>(&mut self, next: &mut S, prev: &S) -> Result<(), BodyError> {
        let mut intent: Intent<String, Value> = Intent::new();
        for (name, raw) in self.body.iter().filter(|(_, raw)| !self.is_left_out(raw)) {
            let value = read_field(next, name, raw, self.names).map_err(|error| error.prefixed(name))?;
            // `merge_labels: null` sets no value. The value is then decided together with the labels.
            if let Some(value) = value.filter(|_| name != MERGE_LABELS || !is_null(raw)) {
                intent.insert(name.to_owned(), ProvidedValue::Value(value));
            }
        }
        let fields = owned_fields(prev, prev.owners().clone(), self.names);
        if let Some(value) = merge_labels::implied_value(self.body, self.author, &fields) {
            intent.insert(MERGE_LABELS.to_owned(), value);
        }
        // An apply of an object gives up the fields that the body omits. The other writes do not change these fields.
        let new_fields = match self.author {
            WriteMode::Apply { scope: ApplyScope::Object, .. } | WriteMode::Add { .. } => {
                self.write_map("fields", &fields, &intent)
            }
            WriteMode::Apply { scope: ApplyScope::NamedFields, .. } => self.write_named_fields(&fields, &intent),
            WriteMode::Update { manager, .. } => Some(fields.patch(manager, &update_intent(prev, &fields, intent, self.names))),
        };
        // The conflicts were recorded, and the caller reports them.
        let Some(new_fields) = new_fields else { return Ok(()) };
        for name in prev.owners().keys().filter(|name| new_fields.get(name.as_str()).is_none()) {
            reset_field(next, name, self.names);
        }
        *next.owners_mut() = new_fields.iter().map(|(name, entry)| (name.clone(), entry.owners.clone())).collect();
        Ok(())
    }

    /// Returns whether a field or map of the body is treated as absent, because it is `null` and the write is not an
    /// update. In an update, `null` is not absent: it returns the field to its default.
    fn is_left_out(&self, raw: &RawValue) -> bool {
        is_null(raw) && !matches!(self.author, WriteMode::Update { .. })
    }

    /// Writes the labels, annotations and parameters of a level, and sets `merge_labels` if the first labels are
    /// provided.
    fn write_inherited(&mut self, inherited: &mut Inherited) -> Result<(), BodyError> {
        let shape = if let WriteMode::Update { shape, .. } = self.author { shape } else { BodyShape::Native };
        self.write_layer(&mut inherited.labels, "labels").map_err(|error| error.with_value_kind(BodyErrorKind::Label))?;
        let provides = inherited.labels.provided.is_some();
        // A `merge_labels` in the body was already written with the other fields, so no sent value is given here.
        inherited.labels.merge = merge_labels_after_write(inherited.labels.merge, None, provides, shape);
        self.write_layer(&mut inherited.annotations, "annotations")?;
        self.write_layer(&mut inherited.parameters, "parameters")?;
        check_own_annotations(inherited).map_err(|why| BodyError::new("annotations", why.to_string()))?;
        let parameters = inherited.parameters.provided.as_ref().map_or(Ok(()), check_parameters);
        parameters.map_err(|why| BodyError::new("parameters", why.to_string()))
    }

    /// Writes one map of a level, such as its labels. If the body omits the map, an apply of the whole object gives up
    /// the manager's keys ([`Self::give_up_map`]). In an update, `null` removes the map.
    fn write_layer<K, V>(&mut self, layer: &mut Layer<K, V>, map_name: &'static str) -> Result<(), BodyError>
    where
        K: Ord + Clone + fmt::Display + FromStr<Err: fmt::Display>,
        V: Clone + PartialEq + FromJson + Serialize,
    {
        let Some(raw) = self.body.get(map_name).filter(|raw| !self.is_left_out(raw)) else {
            self.give_up_map(layer);
            return Ok(());
        };
        bound::check_keyed_field(map_name, raw, || bound::layer_json(layer))?;
        let parsed = IntentJson::<K, V>::from_json(raw).map_err(|why| BodyError::new(why.field(map_name), why.reason()))?;
        // An update with `null` removes the whole map.
        let Some(IntentJson(intent)) = parsed else {
            layer.provided = None;
            return Ok(());
        };
        if let Some(mut new_map) = self.write_map(map_name, layer.provided.as_ref().unwrap_or(&OwnedMap::default()), &intent) {
            new_map.set_missing_times(self.now_ms);
            layer.provided = Some(new_map);
        }
        layer.check_key_count().map_err(|why| BodyError::new(map_name, why.to_string()))
    }

    /// Removes the keys that only the manager applied from a map that its manifest omits. A key with another owner
    /// stays, and the manager no longer owns it. If this removes the last key, the map is removed too, as if nobody had
    /// provided it. A map in which the manager has no key is unchanged. Only a manifest has this effect.
    fn give_up_map<K, V>(&self, layer: &mut Layer<K, V>)
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq,
    {
        let Some((old, remaining)) = layer.provided.as_ref().and_then(|map| Some((map, self.without_manager_keys(map)?))) else {
            return;
        };
        if remaining != *old {
            layer.provided = (!remaining.is_empty()).then_some(remaining);
        }
    }

    /// Returns a map without the keys that only this manager applied, if the body is the manager's whole intent for the
    /// object. Otherwise returns `None`.
    fn without_manager_keys<K, V>(&self, map: &OwnedMap<K, V>) -> Option<OwnedMap<K, V>>
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq,
    {
        match self.author {
            WriteMode::Apply { manager, scope: ApplyScope::Object, .. } => Some(map.remove_manager(manager)),
            WriteMode::Apply { scope: ApplyScope::NamedFields, .. } | WriteMode::Add { .. } | WriteMode::Update { .. } => None,
        }
    }

    /// Writes a node's traits and tags. If the body omits them, a manifest removes those that only its manager applied.
    fn write_node(&mut self, node: &mut NodeSpec) -> Result<(), BodyError> {
        for (name, kind) in [("traits", BodyErrorKind::Trait), ("tags", BodyErrorKind::Value)] {
            let Some(raw) = self.body.get(name) else { continue };
            let checked = bound::check_keyed_field(name, raw, || bound::keyed_field_json(&*node, name));
            checked.map_err(|error| error.with_value_kind(kind))?;
        }
        if let Some(raw) = self.body.get("traits").filter(|raw| !is_null(raw)) {
            let traits: Result<Vec<String>, BodyError> = read_json(raw);
            let traits = traits.map_err(|error| error.with_value_kind(BodyErrorKind::Trait).prefixed("traits"))?;
            let parse = |(index, name): (usize, &String)| {
                let trait_error = |why: String| BodyError::with_kind(BodyErrorKind::Trait, format!("traits[{index}]"), why);
                self.names.trait_names().parse(name).map_err(|why| trait_error(why.to_string()))
            };
            let traits = traits.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
            self.write_set(&mut node.traits, "traits", Some(traits));
        } else {
            self.write_set(&mut node.traits, "traits", None);
        }
        self.write_tags(&mut node.tags).map_err(|error| error.prefixed("tags"))
    }

    /// Writes the tags that operators assign to a node or unassign from it. One tag has one choice: if a tag is
    /// assigned, it is no longer unassigned, and the reverse.
    fn write_tags(&mut self, tags: &mut NodeTags) -> Result<(), BodyError> {
        let old_choices = tag_choices(tags);
        let new_choices = match self.body.get("tags").filter(|raw| !self.is_left_out(raw)) {
            None => self.without_manager_keys(&old_choices),
            Some(raw) => {
                // In an update, a set that is `null` becomes empty, and a set that the body omits is unchanged.
                let is_update = matches!(self.author, WriteMode::Update { .. });
                let input = tags::read_tags(raw, is_update)?;
                tags::check_new_names(&input, tags)?;
                self.write_map("tags", &old_choices, &tags::tag_intent(input, &old_choices, is_update))
            }
        };
        if let Some(new_choices) = new_choices.filter(|new_choices| *new_choices != old_choices) {
            tags::store_choices(tags, &new_choices);
        }
        Ok(())
    }

    /// Writes a set, such as traits. `members` is the whole set in the body. If it is `None`, a manifest removes the
    /// members that only its manager applied, and any other write leaves the set unchanged.
    fn write_set<K: Ord + Clone + fmt::Display>(&mut self, set: &mut OwnedSet<K>, map: &'static str, members: Option<Vec<K>>) {
        let Some(members) = members else {
            *set = self.without_manager_keys(set).unwrap_or_else(|| set.clone());
            return;
        };
        let members = members.into_iter().map(|member| (member, ProvidedValue::Value(()))).collect();
        if let Some(new_set) = self.write_map(map, set, &members) {
            *set = new_set;
        }
    }

    /// Returns the owned fields after an apply that changes only the fields in its body. The owners of other fields are
    /// unchanged. Returns `None` if there are conflicts.
    fn write_named_fields(
        &mut self,
        old_fields: &OwnedMap<String, Value>,
        intent: &Intent<String, Value>,
    ) -> Option<OwnedMap<String, Value>> {
        // Only the fields in the body are written. The other fields are added unchanged.
        let body = self.body;
        let entries = |is_in_body: bool| {
            let matching = old_fields.iter().filter(move |(name, _)| body.has_value(name) == is_in_body);
            matching.map(|(name, entry)| (name.clone(), entry.clone()))
        };
        let (fields, others): (OwnedMap<_, _>, Vec<_>) = (OwnedMap::from_entries(entries(true)), entries(false).collect());
        let new_fields = self.write_map("fields", &fields, intent)?;
        let new_fields = new_fields.iter().map(|(name, entry)| (name.clone(), entry.clone()));
        Some(OwnedMap::from_entries(new_fields.chain(others)))
    }

    /// Returns a map after the author wrote `intent` into it. If an apply or an addition without force would change a
    /// key of another owner, records the conflicts and returns `None`.
    fn write_map<K, V>(&mut self, map: &'static str, old: &OwnedMap<K, V>, intent: &Intent<K, V>) -> Option<OwnedMap<K, V>>
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq + Serialize,
    {
        let result = match self.author {
            WriteMode::Apply { manager, force, adopt: Some(old_owner), .. } => {
                old.adopt(old_owner, manager, intent.keys()).apply(manager, intent, force)
            }
            WriteMode::Apply { manager, force, adopt: None, .. } => old.apply(manager, intent, force),
            WriteMode::Add { manager, force } => old.apply_more(manager, intent, force),
            WriteMode::Update { manager, .. } => Ok(old.update(manager, intent)),
        };
        result
            .map_err(|conflicts| {
                self.conflicts.extend(conflicts.0.into_iter().map(|conflict| MapConflict::from_conflict(map, conflict)));
            })
            .ok()
    }
}

/// Returns the fields that an update sets. Its manager becomes the owner of those that change or have no owner. A field
/// without an owner is left out if it was at its default and remains there. For example, an update that resumes a group
/// that was never paused does not own `paused`. A field that the update returns to its default is included.
fn update_intent<S: SpecFields>(
    previous: &S,
    old_fields: &OwnedMap<String, Value>,
    intent: Intent<String, Value>,
    names: &dyn NameResolver,
) -> BTreeMap<String, Option<ProvidedValue<Value>>> {
    // True if the sent value is the default and equals the stored value.
    let stays_at_default = |name: &str, value: &ProvidedValue<Value>| {
        let at_default = value.value().filter(|value| is_default(previous, name, value, names));
        at_default.is_some_and(|value| *value == field_json(previous, name, names))
    };
    let is_set = |name: &str, value: &ProvidedValue<Value>| old_fields.get(name).is_some() || !stays_at_default(name, value);
    let fields = intent.into_iter().filter(|(name, provided)| is_set(name, provided));
    fields.map(|(name, provided)| (name, Some(provided))).collect()
}

/// Reads a field into the spec and returns its value as a body would contain it. Returns `None` for a map whose keys
/// have their own owners, such as labels, because another function writes it.
fn read_field<S: SpecFields>(
    spec: &mut S,
    name: &str,
    raw: &RawValue,
    names: &dyn NameResolver,
) -> Result<Option<Value>, BodyError> {
    if let Some(field) = find_field::<S>(name) {
        let field_def = FieldDef::new(field.name, field.kind, field.help);
        let checked = bound::check_body_field(&field_def, raw, || (field.show)(spec, names));
        // Labels have their own kind of error, as those of a level have.
        let as_label_error = |error: BodyError| error.with_value_kind(BodyErrorKind::Label);
        checked.map_err(|error| if name == "labels" { as_label_error(error) } else { error })?;
        (field.read)(spec, raw, names)?;
        return Ok(Some((field.show)(spec, names)));
    }
    if name == MERGE_LABELS {
        return merge_labels::read(spec, raw);
    }
    let Some(field) = S::PASSTHROUGH_FIELDS.iter().find(|passthrough| passthrough.name == name) else { return Ok(None) };
    bound::check_passthrough(field, raw, || spec.extra().get(name).cloned().unwrap_or(Value::Null))?;
    let mut value = field.normalize(read_json(raw)?)?;
    normalize_integers(&mut value);
    if value.is_null() {
        spec.extra_mut().remove(name);
    } else {
        spec.extra_mut().insert(name.to_owned(), value.clone());
    }
    Ok(Some(value))
}

/// Returns a field to its default, by reading `null` into it.
fn reset_field<S: SpecFields>(spec: &mut S, name: &str, names: &dyn NameResolver) {
    let null = RawValue::from_string("null".to_owned()).expect("null is JSON");
    read_field(spec, name, &null, names).expect("null is every field's default");
}

/// Returns the row of a field in the table of its kind, or `None` if the table has no such field.
fn find_field<S: SpecFields>(name: &str) -> Option<&'static Field<S>> {
    S::FIELDS.iter().find(|field| field.name == name)
}

/// Returns a field's value as a body would contain it. A field at its default is `null`, except a number.
fn field_json<S: SpecFields>(spec: &S, name: &str, names: &dyn NameResolver) -> Value {
    match find_field::<S>(name) {
        Some(field) => (field.show)(spec, names),
        None if name == MERGE_LABELS => merge_labels::to_json(spec),
        None => spec.extra().get(name).cloned().unwrap_or(Value::Null),
    }
}

/// Returns whether `value` is the default of a field. `value` is the field's value as [`field_json`] returns it, which
/// is `null` for every default except a number. A number is compared with the field of a copy that was reset.
pub(super) fn is_default<S: SpecFields>(spec: &S, name: &str, value: &Value, names: &dyn NameResolver) -> bool {
    if !value.is_number() {
        return value.is_null();
    }
    let mut reset_spec = spec.clone();
    reset_field(&mut reset_spec, name, names);
    field_json(&reset_spec, name, names) == *value
}

/// Returns the fields that have owners as one owned map, with their current values.
pub(super) fn owned_fields<S: SpecFields>(spec: &S, owners: FieldOwners, names: &dyn NameResolver) -> OwnedMap<String, Value> {
    let entry = |(name, owners): (String, _)| {
        let provided = ProvidedValue::Value(field_json(spec, &name, names));
        (name, OwnedEntry { value: provided, owners, since_ms: None })
    };
    OwnedMap::from_entries(owners.into_iter().map(entry))
}

/// Fails if the annotations that one level provides are too large in total. A tombstone has no value to count.
///
/// # Errors
/// [`AnnotationsTooLarge`].
pub fn check_own_annotations(inherited: &Inherited) -> Result<(), AnnotationsTooLarge> {
    let entries = inherited.annotations.provided.iter().flat_map(OwnedMap::iter);
    let texts = entries.map(|(key, entry)| (&**key, entry.value.value().map_or("", |value| &**value)));
    check_annotations(texts)
}

#[cfg(test)]
mod tests;
