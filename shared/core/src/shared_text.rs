//! Stores texts that occur many times once. JSON texts are stored in chunks, so that similar texts share equal chunks.
//!
//! A thousand hosts may read one map of labels in which each host has one label of its own. As whole texts, these would
//! be a thousand copies. So a large text is split into chunks along the entries of its maps and lists (content-defined
//! chunking). The content of the entries decides where a chunk ends, so an entry that is added, changed or removed
//! changes its own chunk, and at most the next one.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::digest::{canonical_json, in_canonical_order, sha256, write_canonical, write_member_key};

/// Minimum size of a chunk of a JSON text, in bytes. It is larger for a large text, because of [`TARGET_MAX_CHUNKS`]. A
/// chunk next to a large map or list entry, and the last chunk of a text, may be smaller.
const MIN_CHUNK_BYTES: usize = 1024;
/// Intended maximum number of chunks of a JSON text. A text with many small chunks may have about four times as many,
/// and one with deeply nested large entries even more.
const TARGET_MAX_CHUNKS: usize = 24;
/// Number of added texts after which unused texts are removed. If the last removal retained more texts, the next one
/// follows after this larger number of additions. So the cost of removals is about proportional to additions.
const PRUNE_AFTER_COUNT: usize = 1024;
/// Number of added bytes after which unused texts are removed, with the same rule as for [`PRUNE_AFTER_COUNT`]. The
/// limit that is reached first counts.
const PRUNE_AFTER_BYTES: usize = 4 * 1024 * 1024;

/// A collection that stores each distinct text once. A clone refers to the same collection.
#[derive(Clone, Debug, Default)]
pub struct SharedTexts(Arc<Mutex<TextPool>>);

/// The texts of a collection, with the amounts that decide when unused texts are removed.
#[derive(Debug, Default)]
struct TextPool {
    texts: BTreeSet<Arc<str>>,
    /// The number and bytes of the texts that were added since the last removal of unused texts.
    added: TextTotals,
    /// The number and bytes of the texts that the last removal of unused texts retained.
    retained: TextTotals,
}

/// Number and total size of some texts, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct TextTotals {
    count: usize,
    bytes: usize,
}

/// A JSON text, stored whole or in chunks. Two JSON texts are equal if their characters are equal, even if their chunks
/// differ.
#[derive(Clone)]
pub struct JsonText(TextStorage);

/// The storage of a JSON text. The text is the concatenation of its chunks.
#[derive(Clone)]
enum TextStorage {
    Whole(Arc<str>),
    Chunks(Arc<[Arc<str>]>),
}

impl SharedTexts {
    /// Replaces each text by the equal text of the collection, so that the memory is shared. A text that the collection
    /// lacks is added to it.
    pub fn intern_all<'a>(&self, texts: impl Iterator<Item = &'a mut Arc<str>>) {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for text in texts {
            match pool.texts.get(&**text) {
                Some(stored_text) => *text = Arc::clone(stored_text),
                None => pool.insert_text(text),
            }
        }
    }
}

impl TextPool {
    /// Adds a text. First removes the texts that nobody else refers to, if enough texts or bytes were added since the
    /// last removal.
    fn insert_text(&mut self, text: &Arc<str>) {
        let Self { added, retained, .. } = self;
        if added.count >= retained.count.max(PRUNE_AFTER_COUNT) || added.bytes >= retained.bytes.max(PRUNE_AFTER_BYTES) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            let bytes = self.texts.iter().map(|text| text.len()).sum();
            (self.added, self.retained) = (TextTotals::default(), TextTotals { count: self.texts.len(), bytes });
        }
        self.texts.insert(Arc::clone(text));
        self.added.count += 1;
        self.added.bytes += text.len();
    }
}

impl JsonText {
    /// Returns the canonical JSON text of a value. A map or list of about 2 KiB or more may be split into chunks.
    pub fn from_value(value: &Value) -> Self {
        let estimated_bytes = estimate_bytes(value);
        if estimated_bytes < 2 * MIN_CHUNK_BYTES {
            return canonical_json(value).into();
        }
        let mut chunks = ChunkBuilder {
            min_bytes: (estimated_bytes / TARGET_MAX_CHUNKS).max(MIN_CHUNK_BYTES),
            finished_chunks: Vec::new(),
            current_chunk: String::new(),
        };
        chunks.add_value(value);
        chunks.finish_chunk();
        Self::from_chunks(chunks.finished_chunks)
    }

    /// Returns the JSON text that is the concatenation of these chunks.
    pub fn from_chunks(mut chunks: Vec<Arc<str>>) -> Self {
        match chunks.len() {
            1 => Self(TextStorage::Whole(chunks.remove(0))),
            _ => Self(TextStorage::Chunks(chunks.into())),
        }
    }

    /// Returns the chunks of the text, in order. A text that is stored whole is one chunk.
    pub fn chunks(&self) -> &[Arc<str>] {
        match &self.0 {
            TextStorage::Whole(text) => slice::from_ref(text),
            TextStorage::Chunks(chunks) => chunks,
        }
    }

    /// Returns the chunks of the text for replacement by equal chunks of a shared collection.
    pub fn chunks_mut(&mut self) -> &mut [Arc<str>] {
        match &mut self.0 {
            TextStorage::Whole(text) => slice::from_mut(text),
            TextStorage::Chunks(chunks) => Arc::make_mut(chunks),
        }
    }

    /// Returns the whole text.
    pub fn to_text(&self) -> Cow<'_, str> {
        match &self.0 {
            TextStorage::Whole(text) => Cow::Borrowed(text),
            TextStorage::Chunks(chunks) => Cow::Owned(chunks.concat()),
        }
    }

    /// Returns the length of the text, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.len()).sum()
    }
}

impl PartialEq for JsonText {
    /// Compares the chunks first, which is fast if they are shared. Compares the whole texts if the chunks differ.
    fn eq(&self, other: &Self) -> bool {
        let are_chunks_equal = |(left, right): (&Arc<str>, &Arc<str>)| Arc::ptr_eq(left, right) || left == right;
        let (own_chunks, other_chunks) = (self.chunks(), other.chunks());
        (own_chunks.len() == other_chunks.len() && own_chunks.iter().zip(other_chunks).all(are_chunks_equal))
            || (self.size_bytes() == other.size_bytes() && self.to_text() == other.to_text())
    }
}

impl Eq for JsonText {}

impl fmt::Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chunks().iter().try_for_each(|chunk| f.write_str(chunk))
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.to_text(), f)
    }
}

impl From<&str> for JsonText {
    fn from(text: &str) -> Self {
        Self(TextStorage::Whole(text.into()))
    }
}

impl From<String> for JsonText {
    fn from(text: String) -> Self {
        Self(TextStorage::Whole(text.into()))
    }
}

impl Serialize for JsonText {
    /// Writes the whole text as one string, also if it is stored in chunks.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// Returns an estimate of the size of a value as JSON text, in bytes. Escape sequences are not counted.
pub(crate) fn estimate_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| estimate_bytes(item) + 1).sum::<usize>(),
        Value::Object(members) => 2 + members.iter().map(|(key, value)| key.len() + 4 + estimate_bytes(value)).sum::<usize>(),
    }
}

/// The state while a value is written as canonical JSON text and split into chunks.
struct ChunkBuilder {
    /// Minimum size of a chunk, in bytes.
    min_bytes: usize,
    /// The chunks that are complete, in order.
    finished_chunks: Vec<Arc<str>>,
    /// The text of the chunk that is not complete yet.
    current_chunk: String,
}

impl ChunkBuilder {
    /// Adds a value to the text. A map or list can be split into chunks.
    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                let members = in_canonical_order(map.iter().collect()).into_iter();
                self.add_entries(['{', '}'], members.map(|(key, value)| (Some(key.as_str()), value)));
            }
            Value::Array(items) => self.add_entries(['[', ']'], items.iter().map(|item| (None, item))),
            value => write_canonical(&mut self.current_chunk, value),
        }
    }

    /// Adds a map or list to the text. An entry of at least `min_bytes` bytes gets chunks of its own. After a smaller
    /// entry, a chunk of `min_bytes` bytes or more ends if the first byte of the entry's hash is below 32 (one entry of
    /// eight), so that similar values have equal chunks. A chunk of four times `min_bytes` ends in any case.
    fn add_entries<'a>(&mut self, [opening, closing]: [char; 2], entries: impl Iterator<Item = (Option<&'a str>, &'a Value)>) {
        self.current_chunk.push(opening);
        for (index, (key, value)) in entries.enumerate() {
            let is_large = estimate_bytes(value) >= self.min_bytes;
            if is_large {
                self.finish_chunk();
            }
            // The comma precedes the entry, so that an entry added at the end does not change the chunks before it.
            if index > 0 {
                self.current_chunk.push(',');
            }
            let entry_start = self.current_chunk.len();
            if let Some(key) = key {
                write_member_key(&mut self.current_chunk, key);
            }
            if is_large {
                self.add_value(value);
                self.finish_chunk();
                continue;
            }
            write_canonical(&mut self.current_chunk, value);
            let is_chunk_end = sha256(&self.current_chunk.as_bytes()[entry_start..])[0] < 32;
            if self.current_chunk.len() >= self.min_bytes && (is_chunk_end || self.current_chunk.len() >= 4 * self.min_bytes) {
                self.finish_chunk();
            }
        }
        self.current_chunk.push(closing);
    }

    /// Moves the current chunk to the finished ones. Does nothing if the current chunk is empty.
    fn finish_chunk(&mut self) {
        if !self.current_chunk.is_empty() {
            self.finished_chunks.push(std::mem::take(&mut self.current_chunk).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// Equal texts from two clones of the collection share memory. After many additions, the collection has removed
    /// most of the texts that nobody uses. `first_text` is in use and remains.
    #[test]
    fn x03_f07_shared_texts_hold_text_once_and_drop_unused() {
        let texts = SharedTexts::default();
        let clone = texts.clone();
        let mut first_text: Arc<str> = "condition is false: labels.tier == 'gold'".into();
        let mut equal_text: Arc<str> = first_text.to_string().into();
        texts.intern_all([&mut first_text].into_iter());
        clone.intern_all([&mut equal_text].into_iter());
        assert!(Arc::ptr_eq(&first_text, &equal_text));
        for number in 0..100_000_u32 {
            texts.intern_all([&mut Arc::from(number.to_string())].into_iter());
        }
        let stored_amount = |texts: &SharedTexts| {
            let pool = texts.0.lock().unwrap();
            assert!(pool.texts.contains(&*first_text));
            (pool.texts.len(), pool.texts.iter().map(|text| text.len()).sum::<usize>())
        };
        // Between two removals, at most `PRUNE_AFTER_COUNT` texts are added to the retained ones.
        assert!(stored_amount(&texts).0 <= 2 * PRUNE_AFTER_COUNT, "{:?}", stored_amount(&texts));
        for number in 0..400 {
            texts.intern_all([&mut Arc::from(format!("{number:0>60000}"))].into_iter());
        }
        // A removal follows the addition that exceeds the limit. So a few texts of 60,000 bytes may be above the limit.
        assert!(stored_amount(&texts).1 <= PRUNE_AFTER_BYTES + 200_000, "few of the large texts: {:?}", stored_amount(&texts));
    }

    /// Returns values with different numbers and sizes of entries, in maps and lists of several depths.
    fn large_values() -> Vec<Value> {
        let create_map = |count: usize, bytes: usize| -> Map<String, Value> {
            (0..count).map(|index| (format!("k{index:04}"), "x".repeat(bytes).into())).collect()
        };
        let mut values = Vec::new();
        for (count, bytes) in [(15, 4_000), (600, 100), (60, 1_000), (3_000, 20), (1, 60_000)] {
            let map = create_map(count, bytes);
            values.push(Value::Object(map.clone()));
            values.push(json!({"a": {"b": map.clone()}, "z": 1}));
            values.push(Value::Array(map.iter().map(|(key, value)| json!([key, value])).collect()));
        }
        values
    }

    /// `unusual_value` has keys and values that the canonical form must sort or escape.
    #[test]
    fn chunked_text_equals_canonical_text() {
        let unusual_value = json!({"\u{e000}": 1, "\u{10000}": [], "": {}, "\"": [null, true, 1.5, {"b": [1, 2], "a": "\n"}]});
        for value in large_values().into_iter().chain([unusual_value, json!(null), json!("x"), json!([])]) {
            let text = JsonText::from_value(&value);
            assert_eq!(*text.to_text(), canonical_json(&value));
            assert_eq!(text.to_string(), canonical_json(&value));
            assert_eq!(text.size_bytes(), canonical_json(&value).len());
            // The limit is approximate, so six further chunks are allowed.
            assert!(text.chunks().len() <= 4 * TARGET_MAX_CHUNKS + 6, "{}", text.chunks().len());
            assert_eq!(text, JsonText::from(canonical_json(&value)), "chunks do not matter for equality");
            let read: JsonText = serde_json::from_str(&serde_json::to_string(&text).unwrap()).unwrap();
            assert_eq!(read, text);
        }
        assert_ne!(JsonText::from("[1]"), JsonText::from("[2]"));
    }

    /// Two texts differ only in the value of one entry. In a map, its key sorts before, between or after most other
    /// keys. In a list, the entry is in the middle.
    #[test]
    fn x03_f07_similar_texts_share_most_chunks() {
        for value in large_values() {
            let text_with_entry = |key: &str, text: &str| {
                let mut changed_value = value.clone();
                match &mut changed_value {
                    Value::Object(map) => drop(map.insert(key.to_owned(), text.into())),
                    Value::Array(items) => items.insert(items.len() / 2, json!([key, text])),
                    _ => unreachable!("the values are maps and lists"),
                }
                JsonText::from_value(&changed_value)
            };
            for key in ["a", "k0007own", "zz"] {
                let (first_text, second_text) = (text_with_entry(key, "one"), text_with_entry(key, "another"));
                let first_chunks: BTreeSet<&str> = first_text.chunks().iter().map(|chunk| &**chunk).collect();
                let new_bytes: usize =
                    second_text.chunks().iter().filter(|chunk| !first_chunks.contains(&***chunk)).map(|chunk| chunk.len()).sum();
                // Only chunks near the entry may differ.
                assert!(
                    new_bytes > 0 && new_bytes <= 12 * MIN_CHUNK_BYTES,
                    "{key}: {new_bytes} bytes for one entry that differs"
                );
            }
        }
    }
}
