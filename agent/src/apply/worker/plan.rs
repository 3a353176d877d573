//! Reconciles: writes the outputs again and plans a run of the desired state. The schedule, an event, the start of the
//! agent and a command on the host all use this code.

use std::time::Duration;

use log::{error, info};
use stemma_core::task::Mode;
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::desired::Known;
use stemma_wire::message::observed::{LocalState, Progress, TaskResult};
use tokio::time::Instant;

use super::disk::RETRY_DELAY;
use super::{ApplyError, ApplyWorker, MIN_RECONCILE_INTERVAL, RUNNING_REPORT_DELAY, SETTLE_TIME};
use crate::apply::executor::{RunPurpose, TaskRun};
use crate::apply::ledger::{Desired, HostObject, LOCAL_STATE, OPEN_BARRIERS, PROGRESS, RECONCILE_DONE, RECONCILE_REQUESTED};
use crate::apply::leftovers::sweep_recorded;
use crate::apply::orphans::removal::{self, RemovedOrphans};
use crate::apply::recent_checks::RecentChecks;
use crate::apply::{clean_ups, hooks, orphans, outputs};
use crate::host::HostError;
use crate::watch::merge_scopes;

/// The reason why an orphan stays before the agent has tried to remove it.
const UNREMOVED_REASON: &str = "it is removed after all tasks of this host have succeeded in mode apply";

impl ApplyWorker {
    /// Stores a new local state (pause, hold, park), sends it to the network half of the agent, and reconciles.
    pub(super) async fn set_local_state(&mut self, local: LocalState) -> Result<(), ApplyError> {
        self.site.ledger.put(&LOCAL_STATE, &local)?;
        self.channel.send(&ApplyMessage::Local(local.clone())).await?;
        self.local = local;
        self.reconcile().await
    }

    /// Handles a wake by a command on the host: reads the records that the command wrote into the ledger, and
    /// reconciles.
    pub(super) async fn on_wake(&mut self) -> Result<(), ApplyError> {
        self.read_local_state().await?;
        self.start_requested_reconcile()?;
        self.reconcile().await
    }

    /// Reads the local state (pause, hold, park) again, because a command on the host may have changed it. Sends a
    /// change to the network half of the agent.
    ///
    /// If the new state stops tasks, the run must end: the running tasks continue to their end, and no other task
    /// starts. A one-time run receives no wakes, so the caller also reads the state after each task.
    pub(super) async fn read_local_state(&mut self) -> Result<(), ApplyError> {
        let local = self.site.ledger.get(&LOCAL_STATE)?.unwrap_or_default();
        if local != self.local {
            self.channel.send(&ApplyMessage::Local(local.clone())).await?;
            self.local = local;
            self.must_run_end |= self.run.is_some() && self.desired.as_ref().is_some_and(|desired| self.is_stopped(desired));
        }
        Ok(())
    }

    /// Reads whether a command on the host has requested a reconcile that is not finished yet. If so, records that the
    /// reconcile has started. An earlier process of the agent may have started it and not finished it.
    pub(super) fn start_requested_reconcile(&mut self) -> Result<(), HostError> {
        let requested = self.site.ledger.get(&RECONCILE_REQUESTED)?.unwrap_or_default();
        let (started, done) = self.site.ledger.get(&RECONCILE_DONE)?.unwrap_or_default();
        if requested > done {
            self.site.memory.get::<RecentChecks>().clear();
            self.requested_reconcile = Some(requested);
            self.site.ledger.put(&RECONCILE_DONE, &(requested.max(started), done))?;
        }
        Ok(())
    }

    /// Brings the host to its desired state again. Writes the outputs (files for services), schedules hooks, requests
    /// missing bodies (the profile and blobs), and plans a run unless tasks are running. If the host may start no task,
    /// lets these tasks end.
    ///
    /// A reconcile runs on schedule, after a command on the host, and after a change of a file that tasks manage.
    pub(super) async fn reconcile(&mut self) -> Result<(), ApplyError> {
        self.is_blocked = false;
        self.last_reconcile_at = Instant::now();
        self.next_reconcile_at = self.last_reconcile_at + self.reconcile_delay();
        self.findings.refresh(&self.site.ledger)?;
        hooks::prune_failures(&*self.site.host, &mut self.findings.hooks);
        if let Some(desired) = self.desired.clone() {
            // The desired state is unchanged, so it is also the previous one.
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

    /// Updates `orphans` and `clean_ups`. Removes unmanaged objects that no longer exist from the record on disk, and the
    /// clean-ups that are done and of which nothing is left. Changes nothing if the profile (the list of tasks) has not
    /// arrived yet.
    pub(super) fn find_orphans(&mut self) -> Result<(), HostError> {
        let Some(desired) = self.desired.clone() else { return Ok(()) };
        if let Some(profile) = self.profile(&desired)? {
            let kept_reason = |object: &HostObject| {
                let reason = || self.kept_orphans.get(object).map_or(UNREMOVED_REASON, String::as_str).to_owned();
                desired.known.removes_orphans().then(reason)
            };
            self.orphans = orphans::prune_orphans(&self.site, &desired, &profile, kept_reason)?;
            clean_ups::prune(&self.site, &self.orphans.objects.iter().map(|orphan| orphan.task.as_str()).collect())?;
            self.clean_ups = clean_ups::reports(&self.site)?;
        }
        Ok(())
    }

    /// Removes orphans if the nodegroup of this host has `remove_orphans`, all of its tasks have succeeded, and the mode is
    /// `apply`. Returns the results, which are stored. The caller sends them.
    pub(super) fn remove_orphans(&mut self) -> Result<Vec<TaskResult>, HostError> {
        let Some(desired) = self.desired.clone().filter(|desired| desired.known.removes_orphans()) else {
            self.kept_orphans.clear();
            return Ok(Vec::new());
        };
        let may_remove = desired.mode() == Mode::Apply && self.progress == Progress::Converged && !self.must_run_end;
        let Some(profile) = self.profile(&desired)?.filter(|_| may_remove) else { return Ok(Vec::new()) };
        let RemovedOrphans { kept, results } = removal::remove_orphans(&self.site, &desired, &profile)?;
        self.kept_orphans = kept;
        self.site.ledger.add_results(results)
    }

    /// Creates the record of the objects that tasks left ([`orphans::fill_record`]) from a desired state that is about
    /// to be replaced. Does nothing if its profile is missing.
    pub(super) fn record_files(&mut self, desired: &Desired) -> Result<(), HostError> {
        match self.profile(desired)? {
            Some(profile) => orphans::fill_record(&self.site, desired, &profile),
            None => Ok(()),
        }
    }

    /// Watches the files that the tasks of the current run manage. Does nothing if the agent checks files only on
    /// schedule.
    pub(super) fn watch_files(&mut self) {
        if let Some((watch, run)) = self.managed_watch.as_mut().zip(self.run.as_ref()) {
            let paths = run.watched_paths().map(|(path, scope)| (self.site.host.system_path(&path), scope));
            watch.set(merge_scopes(paths));
        }
    }

    /// Schedules a reconcile after a managed file changed: [`SETTLE_TIME`] later, so that the program that changes the
    /// file can finish, and at least [`MIN_RECONCILE_INTERVAL`] after the last reconcile. An earlier schedule remains.
    pub(super) fn reconcile_soon(&mut self) {
        let soonest = self.last_reconcile_at + MIN_RECONCILE_INTERVAL;
        self.next_reconcile_at = self.next_reconcile_at.min(soonest.max(Instant::now() + SETTLE_TIME));
    }

    /// Writes the outputs ([`outputs::write`]), and stores their findings. If a write fails, schedules another attempt
    /// after [`RETRY_DELAY`], because the host does not have its desired state until the write succeeds.
    ///
    /// `previous` is the known part of the desired state that this host had before.
    pub(super) fn write_outputs(&mut self, desired: &Desired, previous: Option<&Known>) {
        let result = outputs::write(&*self.site.host, &self.site.ledger, &self.config, desired, previous);
        self.retry_outputs_at = (!result.unwritten.is_empty()).then(|| Instant::now() + RETRY_DELAY);
        match (self.findings.outputs.unwritten.first(), result.unwritten.first()) {
            (None, Some(reason)) => {
                error!(error = reason.as_str(); "labels cannot be written on this host; it is tried again");
            }
            (Some(_), None) => info!("labels can be written on this host again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.findings.outputs = result;
    }

    /// Replaces the open barriers by the barriers that the ledger has for this task set. If it has none, closes all
    /// barriers.
    pub(super) fn restore_barriers(&mut self, desired: &Desired) -> Result<(), HostError> {
        self.grants.restore(self.site.ledger.get(&OPEN_BARRIERS)?.filter(|barriers| barriers.task_set == desired.digest));
        Ok(())
    }

    /// Plans a run of the desired state. If tasks of an earlier run are still running, marks that run as
    /// `must_run_end`.
    ///
    /// If the host may start no task, or its first task set is not released, plans nothing, and in mode `apply` removes
    /// leftovers (unfinished files of a killed agent). If the profile has not arrived yet, plans nothing either.
    pub(super) fn plan_run(&mut self, desired: &Desired) -> Result<(), HostError> {
        if self.run.as_ref().is_some_and(TaskRun::is_running) {
            self.must_run_end = true;
            return Ok(());
        }
        (self.run, self.must_run_end) = (None, false);
        if self.is_stopped(desired) || desired.is_unreleased() {
            self.find_orphans()?;
            self.progress = Progress::Idle;
            // As in a run, the agent removes leftovers only in mode `apply`. In the other modes it changes nothing.
            return if desired.mode() == Mode::Apply { sweep_recorded(&self.site) } else { Ok(()) };
        }
        if let Some(profile) = self.profile(desired)? {
            let ceiling = &self.config.ceiling;
            self.run = Some(TaskRun::plan(self.site.clone(), ceiling, desired, &profile, RunPurpose::Converge)?);
            self.report_running_at = Some(Instant::now() + RUNNING_REPORT_DELAY);
            self.changed_files.has_changes = false;
            self.watch_files();
        }
        // The plan has recorded which clean-ups are due.
        self.find_orphans()
    }

    /// Returns whether no task of this desired state may start: the host is parked, was paused on the host itself, or is
    /// about to be rebooted. A hold on the host itself has this effect only until a task of the task set has ended. A pause
    /// or hold by an operator has none: the host then runs the task set that it has.
    pub(super) fn is_stopped(&self, desired: &Desired) -> bool {
        let now = self.site.host.unix_seconds();
        let is_on_hold = self.local.hold.as_ref().is_some_and(|(hold_end, _)| *hold_end > now);
        self.reboot.is_some()
            || self.local.paused
            || self.local.parked.is_some()
            || desired.known.parked
            || (is_on_hold && !self.has_begun(desired))
    }

    /// Returns whether any task of this task set has ended on this host.
    pub(super) fn has_begun(&self, desired: &Desired) -> bool {
        let progress = self.site.ledger.get(&PROGRESS).ok().flatten();
        progress.is_some_and(|progress| progress.tasks.values().any(|task_record| task_record.task_set == desired.digest))
    }

    /// Returns the delay until the next reconcile: the configured interval, plus a random time of up to a tenth of it.
    /// After a failed run, it is the configured retry delay, doubled with each further failure, up to the interval.
    pub(super) fn reconcile_delay(&self) -> Duration {
        let schedule = &self.config.schedule;
        let interval = Duration::from_secs(schedule.drift_seconds);
        // A random number of 16 bits, divided by ten times 65,536, is below a tenth.
        let jitter = interval.mul_f64(f64::from(u32::try_from(self.site.host.random() & 0xFFFF).unwrap_or(0)) / 655_360.0);
        match self.failures {
            0 => interval + jitter,
            failures => {
                // The limit of the exponent prevents an overflow of the shift.
                let retry_seconds = schedule.retry_seconds.saturating_mul(1 << (failures - 1).min(16));
                Duration::from_secs(retry_seconds).min(interval)
            }
        }
    }
}
