//! The schema of the file: four tables and their records.
//!
//! Each value is stored once. `changes` contains only keys. The value that a change put is in `entries` while it is the
//! latest. The write that replaces or deletes it moves it to `superseded`, if watchers may still read it. With values
//! in the change log, every after-image, audit event and request record would be written twice, although none is ever
//! replaced.

use std::error::Error as StdError;
use std::io;

use ::redb::{Database, ReadTransaction, ReadableDatabase, TableDefinition, TableError, WriteTransaction};
use bytes::Bytes;
use thiserror::Error;

use super::CreateOptions;
use crate::store::entry::{Entry, Epoch, Revision};
use crate::store::watch::EventKind;
use crate::store::{PROGRAM_VERSION, SCHEMA_VERSION, StoreIdentity};

/// The table of the properties of the store itself, by name.
pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// The table of the entries: the latest record of every key that exists.
pub(super) const ENTRIES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("entries");
/// The table of the keys that each retained revision changed, by the number of the revision.
pub(super) const CHANGES: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("changes");
/// The table of superseded records: old values that watches may still read. The key has the revision that wrote the
/// record, then the key of the entry.
pub(super) const SUPERSEDED: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("superseded");

/// Size at which a transaction gets no further entry when a new store is filled, in bytes. The last one can exceed it.
const MAX_FILL_BATCH_BYTES: usize = 8 << 20;

const META_SCHEMA: &str = "schema";
const META_EPOCH: &str = "epoch";
const META_BASE: &str = "base";
const META_FLEET: &str = "fleet";
pub(super) const META_REVISION: &str = "revision";
pub(super) const META_COMPACTED: &str = "compacted";
/// The name of the property with the [`SupersededWindow`]. It is missing before the first commit, and in a store of an
/// older program that did not count superseded bytes.
pub(super) const META_SUPERSEDED: &str = "superseded";
/// The name of the property with the name and version of the program that last wrote to the store. Programs read this
/// property from stores of every schema version, so its format never changes.
pub(super) const META_PROGRAM: &str = "program";

/// An error of redb, a [`DamagedRecord`], or an error of the source of imported entries, before it is classified.
pub(super) type RedbError = Box<dyn StdError + Send + Sync>;

/// The error for data that no program could have stored, and for a panic of redb, with a text for people.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct DamagedRecord(pub(super) String);

/// The properties of an opened store.
pub(super) struct StoreMeta {
    pub(super) identity: StoreIdentity,
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
    pub(super) superseded: Option<SupersededWindow>,
}

/// A revision, and the total size of the records that were superseded (replaced or deleted) after it, in bytes. When
/// the size exceeds half of `RedbOptions::kept_bytes`, the changes up to that revision are dropped, and a new window
/// begins at the last revision. An open watch that has not read these changes delays this.
#[derive(Clone, Copy, Debug)]
pub(super) struct SupersededWindow {
    pub(super) since: Revision,
    pub(super) bytes: u64,
}

impl SupersededWindow {
    /// Returns the stored form: the revision, then the number of bytes, each as eight big-endian bytes.
    pub(super) fn encode(self) -> [u8; 16] {
        (u128::from(self.since.get()) << 64 | u128::from(self.bytes)).to_be_bytes()
    }

    /// Decodes the stored form: the revision, then the number of bytes, each as eight big-endian bytes.
    fn decode(bytes: [u8; 16]) -> Self {
        let [since, bytes] = [0, 8].map(|offset| {
            let number = bytes[offset..].first_chunk().expect("sixteen bytes are twice eight");
            u64::from_be_bytes(*number)
        });
        Self { since: Revision::new(since), bytes }
    }
}

/// Writes a new, empty store. Its revision is the base, and no earlier change can be watched.
pub(super) fn write_empty(database: &Database, create: &CreateOptions) -> Result<(), RedbError> {
    let transaction = begin_durable(database)?;
    {
        let base = create.base.to_key();
        let mut meta = transaction.open_table(META)?;
        meta.insert(META_SCHEMA, SCHEMA_VERSION.to_be_bytes().as_slice())?;
        meta.insert(META_EPOCH, create.epoch.as_bytes().as_slice())?;
        meta.insert(META_BASE, base.as_slice())?;
        meta.insert(META_FLEET, create.fleet.as_ref())?;
        meta.insert(META_REVISION, base.as_slice())?;
        meta.insert(META_COMPACTED, base.as_slice())?;
        meta.insert(META_PROGRAM, PROGRAM_VERSION.as_bytes())?;
        transaction.open_table(ENTRIES)?;
        transaction.open_table(CHANGES)?;
        transaction.open_table(SUPERSEDED)?;
    }
    Ok(transaction.commit()?)
}

/// Fills a new store with entries, and sets its revision. No two entries may have the same key, and no entry may be
/// newer than `revision`. In this store, watches can only start after `revision`.
///
/// # Errors
/// Fails if the engine or the source of the entries fails, or if an entry is invalid. The file is then not a usable
/// store.
pub(super) fn write_entries(
    database: &Database,
    revision: Revision,
    entries: &mut dyn Iterator<Item = io::Result<Entry>>,
) -> Result<(), RedbError> {
    let mut is_finished = false;
    while !is_finished {
        let transaction = begin_durable(database)?;
        {
            let mut table = transaction.open_table(ENTRIES)?;
            let mut bytes = 0;
            while bytes < MAX_FILL_BATCH_BYTES {
                let Some(entry) = entries.next() else {
                    is_finished = true;
                    break;
                };
                let Entry { key, value, create_revision, mod_revision, version } = entry?;
                if mod_revision > revision || create_revision > mod_revision || version == 0 {
                    return Err(DamagedRecord(format!("the entry {} has impossible revisions", key.escape_ascii())).into());
                }
                let record = StoredValueRef { create_revision, mod_revision, version, value: &value };
                if table.insert(key.as_ref(), record.encode().as_slice())?.is_some() {
                    return Err(DamagedRecord(format!("the entry {} occurs twice", key.escape_ascii())).into());
                }
                bytes += key.len() + value.len();
            }
        }
        if is_finished {
            let mut meta = transaction.open_table(META)?;
            meta.insert(META_REVISION, revision.to_key().as_slice())?;
            meta.insert(META_COMPACTED, revision.to_key().as_slice())?;
        }
        transaction.commit()?;
    }
    Ok(())
}

/// Begins a redb transaction that is complete or absent after a crash. The file also opens quickly after a crash.
///
/// The commit has two phases. With one phase, only a checksum would distinguish a torn commit from a complete one. The
/// commit also saves the state of redb's allocator. Without it, redb reads the whole file when it opens the file after
/// a crash (407 ms instead of 18 ms at 257 MB).
pub(super) fn begin_durable(database: &Database) -> Result<WriteTransaction, RedbError> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// Reads the schema version of a file. Returns `None` if the file is a redb database but not a store.
pub(super) fn read_version(database: &Database) -> Result<Option<u32>, RedbError> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Some(version) = meta.get(META_SCHEMA)? else { return Ok(None) };
    Ok(Some(u32::from_be_bytes(to_array(META_SCHEMA, version.value())?)))
}

/// Reads the name and version of the program that last wrote to a store of any schema version. Returns `None` if none
/// is recorded.
pub(super) fn read_program(database: &Database) -> Result<Option<String>, RedbError> {
    let meta = database.begin_read()?.open_table(META)?;
    let program = meta.get(META_PROGRAM)?;
    Ok(program.map(|program| String::from_utf8_lossy(program.value()).into_owned()))
}

/// Reads the properties of a store of a supported version.
pub(super) fn read_meta(database: &Database) -> Result<StoreMeta, RedbError> {
    let transaction = database.begin_read()?;
    let revision = |name| read_revision(&transaction, name);
    let identity = StoreIdentity {
        epoch: Epoch::new(read_exactly(&transaction, META_EPOCH)?),
        base: revision(META_BASE)?,
        schema: u32::from_be_bytes(read_exactly(&transaction, META_SCHEMA)?),
        written_by: read_program(database)?,
        fleet: read_bytes(&transaction, META_FLEET)?,
    };
    let superseded = transaction.open_table(META)?.get(META_SUPERSEDED)?;
    let superseded = superseded.map(|value| to_array(META_SUPERSEDED, value.value())).transpose()?.map(SupersededWindow::decode);
    Ok(StoreMeta { identity, revision: revision(META_REVISION)?, compacted: revision(META_COMPACTED)?, superseded })
}

/// Reads the property `name` of the table `meta`, which must be a revision.
pub(super) fn read_revision(transaction: &ReadTransaction, name: &'static str) -> Result<Revision, RedbError> {
    Ok(Revision::new(u64::from_be_bytes(read_exactly(transaction, name)?)))
}

/// Reads the property `name` of the table `meta`. Fails if it is missing.
fn read_bytes(transaction: &ReadTransaction, name: &'static str) -> Result<Bytes, RedbError> {
    let meta = transaction.open_table(META)?;
    let value = meta.get(name)?.ok_or_else(|| DamagedRecord(format!("meta has no {name}")))?;
    Ok(Bytes::copy_from_slice(value.value()))
}

/// Reads the property `name` of the table `meta`, which must have `N` bytes.
fn read_exactly<const N: usize>(transaction: &ReadTransaction, name: &'static str) -> Result<[u8; N], RedbError> {
    to_array(name, &read_bytes(transaction, name)?)
}

/// Converts the value of a property to an array. Fails if the value does not have `N` bytes.
fn to_array<const N: usize>(name: &str, value: &[u8]) -> Result<[u8; N], RedbError> {
    value.try_into().map_err(|_| DamagedRecord(format!("meta {name} has {} bytes instead of {N}", value.len())).into())
}

/// The content of a record, which is what the file stores for an entry: its revisions, its version and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredValueRef<'a> {
    pub(super) create_revision: Revision,
    pub(super) mod_revision: Revision,
    pub(super) version: u64,
    pub(super) value: &'a [u8],
}

/// Size of the revisions and the version in front of a stored value, in bytes.
const RECORD_HEADER_BYTES: usize = 24;

impl<'a> StoredValueRef<'a> {
    /// Returns the stored bytes: both revisions and the version as eight big-endian bytes each, then the value.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + self.value.len());
        bytes.extend_from_slice(&self.create_revision.to_key());
        bytes.extend_from_slice(&self.mod_revision.to_key());
        bytes.extend_from_slice(&self.version.to_be_bytes());
        bytes.extend_from_slice(self.value);
        bytes
    }

    /// Splits the stored bytes of a record into the revisions, the version and the value. Fails if the bytes are too
    /// few.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, DamagedRecord> {
        let too_short = || DamagedRecord(format!("a record of {} bytes is shorter than its head", bytes.len()));
        let (create_revision, rest) = bytes.split_first_chunk().ok_or_else(too_short)?;
        let (mod_revision, rest) = rest.split_first_chunk().ok_or_else(too_short)?;
        let (version, value) = rest.split_first_chunk().ok_or_else(too_short)?;
        Ok(Self {
            create_revision: Revision::new(u64::from_be_bytes(*create_revision)),
            mod_revision: Revision::new(u64::from_be_bytes(*mod_revision)),
            version: u64::from_be_bytes(*version),
            value,
        })
    }

    pub(super) fn to_entry(self, key: &[u8]) -> Entry {
        Entry {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(self.value),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
        }
    }

    pub(super) fn to_event_kind(self) -> EventKind {
        EventKind::Put { value: Bytes::copy_from_slice(self.value), create_revision: self.create_revision, version: self.version }
    }
}

/// Returns the key of a record in the table of superseded records: the revision that wrote it, then the entry's key.
pub(super) fn superseded_key(mod_revision: Revision, key: &[u8]) -> Vec<u8> {
    [&mod_revision.to_key(), key].concat()
}

/// The change of one key, as it is stored for watches: the kind and the key, without the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyChange<'a> {
    Put(&'a [u8]),
    Deleted(&'a [u8]),
}

const CHANGE_PUT: u8 = 1;
const CHANGE_DELETED: u8 = 2;

impl<'a> KeyChange<'a> {
    /// Appends the stored form of the change to a list: one byte for the kind, four for the length of the key, and the
    /// key.
    pub(super) fn encode(self, list: &mut Vec<u8>) {
        let (tag, key) = match self {
            Self::Put(key) => (CHANGE_PUT, key),
            Self::Deleted(key) => (CHANGE_DELETED, key),
        };
        let length = u32::try_from(key.len()).expect("keys are bounded by the limits far below 4 GiB");
        list.push(tag);
        list.extend_from_slice(&length.to_be_bytes());
        list.extend_from_slice(key);
    }

    /// Decodes the list of a revision's changes, to which [`Self::encode`] appended them. Fails if the list is cut
    /// inside a change, or has an unknown kind.
    pub(super) fn decode_list(mut bytes: &'a [u8]) -> Result<Vec<Self>, DamagedRecord> {
        let cut_off = || DamagedRecord("a kept change ends in the middle of a key".to_owned());
        let mut list = Vec::new();
        while let Some((tag, rest)) = bytes.split_first() {
            let (length, rest) = rest.split_first_chunk().ok_or_else(cut_off)?;
            let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| cut_off())?;
            let (key, rest) = rest.split_at_checked(length).ok_or_else(cut_off)?;
            list.push(match *tag {
                CHANGE_PUT => Self::Put(key),
                CHANGE_DELETED => Self::Deleted(key),
                kind => return Err(DamagedRecord(format!("a kept change has an event of the unknown kind {kind}"))),
            });
            bytes = rest;
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are the two revisions and the version. Each has eight big-endian bytes.
    #[test]
    fn stored_value_is_three_numbers_and_value() {
        let record =
            StoredValueRef { create_revision: Revision::new(1), mod_revision: Revision::new(258), version: 3, value: b"v" };
        let bytes = [&[0, 0, 0, 0, 0, 0, 0, 1][..], &[0, 0, 0, 0, 0, 0, 1, 2], &[0, 0, 0, 0, 0, 0, 0, 3], b"v"].concat();
        assert_eq!(record.encode(), bytes);
        assert_eq!(StoredValueRef::decode(&bytes).unwrap(), record);
        for cut in 0..RECORD_HEADER_BYTES {
            assert!(StoredValueRef::decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    /// In this test, the first change has 7 bytes, so only a cut after these leaves a valid list.
    #[test]
    fn key_change_list_is_damaged_when_cut_inside_change() {
        let mut bytes = Vec::new();
        KeyChange::Put(b"ab").encode(&mut bytes);
        KeyChange::Deleted(b"c").encode(&mut bytes);
        assert_eq!(bytes, [1, 0, 0, 0, 2, b'a', b'b', 2, 0, 0, 0, 1, b'c']);
        assert_eq!(KeyChange::decode_list(&bytes).unwrap(), [KeyChange::Put(b"ab"), KeyChange::Deleted(b"c")]);
        for cut in 1..bytes.len() {
            assert_eq!(KeyChange::decode_list(&bytes[..cut]).is_ok(), cut == 7, "{cut}");
        }
        assert!(KeyChange::decode_list(&[3, 0, 0, 0, 0]).is_err());
    }
}
