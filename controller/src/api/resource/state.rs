//! The state of a node for the API. It is computed from the node's resolved values, the reports of its host, and the
//! results of its tasks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value, json};
use stemma_core::catalog::SuggestionCache;
use stemma_core::finding::Finding;
use stemma_core::object::{HoldEnd, LevelId, Node, NodeId, Timestamp};
use stemma_core::resolve::{self, Resolution, ResolvedNode};
use stemma_core::status::{
    self, AwaitedTask, HAS_ERROR_REASON, Liveness, OrphanedObject, Orphans, RESULTS_PENDING_REASON, State, StateInputs,
    TASK_FAILED_REASON, TaskOutcome, TaskStatus,
};
use stemma_core::task::Mode;
use stemma_core::traits::{NodeTraits, TraitSource};
use stemma_wire::message::observed::TaskResult;
use uuid::Uuid;

use super::view;
use crate::api::Api;
use crate::cache::{Model, released};
use crate::reconcile::waves::{AwaitedNode, ClosedBarrier};
use crate::reconcile::{Reconciler, state_inputs};
use crate::status as table;

/// Returns the traits of a node, each with its sources.
pub(super) fn traits(model: &Model, node: &Node) -> NodeTraits {
    model.fleet.node_view(node.id()).map(|view| view.traits()).unwrap_or_default()
}

/// Returns the sources of each trait as text: `operator`, `detected`, or `rule` with the rule's name or uuid.
pub(super) fn trait_sources(traits: &NodeTraits) -> impl Serialize {
    let source_texts = |sources: &[TraitSource]| sources.iter().map(ToString::to_string).collect::<Vec<_>>();
    view::Entries(move || traits.sources().iter().map(move |(name, sources)| (name, source_texts(sources))))
}

/// Returns the labels that the node's host reported last, or no labels if it reported none.
pub(super) fn reported_labels(model: &Model, node: &Node) -> BTreeMap<String, String> {
    let record = model.observations.get(&node.meta.uuid);
    let labels = record.into_iter().flat_map(|record| record.observation.labels.iter());
    labels.map(|label| (label.key.to_string(), label.value.to_string())).collect()
}

/// Returns the pause, hold and park that root set on the host itself, but not those that operators set. Returns `null`
/// if the host never reported them.
pub(super) fn reported_state(model: &Model, node: &Node) -> Value {
    let Some(record) = model.reported_states.get(&node.meta.uuid) else { return Value::Null };
    let end_json = |hold_end| match hold_end {
        HoldEnd::UntilRevoked => Value::Null,
        HoldEnd::Until(end) => view::format_time(end).into(),
    };
    json!({
        "paused": record.paused,
        "hold": record.hold_end().map(|(hold_end, reason)| json!({"until": end_json(hold_end), "reason": reason})),
        "parked": record.parked.as_ref().map(|reason| json!({"reason": **reason})),
    })
}

/// Returns what the node's host once got from tasks and no task of its task set manages now: each object with its kind, its
/// name, the task that left it, whether it may hold a secret, and the reason why `remove_orphans` does not remove it. If the
/// host counts further objects without naming them, the last item has their number (`more`).
pub(super) fn unmanaged(model: &Model, node: &Node) -> Vec<Value> {
    let Orphans { listed, unlisted_count, .. } = state_inputs::orphans(model, node.meta.uuid);
    let object = |OrphanedObject { task, kind, name, is_secret, kept }| json!({"task": task, "kind": kind, "name": name, "secret": is_secret, "kept": kept});
    let more = (unlisted_count > 0).then(|| json!({"more": unlisted_count}));
    listed.into_iter().map(object).chain(more).collect()
}

/// Returns what the node's host reports about its reboot: the tasks that ask for one, since when, and why the one that an
/// operator began has not happened. Returns `null` if no task asks and none was begun.
pub(super) fn reboot(model: &Model, node: &Node) -> Value {
    let Some(report) = state_inputs::reboot(model, node.meta.uuid) else { return Value::Null };
    let time = |seconds: u64| view::format_time(Timestamp(seconds.saturating_mul(1000)));
    json!({"since": report.since.map(time), "tasks": report.tasks, "problem": report.problem})
}

/// Returns whether the node's agent is connected, silent, or has never joined.
pub(super) fn liveness(api: &Api, node: Uuid) -> Liveness {
    api.desired.as_ref().map_or(Liveness::Absent, |desired| desired.liveness(node))
}

/// Returns the number of these nodes in each state. If the table of states is outdated (`is_stale`), the states are
/// computed from the model.
pub(super) fn state_counts(api: &Api, model: &Model, nodes: impl Iterator<Item = NodeId>) -> Value {
    let Some(desired) = &api.desired else { return json!({}) };
    json!(if api.is_stale {
        table::state_counts(all_state_inputs(api, model, nodes).iter())
    } else {
        desired.status().count_states(nodes.map(|node| node.0))
    })
}

/// Computes the inputs of the states of these nodes from the model, not from the table of states.
pub(super) fn all_state_inputs(api: &Api, model: &Model, nodes: impl Iterator<Item = NodeId>) -> Vec<StateInputs> {
    let existing_nodes = nodes.filter_map(|node| model.nodes.get(node.0));
    existing_nodes.map(|node| state_inputs(api, model, node, &model.resolve(node.meta.uuid))).collect()
}

/// Returns the time of the last contact with a node's host, or `None` if there was none. After the first check-in since
/// this process started, the time is known in memory. Before, it is the latest time in the stored reports, or the
/// stored time at which the host became silent or was heard again.
pub(super) fn last_seen(api: &Api, model: &Model, node: Uuid) -> Option<Timestamp> {
    let elapsed = api.desired.as_ref().and_then(|desired| desired.time_since_contact(node));
    if let Some(elapsed_ms) = elapsed.and_then(|elapsed_ms| u64::try_from(elapsed_ms.as_millis()).ok()) {
        return Some(Timestamp(api.registry.now().0.saturating_sub(elapsed_ms)));
    }
    let liveness_changed = model.silence.get(&node).map(|liveness_changed| liveness_changed.since);
    let report_times = [model.observations.get(&node).map(|record| record.at), model.reports.get(&node).map(|record| record.at)];
    report_times.into_iter().chain([liveness_changed]).flatten().max()
}

/// Returns all findings about a node: those of [`resolution_findings`], and those that compare the node's keys with the
/// catalogue of known keys.
pub(super) fn findings(api: &Api, model: &Model, node: &Node, resolution: &Resolution, cache: &SuggestionCache) -> Vec<Finding> {
    let catalog_findings = resolve::object_catalog_findings(&model.fleet, cache, LevelId::Node(node.id()));
    resolution_findings(api, model, node, resolution).into_iter().chain(catalog_findings).collect()
}

/// Returns the findings about a node except those about the catalogue of known keys. A write itself collects the
/// findings about the catalogue, for all levels.
pub(super) fn resolution_findings(api: &Api, model: &Model, node: &Node, resolution: &Resolution) -> Vec<Finding> {
    let current = current_findings(api, model, node, resolution.resolved_node().map(|resolved_node| &**resolved_node));
    resolution.findings(node).into_iter().chain(current).collect()
}

/// Returns the findings about a node that need more than its resolved values, for example its host's reports.
///
/// For a node that could be resolved (`resolved_node` is not `None`), these are:
/// - The desired state is too large to be sent.
/// - A pause, hold or park that was set on the host itself is in force.
///
/// For any node, these are:
/// - Two hosts use the node's identity.
/// - The host is ahead of the store, or has not checked in since the present epoch of the store began, or the whole
///   fleet waits.
/// - Parts of the host's last report were refused, wait to be stored, or were omitted.
/// - The host itself reported a problem, such as a stuck agent.
/// - Files and other objects that tasks left and that no task manages now still exist on the host, or a clean-up of such a
///   task has yet to succeed.
/// - Tasks ask for a reboot of the host.
/// - The store refused the next task set of the node.
pub(super) fn current_findings(api: &Api, model: &Model, node: &Node, resolved_node: Option<&ResolvedNode>) -> Vec<Finding> {
    let (now, uuid) = (api.registry.now(), node.meta.uuid);
    let too_large = resolved_node.and_then(|resolved_node| state_inputs::desired_too_large(model, resolved_node, now));
    let mut findings: Vec<Finding> = too_large.map(|error| resolve::too_large(node, &error)).into_iter().collect();
    findings.extend(resolved_node.into_iter().flat_map(|resolved_node| resolved_node.host_findings(now)));
    if let Some(desired) = &api.desired {
        let (status, epoch_line) = (desired.status(), desired.epoch_line());
        findings.extend(desired.duplicate_hosts(uuid).map(|addresses| resolve::duplicate_host(node, addresses)));
        findings.extend(match status.host_ahead(uuid) {
            Some(host) => Some(resolve::host_ahead(node, host, &epoch_line, api.registry.store().stats().revision())),
            None => resolve::fleet_waiting(node, &epoch_line)
                .or_else(|| state_inputs::is_host_awaited(model, uuid).then(|| resolve::host_awaited(node))),
        });
        let refused_parts = status.refused_reports().get(uuid).into_iter();
        findings.extend(refused_parts.map(|(part, reason)| resolve::report_refused(node, part.name(), &reason)));
        let waiting_parts = status.waiting_reports().get(uuid).into_iter();
        findings.extend(waiting_parts.map(|(part, reason)| resolve::report_waiting(node, part.name(), &reason)));
        findings.extend(status.refused_release(uuid).map(|reason| resolve::release_refused(node, &reason)));
    }
    findings.extend(state_inputs::stuck_reason(model, uuid).map(|reason| resolve::host_stuck(node, &reason)));
    findings.extend(resolve::orphans(node, &state_inputs::orphans(model, uuid)));
    findings.extend(state_inputs::reboot(model, uuid).map(|report| resolve::reboot_wanted(node, &report)));
    findings.extend(resolve::report_dropped(node, model.dropped_counts(uuid)));
    findings.extend(resolve::report_findings(node, &model.host_findings(uuid).collect::<Vec<_>>()));
    findings
}

/// Returns the reason why no desired state is sent to a node's host: the host is ahead of the store, or the whole fleet
/// waits. Returns `None` if the desired state is sent.
pub(super) fn not_sent_reason(api: &Api, node: Uuid) -> Option<String> {
    let desired = api.desired.as_ref()?;
    let epoch_line = desired.epoch_line();
    match desired.status().host_ahead(node) {
        Some(host) => Some(epoch_line.not_sent_reason(host, api.registry.store().stats().revision())),
        None => epoch_line.waiting_reason(),
    }
}

/// Returns the inputs from which the node's state follows: those from the model, and those that only the running
/// controller has, such as the agent's last contact.
pub(super) fn state_inputs(api: &Api, model: &Model, node: &Node, resolution: &Resolution) -> StateInputs {
    let inputs = state_inputs::state_inputs(model, api.desired.as_deref(), (node, resolution), api.registry.now());
    let Some(desired) = &api.desired else { return inputs };
    let (table, uuid) = (desired.status(), node.meta.uuid);
    StateInputs {
        liveness: desired.liveness(uuid),
        has_duplicate_identity: desired.duplicate_hosts(uuid).is_some(),
        is_host_ahead: table.host_ahead(uuid).is_some(),
        is_store_waiting: desired.epoch_line().waits,
        is_report_refused: table.refused_reports().contains(uuid),
        is_release_refused: table.refused_release(uuid).is_some(),
        is_blocked: table.is_blocked(uuid),
        ..inputs
    }
}

/// Returns the reason why a node is in its state, such as the failed tasks, the first error among the node's findings,
/// the nodes that the node waits for, or the first task without a result.
///
/// The closed barriers are computed if the node is blocked or is the only one in the response (`is_alone`). For other
/// nodes in a list this would take too long. They get the barriers of the reconciler's last pass, if there are any.
pub(super) fn status_reason(
    api: &Api,
    model: &Model,
    node: &Node,
    (inputs, resolution, mode): (&StateInputs, &Resolution, Mode),
    is_alone: bool,
) -> Cow<'static, str> {
    let status = inputs.status();
    let barriers = |reconciler: &Reconciler| {
        if is_alone || status.state == State::Blocked {
            reconciler.closed_barriers(model, node.id())
        } else {
            reconciler.closed_barriers_in_last_pass(model, node.id()).unwrap_or_default()
        }
    };
    let task_statuses = || state_inputs::counted_task_statuses(model, node.meta.uuid);
    let tasks_with = |outcome| status::tasks_with_outcome_text(outcome, task_statuses());
    let detail = match status.state {
        State::Failed if status.reason == TASK_FAILED_REASON => {
            tasks_with(TaskOutcome::Failed).or_else(|| status::tasks_not_run_text(task_statuses()))
        }
        State::Failed if status.reason == HAS_ERROR_REASON => {
            let findings = resolution_findings(api, model, node, resolution);
            let blocking_rules = state_inputs::blocking_rules(model, resolution);
            status::first_error_code(&findings, &blocking_rules).map(|code| format!("{HAS_ERROR_REASON}: {code}"))
        }
        State::Changing if status.reason == RESULTS_PENDING_REASON => barrier_reason(api, model, node, (inputs, mode), barriers)
            .or_else(|| state_inputs::reboot(model, node.meta.uuid)?.wait_text(&node.display_name()))
            .or_else(|| status::pending_results_text(state_inputs::unfinished_tasks(model, node.meta.uuid))),
        State::Blocked | State::Waiting | State::Changing => barrier_reason(api, model, node, (inputs, mode), barriers),
        State::Drifted => tasks_with(TaskOutcome::Drifted),
        State::Noop => tasks_with(TaskOutcome::WouldChange),
        State::Held => released_version(model, node).map(|release| format!("{} (it runs {release})", status.reason)),
        State::Unplaced | State::Parked | State::Silent | State::Stuck | State::Failed | State::Paused | State::Converged => None,
    };
    detail.map_or(Cow::Borrowed(status.reason), Cow::Owned)
}

/// Returns the release of the task set that was last released to a node, as NAME@VERSION. Returns `None` if there is no
/// such task set or it has no release.
pub(super) fn released_version(model: &Model, node: &Node) -> Option<String> {
    model.released.get(&node.meta.uuid)?.release.clone()
}

/// Returns a sentence about one closed barrier of a node, as the reason of the node's state. A barrier that will not
/// open by itself is preferred, otherwise the sentence is about the first barrier. `find_barriers` returns all closed
/// barriers of the node. Returns `None` if the node has none, or if its tasks do not wait for one, for example because
/// the whole fleet waits.
fn barrier_reason(
    api: &Api,
    model: &Model,
    node: &Node,
    (inputs, mode): (&StateInputs, Mode),
    find_barriers: impl FnOnce(&Reconciler) -> Vec<ClosedBarrier>,
) -> Option<String> {
    let is_applying = inputs.liveness == Liveness::Connected && mode == Mode::Apply;
    // While the whole fleet waits, the reason of the state is this wait, and not a barrier.
    if inputs.is_store_waiting || !(is_applying && inputs.tasks.may_wait_for_others()) {
        return None;
    }
    let barriers = find_barriers(api.reconciler.as_ref()?);
    let is_blocked = |barrier: &&ClosedBarrier| barrier.awaited_nodes.iter().any(|other| is_stalled(api, model, barrier, other));
    let first = barriers.iter().find(is_blocked).or(barriers.first())?;
    let reason = |awaited: &AwaitedNode| (node_name(model, awaited.node), awaited_reason(api, model, first, awaited));
    let nodes: Vec<_> = first.awaited_nodes.iter().map(reason).collect();
    let awaited = status::closed_barrier_text(&first.barrier.task, &first.barrier.selector, &nodes, first.awaited_count as u64);
    // A waiting task may have succeeded before the barrier closed again. Such a task does not wait, so the text does
    // not name it.
    let task_statuses = statuses_by_task(model, node.meta.uuid);
    let is_done = |task: &str| task_statuses.get(task).is_some_and(|status| status.outcome == TaskOutcome::Succeeded);
    // If all waiting tasks have succeeded, the word `it` stands for the node.
    let waiting_task = first.waiting_tasks.iter().find(|task| !is_done(task)).map_or("it", String::as_str);
    Some(format!("{waiting_task} waits for {awaited}"))
}

/// Returns the last results of a node's tasks, by task id, for the task set that was released to the node. The
/// computation needs the digests of the task set. So callers call this once, and not for each task.
fn statuses_by_task(model: &Model, node: Uuid) -> BTreeMap<&str, TaskStatus<'_>> {
    state_inputs::task_statuses(model, node).map(|status| (status.task, status)).collect()
}

/// Returns the state of the tasks for which a barrier waits on a node. One task represents all of them. It is the first
/// of these that exists: a failed task, a task that did not run because of a task that it requires, a task that has not
/// succeeded, any task.
fn awaited_state<'t>(model: &'t Model, closed_barrier: &'t ClosedBarrier, awaited: &'t AwaitedNode) -> AwaitedTask<'t> {
    let node = awaited.node.0;
    let task_statuses = statuses_by_task(model, node);
    let outcome = |task: &str| task_statuses.get(task).map(|status| status.outcome);
    // The barrier does not wait for a task that the released task set leaves out, for example by a condition. It waits
    // for a task that is not in the profile of this task set.
    let is_omitted = |task: &str| model.released.get(&node).is_some_and(|record| !record.runs_task(task));
    let is_pending = |task: &&str| !is_omitted(task) && outcome(task) != Some(TaskOutcome::Succeeded);
    let task_ids = || awaited.tasks.iter().map(String::as_str);
    let failed = |has_run: bool| {
        let is_match = |status: &TaskStatus<'_>| status.outcome == TaskOutcome::Failed && status.has_run == has_run;
        task_ids().filter(is_pending).find(|task| task_statuses.get(task).is_some_and(is_match))
    };
    let first = failed(true).or_else(|| failed(false)).or_else(|| task_ids().find(is_pending)).or_else(|| task_ids().next());
    let task = first.unwrap_or(&closed_barrier.barrier.task);
    let is_not_run = |status: &&TaskStatus<'_>| status.outcome == TaskOutcome::Failed && !status.has_run;
    let not_run_message = task_statuses.get(task).filter(is_not_run).map(|status| status.message);
    AwaitedTask { task, outcome: outcome(task), not_run_message, is_released: released::is_released(model, node, task) }
}

/// Returns the inputs of the state of a node for which other nodes wait. They are from the table of states if it is
/// current and has the node, and else computed from the model.
fn awaited_inputs(api: &Api, model: &Model, node: Uuid) -> StateInputs {
    let from_table = || api.desired.as_ref()?.status().inputs(node);
    let from_model = || Some(state_inputs(api, model, model.nodes.get(node)?, &model.resolve(node)));
    (if api.is_stale { from_model() } else { from_table().or_else(from_model) }).unwrap_or_default()
}

/// Returns whether a node for which a barrier waits will not do its tasks by itself, for example because one of them
/// failed. The node that waits at the barrier is then blocked.
fn is_stalled(api: &Api, model: &Model, closed_barrier: &ClosedBarrier, awaited: &AwaitedNode) -> bool {
    awaited_state(model, closed_barrier, awaited).is_stalled(&awaited_inputs(api, model, awaited.node.0))
}

/// Returns the display name of a node, or the empty text if the node does not exist.
pub(super) fn node_name(model: &Model, node: NodeId) -> String {
    model.nodes.get(node.0).map(|node| node.display_name()).unwrap_or_default()
}

/// Returns the reason why a node has not completed the tasks for which a barrier waits.
pub(super) fn awaited_reason(api: &Api, model: &Model, closed_barrier: &ClosedBarrier, awaited: &AwaitedNode) -> String {
    status::awaited_task_reason(&awaited_state(model, closed_barrier, awaited), &awaited_inputs(api, model, awaited.node.0))
}

/// Returns a text about the first failed task in the node's released task set: the task, its message, and the time of
/// the failure. Returns `None` if no task failed.
pub(super) fn last_error(model: &Model, node: &Node) -> Option<String> {
    status::first_failure_text(state_inputs::task_statuses(model, node.meta.uuid), view::format_time)
}

/// Returns the last reports of a node's host: the observed facts, traits and labels, the agent's report, and the
/// results of the tasks.
pub(super) fn report_json(model: &Model, node: &Node) -> Value {
    let id = node.meta.uuid;
    let current_tasks: BTreeSet<&str> = state_inputs::task_statuses(model, id).map(|status| status.task).collect();
    let is_current = |result: &TaskResult| current_tasks.contains(result.task.as_str());
    // Each fact is the text of a JSON value.
    let fact = |(path, text): (&str, &str)| (path.to_owned(), serde_json::from_str(text).unwrap_or_else(|_| json!(text)));
    json!({
        "observation": model.observations.get(&id).map(|record| json!({
            "at": view::format_time(record.at), "facts": record.observation.facts.iter().map(fact).collect::<Map<_, _>>(),
            "traits": record.observation.traits,
            "labels": reported_labels(model, node), "label_sources": record.label_sources,
        })),
        "report": model.reports.get(&id).map(|record| json!({"at": view::format_time(record.at), "report": record.report})),
        "results": model.results.get(&id).map(|record| record.tasks.values().map(|task| json!({
            "at": view::format_time(task.at), "task": task.result.task, "outcome": task.result.outcome, "message": task.result.message,
            "output": task.result.output, "diff": task.result.diff, "duration_ms": task.result.duration_ms, "is_current": is_current(&task.result),
            "is_observed": is_current(&task.result) && state_inputs::is_observed(model, id, &task.result),
        })).collect::<Vec<_>>()),
    })
}
