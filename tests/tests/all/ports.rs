//! What both ports of the real controller refuse from any client: oversized bodies and heads, and connections that keep
//! the port waiting (docs/trust.md, S43, S44, S46). Each refusal is counted in `/metrics`, is logged, and changes
//! nothing. The next valid request succeeds.

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

/// The documented time limits, in seconds.
const HANDSHAKE_S: u64 = 5;
const HEADER_S: u64 = 5;
const BODY_S: u64 = 15;
const WRITE_S: u64 = 15;
const IDLE_S: u64 = 60;
/// Time after which a connection counts as never cut. It does not measure how soon a busy machine cuts a connection.
const NEVER_CUT: Duration = Duration::from_mins(4);

/// One of the two ports: the agents' port, used by a client that has not joined, or the operators' port, used by an
/// operator.
#[derive(Clone)]
struct TestedPort {
    name: &'static str,
    address: SocketAddr,
    path: &'static str,
    /// A size above the largest body that the path accepts, in bytes.
    oversized_bytes: usize,
    tls: Arc<ClientConfig>,
}

type PortStream = StreamOwned<ClientConnection, TcpStream>;

impl TestedPort {
    fn agents_and_admin(fleet: &TempFleet) -> Result<[Self; 2]> {
        let bound = fleet.addresses();
        let pin = Pin::Roots(vec![CertificateDer::from_pem_file(&bound.ca)?]);
        let admin = |name: &str| fleet.data().join("admin").join(name);
        let chain = CertificateDer::pem_file_iter(admin("admin.pem"))?.collect::<Result<Vec<_>, _>>()?;
        let own = ClientIdentity { chain, key: PrivateKeyDer::from_pem_file(admin("admin.key"))? };
        let tls = |own| anyhow::Ok(Arc::new(client_config(&pin, None, own, Arc::new(SystemClock))?));
        let address = |url: &str| anyhow::Ok(url.trim_start_matches("https://").parse()?);
        let beyond = 64 * 1024;
        Ok([
            Self {
                name: "agents",
                address: address(&bound.agents)?,
                path: "/agent/v1/enroll",
                oversized_bytes: beyond,
                tls: tls(None)?,
            },
            Self {
                name: "admin",
                address: address(&bound.admin)?,
                path: "/v1/apply",
                oversized_bytes: 8 * 1024 * 1024 + beyond,
                tls: tls(Some(own))?,
            },
        ])
    }

    fn open(&self) -> Result<PortStream> {
        let socket = TcpStream::connect(self.address)?;
        let connection = ClientConnection::new(Arc::clone(&self.tls), self.address.ip().into())?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }

    /// Sends a head and a body, and returns the answer. It is no error if the server stops reading.
    fn exchange(&self, head: &str, body: &[u8]) -> Result<String> {
        let mut stream = self.open()?;
        stream.sock.set_read_timeout(Some(MAX_WAIT))?;
        let request =
            format!("POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{head}\r\n", self.path, self.address);
        let _taken = stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body)).and_then(|()| stream.flush());
        read_until(&mut stream, is_complete)
    }

    /// Returns how long a connection stays open that sends this text and nothing more.
    fn lifetime(&self, said: &str) -> Result<Duration> {
        // The port may count from the connection's first byte on.
        let began = Instant::now();
        let mut stream = self.open()?;
        stream.write_all(said.as_bytes())?;
        stream.flush()?;
        stream.sock.set_read_timeout(Some(NEVER_CUT))?;
        let answer = read_to_end(&mut stream)?;
        ensure!(answer.is_empty(), "{}: {said:?} is answered {answer}", self.name);
        Ok(began.elapsed())
    }

    /// Returns how long a connection stays open that sends requests and reads none of the answers. Once its buffers are
    /// full, the port waits for the client.
    fn lifetime_without_reading(&self) -> Result<Duration> {
        let began = Instant::now();
        let mut stream = self.open()?;
        stream.sock.set_write_timeout(Some(NEVER_CUT))?;
        let ask = format!("GET {} HTTP/1.1\r\nhost: {}\r\n\r\n", self.path, self.address).repeat(100);
        loop {
            match stream.write_all(ask.as_bytes()).and_then(|()| stream.flush()) {
                Ok(()) => {}
                Err(error) if is_timeout(&error) => bail!("{}: who reads nothing is not cut", self.name),
                Err(_) => return Ok(began.elapsed()),
            }
        }
    }

    /// Returns how long a connection stays open that never begins its handshake.
    fn lifetime_without_handshake(&self) -> Result<Duration> {
        let began = Instant::now();
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_read_timeout(Some(NEVER_CUT))?;
        read_to_end(&mut socket)?;
        Ok(began.elapsed())
    }
}

/// Reads until the connection ends. A connection that is cut without a closing message has ended too.
fn read_to_end(stream: &mut impl Read) -> Result<String> {
    read_until(stream, |_| false)
}

/// Reads until `is_enough` returns true, or the connection ends.
fn read_until(stream: &mut impl Read, is_enough: impl Fn(&str) -> bool) -> Result<String> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let mut answer = String::new();
    while !is_enough(&answer) {
        match stream.read(&mut piece) {
            Ok(length @ 1..) => bytes.extend(&piece[..length]),
            Err(error) if is_timeout(&error) => bail!("the connection goes on after {answer:?}"),
            Ok(_) | Err(_) => break,
        }
        answer = String::from_utf8_lossy(&bytes).into_owned();
    }
    Ok(answer)
}

/// Returns whether an answer is here with its whole body. The connection stays open for the next request if the server
/// has read this one completely.
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

/// Returns the number of refusals for a reason, from `/metrics`. Reading `/metrics` is the next valid request.
fn refusal_count(fleet: &TempFleet, reason: &str) -> Result<u64> {
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let name = format!("stemma_rejected_total{{reason=\"{reason}\"}} ");
    Ok(metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(Ok(0), str::parse)?)
}

/// Checks that the refusals are counted and logged, and that they changed nothing.
fn check_refusals(fleet: &TempFleet, reason: &str, count: u64, before: &str) -> Result<()> {
    eventually(&format!("{count} of {reason}"), || {
        let found = refusal_count(fleet, reason)?;
        ensure!(found == count, "{found} of {reason} are counted");
        let log = fleet.log();
        let lines = log.lines().filter(|line| line.contains("request refused") && line.contains(&format!("reason={reason}")));
        let lines = lines.filter(|line| line.contains("peer=127.0.0.1")).count() as u64;
        ensure!(lines == count.min(10), "{lines} lines of the log tell of {reason}:\n{log}");
        Ok(())
    })?;
    ensure!(operator_objects(fleet)? == before, "{reason}: something is written");
    Ok(())
}

/// Returns the objects that operators have created. Refusals of their requests are written to the audit, but change
/// none of these.
fn operator_objects(fleet: &TempFleet) -> Result<String> {
    let lists = ["/v1/nodes/detail", "/v1/clusters/detail", "/v1/clustertemplates", "/v1/join-tokens"];
    lists.into_iter().map(|path| fleet.stemma(&["get", "--raw", path])).collect()
}

#[test]
fn s43_s46_ports_refuse_oversized_heads_and_bodies() -> Result<()> {
    let fleet = TempFleet::start()?;
    let before = operator_objects(&fleet)?;
    let many: String = (0..1000).map(|n| format!("x{n}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(200_000));
    for port in TestedPort::agents_and_admin(&fleet)? {
        for head in [&many, &long] {
            let answer = port.exchange(head, b"")?;
            ensure!(
                answer.starts_with("HTTP/1.1 431 ") && answer.ends_with(ErrorType::RequestHeadTooLarge.fixed_body()),
                "{}: {answer}",
                port.name
            );
        }
        let body = vec![b'x'; port.oversized_bytes];
        let chunk = |piece: &[u8]| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        let chunked: Vec<u8> = body.chunks(16 * 1024).flat_map(chunk).collect();
        let length = format!("content-length: {}\r\n", body.len());
        for (head, body) in [(length.as_str(), &body), ("transfer-encoding: chunked\r\n", &chunked)] {
            let answer = port.exchange(head, body)?;
            ensure!(answer.starts_with("HTTP/1.1 413 ") && !answer.contains("xxx"), "{} {head}: {answer}", port.name);
        }
    }
    check_refusals(&fleet, "head_too_large", 4, &before)?;
    check_refusals(&fleet, "request.too_large", 4, &before)
}

#[test]
fn s44_w15_06_ports_close_slow_connections() -> Result<()> {
    let fleet = TempFleet::start()?;
    let before = operator_objects(&fleet)?;
    let mut waits = Vec::new();
    for port in TestedPort::agents_and_admin(&fleet)? {
        let half = format!("POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n", port.path, port.address);
        let body = format!("{half}content-length: 10\r\n\r\nabc");
        let mut wait = |what: &'static str, said: String, promised_s: u64| {
            let port = port.clone();
            waits.push((port.name, what, promised_s, std::thread::spawn(move || port.lifetime(&said))));
        };
        wait("half a head", half, HEADER_S);
        wait("half a body", body, BODY_S);
        if is_long() {
            wait("nothing", String::new(), IDLE_S);
        }
        let silent = port.clone();
        waits.push((port.name, "no handshake", HANDSHAKE_S, std::thread::spawn(move || silent.lifetime_without_handshake())));
        let asking = port.clone();
        let asks = std::thread::spawn(move || asking.lifetime_without_reading());
        waits.push((port.name, "questions alone", WRITE_S, asks));
    }
    for (port, what, promised_s, waited) in waits {
        let lived = waited.join().expect("the thread does not panic").with_context(|| format!("{port}: {what}"))?;
        let promised = Duration::from_secs(promised_s);
        ensure!(lived >= promised, "{port}: {what} lives {lived:?}, not {promised:?}");
    }
    check_refusals(&fleet, "slow_handshake", 2, &before)?;
    check_refusals(&fleet, "slow_header", 2, &before)?;
    check_refusals(&fleet, "slow_body", 2, &before)?;
    check_refusals(&fleet, "slow_reader", 2, &before)
}
