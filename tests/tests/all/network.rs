//! Connections that are cut, in the handshake or in the middle of a document (F17): whatever byte it is, half an answer is never taken
//! for a whole one, nothing is made in half, and the next try is served. And an agent whose connections are cut at random ends with
//! what was edited meanwhile on its host: no file is torn, no command runs twice for one value.

use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hyper::{Request, Response};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection};
use serde_json::Value;
use stemma_agent::host::real::RealHost;
use stemma_agent::sync::join::{Invitation, JoinError, join};
use stemma_core::digest::sha256;
use stemma_tests::chance::{Chance, is_long};
use stemma_tests::fleet::Fleet;
use stemma_tests::ports::Closed;
use stemma_tests::program::{PATIENCE, eventually, file_contains};
use stemma_tests::proxy::{Proxy, Way};
use stemma_tests::site::{SITE, whole};
use stemma_wire::client::{Client, ClientError, ClientLimits};
use stemma_wire::clock::SystemClock;
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::enroll::{EnrollAnswer, EnrollRequest, RenewAnswer, RenewRequest};
use stemma_wire::message::observed::{LocalState, Observation};
use stemma_wire::message::{Hash, PartDigest, WireVersion, decode, digest_part, encode, encode_part};
use stemma_wire::tls::{ClientIdentity, Fleet as FleetName, Pin, client_config};
use tokio::runtime::Runtime;

/// How often something is edited while connections are cut at random, at least, and how many of them are cut.
const EDITS: usize = 40;
const CUTS: u64 = 25;
/// So long at most between two edits.
const WITHIN_MS: usize = 200;
/// How far a handshake's length varies with its signatures, both ways.
const VARIES: usize = 16;
/// Of so many joins that were cut one is made again, which costs more than the cut one; in a long run all are.
const JOINED_AGAIN: usize = 8;

/// A release with a file body of its own.
const BODY: &str = r#"
kind: Release
name: site
version: "1"
roles: {all: {tags: [common]}}
tags: {common: {}}
tasks:
  - {id: body, type: file, tags: [common], parameters: {path: /etc/body, source: body}}
---
{kind: Cluster, name: c, release: site@1}
---
{kind: NodeGroup, cluster: c, name: g, roles: [all]}
"#;

/// Those bytes of an exchange at which one test cuts: of so many tests that run side by side each takes every so many-th, from its number on.
#[derive(Clone, Copy, Debug)]
struct Share {
    number: usize,
    tests: usize,
}

impl Share {
    fn of(self, bytes: Range<usize>) -> impl Iterator<Item = usize> + Clone {
        bytes.skip(self.number).step_by(self.tests)
    }
}

/// The tests that share the bytes of an exchange, each with its number. No byte is left out: the numbers are counted up from 0.
macro_rules! tests_of {
    ($exchange:ident, $numbers:ident: $($test:ident $number:literal),+ $(,)?) => {
        const $numbers: &[usize] = &[$($number),+];

        $(#[test]
        fn $test() -> Result<()> {
            assert!($numbers.iter().copied().eq(0..$numbers.len()), "{:?}", $numbers);
            $exchange(Share { number: $number, tests: $numbers.len() })
        })+
    };
}

/// A controller behind a proxy that cuts where it is told, and what a host needs to join it.
struct Line {
    fleet: Fleet,
    proxy: Proxy,
    runtime: Runtime,
    token: String,
    ca_hash: [u8; 32],
}

/// A host that has joined, as its network half holds it.
struct Member {
    key: Vec<u8>,
    chain: Vec<Vec<u8>>,
    root: Vec<u8>,
    fleet: FleetName,
}

impl Member {
    fn tls(&self) -> Result<Arc<ClientConfig>> {
        let chain = self.chain.iter().cloned().map(CertificateDer::from).collect();
        let own = ClientIdentity { chain, key: PrivatePkcs8KeyDer::from(self.key.clone()).into() };
        let pin = Pin::Roots(vec![CertificateDer::from(self.root.clone())]);
        Ok(Arc::new(client_config(&pin, Some(self.fleet.clone()), Some(own), Arc::new(SystemClock))?))
    }
}

impl Line {
    fn new() -> Result<Self> {
        let fleet = Fleet::start()?;
        let manifest = fleet.dir().join("site.yaml");
        std::fs::write(&manifest, BODY)?;
        std::fs::write(fleet.dir().join("body"), "a line of a file's body\n".repeat(40))?;
        fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
        let proxy = Proxy::to(fleet.bound().agents.trim_start_matches("https://").parse()?, Chance::new(1))?;
        let token = fleet.stemma(&["token", "create", "--nodegroup", "c/g", "--uses", "100000"])?.trim().to_owned();
        let hash = fleet.stemma(&["token", "ca-hash"])?;
        let mut ca_hash = [0; 32];
        for (byte, at) in ca_hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(hash.trim().get(at..at + 2).context("64 digits")?, 16)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { fleet, proxy, runtime, token, ca_hash })
    }

    /// Tries an exchange with its connection cut at each byte of a share, first of what the client says, then of what the server says.
    /// `try_one` is told the cut's number; gives how many cuts there were.
    fn at_each_byte(
        &self,
        what: &str,
        share: Share,
        from: [usize; 2],
        mut try_one: impl FnMut(usize, bool) -> Result<()>,
    ) -> Result<usize> {
        try_one(0, false).context("without a cut")?;
        let total = [Way::Up, Way::Down].map(|way| self.proxy.passed(way));
        let (mut number, mut whole) = (0, 0);
        for way in [Way::Up, Way::Down] {
            let (mut whole_in_a_row, begun) = (0, self.proxy.cuts());
            let bytes = share.of(from[way as usize]..total[way as usize]);
            let planned = bytes.clone().count();
            ensure!(planned > 0, "{what}: no byte in {share:?} of {total:?}, {way:?}");
            for after in bytes {
                // An exchange that has become shorter, as an answer does whose news have been told, has no more bytes than these.
                if whole_in_a_row > VARIES {
                    break;
                }
                number += 1;
                let before = self.proxy.cuts();
                self.proxy.cut_next(way, after);
                try_one(number, true).with_context(|| format!("{what} cut at byte {after}, {way:?}, of {total:?}"))?;
                whole_in_a_row = if self.proxy.cuts() > before { 0 } else { whole_in_a_row + 1 };
                whole += usize::from(whole_in_a_row > 0);
            }
            // An answer without news is shorter than the first was, and yet most of it.
            let cuts = usize::try_from(self.proxy.cuts() - begun)?;
            said(&format!("{what}, {share:?}: {cuts} of {planned} bytes, {way:?}"));
            ensure!(cuts >= planned / 4 * 3, "{way:?}: {cuts} connections were cut at {planned} bytes");
        }
        let cuts = usize::try_from(self.proxy.cuts())?;
        // The last bytes of a connection are its farewell, whose length is not always the same. One that is cut there may be counted as
        // cut only after its exchange came out whole.
        ensure!(
            cuts + whole >= number && cuts <= number && whole <= 4 * VARIES,
            "{cuts} of {number} connections were cut"
        );
        said(&format!("{what}, {share:?}: {cuts} of {number} connections cut, each at another byte of {total:?}"));
        Ok(number)
    }

    /// How much of a connection both sides have said when its handshake is made, at least; nothing in a long run, where all
    /// handshakes are cut at each of their bytes and not those of joins alone.
    fn handshake(&self, member: &Member) -> Result<[usize; 2]> {
        if is_long() {
            return Ok([0, 0]);
        }
        let mut stream = TcpStream::connect(self.proxy.address())?;
        let name = ServerName::from(self.proxy.address().ip());
        let (read, written) = ClientConnection::new(member.tls()?, name)?.complete_io(&mut stream)?;
        Ok([written, read].map(|bytes| bytes.saturating_sub(VARIES)))
    }

    fn target(&self) -> Result<stemma_wire::client::Target> {
        Ok(format!("https://{}", self.proxy.address()).parse()?)
    }

    /// Joins without the agent's files, which cost more than the exchange.
    fn member(&self, name: &str) -> Result<Member> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let request =
            EnrollRequest { token: self.token.clone(), csr: csr(&key)?, seal_key: [7; 32], name: name.to_owned() };
        let tls = client_config(&Pin::KeyHash(self.ca_hash), None, None, Arc::new(SystemClock))?;
        let mut client = Client::new(self.target()?, Some(Arc::new(tls)), ClientLimits::default());
        let answer = self.post(&mut client, "/agent/v1/enroll", encode(&request))?;
        let EnrollAnswer { fleet, chain, root, .. } = decode(answer.body())?;
        Ok(Member { key: key.serialize_der(), chain, root, fleet: fleet.parse()? })
    }

    fn client(&self, member: &Member) -> Result<Client> {
        Ok(Client::new(self.target()?, Some(member.tls()?), ClientLimits::default()))
    }

    fn post(&self, client: &mut Client, path: &str, body: Vec<u8>) -> Result<Response<Bytes>, ClientError> {
        let request = Request::post(path).body(Bytes::from(body)).expect("the path is a path");
        self.runtime.block_on(client.send(request))
    }
}

#[allow(clippy::print_stdout, reason = "what was counted")]
fn said(line: &str) {
    println!("{line}");
}

/// A request for a certificate that asks for nothing but that.
pub(crate) fn csr(key: &KeyPair) -> Result<Vec<u8>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

fn check_in() -> CheckIn {
    let observation = Observation::default();
    let observation_digest: PartDigest =
        digest_part(WireVersion::CURRENT, &encode_part(WireVersion::CURRENT, &observation));
    CheckIn {
        boot_id: [1; 16],
        held: None,
        results: Vec::new(),
        observation_digest,
        observation: Some(observation),
        report: None,
        wants: Vec::new(),
        gives_back: Vec::new(),
        local: LocalState::default(),
        wait_ms: 0,
    }
}

/// What a try came to: an answer of success, whole, or none at all. `None` is allowed where the connection was cut.
fn answered(answer: Result<Response<Bytes>, ClientError>, is_cut: bool) -> Result<Option<Bytes>> {
    match answer {
        Ok(answer) => {
            let status = answer.status();
            ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(answer.body()));
            Ok(Some(answer.into_body()))
        }
        Err(error) if !is_cut => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// The files that a join which was not answered leaves on a host.
fn left(at: &Path) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for entry in std::fs::read_dir(at)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            left.extend(self::left(&entry.path())?);
        } else {
            left.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(left)
}

fn join_again(share: Share) -> Result<()> {
    let line = Line::new()?;
    let (root, nobody) = (tempfile::tempdir()?, Closed::new()?);
    let (mut joined, mut again, mut left_out) = (0, 0, 0);
    let invite = |name: String| -> Result<Invitation> {
        Ok(Invitation {
            controllers: vec![line.target()?],
            ca_hash: line.ca_hash,
            token: line.token.clone(),
            name,
            seal_key: [7; 32],
        })
    };
    let tries = line.at_each_byte("a join", share, [0, 0], |number, is_cut| {
        let at = root.path().join(number.to_string());
        std::fs::create_dir(&at)?;
        let host = RealHost::new(&at)?;
        let invited = || -> Result<_> {
            let invitation = invite(format!("n{number}"))?;
            Ok(line.runtime.block_on(join(&host, invitation, Arc::new(SystemClock))))
        };
        match invited()? {
            Ok(_) => joined += 1,
            Err(JoinError::Asked(_)) if is_cut => {
                let left = left(&at)?;
                ensure!(left.iter().all(|file| file == "joining-key"), "left on a host that has not joined: {left:?}");
                if !is_long() && number % JOINED_AGAIN != 0 {
                    left_out += 1;
                    return Ok(std::fs::remove_dir_all(&at)?);
                }
                let nobody = format!("https://{}", nobody.address()).parse()?;
                for (controller, ca_hash) in [(nobody, line.ca_hash), (line.target()?, [0; 32])] {
                    let meanwhile =
                        Invitation { controllers: vec![controller], ca_hash, ..invite(format!("n{number}"))? };
                    ensure!(line.runtime.block_on(join(&host, meanwhile, Arc::new(SystemClock))).is_err(), "it joined");
                }
                invited()??;
                again += 1;
            }
            Err(error) => return Err(error.into()),
        }
        ensure!(at.join("var/lib/stemma-agent/identity.json").exists(), "n{number} has joined");
        ensure!(!left(&at)?.contains(&"joining-key".to_owned()), "the key is among the credentials now");
        Ok(std::fs::remove_dir_all(&at)?)
    })?;
    said(&format!("{joined} joins were answered, {again} were made again, {left_out} were left as they were"));
    let refused = again + left_out;
    ensure!(
        joined + refused == tries + 1 && refused > tries / 2 && again + joined >= refused / JOINED_AGAIN,
        "of {tries}"
    );
    // A node is there where its token was used, and nowhere else: whole, or not at all. One that was left may have been made.
    let token = line.token.split('.').next().context("a token's id")?.to_owned();
    let token: Value =
        serde_json::from_str(&line.fleet.stemma(&["get", "--raw", &format!("/v1/join-tokens/{token}")])?)?;
    let left = token["uses_left"].as_u64().with_context(|| token.to_string())?;
    let nodes = line.fleet.stemma(&["get", "nodes", "-o", "name"])?.lines().count();
    ensure!(100_000 - left == nodes as u64, "{left} uses are left, and there are {nodes} nodes");
    ensure!((joined + again..=tries + 1).contains(&nodes), "{nodes} nodes of {} hosts that joined", joined + again);
    Ok(())
}

fn check_in_again(share: Share) -> Result<()> {
    let line = Line::new()?;
    let member = line.member("web-1")?;
    let mut client = line.client(&member)?;
    let ask = |client: &mut Client, is_cut| -> Result<Option<CheckInAnswer>> {
        let body = answered(line.post(client, "/agent/v1/checkin", encode(&check_in())), is_cut)?;
        Ok(body.map(|body| decode(&body)).transpose()?)
    };
    eventually("a desired state", || match ask(&mut client, false)? {
        Some(CheckInAnswer::Current(news)) if news.desired.is_some() => Ok(()),
        other => anyhow::bail!("{other:?}"),
    })?;
    let from = line.handshake(&member)?;
    line.at_each_byte("a check-in", share, from, |_, is_cut| {
        for is_cut in [is_cut, false] {
            client.close();
            match ask(&mut client, is_cut)? {
                Some(CheckInAnswer::Current(news)) => {
                    let desired = news.desired.context("the desired state, which this host never holds")?;
                    let known = desired.known.context("its known part")?;
                    ensure!(PartDigest(sha256(&known)) == desired.known_digest, "half a known part");
                }
                None if is_cut => {}
                other => anyhow::bail!("{other:?}"),
            }
            if !is_cut {
                break;
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn renew_again(share: Share) -> Result<()> {
    let line = Line::new()?;
    let mut members = vec![line.member("n0")?];
    let from = line.handshake(&members[0])?;
    // A node is given so many certificates and no more.
    let most = 100;
    line.at_each_byte("a renewal", share, from, |number, is_cut| {
        if number / most >= members.len() {
            // Not through the cut that is planned for the renewal.
            anyhow::bail!("no member for {number}");
        }
        let mut client = line.client(&members[number / most])?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let renew = |client: &mut Client, is_cut| -> Result<Option<RenewAnswer>> {
            let body =
                answered(line.post(client, "/agent/v1/renew", encode(&RenewRequest { csr: csr(&key)? })), is_cut)?;
            Ok(body.map(|body| decode(&body)).transpose()?)
        };
        let first = renew(&mut client, is_cut)?;
        let renewed = match first {
            Some(renewed) => renewed,
            None => renew(&mut client, false)?.context("the second try is answered")?,
        };
        ensure!(renewed.chain.len() > 1, "a chain without its issuer");
        if (number + 1) % most == 0 {
            members.push(line.member(&format!("n{number}"))?);
        }
        Ok(())
    })?;
    Ok(())
}

fn fetch_again(share: Share) -> Result<()> {
    let line = Line::new()?;
    let member = line.member("web-1")?;
    let mut client = line.client(&member)?;
    let body = std::fs::read(line.fleet.dir().join("body"))?;
    let path = format!("/agent/v1/blobs/{}", Hash(sha256(&body)));
    let fetch = |client: &mut Client, is_cut| {
        let mut pieces = Vec::new();
        let get = Request::get(&path).body(Bytes::new())?;
        let sink = async |piece: Bytes| {
            pieces.extend(piece);
            Ok(())
        };
        let answer = line.runtime.block_on(client.stream(get, sink));
        let came = answered(answer, is_cut)?;
        anyhow::Ok(came.map(|_| pieces))
    };
    eventually("the desired state names it", || fetch(&mut client, false).map(drop))?;
    let from = line.handshake(&member)?;
    line.at_each_byte("a blob", share, from, |_, is_cut| {
        client.close();
        match fetch(&mut client, is_cut)? {
            Some(came) => ensure!(came == body, "{} bytes of {} are taken for all", came.len(), body.len()),
            None => ensure!(fetch(&mut client, false)?.is_some_and(|came| came == body), "the next try is served"),
        }
        Ok(())
    })?;
    Ok(())
}

tests_of! { join_again, JOINS:
    f17_a_join_cut_at_any_byte_joins_at_the_next_try_with_the_same_token_1 0,
    f17_a_join_cut_at_any_byte_joins_at_the_next_try_with_the_same_token_2 1,
    f17_a_join_cut_at_any_byte_joins_at_the_next_try_with_the_same_token_3 2,
    f17_a_join_cut_at_any_byte_joins_at_the_next_try_with_the_same_token_4 3,
}

tests_of! { check_in_again, CHECK_INS:
    f17_a_check_in_cut_at_any_byte_is_answered_whole_or_not_at_all 0,
}

tests_of! { renew_again, RENEWALS:
    f17_a_renewal_cut_at_any_byte_is_asked_for_again_with_the_same_key 0,
}

tests_of! { fetch_again, BLOBS:
    f17_a_blob_cut_at_any_byte_is_never_taken_for_whole 0,
}

#[test]
fn connections_cut_at_random_lose_and_tear_nothing_on_the_host() -> Result<()> {
    let mut chance = Chance::seeded()?;
    let mut fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let controller = fleet.bound().agents.trim_start_matches("https://").parse()?;
    let proxy = Proxy::to(controller, chance.clone())?;
    fleet.reach_agents_by(proxy.address());
    let web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || whole(&web))?;

    proxy.cut(true);
    // So that the connection that was open before is a new one.
    fleet.crash_controller()?;
    let (mut edits, until) = (0, std::time::Instant::now() + 2 * PATIENCE);
    while edits < EDITS || proxy.cuts() < CUTS {
        edits += 1;
        fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier=t{edits}")])?;
        std::thread::sleep(Duration::from_millis(chance.below(WITHIN_MS) as u64));
        whole(&web)?;
        ensure!(std::time::Instant::now() < until, "only {} connections were cut", proxy.cuts());
    }
    said(&format!("{edits} edits, {} connections cut", proxy.cuts()));
    proxy.cut(false);
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=last"])?;
    eventually("the last edit on the host", || {
        file_contains(&web.path("run/stemma/labels.json"), "\"tier\":\"last\"").with_context(|| web.log())?;
        file_contains(&web.path("etc/nginx/conf.d/site.conf"), "tier last").with_context(|| web.log())
    })?;
    let notes = eventually("the command that reads the label, run for its last value", || {
        let notes = std::fs::read_to_string(web.path("var/log/site.log"))?;
        ensure!(notes.ends_with("serves last\n"), "{notes}\n{}", web.log());
        Ok(notes)
    })?;
    let mut ran: Vec<&str> = notes.lines().collect();
    let runs = ran.len();
    ran.dedup();
    ensure!(ran.len() == runs, "a command ran twice for one value:\n{notes}");
    Ok(())
}
