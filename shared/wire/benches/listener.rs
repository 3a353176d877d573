//! Compares the cost of a check-in with that of a plain rustls server, with the same certificates, key exchange and
//! bytes.
//!
//! Each server is a process that serves with one thread, and reports the CPU time of this thread and its own memory. So
//! the figures do not include the load client. The servers are measured in alternating rounds, because the speed of a
//! shared machine varies more than the servers differ. Run `cargo bench -p stemma-wire --bench listener [-- ROUNDS
//! [check-in|handshake|idle]]`. The target figures are in docs/performance.md.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose as Usage, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use stemma_wire::clock::SystemClock;
use stemma_wire::message::checkin::{CheckIn, CheckInResponse, CheckInUpdate, HeldDesired};
use stemma_wire::message::observed::LocalState;
use stemma_wire::message::{Epoch, PartDigest, Revision, decode, encode};
use stemma_wire::net::TcpAcceptor;
use stemma_wire::serve::{ListenerLimits, Peer, RejectionCounter, RequestBody, Server};
use stemma_wire::tls::{
    ClientIdentity, FleetName, ListenerRole, Pin, RENEW_GRACE_SECONDS, ServerKey, TlsListener, client_config, server_config,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The number of persistent connections in a round of check-ins.
const PERSISTENT_CONNECTIONS: u32 = 64;
/// The number of check-ins on each connection in a round.
const CHECK_INS: u32 = 200;
/// Pause of the load client between sending its requests and reading the responses. The server handles the requests
/// during this pause.
const LOAD_PAUSE: Duration = Duration::from_millis(3);
/// The number of handshakes in a round.
const HANDSHAKES: u32 = 200;
/// The number of idle connections that the memory figure is measured with.
const IDLE_CONNECTIONS: u32 = 1000;

/// Runs as a server process if the first argument is `serve`. Otherwise compares the servers. The first argument is
/// then the number of rounds, by default 10, and the second argument selects the measurement.
fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments.first().map(String::as_str) {
        Some("serve") => runtime.block_on(serve(arguments.get(1).context("which server")?)),
        rounds => {
            let part = arguments.get(1).map_or("all", String::as_str);
            runtime.block_on(compare(rounds.map_or(Ok(10), str::parse)?, part))
        }
    }
}

/// The two servers that are compared.
#[derive(Clone, Copy)]
enum ServerKind {
    Rustls,
    Stemma,
}

impl ServerKind {
    /// Returns the argument of the subcommand `serve` that starts this server.
    fn name(self) -> &'static str {
        match self {
            Self::Rustls => "bare",
            Self::Stemma => "ours",
        }
    }
}

/// The process of a server.
struct ServerProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl ServerProcess {
    /// Starts a server process, writes the certificates to its standard input, and reads the address that it prints.
    /// The byte 4 (end of transmission) marks the end of the certificates.
    fn start(kind: ServerKind, pki: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", kind.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut server_stdin = child.stdin.take().context("its input")?;
        let mut server_output = BufReader::new(child.stdout.take().context("its output")?);
        write!(server_stdin, "{pki}\u{4}")?;
        server_stdin.flush()?;
        let mut address = String::new();
        server_output.read_line(&mut address)?;
        Ok(Self { child, stdin: Some(server_stdin), stdout: server_output, address: address.trim().parse()? })
    }

    /// Returns the CPU time of the server since its start, in ns, and its memory, in KiB.
    fn usage(&mut self) -> Result<(f64, f64)> {
        writeln!(self.stdin.as_mut().context("open standard input")?, "usage")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let (cpu_ns, memory_kib) = line.trim().split_once(' ').context("two figures")?;
        Ok((cpu_ns.parse()?, memory_kib.parse()?))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process ends when its standard input is closed.
        drop(self.stdin.take());
        let _status = self.child.wait();
    }
}

/// Returns new certificates and keys for the servers and the load client, as PEM. The order is: the certificates of
/// root, admin issuer, agents issuer, server and node, then the keys of server and node.
fn make_pki() -> Result<String> {
    let authority = |name: &str, usages: Vec<Usage>, issuer: Option<&(CertificateParams, KeyPair)>| -> Result<_> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        // The root can issue issuers, and an issuer can issue only leaf certificates.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(u8::from(issuer.is_none())));
        params.extended_key_usages = usages;
        let certificate = match issuer {
            Some((parent, parent_key)) => params.signed_by(&key, &Issuer::from_params(parent, parent_key))?,
            None => params.self_signed(&key)?,
        };
        Ok((certificate.pem(), (params, key)))
    };
    let leaf = |issuer: &(CertificateParams, KeyPair), usage: Usage, names: Vec<SanType>| -> Result<_> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![usage];
        params.subject_alt_names = names;
        Ok((params.signed_by(&key, &Issuer::from_params(&issuer.0, &issuer.1))?.pem(), key.serialize_pem()))
    };
    let uuid = "0190b6c8-4c1e-7d2a-9f00-0123456789ab";
    let uri = |class: &str| -> Result<_> { Ok(SanType::URI(format!("spiffe://bench/{class}/{uuid}").try_into()?)) };
    let (root, root_issuer) = authority("root", vec![], None)?;
    let (admin, admin_issuer) = authority("admin", vec![Usage::ClientAuth, Usage::ServerAuth], Some(&root_issuer))?;
    let (agents, agents_issuer) = authority("agents", vec![Usage::ClientAuth], Some(&root_issuer))?;
    let names = vec![uri("controller")?, SanType::IpAddress([127, 0, 0, 1].into())];
    let (server, server_key) = leaf(&admin_issuer, Usage::ServerAuth, names)?;
    let (node, node_key) = leaf(&agents_issuer, Usage::ClientAuth, vec![uri("node")?])?;
    Ok([root, admin, agents, server, node, server_key, node_key].concat())
}

/// The certificates and keys that [`make_pki`] created, in the same order.
struct Pki {
    certificates: Vec<CertificateDer<'static>>,
    keys: Vec<PrivateKeyDer<'static>>,
}

impl Pki {
    /// Parses certificates and keys from PEM.
    fn read(text: &str) -> Result<Self> {
        let certificates = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>()?;
        let keys = rustls::pki_types::PrivatePkcs8KeyDer::pem_slice_iter(text.as_bytes())
            .map(|key| key.map(PrivateKeyDer::from))
            .collect::<Result<_, _>>()?;
        Ok(Self { certificates, keys })
    }

    fn fleet() -> FleetName {
        "bench".parse().expect("a fleet's name")
    }

    /// Returns the server's certificate, followed by its issuer (the admin issuer) and the root.
    fn server_chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificates[3].clone(), self.certificates[1].clone(), self.certificates[0].clone()]
    }

    /// Returns the config of Stemma's listener for agents, with Stemma's check of client certificates. Certificate 2 is
    /// that of the agents issuer.
    fn stemma_config(&self) -> Result<ServerConfig> {
        let listener = TlsListener {
            role: ListenerRole::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS },
            fleet: Self::fleet(),
            issuers: vec![self.certificates[2].clone()],
        };
        let server_key = ServerKey { chain: self.server_chain(), key: self.keys[0].clone_key() };
        Ok(server_config(&listener, server_key, Arc::new(SystemClock))?)
    }

    /// Returns the config of the plain server, with rustls's own check of client certificates. Like Stemma's listener,
    /// it issues no session tickets. Certificate 2 is that of the agents issuer.
    fn rustls_config(&self) -> Result<ServerConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificates[2].clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier.build()?)
            .with_single_cert(self.server_chain(), self.keys[0].clone_key())?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(config)
    }

    /// Returns the config of the load client, with the node's certificate and the root as trust anchor.
    fn client_config(&self) -> Result<ClientConfig> {
        let pin = Pin::Roots(vec![self.certificates[0].clone()]);
        let identity = ClientIdentity { chain: vec![self.certificates[4].clone()], key: self.keys[1].clone_key() };
        Ok(client_config(&pin, Some(Self::fleet()), Some(identity), Arc::new(SystemClock))?)
    }
}

/// Returns the bytes of a check-in that reports nothing.
fn check_in_request() -> Vec<u8> {
    let digest = PartDigest([1; 32]);
    encode(&CheckIn {
        boot_id: [7; 16],
        held_desired: Some(HeldDesired { epoch: Epoch([2; 16]), revision: Revision(9), known: digest, task_set: digest }),
        results: vec![],
        observation_digest: digest,
        observation: None,
        report: None,
        requested_leases: vec![],
        returned_items: vec![],
        local: LocalState::default(),
        wait_ms: 60_000,
    })
}

/// Returns the bytes of a response to a check-in that changes nothing in the desired state.
fn check_in_response() -> Vec<u8> {
    let observation = Some(PartDigest([1; 32]));
    encode(&CheckInResponse::Current(Box::new(CheckInUpdate {
        acknowledged: 0,
        observation,
        desired: None,
        grants: vec![],
        next_check_in_ms: 0,
    })))
}

/// Runs a server process: reads the certificates from standard input up to the byte 4, prints the address, and then
/// prints the usage for each line of standard input. Returns when standard input is closed.
async fn serve(kind: &str) -> Result<()> {
    let mut input = std::io::stdin().lock();
    let mut text = Vec::new();
    input.read_until(4, &mut text)?;
    let pki = Pki::read(std::str::from_utf8(&text)?)?;
    match kind {
        "bare" => serve_rustls(pki.rustls_config()?).await?,
        "ours" => serve_stemma(pki.stemma_config()?).await?,
        other => bail!("no server {other}"),
    }
    drop(input);
    // Commands arrive on standard input. The runtime's only thread serves until standard input is closed.
    let (sender, mut commands) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.is_err() || sender.send(()).is_err() {
                return;
            }
        }
    });
    while commands.recv().await.is_some() {
        print_line(format_args!("{}", process_usage()?))?;
    }
    Ok(())
}

/// Prints a line at once, because the load client waits for it at the other end of a pipe.
fn print_line(line: std::fmt::Arguments<'_>) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// Returns the CPU time of the main thread in ns and the memory of this process in KiB, separated by a space. The
/// memory is the PSS, which divides each shared page among the processes that share it.
fn process_usage() -> Result<String> {
    // The first figure is the CPU time of the main thread, which serves, in ns.
    let times = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds = times.split(' ').next().context("schedstat")?;
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("Pss")?;
    Ok(format!("{nanoseconds} {}", pss.trim().trim_end_matches("kB").trim()))
}

/// Starts the plain rustls server in the background and prints its address. It responds to each check-in with fixed
/// bytes.
async fn serve_rustls(config: ServerConfig) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    print_line(format_args!("{}", listener.local_addr()?))?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let body = check_in_response();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let response: Arc<[u8]> = [head.as_bytes(), &body].concat().into();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, response) = (acceptor.clone(), Arc::clone(&response));
            tokio::spawn(async move {
                let _nodelay = stream.set_nodelay(true);
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    // One read is one request, because the load client writes each request at once. The message is
                    // decoded here too, since only the transport is compared.
                    let mut buffer = vec![0; 2048];
                    while let Ok(bytes_read @ 1..) = stream.read(&mut buffer).await {
                        if !is_check_in(&buffer[..bytes_read]) || stream.write_all(&response).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    Ok(())
}

/// Returns whether an HTTP request has a body that decodes as a check-in.
fn is_check_in(request: &[u8]) -> bool {
    let head_end = request.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    head_end.is_some_and(|head_end| decode::<CheckIn>(&request[head_end + 4..]).is_ok())
}

/// Starts Stemma's server in the background and prints its address. Its handler responds to each check-in with fixed
/// bytes.
async fn serve_stemma(config: ServerConfig) -> Result<()> {
    let acceptor = TcpAcceptor::bind("127.0.0.1:0".parse()?).await?;
    print_line(format_args!("{}", acceptor.local_addr()?))?;
    let config = Arc::new(config);
    let config_source = Arc::new(move || Arc::clone(&config));
    let server = Server::new(
        acceptor,
        Some(config_source),
        ListenerLimits::default(),
        Arc::new(SystemClock),
        Arc::new(RejectionCounter::default()),
    )
    .for_own_clients("/agent/v1/checkin");
    let body = Bytes::from(check_in_response());
    let handler = move |_: &Arc<Peer>, request: Request<RequestBody>| {
        let body = body.clone();
        async move {
            let decoded = request.into_body().collect(1 << 20).await.map(|bytes| decode::<CheckIn>(&bytes));
            let mut response = Response::new(Full::new(body));
            if !matches!(decoded, Ok(Ok(_))) {
                *response.status_mut() = hyper::StatusCode::BAD_REQUEST;
            }
            response
        }
    };
    tokio::spawn(server.run(handler, std::future::pending()));
    Ok(())
}

/// The client that generates the load.
struct LoadClient {
    connector: TlsConnector,
    request: Vec<u8>,
}

impl LoadClient {
    async fn connect(&self, address: SocketAddr) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(self.connector.connect(ServerName::try_from("127.0.0.1")?, stream).await?)
    }

    /// Sends a check-in and waits for the response.
    async fn check_in(&self, stream: &mut TlsStream<TcpStream>) -> Result<()> {
        stream.write_all(&self.request).await?;
        Self::read_response(stream).await
    }

    /// Reads a response, which must have status 200. One read returns the whole response, because the response is
    /// small.
    async fn read_response(stream: &mut TlsStream<TcpStream>) -> Result<()> {
        let mut buffer = [0; 2048];
        let bytes_read = stream.read(&mut buffer).await?;
        if !buffer[..bytes_read].starts_with(b"HTTP/1.1 200") {
            bail!("answered {:?}", String::from_utf8_lossy(&buffer[..bytes_read]));
        }
        Ok(())
    }

    /// Returns the mean CPU time of the server for a check-in on an open connection, in µs.
    async fn measure_check_ins(&self, server: &mut ServerProcess) -> Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..PERSISTENT_CONNECTIONS {
            let mut connection = self.connect(server.address).await?;
            self.check_in(&mut connection).await?;
            connections.push(connection);
        }
        let (cpu_before_ns, _) = server.usage()?;
        for _ in 0..CHECK_INS {
            // All requests are sent before any response is read, as in a fleet. In between, the load client's thread
            // sleeps. If it waited in its poll instead, the server's CPU time would include waking it, and the slower
            // server would wake it more often.
            for connection in &mut connections {
                connection.write_all(&self.request).await?;
            }
            std::thread::sleep(LOAD_PAUSE);
            for connection in &mut connections {
                Self::read_response(connection).await?;
            }
        }
        Ok((server.usage()?.0 - cpu_before_ns) / 1000.0 / f64::from(PERSISTENT_CONNECTIONS * CHECK_INS))
    }

    /// Returns the mean CPU time of the server for a TLS handshake with one check-in, in µs.
    async fn measure_handshakes(&self, server: &mut ServerProcess) -> Result<f64> {
        let (cpu_before_ns, _) = server.usage()?;
        for _ in 0..HANDSHAKES {
            self.check_in(&mut self.connect(server.address).await?).await?;
        }
        Ok((server.usage()?.0 - cpu_before_ns) / 1000.0 / f64::from(HANDSHAKES))
    }

    /// Returns the mean memory of the server for an idle connection that has sent one check-in, in KiB.
    async fn measure_idle_memory(&self, server: &mut ServerProcess) -> Result<f64> {
        let (_, memory_before_kib) = server.usage()?;
        let mut connections = Vec::new();
        for _ in 0..IDLE_CONNECTIONS {
            let mut connection = self.connect(server.address).await?;
            self.check_in(&mut connection).await?;
            connections.push(connection);
        }
        Ok((server.usage()?.1 - memory_before_kib) / f64::from(IDLE_CONNECTIONS))
    }
}

/// Measures both servers in alternating rounds and prints the figures. `part` selects the measurement: `check-in`,
/// `handshake`, `idle` or `all`. The memory of idle connections is measured only once.
async fn compare(rounds: usize, part: &str) -> Result<()> {
    let pki = make_pki()?;
    let body = check_in_request();
    let head = format!("POST /agent/v1/checkin HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n", body.len());
    let connector = TlsConnector::from(Arc::new(Pki::read(&pki)?.client_config()?));
    let client = LoadClient { connector, request: [head.as_bytes(), &body].concat() };
    let (mut rustls_server, mut stemma_server) =
        (ServerProcess::start(ServerKind::Rustls, &pki)?, ServerProcess::start(ServerKind::Stemma, &pki)?);
    if matches!(part, "all" | "check-in") {
        let mut figures = Vec::new();
        for _ in 0..rounds {
            figures
                .push((client.measure_check_ins(&mut rustls_server).await?, client.measure_check_ins(&mut stemma_server).await?));
        }
        report("check-in, connection kept, µs of CPU", &figures);
    }
    if matches!(part, "all" | "handshake") {
        let mut figures = Vec::new();
        for _ in 0..rounds {
            figures.push((
                client.measure_handshakes(&mut rustls_server).await?,
                client.measure_handshakes(&mut stemma_server).await?,
            ));
        }
        report("handshake and first check-in, µs of CPU", &figures);
    }
    if matches!(part, "all" | "idle") {
        let figures =
            (client.measure_idle_memory(&mut rustls_server).await?, client.measure_idle_memory(&mut stemma_server).await?);
        report("connected and idle, KiB", &[figures]);
    }
    Ok(())
}

/// Prints the median of each server, and the median of the ratios of the rounds. A round is a pair of figures: rustls,
/// then Stemma.
#[expect(clippy::print_stdout, reason = "a bench's output")]
fn report(measurement: &str, rounds: &[(f64, f64)]) {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let rustls_median = median(rounds.iter().map(|round| round.0).collect());
    let stemma_median = median(rounds.iter().map(|round| round.1).collect());
    let ratio_median = median(rounds.iter().map(|round| round.1 / round.0).collect());
    println!(
        "{measurement}: bare rustls {rustls_median:.1}, ours {stemma_median:.1}, ratio {ratio_median:.2} ({} rounds)",
        rounds.len()
    );
}
