//! What stands in the file: four tables, and the records in them.
//!
//! A value stands once. `changes` holds keys alone, and what a change put is found in `entries` as long as it is the
//! latest; who overwrites or deletes it moves it to `superseded` if watchers may still ask. With values in the change
//! log every after-image, audit event and request record would be written twice, though none is ever overwritten.

use std::error::Error as StdError;
use std::io;

use ::redb::{Database, ReadTransaction, ReadableDatabase, TableDefinition, TableError, WriteTransaction};
use bytes::Bytes;
use thiserror::Error;

use super::CreateOptions;
use crate::store::entry::{Entry, Epoch, Revision};
use crate::store::watch::EventKind;
use crate::store::{Identity, PROGRAM, SCHEMA};

/// What is known of the store itself, by name.
pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// Every key's record.
pub(super) const ENTRIES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("entries");
/// What each kept revision changed: a list of keys.
pub(super) const CHANGES: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("changes");
/// Records that are no longer the latest, below the revision that wrote them and their key.
pub(super) const SUPERSEDED: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("superseded");

/// So many bytes of entries are written at once into a store that is filled.
const FILLED_AT_ONCE: usize = 8 << 20;

const META_SCHEMA: &str = "schema";
const META_EPOCH: &str = "epoch";
const META_BASE: &str = "base";
const META_FLEET: &str = "fleet";
pub(super) const META_REVISION: &str = "revision";
pub(super) const META_COMPACTED: &str = "compacted";
/// What was superseded since a revision ([`Window`]): the revision, then the bytes. Not there before the first commit, nor in a store
/// of a version that did not count them.
pub(super) const META_SUPERSEDED: &str = "superseded";
/// The name and version of the program that wrote last. It is read of a store of any version, so its form never changes.
pub(super) const META_PROGRAM: &str = "program";

/// An error of the engine, or of what it gave back, before it is known what that means.
pub(super) type Fault = Box<dyn StdError + Send + Sync>;

/// What was read does not fit what is written here.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct Damage(pub(super) String);

/// What is known of an opened store.
pub(super) struct Meta {
    pub(super) identity: Identity,
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
    pub(super) superseded: Option<Window>,
}

/// What was superseded since a revision: what was before it goes when this is as much as may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) since: Revision,
    pub(super) bytes: u64,
}

impl Window {
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
pub(super) fn write_new(database: &Database, create: &CreateOptions) -> Result<(), Fault> {
    let transaction = begin_durable(database)?;
    {
        let base = create.base.to_key();
        let mut meta = transaction.open_table(META)?;
        meta.insert(META_SCHEMA, SCHEMA.to_be_bytes().as_slice())?;
        meta.insert(META_EPOCH, create.epoch.as_bytes().as_slice())?;
        meta.insert(META_BASE, base.as_slice())?;
        meta.insert(META_FLEET, create.fleet.as_ref())?;
        meta.insert(META_REVISION, base.as_slice())?;
        meta.insert(META_COMPACTED, base.as_slice())?;
        meta.insert(META_PROGRAM, PROGRAM.as_bytes())?;
        transaction.open_table(ENTRIES)?;
        transaction.open_table(CHANGES)?;
        transaction.open_table(SUPERSEDED)?;
    }
    Ok(transaction.commit()?)
}

/// Fills a new store with entries, each once, and moves it on to a revision that is no earlier than theirs. No change is kept of before.
///
/// # Errors
/// What the engine or the source of the entries says: the file is then no store to be used.
pub(super) fn fill(
    database: &Database,
    revision: Revision,
    entries: &mut dyn Iterator<Item = io::Result<Entry>>,
) -> Result<(), Fault> {
    let mut is_over = false;
    while !is_over {
        let transaction = begin_durable(database)?;
        {
            let mut table = transaction.open_table(ENTRIES)?;
            let mut bytes = 0;
            while bytes < FILLED_AT_ONCE {
                let Some(entry) = entries.next() else {
                    is_over = true;
                    break;
                };
                let Entry { key, value, create_revision, mod_revision, version } = entry?;
                if mod_revision > revision || create_revision > mod_revision || version == 0 {
                    return Err(Damage(format!("the entry {} has revisions that cannot be", key.escape_ascii())).into());
                }
                let record = Record { create_revision, mod_revision, version, value: &value };
                if table.insert(key.as_ref(), record.encode().as_slice())?.is_some() {
                    return Err(Damage(format!("the entry {} stands there twice", key.escape_ascii())).into());
                }
                bytes += key.len() + value.len();
            }
        }
        if is_over {
            let mut meta = transaction.open_table(META)?;
            meta.insert(META_REVISION, revision.to_key().as_slice())?;
            meta.insert(META_COMPACTED, revision.to_key().as_slice())?;
        }
        transaction.commit()?;
    }
    Ok(())
}

/// A transaction that is whole after any crash, in a file that opens at once after one.
///
/// Two phases, since with one a torn commit is told from a whole one by its checksum alone; the allocator's state with
/// each commit, since else a crash costs a walk over the whole file (407 ms against 18 ms at 257 MB).
pub(super) fn begin_durable(database: &Database) -> Result<WriteTransaction, Fault> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// The schema version of a file; `None` when the file holds a redb database that is no store.
pub(super) fn read_version(database: &Database) -> Result<Option<u32>, Fault> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Some(version) = meta.get(META_SCHEMA)? else { return Ok(None) };
    Ok(Some(u32::from_be_bytes(exactly(META_SCHEMA, version.value())?)))
}

/// The program that wrote last to a store of any version; `None` where it kept no record of that.
pub(super) fn read_program(database: &Database) -> Result<Option<String>, Fault> {
    let meta = database.begin_read()?.open_table(META)?;
    let program = meta.get(META_PROGRAM)?;
    Ok(program.map(|program| String::from_utf8_lossy(program.value()).into_owned()))
}

/// What is known of a store whose version is known.
pub(super) fn read_meta(database: &Database) -> Result<Meta, Fault> {
    let transaction = database.begin_read()?;
    let revision = |name| read_revision(&transaction, name);
    let identity = Identity {
        epoch: Epoch::new(read_exactly(&transaction, META_EPOCH)?),
        base: revision(META_BASE)?,
        schema: u32::from_be_bytes(read_exactly(&transaction, META_SCHEMA)?),
        written_by: read_program(database)?,
        fleet: read_bytes(&transaction, META_FLEET)?,
    };
    let superseded = transaction.open_table(META)?.get(META_SUPERSEDED)?;
    let superseded = superseded.map(|value| exactly(META_SUPERSEDED, value.value())).transpose()?.map(Window::decode);
    Ok(Meta { identity, revision: revision(META_REVISION)?, compacted: revision(META_COMPACTED)?, superseded })
}

/// One of the revisions in `meta`, as of a transaction.
pub(super) fn read_revision(transaction: &ReadTransaction, name: &'static str) -> Result<Revision, Fault> {
    Ok(Revision::new(u64::from_be_bytes(read_exactly(transaction, name)?)))
}

fn read_bytes(transaction: &ReadTransaction, name: &'static str) -> Result<Bytes, Fault> {
    let meta = transaction.open_table(META)?;
    let value = meta.get(name)?.ok_or_else(|| Damage(format!("meta has no {name}")))?;
    Ok(Bytes::copy_from_slice(value.value()))
}

fn read_exactly<const N: usize>(transaction: &ReadTransaction, name: &'static str) -> Result<[u8; N], Fault> {
    exactly(name, &read_bytes(transaction, name)?)
}

fn exactly<const N: usize>(name: &str, value: &[u8]) -> Result<[u8; N], Fault> {
    value.try_into().map_err(|_| Damage(format!("meta {name} has {} bytes instead of {N}", value.len())).into())
}

/// What stands behind a key: when it came to be, and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) create_revision: Revision,
    pub(super) mod_revision: Revision,
    pub(super) version: u64,
    pub(super) value: &'a [u8],
}

const RECORD_HEAD: usize = 24;

impl<'a> Record<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_HEAD + self.value.len());
        bytes.extend_from_slice(&self.create_revision.to_key());
        bytes.extend_from_slice(&self.mod_revision.to_key());
        bytes.extend_from_slice(&self.version.to_be_bytes());
        bytes.extend_from_slice(self.value);
        bytes
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Damage> {
        let short = || Damage(format!("a record of {} bytes is shorter than its head", bytes.len()));
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
        EventKind::Put {
            value: Bytes::copy_from_slice(self.value),
            create_revision: self.create_revision,
            version: self.version,
        }
    }
}

/// Where a record stands once it is no longer the latest.
pub(super) fn superseded_key(mod_revision: Revision, key: &[u8]) -> Vec<u8> {
    [&mod_revision.to_key(), key].concat()
}

/// What a kept change says of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyChange<'a> {
    Put(&'a [u8]),
    Deleted(&'a [u8]),
}

const CHANGE_PUT: u8 = 1;
const CHANGE_DELETED: u8 = 2;

impl<'a> KeyChange<'a> {
    /// Appends to a list: what, the key's length in four bytes, the key.
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

    pub(super) fn decode_list(mut bytes: &'a [u8]) -> Result<Vec<Self>, Damage> {
        let short = || Damage("a kept change ends in the middle of a key".to_owned());
        let mut list = Vec::new();
        while let Some((tag, rest)) = bytes.split_first() {
            let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
            let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| short())?;
            let (key, rest) = rest.split_at_checked(length).ok_or_else(short)?;
            list.push(match *tag {
                CHANGE_PUT => Self::Put(key),
                CHANGE_DELETED => Self::Deleted(key),
                other => return Err(Damage(format!("a kept change has an event of the unknown kind {other}"))),
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
    fn a_record_is_three_numbers_and_the_value() {
        let record =
            Record { create_revision: Revision::new(1), mod_revision: Revision::new(258), version: 3, value: b"v" };
        let bytes =
            [&[0, 0, 0, 0, 0, 0, 0, 1][..], &[0, 0, 0, 0, 0, 0, 1, 2], &[0, 0, 0, 0, 0, 0, 0, 3], b"v"].concat();
        assert_eq!(record.encode(), bytes);
        assert_eq!(Record::decode(&bytes).unwrap(), record);
        for cut in 0..RECORD_HEAD {
            assert!(Record::decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_kept_change_cut_anywhere_but_between_keys_is_damage() {
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
