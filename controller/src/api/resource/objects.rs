//! What the kinds have in common over HTTP. A kind says how it is found, what it looks like and what stands above it; what is done
//! to it is here and beside it, once: reading it, its fields and the pages of its lists here, making, changing and deleting it in
//! [`super::writes`], its three kinds of patches in [`super::patching`], the maps that have calls of their own in [`super::maps`].

use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stemma_core::key::LabelKey;
use stemma_core::labels::{BodyShape, Labels};
use stemma_core::manifest::{Author, Body, Fields, write};
use stemma_core::object::Object;
use stemma_core::origin::Level;
use stemma_wire::error::{ApiError, ErrorType};

use super::kept;
use super::view::Chain;
use crate::api::Api;
use crate::api::http::request::{Outcome, Reply, Request};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::request::Answer;
use crate::registry::admit::{bad_body, bad_field};
use crate::registry::names::ModelNames;
use crate::registry::work::Work;
use crate::registry::{Caller, Undecided};

/// A kind as it stands in the API.
pub(super) trait Shown: Resource + Fields {
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
    fn above<'m>(_model: &'m Model, _spec: &Self) -> Chain<'m> {
        Vec::new()
    }
    /// Takes an object away.
    ///
    /// # Errors
    /// What still refers to it, or that it goes only with another.
    fn remove(work: &mut Work<'_>, object: &Arc<Object<Self>>) -> Result<(), Undecided>;
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

/// Reads a body's fields, of our own or the upstream's names.
///
/// # Errors
/// What is wrong with the first of them.
pub(super) fn read_body<S: Shown>(mut body: Map<String, Value>) -> Result<Body, ApiError> {
    S::adapt(&mut body)?;
    kept::check(S::EXTRA, &mut body)?;
    Body::parse(&Value::Object(body).to_string()).map_err(|e| bad_field(&S::KIND.word(), &e))
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

/// `GET` of one object.
///
/// # Errors
/// That there is none.
pub(super) fn get<S: Shown>(api: &Api, request: &Request) -> Outcome {
    let model = api.cache().model();
    let object = S::locate(&model, request)?;
    Ok(Reply::ok(S::show(api, &model, &object, &request.base).into()).tagged(object.meta.resource_version))
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

/// The sentence of a write by which hosts lose inherited keys.
pub(super) fn lost<S: Shown>(model: &Model, before: &Object<S>, after: &S) -> Option<String> {
    let (mut old, mut new) = (before.spec.clone(), after.clone());
    let (level, old, new) = (S::LEVEL?, old.inherited()?.clone(), new.inherited()?.clone());
    if old.labels == new.labels || !S::has_hosts(model, before) {
        return None;
    }
    let above = S::above(model, after);
    let parent = Labels::of(above.iter().map(|(level, said)| (*level, &said.labels)));
    let keys = parent.inherited_keys_lost(&parent.below(level, &old.labels), &parent.below(level, &new.labels));
    let keys: Vec<&str> = keys.iter().map(LabelKey::as_str).collect();
    (!keys.is_empty()).then(|| format!("hosts lose the inherited labels {}", keys.join(", ")))
}

/// A value as JSON text.
pub(super) fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}
