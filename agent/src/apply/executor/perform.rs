//! Runs one task, from its check to its end.

use std::rc::Rc;
use std::time::Duration;

use log::warn;
use stemma_core::task::{Mode, OnDrift};
use stemma_wire::message::observed::Outcome;
use tokio::sync::watch;
use tokio::time::timeout;

use super::batch::BatchMember;
use crate::apply::applier::Applier;
use crate::apply::leftovers::{StagingDirs, record_dirs};
use crate::apply::task::{ApplyResult, CheckResult, Execution, FailureEffect, HostTask, Site, TaskError};
use crate::host::Pending;

/// Message of a contended task: one that is not mended now, because something else changes the host back.
const CONTENDED_MESSAGE: &str = "contended: it was mended three times within an hour, and something else changes it again";

/// The action that is allowed for a task now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedAction {
    /// Only check the task.
    Check,
    /// Apply the task. It has not converged with its present content, or must run again. So a difference is not drift.
    Apply,
    /// Apply the task again, but only if its `on_drift` is `mend`. The host matched the task before, so a difference is
    /// drift.
    Mend,
    /// Only check the task. It was mended so often within an hour that something else must be changing the host back.
    Contended,
}

impl AllowedAction {
    /// Returns the action that is allowed in the mode of the host. The task's own mode can only restrict the action
    /// further. `was_converged` is true if the host matched the task before.
    #[must_use]
    pub fn for_mode(mode: Mode, task_mode: Option<Mode>, was_converged: bool) -> Self {
        match mode.min(task_mode.unwrap_or_default()) {
            Mode::Observe | Mode::Noop => Self::Check,
            Mode::Apply if was_converged => Self::Mend,
            Mode::Apply => Self::Apply,
        }
    }
}

/// The interval at which a check polls for the end of a task that another process applies.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Message of a check of a task that must run again only because a task that it subscribes to has changed something.
const REFRESHED_MESSAGE: &str = "a task that it subscribes to has changed something since it last succeeded";

/// The place of a task among tasks that one change makes together, and all these tasks.
pub type BatchPlace = (Rc<BatchMember>, Rc<[Rc<HostTask>]>);

/// The parameters of the run of one task.
#[derive(Clone)]
pub struct TaskCall {
    /// The action that is allowed for the task.
    pub allowed: AllowedAction,
    /// True if the task must run again because a task that it subscribes to has changed something. If the task is only
    /// checked, also true if the other task would change something.
    pub is_refresh: bool,
    /// Ids of the tasks that must run again if this task changes something.
    pub subscribers: Vec<String>,
    /// `None` if the task is changed alone.
    pub batch: Option<BatchPlace>,
    /// Directories in which the tasks of the run may leave unfinished files.
    pub staging: Rc<StagingDirs>,
    /// True as soon as the run must end. Then no task begins a change, or tries one again.
    pub ending: watch::Receiver<bool>,
}

/// The end of the run of a task.
#[derive(Debug)]
pub enum PerformResult {
    /// The task has ended: its result, and the outcome of its requests to subscribers.
    Ended(Execution, RefreshOutcome),
    /// The task has no result yet, because it waits for an event on the host. Its requests to subscribers remain, as after
    /// a change.
    Deferred(RefreshOutcome),
}

/// The result of the requests (refreshes) that a task makes before its change, so that its subscribers run again.
#[derive(Debug, Default)]
pub enum RefreshOutcome {
    /// The task requested no refresh: nothing was applied, or the ledger could not be written before the change.
    #[default]
    NotRequested,
    /// The change was made, perhaps in part, or it is unknown whether the change was made.
    Changed,
    /// The change was not made. Contains the subscribers that were not due already before the request of this task.
    Unchanged(Vec<String>),
}

/// Checks a task, and applies it if that is allowed and needed. Clears the request of a refresh that succeeded. Returns
/// the result (of a sensitive task without output and diff), and the outcome of its requests to subscribers. Returns
/// `None` if the run had to end before the task changed anything.
pub async fn perform(site: &Site, applier: &dyn Applier, task: &HostTask, call: &TaskCall) -> Option<PerformResult> {
    let start = site.host.uptime();
    let check_result = match applier.check(site, task).await {
        // A refresh that is due after a completed command was requested while the command ran.
        Ok(CheckResult::Converged | CheckResult::Completed(_)) if call.is_refresh && applier.is_refresh_needed(task) => {
            Ok(CheckResult::Drifted { diff: String::new(), message: REFRESHED_MESSAGE.into() })
        }
        check_result => check_result,
    };
    let mut refresh = RefreshOutcome::NotRequested;
    let mut result = match check_result {
        Err(error) => failed_execution(error),
        Ok(CheckResult::Converged) => Execution::new(Outcome::Unchanged),
        Ok(CheckResult::Completed(apply_result)) => {
            refresh = RefreshOutcome::Changed;
            changed_execution(apply_result)
        }
        Ok(CheckResult::Blocked { diff, message }) => {
            let is_drift = match call.allowed {
                AllowedAction::Mend => task.task.on_drift == OnDrift::Report,
                AllowedAction::Contended => true,
                AllowedAction::Check | AllowedAction::Apply => false,
            };
            let outcome = if is_drift { Outcome::Drifted } else { Outcome::Failed };
            Execution { diff, ..Execution::with_message(outcome, message) }
        }
        Ok(CheckResult::Deferred { message }) if call.allowed == AllowedAction::Check => {
            Execution::with_message(Outcome::WouldChange, message)
        }
        Ok(CheckResult::Deferred { .. }) => {
            clear_refresh(site, task, call);
            return Some(PerformResult::Deferred(RefreshOutcome::NotRequested));
        }
        Ok(CheckResult::Drifted { diff, message }) => match (call.allowed, task.task.on_drift) {
            (AllowedAction::Check, _) => Execution { diff, ..Execution::with_message(Outcome::WouldChange, message) },
            (AllowedAction::Contended, _) => Execution { diff, ..Execution::with_message(Outcome::Drifted, CONTENDED_MESSAGE) },
            (AllowedAction::Mend, OnDrift::Report) => Execution { diff, ..Execution::with_message(Outcome::Drifted, message) },
            (AllowedAction::Mend, OnDrift::Mend) | (AllowedAction::Apply, _) if *call.ending.borrow() => return None,
            (AllowedAction::Mend, OnDrift::Mend) | (AllowedAction::Apply, _) => {
                match apply_with_retries(site, applier, task, call).await? {
                    PerformResult::Ended(result, outcome) => {
                        refresh = outcome;
                        result
                    }
                    deferred @ PerformResult::Deferred(_) => {
                        clear_refresh(site, task, call);
                        return Some(deferred);
                    }
                }
            }
        },
    };
    if call.allowed != AllowedAction::Check && result.outcome.is_success() {
        clear_refresh(site, task, call);
    }
    if task.is_sensitive() {
        result.output.clear();
        result.diff.clear();
    }
    let elapsed = site.host.uptime().saturating_sub(start);
    result.duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    Some(PerformResult::Ended(result, refresh))
}

/// Clears the request that made this task act again, if there was one.
fn clear_refresh(site: &Site, task: &HostTask, call: &TaskCall) {
    if call.is_refresh
        && let Err(error) = site.ledger.clear_refresh(std::slice::from_ref(&task.task.id))
    {
        warn!(task = task.task.id.as_str(), error = error.sentence().as_str(); "the request to run a task again could not be cleared; it will run once more");
    }
}

/// Checks a task while another process may apply tasks on this host. If the other process applies the same task, waits
/// for the end of that task. Until then, journal and files are as after a crash in the middle of the task.
/// `would_refresh` is true if the task subscribes to a task that would change something according to this check.
pub async fn check_exclusively(
    site: &Site,
    applier: &dyn Applier,
    task: &HostTask,
    mut call: TaskCall,
    would_refresh: bool,
) -> Option<PerformResult> {
    loop {
        let id = task.task.id.as_str();
        if wait_for_other_process(site, id).await {
            // The other process may have run the task for the same refresh.
            call.is_refresh &= would_refresh || site.ledger.should_refresh(id).unwrap_or(false);
        }
        let end = perform(site, applier, task, &call).await?;
        let is_unknown = matches!(&end, PerformResult::Ended(result, _) if result.outcome == Outcome::Unknown);
        // The other process may have started the task after `wait_for_other_process` returned.
        if !is_unknown || !is_applied_elsewhere(site, id) {
            return Some(end);
        }
    }
}

/// Waits for the end of the task if another process applies it. Returns whether one did.
async fn wait_for_other_process(site: &Site, id: &str) -> bool {
    if !is_applied_elsewhere(site, id) {
        return false;
    }
    warn!(task = id; "another process applies this task: waiting for its end");
    while is_applied_elsewhere(site, id) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    true
}

/// Returns whether another process applies the task. Returns `false` if this cannot be determined, so that the check
/// does not wait.
fn is_applied_elsewhere(site: &Site, id: &str) -> bool {
    site.ledger.is_applied_elsewhere(id).unwrap_or(false)
}

/// Applies a task, and tries again after a failure as often as the task allows. A failure with an unknown effect, or whose
/// change continues, is not retried. Returns `None` if the run had to end before another try, which the next run makes.
/// Requests the subscribers to run again before the change.
async fn apply_with_retries(site: &Site, applier: &dyn Applier, task: &HostTask, call: &TaskCall) -> Option<PerformResult> {
    // The mark lets other processes on this host wait for the end of the task. It ends with this function.
    let _guard = site.ledger.mark_applying(&task.task.id);
    // The directories are recorded before the change, so that unfinished files are found after a crash.
    if !applier.managed_paths(site, task).is_empty()
        && let Err(error) = record_dirs(site, &call.staging)
    {
        return Some(PerformResult::Ended(failed_execution(error.into()), RefreshOutcome::NotRequested));
    }
    // The refreshes are requested before the change, so that a crash after the change does not lose the requests.
    let new_requests = match site.ledger.request_refresh(&call.subscribers) {
        Ok(added) => added,
        Err(error) => return Some(PerformResult::Ended(failed_execution(error.into()), RefreshOutcome::NotRequested)),
    };
    let (retries, interval) = applier.retry_policy(task);
    let (mut attempt, mut is_unchanged, mut ending) = (0, true, call.ending.clone());
    loop {
        let change: Pending<'_, _> = match &call.batch {
            Some((member, tasks)) if !call.is_refresh => Box::pin(member.apply(site, applier, tasks)),
            _ if call.is_refresh => applier.refresh(site, task),
            _ => applier.apply(site, task),
        };
        let error = match change.await {
            Ok(apply_result) if apply_result.is_unchanged && is_unchanged => {
                return Some(PerformResult::Ended(changed_execution(apply_result), RefreshOutcome::Unchanged(new_requests)));
            }
            Ok(apply_result) => return Some(end_of_change(site, applier, task, apply_result)),
            Err(error) => error,
        };
        is_unchanged &= error.effect == FailureEffect::Unchanged;
        if matches!(error.effect, FailureEffect::Unknown | FailureEffect::Unfinished) || attempt == retries {
            let mut result = failed_execution(error);
            if attempt > 0 {
                result.message = format!("{} (attempt {})", result.message, attempt + 1);
            }
            let refresh = if is_unchanged { RefreshOutcome::Unchanged(new_requests) } else { RefreshOutcome::Changed };
            return Some(PerformResult::Ended(result, refresh));
        }
        // The time-out is the normal end of the pause.
        if timeout(Duration::from_secs(interval), ending.wait_for(|must_end| *must_end)).await.is_ok() {
            return None;
        }
        attempt += 1;
    }
}

/// Returns the end of a task whose change was made: its result, unless the task waits for an event on the host.
fn end_of_change(site: &Site, applier: &dyn Applier, task: &HostTask, result: ApplyResult) -> PerformResult {
    match applier.is_deferred(site, task) {
        Ok(false) => PerformResult::Ended(changed_execution(result), RefreshOutcome::Changed),
        Ok(true) => PerformResult::Deferred(RefreshOutcome::Changed),
        Err(error) => PerformResult::Ended(failed_execution(error.into()), RefreshOutcome::Changed),
    }
}

/// Converts the result of a successful change to the result of its task.
fn changed_execution(result: ApplyResult) -> Execution {
    let outcome = if result.is_unchanged { Outcome::Unchanged } else { Outcome::Changed };
    Execution { output: result.output, diff: result.diff, ..Execution::with_message(outcome, result.message) }
}

/// Converts the error of a task to its result: the outcome, the message and the output.
fn failed_execution(error: TaskError) -> Execution {
    let outcome = if error.effect == FailureEffect::Unknown { Outcome::Unknown } else { Outcome::Failed };
    Execution { output: error.output, ..Execution::with_message(outcome, error.message) }
}
