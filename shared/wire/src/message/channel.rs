//! The messages between the two halves of the agent: `apply` runs as root without the network, and `sync` has the
//! network and is not root. `apply` gets paths and commands only in content that a controller signed, or whose hash is
//! in signed content. So a compromised `sync` can only withhold messages, change the pause, hold and park of its own
//! host, and report wrong facts about it.

use serde::{Deserialize, Serialize};

use super::bounded;
use super::checkin::{HeldDesired, ReturnedItem};
use super::observed::{LocalState, Observation, Report, TaskResult};
use super::signed::{LeaseKind, SignedDesired, SignedGrant};
use super::{Hash, PartDigest};

/// A message from `apply` (root, no network) to `sync`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyMessage {
    /// The first message: the key for encrypted secrets, and the desired state that `apply` has accepted.
    Hello {
        /// The X25519 public key for encrypted secrets of this host. The private key is in the ledger of `apply`.
        seal_key: [u8; 32],
        /// The desired state in the ledger of `apply`, which stores the last accepted one. `None` before the first.
        held: Option<HeldDesired>,
    },
    /// The acceptance of an offered desired state, which is on disk now.
    Accepted(HeldDesired),
    /// The refusal of an offered desired state, a grant, a profile or a blob, for example because a signature is
    /// invalid, or because `apply` cannot store the desired state on a full disk.
    Refused {
        /// The reason, in one sentence.
        reason: String,
    },
    /// A request for a profile or blob that the accepted desired state names and that is not on disk yet.
    ContentRequest(Hash),
    /// The results of tasks that no controller has acknowledged yet, in the order of their sequence numbers.
    Results(#[serde(deserialize_with = "bounded::list::<_, _, 256>")] Vec<TaskResult>),
    /// The Observation of `apply`, which `sync` merges into its own Observation. So far it has no facts and no traits,
    /// and only the labels that other programs of the host wrote to the host label map (a file of labels).
    Observed(Observation),
    /// The Report of `apply`. `sync` adds its own facts and findings before it sends the Report.
    Report(Report),
    /// The leases that `apply` requests from the controller. No agent sends this message yet.
    LeaseRequest(#[serde(deserialize_with = "bounded::list::<_, _, 8>")] Vec<LeaseKind>),
    /// The leases and primaries that the host no longer needs and gives back. No agent sends this message yet.
    Returned(#[serde(deserialize_with = "bounded::list::<_, _, 1024>")] Vec<ReturnedItem>),
    /// The pause, hold and park that were set on the host itself.
    Local(LocalState),
}

/// A message from `sync` (network, no root) to `apply`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "one message at a time is in memory, and offers are most of them")]
pub enum SyncMessage {
    /// The content of a controller's response to a check-in. `apply` verifies its signatures before it uses the
    /// content.
    Offer {
        /// The desired state, if it differs from the desired state that the agent holds.
        desired: Option<SignedDesired>,
        /// The grants of the controller: open barriers and leases.
        #[serde(deserialize_with = "bounded::list::<_, _, 64>")]
        grants: Vec<SignedGrant>,
        /// The sequence number up to which the controller has stored or refused all results of tasks.
        acknowledged: u64,
    },
    /// The next piece of a requested profile or blob. An empty piece begins a transfer, and discards an earlier
    /// incomplete transfer. The other pieces follow in order. `apply` hashes the pieces as they arrive. The body is
    /// complete when its hash matches.
    Body {
        /// The hash of the complete body.
        hash: Hash,
        /// The piece, at most 1 MiB.
        #[serde(deserialize_with = "bounded::bytes::<_, { 1 << 20 }>")]
        bytes: Vec<u8>,
    },
    /// The notice that the requested body did not arrive completely and correctly from the controller. `apply` discards
    /// the pieces that have arrived, and requests the body again later.
    BodyUnavailable(Hash),
    /// The pause, hold and park that were set on the host through `sync`. `sync` does not send this message yet.
    Local(LocalState),
    /// The digest of the Observation that `sync` assembled. `apply` does not use it yet.
    Observed(PartDigest),
}
