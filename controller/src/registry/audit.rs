//! Reading the audit back, a page at a time.

use crate::records::audit::AuditRecord;
use crate::records::{codec, key};
use crate::store::{KeyRange, Order, Query, Revision};

use super::{ApiError, Registry, damaged, store_error};

/// How many entries one request looks at: one whose filter few entries meet goes on where it stopped.
const MOST_LOOKED_AT: usize = 20_000;
/// How many are read at once, at first and at most.
const CHUNKS: (usize, usize) = (16, 1_000);
/// The entries of a page have at most so many bytes together as they are stored, where it is more than one, and so many are read at
/// once: the entry of a write that reached much is as large as what it reached.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// Which part of the audit.
#[derive(Clone, Copy, Debug)]
pub struct AuditPage {
    /// At most so many entries.
    pub limit: usize,
    /// Those behind this revision, in the order asked for.
    pub marker: Option<Revision>,
    /// From which end.
    pub order: Order,
}

/// What a page of the audit holds.
#[derive(Debug, Default)]
pub struct Audited {
    /// Entries with their revisions, in the order asked for.
    pub entries: Vec<(Revision, AuditRecord)>,
    /// The revision behind which the next page begins; `None` at the end. There may be a next page behind one that is not full.
    pub next: Option<Revision>,
}

impl Registry {
    /// The entries that `keeps` takes, no more than `page` asks for or than are sent at once, and one at least.
    ///
    /// # Errors
    /// What the store says; an entry that cannot be read.
    pub async fn audit(
        &self,
        page: AuditPage,
        mut keeps: impl FnMut(&AuditRecord) -> bool,
    ) -> Result<Audited, ApiError> {
        let snapshot = self.store.snapshot().await.map_err(|e| store_error(&e))?;
        let (range, order) = (KeyRange::prefix(key::AUDIT), page.order);
        let mut query = Query { range, limit: None, bytes: Some(MOST_BYTES), order };
        let mut audited = Audited { entries: Vec::new(), next: page.marker };
        let (mut looked_at, mut chunk, mut bytes) = (0, CHUNKS.0, 0);
        while looked_at < MOST_LOOKED_AT {
            query.limit = Some(chunk);
            if let Some(last) = audited.next {
                query.range = behind(query.range, page.order, &key::audit(last));
            }
            let list = snapshot.list(&query).await.map_err(|e| store_error(&e))?;
            looked_at += list.entries.len();
            chunk = (chunk * 2).min(CHUNKS.1);
            for entry in list.entries {
                let record: AuditRecord = codec::decode(&entry.value).map_err(|e| damaged(&e))?;
                let is_kept = keeps(&record);
                let is_over = is_kept && bytes > 0 && bytes + entry.value.len() > MOST_BYTES;
                if audited.entries.len() == page.limit || is_over {
                    return Ok(audited);
                }
                audited.next = Some(entry.mod_revision);
                if is_kept {
                    bytes += entry.value.len();
                    audited.entries.push((entry.mod_revision, record));
                }
            }
            if !list.more {
                return Ok(Audited { next: None, ..audited });
            }
        }
        Ok(audited)
    }
}

fn behind(range: KeyRange, order: Order, key: &[u8]) -> KeyRange {
    match order {
        Order::Ascending => range.after(key),
        Order::Descending => range.before(key),
    }
}
