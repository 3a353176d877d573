//! Clients that request a long list and do not read it: what they cost, and that other clients are served.

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
use stemma_counting::held_bytes;
use stemma_wire::clock::SystemClock;
use stemma_wire::net::Accept;
use stemma_wire::serve::{ListenerLimits, RejectionCounter, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of responses that are sent in pieces to one principal at the same time.
const READERS: usize = 16;
/// The number of nodes in the list, and the length of one annotation of each in bytes: 8 MB per list.
const MAX_NODES: usize = 400;
const ANNOTATION_BYTES: usize = 20_000;

/// The timeout of everything, for busy machines.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The server's end of a pipe, which reports when the pipe is full for the first time.
struct ServerPipe {
    stream: DuplexStream,
    is_full: Option<oneshot::Sender<()>>,
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
            && let Some(is_full) = self.is_full.take()
        {
            // The receiver is gone if the client has disconnected.
            let _ = is_full.send(());
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

/// A network of pipes of 16 KiB each, so that no kernel buffers hold parts of a response.
struct ServerPipes(mpsc::UnboundedReceiver<ServerPipe>);

impl Accept for ServerPipes {
    type Stream = ServerPipe;

    async fn accept(&mut self) -> io::Result<(ServerPipe, SocketAddr)> {
        match self.0.recv().await {
            Some(pipe) => Ok((pipe, ([127, 0, 0, 1], 4000).into())),
            None => std::future::pending().await,
        }
    }
}

struct PipeNetwork(mpsc::UnboundedSender<ServerPipe>);

/// A client's end of a connection on which a response has begun.
struct PendingResponse {
    status: u16,
    stream: DuplexStream,
    is_full: oneshot::Receiver<()>,
}

impl PipeNetwork {
    /// Sends a request, and reads only the status line of the response.
    async fn send_request(&self, path: &str) -> PendingResponse {
        let (mut near, stream) = tokio::io::duplex(16 * 1024);
        let (tells, is_full) = oneshot::channel();
        self.0.send(ServerPipe { stream, is_full: Some(tells) }).unwrap();
        near.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut line = [0; 12];
        near.read_exact(&mut line).await.unwrap();
        PendingResponse { status: std::str::from_utf8(&line[9..]).unwrap().parse().unwrap(), stream: near, is_full }
    }
}

async fn start_fleet() -> TestApi {
    let served = TestApi::start().await;
    let text = "x".repeat(ANNOTATION_BYTES);
    for part in 0..4 {
        let of_part = (0..MAX_NODES / 4).map(|n| format!("n{part}-{n}"));
        let node = |name| json!({"kind": "Node", "name": name, "annotations": {"about": text}});
        let objects: Vec<Value> = of_part.map(node).collect();
        served.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    }
    served
}

#[tokio::test]
async fn slow_readers_use_bounded_memory_and_delay_nobody() {
    let served = start_fleet().await;
    let (to, pipes) = mpsc::unbounded_channel();
    let network = PipeNetwork(to);
    let limits = ListenerLimits { write_timeout: Duration::from_mins(5), ..ListenerLimits::default() };
    let server = Server::new(ServerPipes(pipes), None, limits, Arc::new(SystemClock), Arc::<RejectionCounter>::default());
    let serving = tokio::spawn(server.run(handler(served.api()), std::future::pending()));

    let before = held_bytes();
    let mut slow = Vec::new();
    for _ in 0..READERS {
        let asked = network.send_request("/v1/nodes/detail").await;
        assert_eq!(asked.status, 200);
        // When the pipe is full, the server has built the pieces that it builds ahead.
        tokio::time::timeout(TIMEOUT, asked.is_full).await.unwrap().unwrap();
        slow.push(asked.stream);
    }
    let grown = held_bytes().saturating_sub(before);
    let lists = READERS * MAX_NODES * ANNOTATION_BYTES;
    assert!(grown < lists / 5, "{READERS} readers hold {grown} bytes of their lists' {lists}");

    let beside = async {
        assert_eq!(network.send_request("/v1/nodes/n0-0").await.status, 200);
        assert_eq!(network.send_request("/v1/nodes?limit=1").await.status, 200);
        assert_eq!(network.send_request("/v1/nodes/detail").await.status, 503, "no more lists are begun");
    };
    tokio::time::timeout(TIMEOUT, beside).await.unwrap();

    // A client that reads everything gets everything, and frees its place.
    let mut one = slow.pop().unwrap();
    let mut taken = Vec::new();
    while !taken.ends_with(b"]}\r\n0\r\n\r\n") {
        assert_ne!(one.read_buf(&mut taken).await.unwrap(), 0, "the list ends where it should");
    }
    assert!(taken.len() > MAX_NODES * ANNOTATION_BYTES);
    // A client that disconnects frees its place too.
    slow.pop();
    for _ in 0..2 {
        let again = async {
            loop {
                let asked = network.send_request("/v1/nodes/detail").await;
                if asked.status == 200 {
                    break asked.stream;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        slow.push(tokio::time::timeout(TIMEOUT, again).await.unwrap());
    }
    serving.abort();
}
