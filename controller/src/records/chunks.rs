//! Large texts of records, stored in chunks: each chunk once, by its hash, for all records that have it.
//!
//! Where the tasks of many nodes read one map and each node has an entry of its own in it, no two of their texts are equal, and nearly all
//! of each is in all others ([`stemma_core::shared_text`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use stemma_core::shared_text::JsonText;
use stemma_wire::message::desired::InputValue;
use stemma_wire::message::{Hash, hash_content};

use super::codec::BadRecord;

/// The fewest bytes of a chunk that is stored by its hash: a shorter one stands in the record itself.
const LEAST_NAMED: usize = 512;

/// What a chunk takes in a record that stands there by its hash: 64 digits and `{"hash":""},`.
const HASH_IN_RECORD: usize = 64 + 12;

/// Texts of inputs that are stored in chunks, by the reference's text.
pub type StoredTexts = BTreeMap<String, Vec<StoredChunk>>;

/// Chunks by their hash, as they are stored.
pub type NamedChunks = BTreeMap<Hash, Arc<str>>;

/// A chunk of a text as a record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredChunk {
    /// A short one.
    Text(Arc<str>),
    /// The hash by which it is stored.
    Hash(Hash),
}

/// The fewest bytes that a text takes in the record that has it: chunks by their hash stand apart.
pub fn len_in_record(text: &JsonText) -> usize {
    let is_in_chunks = text.chunks().len() > 1;
    let len = |chunk: &Arc<str>| if is_in_chunks && chunk.len() >= LEAST_NAMED { HASH_IN_RECORD } else { chunk.len() };
    text.chunks().iter().map(len).sum()
}

/// Takes out of inputs the texts that are in chunks. Those that are to be stored by their hash are added to `chunks`.
pub fn take_out(inputs: &mut BTreeMap<String, InputValue>, chunks: &mut NamedChunks) -> StoredTexts {
    let is_in_chunks = |value: &InputValue| value.text().is_some_and(|text| text.chunks().len() > 1);
    let taken = inputs.extract_if(.., |_, value| is_in_chunks(value));
    let mut stored = |chunk: &Arc<str>| {
        if chunk.len() < LEAST_NAMED {
            return StoredChunk::Text(Arc::clone(chunk));
        }
        let hash = hash_content(chunk.as_bytes());
        chunks.insert(hash, Arc::clone(chunk));
        StoredChunk::Hash(hash)
    };
    let texts = taken.filter_map(|(reference, value)| Some((reference, value.text()?.chunks().to_vec())));
    texts.map(|(reference, chunks)| (reference, chunks.iter().map(&mut stored).collect())).collect()
}

/// Puts texts back that were taken out of inputs.
///
/// # Errors
/// [`BadRecord::Damaged`]: a chunk is not stored.
pub fn put_back(
    inputs: &mut BTreeMap<String, InputValue>,
    texts: StoredTexts,
    chunk: impl Fn(&Hash) -> Option<Arc<str>>,
) -> Result<(), BadRecord> {
    let whole = |stored| match stored {
        StoredChunk::Text(text) => Ok(text),
        StoredChunk::Hash(hash) => chunk(&hash).ok_or_else(|| {
            BadRecord::Damaged(serde_json::Error::custom(format_args!("the chunk {hash} of a text is not stored")))
        }),
    };
    for (reference, chunks) in texts {
        let chunks = chunks.into_iter().map(whole).collect::<Result<Vec<_>, _>>()?;
        inputs.insert(reference, InputValue::Json(JsonText::from_chunks(chunks)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn x03_f07_texts_are_taken_out_and_put_back_and_what_is_alike_is_stored_once() {
        let map = |own: &str| -> Value {
            let mut map: Value = (0..15).map(|at| (format!("a/{at}"), json!("x".repeat(4_000)))).collect();
            map["a/own"] = own.into();
            map
        };
        let inputs = |own: &str| -> BTreeMap<String, InputValue> {
            let value = |value: &Value| InputValue::Json(JsonText::of(value));
            [
                ("labels_with_prefix('a/')".to_owned(), value(&map(own))),
                ("labels.small".to_owned(), value(&json!("x"))),
                ("labels.none".to_owned(), InputValue::Absent),
            ]
            .into()
        };
        let (mut one, mut other, mut chunks) = (inputs("one"), inputs("other"), NamedChunks::new());
        let of_one = take_out(&mut one, &mut chunks);
        let known = chunks.len();
        let of_other = take_out(&mut other, &mut chunks);
        assert_eq!((known, chunks.len()), (15, 15), "the entry of its own is short");
        assert_eq!(one.keys().collect::<Vec<_>>(), ["labels.none", "labels.small"]);
        let stored = serde_json::to_string(&of_other).unwrap();
        assert!(stored.len() < 2_000, "{}", stored.len());
        let read: StoredTexts = serde_json::from_str(&stored).unwrap();
        assert_eq!(read, of_other);
        put_back(&mut other, read, |hash| chunks.get(hash).cloned()).unwrap();
        assert_eq!(other, inputs("other"));
        let error = put_back(&mut one, of_one, |_| None).unwrap_err();
        assert!(matches!(error, BadRecord::Damaged(_)), "a chunk is not there");
    }
}
