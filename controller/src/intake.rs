//! The interface through which reports of hosts reach registry and cache.
//!
//! It is a trait, because the listener must not know how an Observation becomes a commit, and because its tests need an
//! implementation that fails on demand. The registry implements it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use stemma_core::epoch::HeldRevision;
use stemma_wire::message::checkin::ReturnedItem;
use stemma_wire::message::observed::{LocalState, Observation, Report, TaskResult};
use stemma_wire::message::signed::LeaseKind;
use stemma_wire::message::{Hash, PartDigest};
use uuid::Uuid;

use crate::store::BoxFuture;

/// What the store contains about the reports of a node, and about what its host was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredReports {
    /// The highest sequence number up to which results are stored.
    pub acknowledged_sequence: u64,
    /// The digest of the stored Observation.
    pub observation: Option<PartDigest>,
    /// True if the last liveness record says that the node is silent.
    pub is_silent: bool,
    /// The last revision that the host was sent, or a later one. `None` if no sent revision was ever recorded for any
    /// host.
    pub sent_revision: Option<HeldRevision>,
    /// The digests of the desired state that the host was last sent. `None` if they were not recorded.
    pub sent_parts: Option<SentParts>,
    /// True if it is not recorded that the host confirmed the desired state that it was last sent.
    pub is_unconfirmed: bool,
}

/// The digests of the two parts of a desired state that a host was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentParts {
    /// The part that is sent at once.
    pub known: PartDigest,
    /// The part that is released: the task set.
    pub task_set: PartDigest,
}

/// The state that a node's host was last sent, and that it reports to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmedState {
    /// The node.
    pub node: Uuid,
    /// The epoch and revision of the state, as recorded when it was sent.
    pub sent_revision: HeldRevision,
    /// The digests of the state's two parts, as recorded when it was sent.
    pub parts: SentParts,
}

/// The parts of a check-in other than results, which are stored if they differ from the last ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentState {
    /// The kernel's boot id.
    pub boot_id: [u8; 16],
    /// Pause, hold and park, as set on the host.
    pub local_state: LocalState,
    /// The requested leases.
    pub requested_leases: Vec<LeaseKind>,
    /// The returned leases and primaries.
    pub returned_items: Vec<ReturnedItem>,
}

impl AgentState {
    /// Returns whether `other` requests and returns the same leases.
    pub(crate) fn has_same_requests(&self, other: &Self) -> bool {
        (&self.requested_leases, &self.returned_items) == (&other.requested_leases, &other.returned_items)
    }
}

/// The beginning or end of a node's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessChange {
    /// The silence ended.
    Connected {
        /// The time of the new check-in, in seconds since 1970.
        since_s: u64,
    },
    /// The silence began.
    Lost {
        /// The time of the last contact, in seconds since 1970.
        since_s: u64,
        /// True if the host did not confirm the last state that it was sent.
        is_unconfirmed: bool,
    },
}

/// How much of a stored Observation was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// All of it, or the rejected traits are already reported.
    Whole,
    /// Some traits were rejected, and this is not reported yet.
    Partial,
}

/// The reason why a part of a report was not stored. The host sends it again.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The store accepts no writes (read-only after an I/O error, or shutting down).
    #[error("the store takes no writes")]
    Unavailable,
    /// The node sent more than may be stored in this time.
    #[error("the host sends more than may be stored in this time")]
    TooFast,
    /// The node was deleted.
    #[error("no such node")]
    NoSuchNode,
    /// The part violates a limit or a rule. The host gets a 400 response with this message.
    #[error("{0}")]
    Refused(String),
}

/// A part of a report. Each part is stored or refused separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReportPart {
    /// Facts, traits and labels.
    Observation,
    /// Results of tasks.
    Results,
    /// The agent's report about itself.
    Report,
    /// Pause, hold and park.
    Local,
    /// A check-in that could not be read completely.
    CheckIn,
}

impl ReportPart {
    /// Returns the name for messages.
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

/// The parts of the hosts' last reports that could not be stored, with the reasons. Each is a finding of its node until
/// a later report of that part is stored. The reasons are in memory only: after a restart of the controller, a host
/// reports its current state again, but not the results that were refused.
#[derive(Debug, Default)]
pub(crate) struct UnstoredParts(Mutex<HashMap<Uuid, BTreeMap<ReportPart, String>>>);

impl UnstoredParts {
    /// Records why a part of a report could not be stored, or with `None` that it was stored. Returns whether the
    /// node now has its first unstored part, or no longer has one.
    pub(crate) fn record(&self, node: Uuid, part: ReportPart, reason: Option<&str>) -> bool {
        let mut nodes = self.lock();
        let had_parts = nodes.contains_key(&node);
        if let Some(reason) = reason {
            nodes.entry(node).or_default().insert(part, reason.to_owned());
            return !had_parts;
        }
        let Some(parts) = nodes.get_mut(&node) else { return false };
        parts.remove(&part);
        let is_empty = parts.is_empty();
        if is_empty {
            nodes.remove(&node);
        }
        is_empty
    }

    /// Removes a deleted node. Returns whether it had unstored parts.
    pub(crate) fn remove(&self, node: Uuid) -> bool {
        self.lock().remove(&node).is_some()
    }

    /// Returns the node's parts that could not be stored, each with the reason.
    pub(crate) fn get(&self, node: Uuid) -> BTreeMap<ReportPart, String> {
        self.lock().get(&node).cloned().unwrap_or_default()
    }

    /// Returns whether the node has unstored parts.
    pub(crate) fn contains(&self, node: Uuid) -> bool {
        self.lock().contains_key(&node)
    }

    /// Returns the nodes that have unstored parts.
    pub(crate) fn nodes(&self) -> Vec<Uuid> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, BTreeMap<ReportPart, String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stores the reports of hosts. Each method returns when the data is durable, unless it says otherwise.
pub trait Intake: Send + Sync + 'static {
    /// Returns the name of the node, if it has one. Reads from memory.
    fn node_name(&self, node: Uuid) -> Option<String>;
    /// Returns what the store contains about the reports of a node. Reads from memory, without waiting.
    fn stored_reports(&self, node: Uuid) -> StoredReports;
    /// Stores the node's current Observation, whose digest has been checked. Called at most once per node in 10 s.
    fn store_observation(
        &self,
        node: Uuid,
        digest: PartDigest,
        observation: Observation,
    ) -> BoxFuture<'_, Result<Acceptance, IntakeError>>;
    /// Stores task results in the order of their sequence numbers. Returns the number up to which results are stored
    /// now. Results that were stored before are sent again if the response was lost, and are dropped.
    fn store_results(&self, node: Uuid, results: Vec<TaskResult>) -> BoxFuture<'_, Result<u64, IntakeError>>;
    /// Stores the node's last Report, which replaces the previous one. It need not be durable.
    fn store_report(&self, node: Uuid, report: Report) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Stores the host's local state and its requested and returned leases. The host reports them again after a restart
    /// of its agent or of the controller.
    fn store_state(&self, node: Uuid, said: AgentState) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Stores the beginning or end of a node's silence.
    fn store_liveness(&self, node: Uuid, seen: LivenessChange) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Records which desired state the node's host is about to be sent. The caller sends it only when the record is
    /// durable.
    fn store_sent(&self, node: Uuid, told: HeldRevision, parts: SentParts) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Records for many hosts, in a few commits, that each has the desired state that it was last sent. If a host was
    /// sent another state in the meantime, its record is not changed.
    fn store_confirmations(&self, confirmed: Vec<ConfirmedState>) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Returns the last revision of the store. Reads from memory.
    fn head_revision(&self) -> u64;
    /// Opens the file of a blob for reading, or returns `None` if it is not stored. May block.
    ///
    /// # Errors
    /// The error of the operating system.
    fn open_blob(&self, hash: Hash) -> std::io::Result<Option<File>>;
}
