//! The executor: runs the tasks of a profile in order, and in parallel where the order allows it.
//!
//! The executor runs a task set to its end. It does not need to know what changed in the task set. A restart, a
//! check for drift and the first deployment are the same run: a task that is already converged costs one check.

mod batch;
pub mod graph;
pub mod perform;
mod planned;
mod refreshes;

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use log::warn;
use stemma_core::task::{CLEAN_UP_PREFIX, Mode};
use stemma_wire::message::PartDigest;
use stemma_wire::message::desired::{Barrier, Profile};
use stemma_wire::message::observed::{self, Outcome, TaskResult};
use tokio::sync::watch;
use tokio::time::Instant;

use super::clean_ups;
use super::ledger::{Desired, HostObject, LOCAL_STATE, PROGRESS, REASONS, Reason, TaskProgress, TaskRecord};
use super::leftovers::{StagingDirs, directory, sweep};
use super::orphans::{self, LeftBatch};
use super::task::{Execution, HostTask, Site};
use crate::config::Ceiling;
use crate::host::command::truncate_front;
use crate::host::{HostError, HostPath, Pending};
use crate::watch::WatchScope;
use batch::TaskBatch;
use graph::{NextStep, TaskGraph};
pub use perform::AllowedAction;
use perform::{BatchPlace, PerformResult, RefreshOutcome, TaskCall, check_exclusively, perform};
use planned::{PlannedTask, Readiness, assign_paths, link_subscribers};
pub use planned::{is_marker, is_observed, is_topologically_sorted};
use refreshes::PendingRefreshes;

/// Maximum number of tasks that run at once. More tasks at once would not end sooner, because the host also has other
/// work.
const MAX_PARALLEL_TASKS: usize = 4;

/// Time for which further tasks that end belong to the same step of a run. Tasks of files block the thread, so the other
/// events of the agent (its watchdog and its network half) wait for the end of the step.
const MAX_STEP_DURATION: Duration = Duration::from_secs(10);

/// Number of mends (repairs of drift) within an hour that make a task contended: something else seems to change the
/// host back. The agent does not mend the task until one of these mends is older than an hour.
const MAX_MENDS_PER_HOUR: usize = 3;

/// Maximum output stored with a task's reason, in bytes. The reasons of 4096 tasks then still fit into one record of
/// the ledger (the agent's state on disk).
const MAX_REASON_OUTPUT_BYTES: usize = 1024;

/// Message of a task whose own mode is `observe`. Its outcome is `WouldChange`, as after a check, because older
/// controllers have no outcome for an observed task. From this outcome, hosts that wait for the task learn that it will
/// not run.
pub const OBSERVED_MESSAGE: &str = "its mode is observe: it is neither run nor checked";

/// The purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPurpose {
    /// Apply the tasks, as far as the mode of the host and of each task allows.
    Converge,
    /// Only check the tasks, and change nothing on the host.
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
    /// True as soon as the run must end.
    ending: watch::Sender<bool>,
    refreshes: PendingRefreshes,
    /// Directories in which the tasks may leave unfinished files if this process is killed.
    staging: Rc<StagingDirs>,
    last_progress: TaskProgress,
    new_records: BTreeMap<String, TaskRecord>,
    reasons: BTreeMap<String, Reason>,
    results: Vec<TaskResult>,
    /// Objects of tasks that succeeded, or failed after a change, until they are recorded on disk. They stay when the
    /// task leaves the task set.
    left_objects: LeftBatch,
    /// Ids of the clean-ups that succeeded, until this is recorded on disk.
    ended_clean_ups: BTreeSet<String>,
    /// Results that are stored in the ledger, but that [`Self::save_results`] has not returned yet because it failed
    /// afterwards.
    unreturned_results: Vec<TaskResult>,
    /// True if [`Self::save_results`] has something to store. This is true from the start, because tasks that are no
    /// longer in the profile must be removed from the stored progress.
    has_unsaved: bool,
}

/// The summary of a run: its size, and the outcomes so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSummary {
    /// Number of tasks, without markers and skipped or observed tasks.
    pub task_count: usize,
    /// Outcomes of the tasks that have ended, without markers.
    pub outcomes: Vec<Outcome>,
}

/// A task that is running.
struct RunningTask {
    index: usize,
    allowed: AllowedAction,
    future: Pending<'static, Option<PerformResult>>,
}

impl TaskRun {
    /// Plans the run of a task set. `profile` is the list of its tasks, and `ceiling` the task types that this host
    /// allows.
    ///
    /// For [`RunPurpose::Converge`], also records in the ledger which files sensitive tasks manage, and in mode `apply`
    /// removes unfinished files of a killed agent.
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
        let (mut vertices, mut tasks): (Vec<_>, Vec<_>) =
            profile.tasks.iter().map(|task| PlannedTask::from_profile(&site, ceiling, desired, task, mode)).unzip();
        // Only a run in mode `apply` changes which clean-ups are recorded.
        let clean_ups = match (purpose, mode) {
            (RunPurpose::Converge, Mode::Apply) => clean_ups::update(&site, desired, profile)?,
            _ => clean_ups::due(&site, desired, profile)?,
        };
        let clean_up_range = tasks.len()..tasks.len() + clean_ups.len();
        let mut clean_up_tasks = Vec::new();
        for clean_up in &clean_ups {
            let (vertex, planned) = PlannedTask::from_clean_up(&site, ceiling, clean_up, mode)?;
            vertices.push(vertex);
            clean_up_tasks.push(planned);
        }
        let mut graph = TaskGraph::new(vertices, MAX_PARALLEL_TASKS).with_clean_ups(clean_up_range);
        link_subscribers(&mut tasks, &mut graph);
        // A clean-up claims no path: it ends before other tasks begin, and they may write the same path again.
        assign_paths(&site, &mut tasks, &graph);
        tasks.append(&mut clean_up_tasks);
        let mut run = Self {
            site,
            task_set: desired.digest,
            purpose,
            mode,
            graph,
            tasks,
            running: Vec::new(),
            ending: watch::Sender::new(false),
            refreshes: PendingRefreshes::default(),
            staging: Rc::default(),
            last_progress,
            new_records: BTreeMap::new(),
            reasons,
            results: Vec::new(),
            left_objects: LeftBatch::default(),
            ended_clean_ups: BTreeSet::new(),
            unreturned_results: Vec::new(),
            has_unsaved: true,
        };
        if purpose == RunPurpose::Converge {
            run.site.memory.begin_run();
            // Recorded before any task writes, because the diffs and undo copies of all later tasks depend on it
            // (trust.md, rule 8).
            run.sensitive_files().try_for_each(|path| run.site.ledger.record_secret_path(&path))?;
            run.staging = Rc::new(run.staging_dirs());
            // In other modes the run changes nothing.
            if mode == Mode::Apply {
                sweep(&run.site, &run.staging)?;
                run.site.ledger.retain_reboot_requests(|task, content| run.runs_task(task, content))?;
            }
        }
        run.record_observed();
        Ok(run)
    }

    /// Returns whether this host runs a task with this id and content.
    fn runs_task(&self, id: &str, content: [u8; 32]) -> bool {
        let index = self.tasks.iter().position(|planned| planned.id == id && planned.content == content);
        index.is_some_and(|index| !self.graph.is_skipped(index) && !self.graph.is_observed(index))
    }

    /// Records a result for each observed task. Skips a task that already has a result in this task set, perhaps from
    /// an older agent. Does nothing if the whole host is in mode `observe`, because then no task has an outcome. Also
    /// does nothing for a check, which does not report observed tasks.
    fn record_observed(&mut self) {
        if self.purpose == RunPurpose::Check || self.mode == Mode::Observe {
            return;
        }
        let is_reported = |planned: &PlannedTask| {
            let last_record = self.last_progress.tasks.get(&planned.id);
            last_record.is_some_and(|last_record| last_record.task_set == self.task_set && last_record.content == planned.content)
        };
        let is_unreported = |task_index: &usize| self.graph.is_observed(*task_index) && !is_reported(&self.tasks[*task_index]);
        let observed: Vec<usize> = (0..self.tasks.len()).filter(is_unreported).collect();
        for task_index in observed {
            self.record_end(task_index, Execution::with_message(Outcome::WouldChange, OBSERVED_MESSAGE), AllowedAction::Check);
        }
    }

    /// Returns the directories in which this run may create unfinished files, each with the owners that tasks set.
    fn staging_dirs(&self) -> StagingDirs {
        let mut dirs = StagingDirs::new();
        for planned in &self.tasks {
            let Readiness::Runnable { applier, task, .. } = &planned.readiness else { continue };
            // Only `Check` matters here. It does not depend on the last parameter, whether the task was converged.
            if AllowedAction::for_mode(self.mode, task.task.mode, false) != AllowedAction::Check {
                for path in applier.managed_paths(&self.site, task) {
                    dirs.entry(directory(&path)).or_default().extend(applier.file_owner(&self.site, task));
                }
            }
        }
        dirs
    }

    /// Starts all tasks that may start now, and ends the tasks of which a requirement failed or is observed. `open` are
    /// the open barriers. Does nothing in mode `observe`, or if [`Self::is_stopped`].
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    fn start(&mut self, open: &BTreeSet<Barrier>) -> Result<(), HostError> {
        if self.mode == Mode::Observe || self.is_stopped()? {
            return Ok(());
        }
        let held_back = self.tasks_without_blob()?;
        while let Some(step) = self.graph.next_step(open, &held_back) {
            match step {
                NextStep::Stop { at: task_index, by } => {
                    let reason = format!("Not run: {}, which it requires, {}.", self.tasks[by].id, self.graph.outcome_text(by));
                    self.record_end(task_index, Execution::with_message(Outcome::DependencyFailed, reason), AllowedAction::Check);
                }
                NextStep::Start(task_index) => self.start_batch(task_index, open, &held_back)?,
            }
        }
        Ok(())
    }

    /// Returns whether a pause or park that was set on this host itself prevents tasks from starting. Returns `false`
    /// for a check, and if no task waits to start. The ledger is read before each start of tasks. So no task starts
    /// after the command `pause` has returned, even if the command could not notify the agent.
    fn is_stopped(&self) -> Result<bool, HostError> {
        if self.purpose == RunPurpose::Check || !self.graph.is_waiting() {
            return Ok(false);
        }
        let local = self.site.ledger.get(&LOCAL_STATE)?.unwrap_or_default();
        Ok(local.paused || local.parked.is_some())
    }

    /// Starts a task and, if one change can make several tasks together, the other tasks of that change that could start too.
    fn start_batch(&mut self, index: usize, open: &BTreeSet<Barrier>, held_back: &BTreeSet<usize>) -> Result<(), HostError> {
        let is_change = self.purpose == RunPurpose::Converge && self.mode == Mode::Apply;
        let key = if is_change { self.tasks[index].batch_key(&self.site) } else { None };
        let Some(key) = key else { return self.start_task(index, None) };
        let (site, tasks) = (&self.site, &self.tasks);
        let others = self.graph.start_together(open, held_back, |other| tasks[other].batch_key(site).as_ref() == Some(&key));
        let indexes: Vec<usize> = std::iter::once(index).chain(others).collect();
        if indexes.len() == 1 {
            return self.start_task(index, None);
        }
        let batch_tasks: Rc<[Rc<HostTask>]> = indexes.iter().filter_map(|index| self.tasks[*index].host_task()).collect();
        for (index, member) in indexes.into_iter().zip(TaskBatch::members(batch_tasks.len())) {
            self.start_task(index, Some((Rc::new(member), batch_tasks.clone())))?;
        }
        Ok(())
    }

    /// Starts a task with the action that is allowed for it now. Ends the task at once if it cannot run on this host. A
    /// started task makes progress only when [`Self::advance`] or [`Self::finish_running`] polls it.
    fn start_task(&mut self, index: usize, batch: Option<BatchPlace>) -> Result<(), HostError> {
        match &self.tasks[index].readiness {
            Readiness::Refused(outcome, reason) => {
                let execution = Execution::with_message(*outcome, reason.clone());
                self.graph.end(index, execution.outcome);
                self.record_end(index, execution, AllowedAction::Check);
            }
            Readiness::Runnable { applier, task, .. } => {
                // `Check` depends only on the modes, not on whether the task was converged (`false`).
                let is_check = AllowedAction::for_mode(self.mode, task.task.mode, false) == AllowedAction::Check;
                let would_refresh = self.would_refresh(index, is_check);
                let is_refresh = would_refresh || self.should_refresh(index)?;
                // A refresh is not a repair of drift, so the task counts as not converged.
                let action = match AllowedAction::for_mode(self.mode, task.task.mode, self.was_converged(index) && !is_refresh) {
                    AllowedAction::Mend if self.is_contended(index) => AllowedAction::Contended,
                    action => action,
                };
                let (site, applier, task) = (self.site.clone(), *applier, task.clone());
                let (refreshes, staging) = (self.tasks[index].refreshes.clone(), self.staging.clone());
                let ending = self.ending.subscribe();
                let call = TaskCall { allowed: action, is_refresh, subscribers: refreshes, batch, staging, ending };
                let future: Pending<'static, Option<PerformResult>> = match self.purpose {
                    RunPurpose::Converge => Box::pin(async move { perform(&site, applier, &task, &call).await }),
                    RunPurpose::Check => {
                        Box::pin(async move { check_exclusively(&site, applier, &task, call, would_refresh).await })
                    }
                };
                self.running.push(RunningTask { index, allowed: action, future });
            }
        }
        Ok(())
    }

    /// Returns whether the task is only checked (`is_check`) and a task that it subscribes to would change something.
    /// An apply would then run the task again.
    fn would_refresh(&self, task_index: usize, is_check: bool) -> bool {
        is_check && self.tasks[task_index].subscribes.iter().any(|subscribed_task| self.graph.would_task_change(*subscribed_task))
    }

    /// Returns whether a task that this task subscribes to has changed something since this task last
    /// succeeded.
    fn should_refresh(&self, task_index: usize) -> Result<bool, HostError> {
        let PlannedTask { id, subscribes, .. } = &self.tasks[task_index];
        Ok(!subscribes.is_empty() && self.site.ledger.should_refresh(id)?)
    }

    /// Returns whether the task last succeeded, or drifted, with the same content. A difference is then drift.
    fn was_converged(&self, task_index: usize) -> bool {
        let planned = &self.tasks[task_index];
        self.last_progress.tasks.get(&planned.id).is_some_and(|record| {
            record.content == planned.content
                && matches!(record.outcome, Outcome::Unchanged | Outcome::Changed | Outcome::Drifted)
        })
    }

    /// Returns the times of the last mends (repairs of drift) of the task with its present content, in seconds since
    /// 1970.
    fn recent_mends(&self, task_index: usize) -> &[u64] {
        let planned = &self.tasks[task_index];
        let record = self.last_progress.tasks.get(&planned.id).filter(|record| record.content == planned.content);
        record.map_or(&[], |record| &record.mends)
    }

    /// Returns whether the task was mended [`MAX_MENDS_PER_HOUR`] times or more within the last hour.
    fn is_contended(&self, task_index: usize) -> bool {
        let now = self.site.host.unix_seconds();
        // A time in the future was recorded before the clock was set back, so it is not counted. The range has 3600
        // seconds, because it includes the present one.
        let within_hour = |mended: &&u64| (now.saturating_sub(3600) + 1..=now).contains(*mended);
        self.recent_mends(task_index).iter().filter(within_hour).count() >= MAX_MENDS_PER_HOUR
    }

    /// Returns the paths whose changes are drift of the tasks of the profile, also of skipped and observed tasks. Tasks that
    /// cannot run on this host have none.
    pub fn watched_paths(&self) -> impl Iterator<Item = (HostPath, WatchScope)> {
        self.tasks.iter().flat_map(move |planned| match &planned.readiness {
            Readiness::Runnable { applier, task, .. } => applier.watched_paths(&self.site, task),
            Readiness::Refused(..) => Vec::new(),
        })
    }

    /// Returns the files that sensitive tasks manage. Tasks that cannot run on this host have none.
    fn sensitive_files(&self) -> impl Iterator<Item = HostPath> {
        self.tasks.iter().flat_map(move |planned| match &planned.readiness {
            Readiness::Runnable { applier, task, .. } if task.is_sensitive() => applier.managed_paths(&self.site, task),
            Readiness::Runnable { .. } | Readiness::Refused(..) => Vec::new(),
        })
    }

    /// Returns the tasks whose blob has not arrived yet.
    fn tasks_without_blob(&self) -> Result<BTreeSet<usize>, HostError> {
        let mut missing = BTreeSet::new();
        for (task_index, planned) in self.tasks.iter().enumerate() {
            let Readiness::Runnable { blobs, .. } = &planned.readiness else { continue };
            for hash in blobs {
                if !self.site.ledger.has_body(*hash)? {
                    missing.insert(task_index);
                    break;
                }
            }
        }
        Ok(missing)
    }

    /// Starts all tasks that may start and waits until one ends. Then records every task that has ended by now, and
    /// starts the tasks that may follow, for at most [`MAX_STEP_DURATION`]. Returns `false` at once if no task runs.
    /// Cancel safe: running tasks continue at the next call.
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    pub async fn advance(&mut self, open: &BTreeSet<Barrier>) -> Result<bool, HostError> {
        self.start(open)?;
        if self.running.is_empty() {
            return Ok(false);
        }
        poll_fn(|context| self.poll_ended(context)).await;
        let first_ended_at = Instant::now();
        loop {
            self.start(open)?;
            if first_ended_at.elapsed() >= MAX_STEP_DURATION {
                return Ok(true);
            }
            let has_ended = poll_fn(|context| Poll::Ready(self.poll_ended(context).is_ready())).await;
            if !has_ended {
                return Ok(true);
            }
        }
    }

    /// Waits until one running task ends, and records its end, but starts no other task. Returns `false` at once if no
    /// task runs. The run must end after this: a running task begins no change, and does not try one again.
    pub async fn finish_running(&mut self) -> bool {
        self.ending.send_replace(true);
        if self.running.is_empty() {
            return false;
        }
        poll_fn(|context| self.poll_ended(context)).await;
        true
    }

    /// Polls the running tasks, and records the end of the first task that has ended. Pending if none has ended.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for position in 0..self.running.len() {
            if let Poll::Ready(end) = self.running[position].future.as_mut().poll(context) {
                let RunningTask { index: task_index, allowed: allowed_action, .. } = self.running.remove(position);
                // The next run begins with a task that had to end before its change.
                let Some(end) = end else { return Poll::Ready(()) };
                match end {
                    PerformResult::Ended(execution, refresh_outcome) => {
                        if !execution.outcome.is_success() && matches!(refresh_outcome, RefreshOutcome::Changed) {
                            self.note_objects_of_failure(task_index);
                        }
                        self.cancel_refreshes(task_index, refresh_outcome);
                        self.graph.end(task_index, execution.outcome);
                        self.record_end(task_index, execution, allowed_action);
                    }
                    PerformResult::Deferred(refresh_outcome) => {
                        self.cancel_refreshes(task_index, refresh_outcome);
                        self.graph.defer(task_index);
                    }
                }
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Records the result of the refreshes of an ended task: its requests to run its subscribers again. If the task
    /// made no change, cancels in the ledger the requests that no other task relies on. If the cancellation fails, the
    /// subscribers only run once more than needed.
    fn cancel_refreshes(&mut self, task_index: usize, refresh_outcome: RefreshOutcome) {
        let running = self.running.iter().flat_map(|running| &self.tasks[running.index].refreshes);
        let cancelled = self.refreshes.end_task(&self.tasks[task_index].refreshes, refresh_outcome, &running.collect());
        if let Err(error) = self.site.ledger.clear_refresh(&cancelled) {
            warn!(error = error.sentence().as_str(); "tasks will run again for a change that was not made");
        }
    }

    /// Returns the objects that a task leaves on the host when the task is removed from the profile. Returns none for a task
    /// that is not in this task set.
    fn objects_left_by(&self, id: &str) -> BTreeSet<HostObject> {
        let task = self.tasks.iter().find(|planned| planned.id == id).and_then(PlannedTask::host_task);
        let objects = task.map(|task| orphans::left_objects(&self.site, &task)).unwrap_or_default();
        objects.into_iter().map(|object| object.key).collect()
    }

    /// Notes what a task left that has failed after it had changed something: its objects that exist now. Until
    /// [`Self::save_results`], they are only in memory.
    fn note_objects_of_failure(&mut self, task_index: usize) {
        let Readiness::Runnable { task, .. } = &self.tasks[task_index].readiness else { return };
        self.left_objects.add_where(&self.site, task, |object| orphans::may_exist(&self.site, object));
    }

    /// Records the end of a task in memory, until [`Self::save_results`] stores it: its reason and, if the result must
    /// be reported, its outcome, its mends, its written file and the result. A check adds the result of each task.
    fn record_end(&mut self, task_index: usize, execution: Execution, allowed_action: AllowedAction) {
        let mut mends = self.recent_mends(task_index).to_vec();
        if allowed_action == AllowedAction::Mend && execution.outcome == Outcome::Changed {
            mends.push(self.site.host.unix_seconds());
            mends.drain(..mends.len().saturating_sub(MAX_MENDS_PER_HOUR));
        }
        let planned = &self.tasks[task_index];
        let (content, outcome) = (planned.content, execution.outcome);
        let record = TaskRecord { task_set: self.task_set, content, outcome, mends };
        self.has_unsaved = true;
        let last_reason = self.reasons.remove(&planned.id);
        // The message of a stopped task names the task that stopped it. So a changed message is reported too.
        let has_stop_reason_changed =
            outcome == Outcome::DependencyFailed && last_reason.is_some_and(|reason| reason.message != execution.message);
        if !execution.message.is_empty() {
            let reason = Reason {
                message: execution.message.clone(),
                output: truncate_front(&execution.output, MAX_REASON_OUTPUT_BYTES).into_owned(),
            };
            self.reasons.insert(planned.id.clone(), reason);
        }
        let is_reportable = has_stop_reason_changed || should_report(self.last_progress.tasks.get(&planned.id), &record);
        let has_succeeded = allowed_action != AllowedAction::Check && outcome.is_success();
        if has_succeeded && planned.id.starts_with(CLEAN_UP_PREFIX) {
            self.ended_clean_ups.insert(planned.id.clone());
        }
        // The objects of an unchanged result are recorded already. Older agents recorded no objects, and
        // `orphans::fill_record` adds these.
        if is_reportable
            && has_succeeded
            && let Readiness::Runnable { task, .. } = &planned.readiness
        {
            self.left_objects.add(&self.site, task);
        }
        if self.purpose == RunPurpose::Check || is_reportable {
            self.new_records.insert(planned.id.clone(), record);
            self.results.push(TaskResult {
                // The ledger sets the number when it stores the result.
                sequence: 0,
                task_set: self.task_set,
                task: planned.id.clone(),
                outcome: execution.outcome,
                message: execution.message,
                output: execution.output,
                diff: execution.diff,
                duration_ms: execution.duration_ms,
            });
        }
    }

    /// Stores the written files, results, progress and reasons since the last call, without progress and reasons of
    /// tasks that left the profile. Returns the results to report, with their sequence numbers.
    ///
    /// # Errors
    /// [`HostError`]. The next call then stores and returns the results that this call could not store or return.
    pub fn save_results(&mut self) -> Result<Vec<TaskResult>, HostError> {
        if !self.left_objects.is_empty() {
            let mut left_by_task = BTreeMap::new();
            let is_still_left = |object: &HostObject, task: &str| {
                left_by_task.entry(task.to_owned()).or_insert_with(|| self.objects_left_by(task)).contains(object)
            };
            orphans::record_left(&self.site, &self.left_objects, is_still_left)?;
            self.left_objects = LeftBatch::default();
        }
        self.unreturned_results.extend(self.site.ledger.add_results(self.results.clone())?);
        self.results.clear();
        let mut progress = self.last_progress.clone();
        progress.tasks.retain(|id, _| self.tasks.iter().any(|planned| planned.id == *id));
        progress.tasks.extend(self.new_records.iter().map(|(id, record)| (id.clone(), record.clone())));
        self.site.ledger.put(&PROGRESS, &progress)?;
        // After a crash before this step, the next plan finds the success of the clean-up in the progress.
        clean_ups::finish(&self.site, &self.ended_clean_ups)?;
        self.ended_clean_ups.clear();
        self.reasons.retain(|id, _| progress.tasks.contains_key(id));
        // The record of reasons is created only when a reported result has a reason. So a mere upgrade of the agent
        // does not create this record.
        let has_new_reasons = !self.reasons.is_empty() && !self.new_records.is_empty();
        if has_new_reasons || self.site.ledger.get(&REASONS)?.is_some() {
            self.site.ledger.put(&REASONS, &self.reasons)?;
        }
        self.has_unsaved = false;
        Ok(std::mem::take(&mut self.unreturned_results))
    }

    /// Returns the results of all tasks that ended, and stores nothing. Used for [`RunPurpose::Check`].
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

    /// Returns the number of tasks of this run, and the outcomes of those that have ended so far.
    #[must_use]
    pub fn summary(&self) -> RunSummary {
        RunSummary { task_count: self.graph.task_count(), outcomes: self.graph.outcomes().collect() }
    }

    /// Returns whether the run has ended: no task runs, and no task waits that could still start.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.running.is_empty() && (self.mode == Mode::Observe || !self.graph.is_waiting())
    }

    /// Returns the progress of the host in this run, for its report.
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

/// Returns whether a result must be reported. The first result for a task set or content is reported, and each outcome
/// `Changed` or `Failed`. `Unchanged` is reported only after an outcome other than `Unchanged` and `Changed`. Any other
/// outcome is reported only if it differs from the last one that was reported.
fn should_report(last_record: Option<&TaskRecord>, new_record: &TaskRecord) -> bool {
    let Some(last_record) = last_record else { return true };
    if last_record.task_set != new_record.task_set || last_record.content != new_record.content {
        return true;
    }
    match new_record.outcome {
        Outcome::Changed | Outcome::Failed => true,
        Outcome::Unchanged => !last_record.outcome.is_success(),
        Outcome::WouldChange | Outcome::DependencyFailed | Outcome::Unsupported | Outcome::Unknown | Outcome::Drifted => {
            last_record.outcome != new_record.outcome
        }
    }
}

#[cfg(test)]
mod tests;
