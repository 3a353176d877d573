//! Kept changes: what a watcher is given that began before the program, or fell behind what memory holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ::redb::{ReadTransaction, ReadableDatabase};
use tokio::sync::watch;

use super::schema::{self, CHANGES, Damage, ENTRIES, Fault, KeyChange, META_COMPACTED, Record, SUPERSEDED};
use super::{Shared, snapshot};
use crate::store::BoxFuture;
use crate::store::entry::Revision;
use crate::store::error::{StoreError, WatchError};
use crate::store::watch::{Change, ChangeSource, Event, EventKind};

/// The changes of a store, as long as it is open: a watcher that is left behind must not keep the file locked.
pub(super) struct KeptChanges {
    shared: Weak<Shared>,
    head: watch::Receiver<Revision>,
    /// What is read next, for the writer to see.
    next: Arc<AtomicU64>,
}

impl KeptChanges {
    pub(super) fn of(shared: &Arc<Shared>, from: Revision) -> Self {
        let next = Arc::new(AtomicU64::new(from.get()));
        shared.add_follower(&next);
        Self { shared: Arc::downgrade(shared), head: shared.head.subscribe(), next }
    }
}

impl ChangeSource for KeptChanges {
    fn change(&self, revision: Revision) -> BoxFuture<'_, Result<Arc<Change>, WatchError>> {
        self.next.store(revision.get(), Ordering::Release);
        Box::pin(async move {
            if self.head.clone().wait_for(|head| *head >= revision).await.is_err() {
                return Err(StoreError::Closed.into());
            }
            self.durable(revision)
        })
    }
}

impl KeptChanges {
    fn durable(&self, revision: Revision) -> Result<Arc<Change>, WatchError> {
        let shared = self.shared.upgrade().ok_or(StoreError::Closed)?;
        if let Some(change) = shared.recent.get(revision) {
            return Ok(change);
        }
        match snapshot::guarded(|| read(&shared.database.begin_read()?, revision))? {
            Kept::Change(change) => Ok(Arc::new(change)),
            Kept::Compacted { oldest } => Err(WatchError::Compacted { from: revision, oldest }),
        }
    }
}

enum Kept {
    Change(Change),
    Compacted { oldest: Revision },
}

fn read(transaction: &ReadTransaction, revision: Revision) -> Result<Kept, Fault> {
    let compacted = schema::read_revision(transaction, META_COMPACTED)?;
    if revision <= compacted {
        return Ok(Kept::Compacted { oldest: compacted.next() });
    }
    let changes = transaction.open_table(CHANGES)?;
    let list =
        changes.get(revision.get())?.ok_or_else(|| Damage(format!("the change of revision {revision} is missing")))?;
    let events = KeyChange::decode_list(list.value())?
        .into_iter()
        .map(|touched| event(transaction, revision, touched))
        .collect::<Result<_, _>>()?;
    Ok(Kept::Change(Change { revision, events }))
}

fn event(transaction: &ReadTransaction, revision: Revision, touched: KeyChange<'_>) -> Result<Event, Fault> {
    let (key, kind) = match touched {
        KeyChange::Put(key) => (key, put_by(transaction, revision, key)?),
        KeyChange::Deleted(key) => (key, EventKind::Delete),
    };
    Ok(Event { key: key.to_vec().into(), kind })
}

/// What `revision` put at `key`: the latest record if it is still that one, else the superseded one.
fn put_by(transaction: &ReadTransaction, revision: Revision, key: &[u8]) -> Result<EventKind, Fault> {
    if let Some(latest) = transaction.open_table(ENTRIES)?.get(key)? {
        let record = Record::decode(latest.value())?;
        if record.mod_revision == revision {
            return Ok(record.to_event_kind());
        }
    }
    let superseded = transaction.open_table(SUPERSEDED)?;
    let record = superseded
        .get(schema::superseded_key(revision, key).as_slice())?
        .ok_or_else(|| Damage(format!("what revision {revision} wrote is missing")))?;
    Ok(Record::decode(record.value())?.to_event_kind())
}
