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

/// Maximum delay before the agent tries a failed write again.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Interval between two checks of whether the disk has room for a record.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// The reason why the agent cannot write its own state (the records on disk).
pub(super) struct StuckReason {
    pub(super) sentence: String,
    /// The kind of the system's error. If a later write fails with the same kind, the agent does not report it again.
    cause: Option<ErrorKind>,
}

impl ApplyWorker {
    /// Handles the result of a step that may write the agent's own state (its records on disk).
    ///
    /// If the agent runs as a service and the write failed, reports the error, and starts no task before the next
    /// reconcile. Then the result is `Ok`, so that the service continues. A one-time run returns the error instead.
    /// After a success, clears an earlier report of such an error.
    pub(super) async fn survive_state_error(&mut self, result: Result<(), ApplyError>) -> Result<(), ApplyError> {
        let state_error = match result {
            Ok(()) => return self.recheck_disk().await,
            Err(ApplyError::State(state_error)) if self.stop_when == StopWhen::OnRequest => state_error,
            Err(error) => return Err(error),
        };
        self.block_runs(&state_error).await
    }

    /// Fails if the disk has no room for a record. So a full disk is reported even if the agent has nothing to write.
    ///
    /// Does not check while a task runs. When that task ends, the agent writes its record, and this write fails if the
    /// disk is full.
    pub(super) fn check_room(&mut self) -> Result<(), ApplyError> {
        self.check_room_at = Instant::now() + ROOM_CHECK_INTERVAL;
        if self.run.as_ref().is_some_and(TaskRun::is_running) {
            return Ok(());
        }
        Ok(self.site.ledger.check_room()?)
    }

    /// Runs the checks of every minute: whether the disk has room for a record, and whether the orphans (objects
    /// that tasks left and that no task manages now) still exist. Reports a change.
    pub(super) async fn check_each_minute(&mut self) -> Result<(), ApplyError> {
        self.check_room()?;
        if self.orphans.objects.is_empty() {
            return Ok(());
        }
        self.find_orphans()?;
        self.report().await
    }

    /// Prevents each task from starting before the next reconcile, and reports the reason. If an offered desired state
    /// has no response yet, refuses it.
    async fn block_runs(&mut self, state_error: &HostError) -> Result<(), ApplyError> {
        self.is_blocked = true;
        self.next_reconcile_at = self.next_reconcile_at.min(Instant::now() + RETRY_DELAY);
        // No task can start, so the agent must not report the progress `Running`.
        (self.report_running_at, self.progress) = (None, Progress::Failed);
        let (sentence, cause) = (state_error.sentence(), state_error.io_error_kind());
        if std::mem::take(&mut self.is_offer_unanswered) {
            self.channel.send(&ApplyMessage::Refused { reason: sentence.clone() }).await?;
        }
        // A failure of another record with the same cause is not reported again.
        if self.findings.disk.as_ref().is_none_or(|stuck| stuck.cause != cause) {
            error!(error = sentence.as_str(); "the agent's own state cannot be kept; nothing is begun before it can");
            self.findings.disk = Some(StuckReason { sentence, cause });
        }
        ignore_state_error(self.report().await)
    }

    /// Clears the finding that the agent cannot write its state if a test write succeeds, or else blocks the runs
    /// again. Does nothing if there is no such finding, or while runs are blocked until the next reconcile.
    async fn recheck_disk(&mut self) -> Result<(), ApplyError> {
        if self.is_blocked || self.findings.disk.is_none() {
            return Ok(());
        }
        // The last step may have succeeded only because it had nothing to write. So this makes a test write.
        if let Err(state_error) = self.site.ledger.check_writable() {
            return self.block_runs(&state_error).await;
        }
        // This does not plan a run, because the reconcile that ended the block has planned one.
        (self.findings.disk, self.progress) = (None, Progress::Idle);
        info!("the agent's own state can be kept again");
        ignore_state_error(self.report().await)
    }
}

/// Replaces an error of the agent's own state by `Ok`. The caller uses this for a report that was sent before the
/// error. Only its storage on disk failed.
fn ignore_state_error(result: Result<(), ApplyError>) -> Result<(), ApplyError> {
    match result {
        Err(ApplyError::State(_)) => Ok(()),
        other => other,
    }
}
