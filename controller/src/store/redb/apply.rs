//! Applies transactions to tables, one after the other within one redb transaction.

use ::redb::{ReadableTable, Table, WriteTransaction};
use bytes::Bytes;

use super::RedbOptions;
use super::schema::{
    CHANGES, ENTRIES, KeyChange, META, META_COMPACTED, META_PROGRAM, META_REVISION, META_SUPERSEDED, RedbError, SUPERSEDED,
    StoredValueRef, SupersededWindow, superseded_key,
};
use crate::store::PROGRAM_VERSION;
use crate::store::entry::Revision;
use crate::store::sizes::{SizeChanges, add_size, to_signed};
use crate::store::transaction::{Op, Precondition, Transaction, UnmetPrecondition};
use crate::store::watch::{Change, Event, EventKind};

/// Factor by which the size limit of superseded records grows while an open watch (follower) has not read the changes
/// that would be dropped. Superseded records are old values that watches may still read. A watch that is further behind
/// must list everything again.
const FOLLOWER_RETENTION_FACTOR: u64 = 4;

/// The result of one transaction. It is valid only if its batch becomes durable or changes nothing. A batch is a group
/// of transactions that become durable together.
pub(super) enum TransactionResult {
    /// The transaction was applied and got a revision.
    Changed(Change),
    /// The preconditions hold at the revision `at`, and the transaction changed nothing.
    Unchanged { at: Revision },
    /// A precondition does not hold.
    Unmet(UnmetPrecondition),
}

/// The tables that one batch writes. A batch is a group of transactions that become durable together.
pub(super) struct BatchTables<'t> {
    entries: Table<'t, &'static [u8], &'static [u8]>,
    changes: Table<'t, u64, &'static [u8]>,
    superseded: Table<'t, &'static [u8], &'static [u8]>,
    meta: Table<'t, &'static str, &'static [u8]>,
    head: Revision,
    compacted: Revision,
    /// Size of the old records that this batch copied to the table `superseded`, in bytes.
    superseded_bytes: u64,
    /// The changes in the size of entries by this batch.
    size_changes: SizeChanges,
}

impl<'t> BatchTables<'t> {
    /// Opens the tables in the redb transaction of the batch. `head` is the last revision of the store. `compacted` is
    /// the last revision whose changes were dropped.
    pub(super) fn open(batch: &'t WriteTransaction, head: Revision, compacted: Revision) -> Result<Self, RedbError> {
        Ok(Self {
            entries: batch.open_table(ENTRIES)?,
            changes: batch.open_table(CHANGES)?,
            superseded: batch.open_table(SUPERSEDED)?,
            meta: batch.open_table(META)?,
            head,
            compacted,
            superseded_bytes: 0,
            size_changes: SizeChanges::new(),
        })
    }

    /// Checks the preconditions of a transaction against the result of the transactions before it. Applies the
    /// transaction if all preconditions hold. Changes of entries get the revision after the last one.
    pub(super) fn apply(&mut self, transaction: &Transaction) -> Result<TransactionResult, RedbError> {
        if let Some(unmet) = self.first_unmet(&transaction.preconditions)? {
            return Ok(TransactionResult::Unmet(unmet));
        }
        let revision = self.head.next();
        let mut events = Vec::with_capacity(transaction.ops.len());
        for op in transaction.ordered_ops() {
            match op {
                Op::Put { key, value } => events.push(self.put(revision, key.clone(), value.clone())?),
                Op::PutAtRevision { prefix, value } => {
                    let key = [prefix.as_ref(), &revision.to_key()].concat();
                    events.push(self.put(revision, key.into(), value.clone())?);
                }
                Op::Delete { key } => events.extend(self.delete(key)?),
            }
        }
        if events.is_empty() {
            return Ok(TransactionResult::Unchanged { at: self.head });
        }
        self.write_change(revision, &events)?;
        self.head = revision;
        Ok(TransactionResult::Changed(Change { revision, events }))
    }

    /// Returns the first precondition that does not hold, if any.
    fn first_unmet(&self, preconditions: &[Precondition]) -> Result<Option<UnmetPrecondition>, RedbError> {
        for (index, precondition) in preconditions.iter().enumerate() {
            let found_revision = self.mod_revision(precondition.key())?;
            let is_met = match precondition {
                Precondition::Absent { .. } => found_revision.is_none(),
                Precondition::Present { .. } => found_revision.is_some(),
                Precondition::Unchanged { mod_revision, .. } => found_revision == Some(*mod_revision),
            };
            if !is_met {
                let precondition = precondition.clone();
                return Ok(Some(UnmetPrecondition { index, precondition, found: found_revision, at: self.head }));
            }
        }
        Ok(None)
    }

    /// Returns the revision that last wrote the entry at `key`, or `None` if there is no entry.
    fn mod_revision(&self, key: &[u8]) -> Result<Option<Revision>, RedbError> {
        match self.entries.get(key)? {
            None => Ok(None),
            Some(record) => Ok(Some(StoredValueRef::decode(record.value())?.mod_revision)),
        }
    }

    /// Writes an entry at `revision`. A new entry starts at version 1, an existing one gets the next version.
    fn put(&mut self, revision: Revision, key: Bytes, value: Bytes) -> Result<Event, RedbError> {
        let (create_revision, version) = match self.copy_to_superseded(&key)? {
            Some((create_revision, version)) => (create_revision, version + 1),
            None => (revision, 1),
        };
        let record = StoredValueRef { create_revision, mod_revision: revision, version, value: &value };
        self.entries.insert(key.as_ref(), record.encode().as_slice())?;
        add_size(&mut self.size_changes, &key, to_signed(key.len() + value.len()));
        Ok(Event { key, kind: EventKind::Put { value, create_revision, version } })
    }

    /// Deletes the entry at `key`, and returns the event. Returns `None` if there is no entry.
    fn delete(&mut self, key: &Bytes) -> Result<Option<Event>, RedbError> {
        if self.copy_to_superseded(key)?.is_none() {
            return Ok(None);
        }
        self.entries.remove(key.as_ref())?;
        Ok(Some(Event { key: key.clone(), kind: EventKind::Delete }))
    }

    /// Copies the record at `key` to the table `superseded` before the record is replaced or deleted, so that watches
    /// can still read it. No watch can read a record whose revision is compacted, so such a record is not copied.
    /// Subtracts the size of the entry from the size changes of the batch. Returns the create revision and the version
    /// of the record, or `None` if there is no record.
    fn copy_to_superseded(&mut self, key: &[u8]) -> Result<Option<(Revision, u64)>, RedbError> {
        let Some(stored) = self.entries.get(key)? else { return Ok(None) };
        let record = StoredValueRef::decode(stored.value())?;
        add_size(&mut self.size_changes, key, -to_signed(key.len() + record.value.len()));
        if record.mod_revision > self.compacted {
            self.superseded_bytes += stored.value().len() as u64;
            self.superseded.insert(superseded_key(record.mod_revision, key).as_slice(), stored.value())?;
        }
        Ok(Some((record.create_revision, record.version)))
    }

    /// Stores the list of keys that a revision changed. Watches read this list.
    fn write_change(&mut self, revision: Revision, events: &[Event]) -> Result<(), RedbError> {
        let mut list = Vec::new();
        for event in events {
            match event.kind {
                EventKind::Put { .. } => KeyChange::Put(&event.key).encode(&mut list),
                EventKind::Delete => KeyChange::Deleted(&event.key).encode(&mut list),
            }
        }
        self.changes.insert(revision.get(), list.as_slice())?;
        Ok(())
    }

    /// Records name and version of this program as the last program that wrote to the store.
    pub(super) fn write_program(&mut self) -> Result<(), RedbError> {
        self.meta.insert(META_PROGRAM, PROGRAM_VERSION.as_bytes())?;
        Ok(())
    }

    /// Returns the changes in the size of entries by the transactions so far, and resets them.
    pub(super) fn take_sizes(&mut self) -> SizeChanges {
        std::mem::take(&mut self.size_changes)
    }

    /// Records the last revision of the batch. Deletes the changes up to the revision that [`Self::compaction_target`]
    /// returns, and the superseded records that these revisions wrote. Records and returns the last compacted revision
    /// and the new window. `slowest_next` is the revision that the slowest open watch reads next.
    pub(super) fn finish(
        mut self,
        options: &RedbOptions,
        window: SupersededWindow,
        slowest_next: Option<Revision>,
    ) -> Result<(Revision, SupersededWindow), RedbError> {
        self.meta.insert(META_REVISION, self.head.to_key().as_slice())?;
        let (compacted, window) = self.compaction_target(options, window, slowest_next);
        self.meta.insert(META_SUPERSEDED, window.encode().as_slice())?;
        if compacted > self.compacted {
            self.changes.retain_in(..=compacted.get(), |_, _| false)?;
            let end = compacted.next().to_key();
            self.superseded.retain_in::<&[u8], _>(..end.as_slice(), |_, _| false)?;
            self.meta.insert(META_COMPACTED, compacted.to_key().as_slice())?;
        }
        Ok((compacted, window))
    }

    /// Returns the revision up to which changes are dropped, and the new window. Two limits apply: to the number of
    /// retained changes, and to the size of the superseded records. Without the limit on size, a host with large and
    /// frequent reports would fill the disk with old reports.
    ///
    /// When many hosts report at once, the size can exceed its limit before an open watch has read the changes. A watch
    /// that lost these changes would list everything again each time, and never catch up. So unread changes are
    /// retained until the size is [`FOLLOWER_RETENTION_FACTOR`] times the limit. The limit on the number of changes
    /// applies to unread changes too. `slowest_next` is the revision that the slowest open watch reads next.
    fn compaction_target(
        &self,
        options: &RedbOptions,
        window: SupersededWindow,
        slowest_next: Option<Revision>,
    ) -> (Revision, SupersededWindow) {
        let max_changes = options.kept_changes;
        let count_target = Revision::new(self.head.get().saturating_sub(max_changes));
        // Changes are dropped in steps of a sixteenth of the limit, because dropping one change with each commit costs
        // as much each time as dropping all of a step.
        let is_due = count_target.get() >= self.compacted.get() + (max_changes / 16).max(1);
        let compacted = if is_due { count_target } else { self.compacted };
        let bytes = window.bytes + self.superseded_bytes;
        // A full window remains until the next one is full too. So each window may have half of the limit.
        let max_bytes = options.kept_bytes / 2;
        let is_retained_for_watch =
            slowest_next.is_some_and(|next| next <= window.since) && bytes <= max_bytes * FOLLOWER_RETENTION_FACTOR;
        if bytes <= max_bytes || is_retained_for_watch {
            return (compacted, SupersededWindow { bytes, ..window });
        }
        (compacted.max(window.since), SupersededWindow { since: self.head, bytes: 0 })
    }
}
