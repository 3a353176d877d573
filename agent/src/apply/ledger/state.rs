//! The types of the ledger's records.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stemma_core::digest::sha256;
use stemma_core::task::Mode;
use stemma_wire::message::checkin::HeldDesired;
use stemma_wire::message::desired::{Barrier, InputValue, Known, TaskSet};
use stemma_wire::message::observed::Outcome;
use stemma_wire::message::{Epoch, Message, PartDigest, Revision, WireVersion, decode_part, digest_part};

/// A desired state that the agent has verified and accepted. It contains the two parts (known and task set) as the
/// bytes that the controller sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedState {
    /// The wire version of the parts, of their digests, and of the profile (the list of tasks) that the task set names.
    /// This is the first field, so that an agent can read the version before it reads the other fields.
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

impl AcceptedState {
    /// Returns the epoch, the revision and the digests of this desired state. The agent reports them to the controller.
    #[must_use]
    pub fn held_desired(&self) -> HeldDesired {
        HeldDesired {
            epoch: self.epoch,
            revision: self.revision,
            known: digest_part(self.version, &self.known),
            task_set: digest_part(self.version, &self.task_set),
        }
    }

    /// Returns whether this agent can decode both parts.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        read_part::<Known>(self.version, &self.known).is_some() && read_part::<TaskSet>(self.version, &self.task_set).is_some()
    }

    /// Decodes both parts. The result has an empty part in place of an unreadable part, so the caller checks
    /// [`Self::is_readable`] first.
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
    /// The wire version in which the controller encoded this state, and also the profile (the list of tasks) that the
    /// task set names.
    pub version: WireVersion,
    /// The labels, traits and lifecycle fields. The controller sends them to the host at once.
    pub known: Known,
    /// The mode, tags, inputs and profile hash. The controller sends them only when it releases the task set.
    pub task_set: TaskSet,
    /// The digest of the task set. Each task result contains the digest of its task set.
    pub digest: PartDigest,
}

impl Desired {
    /// Returns the effective mode: the lower of the task set's mode and the ceiling (the node's highest allowed mode).
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.known.ceiling.min(self.task_set.mode)
    }

    /// Returns whether the node is held or paused before it received its first task set, so that it has only labels.
    ///
    /// A released task set, even one without tasks, has a profile and a digest version. So a task set without both was
    /// not released. If the node is neither held nor paused, such a task set only means that no level names a release.
    /// An unmet requirement can also withhold the first task set. The host does not know this, so the result is then
    /// `false`.
    #[must_use]
    pub fn is_unreleased(&self) -> bool {
        let Known { group, hold, paused, .. } = &self.known;
        // A node in no group has no task set that could be withheld.
        let is_withheld = !group.is_empty() && (hold.is_some() || *paused);
        is_withheld && self.task_set.profile.is_none() && self.task_set.digest_version == 0
    }
}

/// Decodes a part of a desired state, or a profile (the list of tasks), that is encoded in this wire version. Returns
/// `None` if this agent cannot read the bytes.
pub(crate) fn read_part<M: Message>(version: WireVersion, bytes: &[u8]) -> Option<M> {
    decode_part(version, bytes).ok()
}

/// The outcome that the agent last reported, for each task on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// The records of the tasks, by task id.
    pub tasks: BTreeMap<String, TaskRecord>,
}

/// The outcome of a task that the agent last reported, and the content (definition and inputs) that the task then had.
/// A later run that changes nothing after a success is not recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The digest of the task set for which the agent last reported a result of the task.
    pub task_set: PartDigest,
    /// Digest of the task's definition and inputs.
    pub content: [u8; 32],
    /// The outcome that the agent last reported for the task.
    pub outcome: Outcome,
    /// The times at which the task last mended drift with this content, in seconds since 1970. The list has at most
    /// three times, the oldest first.
    pub mends: Vec<u64>,
}

/// The reason for the last outcome of a task. People on the host read it. After a restore, the agent reports it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The reason as one sentence.
    pub message: String,
    /// The end of the task's output. Empty for a sensitive task.
    pub output: String,
}

/// The journal entry of a command without guards (`creates`, `unless`, `only_if`). The agent cannot check the effect of
/// such a command on the host, so it records whether the command ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Id of the task.
    pub task: String,
    /// Digest of the task's definition and inputs. A task with another digest is a new step, which has not run yet.
    pub content: [u8; 32],
    /// The state of the step.
    pub state: StepState,
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepState {
    /// The agent writes this state directly before it starts the command. If the agent later finds this state on disk,
    /// it does not know whether the command ran or how the command ended.
    Begun,
    /// The command succeeded, or a person confirmed that it did.
    Done,
    /// The command could not be started, or it ended without success, or a person answered that it must run again.
    Failed,
    /// The journal entry is lost, so it is unknown whether the command ran to its end. The agent does not store this
    /// state: `stemma-agent resolve-unknown` uses it until it stores the answer of a person.
    Unknown,
}

/// The keys that the agent owns in the host label map, with the values that it wrote. The map is a file to which other
/// programs also write labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMapRecord {
    /// The path of the host label map.
    pub path: String,
    /// The label values that the agent wrote into the host label map, by key.
    pub owned: BTreeMap<String, String>,
    /// The keys and values that the agent is about to write. The agent records them before it replaces the map, and
    /// clears them afterwards. So after a crash in between, the record still names every key of the agent.
    pub writing: BTreeMap<String, String>,
}

/// The state of the node at the last run of the hooks (programs that the agent runs after a change). The agent compares
/// this snapshot with the current state to find the next change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookSnapshot {
    /// The effective labels of the node.
    pub labels: BTreeMap<String, String>,
    /// The annotations of the node.
    pub annotations: BTreeMap<String, String>,
    /// The traits of the node.
    pub traits: BTreeSet<String>,
    /// The tags of the node, as `NAME` or `NAME:VALUE`, and its primaries, as `primary-NAME`.
    pub tags: BTreeSet<String>,
}

/// The barriers of one task set that a controller reported as open: the tasks behind them may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBarriers {
    /// Digest of the task set for which the barriers are open.
    pub task_set: PartDigest,
    /// The store revision at which the controller reported the barriers, or a new task set or epoch closed them all.
    pub revision: Revision,
    /// The open barriers.
    pub open: BTreeSet<Barrier>,
}

/// A copy of a file from before a task replaced or deleted it. If a task created the file, the copy has no content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoNote {
    /// Id of the task that replaced, deleted or created the file.
    pub task: String,
    /// The path of the file.
    pub path: String,
    /// The content of the file before the task, or `None` if no file existed.
    pub bytes: Option<Vec<u8>>,
    /// Owner id, group id and mode (without access control list) before the task, or `None` if no file existed.
    pub attributes: Option<(u32, u32, u32)>,
}

/// The kind of an object of the host that a task left. The ledger stores the position of the variant, so a new kind comes
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ObjectKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A package of the distribution.
    Package,
    /// A systemd unit that a task enabled or started.
    Unit,
    /// A user account.
    User,
    /// A group account.
    Group,
}

/// The kind and the name of an object of the host. The name of a file, directory or link is its path.
pub type HostObject = (ObjectKind, String);

/// An object that a task left on the host: it stays when the task is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftObject {
    /// Id of a task that left the object.
    pub task: String,
    /// True if that task is sensitive, so that the object may hold a secret.
    pub is_secret: bool,
    /// True if the object did not exist before a task created it.
    pub is_created: bool,
    /// SHA-256 digest of the file as the task last wrote it. `None` for other objects, and for files of older agents.
    pub digest: Option<[u8; 32]>,
}

/// The task that runs once when another task, which names it in `on_unassign`, is no longer placed on this node. It has
/// everything that the run needs, because no later task set has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanUp {
    /// Id of the task that runs.
    pub task: String,
    /// Its definition, with the id under which it runs as a clean-up.
    pub definition: String,
    /// The references that its templates read.
    pub references: Vec<String>,
    /// The values of these references.
    pub inputs: BTreeMap<String, InputValue>,
    /// The position of the task that names it, in the last profile that had that task.
    pub position: u32,
    /// Whether it must run.
    pub step: CleanUpStep,
}

/// The step of a clean-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CleanUpStep {
    /// The task that names it is placed on this node.
    Assigned,
    /// That task is no longer placed, and the clean-up has not succeeded.
    Due,
    /// The clean-up has succeeded.
    Done,
}

/// What is known about what tasks left beyond the objects that are recorded one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftTrees {
    /// The number of files in each recorded directory whose content is not recorded one by one, by its path.
    pub counts: BTreeMap<String, u64>,
    /// The number of objects that had no room in the record. It is 0 if the record is complete.
    pub omitted_count: u64,
}

/// What is known about the files that a task has copied, by the path of each copy in its tree.
pub type TreeRecord = BTreeMap<String, CopiedFile>;

/// Two files that were equal when the agent compared them. As long as both marks stay the same, so are the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// The mark of the source: the hash of a blob, or of the version of a file.
    pub source: [u8; 32],
    /// The mark of the copy: the hash of its version.
    pub copy: [u8; 32],
}

/// Maximum number of files that a [`SyncRecord`] names.
const MAX_NAMED_FILES: usize = 2048;

/// What is known about the files of a `sync` task. A file takes 16 bytes, so that the record of a large tree is small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// A digest of the path and of both marks of each file that was equal to its source.
    digests: BTreeSet<[u8; 16]>,
    /// The paths of the files in the tree. Empty if there are more than [`MAX_NAMED_FILES`].
    names: BTreeSet<String>,
    file_count: u64,
}

impl SyncRecord {
    /// Adds a file that is equal to its source. The caller adds each path once.
    pub fn insert(&mut self, path: &str, file: &CopiedFile) {
        self.digests.insert(Self::digest(path, file));
        if self.names().is_some() && self.names.len() < MAX_NAMED_FILES {
            self.names.insert(path.to_owned());
        } else {
            self.names.clear();
        }
        self.file_count += 1;
    }

    /// Returns whether these two files were equal when they were compared last.
    #[must_use]
    pub fn contains(&self, path: &str, file: &CopiedFile) -> bool {
        self.digests.contains(&Self::digest(path, file))
    }

    /// Returns the number of files.
    #[must_use]
    pub const fn file_count(&self) -> u64 {
        self.file_count
    }

    /// Returns the paths of all files, or `None` if the record does not name them because there are too many.
    #[must_use]
    pub fn names(&self) -> Option<&BTreeSet<String>> {
        (self.names.len() as u64 == self.file_count).then_some(&self.names)
    }

    /// Adds what an earlier record has, which is about files that this one may lack.
    pub fn add_earlier(&mut self, earlier: Self, max_files: usize) {
        let has_names = self.names().is_some() && earlier.names().is_some();
        self.digests.extend(earlier.digests.into_iter().take(max_files.saturating_sub(self.digests.len())));
        self.names.extend(earlier.names);
        if has_names && self.names.len() <= MAX_NAMED_FILES {
            self.file_count = self.names.len() as u64;
        } else {
            self.names.clear();
            self.file_count = self.file_count.max(earlier.file_count);
        }
    }

    /// Removes the names if they have more than `max_bytes` bytes.
    pub(super) fn limit_names(&mut self, max_bytes: usize) {
        if self.names.iter().map(String::len).sum::<usize>() > max_bytes {
            self.names.clear();
        }
    }

    /// Returns the digest of a file. The path is the only part without a fixed size.
    fn digest(path: &str, file: &CopiedFile) -> [u8; 16] {
        let digest = sha256(&[path.as_bytes(), &file.source, &file.copy].concat());
        std::array::from_fn(|index| digest[index])
    }
}
