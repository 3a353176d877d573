//! Texts that many have alike, each held once; and JSON texts in chunks, so that those which differ a little share the rest.
//!
//! A thousand hosts may read one map of labels, each with a label of its own in it. As whole texts that is a thousand copies. So a large
//! text is held in chunks, by entries of the maps and lists that it is made of (content-defined chunking). Where a chunk ends follows from
//! the entries themselves: an entry that is added, changed or taken away changes its own chunk, and at most the next one.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::digest::{canonical_json, in_order, sha256, write_canonical, write_key};

/// The fewest bytes of a chunk, but for what stands before or between entries that are chunks of their own.
const LEAST_CHUNK: usize = 1024;
/// About how many chunks a text has at most: where they are many, some are small, and there are up to four times as many.
const MOST_CHUNKS: usize = 24;
/// So many texts, or so many bytes of them, may come before those are looked for that are no longer in use; or as many as the last look left.
const FEW: usize = 1024;
const FEW_BYTES: usize = 4 * 1024 * 1024;

/// The texts in use. A clone is the same collection.
#[derive(Clone, Debug, Default)]
pub struct SharedTexts(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    texts: BTreeSet<Arc<str>>,
    /// What came since the last look.
    new: Amount,
    /// What that look left.
    left: Amount,
}

/// How many texts, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    count: usize,
    bytes: usize,
}

/// A JSON text. Two are equal if their characters are, however they are held.
#[derive(Clone)]
pub struct JsonText(Held);

#[derive(Clone)]
enum Held {
    Whole(Arc<str>),
    Chunks(Arc<[Arc<str>]>),
}

impl SharedTexts {
    /// Puts in the place of each text an equal one that others have, or remembers it for those that come.
    pub fn share<'a>(&self, texts: impl Iterator<Item = &'a mut Arc<str>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for text in texts {
            match known.texts.get(&**text) {
                Some(same) => *text = Arc::clone(same),
                None => known.insert(text),
            }
        }
    }
}

impl Known {
    fn insert(&mut self, text: &Arc<str>) {
        let Self { new, left, .. } = self;
        if new.count >= left.count.max(FEW) || new.bytes >= left.bytes.max(FEW_BYTES) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            let bytes = self.texts.iter().map(|text| text.len()).sum();
            (self.new, self.left) = (Amount::default(), Amount { count: self.texts.len(), bytes });
        }
        self.texts.insert(Arc::clone(text));
        self.new.count += 1;
        self.new.bytes += text.len();
    }
}

impl JsonText {
    /// The canonical text of a value, in chunks where it is large.
    pub fn of(value: &Value) -> Self {
        let weight = weigh(value);
        if weight < 2 * LEAST_CHUNK {
            return canonical_json(value).into();
        }
        let mut chunks =
            Chunks { least: (weight / MOST_CHUNKS).max(LEAST_CHUNK), done: Vec::new(), open: String::new() };
        chunks.add(value);
        chunks.end();
        Self::from_chunks(chunks.done)
    }

    /// The text that these chunks make.
    pub fn from_chunks(mut chunks: Vec<Arc<str>>) -> Self {
        match chunks.len() {
            1 => Self(Held::Whole(chunks.remove(0))),
            _ => Self(Held::Chunks(chunks.into())),
        }
    }

    /// Its chunks, in order.
    pub fn chunks(&self) -> &[Arc<str>] {
        match &self.0 {
            Held::Whole(text) => slice::from_ref(text),
            Held::Chunks(chunks) => chunks,
        }
    }

    /// The chunks, to be replaced by equal ones that are shared.
    pub fn chunks_mut(&mut self) -> &mut [Arc<str>] {
        match &mut self.0 {
            Held::Whole(text) => slice::from_mut(text),
            Held::Chunks(chunks) => Arc::make_mut(chunks),
        }
    }

    /// The whole text.
    pub fn as_text(&self) -> Cow<'_, str> {
        match &self.0 {
            Held::Whole(text) => Cow::Borrowed(text),
            Held::Chunks(chunks) => Cow::Owned(chunks.concat()),
        }
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.len()).sum()
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&Arc<str>, &Arc<str>)| Arc::ptr_eq(one, other) || one == other;
        let (own, others) = (self.chunks(), other.chunks());
        (own.len() == others.len() && own.iter().zip(others).all(is_same))
            || (self.bytes() == other.bytes() && self.as_text() == other.as_text())
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
        fmt::Debug::fmt(&*self.as_text(), f)
    }
}

impl From<&str> for JsonText {
    fn from(text: &str) -> Self {
        Self(Held::Whole(text.into()))
    }
}

impl From<String> for JsonText {
    fn from(text: String) -> Self {
        Self(Held::Whole(text.into()))
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.as_text())
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// Bytes that a value takes as JSON, about: escapes of texts are not counted.
pub(crate) fn weigh(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| weigh(item) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(key, value)| key.len() + 4 + weigh(value)).sum::<usize>(),
    }
}

/// A canonical text that is put into chunks.
struct Chunks {
    /// The fewest bytes of a chunk.
    least: usize,
    done: Vec<Arc<str>>,
    open: String,
}

impl Chunks {
    /// Adds a value. A large entry of a map or list is in chunks of its own; small ones stand together up to one that ends a chunk.
    fn add(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                let members = in_order(map.iter().collect()).into_iter();
                self.add_entries(['{', '}'], members.map(|(key, value)| (Some(key.as_str()), value)));
            }
            Value::Array(items) => self.add_entries(['[', ']'], items.iter().map(|item| (None, item))),
            value => write_canonical(&mut self.open, value),
        }
    }

    fn add_entries<'a>(
        &mut self,
        [open, close]: [char; 2],
        entries: impl Iterator<Item = (Option<&'a str>, &'a Value)>,
    ) {
        self.open.push(open);
        for (at, (key, value)) in entries.enumerate() {
            let is_large = weigh(value) >= self.least;
            if is_large {
                self.end();
            }
            // Before the entry, so that one more at the end changes no chunk before it.
            if at > 0 {
                self.open.push(',');
            }
            let begin = self.open.len();
            if let Some(key) = key {
                write_key(&mut self.open, key);
            }
            if is_large {
                self.add(value);
                self.end();
                continue;
            }
            write_canonical(&mut self.open, value);
            let ends = sha256(&self.open.as_bytes()[begin..])[0] < 32;
            if self.open.len() >= self.least && (ends || self.open.len() >= 4 * self.least) {
                self.end();
            }
        }
        self.open.push(close);
    }

    /// Ends the open chunk; one that holds nothing is none.
    fn end(&mut self) {
        if !self.open.is_empty() {
            self.done.push(std::mem::take(&mut self.open).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn x03_f07_a_text_that_many_have_is_held_once_and_one_that_nobody_has_is_forgotten() {
        let texts = SharedTexts::default();
        let clone = texts.clone();
        let mut one: Arc<str> = "condition is false: labels.tier == 'gold'".into();
        let mut other: Arc<str> = one.to_string().into();
        texts.share([&mut one].into_iter());
        clone.share([&mut other].into_iter());
        assert!(Arc::ptr_eq(&one, &other));
        for number in 0..100_000_u32 {
            texts.share([&mut Arc::from(number.to_string())].into_iter());
        }
        let held = |texts: &SharedTexts| {
            let known = texts.0.lock().unwrap();
            assert!(known.texts.contains(&*one));
            (known.texts.len(), known.texts.iter().map(|text| text.len()).sum::<usize>())
        };
        assert!(held(&texts).0 <= 2 * FEW, "{:?}", held(&texts));
        for number in 0..400 {
            texts.share([&mut Arc::from(format!("{number:0>60000}"))].into_iter());
        }
        assert!(held(&texts).1 <= FEW_BYTES + 200_000, "24 MB of a few large ones: {:?}", held(&texts));
    }

    /// Values with so many entries of so many bytes each, in maps and lists of several depths.
    fn large() -> Vec<Value> {
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
    fn a_text_in_chunks_is_the_canonical_text_of_its_value() {
        let odd = json!({"\u{e000}": 1, "\u{10000}": [], "": {}, "\"": [null, true, 1.5, {"b": [1, 2], "a": "\n"}]});
        for value in large().into_iter().chain([odd, json!(null), json!("x"), json!([])]) {
            let text = JsonText::of(&value);
            assert_eq!(*text.as_text(), canonical_json(&value));
            assert_eq!(text.to_string(), canonical_json(&value));
            assert_eq!(text.bytes(), canonical_json(&value).len());
            assert!(text.chunks().len() <= 4 * MOST_CHUNKS + 6, "{}", text.chunks().len());
            assert_eq!(text, JsonText::from(canonical_json(&value)), "however it is held");
            let read: JsonText = serde_json::from_str(&serde_json::to_string(&text).unwrap()).unwrap();
            assert_eq!(read, text);
        }
        assert_ne!(JsonText::from("[1]"), JsonText::from("[2]"));
    }

    #[test]
    fn x03_f07_texts_that_differ_in_one_entry_share_all_chunks_but_few() {
        for value in large() {
            let with = |key: &str, text: &str| {
                let mut other = value.clone();
                match &mut other {
                    Value::Object(map) => drop(map.insert(key.to_owned(), text.into())),
                    Value::Array(items) => items.insert(items.len() / 2, json!([key, text])),
                    _ => unreachable!("the values are maps and lists"),
                }
                JsonText::of(&other)
            };
            for key in ["a", "k0007own", "zz"] {
                let (one, other) = (with(key, "one"), with(key, "another"));
                let known: BTreeSet<&str> = one.chunks().iter().map(|chunk| &**chunk).collect();
                let new: usize =
                    other.chunks().iter().filter(|chunk| !known.contains(&***chunk)).map(|one| one.len()).sum();
                assert!(new > 0 && new <= 12 * LEAST_CHUNK, "{key}: {new} bytes for one entry that differs");
            }
        }
    }
}
