//! What both real ports of the real program refuse whoever it is that asks: bodies and heads without measure, and
//! connections that keep it waiting (docs/trust.md, S43, S44, S46). Each is counted in `/metrics`, said in the log, changes nothing,
//! and the next good request is served.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use stemma_tests::chance::is_long;
use stemma_tests::fleet::Fleet;
use stemma_tests::program::{eventually, eventually_within};
use stemma_wire::clock::SystemClock;
use stemma_wire::error::ErrorType;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};

/// A promised time, and ten times that is waited for it.
const HANDSHAKE_S: u64 = 5;
const HEADER_S: u64 = 5;
const BODY_S: u64 = 15;
const WRITE_S: u64 = 15;
/// A port that takes nothing for so long waits for the answers to be read.
const PAUSE: Duration = Duration::from_secs(3);
const IDLE_S: u64 = 60;

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
        stream.sock.set_read_timeout(Some(Duration::from_secs(30)))?;
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{head}\r\n",
            self.path, self.address
        );
        let _taken =
            stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body)).and_then(|()| stream.flush());
        Ok(read_until(&mut stream, is_whole))
    }

    /// How long a connection lives that says this much.
    fn outlives(&self, said: &str, promised_s: u64) -> Result<Duration> {
        let mut stream = self.open()?;
        stream.write_all(said.as_bytes())?;
        stream.flush()?;
        stream.sock.set_read_timeout(Some(Duration::from_secs(promised_s * 10)))?;
        let began = Instant::now();
        let answer = to_end(&mut stream);
        ensure!(answer.is_empty(), "{}: {said:?} is answered {answer}", self.name);
        Ok(began.elapsed())
    }

    /// Asks again and again until the port takes no more questions, and reads none of the answers.
    fn asks_and_reads_nothing(&self) -> Result<Stream> {
        let mut stream = self.open()?;
        stream.sock.set_write_timeout(Some(PAUSE))?;
        let ask = format!("GET {} HTTP/1.1\r\nhost: {}\r\n\r\n", self.path, self.address).repeat(100);
        while stream.write_all(ask.as_bytes()).and_then(|()| stream.flush()).is_ok() {}
        Ok(stream)
    }

    /// The same of one that does not even begin its handshake.
    fn outlives_silence(&self) -> Result<Duration> {
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_read_timeout(Some(Duration::from_secs(HANDSHAKE_S * 10)))?;
        let began = Instant::now();
        // Cut with or without a farewell.
        let _ended = socket.read(&mut [0; 16]);
        Ok(began.elapsed())
    }
}

/// What comes until the connection ends; that it is cut without a farewell is an end too.
fn to_end(stream: &mut Stream) -> String {
    read_until(stream, |_| false)
}

/// What comes until it is enough, or the connection ends.
fn read_until(stream: &mut Stream, is_enough: impl Fn(&str) -> bool) -> String {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let mut answer = String::new();
    while !is_enough(&answer)
        && let Ok(length @ 1..) = stream.read(&mut piece)
    {
        bytes.extend(&piece[..length]);
        answer = String::from_utf8_lossy(&bytes).into_owned();
    }
    answer
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
    let (mut waits, ports) = (Vec::new(), Port::both(&fleet)?);
    for port in &ports {
        let half =
            format!("POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n", port.path, port.address);
        let body = format!("{half}content-length: 10\r\n\r\nabc");
        let mut wait = |what: &'static str, said: String, promised_s: u64| {
            let port = port.clone();
            waits.push((port.name, what, promised_s, std::thread::spawn(move || port.outlives(&said, promised_s))));
        };
        wait("half a head", half, HEADER_S);
        wait("half a body", body, BODY_S);
        if is_long() {
            wait("nothing", String::new(), IDLE_S);
        }
        let silent = port.clone();
        waits.push((port.name, "no handshake", HANDSHAKE_S, std::thread::spawn(move || silent.outlives_silence())));
    }
    let began = Instant::now();
    let asking = ports.clone().map(|port| std::thread::spawn(move || port.asks_and_reads_nothing()));
    let asked = asking.map(|port| port.join().expect("the thread does not panic"));
    let unread = asked.into_iter().collect::<Result<Vec<_>>>()?;
    let (promised, mut lived) = (Duration::from_secs(WRITE_S), None);
    eventually_within(promised * 10, "who reads nothing is cut", || {
        let log = fleet.log();
        let cut = log.lines().filter(|line| line.contains("reason=slow_reader")).count();
        lived = lived.or_else(|| (cut > 0).then(|| began.elapsed()));
        ensure!(cut == unread.len(), "{cut} connections are cut:\n{log}");
        Ok(())
    })?;
    ensure!(lived >= Some(promised), "who reads nothing lives {lived:?}, not {promised:?}");
    for (port, what, promised_s, waited) in waits {
        let lived = waited.join().expect("the thread does not panic").with_context(|| format!("{port}: {what}"))?;
        let promised = Duration::from_secs(promised_s);
        ensure!((promised..promised * 10).contains(&lived), "{port}: {what} lives {lived:?}, not {promised:?}");
    }
    noticed(&fleet, "slow_handshake", 2, &before)?;
    noticed(&fleet, "slow_header", 2, &before)?;
    noticed(&fleet, "slow_body", 2, &before)?;
    noticed(&fleet, "slow_reader", 2, &before)
}
