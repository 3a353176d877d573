//! A node's traits, as in Ironic's traits API: what is put and deleted is the operators' set alone.

use hyper::header;
use serde_json::{Value, json};
use stemma_core::object::{Node, NodeSpec};
use stemma_core::ownership::{Intent, Manager, OwnedMap, Said};
use stemma_core::traits::{Removal, Trait};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::Shown;
use super::{state, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::work::Work;

/// `GET /v1/nodes/{node}/traits`: the union of the sources, less what is suppressed.
pub(super) fn list(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let traits = state::traits(&model, &node);
    let mut body = json!({"traits": traits.names().collect::<Vec<_>>()});
    if !request.versions.is_ironics {
        body["trait_sources"] = json!(state::trait_sources(&traits));
    }
    Ok(Reply::ok(body))
}

/// `PUT /v1/nodes/{node}/traits`.
pub(super) async fn replace(api: &Api, request: &Request) -> HandlerResult {
    let whole = read_list(api, request)?;
    let answer = |model: &Model, node: &Node| {
        let traits = state::traits(model, node);
        Answer::json(200, json!({"traits": traits.names().collect::<Vec<_>>()}))
    };
    edit(api, request, |_, node, by| Ok(node.spec.traits.update(by, &whole)), answer).await
}

/// Changes the traits that operators give a node.
async fn edit(
    api: &Api,
    request: &Request,
    next: impl Fn(&Model, &Node, &Manager) -> Result<OwnedMap<Trait, ()>, ApiError>,
    answer: impl Fn(&Model, &Node) -> Answer,
) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &Work<'_>, node: &mut Node| {
        node.spec.traits = next(&work.model, node, &caller.manager)?;
        Ok(())
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

fn empty(_: &Model, _: &Node) -> Answer {
    Answer::empty(204)
}

fn read_list(api: &Api, request: &Request) -> Result<Intent<Trait, ()>, ApiError> {
    let schema =
        |what: String| ApiError::new(ErrorType::TraitInvalid, format!("Schema error for body: {what}")).field("traits");
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
            Value::String(name) => parse(api, name).map(|name| (name, Said::Value(()))),
            other => Err(schema(format!("a trait is a text, not {other}"))),
        };
        parsed.map_err(|refusal| refusal.field(format!("traits[{at}]")))
    };
    list.iter().enumerate().map(parse).collect()
}

fn parse(api: &Api, name: &str) -> Result<Trait, ApiError> {
    api.traits.parse(name).map_err(|e| ApiError::new(ErrorType::TraitInvalid, e.to_string()).field("traits"))
}

/// `PUT /v1/nodes/{node}/traits/{trait}`.
pub(super) async fn add(api: &Api, request: &Request) -> HandlerResult {
    let name = parse(api, request.part("trait"))?;
    request.no_body()?;
    let one = [(name, Some(Said::Value(())))].into();
    let mut reply = edit(api, request, |_, node, by| Ok(node.spec.traits.patch(by, &one)), empty).await?;
    reply.set(
        header::LOCATION,
        &format!("{}/v1/nodes/{}/traits/{}", request.base, request.part("node"), request.part("trait")),
    );
    Ok(reply)
}

/// `DELETE /v1/nodes/{node}/traits`.
pub(super) async fn clear(api: &Api, request: &Request) -> HandlerResult {
    edit(api, request, |_, _, _| Ok(OwnedMap::default()), empty).await
}

/// `DELETE /v1/nodes/{node}/traits/{trait}`.
pub(super) async fn remove(api: &Api, request: &Request) -> HandlerResult {
    let name = request.part("trait");
    let taken = Trait::new(name).map(|name| [(name, None)].into()).unwrap_or_default();
    let next = |model: &Model, node: &Node, by: &Manager| match state::traits(model, node).removal(name) {
        Removal::Possible => Ok(node.spec.traits.patch(by, &taken)),
        Removal::GivenByOthers(sources) => {
            let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
            Err(given_elsewhere(node, name, &sources))
        }
        Removal::Absent => {
            let message = format!("Node {} doesn't have a trait {}", node.display_name(), quote(name));
            Err(ApiError::new(ErrorType::ObjectNotFound, message))
        }
    };
    edit(api, request, next, empty).await
}

fn given_elsewhere(node: &Node, name: &str, sources: &[String]) -> ApiError {
    let message = format!(
        "the trait {} of node {} is given by {}, not by an operator; nothing was changed",
        quote(name),
        node.display_name(),
        sources.join(", ")
    );
    ApiError::new(ErrorType::TraitInvalid, message)
        .detail(format!("stemma trait suppress {} {name}", node.display_name()))
}
