//! What the released task sets of many nodes have alike, stored once for all of them.
//!
//! A group says to each of its nodes what their tasks read. If the record of each node held all of it, one write to a group of a thousand nodes
//! would be stored a thousand times. So a record holds what its node alone has, and names the values from which it takes the rest.
//!
//! These values are stored in parts (content-defined chunks), each by its hash: where a cluster says much to its groups and each group a little,
//! they share all parts but one. Where a part ends follows from its own keys, so that a value which differs changes its own part alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use stemma_core::shared_text::JsonText;
use stemma_wire::message::desired::{InputValue, TaskSet};
use stemma_wire::message::{Hash, hash_content};

use super::chunks::{self, NamedChunks, StoredTexts};
use super::codec::{self, BadRecord};

/// The fewest bytes for which values stand apart: beside a record of its own, less is not worth it.
const LEAST_APART: usize = 1024;
/// The most bytes of values that are stored together: about what two of the largest task sets hold.
const MOST_TOGETHER: usize = 512 * 1024;
/// The most bytes of their records, in which some characters take several: what a store refuses would keep every node from its release.
const MOST_OF_RECORDS: usize = 1024 * 1024;
/// About how many parts there are at most, so that one commit takes them: where they are many, some are small, and there are up to four times
/// as many.
const MOST_PARTS: usize = 24;

/// Inputs and reasons that task sets of many nodes hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommonValues {
    /// The values of inputs, by the reference's text.
    pub inputs: BTreeMap<String, InputValue>,
    /// Why tasks are left out, by their id.
    pub left_out: BTreeMap<String, Arc<str>>,
    /// The records that hold more of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Hash>,
    /// Inputs whose texts are stored in chunks; none but in a record as it is stored.
    #[serde(default, skip_serializing_if = "StoredTexts::is_empty")]
    pub texts: StoredTexts,
}

/// Common values as they are stored, and under which name.
#[derive(Debug)]
pub struct NamedValues {
    /// The hash of the record.
    pub name: Hash,
    /// The record, which names the parts.
    pub record: Bytes,
    /// The records of the parts, in the order of their names in the record.
    pub parts: Vec<Bytes>,
    /// The chunks that these name.
    pub chunks: NamedChunks,
    /// What they hold together.
    pub values: CommonValues,
}

/// What a released task set takes from common values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenValues {
    /// The hash that names the values.
    pub values: Hash,
    inputs: PickedKeys,
    left_out: PickedKeys,
}

/// Some of the keys of a map: a bit for each, in their order, four in a hexadecimal digit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PickedKeys(String);

impl CommonValues {
    /// Takes in the value of an input, while there is room.
    pub fn add_input(&mut self, bytes: &mut usize, reference: String, value: InputValue) {
        if has_room(bytes, weight(&reference, text_len(&value))) {
            self.inputs.insert(reference, value);
        }
    }

    /// Takes in why a task is left out, while there is room.
    pub fn add_left_out(&mut self, bytes: &mut usize, task: &str, why: Arc<str>) {
        if has_room(bytes, weight(task, why.len())) {
            self.left_out.insert(task.to_owned(), why);
        }
    }

    /// The values as they are stored, in parts; none where they are too large for records.
    pub fn named(self) -> NamedValues {
        let mut chunks = NamedChunks::new();
        let stored = |mut part: Self| {
            part.texts = chunks::take_out(&mut part.inputs, &mut chunks);
            codec::encode(&part)
        };
        let parts: Vec<Bytes> = self.parted().into_iter().map(stored).collect();
        let bytes = parts.iter().map(Bytes::len).chain(chunks.values().map(|chunk| chunk.len())).sum::<usize>();
        if bytes > MOST_OF_RECORDS {
            return Self::default().named();
        }
        let names: Vec<Hash> = parts.iter().map(|part| hash_content(part)).collect();
        let record = codec::encode(&Self { parts: names.clone(), ..Self::default() });
        NamedValues { name: hash_content(&record), record, parts, chunks, values: Self { parts: names, ..self } }
    }

    /// The values in parts. A large value is one alone. Others stand together up to one whose key ends a part, whatever the values are.
    fn parted(&self) -> Vec<Self> {
        let of_inputs = self.inputs.iter().map(|(key, value)| weight(key, text_len(value)));
        let total: usize = of_inputs.chain(self.left_out.iter().map(|(key, why)| weight(key, why.len()))).sum();
        let mut parts = Parts { least: 1 << (total / MOST_PARTS).max(1).ilog2(), ..Parts::default() };
        for (key, value) in &self.inputs {
            let put = |part: &mut Self| drop(part.inputs.insert(key.clone(), value.clone()));
            parts.add(key, weight(key, text_len(value)), put);
        }
        for (key, why) in &self.left_out {
            parts.add(key, weight(key, why.len()), |part| drop(part.left_out.insert(key.clone(), Arc::clone(why))));
        }
        parts.end();
        parts.done
    }

    /// The values with the texts that are stored in chunks.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`]: a chunk is not stored.
    pub fn with_texts(mut self, chunk: impl Fn(&Hash) -> Option<Arc<str>>) -> Result<Self, BadRecord> {
        chunks::put_back(&mut self.inputs, std::mem::take(&mut self.texts), chunk)?;
        Ok(self)
    }

    /// The values with those of their parts.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`]: a part is not there.
    pub fn with_parts<'a>(mut self, part: impl Fn(&Hash) -> Option<&'a Self>) -> Result<Self, BadRecord> {
        for name in &self.parts {
            let Some(part) = part(name) else {
                let error = format!("the part {name} of the values is not stored");
                return Err(BadRecord::Damaged(serde_json::Error::custom(error)));
            };
            self.inputs.extend(part.inputs.iter().map(|(key, value)| (key.clone(), value.clone())));
            self.left_out.extend(part.left_out.iter().map(|(key, why)| (key.clone(), Arc::clone(why))));
        }
        Ok(self)
    }
}

/// Common values that are put into parts.
#[derive(Default)]
struct Parts {
    /// The fewest bytes of a part, but for those that a large value ends.
    least: usize,
    done: Vec<CommonValues>,
    open: CommonValues,
    /// What the open one takes.
    bytes: usize,
}

impl Parts {
    fn add(&mut self, key: &str, weight: usize, put: impl FnOnce(&mut CommonValues)) {
        let is_large = weight >= self.least;
        if is_large {
            self.end();
        }
        put(&mut self.open);
        self.bytes += weight;
        if is_large || (self.bytes >= self.least && (ends_part(key) || self.bytes >= 4 * self.least)) {
            self.end();
        }
    }

    /// Ends the open part; one that holds nothing is none.
    fn end(&mut self) {
        if self.bytes > 0 {
            self.done.push(std::mem::take(&mut self.open));
            self.bytes = 0;
        }
    }
}

/// Whether a part ends with the value of this key: that of one key in eight does.
fn ends_part(key: &str) -> bool {
    hash_content(key.as_bytes()).0[0] < 32
}

impl TakenValues {
    /// Takes out of a task set what stands in common values of this name; `None` where that is so little that they are not worth it: the task
    /// set is of no use then.
    pub(super) fn out_of(task_set: &mut TaskSet, name: Hash, values: &CommonValues) -> Option<Self> {
        let (inputs, of_inputs) = take_out(&mut task_set.inputs, &values.inputs, text_len);
        let (left_out, of_left_out) = take_out(&mut task_set.left_out, &values.left_out, |why| why.len());
        (of_inputs + of_left_out >= LEAST_APART).then_some(Self { values: name, inputs, left_out })
    }

    /// Puts back into a task set what was taken out of it.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`]: the values are not there, or are others.
    pub(super) fn put_back(&self, task_set: &mut TaskSet, values: Option<&CommonValues>) -> Result<(), BadRecord> {
        let damaged = |what: &str| {
            let error = format!("the values {} that the task set names {what}", self.values);
            BadRecord::Damaged(serde_json::Error::custom(error))
        };
        let values = values.ok_or_else(|| damaged("are not stored"))?;
        let is_put = put_back(&mut task_set.inputs, &values.inputs, &self.inputs)
            && put_back(&mut task_set.left_out, &values.left_out, &self.left_out);
        if is_put { Ok(()) } else { Err(damaged("are others")) }
    }
}

impl PickedKeys {
    fn of(bits: &[bool]) -> Self {
        let digit = |four: &[bool]| four.iter().rev().fold(0, |digit, bit| digit * 2 + u32::from(*bit));
        Self(bits.chunks(4).map(|four| char::from_digit(digit(four), 16).expect("four bits are a digit")).collect())
    }

    /// Whether each of so many keys is one of them; `None`: this is of another number.
    fn bits(&self, count: usize) -> Option<impl Iterator<Item = bool>> {
        let digits: Option<Vec<u32>> = self.0.chars().map(|digit| digit.to_digit(16)).collect();
        let digits = digits.filter(|digits| digits.len() == count.div_ceil(4))?;
        Some(digits.into_iter().flat_map(|digit| (0..4).map(move |bit| digit >> bit & 1 == 1)))
    }
}

fn has_room(bytes: &mut usize, more: usize) -> bool {
    let has_room = *bytes + more <= MOST_TOGETHER;
    if has_room {
        *bytes += more;
    }
    has_room
}

/// What an entry takes, about.
const fn weight(key: &str, len: usize) -> usize {
    key.len() + len + 16
}

/// The length of an input's text.
fn text_len(value: &InputValue) -> usize {
    value.text().map_or(0, JsonText::bytes)
}

/// Takes out of a map what another has alike. Gives which of the other's entries these are, and what they take.
fn take_out<V: PartialEq>(
    map: &mut BTreeMap<String, V>,
    common: &BTreeMap<String, V>,
    len: impl Fn(&V) -> usize,
) -> (PickedKeys, usize) {
    let (mut bits, mut bytes) = (Vec::with_capacity(common.len()), 0);
    for (key, value) in common {
        let is_alike = map.get(key) == Some(value);
        if is_alike {
            map.remove(key);
            bytes += weight(key, len(value));
        }
        bits.push(is_alike);
    }
    (PickedKeys::of(&bits), bytes)
}

/// Puts entries of a map into another; gives whether they are of that map.
fn put_back<V: Clone>(map: &mut BTreeMap<String, V>, common: &BTreeMap<String, V>, picked: &PickedKeys) -> bool {
    let Some(bits) = picked.bits(common.len()) else { return false };
    let taken = common.iter().zip(bits).filter(|(_, is_taken)| *is_taken);
    map.extend(taken.map(|((key, value), _)| (key.clone(), value.clone())));
    true
}

#[cfg(test)]
mod tests {
    use stemma_core::object::Timestamp;

    use super::*;
    use crate::records::reported::ReleasedRecord;

    fn value(text: &str) -> InputValue {
        InputValue::Json(format!("\"{text}\"").into())
    }

    fn record(own: &str) -> ReleasedRecord {
        let large = "x".repeat(400);
        let of_group = (0..9).map(|at| (format!("labels.g{at}"), value(&large)));
        let inputs =
            of_group.chain([("labels.host".to_owned(), value(own)), ("labels.none".to_owned(), InputValue::Absent)]);
        let left_out = BTreeMap::from([("a".to_owned(), "condition is false: x".into()), ("b".to_owned(), own.into())]);
        let task_set = TaskSet { inputs: inputs.collect(), left_out, ..TaskSet::default() };
        ReleasedRecord::new(7, Timestamp(8), task_set, Some("site@1".to_owned()))
    }

    fn common(record: &ReleasedRecord) -> NamedValues {
        let TaskSet { inputs, left_out, .. } = record.task_set.clone();
        CommonValues { inputs, left_out, ..CommonValues::default() }.named()
    }

    /// The values, from their records.
    fn read_back(stored: &NamedValues) -> CommonValues {
        let parts: BTreeMap<Hash, CommonValues> =
            stored.parts.iter().map(|part| (hash_content(part), codec::decode(part).unwrap())).collect();
        let record: CommonValues = codec::decode(&stored.record).unwrap();
        assert!(record.inputs.is_empty() && record.left_out.is_empty());
        assert!(record.clone().with_parts(|_| None).is_err() || record.parts.is_empty(), "the parts are not there");
        record.with_parts(|name| parts.get(name)).unwrap()
    }

    #[test]
    fn x03_groups_that_say_a_little_of_their_own_share_all_parts_but_few() {
        for (count, bytes, most) in [(15, 4_000, 1_024), (600, 100, 8_192), (60, 1_000, 8_192), (3_000, 20, 8_192)] {
            let of = |own: &str| {
                let mut values = CommonValues::default();
                let text = "x".repeat(bytes);
                values.inputs = (0..count).map(|at| (format!("labels.a{at}"), value(&text))).collect();
                values.inputs.insert("labels.a1own".to_owned(), value(own));
                values.named()
            };
            let (one, other) = (of("one"), of("three"));
            assert!(one.parts.len() <= 4 * MOST_PARTS, "{}", one.parts.len());
            assert!(one.record.len() < 16 * 1024, "{}", one.record.len());
            let new: usize = other.parts.iter().filter(|part| !one.parts.contains(part)).map(Bytes::len).sum();
            assert!(new > 0 && new <= most, "{count} values of {bytes} bytes: {new} bytes for one that differs");
            assert_eq!((read_back(&one), read_back(&other)), (one.values, other.values));
        }
    }

    #[test]
    fn x03_a_released_record_holds_what_is_its_nodes_and_comes_back_whole() {
        let (first, mut second) = (record("one"), record("two"));
        second.task_set.inputs.remove("labels.g4");
        let common = common(&first);
        let stored = codec::encode_newest(&second.without_common(common.name, &common.values).unwrap());
        assert!(stored.len() < 500 && codec::encode(&second).len() > 3_200, "{}", stored.len());
        let read: ReleasedRecord = codec::decode(&stored).unwrap();
        assert_eq!(read.task_set.inputs, BTreeMap::from([("labels.host".to_owned(), value("two"))]));
        let values = read_back(&common);
        assert_eq!(values, common.values);
        let whole = read.clone().with_common(|name| (*name == common.name).then_some(&values)).unwrap();
        assert_eq!(whole.task_set, second.task_set);
        assert_eq!((whole.revision, whole.at, &whole.release), (7, Timestamp(8), &second.release));
        assert!(read.clone().with_common(|_| None).is_err(), "the values are not there");
        let others = CommonValues::default();
        assert!(read.with_common(|_| Some(&others)).is_err(), "the values are others");
    }

    #[test]
    fn a_record_of_few_values_stays_as_earlier_programs_wrote_it() {
        let small = ReleasedRecord { task_set: TaskSet::default(), ..record("one") };
        let common = common(&record("one"));
        assert_eq!(small.without_common(common.name, &common.values), None);
        let text = codec::encode(&small);
        assert!(!text.windows(5).any(|part| part == b"taken"), "{text:?}");
        assert_eq!(small.clone().with_common(|_| None).unwrap(), small);
    }

    #[test]
    fn common_values_have_a_bound() {
        let (mut values, mut bytes) = (CommonValues::default(), 0);
        for at in 0..1_000 {
            values.add_input(&mut bytes, format!("labels.{at}"), value(&"x".repeat(4_000)));
            values.add_left_out(&mut bytes, &format!("t{at}"), "x".repeat(4_000).into());
        }
        let bytes: usize = values.named().parts.iter().map(Bytes::len).sum();
        assert!((480 * 1024..600 * 1024).contains(&bytes), "{bytes}");
        let quotes = InputValue::Json(serde_json::to_string(&"\"".repeat(150_000)).unwrap().into());
        let mut values = CommonValues::default();
        values.add_input(&mut 0, "labels.small".to_owned(), value("x"));
        values.add_input(&mut 0, "labels.quotes".to_owned(), quotes.clone());
        assert_eq!(values.clone().named().values.inputs, values.inputs, "some 600 kB");
        values.add_input(&mut 0, "labels.more".to_owned(), quotes);
        assert_eq!(values.named().values, CommonValues::default(), "some 1,200 kB");
    }

    #[test]
    fn picked_keys_are_read_as_they_are_written() {
        for count in 0..20 {
            let bits: Vec<bool> = (0..count).map(|at| at % 3 == 0).collect();
            let picked = PickedKeys::of(&bits);
            assert_eq!(picked.bits(count).unwrap().take(count).collect::<Vec<_>>(), bits);
            assert!(picked.bits(count + 4).is_none());
        }
        assert!(PickedKeys("g".to_owned()).bits(4).is_none());
    }
}
