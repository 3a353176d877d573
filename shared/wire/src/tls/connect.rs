//! The client's side: which server is the fleet's controller, and what we show it.

use std::sync::Arc;

use rustls::CommonState;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, anchor_from_trusted_cert};

use super::certificate::{Key, anchors, check_path, named_by, parse_leaf, require_class};
use super::{ALPN_HTTP1, Class, ClockTime, Fleet, Identity, Refusal, checks_signatures, provider, spki_sha256};
use crate::clock::Clock;

/// id-kp-serverAuth, as DER content: 1.3.6.1.5.5.7.3.1.
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];

/// What a client knows of the fleet's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The root's certificate; two while one follows the other.
    Roots(Vec<CertificateDer<'static>>),
    /// SHA-256 of the root's public key (`SubjectPublicKeyInfo`), as `--ca-hash` gives it. The root is then taken
    /// from the chain that the server sends.
    KeyHash([u8; 32]),
}

/// A client's own certificate and key.
#[derive(Debug)]
pub struct ClientIdentity {
    /// Leaf first. The issuer need not follow: the listener has it.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's private key, P-256.
    pub key: PrivateKeyDer<'static>,
}

/// The TLS side of a client: the server must be a controller under the pinned root, of the fleet where one is given
/// (an agent that joins does not know its name yet), and carry the name that was dialled.
///
/// # Errors
/// [`rustls::Error`] when a root, or the client's chain or key, cannot be used.
pub fn client_config(
    pin: &Pin,
    fleet: Option<Fleet>,
    own: Option<ClientIdentity>,
    clock: Arc<dyn Clock>,
) -> Result<ClientConfig, rustls::Error> {
    let verifier = Arc::new(ServerVerifier::new(pin, fleet)?);
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(ClockTime(clock)))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match own {
        Some(own) => builder.with_client_auth_cert(own.chain, own.key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Who the server of a finished handshake is.
///
/// # Errors
/// A [`Refusal`] when it names nobody, which a connection whose config is of [`client_config`] does not have.
pub fn server_identity(tls: &CommonState, now_unix_seconds: u64) -> Result<Identity, Refusal> {
    named_by(tls, now_unix_seconds)?.ok_or(Refusal::BadEncoding)
}

/// Decides over the server's certificate.
#[derive(Debug)]
struct ServerVerifier {
    pin: PinnedAnchors,
    fleet: Option<Fleet>,
}

#[derive(Debug)]
enum PinnedAnchors {
    Known(Vec<TrustAnchor<'static>>),
    KeyHash([u8; 32]),
}

impl ServerVerifier {
    fn new(pin: &Pin, fleet: Option<Fleet>) -> Result<Self, rustls::Error> {
        let pin = match pin {
            Pin::KeyHash(hash) => PinnedAnchors::KeyHash(*hash),
            Pin::Roots(roots) => PinnedAnchors::Known(anchors(roots)?),
        };
        Ok(Self { pin, fleet })
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Refusal> {
        let certificate = parse_leaf(leaf, rest, Key::P256)?;
        match &self.pin {
            PinnedAnchors::Known(anchors) => check_server(leaf, rest, anchors, now)?,
            PinnedAnchors::KeyHash(hash) => {
                let root = root_by_hash(rest, hash)?;
                let anchor = anchor_from_trusted_cert(root).map_err(|_| Refusal::BadEncoding)?;
                check_server(leaf, rest, &[anchor], now)?;
            }
        }
        let id = certificate.spiffe_id(self.fleet.as_ref())?;
        require_class(&id, |class| matches!(class, Class::Controller(_)))?;
        EndEntityCert::try_from(leaf)?.verify_is_valid_for_subject_name(name)?;
        Ok(())
    }
}

/// The certificate of the chain whose key is the pinned one. That it says it is a root is not asked: whoever holds
/// that key speaks for the fleet.
fn root_by_hash<'a>(rest: &'a [CertificateDer<'a>], hash: &[u8; 32]) -> Result<&'a CertificateDer<'a>, Refusal> {
    rest.iter().find(|certificate| spki_sha256(certificate).is_ok_and(|found| found == *hash)).ok_or(Refusal::OtherRoot)
}

impl ServerCertVerifier for ServerVerifier {
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

    checks_signatures!();
}

/// Checks a server's certificate. The issuer is checked first and the use second. A person may have given a wrong address, and then
/// the error names another authority, not a wrong use.
fn check_server(
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
    anchors: &[TrustAnchor<'_>],
    now: UnixTime,
) -> Result<(), Refusal> {
    let checked = check_path(leaf, rest, anchors, KeyUsage::required(SERVER_AUTH), now);
    if checked == Err(Refusal::WrongUse) {
        check_path(leaf, rest, anchors, AnyUse, now)?;
    }
    checked
}

/// Takes a certificate whatever it is for.
struct AnyUse;

impl ExtendedKeyUsageValidator for AnyUse {
    fn validate(&self, _purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}
