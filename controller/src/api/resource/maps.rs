//! The calls of a map of its own (`…/labels`, `…/parameters`, `…/annotations`): replace it, change single keys, stop keys from being
//! inherited, hand over who owns them. The first two are the update and the merge patch of an object whose body names this map alone.

use serde_json::{Map, Value};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{MERGE_LABELS, settle_merge_labels};
use stemma_core::object::Object;
use stemma_core::ownership::{Owner, Party};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{Shown, read_body, update};
use super::patching::merge;
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::Caller;
use crate::registry::maps::{MapName, MapWrite};
use crate::registry::work::Work;

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
    /// The fields of the body: the map, and beside labels whether they merge.
    Replace(Map<String, Value>),
    Merge(Value),
    Stop(Vec<String>),
    HandOver {
        from: Party,
        to: Party,
        keys: Vec<String>,
    },
}

impl MapBody {
    fn read(call: MapCall, map: MapName, request: &Request) -> Result<Self, ApiError> {
        Ok(match call {
            MapCall::Merge => Self::Merge(merged_map(map.name(), request)?),
            MapCall::Replace => Self::Replace(whole_map(request.object()?, map)?),
            MapCall::Tombstones => Self::Stop(take_keys(&mut request.object()?)?),
            MapCall::Owners => {
                let mut body = request.object()?;
                Self::HandOver {
                    from: take_party(&mut body, "from")?,
                    to: take_party(&mut body, "to")?,
                    keys: take_keys(&mut body)?,
                }
            }
        })
    }

    /// Writes it into the map of an object.
    fn write<S: Shown>(
        &self,
        api: &Api,
        work: &Work<'_>,
        object: &mut Object<S>,
        map: MapName,
        caller: &Caller,
    ) -> Result<(), ApiError> {
        let write = match self {
            Self::Replace(fields) => {
                let body = read_body::<S>(fields.clone())?;
                object.spec = update(api, work, &object.spec, &body, caller, BodyShape::Own)?;
                return Ok(());
            }
            Self::Merge(changes) => {
                let fields = Map::from_iter([(map.name().to_owned(), changes.clone())]);
                return merge(api, work, object, fields, caller);
            }
            Self::Stop(keys) => MapWrite::Stop(keys),
            Self::HandOver { from, to, keys } => MapWrite::HandOver { from, to, keys },
        };
        let before = object.spec.clone();
        let inherited = object.spec.inherited().ok_or_else(|| no_map::<S>(map))?;
        map.write(inherited, write, &caller.manager, work.now())?;
        settle_merge_labels(&before, &mut object.spec, Owner::update(&caller.manager));
        Ok(())
    }
}

/// A call of a map of its own.
///
/// # Errors
/// What the map refuses.
pub(super) async fn write_map<S: Shown>(api: &Api, request: &Request, call: MapCall) -> HandlerResult {
    let caller = request.caller()?;
    let map = map_name::<S>(request.part("map"))?;
    let body = MapBody::read(call, map, request)?;
    let edit = |work: &Work<'_>, object: &mut Object<S>| {
        object.spec.inherited_ref().ok_or_else(|| no_map::<S>(map))?;
        body.write(api, work, object, map, &caller)
    };
    let answer =
        |model: &Model, object: &Object<S>| Answer::json(200, S::show(api, model, object, &request.base).into());
    writes::change(api, request, &caller, edit, answer).await
}

fn map_name<S: Shown>(name: &str) -> Result<MapName, ApiError> {
    MapName::named(name).ok_or_else(|| {
        let message =
            format!("{} has no {}; it has labels, annotations and parameters", S::KIND.with_article(), quote(name));
        ApiError::new(ErrorType::PathUnknown, message)
    })
}

fn no_map<S: Shown>(map: MapName) -> ApiError {
    ApiError::new(ErrorType::PathUnknown, format!("{} has no {} of its own", S::KIND.with_article(), map.name()))
}

/// The changes of single keys of a map. Those of a map of text may have the map's name around them: no value there is an object, so it
/// means nothing else. A parameter may be called `parameters`. Numbers of a map of text keep their text in both. `null` takes the place of the
/// whole map (RFC 7396), and so takes it away.
///
/// # Errors
/// For a body that is neither a JSON object nor `null`.
pub(super) fn merged_map(map: &str, request: &Request) -> Result<Value, ApiError> {
    let body = match request.object() {
        Err(_) if matches!(request.json(), Ok(Value::Null)) => return Ok(Value::Null),
        body => body.map_err(|error| within(map, error)),
    };
    if map == MapName::Parameters.name() {
        // A parameter may be called as a field whose numbers are text elsewhere.
        body?;
        return request.values().map_err(|error| within(map, error));
    }
    if let Ok(body) = &body
        && let (1, Some(changes @ Value::Object(_))) = (body.len(), body.get(map))
    {
        return Ok(changes.clone());
    }
    // The body is the map itself: where its values are text, numbers that no other body may hold are read as such.
    match request.texts() {
        Ok(changes @ Value::Object(_)) => Ok(changes),
        Ok(_) | Err(_) => body.map(Value::Object),
    }
}

/// A refusal of the body of a map, of the field of the object in which that stands.
fn within(map: &str, error: ApiError) -> ApiError {
    // The name of a map of text may stand around it.
    let has_map = |field: &str| map != MapName::Parameters.name() && field.split(['.', '[']).next() == Some(map);
    match error.field.as_deref().filter(|field| !has_map(field)).map(|field| format!("{map}.{field}")) {
        Some(field) => error.field(field),
        None => error,
    }
}

/// The whole new map, and `merge_labels` beside labels where that is to change in the same write.
fn whole_map(mut body: Map<String, Value>, map: MapName) -> Result<Map<String, Value>, ApiError> {
    let merge = if map == MapName::Labels { body.remove(MERGE_LABELS) } else { None };
    let whole = wrapped(&mut body, map)?;
    let merge = merge.map(|merge| (MERGE_LABELS.to_owned(), merge));
    Ok([(map.name().to_owned(), whole)].into_iter().chain(merge).collect())
}

/// The map of a body that holds nothing else.
///
/// # Errors
/// Where the map is missing or `null`, or something stands beside it.
pub(super) fn wrapped(body: &mut Map<String, Value>, map: MapName) -> Result<Value, ApiError> {
    let value = body.remove(map.name());
    match (value, body.keys().next()) {
        (Some(value), None) if !value.is_null() => Ok(value),
        (_, Some(other)) => Err(ApiError::new(
            ErrorType::FieldUnknown,
            format!("this call takes {{\"{}\": {{…}}}}, not {}", map.name(), quote(other)),
        )
        .field(other.clone())),
        (_, None) => {
            Err(ApiError::new(ErrorType::FieldMissing, format!("this call takes {{\"{}\": {{…}}}}", map.name()))
                .field(map.name()))
        }
    }
}

fn take_keys(body: &mut Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let refused = |message: &str| ApiError::new(ErrorType::FieldInvalid, message).field("keys");
    let keys = body.remove("keys").unwrap_or(Value::Null);
    let keys: Vec<String> = serde_json::from_value(keys).map_err(|_| refused("keys is a list of keys"))?;
    // The map would be provided from then on, with nothing in it.
    if keys.is_empty() {
        Err(refused("keys is empty: name those that are meant; nothing was changed"))
    } else {
        Ok(keys)
    }
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
