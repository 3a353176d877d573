//! The loop of the root half: it takes in offers and works off the desired state that it holds.
//!
//! Every event has the same effect. The loop reads the ledger, writes what services read, and runs the tasks that are
//! due. No decision is kept in memory alone, so a restart is no special case.

mod bodies;
mod disk;
mod grants;
mod host_map;
mod offers;
mod plan;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use log::warn;
use stemma_core::status::Orphan;
use stemma_wire::message::WireVersion;
use stemma_wire::message::channel::{FromApply, FromSync};
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::{self, LocalState, Report};
use tokio::time::{Instant, sleep_until};

use super::executor::{Course, Run};
use super::hooks::Failures;
use super::ledger::{Desired, LOCAL, LOOK_DONE, Ledger, REPORT};
use super::outputs::Written;
use super::seal::seal_key;
use super::task::Site;
use super::verify::Trust;
use super::wake::WakeListener;
use crate::channel::{ApplyEnd, ChannelError};
use crate::config::Config;
use crate::host::{Command, HostError, or_never};
use crate::watch::{Parts, Watch};
use bodies::Bodies;
use disk::Stuck;
use grants::Grants;
use host_map::HostMapWatch;
use report::{Hooks, hooks_turn, log_ended};

/// How long after a failure a body is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// How long a changed file is left alone, so that its writer can finish.
const SETTLE: Duration = Duration::from_secs(1);

/// How many looks may follow one another for files that are changed while tasks run.
const MOST_IN_A_ROW: u32 = 3;
/// The shortest time between two looks that changed files cause.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

/// A run that takes longer is reported as running.
const SAID_TO_RUN: Duration = Duration::from_millis(500);

/// The root half.
pub struct ApplyWorker {
    site: Site,
    config: Config,
    /// What offers are verified against; `None` without an identity.
    trust: Option<Trust>,
    end: ApplyEnd,
    wakes: WakeListener,
    desired: Option<Desired>,
    local: LocalState,
    grants: Grants,
    bodies: Bodies,
    run: Option<Run>,
    /// Whether the run's task set is no longer the one held.
    replaced: bool,
    progress: observed::Progress,
    findings: Findings,
    orphans: Vec<Orphan>,
    reported: Option<Report>,
    /// Whether the last report is on disk, for `status`.
    is_report_kept: bool,
    look_at: Instant,
    /// When what services and people read is written again, where some of it could not be.
    outputs_at: Option<Instant>,
    /// When it is checked next whether a record could be kept.
    room_at: Instant,
    /// Whether the state could not be written. Nothing is started before the next look then.
    is_blocked: bool,
    /// Whether an offer was taken in that was neither accepted nor refused yet.
    owes_answer: bool,
    /// When the report says that tasks run. A run that only checks ends before that.
    running_at: Option<Instant>,
    failures: u32,
    hooks: Hooks,
    map: HostMapWatch,
    /// The files that tasks keep; `None`: they are looked at on schedule alone.
    managed: Option<Watch>,
    touched: Touched,
    looked_at: Instant,
    /// The look that a verb on the host asked for and waits for.
    asked: Option<u64>,
    /// The command that is run once, when the tasks are first applied after this process started.
    applied: Option<Command>,
    /// How far the last run came.
    course: Course,
    mode: Until,
}

/// When the half ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When it is told to stop.
    Stopped,
    /// When there is nothing more to do now.
    Quiet,
}

#[derive(Default)]
struct Findings {
    membership: Option<String>,
    disk: Option<Stuck>,
    outputs: Written,
    map: Option<String>,
    hooks: Failures,
    state: Option<String>,
    set_aside: Vec<String>,
    dropped: Option<String>,
    /// The number from which on results come after a report that had `dropped`; `None`: it is not reported yet.
    dropped_told: Option<u64>,
}

impl Findings {
    /// Looks at what of the state cannot be used, and at how many results went untaken.
    fn look_at(&mut self, ledger: &Ledger) -> Result<(), HostError> {
        self.set_aside = ledger.set_aside_records()?;
        let dropped = ledger.dropped_results()?;
        if dropped != self.dropped {
            (self.dropped, self.dropped_told) = (dropped, None);
        }
        Ok(())
    }
}

/// Files that tasks keep and that were changed while tasks ran: by these, or by another hand when the task had looked already.
#[derive(Default)]
struct Touched {
    in_this_run: bool,
    /// How many looks for what was touched in the run before came one after the other; this run is the last of them.
    in_a_row: u32,
}

/// Why the half cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The machine.
    #[error("the agent's own state cannot be kept")]
    State(#[from] HostError),
    /// The other half.
    #[error("the other half of the agent cannot be reached")]
    Channel(#[from] ChannelError),
}

impl Touched {
    /// Whether a run that is over is followed by a look. No more than [`MOST_IN_A_ROW`] follow one another: of two tasks that write one
    /// file neither has the other run for ever.
    fn calls_for_a_look(&mut self) -> bool {
        let calls = std::mem::take(&mut self.in_this_run) && self.in_a_row < MOST_IN_A_ROW;
        self.in_a_row = if calls { self.in_a_row + 1 } else { 0 };
        calls
    }
}

impl ApplyWorker {
    /// The root half over what it holds.
    ///
    /// # Errors
    /// [`HostError`] when the ledger cannot be read at all.
    pub fn new(
        site: Site,
        config: Config,
        trust: Option<Trust>,
        end: ApplyEnd,
        wakes: WakeListener,
        mode: Until,
    ) -> Result<Self, HostError> {
        let site = site.with_label_map(&config.host_label_map);
        if let Err(error) = site.ledger.sweep() {
            // What is unfinished harms nobody. Why the state takes no change is told as soon as this half runs.
            warn!(error = error.sentence().as_str(); "an unfinished file of an agent that was killed cannot be taken away");
        }
        let local = site.ledger.get(&LOCAL)?.unwrap_or_default();
        let progress = site.ledger.get(&REPORT)?.map(|last| last.progress).unwrap_or_default();
        let look_at = Instant::now() + Duration::from_secs(config.schedule.drift_seconds);
        Ok(Self {
            desired: site.ledger.accepted()?.map(|accepted| accepted.desired()),
            site,
            config,
            trust,
            end,
            wakes,
            local,
            grants: Grants::default(),
            bodies: Bodies::default(),
            run: None,
            replaced: false,
            progress,
            findings: Findings::default(),
            orphans: Vec::new(),
            reported: None,
            is_report_kept: false,
            look_at,
            outputs_at: None,
            room_at: Instant::now(),
            is_blocked: false,
            owes_answer: false,
            running_at: None,
            failures: 0,
            hooks: Hooks::Quiet,
            map: HostMapWatch::default(),
            managed: None,
            touched: Touched::default(),
            looked_at: Instant::now(),
            asked: None,
            applied: None,
            course: Course::default(),
            mode,
        })
    }

    /// Sees drift also by the events of the files that tasks keep, and what others write into the host label map.
    #[must_use]
    pub fn watching(mut self) -> Self {
        self.managed = Some(Watch::new(self.site.host.outside_root(), Parts::new()));
        self.watch_map();
        self
    }

    /// Reports that this host cannot speak with its fleet, and why.
    #[must_use]
    pub fn apart(mut self, why: String) -> Self {
        self.findings.membership = Some(why);
        self
    }

    /// Runs a command once, when the tasks have first been applied: what waits for that on the host is told so.
    #[must_use]
    pub fn when_applied(mut self, command: Command) -> Self {
        self.applied = Some(command);
        self
    }

    /// Runs until `stop` is over (what runs is then waited for) or, for [`Until::Quiet`], until all is done. Says how far the last run came.
    ///
    /// # Errors
    /// [`HalfError`].
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<Course, ApplyError> {
        tokio::pin!(stop);
        self.begin().await?;
        let mut connected = true;
        loop {
            if self.is_quiet() {
                if self.mode == Until::Quiet {
                    return Ok(self.course);
                }
                if let Some(asked) = self.asked {
                    let answered = self.answer_look(asked);
                    self.endure(answered).await?;
                }
            }
            let done = tokio::select! {
                message = self.end.receive_versioned(), if connected => match message {
                    Err(ChannelError::Closed) if self.mode == Until::Stopped => return self.finish().await,
                    Err(ChannelError::Closed) => {
                        connected = false;
                        Ok(())
                    }
                    message => self.received(message).await,
                },
                worked = work(self.run.as_mut(), self.replaced, self.grants.open()), if !self.is_blocked => {
                    self.worked(worked).await
                }
                () = sleep_until(self.look_at) => self.look().await,
                () = sleep_until(self.room_at), if !self.is_blocked => self.look_each_minute().await,
                () = self.wakes.next() => self.woken().await,
                () = or_never(self.managed.as_ref().map(Watch::changed)) => {
                    self.touched.in_this_run = true;
                    self.look_soon();
                    Ok(())
                }
                () = or_never(self.map.watch.as_ref().map(Watch::changed)) => {
                    // A change is looked at when it has had time to become whole.
                    self.map.look_at.get_or_insert(Instant::now() + SETTLE);
                    Ok(())
                }
                () = or_never(self.map.look_at.map(sleep_until)) => self.look_at_map().await,
                () = or_never(self.outputs_at.map(sleep_until)) => self.look_at_map().await,
                () = or_never(self.running_at.map(sleep_until)) => self.tell_running().await,
                failed = hooks_turn(&mut self.hooks) => self.hooks_turned(failed).await,
                () = &mut stop => return self.finish().await,
            };
            self.endure(done).await?;
        }
    }

    /// Says what is held, and takes up where the last process stopped.
    async fn begin(&mut self) -> Result<(), ApplyError> {
        let held = self.site.ledger.accepted()?.map(|accepted| accepted.held());
        self.end.send(&FromApply::Hello { seal_key: seal_key(&*self.site.host, &self.site.ledger)?, held }).await?;
        self.tell_results(&self.site.ledger.results()?).await?;
        self.end.send(&FromApply::Local(self.local.clone())).await?;
        let taken_up = self.take_up_look().map_err(ApplyError::from);
        self.endure(taken_up).await?;
        let taken_up = self.take_up().await;
        self.endure(taken_up).await?;
        self.tell_others().await?;
        let checked = self.check_room();
        self.endure(checked).await?;
        let reported = self.report().await;
        self.endure(reported).await
    }

    /// Takes up what is held.
    async fn take_up(&mut self) -> Result<(), ApplyError> {
        self.findings.look_at(&self.site.ledger)?;
        if let Some(desired) = self.desired.clone() {
            self.restore_barriers(&desired)?;
            if desired.task_set.profile.is_some() && !self.has_begun(&desired) {
                self.progress = observed::Progress::Idle;
            }
            self.write_outputs(&desired, Some(&desired.known));
            self.want_bodies(&desired).await?;
            self.tell_hooks(&desired)?;
            self.plan(&desired)?;
        }
        Ok(())
    }

    /// The run takes so long that it is reported as running.
    async fn tell_running(&mut self) -> Result<(), ApplyError> {
        (self.running_at, self.progress) = (None, observed::Progress::Running);
        self.report().await
    }

    /// Takes a message of the network half, whose version is that of the parts in it.
    async fn received(&mut self, message: Result<(WireVersion, FromSync), ChannelError>) -> Result<(), ApplyError> {
        let (version, message) = match message {
            Ok(message) => message,
            Err(error) => {
                warn!(error:% = error; "a message of the network half was refused");
                return Ok(());
            }
        };
        match message {
            FromSync::Offer { desired, grants, acknowledged } => {
                self.owes_answer = desired.is_some();
                self.site.ledger.acknowledge(acknowledged)?;
                self.end_dropped(acknowledged)?;
                if let Some(offer) = desired {
                    self.offered(version, &offer).await?;
                }
                for grant in grants {
                    self.granted(&grant).await?;
                }
            }
            FromSync::Body { hash, bytes } => self.body(hash, &bytes).await?,
            FromSync::NoBody(hash) => self.not_given(hash),
            FromSync::Local(local) => self.said(local).await?,
            FromSync::Observed(_) => {}
        }
        self.report().await
    }

    /// Something ended, or nothing can go on.
    async fn worked(&mut self, worked: Result<(), HostError>) -> Result<(), ApplyError> {
        worked?;
        let Some(run) = &mut self.run else { return Ok(()) };
        let news = run.settle()?;
        self.course = run.course();
        let (idle, over, progress) = (!run.is_running(), run.is_over(), run.progress());
        self.hear_local().await?;
        if !self.replaced {
            self.progress = progress;
        }
        if idle {
            self.running_at = None;
            // Its tasks may have made directories.
            self.watch_files();
            self.look_for_orphans()?;
        }
        if !news.is_empty() {
            self.findings.look_at(&self.site.ledger)?;
            news.iter().for_each(log_ended);
            self.tell_results(&news).await?;
        }
        if idle && self.replaced {
            if let Some(desired) = self.desired.clone() {
                self.plan(&desired)?;
            }
            // Of what is planned, its first step says more.
            if self.run.is_none() {
                self.progress = observed::Progress::Idle;
            }
        } else if idle {
            self.failures = if self.progress == observed::Progress::Failed { self.failures + 1 } else { 0 };
            self.look_at = Instant::now() + self.pause();
            if self.touched.calls_for_a_look() {
                self.look_soon();
            }
            if over {
                self.run = None;
            }
        }
        self.report().await?;
        self.tell_applied().await;
        Ok(())
    }

    /// Tells who asked for a look that it is over.
    fn answer_look(&mut self, asked: u64) -> Result<(), ApplyError> {
        self.site.ledger.put(&LOOK_DONE, &(asked, asked))?;
        self.asked = None;
        Ok(())
    }

    /// Whether nothing can go on now: a run that waits for others or for a blob counts as that.
    fn is_quiet(&self) -> bool {
        let idle = self.run.as_ref().is_none_or(|run| !run.is_running() && !run.is_unsettled());
        idle && matches!(self.hooks, Hooks::Quiet)
    }

    /// Lets what runs end, and writes it down.
    async fn finish(mut self) -> Result<Course, ApplyError> {
        if let Some(run) = &mut self.run {
            for task in run.running() {
                warn!(task; "told to stop: waiting for the end of a task that runs");
            }
            while run.run_out().await {
                run.settle()?;
            }
            self.course = run.course();
        }
        Ok(self.course)
    }
}

/// The next step of a run; never over when there is none, or nothing in it can go on.
async fn work(run: Option<&mut Run>, replaced: bool, open: &BTreeSet<Barrier>) -> Result<(), HostError> {
    let Some(run) = run else { return std::future::pending().await };
    let worked = if replaced { run.run_out().await } else { run.work(open).await? };
    if worked || run.is_unsettled() { Ok(()) } else { std::future::pending().await }
}

#[cfg(test)]
mod tests;
