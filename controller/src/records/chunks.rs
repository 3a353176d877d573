//! Large texts of records, stored in chunks. Each chunk is stored once, by its hash, for all records that contain it.
//!
//! The tasks of many nodes may read one map in which each node has an entry of its own. Then no two of their texts are
//! equal, but nearly all of each text is in all others ([`stemma_core::shared_text`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use stemma_core::shared_text::JsonText;
use stemma_wire::message::desired::InputValue;
use stemma_wire::message::{Hash, hash_content};

use super::codec::BadRecord;

/// Minimum size, in bytes, of a chunk that is stored by its hash. A shorter chunk is stored in the record itself.
const MIN_HASHED_CHUNK_BYTES: usize = 512;

/// Size of a reference to a chunk in a record, in bytes: 64 digits and `{"hash":""},`.
const HASH_REFERENCE_BYTES: usize = 64 + 12;

/// Texts of inputs that are stored in chunks, by the text of the input's reference.
pub type StoredTexts = BTreeMap<String, Vec<StoredChunk>>;

/// Stored chunks, by their hash.
pub type ChunksByHash = BTreeMap<Hash, Arc<str>>;

/// A chunk of a text in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredChunk {
    /// The text of a short chunk.
    Text(Arc<str>),
    /// The hash under which the chunk is stored.
    Hash(Hash),
}

/// Returns the minimum size that a text takes in its record, in bytes. A chunk that is stored by its hash counts with
/// the size of the reference.
pub fn min_record_bytes(text: &JsonText) -> usize {
    let is_in_chunks = text.chunks().len() > 1;
    let len = |chunk: &Arc<str>| {
        if is_in_chunks && chunk.len() >= MIN_HASHED_CHUNK_BYTES { HASH_REFERENCE_BYTES } else { chunk.len() }
    };
    text.chunks().iter().map(len).sum()
}

/// Removes the texts that consist of several chunks from the inputs and returns them. Adds the chunks to be stored by
/// their hash to `chunks`.
pub fn extract_texts(inputs: &mut BTreeMap<String, InputValue>, chunks: &mut ChunksByHash) -> StoredTexts {
    let is_in_chunks = |value: &InputValue| value.text().is_some_and(|text| text.chunks().len() > 1);
    let extracted = inputs.extract_if(.., |_, value| is_in_chunks(value));
    let mut store_chunk = |chunk: &Arc<str>| {
        if chunk.len() < MIN_HASHED_CHUNK_BYTES {
            return StoredChunk::Text(Arc::clone(chunk));
        }
        let hash = hash_content(chunk.as_bytes());
        chunks.insert(hash, Arc::clone(chunk));
        StoredChunk::Hash(hash)
    };
    let texts = extracted.filter_map(|(reference, value)| Some((reference, value.text()?.chunks().to_vec())));
    texts.map(|(reference, chunks)| (reference, chunks.iter().map(&mut store_chunk).collect())).collect()
}

/// Puts the texts that [`extract_texts`] removed back into the inputs.
///
/// # Errors
/// [`BadRecord::Damaged`] if a chunk is not stored.
pub fn restore_texts(
    inputs: &mut BTreeMap<String, InputValue>,
    texts: StoredTexts,
    chunk: impl Fn(&Hash) -> Option<Arc<str>>,
) -> Result<(), BadRecord> {
    let load_chunk = |stored| match stored {
        StoredChunk::Text(text) => Ok(text),
        StoredChunk::Hash(hash) => chunk(&hash).ok_or_else(|| {
            BadRecord::Damaged(serde_json::Error::custom(format_args!("the chunk {hash} of a text is not stored")))
        }),
    };
    for (reference, chunks) in texts {
        let chunks = chunks.into_iter().map(load_chunk).collect::<Result<Vec<_>, _>>()?;
        inputs.insert(reference, InputValue::Json(JsonText::from_chunks(chunks)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn x03_f07_extracted_texts_are_restored_and_equal_chunks_stored_once() {
        let map = |own: &str| -> Value {
            let mut map: Value = (0..15).map(|at| (format!("a/{at}"), json!("x".repeat(4_000)))).collect();
            map["a/own"] = own.into();
            map
        };
        let inputs = |own: &str| -> BTreeMap<String, InputValue> {
            let value = |value: &Value| InputValue::Json(JsonText::from_value(value));
            [
                ("labels_with_prefix('a/')".to_owned(), value(&map(own))),
                ("labels.small".to_owned(), value(&json!("x"))),
                ("labels.none".to_owned(), InputValue::Absent),
            ]
            .into()
        };
        let (mut one, mut other, mut chunks) = (inputs("one"), inputs("other"), ChunksByHash::new());
        let of_one = extract_texts(&mut one, &mut chunks);
        let known = chunks.len();
        let of_other = extract_texts(&mut other, &mut chunks);
        assert_eq!((known, chunks.len()), (15, 15), "the entry of its own is short");
        assert_eq!(one.keys().collect::<Vec<_>>(), ["labels.none", "labels.small"]);
        let stored = serde_json::to_string(&of_other).unwrap();
        assert!(stored.len() < 2_000, "{}", stored.len());
        let read: StoredTexts = serde_json::from_str(&stored).unwrap();
        assert_eq!(read, of_other);
        restore_texts(&mut other, read, |hash| chunks.get(hash).cloned()).unwrap();
        assert_eq!(other, inputs("other"));
        let error = restore_texts(&mut one, of_one, |_| None).unwrap_err();
        assert!(matches!(error, BadRecord::Damaged(_)), "a chunk is not there");
    }
}
