//! Measures the CPU time of a check-in in the controller's thread that serves agents. The time is compared with that of
//! a bare rustls server that sends the same number of bytes in response to the same requests. Both servers run in one
//! process and are measured alternately. The speed of a shared machine drifts, but the ratio of the two results stays
//! the same.
//!
//! Two kinds of check-in are measured:
//!
//! 1. nothing changed, on an open connection;
//! 2. a full handshake with a client certificate, and the first check-in.
//!
//! `cargo bench -p stemma-controller --bench checkin`

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot continue may panic")]

#[path = "../tests/fleet/mod.rs"]
mod fleet;

use std::net::SocketAddr;
use std::sync::Arc;

use fleet::{Fleet, Host, desired_state, idle_check_in};
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

/// The number of hosts that check in, each over its own connection.
const HOSTS: usize = 32;
const ROUNDS: u32 = 10;
/// The number of check-ins of each host in a round.
const CHECK_INS: u32 = 600;
/// The number of new connections of each host in a round.
const HANDSHAKES: u32 = 20;

/// The TLS configuration and the encoded request of one host, and the number of bytes in the response.
struct Load {
    tls: Arc<ClientConfig>,
    request: Vec<u8>,
    answer_bytes: usize,
}

/// Measures check-ins of the controller and of a bare server with TLS, and prints the CPU time of each.
fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fleet = Fleet::start().await;
        let mut loads = Vec::new();
        for index in 0..HOSTS {
            loads.push(prepare_load(&fleet, index).await);
        }
        let bare_server = start_bare_server(&fleet, loads[0].answer_bytes);
        let loads = Arc::new(loads);
        let controller = ServerThread { address: fleet.agents_address(), thread: find_thread("agents") };
        let bare_server = ServerThread { address: bare_server, thread: find_thread("bare") };
        measure_requests(&controller, &bare_server, &loads).await;
        measure_handshakes(&controller, &bare_server, &loads).await;
    });
}

/// A server, and the id of its thread whose CPU time is measured.
struct ServerThread {
    address: SocketAddr,
    thread: u32,
}

/// Joins host number `index` to the fleet. Returns its load: check-ins of a host on which nothing changed.
async fn prepare_load(fleet: &Fleet, index: usize) -> Load {
    let mut host = fleet.join(&format!("host-{index}")).await;
    // Any state will do: the text `gold` and the revision 5 have no effect on the check-in.
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    // The first check-ins store the observation and return the state. Afterwards nothing changes.
    host.next_update(0).await;
    host.next_update(0).await;
    let mut check_in = idle_check_in(host.held_desired, 0);
    check_in.observation = None;
    let body = encode(&check_in);
    let mut request =
        format!("POST /agent/v1/checkin HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n", fleet.agents_address(), body.len())
            .into_bytes();
    request.extend(body);
    let mut load = Load { tls: tls_config(fleet, &host), request, answer_bytes: 0 };
    load.answer_bytes = response_len(fleet.agents_address(), &load).await;
    load
}

/// Returns the TLS configuration with which the host connects to the controller.
fn tls_config(fleet: &Fleet, host: &Host) -> Arc<ClientConfig> {
    let pin = Pin::Roots(vec![fleet.components().authority.root().clone()]);
    let identity = ClientIdentity { chain: host.chain.clone(), key: host.key.clone_key() };
    Arc::new(client_config(&pin, Some(fleet.components().fleet.clone()), Some(identity), Arc::new(SystemClock)).unwrap())
}

/// Sends the request of the host over a new connection. Returns the length of the response with its headers, in bytes.
async fn response_len(address: SocketAddr, load: &Load) -> usize {
    let mut stream = connect(address, load).await;
    stream.write_all(&load.request).await.unwrap();
    let mut answer = vec![0; 4096];
    let mut read_bytes = 0;
    loop {
        read_bytes += stream.read(&mut answer[read_bytes..]).await.unwrap();
        let text = String::from_utf8_lossy(&answer[..read_bytes]).to_ascii_lowercase();
        let Some(head) = text.find("\r\n\r\n") else { continue };
        assert!(text.starts_with("http/1.1 200"), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok()).unwrap();
        // The headers end with an empty line: four bytes, `\r\n\r\n`.
        if read_bytes == head + 4 + length {
            return read_bytes;
        }
    }
}

/// Opens a TLS connection to a server, with the host's certificate.
async fn connect(address: SocketAddr, load: &Load) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    TlsConnector::from(Arc::clone(&load.tls)).connect(ServerName::from(address.ip()), stream).await.unwrap()
}

/// Sends the request of the host, and reads a response that fills `answer`.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, load: &Load, answer: &mut [u8]) {
    stream.write_all(&load.request).await.unwrap();
    stream.read_exact(answer).await.unwrap();
}

/// Starts a server of tokio and rustls alone, without HTTP, and returns its address. The server requires a client
/// certificate, issues no session tickets, and sends `answer_bytes` bytes in response to each request.
fn start_bare_server(fleet: &Fleet, answer_bytes: usize) -> SocketAddr {
    let parts = fleet.components();
    let mut issuers = RootCertStore::empty();
    issuers.add(parts.authority.agents_issuer().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(issuers), Arc::clone(&provider)).build().unwrap();
    let names = ["127.0.0.1".parse().unwrap()];
    let now_s = stemma_wire::clock::Clock::unix_seconds(&SystemClock);
    let identity = parts.authority.issue_server(uuid::Uuid::from_u128(1), &names, now_s).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain, identity.key.unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("bare".to_owned()).spawn(move || serve_bare(config, answer_bytes, &sender)).unwrap();
    receiver.recv().unwrap()
}

/// Serves connections of the bare server until the process ends. First sends the address of the server to `sender`.
fn serve_bare(config: ServerConfig, answer_bytes: usize, sender: &std::sync::mpsc::Sender<SocketAddr>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        sender.send(listener.local_addr().unwrap()).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let (mut request, answer) = (vec![0; 8192], vec![b'x'; answer_bytes]);
                // A request is one TLS record here, so one read returns all of it.
                while let Ok(1..) = stream.read(&mut request).await {
                    if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Measures check-ins without a change on open connections, on both servers in turns. Prints for each round the mean
/// CPU time of a check-in on each server.
async fn measure_requests(controller: &ServerThread, bare: &ServerThread, loads: &Arc<Vec<Load>>) {
    let mut streams = [Vec::new(), Vec::new()];
    for (server, streams) in [controller, bare].into_iter().zip(&mut streams) {
        for load in loads.iter() {
            streams.push(connect(server.address, load).await);
        }
    }
    let [controller_streams, bare_streams] = &mut streams;
    let mut means = [0.0; 2];
    for round in 0..=ROUNDS {
        let mut cpu_us = [0.0; 2];
        for ((server, streams), cpu_us) in
            [(controller, &mut *controller_streams), (bare, &mut *bare_streams)].into_iter().zip(&mut cpu_us)
        {
            let start_us = cpu_time_us(server.thread);
            let mut answer = vec![0; loads[0].answer_bytes];
            for _ in 0..CHECK_INS {
                for (stream, load) in streams.iter_mut().zip(loads.iter()) {
                    exchange(stream, load, &mut answer).await;
                }
            }
            *cpu_us = (cpu_time_us(server.thread) - start_us) / (f64::from(CHECK_INS) * connection_count(loads));
        }
        print_round("check-in, nothing changed", round, cpu_us, &mut means);
    }
}

/// Measures new connections with one check-in each, on both servers in turns, as [`measure_requests`] does.
async fn measure_handshakes(controller: &ServerThread, bare: &ServerThread, loads: &Arc<Vec<Load>>) {
    let mut means = [0.0; 2];
    for round in 0..=ROUNDS {
        let mut cpu_us = [0.0; 2];
        for (server, cpu_us) in [controller, bare].into_iter().zip(&mut cpu_us) {
            let start_us = cpu_time_us(server.thread);
            let mut answer = vec![0; loads[0].answer_bytes];
            for _ in 0..HANDSHAKES {
                for load in loads.iter() {
                    let mut stream = connect(server.address, load).await;
                    exchange(&mut stream, load, &mut answer).await;
                }
            }
            *cpu_us = (cpu_time_us(server.thread) - start_us) / (f64::from(HANDSHAKES) * connection_count(loads));
        }
        print_round("handshake and check-in", round, cpu_us, &mut means);
    }
}

/// Prints the CPU time per request or connection of both servers in a round, in microseconds, and after the last round
/// the means of all rounds. Round 0 fills caches and is not counted.
#[expect(clippy::print_stdout, reason = "a benchmark prints its results")]
fn print_round(title: &str, round: u32, cpu_us: [f64; 2], means: &mut [f64; 2]) {
    let line = |name: &str, [controller, bare]: [f64; 2]| {
        println!("{title}: {name:8} controller {controller:6.2} µs   bare rustls {bare:6.2} µs   ratio {:.2}", controller / bare);
    };
    if round == 0 {
        return;
    }
    line(&format!("round {round}"), cpu_us);
    for (mean, cpu_us) in means.iter_mut().zip(cpu_us) {
        *mean += cpu_us / f64::from(ROUNDS);
    }
    if round == ROUNDS {
        line("mean", *means);
    }
}

/// Returns the id of the thread of this process with this name. Panics if no thread has the name.
fn find_thread(name: &str) -> u32 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let ids = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has_name =
        |id: &u32| std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    ids.into_iter().find(has_name).unwrap_or_else(|| panic!("a thread is named {name}"))
}

/// Returns the CPU time of a thread in microseconds. The first number in the thread's `schedstat` is its CPU time in
/// nanoseconds.
fn cpu_time_us(thread: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1000.0
}

fn connection_count(loads: &[Load]) -> f64 {
    f64::from(u32::try_from(loads.len()).expect("a bench has few connections"))
}
