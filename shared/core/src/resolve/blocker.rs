//! The blockers of a node: what prevents its host from running tasks, or from getting a new task set. The controller
//! plans releases of task sets by this list, and builds explanations and findings from it.

use std::fmt::Display;

use crate::finding::{Rule, rule};
use crate::name::truncated;
use crate::object::{HoldEnd, ReportedState, Timestamp};
use crate::requirement::UnmetRequirement;
use crate::resolve::{ResolvedNode, UnknownFeatures};
use crate::status::{SetBy, WithheldBy, parked_by};
use crate::task::Mode;
use crate::traits::InstanceTraitsError;

/// A reason why a node gets no new task set, why it runs no tasks, or why barriers do not wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeBlocker<'a> {
    /// The node does not meet a requirement of its group.
    Unmet(&'a UnmetRequirement),
    /// The node is about to get its first tasks, and lacks traits that its instance (the allocated use of the host)
    /// requires, or the list of these traits is invalid.
    LacksTraits(InstanceTraitsError),
    /// The node runs the task with this id, and the evaluation of the task's condition takes more steps than allowed.
    /// So it is not known whether the task should still run.
    Undecided(&'a str),
    /// The node's next task set has tasks with a type or parameter that the agent of the node does not know.
    OutdatedAgent(UnknownFeatures),
    /// The node's next task set has tasks that not every agent knows, and no agent of the node has reported yet.
    UnknownAgent,
    /// The host itself is paused, or the group or cluster of the node is paused.
    Paused(SetBy),
    /// A hold: who set it, its end and its reason.
    Held(SetBy, HoldEnd, &'a str),
    /// The node is parked: by whom, and the reason. The reason is empty if an operator parked the node.
    Parked(SetBy, &'a str),
    /// The node has a mode in which tasks change nothing.
    Mode(Mode),
}

impl ResolvedNode {
    /// Returns the blocker that the node's agent does not know a task of the next task set, or that it is not known
    /// whether it does.
    pub(super) fn agent_blocker(&self) -> Option<NodeBlocker<'_>> {
        match self.observation() {
            Some(_) => self.unknown_features().map(NodeBlocker::OutdatedAgent),
            None => self.later_tasks().next().map(|_| NodeBlocker::UnknownAgent),
        }
    }

    /// Returns everything that blocks the node, including holds that have ended, which the caller omits
    /// ([`NodeBlocker::is_in_force`]). `is_running` returns whether the released task set has the task with an id. It
    /// is `None` if no task set with tasks was released.
    pub(crate) fn blockers<'a>(&'a self, is_running: Option<&dyn Fn(&str) -> bool>) -> impl Iterator<Item = NodeBlocker<'a>> {
        let unmet = self.unmet_requirements().iter().map(NodeBlocker::Unmet);
        let is_first = is_running.is_none() && self.task_set().is_some();
        let missing_traits = is_first.then(|| self.check_instance_traits().err()).flatten().map(NodeBlocker::LacksTraits);
        let undecided = self.task_set().into_iter().flat_map(|set| set.undecided_ids());
        let undecided = undecided.filter(move |id| is_running.is_some_and(|check| check(id))).map(NodeBlocker::Undecided);
        unmet.chain(missing_traits).chain(self.agent_blocker()).chain(undecided).chain(self.authored_blockers())
    }

    /// Returns the pauses, holds, parks and modes that people set on the node, on its host, or at the levels above it.
    /// Includes holds that have ended. The explanation of a task lists the blockers in this order.
    fn authored_blockers(&self) -> impl Iterator<Item = NodeBlocker<'_>> {
        let host_state = self.reported_state();
        let before_park = [
            host_state.is_some_and(|state| state.paused).then_some(NodeBlocker::Paused(SetBy::Host)),
            self.hold().map(|hold| NodeBlocker::Held(SetBy::Operator, hold.hold_end(), &hold.reason)),
            host_state.and_then(ReportedState::hold_end).map(|(end, reason)| NodeBlocker::Held(SetBy::Host, end, reason)),
        ];
        let parked = parked_by(&self.node().spec, host_state).map(|(set_by, reason)| NodeBlocker::Parked(set_by, reason));
        let after_park = [
            self.is_paused().then_some(NodeBlocker::Paused(SetBy::Operator)),
            Some(self.mode().value).filter(|mode| *mode != Mode::Apply).map(NodeBlocker::Mode),
        ];
        before_park.into_iter().flatten().chain(parked).chain(after_park.into_iter().flatten())
    }

    /// Returns the findings about the pause, hold and park that were set on the host itself and are in force at `now`.
    pub(crate) fn host_blocker_findings(&self, now: Timestamp) -> impl Iterator<Item = (Rule, String)> {
        self.authored_blockers().filter(move |blocker| blocker.is_in_force(now)).filter_map(NodeBlocker::finding)
    }
}

impl NodeBlocker<'_> {
    /// Returns whether the blocker has an effect at `now`. Only a hold ends by itself, so any other blocker always has
    /// an effect.
    pub(crate) fn is_in_force(&self, now: Timestamp) -> bool {
        match self {
            Self::Held(_, end, _) => end.is_in_force(now),
            _ => true,
        }
    }

    /// Returns the reason why the next task set is withheld, in the form that the node's state shows. `None` if the
    /// blocker does not withhold the task set.
    pub(crate) fn withheld_by(&self) -> Option<WithheldBy> {
        match self {
            Self::Held(set_by, _, _) => Some(WithheldBy::Held(*set_by)),
            Self::Paused(SetBy::Operator) => Some(WithheldBy::Paused),
            Self::Undecided(_) => Some(WithheldBy::Undecided),
            Self::Unmet(_) | Self::LacksTraits(_) => Some(WithheldBy::Requirement),
            Self::OutdatedAgent(_) | Self::UnknownAgent => Some(WithheldBy::Agent),
            Self::Paused(SetBy::Host) | Self::Parked(..) | Self::Mode(_) => None,
        }
    }

    /// Returns the rule of the error finding that reports the blocker, or `None` if no error reports it.
    pub(crate) fn error_rule(&self) -> Option<Rule> {
        match self {
            Self::Unmet(_) => Some(rule::REQUIREMENT_UNMET),
            Self::LacksTraits(_) => Some(rule::INSTANCE_TRAITS),
            Self::OutdatedAgent(_)
            | Self::UnknownAgent
            | Self::Undecided(_)
            | Self::Paused(_)
            | Self::Held(..)
            | Self::Parked(..)
            | Self::Mode(_) => None,
        }
    }

    /// Returns the time at which the blocker ends by itself, or `None` if it lasts until somebody acts.
    pub(crate) fn ends_at(&self) -> Option<Timestamp> {
        match self {
            Self::Held(_, HoldEnd::Until(end), _) => Some(*end),
            Self::Held(_, HoldEnd::UntilRevoked, _)
            | Self::Unmet(_)
            | Self::LacksTraits(_)
            | Self::OutdatedAgent(_)
            | Self::UnknownAgent
            | Self::Undecided(_)
            | Self::Paused(_)
            | Self::Parked(..)
            | Self::Mode(_) => None,
        }
    }

    /// Returns whether the blocker withholds the next task set. The other blockers prevent tasks from running, or make
    /// barriers skip the node.
    pub(crate) fn is_withholding(&self) -> bool {
        self.withheld_by().is_some()
    }

    /// Returns the explanation of the blocker, as a sentence, for a node that never had a task set. Such a node has no
    /// task set that a hold could retain, so the text about a hold differs.
    pub(crate) fn explanation_without_task_set(self) -> String {
        match self {
            Self::Held(set_by, _, reason) => format!("{}, and no task set was released yet", hold_text(set_by, reason)),
            other => other.explanation(),
        }
    }

    /// Returns the explanation of the blocker, as a sentence.
    pub(crate) fn explanation(self) -> String {
        match self {
            Self::Unmet(unmet) => withheld_text(unmet),
            Self::LacksTraits(missing_traits) => withheld_text(&missing_traits),
            Self::OutdatedAgent(unknown) => format!("{} before the agent is upgraded", withheld_text(&unknown)),
            Self::UnknownAgent => withheld_text(&"its agent has not reported yet which task types it knows"),
            Self::Undecided(task) => {
                format!("the condition of task {task}, which it runs, is undecided: it keeps the task set that it has")
            }
            Self::Paused(SetBy::Host) => "it is paused on its host, which applies nothing until it is resumed there".into(),
            Self::Paused(SetBy::Operator) => withheld_text(&"its node group or cluster is paused"),
            Self::Held(set_by, _, reason) => format!("{}: it keeps the task set that it has", hold_text(set_by, reason)),
            Self::Parked(SetBy::Operator, _) => "it is parked: it runs no task, and others do not wait for it".into(),
            Self::Parked(SetBy::Host, reason) => {
                format!("it is parked on its host{}: it runs no task, and others do not wait for it", reason_suffix(reason))
            }
            Self::Mode(Mode::Observe) => "its mode is observe: no task is even checked".into(),
            Self::Mode(Mode::Noop) => "its mode is noop: tasks are checked, and nothing is changed".into(),
            Self::Mode(Mode::Apply) => "its mode is apply".into(),
        }
    }

    /// Returns the rule and the message of the finding about the blocker, if it was set on the host itself. `None` for
    /// what operators set, because operators know of it. Other code reports unmet requirements and undecided
    /// conditions.
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
                let message = format!("it is parked on its host{}: barriers do not wait for it", suffix(reason));
                Some((rule::HOST_PARKED, message))
            }
            Self::Unmet(_)
            | Self::LacksTraits(_)
            | Self::OutdatedAgent(_)
            | Self::UnknownAgent
            | Self::Undecided(_)
            | Self::Paused(SetBy::Operator)
            | Self::Held(SetBy::Operator, ..)
            | Self::Parked(SetBy::Operator, _)
            | Self::Mode(_) => None,
        }
    }
}

/// Returns the explanation of a blocker that withholds a new task set: the reason and the effect.
fn withheld_text(reason: &dyn Display) -> String {
    format!("{reason}: no new task set is released")
}

/// Returns the beginning of a text about a hold, with its reason.
fn hold_text(set_by: SetBy, reason: &str) -> String {
    let place = match set_by {
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::task::UnknownFeature;

    #[test]
    fn explanation_names_setter_and_reason() {
        let (end, key, expression) = (HoldEnd::UntilRevoked, "property:memory_mb".to_owned(), ">= 1024".to_owned());
        let unmet = UnmetRequirement { key, expression, actual: "the node has 512".to_owned() };
        let features = BTreeMap::from([(UnknownFeature::Type("service".to_owned()), "web".to_owned())]);
        let unknown = UnknownFeatures { agent: "agent 0.4.1".to_owned(), features };
        for (blocker, text) in [
            (
                NodeBlocker::OutdatedAgent(unknown),
                "its host has agent 0.4.1 and does not know type \"service\": no new task set is released before the agent is upgraded",
            ),
            (NodeBlocker::UnknownAgent, "its agent has not reported yet which task types it knows: no new task set is released"),
            (NodeBlocker::Unmet(&unmet), "requirement property:memory_mb >= 1024 is not met: no new task set is released"),
            (
                NodeBlocker::Undecided("db"),
                "the condition of task db, which it runs, is undecided: it keeps the task set that it has",
            ),
            (NodeBlocker::Paused(SetBy::Host), "it is paused on its host, which applies nothing until it is resumed there"),
            (NodeBlocker::Paused(SetBy::Operator), "its node group or cluster is paused: no new task set is released"),
            (NodeBlocker::Held(SetBy::Operator, end, "disk"), "it is held (disk): it keeps the task set that it has"),
            (NodeBlocker::Held(SetBy::Host, end, ""), "it is held on its host: it keeps the task set that it has"),
            (NodeBlocker::Parked(SetBy::Operator, ""), "it is parked: it runs no task, and others do not wait for it"),
            (
                NodeBlocker::Parked(SetBy::Host, "x"),
                "it is parked on its host (x): it runs no task, and others do not wait for it",
            ),
            (NodeBlocker::Mode(Mode::Observe), "its mode is observe: no task is even checked"),
            (NodeBlocker::Mode(Mode::Noop), "its mode is noop: tasks are checked, and nothing is changed"),
        ] {
            assert_eq!(blocker.explanation(), text);
        }
    }

    /// Regression test: an earlier text wrongly stated that the node retains a task set, although it never had one.
    #[test]
    fn y06_explanation_omits_kept_task_set_when_none_exists() {
        let end = HoldEnd::UntilRevoked;
        for (blocker, text) in [
            (NodeBlocker::Held(SetBy::Operator, end, "disk"), "it is held (disk), and no task set was released yet"),
            (NodeBlocker::Held(SetBy::Host, end, ""), "it is held on its host, and no task set was released yet"),
            (NodeBlocker::Paused(SetBy::Operator), "its node group or cluster is paused: no new task set is released"),
        ] {
            assert_eq!(blocker.explanation_without_task_set(), text);
        }
    }
}
