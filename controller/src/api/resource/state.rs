//! Where a node stands: what resolve says of it, what it said of itself, what became of its tasks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value, json};
use stemma_core::catalog::Meant;
use stemma_core::finding::Finding;
use stemma_core::object::{Held, LevelId, Node, NodeId, Timestamp};
use stemma_core::resolve::{self, Answer, Resolution};
use stemma_core::status::{
    self, A_TASK_FAILED, AN_ERROR, Awaited, Facts, Liveness, RESULTS_TO_COME, State, TaskNews, TaskOutcome,
};
use stemma_core::task::Mode;
use stemma_core::traits::{NodeTraits, TraitSource};
use stemma_wire::message::observed::TaskResult;
use uuid::Uuid;

use super::view;
use crate::api::Api;
use crate::cache::{Model, released};
use crate::reconcile::waves::{AwaitedNode, Shut};
use crate::reconcile::{Reconciler, facts};
use crate::status as table;

/// A node's traits with their sources.
pub(super) fn traits(model: &Model, node: &Node) -> NodeTraits {
    model.fleet.node_view(node.id()).map(|view| view.traits()).unwrap_or_default()
}

/// Each trait's sources.
pub(super) fn trait_sources(traits: &NodeTraits) -> impl Serialize {
    let texts = |sources: &[TraitSource]| sources.iter().map(ToString::to_string).collect::<Vec<_>>();
    view::Entries(move || traits.sources().iter().map(move |(name, sources)| (name, texts(sources))))
}

/// The labels that a host reported.
pub(super) fn reported(model: &Model, node: &Node) -> BTreeMap<String, String> {
    let record = model.observations.get(&node.meta.uuid);
    let labels = record.into_iter().flat_map(|record| record.observation.labels.iter());
    labels.map(|label| (label.key.to_string(), label.value.to_string())).collect()
}

/// What was said on the host itself, kept apart from what operators say of it; `null`: nothing.
pub(super) fn said(model: &Model, node: &Node) -> Value {
    let Some(said) = model.said.get(&node.meta.uuid) else { return Value::Null };
    let until = |held| match held {
        Held::UntilTakenBack => Value::Null,
        Held::Until(end) => view::time(end).into(),
    };
    json!({
        "paused": said.paused,
        "hold": said.held().map(|(held, reason)| json!({"until": until(held), "reason": reason})),
        "parked": said.parked.as_ref().map(|reason| json!({"reason": **reason})),
    })
}

/// Whether a node's agent is there.
pub(super) fn liveness(api: &Api, node: Uuid) -> Liveness {
    api.desired.as_ref().map_or(Liveness::Absent, |desired| desired.liveness(node))
}

/// How many of these nodes stand in each state.
pub(super) fn counts(api: &Api, model: &Model, nodes: impl Iterator<Item = NodeId>) -> Value {
    let Some(desired) = &api.desired else { return json!({}) };
    json!(if api.is_behind {
        table::counted(all_facts(api, model, nodes).iter())
    } else {
        desired.status().count(nodes.map(|node| node.0))
    })
}

/// What decides the states of these nodes, worked out of the model.
pub(super) fn all_facts(api: &Api, model: &Model, nodes: impl Iterator<Item = NodeId>) -> Vec<Facts> {
    let found = nodes.filter_map(|node| model.nodes.get(node.0));
    found.map(|node| facts_of(api, model, node, &model.resolve(node.meta.uuid))).collect()
}

/// When a node was last heard of, as far as anybody knows: what is in memory is newer than what is stored.
pub(super) fn last_seen(api: &Api, model: &Model, node: Uuid) -> Option<Timestamp> {
    let heard = api.desired.as_ref().and_then(|desired| desired.heard(node));
    if let Some(ago) = heard.and_then(|ago| u64::try_from(ago.as_millis()).ok()) {
        return Some(Timestamp(api.registry.now().0.saturating_sub(ago)));
    }
    let seen = model.seen.get(&node).map(|seen| seen.since);
    let said =
        [model.observations.get(&node).map(|record| record.at), model.reports.get(&node).map(|record| record.at)];
    said.into_iter().chain([seen]).flatten().max()
}

/// All findings about a node: of its answer, and of what it says of keys of the catalogue.
pub(super) fn findings(api: &Api, model: &Model, node: &Node, resolution: &Resolution, meant: &Meant) -> Vec<Finding> {
    let of_catalog = resolve::catalog_findings_of(&model.fleet, meant, LevelId::Node(node.id()));
    findings_of_answer(api, model, node, resolution).into_iter().chain(of_catalog).collect()
}

/// The findings about a node without those of the catalogue, which a write has of all levels.
pub(super) fn findings_of_answer(api: &Api, model: &Model, node: &Node, resolution: &Resolution) -> Vec<Finding> {
    let of_now = findings_of_now(api, model, node, resolution.answer().map(|answer| &**answer));
    resolution.findings(node).into_iter().chain(of_now).collect()
}

/// Those that its answer does not give by itself: that it is too large to be sent, what was said on its host and is in force, and, with or
/// without an answer, that two hosts have its identity, that its host is ahead of the store or the whole fleet waits, what its host reported
/// last that was refused, waits or was left out, what its host found itself, and why the store refuses what is released to it.
pub(super) fn findings_of_now(api: &Api, model: &Model, node: &Node, answer: Option<&Answer>) -> Vec<Finding> {
    let (now, uuid) = (api.registry.now(), node.meta.uuid);
    let too_large = answer.and_then(|answer| facts::too_large(model, answer, now));
    let mut findings: Vec<Finding> = too_large.map(|error| resolve::too_large(node, &error)).into_iter().collect();
    findings.extend(answer.into_iter().flat_map(|answer| answer.findings_of_host(now)));
    if let Some(desired) = &api.desired {
        let (status, line) = (desired.status(), desired.epoch_line());
        findings.extend(desired.two_hosts(uuid).map(|addresses| resolve::doubled(node, addresses)));
        findings.extend(match status.ahead(uuid) {
            Some(host) => Some(resolve::host_ahead(node, host, &line, api.registry.store().stats().revision())),
            None => resolve::fleet_waiting(node, &line)
                .or_else(|| facts::is_host_awaited(model, uuid).then(|| resolve::host_awaited(node))),
        });
        let refused = status.refused_reports().of(uuid).into_iter();
        findings.extend(refused.map(|(part, reason)| resolve::report_refused(node, part.name(), &reason)));
        let waiting = status.waiting_reports().of(uuid).into_iter();
        findings.extend(waiting.map(|(part, reason)| resolve::report_waiting(node, part.name(), &reason)));
        findings.extend(status.refused_release(uuid).map(|reason| resolve::release_refused(node, &reason)));
    }
    findings.extend(facts::stuck_by(model, uuid).map(|stuck| resolve::host_stuck(node, &stuck)));
    findings.extend(resolve::orphaned_paths(node, &facts::orphans_of(model, uuid)));
    findings.extend(resolve::report_left_out(node, model.left_out(uuid)));
    findings.extend(resolve::report_findings(node, &model.findings_of_host(uuid).collect::<Vec<_>>()));
    findings
}

/// Why nothing is sent to a node's host, as its finding says, or because the whole fleet waits; `None` where the host is told.
pub(super) fn untold(api: &Api, node: Uuid) -> Option<String> {
    let desired = api.desired.as_ref()?;
    let line = desired.epoch_line();
    match desired.status().ahead(node) {
        Some(host) => Some(line.why_untold(host, api.registry.store().stats().revision())),
        None => line.why_all_wait(),
    }
}

/// What decides a node's state.
pub(super) fn facts_of(api: &Api, model: &Model, node: &Node, answer: &Resolution) -> Facts {
    let facts = facts::facts(model, api.desired.as_deref(), (node, answer), api.registry.now());
    let Some(desired) = &api.desired else { return facts };
    let (table, uuid) = (desired.status(), node.meta.uuid);
    Facts {
        liveness: desired.liveness(uuid),
        is_doubled: desired.two_hosts(uuid).is_some(),
        is_ahead: table.ahead(uuid).is_some(),
        is_store_waiting: desired.epoch_line().waits,
        is_report_refused: table.refused_reports().has(uuid),
        is_release_refused: table.refused_release(uuid).is_some(),
        is_blocked: table.is_blocked(uuid),
        ..facts
    }
}

/// Why a node stands where it stands: where a task failed, which, and where none failed but one did not run, what that requires; where an error
/// is found, the first; where others keep it, who; where results are still to come, of which task. Who keeps one that is not blocked is said as
/// far as the last pass knows it, but for one that is asked for alone, of which it is worked out: that costs more than the status.
pub(super) fn reason(
    api: &Api,
    model: &Model,
    node: &Node,
    (facts, resolution, mode): (&Facts, &Resolution, Mode),
    is_alone: bool,
) -> Cow<'static, str> {
    let status = facts.status();
    let shut = |reconciler: &Reconciler| {
        if is_alone || status.state == State::Blocked {
            reconciler.shut(model, node.id())
        } else {
            reconciler.shut_in_last_pass(model, node.id()).unwrap_or_default()
        }
    };
    let news = || facts::counted_news(model, node.meta.uuid);
    let tasks_that = |ended| status::tasks_that(ended, news());
    let said = match status.state {
        State::Failed if status.reason == A_TASK_FAILED => {
            tasks_that(TaskOutcome::Failed).or_else(|| status::tasks_not_run(news()))
        }
        State::Failed if status.reason == AN_ERROR => {
            let findings = findings_of_answer(api, model, node, resolution);
            let keeping = facts::keeping_errors(model, resolution);
            status::first_error(&findings, &keeping).map(|code| format!("{AN_ERROR}: {code}"))
        }
        State::Changing if status.reason == RESULTS_TO_COME => waits(api, model, node, (facts, mode), shut)
            .or_else(|| status::awaited_results(facts::unended(model, node.meta.uuid))),
        State::Blocked | State::Waiting | State::Changing => waits(api, model, node, (facts, mode), shut),
        State::Drifted => tasks_that(TaskOutcome::Drifted),
        State::Noop => tasks_that(TaskOutcome::WouldChange),
        State::Held => kept_release(model, node).map(|release| format!("{} (it runs {release})", status.reason)),
        State::Unplaced
        | State::Parked
        | State::Silent
        | State::Stuck
        | State::Failed
        | State::Paused
        | State::Converged => None,
    };
    said.map_or(Cow::Borrowed(status.reason), Cow::Owned)
}

/// The release of what was released to a node.
pub(super) fn kept_release(model: &Model, node: &Node) -> Option<String> {
    model.released.get(&node.meta.uuid)?.release.clone()
}

/// The first barrier that is shut for a node, as a sentence in place of its status's reason; `None` where none keeps its tasks from being
/// run.
fn waits(
    api: &Api,
    model: &Model,
    node: &Node,
    (facts, mode): (&Facts, Mode),
    shut: impl FnOnce(&Reconciler) -> Vec<Shut>,
) -> Option<String> {
    let is_there = facts.liveness == Liveness::Connected && mode == Mode::Apply;
    // What waits for others waits for the fleet first.
    if facts.is_store_waiting || !(is_there && facts.tasks.may_wait()) {
        return None;
    }
    let shut = shut(api.reconciler.as_ref()?);
    let is_hindered = |one: &&Shut| one.nodes.iter().any(|awaited| is_hindered(api, model, one, awaited));
    let first = shut.iter().find(is_hindered).or(shut.first())?;
    let why = |awaited: &AwaitedNode| (name_of(model, awaited.node), why_not_done(api, model, first, awaited));
    let nodes: Vec<_> = first.nodes.iter().map(why).collect();
    let awaited = status::awaited(&first.barrier.task, &first.barrier.selector, &nodes, first.count as u64);
    // One that was done before the barrier shut again does not wait.
    let news = news_of(model, node.meta.uuid);
    let is_done = |task: &str| news.get(task).is_some_and(|one| one.outcome == TaskOutcome::Succeeded);
    let who = first.here.iter().find(|task| !is_done(task)).map_or("it", String::as_str);
    Some(format!("{who} waits for {awaited}"))
}

/// What is known of the tasks of a node, in the task set that was released to it. The names of that are digests: they are worked out once for all.
fn news_of(model: &Model, node: Uuid) -> BTreeMap<&str, TaskNews<'_>> {
    facts::news(model, node).map(|news| (news.task, news)).collect()
}

/// What is known of what a barrier waits for on a node: of the tasks there the first that failed stands for them, or else the first that did not run
/// since another failed, or else the first that is not done.
fn awaited_on<'t>(model: &'t Model, shut: &'t Shut, awaited: &'t AwaitedNode) -> Awaited<'t> {
    let node = awaited.node.0;
    let news = news_of(model, node);
    let outcome = |task: &str| news.get(task).map(|one| one.outcome);
    // One that was released and does not run is left out.
    let leaves_out = |task: &str| model.released.get(&node).is_some_and(|record| !record.runs_task(task));
    let is_left = |task: &&str| !leaves_out(task) && outcome(task) != Some(TaskOutcome::Succeeded);
    let all = || awaited.tasks.iter().map(String::as_str);
    let failed = |was_tried: bool| {
        let is_it = |one: &TaskNews<'_>| one.outcome == TaskOutcome::Failed && one.was_tried == was_tried;
        all().filter(is_left).find(|task| news.get(task).is_some_and(is_it))
    };
    let first = failed(true).or_else(|| failed(false)).or_else(|| all().find(is_left)).or_else(|| all().next());
    let task = first.unwrap_or(&shut.barrier.task);
    let is_not_run = |one: &&TaskNews<'_>| one.outcome == TaskOutcome::Failed && !one.was_tried;
    let not_run = news.get(task).filter(is_not_run).map(|one| one.message);
    Awaited { task, outcome: outcome(task), not_run, was_released: released::was_released(model, node, task) }
}

/// What decides the state of a node that others wait for.
fn facts_of_awaited(api: &Api, model: &Model, node: Uuid) -> Facts {
    let of_last_pass = || api.desired.as_ref()?.status().facts(node);
    let of_model = || Some(facts_of(api, model, model.nodes.get(node)?, &model.resolve(node)));
    (if api.is_behind { of_model() } else { of_last_pass().or_else(of_model) }).unwrap_or_default()
}

/// Whether a node will not by itself be done with what a barrier waits for there.
fn is_hindered(api: &Api, model: &Model, shut: &Shut, awaited: &AwaitedNode) -> bool {
    awaited_on(model, shut, awaited).is_in_vain(&facts_of_awaited(api, model, awaited.node.0))
}

/// What a node is called.
pub(super) fn name_of(model: &Model, node: NodeId) -> String {
    model.nodes.get(node.0).map(|node| node.display_name()).unwrap_or_default()
}

/// Why a node is not done with what a barrier waits for there (so far).
pub(super) fn why_not_done(api: &Api, model: &Model, shut: &Shut, awaited: &AwaitedNode) -> String {
    status::why_not_done(&awaited_on(model, shut, awaited), &facts_of_awaited(api, model, awaited.node.0))
}

/// The first task that failed, of those that were released: the task, its sentence and since when.
pub(super) fn last_error(model: &Model, node: &Node) -> Option<String> {
    status::last_error(facts::news(model, node.meta.uuid), view::time)
}

/// What a host said, and what became of its tasks.
pub(super) fn report(model: &Model, node: &Node) -> Value {
    let id = node.meta.uuid;
    let current: BTreeSet<&str> = facts::news(model, id).map(|news| news.task).collect();
    let is_current = |result: &TaskResult| current.contains(result.task.as_str());
    // Each fact is the text of a JSON value.
    let fact =
        |(path, text): (&str, &str)| (path.to_owned(), serde_json::from_str(text).unwrap_or_else(|_| json!(text)));
    json!({
        "observation": model.observations.get(&id).map(|record| json!({
            "at": view::time(record.at), "facts": record.observation.facts.iter().map(fact).collect::<Map<_, _>>(),
            "traits": record.observation.traits,
            "labels": reported(model, node), "label_sources": record.label_sources,
        })),
        "report": model.reports.get(&id).map(|record| json!({"at": view::time(record.at), "report": record.report})),
        "results": model.results.get(&id).map(|record| record.tasks.values().map(|task| json!({
            "at": view::time(task.at), "task": task.result.task, "outcome": task.result.outcome, "message": task.result.message,
            "output": task.result.output, "diff": task.result.diff, "duration_ms": task.result.duration_ms, "is_current": is_current(&task.result),
            "is_observed": is_current(&task.result) && facts::is_observed(model, id, &task.result),
        })).collect::<Vec<_>>()),
    })
}
