//! What a store counts of itself: `/metrics` shows it, and "a quiet restart writes nothing" is told by it.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;

use super::sizes::{self, SizeChanges, Sizes};
use super::{Revision, Snapshot, StoreError};

/// The last durable revision, what entries take, and counters since a store was opened, which only grow. Reading one says nothing about
/// another.
#[derive(Debug, Default)]
pub struct Stats {
    revision: AtomicU64,
    sizes: Sizes,
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

    /// Counts what stood there when the store was opened, for [`Stats::bytes_below`]. The snapshot has to be from between the opening and the
    /// first commit.
    ///
    /// # Errors
    /// What the store says.
    pub async fn count_sizes(&self, first: &dyn Snapshot) -> Result<(), StoreError> {
        self.sizes.complete(sizes::count(first).await?);
        Ok(())
    }

    /// What the keys and values below the first part of a key take, as `history/`, in bytes; `None` before what stood there when the store was
    /// opened is counted.
    pub fn bytes_below(&self, part: &str) -> Option<u64> {
        self.sizes.below(part)
    }

    pub(super) fn count_synced(&self, last: Revision, commits: u64, puts: u64, deletes: u64, sizes: SizeChanges) {
        self.revision.store(last.get(), Ordering::Relaxed);
        self.sizes.add(sizes);
        self.syncs.inc();
        self.commits.inc_by(commits);
        self.puts.inc_by(puts);
        self.deletes.inc_by(deletes);
    }
}
