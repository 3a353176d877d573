//! The admin listener over TLS, before those who mean harm: pages of other sites, and strangers who hold connections.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use hyper::{Method, Request};
use tokio::net::{TcpSocket, TcpStream};

use crate::fleet::{Fleet, PATIENCE, refused};

/// A request of an operator with these headers, and what it answers.
async fn ask(fleet: &Fleet, method: Method, headers: &[(&str, &str)]) -> (u16, String) {
    let request = Request::builder().method(method.clone()).uri("/v1/join-tokens");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let body = if method == Method::POST { Bytes::from_static(b"{}") } else { Bytes::new() };
    let answer = fleet.operator().send(request.body(body).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    (status, if status < 400 { String::new() } else { refused(&answer).kind })
}

#[tokio::test]
async fn w10_08_a_write_from_a_page_of_another_site_is_refused() {
    let fleet = Fleet::start().await;
    let own = format!("https://{}", fleet.controller.admin_address());
    let json = ("content-type", "application/json");
    let revision = fleet.revision().await;
    for headers in [
        [json, ("origin", "https://evil.example")],
        [json, ("origin", "null")],
        [json, ("sec-fetch-site", "cross-site")],
        [json, ("sec-fetch-site", "same-site")],
    ] {
        assert_eq!(ask(&fleet, Method::POST, &headers).await, (403, "request.origin".to_owned()), "{headers:?}");
        assert_eq!(ask(&fleet, Method::GET, &headers).await.0, 200, "{headers:?}: a read tells its page nothing");
    }
    fleet.audited("admin", "request.origin", 4).await;
    let refused = fleet.read("/v1/audit?refused=true&principal=admin").await;
    assert_eq!(refused["audit"][0]["refused"], "request.origin", "{refused}");
    for kind in [
        "text/plain",
        "Text/Plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ] {
        let got = ask(&fleet, Method::POST, &[("content-type", kind)]).await;
        assert_eq!(got, (415, "request.media_type".to_owned()), "{kind}");
    }
    assert_eq!(fleet.revision().await, revision, "nothing is written");
    for headers in [vec![], vec![json], vec![json, ("origin", &own), ("sec-fetch-site", "same-origin")]] {
        assert_eq!(ask(&fleet, Method::POST, &headers).await.0, 201, "{headers:?}");
    }
}

#[tokio::test]
async fn s57_no_page_of_another_site_is_let_read_an_answer() {
    let fleet = Fleet::start().await;
    for method in [Method::GET, Method::OPTIONS] {
        let request = Request::builder().method(method.clone()).uri("/v1/nodes");
        let request = request.header("origin", "https://evil.example").header("access-control-request-method", "PUT");
        let answer = fleet.operator().send(request.body(Bytes::new()).unwrap()).await.unwrap();
        let allows = answer.headers().keys().find(|name| name.as_str().starts_with("access-control-"));
        assert_eq!(allows, None, "{method}");
    }
}

/// A connection from an address of this machine that says nothing.
async fn silent(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::from(from), 0)).unwrap();
    tokio::time::timeout(PATIENCE, socket.connect(to)).await.unwrap().unwrap()
}

#[tokio::test]
async fn w10_09_silent_connections_of_one_address_lock_nobody_else_out() {
    let fleet = Fleet::start().await;
    let mut held = Vec::new();
    for _ in 0..1100 {
        held.push(silent([127, 0, 0, 2], fleet.controller.admin_address()).await);
    }
    for _ in 0..30 {
        held.push(silent([127, 0, 0, 2], fleet.controller.admin_address()).await);
        assert_eq!(ask(&fleet, Method::GET, &[]).await.0, 200);
    }
    // A place that was held for long enough is free again, so on a busy machine more of them have had one.
    assert!(fleet.rejected("too_many_handshakes_of_one_address") >= 500);
    drop(held);
}
