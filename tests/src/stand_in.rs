//! A server that replaces a controller in a test. Its certificate is created with the issuer keys of the fleet, so
//! agents may trust it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use rcgen::{CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use stemma_wire::clock::Clock;
use stemma_wire::net::TcpAcceptor;
use stemma_wire::serve::{Handler, ListenerLimits, RejectionCounter, Server, TlsSource};
use stemma_wire::tls::{ListenerRole, RENEW_GRACE_SECONDS, ServerKey, TlsListener, server_config};

/// Serves the agents of a fleet on the loopback until the test ends. The certificate of the server names the fleet
/// `certificate_fleet`, which may be another fleet.
///
/// # Errors
/// When the keys below the data directory cannot be used, or no port is free.
pub fn serve(
    data: &Path,
    fleet: &str,
    certificate_fleet: &str,
    clock: Arc<dyn Clock>,
    handler: impl Handler,
) -> Result<SocketAddr> {
    // The issuer `admin` issues the certificates of controllers.
    serve_with_key(data, fleet, server_key(data, certificate_fleet, "admin")?, clock, handler)
}

/// Same as [`serve`], with this certificate and key.
///
/// # Errors
/// As [`serve`].
pub fn serve_with_key(
    data: &Path,
    fleet: &str,
    key: ServerKey,
    clock: Arc<dyn Clock>,
    handler: impl Handler,
) -> Result<SocketAddr> {
    let issuers = vec![CertificateDer::from_pem_file(data.join("trust/agents.pem"))?];
    let listener_role = ListenerRole::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS };
    let listener = TlsListener { role: listener_role, fleet: fleet.parse()?, issuers };
    let config = Arc::new(server_config(&listener, key, Arc::clone(&clock))?);
    let config_source: TlsSource = Arc::new(move || Arc::clone(&config));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let socket = runtime.block_on(TcpAcceptor::bind("127.0.0.1:0".parse()?))?;
    let address = socket.local_addr()?;
    let server =
        Server::new(socket, Some(config_source), ListenerLimits::default(), clock, Arc::new(RejectionCounter::default()));
    std::thread::spawn(move || runtime.block_on(server.run(handler, std::future::pending())));
    Ok(address)
}

/// Creates a certificate and key for a controller of the fleet `certificate_fleet`. `issuer` is the name of an issuer:
/// `admin` issues certificates of controllers, and `agents` those of nodes.
///
/// # Errors
/// When the keys below the data directory cannot be used.
pub fn server_key(data: &Path, certificate_fleet: &str, issuer: &str) -> Result<ServerKey> {
    let trust = data.join("trust");
    let pem = |name: &str| CertificateDer::from_pem_file(trust.join(name));
    let issuer_key = KeyPair::from_pem(&std::fs::read_to_string(trust.join(format!("{issuer}.key")))?)?;
    let issuer_pem = pem(&format!("{issuer}.pem"))?;
    let issuer = Issuer::from_ca_cert_der(&issuer_pem, issuer_key)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut leaf = CertificateParams::default();
    leaf.distinguished_name = DistinguishedName::new();
    let uri = format!("spiffe://{certificate_fleet}/controller/{}", uuid::Uuid::from_u128(7));
    leaf.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?), SanType::IpAddress([127, 0, 0, 1].into())];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = leaf.signed_by(&key, &issuer)?.der().clone();
    let chain = vec![leaf, issuer_pem, pem("root.pem")?];
    Ok(ServerKey { chain, key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() })
}
