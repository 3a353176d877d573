//! Clients that ask for a long list and do not take it: what they cost, and who is served beside them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod served;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use served::Served;
use stemma_controller::api::handler;
use stemma_wire::clock::SystemClock;
use stemma_wire::net::Listen;
use stemma_wire::serve::{Limits, Rejected, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

/// How many answers are sent in pieces at the same time.
const READERS: usize = 64;
/// How many nodes the list has, and how long one annotation of each is: 8 MB a list.
const NODES: usize = 400;
const LONG: usize = 20_000;

/// A network of pipes of 16 KiB, so that the kernel's buffers take nothing of an answer.
struct Pipes(mpsc::UnboundedReceiver<DuplexStream>);

impl Listen for Pipes {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.0.recv().await {
            Some(stream) => Ok((stream, ([127, 0, 0, 1], 4000).into())),
            None => std::future::pending().await,
        }
    }
}

struct Network(mpsc::UnboundedSender<DuplexStream>);

impl Network {
    /// Sends a request and takes the status line of its answer, and no more.
    async fn ask(&self, path: &str) -> (u16, DuplexStream) {
        let (mut near, far) = tokio::io::duplex(16 * 1024);
        self.0.send(far).unwrap();
        near.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut line = [0; 12];
        near.read_exact(&mut line).await.unwrap();
        (std::str::from_utf8(&line[9..]).unwrap().parse().unwrap(), near)
    }
}

/// The memory of this process that is in use, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
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

    let before = resident();
    let mut slow = Vec::new();
    for _ in 0..READERS {
        let (status, stream) = network.ask("/v1/nodes/detail").await;
        assert_eq!(status, 200);
        slow.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let grown = resident().saturating_sub(before);
    let lists = READERS * NODES * LONG;
    assert!(grown < lists / 5, "{READERS} readers hold {grown} bytes of their lists' {lists}");

    let beside = async {
        assert_eq!(network.ask("/v1/nodes/n0-0").await.0, 200);
        assert_eq!(network.ask("/v1/nodes?limit=1").await.0, 200);
        assert_eq!(network.ask("/v1/nodes/detail").await.0, 503, "no more lists are begun");
    };
    tokio::time::timeout(Duration::from_secs(20), beside).await.unwrap();

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
                let (status, stream) = network.ask("/v1/nodes/detail").await;
                if status == 200 {
                    break stream;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        slow.push(tokio::time::timeout(Duration::from_secs(20), again).await.unwrap());
    }
    serving.abort();
}
