//! The open barriers that a controller grants. A new grant replaces the earlier one.
//!
//! A message with a lease does not close barriers. Open barriers are also stored on disk, because a restart must not close
//! them.

use std::collections::BTreeSet;

use stemma_wire::message::desired::Barrier;

use crate::apply::ledger::OpenBarriers;

/// The newest open barriers of the controller.
#[derive(Default)]
pub(super) struct GrantTable {
    barriers: Option<OpenBarriers>,
}

/// An empty set of open barriers.
static NO_BARRIERS: BTreeSet<Barrier> = BTreeSet::new();

impl GrantTable {
    /// Returns the barriers that are open now.
    pub(super) fn open_barriers(&self) -> &BTreeSet<Barrier> {
        self.barriers.as_ref().map_or(&NO_BARRIERS, |barriers| &barriers.open)
    }

    /// Replaces the open barriers by `stored`, the barriers that the ledger has for the current task set. `None` closes
    /// all barriers.
    pub(super) fn restore(&mut self, stored: Option<OpenBarriers>) {
        self.barriers = stored;
    }

    /// Replaces the open barriers, and returns the new ones, so that the caller stores them on disk. Returns `None` and
    /// changes nothing if the current barriers are of the same task set and of a later revision.
    pub(super) fn update_barriers(&mut self, barriers: OpenBarriers) -> Option<&OpenBarriers> {
        let current = self.barriers.as_ref();
        if current.is_some_and(|current| current.task_set == barriers.task_set && current.revision > barriers.revision) {
            return None;
        }
        Some(self.barriers.insert(barriers))
    }
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::{PartDigest, Revision};

    use super::*;

    /// Returns open barriers at this revision, one for each task.
    fn barriers(revision: u64, tasks: &[&str]) -> OpenBarriers {
        let barrier = |task: &&str| Barrier { task: (*task).to_owned(), selector: "tag=db".to_owned() };
        let open = tasks.iter().map(barrier).collect();
        OpenBarriers { task_set: PartDigest([1; 32]), revision: Revision(revision), open }
    }

    #[test]
    fn grant_is_ignored_when_older_than_held_one() {
        let mut grants = GrantTable::default();
        grants.update_barriers(barriers(8, &["db"]));
        assert!(grants.update_barriers(barriers(7, &[])).is_none());
        assert_eq!(*grants.open_barriers(), barriers(8, &["db"]).open);
        assert!(grants.update_barriers(barriers(9, &[])).is_some());
        assert!(grants.open_barriers().is_empty());
        let other = OpenBarriers { task_set: PartDigest([2; 32]), ..barriers(1, &["web"]) };
        assert!(grants.update_barriers(other).is_some(), "barriers of another task set replace the current ones");
    }
}
