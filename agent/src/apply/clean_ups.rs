//! Clean-ups: tasks that run once because the task that names them in `on_unassign` is no longer placed on this node.
//!
//! The profile of a task set also has the tasks that its tasks name in `on_unassign`, and each task set leaves them out
//! ([`UNASSIGN_REASON`]). While such a task is placed, the ledger has its clean-up, with definition and inputs. When the
//! task is no longer placed, the clean-up is due, and the ledger still has what it needs, without a controller. It remains
//! due until it has succeeded, or until the task is placed here again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stemma_core::status::{CleanUpReport, CleanUpState};
use stemma_core::task::{CLEAN_UP_PREFIX, Mode, Task, UNASSIGN_REASON};
use stemma_wire::message::desired::{InputValue, Profile, ProfileTask};

use super::ledger::{CLEAN_UPS, CleanUp, CleanUpStep, Desired, PROGRESS, REASONS};
use super::task::{Site, content_digest};
use crate::host::HostError;

/// The clean-ups of this host, by the id of the task that names them.
pub type CleanUps = BTreeMap<String, CleanUp>;

/// A clean-up that must run.
pub struct DueCleanUp {
    /// The task to run. Its id begins with [`CLEAN_UP_PREFIX`].
    pub task: ProfileTask,
    /// The inputs of the task, from the last task set that had it.
    pub inputs: BTreeMap<String, InputValue>,
}

impl CleanUp {
    /// Returns the id under which the clean-up runs and reports its result.
    fn id(&self) -> String {
        format!("{CLEAN_UP_PREFIX}{}", self.task)
    }

    /// Returns the clean-up as a task of a profile.
    fn profile_task(&self) -> ProfileTask {
        ProfileTask {
            id: self.id(),
            definition: self.definition.clone(),
            references: self.references.clone(),
            after: Vec::new(),
            barriers: Vec::new(),
        }
    }
}

/// Returns the clean-ups that must run under a desired state, in their order, and changes nothing.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn due(site: &Site, desired: &Desired, profile: &Profile) -> Result<Vec<DueCleanUp>, HostError> {
    Ok(due_tasks(&next_clean_ups(&site.ledger.get(&CLEAN_UPS)?.unwrap_or_default(), desired, profile)))
}

/// Records the clean-ups of the tasks that are placed on this node, and which clean-ups are due because their task no
/// longer is. Returns those that must run, in their order. The caller does this before any task of the task set begins,
/// and only in mode `apply`.
///
/// # Errors
/// [`HostError`] from the ledger. The caller must then not start a task.
pub fn update(site: &Site, desired: &Desired, profile: &Profile) -> Result<Vec<DueCleanUp>, HostError> {
    let recorded = site.ledger.get(&CLEAN_UPS)?.unwrap_or_default();
    let mut next = next_clean_ups(&recorded, desired, profile);
    // A clean-up may have run before, for an earlier placement of the task. Its journal is cleared before it is due, so
    // that it runs again after a crash in between too.
    let is_due = |clean_ups: &CleanUps, id: &str| {
        clean_ups.values().any(|clean_up| clean_up.step == CleanUpStep::Due && clean_up.id() == id)
    };
    let due_ids: BTreeSet<String> = next.values().filter(|next| next.step == CleanUpStep::Due).map(CleanUp::id).collect();
    for id in due_ids.iter().filter(|id| !is_due(&recorded, id)) {
        reset_journal(site, id)?;
    }
    finish_recorded(site, &due_ids, &mut next)?;
    if next != recorded {
        site.ledger.put(&CLEAN_UPS, &next)?;
    }
    Ok(due_tasks(&next))
}

/// Removes what the journal and the progress have of an earlier run of a clean-up.
fn reset_journal(site: &Site, id: &str) -> Result<(), HostError> {
    site.ledger.remove_step(id)?;
    let mut progress = site.ledger.get(&PROGRESS)?.unwrap_or_default();
    if progress.tasks.remove(id).is_some() {
        site.ledger.put(&PROGRESS, &progress)?;
    }
    Ok(())
}

/// Marks the due clean-ups as done whose success is in the progress, because the agent ended before it recorded this.
fn finish_recorded(site: &Site, due_ids: &BTreeSet<String>, clean_ups: &mut CleanUps) -> Result<(), HostError> {
    if due_ids.is_empty() {
        return Ok(());
    }
    let progress = site.ledger.get(&PROGRESS)?.unwrap_or_default();
    for clean_up in clean_ups.values_mut().filter(|clean_up| clean_up.step == CleanUpStep::Due) {
        let content = content_digest(&clean_up.profile_task(), &clean_up.inputs);
        let record = progress.tasks.get(&clean_up.id());
        if record.is_some_and(|record| record.content == content && record.outcome.is_success()) {
            clean_up.step = CleanUpStep::Done;
        }
    }
    Ok(())
}

/// Records that clean-ups have succeeded. `ids` are the ids under which they ran.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn finish(site: &Site, ids: &BTreeSet<String>) -> Result<(), HostError> {
    if ids.is_empty() {
        return Ok(());
    }
    let mut clean_ups = site.ledger.get(&CLEAN_UPS)?.unwrap_or_default();
    for clean_up in clean_ups.values_mut().filter(|clean_up| clean_up.step == CleanUpStep::Due && ids.contains(&clean_up.id())) {
        clean_up.step = CleanUpStep::Done;
    }
    site.ledger.put(&CLEAN_UPS, &clean_ups)
}

/// Removes the clean-ups that are done and whose task has left nothing on this host. `orphaned_tasks` are the tasks that
/// have.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn prune(site: &Site, orphaned_tasks: &BTreeSet<&str>) -> Result<(), HostError> {
    let Some(mut clean_ups) = site.ledger.get(&CLEAN_UPS)? else { return Ok(()) };
    let count = clean_ups.len();
    clean_ups.retain(|task, clean_up| clean_up.step != CleanUpStep::Done || orphaned_tasks.contains(task.as_str()));
    if clean_ups.len() == count { Ok(()) } else { site.ledger.put(&CLEAN_UPS, &clean_ups) }
}

/// Returns the clean-ups of tasks that are no longer placed on this node, with their states, for reports and people.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn reports(site: &Site) -> Result<Vec<CleanUpReport>, HostError> {
    let clean_ups = site.ledger.get(&CLEAN_UPS)?.unwrap_or_default();
    if clean_ups.values().all(|clean_up| clean_up.step == CleanUpStep::Assigned) {
        return Ok(Vec::new());
    }
    let progress = site.ledger.get(&PROGRESS)?.unwrap_or_default();
    let mut reasons = site.ledger.get(&REASONS)?.unwrap_or_default();
    let mut report = |(task, clean_up): (String, CleanUp)| {
        let id = clean_up.id();
        let has_failed = || progress.tasks.get(&id).is_some_and(|record| record.outcome.is_failure());
        let state = match clean_up.step {
            CleanUpStep::Assigned => return None,
            CleanUpStep::Due if has_failed() => CleanUpState::Failed,
            CleanUpStep::Due => CleanUpState::Waiting,
            CleanUpStep::Done => CleanUpState::Succeeded,
        };
        let message = match state {
            CleanUpState::Failed => reasons.remove(&id).unwrap_or_default().message,
            CleanUpState::Waiting | CleanUpState::Succeeded => String::new(),
        };
        Some(CleanUpReport { task, on_unassign: clean_up.task, state, message })
    };
    Ok(clean_ups.into_iter().filter_map(&mut report).collect())
}

/// Returns the tasks of clean-ups, for which blobs must remain on this host.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn profile(site: &Site) -> Result<Profile, HostError> {
    let clean_ups = site.ledger.get(&CLEAN_UPS)?.unwrap_or_default();
    let open = clean_ups.values().filter(|clean_up| clean_up.step != CleanUpStep::Done);
    Ok(Profile { tasks: open.map(CleanUp::profile_task).collect() })
}

/// Returns the clean-ups under a desired state: those of the tasks that are placed on this node, and the recorded ones of
/// tasks that are not.
fn next_clean_ups(recorded: &CleanUps, desired: &Desired, profile: &Profile) -> CleanUps {
    let is_placed = |task: &&ProfileTask| !is_for_unassign(desired, &task.id);
    let placed_ids: BTreeSet<&str> = profile.tasks.iter().filter(is_placed).map(|task| task.id.as_str()).collect();
    let mut next = CleanUps::new();
    for (task, clean_up) in recorded.iter().filter(|(task, _)| !placed_ids.contains(task.as_str())) {
        let step = if clean_up.step == CleanUpStep::Assigned { CleanUpStep::Due } else { clean_up.step };
        next.insert(task.clone(), CleanUp { step, ..clean_up.clone() });
    }
    for (position, task) in (0..).zip(&profile.tasks).filter(|(_, task)| is_placed(task)) {
        // A task that never ran here, because of its condition, needs no clean-up.
        let may_have_run = desired.task_set.runs_task(&task.id) || recorded.contains_key(&task.id);
        if may_have_run && let Some(clean_up) = assigned_clean_up(task, position, desired, profile) {
            next.insert(task.id.clone(), clean_up);
        }
    }
    next
}

/// Returns the clean-up of a task that is placed on this node. Returns `None` if the task names none, if it is never
/// applied, or if the profile does not have a task of that name that may run.
fn assigned_clean_up(task: &ProfileTask, position: u32, desired: &Desired, profile: &Profile) -> Option<CleanUp> {
    // Most tasks name none, so this check comes before the definition is parsed.
    if !task.definition.contains("\"on_unassign\"") {
        return None;
    }
    let definition: Task = serde_json::from_str(&task.definition).ok()?;
    let target_id = definition.on_unassign.filter(|id| *id != task.id && definition.mode.unwrap_or_default() == Mode::Apply)?;
    let may_run = |target: &&ProfileTask| {
        target.id == target_id && (desired.task_set.runs_task(&target.id) || is_for_unassign(desired, &target.id))
    };
    let target = profile.tasks.iter().find(may_run)?;
    let mut definition: Value = serde_json::from_str(&target.definition).ok()?;
    // The clean-up has an id of its own, because the host may also run the task under its id.
    definition["id"] = format!("{CLEAN_UP_PREFIX}{target_id}").into();
    let input = |reference: &String| Some((reference.clone(), desired.task_set.inputs.get(reference)?.clone()));
    Some(CleanUp {
        definition: definition.to_string(),
        references: target.references.clone(),
        inputs: target.references.iter().filter_map(input).collect(),
        task: target_id,
        position,
        step: CleanUpStep::Assigned,
    })
}

/// Returns whether this host got a task of the profile only for `on_unassign`.
pub fn is_for_unassign(desired: &Desired, id: &str) -> bool {
    desired.task_set.left_out.get(id).is_some_and(|reason| **reason == *UNASSIGN_REASON)
}

/// Returns the due clean-ups as tasks. A task that several others name runs once. The clean-up of a later task of the old
/// order runs first.
fn due_tasks(clean_ups: &CleanUps) -> Vec<DueCleanUp> {
    let mut due: Vec<&CleanUp> = clean_ups.values().filter(|clean_up| clean_up.step == CleanUpStep::Due).collect();
    due.sort_by_key(|clean_up| std::cmp::Reverse(clean_up.position));
    let mut ids = BTreeSet::new();
    due.retain(|clean_up| ids.insert(clean_up.task.as_str()));
    due.into_iter().map(|clean_up| DueCleanUp { task: clean_up.profile_task(), inputs: clean_up.inputs.clone() }).collect()
}
