//! What a check-in costs the controller, in CPU of the thread that serves agents, beside a bare rustls server that answers the
//! same bytes to the same requests. Both in one run, in turns: the speed of a shared machine drifts, a ratio holds.
//!
//! 1. nothing changed, the connection kept;
//! 2. a full handshake with a client certificate, and the first check-in.
//!
//! `cargo bench -p stemma-controller --bench checkin`

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends")]

#[path = "../tests/fleet/mod.rs"]
mod fleet;

use std::net::SocketAddr;
use std::sync::Arc;

use fleet::{Fleet, Host, check_in, state};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::ServerName;
use stemma_wire::clock::SystemClock;
use stemma_wire::message::encode;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How many hosts check in, each over a connection of its own.
const HOSTS: usize = 32;
const ROUNDS: u32 = 10;
/// Check-ins of each host in a round.
const CHECK_INS: u32 = 600;
/// New connections of each host in a round.
const HANDSHAKES: u32 = 20;

/// A host with all that it sends, ready.
struct Load {
    tls: Arc<ClientConfig>,
    request: Vec<u8>,
    answer_bytes: usize,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fleet = Fleet::start().await;
        let mut loads = Vec::new();
        for n in 0..HOSTS {
            loads.push(prepare(&fleet, n).await);
        }
        let bare = bare_server(&fleet, loads[0].answer_bytes);
        let loads = Arc::new(loads);
        let controller = Side { address: fleet.agents(), thread: thread_named("agents") };
        let bare = Side { address: bare, thread: thread_named("bare") };
        show_requests(&controller, &bare, &loads).await;
        show_handshakes(&controller, &bare, &loads).await;
    });
}

/// A server with the thread whose CPU is counted.
struct Side {
    address: SocketAddr,
    thread: u32,
}

async fn prepare(fleet: &Fleet, n: usize) -> Load {
    let mut host = fleet.join(&format!("host-{n}")).await;
    fleet.publish(host.node, 5, state("gold", None, &[]));
    // The first ones store the observation and bring the state; from then on nothing changes.
    host.news(0).await;
    host.news(0).await;
    let mut said = check_in(host.held, 0);
    said.observation = None;
    let body = encode(&said);
    let mut request = format!(
        "POST /agent/v1/checkin HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
        fleet.agents(),
        body.len()
    )
    .into_bytes();
    request.extend(body);
    let mut load = Load { tls: tls(fleet, &host), request, answer_bytes: 0 };
    load.answer_bytes = first_answer(fleet.agents(), &load).await;
    load
}

fn tls(fleet: &Fleet, host: &Host) -> Arc<ClientConfig> {
    let pin = Pin::Roots(vec![fleet.parts().authority.root().clone()]);
    let own = ClientIdentity { chain: host.chain.clone(), key: host.key.clone_key() };
    Arc::new(client_config(&pin, Some(fleet.parts().fleet.clone()), Some(own), Arc::new(SystemClock)).unwrap())
}

/// How long the answer to an unchanged check-in is.
async fn first_answer(at: SocketAddr, load: &Load) -> usize {
    let mut stream = connect(at, load).await;
    stream.write_all(&load.request).await.unwrap();
    let mut answer = vec![0; 4096];
    let mut read = 0;
    loop {
        read += stream.read(&mut answer[read..]).await.unwrap();
        let text = String::from_utf8_lossy(&answer[..read]).to_ascii_lowercase();
        let Some(head) = text.find("\r\n\r\n") else { continue };
        assert!(text.starts_with("http/1.1 200"), "{text}");
        let length =
            text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok()).unwrap();
        if read == head + 4 + length {
            return read;
        }
    }
}

async fn connect(at: SocketAddr, load: &Load) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(at).await.unwrap();
    stream.set_nodelay(true).unwrap();
    TlsConnector::from(Arc::clone(&load.tls)).connect(ServerName::from(at.ip()), stream).await.unwrap()
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, load: &Load, answer: &mut [u8]) {
    stream.write_all(&load.request).await.unwrap();
    stream.read_exact(answer).await.unwrap();
}

/// Tokio and rustls with a client certificate demanded, no tickets, and the same number of bytes for each request: no HTTP at all.
fn bare_server(fleet: &Fleet, answer_bytes: usize) -> SocketAddr {
    let parts = fleet.parts();
    let mut issuers = RootCertStore::empty();
    issuers.add(parts.authority.agents_issuer().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(issuers), Arc::clone(&provider)).build().unwrap();
    let names = ["127.0.0.1".parse().unwrap()];
    let now_s = stemma_wire::clock::Clock::unix_seconds(&SystemClock);
    let own = parts.authority.issue_server(uuid::Uuid::from_u128(1), &names, now_s).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.chain, own.key.unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("bare".to_owned()).spawn(move || serve_bare(config, answer_bytes, &tell)).unwrap();
    told.recv().unwrap()
}

fn serve_bare(config: ServerConfig, answer_bytes: usize, tell: &std::sync::mpsc::Sender<SocketAddr>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        tell.send(listener.local_addr().unwrap()).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let (mut request, answer) = (vec![0; 8192], vec![b'x'; answer_bytes]);
                // A request is one record here, so one read takes it whole.
                while let Ok(1..) = stream.read(&mut request).await {
                    if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
                        return;
                    }
                }
            });
        }
    });
}

async fn show_requests(controller: &Side, bare: &Side, loads: &Arc<Vec<Load>>) {
    let mut kept = [Vec::new(), Vec::new()];
    for (side, kept) in [controller, bare].into_iter().zip(&mut kept) {
        for load in loads.iter() {
            kept.push(connect(side.address, load).await);
        }
    }
    let [of_controller, of_bare] = &mut kept;
    let mut means = [0.0; 2];
    for round in 0..=ROUNDS {
        let mut used = [0.0; 2];
        for ((side, streams), used) in
            [(controller, &mut *of_controller), (bare, &mut *of_bare)].into_iter().zip(&mut used)
        {
            let before = cpu_us(side.thread);
            let mut answer = vec![0; loads[0].answer_bytes];
            for _ in 0..CHECK_INS {
                for (stream, load) in streams.iter_mut().zip(loads.iter()) {
                    exchange(stream, load, &mut answer).await;
                }
            }
            *used = (cpu_us(side.thread) - before) / (f64::from(CHECK_INS) * count(loads));
        }
        report("check-in, nothing changed", round, used, &mut means);
    }
}

async fn show_handshakes(controller: &Side, bare: &Side, loads: &Arc<Vec<Load>>) {
    let mut means = [0.0; 2];
    for round in 0..=ROUNDS {
        let mut used = [0.0; 2];
        for (side, used) in [controller, bare].into_iter().zip(&mut used) {
            let before = cpu_us(side.thread);
            let mut answer = vec![0; loads[0].answer_bytes];
            for _ in 0..HANDSHAKES {
                for load in loads.iter() {
                    let mut stream = connect(side.address, load).await;
                    exchange(&mut stream, load, &mut answer).await;
                }
            }
            *used = (cpu_us(side.thread) - before) / (f64::from(HANDSHAKES) * count(loads));
        }
        report("handshake and check-in", round, used, &mut means);
    }
}

/// Shows a round, and after the last one the mean. The first round fills caches and is not counted.
#[expect(clippy::print_stdout, reason = "a bench tells its figures there")]
fn report(what: &str, round: u32, used: [f64; 2], means: &mut [f64; 2]) {
    let line = |name: &str, [controller, bare]: [f64; 2]| {
        println!(
            "{what}: {name:8} controller {controller:6.2} µs   bare rustls {bare:6.2} µs   ratio {:.2}",
            controller / bare
        );
    };
    if round == 0 {
        return;
    }
    line(&format!("round {round}"), used);
    for (mean, used) in means.iter_mut().zip(used) {
        *mean += used / f64::from(ROUNDS);
    }
    if round == ROUNDS {
        line("mean", *means);
    }
}

/// The thread of this process with this name.
fn thread_named(name: &str) -> u32 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let ids = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let named = |id: &u32| {
        std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    ids.into_iter().find(named).unwrap_or_else(|| panic!("a thread is named {name}"))
}

/// The CPU that a thread has used, in microseconds: the first figure of its `schedstat`, in nanoseconds.
fn cpu_us(thread: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1000.0
}

/// How many connections there are.
fn count(loads: &[Load]) -> f64 {
    f64::from(u32::try_from(loads.len()).expect("a bench has few connections"))
}
