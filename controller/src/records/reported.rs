//! What is stored of what hosts say, and of what they were told. None of it is an object: it has no generation and
//! no audit event, and no operator writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use stemma_core::digest::DigestVersion;
use stemma_core::object::{Observation, Timestamp};
use stemma_core::release::is_sent_untranslated;
use stemma_wire::message::desired::{Profile, ProfileTask, TaskSet};
use stemma_wire::message::observed::{Report, TaskResult};
use stemma_wire::message::{Hash, PartDigest, decode_part, digest_part, encode_part};

use crate::desired::PUBLISHED;

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
}

impl ResultsRecord {
    /// The last result of a task, where it is of this task set: one of an earlier set says nothing of what runs now.
    pub fn of(&self, task_set: PartDigest, task: &str) -> Option<&StoredResult> {
        self.tasks.get(task).filter(|outcome| outcome.result.task_set == task_set)
    }

    /// Whether any task of this task set has a result: then its host held that set.
    pub fn is_of(&self, task_set: PartDigest) -> bool {
        self.tasks.values().any(|outcome| outcome.result.task_set == task_set)
    }
}

/// The last result of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredResult {
    /// When it came.
    pub at: Timestamp,
    /// What the host said.
    pub result: TaskResult,
}

/// A node's last Report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportRecord {
    /// When it came.
    pub at: Timestamp,
    /// What it said.
    pub report: Report,
}

/// When a node's silence began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenRecord {
    /// Whether it is silent since then.
    pub lost: bool,
    /// Since when.
    pub since: Timestamp,
}

/// What was released to a node: the task set that is in force there until another is released.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReleasedRecord {
    /// The revision of the snapshot that was resolved.
    pub revision: u64,
    /// When.
    pub at: Timestamp,
    /// The task set, with its inputs.
    #[serde(deserialize_with = "of_known_version")]
    pub task_set: TaskSet,
    /// The release that it was made from, for explain; `None` without tasks.
    pub release: Option<String>,
}

impl ReleasedRecord {
    /// The digest of the task set, as it is sent.
    pub fn digest(&self) -> PartDigest {
        digest_part(PUBLISHED, &encode_part(PUBLISHED, &self.task_set))
    }

    /// The ids of the tasks that run, in order. `profile` is the one that the task set names.
    pub fn runs<'a>(&'a self, profile: Option<&'a ProfileRecord>) -> impl Iterator<Item = &'a str> {
        let ids = profile.into_iter().flat_map(ProfileRecord::ids).map(String::as_str);
        ids.filter(|id| self.task_set.runs(id))
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
    /// As it is sent.
    pub bytes: Vec<u8>,
    /// The blobs that its tasks name, sorted.
    pub blobs: Vec<Hash>,
    #[serde(skip)]
    ids: Ids,
}

/// The ids of a profile's tasks: read from its bytes once, and no part of what is stored or compared.
#[derive(Clone, Debug, Default)]
struct Ids(OnceLock<Box<[String]>>);

impl PartialEq for Ids {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Ids {}

impl ProfileRecord {
    /// A profile as it is sent, and the blobs that its tasks name, sorted.
    pub fn new(bytes: Vec<u8>, blobs: Vec<Hash>) -> Self {
        Self { bytes, blobs, ids: Ids::default() }
    }

    /// The ids of its tasks, in order; none where it cannot be read.
    fn ids(&self) -> &[String] {
        self.ids.0.get_or_init(|| self.tasks().into_iter().map(|task| task.id).collect())
    }

    /// Its tasks; none where it cannot be read.
    fn tasks(&self) -> Vec<ProfileTask> {
        decode_part::<Profile>(PUBLISHED, &self.bytes).map(|profile| profile.tasks).unwrap_or_default()
    }

    /// The ids of its tasks that are never started since nobody translated them.
    pub fn untranslated(&self) -> BTreeSet<String> {
        self.tasks().into_iter().filter(|task| is_sent_untranslated(&task.definition)).map(|task| task.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::codec;

    #[test]
    fn a_task_set_of_a_later_digest_version_is_refused_with_what_to_do() {
        let record = |digest_version| ReleasedRecord {
            revision: 1,
            at: Timestamp(0),
            task_set: TaskSet { digest_version, ..TaskSet::default() },
            release: None,
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
    fn a_profile_says_which_of_its_tasks_are_untranslated() {
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
        ];
        let bytes = postcard::to_allocvec(&Profile { tasks }).unwrap();
        assert_eq!(ProfileRecord::new(bytes, Vec::new()).untranslated(), BTreeSet::from(["old".to_owned()]));
    }
}
