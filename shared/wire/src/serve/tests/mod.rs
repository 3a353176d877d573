//! The accept loop under good and bad peers, over pipes in memory and a clock that runs only when all wait.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::Frame;
use stemma_core::object::ClusterId;
use stemma_core::shares::Holder;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::*;
use crate::client::{Client, ClientError, ClientLimits, Target};
use crate::error::ErrorType;
use crate::net::Connect;
use crate::testing::{Fleeting, Leaf, NODE, PipeConnect, clock, fleet, pipe};
use crate::tls::{client_config, server_config};

mod deadlines;

/// A server that runs until the test ends.
struct Running {
    connect: PipeConnect,
    rejected: Arc<Rejected>,
    connections: Connections,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

fn serve<H: Handler>(limits: Limits, tls: Option<TlsSource>, handler: H) -> Running {
    let (listen, connect) = pipe();
    let rejected = Arc::new(Rejected::default());
    let server = Server::new(listen, tls, limits, clock(), Arc::clone(&rejected));
    let connections = server.connections();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(server.run(handler, async move {
        let _ = stopped.await;
    }));
    Running { connect, rejected, connections, stop: Some(stop), task }
}

/// A handler that answers with the request's path and body.
async fn echo(request: Request<RequestBody>, limit: u64) -> Response<Full<Bytes>> {
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

fn echoing(limits: Limits) -> Running {
    serve(limits, None, |_: &Arc<Peer>, request: Request<RequestBody>| echo(request, 100))
}

impl Running {
    async fn open(&self) -> DuplexStream {
        self.connect.connect("", 0).await.expect("a pipe")
    }

    /// Writes bytes on a new connection, reads to its end, and gives the text and the time it took.
    async fn exchange(&self, bytes: &[u8]) -> (String, Duration) {
        let mut stream = self.open().await;
        let began = Instant::now();
        let (mut reader, mut writer) = tokio::io::split(&mut stream);
        let (_, answer) = tokio::join!(writer.write_all(bytes), async {
            let mut answer = Vec::new();
            let _ = reader.read_to_end(&mut answer).await;
            answer
        });
        (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
    }

    /// How many were refused for a reason so far.
    fn refused(&self, reason: &str) -> u64 {
        self.rejected.counts().get(reason).copied().unwrap_or(0)
    }

    /// A request that must be answered well: that the server still serves.
    async fn still_serves(&self) {
        let (answer, _) = self.exchange(b"GET /ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n/ok "), "{answer}");
    }

    async fn stop(mut self) -> Duration {
        let began = Instant::now();
        drop(self.stop.take());
        self.task.await.expect("the server ends well");
        began.elapsed()
    }
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or("")
}

#[tokio::test(start_paused = true)]
async fn requests_follow_each_other_on_one_connection() {
    let server = echoing(Limits::default());
    let two = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let (answer, _) = server.exchange(two).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
    assert!(answer.contains("\r\n\r\n/a hi") && answer.ends_with("\r\n\r\n/b "), "{answer}");
    assert!(server.rejected.counts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_body_is_never_another_requests_however_they_are_cut() {
    let slow = |_: &Arc<Peer>, request: Request<RequestBody>| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let path = request.uri().path().to_owned();
        let said = request.headers().get("content-length").map(|length| length.to_str().map(str::to_owned));
        let body = request.into_body().collect(100).await.expect("a small body");
        // A body that came whole knows its length by itself, and its header is gone; one that is there is true.
        let said = said.and_then(Result::ok).map(|said| said.parse::<usize>().expect("a length"));
        assert!(said.is_none_or(|said| said == body.len()), "{path}");
        Response::new(Full::from([path.as_bytes(), b"=", &body, b";"].concat()))
    };
    let post = |name: &str| format!("POST /{name} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    let get = |name: &str| format!("GET /{name} HTTP/1.1\r\nHost: h\r\n\r\n");
    let requests = [post("a"), get("b"), post("c"), post("d"), get("e"), post("f")];
    let numbered: Vec<_> =
        requests.iter().enumerate().map(|(n, text)| text.replace("body", &format!("n{n:03}"))).collect();
    let all = numbered.concat();
    let whole_requests: Vec<usize> = numbered.iter().map(String::len).collect();
    let cuts =
        [whole_requests.clone(), vec![all.len()], vec![1; all.len()], vec![7; all.len() / 7 + 1], vec![100; all.len()]];
    for (pause_ms, sizes) in cuts.iter().flat_map(|sizes| [(0, sizes), (10, sizes), (2000, sizes)]) {
        let server = serve(Limits::default(), None, slow);
        let mut stream = server.open().await;
        let mut rest = all.as_bytes();
        for size in sizes {
            let (now, later) = rest.split_at((*size).min(rest.len()));
            stream.write_all(now).await.expect("the server reads");
            rest = later;
            // Bytes that drip every two seconds would pass the header's time.
            if sizes[0] > 50 {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        stream.shutdown().await.expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answers");
        let bodies: Vec<_> = answer.split("\r\n\r\n").skip(1).filter_map(|part| part.split(';').next()).collect();
        assert_eq!(
            bodies,
            ["/a=n000", "/b=", "/c=n002", "/d=n003", "/e=", "/f=n005"],
            "{sizes:?} {pause_ms}: {answer}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn s47_the_smuggling_set_is_answered_with_fixed_text_and_closed() {
    let server = echoing(Limits::default());
    for (head, status_wanted, reason) in [
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
        let before = server.refused(reason);
        let (answer, _) = server.exchange(head.as_bytes()).await;
        assert_eq!(status(&answer), status_wanted, "{head:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head:?}: {answer}");
        assert!(!answer.contains("secret"), "{head:?} is echoed: {answer}");
        assert!(answer.contains("\"error\""), "{head:?}: {answer}");
        assert_eq!(server.refused(reason), before + 1, "{head:?}: {:?}", server.rejected.counts());
        server.still_serves().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s47_behind_a_chunked_body_no_second_request_is_read() {
    let server = echoing(Limits::default());
    let (answer, _) = server
        .exchange(
            b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
        )
        .await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
    assert!(answer.contains("connection: close") && answer.ends_with("/a hi"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn s46_header_bombs_are_refused() {
    let server = echoing(Limits::default());
    let many = (0..1000).map(|n| format!("x{n}: y\r\n")).collect::<Vec<_>>().concat();
    let long = format!("x: {}\r\n", "y".repeat(200_000));
    for bomb in [many, long] {
        let (answer, _) = server.exchange(format!("GET / HTTP/1.1\r\nHost: h\r\n{bomb}\r\n").as_bytes()).await;
        assert_eq!(status(&answer), "431", "{answer}");
        assert!(answer.ends_with(ErrorType::RequestHeadTooLarge.fixed_body()), "nothing of it is echoed: {answer}");
    }
    assert_eq!(server.refused("head_too_large"), 2);
    server.still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn s43_bodies_are_measured_with_and_without_a_length() {
    let server = echoing(Limits { body_bytes: 1000, ..Limits::default() });
    let with_length = |bytes: usize| {
        format!(
            "POST /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n{}",
            "x".repeat(bytes)
        )
    };
    let chunked = |bytes: usize| {
        let chunks: String = (0..bytes / 10).map(|_| "a\r\nxxxxxxxxxx\r\n").collect();
        format!("POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
    };
    for (request, wanted) in [
        (with_length(100), "200"),
        (with_length(101), "413"),
        (with_length(1001), "413"),
        (with_length(500_000), "413"),
        (chunked(100), "200"),
        (chunked(110), "413"),
        (chunked(100_000), "413"),
    ] {
        let (answer, _) = server.exchange(request.as_bytes()).await;
        assert_eq!(status(&answer), wanted, "{} bytes: {answer}", request.len());
        let fixed = answer.ends_with(ErrorType::RequestTooLarge.fixed_body());
        assert!(fixed == (wanted == "413"), "nothing of it is echoed: {answer}");
        server.still_serves().await;
    }
    assert_eq!(server.refused("body_too_large"), 2, "what the listener itself refused by its length");
    server.still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn s45_one_address_has_its_share_and_no_more() {
    let limits = Limits { connections: 5, connections_of_one_address: 3, ..Limits::default() };
    let server = echoing(limits);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(server.open().await);
    }
    tokio::task::yield_now().await;
    let (answer, took) = server.exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(answer.is_empty() && took < Duration::from_secs(1), "{answer}");
    assert_eq!(server.refused("too_many_connections_of_one_address"), 1);
    let mut elsewhere = server.connect.clone();
    for last in 2..=4_u8 {
        elsewhere.from = ([192, 0, 2, last], 1).into();
        held.push(elsewhere.connect("", 0).await.expect("a pipe"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.refused("too_many_connections"), 1);
    assert_eq!(server.connections.count(), 5);
    held.clear();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.connections.count(), 0);
    server.still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn s45_who_says_nothing_holds_less_than_who_has_said_who_it_is() {
    let of = Fleeting::new();
    let server = agents_server_with(&of, Limits { handshakes_of_one_address: 3, ..Limits::default() });
    let node = of.agents.issue(&Leaf::node());
    let client = || {
        let tls = client_config(&of.roots(), Some(fleet()), Some(node.identity()), clock()).expect("a config");
        Client::over(server.connect.clone(), target(), Some(Arc::new(tls)), ClientLimits::default())
    };
    // Those who have finished theirs do not count.
    let mut nodes: Vec<_> = (0..5).map(|_| client()).collect();
    for node in &mut nodes {
        node.send(get("/x")).await.expect("an answer");
    }
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(server.open().await);
    }
    tokio::task::yield_now().await;
    assert!(client().send(get("/x")).await.is_err());
    assert_eq!(server.refused("too_many_handshakes_of_one_address"), 1);
    assert!(nodes[0].send(get("/x")).await.is_ok(), "who is here already is not touched");
    // They are cut after their time, and their places are free.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!((server.refused("slow_handshake"), server.connections.count()), (3, 5));
    assert!(client().send(get("/x")).await.is_ok());
}

/// Connections that come faster than their tasks begin were counted as handshakes, and cut.
#[tokio::test(start_paused = true)]
async fn s45_where_there_is_no_handshake_nobody_is_cut_for_an_unfinished_one() {
    let server = echoing(Limits { handshakes_of_one_address: 1, ..Limits::default() });
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(server.open().await);
    }
    for stream in &mut streams {
        let ask = b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        stream.write_all(ask).await.expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert_eq!(status(&answer), "200", "{answer}");
    }
    assert!(server.rejected.counts().is_empty(), "{:?}", server.rejected.counts());
}

#[tokio::test(start_paused = true)]
async fn s45_strangers_hold_less_than_nodes() {
    let of = Fleeting::new();
    let server = agents_server_with(&of, Limits { strangers_of_one_address: 2, ..Limits::default() });
    let node = of.agents.issue(&Leaf::node());
    let client = |own: Option<crate::tls::ClientIdentity>| {
        let tls = client_config(&of.roots(), Some(fleet()), own, clock()).expect("a config");
        Client::over(server.connect.clone(), target(), Some(Arc::new(tls)), ClientLimits::default())
    };
    let mut strangers = [client(None), client(None), client(None)];
    for (number, stranger) in strangers.iter_mut().enumerate() {
        assert!(stranger.send(get("/x")).await.is_ok(), "stranger {number}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((server.refused("too_many_strangers_of_one_address"), server.connections.count()), (1, 2));
    let mut node = client(Some(node.identity()));
    assert!(node.send(get("/x")).await.is_ok(), "a node is none of them");
    assert_eq!((server.refused("too_many_strangers_of_one_address"), server.connections.count()), (1, 3));
    strangers[1].close();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(strangers[0].send(get("/x")).await.is_ok(), "a place that was given back");
    assert_eq!((server.refused("too_many_strangers_of_one_address"), server.connections.count()), (1, 3));
}

/// A hundred strangers who sat there locked every token out of their address.
#[tokio::test(start_paused = true)]
async fn x04_f13_the_stranger_that_is_there_for_the_longest_makes_room_and_who_showed_a_token_is_none() {
    let of = Fleeting::new();
    let config = Arc::new(server_config(&of.agents_listener(), of.server_key(), clock()).expect("a config"));
    let source: TlsSource = Arc::new(move || Arc::clone(&config));
    let limits = Limits { strangers_of_one_address: 2, ..Limits::default() };
    let server = serve(limits, Some(source), |peer: &Arc<Peer>, request: Request<RequestBody>| {
        if request.uri().path() == "/token" {
            peer.vouch();
        }
        async move {
            if request.uri().path() == "/park" {
                tokio::time::sleep(Duration::from_hours(1)).await;
            }
            Response::new(Full::from("done"))
        }
    });
    let client = || {
        let tls = client_config(&of.roots(), Some(fleet()), None, clock()).expect("a config");
        Client::over(server.connect.clone(), target(), Some(Arc::new(tls)), ClientLimits::default())
    };
    let state = async || {
        // Those that were cut are gone.
        tokio::time::sleep(Duration::from_secs(1)).await;
        (server.refused("too_many_strangers_of_one_address"), server.connections.count())
    };
    let mut known: Vec<_> = (0..5).map(|_| client()).collect();
    for one in &mut known {
        assert!(one.send(get("/token")).await.is_ok());
    }
    assert_eq!(state().await, (0, 5), "who showed a token has a place that is no stranger's");
    let mut strangers = [client(), client(), client()];
    for one in &mut strangers {
        assert!(one.send(get("/x")).await.is_ok(), "nobody is refused");
    }
    assert_eq!(state().await, (1, 7));
    for one in known.iter_mut().chain(&mut strangers[1..]) {
        assert!(one.send(get("/x")).await.is_ok());
    }
    assert_eq!(state().await, (1, 7), "all but the first are where they were");
    assert!(strangers[0].send(get("/x")).await.is_ok(), "it comes back in the place of another");
    assert_eq!(state().await, (2, 7));
    let parked = [client(), client()]
        .map(|mut one| tokio::spawn(async move { one.send_within(get("/park"), Duration::from_hours(2)).await }));
    assert_eq!(state().await, (4, 7));
    assert!(client().send(get("/x")).await.is_err(), "whose request is being answered is not cut");
    assert_eq!(state().await, (5, 7));
    assert!(known[0].send(get("/x")).await.is_ok());
    for one in parked {
        assert!(one.await.expect("no panic").is_ok());
    }
}

/// One viewer took three quarters of the places from one address, and all of them from two.
#[tokio::test(start_paused = true)]
async fn x03_one_principal_has_its_part_of_the_places_and_some_are_kept_for_admins() {
    let limits = Limits {
        connections: 8,
        connections_of_one_principal: Some(3),
        connections_for_admins: 1,
        ..Limits::default()
    };
    let rooms = Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = Arc::clone(&rooms);
    let server = serve(limits, None, move |peer: &Arc<Peer>, request: Request<RequestBody>| {
        let (name, parks) = match request.uri().path().trim_start_matches('/').split_once('/') {
            Some((name, _)) => (name.to_owned(), true),
            None => (request.uri().path().trim_start_matches('/').to_owned(), false),
        };
        let room = peer.hold(&Holder { is_fleet_admin: name == "root", name, within: None });
        told.lock().expect("no panic").push(room);
        async move {
            if parks {
                tokio::time::sleep(Duration::from_hours(1)).await;
            }
            Response::new(Full::from("done"))
        }
    });
    let client = || Client::over(server.connect.clone(), target(), None, ClientLimits::default());
    let room = || rooms.lock().expect("no panic").pop().expect("it was asked");
    let settled = || tokio::time::sleep(Duration::from_secs(1));
    let mut viewers = [client(), client(), client(), client()];
    for (viewer, expected) in viewers.iter_mut().zip([Room::Free, Room::Free, Room::Free, Room::OfAnother]) {
        assert!(viewer.send(get("/viewer")).await.is_ok());
        assert_eq!(room(), expected);
    }
    settled().await;
    assert_eq!(server.connections.count(), 3, "the first one was cut for the last");
    let [_, second, third, fourth] = viewers;
    let parked = [second, third, fourth].map(|mut one| {
        tokio::spawn(async move { one.send_within(get("/viewer/park"), Duration::from_hours(2)).await })
    });
    settled().await;
    let mut more = client();
    assert!(more.send(get("/viewer")).await.is_ok());
    assert_eq!(room(), Room::Full, "whose request is being answered is not cut");
    let mut others: Vec<_> = (0..3).map(|_| client()).collect();
    for other in &mut others {
        assert!(other.send(get("/other")).await.is_ok());
        assert_eq!(room(), Room::Free);
    }
    let mut last = client();
    assert!(last.send(get("/third")).await.is_ok());
    assert_eq!(room(), Room::Full, "the last place is kept");
    assert!(last.send(get("/root")).await.is_ok());
    assert_eq!(room(), Room::Free);
    drop((more, others, last));
    for one in parked {
        assert!(one.await.expect("no panic").is_ok());
    }
}

/// An admin who is bound to one cluster makes principals there, each of whom took a quarter of the places.
#[tokio::test(start_paused = true)]
async fn x03_principals_of_one_cluster_have_twice_the_places_of_one() {
    let limits = Limits { connections: 16, connections_of_one_principal: Some(2), ..Limits::default() };
    let rooms = Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = Arc::clone(&rooms);
    let server = serve(limits, None, move |peer: &Arc<Peer>, request: Request<RequestBody>| {
        let name = request.uri().path().trim_start_matches('/').to_owned();
        let within = name.starts_with("bound").then(|| ClusterId(uuid::Uuid::from_u128(1)));
        let room = peer.hold(&Holder { is_fleet_admin: false, name, within });
        told.lock().expect("no panic").push(room);
        async move { Response::new(Full::from("done")) }
    });
    let client = || Client::over(server.connect.clone(), target(), None, ClientLimits::default());
    let room = || rooms.lock().expect("no panic").pop().expect("it was asked");
    let mut held = Vec::new();
    for (path, expected) in [
        ("/bound-a", Room::Free),
        ("/bound-a", Room::Free),
        ("/bound-b", Room::Free),
        ("/bound-b", Room::Free),
        ("/bound-c", Room::Full),
        ("/bound-a", Room::OfAnother),
        ("/bound-c", Room::Full),
        ("/other", Room::Free),
        ("/other", Room::Free),
    ] {
        let mut one = client();
        assert!(one.send(get(path)).await.is_ok());
        assert_eq!(room(), expected, "{path}");
        held.push(one);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    drop(held.remove(1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut last = client();
    assert!(last.send(get("/bound-c")).await.is_ok());
    assert_eq!(room(), Room::Free, "one has made room");
}

#[tokio::test(start_paused = true)]
async fn s49_compressed_bodies_are_not_taken() {
    let server = echoing(Limits::default());
    for encoding in ["gzip", "deflate", "br", "identity"] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Encoding: {encoding}\r\nContent-Length: 2\r\n\r\nhi"
        );
        let (answer, _) = server.exchange(request.as_bytes()).await;
        assert_eq!(status(&answer), "415", "{encoding}");
        assert!(answer.ends_with(ErrorType::RequestEncoding.fixed_body()), "{answer}");
        server.still_serves().await;
    }
    assert_eq!(server.refused("body_compressed"), 4);
    server.still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn s53_a_panic_costs_its_own_request() {
    let server = echoing(Limits::default());
    let request = b"GET /panic HTTP/1.1\r\nHost: h\r\n\r\nGET /ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let (answer, _) = server.exchange(request).await;
    assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("server.internal"), "{answer}");
    assert!(!answer.contains("no such luck"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n/ok "), "the same connection goes on: {answer}");
    assert_eq!(server.refused("handler_panicked"), 1);
    server.still_serves().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_the_idle_at_once_and_lets_the_rest_end_in_time() {
    let server = echoing(Limits::default());
    let mut idle = server.open().await;
    idle.write_all(b"GET /ok HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let took = server.stop().await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let mut rest = String::new();
    idle.read_to_string(&mut rest).await.expect("closed");

    let slow = |_: &Arc<Peer>, _: Request<RequestBody>| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Response::new(Full::from("done"))
    };
    let server = serve(Limits::default(), None, slow);
    let mut stream = server.open().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let took = server.stop().await;
    assert!((4..6).contains(&took.as_secs()), "{took:?}");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.contains("connection: close") && answer.ends_with("done"), "{answer}");

    let long = |_: &Arc<Peer>, _: Request<RequestBody>| async { Response::new(Full::from(vec![b'x'; 200_000])) };
    let server = serve(Limits::default(), None, long);
    let mut stream = server.open().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (_, answer) = tokio::join!(server.stop(), async {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("an answer");
        answer
    });
    assert!(answer.len() > 200_000, "an answer on its way is written to its end: {} bytes", answer.len());

    let server = echoing(Limits::default());
    let mut stream = server.open().await;
    stream.write_all(b"GET /park HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let took = server.stop().await;
    assert!((10..11).contains(&took.as_secs()), "what goes on is cut: {took:?}");
}

/// A TLS listener for agents whose handler says who asks, and a client's config for a node of it.
fn agents_server(of: &Fleeting) -> Running {
    agents_server_with(of, Limits::default())
}

fn agents_server_with(of: &Fleeting, limits: Limits) -> Running {
    let config = Arc::new(server_config(&of.agents_listener(), of.server_key(), clock()).expect("a config"));
    let source: TlsSource = Arc::new(move || Arc::clone(&config));
    let seen = AtomicUsize::new(0);
    serve(limits, Some(source), move |peer: &Arc<Peer>, request: Request<RequestBody>| {
        let who = peer.identity.as_ref().map_or_else(|| "nobody".to_owned(), |identity| identity.class.to_string());
        let count = seen.fetch_add(1, Ordering::Relaxed);
        async move {
            if request.uri().path() == "/park" {
                tokio::time::sleep(Duration::from_hours(1)).await;
            }
            Response::new(Full::from(format!("{who} {count}")))
        }
    })
}

fn target() -> Target {
    "https://ctl.example:8443".parse().expect("an address")
}

fn get(path: &str) -> Request<Bytes> {
    Request::get(path).body(Bytes::new()).expect("a request")
}

#[tokio::test(start_paused = true)]
async fn a_client_and_a_server_of_ours_speak() {
    let of = Fleeting::new();
    let server = agents_server(&of);
    let node = of.agents.issue(&Leaf::node());
    let tls = client_config(&of.roots(), Some(fleet()), Some(node.identity()), clock()).expect("a config");
    let mut client = Client::over(server.connect.clone(), target(), Some(Arc::new(tls)), ClientLimits::default());
    for count in 0..2 {
        let answer = client.send(get("/x")).await.expect("an answer");
        assert_eq!(answer.into_body(), format!("node/{NODE} {count}"));
        assert_eq!(server.connections.count(), 1, "the connection is kept");
    }
    // Idle for longer than the server keeps it: the next request opens another connection, unseen.
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(server.connections.count(), 0);
    assert_eq!(client.send(get("/x")).await.expect("an answer").into_body(), format!("node/{NODE} 2"));
}

#[tokio::test(start_paused = true)]
async fn bodies_of_all_sizes_arrive_as_they_were_sent() {
    let of = Fleeting::new();
    let config = Arc::new(server_config(&of.agents_listener(), of.server_key(), clock()).expect("a config"));
    let source: TlsSource = Arc::new(move || Arc::clone(&config));
    let server = serve(Limits::default(), Some(source), |_: &Arc<Peer>, request: Request<RequestBody>| async {
        Response::new(Full::from(request.into_body().collect(1 << 20).await.expect("a body")))
    });
    let tls = client_config(&of.roots(), Some(fleet()), None, clock()).expect("a config");
    let mut client = Client::over(server.connect.clone(), target(), Some(Arc::new(tls)), ClientLimits::default());
    for size in [0, 1, 100, 4000, 8000, 8192, 9000, 16_384, 70_000, 1 << 20, 3] {
        let body: Bytes = (0..size).map(|n: u32| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        let request = Request::post("/x").body(body.clone()).expect("a request");
        assert!(client.send(request).await.expect("an answer").into_body() == body, "{size} bytes");
    }
    assert_eq!(server.connections.count(), 1, "all on one connection");
}

#[tokio::test(start_paused = true)]
async fn s13_a_revoked_peers_held_check_in_can_be_cut() {
    let of = Fleeting::new();
    let server = agents_server(&of);
    let node = of.agents.issue(&Leaf::node());
    let tls = client_config(&of.roots(), Some(fleet()), Some(node.identity()), clock()).expect("a config");
    let mut client = Client::over(server.connect.clone(), target(), Some(Arc::new(tls)), ClientLimits::default());
    let connections = server.connections.clone();
    let parked = tokio::spawn(async move { client.send_within(get("/park"), Duration::from_hours(2)).await });
    tokio::time::sleep(Duration::from_secs(30)).await;
    let of_serial = |serial: &'static [u8]| {
        move |peer: &Peer| peer.identity.as_ref().is_some_and(|identity| *identity.serial == *serial)
    };
    assert_eq!(connections.cut(of_serial(&[1])), 0);
    let began = Instant::now();
    assert_eq!(connections.cut(of_serial(&[0x5a, 1, 2, 3])), 1);
    let cut = parked.await.expect("no panic");
    assert!(matches!(cut, Err(ClientError::Broken { .. })), "{cut:?}");
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn refused_handshakes_are_counted_by_their_reason() {
    let of = Fleeting::new();
    let server = agents_server(&of);
    let stranger = Fleeting::new().agents.issue(&Leaf::node());
    let tls = client_config(&of.roots(), Some(fleet()), Some(stranger.identity()), clock()).expect("a config");
    let mut client = Client::over(server.connect.clone(), target(), Some(Arc::new(tls)), ClientLimits::default());
    assert!(client.send(get("/x")).await.is_err());
    assert_eq!(server.refused("tls_unknown_issuer"), 1);
    let (_, took) = server.exchange(b"").await;
    assert!((5.0..6.1).contains(&took.as_secs_f64()), "a handshake that does not begin: {took:?}");
    assert_eq!(server.refused("slow_handshake"), 1);
    let (answer, _) = server.exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(!answer.contains("HTTP"), "plain HTTP on a TLS port");
    assert_eq!(server.refused("tls_failed"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_says_what_went_wrong() {
    let of = Fleeting::new();
    let other = Fleeting::new();
    let server = agents_server(&of);
    let tls = Arc::new(client_config(&other.roots(), None, None, clock()).expect("a config"));
    let mut client = Client::over(server.connect.clone(), target(), Some(tls), ClientLimits::default());
    let error = client.send(get("/x")).await.expect_err("another root");
    assert!(matches!(error, ClientError::Untrusted { .. }), "{error:?}");
    assert_eq!(error.to_string(), "https://ctl.example:8443 is not trusted");

    let tls = Arc::new(client_config(&of.roots(), None, None, clock()).expect("a config"));
    let limits = ClientLimits { body_bytes: 3, ..ClientLimits::default() };
    let mut client = Client::over(server.connect.clone(), target(), Some(tls), limits);
    let error = client.send(get("/x")).await.expect_err("a larger answer");
    assert!(matches!(error, ClientError::TooLarge { limit: 3 }), "{error:?}");
    let error = client.send(get("/park")).await.expect_err("no answer");
    assert_eq!(error.to_string(), "no answer within 30 s");

    let (listen, connect) = pipe();
    let silent: Target = "http://localhost:1".parse().expect("an address");
    drop(listen);
    let mut client = Client::over(connect, silent, None, ClientLimits::default());
    let error = client.send(get("/x")).await.expect_err("nobody there");
    assert_eq!(error.outcome(), crate::client::RequestOutcome::NotSent);
}

#[tokio::test(start_paused = true)]
async fn a_blob_is_streamed_piece_by_piece() {
    let body = |_: &Arc<Peer>, request: Request<RequestBody>| async move {
        let mut response = Response::new(Full::from(vec![7; 200_000]));
        if request.uri().path() == "/absent" {
            *response.status_mut() = hyper::StatusCode::NOT_FOUND;
            *response.body_mut() = Full::from("gone");
        }
        response
    };
    let server = serve(Limits::default(), None, body);
    let target: Target = "http://127.0.0.1:1".parse().expect("an address");
    let mut client = Client::over(server.connect.clone(), target, None, ClientLimits::default());
    let (mut pieces, mut bytes) = (0, 0);
    let answer = client
        .stream(get("/blob"), async |piece| {
            (pieces, bytes) = (pieces + 1, bytes + piece.len());
            Ok(())
        })
        .await
        .expect("an answer");
    assert!(answer.status().is_success() && bytes == 200_000 && pieces > 1, "{pieces} pieces, {bytes} bytes");
    let absent = client.stream(get("/absent"), async |_| panic!("an error is no blob")).await.expect("an answer");
    assert_eq!((absent.status().as_u16(), &absent.body()[..]), (404, &b"gone"[..]));
    let refused = client.stream(get("/blob"), async |_| Err(std::io::ErrorKind::StorageFull.into())).await;
    assert!(matches!(refused, Err(ClientError::NotTaken { .. })));
}
