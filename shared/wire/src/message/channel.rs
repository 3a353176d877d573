//! The messages between the agent's two halves. None names a path or a command: the half with the network can
//! withhold, and lie about its own host, and nothing more.

use serde::{Deserialize, Serialize};

use super::bounded;
use super::checkin::{GiveBack, Held};
use super::observed::{LocalState, Observation, Report, TaskResult};
use super::signed::{LeaseKind, SignedDesired, SignedGrant};
use super::{Hash, PartDigest};

/// From `apply` (root, no network) to `sync`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromApply {
    /// The first message: who opens secrets, and what is held.
    Hello {
        /// X25519 public key, made by apply.
        seal_key: [u8; 32],
        /// What the ledger holds.
        held: Option<Held>,
    },
    /// What is held has changed: an offer was accepted, and is on disk.
    Accepted(Held),
    /// An offer was refused, and why.
    Refused {
        /// One sentence.
        reason: String,
    },
    /// A profile or blob that the accepted state names and that is not on disk.
    Want(Hash),
    /// Results not acknowledged yet, in order.
    Results(#[serde(deserialize_with = "bounded::list::<_, _, 256>")] Vec<TaskResult>),
    /// What only root may observe, to be merged into the Observation.
    Observed(Observation),
    /// The Report.
    Report(Report),
    /// Leases asked for.
    LeaseWanted(#[serde(deserialize_with = "bounded::list::<_, _, 8>")] Vec<LeaseKind>),
    /// Leases and primaries given back.
    GiveBack(#[serde(deserialize_with = "bounded::list::<_, _, 1024>")] Vec<GiveBack>),
    /// Said on the host.
    Local(LocalState),
}

/// From `sync` (network, no root) to `apply`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "one message at a time is in memory, and offers are most of them")]
pub enum FromSync {
    /// What a controller said: apply verifies it.
    Offer {
        /// Desired state, if there is news.
        desired: Option<SignedDesired>,
        /// Barriers and leases.
        #[serde(deserialize_with = "bounded::list::<_, _, 64>")]
        grants: Vec<SignedGrant>,
        /// Results up to here are stored by the controller.
        acknowledged: u64,
    },
    /// The next bytes of what was wanted. A body begins with an empty piece, which drops what came of any before, and its other pieces
    /// follow in order. Apply hashes them as they come: when they are what the hash says, they are whole.
    Body {
        /// The name of the whole.
        hash: Hash,
        /// The piece, at most 1 MiB.
        #[serde(deserialize_with = "bounded::bytes::<_, { 1 << 20 }>")]
        bytes: Vec<u8>,
    },
    /// The controller refused to give what was wanted, for now, or did not give all of it: pieces of it are worth nothing.
    NoBody(Hash),
    /// Pause, hold or park said through sync's side.
    Local(LocalState),
    /// The observation that sync has put together, for the host's own record (`status`).
    Observed(PartDigest),
}
