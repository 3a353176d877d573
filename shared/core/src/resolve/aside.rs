//! What keeps a host from running what it was told to, or from being told more. Releases are planned by this list, an account tells it,
//! and findings are made of it.

use std::fmt::Display;

use crate::finding::{Rule, rule};
use crate::name::cut;
use crate::object::{Held, SaidOnHost, Timestamp};
use crate::requirement::Unmet;
use crate::resolve::Answer;
use crate::status::{Keeper, Side, parked};
use crate::task::Mode;
use crate::traits::InstanceTraits;

/// One thing that does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetAside<'a> {
    /// It does not meet a requirement of its group.
    Unmet(&'a Unmet),
    /// It is to have its first tasks, and has not the traits that its instance wants.
    LacksTraits(InstanceTraits),
    /// It runs this task, and the task's condition takes more steps than it may: nobody knows whether it is to run.
    Undecided(&'a str),
    /// A pause.
    Paused(Side),
    /// A hold, and its reason.
    Held(Side, Held, &'a str),
    /// It is parked, for that reason.
    Parked(Side, &'a str),
    /// A mode in which nothing is changed.
    Mode(Mode),
}

impl Answer {
    /// All that sets the node aside, and holds that are over. `runs` tells which tasks run of what was released; `None`: none does.
    pub(crate) fn set_aside<'a>(&'a self, runs: Option<&dyn Fn(&str) -> bool>) -> impl Iterator<Item = SetAside<'a>> {
        let unmet = self.unmet().iter().map(SetAside::Unmet);
        let is_first = runs.is_none() && self.task_set().is_some();
        let lacks = is_first.then(|| self.check_instance().err()).flatten().map(SetAside::LacksTraits);
        let undecided = self.task_set().into_iter().flat_map(|set| set.undecided_ids());
        let undecided = undecided.filter(move |id| runs.is_some_and(|runs| runs(id))).map(SetAside::Undecided);
        unmet.chain(lacks).chain(undecided).chain(self.said_to_wait())
    }

    /// What people said of the node, and holds that are over.
    fn said_to_wait(&self) -> impl Iterator<Item = SetAside<'_>> {
        let on_host = self.said();
        let first = [
            on_host.is_some_and(|said| said.paused).then_some(SetAside::Paused(Side::Host)),
            self.hold().map(|hold| SetAside::Held(Side::Operator, hold.held(), &hold.reason)),
            on_host.and_then(SaidOnHost::held).map(|(held, reason)| SetAside::Held(Side::Host, held, reason)),
        ];
        let parked = parked(&self.node().spec, on_host).map(|(side, reason)| SetAside::Parked(side, reason));
        let last = [
            self.is_paused().then_some(SetAside::Paused(Side::Operator)),
            Some(self.mode().value).filter(|mode| *mode != Mode::Apply).map(SetAside::Mode),
        ];
        first.into_iter().flatten().chain(parked).chain(last.into_iter().flatten())
    }

    /// The findings of what was said on the host itself and is in force at that time.
    pub(crate) fn found_on_host(&self, now: Timestamp) -> impl Iterator<Item = (Rule, String)> {
        self.said_to_wait().filter(move |aside| aside.is_in_force(now)).filter_map(SetAside::found)
    }
}

impl SetAside<'_> {
    /// Whether it does so at that time: only a hold ends by itself.
    pub(crate) fn is_in_force(&self, now: Timestamp) -> bool {
        match self {
            Self::Held(_, held, _) => held.is_in_force(now),
            _ => true,
        }
    }

    /// As what keeps the next task set from the node, as its state names it; `None`: it does not keep it.
    pub(crate) fn keeper(&self) -> Option<Keeper> {
        match self {
            Self::Held(side, _, _) => Some(Keeper::Held(*side)),
            Self::Paused(Side::Operator) => Some(Keeper::Paused),
            Self::Undecided(_) => Some(Keeper::Undecided),
            Self::Unmet(_) | Self::LacksTraits(_) => Some(Keeper::Requirement),
            Self::Paused(Side::Host) | Self::Parked(..) | Self::Mode(_) => None,
        }
    }

    /// The rule of the error among the findings about the node that says it; `None`: none does.
    pub(crate) fn error(&self) -> Option<Rule> {
        match self {
            Self::Unmet(_) => Some(rule::REQUIREMENT_UNMET),
            Self::LacksTraits(_) => Some(rule::INSTANCE_TRAITS),
            Self::Undecided(_) | Self::Paused(_) | Self::Held(..) | Self::Parked(..) | Self::Mode(_) => None,
        }
    }

    /// When it ends by itself; `None`: it does not.
    pub(crate) fn end(&self) -> Option<Timestamp> {
        match self {
            Self::Held(_, Held::Until(end), _) => Some(*end),
            Self::Held(_, Held::UntilTakenBack, _)
            | Self::Unmet(_)
            | Self::LacksTraits(_)
            | Self::Undecided(_)
            | Self::Paused(_)
            | Self::Parked(..)
            | Self::Mode(_) => None,
        }
    }

    /// Whether it keeps the next task set from the node. What does not, keeps tasks from being run, or others from waiting for the node.
    pub(crate) fn keeps_task_set(&self) -> bool {
        self.keeper().is_some()
    }

    /// The sentence of an account of a node that never had a task set.
    pub(crate) fn explained_without_set(self) -> String {
        match self {
            Self::Held(side, _, reason) => format!("{}, and no task set has come yet", held(side, reason)),
            other => other.explained(),
        }
    }

    /// The sentence of an account.
    pub(crate) fn explained(self) -> String {
        match self {
            Self::Unmet(unmet) => no_task_set(unmet),
            Self::LacksTraits(lacks) => no_task_set(&lacks),
            Self::Undecided(task) => {
                format!("the condition of task {task}, which it runs, is undecided: it keeps the task set that it has")
            }
            Self::Paused(Side::Host) => {
                "it is paused on its host, which applies nothing until it is resumed there".into()
            }
            Self::Paused(Side::Operator) => no_task_set(&"its node group or cluster is paused"),
            Self::Held(side, _, reason) => format!("{}: it keeps the task set that it has", held(side, reason)),
            Self::Parked(Side::Operator, _) => "it is parked: it runs no task, and others do not wait for it".into(),
            Self::Parked(Side::Host, reason) => {
                format!("it is parked on its host{}: it runs no task, and others do not wait for it", because(reason))
            }
            Self::Mode(Mode::Observe) => "its mode is observe: no task is even checked".into(),
            Self::Mode(Mode::Noop) => "its mode is noop: tasks are checked, and nothing is changed".into(),
            Self::Mode(Mode::Apply) => "its mode is apply".into(),
        }
    }

    /// The finding of what was said on the host itself. What operators say is none, and what is unmet or undecided has its own.
    fn found(self) -> Option<(Rule, String)> {
        let because = |reason| because(&cut(reason).escape_debug().to_string());
        match self {
            Self::Paused(Side::Host) => {
                let message = "it was paused on its host: nothing is applied there, and barriers wait for it, until `stemma-agent resume`";
                Some((rule::HOST_PAUSED, message.to_owned()))
            }
            Self::Held(Side::Host, _, reason) => {
                Some((rule::HOST_HELD, format!("it is held on its host{}: it keeps its task set", because(reason))))
            }
            Self::Parked(Side::Host, reason) => {
                let message = format!("it is parked on its host{}: barriers pass it over", because(reason));
                Some((rule::HOST_PARKED, message))
            }
            Self::Unmet(_)
            | Self::LacksTraits(_)
            | Self::Undecided(_)
            | Self::Paused(Side::Operator)
            | Self::Held(Side::Operator, ..)
            | Self::Parked(Side::Operator, _)
            | Self::Mode(_) => None,
        }
    }
}

fn no_task_set(why: &dyn Display) -> String {
    format!("{why}: no new task set is given")
}

fn held(side: Side, reason: &str) -> String {
    let place = match side {
        Side::Operator => "",
        Side::Host => " on its host",
    };
    format!("it is held{place}{}", because(reason))
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_says_who_set_it_aside_and_why() {
        let (held, key, expression) = (Held::UntilTakenBack, "property:memory_mb".to_owned(), ">= 1024".to_owned());
        let unmet = Unmet { key, expression, found: "the node has 512".to_owned() };
        for (aside, says) in [
            (SetAside::Unmet(&unmet), "requirement property:memory_mb >= 1024 is not met: no new task set is given"),
            (
                SetAside::Undecided("db"),
                "the condition of task db, which it runs, is undecided: it keeps the task set that it has",
            ),
            (SetAside::Paused(Side::Host), "it is paused on its host, which applies nothing until it is resumed there"),
            (SetAside::Paused(Side::Operator), "its node group or cluster is paused: no new task set is given"),
            (SetAside::Held(Side::Operator, held, "disk"), "it is held (disk): it keeps the task set that it has"),
            (SetAside::Held(Side::Host, held, ""), "it is held on its host: it keeps the task set that it has"),
            (SetAside::Parked(Side::Operator, ""), "it is parked: it runs no task, and others do not wait for it"),
            (
                SetAside::Parked(Side::Host, "x"),
                "it is parked on its host (x): it runs no task, and others do not wait for it",
            ),
            (SetAside::Mode(Mode::Observe), "its mode is observe: no task is even checked"),
            (SetAside::Mode(Mode::Noop), "its mode is noop: tasks are checked, and nothing is changed"),
        ] {
            assert_eq!(aside.explained(), says);
        }
    }

    /// It was said to keep a task set that it never had.
    #[test]
    fn y06_who_never_had_a_task_set_keeps_none() {
        let held = Held::UntilTakenBack;
        for (aside, says) in [
            (SetAside::Held(Side::Operator, held, "disk"), "it is held (disk), and no task set has come yet"),
            (SetAside::Held(Side::Host, held, ""), "it is held on its host, and no task set has come yet"),
            (SetAside::Paused(Side::Operator), "its node group or cluster is paused: no new task set is given"),
        ] {
            assert_eq!(aside.explained_without_set(), says);
        }
    }
}
