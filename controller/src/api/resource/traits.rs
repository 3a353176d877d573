//! The handlers of a node's traits, as in Ironic's traits API. `PUT` and `DELETE` change only the traits that operators
//! set. Detected traits and those of inspection rules are unchanged.

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

/// Handles `GET /v1/nodes/{node}/traits`: returns the traits from all sources, without the suppressed ones.
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

/// Handles `PUT /v1/nodes/{node}/traits`: replaces the traits that operators set. The response lists the traits from
/// all sources.
pub(super) async fn replace(api: &Api, request: &HttpRequest) -> HandlerResult {
    let intent = read_traits(api, request)?;
    let answer = |model: &Model, node: &Node| {
        let traits = state::traits(model, node);
        StoredAnswer::json(200, json!({"traits": traits.names().collect::<Vec<_>>()}))
    };
    edit_traits(api, request, |_, node, manager| Ok(node.spec.traits.update(manager, &intent)), answer).await
}

/// Commits a change of the traits that operators set on the node in the path. `new_traits` returns all of these traits
/// after the change, and `answer` the response.
async fn edit_traits(
    api: &Api,
    request: &HttpRequest,
    new_traits: impl Fn(&Model, &Node, &Manager) -> Result<OwnedMap<Trait, ()>, ApiError>,
    answer: impl Fn(&Model, &Node) -> StoredAnswer,
) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, node: &mut Node| {
        node.spec.traits = new_traits(&work.model, node, &caller.manager)?;
        Ok(())
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

/// Returns the empty response (204) of a change. It is the same for every node.
fn empty_answer(_: &Model, _: &Node) -> StoredAnswer {
    StoredAnswer::empty(204)
}

/// Reads the traits in the body of a request, `{"traits": […]}`, as values that the caller provides. Fails for any
/// other field, and for an invalid trait.
fn read_traits(api: &Api, request: &HttpRequest) -> Result<Intent<Trait, ()>, ApiError> {
    let invalid = |text: String| ApiError::new(ErrorType::TraitInvalid, format!("Schema error for body: {text}")).field("traits");
    let mut body = request.object()?;
    let traits = body.remove("traits");
    if let Some(unexpected) = body.keys().next() {
        return Err(invalid(format!("{} is unexpected; the body is {{\"traits\": […]}}", quote(unexpected))));
    }
    let Some(Value::Array(traits)) = traits else {
        let advice = "a single trait is added with PUT /v1/nodes/{node}/traits/{trait}";
        return Err(invalid("the body is {\"traits\": […]}".to_owned()).detail(advice));
    };
    let parse = |(index, value): (usize, &Value)| {
        let parsed = match value {
            Value::String(name) => parse_trait(api, name).map(|name| (name, ProvidedValue::Value(()))),
            unexpected => Err(invalid(format!("a trait is a text, not {unexpected}"))),
        };
        parsed.map_err(|error| error.field(format!("traits[{index}]")))
    };
    traits.iter().enumerate().map(parse).collect()
}

/// Parses the name of a trait: a standard one, a custom one (`CUSTOM_…`), or one of the controller's configuration.
fn parse_trait(api: &Api, name: &str) -> Result<Trait, ApiError> {
    api.traits.parse(name).map_err(|error| ApiError::new(ErrorType::TraitInvalid, error.to_string()).field("traits"))
}

/// Handles `PUT /v1/nodes/{node}/traits/{trait}`: adds a trait as an operator. The response has the trait's URL in the
/// header `Location`.
pub(super) async fn add(api: &Api, request: &HttpRequest) -> HandlerResult {
    let name = parse_trait(api, request.param("trait"))?;
    request.check_no_body()?;
    let new = [(name, Some(ProvidedValue::Value(())))].into();
    let mut reply = edit_traits(api, request, |_, node, manager| Ok(node.spec.traits.patch(manager, &new)), empty_answer).await?;
    reply.set_header(
        header::LOCATION,
        &format!("{}/v1/nodes/{}/traits/{}", request.base_url, request.param("node"), request.param("trait")),
    );
    Ok(reply)
}

/// Handles `DELETE /v1/nodes/{node}/traits`: removes all traits that operators set.
pub(super) async fn clear(api: &Api, request: &HttpRequest) -> HandlerResult {
    edit_traits(api, request, |_, _, _| Ok(OwnedMap::default()), empty_answer).await
}

/// Handles `DELETE /v1/nodes/{node}/traits/{trait}`: removes a trait that operators set. Fails if the node does not
/// have the trait, or if the trait has only other sources.
pub(super) async fn remove(api: &Api, request: &HttpRequest) -> HandlerResult {
    let name = request.param("trait");
    // No node has a trait with an invalid name, so the result for such a name is `Absent` below.
    let trait_patch = Trait::new(name).map(|name| [(name, None)].into()).unwrap_or_default();
    let new_traits = |model: &Model, node: &Node, manager: &Manager| match state::traits(model, node).removal_effect(name) {
        TraitRemoval::Possible => Ok(node.spec.traits.patch(manager, &trait_patch)),
        TraitRemoval::OnlyFromOtherSources(sources) => {
            let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
            Err(not_operator_trait_error(node, name, &sources))
        }
        TraitRemoval::Absent => {
            let message = format!("Node {} doesn't have a trait {}", node.display_name(), quote(name));
            Err(ApiError::new(ErrorType::ObjectNotFound, message))
        }
    };
    edit_traits(api, request, new_traits, empty_answer).await
}

/// Returns the error for the removal of a trait that is not from an operator. It names the sources of the trait, and
/// the command that suppresses the trait.
fn not_operator_trait_error(node: &Node, name: &str, sources: &[String]) -> ApiError {
    let message = format!(
        "the trait {} of node {} is given by {}, not by an operator; nothing was changed",
        quote(name),
        node.display_name(),
        sources.join(", ")
    );
    ApiError::new(ErrorType::TraitInvalid, message).detail(format!("stemma trait suppress {} {name}", node.display_name()))
}
