//! The admin listener over TLS against attackers: pages of other sites, and strangers who hold connections open.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use hyper::{Method, Request};
use tokio::net::{TcpSocket, TcpStream};

use crate::fleet::{Fleet, TIMEOUT, error_response};

/// Sends the admin's request for `/v1/join-tokens` with these headers. Returns the status, and the type of the error or
/// an empty text.
async fn send_join_token_request(fleet: &Fleet, method: Method, headers: &[(&str, &str)]) -> (u16, String) {
    let request = Request::builder().method(method.clone()).uri("/v1/join-tokens");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let body = if method == Method::POST { Bytes::from_static(b"{}") } else { Bytes::new() };
    let response = fleet.admin_client().send(request.body(body).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    (status, if status < 400 { String::new() } else { error_response(&response).kind })
}

/// A browser names the site of a page in the headers of its requests. A write with the media type of a form is refused
/// too, because a browser sends such a request to other sites without a check.
#[tokio::test]
async fn w10_08_admin_listener_rejects_write_from_other_site() {
    let fleet = Fleet::start().await;
    let own_origin = format!("https://{}", fleet.controller.admin_address());
    let json = ("content-type", "application/json");
    let revision = fleet.last_revision().await;
    for headers in [
        [json, ("origin", "https://evil.example")],
        [json, ("origin", "null")],
        [json, ("sec-fetch-site", "cross-site")],
        [json, ("sec-fetch-site", "same-site")],
    ] {
        assert_eq!(
            send_join_token_request(&fleet, Method::POST, &headers).await,
            (403, "request.origin".to_owned()),
            "{headers:?}"
        );
        assert_eq!(
            send_join_token_request(&fleet, Method::GET, &headers).await.0,
            200,
            "{headers:?}: the page cannot see the response to a read"
        );
    }
    fleet.wait_until_audited("admin", "request.origin", 4).await;
    let audit = fleet.read("/v1/audit?refused=true&principal=admin").await;
    assert_eq!(audit["audit"][0]["refused"], "request.origin", "{audit}");
    for kind in ["text/plain", "Text/Plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
    {
        let result = send_join_token_request(&fleet, Method::POST, &[("content-type", kind)]).await;
        assert_eq!(result, (415, "request.media_type".to_owned()), "{kind}");
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");
    for headers in [vec![], vec![json], vec![json, ("origin", &own_origin), ("sec-fetch-site", "same-origin")]] {
        assert_eq!(send_join_token_request(&fleet, Method::POST, &headers).await.0, 201, "{headers:?}");
    }
}

#[tokio::test]
async fn s57_admin_listener_sends_no_cors_headers() {
    let fleet = Fleet::start().await;
    for method in [Method::GET, Method::OPTIONS] {
        let request = Request::builder().method(method.clone()).uri("/v1/nodes");
        let request = request.header("origin", "https://evil.example").header("access-control-request-method", "PUT");
        let response = fleet.admin_client().send(request.body(Bytes::new()).unwrap()).await.unwrap();
        let cors_header = response.headers().keys().find(|name| name.as_str().starts_with("access-control-"));
        assert_eq!(cors_header, None, "{method}");
    }
}

/// Opens a connection from a loopback address, and sends nothing.
async fn open_silent(source: [u8; 4], target: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::from(source), 0)).unwrap();
    tokio::time::timeout(TIMEOUT, socket.connect(target)).await.unwrap().unwrap()
}

/// The controller allows 100 unfinished handshakes of one address, and refuses more.
#[tokio::test]
async fn w10_09_admin_listener_serves_others_when_one_address_is_silent() {
    let fleet = Fleet::start().await;
    let mut connections = Vec::new();
    for _ in 0..1100 {
        connections.push(open_silent([127, 0, 0, 2], fleet.controller.admin_address()).await);
    }
    for _ in 0..30 {
        connections.push(open_silent([127, 0, 0, 2], fleet.controller.admin_address()).await);
        assert_eq!(send_join_token_request(&fleet, Method::GET, &[]).await.0, 200);
    }
    // The controller closes a connection that is silent for too long. So on a slow machine, later connections are
    // accepted in its place, and fewer are refused.
    assert!(fleet.refused_count("too_many_handshakes_of_one_address") >= 500);
    drop(connections);
}
