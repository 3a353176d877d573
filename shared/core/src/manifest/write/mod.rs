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
use crate::labels::{BodyShape, FromJson, IntentJson, Layer, check_parameters, merge_after};
use crate::object::{FieldOwners, Inherited, NodeSpec, NodeTags, Timestamp};
use crate::ownership::{Conflict, Intent, Manager, OwnedEntry, OwnedMap, OwnedSet, Owner, ProvidedValue};

pub(super) use tags::from_node_tags;

/// A key or field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapConflict {
    /// `labels`, `annotations`, `parameters`, `traits`, `tags` or `fields`.
    pub map: &'static str,
    /// The key, or the field's name.
    pub key: String,
    /// The manager that owns the key or field, and how it wrote it.
    pub owner: Owner,
    /// The current value; `null` for a tombstone or a trait. A tag of a node is `"assigned"` or `"unassigned"`.
    pub value: Value,
}

impl MapConflict {
    /// Creates a conflict in the map with this name, with its value as JSON.
    pub(super) fn from_conflict<K: fmt::Display, V: Serialize>(map: &'static str, conflict: Conflict<K, V>) -> Self {
        let shown = |value: &V| serde_json::to_value(value).expect("what a map holds is JSON");
        let value = conflict.value.value().map_or(Value::Null, shown);
        Self { map, key: conflict.key.to_string(), owner: conflict.owner, value }
    }
}

/// Why a body was refused. Nothing was changed.
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
    let text = |one: &MapConflict| format!("{}.{} is {} by {}", one.map, one.key, one.value, one.owner);
    let shown = conflicts.iter().take(10).map(text).collect::<Vec<_>>().join("; ");
    match conflicts.len().saturating_sub(10) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Writes a body into a spec. The caller handles the `reports` of a node.
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

/// Makes the author of a new object the owner of each field that its body sets, also of a field at its default. In a
/// new object every field that is set counts as added, as by an apply.
pub fn own_new_fields<S: SpecFields>(spec: &mut S, body: &JsonBody, manager: &Manager) {
    let fields = body.iter().filter(|(name, raw)| find_field::<S>(name).is_some() && !is_null(raw));
    for (name, _) in fields {
        spec.owners_mut().entry(name.to_owned()).or_insert_with(|| [Owner::update(manager)].into());
    }
}

/// Returns the errors of the fields of a body, each checked by itself, so that a person can correct all of them at
/// once.
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

/// Returns a copy of the spec with the changes of a body. Checks that involve several fields are not run.
fn apply_body<S: SpecFields>(
    spec: &S,
    body: &JsonBody,
    author: WriteMode<'_>,
    names: &dyn NameResolver,
    now_ms: u64,
) -> Result<S, WriteError> {
    let mut next = spec.clone();
    check_known_fields::<S>(body)?;
    let mut writing = BodyWriter { body, author, names, now_ms, conflicts: Vec::new() };
    writing.write_fields(&mut next, spec)?;
    if let Some(inherited) = next.inherited_mut() {
        writing.write_inherited(inherited)?;
    }
    merge_labels::update_after_body(spec, &mut next, body, author);
    maintenance::clear_with_parked(spec, &mut next, body, author);
    if let Some(node) = next.node_mut() {
        writing.write_node(node)?;
    }
    if !writing.conflicts.is_empty() {
        return Err(WriteError::Conflicts(hide_sensitive(writing.conflicts, spec)));
    }
    Ok(next)
}

/// Removes the values of fields that the object hides from everybody.
fn hide_sensitive<S: SpecFields>(mut conflicts: Vec<MapConflict>, spec: &S) -> Vec<MapConflict> {
    for one in conflicts.iter_mut().filter(|one| spec.is_sensitive() && S::SENSITIVE_FIELDS.contains(&one.key.as_str())) {
        one.value = Value::Null;
    }
    conflicts
}

/// Fails if the body has a field that its kind lacks.
fn check_known_fields<S: SpecFields>(body: &JsonBody) -> Result<(), BodyError> {
    let keyed = S::KEYED_FIELDS.iter().copied().flatten().map(|part| part.name);
    let known: Vec<&str> = S::FIELDS.iter().map(|field| field.name).chain(keyed).collect();
    match body.iter().find(|(name, _)| !known.contains(name) && !S::is_passthrough(name)) {
        Some((name, _)) => Err(BodyError::with_kind(
            BodyErrorKind::UnknownField,
            crate::name::truncated(name),
            unknown_field_message(name, &known),
        )),
        None => Ok(()),
    }
}

fn unknown_field_message(name: &str, known: &[&str]) -> String {
    match name {
        "override_labels" | "override-labels" | "labels_override" => "is called merge_labels".to_owned(),
        // Ironic's clients use this name, but no manifest does.
        "maintenance" if known.contains(&"parked") => "is called parked".to_owned(),
        _ => unknown_field("of this kind", name, known),
    }
}

/// A write in progress: the body, its author, and the conflicts found so far.
struct BodyWriter<'a> {
    body: &'a JsonBody,
    author: WriteMode<'a>,
    names: &'a dyn NameResolver,
    now_ms: u64,
    conflicts: Vec<MapConflict>,
}

impl BodyWriter<'_> {
    /// Writes the fields of the table and the passthrough fields, as one owned map of leaves.
    fn write_fields<S: SpecFields>(&mut self, next: &mut S, before: &S) -> Result<(), BodyError> {
        let mut intent: Intent<String, Value> = Intent::new();
        for (name, raw) in self.body.iter().filter(|(_, raw)| !self.is_left_out(raw)) {
            let value = read_field(next, name, raw, self.names).map_err(|error| error.prefixed(name))?;
            // `null` leaves `merge_labels` open. Its value is then decided together with the labels.
            if let Some(value) = value.filter(|_| name != MERGE_LABELS || !is_null(raw)) {
                intent.insert(name.to_owned(), ProvidedValue::Value(value));
            }
        }
        let owned = owned_fields(before, before.owners().clone(), self.names);
        if let Some(value) = merge_labels::implied_value(self.body, self.author, &owned) {
            intent.insert(MERGE_LABELS.to_owned(), value);
        }
        let after = match self.author {
            WriteMode::Apply { scope: ApplyScope::Object, .. } | WriteMode::Add { .. } => {
                self.write_map("fields", &owned, &intent)
            }
            WriteMode::Apply { scope: ApplyScope::NamedFields, .. } => self.write_named_fields(&owned, &intent),
            WriteMode::Update { manager, .. } => Some(owned.patch(manager, &update_intent(before, &owned, intent, self.names))),
        };
        let Some(after) = after else { return Ok(()) };
        for name in before.owners().keys().filter(|name| after.get(name.as_str()).is_none()) {
            reset_field(next, name, self.names);
        }
        *next.owners_mut() = after.iter().map(|(name, entry)| (name.clone(), entry.owners.clone())).collect();
        Ok(())
    }

    /// Returns whether a field or map counts as absent. In an apply, `null` is the same as an absent field. In an
    /// update, `null` returns the field to its default.
    fn is_left_out(&self, raw: &RawValue) -> bool {
        is_null(raw) && !matches!(self.author, WriteMode::Update { .. })
    }

    /// Writes the maps that are inherited down the levels.
    fn write_inherited(&mut self, inherited: &mut Inherited) -> Result<(), BodyError> {
        let shape = if let WriteMode::Update { shape, .. } = self.author { shape } else { BodyShape::Native };
        self.write_layer(&mut inherited.labels, "labels").map_err(|error| error.with_value_kind(BodyErrorKind::Label))?;
        let provides = inherited.labels.provided.is_some();
        inherited.labels.merge = merge_after(inherited.labels.merge, None, provides, shape);
        self.write_layer(&mut inherited.annotations, "annotations")?;
        self.write_layer(&mut inherited.parameters, "parameters")?;
        check_own_annotations(inherited).map_err(|why| BodyError::new("annotations", why.to_string()))?;
        let parameters = inherited.parameters.provided.as_ref().map_or(Ok(()), check_parameters);
        parameters.map_err(|why| BodyError::new("parameters", why.to_string()))
    }

    /// Writes one map of a level.
    fn write_layer<K, V>(&mut self, layer: &mut Layer<K, V>, map: &'static str) -> Result<(), BodyError>
    where
        K: Ord + Clone + fmt::Display + FromStr<Err: fmt::Display>,
        V: Clone + PartialEq + FromJson + Serialize,
    {
        let Some(raw) = self.body.get(map).filter(|raw| !self.is_left_out(raw)) else {
            self.release_map(layer);
            return Ok(());
        };
        bound::check_keyed_field(map, raw, || bound::layer_json(layer))?;
        let written = IntentJson::<K, V>::from_json(raw).map_err(|why| BodyError::new(why.field(map), why.reason()))?;
        let Some(IntentJson(whole)) = written else {
            layer.provided = None;
            return Ok(());
        };
        if let Some(mut after) = self.write_map(map, layer.provided.as_ref().unwrap_or(&OwnedMap::default()), &whole) {
            after.set_missing_times(self.now_ms);
            layer.provided = Some(after);
        }
        layer.check_key_count().map_err(|why| BodyError::new(map, why.to_string()))
    }

    /// Removes the manager's keys from a map that its manifest omits. If no key remains, the map is removed too, as if
    /// nobody had provided it. A map in which the manager has no key is unchanged, and an update changes no such map.
    fn release_map<K, V>(&self, layer: &mut Layer<K, V>)
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq,
    {
        let Some((provided, after)) = layer.provided.as_ref().and_then(|map| Some((map, self.without_own_keys(map)?))) else {
            return;
        };
        if after != *provided {
            layer.provided = (!after.is_empty()).then_some(after);
        }
    }

    /// Returns a map without the manager's own keys, if the body is the whole intent for the object. Otherwise returns
    /// `None`.
    fn without_own_keys<K, V>(&self, owned: &OwnedMap<K, V>) -> Option<OwnedMap<K, V>>
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq,
    {
        match self.author {
            WriteMode::Apply { manager, scope: ApplyScope::Object, .. } => Some(owned.remove_manager(manager)),
            WriteMode::Apply { scope: ApplyScope::NamedFields, .. } | WriteMode::Add { .. } | WriteMode::Update { .. } => None,
        }
    }

    /// Writes a node's traits and tags.
    fn write_node(&mut self, node: &mut NodeSpec) -> Result<(), BodyError> {
        for (name, kind) in [("traits", BodyErrorKind::Trait), ("tags", BodyErrorKind::Value)] {
            let Some(raw) = self.body.get(name) else { continue };
            let checked = bound::check_keyed_field(name, raw, || bound::keyed_field_json(&*node, name));
            checked.map_err(|error| error.with_value_kind(kind))?;
        }
        if let Some(raw) = self.body.get("traits").filter(|raw| !is_null(raw)) {
            let traits: Result<Vec<String>, BodyError> = read_json(raw);
            let traits = traits.map_err(|error| error.with_value_kind(BodyErrorKind::Trait).prefixed("traits"))?;
            let parse = |(at, name): (usize, &String)| {
                let wrong = |why: String| BodyError::with_kind(BodyErrorKind::Trait, format!("traits[{at}]"), why);
                self.names.trait_names().parse(name).map_err(|why| wrong(why.to_string()))
            };
            let traits = traits.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
            self.write_set(&mut node.traits, "traits", Some(traits));
        } else {
            self.write_set(&mut node.traits, "traits", None);
        }
        self.write_tags(&mut node.tags).map_err(|error| error.prefixed("tags"))
    }

    /// Writes the tags that a node was given by hand. Assigning a tag replaces an unassignment of it, and vice versa.
    fn write_tags(&mut self, tags: &mut NodeTags) -> Result<(), BodyError> {
        let old = from_node_tags(tags);
        let after = match self.body.get("tags").filter(|raw| !self.is_left_out(raw)) {
            None => self.without_own_keys(&old),
            Some(raw) => {
                let is_update = matches!(self.author, WriteMode::Update { .. });
                let sent = tags::read_tags(raw, is_update)?;
                tags::check_new_names(&sent, tags)?;
                self.write_map("tags", &old, &tags::tag_intent(sent, &old, is_update))
            }
        };
        if let Some(after) = after.filter(|after| *after != old) {
            tags::store_choices(tags, &after);
        }
        Ok(())
    }

    /// Writes a whole set. If an apply omits the set, the manager gives up its own members.
    fn write_set<K: Ord + Clone + fmt::Display>(&mut self, owned: &mut OwnedSet<K>, map: &'static str, whole: Option<Vec<K>>) {
        let Some(whole) = whole else {
            *owned = self.without_own_keys(owned).unwrap_or_else(|| owned.clone());
            return;
        };
        let whole = whole.into_iter().map(|member| (member, ProvidedValue::Value(()))).collect();
        if let Some(after) = self.write_map(map, owned, &whole) {
            *owned = after;
        }
    }

    /// Returns the fields after an apply that sets only the fields it names. Other fields keep their owners. Returns
    /// `None` if there are conflicts.
    fn write_named_fields(
        &mut self,
        owned: &OwnedMap<String, Value>,
        intent: &Intent<String, Value>,
    ) -> Option<OwnedMap<String, Value>> {
        let body = self.body;
        let entries = |named: bool| {
            let matching = owned.iter().filter(move |(name, _)| body.has_value(name) == named);
            matching.map(|(name, entry)| (name.clone(), entry.clone()))
        };
        let (named, others): (OwnedMap<_, _>, Vec<_>) = (OwnedMap::from_entries(entries(true)), entries(false).collect());
        let after = self.write_map("fields", &named, intent)?;
        let after = after.iter().map(|(name, entry)| (name.clone(), entry.clone()));
        Some(OwnedMap::from_entries(after.chain(others)))
    }

    /// Returns an owned map after the author wrote `whole` into it. Records the conflicts and returns `None` if other
    /// managers own what would change.
    fn write_map<K, V>(&mut self, map: &'static str, owned: &OwnedMap<K, V>, whole: &Intent<K, V>) -> Option<OwnedMap<K, V>>
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq + Serialize,
    {
        let after = match self.author {
            WriteMode::Apply { manager, force, adopt: Some(from), .. } => {
                owned.adopt(from, manager, whole.keys()).apply(manager, whole, force)
            }
            WriteMode::Apply { manager, force, adopt: None, .. } => owned.apply(manager, whole, force),
            WriteMode::Add { manager, force } => owned.apply_more(manager, whole, force),
            WriteMode::Update { manager, .. } => Ok(owned.update(manager, whole)),
        };
        after
            .map_err(|refused| {
                self.conflicts.extend(refused.0.into_iter().map(|one| MapConflict::from_conflict(map, one)));
            })
            .ok()
    }
}

/// Returns the fields that an update sets. A field without an owner that is at its default and stays there does not
/// count as set. So an update that resumes a group that was never paused takes no ownership. A field that returns to
/// its default counts as set, and the author of the update owns it.
fn update_intent<S: SpecFields>(
    before: &S,
    owned: &OwnedMap<String, Value>,
    intent: Intent<String, Value>,
    names: &dyn NameResolver,
) -> BTreeMap<String, Option<ProvidedValue<Value>>> {
    let stays_at_default = |name: &str, value: &ProvidedValue<Value>| {
        let at_default = value.value().filter(|value| is_default(before, name, value, names));
        at_default.is_some_and(|value| *value == field_json(before, name, names))
    };
    let is_set = |name: &str, value: &ProvidedValue<Value>| owned.get(name).is_some() || !stays_at_default(name, value);
    let fields = intent.into_iter().filter(|(name, said)| is_set(name, said));
    fields.map(|(name, said)| (name, Some(said))).collect()
}

/// Reads a field into the spec and returns its value as it is shown (`null` at its default). Returns `None` for a field
/// that is owned key by key, which is written elsewhere.
fn read_field<S: SpecFields>(
    spec: &mut S,
    name: &str,
    raw: &RawValue,
    names: &dyn NameResolver,
) -> Result<Option<Value>, BodyError> {
    if let Some(field) = find_field::<S>(name) {
        let part = FieldDef::new(field.name, field.kind, field.help);
        let checked = bound::check_body_field(&part, raw, || (field.show)(spec, names));
        // As for the labels of a level.
        let of_labels = |error: BodyError| error.with_value_kind(BodyErrorKind::Label);
        checked.map_err(|error| if name == "labels" { of_labels(error) } else { error })?;
        (field.read)(spec, raw, names)?;
        return Ok(Some((field.show)(spec, names)));
    }
    if name == MERGE_LABELS {
        return merge_labels::read(spec, raw);
    }
    let Some(field) = S::PASSTHROUGH_FIELDS.iter().find(|kept| kept.name == name) else { return Ok(None) };
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

fn find_field<S: SpecFields>(name: &str) -> Option<&'static Field<S>> {
    S::FIELDS.iter().find(|field| field.name == name)
}

/// Returns a field's value as it is shown.
fn field_json<S: SpecFields>(spec: &S, name: &str, names: &dyn NameResolver) -> Value {
    match find_field::<S>(name) {
        Some(field) => (field.show)(spec, names),
        None if name == MERGE_LABELS => merge_labels::to_json(spec),
        None => spec.extra().get(name).cloned().unwrap_or(Value::Null),
    }
}

/// Returns whether a field with this shown value is at its default. Every field at its default is shown as `null`,
/// except a number.
pub(super) fn is_default<S: SpecFields>(spec: &S, name: &str, value: &Value, names: &dyn NameResolver) -> bool {
    if !value.is_number() {
        return value.is_null();
    }
    let mut blank = spec.clone();
    reset_field(&mut blank, name, names);
    field_json(&blank, name, names) == *value
}

/// Returns the fields that have owners, with their current values.
pub(super) fn owned_fields<S: SpecFields>(spec: &S, owners: FieldOwners, names: &dyn NameResolver) -> OwnedMap<String, Value> {
    let entry = |(name, owners): (String, _)| {
        let said = ProvidedValue::Value(field_json(spec, &name, names));
        (name, OwnedEntry { value: said, owners, since_ms: None })
    };
    OwnedMap::from_entries(owners.into_iter().map(entry))
}

/// Checks the total size of the annotations that one object provides.
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
