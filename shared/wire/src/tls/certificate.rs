//! One reading of a certificate, shared by the verifiers of both ends and by the check of a signer's chain.

use rustls::CommonState;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use sha2::{Digest, Sha256};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyUsage, anchor_from_trusted_cert};
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ED25519};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

use super::{Class, Fleet, Identity, MAX_CERTIFICATE_BYTES, MAX_CHAIN, Refusal, SpiffeId};

/// The kinds of key that a certificate of ours may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// ECDSA on P-256: all of TLS.
    P256,
    /// Ed25519: signers.
    Ed25519,
    /// Anything else.
    Other,
}

/// What the verifiers want to know of a certificate.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) key: Key,
    /// The public key's bytes, without their algorithm.
    pub(crate) public_key: Box<[u8]>,
    pub(crate) spki_sha256: [u8; 32],
    serial: Box<[u8]>,
    not_after: u64,
    /// Its URIs, in order.
    uris: Vec<String>,
    /// How many names of other kinds it has.
    other_names: usize,
}

impl Leaf {
    /// Reads a certificate; whatever follows it is an error.
    pub(crate) fn parse(der: &[u8]) -> Result<Self, Refusal> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| Refusal::BadEncoding)?;
        if !rest.is_empty() {
            return Err(Refusal::BadEncoding);
        }
        let mut leaf = Self {
            key: key_kind(certificate.public_key()),
            public_key: certificate.public_key().subject_public_key.data.as_ref().into(),
            spki_sha256: Sha256::digest(certificate.public_key().raw).into(),
            serial: certificate.raw_serial().into(),
            not_after: certificate.validity().not_after.timestamp().try_into().unwrap_or(0),
            uris: Vec::new(),
            other_names: 0,
        };
        let names = certificate.subject_alternative_name().map_err(|_| Refusal::BadEncoding)?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::URI(uri) => leaf.uris.push((*uri).to_owned()),
                _ => leaf.other_names += 1,
            }
        }
        Ok(leaf)
    }

    /// The one identity that it names, of this fleet where one is given.
    pub(crate) fn spiffe_id(&self, fleet: Option<&Fleet>) -> Result<SpiffeId, Refusal> {
        let [uri] = self.uris.as_slice() else { return Err(Refusal::WrongNames) };
        let id: SpiffeId = uri.parse()?;
        if fleet.is_some_and(|fleet| *fleet != id.fleet) {
            return Err(Refusal::OtherFleet);
        }
        Ok(id)
    }

    /// The same for a client's, which carries no other name.
    pub(crate) fn client_id(&self, fleet: &Fleet) -> Result<SpiffeId, Refusal> {
        if self.other_names > 0 {
            return Err(Refusal::WrongNames);
        }
        self.spiffe_id(Some(fleet))
    }

    /// The identity of a peer whose certificate was verified.
    pub(crate) fn identity(self, id: SpiffeId, now: u64) -> Identity {
        Identity {
            fleet: id.fleet,
            class: id.class,
            serial: self.serial,
            spki_sha256: self.spki_sha256,
            not_after: self.not_after,
            expired: now > self.not_after,
        }
    }
}

/// Who the other end of a finished handshake is by its certificate; `None` when it showed none.
pub(crate) fn named_by(tls: &CommonState, now: u64) -> Result<Option<Identity>, Refusal> {
    let Some([certificate, ..]) = tls.peer_certificates() else { return Ok(None) };
    let leaf = Leaf::parse(certificate)?;
    let id = leaf.spiffe_id(None)?;
    Ok(Some(leaf.identity(id, now)))
}

/// What is trusted, of certificates that are.
pub(crate) fn anchors(trusted: &[CertificateDer<'_>]) -> Result<Vec<TrustAnchor<'static>>, Refusal> {
    let anchor = |certificate| anchor_from_trusted_cert(certificate).map(|anchor| anchor.to_owned());
    trusted.iter().map(anchor).collect::<Result<_, _>>().map_err(|_| Refusal::BadEncoding)
}

/// Refuses what none of ours is before any signature is computed: a long chain, a large certificate, another key (S09).
pub(crate) fn parse_leaf(leaf: &[u8], rest: &[CertificateDer<'_>], key: Key) -> Result<Leaf, Refusal> {
    if rest.len() >= MAX_CHAIN
        || leaf.len() > MAX_CERTIFICATE_BYTES
        || rest.iter().any(|certificate| certificate.len() > MAX_CERTIFICATE_BYTES)
    {
        return Err(Refusal::ChainTooLarge);
    }
    let leaf = Leaf::parse(leaf)?;
    if leaf.key == key { Ok(leaf) } else { Err(Refusal::WrongKeyKind) }
}

/// Checks signatures, dates, authority bits and use from a leaf up to an anchor.
pub(crate) fn check_path(
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
    anchors: &[TrustAnchor<'_>],
    usage: impl ExtendedKeyUsageValidator,
    now: UnixTime,
) -> Result<(), Refusal> {
    let certificate = EndEntityCert::try_from(leaf)?;
    certificate.verify_for_usage(&[webpki::ring::ECDSA_P256_SHA256], anchors, rest, now, usage, None, None)?;
    Ok(())
}

/// Checks a signer's chain (its certificate, then its issuer) up to an anchor, and yields who it is and its Ed25519 key.
pub(crate) fn check_signer(
    chain: &[Vec<u8>],
    anchors: &[TrustAnchor<'_>],
    usage: KeyUsage,
    fleet: &Fleet,
    now: u64,
) -> Result<(SpiffeId, Box<[u8]>), Refusal> {
    let chain: Vec<_> = chain.iter().map(|certificate| CertificateDer::from(certificate.as_slice())).collect();
    let (leaf, rest) = chain.split_first().ok_or(Refusal::BadEncoding)?;
    let certificate = parse_leaf(leaf, rest, Key::Ed25519)?;
    check_path(leaf, rest, anchors, usage, super::unix_time(now))?;
    let id = certificate.client_id(fleet)?;
    Ok((id, certificate.public_key))
}

/// Whether a class may come from this issuer's leaves.
pub(crate) fn require_class(id: &SpiffeId, is_ours: fn(&Class) -> bool) -> Result<(), Refusal> {
    if is_ours(&id.class) { Ok(()) } else { Err(Refusal::WrongClass) }
}

fn key_kind(key: &SubjectPublicKeyInfo<'_>) -> Key {
    let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    if key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve.is_some_and(|curve| curve == OID_EC_P256) {
        Key::P256
    } else if key.algorithm.algorithm == OID_SIG_ED25519 {
        Key::Ed25519
    } else {
        Key::Other
    }
}
