//! The listener's side of TLS: the listener verifies client certificates, and reads the identities in them.

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

/// The time, in seconds, for which an expired certificate of a node is still accepted for renewal (docs/trust.md,
/// rule 5): 30 days.
pub const RENEW_GRACE_SECONDS: u64 = 30 * 24 * 3600;

/// The extended key usage `clientAuth` (1.3.6.1.5.5.7.3.2), as the bytes of its DER content.
const CLIENT_AUTH_OID: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// The role of a listener of a controller, which decides which clients the listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerRole {
    /// The agents' listener. It accepts nodes, and for a renewal also nodes whose certificate expired within the grace
    /// period. It also accepts clients without a certificate, because a host that enrols has none yet.
    Agents {
        /// The grace period: the number of seconds for which an expired certificate is still accepted
        /// ([`RENEW_GRACE_SECONDS`]).
        renew_grace_seconds: u64,
    },
    /// The admin listener. It accepts principals by certificate. It also accepts clients without a certificate, because
    /// a token in their requests can identify them.
    Admins,
}

/// The trust settings of a listener: its role, its fleet, and the issuers of client certificates that it trusts.
#[derive(Clone, Debug)]
pub struct TlsListener {
    /// Whether this is the agents' listener or the admin listener. This decides which classes of clients it accepts.
    pub role: ListenerRole,
    /// The fleet that a client's certificate must name.
    pub fleet: FleetName,
    /// The certificates of the trusted issuers. Several are possible, so that a new issuer can replace an old one.
    pub issuers: Vec<CertificateDer<'static>>,
}

/// The certificate chain and the private key of a TLS server, such as a controller's listener.
#[derive(Debug)]
pub struct ServerKey {
    /// The certificate chain: the server's own certificate, then issuer and root. The server sends the root too,
    /// because an agent that joins knows only the hash of the root's key.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key of the server's own certificate, on P-256.
    pub key: PrivateKeyDer<'static>,
}

/// Builds the TLS configuration of a listener: TLS 1.3, HTTP/1.1, no session tickets, no resumption. The listener
/// requests a client certificate but does not require one. A host that enrols has none yet, and a principal can use a
/// token instead. So the handshake also succeeds without a certificate, and access is decided for each request.
///
/// # Errors
/// [`rustls::Error`] if the listener has no issuer, or if an issuer or the server's chain or key cannot be used.
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

/// Returns the identity of the client after the handshake, or `None` if the client sent no certificate. The time
/// `now_unix_seconds` only sets [`Identity::is_expired`]. An expired certificate is not refused here.
///
/// # Errors
/// [`Refusal`] if the certificate contains no identity. This cannot happen on a connection that uses [`server_config`],
/// because its verifier has refused such a certificate already.
pub fn peer_identity(tls: &CommonState, now_unix_seconds: u64) -> Result<Option<Identity>, Refusal> {
    handshake_identity(tls, now_unix_seconds)
}

/// Checks the chain of a client certificate that a controller issued, up to the fleet's root (`root`, in DER). Returns
/// the identity in the certificate, whose class (node, principal, …) is not checked here.
///
/// # Errors
/// [`Refusal`] if the chain is not valid for a client at this time, or does not lead to the root, or if the certificate
/// does not contain exactly one identity of this fleet.
pub fn verify_issued_identity(
    chain: &[Vec<u8>],
    root: &[u8],
    fleet: &FleetName,
    now_unix_seconds: u64,
) -> Result<Identity, Refusal> {
    let chain: Vec<_> = chain.iter().map(|certificate| CertificateDer::from(certificate.as_slice())).collect();
    let (leaf, intermediates) = chain.split_first().ok_or(Refusal::BadEncoding)?;
    let certificate = parse_leaf(leaf, intermediates, KeyType::P256)?;
    let anchors = trust_anchors(&[CertificateDer::from(root)])?;
    check_path(leaf, intermediates, &anchors, KeyUsage::required(CLIENT_AUTH_OID), unix_time(now_unix_seconds))?;
    let id = certificate.exclusive_spiffe_id(fleet)?;
    Ok(certificate.into_identity(id, now_unix_seconds))
}

/// Checks a client's certificate chain as the listener does in a handshake. `now` is the time in seconds since 1970.
#[cfg(test)]
pub(crate) fn verify_client_chain(
    listener: &TlsListener,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: u64,
) -> Result<(), Refusal> {
    ClientVerifier::new(listener).expect("a listener's issuers").check(leaf, intermediates, unix_time(now))
}

/// The verifier of client certificates, which rustls calls in each handshake.
#[derive(Debug)]
struct ClientVerifier {
    role: ListenerRole,
    fleet: FleetName,
    anchors: Vec<TrustAnchor<'static>>,
}

impl ClientVerifier {
    /// Creates the verifier of a listener. Fails if the listener has no issuer, or an invalid one.
    fn new(listener: &TlsListener) -> Result<Self, rustls::Error> {
        let anchors = trust_anchors(&listener.issuers)?;
        if anchors.is_empty() {
            return Err(rustls::Error::General("a listener needs a trusted issuer".to_owned()));
        }
        Ok(Self { role: listener.role, fleet: listener.fleet.clone(), anchors })
    }

    /// Checks a client's certificate: its chain up to a trusted issuer, its fleet, and that its class is accepted by
    /// this listener. The agents' listener also accepts a certificate that expired less than the grace period ago.
    fn check(&self, leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Refusal> {
        let certificate = parse_leaf(leaf, intermediates, KeyType::P256)?;
        let check_path_at = |time| check_path(leaf, intermediates, &self.anchors, KeyUsage::required(CLIENT_AUTH_OID), time);
        match (check_path_at(now), self.role) {
            (Err(Refusal::Expired { not_after, now }), ListenerRole::Agents { renew_grace_seconds })
                if now.saturating_sub(not_after) < renew_grace_seconds =>
            {
                // Apart from its expiry, the certificate must be valid. So the path is checked again, for the last
                // second in which the certificate was valid.
                check_path_at(unix_time(not_after))?;
            }
            (result, _) => result?,
        }
        let id = certificate.exclusive_spiffe_id(&self.fleet)?;
        match self.role {
            ListenerRole::Agents { .. } => require_class(&id, |class| matches!(class, IdentityClass::Node(_))),
            ListenerRole::Admins => require_class(&id, |class| class.principal_name().is_some()),
        }
    }
}

impl ClientCertVerifier for ClientVerifier {
    /// Returns false: a client may connect without a certificate.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Checks a client's certificate during the handshake. A refusal fails the handshake.
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
