//! The part of the HTTP API that all kinds share. A kind defines how an object is found, its JSON form and the levels
//! above it. The operations are written once: reading objects and their fields here, lists in [`super::lists`], create,
//! update and delete in [`super::writes`], the three kinds of patches in [`super::patching`], and the maps with
//! endpoints of their own in [`super::maps`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use stemma_core::fleet::{InheritedMaps, Levels, NodeSet};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{JsonBody, SpecFields, WriteMode, write_body};
use stemma_core::object::{Kind, Object};
use stemma_core::origin::Level;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::filter::{FilterContext, FilterDef, FilterMatch, read_selector};
use super::stored::selected_fields;
use super::{passthrough, stored, view};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::cache::model::{ListOrder, Resource};
use crate::records::request::StoredAnswer;
use crate::registry::admit::{bad_body, bad_field};
use crate::registry::names::ModelNames;
use crate::registry::work::PendingWrite;
use crate::registry::{Caller, DecisionError};

/// A kind of object in the API.
pub(super) trait ApiResource: Resource + SpecFields {
    /// The level at which objects of the kind provide labels. `None` if the kind is not a level.
    const LEVEL: Option<Level>;
    /// The name of the member of a body that lists objects of the kind.
    const LIST: &'static str;
    /// The form of the body of a new object, which determines the default of `merge_labels`.
    const SHAPE: BodyShape = BodyShape::Native;
    /// The response status for a new object.
    const CREATED_STATUS: u16 = 201;
    /// True if a JSON patch of an `OpenStack` client cannot `add` an attribute that is already set, as in Magnum. By
    /// RFC 6902 such an operation replaces the value.
    const IS_ADD_CREATE_ONLY: bool = false;
    /// The fields that have another name in `OpenStack`'s API, as pairs of that name and Stemma's own.
    const UPSTREAM_NAMES: &'static [(&'static str, &'static str)] = &[];
    /// False if a `PATCH` of an object of the kind refuses a server-side apply.
    const ACCEPTS_APPLY_PATCH: bool = true;
    /// True if a JSON patch cannot rename an object of the kind, as in Magnum.
    const IS_NAME_FIXED: bool = false;
    /// The stored fields of `OpenStack`'s API that only the controller sets. An apply, or a write of a node, that
    /// changes one is refused. For other kinds, [`Self::adapt`] refuses or removes these fields.
    const COMPUTED: &'static [&'static str] = &[];
    /// The filters of lists of the kind.
    const FILTERS: &'static [FilterDef<Self>] = &[FilterDef { name: "selector", read: by_selector }];

    /// Finds the object that a request's path names.
    ///
    /// # Errors
    /// Fails if there is no such object.
    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Object<Self>>, ApiError>;

    /// Returns the path of the object in the API's URLs.
    fn path(object: &Object<Self>) -> String;

    /// Returns the whole body of the object.
    fn show(api: &Api, model: &Model, object: &Object<Self>, base: &str) -> Map<String, Value> {
        body(api, model, object, base, &|_| true)
    }

    /// Returns the fields of a body that contain the name of an object: `name`, and for a release also `version`.
    fn name_fields(name: &Self::Name) -> Map<String, Value> {
        Map::from_iter([("name".to_owned(), json!(Self::name_text(name)))])
    }

    /// Removes the name from the fields of a patch, and returns the object's name after the patch. Without a name in
    /// the patch, the name stays unchanged. `null` removes the name.
    ///
    /// # Errors
    /// Fails if the new name is not valid, or if the patch removes a name that the kind needs.
    fn rename(object: &Object<Self>, fields: &mut Map<String, Value>) -> Result<Self::Name, ApiError> {
        match fields.remove("name") {
            None => Ok(object.meta.name.clone()),
            Some(Value::String(text)) => Self::parse_name(&text),
            Some(Value::Null) => Self::default_name(),
            Some(_) => Err(ApiError::new(ErrorType::FieldInvalid, "a name is a text").field("name")),
        }
    }

    /// Adds the fields of a body that are not fields of the spec.
    fn complete(_api: &Api, _model: &Model, _object: &Object<Self>, _body: &mut Map<String, Value>) {}

    /// Adds fields to a row of a list without details, for example the number of tasks. They summarize fields that such
    /// a row omits.
    fn summarize(_object: &Object<Self>, _row: &mut Map<String, Value>) {}

    /// Returns the objects in the order of a list, beginning after the object `after`. For nodes, which have indexes,
    /// returns only the nodes of a set. Other kinds ignore the set.
    fn walk<'m>(
        model: &'m Model,
        _among: NodeSet,
        order: ListOrder,
        after: Option<&Object<Self>>,
        is_descending: bool,
    ) -> Box<dyn Iterator<Item = &'m Arc<Object<Self>>> + 'm> {
        Box::new(Self::index(model).iter_from(order, after, is_descending))
    }

    /// Returns the levels from which an object inherits. The farthest level is the first.
    fn parent_levels<'m>(_model: &'m Model, _spec: &Self) -> Levels<'m> {
        Vec::new()
    }

    /// Returns the labels of an object with which a selector is compared: the inherited labels and its own.
    fn labels(model: &Model, object: &Object<Self>) -> BTreeMap<String, String> {
        let mut chain = Self::parent_levels(model, &object.spec);
        chain.extend(Self::LEVEL.zip(object.spec.inherited()));
        view::label_map(&InheritedMaps::from_levels(&chain).labels)
    }

    /// Returns whether a selector matches the labels of an object.
    fn is_selected(model: &Model, object: &Object<Self>, selector: &Selector) -> bool {
        selector.matches(&Self::labels(model, object), &())
    }

    /// Removes the name of a new object from its body, and returns the name with the uuid of the object. The uuid is a
    /// new one, except that a client can choose the uuid of a node, an allocation or an inspection rule in the body.
    ///
    /// # Errors
    /// Fails if the body lacks a name that the kind needs, or if the uuid or the name is invalid.
    fn identify(_request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, Self::Name), ApiError> {
        Ok((Uuid::now_v7(), take_name::<Self>(fields)?))
    }

    /// Returns the spec of a new object before its body is applied.
    ///
    /// # Errors
    /// Fails if the parent does not exist.
    fn new_spec(model: &Model, request: &HttpRequest) -> Result<Self, ApiError>;

    /// Applies the further changes that belong to a new object, such as the default groups of a cluster. Returns the
    /// response body.
    ///
    /// # Errors
    /// Fails if one of these changes is refused.
    fn after_create(
        api: &Api,
        work: &mut PendingWrite<'_>,
        request: &HttpRequest,
        object: &Object<Self>,
    ) -> Result<Map<String, Value>, ApiError> {
        Ok(Self::show(api, &work.model, object, &request.base_url))
    }

    /// Converts the error of a failed creation to the error that `OpenStack`'s API returns.
    fn create_error(refusal: ApiError, _request: &HttpRequest) -> ApiError {
        refusal
    }

    /// Checks that a body does not change a field that no write can change.
    ///
    /// # Errors
    /// Fails with the first such field.
    fn check_fixed(_model: &Model, _spec: &Self, _fields: &Map<String, Value>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// Fails if another object refers to this object, or if it can only be deleted together with another object.
    fn remove(work: &mut PendingWrite<'_>, object: &Arc<Object<Self>>) -> Result<(), DecisionError>;

    /// Checks that the file bodies that a spec names were uploaded. File bodies are not in the store, so no other check
    /// covers them.
    ///
    /// # Errors
    /// Fails for the first file body that was not uploaded.
    fn check_blobs(_api: &Api, _spec: &Self) -> Result<(), ApiError> {
        Ok(())
    }

    /// Converts a body in the form of `OpenStack`'s API to Stemma's own form, for example by removing read-only fields.
    ///
    /// # Errors
    /// Fails for a field that cannot be written in this way.
    fn adapt(_body: &mut Map<String, Value>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Returns the response to a JSON patch. It contains the object, unless `OpenStack`'s API responds otherwise.
    fn patch_answer(_object: &Object<Self>, body: Map<String, Value>) -> StoredAnswer {
        StoredAnswer::json(200, body.into())
    }

    /// Returns the name of an object after a patch that removed its name with `null`: the value for no name.
    ///
    /// # Errors
    /// Fails if this kind needs a name.
    fn default_name() -> Result<Self::Name, ApiError> {
        Err(name_required(Self::KIND))
    }
}

/// Reads the filter `selector`, which selects objects by their labels.
///
/// # Errors
/// As [`read_selector`].
pub(super) fn by_selector<S: ApiResource>(
    context: &FilterContext<'_>,
    _name: &'static str,
) -> Result<Option<FilterMatch<S>>, ApiError> {
    let selector = read_selector(context.query())?;
    Ok(selector.map(|s| FilterMatch::new(move |_, model, object| S::is_selected(model, object, &s))))
}

/// Returns the body of an object, with only the fields for which `is_wanted` is true. `base` is the base URL of links.
pub(super) fn body<S: ApiResource>(
    api: &Api,
    model: &Model,
    object: &Object<S>,
    base: &str,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Map<String, Value> {
    let mut body = selected_fields(&object.spec, &ModelNames::new(model, &api.traits), is_wanted);
    view::add_meta(&mut body, &object.meta);
    body.extend(S::name_fields(&object.meta.name));
    body.insert("field_owners".into(), json!(object.spec.owners()));
    S::complete(api, model, object, &mut body);
    passthrough::fill_defaults(S::PASSTHROUGH_FIELDS, &mut body);
    if let Some((level, own_maps)) = S::LEVEL.zip(object.spec.inherited()) {
        view::add_maps(&mut body, S::parent_levels(model, &object.spec), level, own_maps, is_wanted);
    }
    body.insert("links".into(), json!(view::links(base, &S::path(object))));
    body.retain(|name, _| is_wanted(name));
    body
}

/// Reads the fields of a body. A field may have Stemma's own name or its name in `OpenStack`'s API.
///
/// # Errors
/// Fails with the first invalid field.
pub(super) fn read_body<S: ApiResource>(mut body: Map<String, Value>) -> Result<JsonBody, ApiError> {
    for (upstream_name, own_name) in S::UPSTREAM_NAMES {
        let Some(value) = body.remove(*upstream_name) else { continue };
        if body.insert((*own_name).to_owned(), value.clone()).is_some_and(|own_value| own_value != value) {
            let message = format!("{upstream_name} and {own_name} are two names of one field; give one of them");
            return Err(ApiError::new(ErrorType::FieldInvalid, message).field(*own_name));
        }
    }
    S::adapt(&mut body)?;
    JsonBody::parse(&Value::Object(body).to_string()).map_err(|e| bad_field(S::KIND.word(), &e))
}

/// Returns the spec after a plain write with this body. The caller then owns the fields that the body changes.
///
/// # Errors
/// Fails with the first invalid field.
pub(super) fn update<S: ApiResource>(
    api: &Api,
    work: &PendingWrite<'_>,
    spec: &S,
    body: &JsonBody,
    caller: &Caller,
    shape: BodyShape,
) -> Result<S, ApiError> {
    let mut new_spec = spec.clone();
    let author = WriteMode::Update { manager: &caller.manager, shape };
    write_body(&mut new_spec, body, author, &ModelNames::new(&work.model, &api.traits), work.now().0).map_err(bad_body::<S>)?;
    // A client uploads file bodies before the actual write, not before a dry run, so a dry run does not check them.
    if !work.is_dry_run() {
        S::check_blobs(api, &new_spec)?;
    }
    Ok(new_spec)
}

/// Sets fields of an object, like a plain write whose body has only these fields. The caller then owns the fields.
///
/// # Errors
/// As [`update`].
pub(super) fn set_fields<S: ApiResource, const N: usize>(
    api: &Api,
    work: &PendingWrite<'_>,
    object: &mut Object<S>,
    fields: [(&str, Value); N],
    caller: &Caller,
) -> Result<(), ApiError> {
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    let body = read_body::<S>(fields.into_iter().collect())?;
    object.spec = update(api, work, &object.spec, &body, caller, BodyShape::Native)?;
    Ok(())
}

/// `GET` of one object.
///
/// # Errors
/// Fails if the object does not exist.
pub(super) fn get<S: ApiResource>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let object = S::locate(&model, request)?;
    let mut body = S::show(api, &model, &object, &request.base_url);
    stored::add_stored(api, &model, request, &object.spec, &mut body)?;
    Ok(HttpResponse::ok(body.into()).with_etag(object.meta.resource_version))
}

/// Returns a value as JSON text.
pub(super) fn to_raw_json(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// Removes the name of a new object from its body, and returns the name.
///
/// # Errors
/// Fails if the body has no name, or if the name is not valid.
fn take_name<S: Resource>(fields: &mut Map<String, Value>) -> Result<S::Name, ApiError> {
    match fields.remove("name") {
        Some(Value::String(name)) => S::parse_name(&name),
        None | Some(Value::Null) => Err(name_required(S::KIND)),
        Some(value) => {
            let value: String = value.to_string().chars().take(64).collect();
            Err(ApiError::new(ErrorType::FieldInvalid, format!("{}'s name is a text, not {value}", S::KIND.with_article()))
                .field("name"))
        }
    }
}

/// Checks that a write does not change a field that only the controller sets. `written_value` returns the value of a
/// field in the body of the write. The stored value is allowed, and so is `null`, which responses contain.
///
/// # Errors
/// Fails with the first such field.
pub(super) fn check_computed<S: ApiResource>(spec: &S, written_value: impl Fn(&str) -> Option<Value>) -> Result<(), ApiError> {
    let is_changed = |name: &str| written_value(name).is_some_and(|new| !new.is_null() && spec.extra().get(name) != Some(&new));
    let Some(name) = S::COMPUTED.iter().find(|name| is_changed(name)) else { return Ok(()) };
    let message = format!("only the controller sets the {name} of {}; nothing was changed", S::KIND.with_article());
    Err(ApiError::new(ErrorType::FieldInvalid, message).field(*name).detail("leave it out"))
}

/// Returns the error for an object without a name.
fn name_required(kind: Kind) -> ApiError {
    ApiError::new(ErrorType::FieldMissing, format!("{} needs a name", kind.with_article())).field("name")
}
