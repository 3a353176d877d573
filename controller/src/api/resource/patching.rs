//! The three kinds of patches of an object: server-side apply of its maps, merge patch of its fields, and JSON patch.
//! Magnum's and Ironic's clients send JSON patches. The paths in such a patch may lead into labels and other maps,
//! whose keys are stored with their owners.

use std::collections::BTreeSet;
use std::fmt::Display;

use serde_json::{Map, Value, json};
use stemma_core::field::FieldType;
use stemma_core::inspection::apply_label_texts;
use stemma_core::labels::{BodyShape, Layer};
use stemma_core::manifest::{ApplyScope, MERGE_LABELS, SpecFields, WriteMode, update_merge_labels, write_body};
use stemma_core::object::{Inherited, Kind, NodeId, Object};
use stemma_core::ownership::Owner;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{ApiResource, read_body, to_raw_json, update};
use super::stored::non_default_fields;
use super::{operator_tags, passthrough, view, writes};
use crate::api::Api;
use crate::api::http::json::{self, BadJson, PatchBody};
use crate::api::http::patch::{BadPatch, JsonPatch, Patch, PatchOperation, PatchVerb, map_from_text};
use crate::api::http::request::{HandlerResult, HttpRequest, PatchKind};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::Caller;
use crate::registry::admit::bad_body;
use crate::registry::maps::{MapName, MapWrite};
use crate::registry::names::ModelNames;
use crate::registry::work::PendingWrite;

/// `PATCH` of an object: applies a JSON patch, a merge patch or a server-side apply. With `release_primary`, a parked
/// node also gives up its primaries.
///
/// # Errors
/// Fails if the kind of patch or a field does not allow the change, or if `release_primary` is given for a node that is
/// not parked after the patch. If another manager owns a changed key or field, a server-side apply fails unless it is
/// forced. The other patches then fail only with `force=false`.
pub(super) async fn patch<S: ApiResource>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let parameters = &request.query;
    let caller = request.caller()?;
    let force = parameters.flag("force")?.unwrap_or(false);
    let kind = request.patch_kind()?;
    if kind == PatchKind::Apply && !S::ACCEPTS_APPLY_PATCH {
        let message = format!("{} has no maps for server-side apply", S::KIND.with_article());
        let advice = "change fields with a JSON patch or a merge patch, or apply the whole object with POST /v1/apply";
        return Err(ApiError::new(ErrorType::RequestMediaType, message).detail(advice));
    }
    let releases_primary = parameters.flag("release_primary")?.unwrap_or(false);
    let parsed_patch = ParsedPatch::read(kind, S::KIND, request)?;
    let edit = |work: &PendingWrite<'_>, object: &mut Object<S>| match &parsed_patch {
        ParsedPatch::Apply(maps) => apply_maps(api, work, &mut object.spec, maps, &caller, force),
        ParsedPatch::Merge(fields) => merge(api, work, object, fields.clone(), &caller),
        ParsedPatch::Json(patch, texts) => json_patch(api, work, object, (patch.clone(), texts.clone()), request, &caller),
        ParsedPatch::BadNumber(patch, path, error) => {
            let field = patch.clone().rename_fields(S::UPSTREAM_NAMES).last_field(whole_document(api, work, object));
            // The path of the number begins at the field that the last operation changes.
            Err(error.clone().with_field(field + path).into())
        }
    };
    let answer = |model: &Model, object: &Object<S>| {
        let body = S::show(api, model, object, &request.base_url);
        match kind {
            PatchKind::Json => S::patch_answer(object, body),
            PatchKind::Merge | PatchKind::Apply => StoredAnswer::json(200, body.into()),
        }
    };
    let release = |work: &mut PendingWrite<'_>, object: &Object<S>| match object.spec.node() {
        Some(node) if releases_primary && !node.parked => Err(unparked_release_error()),
        Some(_) if releases_primary => work.release_primaries(NodeId(object.meta.uuid)),
        Some(_) | None => Ok(()),
    };
    writes::change_with(api, request, &caller, edit, release, answer).await
}

/// Returns the error for `release_primary` in a patch after which the node is not parked.
fn unparked_release_error() -> ApiError {
    let message = "release_primary needs a parked node, and this node is not parked; nothing was changed";
    let advice = "park it in the same request, or give one tag to another node: PUT /v1/clusters/{cluster}/primaries/{tag}";
    ApiError::new(ErrorType::RequestQuery, message).field("release_primary").detail(advice)
}

/// A patch that was parsed from the body of a request.
enum ParsedPatch {
    /// The body of a server-side apply: maps, and `merge_labels` if the body has it.
    Apply(Map<String, Value>),
    /// The fields of a merge patch.
    Merge(Map<String, Value>),
    /// A JSON patch. For an inspection rule there is also a second form of the patch, in which each number in the
    /// rule's actions is text. If an action sets a label to a number, the value of the label is that text.
    Json(JsonPatch, Option<JsonPatch>),
    /// A JSON patch with a number that no field can hold. The first value has the operations up to the one with the
    /// number. The text is the path of the number within the value of that operation. The field of the error is not
    /// known yet.
    BadNumber(JsonPatch, String, BadJson),
}

impl ParsedPatch {
    /// Reads a patch of this kind from the body of a request. The second form of a JSON patch has no tests, because a
    /// test with a number as text would fail.
    fn read(kind: PatchKind, object_kind: Kind, request: &HttpRequest) -> Result<Self, ApiError> {
        let read = |body| JsonPatch::read(body).map_err(|e| patch_error(&e));
        Ok(match kind {
            PatchKind::Apply => Self::Apply(request.object()?),
            PatchKind::Merge => Self::Merge(request.object()?),
            PatchKind::Json => match request.json_patch(object_kind == Kind::InspectionRule)? {
                PatchBody::Valid(body, texts) => {
                    let patch = read(body)?;
                    Self::Json(patch, texts.map(read).transpose()?.map(JsonPatch::without_tests))
                }
                PatchBody::BadNumber { operations, within, bad } => Self::BadNumber(read(operations)?, within, bad),
            },
        })
    }
}

/// Applies the maps in a body to a spec by server-side apply. The only other field that is allowed is `merge_labels`. A
/// cluster template has no such field, because no level is above it.
fn apply_maps<S: ApiResource>(
    api: &Api,
    work: &PendingWrite<'_>,
    spec: &mut S,
    maps: &Map<String, Value>,
    caller: &Caller,
    force: bool,
) -> Result<(), ApiError> {
    let is_merge = |name: &str| name == MERGE_LABELS && S::KIND != Kind::ClusterTemplate;
    if let Some(name) = maps.keys().find(|name| MapName::from_name(name).is_none() && !is_merge(name)) {
        let message = format!(
            "an apply of one object accepts labels, annotations and parameters, not {}; nothing was changed",
            quote(name)
        );
        let advice = "other fields are applied with POST /v1/apply, or changed with a merge patch";
        return Err(ApiError::new(ErrorType::FieldUnknown, message).field(name.clone()).detail(advice));
    }
    let body = read_body::<S>(maps.clone())?;
    let author = WriteMode::Apply { manager: &caller.manager, scope: ApplyScope::NamedFields, force, adopt: None };
    write_body(spec, &body, author, &ModelNames::new(&work.model, &api.traits), work.now().0).map_err(bad_body::<S>)
}

/// Applies a merge patch (RFC 7396) to the fields of an object and to the maps that the object provides.
///
/// # Errors
/// Fails with the first invalid field.
pub(super) fn merge<S: ApiResource>(
    api: &Api,
    work: &PendingWrite<'_>,
    object: &mut Object<S>,
    mut fields: Map<String, Value>,
    caller: &Caller,
) -> Result<(), ApiError> {
    object.meta.name = S::rename(object, &mut fields)?;
    S::check_fixed(&work.model, &object.spec, &fields)?;
    let mut current_fields = non_default_fields(api, &work.model, &object.spec);
    // The labels of some kinds are an ordinary field, and are in `current_fields` already. Other maps are added here.
    current_fields.extend(object.spec.inherited().into_iter().flat_map(view::provided_maps));
    let mut unchanged = Vec::new();
    for (field, change) in fields.iter_mut().filter(|(_, change)| change.is_object()) {
        if operator_tags::is_tags_field(&object.spec, field) {
            operator_tags::normalize_merge_patch(change);
            continue;
        }
        let before = current_fields.remove(field).unwrap_or(Value::Null);
        let after = merge_json(before.clone(), change);
        // A patch that removes members from a map that is not set changes nothing. Without this check the map would
        // become an empty one, which is not the same as no map.
        if before.is_null() && *change != json!({}) && after == json!({}) {
            unchanged.push(field.clone());
        }
        *change = after;
    }
    fields.retain(|field, _| !unchanged.contains(field));
    let body = read_body::<S>(fields)?;
    object.spec = update(api, work, &object.spec, &body, caller, BodyShape::Native)?;
    Ok(())
}

/// Returns a JSON value after a merge patch (RFC 7396). Members of objects are merged, and members that are `null` in
/// the patch are removed. Any other value is replaced.
pub(super) fn merge_json(current: Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut object = match current {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    for (name, change) in changes {
        let old_value = object.remove(name);
        if !change.is_null() {
            object.insert(name.clone(), merge_json(old_value.unwrap_or(Value::Null), change));
        }
    }
    Value::Object(object)
}

/// Applies a JSON patch to an object. Operations on maps are applied one by one, because the keys of maps have owners.
/// The other operations edit a document with the object's fields. The differences of that document are then applied as
/// a plain write. `texts` is the second form of the patch, in which numbers are text.
fn json_patch<S: ApiResource>(
    api: &Api,
    work: &PendingWrite<'_>,
    object: &mut Object<S>,
    (patch, texts): (JsonPatch, Option<JsonPatch>),
    request: &HttpRequest,
    caller: &Caller,
) -> Result<(), ApiError> {
    let is_add_create_only = S::IS_ADD_CREATE_ONLY && request.is_openstack_client();
    let texts = texts.map(|texts| texts.rename_fields(S::UPSTREAM_NAMES).expand(|| whole_document(api, work, object)));
    let patch =
        patch.rename_fields(S::UPSTREAM_NAMES).map_tests(|field, value| shown_value(api, work, &object.spec, field, value));
    let mut patch = patch.expand(|| whole_document(api, work, object)).map_err(|e| patch_error(&e))?;
    let old_spec = object.spec.clone();
    // The labels of some kinds are an ordinary field. The operations on them edit the document.
    let is_field = |name: &str| <S as SpecFields>::FIELDS.iter().any(|field| field.name == name);
    for map in MapName::ALL.into_iter().filter(|map| !is_field(map.name())) {
        for operation in patch.take_operations_on(map.name()) {
            if is_add_create_only {
                check_not_provided(&object.spec, map, &operation)?;
            }
            apply_map_operation::<S>(&mut object.spec, map, &operation, work, caller)?;
        }
    }
    update_merge_labels(&old_spec, &mut object.spec, Owner::update(&caller.manager));
    let mut document = non_default_fields(api, &work.model, &object.spec);
    let unset = unstored_fields(&patch, &document);
    passthrough::fill_defaults(S::PASSTHROUGH_FIELDS, &mut document);
    document.extend(S::name_fields(&object.meta.name));
    show_defaults::<S>(&patch, &mut document);
    operator_tags::add_to_document(&object.spec, &patch, &mut document);
    if is_add_create_only {
        check_not_set(&document, &patch)?;
    }
    if let Some(merge) = object.spec.inherited().and_then(|inherited| inherited.labels.merge) {
        document.insert(MERGE_LABELS.into(), merge.into());
    }
    let mut patched = patch.apply(document.clone()).map_err(|e| patch_error(&e))?;
    if let Some(texts) = texts {
        let texts = texts.and_then(|texts| texts.apply(document.clone())).map_err(|e| patch_error(&e))?;
        keep_number_texts(&mut patched, &texts)?;
    }
    let mut changes = to_merge_patch(&document, patched, &unset);
    operator_tags::write_merge_patch(&object.spec, &patch, &mut changes);
    S::check_fixed(&work.model, &object.spec, &changes)?;
    let name = S::rename(object, &mut changes)?;
    if S::IS_NAME_FIXED && name != object.meta.name {
        let message = format!("cannot change {} property(ies) name; nothing was changed", S::KIND.word());
        return Err(ApiError::new(ErrorType::FieldInvalid, message).field("name"));
    }
    object.meta.name = name;
    check_read_only::<S>(&changes)?;
    object.spec = update(api, work, &object.spec, &read_body::<S>(changes)?, caller, BodyShape::Native)?;
    Ok(())
}

/// Fields that only the controller sets, and that [`check_read_only`] refuses in a JSON patch.
const READ_ONLY_FIELDS: [&str; 3] = ["created_at", "updated_at", "links"];

/// Fails if a JSON patch sets one of the [`READ_ONLY_FIELDS`] that [`ApiResource::adapt`] removes. Other writes ignore
/// such a field, because a client may send back what it read. But a patch names the field on purpose.
fn check_read_only<S: ApiResource>(changes: &Map<String, Value>) -> Result<(), ApiError> {
    let mut adapted = changes.clone();
    S::adapt(&mut adapted)?;
    // `adapt` removes the fields that only the controller sets.
    let is_dropped = |name: &&str| changes.contains_key(*name) && !adapted.contains_key(*name);
    let Some(name) = READ_ONLY_FIELDS.iter().copied().find(is_dropped) else { return Ok(()) };
    let message = format!("only the controller sets the {name} of {}; nothing was changed", S::KIND.with_article());
    Err(ApiError::new(ErrorType::FieldUnknown, message).field(name).detail("remove it from the patch"))
}

/// Replaces the numbers in patched actions that are values of labels by their text, as a write of the whole rule does.
/// `texts` is the result of the second form of the patch, in which numbers are text. Fails if another number in the
/// actions would be rounded.
fn keep_number_texts(patched: &mut Map<String, Value>, texts: &Map<String, Value>) -> Result<(), ApiError> {
    const ACTIONS: &str = "actions";
    let Some((actions, texts)) = patched.get_mut(ACTIONS).zip(texts.get(ACTIONS)) else { return Ok(()) };
    apply_label_texts(actions, texts);
    Ok(json::check_numbers(ACTIONS, actions, texts)?)
}

/// Returns the fields that a patch sets as a whole and that are not stored. The document contains the defaults of these
/// fields, so a patch that sets a field to its default does not change the document. Such a field must be written
/// nevertheless.
fn unstored_fields(patch: &Patch, stored: &Map<String, Value>) -> BTreeSet<String> {
    let operations = patch.0.iter().filter(|operation| operation.path.len() == 1 && operation.value.is_some());
    let is_stored = |name: &String| name == "name" || stored.contains_key(name);
    operations.map(|operation| operation.path[0].clone()).filter(|name| !is_stored(name)).collect()
}

/// Returns the changes of a JSON patch as a merge patch: the fields that differ between the document and the patched
/// one. The fields in `unset` are included even if they are equal, because the patch sets them. A removed field is
/// `null`.
fn to_merge_patch(document: &Map<String, Value>, patched: Map<String, Value>, unset: &BTreeSet<String>) -> Map<String, Value> {
    let removed = document.keys().filter(|key| !patched.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let mut changes: Map<String, Value> = removed.collect();
    changes.extend(patched.into_iter().filter(|(key, value)| unset.contains(key) || document.get(key) != Some(value)));
    changes
}

/// Returns the text that the field `name` would show if `value` were written to it. A `test` operation of a JSON patch
/// compares this text. So a test of a reference to another object succeeds with the uuid as well as with the name.
/// Returns `None` if the field is not text or cannot have this value.
fn shown_value<S: ApiResource>(api: &Api, work: &PendingWrite<'_>, spec: &S, name: &str, value: &Value) -> Option<Value> {
    let field = <S as SpecFields>::FIELDS.iter().find(|field| field.name == name && field.kind.plain() == FieldType::Text)?;
    let names = ModelNames::new(&work.model, &api.traits);
    let mut next = spec.clone();
    (field.read)(&mut next, &to_raw_json(value), &names).ok()?;
    Some((field.show)(&next, &names))
}

/// Adds a value for each unset field to the document, if an operation of the patch replaces the field or changes a part
/// of it. Without a value, such an operation would fail.
fn show_defaults<S: ApiResource>(patch: &Patch, document: &mut Map<String, Value>) {
    for operation in &patch.0 {
        let name = &operation.path[0];
        let field = <S as SpecFields>::FIELDS.iter().find(|field| field.name == name);
        if operation.path.len() > 1 {
            field.map(|field| document.entry(name.clone()).or_insert_with(|| field.kind.empty_value().unwrap_or(Value::Null)));
        } else if operation.verb == PatchVerb::Replace && (name == MERGE_LABELS || field.is_some() || S::is_passthrough(name)) {
            document.entry(name.clone()).or_insert(Value::Null);
        }
    }
}

/// Returns the document for operations that read a value (test, copy and move). It contains all fields of the object
/// and the maps that the object provides.
fn whole_document<S: ApiResource>(api: &Api, work: &PendingWrite<'_>, object: &Object<S>) -> Map<String, Value> {
    let defaults =
        <S as SpecFields>::FIELDS.iter().map(|field| (field.name.to_owned(), field.kind.empty_value().unwrap_or(Value::Null)));
    let mut document: Map<String, Value> = defaults.collect();
    if let Some(inherited) = object.spec.inherited() {
        document.insert(MERGE_LABELS.into(), inherited.labels.merge.unwrap_or(false).into());
    }
    document.extend(non_default_fields(api, &work.model, &object.spec));
    document.extend(operator_tags::tags(&object.spec).map(|tags| ("tags".to_owned(), tags)));
    passthrough::fill_defaults(S::PASSTHROUGH_FIELDS, &mut document);
    document.extend(S::name_fields(&object.meta.name));
    document.extend(object.spec.inherited().into_iter().flat_map(view::provided_maps));
    document
}

/// Fails if the patch adds a field that is already set, as in Magnum.
fn check_not_set(document: &Map<String, Value>, patch: &Patch) -> Result<(), ApiError> {
    let existing = |item: &&PatchOperation| {
        item.verb == PatchVerb::Add && item.path.len() == 1 && document.get(&item.path[0]).is_some_and(|value| !value.is_null())
    };
    let error = patch.0.iter().find(existing).map(|item| patch_error(&BadPatch::AlreadySet { path: item.pointer() }));
    error.map_or(Ok(()), Err)
}

/// Fails if an operation adds a whole map that the object already provides, as in Magnum.
fn check_not_provided<S: ApiResource>(spec: &S, map: MapName, operation: &PatchOperation) -> Result<(), ApiError> {
    let is_provided = spec.inherited().is_some_and(|inherited| provided_keys(inherited, map).is_some());
    if operation.verb == PatchVerb::Add && operation.path.len() == 1 && is_provided {
        return Err(patch_error(&BadPatch::AlreadySet { path: operation.pointer() }));
    }
    Ok(())
}

/// Applies an operation of a JSON patch to a map of an object, to one key of the map, or to a part of the key's value.
/// Only what the object itself provides is changed, not what it inherits.
fn apply_map_operation<S: ApiResource>(
    spec: &mut S,
    map: MapName,
    operation: &PatchOperation,
    work: &PendingWrite<'_>,
    caller: &Caller,
) -> Result<(), ApiError> {
    let Some(inherited) = spec.inherited_mut() else {
        return Err(patch_error(&BadPatch::Missing { path: operation.pointer(), done: "changed" }));
    };
    let Some(key) = operation.path.get(1) else { return replace_map::<S>(inherited, map, operation, work, caller) };
    if operation.path.len() > 2 {
        let change = patch_key_value(inherited, map, key, operation)?;
        return map.write(inherited, MapWrite::SetKeys(&to_raw_json(&change)), &caller.manager, work.now());
    }
    let provided = provided_keys(inherited, map);
    if operation.verb != PatchVerb::Add && !provided.is_some_and(|keys| keys.contains(key)) {
        let done = if operation.verb == PatchVerb::Remove { "removed" } else { "replaced" };
        return Err(patch_error(&BadPatch::Missing { path: operation.pointer(), done }));
    }
    let change = match &operation.value {
        Some(Value::Null) => return Err(null_in_patch(map, key)),
        value => json!({key: value}),
    };
    map.write(inherited, MapWrite::SetKeys(&to_raw_json(&change)), &caller.manager, work.now())
}

/// Applies an operation to a part of the value that the object itself provides for a key (in `inherited`), such as a
/// member of a JSON parameter. Returns the key with its new value, as `{KEY: VALUE}`.
fn patch_key_value(inherited: &Inherited, map: MapName, key: &str, operation: &PatchOperation) -> Result<Value, ApiError> {
    let document: Map<String, Value> = view::provided_maps(inherited).into_iter().collect();
    let patched = Patch(vec![operation.clone()]).apply(document).map_err(|e| patch_error(&e))?;
    Ok(json!({key: patched[map.name()][key]}))
}

/// Returns whether a JSON patch may contain this map of the kind as text. Magnum's command line sends labels in this
/// way.
fn may_be_text<S: ApiResource>(map: MapName) -> bool {
    map == MapName::Labels && matches!(S::KIND, Kind::ClusterTemplate | Kind::Cluster | Kind::NodeGroup)
}

/// Applies an operation of a JSON patch to a whole map. It removes or replaces only what the object itself provides.
fn replace_map<S: ApiResource>(
    inherited: &mut Inherited,
    map: MapName,
    operation: &PatchOperation,
    work: &PendingWrite<'_>,
    caller: &Caller,
) -> Result<(), ApiError> {
    match (operation.verb, &operation.value) {
        // After a removal, or with `null` as in a merge patch, the object no longer provides the map.
        (PatchVerb::Remove, _) | (_, Some(Value::Null)) => {
            match map {
                MapName::Labels => inherited.labels.provided = None,
                MapName::Annotations => inherited.annotations.provided = None,
                MapName::Parameters => inherited.parameters.provided = None,
            }
            Ok(())
        }
        (_, Some(value)) => {
            let new_map = match value {
                Value::Object(members) => Some(members.clone()),
                Value::String(text) if may_be_text::<S>(map) => map_from_text(text),
                _ => None,
            };
            let new_map = new_map.ok_or_else(|| no_map::<S>(map, operation))?;
            if let Some((key, _)) = new_map.iter().find(|(_, value)| value.is_null()) {
                return Err(null_in_patch(map, key));
            }
            map.write(inherited, MapWrite::Replace(&to_raw_json(&new_map.into())), &caller.manager, work.now())
        }
        (_, None) => Ok(()),
    }
}

/// Returns the error for a value that is not a map.
fn no_map<S: ApiResource>(map: MapName, operation: &PatchOperation) -> ApiError {
    let or_text = if may_be_text::<S>(map) { ", or the text of one, as {'key': 'value'}" } else { "" };
    let message = format!("{} must be a map{or_text}; nothing was changed", operation.pointer());
    let kind = if map == MapName::Labels { ErrorType::LabelInvalid } else { ErrorType::FieldInvalid };
    ApiError::new(kind, message).field(map.name())
}

/// Returns the error for `null` as the value of a key in a JSON patch.
fn null_in_patch(map: MapName, key: &str) -> ApiError {
    let message =
        format!("{}.{}: null is not allowed in a JSON patch, as in Magnum; nothing was changed", map.name(), quote(key));
    let advice = format!("\"remove\" removes the key here; POST …/{}/tombstones stops it from being inherited", map.name());
    ApiError::new(ErrorType::LabelInvalid, message).field(format!("{}.{key}", map.name())).detail(advice)
}

/// Returns the keys that an object provides in a map, or `None` if it does not provide the map.
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

/// Returns the error for a patch that cannot be applied.
pub(super) fn patch_error(error: &BadPatch) -> ApiError {
    let is_test = matches!(error, BadPatch::TestFailed { .. });
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
    fn merge_json_merges_members() {
        for (current, patch, expected) in [
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null, "d": 3}}), json!({"a": {"c": 2, "d": 3}})),
            (json!({"a": [1]}), json!({"a": [2]}), json!({"a": [2]})),
            (json!(1), json!({"a": {"b": null}}), json!({"a": {}})),
        ] {
            assert_eq!(merge_json(current, &patch), expected, "{patch}");
        }
    }
}
