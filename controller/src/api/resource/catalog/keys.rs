//! Explains a key by the properties of the catalogue that restrict its values. Such a property binds the key.

use serde_json::{Value, json};
use stemma_core::catalog::KeyKind;
use stemma_core::name::did_you_mean;
use stemma_wire::error::{ApiError, ErrorType, quote};

use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};

/// `GET /v1/explain?label=KEY`, or with `parameter`, `property` or `fact` in place of `label`: lists the properties of
/// the metadata catalogue that bind the key, each with its namespace. A property binds a key if it defines the values
/// that the key may have. Fails if no property binds the key.
pub(in super::super) fn explain(api: &Api, request: &HttpRequest) -> HandlerResult {
    let mut keys = KeyKind::ALL.into_iter().filter_map(|kind| {
        let key = request.query.get(kind.description()).transpose()?;
        Some(key.map(|key| (kind, key)))
    });
    // The request must have exactly one key.
    let (Some(requested), None) = (keys.next(), keys.next()) else {
        let message = "explain accepts one key: label=, parameter=, property= or fact=";
        return Err(ApiError::new(ErrorType::RequestQuery, message));
    };
    let (kind, key) = requested?;
    let model = api.model();
    let catalog = model.fleet.catalog();
    let bindings = catalog
        .bindings(kind, key)
        .map(|binding| json!({"namespace": binding.namespace.meta.name, "property": binding.property()}));
    let bindings: Vec<Value> = bindings.collect();
    if bindings.is_empty() {
        let suggestion = did_you_mean(catalog.closest_key(kind, key));
        let message = format!("{} {} is not in the catalogue{suggestion}", kind.description(), quote(key));
        let advice = format!("a namespace that is associated with {} binds keys", kind.resource_type());
        return Err(ApiError::new(ErrorType::ObjectNotFound, message).field(kind.description()).detail(advice));
    }
    Ok(HttpResponse::ok(json!({"kind": kind.description(), "key": key, "bindings": bindings})))
}
