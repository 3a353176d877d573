//! The reboot of this host that tasks ask for, as this host reports it.

use std::collections::BTreeSet;

use stemma_core::status::{RebootReport, RebootTask};
use stemma_wire::message::desired::Profile;

use super::ledger::{Desired, Ledger};
use crate::host::HostError;

/// The time within which the host must go down after its reboot has begun, if no task sets one, in seconds.
pub const DEFAULT_REBOOT_SECONDS: u64 = 300;

/// Returns the report about the reboot that tasks ask for. `boot_id` is the present boot.
///
/// # Errors
/// [`HostError`] from the ledger.
pub fn report(ledger: &Ledger, boot_id: [u8; 16]) -> Result<RebootReport, HostError> {
    let requests = ledger.pending_reboots(boot_id)?;
    let since = requests.values().map(|request| request.requested_at).min();
    let tasks = requests.into_iter().map(|(task, request)| RebootTask { task, reason: request.reason }).collect();
    Ok(RebootReport { since, tasks, problem: None })
}

/// Returns the ids of the tasks that wait for a reboot: those that have asked for it, and those that require them.
/// `has_ended` returns whether a task has an outcome in this task set.
#[must_use]
pub fn waiting_tasks<'a>(
    report: &RebootReport,
    desired: &Desired,
    profile: &'a Profile,
    has_ended: impl Fn(&str) -> bool,
) -> BTreeSet<&'a str> {
    let mut waits: Vec<bool> = Vec::new();
    for task in &profile.tasks {
        // A task requires only tasks before it in the list.
        let is_behind = || task.after.iter().any(|&index| waits.get(usize::from(index)) == Some(&true));
        let has_asked = report.tasks.iter().any(|asked| asked.task == task.id);
        waits.push(!has_ended(&task.id) && (has_asked || is_behind()));
    }
    let waiting = profile.tasks.iter().zip(waits).filter(|(task, waits)| *waits && desired.task_set.runs_task(&task.id));
    waiting.map(|(task, _)| task.id.as_str()).collect()
}
