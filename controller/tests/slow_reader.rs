//! Clients that ask for a long list and do not take it: what they cost, and who is served beside them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod served;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::{Value, json};
use served::Served;
use stemma_controller::api::handler;
use stemma_counting::held_bytes;
use stemma_wire::clock::SystemClock;
use stemma_wire::net::Listen;
use stemma_wire::serve::{Limits, Rejected, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, oneshot};

/// How many answers are sent in pieces at the same time to one principal.
const READERS: usize = 16;
/// How many nodes the list has, and how long one annotation of each is: 8 MB a list.
const NODES: usize = 400;
const LONG: usize = 20_000;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// The server's end of a pipe, which tells when the pipe first takes no more.
struct Pipe {
    stream: DuplexStream,
    is_full: Option<oneshot::Sender<()>>,
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_pending()
            && let Some(is_full) = self.is_full.take()
        {
            // Nobody listens where a client has gone.
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

/// A network of pipes of 16 KiB, so that the kernel's buffers take nothing of an answer.
struct Pipes(mpsc::UnboundedReceiver<Pipe>);

impl Listen for Pipes {
    type Stream = Pipe;

    async fn accept(&mut self) -> io::Result<(Pipe, SocketAddr)> {
        match self.0.recv().await {
            Some(pipe) => Ok((pipe, ([127, 0, 0, 1], 4000).into())),
            None => std::future::pending().await,
        }
    }
}

struct Network(mpsc::UnboundedSender<Pipe>);

/// A client's end of a connection on which it was answered.
struct Asked {
    status: u16,
    stream: DuplexStream,
    is_full: oneshot::Receiver<()>,
}

impl Network {
    /// Sends a request and takes the status line of its answer, and no more.
    async fn ask(&self, path: &str) -> Asked {
        let (mut near, stream) = tokio::io::duplex(16 * 1024);
        let (tells, is_full) = oneshot::channel();
        self.0.send(Pipe { stream, is_full: Some(tells) }).unwrap();
        near.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut line = [0; 12];
        near.read_exact(&mut line).await.unwrap();
        Asked { status: std::str::from_utf8(&line[9..]).unwrap().parse().unwrap(), stream: near, is_full }
    }
}

async fn fleet() -> Served {
    let served = Served::start().await;
    let text = "x".repeat(LONG);
    for part in 0..4 {
        let of_part = (0..NODES / 4).map(|n| format!("n{part}-{n}"));
        let node = |name| json!({"kind": "Node", "name": name, "annotations": {"about": text}});
        let objects: Vec<Value> = of_part.map(node).collect();
        served.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    }
    served
}

#[tokio::test]
async fn readers_that_take_nothing_hold_little_and_keep_nobody_waiting() {
    let served = fleet().await;
    let (to, pipes) = mpsc::unbounded_channel();
    let network = Network(to);
    let limits = Limits { write: Duration::from_mins(5), ..Limits::default() };
    let server = Server::new(Pipes(pipes), None, limits, Arc::new(SystemClock), Arc::<Rejected>::default());
    let serving = tokio::spawn(server.run(handler(served.api()), std::future::pending()));

    let before = held_bytes();
    let mut slow = Vec::new();
    for _ in 0..READERS {
        let asked = network.ask("/v1/nodes/detail").await;
        assert_eq!(asked.status, 200);
        // The server has made what it makes ahead once the pipe is full.
        tokio::time::timeout(PATIENCE, asked.is_full).await.unwrap().unwrap();
        slow.push(asked.stream);
    }
    let grown = held_bytes().saturating_sub(before);
    let lists = READERS * NODES * LONG;
    assert!(grown < lists / 5, "{READERS} readers hold {grown} bytes of their lists' {lists}");

    let beside = async {
        assert_eq!(network.ask("/v1/nodes/n0-0").await.status, 200);
        assert_eq!(network.ask("/v1/nodes?limit=1").await.status, 200);
        assert_eq!(network.ask("/v1/nodes/detail").await.status, 503, "no more lists are begun");
    };
    tokio::time::timeout(PATIENCE, beside).await.unwrap();

    // Who takes it all gets it all, and makes room.
    let mut one = slow.pop().unwrap();
    let mut taken = Vec::new();
    while !taken.ends_with(b"]}\r\n0\r\n\r\n") {
        assert_ne!(one.read_buf(&mut taken).await.unwrap(), 0, "the list ends where it should");
    }
    assert!(taken.len() > NODES * LONG);
    // So does who goes away.
    slow.pop();
    for _ in 0..2 {
        let again = async {
            loop {
                let asked = network.ask("/v1/nodes/detail").await;
                if asked.status == 200 {
                    break asked.stream;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        slow.push(tokio::time::timeout(PATIENCE, again).await.unwrap());
    }
    serving.abort();
}
