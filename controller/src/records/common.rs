//! What the released task sets of many nodes have alike, stored once for all of them, and held in memory once.
//!
//! A group says to each of its nodes what their tasks read, which tags they have, and why tasks are left out. If the record of each node held all of
//! it, one write to a group of a thousand nodes would be stored a thousand times. So a record holds what its node alone has, and names the values
//! from which it takes the rest.
//!
//! These values are stored in parts (content-defined chunks), each by its hash: where a cluster says much to its groups and each group a little,
//! they share all parts but one. Where a part ends follows from its own keys, so that a value which differs changes its own part alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use stemma_core::shared_text::{JsonText, SharedTexts};
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

/// What an entry takes beside its texts as it is sent, at most: lengths, a variant, the version of a secret.
const SENT_ENTRY: usize = 32;

/// Inputs, reasons and tags that task sets of many nodes have, or a part of them: as they are gathered, and as they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommonValues {
    /// The values of inputs, by the reference's text.
    pub inputs: BTreeMap<String, InputValue>,
    /// Why tasks are left out, by their id.
    pub left_out: BTreeMap<String, Arc<str>>,
    /// The effective tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Those held as primary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub primaries: Vec<String>,
    /// The records that hold more of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Hash>,
    /// Inputs whose texts are stored in chunks; none but in a record as it is stored.
    #[serde(default, skip_serializing_if = "StoredTexts::is_empty")]
    pub texts: StoredTexts,
}

/// A part of common values, as it is held for all lists that name it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ValuePart {
    inputs: Box<[(Box<str>, InputValue)]>,
    left_out: Box<[(Box<str>, Arc<str>)]>,
    tags: Box<[String]>,
    primaries: Box<[String]>,
}

/// Common values, as they are held: their parts, in the order of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueList {
    /// The hashes of the parts.
    pub names: Vec<Hash>,
    parts: Vec<Arc<ValuePart>>,
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
    pub values: Arc<ValueList>,
}

/// What a released task set takes from common values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenValues {
    /// The hash that names the values.
    pub values: Hash,
    inputs: PickedKeys,
    left_out: PickedKeys,
    /// Whether it takes the tags.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    tags: bool,
}

/// Some of the keys of a map: a bit for each, in their order, four in a hexadecimal digit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PickedKeys(Box<str>);

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

    /// Takes in tags, while there is room.
    pub fn add_tags(&mut self, bytes: &mut usize, tags: Vec<String>, primaries: Vec<String>) {
        if has_room(bytes, weight_of_tags(&tags, &primaries)) {
            (self.tags, self.primaries) = (tags, primaries);
        }
    }

    /// The values as they are stored, in parts; none where they are too large for records.
    pub fn named(self) -> NamedValues {
        let mut chunks = NamedChunks::new();
        let parts = self.parted();
        let stored = |part: &Self| {
            let mut part = part.clone();
            part.texts = chunks::take_out(&mut part.inputs, &mut chunks);
            codec::encode(&part)
        };
        let records: Vec<Bytes> = parts.iter().map(stored).collect();
        let bytes = records.iter().map(Bytes::len).chain(chunks.values().map(|chunk| chunk.len())).sum::<usize>();
        if bytes > MOST_OF_RECORDS {
            return Self::default().named();
        }
        let names: Vec<Hash> = records.iter().map(|part| hash_content(part)).collect();
        let record = codec::encode(&Self { parts: names.clone(), ..Self::default() });
        let held = parts.into_iter().map(|part| Arc::new(part.into_part())).collect();
        let values = Arc::new(ValueList { names, parts: held });
        NamedValues { name: hash_content(&record), record, parts: records, chunks, values }
    }

    /// The values in parts. A large value is one alone. Others stand together up to one whose key ends a part, whatever the values are.
    fn parted(self) -> Vec<Self> {
        let Self { inputs, left_out, tags, primaries, .. } = self;
        let of_inputs = inputs.iter().map(|(key, value)| weight(key, text_len(value)));
        let total: usize = of_inputs.chain(left_out.iter().map(|(key, why)| weight(key, why.len()))).sum();
        let mut parts = Parts { least: 1 << (total / MOST_PARTS).max(1).ilog2(), ..Parts::default() };
        for (key, value) in inputs {
            parts.add(&key, weight(&key, text_len(&value)), |part| &mut part.inputs, value);
        }
        for (key, why) in left_out {
            parts.add(&key, weight(&key, why.len()), |part| &mut part.left_out, why);
        }
        parts.end();
        if !(tags.is_empty() && primaries.is_empty()) {
            parts.done.push(Self { tags, primaries, ..Self::default() });
        }
        parts.done
    }

    /// A part as it is held, of its record, with the texts that are stored in chunks. Texts are held as others hold them.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`]: a chunk is not stored.
    pub fn held(
        mut self,
        chunk: impl Fn(&Hash) -> Option<Arc<str>>,
        texts: &SharedTexts,
    ) -> Result<ValuePart, BadRecord> {
        chunks::put_back(&mut self.inputs, std::mem::take(&mut self.texts), chunk)?;
        texts.share(self.left_out.values_mut().chain(self.inputs.values_mut().flat_map(InputValue::chunks_mut)));
        Ok(self.into_part())
    }

    /// A list as it is held, of its record, with its parts. Earlier programs wrote one without parts, which held the values itself.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`]: a part is not there.
    pub fn list(mut self, part: impl Fn(&Hash) -> Option<Arc<ValuePart>>) -> Result<ValueList, BadRecord> {
        let names = std::mem::take(&mut self.parts);
        let found = names.iter().map(|name| {
            part(name).ok_or_else(|| {
                let error = format!("the part {name} of the values is not stored");
                BadRecord::Damaged(serde_json::Error::custom(error))
            })
        });
        let own = (self != Self::default()).then(|| Ok(Arc::new(self.into_part())));
        let parts = own.into_iter().chain(found).collect::<Result<_, _>>()?;
        Ok(ValueList { names, parts })
    }

    fn into_part(self) -> ValuePart {
        ValuePart {
            inputs: self.inputs.into_iter().map(|(key, value)| (key.into(), value)).collect(),
            left_out: self.left_out.into_iter().map(|(key, why)| (key.into(), why)).collect(),
            tags: self.tags.into(),
            primaries: self.primaries.into(),
        }
    }
}

impl ValuePart {
    /// The texts of its inputs.
    pub fn texts(&self) -> impl Iterator<Item = &JsonText> {
        self.inputs.iter().filter_map(|(_, value)| value.text())
    }
}

impl ValueList {
    /// The same, with parts that others hold.
    pub fn share(&mut self, mut share: impl FnMut(&Hash, &mut Arc<ValuePart>)) {
        self.names.iter().zip(&mut self.parts).for_each(|(name, part)| share(name, part));
    }

    /// The value of an input.
    pub fn input(&self, reference: &str) -> Option<&InputValue> {
        let at = self.parts.partition_point(|part| part.inputs.last().is_some_and(|(last, _)| **last < *reference));
        let inputs = &self.parts.get(at)?.inputs;
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

    /// The place of a task among all that are left out.
    fn place_of_left_out(&self, task: &str) -> Option<usize> {
        let mut before = 0;
        for part in &self.parts {
            match part.left_out.last() {
                Some((last, _)) if **last >= *task => return Some(before + position(&part.left_out, task)?),
                _ => before += part.left_out.len(),
            }
        }
        None
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
    fn add<V>(
        &mut self,
        key: &str,
        weight: usize,
        of: impl FnOnce(&mut CommonValues) -> &mut BTreeMap<String, V>,
        value: V,
    ) {
        let is_large = weight >= self.least;
        if is_large {
            self.end();
        }
        of(&mut self.open).insert(key.to_owned(), value);
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
    /// Takes out of a task set what stands in common values of this name; `None` where that is so little that they are not worth it: nothing is
    /// taken out then.
    pub(super) fn out_of(task_set: &mut TaskSet, name: Hash, values: &ValueList) -> Option<Self> {
        let (inputs, of_inputs) = alike(&task_set.inputs, values.inputs(), text_len);
        let (left_out, of_left_out) = alike(&task_set.left_out, values.left_out(), |why| why.len());
        let tags = values.tags() == (&*task_set.tags, &*task_set.primaries);
        let of_tags = if tags { weight_of_tags(&task_set.tags, &task_set.primaries) } else { 0 };
        if of_inputs + of_left_out + of_tags < LEAST_APART {
            return None;
        }
        take_out(&mut task_set.inputs, values.inputs(), &inputs);
        take_out(&mut task_set.left_out, values.left_out(), &left_out);
        if tags {
            task_set.tags.clear();
            task_set.primaries.clear();
        }
        Some(Self { values: name, inputs: PickedKeys::of(&inputs), left_out: PickedKeys::of(&left_out), tags })
    }

    /// Checks that these are the values that it names.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`]: they are others.
    pub(super) fn check(&self, values: &ValueList) -> Result<(), BadRecord> {
        let is_of = self.inputs.is_of(values.inputs().count()) && self.left_out.is_of(values.left_out().count());
        if is_of { Ok(()) } else { Err(self.damaged("are others")) }
    }

    pub(super) fn damaged(&self, what: &str) -> BadRecord {
        let error = format!("the values {} that the task set names {what}", self.values);
        BadRecord::Damaged(serde_json::Error::custom(error))
    }

    /// Puts back into a task set what was taken out of it.
    pub(super) fn put_back(&self, task_set: &mut TaskSet, values: &ValueList) {
        put_back(&mut task_set.inputs, values.inputs(), &self.inputs);
        put_back(&mut task_set.left_out, values.left_out(), &self.left_out);
        if self.tags {
            let (tags, primaries) = values.tags();
            (task_set.tags, task_set.primaries) = (tags.to_vec(), primaries.to_vec());
        }
    }

    /// About how many bytes what is taken has as it is sent: no fewer.
    pub(super) fn sent_at_most(&self, values: &ValueList) -> usize {
        let inputs = values.inputs().enumerate().filter(|(at, _)| self.inputs.has(*at));
        let left_out = values.left_out().enumerate().filter(|(at, _)| self.left_out.has(*at));
        let (tags, primaries) = if self.tags { values.tags() } else { (&[][..], &[][..]) };
        inputs.map(|(_, (key, value))| SENT_ENTRY + key.len() + sent_len(value)).sum::<usize>()
            + left_out.map(|(_, (key, why))| SENT_ENTRY + key.len() + why.len()).sum::<usize>()
            + tags.iter().chain(primaries).map(|tag| SENT_ENTRY + tag.len()).sum::<usize>()
    }

    /// Whether a task is left out by what is taken.
    pub(super) fn leaves_out(&self, task: &str, values: &ValueList) -> bool {
        values.place_of_left_out(task).is_some_and(|at| self.left_out.has(at))
    }
}

impl PickedKeys {
    fn of(bits: &[bool]) -> Self {
        let digit = |four: &[bool]| four.iter().rev().fold(0, |digit, bit| digit * 2 + u32::from(*bit));
        let digits = bits.chunks(4).map(|four| char::from_digit(digit(four), 16).expect("four bits are a digit"));
        Self(digits.collect::<String>().into())
    }

    /// Whether this is of so many keys.
    fn is_of(&self, count: usize) -> bool {
        self.0.len() == count.div_ceil(4) && self.0.bytes().all(|digit| digit.is_ascii_hexdigit())
    }

    /// Whether the key of this place is one of them.
    fn has(&self, at: usize) -> bool {
        let digit = self.0.as_bytes().get(at / 4).and_then(|digit| char::from(*digit).to_digit(16));
        digit.is_some_and(|digit| digit >> (at % 4) & 1 == 1)
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

fn weight_of_tags(tags: &[String], primaries: &[String]) -> usize {
    tags.iter().chain(primaries).map(|tag| tag.len() + 3).sum()
}

/// The length of an input's text.
fn text_len(value: &InputValue) -> usize {
    value.text().map_or(0, JsonText::bytes)
}

/// The length of what is sent of an input, but for lengths and numbers.
fn sent_len(value: &InputValue) -> usize {
    match value {
        InputValue::Json(text) => text.bytes(),
        InputValue::Absent => 0,
        InputValue::Secret { name, .. } => name.len(),
    }
}

/// The place of a key in entries in the order of keys.
fn position<V>(entries: &[(Box<str>, V)], key: &str) -> Option<usize> {
    entries.binary_search_by(|(other, _)| (**other).cmp(key)).ok()
}

/// Which of the entries stand alike in a map, and what these take.
fn alike<'v, V: PartialEq + 'v>(
    map: &BTreeMap<String, V>,
    common: impl Iterator<Item = &'v (Box<str>, V)>,
    len: impl Fn(&V) -> usize,
) -> (Vec<bool>, usize) {
    let mut bytes = 0;
    let is_alike = |(key, value): &'v (Box<str>, V)| {
        let is_alike = map.get(&**key) == Some(value);
        bytes += if is_alike { weight(key, len(value)) } else { 0 };
        is_alike
    };
    (common.map(is_alike).collect(), bytes)
}

/// Takes these of the entries out of a map.
fn take_out<'v, V: 'v>(map: &mut BTreeMap<String, V>, common: impl Iterator<Item = &'v (Box<str>, V)>, taken: &[bool]) {
    for ((key, _), _) in common.zip(taken).filter(|(_, is_taken)| **is_taken) {
        map.remove(&**key);
    }
}

/// Puts entries into a map.
fn put_back<'v, V: Clone + 'v>(
    map: &mut BTreeMap<String, V>,
    common: impl Iterator<Item = &'v (Box<str>, V)>,
    picked: &PickedKeys,
) {
    let taken = common.enumerate().filter(|(at, _)| picked.has(*at));
    map.extend(taken.map(|(_, (key, value))| (String::from(&**key), value.clone())));
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
        let TaskSet { inputs, left_out, .. } = record.task_set().into_owned();
        CommonValues { inputs, left_out, ..CommonValues::default() }.named()
    }

    /// The values, from their records.
    fn read_back(stored: &NamedValues) -> Arc<ValueList> {
        let part = |record: &Bytes| {
            let part: CommonValues = codec::decode(record).unwrap();
            Arc::new(part.held(|hash| stored.chunks.get(hash).cloned(), &SharedTexts::default()).unwrap())
        };
        let parts: BTreeMap<Hash, Arc<ValuePart>> =
            stored.parts.iter().map(|record| (hash_content(record), part(record))).collect();
        let record: CommonValues = codec::decode(&stored.record).unwrap();
        assert!(record.inputs.is_empty() && record.left_out.is_empty());
        assert!(record.clone().list(|_| None).is_err() || record.parts.is_empty(), "the parts are not there");
        Arc::new(record.list(|name| parts.get(name).cloned()).unwrap())
    }

    /// The record as it is held once it was stored and read.
    fn read_record(
        stored: &Bytes,
        values: impl FnOnce(&Hash) -> Option<Arc<ValueList>>,
    ) -> Result<ReleasedRecord, BadRecord> {
        codec::decode::<ReleasedRecord>(stored).unwrap().held(values, |_| None, &SharedTexts::default())
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
        let (first, second) = (record("one"), record("two"));
        let mut task_set = second.task_set().into_owned();
        task_set.inputs.remove("labels.g4");
        let second = ReleasedRecord::new(7, Timestamp(8), task_set.clone(), second.release);
        let common = common(&first);
        let whole = second.encoded().0;
        let stripped = second.without_common(common.name, &common.values);
        let stored = stripped.encoded().0;
        assert!(stored.len() < 500 && whole.len() > 3_200, "{}", stored.len());
        assert_eq!(stripped.head().inputs, BTreeMap::from([("labels.host".to_owned(), value("two"))]));
        let values = read_back(&common);
        assert_eq!(values, common.values);
        let read = read_record(&stored, |name| (*name == common.name).then_some(Arc::clone(&values))).unwrap();
        assert_eq!(read, stripped);
        assert_eq!(*read.task_set(), task_set);
        let sent = postcard::experimental::serialized_size(&task_set).unwrap();
        assert!((sent..sent + 1024).contains(&read.sent_at_most()), "{sent}");
        assert_eq!(["a", "b", "c"].map(|task| read.runs_task(task)), ["a", "b", "c"].map(|task| task_set.runs(task)));
        assert_eq!((read.revision, read.at, read.release.as_deref()), (7, Timestamp(8), Some("site@1")));
        assert!(read_record(&stored, |_| None).is_err(), "the values are not there");
        assert!(read_record(&stored, |_| Some(Arc::default())).is_err(), "the values are others");
    }

    #[test]
    fn x03_f07_tags_of_a_group_stand_apart_and_come_back_in_their_order() {
        let tags: Vec<String> = (0..100).map(|at| format!("tag-{}-{}", at * 7 % 100, "x".repeat(50))).collect();
        for primaries in [Vec::new(), vec![tags[3].clone()]] {
            let task_set = TaskSet { tags: tags.clone(), primaries: primaries.clone(), ..TaskSet::default() };
            let record = ReleasedRecord::new(1, Timestamp(2), task_set.clone(), None);
            let mut values = CommonValues::default();
            values.add_tags(&mut 0, tags.clone(), primaries);
            let common = values.named();
            let stored = record.without_common(common.name, &common.values).encoded().0;
            assert!(stored.len() < 500, "{}", stored.len());
            let values = read_back(&common);
            assert_eq!(*read_record(&stored, |_| Some(values)).unwrap().task_set(), task_set);
            let other = TaskSet { tags: tags[1..].to_vec(), ..task_set };
            let other = ReleasedRecord::new(1, Timestamp(2), other, None).without_common(common.name, &common.values);
            assert_eq!((other.taken.is_some(), other.head().tags.len()), (false, 99), "other tags are its own");
        }
    }

    #[test]
    fn a_list_without_parts_is_read_as_an_earlier_program_wrote_it() {
        let first = record("one");
        let TaskSet { inputs, left_out, .. } = first.task_set().into_owned();
        let earlier = codec::encode(&CommonValues { inputs, left_out, ..CommonValues::default() });
        let list = codec::decode::<CommonValues>(&earlier).unwrap().list(|_| None).unwrap();
        assert!(list.names.is_empty());
        let stripped = first.clone().without_common(hash_content(&earlier), &Arc::new(list));
        assert!(stripped.taken.is_some() && stripped.head().inputs.is_empty());
        assert_eq!(stripped.task_set(), first.task_set());
    }

    #[test]
    fn a_record_of_few_values_stays_as_earlier_programs_wrote_it() {
        let small = ReleasedRecord::new(7, Timestamp(8), TaskSet::default(), None);
        let common = common(&record("one"));
        assert_eq!(small.clone().without_common(common.name, &common.values), small);
        let text = small.encoded().0;
        assert!(!text.windows(5).any(|part| part == b"taken"), "{text:?}");
        assert_eq!(read_record(&text, |_| None).unwrap(), small);
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
        let named = values.clone().named();
        assert!(values.inputs.iter().all(|(key, value)| named.values.input(key) == Some(value)), "some 600 kB");
        values.add_input(&mut 0, "labels.more".to_owned(), quotes);
        assert_eq!(*values.named().values, ValueList::default(), "some 1,200 kB");
    }

    #[test]
    fn picked_keys_are_read_as_they_are_written() {
        for count in 0..20 {
            let bits: Vec<bool> = (0..count).map(|at| at % 3 == 0).collect();
            let picked = PickedKeys::of(&bits);
            assert_eq!((0..count).map(|at| picked.has(at)).collect::<Vec<_>>(), bits);
            assert!(picked.is_of(count) && !picked.is_of(count + 4) && !picked.has(count + 4));
        }
        assert!(!PickedKeys("g".into()).is_of(4));
    }
}
