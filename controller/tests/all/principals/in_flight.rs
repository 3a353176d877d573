//! Requests and credentials from before a right was removed: requests in flight, long responses, join tokens. And a
//! fleet of a version that had no principals.

use std::path::Path;
use std::sync::Arc;

use hyper::Method;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use stemma_controller::run::{Options, Publishing, start};
use stemma_controller::store::{ListQuery, Op, RedbOptions, RedbStore, Store as _, Transaction};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{Pin, client_config};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fleet::{Fleet, TIMEOUT, new_config, new_request};
use crate::principals::clients::{JSON, create_principal, create_token, send, stranger, two_clusters};

/// Opens a connection to the admin listener without a certificate, for requests byte by byte.
async fn connection(fleet: &Fleet) -> TlsStream<TcpStream> {
    let root = fleet.parts().authority.root().clone();
    let tls = client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock)).unwrap();
    let tcp = TcpStream::connect(fleet.controller.admin_address()).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.unwrap()
}

/// The bytes by which a server requests the body.
const CONTINUE: &[u8; 25] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Sends the head of a write, lets something happen, then sends the body. Returns the status of the response.
async fn status_after(fleet: &Fleet, token: &str, happens: impl AsyncFnOnce()) -> u16 {
    let mut stream = connection(fleet).await;
    let body = json!({"name": "late"}).to_string();
    let head = format!(
        "POST /v1/clusters HTTP/1.1\r\nhost: localhost\r\nx-auth-token: {token}\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // The head was read and the caller accepted, so the server requests the body.
    let mut asked = [0; CONTINUE.len()];
    stream.read_exact(&mut asked).await.unwrap();
    assert_eq!(asked, *CONTINUE, "{}", String::from_utf8_lossy(&asked));
    happens().await;
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    std::str::from_utf8(&line[9..]).unwrap().parse().unwrap()
}

#[tokio::test]
async fn write_fails_when_rights_end_before_body() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "otto", "operator", None).await);
    let (token, id) = create_token(&fleet, "otto").await;
    let revision = fleet.last_revision().await;
    let demoted = async || {
        let (status, _) = fleet.request(Method::PATCH, "/v1/principals/otto", &json!({"role": "viewer"})).await;
        assert_eq!(status, 200);
    };
    assert_eq!(status_after(&fleet, &token, demoted).await, 403);
    let (status, _) = fleet.request(Method::PATCH, "/v1/principals/otto", &json!({"role": "operator"})).await;
    assert_eq!(status, 200);
    let revoked = async || {
        let (status, _) = fleet.request(Method::DELETE, &format!("/v1/principals/otto/tokens/{id}"), &Value::Null).await;
        assert_eq!(status, 204);
    };
    assert_eq!(status_after(&fleet, &token, revoked).await, 401);
    assert_eq!(fleet.read("/v1/clusters").await["clusters"], json!([]));
    assert_eq!(fleet.last_revision().await, revision + 3, "the three changes of the principal and no more");
    let (token, _) = create_token(&fleet, "otto").await;
    assert_eq!(status_after(&fleet, &token, async || {}).await, 202, "else it is made");
}

#[tokio::test]
async fn list_is_cut_when_caller_is_revoked() {
    let fleet = Fleet::start().await;
    let about = "x".repeat(20_000);
    for part in 0..4 {
        let node = |n: usize| json!({"kind": "Node", "name": format!("n{part}-{n}"), "annotations": {"about": about}});
        fleet.apply((0..100).map(node).collect()).await;
    }
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let (token, id) = create_token(&fleet, "vera").await;
    let mut stream = connection(&fleet).await;
    let request = format!("GET /v1/nodes/detail HTTP/1.1\r\nhost: localhost\r\nx-auth-token: {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line[9..], b"200");
    let (status, _) = fleet.request(Method::DELETE, &format!("/v1/principals/vera/tokens/{id}"), &Value::Null).await;
    assert_eq!(status, 204);
    let mut taken = Vec::new();
    // The response may end with a reset or without one, but not like a complete list.
    let _cut = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut taken)).await.unwrap();
    assert!(!taken.ends_with(b"0\r\n\r\n") && taken.len() < 400 * 20_000, "{} bytes", taken.len());
}

/// Sends a request with a token on its own connection, and keeps that open. Returns the connection and the status.
async fn open_stream(fleet: &Fleet, path: &str, token: Option<&str>) -> (TlsStream<TcpStream>, u16) {
    let mut stream = connection(fleet).await;
    let token = token.map(|token| format!("x-auth-token: {token}\r\n")).unwrap_or_default();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{token}\r\n").as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    (stream, std::str::from_utf8(&line[9..]).unwrap().parse().unwrap())
}

#[tokio::test]
async fn x04_f13_good_token_is_served_when_strangers_fill_limits() {
    let fleet = Fleet::start().await;
    drop(create_principal(&fleet, "robot", "viewer", None).await);
    let (token, _) = create_token(&fleet, "robot").await;
    let (mut strangers, mut known) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let (stream, status) = open_stream(&fleet, "/v1/nodes", None).await;
        assert_eq!(status, 401);
        strangers.push(stream);
    }
    for n in 0..120 {
        let (stream, status) = open_stream(&fleet, "/v1/events", Some(&token)).await;
        assert_eq!(status, 200, "stream {n}");
        known.push(stream);
    }
    let (_request, status) = open_stream(&fleet, "/v1/nodes", Some(&token)).await;
    assert_eq!(status, 200);
    assert_eq!(open_stream(&fleet, "/v1/nodes", None).await.1, 401, "a stranger is answered too");
    let cut = fleet.refused_count("too_many_strangers_of_one_address");
    assert!(cut <= 1, "{cut} were cut, where each who shows a token gives the place of a stranger back");
    // Each stream is still open and receives the next change.
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    for stream in &mut known {
        let mut text = Vec::new();
        while !text.windows(6).any(|window| window == b"\"prod\"") {
            let read = tokio::time::timeout(TIMEOUT, stream.read_buf(&mut text)).await.unwrap().unwrap();
            assert_ne!(read, 0, "{}", String::from_utf8_lossy(&text));
        }
    }
}

#[tokio::test]
async fn join_tokens_end_when_maker_is_deleted() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let made = async |name: &str, bound: Value| {
        let (token, _) = create_token(&fleet, name).await;
        let headers = [("x-auth-token", &*token), JSON];
        let told = send(&mut stranger(&fleet), "POST", "/v1/join-tokens", &headers, &bound.to_string()).await;
        assert_eq!(told.status, 201, "{}", told.body);
        told.body["token"].as_str().unwrap().to_owned()
    };
    for (name, cluster) in [("ann", None), ("bea", None), ("cem", Some("own"))] {
        drop(create_principal(&fleet, name, "operator", cluster).await);
    }
    let web = json!({"nodegroup": "own/web"});
    let (deleted, demoted) = (made("ann", web.clone()).await, made("bea", web.clone()).await);
    let (kept, moved) = (made("cem", web).await, made("cem", json!({"node": "own-node"})).await);
    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/ann", &Value::Null).await;
    assert_eq!(status, 204);
    let (status, _) = fleet.request(Method::PATCH, "/v1/principals/bea", &json!({"role": "viewer"})).await;
    assert_eq!(status, 200);
    fleet.apply(json!([{"kind": "Node", "name": "own-node", "nodegroup": "far/web"}])).await;
    for (what, token, name) in [("deleted", &deleted, "h1"), ("demoted", &demoted, "h2"), ("moved", &moved, "own-node")] {
        let refused = fleet.enrol(token, name, &new_request().csr).await.unwrap_err();
        assert_eq!((refused.status, &*refused.kind), (403, "token.invalid"), "{what}: {}", refused.message);
    }
    fleet.enrol(&kept, "h3", &new_request().csr).await.unwrap();
}

/// Deletes the principals from a store, to make it look like one of a version that had none.
async fn remove_principals(data: &Path) {
    let store = RedbStore::open(&data.join("store.redb"), RedbOptions::default()).unwrap();
    let snapshot = store.snapshot().await.unwrap();
    let mut transaction = Transaction::new();
    for prefix in ["object/principal/", "name/principal/", "history/principal/"] {
        let found = snapshot.list(&ListQuery::prefix(prefix)).await.unwrap();
        transaction.ops.extend(found.entries.into_iter().map(|entry| Op::Delete { key: entry.key }));
    }
    assert!(!transaction.ops.is_empty());
    store.commit(transaction).await.unwrap();
}

#[tokio::test]
async fn old_fleet_stores_admin_with_first_principal() {
    let mut fleet = Fleet::start().await;
    let data = fleet.directory.path().join("data");
    fleet.controller.stop().await;
    remove_principals(&data).await;
    let options = Options { publishing: Publishing::Manual, ..Options::default() };
    fleet.controller = start(new_config(data), options).await.unwrap();
    assert_eq!(fleet.read("/v1/principals").await["principals"], json!([]));
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}])).await;
    drop(create_principal(&fleet, "vera", "viewer", None).await);
    let listed = fleet.read("/v1/principals").await;
    let named = |name: &str| listed["principals"].as_array().unwrap().iter().find(|one| one["name"] == name);
    let admin = named("admin").unwrap();
    assert!(named("vera").is_some(), "{listed}");
    assert_eq!((&admin["role"], admin["certificates"].as_array().unwrap().len()), (&json!("admin"), 1));
    fleet.apply(json!([{"kind": "Cluster", "name": "test"}])).await;
    // From then on it is a principal like any other.
    let mut ada = create_principal(&fleet, "ada", "admin", None).await;
    let serial = admin["certificates"][0]["serial"].as_str().unwrap();
    let told = send(&mut ada, "DELETE", &format!("/v1/certificates/{serial}"), &[], "").await;
    assert_eq!(told.status, 204, "{}", told.body);
    let (status, told) = fleet.request(Method::GET, "/v1/nodes", &Value::Null).await;
    assert_eq!((status, &told["error"]["type"]), (403, &json!("auth.revoked")), "{told}");
}
