//! Reads: one redb read transaction each, which sees what was durable when it began.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::redb::{AccessGuard, Database, ReadOnlyTable, ReadableDatabase, StorageError};

use super::schema::{self, Damage, ENTRIES, Fault, META_REVISION, Record};
use crate::store::entry::{Entry, KeyRange, List, Order, Query, Revision};
use crate::store::error::StoreError;
use crate::store::{BoxFuture, Snapshot};

/// A consistent view of a redb store.
pub(super) struct RedbSnapshot {
    revision: Revision,
    entries: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl RedbSnapshot {
    pub(super) fn begin(database: &Database) -> Result<Self, StoreError> {
        guarded(|| {
            let transaction = database.begin_read()?;
            let revision = schema::read_revision(&transaction, META_REVISION)?;
            Ok(Self { revision, entries: transaction.open_table(ENTRIES)? })
        })
    }
}

impl Snapshot for RedbSnapshot {
    fn revision(&self) -> Revision {
        self.revision
    }

    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            guarded(|| match self.entries.get(key)? {
                None => Ok(None),
                Some(record) => Ok(Some(Record::decode(record.value())?.to_entry(key))),
            })
        })
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<List, StoreError>> {
        Box::pin(async move { guarded(|| self.read_list(query)) })
    }
}

impl RedbSnapshot {
    fn read_list(&self, query: &Query) -> Result<List, Fault> {
        let empty = List { entries: Vec::new(), revision: self.revision, more: false };
        if query.range.is_empty() {
            return Ok(empty);
        }
        let found = self.entries.range::<&[u8]>(bounds(&query.range))?;
        match query.order {
            Order::Ascending => fill(empty, query, found),
            Order::Descending => fill(empty, query, found.rev()),
        }
    }
}

type Found<'a> = Result<(AccessGuard<'a, &'static [u8]>, AccessGuard<'a, &'static [u8]>), StorageError>;

fn fill<'a>(mut list: List, query: &Query, found: impl Iterator<Item = Found<'a>>) -> Result<List, Fault> {
    let (limit, most) = (query.limit.unwrap_or(usize::MAX), query.bytes.unwrap_or(usize::MAX));
    let mut bytes: usize = 0;
    for pair in found {
        let (key, value) = pair?;
        let (key, record) = (key.value(), Record::decode(value.value())?);
        bytes = bytes.saturating_add(key.len() + record.value.len());
        if list.entries.len() == limit || (bytes > most && !list.entries.is_empty()) {
            list.more = true;
            break;
        }
        list.entries.push(record.to_entry(key));
    }
    Ok(list)
}

fn bounds(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let end = range.end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end.as_ref()));
    (Bound::Included(range.start.as_ref()), end)
}

/// Runs a read, and makes of every way it can fail an error: a damaged page may also panic inside redb, which must
/// not end more than the read.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, Fault>) -> Result<T, StoreError> {
    // A read leaves nothing half changed behind: its transaction is dropped with it.
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(fault)) => Err(read_error(fault)),
        Err(_) => Err(StoreError::Corrupt { what: "reading it panicked".to_owned() }),
    }
}

fn read_error(fault: Fault) -> StoreError {
    match fault.downcast::<Damage>() {
        Ok(damage) => StoreError::Corrupt { what: damage.0 },
        Err(fault) => StoreError::Read { cause: Arc::from(fault) },
    }
}
