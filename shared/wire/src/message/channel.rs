//! The messages between the two halves of the agent. No message contains a path or a command. So a compromised network
//! half can only withhold messages and report wrong facts about its own host.

use serde::{Deserialize, Serialize};

use super::bounded;
use super::checkin::{HeldDesired, ReturnedItem};
use super::observed::{LocalState, Observation, Report, TaskResult};
use super::signed::{LeaseKind, SignedDesired, SignedGrant};
use super::{Hash, PartDigest};

/// A message from `apply` (root, no network) to `sync`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyMessage {
    /// The first message: the key for sealed secrets, and the accepted desired state.
    Hello {
        /// The X25519 public key to which controllers seal secrets. Apply created it.
        seal_key: [u8; 32],
        /// The desired state in the ledger.
        held: Option<HeldDesired>,
    },
    /// An offer was accepted and is on disk: the desired state that the agent holds now.
    Accepted(HeldDesired),
    /// An offer was refused by apply, for example because its signature is invalid.
    Refused {
        /// The reason, in one sentence.
        reason: String,
    },
    /// A request for a profile or blob that the accepted state names and that is not on disk.
    ContentRequest(Hash),
    /// The results that are not acknowledged yet, in order.
    Results(#[serde(deserialize_with = "bounded::list::<_, _, 256>")] Vec<TaskResult>),
    /// The part of the Observation that only root can collect. Sync merges it into its own Observation.
    Observed(Observation),
    /// The Report of the root half. Sync adds its own facts and findings.
    Report(Report),
    /// The leases that apply requests.
    LeaseRequest(#[serde(deserialize_with = "bounded::list::<_, _, 8>")] Vec<LeaseKind>),
    /// The leases and primaries that the host no longer needs.
    Returned(#[serde(deserialize_with = "bounded::list::<_, _, 1024>")] Vec<ReturnedItem>),
    /// Pause, hold and park as set on the host.
    Local(LocalState),
}

/// A message from `sync` (network, no root) to `apply`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "one message at a time is in memory, and offers are most of them")]
pub enum SyncMessage {
    /// What a controller sent in the response to a check-in. Apply verifies it before use.
    Offer {
        /// The desired state, if it differs from the one that the agent has.
        desired: Option<SignedDesired>,
        /// The grants of the controller: open barriers and leases.
        #[serde(deserialize_with = "bounded::list::<_, _, 64>")]
        grants: Vec<SignedGrant>,
        /// The controller has stored all results up to this sequence number.
        acknowledged: u64,
    },
    /// The next piece of a requested body. A body begins with an empty piece, which discards an earlier incomplete
    /// transfer. The other pieces follow in order. Apply hashes them as they arrive. The body is complete when its hash
    /// matches.
    Body {
        /// The hash of the complete body.
        hash: Hash,
        /// The piece, at most 1 MiB.
        #[serde(deserialize_with = "bounded::bytes::<_, { 1 << 20 }>")]
        bytes: Vec<u8>,
    },
    /// The controller does not send the requested body for now, or sent only a part of it. Apply discards the pieces
    /// that have arrived.
    BodyUnavailable(Hash),
    /// Pause, hold or park, as set through the network half.
    Local(LocalState),
    /// The digest of the Observation that sync assembled, for the host's own record (`status`).
    Observed(PartDigest),
}
