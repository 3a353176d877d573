//! One task, from its check to its end.

use std::time::Duration;

use stemma_core::task::{Mode, OnDrift};
use stemma_wire::message::observed::Outcome;

use crate::apply::applier::Applier;
use crate::apply::task::{Check, Execution, HostTask, Site, TaskError};

/// The message of a task that is no longer mended.
const CONTENDED: &str = "contended: it was mended three times within an hour, and something else changes it again";

/// How far a task may go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permitted {
    /// To look.
    Check,
    /// To make it so: it never was with this content.
    Apply,
    /// To make it so again, if the task wants drift mended.
    Mend,
    /// To look: it was mended so often that something else must be changing it.
    Contended,
}

impl Permitted {
    /// What a task may do in a mode. Its own mode can only lower it.
    #[must_use]
    pub fn of(mode: Mode, own: Option<Mode>, was_well: bool) -> Self {
        match mode.min(own.unwrap_or_default()) {
            Mode::Observe | Mode::Noop => Self::Check,
            Mode::Apply if was_well => Self::Mend,
            Mode::Apply => Self::Apply,
        }
    }
}

/// Checks a task, and applies it where that is allowed and called for.
pub async fn perform(site: &Site, applier: &dyn Applier, task: &HostTask, permitted: Permitted) -> Execution {
    let begun = site.host.uptime();
    let mut ended = match applier.check(site, task).await {
        Err(error) => failed(error),
        Ok(Check::AsItShould) => Execution::plain(Outcome::Unchanged),
        Ok(Check::Differs { diff, message }) => match (permitted, task.task.on_drift) {
            (Permitted::Check, _) => Execution { diff, ..Execution::because(Outcome::WouldChange, message) },
            (Permitted::Contended, _) => Execution { diff, ..Execution::because(Outcome::Drifted, CONTENDED) },
            (Permitted::Mend, OnDrift::Report) => Execution { diff, ..Execution::because(Outcome::Drifted, message) },
            (Permitted::Mend, OnDrift::Mend) | (Permitted::Apply, _) => apply(site, applier, task).await,
        },
    };
    if task.is_sensitive() {
        ended.output.clear();
        ended.diff.clear();
    }
    let took = site.host.uptime().saturating_sub(begun);
    ended.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    ended
}

async fn apply(site: &Site, applier: &dyn Applier, task: &HostTask) -> Execution {
    let (retries, interval) = applier.retries(task);
    let mut attempt = 0;
    loop {
        match applier.apply(site, task).await {
            Ok(applied) => {
                return Execution { output: applied.output, diff: applied.diff, ..Execution::plain(Outcome::Changed) };
            }
            Err(error) if error.unknown || attempt == retries => {
                let mut ended = failed(error);
                if attempt > 0 {
                    ended.message = format!("{} (attempt {})", ended.message, attempt + 1);
                }
                return ended;
            }
            Err(_) => attempt += 1,
        }
        tokio::time::sleep(Duration::from_secs(interval)).await;
    }
}

fn failed(error: TaskError) -> Execution {
    let outcome = if error.unknown { Outcome::Unknown } else { Outcome::Failed };
    Execution { output: error.output, ..Execution::because(outcome, error.message) }
}
