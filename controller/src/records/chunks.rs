//! Large texts of records, stored in chunks. Each chunk is stored once under its hash, for all records that contain it.
//! A short chunk is stored in the record itself.
//!
//! The tasks of many nodes may read one map in which each node has an entry of its own. Then no two of these texts are
//! equal, but nearly all of each text is also in the others ([`stemma_core::shared_text`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use stemma_core::shared_text::JsonText;
use stemma_wire::message::desired::InputValue;
use stemma_wire::message::{Hash, hash_content};

use super::codec::BadRecord;

/// Minimum size of a chunk that is stored under its hash, in bytes. A shorter chunk is stored in the record itself.
const MIN_HASHED_CHUNK_BYTES: usize = 512;

/// Size of a reference to a chunk in the JSON of a record, in bytes: 64 digits and `{"hash":""},`.
const HASH_REFERENCE_BYTES: usize = 64 + 12;

/// Texts of inputs that are stored in chunks. The key is the text of the input's reference, such as `labels.web`.
pub type StoredTexts = BTreeMap<String, Vec<StoredChunk>>;

/// Stored chunks, by their hash.
pub type ChunksByHash = BTreeMap<Hash, Arc<str>>;

/// A chunk of a text in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredChunk {
    /// The text of a short chunk, which is stored in the record.
    Text(Arc<str>),
    /// The hash under which the chunk is stored.
    Hash(Hash),
}

/// Returns the minimum size that a text needs in its record, in bytes. A chunk that is stored under its hash needs the
/// size of a reference there.
pub fn min_record_bytes(text: &JsonText) -> usize {
    let is_in_chunks = text.chunks().len() > 1;
    let size_in_record = |chunk: &Arc<str>| {
        if is_in_chunks && chunk.len() >= MIN_HASHED_CHUNK_BYTES { HASH_REFERENCE_BYTES } else { chunk.len() }
    };
    text.chunks().iter().map(size_in_record).sum()
}

/// Removes the texts that consist of several chunks from the inputs, and returns them in their stored form. Adds the
/// chunks that must be stored under their hash to `chunks`.
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

/// Inserts into the inputs the texts that [`extract_texts`] removed from them. `find_chunk` returns a stored chunk by
/// its hash.
///
/// # Errors
/// [`BadRecord::Damaged`] if a chunk is not stored.
pub fn restore_texts(
    inputs: &mut BTreeMap<String, InputValue>,
    texts: StoredTexts,
    find_chunk: impl Fn(&Hash) -> Option<Arc<str>>,
) -> Result<(), BadRecord> {
    let load_chunk = |stored| match stored {
        StoredChunk::Text(text) => Ok(text),
        StoredChunk::Hash(hash) => find_chunk(&hash).ok_or_else(|| {
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
        let map = |own_text: &str| -> Value {
            let mut map: Value = (0..15).map(|index| (format!("a/{index}"), json!("x".repeat(4_000)))).collect();
            map["a/own"] = own_text.into();
            map
        };
        let inputs = |own_text: &str| -> BTreeMap<String, InputValue> {
            let value = |value: &Value| InputValue::Json(JsonText::from_value(value));
            [
                ("labels_with_prefix('a/')".to_owned(), value(&map(own_text))),
                ("labels.small".to_owned(), value(&json!("x"))),
                ("labels.none".to_owned(), InputValue::Absent),
            ]
            .into()
        };
        let (mut first, mut second, mut chunks) = (inputs("one"), inputs("other"), ChunksByHash::new());
        let first_texts = extract_texts(&mut first, &mut chunks);
        let first_chunk_count = chunks.len();
        let second_texts = extract_texts(&mut second, &mut chunks);
        assert_eq!((first_chunk_count, chunks.len()), (15, 15), "the chunk with the own text is too short for a hash");
        assert_eq!(first.keys().collect::<Vec<_>>(), ["labels.none", "labels.small"]);
        let stored = serde_json::to_string(&second_texts).unwrap();
        assert!(stored.len() < 2_000, "{}", stored.len());
        let decoded: StoredTexts = serde_json::from_str(&stored).unwrap();
        assert_eq!(decoded, second_texts);
        restore_texts(&mut second, decoded, |hash| chunks.get(hash).cloned()).unwrap();
        assert_eq!(second, inputs("other"));
        let error = restore_texts(&mut first, first_texts, |_| None).unwrap_err();
        assert!(matches!(error, BadRecord::Damaged(_)), "no chunk is found");
    }
}
