//! Reconciles: writes the outputs again and plans a run of the desired state. The schedule, an event, the start of the
//! agent and a command on the host all take this path.

use std::time::Duration;

use log::{error, info};
use stemma_core::task::Mode;
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::desired::Known;
use stemma_wire::message::observed::{LocalState, Progress};
use tokio::time::Instant;

use super::disk::RETRY_DELAY;
use super::{ApplyError, ApplyWorker, MIN_RECONCILE_INTERVAL, RUNNING_REPORT_DELAY, SETTLE_TIME};
use crate::apply::executor::{RunPurpose, TaskRun};
use crate::apply::ledger::{Desired, LOCAL_STATE, OPEN_BARRIERS, PROGRESS, RECONCILE_DONE, RECONCILE_REQUESTED};
use crate::apply::leftovers::sweep_recorded;
use crate::apply::{hooks, orphans, outputs};
use crate::host::HostError;
use crate::watch::WatchScope;

impl ApplyWorker {
    /// Stores a new local state (pause, hold, park), tells the network half, and reconciles.
    pub(super) async fn set_local_state(&mut self, local: LocalState) -> Result<(), ApplyError> {
        self.site.ledger.put(&LOCAL_STATE, &local)?;
        self.end.send(&ApplyMessage::Local(local.clone())).await?;
        self.local = local;
        self.reconcile().await
    }

    /// Handles a wakeup by a command on the host: reads what the command wrote into the ledger, and reconciles.
    pub(super) async fn on_wake(&mut self) -> Result<(), ApplyError> {
        self.read_local_state().await?;
        self.take_reconcile_request()?;
        self.reconcile().await
    }

    /// Reads the local state again, in case a command on the host changed it. A one-time run gets no wakeup, so this is
    /// also called after each task. If the new state stops tasks, the run counts as replaced: running tasks end, and no
    /// other starts.
    pub(super) async fn read_local_state(&mut self) -> Result<(), ApplyError> {
        let local = self.site.ledger.get(&LOCAL_STATE)?.unwrap_or_default();
        if local != self.local {
            self.end.send(&ApplyMessage::Local(local.clone())).await?;
            self.local = local;
            self.is_run_replaced |= self.run.is_some() && self.desired.as_ref().is_some_and(|desired| self.is_stopped(desired));
        }
        Ok(())
    }

    /// Reads whether a command on the host waits for a reconcile, and records that this reconcile begins. A request
    /// that an earlier process of the agent did not finish counts too.
    pub(super) fn take_reconcile_request(&mut self) -> Result<(), HostError> {
        let requested = self.site.ledger.get(&RECONCILE_REQUESTED)?.unwrap_or_default();
        let (started, done) = self.site.ledger.get(&RECONCILE_DONE)?.unwrap_or_default();
        if requested > done {
            self.requested_reconcile = Some(requested);
            self.site.ledger.put(&RECONCILE_DONE, &(requested.max(started), done))?;
        }
        Ok(())
    }

    /// Brings the host to its desired state again: writes the outputs, schedules hooks, requests missing bodies, and
    /// plans a run unless tasks are running. Runs on schedule, after a command on the host, and after a file changed.
    pub(super) async fn reconcile(&mut self) -> Result<(), ApplyError> {
        self.is_blocked = false;
        self.last_reconcile_at = Instant::now();
        self.next_reconcile_at = self.last_reconcile_at + self.reconcile_delay();
        self.findings.refresh(&self.site.ledger)?;
        hooks::prune_failures(&*self.site.host, &mut self.findings.hooks);
        if let Some(desired) = self.desired.clone() {
            self.write_outputs(&desired, Some(&desired.known));
            self.schedule_hooks(&desired)?;
            self.request_bodies(&desired).await?;
            if !self.run.as_ref().is_some_and(TaskRun::is_running) || self.is_stopped(&desired) {
                self.plan_run(&desired)?;
            }
        }
        self.report_foreign_labels().await?;
        self.check_room()?;
        self.report().await
    }

    /// Finds the files that tasks wrote and that no task manages now. Until the profile has arrived, the earlier result
    /// stays.
    pub(super) fn find_orphans(&mut self) -> Result<(), HostError> {
        let Some(desired) = self.desired.clone() else { return Ok(()) };
        if let Some(profile) = self.profile(&desired)? {
            self.orphans = orphans::prune_orphans(&self.site, &desired, &profile)?;
        }
        Ok(())
    }

    /// Records the files of a task set that is replaced, if an older agent did not record them.
    pub(super) fn record_files(&mut self, desired: &Desired) -> Result<(), HostError> {
        match self.profile(desired)? {
            Some(profile) => orphans::fill_record(&self.site, desired, &profile),
            None => Ok(()),
        }
    }

    /// Watches the files that the tasks of the run manage.
    pub(super) fn watch_files(&mut self) {
        if let Some((managed, run)) = self.managed.as_mut().zip(self.run.as_ref()) {
            managed.set(run.managed_files().map(|path| (self.site.host.system_path(&path), WatchScope::File)).collect());
        }
    }

    /// Schedules a reconcile once the writer of a managed file has had time to finish, within the rate limit.
    pub(super) fn reconcile_soon(&mut self) {
        let soonest = self.last_reconcile_at + MIN_RECONCILE_INTERVAL;
        self.next_reconcile_at = self.next_reconcile_at.min(soonest.max(Instant::now() + SETTLE_TIME));
    }

    /// Writes the outputs for services and people. A failed write is tried again after [`RETRY_DELAY`], even without an
    /// event, because the host does not have its desired state before.
    pub(super) fn write_outputs(&mut self, desired: &Desired, previous: Option<&Known>) {
        let written = outputs::write(&*self.site.host, &self.site.ledger, &self.config, desired, previous);
        self.retry_outputs_at = (!written.unwritten.is_empty()).then(|| Instant::now() + RETRY_DELAY);
        match (self.findings.outputs.unwritten.first(), written.unwritten.first()) {
            (None, Some(reason)) => {
                error!(error = reason.as_str(); "labels cannot be written on this host; it is tried again");
            }
            (Some(_), None) => info!("labels can be written on this host again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.findings.outputs = written;
    }

    /// Reads the open barriers of this task set from the ledger.
    pub(super) fn restore_barriers(&mut self, desired: &Desired) -> Result<(), HostError> {
        self.grants.restore(self.site.ledger.get(&OPEN_BARRIERS)?.filter(|open| open.task_set == desired.digest));
        Ok(())
    }

    /// Plans a run of the desired state. If tasks of an earlier run are still running, only marks that run as replaced.
    /// On a host that is paused, parked or held, plans nothing and removes leftovers.
    pub(super) fn plan_run(&mut self, desired: &Desired) -> Result<(), HostError> {
        if self.run.as_ref().is_some_and(TaskRun::is_running) {
            self.is_run_replaced = true;
            return Ok(());
        }
        (self.run, self.is_run_replaced) = (None, false);
        self.find_orphans()?;
        if self.is_stopped(desired) || desired.is_unreleased() {
            self.progress = Progress::Idle;
            // As in a run, leftovers are removed only in mode `apply`, because other modes change nothing.
            return if desired.mode() == Mode::Apply { sweep_recorded(&self.site) } else { Ok(()) };
        }
        if let Some(profile) = self.profile(desired)? {
            let ceiling = &self.config.ceiling;
            self.run = Some(TaskRun::plan(self.site.clone(), ceiling, desired, &profile, RunPurpose::Converge)?);
            self.report_running_at = Some(Instant::now() + RUNNING_REPORT_DELAY);
            self.changed_files.has_changes = false;
            self.watch_files();
        }
        Ok(())
    }

    /// Returns whether no task of this desired state may start, because the host is paused, parked, or held while no
    /// task of the task set has ended yet. Labels are still written.
    pub(super) fn is_stopped(&self, desired: &Desired) -> bool {
        let now = self.site.host.unix_seconds();
        let held = self.local.hold.as_ref().is_some_and(|(until, _)| *until > now);
        self.local.paused || self.local.parked.is_some() || desired.known.parked || (held && !self.has_begun(desired))
    }

    /// Returns whether any task of this task set has ended on this host.
    pub(super) fn has_begun(&self, desired: &Desired) -> bool {
        let progress = self.site.ledger.get(&PROGRESS).ok().flatten();
        progress.is_some_and(|progress| progress.tasks.values().any(|performed| performed.task_set == desired.digest))
    }

    /// Returns the delay until the next reconcile: the scheduled interval with some jitter. After failed runs, a
    /// shorter delay that doubles with each failure.
    pub(super) fn reconcile_delay(&self) -> Duration {
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
