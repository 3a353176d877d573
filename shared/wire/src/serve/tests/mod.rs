//! Tests the accept loop with well-behaved and hostile peers, over in-memory pipes and a paused clock that advances
//! only when all tasks wait.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::Frame;
use stemma_core::object::ClusterId;
use stemma_core::shares::ShareHolder;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::*;
use crate::client::{Client, ClientError, ClientLimits, Target};
use crate::error::ErrorType;
use crate::net::Connector;
use crate::testing::{NODE_ID, PipeConnector, TestFleet, TestLeaf, clock, fleet, pipe};
use crate::tls::{client_config, server_config};

mod deadlines;

/// A server that runs until the test ends.
struct TestServer {
    connector: PipeConnector,
    rejections: Arc<RejectionCounter>,
    connections: OpenConnections,
    stop_sender: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

/// Starts a server on an in-memory pipe. With a TLS source, its connections use TLS.
fn start_server<H: Handler>(limits: ListenerLimits, tls: Option<TlsSource>, handler: H) -> TestServer {
    let (acceptor, pipe_connector) = pipe();
    let rejection_counter = Arc::new(RejectionCounter::default());
    let server = Server::new(acceptor, tls, limits, clock(), Arc::clone(&rejection_counter));
    let connections = server.connections();
    let (stop_sender, stop_receiver) = oneshot::channel();
    let task = tokio::spawn(server.run(handler, async move {
        let _ = stop_receiver.await;
    }));
    TestServer { connector: pipe_connector, rejections: rejection_counter, connections, stop_sender: Some(stop_sender), task }
}

/// Returns a response with the path and the body of the request. A body of more than `limit` bytes is refused. Some
/// paths act differently: `/panic` panics, `/park` waits ten minutes first, and `/ignore` leaves the body unread.
async fn echo_response(request: Request<RequestBody>, limit: u64) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/panic" => panic!("no such luck"),
        "/park" => tokio::time::sleep(Duration::from_mins(10)).await,
        "/ignore" => return Response::new(Full::from("ignored")),
        _ => {}
    }
    match request.into_body().collect(limit).await {
        Ok(body) => Response::new(Full::from([path.as_bytes(), b" ", &body].concat())),
        Err(error) => {
            let mut response = Response::new(Full::from(error.kind().fixed_body()));
            *response.status_mut() = hyper::StatusCode::from_u16(error.kind().status()).expect("a status");
            response
        }
    }
}

fn start_echo_server(limits: ListenerLimits) -> TestServer {
    start_server(limits, None, |_: &Arc<Peer>, request: Request<RequestBody>| echo_response(request, 100))
}

impl TestServer {
    async fn open_connection(&self) -> DuplexStream {
        self.connector.connect("", 0).await.expect("a pipe")
    }

    /// Writes bytes on a new connection and reads until the server closes the connection. Returns the text read and the
    /// elapsed time.
    async fn exchange(&self, bytes: &[u8]) -> (String, Duration) {
        let mut stream = self.open_connection().await;
        let start = Instant::now();
        let (mut reader, mut writer) = tokio::io::split(&mut stream);
        let (_, answer) = tokio::join!(writer.write_all(bytes), async {
            let mut answer = Vec::new();
            let _ = reader.read_to_end(&mut answer).await;
            answer
        });
        (String::from_utf8_lossy(&answer).into_owned(), start.elapsed())
    }

    /// Returns the number of rejections that the server has counted for this reason.
    fn refused_count(&self, reason: &str) -> u64 {
        self.rejections.counts().get(reason).copied().unwrap_or(0)
    }

    /// Checks that the server still answers a valid request.
    async fn check_still_serves(&self) {
        let (answer, _) = self.exchange(b"GET /ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n/ok "), "{answer}");
    }

    /// Stops the server and waits until its task ends. Returns the elapsed time.
    async fn stop(mut self) -> Duration {
        let start = Instant::now();
        drop(self.stop_sender.take());
        self.task.await.expect("the server ends well");
        start.elapsed()
    }
}

/// Returns the status code of an HTTP/1.1 response, as text.
fn response_status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or("")
}

#[tokio::test(start_paused = true)]
async fn server_answers_several_requests_on_one_connection() {
    let server = start_echo_server(ListenerLimits::default());
    let requests =
        b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let (answer, _) = server.exchange(requests).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
    assert!(answer.contains("\r\n\r\n/a hi") && answer.ends_with("\r\n\r\n/b "), "{answer}");
    assert!(server.rejections.counts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn server_keeps_bodies_apart_when_requests_are_split_anywhere() {
    let slow = |_: &Arc<Peer>, request: Request<RequestBody>| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let path = request.uri().path().to_owned();
        let declared_length = request.headers().get("content-length").map(|length| length.to_str().map(str::to_owned));
        let body = request.into_body().collect(100).await.expect("a small body");
        // If the body arrived in one read with its head, the server removes the header `content-length` before the
        // handler runs. If the header is present, its value must be the length of the body.
        let declared_length = declared_length.and_then(Result::ok).map(|length| length.parse::<usize>().expect("a length"));
        assert!(declared_length.is_none_or(|length| length == body.len()), "{path}");
        Response::new(Full::from([path.as_bytes(), b"=", &body, b";"].concat()))
    };
    let post = |name: &str| format!("POST /{name} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    let get = |name: &str| format!("GET /{name} HTTP/1.1\r\nHost: h\r\n\r\n");
    let requests = [post("a"), get("b"), post("c"), post("d"), get("e"), post("f")];
    let numbered: Vec<_> = requests.iter().enumerate().map(|(n, text)| text.replace("body", &format!("n{n:03}"))).collect();
    let all_bytes = numbered.concat();
    let request_lengths: Vec<usize> = numbered.iter().map(String::len).collect();
    let piece_sizes = [
        request_lengths.clone(),
        vec![all_bytes.len()],
        vec![1; all_bytes.len()],
        vec![7; all_bytes.len() / 7 + 1],
        vec![100; all_bytes.len()],
    ];
    for (pause_ms, sizes) in piece_sizes.iter().flat_map(|sizes| [(0, sizes), (10, sizes), (2000, sizes)]) {
        let server = start_server(ListenerLimits::default(), None, slow);
        let mut stream = server.open_connection().await;
        let mut unsent = all_bytes.as_bytes();
        for size in sizes {
            let (piece, remainder) = unsent.split_at((*size).min(unsent.len()));
            stream.write_all(piece).await.expect("the server reads");
            unsent = remainder;
            // Bytes that arrive every two seconds would exceed the header timeout.
            if sizes[0] > 50 {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        stream.shutdown().await.expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answers");
        let bodies: Vec<_> = answer.split("\r\n\r\n").skip(1).filter_map(|part| part.split(';').next()).collect();
        assert_eq!(bodies, ["/a=n000", "/b=", "/c=n002", "/d=n003", "/e=", "/f=n005"], "{sizes:?} {pause_ms}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn s47_server_closes_with_fixed_body_when_framing_is_ambiguous() {
    let server = start_echo_server(ListenerLimits::default());
    for (head, expected_status, reason) in [
        ("GET /secret HTTP/1.1\r\n\r\n", "400", "host_missing_or_doubled"),
        ("GET /secret HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400", "host_missing_or_doubled"),
        ("GET /secret HTTP/1.1\nHost: a\n\n", "400", "head_malformed"),
        (
            "POST /secret HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
            "400",
            "framing_ambiguous",
        ),
        ("POST /secret HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "400", "framing_ambiguous"),
        ("GET /secret HTTP/1.0\r\nHost: a\r\n\r\n", "400", "head_malformed"),
        ("GET http://secret/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "400", "target_malformed"),
        ("CONNECT secret:1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "400", "target_malformed"),
        ("OPTIONS * HTTP/1.1\r\nHost: secret\r\nConnection: close\r\n\r\n", "400", "target_malformed"),
    ] {
        let count_before = server.refused_count(reason);
        let (answer, _) = server.exchange(head.as_bytes()).await;
        assert_eq!(response_status(&answer), expected_status, "{head:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head:?}: {answer}");
        assert!(!answer.contains("secret"), "{head:?} is echoed: {answer}");
        assert!(answer.contains("\"error\""), "{head:?}: {answer}");
        assert_eq!(server.refused_count(reason), count_before + 1, "{head:?}: {:?}", server.rejections.counts());
        server.check_still_serves().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s47_server_closes_connection_after_chunked_body() {
    let server = start_echo_server(ListenerLimits::default());
    let (answer, _) = server
        .exchange(
            b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
        )
        .await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
    assert!(answer.contains("connection: close") && answer.ends_with("/a hi"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn s46_server_refuses_header_bombs() {
    let server = start_echo_server(ListenerLimits::default());
    let many_headers = (0..1000).map(|n| format!("x{n}: y\r\n")).collect::<Vec<_>>().concat();
    let long_header = format!("x: {}\r\n", "y".repeat(200_000));
    for headers in [many_headers, long_header] {
        let (answer, _) = server.exchange(format!("GET / HTTP/1.1\r\nHost: h\r\n{headers}\r\n").as_bytes()).await;
        assert_eq!(response_status(&answer), "431", "{answer}");
        assert!(answer.ends_with(ErrorType::RequestHeadTooLarge.fixed_body()), "no part of the request is echoed: {answer}");
    }
    assert_eq!(server.refused_count("head_too_large"), 2);
    server.check_still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn s43_server_limits_body_with_and_without_content_length() {
    let server = start_echo_server(ListenerLimits { max_body_bytes: 1000, ..ListenerLimits::default() });
    let with_length = |bytes: usize| {
        format!("POST /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n{}", "x".repeat(bytes))
    };
    let chunked = |bytes: usize| {
        let chunks: String = (0..bytes / 10).map(|_| "a\r\nxxxxxxxxxx\r\n").collect();
        format!("POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
    };
    for (request, expected_status) in [
        (with_length(100), "200"),
        (with_length(101), "413"),
        (with_length(1001), "413"),
        (with_length(500_000), "413"),
        (chunked(100), "200"),
        (chunked(110), "413"),
        (chunked(100_000), "413"),
    ] {
        let (answer, _) = server.exchange(request.as_bytes()).await;
        assert_eq!(response_status(&answer), expected_status, "{} bytes: {answer}", request.len());
        let is_fixed_body = answer.ends_with(ErrorType::RequestTooLarge.fixed_body());
        assert!(is_fixed_body == (expected_status == "413"), "no part of the request is echoed: {answer}");
        server.check_still_serves().await;
    }
    assert_eq!(server.refused_count("body_too_large"), 2, "bodies that the listener refused by their declared length");
    server.check_still_serves().await;
}

/// The first address opens three connections, its maximum, and a fourth one is refused. Three connections from other
/// addresses follow. The last one is refused, because the total would exceed five.
#[tokio::test(start_paused = true)]
async fn s45_server_refuses_connection_when_address_has_maximum() {
    let limits = ListenerLimits { max_connections: 5, max_connections_per_address: 3, ..ListenerLimits::default() };
    let server = start_echo_server(limits);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(server.open_connection().await);
    }
    tokio::task::yield_now().await;
    let (answer, duration) = server.exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(answer.is_empty() && duration < Duration::from_secs(1), "{answer}");
    assert_eq!(server.refused_count("too_many_connections_of_one_address"), 1);
    let mut other_connector = server.connector.clone();
    for octet in 2..=4_u8 {
        other_connector.client_address = ([192, 0, 2, octet], 1).into();
        streams.push(other_connector.connect("", 0).await.expect("a pipe"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.refused_count("too_many_connections"), 1);
    assert_eq!(server.connections.count(), 5);
    streams.clear();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.connections.count(), 0);
    server.check_still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn s45_server_limits_open_handshakes_per_address() {
    let test_fleet = TestFleet::new();
    let server =
        start_agents_server_with(&test_fleet, ListenerLimits { max_handshakes_per_address: 3, ..ListenerLimits::default() });
    let node = test_fleet.agents.issue(&TestLeaf::node());
    let client = || {
        let tls = client_config(&test_fleet.roots(), Some(fleet()), Some(node.identity()), clock()).expect("a config");
        Client::with_connector(server.connector.clone(), test_target(), Some(Arc::new(tls)), ClientLimits::default())
    };
    // Connections with a finished handshake do not count.
    let mut node_clients: Vec<_> = (0..5).map(|_| client()).collect();
    for node in &mut node_clients {
        node.send(get_request("/x")).await.expect("an answer");
    }
    let mut silent_streams = Vec::new();
    for _ in 0..3 {
        silent_streams.push(server.open_connection().await);
    }
    tokio::task::yield_now().await;
    assert!(client().send(get_request("/x")).await.is_err());
    assert_eq!(server.refused_count("too_many_handshakes_of_one_address"), 1);
    assert!(node_clients[0].send(get_request("/x")).await.is_ok(), "an open connection stays open");
    // The server closes the silent connections after the timeout, and new connections are accepted again.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!((server.refused_count("slow_handshake"), server.connections.count()), (3, 5));
    assert!(client().send(get_request("/x")).await.is_ok());
}

/// In an earlier version, a server without TLS counted new connections as handshakes until their tasks started. So it
/// closed connections that arrived quickly.
#[tokio::test(start_paused = true)]
async fn s45_plain_server_counts_no_pending_handshakes() {
    let server = start_echo_server(ListenerLimits { max_handshakes_per_address: 1, ..ListenerLimits::default() });
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(server.open_connection().await);
    }
    for stream in &mut streams {
        let request = b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert_eq!(response_status(&answer), "200", "{answer}");
    }
    assert!(server.rejections.counts().is_empty(), "{:?}", server.rejections.counts());
}

/// A stranger is a client without a certificate. The maximum is two per address: the third stranger replaces the first
/// one.
#[tokio::test(start_paused = true)]
async fn s45_server_limits_unauthenticated_connections_per_address() {
    let test_fleet = TestFleet::new();
    let server =
        start_agents_server_with(&test_fleet, ListenerLimits { max_unauthenticated_per_address: 2, ..ListenerLimits::default() });
    let node = test_fleet.agents.issue(&TestLeaf::node());
    let client = |identity: Option<crate::tls::ClientIdentity>| {
        let tls = client_config(&test_fleet.roots(), Some(fleet()), identity, clock()).expect("a config");
        Client::with_connector(server.connector.clone(), test_target(), Some(Arc::new(tls)), ClientLimits::default())
    };
    let mut strangers = [client(None), client(None), client(None)];
    for (number, stranger) in strangers.iter_mut().enumerate() {
        assert!(stranger.send(get_request("/x")).await.is_ok(), "stranger {number}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((server.refused_count("too_many_strangers_of_one_address"), server.connections.count()), (1, 2));
    let mut node = client(Some(node.identity()));
    assert!(node.send(get_request("/x")).await.is_ok(), "a node with a certificate does not count as a stranger");
    assert_eq!((server.refused_count("too_many_strangers_of_one_address"), server.connections.count()), (1, 3));
    strangers[1].close();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(strangers[0].send(get_request("/x")).await.is_ok(), "a connection after another one was closed");
    assert_eq!((server.refused_count("too_many_strangers_of_one_address"), server.connections.count()), (1, 3));
}

/// In an earlier version, a hundred idle clients without credentials prevented clients with a token from connecting
/// from the same address.
#[tokio::test(start_paused = true)]
async fn x04_f13_server_closes_oldest_unauthenticated_connection_when_address_is_full() {
    let test_fleet = TestFleet::new();
    let config = Arc::new(server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a config"));
    let source: TlsSource = Arc::new(move || Arc::clone(&config));
    let limits = ListenerLimits { max_unauthenticated_per_address: 2, ..ListenerLimits::default() };
    let server = start_server(limits, Some(source), |peer: &Arc<Peer>, request: Request<RequestBody>| {
        if request.uri().path() == "/token" {
            peer.mark_authenticated();
        }
        async move {
            if request.uri().path() == "/park" {
                tokio::time::sleep(Duration::from_hours(1)).await;
            }
            Response::new(Full::from("done"))
        }
    });
    let client = || {
        let tls = client_config(&test_fleet.roots(), Some(fleet()), None, clock()).expect("a config");
        Client::with_connector(server.connector.clone(), test_target(), Some(Arc::new(tls)), ClientLimits::default())
    };
    let counts = async || {
        // After this time, closed connections are no longer counted.
        tokio::time::sleep(Duration::from_secs(1)).await;
        (server.refused_count("too_many_strangers_of_one_address"), server.connections.count())
    };
    let mut token_clients: Vec<_> = (0..5).map(|_| client()).collect();
    for connection in &mut token_clients {
        assert!(connection.send(get_request("/token")).await.is_ok());
    }
    assert_eq!(counts().await, (0, 5), "a client with a token does not count as a stranger");
    let mut strangers = [client(), client(), client()];
    for connection in &mut strangers {
        assert!(connection.send(get_request("/x")).await.is_ok(), "no client is refused");
    }
    assert_eq!(counts().await, (1, 7));
    for connection in token_clients.iter_mut().chain(&mut strangers[1..]) {
        assert!(connection.send(get_request("/x")).await.is_ok());
    }
    assert_eq!(counts().await, (1, 7), "only the first stranger has lost its connection");
    assert!(strangers[0].send(get_request("/x")).await.is_ok(), "the first stranger replaces another one");
    assert_eq!(counts().await, (2, 7));
    let waiting_requests = [client(), client()].map(|mut connection| {
        tokio::spawn(async move { connection.send_with_timeout(get_request("/park"), Duration::from_hours(2)).await })
    });
    assert_eq!(counts().await, (4, 7));
    assert!(client().send(get_request("/x")).await.is_err(), "a connection with a request in progress is not closed");
    assert_eq!(counts().await, (5, 7));
    assert!(token_clients[0].send(get_request("/x")).await.is_ok());
    for connection in waiting_requests {
        assert!(connection.await.expect("no panic").is_ok());
    }
}

/// In an earlier version, a viewer could occupy three quarters of all connections from one address, and all connections
/// from two addresses.
#[tokio::test(start_paused = true)]
async fn x03_server_limits_connections_per_principal_and_reserves_admin_places() {
    let limits = ListenerLimits {
        max_connections: 8,
        max_connections_per_principal: Some(3),
        reserved_for_admins: 1,
        ..ListenerLimits::default()
    };
    let outcomes = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler_outcomes = Arc::clone(&outcomes);
    let server = start_server(limits, None, move |peer: &Arc<Peer>, request: Request<RequestBody>| {
        let (name, should_wait) = match request.uri().path().trim_start_matches('/').split_once('/') {
            Some((name, _)) => (name.to_owned(), true),
            None => (request.uri().path().trim_start_matches('/').to_owned(), false),
        };
        let outcome = peer.admit(&ShareHolder { is_fleet_admin: name == "root", name, cluster: None });
        handler_outcomes.lock().expect("no panic").push(outcome);
        async move {
            if should_wait {
                tokio::time::sleep(Duration::from_hours(1)).await;
            }
            Response::new(Full::from("done"))
        }
    });
    let client = || Client::with_connector(server.connector.clone(), test_target(), None, ClientLimits::default());
    let last_outcome = || outcomes.lock().expect("no panic").pop().expect("an outcome");
    let settle = || tokio::time::sleep(Duration::from_secs(1));
    let mut viewers = [client(), client(), client(), client()];
    for (viewer, expected) in
        viewers.iter_mut().zip([AdmitOutcome::Admitted, AdmitOutcome::Admitted, AdmitOutcome::Admitted, AdmitOutcome::Replaced])
    {
        assert!(viewer.send(get_request("/viewer")).await.is_ok());
        assert_eq!(last_outcome(), expected);
    }
    settle().await;
    assert_eq!(server.connections.count(), 3, "the first connection was closed for the fourth");
    let [_, second_viewer, third_viewer, fourth_viewer] = viewers;
    let waiting_requests = [second_viewer, third_viewer, fourth_viewer].map(|mut connection| {
        tokio::spawn(async move { connection.send_with_timeout(get_request("/viewer/park"), Duration::from_hours(2)).await })
    });
    settle().await;
    let mut extra_client = client();
    assert!(extra_client.send(get_request("/viewer")).await.is_ok());
    assert_eq!(last_outcome(), AdmitOutcome::Full, "a connection with a request in progress is not closed");
    let mut other_clients: Vec<_> = (0..3).map(|_| client()).collect();
    for other_client in &mut other_clients {
        assert!(other_client.send(get_request("/other")).await.is_ok());
        assert_eq!(last_outcome(), AdmitOutcome::Admitted);
    }
    let mut last_client = client();
    assert!(last_client.send(get_request("/third")).await.is_ok());
    assert_eq!(last_outcome(), AdmitOutcome::Full, "the last connection is reserved for admins");
    assert!(last_client.send(get_request("/root")).await.is_ok());
    assert_eq!(last_outcome(), AdmitOutcome::Admitted);
    drop((extra_client, other_clients, last_client));
    for connection in waiting_requests {
        assert!(connection.await.expect("no panic").is_ok());
    }
}

/// In an earlier version, an admin of one cluster could create principals there, and each principal could occupy a
/// quarter of all connections.
///
/// Each path is the name of a principal. The names with `bound` are bound to one cluster, whose principals may have
/// four connections together, and two each.
#[tokio::test(start_paused = true)]
async fn x03_server_limits_cluster_to_twice_one_principals_connections() {
    let limits = ListenerLimits { max_connections: 16, max_connections_per_principal: Some(2), ..ListenerLimits::default() };
    let outcomes = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler_outcomes = Arc::clone(&outcomes);
    let server = start_server(limits, None, move |peer: &Arc<Peer>, request: Request<RequestBody>| {
        let name = request.uri().path().trim_start_matches('/').to_owned();
        let cluster_id = name.starts_with("bound").then(|| ClusterId(uuid::Uuid::from_u128(1)));
        let outcome = peer.admit(&ShareHolder { is_fleet_admin: false, name, cluster: cluster_id });
        handler_outcomes.lock().expect("no panic").push(outcome);
        async move { Response::new(Full::from("done")) }
    });
    let client = || Client::with_connector(server.connector.clone(), test_target(), None, ClientLimits::default());
    let last_outcome = || outcomes.lock().expect("no panic").pop().expect("an outcome");
    let mut connections = Vec::new();
    for (path, expected) in [
        ("/bound-a", AdmitOutcome::Admitted),
        ("/bound-a", AdmitOutcome::Admitted),
        ("/bound-b", AdmitOutcome::Admitted),
        ("/bound-b", AdmitOutcome::Admitted),
        ("/bound-c", AdmitOutcome::Full),
        ("/bound-a", AdmitOutcome::Replaced),
        ("/bound-c", AdmitOutcome::Full),
        ("/other", AdmitOutcome::Admitted),
        ("/other", AdmitOutcome::Admitted),
    ] {
        let mut connection = client();
        assert!(connection.send(get_request(path)).await.is_ok());
        assert_eq!(last_outcome(), expected, "{path}");
        connections.push(connection);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Index 1 is the second connection of `bound-a`. The first one was replaced before.
    drop(connections.remove(1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut last_connection = client();
    assert!(last_connection.send(get_request("/bound-c")).await.is_ok());
    assert_eq!(last_outcome(), AdmitOutcome::Admitted, "a closed connection has made room");
}

#[tokio::test(start_paused = true)]
async fn s49_server_refuses_compressed_body() {
    let server = start_echo_server(ListenerLimits::default());
    // The server refuses each `Content-Encoding`, also `identity`, which changes no byte.
    for encoding in ["gzip", "deflate", "br", "identity"] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Encoding: {encoding}\r\nContent-Length: 2\r\n\r\nhi"
        );
        let (answer, _) = server.exchange(request.as_bytes()).await;
        assert_eq!(response_status(&answer), "415", "{encoding}");
        assert!(answer.ends_with(ErrorType::RequestEncoding.fixed_body()), "{answer}");
        server.check_still_serves().await;
    }
    assert_eq!(server.refused_count("body_compressed"), 4);
    server.check_still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn s53_server_keeps_running_when_handler_panics() {
    let server = start_echo_server(ListenerLimits::default());
    let request = b"GET /panic HTTP/1.1\r\nHost: h\r\n\r\nGET /ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let (answer, _) = server.exchange(request).await;
    assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("server.internal"), "{answer}");
    assert!(!answer.contains("no such luck"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n/ok "), "the connection continues: {answer}");
    assert_eq!(server.refused_count("handler_panicked"), 1);
    server.check_still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn server_closes_idle_and_drains_busy_connections_on_stop() {
    let server = start_echo_server(ListenerLimits::default());
    // An idle connection is closed at once.
    let mut idle = server.open_connection().await;
    idle.write_all(b"GET /ok HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let duration = server.stop().await;
    assert!(duration < Duration::from_secs(1), "{duration:?}");
    let mut answer_on_idle = String::new();
    idle.read_to_string(&mut answer_on_idle).await.expect("closed");

    // A request in progress gets its response before the server stops.
    let slow = |_: &Arc<Peer>, _: Request<RequestBody>| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Response::new(Full::from("done"))
    };
    let server = start_server(ListenerLimits::default(), None, slow);
    let mut stream = server.open_connection().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let duration = server.stop().await;
    assert!((4..6).contains(&duration.as_secs()), "{duration:?}");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.contains("connection: close") && answer.ends_with("done"), "{answer}");

    // A response in progress is written to its end.
    let long = |_: &Arc<Peer>, _: Request<RequestBody>| async { Response::new(Full::from(vec![b'x'; 200_000])) };
    let server = start_server(ListenerLimits::default(), None, long);
    let mut stream = server.open_connection().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (_, answer) = tokio::join!(server.stop(), async {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("an answer");
        answer
    });
    assert!(answer.len() > 200_000, "a response in progress is written to its end: {} bytes", answer.len());

    // A request that takes longer than the shutdown timeout of 10 seconds gets no response.
    let server = start_echo_server(ListenerLimits::default());
    let mut stream = server.open_connection().await;
    stream.write_all(b"GET /park HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let duration = server.stop().await;
    assert!((10..11).contains(&duration.as_secs()), "a request that does not end is cut off: {duration:?}");
}

/// Starts a TLS listener for agents. Its handler responds with the identity of the caller and the number of earlier
/// requests.
fn start_agents_server(test_fleet: &TestFleet) -> TestServer {
    start_agents_server_with(test_fleet, ListenerLimits::default())
}

/// Same as [`start_agents_server`], with these limits. A request for `/park` gets its response after an hour.
fn start_agents_server_with(test_fleet: &TestFleet, limits: ListenerLimits) -> TestServer {
    let config = Arc::new(server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a config"));
    let source: TlsSource = Arc::new(move || Arc::clone(&config));
    let request_count = AtomicUsize::new(0);
    start_server(limits, Some(source), move |peer: &Arc<Peer>, request: Request<RequestBody>| {
        let caller = peer.identity.as_ref().map_or_else(|| "nobody".to_owned(), |identity| identity.class.to_string());
        let count = request_count.fetch_add(1, Ordering::Relaxed);
        async move {
            if request.uri().path() == "/park" {
                tokio::time::sleep(Duration::from_hours(1)).await;
            }
            Response::new(Full::from(format!("{caller} {count}")))
        }
    })
}

fn test_target() -> Target {
    "https://ctl.example:8443".parse().expect("an address")
}

fn get_request(path: &str) -> Request<Bytes> {
    Request::get(path).body(Bytes::new()).expect("a request")
}

#[tokio::test(start_paused = true)]
async fn client_exchanges_request_with_server() {
    let test_fleet = TestFleet::new();
    let server = start_agents_server(&test_fleet);
    let node = test_fleet.agents.issue(&TestLeaf::node());
    let tls = client_config(&test_fleet.roots(), Some(fleet()), Some(node.identity()), clock()).expect("a config");
    let mut client =
        Client::with_connector(server.connector.clone(), test_target(), Some(Arc::new(tls)), ClientLimits::default());
    for count in 0..2 {
        let answer = client.send(get_request("/x")).await.expect("an answer");
        assert_eq!(answer.into_body(), format!("node/{NODE_ID} {count}"));
        assert_eq!(server.connections.count(), 1, "the connection stays open");
    }
    // The connection is idle for longer than the server allows. The next request must open another one without an
    // error.
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(server.connections.count(), 0);
    assert_eq!(client.send(get_request("/x")).await.expect("an answer").into_body(), format!("node/{NODE_ID} 2"));
}

#[tokio::test(start_paused = true)]
async fn server_echoes_body_of_any_size() {
    let test_fleet = TestFleet::new();
    let config = Arc::new(server_config(&test_fleet.agents_listener(), test_fleet.server_key(), clock()).expect("a config"));
    let source: TlsSource = Arc::new(move || Arc::clone(&config));
    let server = start_server(ListenerLimits::default(), Some(source), |_: &Arc<Peer>, request: Request<RequestBody>| async {
        Response::new(Full::from(request.into_body().collect(1 << 20).await.expect("a body")))
    });
    let tls = client_config(&test_fleet.roots(), Some(fleet()), None, clock()).expect("a config");
    let mut client =
        Client::with_connector(server.connector.clone(), test_target(), Some(Arc::new(tls)), ClientLimits::default());
    for size in [0, 1, 100, 4000, 8000, 8192, 9000, 16_384, 70_000, 1 << 20, 3] {
        // The sequence of bytes repeats only after 64 KiB, so a lost or exchanged piece changes the body.
        let body: Bytes = (0..size).map(|n: u32| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        let request = Request::post("/x").body(body.clone()).expect("a request");
        assert!(client.send(request).await.expect("an answer").into_body() == body, "{size} bytes");
    }
    assert_eq!(server.connections.count(), 1, "all on one connection");
}

#[tokio::test(start_paused = true)]
async fn s13_close_where_ends_waiting_request_when_serial_matches() {
    let test_fleet = TestFleet::new();
    let server = start_agents_server(&test_fleet);
    let node = test_fleet.agents.issue(&TestLeaf::node());
    let tls = client_config(&test_fleet.roots(), Some(fleet()), Some(node.identity()), clock()).expect("a config");
    let mut client =
        Client::with_connector(server.connector.clone(), test_target(), Some(Arc::new(tls)), ClientLimits::default());
    let connections = server.connections.clone();
    let waiting_request =
        tokio::spawn(async move { client.send_with_timeout(get_request("/park"), Duration::from_hours(2)).await });
    tokio::time::sleep(Duration::from_secs(30)).await;
    let has_serial =
        |serial: &'static [u8]| move |peer: &Peer| peer.identity.as_ref().is_some_and(|identity| *identity.serial == *serial);
    // The certificates of the test fleet have the serial number 5a010203.
    assert_eq!(connections.close_where(has_serial(&[1])), 0);
    let start = Instant::now();
    assert_eq!(connections.close_where(has_serial(&[0x5a, 1, 2, 3])), 1);
    let result = waiting_request.await.expect("no panic");
    assert!(matches!(result, Err(ClientError::Broken { .. })), "{result:?}");
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn server_counts_failed_handshakes_by_reason() {
    let test_fleet = TestFleet::new();
    let server = start_agents_server(&test_fleet);
    let stranger = TestFleet::new().agents.issue(&TestLeaf::node());
    let tls = client_config(&test_fleet.roots(), Some(fleet()), Some(stranger.identity()), clock()).expect("a config");
    let mut client =
        Client::with_connector(server.connector.clone(), test_target(), Some(Arc::new(tls)), ClientLimits::default());
    assert!(client.send(get_request("/x")).await.is_err());
    assert_eq!(server.refused_count("tls_unknown_issuer"), 1);
    let (_, duration) = server.exchange(b"").await;
    assert!((5.0..6.1).contains(&duration.as_secs_f64()), "a handshake that does not begin: {duration:?}");
    assert_eq!(server.refused_count("slow_handshake"), 1);
    let (answer, _) = server.exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(!answer.contains("HTTP"), "plain HTTP on a TLS port");
    assert_eq!(server.refused_count("tls_failed"), 1);
}

#[tokio::test(start_paused = true)]
async fn client_reports_cause_of_failure() {
    let test_fleet = TestFleet::new();
    let other_fleet = TestFleet::new();
    let server = start_agents_server(&test_fleet);
    let tls = Arc::new(client_config(&other_fleet.roots(), None, None, clock()).expect("a config"));
    let mut client = Client::with_connector(server.connector.clone(), test_target(), Some(tls), ClientLimits::default());
    let error = client.send(get_request("/x")).await.expect_err("another root");
    assert!(matches!(error, ClientError::Untrusted { .. }), "{error:?}");
    assert_eq!(error.to_string(), "https://ctl.example:8443 is not trusted");

    let tls = Arc::new(client_config(&test_fleet.roots(), None, None, clock()).expect("a config"));
    let limits = ClientLimits { max_body_bytes: 3, ..ClientLimits::default() };
    let mut client = Client::with_connector(server.connector.clone(), test_target(), Some(tls), limits);
    let error = client.send(get_request("/x")).await.expect_err("a larger answer");
    assert!(matches!(error, ClientError::TooLarge { limit: 3 }), "{error:?}");
    let error = client.send(get_request("/park")).await.expect_err("no answer");
    assert_eq!(error.to_string(), "no answer within 30 s");

    let (acceptor, connector) = pipe();
    let target: Target = "http://localhost:1".parse().expect("an address");
    drop(acceptor);
    let mut client = Client::with_connector(connector, target, None, ClientLimits::default());
    let error = client.send(get_request("/x")).await.expect_err("no listener");
    assert_eq!(error.outcome(), crate::client::RequestOutcome::NotSent);
}

/// The client passes the body of a success on in pieces, and returns an error response whole. If the receiver of the
/// pieces fails, the request fails.
#[tokio::test(start_paused = true)]
async fn client_streams_body_in_pieces() {
    let handler = |_: &Arc<Peer>, request: Request<RequestBody>| async move {
        let mut response = Response::new(Full::from(vec![7; 200_000]));
        if request.uri().path() == "/absent" {
            *response.status_mut() = hyper::StatusCode::NOT_FOUND;
            *response.body_mut() = Full::from("gone");
        }
        response
    };
    let server = start_server(ListenerLimits::default(), None, handler);
    let target: Target = "http://127.0.0.1:1".parse().expect("an address");
    let mut client = Client::with_connector(server.connector.clone(), target, None, ClientLimits::default());
    let (mut pieces, mut bytes) = (0, 0);
    let answer = client
        .stream(get_request("/blob"), async |piece| {
            (pieces, bytes) = (pieces + 1, bytes + piece.len());
            Ok(())
        })
        .await
        .expect("an answer");
    assert!(answer.status().is_success() && bytes == 200_000 && pieces > 1, "{pieces} pieces, {bytes} bytes");
    let absent_answer =
        client.stream(get_request("/absent"), async |_| panic!("an error response is not streamed")).await.expect("an answer");
    assert_eq!((absent_answer.status().as_u16(), &absent_answer.body()[..]), (404, &b"gone"[..]));
    let refused_result = client.stream(get_request("/blob"), async |_| Err(std::io::ErrorKind::StorageFull.into())).await;
    assert!(matches!(refused_result, Err(ClientError::NotTaken { .. })));
}
