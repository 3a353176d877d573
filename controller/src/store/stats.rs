//! What a store counts of itself: `/metrics` shows it, and "a quiet restart writes nothing" is told by it.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;

use super::Revision;

/// The last durable revision, and counters since a store was opened. They only grow; reading one says nothing about another.
#[derive(Debug, Default)]
pub struct Stats {
    revision: AtomicU64,
    /// Transactions that became durable and changed something: the number of revisions made.
    pub commits: Counter,
    /// Entries written, those under history and audit included.
    pub puts: Counter,
    /// Entries taken away.
    pub deletes: Counter,
    /// Engine transactions that were made durable; commits divided by this is how many shared one.
    pub syncs: Counter,
    /// Transactions whose preconditions did not hold.
    pub unmet: Counter,
}

impl Stats {
    /// Those of a store that was opened at a revision.
    pub(super) fn at(revision: Revision) -> Self {
        Self { revision: AtomicU64::new(revision.get()), ..Self::default() }
    }

    /// The last durable revision.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    pub(super) fn count_synced(&self, last: Revision, commits: u64, puts: u64, deletes: u64) {
        self.revision.store(last.get(), Ordering::Relaxed);
        self.syncs.inc();
        self.commits.inc_by(commits);
        self.puts.inc_by(puts);
        self.deletes.inc_by(deletes);
    }
}
