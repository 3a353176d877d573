//! `reboot`: asks for a reboot of the host. The task itself never boots the host.
//!
//! ```text
//! not asked ──ask──▶ asked ──(the host boots)──▶ booted ──record──▶ ended
//! ```
//!
//! The request is a record in the ledger, with the boot in which the task asked. While it is the present boot, the task
//! is deferred: it has no result, and the tasks that require it wait. An operator boots the host by `stemma node reboot`,
//! or the host boots for another reason. The agent then finds another boot id, and the task ends.
//!
//! With `when: always`, a task asks once for each content (definition and inputs), like a command without guards. With
//! `when: required`, the system decides ([`needs`]).

mod needs;

use stemma_core::task::{RebootParameters, WHEN_REQUIRED};

use super::{Applier, parameters};
use crate::apply::ledger::RebootRequest;
use crate::apply::reboots::DEFAULT_REBOOT_SECONDS;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{HostError, Pending};

/// The reason of a task that asks for a reboot whatever the state of the system.
const ALWAYS_REASON: &str = "the task asks for it with this definition and these inputs";

/// The message of a task that waits for a reboot.
const DEFERRED_MESSAGE: &str = "it waits for a reboot of this host, which an operator begins by `stemma node reboot`";

/// The applier of `reboot` tasks.
pub(super) struct RebootApplier;

/// The next step of a `reboot` task.
enum RebootStep {
    /// The task has nothing to do.
    Nothing,
    /// The task asks for a reboot, for this reason.
    Ask(String),
    /// The task has asked, and the host has not booted since.
    Wait,
    /// The host has booted since the task asked, and the task ends.
    End(RebootRequest),
    /// The task has asked, and the system no longer requires a reboot. The request is withdrawn.
    Withdraw,
}

impl Applier for RebootApplier {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            let drifted = |message: String| CheckResult::Drifted { diff: String::new(), message };
            Ok(match next_step(site, task).await? {
                RebootStep::Nothing => CheckResult::Converged,
                RebootStep::Ask(reason) => drifted(format!("would ask for a reboot: {reason}")),
                RebootStep::Wait => CheckResult::Deferred { message: DEFERRED_MESSAGE.into() },
                RebootStep::End(_) => drifted("the host has booted since it asked, which is not recorded yet".into()),
                RebootStep::Withdraw => {
                    drifted("would withdraw its request, since the system requires no reboot any more".into())
                }
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let step = next_step(site, task).await?;
            take_step(site, task, step)
        })
    }

    /// Asks for a reboot, because a task to which this one subscribes has changed something. With `when: required`, the
    /// system decides as in [`Self::apply`].
    fn refresh<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let step = if is_conditional(task)? {
                next_step(site, task).await?
            } else {
                RebootStep::Ask("a task to which it subscribes has changed something".into())
            };
            take_step(site, task, step)
        })
    }

    fn is_refresh_needed(&self, task: &HostTask) -> bool {
        is_conditional(task).is_ok_and(|is_conditional| !is_conditional)
    }

    fn is_deferred(&self, site: &Site, task: &HostTask) -> Result<bool, HostError> {
        let request = site.ledger.reboot_request(&task.task.id, task.content)?;
        Ok(request.is_some_and(|request| request.is_pending(site.host.boot_id())))
    }
}

/// Returns whether the system decides whether the task asks for a reboot (`when: required`).
fn is_conditional(task: &HostTask) -> Result<bool, TaskError> {
    Ok(parameters::<RebootParameters>(task)?.when.as_deref() == Some(WHEN_REQUIRED))
}

/// Returns the next step of a task, from its request in the ledger and, with `when: required`, the state of the system.
async fn next_step(site: &Site, task: &HostTask) -> Result<RebootStep, TaskError> {
    let (boot_id, is_conditional) = (site.host.boot_id(), is_conditional(task)?);
    match site.ledger.reboot_request(&task.task.id, task.content)? {
        Some(request) if request.is_done => Ok(RebootStep::Nothing),
        Some(request) if !request.is_pending(boot_id) => Ok(RebootStep::End(request)),
        Some(_) if !is_conditional => Ok(RebootStep::Wait),
        Some(_) => Ok(if needs::find_reason(site, task).await?.is_some() { RebootStep::Wait } else { RebootStep::Withdraw }),
        None if !is_conditional => Ok(RebootStep::Ask(ALWAYS_REASON.into())),
        None => Ok(needs::find_reason(site, task).await?.map_or(RebootStep::Nothing, RebootStep::Ask)),
    }
}

/// Records a step of a task in the ledger. Returns the result of the task.
fn take_step(site: &Site, task: &HostTask, step: RebootStep) -> Result<ApplyResult, TaskError> {
    let id = &task.task.id;
    match step {
        RebootStep::Nothing => Ok(ApplyResult { is_unchanged: true, ..ApplyResult::default() }),
        RebootStep::Wait => Ok(ApplyResult::default()),
        RebootStep::Ask(reason) => {
            let boot_id = site.host.boot_id();
            if boot_id == [0; 16] {
                let message = "this host gives no boot id (/proc/sys/kernel/random/boot_id), so no reboot could be noticed; nothing was recorded";
                return Err(TaskError::new(message).without_effect());
            }
            let parameters: RebootParameters = parameters(task)?;
            let request = RebootRequest {
                content: task.content,
                boot_id,
                requested_at: site.host.unix_seconds(),
                reason,
                timeout_s: parameters.timeout.or(task.task.timeout_seconds).unwrap_or(DEFAULT_REBOOT_SECONDS),
                is_done: false,
            };
            site.ledger.set_reboot_request(id, Some(request))?;
            Ok(ApplyResult::default())
        }
        RebootStep::End(request) => {
            // With `when: required`, a later check must find again what the system requires.
            let ended = (!is_conditional(task)?).then_some(RebootRequest { is_done: true, ..request });
            site.ledger.set_reboot_request(id, ended)?;
            let message = "the host has booted since the task asked for a reboot".into();
            Ok(ApplyResult { message, ..ApplyResult::default() })
        }
        RebootStep::Withdraw => {
            site.ledger.set_reboot_request(id, None)?;
            let message = "the system requires no reboot any more, so the request is withdrawn".into();
            Ok(ApplyResult { message, is_unchanged: true, ..ApplyResult::default() })
        }
    }
}

#[cfg(test)]
mod tests;
