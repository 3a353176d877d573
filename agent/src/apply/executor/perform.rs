//! One task, from its check to its end.

use std::rc::Rc;
use std::time::Duration;

use log::warn;
use stemma_core::task::{Mode, OnDrift};
use stemma_wire::message::observed::Outcome;

use crate::apply::applier::Applier;
use crate::apply::leftovers::{StagingDirs, note};
use crate::apply::task::{Check, Execution, HostTask, Left, Site, TaskError};

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

/// How often it is asked whether a task that another process applies has ended.
const BETWEEN: Duration = Duration::from_millis(50);

/// The message of a task that runs for another one alone.
const REFRESHED: &str = "a task that it subscribes to has changed something since it last succeeded";

/// What a run asks of a task.
#[derive(Clone, Debug)]
pub struct Call {
    /// How far it may go.
    pub permitted: Permitted,
    /// Whether it runs again, since a task that it subscribes to has changed something.
    pub refresh: bool,
    /// The tasks that run again when this one changes something.
    pub refreshes: Vec<String>,
    /// Where the tasks of the run may leave something unfinished.
    pub staging: Rc<StagingDirs>,
}

/// What became of the change before which a task asked others to run again.
#[derive(Debug, Default)]
pub enum Asked {
    /// It asked nobody.
    #[default]
    Nobody,
    /// It was made, in part maybe.
    ForChange,
    /// It was not made. These had not been asked before.
    ForNothing(Vec<String>),
}

/// Checks a task, and applies it where that is allowed and called for.
pub async fn perform(site: &Site, applier: &dyn Applier, task: &HostTask, call: &Call) -> (Execution, Asked) {
    let begun = site.host.uptime();
    let checked = match applier.check(site, task).await {
        Ok(Check::AsItShould) if call.refresh && applier.is_journalled(task) => {
            Ok(Check::Differs { diff: String::new(), message: REFRESHED.into() })
        }
        checked => checked,
    };
    let mut asked = Asked::Nobody;
    let mut ended = match checked {
        Err(error) => failed(error),
        Ok(Check::AsItShould) => Execution::plain(Outcome::Unchanged),
        Ok(Check::Blocked { diff, message }) => {
            let is_looked_at = match call.permitted {
                Permitted::Mend => task.task.on_drift == OnDrift::Report,
                Permitted::Contended => true,
                Permitted::Check | Permitted::Apply => false,
            };
            let outcome = if is_looked_at { Outcome::Drifted } else { Outcome::Failed };
            Execution { diff, ..Execution::because(outcome, message) }
        }
        Ok(Check::Differs { diff, message }) => match (call.permitted, task.task.on_drift) {
            (Permitted::Check, _) => Execution { diff, ..Execution::because(Outcome::WouldChange, message) },
            (Permitted::Contended, _) => Execution { diff, ..Execution::because(Outcome::Drifted, CONTENDED) },
            (Permitted::Mend, OnDrift::Report) => Execution { diff, ..Execution::because(Outcome::Drifted, message) },
            (Permitted::Mend, OnDrift::Mend) | (Permitted::Apply, _) => {
                let (ended, by_it) = apply(site, applier, task, call).await;
                asked = by_it;
                ended
            }
        },
    };
    let is_done = call.permitted != Permitted::Check && ended.outcome.is_success();
    if call.refresh
        && is_done
        && let Err(error) = site.ledger.refreshed(std::slice::from_ref(&task.task.id))
    {
        warn!(task = task.task.id.as_str(), error = error.sentence().as_str(); "a task that has run again will do so once more");
    }
    if task.is_sensitive() {
        ended.output.clear();
        ended.diff.clear();
    }
    let took = site.host.uptime().saturating_sub(begun);
    ended.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    (ended, asked)
}

/// Looks at a task beside whoever applies the tasks of this host. One that is applied now is looked at when that has ended: before, its journal
/// and its files are those of a task that a crash cut off. `would_refresh`: a look has found that what it subscribes to would change.
pub async fn look(
    site: &Site,
    applier: &dyn Applier,
    task: &HostTask,
    mut call: Call,
    would_refresh: bool,
) -> (Execution, Asked) {
    loop {
        let id = task.task.id.as_str();
        if waited_for(site, id).await {
            call.refresh &= would_refresh || site.ledger.is_to_refresh(id).unwrap_or(false);
        }
        let looked = perform(site, applier, task, &call).await;
        // It may have been begun after it was asked.
        if looked.0.outcome != Outcome::Unknown || !is_applied_elsewhere(site, id) {
            return looked;
        }
    }
}

/// Waits for the end of a task where another process applies it, and says whether one did.
async fn waited_for(site: &Site, id: &str) -> bool {
    if !is_applied_elsewhere(site, id) {
        return false;
    }
    warn!(task = id; "it is applied now: waiting for its end");
    while is_applied_elsewhere(site, id) {
        tokio::time::sleep(BETWEEN).await;
    }
    true
}

/// Where that cannot be seen, the task is looked at as it is.
fn is_applied_elsewhere(site: &Site, id: &str) -> bool {
    site.ledger.is_applied_elsewhere(id).unwrap_or(false)
}

async fn apply(site: &Site, applier: &dyn Applier, task: &HostTask, call: &Call) -> (Execution, Asked) {
    let _applying = site.ledger.applying(&task.task.id);
    // Before the change: after a crash in it, what it left is looked for.
    if applier.keeps(site, task).is_some()
        && let Err(error) = note(site, &call.staging)
    {
        return (failed(error.into()), Asked::Nobody);
    }
    // Before the change: a crash after it must not lose the wish.
    let asked = match site.ledger.ask_to_refresh(&call.refreshes) {
        Ok(asked) => asked,
        Err(error) => return (failed(error.into()), Asked::Nobody),
    };
    let (retries, interval) = applier.retries(task);
    let (mut attempt, mut is_as_it_was) = (0, true);
    loop {
        match applier.apply(site, task).await {
            Ok(applied) => {
                let ended = Execution::because(Outcome::Changed, applied.message);
                return (Execution { output: applied.output, diff: applied.diff, ..ended }, Asked::ForChange);
            }
            Err(error) if error.left == Left::Unknown || attempt == retries => {
                is_as_it_was &= error.left == Left::AsItWas;
                let mut ended = failed(error);
                if attempt > 0 {
                    ended.message = format!("{} (attempt {})", ended.message, attempt + 1);
                }
                return (ended, if is_as_it_was { Asked::ForNothing(asked) } else { Asked::ForChange });
            }
            Err(error) => {
                is_as_it_was &= error.left == Left::AsItWas;
                attempt += 1;
            }
        }
        tokio::time::sleep(Duration::from_secs(interval)).await;
    }
}

fn failed(error: TaskError) -> Execution {
    let outcome = if error.left == Left::Unknown { Outcome::Unknown } else { Outcome::Failed };
    Execution { output: error.output, ..Execution::because(outcome, error.message) }
}
