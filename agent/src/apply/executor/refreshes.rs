//! Refreshes that the tasks of a run request from others: to run again because of a change.
//!
//! A request is recorded in the ledger once, by the first task that makes it, before that task changes anything. Other
//! tasks that request the same refresh rely on this record. So the request is cancelled only when each of them has
//! ended without a change.

use std::collections::BTreeSet;

use super::perform::RefreshOutcome;

/// The refreshes that a run has requested. A refresh makes a task run again, because a task that it subscribes to has
/// changed something.
#[derive(Debug, Default)]
pub(super) struct PendingRefreshes {
    /// Tasks that must run again, because a task that they subscribe to has changed something in this run.
    due: BTreeSet<String>,
    /// Tasks whose refresh, requested in this run by a task that then changed nothing, is not cancelled yet.
    without_change: BTreeSet<String>,
}

impl PendingRefreshes {
    /// Records the end of a task. `refreshes` are the tasks that it may have requested to run again. `running` are the
    /// tasks that tasks still running may have requested to run again. Returns the tasks whose request must be
    /// cancelled, because every task that requested it has ended without a change.
    pub(super) fn end_task(&mut self, refreshes: &[String], outcome: RefreshOutcome, running: &BTreeSet<&String>) -> Vec<String> {
        match outcome {
            RefreshOutcome::NotRequested => {}
            RefreshOutcome::Changed => self.due.extend(refreshes.iter().cloned()),
            RefreshOutcome::Unchanged(tasks) => self.without_change.extend(tasks),
        }
        self.without_change.retain(|task| !self.due.contains(task));
        self.without_change.extract_if(.., |task| !running.contains(task)).collect()
    }
}
