//! What prevents a host from running its tasks, or from getting a new task set. Releases are planned from this list,
//! and explanations and findings are built from it.

use std::fmt::Display;

use crate::finding::{Rule, rule};
use crate::name::truncated;
use crate::object::{HoldEnd, ReportedState, Timestamp};
use crate::requirement::UnmetRequirement;
use crate::resolve::ResolvedNode;
use crate::status::{SetBy, WithheldBy, parked_by};
use crate::task::Mode;
use crate::traits::InstanceTraits;

/// A reason why a node gets no new task set, runs no tasks, or is skipped by barriers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeBlocker<'a> {
    /// The node does not meet a requirement of its group.
    Unmet(&'a UnmetRequirement),
    /// The node is about to get its first tasks, and lacks traits that its instance requires.
    LacksTraits(InstanceTraits),
    /// The node runs this task, and the task's condition takes more steps than allowed. It is not known whether the
    /// task should run.
    Undecided(&'a str),
    /// The node, its group or its cluster is paused.
    Paused(SetBy),
    /// A hold, with its end and its reason.
    Held(SetBy, HoldEnd, &'a str),
    /// The node is parked, with the reason.
    Parked(SetBy, &'a str),
    /// The node has a mode in which nothing is changed.
    Mode(Mode),
}

impl ResolvedNode {
    /// Returns everything that blocks the node, including holds that have ended. `runs` returns whether a task of the
    /// released task set runs. `runs` itself is `None` if no task runs.
    pub(crate) fn blockers<'a>(&'a self, runs: Option<&dyn Fn(&str) -> bool>) -> impl Iterator<Item = NodeBlocker<'a>> {
        let unmet = self.unmet_requirements().iter().map(NodeBlocker::Unmet);
        let is_first = runs.is_none() && self.task_set().is_some();
        let lacks = is_first.then(|| self.check_instance_traits().err()).flatten().map(NodeBlocker::LacksTraits);
        let undecided = self.task_set().into_iter().flat_map(|set| set.undecided_ids());
        let undecided = undecided.filter(move |id| runs.is_some_and(|runs| runs(id))).map(NodeBlocker::Undecided);
        unmet.chain(lacks).chain(undecided).chain(self.authored_blockers())
    }

    /// Returns the pauses, holds, parks and modes that people set on the node or on its host, including holds that have
    /// ended.
    fn authored_blockers(&self) -> impl Iterator<Item = NodeBlocker<'_>> {
        let on_host = self.reported_state();
        let first = [
            on_host.is_some_and(|state| state.paused).then_some(NodeBlocker::Paused(SetBy::Host)),
            self.hold().map(|hold| NodeBlocker::Held(SetBy::Operator, hold.hold_end(), &hold.reason)),
            on_host.and_then(ReportedState::hold_end).map(|(held, reason)| NodeBlocker::Held(SetBy::Host, held, reason)),
        ];
        let parked = parked_by(&self.node().spec, on_host).map(|(side, reason)| NodeBlocker::Parked(side, reason));
        let last = [
            self.is_paused().then_some(NodeBlocker::Paused(SetBy::Operator)),
            Some(self.mode().value).filter(|mode| *mode != Mode::Apply).map(NodeBlocker::Mode),
        ];
        first.into_iter().flatten().chain(parked).chain(last.into_iter().flatten())
    }

    /// Returns the findings about the pause, hold and park that were set on the host itself and are in force at `now`.
    pub(crate) fn host_blocker_findings(&self, now: Timestamp) -> impl Iterator<Item = (Rule, String)> {
        self.authored_blockers().filter(move |blocker| blocker.is_in_force(now)).filter_map(NodeBlocker::finding)
    }
}

impl NodeBlocker<'_> {
    /// Returns whether the blocker has an effect at `now`. Only a hold ends by itself, so any other blocker has one.
    pub(crate) fn is_in_force(&self, now: Timestamp) -> bool {
        match self {
            Self::Held(_, held, _) => held.is_in_force(now),
            _ => true,
        }
    }

    /// Returns what withholds the next task set, in the form that the node's state shows. `None` if the blocker does
    /// not withhold the task set.
    pub(crate) fn withheld_by(&self) -> Option<WithheldBy> {
        match self {
            Self::Held(side, _, _) => Some(WithheldBy::Held(*side)),
            Self::Paused(SetBy::Operator) => Some(WithheldBy::Paused),
            Self::Undecided(_) => Some(WithheldBy::Undecided),
            Self::Unmet(_) | Self::LacksTraits(_) => Some(WithheldBy::Requirement),
            Self::Paused(SetBy::Host) | Self::Parked(..) | Self::Mode(_) => None,
        }
    }

    /// Returns the rule of the error finding that reports the blocker, or `None` if no error reports it.
    pub(crate) fn error_rule(&self) -> Option<Rule> {
        match self {
            Self::Unmet(_) => Some(rule::REQUIREMENT_UNMET),
            Self::LacksTraits(_) => Some(rule::INSTANCE_TRAITS),
            Self::Undecided(_) | Self::Paused(_) | Self::Held(..) | Self::Parked(..) | Self::Mode(_) => None,
        }
    }

    /// Returns when the blocker ends by itself, or `None` if it does not.
    pub(crate) fn ends_at(&self) -> Option<Timestamp> {
        match self {
            Self::Held(_, HoldEnd::Until(end), _) => Some(*end),
            Self::Held(_, HoldEnd::UntilRevoked, _)
            | Self::Unmet(_)
            | Self::LacksTraits(_)
            | Self::Undecided(_)
            | Self::Paused(_)
            | Self::Parked(..)
            | Self::Mode(_) => None,
        }
    }

    /// Returns whether the blocker withholds the next task set. Other blockers stop tasks from running, or barriers
    /// from waiting for the node.
    pub(crate) fn is_withholding(&self) -> bool {
        self.withheld_by().is_some()
    }

    /// Returns the explanation of the blocker for a node that never had a task set, as a sentence.
    pub(crate) fn explanation_without_task_set(self) -> String {
        match self {
            Self::Held(side, _, reason) => format!("{}, and no task set was released yet", hold_text(side, reason)),
            other => other.explanation(),
        }
    }

    /// Returns the explanation of the blocker, as a sentence.
    pub(crate) fn explanation(self) -> String {
        match self {
            Self::Unmet(unmet) => no_task_set(unmet),
            Self::LacksTraits(lacks) => no_task_set(&lacks),
            Self::Undecided(task) => {
                format!("the condition of task {task}, which it runs, is undecided: it keeps the task set that it has")
            }
            Self::Paused(SetBy::Host) => "it is paused on its host, which applies nothing until it is resumed there".into(),
            Self::Paused(SetBy::Operator) => no_task_set(&"its node group or cluster is paused"),
            Self::Held(side, _, reason) => format!("{}: it keeps the task set that it has", hold_text(side, reason)),
            Self::Parked(SetBy::Operator, _) => "it is parked: it runs no task, and others do not wait for it".into(),
            Self::Parked(SetBy::Host, reason) => {
                format!("it is parked on its host{}: it runs no task, and others do not wait for it", reason_suffix(reason))
            }
            Self::Mode(Mode::Observe) => "its mode is observe: no task is even checked".into(),
            Self::Mode(Mode::Noop) => "its mode is noop: tasks are checked, and nothing is changed".into(),
            Self::Mode(Mode::Apply) => "its mode is apply".into(),
        }
    }

    /// Returns the finding about the blocker, if it was set on the host itself. What operators set is not a finding,
    /// and unmet requirements and undecided conditions have findings of their own.
    fn finding(self) -> Option<(Rule, String)> {
        let suffix = |reason| reason_suffix(&truncated(reason).escape_debug().to_string());
        match self {
            Self::Paused(SetBy::Host) => {
                let message =
                    "it was paused on its host: nothing is applied there, and barriers wait for it, until `stemma-agent resume`";
                Some((rule::HOST_PAUSED, message.to_owned()))
            }
            Self::Held(SetBy::Host, _, reason) => {
                Some((rule::HOST_HELD, format!("it is held on its host{}: it keeps its task set", suffix(reason))))
            }
            Self::Parked(SetBy::Host, reason) => {
                let message = format!("it is parked on its host{}: barriers pass it over", suffix(reason));
                Some((rule::HOST_PARKED, message))
            }
            Self::Unmet(_)
            | Self::LacksTraits(_)
            | Self::Undecided(_)
            | Self::Paused(SetBy::Operator)
            | Self::Held(SetBy::Operator, ..)
            | Self::Parked(SetBy::Operator, _)
            | Self::Mode(_) => None,
        }
    }
}

/// Returns the explanation of a blocker that withholds a new task set.
fn no_task_set(why: &dyn Display) -> String {
    format!("{why}: no new task set is released")
}

/// Returns the beginning of a text about a hold, with its reason.
fn hold_text(side: SetBy, reason: &str) -> String {
    let place = match side {
        SetBy::Operator => "",
        SetBy::Host => " on its host",
    };
    format!("it is held{place}{}", reason_suffix(reason))
}

/// Returns a reason in parentheses, or nothing if it is empty.
fn reason_suffix(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanation_names_setter_and_reason() {
        let (held, key, expression) = (HoldEnd::UntilRevoked, "property:memory_mb".to_owned(), ">= 1024".to_owned());
        let unmet = UnmetRequirement { key, expression, actual: "the node has 512".to_owned() };
        for (aside, says) in [
            (NodeBlocker::Unmet(&unmet), "requirement property:memory_mb >= 1024 is not met: no new task set is released"),
            (
                NodeBlocker::Undecided("db"),
                "the condition of task db, which it runs, is undecided: it keeps the task set that it has",
            ),
            (NodeBlocker::Paused(SetBy::Host), "it is paused on its host, which applies nothing until it is resumed there"),
            (NodeBlocker::Paused(SetBy::Operator), "its node group or cluster is paused: no new task set is released"),
            (NodeBlocker::Held(SetBy::Operator, held, "disk"), "it is held (disk): it keeps the task set that it has"),
            (NodeBlocker::Held(SetBy::Host, held, ""), "it is held on its host: it keeps the task set that it has"),
            (NodeBlocker::Parked(SetBy::Operator, ""), "it is parked: it runs no task, and others do not wait for it"),
            (
                NodeBlocker::Parked(SetBy::Host, "x"),
                "it is parked on its host (x): it runs no task, and others do not wait for it",
            ),
            (NodeBlocker::Mode(Mode::Observe), "its mode is observe: no task is even checked"),
            (NodeBlocker::Mode(Mode::Noop), "its mode is noop: tasks are checked, and nothing is changed"),
        ] {
            assert_eq!(aside.explanation(), says);
        }
    }

    /// Regression test: the text once claimed that the node keeps a task set that it never had.
    #[test]
    fn y06_blockers_withhold_nothing_when_node_has_no_task_set() {
        let held = HoldEnd::UntilRevoked;
        for (aside, says) in [
            (NodeBlocker::Held(SetBy::Operator, held, "disk"), "it is held (disk), and no task set was released yet"),
            (NodeBlocker::Held(SetBy::Host, held, ""), "it is held on its host, and no task set was released yet"),
            (NodeBlocker::Paused(SetBy::Operator), "its node group or cluster is paused: no new task set is released"),
        ] {
            assert_eq!(aside.explanation_without_task_set(), says);
        }
    }
}
