//! Tests in-memory handshakes between the two sides. In most of them, one certificate is wrong in one way.

use std::sync::Arc;

use rcgen::{ExtendedKeyUsagePurpose, IsCa, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType, date_time_ymd};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::testing::{CONTROLLER_ID, NODE_ID, NOW_UNIX_SECONDS, TestCertificate, TestFleet, TestLeaf, clock, fleet, uri_name};

/// The result of a handshake on each side: the identity of the client that the server verified, then the identity of
/// the server that the client verified. An error is the reason of the refusal, or the text of any other error.
type HandshakeResult = (Result<Option<Identity>, String>, Result<Identity, String>);

/// Runs a handshake over an in-memory pipe, and returns the results of both sides. The client expects a server with
/// this host name. The client also reads one byte, because in TLS 1.3 it learns only then whether the server has
/// refused its certificate.
async fn run_handshake(server: rustls::ServerConfig, client: ClientConfig, server_name: &str) -> HandshakeResult {
    let (client_stream, server_stream) = tokio::io::duplex(64 * 1024);
    let server_side = async move {
        match TlsAcceptor::from(Arc::new(server)).accept(server_stream).await {
            Ok(mut stream) => {
                stream.write_all(b"x").await.expect("the client reads");
                stream.shutdown().await.expect("the client reads");
                peer_identity(stream.get_ref().1, NOW_UNIX_SECONDS).map_err(|refusal| refusal.reason().to_owned())
            }
            Err(error) => Err(reason(&error)),
        }
    };
    let server_name = ServerName::try_from(server_name.to_owned()).expect("a name");
    let client_side = async move {
        let mut stream =
            TlsConnector::from(Arc::new(client)).connect(server_name, client_stream).await.map_err(|error| reason(&error))?;
        stream.read_exact(&mut [0]).await.map_err(|error| reason(&error))?;
        server_identity(stream.get_ref().1, NOW_UNIX_SECONDS).map_err(|refusal| refusal.reason().to_owned())
    };
    tokio::join!(server_side, client_side)
}

/// Returns the reason of a refusal, or the text of any other error.
fn reason(error: &std::io::Error) -> String {
    Refusal::from_io_error(error).map_or_else(|| error.to_string(), |refusal| refusal.reason().to_owned())
}

fn client_config_for(test_fleet: &TestFleet, identity: Option<&TestCertificate>) -> ClientConfig {
    client_config(&test_fleet.roots(), Some(fleet()), identity.map(TestCertificate::identity), clock())
        .expect("a client's config")
}

/// Returns the result of the listener for agents when a client presents this certificate.
async fn handshake_with_agents_listener(test_fleet: &TestFleet, leaf: &TestCertificate) -> Result<Option<Identity>, String> {
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    run_handshake(server, client_config_for(test_fleet, Some(leaf)), "ctl.example").await.0
}

/// Returns the result of the admin listener when a client presents this certificate.
async fn handshake_with_admin_listener(test_fleet: &TestFleet, leaf: &TestCertificate) -> Result<Option<Identity>, String> {
    let server = server_config(&test_fleet.admin_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    run_handshake(server, client_config_for(test_fleet, Some(leaf)), "ctl.example").await.0
}

/// Returns the result of a client without a certificate. The server presents a certificate that the issuer creates from
/// the parameters `leaf`.
async fn handshake_with_server_leaf(
    test_fleet: &TestFleet,
    issuer: &crate::testing::TestAuthority,
    leaf: &TestLeaf,
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
    let node = test_fleet.agents.issue(&TestLeaf::node());
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    let (client_identity, server_result) =
        run_handshake(server, client_config_for(&test_fleet, Some(&node)), "ctl.example").await;
    let client_identity = client_identity.expect("a handshake").expect("a certificate");
    assert_eq!(client_identity.class, IdentityClass::Node(NODE_ID.parse().expect("a uuid")));
    assert_eq!(
        (client_identity.fleet, client_identity.serial.as_ref(), client_identity.is_expired),
        (fleet(), &[0x5a, 1, 2, 3][..], false)
    );
    assert_eq!(client_identity.not_after, 1_781_568_000, "2026-06-16T00:00:00Z");
    assert_eq!(Ok(client_identity.spki_sha256), spki_sha256(&node.der));
    assert_eq!(server_result.expect("a handshake").class, IdentityClass::Controller(CONTROLLER_ID.parse().expect("a uuid")));
}

#[tokio::test]
async fn joining_client_accepts_server_when_root_key_hash_matches() {
    let test_fleet = TestFleet::new();
    for (hash, expected) in
        [(spki_sha256(&test_fleet.root.der).expect("a root"), Ok(())), ([7; 32], Err("tls_other_root".to_owned()))]
    {
        let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
        let client = client_config(&Pin::KeyHash(hash), None, None, clock()).expect("a client's config");
        assert_eq!(run_handshake(server, client, "ctl.example").await.1.map(|_| ()), expected);
    }
}

#[tokio::test]
async fn s01_handshake_fails_when_issuer_is_unknown() {
    let (test_fleet, other_fleet) = (TestFleet::new(), TestFleet::new());
    let unknown_issuer = Err("tls_unknown_issuer".to_owned());
    assert_eq!(handshake_with_agents_listener(&test_fleet, &other_fleet.agents.issue(&TestLeaf::node())).await, unknown_issuer);
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.root.issue(&TestLeaf::node())).await,
        unknown_issuer,
        "a certificate that the root itself issued"
    );
    let other_server =
        server_config(&other_fleet.agents_listener(), other_fleet.server_key(), clock()).expect("a server's config");
    assert_eq!(
        run_handshake(other_server, client_config_for(&test_fleet, None), "ctl.example").await.1.map(|_| ()),
        Err("tls_unknown_issuer".into())
    );
}

#[tokio::test]
async fn s02_handshake_marks_expired_certificate_within_grace() {
    let test_fleet = TestFleet::new();
    // The end of validity (at 00:00), and the expected result. The time is 2026-06-15T12:00, the grace period 30 days.
    for (year, month, day, expected) in [
        (2026, 6, 15, Ok(true)),
        (2026, 5, 17, Ok(true)),
        (2026, 5, 16, Err("tls_expired".to_owned())),
        (2016, 6, 15, Err("tls_expired".to_owned())),
    ] {
        let expired = test_fleet.agents.issue(&TestLeaf::node().with_params(|leaf| {
            leaf.not_before = date_time_ymd(2016, 1, 1);
            leaf.not_after = date_time_ymd(year, month, day);
        }));
        let result = handshake_with_agents_listener(&test_fleet, &expired).await;
        assert_eq!(result.map(|identity| identity.expect("a certificate").is_expired), expected, "{year}-{month}-{day}");
    }
    let admin = test_fleet.admin.issue(&TestLeaf::admin().with_params(|leaf| {
        leaf.not_before = date_time_ymd(2016, 1, 1);
        leaf.not_after = date_time_ymd(2026, 6, 15);
    }));
    assert_eq!(
        handshake_with_admin_listener(&test_fleet, &admin).await,
        Err("tls_expired".into()),
        "an admin certificate has no grace period"
    );
}

#[tokio::test]
async fn s03_handshake_fails_when_certificate_is_not_yet_valid() {
    let test_fleet = TestFleet::new();
    let early_leaf = TestLeaf::node().with_params(|leaf| leaf.not_before = date_time_ymd(2026, 6, 16));
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&early_leaf)).await,
        Err("tls_not_yet_valid".into())
    );
}

/// The issuer `agents` may issue certificates for clients only, and the issuer `admin` for clients and servers.
#[tokio::test]
async fn s04_client_rejects_server_with_agent_certificate() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let test_fleet = TestFleet::new();
    assert_eq!(
        handshake_with_server_leaf(&test_fleet, &test_fleet.agents, &TestLeaf::node()).await.map(|_| ()),
        Err("tls_wrong_use".into())
    );
    let leaf_with_both_uses = TestLeaf::node().with_params(|leaf| leaf.extended_key_usages = vec![ClientAuth, ServerAuth]);
    assert_eq!(
        handshake_with_server_leaf(&test_fleet, &test_fleet.agents, &leaf_with_both_uses).await.map(|_| ()),
        Err("tls_wrong_use".into()),
        "the issuer may not issue certificates of servers"
    );
    assert_eq!(
        handshake_with_server_leaf(&test_fleet, &test_fleet.admin, &leaf_with_both_uses).await.map(|_| ()),
        Err("tls_wrong_class".into()),
        "the certificate names a node, not a controller"
    );
    assert_eq!(
        handshake_with_server_leaf(&test_fleet, &test_fleet.agents, &TestLeaf::controller()).await.map(|_| ()),
        Err("tls_wrong_use".into())
    );
}

#[tokio::test]
async fn s05_listener_rejects_client_with_server_certificate() {
    let test_fleet = TestFleet::new();
    let server = test_fleet.admin.issue(&TestLeaf::controller());
    assert_eq!(handshake_with_agents_listener(&test_fleet, &server).await, Err("tls_wrong_use".into()));
    assert_eq!(handshake_with_admin_listener(&test_fleet, &server).await, Err("tls_wrong_use".into()));
    let controller_leaf = TestLeaf::controller().with_params(|leaf| {
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        // Only the URI remains, because a client's certificate must not contain a DNS name.
        leaf.subject_alt_names.truncate(1);
    });
    assert_eq!(
        handshake_with_admin_listener(&test_fleet, &test_fleet.admin.issue(&controller_leaf)).await,
        Err("tls_wrong_class".into())
    );
}

/// Each listener trusts only its own issuer, and accepts only certificates of the classes of its own clients.
#[tokio::test]
async fn s06_listener_rejects_certificate_of_other_listeners_issuer() {
    let test_fleet = TestFleet::new();
    assert!(handshake_with_admin_listener(&test_fleet, &test_fleet.admin.issue(&TestLeaf::admin())).await.is_ok());
    assert_eq!(
        handshake_with_admin_listener(&test_fleet, &test_fleet.agents.issue(&TestLeaf::node())).await,
        Err("tls_unknown_issuer".into())
    );
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.admin.issue(&TestLeaf::admin())).await,
        Err("tls_unknown_issuer".into())
    );
    assert_eq!(
        handshake_with_admin_listener(&test_fleet, &test_fleet.admin.issue(&TestLeaf::node())).await,
        Err("tls_wrong_class".into())
    );
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&TestLeaf::admin())).await,
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
    let (mut client_stream, server_stream) = tokio::io::duplex(1024);
    // A ClientHello of TLS 1.2: no supported_versions, ECDHE-ECDSA-AES128-GCM, P-256, ECDSA with SHA-256. Here are the
    // version 3.3 (TLS 1.2), the field `random`, no session id, one cipher suite, and one compression method: none.
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    // The extensions: the group P-256, the signature scheme, and the point format. Their length (22) precedes them.
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 13, 0, 4, 0, 2, 4, 3, 0, 11, 0, 2, 1, 0];
    hello.extend([0, 22]);
    hello.extend(extensions);
    let body = u8::try_from(hello.len()).expect("a short hello");
    // A record of a handshake (22) with a ClientHello (1). The header of the ClientHello has four bytes.
    let mut record = vec![22, 3, 1, 0, body + 4, 1, 0, 0, body];
    record.extend(hello);
    client_stream.write_all(&record).await.expect("the server reads");
    let error = TlsAcceptor::from(Arc::new(server)).accept(server_stream).await.expect_err("TLS 1.2");
    assert!(matches!(error.get_ref().and_then(|source| source.downcast_ref()), Some(rustls::Error::PeerIncompatible(_))));
    let mut alert = [0; 7];
    client_stream.read_exact(&mut alert).await.expect("an alert");
    assert_eq!((alert[0], alert[6]), (21, 70), "the record is an alert (21) with the code protocol_version (70)");
}

#[tokio::test]
async fn s09_listener_rejects_large_chain_and_other_key_types() {
    let test_fleet = TestFleet::new();
    let node = test_fleet.agents.issue(&TestLeaf::node());
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    let mut identity = node.identity();
    identity.chain.extend(std::iter::repeat_n(test_fleet.agents.der.clone(), 10));
    let long_chain_config =
        client_config(&test_fleet.roots(), Some(fleet()), Some(identity), clock()).expect("a client's config");
    assert_eq!(run_handshake(server, long_chain_config, "ctl.example").await.0, Err("tls_chain_too_large".into()));
    let large_leaf = TestLeaf::node().with_params(|leaf| {
        leaf.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![4; 4096])];
    });
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&large_leaf)).await,
        Err("tls_chain_too_large".into())
    );
    for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        let leaf = test_fleet.agents.issue(&TestLeaf { algorithm, ..TestLeaf::node() });
        let result = verify_client_leaf(&test_fleet, &leaf);
        assert_eq!(result, Err(Refusal::WrongKeyKind), "{algorithm:?}");
    }
}

/// Checks a client certificate as a listener does, but without a handshake. A rustls client would not present a
/// certificate with a key type that the server does not accept.
fn verify_client_leaf(test_fleet: &TestFleet, leaf: &TestCertificate) -> Result<(), Refusal> {
    listen::verify_client_chain(&test_fleet.agents_listener(), &leaf.der, &[], NOW_UNIX_SECONDS)
}

#[tokio::test]
async fn s10_listener_rejects_leaf_with_authority_bit() {
    let test_fleet = TestFleet::new();
    let authority_leaf = TestLeaf::node().with_params(|leaf| leaf.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
    assert_eq!(
        handshake_with_agents_listener(&test_fleet, &test_fleet.agents.issue(&authority_leaf)).await,
        Err("tls_is_authority".into())
    );
}

#[tokio::test]
async fn s11_listener_rejects_certificate_when_names_are_invalid() {
    let test_fleet = TestFleet::new();
    let valid_uri = format!("spiffe://prod/node/{NODE_ID}");
    let other_id = "0190b6c8-4c1e-7d2a-9f00-0123456789ac";
    for (names, reason) in [
        (vec![], "tls_odd_names"),
        (vec![uri_name(&valid_uri), uri_name(&valid_uri)], "tls_odd_names"),
        (vec![uri_name(&valid_uri), uri_name(&format!("spiffe://prod/node/{other_id}"))], "tls_odd_names"),
        (vec![uri_name(&valid_uri), SanType::DnsName("x".try_into().expect("ASCII"))], "tls_odd_names"),
        (vec![uri_name(&valid_uri), SanType::IpAddress([10, 0, 0, 1].into())], "tls_odd_names"),
        (vec![SanType::DnsName("x".try_into().expect("ASCII"))], "tls_odd_names"),
        (vec![uri_name(&format!("spiffe://test/node/{NODE_ID}"))], "tls_other_fleet"),
        (vec![uri_name(&format!("spiffe://prod/node/{}", NODE_ID.to_uppercase()))], "tls_not_an_identity"),
        (vec![uri_name(&format!("spiffe://prod/node/{NODE_ID}/x"))], "tls_not_an_identity"),
        (vec![uri_name("spiffe://prod/node/%2e%2e")], "tls_not_an_identity"),
        (vec![uri_name("spiffe://prod/node/\0")], "tls_not_an_identity"),
    ] {
        let leaf = TestLeaf::node().with_params(|leaf| leaf.subject_alt_names.clone_from(&names));
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

/// The server offers no tickets and stores no sessions. So a second handshake of the same client is a full one too.
#[tokio::test]
async fn s15_server_never_resumes_session() {
    let test_fleet = TestFleet::new();
    let node = test_fleet.agents.issue(&TestLeaf::node());
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    assert_eq!(server.send_tls13_tickets, 0);
    assert!(!server.session_storage.can_cache() && !server.ticketer.enabled());
    let mut resuming_client = client_config_for(&test_fleet, Some(&node));
    resuming_client.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let (acceptor, connector) = (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(resuming_client)));
    for _ in 0..2 {
        let (client_stream, server_stream) = tokio::io::duplex(64 * 1024);
        let name = ServerName::try_from("ctl.example").expect("a name");
        let (accepted, connected) = tokio::join!(acceptor.accept(server_stream), connector.connect(name, client_stream));
        assert_eq!(accepted.expect("a handshake").get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
        drop(connected);
    }
}

#[tokio::test]
async fn s48_server_offers_no_http2() {
    let test_fleet = TestFleet::new();
    let server = server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a server's config");
    let mut http2_client = client_config_for(&test_fleet, None);
    http2_client.alpn_protocols = vec![b"h2".to_vec()];
    assert!(run_handshake(server, http2_client, "ctl.example").await.0.is_err());
}
