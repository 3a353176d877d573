//! Decides when a node's next task set is released.
//!
//! A task set differs from the released one if its task digest, its mode or the presence of tasks differs. A change of
//! a profile's bytes, of the wording of an explanation or of an edge in the order releases nothing, because the host
//! would run the same tasks with the same inputs.

use std::collections::BTreeSet;

use crate::digest::{DigestVersion, TaskDigest};
use crate::finding::Rule;
use crate::object::{NodeId, Timestamp};
use crate::resolve::{NodeBlocker, ResolvedNode};
use crate::status::{NextTaskSet, WithheldBy};
use crate::task::Mode;

/// The parts of a task set that decide whether it is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseKey {
    /// The mode in which the tasks are applied.
    pub mode: Mode,
    /// The digest of its tasks, or `None` if the node has no profile.
    pub tasks: Option<TaskDigest>,
    /// The ids of the tasks that are placed and never started, because their definition has an expression that is not
    /// evaluated. Empty if the digest covers them.
    pub untranslated: BTreeSet<String>,
}

/// A node whose next release is planned.
#[derive(Clone, Debug)]
pub struct ReleaseCandidate<'a> {
    /// The node.
    pub node: NodeId,
    /// What was released to the node, or `None` if nothing was.
    pub current: Option<ReleaseKey>,
    /// The key of the task set that the node should have. Its digest is computed under the digest version of `current`.
    pub next: ReleaseKey,
    /// What withholds the next task set, including holds that have ended.
    pub blockers: Vec<NodeBlocker<'a>>,
}

/// The state of a node's next task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseState {
    /// The node has the task set that it should have.
    Current,
    /// Nothing withholds the next task set, so it can be released.
    Due,
    /// Something withholds the next task set, at least until that time. `None`: until something changes.
    Withheld(Option<Timestamp>),
}

impl ReleaseState {
    /// Returns the maximum size that the node's record may have after the next reconcile, in bytes. `kept` is the size
    /// of the present record, `next` that of the next task set's record. A node without a release keeps its record,
    /// even in another cluster. A withheld task set may still be released later, so the larger size counts.
    pub fn record_bytes(self, kept: u64, next: u64) -> u64 {
        match self {
            Self::Current => kept,
            Self::Due => next,
            Self::Withheld(_) => kept.max(next),
        }
    }
}

impl ReleaseKey {
    /// Returns the key of the task set that a resolved node should have.
    pub fn from_resolved(node: &ResolvedNode, version: DigestVersion) -> Self {
        let (mode, set) = (node.mode().value, node.task_set());
        let listed = set.filter(|_| version == DigestVersion::V1);
        let untranslated = listed.into_iter().flat_map(|set| set.untranslated_ids()).map(str::to_owned).collect();
        Self { mode, tasks: set.map(|set| set.task_digest(version)), untranslated }
    }
}

impl<'a> ReleaseCandidate<'a> {
    /// Creates a candidate from the resolved node and from the key of the released task set. `runs` returns whether a
    /// task of the released task set runs. `runs` itself is `None` if no task runs.
    pub fn from_resolved(
        resolved: &'a ResolvedNode,
        current: Option<ReleaseKey>,
        version: DigestVersion,
        runs: Option<&dyn Fn(&str) -> bool>,
    ) -> Self {
        let blockers = resolved.blockers(runs);
        Self {
            node: resolved.id(),
            next: ReleaseKey::from_resolved(resolved, version),
            blockers: blockers.filter(NodeBlocker::is_withholding).collect(),
            current,
        }
    }

    /// Returns the state of the next task set at `now`, as the node's state shows it. If a hold and something else
    /// withhold the task set, the hold is returned.
    pub fn next_task_set(&self, now: Timestamp) -> NextTaskSet {
        match self.state(now) {
            ReleaseState::Current => return NextTaskSet::Current,
            ReleaseState::Due => return NextTaskSet::Due,
            ReleaseState::Withheld(_) => {}
        }
        let reasons = || self.active_blockers(now).filter_map(NodeBlocker::withheld_by);
        let held = reasons().find(|reason| matches!(reason, WithheldBy::Held(_)));
        held.or_else(|| reasons().next()).map_or(NextTaskSet::Due, NextTaskSet::Withheld)
    }

    /// Returns the rules of the error findings that only repeat what withholds the next task set, so that the node
    /// counts as held and not as failed.
    pub fn error_rules(&self) -> Vec<Rule> {
        self.blockers.iter().filter_map(NodeBlocker::error_rule).collect()
    }

    /// Returns whether a hold on the node's task set has an effect at `now`.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.active_blockers(now).any(|blocker| matches!(blocker, NodeBlocker::Held(..)))
    }

    /// Returns the end of the first hold that ends by itself, among those with an effect at `now`. `None` if no hold
    /// ends by itself.
    pub fn hold_ends_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.active_blockers(now).filter_map(NodeBlocker::ends_at).min()
    }

    /// Returns the state of the next task set at `now`.
    pub fn state(&self, now: Timestamp) -> ReleaseState {
        let ends: Vec<_> = self.active_blockers(now).map(NodeBlocker::ends_at).collect();
        if self.current.as_ref() == Some(&self.next) {
            ReleaseState::Current
        } else if ends.is_empty() {
            ReleaseState::Due
        } else {
            // A blocker without an end outlasts all others.
            ReleaseState::Withheld(ends.into_iter().collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max()))
        }
    }

    /// Returns what withholds the next task set at `now`.
    fn active_blockers(&self, now: Timestamp) -> impl Iterator<Item = &NodeBlocker<'a>> {
        self.blockers.iter().filter(move |blocker| blocker.is_in_force(now))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::object::HoldEnd;
    use crate::requirement::UnmetRequirement;
    use crate::status::SetBy;
    use crate::traits::InstanceTraits;

    /// Regression test: nodes that were current or held could move with their records and exceed the quota of their new
    /// cluster.
    #[test]
    fn x03_f07_record_bytes_counts_stored_record_when_nothing_is_released() {
        for (standing, kept, next, expected) in [
            (ReleaseState::Current, 120_000, 0, 120_000),
            (ReleaseState::Current, 0, 120_000, 0),
            (ReleaseState::Due, 120_000, 0, 0),
            (ReleaseState::Due, 0, 120_000, 120_000),
            (ReleaseState::Withheld(None), 120_000, 0, 120_000),
            (ReleaseState::Withheld(Some(NOW)), 0, 120_000, 120_000),
        ] {
            assert_eq!(standing.record_bytes(kept, next), expected, "{standing:?} {kept} {next}");
        }
    }

    const NOW: Timestamp = Timestamp(1_000);
    const NODE: NodeId = NodeId(Uuid::from_u128(1));

    fn release_key(digest: u8) -> ReleaseKey {
        ReleaseKey { mode: Mode::Apply, tasks: Some(TaskDigest([digest; 32])), untranslated: BTreeSet::new() }
    }

    fn due() -> ReleaseCandidate<'static> {
        ReleaseCandidate { node: NODE, current: Some(release_key(1)), next: release_key(2), blockers: Vec::new() }
    }

    fn hold(held: HoldEnd) -> NodeBlocker<'static> {
        NodeBlocker::Held(SetBy::Operator, held, "")
    }

    #[test]
    fn release_key_changes_with_digest_mode_or_having_tasks() {
        let none = || ReleaseKey { tasks: None, ..release_key(0) };
        let marked = || ReleaseKey { untranslated: BTreeSet::from(["old".to_owned()]), ..release_key(1) };
        for (present, next, standing) in [
            (None, release_key(1), ReleaseState::Due),
            (None, none(), ReleaseState::Due),
            (Some(release_key(1)), release_key(1), ReleaseState::Current),
            (Some(release_key(1)), release_key(2), ReleaseState::Due),
            (Some(release_key(1)), ReleaseKey { mode: Mode::Noop, ..release_key(1) }, ReleaseState::Due),
            (Some(release_key(1)), none(), ReleaseState::Due),
            (Some(none()), release_key(1), ReleaseState::Due),
            (Some(none()), none(), ReleaseState::Current),
            (Some(marked()), marked(), ReleaseState::Current),
            (Some(marked()), release_key(1), ReleaseState::Due),
        ] {
            let candidate = ReleaseCandidate { current: present, next, ..due() };
            assert_eq!(candidate.state(NOW), standing, "{candidate:?}");
        }
    }

    #[test]
    fn release_state_is_withheld_until_last_blocker_ends() {
        let (over, later, last) = (HoldEnd::Until(NOW), Timestamp(1_001), Timestamp(1_002));
        let until = |end| hold(HoldEnd::Until(end));
        for (kept_by, standing) in [
            (vec![NodeBlocker::Undecided("db")], ReleaseState::Withheld(None)),
            (vec![NodeBlocker::Paused(SetBy::Operator)], ReleaseState::Withheld(None)),
            (vec![hold(over)], ReleaseState::Due),
            (vec![hold(over), until(later)], ReleaseState::Withheld(Some(later))),
            (vec![until(last), until(later)], ReleaseState::Withheld(Some(last))),
            (vec![until(later), hold(HoldEnd::UntilRevoked)], ReleaseState::Withheld(None)),
            (vec![until(later), NodeBlocker::Paused(SetBy::Operator)], ReleaseState::Withheld(None)),
        ] {
            let candidate = ReleaseCandidate { blockers: kept_by, ..due() };
            assert_eq!(candidate.state(NOW), standing, "{candidate:?}");
            let current = ReleaseCandidate { current: Some(release_key(2)), ..candidate };
            assert_eq!(current.state(NOW), ReleaseState::Current, "what it has may be what it is to have");
        }
    }

    #[test]
    fn y06_next_task_set_names_hold_before_other_blockers() {
        let unmet =
            UnmetRequirement { key: "property:memory_mb".into(), expression: ">= 1".into(), actual: "the node has none".into() };
        let (until, over) = (hold(HoldEnd::Until(Timestamp(2_000))), hold(HoldEnd::Until(NOW)));
        for (kept_by, next, is_held, end) in [
            (vec![], NextTaskSet::Due, false, None),
            (vec![over.clone()], NextTaskSet::Due, false, None),
            (vec![until.clone()], NextTaskSet::Withheld(WithheldBy::Held(SetBy::Operator)), true, Some(Timestamp(2_000))),
            (vec![NodeBlocker::Unmet(&unmet)], NextTaskSet::Withheld(WithheldBy::Requirement), false, None),
            (vec![NodeBlocker::Undecided("db")], NextTaskSet::Withheld(WithheldBy::Undecided), false, None),
            (vec![NodeBlocker::Paused(SetBy::Operator), over], NextTaskSet::Withheld(WithheldBy::Paused), false, None),
            (
                vec![NodeBlocker::Undecided("db"), NodeBlocker::Held(SetBy::Host, HoldEnd::UntilRevoked, "")],
                NextTaskSet::Withheld(WithheldBy::Held(SetBy::Host)),
                true,
                None,
            ),
        ] {
            let candidate = ReleaseCandidate { blockers: kept_by, ..due() };
            assert_eq!(candidate.next_task_set(NOW), next, "{candidate:?}");
            assert_eq!((candidate.is_held(NOW), candidate.hold_ends_at(NOW)), (is_held, end), "{candidate:?}");
            let current = ReleaseCandidate { current: Some(release_key(2)), ..candidate };
            assert_eq!((current.next_task_set(NOW), current.is_held(NOW)), (NextTaskSet::Current, is_held));
        }
    }

    #[test]
    fn y06_error_rules_contain_only_unmet_requirements() {
        let unmet =
            UnmetRequirement { key: "trait:CUSTOM_X".into(), expression: "required".into(), actual: "the node lacks it".into() };
        let by_hand = || vec![hold(HoldEnd::UntilRevoked), NodeBlocker::Undecided("db"), NodeBlocker::Paused(SetBy::Operator)];
        let and = |one| by_hand().into_iter().chain([one]).collect::<Vec<_>>();
        for (kept_by, errors) in [
            (by_hand(), &[][..]),
            (and(NodeBlocker::Unmet(&unmet)), &["requirement.unmet"]),
            (and(NodeBlocker::LacksTraits(InstanceTraits::NoList { node: NODE.0 })), &["instance.traits"]),
        ] {
            let candidate = ReleaseCandidate { blockers: kept_by, ..due() };
            let found: Vec<_> = candidate.error_rules().into_iter().map(|rule| rule.code).collect();
            assert_eq!(found, errors, "{candidate:?}");
        }
    }

    #[test]
    fn release_state_is_due_when_hold_has_ended() {
        let end = Timestamp(5_000);
        let held = |of| ReleaseCandidate { blockers: vec![hold(of)], ..due() };
        let current = ReleaseCandidate { current: Some(release_key(2)), ..held(HoldEnd::Until(end)) };
        let (held, kept) = (held(HoldEnd::Until(end)), held(HoldEnd::UntilRevoked));
        let found = |candidate: &ReleaseCandidate<'_>, now| (candidate.state(now), candidate.hold_ends_at(now));
        assert_eq!(found(&due(), NOW), (ReleaseState::Due, None));
        assert_eq!(found(&held, NOW), (ReleaseState::Withheld(Some(end)), Some(end)));
        assert_eq!(found(&held, end), (ReleaseState::Due, None));
        assert_eq!(found(&kept, end), (ReleaseState::Withheld(None), None));
        assert_eq!(found(&current, NOW), (ReleaseState::Current, Some(end)));
    }
}
