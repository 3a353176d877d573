//! The interface through which reports of hosts reach registry and cache.
//!
//! The interface is a trait, because the listener must not know how an Observation becomes a commit. The listener's
//! tests also need an implementation that fails on demand. The registry implements the trait.

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

/// What the store contains about the reports of a node, and about the desired state that was last sent to its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredReports {
    /// The sequence number up to which the host need not send task results again: each was stored, dropped or refused.
    pub acknowledged_sequence: u64,
    /// The digest of the stored Observation (facts, traits and labels).
    pub observation: Option<PartDigest>,
    /// True if the last stored liveness record states that the node is silent.
    pub is_silent: bool,
    /// The epoch and revision of the desired state that was last sent to the host. Without a record of this host, those
    /// of the first record of any host, because this host received no later state. `None` without any record.
    pub sent_revision: Option<HeldRevision>,
    /// The digests of the desired state that was last sent to the host. `None` if they were not recorded.
    pub sent_parts: Option<SentParts>,
    /// True if the record of the desired state that was last sent to the host does not show that the host confirmed it.
    pub is_unconfirmed: bool,
}

/// The digests of the two parts of a desired state that was sent to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentParts {
    /// The digest of the known part, which is sent at once.
    pub known: PartDigest,
    /// The digest of the task set, which is sent when it is released.
    pub task_set: PartDigest,
}

/// The desired state that was last sent to a node's host, and that the host reports to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmedState {
    /// The node of the host.
    pub node: Uuid,
    /// The epoch and revision of the state, as recorded when it was sent.
    pub sent_revision: HeldRevision,
    /// The digests of the state's two parts, as recorded when it was sent.
    pub parts: SentParts,
}

/// The state of an agent, without results, as a check-in reports it. Only the local state is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentState {
    /// The kernel's boot id.
    pub boot_id: [u8; 16],
    /// Pause, hold and park, as they were set on the host itself.
    pub local_state: LocalState,
    /// The leases that the agent requests. A lease permits something that few hosts may do at the same time.
    pub requested_leases: Vec<LeaseKind>,
    /// The leases and primaries that the agent no longer needs.
    pub returned_items: Vec<ReturnedItem>,
}

impl AgentState {
    /// Returns whether `other` requests the same leases, and returns the same leases and primaries.
    pub(crate) fn has_same_requests(&self, other: &Self) -> bool {
        (&self.requested_leases, &self.returned_items) == (&other.requested_leases, &other.returned_items)
    }
}

/// The beginning or end of a node's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessChange {
    /// The node is no longer silent.
    Connected {
        /// The time of the new check-in, in seconds since 1970.
        since_s: u64,
    },
    /// The node has become silent.
    Lost {
        /// The time from which the silence counts, in seconds since 1970: the end of the node's last check-in, or the
        /// creation of its slot if there was none since the controller started.
        since_s: u64,
        /// True if the host has not confirmed the desired state that is published for it.
        is_unconfirmed: bool,
    },
}

/// How much of a stored Observation was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// All traits were accepted, or exactly the same traits were rejected as in the previous Observation, so that a
    /// finding reports them already. Facts and labels that were not accepted do not count here.
    Whole,
    /// Some traits were rejected, and they differ from those that were rejected in the previous Observation.
    Partial,
}

/// The reason why a part of a report was not stored. Except after `NoSuchNode` or `Refused`, the host sends it again.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The store cannot be written or read now, for example because it is read-only after an I/O error or shuts down.
    #[error("the store takes no writes")]
    Unavailable,
    /// The host sent more bytes of task results in a short time than the controller stores.
    #[error("the host sends more than may be stored in this time")]
    TooFast,
    /// The node was deleted.
    #[error("no such node")]
    NoSuchNode,
    /// The part violates a limit or a rule, or the stored record that it would replace is unreadable. The check-in is
    /// answered as usual, and the reason is a finding of the node.
    #[error("{0}")]
    Refused(String),
}

/// A part of a host's report. Each part is stored or refused separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReportPart {
    /// The Observation: facts, traits and labels.
    Observation,
    /// The results of tasks.
    Results,
    /// The Report: what the agent reports about itself.
    Report,
    /// The local state: pause, hold and park that were set on the host.
    Local,
    /// A whole check-in that was refused, for example because it could not be decoded.
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

/// The parts of the hosts' last reports that could not be stored, with the reasons: the refused parts, or those that
/// wait to be sent again. Each is a finding of its node until a later report of the same part is stored. The reasons
/// are in memory only. After a restart, a host reports its current state again, but not the results that were refused.
#[derive(Debug, Default)]
pub(crate) struct UnstoredParts(Mutex<HashMap<Uuid, BTreeMap<ReportPart, String>>>);

impl UnstoredParts {
    /// Records the reason why a part of a node's report could not be stored. With `None`, removes the part. Returns
    /// true if the node had no part here and now has one, or if its last part was removed.
    pub(crate) fn record(&self, node: Uuid, part: ReportPart, reason: Option<&str>) -> bool {
        let mut parts_by_node = self.lock();
        let had_unstored_parts = parts_by_node.contains_key(&node);
        if let Some(reason) = reason {
            parts_by_node.entry(node).or_default().insert(part, reason.to_owned());
            return !had_unstored_parts;
        }
        let Some(parts) = parts_by_node.get_mut(&node) else { return false };
        parts.remove(&part);
        let is_empty = parts.is_empty();
        if is_empty {
            parts_by_node.remove(&node);
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

/// The storage for the reports of hosts. The data is durable when a method returns, unless its comment excludes this.
pub trait Intake: Send + Sync + 'static {
    /// Returns the name of the node, if it has one. Reads from memory.
    fn node_name(&self, node: Uuid) -> Option<String>;
    /// Returns what the store contains about the reports of a node. Reads from memory, without waiting.
    fn stored_reports(&self, node: Uuid) -> StoredReports;
    /// Stores the node's current Observation. The caller has checked the digest, and calls this at most once per node
    /// in 10 s. Returns how much of the Observation was accepted.
    fn store_observation(
        &self,
        node: Uuid,
        digest: PartDigest,
        observation: Observation,
    ) -> BoxFuture<'_, Result<Acceptance, IntakeError>>;
    /// Stores task results, which are in the order of their sequence numbers. Only the last result of each task is
    /// retained. Returns the sequence number up to which all results are stored now, or dropped because of a limit.
    /// Results that are already stored are ignored. A host sends these again if it received no response.
    fn store_results(&self, node: Uuid, results: Vec<TaskResult>) -> BoxFuture<'_, Result<u64, IntakeError>>;
    /// Stores the node's last Report, which replaces the previous one. The data need not be durable when the method
    /// returns.
    fn store_report(&self, node: Uuid, report: Report) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Stores the host's local state. The requested leases and returned items are not stored. The data need not be
    /// durable when the method returns: the host reports it again after a restart of its agent or of the controller.
    fn store_state(&self, node: Uuid, state: AgentState) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Stores the beginning or end of a node's silence.
    fn store_liveness(&self, node: Uuid, change: LivenessChange) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Records which desired state is about to be sent to the node's host. The caller sends the state only after this
    /// record is durable.
    fn store_sent(&self, node: Uuid, revision: HeldRevision, parts: SentParts) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Records for many hosts, in a few commits, that each has confirmed the desired state that was last sent to it. If
    /// another state was sent to a host in the meantime, its record is unchanged.
    fn store_confirmations(&self, confirmed: Vec<ConfirmedState>) -> BoxFuture<'_, Result<(), IntakeError>>;
    /// Returns the revision of the store's last commit. Reads from memory.
    fn head_revision(&self) -> u64;
    /// Opens the file of a blob for reading, or returns `None` if the blob is not stored or is damaged. May block.
    ///
    /// # Errors
    /// The error of the operating system.
    fn open_blob(&self, hash: Hash) -> std::io::Result<Option<File>>;
}
