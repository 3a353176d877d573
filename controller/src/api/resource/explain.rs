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

/// `GET /v1/nodes/{node}/explain?label=|tag=|task=|trait=`: explains a label, a tag, a task or a trait of the node.
/// Adds the connection of the host, whether the host has confirmed its desired state, and the revisions that were
/// published and confirmed. Fails if the query does not have exactly one of these parameters, or if an object above the
/// node is missing.
pub(super) fn get(api: &Api, request: &HttpRequest) -> request::HandlerResult {
    let parameters = &request.query;
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let answer = match model.resolve(node.meta.uuid) {
        Resolution::Complete(answer) => answer,
        Resolution::Incomplete(missing) => return Err(resolved::incomplete_error(&missing)),
    };
    let context = FleetContext { fleet: &model.fleet, resolve: &|id| model.resolve(id.0) };
    let param = |name| parameters.get(name);
    let mut body = match (param("label")?, param("tag")?, param("task")?, param("trait")?) {
        (Some(key), None, None, None) => explain::explain_label(&answer, key, view::format_time),
        (None, Some(tag), None, None) => explain::explain_tag(context, &answer, tag),
        (None, None, Some(id), None) => explain_task(api, &model, &answer, id)?,
        (None, None, None, Some(name)) => explain::explain_trait(&answer, name, &api.traits),
        _ => {
            let message = "explain accepts one of label, tag, task and trait";
            return Err(ApiError::new(ErrorType::RequestQuery, message));
        }
    };
    body["connection"] = state::liveness(api, node.meta.uuid).name().into();
    body["last_seen"] = json!(state::last_seen(api, &model, node.meta.uuid).map(view::format_time));
    // A confirmation that was stored before this process started does not prove that the host still has the state. Then
    // the answer is unknown (`null`). If the store shows that the host has not confirmed the state, it is `false`.
    let confirmation = api.desired.as_ref().map_or(HostConfirmation::Unknown, |desired| desired.confirmation(node.meta.uuid));
    let from_records = |desired: &DesiredTable| {
        let task_set = state_inputs::released_task_set_digests(&model, node.meta.uuid);
        state_inputs::confirmation(&model, desired, (node.meta.uuid, Some(&*answer)), &task_set)
    };
    let stored_confirmation = api.desired.as_deref().map_or(confirmation, from_records);
    // The first value is known to this process. The second is computed from the store.
    body["confirmed"] = match (confirmation, stored_confirmation) {
        (HostConfirmation::Confirmed, _) => true.into(),
        (HostConfirmation::Unconfirmed, _) | (HostConfirmation::Unknown, HostConfirmation::Unconfirmed) => false.into(),
        (HostConfirmation::Unknown, HostConfirmation::Unknown | HostConfirmation::Confirmed) => Value::Null,
    };
    let revisions = api.desired.as_ref().map(|desired| desired.revisions(node.meta.uuid)).unwrap_or_default();
    body["published_revision"] = json!(revisions.published);
    body["confirmed_revision"] = json!(revisions.confirmed);
    body["untold"] = json!(state::not_sent_reason(api, node.meta.uuid));
    body["node"] = node.display_name().into();
    body["group"] = json!(answer.group_path());
    Ok(HttpResponse::ok(body))
}

/// Returns the release of the task set that a node runs (or a text if this has no tasks), if its next task set is
/// withheld, for example by a hold. Returns `None` if none is withheld, or if none was released to the node yet.
fn current_release(api: &Api, model: &Model, answer: &ResolvedNode) -> Option<String> {
    let next = released::candidate(model, answer).next_task_set_at(api.registry.now());
    let current = model.released.get(&answer.node().meta.uuid)?;
    let release = || current.release.clone().unwrap_or_else(|| "a task set without tasks".to_owned());
    matches!(next, NextTaskSet::Withheld(_)).then(release)
}

/// Explains whether and why a task runs on a node. Adds the last result of the task on the host.
fn explain_task(api: &Api, model: &Model, answer: &ResolvedNode, id: &str) -> Result<Value, ApiError> {
    let node = answer.node().meta.uuid;
    let (released, results) = (model.released.get(&node), model.results.get(&node));
    let digests = released.map(|released| released::task_set_digests(model, released)).unwrap_or_default();
    let has_task_set = || {
        // A host that is ahead of the store may run something that this controller did not send.
        if api.desired.as_ref().is_some_and(|desired| desired.status().host_ahead(node).is_some()) {
            return false;
        }
        let set = api.desired.as_ref().and_then(|desired| desired.held_task_set(node));
        set.is_some_and(|set| digests.contains(&set)) || results.is_some_and(|results| results.has_results_for(&digests))
    };
    let current_result = results.and_then(|results| results.result_for(&digests, id));
    let is_released = released::task_filter(model, node);
    let run_state = explain::TaskRunState {
        should_run: is_released.as_ref().map(|is_released| is_released as &dyn Fn(&str) -> bool),
        has_task_set: released.is_some(),
        too_large: state_inputs::desired_too_large(model, answer, api.registry.now()).map(|error| error.to_string()),
        kept_release: current_release(api, model, answer),
        is_confirmed: has_task_set(),
        outcome: current_result.map(|current_result| current_result.result.outcome.to_task_outcome()),
        closed_barriers: &|| resolved::closed_barriers(api, model, answer.id()),
    };
    let unknown_task = || ApiError::new(ErrorType::ObjectNotFound, format!("the node's release has no task {}", quote(id)));
    let mut body = explain::explain_task(answer, id, api.registry.now(), &run_state).ok_or_else(unknown_task)?;
    let last_result = results.and_then(|results| results.tasks.get(id));
    // `set_aside` is the list of reasons that delay the task. A stuck agent is one more reason.
    if let (Some(StuckAgent { reason: cause, can_run_tasks }), Some(reasons)) =
        (state_inputs::stuck_reason(model, node), body["set_aside"].as_array_mut())
    {
        let effect = if can_run_tasks {
            "its agent cannot write all of what services and people read on its host, and its tasks run on"
        } else {
            "its agent is stuck, and begins no task until that is corrected"
        };
        reasons.push(format!("{effect}: {cause}").into());
    }
    let reboot_report = state_inputs::reboot(model, node);
    let reboot = reboot_report.and_then(|report| explain::explain_reboot(answer, id, run_state.outcome.is_some(), &report));
    if let (Some(reason), Some(reasons)) = (reboot, body["set_aside"].as_array_mut()) {
        reasons.push(reason.into());
    }
    // `of_before` is true if the last result is that of an earlier task set.
    body["last"] = json!(last_result.map(
        |last_result| json!({
            "at": view::format_time(last_result.at), "outcome": last_result.result.outcome, "message": last_result.result.message, "output": last_result.result.output,
            "of_before": current_result.is_none(),
            "is_observed": current_result.is_some_and(|current_result| state_inputs::is_observed(model, node, &current_result.result)),
        })
    ));
    Ok(body)
}
