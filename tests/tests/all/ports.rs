//! What both real ports of the real program refuse whoever it is that asks: bodies and heads without measure, and
//! connections that keep it waiting (docs/trust.md, S43, S44, S46). Each is counted in `/metrics`, said in the log, changes nothing,
//! and the next good request is served.

use std::io::{ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use stemma_tests::chance::is_long;
use stemma_tests::fleet::Fleet;
use stemma_tests::program::{PATIENCE, eventually};
use stemma_wire::clock::SystemClock;
use stemma_wire::error::ErrorType;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};

/// The times that are promised.
const HANDSHAKE_S: u64 = 5;
const HEADER_S: u64 = 5;
const BODY_S: u64 = 15;
const WRITE_S: u64 = 15;
const IDLE_S: u64 = 60;
/// What is not cut after so long is not cut at all. It is no measure of the time in which a busy machine comes to it.
const NEVER: Duration = Duration::from_mins(4);

/// One of the two ports: the agents' as somebody finds it who has not joined yet, the operators' as one of them does.
#[derive(Clone)]
struct Port {
    name: &'static str,
    address: SocketAddr,
    path: &'static str,
    /// More than the largest body that the path takes.
    too_many: usize,
    tls: Arc<ClientConfig>,
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

impl Port {
    fn both(fleet: &Fleet) -> Result<[Self; 2]> {
        let bound = fleet.bound();
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
                too_many: beyond,
                tls: tls(None)?,
            },
            Self {
                name: "admin",
                address: address(&bound.admin)?,
                path: "/v1/apply",
                too_many: 8 * 1024 * 1024 + beyond,
                tls: tls(Some(own))?,
            },
        ])
    }

    fn open(&self) -> Result<Stream> {
        let socket = TcpStream::connect(self.address)?;
        let connection = ClientConnection::new(Arc::clone(&self.tls), self.address.ip().into())?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }

    /// Sends a head and a body, and reads the answer. What the server no longer reads is no failure.
    fn exchange(&self, head: &str, body: &[u8]) -> Result<String> {
        let mut stream = self.open()?;
        stream.sock.set_read_timeout(Some(PATIENCE))?;
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{head}\r\n",
            self.path, self.address
        );
        let _taken =
            stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body)).and_then(|()| stream.flush());
        read_until(&mut stream, is_whole)
    }

    /// How long a connection lives that says this much.
    fn outlives(&self, said: &str) -> Result<Duration> {
        // The port may count from its first byte on.
        let began = Instant::now();
        let mut stream = self.open()?;
        stream.write_all(said.as_bytes())?;
        stream.flush()?;
        stream.sock.set_read_timeout(Some(NEVER))?;
        let answer = to_end(&mut stream)?;
        ensure!(answer.is_empty(), "{}: {said:?} is answered {answer}", self.name);
        Ok(began.elapsed())
    }

    /// The same of one that asks again and again and reads none of the answers: from then on the port waits for it.
    fn outlives_reading_nothing(&self) -> Result<Duration> {
        let began = Instant::now();
        let mut stream = self.open()?;
        stream.sock.set_write_timeout(Some(NEVER))?;
        let ask = format!("GET {} HTTP/1.1\r\nhost: {}\r\n\r\n", self.path, self.address).repeat(100);
        loop {
            match stream.write_all(ask.as_bytes()).and_then(|()| stream.flush()) {
                Ok(()) => {}
                Err(error) if is_late(&error) => bail!("{}: who reads nothing is not cut", self.name),
                Err(_) => return Ok(began.elapsed()),
            }
        }
    }

    /// The same of one that does not even begin its handshake.
    fn outlives_silence(&self) -> Result<Duration> {
        let began = Instant::now();
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_read_timeout(Some(NEVER))?;
        to_end(&mut socket)?;
        Ok(began.elapsed())
    }
}

/// What comes until the connection ends; that it is cut without a farewell is an end too.
fn to_end(stream: &mut impl Read) -> Result<String> {
    read_until(stream, |_| false)
}

/// What comes until it is enough, or the connection ends.
fn read_until(stream: &mut impl Read, is_enough: impl Fn(&str) -> bool) -> Result<String> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let mut answer = String::new();
    while !is_enough(&answer) {
        match stream.read(&mut piece) {
            Ok(length @ 1..) => bytes.extend(&piece[..length]),
            Err(error) if is_late(&error) => bail!("the connection goes on after {answer:?}"),
            Ok(_) | Err(_) => break,
        }
        answer = String::from_utf8_lossy(&bytes).into_owned();
    }
    Ok(answer)
}

/// Whether an answer is here with all of its body. The connection stays open after it, for the next request, where the server read the
/// whole of this one.
fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let length = fields
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .find_map(|(_, value)| value.parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

/// Whether it is not the connection that ended, but the time to wait for it.
fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// How often something was refused for a reason, by `/metrics`; getting that is a good request.
fn counted(fleet: &Fleet, reason: &str) -> Result<u64> {
    let metrics = fleet.stemma(&["get", "--raw", "/metrics"])?;
    let name = format!("stemma_rejected_total{{reason=\"{reason}\"}} ");
    Ok(metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(Ok(0), str::parse)?)
}

/// What was refused is counted, is in the log, and has changed nothing.
fn noticed(fleet: &Fleet, reason: &str, count: u64, before: &str) -> Result<()> {
    eventually(&format!("{count} of {reason}"), || {
        let found = counted(fleet, reason)?;
        ensure!(found == count, "{found} of {reason} are counted");
        let log = fleet.log();
        let lines =
            log.lines().filter(|line| line.contains("request refused") && line.contains(&format!("reason={reason}")));
        let lines = lines.filter(|line| line.contains("peer=127.0.0.1")).count() as u64;
        ensure!(lines == count.min(10), "{lines} lines of the log tell of {reason}:\n{log}");
        Ok(())
    })?;
    ensure!(made(fleet)? == before, "{reason}: something is written");
    Ok(())
}

/// What operators have made: refusals of theirs are written to the audit, and change none of it.
fn made(fleet: &Fleet) -> Result<String> {
    let lists = ["/v1/nodes/detail", "/v1/clusters/detail", "/v1/clustertemplates", "/v1/join-tokens"];
    lists.into_iter().map(|path| fleet.stemma(&["get", "--raw", path])).collect()
}

#[test]
fn s43_s46_bodies_and_heads_without_measure_are_refused_on_both_ports() -> Result<()> {
    let fleet = Fleet::start()?;
    let before = made(&fleet)?;
    let many: String = (0..1000).map(|n| format!("x{n}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(200_000));
    for port in Port::both(&fleet)? {
        for head in [&many, &long] {
            let answer = port.exchange(head, b"")?;
            ensure!(
                answer.starts_with("HTTP/1.1 431 ") && answer.ends_with(ErrorType::RequestHeadTooLarge.fixed_body()),
                "{}: {answer}",
                port.name
            );
        }
        let body = vec![b'x'; port.too_many];
        let chunk = |piece: &[u8]| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        let chunked: Vec<u8> = body.chunks(16 * 1024).flat_map(chunk).collect();
        let length = format!("content-length: {}\r\n", body.len());
        for (head, body) in [(length.as_str(), &body), ("transfer-encoding: chunked\r\n", &chunked)] {
            let answer = port.exchange(head, body)?;
            ensure!(answer.starts_with("HTTP/1.1 413 ") && !answer.contains("xxx"), "{} {head}: {answer}", port.name);
        }
    }
    noticed(&fleet, "head_too_large", 4, &before)?;
    noticed(&fleet, "request.too_large", 4, &before)
}

#[test]
fn s44_w15_06_who_keeps_a_port_waiting_is_cut_on_both() -> Result<()> {
    let fleet = Fleet::start()?;
    let before = made(&fleet)?;
    let mut waits = Vec::new();
    for port in Port::both(&fleet)? {
        let half =
            format!("POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n", port.path, port.address);
        let body = format!("{half}content-length: 10\r\n\r\nabc");
        let mut wait = |what: &'static str, said: String, promised_s: u64| {
            let port = port.clone();
            waits.push((port.name, what, promised_s, std::thread::spawn(move || port.outlives(&said))));
        };
        wait("half a head", half, HEADER_S);
        wait("half a body", body, BODY_S);
        if is_long() {
            wait("nothing", String::new(), IDLE_S);
        }
        let silent = port.clone();
        waits.push((port.name, "no handshake", HANDSHAKE_S, std::thread::spawn(move || silent.outlives_silence())));
        let asking = port.clone();
        let asks = std::thread::spawn(move || asking.outlives_reading_nothing());
        waits.push((port.name, "questions alone", WRITE_S, asks));
    }
    for (port, what, promised_s, waited) in waits {
        let lived = waited.join().expect("the thread does not panic").with_context(|| format!("{port}: {what}"))?;
        let promised = Duration::from_secs(promised_s);
        ensure!(lived >= promised, "{port}: {what} lives {lived:?}, not {promised:?}");
    }
    noticed(&fleet, "slow_handshake", 2, &before)?;
    noticed(&fleet, "slow_header", 2, &before)?;
    noticed(&fleet, "slow_body", 2, &before)?;
    noticed(&fleet, "slow_reader", 2, &before)
}
