//! What the kinds have in common over HTTP. A kind says how it is found, what it looks like and what stands above it; what is done
//! to it is here and beside it, once: reading it, its fields and the pages of its lists here, making, changing and deleting it in
//! [`super::writes`], its three kinds of patches in [`super::patching`], the maps that have calls of their own in [`super::maps`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use stemma_core::fleet::{Among, Levels, Maps};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{Author, Body, Fields, write};
use stemma_core::object::{Kind, Object};
use stemma_core::origin::Level;
use stemma_core::selector::Selector;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::filter::{Asked, Filter, Kept, read_selector};
use super::stored::fields_of;
use super::{kept, stored, view};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::cache::model::{By, Resource};
use crate::records::request::Answer;
use crate::registry::admit::{bad_body, bad_field};
use crate::registry::names::ModelNames;
use crate::registry::work::Work;
use crate::registry::{Caller, Undecided};

/// A kind as it stands in the API.
pub(super) trait Shown: Resource + Fields {
    /// Its level of inheritance; none for one that stands on none.
    const LEVEL: Option<Level>;
    /// What a list of its objects is called in a body.
    const LIST: &'static str;
    /// What `merge_labels` means where the body of a new object leaves it out.
    const SHAPE: BodyShape = BodyShape::Own;
    /// The status that answers a new object.
    const CREATED: u16 = 201;
    /// Whether `add` on an attribute that is set is refused to `OpenStack`'s clients (as Magnum). RFC 6902 replaces it.
    const ADD_IS_NEW: bool = false;
    /// Fields that its upstream calls otherwise: its name, and ours.
    const RENAMED: &'static [(&'static str, &'static str)] = &[];
    /// Whether it has maps that several authors apply.
    const IS_APPLIED_TO: bool = true;
    /// Whether a JSON patch can't rename it (as Magnum).
    const KEEPS_NAME: bool = false;
    /// Kept fields that the controller alone says something of. No write sets them.
    const COMPUTED: &'static [&'static str] = &[];
    /// The filters of its lists.
    const FILTERS: &'static [Filter<Self>] = &[Filter { name: "selector", read: selector }];

    /// The object that a request's path names.
    ///
    /// # Errors
    /// When there is none.
    fn locate(model: &Model, request: &Request) -> Result<Arc<Object<Self>>, ApiError>;

    /// The path of the object.
    fn path(object: &Object<Self>) -> String;

    /// What it looks like, whole.
    fn show(api: &Api, model: &Model, object: &Object<Self>, base: &str) -> Map<String, Value> {
        body(api, model, object, base, &|_| true)
    }

    /// What it is called, as the fields of a body say it.
    fn named(name: &Self::Name) -> Map<String, Value> {
        Map::from_iter([("name".to_owned(), json!(Self::name_text(name)))])
    }

    /// Takes out of a patch what the object is called afterwards.
    ///
    /// # Errors
    /// When that is no name.
    fn rename(before: &Object<Self>, fields: &mut Map<String, Value>) -> Result<Self::Name, ApiError> {
        match fields.remove("name") {
            None => Ok(before.meta.name.clone()),
            Some(Value::String(text)) => Self::parse_name(&text),
            Some(Value::Null) => Self::no_name(),
            Some(_) => Err(ApiError::new(ErrorType::FieldInvalid, "a name is a text").field("name")),
        }
    }

    /// Adds to a body what is no field of the spec.
    fn complete(_api: &Api, _model: &Model, _object: &Object<Self>, _body: &mut Map<String, Value>) {}

    /// Adds to a row of a list that is not asked for details what stands for the fields that it leaves out.
    fn summarize(_object: &Object<Self>, _row: &mut Map<String, Value>) {}

    /// The objects in the order of a list, those behind this one alone; of nodes, of those in a set.
    fn walk<'m>(
        model: &'m Model,
        _among: Among,
        by: By,
        behind: Option<&Object<Self>>,
        last_first: bool,
    ) -> Box<dyn Iterator<Item = &'m Arc<Object<Self>>> + 'm> {
        Box::new(Self::shelf(model).walk(by, behind, last_first))
    }

    /// What stands above its level, the farthest first.
    fn above<'m>(_model: &'m Model, _spec: &Self) -> Levels<'m> {
        Vec::new()
    }

    /// The labels by which a list selects.
    fn labels(model: &Model, object: &Object<Self>) -> BTreeMap<String, String> {
        let mut chain = Self::above(model, &object.spec);
        chain.extend(Self::LEVEL.zip(object.spec.inherited_ref()));
        view::label_map(&Maps::of(&chain).labels)
    }

    /// Whether an object is selected by its labels.
    fn is_selected(model: &Model, object: &Object<Self>, selector: &Selector) -> bool {
        selector.matches(&Self::labels(model, object), &())
    }

    /// Takes the uuid and the name of a new object out of its body.
    ///
    /// # Errors
    /// When the body has none, or something else in their place.
    fn identify(_request: &Request, fields: &mut Map<String, Value>) -> Result<(Uuid, Self::Name), ApiError> {
        Ok((Uuid::now_v7(), name_of_new::<Self>(fields)?))
    }

    /// A new object's spec before its body is laid over it.
    ///
    /// # Errors
    /// When its parent is not there.
    fn blank(model: &Model, request: &Request) -> Result<Self, ApiError>;

    /// What else a new object brings with it, and what answers it.
    ///
    /// # Errors
    /// What refuses that.
    fn made(
        api: &Api,
        work: &mut Work<'_>,
        request: &Request,
        object: &Object<Self>,
    ) -> Result<Map<String, Value>, ApiError> {
        Ok(Self::show(api, &work.model, object, &request.base))
    }

    /// The refusal of a new object, as its upstream words it.
    fn refuse_new(refusal: ApiError, _request: &Request) -> ApiError {
        refusal
    }

    /// Refuses what a body says otherwise of what no write changes.
    ///
    /// # Errors
    /// With the first such field.
    fn check_fixed(_model: &Model, _spec: &Self, _fields: &Map<String, Value>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Takes an object away.
    ///
    /// # Errors
    /// What still refers to it, or that it goes only with another.
    fn remove(work: &mut Work<'_>, object: &Arc<Object<Self>>) -> Result<(), Undecided>;

    /// Checks what stands beside the store: that the file bodies are there which it names.
    ///
    /// # Errors
    /// The first one that was not sent.
    fn check_bodies(_api: &Api, _spec: &Self) -> Result<(), ApiError> {
        Ok(())
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
    /// When this kind needs one.
    fn no_name() -> Result<Self::Name, ApiError> {
        Err(needs_name(Self::KIND))
    }
}

/// The objects whose labels a selector selects.
///
/// # Errors
/// As [`read_selector`].
pub(super) fn selector<S: Shown>(asked: &Asked<'_>, _name: &'static str) -> Result<Option<Kept<S>>, ApiError> {
    let selector = read_selector(asked.query())?;
    Ok(selector.map(|s| Kept::those(move |_, model, object| S::is_selected(model, object, &s))))
}

/// The body of an object, with those of its fields alone that are wanted.
pub(super) fn body<S: Shown>(
    api: &Api,
    model: &Model,
    object: &Object<S>,
    base: &str,
    wanted: &dyn Fn(&str) -> bool,
) -> Map<String, Value> {
    let mut body = fields_of(&object.spec, &ModelNames::new(model, &api.traits), wanted);
    view::meta(&mut body, &object.meta);
    body.extend(S::named(&object.meta.name));
    body.insert("field_owners".into(), json!(object.spec.owners_ref()));
    S::complete(api, model, object, &mut body);
    kept::fill(S::EXTRA, &mut body);
    if let Some((level, own)) = S::LEVEL.zip(object.spec.inherited_ref()) {
        view::maps(&mut body, S::above(model, &object.spec), level, own, wanted);
    }
    body.insert("links".into(), json!(view::links(base, &S::path(object))));
    body.retain(|name, _| wanted(name));
    body
}

/// Reads a body's fields, of our own or the upstream's names.
///
/// # Errors
/// What is wrong with the first of them.
pub(super) fn read_body<S: Shown>(mut body: Map<String, Value>) -> Result<Body, ApiError> {
    for (other, own) in S::RENAMED {
        let Some(value) = body.remove(*other) else { continue };
        if body.insert((*own).to_owned(), value.clone()).is_some_and(|before| before != value) {
            let message = format!("{other} and {own} are two names of one field; give one of them");
            return Err(ApiError::new(ErrorType::FieldInvalid, message).field(*own));
        }
    }
    S::adapt(&mut body)?;
    Body::parse(&Value::Object(body).to_string()).map_err(|e| bad_field(S::KIND.word(), &e))
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
    // File bodies are sent before a write that is made, not before one that is tried out.
    if !work.is_dry_run() {
        S::check_bodies(api, &next)?;
    }
    Ok(next)
}

/// Sets fields of an object, as the plain write of a body that names them: who calls owns them from then on.
///
/// # Errors
/// As [`update`].
pub(super) fn set_fields<S: Shown, const N: usize>(
    api: &Api,
    work: &Work<'_>,
    object: &mut Object<S>,
    fields: [(&str, Value); N],
    caller: &Caller,
) -> Result<(), ApiError> {
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    let body = read_body::<S>(fields.into_iter().collect())?;
    object.spec = update(api, work, &object.spec, &body, caller, BodyShape::Own)?;
    Ok(())
}

/// `GET` of one object.
///
/// # Errors
/// When there is none.
pub(super) fn get<S: Shown>(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let object = S::locate(&model, request)?;
    let mut shown = S::show(api, &model, &object, &request.base);
    stored::add(api, &model, request, &object.spec, &mut shown)?;
    Ok(Reply::ok(shown.into()).tagged(object.meta.resource_version))
}

/// A value as JSON text.
pub(super) fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// Takes the name out of the body of a new object.
///
/// # Errors
/// When there is none, or the text is no such name.
fn name_of_new<S: Resource>(fields: &mut Map<String, Value>) -> Result<S::Name, ApiError> {
    match fields.remove("name") {
        Some(Value::String(name)) => S::parse_name(&name),
        None | Some(Value::Null) => Err(needs_name(S::KIND)),
        Some(other) => {
            let other: String = other.to_string().chars().take(64).collect();
            Err(ApiError::new(
                ErrorType::FieldInvalid,
                format!("{}'s name is a text, not {other}", S::KIND.with_article()),
            )
            .field("name"))
        }
    }
}

/// Refuses what a write says of a field that the controller alone says. What is stored may be said again, and so may `null`, which an
/// answer shows.
///
/// # Errors
/// With the first such field.
pub(super) fn check_computed<S: Shown>(spec: &S, said: impl Fn(&str) -> Option<Value>) -> Result<(), ApiError> {
    let says_other =
        |name: &str| said(name).is_some_and(|said| !said.is_null() && spec.extra_ref().get(name) != Some(&said));
    let Some(name) = S::COMPUTED.iter().find(|name| says_other(name)) else { return Ok(()) };
    let message = format!("the controller alone says the {name} of a {}; nothing was changed", S::KIND.word());
    Err(ApiError::new(ErrorType::FieldInvalid, message).field(*name).detail("leave it out"))
}

/// The refusal of an object that has no name.
fn needs_name(kind: Kind) -> ApiError {
    ApiError::new(ErrorType::FieldMissing, format!("{} needs a name", kind.with_article())).field("name")
}
