//! Transactions onto tables, one after the other within one redb transaction.

use ::redb::{ReadableTable, Table, WriteTransaction};
use bytes::Bytes;

use super::RedbOptions;
use super::schema::{
    CHANGES, ENTRIES, Fault, KeyChange, META, META_COMPACTED, META_PROGRAM, META_REVISION, META_SUPERSEDED, Record,
    SUPERSEDED, Window, superseded_key,
};
use crate::store::PROGRAM;
use crate::store::entry::Revision;
use crate::store::sizes::{SizeChanges, note, signed};
use crate::store::transaction::{Op, Precondition, Transaction, Unmet};
use crate::store::watch::{Change, Event, EventKind};

/// While a follower has unread changes, this many times the usual amount is kept for it. One that falls behind even that loads everything again.
const HELD_BACK: u64 = 4;

/// What became of one transaction, should the batch that it is in become durable.
pub(super) enum Applied {
    /// It got a revision.
    Changed(Change),
    /// It held, and changed nothing.
    Unchanged { at: Revision },
    /// It did not hold.
    Unmet(Unmet),
}

/// The tables of one batch.
pub(super) struct Tables<'t> {
    entries: Table<'t, &'static [u8], &'static [u8]>,
    changes: Table<'t, u64, &'static [u8]>,
    superseded: Table<'t, &'static [u8], &'static [u8]>,
    meta: Table<'t, &'static str, &'static [u8]>,
    head: Revision,
    compacted: Revision,
    /// The bytes of what this batch supersedes.
    superseded_bytes: u64,
    /// By how much it changes what entries take.
    sizes: SizeChanges,
}

impl<'t> Tables<'t> {
    pub(super) fn open(batch: &'t WriteTransaction, head: Revision, compacted: Revision) -> Result<Self, Fault> {
        Ok(Self {
            entries: batch.open_table(ENTRIES)?,
            changes: batch.open_table(CHANGES)?,
            superseded: batch.open_table(SUPERSEDED)?,
            meta: batch.open_table(META)?,
            head,
            compacted,
            superseded_bytes: 0,
            sizes: SizeChanges::new(),
        })
    }

    /// Judges a transaction against what those before it left, and does it if it holds.
    pub(super) fn apply(&mut self, transaction: &Transaction) -> Result<Applied, Fault> {
        if let Some(unmet) = self.first_unmet(&transaction.preconditions)? {
            return Ok(Applied::Unmet(unmet));
        }
        let revision = self.head.next();
        let mut events = Vec::with_capacity(transaction.ops.len());
        for op in transaction.in_order() {
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
            return Ok(Applied::Unchanged { at: self.head });
        }
        self.keep(revision, &events)?;
        self.head = revision;
        Ok(Applied::Changed(Change { revision, events }))
    }

    fn first_unmet(&self, preconditions: &[Precondition]) -> Result<Option<Unmet>, Fault> {
        for (index, precondition) in preconditions.iter().enumerate() {
            let found = self.mod_revision(precondition.key())?;
            let holds = match precondition {
                Precondition::Absent { .. } => found.is_none(),
                Precondition::Present { .. } => found.is_some(),
                Precondition::Unchanged { mod_revision, .. } => found == Some(*mod_revision),
            };
            if !holds {
                let precondition = precondition.clone();
                return Ok(Some(Unmet { index, precondition, found, at: self.head }));
            }
        }
        Ok(None)
    }

    fn mod_revision(&self, key: &[u8]) -> Result<Option<Revision>, Fault> {
        match self.entries.get(key)? {
            None => Ok(None),
            Some(record) => Ok(Some(Record::decode(record.value())?.mod_revision)),
        }
    }

    fn put(&mut self, revision: Revision, key: Bytes, value: Bytes) -> Result<Event, Fault> {
        let (create_revision, version) = match self.supersede(&key)? {
            Some((create_revision, version)) => (create_revision, version + 1),
            None => (revision, 1),
        };
        let record = Record { create_revision, mod_revision: revision, version, value: &value };
        self.entries.insert(key.as_ref(), record.encode().as_slice())?;
        note(&mut self.sizes, &key, signed(key.len() + value.len()));
        Ok(Event { key, kind: EventKind::Put { value, create_revision, version } })
    }

    fn delete(&mut self, key: &Bytes) -> Result<Option<Event>, Fault> {
        if self.supersede(key)?.is_none() {
            return Ok(None);
        }
        self.entries.remove(key.as_ref())?;
        Ok(Some(Event { key: key.clone(), kind: EventKind::Delete }))
    }

    /// Puts the record at `key`, which is about to go, where watchers find it; says when it came to be and its version.
    fn supersede(&mut self, key: &[u8]) -> Result<Option<(Revision, u64)>, Fault> {
        let Some(old) = self.entries.get(key)? else { return Ok(None) };
        let record = Record::decode(old.value())?;
        note(&mut self.sizes, key, -signed(key.len() + record.value.len()));
        if record.mod_revision > self.compacted {
            self.superseded_bytes += old.value().len() as u64;
            self.superseded.insert(superseded_key(record.mod_revision, key).as_slice(), old.value())?;
        }
        Ok(Some((record.create_revision, record.version)))
    }

    fn keep(&mut self, revision: Revision, events: &[Event]) -> Result<(), Fault> {
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

    /// Writes down that this program wrote to the store.
    pub(super) fn sign(&mut self) -> Result<(), Fault> {
        self.meta.insert(META_PROGRAM, PROGRAM.as_bytes())?;
        Ok(())
    }

    /// By how much what was applied so far changes what entries take.
    pub(super) fn take_sizes(&mut self) -> SizeChanges {
        std::mem::take(&mut self.sizes)
    }

    /// Writes down where the batch ends, and drops changes beyond those that are kept; says up to which. `followed` is what the
    /// slowest follower reads next.
    pub(super) fn finish(
        mut self,
        options: &RedbOptions,
        window: Window,
        followed: Option<Revision>,
    ) -> Result<(Revision, Window), Fault> {
        self.meta.insert(META_REVISION, self.head.to_key().as_slice())?;
        let (compacted, window) = self.to_compact(options, window, followed);
        self.meta.insert(META_SUPERSEDED, window.encode().as_slice())?;
        if compacted > self.compacted {
            self.changes.retain_in(..=compacted.get(), |_, _| false)?;
            let end = compacted.next().to_key();
            self.superseded.retain_in::<&[u8], _>(..end.as_slice(), |_, _| false)?;
            self.meta.insert(META_COMPACTED, compacted.to_key().as_slice())?;
        }
        Ok((compacted, window))
    }

    /// Up to where changes are dropped: by their number, and by the bytes of what they superseded. A host that reports much and often
    /// would else fill the disk with its last words but one. Many hosts that report at once supersede as much before a follower has
    /// read it, and one that had to load everything each time would never be done: so the bytes wait for it, up to a bound.
    fn to_compact(&self, options: &RedbOptions, window: Window, followed: Option<Revision>) -> (Revision, Window) {
        let kept = options.kept_changes;
        let by_number = Revision::new(self.head.get().saturating_sub(kept));
        // In steps: dropping one change with each commit costs as much as dropping a sixteenth of them now and then.
        let is_due = by_number.get() >= self.compacted.get() + (kept / 16).max(1);
        let compacted = if is_due { by_number } else { self.compacted };
        let bytes = window.bytes + self.superseded_bytes;
        let most = options.kept_bytes / 2;
        let is_awaited = followed.is_some_and(|next| next <= window.since) && bytes <= most * HELD_BACK;
        if bytes <= most || is_awaited {
            return (compacted, Window { bytes, ..window });
        }
        (compacted.max(window.since), Window { since: self.head, bytes: 0 })
    }
}
