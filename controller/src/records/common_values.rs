//! The values that the released task sets of many nodes have in common. They are stored once, and are in memory once.
//!
//! A group determines most inputs and tags of its nodes, and most reasons why tasks are left out. If the record of each
//! node contained all of these, one write to a group of a thousand nodes would be stored a thousand times. So the
//! record of a node contains only the values that are specific to the node, and refers to the record of the common
//! values.
//!
//! The common values are stored in parts (content-defined chunks), each under its hash. A cluster may set many values,
//! and each of its groups only a few. Then the groups share all parts but one. The keys decide where a part ends, and
//! the values hardly affect this. So a value that differs changes only the part that contains it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use stemma_core::shared_text::{JsonText, SharedTexts};
use stemma_wire::message::desired::{InputValue, TaskSet};
use stemma_wire::message::{Hash, hash_content};

use super::chunks::{self, ChunksByHash, StoredTexts};
use super::codec::{self, BadRecord};

/// Minimum size of the common values to which a task set refers, in bytes. Smaller values are stored in the node's
/// record, because a reference would save too little.
const MIN_COMMON_BYTES: usize = 1024;
/// Maximum total size of the common values of one record, in bytes: twice the maximum size of a desired state.
const MAX_COMMON_BYTES: usize = 512 * 1024;
/// Maximum total size of the encoded parts of common values and of the chunks of their texts, in bytes. This limit is
/// needed because some characters take several bytes when encoded. If the store refused the record of common values, no
/// node that refers to it could get its task set.
const MAX_RECORDS_BYTES: usize = 1024 * 1024;
/// Number of parts into which common values are split if the parts are about equally large. There can be up to four
/// times as many parts, because a part can be smaller. One commit must be able to store all of them.
const TARGET_PARTS: usize = 24;

/// Maximum size of an entry (an input, a reason or a tag) without its texts, in bytes, as it is sent to a host. This
/// covers the lengths of the texts, the variant of an input, and the version of a secret.
const SENT_ENTRY_BYTES: usize = 32;

/// Inputs, reasons and tags that the task sets of many nodes have in common. This type collects the values. It is also
/// the stored form of one part of the values, and of the list of parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommonValues {
    /// The values of inputs, by the text of the input's reference.
    pub inputs: BTreeMap<String, InputValue>,
    /// The reasons why tasks are left out, by task id.
    pub left_out: BTreeMap<String, Arc<str>>,
    /// The effective tags of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The tags of which the nodes are the primary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub primaries: Vec<String>,
    /// The hashes of the records of the parts, if this is the list of parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Hash>,
    /// The texts of inputs that are stored in chunks. Empty except in a stored record.
    #[serde(default, skip_serializing_if = "StoredTexts::is_empty")]
    pub texts: StoredTexts,
}

/// A part of common values in memory. All lists that contain the part share it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ValuePart {
    inputs: Box<[(Box<str>, InputValue)]>,
    left_out: Box<[(Box<str>, Arc<str>)]>,
    tags: Box<[String]>,
    primaries: Box<[String]>,
}

/// A list of common values in memory: all parts, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueList {
    /// The hashes of the records of the parts. Empty for values from a record of an older version, which has no parts.
    pub part_hashes: Vec<Hash>,
    parts: Vec<Arc<ValuePart>>,
}

/// Common values in their stored form, with the hash of their record.
#[derive(Debug)]
pub struct NamedValues {
    /// The hash of `record`.
    pub hash: Hash,
    /// The record that lists the hashes of the parts.
    pub record: Bytes,
    /// The records of the parts, in the order of their hashes in `record`.
    pub parts: Vec<Bytes>,
    /// The chunks of texts to which the parts refer.
    pub chunks: ChunksByHash,
    /// The values of all parts.
    pub values: Arc<ValueList>,
}

/// A task set's reference to common values, with the subset of their entries that the task set uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommonValuesRef {
    /// The hash of the record of the common values.
    pub values: Hash,
    inputs: KeyBitmap,
    left_out: KeyBitmap,
    /// True if the task set uses the common tags.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    tags: bool,
}

/// A subset of the keys of a map, with one bit for each key, in key order. A hexadecimal digit has four bits, the
/// lowest bit first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeyBitmap(Box<str>);

impl CommonValues {
    /// Adds the value of an input, if the total size stays within the limit. `bytes` is the total size so far.
    pub fn add_input(&mut self, bytes: &mut usize, reference: String, value: InputValue) {
        if reserve(bytes, entry_bytes(&reference, text_len(&value))) {
            self.inputs.insert(reference, value);
        }
    }

    /// Adds the reason why a task is left out, if the total size stays within the limit. `bytes` is the total size so
    /// far.
    pub fn add_left_out(&mut self, bytes: &mut usize, task: &str, reason: Arc<str>) {
        if reserve(bytes, entry_bytes(task, reason.len())) {
            self.left_out.insert(task.to_owned(), reason);
        }
    }

    /// Adds tags, if the total size stays within the limit. `primaries` are the tags whose primary the nodes are.
    /// `bytes` is the total size so far.
    pub fn add_tags(&mut self, bytes: &mut usize, tags: Vec<String>, primaries: Vec<String>) {
        if reserve(bytes, tags_bytes(&tags, &primaries)) {
            (self.tags, self.primaries) = (tags, primaries);
        }
    }

    /// Encodes the values for the store, in parts. If the encoded values are too large, returns the encoding of empty
    /// values. Each node then stores its values in its own record.
    pub fn into_named(self) -> NamedValues {
        let mut chunks = ChunksByHash::new();
        let parts = self.into_parts();
        let encode_part = |part: &Self| {
            let mut part = part.clone();
            part.texts = chunks::extract_texts(&mut part.inputs, &mut chunks);
            codec::encode(&part)
        };
        let records: Vec<Bytes> = parts.iter().map(encode_part).collect();
        let total_bytes = records.iter().map(Bytes::len).chain(chunks.values().map(|chunk| chunk.len())).sum::<usize>();
        if total_bytes > MAX_RECORDS_BYTES {
            return Self::default().into_named();
        }
        let part_hashes: Vec<Hash> = records.iter().map(|part| hash_content(part)).collect();
        let record = codec::encode(&Self { parts: part_hashes.clone(), ..Self::default() });
        let value_parts = parts.into_iter().map(|part| Arc::new(part.into_part())).collect();
        let values = Arc::new(ValueList { part_hashes, parts: value_parts });
        NamedValues { hash: hash_content(&record), record, parts: records, chunks, values }
    }

    /// Splits the values into parts. A large value is a part of its own. Other values are collected until the part is
    /// large enough and a key is a boundary ([`is_part_boundary`]), or until the part is very large. The tags are the
    /// last part.
    fn into_parts(self) -> Vec<Self> {
        let Self { inputs, left_out, tags, primaries, .. } = self;
        let input_sizes = inputs.iter().map(|(key, value)| entry_bytes(key, text_len(value)));
        let total: usize = input_sizes.chain(left_out.iter().map(|(key, reason)| entry_bytes(key, reason.len()))).sum();
        // A power of two, so that parts usually end at the same keys if the total size differs a little.
        let mut parts = PartBuilder { min_bytes: 1 << (total / TARGET_PARTS).max(1).ilog2(), ..PartBuilder::default() };
        for (key, value) in inputs {
            parts.add(&key, entry_bytes(&key, text_len(&value)), |part| &mut part.inputs, value);
        }
        for (key, reason) in left_out {
            parts.add(&key, entry_bytes(&key, reason.len()), |part| &mut part.left_out, reason);
        }
        parts.finish_part();
        if !(tags.is_empty() && primaries.is_empty()) {
            parts.finished.push(Self { tags, primaries, ..Self::default() });
        }
        parts.finished
    }

    /// Converts the record of a part to its form in memory, including the texts that are stored in chunks. `find_chunk`
    /// returns a stored chunk by its hash. Equal texts share one allocation through `texts`.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`] if a chunk is not stored.
    pub fn resolve_part(
        mut self,
        find_chunk: impl Fn(&Hash) -> Option<Arc<str>>,
        texts: &SharedTexts,
    ) -> Result<ValuePart, BadRecord> {
        chunks::restore_texts(&mut self.inputs, std::mem::take(&mut self.texts), find_chunk)?;
        texts.intern_all(self.left_out.values_mut().chain(self.inputs.values_mut().flat_map(InputValue::chunks_mut)));
        Ok(self.into_part())
    }

    /// Converts the record of a list to its form in memory, with its parts. `find_part` returns a part by its hash.
    /// Older versions wrote a record without parts, which contained the values itself. Such values become one part.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`] if a part is not stored.
    pub fn resolve_list(mut self, find_part: impl Fn(&Hash) -> Option<Arc<ValuePart>>) -> Result<ValueList, BadRecord> {
        let part_hashes = std::mem::take(&mut self.parts);
        let listed_parts = part_hashes.iter().map(|name| {
            find_part(name).ok_or_else(|| {
                let error = format!("the part {name} of the values is not stored");
                BadRecord::Damaged(serde_json::Error::custom(error))
            })
        });
        let own_part = (self != Self::default()).then(|| Ok(Arc::new(self.into_part())));
        let parts = own_part.into_iter().chain(listed_parts).collect::<Result<_, _>>()?;
        Ok(ValueList { part_hashes, parts })
    }

    /// Converts values to the form of a part in memory.
    fn into_part(self) -> ValuePart {
        ValuePart {
            inputs: self.inputs.into_iter().map(|(key, value)| (key.into(), value)).collect(),
            left_out: self.left_out.into_iter().map(|(key, reason)| (key.into(), reason)).collect(),
            tags: self.tags.into(),
            primaries: self.primaries.into(),
        }
    }
}

impl ValuePart {
    /// Returns the texts of the inputs.
    pub fn texts(&self) -> impl Iterator<Item = &JsonText> {
        self.inputs.iter().filter_map(|(_, value)| value.text())
    }
}

impl ValueList {
    /// Calls `share` for each part with its hash. `share` may replace the part with an equal part that other lists use.
    pub fn intern_parts(&mut self, mut share: impl FnMut(&Hash, &mut Arc<ValuePart>)) {
        self.part_hashes.iter().zip(&mut self.parts).for_each(|(name, part)| share(name, part));
    }

    /// Returns the value of an input, by the text of the input's reference.
    pub fn input(&self, reference: &str) -> Option<&InputValue> {
        // The keys of the inputs ascend over all parts. Parts without inputs are the last ones.
        let part_index = self.parts.partition_point(|part| part.inputs.last().is_some_and(|(last, _)| **last < *reference));
        let inputs = &self.parts.get(part_index)?.inputs;
        Some(&inputs[position(inputs, reference)?].1)
    }

    fn inputs(&self) -> impl Iterator<Item = &(Box<str>, InputValue)> {
        self.parts.iter().flat_map(|part| &part.inputs)
    }

    fn left_out(&self) -> impl Iterator<Item = &(Box<str>, Arc<str>)> {
        self.parts.iter().flat_map(|part| &part.left_out)
    }

    fn tags(&self) -> (&[String], &[String]) {
        let has_tags = |part: &&Arc<ValuePart>| !(part.tags.is_empty() && part.primaries.is_empty());
        self.parts.iter().find(has_tags).map_or((&[], &[]), |part| (&*part.tags, &*part.primaries))
    }

    /// Returns the index of a task among the tasks that are left out, in all parts together.
    fn left_out_index(&self, task: &str) -> Option<usize> {
        let mut earlier_count = 0;
        for part in &self.parts {
            match part.left_out.last() {
                // The ids ascend over all parts, so no later part can have the task.
                Some((last, _)) if **last >= *task => return Some(earlier_count + position(&part.left_out, task)?),
                _ => earlier_count += part.left_out.len(),
            }
        }
        None
    }
}

/// A builder that splits common values into parts.
#[derive(Default)]
struct PartBuilder {
    /// Minimum size of a part, in bytes. A part before a large value may be smaller, and so may the last part.
    min_bytes: usize,
    finished: Vec<CommonValues>,
    current: CommonValues,
    /// The size of the current part, in bytes.
    bytes: usize,
}

impl PartBuilder {
    /// Adds a value to the current part. Ends the part if it has the minimum size and the key is a boundary, or if it
    /// has four times the minimum size. A value of at least the minimum size becomes a part of its own. `size` is the
    /// approximate size of the value, and `field` selects its map.
    fn add<V>(&mut self, key: &str, size: usize, field: impl FnOnce(&mut CommonValues) -> &mut BTreeMap<String, V>, value: V) {
        let is_large = size >= self.min_bytes;
        if is_large {
            self.finish_part();
        }
        field(&mut self.current).insert(key.to_owned(), value);
        self.bytes += size;
        if is_large || (self.bytes >= self.min_bytes && (is_part_boundary(key) || self.bytes >= 4 * self.min_bytes)) {
            self.finish_part();
        }
    }

    /// Ends the current part, unless the part is empty.
    fn finish_part(&mut self) {
        if self.bytes > 0 {
            self.finished.push(std::mem::take(&mut self.current));
            self.bytes = 0;
        }
    }
}

/// Returns whether a part may end with this key. The hash of the key decides this: about one key in eight is a
/// boundary. So parts end at the same keys, whatever the values are.
fn is_part_boundary(key: &str) -> bool {
    hash_content(key.as_bytes()).0[0] < 32
}

impl CommonValuesRef {
    /// Removes from a task set the entries that the common values also have. Returns a reference to these common
    /// values, whose hash is `hash`. If the entries are too small for a reference, removes nothing and returns `None`.
    pub(super) fn extract(task_set: &mut TaskSet, hash: Hash, values: &ValueList) -> Option<Self> {
        let (inputs, input_bytes) = common_entries(&task_set.inputs, values.inputs(), text_len);
        let (left_out, left_out_bytes) = common_entries(&task_set.left_out, values.left_out(), |reason| reason.len());
        // True if the task set has exactly the common tags. Other tags stay in the task set as a whole.
        let tags = values.tags() == (&*task_set.tags, &*task_set.primaries);
        let tag_bytes = if tags { tags_bytes(&task_set.tags, &task_set.primaries) } else { 0 };
        if input_bytes + left_out_bytes + tag_bytes < MIN_COMMON_BYTES {
            return None;
        }
        remove_entries(&mut task_set.inputs, values.inputs(), &inputs);
        remove_entries(&mut task_set.left_out, values.left_out(), &left_out);
        if tags {
            task_set.tags.clear();
            task_set.primaries.clear();
        }
        Some(Self { values: hash, inputs: KeyBitmap::from_bits(&inputs), left_out: KeyBitmap::from_bits(&left_out), tags })
    }

    /// Checks that `values` can be the values to which this reference refers.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`] if a bitmap of the reference is invalid, or does not fit the number of keys in `values`.
    pub(super) fn check_values(&self, values: &ValueList) -> Result<(), BadRecord> {
        let has_right_length = self.inputs.has_len(values.inputs().count()) && self.left_out.has_len(values.left_out().count());
        if has_right_length { Ok(()) } else { Err(self.damaged_record("are others")) }
    }

    /// Builds the error for a reference whose values cannot be used. `problem` is the predicate of the message, such as
    /// `are not stored`.
    pub(super) fn damaged_record(&self, problem: &str) -> BadRecord {
        let error = format!("the values {} that the task set refers to {problem}", self.values);
        BadRecord::Damaged(serde_json::Error::custom(error))
    }

    /// Inserts into a task set the entries that [`CommonValuesRef::extract`] removed from it.
    pub(super) fn restore(&self, task_set: &mut TaskSet, values: &ValueList) {
        restore_entries(&mut task_set.inputs, values.inputs(), &self.inputs);
        restore_entries(&mut task_set.left_out, values.left_out(), &self.left_out);
        if self.tags {
            let (tags, primaries) = values.tags();
            (task_set.tags, task_set.primaries) = (tags.to_vec(), primaries.to_vec());
        }
    }

    /// Returns an upper bound of the size of the referenced entries as they are sent, in bytes.
    pub(super) fn max_sent_bytes(&self, values: &ValueList) -> usize {
        let inputs = values.inputs().enumerate().filter(|(index, _)| self.inputs.contains(*index));
        let left_out = values.left_out().enumerate().filter(|(index, _)| self.left_out.contains(*index));
        let (tags, primaries) = if self.tags { values.tags() } else { (&[][..], &[][..]) };
        inputs.map(|(_, (key, value))| SENT_ENTRY_BYTES + key.len() + sent_len(value)).sum::<usize>()
            + left_out.map(|(_, (key, reason))| SENT_ENTRY_BYTES + key.len() + reason.len()).sum::<usize>()
            + tags.iter().chain(primaries).map(|tag| SENT_ENTRY_BYTES + tag.len()).sum::<usize>()
    }

    /// Returns whether the referenced entries contain a reason why this task is left out.
    pub(super) fn is_left_out(&self, task: &str, values: &ValueList) -> bool {
        values.left_out_index(task).is_some_and(|index| self.left_out.contains(index))
    }
}

impl KeyBitmap {
    /// Encodes a subset. `bits` has one value for each key: whether the key is in the subset.
    fn from_bits(bits: &[bool]) -> Self {
        // The first bit is the lowest one of its digit, so the bits are read from the last to the first.
        let digit = |four_bits: &[bool]| four_bits.iter().rev().fold(0, |digit, bit| digit * 2 + u32::from(*bit));
        let digits = bits.chunks(4).map(|four_bits| char::from_digit(digit(four_bits), 16).expect("four bits are a digit"));
        Self(digits.collect::<String>().into())
    }

    /// Returns whether the bitmap is valid and has the right length for `count` keys.
    fn has_len(&self, count: usize) -> bool {
        self.0.len() == count.div_ceil(4) && self.0.bytes().all(|digit| digit.is_ascii_hexdigit())
    }

    /// Returns whether the key at this index is in the subset.
    fn contains(&self, index: usize) -> bool {
        let digit = self.0.as_bytes().get(index / 4).and_then(|digit| char::from(*digit).to_digit(16));
        digit.is_some_and(|digit| digit >> (index % 4) & 1 == 1)
    }
}

/// Adds `added_bytes` to the size of the collected values, unless the sum would exceed [`MAX_COMMON_BYTES`]. Returns
/// whether the size was added.
fn reserve(bytes: &mut usize, added_bytes: usize) -> bool {
    let has_room = *bytes + added_bytes <= MAX_COMMON_BYTES;
    if has_room {
        *bytes += added_bytes;
    }
    has_room
}

/// Returns the approximate size of an entry in a record, in bytes. `text_bytes` is the size of the entry's value.
const fn entry_bytes(key: &str, text_bytes: usize) -> usize {
    key.len() + text_bytes + 16
}

/// Returns the approximate size of tags in a record, in bytes.
fn tags_bytes(tags: &[String], primaries: &[String]) -> usize {
    tags.iter().chain(primaries).map(|tag| tag.len() + 3).sum()
}

/// Returns the length of an input's text, in bytes. Returns 0 for an input without a text.
fn text_len(value: &InputValue) -> usize {
    value.text().map_or(0, JsonText::size_bytes)
}

/// Returns the approximate size of an input as it is sent, in bytes. The size does not include lengths and numbers.
fn sent_len(value: &InputValue) -> usize {
    match value {
        InputValue::Json(text) => text.size_bytes(),
        InputValue::Absent => 0,
        InputValue::Secret { name, .. } => name.len(),
    }
}

/// Returns the index of a key in entries that are sorted by key.
fn position<V>(entries: &[(Box<str>, V)], key: &str) -> Option<usize> {
    entries.binary_search_by(|(other, _)| (**other).cmp(key)).ok()
}

/// Returns for each common entry whether `map` has the same key with an equal value. Also returns the approximate total
/// size of the equal entries, in bytes. `value_bytes` returns the size of a value.
fn common_entries<'v, V: PartialEq + 'v>(
    map: &BTreeMap<String, V>,
    common: impl Iterator<Item = &'v (Box<str>, V)>,
    value_bytes: impl Fn(&V) -> usize,
) -> (Vec<bool>, usize) {
    let mut bytes = 0;
    let compare = |(key, value): &'v (Box<str>, V)| {
        let is_equal = map.get(&**key) == Some(value);
        bytes += if is_equal { entry_bytes(key, value_bytes(value)) } else { 0 };
        is_equal
    };
    (common.map(compare).collect(), bytes)
}

/// Removes from a map the common entries whose mark is true. `marks` has one mark for each common entry.
fn remove_entries<'v, V: 'v>(map: &mut BTreeMap<String, V>, common: impl Iterator<Item = &'v (Box<str>, V)>, marks: &[bool]) {
    for ((key, _), _) in common.zip(marks).filter(|(_, is_marked)| **is_marked) {
        map.remove(&**key);
    }
}

/// Adds to a map the common entries of a subset. `subset` has one bit for each common entry.
fn restore_entries<'v, V: Clone + 'v>(
    map: &mut BTreeMap<String, V>,
    common: impl Iterator<Item = &'v (Box<str>, V)>,
    subset: &KeyBitmap,
) {
    let entries = common.enumerate().filter(|(index, _)| subset.contains(*index));
    map.extend(entries.map(|(_, (key, value))| (String::from(&**key), value.clone())));
}

#[cfg(test)]
mod tests {
    use stemma_core::object::Timestamp;

    use super::*;
    use crate::records::reported::ReleasedRecord;

    fn value(text: &str) -> InputValue {
        InputValue::Json(format!("\"{text}\"").into())
    }

    /// Returns a record with `own_text` as an input and as a reason. The other inputs and reasons are always the same.
    fn record(own_text: &str) -> ReleasedRecord {
        let large = "x".repeat(400);
        let group_inputs = (0..9).map(|index| (format!("labels.g{index}"), value(&large)));
        let inputs =
            group_inputs.chain([("labels.host".to_owned(), value(own_text)), ("labels.none".to_owned(), InputValue::Absent)]);
        let left_out = BTreeMap::from([("a".to_owned(), "condition is false: x".into()), ("b".to_owned(), own_text.into())]);
        let task_set = TaskSet { inputs: inputs.collect(), left_out, ..TaskSet::default() };
        ReleasedRecord::new(7, Timestamp(8), task_set, Some("site@1".to_owned()))
    }

    fn common(record: &ReleasedRecord) -> NamedValues {
        let TaskSet { inputs, left_out, .. } = record.task_set().into_owned();
        CommonValues { inputs, left_out, ..CommonValues::default() }.into_named()
    }

    /// Decodes the values from their records.
    fn read_back(stored: &NamedValues) -> Arc<ValueList> {
        let part = |record: &Bytes| {
            let part: CommonValues = codec::decode(record).unwrap();
            Arc::new(part.resolve_part(|hash| stored.chunks.get(hash).cloned(), &SharedTexts::default()).unwrap())
        };
        let parts: BTreeMap<Hash, Arc<ValuePart>> =
            stored.parts.iter().map(|record| (hash_content(record), part(record))).collect();
        let record: CommonValues = codec::decode(&stored.record).unwrap();
        assert!(record.inputs.is_empty() && record.left_out.is_empty());
        assert!(record.clone().resolve_list(|_| None).is_err() || record.parts.is_empty(), "the parts are missing");
        Arc::new(record.resolve_list(|name| parts.get(name).cloned()).unwrap())
    }

    /// Decodes a stored record into its form in memory.
    fn read_record(stored: &Bytes, values: impl FnOnce(&Hash) -> Option<Arc<ValueList>>) -> Result<ReleasedRecord, BadRecord> {
        codec::decode::<ReleasedRecord>(stored).unwrap().resolve(values, |_| None, &SharedTexts::default())
    }

    #[test]
    fn x03_common_values_share_most_parts_when_values_differ_slightly() {
        for (count, bytes, max_new_bytes) in [(15, 4_000, 1_024), (600, 100, 8_192), (60, 1_000, 8_192), (3_000, 20, 8_192)] {
            let values_with = |own_text: &str| {
                let mut values = CommonValues::default();
                let text = "x".repeat(bytes);
                values.inputs = (0..count).map(|index| (format!("labels.a{index}"), value(&text))).collect();
                values.inputs.insert("labels.a1own".to_owned(), value(own_text));
                values.into_named()
            };
            let (first, second) = (values_with("one"), values_with("three"));
            assert!(first.parts.len() <= 4 * TARGET_PARTS, "{}", first.parts.len());
            assert!(first.record.len() < 16 * 1024, "{}", first.record.len());
            let new_bytes: usize = second.parts.iter().filter(|part| !first.parts.contains(part)).map(Bytes::len).sum();
            assert!(
                new_bytes > 0 && new_bytes <= max_new_bytes,
                "{count} values of {bytes} bytes: {new_bytes} bytes of new parts for one other value"
            );
            assert_eq!((read_back(&first), read_back(&second)), (first.values, second.values));
        }
    }

    /// In this test, the common values are those of the first record. The second record stores only what is not common:
    /// it lacks `labels.g4`, and has other values for `labels.host` and for the reason of task `b`.
    #[test]
    fn x03_released_record_round_trips_with_own_values_only() {
        let (first, second) = (record("one"), record("two"));
        let mut task_set = second.task_set().into_owned();
        task_set.inputs.remove("labels.g4");
        let second = ReleasedRecord::new(7, Timestamp(8), task_set.clone(), second.release);
        let common = common(&first);
        let full_record = second.encode().0;
        let stripped = second.without_common(common.hash, &common.values);
        let stored = stripped.encode().0;
        assert!(stored.len() < 500 && full_record.len() > 3_200, "{}", stored.len());
        assert_eq!(stripped.base().inputs, BTreeMap::from([("labels.host".to_owned(), value("two"))]));
        let values = read_back(&common);
        assert_eq!(values, common.values);
        let decoded = read_record(&stored, |name| (*name == common.hash).then_some(Arc::clone(&values))).unwrap();
        assert_eq!(decoded, stripped);
        assert_eq!(*decoded.task_set(), task_set);
        let sent_bytes = postcard::experimental::serialized_size(&task_set).unwrap();
        assert!((sent_bytes..sent_bytes + 1024).contains(&decoded.max_sent_bytes()), "{sent_bytes}");
        assert_eq!(["a", "b", "c"].map(|task| decoded.runs_task(task)), ["a", "b", "c"].map(|task| task_set.runs_task(task)));
        assert_eq!((decoded.revision, decoded.at, decoded.release.as_deref()), (7, Timestamp(8), Some("site@1")));
        assert!(read_record(&stored, |_| None).is_err(), "the common values are not found");
        assert!(read_record(&stored, |_| Some(Arc::default())).is_err(), "the common values have another number of keys");
    }

    #[test]
    fn x03_f07_common_tags_are_restored_in_order() {
        // The numbers are not ascending, so that sorted tags would differ.
        let tags: Vec<String> = (0..100).map(|index| format!("tag-{}-{}", index * 7 % 100, "x".repeat(50))).collect();
        for primaries in [Vec::new(), vec![tags[3].clone()]] {
            let task_set = TaskSet { tags: tags.clone(), primaries: primaries.clone(), ..TaskSet::default() };
            let record = ReleasedRecord::new(1, Timestamp(2), task_set.clone(), None);
            let mut values = CommonValues::default();
            values.add_tags(&mut 0, tags.clone(), primaries);
            let common = values.into_named();
            let stored = record.without_common(common.hash, &common.values).encode().0;
            assert!(stored.len() < 500, "{}", stored.len());
            let values = read_back(&common);
            assert_eq!(*read_record(&stored, |_| Some(values)).unwrap().task_set(), task_set);
            let other = TaskSet { tags: tags[1..].to_vec(), ..task_set };
            let other = ReleasedRecord::new(1, Timestamp(2), other, None).without_common(common.hash, &common.values);
            assert_eq!((other.taken.is_some(), other.base().tags.len()), (false, 99), "other tags are not common");
        }
    }

    /// An older version stored the common values in one record without parts.
    #[test]
    fn value_list_is_read_when_record_has_no_parts() {
        let first = record("one");
        let TaskSet { inputs, left_out, .. } = first.task_set().into_owned();
        let earlier = codec::encode(&CommonValues { inputs, left_out, ..CommonValues::default() });
        let list = codec::decode::<CommonValues>(&earlier).unwrap().resolve_list(|_| None).unwrap();
        assert!(list.part_hashes.is_empty());
        let stripped = first.clone().without_common(hash_content(&earlier), &Arc::new(list));
        assert!(stripped.taken.is_some() && stripped.base().inputs.is_empty());
        assert_eq!(stripped.task_set(), first.task_set());
    }

    #[test]
    fn released_record_keeps_older_form_when_values_are_few() {
        let small = ReleasedRecord::new(7, Timestamp(8), TaskSet::default(), None);
        let common = common(&record("one"));
        assert_eq!(small.clone().without_common(common.hash, &common.values), small);
        let text = small.encode().0;
        // `taken` is the field of the reference to common values, which older programs do not know.
        assert!(!text.windows(5).any(|part| part == b"taken"), "{text:?}");
        assert_eq!(read_record(&text, |_| None).unwrap(), small);
    }

    #[test]
    fn common_values_are_limited_in_bytes() {
        let (mut values, mut bytes) = (CommonValues::default(), 0);
        for index in 0..1_000 {
            values.add_input(&mut bytes, format!("labels.{index}"), value(&"x".repeat(4_000)));
            values.add_left_out(&mut bytes, &format!("t{index}"), "x".repeat(4_000).into());
        }
        let bytes: usize = values.into_named().parts.iter().map(Bytes::len).sum();
        assert!((480 * 1024..600 * 1024).contains(&bytes), "{bytes}");
        // Each quotation mark needs four bytes in the record, because it is escaped twice.
        let quotes = InputValue::Json(serde_json::to_string(&"\"".repeat(150_000)).unwrap().into());
        let mut values = CommonValues::default();
        values.add_input(&mut 0, "labels.small".to_owned(), value("x"));
        values.add_input(&mut 0, "labels.quotes".to_owned(), quotes.clone());
        let encoded = values.clone().into_named();
        assert!(values.inputs.iter().all(|(key, value)| encoded.values.input(key) == Some(value)), "600 kB are within the limit");
        values.add_input(&mut 0, "labels.more".to_owned(), quotes);
        assert_eq!(*values.into_named().values, ValueList::default(), "about 1,200 kB exceed the limit, so no value is common");
    }

    #[test]
    fn key_bitmap_round_trips() {
        for count in 0..20 {
            let bits: Vec<bool> = (0..count).map(|index| index % 3 == 0).collect();
            let bitmap = KeyBitmap::from_bits(&bits);
            assert_eq!((0..count).map(|index| bitmap.contains(index)).collect::<Vec<_>>(), bits);
            // Four more keys would need one more digit.
            assert!(bitmap.has_len(count) && !bitmap.has_len(count + 4) && !bitmap.contains(count + 4));
        }
        // `g` is not a hexadecimal digit.
        assert!(!KeyBitmap("g".into()).has_len(4));
    }
}
