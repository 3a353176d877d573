//! The counters of a store. `/metrics` shows them, and tests use them to check that a quiet restart writes nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;

use super::sizes::{self, EntrySizes, SizeChanges};
use super::{Revision, Snapshot, StoreError};

/// The last durable revision, the size of entries, and counters that start at zero when the store is opened. A commit
/// can change values between two reads. So values that are read one after the other may be of different revisions.
#[derive(Debug, Default)]
pub struct Stats {
    revision: AtomicU64,
    sizes: EntrySizes,
    /// Transactions that became durable and changed something, which is the number of new revisions.
    pub commits: Counter,
    /// Entries written, including stored object versions and audit events.
    pub puts: Counter,
    /// Entries deleted.
    pub deletes: Counter,
    /// Engine transactions that became durable. Each contains one batch of commits, so `commits` divided by `syncs` is
    /// the average size of a batch.
    pub syncs: Counter,
    /// Transactions whose preconditions did not hold.
    pub conflicts: Counter,
}

impl Stats {
    /// Creates the counters of a store that was opened at a revision.
    pub(super) fn new(revision: Revision) -> Self {
        Self { revision: AtomicU64::new(revision.get()), ..Self::default() }
    }

    /// Returns the last durable revision.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Adds up the sizes of the entries that existed when the store was opened, so that [`Stats::prefix_bytes`] returns
    /// sizes. The snapshot must have been obtained after the opening and before the first commit.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub async fn count_sizes(&self, snapshot: &dyn Snapshot) -> Result<(), StoreError> {
        self.sizes.complete(sizes::count_sizes(snapshot).await?);
        Ok(())
    }

    /// Returns the total size of the entries whose keys begin with a segment such as `history/`, in bytes. Returns
    /// `None` until the entries that existed when the store was opened are counted.
    pub fn prefix_bytes(&self, segment: &str) -> Option<u64> {
        self.sizes.get(segment)
    }

    /// Adds one batch that became durable to the counters and to the sizes of entries. `last_revision`, the revision of
    /// its last commit, becomes the last durable revision. `sizes` are the changes in the size of entries.
    pub(super) fn count_batch(&self, last_revision: Revision, commits: u64, puts: u64, deletes: u64, sizes: SizeChanges) {
        self.revision.store(last_revision.get(), Ordering::Relaxed);
        self.sizes.add(sizes);
        self.syncs.inc();
        self.commits.inc_by(commits);
        self.puts.inc_by(puts);
        self.deletes.inc_by(deletes);
    }
}
