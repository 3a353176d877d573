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

/// The properties of the store itself, by name.
pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// The latest record of every key.
pub(super) const ENTRIES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("entries");
/// The list of keys that each kept revision changed.
pub(super) const CHANGES: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("changes");
/// Records that are no longer the latest, by the revision that wrote them and their key.
pub(super) const SUPERSEDED: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("superseded");

/// Maximum size of the entries that one transaction writes when a new store is filled, in bytes.
const MAX_FILL_BATCH_BYTES: usize = 8 << 20;

const META_SCHEMA: &str = "schema";
const META_EPOCH: &str = "epoch";
const META_BASE: &str = "base";
const META_FLEET: &str = "fleet";
pub(super) const META_REVISION: &str = "revision";
pub(super) const META_COMPACTED: &str = "compacted";
/// The [`SupersededWindow`]: a revision, then the bytes superseded since. It does not exist before the first commit, or
/// in a store of a version that did not count them.
pub(super) const META_SUPERSEDED: &str = "superseded";
/// The name and version of the program that last wrote to the store. Programs read it from stores of every schema
/// version, so its format never changes.
pub(super) const META_PROGRAM: &str = "program";

/// An error of the engine or of a record, before it is classified.
pub(super) type RedbError = Box<dyn StdError + Send + Sync>;

/// Stored data that this module could not have written.
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

/// A revision, and the size of the records that were superseded after it. At the limit, the changes
/// up to that revision are dropped, and a new window begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct SupersededWindow {
    pub(super) since: Revision,
    pub(super) bytes: u64,
}

impl SupersededWindow {
    pub(super) fn encode(self) -> [u8; 16] {
        (u128::from(self.since.get()) << 64 | u128::from(self.bytes)).to_be_bytes()
    }

    fn decode(bytes: [u8; 16]) -> Self {
        let [since, bytes] = [0, 8].map(|at| {
            let number = bytes[at..].first_chunk().expect("sixteen bytes are twice eight");
            u64::from_be_bytes(*number)
        });
        Self { since: Revision::new(since), bytes }
    }
}

/// Writes a new, empty store.
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

/// Fills a new store with entries, no two of the same key, and sets its revision, which must not be older than those of
/// the entries. A watch can start after this revision only.
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
                    return Err(DamagedRecord(format!("the entry {} is there twice", key.escape_ascii())).into());
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

/// Begins a transaction that is complete or absent after any crash, in a file that opens quickly after one.
///
/// It commits in two phases, because in one phase only a checksum distinguishes a torn commit from a complete one. It
/// saves the allocator's state with each commit, because otherwise opening after a crash reads the whole file (407 ms
/// instead of 18 ms at 257 MB).
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

/// Reads one of the revisions in `meta`.
pub(super) fn read_revision(transaction: &ReadTransaction, name: &'static str) -> Result<Revision, RedbError> {
    Ok(Revision::new(u64::from_be_bytes(read_exactly(transaction, name)?)))
}

fn read_bytes(transaction: &ReadTransaction, name: &'static str) -> Result<Bytes, RedbError> {
    let meta = transaction.open_table(META)?;
    let value = meta.get(name)?.ok_or_else(|| DamagedRecord(format!("meta has no {name}")))?;
    Ok(Bytes::copy_from_slice(value.value()))
}

fn read_exactly<const N: usize>(transaction: &ReadTransaction, name: &'static str) -> Result<[u8; N], RedbError> {
    to_array(name, &read_bytes(transaction, name)?)
}

fn to_array<const N: usize>(name: &str, value: &[u8]) -> Result<[u8; N], RedbError> {
    value.try_into().map_err(|_| DamagedRecord(format!("meta {name} has {} bytes instead of {N}", value.len())).into())
}

/// The stored form of an entry: its revisions, its version and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredValueRef<'a> {
    pub(super) create_revision: Revision,
    pub(super) mod_revision: Revision,
    pub(super) version: u64,
    pub(super) value: &'a [u8],
}

const RECORD_HEADER_BYTES: usize = 24;

impl<'a> StoredValueRef<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + self.value.len());
        bytes.extend_from_slice(&self.create_revision.to_key());
        bytes.extend_from_slice(&self.mod_revision.to_key());
        bytes.extend_from_slice(&self.version.to_be_bytes());
        bytes.extend_from_slice(self.value);
        bytes
    }

    /// Splits the bytes of a record into the revisions, the version and the value.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, DamagedRecord> {
        let short = || DamagedRecord(format!("a record of {} bytes is shorter than its head", bytes.len()));
        let (create_revision, rest) = bytes.split_first_chunk().ok_or_else(short)?;
        let (mod_revision, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (version, value) = rest.split_first_chunk().ok_or_else(short)?;
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

/// Returns the key of a record that is no longer the latest.
pub(super) fn superseded_key(mod_revision: Revision, key: &[u8]) -> Vec<u8> {
    [&mod_revision.to_key(), key].concat()
}

/// What a kept change contains about one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyChange<'a> {
    Put(&'a [u8]),
    Deleted(&'a [u8]),
}

const CHANGE_PUT: u8 = 1;
const CHANGE_DELETED: u8 = 2;

impl<'a> KeyChange<'a> {
    /// Appends the change to a list: its kind, the length of the key in four bytes, and the key.
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

    /// Decodes the changes of a revision that [`Self::encode`] appended to a list.
    pub(super) fn decode_list(mut bytes: &'a [u8]) -> Result<Vec<Self>, DamagedRecord> {
        let short = || DamagedRecord("a kept change ends in the middle of a key".to_owned());
        let mut list = Vec::new();
        while let Some((tag, rest)) = bytes.split_first() {
            let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
            let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| short())?;
            let (key, rest) = rest.split_at_checked(length).ok_or_else(short)?;
            list.push(match *tag {
                CHANGE_PUT => Self::Put(key),
                CHANGE_DELETED => Self::Deleted(key),
                other => return Err(DamagedRecord(format!("a kept change has an event of the unknown kind {other}"))),
            });
            bytes = rest;
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn key_change_list_is_damaged_when_cut_inside_key() {
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
