//! Sends reports and results to the network half, and runs hooks. Hooks start at a random time within the group's
//! splay. While hooks run, a further change waits until they have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use log::{info, warn};
use serde_json::json;
use stemma_core::status::{ORPHANS_FACT, RUNS_ON_FACT, STUCK_FACT};
use stemma_core::task::Mode;
use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::observed::{Progress, Report, TaskResult};
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker, WorkerFindings};
use crate::apply::hooks::HookFailures;
use crate::apply::ledger::{Desired, HOOK_SNAPSHOT, HookSnapshot, REPORT};
use crate::apply::{hooks, orphans};
use crate::channel::ChannelError;
use crate::findings::limit;
use crate::host::command::log_excerpt;
use crate::host::{HostError, Pending};

/// Maximum number of results in one message to the network half.
const MAX_RESULTS_PER_MESSAGE: usize = 256;

/// Maximum number of findings of this half. A report holds 256, so there is room for findings of the network half.
const MAX_WORKER_FINDINGS: usize = 192;

/// The state of the hooks: none due, due at a time, or running with the snapshot that they receive.
pub(super) enum HookState {
    Idle,
    Due(Instant),
    Running(HookSnapshot, Pending<'static, HookFailures>),
}

impl ApplyWorker {
    /// Sends results to the network half, in messages of bounded length.
    pub(super) async fn send_results(&self, results: &[TaskResult]) -> Result<(), ChannelError> {
        for chunk in results.chunks(MAX_RESULTS_PER_MESSAGE) {
            self.end.send(&ApplyMessage::Results(chunk.to_vec())).await?;
        }
        Ok(())
    }

    /// Sends findings, facts and progress to the network half if they changed, and stores the report for `status`.
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
        // Findings about labels come last. There may be more than a report holds, and only the last findings are cut
        // off.
        let mut findings: Vec<String> = findings.chain(set_aside).chain(&outputs.findings).cloned().collect();
        limit(&mut findings, MAX_WORKER_FINDINGS);
        let report = Report {
            agent_version: env!("CARGO_PKG_VERSION").into(),
            facts: self.facts(),
            findings,
            progress: self.progress,
            local: self.local.clone(),
        };
        if self.last_report.as_ref() != Some(&report) {
            self.end.send(&ApplyMessage::Report(report.clone())).await?;
            self.last_report = Some(report.clone());
            self.is_report_stored = false;
        }
        if self.findings.dropped.is_some() && self.findings.dropped_reported_at.is_none() {
            self.findings.dropped_reported_at = Some(self.site.ledger.next_sequence()?);
        }
        if !self.is_report_stored {
            self.site.ledger.put(&REPORT, &report)?;
            self.is_report_stored = true;
        }
        Ok(())
    }

    /// Returns the facts about the agent's own problems that a controller reads, as findings are for people only. A
    /// fact exists only while it applies.
    fn facts(&self) -> BTreeMap<String, String> {
        let disk = self.findings.disk.as_ref().map(|stuck| &stuck.sentence);
        // Tasks also cannot start if the profile cannot be read.
        let blocked = disk.or(self.findings.state.as_ref());
        let unwritten = self.findings.outputs.unwritten.first();
        let why = blocked.or(unwritten);
        let stuck = why.map(|why| (STUCK_FACT.to_owned(), json!(why).to_string()));
        let runs_on = (blocked.is_none() && unwritten.is_some()).then(|| (RUNS_ON_FACT.to_owned(), "true".to_owned()));
        let orphans = orphans::orphans_fact(&self.orphans).map(|text| (ORPHANS_FACT.to_owned(), text));
        stuck.into_iter().chain(runs_on).chain(orphans).collect()
    }

    /// Clears the finding about dropped results once a controller has received it. That is known when it acknowledges a
    /// result that was numbered after the finding was reported: the check-in with this result carried the report too,
    /// or followed one that did.
    pub(super) fn clear_dropped_finding(&mut self, acknowledged: u64) -> Result<(), HostError> {
        if self.findings.dropped_reported_at.is_none_or(|from| acknowledged < from) {
            return Ok(());
        }
        // If more results were dropped in the meantime, their count must be reported first.
        self.findings.refresh(&self.site.ledger)?;
        if self.findings.dropped_reported_at.is_some() {
            self.site.ledger.reset_dropped_results()?;
            (self.findings.dropped, self.findings.dropped_reported_at) = (None, None);
        }
        Ok(())
    }

    /// Runs the command that starts `stemma-applied.target`, once, when the host has first converged in mode `apply`.
    pub(super) async fn run_applied_command(&mut self) {
        let applied = self.progress == Progress::Converged && self.effective_mode() == Some(Mode::Apply);
        let Some(command) = self.on_applied.take_if(|_| applied) else { return };
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

    /// Schedules hooks if labels, annotations, traits or tags changed since the hooks last ran. If a change could not
    /// be written to `/run/stemma`, hooks are not told of it yet. Writing the files again calls this again.
    pub(super) fn schedule_hooks(&mut self, desired: &Desired) -> Result<(), HostError> {
        let is_idle = matches!(self.hooks, HookState::Idle);
        if is_idle
            && !self.findings.outputs.is_run_dir_incomplete
            && desired.mode() == Mode::Apply
            && self.site.ledger.get(&HOOK_SNAPSHOT)?.unwrap_or_default() != hooks::snapshot(desired)
        {
            let splay = u64::from(desired.known.splay_s) * 1000;
            let wait = if splay == 0 { 0 } else { self.site.host.random() % splay };
            self.hooks = HookState::Due(Instant::now() + Duration::from_millis(wait));
        }
        Ok(())
    }

    /// Starts the hooks if they are due, or records that they have run. `failed` are the failures of hooks that have
    /// run.
    pub(super) async fn on_hook_event(&mut self, failed: Option<HookFailures>) -> Result<(), ApplyError> {
        let state = std::mem::replace(&mut self.hooks, HookState::Idle);
        let Some(desired) = self.desired.clone() else { return Ok(()) };
        match (state, failed) {
            (HookState::Running(now, _), Some(failed)) => {
                self.site.ledger.put(&HOOK_SNAPSHOT, &now)?;
                self.findings.hooks = failed;
                self.schedule_hooks(&desired)?;
            }
            (HookState::Due(_), None) if self.findings.outputs.is_run_dir_incomplete => {}
            (HookState::Due(_), None) => {
                let (before, now) = (self.site.ledger.get(&HOOK_SNAPSHOT)?.unwrap_or_default(), hooks::snapshot(&desired));
                if let Some(change) = hooks::change(&desired.known.name, &before, &now) {
                    let limit = Duration::from_secs(self.config.schedule.hook_seconds);
                    let future = Box::pin(hooks::run(self.site.host.clone(), change, limit));
                    self.hooks = HookState::Running(now, future);
                }
            }
            (state, _) => self.hooks = state,
        }
        self.report().await
    }
}

/// Logs the result of a task. The entry of a failed task also has the last lines of the task's output, which a
/// sensitive task does not have.
pub(super) fn log_result(result: &TaskResult) {
    let (task, message) = (result.task.as_str(), result.message.as_str());
    if result.outcome.is_failure() {
        warn!(task, outcome:? = result.outcome, error = message, output = log_excerpt(&result.output); "task ended");
    } else {
        info!(task, outcome:? = result.outcome, duration_ms = result.duration_ms; "task ended");
    }
}

/// Waits until hooks are due, and returns `None`, or until running hooks have ended, and returns the failures.
pub(super) async fn next_hook_event(hooks: &mut HookState) -> Option<HookFailures> {
    match hooks {
        HookState::Idle => std::future::pending().await,
        HookState::Due(at) => {
            tokio::time::sleep_until(*at).await;
            None
        }
        HookState::Running(_, future) => Some(future.await),
    }
}
