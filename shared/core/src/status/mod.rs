//! The state of a node: one word, with its reason.
//!
//! The state is a function of a few inputs, so that a list, a description and a command that waits for a node report
//! the same state. What prevents a node from getting or running tasks comes before the results of its tasks.

mod agent_facts;
mod note;
mod tasks;

use std::time::Duration;

use serde::Serialize;

use crate::object::{NodeSpec, ReportedState};

pub use agent_facts::{
    ORPHANS_FACT, OrphanedPath, OrphanedPaths, RUNS_ON_FACT, STUCK_FACT, StuckAgent, is_agent_fact, orphaned_paths, stuck_reason,
};
pub use note::{HostConfirmation, NextTaskSet, StatusNote, WithheldBy};
pub use tasks::{
    AwaitedTask, RESULTS_PENDING_REASON, TASK_FAILED_REASON, TaskOutcome, TaskStatus, TaskSummary, barrier_text,
    closed_barrier_text, first_error, last_error, pending_reason, pending_results, tasks_not_run, tasks_with_outcome,
};

/// The state of a node. If several apply, the first one in this order is the node's state. docs/concepts.md describes
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, Serialize)]
#[display("{}", self.name())]
#[serde(into = "&'static str")]
pub enum State {
    /// The node is in no nodegroup.
    Unplaced,
    /// The node is parked: budgets and barriers skip it.
    Parked,
    /// The node's agent does not check in.
    Silent,
    /// The node's agent cannot store or apply its desired state.
    Stuck,
    /// A task failed, two hosts have the node's identity, or an error among the node's findings withholds a task or its
    /// whole desired state. If the error withholds only a newer task set, the state is [`State::Held`].
    Failed,
    /// The node's tasks are paused.
    Paused,
    /// The node keeps an old task set, and a newer one waits.
    Held,
    /// The whole fleet waits because the store was restored, or the node's mode is `observe`, or no result of its tasks
    /// was reported yet and the node is not blocked.
    Waiting,
    /// The node's tasks wait for a task of another host that will not run it by itself, or that is blocked itself.
    Blocked,
    /// The node's next task set is about to be released, its host has not confirmed its desired state, or results are
    /// still missing.
    Changing,
    /// A task is not in its desired state, and is left so.
    Drifted,
    /// The node's tasks were checked, and something would change.
    Noop,
    /// All tasks of the node are in their desired state.
    Converged,
}

/// A node's state, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The state.
    pub state: State,
    /// The reason, as the end of a sentence that people read: "because ...".
    pub reason: &'static str,
}

/// Who parked, paused or held a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// An operator, on the node, its group or its cluster.
    Operator,
    /// Someone on the host itself.
    Host,
}

impl SetBy {
    /// Returns who parked, paused or held a node. If both did, returns the operator.
    pub fn from_flags(by_operator: bool, on_host: bool) -> Option<Self> {
        if by_operator { Some(Self::Operator) } else { on_host.then_some(Self::Host) }
    }
}

/// Returns who parked a node, each with the reason, the operator first. Empty if the node is not parked. Budgets and
/// barriers skip a parked node, and it is not elected as primary.
pub fn parked_by<'a>(spec: &NodeSpec, state: Option<&'a ReportedState>) -> impl Iterator<Item = (SetBy, &'a str)> + use<'a> {
    let on_host = state.and_then(|state| state.parked.as_deref()).map(|reason| (SetBy::Host, reason));
    spec.parked.then_some((SetBy::Operator, "")).into_iter().chain(on_host)
}

/// Whether a node's agent checks in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Liveness {
    /// No agent of the node has joined.
    #[default]
    Absent,
    /// The agent checks in.
    Connected,
    /// The agent checked in before, and has been silent for too long.
    Silent,
}

impl Liveness {
    /// Returns the stable name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Connected => "connected",
            Self::Silent => "silent",
        }
    }
}

/// The reason of a failed node that has an error among its findings.
pub const HAS_ERROR_REASON: &str = "there is an error among its findings";

/// What decides whether a node's agent counts as connected or silent.
#[derive(Clone, Copy, Debug)]
pub struct LivenessInputs {
    /// True if the stored state of the agent was silent when the controller started. `None` if no agent has joined.
    pub is_silent_at_start: Option<bool>,
    /// True if the controller holds a check-in of the agent open now.
    pub has_waiting_check_in: bool,
    /// True if the agent was in contact since the controller started.
    pub is_heard_since_start: bool,
    /// Time since the agent's last contact, or since the controller started. A waiting check-in counts as contact until
    /// it ends.
    pub silent_for: Duration,
    /// Time without contact after which the agent counts as silent.
    pub silent_after: Duration,
}

impl LivenessInputs {
    /// Returns the liveness of the agent. An agent that was silent before the controller started remains silent until
    /// it checks in. Any other agent has the full time again from the start of the controller.
    pub fn liveness(&self) -> Liveness {
        match self.is_silent_at_start {
            None => Liveness::Absent,
            Some(_) if self.has_waiting_check_in => Liveness::Connected,
            Some(was_silent) if (was_silent && !self.is_heard_since_start) || self.silence().is_some() => Liveness::Silent,
            Some(_) => Liveness::Connected,
        }
    }

    /// Returns how long the agent was not in contact, if that is long enough to be silent. An agent with a waiting
    /// check-in is connected, however long ago the check-in began, because a check-in may be held open for longer than
    /// a group's `silent_after_seconds`.
    pub fn silence(&self) -> Option<Duration> {
        (!self.has_waiting_check_in && self.silent_for >= self.silent_after).then_some(self.silent_for)
    }
}

/// The inputs that decide a node's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateInputs {
    /// True if the node is in a nodegroup.
    pub is_placed: bool,
    /// Who parked the node, or `None` if it is not parked.
    pub parked_by: Option<SetBy>,
    /// Who paused the node, or `None` if it is not paused.
    pub paused_by: Option<SetBy>,
    /// True if two hosts check in with the node's identity.
    pub is_duplicated: bool,
    /// True if the host has a revision of another copy of the store, so that nothing is sent to it.
    pub is_ahead: bool,
    /// True if nothing is sent to any node, because the store was restored from a backup and waits.
    pub is_store_waiting: bool,
    /// True if the host has not checked in since the present epoch of the store began, so that it is not known whether
    /// it runs its desired state.
    pub is_host_awaited: bool,
    /// True if a part of the host's last report was refused.
    pub is_report_refused: bool,
    /// True if the store refuses the record of what is released to the node.
    pub is_release_refused: bool,
    /// True if the node does not meet what its next task set requires. This is also an error among its findings.
    pub is_unmet: bool,
    /// True if the node's other findings include an error.
    pub has_error: bool,
    /// True if the agent cannot store or apply its desired state.
    pub is_stuck: bool,
    /// True if the agent still runs its tasks when it is stuck.
    pub can_run_tasks: bool,
    /// True if a hold is in force.
    pub is_held: bool,
    /// True if the host still has paths that its tasks wrote and that no task manages now.
    pub is_orphaned: bool,
    /// True if the node's mode is `observe`, so that the host neither checks nor runs a task.
    pub is_observing: bool,
    /// True if a barrier is closed for the node, and will not open by itself.
    pub is_blocked: bool,
    /// The state of the node's next task set.
    pub next_task_set: NextTaskSet,
    /// Whether the host has confirmed its desired state.
    pub confirmation: HostConfirmation,
    /// Whether the agent checks in.
    pub liveness: Liveness,
    /// True if the host enrolled since the controller started. An agent that has not checked in yet is then expected to
    /// do so soon.
    pub has_enrolled: bool,
    /// The results of the tasks that were released to the node.
    pub tasks: TaskSummary,
}

impl StateInputs {
    /// Returns the state that follows from these inputs.
    pub fn status(&self) -> Status {
        let (state, reason) = match self {
            Self { is_placed: false, .. } => (State::Unplaced, "it is in no nodegroup"),
            Self { parked_by: Some(SetBy::Operator), .. } => (State::Parked, "an operator parked it"),
            Self { parked_by: Some(SetBy::Host), .. } => (State::Parked, "it is parked on its host"),
            Self { liveness: Liveness::Silent, .. } => (State::Silent, "its agent does not check in"),
            Self { is_stuck: true, .. } => {
                (State::Stuck, "its agent cannot store or apply its desired state, as its finding host.stuck describes")
            }
            Self { is_duplicated: true, .. } => (State::Failed, "two hosts check in with its identity"),
            Self { is_ahead: true, .. } => {
                (State::Failed, "its host has a revision of another copy of the store, so nothing is sent to it")
            }
            // If the next task set is due, a failure is no longer shown, because it belongs to the old task set.
            Self { tasks: TaskSummary::Failed, next_task_set: NextTaskSet::Current | NextTaskSet::Withheld(_), .. } => {
                (State::Failed, TASK_FAILED_REASON)
            }
            Self { has_error: true, .. } | Self { is_report_refused: true, .. } | Self { is_release_refused: true, .. } => {
                (State::Failed, HAS_ERROR_REASON)
            }
            // If the node already has a task set, that one continues to run, and the node is held instead.
            Self { is_unmet: true, .. } if !self.has_withheld_task_set() => (State::Failed, HAS_ERROR_REASON),
            Self {
                paused_by: Some(SetBy::Operator),
                next_task_set: NextTaskSet::Withheld(_),
                tasks: TaskSummary::NotReleased,
                ..
            } => (State::Paused, "its nodegroup or cluster is paused, and no task set was released yet"),
            Self { paused_by: Some(SetBy::Operator), next_task_set: NextTaskSet::Withheld(_), .. } => {
                (State::Paused, "its nodegroup or cluster is paused, and a newer task set waits")
            }
            Self { paused_by: Some(SetBy::Operator), .. } => (State::Paused, "its nodegroup or cluster is paused"),
            Self { paused_by: Some(SetBy::Host), .. } => (State::Paused, "it is paused on its host"),
            Self { next_task_set: NextTaskSet::Withheld(cause), .. } if self.has_withheld_task_set() => {
                (State::Held, cause.reason())
            }
            Self { is_store_waiting: true, .. } => (
                State::Waiting,
                "the store was restored from a backup and waits: nothing is sent until an admin runs stemma-controller \
                 resume-fleet",
            ),
            Self { is_host_awaited: true, .. } => {
                (State::Waiting, "its host has not checked in since the present epoch of the store began")
            }
            // In mode `observe` the host begins no task, whatever the other nodes do. So the node is not blocked by
            // them.
            Self { is_observing: true, tasks, liveness: Liveness::Connected, .. } if tasks.may_wait() => {
                (State::Waiting, "its mode is observe: its host begins no task")
            }
            Self { is_blocked: true, tasks, liveness: Liveness::Connected, .. } if tasks.may_wait() => {
                (State::Blocked, "its tasks wait for a task of another host that will not run it by itself")
            }
            Self { next_task_set: NextTaskSet::Due, tasks, liveness, .. } if tasks.is_reported(*liveness) => {
                (State::Changing, "its next task set is on its way")
            }
            Self { confirmation: HostConfirmation::Unconfirmed, tasks, liveness: Liveness::Connected, .. }
                if tasks.is_reported(Liveness::Connected) =>
            {
                (State::Changing, "its host has not confirmed its desired state")
            }
            Self { tasks, liveness, .. } => return tasks.status(*liveness),
        };
        Status { state, reason }
    }

    /// Returns whether a task set was released to the node, and a newer one is withheld.
    fn has_withheld_task_set(&self) -> bool {
        matches!(self.next_task_set, NextTaskSet::Withheld(_)) && self.tasks.has_task_set()
    }

    /// Returns the notes that apply to the node, in the order of [`StatusNote::ALL`].
    pub fn notes(&self) -> impl Iterator<Item = StatusNote> {
        let is_untold = self.confirmation == HostConfirmation::Unconfirmed;
        let all = [(StatusNote::Held, self.is_held), (StatusNote::Untold, is_untold), (StatusNote::Orphaned, self.is_orphaned)];
        all.into_iter().filter_map(|(note, applies)| applies.then_some(note))
    }

    /// Returns whether the node runs no task until somebody acts, so that nodes that wait for its tasks are stuck. A
    /// node whose agent never joined counts too, unless its host has enrolled and is about to join. A parked node does
    /// not count, because no node waits for it.
    pub fn is_holding_others_up(&self) -> bool {
        let is_there = match self.liveness {
            Liveness::Absent => self.has_enrolled,
            Liveness::Silent => false,
            Liveness::Connected => true,
        };
        let is_inactive = !is_there || self.is_unable_to_run() || self.is_ahead || self.is_observing || self.paused_by.is_some();
        is_inactive && self.parked_by.is_none()
    }

    /// Returns whether the agent is stuck and begins no task.
    const fn is_unable_to_run(&self) -> bool {
        self.is_stuck && !self.can_run_tasks
    }

    /// Returns whether the node keeps its task set until somebody acts, so that other nodes wait in vain for a task
    /// that this set lacks. A task set that is due and was not released yet counts as withheld.
    pub fn is_withheld(&self) -> bool {
        self.parked_by.is_none() && (self.next_task_set != NextTaskSet::Current || self.is_release_refused)
    }
}

impl From<State> for &'static str {
    fn from(state: State) -> Self {
        state.name()
    }
}

impl State {
    /// All states, in their order.
    pub const ALL: [Self; 13] = [
        Self::Unplaced,
        Self::Parked,
        Self::Silent,
        Self::Stuck,
        Self::Failed,
        Self::Paused,
        Self::Held,
        Self::Waiting,
        Self::Blocked,
        Self::Changing,
        Self::Drifted,
        Self::Noop,
        Self::Converged,
    ];

    /// Returns the state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns the stable name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unplaced => "unplaced",
            Self::Parked => "parked",
            Self::Silent => "silent",
            Self::Stuck => "stuck",
            Self::Failed => "failed",
            Self::Paused => "paused",
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Changing => "changing",
            Self::Drifted => "drifted",
            Self::Noop => "noop",
            Self::Converged => "converged",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn placed_inputs(tasks: TaskSummary) -> StateInputs {
        StateInputs { is_placed: true, liveness: Liveness::Connected, tasks, ..StateInputs::default() }
    }

    #[test]
    fn status_checks_blockers_before_task_outcomes() {
        // Each row adds one input to those below it, and its state wins.
        let mut facts = placed_inputs(TaskSummary::Drifted);
        assert_eq!(facts.status().state, State::Drifted);
        facts.is_store_waiting = true;
        let reason = "the store was restored from a backup and waits: nothing is sent until an admin runs \
                      stemma-controller resume-fleet";
        assert_eq!(facts.status(), Status { state: State::Waiting, reason });
        facts.paused_by = SetBy::from_flags(false, true);
        assert_eq!(facts.status(), Status { state: State::Paused, reason: "it is paused on its host" });
        facts.paused_by = SetBy::from_flags(true, true);
        assert_eq!(facts.status().reason, "its nodegroup or cluster is paused");
        facts.has_error = true;
        assert_eq!(facts.status().state, State::Failed);
        facts.tasks = TaskSummary::Failed;
        assert_eq!(facts.status(), Status { state: State::Failed, reason: TASK_FAILED_REASON });
        facts.is_duplicated = true;
        assert_eq!(facts.status().reason, "two hosts check in with its identity");
        facts.liveness = Liveness::Silent;
        assert_eq!(facts.status().state, State::Silent);
        let said = ReportedState { parked: Some("a disk".into()), ..ReportedState::default() };
        let spec = NodeSpec { parked: true, ..NodeSpec::default() };
        let (operator, host) = ((SetBy::Operator, ""), (SetBy::Host, "a disk"));
        assert_eq!(parked_by(&spec, Some(&said)).collect::<Vec<_>>(), [operator, host]);
        facts.parked_by = parked_by(&NodeSpec::default(), Some(&said)).next().map(|(side, _)| side);
        assert_eq!(facts.status(), Status { state: State::Parked, reason: "it is parked on its host" });
        facts.is_placed = false;
        assert_eq!(facts.status().state, State::Unplaced);
    }

    /// A node must not be converged while a write has not reached it.
    #[test]
    fn y06_status_is_not_converged_while_task_set_is_pending() {
        use TaskSummary::{Drifted, Failed, Incomplete, NotReleased, NothingToRun, Succeeded, Unreported, WouldChange};
        let held = |side| NextTaskSet::Withheld(WithheldBy::Held(side));
        let rows = [
            (Succeeded, NextTaskSet::Current, State::Converged),
            (Succeeded, NextTaskSet::Due, State::Changing),
            (Failed, NextTaskSet::Due, State::Changing),
            (Drifted, NextTaskSet::Due, State::Changing),
            (WouldChange, NextTaskSet::Due, State::Changing),
            (NothingToRun, NextTaskSet::Due, State::Changing),
            (NotReleased, NextTaskSet::Due, State::Waiting),
            (Unreported, NextTaskSet::Due, State::Waiting),
            (Succeeded, held(SetBy::Operator), State::Held),
            (Incomplete, held(SetBy::Host), State::Held),
            (Drifted, NextTaskSet::Withheld(WithheldBy::Undecided), State::Held),
            (NothingToRun, NextTaskSet::Withheld(WithheldBy::Requirement), State::Held),
            (NotReleased, held(SetBy::Operator), State::Waiting),
            (Failed, held(SetBy::Operator), State::Failed),
        ];
        for (tasks, next, state) in rows {
            assert_eq!(StateInputs { next_task_set: next, ..placed_inputs(tasks) }.status().state, state, "{tasks:?} {next:?}");
        }
        let paused =
            |next| StateInputs { next_task_set: next, paused_by: Some(SetBy::Operator), ..placed_inputs(Succeeded) }.status();
        assert_eq!(paused(NextTaskSet::Current).reason, "its nodegroup or cluster is paused");
        let waits = Status { state: State::Paused, reason: "its nodegroup or cluster is paused, and a newer task set waits" };
        assert_eq!(paused(NextTaskSet::Withheld(WithheldBy::Paused)), waits);
        let (kept, paused) = (NextTaskSet::Withheld(WithheldBy::Paused), Some(SetBy::Operator));
        let never = StateInputs { next_task_set: kept, paused_by: paused, ..placed_inputs(NotReleased) }.status();
        let reason = "its nodegroup or cluster is paused, and no task set was released yet";
        assert_eq!(never, Status { state: State::Paused, reason }, "it has none that another one could wait behind");
    }

    #[test]
    fn y06_status_is_changing_when_connected_host_has_not_confirmed() {
        for (tasks, told, liveness, state) in [
            (TaskSummary::Succeeded, HostConfirmation::Confirmed, Liveness::Connected, State::Converged),
            (TaskSummary::Succeeded, HostConfirmation::Unconfirmed, Liveness::Connected, State::Changing),
            (TaskSummary::NothingToRun, HostConfirmation::Unconfirmed, Liveness::Connected, State::Changing),
            (TaskSummary::Drifted, HostConfirmation::Unconfirmed, Liveness::Connected, State::Changing),
            (TaskSummary::Failed, HostConfirmation::Unconfirmed, Liveness::Connected, State::Failed),
            (TaskSummary::Unreported, HostConfirmation::Unconfirmed, Liveness::Connected, State::Waiting),
            (TaskSummary::Succeeded, HostConfirmation::Unconfirmed, Liveness::Silent, State::Silent),
            (TaskSummary::Succeeded, HostConfirmation::Unconfirmed, Liveness::Absent, State::Converged),
        ] {
            let facts = StateInputs { confirmation: told, liveness, ..placed_inputs(tasks) };
            assert_eq!(facts.status().state, state, "{tasks:?} {told:?} {liveness:?}");
            assert_eq!(facts.notes().any(|note| note == StatusNote::Untold), told == HostConfirmation::Unconfirmed);
        }
    }

    #[test]
    fn y06_status_is_stuck_or_blocked_and_notes_are_independent() {
        let stuck = StateInputs { is_stuck: true, ..placed_inputs(TaskSummary::Failed) };
        assert_eq!(stuck.status().state, State::Stuck);
        assert_eq!(StateInputs { liveness: Liveness::Silent, ..stuck }.status().state, State::Silent);
        for (tasks, state) in [
            (TaskSummary::Incomplete, State::Blocked),
            (TaskSummary::Unreported, State::Blocked),
            (TaskSummary::Succeeded, State::Converged),
            (TaskSummary::Failed, State::Failed),
        ] {
            assert_eq!(StateInputs { is_blocked: true, ..placed_inputs(tasks) }.status().state, state, "{tasks:?}");
        }
        let absent = StateInputs { is_blocked: true, liveness: Liveness::Absent, ..placed_inputs(TaskSummary::Unreported) };
        assert_eq!(absent.status().state, State::Waiting, "no agent is there that waits for anybody");
        let noted = StateInputs { is_held: true, is_orphaned: true, confirmation: HostConfirmation::Unconfirmed, ..stuck };
        assert_eq!(noted.notes().map(StatusNote::name).collect::<Vec<_>>(), ["held", "untold", "orphaned"]);
        assert_eq!(placed_inputs(TaskSummary::Succeeded).notes().count(), 0);
    }

    #[test]
    fn y06_is_holding_others_up_when_node_runs_no_task() {
        let held = NextTaskSet::Withheld(WithheldBy::Held(SetBy::Host));
        for (facts, holds_up) in [
            (placed_inputs(TaskSummary::Incomplete), false),
            (StateInputs { next_task_set: held, ..placed_inputs(TaskSummary::Incomplete) }, false),
            (StateInputs { is_stuck: true, ..placed_inputs(TaskSummary::Incomplete) }, true),
            (StateInputs { is_stuck: true, can_run_tasks: true, ..placed_inputs(TaskSummary::Incomplete) }, false),
            (StateInputs { paused_by: Some(SetBy::Host), ..placed_inputs(TaskSummary::Failed) }, true),
            (StateInputs { paused_by: Some(SetBy::Operator), ..placed_inputs(TaskSummary::Incomplete) }, true),
            (StateInputs { liveness: Liveness::Silent, ..placed_inputs(TaskSummary::Incomplete) }, true),
            (StateInputs { liveness: Liveness::Absent, ..placed_inputs(TaskSummary::NotReleased) }, true),
            (StateInputs { liveness: Liveness::Absent, has_enrolled: true, ..placed_inputs(TaskSummary::NotReleased) }, false),
            (StateInputs { is_ahead: true, ..placed_inputs(TaskSummary::Incomplete) }, true),
            (StateInputs { is_observing: true, ..placed_inputs(TaskSummary::Incomplete) }, true),
            (
                StateInputs {
                    parked_by: Some(SetBy::Host),
                    liveness: Liveness::Silent,
                    ..placed_inputs(TaskSummary::Incomplete)
                },
                false,
            ),
        ] {
            assert_eq!(facts.is_holding_others_up(), holds_up, "{facts:?}");
        }
    }

    #[test]
    fn y06_is_withheld_when_next_task_set_is_blocked() {
        let kept = |keeper| StateInputs { next_task_set: NextTaskSet::Withheld(keeper), ..placed_inputs(TaskSummary::Succeeded) };
        for (facts, keeps) in [
            (placed_inputs(TaskSummary::Succeeded), false),
            (kept(WithheldBy::Held(SetBy::Operator)), true),
            (kept(WithheldBy::Undecided), true),
            (kept(WithheldBy::Requirement), true),
            (StateInputs { next_task_set: NextTaskSet::Due, ..placed_inputs(TaskSummary::Succeeded) }, true),
            (StateInputs { is_release_refused: true, ..placed_inputs(TaskSummary::Succeeded) }, true),
            (StateInputs { parked_by: Some(SetBy::Host), ..kept(WithheldBy::Requirement) }, false),
        ] {
            assert_eq!((facts.is_withheld(), facts.is_holding_others_up()), (keeps, false), "{facts:?}");
        }
    }

    #[test]
    fn status_is_converged_when_no_tasks_and_agent_is_present() {
        for (tasks, liveness, state) in [
            (TaskSummary::NotReleased, Liveness::Connected, State::Waiting),
            (TaskSummary::Unreported, Liveness::Connected, State::Waiting),
            (TaskSummary::NothingToRun, Liveness::Connected, State::Converged),
            (TaskSummary::NothingToRun, Liveness::Absent, State::Waiting),
            (TaskSummary::Succeeded, Liveness::Absent, State::Converged),
        ] {
            assert_eq!(StateInputs { liveness, ..placed_inputs(tasks) }.status().state, state, "{tasks:?} {liveness:?}");
        }
    }

    /// Regression test: the node was reported as waiting for results of its tasks, which never arrive.
    #[test]
    fn y06_status_is_waiting_when_mode_only_observes() {
        let observes = |tasks| StateInputs { is_observing: true, ..placed_inputs(tasks) };
        for (facts, state, reason) in [
            (observes(TaskSummary::Unreported), State::Waiting, "its mode is observe: its host begins no task"),
            (observes(TaskSummary::Incomplete), State::Waiting, "its mode is observe: its host begins no task"),
            (placed_inputs(TaskSummary::Unreported), State::Waiting, "no result of its tasks was reported yet"),
            // As docs/concepts.md describes, the mode comes before other nodes that it waits for, and before a missing
            // confirmation.
            (
                StateInputs {
                    is_blocked: true,
                    confirmation: HostConfirmation::Unconfirmed,
                    next_task_set: NextTaskSet::Due,
                    ..observes(TaskSummary::Incomplete)
                },
                State::Waiting,
                "its mode is observe: its host begins no task",
            ),
            (observes(TaskSummary::NothingToRun), State::Converged, "it has no tasks to run"),
            (observes(TaskSummary::Succeeded), State::Converged, "all of its tasks have succeeded"),
        ] {
            assert_eq!(facts.status(), Status { state, reason });
        }
    }

    #[test]
    fn y06_status_is_blocked_or_changing_when_task_drifted() {
        use TaskOutcome::{Drifted, Succeeded};
        for (outcomes, is_blocked, state) in [
            ([Some(Drifted), None], true, State::Blocked),
            ([None, Some(Drifted)], true, State::Blocked),
            ([Some(Drifted), None], false, State::Changing),
            ([Some(Drifted), Some(Succeeded)], false, State::Drifted),
            // A barrier that closes again does not stop a node that has passed it.
            ([Some(Drifted), Some(Succeeded)], true, State::Drifted),
        ] {
            let facts = StateInputs { is_blocked, ..placed_inputs(TaskSummary::from_outcomes(Some(outcomes), true)) };
            assert_eq!(facts.status().state, state, "{outcomes:?}");
        }
    }

    /// Regression test: the requirement counted as any other error, so no node was ever held by it.
    #[test]
    fn y06_status_is_held_when_unmet_and_older_set_runs() {
        let unmet = |tasks, next| StateInputs { is_unmet: true, next_task_set: next, ..placed_inputs(tasks) };
        let (kept, by_hand) =
            (NextTaskSet::Withheld(WithheldBy::Requirement), NextTaskSet::Withheld(WithheldBy::Held(SetBy::Operator)));
        let keeps = unmet(TaskSummary::Succeeded, kept);
        let held = "it does not meet what its next task set requires, and keeps the one that it has";
        let error = "there is an error among its findings";
        for (facts, state, reason) in [
            (keeps, State::Held, held),
            (unmet(TaskSummary::Incomplete, kept), State::Held, held),
            (unmet(TaskSummary::NothingToRun, kept), State::Held, held),
            (
                unmet(TaskSummary::Succeeded, by_hand),
                State::Held,
                "an operator holds it: it keeps its task set, and a newer one waits",
            ),
            (
                StateInputs { paused_by: Some(SetBy::Operator), ..keeps },
                State::Paused,
                "its nodegroup or cluster is paused, and a newer task set waits",
            ),
            (unmet(TaskSummary::NotReleased, kept), State::Failed, error),
            (unmet(TaskSummary::Succeeded, NextTaskSet::Current), State::Failed, error),
            (unmet(TaskSummary::Failed, kept), State::Failed, "a task failed"),
            (StateInputs { has_error: true, ..keeps }, State::Failed, error),
            (StateInputs { is_report_refused: true, ..keeps }, State::Failed, error),
            (StateInputs { is_release_refused: true, ..keeps }, State::Failed, error),
        ] {
            assert_eq!(facts.status(), Status { state, reason }, "{facts:?}");
        }
    }

    /// From the last row up, each row adds an input to those of the rows below it, and wins over them.
    #[test]
    fn y06_concepts_page_lists_states_in_order() {
        let page = include_str!("../../../../docs/concepts.md").lines();
        let rows = page.skip_while(|line| !line.starts_with("| state | when |")).skip(2);
        let rows: Vec<&str> = rows.take_while(|line| line.starts_with("| ")).collect();
        let words: Vec<&str> = rows.iter().filter_map(|row| row.split('`').nth(1)).collect();
        let from_last: [fn(&mut StateInputs); 14] = [
            |_| (),
            |facts| facts.tasks = TaskSummary::WouldChange,
            |facts| facts.tasks = TaskSummary::Drifted,
            |facts| facts.confirmation = HostConfirmation::Unconfirmed,
            |facts| facts.tasks = TaskSummary::Unreported,
            |facts| facts.is_blocked = true,
            |facts| facts.is_observing = true,
            |facts| facts.next_task_set = NextTaskSet::Withheld(WithheldBy::Held(SetBy::Operator)),
            |facts| facts.paused_by = Some(SetBy::Operator),
            |facts| facts.has_error = true,
            |facts| facts.is_stuck = true,
            |facts| facts.liveness = Liveness::Silent,
            |facts| facts.parked_by = Some(SetBy::Operator),
            |facts| facts.is_placed = false,
        ];
        let mut facts = placed_inputs(TaskSummary::Succeeded);
        let mut expected: Vec<&str> = Vec::new();
        for add in from_last {
            add(&mut facts);
            expected.insert(0, facts.status().state.name());
        }
        assert_eq!(words, expected);
        let is_first = |at: &usize| !words[..*at].contains(&words[*at]);
        let named: Vec<&str> = (0..words.len()).filter(is_first).map(|at| words[at]).collect();
        assert_eq!(named, State::ALL.map(State::name));
    }

    #[test]
    fn liveness_is_connected_while_check_in_waits_or_is_recent() {
        let (short, long) = (Duration::from_secs(89), Duration::from_secs(90));
        for (is_silent_at_start, has_waiting_check_in, is_heard_since_start, silent_for, liveness) in [
            (None, true, true, short, Liveness::Absent),
            (Some(true), true, false, long, Liveness::Connected),
            (Some(false), true, true, long, Liveness::Connected),
            (Some(false), false, false, short, Liveness::Connected),
            (Some(false), false, false, long, Liveness::Silent),
            (Some(true), false, false, short, Liveness::Silent),
            (Some(true), false, true, short, Liveness::Connected),
            (Some(true), false, true, long, Liveness::Silent),
        ] {
            let heard =
                LivenessInputs { is_silent_at_start, has_waiting_check_in, is_heard_since_start, silent_for, silent_after: long };
            assert_eq!(heard.liveness(), liveness, "{heard:?}");
            assert_eq!(heard.silence(), (silent_for == long && !has_waiting_check_in).then_some(long), "y06: {heard:?}");
        }
    }

    #[test]
    fn names_in_json_are_stable_and_ordered() {
        let all = State::ALL;
        let names = json!([
            "unplaced",
            "parked",
            "silent",
            "stuck",
            "failed",
            "paused",
            "held",
            "waiting",
            "blocked",
            "changing",
            "drifted",
            "noop",
            "converged"
        ]);
        assert_eq!(json!(all), names);
        assert!(all.is_sorted() && all.iter().all(|state| State::from_name(state.name()) == Some(*state)));
    }
}
