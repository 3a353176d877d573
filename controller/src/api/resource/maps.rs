//! The endpoints of single maps (`…/labels`, `…/parameters`, `…/annotations`). They replace a map, change single keys,
//! stop keys from being inherited, and transfer ownership. To replace a map is an update of the object, and to change
//! keys is a merge patch of the object. The body of both is only about this map.

use serde_json::{Map, Value};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{MERGE_LABELS, update_merge_labels};
use stemma_core::object::Object;
use stemma_core::ownership::{Owner, OwnerMatch};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{ApiResource, read_body, update};
use super::patching::merge;
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::Caller;
use crate::registry::maps::{MapName, MapWrite};
use crate::registry::work::PendingWrite;

/// An operation on a map of an object. The maps are `labels`, `annotations` and `parameters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapCall {
    /// `PUT`: replaces the map.
    Replace,
    /// `PATCH`: changes single keys.
    Merge,
    /// `POST …/tombstones`: stops keys from being inherited, with a tombstone for each.
    Tombstones,
    /// `POST …/owners`: transfers the ownership of keys.
    Owners,
}

/// The parsed request of a map operation.
enum MapBody {
    /// The fields of the body: the map and, for labels, `merge_labels`.
    Replace(Map<String, Value>),
    /// The merge patch of the map.
    Merge(Value),
    /// The keys that get a tombstone.
    Tombstones(Vec<String>),
    Owners {
        /// The manager that owns the keys now.
        from: OwnerMatch,
        /// The manager that owns the keys after the transfer.
        to: OwnerMatch,
        /// The keys of the map that change their owner.
        keys: Vec<String>,
    },
}

impl MapBody {
    /// Reads the body of a request for a map. The form of the body depends on the operation.
    fn read(call: MapCall, map: MapName, request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(match call {
            MapCall::Merge => Self::Merge(read_map_patch(map.name(), request)?),
            MapCall::Replace => Self::Replace(read_map(request.object()?, map)?),
            MapCall::Tombstones => Self::Tombstones(read_keys(request.object()?, "{\"keys\": […]}")?),
            MapCall::Owners => {
                let mut body = request.object()?;
                let (from, to) = (take_owner_match(&mut body, "from")?, take_owner_match(&mut body, "to")?);
                Self::Owners { from, to, keys: read_keys(body, "{\"from\": …, \"to\": …, \"keys\": […]}")? }
            }
        })
    }

    /// Applies the operation to a map of the object.
    fn write<S: ApiResource>(
        &self,
        api: &Api,
        work: &PendingWrite<'_>,
        object: &mut Object<S>,
        map: MapName,
        caller: &Caller,
    ) -> Result<(), ApiError> {
        let write = match self {
            Self::Replace(fields) => {
                let body = read_body::<S>(fields.clone())?;
                object.spec = update(api, work, &object.spec, &body, caller, BodyShape::Native)?;
                return Ok(());
            }
            Self::Merge(changes) => {
                let fields = Map::from_iter([(map.name().to_owned(), changes.clone())]);
                return merge(api, work, object, fields, caller);
            }
            Self::Tombstones(keys) => MapWrite::AddTombstones(keys),
            Self::Owners { from, to, keys } => MapWrite::HandOver { from, to, keys },
        };
        let old_spec = object.spec.clone();
        let inherited = object.spec.inherited_mut().ok_or_else(|| no_map::<S>(map))?;
        map.write(inherited, write, &caller.manager, work.now())?;
        update_merge_labels(&old_spec, &mut object.spec, Owner::update(&caller.manager));
        Ok(())
    }
}

/// Handles a request for one map of an object. `call` is the requested operation.
///
/// # Errors
/// Fails if the kind does not have the map in the path, if the body is invalid, or if the write is refused.
pub(super) async fn write_map<S: ApiResource>(api: &Api, request: &HttpRequest, call: MapCall) -> HandlerResult {
    let caller = request.caller()?;
    let map = map_name::<S>(request.param("map"))?;
    let body = MapBody::read(call, map, request)?;
    let edit = |work: &PendingWrite<'_>, object: &mut Object<S>| {
        object.spec.inherited().ok_or_else(|| no_map::<S>(map))?;
        body.write(api, work, object, map, &caller)
    };
    let answer =
        |model: &Model, object: &Object<S>| StoredAnswer::json(200, S::show(api, model, object, &request.base_url).into());
    writes::change(api, request, &caller, edit, answer).await
}

/// Returns the map with the name in the path. Fails if no map has that name.
fn map_name<S: ApiResource>(name: &str) -> Result<MapName, ApiError> {
    MapName::from_name(name).ok_or_else(|| {
        let message = format!("{} has no {}; it has labels, annotations and parameters", S::KIND.with_article(), quote(name));
        ApiError::new(ErrorType::PathUnknown, message)
    })
}

/// Returns the error for an object whose kind has no inherited maps.
fn no_map<S: ApiResource>(map: MapName) -> ApiError {
    ApiError::new(ErrorType::PathUnknown, format!("{} has no {} of its own", S::KIND.with_article(), map.name()))
}

/// Reads the merge patch of a map, the body of a request that changes single keys. The body is an object with the keys.
/// `null` in place of the object removes the whole map (RFC 7396).
///
/// The values of labels and annotations are text. So the body may also be an object whose only member is the map, under
/// its name, because no value of such a map is an object. A body of parameters is not read in this form, because a
/// parameter may be named `parameters`. Numbers in a map of text are read as their text in both forms.
///
/// # Errors
/// Fails if the body is neither a JSON object nor `null`.
pub(super) fn read_map_patch(map: &str, request: &HttpRequest) -> Result<Value, ApiError> {
    let body = match request.object() {
        Err(_) if matches!(request.json(), Ok(Value::Null)) => return Ok(Value::Null),
        body => body.map_err(|error| in_map_field(map, error)),
    };
    if map == MapName::Parameters.name() {
        // A parameter may have the name of a field in which numbers are text, such as `labels`. So the body is parsed
        // again as a map of values, in which numbers stay numbers.
        body?;
        return request.value_map().map_err(|error| in_map_field(map, error));
    }
    if let Ok(body) = &body
        && let (1, Some(changes @ Value::Object(_))) = (body.len(), body.get(map))
    {
        return Ok(changes.clone());
    }
    // The body is the map itself. It is parsed again as a map of text, because such a map may contain numbers that
    // other bodies may not.
    match request.text_map() {
        Ok(changes @ Value::Object(_)) => Ok(changes),
        Ok(_) | Err(_) => body.map(Value::Object),
    }
}

/// Converts an error about the body of a map into an error about the object: puts the map's name before the key in the
/// error's field.
fn in_map_field(map: &str, error: ApiError) -> ApiError {
    // If the body is an object with a map of text under its name, the field begins with that name already.
    let has_map = |field: &str| map != MapName::Parameters.name() && field.split(['.', '[']).next() == Some(map);
    match error.field.as_deref().filter(|field| !has_map(field)).map(|field| format!("{map}.{field}")) {
        Some(field) => error.field(field),
        None => error,
    }
}

/// Returns the fields of a body that replaces a map: the new map and, for labels, `merge_labels` if the body has it.
fn read_map(mut body: Map<String, Value>, map: MapName) -> Result<Map<String, Value>, ApiError> {
    let merge = if map == MapName::Labels { body.remove(MERGE_LABELS) } else { None };
    let value = unwrap_map(&mut body, map)?;
    let merge = merge.map(|merge| (MERGE_LABELS.to_owned(), merge));
    Ok([(map.name().to_owned(), value)].into_iter().chain(merge).collect())
}

/// Removes the map from a body that has no other field, and returns it.
///
/// # Errors
/// Fails if the map is missing or `null`, or if the body has another field.
pub(super) fn unwrap_map(body: &mut Map<String, Value>, map: MapName) -> Result<Value, ApiError> {
    let value = body.remove(map.name());
    match (value, body.keys().next()) {
        (Some(value), None) if !value.is_null() => Ok(value),
        (_, Some(unknown_field)) => Err(ApiError::new(
            ErrorType::FieldUnknown,
            format!("this call accepts {{\"{}\": {{…}}}}, not {}", map.name(), quote(unknown_field)),
        )
        .field(unknown_field.clone())),
        (_, None) => {
            Err(ApiError::new(ErrorType::FieldMissing, format!("this call accepts {{\"{}\": {{…}}}}", map.name()))
                .field(map.name()))
        }
    }
}

/// Returns the list `keys` of a body, whose other members were removed. Fails if the list is missing or empty, or if the
/// body has another member. `accepted` is the form of the whole body, for this error.
fn read_keys(mut body: Map<String, Value>, accepted: &str) -> Result<Vec<String>, ApiError> {
    let invalid = |message: &str| ApiError::new(ErrorType::FieldInvalid, message).field("keys");
    let keys = body.remove("keys").unwrap_or(Value::Null);
    let keys: Vec<String> = serde_json::from_value(keys).map_err(|_| invalid("keys is a list of keys"))?;
    if let Some(name) = body.keys().next() {
        let message = format!("this call accepts {accepted}, not {}", quote(name));
        return Err(ApiError::new(ErrorType::FieldUnknown, message).field(name.clone()));
    }
    // A write without keys would give the object an empty map, which is not the same as no map.
    if keys.is_empty() { Err(invalid("keys is empty: list the keys to change; nothing was changed")) } else { Ok(keys) }
}

/// Removes the member `name` from a body, and returns the manager that it names, such as `M`. In the form `M:apply`, it
/// also names the operation by which the manager owns keys. Fails if the member is missing or invalid.
fn take_owner_match(body: &mut Map<String, Value>, name: &str) -> Result<OwnerMatch, ApiError> {
    let Some(Value::String(text)) = body.remove(name) else {
        return Err(
            ApiError::new(ErrorType::FieldMissing, format!("{name:?} must name a manager, such as M or M:apply")).field(name)
        );
    };
    text.parse()
        .map_err(|e: stemma_core::ownership::InvalidOwner| ApiError::new(ErrorType::FieldInvalid, e.to_string()).field(name))
}
