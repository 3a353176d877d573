//! Grants by key: what is given of one kind replaces what was given of that kind before, and nothing else.
//!
//! So a lease stands beside the open barriers, and a message that brings one does not take back the other. Barriers are on
//! disk as well, since a restart must not close them. A lease ends by the clock of this boot and is not kept longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stemma_wire::message::Revision;
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::signed::LeaseKind;

use crate::apply::ledger::OpenBarriers;

/// The newest grant of each key.
#[derive(Default)]
pub(super) struct Grants {
    barriers: Option<OpenBarriers>,
    /// No task type of this agent takes a lease yet.
    leases: BTreeMap<LeaseKind, Lease>,
}

/// A lease that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// The revision at which it was given.
    pub(super) revision: Revision,
    /// When it ends, as time since the machine started.
    pub(super) until: Duration,
}

/// The set of open barriers where none is open.
static NONE_OPEN: BTreeSet<Barrier> = BTreeSet::new();

impl Grants {
    /// The barriers that are open now.
    pub(super) fn open(&self) -> &BTreeSet<Barrier> {
        self.barriers.as_ref().map_or(&NONE_OPEN, |barriers| &barriers.open)
    }

    /// Takes up the barriers that are on disk for the task set held, or none.
    pub(super) fn restore(&mut self, kept: Option<OpenBarriers>) {
        self.barriers = kept;
    }

    /// Keeps open barriers, unless later ones are held for the same task set. Returns them where they are kept.
    pub(super) fn keep_barriers(&mut self, given: OpenBarriers) -> Option<&OpenBarriers> {
        let held = self.barriers.as_ref();
        if held.is_some_and(|held| held.task_set == given.task_set && held.revision > given.revision) {
            return None;
        }
        Some(self.barriers.insert(given))
    }

    /// Ends all leases: those of an epoch that ended count no more.
    pub(super) fn end_leases(&mut self) {
        self.leases.clear();
    }

    /// Keeps a lease, unless a later one of its kind is held.
    pub(super) fn keep_lease(&mut self, kind: LeaseKind, given: Lease) {
        if self.leases.get(&kind).is_none_or(|held| held.revision <= given.revision) {
            self.leases.insert(kind, given);
        }
    }
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::PartDigest;

    use super::*;

    fn barriers(revision: u64, tasks: &[&str]) -> OpenBarriers {
        let barrier = |task: &&str| Barrier { task: (*task).to_owned(), selector: "tag=db".to_owned() };
        let open = tasks.iter().map(barrier).collect();
        OpenBarriers { task_set: PartDigest([1; 32]), revision: Revision(revision), open }
    }

    fn lease(revision: u64, seconds: u64) -> Lease {
        Lease { revision: Revision(revision), until: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_grant_replaces_the_earlier_one_of_its_key_alone() {
        let mut grants = Grants::default();
        assert!(grants.keep_barriers(barriers(5, &["db"])).is_some());
        grants.keep_lease(LeaseKind::Mend, lease(6, 60));
        grants.keep_lease(LeaseKind::Reboot, lease(7, 90));
        assert_eq!(*grants.open(), barriers(5, &["db"]).open, "a lease takes no barrier back");

        assert!(grants.keep_barriers(barriers(8, &[])).is_some());
        grants.keep_lease(LeaseKind::Mend, lease(9, 70));
        assert!(grants.open().is_empty());
        let leases = [(LeaseKind::Mend, lease(9, 70)), (LeaseKind::Reboot, lease(7, 90))];
        assert_eq!(grants.leases, leases.into(), "nor do barriers take a lease back");
    }

    #[test]
    fn an_earlier_grant_of_the_same_key_is_not_taken_for_a_later_one() {
        let mut grants = Grants::default();
        grants.keep_barriers(barriers(8, &["db"]));
        assert!(grants.keep_barriers(barriers(7, &[])).is_none());
        assert_eq!(*grants.open(), barriers(8, &["db"]).open);
        grants.keep_lease(LeaseKind::Reboot, lease(8, 60));
        grants.keep_lease(LeaseKind::Reboot, lease(7, 600));
        assert_eq!(grants.leases, [(LeaseKind::Reboot, lease(8, 60))].into());
        let other = OpenBarriers { task_set: PartDigest([2; 32]), ..barriers(1, &["web"]) };
        assert!(grants.keep_barriers(other).is_some(), "another task set has barriers of its own");
    }
}
