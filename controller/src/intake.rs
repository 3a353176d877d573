//! What hosts say, handed on to registry and cache.
//!
//! A trait, because the listener must not know how an Observation becomes a commit; and because its tests need
//! one that fails on demand. Implemented by the registry.

use std::fs::File;

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

/// Takes in what hosts say. Each method returns when it is durable, but for those that say otherwise.
pub trait Intake: Send + Sync + 'static {
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
    /// The body of a blob, open for reading at its start; `None` when it is not kept. May block for an open.
    ///
    /// # Errors
    /// What the system says.
    fn blob(&self, hash: Hash) -> std::io::Result<Option<File>>;
}
