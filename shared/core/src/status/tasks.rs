//! What became of all tasks of a node together.

use super::{Facts, Keeper, Liveness, Next, Side, State, Status};
use crate::finding::{Finding, Rule, error_beside};
use crate::object::Timestamp;

/// Why a node is failed of which a task failed.
pub const A_TASK_FAILED: &str = "a task failed";

/// Why a node is changing of whose tasks some have not ended.
pub const RESULTS_TO_COME: &str = "results are still to come";

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
    /// Results are still to come, and no task failed. A task that drifted stops none of its own host, so theirs come too.
    Incomplete,
    /// All have ended, and a task drifted.
    Drifted,
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
                (Self::Incomplete, _) | (_, None) => Self::Incomplete,
                (Self::Drifted, _) | (_, Some(TaskOutcome::Drifted)) => Self::Drifted,
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
            (Self::NothingToRun, Liveness::Connected) => (State::Converged, "it has no tasks to run"),
            (Self::NothingToRun, Liveness::Absent | Liveness::Silent) => (State::Waiting, "its agent is not there yet"),
            (Self::Unreported, _) => (State::Waiting, "nothing was heard of its tasks yet"),
            (Self::Failed, _) => (State::Failed, A_TASK_FAILED),
            (Self::Drifted, _) => (State::Drifted, "a task is not as it should be, and is left so"),
            (Self::Incomplete, _) => (State::Changing, RESULTS_TO_COME),
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
    /// Whether it was tried. One that did not run, since one that it depends on failed, failed with that one.
    pub was_tried: bool,
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

/// Which tasks ended so, by the first of them in the order in which they run, and how many more; `None`: none did. Those that did not run since
/// others failed are not among them.
pub fn tasks_that<'a>(ended: TaskOutcome, news: impl IntoIterator<Item = TaskNews<'a>>) -> Option<String> {
    let mut ended_so = news.into_iter().filter(|one| one.outcome == ended && one.was_tried);
    let first = ended_so.next()?.task;
    let how = match ended {
        TaskOutcome::Succeeded => "succeeded",
        TaskOutcome::WouldChange => "was checked and would change something",
        TaskOutcome::Drifted => "is not as it should be and is left so",
        TaskOutcome::Failed => "failed",
    };
    Some(match ended_so.count() {
        0 => format!("task {first} {how}"),
        more => format!("task {first} {how}, and {more} more"),
    })
}

/// Which tasks did not run since they require others: the first of them in the order in which they run, how many more, and why, as the host
/// said it of the first; `None`: all ran.
pub fn tasks_not_run<'a>(news: impl IntoIterator<Item = TaskNews<'a>>) -> Option<String> {
    let mut not_run = news.into_iter().filter(|one| !one.was_tried);
    let first = not_run.next()?;
    let more = match not_run.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("task {}{more} did not run{}", first.task, why_not_run(first.message)))
}

/// Why a task did not run, as its host said it, behind a colon; empty where that is not known. Hosts of another version may say it in another way.
fn why_not_run(message: &str) -> String {
    let why = message.strip_prefix("Not run: ").map(|why| format!(": {}", why.trim_end_matches('.')));
    why.unwrap_or_default()
}

/// Which results are still to come, by the first of these tasks in the order in which they run, and how many more; `None`: all have come.
pub fn awaited_results<'a>(unended: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut unended = unended.into_iter();
    let first = unended.next()?;
    Some(match unended.count() {
        0 => format!("the result of task {first} has not come yet"),
        more => format!("the results of task {first} and of {more} more have not come yet"),
    })
}

/// The code of the first error among findings, which a node's state names; `None`: there is none. One of these rules, which say what keeps the
/// node's next task set from it, is named where there is no other.
pub fn first_error<'a>(findings: &'a [Finding], keeping: &[Rule]) -> Option<&'a str> {
    let error = error_beside(findings, keeping).or_else(|| error_beside(findings, &[]))?;
    Some(&error.code)
}

/// What is known of a task that others wait for on a node.
#[derive(Clone, Copy, Debug)]
pub struct Awaited<'a> {
    /// The task.
    pub task: &'a str,
    /// What became of it there; `None`: not known yet.
    pub outcome: Option<TaskOutcome>,
    /// What the host said of it, where it failed without being tried, since one that it requires did; `None`: it was tried, or did not fail.
    pub not_run: Option<&'a str>,
    /// Whether it is in the task set that was released to the node.
    pub was_released: bool,
}

impl Awaited<'_> {
    /// Whether it will not succeed by itself on a node of which this is known.
    pub fn is_in_vain(&self, facts: &Facts) -> bool {
        match self.outcome {
            Some(TaskOutcome::Succeeded) => false,
            Some(TaskOutcome::Failed | TaskOutcome::Drifted | TaskOutcome::WouldChange) => true,
            None => facts.holds_others_up() || facts.is_blocked || (facts.keeps_its_set() && !self.was_released),
        }
    }
}

/// Why a node that others wait for has not succeeded in a task yet.
pub fn why_not_done(awaited: &Awaited<'_>, facts: &Facts) -> String {
    let Awaited { task, outcome, not_run, was_released } = *awaited;
    let why = match facts {
        Facts { paused: Some(Side::Host), .. } => "it was paused on its host",
        Facts { liveness: Liveness::Silent, .. } => "it is silent",
        _ if outcome == Some(TaskOutcome::Failed) => {
            return match not_run {
                Some(message) => format!("{task} did not run there{}", why_not_run(message)),
                None => format!("{task} failed there"),
            };
        }
        Facts { is_stuck: true, runs_on: false, .. } => "its agent is stuck",
        Facts { is_ahead: true, .. } => "its host is ahead of the store",
        Facts { paused: Some(Side::Operator), .. } => "its nodegroup or cluster is paused",
        Facts { liveness: Liveness::Absent, .. } => "its agent has not joined",
        Facts { only_observes: true, .. } => "its mode is observe",
        _ if outcome.is_none() && !was_released && facts.keeps_its_set() => {
            return format!("{}, and has no task {task}", why_kept(facts.next));
        }
        Facts { is_blocked: true, .. } if outcome.is_none() => "it is blocked itself",
        _ if outcome == Some(TaskOutcome::Drifted) => return format!("{task} drifted there, and is left so"),
        _ if outcome == Some(TaskOutcome::WouldChange) => return format!("{task} was only checked or observed there"),
        _ => return format!("{task} has not succeeded there"),
    };
    why.to_owned()
}

/// Why a node keeps its task set, as others that wait for it are told.
const fn why_kept(next: Next) -> &'static str {
    match next {
        Next::Kept(Keeper::Held(_)) => "it is held",
        Next::Kept(Keeper::Paused) => "its nodegroup or cluster is paused",
        Next::Kept(Keeper::Undecided) => "the condition of a task that it runs is undecided",
        Next::Kept(Keeper::Requirement) => "it does not meet what its next task set requires",
        Next::Current | Next::Due => "its next task set could not be released",
    }
}

/// What a barrier waits for: a task, on the nodes of a selector.
pub fn barrier(task: &str, selector: &str) -> String {
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

/// What a shut barrier waits for. The first nodes that have not succeeded are named, each with why, of so many.
pub fn awaited(task: &str, selector: &str, nodes: &[(String, String)], of: u64) -> String {
    let named: Vec<String> = nodes.iter().map(|(node, why)| format!("{node} ({why})")).collect();
    let more = match of.saturating_sub(named.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}: {}{more}", barrier(task, selector), named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::rule;

    #[test]
    fn why_others_wait_names_what_keeps_the_node_first() {
        use Liveness::{Absent, Connected, Silent};
        let held = Next::Kept(Keeper::Held(Side::Operator));
        let here = Facts { liveness: Connected, ..Facts::default() };
        let paused = |side| Facts { paused: Some(side), ..here };
        let failed = Some(TaskOutcome::Failed);
        for (facts, outcome, was_released, why, is_in_vain) in [
            (Facts { liveness: Silent, ..paused(Side::Host) }, failed, true, "it was paused on its host", true),
            (Facts { liveness: Silent, ..here }, failed, true, "it is silent", true),
            (Facts { is_stuck: true, ..here }, failed, true, "a failed there", true),
            (Facts { is_stuck: true, ..here }, None, true, "its agent is stuck", true),
            (Facts { is_stuck: true, runs_on: true, ..here }, None, true, "a has not succeeded there", false),
            (paused(Side::Operator), failed, true, "a failed there", true),
            (paused(Side::Operator), None, true, "its nodegroup or cluster is paused", true),
            (Facts { liveness: Absent, ..here }, None, false, "its agent has not joined", true),
            (Facts { next: held, ..here }, None, false, "it is held, and has no task a", true),
            (Facts { next: held, ..here }, None, true, "a has not succeeded there", false),
            (Facts { is_blocked: true, ..here }, None, true, "it is blocked itself", true),
            (Facts { only_observes: true, ..here }, None, true, "its mode is observe", true),
            (here, Some(TaskOutcome::Drifted), true, "a drifted there, and is left so", true),
            (here, Some(TaskOutcome::WouldChange), true, "a was only checked or observed there", true),
            (here, None, true, "a has not succeeded there", false),
        ] {
            let awaited = Awaited { task: "a", outcome, not_run: None, was_released };
            assert_eq!(why_not_done(&awaited, &facts), why);
            assert_eq!(awaited.is_in_vain(&facts), is_in_vain, "y06: {why}");
        }
    }

    /// It was said to have failed, and its host and the list of tasks said that it did not run.
    #[test]
    fn y06_others_wait_for_a_task_that_did_not_run_and_read_which_one_it_requires() {
        let here = Facts { liveness: Liveness::Connected, ..Facts::default() };
        for (facts, not_run, why) in [
            (here, None, "a2 failed there"),
            (
                here,
                Some("Not run: a, which it requires, failed."),
                "a2 did not run there: a, which it requires, failed",
            ),
            (here, Some("a failed"), "a2 did not run there"),
            (Facts { liveness: Liveness::Silent, ..here }, Some("a failed"), "it is silent"),
        ] {
            let awaited = Awaited { task: "a2", outcome: Some(TaskOutcome::Failed), not_run, was_released: true };
            assert_eq!(why_not_done(&awaited, &facts), why);
            assert!(awaited.is_in_vain(&facts), "{why}");
        }
    }

    #[test]
    fn y06_the_error_that_is_named_is_not_the_one_that_only_keeps_the_next_task_set() {
        let found = |rule| Finding::of(rule, "node/n", "x");
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
    fn y06_whom_a_barrier_waits_for_is_said_in_words() {
        let nodes = [("n1".to_owned(), "it is silent".to_owned())];
        for (selector, says) in [
            ("tags x", "a on tags x: n1 (it is silent) and 2 more"),
            ("any of roles x", "a on any of roles x: n1 (it is silent) and 2 more"),
            ("anywhere", "a on every node that has it: n1 (it is silent) and 2 more"),
            ("any of anywhere", "a on any node that has it: n1 (it is silent) and 2 more"),
            ("*", "a on every node with a role or a tag: n1 (it is silent) and 2 more"),
            ("stage", "stage a: n1 (it is silent) and 2 more"),
        ] {
            assert_eq!(awaited("a", selector, &nodes, 3), says);
        }
    }

    #[test]
    fn the_last_error_is_that_of_the_first_task_that_failed() {
        let news = |task, outcome, message| TaskNews { task, outcome, was_tried: true, message, since: Timestamp(1) };
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

    /// A failed node's reason named its task, and that of a drifted node and of one in noop did not.
    #[test]
    fn y06_the_first_task_that_ended_so_is_named_with_how_many_more() {
        use TaskOutcome::{Drifted, Failed, Succeeded, WouldChange};
        let news = |task, outcome| TaskNews { task, outcome, was_tried: true, message: "", since: Timestamp(1) };
        let not_run = |task| TaskNews { was_tried: false, ..news(task, Failed) };
        for (ended, told, says) in [
            (Failed, vec![news("a", Succeeded)], None),
            (Failed, vec![news("a", Succeeded), news("b", Failed)], Some("task b failed")),
            (Failed, vec![news("b", Failed), news("a", Failed), news("c", Failed)], Some("task b failed, and 2 more")),
            (Failed, vec![not_run("a"), news("b", Failed), not_run("c")], Some("task b failed")),
            (Failed, vec![not_run("a")], None),
            (
                Drifted,
                vec![news("a", WouldChange), news("b", Drifted)],
                Some("task b is not as it should be and is left so"),
            ),
            (
                Drifted,
                vec![news("a", Drifted), news("b", Succeeded), news("c", Drifted)],
                Some("task a is not as it should be and is left so, and 1 more"),
            ),
            (WouldChange, vec![news("a", WouldChange)], Some("task a was checked and would change something")),
            (
                WouldChange,
                vec![news("a", WouldChange), news("b", WouldChange)],
                Some("task a was checked and would change something, and 1 more"),
            ),
        ] {
            assert_eq!(tasks_that(ended, told).as_deref(), says);
        }
    }

    /// What requires a task that is only observed does not run, and no task failed.
    #[test]
    fn y06_the_first_task_that_did_not_run_is_named_with_what_it_requires() {
        let news = |task, was_tried, message| TaskNews {
            task,
            outcome: TaskOutcome::Failed,
            was_tried,
            message,
            since: Timestamp(1),
        };
        let why = "Not run: f, which it requires, is neither run nor checked, since its mode is observe.";
        for (told, says) in [
            (vec![], None),
            (vec![news("a", true, "no disk")], None),
            (
                vec![news("a", true, ""), news("dep", false, why)],
                Some(
                    "task dep did not run: f, which it requires, is neither run nor checked, since its mode is observe",
                ),
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
    fn y09_the_first_result_that_is_still_to_come_is_named_with_how_many_more() {
        for (unended, says) in [
            (&[][..], None),
            (&["slow"], Some("the result of task slow has not come yet")),
            (&["slow", "a", "b"], Some("the results of task slow and of 2 more have not come yet")),
        ] {
            assert_eq!(awaited_results(unended.iter().copied()).as_deref(), says);
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
            // As the agent runs what depends on a task that drifted, its result is still to come.
            (&[Some(Drifted), None], Tasks::Incomplete),
            (&[None, Some(Drifted)], Tasks::Incomplete),
            (&[Some(WouldChange), Some(Drifted), Some(Succeeded)], Tasks::Drifted),
            (&[Some(Drifted), Some(Failed)], Tasks::Failed),
        ] {
            assert_eq!(Tasks::of(Some(outcomes.iter().copied()), true), tasks, "{outcomes:?}");
        }
    }
}
