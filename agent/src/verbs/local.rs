//! `pause`, `resume`, `resolve-unknown`: what is said on the host, kept in the ledger.

use std::path::Path;

use anyhow::{Result, bail};
use stemma_wire::message::observed::Outcome;

use super::{Exit, Local, print};
use crate::apply::ledger::{LOCAL, PROGRESS, Step, StepState};
use crate::apply::wake::{Woken, wake};
use crate::args::Answer;

/// Stops all applying until [`resume`].
///
/// # Errors
/// When the ledger cannot be written.
pub fn pause(root: &Path) -> Result<Exit> {
    set_paused(root, true, "paused: no task is applied until `stemma-agent resume`; labels flow on\n")
}

/// Lets applying go on.
///
/// # Errors
/// When the ledger cannot be written.
pub fn resume(root: &Path) -> Result<Exit> {
    set_paused(root, false, "resumed\n")
}

fn set_paused(root: &Path, paused: bool, said: &str) -> Result<Exit> {
    let local = Local::open(root)?;
    let mut state = local.site.ledger.get(&LOCAL)?.unwrap_or_default();
    state.paused = paused;
    local.site.ledger.put(&LOCAL, &state)?;
    let woken = wake(&local.host)?;
    print(said)?;
    if woken == Woken::Nobody {
        print(match local.is_running() {
            Some(true) => "(a `stemma-agent once` applies what this host holds: it asks for this before each task)\n",
            Some(false) | None => "(no agent runs on this host now; it will know when it starts)\n",
        })?;
    }
    Ok(Exit::Done)
}

/// The line of a task that is unknown since its line is lost.
fn lost_step(local: &Local, task: &str) -> Result<Option<Step>> {
    let ended = local.site.ledger.get(&PROGRESS)?.unwrap_or_default().tasks.remove(task);
    let unknown = ended.filter(|ended| ended.outcome == Outcome::Unknown);
    Ok(unknown.map(|ended| Step { task: task.to_owned(), content: ended.content, state: StepState::Unknown }))
}

/// Settles a command that was begun and that nobody saw end.
///
/// # Errors
/// When the task is applied now, the journal knows no such task, or it is not unknown, or the ledger cannot be written.
pub fn resolve_unknown(root: &Path, task: &str, answer: Answer) -> Result<Exit> {
    let local = Local::open(root)?;
    if local.site.ledger.is_applied_elsewhere(task)? {
        bail!("task {task:?} runs now: wait for its end, which `stemma-agent status` says; nothing was changed");
    }
    let Some(mut step) =
        local.site.ledger.step(task)?.map_or_else(|| lost_step(&local, task), |step| Ok(Some(step)))?
    else {
        bail!("the journal of this host has no task {task:?}; `stemma-agent status` lists those that are unknown")
    };
    if !matches!(step.state, StepState::Begun | StepState::Unknown) {
        bail!("task {task:?} is not unknown: its last run ended; nothing was changed");
    }
    step.state = match answer {
        Answer::Done => StepState::Done,
        Answer::Again => StepState::Failed,
    };
    local.site.ledger.set_step(&step)?;
    if answer == Answer::Done {
        // Who says that it is done has looked at the host as it is now.
        local.site.ledger.refreshed(&[task.to_owned()])?;
    }
    wake(&local.host)?;
    print(match answer {
        Answer::Done => "settled: it counts as done\n",
        Answer::Again => "settled: it will run again\n",
    })?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::PartDigest;

    use super::*;
    use crate::apply::ledger::{Performed, Progress};

    #[test]
    fn w10_13_a_command_whose_record_is_lost_can_be_settled() {
        let root = tempfile::tempdir().unwrap();
        for (id, outcome, settled) in [("lost", Outcome::Unknown, true), ("done", Outcome::Changed, false)] {
            let local = Local::open(root.path()).unwrap();
            let performed = Performed { task_set: PartDigest([0; 32]), content: [7; 32], outcome, mends: vec![] };
            let tasks = [(id.to_owned(), performed)].into();
            local.site.ledger.put(&PROGRESS, &Progress { tasks }).unwrap();
            assert_eq!(resolve_unknown(root.path(), id, Answer::Done).is_ok(), settled, "{id}");
            let kept = settled.then(|| Step { task: id.into(), content: [7; 32], state: StepState::Done });
            assert_eq!(local.site.ledger.step(id).unwrap(), kept);
        }
    }
}
