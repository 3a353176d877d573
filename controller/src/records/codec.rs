//! How records stand in the store: JSON with a schema version, so that an old store opens in a newer controller
//! and a newer one is refused without being read half.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The newest version of records that this program reads. Raised by a change that an older program would misread.
///
/// - 1: all but those of a later version.
/// - 2: a released task set that names values which stand apart ([`super::common`]).
/// - 3: a released task set with texts in chunks ([`super::chunks`]).
/// - 4: a released task set whose tags may stand apart too.
pub const RECORD_SCHEMA: u32 = 4;
/// The version of a record that every program reads.
const FIRST_SCHEMA: u32 = 1;

/// A record that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum BadRecord {
    /// A later program wrote it.
    #[error(
        "the record has schema version {found}, this program knows up to {RECORD_SCHEMA}: run the newer stemma-controller"
    )]
    Newer {
        /// Its version.
        found: u32,
    },
    /// It is not what was written.
    #[error("the record is damaged")]
    Damaged(#[source] serde_json::Error),
}

impl BadRecord {
    /// Whether a later program wrote it.
    pub const fn is_newer(&self) -> bool {
        matches!(self, Self::Newer { .. })
    }
}

#[derive(Serialize)]
struct Written<'a, T> {
    schema: u32,
    record: &'a T,
}

#[derive(Deserialize)]
struct Read<'a> {
    schema: u32,
    #[serde(borrow)]
    record: &'a RawValue,
}

/// Encodes a record that every program reads.
pub fn encode<T: Serialize>(record: &T) -> Bytes {
    encode_as(FIRST_SCHEMA, record)
}

/// Encodes a record of the newest version, which an older program refuses.
pub fn encode_newest<T: Serialize>(record: &T) -> Bytes {
    encode_as(RECORD_SCHEMA, record)
}

fn encode_as<T: Serialize>(schema: u32, record: &T) -> Bytes {
    let written = Written { schema, record };
    serde_json::to_vec(&written).expect("records are made of text keys and JSON values").into()
}

/// Reads a record.
///
/// # Errors
/// [`BadRecord`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadRecord> {
    let read: Read<'_> = serde_json::from_slice(bytes).map_err(BadRecord::Damaged)?;
    if read.schema > RECORD_SCHEMA {
        return Err(BadRecord::Newer { found: read.schema });
    }
    serde_json::from_str(read.record.get()).map_err(BadRecord::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_record_is_refused_and_an_own_one_comes_back() {
        assert_eq!(decode::<Vec<u8>>(&encode(&vec![1, 2])).unwrap(), [1, 2]);
        assert_eq!(decode::<Vec<u8>>(&encode_newest(&vec![1, 2])).unwrap(), [1, 2]);
        let refused = decode::<Vec<u8>>(br#"{"schema":5,"record":{"other":"form"}}"#).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the record has schema version 5, this program knows up to 4: run the newer stemma-controller"
        );
        assert!(decode::<Vec<u8>>(b"{}").is_err());
    }
}
