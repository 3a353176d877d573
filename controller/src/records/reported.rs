//! The stored records of what hosts reported and of what they were sent. None of these is an object: they have no
//! generation and no audit event, and no operator writes them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use stemma_core::digest::DigestVersion;
use stemma_core::epoch::HeldRevision;
use stemma_core::object::{DroppedReportCounts, Observation, Timestamp};
use stemma_core::release::{is_sent_observed, is_sent_untranslated};
use stemma_core::shared_text::{JsonText, SharedTexts};
use stemma_core::status::is_agent_fact;
use stemma_wire::message::desired::{InputValue, Profile, ProfileTask, TaskSet};
use stemma_wire::message::observed::{Report, TaskResult};
use stemma_wire::message::{Hash, PartDigest, WireVersion, decode_part, digest_part, encode_part, hash_content};
use uuid::Uuid;

use super::chunks::{self, ChunksByHash, StoredTexts};
use super::codec::{self, BadRecord};
use super::common_values::{CommonValuesRef, ValueList};
use crate::desired::PUBLISHED_VERSION;
use crate::intake::SentParts;

/// The last stored Observation of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservationRecord {
    /// The time at which it arrived.
    pub at: Timestamp,
    /// The digest of the Observation as it was sent. The agent gets it back, and so knows that it need not send that
    /// Observation again.
    pub digest: PartDigest,
    /// The part of the Observation that the resolve of the node reads.
    pub observation: Observation,
    /// The place on the host that each reported label comes from.
    pub label_sources: BTreeMap<String, String>,
}

/// A node's results of the tasks of a task set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultsRecord {
    /// Sequence number up to which results are stored.
    pub acknowledged: u64,
    /// The last result of each task, by id.
    pub tasks: BTreeMap<String, StoredResult>,
    /// Number of results of the newest task set that were not stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

impl ResultsRecord {
    /// Returns the last result of a task if it belongs to this task set. A result of an earlier set is not about the
    /// current task. `task_set` lists the digests of the set.
    pub fn result_for(&self, task_set: &[PartDigest], task: &str) -> Option<&StoredResult> {
        self.tasks.get(task).filter(|outcome| task_set.contains(&outcome.result.task_set))
    }

    /// Returns how many results and texts of tasks were not stored.
    pub fn dropped_counts(&self) -> DroppedReportCounts {
        let texts = self.tasks.values().filter(|result| result.is_cut).count();
        DroppedReportCounts {
            results: self.left_out,
            texts: u32::try_from(texts).unwrap_or(u32::MAX),
            ..DroppedReportCounts::default()
        }
    }

    /// Returns whether any task of this task set has a result. If so, the host has held the set. `task_set` lists the
    /// digests of the set.
    pub fn has_results_for(&self, task_set: &[PartDigest]) -> bool {
        self.tasks.values().any(|outcome| task_set.contains(&outcome.result.task_set))
    }
}

/// The last result of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredResult {
    /// The time at which it arrived.
    pub at: Timestamp,
    /// The result as the host reported it.
    pub result: TaskResult,
    /// True if some of its texts were not stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// A node's last Report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportRecord {
    /// The time at which it arrived.
    pub at: Timestamp,
    /// The report of the host.
    pub report: Report,
    /// How much of the report was not stored.
    #[serde(default, skip_serializing_if = "DroppedReportCounts::is_empty")]
    pub left_out: DroppedReportCounts,
}

/// Returns the facts of a report that are about the agent itself.
pub(crate) fn agent_facts(report: &Report) -> impl Iterator<Item = (&String, &String)> {
    report.facts.iter().filter(|(path, _)| is_agent_fact(path))
}

/// The time at which a node's silence began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivenessRecord {
    /// True if the silence began at `since`, false if it ended.
    pub lost: bool,
    /// The time at which the silence began or ended.
    pub since: Timestamp,
    /// True if the node became silent before it confirmed the state last sent to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untold: bool,
}

/// The state last sent to a node's host. It is stored before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentRecord {
    /// The epoch of that state.
    pub epoch: Uuid,
    /// The revision within the epoch.
    pub revision: u64,
    /// The digests of its parts, or `None` if it was sent by a version that did not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<SentParts>,
    /// True if the host has not confirmed the parts yet. A version that did not record confirmations never set this
    /// field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

impl SentRecord {
    /// Returns the epoch and revision of the state that was sent.
    pub const fn sent_revision(&self) -> HeldRevision {
        HeldRevision { epoch: self.epoch, revision: self.revision }
    }
}

/// The task set that was released to a node, which is in force until another is released. In memory as in the store, it
/// consists of the values that are specific to the node and a reference to values that many nodes share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReleasedRecord {
    /// The revision of the snapshot that was resolved.
    pub revision: u64,
    /// The time of the release.
    pub at: Timestamp,
    /// The task set without the values that are stored for many nodes.
    #[serde(rename = "task_set", deserialize_with = "of_known_version")]
    own: TaskSet,
    /// The release that it was resolved from, for explain. `None` if there are no tasks.
    pub release: Option<String>,
    /// The reference to the common values that it uses, or `None` if it uses none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<CommonValuesRef>,
    /// Inputs whose texts are stored in chunks. Empty except in a stored record.
    #[serde(default, skip_serializing_if = "StoredTexts::is_empty")]
    texts: StoredTexts,
    /// The common values that it refers to.
    #[serde(skip)]
    values: Option<Arc<ValueList>>,
}

impl ReleasedRecord {
    /// Creates a record with the whole task set, without a reference to common values. See the fields for the
    /// parameters.
    pub fn new(revision: u64, at: Timestamp, task_set: TaskSet, release: Option<String>) -> Self {
        Self { revision, at, own: task_set, release, taken: None, texts: StoredTexts::new(), values: None }
    }

    /// Returns the record with another release.
    #[must_use]
    pub fn with_release(self, release: Option<String>) -> Self {
        Self { release, ..self }
    }

    /// Replaces the entries that the common values also have by a reference to them. `name` is the hash of the common
    /// values. Changes nothing if the entries are too small to be worth a reference.
    #[must_use]
    pub fn without_common(mut self, name: Hash, values: &Arc<ValueList>) -> Self {
        self.taken = CommonValuesRef::extract(&mut self.own, name, values);
        self.values = self.taken.as_ref().map(|_| Arc::clone(values));
        self
    }

    /// Encodes the record for the store. Also returns the chunks of its own texts.
    pub fn encode(&self) -> (Bytes, ChunksByHash) {
        let (mut stored, mut chunks) = (self.clone(), ChunksByHash::new());
        stored.texts = chunks::extract_texts(&mut stored.own.inputs, &mut chunks);
        let is_whole = stored.taken.is_none() && stored.texts.is_empty();
        (if is_whole { codec::encode(&stored) } else { codec::encode_newest(&stored) }, chunks)
    }

    /// Converts a decoded record to its form in memory, with the values that it refers to and the texts that are stored
    /// in chunks.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`] if the values are missing or do not match, or if a chunk is not stored.
    pub fn resolve(
        mut self,
        values: impl FnOnce(&Hash) -> Option<Arc<ValueList>>,
        chunk: impl Fn(&Hash) -> Option<Arc<str>>,
        texts: &SharedTexts,
    ) -> Result<Self, BadRecord> {
        if let Some(common) = &self.taken {
            let values = values(&common.values).ok_or_else(|| common.damaged_record("are not stored"))?;
            common.check_values(&values)?;
            self.values = Some(values);
        }
        chunks::restore_texts(&mut self.own.inputs, std::mem::take(&mut self.texts), chunk)?;
        let TaskSet { left_out, inputs, .. } = &mut self.own;
        texts.intern_all(left_out.values_mut().chain(inputs.values_mut().flat_map(InputValue::chunks_mut)));
        Ok(self)
    }

    /// Returns the whole task set.
    pub fn task_set(&self) -> Cow<'_, TaskSet> {
        let Some((common, values)) = self.taken.as_ref().zip(self.values.as_ref()) else {
            return Cow::Borrowed(&self.own);
        };
        let mut task_set = self.own.clone();
        common.restore(&mut task_set, values);
        Cow::Owned(task_set)
    }

    /// Returns the size of the values that are specific to the node, in bytes: tags, inputs, and reasons why tasks are
    /// left out. The record takes some hundred bytes more in the store.
    pub fn own_bytes(&self) -> u64 {
        let TaskSet { tags, primaries, left_out, inputs, .. } = &self.own;
        let texts = tags.iter().chain(primaries).map(String::len);
        let left_out = left_out.iter().map(|(id, why)| id.len() + why.len());
        let inputs = inputs.iter().map(|(reference, input)| reference.len() + input.text().map_or(0, chunks::min_record_bytes));
        texts.chain(left_out).chain(inputs).sum::<usize>() as u64
    }

    /// Returns an upper bound of the encoded size of the task set, in bytes.
    pub fn max_sent_bytes(&self) -> usize {
        let own_bytes =
            postcard::experimental::serialized_size(&self.own).expect("a task set holds nothing that postcard refuses");
        let common_bytes =
            self.taken.as_ref().zip(self.values.as_ref()).map_or(0, |(common, values)| common.max_sent_bytes(values));
        own_bytes + common_bytes
    }

    /// Returns the task set without common values. All fields but tags, inputs and left-out tasks are complete.
    pub fn base(&self) -> &TaskSet {
        &self.own
    }

    /// Returns whether a task of the profile runs.
    pub fn runs_task(&self, task: &str) -> bool {
        let is_left_out =
            || self.taken.as_ref().zip(self.values.as_ref()).is_some_and(|(common, all)| common.is_left_out(task, all));
        self.own.runs_task(task) && !is_left_out()
    }

    /// Returns the texts of the inputs that are specific to the node.
    pub fn own_texts(&self) -> impl Iterator<Item = &JsonText> {
        self.own.inputs.values().filter_map(InputValue::text)
    }

    /// Returns the digest of the task set in each wire version. `profile` is the profile that the task set refers to.
    pub fn digests(&self, profile: Option<&ProfileRecord>) -> Vec<PartDigest> {
        let whole = self.task_set();
        let digest = |version| {
            let task_set = whole.with_profile(profile.and_then(|profile| profile.name(version)));
            digest_part(version, &encode_part(version, &*task_set))
        };
        WireVersion::all().map(digest).collect()
    }

    /// Returns the ids of the tasks that run, in order. `profile` is the profile that the task set refers to.
    pub fn running_tasks<'a>(&'a self, profile: Option<&'a ProfileRecord>) -> impl Iterator<Item = &'a str> {
        let ids = profile.into_iter().flat_map(ProfileRecord::ids).map(String::as_str);
        ids.filter(|id| self.runs_task(id))
    }
}

/// Deserializes a task set. Fails if its digest version is newer than this program knows, because the digest could not
/// be computed.
fn of_known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TaskSet, D::Error> {
    let task_set = TaskSet::deserialize(deserializer)?;
    let (found, newest) = (task_set.digest_version, DigestVersion::LATEST.number());
    if found > newest {
        return Err(D::Error::custom(format_args!(
            "the released task set has digest version {found}, this program knows up to {newest}: run the newer stemma-controller"
        )));
    }
    Ok(task_set)
}

/// A profile that a released task set refers to. It is stored so that it is available after a restart, whatever the
/// release contains by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// The wire version of `bytes`. Commit 118d023 wrote none, because there was only one version.
    #[serde(default = "first", skip_serializing_if = "is_first", deserialize_with = "known_version")]
    version: WireVersion,
    /// The profile as it is encoded in the wire version `version`.
    pub bytes: Vec<u8>,
    /// The hashes of the blobs that the tasks of the profile use, sorted.
    pub blobs: Vec<Hash>,
    #[serde(skip)]
    ids: ParsedOnce<Box<[String]>>,
    #[serde(skip)]
    names: ParsedOnce<Box<[Hash]>>,
    #[serde(skip)]
    untranslated: ParsedOnce<BTreeSet<String>>,
    #[serde(skip)]
    observed: ParsedOnce<BTreeSet<String>>,
}

/// A value that is computed from a profile's bytes once. It is neither stored nor compared.
#[derive(Clone, Debug)]
struct ParsedOnce<T>(OnceLock<T>);

impl<T> Default for ParsedOnce<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> PartialEq for ParsedOnce<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for ParsedOnce<T> {}

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

/// Deserializes the wire version of a profile. Fails if this program does not support it.
fn known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WireVersion, D::Error> {
    let found = WireVersion::deserialize(deserializer)?;
    if found.is_supported() {
        return Ok(found);
    }
    Err(D::Error::custom(format_args!(
        "the profile has wire version {found}, this program knows up to {}: run the newer stemma-controller",
        WireVersion::CURRENT
    )))
}

impl ProfileRecord {
    /// Creates a profile record in the version [`PUBLISHED_VERSION`]. `blobs` are the blobs that its tasks use, sorted.
    pub fn new(bytes: Vec<u8>, blobs: Vec<Hash>) -> Self {
        let (ids, names) = (ParsedOnce::default(), ParsedOnce::default());
        let (untranslated, observed) = (ParsedOnce::default(), ParsedOnce::default());
        Self { version: PUBLISHED_VERSION, bytes, blobs, ids, names, untranslated, observed }
    }

    /// Decodes the profile. Returns `None` if it cannot be read.
    pub fn profile(&self) -> Option<Profile> {
        decode_part(self.version, &self.bytes).ok()
    }

    /// Returns the hash of the profile as encoded in a wire version, or `None` if the profile cannot be read.
    fn name(&self, version: WireVersion) -> Option<Hash> {
        let names = || {
            let profile = self.profile();
            let name = |version| profile.as_ref().map(|profile| hash_content(&encode_part(version, profile)));
            WireVersion::all().map_while(name).collect()
        };
        self.names.0.get_or_init(names).get(version.index()).copied()
    }

    /// Returns the ids of the tasks, in order. Empty if the profile cannot be read.
    fn ids(&self) -> &[String] {
        self.ids.0.get_or_init(|| self.tasks().into_iter().map(|task| task.id).collect())
    }

    /// Returns the tasks. Empty if the profile cannot be read.
    fn tasks(&self) -> Vec<ProfileTask> {
        self.profile().map(|profile| profile.tasks).unwrap_or_default()
    }

    /// Returns the ids of the tasks that never start because they have no translation.
    pub fn untranslated(&self) -> &BTreeSet<String> {
        let is_untranslated = |task: &ProfileTask| is_sent_untranslated(&task.definition);
        self.untranslated.0.get_or_init(|| self.ids_where(is_untranslated))
    }

    /// Returns the ids of the tasks that hosts neither run nor check, because of the task's own mode.
    pub fn observed(&self) -> &BTreeSet<String> {
        self.observed.0.get_or_init(|| self.ids_where(|task| is_sent_observed(&task.definition)))
    }

    /// Returns the ids of the tasks for which `predicate` is true. Empty if the profile cannot be read.
    fn ids_where(&self, predicate: impl Fn(&ProfileTask) -> bool) -> BTreeSet<String> {
        self.tasks().into_iter().filter(predicate).map(|task| task.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_record_is_refused_when_digest_version_is_newer() {
        let record = |digest_version| {
            let task_set = TaskSet { digest_version, ..TaskSet::default() };
            ReleasedRecord::new(1, Timestamp(0), task_set, None)
        };
        for known in 0..=DigestVersion::LATEST.number() {
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
    fn profile_record_lists_untranslated_and_observed_tasks() {
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
    fn profile_record_defaults_to_first_version_and_refuses_newer() {
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

    /// The stored test data of commit 118d023 has no such record, because none of its hosts was silent.
    #[test]
    fn liveness_record_is_encoded_as_118d023_wrote() {
        let record = LivenessRecord { lost: true, since: Timestamp(7), untold: false };
        let stored = br#"{"schema":1,"record":{"lost":true,"since":7}}"#;
        assert_eq!(&codec::encode(&record)[..], stored);
        assert_eq!(codec::decode::<LivenessRecord>(stored).unwrap(), record);
    }

    fn sent_record(held: HeldRevision, parts: Option<SentParts>, unconfirmed: bool) -> SentRecord {
        SentRecord { epoch: held.epoch, revision: held.revision, parts, unconfirmed }
    }

    #[test]
    fn y06_sent_record_is_compatible_with_older_version() {
        let held = HeldRevision { epoch: Uuid::from_u128(7), revision: 8 };
        let (record, stored) = (sent_record(held, None, false), codec::encode(&held));
        assert_eq!(codec::decode::<SentRecord>(&stored).unwrap(), record);
        let parts = Some(SentParts { known: PartDigest([1; 32]), task_set: PartDigest([2; 32]) });
        for unconfirmed in [false, true] {
            let newer = codec::encode(&sent_record(held, parts, unconfirmed));
            assert_eq!(codec::decode::<HeldRevision>(&newer).unwrap(), held);
            assert_eq!(codec::decode::<SentRecord>(&newer).unwrap(), sent_record(held, parts, unconfirmed));
            let names_it = newer.windows(b"unconfirmed".len()).any(|window| window == b"unconfirmed");
            assert_eq!(names_it, unconfirmed, "a confirmed one is stored as the version before wrote it");
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn released_record_digests_cover_every_wire_version() {
        let profile = Profile {
            tasks: vec![ProfileTask {
                id: "a".to_owned(),
                definition: String::new(),
                references: Vec::new(),
                after: Vec::new(),
                barriers: Vec::new(),
            }],
        };
        let (old, new) = (WireVersion::CURRENT, WireVersion::NEXT);
        let name = |version| hash_content(&encode_part(version, &profile));
        let task_set = |version| TaskSet { profile: Some(name(version)), ..TaskSet::default() };
        let sent = |version| digest_part(version, &encode_part(version, &task_set(version)));
        // The records that either version would have stored.
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
