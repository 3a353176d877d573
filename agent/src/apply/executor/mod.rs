//! The executor: runs the tasks of a profile in order, and in parallel where the order allows it.
//!
//! The executor takes a task set and runs it to its end. It is never told what changed in the task set. A restart, a
//! check for drift and the first deployment are the same run: a task that is already converged costs one check.

pub mod graph;
pub mod perform;
mod planned;
mod refreshes;

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use log::warn;
use stemma_core::task::Mode;
use stemma_wire::message::PartDigest;
use stemma_wire::message::desired::{Barrier, Profile};
use stemma_wire::message::observed::{self, Outcome, TaskResult};

use super::ledger::{Desired, LOCAL_STATE, PROGRESS, REASONS, Reason, TaskProgress, TaskRecord};
use super::leftovers::{StagingDirs, directory, sweep};
use super::orphans::{self, WrittenFiles};
use super::task::{Execution, HostTask, Site};
use crate::config::Ceiling;
use crate::host::command::truncate_front;
use crate::host::{HostError, HostPath, Pending};
use graph::{NextStep, TaskGraph};
pub use perform::AllowedAction;
use perform::{RefreshOutcome, TaskCall, check_exclusively, perform};
use planned::{PlannedTask, Readiness, assign_paths, link_subscribers};
pub use planned::{is_marker, is_observed, is_topologically_sorted};
use refreshes::PendingRefreshes;

/// Maximum number of tasks that run at once. More would not be faster on a host that has its own work to do.
const MAX_PARALLEL_TASKS: usize = 4;

/// Number of mends of a task within an hour after which it is contended.
const MAX_MENDS_PER_HOUR: usize = 3;

/// Maximum output stored with a task's reason, in bytes. The reasons of 4096 tasks then still fit into one ledger
/// record.
const MAX_REASON_OUTPUT_BYTES: usize = 1024;

/// Message of a task whose own mode is `observe`. Its outcome is `WouldChange`, as if it had been checked, because
/// older controllers know no outcome for an observed task. Hosts that wait for the task then learn that it will not
/// run.
pub const OBSERVED_MESSAGE: &str = "its mode is observe: it is neither run nor checked";

/// The purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPurpose {
    /// Make the host converge, as far as its mode allows.
    Converge,
    /// Only check.
    Check,
}

/// The run of a task set.
pub struct TaskRun {
    site: Site,
    task_set: PartDigest,
    purpose: RunPurpose,
    mode: Mode,
    graph: TaskGraph,
    tasks: Vec<PlannedTask>,
    running: Vec<RunningTask>,
    refreshes: PendingRefreshes,
    /// Directories in which the tasks may leave unfinished files if this process is killed.
    staging: Rc<StagingDirs>,
    last_progress: TaskProgress,
    new_records: BTreeMap<String, TaskRecord>,
    reasons: BTreeMap<String, Reason>,
    results: Vec<TaskResult>,
    /// Files that tasks wrote in this run, or found as wanted, and that stay when the task is removed.
    written_files: WrittenFiles,
    /// Results that are stored in the ledger, but that [`Self::save_results`] has not returned yet because it failed
    /// afterwards.
    unreturned_results: Vec<TaskResult>,
    /// True if [`Self::save_results`] has something to store. A new run has: tasks that left the profile must leave the
    /// stored progress.
    has_unsaved: bool,
}

/// The state of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSummary {
    /// Number of tasks, without markers and skipped or observed tasks.
    pub task_count: usize,
    /// Outcomes of the tasks that have ended.
    pub outcomes: Vec<Outcome>,
}

/// A task that is running.
struct RunningTask {
    index: usize,
    allowed: AllowedAction,
    future: Pending<'static, (Execution, RefreshOutcome)>,
}

impl TaskRun {
    /// Plans the run of a task set with its profile.
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    pub fn plan(
        site: Site,
        ceiling: &Ceiling,
        desired: &Desired,
        profile: &Profile,
        purpose: RunPurpose,
    ) -> Result<Self, HostError> {
        let mode = match purpose {
            RunPurpose::Converge => desired.mode(),
            RunPurpose::Check => Mode::Noop,
        };
        let last_progress = site.ledger.get(&PROGRESS)?.unwrap_or_default();
        let reasons = site.ledger.get(&REASONS)?.unwrap_or_default();
        let (vertices, mut tasks): (_, Vec<_>) =
            profile.tasks.iter().map(|task| PlannedTask::from_profile(&site, ceiling, desired, task, mode)).unzip();
        let mut graph = TaskGraph::new(vertices, MAX_PARALLEL_TASKS);
        link_subscribers(&mut tasks, &mut graph);
        assign_paths(&site, &mut tasks, &graph);
        let mut run = Self {
            site,
            task_set: desired.digest,
            purpose,
            mode,
            graph,
            tasks,
            running: Vec::new(),
            refreshes: PendingRefreshes::default(),
            staging: Rc::default(),
            last_progress,
            new_records: BTreeMap::new(),
            reasons,
            results: Vec::new(),
            written_files: WrittenFiles::new(),
            unreturned_results: Vec::new(),
            has_unsaved: true,
        };
        if purpose == RunPurpose::Converge {
            // Recorded before any task writes, because the diffs and undo copies of all later tasks depend on it
            // (trust.md, rule 8).
            run.managed_files_where(HostTask::is_sensitive).try_for_each(|path| run.site.ledger.record_secret_path(&path))?;
            run.staging = Rc::new(run.staging_dirs());
            // In other modes the run changes nothing.
            if mode == Mode::Apply {
                sweep(&run.site, &run.staging)?;
            }
        }
        run.record_observed();
        Ok(run)
    }

    /// Records a result for each observed task, unless this task set has one already, perhaps from an older agent. Does
    /// nothing if the whole host is in mode `observe`, because then no task has an outcome. A check does not report
    /// observed tasks either.
    fn record_observed(&mut self) {
        if self.purpose == RunPurpose::Check || self.mode == Mode::Observe {
            return;
        }
        let is_reported = |planned: &PlannedTask| {
            let last = self.last_progress.tasks.get(&planned.id);
            last.is_some_and(|last| last.task_set == self.task_set && last.content == planned.content)
        };
        let is_unreported = |at: &usize| self.graph.is_observed(*at) && !is_reported(&self.tasks[*at]);
        let observed: Vec<usize> = (0..self.tasks.len()).filter(is_unreported).collect();
        for at in observed {
            self.record_end(at, Execution::with_message(Outcome::WouldChange, OBSERVED_MESSAGE), AllowedAction::Check);
        }
    }

    /// Returns the directories in which this run may create unfinished files.
    fn staging_dirs(&self) -> StagingDirs {
        let mut dirs = StagingDirs::new();
        for planned in &self.tasks {
            let Readiness::Runnable { applier, task, .. } = &planned.readiness else { continue };
            if AllowedAction::for_mode(self.mode, task.task.mode, false) != AllowedAction::Check
                && let Some(path) = applier.managed_path(&self.site, task)
            {
                dirs.entry(directory(&path)).or_default().extend(applier.file_owner(&self.site, task));
            }
        }
        dirs
    }

    /// Starts all tasks that may start now. In mode `observe`, none may.
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    fn start(&mut self, open: &BTreeSet<Barrier>) -> Result<(), HostError> {
        if self.mode == Mode::Observe || self.is_stopped()? {
            return Ok(());
        }
        let held_back = self.tasks_without_blob()?;
        while let Some(next) = self.graph.next_step(open, &held_back) {
            match next {
                NextStep::Stop { at, by } => {
                    let why = format!("Not run: {}, which it requires, {}.", self.tasks[by].id, self.graph.outcome_text(by));
                    self.record_end(at, Execution::with_message(Outcome::DependencyFailed, why), AllowedAction::Check);
                }
                NextStep::Start(at) => self.start_task(at)?,
            }
        }
        Ok(())
    }

    /// Returns whether this host is paused or parked now, so that no task may start. A check ignores this. The ledger
    /// is read before tasks are started, so none starts after `pause` has returned, even if the command could not wake
    /// the agent.
    fn is_stopped(&self) -> Result<bool, HostError> {
        if self.purpose == RunPurpose::Check || !self.graph.is_waiting() {
            return Ok(false);
        }
        let local = self.site.ledger.get(&LOCAL_STATE)?.unwrap_or_default();
        Ok(local.paused || local.parked.is_some())
    }

    /// Starts a task with what it is allowed to do now, or ends it at once if it cannot run on this host. The task
    /// makes progress only when [`Self::advance`] polls it.
    fn start_task(&mut self, at: usize) -> Result<(), HostError> {
        match &self.tasks[at].readiness {
            Readiness::Refused(outcome, why) => {
                let ended = Execution::with_message(*outcome, why.clone());
                self.graph.end(at, ended.outcome);
                self.record_end(at, ended, AllowedAction::Check);
            }
            Readiness::Runnable { applier, task, .. } => {
                let is_check = AllowedAction::for_mode(self.mode, task.task.mode, false) == AllowedAction::Check;
                let would_refresh = self.would_refresh(at, is_check);
                let refresh = would_refresh || self.should_refresh(at)?;
                let permitted = match AllowedAction::for_mode(self.mode, task.task.mode, self.was_converged(at) && !refresh) {
                    AllowedAction::Mend if self.is_contended(at) => AllowedAction::Contended,
                    permitted => permitted,
                };
                let (site, applier, task) = (self.site.clone(), *applier, task.clone());
                let (refreshes, staging) = (self.tasks[at].refreshes.clone(), self.staging.clone());
                let call = TaskCall { allowed: permitted, is_refresh: refresh, subscribers: refreshes, staging };
                let future: Pending<'static, (Execution, RefreshOutcome)> = match self.purpose {
                    RunPurpose::Converge => Box::pin(async move { perform(&site, applier, &task, &call).await }),
                    RunPurpose::Check => {
                        Box::pin(async move { check_exclusively(&site, applier, &task, call, would_refresh).await })
                    }
                };
                self.running.push(RunningTask { index: at, allowed: permitted, future });
            }
        }
        Ok(())
    }

    /// Returns whether the task is only checked and a task that it subscribes to would change something. It would then
    /// run again.
    fn would_refresh(&self, at: usize, is_check: bool) -> bool {
        is_check && self.tasks[at].subscribes.iter().any(|before| self.graph.would_task_change(*before))
    }

    /// Returns whether a task that the task `at` subscribes to has changed something since the task `at` last
    /// succeeded.
    fn should_refresh(&self, at: usize) -> Result<bool, HostError> {
        let PlannedTask { id, subscribes, .. } = &self.tasks[at];
        Ok(!subscribes.is_empty() && self.site.ledger.should_refresh(id)?)
    }

    /// Returns whether the task was last converged with the same content. A difference is then drift.
    fn was_converged(&self, at: usize) -> bool {
        let planned = &self.tasks[at];
        self.last_progress.tasks.get(&planned.id).is_some_and(|record| {
            record.content == planned.content
                && matches!(record.outcome, Outcome::Unchanged | Outcome::Changed | Outcome::Drifted)
        })
    }

    /// Returns the last times at which the task was mended with its present content, in seconds since 1970.
    fn recent_mends(&self, at: usize) -> &[u64] {
        let planned = &self.tasks[at];
        let before = self.last_progress.tasks.get(&planned.id).filter(|performed| performed.content == planned.content);
        before.map_or(&[], |performed| &performed.mends)
    }

    /// Returns whether the task was mended so often within an hour that something else must be changing the host back.
    fn is_contended(&self, at: usize) -> bool {
        let now = self.site.host.unix_seconds();
        // A time in the future was recorded before the clock was set back. It does not count for this hour.
        let within_hour = |mended: &&u64| (now.saturating_sub(3600) + 1..=now).contains(*mended);
        self.recent_mends(at).iter().filter(within_hour).count() >= MAX_MENDS_PER_HOUR
    }

    /// Returns the files that the tasks manage.
    pub fn managed_files(&self) -> impl Iterator<Item = HostPath> {
        self.managed_files_where(|_| true)
    }

    /// Returns the files that the tasks selected by `select` manage. Tasks that cannot run on this host have none.
    fn managed_files_where(&self, select: fn(&HostTask) -> bool) -> impl Iterator<Item = HostPath> {
        self.tasks.iter().filter_map(move |planned| match &planned.readiness {
            Readiness::Runnable { applier, task, .. } if select(task) => applier.managed_path(&self.site, task),
            Readiness::Runnable { .. } | Readiness::Refused(..) => None,
        })
    }

    /// Returns the tasks whose blob has not arrived yet.
    fn tasks_without_blob(&self) -> Result<BTreeSet<usize>, HostError> {
        let mut missing = BTreeSet::new();
        for (at, planned) in self.tasks.iter().enumerate() {
            if let Readiness::Runnable { blob: Some(hash), .. } = &planned.readiness
                && !self.site.ledger.has_body(*hash)?
            {
                missing.insert(at);
            }
        }
        Ok(missing)
    }

    /// Starts all tasks that may start and waits until one ends. Then records every task that has ended by now, and
    /// starts the tasks that may follow. Returns `false` at once if no task runs. Cancel safe: running tasks continue
    /// at the next call.
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    pub async fn advance(&mut self, open: &BTreeSet<Barrier>) -> Result<bool, HostError> {
        self.start(open)?;
        if self.running.is_empty() {
            return Ok(false);
        }
        poll_fn(|context| self.poll_ended(context)).await;
        loop {
            self.start(open)?;
            let has_ended = poll_fn(|context| Poll::Ready(self.poll_ended(context).is_ready())).await;
            if !has_ended {
                return Ok(true);
            }
        }
    }

    /// Waits until one running task ends and records it, but starts no other. Used for a run that a newer task set has
    /// replaced. Returns `false` at once if no task runs.
    pub async fn finish_running(&mut self) -> bool {
        if self.running.is_empty() {
            return false;
        }
        poll_fn(|context| self.poll_ended(context)).await;
        true
    }

    /// Polls the running tasks, and records the first that has ended.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for place in 0..self.running.len() {
            if let Poll::Ready((ended, refresh)) = self.running[place].future.as_mut().poll(context) {
                let RunningTask { index: at, allowed: permitted, .. } = self.running.remove(place);
                self.cancel_refreshes(at, refresh);
                self.graph.end(at, ended.outcome);
                self.record_end(at, ended, permitted);
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Cancels the refreshes that a task requested before a change that it then did not make. If a crash prevents this,
    /// the subscribed tasks only run once more than needed.
    fn cancel_refreshes(&mut self, at: usize, refresh: RefreshOutcome) {
        let running = self.running.iter().flat_map(|running| &self.tasks[running.index].refreshes);
        let cancelled = self.refreshes.end_task(&self.tasks[at].refreshes, refresh, &running.collect());
        if let Err(error) = self.site.ledger.clear_refresh(&cancelled) {
            warn!(error = error.sentence().as_str(); "tasks will run again for a change that was not made");
        }
    }

    /// Returns the file of a task that stays on the host when the task is removed from the profile, if it has one.
    fn lasting_path(&self, planned: &PlannedTask) -> Option<String> {
        let Readiness::Runnable { task, .. } = &planned.readiness else { return None };
        orphans::lasting_path(&self.site, task).map(|path| path.to_string())
    }

    /// Records how a task ended: its mends, its reason and the file that it wrote. Adds a result to report if the
    /// outcome is new.
    fn record_end(&mut self, at: usize, ended: Execution, permitted: AllowedAction) {
        let mut mends = self.recent_mends(at).to_vec();
        if permitted == AllowedAction::Mend && ended.outcome == Outcome::Changed {
            mends.push(self.site.host.unix_seconds());
            mends.drain(..mends.len().saturating_sub(MAX_MENDS_PER_HOUR));
        }
        let planned = &self.tasks[at];
        let (content, outcome) = (planned.content, ended.outcome);
        let record = TaskRecord { task_set: self.task_set, content, outcome, mends };
        self.has_unsaved = true;
        let last_reason = self.reasons.remove(&planned.id);
        let stopped_by_another =
            outcome == Outcome::DependencyFailed && last_reason.is_some_and(|reason| reason.message != ended.message);
        if !ended.message.is_empty() {
            let reason = Reason {
                message: ended.message.clone(),
                output: truncate_front(&ended.output, MAX_REASON_OUTPUT_BYTES).into_owned(),
            };
            self.reasons.insert(planned.id.clone(), reason);
        }
        let is_news = stopped_by_another || should_report(self.last_progress.tasks.get(&planned.id), &record);
        // Only a new result needs this: the file of an earlier one was recorded then. `orphans::fill_record` adds the
        // files from the time of older agents, which recorded none.
        if is_news
            && permitted != AllowedAction::Check
            && outcome.is_success()
            && let Some(path) = self.lasting_path(planned)
        {
            self.written_files.entry(path).or_insert_with(|| planned.id.clone());
        }
        if self.purpose == RunPurpose::Check || is_news {
            self.new_records.insert(planned.id.clone(), record);
            self.results.push(TaskResult {
                sequence: 0,
                task_set: self.task_set,
                task: planned.id.clone(),
                outcome: ended.outcome,
                message: ended.message,
                output: ended.output,
                diff: ended.diff,
                duration_ms: ended.duration_ms,
            });
        }
    }

    /// Stores the results, the progress and the reasons since the last call. Returns the results to report, with their
    /// sequence numbers.
    ///
    /// # Errors
    /// [`HostError`]. The next call then stores and returns what this one could not.
    pub fn save_results(&mut self) -> Result<Vec<TaskResult>, HostError> {
        if !self.written_files.is_empty() {
            let keeps = |path: &str, task: &str| {
                let by_id = |planned: &&PlannedTask| planned.id == task;
                self.tasks.iter().find(by_id).and_then(|planned| self.lasting_path(planned)).is_some_and(|left| left == path)
            };
            orphans::record_written(&self.site, &self.written_files, keeps)?;
            self.written_files.clear();
        }
        self.unreturned_results.extend(self.site.ledger.add_results(self.results.clone())?);
        self.results.clear();
        let mut progress = self.last_progress.clone();
        progress.tasks.retain(|id, _| self.tasks.iter().any(|planned| planned.id == *id));
        progress.tasks.extend(self.new_records.iter().map(|(id, performed)| (id.clone(), performed.clone())));
        self.site.ledger.put(&PROGRESS, &progress)?;
        self.reasons.retain(|id, _| progress.tasks.contains_key(id));
        // The record of reasons is created only when a reported result has a reason. So an upgrade of the agent alone
        // does not create it.
        let has_new_reasons = !self.reasons.is_empty() && !self.new_records.is_empty();
        if has_new_reasons || self.site.ledger.get(&REASONS)?.is_some() {
            self.site.ledger.put(&REASONS, &self.reasons)?;
        }
        self.has_unsaved = false;
        Ok(std::mem::take(&mut self.unreturned_results))
    }

    /// Returns the results of all tasks that ended, as a [`RunPurpose::Check`] needs them. Stores nothing.
    #[must_use]
    pub fn into_results(self) -> Vec<TaskResult> {
        self.results
    }

    /// Returns whether [`Self::save_results`] has something to store.
    #[must_use]
    pub const fn has_unsaved_results(&self) -> bool {
        self.has_unsaved
    }

    /// Returns whether a task is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Returns the ids of the running tasks.
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.running.iter().map(move |running| self.tasks[running.index].id.as_str())
    }

    /// Returns the state of the run.
    #[must_use]
    pub fn summary(&self) -> RunSummary {
        RunSummary { task_count: self.graph.task_count(), outcomes: self.graph.outcomes().collect() }
    }

    /// Returns whether no task runs and none can start.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.running.is_empty() && (self.mode == Mode::Observe || !self.graph.is_waiting())
    }

    /// Returns the progress of the host in this run.
    #[must_use]
    pub fn progress(&self) -> observed::Progress {
        if !self.running.is_empty() {
            observed::Progress::Running
        } else if self.graph.has_failed() {
            observed::Progress::Failed
        } else if self.mode == Mode::Observe || (self.mode == Mode::Noop && self.graph.would_change()) {
            // Nothing was changed and nothing failed.
            observed::Progress::Idle
        } else if self.graph.is_waiting() {
            observed::Progress::Waiting
        } else {
            observed::Progress::Converged
        }
    }
}

/// Returns whether a result must be reported: the first of each task set or content, each change and failure, and any
/// other outcome that differs from the one last reported.
fn should_report(last: Option<&TaskRecord>, now: &TaskRecord) -> bool {
    let Some(last) = last else { return true };
    if last.task_set != now.task_set || last.content != now.content {
        return true;
    }
    match now.outcome {
        Outcome::Changed | Outcome::Failed => true,
        Outcome::Unchanged => !last.outcome.is_success(),
        Outcome::WouldChange | Outcome::DependencyFailed | Outcome::Unsupported | Outcome::Unknown | Outcome::Drifted => {
            last.outcome != now.outcome
        }
    }
}

#[cfg(test)]
mod tests;
