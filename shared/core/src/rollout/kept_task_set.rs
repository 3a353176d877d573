//! The plan for a node that continues to run its released task set, because no newer one is released.

use super::ReleaseState;

/// The plan for a task set that a node continues to run: its profile, its barriers and its release. A profile is the
/// stored definitions and order of the tasks on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptTaskSet<P> {
    /// The profile that the node continues to run.
    pub profile: KeptProfile<P>,
    /// True if the profile may have barriers that the present order of tasks no longer has. The controller must then
    /// open these barriers ([`super::obsolete_barriers`]), so that the tasks behind them no longer wait.
    pub may_have_obsolete_barriers: bool,
    /// True if the task set belongs to the release that the node's levels (template, cluster, group) name. If false,
    /// the task set belongs to the release in the node's record, which describes what was released to the node.
    pub is_from_levels: bool,
    /// True if the node's levels (template, cluster, group) name another release than the node's record, and the tasks
    /// of both releases are the same for the node. The controller then stores the new name in the record.
    pub has_other_release_name: bool,
}

/// The profile of a task set that a node continues to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptProfile<P> {
    /// The task set has no tasks.
    None,
    /// The profile that the node's present spec gives.
    Current,
    /// An earlier profile of the node.
    Previous(P),
}

/// Plans how a node continues to run its released task set. `state` is the state of the node's next task set.
/// `kept_profile` is the profile of the released task set, and `current_profile` is the profile that the node's present
/// spec gives. The profiles can differ although the tasks of the node are the same, for example in the order of tasks.
/// `recorded_release` is the release that the node's record names. `level_release` is the release that the node's
/// levels (template, cluster, group) name.
///
/// If the next task set is withheld, the plan lets no obsolete barrier be opened, because other hosts may still run the
/// tasks that the node waits for there.
pub fn plan_kept_task_set<P: Copy + PartialEq>(
    state: ReleaseState,
    kept_profile: Option<P>,
    current_profile: Option<P>,
    recorded_release: Option<&str>,
    level_release: Option<&str>,
) -> KeptTaskSet<P> {
    let (is_current, is_same_profile) = (state == ReleaseState::Current, kept_profile == current_profile);
    KeptTaskSet {
        profile: match kept_profile {
            None => KeptProfile::None,
            Some(_) if is_same_profile => KeptProfile::Current,
            Some(profile) => KeptProfile::Previous(profile),
        },
        may_have_obsolete_barriers: is_current && !is_same_profile,
        is_from_levels: is_current,
        has_other_release_name: is_current && recorded_release != level_release,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row has the state of the next task set, the kept and the current profile, the release that the levels name,
    /// and the expected plan. The record names release `a`. The three flags of a plan are `may_have_obsolete_barriers`,
    /// `is_from_levels` and `has_other_release_name`.
    #[test]
    fn plan_kept_task_set_depends_on_state_profile_and_release() {
        use KeptProfile::{Current, None as Nothing, Previous};
        let (current_state, withheld_state) = (ReleaseState::Current, ReleaseState::Withheld(None));
        for (release_state, kept_profile, current_profile, level_release, expected) in [
            (current_state, Some(1), Some(1), "a", (Current, false, true, false)),
            (current_state, Some(1), Some(1), "b", (Current, false, true, true)),
            (current_state, Some(1), Some(2), "a", (Previous(1), true, true, false)),
            (withheld_state, Some(1), Some(2), "b", (Previous(1), false, false, false)),
            (withheld_state, Some(1), None, "b", (Previous(1), false, false, false)),
            (current_state, None, None, "a", (Nothing, false, true, false)),
        ] {
            let found = plan_kept_task_set(release_state, kept_profile, current_profile, Some("a"), Some(level_release));
            let found = (found.profile, found.may_have_obsolete_barriers, found.is_from_levels, found.has_other_release_name);
            assert_eq!(found, expected, "{release_state:?} {kept_profile:?} {current_profile:?} {level_release}");
        }
    }
}
