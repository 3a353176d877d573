//! What became of all tasks of a node together.

use super::{Liveness, State, Status};
use crate::object::Timestamp;

/// Why a node is failed of which a task failed.
pub const A_TASK_FAILED: &str = "a task failed";

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
    /// What became of the tasks that run of what was released to a node (`None`: nothing was), by the outcome of each (`None`: not known
    /// yet). `has_reported`: whether the node ever sent a result.
    pub fn of(released: Option<impl IntoIterator<Item = Option<TaskOutcome>>>, has_reported: bool) -> Self {
        let Some(outcomes) = released else { return Self::NotReleased };
        let mut outcomes = outcomes.into_iter().peekable();
        match outcomes.peek() {
            None => Self::NothingToRun,
            Some(_) if !has_reported => Self::Unreported,
            Some(_) => Self::gravest(outcomes),
        }
    }

    fn gravest(outcomes: impl Iterator<Item = Option<TaskOutcome>>) -> Self {
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

    /// Whether a node whose agent is there may be waiting for others: it was told of tasks, and not all of them ended.
    pub const fn may_wait(self) -> bool {
        matches!(self, Self::Unreported | Self::Incomplete)
    }

    /// Whether a task set was released.
    pub(super) fn is_of_a_set(self) -> bool {
        self != Self::NotReleased
    }

    /// Whether the host told what became of them, or is there and has none.
    pub(super) fn are_heard_of(self, liveness: Liveness) -> bool {
        match self {
            Self::NotReleased | Self::Unreported => false,
            Self::NothingToRun => liveness == Liveness::Connected,
            Self::Failed | Self::Drifted | Self::Incomplete | Self::WouldChange | Self::Succeeded => true,
        }
    }

    /// The state of a node that nothing else keeps from running.
    pub(super) fn status(self, liveness: Liveness) -> Status {
        let (state, reason) = match (self, liveness) {
            (Self::NotReleased, _) => (State::Waiting, "nothing was released to it yet"),
            (Self::NothingToRun, Liveness::Connected) => (State::Converged, "it has no tasks"),
            (Self::NothingToRun, Liveness::Absent | Liveness::Silent) => (State::Waiting, "its agent is not there yet"),
            (Self::Unreported, _) => (State::Waiting, "nothing was heard of its tasks yet"),
            (Self::Failed, _) => (State::Failed, A_TASK_FAILED),
            (Self::Drifted, _) => (State::Drifted, "a task is not as it should be, and is left so"),
            (Self::Incomplete, _) => (State::Changing, "results are still to come"),
            (Self::WouldChange, _) => (State::Noop, "its tasks were checked, and something would change"),
            (Self::Succeeded, _) => (State::Converged, "all of its tasks have succeeded"),
        };
        Status { state, reason }
    }
}

/// What is known of one task of a node.
#[derive(Clone, Debug)]
pub struct TaskNews<'a> {
    /// The task.
    pub task: &'a str,
    /// What became of it.
    pub outcome: TaskOutcome,
    /// What the host said of that.
    pub message: &'a str,
    /// Since when.
    pub since: Timestamp,
}

/// The first failure among what is known of tasks, in the order in which they run: the task, what the host said, and since when.
pub fn last_error<'a>(news: impl IntoIterator<Item = TaskNews<'a>>, time: fn(Timestamp) -> String) -> Option<String> {
    let failed = news.into_iter().find(|one| one.outcome == TaskOutcome::Failed)?;
    let said = if failed.message.is_empty() { "no reason was given" } else { failed.message };
    Some(format!("task {}: {said} (since {})", failed.task, time(failed.since)))
}

/// Which tasks failed, by the first of them in the order in which they run, and how many more; `None`: none did.
pub fn failed_tasks<'a>(news: impl IntoIterator<Item = TaskNews<'a>>) -> Option<String> {
    let mut failed = news.into_iter().filter(|one| one.outcome == TaskOutcome::Failed);
    let first = failed.next()?.task;
    Some(match failed.count() {
        0 => format!("task {first} failed"),
        more => format!("task {first} failed, and {more} more"),
    })
}

/// Why a node that others wait for has not succeeded in a task yet.
pub fn why_not_done(
    task: &str,
    paused_on_host: bool,
    is_stuck: bool,
    liveness: Liveness,
    outcome: Option<TaskOutcome>,
) -> String {
    match (paused_on_host, liveness, outcome) {
        (true, _, _) => "it was paused on its host".to_owned(),
        (false, Liveness::Silent, _) => "it is silent".to_owned(),
        (false, _, Some(TaskOutcome::Failed)) => format!("{task} failed there"),
        (false, _, _) if is_stuck => "its agent is stuck".to_owned(),
        (false, _, _) => format!("{task} has not succeeded there"),
    }
}

/// What a shut barrier waits for: a task, on the nodes of a selector. The first of those that have not succeeded are named, each with
/// why, of so many.
pub fn awaited(task: &str, selector: &str, nodes: &[(String, String)], of: u64) -> String {
    let named: Vec<String> = nodes.iter().map(|(node, why)| format!("{node} ({why})")).collect();
    let more = match of.saturating_sub(named.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{task} on {selector}: {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_others_wait_names_what_keeps_the_node_first() {
        use Liveness::{Connected, Silent};
        for (paused, liveness, outcome, why) in [
            (true, Silent, Some(TaskOutcome::Failed), "it was paused on its host"),
            (false, Silent, Some(TaskOutcome::Failed), "it is silent"),
            (false, Connected, Some(TaskOutcome::Failed), "a failed there"),
            (false, Connected, Some(TaskOutcome::Drifted), "a has not succeeded there"),
            (false, Connected, None, "a has not succeeded there"),
        ] {
            assert_eq!(why_not_done("a", paused, false, liveness, outcome), why);
            let stuck = why_not_done("a", paused, true, liveness, outcome);
            assert_eq!(stuck, why.replace("a has not succeeded there", "its agent is stuck"));
        }
    }

    #[test]
    fn the_last_error_is_that_of_the_first_task_that_failed() {
        let news = |task, outcome, message| TaskNews { task, outcome, message, since: Timestamp(1) };
        let time = |at: Timestamp| at.0.to_string();
        let (good, bad) = (TaskOutcome::Drifted, TaskOutcome::Failed);
        for (told, error) in [
            (vec![], None),
            (vec![news("a", good, "x")], None),
            (
                vec![news("a", good, "x"), news("b", bad, "no disk"), news("c", bad, "y")],
                Some("task b: no disk (since 1)"),
            ),
            (vec![news("b", bad, "")], Some("task b: no reason was given (since 1)")),
        ] {
            assert_eq!(last_error(told, time).as_deref(), error);
        }
    }

    #[test]
    fn y06_the_first_task_that_failed_is_named_with_how_many_more() {
        let news = |task, outcome| TaskNews { task, outcome, message: "", since: Timestamp(1) };
        let (good, bad) = (TaskOutcome::Succeeded, TaskOutcome::Failed);
        for (told, says) in [
            (vec![news("a", good)], None),
            (vec![news("a", good), news("b", bad)], Some("task b failed")),
            (vec![news("b", bad), news("a", bad), news("c", bad)], Some("task b failed, and 2 more")),
        ] {
            assert_eq!(failed_tasks(told).as_deref(), says);
        }
    }

    #[test]
    fn a_node_without_tasks_has_nothing_to_run_whatever_it_has_reported() {
        let one = [Some(TaskOutcome::Succeeded)];
        for (released, has_reported, tasks) in [
            (None, true, Tasks::NotReleased),
            (Some(&[][..]), false, Tasks::NothingToRun),
            (Some(&[][..]), true, Tasks::NothingToRun),
            (Some(&one[..]), false, Tasks::Unreported),
            (Some(&one[..]), true, Tasks::Succeeded),
        ] {
            assert_eq!(Tasks::of(released.map(|all| all.iter().copied()), has_reported), tasks, "{released:?}");
        }
    }

    #[test]
    fn the_gravest_outcome_decides() {
        use TaskOutcome::{Drifted, Failed, Succeeded, WouldChange};
        for (outcomes, tasks) in [
            (&[Some(Succeeded), Some(Succeeded)][..], Tasks::Succeeded),
            (&[Some(Succeeded), None], Tasks::Incomplete),
            (&[None, Some(WouldChange)], Tasks::Incomplete),
            (&[Some(WouldChange), Some(Succeeded)], Tasks::WouldChange),
            // What depends on a task that drifted never runs, so nothing more is to come.
            (&[Some(Drifted), None], Tasks::Drifted),
            (&[None, Some(Drifted)], Tasks::Drifted),
            (&[Some(Drifted), Some(Failed)], Tasks::Failed),
        ] {
            assert_eq!(Tasks::of(Some(outcomes.iter().copied()), true), tasks, "{outcomes:?}");
        }
    }
}
