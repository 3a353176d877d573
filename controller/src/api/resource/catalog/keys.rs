//! What the catalogue says of a key.

use serde_json::{Value, json};
use stemma_core::catalog::Bound;
use stemma_core::name::suggest;
use stemma_wire::error::{ApiError, ErrorType, quote};

use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};

/// `GET /v1/explain?label=KEY`, and of a parameter, property or fact likewise.
pub(in super::super) fn explain(api: &Api, request: &Request) -> HandlerResult {
    let mut asked = Bound::ALL.into_iter().filter_map(|bound| {
        let key = request.query.one(bound.word()).transpose()?;
        Some(key.map(|key| (bound, key)))
    });
    let (Some(asked), None) = (asked.next(), asked.next()) else {
        let message = "ask of one key: label=, parameter=, property= or fact=";
        return Err(ApiError::new(ErrorType::RequestQuery, message));
    };
    let (bound, key) = asked?;
    let model = api.model();
    let catalog = model.fleet.catalog();
    let bindings = catalog
        .bindings(bound, key)
        .map(|binding| json!({"namespace": binding.namespace.meta.name, "property": binding.property()}));
    let bindings: Vec<Value> = bindings.collect();
    if bindings.is_empty() {
        let meant = suggest(catalog.near(bound, key));
        let message = format!("{} {} is not in the catalogue{meant}", bound.word(), quote(key));
        let advice = format!("a namespace that is associated with {} binds keys", bound.resource_type());
        return Err(ApiError::new(ErrorType::ObjectNotFound, message).field(bound.word()).detail(advice));
    }
    Ok(Reply::ok(json!({"kind": bound.word(), "key": key, "bindings": bindings})))
}
