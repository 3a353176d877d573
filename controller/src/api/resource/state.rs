//! The state of a node: what resolve computed, what the host reported, and the results of its tasks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value, json};
use stemma_core::catalog::SuggestionCache;
use stemma_core::finding::Finding;
use stemma_core::object::{HoldEnd, LevelId, Node, NodeId, Timestamp};
use stemma_core::resolve::{self, Resolution, ResolvedNode};
use stemma_core::status::{
    self, AwaitedTask, HAS_ERROR_REASON, Liveness, RESULTS_PENDING_REASON, State, StateInputs, TASK_FAILED_REASON, TaskOutcome,
    TaskStatus,
};
use stemma_core::task::Mode;
use stemma_core::traits::{NodeTraits, TraitSource};
use stemma_wire::message::observed::TaskResult;
use uuid::Uuid;

use super::view;
use crate::api::Api;
use crate::cache::{Model, released};
use crate::reconcile::waves::{AwaitedNode, ShutBarrier};
use crate::reconcile::{Reconciler, state_inputs};
use crate::status as table;

/// Returns a node's traits with their sources.
pub(super) fn traits(model: &Model, node: &Node) -> NodeTraits {
    model.fleet.node_view(node.id()).map(|view| view.traits()).unwrap_or_default()
}

/// Returns the sources of each trait.
pub(super) fn trait_sources(traits: &NodeTraits) -> impl Serialize {
    let texts = |sources: &[TraitSource]| sources.iter().map(ToString::to_string).collect::<Vec<_>>();
    view::Entries(move || traits.sources().iter().map(move |(name, sources)| (name, texts(sources))))
}

/// Returns the labels that a host reported.
pub(super) fn reported_labels(model: &Model, node: &Node) -> BTreeMap<String, String> {
    let record = model.observations.get(&node.meta.uuid);
    let labels = record.into_iter().flat_map(|record| record.observation.labels.iter());
    labels.map(|label| (label.key.to_string(), label.value.to_string())).collect()
}

/// Returns the pause, hold and park that root set on the host itself, without those of operators. `null` if the host
/// reported none.
pub(super) fn reported_state(model: &Model, node: &Node) -> Value {
    let Some(record) = model.reported_states.get(&node.meta.uuid) else { return Value::Null };
    let until = |hold_end| match hold_end {
        HoldEnd::UntilRevoked => Value::Null,
        HoldEnd::Until(end) => view::format_time(end).into(),
    };
    json!({
        "paused": record.paused,
        "hold": record.hold_end().map(|(held, reason)| json!({"until": until(held), "reason": reason})),
        "parked": record.parked.as_ref().map(|reason| json!({"reason": **reason})),
    })
}

/// Returns whether a node's agent is connected.
pub(super) fn liveness(api: &Api, node: Uuid) -> Liveness {
    api.desired.as_ref().map_or(Liveness::Absent, |desired| desired.liveness(node))
}

/// Returns the number of these nodes in each state.
pub(super) fn state_counts(api: &Api, model: &Model, nodes: impl Iterator<Item = NodeId>) -> Value {
    let Some(desired) = &api.desired else { return json!({}) };
    json!(if api.is_stale {
        table::state_counts(all_state_inputs(api, model, nodes).iter())
    } else {
        desired.status().count_states(nodes.map(|node| node.0))
    })
}

/// Computes the state inputs of these nodes from the model.
pub(super) fn all_state_inputs(api: &Api, model: &Model, nodes: impl Iterator<Item = NodeId>) -> Vec<StateInputs> {
    let found = nodes.filter_map(|node| model.nodes.get(node.0));
    found.map(|node| state_inputs(api, model, node, &model.resolve(node.meta.uuid))).collect()
}

/// Returns when the controller last heard from a node's host. If the host has checked in since this process started,
/// that time is in memory. Otherwise it is the latest time in the stored reports.
pub(super) fn last_seen(api: &Api, model: &Model, node: Uuid) -> Option<Timestamp> {
    let elapsed = api.desired.as_ref().and_then(|desired| desired.time_since_check_in(node));
    if let Some(ago) = elapsed.and_then(|ago| u64::try_from(ago.as_millis()).ok()) {
        return Some(Timestamp(api.registry.now().0.saturating_sub(ago)));
    }
    let seen = model.silence.get(&node).map(|seen| seen.since);
    let times = [model.observations.get(&node).map(|record| record.at), model.reports.get(&node).map(|record| record.at)];
    times.into_iter().chain([seen]).flatten().max()
}

/// Returns all findings about a node: those of [`resolution_findings`], and those of the catalogue about the keys that
/// the node provides.
pub(super) fn findings(api: &Api, model: &Model, node: &Node, resolution: &Resolution, cache: &SuggestionCache) -> Vec<Finding> {
    let of_catalog = resolve::object_catalog_findings(&model.fleet, cache, LevelId::Node(node.id()));
    resolution_findings(api, model, node, resolution).into_iter().chain(of_catalog).collect()
}

/// Returns the findings about a node except those of the catalogue. A write collects the latter by itself, for all
/// levels.
pub(super) fn resolution_findings(api: &Api, model: &Model, node: &Node, resolution: &Resolution) -> Vec<Finding> {
    let current = current_findings(api, model, node, resolution.resolved_node().map(|answer| &**answer));
    resolution.findings(node).into_iter().chain(current).collect()
}

/// Returns the findings about a node that do not follow from its resolution alone.
///
/// For a resolved node:
/// - its desired state is too large to send;
/// - what was set on its host is in force.
///
/// For any node:
/// - two hosts use its identity;
/// - its host is ahead of the store or has not checked in since the epoch began, or the whole fleet waits;
/// - parts of its host's last report were refused, wait to be stored, or were omitted;
/// - problems that the host itself reported, such as a stuck agent;
/// - the store refuses the task set that is to be released to it.
pub(super) fn current_findings(api: &Api, model: &Model, node: &Node, answer: Option<&ResolvedNode>) -> Vec<Finding> {
    let (now, uuid) = (api.registry.now(), node.meta.uuid);
    let too_large = answer.and_then(|answer| state_inputs::desired_too_large(model, answer, now));
    let mut findings: Vec<Finding> = too_large.map(|error| resolve::too_large(node, &error)).into_iter().collect();
    findings.extend(answer.into_iter().flat_map(|answer| answer.host_findings(now)));
    if let Some(desired) = &api.desired {
        let (status, epoch_line) = (desired.status(), desired.epoch_line());
        findings.extend(desired.duplicate_hosts(uuid).map(|addresses| resolve::duplicate_host(node, addresses)));
        findings.extend(match status.ahead(uuid) {
            Some(host) => Some(resolve::host_ahead(node, host, &epoch_line, api.registry.store().stats().revision())),
            None => resolve::fleet_waiting(node, &epoch_line)
                .or_else(|| state_inputs::is_host_awaited(model, uuid).then(|| resolve::host_awaited(node))),
        });
        let refusals = status.refused_reports().get(uuid).into_iter();
        findings.extend(refusals.map(|(part, reason)| resolve::report_refused(node, part.name(), &reason)));
        let waiting = status.waiting_reports().get(uuid).into_iter();
        findings.extend(waiting.map(|(part, reason)| resolve::report_waiting(node, part.name(), &reason)));
        findings.extend(status.refused_release(uuid).map(|reason| resolve::release_refused(node, &reason)));
    }
    findings.extend(state_inputs::stuck_reason(model, uuid).map(|stuck| resolve::host_stuck(node, &stuck)));
    findings.extend(resolve::orphaned_paths(node, &state_inputs::orphans(model, uuid)));
    findings.extend(resolve::report_dropped(node, model.dropped_counts(uuid)));
    findings.extend(resolve::report_findings(node, &model.host_findings(uuid).collect::<Vec<_>>()));
    findings
}

/// Returns why no desired state is sent to a node's host: the host is ahead of the store, or the whole fleet waits.
/// `None` if the desired state is sent.
pub(super) fn blocked_reason(api: &Api, node: Uuid) -> Option<String> {
    let desired = api.desired.as_ref()?;
    let epoch_line = desired.epoch_line();
    match desired.status().ahead(node) {
        Some(host) => Some(epoch_line.not_sent_reason(host, api.registry.store().stats().revision())),
        None => epoch_line.waiting_reason(),
    }
}

/// Returns the inputs that decide a node's state.
pub(super) fn state_inputs(api: &Api, model: &Model, node: &Node, resolution: &Resolution) -> StateInputs {
    let inputs = state_inputs::state_inputs(model, api.desired.as_deref(), (node, resolution), api.registry.now());
    let Some(desired) = &api.desired else { return inputs };
    let (table, uuid) = (desired.status(), node.meta.uuid);
    StateInputs {
        liveness: desired.liveness(uuid),
        is_duplicated: desired.duplicate_hosts(uuid).is_some(),
        is_ahead: table.ahead(uuid).is_some(),
        is_store_waiting: desired.epoch_line().waits,
        is_report_refused: table.refused_reports().contains(uuid),
        is_release_refused: table.refused_release(uuid).is_some(),
        is_blocked: table.is_blocked(uuid),
        ..inputs
    }
}

/// Returns why a node is in its state:
/// - the failed tasks or, if none failed, the tasks that did not run and what these require;
/// - the first error among its findings;
/// - the nodes that it waits for;
/// - the first task without a result.
///
/// The closed barriers of the node are computed if the node is blocked or is requested alone (`is_alone`). In a list
/// this would cost too much for other nodes, so they get the barriers of the reconciler's last pass, if it has them.
pub(super) fn status_reason(
    api: &Api,
    model: &Model,
    node: &Node,
    (inputs, resolution, mode): (&StateInputs, &Resolution, Mode),
    is_alone: bool,
) -> Cow<'static, str> {
    let status = inputs.status();
    let shut = |reconciler: &Reconciler| {
        if is_alone || status.state == State::Blocked {
            reconciler.shut_barriers(model, node.id())
        } else {
            reconciler.shut_barriers_in_last_pass(model, node.id()).unwrap_or_default()
        }
    };
    let news = || state_inputs::counted_task_news(model, node.meta.uuid);
    let tasks_that = |outcome| status::tasks_with_outcome(outcome, news());
    let detail = match status.state {
        State::Failed if status.reason == TASK_FAILED_REASON => {
            tasks_that(TaskOutcome::Failed).or_else(|| status::tasks_not_run(news()))
        }
        State::Failed if status.reason == HAS_ERROR_REASON => {
            let findings = resolution_findings(api, model, node, resolution);
            let keeping = state_inputs::blocking_rules(model, resolution);
            status::first_error(&findings, &keeping).map(|code| format!("{HAS_ERROR_REASON}: {code}"))
        }
        State::Changing if status.reason == RESULTS_PENDING_REASON => barrier_reason(api, model, node, (inputs, mode), shut)
            .or_else(|| status::pending_results(state_inputs::unfinished_tasks(model, node.meta.uuid))),
        State::Blocked | State::Waiting | State::Changing => barrier_reason(api, model, node, (inputs, mode), shut),
        State::Drifted => tasks_that(TaskOutcome::Drifted),
        State::Noop => tasks_that(TaskOutcome::WouldChange),
        State::Held => released_version(model, node).map(|release| format!("{} (it runs {release})", status.reason)),
        State::Unplaced | State::Parked | State::Silent | State::Stuck | State::Failed | State::Paused | State::Converged => None,
    };
    detail.map_or(Cow::Borrowed(status.reason), Cow::Owned)
}

/// Returns the release of the task set that was released to a node.
pub(super) fn released_version(model: &Model, node: &Node) -> Option<String> {
    model.released.get(&node.meta.uuid)?.release.clone()
}

/// Returns a sentence about a closed barrier of a node, as the reason of its state: the first barrier that will not
/// open by itself, or else the first. `None` if no barrier keeps tasks of the node from running.
fn barrier_reason(
    api: &Api,
    model: &Model,
    node: &Node,
    (inputs, mode): (&StateInputs, Mode),
    shut: impl FnOnce(&Reconciler) -> Vec<ShutBarrier>,
) -> Option<String> {
    let is_applying = inputs.liveness == Liveness::Connected && mode == Mode::Apply;
    // While the whole fleet waits, that is the reason, and not a barrier.
    if inputs.is_store_waiting || !(is_applying && inputs.tasks.may_wait()) {
        return None;
    }
    let shut = shut(api.reconciler.as_ref()?);
    let is_hindered = |one: &&ShutBarrier| one.awaited_nodes.iter().any(|awaited| is_blocked(api, model, one, awaited));
    let first = shut.iter().find(is_hindered).or(shut.first())?;
    let why = |awaited: &AwaitedNode| (node_name(model, awaited.node), awaited_reason(api, model, first, awaited));
    let nodes: Vec<_> = first.awaited_nodes.iter().map(why).collect();
    let awaited = status::closed_barrier_text(&first.barrier.task, &first.barrier.selector, &nodes, first.awaited_count as u64);
    // A task that succeeded before the barrier closed again does not wait, so it is not named.
    let news = task_news(model, node.meta.uuid);
    let is_done = |task: &str| news.get(task).is_some_and(|one| one.outcome == TaskOutcome::Succeeded);
    let who = first.waiting_tasks.iter().find(|task| !is_done(task)).map_or("it", String::as_str);
    Some(format!("{who} waits for {awaited}"))
}

/// Returns the last results of a node's tasks, by task, for the task set that was released to the node. To find the
/// results of a task set, digests are computed, so this is done once for all tasks.
fn task_news(model: &Model, node: Uuid) -> BTreeMap<&str, TaskStatus<'_>> {
    state_inputs::task_news(model, node).map(|news| (news.task, news)).collect()
}

/// Returns what is known of the tasks that a barrier waits for on a node. One of the tasks represents all: the first
/// that failed, else the first that did not run because another task failed, else the first that has not succeeded.
fn awaited_state<'t>(model: &'t Model, shut: &'t ShutBarrier, awaited: &'t AwaitedNode) -> AwaitedTask<'t> {
    let node = awaited.node.0;
    let news = task_news(model, node);
    let outcome = |task: &str| news.get(task).map(|one| one.outcome);
    // The barrier does not wait for a task that the released task set does not run.
    let is_omitted = |task: &str| model.released.get(&node).is_some_and(|record| !record.runs_task(task));
    let is_pending = |task: &&str| !is_omitted(task) && outcome(task) != Some(TaskOutcome::Succeeded);
    let all = || awaited.tasks.iter().map(String::as_str);
    let failed = |has_run: bool| {
        let is_match = |one: &TaskStatus<'_>| one.outcome == TaskOutcome::Failed && one.has_run == has_run;
        all().filter(is_pending).find(|task| news.get(task).is_some_and(is_match))
    };
    let first = failed(true).or_else(|| failed(false)).or_else(|| all().find(is_pending)).or_else(|| all().next());
    let task = first.unwrap_or(&shut.barrier.task);
    let is_not_run = |one: &&TaskStatus<'_>| one.outcome == TaskOutcome::Failed && !one.has_run;
    let not_run_message = news.get(task).filter(is_not_run).map(|one| one.message);
    AwaitedTask { task, outcome: outcome(task), not_run_message, is_released: released::is_released(model, node, task) }
}

/// Returns the inputs that decide the state of a node that other nodes wait for, from the table of states if possible.
fn awaited_inputs(api: &Api, model: &Model, node: Uuid) -> StateInputs {
    let of_last_pass = || api.desired.as_ref()?.status().inputs(node);
    let of_model = || Some(state_inputs(api, model, model.nodes.get(node)?, &model.resolve(node)));
    (if api.is_stale { of_model() } else { of_last_pass().or_else(of_model) }).unwrap_or_default()
}

/// Returns whether a node will not complete by itself what a barrier waits for, so that the waiting node is blocked.
fn is_blocked(api: &Api, model: &Model, shut: &ShutBarrier, awaited: &AwaitedNode) -> bool {
    awaited_state(model, shut, awaited).is_stalled(&awaited_inputs(api, model, awaited.node.0))
}

/// Returns the display name of a node.
pub(super) fn node_name(model: &Model, node: NodeId) -> String {
    model.nodes.get(node.0).map(|node| node.display_name()).unwrap_or_default()
}

/// Returns why a node has not completed what a barrier waits for.
pub(super) fn awaited_reason(api: &Api, model: &Model, shut: &ShutBarrier, awaited: &AwaitedNode) -> String {
    status::pending_reason(&awaited_state(model, shut, awaited), &awaited_inputs(api, model, awaited.node.0))
}

/// Returns a text about the first failed task of the task set that was released to a node: the task, its message, and
/// when it failed.
pub(super) fn last_error(model: &Model, node: &Node) -> Option<String> {
    status::last_error(state_inputs::task_news(model, node.meta.uuid), view::format_time)
}

/// Returns what a host reported, and the results of its tasks.
pub(super) fn report_json(model: &Model, node: &Node) -> Value {
    let id = node.meta.uuid;
    let current: BTreeSet<&str> = state_inputs::task_news(model, id).map(|news| news.task).collect();
    let is_current = |result: &TaskResult| current.contains(result.task.as_str());
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
