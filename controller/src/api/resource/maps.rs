//! The calls of a map of its own (`…/labels`, `…/parameters`, `…/annotations`): replace it, change single keys, stop keys from being
//! inherited, hand over who owns them.

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stemma_core::object::Object;
use stemma_core::ownership::Party;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{Shown, raw};
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Request};
use crate::cache::Model;
use crate::records::request::Answer;
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
                // Their values are text, whatever is written there.
                _ if map != MapName::Parameters => Self::Merge(raw(&request.texts()?)),
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
pub(super) async fn write_map<S: Shown>(api: &Api, request: &Request, call: MapCall) -> HandlerResult {
    let caller = request.caller()?;
    let map = map_name::<S>(request.part("map"))?;
    let body = MapBody::read(call, map, request)?;
    let edit = |work: &Work<'_>, object: &mut Object<S>| {
        let inherited = object.spec.inherited().ok_or_else(|| no_map::<S>(map))?;
        map.write(inherited, body.as_write(), &caller.manager, work.now())
    };
    let answer =
        |model: &Model, object: &Object<S>| Answer::json(200, S::show(api, model, object, &request.base).into());
    writes::change(api, request, &caller, edit, answer).await
}

fn map_name<S: Shown>(name: &str) -> Result<MapName, ApiError> {
    MapName::named(name).ok_or_else(|| {
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
