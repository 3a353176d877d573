//! Parsing and path validation of certificates. The verifiers of both ends of a connection and the check of a signer's
//! chain use these functions.

use rustls::CommonState;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use sha2::{Digest, Sha256};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyUsage, anchor_from_trusted_cert};
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ED25519};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

use super::{FleetName, Identity, IdentityClass, MAX_CERTIFICATE_BYTES, MAX_CHAIN_CERTIFICATES, Refusal, SpiffeId};

/// The type of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyType {
    /// ECDSA on P-256: the type of every key that is used for TLS.
    P256,
    /// Ed25519: the type of a signer's key, which signs desired states, grants and changes of epoch.
    Ed25519,
    /// Any other type. Certificates with such a key are refused.
    Other,
}

/// The fields of a certificate that the verifiers need.
#[derive(Debug)]
pub(crate) struct ParsedCertificate {
    pub(crate) key_type: KeyType,
    /// The bytes of the public key, without the identifier of its algorithm.
    pub(crate) public_key: Box<[u8]>,
    pub(crate) spki_sha256: [u8; 32],
    serial: Box<[u8]>,
    not_after: u64,
    /// The URIs among the subject alternative names, in order.
    uris: Vec<String>,
    /// The number of subject alternative names that are not URIs.
    other_name_count: usize,
}

impl ParsedCertificate {
    /// Parses a certificate in DER. Fails if the bytes are invalid, or if other bytes follow the certificate.
    pub(crate) fn parse(der: &[u8]) -> Result<Self, Refusal> {
        let (trailing_bytes, certificate) = X509Certificate::from_der(der).map_err(|_| Refusal::BadEncoding)?;
        if !trailing_bytes.is_empty() {
            return Err(Refusal::BadEncoding);
        }
        let mut parsed = Self {
            key_type: key_type(certificate.public_key()),
            public_key: certificate.public_key().subject_public_key.data.as_ref().into(),
            spki_sha256: Sha256::digest(certificate.public_key().raw).into(),
            serial: certificate.raw_serial().into(),
            // An end before 1970 counts as 1970, so the certificate has expired.
            not_after: certificate.validity().not_after.timestamp().try_into().unwrap_or(0),
            uris: Vec::new(),
            other_name_count: 0,
        };
        let names = certificate.subject_alternative_name().map_err(|_| Refusal::BadEncoding)?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::URI(uri) => parsed.uris.push((*uri).to_owned()),
                _ => parsed.other_name_count += 1,
            }
        }
        Ok(parsed)
    }

    /// Returns the identity in the certificate, which is its only URI. Fails if there is not exactly one URI, or if the
    /// URI is not an identity. If `fleet` is given, also fails for an identity of another fleet.
    pub(crate) fn spiffe_id(&self, fleet: Option<&FleetName>) -> Result<SpiffeId, Refusal> {
        let [uri] = self.uris.as_slice() else { return Err(Refusal::WrongNames) };
        let id: SpiffeId = uri.parse()?;
        if fleet.is_some_and(|fleet| *fleet != id.fleet) {
            return Err(Refusal::OtherFleet);
        }
        Ok(id)
    }

    /// Returns the identity in a client's or signer's certificate. Fails as [`Self::spiffe_id`] does with this fleet,
    /// and also if the certificate contains any name besides the URI, such as a DNS name.
    pub(crate) fn exclusive_spiffe_id(&self, fleet: &FleetName) -> Result<SpiffeId, Refusal> {
        if self.other_name_count > 0 {
            return Err(Refusal::WrongNames);
        }
        self.spiffe_id(Some(fleet))
    }

    /// Combines the URI and the other fields of a verified certificate into the identity of its owner. `now` is the
    /// time in seconds since 1970.
    pub(crate) fn into_identity(self, id: SpiffeId, now: u64) -> Identity {
        Identity {
            fleet: id.fleet,
            class: id.class,
            serial: self.serial,
            spki_sha256: self.spki_sha256,
            not_after: self.not_after,
            is_expired: now > self.not_after,
        }
    }
}

/// Returns the identity in the certificate that the peer sent in the handshake, or `None` if it sent none. The fleet is
/// not checked here: the verifier has done so, unless it was given no fleet. `now` is in seconds since 1970.
pub(crate) fn handshake_identity(tls: &CommonState, now: u64) -> Result<Option<Identity>, Refusal> {
    let Some([certificate, ..]) = tls.peer_certificates() else { return Ok(None) };
    let parsed = ParsedCertificate::parse(certificate)?;
    let id = parsed.spiffe_id(None)?;
    Ok(Some(parsed.into_identity(id, now)))
}

/// Converts trusted certificates to trust anchors, which path validation needs.
pub(crate) fn trust_anchors(trusted: &[CertificateDer<'_>]) -> Result<Vec<TrustAnchor<'static>>, Refusal> {
    let anchor = |certificate| anchor_from_trusted_cert(certificate).map(|anchor| anchor.to_owned());
    trusted.iter().map(anchor).collect::<Result<_, _>>().map_err(|_| Refusal::BadEncoding)
}

/// Parses the first certificate (leaf) of a chain. Fails if the chain has too many or too large certificates, or if the
/// leaf's key has another type than `key`. The caller does this before it verifies signatures, so that a stranger
/// cannot make it verify large chains.
pub(crate) fn parse_leaf(leaf: &[u8], intermediates: &[CertificateDer<'_>], key: KeyType) -> Result<ParsedCertificate, Refusal> {
    if intermediates.len() >= MAX_CHAIN_CERTIFICATES
        || leaf.len() > MAX_CERTIFICATE_BYTES
        || intermediates.iter().any(|certificate| certificate.len() > MAX_CERTIFICATE_BYTES)
    {
        return Err(Refusal::ChainTooLarge);
    }
    let leaf = ParsedCertificate::parse(leaf)?;
    if leaf.key_type == key { Ok(leaf) } else { Err(Refusal::WrongKeyKind) }
}

/// Checks the path from a leaf over the intermediate certificates to a trust anchor: signatures, dates, the right to
/// issue certificates, and extended key usage.
pub(crate) fn check_path(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    anchors: &[TrustAnchor<'_>],
    usage: impl ExtendedKeyUsageValidator,
    now: UnixTime,
) -> Result<(), Refusal> {
    let certificate = EndEntityCert::try_from(leaf)?;
    // Only issuers with a P-256 key are accepted.
    certificate.verify_for_usage(&[webpki::ring::ECDSA_P256_SHA256], anchors, intermediates, now, usage, None, None)?;
    Ok(())
}

/// Checks a signer's chain (its certificate, then its issuer's) up to a trust anchor, and its fleet. Returns the
/// identity in the certificate and the Ed25519 public key. The caller must check that the class of the identity is
/// `Signer`. `now` is the time in seconds since 1970.
pub(crate) fn check_signer(
    chain: &[Vec<u8>],
    anchors: &[TrustAnchor<'_>],
    usage: KeyUsage,
    fleet: &FleetName,
    now: u64,
) -> Result<(SpiffeId, Box<[u8]>), Refusal> {
    let chain: Vec<_> = chain.iter().map(|certificate| CertificateDer::from(certificate.as_slice())).collect();
    let (leaf, intermediates) = chain.split_first().ok_or(Refusal::BadEncoding)?;
    let certificate = parse_leaf(leaf, intermediates, KeyType::Ed25519)?;
    check_path(leaf, intermediates, anchors, usage, super::unix_time(now))?;
    let id = certificate.exclusive_spiffe_id(fleet)?;
    Ok((id, certificate.public_key))
}

/// Fails if the class of the identity (node, controller, …) is not accepted by `is_accepted`.
pub(crate) fn require_class(id: &SpiffeId, is_accepted: fn(&IdentityClass) -> bool) -> Result<(), Refusal> {
    if is_accepted(&id.class) { Ok(()) } else { Err(Refusal::WrongClass) }
}

/// Returns the type of a public key.
fn key_type(key: &SubjectPublicKeyInfo<'_>) -> KeyType {
    let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    if key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve.is_some_and(|curve| curve == OID_EC_P256) {
        KeyType::P256
    } else if key.algorithm.algorithm == OID_SIG_ED25519 {
        KeyType::Ed25519
    } else {
        KeyType::Other
    }
}
