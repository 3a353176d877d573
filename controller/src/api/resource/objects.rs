//! What all kinds share in the HTTP API. A kind defines how an object is found, its JSON form and the levels above it.
//! The operations are written once: reading objects and their fields here, lists in [`super::lists`], create, update
//! and delete in [`super::writes`], the three kinds of patches in [`super::patching`], and the maps with endpoints of
//! their own in [`super::maps`].

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
    /// The level at which objects of the kind provide labels for the levels below, or `None` if they do not.
    const LEVEL: Option<Level>;
    /// The name of the member of a body that lists objects of the kind.
    const LIST: &'static str;
    /// How a missing `merge_labels` in the body of a new object is read.
    const SHAPE: BodyShape = BodyShape::Native;
    /// The response status for a new object.
    const CREATED_STATUS: u16 = 201;
    /// True if a JSON patch of an `OpenStack` client cannot `add` an attribute that is already set, as in Magnum. By
    /// RFC 6902 such an operation replaces the value.
    const IS_ADD_CREATE_ONLY: bool = false;
    /// The fields that have another name in `OpenStack`'s API: pairs of that name and our own.
    const UPSTREAM_NAMES: &'static [(&'static str, &'static str)] = &[];
    /// True if objects of the kind have maps that several managers can apply.
    const HAS_APPLIED_MAPS: bool = true;
    /// True if a JSON patch cannot rename an object of the kind, as in Magnum.
    const IS_NAME_FIXED: bool = false;
    /// Passthrough fields that only the controller sets. A write that changes one is refused.
    const COMPUTED: &'static [&'static str] = &[];
    /// The filters of lists of the kind.
    const FILTERS: &'static [FilterDef<Self>] = &[FilterDef { name: "selector", read: by_selector }];

    /// Finds the object that a request's path names.
    ///
    /// # Errors
    /// Fails if there is no such object.
    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Object<Self>>, ApiError>;

    /// Returns the path of the object.
    fn path(object: &Object<Self>) -> String;

    /// Returns the whole body of the object.
    fn show(api: &Api, model: &Model, object: &Object<Self>, base: &str) -> Map<String, Value> {
        body(api, model, object, base, &|_| true)
    }

    /// Returns the name as fields of a body.
    fn name_fields(name: &Self::Name) -> Map<String, Value> {
        Map::from_iter([("name".to_owned(), json!(Self::name_text(name)))])
    }

    /// Removes the name from the fields of a patch, and returns the object's name after the patch. If the patch has no
    /// name, the object keeps its own.
    ///
    /// # Errors
    /// Fails if the new name is not valid.
    fn rename(before: &Object<Self>, fields: &mut Map<String, Value>) -> Result<Self::Name, ApiError> {
        match fields.remove("name") {
            None => Ok(before.meta.name.clone()),
            Some(Value::String(text)) => Self::parse_name(&text),
            Some(Value::Null) => Self::default_name(),
            Some(_) => Err(ApiError::new(ErrorType::FieldInvalid, "a name is a text").field("name")),
        }
    }

    /// Adds the fields of a body that are not fields of the spec.
    fn complete(_api: &Api, _model: &Model, _object: &Object<Self>, _body: &mut Map<String, Value>) {}

    /// Adds fields to a row of a list without details that replace fields which such a row omits.
    fn summarize(_object: &Object<Self>, _row: &mut Map<String, Value>) {}

    /// Returns the objects in the order of a list, beginning after the object `after`. Of nodes, only those in a set
    /// are returned.
    fn walk<'m>(
        model: &'m Model,
        _among: NodeSet,
        by: ListOrder,
        after: Option<&Object<Self>>,
        descending: bool,
    ) -> Box<dyn Iterator<Item = &'m Arc<Object<Self>>> + 'm> {
        Box::new(Self::index(model).iter_from(by, after, descending))
    }

    /// Returns the levels from which an object inherits, the farthest first.
    fn parent_levels<'m>(_model: &'m Model, _spec: &Self) -> Levels<'m> {
        Vec::new()
    }

    /// Returns the labels that a selector of a list matches.
    fn labels(model: &Model, object: &Object<Self>) -> BTreeMap<String, String> {
        let mut chain = Self::parent_levels(model, &object.spec);
        chain.extend(Self::LEVEL.zip(object.spec.inherited()));
        view::label_map(&InheritedMaps::from_levels(&chain).labels)
    }

    /// Returns whether a selector matches the labels of an object.
    fn is_selected(model: &Model, object: &Object<Self>, selector: &Selector) -> bool {
        selector.matches(&Self::labels(model, object), &())
    }

    /// Removes the uuid and the name of a new object from its body, and returns them. Without a uuid, one is generated.
    ///
    /// # Errors
    /// Fails if the body has no name, or if one of the two is invalid.
    fn identify(_request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, Self::Name), ApiError> {
        Ok((Uuid::now_v7(), take_name::<Self>(fields)?))
    }

    /// Returns the spec of a new object before its body is applied.
    ///
    /// # Errors
    /// Fails if the parent does not exist.
    fn new_spec(model: &Model, request: &HttpRequest) -> Result<Self, ApiError>;

    /// Makes the further changes that come with a new object, such as the default groups of a cluster, and returns the
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

    /// Changes the error of a failed creation to the error that `OpenStack`'s API returns.
    fn create_error(refusal: ApiError, _request: &HttpRequest) -> ApiError {
        refusal
    }

    /// Checks that a body does not change fields that no write can change.
    ///
    /// # Errors
    /// Fails with the first such field.
    fn check_fixed(_model: &Model, _spec: &Self, _fields: &Map<String, Value>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// Fails if another object refers to it, or if it can only be deleted together with another.
    fn remove(work: &mut PendingWrite<'_>, object: &Arc<Object<Self>>) -> Result<(), DecisionError>;

    /// Checks that the file bodies that a spec names were uploaded. They are not in the store, so no other check covers
    /// them.
    ///
    /// # Errors
    /// Fails with the first file that was not sent.
    fn check_blobs(_api: &Api, _spec: &Self) -> Result<(), ApiError> {
        Ok(())
    }

    /// Changes a body in the form of `OpenStack`'s API to our own form, for example by removing read-only fields.
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

    /// Returns the name of an object that was created without one.
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

/// Builds the body of an object, with only the fields for which `wanted` is true.
pub(super) fn body<S: ApiResource>(
    api: &Api,
    model: &Model,
    object: &Object<S>,
    base: &str,
    wanted: &dyn Fn(&str) -> bool,
) -> Map<String, Value> {
    let mut body = selected_fields(&object.spec, &ModelNames::new(model, &api.traits), wanted);
    view::add_meta(&mut body, &object.meta);
    body.extend(S::name_fields(&object.meta.name));
    body.insert("field_owners".into(), json!(object.spec.owners()));
    S::complete(api, model, object, &mut body);
    passthrough::fill_defaults(S::PASSTHROUGH_FIELDS, &mut body);
    if let Some((level, own)) = S::LEVEL.zip(object.spec.inherited()) {
        view::add_maps(&mut body, S::parent_levels(model, &object.spec), level, own, wanted);
    }
    body.insert("links".into(), json!(view::links(base, &S::path(object))));
    body.retain(|name, _| wanted(name));
    body
}

/// Reads the fields of a body, which may have our own names or those of `OpenStack`'s API.
///
/// # Errors
/// Fails with the first invalid field.
pub(super) fn read_body<S: ApiResource>(mut body: Map<String, Value>) -> Result<JsonBody, ApiError> {
    for (other, own) in S::UPSTREAM_NAMES {
        let Some(value) = body.remove(*other) else { continue };
        if body.insert((*own).to_owned(), value.clone()).is_some_and(|before| before != value) {
            let message = format!("{other} and {own} are two names of one field; give one of them");
            return Err(ApiError::new(ErrorType::FieldInvalid, message).field(*own));
        }
    }
    S::adapt(&mut body)?;
    JsonBody::parse(&Value::Object(body).to_string()).map_err(|e| bad_field(S::KIND.word(), &e))
}

/// Returns a spec after a plain write with this body. The caller then owns the fields that the body changes.
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
    let mut next = spec.clone();
    let author = WriteMode::Update { manager: &caller.manager, shape };
    write_body(&mut next, body, author, &ModelNames::new(&work.model, &api.traits), work.now().0).map_err(bad_body::<S>)?;
    // Clients upload file bodies before a write, but not before its dry run.
    if !work.is_dry_run() {
        S::check_blobs(api, &next)?;
    }
    Ok(next)
}

/// Sets fields of an object, as a plain write with a body of these fields does. The caller then owns the fields.
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
        Some(other) => {
            let other: String = other.to_string().chars().take(64).collect();
            Err(ApiError::new(ErrorType::FieldInvalid, format!("{}'s name is a text, not {other}", S::KIND.with_article()))
                .field("name"))
        }
    }
}

/// Checks that a write does not change a field that only the controller sets. The stored value is allowed, and so is
/// `null`, which responses contain.
///
/// # Errors
/// Fails with the first such field.
pub(super) fn check_computed<S: ApiResource>(spec: &S, get: impl Fn(&str) -> Option<Value>) -> Result<(), ApiError> {
    let is_changed = |name: &str| get(name).is_some_and(|new| !new.is_null() && spec.extra().get(name) != Some(&new));
    let Some(name) = S::COMPUTED.iter().find(|name| is_changed(name)) else { return Ok(()) };
    let message = format!("only the controller sets the {name} of {}; nothing was changed", S::KIND.with_article());
    Err(ApiError::new(ErrorType::FieldInvalid, message).field(*name).detail("leave it out"))
}

/// Returns the error for an object without a name.
fn name_required(kind: Kind) -> ApiError {
    ApiError::new(ErrorType::FieldMissing, format!("{} needs a name", kind.with_article())).field("name")
}
