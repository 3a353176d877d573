//! Requests in flight, long responses and join tokens of a principal that loses its rights. Also a fleet of a version
//! that had no principals.

use std::path::Path;
use std::sync::Arc;

use hyper::Method;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use stemma_controller::run::{Options, PublishMode, start};
use stemma_controller::store::{ListQuery, Op, RedbOptions, RedbStore, Store as _, Transaction};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{Pin, client_config};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fleet::{Fleet, TIMEOUT, new_config, new_key_and_request};
use crate::principals::clients::{JSON, create_principal, create_token, send, stranger, two_clusters};

/// Opens a TLS connection to the admin listener without a certificate. The test itself writes the bytes of the request.
async fn connection(fleet: &Fleet) -> TlsStream<TcpStream> {
    let root = fleet.components().authority.root().clone();
    let tls = client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock)).unwrap();
    let tcp = TcpStream::connect(fleet.controller.admin_address()).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.unwrap()
}

/// The interim response with which a server asks for the body of a request.
const CONTINUE: &[u8; 25] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Sends the head of a write request, runs `change_rights`, and then sends the body. Returns the status of the
/// response.
async fn status_after_change(fleet: &Fleet, token: &str, change_rights: impl AsyncFnOnce()) -> u16 {
    let mut stream = connection(fleet).await;
    let body = json!({"name": "late"}).to_string();
    let head = format!(
        "POST /v1/clusters HTTP/1.1\r\nhost: localhost\r\nx-auth-token: {token}\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // The server has read the head and accepted the caller, so it requests the body.
    let mut interim = [0; CONTINUE.len()];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(interim, *CONTINUE, "{}", String::from_utf8_lossy(&interim));
    change_rights().await;
    stream.write_all(body.as_bytes()).await.unwrap();
    // In a line such as `HTTP/1.1 200 OK`, the bytes 9 to 11 are the status.
    let mut status_line = [0; 12];
    stream.read_exact(&mut status_line).await.unwrap();
    std::str::from_utf8(&status_line[9..]).unwrap().parse().unwrap()
}

/// A write fails if the principal becomes a viewer, or its token is revoked, after the head of the request and before
/// its body.
#[tokio::test]
async fn write_fails_when_rights_end_before_body() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "otto", "operator", None).await);
    let (token, id) = create_token(&fleet, "otto").await;
    let revision = fleet.last_revision().await;
    let demote = async || {
        let (status, _) = fleet.request(Method::PATCH, "/v1/principals/otto", &json!({"role": "viewer"})).await;
        assert_eq!(status, 200);
    };
    assert_eq!(status_after_change(&fleet, &token, demote).await, 403);
    let (status, _) = fleet.request(Method::PATCH, "/v1/principals/otto", &json!({"role": "operator"})).await;
    assert_eq!(status, 200);
    let revoke = async || {
        let (status, _) = fleet.request(Method::DELETE, &format!("/v1/principals/otto/tokens/{id}"), &Value::Null).await;
        assert_eq!(status, 204);
    };
    assert_eq!(status_after_change(&fleet, &token, revoke).await, 401);
    assert_eq!(fleet.read("/v1/clusters").await["clusters"], json!([]));
    assert_eq!(fleet.last_revision().await, revision + 3, "the three changes of the principal and no more");
    let (token, _) = create_token(&fleet, "otto").await;
    assert_eq!(status_after_change(&fleet, &token, async || {}).await, 202, "without a loss of rights, the write succeeds");
}

/// The list of nodes has 8 MB, so the server is still sending it when the caller's token is revoked.
#[tokio::test]
async fn list_is_cut_when_caller_is_revoked() {
    let fleet = Fleet::start().await;
    let annotation = "x".repeat(20_000);
    for part in 0..4 {
        let node = |n: usize| json!({"kind": "Node", "name": format!("n{part}-{n}"), "annotations": {"about": annotation}});
        fleet.apply((0..100).map(node).collect()).await;
    }
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let (token, id) = create_token(&fleet, "vera").await;
    let mut stream = connection(&fleet).await;
    let request = format!("GET /v1/nodes/detail HTTP/1.1\r\nhost: localhost\r\nx-auth-token: {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    // In a line such as `HTTP/1.1 200 OK`, the bytes 9 to 11 are the status.
    let mut status_line = [0; 12];
    stream.read_exact(&mut status_line).await.unwrap();
    assert_eq!(&status_line[9..], b"200");
    let (status, _) = fleet.request(Method::DELETE, &format!("/v1/principals/vera/tokens/{id}"), &Value::Null).await;
    assert_eq!(status, 204);
    let mut received_bytes = Vec::new();
    // The response may end with a reset or without one, but not with the last chunk of a complete list.
    let _cut = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut received_bytes)).await.unwrap();
    assert!(!received_bytes.ends_with(b"0\r\n\r\n") && received_bytes.len() < 400 * 20_000, "{} bytes", received_bytes.len());
}

/// Sends a request on a new connection, with a token if one is given. Returns the open connection and the status of the
/// response.
async fn open_stream(fleet: &Fleet, path: &str, token: Option<&str>) -> (TlsStream<TcpStream>, u16) {
    let mut stream = connection(fleet).await;
    let token = token.map(|token| format!("x-auth-token: {token}\r\n")).unwrap_or_default();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{token}\r\n").as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // In a line such as `HTTP/1.1 200 OK`, the bytes 9 to 11 are the status.
    let mut status_line = [0; 12];
    stream.read_exact(&mut status_line).await.unwrap();
    (stream, std::str::from_utf8(&status_line[9..]).unwrap().parse().unwrap())
}

/// The 100 connections without credentials are the maximum of one address. Connections with a valid token do not count
/// against this maximum, so 120 event streams of one token are served.
#[tokio::test]
async fn x04_f13_good_token_is_served_when_strangers_fill_limits() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let (token, _) = create_token(&fleet, "robot").await;
    let (mut strangers, mut token_streams) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let (stream, status) = open_stream(&fleet, "/v1/nodes", None).await;
        assert_eq!(status, 401);
        strangers.push(stream);
    }
    for n in 0..120 {
        let (stream, status) = open_stream(&fleet, "/v1/events", Some(&token)).await;
        assert_eq!(status, 200, "stream {n}");
        token_streams.push(stream);
    }
    let (_request, status) = open_stream(&fleet, "/v1/nodes", Some(&token)).await;
    assert_eq!(status, 200);
    assert_eq!(open_stream(&fleet, "/v1/nodes", None).await.1, 401, "a stranger is answered too");
    let closed_count = fleet.refused_count("too_many_strangers_of_one_address");
    assert!(closed_count <= 1, "{closed_count} connections were closed, although each valid token frees the place of a stranger");
    // Each stream is still open and receives the next change.
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    for stream in &mut token_streams {
        let mut text = Vec::new();
        while !text.windows(6).any(|window| window == b"\"prod\"") {
            let read = tokio::time::timeout(TIMEOUT, stream.read_buf(&mut text)).await.unwrap().unwrap();
            assert_ne!(read, 0, "{}", String::from_utf8_lossy(&text));
        }
    }
}

#[tokio::test]
async fn join_tokens_end_when_creator_loses_rights() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let create_join_token = async |name: &str, target: Value| {
        let (token, _) = create_token(&fleet, name).await;
        let headers = [("x-auth-token", &*token), JSON];
        let answer = send(&mut stranger(&fleet), "POST", "/v1/join-tokens", &headers, &target.to_string()).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.body["token"].as_str().unwrap().to_owned()
    };
    for (name, cluster) in [("ann", None), ("bea", None), ("cem", Some("own"))] {
        drop(create_principal(&fleet, name, "operator", cluster).await);
    }
    let web = json!({"nodegroup": "own/web"});
    let (deleted_token, demoted_token) =
        (create_join_token("ann", web.clone()).await, create_join_token("bea", web.clone()).await);
    // The token `moved_token` is for a node that later moves to a cluster in which its creator has no rights.
    let (kept_token, moved_token) =
        (create_join_token("cem", web).await, create_join_token("cem", json!({"node": "own-node"})).await);
    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/ann", &Value::Null).await;
    assert_eq!(status, 204);
    let (status, _) = fleet.request(Method::PATCH, "/v1/principals/bea", &json!({"role": "viewer"})).await;
    assert_eq!(status, 200);
    fleet.apply(json!([{"kind": "Node", "name": "own-node", "nodegroup": "far/web"}])).await;
    for (reason, token, name) in
        [("deleted", &deleted_token, "h1"), ("demoted", &demoted_token, "h2"), ("moved", &moved_token, "own-node")]
    {
        let error = fleet.enrol(token, name, &new_key_and_request().csr).await.unwrap_err();
        assert_eq!((error.status, &*error.kind), (403, "token.invalid"), "{reason}: {}", error.message);
    }
    fleet.enrol(&kept_token, "h3", &new_key_and_request().csr).await.unwrap();
}

/// Deletes the principals from the store in a data directory. The store then looks like the store of an older version,
/// which had no principals.
async fn remove_principals(data: &Path) {
    let store = RedbStore::open(&data.join("store.redb"), RedbOptions::default()).unwrap();
    let snapshot = store.snapshot().await.unwrap();
    let mut transaction = Transaction::new();
    for prefix in ["object/principal/", "name/principal/", "history/principal/"] {
        let list = snapshot.list(&ListQuery::prefix(prefix)).await.unwrap();
        transaction.ops.extend(list.entries.into_iter().map(|entry| Op::Delete { key: entry.key }));
    }
    assert!(!transaction.ops.is_empty());
    store.commit(transaction).await.unwrap();
}

/// A store of an older version has no principals. The creation of the first principal also stores the principal
/// `admin`, with the certificate that the first admin uses.
#[tokio::test]
async fn old_fleet_stores_admin_with_first_principal() {
    let mut fleet = Fleet::start().await;
    let data = fleet.directory.path().join("data");
    fleet.controller.stop().await;
    remove_principals(&data).await;
    let options = Options { publishing: PublishMode::Manual, ..Options::default() };
    fleet.controller = start(new_config(data), options).await.unwrap();
    assert_eq!(fleet.read("/v1/principals").await["principals"], json!([]));
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let list = fleet.read("/v1/principals").await;
    let find_principal = |name: &str| list["principals"].as_array().unwrap().iter().find(|principal| principal["name"] == name);
    let admin = find_principal("admin").unwrap();
    assert!(find_principal("vera").is_some(), "{list}");
    assert_eq!((&admin["role"], admin["certificates"].as_array().unwrap().len()), (&json!("admin"), 1));
    fleet.apply(json!([{"kind": "Cluster", "name": "test"}])).await;
    // From then on, the admin is a principal like any other.
    let mut ada = create_principal(&fleet, "ada", "admin", None).await;
    let serial = admin["certificates"][0]["serial"].as_str().unwrap();
    let answer = send(&mut ada, "DELETE", &format!("/v1/certificates/{serial}"), &[], "").await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    let (status, answer) = fleet.request(Method::GET, "/v1/nodes", &Value::Null).await;
    assert_eq!((status, &answer["error"]["type"]), (403, &json!("auth.revoked")), "{answer}");
}
