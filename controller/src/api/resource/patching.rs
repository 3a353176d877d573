//! The three kinds of patches of an object: server-side apply of its maps, merge patch of its fields, and JSON patch, which
//! Magnum's and Ironic's clients send and whose paths reach into maps that are stored with their owners.

use std::collections::BTreeSet;
use std::fmt::Display;

use serde_json::{Map, Value, json};
use stemma_core::field::Form;
use stemma_core::inspection::take_label_texts;
use stemma_core::labels::{BodyShape, Layer};
use stemma_core::manifest::{Author, Fields, MERGE_LABELS, Scope, settle_merge_labels, write};
use stemma_core::object::{Inherited, Kind, NodeId, Object};
use stemma_core::ownership::Owner;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{Shown, raw, read_body, update};
use super::stored::shown_fields;
use super::{by_hand, kept, view, writes};
use crate::api::Api;
use crate::api::http::json::{self, BadJson, PatchBody};
use crate::api::http::patch::{BadPatch, Operation, Patch, SentPatch, Verb, map_from_text};
use crate::api::http::request::{HandlerResult, PatchKind, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::Caller;
use crate::registry::admit::bad_body;
use crate::registry::maps::{MapName, MapWrite};
use crate::registry::names::ModelNames;
use crate::registry::work::Work;

/// `PATCH` of an object, in its three forms.
///
/// # Errors
/// What the form, the fields or the owners refuse.
pub(super) async fn patch<S: Shown>(api: &Api, request: &Request) -> HandlerResult {
    let parameters = &request.query;
    let caller = request.caller()?;
    let force = parameters.flag("force")?.unwrap_or(false);
    let kind = request.patch_kind()?;
    if kind == PatchKind::Apply && !S::IS_APPLIED_TO {
        let message = format!("{} has no maps that are applied", S::KIND.with_article());
        let advice = "change fields with a JSON patch or a merge patch, or apply the whole object with POST /v1/apply";
        return Err(ApiError::new(ErrorType::RequestMediaType, message).detail(advice));
    }
    let releases_primary = parameters.flag("release_primary")?.unwrap_or(false);
    let intent = Intent::read(kind, S::KIND, request)?;
    let edit = |work: &Work<'_>, object: &mut Object<S>| match &intent {
        Intent::Apply(maps) => apply_maps(api, work, &mut object.spec, maps, &caller, force),
        Intent::Merge(fields) => merge(api, work, object, fields.clone(), &caller),
        Intent::Json(patch, texts) => json_patch(api, work, object, (patch.clone(), texts.clone()), request, &caller),
        Intent::Unfit(until, within, bad) => {
            let field = until.clone().renamed(S::RENAMED).last_field(whole_document(api, work, object));
            Err(bad.clone().of(field + within).into())
        }
    };
    let answer = |model: &Model, object: &Object<S>| {
        let body = S::show(api, model, object, &request.base);
        match kind {
            PatchKind::Json => S::patched(object, body),
            PatchKind::Merge | PatchKind::Apply => Answer::json(200, body.into()),
        }
    };
    let release = |work: &mut Work<'_>, object: &Object<S>| match object.spec.node_ref() {
        Some(node) if releases_primary && !node.parked => Err(releases_unparked()),
        Some(_) if releases_primary => work.release_primaries(NodeId(object.meta.uuid)),
        Some(_) | None => Ok(()),
    };
    writes::change_and(api, request, &caller, edit, release, answer).await
}

/// The refusal of a release of primaries by a node that is not parked.
fn releases_unparked() -> ApiError {
    let message = "release_primary gives away what a parked node holds as primary, and this node is not parked; nothing was changed";
    let advice =
        "park it in the same request, or give one tag to another node: PUT /v1/clusters/{cluster}/primaries/{tag}";
    ApiError::new(ErrorType::RequestQuery, message).field("release_primary").detail(advice)
}

/// A patch, read.
enum Intent {
    Apply(Map<String, Value>),
    Merge(Map<String, Value>),
    /// A JSON patch; of a rule also the same with the texts of numbers in actions, which may be labels'.
    Json(SentPatch, Option<SentPatch>),
    /// A JSON patch with a number that no field holds: the operations up to that one, the place in its value, and the refusal, which names the field.
    Unfit(SentPatch, String, BadJson),
}

impl Intent {
    fn read(kind: PatchKind, of: Kind, request: &Request) -> Result<Self, ApiError> {
        let read = |body| SentPatch::read(body).map_err(|e| bad_patch(&e));
        Ok(match kind {
            PatchKind::Apply => Self::Apply(request.object()?),
            PatchKind::Merge => Self::Merge(request.object()?),
            PatchKind::Json => match request.json_patch(of == Kind::InspectionRule)? {
                PatchBody::Read(said, texts) => {
                    let said = read(said)?;
                    Self::Json(said, texts.map(read).transpose()?.map(SentPatch::without_tests))
                }
                PatchBody::Unfit { operations, within, bad } => Self::Unfit(read(operations)?, within, bad),
            },
        })
    }
}

/// Server-side apply of the maps that the body names, and no other field.
fn apply_maps<S: Shown>(
    api: &Api,
    work: &Work<'_>,
    spec: &mut S,
    maps: &Map<String, Value>,
    caller: &Caller,
    force: bool,
) -> Result<(), ApiError> {
    let is_merge = |name: &str| name == MERGE_LABELS && S::KIND != Kind::ClusterTemplate;
    if let Some(name) = maps.keys().find(|name| MapName::named(name).is_none() && !is_merge(name)) {
        let message = format!(
            "an apply of an object names labels, annotations and parameters, not {}; nothing was changed",
            quote(name)
        );
        let advice = "other fields are applied with POST /v1/apply, or changed with a merge patch";
        return Err(ApiError::new(ErrorType::FieldUnknown, message).field(name.clone()).detail(advice));
    }
    let body = read_body::<S>(maps.clone())?;
    let author = Author::Apply { manager: &caller.manager, scope: Scope::Named, force, adopt: None };
    write(spec, &body, author, &ModelNames::new(&work.model, &api.traits), work.now().0).map_err(bad_body::<S>)
}

/// RFC 7396, of all fields that the patch names, maps that go down the levels included.
///
/// # Errors
/// What is wrong with the first field.
pub(super) fn merge<S: Shown>(
    api: &Api,
    work: &Work<'_>,
    object: &mut Object<S>,
    mut fields: Map<String, Value>,
    caller: &Caller,
) -> Result<(), ApiError> {
    object.meta.name = S::rename(object, &mut fields)?;
    S::check_fixed(&work.model, &object.spec, &fields)?;
    let mut present = shown_fields(api, &work.model, &object.spec);
    // Of a kind whose labels are a field as others are, that stands there already.
    present.extend(object.spec.inherited_ref().into_iter().flat_map(view::provided_maps));
    let mut idle = Vec::new();
    for (field, change) in fields.iter_mut().filter(|(_, change)| change.is_object()) {
        if by_hand::is_tags(&object.spec, field) {
            by_hand::merge(change);
            continue;
        }
        let before = present.remove(field).unwrap_or(Value::Null);
        let after = merged(before.clone(), change);
        // What takes members away where nothing is changes nothing: an empty map is not the same as none.
        if before.is_null() && *change != json!({}) && after == json!({}) {
            idle.push(field.clone());
        }
        *change = after;
    }
    fields.retain(|field, _| !idle.contains(field));
    let body = read_body::<S>(fields)?;
    object.spec = update(api, work, &object.spec, &body, caller, BodyShape::Own)?;
    Ok(())
}

/// RFC 7396: members are merged, `null` takes one away, anything else replaces.
pub(super) fn merged(present: Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut object = match present {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    for (name, change) in changes {
        let before = object.remove(name);
        if !change.is_null() {
            object.insert(name.clone(), merged(before.unwrap_or(Value::Null), change));
        }
    }
    Value::Object(object)
}

fn json_patch<S: Shown>(
    api: &Api,
    work: &Work<'_>,
    object: &mut Object<S>,
    (patch, texts): (SentPatch, Option<SentPatch>),
    request: &Request,
    caller: &Caller,
) -> Result<(), ApiError> {
    let adds_new = S::ADD_IS_NEW && request.is_of_openstack();
    let texts = texts.map(|texts| texts.renamed(S::RENAMED).written_out(|| whole_document(api, work, object)));
    let patch = patch.renamed(S::RENAMED).tested_as(|field, value| as_shown(api, work, &object.spec, field, value));
    let mut patch = patch.written_out(|| whole_document(api, work, object)).map_err(|e| bad_patch(&e))?;
    let before = object.spec.clone();
    // Labels that are a field as others are stay in the document.
    let is_field = |name: &str| <S as Fields>::FIELDS.iter().any(|field| field.name == name);
    for map in MapName::ALL.into_iter().filter(|map| !is_field(map.name())) {
        for operation in patch.split(map.name()) {
            if adds_new {
                refuse_provided(&object.spec, map, &operation)?;
            }
            map_operation::<S>(&mut object.spec, map, &operation, work, caller)?;
        }
    }
    settle_merge_labels(&before, &mut object.spec, Owner::update(&caller.manager));
    let mut document = shown_fields(api, &work.model, &object.spec);
    let said = said_alone(&patch, &document);
    kept::fill(S::EXTRA, &mut document);
    document.extend(S::named(&object.meta.name));
    show_defaults::<S>(&patch, &mut document);
    by_hand::show(&object.spec, &patch, &mut document);
    if adds_new {
        refuse_existing(&document, &patch)?;
    }
    if let Some(merge) = object.spec.inherited_ref().and_then(|own| own.labels.merge) {
        document.insert(MERGE_LABELS.into(), merge.into());
    }
    let mut patched = patch.apply(document.clone()).map_err(|e| bad_patch(&e))?;
    if let Some(texts) = texts {
        let texts = texts.and_then(|texts| texts.apply(document.clone())).map_err(|e| bad_patch(&e))?;
        keep_number_texts(&mut patched, &texts)?;
    }
    let mut changes = changes_of(&document, patched, &said);
    by_hand::settle(&object.spec, &patch, &mut changes);
    S::check_fixed(&work.model, &object.spec, &changes)?;
    let name = S::rename(object, &mut changes)?;
    if S::KEEPS_NAME && name != object.meta.name {
        let message = format!("cannot change {} property(ies) name; nothing was changed", S::KIND.word());
        return Err(ApiError::new(ErrorType::FieldInvalid, message).field("name"));
    }
    object.meta.name = name;
    refuse_dropped::<S>(&changes)?;
    object.spec = update(api, work, &object.spec, &read_body::<S>(changes)?, caller, BodyShape::Own)?;
    Ok(())
}

/// What the controller alone says of each object.
const SAID_ALONE: [&str; 3] = ["created_at", "updated_at", "links"];

/// Refuses what the controller alone says of an object. A body that was read before may have it, and it is left out of that; an operation
/// names it by itself.
fn refuse_dropped<S: Shown>(changes: &Map<String, Value>) -> Result<(), ApiError> {
    let mut taken = changes.clone();
    S::adapt(&mut taken)?;
    let is_dropped = |name: &&str| changes.contains_key(*name) && !taken.contains_key(*name);
    let Some(name) = SAID_ALONE.iter().copied().find(is_dropped) else { return Ok(()) };
    let message = format!("the controller alone says the {name} of {}; nothing was changed", S::KIND.with_article());
    Err(ApiError::new(ErrorType::FieldUnknown, message).field(name).detail("take it out of the patch"))
}

/// Gives the labels of patched actions the texts of their numbers, as a write of the whole rule would.
fn keep_number_texts(patched: &mut Map<String, Value>, texts: &Map<String, Value>) -> Result<(), ApiError> {
    const ACTIONS: &str = "actions";
    let Some((actions, texts)) = patched.get_mut(ACTIONS).zip(texts.get(ACTIONS)) else { return Ok(()) };
    take_label_texts(actions, texts);
    Ok(json::check_numbers(ACTIONS, actions, texts)?)
}

/// The fields that a patch sets as a whole and that are not stored: what they are shown with until then may be what is said.
fn said_alone(patch: &Patch, stored: &Map<String, Value>) -> BTreeSet<String> {
    let whole = patch.0.iter().filter(|operation| operation.path.len() == 1 && operation.value.is_some());
    let is_stored = |name: &String| name == "name" || stored.contains_key(name);
    whole.map(|operation| operation.path[0].clone()).filter(|name| !is_stored(name)).collect()
}

/// What a patch says, as a merge patch of the fields would.
fn changes_of(
    document: &Map<String, Value>,
    patched: Map<String, Value>,
    said: &BTreeSet<String>,
) -> Map<String, Value> {
    let removed = document.keys().filter(|key| !patched.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let mut changes: Map<String, Value> = removed.collect();
    changes.extend(patched.into_iter().filter(|(key, value)| said.contains(key) || document.get(key) != Some(value)));
    changes
}

/// A text of a field as that shows it once it is written: a reference is tested by uuid as by name.
fn as_shown<S: Shown>(api: &Api, work: &Work<'_>, spec: &S, name: &str, value: &Value) -> Option<Value> {
    let field = <S as Fields>::FIELDS.iter().find(|field| field.name == name && field.form.plain() == Form::Text)?;
    let names = ModelNames::new(&work.model, &api.traits);
    let mut read = spec.clone();
    (field.read)(&mut read, &raw(value), &names).ok()?;
    Some((field.show)(&read, &names))
}

/// Shows those fields at their default that a patch replaces, or whose members and items it adds.
fn show_defaults<S: Shown>(patch: &Patch, document: &mut Map<String, Value>) {
    for operation in &patch.0 {
        let name = &operation.path[0];
        let field = <S as Fields>::FIELDS.iter().find(|field| field.name == name);
        if operation.path.len() > 1 {
            field
                .map(|field| document.entry(name.clone()).or_insert_with(|| field.form.empty().unwrap_or(Value::Null)));
        } else if operation.verb == Verb::Replace && (name == MERGE_LABELS || field.is_some() || S::is_kept(name)) {
            document.entry(name.clone()).or_insert(Value::Null);
        }
    }
}

/// What a patch can test, copy and move: all fields, and the maps as they are provided here.
fn whole_document<S: Shown>(api: &Api, work: &Work<'_>, object: &Object<S>) -> Map<String, Value> {
    let defaults =
        <S as Fields>::FIELDS.iter().map(|field| (field.name.to_owned(), field.form.empty().unwrap_or(Value::Null)));
    let mut document: Map<String, Value> = defaults.collect();
    if let Some(inherited) = object.spec.inherited_ref() {
        document.insert(MERGE_LABELS.into(), inherited.labels.merge.unwrap_or(false).into());
    }
    document.extend(shown_fields(api, &work.model, &object.spec));
    document.extend(by_hand::tags(&object.spec).map(|tags| ("tags".to_owned(), tags)));
    kept::fill(S::EXTRA, &mut document);
    document.extend(S::named(&object.meta.name));
    document.extend(object.spec.inherited_ref().into_iter().flat_map(view::provided_maps));
    document
}

fn refuse_existing(document: &Map<String, Value>, patch: &Patch) -> Result<(), ApiError> {
    let existing = |o: &&Operation| {
        o.verb == Verb::Add && o.path.len() == 1 && document.get(&o.path[0]).is_some_and(|v| !v.is_null())
    };
    let refused = patch.0.iter().find(existing).map(|o| bad_patch(&BadPatch::Existing { path: o.pointer() }));
    refused.map_or(Ok(()), Err)
}

/// The same of a map that goes down the levels.
fn refuse_provided<S: Shown>(spec: &S, map: MapName, operation: &Operation) -> Result<(), ApiError> {
    let is_provided = spec.inherited_ref().is_some_and(|own| provided_keys(own, map).is_some());
    if operation.verb == Verb::Add && operation.path.len() == 1 && is_provided {
        return Err(bad_patch(&BadPatch::Existing { path: operation.pointer() }));
    }
    Ok(())
}

/// An operation on a map, on one of its keys, or on what stands in the value of one. All are what is provided here.
fn map_operation<S: Shown>(
    spec: &mut S,
    map: MapName,
    operation: &Operation,
    work: &Work<'_>,
    caller: &Caller,
) -> Result<(), ApiError> {
    let Some(inherited) = spec.inherited() else {
        return Err(bad_patch(&BadPatch::Missing { path: operation.pointer(), done: "changed" }));
    };
    let Some(key) = operation.path.get(1) else { return whole_map::<S>(inherited, map, operation, work, caller) };
    if operation.path.len() > 2 {
        let change = within_value(inherited, map, key, operation)?;
        return map.write(inherited, MapWrite::Keys(&raw(&change)), &caller.manager, work.now());
    }
    let provided = provided_keys(inherited, map);
    if operation.verb != Verb::Add && !provided.is_some_and(|keys| keys.contains(key)) {
        let done = if operation.verb == Verb::Remove { "removed" } else { "replaced" };
        return Err(bad_patch(&BadPatch::Missing { path: operation.pointer(), done }));
    }
    let change = match &operation.value {
        Some(Value::Null) => return Err(null_in_patch(map, key)),
        value => json!({key: value}),
    };
    map.write(inherited, MapWrite::Keys(&raw(&change)), &caller.manager, work.now())
}

/// What an operation on a part of a key's value makes of that key.
fn within_value(inherited: &Inherited, map: MapName, key: &str, operation: &Operation) -> Result<Value, ApiError> {
    let document: Map<String, Value> = view::provided_maps(inherited).into_iter().collect();
    let patched = Patch(vec![operation.clone()]).apply(document).map_err(|e| bad_patch(&e))?;
    Ok(json!({key: patched[map.name()][key]}))
}

/// Whether a map of this kind may come as the text of one: so Magnum's command line writes labels.
fn comes_as_text<S: Shown>(map: MapName) -> bool {
    map == MapName::Labels && matches!(S::KIND, Kind::ClusterTemplate | Kind::Cluster | Kind::NodeGroup)
}

fn whole_map<S: Shown>(
    inherited: &mut Inherited,
    map: MapName,
    operation: &Operation,
    work: &Work<'_>,
    caller: &Caller,
) -> Result<(), ApiError> {
    match (operation.verb, &operation.value) {
        // As `null` of a merge patch.
        (Verb::Remove, _) | (_, Some(Value::Null)) => {
            match map {
                MapName::Labels => inherited.labels.provided = None,
                MapName::Annotations => inherited.annotations.provided = None,
                MapName::Parameters => inherited.parameters.provided = None,
            }
            Ok(())
        }
        (_, Some(value)) => {
            let whole = match value {
                Value::Object(whole) => Some(whole.clone()),
                Value::String(text) if comes_as_text::<S>(map) => map_from_text(text),
                _ => None,
            };
            let whole = whole.ok_or_else(|| no_map::<S>(map, operation))?;
            if let Some((key, _)) = whole.iter().find(|(_, value)| value.is_null()) {
                return Err(null_in_patch(map, key));
            }
            map.write(inherited, MapWrite::Replace(&raw(&whole.into())), &caller.manager, work.now())
        }
        (_, None) => Ok(()),
    }
}

fn no_map<S: Shown>(map: MapName, operation: &Operation) -> ApiError {
    let or_text = if comes_as_text::<S>(map) { ", or the text of one, as {'key': 'value'}" } else { "" };
    let message = format!("{} takes a map{or_text}; nothing was changed", operation.pointer());
    let kind = if map == MapName::Labels { ErrorType::LabelInvalid } else { ErrorType::FieldInvalid };
    ApiError::new(kind, message).field(map.name())
}

fn null_in_patch(map: MapName, key: &str) -> ApiError {
    let message = format!(
        "{}.{}: null is not taken in a JSON patch, as in Magnum's; nothing was changed",
        map.name(),
        quote(key)
    );
    let advice =
        format!("\"remove\" takes the key away here; POST …/{}/tombstones stops it from being inherited", map.name());
    ApiError::new(ErrorType::LabelInvalid, message).field(format!("{}.{key}", map.name())).detail(advice)
}

fn provided_keys(inherited: &Inherited, map: MapName) -> Option<Vec<String>> {
    fn keys<K: Ord + Clone + Display, V: Clone>(layer: &Layer<K, V>) -> Option<Vec<String>> {
        Some(layer.provided.as_ref()?.iter().map(|(key, _)| key.to_string()).collect())
    }
    match map {
        MapName::Labels => keys(&inherited.labels),
        MapName::Annotations => keys(&inherited.annotations),
        MapName::Parameters => keys(&inherited.parameters),
    }
}

/// The refusal of a patch.
pub(super) fn bad_patch(error: &BadPatch) -> ApiError {
    let is_test = matches!(error, BadPatch::Differs { .. });
    let kind = if is_test { ErrorType::PreconditionFailed } else { ErrorType::FieldInvalid };
    let refusal = ApiError::new(kind, format!("{error}; nothing was changed"));
    match error.field() {
        Some(field) => refusal.field(field),
        None => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_patch_merges_members() {
        for (present, patch, expected) in [
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null, "d": 3}}), json!({"a": {"c": 2, "d": 3}})),
            (json!({"a": [1]}), json!({"a": [2]}), json!({"a": [2]})),
            (json!(1), json!({"a": {"b": null}}), json!({"a": {}})),
        ] {
            assert_eq!(merged(present, &patch), expected, "{patch}");
        }
    }
}
