//! The controller's side: it signs batches.

use ring::signature::Ed25519KeyPair;

use super::merkle::MerkleTree;
use super::{Leaf, batch_statement, epoch_change_statement};
use crate::message::signed::{EpochChange, Proof, Signature};
use crate::message::{Epoch, Revision};

/// A controller's signing key, with the certificate chain that is sent with each signature.
pub struct Signer {
    key: Ed25519KeyPair,
    /// The signer's own certificate, then the certificate of its issuer, each in DER.
    chain: Vec<Vec<u8>>,
}

/// The error for a key that is not an Ed25519 key in PKCS#8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signer's key is not an Ed25519 key in PKCS#8")]
pub struct SignerKeyError;

/// A list of leaves (hashes of desired states and grants) that the controller signs together, by one signature.
#[derive(Debug, Default)]
pub struct SigningBatch {
    leaves: Vec<Leaf>,
}

/// A signed batch of leaves. It provides the proof that a leaf is in the batch.
#[derive(Debug)]
pub struct SignedBatch {
    tree: MerkleTree,
    size: u64,
    signature: Signature,
}

impl Signer {
    /// Creates a signer from its PKCS#8 key (DER) and its certificate chain: its own certificate, then that of its
    /// issuer.
    ///
    /// # Errors
    /// [`SignerKeyError`].
    pub fn new(pkcs8: &[u8], chain: Vec<Vec<u8>>) -> Result<Self, SignerKeyError> {
        // Version 1 of PKCS#8 contains no public key with which the private key could be compared here. If the key does
        // not match the certificate, every agent refuses the signatures.
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).map_err(|_| SignerKeyError)?;
        Ok(Self { key, chain })
    }

    /// Signs a batch with one signature, whatever its size.
    pub fn sign(&self, batch: &SigningBatch) -> SignedBatch {
        let tree = MerkleTree::from_leaves(&batch.leaves);
        let size = batch.leaves.len() as u64;
        let signature = self.sign_statement(&batch_statement(size, &tree.root()));
        SignedBatch { tree, size, signature }
    }

    /// Returns a signed change from one epoch to another. `first_revision` is the first revision of the new epoch.
    pub fn sign_epoch_change(&self, (from, to): (Epoch, Epoch), first_revision: Revision, reason: &str) -> EpochChange {
        let unsigned = Signature { bytes: Vec::new(), signer: Vec::new() };
        let change = EpochChange { from, to, at: first_revision, reason: reason.to_owned(), signature: unsigned };
        let signature = self.sign_statement(&epoch_change_statement(&change));
        EpochChange { signature, ..change }
    }

    /// Signs these bytes. The signature contains the signer's certificate chain.
    fn sign_statement(&self, statement: &[u8]) -> Signature {
        Signature { bytes: self.key.sign(statement).as_ref().to_vec(), signer: self.chain.clone() }
    }
}

impl FromIterator<Leaf> for SigningBatch {
    fn from_iter<I: IntoIterator<Item = Leaf>>(leaves: I) -> Self {
        Self { leaves: leaves.into_iter().collect() }
    }
}

impl SignedBatch {
    /// Returns the proof of the leaf at this index, or `None` if there is no such leaf.
    pub fn proof(&self, index: usize) -> Option<Proof> {
        let leaf_index = index as u64;
        (leaf_index < self.size).then(|| Proof {
            index: leaf_index,
            size: self.size,
            path: self.tree.path(index),
            signature: self.signature.clone(),
        })
    }
}
