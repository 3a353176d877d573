//! What may start next: a profile's order on one host, decided without doing.
//!
//! ```text
//! Waiting ──▶ Running ──▶ Ended(outcome)
//!    │                        ▲
//!    └── one before it failed ┘        LeftOut stands for itself, and holds nobody up; Observed too, and stops what comes after it
//! ```
//!
//! A marker (`type: skipped`) is never begun. It ends as soon as it could begin, so that what comes after it waits for what comes before it.

use std::collections::BTreeSet;

use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::Outcome;

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Not begun.
    Waiting,
    /// Begun.
    Running,
    /// Over.
    Ended(Outcome),
    /// It does not run on this host, and what comes after it need not wait.
    LeftOut,
    /// By its mode it is neither run nor checked, so what comes after it does not run either.
    Observed,
}

/// A task as the graph needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vertex {
    /// Where it stands.
    pub state: TaskState,
    /// What must have ended well first.
    pub after: Vec<usize>,
    /// What must be open first.
    pub barriers: Vec<Barrier>,
    /// Nothing runs beside it.
    pub alone: bool,
    /// Its failure stops nobody (`fail_on_error: false`).
    pub forgiven: bool,
    /// It is a place in the order: it does nothing, and has no result.
    pub is_marker: bool,
}

/// What is to be done with a task now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Begin it.
    Start(usize),
    /// One before it did not end well: it ends too.
    Stop {
        /// The task.
        at: usize,
        /// The one that it goes back to, which began and did not end well.
        by: usize,
    },
}

/// The tasks of a host in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    vertices: Vec<Vertex>,
    /// At most so many at once.
    width: usize,
}

impl Graph {
    /// A graph that runs at most `width` tasks at once.
    #[must_use]
    pub const fn new(vertices: Vec<Vertex>, width: usize) -> Self {
        Self { vertices, width }
    }

    /// Puts a task after another one, unless the order says the opposite.
    pub fn put_after(&mut self, before: usize, at: usize) {
        if !self.vertices[at].after.contains(&before) && !self.is_behind(before, at) {
            self.vertices[at].after.push(before);
        }
    }

    /// Whether a task is the other one, or comes after it through any number of others.
    fn is_behind(&self, at: usize, other: usize) -> bool {
        let mut seen = BTreeSet::from([at]);
        let mut next = vec![at];
        while let Some(at) = next.pop() {
            next.extend(self.vertices[at].after.iter().copied().filter(|before| seen.insert(*before)));
        }
        seen.contains(&other)
    }

    /// What is to be done now, and notes it as begun or ended. `None`: nothing before something ends or opens.
    pub fn next_move(&mut self, open: &BTreeSet<Barrier>, held_back: &BTreeSet<usize>) -> Option<Move> {
        loop {
            let next = (0..self.vertices.len()).find_map(|at| self.move_of(at, open, held_back))?;
            let (at, state) = match next {
                Move::Start(at) if self.vertices[at].is_marker => (at, TaskState::Ended(Outcome::Unchanged)),
                Move::Start(at) => (at, TaskState::Running),
                Move::Stop { at, .. } => (at, TaskState::Ended(Outcome::DependencyFailed)),
            };
            self.vertices[at].state = state;
            if !self.vertices[at].is_marker {
                return Some(next);
            }
        }
    }

    fn move_of(&self, at: usize, open: &BTreeSet<Barrier>, held_back: &BTreeSet<usize>) -> Option<Move> {
        let vertex = &self.vertices[at];
        if vertex.state != TaskState::Waiting {
            return None;
        }
        if let Some(by) = self.stopped_by(at) {
            return Some(Move::Stop { at, by });
        }
        let free = vertex.after.iter().all(|&before| self.is_over(before))
            && vertex.barriers.iter().all(|barrier| open.contains(barrier))
            && !held_back.contains(&at)
            && (vertex.is_marker || self.has_room(vertex.alone));
        free.then_some(Move::Start(at))
    }

    fn has_room(&self, alone: bool) -> bool {
        let mut running = self.vertices.iter().filter(|vertex| vertex.state == TaskState::Running).peekable();
        if alone {
            return running.peek().is_none();
        }
        running.clone().count() < self.width && !running.any(|vertex| vertex.alone)
    }

    /// What did not end well before a task, if anything did: the task at the start of the chain of stopped ones.
    fn stopped_by(&self, at: usize) -> Option<usize> {
        let before = self.vertices[at].after.iter().copied().find(|before| self.stops(*before))?;
        match self.vertices[before].state {
            TaskState::Ended(Outcome::DependencyFailed) => self.stopped_by(before).or(Some(before)),
            _ => Some(before),
        }
    }

    /// Whether what requires this task must not run.
    fn stops(&self, at: usize) -> bool {
        match self.vertices[at].state {
            TaskState::Ended(Outcome::Failed) => !self.vertices[at].forgiven,
            TaskState::Ended(Outcome::DependencyFailed | Outcome::Unsupported | Outcome::Unknown)
            | TaskState::Observed => true,
            TaskState::Ended(Outcome::Unchanged | Outcome::Changed | Outcome::WouldChange | Outcome::Drifted)
            | TaskState::Waiting
            | TaskState::Running
            | TaskState::LeftOut => false,
        }
    }

    /// Whether a task does not run on this host.
    #[must_use]
    pub fn is_left_out(&self, at: usize) -> bool {
        self.vertices[at].state == TaskState::LeftOut
    }

    /// Whether a task is neither run nor checked, by its mode.
    #[must_use]
    pub fn is_observed(&self, at: usize) -> bool {
        self.vertices[at].state == TaskState::Observed
    }

    fn is_over(&self, at: usize) -> bool {
        matches!(self.vertices[at].state, TaskState::Ended(_) | TaskState::LeftOut | TaskState::Observed)
    }

    /// Notes how a task ended.
    pub fn end(&mut self, at: usize, outcome: Outcome) {
        self.vertices[at].state = TaskState::Ended(outcome);
    }

    /// What became of a task, in words that follow its name.
    #[must_use]
    pub fn became(&self, at: usize) -> &'static str {
        match self.vertices[at].state {
            TaskState::Ended(Outcome::Failed) => "failed",
            TaskState::Ended(Outcome::Unsupported) => "cannot run on this host",
            TaskState::Ended(Outcome::Unknown) => "began and is not known to have ended",
            TaskState::Ended(Outcome::DependencyFailed) => "did not run",
            TaskState::Ended(Outcome::Unchanged | Outcome::Changed | Outcome::WouldChange | Outcome::Drifted) => {
                "has ended"
            }
            TaskState::Observed => "is neither run nor checked, since its mode is observe",
            TaskState::Waiting | TaskState::Running | TaskState::LeftOut => "has not ended",
        }
    }

    /// Whether a task was looked at alone, and would be changed.
    #[must_use]
    pub fn is_to_change(&self, at: usize) -> bool {
        self.vertices[at].state == TaskState::Ended(Outcome::WouldChange)
    }

    /// How many tasks there are to run. No marker, none that is left out and none that is only observed is one of them.
    #[must_use]
    pub fn tasks(&self) -> usize {
        let runs = |vertex: &&Vertex| !matches!(vertex.state, TaskState::LeftOut | TaskState::Observed);
        self.vertices.iter().filter(|vertex| !vertex.is_marker).filter(runs).count()
    }

    /// How those of them ended that have.
    pub fn ended(&self) -> impl Iterator<Item = Outcome> {
        self.vertices.iter().filter(|vertex| !vertex.is_marker).filter_map(|vertex| match vertex.state {
            TaskState::Ended(outcome) => Some(outcome),
            TaskState::Waiting | TaskState::Running | TaskState::LeftOut | TaskState::Observed => None,
        })
    }

    /// Whether something has yet to begin. A marker does not count: what waits behind it does.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.vertices.iter().any(|vertex| vertex.state == TaskState::Waiting && !vertex.is_marker)
    }

    /// Whether something was looked at alone, and would be changed.
    #[must_use]
    pub fn would_change(&self) -> bool {
        (0..self.vertices.len()).any(|at| self.is_to_change(at))
    }

    /// Whether something did not end well. A marker does not count: what failed before it does, and so does what is stopped behind it.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.ended().any(Outcome::is_failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_what_stops_a_task_is_said_in_words() {
        let vertex = |outcome| Vertex { state: TaskState::Ended(outcome), ..vertex(&[]) };
        for (outcome, words) in [
            (Outcome::Failed, "failed"),
            (Outcome::Unsupported, "cannot run on this host"),
            (Outcome::Unknown, "began and is not known to have ended"),
            (Outcome::DependencyFailed, "did not run"),
        ] {
            assert_eq!(Graph::new(vec![vertex(outcome)], 1).became(0), words);
        }
    }

    fn vertex(after: &[usize]) -> Vertex {
        let after = after.to_vec();
        Vertex {
            state: TaskState::Waiting,
            after,
            barriers: Vec::new(),
            alone: false,
            forgiven: false,
            is_marker: false,
        }
    }

    fn moves(graph: &mut Graph, open: &BTreeSet<Barrier>) -> Vec<Move> {
        std::iter::from_fn(|| graph.next_move(open, &BTreeSet::new())).collect()
    }

    #[test]
    fn a_failure_stops_its_dependants_and_nothing_else() {
        use Move::{Start, Stop};
        let mut graph = Graph::new(vec![vertex(&[]), vertex(&[0]), vertex(&[1]), vertex(&[])], 4);
        let none = BTreeSet::new();
        assert_eq!(moves(&mut graph, &none), [Start(0), Start(3)]);
        graph.end(0, Outcome::Failed);
        assert_eq!(moves(&mut graph, &none), [Stop { at: 1, by: 0 }, Stop { at: 2, by: 0 }], "each with what failed");
        assert!(graph.vertices[3].state == TaskState::Running && !graph.is_waiting() && graph.has_failed());
    }

    #[test]
    fn what_stops_a_dependant() {
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
            let first = Vertex { state: TaskState::Ended(outcome), forgiven, ..vertex(&[]) };
            let mut graph = Graph::new(vec![first, vertex(&[0])], 1);
            let next = if stopped { Move::Stop { at: 1, by: 0 } } else { Move::Start(1) };
            assert_eq!(graph.next_move(&BTreeSet::new(), &BTreeSet::new()), Some(next), "{outcome:?} {forgiven}");
        }
    }

    #[test]
    fn a_barrier_is_waited_for_and_what_is_left_out_is_not() {
        let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
        let gated = Vertex { barriers: vec![barrier.clone()], ..vertex(&[1]) };
        let mut graph = Graph::new(vec![gated, Vertex { state: TaskState::LeftOut, ..vertex(&[]) }], 4);
        graph.vertices[0].after = vec![1];
        assert_eq!(moves(&mut graph, &BTreeSet::new()), []);
        assert_eq!(moves(&mut graph, &BTreeSet::from([barrier])), [Move::Start(0)]);
    }

    /// A task is behind a marker, which is behind another one and behind a barrier: it was begun at once, whatever came before.
    #[test]
    fn y06_what_comes_after_a_marker_comes_after_what_is_before_it() {
        let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
        let marker = |after: &[usize]| Vertex { is_marker: true, ..vertex(after) };
        let gated = Vertex { barriers: vec![barrier.clone()], ..marker(&[1]) };
        let open = BTreeSet::from([barrier]);
        let last = Move::Start(3);
        for (outcome, forgiven, open, next) in [
            (None, false, &open, None),
            (Some(Outcome::Unchanged), false, &open, Some(last)),
            (Some(Outcome::Changed), false, &BTreeSet::new(), None),
            (Some(Outcome::Failed), true, &open, Some(last)),
            (Some(Outcome::Failed), false, &BTreeSet::new(), Some(Move::Stop { at: 3, by: 0 })),
            (Some(Outcome::Unknown), false, &open, Some(Move::Stop { at: 3, by: 0 })),
        ] {
            let first = Vertex { state: outcome.map_or(TaskState::Running, TaskState::Ended), forgiven, ..vertex(&[]) };
            let mut graph = Graph::new(vec![first, marker(&[0]), gated.clone(), vertex(&[2])], 1);
            let none_is_held_back = BTreeSet::new();
            assert_eq!(graph.next_move(open, &none_is_held_back), next, "{outcome:?} {forgiven} {open:?}");
            assert_eq!(
                graph.is_waiting(),
                next.is_none(),
                "{outcome:?}: only the task behind the markers is waited for"
            );
        }
        let mut alone = Graph::new(vec![Vertex { after: Vec::new(), ..gated }], 1);
        assert_eq!((alone.next_move(&BTreeSet::new(), &BTreeSet::new()), alone.is_waiting()), (None, false));
    }

    /// A host whose last task was a marker behind an observed one said `failed`, and its controllers `converged`.
    #[test]
    fn y06_a_marker_behind_an_observed_task_is_no_failure_and_what_stands_behind_the_marker_is() {
        let marker = |after: &[usize]| Vertex { is_marker: true, ..vertex(after) };
        let stopped = Some(Move::Stop { at: 3, by: 0 });
        for (state, last, next, has_failed) in [
            (TaskState::Observed, marker(&[2]), None, false),
            (TaskState::Observed, vertex(&[2]), stopped, true),
            (TaskState::Ended(Outcome::Failed), marker(&[2]), None, true),
            (TaskState::Ended(Outcome::Unsupported), marker(&[2]), None, true),
            (TaskState::Ended(Outcome::Changed), marker(&[2]), None, false),
            (TaskState::Ended(Outcome::Changed), vertex(&[2]), Some(Move::Start(3)), false),
        ] {
            let first = Vertex { state, ..vertex(&[]) };
            let beside = Vertex { state: TaskState::Ended(Outcome::Changed), ..vertex(&[]) };
            let mut graph = Graph::new(vec![first, beside, marker(&[0, 1]), last], 1);
            assert_eq!(graph.next_move(&BTreeSet::new(), &BTreeSet::new()), next, "{state:?}");
            assert_eq!((graph.has_failed(), graph.is_waiting()), (has_failed, false), "{state:?}");
        }
    }

    #[test]
    fn width_and_loneliness_are_kept() {
        use Move::Start;
        let alone = Vertex { alone: true, ..vertex(&[]) };
        let mut graph = Graph::new(vec![vertex(&[]), alone, vertex(&[]), vertex(&[])], 2);
        let none = BTreeSet::new();
        assert_eq!(moves(&mut graph, &none), [Start(0), Start(2)]);
        graph.end(0, Outcome::Changed);
        graph.end(2, Outcome::Changed);
        assert_eq!(moves(&mut graph, &none), [Start(1)]);
        graph.end(1, Outcome::Changed);
        assert_eq!(moves(&mut graph, &none), [Start(3)]);
    }
}
