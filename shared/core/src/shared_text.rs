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

/// Minimum size of a chunk, in bytes. The text before or between entries that are chunks of their own may be smaller.
const MIN_CHUNK_BYTES: usize = 1024;
/// Target for the maximum number of chunks of a text. If some of the chunks are small, a text may have up to four times
/// as many.
const TARGET_MAX_CHUNKS: usize = 24;
/// Unused texts are removed after this many texts or bytes were added since the last removal. If the last removal
/// retained more than this, the removal waits for as much as it retained.
const MIN_PRUNE_COUNT: usize = 1024;
const MIN_PRUNE_BYTES: usize = 4 * 1024 * 1024;

/// The collection of shared texts. A clone refers to the same collection.
#[derive(Clone, Debug, Default)]
pub struct SharedTexts(Arc<Mutex<TextPool>>);

#[derive(Debug, Default)]
struct TextPool {
    texts: BTreeSet<Arc<str>>,
    /// The amount that was added since the last removal of unused texts.
    added: TextAmount,
    /// The amount that the last removal of unused texts retained.
    retained: TextAmount,
}

/// Number and total bytes of texts.
#[derive(Clone, Copy, Debug, Default)]
struct TextAmount {
    count: usize,
    bytes: usize,
}

/// A JSON text, whole or in chunks. Two are equal if their characters are equal, however they are stored.
#[derive(Clone)]
pub struct JsonText(TextStorage);

#[derive(Clone)]
enum TextStorage {
    Whole(Arc<str>),
    Chunks(Arc<[Arc<str>]>),
}

impl SharedTexts {
    /// Replaces each text by an equal stored one, or stores it.
    pub fn intern_all<'a>(&self, texts: impl Iterator<Item = &'a mut Arc<str>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for text in texts {
            match known.texts.get(&**text) {
                Some(same) => *text = Arc::clone(same),
                None => known.insert_text(text),
            }
        }
    }
}

impl TextPool {
    /// Adds a text. First removes unused texts if enough texts were added since the last removal.
    fn insert_text(&mut self, text: &Arc<str>) {
        let Self { added: new, retained: left, .. } = self;
        if new.count >= left.count.max(MIN_PRUNE_COUNT) || new.bytes >= left.bytes.max(MIN_PRUNE_BYTES) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            let bytes = self.texts.iter().map(|text| text.len()).sum();
            (self.added, self.retained) = (TextAmount::default(), TextAmount { count: self.texts.len(), bytes });
        }
        self.texts.insert(Arc::clone(text));
        self.added.count += 1;
        self.added.bytes += text.len();
    }
}

impl JsonText {
    /// Returns the canonical text of a value, in chunks if it is large.
    pub fn from_value(value: &Value) -> Self {
        let weight = estimate_bytes(value);
        if weight < 2 * MIN_CHUNK_BYTES {
            return canonical_json(value).into();
        }
        let mut chunks = ChunkBuilder {
            min_bytes: (weight / TARGET_MAX_CHUNKS).max(MIN_CHUNK_BYTES),
            finished: Vec::new(),
            current: String::new(),
        };
        chunks.add_value(value);
        chunks.finish_chunk();
        Self::from_chunks(chunks.finished)
    }

    /// Returns the text that consists of these chunks.
    pub fn from_chunks(mut chunks: Vec<Arc<str>>) -> Self {
        match chunks.len() {
            1 => Self(TextStorage::Whole(chunks.remove(0))),
            _ => Self(TextStorage::Chunks(chunks.into())),
        }
    }

    /// Returns the chunks, in order.
    pub fn chunks(&self) -> &[Arc<str>] {
        match &self.0 {
            TextStorage::Whole(text) => slice::from_ref(text),
            TextStorage::Chunks(chunks) => chunks,
        }
    }

    /// Returns the chunks, so that the caller can replace them by equal shared ones.
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

    /// Returns the length, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.len()).sum()
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&Arc<str>, &Arc<str>)| Arc::ptr_eq(one, other) || one == other;
        let (own, others) = (self.chunks(), other.chunks());
        (own.len() == others.len() && own.iter().zip(others).all(is_same))
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
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// Returns about how many bytes a value has as JSON. Escapes in texts are not counted.
pub(crate) fn estimate_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| estimate_bytes(item) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(key, value)| key.len() + 4 + estimate_bytes(value)).sum::<usize>(),
    }
}

/// Splits a canonical text into chunks.
struct ChunkBuilder {
    /// Minimum size of a chunk, in bytes.
    min_bytes: usize,
    finished: Vec<Arc<str>>,
    current: String,
}

impl ChunkBuilder {
    /// Adds a value. A large entry of a map or list gets chunks of its own. Small entries share a chunk until an entry
    /// whose content ends it, or until the chunk is too large.
    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                let members = in_canonical_order(map.iter().collect()).into_iter();
                self.add_entries(['{', '}'], members.map(|(key, value)| (Some(key.as_str()), value)));
            }
            Value::Array(items) => self.add_entries(['[', ']'], items.iter().map(|item| (None, item))),
            value => write_canonical(&mut self.current, value),
        }
    }

    /// Adds a map or list. The hash of each small entry decides whether the chunk ends after it.
    fn add_entries<'a>(&mut self, [open, close]: [char; 2], entries: impl Iterator<Item = (Option<&'a str>, &'a Value)>) {
        self.current.push(open);
        for (at, (key, value)) in entries.enumerate() {
            let is_large = estimate_bytes(value) >= self.min_bytes;
            if is_large {
                self.finish_chunk();
            }
            // The comma precedes the entry, so that an entry added at the end does not change the chunks before it.
            if at > 0 {
                self.current.push(',');
            }
            let begin = self.current.len();
            if let Some(key) = key {
                write_member_key(&mut self.current, key);
            }
            if is_large {
                self.add_value(value);
                self.finish_chunk();
                continue;
            }
            write_canonical(&mut self.current, value);
            let ends = sha256(&self.current.as_bytes()[begin..])[0] < 32;
            if self.current.len() >= self.min_bytes && (ends || self.current.len() >= 4 * self.min_bytes) {
                self.finish_chunk();
            }
        }
        self.current.push(close);
    }

    /// Ends the current chunk. An empty one is dropped.
    fn finish_chunk(&mut self) {
        if !self.current.is_empty() {
            self.finished.push(std::mem::take(&mut self.current).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn x03_f07_shared_texts_hold_text_once_and_drop_unused() {
        let texts = SharedTexts::default();
        let clone = texts.clone();
        let mut one: Arc<str> = "condition is false: labels.tier == 'gold'".into();
        let mut other: Arc<str> = one.to_string().into();
        texts.intern_all([&mut one].into_iter());
        clone.intern_all([&mut other].into_iter());
        assert!(Arc::ptr_eq(&one, &other));
        for number in 0..100_000_u32 {
            texts.intern_all([&mut Arc::from(number.to_string())].into_iter());
        }
        let held = |texts: &SharedTexts| {
            let known = texts.0.lock().unwrap();
            assert!(known.texts.contains(&*one));
            (known.texts.len(), known.texts.iter().map(|text| text.len()).sum::<usize>())
        };
        assert!(held(&texts).0 <= 2 * MIN_PRUNE_COUNT, "{:?}", held(&texts));
        for number in 0..400 {
            texts.intern_all([&mut Arc::from(format!("{number:0>60000}"))].into_iter());
        }
        assert!(held(&texts).1 <= MIN_PRUNE_BYTES + 200_000, "24 MB of a few large ones: {:?}", held(&texts));
    }

    /// Returns values with different numbers and sizes of entries, in maps and lists of several depths.
    fn large_values() -> Vec<Value> {
        let of = |count: usize, bytes: usize| -> Map<String, Value> {
            (0..count).map(|at| (format!("k{at:04}"), "x".repeat(bytes).into())).collect()
        };
        let mut values = Vec::new();
        for (count, bytes) in [(15, 4_000), (600, 100), (60, 1_000), (3_000, 20), (1, 60_000)] {
            let map = of(count, bytes);
            values.push(Value::Object(map.clone()));
            values.push(json!({"a": {"b": map.clone()}, "z": 1}));
            values.push(Value::Array(map.iter().map(|(key, value)| json!([key, value])).collect()));
        }
        values
    }

    #[test]
    fn chunked_text_equals_canonical_text() {
        let odd = json!({"\u{e000}": 1, "\u{10000}": [], "": {}, "\"": [null, true, 1.5, {"b": [1, 2], "a": "\n"}]});
        for value in large_values().into_iter().chain([odd, json!(null), json!("x"), json!([])]) {
            let text = JsonText::from_value(&value);
            assert_eq!(*text.to_text(), canonical_json(&value));
            assert_eq!(text.to_string(), canonical_json(&value));
            assert_eq!(text.size_bytes(), canonical_json(&value).len());
            assert!(text.chunks().len() <= 4 * TARGET_MAX_CHUNKS + 6, "{}", text.chunks().len());
            assert_eq!(text, JsonText::from(canonical_json(&value)), "however it is held");
            let read: JsonText = serde_json::from_str(&serde_json::to_string(&text).unwrap()).unwrap();
            assert_eq!(read, text);
        }
        assert_ne!(JsonText::from("[1]"), JsonText::from("[2]"));
    }

    #[test]
    fn x03_f07_similar_texts_share_most_chunks() {
        for value in large_values() {
            let with = |key: &str, text: &str| {
                let mut other = value.clone();
                match &mut other {
                    Value::Object(map) => drop(map.insert(key.to_owned(), text.into())),
                    Value::Array(items) => items.insert(items.len() / 2, json!([key, text])),
                    _ => unreachable!("the values are maps and lists"),
                }
                JsonText::from_value(&other)
            };
            for key in ["a", "k0007own", "zz"] {
                let (one, other) = (with(key, "one"), with(key, "another"));
                let known: BTreeSet<&str> = one.chunks().iter().map(|chunk| &**chunk).collect();
                let new: usize = other.chunks().iter().filter(|chunk| !known.contains(&***chunk)).map(|one| one.len()).sum();
                assert!(new > 0 && new <= 12 * MIN_CHUNK_BYTES, "{key}: {new} bytes for one entry that differs");
            }
        }
    }
}
