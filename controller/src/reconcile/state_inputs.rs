//! Collects from the model the inputs from which `stemma_core::status` computes the state of a node.

use std::sync::Arc;

use stemma_core::finding::Rule;
use stemma_core::object::{Node, Timestamp};
use stemma_core::resolve::{Resolution, ResolvedNode};
use stemma_core::rollout::{ReleaseCandidate, ReleaseState};
use stemma_core::status::{
    HostConfirmation, Liveness, ORPHANS_FACT, Orphans, RebootReport, SetBy, StateInputs, StuckAgent, TaskStatus, TaskSummary,
};
use stemma_core::task::Mode;
use stemma_wire::message::desired::Known;
use stemma_wire::message::observed::{Outcome, TaskResult};
use stemma_wire::message::{PartDigest, WireVersion, digest_part, encode_part};
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::released::{candidate, counted_task_ids, observe_mode_task_ids, task_ids, task_set_digests};
use crate::desired::size::{self, TooLarge};
use crate::desired::{DesiredTable, encode};
use crate::intake::SentParts;
use crate::records::reported::StoredResult;

/// Returns those inputs of a node's state that the model contains, and whether the node's host holds its desired state
/// ([`confirmation`]). The latter is unknown without a table.
///
/// The status table sets the other inputs: whether the agent is connected or expected, whether two hosts have the
/// node's identity, whether the host is ahead of the store, whether the node is blocked, and whether the store waits.
/// It also sets whether the host's last report was refused, and whether the store refuses what is released to the node.
pub(crate) fn state_inputs(
    model: &Model,
    table: Option<&DesiredTable>,
    (node, resolution): (&Node, &Resolution),
    now: Timestamp,
) -> StateInputs {
    let (state, resolved) = (model.reported_states.get(&node.meta.uuid), resolution.resolved_node().map(|resolved| &**resolved));
    let is_too_large = resolved.is_some_and(|resolved| desired_too_large(model, resolved, now).is_some());
    let is_paused = resolved.is_some_and(ResolvedNode::is_paused);
    let candidate = resolved.map(|resolved| candidate(model, resolved));
    let next = candidate.as_ref().map(|candidate| candidate.next_task_set_at(now)).unwrap_or_default();
    let is_held = candidate.as_ref().is_some_and(|candidate| candidate.is_held(now));
    let errors = candidate.as_ref().map(ReleaseCandidate::error_rules).unwrap_or_default();
    let task_set_digests = released_task_set_digests(model, node.meta.uuid);
    let stuck = stuck_reason(model, node.meta.uuid);
    StateInputs {
        is_placed: node.spec.nodegroup.is_some(),
        parked_by: model.fleet.parked_by(node),
        paused_by: SetBy::from_flags(is_paused, state.is_some_and(|reported| reported.paused)),
        has_duplicate_identity: false,
        is_host_ahead: false,
        is_store_waiting: false,
        is_host_awaited: is_host_awaited(model, node.meta.uuid),
        is_report_refused: false,
        is_release_refused: false,
        has_unmet_requirement: !errors.is_empty(),
        has_error: resolution.has_error_except(&errors) || is_too_large,
        is_stuck: stuck.is_some(),
        can_run_tasks_when_stuck: stuck.is_some_and(|stuck| stuck.can_run_tasks),
        is_held,
        has_orphans: !orphans(model, node.meta.uuid).is_empty(),
        is_observing: resolved.is_some_and(|resolved| resolved.mode().value == Mode::Observe),
        is_blocked: false,
        next_task_set: next,
        confirmation: table
            .map_or(HostConfirmation::Unknown, |table| confirmation(model, table, (node.meta.uuid, resolved), &task_set_digests)),
        liveness: Liveness::default(),
        has_enrolled: false,
        tasks: summarize_tasks(model, node.meta.uuid, &task_set_digests),
    }
}

/// Returns the codes of a node's error findings that withhold only its next task set, such as an unmet requirement.
pub(crate) fn blocking_rules(model: &Model, resolution: &Resolution) -> Vec<Rule> {
    resolution.resolved_node().map(|resolved| candidate(model, resolved).error_rules()).unwrap_or_default()
}

/// Returns the reason why a node's agent is stuck, from its last report, or `None` if it is not stuck.
pub(crate) fn stuck_reason(model: &Model, node: Uuid) -> Option<StuckAgent> {
    StuckAgent::from_facts(&model.reports.get(&node)?.report.facts)
}

/// Returns what tasks left on a node's host and no task manages now, and its clean-ups, from the last report of its agent.
pub(crate) fn orphans(model: &Model, node: Uuid) -> Orphans {
    let fact = model.reports.get(&node).and_then(|record| record.report.facts.get(ORPHANS_FACT));
    fact.map(|fact| Orphans::from_fact(fact)).unwrap_or_default()
}

/// Returns what a node's host reports about its reboot, or `None` if it reports nothing about it.
pub(crate) fn reboot(model: &Model, node: Uuid) -> Option<RebootReport> {
    RebootReport::from_facts(&model.reports.get(&node)?.report.facts)
}

/// Returns whether a node's host holds its desired state: what its agent has reported since the controller started or,
/// if it has reported nothing, what the store contains.
///
/// The first of these that the store contains decides:
///
/// 1. A record that the host became silent without a confirmation. Then the host is unconfirmed.
/// 2. The digests of the parts that were last sent to the host. If they differ from those of the desired parts, the
///    host has not received the desired parts. If they are equal, the record shows whether the host confirmed them.
/// 3. The revision that was last sent to the host, if the record of an earlier version has no digests. If the task set
///    was released after this revision in the same epoch, the host is unconfirmed. Otherwise the results decide.
/// 4. The results of the task set.
///
/// A confirmation is stored some seconds after the host sent it. If a crash loses the confirmation, the host is
/// unconfirmed until it checks in again.
///
/// `resolved` is the resolved node. `task_set_digests` are the digests of the task set that was released to it
/// ([`released_task_set_digests`]).
pub(crate) fn confirmation(
    model: &Model,
    table: &DesiredTable,
    (node, resolved): (Uuid, Option<&ResolvedNode>),
    task_set_digests: &[PartDigest],
) -> HostConfirmation {
    match table.confirmation(node) {
        HostConfirmation::Unknown => stored_confirmation(model, node, resolved, task_set_digests),
        reported => reported,
    }
}

/// Returns whether a node's host holds its desired state, from the store only (see [`confirmation`]).
fn stored_confirmation(model: &Model, node: Uuid, resolved: Option<&ResolvedNode>, digests: &[PartDigest]) -> HostConfirmation {
    // The host became silent (`lost`) before it confirmed its desired state (`untold`).
    if model.silence.get(&node).is_some_and(|silence| silence.lost && silence.untold) {
        return HostConfirmation::Unconfirmed;
    }
    let Some(record) = model.sent_records.get(&node) else { return confirmation_from_results(model, node, digests) };
    if let Some(parts) = record.parts {
        let is_confirmed = !record.unconfirmed && is_current(parts, resolved, digests);
        return if is_confirmed { HostConfirmation::Confirmed } else { HostConfirmation::Unconfirmed };
    }
    // An earlier version recorded no parts. A task set that was released after the recorded revision is not sent yet.
    let released = model.released.get(&node).map_or(0, |released| released.revision);
    let is_same_epoch = model.epoch_history.as_ref().is_none_or(|epochs| epochs.record.now == record.epoch);
    if is_same_epoch && record.revision < released {
        HostConfirmation::Unconfirmed
    } else {
        confirmation_from_results(model, node, digests)
    }
}

/// Returns whether these parts are the desired parts of a node, with their digests in any wire version. If the node
/// cannot be resolved, only the task set is compared, because the node keeps its known part.
fn is_current(parts: SentParts, resolved: Option<&ResolvedNode>, task_set_digests: &[PartDigest]) -> bool {
    let known = resolved.map(encode::known_part);
    let has_digest =
        |known: &Known| WireVersion::all().any(|version| digest_part(version, &encode_part(version, known)) == parts.known);
    // Without a released task set, there are no digests to compare.
    known.as_ref().is_none_or(has_digest) && (task_set_digests.is_empty() || task_set_digests.contains(&parts.task_set))
}

/// Returns whether a node's host holds its released task set: whether a stored result of its tasks is for that task
/// set. Unknown without results, or if no result is for it and it has no tasks.
fn confirmation_from_results(model: &Model, node: Uuid, task_set_digests: &[PartDigest]) -> HostConfirmation {
    let Some((released, results)) = model.released.get(&node).zip(model.results.get(&node)) else {
        return HostConfirmation::Unknown;
    };
    let has_tasks = task_ids(model, released).next().is_some();
    match (results.has_results_for(task_set_digests), has_tasks) {
        (true, _) => HostConfirmation::Confirmed,
        (false, true) => HostConfirmation::Unconfirmed,
        // A host sends no results for a task set without tasks.
        (false, false) => HostConfirmation::Unknown,
    }
}

/// Returns whether the controller waits for a host: this store, or the one from which it was restored, sent something
/// to the host in an earlier epoch, and nothing in the present epoch.
pub(crate) fn is_host_awaited(model: &Model, node: Uuid) -> bool {
    let present_epoch = model.epoch_history.as_ref().map(|epochs| epochs.record.now);
    present_epoch.zip(model.sent_records.get(&node)).is_some_and(|(present_epoch, record)| record.epoch != present_epoch)
}

/// Returns the error if the desired state of a node, now or with its next task set, is too large to be sent. Then the
/// node keeps its present desired state.
pub(crate) fn desired_too_large(model: &Model, resolved: &ResolvedNode, now: Timestamp) -> Option<TooLarge> {
    let record = model.released.get(&resolved.id().0);
    // This upper bound is fast to compute. The exact sizes are computed only if the bound exceeds the limit.
    if size::is_within_limit(resolved, record.map_or(0, |released| released.max_sent_bytes())) {
        return None;
    }
    size::next_size(resolved).err().or_else(|| {
        let error = size::size_with_task_set(resolved, &record?.task_set()).err()?;
        // A next task set that is due replaces the released one, whose size then does not matter.
        let state = candidate(model, resolved).state(now);
        (state != ReleaseState::Due).then_some(error)
    })
}

/// Returns a summary of the tasks that were released to a node. Tasks whose own mode is `observe` do not count.
pub(crate) fn task_summary(model: &Model, node: Uuid) -> TaskSummary {
    summarize_tasks(model, node, &released_task_set_digests(model, node))
}

/// Returns the digests of the task set that was released to a node, one for each wire version.
pub(crate) fn released_task_set_digests(model: &Model, node: Uuid) -> Vec<PartDigest> {
    model.released.get(&node).map(|released| task_set_digests(model, released)).unwrap_or_default()
}

/// Returns a summary of the results of the tasks that were released to a node, and of its clean-ups. Tasks whose own mode
/// is `observe` do not count, and neither do results for other task sets. `task_set_digests` are the digests of the
/// released task set.
fn summarize_tasks(model: &Model, node: Uuid, task_set_digests: &[PartDigest]) -> TaskSummary {
    let results = model.results.get(&node);
    let clean_ups = move || results.into_iter().flat_map(move |results| results.clean_ups(task_set_digests));
    let outcomes = |released| {
        let outcome = move |task: &str| Some(results?.result_for(task_set_digests, task)?.result.outcome.to_task_outcome());
        let clean_up_outcomes = clean_ups().map(|(_, stored)| Some(stored.result.outcome.to_task_outcome()));
        counted_task_ids(model, released).map(outcome).chain(clean_up_outcomes)
    };
    TaskSummary::from_outcomes(model.released.get(&node).map(Arc::as_ref).map(outcomes), results.is_some())
}

/// Returns the ids of those released tasks that count for a node's state and have no result yet, in their order.
pub(crate) fn unfinished_tasks(model: &Model, node: Uuid) -> impl Iterator<Item = &str> {
    model.released.get(&node).into_iter().flat_map(move |released| {
        let (digests, results) = (task_set_digests(model, released), model.results.get(&node));
        counted_task_ids(model, released)
            .filter(move |task| results.is_none_or(|results| results.result_for(&digests, task).is_none()))
    })
}

/// Returns the status of each released task that counts for a node's state and has a result, in their order. Tasks
/// whose own mode is `observe` do not count.
pub(crate) fn counted_task_statuses(model: &Model, node: Uuid) -> impl Iterator<Item = TaskStatus<'_>> {
    let observed = model.released.get(&node).and_then(|released| observe_mode_task_ids(model, released));
    task_statuses(model, node).filter(move |status| observed.is_none_or(|observed| !observed.contains(status.task)))
}

/// Returns whether a result only states that the host neither ran nor checked the task, because the mode of the task is
/// `observe`. An older agent checks such a task. Its result may have a difference, and is then shown as for any other
/// task.
pub(crate) fn is_observed(model: &Model, node: Uuid, result: &TaskResult) -> bool {
    // A result without a difference is not from a check.
    let is_unchecked = result.outcome == Outcome::WouldChange && result.diff.is_empty();
    let observed_ids = || observe_mode_task_ids(model, model.released.get(&node)?);
    is_unchecked && observed_ids().is_some_and(|ids| ids.contains(&result.task))
}

/// Returns the status of each clean-up that ran under the task set of a node, and of each task that was released to the
/// node and has a result, in their order.
pub(crate) fn task_statuses(model: &Model, node: Uuid) -> impl Iterator<Item = TaskStatus<'_>> {
    let records = model.released.get(&node).zip(model.results.get(&node));
    records.into_iter().flat_map(|(released, results)| {
        let digests = task_set_digests(model, released);
        let clean_ups: Vec<_> = results.clean_ups(&digests).map(|(task, stored)| task_status(task, stored)).collect();
        let find_status = move |task| Some(task_status(task, results.result_for(&digests, task)?));
        clean_ups.into_iter().chain(task_ids(model, released).filter_map(find_status))
    })
}

/// Returns the status of a task from its stored result.
fn task_status<'a>(task: &'a str, StoredResult { at, result, .. }: &'a StoredResult) -> TaskStatus<'a> {
    let (outcome, has_run) = (result.outcome.to_task_outcome(), result.outcome != Outcome::DependencyFailed);
    TaskStatus { task, outcome, has_run, message: &result.message, since: *at }
}
