//! The stored records of what hosts reported, and of what was sent to them. These records are not objects: they have no
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
use stemma_core::task::CLEAN_UP_PREFIX;
use stemma_wire::message::desired::{InputValue, Profile, ProfileTask, TaskSet};
use stemma_wire::message::observed::{Report, TaskResult};
use stemma_wire::message::{Hash, PartDigest, WireVersion, decode_part, digest_part, encode_part, hash_content};
use uuid::Uuid;

use super::chunks::{self, ChunksByHash, StoredTexts};
use super::codec::{self, BadRecord};
use super::common_values::{CommonValuesRef, ValueList};
use crate::desired::PUBLISHED_VERSION;
use crate::intake::SentParts;

/// The last Observation of a node (the facts, labels and traits that its host detected), as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservationRecord {
    /// The time at which the Observation arrived.
    pub at: Timestamp,
    /// The digest of the Observation as the host sent it. The controller returns the digest to the agent. The agent
    /// then does not send the same Observation again.
    pub digest: PartDigest,
    /// The part of the Observation that the node's desired state is computed from.
    pub observation: Observation,
    /// The place on the host that each reported label comes from, by label key.
    pub label_sources: BTreeMap<String, String>,
}

/// Minimum size of a fact's value that is stored only once for all nodes, in bytes. A long value, such as the list of the
/// agent's task types, is mostly the same on many hosts.
const MIN_SHARED_FACT_BYTES: usize = 256;

impl ObservationRecord {
    /// Returns the record with long values of facts that equal values of other records share (`texts`).
    #[must_use]
    pub fn with_shared_facts(mut self, texts: &SharedTexts) -> Self {
        let share_value = |value: &Arc<str>| {
            let mut shared_value = Arc::clone(value);
            if value.len() >= MIN_SHARED_FACT_BYTES {
                texts.intern_all([&mut shared_value].into_iter());
            }
            shared_value
        };
        self.observation.facts = self.observation.facts.intern(Arc::clone, share_value);
        self
    }
}

/// The results of a node's tasks: the last result of each task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultsRecord {
    /// Sequence number of the newest result that was stored or dropped. The host need not send this result or an
    /// earlier one again.
    pub acknowledged: u64,
    /// The last result of each task, by task id.
    pub tasks: BTreeMap<String, StoredResult>,
    /// Number of results of the newest task set that were dropped because of a limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

impl ResultsRecord {
    /// Returns the last result of a task, or `None` if there is none for the current task set. In another set, the task
    /// may have been different. `task_set` lists the digests of the current set, one for each wire version.
    pub fn result_for(&self, task_set: &[PartDigest], task: &str) -> Option<&StoredResult> {
        self.tasks.get(task).filter(|outcome| task_set.contains(&outcome.result.task_set))
    }

    /// Returns the last results of clean-ups that ran under the current task set. A clean-up is the task that runs once when
    /// the task that names it in `on_unassign` is no longer placed on the node. `task_set` lists the digests of the current
    /// set, one for each wire version.
    pub fn clean_ups<'a, 'b>(
        &'a self,
        task_set: &'b [PartDigest],
    ) -> impl Iterator<Item = (&'a str, &'a StoredResult)> + use<'a, 'b> {
        let results = self.tasks.range(CLEAN_UP_PREFIX.to_owned()..).take_while(|(id, _)| id.starts_with(CLEAN_UP_PREFIX));
        results.filter(move |(_, stored)| task_set.contains(&stored.result.task_set)).map(|(id, stored)| (id.as_str(), stored))
    }

    /// Returns the number of dropped results, and the number of results whose texts were cut or dropped.
    pub fn dropped_counts(&self) -> DroppedReportCounts {
        let texts = self.tasks.values().filter(|result| result.is_cut).count();
        DroppedReportCounts {
            results: self.left_out,
            texts: u32::try_from(texts).unwrap_or(u32::MAX),
            ..DroppedReportCounts::default()
        }
    }

    /// Returns whether any stored result belongs to this task set. If so, the host has received the task set.
    /// `task_set` lists the digests of the task set, one for each wire version.
    pub fn has_results_for(&self, task_set: &[PartDigest]) -> bool {
        self.tasks.values().any(|outcome| task_set.contains(&outcome.result.task_set))
    }
}

/// The last result of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredResult {
    /// The time at which the result arrived.
    pub at: Timestamp,
    /// The result as the host reported it, except for cut or dropped texts.
    pub result: TaskResult,
    /// True if some of the result's texts (message, output, diff) were cut or dropped because of a limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// The last Report of a node (agent version, findings, progress, facts that change often), as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportRecord {
    /// The time at which the Report arrived.
    pub at: Timestamp,
    /// The Report of the host, without invalid facts and facts over a limit, and with long texts cut.
    pub report: Report,
    /// The numbers of facts that were dropped and of texts that were cut.
    #[serde(default, skip_serializing_if = "DroppedReportCounts::is_empty")]
    pub left_out: DroppedReportCounts,
}

/// Returns the facts of a Report that are about the agent itself, each with its path.
pub(crate) fn agent_facts(report: &Report) -> impl Iterator<Item = (&String, &String)> {
    report.facts.iter().filter(|(path, _)| is_agent_fact(path))
}

/// The last change of a node from silent to not silent, or back. A node is silent if its agent does not check in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivenessRecord {
    /// True if the node is silent since `since`, false if it checked in again at `since`.
    pub lost: bool,
    /// The end of the last check-in if the node is silent, otherwise the time at which the node checked in again.
    pub since: Timestamp,
    /// True if the node became silent before it confirmed the desired state that was last sent to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untold: bool,
}

/// The desired state that was last sent to a node's host. The controller stores this record before it sends the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentRecord {
    /// The epoch (the history of the store since its creation or last restore) of the sent state.
    pub epoch: Uuid,
    /// The revision of the sent state within the epoch.
    pub revision: u64,
    /// The digests of the known part and of the task set that were sent, or `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<SentParts>,
    /// True if the host has not confirmed the sent state yet. Always false in a record of an older version, which did
    /// not record confirmations.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

impl SentRecord {
    /// Returns the epoch and revision of the desired state that was sent.
    pub const fn sent_revision(&self) -> HeldRevision {
        HeldRevision { epoch: self.epoch, revision: self.revision }
    }
}

/// The task set that was released to a node. It is in force until another task set is released to the node. The record
/// consists of the values that are specific to the node, and a reference to the common values, which many nodes share.
/// In memory, the record also holds the common values to which the reference refers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReleasedRecord {
    /// The revision of the store from which the task set was computed.
    pub revision: u64,
    /// The time at which the task set was released.
    pub at: Timestamp,
    /// The task set without the entries that it takes from the common values. The whole task set if `taken` is `None`.
    #[serde(rename = "task_set", deserialize_with = "deserialize_task_set")]
    own: TaskSet,
    /// The name of the release that the task set was computed from, or `None` if no level of the node names a release.
    pub release: Option<String>,
    /// The reference to the common values that the task set uses, or `None` if it uses none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<CommonValuesRef>,
    /// The texts of inputs that are stored separately, in chunks. Always empty in memory: only a stored record has
    /// entries.
    #[serde(default, skip_serializing_if = "StoredTexts::is_empty")]
    texts: StoredTexts,
    /// The common values that `taken` refers to. `None` if the task set uses none, and in a decoded record until
    /// `resolve` finds them.
    #[serde(skip)]
    values: Option<Arc<ValueList>>,
}

impl ReleasedRecord {
    /// Creates a record with the whole task set and without common values. See the fields for the parameters.
    pub fn new(revision: u64, at: Timestamp, task_set: TaskSet, release: Option<String>) -> Self {
        Self { revision, at, own: task_set, release, taken: None, texts: StoredTexts::new(), values: None }
    }

    /// Returns the record with another release name.
    #[must_use]
    pub fn with_release(self, release: Option<String>) -> Self {
        Self { release, ..self }
    }

    /// Returns the record with a reference to common values. The entries that are among the common values are removed
    /// from the record's own task set. `values_hash` is the hash of the common values. Changes nothing if these entries
    /// are too small to be worth a reference.
    #[must_use]
    pub fn without_common(mut self, values_hash: Hash, values: &Arc<ValueList>) -> Self {
        self.taken = CommonValuesRef::extract(&mut self.own, values_hash, values);
        self.values = self.taken.as_ref().map(|_| Arc::clone(values));
        self
    }

    /// Encodes the record for the store. Also returns the chunks of long input texts, for separate storage. A record
    /// that refers to chunks or common values has the newest schema version, so that older programs refuse it.
    pub fn encode(&self) -> (Bytes, ChunksByHash) {
        let (mut stored, mut chunks) = (self.clone(), ChunksByHash::new());
        stored.texts = chunks::extract_texts(&mut stored.own.inputs, &mut chunks);
        let has_no_references = stored.taken.is_none() && stored.texts.is_empty();
        (if has_no_references { codec::encode(&stored) } else { codec::encode_newest(&stored) }, chunks)
    }

    /// Converts a decoded record to its form in memory: adds the common values and the texts of the chunks.
    /// `find_values` returns common values by their hash, and `find_chunk` returns a chunk of a text by its hash.
    /// `texts` stores equal texts only once.
    ///
    /// # Errors
    /// [`BadRecord::Damaged`] if the common values are missing or do not match, or if a chunk is missing.
    pub fn resolve(
        mut self,
        find_values: impl FnOnce(&Hash) -> Option<Arc<ValueList>>,
        find_chunk: impl Fn(&Hash) -> Option<Arc<str>>,
        texts: &SharedTexts,
    ) -> Result<Self, BadRecord> {
        // `taken` is the reference to the common values.
        if let Some(common) = &self.taken {
            let values = find_values(&common.values).ok_or_else(|| common.damaged_record("are not stored"))?;
            common.check_values(&values)?;
            self.values = Some(values);
        }
        chunks::restore_texts(&mut self.own.inputs, std::mem::take(&mut self.texts), find_chunk)?;
        let TaskSet { left_out, inputs, .. } = &mut self.own;
        texts.intern_all(left_out.values_mut().chain(inputs.values_mut().flat_map(InputValue::chunks_mut)));
        Ok(self)
    }

    /// Returns the whole task set, with the entries that are among the common values.
    pub fn task_set(&self) -> Cow<'_, TaskSet> {
        let Some((common, values)) = self.taken.as_ref().zip(self.values.as_ref()) else {
            return Cow::Borrowed(&self.own);
        };
        let mut task_set = self.own.clone();
        common.restore(&mut task_set, values);
        Cow::Owned(task_set)
    }

    /// Returns the size of the values that are specific to the node (tags, primaries, inputs, reasons of left-out
    /// tasks), in bytes. A chunk that is stored separately counts only as a reference. The stored record is larger.
    pub fn own_bytes(&self) -> u64 {
        let TaskSet { tags, primaries, left_out, inputs, .. } = &self.own;
        let texts = tags.iter().chain(primaries).map(String::len);
        let left_out = left_out.iter().map(|(id, reason)| id.len() + reason.len());
        let inputs = inputs.iter().map(|(reference, input)| reference.len() + input.text().map_or(0, chunks::min_record_bytes));
        texts.chain(left_out).chain(inputs).sum::<usize>() as u64
    }

    /// Returns an upper bound of the task set's size when it is encoded for the host, in bytes.
    pub fn max_sent_bytes(&self) -> usize {
        let own_bytes = postcard::experimental::serialized_size(&self.own).expect("postcard can serialize every task set");
        let common_bytes =
            self.taken.as_ref().zip(self.values.as_ref()).map_or(0, |(common, values)| common.max_sent_bytes(values));
        own_bytes + common_bytes
    }

    /// Returns the task set without the common values. Its tags, primaries, inputs and left-out tasks are incomplete if
    /// it uses common values. All other fields are complete.
    pub fn base(&self) -> &TaskSet {
        &self.own
    }

    /// Returns whether the node runs `task`, the id of a task of its profile: it does unless the task is left out.
    pub fn runs_task(&self, task: &str) -> bool {
        let is_left_out =
            || self.taken.as_ref().zip(self.values.as_ref()).is_some_and(|(common, values)| common.is_left_out(task, values));
        self.own.runs_task(task) && !is_left_out()
    }

    /// Returns the texts of the inputs that are specific to the node, without those among the common values.
    pub fn own_texts(&self) -> impl Iterator<Item = &JsonText> {
        self.own.inputs.values().filter_map(InputValue::text)
    }

    /// Returns the digest of the task set in each wire version, oldest version first. The wire version is the version
    /// of the encoding between controller and agents. `profile` is the profile that the task set refers to.
    pub fn digests(&self, profile: Option<&ProfileRecord>) -> Vec<PartDigest> {
        let whole_task_set = self.task_set();
        let digest = |version| {
            let task_set = whole_task_set.with_profile(profile.and_then(|profile| profile.hash_in_version(version)));
            digest_part(version, &encode_part(version, &*task_set))
        };
        WireVersion::all().map(digest).collect()
    }

    /// Returns the ids of the tasks that the node runs, in their order in the profile. `profile` is the profile that
    /// the task set refers to.
    pub fn running_tasks<'a>(&'a self, profile: Option<&'a ProfileRecord>) -> impl Iterator<Item = &'a str> {
        let ids = profile.into_iter().flat_map(ProfileRecord::ids).map(String::as_str);
        ids.filter(|id| self.runs_task(id))
    }
}

/// Deserializes a task set. Fails if the task set has a newer digest version than this program supports, because this
/// program could not compute the task digest.
fn deserialize_task_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TaskSet, D::Error> {
    let task_set = TaskSet::deserialize(deserializer)?;
    let (found, newest) = (task_set.digest_version, DigestVersion::LATEST.number());
    if found > newest {
        return Err(D::Error::custom(format_args!(
            "the released task set has digest version {found}, this program knows up to {newest}: run the newer stemma-controller"
        )));
    }
    Ok(task_set)
}

/// A stored profile: the definitions and the order of a host's tasks. A released task set refers to it. The profile is
/// stored so that it is available after a restart, whatever the release contains by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// The wire version that `bytes` is encoded in. A stored record in the first version lacks this field, as do the
    /// records that an early program (commit 118d023) wrote.
    #[serde(default = "first", skip_serializing_if = "is_first", deserialize_with = "known_version")]
    version: WireVersion,
    /// The profile, encoded in the wire version `version`.
    pub bytes: Vec<u8>,
    /// The hashes of the blobs (files) that the tasks of the profile use, sorted.
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

/// A value that is computed from a profile's bytes at its first use. It is neither stored nor compared.
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

/// Deserializes the wire version of a profile. Fails if this program does not support that version.
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
    /// Creates the record of a profile that is encoded in the version [`PUBLISHED_VERSION`]. `blobs` are the hashes of
    /// the blobs (files) that its tasks use, sorted.
    pub fn new(bytes: Vec<u8>, blobs: Vec<Hash>) -> Self {
        let (ids, names) = (ParsedOnce::default(), ParsedOnce::default());
        let (untranslated, observed) = (ParsedOnce::default(), ParsedOnce::default());
        Self { version: PUBLISHED_VERSION, bytes, blobs, ids, names, untranslated, observed }
    }

    /// Decodes the profile. Returns `None` if it cannot be read.
    pub fn profile(&self) -> Option<Profile> {
        decode_part(self.version, &self.bytes).ok()
    }

    /// Returns the hash of the profile when it is encoded in a wire version, or `None` if the profile cannot be read.
    /// All hashes are computed at the first call.
    fn hash_in_version(&self, version: WireVersion) -> Option<Hash> {
        let compute_hashes = || {
            let profile = self.profile();
            let compute_hash = |version| profile.as_ref().map(|profile| hash_content(&encode_part(version, profile)));
            WireVersion::all().map_while(compute_hash).collect()
        };
        // `names` caches the hashes by which the versions of the profile are named; `.0` is the cell with their list.
        // The list is empty if the profile cannot be read.
        self.names.0.get_or_init(compute_hashes).get(version.index()).copied()
    }

    /// Returns the ids of the profile's tasks, in order. Empty if the profile cannot be read.
    fn ids(&self) -> &[String] {
        self.ids.0.get_or_init(|| self.tasks().into_iter().map(|task| task.id).collect())
    }

    /// Returns the tasks of the profile. Empty if the profile cannot be read.
    fn tasks(&self) -> Vec<ProfileTask> {
        self.profile().map(|profile| profile.tasks).unwrap_or_default()
    }

    /// Returns the ids of the tasks that no host starts, because the import of the release could not translate them.
    /// Empty if the profile cannot be read.
    pub fn untranslated(&self) -> &BTreeSet<String> {
        let is_untranslated = |task: &ProfileTask| is_sent_untranslated(&task.definition);
        self.untranslated.0.get_or_init(|| self.ids_where(is_untranslated))
    }

    /// Returns the ids of the tasks that hosts neither run nor check, because the task's own mode is `observe`. Empty
    /// if the profile cannot be read.
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
    fn released_record_is_decoded_unless_digest_version_is_newer() {
        let record = |digest_version| {
            let task_set = TaskSet { digest_version, ..TaskSet::default() };
            ReleasedRecord::new(1, Timestamp(0), task_set, None)
        };
        for version in 0..=DigestVersion::LATEST.number() {
            assert_eq!(codec::decode::<ReleasedRecord>(&codec::encode(&record(version))).unwrap(), record(version));
        }
        let error = codec::decode::<ReleasedRecord>(&codec::encode(&record(3))).unwrap_err();
        let reason = std::error::Error::source(&error).unwrap().to_string();
        assert!(
            reason.starts_with(
                "the released task set has digest version 3, this program knows up to 2: run the newer stemma-controller"
            ),
            "{reason}"
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
        assert_eq!(record.observed(), &BTreeSet::from(["seen".to_owned()]), "its own mode is observe");
    }

    #[test]
    fn profile_record_defaults_to_first_version_and_refuses_newer() {
        let bytes = postcard::to_allocvec(&Profile::default()).unwrap();
        let record = ProfileRecord::new(bytes, Vec::new());
        let stored = codec::encode(&record);
        assert_eq!(&stored[..], br#"{"schema":1,"record":{"bytes":[0],"blobs":[]}}"#, "the form that commit 118d023 wrote");
        assert_eq!(codec::decode::<ProfileRecord>(&stored).unwrap(), record);
        let stored_by_newer = br#"{"schema":1,"record":{"version":9,"bytes":[0],"blobs":[]}}"#;
        let error = codec::decode::<ProfileRecord>(stored_by_newer).unwrap_err();
        let reason = std::error::Error::source(&error).unwrap().to_string();
        let expected = "the profile has wire version 9, this program knows up to 1: run the newer stemma-controller";
        assert!(reason.starts_with(expected), "{reason}");
    }

    /// Checks the encoding of a record. The stored test data of commit 118d023 contains no liveness record, because
    /// none of its hosts was silent.
    #[test]
    fn liveness_record_is_encoded_as_118d023_wrote() {
        let record = LivenessRecord { lost: true, since: Timestamp(7), untold: false };
        let stored = br#"{"schema":1,"record":{"lost":true,"since":7}}"#;
        assert_eq!(&codec::encode(&record)[..], stored);
        assert_eq!(codec::decode::<LivenessRecord>(stored).unwrap(), record);
    }

    fn sent_record(sent_revision: HeldRevision, parts: Option<SentParts>, unconfirmed: bool) -> SentRecord {
        SentRecord { epoch: sent_revision.epoch, revision: sent_revision.revision, parts, unconfirmed }
    }

    #[test]
    fn y06_sent_record_is_compatible_with_older_version() {
        let sent_revision = HeldRevision { epoch: Uuid::from_u128(7), revision: 8 };
        let (record, stored) = (sent_record(sent_revision, None, false), codec::encode(&sent_revision));
        assert_eq!(codec::decode::<SentRecord>(&stored).unwrap(), record);
        let parts = Some(SentParts { known: PartDigest([1; 32]), task_set: PartDigest([2; 32]) });
        for unconfirmed in [false, true] {
            let newer = codec::encode(&sent_record(sent_revision, parts, unconfirmed));
            assert_eq!(codec::decode::<HeldRevision>(&newer).unwrap(), sent_revision);
            assert_eq!(codec::decode::<SentRecord>(&newer).unwrap(), sent_record(sent_revision, parts, unconfirmed));
            let contains_field = newer.windows(b"unconfirmed".len()).any(|window| window == b"unconfirmed");
            assert_eq!(contains_field, unconfirmed, "a confirmed record has no such field, as in the older version");
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
        // `NEXT` is a version for tests, which only debug builds have.
        let (old, new) = (WireVersion::CURRENT, WireVersion::NEXT);
        let profile_hash = |version| hash_content(&encode_part(version, &profile));
        let task_set = |version| TaskSet { profile: Some(profile_hash(version)), ..TaskSet::default() };
        let expected_digest = |version| digest_part(version, &encode_part(version, &task_set(version)));
        // The records that a controller of either version would have stored.
        for version in [old, new] {
            let stored = ProfileRecord { version, ..ProfileRecord::new(encode_part(version, &profile), Vec::new()) };
            let decoded = codec::decode::<ProfileRecord>(&codec::encode(&stored)).unwrap();
            let task_set = task_set(version);
            let released = ReleasedRecord::new(1, Timestamp(0), task_set, None);
            assert_eq!(released.digests(Some(&decoded)), [expected_digest(old), expected_digest(new)], "{version}");
            assert_eq!(decoded.profile().as_ref(), Some(&profile), "{version}");
        }
    }
}
