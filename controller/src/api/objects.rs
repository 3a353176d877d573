//! What the kinds have in common over HTTP: creating, the three kinds of patches, the calls of a map of its own,
//! lists. A kind says how it is found, what it looks like and what stands above it; the rest is here, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{Author, Body, Fields, write};
use stemma_core::object::{Inherited, Object};
use stemma_core::origin::Level;
use stemma_core::ownership::Party;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::patch::{BadPatch, Operation, Patch, Verb, map_from_text};
use super::query::{Page, Parameters};
use super::request::{Outcome, PatchKind, Reply, Request, bad_query};
use super::{Api, kept, view};
use crate::cache::Model;
use crate::registry::admit::{Admitted, bad_body, bad_field};
use crate::registry::maps::{MapName, MapWrite};
use crate::registry::names::ModelNames;
use crate::registry::work::{Work, Written, check_presumed};
use crate::registry::{Answer, Caller};

/// A kind as it stands in the API.
pub(super) trait Shown: Admitted + Fields {
    /// Its level of inheritance; none for one that stands on none.
    const LEVEL: Option<Level>;
    /// The object that a request's path names.
    ///
    /// # Errors
    /// That there is none.
    fn locate(model: &Model, request: &Request) -> Result<Arc<Object<Self>>, ApiError>;
    /// What it looks like, whole.
    fn show(api: &Api, model: &Model, object: &Object<Self>, base: &str) -> Map<String, Value>;
    /// What stands above its level.
    fn above(_model: &Model, _spec: &Self) -> Vec<(Level, Inherited)> {
        Vec::new()
    }
    /// The path of the object below `/v1/`.
    fn path(object: &Object<Self>) -> String;
    /// Checks what stands beside the store: that the file bodies are there which it names.
    ///
    /// # Errors
    /// The first one that was not sent.
    fn check_bodies(_api: &Api, _spec: &Self) -> Result<(), ApiError> {
        Ok(())
    }
    /// Whether any host stands at or below it.
    fn has_hosts(_model: &Model, _object: &Object<Self>) -> bool {
        false
    }
    /// Brings a body of the upstream's into our own fields' names.
    ///
    /// # Errors
    /// A field that may not be written so.
    fn adapt(_body: &mut Map<String, Value>) -> Result<(), ApiError> {
        Ok(())
    }
    /// What a JSON patch answers; the object itself unless its upstream answers otherwise.
    fn patched(_object: &Object<Self>, body: Map<String, Value>) -> Answer {
        Answer::json(200, body.into())
    }
    /// What the object is called without a name.
    ///
    /// # Errors
    /// That it needs one.
    fn no_name() -> Result<Self::Name, ApiError> {
        Err(ApiError::new(ErrorType::FieldMissing, format!("a {} needs a name", Self::KIND.word())).field("name"))
    }
    /// Whether `add` on an attribute that is set is refused (as Magnum).
    const ADD_IS_NEW: bool = false;
    /// Whether a JSON patch can't rename it (as Magnum).
    const KEEPS_NAME: bool = false;
}

/// Reads the parameters of a write: who writes.
pub(super) fn caller(request: &Request) -> Result<Caller, ApiError> {
    let parameters = request.query(&[&["manager"]])?;
    request.caller(parameters.one("manager").map_err(bad_query)?)
}

/// Reads a body's fields, of our own or the upstream's names.
///
/// # Errors
/// What is wrong with the first of them.
pub(super) fn read_body<S: Shown>(mut body: Map<String, Value>) -> Result<Body, ApiError> {
    S::adapt(&mut body)?;
    kept::check(S::KIND, &mut body)?;
    Body::parse(&Value::Object(body).to_string()).map_err(|e| bad_field(S::KIND, &e))
}

/// Lays a body over a spec, as a plain write.
///
/// # Errors
/// What is wrong with the first field.
pub(super) fn update<S: Shown>(
    api: &Api,
    work: &Work<'_>,
    spec: &S,
    body: &Body,
    caller: &Caller,
    shape: BodyShape,
) -> Result<S, ApiError> {
    let mut next = spec.clone();
    let author = Author::Update { manager: &caller.manager, shape };
    write(&mut next, body, author, &ModelNames::new(&work.model, &api.traits), work.now().0).map_err(bad_body::<S>)?;
    S::check_bodies(api, &next)?;
    Ok(next)
}

/// Makes an object of a body.
///
/// # Errors
/// What is wrong with it; that its name is taken.
pub(super) fn create<S: Shown>(api: &Api, work: &mut Work<'_>, new: New<'_, S>) -> Result<Written<S>, ApiError> {
    let spec = update(api, work, &new.spec, new.body, new.caller, new.shape)?;
    work.create(new.uuid, new.name, spec)
}

/// An object to be made.
pub(super) struct New<'a, S: Shown> {
    /// Its uuid.
    pub uuid: Uuid,
    /// Its name.
    pub name: S::Name,
    /// What it is before its body is laid over it.
    pub spec: S,
    /// Its fields.
    pub body: &'a Body,
    /// Who makes it.
    pub caller: &'a Caller,
    /// What `merge_labels` left out means.
    pub shape: BodyShape,
}

/// `GET` of one object.
///
/// # Errors
/// That there is none.
pub(super) fn get<S: Shown>(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let model = api.cache().model();
    let object = S::locate(&model, request)?;
    Ok(Reply::ok(S::show(api, &model, &object, &request.base).into()).tagged(object.meta.resource_version))
}

/// `PATCH` of an object, in its three forms.
///
/// # Errors
/// What the form, the fields or the owners refuse.
pub(super) async fn patch<S: Shown>(api: &Api, request: &Request) -> Outcome {
    let parameters = request.query(&[&["manager", "force"]])?;
    let caller = request.caller(parameters.one("manager").map_err(bad_query)?)?;
    let force = parameters.flag("force").map_err(bad_query)?.unwrap_or(false);
    let (kind, presumed) = (request.patch_kind()?, request.presumed()?);
    let intent = Intent::read(kind, request)?;
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let before = S::locate(&work.model, request)?;
        check_presumed(&before, presumed)?;
        let (name, spec) = match &intent {
            Intent::Apply(maps) => {
                (before.meta.name.clone(), apply_maps(api, &work, &before.spec, maps, &caller, force)?)
            }
            Intent::Merge(fields) => merge(api, &work, &before, fields.clone(), &caller)?,
            Intent::Json(patch) => json_patch(api, &work, &before, patch.clone(), &caller)?,
        };
        let warning = lost(&work.model, &before, &spec);
        let written = work.update(&before, name, spec)?;
        let body = S::show(api, &work.model, &written.object, &request.base);
        let mut answer = match kind {
            PatchKind::Json => S::patched(&written.object, body),
            PatchKind::Merge | PatchKind::Apply => Answer::json(200, body.into()),
        };
        answer.warning = warning;
        work.finish(answer)
    });
    Ok(Reply::written(answer.await?, &request.base))
}

/// A patch, read.
enum Intent {
    Apply(BTreeMap<String, Value>),
    Merge(Map<String, Value>),
    Json(Patch),
}

impl Intent {
    fn read(kind: PatchKind, request: &Request) -> Result<Self, ApiError> {
        Ok(match kind {
            PatchKind::Apply => Self::Apply(request.object()?.into_iter().collect()),
            PatchKind::Merge => Self::Merge(request.object()?),
            PatchKind::Json => Self::Json(Patch::read(request.json()?).map_err(|e| bad_patch(&e))?),
        })
    }
}

/// Server-side apply of the maps that the body names, and no other field.
fn apply_maps<S: Shown>(
    api: &Api,
    work: &Work<'_>,
    spec: &S,
    maps: &BTreeMap<String, Value>,
    caller: &Caller,
    force: bool,
) -> Result<S, ApiError> {
    let mut named = Map::new();
    for (name, map) in maps {
        if MapName::named(name).is_none() && name != "merge_labels" {
            let message =
                format!("an apply of an object names labels, annotations and parameters, not {}", quote(name));
            let advice = "other fields are applied with POST /v1/apply, or changed with a merge patch";
            return Err(ApiError::new(ErrorType::FieldUnknown, message).field(name.clone()).detail(advice));
        }
        named.insert(name.clone(), map.clone());
    }
    let mut next = spec.clone();
    if next.inherited().is_none() {
        let body = read_body::<S>(named)?;
        let author = Author::Apply { manager: &caller.manager, force };
        write(&mut next, &body, author, &ModelNames::new(&work.model, &api.traits), work.now().0)
            .map_err(bad_body::<S>)?;
        return Ok(next);
    }
    for (name, map) in named.iter().filter(|(_, map)| !map.is_null()) {
        if let (Some(map_name), Some(inherited)) = (MapName::named(name), next.inherited()) {
            let raw = raw(map);
            map_name.write(inherited, MapWrite::Apply { map: &raw, force }, &caller.manager, work.now())?;
        }
    }
    Ok(next)
}

type Next<S> = (<S as stemma_core::object::Spec>::Name, S);

fn merge<S: Shown>(
    api: &Api,
    work: &Work<'_>,
    before: &Object<S>,
    mut fields: Map<String, Value>,
    caller: &Caller,
) -> Result<Next<S>, ApiError> {
    let name = take_name::<S>(before, &mut fields)?;
    let present = shown_fields(api, work, &before.spec);
    for (field, change) in &mut fields {
        if change.is_object() && MapName::named(field).is_none() {
            let old = present.get(field).cloned().unwrap_or(Value::Null);
            *change = merged(old, change);
        }
    }
    let body = read_body::<S>(fields)?;
    Ok((name, update(api, work, &before.spec, &body, caller, BodyShape::Own)?))
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
    before: &Object<S>,
    mut patch: Patch,
    caller: &Caller,
) -> Result<Next<S>, ApiError> {
    let mut next = before.spec.clone();
    for map in MapName::ALL {
        for operation in patch.split(map.name()) {
            map_operation::<S>(&mut next, map, &operation, work, caller)?;
        }
    }
    let mut document = shown_fields(api, work, &next);
    kept::fill(S::KIND, &mut document);
    document.insert("name".into(), S::name_text(&before.meta.name).into());
    let mut patched = document.clone();
    if S::ADD_IS_NEW {
        refuse_existing(&document, &patch)?;
    }
    patch.apply(&mut patched).map_err(|e| bad_patch(&e))?;
    let removed = document.keys().filter(|key| !patched.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let mut changes: Map<String, Value> = removed.collect();
    changes.extend(patched.into_iter().filter(|(key, value)| document.get(key) != Some(value)));
    let name = take_name::<S>(before, &mut changes)?;
    if S::KEEPS_NAME && name != before.meta.name {
        let message = format!("cannot change {} property(ies) name.", S::KIND.word());
        return Err(ApiError::new(ErrorType::FieldInvalid, message).field("name"));
    }
    let body = read_body::<S>(changes)?;
    Ok((name, update(api, work, &next, &body, caller, BodyShape::Own)?))
}

fn refuse_existing(document: &Map<String, Value>, patch: &Patch) -> Result<(), ApiError> {
    let existing = |o: &&Operation| {
        o.verb == Verb::Add && o.path.len() == 1 && document.get(&o.path[0]).is_some_and(|v| !v.is_null())
    };
    let refused = patch.0.iter().find(existing).map(|o| bad_patch(&BadPatch::Existing { path: o.pointer() }));
    refused.map_or(Ok(()), Err)
}

/// An operation on a map or on one of its keys, which are what is provided here.
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
    let provided = provided_keys(inherited, map);
    let key = match operation.path.as_slice() {
        [_] => return whole_map(inherited, map, operation, provided.is_some(), work, caller),
        [_, key] => key,
        _ => return Err(bad_patch(&BadPatch::NoContainer { path: operation.pointer() })),
    };
    if operation.verb != Verb::Add && !provided.is_some_and(|keys| keys.contains(key)) {
        let done = if operation.verb == Verb::Remove { "removed" } else { "replaced" };
        return Err(bad_patch(&BadPatch::Missing { path: operation.pointer(), done }));
    }
    let change = match &operation.value {
        Some(Value::Null) => return Err(null_in_patch(map, key)),
        value => json!({key: value}),
    };
    map.write(inherited, MapWrite::Merge(&raw(&change)), &caller.manager, work.now())
}

fn whole_map(
    inherited: &mut Inherited,
    map: MapName,
    operation: &Operation,
    provided: bool,
    work: &Work<'_>,
    caller: &Caller,
) -> Result<(), ApiError> {
    match (operation.verb, &operation.value) {
        (Verb::Add, _) if provided => Err(bad_patch(&BadPatch::Existing { path: operation.pointer() })),
        (Verb::Remove, _) => {
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
                Value::String(text) => map_from_text(text),
                _ => None,
            };
            let whole = whole.ok_or_else(|| {
                let message = format!("{} takes a map, or the text of one, as {{'key': 'value'}}", operation.pointer());
                ApiError::new(ErrorType::FieldInvalid, message).field(map.name())
            })?;
            if let Some((key, _)) = whole.iter().find(|(_, value)| value.is_null()) {
                return Err(null_in_patch(map, key));
            }
            map.write(inherited, MapWrite::Replace(&raw(&whole.into())), &caller.manager, work.now())
        }
        (_, None) => Ok(()),
    }
}

fn null_in_patch(map: MapName, key: &str) -> ApiError {
    let message = format!("{}.{}: null is not taken in a JSON patch, as in Magnum's", map.name(), quote(key));
    let advice =
        format!("\"remove\" takes the key away here; POST …/{}/tombstones stops it from being inherited", map.name());
    ApiError::new(ErrorType::LabelInvalid, message).field(format!("{}.{key}", map.name())).detail(advice)
}

fn provided_keys(inherited: &Inherited, map: MapName) -> Option<Vec<String>> {
    match map {
        MapName::Labels => inherited.labels.provided.as_ref().map(|m| m.iter().map(|(k, _)| k.to_string()).collect()),
        MapName::Annotations => {
            inherited.annotations.provided.as_ref().map(|m| m.iter().map(|(k, _)| k.to_string()).collect())
        }
        MapName::Parameters => {
            inherited.parameters.provided.as_ref().map(|m| m.iter().map(|(k, _)| k.to_string()).collect())
        }
    }
}

/// The fields of a spec as a body would say them, those at their defaults left out.
pub(super) fn shown_fields<S: Fields>(api: &Api, work: &Work<'_>, spec: &S) -> Map<String, Value> {
    fields_of(spec, &ModelNames::new(&work.model, &api.traits))
}

/// The same, by any names.
pub(super) fn fields_of<S: Fields>(spec: &S, names: &ModelNames<'_>) -> Map<String, Value> {
    let shown = S::FIELDS.iter().map(|field| (field.name.to_owned(), (field.show)(spec, names)));
    let mut fields: Map<String, Value> = shown.filter(|(_, value)| !value.is_null()).collect();
    if !S::EXTRA.is_empty() {
        fields.extend(spec.extra_ref().clone());
    }
    fields
}

fn take_name<S: Shown>(before: &Object<S>, fields: &mut Map<String, Value>) -> Result<S::Name, ApiError> {
    match fields.remove("name") {
        None => Ok(before.meta.name.clone()),
        Some(Value::String(text)) => S::parse_name(&text),
        Some(Value::Null) => S::no_name(),
        Some(_) => Err(ApiError::new(ErrorType::FieldInvalid, "a name is a text").field("name")),
    }
}

/// The calls of a map of its own: what is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapCall {
    /// `PUT`.
    Replace,
    /// `PATCH`.
    Merge,
    /// `POST …/tombstones`.
    Tombstones,
    /// `POST …/owners`.
    Owners,
}

/// What a call of a map says, read.
enum MapBody {
    Replace(Box<RawValue>),
    Merge(Box<RawValue>),
    Stop(Vec<String>),
    HandOver { from: Party, to: Party, keys: Vec<String> },
}

impl MapBody {
    fn read(call: MapCall, map: MapName, request: &Request) -> Result<Self, ApiError> {
        let mut body = request.object()?;
        Ok(match call {
            MapCall::Replace => Self::Replace(raw(&wrapped(&mut body, map)?)),
            MapCall::Merge => match body.len() {
                1 if body.get(map.name()).is_some_and(Value::is_object) => Self::Merge(raw(&wrapped(&mut body, map)?)),
                _ => Self::Merge(raw(&body.into())),
            },
            MapCall::Tombstones => Self::Stop(take_keys(&mut body)?),
            MapCall::Owners => Self::HandOver {
                from: take_party(&mut body, "from")?,
                to: take_party(&mut body, "to")?,
                keys: take_keys(&mut body)?,
            },
        })
    }

    fn as_write(&self) -> MapWrite<'_> {
        match self {
            Self::Replace(map) => MapWrite::Replace(map),
            Self::Merge(map) => MapWrite::Merge(map),
            Self::Stop(keys) => MapWrite::Stop(keys),
            Self::HandOver { from, to, keys } => MapWrite::HandOver { from, to, keys },
        }
    }
}

/// A call of a map of its own.
///
/// # Errors
/// What the map refuses.
pub(super) async fn write_map<S: Shown>(api: &Api, request: &Request, call: MapCall) -> Outcome {
    let caller = caller(request)?;
    let map = map_name::<S>(request.part("map"))?;
    let (body, presumed) = (MapBody::read(call, map, request)?, request.presumed()?);
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let before = S::locate(&work.model, request)?;
        check_presumed(&before, presumed)?;
        let mut spec = before.spec.clone();
        let inherited = spec.inherited().ok_or_else(|| no_map::<S>(map))?;
        map.write(inherited, body.as_write(), &caller.manager, work.now())?;
        let warning = lost(&work.model, &before, &spec);
        let written = work.update(&before, before.meta.name.clone(), spec)?;
        let shown = S::show(api, &work.model, &written.object, &request.base);
        work.finish(Answer { warning, ..Answer::json(200, shown.into()) })
    });
    Ok(Reply::written(answer.await?, &request.base))
}

/// What stands in a map's place in the path and is none.
const OTHERS: [&str; 4] = ["traits", "roles", "tags", "nodegroups"];

fn map_name<S: Shown>(name: &str) -> Result<MapName, ApiError> {
    MapName::named(name).ok_or_else(|| {
        // The path is there, for other methods.
        if OTHERS.contains(&name) {
            return ApiError::new(ErrorType::RequestMethod, format!("{name} does not take that method"));
        }
        let message = format!("a {} has no {}; it has labels, annotations and parameters", S::KIND.word(), quote(name));
        ApiError::new(ErrorType::PathUnknown, message)
    })
}

fn no_map<S: Shown>(map: MapName) -> ApiError {
    ApiError::new(ErrorType::PathUnknown, format!("a {} has no {} of its own", S::KIND.word(), map.name()))
}

fn wrapped(body: &mut Map<String, Value>, map: MapName) -> Result<Value, ApiError> {
    let value = body.remove(map.name());
    match (value, body.keys().next()) {
        (Some(value @ Value::Object(_)), None) => Ok(value),
        (_, Some(other)) => Err(ApiError::new(
            ErrorType::FieldUnknown,
            format!("this call takes {{\"{}\": {{…}}}} alone, not {}", map.name(), quote(other)),
        )),
        (_, None) => {
            Err(ApiError::new(ErrorType::FieldMissing, format!("this call takes {{\"{}\": {{…}}}}", map.name()))
                .field(map.name()))
        }
    }
}

fn take_keys(body: &mut Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let keys = body.remove("keys").unwrap_or(Value::Null);
    serde_json::from_value(keys)
        .map_err(|_| ApiError::new(ErrorType::FieldInvalid, "keys is a list of keys").field("keys"))
}

fn take_party(body: &mut Map<String, Value>, name: &str) -> Result<Party, ApiError> {
    let Some(Value::String(text)) = body.remove(name) else {
        return Err(
            ApiError::new(ErrorType::FieldMissing, format!("{name:?} names a manager, as M or M:apply")).field(name)
        );
    };
    text.parse().map_err(|e: stemma_core::ownership::InvalidOwner| {
        ApiError::new(ErrorType::FieldInvalid, e.to_string()).field(name)
    })
}

/// The sentence of a write by which hosts lose inherited keys.
fn lost<S: Shown>(model: &Model, before: &Object<S>, after: &S) -> Option<String> {
    let (mut old, mut new) = (before.spec.clone(), after.clone());
    let (level, old, new) = (S::LEVEL?, old.inherited()?.clone(), new.inherited()?.clone());
    if old.labels == new.labels || !S::has_hosts(model, before) {
        return None;
    }
    let keys = view::lost_keys(&S::above(model, after), level, &old, &new);
    (!keys.is_empty()).then(|| format!("hosts lose the inherited labels {}", keys.join(", ")))
}

/// The objects of a page, and where the next one is.
pub(super) type Rows<S> = (Vec<Arc<Object<S>>>, Option<String>);

/// A list of objects, cut to its page.
///
/// # Errors
/// A marker that no row has.
pub(super) fn page<S: Shown>(
    rows: Vec<Arc<Object<S>>>,
    page: &Page,
    parameters: &Parameters,
    url: &str,
) -> Result<Rows<S>, ApiError> {
    let marker = page.marker.clone().unwrap_or_default();
    let rows = page.cut(rows, |row| row.meta.uuid.to_string());
    let rows = rows.ok_or_else(|| crate::registry::work::not_found(S::KIND, &marker))?;
    let last = rows.last().map(|row| row.meta.uuid.to_string());
    let next = page.next(url, parameters, rows.len(), last);
    Ok((rows, next))
}

/// A value as JSON text.
pub(super) fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// The refusal of a patch.
pub(super) fn bad_patch(error: &BadPatch) -> ApiError {
    ApiError::new(ErrorType::FieldInvalid, error.to_string())
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
