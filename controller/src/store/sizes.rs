//! How many bytes the entries of a store take, by the first part of their keys.
//!
//! What a commit changes of it is added when the commit is durable. What stood there before is counted once, page by page and beside all
//! else: a store opens at once, however large it is. The two are added, so it does not matter which comes first.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{KeyRange, Query, Snapshot, StoreError};

/// How many bytes of entries are read at once.
const PAGE_BYTES: usize = 1 << 20;

/// By how many bytes the entries below each part changed.
pub(super) type SizeChanges = BTreeMap<Vec<u8>, i64>;

/// The sums.
#[derive(Debug, Default)]
pub(super) struct Sizes(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    by_part: SizeChanges,
    /// Whether what stood there before is in them.
    is_whole: bool,
}

impl Sizes {
    /// Adds what commits changed.
    pub(super) fn add(&self, changes: SizeChanges) {
        self.lock().add(changes);
    }

    /// Adds what stood there before.
    pub(super) fn complete(&self, counted: SizeChanges) {
        let mut sums = self.lock();
        sums.add(counted);
        sums.is_whole = true;
    }

    /// The sum below a part; `None` before all was counted.
    pub(super) fn below(&self, part: &str) -> Option<u64> {
        let sums = self.lock();
        let sum = || u64::try_from(sums.by_part.get(part.as_bytes()).copied().unwrap_or_default()).unwrap_or_default();
        sums.is_whole.then(sum)
    }

    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sums {
    fn add(&mut self, changes: SizeChanges) {
        for (part, bytes) in changes {
            *self.by_part.entry(part).or_default() += bytes;
        }
    }
}

/// What the entries take that a snapshot sees.
///
/// # Errors
/// What the store says.
pub(super) async fn count(snapshot: &dyn Snapshot) -> Result<SizeChanges, StoreError> {
    let mut counted = SizeChanges::new();
    let mut range = KeyRange::prefix("");
    loop {
        let page = snapshot.list(&Query::range(range.clone()).bytes(PAGE_BYTES)).await?;
        for entry in &page.entries {
            note(&mut counted, &entry.key, signed(entry.size_bytes()));
        }
        let Some(last) = page.entries.last().filter(|_| page.more) else { return Ok(counted) };
        range = range.after(&last.key);
        // An embedded engine answers at once, and whoever else is served by this thread would wait for all pages.
        tokio::task::yield_now().await;
    }
}

/// Notes that the entry at a key takes so many bytes more.
pub(super) fn note(changes: &mut SizeChanges, key: &[u8], bytes: i64) {
    let part = first_part(key);
    match changes.get_mut(part) {
        Some(sum) => *sum += bytes,
        None => {
            changes.insert(part.to_vec(), bytes);
        }
    }
}

/// A size to add or to take away.
pub(super) fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A key up to its first slash, with it; nothing of one that has none.
fn first_part(key: &[u8]) -> &[u8] {
    let slash = key.iter().position(|byte| *byte == b'/');
    slash.map_or(&[][..], |slash| &key[..=slash])
}
