//! The grants of a controller: open barriers, and leases by kind. A new grant replaces the earlier one of its kind.
//!
//! A lease is therefore independent of the open barriers, and a message with a lease does not close barriers. Open
//! barriers are also stored on disk, because a restart must not close them. A lease is not stored, because its end is a
//! time of the clock that counts since this boot.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stemma_wire::message::Revision;
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::signed::LeaseKind;

use crate::apply::ledger::OpenBarriers;

/// The newest grants of the controller: the open barriers, and one lease of each kind.
#[derive(Default)]
pub(super) struct GrantTable {
    barriers: Option<OpenBarriers>,
    /// The leases by kind. No task type of this agent uses a lease yet.
    leases: BTreeMap<LeaseKind, HeldLease>,
}

/// A lease (a permission for a limited time) that the controller granted to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldLease {
    /// The revision of the store at which the controller granted the lease.
    pub(super) revision: Revision,
    /// The end of the lease, as a time since the machine started.
    pub(super) expires_at: Duration,
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

    /// Ends all leases, because the epoch in which they were granted has ended.
    pub(super) fn end_leases(&mut self) {
        self.leases.clear();
    }

    /// Stores a lease, unless the current lease of the same kind is of a later revision.
    pub(super) fn update_lease(&mut self, kind: LeaseKind, lease: HeldLease) {
        if self.leases.get(&kind).is_none_or(|current| current.revision <= lease.revision) {
            self.leases.insert(kind, lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::PartDigest;

    use super::*;

    /// Returns open barriers at this revision, one for each task.
    fn barriers(revision: u64, tasks: &[&str]) -> OpenBarriers {
        let barrier = |task: &&str| Barrier { task: (*task).to_owned(), selector: "tag=db".to_owned() };
        let open = tasks.iter().map(barrier).collect();
        OpenBarriers { task_set: PartDigest([1; 32]), revision: Revision(revision), open }
    }

    fn lease(revision: u64, seconds: u64) -> HeldLease {
        HeldLease { revision: Revision(revision), expires_at: Duration::from_secs(seconds) }
    }

    #[test]
    fn grant_replaces_only_earlier_grant_of_same_kind() {
        let mut grants = GrantTable::default();
        assert!(grants.update_barriers(barriers(5, &["db"])).is_some());
        // The numbers are the revision and the end of the lease, in seconds.
        grants.update_lease(LeaseKind::Mend, lease(6, 60));
        grants.update_lease(LeaseKind::Reboot, lease(7, 90));
        assert_eq!(*grants.open_barriers(), barriers(5, &["db"]).open, "a lease leaves the open barriers unchanged");

        assert!(grants.update_barriers(barriers(8, &[])).is_some());
        grants.update_lease(LeaseKind::Mend, lease(9, 70));
        assert!(grants.open_barriers().is_empty());
        let leases = [(LeaseKind::Mend, lease(9, 70)), (LeaseKind::Reboot, lease(7, 90))];
        assert_eq!(grants.leases, leases.into(), "barriers leave the leases unchanged");
    }

    #[test]
    fn grant_is_ignored_when_older_than_held_one() {
        let mut grants = GrantTable::default();
        grants.update_barriers(barriers(8, &["db"]));
        assert!(grants.update_barriers(barriers(7, &[])).is_none());
        assert_eq!(*grants.open_barriers(), barriers(8, &["db"]).open);
        grants.update_lease(LeaseKind::Reboot, lease(8, 60));
        grants.update_lease(LeaseKind::Reboot, lease(7, 600));
        assert_eq!(grants.leases, [(LeaseKind::Reboot, lease(8, 60))].into());
        let other = OpenBarriers { task_set: PartDigest([2; 32]), ..barriers(1, &["web"]) };
        assert!(grants.update_barriers(other).is_some(), "barriers of another task set replace the current ones");
    }
}
