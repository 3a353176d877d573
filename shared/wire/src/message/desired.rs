//! The two parts of the desired state (*known* and *task set*), and the profile that the task set names.
//!
//! *Known* is replaced at once. The *task set* is replaced only when the controller releases a new one. The parts are
//! encoded separately. So each part has its own digest, and after a change of a label the tasks are not encoded again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stemma_core::input::Input;
use stemma_core::shared_text::JsonText;
use stemma_core::task::{Mode, Task};

use super::Hash;
use super::bounded;

/// Maximum size of both parts of a desired state together, in bytes. A controller sends no larger one. An agent allows
/// 4 KiB more.
pub const MAX_DESIRED_BYTES: usize = 256 * 1024;
/// Maximum number of tags in a desired state. The same maximum applies to the tags of which the node is the primary, to
/// its traits, and to its tags with probes. A desired state with more cannot be decoded.
pub const MAX_LISTED: usize = 1024;
/// Maximum number of tasks in a profile. The same maximum applies to the inputs of a task set, and to the tasks that a
/// node leaves out. A profile or task set with more cannot be decoded.
pub const MAX_ENTRIES: usize = 16_384;

/// The key of [`Known::lifecycle`] with the value 1 if the host removes orphans. It is among these fields because older
/// agents ignore a key that they do not know.
pub const REMOVE_ORPHANS: &str = "remove_orphans";

/// The part of a desired state that the agent replaces at once when it arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Name of the node, or its uuid as text if the node has no name.
    #[serde(deserialize_with = "bounded::text::<_, 255>")]
    pub name: String,
    /// `CLUSTER/GROUP`. Empty if the node is in no group.
    #[serde(deserialize_with = "bounded::text::<_, 600>")]
    pub group: String,
    /// Effective labels by key.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub labels: BTreeMap<String, KnownLabel>,
    /// Effective annotations by key.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub annotations: BTreeMap<String, String>,
    /// All traits of the node, without the suppressed ones, sorted.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub traits: Vec<String>,
    /// The durations of the lifecycle fields in seconds, by the name that the field has in a manifest, such as
    /// `min_ready_seconds`. A field that no level sets has its default value. A field without a limit is omitted. Also has
    /// [`REMOVE_ORPHANS`] if the nodegroup of the node sets it.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 16>")]
    pub lifecycle: BTreeMap<String, u64>,
    /// The highest mode that the host may use. The host runs in the lower of this mode and the task set's mode.
    #[serde(with = "ModeForm")]
    pub ceiling: Mode,
    /// The period over which the hosts of a group spread the runs of their hooks (programs in `hooks.d`), in seconds.
    pub splay_s: u32,
    /// The end of the node's hold (in seconds since 1970, or `u64::MAX` for a hold without an end) and its reason.
    pub hold: Option<(u64, String)>,
    /// True if the operator parked the node.
    pub parked: bool,
    /// True if the node's group or cluster is paused. The controller then sends no new task set.
    pub paused: bool,
    /// The probes of each tag that decide whether the software of the tag is ready, as canonical JSON text. No host
    /// runs them yet.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_LISTED>")]
    pub ready: BTreeMap<String, String>,
}

impl Known {
    /// Returns whether the host removes files that only tasks wrote and that no task manages any more.
    pub fn removes_orphans(&self) -> bool {
        self.lifecycle.get(REMOVE_ORPHANS) == Some(&1)
    }
}

/// An effective label of a node, with its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLabel {
    /// The value.
    pub value: String,
    /// True if the agent also writes the label to the host label map, a file for other programs of the host.
    pub to_host: bool,
    /// The level, inspection rule or host that provides the value: `nodegroup prod/frontends`, `rule NAME`, `host`.
    pub origin: String,
}

/// The serialized form of [`Mode`] in a desired state. It is a number in a message, and a capitalized name (`Apply`) in
/// the JSON of a stored record. A manifest has the name in lower case.
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
    /// The revision of the node group, for rollouts. It is always 0, because rollouts do not exist yet.
    pub group_revision: u64,
    /// The version of the algorithm that computed the task digest, or 0 if no task set was released to the node.
    pub digest_version: u32,
    /// The task digest, which changes when the host must run something else. It is not the
    /// [`PartDigest`](super::PartDigest) of this task set, which is the hash of the encoded bytes.
    pub task_digest: [u8; 32],
    /// The mode of this task set.
    #[serde(with = "ModeForm")]
    pub mode: Mode,
    /// The profile with the task definitions. `None` if there are no tasks.
    pub profile: Option<Hash>,
    /// Effective tags, sorted. A tag with a value has the form `NAME:VALUE`. The agent writes them to
    /// `/run/stemma/tags`.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub tags: Vec<String>,
    /// The names of the tags of which this node is the primary, sorted, without values.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub primaries: Vec<String>,
    /// The ids of tasks that are in the profile and do not run on this node, each with the reason.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_ENTRIES>")]
    pub left_out: BTreeMap<String, Arc<str>>,
    /// The inputs: for each reference (such as `labels.tier`) in a template of a task that runs on this node, its
    /// value. The key is the canonical text of the reference.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_ENTRIES>")]
    pub inputs: BTreeMap<String, InputValue>,
}

/// The value of an input, as sent and stored. It is a JSON text and not a parsed value, so that the digest of the task
/// set covers the exact bytes that were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputValue {
    /// A value, as canonical JSON text.
    Json(JsonText),
    /// No value. In a template, the test `is defined` is false for this input.
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
    /// Returns the JSON text of the value, or `None` for an absent value or a secret.
    pub const fn text(&self) -> Option<&JsonText> {
        match self {
            Self::Json(text) => Some(text),
            Self::Absent | Self::Secret { .. } => None,
        }
    }

    /// Returns the chunks of the value's JSON text. To save memory, the caller can replace a chunk with an equal chunk
    /// that other values share.
    pub fn chunks_mut(&mut self) -> &mut [Arc<str>] {
        match self {
            Self::Json(text) => text.chunks_mut(),
            Self::Absent | Self::Secret { .. } => &mut [],
        }
    }
}

impl From<&Input> for InputValue {
    /// Converts an input to the form that is sent: a value becomes canonical JSON text.
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

    /// Parses a received input. Fails if its text is not JSON.
    fn try_from(input: &InputValue) -> Result<Self, serde_json::Error> {
        Ok(match input {
            InputValue::Json(text) => Self::Value(serde_json::from_str(&text.to_text())?),
            InputValue::Absent => Self::Absent,
            InputValue::Secret { name, version } => Self::Secret { name: name.as_str().into(), version: *version },
        })
    }
}

impl TaskSet {
    /// Returns the task set with `profile` as its profile: a copy if the profile differs, or else the task set itself.
    /// `None` leaves the profile unchanged. To send the task set in another wire version, a caller replaces the
    /// profile, because a profile has another hash in each version.
    pub fn with_profile(&self, profile: Option<Hash>) -> Cow<'_, Self> {
        match profile {
            Some(_) if profile != self.profile => Cow::Owned(Self { profile, ..self.clone() }),
            _ => Cow::Borrowed(self),
        }
    }

    /// Returns whether this node runs a task of the profile. The caller must pass the id of such a task.
    pub fn runs_task(&self, task_id: &str) -> bool {
        !self.left_out.contains_key(task_id)
    }
}

/// An immutable task profile: the definitions of the tasks of a host and their order, without the values of inputs. Its
/// name is the SHA-256 of its encoded bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The tasks, in an order in which a host can run them: a task follows all tasks that it requires.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ENTRIES>")]
    pub tasks: Vec<ProfileTask>,
}

impl Profile {
    /// Returns the hashes of the blobs that the tasks name as their `source`. A task without such a source is skipped.
    pub fn blobs(&self) -> impl Iterator<Item = Hash> {
        self.tasks.iter().flat_map(|task| {
            let task = serde_json::from_str::<Task>(&task.definition);
            let hashes =
                task.map(|task| task.sources().into_iter().filter_map(|(_, source)| Hash::from_source(source).ok()).collect());
            hashes.unwrap_or_else(|_| Vec::new())
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
    /// The references that the task's templates read (such as `labels.tier`), as canonical texts, sorted.
    #[serde(deserialize_with = "bounded::list::<_, _, 4096>")]
    pub references: Vec<String>,
    /// Indices into [`Profile::tasks`] of the tasks that this task requires on this host, all lower than its own index.
    /// This task does not run if one of them failed, did not run, or has the mode `observe`.
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
    /// The selector of the nodes, in the canonical form that `stemma_core` writes.
    pub selector: String,
}
