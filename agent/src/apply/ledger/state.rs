//! The facts that the ledger holds.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stemma_core::task::Mode;
use stemma_wire::message::checkin::Held;
use stemma_wire::message::desired::{Barrier, Known, TaskSet};
use stemma_wire::message::observed::Outcome;
use stemma_wire::message::{Epoch, Message, PartDigest, Revision, WireVersion, decode_part, digest_part};

/// A desired state that was verified: both parts as they were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The wire version of the parts, of their digests, and of the profile that the task set names. It stands first, where every later
    /// agent has it too.
    pub version: WireVersion,
    /// The store's epoch.
    pub epoch: Epoch,
    /// The revision of the snapshot that was resolved.
    pub revision: Revision,
    /// The bytes of [`Known`].
    pub known: Vec<u8>,
    /// The bytes of [`TaskSet`].
    pub task_set: Vec<u8>,
}

impl Accepted {
    /// What the agent says that it holds.
    #[must_use]
    pub fn held(&self) -> Held {
        Held {
            epoch: self.epoch,
            revision: self.revision,
            known: digest_part(self.version, &self.known),
            task_set: digest_part(self.version, &self.task_set),
        }
    }

    /// Whether both parts can be read.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        part::<Known>(self.version, &self.known).is_some() && part::<TaskSet>(self.version, &self.task_set).is_some()
    }

    /// Both parts, read.
    #[must_use]
    pub fn desired(&self) -> Desired {
        Desired {
            version: self.version,
            known: part(self.version, &self.known).unwrap_or_default(),
            task_set: part(self.version, &self.task_set).unwrap_or_default(),
            digest: digest_part(self.version, &self.task_set),
        }
    }
}

/// A desired state as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The wire version in which it was sent, and in which the profile is that the task set names.
    pub version: WireVersion,
    /// The part that is replaced at once.
    pub known: Known,
    /// The part that is replaced when it is released.
    pub task_set: TaskSet,
    /// The digest of the second part, as results name it.
    pub digest: PartDigest,
}

impl Desired {
    /// The mode that is in force: the lower of the ceiling and the task set's.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.known.ceiling.min(self.task_set.mode)
    }

    /// Whether a hold or a pause keeps every task set from a node that never had one: its labels alone have come. Of a task set of a release, also
    /// of one without tasks, a controller names the profile and the version of its digest. Where neither a hold nor a pause is, having none is
    /// what was released, as where no level names a release; that a requirement keeps it away is not told to a host.
    #[must_use]
    pub fn is_unreleased(&self) -> bool {
        let Known { group, hold, paused, .. } = &self.known;
        let is_kept = !group.is_empty() && (hold.is_some() || *paused);
        is_kept && self.task_set.profile.is_none() && self.task_set.digest_version == 0
    }
}

/// A part of a desired state, or a profile, from the bytes that were sent in this version; `None` when this agent cannot read it.
pub(crate) fn part<M: Message>(version: WireVersion, bytes: &[u8]) -> Option<M> {
    decode_part(version, bytes).ok()
}

/// How far the tasks have come on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// By task id.
    pub tasks: BTreeMap<String, Performed>,
}

/// How a task last ended, and for which content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Performed {
    /// The task set that it was last reported for.
    pub task_set: PartDigest,
    /// Its content: definition and inputs.
    pub content: [u8; 32],
    /// How it ended.
    pub outcome: Outcome,
    /// When this content was last mended, seconds since 1970; at most three, the oldest first.
    pub mends: Vec<u64>,
}

/// Why a task ended as it did, for people on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// One sentence.
    pub message: String,
    /// The last lines of its output.
    pub output: String,
}

/// The journal's line of a task whose effect cannot be looked up on the host: a command without guards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The task.
    pub task: String,
    /// Its definition and inputs: another content is another step.
    pub content: [u8; 32],
    /// Where it stands.
    pub state: StepState,
}

/// Where a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepState {
    /// Written before it is begun. Found at a start of the agent, nobody knows what became of it.
    Begun,
    /// It ended well, or a person said so.
    Done,
    /// It ended, and not well.
    Failed,
    /// Begun and not known to have ended; waits for `resolve-unknown`.
    Unknown,
}

/// The keys of the host label map that are the agent's, with the value that it put there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMapRecord {
    /// The file that they were put into.
    pub path: String,
    /// Value by key.
    pub owned: BTreeMap<String, String>,
    /// What is being put there, from before the map is replaced until after.
    pub writing: BTreeMap<String, String>,
}

/// What the hooks were told last: the base of the next change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookSnapshot {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Traits.
    pub traits: BTreeSet<String>,
    /// Tags, `NAME` or `NAME:VALUE`.
    pub tags: BTreeSet<String>,
}

/// The barriers that a controller said to be open, for one task set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBarriers {
    /// The task set.
    pub task_set: PartDigest,
    /// The revision at which it was said.
    pub revision: Revision,
    /// Those that are open.
    pub open: BTreeSet<Barrier>,
}

/// What stood at a path before a task replaced it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoNote {
    /// The task that replaced it.
    pub task: String,
    /// The path.
    pub path: String,
    /// Its bytes; `None`: nothing stood there.
    pub bytes: Option<Vec<u8>>,
    /// Owner, group and mode, where something stood there.
    pub attributes: Option<(u32, u32, u32)>,
}
