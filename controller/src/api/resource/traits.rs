//! A node's traits, as in Ironic's traits API: what is put and deleted is the operators' set alone.

use hyper::header;
use serde_json::{Value, json};
use stemma_core::object::{Node, NodeSpec};
use stemma_core::ownership::{Intent, Said};
use stemma_core::traits::{Removal, Trait};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::Shown;
use super::{state, writes};
use crate::api::Api;
use crate::api::http::request::{Outcome, Reply, Request};
use crate::api::http::version::IRONIC_VERSION;
use crate::records::request::Answer;

/// `GET /v1/nodes/{node}/traits`: the union of the sources, less what is suppressed.
pub(super) fn list(api: &Api, request: &Request) -> Outcome {
    let model = api.cache().model();
    let node = NodeSpec::locate(&model, request)?;
    let traits = state::traits(&model, &node);
    let mut body = json!({"traits": traits.names().collect::<Vec<_>>()});
    if !request.headers.contains_key(IRONIC_VERSION) {
        body["trait_sources"] = state::trait_sources(&traits);
    }
    Ok(Reply::ok(body))
}

/// `PUT /v1/nodes/{node}/traits`.
pub(super) async fn replace(api: &Api, request: &Request) -> Outcome {
    let caller = request.caller()?;
    let whole = read_list(api, request)?;
    let outcome = writes::change::<NodeSpec>(
        api,
        request,
        &caller,
        |_, node| {
            let mut spec = node.spec.clone();
            spec.traits = spec.traits.update(&caller.manager, &whole);
            Ok(spec)
        },
        |model, node| {
            let traits = state::traits(model, node);
            Answer::json(200, json!({"traits": traits.names().collect::<Vec<_>>()}))
        },
    );
    outcome.await
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
    let parse = |value: &Value| match value {
        Value::String(name) => parse(api, name).map(|name| (name, Said::Value(()))),
        other => Err(schema(format!("a trait is a text, not {other}"))),
    };
    list.iter().map(parse).collect()
}

fn parse(api: &Api, name: &str) -> Result<Trait, ApiError> {
    api.traits.parse(name).map_err(|e| ApiError::new(ErrorType::TraitInvalid, e.to_string()).field("traits"))
}

/// `PUT /v1/nodes/{node}/traits/{trait}`.
pub(super) async fn add(api: &Api, request: &Request) -> Outcome {
    let caller = request.caller()?;
    let name = parse(api, request.part("trait"))?;
    request.no_body()?;
    let one = [(name, Some(Said::Value(())))].into();
    let outcome = writes::change::<NodeSpec>(
        api,
        request,
        &caller,
        |_, node| {
            let mut spec = node.spec.clone();
            spec.traits = spec.traits.patch(&caller.manager, &one);
            Ok(spec)
        },
        |_, _| Answer::empty(204),
    );
    let mut reply = outcome.await?;
    reply.set(
        header::LOCATION,
        &format!("{}/v1/nodes/{}/traits/{}", request.base, request.part("node"), request.part("trait")),
    );
    Ok(reply)
}

/// `DELETE /v1/nodes/{node}/traits`.
pub(super) async fn clear(api: &Api, request: &Request) -> Outcome {
    let caller = request.caller()?;
    let outcome = writes::change::<NodeSpec>(
        api,
        request,
        &caller,
        |_, node| {
            let mut spec = node.spec.clone();
            spec.traits = stemma_core::ownership::OwnedMap::default();
            Ok(spec)
        },
        |_, _| Answer::empty(204),
    );
    outcome.await
}

/// `DELETE /v1/nodes/{node}/traits/{trait}`.
pub(super) async fn remove(api: &Api, request: &Request) -> Outcome {
    let caller = request.caller()?;
    let name = request.part("trait");
    let outcome = writes::change::<NodeSpec>(
        api,
        request,
        &caller,
        |model, node| {
            match state::traits(model, node).removal(name) {
                Removal::Possible => {}
                Removal::GivenByOthers(sources) => {
                    return Err(given_elsewhere(
                        node,
                        name,
                        &sources.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    ));
                }
                Removal::Absent => {
                    let message = format!("Node {} doesn't have a trait {}", node.meta.uuid, quote(name));
                    return Err(ApiError::new(ErrorType::ObjectNotFound, message));
                }
            }
            let mut spec = node.spec.clone();
            let taken = Trait::new(name).map(|name| [(name, None)].into()).unwrap_or_default();
            spec.traits = spec.traits.patch(&caller.manager, &taken);
            Ok(spec)
        },
        |_, _| Answer::empty(204),
    );
    outcome.await
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
