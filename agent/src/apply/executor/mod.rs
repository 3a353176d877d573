//! The executor: a profile's graph, in order, as parallel as it allows.
//!
//! It takes a task set and works it off; it is never told what changed. A restart, a look for drift and the first
//! deployment are the same run: what is so already costs a check.

pub mod graph;
pub mod perform;
mod planned;
mod wishes;

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use log::warn;
use stemma_core::task::Mode;
use stemma_wire::message::PartDigest;
use stemma_wire::message::desired::{Barrier, Profile};
use stemma_wire::message::observed::{self, Outcome, TaskResult};

use super::ledger::{Desired, LOCAL, PROGRESS, Performed, Progress, REASONS, Reason};
use super::leftovers::{StagingDirs, directory, sweep};
use super::orphans::{self, Written};
use super::task::{Execution, HostTask, Site};
use crate::config::Ceiling;
use crate::host::command::end_of;
use crate::host::{HostError, HostPath, Pending};
use graph::{Graph, Move};
pub use perform::Permitted;
use perform::{Asked, Call, look, perform};
use planned::{Planned, Readiness, give_paths, subscribe};
pub use planned::{is_in_order, is_marker, is_observed};
use wishes::Wishes;

/// Tasks at once. More would not be faster on a host that has its own work to do.
const WIDTH: usize = 4;

/// After so many mends of a task within an hour it is contended.
const MENDS: usize = 3;

/// How much of an output is kept beside a task's reason, in bytes: with 4096 tasks, a record of the ledger still takes all.
const REASON_OUTPUT: usize = 1024;

/// The message of a task that is neither run nor checked. Its outcome is that of one that was only checked: an older controller knows no other
/// for it, and others that wait for it are told that they wait in vain.
pub const OBSERVED: &str = "its mode is observe: it is neither run nor checked";

/// What a run may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Make the host so, as far as its mode allows.
    Converge,
    /// Look alone.
    Check,
}

/// A task set that is being worked off.
pub struct Run {
    site: Site,
    task_set: PartDigest,
    purpose: Purpose,
    mode: Mode,
    graph: Graph,
    tasks: Vec<Planned>,
    running: Vec<Running>,
    wishes: Wishes,
    /// Where its tasks may leave something unfinished when this process is killed.
    staging: Rc<StagingDirs>,
    before: Progress,
    ended: BTreeMap<String, Performed>,
    reasons: BTreeMap<String, Reason>,
    results: Vec<TaskResult>,
    /// The files that its tasks have written, or found as they write them.
    written: Written,
    /// Kept, and not told yet.
    numbered: Vec<TaskResult>,
    /// Whether something is to be written down; at first that the run has begun.
    unsettled: bool,
}

/// How far a run has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// How many tasks it has: neither places in the order nor what is left out or only observed.
    pub tasks: usize,
    /// How those ended that have.
    pub ended: Vec<Outcome>,
}

/// A task that has begun.
struct Running {
    at: usize,
    permitted: Permitted,
    future: Pending<'static, (Execution, Asked)>,
}

impl Run {
    /// Plans a run of a task set over its profile.
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    pub fn plan(
        site: Site,
        ceiling: &Ceiling,
        desired: &Desired,
        profile: &Profile,
        purpose: Purpose,
    ) -> Result<Self, HostError> {
        let mode = match purpose {
            Purpose::Converge => desired.mode(),
            Purpose::Check => Mode::Noop,
        };
        let before = site.ledger.get(&PROGRESS)?.unwrap_or_default();
        let reasons = site.ledger.get(&REASONS)?.unwrap_or_default();
        let (vertices, mut tasks): (_, Vec<_>) =
            profile.tasks.iter().map(|task| Planned::read(&site, ceiling, desired, task, mode)).unzip();
        let mut graph = Graph::new(vertices, WIDTH);
        subscribe(&mut tasks, &mut graph);
        give_paths(&site, &mut tasks, &graph);
        let mut run = Self {
            site,
            task_set: desired.digest,
            purpose,
            mode,
            graph,
            tasks,
            running: Vec::new(),
            wishes: Wishes::default(),
            staging: Rc::default(),
            before,
            ended: BTreeMap::new(),
            reasons,
            results: Vec::new(),
            written: Written::new(),
            numbered: Vec::new(),
            unsettled: true,
        };
        if purpose == Purpose::Converge {
            // Before any of them writes: the diff and the undo copy of what comes after it are withheld by that (trust.md, rule 8).
            run.kept_files(HostTask::is_sensitive).try_for_each(|path| run.site.ledger.note_secret_path(&path))?;
            run.staging = Rc::new(run.staging_dirs());
            // Where a run only looks, it changes nothing.
            if mode == Mode::Apply {
                sweep(&run.site, &run.staging)?;
            }
        }
        run.note_observed();
        Ok(run)
    }

    /// Takes down which tasks are neither run nor checked, once for each task set: what an older agent told of them stays. A host in mode
    /// `observe` begins no task, so none has an outcome there, and a look tells nothing of these.
    fn note_observed(&mut self) {
        if self.purpose == Purpose::Check || self.mode == Mode::Observe {
            return;
        }
        let is_told = |planned: &Planned| {
            let last = self.before.tasks.get(&planned.id);
            last.is_some_and(|last| last.task_set == self.task_set && last.content == planned.content)
        };
        let is_due = |at: &usize| self.graph.is_observed(*at) && !is_told(&self.tasks[*at]);
        let observed: Vec<usize> = (0..self.tasks.len()).filter(is_due).collect();
        for at in observed {
            self.note(at, Execution::because(Outcome::WouldChange, OBSERVED), Permitted::Check);
        }
    }

    /// The directories in which this run may put files together.
    fn staging_dirs(&self) -> StagingDirs {
        let mut dirs = StagingDirs::new();
        for planned in &self.tasks {
            let Readiness::Runnable { applier, task, .. } = &planned.kind else { continue };
            if Permitted::of(self.mode, task.task.mode, false) != Permitted::Check
                && let Some(path) = applier.keeps(&self.site, task)
            {
                dirs.entry(directory(&path)).or_default().extend(applier.gives_to(&self.site, task));
            }
        }
        dirs
    }

    /// Starts all that may start now. Nothing starts in mode `observe`.
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    fn start(&mut self, open: &BTreeSet<Barrier>) -> Result<(), HostError> {
        if self.mode == Mode::Observe || self.is_stopped()? {
            return Ok(());
        }
        let held_back = self.without_blob()?;
        while let Some(next) = self.graph.next_move(open, &held_back) {
            match next {
                Move::Stop { at, by } => {
                    let why = format!("Not run: {}, which it requires, {}.", self.tasks[by].id, self.graph.became(by));
                    self.note(at, Execution::because(Outcome::DependencyFailed, why), Permitted::Check);
                }
                Move::Start(at) => self.start_one(at)?,
            }
        }
        Ok(())
    }

    /// Whether this host was paused or parked meanwhile, which stops no look. It is read before each task: once `pause` has ended, none begins,
    /// also where nobody was woken by it.
    fn is_stopped(&self) -> Result<bool, HostError> {
        if self.purpose == Purpose::Check || !self.graph.is_waiting() {
            return Ok(false);
        }
        let local = self.site.ledger.get(&LOCAL)?.unwrap_or_default();
        Ok(local.paused || local.parked.is_some())
    }

    fn start_one(&mut self, at: usize) -> Result<(), HostError> {
        match &self.tasks[at].kind {
            Readiness::Refused(outcome, why) => {
                let ended = Execution::because(*outcome, why.clone());
                self.graph.end(at, ended.outcome);
                self.note(at, ended, Permitted::Check);
            }
            Readiness::Runnable { applier, task, .. } => {
                let looks = Permitted::of(self.mode, task.task.mode, false) == Permitted::Check;
                let would_refresh = self.would_refresh(at, looks);
                let refresh = would_refresh || self.is_to_refresh(at)?;
                let permitted = match Permitted::of(self.mode, task.task.mode, self.was_well(at) && !refresh) {
                    Permitted::Mend if self.is_contended(at) => Permitted::Contended,
                    permitted => permitted,
                };
                let (site, applier, task) = (self.site.clone(), *applier, task.clone());
                let (refreshes, staging) = (self.tasks[at].refreshes.clone(), self.staging.clone());
                let call = Call { permitted, refresh, refreshes, staging };
                let future: Pending<'static, (Execution, Asked)> = match self.purpose {
                    Purpose::Converge => Box::pin(async move { perform(&site, applier, &task, &call).await }),
                    Purpose::Check => Box::pin(async move { look(&site, applier, &task, call, would_refresh).await }),
                };
                self.running.push(Running { at, permitted, future });
            }
        }
        Ok(())
    }

    /// Whether a task that this one subscribes to would change something, in a look.
    fn would_refresh(&self, at: usize, looks: bool) -> bool {
        looks && self.tasks[at].subscribes.iter().any(|before| self.graph.is_to_change(*before))
    }

    /// Whether a task that this one subscribes to has changed something since it last succeeded.
    fn is_to_refresh(&self, at: usize) -> Result<bool, HostError> {
        let Planned { id, subscribes, .. } = &self.tasks[at];
        Ok(!subscribes.is_empty() && self.site.ledger.is_to_refresh(id)?)
    }

    /// Whether the host was as this task wants it, with this very content: then a difference is drift.
    fn was_well(&self, at: usize) -> bool {
        let planned = &self.tasks[at];
        self.before.tasks.get(&planned.id).is_some_and(|performed| {
            performed.content == planned.content
                && matches!(performed.outcome, Outcome::Unchanged | Outcome::Changed | Outcome::Drifted)
        })
    }

    /// When this content was mended before.
    fn mends(&self, at: usize) -> &[u64] {
        let planned = &self.tasks[at];
        let before = self.before.tasks.get(&planned.id).filter(|performed| performed.content == planned.content);
        before.map_or(&[], |performed| &performed.mends)
    }

    /// Whether it was mended so often within an hour that one more would not last either.
    fn is_contended(&self, at: usize) -> bool {
        let now = self.site.host.unix_seconds();
        // One that lies ahead was noted before the clock was set back: it says nothing of this hour.
        let of_this_hour = |mended: &&u64| (now.saturating_sub(3600) + 1..=now).contains(*mended);
        self.mends(at).iter().filter(of_this_hour).count() >= MENDS
    }

    /// The files that its tasks keep.
    pub fn files(&self) -> impl Iterator<Item = HostPath> {
        self.kept_files(|_| true)
    }

    fn kept_files(&self, of: fn(&HostTask) -> bool) -> impl Iterator<Item = HostPath> {
        self.tasks.iter().filter_map(move |planned| match &planned.kind {
            Readiness::Runnable { applier, task, .. } if of(task) => applier.keeps(&self.site, task),
            Readiness::Runnable { .. } | Readiness::Refused(..) => None,
        })
    }

    /// Tasks whose blob is still on its way.
    fn without_blob(&self) -> Result<BTreeSet<usize>, HostError> {
        let mut missing = BTreeSet::new();
        for (at, planned) in self.tasks.iter().enumerate() {
            if let Readiness::Runnable { blob: Some(hash), .. } = &planned.kind
                && !self.site.ledger.has_body(*hash)?
            {
                missing.insert(at);
            }
        }
        Ok(missing)
    }

    /// Starts what may start, waits until a task ends, and takes along what ends without waiting. `false` at once
    /// when nothing runs. Safe to cancel: what has begun goes on at the next call.
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    pub async fn work(&mut self, open: &BTreeSet<Barrier>) -> Result<bool, HostError> {
        self.start(open)?;
        if self.running.is_empty() {
            return Ok(false);
        }
        poll_fn(|context| self.poll_ended(context)).await;
        loop {
            self.start(open)?;
            let more = poll_fn(|context| Poll::Ready(self.poll_ended(context).is_ready())).await;
            if !more {
                return Ok(true);
            }
        }
    }

    /// As [`Self::work`], for a run that was replaced: what runs ends, and nothing more begins.
    pub async fn run_out(&mut self) -> bool {
        if self.running.is_empty() {
            return false;
        }
        poll_fn(|context| self.poll_ended(context)).await;
        true
    }

    /// One running task that has ended.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for place in 0..self.running.len() {
            if let Poll::Ready((ended, asked)) = self.running[place].future.as_mut().poll(context) {
                let Running { at, permitted, .. } = self.running.remove(place);
                self.take_back_wishes(at, asked);
                self.graph.end(at, ended.outcome);
                self.note(at, ended, permitted);
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Takes back what tasks have asked of others for changes that were not made. A crash before this only makes those run once more.
    fn take_back_wishes(&mut self, at: usize, asked: Asked) {
        let running = self.running.iter().flat_map(|running| &self.tasks[running.at].refreshes);
        let idle = self.wishes.end(&self.tasks[at].refreshes, asked, &running.collect());
        if let Err(error) = self.site.ledger.refreshed(&idle) {
            warn!(error = error.sentence().as_str(); "tasks will run again for a change that was not made");
        }
    }

    /// The file that a task leaves where it stands when it is gone.
    fn left_by(&self, planned: &Planned) -> Option<String> {
        let Readiness::Runnable { task, .. } = &planned.kind else { return None };
        orphans::left_by(&self.site, task).map(|path| path.to_string())
    }

    /// Takes down how a task ended, and whether that is news.
    fn note(&mut self, at: usize, ended: Execution, permitted: Permitted) {
        let mut mends = self.mends(at).to_vec();
        if permitted == Permitted::Mend && ended.outcome == Outcome::Changed {
            mends.push(self.site.host.unix_seconds());
            mends.drain(..mends.len().saturating_sub(MENDS));
        }
        let planned = &self.tasks[at];
        let (content, outcome) = (planned.content, ended.outcome);
        let performed = Performed { task_set: self.task_set, content, outcome, mends };
        self.unsettled = true;
        let told = self.reasons.remove(&planned.id);
        let stopped_by_another =
            outcome == Outcome::DependencyFailed && told.is_some_and(|told| told.message != ended.message);
        if !ended.message.is_empty() {
            let reason =
                Reason { message: ended.message.clone(), output: end_of(&ended.output, REASON_OUTPUT).into_owned() };
            self.reasons.insert(planned.id.clone(), reason);
        }
        let is_news = stopped_by_another || is_news(self.before.tasks.get(&planned.id), &performed);
        // What is no news was noted when it was; where an older agent noted nothing, `orphans::fill` does.
        if is_news
            && permitted != Permitted::Check
            && outcome.is_success()
            && let Some(path) = self.left_by(planned)
        {
            self.written.entry(path).or_insert_with(|| planned.id.clone());
        }
        if self.purpose == Purpose::Check || is_news {
            self.ended.insert(planned.id.clone(), performed);
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

    /// Writes down what has ended since the last call, and gives what is news, numbered.
    ///
    /// # Errors
    /// [`HostError`]; the same is then written by the next call.
    pub fn settle(&mut self) -> Result<Vec<TaskResult>, HostError> {
        if !self.written.is_empty() {
            let keeps = |path: &str, task: &str| {
                let is_it = |planned: &&Planned| planned.id == task;
                self.tasks.iter().find(is_it).and_then(|planned| self.left_by(planned)).is_some_and(|left| left == path)
            };
            orphans::note(&self.site, &self.written, keeps)?;
            self.written.clear();
        }
        self.numbered.extend(self.site.ledger.add_results(self.results.clone())?);
        self.results.clear();
        let mut progress = self.before.clone();
        progress.tasks.retain(|id, _| self.tasks.iter().any(|planned| planned.id == *id));
        progress.tasks.extend(self.ended.iter().map(|(id, performed)| (id.clone(), performed.clone())));
        self.site.ledger.put(&PROGRESS, &progress)?;
        self.reasons.retain(|id, _| progress.tasks.contains_key(id));
        // An upgrade makes no such record: a host has none where no task ever failed, nor where one fails as it did before there were any.
        let has_more_to_say = !self.reasons.is_empty() && !self.ended.is_empty();
        if has_more_to_say || self.site.ledger.get(&REASONS)?.is_some() {
            self.site.ledger.put(&REASONS, &self.reasons)?;
        }
        self.unsettled = false;
        Ok(std::mem::take(&mut self.numbered))
    }

    /// How every task ended that has: what a [`Purpose::Check`] is for. Nothing is written down.
    #[must_use]
    pub fn into_results(self) -> Vec<TaskResult> {
        self.results
    }

    /// Whether [`Self::settle`] has something to write down.
    #[must_use]
    pub const fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Whether something runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// The tasks that run.
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.running.iter().map(move |running| self.tasks[running.at].id.as_str())
    }

    /// How far it has come.
    #[must_use]
    pub fn course(&self) -> Course {
        Course { tasks: self.graph.tasks(), ended: self.graph.ended().collect() }
    }

    /// Whether there is nothing more to do in it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.running.is_empty() && (self.mode == Mode::Observe || !self.graph.is_waiting())
    }

    /// Where the host stands with it.
    #[must_use]
    pub fn progress(&self) -> observed::Progress {
        if !self.running.is_empty() {
            observed::Progress::Running
        } else if self.graph.has_failed() {
            observed::Progress::Failed
        } else if self.mode == Mode::Observe || (self.mode == Mode::Noop && self.graph.would_change()) {
            // Nothing was made so, and nothing failed.
            observed::Progress::Idle
        } else if self.graph.is_waiting() {
            observed::Progress::Waiting
        } else {
            observed::Progress::Converged
        }
    }
}

/// Whether a result is told: once for each task set, and when it differs from the last one told.
fn is_news(last: Option<&Performed>, now: &Performed) -> bool {
    let Some(last) = last else { return true };
    if last.task_set != now.task_set || last.content != now.content {
        return true;
    }
    match now.outcome {
        Outcome::Changed | Outcome::Failed => true,
        Outcome::Unchanged => !last.outcome.is_success(),
        Outcome::WouldChange
        | Outcome::DependencyFailed
        | Outcome::Unsupported
        | Outcome::Unknown
        | Outcome::Drifted => last.outcome != now.outcome,
    }
}

#[cfg(test)]
mod tests;
