//! Deletes entries that have expired.
//!
//! A sweep reads a bounded number of entries at a time, and each commit deletes a bounded number. It commits nothing if
//! nothing has expired, and deletes no entry that changed since it was read.

use super::{Entry, KeyRange, ListQuery, Op, Precondition, Store, StoreError, Transaction};

/// Maximum number of entries that are read at once.
const PAGE_ENTRIES: usize = 1000;
/// Maximum size of the entries that are read at once, in bytes. A single larger entry is read alone.
const PAGE_BYTES: usize = 4 << 20;
/// Maximum number of expired entries that one commit deletes.
const MAX_DROPS_PER_COMMIT: usize = 50;

/// An expired entry, and further operations that are committed together with its deletion.
pub struct ExpiredEntry {
    /// The entry.
    pub entry: Entry,
    /// The other operations of the commit that deletes the entry.
    pub ops: Vec<Op>,
}

/// Deletes the entries below a prefix for which `is_expired` returns true. Returns the number of deleted entries.
///
/// # Errors
/// Fails if the store fails, or if `is_expired` cannot read an entry.
pub async fn sweep(
    store: &dyn Store,
    prefix: &'static str,
    is_expired: impl Fn(&Entry) -> Result<bool, StoreError>,
) -> Result<usize, StoreError> {
    let mut range = KeyRange::prefix(prefix);
    let mut deleted_count = 0;
    loop {
        let page = store
            .snapshot()
            .await?
            .list(&ListQuery::range(range.clone()).with_limit(PAGE_ENTRIES).with_max_bytes(PAGE_BYTES))
            .await?;
        let Some(last_entry) = page.entries.last() else { return Ok(deleted_count) };
        range = range.after(&last_entry.key);
        let mut expired = Vec::new();
        for entry in page.entries {
            if is_expired(&entry)? {
                expired.push(ExpiredEntry { entry, ops: Vec::new() });
            }
        }
        deleted_count += drop_if_unchanged(store, expired).await?;
        if !page.has_more {
            return Ok(deleted_count);
        }
    }
}

/// Deletes expired entries that have not changed since they were read, in commits of up to 50 entries. Each commit also
/// contains the other operations of its entries. If one of these entries has changed, its whole commit is skipped
/// without an error, and a later sweep can delete the others. Returns the number of deleted entries.
///
/// # Errors
/// Fails if the store fails.
pub async fn drop_if_unchanged(store: &dyn Store, expired: Vec<ExpiredEntry>) -> Result<usize, StoreError> {
    let mut total = 0;
    let mut expired = expired.into_iter().peekable();
    while expired.peek().is_some() {
        let (mut transaction, mut count) = (Transaction::new(), 0);
        for ExpiredEntry { entry, ops: other_ops } in expired.by_ref().take(MAX_DROPS_PER_COMMIT) {
            transaction = transaction.require(Precondition::unchanged(entry.key.clone(), entry.mod_revision));
            transaction = transaction.delete(entry.key);
            transaction.ops.extend(other_ops);
            count += 1;
        }
        match store.commit(transaction).await {
            Ok(_) => total += count,
            // One of the entries has changed, so none of this commit is deleted. A later sweep can delete the others.
            Err(StoreError::PreconditionFailed(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}
