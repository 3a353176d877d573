//! The signed messages: desired state, open barriers, leases, and a change of epoch.
//!
//! The controller signs many desired states at once: each state has a leaf in a Merkle tree, and the controller signs
//! the root of the tree. The leaf is the hash of domain tag, node, epoch, revision and the digest of each part. A
//! `Proof` leads from the leaf to the root. The `sign` module builds and checks proofs and signatures.

use serde::{Deserialize, Serialize};

use super::bounded;
use super::desired::Barrier;
use super::{Epoch, PartDigest, Revision};

/// A signed desired state, as sent to an agent. A part that the agent already holds is omitted, but the digest of each
/// part is always sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedDesired {
    /// The store's epoch.
    pub epoch: Epoch,
    /// The revision of the store from which the controller computed the desired state.
    pub revision: Revision,
    /// Digest of the *known* part.
    pub known_digest: PartDigest,
    /// Digest of the task set.
    pub task_set_digest: PartDigest,
    /// The encoded `desired::Known` of which `known_digest` is the digest. `None` if the agent already holds this part.
    /// The bytes have no version byte ([`super::encode_part`]), because the message that contains them has one.
    #[serde(deserialize_with = "bounded::maybe_bytes::<_, { 1 << 20 }>")]
    pub known: Option<Vec<u8>>,
    /// The encoded `desired::TaskSet` of which `task_set_digest` is the digest. `None` if the agent already holds this
    /// part.
    #[serde(deserialize_with = "bounded::maybe_bytes::<_, { 8 << 20 }>")]
    pub task_set: Option<Vec<u8>>,
    /// The proof that the hash of this state (a leaf) is in a signed batch (a Merkle tree of leaves).
    pub proof: Proof,
    /// The signed change from the agent's epoch to the epoch of this state. `None` if the agent holds no state, or one
    /// of the same epoch. The agent refuses a state of another epoch if this change is missing.
    pub epoch_change: Option<EpochChange>,
}

/// A proof that a leaf is in a signed batch. A leaf is the hash of one desired state or grant. A batch is a Merkle tree
/// of leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The leaf's index in the batch.
    pub index: u64,
    /// The number of leaves in the batch.
    pub size: u64,
    /// The sibling hashes from the leaf to the root, at most 32.
    #[serde(deserialize_with = "bounded::list::<_, _, 32>")]
    pub path: Vec<[u8; 32]>,
    /// The Ed25519 signature of a domain tag, the number of leaves and the root of the tree.
    pub signature: Signature,
}

/// A signature with the certificate of its signer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The Ed25519 signature, 64 bytes.
    #[serde(deserialize_with = "bounded::bytes::<_, 64>")]
    pub bytes: Vec<u8>,
    /// The signer's certificate, then the certificate of its issuer, each in DER. The root is not included.
    #[serde(deserialize_with = "bounded::chain")]
    pub signer: Vec<Vec<u8>>,
}

/// A signed permission for a node. It is not a part of the task set, so a new permission does not change the digest of
/// the task set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedGrant {
    /// The store's epoch.
    pub epoch: Epoch,
    /// The revision at which the permission was issued, or of the later desired state with which it was signed again.
    pub revision: Revision,
    /// The signed permission.
    pub grant: Grant,
    /// The proof that the hash of this grant (a leaf) is in a signed batch (a Merkle tree of leaves).
    pub proof: Proof,
}

/// A permission for a node: open barriers or a lease. The signed hash also covers the node's uuid and the kind of the
/// permission, so that the permission is valid only for that node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grant {
    /// All barriers of this task set that are open now. They replace those of an earlier grant.
    Barriers {
        /// The digest of the task set.
        task_set: PartDigest,
        /// The open barriers.
        #[serde(deserialize_with = "bounded::list::<_, _, 4096>")]
        open: Vec<Barrier>,
    },
    /// A permission for an action that a limited number of hosts may do at once. No controller grants one yet.
    Lease {
        /// The action that the lease permits.
        kind: LeaseKind,
        /// The duration of the lease in seconds. It begins when the lease arrives on the host, and is measured by the
        /// host's boot clock.
        duration_s: u32,
    },
}

/// The actions that a lease can permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeaseKind {
    /// The host may interrupt a running program to mend drift.
    Mend,
    /// The host may reboot.
    Reboot,
}

/// A change of the store's epoch. After the restore of a backup or an older copy, a new epoch begins at a revision of
/// that store. This revision may be lower than the revision that a host holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochChange {
    /// The epoch of the desired state that the agent holds. Further epochs may be between it and `to`.
    pub from: Epoch,
    /// The epoch that begins.
    pub to: Epoch,
    /// The first revision of the new epoch.
    pub at: Revision,
    /// The reason, for people.
    #[serde(deserialize_with = "bounded::text::<_, 1024>")]
    pub reason: String,
    /// The signature of this change. A change of epoch is signed alone, and not in a batch.
    pub signature: Signature,
}
