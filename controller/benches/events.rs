//! Measures the CPU time that 1,000 event streams cost a controller on which nothing changes. The result is the mean
//! per second over a minute, for the whole process with the clients.
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

/// Measures the CPU time of an idle controller, without event streams and with [`STREAMS`] of them.
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
    let cpu_without_streams = cpu_time_during(MEASURED_TIME).await;
    let mut streams = Vec::new();
    for index in 0..STREAMS {
        streams.push(open_stream(controller.admin_address(), index).await);
    }
    for mut stream in streams {
        tokio::spawn(async move {
            let mut text = [0; 4096];
            while stream.read(&mut text).await.is_ok_and(|read| read > 0) {}
        });
    }
    let cpu_with_streams = cpu_time_during(MEASURED_TIME).await;
    let ms_per_second = |cpu: Duration| cpu.as_secs_f64() * 1_000.0 / MEASURED_TIME.as_secs_f64();
    println!("a quiet controller: {:.2} ms of CPU a second", ms_per_second(cpu_without_streams));
    println!("with {STREAMS} streams of events: {:.2} ms of CPU a second", ms_per_second(cpu_with_streams));
}

/// Opens event stream number `index` to the controller at `address`, and waits for the first chunk of the response. The
/// controller limits the connections of one client address, so the streams use four client addresses.
async fn open_stream(address: SocketAddr, index: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let client_address: SocketAddr = format!("127.0.0.{}:0", 2 + index % 4).parse().expect("an address");
    socket.bind(client_address).expect("an address of the loopback");
    let mut stream = socket.connect(address).await.expect("a connection");
    let request = format!("GET /v1/events HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut response = Vec::new();
    // The first chunk of the response ends with an empty line.
    while !response.ends_with(b"\n\n\r\n") {
        assert!(stream.read_buf(&mut response).await.expect("an answer") > 0, "{}", String::from_utf8_lossy(&response));
    }
    assert!(response.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&response));
    stream
}

/// Waits for `time`, and returns the CPU time that the process used in it.
async fn cpu_time_during(time: Duration) -> Duration {
    let process_time = || {
        let process_time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(process_time.tv_sec.unsigned_abs(), u32::try_from(process_time.tv_nsec).unwrap_or_default())
    };
    let start = process_time();
    tokio::time::sleep(time).await;
    process_time().saturating_sub(start)
}
