//! Making, changing and deleting an object: one write each, under what the request presumes, with the answer made of what was written.

use serde_json::{Map, Value};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::Body;
use stemma_core::object::Object;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::objects::{Shown, read_body, update};
use crate::api::Api;
use crate::api::http::request::{Outcome, Reply, Request};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::request::Answer;
use crate::registry::Caller;
use crate::registry::work::{Work, Written, check_presumed};

/// `POST` of a kind whose every field has a default: 201 with the object as it looks.
///
/// # Errors
/// What is wrong with its fields; that its name is taken.
pub(super) async fn post<S: Shown + Default>(
    api: &Api,
    request: &Request,
    name: S::Name,
    fields: Map<String, Value>,
) -> Outcome {
    let caller = request.caller()?;
    let body = read_body::<S>(fields)?;
    let uuid = Uuid::now_v7();
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let spec = S::default();
        let new = New { uuid, name: name.clone(), spec, body: &body, caller: &caller, shape: BodyShape::Own };
        let made = create(api, &mut work, new)?.object;
        let answer = shown_new(201, &made, S::show(api, &work.model, &made, &request.base));
        work.finish(answer)
    });
    Ok(Reply::written(answer.await?, &request.base))
}

/// The answer of a write that made an object: how it looks, and where it is.
pub(super) fn shown_new<S: Shown>(status: u16, made: &Object<S>, shown: Map<String, Value>) -> Answer {
    Answer { location: Some(format!("/v1/{}", S::path(made))), ..Answer::json(status, shown.into()) }
}

/// Changes the spec of the object that a request's path names, under its own name.
///
/// # Errors
/// What `next` refuses, and what is refused of every write.
pub(super) async fn change<S: Shown>(
    api: &Api,
    request: &Request,
    caller: &Caller,
    next: impl Fn(&Model, &Object<S>) -> Result<S, ApiError>,
    answer: impl Fn(&Model, &Object<S>) -> Answer,
) -> Outcome {
    let presumed = request.presumed()?;
    let answer = api.registry.write(caller, |sight| {
        let mut work = Work::on(sight);
        let before = S::locate(&work.model, request)?;
        check_presumed(&before, presumed)?;
        let spec = next(&work.model, &before)?;
        let written = work.update(&before, before.meta.name.clone(), spec)?;
        let answer = answer(&work.model, &written.object);
        work.finish(answer)
    });
    Ok(Reply::written(answer.await?, &request.base))
}

/// `DELETE` of the object that a request's path names: 204.
///
/// # Errors
/// What the kind refuses, and what is refused of every write.
pub(super) async fn delete<S: Shown>(api: &Api, request: &Request) -> Outcome {
    let (caller, presumed) = (request.caller()?, request.presumed()?);
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let object = S::locate(&work.model, request)?;
        check_presumed(&object, presumed)?;
        S::remove(&mut work, &object)?;
        work.finish(Answer::empty(204))
    });
    Ok(Reply::written(answer.await?, &request.base))
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

/// Takes the name out of the body of a new object.
///
/// # Errors
/// That there is none, or that it is none.
pub(super) fn name_of_new<S: Resource>(fields: &mut Map<String, Value>) -> Result<S::Name, ApiError> {
    match fields.remove("name") {
        Some(Value::String(name)) => S::parse_name(&name),
        None | Some(Value::Null) => {
            Err(ApiError::new(ErrorType::FieldMissing, format!("a {} needs a name", S::KIND.word())).field("name"))
        }
        Some(other) => {
            let other: String = other.to_string().chars().take(64).collect();
            Err(ApiError::new(ErrorType::FieldInvalid, format!("a {}'s name is a text, not {other}", S::KIND.word()))
                .field("name"))
        }
    }
}
