//! The commands `pause`, `resume` and `resolve-unknown`. They store the pause or the outcome of a task in the ledger,
//! the agent's records on disk.

use std::path::Path;

use anyhow::{Result, bail};
use stemma_wire::message::observed::Outcome;

use super::{AgentExit, LocalHost, print};
use crate::apply::ledger::{LOCAL_STATE, PROGRESS, Step, StepState};
use crate::apply::wake::{WakeResult, wake};
use crate::args::ResolveAnswer;
use crate::host::Host as _;

/// Pauses this host: the agent applies no task until [`resume`].
///
/// # Errors
/// Fails if the ledger (the agent's stored state) cannot be written.
pub fn pause(root: &Path) -> Result<AgentExit> {
    set_paused(root, true, "paused: no task is applied until `stemma-agent resume`; labels are still written\n")
}

/// Ends the pause of this host, so that the agent applies tasks again.
///
/// # Errors
/// Fails if the ledger (the agent's stored state) cannot be written.
pub fn resume(root: &Path) -> Result<AgentExit> {
    set_paused(root, false, "resumed\n")
}

/// Stores whether this host is paused, wakes the running agent, and prints a message.
fn set_paused(root: &Path, paused: bool, message: &str) -> Result<AgentExit> {
    let local = LocalHost::open(root)?;
    let mut state = local.site.ledger.get(&LOCAL_STATE)?.unwrap_or_default();
    state.paused = paused;
    local.site.ledger.put(&LOCAL_STATE, &state)?;
    let wake_result = wake(&local.host)?;
    print(message)?;
    if wake_result == WakeResult::NotRunning {
        print(match local.is_running() {
            Some(true) => "(a `stemma-agent once` is running: it checks this setting before each task)\n",
            Some(false) | None => "(no agent runs on this host now; it will read this setting when it starts)\n",
        })?;
    }
    Ok(AgentExit::Done)
}

/// Returns a replacement for the journal step of a task, if the recorded outcome of the task is unknown. Returns `None`
/// for any other task. The caller has found no step of the task. The journal contains a step for each command without
/// guards (`creates`, `unless`, `only_if`) that was started.
fn find_lost_step(local: &LocalHost, task: &str) -> Result<Option<Step>> {
    let record = local.site.ledger.get(&PROGRESS)?.unwrap_or_default().tasks.remove(task);
    let unknown_record = record.filter(|record| record.outcome == Outcome::Unknown);
    Ok(unknown_record.map(|record| Step { task: task.to_owned(), content: record.content, state: StepState::Unknown }))
}

/// Records the outcome of a task as the operator states it, and wakes the running agent. The task's command was started
/// and its end was not recorded, for example because the host lost power. The answer `again` makes the task run again.
/// The answer `done` also cancels a run that is due because a task that this one subscribes to has changed something.
///
/// # Errors
/// Fails if another process runs the task now, if systemd has the unit of its command, if neither the journal nor the record
/// of the task's last result shows that its outcome is unknown, or if the ledger (the agent's stored state) cannot be read
/// or written.
pub fn resolve_unknown(root: &Path, task: &str, answer: ResolveAnswer) -> Result<AgentExit> {
    let local = LocalHost::open(root)?;
    if local.site.ledger.is_applied_elsewhere(task)? {
        bail!("task {task:?} runs now: wait until it ends (see `stemma-agent status`); nothing was changed");
    }
    if let Some(unit) = local.site.ledger.started_unit(task)?.filter(|unit| local.host.has_unit(unit)) {
        bail!(
            "the command of task {task:?} runs or has ended in {unit}: start the agent, which records its end; nothing was changed"
        );
    }
    let Some(mut step) = local.site.ledger.step(task)?.map_or_else(|| find_lost_step(&local, task), |step| Ok(Some(step)))?
    else {
        bail!("the journal of this host has no task {task:?}; `stemma-agent status` lists those that are unknown")
    };
    if !matches!(step.state, StepState::Begun | StepState::Unknown) {
        bail!("task {task:?} is not unknown: its last run ended; nothing was changed");
    }
    step.state = match answer {
        ResolveAnswer::Done => StepState::Done,
        // A command whose last run failed runs again.
        ResolveAnswer::Again => StepState::Failed,
    };
    local.site.ledger.set_step(&step)?;
    if answer == ResolveAnswer::Done {
        // A pending extra run (because a task that this one subscribes to has changed something) is cancelled too. An
        // operator who answers `done` has checked the host in its current state.
        local.site.ledger.clear_refresh(&[task.to_owned()])?;
    }
    wake(&local.host)?;
    print(match answer {
        ResolveAnswer::Done => "settled: it counts as done\n",
        ResolveAnswer::Again => "settled: it will run again\n",
    })?;
    Ok(AgentExit::Done)
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::PartDigest;

    use super::*;
    use crate::apply::ledger::{TaskProgress, TaskRecord};

    /// The journal has no step of the two tasks. Only `lost` has an unknown outcome, so only `lost` can be resolved.
    #[test]
    fn w10_13_resolve_unknown_adds_lost_step_for_unknown_outcome() {
        let root = tempfile::tempdir().unwrap();
        for (id, outcome, is_resolved) in [("lost", Outcome::Unknown, true), ("done", Outcome::Changed, false)] {
            let local = LocalHost::open(root.path()).unwrap();
            let record = TaskRecord { task_set: PartDigest([0; 32]), content: [7; 32], outcome, mends: vec![] };
            let tasks = [(id.to_owned(), record)].into();
            local.site.ledger.put(&PROGRESS, &TaskProgress { tasks }).unwrap();
            assert_eq!(resolve_unknown(root.path(), id, ResolveAnswer::Done).is_ok(), is_resolved, "{id}");
            let expected_step = is_resolved.then(|| Step { task: id.into(), content: [7; 32], state: StepState::Done });
            assert_eq!(local.site.ledger.step(id).unwrap(), expected_step);
        }
    }
}
