//! How a body changes a spec: under a manager's name, by apply or by update.
//!
//! Top-level fields are leaves of one owned map, so they follow the same server-side apply as labels: a field that
//! this manager named last time and now leaves out returns to its default, one that it never named is untouched,
//! and one that another owns with another value is a conflict. The three maps of labels, a node's traits and its
//! tags are owned key by key; a map that an apply leaves out names no key. All of it is done on a copy: an error changes nothing.

mod tags;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::author::{Author, Scope};
use super::body::{Body, is_null};
use super::error::{BodyError, BodyErrorKind, no_field};
use super::fields::{Field, Fields};
use super::merge_labels::MERGE_LABELS;
use super::names::Names;
use super::reader::read;
use super::{bound, maintenance, merge_labels};
use crate::field::Part;
use crate::json::whole_to_integers;
use crate::key::{AnnotationsTooLarge, check_annotations};
use crate::labels::{BodyShape, FromJson, Layer, Written, check_parameters, merge_after};
use crate::object::{FieldOwners, Inherited, NodeSpec, NodeTags, Timestamp};
use crate::ownership::{Conflict, Entry, Intent, Manager, OwnedMap, OwnedSet, Owner, Said};

pub(super) use tags::by_hand;

/// A key or field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapConflict {
    /// `labels`, `annotations`, `parameters`, `traits`, `tags` or `fields`.
    pub map: &'static str,
    /// The key, or the field's name.
    pub key: String,
    /// Who owns it.
    pub owner: Owner,
    /// Its present value; `null` for a tombstone or a trait. A tag of a node is `"assigned"` or `"unassigned"`.
    pub value: Value,
}

impl MapConflict {
    /// A conflict in this map, with its value as JSON.
    pub(super) fn of<K: fmt::Display, V: Serialize>(map: &'static str, one: Conflict<K, V>) -> Self {
        let shown = |said: &V| serde_json::to_value(said).expect("what a map holds is JSON");
        let value = one.said.value().map_or(Value::Null, shown);
        Self { map, key: one.key.to_string(), owner: one.owner, value }
    }
}

/// Why a body was not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Something in the body is wrong.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// Others own what it would change.
    #[error("{}: agree with them, leave it out, or force", listed(.0))]
    Conflicts(Vec<MapConflict>),
}

fn listed(conflicts: &[MapConflict]) -> String {
    let one = |one: &MapConflict| format!("{}.{} is {} by {}", one.map, one.key, one.value, one.owner);
    let shown = conflicts.iter().take(10).map(one).collect::<Vec<_>>().join("; ");
    match conflicts.len().saturating_sub(10) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Writes a body into a spec. `reports` of a node is left to the caller.
///
/// # Errors
/// [`WriteError`]; then the spec is as it was.
pub fn write<S: Fields>(
    spec: &mut S,
    body: &Body,
    author: Author<'_>,
    names: &dyn Names,
    now_ms: u64,
) -> Result<(), WriteError> {
    let mut next = changed(spec, body, author, names, now_ms)?;
    next.check()?;
    next.stamp(spec, Timestamp(now_ms));
    *spec = next;
    Ok(())
}

/// Makes the author of a new object the owner of each field that its body says, also of one at its default: all that is said of what is new
/// is added, as by an apply.
pub fn own_said<S: Fields>(spec: &mut S, body: &Body, manager: &Manager) {
    let said = body.iter().filter(|(name, raw)| table::<S>(name).is_some() && !is_null(raw));
    for (name, _) in said {
        spec.owners().entry(name.to_owned()).or_insert_with(|| [Owner::update(manager)].into());
    }
}

/// What is wrong with the fields of a body, each looked at by itself: a person mends them at once.
pub(super) fn mistakes<S: Fields>(spec: &S, body: &Body, author: Author<'_>, names: &dyn Names) -> Vec<BodyError> {
    let of_one = |name: &str| match changed(spec, &body.only(name), author, names, 0) {
        Err(WriteError::Body(error)) => Some(error),
        Ok(_) | Err(WriteError::Conflicts(_)) => None,
    };
    body.iter().filter_map(|(name, _)| of_one(name)).collect()
}

/// The spec as a body changes it, field by field.
fn changed<S: Fields>(
    spec: &S,
    body: &Body,
    author: Author<'_>,
    names: &dyn Names,
    now_ms: u64,
) -> Result<S, WriteError> {
    let mut next = spec.clone();
    check_known::<S>(body)?;
    let mut writing = Writing { body, author, names, now_ms, conflicts: Vec::new() };
    writing.fields(&mut next, spec)?;
    if let Some(inherited) = next.inherited() {
        writing.inherited(inherited)?;
    }
    merge_labels::settle(spec, &mut next, body, author);
    maintenance::settle(spec, &mut next, body, author);
    if let Some(node) = next.node() {
        writing.node(node)?;
    }
    if !writing.conflicts.is_empty() {
        return Err(WriteError::Conflicts(veiled(writing.conflicts, spec)));
    }
    Ok(next)
}

/// Conflicts, without the values of fields that an object shows to nobody.
fn veiled<S: Fields>(mut conflicts: Vec<MapConflict>, spec: &S) -> Vec<MapConflict> {
    for one in conflicts.iter_mut().filter(|one| spec.is_veiled() && S::VEILED.contains(&one.key.as_str())) {
        one.value = Value::Null;
    }
    conflicts
}

fn check_known<S: Fields>(body: &Body) -> Result<(), BodyError> {
    let keyed = S::KEYED.iter().copied().flatten().map(|part| part.name);
    let known: Vec<&str> = S::FIELDS.iter().map(|field| field.name).chain(keyed).collect();
    match body.iter().find(|(name, _)| !known.contains(name) && !S::is_kept(name)) {
        Some((name, _)) => {
            Err(BodyError::of(BodyErrorKind::UnknownField, crate::name::cut(name), unknown(name, &known)))
        }
        None => Ok(()),
    }
}

fn unknown(name: &str, known: &[&str]) -> String {
    match name {
        "override_labels" | "override-labels" | "labels_override" => "is called merge_labels".to_owned(),
        // Ironic's clients call it so, and no manifest.
        "maintenance" if known.contains(&"parked") => "is called parked".to_owned(),
        _ => no_field("of this kind", name, known),
    }
}

/// A write that is under way: what is written, by whom, and the conflicts that were found so far.
struct Writing<'a> {
    body: &'a Body,
    author: Author<'a>,
    names: &'a dyn Names,
    now_ms: u64,
    conflicts: Vec<MapConflict>,
}

impl Writing<'_> {
    /// Writes the fields of the table and the extra ones, as one owned map of leaves.
    fn fields<S: Fields>(&mut self, next: &mut S, before: &S) -> Result<(), BodyError> {
        let mut intent: Intent<String, Value> = Intent::new();
        for (name, raw) in self.body.iter().filter(|(_, raw)| !self.leaves_out(raw)) {
            let value = read_field(next, name, raw, self.names).map_err(|error| error.within(name))?;
            // `null` of `merge_labels` leaves it open: what it is then is settled with the labels.
            if let Some(value) = value.filter(|_| name != MERGE_LABELS || !is_null(raw)) {
                intent.insert(name.to_owned(), Said::Value(value));
            }
        }
        let owned = owned_fields(before, before.owners_ref().clone(), self.names);
        if let Some(said) = merge_labels::left_open(self.body, self.author, &owned) {
            intent.insert(MERGE_LABELS.to_owned(), said);
        }
        let after = match self.author {
            Author::Apply { scope: Scope::Object, .. } | Author::Add { .. } => self.own("fields", &owned, &intent),
            Author::Apply { scope: Scope::Named, .. } => self.own_named(&owned, &intent),
            Author::Update { manager, .. } => Some(owned.patch(manager, &changes(before, &owned, intent, self.names))),
        };
        let Some(after) = after else { return Ok(()) };
        for name in before.owners_ref().keys().filter(|name| after.get(name.as_str()).is_none()) {
            reset(next, name, self.names);
        }
        *next.owners() = after.iter().map(|(name, entry)| (name.clone(), entry.owners.clone())).collect();
        Ok(())
    }

    /// Whether a field or map is left out: to an apply, `null` says no more than a name that is not there; to an update, it takes back.
    fn leaves_out(&self, raw: &RawValue) -> bool {
        is_null(raw) && !matches!(self.author, Author::Update { .. })
    }

    /// Writes the maps that go down the levels.
    fn inherited(&mut self, inherited: &mut Inherited) -> Result<(), BodyError> {
        let shape = if let Author::Update { shape, .. } = self.author { shape } else { BodyShape::Own };
        self.layer(&mut inherited.labels, "labels").map_err(|error| error.in_value_of(BodyErrorKind::Label))?;
        let provides = inherited.labels.provided.is_some();
        inherited.labels.merge = merge_after(inherited.labels.merge, None, provides, shape);
        self.layer(&mut inherited.annotations, "annotations")?;
        self.layer(&mut inherited.parameters, "parameters")?;
        check_own_annotations(inherited).map_err(|why| BodyError::new("annotations", why.to_string()))?;
        let parameters = inherited.parameters.provided.as_ref().map_or(Ok(()), check_parameters);
        parameters.map_err(|why| BodyError::new("parameters", why.to_string()))
    }

    /// Writes one map of a level.
    fn layer<K, V>(&mut self, layer: &mut Layer<K, V>, map: &'static str) -> Result<(), BodyError>
    where
        K: Ord + Clone + fmt::Display + FromStr<Err: fmt::Display>,
        V: Clone + PartialEq + FromJson + Serialize,
    {
        let Some(raw) = self.body.get(map).filter(|raw| !self.leaves_out(raw)) else {
            self.give_up_map(layer);
            return Ok(());
        };
        bound::check_keyed(map, raw, || bound::provided(layer))?;
        let written = Written::<K, V>::from_json(raw).map_err(|why| BodyError::new(why.field(map), why.reason()))?;
        let Some(Written(whole)) = written else {
            layer.provided = None;
            return Ok(());
        };
        if let Some(mut after) = self.own(map, layer.provided.as_ref().unwrap_or(&OwnedMap::default()), &whole) {
            after.stamp(self.now_ms);
            layer.provided = Some(after);
        }
        layer.check().map_err(|why| BodyError::new(map, why.to_string()))
    }

    /// Takes the manager's keys out of a map that its manifest leaves out. With the last key the map goes, as if nobody had provided it;
    /// an update leaves the map alone, and so does a manager that has no key there.
    fn give_up_map<K, V>(&self, layer: &mut Layer<K, V>)
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq,
    {
        let Some((provided, after)) = layer.provided.as_ref().and_then(|map| Some((map, self.given_up(map)?))) else {
            return;
        };
        if after != *provided {
            layer.provided = (!after.is_empty()).then_some(after);
        }
    }

    /// What is left of a map that the whole intent for an object does not name; none where the author has no such intent.
    fn given_up<K, V>(&self, owned: &OwnedMap<K, V>) -> Option<OwnedMap<K, V>>
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq,
    {
        match self.author {
            Author::Apply { manager, scope: Scope::Object, .. } => Some(owned.give_up(manager)),
            Author::Apply { scope: Scope::Named, .. } | Author::Add { .. } | Author::Update { .. } => None,
        }
    }

    /// Writes a node's traits and tags.
    fn node(&mut self, node: &mut NodeSpec) -> Result<(), BodyError> {
        for (name, kind) in [("traits", BodyErrorKind::Trait), ("tags", BodyErrorKind::Value)] {
            let Some(raw) = self.body.get(name) else { continue };
            let checked = bound::check_keyed(name, raw, || bound::keyed(&*node, name));
            checked.map_err(|error| error.in_value_of(kind))?;
        }
        if let Some(raw) = self.body.get("traits").filter(|raw| !is_null(raw)) {
            let given: Result<Vec<String>, BodyError> = read(raw);
            let given = given.map_err(|error| error.in_value_of(BodyErrorKind::Trait).within("traits"))?;
            let parse = |(at, name): (usize, &String)| {
                let wrong = |why: String| BodyError::of(BodyErrorKind::Trait, format!("traits[{at}]"), why);
                self.names.traits().parse(name).map_err(|why| wrong(why.to_string()))
            };
            let given = given.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
            self.set(&mut node.traits, "traits", Some(given));
        } else {
            self.set(&mut node.traits, "traits", None);
        }
        self.tags(&mut node.tags).map_err(|error| error.within("tags"))
    }

    /// Writes a node's tags by hand. What is said of a tag that was assigned, or unassigned, takes the place of that.
    fn tags(&mut self, tags: &mut NodeTags) -> Result<(), BodyError> {
        let stood = by_hand(tags);
        let after = match self.body.get("tags").filter(|raw| !self.leaves_out(raw)) {
            None => self.given_up(&stood),
            Some(raw) => {
                let is_update = matches!(self.author, Author::Update { .. });
                let sent = tags::read(raw, is_update)?;
                tags::check_declared(&sent, tags)?;
                self.own("tags", &stood, &tags::intent(sent, &stood, is_update))
            }
        };
        if let Some(after) = after.filter(|after| *after != stood) {
            tags::set_by_hand(tags, &after);
        }
        Ok(())
    }

    /// Writes a whole set; of one that is left out, an apply gives up its own members.
    fn set<K: Ord + Clone + fmt::Display>(
        &mut self,
        owned: &mut OwnedSet<K>,
        map: &'static str,
        whole: Option<Vec<K>>,
    ) {
        let Some(whole) = whole else {
            *owned = self.given_up(owned).unwrap_or_else(|| owned.clone());
            return;
        };
        let whole = whole.into_iter().map(|member| (member, Said::Value(()))).collect();
        if let Some(after) = self.own(map, owned, &whole) {
            *owned = after;
        }
    }

    /// What becomes of the fields when an apply names some of them; the others keep their owners.
    fn own_named(
        &mut self,
        owned: &OwnedMap<String, Value>,
        intent: &Intent<String, Value>,
    ) -> Option<OwnedMap<String, Value>> {
        let body = self.body;
        let entries = |named: bool| {
            let those = owned.iter().filter(move |(name, _)| body.says(name) == named);
            those.map(|(name, entry)| (name.clone(), entry.clone()))
        };
        let (named, others): (OwnedMap<_, _>, Vec<_>) =
            (OwnedMap::from_entries(entries(true)), entries(false).collect());
        let after = self.own("fields", &named, intent)?;
        let after = after.iter().map(|(name, entry)| (name.clone(), entry.clone()));
        Some(OwnedMap::from_entries(after.chain(others)))
    }

    /// What becomes of an owned map when the author writes a whole map of it; none where others own what would change.
    fn own<K, V>(&mut self, map: &'static str, owned: &OwnedMap<K, V>, whole: &Intent<K, V>) -> Option<OwnedMap<K, V>>
    where
        K: Ord + Clone + fmt::Display,
        V: Clone + PartialEq + Serialize,
    {
        let after = match self.author {
            Author::Apply { manager, force, adopt: Some(from), .. } => {
                owned.adopt(from, manager, whole.keys()).apply(manager, whole, force)
            }
            Author::Apply { manager, force, adopt: None, .. } => owned.apply(manager, whole, force),
            Author::Add { manager, force } => owned.add(manager, whole, force),
            Author::Update { manager, .. } => Ok(owned.update(manager, whole)),
        };
        after.map_err(|refused| self.conflicts.extend(refused.0.into_iter().map(|one| MapConflict::of(map, one)))).ok()
    }
}

/// What an update says of fields. One that stands at its default, belongs to nobody and is to stay there is not said: who resumes what was
/// never paused takes nothing. One that returns to its default is taken as one that leaves it: it is what its author says of it.
fn changes<S: Fields>(
    before: &S,
    owned: &OwnedMap<String, Value>,
    intent: Intent<String, Value>,
    names: &dyn Names,
) -> BTreeMap<String, Option<Said<Value>>> {
    let stays_at_default = |name: &str, said: &Said<Value>| {
        let at_default = said.value().filter(|value| is_default(before, name, value, names));
        at_default.is_some_and(|value| *value == value_of(before, name, names))
    };
    let is_said = |name: &str, said: &Said<Value>| owned.get(name).is_some() || !stays_at_default(name, said);
    let said = intent.into_iter().filter(|(name, said)| is_said(name, said));
    said.map(|(name, said)| (name, Some(said))).collect()
}

/// Reads a field and gives its value as it is shown, `null` at its default; `None` for a name that is owned key by key.
fn read_field<S: Fields>(
    spec: &mut S,
    name: &str,
    raw: &RawValue,
    names: &dyn Names,
) -> Result<Option<Value>, BodyError> {
    if let Some(field) = table::<S>(name) {
        let part = Part::new(field.name, field.form, field.help);
        let checked = bound::check_sent(&part, raw, || (field.show)(spec, names));
        // As of the labels of a level.
        let of_labels = |error: BodyError| error.in_value_of(BodyErrorKind::Label);
        checked.map_err(|error| if name == "labels" { of_labels(error) } else { error })?;
        (field.read)(spec, raw, names)?;
        return Ok(Some((field.show)(spec, names)));
    }
    if name == MERGE_LABELS {
        return merge_labels::read(spec, raw);
    }
    let Some(kept) = S::EXTRA.iter().find(|kept| kept.name == name) else { return Ok(None) };
    bound::check_kept(kept, raw, || spec.extra_ref().get(name).cloned().unwrap_or(Value::Null))?;
    let mut value = kept.read(read(raw)?)?;
    whole_to_integers(&mut value);
    if value.is_null() {
        spec.extra().remove(name);
    } else {
        spec.extra().insert(name.to_owned(), value.clone());
    }
    Ok(Some(value))
}

fn reset<S: Fields>(spec: &mut S, name: &str, names: &dyn Names) {
    let null = RawValue::from_string("null".to_owned()).expect("null is JSON");
    read_field(spec, name, &null, names).expect("null is every field's default");
}

fn table<S: Fields>(name: &str) -> Option<&'static Field<S>> {
    S::FIELDS.iter().find(|field| field.name == name)
}

/// A field's value as it is shown.
fn value_of<S: Fields>(spec: &S, name: &str, names: &dyn Names) -> Value {
    match table::<S>(name) {
        Some(field) => (field.show)(spec, names),
        None if name == MERGE_LABELS => merge_labels::shown(spec),
        None => spec.extra_ref().get(name).cloned().unwrap_or(Value::Null),
    }
}

/// Whether a field that is shown so is at its default: all are shown as `null` there, but for a number.
pub(super) fn is_default<S: Fields>(spec: &S, name: &str, value: &Value, names: &dyn Names) -> bool {
    if !value.is_number() {
        return value.is_null();
    }
    let mut blank = spec.clone();
    reset(&mut blank, name, names);
    value_of(&blank, name, names) == *value
}

/// The fields that someone gave, with their values of now.
pub(super) fn owned_fields<S: Fields>(spec: &S, owners: FieldOwners, names: &dyn Names) -> OwnedMap<String, Value> {
    let entry = |(name, owners): (String, _)| {
        let said = Said::Value(value_of(spec, &name, names));
        (name, Entry { said, owners, since_ms: None })
    };
    OwnedMap::from_entries(owners.into_iter().map(entry))
}

/// Checks the sum of the annotations that one object provides.
///
/// # Errors
/// [`AnnotationsTooLarge`].
pub fn check_own_annotations(inherited: &Inherited) -> Result<(), AnnotationsTooLarge> {
    let entries = inherited.annotations.provided.iter().flat_map(OwnedMap::iter);
    let texts = entries.map(|(key, entry)| (&**key, entry.said.value().map_or("", |value| &**value)));
    check_annotations(texts)
}

#[cfg(test)]
mod tests;
