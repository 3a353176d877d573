//! The properties of a namespace.
//!
//! Glance stores a property that comes by itself with its name, and one that comes in the body of a namespace without. Here one intent makes
//! one object, so neither has it: the name is its key, and is put into answers of these calls, where Glance's clients look for it.

use serde_json::{Map, Value, json};
use stemma_core::catalog::prefix;
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{check_member_name, read_value};
use stemma_core::name::{near, suggest};
use stemma_core::object::{Namespace, NamespaceSpec, Properties, Property};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::super::objects::{Shown as _, read_body, update};
use super::super::writes;
use super::body::{check_written, fields};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::Caller;
use crate::registry::admit::{bad_field, of_part};
use crate::registry::work::{Work, check_unprotected};

fn edited(
    api: &Api,
    work: &Work<'_>,
    spec: &NamespaceSpec,
    caller: &Caller,
    edit: impl FnOnce(&mut Properties),
) -> Result<NamespaceSpec, ApiError> {
    let mut properties = spec.properties.clone();
    edit(&mut properties);
    let body = read_body::<NamespaceSpec>([("properties".to_owned(), json!(properties))].into_iter().collect())?;
    update(api, work, spec, &body, caller, BodyShape::Own)
}

/// The property of a body, with its name.
fn read(request: &Request) -> Result<(String, Property), ApiError> {
    let body = request.object()?;
    check_written(&body)?;
    let property: Property = read_value(&body.into()).map_err(|error| bad_field("property", &error))?;
    let Some(name) = property.name.clone() else {
        return Err(ApiError::new(ErrorType::FieldMissing, "'name' is a required property").field("name"));
    };
    Ok((name, property))
}

/// Checks a name that no property has yet. One that is stored stays, however long an older program took it.
fn check_new(name: &str) -> Result<(), ApiError> {
    check_member_name(name).map_err(|error| bad_field("property", &error.within("name")))
}

fn find<'n>(namespace: &'n Namespace, name: &str) -> Result<&'n Property, ApiError> {
    let known = namespace.spec.properties.keys().map(String::as_str);
    namespace.spec.properties.get(name).ok_or_else(|| {
        let meant = suggest(near(name, known));
        let message = format!("Namespace {} has no property {}{meant}.", namespace.meta.name, quote(name));
        ApiError::new(ErrorType::ObjectNotFound, message)
    })
}

fn check_free(namespace: &Namespace, name: &str) -> Result<(), ApiError> {
    if !namespace.spec.properties.contains_key(name) {
        return Ok(());
    }
    let message = format!("Namespace {} has a property {} already.", namespace.meta.name, quote(name));
    Err(ApiError::new(ErrorType::ObjectExists, message).field("name"))
}

/// The refusal of a property of a namespace, as that of a request whose body is it alone.
fn of_property(refusal: ApiError, name: &str) -> ApiError {
    of_part(refusal, &format!("properties.{name}"))
}

/// A property by itself.
fn shown(name: &str, property: &Property) -> Value {
    let mut body = fields(property);
    body.insert("name".into(), name.into());
    body.into()
}

fn one(status: u16, namespace: &Namespace, name: &str) -> Answer {
    let property = namespace.spec.properties.get(name);
    Answer::json(status, property.map(|property| shown(name, property)).unwrap_or_default())
}

/// `GET` of all, by name.
pub(in super::super) fn list(api: &Api, request: &Request) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let all: Map<String, Value> =
        namespace.spec.properties.iter().map(|(name, property)| (name.clone(), shown(name, property))).collect();
    Ok(Reply::ok(json!({"properties": all})).tagged(namespace.meta.resource_version))
}

/// `GET` of one, by its name as on the resource type that is asked for.
pub(in super::super) fn get(api: &Api, request: &Request) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let asked = request.part("property");
    let prefix = request.query.one("resource_type")?.map_or("", |name| prefix(&namespace.spec, name));
    let name = asked.strip_prefix(prefix).ok_or_else(|| {
        let message = format!(
            "Property {} does not start with the expected resource type association prefix of {}.",
            quote(asked),
            quote(prefix)
        );
        ApiError::new(ErrorType::ObjectNotFound, message)
    })?;
    let property = find(&namespace, name)?;
    Ok(Reply::ok(shown(name, property)).tagged(namespace.meta.resource_version))
}

/// `POST`: adds one.
pub(in super::super) async fn create(api: &Api, request: &Request) -> HandlerResult {
    let (caller, (name, property)) = (request.caller()?, read(request)?);
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        check_free(namespace, &name)?;
        check_new(&name)?;
        let add = |all: &mut Properties| drop(all.insert(name.clone(), property.clone()));
        namespace.spec =
            edited(api, work, &namespace.spec, &caller, add).map_err(|refusal| of_property(refusal, &name))?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_: &Model, namespace| one(201, namespace, &name)).await
}

/// `PUT`: replaces one, under the name that the body gives.
pub(in super::super) async fn put(api: &Api, request: &Request) -> HandlerResult {
    let (caller, (name, property)) = (request.caller()?, read(request)?);
    let before = request.part("property");
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        find(namespace, before)?;
        if name != before {
            check_free(namespace, &name)?;
            check_new(&name)?;
        }
        let replace = |all: &mut Properties| {
            all.remove(before);
            all.insert(name.clone(), property.clone());
        };
        namespace.spec =
            edited(api, work, &namespace.spec, &caller, replace).map_err(|refusal| of_property(refusal, &name))?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_: &Model, namespace| one(200, namespace, &name)).await
}

/// `DELETE` of one.
pub(in super::super) async fn remove(api: &Api, request: &Request) -> HandlerResult {
    let (caller, name) = (request.caller()?, request.part("property"));
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        find(namespace, name)?;
        namespace.spec = edited(api, work, &namespace.spec, &caller, |all| drop(all.remove(name)))?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| Answer::empty(204)).await
}

/// `DELETE` of all.
pub(in super::super) async fn clear(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        check_unprotected(namespace)?;
        namespace.spec = edited(api, work, &namespace.spec, &caller, Properties::clear)?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| Answer::empty(204)).await
}
