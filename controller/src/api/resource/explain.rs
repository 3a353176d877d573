//! Why a label, tag, task or trait of a node is as it is, as core accounts for it.

use serde_json::{Value, json};
use stemma_core::explain::{self, Fleetwide};
use stemma_core::object::NodeSpec;
use stemma_core::resolve::{Answer, Resolution};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::Shown;
use super::{resolved, view};
use crate::api::Api;
use crate::api::http::request::{self, Reply, Request};
use crate::cache::Model;
use crate::desired::encode;

/// `GET /v1/nodes/{node}/explain?label=|tag=|task=|trait=`.
pub(super) fn get(api: &Api, request: &Request) -> request::HandlerResult {
    let parameters = &request.query;
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let answer = match model.resolve(node.meta.uuid) {
        Resolution::Complete(answer) => answer,
        Resolution::Incomplete(missing) => return Err(resolved::incomplete(&missing)),
    };
    let fleetwide = Fleetwide { fleet: &model.fleet, resolve: &|id| model.resolve(id.0) };
    let asked = |name| parameters.one(name);
    let mut body = match (asked("label")?, asked("tag")?, asked("task")?, asked("trait")?) {
        (Some(key), None, None, None) => explain::label(&answer, key, view::time),
        (None, Some(tag), None, None) => explain::tag(fleetwide, &answer, tag),
        (None, None, Some(id), None) => task(api, &model, &answer, id)?,
        (None, None, None, Some(name)) => explain::trait_name(&answer, name, &api.traits),
        _ => {
            let message = "explain takes one of label, tag, task and trait";
            return Err(ApiError::new(ErrorType::RequestQuery, message));
        }
    };
    body["node"] = node.display_name().into();
    body["group"] = json!(answer.place());
    Ok(Reply::ok(body))
}

/// A task's account, with what became of it on the host.
fn task(api: &Api, model: &Model, answer: &Answer, id: &str) -> Result<Value, ApiError> {
    let unknown = || ApiError::new(ErrorType::ObjectNotFound, format!("the node's release has no task {}", quote(id)));
    let mut body = explain::task(answer, id, api.registry.now()).ok_or_else(unknown)?;
    if answer.task_set().is_none() {
        return Ok(body);
    }
    let node = answer.node().meta.uuid;
    let released = model.released.get(&node);
    body["released"] =
        released.is_some_and(|released| crate::reconcile::facts::runs(model, released).any(|task| task == id)).into();
    let results = model.results.get(&node);
    let last = results.and_then(|results| results.tasks.get(id));
    let present = released.zip(results).and_then(|(released, results)| results.of(released.digest(), id));
    let is_done = present.is_some_and(|present| !present.result.outcome.is_failure());
    body["waits"] = if is_done { json!([]) } else { waits(api, model, answer, id).into() };
    body["last"] = json!(last.map(
        |last| json!({"at": view::time(last.at), "outcome": last.result.outcome, "message": last.result.message, "output": last.result.output})
    ));
    Ok(body)
}

/// The shut barriers that keep a task from being started, each with the task of this node that waits at it (`here`).
fn waits(api: &Api, model: &Model, answer: &Answer, id: &str) -> Vec<Value> {
    let Some(profile) = answer.task_set().map(|set| &set.profile) else { return Vec::new() };
    let before = profile.release.find(id).map(|ix| profile.barriers_before(ix)).unwrap_or_default();
    if before.is_empty() {
        return Vec::new();
    }
    let shut = resolved::waits(api, model, answer.id());
    let rows = before.into_iter().filter_map(|(here, barrier)| {
        let named = encode::barrier(profile, barrier);
        let mut row = shut.iter().find(|row| row["task"] == *named.task && row["selector"] == *named.selector)?.clone();
        row["here"] = profile.release.id(here).into();
        Some(row)
    });
    rows.collect()
}
