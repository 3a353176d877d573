//! Brings a unit into its desired state.

use std::time::Duration;

use super::definition::{VainReloads, read_status};
use super::wanted::{WantedUnit, needs_reading, state_words};
use crate::apply::task::{ApplyResult, FailureEffect, Site, TaskError};
use crate::host::system_units::{ActiveState, JobEnd, LinkChange, LoadState, SystemUnits, UnitJob, UnitStatus};
use crate::host::{HostCommand, HostError};

/// Time after the start of a service at which it must still run. A service of `Type=simple` counts as started before its
/// program runs, so a program that cannot be executed, or that refuses its configuration, ends shortly after the start.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// Timeout of the command that reads the journal.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of lines of the journal in the output of a failed task.
const JOURNAL_LINES: &str = "20";

/// The message of a task that has only let systemd read changed files of the unit.
const FILES_NOTE: &str = "systemd has read the changed unit file or drop-ins";

/// As [`FILES_NOTE`], for a unit that runs.
const RUNNING_FILES_NOTE: &str = "systemd has read the changed unit file or drop-ins, which take effect when the unit is restarted: with `subscribes` on \
    the task that writes them, the agent restarts it";

/// The run of a task that changes a unit.
pub(super) struct UnitTransition<'a> {
    site: &'a Site,
    wanted: WantedUnit,
    /// The last status of the unit that was read.
    status: UnitStatus,
    /// The diff from the first status to the desired state.
    diff: String,
    /// The time from which on lines of the unit's journal belong to this run, in seconds since 1970: when the run began, or
    /// when the start or stop began that an earlier run has requested.
    journal_since: u64,
    /// True if the run has let systemd read changed files of the unit.
    has_read_files: bool,
    /// True if the run has requested a change.
    has_changed: bool,
    /// True if the run has started the unit, so that the unit has read its present configuration.
    has_started: bool,
    /// What the run has done, in words such as `started`.
    done: Vec<&'static str>,
    /// A sentence about what remains, or empty.
    note: String,
}

impl<'a> UnitTransition<'a> {
    /// Reads the status of the unit, before any change.
    pub(super) async fn begin(site: &'a Site, wanted: WantedUnit) -> Result<Self, TaskError> {
        let error = |error: HostError| TaskError::from(error).without_effect();
        let status = read_status(site, &wanted.unit).await.map_err(error)?;
        let diff = wanted.diff(&status).unwrap_or_default();
        let now = site.host.unix_seconds();
        let journal_since = status.transition_since.map_or(now, |since| since.min(now));
        let (has_read_files, has_changed, has_started) = (false, false, false);
        let (done, note) = (Vec::new(), String::new());
        Ok(Self { site, wanted, status, diff, journal_since, has_read_files, has_changed, has_started, done, note })
    }

    /// Makes all changes. With `is_refresh`, also lets an active unit read its configuration again, unless it was started.
    pub(super) async fn apply(mut self, is_refresh: bool) -> Result<ApplyResult, TaskError> {
        match self.make_changes(is_refresh).await {
            Ok(()) => Ok(self.into_result()),
            // Nothing was requested, so those who subscribe to the task need not act.
            Err(error) if !self.has_changed && error.effect == FailureEffect::Partial => Err(error.without_effect()),
            Err(error) => Err(error),
        }
    }

    async fn make_changes(&mut self, is_refresh: bool) -> Result<(), TaskError> {
        let is_file_changed = self.status.needs_reload;
        let may_be_new = matches!(self.status.load_state, LoadState::NotFound | LoadState::Invalid(_));
        if is_file_changed || (may_be_new && self.wanted.needs_unit_file(&self.status)) {
            let must_read_files = needs_reading(&self.status);
            self.units().reload().await?;
            self.read_status().await?;
            self.has_read_files = must_read_files && !self.status.needs_reload;
            self.site.memory.get::<VainReloads>().record(&self.wanted.unit, self.status.needs_reload);
        }
        if let Some(reason) = self.wanted.missing_message(&self.status).or_else(|| self.wanted.blocker(&self.status)) {
            return Err(TaskError::new(format!("{reason}; nothing was changed")));
        }
        if self.wanted.needed_mask(&self.status) == Some(false) {
            self.change_links(&[(LinkChange::Unmask, "unmasked")]).await?;
        }
        if self.wanted.needs_stop(&self.status) {
            self.stop().await?;
        }
        let mut links = Vec::new();
        match self.wanted.needed_enablement(&self.status) {
            Some(true) => links.push((LinkChange::Enable, "enabled")),
            Some(false) => links.push((LinkChange::Disable, "disabled")),
            None => {}
        }
        if self.wanted.needed_mask(&self.status) == Some(true) {
            links.push((LinkChange::Mask, "masked"));
        }
        if !links.is_empty() {
            self.change_links(&links).await?;
        }
        if self.wanted.needs_start(&self.status) {
            self.start().await?;
        }
        if is_refresh && !self.has_started && self.wanted.acts_on_refresh() {
            self.refresh(is_file_changed).await?;
        }
        Ok(())
    }

    fn units(&self) -> &'a dyn SystemUnits {
        self.site.host.system_units()
    }

    async fn read_status(&mut self) -> Result<(), TaskError> {
        self.status = read_status(self.site, &self.wanted.unit).await?;
        Ok(())
    }

    /// Changes links of the unit, and lets systemd read them. Fails if the unit is then not in the desired state.
    async fn change_links(&mut self, changes: &[(LinkChange, &'static str)]) -> Result<(), TaskError> {
        for (change, word) in changes {
            // A unit is enabled and disabled by its own name, and masked by the name in the task.
            let unit = match change {
                LinkChange::Enable | LinkChange::Disable if !self.status.id.is_empty() => self.status.id.clone(),
                _ => self.wanted.unit.clone(),
            };
            self.has_changed = true;
            self.units().change_links(&unit, *change).await?;
            self.done.push(word);
        }
        self.units().reload().await?;
        self.read_status().await?;
        let (unit, file_state) = (&self.wanted.unit, &self.status.file_state);
        let reason = match changes.last() {
            Some((LinkChange::Unmask, _)) if self.wanted.needed_mask(&self.status).is_some() => {
                "its mask remains: is its unit file in /usr/lib or /lib a link to /dev/null?"
            }
            Some((LinkChange::Enable, _)) if self.wanted.needed_enablement(&self.status).is_some() => {
                "its section [Install] names no unit that starts it: enable the units that `Also=` names there, or remove `enabled`"
            }
            Some((LinkChange::Disable, _)) if self.wanted.needed_enablement(&self.status).is_some() => {
                "a link to it remains that is not from /etc or /run: mask the unit, or remove `enabled`"
            }
            Some((LinkChange::Mask, _)) if self.wanted.needed_mask(&self.status).is_some() => "its mask has no effect",
            _ => {
                // An unmasked unit may be one that the task cannot enable or start.
                let blocker = self.wanted.missing_message(&self.status).or_else(|| self.wanted.blocker(&self.status));
                return blocker.map_or(Ok(()), |reason| Err(TaskError::new(reason)));
            }
        };
        Err(TaskError::new(format!("systemd has changed the links of {unit}, and reports {file_state:?}: {reason}")))
    }

    /// Starts the unit, or waits for the start that already runs.
    async fn start(&mut self) -> Result<(), TaskError> {
        let job = match self.status.active_state {
            ActiveState::Activating if !self.status.is_auto_restart() => {
                let end = self.units().await_job(&self.wanted.unit, self.wanted.timeout).await?;
                return self.end_start(UnitJob::Start, end).await;
            }
            // systemd would start the unit only after the pause.
            ActiveState::Activating => UnitJob::Restart,
            ActiveState::Failed => {
                // The next start is not refused because of earlier ones.
                self.units().reset_failed(&self.wanted.unit).await?;
                UnitJob::Start
            }
            _ => UnitJob::Start,
        };
        self.start_by(job).await
    }

    /// Starts or restarts the unit.
    async fn start_by(&mut self, job: UnitJob) -> Result<(), TaskError> {
        self.has_changed = true;
        if self.wanted.is_agent() {
            return self.queue_own_job(job).await;
        }
        let end = self.units().run_job(&self.wanted.unit, job, self.wanted.timeout).await?;
        self.end_start(job, end).await
    }

    /// Requests a job for the unit of the agent. The agent does not wait for its own end.
    async fn queue_own_job(&mut self, job: UnitJob) -> Result<(), TaskError> {
        self.units().queue_job(&self.wanted.unit, job).await?;
        self.has_started = true;
        self.note = format!("systemd was requested to {} the agent, which does not wait for it", job.verb());
        Ok(())
    }

    /// Checks that the unit runs after the end of its start or restart.
    async fn end_start(&mut self, job: UnitJob, end: JobEnd) -> Result<(), TaskError> {
        self.has_changed = true;
        self.check_end(job, &end).await?;
        if self.wanted.unit.ends_with(".service") {
            tokio::time::sleep(SETTLE_TIME).await;
        }
        self.read_status().await?;
        if self.status.is_running() {
            self.has_started = true;
            self.done.push(if job == UnitJob::Restart { "restarted" } else { "started" });
            return Ok(());
        }
        let unit = &self.wanted.unit;
        if self.status.active_state == ActiveState::Inactive && !self.status.is_condition_met {
            let conditions = match self.status.unmet_conditions.as_slice() {
                [] => format!("a condition of its unit file is not met: `systemctl status {unit}` names it"),
                unmet => format!(
                    "its unit file has {}, which is not met on this host: let an earlier task meet it, change the unit file, or \
                     remove `state`",
                    unmet.join(" and ")
                ),
            };
            return Err(self.journal_error(format!("{unit} was not started, because {conditions}")).await);
        }
        let state = state_words(&self.status);
        let message = format!(
            "{unit} does not run after its start, but is {state}: its program has ended, or a condition of its unit file is not met; \
             `systemctl status {unit}` shows more"
        );
        Err(self.journal_error(message).await)
    }

    /// Stops the unit.
    async fn stop(&mut self) -> Result<(), TaskError> {
        self.has_changed = true;
        let end = self.units().run_job(&self.wanted.unit, UnitJob::Stop, self.wanted.timeout).await?;
        self.check_end(UnitJob::Stop, &end).await?;
        self.read_status().await?;
        let (unit, triggers) = (&self.wanted.unit, self.status.triggered_by.join(", "));
        if self.wanted.needs_stop(&self.status) {
            let advice = match triggers.as_str() {
                "" => "another unit or program starts it".to_owned(),
                triggers => format!("stop {triggers} too, which can start it"),
            };
            let state = state_words(&self.status);
            return Err(TaskError::new(format!("{unit} was stopped, and is {state} again: {advice}")));
        }
        if !triggers.is_empty() && self.wanted.is_masked != Some(true) {
            self.note = format!("{triggers} can start it again");
        }
        self.done.push("stopped");
        Ok(())
    }

    /// Lets an active unit read its configuration again. A unit that is not active is left as it is.
    async fn refresh(&mut self, is_file_changed: bool) -> Result<(), TaskError> {
        if self.status.active_state == ActiveState::Activating && !self.status.is_auto_restart() {
            // It is not known whether this start began before the configuration changed.
            let end = self.units().await_job(&self.wanted.unit, self.wanted.timeout).await?;
            self.has_changed = true;
            self.check_end(UnitJob::Start, &end).await?;
            self.read_status().await?;
        }
        if self.status.is_auto_restart() {
            return self.start_by(UnitJob::Restart).await;
        }
        if !self.status.is_running() {
            self.note = String::from("it is not running, so nothing was restarted");
            return Ok(());
        }
        if !(self.wanted.may_reload && self.status.can_reload) {
            return self.start_by(UnitJob::Restart).await;
        }
        self.has_changed = true;
        if self.wanted.is_agent() {
            return self.queue_own_job(UnitJob::Reload).await;
        }
        let end = self.units().run_job(&self.wanted.unit, UnitJob::Reload, self.wanted.timeout).await?;
        self.check_end(UnitJob::Reload, &end).await?;
        self.done.push("reloaded");
        if is_file_changed {
            self.note = String::from("its unit file has changed too, which takes effect when it is restarted");
        }
        Ok(())
    }

    /// Fails if a job did not succeed.
    async fn check_end(&self, job: UnitJob, end: &JobEnd) -> Result<(), TaskError> {
        let (unit, verb, seconds) = (&self.wanted.unit, job.verb(), self.wanted.timeout.as_secs());
        let reason = match end {
            JobEnd::Done | JobEnd::Unknown => return Ok(()),
            JobEnd::Unfinished => {
                let message = format!(
                    "the {verb} of {unit} has not ended after {seconds} s; it continues, and is not requested again: `systemctl status {unit}` shows what it waits \
                     for, `systemctl kill {unit}` ends it, and `timeout` in the task gives it more time"
                );
                return Err(TaskError { effect: FailureEffect::Unfinished, ..self.journal_error(message).await });
            }
            JobEnd::Failed(result) => match result.as_str() {
                "timeout" => "it took longer than its unit file allows (TimeoutStartSec=, TimeoutStopSec=)".to_owned(),
                "dependency" => format!("a unit that it requires did not start: `systemctl list-dependencies {unit}` shows it"),
                "canceled" => "someone canceled it, or requested the opposite".to_owned(),
                "failed" => format!("`systemctl status {unit}` shows the reason"),
                other => format!("systemd reports {other:?}"),
            },
        };
        Err(self.journal_error(format!("the {verb} of {unit} failed: {reason}")).await)
    }

    /// Returns an error with the last lines of the unit's journal as its output: those since [`Self::journal_since`].
    async fn journal_error(&self, message: String) -> TaskError {
        let since = format!("--since=@{}", self.journal_since);
        let argv = ["journalctl", "--quiet", "--no-pager", "-o", "cat", "-n", JOURNAL_LINES, &since, "-u", &self.wanted.unit];
        let command = HostCommand::new(argv.map(str::to_owned).to_vec(), JOURNAL_TIMEOUT);
        // Without a journal, the message alone says what failed.
        let output = self.site.host.run(&command).await.ok().filter(|result| result.end.is_success()).map(|result| result.output);
        TaskError { output: output.unwrap_or_default(), ..TaskError::new(message) }
    }

    /// Returns the result of a run that succeeded.
    fn into_result(self) -> ApplyResult {
        let words = self.done.join(", ");
        let message = match (words.as_str(), self.note.as_str()) {
            ("", "") if self.has_read_files && self.status.is_running() => RUNNING_FILES_NOTE.to_owned(),
            ("", "") if self.has_read_files => FILES_NOTE.to_owned(),
            ("", note) => note.to_owned(),
            (words, "") => words.to_owned(),
            (words, note) => format!("{words}; {note}"),
        };
        ApplyResult { message, diff: self.diff, is_unchanged: !self.has_changed && !self.has_read_files, output: String::new() }
    }
}
