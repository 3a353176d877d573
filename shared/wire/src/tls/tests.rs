//! Handshakes between the two sides, in memory, with certificates that are wrong in one way each.

use std::sync::Arc;

use rcgen::{ExtendedKeyUsagePurpose, IsCa, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType, date_time_ymd};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::testing::{CONTROLLER, Fleeting, Issued, Leaf as Wanted, NODE, NOW, clock, fleet, uri};

/// What each side made of it: who the server saw, and whom the client saw.
type Seen = (Result<Option<Identity>, String>, Result<Identity, String>);

async fn shake(server: rustls::ServerConfig, client: ClientConfig, name: &str) -> Seen {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serve = async move {
        match TlsAcceptor::from(Arc::new(server)).accept(far).await {
            Ok(mut stream) => {
                stream.write_all(b"x").await.expect("the client reads");
                stream.shutdown().await.expect("the client reads");
                peer_identity(stream.get_ref().1, NOW).map_err(|refusal| refusal.reason().to_owned())
            }
            Err(error) => Err(reason(&error)),
        }
    };
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let connect = async move {
        let mut stream =
            TlsConnector::from(Arc::new(client)).connect(name, near).await.map_err(|error| reason(&error))?;
        stream.read_exact(&mut [0]).await.map_err(|error| reason(&error))?;
        server_identity(stream.get_ref().1, NOW).map_err(|refusal| refusal.reason().to_owned())
    };
    tokio::join!(serve, connect)
}

fn reason(error: &std::io::Error) -> String {
    Refusal::of_io(error).map_or_else(|| error.to_string(), |refusal| refusal.reason().to_owned())
}

fn client(of: &Fleeting, own: Option<&Issued>) -> ClientConfig {
    client_config(&of.roots(), Some(fleet()), own.map(Issued::identity), clock()).expect("a client's config")
}

async fn agents_see(of: &Fleeting, leaf: &Issued) -> Result<Option<Identity>, String> {
    let server = server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
    shake(server, client(of, Some(leaf)), "ctl.example").await.0
}

async fn admins_see(of: &Fleeting, leaf: &Issued) -> Result<Option<Identity>, String> {
    let server = server_config(&of.admin_listener(), of.server_key(), clock()).expect("a server's config");
    shake(server, client(of, Some(leaf)), "ctl.example").await.0
}

/// What an agent makes of a server that shows this leaf of this issuer.
async fn agent_is_shown(of: &Fleeting, issuer: &crate::testing::Authority, leaf: &Wanted) -> Result<Identity, String> {
    let shown = issuer.issue(leaf);
    let own =
        ServerKey { chain: vec![shown.der.clone(), issuer.der.clone(), of.root.der.clone()], key: shown.private() };
    let server = server_config(&of.agents_listener(), own, clock()).expect("a server's config");
    shake(server, client(of, None), "ctl.example").await.1
}

#[tokio::test]
async fn a_good_handshake_names_both() {
    let of = Fleeting::new();
    let node = of.agents.issue(&Wanted::node());
    let server = server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
    let (seen, server_seen) = shake(server, client(&of, Some(&node)), "ctl.example").await;
    let seen = seen.expect("a handshake").expect("a certificate");
    assert_eq!(seen.class, Class::Node(NODE.parse().expect("a uuid")));
    assert_eq!((seen.fleet, seen.serial.as_ref(), seen.expired), (fleet(), &[0x5a, 1, 2, 3][..], false));
    assert_eq!(seen.not_after, 1_781_568_000, "2026-06-16T00:00:00Z");
    assert_eq!(Ok(seen.spki_sha256), spki_sha256(&node.der));
    assert_eq!(server_seen.expect("a handshake").class, Class::Controller(CONTROLLER.parse().expect("a uuid")));
}

#[tokio::test]
async fn an_agent_that_joins_pins_the_roots_key_alone() {
    let of = Fleeting::new();
    for (hash, seen) in
        [(spki_sha256(&of.root.der).expect("a root"), Ok(())), ([7; 32], Err("tls_other_root".to_owned()))]
    {
        let server = server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
        let client = client_config(&Pin::KeyHash(hash), None, None, clock()).expect("a client's config");
        assert_eq!(shake(server, client, "ctl.example").await.1.map(|_| ()), seen);
    }
}

#[tokio::test]
async fn s01_a_certificate_of_another_authority_is_refused() {
    let (of, other) = (Fleeting::new(), Fleeting::new());
    let refused = Err("tls_unknown_issuer".to_owned());
    assert_eq!(agents_see(&of, &other.agents.issue(&Wanted::node())).await, refused);
    assert_eq!(agents_see(&of, &of.root.issue(&Wanted::node())).await, refused, "the root's own leaf neither");
    let stranger = server_config(&other.agents_listener(), other.server_key(), clock()).expect("a server's config");
    assert_eq!(shake(stranger, client(&of, None), "ctl.example").await.1.map(|_| ()), Err("tls_unknown_issuer".into()));
}

#[tokio::test]
async fn s02_an_expired_certificate_is_marked_in_its_grace_and_refused_after() {
    let of = Fleeting::new();
    // (not after, what is seen): NOW is 2026-06-15; the grace is 30 days.
    for (year, month, day, seen) in [
        (2026, 6, 15, Ok(true)),
        (2026, 5, 17, Ok(true)),
        (2026, 5, 16, Err("tls_expired".to_owned())),
        (2016, 6, 15, Err("tls_expired".to_owned())),
    ] {
        let expired = of.agents.issue(&Wanted::node().with(|leaf| {
            leaf.not_before = date_time_ymd(2016, 1, 1);
            leaf.not_after = date_time_ymd(year, month, day);
        }));
        let of_server = agents_see(&of, &expired).await;
        assert_eq!(of_server.map(|identity| identity.expect("a certificate").expired), seen, "{year}-{month}-{day}");
    }
    let admin = of.admin.issue(&Wanted::admin().with(|leaf| {
        leaf.not_before = date_time_ymd(2016, 1, 1);
        leaf.not_after = date_time_ymd(2026, 6, 15);
    }));
    assert_eq!(admins_see(&of, &admin).await, Err("tls_expired".into()), "an admin has no grace");
}

#[tokio::test]
async fn s03_a_certificate_that_is_not_valid_yet_is_refused() {
    let of = Fleeting::new();
    let early = Wanted::node().with(|leaf| leaf.not_before = date_time_ymd(2026, 6, 16));
    assert_eq!(agents_see(&of, &of.agents.issue(&early)).await, Err("tls_not_yet_valid".into()));
}

#[tokio::test]
async fn s04_an_agents_certificate_does_not_make_a_server() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let of = Fleeting::new();
    assert_eq!(agent_is_shown(&of, &of.agents, &Wanted::node()).await.map(|_| ()), Err("tls_wrong_use".into()));
    let both = Wanted::node().with(|leaf| leaf.extended_key_usages = vec![ClientAuth, ServerAuth]);
    assert_eq!(agent_is_shown(&of, &of.agents, &both).await.map(|_| ()), Err("tls_wrong_use".into()), "by its issuer");
    assert_eq!(agent_is_shown(&of, &of.admin, &both).await.map(|_| ()), Err("tls_wrong_class".into()), "by its class");
    assert_eq!(agent_is_shown(&of, &of.agents, &Wanted::controller()).await.map(|_| ()), Err("tls_wrong_use".into()));
}

#[tokio::test]
async fn s05_the_servers_certificate_does_not_make_a_client() {
    let of = Fleeting::new();
    let server = of.admin.issue(&Wanted::controller());
    assert_eq!(agents_see(&of, &server).await, Err("tls_wrong_use".into()));
    assert_eq!(admins_see(&of, &server).await, Err("tls_wrong_use".into()));
    let named = Wanted::controller().with(|leaf| {
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        leaf.subject_alt_names.truncate(1);
    });
    assert_eq!(admins_see(&of, &of.admin.issue(&named)).await, Err("tls_wrong_class".into()));
}

#[tokio::test]
async fn s06_each_listener_takes_its_own_issuers_leaves_alone() {
    let of = Fleeting::new();
    assert!(admins_see(&of, &of.admin.issue(&Wanted::admin())).await.is_ok());
    assert_eq!(admins_see(&of, &of.agents.issue(&Wanted::node())).await, Err("tls_unknown_issuer".into()));
    assert_eq!(agents_see(&of, &of.admin.issue(&Wanted::admin())).await, Err("tls_unknown_issuer".into()));
    assert_eq!(admins_see(&of, &of.admin.issue(&Wanted::node())).await, Err("tls_wrong_class".into()));
    assert_eq!(agents_see(&of, &of.agents.issue(&Wanted::admin())).await, Err("tls_wrong_class".into()));
}

#[tokio::test]
async fn s07_no_certificate_is_nobody() {
    let of = Fleeting::new();
    let server = server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
    assert_eq!(shake(server, client(&of, None), "ctl.example").await.0, Ok(None));
}

#[tokio::test]
async fn s08_tls_1_2_is_not_spoken() {
    let of = Fleeting::new();
    let server = server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
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
    assert!(matches!(
        error.get_ref().and_then(|source| source.downcast_ref()),
        Some(rustls::Error::PeerIncompatible(_))
    ));
    let mut alert = [0; 7];
    near.read_exact(&mut alert).await.expect("an alert");
    assert_eq!((alert[0], alert[6]), (21, 70), "alert protocol_version");
}

#[tokio::test]
async fn s09_long_chains_and_odd_keys_are_refused_before_they_cost() {
    let of = Fleeting::new();
    let node = of.agents.issue(&Wanted::node());
    let server = server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
    let mut own = node.identity();
    own.chain.extend(std::iter::repeat_n(of.agents.der.clone(), 10));
    let long = client_config(&of.roots(), Some(fleet()), Some(own), clock()).expect("a client's config");
    assert_eq!(shake(server, long, "ctl.example").await.0, Err("tls_chain_too_large".into()));
    let large = Wanted::node().with(|leaf| {
        leaf.custom_extensions =
            vec![rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![4; 4096])];
    });
    assert_eq!(agents_see(&of, &of.agents.issue(&large)).await, Err("tls_chain_too_large".into()));
    for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        let odd = of.agents.issue(&Wanted { algorithm, ..Wanted::node() });
        let refused = refuse_leaf(&of, &odd);
        assert_eq!(refused, Err(Refusal::WrongKeyKind), "{algorithm:?}");
    }
}

/// The verifier alone, where rustls's client would not even offer such a key.
fn refuse_leaf(of: &Fleeting, leaf: &Issued) -> Result<(), Refusal> {
    listen::check_client(&of.agents_listener(), &leaf.der, &[], NOW)
}

#[tokio::test]
async fn s10_a_leaf_that_says_that_it_is_an_authority_is_refused() {
    let of = Fleeting::new();
    let authority = Wanted::node().with(|leaf| leaf.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
    assert_eq!(agents_see(&of, &of.agents.issue(&authority)).await, Err("tls_is_authority".into()));
}

#[tokio::test]
async fn s11_names_other_than_the_one_identity_are_refused() {
    let of = Fleeting::new();
    let good = format!("spiffe://prod/node/{NODE}");
    let other = "0190b6c8-4c1e-7d2a-9f00-0123456789ac";
    for (names, reason) in [
        (vec![], "tls_odd_names"),
        (vec![uri(&good), uri(&good)], "tls_odd_names"),
        (vec![uri(&good), uri(&format!("spiffe://prod/node/{other}"))], "tls_odd_names"),
        (vec![uri(&good), SanType::DnsName("x".try_into().expect("ASCII"))], "tls_odd_names"),
        (vec![uri(&good), SanType::IpAddress([10, 0, 0, 1].into())], "tls_odd_names"),
        (vec![SanType::DnsName("x".try_into().expect("ASCII"))], "tls_odd_names"),
        (vec![uri(&format!("spiffe://test/node/{NODE}"))], "tls_other_fleet"),
        (vec![uri(&format!("spiffe://prod/node/{}", NODE.to_uppercase()))], "tls_not_an_identity"),
        (vec![uri(&format!("spiffe://prod/node/{NODE}/x"))], "tls_not_an_identity"),
        (vec![uri("spiffe://prod/node/%2e%2e")], "tls_not_an_identity"),
        (vec![uri("spiffe://prod/node/\0")], "tls_not_an_identity"),
    ] {
        let leaf = Wanted::node().with(|leaf| leaf.subject_alt_names.clone_from(&names));
        assert_eq!(agents_see(&of, &of.agents.issue(&leaf)).await, Err(reason.into()), "{names:?}");
    }
}

#[tokio::test]
async fn a_server_must_carry_the_name_that_was_dialled_and_the_fleets() {
    let of = Fleeting::new();
    let config = || server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
    assert_eq!(shake(config(), client(&of, None), "other.example").await.1.map(|_| ()), Err("tls_wrong_name".into()));
    let test = Some("test".parse().expect("a fleet's name"));
    let other = client_config(&of.roots(), test, None, clock()).expect("a client's config");
    assert_eq!(shake(config(), other, "ctl.example").await.1.map(|_| ()), Err("tls_other_fleet".into()));
}

#[tokio::test]
async fn s15_no_session_is_ever_resumed() {
    let of = Fleeting::new();
    let node = of.agents.issue(&Wanted::node());
    let server = server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
    assert_eq!(server.send_tls13_tickets, 0);
    assert!(!server.session_storage.can_cache() && !server.ticketer.enabled());
    let mut eager = client(&of, Some(&node));
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
async fn s48_http2_is_not_offered() {
    let of = Fleeting::new();
    let server = server_config(&of.agents_listener(), of.server_key(), clock()).expect("a server's config");
    let mut h2 = client(&of, None);
    h2.alpn_protocols = vec![b"h2".to_vec()];
    assert!(shake(server, h2, "ctl.example").await.0.is_err());
}
