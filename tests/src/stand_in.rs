//! A server that stands in for a controller: it has a certificate as whoever holds the fleet's issuers can make one, and agents may
//! believe it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use stemma_wire::clock::Clock;
use stemma_wire::net::TcpListen;
use stemma_wire::serve::{Handler, Limits, Rejected, Server, TlsSource};
use stemma_wire::tls::{Accepts, Listener, RENEW_GRACE_SECONDS, ServerKey, server_config};

/// Serves agents of a fleet on the loopback until the test ends, with a certificate that names this fleet or another.
///
/// # Errors
/// When the keys below the data directory cannot be used, or no port is to be had.
pub fn serve(
    data: &Path,
    fleet: &str,
    named: &str,
    clock: Arc<dyn Clock>,
    handler: impl Handler,
) -> Result<SocketAddr> {
    serve_as(data, fleet, server_key(data, named, "admin")?, clock, handler)
}

/// The same with this certificate, whatever it is for.
///
/// # Errors
/// As [`serve`].
pub fn serve_as(
    data: &Path,
    fleet: &str,
    own: ServerKey,
    clock: Arc<dyn Clock>,
    handler: impl Handler,
) -> Result<SocketAddr> {
    let issuers = vec![CertificateDer::from_pem_file(data.join("trust/agents.pem"))?];
    let accepts = Accepts::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS };
    let listener = Listener { accepts, fleet: fleet.parse()?, issuers };
    let config = Arc::new(server_config(&listener, own, Arc::clone(&clock))?);
    let source: TlsSource = Arc::new(move || Arc::clone(&config));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let socket = runtime.block_on(TcpListen::bind("127.0.0.1:0".parse()?))?;
    let address = socket.local_addr()?;
    let server = Server::new(socket, Some(source), Limits::default(), clock, Arc::new(Rejected::default()));
    std::thread::spawn(move || runtime.block_on(server.run(handler, std::future::pending())));
    Ok(address)
}

/// A new certificate of a controller of that fleet, from one of the fleet's two issuers: `admin` gives controllers theirs, `agents` nodes.
///
/// # Errors
/// When the keys below the data directory cannot be used.
pub fn server_key(data: &Path, named: &str, issuer: &str) -> Result<ServerKey> {
    let trust = data.join("trust");
    let pem = |name: &str| CertificateDer::from_pem_file(trust.join(name));
    let issuer_key = KeyPair::from_pem(&std::fs::read_to_string(trust.join(format!("{issuer}.key")))?)?;
    let issuer_pem = pem(&format!("{issuer}.pem"))?;
    let issuer = Issuer::from_ca_cert_der(&issuer_pem, issuer_key)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut leaf = CertificateParams::default();
    leaf.distinguished_name = DistinguishedName::new();
    let uri = format!("spiffe://{named}/controller/{}", uuid::Uuid::from_u128(7));
    leaf.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?), SanType::IpAddress([127, 0, 0, 1].into())];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = leaf.signed_by(&key, &issuer)?.der().clone();
    let chain = vec![leaf, issuer_pem, pem("root.pem")?];
    Ok(ServerKey { chain, key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() })
}
