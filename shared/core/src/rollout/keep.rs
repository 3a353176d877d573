//! What a node goes on with while its next task set is not released.

use super::Standing;

/// What becomes of the task set that a node keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept<P> {
    /// The profile that it goes on with.
    pub profile: KeptProfile<P>,
    /// Whether barriers of it are open that the present order no longer has ([`super::dropped_barriers`]).
    pub drops_barriers: bool,
    /// Whether its release is the one that its levels name; else it is the one that was recorded.
    pub is_of_levels: bool,
    /// Whether the levels give its release another name than is recorded: the same tasks may stand in two releases.
    pub is_renamed: bool,
}

/// The profile of a task set that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptProfile<P> {
    /// It has no tasks.
    None,
    /// That of today.
    Today,
    /// One of before.
    Earlier(P),
}

/// Decides what becomes of a task set that is kept, by the names of its profile and of today's, and by the names of its release as they
/// are recorded and as the levels say. A node that is held back keeps its barriers: others may still run the tasks that it waits for.
pub fn keep<P: Copy + PartialEq>(
    standing: Standing,
    kept: Option<P>,
    today: Option<P>,
    recorded: Option<&str>,
    named: Option<&str>,
) -> Kept<P> {
    let (is_current, is_today) = (standing == Standing::Current, kept == today);
    Kept {
        profile: match kept {
            None => KeptProfile::None,
            Some(_) if is_today => KeptProfile::Today,
            Some(profile) => KeptProfile::Earlier(profile),
        },
        drops_barriers: is_current && !is_today,
        is_of_levels: is_current,
        is_renamed: is_current && recorded != named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_are_dropped_and_names_mended_of_a_node_that_has_what_it_is_to_have() {
        use KeptProfile::{Earlier, None as Nothing, Today};
        let (current, paused) = (Standing::Current, Standing::Kept(None));
        for (standing, kept, today, named, expected) in [
            (current, Some(1), Some(1), "a", (Today, false, true, false)),
            (current, Some(1), Some(1), "b", (Today, false, true, true)),
            (current, Some(1), Some(2), "a", (Earlier(1), true, true, false)),
            (paused, Some(1), Some(2), "b", (Earlier(1), false, false, false)),
            (paused, Some(1), None, "b", (Earlier(1), false, false, false)),
            (current, None, None, "a", (Nothing, false, true, false)),
        ] {
            let found = keep(standing, kept, today, Some("a"), Some(named));
            let found = (found.profile, found.drops_barriers, found.is_of_levels, found.is_renamed);
            assert_eq!(found, expected, "{standing:?} {kept:?} {today:?} {named}");
        }
    }
}
