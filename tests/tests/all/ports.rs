//! Requests that both ports of a real controller refuse from any client: oversized bodies and heads, and connections on
//! which the port waits too long (docs/trust.md, S43, S44, S46). Each refusal is counted in `/metrics`, is logged, and
//! changes nothing. The next valid request succeeds.

use std::io::{ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{MAX_WAIT, eventually};
use stemma_tests::seed::is_long;
use stemma_wire::clock::SystemClock;
use stemma_wire::error::ErrorType;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};

/// Time limit of a TLS handshake in `ListenerLimits`, in seconds.
const HANDSHAKE_S: u64 = 5;
/// Time limit for the head of a request in `ListenerLimits`, in seconds.
const HEADER_S: u64 = 5;
/// Documented time limit for the body of a request, in seconds.
const BODY_S: u64 = 15;
/// Documented time limit for writing to a client that does not read, in seconds.
const WRITE_S: u64 = 15;
/// Time limit of a connection without a request in `ListenerLimits`, in seconds.
const IDLE_S: u64 = 60;
/// Maximum wait until the port cuts a connection. It is long, because a busy machine may cut the connection late.
const MAX_CUT_WAIT: Duration = Duration::from_mins(4);

/// One of the two ports of a controller, with a client for it. The client of the agents' port has not joined, and the
/// client of the operators' port is an operator.
#[derive(Clone)]
struct TestedPort {
    name: &'static str,
    address: SocketAddr,
    /// The path of a request that has a body.
    path: &'static str,
    /// A size above the largest body that the path accepts, in bytes.
    oversized_bytes: usize,
    tls: Arc<ClientConfig>,
}

type PortStream = StreamOwned<ClientConnection, TcpStream>;

impl TestedPort {
    /// Returns the agents' port and the operators' port of a fleet.
    fn agents_and_admin(fleet: &TempFleet) -> Result<[Self; 2]> {
        let addresses = fleet.addresses();
        let pin = Pin::Roots(vec![CertificateDer::from_pem_file(&addresses.ca)?]);
        let admin_file = |name: &str| fleet.data().join("admin").join(name);
        let chain = CertificateDer::pem_file_iter(admin_file("admin.pem"))?.collect::<Result<Vec<_>, _>>()?;
        let identity = ClientIdentity { chain, key: PrivateKeyDer::from_pem_file(admin_file("admin.key"))? };
        let tls = |identity| anyhow::Ok(Arc::new(client_config(&pin, None, identity, Arc::new(SystemClock))?));
        let address = |url: &str| anyhow::Ok(url.trim_start_matches("https://").parse()?);
        let excess_bytes = 64 * 1024;
        Ok([
            Self {
                name: "agents",
                address: address(&addresses.agents)?,
                path: "/agent/v1/enroll",
                oversized_bytes: excess_bytes,
                tls: tls(None)?,
            },
            Self {
                name: "admin",
                address: address(&addresses.admin)?,
                path: "/v1/apply",
                oversized_bytes: 8 * 1024 * 1024 + excess_bytes,
                tls: tls(Some(identity))?,
            },
        ])
    }

    /// Connects to the port, and completes the TLS handshake.
    fn open(&self) -> Result<PortStream> {
        let socket = TcpStream::connect(self.address)?;
        let connection = ClientConnection::new(Arc::clone(&self.tls), self.address.ip().into())?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }

    /// Sends a request with these additional header lines and this body, and returns the answer. Errors of the write
    /// are ignored, because the server may answer before it has read everything.
    fn exchange(&self, head: &str, body: &[u8]) -> Result<String> {
        let mut stream = self.open()?;
        stream.sock.set_read_timeout(Some(MAX_WAIT))?;
        let request =
            format!("POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{head}\r\n", self.path, self.address);
        let _write_result =
            stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body)).and_then(|()| stream.flush());
        read_until(&mut stream, is_complete)
    }

    /// Returns the time for which the port leaves a connection open. The client sends only this text.
    fn lifetime(&self, text: &str) -> Result<Duration> {
        // The time begins before the connection, because the port may count from the first byte.
        let start = Instant::now();
        let mut stream = self.open()?;
        stream.write_all(text.as_bytes())?;
        stream.flush()?;
        stream.sock.set_read_timeout(Some(MAX_CUT_WAIT))?;
        let answer = read_to_end(&mut stream)?;
        ensure!(answer.is_empty(), "{}: {text:?} is answered {answer}", self.name);
        Ok(start.elapsed())
    }

    /// Returns the time for which the port leaves a connection open. The client sends requests and reads no answer.
    /// When the buffers are full, the port cannot write, and waits for the client.
    fn lifetime_without_reading(&self) -> Result<Duration> {
        let start = Instant::now();
        let mut stream = self.open()?;
        stream.sock.set_write_timeout(Some(MAX_CUT_WAIT))?;
        let requests = format!("GET {} HTTP/1.1\r\nhost: {}\r\n\r\n", self.path, self.address).repeat(100);
        loop {
            match stream.write_all(requests.as_bytes()).and_then(|()| stream.flush()) {
                Ok(()) => {}
                Err(error) if is_timeout(&error) => bail!("{}: a client that reads nothing is not cut", self.name),
                Err(_) => return Ok(start.elapsed()),
            }
        }
    }

    /// Returns the time for which the port leaves a connection open whose client never begins the handshake.
    fn lifetime_without_handshake(&self) -> Result<Duration> {
        let start = Instant::now();
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_read_timeout(Some(MAX_CUT_WAIT))?;
        read_to_end(&mut socket)?;
        Ok(start.elapsed())
    }
}

/// Returns the text that is read until the connection ends. A cut without a closing message is an end too.
fn read_to_end(stream: &mut impl Read) -> Result<String> {
    read_until(stream, |_| false)
}

/// Returns the text that is read until `is_enough` returns true for it, or the connection ends. Fails if a read times
/// out.
fn read_until(stream: &mut impl Read, is_enough: impl Fn(&str) -> bool) -> Result<String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let mut answer = String::new();
    while !is_enough(&answer) {
        match stream.read(&mut buffer) {
            Ok(length @ 1..) => bytes.extend(&buffer[..length]),
            Err(error) if is_timeout(&error) => bail!("the connection is still open after {answer:?}"),
            Ok(_) | Err(_) => break,
        }
        answer = String::from_utf8_lossy(&bytes).into_owned();
    }
    Ok(answer)
}

/// Returns whether the text contains an answer with its whole body. The end of the connection does not show this: the
/// server leaves the connection open for a next request if it has read the first request completely.
fn is_complete(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let length = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).find_map(|(_, value)| value.parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

/// Returns whether an error is a timeout of the read or write, and not the end of the connection.
fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns the number of refusals for a reason, from `/metrics`. This request also shows that the port still serves
/// valid requests.
fn refusal_count(fleet: &TempFleet, reason: &str) -> Result<u64> {
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let sample_name = format!("stemma_rejected_total{{reason=\"{reason}\"}} ");
    Ok(metrics.lines().find_map(|line| line.strip_prefix(&sample_name)).map_or(Ok(0), str::parse)?)
}

/// Checks that the refusals are counted and logged, and that the operators' objects are still `objects_before`.
fn check_refusals(fleet: &TempFleet, reason: &str, count: u64, objects_before: &str) -> Result<()> {
    eventually(&format!("{count} of {reason}"), || {
        let actual_count = refusal_count(fleet, reason)?;
        ensure!(actual_count == count, "{actual_count} of {reason} are counted");
        let log = fleet.log();
        let lines = log.lines().filter(|line| line.contains("request refused") && line.contains(&format!("reason={reason}")));
        let lines = lines.filter(|line| line.contains("peer=127.0.0.1")).count() as u64;
        // The controller logs at most ten refusals of a reason each minute.
        ensure!(lines == count.min(10), "{lines} log lines have the reason {reason}:\n{log}");
        Ok(())
    })?;
    ensure!(operator_objects(fleet)? == objects_before, "{reason}: an object was changed");
    Ok(())
}

/// Returns the nodes, clusters, cluster templates and join tokens, as JSON texts one after another. The audit is not
/// included, because a refused request adds an event to the audit.
fn operator_objects(fleet: &TempFleet) -> Result<String> {
    let lists = ["/v1/nodes/detail", "/v1/clusters/detail", "/v1/clustertemplates", "/v1/join-tokens"];
    lists.into_iter().map(|path| fleet.stemma(&["get", "--raw", path])).collect()
}

#[test]
fn s43_s46_ports_refuse_oversized_heads_and_bodies() -> Result<()> {
    let fleet = TempFleet::start()?;
    let objects_before = operator_objects(&fleet)?;
    let many_fields: String = (0..1000).map(|n| format!("x{n}: y\r\n")).collect();
    let long_field = format!("x: {}\r\n", "y".repeat(200_000));
    for port in TestedPort::agents_and_admin(&fleet)? {
        for head in [&many_fields, &long_field] {
            let answer = port.exchange(head, b"")?;
            ensure!(
                answer.starts_with("HTTP/1.1 431 ") && answer.ends_with(ErrorType::RequestHeadTooLarge.fixed_body()),
                "{}: {answer}",
                port.name
            );
        }
        // The body is sent in two ways: after a header with its length, and in chunks. The answer must not repeat it.
        let body = vec![b'x'; port.oversized_bytes];
        let chunk = |piece: &[u8]| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        let chunked: Vec<u8> = body.chunks(16 * 1024).flat_map(chunk).collect();
        let length = format!("content-length: {}\r\n", body.len());
        for (head, body) in [(length.as_str(), &body), ("transfer-encoding: chunked\r\n", &chunked)] {
            let answer = port.exchange(head, body)?;
            ensure!(answer.starts_with("HTTP/1.1 413 ") && !answer.contains("xxx"), "{} {head}: {answer}", port.name);
        }
    }
    // Each of the two ports has refused two heads and two bodies.
    check_refusals(&fleet, "head_too_large", 4, &objects_before)?;
    check_refusals(&fleet, "request.too_large", 4, &objects_before)
}

/// Opens slow connections of several kinds to both ports. Each must be cut, but not before its time limit. The limit of
/// a connection without a request is tested only in a long run.
#[test]
fn s44_w15_06_ports_close_slow_connections() -> Result<()> {
    let fleet = TempFleet::start()?;
    let objects_before = operator_objects(&fleet)?;
    let mut measurements = Vec::new();
    for port in TestedPort::agents_and_admin(&fleet)? {
        let incomplete_head =
            format!("POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n", port.path, port.address);
        let incomplete_body = format!("{incomplete_head}content-length: 10\r\n\r\nabc");
        let mut measure = |client_action: &'static str, text: String, limit_s: u64| {
            let port = port.clone();
            measurements.push((port.name, client_action, limit_s, std::thread::spawn(move || port.lifetime(&text))));
        };
        measure("half a head", incomplete_head, HEADER_S);
        measure("half a body", incomplete_body, BODY_S);
        if is_long() {
            measure("no request", String::new(), IDLE_S);
        }
        let handshake_port = port.clone();
        measurements.push((
            port.name,
            "no handshake",
            HANDSHAKE_S,
            std::thread::spawn(move || handshake_port.lifetime_without_handshake()),
        ));
        let unread_port = port.clone();
        let thread = std::thread::spawn(move || unread_port.lifetime_without_reading());
        measurements.push((port.name, "requests without reading", WRITE_S, thread));
    }
    for (port, client_action, limit_s, thread) in measurements {
        let lifetime = thread.join().expect("the thread does not panic").with_context(|| format!("{port}: {client_action}"))?;
        let limit = Duration::from_secs(limit_s);
        ensure!(lifetime >= limit, "{port}: {client_action} stays open for {lifetime:?}, not {limit:?}");
    }
    // Each of the two ports has cut one connection for each reason.
    check_refusals(&fleet, "slow_handshake", 2, &objects_before)?;
    check_refusals(&fleet, "slow_header", 2, &objects_before)?;
    check_refusals(&fleet, "slow_body", 2, &objects_before)?;
    check_refusals(&fleet, "slow_reader", 2, &objects_before)
}
