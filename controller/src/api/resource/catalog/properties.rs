//! The properties of a namespace.
//!
//! Glance stores the name of a property within the property if it is created by a request of its own, and not if it
//! comes with the body of a namespace. Here both requests must give the same object, so a stored property never
//! contains its name, which is its key in the namespace. The handlers here add the name to their answers, where
//! Glance's clients look for it.

use serde_json::{Map, Value, json};
use stemma_core::catalog::property_prefix;
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{check_member_name, read_value};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::object::{Namespace, NamespaceSpec, Properties, Property};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::super::objects::{ApiResource as _, read_body, update};
use super::super::writes;
use super::body::{check_read_only, json_fields};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::Caller;
use crate::registry::admit::{bad_field, part_refusal};
use crate::registry::work::{PendingWrite, check_unprotected};

/// Returns the spec of a catalogue namespace after `edit` has changed its properties. The new properties are checked
/// like an update whose body has only this field, and the caller then owns the properties.
fn edit_properties(
    api: &Api,
    work: &PendingWrite<'_>,
    spec: &NamespaceSpec,
    caller: &Caller,
    edit: impl FnOnce(&mut Properties),
) -> Result<NamespaceSpec, ApiError> {
    let mut properties = spec.properties.clone();
    edit(&mut properties);
    let body = read_body::<NamespaceSpec>([("properties".to_owned(), json!(properties))].into_iter().collect())?;
    update(api, work, spec, &body, caller, BodyShape::Native)
}

/// Reads a property from the body of a request. Returns its name and the property.
fn read_property(request: &HttpRequest) -> Result<(String, Property), ApiError> {
    let body = request.object()?;
    check_read_only(&body)?;
    let property: Property = read_value(&body.into()).map_err(|error| bad_field("property", &error))?;
    let Some(name) = property.name.clone() else {
        return Err(ApiError::new(ErrorType::FieldMissing, "'name' is a required property").field("name"));
    };
    Ok((name, property))
}

/// Checks the name of a new property. Stored names are not checked again, because an older version accepted longer
/// names.
fn check_new_name(name: &str) -> Result<(), ApiError> {
    check_member_name(name).map_err(|error| bad_field("property", &error.prefixed("name")))
}

/// Finds a property of a namespace by its name. The error suggests the most similar name.
fn find_property<'n>(namespace: &'n Namespace, name: &str) -> Result<&'n Property, ApiError> {
    let names = namespace.spec.properties.keys().map(String::as_str);
    namespace.spec.properties.get(name).ok_or_else(|| {
        let suggestion = did_you_mean(closest_match(name, names));
        let message = format!("Namespace {} has no property {}{suggestion}.", namespace.meta.name, quote(name));
        ApiError::new(ErrorType::ObjectNotFound, message)
    })
}

/// Fails if the namespace already has a property with this name.
fn check_name_free(namespace: &Namespace, name: &str) -> Result<(), ApiError> {
    if !namespace.spec.properties.contains_key(name) {
        return Ok(());
    }
    let message = format!("Namespace {} has a property {} already.", namespace.meta.name, quote(name));
    Err(ApiError::new(ErrorType::ObjectExists, message).field("name"))
}

/// Converts the error about a property of a namespace into the error for a request whose body is only the property. The
/// field of the new error no longer begins with `properties.NAME`.
fn property_error(refusal: ApiError, name: &str) -> ApiError {
    part_refusal(refusal, &format!("properties.{name}"))
}

/// Returns the body of a property, with its name.
fn property_json(name: &str, property: &Property) -> Value {
    let mut body = json_fields(property);
    body.insert("name".into(), name.into());
    body.into()
}

/// Returns the answer that shows one property.
fn property_answer(status: u16, namespace: &Namespace, name: &str) -> StoredAnswer {
    let property = namespace.spec.properties.get(name);
    StoredAnswer::json(status, property.map(|property| property_json(name, property)).unwrap_or_default())
}

/// `GET` of all properties of a namespace, as an object with the names as keys.
pub(in super::super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let properties: Map<String, Value> =
        namespace.spec.properties.iter().map(|(name, property)| (name.clone(), property_json(name, property))).collect();
    Ok(HttpResponse::ok(json!({"properties": properties})).with_etag(namespace.meta.resource_version))
}

/// `GET` of a property of a catalogue namespace. With `resource_type`, the name in the path must begin with the prefix
/// of the namespace's association with that type. The property is then found by the rest of the name.
pub(in super::super) fn get(api: &Api, request: &HttpRequest) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let requested = request.param("property");
    let prefix = request.query.get("resource_type")?.map_or("", |name| property_prefix(&namespace.spec, name));
    let name = requested.strip_prefix(prefix).ok_or_else(|| {
        let message = format!(
            "Property {} does not start with the expected resource type association prefix of {}.",
            quote(requested),
            quote(prefix)
        );
        ApiError::new(ErrorType::ObjectNotFound, message)
    })?;
    let property = find_property(&namespace, name)?;
    Ok(HttpResponse::ok(property_json(name, property)).with_etag(namespace.meta.resource_version))
}

/// `POST`: adds a property.
pub(in super::super) async fn create(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, (name, property)) = (request.caller()?, read_property(request)?);
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        check_name_free(namespace, &name)?;
        check_new_name(&name)?;
        let add = |properties: &mut Properties| drop(properties.insert(name.clone(), property.clone()));
        namespace.spec =
            edit_properties(api, work, &namespace.spec, &caller, add).map_err(|refusal| property_error(refusal, &name))?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_: &Model, namespace| property_answer(201, namespace, &name)).await
}

/// `PUT`: replaces a property. If the body has another name, the property is renamed.
pub(in super::super) async fn put(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, (name, property)) = (request.caller()?, read_property(request)?);
    let old_name = request.param("property");
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        find_property(namespace, old_name)?;
        if name != old_name {
            check_name_free(namespace, &name)?;
            check_new_name(&name)?;
        }
        let replace = |properties: &mut Properties| {
            properties.remove(old_name);
            properties.insert(name.clone(), property.clone());
        };
        namespace.spec =
            edit_properties(api, work, &namespace.spec, &caller, replace).map_err(|refusal| property_error(refusal, &name))?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_: &Model, namespace| property_answer(200, namespace, &name)).await
}

/// `DELETE` of a property.
pub(in super::super) async fn remove(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, name) = (request.caller()?, request.param("property"));
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        find_property(namespace, name)?;
        namespace.spec = edit_properties(api, work, &namespace.spec, &caller, |properties| drop(properties.remove(name)))?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| StoredAnswer::empty(204)).await
}

/// `DELETE` of all properties. Fails if the namespace is protected.
pub(in super::super) async fn clear(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        check_unprotected(namespace)?;
        namespace.spec = edit_properties(api, work, &namespace.spec, &caller, Properties::clear)?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| StoredAnswer::empty(204)).await
}
