//! What a store counts of itself: `/metrics` shows it, and "a quiet restart writes nothing" is told by it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since a store was opened. They only grow; reading one says nothing about another.
#[derive(Debug, Default)]
pub struct Stats {
    commits: AtomicU64,
    puts: AtomicU64,
    deletes: AtomicU64,
    syncs: AtomicU64,
    unmet: AtomicU64,
}

impl Stats {
    /// Transactions that became durable and changed something: the number of revisions made.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Entries written, those under history and audit included.
    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// Entries taken away.
    pub fn deletes(&self) -> u64 {
        self.deletes.load(Ordering::Relaxed)
    }

    /// Engine transactions that were made durable; commits divided by this is how many shared one.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Transactions whose preconditions did not hold.
    pub fn unmet(&self) -> u64 {
        self.unmet.load(Ordering::Relaxed)
    }

    pub(super) fn count_synced(&self, commits: u64, puts: u64, deletes: u64) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.commits.fetch_add(commits, Ordering::Relaxed);
        self.puts.fetch_add(puts, Ordering::Relaxed);
        self.deletes.fetch_add(deletes, Ordering::Relaxed);
    }

    pub(super) fn count_unmet(&self) {
        self.unmet.fetch_add(1, Ordering::Relaxed);
    }
}
