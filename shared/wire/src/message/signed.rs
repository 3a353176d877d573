//! The signed messages: desired state, open barriers, leases, and a change of epoch.
//!
//! Desired states are signed in batches. `proof` leads from the leaf of a state (domain tag, node, epoch, revision, the
//! digest of each part) to a root that is signed once for all nodes of the batch. The `sign` module builds and checks
//! proofs and signatures.

use serde::{Deserialize, Serialize};

use super::bounded;
use super::desired::Barrier;
use super::{Epoch, PartDigest, Revision};

/// A desired state as sent. A part that the agent already holds is omitted, and its digest is sent in any case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedDesired {
    /// The store's epoch.
    pub epoch: Epoch,
    /// The revision of the snapshot that was resolved.
    pub revision: Revision,
    /// Digest of the known part.
    pub known_digest: PartDigest,
    /// Digest of the task set.
    pub task_set_digest: PartDigest,
    /// The encoding of `desired::Known` over which the digest was computed. It is postcard without a version byte
    /// ([`super::encode_part`]), because the message that contains it has one.
    #[serde(deserialize_with = "bounded::maybe_bytes::<_, { 1 << 20 }>")]
    pub known: Option<Vec<u8>>,
    /// The encoding of `desired::TaskSet` over which the digest was computed.
    #[serde(deserialize_with = "bounded::maybe_bytes::<_, { 8 << 20 }>")]
    pub task_set: Option<Vec<u8>>,
    /// The proof that the leaf of this state is in a signed batch.
    pub proof: Proof,
    /// The change from the epoch that the agent holds to that of this state. The agent refuses a state of another epoch
    /// without it.
    pub epoch_change: Option<EpochChange>,
}

/// A proof that a leaf is in a signed batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The leaf's index in the batch.
    pub index: u64,
    /// The number of leaves in the batch.
    pub size: u64,
    /// The sibling hashes from the leaf to the root, at most 32.
    #[serde(deserialize_with = "bounded::list::<_, _, 32>")]
    pub path: Vec<[u8; 32]>,
    /// The Ed25519 signature over the tagged root.
    pub signature: Signature,
}

/// A signature with the certificate of its signer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The Ed25519 signature, 64 bytes.
    #[serde(deserialize_with = "bounded::bytes::<_, 64>")]
    pub bytes: Vec<u8>,
    /// The signer's certificate, then its issuer below the root, DER.
    #[serde(deserialize_with = "bounded::chain")]
    pub signer: Vec<Vec<u8>>,
}

/// A signed permission for a task set that the node holds. It is not part of the task set's digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedGrant {
    /// The store's epoch.
    pub epoch: Epoch,
    /// The revision at which the permission was issued.
    pub revision: Revision,
    /// The signed permission.
    pub grant: Grant,
    /// The proof that the leaf of this grant is in a signed batch.
    pub proof: Proof,
}

/// A permission. Its leaf also contains the node's uuid and a domain tag for each kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grant {
    /// All barriers of this task set that are open now.
    Barriers {
        /// The digest of the task set.
        task_set: PartDigest,
        /// The open barriers.
        #[serde(deserialize_with = "bounded::list::<_, _, 4096>")]
        open: Vec<Barrier>,
    },
    /// A permission to do something that uses the budget.
    Lease {
        /// What the lease permits.
        kind: LeaseKind,
        /// Its duration in seconds, from its arrival on the host, by the boot clock.
        duration_s: u32,
    },
}

/// The actions that a lease can permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeaseKind {
    /// To interrupt something while mending drift.
    Mend,
    /// The host may reboot.
    Reboot,
}

/// A change of epoch: the store was restored from a backup, and revisions begin again in another epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochChange {
    /// The epoch that ends.
    pub from: Epoch,
    /// The epoch that begins.
    pub to: Epoch,
    /// The first revision of the new epoch.
    pub at: Revision,
    /// The reason, for people.
    #[serde(deserialize_with = "bounded::text::<_, 1024>")]
    pub reason: String,
    /// The signature of this change, which is not signed in a batch.
    pub signature: Signature,
}
