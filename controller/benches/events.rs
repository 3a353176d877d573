//! Measures what 1,000 event streams cost a quiet controller: the CPU of the whole process, with the clients, as the
//! mean per second over a minute.
//!
//! `cargo bench -p stemma-controller --bench events`
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::net::SocketAddr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use stemma_controller::args;
use stemma_controller::config::Config;
use stemma_controller::init::init;
use stemma_controller::run::{Options, start};
use stemma_controller::socket_activation::ActivatedSockets;
use stemma_wire::clock::{Clock as _, SystemClock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

const STREAMS: usize = 1_000;
const MEASURED_TIME: Duration = Duration::from_mins(1);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    init(&data, &[], SystemClock.unix_seconds()).expect("a data directory");
    let run = args::RunArgs {
        data_dir: Some(data),
        admin_listen: Some("http://127.0.0.1:0".into()),
        agent_listen: Some("127.0.0.1:0".into()),
        ..args::RunArgs::default()
    };
    let config = Config::load_with_sockets(&run, &ActivatedSockets::default()).expect("a configuration");
    let controller = start(config, Options::default()).await.expect("a controller");
    let quiet = cpu_time_during(MEASURED_TIME).await;
    let mut streams = Vec::new();
    for n in 0..STREAMS {
        streams.push(open_stream(controller.admin_address(), n).await);
    }
    for mut stream in streams {
        tokio::spawn(async move {
            let mut text = [0; 4096];
            while stream.read(&mut text).await.is_ok_and(|read| read > 0) {}
        });
    }
    let told = cpu_time_during(MEASURED_TIME).await;
    let a_second = |cpu: Duration| cpu.as_secs_f64() * 1_000.0 / MEASURED_TIME.as_secs_f64();
    println!("a quiet controller: {:.2} ms of CPU a second", a_second(quiet));
    println!("with {STREAMS} streams of events: {:.2} ms of CPU a second", a_second(told));
}

/// Opens a stream. One address may have half of the connections, so the streams come from several addresses.
async fn open_stream(at: SocketAddr, n: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let from: SocketAddr = format!("127.0.0.{}:0", 2 + n % 4).parse().expect("an address");
    socket.bind(from).expect("an address of the loopback");
    let mut stream = socket.connect(at).await.expect("a connection");
    let request = format!("GET /v1/events HTTP/1.1\r\nhost: {at}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut text = Vec::new();
    while !text.ends_with(b"\n\n\r\n") {
        assert!(stream.read_buf(&mut text).await.expect("an answer") > 0, "{}", String::from_utf8_lossy(&text));
    }
    assert!(text.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&text));
    stream
}

/// Returns the CPU time that the process uses in this time.
async fn cpu_time_during(time: Duration) -> Duration {
    let used = || {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or_default())
    };
    let before = used();
    tokio::time::sleep(time).await;
    used().saturating_sub(before)
}
