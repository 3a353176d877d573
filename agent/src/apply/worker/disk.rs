//! A state directory that cannot be written: the disk is full, read-only, or broken.
//!
//! Nothing that needs a record is begun then, and nothing ends over it: a service that was started again every other
//! second would take its host with it. It is said once, to the controller too, and tried again at the next look, which
//! comes soon (F06, F08). An offer that could not be kept is refused, so that the controller is asked for it ever more seldom.
//! Whether a record could be kept is checked also while there is none to keep.

use std::io::ErrorKind;
use std::time::Duration;

use log::{error, info};
use stemma_wire::message::channel::FromApply;
use stemma_wire::message::observed::Progress;
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker, Run, Until};
use crate::host::HostError;

/// When it is tried again.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(30);

/// How often that is checked while there is nothing to keep.
const LOOK_AT_ROOM: Duration = Duration::from_mins(1);

/// Why the state cannot be kept.
pub(super) struct Stuck {
    pub(super) sentence: String,
    cause: Option<ErrorKind>,
}

impl ApplyWorker {
    /// Goes on where the state could not be kept; where all is done once, that is its end.
    pub(super) async fn endure(&mut self, done: Result<(), ApplyError>) -> Result<(), ApplyError> {
        let failed = match done {
            Ok(()) => return self.recovered().await,
            Err(ApplyError::State(failed)) if self.mode == Until::Stopped => failed,
            Err(error) => return Err(error),
        };
        self.block(&failed).await
    }

    /// Whether a record could be kept now. A host whose disk is full is not well, also while it has nothing to keep. What runs is not stopped
    /// over it: its own records fail then.
    pub(super) fn check_room(&mut self) -> Result<(), ApplyError> {
        self.room_at = Instant::now() + LOOK_AT_ROOM;
        if self.run.as_ref().is_some_and(Run::is_running) {
            return Ok(());
        }
        Ok(self.site.ledger.check_room()?)
    }

    /// What is looked at each minute, whether or not anything happens: the room, and whether files that tasks left are still there. Where
    /// none is, that costs nothing; where nothing changed, nothing is written.
    pub(super) async fn look_each_minute(&mut self) -> Result<(), ApplyError> {
        self.check_room()?;
        if self.orphans.is_empty() {
            return Ok(());
        }
        self.look_for_orphans()?;
        self.report().await
    }

    /// Begins nothing before the next look, and says why.
    async fn block(&mut self, failed: &HostError) -> Result<(), ApplyError> {
        self.is_blocked = true;
        self.look_at = self.look_at.min(Instant::now() + TRY_AGAIN);
        // Nothing goes on.
        (self.running_at, self.progress) = (None, Progress::Failed);
        let (sentence, cause) = (failed.sentence(), failed.cause());
        if std::mem::take(&mut self.owes_answer) {
            self.end.send(&FromApply::Refused { reason: sentence.clone() }).await?;
        }
        // Which record is tried is another one each time, and no news.
        if self.findings.disk.as_ref().is_none_or(|stuck| stuck.cause != cause) {
            error!(error = sentence.as_str(); "the agent's own state cannot be kept; nothing is begun before it can");
            self.findings.disk = Some(Stuck { sentence, cause });
        }
        told_anyway(self.report().await)
    }

    async fn recovered(&mut self) -> Result<(), ApplyError> {
        if self.is_blocked || self.findings.disk.is_none() {
            return Ok(());
        }
        // That nothing had to be written does not say that anything can be.
        if let Err(failed) = self.site.ledger.check_writable() {
            return self.block(&failed).await;
        }
        // The look that came before has planned what goes on now.
        (self.findings.disk, self.progress) = (None, Progress::Idle);
        info!("the agent's own state can be kept again");
        told_anyway(self.report().await)
    }
}

/// A report is told before it is kept.
fn told_anyway(reported: Result<(), ApplyError>) -> Result<(), ApplyError> {
    match reported {
        Err(ApplyError::State(_)) => Ok(()),
        other => other,
    }
}
