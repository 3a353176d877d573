//! Why a label, tag, task or trait of a node is as it is, as core accounts for it.

use serde_json::{Value, json};
use stemma_core::explain::{self, Fleetwide};
use stemma_core::object::NodeSpec;
use stemma_core::resolve::{Answer, Resolution};
use stemma_core::status::{Next, Stuck, Told};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::Shown;
use super::{resolved, state, view};
use crate::api::Api;
use crate::api::http::request::{self, Reply, Request};
use crate::cache::{Model, released};
use crate::desired::DesiredTable;
use crate::reconcile::facts;

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
    body["connection"] = state::liveness(api, node.meta.uuid).name().into();
    body["last_seen"] = json!(state::last_seen(api, &model, node.meta.uuid).map(view::time));
    // That it was told once is no confirmation; that it was not told is none for sure.
    let said = api.desired.as_ref().map_or(Told::Unknown, |desired| desired.told(node.meta.uuid));
    let told = |desired: &DesiredTable| {
        let set = facts::task_set(&model, node.meta.uuid);
        facts::told(&model, desired, (node.meta.uuid, Some(&*answer)), &set)
    };
    let known = api.desired.as_deref().map_or(said, told);
    body["confirmed"] = match (said, known) {
        (Told::Yes, _) => true.into(),
        (Told::No, _) | (Told::Unknown, Told::No) => false.into(),
        (Told::Unknown, Told::Unknown | Told::Yes) => Value::Null,
    };
    let revisions = api.desired.as_ref().map(|desired| desired.revisions(node.meta.uuid)).unwrap_or_default();
    body["published_revision"] = json!(revisions.published);
    body["confirmed_revision"] = json!(revisions.confirmed);
    body["untold"] = json!(state::untold(api, node.meta.uuid));
    body["node"] = node.display_name().into();
    body["group"] = json!(answer.place());
    Ok(Reply::ok(body))
}

/// The release of the task set that a node keeps while another one waits.
fn kept(api: &Api, model: &Model, answer: &Answer) -> Option<String> {
    let next = released::candidate(model, answer).next(api.registry.now());
    let present = model.released.get(&answer.node().meta.uuid)?;
    let release = || present.release.clone().unwrap_or_else(|| "a task set without tasks".to_owned());
    matches!(next, Next::Kept(_)).then(release)
}

/// A task's account, with what its host said of it last.
fn task(api: &Api, model: &Model, answer: &Answer, id: &str) -> Result<Value, ApiError> {
    let node = answer.node().meta.uuid;
    let (released, results) = (model.released.get(&node), model.results.get(&node));
    let set = released.map(|released| released::task_sets(model, released)).unwrap_or_default();
    let holds = || {
        // What a host runs that is ahead of the store is not what was sent from here.
        if api.desired.as_ref().is_some_and(|desired| desired.status().ahead(node).is_some()) {
            return false;
        }
        let held = api.desired.as_ref().and_then(|desired| desired.held_task_set(node));
        held.is_some_and(|held| set.contains(&held)) || results.is_some_and(|results| results.is_of(&set))
    };
    let present = results.and_then(|results| results.of(&set, id));
    let runs = released::runs_task(model, node);
    let ran = explain::Ran {
        runs: runs.as_ref().map(|runs| runs as &dyn Fn(&str) -> bool),
        has_set: released.is_some(),
        too_large: facts::too_large(model, answer, api.registry.now()).map(|error| error.to_string()),
        keeps: kept(api, model, answer),
        told: holds(),
        outcome: present.map(|present| present.result.outcome.of_node()),
        shut: &|| resolved::waits(api, model, answer.id()),
    };
    let unknown = || ApiError::new(ErrorType::ObjectNotFound, format!("the node's release has no task {}", quote(id)));
    let mut body = explain::task(answer, id, api.registry.now(), &ran).ok_or_else(unknown)?;
    let last = results.and_then(|results| results.tasks.get(id));
    if let (Some(Stuck { why, runs_on }), Some(aside)) =
        (facts::stuck_by(model, node), body["set_aside"].as_array_mut())
    {
        let what = if runs_on {
            "its agent cannot write all of what services and people read on its host, and its tasks run on"
        } else {
            "its agent is stuck, and begins nothing until that is mended"
        };
        aside.push(format!("{what}: {why}").into());
    }
    body["last"] = json!(last.map(
        |last| json!({
            "at": view::time(last.at), "outcome": last.result.outcome, "message": last.result.message, "output": last.result.output,
            "of_before": present.is_none(),
            "is_observed": present.is_some_and(|present| facts::is_observed(model, node, &present.result)),
        })
    ));
    Ok(body)
}
