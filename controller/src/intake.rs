//! What hosts say, handed on to registry and cache.
//!
//! A trait, because the listener must not know how an Observation becomes a commit; and because its tests need
//! one that fails on demand. Implemented by the registry.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use stemma_core::epoch::HeldRevision;
use stemma_wire::message::checkin::GiveBack;
use stemma_wire::message::observed::{LocalState, Observation, Report, TaskResult};
use stemma_wire::message::signed::LeaseKind;
use stemma_wire::message::{Hash, PartDigest};
use uuid::Uuid;

use crate::store::BoxFuture;

/// What of a node's words is stored already; asked once for each node and process, then remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The highest sequence number up to which results are stored.
    pub acknowledged: u64,
    /// The digest of the stored Observation.
    pub observation: Option<PartDigest>,
    /// The last `seen` record says that the node was lost.
    pub silent: bool,
    /// What its host was told last, or a later revision than that; `None`: it was never recorded what any host was told.
    pub told: Option<HeldRevision>,
    /// The parts of that; `None`: they were not recorded.
    pub told_parts: Option<ToldParts>,
    /// It is not recorded that the host holds these.
    pub unconfirmed: bool,
}

/// The two parts of a desired state that a host was told, by their digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldParts {
    /// The part that is sent at once.
    pub known: PartDigest,
    /// The part that is released.
    pub task_set: PartDigest,
}

/// What a node's host was told last, and says that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The node.
    pub node: Uuid,
    /// The epoch and the revision that are recorded.
    pub told: HeldRevision,
    /// The parts that are recorded.
    pub parts: ToldParts,
}

/// What is said beside results, on a check-in where it differs from the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The kernel's boot id.
    pub boot_id: [u8; 16],
    /// Pause, hold and park as said on the host.
    pub local: LocalState,
    /// Leases asked for.
    pub wants: Vec<LeaseKind>,
    /// Leases and primaries given back.
    pub gives_back: Vec<GiveBack>,
}

impl Said {
    /// Whether another asks for the same leases and gives the same back.
    pub(crate) fn asks_as(&self, other: &Self) -> bool {
        (&self.wants, &self.gives_back) == (&other.wants, &other.gives_back)
    }
}

/// Whether a node is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Its silence ended (seconds since 1970).
    Connected {
        /// When it checked in again.
        since_s: u64,
    },
    /// Its silence began.
    Lost {
        /// When it was last heard of.
        since_s: u64,
        /// Whether it did not say that it holds what it was told last.
        untold: bool,
    },
}

/// What became of an Observation that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All of it was taken, or what was not is known already.
    Whole,
    /// Some of its traits were not, and were not said before.
    InPart,
}

/// Why something that a host said could not be kept. The host sends it again.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The store takes no writes now (read-only after an I/O error, or shutting down).
    #[error("the store takes no writes")]
    Unavailable,
    /// The node has used up what it may have stored for now.
    #[error("the host sends more than is stored of a host in so short a time")]
    TooFast,
    /// The node is gone.
    #[error("no such node")]
    NoSuchNode,
    /// What was said breaks a limit or a rule; the host's own answer is a 400 with this sentence.
    #[error("{0}")]
    Refused(String),
}

/// A part of what a host says, each of which is kept or refused by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Facts, traits and labels.
    Observation,
    /// Results of tasks.
    Results,
    /// What the agent says of itself.
    Report,
    /// Pause, hold and park.
    Local,
    /// A whole check-in, of which nothing or not all could be read.
    CheckIn,
}

impl Part {
    /// The name that people read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Observation => "observation",
            Self::Results => "results",
            Self::Report => "report",
            Self::Local => "local state",
            Self::CheckIn => "check-in",
        }
    }
}

/// Parts of what hosts reported last that were not kept, and why: each is a finding of its node until a later report of the same part is kept.
/// Held in memory: after a start of the controller a host reports its present state again. Results that were refused are not reported again.
#[derive(Debug, Default)]
pub(crate) struct PartsNotKept(Mutex<HashMap<Uuid, BTreeMap<Part, String>>>);

impl PartsNotKept {
    /// Notes why a part of what a node's host reported is not kept; `None`: it is. Returns whether the node has such parts now and had none, or the
    /// reverse.
    pub(crate) fn note(&self, node: Uuid, part: Part, reason: Option<&str>) -> bool {
        let mut nodes = self.lock();
        let before = nodes.contains_key(&node);
        if let Some(reason) = reason {
            nodes.entry(node).or_default().insert(part, reason.to_owned());
            return !before;
        }
        let Some(parts) = nodes.get_mut(&node) else { return false };
        parts.remove(&part);
        let is_over = parts.is_empty();
        if is_over {
            nodes.remove(&node);
        }
        is_over
    }

    /// Forgets a node that is gone. Returns whether it had such parts.
    pub(crate) fn forget(&self, node: Uuid) -> bool {
        self.lock().remove(&node).is_some()
    }

    /// Such parts of a node, each with the reason.
    pub(crate) fn of(&self, node: Uuid) -> BTreeMap<Part, String> {
        self.lock().get(&node).cloned().unwrap_or_default()
    }

    /// Whether a node has such parts.
    pub(crate) fn has(&self, node: Uuid) -> bool {
        self.lock().contains_key(&node)
    }

    /// The nodes that have such parts.
    pub(crate) fn nodes(&self) -> Vec<Uuid> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, BTreeMap<Part, String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes in what hosts say. Each method returns when it is durable, but for those that say otherwise.
pub trait Intake: Send + Sync + 'static {
    /// What the node is called, where it has a name. From memory.
    fn name(&self, node: Uuid) -> Option<String>;
    /// What is stored of this node's words. From memory, without waiting.
    fn stored(&self, node: Uuid) -> Stored;
    /// The node's present Observation, whose digest has been checked. At most one a node in 10 s comes here.
    fn observed(
        &self,
        node: Uuid,
        digest: PartDigest,
        observation: Observation,
    ) -> BoxFuture<'_, Result<Taken, IntakeError>>;
    /// Task results in order; answers the sequence number up to which they are stored. Those at or below the
    /// stored number are repeats and are dropped.
    fn results(&self, node: Uuid, results: Vec<TaskResult>) -> BoxFuture<'_, Result<u64, IntakeError>>;
    /// The node's last Report; replaces the one before. Need not be durable.
    fn report(&self, node: Uuid, report: Report) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// What was said on the host, and leases asked for or given back. Said again after a restart, on either side.
    fn said(&self, node: Uuid, said: Said) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// A node's silence begins or ends.
    fn seen(&self, node: Uuid, seen: Seen) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// What the node's host is about to be told. It is told when this is durable, and not before.
    fn told(&self, node: Uuid, told: HeldRevision, parts: ToldParts) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// That hosts hold what they were told last: of many in a few commits. What was recorded otherwise meanwhile stays as it is.
    fn confirmed(&self, confirmed: Vec<Confirmed>) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// The last revision of the store. From memory.
    fn head(&self) -> u64;
    /// The body of a blob, open for reading at its start; `None` when it is not kept. May block for an open.
    ///
    /// # Errors
    /// What the system says.
    fn blob(&self, hash: Hash) -> std::io::Result<Option<File>>;
}
