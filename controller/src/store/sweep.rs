//! Deletes entries that have expired.
//!
//! A sweep reads a bounded number of entries at once, and a commit deletes a bounded number. It commits nothing when nothing has expired,
//! and deletes no entry that changed since it was read.

use super::{Entry, KeyRange, Op, Precondition, Query, Store, StoreError, Transaction};

/// How many entries are read at once, and how many bytes of them.
const PAGE: usize = 1000;
const PAGE_BYTES: usize = 4 << 20;
/// How many entries one commit drops.
const AT_ONCE: usize = 50;

/// An entry that is over, and what goes with it.
pub struct Over {
    /// The entry.
    pub entry: Entry,
    /// What goes in the same commit.
    pub with: Vec<Op>,
}

/// Drops the entries below a prefix that are over, and says how many.
///
/// # Errors
/// What the store says; what `is_over` says of an entry that it cannot read.
pub async fn sweep(
    store: &dyn Store,
    prefix: &'static str,
    is_over: impl Fn(&Entry) -> Result<bool, StoreError>,
) -> Result<usize, StoreError> {
    let mut range = KeyRange::prefix(prefix);
    let mut dropped = 0;
    loop {
        let page = store.snapshot().await?.list(&Query::range(range.clone()).limit(PAGE).bytes(PAGE_BYTES)).await?;
        let Some(last) = page.entries.last() else { return Ok(dropped) };
        range = range.after(&last.key);
        let mut over = Vec::new();
        for entry in page.entries {
            if is_over(&entry)? {
                over.push(Over { entry, with: Vec::new() });
            }
        }
        dropped += drop_unchanged(store, over).await?;
        if !page.more {
            return Ok(dropped);
        }
    }
}

/// Drops entries that are as they were read, and says how many.
///
/// # Errors
/// What the store says.
pub async fn drop_unchanged(store: &dyn Store, over: Vec<Over>) -> Result<usize, StoreError> {
    let mut dropped = 0;
    let mut over = over.into_iter().peekable();
    while over.peek().is_some() {
        let (mut transaction, mut count) = (Transaction::new(), 0);
        for Over { entry, with } in over.by_ref().take(AT_ONCE) {
            transaction = transaction.require(Precondition::unchanged(entry.key.clone(), entry.mod_revision));
            transaction = transaction.delete(entry.key);
            transaction.ops.extend(with);
            count += 1;
        }
        match store.commit(transaction).await {
            Ok(_) => dropped += count,
            // One of them was just written; the others are still over next time.
            Err(StoreError::PreconditionFailed(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(dropped)
}
