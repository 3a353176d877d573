//! Decides which task may start next, in the order of a profile on one host. Has no side effects.
//!
//! ```text
//! Waiting ──▶ Running ──▶ Ended(outcome)
//!    │                        ▲
//!    └─── requirement failed ─┘
//!
//! Skipped: final from the start, does not block dependants
//! Observed: final from the start, blocks dependants
//! ```
//!
//! A marker (`type: skipped`) never runs. It ends as soon as it could start, so its dependants wait for its
//! requirements.

use std::collections::BTreeSet;

use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::Outcome;

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Not started.
    Waiting,
    /// Started.
    Running,
    /// Ended, with this outcome.
    Ended(Outcome),
    /// Does not run on this host. Dependants need not wait for it.
    Skipped,
    /// Neither run nor checked, because of its mode. Dependants do not run either.
    Observed,
}

/// A task in the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vertex {
    /// The task's state.
    pub state: TaskState,
    /// Indexes of the tasks that must end well before this one starts.
    pub requires: Vec<usize>,
    /// Barriers that must be open before this task starts.
    pub barriers: Vec<Barrier>,
    /// True if no other task may run at the same time.
    pub exclusive: bool,
    /// True if a failure of the task does not block its dependants (`fail_on_error: false`).
    pub failure_allowed: bool,
    /// True if the task only marks a place in the order. It does nothing and has no result.
    pub is_marker: bool,
}

/// What the executor must do next with one task. The numbers are indexes of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Start this task.
    Start(usize),
    /// End this task without running it, because a requirement did not end well.
    Stop {
        /// The task to end.
        at: usize,
        /// The task that did not end well at the root of the chain of requirements.
        by: usize,
    },
}

/// The tasks of a host, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskGraph {
    vertices: Vec<Vertex>,
    /// Maximum number of tasks that run at once.
    max_parallel: usize,
}

impl TaskGraph {
    /// Creates a graph that runs at most `max_parallel` tasks at once.
    #[must_use]
    pub const fn new(vertices: Vec<Vertex>, max_parallel: usize) -> Self {
        Self { vertices, max_parallel }
    }

    /// Orders a task after another, unless the reverse order exists already.
    pub fn add_edge(&mut self, before: usize, at: usize) {
        if !self.vertices[at].requires.contains(&before) && !self.is_after(before, at) {
            self.vertices[at].requires.push(before);
        }
    }

    /// Returns whether a task is the other one, or depends on it directly or indirectly.
    fn is_after(&self, at: usize, ancestor: usize) -> bool {
        let mut seen = BTreeSet::from([at]);
        let mut next = vec![at];
        while let Some(at) = next.pop() {
            next.extend(self.vertices[at].requires.iter().copied().filter(|before| seen.insert(*before)));
        }
        seen.contains(&ancestor)
    }

    /// Returns the next step and records its task as running or ended. Returns `None` if no task can start or be
    /// stopped until a running task ends, a barrier opens or a blob arrives. `held_back` are the tasks that wait for a
    /// blob.
    pub fn next_step(&mut self, open: &BTreeSet<Barrier>, held_back: &BTreeSet<usize>) -> Option<NextStep> {
        loop {
            let next = (0..self.vertices.len()).find_map(|at| self.step_for(at, open, held_back))?;
            let (at, state) = match next {
                NextStep::Start(at) if self.vertices[at].is_marker => (at, TaskState::Ended(Outcome::Unchanged)),
                NextStep::Start(at) => (at, TaskState::Running),
                NextStep::Stop { at, .. } => (at, TaskState::Ended(Outcome::DependencyFailed)),
            };
            self.vertices[at].state = state;
            if !self.vertices[at].is_marker {
                return Some(next);
            }
        }
    }

    /// Returns the step for one task: stop it if a requirement failed, start it if nothing keeps it from running, or
    /// `None` if it must wait or has started already.
    fn step_for(&self, at: usize, open: &BTreeSet<Barrier>, held_back: &BTreeSet<usize>) -> Option<NextStep> {
        let vertex = &self.vertices[at];
        if vertex.state != TaskState::Waiting {
            return None;
        }
        if let Some(by) = self.root_failure(at) {
            return Some(NextStep::Stop { at, by });
        }
        let is_ready = vertex.requires.iter().all(|&before| self.is_over(before))
            && vertex.barriers.iter().all(|barrier| open.contains(barrier))
            && !held_back.contains(&at)
            && (vertex.is_marker || self.has_room(vertex.exclusive));
        is_ready.then_some(NextStep::Start(at))
    }

    /// Returns whether one more task may run now. A task that must run `alone` needs all others to have ended.
    fn has_room(&self, alone: bool) -> bool {
        let mut running = self.vertices.iter().filter(|vertex| vertex.state == TaskState::Running).peekable();
        if alone {
            return running.peek().is_none();
        }
        running.clone().count() < self.max_parallel && !running.any(|vertex| vertex.exclusive)
    }

    /// Returns the task whose failure keeps the task `at` from running, if any. If a requirement was itself stopped,
    /// this is the task whose failure stopped that requirement.
    fn root_failure(&self, at: usize) -> Option<usize> {
        let before = self.vertices[at].requires.iter().copied().find(|before| self.blocks_dependants(*before))?;
        match self.vertices[before].state {
            TaskState::Ended(Outcome::DependencyFailed) => self.root_failure(before).or(Some(before)),
            _ => Some(before),
        }
    }

    /// Returns whether dependants of this task must not run.
    fn blocks_dependants(&self, at: usize) -> bool {
        match self.vertices[at].state {
            TaskState::Ended(Outcome::Failed) => !self.vertices[at].failure_allowed,
            TaskState::Ended(Outcome::DependencyFailed | Outcome::Unsupported | Outcome::Unknown) | TaskState::Observed => true,
            TaskState::Ended(Outcome::Unchanged | Outcome::Changed | Outcome::WouldChange | Outcome::Drifted)
            | TaskState::Waiting
            | TaskState::Running
            | TaskState::Skipped => false,
        }
    }

    /// Returns whether a task does not run on this host.
    #[must_use]
    pub fn is_skipped(&self, at: usize) -> bool {
        self.vertices[at].state == TaskState::Skipped
    }

    /// Returns whether a task is neither run nor checked, because of its mode.
    #[must_use]
    pub fn is_observed(&self, at: usize) -> bool {
        self.vertices[at].state == TaskState::Observed
    }

    /// Returns whether dependants of a task need not wait for it any longer.
    fn is_over(&self, at: usize) -> bool {
        matches!(self.vertices[at].state, TaskState::Ended(_) | TaskState::Skipped | TaskState::Observed)
    }

    /// Records how a task ended.
    pub fn end(&mut self, at: usize, outcome: Outcome) {
        self.vertices[at].state = TaskState::Ended(outcome);
    }

    /// Returns the outcome of a task as words that follow its name.
    #[must_use]
    pub fn outcome_text(&self, at: usize) -> &'static str {
        match self.vertices[at].state {
            TaskState::Ended(Outcome::Failed) => "failed",
            TaskState::Ended(Outcome::Unsupported) => "cannot run on this host",
            TaskState::Ended(Outcome::Unknown) => "began and is not known to have ended",
            TaskState::Ended(Outcome::DependencyFailed) => "did not run",
            TaskState::Ended(Outcome::Unchanged | Outcome::Changed | Outcome::WouldChange | Outcome::Drifted) => "has ended",
            TaskState::Observed => "is neither run nor checked, since its mode is observe",
            TaskState::Waiting | TaskState::Running | TaskState::Skipped => "has not ended",
        }
    }

    /// Returns whether a task was only checked and would be changed.
    #[must_use]
    pub fn would_task_change(&self, at: usize) -> bool {
        self.vertices[at].state == TaskState::Ended(Outcome::WouldChange)
    }

    /// Returns the number of tasks to run, without markers and skipped or observed tasks.
    #[must_use]
    pub fn task_count(&self) -> usize {
        let runs = |vertex: &&Vertex| !matches!(vertex.state, TaskState::Skipped | TaskState::Observed);
        self.vertices.iter().filter(|vertex| !vertex.is_marker).filter(runs).count()
    }

    /// Returns the outcomes of the tasks that have ended.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.vertices.iter().filter(|vertex| !vertex.is_marker).filter_map(|vertex| match vertex.state {
            TaskState::Ended(outcome) => Some(outcome),
            TaskState::Waiting | TaskState::Running | TaskState::Skipped | TaskState::Observed => None,
        })
    }

    /// Returns whether a task has yet to start. Markers do not count, but the tasks after them do.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.vertices.iter().any(|vertex| vertex.state == TaskState::Waiting && !vertex.is_marker)
    }

    /// Returns whether any task was only checked and would be changed.
    #[must_use]
    pub fn would_change(&self) -> bool {
        (0..self.vertices.len()).any(|at| self.would_task_change(at))
    }

    /// Returns whether any task failed. Markers do not count, but the tasks before and after them do.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.outcomes().any(Outcome::is_failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_outcome_text_explains_stopped_task() {
        let vertex = |outcome| Vertex { state: TaskState::Ended(outcome), ..vertex(&[]) };
        for (outcome, words) in [
            (Outcome::Failed, "failed"),
            (Outcome::Unsupported, "cannot run on this host"),
            (Outcome::Unknown, "began and is not known to have ended"),
            (Outcome::DependencyFailed, "did not run"),
        ] {
            assert_eq!(TaskGraph::new(vec![vertex(outcome)], 1).outcome_text(0), words);
        }
    }

    fn vertex(requires: &[usize]) -> Vertex {
        Vertex {
            state: TaskState::Waiting,
            requires: requires.to_vec(),
            barriers: Vec::new(),
            exclusive: false,
            failure_allowed: false,
            is_marker: false,
        }
    }

    fn steps(graph: &mut TaskGraph, open: &BTreeSet<Barrier>) -> Vec<NextStep> {
        std::iter::from_fn(|| graph.next_step(open, &BTreeSet::new())).collect()
    }

    #[test]
    fn graph_stops_only_dependants_when_task_fails() {
        use NextStep::{Start, Stop};
        let mut graph = TaskGraph::new(vec![vertex(&[]), vertex(&[0]), vertex(&[1]), vertex(&[])], 4);
        let none = BTreeSet::new();
        assert_eq!(steps(&mut graph, &none), [Start(0), Start(3)]);
        graph.end(0, Outcome::Failed);
        assert_eq!(steps(&mut graph, &none), [Stop { at: 1, by: 0 }, Stop { at: 2, by: 0 }], "each with what failed");
        assert!(graph.vertices[3].state == TaskState::Running && !graph.is_waiting() && graph.has_failed());
    }

    #[test]
    fn dependant_stops_when_requirement_failed_unless_allowed() {
        for (outcome, forgiven, stopped) in [
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
            let first = Vertex { state: TaskState::Ended(outcome), failure_allowed: forgiven, ..vertex(&[]) };
            let mut graph = TaskGraph::new(vec![first, vertex(&[0])], 1);
            let next = if stopped { NextStep::Stop { at: 1, by: 0 } } else { NextStep::Start(1) };
            assert_eq!(graph.next_step(&BTreeSet::new(), &BTreeSet::new()), Some(next), "{outcome:?} {forgiven}");
        }
    }

    #[test]
    fn graph_waits_for_barrier_but_not_for_skipped_task() {
        let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
        let gated = Vertex { barriers: vec![barrier.clone()], ..vertex(&[1]) };
        let mut graph = TaskGraph::new(vec![gated, Vertex { state: TaskState::Skipped, ..vertex(&[]) }], 4);
        graph.vertices[0].requires = vec![1];
        assert_eq!(steps(&mut graph, &BTreeSet::new()), []);
        assert_eq!(steps(&mut graph, &BTreeSet::from([barrier])), [NextStep::Start(0)]);
    }

    /// A task that required a marker used to start at once, although the marker itself required another marker and a
    /// barrier.
    #[test]
    fn y06_marker_orders_tasks_before_and_after() {
        let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
        let marker = |after: &[usize]| Vertex { is_marker: true, ..vertex(after) };
        let gated = Vertex { barriers: vec![barrier.clone()], ..marker(&[1]) };
        let open = BTreeSet::from([barrier]);
        let last = NextStep::Start(3);
        for (outcome, forgiven, open, next) in [
            (None, false, &open, None),
            (Some(Outcome::Unchanged), false, &open, Some(last)),
            (Some(Outcome::Changed), false, &BTreeSet::new(), None),
            (Some(Outcome::Failed), true, &open, Some(last)),
            (Some(Outcome::Failed), false, &BTreeSet::new(), Some(NextStep::Stop { at: 3, by: 0 })),
            (Some(Outcome::Unknown), false, &open, Some(NextStep::Stop { at: 3, by: 0 })),
        ] {
            let first =
                Vertex { state: outcome.map_or(TaskState::Running, TaskState::Ended), failure_allowed: forgiven, ..vertex(&[]) };
            let mut graph = TaskGraph::new(vec![first, marker(&[0]), gated.clone(), vertex(&[2])], 1);
            let none_is_held_back = BTreeSet::new();
            assert_eq!(graph.next_step(open, &none_is_held_back), next, "{outcome:?} {forgiven} {open:?}");
            assert_eq!(graph.is_waiting(), next.is_none(), "{outcome:?}: only the task behind the markers is waited for");
        }
        let mut alone = TaskGraph::new(vec![Vertex { requires: Vec::new(), ..gated }], 1);
        assert_eq!((alone.next_step(&BTreeSet::new(), &BTreeSet::new()), alone.is_waiting()), (None, false));
    }

    /// When the last task was a marker after an observed one, the host reported `failed` and its controllers
    /// `converged`.
    #[test]
    fn y06_marker_blocks_dependants_without_failing_when_requirement_is_observed() {
        let marker = |after: &[usize]| Vertex { is_marker: true, ..vertex(after) };
        let stopped = Some(NextStep::Stop { at: 3, by: 0 });
        for (state, last, next, has_failed) in [
            (TaskState::Observed, marker(&[2]), None, false),
            (TaskState::Observed, vertex(&[2]), stopped, true),
            (TaskState::Ended(Outcome::Failed), marker(&[2]), None, true),
            (TaskState::Ended(Outcome::Unsupported), marker(&[2]), None, true),
            (TaskState::Ended(Outcome::Changed), marker(&[2]), None, false),
            (TaskState::Ended(Outcome::Changed), vertex(&[2]), Some(NextStep::Start(3)), false),
        ] {
            let first = Vertex { state, ..vertex(&[]) };
            let beside = Vertex { state: TaskState::Ended(Outcome::Changed), ..vertex(&[]) };
            let mut graph = TaskGraph::new(vec![first, beside, marker(&[0, 1]), last], 1);
            assert_eq!(graph.next_step(&BTreeSet::new(), &BTreeSet::new()), next, "{state:?}");
            assert_eq!((graph.has_failed(), graph.is_waiting()), (has_failed, false), "{state:?}");
        }
    }

    #[test]
    fn graph_respects_max_parallel_and_exclusive() {
        use NextStep::Start;
        let alone = Vertex { exclusive: true, ..vertex(&[]) };
        let mut graph = TaskGraph::new(vec![vertex(&[]), alone, vertex(&[]), vertex(&[])], 2);
        let none = BTreeSet::new();
        assert_eq!(steps(&mut graph, &none), [Start(0), Start(2)]);
        graph.end(0, Outcome::Changed);
        graph.end(2, Outcome::Changed);
        assert_eq!(steps(&mut graph, &none), [Start(1)]);
        graph.end(1, Outcome::Changed);
        assert_eq!(steps(&mut graph, &none), [Start(3)]);
    }
}
