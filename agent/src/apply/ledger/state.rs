//! The types of the ledger's records.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stemma_core::task::Mode;
use stemma_wire::message::checkin::HeldDesired;
use stemma_wire::message::desired::{Barrier, Known, TaskSet};
use stemma_wire::message::observed::Outcome;
use stemma_wire::message::{Epoch, Message, PartDigest, Revision, WireVersion, decode_part, digest_part};

/// A verified desired state, with both parts as they were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The wire version of the parts, of their digests, and of the profile that the task set names. This is the first
    /// field, so that an agent can read it before it knows how to read the rest.
    pub version: WireVersion,
    /// The epoch of the controller's store.
    pub epoch: Epoch,
    /// The revision of the store at which the controller computed this desired state.
    pub revision: Revision,
    /// The bytes of [`Known`].
    pub known: Vec<u8>,
    /// The bytes of [`TaskSet`].
    pub task_set: Vec<u8>,
}

impl Accepted {
    /// Returns what the agent reports to the controller about this desired state: its revision and the digests of its
    /// parts.
    #[must_use]
    pub fn held(&self) -> HeldDesired {
        HeldDesired {
            epoch: self.epoch,
            revision: self.revision,
            known: digest_part(self.version, &self.known),
            task_set: digest_part(self.version, &self.task_set),
        }
    }

    /// Returns whether both parts are readable.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        read_part::<Known>(self.version, &self.known).is_some() && read_part::<TaskSet>(self.version, &self.task_set).is_some()
    }

    /// Decodes both parts. A part that cannot be read becomes an empty one, so check [`Self::is_readable`] first.
    #[must_use]
    pub fn desired(&self) -> Desired {
        Desired {
            version: self.version,
            known: read_part(self.version, &self.known).unwrap_or_default(),
            task_set: read_part(self.version, &self.task_set).unwrap_or_default(),
            digest: digest_part(self.version, &self.task_set),
        }
    }
}

/// A decoded desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The wire version in which the controller sent this state and the profile that the task set names.
    pub version: WireVersion,
    /// Labels, traits and lifecycle fields, which reach the host at once.
    pub known: Known,
    /// What the host runs, which reaches the host only when it is released.
    pub task_set: TaskSet,
    /// The digest of the task set, as results name it.
    pub digest: PartDigest,
}

impl Desired {
    /// Returns the effective mode: the lower of the ceiling and the task set's mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.known.ceiling.min(self.task_set.mode)
    }

    /// Returns whether a hold or a pause keeps the first task set from the node, so that the node only has its labels.
    /// This is recognized by the task set: with every released task set, even one without tasks, the controller sends a
    /// profile and the version of its digest. Without a hold or a pause, an empty task set means that no level names a
    /// release. The controller does not tell a host that a requirement withholds its task set, so this returns `false`
    /// then.
    #[must_use]
    pub fn is_unreleased(&self) -> bool {
        let Known { group, hold, paused, .. } = &self.known;
        let is_withheld = !group.is_empty() && (hold.is_some() || *paused);
        is_withheld && self.task_set.profile.is_none() && self.task_set.digest_version == 0
    }
}

/// Decodes a part of a desired state, or a profile, of this version. Returns `None` if this agent cannot read it.
pub(crate) fn read_part<M: Message>(version: WireVersion, bytes: &[u8]) -> Option<M> {
    decode_part(version, bytes).ok()
}

/// The progress of the tasks on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// The tasks by id.
    pub tasks: BTreeMap<String, TaskRecord>,
}

/// How a task last ended, and for which content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The task set for which the task was last reported.
    pub task_set: PartDigest,
    /// Digest of the task's definition and inputs.
    pub content: [u8; 32],
    /// How the task ended.
    pub outcome: Outcome,
    /// When this content was last mended, in seconds since 1970. At most three times, oldest first.
    pub mends: Vec<u64>,
}

/// Why a task ended as it did, for people on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The reason as one sentence.
    pub message: String,
    /// The last lines of the task's output.
    pub output: String,
}

/// The journal entry of a task whose effect cannot be checked on the host: a command without guards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Id of the task.
    pub task: String,
    /// Digest of the task's definition and inputs. With another content the task is a new step, which has not run yet.
    pub content: [u8; 32],
    /// The state of the step.
    pub state: StepState,
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepState {
    /// The command was about to start when this was written. If a check finds this state, it is unknown whether and how
    /// the command ended.
    Begun,
    /// The command succeeded, or a person confirmed that it did.
    Done,
    /// The command ended and did not succeed.
    Failed,
    /// The command was begun and is not known to have ended. It does not run again until a person resolves this with
    /// `resolve-unknown`.
    Unknown,
}

/// The keys of the host label map that the agent owns, with the values that it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMapRecord {
    /// The path of the map.
    pub path: String,
    /// The values that the agent wrote, by key.
    pub owned: BTreeMap<String, String>,
    /// The keys and values that the agent is about to write. Set before the map is replaced and cleared afterwards, so
    /// that a crash in between leaves no key without an owner.
    pub writing: BTreeMap<String, String>,
}

/// The last snapshot that the hooks received, from which the next change is computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookSnapshot {
    /// The effective labels of the node.
    pub labels: BTreeMap<String, String>,
    /// The annotations of the node.
    pub annotations: BTreeMap<String, String>,
    /// The traits of the node.
    pub traits: BTreeSet<String>,
    /// The tags of the node, as `NAME` or `NAME:VALUE_CLASS`, and its primaries, as `primary-NAME`.
    pub tags: BTreeSet<String>,
}

/// The barriers that a controller reported as open, for one task set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBarriers {
    /// Digest of the task set for which the barriers are open.
    pub task_set: PartDigest,
    /// The store revision at which the controller reported the barriers.
    pub revision: Revision,
    /// The open barriers.
    pub open: BTreeSet<Barrier>,
}

/// The file at a path before a task replaced it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoNote {
    /// Id of the task that replaced the file.
    pub task: String,
    /// The path of the file.
    pub path: String,
    /// The bytes of the file, or `None` if there was none.
    pub bytes: Option<Vec<u8>>,
    /// Owner, group and mode, if there was a file.
    pub attributes: Option<(u32, u32, u32)>,
}
