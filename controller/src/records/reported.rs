//! What is stored of what hosts say, and of what they were told. None of it is an object: it has no generation and
//! no audit event, and no operator writes it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use stemma_core::digest::DigestVersion;
use stemma_core::epoch::HeldRevision;
use stemma_core::object::{Observation, ReportLeftOut, Timestamp};
use stemma_core::release::{is_sent_observed, is_sent_untranslated};
use stemma_core::shared_text::{JsonText, SharedTexts};
use stemma_core::status::is_of_agent;
use stemma_wire::message::desired::{InputValue, Profile, ProfileTask, TaskSet};
use stemma_wire::message::observed::{Report, TaskResult};
use stemma_wire::message::{Hash, PartDigest, WireVersion, decode_part, digest_part, encode_part, hash_content};
use uuid::Uuid;

use super::chunks::{self, NamedChunks, StoredTexts};
use super::codec::{self, BadRecord};
use super::common::{TakenValues, ValueList};
use crate::desired::PUBLISHED;
use crate::intake::ToldParts;

/// A node's Observation, as it was last stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservationRecord {
    /// When it came.
    pub at: Timestamp,
    /// Its digest on the wire, by which the agent knows that it need not send it again.
    pub digest: PartDigest,
    /// What resolve reads.
    pub observation: Observation,
    /// Where each reported label stands on the host.
    pub label_sources: BTreeMap<String, String>,
}

/// Where a node stands with the tasks of a task set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultsRecord {
    /// Results up to this sequence number are stored.
    pub acknowledged: u64,
    /// The last result of each task, by id.
    pub tasks: BTreeMap<String, StoredResult>,
    /// How many results of the newest task set were not kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

impl ResultsRecord {
    /// The last result of a task, where it is of the task set of these names: one of an earlier set says nothing of what runs now.
    pub fn of(&self, task_set: &[PartDigest], task: &str) -> Option<&StoredResult> {
        self.tasks.get(task).filter(|outcome| task_set.contains(&outcome.result.task_set))
    }

    /// How much of what was reported of tasks was not kept.
    pub fn left_out(&self) -> ReportLeftOut {
        let texts = self.tasks.values().filter(|one| one.is_cut).count();
        ReportLeftOut {
            results: self.left_out,
            texts: u32::try_from(texts).unwrap_or(u32::MAX),
            ..ReportLeftOut::default()
        }
    }

    /// Whether any task of the task set of these names has a result: then its host held that set.
    pub fn is_of(&self, task_set: &[PartDigest]) -> bool {
        self.tasks.values().any(|outcome| task_set.contains(&outcome.result.task_set))
    }
}

/// The last result of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredResult {
    /// When it came.
    pub at: Timestamp,
    /// What the host said.
    pub result: TaskResult,
    /// Whether some of the texts that it said were not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// A node's last Report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportRecord {
    /// When it came.
    pub at: Timestamp,
    /// What it said.
    pub report: Report,
    /// How much of it was not kept.
    #[serde(default, skip_serializing_if = "ReportLeftOut::is_nothing")]
    pub left_out: ReportLeftOut,
}

/// What an agent says of itself in a report.
pub(crate) fn of_agent(report: &Report) -> impl Iterator<Item = (&String, &String)> {
    report.facts.iter().filter(|(path, _)| is_of_agent(path))
}

/// When a node's silence began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenRecord {
    /// Whether it is silent since then.
    pub lost: bool,
    /// Since when.
    pub since: Timestamp,
    /// Whether it became silent without a word that it holds what it was told last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untold: bool,
}

/// What a node's host was told last; stored before it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldRecord {
    /// The epoch.
    pub epoch: Uuid,
    /// The revision in it.
    pub revision: u64,
    /// What it was told; `None`: it was told by a version that did not record this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<ToldParts>,
    /// Whether its host has not said since that it holds these. A version that recorded no confirmations wrote none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

impl ToldRecord {
    /// The state that it was told, by the store's count.
    pub const fn state(&self) -> HeldRevision {
        HeldRevision { epoch: self.epoch, revision: self.revision }
    }
}

/// What was released to a node: the task set that is in force there until another is released. It is held as it is stored: what its node alone has,
/// beside values that many nodes share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReleasedRecord {
    /// The revision of the snapshot that was resolved.
    pub revision: u64,
    /// When.
    pub at: Timestamp,
    /// The task set, without what stands in values that are stored for many nodes.
    #[serde(rename = "task_set", deserialize_with = "of_known_version")]
    own: TaskSet,
    /// The release that it was made from, for explain; `None` without tasks.
    pub release: Option<String>,
    /// What of the task set stands in such values; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<TakenValues>,
    /// Inputs whose texts are stored in chunks; none but in a record as it is stored.
    #[serde(default, skip_serializing_if = "StoredTexts::is_empty")]
    texts: StoredTexts,
    /// The values that it names.
    #[serde(skip)]
    values: Option<Arc<ValueList>>,
}

impl ReleasedRecord {
    /// A whole record, of which nothing is stored elsewhere. The fields say what these are.
    pub fn new(revision: u64, at: Timestamp, task_set: TaskSet, release: Option<String>) -> Self {
        Self { revision, at, own: task_set, release, taken: None, texts: StoredTexts::new(), values: None }
    }

    /// The same of a release by this name.
    #[must_use]
    pub fn of_release(self, release: Option<String>) -> Self {
        Self { release, ..self }
    }

    /// The record without what stands in common values of this name; as it is where that is too little.
    #[must_use]
    pub fn without_common(mut self, name: Hash, values: &Arc<ValueList>) -> Self {
        self.taken = TakenValues::out_of(&mut self.own, name, values);
        self.values = self.taken.as_ref().map(|_| Arc::clone(values));
        self
    }

    /// The record as it is stored, and the chunks of its own texts.
    pub fn encoded(&self) -> (Bytes, NamedChunks) {
        let (mut stored, mut chunks) = (self.clone(), NamedChunks::new());
        stored.texts = chunks::take_out(&mut stored.own.inputs, &mut chunks);
        let is_whole = stored.taken.is_none() && stored.texts.is_empty();
        (if is_whole { codec::encode(&stored) } else { codec::encode_newest(&stored) }, chunks)
    }

    /// A record that was read, as it is held: with the values that it names, and the texts that are stored in chunks.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`]: the values are not there or are others, or a chunk is not stored.
    pub fn held(
        mut self,
        values: impl FnOnce(&Hash) -> Option<Arc<ValueList>>,
        chunk: impl Fn(&Hash) -> Option<Arc<str>>,
        texts: &SharedTexts,
    ) -> Result<Self, BadRecord> {
        if let Some(taken) = &self.taken {
            let values = values(&taken.values).ok_or_else(|| taken.damaged("are not stored"))?;
            taken.check(&values)?;
            self.values = Some(values);
        }
        chunks::put_back(&mut self.own.inputs, std::mem::take(&mut self.texts), chunk)?;
        let TaskSet { left_out, inputs, .. } = &mut self.own;
        texts.share(left_out.values_mut().chain(inputs.values_mut().flat_map(InputValue::chunks_mut)));
        Ok(self)
    }

    /// The task set.
    pub fn task_set(&self) -> Cow<'_, TaskSet> {
        let Some((taken, values)) = self.taken.as_ref().zip(self.values.as_ref()) else {
            return Cow::Borrowed(&self.own);
        };
        let mut task_set = self.own.clone();
        taken.put_back(&mut task_set, values);
        Cow::Owned(task_set)
    }

    /// What of it is the node's own, in bytes: tags, inputs, and why tasks are left out. Beside that it takes some hundred bytes in the store.
    pub fn own_bytes(&self) -> u64 {
        let TaskSet { tags, primaries, left_out, inputs, .. } = &self.own;
        let texts = tags.iter().chain(primaries).map(String::len);
        let left_out = left_out.iter().map(|(id, why)| id.len() + why.len());
        let inputs =
            inputs.iter().map(|(reference, input)| reference.len() + input.text().map_or(0, chunks::len_in_record));
        texts.chain(left_out).chain(inputs).sum::<usize>() as u64
    }

    /// About how many bytes the task set has as it is sent: no fewer.
    pub fn sent_at_most(&self) -> usize {
        let own =
            postcard::experimental::serialized_size(&self.own).expect("a task set holds nothing that postcard refuses");
        let taken =
            self.taken.as_ref().zip(self.values.as_ref()).map_or(0, |(taken, values)| taken.sent_at_most(values));
        own + taken
    }

    /// What it has beside tags, inputs and tasks that are left out.
    pub fn head(&self) -> &TaskSet {
        &self.own
    }

    /// Whether a task of its profile runs.
    pub fn runs_task(&self, task: &str) -> bool {
        let is_taken =
            || self.taken.as_ref().zip(self.values.as_ref()).is_some_and(|(of, all)| of.leaves_out(task, all));
        self.own.runs(task) && !is_taken()
    }

    /// The texts of inputs that its node alone has.
    pub fn own_texts(&self) -> impl Iterator<Item = &JsonText> {
        self.own.inputs.values().filter_map(InputValue::text)
    }

    /// The digest of the task set in each wire version, as it is sent. `profile` is the one that it names.
    pub fn digests(&self, profile: Option<&ProfileRecord>) -> Vec<PartDigest> {
        let whole = self.task_set();
        let digest = |version| {
            let task_set = whole.naming(profile.and_then(|profile| profile.name(version)));
            digest_part(version, &encode_part(version, &*task_set))
        };
        WireVersion::all().map(digest).collect()
    }

    /// The ids of the tasks that run, in order. `profile` is the one that the task set names.
    pub fn runs<'a>(&'a self, profile: Option<&'a ProfileRecord>) -> impl Iterator<Item = &'a str> {
        let ids = profile.into_iter().flat_map(ProfileRecord::ids).map(String::as_str);
        ids.filter(|id| self.runs_task(id))
    }
}

/// Reads a task set whose digest can be computed again: one of a later version could never be compared.
fn of_known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TaskSet, D::Error> {
    let task_set = TaskSet::deserialize(deserializer)?;
    let (found, newest) = (task_set.digest_version, DigestVersion::NEWEST.number());
    if found > newest {
        return Err(D::Error::custom(format_args!(
            "the released task set has digest version {found}, this program knows up to {newest}: run the newer stemma-controller"
        )));
    }
    Ok(task_set)
}

/// A profile that some released task set names: what is held must be there after a restart, whatever the release says by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// The wire version of the bytes. 118d023 wrote none: there was one version.
    #[serde(default = "first", skip_serializing_if = "is_first", deserialize_with = "known_version")]
    version: WireVersion,
    /// As it is sent in that version.
    pub bytes: Vec<u8>,
    /// The blobs that its tasks name, sorted.
    pub blobs: Vec<Hash>,
    #[serde(skip)]
    ids: Once<Box<[String]>>,
    #[serde(skip)]
    names: Once<Box<[Hash]>>,
    #[serde(skip)]
    untranslated: Once<BTreeSet<String>>,
    #[serde(skip)]
    observed: Once<BTreeSet<String>>,
}

/// What is read from a profile's bytes once, and no part of what is stored or compared.
#[derive(Clone, Debug)]
struct Once<T>(OnceLock<T>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> PartialEq for Once<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Once<T> {}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

const fn first() -> WireVersion {
    WireVersion::FIRST
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_first(version: &WireVersion) -> bool {
    *version == WireVersion::FIRST
}

/// Reads the version of a profile's bytes, of which this program has forms.
fn known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WireVersion, D::Error> {
    let found = WireVersion::deserialize(deserializer)?;
    if found.is_known() {
        return Ok(found);
    }
    Err(D::Error::custom(format_args!(
        "the profile has wire version {found}, this program knows up to {}: run the newer stemma-controller",
        WireVersion::CURRENT
    )))
}

impl ProfileRecord {
    /// A profile as it is stored from now on, in the version [`PUBLISHED`], and the blobs that its tasks name, sorted.
    pub fn new(bytes: Vec<u8>, blobs: Vec<Hash>) -> Self {
        let (ids, names) = (Once::default(), Once::default());
        let (untranslated, observed) = (Once::default(), Once::default());
        Self { version: PUBLISHED, bytes, blobs, ids, names, untranslated, observed }
    }

    /// The profile; `None` where it cannot be read.
    pub fn profile(&self) -> Option<Profile> {
        decode_part(self.version, &self.bytes).ok()
    }

    /// The name of its form of a version; `None` where it cannot be read.
    fn name(&self, version: WireVersion) -> Option<Hash> {
        let names = || {
            let profile = self.profile();
            let name = |version| profile.as_ref().map(|profile| hash_content(&encode_part(version, profile)));
            WireVersion::all().map_while(name).collect()
        };
        self.names.0.get_or_init(names).get(version.index()).copied()
    }

    /// The ids of its tasks, in order; none where it cannot be read.
    fn ids(&self) -> &[String] {
        self.ids.0.get_or_init(|| self.tasks().into_iter().map(|task| task.id).collect())
    }

    /// Its tasks; none where it cannot be read.
    fn tasks(&self) -> Vec<ProfileTask> {
        self.profile().map(|profile| profile.tasks).unwrap_or_default()
    }

    /// The ids of its tasks that are never started since nobody translated them.
    pub fn untranslated(&self) -> &BTreeSet<String> {
        let is_one = |task: &ProfileTask| is_sent_untranslated(&task.definition);
        self.untranslated.0.get_or_init(|| self.ids_of(is_one))
    }

    /// The ids of its tasks that hosts neither run nor check, by the task's own mode.
    pub fn observed(&self) -> &BTreeSet<String> {
        self.observed.0.get_or_init(|| self.ids_of(|task| is_sent_observed(&task.definition)))
    }

    fn ids_of(&self, is_one: impl Fn(&ProfileTask) -> bool) -> BTreeSet<String> {
        self.tasks().into_iter().filter(is_one).map(|task| task.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_set_of_a_later_digest_version_is_refused_with_what_to_do() {
        let record = |digest_version| {
            let task_set = TaskSet { digest_version, ..TaskSet::default() };
            ReleasedRecord::new(1, Timestamp(0), task_set, None)
        };
        for known in 0..=DigestVersion::NEWEST.number() {
            assert_eq!(codec::decode::<ReleasedRecord>(&codec::encode(&record(known))).unwrap(), record(known));
        }
        let refused = codec::decode::<ReleasedRecord>(&codec::encode(&record(3))).unwrap_err();
        let why = std::error::Error::source(&refused).unwrap().to_string();
        assert!(
            why.starts_with(
                "the released task set has digest version 3, this program knows up to 2: run the newer stemma-controller"
            ),
            "{why}"
        );
    }

    #[test]
    fn a_profile_says_which_of_its_tasks_are_untranslated_or_observed() {
        let task = |id: &str, definition: &str| ProfileTask {
            id: id.to_owned(),
            definition: definition.to_owned(),
            references: Vec::new(),
            after: Vec::new(),
            barriers: Vec::new(),
        };
        let tasks = vec![
            task("old", r#"{"id":"old","type":"untranslated"}"#),
            task("new", r#"{"id":"new","parameters":{"type":"untranslated"},"type":"shell"}"#),
            task("seen", r#"{"id":"seen","mode":"observe","parameters":{"script":"true"},"type":"shell"}"#),
        ];
        let record = ProfileRecord::new(postcard::to_allocvec(&Profile { tasks }).unwrap(), Vec::new());
        assert_eq!(record.untranslated(), &BTreeSet::from(["old".to_owned()]));
        assert_eq!(record.observed(), &BTreeSet::from(["seen".to_owned()]), "y06");
    }

    #[test]
    fn a_profile_of_a_later_wire_version_is_refused_and_one_without_a_version_is_of_the_first() {
        let bytes = postcard::to_allocvec(&Profile::default()).unwrap();
        let record = ProfileRecord::new(bytes, Vec::new());
        let stored = codec::encode(&record);
        assert_eq!(&stored[..], br#"{"schema":1,"record":{"bytes":[0],"blobs":[]}}"#, "as 118d023 wrote it");
        assert_eq!(codec::decode::<ProfileRecord>(&stored).unwrap(), record);
        let later = br#"{"schema":1,"record":{"version":9,"bytes":[0],"blobs":[]}}"#;
        let refused = codec::decode::<ProfileRecord>(later).unwrap_err();
        let why = std::error::Error::source(&refused).unwrap().to_string();
        let expected = "the profile has wire version 9, this program knows up to 1: run the newer stemma-controller";
        assert!(why.starts_with(expected), "{why}");
    }

    /// The stores that are kept of 118d023 have none: none of their hosts was silent.
    #[test]
    fn a_silence_stands_as_118d023_wrote_it() {
        let record = SeenRecord { lost: true, since: Timestamp(7), untold: false };
        let stored = br#"{"schema":1,"record":{"lost":true,"since":7}}"#;
        assert_eq!(&codec::encode(&record)[..], stored);
        assert_eq!(codec::decode::<SeenRecord>(stored).unwrap(), record);
    }

    fn told(held: HeldRevision, parts: Option<ToldParts>, unconfirmed: bool) -> ToldRecord {
        ToldRecord { epoch: held.epoch, revision: held.revision, parts, unconfirmed }
    }

    #[test]
    fn y06_what_a_host_was_told_is_read_from_the_version_before_and_by_it() {
        let held = HeldRevision { epoch: Uuid::from_u128(7), revision: 8 };
        let (record, stored) = (told(held, None, false), codec::encode(&held));
        assert_eq!(codec::decode::<ToldRecord>(&stored).unwrap(), record);
        let parts = Some(ToldParts { known: PartDigest([1; 32]), task_set: PartDigest([2; 32]) });
        for unconfirmed in [false, true] {
            let newer = codec::encode(&told(held, parts, unconfirmed));
            assert_eq!(codec::decode::<HeldRevision>(&newer).unwrap(), held);
            assert_eq!(codec::decode::<ToldRecord>(&newer).unwrap(), told(held, parts, unconfirmed));
            let names_it = newer.windows(b"unconfirmed".len()).any(|window| window == b"unconfirmed");
            assert_eq!(names_it, unconfirmed, "one that is confirmed stands as the version before wrote it");
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_stored_task_set_is_known_by_its_digest_in_every_wire_version() {
        let profile = Profile {
            tasks: vec![ProfileTask {
                id: "a".to_owned(),
                definition: String::new(),
                references: Vec::new(),
                after: Vec::new(),
                barriers: Vec::new(),
            }],
        };
        let (old, new) = (WireVersion::CURRENT, WireVersion::THROW_AWAY);
        let name = |version| hash_content(&encode_part(version, &profile));
        let task_set = |version| TaskSet { profile: Some(name(version)), ..TaskSet::default() };
        let sent = |version| digest_part(version, &encode_part(version, &task_set(version)));
        // As each of the two would have stored it.
        for version in [old, new] {
            let stored = ProfileRecord { version, ..ProfileRecord::new(encode_part(version, &profile), Vec::new()) };
            let read = codec::decode::<ProfileRecord>(&codec::encode(&stored)).unwrap();
            let task_set = task_set(version);
            let released = ReleasedRecord::new(1, Timestamp(0), task_set, None);
            assert_eq!(released.digests(Some(&read)), [sent(old), sent(new)], "{version}");
            assert_eq!(read.profile().as_ref(), Some(&profile), "{version}");
        }
    }
}
