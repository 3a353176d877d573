//! Tests of clients that request a long list and do not read it. Their memory in the controller is bounded, and other
//! clients are served.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod served;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::{Value, json};
use served::TestApi;
use stemma_controller::api::handler;
use stemma_counting::allocated_bytes;
use stemma_wire::clock::SystemClock;
use stemma_wire::net::Accept;
use stemma_wire::serve::{ListenerLimits, RejectionCounter, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, oneshot};

/// The number of slow readers. It is the maximum number of responses that the controller sends in pieces to one
/// principal at the same time.
const READERS: usize = 16;
/// The number of nodes in the list. The annotations of all nodes together make a list of 8 MB.
const NODE_COUNT: usize = 400;
/// Size of the annotation of each node, in bytes.
const ANNOTATION_BYTES: usize = 20_000;

/// The timeout of each wait, long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The server's end of a pipe. It sends a signal when the pipe is full for the first time.
struct ServerPipe {
    stream: DuplexStream,
    full_signal: Option<oneshot::Sender<()>>,
}

impl AsyncRead for ServerPipe {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for ServerPipe {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_pending()
            && let Some(signal) = self.full_signal.take()
        {
            // The send fails if the client has disconnected. Then nobody waits for the signal.
            let _ = signal.send(());
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The server's side of a network of pipes. A pipe buffers 16 KiB, and no kernel buffers hold further parts of a
/// response.
struct ServerPipes(mpsc::UnboundedReceiver<ServerPipe>);

impl Accept for ServerPipes {
    type Stream = ServerPipe;

    /// Returns the next pipe. Waits forever if no client can connect any more.
    async fn accept(&mut self) -> io::Result<(ServerPipe, SocketAddr)> {
        match self.0.recv().await {
            Some(pipe) => Ok((pipe, ([127, 0, 0, 1], 4000).into())),
            None => std::future::pending().await,
        }
    }
}

/// The clients' side of a network of pipes.
struct PipeNetwork(mpsc::UnboundedSender<ServerPipe>);

/// A client's end of a connection on which a response has begun.
struct PendingResponse {
    status: u16,
    stream: DuplexStream,
    full_signal: oneshot::Receiver<()>,
}

impl PipeNetwork {
    /// Connects, sends a request, and reads only the status of the response.
    async fn send_request(&self, path: &str) -> PendingResponse {
        let (mut client_end, server_end) = tokio::io::duplex(16 * 1024);
        let (sender, receiver) = oneshot::channel();
        self.0.send(ServerPipe { stream: server_end, full_signal: Some(sender) }).unwrap();
        client_end.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        // In a line such as `HTTP/1.1 200 OK`, the bytes 9 to 11 are the status.
        let mut line = [0; 12];
        client_end.read_exact(&mut line).await.unwrap();
        PendingResponse {
            status: std::str::from_utf8(&line[9..]).unwrap().parse().unwrap(),
            stream: client_end,
            full_signal: receiver,
        }
    }
}

/// Starts an API with [`NODE_COUNT`] nodes, each with a large annotation.
async fn start_fleet() -> TestApi {
    let api = TestApi::start().await;
    let text = "x".repeat(ANNOTATION_BYTES);
    for part in 0..4 {
        let names = (0..NODE_COUNT / 4).map(|n| format!("n{part}-{n}"));
        let node = |name| json!({"kind": "Node", "name": name, "annotations": {"about": text}});
        let objects: Vec<Value> = names.map(node).collect();
        api.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    }
    api
}

#[tokio::test]
async fn slow_readers_use_bounded_memory_and_delay_nobody() {
    let api = start_fleet().await;
    let (pipe_sender, pipes) = mpsc::unbounded_channel();
    let network = PipeNetwork(pipe_sender);
    let limits = ListenerLimits { write_timeout: Duration::from_mins(5), ..ListenerLimits::default() };
    let server = Server::new(ServerPipes(pipes), None, limits, Arc::new(SystemClock), Arc::<RejectionCounter>::default());
    let serving = tokio::spawn(server.run(handler(api.api()), std::future::pending()));

    let bytes_before = allocated_bytes();
    let mut slow_streams = Vec::new();
    for _ in 0..READERS {
        let response = network.send_request("/v1/nodes/detail").await;
        assert_eq!(response.status, 200);
        // When the pipe is full, the server has built all pieces that it may build in advance.
        tokio::time::timeout(TIMEOUT, response.full_signal).await.unwrap().unwrap();
        slow_streams.push(response.stream);
    }
    let growth_bytes = allocated_bytes().saturating_sub(bytes_before);
    let list_bytes = READERS * NODE_COUNT * ANNOTATION_BYTES;
    assert!(
        growth_bytes < list_bytes / 5,
        "{READERS} readers occupy {growth_bytes} bytes, and their lists have {list_bytes} bytes"
    );

    let other_requests = async {
        assert_eq!(network.send_request("/v1/nodes/n0-0").await.status, 200);
        assert_eq!(network.send_request("/v1/nodes?limit=1").await.status, 200);
        assert_eq!(network.send_request("/v1/nodes/detail").await.status, 503, "the controller begins no further list");
    };
    tokio::time::timeout(TIMEOUT, other_requests).await.unwrap();

    // A client that reads the whole list receives it, and another client can then request a list.
    let mut reader = slow_streams.pop().unwrap();
    let mut body = Vec::new();
    while !body.ends_with(b"]}\r\n0\r\n\r\n") {
        assert_ne!(reader.read_buf(&mut body).await.unwrap(), 0, "the list is complete when the connection ends");
    }
    assert!(body.len() > NODE_COUNT * ANNOTATION_BYTES);
    // When a client disconnects, another client can also request a list.
    slow_streams.pop();
    for _ in 0..2 {
        let retry = async {
            loop {
                let response = network.send_request("/v1/nodes/detail").await;
                if response.status == 200 {
                    break response.stream;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        slow_streams.push(tokio::time::timeout(TIMEOUT, retry).await.unwrap());
    }
    serving.abort();
}
