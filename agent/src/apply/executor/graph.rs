//! Decides which task may start next, in the order of a profile on one host. Has no side effects.
//!
//! ```text
//! Waiting ──▶ Running ──▶ Ended(outcome)
//!    │           │            ▲
//!    │           └──▶ Deferred (until the next run)
//!    └─── requirement failed ─┘
//!
//! Skipped: final from the start, does not block dependants
//! Observed: final from the start, blocks dependants
//! ```
//!
//! A marker (`type: skipped`) never runs. It ends as soon as it could start, so its dependants wait for its
//! requirements.

use std::collections::BTreeSet;
use std::ops::Range;

use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::Outcome;

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Not started.
    Waiting,
    /// Started.
    Running,
    /// Has done what it can, and waits for an event on the host, such as a reboot. The next run starts it again.
    Deferred,
    /// Ended, with this outcome.
    Ended(Outcome),
    /// Does not run on this host, so dependants need not wait for the task.
    Skipped,
    /// Neither run nor checked, because the mode of the task is `observe`. Dependants do not run either.
    Observed,
}

/// A task in the graph of the tasks of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vertex {
    /// The task's state.
    pub state: TaskState,
    /// Indexes of the tasks that this task requires. It starts only after each of them has ended or is skipped. It does
    /// not run if one of them is observed or has failed, unless that failure is allowed.
    pub requires: Vec<usize>,
    /// Barriers that must be open before this task starts: tasks of other hosts that must have succeeded.
    pub barriers: Vec<Barrier>,
    /// True if no other task may run at the same time.
    pub is_exclusive: bool,
    /// True if the outcome `Failed` of the task does not block its dependants (`fail_on_error: false`).
    pub is_failure_allowed: bool,
    /// True if the task is of type `skipped`, which only marks a place in the order. It does nothing and has no result.
    pub is_marker: bool,
}

/// The next action of the executor, for one task. All numbers are indexes of tasks in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Start this task.
    Start(usize),
    /// End a task without running it, because a task that it requires failed, was itself stopped, or is observed.
    Stop {
        /// The task to end.
        at: usize,
        /// The cause: a task that failed or is observed. The task `at` requires it directly, or through other tasks
        /// that were stopped because of it.
        by: usize,
    },
}

/// The tasks of a host, with the order in which they may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskGraph {
    vertices: Vec<Vertex>,
    /// Maximum number of tasks that run at once.
    max_parallel: usize,
    /// Indexes of the clean-ups. They run first, one after the other, and all other tasks run after them, even if one of
    /// them failed.
    clean_ups: Range<usize>,
}

impl TaskGraph {
    /// Creates a graph that runs at most `max_parallel` tasks at once.
    #[must_use]
    pub const fn new(vertices: Vec<Vertex>, max_parallel: usize) -> Self {
        Self { vertices, max_parallel, clean_ups: 0..0 }
    }

    /// Makes the vertices with these indexes clean-ups: they run first, one after the other.
    #[must_use]
    pub fn with_clean_ups(self, clean_ups: Range<usize>) -> Self {
        Self { clean_ups, ..self }
    }

    /// Makes the task `later` require the task `earlier`. Does nothing if the graph already orders them the other way
    /// round.
    pub fn add_edge(&mut self, earlier: usize, later: usize) {
        if !self.vertices[later].requires.contains(&earlier) && !self.is_after(earlier, later) {
            self.vertices[later].requires.push(earlier);
        }
    }

    /// Returns whether the task `index` is the task `ancestor`, or requires that task directly or indirectly.
    fn is_after(&self, index: usize, ancestor: usize) -> bool {
        let mut visited = BTreeSet::from([index]);
        let mut queue = vec![index];
        while let Some(index) = queue.pop() {
            queue.extend(self.vertices[index].requires.iter().copied().filter(|requirement| visited.insert(*requirement)));
        }
        visited.contains(&ancestor)
    }

    /// Returns the next step, and records its task as running or ended. Returns `None` if no task can start or be
    /// stopped until a running task ends, a barrier opens or a blob arrives. Markers end here, and are not returned.
    /// `open` are the open barriers, and `held_back` the tasks that wait for a blob.
    pub fn next_step(&mut self, open: &BTreeSet<Barrier>, held_back: &BTreeSet<usize>) -> Option<NextStep> {
        loop {
            let next = (0..self.vertices.len()).find_map(|index| self.step_for(index, open, held_back))?;
            let (index, state) = match next {
                NextStep::Start(index) if self.vertices[index].is_marker => (index, TaskState::Ended(Outcome::Unchanged)),
                NextStep::Start(index) => (index, TaskState::Running),
                NextStep::Stop { at: index, .. } => (index, TaskState::Ended(Outcome::DependencyFailed)),
            };
            self.vertices[index].state = state;
            if !self.vertices[index].is_marker {
                return Some(next);
            }
        }
    }

    /// Records as running the waiting tasks that could start now if no other task ran, and for which `select` is true. Returns
    /// them. The caller runs them together with an exclusive task that it has started.
    pub fn start_together(
        &mut self,
        open: &BTreeSet<Barrier>,
        held_back: &BTreeSet<usize>,
        select: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let can_start = |index: &usize| {
            let vertex = &self.vertices[*index];
            vertex.state == TaskState::Waiting && vertex.is_exclusive && self.is_ready(*index, open, held_back)
        };
        let started: Vec<usize> = (0..self.vertices.len()).filter(can_start).filter(|index| select(*index)).collect();
        for index in &started {
            self.vertices[*index].state = TaskState::Running;
        }
        started
    }

    /// Returns the step for one task: `Stop` if a required task blocks its dependants, `Start` if nothing prevents the
    /// task from running, or `None` if the task must wait or has started already.
    fn step_for(&self, index: usize, open: &BTreeSet<Barrier>, held_back: &BTreeSet<usize>) -> Option<NextStep> {
        let vertex = &self.vertices[index];
        if vertex.state != TaskState::Waiting {
            return None;
        }
        if let Some(cause) = self.root_failure(index) {
            return Some(NextStep::Stop { at: index, by: cause });
        }
        let can_start = self.is_ready(index, open, held_back) && (vertex.is_marker || self.has_room(vertex.is_exclusive));
        can_start.then_some(NextStep::Start(index))
    }

    /// Returns whether a task has all that it waits for: its requirements, its barriers and its blob. None of its requirements
    /// prevents it from running.
    fn is_ready(&self, index: usize, open: &BTreeSet<Barrier>, held_back: &BTreeSet<usize>) -> bool {
        let vertex = &self.vertices[index];
        self.clean_ups.clone().take_while(|clean_up| *clean_up != index).all(|clean_up| self.is_over(clean_up))
            && vertex.requires.iter().all(|&requirement| self.is_over(requirement) && !self.blocks_dependants(requirement))
            && vertex.barriers.iter().all(|barrier| open.contains(barrier))
            && !held_back.contains(&index)
    }

    /// Returns whether one more task may run now. `is_exclusive` is true if that task may only run while no other task
    /// runs.
    fn has_room(&self, is_exclusive: bool) -> bool {
        let mut running = self.vertices.iter().filter(|vertex| vertex.state == TaskState::Running).peekable();
        if is_exclusive {
            return running.peek().is_none();
        }
        running.clone().count() < self.max_parallel && !running.any(|vertex| vertex.is_exclusive)
    }

    /// Returns the task that prevents the task `index` from running because it failed or is observed, or `None`. If a
    /// requirement was itself stopped, returns the task that stopped that requirement.
    fn root_failure(&self, index: usize) -> Option<usize> {
        let blocker = self.vertices[index].requires.iter().copied().find(|blocker| self.blocks_dependants(*blocker))?;
        match self.vertices[blocker].state {
            // If the task that stopped the requirement cannot be found, the requirement itself is returned.
            TaskState::Ended(Outcome::DependencyFailed) => self.root_failure(blocker).or(Some(blocker)),
            _ => Some(blocker),
        }
    }

    /// Returns whether tasks that require this task must not run, because it failed or is observed.
    /// `is_failure_allowed` allows only the outcome `Failed`, not `DependencyFailed`, `Unsupported` or `Unknown`.
    fn blocks_dependants(&self, index: usize) -> bool {
        match self.vertices[index].state {
            TaskState::Ended(Outcome::Failed) => !self.vertices[index].is_failure_allowed,
            TaskState::Ended(Outcome::DependencyFailed | Outcome::Unsupported | Outcome::Unknown) | TaskState::Observed => true,
            TaskState::Ended(Outcome::Unchanged | Outcome::Changed | Outcome::WouldChange | Outcome::Drifted)
            | TaskState::Waiting
            | TaskState::Running
            | TaskState::Deferred
            | TaskState::Skipped => false,
        }
    }

    /// Returns whether a task is skipped, because it does not run on this host.
    #[must_use]
    pub fn is_skipped(&self, index: usize) -> bool {
        self.vertices[index].state == TaskState::Skipped
    }

    /// Returns whether a task is neither run nor checked, because of its mode.
    #[must_use]
    pub fn is_observed(&self, index: usize) -> bool {
        self.vertices[index].state == TaskState::Observed
    }

    /// Returns whether tasks that require this task need not wait for it any longer: it has ended or will never run.
    fn is_over(&self, index: usize) -> bool {
        matches!(self.vertices[index].state, TaskState::Ended(_) | TaskState::Skipped | TaskState::Observed)
    }

    /// Records that a running task waits for an event on the host.
    pub fn defer(&mut self, index: usize) {
        self.vertices[index].state = TaskState::Deferred;
    }

    /// Records how a task ended.
    pub fn end(&mut self, index: usize, outcome: Outcome) {
        self.vertices[index].state = TaskState::Ended(outcome);
    }

    /// Returns the outcome of a task as words that follow its name.
    #[must_use]
    pub fn outcome_text(&self, index: usize) -> &'static str {
        match self.vertices[index].state {
            TaskState::Ended(Outcome::Failed) => "failed",
            TaskState::Ended(Outcome::Unsupported) => "cannot run on this host",
            TaskState::Ended(Outcome::Unknown) => "began and is not known to have ended",
            TaskState::Ended(Outcome::DependencyFailed) => "did not run",
            TaskState::Ended(Outcome::Unchanged | Outcome::Changed | Outcome::WouldChange | Outcome::Drifted) => "has ended",
            TaskState::Observed => "is neither run nor checked, since its mode is observe",
            TaskState::Waiting | TaskState::Running | TaskState::Deferred | TaskState::Skipped => "has not ended",
        }
    }

    /// Returns whether a task was only checked, and applying it would change something.
    #[must_use]
    pub fn would_task_change(&self, index: usize) -> bool {
        self.vertices[index].state == TaskState::Ended(Outcome::WouldChange)
    }

    /// Returns the number of tasks to run, without markers and skipped or observed tasks.
    #[must_use]
    pub fn task_count(&self) -> usize {
        let runs = |vertex: &&Vertex| !matches!(vertex.state, TaskState::Skipped | TaskState::Observed);
        self.vertices.iter().filter(|vertex| !vertex.is_marker).filter(runs).count()
    }

    /// Returns the outcomes of the tasks that have ended, without those of markers.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.vertices.iter().filter(|vertex| !vertex.is_marker).filter_map(|vertex| match vertex.state {
            TaskState::Ended(outcome) => Some(outcome),
            TaskState::Waiting | TaskState::Running | TaskState::Deferred | TaskState::Skipped | TaskState::Observed => None,
        })
    }

    /// Returns whether any task other than a marker is still to be started, stopped or continued.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let is_pending = |state| matches!(state, TaskState::Waiting | TaskState::Deferred);
        self.vertices.iter().any(|vertex| is_pending(vertex.state) && !vertex.is_marker)
    }

    /// Returns whether any task was only checked, and applying it would change something.
    #[must_use]
    pub fn would_change(&self) -> bool {
        (0..self.vertices.len()).any(|index| self.would_task_change(index))
    }

    /// Returns whether any task failed (even if that is allowed), was stopped, is unsupported or has an unknown
    /// outcome. Markers are ignored, because a stopped marker is only an effect of another task.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.outcomes().any(Outcome::is_failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the message of a stopped task, the text of the outcome follows the name of the task that stopped it.
    #[test]
    fn y09_outcome_text_explains_stop_of_dependants() {
        let vertex = |outcome| Vertex { state: TaskState::Ended(outcome), ..vertex(&[]) };
        for (outcome, text) in [
            (Outcome::Failed, "failed"),
            (Outcome::Unsupported, "cannot run on this host"),
            (Outcome::Unknown, "began and is not known to have ended"),
            (Outcome::DependencyFailed, "did not run"),
        ] {
            assert_eq!(TaskGraph::new(vec![vertex(outcome)], 1).outcome_text(0), text);
        }
    }

    /// Returns a waiting task that requires the tasks with these indexes.
    fn vertex(requires: &[usize]) -> Vertex {
        Vertex {
            state: TaskState::Waiting,
            requires: requires.to_vec(),
            barriers: Vec::new(),
            is_exclusive: false,
            is_failure_allowed: false,
            is_marker: false,
        }
    }

    /// Returns all steps that are possible now, and records them in the graph. No task of these tests waits for a blob.
    fn steps(graph: &mut TaskGraph, open: &BTreeSet<Barrier>) -> Vec<NextStep> {
        std::iter::from_fn(|| graph.next_step(open, &BTreeSet::new())).collect()
    }

    #[test]
    fn graph_stops_only_dependants_when_task_fails() {
        use NextStep::{Start, Stop};
        let mut graph = TaskGraph::new(vec![vertex(&[]), vertex(&[0]), vertex(&[1]), vertex(&[])], 4);
        let no_barriers = BTreeSet::new();
        assert_eq!(steps(&mut graph, &no_barriers), [Start(0), Start(3)]);
        graph.end(0, Outcome::Failed);
        assert_eq!(
            steps(&mut graph, &no_barriers),
            [Stop { at: 1, by: 0 }, Stop { at: 2, by: 0 }],
            "each step names the task that failed"
        );
        assert!(graph.vertices[3].state == TaskState::Running && !graph.is_waiting() && graph.has_failed());
    }

    #[test]
    fn dependant_stops_when_requirement_failed_unless_allowed() {
        for (outcome, may_fail, is_stopped) in [
            (Outcome::Unchanged, false, false),
            (Outcome::Changed, false, false),
            (Outcome::WouldChange, false, false),
            (Outcome::Drifted, false, false),
            (Outcome::Failed, false, true),
            (Outcome::Failed, true, false),
            (Outcome::DependencyFailed, false, true),
            (Outcome::Unsupported, true, true),
            (Outcome::Unknown, false, true),
        ] {
            let requirement = Vertex { state: TaskState::Ended(outcome), is_failure_allowed: may_fail, ..vertex(&[]) };
            let mut graph = TaskGraph::new(vec![requirement, vertex(&[0])], 1);
            let expected_step = if is_stopped { NextStep::Stop { at: 1, by: 0 } } else { NextStep::Start(1) };
            assert_eq!(graph.next_step(&BTreeSet::new(), &BTreeSet::new()), Some(expected_step), "{outcome:?} {may_fail}");
        }
    }

    #[test]
    fn graph_waits_for_barrier_but_not_for_skipped_task() {
        let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
        let task_with_barrier = Vertex { barriers: vec![barrier.clone()], ..vertex(&[1]) };
        let mut graph = TaskGraph::new(vec![task_with_barrier, Vertex { state: TaskState::Skipped, ..vertex(&[]) }], 4);
        graph.vertices[0].requires = vec![1];
        assert_eq!(steps(&mut graph, &BTreeSet::new()), []);
        assert_eq!(steps(&mut graph, &BTreeSet::from([barrier])), [NextStep::Start(0)]);
    }

    /// Regression test: a task that required a marker started at once, although the marker itself required another
    /// marker and a barrier. The graph has a task, two markers and a last task. Each of these requires the one before
    /// it, and the second marker also has a barrier.
    #[test]
    fn y06_marker_orders_tasks_before_and_after() {
        let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
        let marker = |requires: &[usize]| Vertex { is_marker: true, ..vertex(requires) };
        let marker_with_barrier = Vertex { barriers: vec![barrier.clone()], ..marker(&[1]) };
        let open = BTreeSet::from([barrier]);
        let start_last_task = NextStep::Start(3);
        // The outcome of the first task (`None` while it runs), whether its failure is allowed, the open barriers, and
        // the next step.
        for (outcome, may_fail, open, next) in [
            (None, false, &open, None),
            (Some(Outcome::Unchanged), false, &open, Some(start_last_task)),
            (Some(Outcome::Changed), false, &BTreeSet::new(), None),
            (Some(Outcome::Failed), true, &open, Some(start_last_task)),
            (Some(Outcome::Failed), false, &BTreeSet::new(), Some(NextStep::Stop { at: 3, by: 0 })),
            (Some(Outcome::Unknown), false, &open, Some(NextStep::Stop { at: 3, by: 0 })),
        ] {
            let first_task = Vertex {
                state: outcome.map_or(TaskState::Running, TaskState::Ended),
                is_failure_allowed: may_fail,
                ..vertex(&[])
            };
            let mut graph = TaskGraph::new(vec![first_task, marker(&[0]), marker_with_barrier.clone(), vertex(&[2])], 1);
            let no_held_back_tasks = BTreeSet::new();
            assert_eq!(graph.next_step(open, &no_held_back_tasks), next, "{outcome:?} {may_fail} {open:?}");
            assert_eq!(graph.is_waiting(), next.is_none(), "{outcome:?}: only the task after the markers counts as waiting");
        }
        // A marker that waits for a barrier does not count as waiting.
        let mut single_marker = TaskGraph::new(vec![Vertex { requires: Vec::new(), ..marker_with_barrier }], 1);
        assert_eq!((single_marker.next_step(&BTreeSet::new(), &BTreeSet::new()), single_marker.is_waiting()), (None, false));
    }

    /// Regression test: if the last task was a marker that required an observed task, the host reported `failed`,
    /// although its controllers showed `converged`. The graph has a first task, another task, a marker that requires
    /// both, and a last task that requires the marker.
    #[test]
    fn y06_marker_blocks_dependants_without_failing_when_requirement_is_observed() {
        let marker = |requires: &[usize]| Vertex { is_marker: true, ..vertex(requires) };
        let stop_last_task = Some(NextStep::Stop { at: 3, by: 0 });
        for (state, last_task, expected_step, has_failed) in [
            (TaskState::Observed, marker(&[2]), None, false),
            (TaskState::Observed, vertex(&[2]), stop_last_task, true),
            (TaskState::Ended(Outcome::Failed), marker(&[2]), None, true),
            (TaskState::Ended(Outcome::Unsupported), marker(&[2]), None, true),
            (TaskState::Ended(Outcome::Changed), marker(&[2]), None, false),
            (TaskState::Ended(Outcome::Changed), vertex(&[2]), Some(NextStep::Start(3)), false),
        ] {
            let first_task = Vertex { state, ..vertex(&[]) };
            let other_task = Vertex { state: TaskState::Ended(Outcome::Changed), ..vertex(&[]) };
            let mut graph = TaskGraph::new(vec![first_task, other_task, marker(&[0, 1]), last_task], 1);
            assert_eq!(graph.next_step(&BTreeSet::new(), &BTreeSet::new()), expected_step, "{state:?}");
            assert_eq!((graph.has_failed(), graph.is_waiting()), (has_failed, false), "{state:?}");
        }
    }

    #[test]
    fn graph_respects_max_parallel_and_exclusive() {
        use NextStep::Start;
        let exclusive_task = Vertex { is_exclusive: true, ..vertex(&[]) };
        let mut graph = TaskGraph::new(vec![vertex(&[]), exclusive_task, vertex(&[]), vertex(&[])], 2);
        let no_barriers = BTreeSet::new();
        assert_eq!(steps(&mut graph, &no_barriers), [Start(0), Start(2)]);
        graph.end(0, Outcome::Changed);
        graph.end(2, Outcome::Changed);
        assert_eq!(steps(&mut graph, &no_barriers), [Start(1)]);
        graph.end(1, Outcome::Changed);
        assert_eq!(steps(&mut graph, &no_barriers), [Start(3)]);
    }
}
