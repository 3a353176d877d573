//! The listener's side: which client certificates are taken, and whose they are.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ServerConfig};
use rustls::{CommonState, DistinguishedName};
use webpki::KeyUsage;

use super::certificate::{Key, anchors, check_path, named_by, parse_leaf, require_class};
use super::{ALPN_HTTP1, Class, ClockTime, Fleet, Identity, Refusal, checks_signatures, provider, unix_time};
use crate::clock::Clock;

/// How long past its last day a node's certificate still admits its holder, to renew (docs/trust.md, rule 5): 30 days.
pub const RENEW_GRACE_SECONDS: u64 = 30 * 24 * 3600;

/// id-kp-clientAuth, as DER content: 1.3.6.1.5.5.7.3.2.
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// Which of the two listeners this is: what it takes from clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// The agents' listener: nodes, also expired ones within the grace, and those without a certificate that want to enrol.
    Agents {
        /// How long after its last day a certificate is still admitted, in seconds ([`RENEW_GRACE_SECONDS`]).
        renew_grace_seconds: u64,
    },
    /// The admin listener: admins by certificate, or none (a token then says who asks).
    Admins,
}

/// A listener's side of the handshake: whom it trusts, as what.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Which listener.
    pub accepts: Accepts,
    /// The fleet that a client's certificate must name.
    pub fleet: Fleet,
    /// The issuers that are trusted, as certificates; two while one follows the other.
    pub issuers: Vec<CertificateDer<'static>>,
}

/// The server's own certificate and key.
#[derive(Debug)]
pub struct ServerKey {
    /// Leaf, issuer, root: the root is sent too, as an agent that joins has its key's hash and nothing else.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's private key, P-256.
    pub key: PrivateKeyDer<'static>,
}

/// The TLS side of a listener: TLS 1.3, HTTP/1.1, a client certificate asked for and not demanded (enrol has none; which
/// route wants one is the endpoint table's), no tickets, no resumption.
///
/// # Errors
/// [`rustls::Error`] when an issuer or the server's chain or key cannot be used.
pub fn server_config(
    listener: &Listener,
    own: ServerKey,
    clock: Arc<dyn Clock>,
) -> Result<ServerConfig, rustls::Error> {
    let verifier = Arc::new(ClientVerifier::new(listener)?);
    let mut config = ServerConfig::builder_with_details(provider(), Arc::new(ClockTime(clock)))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.chain, own.key)?;
    config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Who the client of a finished handshake is; `None` when it showed no certificate.
///
/// # Errors
/// A [`Refusal`] when the certificate names nobody. The verifier has refused such ones already, so on a connection
/// whose config is of [`server_config`] it is not seen.
pub fn peer_identity(tls: &CommonState, now_unix_seconds: u64) -> Result<Option<Identity>, Refusal> {
    named_by(tls, now_unix_seconds)
}

/// The identity in a client's certificate chain, which is checked up to the fleet's root as a listener does. Who was given a
/// certificate asks before it keeps it.
///
/// # Errors
/// [`Refusal`].
pub fn given_identity(
    chain: &[Vec<u8>],
    root: &[u8],
    fleet: &Fleet,
    now_unix_seconds: u64,
) -> Result<Identity, Refusal> {
    let chain: Vec<_> = chain.iter().map(|certificate| CertificateDer::from(certificate.as_slice())).collect();
    let (leaf, rest) = chain.split_first().ok_or(Refusal::BadEncoding)?;
    let certificate = parse_leaf(leaf, rest, Key::P256)?;
    let anchors = anchors(&[CertificateDer::from(root)])?;
    check_path(leaf, rest, &anchors, KeyUsage::required(CLIENT_AUTH), unix_time(now_unix_seconds))?;
    let id = certificate.client_id(fleet)?;
    Ok(certificate.identity(id, now_unix_seconds))
}

/// The listener's verdict on a client's chain, without a handshake.
#[cfg(test)]
pub(crate) fn check_client(
    listener: &Listener,
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
    now: u64,
) -> Result<(), Refusal> {
    ClientVerifier::new(listener).expect("a listener's issuers").check(leaf, rest, unix_time(now))
}

/// Decides over client certificates.
#[derive(Debug)]
struct ClientVerifier {
    accepts: Accepts,
    fleet: Fleet,
    anchors: Vec<TrustAnchor<'static>>,
}

impl ClientVerifier {
    fn new(listener: &Listener) -> Result<Self, rustls::Error> {
        let anchors = anchors(&listener.issuers)?;
        if anchors.is_empty() {
            return Err(rustls::Error::General("a listener needs an issuer to trust".to_owned()));
        }
        Ok(Self { accepts: listener.accepts, fleet: listener.fleet.clone(), anchors })
    }

    fn check(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Refusal> {
        let certificate = parse_leaf(leaf, rest, Key::P256)?;
        let check_at = |time| check_path(leaf, rest, &self.anchors, KeyUsage::required(CLIENT_AUTH), time);
        match (check_at(now), self.accepts) {
            (Err(Refusal::Expired { not_after, now }), Accepts::Agents { renew_grace_seconds })
                if now.saturating_sub(not_after) < renew_grace_seconds =>
            {
                // As of its last second everything else must hold.
                check_at(unix_time(not_after))?;
            }
            (checked, _) => checked?,
        }
        let id = certificate.client_id(&self.fleet)?;
        match self.accepts {
            Accepts::Agents { .. } => require_class(&id, |class| matches!(class, Class::Node(_))),
            Accepts::Admins => require_class(&id, |class| class.operator().is_some()),
        }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity, intermediates, now)?;
        Ok(ClientCertVerified::assertion())
    }

    checks_signatures!();
}
