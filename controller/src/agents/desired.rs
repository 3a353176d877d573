//! What each node is to be told: the seam between reconcile, which decides, and the listener, which answers.
//!
//! Reconcile publishes one pass at a time, and one pass is one signed batch. Equal digests are left alone here,
//! so a pass that changed nothing (every full resolve, and the first one after a restart) signs nothing, sends nothing and wakes
//! nobody. The table is memory: what must survive (what was released to whom) is in the store, and a restarted
//! controller publishes it again before an agent is told anything.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use stemma_wire::message::{Hash, PartDigest, Revision};
use uuid::Uuid;

/// Bytes that are sent as they are, with their name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded<N> {
    /// The name by which both ends know them.
    pub name: N,
    /// Postcard, without a version byte.
    pub bytes: Bytes,
}

impl Encoded<PartDigest> {
    /// Encodes one part of a desired state.
    pub fn part<T: Serialize>(part: &T) -> Self {
        let bytes = encode(part);
        Self { name: PartDigest(Sha256::digest(&bytes).into()), bytes }
    }
}

impl Encoded<Hash> {
    /// Encodes a profile.
    pub fn profile<T: Serialize>(profile: &T) -> Self {
        let bytes = encode(profile);
        Self { name: Hash(Sha256::digest(&bytes).into()), bytes }
    }
}

fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value)
        .expect("a vector takes all bytes, and the messages hold no type that postcard refuses")
        .into()
}

/// What was decided for one node.
#[derive(Clone, Debug)]
pub struct Released {
    /// The revision of the snapshot that was resolved.
    pub revision: Revision,
    /// `desired::Known`.
    pub known: Arc<Encoded<PartDigest>>,
    /// `desired::TaskSet`.
    pub task_set: Arc<Encoded<PartDigest>>,
    /// `desired::Profile` that the task set names; shared by all nodes alike.
    pub profile: Option<Arc<Encoded<Hash>>>,
    /// The blobs that the profile's tasks name, sorted; shared likewise.
    pub blobs: Arc<[Hash]>,
    /// After so long without a check-in the node counts as silent (of its group; 90 s).
    pub silent_after: Duration,
}

impl Released {
    /// Whether this node may fetch the body of this name: only while its own desired state names it.
    pub fn names_blob(&self, hash: Hash) -> bool {
        self.blobs.binary_search(&hash).is_ok()
    }
}

/// One change of a batch: a node's desired state, or that it has none any more (the node is gone).
#[derive(Clone, Debug)]
pub enum Change {
    /// The node is to be this.
    Release(Box<Released>),
    /// The node was deleted: its check-in is cut and its certificates are dead at once.
    Gone,
}

/// What one pass of the reconciler answered.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The snapshot's revision: all nodes, also those not named here, are resolved as of it.
    pub revision: Revision,
    /// Nodes whose answer was computed anew.
    pub changes: Vec<(Uuid, Change)>,
}
