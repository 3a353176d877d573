//! What the handshakes of both listeners refuse (docs/trust.md, S01 to S11), each without a change of state and counted, and the next
//! good request succeeds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, Request};
use rcgen::{ExtendedKeyUsagePurpose, SanType};
use serde_json::json;
use stemma_wire::client::{Client, ClientError, ClientLimits};
use stemma_wire::clock::SystemClock;
use stemma_wire::message::checkin::CheckInAnswer;
use stemma_wire::message::encode;
use stemma_wire::net::TcpListen;
use stemma_wire::serve::{Limits, Peer, Rejected, RequestBody, Server};
use stemma_wire::tls::{Accepts, Listener, Pin, Refusal, ServerKey, client_config, server_config};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fleet::forge::Forged;
use crate::fleet::{Fleet, Host, PATIENCE, asking, call, check_in, refused, send, target};

/// A client's first request, which is where it learns that the server refused its certificate.
async fn first(client: &mut Client) -> Result<u16, ClientError> {
    let body = Bytes::from(encode(&check_in(None, 0)));
    let request = Request::builder().method(Method::POST).uri("/agent/v1/checkin").body(body).unwrap();
    client.send_within(request, PATIENCE).await.map(|response| response.status().as_u16())
}

/// The handshake is refused for this reason, nothing is written, and a good host is served after it.
async fn refuses(fleet: &Fleet, good: &mut Host, mut client: Client, reason: &str) {
    let (revision, before) = (fleet.revision().await, fleet.rejected(reason));
    let got = first(&mut client).await;
    assert!(matches!(got, Err(ClientError::Handshake { .. } | ClientError::Broken { .. })), "{reason}: {got:?}");
    fleet.counted(reason, before + 1).await;
    assert_eq!(fleet.revision().await, revision, "nothing is written");
    assert!(good.check_in(0).await.is_ok(), "the next good request succeeds");
}

async fn fleet_with_host() -> (Fleet, Host) {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.news(0).await;
    (fleet, host)
}

fn uri_of(fleet: &Fleet, host: &Host) -> String {
    format!("spiffe://{}/node/{}", fleet.parts().fleet, host.node)
}

#[tokio::test]
async fn s01_a_certificate_of_another_authority_is_refused() {
    let (fleet, mut host) = fleet_with_host().await;
    let other = Fleet::start().await;
    let (chain, key) = Forged::for_uri(&uri_of(&fleet, &host)).signed(&other, "agents");
    let client = fleet.client(chain, key);
    refuses(&fleet, &mut host, client, "tls_unknown_issuer").await;
}

#[tokio::test]
async fn s02_an_expired_certificate_renews_in_its_grace_and_does_nothing_else() {
    let (fleet, mut host) = fleet_with_host().await;
    fleet.clock.forward(25 * 3600);
    for client in [&mut fleet.client(host.chain.clone(), host.key.clone_key()), &mut host.client] {
        for (method, path) in [
            (Method::POST, "/agent/v1/checkin".to_owned()),
            (Method::GET, format!("/agent/v1/profiles/{}", "0".repeat(64))),
            (Method::GET, format!("/agent/v1/blobs/{}", "0".repeat(64))),
        ] {
            let got = refused(&send(client, method, &path, encode(&check_in(None, 0))).await);
            assert_eq!((got.status, got.kind.as_str()), (403, "certificate_expired"), "{path}");
        }
    }
    fleet.audited(&format!("node/{}", host.node), "certificate_expired", 6).await;
    let next = asking();
    let answer = host.renew(&next.csr).await.unwrap();
    let mut renewed = fleet.host(host.node, &next, answer.chain);
    assert!(renewed.check_in(0).await.is_ok());
    fleet.clock.forward(31 * 24 * 3600);
    let late = fleet.client(host.chain.clone(), host.key.clone_key());
    let mut newcomer = fleet.join("web-2").await;
    refuses(&fleet, &mut newcomer, late, "tls_expired").await;
}

#[tokio::test]
async fn s02_w15_08_a_renewal_in_the_grace_is_marked_in_the_audit() {
    let (fleet, mut host) = fleet_with_host().await;
    let node = host.node;
    let next = asking();
    let answer = host.renew(&next.csr).await.unwrap();
    let mut host = fleet.host(node, &next, answer.chain);
    fleet.clock.forward(25 * 3600);
    host.renew(&asking().csr).await.unwrap();
    let events = fleet.events().await;
    let own = events.iter().filter(|event| event.principal == format!("node/{node}"));
    let reasons: Vec<_> = own.map(|event| event.reason.as_deref().unwrap_or_default()).collect();
    assert_eq!(reasons, ["renewed", "renewed after expiry"]);
}

#[tokio::test]
async fn s02_in_the_grace_only_the_newest_certificate_renews() {
    let (fleet, mut host) = fleet_with_host().await;
    let next = asking();
    let answer = host.renew(&next.csr).await.unwrap();
    let mut newest = fleet.host(host.node, &next, answer.chain);
    fleet.clock.forward(25 * 3600);
    let mut copied = fleet.client(host.chain.clone(), host.key.clone_key());
    let request = stemma_wire::message::enroll::RenewRequest { csr: asking().csr };
    let got = refused(&send(&mut copied, Method::POST, "/agent/v1/renew", encode(&request)).await);
    assert_eq!((got.status, got.kind.as_str()), (403, "certificate.superseded"));
    fleet.audited(&format!("node/{}", host.node), "certificate.superseded", 1).await;
    assert!(newest.renew(&asking().csr).await.is_ok());
}

#[tokio::test]
async fn f21_a_renewal_whose_answer_was_lost_is_answered_again_past_its_end() {
    let (fleet, mut host) = fleet_with_host().await;
    fleet.clock.forward(25 * 3600);
    // Made and stored, and never heard of.
    let next = asking();
    host.renew(&next.csr).await.unwrap();
    let mut again = fleet.client(host.chain.clone(), host.key.clone_key());
    let with = async |client: &mut _, csr: Vec<u8>| {
        let request = stemma_wire::message::enroll::RenewRequest { csr };
        send(client, Method::POST, "/agent/v1/renew", encode(&request)).await
    };
    let other = refused(&with(&mut again, asking().csr).await);
    assert_eq!((other.status, other.kind.as_str()), (403, "certificate.superseded"), "a copied disk has another key");
    let answer = with(&mut again, next.csr.clone()).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    let answer: stemma_wire::message::enroll::RenewAnswer = stemma_wire::message::decode(answer.body()).unwrap();
    assert!(fleet.host(host.node, &next, answer.chain).check_in(0).await.is_ok());
}

#[tokio::test]
async fn s03_a_certificate_that_is_not_yet_valid_is_refused() {
    let (fleet, mut host) = fleet_with_host().await;
    let client = Forged::for_uri(&uri_of(&fleet, &host)).valid(3600, 7200).client(&fleet);
    refuses(&fleet, &mut host, client, "tls_not_yet_valid").await;
}

#[tokio::test]
async fn s04_an_agents_certificate_is_no_servers() {
    let (fleet, host) = fleet_with_host().await;
    let listener = Listener {
        accepts: Accepts::Admins,
        fleet: fleet.parts().fleet.clone(),
        issuers: vec![fleet.parts().authority.admin_issuer().clone()],
    };
    let mut chain = host.chain.clone();
    chain.push(fleet.parts().authority.root().clone());
    let own = ServerKey { chain, key: host.key.clone_key() };
    let config = Arc::new(server_config(&listener, own, Arc::new(SystemClock)).unwrap());
    let socket = TcpListen::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = socket.local_addr().unwrap();
    let source: stemma_wire::serve::TlsSource = Arc::new(move || Arc::clone(&config));
    let rejected = Arc::new(Rejected::default());
    let server = Server::new(socket, Some(source), Limits::default(), Arc::new(SystemClock), rejected);
    let handler = |_: &Arc<Peer>, _: Request<RequestBody>| {
        std::future::ready(hyper::Response::new(http_body_util::Full::new(Bytes::new())))
    };
    tokio::spawn(server.run(handler, std::future::pending()));
    let pin = Pin::Roots(vec![fleet.parts().authority.root().clone()]);
    let tls = client_config(&pin, Some(fleet.parts().fleet.clone()), None, Arc::new(SystemClock)).unwrap();
    let mut client = Client::new(target(address), Some(Arc::new(tls)), ClientLimits::default());
    let got = first(&mut client).await;
    assert!(matches!(got, Err(ClientError::Untrusted { source: Refusal::WrongUse, .. })), "{got:?}");
}

#[tokio::test]
async fn s05_the_servers_certificate_is_no_clients() {
    let (fleet, mut host) = fleet_with_host().await;
    let issued = fleet.parts().authority.issue_server(uuid::Uuid::from_u128(9), &[], now()).unwrap();
    let client = fleet.client(issued.chain, issued.key.unwrap());
    refuses(&fleet, &mut host, client, "tls_wrong_use").await;
}

#[tokio::test]
async fn s06_each_port_takes_its_own_kind_of_certificate() {
    let (fleet, mut host) = fleet_with_host().await;
    let admin = fleet.parts().authority.issue_admin("ada".parse().unwrap(), now()).unwrap();
    let (chain, key) = (admin.chain, admin.key.unwrap());
    let client = fleet.client(chain.clone(), key.clone_key());
    refuses(&fleet, &mut host, client, "tls_unknown_issuer").await;
    let admin_port = fleet.controller.admin_address();
    let client = fleet.client_of(admin_port, host.chain.clone(), host.key.clone_key());
    refuses(&fleet, &mut host, client, "tls_unknown_issuer").await;
    let mut right = fleet.client_of(admin_port, chain, key);
    assert_eq!(send(&mut right, Method::GET, "/healthz", "").await.status(), 200);
}

#[tokio::test]
async fn s07_without_a_certificate_there_is_enrolment_and_nothing_else() {
    let (fleet, _host) = fleet_with_host().await;
    let before = fleet.revision().await;
    for (method, path) in [
        (Method::POST, "/agent/v1/checkin".to_owned()),
        (Method::POST, "/agent/v1/renew".to_owned()),
        (Method::GET, format!("/agent/v1/profiles/{}", "0".repeat(64))),
        (Method::GET, format!("/agent/v1/blobs/{}", "0".repeat(64))),
    ] {
        let got = refused(&send(&mut fleet.stranger(), method, &path, encode(&check_in(None, 0))).await);
        assert_eq!((got.status, got.kind.as_str()), (401, "auth.required"), "{path}");
    }
    assert_eq!(fleet.revision().await, before);
    fleet.counted("auth.required", 4).await;
    let token = fleet.token(json!({})).await;
    assert!(fleet.enrol(&token, "web-2", &asking().csr).await.is_ok());
}

#[tokio::test]
async fn s08_tls_1_2_is_refused() {
    let (fleet, mut host) = fleet_with_host().await;
    let before = fleet.rejected("tls_incompatible");
    for at in [fleet.agents(), fleet.controller.admin_address()] {
        let alert = hello_of_tls_1_2(at).await;
        // An alert record: fatal, protocol_version.
        assert_eq!((alert[0], &alert[5..7]), (0x15, &[2, 70][..]), "{at}");
    }
    fleet.counted("tls_incompatible", before + 2).await;
    assert!(host.check_in(0).await.is_ok());
}

/// Says a `ClientHello` that knows TLS 1.2 and nothing later, and reads the answer.
async fn hello_of_tls_1_2(at: SocketAddr) -> Vec<u8> {
    let mut extensions = Vec::new();
    let mut extension = |kind: u16, body: &[u8]| {
        extensions.extend(kind.to_be_bytes());
        extensions.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        extensions.extend(body);
    };
    extension(10, &[0, 2, 0, 23]); // supported_groups: secp256r1
    extension(11, &[1, 0]); // ec_point_formats: uncompressed
    extension(13, &[0, 2, 4, 3]); // signature_algorithms: ecdsa_secp256r1_sha256
    let mut hello = vec![3, 3];
    hello.extend([7; 32]); // random
    hello.push(0); // no session
    hello.extend([0, 2, 0xc0, 0x2b]); // TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
    hello.extend([1, 0]); // no compression
    hello.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
    hello.extend(extensions);
    let mut record = vec![0x16, 3, 1];
    record.extend(u16::try_from(hello.len() + 4).unwrap().to_be_bytes());
    record.push(1);
    record.extend(&u32::try_from(hello.len()).unwrap().to_be_bytes()[1..]);
    record.extend(hello);
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(&record).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn s11_odd_identities_are_refused() {
    let (fleet, mut host) = fleet_with_host().await;
    let good = uri_of(&fleet, &host);
    let name = fleet.parts().fleet.to_string();
    for (uri, reason) in [
        (good.replace(&name, "other-fleet"), "tls_other_fleet"),
        (good.replace("/node/", "/controller/"), "tls_wrong_class"),
        (good.replace("/node/", "//"), "tls_not_an_identity"),
        (good.to_uppercase(), "tls_not_an_identity"),
        (format!("{good}/"), "tls_not_an_identity"),
        (format!("{good}?as=admin"), "tls_not_an_identity"),
        (format!("spiffe://{name}/node/*"), "tls_not_an_identity"),
        (format!("spiffe://{name}/node/..%2fadmin"), "tls_not_an_identity"),
    ] {
        let client = Forged::for_uri(&uri).client(&fleet);
        refuses(&fleet, &mut host, client, reason).await;
    }
    let mut two = Forged::for_uri(&good);
    two.params.subject_alt_names.push(SanType::URI(good.as_str().try_into().unwrap()));
    refuses(&fleet, &mut host, two.client(&fleet), "tls_odd_names").await;
    let mut named = Forged::for_uri(&good);
    named.params.subject_alt_names.push(SanType::DnsName("web-1".try_into().unwrap()));
    refuses(&fleet, &mut host, named.client(&fleet), "tls_odd_names").await;
    let mut other_use = Forged::for_uri(&good);
    other_use.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    refuses(&fleet, &mut host, other_use.client(&fleet), "tls_wrong_use").await;
}

#[tokio::test]
async fn a_certificate_of_a_node_that_is_unknown_is_good_for_nothing() {
    let (fleet, host) = fleet_with_host().await;
    let uri = uri_of(&fleet, &host).replace(&host.node.to_string(), &uuid::Uuid::from_u128(7).to_string());
    let mut client = Forged::for_uri(&uri).client(&fleet);
    let got: Result<CheckInAnswer, _> = call(&mut client, "/agent/v1/checkin", &check_in(None, 0)).await;
    assert_eq!(got.unwrap_err().kind, "auth.revoked");
}

fn now() -> u64 {
    use stemma_wire::clock::Clock as _;
    SystemClock.unix_seconds()
}
