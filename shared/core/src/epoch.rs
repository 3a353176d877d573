//! Epochs of a store, and how what a host holds stands to it.
//!
//! Revisions count within an epoch. A store that was restored from an older copy gives revisions again that hosts have seen, for other
//! states: its hosts hold later ones than it has, and refuse what it signs. So nothing is told to them until an admin ends the epoch. The
//! next one begins at the store's revision, and a signed change leads each host from the epoch that it knows into it.
//!
//! ```text
//!   held: epoch, revision            store: epoch line, head
//!        │
//!        ├─ the present epoch ──── revision ≤ head ──▶ Follows
//!        │                    └─── revision > head ──▶ Ahead      (restored from an older copy)
//!        ├─ one that was ended ────────────────────▶ Ended      (follows by a signed change)
//!        └─ any other ───────────────────────────▶ Unknown    (another store, or an epoch after the copy was made)
//! ```

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The most epochs that a line remembers. A host that was away for longer than so many restores has to join anew.
const MAX_ENDED: usize = 1024;

/// The epochs of a store: the present one, and those that it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochLine {
    /// The present one.
    pub now: Uuid,
    /// The revision at which it began.
    pub at: u64,
    /// Why, for people; empty for the first one.
    pub reason: String,
    /// Those that ended, in their order.
    pub ended: Vec<Uuid>,
    /// Whether nobody is told anything before an admin says so: the store was restored from a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

/// What a host holds, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRevision {
    /// The epoch.
    pub epoch: Uuid,
    /// The revision in it.
    pub revision: u64,
}

/// How what a host holds stands to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds nothing, or a state of the present epoch that the store has come to: it can be told all.
    Follows,
    /// It holds a state of an epoch that ended here: it can be told all, with the signed change.
    Ended,
    /// It holds a later revision of the present epoch than the store has.
    Ahead,
    /// It holds a state of an epoch that the store knows nothing of.
    Unknown,
    /// The store was restored: nobody is told anything before an admin says so, whoever joins meanwhile neither.
    Waits,
}

impl EpochLine {
    /// The line of a new store.
    pub const fn first(epoch: Uuid) -> Self {
        Self { now: epoch, at: 0, reason: String::new(), ended: Vec::new(), waits: false }
    }

    /// How what a host holds stands to a store that has come to the revision `head`.
    pub fn standing(&self, held: Option<HeldRevision>, head: u64) -> Standing {
        match held {
            _ if self.waits => Standing::Waits,
            None => Standing::Follows,
            Some(held) if held.epoch == self.now && held.revision <= head => Standing::Follows,
            Some(held) if held.epoch == self.now => Standing::Ahead,
            Some(held) if self.ended.contains(&held.epoch) => Standing::Ended,
            Some(_) => Standing::Unknown,
        }
    }

    /// The line after the present epoch was ended at a revision, and with it the epochs that hosts hold and that are not known here.
    #[must_use]
    pub fn next(&self, epoch: Uuid, at: u64, reason: &str, unknown: impl IntoIterator<Item = Uuid>) -> Self {
        let mut ended = self.ended.clone();
        for one in unknown.into_iter().chain([self.now]) {
            if one != epoch && !ended.contains(&one) {
                ended.push(one);
            }
        }
        ended.drain(..ended.len().saturating_sub(MAX_ENDED));
        Self { now: epoch, at, reason: reason.to_owned(), ended, waits: false }
    }

    /// The line of a store that was restored from a backup: in another epoch, which waits.
    #[must_use]
    pub fn restored(&self, epoch: Uuid, at: u64, reason: &str) -> Self {
        Self { waits: true, ..self.next(epoch, at, reason, []) }
    }

    /// The line after an admin said that hosts may follow: it waits no longer, or another epoch began. The epochs that hosts hold and that are
    /// not known here end with it.
    #[must_use]
    pub fn resumed(&self, epoch: Uuid, at: u64, reason: &str, unknown: impl IntoIterator<Item = Uuid>) -> Self {
        if !self.waits {
            return self.next(epoch, at, reason, unknown);
        }
        let known = self.next(self.now, at, reason, unknown);
        Self { ended: known.ended, waits: false, ..self.clone() }
    }
}

impl Standing {
    /// Whether the host can be told what it is to be.
    pub const fn can_be_told(self) -> bool {
        matches!(self, Self::Follows | Self::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Uuid = Uuid::from_u128(1);
    const SECOND: Uuid = Uuid::from_u128(2);
    const OTHER: Uuid = Uuid::from_u128(3);

    fn held(epoch: Uuid, revision: u64) -> HeldRevision {
        HeldRevision { epoch, revision }
    }

    #[test]
    fn a_host_is_ahead_of_a_store_whose_revision_it_has_passed() {
        let line = EpochLine::first(FIRST);
        for (holds, standing) in [
            (None, Standing::Follows),
            (Some(held(FIRST, 1)), Standing::Follows),
            (Some(held(FIRST, 9)), Standing::Follows),
            (Some(held(FIRST, 10)), Standing::Ahead),
            (Some(held(SECOND, 1)), Standing::Unknown),
        ] {
            assert_eq!(line.standing(holds, 9), standing, "{holds:?}");
        }
    }

    #[test]
    fn hosts_of_each_epoch_that_ended_follow_whatever_they_hold() {
        let line = EpochLine::first(FIRST).next(SECOND, 9, "restored", [OTHER]);
        assert_eq!((line.now, line.at, line.ended.as_slice()), (SECOND, 9, &[OTHER, FIRST][..]));
        for (holds, standing) in [
            (Some(held(FIRST, 10_000)), Standing::Ended),
            (Some(held(OTHER, 1)), Standing::Ended),
            (Some(held(SECOND, 9)), Standing::Follows),
            (Some(held(SECOND, 10)), Standing::Ahead),
            (Some(held(Uuid::from_u128(4), 1)), Standing::Unknown),
        ] {
            assert_eq!(line.standing(holds, 9), standing, "{holds:?}");
            assert_eq!(standing.can_be_told(), matches!(standing, Standing::Follows | Standing::Ended));
        }
        let again = line.next(Uuid::from_u128(4), 12, "restored", [FIRST]);
        assert_eq!(again.ended, [OTHER, FIRST, SECOND], "each once");
    }

    #[test]
    fn after_a_restore_nobody_is_told_before_an_admin_says_so() {
        let line = EpochLine::first(FIRST).restored(SECOND, 9, "restored");
        for holds in [Some(held(FIRST, 1)), Some(held(SECOND, 1)), Some(held(OTHER, 1)), None] {
            assert_eq!(line.standing(holds, 9), Standing::Waits, "{holds:?}");
        }
        let resumed = line.resumed(Uuid::from_u128(4), 12, "again", [OTHER, FIRST]);
        assert_eq!((resumed.now, resumed.at, resumed.waits), (SECOND, 9, false), "its own epoch has begun already");
        for holds in [Some(held(FIRST, 100)), Some(held(OTHER, 100))] {
            assert_eq!(resumed.standing(holds, 9), Standing::Ended, "{holds:?}");
        }
        let ahead = resumed.resumed(Uuid::from_u128(4), 12, "again", [SECOND]);
        assert_eq!((ahead.now, ahead.at), (Uuid::from_u128(4), 12));
    }

    #[test]
    fn a_line_forgets_the_oldest_epochs() {
        let many = (10..2000).map(Uuid::from_u128);
        let line = EpochLine::first(FIRST).next(SECOND, 1, "restored", many);
        assert_eq!((line.ended.len(), line.ended.last()), (1024, Some(&FIRST)));
    }
}
