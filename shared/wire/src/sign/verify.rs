//! The agent's side: it verifies that a signer of the fleet signed a message for this node.

use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::pki_types::{CertificateDer, TrustAnchor};
use uuid::Uuid;
use webpki::KeyUsage;

use super::merkle::root_from_path;
use super::{Leaf, batch_statement, epoch_change_statement};
use crate::message::signed::{EpochChange, Proof, Signature, SignedDesired, SignedGrant};
use crate::message::{PartDigest, WireVersion, digest_part};
use crate::tls::{FleetName, IdentityClass, Refusal, SpiffeId, check_signer, trust_anchors};

/// The extended key usage `codeSigning` (1.3.6.1.5.5.7.3.3), as the bytes of its DER content. Only the fleet's issuer
/// of signers and the certificates of signers have this usage.
const CODE_SIGNING_OID: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];

/// The reason why a signed message is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    /// The signer's certificate is refused, for example because it has expired or does not lead to the pinned root.
    #[error("the signer's certificate is not accepted")]
    Signer(#[source] Refusal),
    /// The path of the proof is too short or too long for a leaf at this index, or the batch has no leaf at this index.
    #[error("the proof does not lead from the leaf to a root")]
    Path,
    /// The signer did not sign these bytes.
    #[error("the signature is invalid: the message is for another node, was changed, or was not signed by this signer")]
    Signature,
    /// The bytes of a part of the desired state do not have the signed digest.
    #[error("the part does not match its signed digest")]
    Digest,
}

/// Verifies signatures against the pinned root and name of the agent's fleet.
pub struct Verifier {
    fleet: FleetName,
    anchors: Vec<TrustAnchor<'static>>,
}

impl Verifier {
    /// Creates a verifier for a fleet and its roots, in DER. A fleet has two roots while a new root replaces the old
    /// one.
    ///
    /// # Errors
    /// [`Refusal::BadEncoding`] if a root is not a certificate.
    pub fn new(fleet: FleetName, roots: &[CertificateDer<'_>]) -> Result<Self, Refusal> {
        Ok(Self { fleet, anchors: trust_anchors(roots)? })
    }

    /// Checks that a desired state is for this node and was signed by the fleet: signer, path, signature, and the
    /// digest of each part that was sent. `version` is the wire version of the parts. The function does not check
    /// whether epoch and revision may follow those that the agent holds.
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
        self.check_proof(Leaf::from_signed_desired(node, state), &state.proof, now_unix_seconds)?;
        check_digest(version, state.known.as_deref(), state.known_digest)?;
        check_digest(version, state.task_set.as_deref(), state.task_set_digest)
    }

    /// Checks that a signer of the fleet granted these barriers or this lease to this node.
    ///
    /// # Errors
    /// [`NotSigned`].
    pub fn check_grant(&self, node: Uuid, grant: &SignedGrant, now_unix_seconds: u64) -> Result<(), NotSigned> {
        self.check_proof(Leaf::from_signed_grant(node, grant), &grant.proof, now_unix_seconds)
    }

    /// Checks that a signer of the fleet signed a change of epoch.
    ///
    /// # Errors
    /// [`NotSigned`].
    pub fn check_epoch_change(&self, change: &EpochChange, now_unix_seconds: u64) -> Result<(), NotSigned> {
        self.check_signature(&epoch_change_statement(change), &change.signature, now_unix_seconds)
    }

    /// Checks that a leaf is in a batch that a signer of the fleet signed. `now` is the time in seconds since 1970.
    fn check_proof(&self, leaf: Leaf, proof: &Proof, now: u64) -> Result<(), NotSigned> {
        let root = root_from_path(leaf, proof.index, proof.size, &proof.path).ok_or(NotSigned::Path)?;
        self.check_signature(&batch_statement(proof.size, &root), &proof.signature, now)
    }

    /// Checks that a signer of the fleet signed these bytes. `now` is the time in seconds since 1970.
    fn check_signature(&self, statement: &[u8], signature: &Signature, now: u64) -> Result<(), NotSigned> {
        let key = self.signer_key(&signature.signer, now).map_err(NotSigned::Signer)?;
        UnparsedPublicKey::new(&ED25519, key).verify(statement, &signature.bytes).map_err(|_| NotSigned::Signature)
    }

    /// Checks a signer's certificate chain at this time (seconds since 1970), and returns the signer's public key.
    /// Fails if the certificate is valid but not a signer's.
    fn signer_key(&self, chain: &[Vec<u8>], now: u64) -> Result<Box<[u8]>, Refusal> {
        let (id, key) = check_signer(chain, &self.anchors, KeyUsage::required(CODE_SIGNING_OID), &self.fleet, now)?;
        match id {
            SpiffeId { class: IdentityClass::Signer(_), .. } => Ok(key),
            SpiffeId {
                class:
                    IdentityClass::Node(_) | IdentityClass::Controller(_) | IdentityClass::Admin(_) | IdentityClass::Principal(_),
                ..
            } => Err(Refusal::WrongClass),
        }
    }
}

/// Checks that a part of a desired state has its signed digest. A part that was not sent (`None`) is not checked.
fn check_digest(version: WireVersion, bytes: Option<&[u8]>, digest: PartDigest) -> Result<(), NotSigned> {
    match bytes {
        Some(bytes) if digest_part(version, bytes) != digest => Err(NotSigned::Digest),
        Some(_) | None => Ok(()),
    }
}
