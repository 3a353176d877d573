//! When a node's next task set is released.
//!
//! A task set is told from the released one by its task digest, its mode and whether there are tasks at all. A profile's bytes, the
//! wording of an explanation or a new edge of the order release nothing: the host would run the same tasks with the same inputs.

use std::collections::BTreeSet;

use crate::digest::{DigestVersion, TaskDigest};
use crate::object::{Held, Hold, NodeId, SaidOnHost, Timestamp};
use crate::resolve::Answer;
use crate::task::Mode;

/// What of a task set decides whether it is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The mode that it is applied in.
    pub mode: Mode,
    /// The digest of its tasks; `None`: the node has no profile.
    pub tasks: Option<TaskDigest>,
    /// Which tasks are placed and never started, by id; under a version of the digest that holds it, none is listed.
    pub untranslated: BTreeSet<String>,
}

/// A node as its releases are planned.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// What was released to it; `None`: nothing yet.
    pub present: Option<Content>,
    /// What it is to have, its digest under the version of the present one.
    pub next: Content,
    /// Whether its group has a requirement that it does not meet, or nothing was released to it yet and it has not the traits that its
    /// instance wants.
    pub has_unmet: bool,
    /// Whether it runs a task that the next one lacks only because its condition takes more steps than it may.
    pub has_undecided: bool,
    /// The holds of operators and of the host, also those that are over.
    pub holds: Vec<Held>,
    /// Whether its group or cluster is paused.
    pub is_paused: bool,
}

/// Where a node stands with its next task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has what it is to have.
    Current,
    /// Nothing keeps the next one from it.
    Due,
    /// It does not meet a requirement of its group, or has not the traits that its instance wants.
    Unmet,
    /// It runs a task of which nobody knows whether it is to run.
    Undecided,
    /// Its group or cluster is paused.
    Paused,
    /// It is held.
    Held(Held),
}

/// What is to be done for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Its next task set is released.
    Release(NodeId),
    /// It is looked at again at that time, when its hold is over.
    LookAgain(NodeId, Timestamp),
}

/// What is to be done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The actions, in the order of the candidates. A node without one keeps what it has.
    pub actions: Vec<Action>,
}

impl Content {
    /// What an answer says that the node is to have.
    pub fn of(answer: &Answer, version: DigestVersion) -> Self {
        let (mode, set) = (answer.mode().value, answer.task_set());
        let beside = set.filter(|_| version == DigestVersion::V1);
        let untranslated = beside.into_iter().flat_map(|set| set.untranslated_ids()).map(str::to_owned).collect();
        Self { mode, tasks: set.map(|set| set.task_digest(version)), untranslated }
    }
}

impl Candidate {
    /// A node by its answer and by what was released to it: what of that decides, and which of its tasks run.
    pub fn of<'a>(
        answer: &Answer,
        present: Option<Content>,
        version: DigestVersion,
        mut runs: impl Iterator<Item = &'a str>,
    ) -> Self {
        let undecided: BTreeSet<&str> = answer.task_set().into_iter().flat_map(|set| set.undecided_ids()).collect();
        let by_operator = answer.hold().map(Hold::held);
        let on_host = answer.said().and_then(SaidOnHost::held).map(|(held, _)| held);
        Self {
            node: answer.id(),
            next: Content::of(answer, version),
            has_unmet: !answer.unmet().is_empty() || (present.is_none() && answer.check_instance().is_err()),
            has_undecided: !undecided.is_empty() && runs.any(|id| undecided.contains(id)),
            holds: by_operator.into_iter().chain(on_host).collect(),
            is_paused: answer.is_paused(),
            present,
        }
    }

    /// Where the node stands at that time.
    pub fn standing(&self, now: Timestamp) -> Standing {
        if self.present.as_ref() == Some(&self.next) {
            Standing::Current
        } else if self.has_unmet {
            Standing::Unmet
        } else if self.has_undecided {
            Standing::Undecided
        } else if self.is_paused {
            Standing::Paused
        } else if let Some(held) = self.holds.iter().copied().filter(|held| held.is_in_force(now)).max() {
            Standing::Held(held)
        } else {
            Standing::Due
        }
    }
}

/// Plans the releases of these nodes at that time.
pub fn plan_releases(candidates: &[Candidate], now: Timestamp) -> Plan {
    let action = |candidate: &Candidate| match candidate.standing(now) {
        Standing::Due => Some(Action::Release(candidate.node)),
        Standing::Held(Held::Until(end)) => Some(Action::LookAgain(candidate.node, end)),
        Standing::Held(Held::UntilTakenBack)
        | Standing::Current
        | Standing::Unmet
        | Standing::Undecided
        | Standing::Paused => None,
    };
    Plan { actions: candidates.iter().filter_map(action).collect() }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000);
    const NODE: NodeId = NodeId(Uuid::from_u128(1));

    fn content(digest: u8) -> Content {
        Content { mode: Mode::Apply, tasks: Some(TaskDigest([digest; 32])), untranslated: BTreeSet::new() }
    }

    fn due() -> Candidate {
        let (present, next) = (Some(content(1)), content(2));
        let (has_unmet, has_undecided, is_paused) = (false, false, false);
        Candidate { node: NODE, present, next, has_unmet, has_undecided, holds: Vec::new(), is_paused }
    }

    #[test]
    fn digest_mode_and_having_tasks_decide_what_is_another_task_set() {
        let none = || Content { tasks: None, ..content(0) };
        let marked = || Content { untranslated: BTreeSet::from(["old".to_owned()]), ..content(1) };
        for (present, next, standing) in [
            (None, content(1), Standing::Due),
            (None, none(), Standing::Due),
            (Some(content(1)), content(1), Standing::Current),
            (Some(content(1)), content(2), Standing::Due),
            (Some(content(1)), Content { mode: Mode::Noop, ..content(1) }, Standing::Due),
            (Some(content(1)), none(), Standing::Due),
            (Some(none()), content(1), Standing::Due),
            (Some(none()), none(), Standing::Current),
            (Some(marked()), marked(), Standing::Current),
            (Some(marked()), content(1), Standing::Due),
        ] {
            let candidate = Candidate { present, next, ..due() };
            assert_eq!(candidate.standing(NOW), standing, "{candidate:?}");
        }
    }

    #[test]
    fn a_requirement_a_pause_and_a_hold_keep_what_is_there() {
        let held = |holds: &[Held]| Candidate { holds: holds.to_vec(), ..due() }.standing(NOW);
        assert_eq!(Candidate { has_unmet: true, ..due() }.standing(NOW), Standing::Unmet);
        assert_eq!(Candidate { has_undecided: true, ..due() }.standing(NOW), Standing::Undecided);
        let same = Candidate { has_undecided: true, present: Some(content(2)), ..due() };
        assert_eq!(same.standing(NOW), Standing::Current, "what it has may be what it is to have");
        assert_eq!(Candidate { is_paused: true, ..due() }.standing(NOW), Standing::Paused);
        let (over, later) = (Held::Until(NOW), Held::Until(Timestamp(1_001)));
        assert_eq!(held(&[over]), Standing::Due, "a hold is over at its end");
        assert_eq!(held(&[over, later]), Standing::Held(later), "the later one counts");
        assert_eq!(held(&[later, Held::UntilTakenBack]), Standing::Held(Held::UntilTakenBack));
    }

    #[test]
    fn a_plan_names_who_is_released_and_when_a_hold_is_over() {
        let end = Timestamp(5_000);
        let held = Candidate { holds: vec![Held::Until(end)], ..due() };
        let kept = Candidate { holds: vec![Held::UntilTakenBack], ..due() };
        let current = Candidate { present: Some(content(2)), holds: vec![Held::Until(end)], ..due() };
        let actions = |candidate: &Candidate, now| plan_releases(std::slice::from_ref(candidate), now).actions;
        assert_eq!(actions(&due(), NOW), [Action::Release(NODE)]);
        assert_eq!(actions(&held, NOW), [Action::LookAgain(NODE, end)]);
        assert_eq!(actions(&held, end), [Action::Release(NODE)]);
        assert_eq!(actions(&kept, end), []);
        assert_eq!(actions(&current, NOW), []);
    }
}
