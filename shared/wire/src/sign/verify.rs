//! The agent's side: is this signed, by one of the fleet's controllers, for this node?

use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::pki_types::{CertificateDer, TrustAnchor};
use uuid::Uuid;
use webpki::KeyUsage;

use super::merkle::root_of;
use super::{Leaf, batch_statement, epoch_change_statement};
use crate::message::signed::{EpochChange, Proof, Signature, SignedDesired, SignedGrant};
use crate::message::{PartDigest, WireVersion, digest_part};
use crate::tls::{Class, Fleet, Refusal, SpiffeId, anchors, check_signer};

/// id-kp-codeSigning, as DER content: 1.3.6.1.5.5.7.3.3. It tells the signers issuer from the others.
const CODE_SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];

/// Why a statement is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    /// The signer's certificate does not hold up to the pinned root.
    #[error("the signer's certificate is not accepted")]
    Signer(#[source] Refusal),
    /// The path is not one from this leaf's place.
    #[error("the proof does not lead from its place to a root")]
    Path,
    /// The signature is not the signer's over this.
    #[error("the signature does not hold: the message is of another node, was changed, or was not made by this signer")]
    Signature,
    /// A part's bytes do not have the digest that was signed.
    #[error("the part's bytes do not have the digest that was signed")]
    Digest,
}

/// What an agent checks signatures against: the fleet root that it pinned, and its fleet's name.
pub struct Verifier {
    fleet: Fleet,
    anchors: Vec<TrustAnchor<'static>>,
}

impl Verifier {
    /// A verifier for a fleet and its root (two while one follows the other), DER.
    ///
    /// # Errors
    /// [`Refusal::BadEncoding`] when a root is no certificate.
    pub fn new(fleet: Fleet, roots: &[CertificateDer<'_>]) -> Result<Self, Refusal> {
        Ok(Self { fleet, anchors: anchors(roots)? })
    }

    /// Checks a desired state for this node: signer, path, signature, and the digest of each part that came along, which is of this
    /// version. Whether epoch and revision may follow what is held is the ledger's to decide.
    ///
    /// # Errors
    /// [`NotSigned`].
    pub fn check_desired(
        &self,
        node: Uuid,
        version: WireVersion,
        state: &SignedDesired,
        now_unix_seconds: u64,
    ) -> Result<(), NotSigned> {
        self.check_proof(Leaf::of_desired(node, state), &state.proof, now_unix_seconds)?;
        check_digest(version, state.known.as_deref(), state.known_digest)?;
        check_digest(version, state.task_set.as_deref(), state.task_set_digest)
    }

    /// Checks that barriers or a lease were given to this node.
    ///
    /// # Errors
    /// [`NotSigned`].
    pub fn check_grant(&self, node: Uuid, grant: &SignedGrant, now_unix_seconds: u64) -> Result<(), NotSigned> {
        self.check_proof(Leaf::of_grant(node, grant), &grant.proof, now_unix_seconds)
    }

    /// Checks that a change of epoch was made by one of the fleet's controllers.
    ///
    /// # Errors
    /// [`NotSigned`].
    pub fn check_epoch_change(&self, change: &EpochChange, now_unix_seconds: u64) -> Result<(), NotSigned> {
        self.check_signature(&epoch_change_statement(change), &change.signature, now_unix_seconds)
    }

    fn check_proof(&self, leaf: Leaf, proof: &Proof, now: u64) -> Result<(), NotSigned> {
        let root = root_of(leaf, proof.index, proof.size, &proof.path).ok_or(NotSigned::Path)?;
        self.check_signature(&batch_statement(proof.size, &root), &proof.signature, now)
    }

    fn check_signature(&self, statement: &[u8], signature: &Signature, now: u64) -> Result<(), NotSigned> {
        let key = self.signer_key(&signature.signer, now).map_err(NotSigned::Signer)?;
        UnparsedPublicKey::new(&ED25519, key).verify(statement, &signature.bytes).map_err(|_| NotSigned::Signature)
    }

    /// The public key of a signer whose chain holds now.
    fn signer_key(&self, chain: &[Vec<u8>], now: u64) -> Result<Box<[u8]>, Refusal> {
        let (id, key) = check_signer(chain, &self.anchors, KeyUsage::required(CODE_SIGNING), &self.fleet, now)?;
        match id {
            SpiffeId { class: Class::Signer(_), .. } => Ok(key),
            SpiffeId {
                class: Class::Node(_) | Class::Controller(_) | Class::Admin(_) | Class::Principal(_), ..
            } => Err(Refusal::WrongClass),
        }
    }
}

fn check_digest(version: WireVersion, bytes: Option<&[u8]>, digest: PartDigest) -> Result<(), NotSigned> {
    match bytes {
        Some(bytes) if digest_part(version, bytes) != digest => Err(NotSigned::Digest),
        Some(_) | None => Ok(()),
    }
}
