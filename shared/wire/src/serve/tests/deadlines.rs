//! Tests peers that are slow, stall or read nothing, and peers whose requests the server answers late on purpose.

use super::*;

/// By default, a header must be complete within 5 seconds, a body may stall for 15 seconds, and a connection may be
/// idle for 60 seconds. The server closes the connection at most about a second later.
#[tokio::test(start_paused = true)]
async fn s44_server_closes_connection_when_deadline_passes() {
    let server = start_echo_server(ListenerLimits::default());
    let seconds = |elapsed: Duration| elapsed.as_secs_f64();
    let (answer, duration) = server.exchange(b"GET / HTTP/1.1\r\nHost: h\r\nx: ").await;
    assert!(answer.is_empty() && (5.0..6.1).contains(&seconds(duration)), "half a header: {duration:?} {answer}");
    let (answer, duration) = server.exchange(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc").await;
    assert!(answer.is_empty() && (15.0..16.1).contains(&seconds(duration)), "half a body: {duration:?} {answer}");
    let (answer, duration) =
        server.exchange(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    assert!(answer.is_empty() && (15.0..16.1).contains(&seconds(duration)), "half a chunked body: {duration:?} {answer}");
    let (_, duration) = server.exchange(b"").await;
    assert!((60.0..61.1).contains(&seconds(duration)), "idle: {duration:?}");
    let (answer, duration) = server.exchange(b"GET /ok HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(answer.ends_with("/ok ") && (60.0..61.1).contains(&seconds(duration)), "idle after an answer: {duration:?} {answer}");
    let counts = server.rejections.counts();
    assert_eq!((counts.get("slow_header"), counts.get("slow_body")), (Some(&1), Some(&2)), "{counts:?}");
    server.check_still_serves().await;
    assert_eq!(server.connections.count(), 0);
}

/// The handler responds before it has read the body. After the response, the connection counts as idle, and is closed
/// after the idle timeout of 60 seconds.
#[tokio::test(start_paused = true)]
async fn s44_connection_is_idle_when_body_ends_after_response() {
    let response_signal = Arc::new(Notify::new());
    let handler_signal = Arc::clone(&response_signal);
    let server = start_server(ListenerLimits::default(), None, move |_: &Arc<Peer>, request: Request<RequestBody>| {
        let response_signal = Arc::clone(&handler_signal);
        async move {
            response_signal.notified().await;
            drop(request);
            Response::new(Full::from("refused"))
        }
    });
    let mut stream = server.open_connection().await;
    stream.write_all(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n").await.expect("the server reads");
    // While the handler waits, hyper reads one piece ahead. So the last of the three pieces stays unread until the
    // response is written.
    for piece in [2, 3, 5] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stream.write_all(&b"0123456789"[..piece]).await.expect("there is room for the body");
    }
    let start = Instant::now();
    response_signal.notify_one();
    let mut answer = String::new();
    let read_result = tokio::time::timeout(Duration::from_mins(10), stream.read_to_string(&mut answer)).await;
    read_result.expect("the connection is closed").expect("it is closed in order");
    let seconds = start.elapsed().as_secs_f64();
    assert!(answer.ends_with("refused") && (60.0..61.1).contains(&seconds), "{seconds} s: {answer}");
}

/// One byte per second is not enough: the whole header must arrive within 5 seconds.
#[tokio::test(start_paused = true)]
async fn s44_server_closes_connection_when_header_arrives_bytewise() {
    let server = start_echo_server(ListenerLimits::default());
    let mut stream = server.open_connection().await;
    let start = Instant::now();
    for byte in b"GET / HTTP/1.1\r\nHost: h\r\nx: aaaaaaaaaaaaaaaaaaaaaaa" {
        if stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(server.refused_count("slow_header"), 1);
    server.check_still_serves().await;
}

/// In this test, the body takes 100 seconds at the minimum rate, longer than the body timeout of 15 seconds.
#[tokio::test(start_paused = true)]
async fn server_accepts_slow_body_when_min_rate_is_met() {
    let limits = ListenerLimits { min_body_bytes_per_second: 10, ..ListenerLimits::default() };
    let server = start_server(limits, None, |_: &Arc<Peer>, request: Request<RequestBody>| echo_response(request, 10_000));
    let mut stream = server.open_connection().await;
    let head = b"POST /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head).await.expect("the server reads");
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stream.write_all(&[b'x'; 10]).await.expect("the server reads");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(response_status(&answer), "200", "{answer}");
}

/// The client sends 8 of 9 million bytes at once, then nothing. The fast start does not extend the timeout of 15
/// seconds.
#[tokio::test(start_paused = true)]
async fn x03_f05_server_closes_connection_when_body_stalls_after_burst() {
    let server = start_server(ListenerLimits::default(), None, |_: &Arc<Peer>, request: Request<RequestBody>| {
        echo_response(request, 10_000_000)
    });
    let mut stream = server.open_connection().await;
    let start = Instant::now();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\n\r\n").await.expect("the server reads");
    stream.write_all(&vec![b'x'; 8_000_000]).await.expect("the server reads");
    let mut answer = Vec::new();
    let _result = stream.read_to_end(&mut answer).await;
    let seconds = start.elapsed().as_secs_f64();
    assert!(answer.is_empty() && (15.0..16.1).contains(&seconds), "{seconds} s");
    assert_eq!(server.refused_count("slow_body"), 1);
}

/// The client reads 1 MiB of the response at once, then nothing. The fast start does not extend the timeout of 15
/// seconds.
#[tokio::test(start_paused = true)]
async fn x03_f02_server_closes_connection_when_reader_stalls_after_burst() {
    let big_response = |_: &Arc<Peer>, _: Request<RequestBody>| async { Response::new(Full::from(vec![0; 4 << 20])) };
    let server = start_server(ListenerLimits::default(), None, big_response);
    let mut stream = server.open_connection().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    stream.read_exact(&mut vec![0; 1 << 20]).await.expect("an answer");
    tokio::time::sleep(Duration::from_secs(14)).await;
    assert_eq!(server.refused_count("slow_reader"), 0);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(server.refused_count("slow_reader"), 1);
}

/// The handler begins to read the body after 20 seconds. The body timeout of 15 seconds does not apply to this time,
/// because the client does not cause the delay.
#[tokio::test(start_paused = true)]
async fn x03_f05_server_keeps_connection_when_handler_delays_body() {
    let server = start_server(ListenerLimits::default(), None, |_: &Arc<Peer>, request: Request<RequestBody>| async move {
        tokio::time::sleep(Duration::from_secs(20)).await;
        echo_response(request, 3_000_000).await
    });
    let head = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n";
    let mut stream = server.open_connection().await;
    stream.write_all(head).await.expect("the server reads");
    stream.write_all(&vec![b'x'; 2_000_000]).await.expect("the server reads later");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(response_status(&answer), "200", "{answer:.100}");
}

/// The client reads a piece every 4 seconds. The minimum rate is 1 KiB per second, so pieces of 10 bytes are too small,
/// and pieces of 8 KiB suffice.
#[tokio::test(start_paused = true)]
async fn s44_server_closes_connection_when_reader_is_below_min_rate() {
    let big_response = |_: &Arc<Peer>, _: Request<RequestBody>| async { Response::new(Full::from(vec![0; 256 * 1024])) };
    for (bytes, is_closed) in [(10, true), (8 * 1024, false)] {
        let server = start_server(ListenerLimits::default(), None, big_response);
        let mut stream = server.open_connection().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
        let mut piece = vec![0; bytes];
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_secs(4)).await;
            let _result = stream.read_exact(&mut piece).await;
        }
        assert_eq!(server.refused_count("slow_reader"), u64::from(is_closed), "{bytes}");
    }
}

/// The response of 1 MiB does not fit in the buffers. So the server waits for the client, for at most 15 seconds.
#[tokio::test(start_paused = true)]
async fn s44_server_closes_connection_when_client_reads_nothing() {
    let big_response = |_: &Arc<Peer>, _: Request<RequestBody>| async { Response::new(Full::from(vec![0; 1024 * 1024])) };
    let server = start_server(ListenerLimits::default(), None, big_response);
    let mut stream = server.open_connection().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
    tokio::time::sleep(Duration::from_secs(17)).await;
    assert_eq!(server.refused_count("slow_reader"), 1);
    assert_eq!(server.connections.count(), 0);
    let mut next_stream = server.open_connection().await;
    next_stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.expect("the server reads");
    let mut answer = Vec::new();
    next_stream.read_to_end(&mut answer).await.expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "a client that reads is served");
}

/// The idle timeout is 60 seconds. A handler may delay its response for longer. A streamed response stays open while
/// the time between its events is shorter than the idle timeout.
#[tokio::test(start_paused = true)]
async fn server_keeps_waiting_request_and_active_stream_open() {
    let server = start_echo_server(ListenerLimits::default());
    let (answer, duration) = server.exchange(b"GET /park HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
    assert_eq!((response_status(&answer), duration.as_secs()), ("200", 600));

    let events = |_: &Arc<Peer>, _: Request<RequestBody>| async {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
        tokio::spawn(async move {
            for pause in [1, 50, 50, 50, 500] {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                let _ = sender.send(Ok(Frame::data(Bytes::from_static(b"event\n")))).await;
            }
        });
        let frames = ChannelBody(receiver);
        Response::new(BodyExt::boxed(frames))
    };
    let server = start_server(ListenerLimits::default(), None, events);
    let (answer, duration) = server.exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(answer.matches("event").count(), 4, "{answer}");
    assert!(
        (211..213).contains(&duration.as_secs()),
        "closed 60 s after the last event, which is 151 s after the start: {duration:?}"
    );
}

/// A response body whose frames arrive on a channel.
struct ChannelBody(tokio::sync::mpsc::Receiver<Result<Frame<Bytes>, Infallible>>);

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx)
    }
}

/// A client that connected just before the stop gets its response. A connection that remains silent is closed, and
/// delays the stop by the time for a first request only.
#[tokio::test(start_paused = true)]
async fn stopped_server_answers_first_request_of_open_connection() {
    let server = start_echo_server(ListenerLimits::default());
    let (mut client, mut silent) = (server.open_connection().await, server.open_connection().await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (duration, answer) = tokio::join!(server.stop(), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        client.write_all(b"GET /ok HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("the server reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an answer");
        answer
    });
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n/ok "), "{answer}");
    assert_eq!(duration.as_secs(), 1, "{duration:?}");
    assert_eq!(silent.read(&mut [0]).await.expect("closed"), 0);
}
