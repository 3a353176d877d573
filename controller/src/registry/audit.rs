//! Reads the audit, one page at a time.

use crate::records::audit::AuditRecord;
use crate::records::{codec, key};
use crate::store::{KeyRange, ListQuery, Revision, SortOrder};

use super::{ApiError, Registry, damaged_record, store_error};

/// Number of scanned entries after which one request reads no further chunk. If its filter selects few of them, the
/// page is not full. The next request then continues after the last scanned entry.
const MAX_SCANNED_ENTRIES: usize = 20_000;
/// Number of entries in one read of the store: in the first read, and the maximum. The number doubles with each read.
const CHUNK_ENTRIES: (usize, usize) = (16, 1_000);
/// Maximum size of the entries of a page, and of one read of the store, in bytes as stored. A page with one entry may
/// be larger, because one write may change many objects and its entry lists all of them.
const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;

/// A request for a page of the audit.
#[derive(Clone, Copy, Debug)]
pub struct AuditPage {
    /// Maximum number of entries on the page.
    pub limit: usize,
    /// The revision after which the page begins, in the requested order. `None` for the first page.
    pub marker: Option<Revision>,
    /// The order of the entries: oldest or newest first.
    pub order: SortOrder,
}

/// A page of the audit, and the position at which the next page begins.
#[derive(Debug, Default)]
pub struct AuditEntries {
    /// The entries with their revisions, in the requested order.
    pub entries: Vec<(Revision, AuditRecord)>,
    /// The revision after which the next page begins, or `None` at the end of the audit. Only this field marks the last
    /// page: any page may have fewer entries than requested.
    pub next: Option<Revision>,
}

impl Registry {
    /// Returns the next entries that `filter` selects, at most `page.limit`. The size of a page and the number of
    /// scanned entries are limited too. An entry that is larger than a page is returned alone.
    ///
    /// # Errors
    /// Fails if the store fails or an entry cannot be decoded.
    pub async fn read_audit(
        &self,
        page: AuditPage,
        mut filter: impl FnMut(&AuditRecord) -> bool,
    ) -> Result<AuditEntries, ApiError> {
        let snapshot = self.store.snapshot().await.map_err(|e| store_error(&e))?;
        let (range, order) = (KeyRange::prefix(key::AUDIT), page.order);
        let mut query = ListQuery { range, limit: None, max_bytes: Some(MAX_PAGE_BYTES), order };
        let mut result = AuditEntries { entries: Vec::new(), next: page.marker };
        let (mut scanned, mut chunk_entries, mut bytes) = (0, CHUNK_ENTRIES.0, 0);
        while scanned < MAX_SCANNED_ENTRIES {
            query.limit = Some(chunk_entries);
            if let Some(last) = result.next {
                query.range = range_after(query.range, page.order, &key::audit(last));
            }
            let list = snapshot.list(&query).await.map_err(|e| store_error(&e))?;
            scanned += list.entries.len();
            chunk_entries = (chunk_entries * 2).min(CHUNK_ENTRIES.1);
            for entry in list.entries {
                let record: AuditRecord = codec::decode(&entry.value).map_err(|e| damaged_record(&e))?;
                let is_selected = filter(&record);
                let is_full = is_selected && bytes > 0 && bytes + entry.value.len() > MAX_PAGE_BYTES;
                if result.entries.len() == page.limit || is_full {
                    return Ok(result);
                }
                result.next = Some(entry.mod_revision);
                if is_selected {
                    bytes += entry.value.len();
                    result.entries.push((entry.mod_revision, record));
                }
            }
            if !list.has_more {
                return Ok(AuditEntries { next: None, ..result });
            }
        }
        Ok(result)
    }
}

/// Limits a range to the keys that follow `key` in the given order.
fn range_after(range: KeyRange, order: SortOrder, key: &[u8]) -> KeyRange {
    match order {
        SortOrder::Ascending => range.after(key),
        SortOrder::Descending => range.before(key),
    }
}
