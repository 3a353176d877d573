//! Looking at everything again, and planning a run. A schedule, an event, a start and a verb on the host all take this path.

use std::time::Duration;

use log::{error, info};
use stemma_core::task::Mode;
use stemma_wire::message::channel::FromApply;
use stemma_wire::message::desired::Known;
use stemma_wire::message::observed::{LocalState, Progress};
use tokio::time::Instant;

use super::disk::TRY_AGAIN;
use super::{ApplyError, ApplyWorker, BETWEEN_LOOKS, SAID_TO_RUN, SETTLE};
use crate::apply::executor::{Purpose, Run};
use crate::apply::ledger::{Desired, LOCAL, LOOK_ASKED, LOOK_DONE, OPEN_BARRIERS, PROGRESS};
use crate::apply::leftovers::sweep_recorded;
use crate::apply::{hooks, orphans, outputs};
use crate::host::HostError;
use crate::watch::Part;

impl ApplyWorker {
    /// Takes in local state from a verb on the host.
    pub(super) async fn said(&mut self, local: LocalState) -> Result<(), ApplyError> {
        self.site.ledger.put(&LOCAL, &local)?;
        self.end.send(&FromApply::Local(local.clone())).await?;
        self.local = local;
        self.look().await
    }

    pub(super) async fn woken(&mut self) -> Result<(), ApplyError> {
        self.hear_local().await?;
        self.take_up_look()?;
        self.look().await
    }

    /// Reads what a verb on the host has said since. One that works by itself is woken by nobody: it reads this after each task. Where nothing
    /// may begin by it, what runs ends, and the rest is planned anew.
    pub(super) async fn hear_local(&mut self) -> Result<(), ApplyError> {
        let local = self.site.ledger.get(&LOCAL)?.unwrap_or_default();
        if local != self.local {
            self.end.send(&FromApply::Local(local.clone())).await?;
            self.local = local;
            self.replaced |=
                self.run.is_some() && self.desired.as_ref().is_some_and(|desired| self.is_stopped(desired));
        }
        Ok(())
    }

    /// Takes up a look that a verb on the host asked for and waits for; also one that the last process did not end.
    pub(super) fn take_up_look(&mut self) -> Result<(), HostError> {
        let asked = self.site.ledger.get(&LOOK_ASKED)?.unwrap_or_default();
        let (taken_up, done) = self.site.ledger.get(&LOOK_DONE)?.unwrap_or_default();
        if asked > done {
            self.asked = Some(asked);
            self.site.ledger.put(&LOOK_DONE, &(asked.max(taken_up), done))?;
        }
        Ok(())
    }

    /// Looks at everything again: on schedule, and after a verb on the host.
    pub(super) async fn look(&mut self) -> Result<(), ApplyError> {
        self.is_blocked = false;
        self.looked_at = Instant::now();
        self.look_at = self.looked_at + self.pause();
        self.findings.look_at(&self.site.ledger)?;
        hooks::forget_gone(&*self.site.host, &mut self.findings.hooks);
        if let Some(desired) = self.desired.clone() {
            self.write_outputs(&desired, Some(&desired.known));
            self.tell_hooks(&desired)?;
            self.want_bodies(&desired).await?;
            if !self.run.as_ref().is_some_and(Run::is_running) || self.is_stopped(&desired) {
                self.plan(&desired)?;
            }
        }
        self.tell_others().await?;
        self.check_room()?;
        self.report().await
    }

    /// Looks which files that tasks wrote no task keeps now. Before the profile has come, nobody knows.
    pub(super) fn look_for_orphans(&mut self) -> Result<(), HostError> {
        let Some(desired) = self.desired.clone() else { return Ok(()) };
        if let Some(profile) = self.profile(&desired)? {
            self.orphans = orphans::orphans_and_forget_gone(&self.site, &desired, &profile)?;
        }
        Ok(())
    }

    /// Notes the files of a task set that is replaced, where an older agent kept no record of them.
    pub(super) fn note_files_of(&mut self, desired: &Desired) -> Result<(), HostError> {
        match self.profile(desired)? {
            Some(profile) => orphans::fill(&self.site, desired, &profile),
            None => Ok(()),
        }
    }

    /// Watches the files that the tasks of the run keep.
    pub(super) fn watch_files(&mut self) {
        if let Some((managed, run)) = self.managed.as_mut().zip(self.run.as_ref()) {
            managed.set(run.files().map(|path| (self.site.host.outside(&path), Part::File)).collect());
        }
    }

    /// Looks when whoever writes a managed file has had time to end, and not too often.
    pub(super) fn look_soon(&mut self) {
        let soonest = self.looked_at + BETWEEN_LOOKS;
        self.look_at = self.look_at.min(soonest.max(Instant::now() + SETTLE));
    }

    /// Writes what services and people read. Where some of it cannot be written, that is tried again soon, whether or not anything happens:
    /// this host does not have what it was told until then.
    pub(super) fn write_outputs(&mut self, now: &Desired, before: Option<&Known>) {
        let written = outputs::write(&*self.site.host, &self.site.ledger, &self.config, now, before);
        self.outputs_at = (!written.unwritten.is_empty()).then(|| Instant::now() + TRY_AGAIN);
        match (self.findings.outputs.unwritten.first(), written.unwritten.first()) {
            (None, Some(why)) => {
                error!(error = why.as_str(); "labels cannot be written on this host; it is tried again");
            }
            (Some(_), None) => info!("labels can be written on this host again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.findings.outputs = written;
    }

    pub(super) fn restore_barriers(&mut self, desired: &Desired) -> Result<(), HostError> {
        self.grants.restore(self.site.ledger.get(&OPEN_BARRIERS)?.filter(|open| open.task_set == desired.digest));
        Ok(())
    }

    /// Plans a run of what is held, unless something forbids it now.
    pub(super) fn plan(&mut self, desired: &Desired) -> Result<(), HostError> {
        if self.run.as_ref().is_some_and(Run::is_running) {
            self.replaced = true;
            return Ok(());
        }
        (self.run, self.replaced) = (None, false);
        self.look_for_orphans()?;
        if self.is_stopped(desired) || desired.is_unreleased() {
            self.progress = Progress::Idle;
            // As in a pass: where tasks only look, nothing is changed.
            return if desired.mode() == Mode::Apply { sweep_recorded(&self.site) } else { Ok(()) };
        }
        if let Some(profile) = self.profile(desired)? {
            let ceiling = &self.config.ceiling;
            self.run = Some(Run::plan(self.site.clone(), ceiling, desired, &profile, Purpose::Converge)?);
            self.running_at = Some(Instant::now() + SAID_TO_RUN);
            self.touched.in_this_run = false;
            self.watch_files();
        }
        Ok(())
    }

    /// Paused, parked, or held before the task set was begun: no task is touched; labels flow on.
    pub(super) fn is_stopped(&self, desired: &Desired) -> bool {
        let now = self.site.host.unix_seconds();
        let held = self.local.hold.as_ref().is_some_and(|(until, _)| *until > now);
        self.local.paused || self.local.parked.is_some() || desired.known.parked || (held && !self.has_begun(desired))
    }

    /// Whether a task of this task set has ended here.
    pub(super) fn has_begun(&self, desired: &Desired) -> bool {
        let progress = self.site.ledger.get(&PROGRESS).ok().flatten();
        progress.is_some_and(|progress| progress.tasks.values().any(|performed| performed.task_set == desired.digest))
    }

    /// How long until the next look: the schedule, spread a little, or sooner after a failure.
    pub(super) fn pause(&self) -> Duration {
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
}
