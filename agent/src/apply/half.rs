//! The root half as it runs: one loop that takes in what was offered and works off what is held.
//!
//! Whatever wakes it, it does the same: look at the ledger, write what services read, run the tasks that are to be
//! run. Nothing of a decision is kept in memory alone, so a restart is no special case.

mod bodies;
mod offers;
mod telling;
mod trouble;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use log::{info, warn};
use stemma_wire::message::channel::{FromApply, FromSync};
use stemma_wire::message::desired::{Barrier, Known, Mode, Profile};
use stemma_wire::message::observed::{self, LocalState, Report};
use tokio::time::Instant;

use super::executor::graph::is_well;
use super::executor::{Purpose, Run};
use super::ledger::Desired;
use super::managed::Managed;
use super::outputs;
use super::poke::Pokes;
use super::seal::seal_key;
use super::task::Site;
use super::verify::Trust;
use crate::channel::{ApplyEnd, ChannelError};
use crate::config::Config;
use crate::host::{Command, HostError};
use bodies::Bodies;
use telling::{Hooks, hooks_turn};
use trouble::Trouble;

/// When a body that was not given is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// A change of a file is looked at when it has had time to become whole.
const SETTLE: Duration = Duration::from_secs(1);

/// Looks that files call for have at least this time between them.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

/// After so long a run is more than a look.
const SAID_TO_RUN: Duration = Duration::from_millis(500);

/// The root half.
pub struct Half {
    site: Site,
    config: Config,
    /// Whom it believes; without an identity, nobody.
    trust: Option<Trust>,
    end: ApplyEnd,
    pokes: Pokes,
    desired: Option<Desired>,
    local: LocalState,
    open: BTreeSet<Barrier>,
    bodies: Bodies,
    run: Option<Run>,
    /// Whether the run's task set is no longer the one held.
    replaced: bool,
    progress: observed::Progress,
    findings: Findings,
    reported: Option<Report>,
    /// Whether that is on disk, for `status`.
    is_report_kept: bool,
    look_at: Instant,
    /// The state could not be kept: nothing is begun before the next look.
    trouble: Option<Trouble>,
    /// When it is said that tasks run: a run that only looks is over before.
    running_at: Option<Instant>,
    failures: u32,
    hooks: Hooks,
    /// The files that tasks keep; `None`: they are looked at on schedule alone.
    managed: Option<Managed>,
    looked_at: Instant,
    /// What is run once when the tasks have first been applied since this process began.
    applied: Option<Command>,
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
    standing: Option<String>,
    disk: Option<String>,
    outputs: Vec<String>,
    hooks: Vec<String>,
    state: Vec<String>,
    set_aside: Vec<String>,
}

/// Why the half cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum HalfError {
    /// The machine.
    #[error("the agent's own state cannot be kept")]
    State(#[from] HostError),
    /// The other half.
    #[error("the other half of the agent cannot be reached")]
    Channel(#[from] ChannelError),
}

impl Half {
    /// The root half over what it holds.
    ///
    /// # Errors
    /// [`HostError`] when the ledger cannot be read at all.
    pub fn new(
        site: Site,
        config: Config,
        trust: Option<Trust>,
        end: ApplyEnd,
        pokes: Pokes,
        mode: Until,
    ) -> Result<Self, HostError> {
        site.ledger.sweep()?;
        let desired = site.ledger.accepted()?.map(|accepted| accepted.desired());
        let local = site.ledger.local()?;
        let progress = site.ledger.report()?.map(|last| last.progress).unwrap_or_default();
        let look_at = Instant::now() + Duration::from_secs(config.schedule.drift_seconds);
        Ok(Self {
            site,
            config,
            trust,
            end,
            pokes,
            desired,
            local,
            open: BTreeSet::new(),
            bodies: Bodies::default(),
            run: None,
            replaced: false,
            progress,
            findings: Findings::default(),
            reported: None,
            is_report_kept: false,
            look_at,
            trouble: None,
            running_at: None,
            failures: 0,
            hooks: Hooks::Quiet,
            managed: None,
            looked_at: Instant::now(),
            applied: None,
            mode,
        })
    }

    /// Sees drift also by the events of the files that tasks keep.
    #[must_use]
    pub fn watching(mut self) -> Self {
        self.managed = Some(Managed::default());
        self
    }

    /// Reports that this host cannot speak with its fleet, and why.
    #[must_use]
    pub fn apart(mut self, why: String) -> Self {
        self.findings.standing = Some(why);
        self
    }

    /// Runs a command once, when the tasks have first been applied: what waits for that on the host is told so.
    #[must_use]
    pub fn when_applied(mut self, command: Command) -> Self {
        self.applied = Some(command);
        self
    }

    /// Runs until `stop` is over (what runs is then waited for) or, for [`Until::Quiet`], until all is done.
    ///
    /// # Errors
    /// [`HalfError`].
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), HalfError> {
        tokio::pin!(stop);
        self.begin().await?;
        let reported = self.report().await;
        self.endure(reported).await?;
        let mut connected = true;
        loop {
            if self.mode == Until::Quiet && self.is_quiet() {
                return Ok(());
            }
            let done = tokio::select! {
                message = self.end.receive(), if connected => match message {
                    Ok(message) => self.take(message).await,
                    Err(ChannelError::Closed) if self.mode == Until::Quiet => {
                        connected = false;
                        Ok(())
                    }
                    Err(ChannelError::Closed) => return self.finish().await,
                    Err(error) => {
                        warn!(error:% = error; "a message of the network half was refused");
                        Ok(())
                    }
                },
                worked = work(self.run.as_mut(), self.replaced, &self.open), if self.trouble.is_none() => match worked {
                    Ok(()) => self.worked().await,
                    Err(error) => Err(error.into()),
                },
                () = tokio::time::sleep_until(self.look_at) => self.look().await,
                () = self.pokes.next() => self.poked().await,
                () = changed(self.managed.as_ref()) => {
                    let soonest = self.looked_at + BETWEEN_LOOKS;
                    self.look_at = self.look_at.min(soonest.max(Instant::now() + SETTLE));
                    Ok(())
                }
                () = tokio::time::sleep_until(self.running_at.unwrap_or(self.look_at)), if self.running_at.is_some() => {
                    (self.running_at, self.progress) = (None, observed::Progress::Running);
                    self.report().await
                }
                told = hooks_turn(&mut self.hooks) => self.hooks_turned(told).await,
                () = &mut stop => return self.finish().await,
            };
            self.endure(done).await?;
        }
    }

    /// Says what is held, and takes up where the last process stopped.
    async fn begin(&mut self) -> Result<(), HalfError> {
        let held = self.site.ledger.accepted()?.map(|accepted| accepted.held());
        self.end.send(&FromApply::Hello { seal_key: seal_key(&*self.site.host, &self.site.ledger)?, held }).await?;
        self.tell_results(&self.site.ledger.results()?).await?;
        self.end.send(&FromApply::Local(self.local.clone())).await?;
        self.findings.set_aside = self.site.ledger.set_aside_records()?;
        if let Some(desired) = self.desired.clone() {
            self.restore_barriers(&desired)?;
            if desired.task_set.profile.is_some() && !self.has_begun(&desired) {
                self.progress = observed::Progress::Idle;
            }
            self.findings.outputs = self.write_outputs(&desired, Some(&desired.known));
            self.want_bodies(&desired).await?;
            self.tell_hooks(&desired)?;
            self.plan(&desired)?;
        }
        Ok(())
    }

    async fn take(&mut self, message: FromSync) -> Result<(), HalfError> {
        match message {
            FromSync::Offer { desired, grants, acknowledged } => {
                self.site.ledger.acknowledge(acknowledged)?;
                if let Some(offer) = desired {
                    self.offered(&offer).await?;
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

    /// Something was said on the host.
    async fn said(&mut self, local: LocalState) -> Result<(), HalfError> {
        self.site.ledger.set_local(&local)?;
        self.end.send(&FromApply::Local(local.clone())).await?;
        self.local = local;
        self.look().await
    }

    async fn poked(&mut self) -> Result<(), HalfError> {
        let local = self.site.ledger.local()?;
        if local != self.local {
            self.end.send(&FromApply::Local(local.clone())).await?;
            self.local = local;
        }
        self.look().await
    }

    /// Looks at everything again: on the schedule, and whenever something was said.
    async fn look(&mut self) -> Result<(), HalfError> {
        self.trouble = None;
        self.looked_at = Instant::now();
        self.look_at = self.looked_at + self.pause();
        self.findings.set_aside = self.site.ledger.set_aside_records()?;
        if let Some(desired) = self.desired.clone() {
            self.findings.outputs = self.write_outputs(&desired, Some(&desired.known));
            self.want_bodies(&desired).await?;
            if !self.run.as_ref().is_some_and(Run::is_running) || self.is_stopped(&desired) {
                self.plan(&desired)?;
            }
        }
        self.report().await
    }

    fn write_outputs(&self, now: &Desired, before: Option<&Known>) -> Vec<String> {
        outputs::write(&*self.site.host, &self.site.ledger, &self.config, now, before)
    }

    fn restore_barriers(&mut self, desired: &Desired) -> Result<(), HostError> {
        let open = self.site.ledger.open_barriers()?.filter(|open| open.task_set == desired.digest);
        self.open = open.map(|open| open.open).unwrap_or_default();
        Ok(())
    }

    /// Plans a run of what is held, unless something forbids it now.
    fn plan(&mut self, desired: &Desired) -> Result<(), HostError> {
        if self.run.as_ref().is_some_and(Run::is_running) {
            self.replaced = true;
            return Ok(());
        }
        (self.run, self.replaced) = (None, false);
        if self.is_stopped(desired) {
            self.progress = observed::Progress::Idle;
            return Ok(());
        }
        // No profile: no tasks, which are soon applied.
        let profile = match desired.task_set.profile {
            Some(hash) => self.profile(hash)?,
            None => Some(Profile::default()),
        };
        if let Some(profile) = profile {
            let ceiling = &self.config.ceiling;
            self.run = Some(Run::plan(self.site.clone(), ceiling, desired, &profile, Purpose::Converge)?);
            self.running_at = Some(Instant::now() + SAID_TO_RUN);
        }
        Ok(())
    }

    /// Paused, parked, or held before the task set was begun: no task is touched; labels flow on.
    fn is_stopped(&self, desired: &Desired) -> bool {
        let now = unix_seconds(self.site.host.now());
        let held = self.local.hold.as_ref().is_some_and(|(until, _)| *until > now);
        self.local.paused || self.local.parked.is_some() || desired.known.parked || (held && !self.has_begun(desired))
    }

    /// Whether a task of this task set has ended here.
    fn has_begun(&self, desired: &Desired) -> bool {
        let progress = self.site.ledger.progress();
        progress.is_ok_and(|progress| progress.tasks.values().any(|performed| performed.task_set == desired.digest))
    }

    /// Something ended, or nothing can go on.
    async fn worked(&mut self) -> Result<(), HalfError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        let news = run.settle()?;
        if !self.replaced {
            self.progress = run.progress();
        }
        let (idle, over) = (!run.is_running(), run.is_over());
        if idle {
            self.running_at = None;
            if let Some(managed) = &mut self.managed {
                managed.watch(run.files().map(|path| self.site.host.outside(&path)).collect());
            }
        }
        if !news.is_empty() {
            for result in &news {
                let (task, message) = (result.task.as_str(), result.message.as_str());
                if is_well(result.outcome) {
                    info!(task, outcome:? = result.outcome, duration_ms = result.duration_ms; "task ended");
                } else {
                    warn!(task, outcome:? = result.outcome, error = message; "task ended");
                }
            }
            self.tell_results(&news).await?;
        }
        if idle && self.replaced {
            if let Some(desired) = self.desired.clone() {
                self.plan(&desired)?;
            }
        } else if idle {
            self.failures = if self.progress == observed::Progress::Failed { self.failures + 1 } else { 0 };
            self.look_at = Instant::now() + self.pause();
            if over {
                self.run = None;
            }
        }
        self.report().await?;
        self.tell_applied().await;
        Ok(())
    }

    async fn tell_applied(&mut self) {
        let applied = self.progress == observed::Progress::Converged && self.mode_in_force() == Some(Mode::Apply);
        let Some(command) = self.applied.take_if(|_| applied) else { return };
        match self.site.host.run(&command).await {
            Ok(finished) if finished.end.is_success() => info!("the tasks of this host have been applied"),
            Ok(finished) => warn!(error = finished.end.sentence().as_str(); "stemma-applied.target was not started"),
            Err(error) => warn!(error = error.sentence().as_str(); "stemma-applied.target was not started"),
        }
    }

    fn mode_in_force(&self) -> Option<Mode> {
        self.desired.as_ref().map(Desired::mode)
    }

    /// How long until the next look: the schedule, spread a little, or sooner after a failure.
    fn pause(&self) -> Duration {
        let schedule = &self.config.schedule;
        let drift = Duration::from_secs(schedule.drift_seconds);
        let spread = drift.mul_f64(f64::from(u32::try_from(self.site.host.random() & 0xFFFF).unwrap_or(0)) / 655_360.0);
        match self.failures {
            0 => drift + spread,
            failures => {
                let doubled = schedule.retry_seconds.saturating_mul(1 << (failures - 1).min(16));
                Duration::from_secs(doubled).min(drift)
            }
        }
    }

    async fn report(&mut self) -> Result<(), HalfError> {
        let Findings { standing, disk, outputs, hooks, state, set_aside } = &self.findings;
        let report = Report {
            agent_version: env!("CARGO_PKG_VERSION").into(),
            facts: std::collections::BTreeMap::new(),
            findings: standing
                .iter()
                .chain(disk)
                .chain(outputs)
                .chain(hooks)
                .chain(state)
                .chain(set_aside)
                .cloned()
                .collect(),
            progress: self.progress,
            local: self.local.clone(),
        };
        if self.reported.as_ref() != Some(&report) {
            self.end.send(&FromApply::Report(report.clone())).await?;
            self.reported = Some(report.clone());
            self.is_report_kept = false;
        }
        if !self.is_report_kept {
            self.site.ledger.set_report(&report)?;
            self.is_report_kept = true;
        }
        Ok(())
    }

    /// Whether nothing can go on now: a run that waits for others or for a blob counts as that.
    fn is_quiet(&self) -> bool {
        let idle = self.run.as_ref().is_none_or(|run| !run.is_running() && !run.is_unsettled());
        idle && matches!(self.hooks, Hooks::Quiet)
    }

    /// Lets what runs end, and writes it down.
    async fn finish(mut self) -> Result<(), HalfError> {
        if let Some(run) = &mut self.run {
            while run.run_out().await {
                run.settle()?;
            }
        }
        Ok(())
    }
}

/// The next step of a run; never over when there is none, or nothing in it can go on.
async fn work(run: Option<&mut Run>, replaced: bool, open: &BTreeSet<Barrier>) -> Result<(), HostError> {
    let Some(run) = run else { return std::future::pending().await };
    let worked = if replaced { run.run_out().await } else { run.work(open).await? };
    if worked || run.is_unsettled() { Ok(()) } else { std::future::pending().await }
}

/// A file that a task keeps was changed; never, where none is watched.
async fn changed(managed: Option<&Managed>) {
    match managed {
        Some(managed) => managed.changed().await,
        None => std::future::pending().await,
    }
}

/// Seconds since 1970; 0 for a clock before it.
#[must_use]
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
