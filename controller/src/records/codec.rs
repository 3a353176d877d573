//! The encoding of records: JSON with a schema version. A newer controller opens an old store, and an older controller
//! refuses a newer store instead of reading a part of it.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The newest schema version of records that this program reads. A change that an older program would misread raises
/// the version.
///
/// - 1: all records that need no later version.
/// - 2: a released task set that refers to values in other records ([`super::common_values`]).
/// - 3: a released task set with texts in chunks ([`super::chunks`]).
/// - 4: a released task set whose tags may be in other records too.
pub const RECORD_SCHEMA: u32 = 4;
/// The schema version that every program reads. Most records are written with it.
const FIRST_SCHEMA: u32 = 1;

/// The reason why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadRecord {
    /// A newer program wrote the record.
    #[error("the record has schema version {found}, this program knows up to {RECORD_SCHEMA}: run the newer stemma-controller")]
    Newer {
        /// The schema version of the record.
        found: u32,
    },
    /// The bytes are not a record that any version of this program could have written.
    #[error("the record is damaged")]
    Damaged(#[source] serde_json::Error),
}

impl BadRecord {
    /// Returns whether a newer program wrote the record.
    pub const fn is_newer(&self) -> bool {
        matches!(self, Self::Newer { .. })
    }
}

#[derive(Serialize)]
struct RecordOut<'a, T> {
    schema: u32,
    record: &'a T,
}

#[derive(Deserialize)]
struct RecordIn<'a> {
    schema: u32,
    #[serde(borrow)]
    record: &'a RawValue,
}

/// Encodes a record with the first schema version, which every program reads.
pub fn encode<T: Serialize>(record: &T) -> Bytes {
    encode_with_schema(FIRST_SCHEMA, record)
}

/// Encodes a record with the newest schema version, so that an older program refuses the record.
pub fn encode_newest<T: Serialize>(record: &T) -> Bytes {
    encode_with_schema(RECORD_SCHEMA, record)
}

fn encode_with_schema<T: Serialize>(schema: u32, record: &T) -> Bytes {
    let out = RecordOut { schema, record };
    serde_json::to_vec(&out).expect("records are made of text keys and JSON values").into()
}

/// Decodes a record of any schema version up to [`RECORD_SCHEMA`].
///
/// # Errors
/// [`BadRecord`] if a newer program wrote it, or if it is damaged.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadRecord> {
    let raw_record: RecordIn<'_> = serde_json::from_slice(bytes).map_err(BadRecord::Damaged)?;
    if raw_record.schema > RECORD_SCHEMA {
        return Err(BadRecord::Newer { found: raw_record.schema });
    }
    serde_json::from_str(raw_record.record.get()).map_err(BadRecord::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_returns_record_and_refuses_newer_schema() {
        assert_eq!(decode::<Vec<u8>>(&encode(&vec![1, 2])).unwrap(), [1, 2]);
        assert_eq!(decode::<Vec<u8>>(&encode_newest(&vec![1, 2])).unwrap(), [1, 2]);
        let error = decode::<Vec<u8>>(br#"{"schema":5,"record":{"other":"form"}}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the record has schema version 5, this program knows up to 4: run the newer stemma-controller"
        );
        assert!(decode::<Vec<u8>>(b"{}").is_err());
    }
}
