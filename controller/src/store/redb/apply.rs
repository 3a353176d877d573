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

/// Factor by which the limit on superseded bytes grows while a follower has unread changes. A follower that is further
/// behind must reload everything.
const FOLLOWER_RETENTION_FACTOR: u64 = 4;

/// The result of one transaction, valid if its batch becomes durable.
pub(super) enum TransactionResult {
    /// The transaction was applied and got a revision.
    Changed(Change),
    /// The preconditions hold, and the transaction changed nothing.
    Unchanged { at: Revision },
    /// A precondition does not hold.
    Unmet(UnmetPrecondition),
}

/// The tables of one batch.
pub(super) struct BatchTables<'t> {
    entries: Table<'t, &'static [u8], &'static [u8]>,
    changes: Table<'t, u64, &'static [u8]>,
    superseded: Table<'t, &'static [u8], &'static [u8]>,
    meta: Table<'t, &'static str, &'static [u8]>,
    head: Revision,
    compacted: Revision,
    /// Size of the records that this batch superseded, in bytes.
    superseded_bytes: u64,
    /// The changes in the size of entries by this batch.
    size_changes: SizeChanges,
}

impl<'t> BatchTables<'t> {
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
    /// transaction if all of them hold.
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
            let found = self.mod_revision(precondition.key())?;
            let is_met = match precondition {
                Precondition::Absent { .. } => found.is_none(),
                Precondition::Present { .. } => found.is_some(),
                Precondition::Unchanged { mod_revision, .. } => found == Some(*mod_revision),
            };
            if !is_met {
                let precondition = precondition.clone();
                return Ok(Some(UnmetPrecondition { index, precondition, found, at: self.head }));
            }
        }
        Ok(None)
    }

    fn mod_revision(&self, key: &[u8]) -> Result<Option<Revision>, RedbError> {
        match self.entries.get(key)? {
            None => Ok(None),
            Some(record) => Ok(Some(StoredValueRef::decode(record.value())?.mod_revision)),
        }
    }

    /// Writes an entry at `revision`. A new entry starts at version 1, an existing one gets the next version.
    fn put(&mut self, revision: Revision, key: Bytes, value: Bytes) -> Result<Event, RedbError> {
        let (create_revision, version) = match self.move_to_superseded(&key)? {
            Some((create_revision, version)) => (create_revision, version + 1),
            None => (revision, 1),
        };
        let record = StoredValueRef { create_revision, mod_revision: revision, version, value: &value };
        self.entries.insert(key.as_ref(), record.encode().as_slice())?;
        add_size(&mut self.size_changes, &key, to_signed(key.len() + value.len()));
        Ok(Event { key, kind: EventKind::Put { value, create_revision, version } })
    }

    /// Deletes the entry at `key`. Returns `None` if it does not exist.
    fn delete(&mut self, key: &Bytes) -> Result<Option<Event>, RedbError> {
        if self.move_to_superseded(key)?.is_none() {
            return Ok(None);
        }
        self.entries.remove(key.as_ref())?;
        Ok(Some(Event { key: key.clone(), kind: EventKind::Delete }))
    }

    /// Copies the record at `key`, which is about to be replaced or deleted, to `superseded`, so that watchers can
    /// still read it. Returns the create revision and the version of the record, or `None` if there is none.
    fn move_to_superseded(&mut self, key: &[u8]) -> Result<Option<(Revision, u64)>, RedbError> {
        let Some(old) = self.entries.get(key)? else { return Ok(None) };
        let record = StoredValueRef::decode(old.value())?;
        add_size(&mut self.size_changes, key, -to_signed(key.len() + record.value.len()));
        if record.mod_revision > self.compacted {
            self.superseded_bytes += old.value().len() as u64;
            self.superseded.insert(superseded_key(record.mod_revision, key).as_slice(), old.value())?;
        }
        Ok(Some((record.create_revision, record.version)))
    }

    /// Stores which keys a revision changed, for watchers.
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

    /// Records that this program wrote to the store.
    pub(super) fn write_program(&mut self) -> Result<(), RedbError> {
        self.meta.insert(META_PROGRAM, PROGRAM_VERSION.as_bytes())?;
        Ok(())
    }

    /// Takes the changes in the size of entries by the transactions so far.
    pub(super) fn take_sizes(&mut self) -> SizeChanges {
        std::mem::take(&mut self.size_changes)
    }

    /// Records the last revision of the batch, and drops the changes that are no longer kept. Returns the last
    /// compacted revision and the new window. `followed` is the revision that the slowest follower reads next.
    pub(super) fn finish(
        mut self,
        options: &RedbOptions,
        window: SupersededWindow,
        followed: Option<Revision>,
    ) -> Result<(Revision, SupersededWindow), RedbError> {
        self.meta.insert(META_REVISION, self.head.to_key().as_slice())?;
        let (compacted, window) = self.compaction_target(options, window, followed);
        self.meta.insert(META_SUPERSEDED, window.encode().as_slice())?;
        if compacted > self.compacted {
            self.changes.retain_in(..=compacted.get(), |_, _| false)?;
            let end = compacted.next().to_key();
            self.superseded.retain_in::<&[u8], _>(..end.as_slice(), |_, _| false)?;
            self.meta.insert(META_COMPACTED, compacted.to_key().as_slice())?;
        }
        Ok((compacted, window))
    }

    /// Returns the revision up to which changes are dropped, and the new window. Two things are limited: the number of
    /// kept changes, and the size of the superseded records. Without the limit on size, a host with large and frequent
    /// reports would fill the disk with old reports. But many hosts that report at once can supersede more than the
    /// limit before a follower has read the changes, and a follower that had to reload everything each time would never
    /// catch up. So changes that a follower has not read are kept until the size is [`FOLLOWER_RETENTION_FACTOR`] times
    /// the limit.
    fn compaction_target(
        &self,
        options: &RedbOptions,
        window: SupersededWindow,
        followed: Option<Revision>,
    ) -> (Revision, SupersededWindow) {
        let max_changes = options.kept_changes;
        let by_number = Revision::new(self.head.get().saturating_sub(max_changes));
        // Changes are dropped in steps of a sixteenth of the limit, because dropping one change with each commit costs
        // as much each time as dropping all of a step.
        let is_due = by_number.get() >= self.compacted.get() + (max_changes / 16).max(1);
        let compacted = if is_due { by_number } else { self.compacted };
        let bytes = window.bytes + self.superseded_bytes;
        let max = options.kept_bytes / 2;
        let is_awaited = followed.is_some_and(|next| next <= window.since) && bytes <= max * FOLLOWER_RETENTION_FACTOR;
        if bytes <= max || is_awaited {
            return (compacted, SupersededWindow { bytes, ..window });
        }
        (compacted.max(window.since), SupersededWindow { since: self.head, bytes: 0 })
    }
}
