//! The listener's side: it verifies client certificates and reads their identities.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ServerConfig};
use rustls::{CommonState, DistinguishedName};
use webpki::KeyUsage;

use super::certificate::{KeyType, check_path, handshake_identity, parse_leaf, require_class, trust_anchors};
use super::{
    ALPN_HTTP1, ClockTime, FleetName, Identity, IdentityClass, Refusal, crypto_provider, impl_signature_checks, unix_time,
};
use crate::clock::Clock;

/// For how long after it expired a node's certificate is still accepted for renewal (docs/trust.md, rule 5): 30 days.
pub const RENEW_GRACE_SECONDS: u64 = 30 * 24 * 3600;

/// id-kp-clientAuth, as DER content: 1.3.6.1.5.5.7.3.2.
const CLIENT_AUTH_OID: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// One of the two listeners of a controller. It decides which clients are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerRole {
    /// The agents' listener. Accepts nodes, expired nodes within the grace period, and clients without a certificate
    /// that want to enrol.
    Agents {
        /// For how long an expired certificate is still accepted, in seconds ([`RENEW_GRACE_SECONDS`]).
        renew_grace_seconds: u64,
    },
    /// The admin listener. Accepts principals by certificate, and clients without one, which a token then identifies.
    Admins,
}

/// The trust settings of a listener: its role, its fleet and its issuers.
#[derive(Clone, Debug)]
pub struct TlsListener {
    /// The role of the listener.
    pub role: ListenerRole,
    /// The fleet that a client's certificate must name.
    pub fleet: FleetName,
    /// The certificates of the trusted issuers. There are two while one replaces the other.
    pub issuers: Vec<CertificateDer<'static>>,
}

/// The server's own certificate and key.
#[derive(Debug)]
pub struct ServerKey {
    /// Leaf, issuer and root. The root is sent because an agent that joins knows only the hash of its key.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's private key, P-256.
    pub key: PrivateKeyDer<'static>,
}

/// Builds the TLS configuration of a listener: TLS 1.3, HTTP/1.1, no tickets, no resumption. A client certificate is
/// requested and not required, because enrolment has none. The endpoint table decides which routes require one.
///
/// # Errors
/// [`rustls::Error`] if an issuer or the server's chain or key cannot be used.
pub fn server_config(
    listener: &TlsListener,
    server_key: ServerKey,
    clock: Arc<dyn Clock>,
) -> Result<ServerConfig, rustls::Error> {
    let verifier = Arc::new(ClientVerifier::new(listener)?);
    let mut config = ServerConfig::builder_with_details(crypto_provider(), Arc::new(ClockTime(clock)))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(server_key.chain, server_key.key)?;
    config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Returns the identity of the client of a finished handshake, or `None` if it sent no certificate.
///
/// # Errors
/// [`Refusal`] if the certificate contains no identity. This cannot happen on a connection that uses [`server_config`],
/// because its verifier has refused such a certificate already.
pub fn peer_identity(tls: &CommonState, now_unix_seconds: u64) -> Result<Option<Identity>, Refusal> {
    handshake_identity(tls, now_unix_seconds)
}

/// Checks the chain of a client's certificate up to the fleet's root, as a listener does. Returns the identity in it. A
/// client checks a certificate that it received before it stores it.
///
/// # Errors
/// [`Refusal`].
pub fn verify_issued_identity(
    chain: &[Vec<u8>],
    root: &[u8],
    fleet: &FleetName,
    now_unix_seconds: u64,
) -> Result<Identity, Refusal> {
    let chain: Vec<_> = chain.iter().map(|certificate| CertificateDer::from(certificate.as_slice())).collect();
    let (leaf, rest) = chain.split_first().ok_or(Refusal::BadEncoding)?;
    let certificate = parse_leaf(leaf, rest, KeyType::P256)?;
    let anchors = trust_anchors(&[CertificateDer::from(root)])?;
    check_path(leaf, rest, &anchors, KeyUsage::required(CLIENT_AUTH_OID), unix_time(now_unix_seconds))?;
    let id = certificate.client_id(fleet)?;
    Ok(certificate.identity(id, now_unix_seconds))
}

/// Checks a client's chain as the listener does, without a handshake.
#[cfg(test)]
pub(crate) fn verify_client_chain(
    listener: &TlsListener,
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
    now: u64,
) -> Result<(), Refusal> {
    ClientVerifier::new(listener).expect("a listener's issuers").check(leaf, rest, unix_time(now))
}

/// The verifier of client certificates, which rustls calls in each handshake.
#[derive(Debug)]
struct ClientVerifier {
    role: ListenerRole,
    fleet: FleetName,
    anchors: Vec<TrustAnchor<'static>>,
}

impl ClientVerifier {
    fn new(listener: &TlsListener) -> Result<Self, rustls::Error> {
        let anchors = trust_anchors(&listener.issuers)?;
        if anchors.is_empty() {
            return Err(rustls::Error::General("a listener needs a trusted issuer".to_owned()));
        }
        Ok(Self { role: listener.role, fleet: listener.fleet.clone(), anchors })
    }

    /// Checks the chain of a client's certificate up to an issuer, its fleet, and the class that this listener accepts.
    /// On the agents' listener, a certificate that expired within the grace period is accepted too.
    fn check(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Refusal> {
        let certificate = parse_leaf(leaf, rest, KeyType::P256)?;
        let check_at = |time| check_path(leaf, rest, &self.anchors, KeyUsage::required(CLIENT_AUTH_OID), time);
        match (check_at(now), self.role) {
            (Err(Refusal::Expired { not_after, now }), ListenerRole::Agents { renew_grace_seconds })
                if now.saturating_sub(not_after) < renew_grace_seconds =>
            {
                // Everything else must have been valid in the certificate's last second.
                check_at(unix_time(not_after))?;
            }
            (result, _) => result?,
        }
        let id = certificate.client_id(&self.fleet)?;
        match self.role {
            ListenerRole::Agents { .. } => require_class(&id, |class| matches!(class, IdentityClass::Node(_))),
            ListenerRole::Admins => require_class(&id, |class| class.principal_name().is_some()),
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

    impl_signature_checks!();
}
