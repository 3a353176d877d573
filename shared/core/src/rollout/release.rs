//! When a node's next task set is released.
//!
//! A task set is told from the released one by its task digest, its mode and whether there are tasks at all. A profile's bytes, the
//! wording of an explanation or a new edge of the order release nothing: the host would run the same tasks with the same inputs.

use std::collections::BTreeSet;

use crate::digest::{DigestVersion, TaskDigest};
use crate::finding::Rule;
use crate::object::{NodeId, Timestamp};
use crate::resolve::{Answer, SetAside};
use crate::status::{Keeper, Next};
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
pub struct Candidate<'a> {
    /// The node.
    pub node: NodeId,
    /// What was released to it; `None`: nothing yet.
    pub present: Option<Content>,
    /// What it is to have, its digest under the version of the present one.
    pub next: Content,
    /// What keeps the next one from it, and holds that are over.
    pub kept_by: Vec<SetAside<'a>>,
}

/// Where a node stands with its next task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has what it is to have.
    Current,
    /// Nothing keeps the next one from it.
    Due,
    /// Something does, at least until that time; `None`: until something changes.
    Kept(Option<Timestamp>),
}

impl Standing {
    /// What the node's record takes once the next pass is over, of `kept` that it takes now and `next` that its next task set would
    /// take. A node that gets nothing keeps what it has, wherever it stands, and what is kept from it may come later.
    pub fn record_bytes(self, kept: u64, next: u64) -> u64 {
        match self {
            Self::Current => kept,
            Self::Due => next,
            Self::Kept(_) => kept.max(next),
        }
    }
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

impl<'a> Candidate<'a> {
    /// A node by its answer and by what was released to it: what of that decides, and whether a task of it runs; `None`: none does.
    pub fn of(
        answer: &'a Answer,
        present: Option<Content>,
        version: DigestVersion,
        runs: Option<&dyn Fn(&str) -> bool>,
    ) -> Self {
        let all = answer.set_aside(runs);
        Self {
            node: answer.id(),
            next: Content::of(answer, version),
            kept_by: all.filter(SetAside::keeps_task_set).collect(),
            present,
        }
    }

    /// Where the node stands at that time, as its state shows it: a hold is named before what else keeps its task set.
    pub fn next(&self, now: Timestamp) -> Next {
        match self.standing(now) {
            Standing::Current => return Next::Current,
            Standing::Due => return Next::Due,
            Standing::Kept(_) => {}
        }
        let keepers = || self.in_force(now).filter_map(SetAside::keeper);
        let held = keepers().find(|keeper| matches!(keeper, Keeper::Held(_)));
        held.or_else(|| keepers().next()).map_or(Next::Due, Next::Kept)
    }

    /// The rules of the errors among the findings about the node that say no more than what keeps its next task set from it.
    pub fn errors(&self) -> Vec<Rule> {
        self.kept_by.iter().filter_map(SetAside::error).collect()
    }

    /// Whether a hold is in force at that time.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.in_force(now).any(|aside| matches!(aside, SetAside::Held(..)))
    }

    /// When the first hold that is in force ends by itself.
    pub fn hold_end(&self, now: Timestamp) -> Option<Timestamp> {
        self.in_force(now).filter_map(SetAside::end).min()
    }

    /// Where the node stands at that time.
    pub fn standing(&self, now: Timestamp) -> Standing {
        let ends: Vec<_> = self.in_force(now).map(SetAside::end).collect();
        if self.present.as_ref() == Some(&self.next) {
            Standing::Current
        } else if ends.is_empty() {
            Standing::Due
        } else {
            // One without an end outlasts all others.
            Standing::Kept(ends.into_iter().collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max()))
        }
    }

    /// What keeps the next task set from it at that time.
    fn in_force(&self, now: Timestamp) -> impl Iterator<Item = &SetAside<'a>> {
        self.kept_by.iter().filter(move |aside| aside.is_in_force(now))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::object::Held;
    use crate::requirement::Unmet;
    use crate::status::Side;
    use crate::traits::InstanceTraits;

    /// Nodes that had what they were to have, or were held, moved with their records past what the cluster may have that they came to.
    #[test]
    fn x03_f07_a_node_that_gets_nothing_keeps_its_record_where_it_comes() {
        for (standing, kept, next, expected) in [
            (Standing::Current, 120_000, 0, 120_000),
            (Standing::Current, 0, 120_000, 0),
            (Standing::Due, 120_000, 0, 0),
            (Standing::Due, 0, 120_000, 120_000),
            (Standing::Kept(None), 120_000, 0, 120_000),
            (Standing::Kept(Some(NOW)), 0, 120_000, 120_000),
        ] {
            assert_eq!(standing.record_bytes(kept, next), expected, "{standing:?} {kept} {next}");
        }
    }

    const NOW: Timestamp = Timestamp(1_000);
    const NODE: NodeId = NodeId(Uuid::from_u128(1));

    fn content(digest: u8) -> Content {
        Content { mode: Mode::Apply, tasks: Some(TaskDigest([digest; 32])), untranslated: BTreeSet::new() }
    }

    fn due() -> Candidate<'static> {
        Candidate { node: NODE, present: Some(content(1)), next: content(2), kept_by: Vec::new() }
    }

    fn held(held: Held) -> SetAside<'static> {
        SetAside::Held(Side::Operator, held, "")
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
    fn whatever_keeps_a_task_set_keeps_it_until_the_last_has_ended() {
        let (over, later, last) = (Held::Until(NOW), Timestamp(1_001), Timestamp(1_002));
        let until = |end| held(Held::Until(end));
        for (kept_by, standing) in [
            (vec![SetAside::Undecided("db")], Standing::Kept(None)),
            (vec![SetAside::Paused(Side::Operator)], Standing::Kept(None)),
            (vec![held(over)], Standing::Due),
            (vec![held(over), until(later)], Standing::Kept(Some(later))),
            (vec![until(last), until(later)], Standing::Kept(Some(last))),
            (vec![until(later), held(Held::UntilTakenBack)], Standing::Kept(None)),
            (vec![until(later), SetAside::Paused(Side::Operator)], Standing::Kept(None)),
        ] {
            let candidate = Candidate { kept_by, ..due() };
            assert_eq!(candidate.standing(NOW), standing, "{candidate:?}");
            let current = Candidate { present: Some(content(2)), ..candidate };
            assert_eq!(current.standing(NOW), Standing::Current, "what it has may be what it is to have");
        }
    }

    #[test]
    fn y06_what_keeps_a_task_set_is_named_and_a_hold_before_the_rest() {
        let unmet =
            Unmet { key: "property:memory_mb".into(), expression: ">= 1".into(), found: "the node has none".into() };
        let (until, over) = (held(Held::Until(Timestamp(2_000))), held(Held::Until(NOW)));
        for (kept_by, next, is_held, end) in [
            (vec![], Next::Due, false, None),
            (vec![over.clone()], Next::Due, false, None),
            (vec![until.clone()], Next::Kept(Keeper::Held(Side::Operator)), true, Some(Timestamp(2_000))),
            (vec![SetAside::Unmet(&unmet)], Next::Kept(Keeper::Requirement), false, None),
            (vec![SetAside::Undecided("db")], Next::Kept(Keeper::Undecided), false, None),
            (vec![SetAside::Paused(Side::Operator), over], Next::Kept(Keeper::Paused), false, None),
            (
                vec![SetAside::Undecided("db"), SetAside::Held(Side::Host, Held::UntilTakenBack, "")],
                Next::Kept(Keeper::Held(Side::Host)),
                true,
                None,
            ),
        ] {
            let candidate = Candidate { kept_by, ..due() };
            assert_eq!(candidate.next(NOW), next, "{candidate:?}");
            assert_eq!((candidate.is_held(NOW), candidate.hold_end(NOW)), (is_held, end), "{candidate:?}");
            let current = Candidate { present: Some(content(2)), ..candidate };
            assert_eq!((current.next(NOW), current.is_held(NOW)), (Next::Current, is_held));
        }
    }

    #[test]
    fn y06_the_errors_that_keep_a_task_set_are_those_of_what_the_node_does_not_meet() {
        let unmet =
            Unmet { key: "trait:CUSTOM_X".into(), expression: "required".into(), found: "the node lacks it".into() };
        let by_hand = || vec![held(Held::UntilTakenBack), SetAside::Undecided("db"), SetAside::Paused(Side::Operator)];
        let and = |one| by_hand().into_iter().chain([one]).collect::<Vec<_>>();
        for (kept_by, errors) in [
            (by_hand(), &[][..]),
            (and(SetAside::Unmet(&unmet)), &["requirement.unmet"]),
            (and(SetAside::LacksTraits(InstanceTraits::NoList { node: NODE.0 })), &["instance.traits"]),
        ] {
            let candidate = Candidate { kept_by, ..due() };
            let found: Vec<_> = candidate.errors().into_iter().map(|rule| rule.code).collect();
            assert_eq!(found, errors, "{candidate:?}");
        }
    }

    #[test]
    fn who_is_held_is_released_when_its_hold_is_over() {
        let end = Timestamp(5_000);
        let held = |of| Candidate { kept_by: vec![held(of)], ..due() };
        let current = Candidate { present: Some(content(2)), ..held(Held::Until(end)) };
        let (held, kept) = (held(Held::Until(end)), held(Held::UntilTakenBack));
        let found = |candidate: &Candidate<'_>, now| (candidate.standing(now), candidate.hold_end(now));
        assert_eq!(found(&due(), NOW), (Standing::Due, None));
        assert_eq!(found(&held, NOW), (Standing::Kept(Some(end)), Some(end)));
        assert_eq!(found(&held, end), (Standing::Due, None));
        assert_eq!(found(&kept, end), (Standing::Kept(None), None));
        assert_eq!(found(&current, NOW), (Standing::Current, Some(end)));
    }
}
