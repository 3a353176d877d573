//! Handles a state directory that cannot be written, because the disk is full, read-only or broken.
//!
//! Then the agent starts nothing that needs a record. It does not exit, because a service that restarts every other
//! second would harm its host. The error is reported once, to the controller too. The next reconcile, at the latest
//! after [`RETRY_DELAY`], tries again (F06, F08). An offer that cannot be stored is refused, so that the controller
//! sends it less and less often. Each minute the agent checks that a record could be written, even if there is none to
//! write.

use std::io::ErrorKind;
use std::time::Duration;

use log::{error, info};
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::observed::Progress;
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker, StopWhen, TaskRun};
use crate::host::HostError;

/// Delay before the agent tries a failed write again.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Interval between the checks that a record could be written.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// The reason why the state cannot be written.
pub(super) struct StuckReason {
    pub(super) sentence: String,
    /// The kind of the system's error. Another failure of the same kind is not reported again.
    cause: Option<ErrorKind>,
}

impl ApplyWorker {
    /// Keeps the agent running if `result` is an error of its own state, and starts nothing before the next reconcile.
    /// A run that ends when there is nothing more to do returns the error instead. After a success, lets runs start
    /// again.
    pub(super) async fn survive_state_error(&mut self, result: Result<(), ApplyError>) -> Result<(), ApplyError> {
        let failed = match result {
            Ok(()) => return self.unblock_runs().await,
            Err(ApplyError::State(failed)) if self.stop_when == StopWhen::OnRequest => failed,
            Err(error) => return Err(error),
        };
        self.block_runs(&failed).await
    }

    /// Fails if a record could not be written now, so that a full disk is reported even if there is nothing to write.
    /// Does not check while a task runs: if the disk is full, writing the record of that task fails.
    pub(super) fn check_room(&mut self) -> Result<(), ApplyError> {
        self.check_room_at = Instant::now() + ROOM_CHECK_INTERVAL;
        if self.run.as_ref().is_some_and(TaskRun::is_running) {
            return Ok(());
        }
        Ok(self.site.ledger.check_room()?)
    }

    /// Does what is due every minute: checks that a record could be written, and whether the files that removed tasks
    /// left still exist. If nothing changed, nothing is written.
    pub(super) async fn check_each_minute(&mut self) -> Result<(), ApplyError> {
        self.check_room()?;
        if self.orphans.is_empty() {
            return Ok(());
        }
        self.find_orphans()?;
        self.report().await
    }

    /// Lets no task start before the next reconcile, and reports why. An offer that has no response yet is refused.
    async fn block_runs(&mut self, failed: &HostError) -> Result<(), ApplyError> {
        self.is_blocked = true;
        self.next_reconcile_at = self.next_reconcile_at.min(Instant::now() + RETRY_DELAY);
        // No task can continue, so the report must not say that tasks run.
        (self.report_running_at, self.progress) = (None, Progress::Failed);
        let (sentence, cause) = (failed.sentence(), failed.cause());
        if std::mem::take(&mut self.is_offer_unanswered) {
            self.end.send(&ApplyMessage::Refused { reason: sentence.clone() }).await?;
        }
        // A failure of another record with the same cause is not reported again.
        if self.findings.disk.as_ref().is_none_or(|stuck| stuck.cause != cause) {
            error!(error = sentence.as_str(); "the agent's own state cannot be kept; nothing is begun before it can");
            self.findings.disk = Some(StuckReason { sentence, cause });
        }
        ignore_state_error(self.report().await)
    }

    /// Ends the report of a state that could not be written, once a write succeeds.
    async fn unblock_runs(&mut self) -> Result<(), ApplyError> {
        if self.is_blocked || self.findings.disk.is_none() {
            return Ok(());
        }
        // Success does not prove that the disk is writable, because there may have been nothing to write.
        if let Err(failed) = self.site.ledger.check_writable() {
            return self.block_runs(&failed).await;
        }
        // No run need be planned here: the reconcile that ended the block has planned it.
        (self.findings.disk, self.progress) = (None, Progress::Idle);
        info!("the agent's own state can be kept again");
        ignore_state_error(self.report().await)
    }
}

/// Ignores the error that a report could not be stored, because the report has been sent before.
fn ignore_state_error(result: Result<(), ApplyError>) -> Result<(), ApplyError> {
    match result {
        Err(ApplyError::State(_)) => Ok(()),
        other => other,
    }
}
