//! The reads of a redb store. Each snapshot is one redb read transaction, which sees what was durable when it began.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::redb::{AccessGuard, Database, ReadOnlyTable, ReadableDatabase, StorageError};

use super::schema::{self, DamagedRecord, ENTRIES, META_REVISION, RedbError, StoredValueRef};
use crate::store::entry::{Entry, EntryList, KeyRange, ListQuery, Revision, SortOrder};
use crate::store::error::StoreError;
use crate::store::{BoxFuture, Snapshot};

/// A consistent view of a redb store.
pub(super) struct RedbSnapshot {
    revision: Revision,
    entries: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl RedbSnapshot {
    /// Begins a redb read transaction, and reads the revision that it shows.
    pub(super) fn begin(database: &Database) -> Result<Self, StoreError> {
        catch_read(|| {
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

    /// Returns the entry at `key`. The read itself is done when the future is first polled.
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            catch_read(|| match self.entries.get(key)? {
                None => Ok(None),
                Some(record) => Ok(Some(StoredValueRef::decode(record.value())?.to_entry(key))),
            })
        })
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> BoxFuture<'a, Result<EntryList, StoreError>> {
        Box::pin(async move { catch_read(|| self.read_list(query)) })
    }
}

impl RedbSnapshot {
    /// Reads the entries that a query selects, in its order and up to its limits.
    fn read_list(&self, query: &ListQuery) -> Result<EntryList, RedbError> {
        let empty = EntryList { entries: Vec::new(), revision: self.revision, has_more: false };
        if query.range.is_empty() {
            return Ok(empty);
        }
        let range = self.entries.range::<&[u8]>(key_bounds(&query.range))?;
        match query.order {
            SortOrder::Ascending => fill_list(empty, query, range),
            SortOrder::Descending => fill_list(empty, query, range.rev()),
        }
    }
}

/// The key and the record of one row of the table of entries.
type StoredEntry<'a> = Result<(AccessGuard<'a, &'static [u8]>, AccessGuard<'a, &'static [u8]>), StorageError>;

/// Fills an empty list with the entries of a range until a limit of the query is reached. Sets `has_more` if an entry
/// remains. The limit on size does not apply to the first entry.
fn fill_list<'a>(
    mut list: EntryList,
    query: &ListQuery,
    range: impl Iterator<Item = StoredEntry<'a>>,
) -> Result<EntryList, RedbError> {
    let (limit, max_bytes) = (query.limit.unwrap_or(usize::MAX), query.max_bytes.unwrap_or(usize::MAX));
    let mut bytes: usize = 0;
    for row in range {
        let (key, value) = row?;
        let (key, record) = (key.value(), StoredValueRef::decode(value.value())?);
        bytes = bytes.saturating_add(key.len() + record.value.len());
        if list.entries.len() == limit || (bytes > max_bytes && !list.entries.is_empty()) {
            list.has_more = true;
            break;
        }
        list.entries.push(record.to_entry(key));
    }
    Ok(list)
}

fn key_bounds(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let end = range.end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end.as_ref()));
    (Bound::Included(range.start.as_ref()), end)
}

/// Runs a read, and converts a failure to a store error. A damaged page can also make redb panic. Such a panic becomes
/// an error too, so that it ends only this read.
pub(super) fn catch_read<T>(read: impl FnOnce() -> Result<T, RedbError>) -> Result<T, StoreError> {
    // Unwinding is safe here: a read changes nothing, and its transaction is dropped with it.
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(fault)) => Err(read_error(fault)),
        Err(_) => Err(StoreError::Corrupt { what: "reading it panicked".to_owned() }),
    }
}

/// Converts an error of a read. A [`DamagedRecord`] becomes [`StoreError::Corrupt`], any other error `Read`.
fn read_error(fault: RedbError) -> StoreError {
    match fault.downcast::<DamagedRecord>() {
        Ok(record) => StoreError::Corrupt { what: record.0 },
        Err(fault) => StoreError::Read { cause: Arc::from(fault) },
    }
}
