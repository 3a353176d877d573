//! A state directory that cannot be written: the disk is full, read-only, or broken.
//!
//! Nothing that needs a record is begun then, and nothing ends over it: a service that was started again every other
//! second would take its host with it. It is said once, to the controller too, and tried again at the next look, which
//! comes soon (F06, F08).

use std::time::Duration;

use log::{error, info};
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker, Until};

/// When it is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(30);

impl ApplyWorker {
    /// Goes on where the state could not be kept; where all is done once, that is its end.
    pub(super) async fn endure(&mut self, done: Result<(), ApplyError>) -> Result<(), ApplyError> {
        let failed = match done {
            Ok(()) => return self.recovered().await,
            Err(ApplyError::State(failed)) if self.mode == Until::Stopped => failed,
            Err(error) => return Err(error),
        };
        let sentence = failed.sentence();
        self.is_blocked = true;
        self.look_at = self.look_at.min(Instant::now() + TRY_AGAIN);
        if self.findings.disk.as_ref() != Some(&sentence) {
            error!(error = sentence.as_str(); "the agent's own state cannot be kept; nothing is begun before it can");
            self.findings.disk = Some(sentence);
            let reported = self.report().await;
            return told_anyway(reported);
        }
        Ok(())
    }

    async fn recovered(&mut self) -> Result<(), ApplyError> {
        if !self.is_blocked && self.findings.disk.take().is_some() {
            info!("the agent's own state can be kept again");
            let reported = self.report().await;
            return told_anyway(reported);
        }
        Ok(())
    }
}

/// A report is told before it is kept.
fn told_anyway(reported: Result<(), ApplyError>) -> Result<(), ApplyError> {
    match reported {
        Err(ApplyError::State(_)) => Ok(()),
        other => other,
    }
}
