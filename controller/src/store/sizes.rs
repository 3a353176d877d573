//! The size of the entries of a store, in bytes, by the first segment of their keys.
//!
//! Changes by a commit are added when it is durable. The entries that existed before are counted once, page by page and
//! in the background, so that a store opens at once however large it is. The sums do not depend on whether changes or
//! the counted entries are added first.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{KeyRange, ListQuery, Snapshot, StoreError};

/// Maximum size of the entries that are read at once, in bytes. A single larger entry is read alone.
const PAGE_BYTES: usize = 1 << 20;

/// Changes in the total size of entries, in bytes, by the first segment of their keys (`history/` of `history/node/a`).
pub(super) type SizeChanges = BTreeMap<Vec<u8>, i64>;

/// The total size of all entries, by the first segment of their keys. Commits change the sums, also while
/// [`count_sizes`] still counts the entries that existed before.
#[derive(Debug, Default)]
pub(super) struct EntrySizes(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    by_prefix: SizeChanges,
    /// True if the entries from before the store was opened are included.
    is_complete: bool,
}

impl EntrySizes {
    /// Adds the changes in size that commits made.
    pub(super) fn add(&self, changes: SizeChanges) {
        self.lock().add(changes);
    }

    /// Adds the sizes of the entries that existed when the store was opened. From now on, [`Self::get`] returns sums.
    pub(super) fn complete(&self, existing_sizes: SizeChanges) {
        let mut sums = self.lock();
        sums.add(existing_sizes);
        sums.is_complete = true;
    }

    /// Returns the total size of the entries whose keys begin with a segment such as `history/`, in bytes. Returns
    /// `None` until [`Self::complete`] was called, because until then a sum can be negative.
    pub(super) fn get(&self, segment: &str) -> Option<u64> {
        let sums = self.lock();
        let sum = || u64::try_from(sums.by_prefix.get(segment.as_bytes()).copied().unwrap_or_default()).unwrap_or_default();
        sums.is_complete.then(sum)
    }

    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sums {
    /// Adds changes in size to the sums of their segments.
    fn add(&mut self, changes: SizeChanges) {
        for (segment, bytes) in changes {
            *self.by_prefix.entry(segment).or_default() += bytes;
        }
    }
}

/// Returns the total size of all entries of a snapshot, in bytes, by the first segment of their keys.
///
/// # Errors
/// Fails if the store cannot be read.
pub(super) async fn count_sizes(snapshot: &dyn Snapshot) -> Result<SizeChanges, StoreError> {
    let mut sizes = SizeChanges::new();
    let mut range = KeyRange::prefix("");
    loop {
        let page = snapshot.list(&ListQuery::range(range.clone()).with_max_bytes(PAGE_BYTES)).await?;
        for entry in &page.entries {
            add_size(&mut sizes, &entry.key, to_signed(entry.size_bytes()));
        }
        let Some(last_entry) = page.entries.last().filter(|_| page.has_more) else { return Ok(sizes) };
        range = range.after(&last_entry.key);
        // An embedded engine returns at once. Without the yield, other tasks of this thread would wait for all pages.
        tokio::task::yield_now().await;
    }
}

/// Adds a change in the size of the entry at `key`, in bytes, to the first segment of the key.
pub(super) fn add_size(changes: &mut SizeChanges, key: &[u8], bytes: i64) {
    let segment = first_segment(key);
    match changes.get_mut(segment) {
        Some(sum) => *sum += bytes,
        None => {
            changes.insert(segment.to_vec(), bytes);
        }
    }
}

/// Converts a size to a signed number, because a change in size can be negative.
pub(super) fn to_signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Returns a key up to and including its first slash, or the empty text if the key has no slash.
fn first_segment(key: &[u8]) -> &[u8] {
    let slash = key.iter().position(|byte| *byte == b'/');
    slash.map_or(&[][..], |slash| &key[..=slash])
}
