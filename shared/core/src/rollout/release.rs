//! Decides when a node's next task set is released.
//!
//! A task set is released again if its [`ReleaseKey`] differs from that of the released one. Other changes release
//! nothing, because the host would run the same tasks with the same inputs. Examples are the wording of an explanation,
//! and a dependency in the order of tasks.

use std::collections::BTreeSet;

use crate::digest::{DigestVersion, TaskDigest};
use crate::finding::Rule;
use crate::object::{NodeId, Timestamp};
use crate::resolve::{NodeBlocker, ResolvedNode};
use crate::status::{NextTaskSet, WithheldBy};
use crate::task::Mode;

/// The parts of a task set that decide whether it is released. A task set with another key than the released one is a
/// new task set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseKey {
    /// The mode of the node: the host applies tasks, only checks them, or does neither.
    pub mode: Mode,
    /// The digest of the node's tasks, or `None` if the node has no profile, for example because it is in no group.
    pub tasks: Option<TaskDigest>,
    /// The ids of the tasks that the host has and never starts, because an import from Fuel could not translate one of
    /// their expressions. The digest of version 1 does not depend on this, so the ids are listed here. The digest of
    /// version 2 depends on it, so the list is then empty.
    pub untranslated_ids: BTreeSet<String>,
}

/// A node, with its released and its next task set and with what withholds the next one.
#[derive(Clone, Debug)]
pub struct ReleaseCandidate<'a> {
    /// The node.
    pub node: NodeId,
    /// The key of the task set that was released to the node, or `None` if no task set was released.
    pub current: Option<ReleaseKey>,
    /// The key of the task set that the node should have. Its digest has the digest version of `current`, so that the
    /// two can be compared.
    pub next: ReleaseKey,
    /// The reasons that withhold the next task set, for example a hold. Holds that have ended are included.
    pub blockers: Vec<NodeBlocker<'a>>,
}

/// The state of a node's next task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseState {
    /// The task set that was released to the node is the one that it should have.
    Current,
    /// Nothing withholds the next task set, so the controller can release it.
    Due,
    /// Something withholds the next task set, at least until the time in the variant. `None` means that no time is
    /// known, for example because an operator must end a pause.
    Withheld(Option<Timestamp>),
}

impl ReleaseState {
    /// Returns the size of a node's record that a check of a write counts against the budget of the node's cluster, in
    /// bytes. `current_bytes` is the size of the present record, and `next_bytes` the size of the record of the next
    /// task set. If the next task set is withheld, the larger size counts, because the task set may be released later.
    pub fn record_bytes(self, current_bytes: u64, next_bytes: u64) -> u64 {
        match self {
            Self::Current => current_bytes,
            Self::Due => next_bytes,
            Self::Withheld(_) => current_bytes.max(next_bytes),
        }
    }
}

impl ReleaseKey {
    /// Returns the key of the task set that a node should have. `node` is a node with everything that it inherits. The
    /// tasks that an import from Fuel could not translate are listed only in digest version 1, because the digest of
    /// version 2 already depends on them.
    pub fn from_resolved(node: &ResolvedNode, version: DigestVersion) -> Self {
        let (mode, task_set) = (node.mode().value, node.task_set());
        let v1_task_set = task_set.filter(|_| version == DigestVersion::V1);
        let untranslated = v1_task_set.into_iter().flat_map(|task_set| task_set.untranslated_ids()).map(str::to_owned).collect();
        Self { mode, tasks: task_set.map(|task_set| task_set.task_digest(version)), untranslated_ids: untranslated }
    }
}

impl<'a> ReleaseCandidate<'a> {
    /// Creates a candidate. `resolved` is the node with everything that it inherits, `current` is the key of its
    /// released task set, and `version` is the digest version of that key. `has_running_task` returns whether the
    /// released task set has the task with this id and does not leave it out. It is `None` if no task set with tasks
    /// was released.
    pub fn from_resolved(
        resolved: &'a ResolvedNode,
        current: Option<ReleaseKey>,
        version: DigestVersion,
        has_running_task: Option<&dyn Fn(&str) -> bool>,
    ) -> Self {
        let blockers = resolved.blockers(has_running_task);
        Self {
            node: resolved.id(),
            next: ReleaseKey::from_resolved(resolved, version),
            // Other blockers, such as a park, only prevent tasks from running.
            blockers: blockers.filter(NodeBlocker::is_withholding).collect(),
            current,
        }
    }

    /// Returns the state of the next task set at `now`, in the form that decides the node's state. If several blockers
    /// withhold the task set, the first hold is returned, or else the first blocker. The result `Due` in the last line
    /// cannot occur, because each blocker of a candidate withholds the task set.
    pub fn next_task_set_at(&self, now: Timestamp) -> NextTaskSet {
        match self.state(now) {
            ReleaseState::Current => return NextTaskSet::Current,
            ReleaseState::Due => return NextTaskSet::Due,
            ReleaseState::Withheld(_) => {}
        }
        let reasons = || self.active_blockers(now).filter_map(NodeBlocker::withheld_by);
        let first_hold = reasons().find(|reason| matches!(reason, WithheldBy::Held(_)));
        first_hold.or_else(|| reasons().next()).map_or(NextTaskSet::Due, NextTaskSet::Withheld)
    }

    /// Returns the rules of the error findings that only repeat what withholds the next task set, such as an unmet
    /// requirement. The caller counts them apart, so that a node with an older task set is `held` and not `failed`.
    pub fn error_rules(&self) -> Vec<Rule> {
        self.blockers.iter().filter_map(NodeBlocker::error_rule).collect()
    }

    /// Returns whether a hold of the node is in force at `now`. A hold that has ended is not in force.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.active_blockers(now).any(|blocker| matches!(blocker, NodeBlocker::Held(..)))
    }

    /// Returns the earliest time at which a hold ends by itself. Only holds that are in force at `now` are examined.
    /// Returns `None` if none of them ends by itself.
    pub fn hold_ends_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.active_blockers(now).filter_map(NodeBlocker::ends_at).min()
    }

    /// Returns the state of the next task set at `now`. A withheld task set is withheld until its last blocker ends.
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

    /// Returns the blockers that withhold the next task set at `now`. A hold that has ended is left out.
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
    use crate::traits::InstanceTraitsError;

    /// Regression test: a node with nothing to release could move with its record to another cluster and exceed the
    /// quota there.
    #[test]
    fn x03_f07_record_bytes_depend_on_release_state() {
        for (release_state, current_bytes, next_bytes, expected) in [
            (ReleaseState::Current, 120_000, 0, 120_000),
            (ReleaseState::Current, 0, 120_000, 0),
            (ReleaseState::Due, 120_000, 0, 0),
            (ReleaseState::Due, 0, 120_000, 120_000),
            (ReleaseState::Withheld(None), 120_000, 0, 120_000),
            (ReleaseState::Withheld(Some(NOW)), 0, 120_000, 120_000),
        ] {
            assert_eq!(
                release_state.record_bytes(current_bytes, next_bytes),
                expected,
                "{release_state:?} {current_bytes} {next_bytes}"
            );
        }
    }

    const NOW: Timestamp = Timestamp(1_000);
    const NODE: NodeId = NodeId(Uuid::from_u128(1));

    /// Returns the key of a task set whose digest consists of this byte, in mode `apply`.
    fn release_key(digest: u8) -> ReleaseKey {
        ReleaseKey { mode: Mode::Apply, tasks: Some(TaskDigest([digest; 32])), untranslated_ids: BTreeSet::new() }
    }

    /// Returns a node whose next task set differs from the released one and is not withheld. The key of the released
    /// task set is `release_key(1)`, and the key of the next one is `release_key(2)`.
    fn due_candidate() -> ReleaseCandidate<'static> {
        ReleaseCandidate { node: NODE, current: Some(release_key(1)), next: release_key(2), blockers: Vec::new() }
    }

    /// Returns a hold that an operator set, with this end.
    fn hold(end: HoldEnd) -> NodeBlocker<'static> {
        NodeBlocker::Held(SetBy::Operator, end, "")
    }

    /// If nothing withholds the next task set, it is due when its key differs from the released key in any field.
    #[test]
    fn release_state_is_due_when_next_key_differs() {
        let key_without_tasks = || ReleaseKey { tasks: None, ..release_key(0) };
        let untranslated_key = || ReleaseKey { untranslated_ids: BTreeSet::from(["old".to_owned()]), ..release_key(1) };
        for (current, next, expected) in [
            (None, release_key(1), ReleaseState::Due),
            (None, key_without_tasks(), ReleaseState::Due),
            (Some(release_key(1)), release_key(1), ReleaseState::Current),
            (Some(release_key(1)), release_key(2), ReleaseState::Due),
            (Some(release_key(1)), ReleaseKey { mode: Mode::Noop, ..release_key(1) }, ReleaseState::Due),
            (Some(release_key(1)), key_without_tasks(), ReleaseState::Due),
            (Some(key_without_tasks()), release_key(1), ReleaseState::Due),
            (Some(key_without_tasks()), key_without_tasks(), ReleaseState::Current),
            (Some(untranslated_key()), untranslated_key(), ReleaseState::Current),
            (Some(untranslated_key()), release_key(1), ReleaseState::Due),
        ] {
            let candidate = ReleaseCandidate { current, next, ..due_candidate() };
            assert_eq!(candidate.state(NOW), expected, "{candidate:?}");
        }
    }

    /// A hold that has ended withholds nothing. A blocker without an end gives `Withheld(None)`.
    #[test]
    fn release_state_is_withheld_until_last_blocker_ends() {
        let (hold_end_passed, first_end, last_end) = (HoldEnd::Until(NOW), Timestamp(1_001), Timestamp(1_002));
        let hold_until = |end| hold(HoldEnd::Until(end));
        for (blockers, expected) in [
            (vec![NodeBlocker::Undecided("db")], ReleaseState::Withheld(None)),
            (vec![NodeBlocker::Paused(SetBy::Operator)], ReleaseState::Withheld(None)),
            (vec![hold(hold_end_passed)], ReleaseState::Due),
            (vec![hold(hold_end_passed), hold_until(first_end)], ReleaseState::Withheld(Some(first_end))),
            (vec![hold_until(last_end), hold_until(first_end)], ReleaseState::Withheld(Some(last_end))),
            (vec![hold_until(first_end), hold(HoldEnd::UntilRevoked)], ReleaseState::Withheld(None)),
            (vec![hold_until(first_end), NodeBlocker::Paused(SetBy::Operator)], ReleaseState::Withheld(None)),
        ] {
            let candidate = ReleaseCandidate { blockers, ..due_candidate() };
            assert_eq!(candidate.state(NOW), expected, "{candidate:?}");
            // Key 2 is the key of the next task set.
            let current_candidate = ReleaseCandidate { current: Some(release_key(2)), ..candidate };
            assert_eq!(
                current_candidate.state(NOW),
                ReleaseState::Current,
                "a node with its next task set is current, also if it is held"
            );
        }
    }

    /// Each row has the blockers of a node, the expected state of its next task set, whether a hold is in force, and
    /// the end of the hold.
    #[test]
    fn y06_next_task_set_names_hold_before_other_blockers() {
        let unmet =
            UnmetRequirement { key: "property:memory_mb".into(), expression: ">= 1".into(), actual: "the node has none".into() };
        let (active_hold, ended_hold) = (hold(HoldEnd::Until(Timestamp(2_000))), hold(HoldEnd::Until(NOW)));
        for (blockers, next, is_held, hold_end) in [
            (vec![], NextTaskSet::Due, false, None),
            (vec![ended_hold.clone()], NextTaskSet::Due, false, None),
            (vec![active_hold.clone()], NextTaskSet::Withheld(WithheldBy::Held(SetBy::Operator)), true, Some(Timestamp(2_000))),
            (vec![NodeBlocker::Unmet(&unmet)], NextTaskSet::Withheld(WithheldBy::Requirement), false, None),
            (vec![NodeBlocker::Undecided("db")], NextTaskSet::Withheld(WithheldBy::Undecided), false, None),
            (vec![NodeBlocker::Paused(SetBy::Operator), ended_hold], NextTaskSet::Withheld(WithheldBy::Paused), false, None),
            (
                vec![NodeBlocker::Undecided("db"), NodeBlocker::Held(SetBy::Host, HoldEnd::UntilRevoked, "")],
                NextTaskSet::Withheld(WithheldBy::Held(SetBy::Host)),
                true,
                None,
            ),
        ] {
            let candidate = ReleaseCandidate { blockers, ..due_candidate() };
            assert_eq!(candidate.next_task_set_at(NOW), next, "{candidate:?}");
            assert_eq!((candidate.is_held(NOW), candidate.hold_ends_at(NOW)), (is_held, hold_end), "{candidate:?}");
            // Key 2 is the key of the next task set, so nothing remains to be withheld. The hold is still in force.
            let current_candidate = ReleaseCandidate { current: Some(release_key(2)), ..candidate };
            assert_eq!(
                (current_candidate.next_task_set_at(NOW), current_candidate.is_held(NOW)),
                (NextTaskSet::Current, is_held)
            );
        }
    }

    /// Holds, pauses and undecided conditions are no errors. An unmet requirement and missing traits of the instance
    /// are errors, each with a rule of its own.
    #[test]
    fn y06_error_rules_contain_unmet_requirements_and_missing_traits() {
        let unmet =
            UnmetRequirement { key: "trait:CUSTOM_X".into(), expression: "required".into(), actual: "the node lacks it".into() };
        let blockers_without_error =
            || vec![hold(HoldEnd::UntilRevoked), NodeBlocker::Undecided("db"), NodeBlocker::Paused(SetBy::Operator)];
        let with_blocker = |blocker| blockers_without_error().into_iter().chain([blocker]).collect::<Vec<_>>();
        for (blockers, errors) in [
            (blockers_without_error(), &[][..]),
            (with_blocker(NodeBlocker::Unmet(&unmet)), &["requirement.unmet"]),
            (with_blocker(NodeBlocker::LacksTraits(InstanceTraitsError::NoList { node: NODE.0 })), &["instance.traits"]),
        ] {
            let candidate = ReleaseCandidate { blockers, ..due_candidate() };
            let codes: Vec<_> = candidate.error_rules().into_iter().map(|rule| rule.code).collect();
            assert_eq!(codes, errors, "{candidate:?}");
        }
    }

    /// Each check compares the state of the next task set and the end of the hold at one time. A hold until revocation
    /// never ends by itself. `current_candidate` already has its next task set, whose key is `release_key(2)`.
    #[test]
    fn release_state_is_due_when_hold_has_ended() {
        let end = Timestamp(5_000);
        let held_candidate = |hold_end| ReleaseCandidate { blockers: vec![hold(hold_end)], ..due_candidate() };
        let current_candidate = ReleaseCandidate { current: Some(release_key(2)), ..held_candidate(HoldEnd::Until(end)) };
        let (held_candidate, held_until_revoked) = (held_candidate(HoldEnd::Until(end)), held_candidate(HoldEnd::UntilRevoked));
        let state_and_hold_end = |candidate: &ReleaseCandidate<'_>, now| (candidate.state(now), candidate.hold_ends_at(now));
        assert_eq!(state_and_hold_end(&due_candidate(), NOW), (ReleaseState::Due, None));
        assert_eq!(state_and_hold_end(&held_candidate, NOW), (ReleaseState::Withheld(Some(end)), Some(end)));
        assert_eq!(state_and_hold_end(&held_candidate, end), (ReleaseState::Due, None));
        assert_eq!(state_and_hold_end(&held_until_revoked, end), (ReleaseState::Withheld(None), None));
        assert_eq!(state_and_hold_end(&current_candidate, NOW), (ReleaseState::Current, Some(end)));
    }
}
