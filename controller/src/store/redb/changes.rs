//! Reads the changes that the file retains. A watcher reads them if it continues from a revision before a restart, or
//! needs changes that are no longer in memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ::redb::{ReadTransaction, ReadableDatabase};
use tokio::sync::watch;

use super::schema::{self, CHANGES, DamagedRecord, ENTRIES, KeyChange, META_COMPACTED, RedbError, SUPERSEDED, StoredValueRef};
use super::{StoreShared, snapshot};
use crate::store::BoxFuture;
use crate::store::entry::Revision;
use crate::store::error::{StoreError, WatchError};
use crate::store::watch::{Change, ChangeSource, Event, EventKind};

/// The source of the changes for one watch. It holds only a weak reference to the store, because a watch that is never
/// dropped must not leave the file locked.
pub(super) struct StoreChangeSource {
    shared: Weak<StoreShared>,
    head: watch::Receiver<Revision>,
    /// The revision that the watch reads next. The writer of the store reads this number, to retain unread changes
    /// longer.
    next: Arc<AtomicU64>,
}

impl StoreChangeSource {
    /// Creates the source for a watch that starts at `from`. Registers the watch, so that the writer retains changes
    /// for it.
    pub(super) fn new(shared: &Arc<StoreShared>, from: Revision) -> Self {
        let next = Arc::new(AtomicU64::new(from.get()));
        shared.add_follower(&next);
        Self { shared: Arc::downgrade(shared), head: shared.head.subscribe(), next }
    }
}

impl ChangeSource for StoreChangeSource {
    fn change(&self, revision: Revision) -> BoxFuture<'_, Result<Arc<Change>, WatchError>> {
        self.next.store(revision.get(), Ordering::Release);
        Box::pin(async move {
            // The wait fails only if the store was closed.
            if self.head.clone().wait_for(|head| *head >= revision).await.is_err() {
                return Err(StoreError::Closed.into());
            }
            self.read_change(revision)
        })
    }
}

impl StoreChangeSource {
    /// Returns the change of a durable revision. Reads the change from memory if it is recent, otherwise from the file.
    fn read_change(&self, revision: Revision) -> Result<Arc<Change>, WatchError> {
        let shared = self.shared.upgrade().ok_or(StoreError::Closed)?;
        if let Some(change) = shared.recent.get(revision) {
            return Ok(change);
        }
        match snapshot::catch_read(|| read_stored_change(&shared.database.begin_read()?, revision))? {
            KeptChange::Change(change) => Ok(Arc::new(change)),
            KeptChange::Compacted { oldest } => Err(WatchError::Compacted { from: revision, oldest }),
        }
    }
}

/// The result of a read of one revision's change from the file.
enum KeptChange {
    Change(Change),
    Compacted { oldest: Revision },
}

/// Reads the change of a revision from the file. If the change was compacted, returns the oldest revision that can be
/// read.
fn read_stored_change(transaction: &ReadTransaction, revision: Revision) -> Result<KeptChange, RedbError> {
    let compacted = schema::read_revision(transaction, META_COMPACTED)?;
    if revision <= compacted {
        return Ok(KeptChange::Compacted { oldest: compacted.next() });
    }
    let changes = transaction.open_table(CHANGES)?;
    let list =
        changes.get(revision.get())?.ok_or_else(|| DamagedRecord(format!("the change of revision {revision} is missing")))?;
    let events = KeyChange::decode_list(list.value())?
        .into_iter()
        .map(|change| read_event(transaction, revision, change))
        .collect::<Result<_, _>>()?;
    Ok(KeptChange::Change(Change { revision, events }))
}

/// Returns the event for one key of a change, with the value that `revision` put.
fn read_event(transaction: &ReadTransaction, revision: Revision, change: KeyChange<'_>) -> Result<Event, RedbError> {
    let (key, kind) = match change {
        KeyChange::Put(key) => (key, read_put(transaction, revision, key)?),
        KeyChange::Deleted(key) => (key, EventKind::Delete),
    };
    Ok(Event { key: key.to_vec().into(), kind })
}

/// Reads the value that `revision` put at `key`: from the latest record if that revision wrote it, or else from the
/// superseded record.
fn read_put(transaction: &ReadTransaction, revision: Revision, key: &[u8]) -> Result<EventKind, RedbError> {
    if let Some(latest) = transaction.open_table(ENTRIES)?.get(key)? {
        let record = StoredValueRef::decode(latest.value())?;
        if record.mod_revision == revision {
            return Ok(record.to_event_kind());
        }
    }
    let superseded = transaction.open_table(SUPERSEDED)?;
    let record = superseded
        .get(schema::superseded_key(revision, key).as_slice())?
        .ok_or_else(|| DamagedRecord(format!("the value that revision {revision} wrote is missing")))?;
    Ok(StoredValueRef::decode(record.value())?.to_event_kind())
}
