//! The two parts of the desired state (*known* and *task set*), and the profile that the task set names.
//!
//! *Known* is replaced at once. The *task set* is replaced only when the controller releases it. The parts are encoded
//! separately, so that each has its own digest and editing a label encodes no tasks again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stemma_core::input::Input;
use stemma_core::shared_text::JsonText;
use stemma_core::task::{Mode, Task};

use super::Hash;
use super::bounded;

/// Maximum size of both parts of a desired state together, in bytes. A controller never sends more, and an agent
/// refuses more.
pub const MAX_DESIRED_BYTES: usize = 256 * 1024;
/// Maximum number of tags that an agent reads. The same limit applies to primaries, traits and probes.
pub const MAX_LISTED: usize = 1024;
/// Maximum number of tasks that an agent reads. The same limit applies to inputs and to tasks that are left out.
pub const MAX_ENTRIES: usize = 16_384;

/// The part of a desired state that the agent replaces at once when it arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Name of the node.
    #[serde(deserialize_with = "bounded::text::<_, 255>")]
    pub name: String,
    /// `CLUSTER/GROUP`. Empty if the node is in no group.
    #[serde(deserialize_with = "bounded::text::<_, 600>")]
    pub group: String,
    /// Effective labels by key.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub labels: BTreeMap<String, KnownLabel>,
    /// Effective annotations.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub annotations: BTreeMap<String, String>,
    /// The union of all traits without the suppressed ones, sorted.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub traits: Vec<String>,
    /// Lifecycle fields in seconds, by their name in the manifest. Fields without a limit are omitted.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 16>")]
    pub lifecycle: BTreeMap<String, u64>,
    /// The highest allowed mode. The lower of this mode and the task set's mode is in force.
    #[serde(with = "ModeForm")]
    pub ceiling: Mode,
    /// The period over which hooks are spread, in seconds.
    pub splay_s: u32,
    /// The end of the hold (seconds since 1970) and its reason. Until then the task set is not replaced.
    pub hold: Option<(u64, String)>,
    /// True if the operator parked the node.
    pub parked: bool,
    /// True if the group or cluster is paused and grants no new leases.
    pub paused: bool,
    /// Ready probes by tag, each as canonical JSON text.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_LISTED>")]
    pub ready: BTreeMap<String, String>,
}

/// An effective label of a node, with its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLabel {
    /// The value.
    pub value: String,
    /// True if the label is written to the host label map.
    pub to_host: bool,
    /// The origin of the value, in short: `nodegroup prod/frontends`, `host`.
    pub origin: String,
}

/// The names of the modes in stored records, where they are capitalized. A manifest has them in lower case.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Mode")]
enum ModeForm {
    Observe,
    Noop,
    Apply,
}

/// The part of a desired state that the controller replaces only when it releases a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSet {
    /// The node group's revision. Always 0 until rollouts exist.
    pub group_revision: u64,
    /// The version of the algorithm that computed the task digest.
    pub digest_version: u32,
    /// The task digest, which rollouts compare. It is not the [`PartDigest`](super::PartDigest) of this task set.
    pub task_digest: [u8; 32],
    /// The mode of this task set.
    #[serde(with = "ModeForm")]
    pub mode: Mode,
    /// The profile with the task definitions. `None` if there are no tasks.
    pub profile: Option<Hash>,
    /// Effective tags, sorted. A tag with a value is written as `NAME:VALUE`. Written to `/run/stemma/tags`.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub tags: Vec<String>,
    /// The names, without values, of the tags that this node holds as primary, sorted.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub primaries: Vec<String>,
    /// The ids of tasks that are in the profile and do not run on this node, each with the reason.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_ENTRIES>")]
    pub left_out: BTreeMap<String, Arc<str>>,
    /// The value of each reference, by the reference's canonical text.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_ENTRIES>")]
    pub inputs: BTreeMap<String, InputValue>,
}

/// The value of an input, as sent and stored. It is kept as text, so that the digest covers the bytes that were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputValue {
    /// A value, as canonical JSON text.
    Json(JsonText),
    /// The value is absent: `is defined` is false.
    Absent,
    /// A secret, by name and version. Never contains its value.
    Secret {
        /// The secret's name.
        #[serde(deserialize_with = "bounded::text::<_, 255>")]
        name: String,
        /// The secret's version.
        version: u64,
    },
}

impl InputValue {
    /// Returns the JSON text of a value. `None` for an absent value or a secret.
    pub const fn text(&self) -> Option<&JsonText> {
        match self {
            Self::Json(text) => Some(text),
            Self::Absent | Self::Secret { .. } => None,
        }
    }

    /// Returns the chunks of a value's text, so that the caller can replace them with equal chunks that are shared.
    pub fn chunks_mut(&mut self) -> &mut [Arc<str>] {
        match self {
            Self::Json(text) => text.chunks_mut(),
            Self::Absent | Self::Secret { .. } => &mut [],
        }
    }
}

impl From<&Input> for InputValue {
    fn from(input: &Input) -> Self {
        match input {
            Input::Value(value) => Self::Json(JsonText::from_value(value)),
            Input::Shared(shared) => Self::Json(shared.text()),
            Input::Absent => Self::Absent,
            Input::Secret { name, version } => Self::Secret { name: name.to_string(), version: *version },
        }
    }
}

impl TryFrom<&InputValue> for Input {
    type Error = serde_json::Error;

    fn try_from(input: &InputValue) -> Result<Self, serde_json::Error> {
        Ok(match input {
            InputValue::Json(text) => Self::Value(serde_json::from_str(&text.to_text())?),
            InputValue::Absent => Self::Absent,
            InputValue::Secret { name, version } => Self::Secret { name: name.as_str().into(), version: *version },
        })
    }
}

impl TaskSet {
    /// Returns the task set with this profile, as a copy if it names another profile. The profile must be replaced for
    /// another wire version, because a profile has a different name in each version.
    pub fn with_profile(&self, profile: Option<Hash>) -> Cow<'_, Self> {
        match profile {
            Some(_) if profile != self.profile => Cow::Owned(Self { profile, ..self.clone() }),
            _ => Cow::Borrowed(self),
        }
    }

    /// Returns whether a task of the profile runs on this node.
    pub fn runs_task(&self, task: &str) -> bool {
        !self.left_out.contains_key(task)
    }
}

/// An immutable task profile: the definitions and the order of tasks on one host, without values. Its name is the
/// SHA-256 of its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The tasks, in a valid order for the host: a dependency is before its dependants.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ENTRIES>")]
    pub tasks: Vec<ProfileTask>,
}

impl Profile {
    /// Returns the blobs that the tasks use as their `source`.
    pub fn blobs(&self) -> impl Iterator<Item = Hash> {
        self.tasks.iter().filter_map(|task| {
            let task: Task = serde_json::from_str(&task.definition).ok()?;
            Hash::from_source(task.source()?).ok()
        })
    }
}

/// One task of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileTask {
    /// The task's id.
    pub id: String,
    /// The definition: canonical JSON of the manifest's Task, without defaults.
    pub definition: String,
    /// The references that the task's templates read, as canonical texts, sorted.
    #[serde(deserialize_with = "bounded::list::<_, _, 4096>")]
    pub references: Vec<String>,
    /// Indices into `tasks` of the tasks that must succeed on this host first. Each is lower than this task's own
    /// index.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ENTRIES>")]
    pub after: Vec<u16>,
    /// The barriers that must be open before the task starts.
    #[serde(deserialize_with = "bounded::list::<_, _, 4096>")]
    pub barriers: Vec<Barrier>,
}

/// A condition on other nodes: a task must have succeeded on each node that a selector matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Barrier {
    /// The task that must have succeeded.
    pub task: String,
    /// The selector's canonical text, as core writes it.
    pub selector: String,
}
