//! Summarises the results of all tasks of a node.

use super::{Liveness, NextTaskSet, SetBy, State, StateInputs, Status, WithheldBy};
use crate::finding::{Finding, Rule, first_error_except};
use crate::object::Timestamp;

/// The reason of a failed node whose task failed.
pub const TASK_FAILED_REASON: &str = "a task failed";

/// The reason of a changing node that has tasks without a result.
pub const RESULTS_PENDING_REASON: &str = "results are still to come";

/// The result of one task in the present task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The task is in its desired state.
    Succeeded,
    /// The task was only checked, and would change something.
    WouldChange,
    /// The task is not in its desired state, and is left so.
    Drifted,
    /// The task failed.
    Failed,
}

/// The results of all tasks that were released to a node, as one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskSummary {
    /// No task set was ever released.
    #[default]
    NotReleased,
    /// A task set without tasks was released.
    NothingToRun,
    /// No result of any task was reported yet.
    Unreported,
    /// A task failed.
    Failed,
    /// Results are still missing, and no task failed. A drifted task does not end the wait: it stops no other task of
    /// its host, so the other results arrive too.
    Incomplete,
    /// All tasks have a result, and a task drifted.
    Drifted,
    /// All tasks were checked, and something would change.
    WouldChange,
    /// All tasks have succeeded.
    Succeeded,
}

impl TaskSummary {
    /// Summarises the outcomes of the tasks that run. `released` has one item for each of them, which is `None` if its
    /// outcome is not known yet. `released` itself is `None` if no task set was released. `has_reported` is true if the
    /// node ever sent a result.
    pub fn from_outcomes(released: Option<impl IntoIterator<Item = Option<TaskOutcome>>>, has_reported: bool) -> Self {
        let Some(outcomes) = released else { return Self::NotReleased };
        let mut outcomes = outcomes.into_iter().peekable();
        match outcomes.peek() {
            None => Self::NothingToRun,
            Some(_) if !has_reported => Self::Unreported,
            Some(_) => Self::from_worst(outcomes),
        }
    }

    /// Returns the summary that the worst outcome decides: failed, incomplete, drifted, would change, succeeded.
    fn from_worst(outcomes: impl Iterator<Item = Option<TaskOutcome>>) -> Self {
        let mut worst = Self::Succeeded;
        for outcome in outcomes {
            worst = match (worst, outcome) {
                (Self::Failed, _) | (_, Some(TaskOutcome::Failed)) => return Self::Failed,
                (Self::Incomplete, _) | (_, None) => Self::Incomplete,
                (Self::Drifted, _) | (_, Some(TaskOutcome::Drifted)) => Self::Drifted,
                (_, Some(TaskOutcome::WouldChange)) => Self::WouldChange,
                (worst, Some(TaskOutcome::Succeeded)) => worst,
            };
        }
        worst
    }

    /// Returns whether a connected node may be waiting for other nodes: it has tasks, and not all of them have a
    /// result.
    pub const fn may_wait(self) -> bool {
        matches!(self, Self::Unreported | Self::Incomplete)
    }

    /// Returns whether a task set was released.
    pub(super) fn has_task_set(self) -> bool {
        self != Self::NotReleased
    }

    /// Returns whether results of the tasks were reported. A node without tasks counts if it is connected.
    pub(super) fn is_reported(self, liveness: Liveness) -> bool {
        match self {
            Self::NotReleased | Self::Unreported => false,
            Self::NothingToRun => liveness == Liveness::Connected,
            Self::Failed | Self::Drifted | Self::Incomplete | Self::WouldChange | Self::Succeeded => true,
        }
    }

    /// Returns the state of a node that only its tasks decide, because nothing else prevents it from running them.
    pub(super) fn status(self, liveness: Liveness) -> Status {
        let (state, reason) = match (self, liveness) {
            (Self::NotReleased, _) => (State::Waiting, "nothing was released to it yet"),
            (Self::NothingToRun, Liveness::Connected) => (State::Converged, "it has no tasks to run"),
            (Self::NothingToRun, Liveness::Absent | Liveness::Silent) => (State::Waiting, "its agent is not there yet"),
            (Self::Unreported, _) => (State::Waiting, "no result of its tasks was reported yet"),
            (Self::Failed, _) => (State::Failed, TASK_FAILED_REASON),
            (Self::Drifted, _) => (State::Drifted, "a task is not in its desired state, and is left so"),
            (Self::Incomplete, _) => (State::Changing, RESULTS_PENDING_REASON),
            (Self::WouldChange, _) => (State::Noop, "its tasks were checked, and something would change"),
            (Self::Succeeded, _) => (State::Converged, "all of its tasks have succeeded"),
        };
        Status { state, reason }
    }
}

/// The last result of one task of a node.
#[derive(Clone, Debug)]
pub struct TaskStatus<'a> {
    /// The id of the task.
    pub task: &'a str,
    /// The outcome of the task.
    pub outcome: TaskOutcome,
    /// True if the task ran. A task that did not run because one that it depends on failed has failed too.
    pub has_run: bool,
    /// The message of the host about the result.
    pub message: &'a str,
    /// The time at which the outcome changed to its present value.
    pub since: Timestamp,
}

/// Returns a text about the first failed task, in the order in which the tasks run: the task, the host's message, and
/// the time of the failure. `None` if no task failed.
pub fn last_error<'a>(tasks: impl IntoIterator<Item = TaskStatus<'a>>, time: fn(Timestamp) -> String) -> Option<String> {
    let failed = tasks.into_iter().find(|task| task.outcome == TaskOutcome::Failed)?;
    let said = if failed.message.is_empty() { "no reason was given" } else { failed.message };
    Some(format!("task {}: {said} (since {})", failed.task, time(failed.since)))
}

/// Returns a text about the tasks with this outcome: the first in the order in which they run, and the number of
/// others. `None` if there is none. Tasks that did not run because others failed do not count.
pub fn tasks_with_outcome<'a>(outcome: TaskOutcome, tasks: impl IntoIterator<Item = TaskStatus<'a>>) -> Option<String> {
    let mut matching = tasks.into_iter().filter(|task| task.outcome == outcome && task.has_run);
    let first = matching.next()?.task;
    let how = match outcome {
        TaskOutcome::Succeeded => "succeeded",
        TaskOutcome::WouldChange => "was checked and would change something",
        TaskOutcome::Drifted => "is not in its desired state and is left so",
        TaskOutcome::Failed => "failed",
    };
    Some(match matching.count() {
        0 => format!("task {first} {how}"),
        more => format!("task {first} {how}, and {more} more"),
    })
}

/// Returns a text about the tasks that did not run because a task that they require failed: the first in the order in
/// which they run, the number of others, and the host's reason for the first. `None` if all tasks ran.
pub fn tasks_not_run<'a>(tasks: impl IntoIterator<Item = TaskStatus<'a>>) -> Option<String> {
    let mut not_run = tasks.into_iter().filter(|task| !task.has_run);
    let first = not_run.next()?;
    let more = match not_run.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("task {}{more} did not run{}", first.task, not_run_reason(first.message)))
}

/// Returns the host's reason why a task did not run, after a colon. Empty if the message has no such reason, because
/// hosts of another version may word it differently.
fn not_run_reason(message: &str) -> String {
    let why = message.strip_prefix("Not run: ").map(|why| format!(": {}", why.trim_end_matches('.')));
    why.unwrap_or_default()
}

/// Returns a text about the missing results: the first of these tasks in the order in which they run, and the number of
/// others. `None` if there are no such tasks.
pub fn pending_results<'a>(pending: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut pending = pending.into_iter();
    let first = pending.next()?;
    Some(match pending.count() {
        0 => format!("the result of task {first} has not come yet"),
        more => format!("the results of task {first} and of {more} more have not come yet"),
    })
}

/// Returns the code of the first error among findings, which the reason of a node's state names. `None` if there is no
/// error. Errors of the rules in `withholding` only repeat what withholds the node's next task set, so such a code is
/// returned only if there is no other error.
pub fn first_error<'a>(findings: &'a [Finding], withholding: &[Rule]) -> Option<&'a str> {
    let error = first_error_except(findings, withholding).or_else(|| first_error_except(findings, &[]))?;
    Some(&error.code)
}

/// A task that other nodes wait for on a node.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedTask<'a> {
    /// The id of the task.
    pub task: &'a str,
    /// The outcome on that node, or `None` if it is not known yet.
    pub outcome: Option<TaskOutcome>,
    /// The host's message if the task did not run because a task that it requires failed. Otherwise `None`.
    pub not_run_message: Option<&'a str>,
    /// True if the task is in the task set that was released to the node.
    pub is_released: bool,
}

impl AwaitedTask<'_> {
    /// Returns whether the task will not succeed by itself on the node with these inputs.
    pub fn is_stalled(&self, facts: &StateInputs) -> bool {
        match self.outcome {
            Some(TaskOutcome::Succeeded) => false,
            Some(TaskOutcome::Failed | TaskOutcome::Drifted | TaskOutcome::WouldChange) => true,
            None => facts.is_holding_others_up() || facts.is_blocked || (facts.is_withheld() && !self.is_released),
        }
    }
}

/// Returns the first reason why a node that others wait for has not succeeded in a task yet, as a text for those nodes.
pub fn pending_reason(awaited: &AwaitedTask<'_>, facts: &StateInputs) -> String {
    let AwaitedTask { task, outcome, not_run_message: not_run, is_released: was_released } = *awaited;
    let why = match facts {
        StateInputs { paused_by: Some(SetBy::Host), .. } => "it was paused on its host",
        StateInputs { liveness: Liveness::Silent, .. } => "it is silent",
        _ if outcome == Some(TaskOutcome::Failed) => {
            return match not_run {
                Some(message) => format!("{task} did not run there{}", not_run_reason(message)),
                None => format!("{task} failed there"),
            };
        }
        StateInputs { is_stuck: true, can_run_tasks: false, .. } => "its agent is stuck",
        StateInputs { is_ahead: true, .. } => "its host is ahead of the store",
        StateInputs { paused_by: Some(SetBy::Operator), .. } => "its nodegroup or cluster is paused",
        StateInputs { liveness: Liveness::Absent, .. } => "its agent has not joined",
        StateInputs { is_observing: true, .. } => "its mode is observe",
        _ if outcome.is_none() && !was_released && facts.is_withheld() => {
            return format!("{}, and has no task {task}", withheld_reason(facts.next_task_set));
        }
        StateInputs { is_blocked: true, .. } if outcome.is_none() => "it is blocked itself",
        _ if outcome == Some(TaskOutcome::Drifted) => return format!("{task} drifted there, and is left so"),
        _ if outcome == Some(TaskOutcome::WouldChange) => return format!("{task} was only checked or observed there"),
        _ => return format!("{task} has not succeeded there"),
    };
    why.to_owned()
}

/// Returns why a node keeps its task set, as a text for the nodes that wait for it.
const fn withheld_reason(next: NextTaskSet) -> &'static str {
    match next {
        NextTaskSet::Withheld(WithheldBy::Held(_)) => "it is held",
        NextTaskSet::Withheld(WithheldBy::Paused) => "its nodegroup or cluster is paused",
        NextTaskSet::Withheld(WithheldBy::Undecided) => "the condition of a task that it runs is undecided",
        NextTaskSet::Withheld(WithheldBy::Requirement) => "it does not meet what its next task set requires",
        NextTaskSet::Current | NextTaskSet::Due => "its next task set could not be released",
    }
}

/// Returns a text about what a barrier waits for: a stage, or a task on the nodes of a selector.
pub fn barrier_text(task: &str, selector: &str) -> String {
    let place = match selector {
        "stage" => return format!("stage {task}"),
        "anywhere" => "every node that has it",
        "any of anywhere" => "any node that has it",
        "*" => "every node with a role or a tag",
        "any of *" => "any node with a role or a tag",
        selector => selector,
    };
    format!("{task} on {place}")
}

/// Returns a text about what a closed barrier waits for. `nodes` holds the first nodes that have not succeeded, each
/// with the reason. `total` is the number of all such nodes.
pub fn closed_barrier_text(task: &str, selector: &str, nodes: &[(String, String)], total: u64) -> String {
    let named: Vec<String> = nodes.iter().map(|(node, why)| format!("{node} ({why})")).collect();
    let more = match total.saturating_sub(named.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}: {}{more}", barrier_text(task, selector), named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::rule;

    #[test]
    fn pending_reason_names_first_blocker_of_node() {
        use Liveness::{Absent, Connected, Silent};
        let held = NextTaskSet::Withheld(WithheldBy::Held(SetBy::Operator));
        let here = StateInputs { liveness: Connected, ..StateInputs::default() };
        let paused = |side| StateInputs { paused_by: Some(side), ..here };
        let failed = Some(TaskOutcome::Failed);
        for (facts, outcome, was_released, why, is_in_vain) in [
            (StateInputs { liveness: Silent, ..paused(SetBy::Host) }, failed, true, "it was paused on its host", true),
            (StateInputs { liveness: Silent, ..here }, failed, true, "it is silent", true),
            (StateInputs { is_stuck: true, ..here }, failed, true, "a failed there", true),
            (StateInputs { is_stuck: true, ..here }, None, true, "its agent is stuck", true),
            (StateInputs { is_stuck: true, can_run_tasks: true, ..here }, None, true, "a has not succeeded there", false),
            (paused(SetBy::Operator), failed, true, "a failed there", true),
            (paused(SetBy::Operator), None, true, "its nodegroup or cluster is paused", true),
            (StateInputs { liveness: Absent, ..here }, None, false, "its agent has not joined", true),
            (StateInputs { next_task_set: held, ..here }, None, false, "it is held, and has no task a", true),
            (StateInputs { next_task_set: held, ..here }, None, true, "a has not succeeded there", false),
            (StateInputs { is_blocked: true, ..here }, None, true, "it is blocked itself", true),
            (StateInputs { is_observing: true, ..here }, None, true, "its mode is observe", true),
            (here, Some(TaskOutcome::Drifted), true, "a drifted there, and is left so", true),
            (here, Some(TaskOutcome::WouldChange), true, "a was only checked or observed there", true),
            (here, None, true, "a has not succeeded there", false),
        ] {
            let awaited = AwaitedTask { task: "a", outcome, not_run_message: None, is_released: was_released };
            assert_eq!(pending_reason(&awaited, &facts), why);
            assert_eq!(awaited.is_stalled(&facts), is_in_vain, "y06: {why}");
        }
    }

    /// Regression test: the task was reported as failed here, but as not run by its host and by the list of tasks.
    #[test]
    fn y06_pending_reason_names_required_task_when_task_did_not_run() {
        let here = StateInputs { liveness: Liveness::Connected, ..StateInputs::default() };
        for (facts, not_run, why) in [
            (here, None, "a2 failed there"),
            (here, Some("Not run: a, which it requires, failed."), "a2 did not run there: a, which it requires, failed"),
            (here, Some("a failed"), "a2 did not run there"),
            (StateInputs { liveness: Liveness::Silent, ..here }, Some("a failed"), "it is silent"),
        ] {
            let awaited =
                AwaitedTask { task: "a2", outcome: Some(TaskOutcome::Failed), not_run_message: not_run, is_released: true };
            assert_eq!(pending_reason(&awaited, &facts), why);
            assert!(awaited.is_stalled(&facts), "{why}");
        }
    }

    #[test]
    fn y06_first_error_skips_withholding_rules() {
        let found = |rule| Finding::new(rule, "node/n", "x");
        let unmet = [rule::REQUIREMENT_UNMET];
        let (required, path) = (found(rule::REQUIREMENT_UNMET), found(rule::TASK_PATH));
        for (findings, named) in [
            (vec![], None),
            (vec![found(rule::HOST_PAUSED)], None),
            (vec![required.clone()], Some("requirement.unmet")),
            (vec![required, path], Some("task.path")),
        ] {
            assert_eq!(first_error(&findings, &unmet), named);
        }
    }

    #[test]
    fn y06_closed_barrier_text_lists_nodes_with_reasons() {
        let nodes = [("n1".to_owned(), "it is silent".to_owned())];
        for (selector, says) in [
            ("tags x", "a on tags x: n1 (it is silent) and 2 more"),
            ("any of roles x", "a on any of roles x: n1 (it is silent) and 2 more"),
            ("anywhere", "a on every node that has it: n1 (it is silent) and 2 more"),
            ("any of anywhere", "a on any node that has it: n1 (it is silent) and 2 more"),
            ("*", "a on every node with a role or a tag: n1 (it is silent) and 2 more"),
            ("stage", "stage a: n1 (it is silent) and 2 more"),
        ] {
            assert_eq!(closed_barrier_text("a", selector, &nodes, 3), says);
        }
    }

    #[test]
    fn last_error_is_of_first_failed_task() {
        let news = |task, outcome, message| TaskStatus { task, outcome, has_run: true, message, since: Timestamp(1) };
        let time = |at: Timestamp| at.0.to_string();
        let (good, bad) = (TaskOutcome::Drifted, TaskOutcome::Failed);
        for (told, error) in [
            (vec![], None),
            (vec![news("a", good, "x")], None),
            (vec![news("a", good, "x"), news("b", bad, "no disk"), news("c", bad, "y")], Some("task b: no disk (since 1)")),
            (vec![news("b", bad, "")], Some("task b: no reason was given (since 1)")),
        ] {
            assert_eq!(last_error(told, time).as_deref(), error);
        }
    }

    /// Regression test: the reason of a failed node named its task, but not that of a drifted node or of a node in
    /// noop.
    #[test]
    fn y06_tasks_with_outcome_names_first_and_counts_others() {
        use TaskOutcome::{Drifted, Failed, Succeeded, WouldChange};
        let news = |task, outcome| TaskStatus { task, outcome, has_run: true, message: "", since: Timestamp(1) };
        let not_run = |task| TaskStatus { has_run: false, ..news(task, Failed) };
        for (ended, told, says) in [
            (Failed, vec![news("a", Succeeded)], None),
            (Failed, vec![news("a", Succeeded), news("b", Failed)], Some("task b failed")),
            (Failed, vec![news("b", Failed), news("a", Failed), news("c", Failed)], Some("task b failed, and 2 more")),
            (Failed, vec![not_run("a"), news("b", Failed), not_run("c")], Some("task b failed")),
            (Failed, vec![not_run("a")], None),
            (
                Drifted,
                vec![news("a", WouldChange), news("b", Drifted)],
                Some("task b is not in its desired state and is left so"),
            ),
            (
                Drifted,
                vec![news("a", Drifted), news("b", Succeeded), news("c", Drifted)],
                Some("task a is not in its desired state and is left so, and 1 more"),
            ),
            (WouldChange, vec![news("a", WouldChange)], Some("task a was checked and would change something")),
            (
                WouldChange,
                vec![news("a", WouldChange), news("b", WouldChange)],
                Some("task a was checked and would change something, and 1 more"),
            ),
        ] {
            assert_eq!(tasks_with_outcome(ended, told).as_deref(), says);
        }
    }

    /// A task that requires an observed task does not run, although no task failed.
    #[test]
    fn y06_tasks_not_run_names_first_with_required_task() {
        let news =
            |task, has_run, message| TaskStatus { task, outcome: TaskOutcome::Failed, has_run, message, since: Timestamp(1) };
        let why = "Not run: f, which it requires, is neither run nor checked, since its mode is observe.";
        for (told, says) in [
            (vec![], None),
            (vec![news("a", true, "no disk")], None),
            (
                vec![news("a", true, ""), news("dep", false, why)],
                Some("task dep did not run: f, which it requires, is neither run nor checked, since its mode is observe"),
            ),
            (
                vec![news("b", false, "Not run: f, which it requires, failed."), news("a", false, why)],
                Some("task b and 1 more did not run: f, which it requires, failed"),
            ),
            (vec![news("dep", false, "f failed")], Some("task dep did not run")),
        ] {
            assert_eq!(tasks_not_run(told).as_deref(), says);
        }
    }

    #[test]
    fn y09_pending_results_names_first_and_counts_others() {
        for (unended, says) in [
            (&[][..], None),
            (&["slow"], Some("the result of task slow has not come yet")),
            (&["slow", "a", "b"], Some("the results of task slow and of 2 more have not come yet")),
        ] {
            assert_eq!(pending_results(unended.iter().copied()).as_deref(), says);
        }
    }

    #[test]
    fn task_summary_has_nothing_to_run_when_empty() {
        let one = [Some(TaskOutcome::Succeeded)];
        for (released, has_reported, tasks) in [
            (None, true, TaskSummary::NotReleased),
            (Some(&[][..]), false, TaskSummary::NothingToRun),
            (Some(&[][..]), true, TaskSummary::NothingToRun),
            (Some(&one[..]), false, TaskSummary::Unreported),
            (Some(&one[..]), true, TaskSummary::Succeeded),
        ] {
            assert_eq!(TaskSummary::from_outcomes(released.map(|all| all.iter().copied()), has_reported), tasks, "{released:?}");
        }
    }

    #[test]
    fn task_summary_is_worst_outcome() {
        use TaskOutcome::{Drifted, Failed, Succeeded, WouldChange};
        for (outcomes, tasks) in [
            (&[Some(Succeeded), Some(Succeeded)][..], TaskSummary::Succeeded),
            (&[Some(Succeeded), None], TaskSummary::Incomplete),
            (&[None, Some(WouldChange)], TaskSummary::Incomplete),
            (&[Some(WouldChange), Some(Succeeded)], TaskSummary::WouldChange),
            // The agent runs tasks that depend on a drifted task, so their results are still missing.
            (&[Some(Drifted), None], TaskSummary::Incomplete),
            (&[None, Some(Drifted)], TaskSummary::Incomplete),
            (&[Some(WouldChange), Some(Drifted), Some(Succeeded)], TaskSummary::Drifted),
            (&[Some(Drifted), Some(Failed)], TaskSummary::Failed),
        ] {
            assert_eq!(TaskSummary::from_outcomes(Some(outcomes.iter().copied()), true), tasks, "{outcomes:?}");
        }
    }
}
