//! What became of all tasks of a node together.

use super::{Liveness, State, Status};

/// What became of one task in the task set that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// It is as it should be.
    Succeeded,
    /// It was only checked, and would change something.
    WouldChange,
    /// It is not as it should be, and is left so.
    Drifted,
    /// Something is wrong.
    Failed,
}

/// What became of the tasks that were released to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tasks {
    /// No task set was ever released.
    #[default]
    NotReleased,
    /// A task set without tasks was released.
    NothingToRun,
    /// Nothing was heard of any task yet.
    Unreported,
    /// A task failed.
    Failed,
    /// A task drifted; what depends on it never runs, so no more results have to come.
    Drifted,
    /// Results are still to come.
    Incomplete,
    /// All were checked, and something would change.
    WouldChange,
    /// All have succeeded.
    Succeeded,
}

impl Tasks {
    /// The tasks of a node that has reported results, by the outcome of each; `None`: not known yet.
    pub fn of_outcomes(outcomes: impl IntoIterator<Item = Option<TaskOutcome>>) -> Self {
        let mut worst = Self::Succeeded;
        for outcome in outcomes {
            worst = match (worst, outcome) {
                (Self::Failed, _) | (_, Some(TaskOutcome::Failed)) => return Self::Failed,
                (Self::Drifted, _) | (_, Some(TaskOutcome::Drifted)) => Self::Drifted,
                (Self::Incomplete, _) | (_, None) => Self::Incomplete,
                (_, Some(TaskOutcome::WouldChange)) => Self::WouldChange,
                (worst, Some(TaskOutcome::Succeeded)) => worst,
            };
        }
        worst
    }

    /// The state of a node that nothing else keeps from running.
    pub(super) fn status(self, liveness: Liveness) -> Status {
        let (state, reason) = match (self, liveness) {
            (Self::NotReleased, _) => (State::Waiting, "nothing was released to it yet"),
            (Self::NothingToRun, Liveness::Connected) => (State::Converged, "it has no tasks"),
            (Self::NothingToRun, Liveness::Absent | Liveness::Silent) => (State::Waiting, "its agent is not there yet"),
            (Self::Unreported, _) => (State::Waiting, "nothing was heard of its tasks yet"),
            (Self::Failed, _) => (State::Failed, "a task failed"),
            (Self::Drifted, _) => (State::Drifted, "a task is not as it should be, and is left so"),
            (Self::Incomplete, _) => (State::Changing, "results are still to come"),
            (Self::WouldChange, _) => (State::Noop, "its tasks were checked, and something would change"),
            (Self::Succeeded, _) => (State::Converged, "all of its tasks have succeeded"),
        };
        Status { state, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_outcome_decides() {
        use TaskOutcome::{Drifted, Failed, Succeeded, WouldChange};
        for (outcomes, tasks) in [
            (&[][..], Tasks::Succeeded),
            (&[Some(Succeeded), Some(Succeeded)], Tasks::Succeeded),
            (&[Some(Succeeded), None], Tasks::Incomplete),
            (&[None, Some(WouldChange)], Tasks::Incomplete),
            (&[Some(WouldChange), Some(Succeeded)], Tasks::WouldChange),
            // What depends on a task that drifted never runs, so nothing more is to come.
            (&[Some(Drifted), None], Tasks::Drifted),
            (&[None, Some(Drifted)], Tasks::Drifted),
            (&[Some(Drifted), Some(Failed)], Tasks::Failed),
        ] {
            assert_eq!(Tasks::of_outcomes(outcomes.iter().copied()), tasks, "{outcomes:?}");
        }
    }
}
