//! Tests in-memory handshakes between the two sides. In most of them, one certificate is wrong in one way.

use std::sync::Arc;

use rcgen::{ExtendedKeyUsagePurpose, IsCa, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType, date_time_ymd};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::testing::{
    CONTROLLER_ID, NODE_ID, NOW_UNIX_SECONDS, TestCertificate, TestFleet, TestLeaf as Wanted, clock, fleet, uri_name,
};

/// The results of both sides: the identity that the server saw, and the one that the client saw.
type HandshakeResult = (Result<Option<Identity>, String>, Result<Identity, String>);

async fn run_handshake(server: rustls::ServerConfig, client: ClientConfig, name: &str) -> HandshakeResult {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serve = async move {
        match TlsAcceptor::from(Arc::new(server)).accept(far).await {
            Ok(mut stream) => {
                stream.write_all(b"x").await.expect("the client reads");
                stream.shutdown().await.expect("the client reads");
                peer_identity(stream.get_ref().1, NOW_UNIX_SECONDS).map_err(|refusal| refusal.reason().to_owned())
            }
            Err(error) => Err(reason(&error)),
        }
    };
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let connect = async move {
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, near).await.map_err(|error| reason(&error))?;
        stream.read_exact(&mut [0]).await.map_err(|error| reason(&error))?;
        server_identity(stream.get_ref().1, NOW_UNIX_SECONDS).map_err(|refusal| refusal.reason().to_owned())
    };
    tokio::join!(serve, connect)
}

fn reason(error: &std::io::Error) -> String {
    Refusal::from_io_error(error).map_or_else(|| error.to_string(), |refusal| refusal.reason().to_owned())
}

fn client_config_for(test_fleet: &TestFleet, identity: Option<&TestCertificate>) -> ClientConfig {
    client_config(&test_fleet.roots(), Some(fleet()), identity.map(TestCertificate::identity), clock())
        .expect("a client's config")
}

async fn handshake_with_agents_listener(test_fleet: &TestFleet, leaf: &TestCertificate) -> Result<Option<Identity>, String> {
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    run_handshake(server, client_config_for(test_fleet, Some(leaf)), "ctl.example").await.0
}

async fn handshake_with_admin_listener(test_fleet: &TestFleet, leaf: &TestCertificate) -> Result<Option<Identity>, String> {
    let server = server_config(&test_fleet.admin_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    run_handshake(server, client_config_for(test_fleet, Some(leaf)), "ctl.example").await.0
}

/// Returns the result of an agent's handshake with a server that presents this leaf of this issuer.
async fn handshake_with_server_leaf(
    test_fleet: &TestFleet,
    issuer: &crate::testing::TestAuthority,
    leaf: &Wanted,
) -> Result<Identity, String> {
    let certificate = issuer.issue(leaf);
    let server_key = ServerKey {
        chain: vec![certificate.der.clone(), issuer.der.clone(), test_fleet.root.der.clone()],
        key: certificate.private_key(),
    };
    let server = server_config(&test_fleet.agents_listener(), server_key, clock()).expect("a server's config");
    run_handshake(server, client_config_for(test_fleet, None), "ctl.example").await.1
}

#[tokio::test]
async fn handshake_identifies_both_sides() {
    let test_fleet = TestFleet::new();
    let node = test_fleet.agents.issue(&Wanted::node());
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    let (seen, server_seen) = run_handshake(server, client_config_for(&test_fleet, Some(&node)), "ctl.example").await;
    let seen = seen.expect("a handshake").expect("a certificate");
    assert_eq!(seen.class, IdentityClass::Node(NODE_ID.parse().expect("a uuid")));
    assert_eq!((seen.fleet, seen.serial.as_ref(), seen.is_expired), (fleet(), &[0x5a, 1, 2, 3][..], false));
    assert_eq!(seen.not_after, 1_781_568_000, "2026-06-16T00:00:00Z");
    assert_eq!(Ok(seen.spki_sha256), spki_sha256(&node.der));
    assert_eq!(server_seen.expect("a handshake").class, IdentityClass::Controller(CONTROLLER_ID.parse().expect("a uuid")));
}

#[tokio::test]
async fn joining_client_accepts_server_when_root_key_hash_matches() {
    let test_fleet = TestFleet::new();
    for (hash, seen) in
        [(spki_sha256(&test_fleet.root.der).expect("a root"), Ok(())), ([7; 32], Err("tls_other_root".to_owned()))]
    {
        let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
        let client = client_config(&Pin::KeyHash(hash), None, None, clock()).expect("a client's config");
        assert_eq!(run_handshake(server, client, "ctl.example").await.1.map(|_| ()), seen);
    }
}

#[tokio::test]
async fn s01_handshake_fails_when_issuer_is_unknown() {
    let (test_fleet, other) = (TestFleet::new(), TestFleet::new());
    let refused = Err("tls_unknown_issuer".to_owned());
    assert_eq!(handshake_with_agents_listener(&test_fleet, &other.agents.issue(&Wanted::node())).await, refused);
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.root.issue(&Wanted::node())).await,
        refused,
        "the root's own leaf neither"
    );
    let stranger = server_config(&other.agents_listener(), other.server_key(), clock()).expect("a server's config");
    assert_eq!(
        run_handshake(stranger, client_config_for(&test_fleet, None), "ctl.example").await.1.map(|_| ()),
        Err("tls_unknown_issuer".into())
    );
}

#[tokio::test]
async fn s02_handshake_marks_expired_certificate_within_grace() {
    let test_fleet = TestFleet::new();
    // (not after, expected result): NOW_UNIX_SECONDS is 2026-06-15 and the grace period is 30 days.
    for (year, month, day, seen) in [
        (2026, 6, 15, Ok(true)),
        (2026, 5, 17, Ok(true)),
        (2026, 5, 16, Err("tls_expired".to_owned())),
        (2016, 6, 15, Err("tls_expired".to_owned())),
    ] {
        let expired = test_fleet.agents.issue(&Wanted::node().with_params(|leaf| {
            leaf.not_before = date_time_ymd(2016, 1, 1);
            leaf.not_after = date_time_ymd(year, month, day);
        }));
        let result = handshake_with_agents_listener(&test_fleet, &expired).await;
        assert_eq!(result.map(|identity| identity.expect("a certificate").is_expired), seen, "{year}-{month}-{day}");
    }
    let admin = test_fleet.admin.issue(&Wanted::admin().with_params(|leaf| {
        leaf.not_before = date_time_ymd(2016, 1, 1);
        leaf.not_after = date_time_ymd(2026, 6, 15);
    }));
    assert_eq!(handshake_with_admin_listener(&test_fleet, &admin).await, Err("tls_expired".into()), "an admin has no grace");
}

#[tokio::test]
async fn s03_handshake_fails_when_certificate_is_not_yet_valid() {
    let test_fleet = TestFleet::new();
    let early = Wanted::node().with_params(|leaf| leaf.not_before = date_time_ymd(2026, 6, 16));
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&early)).await,
        Err("tls_not_yet_valid".into())
    );
}

#[tokio::test]
async fn s04_client_rejects_server_with_agent_certificate() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let test_fleet = TestFleet::new();
    assert_eq!(
        handshake_with_server_leaf(&test_fleet, &test_fleet.agents, &Wanted::node()).await.map(|_| ()),
        Err("tls_wrong_use".into())
    );
    let both = Wanted::node().with_params(|leaf| leaf.extended_key_usages = vec![ClientAuth, ServerAuth]);
    assert_eq!(
        handshake_with_server_leaf(&test_fleet, &test_fleet.agents, &both).await.map(|_| ()),
        Err("tls_wrong_use".into()),
        "by its issuer"
    );
    assert_eq!(
        handshake_with_server_leaf(&test_fleet, &test_fleet.admin, &both).await.map(|_| ()),
        Err("tls_wrong_class".into()),
        "by its class"
    );
    assert_eq!(
        handshake_with_server_leaf(&test_fleet, &test_fleet.agents, &Wanted::controller()).await.map(|_| ()),
        Err("tls_wrong_use".into())
    );
}

#[tokio::test]
async fn s05_listener_rejects_client_with_server_certificate() {
    let test_fleet = TestFleet::new();
    let server = test_fleet.admin.issue(&Wanted::controller());
    assert_eq!(handshake_with_agents_listener(&test_fleet, &server).await, Err("tls_wrong_use".into()));
    assert_eq!(handshake_with_admin_listener(&test_fleet, &server).await, Err("tls_wrong_use".into()));
    let named = Wanted::controller().with_params(|leaf| {
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        leaf.subject_alt_names.truncate(1);
    });
    assert_eq!(handshake_with_admin_listener(&test_fleet, &test_fleet.admin.issue(&named)).await, Err("tls_wrong_class".into()));
}

#[tokio::test]
async fn s06_listener_rejects_certificate_of_other_listeners_issuer() {
    let test_fleet = TestFleet::new();
    assert!(handshake_with_admin_listener(&test_fleet, &test_fleet.admin.issue(&Wanted::admin())).await.is_ok());
    assert_eq!(
        handshake_with_admin_listener(&test_fleet, &test_fleet.agents.issue(&Wanted::node())).await,
        Err("tls_unknown_issuer".into())
    );
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.admin.issue(&Wanted::admin())).await,
        Err("tls_unknown_issuer".into())
    );
    assert_eq!(
        handshake_with_admin_listener(&test_fleet, &test_fleet.admin.issue(&Wanted::node())).await,
        Err("tls_wrong_class".into())
    );
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&Wanted::admin())).await,
        Err("tls_wrong_class".into())
    );
}

#[tokio::test]
async fn s07_handshake_yields_no_identity_without_certificate() {
    let test_fleet = TestFleet::new();
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    assert_eq!(run_handshake(server, client_config_for(&test_fleet, None), "ctl.example").await.0, Ok(None));
}

#[tokio::test]
async fn s08_server_rejects_tls_1_2() {
    let test_fleet = TestFleet::new();
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    let (mut near, far) = tokio::io::duplex(1024);
    // A ClientHello of TLS 1.2: no supported_versions, ECDHE-ECDSA-AES128-GCM, P-256, ECDSA with SHA-256.
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 13, 0, 4, 0, 2, 4, 3, 0, 11, 0, 2, 1, 0];
    hello.extend([0, 22]);
    hello.extend(extensions);
    let body = u8::try_from(hello.len()).expect("a short hello");
    let mut record = vec![22, 3, 1, 0, body + 4, 1, 0, 0, body];
    record.extend(hello);
    near.write_all(&record).await.expect("the server reads");
    let error = TlsAcceptor::from(Arc::new(server)).accept(far).await.expect_err("TLS 1.2");
    assert!(matches!(error.get_ref().and_then(|source| source.downcast_ref()), Some(rustls::Error::PeerIncompatible(_))));
    let mut alert = [0; 7];
    near.read_exact(&mut alert).await.expect("an alert");
    assert_eq!((alert[0], alert[6]), (21, 70), "alert protocol_version");
}

#[tokio::test]
async fn s09_listener_rejects_long_chain_and_other_key_types() {
    let test_fleet = TestFleet::new();
    let node = test_fleet.agents.issue(&Wanted::node());
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    let mut own = node.identity();
    own.chain.extend(std::iter::repeat_n(test_fleet.agents.der.clone(), 10));
    let long = client_config(&test_fleet.roots(), Some(fleet()), Some(own), clock()).expect("a client's config");
    assert_eq!(run_handshake(server, long, "ctl.example").await.0, Err("tls_chain_too_large".into()));
    let large = Wanted::node().with_params(|leaf| {
        leaf.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![4; 4096])];
    });
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&large)).await,
        Err("tls_chain_too_large".into())
    );
    for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        let leaf = test_fleet.agents.issue(&Wanted { algorithm, ..Wanted::node() });
        let refused = verify_client_leaf(&test_fleet, &leaf);
        assert_eq!(refused, Err(Refusal::WrongKeyKind), "{algorithm:?}");
    }
}

/// Runs the verifier alone, because the client of rustls would not offer such a key.
fn verify_client_leaf(test_fleet: &TestFleet, leaf: &TestCertificate) -> Result<(), Refusal> {
    listen::verify_client_chain(&test_fleet.agents_listener(), &leaf.der, &[], NOW_UNIX_SECONDS)
}

#[tokio::test]
async fn s10_listener_rejects_leaf_with_authority_bit() {
    let test_fleet = TestFleet::new();
    let authority = Wanted::node().with_params(|leaf| leaf.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&authority)).await,
        Err("tls_is_authority".into())
    );
}

#[tokio::test]
async fn s11_listener_rejects_certificate_with_additional_names() {
    let test_fleet = TestFleet::new();
    let good = format!("spiffe://prod/node/{NODE_ID}");
    let other = "0190b6c8-4c1e-7d2a-9f00-0123456789ac";
    for (names, reason) in [
        (vec![], "tls_odd_names"),
        (vec![uri_name(&good), uri_name(&good)], "tls_odd_names"),
        (vec![uri_name(&good), uri_name(&format!("spiffe://prod/node/{other}"))], "tls_odd_names"),
        (vec![uri_name(&good), SanType::DnsName("x".try_into().expect("ASCII"))], "tls_odd_names"),
        (vec![uri_name(&good), SanType::IpAddress([10, 0, 0, 1].into())], "tls_odd_names"),
        (vec![SanType::DnsName("x".try_into().expect("ASCII"))], "tls_odd_names"),
        (vec![uri_name(&format!("spiffe://test/node/{NODE_ID}"))], "tls_other_fleet"),
        (vec![uri_name(&format!("spiffe://prod/node/{}", NODE_ID.to_uppercase()))], "tls_not_an_identity"),
        (vec![uri_name(&format!("spiffe://prod/node/{NODE_ID}/x"))], "tls_not_an_identity"),
        (vec![uri_name("spiffe://prod/node/%2e%2e")], "tls_not_an_identity"),
        (vec![uri_name("spiffe://prod/node/\0")], "tls_not_an_identity"),
    ] {
        let leaf = Wanted::node().with_params(|leaf| leaf.subject_alt_names.clone_from(&names));
        assert_eq!(
            handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&leaf)).await,
            Err(reason.into()),
            "{names:?}"
        );
    }
}

#[tokio::test]
async fn client_rejects_server_when_name_or_fleet_differs() {
    let test_fleet = TestFleet::new();
    let config = || server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    assert_eq!(
        run_handshake(config(), client_config_for(&test_fleet, None), "other.example").await.1.map(|_| ()),
        Err("tls_wrong_name".into())
    );
    let other_fleet = Some("test".parse().expect("a fleet's name"));
    let client = client_config(&test_fleet.roots(), other_fleet, None, clock()).expect("a client's config");
    assert_eq!(run_handshake(config(), client, "ctl.example").await.1.map(|_| ()), Err("tls_other_fleet".into()));
}

#[tokio::test]
async fn s15_server_never_resumes_session() {
    let test_fleet = TestFleet::new();
    let node = test_fleet.agents.issue(&Wanted::node());
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    assert_eq!(server.send_tls13_tickets, 0);
    assert!(!server.session_storage.can_cache() && !server.ticketer.enabled());
    let mut eager = client_config_for(&test_fleet, Some(&node));
    eager.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let (acceptor, connector) = (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(eager)));
    for _ in 0..2 {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let name = ServerName::try_from("ctl.example").expect("a name");
        let (accepted, connected) = tokio::join!(acceptor.accept(far), connector.connect(name, near));
        assert_eq!(accepted.expect("a handshake").get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
        drop(connected);
    }
}

#[tokio::test]
async fn s48_server_offers_no_http2() {
    let test_fleet = TestFleet::new();
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    let mut h2 = client_config_for(&test_fleet, None);
    h2.alpn_protocols = vec![b"h2".to_vec()];
    assert!(run_handshake(server, h2, "ctl.example").await.0.is_err());
}
