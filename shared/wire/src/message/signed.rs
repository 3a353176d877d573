//! What carries a signature: desired state, open barriers, leases, a change of epoch.
//!
//! A desired state is signed by the batch: `proof` leads from its leaf (domain tag, node, epoch, revision, the
//! digest of each part) to a root that was signed once for all nodes of the batch. `sign` builds and checks them.

use serde::{Deserialize, Serialize};

use super::bounded;
use super::desired::Barrier;
use super::{Epoch, PartDigest, Revision};

/// A desired state on its way. A part that the agent already holds is left out; its digest never is.
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
    /// The encoding of `desired::Known`, as it was digested: postcard alone, without the version byte that stands before a
    /// message ([`super::encode`]), since the message that carries it has one.
    #[serde(deserialize_with = "bounded::maybe_bytes::<_, { 1 << 20 }>")]
    pub known: Option<Vec<u8>>,
    /// The encoding of `desired::TaskSet`, as it was digested.
    #[serde(deserialize_with = "bounded::maybe_bytes::<_, { 8 << 20 }>")]
    pub task_set: Option<Vec<u8>>,
    /// The way from the leaf to a signed root.
    pub proof: Proof,
    /// Comes before the first state of another epoch, and is refused otherwise.
    pub epoch_change: Option<EpochChange>,
}

/// A place in a signed batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The leaf's index in the batch.
    pub index: u64,
    /// How many leaves the batch has.
    pub size: u64,
    /// Sibling hashes from the leaf up, at most 32.
    #[serde(deserialize_with = "bounded::list::<_, _, 32>")]
    pub path: Vec<[u8; 32]>,
    /// Ed25519 over the tagged root.
    pub signature: Signature,
}

/// A signature with the certificate of who made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// 64 bytes of Ed25519.
    #[serde(deserialize_with = "bounded::bytes::<_, 64>")]
    pub bytes: Vec<u8>,
    /// The signer's certificate, then its issuer below the root, DER.
    #[serde(deserialize_with = "bounded::chain")]
    pub signer: Vec<Vec<u8>>,
}

/// Something small that is given for a task set held, and is no part of its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedGrant {
    /// The store's epoch.
    pub epoch: Epoch,
    /// The revision at which it was given.
    pub revision: Revision,
    /// What is given.
    pub grant: Grant,
    /// The way from the leaf to a signed root.
    pub proof: Proof,
}

/// What may be given. The leaf also holds the node's uuid and a domain tag for each kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grant {
    /// All barriers of this task set that are open now.
    Barriers {
        /// The task set.
        task_set: PartDigest,
        /// Those that are open.
        #[serde(deserialize_with = "bounded::list::<_, _, 4096>")]
        open: Vec<Barrier>,
    },
    /// Leave to do something that takes from the budget.
    Lease {
        /// For what.
        kind: LeaseKind,
        /// For how long, from its arrival, by the boot clock.
        duration_s: u32,
    },
}

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeaseKind {
    /// To interrupt something while mending drift.
    Mend,
    /// To reboot.
    Reboot,
}

/// A store came back from a backup: revisions begin again in another epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochChange {
    /// The epoch that ends.
    pub from: Epoch,
    /// The epoch that begins.
    pub to: Epoch,
    /// The revision at which it begins.
    pub at: Revision,
    /// Why, for people.
    #[serde(deserialize_with = "bounded::text::<_, 1024>")]
    pub reason: String,
    /// Signed on its own.
    pub signature: Signature,
}
