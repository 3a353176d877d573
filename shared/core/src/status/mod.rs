//! Where a node stands: one word, with its reason.
//!
//! The word is a function of a few facts, so that a list, a description and whoever waits for a node say the same of it. What keeps
//! a node from being told or from running comes before what became of its tasks.

mod beside;
mod reported;
mod tasks;

use std::time::Duration;

use serde::Serialize;

use crate::object::{NodeSpec, SaidOnHost};

pub use beside::{Keeper, Next, Note, Told};
pub use reported::{ORPHANS, Orphan, Orphans, RUNS_ON, STUCK, Stuck, is_of_agent, orphans, stuck};
pub use tasks::{
    A_TASK_FAILED, Awaited, RESULTS_TO_COME, TaskNews, TaskOutcome, Tasks, awaited, awaited_results, barrier,
    first_error, last_error, tasks_not_run, tasks_that, why_not_done,
};

/// Where a node stands. The first that applies, in this order, is its state; docs/concepts.md describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, Serialize)]
#[display("{}", self.name())]
#[serde(into = "&'static str")]
pub enum State {
    /// It stands in no nodegroup.
    Unplaced,
    /// It is out of budgets and barriers.
    Parked,
    /// Its agent does not check in.
    Silent,
    /// Its agent cannot keep or apply what it is told.
    Stuck,
    /// A task failed, two hosts have its identity, or an error among its findings keeps a task or its whole state from it. What only keeps
    /// a newer task set from it is [`State::Held`].
    Failed,
    /// Its tasks wait.
    Paused,
    /// It keeps an old task set, and a newer one waits.
    Held,
    /// The whole fleet waits, since the store was restored; or its mode lets its host begin no task; or nothing was heard of its tasks yet,
    /// and it is not blocked.
    Waiting,
    /// Its tasks wait for a task of another host, which will not do it by itself, or is blocked itself.
    Blocked,
    /// Its next task set is on its way, its host has not confirmed what it was told, or results are still to come.
    Changing,
    /// A task is not as it should be, and is left so.
    Drifted,
    /// Its tasks were checked, and something would change.
    Noop,
    /// All is as it should be.
    Converged,
}

/// A node's state, and why it is this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The word.
    pub state: State,
    /// A sentence's end for people: "because ...".
    pub reason: &'static str,
}

/// Who set a node aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// An operator, on the node, its group or its cluster.
    Operator,
    /// Someone on the host itself.
    Host,
}

impl Side {
    /// The operator's word comes first where both have set a node aside.
    pub fn of(by_operator: bool, on_host: bool) -> Option<Self> {
        if by_operator { Some(Self::Operator) } else { on_host.then_some(Self::Host) }
    }
}

/// Who parked a node, and why, the operator first: it is out of budgets and barriers, and elected to no primary.
pub fn parked<'a>(spec: &NodeSpec, said: Option<&'a SaidOnHost>) -> impl Iterator<Item = (Side, &'a str)> + use<'a> {
    let on_host = said.and_then(|said| said.parked.as_deref()).map(|reason| (Side::Host, reason));
    spec.parked.then_some((Side::Operator, "")).into_iter().chain(on_host)
}

/// Whether a node's agent is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Liveness {
    /// No agent has joined.
    #[default]
    Absent,
    /// Its agent checks in.
    Connected,
    /// Its agent was there, and has been silent for too long.
    Silent,
}

impl Liveness {
    /// The stable name, as it stands in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Connected => "connected",
            Self::Silent => "silent",
        }
    }
}

/// Why a node is failed that has an error among its findings.
pub const AN_ERROR: &str = "there is an error among its findings";

/// When a node's agent was heard of.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// Whether it was silent, as the store said when the controller started; `None`: no agent has joined.
    pub was_silent: Option<bool>,
    /// Whether a check-in of it is held now.
    pub is_parked: bool,
    /// Whether it was heard of since the controller started.
    pub since_start: bool,
    /// How long ago, or how long ago the controller started. A check-in that was held was heard of until it ended.
    pub quiet: Duration,
    /// After how long it counts as silent.
    pub silent_after: Duration,
}

impl Heard {
    /// Whether the agent is there. One that was silent before the controller started is silent until it checks in; the others get their
    /// whole time again.
    pub fn liveness(&self) -> Liveness {
        match self.was_silent {
            None => Liveness::Absent,
            Some(_) if self.is_parked => Liveness::Connected,
            Some(was_silent) if (was_silent && !self.since_start) || self.silence().is_some() => Liveness::Silent,
            Some(_) => Liveness::Connected,
        }
    }

    /// For how long it was not heard of, when that is silence. Whose check-in is held is there, however long ago that began: a host waits
    /// for longer than many a group's silence lasts.
    pub fn silence(&self) -> Option<Duration> {
        (!self.is_parked && self.quiet >= self.silent_after).then_some(self.quiet)
    }
}

/// What decides a node's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether it stands in a nodegroup.
    pub is_placed: bool,
    /// Who parked it.
    pub parked: Option<Side>,
    /// Who paused it.
    pub paused: Option<Side>,
    /// Whether two hosts check in with its identity.
    pub is_doubled: bool,
    /// Whether its host holds a revision of another copy of the store, so that it is told nothing.
    pub is_ahead: bool,
    /// Whether nobody is told anything, since the store was restored from a backup and waits.
    pub is_store_waiting: bool,
    /// Whether its host has not come since the present epoch of the store began, so that nobody knows whether it runs what the store says.
    pub is_host_awaited: bool,
    /// Whether a part of its host's last report was refused.
    pub is_report_refused: bool,
    /// Whether the store refuses what is released to it.
    pub is_release_refused: bool,
    /// Whether it does not meet what its next task set requires, which is an error among its findings.
    pub is_unmet: bool,
    /// Whether an error is among its other findings.
    pub has_error: bool,
    /// Whether its agent cannot keep or apply what it is told.
    pub is_stuck: bool,
    /// Whether it runs its tasks all the same where it is stuck.
    pub runs_on: bool,
    /// Whether a hold is in force.
    pub is_held: bool,
    /// Whether its host keeps paths of tasks that it runs no more.
    pub is_orphaned: bool,
    /// Whether its mode lets it observe alone: it checks and runs no task.
    pub only_observes: bool,
    /// Whether a barrier is shut for it, and a host that it waits for there holds it up.
    pub is_blocked: bool,
    /// Where it stands with its next task set.
    pub next: Next,
    /// Whether its host holds what it was told.
    pub told: Told,
    /// Its agent.
    pub liveness: Liveness,
    /// Whether its host enrolled since the controller started, so that its agent is on its way where it is not there yet.
    pub has_enrolled: bool,
    /// What became of the tasks that were released to it.
    pub tasks: Tasks,
}

impl Facts {
    /// The state that follows.
    pub fn status(&self) -> Status {
        let (state, reason) = match self {
            Self { is_placed: false, .. } => (State::Unplaced, "it is in no nodegroup"),
            Self { parked: Some(Side::Operator), .. } => (State::Parked, "an operator parked it"),
            Self { parked: Some(Side::Host), .. } => (State::Parked, "it is parked on its host"),
            Self { liveness: Liveness::Silent, .. } => (State::Silent, "its agent does not check in"),
            Self { is_stuck: true, .. } => {
                (State::Stuck, "its agent cannot keep or apply what it is told, as its finding host.stuck says")
            }
            Self { is_doubled: true, .. } => (State::Failed, "two hosts check in with its identity"),
            Self { is_ahead: true, .. } => {
                (State::Failed, "its host holds a revision of another copy of the store, and is told nothing")
            }
            // What failed is of the task set before.
            Self { tasks: Tasks::Failed, next: Next::Current | Next::Kept(_), .. } => (State::Failed, A_TASK_FAILED),
            Self { has_error: true, .. }
            | Self { is_report_refused: true, .. }
            | Self { is_release_refused: true, .. } => (State::Failed, AN_ERROR),
            // Where an older task set is kept, that one goes on, and the node is held.
            Self { is_unmet: true, .. } if !self.keeps_an_older_set() => (State::Failed, AN_ERROR),
            Self { paused: Some(Side::Operator), next: Next::Kept(_), tasks: Tasks::NotReleased, .. } => {
                (State::Paused, "its nodegroup or cluster is paused, and no task set has come yet")
            }
            Self { paused: Some(Side::Operator), next: Next::Kept(_), .. } => {
                (State::Paused, "its nodegroup or cluster is paused, and a newer task set waits")
            }
            Self { paused: Some(Side::Operator), .. } => (State::Paused, "its nodegroup or cluster is paused"),
            Self { paused: Some(Side::Host), .. } => (State::Paused, "it is paused on its host"),
            Self { next: Next::Kept(keeper), .. } if self.keeps_an_older_set() => (State::Held, keeper.reason()),
            Self { is_store_waiting: true, .. } => (
                State::Waiting,
                "the store was restored from a backup and waits: nothing is sent until an admin runs stemma-controller \
                 resume-fleet",
            ),
            Self { is_host_awaited: true, .. } => {
                (State::Waiting, "its host has not come since the present epoch of the store began")
            }
            // It would begin none, whatever the others do.
            Self { only_observes: true, tasks, liveness: Liveness::Connected, .. } if tasks.may_wait() => {
                (State::Waiting, "its mode is observe: its host begins no task")
            }
            Self { is_blocked: true, tasks, liveness: Liveness::Connected, .. } if tasks.may_wait() => {
                (State::Blocked, "its tasks wait for a task of another host, which will not do it by itself")
            }
            Self { next: Next::Due, tasks, liveness, .. } if tasks.are_heard_of(*liveness) => {
                (State::Changing, "its next task set is on its way")
            }
            Self { told: Told::No, tasks, liveness: Liveness::Connected, .. }
                if tasks.are_heard_of(Liveness::Connected) =>
            {
                (State::Changing, "its host has not confirmed what it was told")
            }
            Self { tasks, liveness, .. } => return tasks.status(*liveness),
        };
        Status { state, reason }
    }

    /// Whether a task set was released to it, and a newer one is kept from it.
    fn keeps_an_older_set(&self) -> bool {
        matches!(self.next, Next::Kept(_)) && self.tasks.is_of_a_set()
    }

    /// What is so beside its state, in the order of the words.
    pub fn notes(&self) -> impl Iterator<Item = Note> {
        let is_untold = self.told == Told::No;
        let all = [(Note::Held, self.is_held), (Note::Untold, is_untold), (Note::Orphaned, self.is_orphaned)];
        all.into_iter().filter_map(|(note, is_so)| is_so.then_some(note))
    }

    /// Whether others that wait for a task of it wait until somebody does something: it will not run any by itself. One whose agent never
    /// joined runs none either, unless its host is about to. One that is parked is not waited for.
    pub fn holds_others_up(&self) -> bool {
        let is_there = match self.liveness {
            Liveness::Absent => self.has_enrolled,
            Liveness::Silent => false,
            Liveness::Connected => true,
        };
        let is_set_aside =
            !is_there || self.begins_nothing() || self.is_ahead || self.only_observes || self.paused.is_some();
        is_set_aside && self.parked.is_none()
    }

    /// Whether its agent is stuck so that it begins no task.
    const fn begins_nothing(&self) -> bool {
        self.is_stuck && !self.runs_on
    }

    /// Whether it keeps the task set that it has until somebody does something: others wait in vain for a task that this one lacks. What is
    /// due is kept from it where it was not released with the last pass.
    pub fn keeps_its_set(&self) -> bool {
        self.parked.is_none() && (self.next != Next::Current || self.is_release_refused)
    }
}

impl From<State> for &'static str {
    fn from(state: State) -> Self {
        state.name()
    }
}

impl State {
    /// All of them, in their order.
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

    /// The state of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The stable name, as it stands in JSON.
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

    fn placed(tasks: Tasks) -> Facts {
        Facts { is_placed: true, liveness: Liveness::Connected, tasks, ..Facts::default() }
    }

    #[test]
    fn what_keeps_a_node_from_running_comes_before_what_became_of_its_tasks() {
        // Each row adds one fact to those below it, and its state wins.
        let mut facts = placed(Tasks::Drifted);
        assert_eq!(facts.status().state, State::Drifted);
        facts.is_store_waiting = true;
        let reason = "the store was restored from a backup and waits: nothing is sent until an admin runs \
                      stemma-controller resume-fleet";
        assert_eq!(facts.status(), Status { state: State::Waiting, reason });
        facts.paused = Side::of(false, true);
        assert_eq!(facts.status(), Status { state: State::Paused, reason: "it is paused on its host" });
        facts.paused = Side::of(true, true);
        assert_eq!(facts.status().reason, "its nodegroup or cluster is paused");
        facts.has_error = true;
        assert_eq!(facts.status().state, State::Failed);
        facts.tasks = Tasks::Failed;
        assert_eq!(facts.status(), Status { state: State::Failed, reason: A_TASK_FAILED });
        facts.is_doubled = true;
        assert_eq!(facts.status().reason, "two hosts check in with its identity");
        facts.liveness = Liveness::Silent;
        assert_eq!(facts.status().state, State::Silent);
        let said = SaidOnHost { parked: Some("a disk".into()), ..SaidOnHost::default() };
        let spec = NodeSpec { parked: true, ..NodeSpec::default() };
        let (operator, host) = ((Side::Operator, ""), (Side::Host, "a disk"));
        assert_eq!(parked(&spec, Some(&said)).collect::<Vec<_>>(), [operator, host]);
        facts.parked = parked(&NodeSpec::default(), Some(&said)).next().map(|(side, _)| side);
        assert_eq!(facts.status(), Status { state: State::Parked, reason: "it is parked on its host" });
        facts.is_placed = false;
        assert_eq!(facts.status().state, State::Unplaced);
    }

    /// Each row is what the issue asks for: a node never says that it has converged while what was written has not reached it.
    #[test]
    fn y06_what_waits_to_reach_a_node_is_in_its_state() {
        use Tasks::{Drifted, Failed, Incomplete, NotReleased, NothingToRun, Succeeded, Unreported, WouldChange};
        let held = |side| Next::Kept(Keeper::Held(side));
        let rows = [
            (Succeeded, Next::Current, State::Converged),
            (Succeeded, Next::Due, State::Changing),
            (Failed, Next::Due, State::Changing),
            (Drifted, Next::Due, State::Changing),
            (WouldChange, Next::Due, State::Changing),
            (NothingToRun, Next::Due, State::Changing),
            (NotReleased, Next::Due, State::Waiting),
            (Unreported, Next::Due, State::Waiting),
            (Succeeded, held(Side::Operator), State::Held),
            (Incomplete, held(Side::Host), State::Held),
            (Drifted, Next::Kept(Keeper::Undecided), State::Held),
            (NothingToRun, Next::Kept(Keeper::Requirement), State::Held),
            (NotReleased, held(Side::Operator), State::Waiting),
            (Failed, held(Side::Operator), State::Failed),
        ];
        for (tasks, next, state) in rows {
            assert_eq!(Facts { next, ..placed(tasks) }.status().state, state, "{tasks:?} {next:?}");
        }
        let paused = |next| Facts { next, paused: Some(Side::Operator), ..placed(Succeeded) }.status();
        assert_eq!(paused(Next::Current).reason, "its nodegroup or cluster is paused");
        let waits =
            Status { state: State::Paused, reason: "its nodegroup or cluster is paused, and a newer task set waits" };
        assert_eq!(paused(Next::Kept(Keeper::Paused)), waits);
        let (kept, paused) = (Next::Kept(Keeper::Paused), Some(Side::Operator));
        let never = Facts { next: kept, paused, ..placed(NotReleased) }.status();
        let reason = "its nodegroup or cluster is paused, and no task set has come yet";
        assert_eq!(never, Status { state: State::Paused, reason }, "it has none that another one could wait behind");
    }

    #[test]
    fn y06_a_connected_host_that_has_not_confirmed_is_changing_and_noted() {
        for (tasks, told, liveness, state) in [
            (Tasks::Succeeded, Told::Yes, Liveness::Connected, State::Converged),
            (Tasks::Succeeded, Told::No, Liveness::Connected, State::Changing),
            (Tasks::NothingToRun, Told::No, Liveness::Connected, State::Changing),
            (Tasks::Drifted, Told::No, Liveness::Connected, State::Changing),
            (Tasks::Failed, Told::No, Liveness::Connected, State::Failed),
            (Tasks::Unreported, Told::No, Liveness::Connected, State::Waiting),
            (Tasks::Succeeded, Told::No, Liveness::Silent, State::Silent),
            (Tasks::Succeeded, Told::No, Liveness::Absent, State::Converged),
        ] {
            let facts = Facts { told, liveness, ..placed(tasks) };
            assert_eq!(facts.status().state, state, "{tasks:?} {told:?} {liveness:?}");
            assert_eq!(facts.notes().any(|note| note == Note::Untold), told == Told::No);
        }
    }

    #[test]
    fn y06_who_is_stuck_or_blocked_says_so_and_notes_stand_beside_any_state() {
        let stuck = Facts { is_stuck: true, ..placed(Tasks::Failed) };
        assert_eq!(stuck.status().state, State::Stuck);
        assert_eq!(Facts { liveness: Liveness::Silent, ..stuck }.status().state, State::Silent);
        for (tasks, state) in [
            (Tasks::Incomplete, State::Blocked),
            (Tasks::Unreported, State::Blocked),
            (Tasks::Succeeded, State::Converged),
            (Tasks::Failed, State::Failed),
        ] {
            assert_eq!(Facts { is_blocked: true, ..placed(tasks) }.status().state, state, "{tasks:?}");
        }
        let absent = Facts { is_blocked: true, liveness: Liveness::Absent, ..placed(Tasks::Unreported) };
        assert_eq!(absent.status().state, State::Waiting, "no agent is there that waits for anybody");
        let noted = Facts { is_held: true, is_orphaned: true, told: Told::No, ..stuck };
        assert_eq!(noted.notes().map(Note::name).collect::<Vec<_>>(), ["held", "untold", "orphaned"]);
        assert_eq!(placed(Tasks::Succeeded).notes().count(), 0);
    }

    #[test]
    fn y06_who_will_not_run_a_task_by_itself_holds_up_who_waits_for_it() {
        let held = Next::Kept(Keeper::Held(Side::Host));
        for (facts, holds_up) in [
            (placed(Tasks::Incomplete), false),
            (Facts { next: held, ..placed(Tasks::Incomplete) }, false),
            (Facts { is_stuck: true, ..placed(Tasks::Incomplete) }, true),
            (Facts { is_stuck: true, runs_on: true, ..placed(Tasks::Incomplete) }, false),
            (Facts { paused: Some(Side::Host), ..placed(Tasks::Failed) }, true),
            (Facts { paused: Some(Side::Operator), ..placed(Tasks::Incomplete) }, true),
            (Facts { liveness: Liveness::Silent, ..placed(Tasks::Incomplete) }, true),
            (Facts { liveness: Liveness::Absent, ..placed(Tasks::NotReleased) }, true),
            (Facts { liveness: Liveness::Absent, has_enrolled: true, ..placed(Tasks::NotReleased) }, false),
            (Facts { is_ahead: true, ..placed(Tasks::Incomplete) }, true),
            (Facts { only_observes: true, ..placed(Tasks::Incomplete) }, true),
            (Facts { parked: Some(Side::Host), liveness: Liveness::Silent, ..placed(Tasks::Incomplete) }, false),
        ] {
            assert_eq!(facts.holds_others_up(), holds_up, "{facts:?}");
        }
    }

    #[test]
    fn y06_who_is_not_told_its_next_task_set_lacks_what_is_new_in_it() {
        let kept = |keeper| Facts { next: Next::Kept(keeper), ..placed(Tasks::Succeeded) };
        for (facts, keeps) in [
            (placed(Tasks::Succeeded), false),
            (kept(Keeper::Held(Side::Operator)), true),
            (kept(Keeper::Undecided), true),
            (kept(Keeper::Requirement), true),
            (Facts { next: Next::Due, ..placed(Tasks::Succeeded) }, true),
            (Facts { is_release_refused: true, ..placed(Tasks::Succeeded) }, true),
            (Facts { parked: Some(Side::Host), ..kept(Keeper::Requirement) }, false),
        ] {
            assert_eq!((facts.keeps_its_set(), facts.holds_others_up()), (keeps, false), "{facts:?}");
        }
    }

    #[test]
    fn a_node_with_nothing_to_run_has_converged_once_its_agent_is_there() {
        for (tasks, liveness, state) in [
            (Tasks::NotReleased, Liveness::Connected, State::Waiting),
            (Tasks::Unreported, Liveness::Connected, State::Waiting),
            (Tasks::NothingToRun, Liveness::Connected, State::Converged),
            (Tasks::NothingToRun, Liveness::Absent, State::Waiting),
            (Tasks::Succeeded, Liveness::Absent, State::Converged),
        ] {
            assert_eq!(Facts { liveness, ..placed(tasks) }.status().state, state, "{tasks:?} {liveness:?}");
        }
    }

    /// It was said to wait for news of its tasks, which never come.
    #[test]
    fn y06_who_only_observes_says_so_while_its_tasks_are_open() {
        let observes = |tasks| Facts { only_observes: true, ..placed(tasks) };
        for (facts, state, reason) in [
            (observes(Tasks::Unreported), State::Waiting, "its mode is observe: its host begins no task"),
            (observes(Tasks::Incomplete), State::Waiting, "its mode is observe: its host begins no task"),
            (placed(Tasks::Unreported), State::Waiting, "nothing was heard of its tasks yet"),
            // As docs/concepts.md says, its mode comes before whom it would wait for and what its host was not told.
            (
                Facts { is_blocked: true, told: Told::No, next: Next::Due, ..observes(Tasks::Incomplete) },
                State::Waiting,
                "its mode is observe: its host begins no task",
            ),
            (observes(Tasks::NothingToRun), State::Converged, "it has no tasks to run"),
            (observes(Tasks::Succeeded), State::Converged, "all of its tasks have succeeded"),
        ] {
            assert_eq!(facts.status(), Status { state, reason });
        }
    }

    #[test]
    fn y06_a_task_that_drifted_hides_neither_whom_the_others_wait_for_nor_that_they_run() {
        use TaskOutcome::{Drifted, Succeeded};
        for (outcomes, is_blocked, state) in [
            ([Some(Drifted), None], true, State::Blocked),
            ([None, Some(Drifted)], true, State::Blocked),
            ([Some(Drifted), None], false, State::Changing),
            ([Some(Drifted), Some(Succeeded)], false, State::Drifted),
            // A barrier that shut again keeps nobody who is past it.
            ([Some(Drifted), Some(Succeeded)], true, State::Drifted),
        ] {
            let facts = Facts { is_blocked, ..placed(Tasks::of(Some(outcomes), true)) };
            assert_eq!(facts.status().state, state, "{outcomes:?}");
        }
    }

    /// The requirement counted as any other error, so that nobody was ever held by it.
    #[test]
    fn y06_what_a_node_does_not_meet_holds_it_where_it_keeps_an_older_set_and_is_an_error_elsewhere() {
        let unmet = |tasks, next| Facts { is_unmet: true, next, ..placed(tasks) };
        let (kept, by_hand) = (Next::Kept(Keeper::Requirement), Next::Kept(Keeper::Held(Side::Operator)));
        let keeps = unmet(Tasks::Succeeded, kept);
        let held = "it does not meet what its next task set requires, and keeps the one that it has";
        let error = "there is an error among its findings";
        for (facts, state, reason) in [
            (keeps, State::Held, held),
            (unmet(Tasks::Incomplete, kept), State::Held, held),
            (unmet(Tasks::NothingToRun, kept), State::Held, held),
            (
                unmet(Tasks::Succeeded, by_hand),
                State::Held,
                "an operator holds it: it keeps its task set, and a newer one waits",
            ),
            (
                Facts { paused: Some(Side::Operator), ..keeps },
                State::Paused,
                "its nodegroup or cluster is paused, and a newer task set waits",
            ),
            (unmet(Tasks::NotReleased, kept), State::Failed, error),
            (unmet(Tasks::Succeeded, Next::Current), State::Failed, error),
            (unmet(Tasks::Failed, kept), State::Failed, "a task failed"),
            (Facts { has_error: true, ..keeps }, State::Failed, error),
            (Facts { is_report_refused: true, ..keeps }, State::Failed, error),
            (Facts { is_release_refused: true, ..keeps }, State::Failed, error),
        ] {
            assert_eq!(facts.status(), Status { state, reason }, "{facts:?}");
        }
    }

    /// From the last row up, each adds a fact to those of the rows below it, and wins over them.
    #[test]
    fn y06_the_page_has_the_states_in_the_order_in_which_they_apply() {
        let page = include_str!("../../../../docs/concepts.md").lines();
        let rows = page.skip_while(|line| !line.starts_with("| state | when |")).skip(2);
        let rows: Vec<&str> = rows.take_while(|line| line.starts_with("| ")).collect();
        let words: Vec<&str> = rows.iter().filter_map(|row| row.split('`').nth(1)).collect();
        let from_last: [fn(&mut Facts); 14] = [
            |_| (),
            |facts| facts.tasks = Tasks::WouldChange,
            |facts| facts.tasks = Tasks::Drifted,
            |facts| facts.told = Told::No,
            |facts| facts.tasks = Tasks::Unreported,
            |facts| facts.is_blocked = true,
            |facts| facts.only_observes = true,
            |facts| facts.next = Next::Kept(Keeper::Held(Side::Operator)),
            |facts| facts.paused = Some(Side::Operator),
            |facts| facts.has_error = true,
            |facts| facts.is_stuck = true,
            |facts| facts.liveness = Liveness::Silent,
            |facts| facts.parked = Some(Side::Operator),
            |facts| facts.is_placed = false,
        ];
        let mut facts = placed(Tasks::Succeeded);
        let mut stood: Vec<&str> = Vec::new();
        for add in from_last {
            add(&mut facts);
            stood.insert(0, facts.status().state.name());
        }
        assert_eq!(words, stood);
        let is_first = |at: &usize| !words[..*at].contains(&words[*at]);
        let named: Vec<&str> = (0..words.len()).filter(is_first).map(|at| words[at]).collect();
        assert_eq!(named, State::ALL.map(State::name));
    }

    #[test]
    fn an_agent_is_there_while_it_is_held_or_was_heard_of_in_time() {
        let (short, long) = (Duration::from_secs(89), Duration::from_secs(90));
        for (was_silent, is_parked, since_start, quiet, liveness) in [
            (None, true, true, short, Liveness::Absent),
            (Some(true), true, false, long, Liveness::Connected),
            (Some(false), true, true, long, Liveness::Connected),
            (Some(false), false, false, short, Liveness::Connected),
            (Some(false), false, false, long, Liveness::Silent),
            (Some(true), false, false, short, Liveness::Silent),
            (Some(true), false, true, short, Liveness::Connected),
            (Some(true), false, true, long, Liveness::Silent),
        ] {
            let heard = Heard { was_silent, is_parked, since_start, quiet, silent_after: long };
            assert_eq!(heard.liveness(), liveness, "{heard:?}");
            assert_eq!(heard.silence(), (quiet == long && !is_parked).then_some(long), "y06: {heard:?}");
        }
    }

    #[test]
    fn the_names_in_json_are_stable_and_in_order() {
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
        assert!(all.is_sorted() && all.iter().all(|state| State::named(state.name()) == Some(*state)));
    }
}
