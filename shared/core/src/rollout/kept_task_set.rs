//! What a node continues to run while its next task set is not released.

use super::ReleaseState;

/// The record to store for a task set that a node keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptTaskSet<P> {
    /// The profile that the node keeps.
    pub profile: KeptProfile<P>,
    /// True if those barriers of the task set that the present order no longer has are open
    /// ([`super::obsolete_barriers`]).
    pub has_obsolete_barriers: bool,
    /// True if the release of the task set is the one that the levels name. Otherwise it is the recorded one.
    pub is_from_levels: bool,
    /// True if the levels name another release than the recorded one for the same tasks. Two releases may have the same
    /// tasks.
    pub has_new_name: bool,
}

/// The profile of a kept task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptProfile<P> {
    /// The task set has no tasks.
    None,
    /// The node's current profile.
    Current,
    /// An earlier profile.
    Previous(P),
}

/// Plans the record of a kept task set. `kept` and `current` are the profiles of the task set and of the node now,
/// `recorded` and `level_name` the names of the recorded release and of the release at the levels. If the next task set
/// is withheld, the kept one keeps its barriers, because others may still run the tasks that it waits for.
pub fn plan_kept<P: Copy + PartialEq>(
    state: ReleaseState,
    kept: Option<P>,
    current: Option<P>,
    recorded: Option<&str>,
    level_name: Option<&str>,
) -> KeptTaskSet<P> {
    let (is_current, is_same_profile) = (state == ReleaseState::Current, kept == current);
    KeptTaskSet {
        profile: match kept {
            None => KeptProfile::None,
            Some(_) if is_same_profile => KeptProfile::Current,
            Some(profile) => KeptProfile::Previous(profile),
        },
        has_obsolete_barriers: is_current && !is_same_profile,
        is_from_levels: is_current,
        has_new_name: is_current && recorded != level_name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_kept_corrects_record_when_node_is_current() {
        use KeptProfile::{Current, None as Nothing, Previous};
        let (current, paused) = (ReleaseState::Current, ReleaseState::Withheld(None));
        for (standing, kept, today, named, expected) in [
            (current, Some(1), Some(1), "a", (Current, false, true, false)),
            (current, Some(1), Some(1), "b", (Current, false, true, true)),
            (current, Some(1), Some(2), "a", (Previous(1), true, true, false)),
            (paused, Some(1), Some(2), "b", (Previous(1), false, false, false)),
            (paused, Some(1), None, "b", (Previous(1), false, false, false)),
            (current, None, None, "a", (Nothing, false, true, false)),
        ] {
            let found = plan_kept(standing, kept, today, Some("a"), Some(named));
            let found = (found.profile, found.has_obsolete_barriers, found.is_from_levels, found.has_new_name);
            assert_eq!(found, expected, "{standing:?} {kept:?} {today:?} {named}");
        }
    }
}
