//! Summarises the results of all tasks of a node.

use super::{Liveness, NextTaskSet, SetBy, State, StateInputs, Status, WithheldBy};
use crate::finding::{Finding, Rule, first_error_except};
use crate::object::Timestamp;

/// The general reason of the state `failed` of a node on which a task failed. The API names the task instead.
pub const TASK_FAILED_REASON: &str = "a task failed";

/// The general reason of the state `changing` if results are missing. The API names a barrier or a task instead.
pub const RESULTS_PENDING_REASON: &str = "results are still to come";

/// The outcome of one task of a node's released task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The task is in its desired state.
    Succeeded,
    /// The task was only checked and would change something, or its own mode is `observe`.
    WouldChange,
    /// The host has drifted from the task, and the agent does not correct the drift.
    Drifted,
    /// The task failed, did not run because of a task that it requires, is not supported, or has an unknown result.
    Failed,
}

/// The summary of the results of the tasks that were released to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskSummary {
    /// No task set was ever released to the node.
    #[default]
    NotReleased,
    /// A task set was released in which the host has no task to run or to check.
    NothingToRun,
    /// The released task set has tasks, and the host has not reported any result yet, also not of an earlier task set.
    Unreported,
    /// A task failed.
    Failed,
    /// Results are still missing, and no task failed. A drifted task does not stop the other tasks of its host, so the
    /// missing results are still expected.
    Incomplete,
    /// All tasks have a result, no task failed, and at least one task drifted.
    Drifted,
    /// All tasks have a result, no task failed or drifted, and at least one task was only checked and would change
    /// something.
    WouldChange,
    /// All tasks have succeeded.
    Succeeded,
}

impl TaskSummary {
    /// Returns the summary of the outcomes of a node's tasks. `released_outcomes` is `None` if no task set was released
    /// to the node. Otherwise it has one item for each task that the host runs or checks, and the item is `None` if the
    /// task has no result yet. `has_reported` is true if the node ever sent a result, also of an earlier task set.
    pub fn from_outcomes(released_outcomes: Option<impl IntoIterator<Item = Option<TaskOutcome>>>, has_reported: bool) -> Self {
        let Some(outcomes) = released_outcomes else { return Self::NotReleased };
        let mut outcomes = outcomes.into_iter().peekable();
        match outcomes.peek() {
            None => Self::NothingToRun,
            Some(_) if !has_reported => Self::Unreported,
            Some(_) => Self::from_worst(outcomes),
        }
    }

    /// Returns the summary that the worst outcome decides. From worst to best: failed, no result, drifted, would
    /// change, succeeded.
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

    /// Returns whether some tasks have no result yet and no task failed. Only then can the node be waiting for tasks of
    /// other nodes.
    pub const fn may_wait_for_others(self) -> bool {
        matches!(self, Self::Unreported | Self::Incomplete)
    }

    /// Returns whether a task set was released to the node.
    pub(super) fn has_task_set(self) -> bool {
        self != Self::NotReleased
    }

    /// Returns whether the node has reported results. A node without tasks has no results to report, so for this node
    /// the result is true if its agent is connected.
    pub(super) fn is_reported(self, liveness: Liveness) -> bool {
        match self {
            Self::NotReleased | Self::Unreported => false,
            Self::NothingToRun => liveness == Liveness::Connected,
            Self::Failed | Self::Drifted | Self::Incomplete | Self::WouldChange | Self::Succeeded => true,
        }
    }

    /// Returns the state that follows from the results of a node's tasks. The caller has checked before that no other
    /// cause, such as a pause, decides the state.
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
    /// False if the task did not run because of a task that it requires. Its outcome is then `Failed`.
    pub has_run: bool,
    /// The host's message about the result, for people. May be empty.
    pub message: &'a str,
    /// The time at which this result arrived at the controller. The outcome may be older.
    pub since: Timestamp,
}

/// Returns a text about the first failed task: its id, the host's message, and the time at which its last result
/// arrived. `None` if no task failed. `tasks` is in the order in which the tasks run, and `time` formats a time.
pub fn first_failure_text<'a>(tasks: impl IntoIterator<Item = TaskStatus<'a>>, time: fn(Timestamp) -> String) -> Option<String> {
    let failed_task = tasks.into_iter().find(|task| task.outcome == TaskOutcome::Failed)?;
    let message = if failed_task.message.is_empty() { "no reason was given" } else { failed_task.message };
    Some(format!("task {}: {message} (since {})", failed_task.task, time(failed_task.since)))
}

/// Returns a text about the tasks that ran with this outcome: the id of the first task, and the number of the others.
/// `None` if there are no such tasks. `tasks` is in the order in which the tasks run.
pub fn tasks_with_outcome_text<'a>(outcome: TaskOutcome, tasks: impl IntoIterator<Item = TaskStatus<'a>>) -> Option<String> {
    let mut matching_tasks = tasks.into_iter().filter(|task| task.outcome == outcome && task.has_run);
    let first_id = matching_tasks.next()?.task;
    let predicate = match outcome {
        TaskOutcome::Succeeded => "succeeded",
        TaskOutcome::WouldChange => "was checked and would change something",
        TaskOutcome::Drifted => "is not in its desired state and is left so",
        TaskOutcome::Failed => "failed",
    };
    Some(match matching_tasks.count() {
        0 => format!("task {first_id} {predicate}"),
        other_count => format!("task {first_id} {predicate}, and {other_count} more"),
    })
}

/// Returns a text about the tasks that did not run because of a task that they require: the id of the first task, the
/// number of the others, and the host's reason for the first task. `None` if all tasks ran. `tasks` is in the order in
/// which the tasks run.
pub fn tasks_not_run_text<'a>(tasks: impl IntoIterator<Item = TaskStatus<'a>>) -> Option<String> {
    let mut tasks_without_run = tasks.into_iter().filter(|task| !task.has_run);
    let first_task = tasks_without_run.next()?;
    let suffix = match tasks_without_run.count() {
        0 => String::new(),
        other_count => format!(" and {other_count} more"),
    };
    Some(format!("task {}{suffix} did not run{}", first_task.task, not_run_reason(first_task.message)))
}

/// Returns a colon and the reason from the host's message about a task that did not run. The reason is the text after
/// `Not run: `. Returns an empty text for any other message, because agents of other versions may use other words.
fn not_run_reason(message: &str) -> String {
    let reason = message.strip_prefix("Not run: ").map(|reason| format!(": {}", reason.trim_end_matches('.')));
    reason.unwrap_or_default()
}

/// Returns the id of the task that stopped another one, from the host's message about the task that did not run. `None` for
/// any other message.
pub fn stopping_task(message: &str) -> Option<&str> {
    Some(message.strip_prefix("Not run: ")?.split_once(", which it requires, ")?.0)
}

/// Returns a text about the tasks without a result: the id of the first task, and the number of the others. `None` if
/// there are no such tasks. `pending_ids` has their ids, in the order in which the tasks run.
pub fn pending_results_text<'a>(pending_ids: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut pending_ids = pending_ids.into_iter();
    let first_id = pending_ids.next()?;
    Some(match pending_ids.count() {
        0 => format!("the result of task {first_id} has not arrived yet"),
        other_count => format!("the results of task {first_id} and of {other_count} more have not arrived yet"),
    })
}

/// Returns the code of the first error among a node's findings, for the reason of the node's state. `None` if there is
/// no error. An error of a rule in `withholding_rules` only repeats the cause that withholds the node's next task set.
/// Its code is returned only if there is no other error.
pub fn first_error_code<'a>(findings: &'a [Finding], withholding_rules: &[Rule]) -> Option<&'a str> {
    let error = first_error_except(findings, withholding_rules).or_else(|| first_error_except(findings, &[]))?;
    Some(&error.code)
}

/// A task of a node for which other nodes wait.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedTask<'a> {
    /// The id of the task.
    pub task: &'a str,
    /// The outcome of the task on the node, or `None` if the task has no result yet.
    pub outcome: Option<TaskOutcome>,
    /// The host's message if the task did not run because of a task that it requires. Otherwise `None`.
    pub not_run_message: Option<&'a str>,
    /// True if the node's released task set contains the task.
    pub is_released: bool,
}

impl AwaitedTask<'_> {
    /// Returns whether the task will not succeed on its node until an operator acts. `inputs` are the state inputs of
    /// that node.
    pub fn is_stalled(&self, inputs: &StateInputs) -> bool {
        match self.outcome {
            Some(TaskOutcome::Succeeded) => false,
            Some(TaskOutcome::Failed | TaskOutcome::Drifted | TaskOutcome::WouldChange) => true,
            None => inputs.is_blocking_others() || inputs.is_blocked || (inputs.is_task_set_withheld() && !self.is_released),
        }
    }
}

/// Returns the reason why a task for which other nodes wait has not succeeded on its node yet. `inputs` are the state
/// inputs of that node. The text is shown for the waiting nodes, where "it" and "there" refer to the awaited node. If
/// several causes apply, the first one in the match below gives the reason.
pub fn awaited_task_reason(awaited: &AwaitedTask<'_>, inputs: &StateInputs) -> String {
    let AwaitedTask { task, outcome, not_run_message: message_if_not_run, is_released: has_task } = *awaited;
    let reason = match inputs {
        StateInputs { paused_by: Some(SetBy::Host), .. } => "it was paused on its host",
        StateInputs { liveness: Liveness::Silent, .. } => "it is silent",
        _ if outcome == Some(TaskOutcome::Failed) => {
            return match message_if_not_run {
                Some(message) => format!("{task} did not run there{}", not_run_reason(message)),
                None => format!("{task} failed there"),
            };
        }
        StateInputs { is_stuck: true, can_run_tasks_when_stuck: false, .. } => "its agent is stuck",
        StateInputs { is_host_ahead: true, .. } => "its host is ahead of the store",
        StateInputs { paused_by: Some(SetBy::Operator), .. } => "its nodegroup or cluster is paused",
        StateInputs { liveness: Liveness::Absent, .. } => "its agent has not joined",
        StateInputs { is_observing: true, .. } => "its mode is observe",
        // Only the withheld task set has the task.
        _ if outcome.is_none() && !has_task && inputs.is_task_set_withheld() => {
            return format!("{}, and has no task {task}", withheld_reason(inputs.next_task_set));
        }
        StateInputs { is_blocked: true, .. } if outcome.is_none() => "it is blocked itself",
        _ if outcome == Some(TaskOutcome::Drifted) => return format!("{task} drifted there, and is left so"),
        _ if outcome == Some(TaskOutcome::WouldChange) => return format!("{task} was only checked or observed there"),
        _ => return format!("{task} has not succeeded there"),
    };
    reason.to_owned()
}

/// Returns the reason why a node does not have its next task set, as a text for the nodes that wait for it.
const fn withheld_reason(next: NextTaskSet) -> &'static str {
    match next {
        NextTaskSet::Withheld(WithheldBy::Held(_)) => "it is held",
        NextTaskSet::Withheld(WithheldBy::Paused) => "its nodegroup or cluster is paused",
        NextTaskSet::Withheld(WithheldBy::Undecided) => "the condition of a task that it runs is undecided",
        NextTaskSet::Withheld(WithheldBy::Agent) => "its agent does not know all task types of its next task set",
        NextTaskSet::Withheld(WithheldBy::Requirement) => "it does not meet what its next task set requires",
        NextTaskSet::Current | NextTaskSet::Due => "its next task set could not be released",
    }
}

/// Returns a text about the target of a barrier: a stage, or a task on the nodes that `selector` describes. `selector`
/// is the display text of a barrier. The text `stage` means that `task` is a stage. `anywhere` means every node that
/// has the task, and `any of` means that the success of one node is enough.
pub fn barrier_text(task: &str, selector: &str) -> String {
    let node_text = match selector {
        "stage" => return format!("stage {task}"),
        "anywhere" => "every node that has it",
        "any of anywhere" => "any node that has it",
        "*" => "every node with a role or a tag",
        "any of *" => "any node with a role or a tag",
        selector => selector,
    };
    format!("{task} on {node_text}")
}

/// Returns a text about the target of a closed barrier and the nodes that have not succeeded. `nodes` has the first of
/// these nodes, each with its reason. `total` is the number of all these nodes.
pub fn closed_barrier_text(task: &str, selector: &str, nodes: &[(String, String)], total: u64) -> String {
    let node_texts: Vec<String> = nodes.iter().map(|(node, reason)| format!("{node} ({reason})")).collect();
    let suffix = match total.saturating_sub(node_texts.len() as u64) {
        0 => String::new(),
        other_count => format!(" and {other_count} more"),
    };
    format!("{}: {}{suffix}", barrier_text(task, selector), node_texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::rule;

    /// Other nodes wait for task `a`. Each row has the inputs of the node that must run the task, and the outcome of
    /// the task there. It then has whether the released task set has the task, the expected reason, and whether the
    /// task is stalled.
    #[test]
    fn awaited_task_reason_names_first_cause() {
        use Liveness::{Absent, Connected, Silent};
        let next_held = NextTaskSet::Withheld(WithheldBy::Held(SetBy::Operator));
        let connected_inputs = StateInputs { liveness: Connected, ..StateInputs::default() };
        let paused_inputs = |set_by| StateInputs { paused_by: Some(set_by), ..connected_inputs };
        let failed = Some(TaskOutcome::Failed);
        for (inputs, outcome, is_released, reason, is_stalled) in [
            (StateInputs { liveness: Silent, ..paused_inputs(SetBy::Host) }, failed, true, "it was paused on its host", true),
            (StateInputs { liveness: Silent, ..connected_inputs }, failed, true, "it is silent", true),
            (StateInputs { is_stuck: true, ..connected_inputs }, failed, true, "a failed there", true),
            (StateInputs { is_stuck: true, ..connected_inputs }, None, true, "its agent is stuck", true),
            (
                StateInputs { is_stuck: true, can_run_tasks_when_stuck: true, ..connected_inputs },
                None,
                true,
                "a has not succeeded there",
                false,
            ),
            (paused_inputs(SetBy::Operator), failed, true, "a failed there", true),
            (paused_inputs(SetBy::Operator), None, true, "its nodegroup or cluster is paused", true),
            (StateInputs { liveness: Absent, ..connected_inputs }, None, false, "its agent has not joined", true),
            (StateInputs { next_task_set: next_held, ..connected_inputs }, None, false, "it is held, and has no task a", true),
            (StateInputs { next_task_set: next_held, ..connected_inputs }, None, true, "a has not succeeded there", false),
            (StateInputs { is_blocked: true, ..connected_inputs }, None, true, "it is blocked itself", true),
            (StateInputs { is_observing: true, ..connected_inputs }, None, true, "its mode is observe", true),
            (connected_inputs, Some(TaskOutcome::Drifted), true, "a drifted there, and is left so", true),
            (connected_inputs, Some(TaskOutcome::WouldChange), true, "a was only checked or observed there", true),
            (connected_inputs, None, true, "a has not succeeded there", false),
        ] {
            let awaited = AwaitedTask { task: "a", outcome, not_run_message: None, is_released };
            assert_eq!(awaited_task_reason(&awaited, &inputs), reason);
            assert_eq!(awaited.is_stalled(&inputs), is_stalled, "y06: {reason}");
        }
    }

    /// Regression test: the task was reported as failed here, but as not run by its host and by the list of tasks.
    #[test]
    fn y06_awaited_task_reason_names_required_task_when_not_run() {
        let connected_inputs = StateInputs { liveness: Liveness::Connected, ..StateInputs::default() };
        for (inputs, not_run_message, reason) in [
            (connected_inputs, None, "a2 failed there"),
            (
                connected_inputs,
                Some("Not run: a, which it requires, failed."),
                "a2 did not run there: a, which it requires, failed",
            ),
            (connected_inputs, Some("a failed"), "a2 did not run there"),
            (StateInputs { liveness: Liveness::Silent, ..connected_inputs }, Some("a failed"), "it is silent"),
        ] {
            let awaited = AwaitedTask { task: "a2", outcome: Some(TaskOutcome::Failed), not_run_message, is_released: true };
            assert_eq!(awaited_task_reason(&awaited, &inputs), reason);
            assert!(awaited.is_stalled(&inputs), "{reason}");
        }
    }

    /// The finding about the pause is no error. The error about the requirement is skipped if there is another error.
    #[test]
    fn y06_first_error_skips_withholding_rules() {
        let finding = |rule| Finding::new(rule, "node/n", "x");
        let withholding_rules = [rule::REQUIREMENT_UNMET];
        let (requirement_finding, path_finding) = (finding(rule::REQUIREMENT_UNMET), finding(rule::TASK_PATH));
        for (findings, expected_code) in [
            (vec![], None),
            (vec![finding(rule::HOST_PAUSED)], None),
            (vec![requirement_finding.clone()], Some("requirement.unmet")),
            (vec![requirement_finding, path_finding], Some("task.path")),
        ] {
            assert_eq!(first_error_code(&findings, &withholding_rules), expected_code);
        }
    }

    /// In this test, three nodes have not succeeded, and the caller names only one of them. The text counts the other
    /// two.
    #[test]
    fn y06_closed_barrier_text_lists_nodes_with_reasons() {
        let nodes = [("n1".to_owned(), "it is silent".to_owned())];
        for (selector, expected) in [
            ("tags x", "a on tags x: n1 (it is silent) and 2 more"),
            ("any of roles x", "a on any of roles x: n1 (it is silent) and 2 more"),
            ("anywhere", "a on every node that has it: n1 (it is silent) and 2 more"),
            ("any of anywhere", "a on any node that has it: n1 (it is silent) and 2 more"),
            ("*", "a on every node with a role or a tag: n1 (it is silent) and 2 more"),
            ("stage", "stage a: n1 (it is silent) and 2 more"),
        ] {
            assert_eq!(closed_barrier_text("a", selector, &nodes, 3), expected);
        }
    }

    #[test]
    fn first_failure_text_names_first_failed_task() {
        let task_status = |task, outcome, message| TaskStatus { task, outcome, has_run: true, message, since: Timestamp(1) };
        let format_time = |timestamp: Timestamp| timestamp.0.to_string();
        let (drifted, failed) = (TaskOutcome::Drifted, TaskOutcome::Failed);
        for (tasks, expected) in [
            (vec![], None),
            (vec![task_status("a", drifted, "x")], None),
            (
                vec![task_status("a", drifted, "x"), task_status("b", failed, "no disk"), task_status("c", failed, "y")],
                Some("task b: no disk (since 1)"),
            ),
            (vec![task_status("b", failed, "")], Some("task b: no reason was given (since 1)")),
        ] {
            assert_eq!(first_failure_text(tasks, format_time).as_deref(), expected);
        }
    }

    /// Regression test: the reason of a failed node named its task, but not that of a drifted node or of a node in
    /// noop.
    #[test]
    fn y06_tasks_with_outcome_names_first_and_counts_others() {
        use TaskOutcome::{Drifted, Failed, Succeeded, WouldChange};
        let task_status = |task, outcome| TaskStatus { task, outcome, has_run: true, message: "", since: Timestamp(1) };
        let status_of_task_not_run = |task| TaskStatus { has_run: false, ..task_status(task, Failed) };
        for (outcome_filter, tasks, expected) in [
            (Failed, vec![task_status("a", Succeeded)], None),
            (Failed, vec![task_status("a", Succeeded), task_status("b", Failed)], Some("task b failed")),
            (
                Failed,
                vec![task_status("b", Failed), task_status("a", Failed), task_status("c", Failed)],
                Some("task b failed, and 2 more"),
            ),
            (
                Failed,
                vec![status_of_task_not_run("a"), task_status("b", Failed), status_of_task_not_run("c")],
                Some("task b failed"),
            ),
            (Failed, vec![status_of_task_not_run("a")], None),
            (
                Drifted,
                vec![task_status("a", WouldChange), task_status("b", Drifted)],
                Some("task b is not in its desired state and is left so"),
            ),
            (
                Drifted,
                vec![task_status("a", Drifted), task_status("b", Succeeded), task_status("c", Drifted)],
                Some("task a is not in its desired state and is left so, and 1 more"),
            ),
            (WouldChange, vec![task_status("a", WouldChange)], Some("task a was checked and would change something")),
            (
                WouldChange,
                vec![task_status("a", WouldChange), task_status("b", WouldChange)],
                Some("task a was checked and would change something, and 1 more"),
            ),
        ] {
            assert_eq!(tasks_with_outcome_text(outcome_filter, tasks).as_deref(), expected);
        }
    }

    #[test]
    fn stopping_task_is_named_by_message() {
        for (message, expected) in [
            ("Not run: f, which it requires, failed.", Some("f")),
            ("Not run: a b, which it requires, cannot run on this host.", Some("a b")),
            ("f failed", None),
            ("Not run: f failed", None),
        ] {
            assert_eq!(stopping_task(message), expected, "{message}");
        }
    }

    /// A task that requires an observed task does not run, although no task failed.
    #[test]
    fn y06_tasks_not_run_names_first_with_required_task() {
        let task_status =
            |task, has_run, message| TaskStatus { task, outcome: TaskOutcome::Failed, has_run, message, since: Timestamp(1) };
        let not_run_message = "Not run: f, which it requires, is neither run nor checked, since its mode is observe.";
        for (tasks, expected) in [
            (vec![], None),
            (vec![task_status("a", true, "no disk")], None),
            (
                vec![task_status("a", true, ""), task_status("dep", false, not_run_message)],
                Some("task dep did not run: f, which it requires, is neither run nor checked, since its mode is observe"),
            ),
            (
                vec![task_status("b", false, "Not run: f, which it requires, failed."), task_status("a", false, not_run_message)],
                Some("task b and 1 more did not run: f, which it requires, failed"),
            ),
            (vec![task_status("dep", false, "f failed")], Some("task dep did not run")),
        ] {
            assert_eq!(tasks_not_run_text(tasks).as_deref(), expected);
        }
    }

    #[test]
    fn y09_pending_results_names_first_and_counts_others() {
        for (pending_ids, expected) in [
            (&[][..], None),
            (&["slow"], Some("the result of task slow has not arrived yet")),
            (&["slow", "a", "b"], Some("the results of task slow and of 2 more have not arrived yet")),
        ] {
            assert_eq!(pending_results_text(pending_ids.iter().copied()).as_deref(), expected);
        }
    }

    /// `released` is `None` if no task set was released. Without a report, outcomes do not count.
    #[test]
    fn task_summary_depends_on_released_tasks_and_reports() {
        let succeeded = [Some(TaskOutcome::Succeeded)];
        for (released, has_reported, expected) in [
            (None, true, TaskSummary::NotReleased),
            (Some(&[][..]), false, TaskSummary::NothingToRun),
            (Some(&[][..]), true, TaskSummary::NothingToRun),
            (Some(&succeeded[..]), false, TaskSummary::Unreported),
            (Some(&succeeded[..]), true, TaskSummary::Succeeded),
        ] {
            assert_eq!(
                TaskSummary::from_outcomes(released.map(|outcomes| outcomes.iter().copied()), has_reported),
                expected,
                "{released:?}"
            );
        }
    }

    #[test]
    fn task_summary_is_worst_outcome() {
        use TaskOutcome::{Drifted, Failed, Succeeded, WouldChange};
        for (outcomes, expected) in [
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
            assert_eq!(TaskSummary::from_outcomes(Some(outcomes.iter().copied()), true), expected, "{outcomes:?}");
        }
    }
}
