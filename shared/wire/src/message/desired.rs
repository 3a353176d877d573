//! Desired state, in its two parts, and the profile that the second one names.
//!
//! *Known* is replaced at once; the *task set* only when the controller releases it. They are encoded apart,
//! so that each has a digest of its own and a label's edit re-encodes no task.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stemma_core::input::Input;
use stemma_core::shared_text::JsonText;
use stemma_core::task::{Mode, Task};

use super::Hash;
use super::bounded;

/// The bytes of a desired state, both parts together: a controller sends no more, and an agent refuses what is more.
pub const MAX_DESIRED: usize = 256 * 1024;
/// The most tags, primaries, traits and probes, of each, that an agent reads.
pub const MAX_LISTED: usize = 1024;
/// The most tasks, values that they read, and tasks that are left out, of each, that an agent reads.
pub const MAX_ENTRIES: usize = 16_384;

/// The part that is replaced at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The node's name.
    #[serde(deserialize_with = "bounded::text::<_, 255>")]
    pub name: String,
    /// `CLUSTER/GROUP`; empty for a node without a place.
    #[serde(deserialize_with = "bounded::text::<_, 600>")]
    pub group: String,
    /// Effective labels by key.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub labels: BTreeMap<String, KnownLabel>,
    /// Effective annotations.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 4096>")]
    pub annotations: BTreeMap<String, String>,
    /// The union of traits, less the suppressed ones, sorted.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub traits: Vec<String>,
    /// Lifecycle fields in seconds by their manifest name; one that is not limited is left out.
    #[serde(deserialize_with = "bounded::map::<_, _, _, 16>")]
    pub lifecycle: BTreeMap<String, u64>,
    /// What is in force is the lower of this and the task set's mode.
    #[serde(with = "ModeForm")]
    pub ceiling: Mode,
    /// Hooks are spread over so many seconds.
    pub splay_s: u32,
    /// Until when (seconds since 1970) and why the task set stays.
    pub hold: Option<(u64, String)>,
    /// Set aside by the operator.
    pub parked: bool,
    /// No new lease in group or cluster.
    pub paused: bool,
    /// Ready probes by tag, each a canonical JSON text.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_LISTED>")]
    pub ready: BTreeMap<String, String>,
}

/// One effective label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLabel {
    /// The value.
    pub value: String,
    /// Whether it flows to the host label map.
    pub to_host: bool,
    /// Where it came from, in short: `nodegroup prod/frontends`, `host`.
    pub origin: String,
}

/// The names of the modes in stored records, where they are capitalised; a manifest has them in small letters.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Mode")]
enum ModeForm {
    Observe,
    Noop,
    Apply,
}

/// The part that is replaced only when it is released.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSet {
    /// The node group's revision; 0 until there are rollouts.
    pub group_revision: u64,
    /// The version under which the task digest was computed.
    pub digest_version: u32,
    /// The task digest: what a rollout compares. Not a part's digest.
    pub task_digest: [u8; 32],
    /// The mode of this task set.
    #[serde(with = "ModeForm")]
    pub mode: Mode,
    /// The profile that holds the definitions; `None`: no tasks.
    pub profile: Option<Hash>,
    /// Effective tags, sorted, with `NAME:VALUE` where one has a value; written to `/run/stemma/tags`.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub tags: Vec<String>,
    /// Plain names of the tags held as primary, sorted.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_LISTED>")]
    pub primaries: Vec<String>,
    /// Task ids that stand in the profile and do not run here, with the reason.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_ENTRIES>")]
    pub left_out: BTreeMap<String, Arc<str>>,
    /// Each reference's value, by the reference's canonical text.
    #[serde(deserialize_with = "bounded::map::<_, _, _, MAX_ENTRIES>")]
    pub inputs: BTreeMap<String, InputValue>,
}

/// An input as it travels and is stored: as text, so that its digest is one of the bytes that were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputValue {
    /// A value, as canonical JSON text.
    Json(JsonText),
    /// It is not there: `is defined` is false.
    Absent,
    /// A secret by name and version; its value is never here.
    Secret {
        /// The secret's name.
        #[serde(deserialize_with = "bounded::text::<_, 255>")]
        name: String,
        /// Its version.
        version: u64,
    },
}

impl InputValue {
    /// The text of a value.
    pub const fn text(&self) -> Option<&JsonText> {
        match self {
            Self::Json(text) => Some(text),
            Self::Absent | Self::Secret { .. } => None,
        }
    }

    /// The chunks of the text of a value, to be replaced by equal ones that are shared.
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
            Input::Value(value) => Self::Json(JsonText::of(value)),
            Input::Shared(found) => Self::Json(found.text()),
            Input::Absent => Self::Absent,
            Input::Secret { name, version } => Self::Secret { name: name.to_string(), version: *version },
        }
    }
}

impl TryFrom<&InputValue> for Input {
    type Error = serde_json::Error;

    fn try_from(sent: &InputValue) -> Result<Self, serde_json::Error> {
        Ok(match sent {
            InputValue::Json(text) => Self::Value(serde_json::from_str(&text.as_text())?),
            InputValue::Absent => Self::Absent,
            InputValue::Secret { name, version } => Self::Secret { name: name.as_str().into(), version: *version },
        })
    }
}

impl TaskSet {
    /// The same task set with its profile by this name, where it is another one: a profile has a name in each wire version.
    pub fn naming(&self, profile: Option<Hash>) -> Cow<'_, Self> {
        match profile {
            Some(_) if profile != self.profile => Cow::Owned(Self { profile, ..self.clone() }),
            _ => Cow::Borrowed(self),
        }
    }

    /// Whether a task of its profile runs.
    pub fn runs(&self, task: &str) -> bool {
        !self.left_out.contains_key(task)
    }
}

/// An immutable task profile: definitions and order on one host, no values. Its name is the SHA-256 of its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Tasks in a valid order on the host (a dependency stands before its dependants).
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ENTRIES>")]
    pub tasks: Vec<ProfileTask>,
}

impl Profile {
    /// The blobs that its tasks are made from.
    pub fn blobs(&self) -> impl Iterator<Item = Hash> {
        self.tasks.iter().filter_map(|task| {
            let task: Task = serde_json::from_str(&task.definition).ok()?;
            Hash::of_source(task.source()?).ok()
        })
    }
}

/// One task of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileTask {
    /// The task's id.
    pub id: String,
    /// Its definition, canonical JSON of the manifest's Task (defaults left out).
    pub definition: String,
    /// Its references, canonical texts, sorted: what its templates read.
    #[serde(deserialize_with = "bounded::list::<_, _, 4096>")]
    pub references: Vec<String>,
    /// Indices into `tasks` of what must have ended well first on this host, each lower than its own.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_ENTRIES>")]
    pub after: Vec<u16>,
    /// Barriers that must be open before it starts.
    #[serde(deserialize_with = "bounded::list::<_, _, 4096>")]
    pub barriers: Vec<Barrier>,
}

/// Something that must have happened on other nodes: a task, on each node that a selector matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Barrier {
    /// The task waited for.
    pub task: String,
    /// The selector's canonical text, as core writes it.
    pub selector: String,
}
