//! Sends reports and results to the network half, and runs hooks. Hooks start at a random time within the group's
//! splay. While hooks run, a further change waits until they have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use log::{info, warn};
use serde_json::json;
use stemma_core::status::{BOOT_FACT, ORPHANS_FACT, REBOOT_FACT, RebootReport, STUCK_FACT, TASKS_CONTINUE_FACT};
use stemma_core::task::Mode;
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::observed::{Progress, Report, TaskResult};
use tokio::time::Instant;
use uuid::Uuid;

use super::{ApplyError, ApplyWorker, WorkerFindings};
use crate::apply::hooks::HookFailures;
use crate::apply::ledger::{Desired, HOOK_SNAPSHOT, HookSnapshot, REPORT};
use crate::apply::{hooks, orphans, reboots};
use crate::channel::ChannelError;
use crate::findings::limit;
use crate::host::command::log_excerpt;
use crate::host::{HostError, Pending};

/// Maximum number of results in one message to the network half of the agent.
const MAX_RESULTS_PER_MESSAGE: usize = 256;

/// Maximum number of findings of the agent's root half in a report. A report contains at most 256 findings, so the
/// network half of the agent can add its own.
const MAX_WORKER_FINDINGS: usize = 192;

/// The state of the hooks (programs of the host's owner that run after a change).
pub(super) enum HookState {
    /// No hook runs, and no run is scheduled.
    Idle,
    /// The hooks run at this time.
    Due(Instant),
    /// The hooks run. The values are the snapshot that they receive, and the future of the run.
    Running(HookSnapshot, Pending<'static, HookFailures>),
}

impl ApplyWorker {
    /// Sends results to the network half of the agent, at most [`MAX_RESULTS_PER_MESSAGE`] in each message.
    pub(super) async fn send_results(&self, results: &[TaskResult]) -> Result<(), ChannelError> {
        for chunk in results.chunks(MAX_RESULTS_PER_MESSAGE) {
            self.channel.send(&ApplyMessage::Results(chunk.to_vec())).await?;
        }
        Ok(())
    }

    /// Sends a report (findings, facts about problems of the agent, progress and local state) to the network half if it
    /// changed. Also stores it on disk for `stemma-agent status`, and sets `dropped_reported_at` for a new finding.
    pub(super) async fn report(&mut self) -> Result<(), ApplyError> {
        let WorkerFindings { membership, disk, outputs, map, hooks, state, set_aside, dropped, dropped_reported_at: _ } =
            &self.findings;
        let findings = membership
            .iter()
            .chain(disk.as_ref().map(|stuck| &stuck.sentence))
            .chain(&outputs.unwritten)
            .chain(dropped)
            .chain(map)
            .chain(hooks.values())
            .chain(state);
        // Findings about labels are the last, because there can be very many of them. If there are too many findings,
        // `limit` cuts off the last ones.
        let mut findings: Vec<String> = findings.chain(set_aside).chain(&outputs.findings).cloned().collect();
        limit(&mut findings, MAX_WORKER_FINDINGS);
        let report = Report {
            agent_version: env!("CARGO_PKG_VERSION").into(),
            facts: self.facts()?,
            findings,
            progress: self.progress,
            local: self.local.clone(),
        };
        if self.last_report.as_ref() != Some(&report) {
            self.channel.send(&ApplyMessage::Report(report.clone())).await?;
            self.last_report = Some(report.clone());
            self.is_report_stored = false;
        }
        if self.findings.dropped.is_some() && self.findings.dropped_reported_at.is_none() {
            self.findings.dropped_reported_at = Some(self.site.ledger.next_sequence()?);
        }
        if !self.is_report_stored {
            // The id of the boot is for the controller alone. So neither an upgrade nor a boot writes the report again.
            let mut stored_report = report;
            stored_report.facts.remove(BOOT_FACT);
            self.site.ledger.put(&REPORT, &stored_report)?;
            self.is_report_stored = true;
        }
        Ok(())
    }

    /// Returns the facts about problems of the agent itself, as JSON texts by the name of the fact. The controller
    /// evaluates these facts, because findings are texts for people only.
    ///
    /// The fact about the present boot is always present. Another fact is present only while its problem exists: the reason
    /// why the host is stuck, `true` if its tasks run nevertheless, the list of orphans and clean-ups, and the reboot that
    /// tasks ask for.
    fn facts(&self) -> Result<BTreeMap<String, String>, HostError> {
        let disk = self.findings.disk.as_ref().map(|stuck| &stuck.sentence);
        // `findings.state` is the reason if the agent cannot read the profile. Then no task can start either.
        let blocker = disk.or(self.findings.state.as_ref());
        let write_error = self.findings.outputs.unwritten.first();
        let reason = blocker.or(write_error);
        let stuck = reason.map(|reason| (STUCK_FACT.to_owned(), json!(reason).to_string()));
        let runs_on = (blocker.is_none() && write_error.is_some()).then(|| (TASKS_CONTINUE_FACT.to_owned(), "true".to_owned()));
        let orphans = orphans::orphans_fact(&self.orphans, &self.clean_ups).map(|text| (ORPHANS_FACT.to_owned(), text));
        let boot = (BOOT_FACT.to_owned(), json!(Uuid::from_bytes(self.boot_id)).to_string());
        let problem = self.reboot_problem.clone();
        let report = RebootReport { problem, ..reboots::report(&self.site.ledger, self.boot_id)? };
        let reboot = report.to_fact().map(|text| (REBOOT_FACT.to_owned(), text));
        Ok(stuck.into_iter().chain(runs_on).chain(orphans).chain([boot]).chain(reboot).collect())
    }

    /// Clears the finding about dropped results if a controller has received it. `acknowledged` is the highest sequence
    /// number of the results that the controller has stored.
    ///
    /// The field `dropped_reported_at` is the first sequence number after the report of the finding. A result with this
    /// or a higher number arrives at the controller with the report or after it. So if the controller has stored such a
    /// result, it also has the finding.
    pub(super) fn clear_dropped_finding(&mut self, acknowledged: u64) -> Result<(), HostError> {
        if self.findings.dropped_reported_at.is_none_or(|reported_at| acknowledged < reported_at) {
            return Ok(());
        }
        // If the count of dropped results has changed since the report, `refresh` clears `dropped_reported_at`. The
        // finding then remains until the new count is reported.
        self.findings.refresh(&self.site.ledger)?;
        if self.findings.dropped_reported_at.is_some() {
            self.site.ledger.reset_dropped_results()?;
            (self.findings.dropped, self.findings.dropped_reported_at) = (None, None);
        }
        Ok(())
    }

    /// Runs the command that starts `stemma-applied.target`, if the host has converged in mode `apply`. Each process
    /// runs the command only once.
    pub(super) async fn run_applied_command(&mut self) {
        let is_applied = self.progress == Progress::Converged && self.effective_mode() == Some(Mode::Apply);
        let Some(command) = self.on_applied.take_if(|_| is_applied) else { return };
        match self.site.host.run(&command).await {
            Ok(finished) if finished.end.is_success() => info!("the tasks of this host have been applied"),
            Ok(finished) => {
                let output = log_excerpt(&finished.output);
                warn!(error = finished.end.sentence().as_str(), output; "stemma-applied.target was not started");
            }
            Err(error) => warn!(error = error.sentence().as_str(); "stemma-applied.target was not started"),
        }
    }

    fn effective_mode(&self) -> Option<Mode> {
        self.desired.as_ref().map(Desired::mode)
    }

    /// Schedules the hooks if labels, annotations, traits or tags changed since the last run of the hooks. They run
    /// after a random delay below the node's splay, so that the hooks of many hosts do not run at once.
    ///
    /// Does nothing if the mode is not `apply`, if the hooks are already scheduled or running, or if `/run/stemma`,
    /// which they read, is incomplete. The agent calls this again after it has written the files.
    pub(super) fn schedule_hooks(&mut self, desired: &Desired) -> Result<(), HostError> {
        let is_idle = matches!(self.hooks, HookState::Idle);
        if is_idle
            && !self.findings.outputs.is_run_dir_incomplete
            && desired.mode() == Mode::Apply
            && self.site.ledger.get(&HOOK_SNAPSHOT)?.unwrap_or_default() != hooks::snapshot(desired)
        {
            let splay_ms = u64::from(desired.known.splay_s) * 1000;
            let delay_ms = if splay_ms == 0 { 0 } else { self.site.host.random() % splay_ms };
            self.hooks = HookState::Due(Instant::now() + Duration::from_millis(delay_ms));
        }
        Ok(())
    }

    /// Handles an event of [`next_hook_event`]. If the hooks have ended (`failures` is not `None`), records their
    /// snapshot and failures, and schedules them again after a further change. If the hooks are due, starts them.
    ///
    /// Does not start them if `/run/stemma` is incomplete, because the hooks read it.
    pub(super) async fn on_hook_event(&mut self, failures: Option<HookFailures>) -> Result<(), ApplyError> {
        let state = std::mem::replace(&mut self.hooks, HookState::Idle);
        let Some(desired) = self.desired.clone() else { return Ok(()) };
        match (state, failures) {
            (HookState::Running(new, _), Some(failures)) => {
                self.site.ledger.put(&HOOK_SNAPSHOT, &new)?;
                self.findings.hooks = failures;
                self.schedule_hooks(&desired)?;
            }
            (HookState::Due(_), None) if self.findings.outputs.is_run_dir_incomplete => {}
            (HookState::Due(_), None) => {
                let (old, new) = (self.site.ledger.get(&HOOK_SNAPSHOT)?.unwrap_or_default(), hooks::snapshot(&desired));
                if let Some(change) = hooks::change(&desired.known.name, &old, &new) {
                    let timeout = Duration::from_secs(self.config.schedule.hook_seconds);
                    let future = Box::pin(hooks::run(self.site.host.clone(), change, timeout));
                    self.hooks = HookState::Running(new, future);
                }
            }
            // An event that does not match the state changes nothing.
            (state, _) => self.hooks = state,
        }
        self.report().await
    }
}

/// Logs the result of a task. The entry of a failed task also contains the last lines of the task's output. The result
/// of a sensitive task has no output, so its entry contains none.
pub(super) fn log_result(result: &TaskResult) {
    let (task, message) = (result.task.as_str(), result.message.as_str());
    if result.outcome.is_failure() {
        warn!(task, outcome:? = result.outcome, error = message, output = log_excerpt(&result.output); "task ended");
    } else {
        info!(task, outcome:? = result.outcome, duration_ms = result.duration_ms; "task ended");
    }
}

/// Waits for the next event of the hooks. If they are scheduled, waits until they are due, and returns `None`. If they
/// run, waits until they have ended, and returns their failures. Never completes if no hook is scheduled or running.
pub(super) async fn next_hook_event(hooks: &mut HookState) -> Option<HookFailures> {
    match hooks {
        HookState::Idle => std::future::pending().await,
        HookState::Due(due_at) => {
            tokio::time::sleep_until(*due_at).await;
            None
        }
        HookState::Running(_, future) => Some(future.await),
    }
}
