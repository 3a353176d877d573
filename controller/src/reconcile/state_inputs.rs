//! Collects what the model contains about a node, for the decisions of `stemma_core::status`.

use std::sync::Arc;

use stemma_core::finding::Rule;
use stemma_core::object::{Node, Timestamp};
use stemma_core::resolve::{Resolution, ResolvedNode};
use stemma_core::rollout::{ReleaseCandidate, ReleaseState};
use stemma_core::status::ORPHANS_FACT;
use stemma_core::status::{
    HostConfirmation, Liveness, OrphanedPaths, SetBy, StateInputs, StuckAgent, TaskStatus, TaskSummary, orphaned_paths,
};
use stemma_core::task::Mode;
use stemma_wire::message::desired::Known;
use stemma_wire::message::observed::{Outcome, TaskResult};
use stemma_wire::message::{PartDigest, WireVersion, digest_part, encode_part};
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::released::{candidate, counted_task_ids, observed_task_ids, task_ids, task_set_digests};
use crate::desired::size::{self, TooLarge};
use crate::desired::{DesiredTable, encode};
use crate::intake::SentParts;
use crate::records::reported::StoredResult;

/// Returns the inputs of a node's state that the model contains, and whether the node's host holds its desired state
/// ([`confirmation`]; unknown without a table). The status table sets the other inputs: whether the agent is connected
/// or expected, whether two hosts have the node's identity, whether the host is ahead of the store, whether the store
/// waits, whether the host's last report was refused, and whether the store refuses what is released to the node.
pub(crate) fn state_inputs(
    model: &Model,
    table: Option<&DesiredTable>,
    (node, resolution): (&Node, &Resolution),
    now: Timestamp,
) -> StateInputs {
    let (state, resolved) = (model.reported_states.get(&node.meta.uuid), resolution.resolved_node().map(|answer| &**answer));
    let is_too_large = resolved.is_some_and(|answer| desired_too_large(model, answer, now).is_some());
    let is_paused = resolved.is_some_and(ResolvedNode::is_paused);
    let candidate = resolved.map(|answer| candidate(model, answer));
    let next = candidate.as_ref().map(|candidate| candidate.next_task_set(now)).unwrap_or_default();
    let is_held = candidate.as_ref().is_some_and(|candidate| candidate.is_held(now));
    let errors = candidate.as_ref().map(ReleaseCandidate::error_rules).unwrap_or_default();
    let set = task_set(model, node.meta.uuid);
    let stuck = stuck_reason(model, node.meta.uuid);
    StateInputs {
        is_placed: node.spec.nodegroup.is_some(),
        parked_by: model.fleet.parked_by(node),
        paused_by: SetBy::from_flags(is_paused, state.is_some_and(|local| local.paused)),
        is_duplicated: false,
        is_ahead: false,
        is_store_waiting: false,
        is_host_awaited: is_host_awaited(model, node.meta.uuid),
        is_report_refused: false,
        is_release_refused: false,
        is_unmet: !errors.is_empty(),
        has_error: resolution.has_error_except(&errors) || is_too_large,
        is_stuck: stuck.is_some(),
        can_run_tasks: stuck.is_some_and(|stuck| stuck.can_run_tasks),
        is_held,
        is_orphaned: !orphans(model, node.meta.uuid).is_empty(),
        is_observing: resolved.is_some_and(|answer| answer.mode().value == Mode::Observe),
        is_blocked: false,
        next_task_set: next,
        confirmation: table
            .map_or(HostConfirmation::Unknown, |table| confirmation(model, table, (node.meta.uuid, resolved), &set)),
        liveness: Liveness::default(),
        has_enrolled: false,
        tasks: tasks_of_set(model, node.meta.uuid, &set),
    }
}

/// Returns the rules of those errors about a node that only state what blocks its next task set.
pub(crate) fn blocking_rules(model: &Model, resolution: &Resolution) -> Vec<Rule> {
    resolution.resolved_node().map(|answer| candidate(model, answer).error_rules()).unwrap_or_default()
}

/// Returns why a node's agent is stuck, from its last report.
pub(crate) fn stuck_reason(model: &Model, node: Uuid) -> Option<StuckAgent> {
    StuckAgent::from_facts(&model.reports.get(&node)?.report.facts)
}

/// Returns the paths that tasks left on a node's host, from its agent's last report.
pub(crate) fn orphans(model: &Model, node: Uuid) -> OrphanedPaths {
    let fact = model.reports.get(&node).and_then(|record| record.report.facts.get(ORPHANS_FACT));
    fact.map(|fact| orphaned_paths(fact)).unwrap_or_default()
}

/// Returns whether a node's host holds its desired state: as its agent reported since the controller started, and
/// before that as it is stored.
///
/// After a restart, the record of what was last sent to the host decides. If its parts differ from the desired ones,
/// the host has not received these. If they are equal, the record shows whether the host confirmed them. A confirmation
/// is stored some seconds later. If a crash loses it, the host counts as unconfirmed until it checks in again. A record
/// of an earlier version may have no parts. Then the results of the task set decide. What was stored when the host
/// became silent takes precedence over all of these.
///
/// `resolved` is the resolved node, and `set` the [`task_set`] that was released to it.
pub(crate) fn confirmation(
    model: &Model,
    table: &DesiredTable,
    (node, resolved): (Uuid, Option<&ResolvedNode>),
    set: &[PartDigest],
) -> HostConfirmation {
    match table.confirmation(node) {
        HostConfirmation::Unknown => stored_confirmation(model, node, resolved, set),
        known => known,
    }
}

/// Returns whether a node's host holds its desired state, judging by the store alone (see [`confirmation`]).
fn stored_confirmation(model: &Model, node: Uuid, resolved: Option<&ResolvedNode>, set: &[PartDigest]) -> HostConfirmation {
    if model.silence.get(&node).is_some_and(|seen| seen.lost && seen.untold) {
        return HostConfirmation::Unconfirmed;
    }
    let Some(record) = model.sent_records.get(&node) else { return confirmation_from_results(model, node, set) };
    if let Some(parts) = record.parts {
        let is_confirmed = !record.unconfirmed && is_current(parts, resolved, set);
        return if is_confirmed { HostConfirmation::Confirmed } else { HostConfirmation::Unconfirmed };
    }
    // An earlier version recorded no parts. A task set that was released after the recorded revision was not sent yet.
    let released = model.released.get(&node).map_or(0, |released| released.revision);
    let is_same_epoch = model.epoch_line.as_ref().is_none_or(|line| line.record.now == record.epoch);
    if is_same_epoch && record.revision < released {
        HostConfirmation::Unconfirmed
    } else {
        confirmation_from_results(model, node, set)
    }
}

/// Returns whether these parts are the desired ones of a node, named in any wire version. A node that cannot be
/// resolved keeps its known part.
fn is_current(parts: SentParts, resolved: Option<&ResolvedNode>, set: &[PartDigest]) -> bool {
    let known = resolved.map(encode::known_part);
    let has_digest =
        |known: &Known| WireVersion::all().any(|version| digest_part(version, &encode_part(version, known)) == parts.known);
    known.as_ref().is_none_or(has_digest) && (set.is_empty() || set.contains(&parts.task_set))
}

/// Returns whether a node's host holds its released task set, judging by the results that the host sent.
fn confirmation_from_results(model: &Model, node: Uuid, set: &[PartDigest]) -> HostConfirmation {
    let Some((released, results)) = model.released.get(&node).zip(model.results.get(&node)) else {
        return HostConfirmation::Unknown;
    };
    let has_tasks = task_ids(model, released).next().is_some();
    match (results.has_results_for(set), has_tasks) {
        (true, _) => HostConfirmation::Confirmed,
        (false, true) => HostConfirmation::Unconfirmed,
        (false, false) => HostConfirmation::Unknown,
    }
}

/// Returns whether this store, or the one that it was restored from, sent something to a node's host, but nothing since
/// the present epoch began.
pub(crate) fn is_host_awaited(model: &Model, node: Uuid) -> bool {
    let line = model.epoch_line.as_ref().map(|line| line.record.now);
    line.zip(model.sent_records.get(&node)).is_some_and(|(now, record)| record.epoch != now)
}

/// Returns the error if the desired state of a node, now or with its next task set, is too large to be sent. The node
/// keeps its state then.
pub(crate) fn desired_too_large(model: &Model, resolved: &ResolvedNode, now: Timestamp) -> Option<TooLarge> {
    let record = model.released.get(&resolved.id().0);
    if size::is_within_limit(resolved, record.map_or(0, |released| released.max_sent_bytes())) {
        return None;
    }
    size::next_size(resolved).err().or_else(|| {
        let error = size::kept_size(resolved, &record?.task_set()).err()?;
        let state = candidate(model, resolved).state(now);
        (state != ReleaseState::Due).then_some(error)
    })
}

/// Returns a summary of the tasks that were released to a node.
pub(crate) fn tasks(model: &Model, node: Uuid) -> TaskSummary {
    tasks_of_set(model, node, &task_set(model, node))
}

/// Returns the digests of the task set that was released to a node.
pub(crate) fn task_set(model: &Model, node: Uuid) -> Vec<PartDigest> {
    model.released.get(&node).map(|released| task_set_digests(model, released)).unwrap_or_default()
}

fn tasks_of_set(model: &Model, node: Uuid, set: &[PartDigest]) -> TaskSummary {
    let results = model.results.get(&node);
    let outcomes = |released| {
        let outcome = move |task: &str| Some(results?.result_for(set, task)?.result.outcome.to_task_outcome());
        counted_task_ids(model, released).map(outcome)
    };
    TaskSummary::from_outcomes(model.released.get(&node).map(Arc::as_ref).map(outcomes), results.is_some())
}

/// Returns the released tasks that count for a node's state and have no result, in their order.
pub(crate) fn unfinished_tasks(model: &Model, node: Uuid) -> impl Iterator<Item = &str> {
    model.released.get(&node).into_iter().flat_map(move |released| {
        let (set, results) = (task_set_digests(model, released), model.results.get(&node));
        counted_task_ids(model, released)
            .filter(move |task| results.is_none_or(|results| results.result_for(&set, task).is_none()))
    })
}

/// Returns the status of the released tasks that count for a node's state, in their order.
pub(crate) fn counted_task_news(model: &Model, node: Uuid) -> impl Iterator<Item = TaskStatus<'_>> {
    let observed = model.released.get(&node).and_then(|released| observed_task_ids(model, released));
    task_news(model, node).filter(move |status| observed.is_none_or(|observed| !observed.contains(status.task)))
}

/// Returns whether a result only states that its host neither ran nor checked the task, because of the task's own mode.
/// An older agent checks such a task, and what it found is shown as for any other task.
pub(crate) fn is_observed(model: &Model, node: Uuid, result: &TaskResult) -> bool {
    let is_unchecked = result.outcome == Outcome::WouldChange && result.diff.is_empty();
    let observed = || observed_task_ids(model, model.released.get(&node)?);
    is_unchecked && observed().is_some_and(|observed| observed.contains(&result.task))
}

/// Returns the status of the tasks that were released to a node, in their order.
pub(crate) fn task_news(model: &Model, node: Uuid) -> impl Iterator<Item = TaskStatus<'_>> {
    let records = model.released.get(&node).zip(model.results.get(&node));
    records.into_iter().flat_map(|(released, results)| {
        let set = task_set_digests(model, released);
        task_ids(model, released).filter_map(move |task| {
            let StoredResult { at, result, .. } = results.result_for(&set, task)?;
            let (outcome, has_run) = (result.outcome.to_task_outcome(), result.outcome != Outcome::DependencyFailed);
            Some(TaskStatus { task, outcome, has_run, message: &result.message, since: *at })
        })
    })
}
