//! What a check-in costs the listener, beside a bare rustls server of the same certificates, key exchange and bytes.
//!
//! Each server is a process of its own on one thread, and is asked for its own CPU time and memory, so that the load's cost is not in
//! the figures; rounds of the two alternate, because a shared machine drifts by more than the difference that is looked for.
//! `cargo bench -p stemma-wire --bench listener [-- ROUNDS [check-in|handshake|idle]]`. The figures to reach are in docs/performance.md.

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
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer, Held, News};
use stemma_wire::message::observed::LocalState;
use stemma_wire::message::{Epoch, PartDigest, Revision, decode, encode};
use stemma_wire::net::TcpListen;
use stemma_wire::serve::{Limits, Peer, Rejected, RequestBody, Server};
use stemma_wire::tls::{
    Accepts, ClientIdentity, Fleet, Listener, Pin, RENEW_GRACE_SECONDS, ServerKey, client_config, server_config,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Connections over which a round's check-ins go.
const KEPT: u32 = 64;
/// Check-ins of a round, on each connection.
const CHECK_INS: u32 = 200;
/// For how long the load lets the server work.
const PAUSE: Duration = Duration::from_millis(3);
/// Handshakes of a round.
const HANDSHAKES: u32 = 200;
/// Connections that lie idle for the memory figure.
const IDLE: u32 = 1000;

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
enum Kind {
    Bare,
    Ours,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Ours => "ours",
        }
    }
}

/// A server's process.
struct Served {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Served {
    fn start(kind: Kind, pki: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", kind.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut commands = child.stdin.take().context("its input")?;
        let mut answers = BufReader::new(child.stdout.take().context("its output")?);
        write!(commands, "{pki}\u{4}")?;
        commands.flush()?;
        let mut address = String::new();
        answers.read_line(&mut address)?;
        Ok(Self { child, commands: Some(commands), answers, address: address.trim().parse()? })
    }

    /// CPU time so far in ns, and memory held in KiB.
    fn usage(&mut self) -> Result<(f64, f64)> {
        writeln!(self.commands.as_mut().context("still asked")?, "usage")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let (cpu, memory) = line.trim().split_once(' ').context("two figures")?;
        Ok((cpu.parse()?, memory.parse()?))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It ends when nobody can ask it any more.
        drop(self.commands.take());
        let _status = self.child.wait();
    }
}

/// What both processes share, as PEM: root, admin issuer, agents issuer, server's leaf and key, node's leaf and key.
fn make_pki() -> Result<String> {
    let authority = |name: &str, usages: Vec<Usage>, above: Option<&(CertificateParams, KeyPair)>| -> Result<_> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(u8::from(above.is_none())));
        params.extended_key_usages = usages;
        let certificate = match above {
            Some((above, above_key)) => params.signed_by(&key, &Issuer::from_params(above, above_key))?,
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

struct Pki {
    certificates: Vec<CertificateDer<'static>>,
    keys: Vec<PrivateKeyDer<'static>>,
}

impl Pki {
    fn read(text: &str) -> Result<Self> {
        let certificates = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>()?;
        let keys = rustls::pki_types::PrivatePkcs8KeyDer::pem_slice_iter(text.as_bytes())
            .map(|key| key.map(PrivateKeyDer::from))
            .collect::<Result<_, _>>()?;
        Ok(Self { certificates, keys })
    }

    fn fleet() -> Fleet {
        "bench".parse().expect("a fleet's name")
    }

    fn server_chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificates[3].clone(), self.certificates[1].clone(), self.certificates[0].clone()]
    }

    fn ours(&self) -> Result<ServerConfig> {
        let listener = Listener {
            accepts: Accepts::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS },
            fleet: Self::fleet(),
            issuers: vec![self.certificates[2].clone()],
        };
        let own = ServerKey { chain: self.server_chain(), key: self.keys[0].clone_key() };
        Ok(server_config(&listener, own, Arc::new(SystemClock))?)
    }

    /// Rustls as it comes, with its own check of client certificates, and no tickets either.
    fn bare(&self) -> Result<ServerConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificates[2].clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier.build()?)
            .with_single_cert(self.server_chain(), self.keys[0].clone_key())?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(config)
    }

    fn client(&self) -> Result<ClientConfig> {
        let pin = Pin::Roots(vec![self.certificates[0].clone()]);
        let own = ClientIdentity { chain: vec![self.certificates[4].clone()], key: self.keys[1].clone_key() };
        Ok(client_config(&pin, Some(Self::fleet()), Some(own), Arc::new(SystemClock))?)
    }
}

/// A check-in with nothing to say, and its answer with nothing new.
fn check_in() -> Vec<u8> {
    let digest = PartDigest([1; 32]);
    encode(&CheckIn {
        boot_id: [7; 16],
        held: Some(Held { epoch: Epoch([2; 16]), revision: Revision(9), known: digest, task_set: digest }),
        results: vec![],
        observation_digest: digest,
        observation: None,
        report: None,
        wants: vec![],
        gives_back: vec![],
        local: LocalState::default(),
        wait_ms: 60_000,
    })
}

fn answer() -> Vec<u8> {
    let observation = Some(PartDigest([1; 32]));
    encode(&CheckInAnswer::Current(Box::new(News {
        acknowledged: 0,
        observation,
        desired: None,
        grants: vec![],
        next_ms: 0,
    })))
}

async fn serve(kind: &str) -> Result<()> {
    let mut input = std::io::stdin().lock();
    let mut text = Vec::new();
    input.read_until(4, &mut text)?;
    let pki = Pki::read(std::str::from_utf8(&text)?)?;
    match kind {
        "bare" => serve_bare(pki.bare()?).await?,
        "ours" => serve_ours(pki.ours()?).await?,
        other => bail!("no server {other}"),
    }
    drop(input);
    // Questions come on standard input; the runtime's one thread serves until it is killed.
    let (to, mut questions) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.is_err() || to.send(()).is_err() {
                return;
            }
        }
    });
    while questions.recv().await.is_some() {
        tell(format_args!("{}", usage()?))?;
    }
    Ok(())
}

fn tell(line: std::fmt::Arguments<'_>) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

fn usage() -> Result<String> {
    // The first figure is the time on a processor, in ns, of the main thread: the one that serves.
    let times = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds = times.split(' ').next().context("schedstat")?;
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("Pss")?;
    Ok(format!("{nanoseconds} {}", pss.trim().trim_end_matches("kB").trim()))
}

async fn serve_bare(config: ServerConfig) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    tell(format_args!("{}", listener.local_addr()?))?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let body = answer();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let response: Arc<[u8]> = [head.as_bytes(), &body].concat().into();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, response) = (acceptor.clone(), Arc::clone(&response));
            tokio::spawn(async move {
                let _nodelay = stream.set_nodelay(true);
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    // One read is one request: the load writes each whole. The message is decoded here too: what is compared is
                    // the way to it and back.
                    let mut buffer = vec![0; 2048];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        if !is_check_in(&buffer[..read]) || stream.write_all(&response).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    Ok(())
}

fn is_check_in(request: &[u8]) -> bool {
    let head = request.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    head.is_some_and(|head| decode::<CheckIn>(&request[head + 4..]).is_ok())
}

async fn serve_ours(config: ServerConfig) -> Result<()> {
    let listen = TcpListen::bind("127.0.0.1:0".parse()?).await?;
    tell(format_args!("{}", listen.local_addr()?))?;
    let config = Arc::new(config);
    let source = Arc::new(move || Arc::clone(&config));
    let server =
        Server::new(listen, Some(source), Limits::default(), Arc::new(SystemClock), Arc::new(Rejected::default()))
            .lean("/agent/v1/checkin");
    let body = Bytes::from(answer());
    let handler = move |_: &Arc<Peer>, request: Request<RequestBody>| {
        let body = body.clone();
        async move {
            let taken = request.into_body().collect(1 << 20).await.map(|bytes| decode::<CheckIn>(&bytes));
            let mut response = Response::new(Full::new(body));
            if !matches!(taken, Ok(Ok(_))) {
                *response.status_mut() = hyper::StatusCode::BAD_REQUEST;
            }
            response
        }
    };
    tokio::spawn(server.run(handler, std::future::pending()));
    Ok(())
}

/// The load's side.
struct Load {
    connector: TlsConnector,
    request: Vec<u8>,
}

impl Load {
    async fn connect(&self, address: SocketAddr) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(self.connector.connect(ServerName::try_from("127.0.0.1")?, stream).await?)
    }

    async fn check_in(&self, stream: &mut TlsStream<TcpStream>) -> Result<()> {
        stream.write_all(&self.request).await?;
        Self::take_answer(stream).await
    }

    async fn take_answer(stream: &mut TlsStream<TcpStream>) -> Result<()> {
        let mut buffer = [0; 2048];
        let read = stream.read(&mut buffer).await?;
        if !buffer[..read].starts_with(b"HTTP/1.1 200") {
            bail!("answered {:?}", String::from_utf8_lossy(&buffer[..read]));
        }
        Ok(())
    }

    async fn kept(&self, served: &mut Served) -> Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..KEPT {
            let mut connection = self.connect(served.address).await?;
            self.check_in(&mut connection).await?;
            connections.push(connection);
        }
        let before = served.usage()?.0;
        for _ in 0..CHECK_INS {
            // All ask before any answer is taken, as a fleet does; and the load sleeps outside of its poll meanwhile, or else the
            // server's writes would pay for waking it, the slower server for more of them.
            for connection in &mut connections {
                connection.write_all(&self.request).await?;
            }
            std::thread::sleep(PAUSE);
            for connection in &mut connections {
                Self::take_answer(connection).await?;
            }
        }
        Ok((served.usage()?.0 - before) / 1000.0 / f64::from(KEPT * CHECK_INS))
    }

    async fn handshakes(&self, served: &mut Served) -> Result<f64> {
        let before = served.usage()?.0;
        for _ in 0..HANDSHAKES {
            self.check_in(&mut self.connect(served.address).await?).await?;
        }
        Ok((served.usage()?.0 - before) / 1000.0 / f64::from(HANDSHAKES))
    }

    async fn idle(&self, served: &mut Served) -> Result<f64> {
        let before = served.usage()?.1;
        let mut connections = Vec::new();
        for _ in 0..IDLE {
            let mut connection = self.connect(served.address).await?;
            self.check_in(&mut connection).await?;
            connections.push(connection);
        }
        Ok((served.usage()?.1 - before) / f64::from(IDLE))
    }
}

async fn compare(rounds: usize, part: &str) -> Result<()> {
    let text = make_pki()?;
    let body = check_in();
    let head = format!("POST /agent/v1/checkin HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n", body.len());
    let connector = TlsConnector::from(Arc::new(Pki::read(&text)?.client()?));
    let load = Load { connector, request: [head.as_bytes(), &body].concat() };
    let (mut bare, mut ours) = (Served::start(Kind::Bare, &text)?, Served::start(Kind::Ours, &text)?);
    if matches!(part, "all" | "check-in") {
        let mut figures = Vec::new();
        for _ in 0..rounds {
            figures.push((load.kept(&mut bare).await?, load.kept(&mut ours).await?));
        }
        report("check-in, connection kept, µs of CPU", &figures);
    }
    if matches!(part, "all" | "handshake") {
        let mut figures = Vec::new();
        for _ in 0..rounds {
            figures.push((load.handshakes(&mut bare).await?, load.handshakes(&mut ours).await?));
        }
        report("handshake and first check-in, µs of CPU", &figures);
    }
    if matches!(part, "all" | "idle") {
        let figures = (load.idle(&mut bare).await?, load.idle(&mut ours).await?);
        report("connected and idle, KiB", &[figures]);
    }
    Ok(())
}

/// The medians of both, and of the ratio of each round.
#[expect(clippy::print_stdout, reason = "a bench's output")]
fn report(what: &str, rounds: &[(f64, f64)]) {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let bare = median(rounds.iter().map(|round| round.0).collect());
    let ours = median(rounds.iter().map(|round| round.1).collect());
    let ratio = median(rounds.iter().map(|round| round.1 / round.0).collect());
    println!("{what}: bare rustls {bare:.1}, ours {ours:.1}, ratio {ratio:.2} ({} rounds)", rounds.len());
}
