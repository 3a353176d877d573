//! A server that has a certificate under the fleet's own root, in the name of another fleet: an agent says nothing to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use stemma_tests::chance::Chance;
use stemma_tests::fleet::Fleet;
use stemma_tests::program::eventually;
use stemma_tests::proxy::Proxy;
use stemma_wire::clock::SystemClock;
use stemma_wire::net::{Listen as _, TcpListen};
use stemma_wire::serve::{Limits, Peer, Rejected, RequestBody, Server, TlsSource};
use stemma_wire::tls::{Accepts, Listener, RENEW_GRACE_SECONDS, ServerKey, server_config};

/// The server's key and certificate, as whoever holds the issuer's key could make them.
fn server_key(fleet: &Fleet, named: &str) -> Result<ServerKey> {
    let trust = fleet.data().join("trust");
    let pem = |name: &str| CertificateDer::from_pem_file(trust.join(name));
    let issuer_key = KeyPair::from_pem(&std::fs::read_to_string(trust.join("admin.key"))?)?;
    let issuer = Issuer::from_ca_cert_der(&pem("admin.pem")?, issuer_key)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut leaf = CertificateParams::default();
    leaf.distinguished_name = DistinguishedName::new();
    let uri = format!("spiffe://{named}/controller/{}", uuid::Uuid::from_u128(7));
    leaf.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?), SanType::IpAddress([127, 0, 0, 1].into())];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let chain = vec![leaf.signed_by(&key, &issuer)?.der().clone(), pem("admin.pem")?, pem("root.pem")?];
    Ok(ServerKey { chain, key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() })
}

/// Serves on the loopback, and counts the requests that come.
fn serve(fleet: &Fleet, name: &str, named: &str) -> Result<(std::net::SocketAddr, Arc<AtomicU64>)> {
    let issuers = vec![CertificateDer::from_pem_file(fleet.data().join("trust/agents.pem"))?];
    let accepts = Accepts::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS };
    let listener = Listener { accepts, fleet: name.parse()?, issuers };
    let config = Arc::new(server_config(&listener, server_key(fleet, named)?, Arc::new(SystemClock))?);
    let source: TlsSource = Arc::new(move || Arc::clone(&config));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let socket = runtime.block_on(TcpListen::bind("127.0.0.1:0".parse()?))?;
    let address = socket.local_addr()?;
    let heard = Arc::new(AtomicU64::new(0));
    let hearing = Arc::clone(&heard);
    let handler = move |_: &Arc<Peer>, _: Request<RequestBody>| {
        hearing.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Response::new(Full::new(Bytes::new())))
    };
    let server =
        Server::new(socket, Some(source), Limits::default(), Arc::new(SystemClock), Arc::new(Rejected::default()));
    std::thread::spawn(move || runtime.block_on(server.run(handler, std::future::pending())));
    Ok((address, heard))
}

#[test]
fn w15_13_an_agent_says_nothing_to_a_server_of_another_fleet_under_its_own_root() -> Result<()> {
    let mut fleet = Fleet::start()?;
    let proxy = Proxy::to(fleet.bound().agents.trim_start_matches("https://").parse()?, Chance::new(1))?;
    fleet.reach_agents_by(proxy.address());
    fleet.stemma(&["apply", "-f", stemma_tests::site::SITE])?;
    let mut agent = fleet.join("web-1", "prod/frontends")?;
    let identity: serde_json::Value =
        serde_json::from_slice(&std::fs::read(agent.path("var/lib/stemma-agent/identity.json"))?)?;
    let name = identity["fleet"].as_str().context("the fleet's name")?;

    let (other, unheard) = serve(&fleet, name, "another-fleet")?;
    agent.kill()?;
    proxy.turn_to(other);
    agent.start()?;
    eventually("the agent tells of it", || {
        let log = agent.log();
        ensure!(log.contains("of another fleet"), "{log}");
        let said = agent.status()?;
        ensure!(said.contains("of another fleet"), "{said}");
        Ok(())
    })?;
    ensure!(unheard.load(Ordering::Relaxed) == 0, "a server of another fleet was told something");

    // It is the name alone: under the right one the same server is told.
    let (same, heard) = serve(&fleet, name, name)?;
    proxy.turn_to(same);
    eventually("a server of this fleet is asked", || {
        ensure!(heard.load(Ordering::Relaxed) > 0, "{}", agent.log());
        Ok(())
    })
}
