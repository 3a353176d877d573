//! Tests of what the listeners refuse because of the client's certificate or TLS version (docs/trust.md, S01 to S11).
//! The controller counts each refusal, stores at most an audit record, and serves the next valid request.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, Request};
use rcgen::{ExtendedKeyUsagePurpose, SanType};
use serde_json::json;
use stemma_wire::client::{Client, ClientError, ClientLimits};
use stemma_wire::clock::SystemClock;
use stemma_wire::message::checkin::CheckInResponse;
use stemma_wire::message::encode;
use stemma_wire::net::TcpAcceptor;
use stemma_wire::serve::{ListenerLimits, Peer, RejectionCounter, RequestBody, Server};
use stemma_wire::tls::{ListenerRole, Pin, Refusal, ServerKey, TlsListener, client_config, server_config};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fleet::forge::ForgedCertificate;
use crate::fleet::{Fleet, Host, TIMEOUT, agent_target, call, error_response, idle_check_in, new_key_and_request, send_request};

/// Sends a check-in as the client's first request, and returns the status of the response.
/// In TLS 1.3 a client learns only by its first request that the server refused its certificate.
async fn first_status(client: &mut Client) -> Result<u16, ClientError> {
    let body = Bytes::from(encode(&idle_check_in(None, 0)));
    let request = Request::builder().method(Method::POST).uri("/agent/v1/checkin").body(body).unwrap();
    client.send_with_timeout(request, TIMEOUT).await.map(|response| response.status().as_u16())
}

/// Checks that the handshake of `client` is refused for this reason, and that the controller stores nothing.
/// Then checks that `valid_host` can check in.
async fn assert_handshake_refused(fleet: &Fleet, valid_host: &mut Host, mut client: Client, reason: &str) {
    let (revision, count_before) = (fleet.last_revision().await, fleet.refused_count(reason));
    let result = first_status(&mut client).await;
    assert!(matches!(result, Err(ClientError::Handshake { .. } | ClientError::Broken { .. })), "{reason}: {result:?}");
    fleet.wait_until_counted(reason, count_before + 1).await;
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
    assert!(valid_host.check_in(0).await.is_ok(), "the next valid request succeeds");
}

/// Starts a fleet with one host, which has joined and checked in once.
async fn fleet_with_host() -> (Fleet, Host) {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    (fleet, host)
}

/// Returns the identity in a host's certificate, as a SPIFFE URI.
fn agent_uri(fleet: &Fleet, host: &Host) -> String {
    format!("spiffe://{}/node/{}", fleet.components().fleet, host.node)
}

#[tokio::test]
async fn s01_handshake_fails_when_authority_is_unknown() {
    let (fleet, mut host) = fleet_with_host().await;
    let other = Fleet::start().await;
    let (chain, key) = ForgedCertificate::for_uri(&agent_uri(&fleet, &host)).sign(&other, "agents");
    let client = fleet.client(chain, key);
    assert_handshake_refused(&fleet, &mut host, client, "tls_unknown_issuer").await;
}

/// A host's certificate has expired after 25 hours. For 30 days after its end, the host can only renew it. After that,
/// the handshake is refused.
#[tokio::test]
async fn s02_expired_certificate_only_renews_within_grace() {
    let (fleet, mut host) = fleet_with_host().await;
    fleet.clock.advance(25 * 3600);
    // A new connection, and the connection that was open before.
    for client in [&mut fleet.client(host.chain.clone(), host.key.clone_key()), &mut host.client] {
        for (method, path) in [
            (Method::POST, "/agent/v1/checkin".to_owned()),
            (Method::GET, format!("/agent/v1/profiles/{}", "0".repeat(64))),
            (Method::GET, format!("/agent/v1/blobs/{}", "0".repeat(64))),
        ] {
            let error = error_response(&send_request(client, method, &path, encode(&idle_check_in(None, 0))).await);
            assert_eq!((error.status, error.kind.as_str()), (403, "certificate_expired"), "{path}");
        }
    }
    fleet.wait_until_audited(&format!("node/{}", host.node), "certificate_expired", 6).await;
    let renewal = new_key_and_request();
    let issued = host.renew(&renewal.csr).await.unwrap();
    let mut renewed = fleet.host_with_certificate(host.node, &renewal, issued.chain);
    assert!(renewed.check_in(0).await.is_ok());
    fleet.clock.advance(31 * 24 * 3600);
    let late_client = fleet.client(host.chain.clone(), host.key.clone_key());
    let mut newcomer = fleet.join("web-2").await;
    assert_handshake_refused(&fleet, &mut newcomer, late_client, "tls_expired").await;
}

/// A host renews its certificate twice, the second time after the end of the certificate. The audit shows the
/// difference.
#[tokio::test]
async fn s02_w15_08_renewal_in_grace_is_marked_in_audit() {
    let (fleet, mut host) = fleet_with_host().await;
    let node = host.node;
    let renewal = new_key_and_request();
    let issued = host.renew(&renewal.csr).await.unwrap();
    let mut host = fleet.host_with_certificate(node, &renewal, issued.chain);
    fleet.clock.advance(25 * 3600);
    host.renew(&new_key_and_request().csr).await.unwrap();
    let events = fleet.audit_events().await;
    let events_of_node = events.iter().filter(|event| event.principal == format!("node/{node}"));
    let reasons: Vec<_> = events_of_node.map(|event| event.reason.as_deref().unwrap_or_default()).collect();
    assert_eq!(reasons, ["renewed", "renewed after expiry"]);
}

/// An expired certificate that was renewed cannot be renewed with another key, because a copy of the host may hold it.
#[tokio::test]
async fn s02_renewal_in_grace_requires_newest_certificate() {
    let (fleet, mut host) = fleet_with_host().await;
    let renewal = new_key_and_request();
    let issued = host.renew(&renewal.csr).await.unwrap();
    let mut newest_host = fleet.host_with_certificate(host.node, &renewal, issued.chain);
    fleet.clock.advance(25 * 3600);
    let mut copied_client = fleet.client(host.chain.clone(), host.key.clone_key());
    let request = stemma_wire::message::enroll::RenewRequest { csr: new_key_and_request().csr };
    let error = error_response(&send_request(&mut copied_client, Method::POST, "/agent/v1/renew", encode(&request)).await);
    assert_eq!((error.status, error.kind.as_str()), (403, "certificate.superseded"));
    fleet.wait_until_audited(&format!("node/{}", host.node), "certificate.superseded", 1).await;
    assert!(newest_host.renew(&new_key_and_request().csr).await.is_ok());
}

/// An expired certificate was renewed already. It can be renewed again only with the key of that renewal, because then
/// the host itself repeats its request.
#[tokio::test]
async fn f21_renewal_repeats_when_response_was_lost_and_certificate_expired() {
    let (fleet, mut host) = fleet_with_host().await;
    fleet.clock.advance(25 * 3600);
    // The certificate is issued and stored, but the response is lost.
    let renewal = new_key_and_request();
    host.renew(&renewal.csr).await.unwrap();
    let mut retrying_client = fleet.client(host.chain.clone(), host.key.clone_key());
    let renew_with = async |client: &mut _, csr: Vec<u8>| {
        let request = stemma_wire::message::enroll::RenewRequest { csr };
        send_request(client, Method::POST, "/agent/v1/renew", encode(&request)).await
    };
    let error = error_response(&renew_with(&mut retrying_client, new_key_and_request().csr).await);
    assert_eq!((error.status, error.kind.as_str()), (403, "certificate.superseded"), "a copied disk has another key");
    let answer = renew_with(&mut retrying_client, renewal.csr.clone()).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    let answer: stemma_wire::message::enroll::RenewResponse = stemma_wire::message::decode(answer.body()).unwrap();
    assert!(fleet.host_with_certificate(host.node, &renewal, answer.chain).check_in(0).await.is_ok());
}

#[tokio::test]
async fn s03_handshake_fails_when_certificate_is_not_yet_valid() {
    let (fleet, mut host) = fleet_with_host().await;
    let client = ForgedCertificate::for_uri(&agent_uri(&fleet, &host)).with_validity(3600, 7200).client(&fleet);
    assert_handshake_refused(&fleet, &mut host, client, "tls_not_yet_valid").await;
}

/// A server presents the certificate of a host. A client refuses it, because the certificate is for clients only.
#[tokio::test]
async fn s04_agent_certificate_is_rejected_as_server() {
    let (fleet, host) = fleet_with_host().await;
    let listener = TlsListener {
        role: ListenerRole::Admins,
        fleet: fleet.components().fleet.clone(),
        issuers: vec![fleet.components().authority.admin_issuer().clone()],
    };
    let mut chain = host.chain.clone();
    chain.push(fleet.components().authority.root().clone());
    let server_key = ServerKey { chain, key: host.key.clone_key() };
    let config = Arc::new(server_config(&listener, server_key, Arc::new(SystemClock)).unwrap());
    let socket = TcpAcceptor::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = socket.local_addr().unwrap();
    let source: stemma_wire::serve::TlsSource = Arc::new(move || Arc::clone(&config));
    let rejected = Arc::new(RejectionCounter::default());
    let server = Server::new(socket, Some(source), ListenerLimits::default(), Arc::new(SystemClock), rejected);
    let handler = |_: &Arc<Peer>, _: Request<RequestBody>| {
        std::future::ready(hyper::Response::new(http_body_util::Full::new(Bytes::new())))
    };
    tokio::spawn(server.run(handler, std::future::pending()));
    let pin = Pin::Roots(vec![fleet.components().authority.root().clone()]);
    let tls = client_config(&pin, Some(fleet.components().fleet.clone()), None, Arc::new(SystemClock)).unwrap();
    let mut client = Client::new(agent_target(address), Some(Arc::new(tls)), ClientLimits::default());
    let result = first_status(&mut client).await;
    assert!(matches!(result, Err(ClientError::Untrusted { source: Refusal::WrongUse, .. })), "{result:?}");
}

#[tokio::test]
async fn s05_server_certificate_is_rejected_as_client() {
    let (fleet, mut host) = fleet_with_host().await;
    let issued = fleet.components().authority.issue_server(uuid::Uuid::from_u128(9), &[], now_s()).unwrap();
    let client = fleet.client(issued.chain, issued.key.unwrap());
    assert_handshake_refused(&fleet, &mut host, client, "tls_wrong_use").await;
}

#[tokio::test]
async fn s06_listener_accepts_only_own_certificate_class() {
    let (fleet, mut host) = fleet_with_host().await;
    let admin = fleet.components().authority.issue_admin("ada".parse().unwrap(), now_s()).unwrap();
    let (chain, key) = (admin.chain, admin.key.unwrap());
    let client = fleet.client(chain.clone(), key.clone_key());
    assert_handshake_refused(&fleet, &mut host, client, "tls_unknown_issuer").await;
    let admin_port = fleet.controller.admin_address();
    let client = fleet.client_at(admin_port, host.chain.clone(), host.key.clone_key());
    assert_handshake_refused(&fleet, &mut host, client, "tls_unknown_issuer").await;
    let mut admin_client = fleet.client_at(admin_port, chain, key);
    assert_eq!(send_request(&mut admin_client, Method::GET, "/healthz", "").await.status(), 200);
}

#[tokio::test]
async fn s07_agent_listener_allows_only_enrolment_without_certificate() {
    let (fleet, _host) = fleet_with_host().await;
    let revision_before = fleet.last_revision().await;
    for (method, path) in [
        (Method::POST, "/agent/v1/checkin".to_owned()),
        (Method::POST, "/agent/v1/renew".to_owned()),
        (Method::GET, format!("/agent/v1/profiles/{}", "0".repeat(64))),
        (Method::GET, format!("/agent/v1/blobs/{}", "0".repeat(64))),
    ] {
        let error = error_response(
            &send_request(&mut fleet.client_without_certificate(), method, &path, encode(&idle_check_in(None, 0))).await,
        );
        assert_eq!((error.status, error.kind.as_str()), (401, "auth.required"), "{path}");
    }
    assert_eq!(fleet.last_revision().await, revision_before);
    fleet.wait_until_counted("auth.required", 4).await;
    let token = fleet.create_token(json!({})).await;
    assert!(fleet.enrol(&token, "web-2", &new_key_and_request().csr).await.is_ok());
}

#[tokio::test]
async fn s08_handshake_fails_with_tls_1_2() {
    let (fleet, mut host) = fleet_with_host().await;
    let count_before = fleet.refused_count("tls_incompatible");
    for address in [fleet.agents_address(), fleet.controller.admin_address()] {
        let alert = send_tls_1_2_hello(address).await;
        // A TLS record of type alert: level 2 (fatal), description 70 (protocol_version).
        assert_eq!((alert[0], &alert[5..7]), (0x15, &[2, 70][..]), "{address}");
    }
    fleet.wait_until_counted("tls_incompatible", count_before + 2).await;
    assert!(host.check_in(0).await.is_ok());
}

/// Sends a `ClientHello` that offers TLS 1.2 as its highest version. Returns the bytes of the response.
async fn send_tls_1_2_hello(address: SocketAddr) -> Vec<u8> {
    let mut extensions = Vec::new();
    let mut extension = |kind: u16, body: &[u8]| {
        extensions.extend(kind.to_be_bytes());
        extensions.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        extensions.extend(body);
    };
    extension(10, &[0, 2, 0, 23]); // supported_groups: secp256r1
    extension(11, &[1, 0]); // ec_point_formats: uncompressed
    extension(13, &[0, 2, 4, 3]); // signature_algorithms: ecdsa_secp256r1_sha256
    let mut hello = vec![3, 3]; // version: TLS 1.2
    hello.extend([7; 32]); // random
    hello.push(0); // no session
    hello.extend([0, 2, 0xc0, 0x2b]); // TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
    hello.extend([1, 0]); // no compression
    hello.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
    hello.extend(extensions);
    let mut record = vec![0x16, 3, 1]; // record type: handshake, version: TLS 1.0
    record.extend(u16::try_from(hello.len() + 4).unwrap().to_be_bytes()); // with the type and the length of the message
    record.push(1); // message type: ClientHello
    record.extend(&u32::try_from(hello.len()).unwrap().to_be_bytes()[1..]);
    record.extend(hello);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&record).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn s11_handshake_fails_when_identity_is_malformed() {
    let (fleet, mut host) = fleet_with_host().await;
    let valid_uri = agent_uri(&fleet, &host);
    let fleet_name = fleet.components().fleet.to_string();
    for (uri, reason) in [
        (valid_uri.replace(&fleet_name, "other-fleet"), "tls_other_fleet"),
        (valid_uri.replace("/node/", "/controller/"), "tls_wrong_class"),
        (valid_uri.replace("/node/", "//"), "tls_not_an_identity"),
        (valid_uri.to_uppercase(), "tls_not_an_identity"),
        (format!("{valid_uri}/"), "tls_not_an_identity"),
        (format!("{valid_uri}?as=admin"), "tls_not_an_identity"),
        (format!("spiffe://{fleet_name}/node/*"), "tls_not_an_identity"),
        (format!("spiffe://{fleet_name}/node/..%2fadmin"), "tls_not_an_identity"),
    ] {
        let client = ForgedCertificate::for_uri(&uri).client(&fleet);
        assert_handshake_refused(&fleet, &mut host, client, reason).await;
    }
    let mut with_two_uris = ForgedCertificate::for_uri(&valid_uri);
    with_two_uris.params.subject_alt_names.push(SanType::URI(valid_uri.as_str().try_into().unwrap()));
    assert_handshake_refused(&fleet, &mut host, with_two_uris.client(&fleet), "tls_odd_names").await;
    let mut with_dns_name = ForgedCertificate::for_uri(&valid_uri);
    with_dns_name.params.subject_alt_names.push(SanType::DnsName("web-1".try_into().unwrap()));
    assert_handshake_refused(&fleet, &mut host, with_dns_name.client(&fleet), "tls_odd_names").await;
    let mut for_servers = ForgedCertificate::for_uri(&valid_uri);
    for_servers.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert_handshake_refused(&fleet, &mut host, for_servers.client(&fleet), "tls_wrong_use").await;
}

#[tokio::test]
async fn certificate_is_rejected_when_node_is_unknown() {
    let (fleet, host) = fleet_with_host().await;
    let uri = agent_uri(&fleet, &host).replace(&host.node.to_string(), &uuid::Uuid::from_u128(7).to_string());
    let mut client = ForgedCertificate::for_uri(&uri).client(&fleet);
    let result: Result<CheckInResponse, _> = call(&mut client, "/agent/v1/checkin", &idle_check_in(None, 0)).await;
    assert_eq!(result.unwrap_err().kind, "auth.revoked");
}

/// Returns the present time, in seconds since 1970.
fn now_s() -> u64 {
    use stemma_wire::clock::Clock as _;
    SystemClock.unix_seconds()
}
