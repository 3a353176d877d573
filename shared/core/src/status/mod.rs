//! The state of a node: one word, with its reason.
//!
//! The state is a function of a few inputs. So a list, a description and a command that waits for a node report the
//! same state. [`State`] lists the states in the order of their precedence.

mod agent_facts;
mod note;
mod orphans;
mod reboot;
mod tasks;

use std::time::Duration;

use serde::Serialize;

use crate::object::{NodeSpec, ReportedState};

pub use agent_facts::{STUCK_FACT, StuckAgent, TASKS_CONTINUE_FACT, is_agent_fact, stuck_reason};
pub use note::{HostConfirmation, NextTaskSet, StatusNote, WithheldBy};
pub use orphans::{CleanUpReport, CleanUpState, ORPHANS_FACT, OrphanedObject, Orphans};
pub use reboot::{BOOT_FACT, REBOOT_FACT, RebootReport, RebootTask};
pub use tasks::{
    AwaitedTask, RESULTS_PENDING_REASON, TASK_FAILED_REASON, TaskOutcome, TaskStatus, TaskSummary, awaited_task_reason,
    barrier_text, closed_barrier_text, first_error_code, first_failure_text, pending_results_text, stopping_task,
    tasks_not_run_text, tasks_with_outcome_text,
};

/// The state of a node, in the order of precedence: if several states apply, the first one is shown. Some causes of
/// [`State::Waiting`] come after [`State::Blocked`]. docs/concepts.md describes each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, Serialize)]
#[display("{}", self.name())]
#[serde(into = "&'static str")]
pub enum State {
    /// The node is in no nodegroup.
    Unplaced,
    /// The node is parked: its host runs no task, and other nodes do not wait for it.
    Parked,
    /// The node's agent has joined, and has had no contact with the controller for longer than its nodegroup allows.
    Silent,
    /// The node's agent cannot store or apply its desired state.
    Stuck,
    /// A task failed, two hosts have the node's identity, its host is ahead of the store, or there is an error among
    /// the node's findings. An unmet requirement of a newer task set does not count while an older one runs.
    Failed,
    /// The node's nodegroup or cluster, or the host itself, is paused.
    Paused,
    /// The node runs an old task set. A hold, an undecided condition, an unmet requirement or an agent that does not know
    /// a task withholds a newer one.
    Held,
    /// The node waits after a restore of the store, or for results in mode `observe`. Or the node is not blocked, and
    /// waits for its agent to join, for its first task set or for the first result of its tasks.
    Waiting,
    /// The node's tasks wait for a task of another host, and that host will not run the task by itself.
    Blocked,
    /// The node's next task set is about to be released, its host has not confirmed the desired state, or results of
    /// tasks are still missing.
    Changing,
    /// The host has drifted from a task, and the agent does not correct the drift.
    Drifted,
    /// At least one task of the node was only checked and would change something.
    Noop,
    /// All tasks of the node are in their desired state.
    Converged,
}

/// A node's state, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The state.
    pub state: State,
    /// The reason of the state, for people. The text completes a sentence that ends in "because".
    pub reason: &'static str,
}

/// The side that parked, paused or held a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// An operator, on the node, its group or its cluster.
    Operator,
    /// Root on the host itself.
    Host,
}

impl SetBy {
    /// Returns the side that set a park, pause or hold. If both sides set it, returns the operator. If no side set it,
    /// returns `None`.
    pub fn from_flags(is_set_by_operator: bool, is_set_on_host: bool) -> Option<Self> {
        if is_set_by_operator { Some(Self::Operator) } else { is_set_on_host.then_some(Self::Host) }
    }
}

/// Returns the sides that parked a node, each with its reason, the operator first. Empty if the node is not parked. The
/// reason of the operator is always empty here, because the field `parked` of the spec has none.
pub fn parked_by<'a>(spec: &NodeSpec, state: Option<&'a ReportedState>) -> impl Iterator<Item = (SetBy, &'a str)> + use<'a> {
    let host_entry = state.and_then(|state| state.parked.as_deref()).map(|reason| (SetBy::Host, reason));
    spec.parked.then_some((SetBy::Operator, "")).into_iter().chain(host_entry)
}

/// Whether a node's agent has joined, and whether it is in contact with the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Liveness {
    /// No agent of the node has joined.
    #[default]
    Absent,
    /// The agent checks in.
    Connected,
    /// The agent checked in before, and then had no contact for longer than its group allows.
    Silent,
}

impl Liveness {
    /// Returns the name of the variant in JSON. The name never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Connected => "connected",
            Self::Silent => "silent",
        }
    }
}

/// The reason of the state `failed` of a node with an error among its findings. The API appends the code of the error.
pub const HAS_ERROR_REASON: &str = "there is an error among its findings";

/// The inputs that decide whether a node's agent is absent, connected or silent.
#[derive(Clone, Copy, Debug)]
pub struct LivenessInputs {
    /// True if the agent was stored as silent when the controller started. `None` if no agent of the node has joined.
    pub is_silent_at_start: Option<bool>,
    /// True if the controller holds a check-in of the agent open now.
    pub has_waiting_check_in: bool,
    /// True if the agent checked in since the controller started.
    pub had_contact_since_start: bool,
    /// Time since the agent's last contact. If the agent had no contact since the controller started, time since that
    /// start. A check-in that the controller holds open is contact until the check-in ends.
    pub time_without_contact: Duration,
    /// Time without contact after which the agent is silent.
    pub silent_after: Duration,
}

impl LivenessInputs {
    /// Returns the liveness of the agent. An agent that was silent when the controller started remains silent until the
    /// agent checks in.
    pub fn liveness(&self) -> Liveness {
        match self.is_silent_at_start {
            None => Liveness::Absent,
            Some(_) if self.has_waiting_check_in => Liveness::Connected,
            Some(was_silent) if (was_silent && !self.had_contact_since_start) || self.silence().is_some() => Liveness::Silent,
            Some(_) => Liveness::Connected,
        }
    }

    /// Returns the time without contact if it has reached `silent_after`. `None` for an agent with an open check-in,
    /// because the controller may hold a check-in open for longer than `silent_after`. Ignores `is_silent_at_start`.
    pub fn silence(&self) -> Option<Duration> {
        (!self.has_waiting_check_in && self.time_without_contact >= self.silent_after).then_some(self.time_without_contact)
    }
}

/// The inputs that decide a node's state and its notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateInputs {
    /// True if the node is in a nodegroup.
    pub is_placed: bool,
    /// The side that parked the node, or `None` if the node is not parked.
    pub parked_by: Option<SetBy>,
    /// The side that paused the node, or `None` if the node is not paused.
    pub paused_by: Option<SetBy>,
    /// True if two hosts check in with the node's identity.
    pub has_duplicate_identity: bool,
    /// True if the host holds a desired state and the controller sends it nothing. The state has a later revision than
    /// the store sent, or is of an epoch that the store does not know. Or the store was restored, and no admin has
    /// resumed the fleet yet.
    pub is_host_ahead: bool,
    /// True if the store was restored from a backup and an admin has not resumed the fleet yet. The controller then
    /// sends nothing to any node.
    pub is_store_waiting: bool,
    /// True if something was sent to the host in an earlier epoch of the store, and nothing in the present epoch. So
    /// the controller does not know whether the host runs its desired state.
    pub is_host_awaited: bool,
    /// True if the controller refused a part of the host's last report.
    pub is_report_refused: bool,
    /// True if the next task set is not released, because its record or the cluster's records would exceed a limit.
    pub is_release_refused: bool,
    /// True if the node does not meet a requirement of its nodegroup, or, before its first tasks are released, of its
    /// instance (`instance_info.traits` of Ironic). The node then also has an error finding.
    pub has_unmet_requirement: bool,
    /// True if resolving the node gave another error, or if its desired state is too large to be sent.
    pub has_error: bool,
    /// True if the agent cannot store or apply its desired state.
    pub is_stuck: bool,
    /// True if the agent reports that its tasks continue to run although it is stuck.
    pub can_run_tasks_when_stuck: bool,
    /// True if a hold of the node is in force.
    pub is_held: bool,
    /// True if the host still has objects that its tasks left and that no task manages now, or a clean-up that has yet to
    /// succeed.
    pub has_orphans: bool,
    /// True if the node's mode is `observe`, so that the host neither checks nor runs a task.
    pub is_observing: bool,
    /// True if the node waits for a task of another host that will not run the task by itself.
    pub is_blocked: bool,
    /// The state of the node's next task set.
    pub next_task_set: NextTaskSet,
    /// The knowledge whether the host has confirmed its desired state.
    pub confirmation: HostConfirmation,
    /// The contact of the node's agent with the controller.
    pub liveness: Liveness,
    /// True if the host has enrolled since the controller started. If its agent has not checked in yet, the first
    /// check-in is expected soon.
    pub has_enrolled: bool,
    /// The summary of the results of the node's released tasks.
    pub tasks: TaskSummary,
}

impl StateInputs {
    /// Returns the node's state with its reason. The match arms are in the order of precedence in docs/concepts.md.
    pub fn status(&self) -> Status {
        let (state, reason) = match self {
            Self { is_placed: false, .. } => (State::Unplaced, "it is in no nodegroup"),
            Self { parked_by: Some(SetBy::Operator), .. } => (State::Parked, "an operator parked it"),
            Self { parked_by: Some(SetBy::Host), .. } => (State::Parked, "it is parked on its host"),
            Self { liveness: Liveness::Silent, .. } => (State::Silent, "its agent does not check in"),
            Self { is_stuck: true, .. } => {
                (State::Stuck, "its agent cannot store or apply its desired state, as its finding host.stuck describes")
            }
            Self { has_duplicate_identity: true, .. } => (State::Failed, "two hosts check in with its identity"),
            Self { is_host_ahead: true, .. } => {
                (State::Failed, "its host has a revision of another copy of the store, so nothing is sent to it")
            }
            // If the next task set is due, a failed task is no longer shown, because the task is in the old task set.
            Self { tasks: TaskSummary::Failed, next_task_set: NextTaskSet::Current | NextTaskSet::Withheld(_), .. } => {
                (State::Failed, TASK_FAILED_REASON)
            }
            Self { has_error: true, .. } | Self { is_report_refused: true, .. } | Self { is_release_refused: true, .. } => {
                (State::Failed, HAS_ERROR_REASON)
            }
            // A node that already has a task set continues to run it. Such a node is held and not failed.
            Self { has_unmet_requirement: true, .. } if !self.has_withheld_task_set() => (State::Failed, HAS_ERROR_REASON),
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
            Self { next_task_set: NextTaskSet::Withheld(withheld_by), .. } if self.has_withheld_task_set() => {
                (State::Held, withheld_by.reason())
            }
            Self { is_store_waiting: true, .. } => (
                State::Waiting,
                "the store was restored from a backup and waits: nothing is sent until an admin runs stemma-controller \
                 resume-fleet",
            ),
            Self { is_host_awaited: true, .. } => {
                (State::Waiting, "its host has not checked in since the present epoch of the store began")
            }
            // A node without an agent waits for its agent to join.
            Self {
                next_task_set: NextTaskSet::Withheld(WithheldBy::Agent),
                tasks: TaskSummary::NotReleased,
                liveness: Liveness::Connected,
                ..
            } => (State::Waiting, "its agent does not know all task types of its first task set"),
            // In mode `observe` the host begins no task in any case. So other nodes do not block the node.
            Self { is_observing: true, tasks, liveness: Liveness::Connected, .. } if tasks.may_wait_for_others() => {
                (State::Waiting, "its mode is observe: its host begins no task")
            }
            Self { is_blocked: true, tasks, liveness: Liveness::Connected, .. } if tasks.may_wait_for_others() => {
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

    /// Returns whether a task set was released to the node and a newer task set is withheld.
    fn has_withheld_task_set(&self) -> bool {
        matches!(self.next_task_set, NextTaskSet::Withheld(_)) && self.tasks.has_task_set()
    }

    /// Returns the notes that apply to the node, in the order of [`StatusNote::ALL`].
    pub fn notes(&self) -> impl Iterator<Item = StatusNote> {
        let notes = [
            (StatusNote::Held, self.is_held),
            (StatusNote::Untold, self.confirmation == HostConfirmation::Unconfirmed),
            (StatusNote::Orphaned, self.has_orphans),
        ];
        notes.into_iter().filter_map(|(note, is_set)| is_set.then_some(note))
    }

    /// Returns whether nodes that wait for any task of this node are blocked.
    ///
    /// A host that has enrolled and is about to join blocks no other node. For a parked node the result is false,
    /// because no node waits for a parked node.
    pub fn is_blocking_others(&self) -> bool {
        let is_agent_present = match self.liveness {
            Liveness::Absent => self.has_enrolled,
            Liveness::Silent => false,
            Liveness::Connected => true,
        };
        let is_inactive = !is_agent_present || self.is_unable_to_run_tasks() || self.is_host_ahead || self.is_observing;
        (is_inactive || self.paused_by.is_some()) && self.parked_by.is_none()
    }

    /// Returns whether the agent is stuck and therefore runs no task.
    const fn is_unable_to_run_tasks(&self) -> bool {
        self.is_stuck && !self.can_run_tasks_when_stuck
    }

    /// Returns whether the node has a next task set that was not released to it. The next task set is withheld, is due
    /// and not released yet, or its release was refused. Other nodes that wait for a task that only the next task set
    /// has are then blocked. For a parked node the result is false, because no node waits for a parked node.
    pub fn is_task_set_withheld(&self) -> bool {
        self.parked_by.is_none() && (self.next_task_set != NextTaskSet::Current || self.is_release_refused)
    }
}

impl From<State> for &'static str {
    fn from(state: State) -> Self {
        state.name()
    }
}

impl State {
    /// All states, in their order of precedence.
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

    /// Returns the state with this name, or `None` if the name is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns the name of the state in JSON and in the API. The name never changes.
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

    /// Returns the inputs of a node that is in a group and whose agent is connected.
    fn placed_inputs(tasks: TaskSummary) -> StateInputs {
        StateInputs { is_placed: true, liveness: Liveness::Connected, tasks, ..StateInputs::default() }
    }

    /// Goes through some rows of the table of states in docs/concepts.md, from `drifted` up to the first row.
    #[test]
    fn status_names_cause_by_precedence() {
        // Each step sets one more input, whose state has precedence over the states of the inputs before.
        let mut inputs = placed_inputs(TaskSummary::Drifted);
        assert_eq!(inputs.status().state, State::Drifted);
        inputs.is_store_waiting = true;
        let reason = "the store was restored from a backup and waits: nothing is sent until an admin runs \
                      stemma-controller resume-fleet";
        assert_eq!(inputs.status(), Status { state: State::Waiting, reason });
        inputs.paused_by = SetBy::from_flags(false, true);
        assert_eq!(inputs.status(), Status { state: State::Paused, reason: "it is paused on its host" });
        inputs.paused_by = SetBy::from_flags(true, true);
        assert_eq!(inputs.status().reason, "its nodegroup or cluster is paused");
        inputs.has_error = true;
        assert_eq!(inputs.status().state, State::Failed);
        inputs.tasks = TaskSummary::Failed;
        assert_eq!(inputs.status(), Status { state: State::Failed, reason: TASK_FAILED_REASON });
        inputs.has_duplicate_identity = true;
        assert_eq!(inputs.status().reason, "two hosts check in with its identity");
        inputs.liveness = Liveness::Silent;
        assert_eq!(inputs.status().state, State::Silent);
        // If both sides parked a node, `parked_by` lists the operator first.
        let reported_state = ReportedState { parked: Some("a disk".into()), ..ReportedState::default() };
        let spec = NodeSpec { parked: true, ..NodeSpec::default() };
        let (operator_entry, host_entry) = ((SetBy::Operator, ""), (SetBy::Host, "a disk"));
        assert_eq!(parked_by(&spec, Some(&reported_state)).collect::<Vec<_>>(), [operator_entry, host_entry]);
        inputs.parked_by = parked_by(&NodeSpec::default(), Some(&reported_state)).next().map(|(set_by, _)| set_by);
        assert_eq!(inputs.status(), Status { state: State::Parked, reason: "it is parked on its host" });
        inputs.is_placed = false;
        assert_eq!(inputs.status().state, State::Unplaced);
    }

    /// A node must not be `converged` while its next task set is not released. The reason of a paused node says whether
    /// a newer task set waits, and whether no task set was released yet.
    #[test]
    fn y06_status_is_not_converged_while_task_set_is_pending() {
        use TaskSummary::{Drifted, Failed, Incomplete, NotReleased, NothingToRun, Succeeded, Unreported, WouldChange};
        let held_by = |set_by| NextTaskSet::Withheld(WithheldBy::Held(set_by));
        let cases = [
            (Succeeded, NextTaskSet::Current, State::Converged),
            (Succeeded, NextTaskSet::Due, State::Changing),
            (Failed, NextTaskSet::Due, State::Changing),
            (Drifted, NextTaskSet::Due, State::Changing),
            (WouldChange, NextTaskSet::Due, State::Changing),
            (NothingToRun, NextTaskSet::Due, State::Changing),
            (NotReleased, NextTaskSet::Due, State::Waiting),
            (Unreported, NextTaskSet::Due, State::Waiting),
            (Succeeded, held_by(SetBy::Operator), State::Held),
            (Incomplete, held_by(SetBy::Host), State::Held),
            (Drifted, NextTaskSet::Withheld(WithheldBy::Undecided), State::Held),
            (NothingToRun, NextTaskSet::Withheld(WithheldBy::Requirement), State::Held),
            (NothingToRun, NextTaskSet::Withheld(WithheldBy::Agent), State::Held),
            (NotReleased, NextTaskSet::Withheld(WithheldBy::Agent), State::Waiting),
            (NotReleased, held_by(SetBy::Operator), State::Waiting),
            (Failed, held_by(SetBy::Operator), State::Failed),
        ];
        for (tasks, next_task_set, state) in cases {
            assert_eq!(
                StateInputs { next_task_set, ..placed_inputs(tasks) }.status().state,
                state,
                "{tasks:?} {next_task_set:?}"
            );
        }
        let paused_status =
            |next_task_set| StateInputs { next_task_set, paused_by: Some(SetBy::Operator), ..placed_inputs(Succeeded) }.status();
        assert_eq!(paused_status(NextTaskSet::Current).reason, "its nodegroup or cluster is paused");
        let expected_status =
            Status { state: State::Paused, reason: "its nodegroup or cluster is paused, and a newer task set waits" };
        assert_eq!(paused_status(NextTaskSet::Withheld(WithheldBy::Paused)), expected_status);
        let (withheld_by_pause, paused_by) = (NextTaskSet::Withheld(WithheldBy::Paused), Some(SetBy::Operator));
        let unreleased_status =
            StateInputs { next_task_set: withheld_by_pause, paused_by, ..placed_inputs(NotReleased) }.status();
        let reason = "its nodegroup or cluster is paused, and no task set was released yet";
        assert_eq!(unreleased_status, Status { state: State::Paused, reason }, "no task set was released before the newer one");
    }

    /// Only a node whose agent is connected waits for an upgrade of the agent.
    #[test]
    fn status_names_outdated_agent_when_no_task_set_was_released() {
        let inputs =
            StateInputs { next_task_set: NextTaskSet::Withheld(WithheldBy::Agent), ..placed_inputs(TaskSummary::NotReleased) };
        let reason = "its agent does not know all task types of its first task set";
        assert_eq!(inputs.status(), Status { state: State::Waiting, reason });
        let absent_status = StateInputs { liveness: Liveness::Absent, ..inputs }.status();
        assert_eq!((absent_status.state, absent_status.reason == reason), (State::Waiting, false), "no agent has joined");
    }

    /// A failure has precedence over a missing confirmation, and so has the case that no result was reported yet. The
    /// note `untold` is shown in each state that occurs in this test.
    #[test]
    fn y06_status_is_changing_when_connected_host_has_not_confirmed() {
        for (tasks, confirmation, liveness, state) in [
            (TaskSummary::Succeeded, HostConfirmation::Confirmed, Liveness::Connected, State::Converged),
            (TaskSummary::Succeeded, HostConfirmation::Unconfirmed, Liveness::Connected, State::Changing),
            (TaskSummary::NothingToRun, HostConfirmation::Unconfirmed, Liveness::Connected, State::Changing),
            (TaskSummary::Drifted, HostConfirmation::Unconfirmed, Liveness::Connected, State::Changing),
            (TaskSummary::Failed, HostConfirmation::Unconfirmed, Liveness::Connected, State::Failed),
            (TaskSummary::Unreported, HostConfirmation::Unconfirmed, Liveness::Connected, State::Waiting),
            (TaskSummary::Succeeded, HostConfirmation::Unconfirmed, Liveness::Silent, State::Silent),
            // A missing confirmation matters only while the agent is connected.
            (TaskSummary::Succeeded, HostConfirmation::Unconfirmed, Liveness::Absent, State::Converged),
        ] {
            let inputs = StateInputs { confirmation, liveness, ..placed_inputs(tasks) };
            assert_eq!(inputs.status().state, state, "{tasks:?} {confirmation:?} {liveness:?}");
            assert_eq!(inputs.notes().any(|note| note == StatusNote::Untold), confirmation == HostConfirmation::Unconfirmed);
        }
    }

    /// A node with a stuck agent is `stuck` although a task failed, and `silent` if the agent is silent. A node that
    /// waits for another host is `blocked` only while its agent is connected, results are missing and no task failed.
    #[test]
    fn y06_stuck_and_blocked_nodes_have_expected_status_and_notes() {
        let stuck_inputs = StateInputs { is_stuck: true, ..placed_inputs(TaskSummary::Failed) };
        assert_eq!(stuck_inputs.status().state, State::Stuck);
        assert_eq!(StateInputs { liveness: Liveness::Silent, ..stuck_inputs }.status().state, State::Silent);
        for (tasks, state) in [
            (TaskSummary::Incomplete, State::Blocked),
            (TaskSummary::Unreported, State::Blocked),
            (TaskSummary::Succeeded, State::Converged),
            (TaskSummary::Failed, State::Failed),
        ] {
            assert_eq!(StateInputs { is_blocked: true, ..placed_inputs(tasks) }.status().state, state, "{tasks:?}");
        }
        let absent_inputs =
            StateInputs { is_blocked: true, liveness: Liveness::Absent, ..placed_inputs(TaskSummary::Unreported) };
        assert_eq!(absent_inputs.status().state, State::Waiting, "a node without an agent is not blocked");
        let noted_inputs =
            StateInputs { is_held: true, has_orphans: true, confirmation: HostConfirmation::Unconfirmed, ..stuck_inputs };
        assert_eq!(noted_inputs.notes().map(StatusNote::name).collect::<Vec<_>>(), ["held", "untold", "orphaned"]);
        assert_eq!(placed_inputs(TaskSummary::Succeeded).notes().count(), 0);
    }

    /// A held node still runs its old task set, so the result is false. No node waits for a parked node.
    #[test]
    fn y06_is_blocking_others_when_paused_stuck_silent_or_observing() {
        let held_by_host = NextTaskSet::Withheld(WithheldBy::Held(SetBy::Host));
        for (inputs, expected) in [
            (placed_inputs(TaskSummary::Incomplete), false),
            (StateInputs { next_task_set: held_by_host, ..placed_inputs(TaskSummary::Incomplete) }, false),
            (StateInputs { is_stuck: true, ..placed_inputs(TaskSummary::Incomplete) }, true),
            (StateInputs { is_stuck: true, can_run_tasks_when_stuck: true, ..placed_inputs(TaskSummary::Incomplete) }, false),
            (StateInputs { paused_by: Some(SetBy::Host), ..placed_inputs(TaskSummary::Failed) }, true),
            (StateInputs { paused_by: Some(SetBy::Operator), ..placed_inputs(TaskSummary::Incomplete) }, true),
            (StateInputs { liveness: Liveness::Silent, ..placed_inputs(TaskSummary::Incomplete) }, true),
            (StateInputs { liveness: Liveness::Absent, ..placed_inputs(TaskSummary::NotReleased) }, true),
            (StateInputs { liveness: Liveness::Absent, has_enrolled: true, ..placed_inputs(TaskSummary::NotReleased) }, false),
            (StateInputs { is_host_ahead: true, ..placed_inputs(TaskSummary::Incomplete) }, true),
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
            assert_eq!(inputs.is_blocking_others(), expected, "{inputs:?}");
        }
    }

    /// A task set also counts as withheld if it is due, or if its release was refused. For a parked node the result is
    /// false. None of these nodes blocks other nodes that wait for tasks of its present task set.
    #[test]
    fn y06_task_set_is_withheld_unless_current_or_parked() {
        let withheld_inputs = |withheld_by| StateInputs {
            next_task_set: NextTaskSet::Withheld(withheld_by),
            ..placed_inputs(TaskSummary::Succeeded)
        };
        for (inputs, is_withheld) in [
            (placed_inputs(TaskSummary::Succeeded), false),
            (withheld_inputs(WithheldBy::Held(SetBy::Operator)), true),
            (withheld_inputs(WithheldBy::Undecided), true),
            (withheld_inputs(WithheldBy::Requirement), true),
            (withheld_inputs(WithheldBy::Agent), true),
            (StateInputs { next_task_set: NextTaskSet::Due, ..placed_inputs(TaskSummary::Succeeded) }, true),
            (StateInputs { is_release_refused: true, ..placed_inputs(TaskSummary::Succeeded) }, true),
            (StateInputs { parked_by: Some(SetBy::Host), ..withheld_inputs(WithheldBy::Requirement) }, false),
        ] {
            assert_eq!((inputs.is_task_set_withheld(), inputs.is_blocking_others()), (is_withheld, false), "{inputs:?}");
        }
    }

    /// A node that has tasks needs results. A node without tasks is `converged` only if its agent is connected.
    #[test]
    fn status_of_node_without_tasks_depends_on_agent() {
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

    /// Regression test: the reason of the state named missing results, but a host in mode `observe` never sends any.
    #[test]
    fn y06_status_is_waiting_when_mode_only_observes() {
        let observing_inputs = |tasks| StateInputs { is_observing: true, ..placed_inputs(tasks) };
        for (inputs, state, reason) in [
            (observing_inputs(TaskSummary::Unreported), State::Waiting, "its mode is observe: its host begins no task"),
            (observing_inputs(TaskSummary::Incomplete), State::Waiting, "its mode is observe: its host begins no task"),
            (placed_inputs(TaskSummary::Unreported), State::Waiting, "no result of its tasks was reported yet"),
            // As in docs/concepts.md, mode `observe` has precedence over other nodes that block the node, and over a
            // missing confirmation.
            (
                StateInputs {
                    is_blocked: true,
                    confirmation: HostConfirmation::Unconfirmed,
                    next_task_set: NextTaskSet::Due,
                    ..observing_inputs(TaskSummary::Incomplete)
                },
                State::Waiting,
                "its mode is observe: its host begins no task",
            ),
            // No result is missing in these two rows.
            (observing_inputs(TaskSummary::NothingToRun), State::Converged, "it has no tasks to run"),
            (observing_inputs(TaskSummary::Succeeded), State::Converged, "all of its tasks have succeeded"),
        ] {
            assert_eq!(inputs.status(), Status { state, reason });
        }
    }

    #[test]
    fn y06_status_counts_missing_results_before_drift() {
        use TaskOutcome::{Drifted, Succeeded};
        for (outcomes, is_blocked, state) in [
            ([Some(Drifted), None], true, State::Blocked),
            ([None, Some(Drifted)], true, State::Blocked),
            ([Some(Drifted), None], false, State::Changing),
            ([Some(Drifted), Some(Succeeded)], false, State::Drifted),
            // All tasks of the node have a result, so a closed barrier no longer stops any of them.
            ([Some(Drifted), Some(Succeeded)], true, State::Drifted),
        ] {
            // The argument `true` means that the node has reported results.
            let inputs = StateInputs { is_blocked, ..placed_inputs(TaskSummary::from_outcomes(Some(outcomes), true)) };
            assert_eq!(inputs.status().state, state, "{outcomes:?}");
        }
    }

    /// Regression test: an unmet requirement was treated as any other error, so the node was `failed` and not `held`. A
    /// node without an older task set, or with another error, is still `failed`.
    #[test]
    fn y06_status_is_held_when_unmet_and_older_set_runs() {
        let unmet_inputs =
            |tasks, next_task_set| StateInputs { has_unmet_requirement: true, next_task_set, ..placed_inputs(tasks) };
        let (withheld_by_requirement, withheld_by_hold) =
            (NextTaskSet::Withheld(WithheldBy::Requirement), NextTaskSet::Withheld(WithheldBy::Held(SetBy::Operator)));
        let held_inputs = unmet_inputs(TaskSummary::Succeeded, withheld_by_requirement);
        let held_reason = "it does not meet what its next task set requires, and keeps the one that it has";
        let error_reason = "there is an error among its findings";
        for (inputs, state, reason) in [
            (held_inputs, State::Held, held_reason),
            (unmet_inputs(TaskSummary::Incomplete, withheld_by_requirement), State::Held, held_reason),
            (unmet_inputs(TaskSummary::NothingToRun, withheld_by_requirement), State::Held, held_reason),
            (
                unmet_inputs(TaskSummary::Succeeded, withheld_by_hold),
                State::Held,
                "an operator holds it: it keeps its task set, and a newer one waits",
            ),
            (
                StateInputs { paused_by: Some(SetBy::Operator), ..held_inputs },
                State::Paused,
                "its nodegroup or cluster is paused, and a newer task set waits",
            ),
            (unmet_inputs(TaskSummary::NotReleased, withheld_by_requirement), State::Failed, error_reason),
            (unmet_inputs(TaskSummary::Succeeded, NextTaskSet::Current), State::Failed, error_reason),
            (unmet_inputs(TaskSummary::Failed, withheld_by_requirement), State::Failed, "a task failed"),
            (StateInputs { has_error: true, ..held_inputs }, State::Failed, error_reason),
            (StateInputs { is_report_refused: true, ..held_inputs }, State::Failed, error_reason),
            (StateInputs { is_release_refused: true, ..held_inputs }, State::Failed, error_reason),
        ] {
            assert_eq!(inputs.status(), Status { state, reason }, "{inputs:?}");
        }
    }

    /// Goes through the table of states in docs/concepts.md from the last row to the first. Each step sets one more
    /// input, whose state has precedence over the states of the rows below.
    #[test]
    fn y06_concepts_page_lists_states_in_order() {
        let page_lines = include_str!("../../../../docs/concepts.md").lines();
        let rows = page_lines.skip_while(|line| !line.starts_with("| state | when |")).skip(2);
        let rows: Vec<&str> = rows.take_while(|line| line.starts_with("| ")).collect();
        let state_names: Vec<&str> = rows.iter().filter_map(|row| row.split('`').nth(1)).collect();
        let steps: [fn(&mut StateInputs); 14] = [
            // The first step sets nothing, so the node is `converged`.
            |_| (),
            |inputs| inputs.tasks = TaskSummary::WouldChange,
            |inputs| inputs.tasks = TaskSummary::Drifted,
            |inputs| inputs.confirmation = HostConfirmation::Unconfirmed,
            |inputs| inputs.tasks = TaskSummary::Unreported,
            |inputs| inputs.is_blocked = true,
            |inputs| inputs.is_observing = true,
            |inputs| inputs.next_task_set = NextTaskSet::Withheld(WithheldBy::Held(SetBy::Operator)),
            |inputs| inputs.paused_by = Some(SetBy::Operator),
            |inputs| inputs.has_error = true,
            |inputs| inputs.is_stuck = true,
            |inputs| inputs.liveness = Liveness::Silent,
            |inputs| inputs.parked_by = Some(SetBy::Operator),
            |inputs| inputs.is_placed = false,
        ];
        let mut inputs = placed_inputs(TaskSummary::Succeeded);
        let mut expected: Vec<&str> = Vec::new();
        for apply_step in steps {
            apply_step(&mut inputs);
            expected.insert(0, inputs.status().state.name());
        }
        assert_eq!(state_names, expected);
        let is_first_occurrence = |index: &usize| !state_names[..*index].contains(&state_names[*index]);
        let distinct_names: Vec<&str> =
            (0..state_names.len()).filter(is_first_occurrence).map(|index| state_names[index]).collect();
        assert_eq!(distinct_names, State::ALL.map(State::name));
    }

    /// `limit` is the time after which the agent is silent. A check-in that the controller holds open counts as
    /// contact. An agent that was silent when the controller started remains silent until it checks in.
    #[test]
    fn liveness_is_connected_while_check_in_waits_or_is_recent() {
        let (below_limit, limit) = (Duration::from_secs(89), Duration::from_secs(90));
        for (is_silent_at_start, has_waiting_check_in, is_heard_since_start, silent_for, liveness) in [
            (None, true, true, below_limit, Liveness::Absent),
            (Some(true), true, false, limit, Liveness::Connected),
            (Some(false), true, true, limit, Liveness::Connected),
            (Some(false), false, false, below_limit, Liveness::Connected),
            (Some(false), false, false, limit, Liveness::Silent),
            (Some(true), false, false, below_limit, Liveness::Silent),
            (Some(true), false, true, below_limit, Liveness::Connected),
            (Some(true), false, true, limit, Liveness::Silent),
        ] {
            let inputs = LivenessInputs {
                is_silent_at_start,
                has_waiting_check_in,
                had_contact_since_start: is_heard_since_start,
                time_without_contact: silent_for,
                silent_after: limit,
            };
            assert_eq!(inputs.liveness(), liveness, "{inputs:?}");
            assert_eq!(inputs.silence(), (silent_for == limit && !has_waiting_check_in).then_some(limit), "y06: {inputs:?}");
        }
    }

    #[test]
    fn state_names_in_json_are_stable_and_ordered() {
        let states = State::ALL;
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
        assert_eq!(json!(states), names);
        assert!(states.is_sorted() && states.iter().all(|state| State::from_name(state.name()) == Some(*state)));
    }
}
