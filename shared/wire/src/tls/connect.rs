//! The client's side of TLS: the client verifies the controller's certificate, and presents its own certificate.

use std::sync::Arc;

use rustls::CommonState;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, anchor_from_trusted_cert};

use super::certificate::{KeyType, check_path, handshake_identity, parse_leaf, require_class, trust_anchors};
use super::{
    ALPN_HTTP1, ClockTime, FleetName, Identity, IdentityClass, Refusal, crypto_provider, impl_signature_checks, spki_sha256,
};
use crate::clock::Clock;

/// The extended key usage `serverAuth` (1.3.6.1.5.5.7.3.1), as the bytes of its DER content.
const SERVER_AUTH_OID: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];

/// The data by which a client recognizes the root certificate of its fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The certificate of the root. There are two while a new root replaces the old one.
    Roots(Vec<CertificateDer<'static>>),
    /// The SHA-256 of the root's public key (`SubjectPublicKeyInfo`), as in `--ca-hash`. The client then finds the root
    /// in the chain that the server sends.
    KeyHash([u8; 32]),
}

/// A client's own certificate and key.
#[derive(Debug)]
pub struct ClientIdentity {
    /// The certificate chain, with the client's own certificate first. The issuer's certificate may be omitted, because
    /// the listener has it.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key of the client's own certificate, on P-256.
    pub key: PrivateKeyDer<'static>,
}

/// Builds the TLS configuration of a client. The server must be a controller whose chain leads to the pinned root. Its
/// certificate must contain the name or address to which the client connects. If `fleet` is given (an agent that joins
/// does not know it yet), it must be the controller's. Without `identity`, the client presents no certificate.
///
/// # Errors
/// [`rustls::Error`] if a root, or the client's chain or key, cannot be used.
pub fn client_config(
    pin: &Pin,
    fleet: Option<FleetName>,
    identity: Option<ClientIdentity>,
    clock: Arc<dyn Clock>,
) -> Result<ClientConfig, rustls::Error> {
    let verifier = Arc::new(ServerVerifier::new(pin, fleet)?);
    let builder = ClientConfig::builder_with_details(crypto_provider(), Arc::new(ClockTime(clock)))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_auth_cert(identity.chain, identity.key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Returns the identity of the server, after the handshake.
///
/// # Errors
/// [`Refusal`] if the certificate contains no identity. This cannot happen on a connection that uses [`client_config`].
pub fn server_identity(tls: &CommonState, now_unix_seconds: u64) -> Result<Identity, Refusal> {
    handshake_identity(tls, now_unix_seconds)?.ok_or(Refusal::BadEncoding)
}

/// The verifier of the server's certificate, which rustls calls in each handshake.
#[derive(Debug)]
struct ServerVerifier {
    pin: PinnedAnchors,
    fleet: Option<FleetName>,
}

/// The pinned root in the form that path validation needs, or the hash of its key.
#[derive(Debug)]
enum PinnedAnchors {
    Anchors(Vec<TrustAnchor<'static>>),
    KeyHash([u8; 32]),
}

impl ServerVerifier {
    /// Creates a verifier. Fails if a root is not a valid certificate.
    fn new(pin: &Pin, fleet: Option<FleetName>) -> Result<Self, rustls::Error> {
        let pin = match pin {
            Pin::KeyHash(hash) => PinnedAnchors::KeyHash(*hash),
            Pin::Roots(roots) => PinnedAnchors::Anchors(trust_anchors(roots)?),
        };
        Ok(Self { pin, fleet })
    }

    /// Checks a server's certificate: its chain up to the pinned root, that its identity is a controller's, its fleet
    /// (if the client gave one), and that it contains the name or address to which the client connects.
    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Refusal> {
        let certificate = parse_leaf(leaf, intermediates, KeyType::P256)?;
        match &self.pin {
            PinnedAnchors::Anchors(anchors) => check_server(leaf, intermediates, anchors, now)?,
            PinnedAnchors::KeyHash(hash) => {
                let root = find_root_by_hash(intermediates, hash)?;
                let anchor = anchor_from_trusted_cert(root).map_err(|_| Refusal::BadEncoding)?;
                check_server(leaf, intermediates, &[anchor], now)?;
            }
        }
        let id = certificate.spiffe_id(self.fleet.as_ref())?;
        require_class(&id, |class| matches!(class, IdentityClass::Controller(_)))?;
        EndEntityCert::try_from(leaf)?.verify_is_valid_for_subject_name(name)?;
        Ok(())
    }
}

/// Returns the certificate in the chain whose public key has the pinned hash. The certificate need not claim to be a
/// root, because the client trusts the key itself.
fn find_root_by_hash<'a>(intermediates: &'a [CertificateDer<'a>], hash: &[u8; 32]) -> Result<&'a CertificateDer<'a>, Refusal> {
    intermediates.iter().find(|certificate| spki_sha256(certificate).is_ok_and(|found| found == *hash)).ok_or(Refusal::OtherRoot)
}

impl ServerCertVerifier for ServerVerifier {
    /// Checks the server's certificate during the handshake. A refusal fails the handshake.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity, intermediates, server_name, now)?;
        Ok(ServerCertVerified::assertion())
    }

    impl_signature_checks!();
}

/// Checks the chain of a server's certificate up to a trust anchor, for use as a server. If the use is wrong, checks
/// the chain again for any use. If the chain also has an unknown issuer, the error is then about the issuer, because
/// that is the more important reason.
fn check_server(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    anchors: &[TrustAnchor<'_>],
    now: UnixTime,
) -> Result<(), Refusal> {
    let result = check_path(leaf, intermediates, anchors, KeyUsage::required(SERVER_AUTH_OID), now);
    if result == Err(Refusal::WrongUse) {
        check_path(leaf, intermediates, anchors, AnyPurpose, now)?;
    }
    result
}

/// A validator that accepts every extended key usage.
struct AnyPurpose;

impl ExtendedKeyUsageValidator for AnyPurpose {
    fn validate(&self, _purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}
