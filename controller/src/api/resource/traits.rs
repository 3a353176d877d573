//! A node's traits, as in Ironic's traits API. `PUT` and `DELETE` change only the traits that operators set, not those
//! from other sources.

use hyper::header;
use serde_json::{Value, json};
use stemma_core::object::{Node, NodeSpec};
use stemma_core::ownership::{Intent, Manager, OwnedMap, ProvidedValue};
use stemma_core::traits::{Trait, TraitRemoval};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::ApiResource;
use super::{state, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;

/// `GET /v1/nodes/{node}/traits`: the traits of all sources, without the suppressed ones.
pub(super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let traits = state::traits(&model, &node);
    let mut body = json!({"traits": traits.names().collect::<Vec<_>>()});
    if !request.versions.is_ironic_client {
        body["trait_sources"] = json!(state::trait_sources(&traits));
    }
    Ok(HttpResponse::ok(body))
}

/// `PUT /v1/nodes/{node}/traits`: replaces the traits that operators set.
pub(super) async fn replace(api: &Api, request: &HttpRequest) -> HandlerResult {
    let intent = read_list(api, request)?;
    let answer = |model: &Model, node: &Node| {
        let traits = state::traits(model, node);
        StoredAnswer::json(200, json!({"traits": traits.names().collect::<Vec<_>>()}))
    };
    edit_traits(api, request, |_, node, by| Ok(node.spec.traits.update(by, &intent)), answer).await
}

/// Changes the traits that operators set on a node. `next` returns the new ones.
async fn edit_traits(
    api: &Api,
    request: &HttpRequest,
    next: impl Fn(&Model, &Node, &Manager) -> Result<OwnedMap<Trait, ()>, ApiError>,
    answer: impl Fn(&Model, &Node) -> StoredAnswer,
) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, node: &mut Node| {
        node.spec.traits = next(&work.model, node, &caller.manager)?;
        Ok(())
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

fn empty_answer(_: &Model, _: &Node) -> StoredAnswer {
    StoredAnswer::empty(204)
}

/// Reads the traits in the body of a request: `{"traits": […]}`.
fn read_list(api: &Api, request: &HttpRequest) -> Result<Intent<Trait, ()>, ApiError> {
    let schema = |what: String| ApiError::new(ErrorType::TraitInvalid, format!("Schema error for body: {what}")).field("traits");
    let mut body = request.object()?;
    let list = body.remove("traits");
    if let Some(other) = body.keys().next() {
        return Err(schema(format!("{} is unexpected; the body is {{\"traits\": […]}}", quote(other))));
    }
    let Some(Value::Array(list)) = list else {
        let advice = "a single trait is added with PUT /v1/nodes/{node}/traits/{trait}";
        return Err(schema("the body is {\"traits\": […]}".to_owned()).detail(advice));
    };
    let parse = |(at, value): (usize, &Value)| {
        let parsed = match value {
            Value::String(name) => parse_trait(api, name).map(|name| (name, ProvidedValue::Value(()))),
            other => Err(schema(format!("a trait is a text, not {other}"))),
        };
        parsed.map_err(|refusal| refusal.field(format!("traits[{at}]")))
    };
    list.iter().enumerate().map(parse).collect()
}

fn parse_trait(api: &Api, name: &str) -> Result<Trait, ApiError> {
    api.traits.parse(name).map_err(|e| ApiError::new(ErrorType::TraitInvalid, e.to_string()).field("traits"))
}

/// `PUT /v1/nodes/{node}/traits/{trait}`: adds a trait.
pub(super) async fn add(api: &Api, request: &HttpRequest) -> HandlerResult {
    let name = parse_trait(api, request.param("trait"))?;
    request.check_no_body()?;
    let added = [(name, Some(ProvidedValue::Value(())))].into();
    let mut reply = edit_traits(api, request, |_, node, by| Ok(node.spec.traits.patch(by, &added)), empty_answer).await?;
    reply.set_header(
        header::LOCATION,
        &format!("{}/v1/nodes/{}/traits/{}", request.base_url, request.param("node"), request.param("trait")),
    );
    Ok(reply)
}

/// `DELETE /v1/nodes/{node}/traits`: removes all traits that operators set.
pub(super) async fn clear(api: &Api, request: &HttpRequest) -> HandlerResult {
    edit_traits(api, request, |_, _, _| Ok(OwnedMap::default()), empty_answer).await
}

/// `DELETE /v1/nodes/{node}/traits/{trait}`: removes a trait. Fails if the trait comes from another source than
/// operators.
pub(super) async fn remove(api: &Api, request: &HttpRequest) -> HandlerResult {
    let name = request.param("trait");
    let removed = Trait::new(name).map(|name| [(name, None)].into()).unwrap_or_default();
    let next = |model: &Model, node: &Node, by: &Manager| match state::traits(model, node).removal(name) {
        TraitRemoval::Possible => Ok(node.spec.traits.patch(by, &removed)),
        TraitRemoval::FromOthers(sources) => {
            let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
            Err(not_operator_trait(node, name, &sources))
        }
        TraitRemoval::Absent => {
            let message = format!("Node {} doesn't have a trait {}", node.display_name(), quote(name));
            Err(ApiError::new(ErrorType::ObjectNotFound, message))
        }
    };
    edit_traits(api, request, next, empty_answer).await
}

fn not_operator_trait(node: &Node, name: &str, sources: &[String]) -> ApiError {
    let message = format!(
        "the trait {} of node {} is given by {}, not by an operator; nothing was changed",
        quote(name),
        node.display_name(),
        sources.join(", ")
    );
    ApiError::new(ErrorType::TraitInvalid, message).detail(format!("stemma trait suppress {} {name}", node.display_name()))
}
