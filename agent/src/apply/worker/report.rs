//! What the root half passes on: results to the network half, and changes to hooks. Hooks start within the group's splay and
//! run one round at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use log::{info, warn};
use serde_json::json;
use stemma_core::status::{ORPHANS, RUNS_ON, STUCK};
use stemma_core::task::Mode;
use stemma_wire::message::channel::FromApply;
use stemma_wire::message::observed::{Progress, Report, TaskResult};
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker, Findings};
use crate::apply::hooks::Failures;
use crate::apply::ledger::{Desired, HOOK_SNAPSHOT, HookSnapshot, REPORT};
use crate::apply::{hooks, orphans};
use crate::channel::ChannelError;
use crate::findings::bound;
use crate::host::command::logged;
use crate::host::{HostError, Pending};

/// The most results of one message to the network half.
const MOST_RESULTS: usize = 256;

/// The most findings of this half. A report takes 256, so there is room for those of the network half.
const MOST_FINDINGS: usize = 192;

/// The hooks: none due, due at a time, or running with a snapshot.
pub(super) enum Hooks {
    Quiet,
    Due(Instant),
    Running(HookSnapshot, Pending<'static, Failures>),
}

impl ApplyWorker {
    /// Sends results to the network half, in messages of bounded length.
    pub(super) async fn tell_results(&self, results: &[TaskResult]) -> Result<(), ChannelError> {
        for some in results.chunks(MOST_RESULTS) {
            self.end.send(&FromApply::Results(some.to_vec())).await?;
        }
        Ok(())
    }

    pub(super) async fn report(&mut self) -> Result<(), ApplyError> {
        let Findings { membership, disk, outputs, map, hooks, state, set_aside, dropped, dropped_told: _ } =
            &self.findings;
        let findings = membership
            .iter()
            .chain(disk.as_ref().map(|stuck| &stuck.sentence))
            .chain(&outputs.unwritten)
            .chain(dropped)
            .chain(map)
            .chain(hooks.values())
            .chain(state);
        // Those of labels come last: there may be more of them than a report takes, and no other finding is left out for them.
        let mut findings: Vec<String> = findings.chain(set_aside).chain(&outputs.findings).cloned().collect();
        bound(&mut findings, MOST_FINDINGS);
        let report = Report {
            agent_version: env!("CARGO_PKG_VERSION").into(),
            facts: self.facts(),
            findings,
            progress: self.progress,
            local: self.local.clone(),
        };
        if self.reported.as_ref() != Some(&report) {
            self.end.send(&FromApply::Report(report.clone())).await?;
            self.reported = Some(report.clone());
            self.is_report_kept = false;
        }
        if self.findings.dropped.is_some() && self.findings.dropped_told.is_none() {
            self.findings.dropped_told = Some(self.site.ledger.next_sequence()?);
        }
        if !self.is_report_kept {
            self.site.ledger.put(&REPORT, &report)?;
            self.is_report_kept = true;
        }
        Ok(())
    }

    /// What a controller reads of how this half stands beside findings for people; each is there only while there is something to say.
    fn facts(&self) -> BTreeMap<String, String> {
        let disk = self.findings.disk.as_ref().map(|stuck| &stuck.sentence);
        // Or what it holds cannot be read, or services and people cannot read it.
        let begins_nothing = disk.or(self.findings.state.as_ref());
        let unwritten = self.findings.outputs.unwritten.first();
        let why = begins_nothing.or(unwritten);
        let stuck = why.map(|why| (STUCK.to_owned(), json!(why).to_string()));
        let runs_on =
            (begins_nothing.is_none() && unwritten.is_some()).then(|| (RUNS_ON.to_owned(), "true".to_owned()));
        let orphans = orphans::fact(&self.orphans).map(|text| (ORPHANS.to_owned(), text));
        stuck.into_iter().chain(runs_on).chain(orphans).collect()
    }

    /// Ends the finding of results that were dropped when later ones are acknowledged. Only those will do that got their number after the
    /// finding was reported: the check-in that has them is behind one with the report, or has it too.
    pub(super) fn end_dropped(&mut self, acknowledged: u64) -> Result<(), HostError> {
        if self.findings.dropped_told.is_none_or(|from| acknowledged < from) {
            return Ok(());
        }
        // There may be more of them since.
        self.findings.look_at(&self.site.ledger)?;
        if self.findings.dropped_told.is_some() {
            self.site.ledger.forget_dropped_results()?;
            (self.findings.dropped, self.findings.dropped_told) = (None, None);
        }
        Ok(())
    }

    pub(super) async fn tell_applied(&mut self) {
        let applied = self.progress == Progress::Converged && self.mode_in_force() == Some(Mode::Apply);
        let Some(command) = self.applied.take_if(|_| applied) else { return };
        match self.site.host.run(&command).await {
            Ok(finished) if finished.end.is_success() => info!("the tasks of this host have been applied"),
            Ok(finished) => {
                let output = logged(&finished.output);
                warn!(error = finished.end.sentence().as_str(), output; "stemma-applied.target was not started");
            }
            Err(error) => warn!(error = error.sentence().as_str(); "stemma-applied.target was not started"),
        }
    }

    fn mode_in_force(&self) -> Option<Mode> {
        self.desired.as_ref().map(Desired::mode)
    }

    /// Lets hooks run where something changed since they last did. They are told of nothing that they could not read in `/run/stemma` yet: once
    /// that is written, this is called again.
    pub(super) fn tell_hooks(&mut self, now: &Desired) -> Result<(), HostError> {
        let quiet = matches!(self.hooks, Hooks::Quiet);
        if quiet
            && !self.findings.outputs.lacks_run
            && now.mode() == Mode::Apply
            && self.site.ledger.get(&HOOK_SNAPSHOT)?.unwrap_or_default() != hooks::snapshot(now)
        {
            let splay = u64::from(now.known.splay_s) * 1000;
            let wait = if splay == 0 { 0 } else { self.site.host.random() % splay };
            self.hooks = Hooks::Due(Instant::now() + Duration::from_millis(wait));
        }
        Ok(())
    }

    /// Starts hooks that are due, and records those that have run.
    pub(super) async fn hooks_turned(&mut self, failed: Option<Failures>) -> Result<(), ApplyError> {
        let turned = std::mem::replace(&mut self.hooks, Hooks::Quiet);
        let Some(desired) = self.desired.clone() else { return Ok(()) };
        match (turned, failed) {
            (Hooks::Running(now, _), Some(failed)) => {
                self.site.ledger.put(&HOOK_SNAPSHOT, &now)?;
                self.findings.hooks = failed;
                self.tell_hooks(&desired)?;
            }
            (Hooks::Due(_), None) if self.findings.outputs.lacks_run => {}
            (Hooks::Due(_), None) => {
                let (before, now) =
                    (self.site.ledger.get(&HOOK_SNAPSHOT)?.unwrap_or_default(), hooks::snapshot(&desired));
                if let Some(change) = hooks::change(&desired.known.name, &before, &now) {
                    let limit = Duration::from_secs(self.config.schedule.hook_seconds);
                    let future = Box::pin(hooks::run(self.site.host.clone(), change, limit));
                    self.hooks = Hooks::Running(now, future);
                }
            }
            (turned, _) => self.hooks = turned,
        }
        self.report().await
    }
}

/// Tells the log what became of a task; of one that failed, the last lines of its output too. A sensitive task's result has none.
pub(super) fn log_ended(result: &TaskResult) {
    let (task, message) = (result.task.as_str(), result.message.as_str());
    if result.outcome.is_failure() {
        warn!(task, outcome:? = result.outcome, error = message, output = logged(&result.output); "task ended");
    } else {
        info!(task, outcome:? = result.outcome, duration_ms = result.duration_ms; "task ended");
    }
}

/// Waits until hooks are due (`None`) or have run, and gives which failed.
pub(super) async fn hooks_turn(hooks: &mut Hooks) -> Option<Failures> {
    match hooks {
        Hooks::Quiet => std::future::pending().await,
        Hooks::Due(at) => {
            tokio::time::sleep_until(*at).await;
            None
        }
        Hooks::Running(_, future) => Some(future.await),
    }
}
