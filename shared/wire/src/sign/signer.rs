//! The controller's side: signing batches.

use ring::signature::Ed25519KeyPair;

use super::merkle::Tree;
use super::{Leaf, batch_statement, epoch_change_statement};
use crate::message::signed::{EpochChange, Proof, Signature};
use crate::message::{Epoch, Revision};

/// A controller's signing key, with the certificate that goes with each signature.
pub struct Signer {
    key: Ed25519KeyPair,
    /// Leaf, then the signers issuer, DER.
    chain: Vec<Vec<u8>>,
}

/// The key is no Ed25519 key in PKCS#8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signer's key is no Ed25519 key in PKCS#8")]
pub struct SignerKeyError;

/// Leaves that are to be signed together.
#[derive(Debug, Default)]
pub struct Batch {
    leaves: Vec<Leaf>,
}

/// A signed batch: gives each leaf its proof.
#[derive(Debug)]
pub struct SignedBatch {
    tree: Tree,
    size: u64,
    signature: Signature,
}

impl Signer {
    /// A signer from its PKCS#8 key (DER) and its chain: its own certificate, then the signers issuer.
    ///
    /// # Errors
    /// [`SignerKeyError`].
    pub fn new(pkcs8: &[u8], chain: Vec<Vec<u8>>) -> Result<Self, SignerKeyError> {
        // Version 1 of PKCS#8 holds no public key to compare with; the certificate does, and every agent compares.
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).map_err(|_| SignerKeyError)?;
        Ok(Self { key, chain })
    }

    /// Signs a batch: one signature, whatever its size.
    pub fn sign(&self, batch: &Batch) -> SignedBatch {
        let tree = Tree::build(&batch.leaves);
        let size = batch.leaves.len() as u64;
        let signature = self.signature(&batch_statement(size, &tree.root()));
        SignedBatch { tree, size, signature }
    }

    /// Signs the change from an epoch to another one, which begins at this revision.
    pub fn sign_epoch_change(&self, (from, to): (Epoch, Epoch), at: Revision, reason: &str) -> EpochChange {
        let unsigned = Signature { bytes: Vec::new(), signer: Vec::new() };
        let change = EpochChange { from, to, at, reason: reason.to_owned(), signature: unsigned };
        let signature = self.signature(&epoch_change_statement(&change));
        EpochChange { signature, ..change }
    }

    fn signature(&self, statement: &[u8]) -> Signature {
        Signature { bytes: self.key.sign(statement).as_ref().to_vec(), signer: self.chain.clone() }
    }
}

impl FromIterator<Leaf> for Batch {
    fn from_iter<I: IntoIterator<Item = Leaf>>(leaves: I) -> Self {
        Self { leaves: leaves.into_iter().collect() }
    }
}

impl SignedBatch {
    /// The proof of the leaf at this place; `None` beyond the end.
    pub fn proof(&self, index: usize) -> Option<Proof> {
        let place = index as u64;
        (place < self.size).then(|| Proof {
            index: place,
            size: self.size,
            path: self.tree.path(index),
            signature: self.signature.clone(),
        })
    }
}
