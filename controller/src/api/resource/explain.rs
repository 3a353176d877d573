//! Explains how a node got a label, tag, task or trait. The explanation itself is computed in `stemma_core::explain`.

use serde_json::{Value, json};
use stemma_core::explain::{self, FleetContext};
use stemma_core::object::NodeSpec;
use stemma_core::resolve::{Resolution, ResolvedNode};
use stemma_core::status::{HostConfirmation, NextTaskSet, StuckAgent};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::ApiResource;
use super::{resolved, state, view};
use crate::api::Api;
use crate::api::http::request::{self, HttpRequest, HttpResponse};
use crate::cache::{Model, released};
use crate::desired::DesiredTable;
use crate::reconcile::state_inputs;

/// `GET /v1/nodes/{node}/explain?label=|tag=|task=|trait=`: explains one of these, and adds what the host confirmed.
pub(super) fn get(api: &Api, request: &HttpRequest) -> request::HandlerResult {
    let parameters = &request.query;
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let answer = match model.resolve(node.meta.uuid) {
        Resolution::Complete(answer) => answer,
        Resolution::Incomplete(missing) => return Err(resolved::incomplete_error(&missing)),
    };
    let fleetwide = FleetContext { fleet: &model.fleet, resolve: &|id| model.resolve(id.0) };
    let param = |name| parameters.get(name);
    let mut body = match (param("label")?, param("tag")?, param("task")?, param("trait")?) {
        (Some(key), None, None, None) => explain::explain_label(&answer, key, view::format_time),
        (None, Some(tag), None, None) => explain::explain_tag(fleetwide, &answer, tag),
        (None, None, Some(id), None) => explain_task(api, &model, &answer, id)?,
        (None, None, None, Some(name)) => explain::explain_trait(&answer, name, &api.traits),
        _ => {
            let message = "explain takes one of label, tag, task and trait";
            return Err(ApiError::new(ErrorType::RequestQuery, message));
        }
    };
    body["connection"] = state::liveness(api, node.meta.uuid).name().into();
    body["last_seen"] = json!(state::last_seen(api, &model, node.meta.uuid).map(view::format_time));
    // A confirmation that was stored before this process started does not prove that the host still has the state, so
    // the answer is then unknown (`null`). But if no confirmation is stored, the host certainly does not have the
    // state.
    let heard = api.desired.as_ref().map_or(HostConfirmation::Unknown, |desired| desired.confirmation(node.meta.uuid));
    let from_records = |desired: &DesiredTable| {
        let set = state_inputs::task_set(&model, node.meta.uuid);
        state_inputs::confirmation(&model, desired, (node.meta.uuid, Some(&*answer)), &set)
    };
    let recorded = api.desired.as_deref().map_or(heard, from_records);
    body["confirmed"] = match (heard, recorded) {
        (HostConfirmation::Confirmed, _) => true.into(),
        (HostConfirmation::Unconfirmed, _) | (HostConfirmation::Unknown, HostConfirmation::Unconfirmed) => false.into(),
        (HostConfirmation::Unknown, HostConfirmation::Unknown | HostConfirmation::Confirmed) => Value::Null,
    };
    let revisions = api.desired.as_ref().map(|desired| desired.revisions(node.meta.uuid)).unwrap_or_default();
    body["published_revision"] = json!(revisions.published);
    body["confirmed_revision"] = json!(revisions.confirmed);
    body["untold"] = json!(state::blocked_reason(api, node.meta.uuid));
    body["node"] = node.display_name().into();
    body["group"] = json!(answer.group_path());
    Ok(HttpResponse::ok(body))
}

/// Returns the release of the task set that a node keeps while another one is withheld.
fn current_release(api: &Api, model: &Model, answer: &ResolvedNode) -> Option<String> {
    let next = released::candidate(model, answer).next_task_set(api.registry.now());
    let present = model.released.get(&answer.node().meta.uuid)?;
    let release = || present.release.clone().unwrap_or_else(|| "a task set without tasks".to_owned());
    matches!(next, NextTaskSet::Withheld(_)).then(release)
}

/// Explains whether and why a task runs on a node, and adds the last result of the task on the host.
fn explain_task(api: &Api, model: &Model, answer: &ResolvedNode, id: &str) -> Result<Value, ApiError> {
    let node = answer.node().meta.uuid;
    let (released, results) = (model.released.get(&node), model.results.get(&node));
    let set = released.map(|released| released::task_set_digests(model, released)).unwrap_or_default();
    let has_task_set = || {
        // A host that is ahead of the store may run something that this controller did not send.
        if api.desired.as_ref().is_some_and(|desired| desired.status().ahead(node).is_some()) {
            return false;
        }
        let held = api.desired.as_ref().and_then(|desired| desired.held_task_set(node));
        held.is_some_and(|held| set.contains(&held)) || results.is_some_and(|results| results.has_results_for(&set))
    };
    let present = results.and_then(|results| results.result_for(&set, id));
    let runs = released::task_filter(model, node);
    let run_state = explain::TaskRunState {
        should_run: runs.as_ref().map(|runs| runs as &dyn Fn(&str) -> bool),
        has_task_set: released.is_some(),
        too_large: state_inputs::desired_too_large(model, answer, api.registry.now()).map(|error| error.to_string()),
        kept_release: current_release(api, model, answer),
        is_confirmed: has_task_set(),
        outcome: present.map(|present| present.result.outcome.to_task_outcome()),
        closed_barriers: &|| resolved::shut_barriers(api, model, answer.id()),
    };
    let unknown = || ApiError::new(ErrorType::ObjectNotFound, format!("the node's release has no task {}", quote(id)));
    let mut body = explain::explain_task(answer, id, api.registry.now(), &run_state).ok_or_else(unknown)?;
    let last = results.and_then(|results| results.tasks.get(id));
    if let (Some(StuckAgent { reason: why, can_run_tasks }), Some(reasons)) =
        (state_inputs::stuck_reason(model, node), body["set_aside"].as_array_mut())
    {
        let what = if can_run_tasks {
            "its agent cannot write all of what services and people read on its host, and its tasks run on"
        } else {
            "its agent is stuck, and begins nothing until that is corrected"
        };
        reasons.push(format!("{what}: {why}").into());
    }
    body["last"] = json!(last.map(
        |last| json!({
            "at": view::format_time(last.at), "outcome": last.result.outcome, "message": last.result.message, "output": last.result.output,
            "of_before": present.is_none(),
            "is_observed": present.is_some_and(|present| state_inputs::is_observed(model, node, &present.result)),
        })
    ));
    Ok(body)
}
