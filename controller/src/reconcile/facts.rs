//! What the model says of a node, for the decisions of `stemma_core::status`.

use std::sync::Arc;

use stemma_core::finding::Rule;
use stemma_core::object::{Node, Timestamp};
use stemma_core::resolve::{Answer, Resolution};
use stemma_core::rollout::{Candidate, Standing};
use stemma_core::status::ORPHANS;
use stemma_core::status::{Facts, Liveness, Orphans, Side, Stuck, TaskNews, Tasks, Told, orphans};
use stemma_core::task::Mode;
use stemma_wire::message::desired::Known;
use stemma_wire::message::observed::{Outcome, TaskResult};
use stemma_wire::message::{PartDigest, WireVersion, digest_part, encode_part};
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::released::{candidate, counted, observed, runs, task_sets};
use crate::desired::size::{self, TooLarge};
use crate::desired::{DesiredTable, encode};
use crate::intake::ToldParts;
use crate::records::reported::StoredResult;

/// What the model says of the state of a node, and whether its host holds what it is to hold ([`told`]; without a table nobody knows). The table of
/// statuses adds whether its agent is there or on its way, whether two hosts have its identity, whether its host is ahead of the store, whether the
/// store waits, whether its host's last report was refused, and whether the store refuses what is released to it.
pub(crate) fn facts(
    model: &Model,
    table: Option<&DesiredTable>,
    (node, resolution): (&Node, &Resolution),
    now: Timestamp,
) -> Facts {
    let (said, answer) = (model.said.get(&node.meta.uuid), resolution.answer().map(|answer| &**answer));
    let is_too_large = answer.is_some_and(|answer| too_large(model, answer, now).is_some());
    let is_paused = answer.is_some_and(Answer::is_paused);
    let candidate = answer.map(|answer| candidate(model, answer));
    let next = candidate.as_ref().map(|candidate| candidate.next(now)).unwrap_or_default();
    let is_held = candidate.as_ref().is_some_and(|candidate| candidate.is_held(now));
    let errors = candidate.as_ref().map(Candidate::errors).unwrap_or_default();
    let set = task_set(model, node.meta.uuid);
    let stuck = stuck_by(model, node.meta.uuid);
    Facts {
        is_placed: node.spec.nodegroup.is_some(),
        parked: model.fleet.parked(node),
        paused: Side::of(is_paused, said.is_some_and(|said| said.paused)),
        is_doubled: false,
        is_ahead: false,
        is_store_waiting: false,
        is_host_awaited: is_host_awaited(model, node.meta.uuid),
        is_report_refused: false,
        is_release_refused: false,
        is_unmet: !errors.is_empty(),
        has_error: resolution.has_error_beside(&errors) || is_too_large,
        is_stuck: stuck.is_some(),
        runs_on: stuck.is_some_and(|stuck| stuck.runs_on),
        is_held,
        is_orphaned: !orphans_of(model, node.meta.uuid).is_empty(),
        only_observes: answer.is_some_and(|answer| answer.mode().value == Mode::Observe),
        is_blocked: false,
        next,
        told: table.map_or(Told::Unknown, |table| told(model, table, (node.meta.uuid, answer), &set)),
        liveness: Liveness::default(),
        has_enrolled: false,
        tasks: tasks_of(model, node.meta.uuid, &set),
    }
}

/// The rules of the errors among the findings about a node that say no more than what keeps its next task set from it.
pub(crate) fn keeping_errors(model: &Model, resolution: &Resolution) -> Vec<Rule> {
    resolution.answer().map(|answer| candidate(model, answer).errors()).unwrap_or_default()
}

/// Why a node's agent is stuck, as it reported last.
pub(crate) fn stuck_by(model: &Model, node: Uuid) -> Option<Stuck> {
    Stuck::of(&model.reports.get(&node)?.report.facts)
}

/// The paths that tasks left on a node's host, as its agent reported last.
pub(crate) fn orphans_of(model: &Model, node: Uuid) -> Orphans {
    let fact = model.reports.get(&node).and_then(|record| record.report.facts.get(ORPHANS));
    fact.map(|fact| orphans(fact)).unwrap_or_default()
}

/// Whether a node's host holds what it is to hold: as its agent said since the controller started, and before that as it is stored.
///
/// After a restart the record of what the host was told last decides. Where its parts are not those that the host is to hold, the host has
/// not heard of these. Where they are, the record says whether the host confirmed them. A confirmation is stored some seconds later: if a crash
/// loses it, the host counts as untold until it checks in again. A record of an earlier version may have no parts: then the results of the task
/// set decide. What was written when the host became silent comes before all of these.
///
/// `answer` is what the node is to be, and `set` the [`task_set`] that was released to it.
pub(crate) fn told(
    model: &Model,
    table: &DesiredTable,
    (node, answer): (Uuid, Option<&Answer>),
    set: &[PartDigest],
) -> Told {
    match table.told(node) {
        Told::Unknown => told_as_stored(model, node, answer, set),
        told => told,
    }
}

fn told_as_stored(model: &Model, node: Uuid, answer: Option<&Answer>, set: &[PartDigest]) -> Told {
    if model.seen.get(&node).is_some_and(|seen| seen.lost && seen.untold) {
        return Told::No;
    }
    let Some(record) = model.told.get(&node) else { return told_by_results(model, node, set) };
    if let Some(parts) = record.parts {
        let is_told = !record.unconfirmed && are_to_be_told(parts, answer, set);
        return if is_told { Told::Yes } else { Told::No };
    }
    // An earlier version recorded no parts: what was released since then is not among them.
    let released = model.released.get(&node).map_or(0, |released| released.revision);
    let is_of_now = model.epoch_line.as_ref().is_none_or(|line| line.record.now == record.epoch);
    if is_of_now && record.revision < released { Told::No } else { told_by_results(model, node, set) }
}

/// Whether these parts are those that a node is to hold, in whichever wire version they are named. One that cannot be resolved stays as it is.
fn are_to_be_told(parts: ToldParts, answer: Option<&Answer>, set: &[PartDigest]) -> bool {
    let known = answer.map(encode::known);
    let is_it = |known: &Known| {
        WireVersion::all().any(|version| digest_part(version, &encode_part(version, known)) == parts.known)
    };
    known.as_ref().is_none_or(is_it) && (set.is_empty() || set.contains(&parts.task_set))
}

/// The same by the results that it sent, of the task set alone.
fn told_by_results(model: &Model, node: Uuid, set: &[PartDigest]) -> Told {
    let Some((released, results)) = model.released.get(&node).zip(model.results.get(&node)) else {
        return Told::Unknown;
    };
    let has_tasks = runs(model, released).next().is_some();
    match (results.is_of(set), has_tasks) {
        (true, _) => Told::Yes,
        (false, true) => Told::No,
        (false, false) => Told::Unknown,
    }
}

/// Whether a node's host was told something by this store or the one that it was restored from, and nothing yet since the present epoch began.
pub(crate) fn is_host_awaited(model: &Model, node: Uuid) -> bool {
    let line = model.epoch_line.as_ref().map(|line| line.record.now);
    line.zip(model.told.get(&node)).is_some_and(|(now, told)| told.epoch != now)
}

/// That what a node is told now or with its next task set is too large to be sent: it stays as it is.
pub(crate) fn too_large(model: &Model, answer: &Answer, now: Timestamp) -> Option<TooLarge> {
    let kept = model.released.get(&answer.id().0);
    if size::fits(answer, kept.map_or(0, |released| released.sent_at_most())) {
        return None;
    }
    size::of_answer(answer).err().or_else(|| {
        let error = size::of_kept(answer, &kept?.task_set()).err()?;
        let standing = candidate(model, answer).standing(now);
        (standing != Standing::Due).then_some(error)
    })
}

/// What became of the tasks that were released to a node.
pub(crate) fn tasks(model: &Model, node: Uuid) -> Tasks {
    tasks_of(model, node, &task_set(model, node))
}

/// The names of the task set that was released to a node.
pub(crate) fn task_set(model: &Model, node: Uuid) -> Vec<PartDigest> {
    model.released.get(&node).map(|released| task_sets(model, released)).unwrap_or_default()
}

fn tasks_of(model: &Model, node: Uuid, set: &[PartDigest]) -> Tasks {
    let results = model.results.get(&node);
    let outcomes = |released| {
        let outcome = move |task: &str| Some(results?.of(set, task)?.result.outcome.of_node());
        counted(model, released).map(outcome)
    };
    Tasks::of(model.released.get(&node).map(Arc::as_ref).map(outcomes), results.is_some())
}

/// The tasks that were released to a node of which no result is there, in their order.
pub(crate) fn unended(model: &Model, node: Uuid) -> impl Iterator<Item = &str> {
    model.released.get(&node).into_iter().flat_map(move |released| {
        let (set, results) = (task_sets(model, released), model.results.get(&node));
        counted(model, released).filter(move |task| results.is_none_or(|results| results.of(&set, task).is_none()))
    })
}

/// What is known of those that count for the node's state, in their order.
pub(crate) fn counted_news(model: &Model, node: Uuid) -> impl Iterator<Item = TaskNews<'_>> {
    let observed = model.released.get(&node).and_then(|released| observed(model, released));
    news(model, node).filter(move |one| observed.is_none_or(|observed| !observed.contains(one.task)))
}

/// Whether a result says of a task only that its host neither ran nor checked it, by the task's own mode. An older agent checks it: what that
/// found is shown as of any other task.
pub(crate) fn is_observed(model: &Model, node: Uuid, result: &TaskResult) -> bool {
    let says_nothing = result.outcome == Outcome::WouldChange && result.diff.is_empty();
    let observed = || observed(model, model.released.get(&node)?);
    says_nothing && observed().is_some_and(|observed| observed.contains(&result.task))
}

/// What is known of the tasks that were released to a node, in their order.
pub(crate) fn news(model: &Model, node: Uuid) -> impl Iterator<Item = TaskNews<'_>> {
    let known = model.released.get(&node).zip(model.results.get(&node));
    known.into_iter().flat_map(|(released, results)| {
        let set = task_sets(model, released);
        runs(model, released).filter_map(move |task| {
            let StoredResult { at, result, .. } = results.of(&set, task)?;
            let (outcome, was_tried) = (result.outcome.of_node(), result.outcome != Outcome::DependencyFailed);
            Some(TaskNews { task, outcome, was_tried, message: &result.message, since: *at })
        })
    })
}
