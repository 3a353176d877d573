//! What a controller signs and an agent's root half checks (docs/trust.md, rule 6). Wire format, from the first version on.
//!
//! A signature costs 17 to 25 µs and a hash 0.1 to 0.4, and one template label may reach 10,000 hosts at once: so a
//! batch is signed, not a state. Each state (or grant) is a [`Leaf`]; the leaves of one pass of the reconciler are a
//! Merkle tree in RFC 6962's form, and its root is signed once. An answer carries the leaf's index, its path and that
//! signature.
//!
//! # Bytes
//! Integers are big-endian; `tag(x)` is the ASCII text `stemma/x/v1` and a zero byte, so that no signature or leaf of
//! one kind is one of another.
//!
//! - leaf of a desired state: SHA-256 of `00`, `tag(desired)`, node (16), epoch (16), revision (8), known digest
//!   (32), task set digest (32)
//! - leaf of open barriers: SHA-256 of `00`, `tag(barriers)`, node, epoch, revision, task set digest, their number
//!   (4), and for each: length (4) and text of the task, length (4) and text of the selector
//! - leaf of a lease: SHA-256 of `00`, `tag(lease)`, node, epoch, revision, kind (1: mend 1, reboot 2), seconds (4)
//! - inner node: SHA-256 of `01`, left, right
//! - signed for a batch: `tag(batch)`, number of leaves (8), root (32)
//! - signed for a change of epoch: `tag(epoch-change)`, from (16), to (16), at (8), length of the reason (4), reason

mod merkle;
mod signer;
mod verify;

#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::message::signed::{EpochChange, Grant, LeaseKind, SignedDesired, SignedGrant};
use crate::message::{Epoch, PartDigest, Revision};

pub use merkle::{MAX_PATH, Root};
pub use signer::{Batch, SignedBatch, Signer, SignerKeyError};
pub use verify::{NotSigned, Verifier};

/// The hash that stands for one signed statement in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leaf(pub [u8; 32]);

impl Leaf {
    /// The leaf of a node's desired state.
    pub fn desired(node: Uuid, epoch: Epoch, revision: Revision, known: PartDigest, task_set: PartDigest) -> Self {
        let mut hash = leaf_of(b"stemma/desired/v1\0", node, epoch, revision);
        hash.update(known.0);
        hash.update(task_set.0);
        Self(hash.finalize().into())
    }

    /// The leaf of what is given to a node.
    pub fn grant(node: Uuid, epoch: Epoch, revision: Revision, grant: &Grant) -> Self {
        let hash = match grant {
            Grant::Barriers { task_set, open } => {
                let mut hash = leaf_of(b"stemma/barriers/v1\0", node, epoch, revision);
                hash.update(task_set.0);
                hash.update(length(open.len()));
                for barrier in open {
                    update_text(&mut hash, &barrier.task);
                    update_text(&mut hash, &barrier.selector);
                }
                hash
            }
            Grant::Lease { kind, duration_s } => {
                let mut hash = leaf_of(b"stemma/lease/v1\0", node, epoch, revision);
                hash.update([match kind {
                    LeaseKind::Mend => 1,
                    LeaseKind::Reboot => 2,
                }]);
                hash.update(duration_s.to_be_bytes());
                hash
            }
        };
        Self(hash.finalize().into())
    }

    /// The leaf of a desired state as it arrived.
    pub fn of_desired(node: Uuid, state: &SignedDesired) -> Self {
        Self::desired(node, state.epoch, state.revision, state.known_digest, state.task_set_digest)
    }

    /// The leaf of a grant as it arrived.
    pub fn of_grant(node: Uuid, signed: &SignedGrant) -> Self {
        Self::grant(node, signed.epoch, signed.revision, &signed.grant)
    }
}

fn leaf_of(tag: &[u8], node: Uuid, epoch: Epoch, revision: Revision) -> Sha256 {
    let mut hash = Sha256::new_with_prefix([merkle::LEAF]);
    hash.update(tag);
    hash.update(node.as_bytes());
    hash.update(epoch.0);
    hash.update(revision.0.to_be_bytes());
    hash
}

fn update_text(hash: &mut Sha256, text: &str) {
    hash.update(length(text.len()));
    hash.update(text.as_bytes());
}

fn length(of: usize) -> [u8; 4] {
    u32::try_from(of).expect("messages are bounded far below 4 GiB").to_be_bytes()
}

/// What is signed for a batch.
fn batch_statement(size: u64, root: &Root) -> Vec<u8> {
    let mut statement = b"stemma/batch/v1\0".to_vec();
    statement.extend(size.to_be_bytes());
    statement.extend(root.0);
    statement
}

/// What is signed for a change of epoch: all of it but the signature.
fn epoch_change_statement(change: &EpochChange) -> Vec<u8> {
    let mut statement = b"stemma/epoch-change/v1\0".to_vec();
    statement.extend(change.from.0);
    statement.extend(change.to.0);
    statement.extend(change.at.0.to_be_bytes());
    statement.extend(length(change.reason.len()));
    statement.extend(change.reason.as_bytes());
    statement
}
