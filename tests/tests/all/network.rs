//! Connections that are cut in the handshake or in the middle of a document (F17). Whatever the byte, half an answer is
//! never taken for a whole one, nothing is created in half, and the next try succeeds. A host whose agent's connections
//! are cut at random still gets what was edited in the meantime. No file is torn, and no command runs twice for one
//! value.

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
use stemma_agent::sync::join::{JoinError, JoinOptions, join};
use stemma_core::digest::sha256;
use stemma_tests::fleet::TempFleet;
use stemma_tests::ports::ClosedPort;
use stemma_tests::program::{MAX_WAIT, check_file_contains, eventually};
use stemma_tests::proxy::{Direction, Proxy};
use stemma_tests::seed::{SeededRng, is_long};
use stemma_tests::site::{SITE, check_files};
use stemma_wire::client::{Client, ClientError, ClientLimits};
use stemma_wire::clock::SystemClock;
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::enroll::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse};
use stemma_wire::message::observed::{LocalState, Observation};
use stemma_wire::message::{Hash, PartDigest, WireVersion, decode, digest_part, encode, encode_part};
use stemma_wire::tls::{ClientIdentity, FleetName, Pin, client_config};
use tokio::runtime::Runtime;

/// Minimum numbers of edits and of cut connections in the test that cuts at random.
const EDIT_COUNT: usize = 40;
const CUT_COUNT: u64 = 25;
/// Maximum delay between two edits, in milliseconds.
const MAX_EDIT_INTERVAL_MS: usize = 200;
/// Number of bytes by which the length of a handshake varies with its signatures, in both directions.
const HANDSHAKE_VARIATION_BYTES: usize = 16;
/// One in this many cut joins is tried again, because the retry costs more than the cut join. A long run retries all of
/// them.
const REJOIN_INTERVAL: usize = 8;

/// A release with a file whose content is a blob.
const FILE_TASK: &str = r#"
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

/// The bytes of an exchange at which one test cuts. Of `tests` concurrent tests, each takes every `tests`-th byte, from
/// the byte of its number on.
#[derive(Clone, Copy, Debug)]
struct TestShard {
    number: usize,
    tests: usize,
}

impl TestShard {
    fn select(self, bytes: Range<usize>) -> impl Iterator<Item = usize> + Clone {
        bytes.skip(self.number).step_by(self.tests)
    }
}

/// Defines the tests that share the bytes of an exchange, each with its number. The numbers count up from 0, so no byte
/// is left out.
macro_rules! sharded_tests {
    ($exchange:ident, $numbers:ident: $($test:ident $number:literal),+ $(,)?) => {
        const $numbers: &[usize] = &[$($number),+];

        $(#[test]
        fn $test() -> Result<()> {
            assert!($numbers.iter().copied().eq(0..$numbers.len()), "{:?}", $numbers);
            $exchange(TestShard { number: $number, tests: $numbers.len() })
        })+
    };
}

/// A controller behind a proxy that cuts connections on request, and what a host needs to join it.
struct ProxiedController {
    fleet: TempFleet,
    proxy: Proxy,
    runtime: Runtime,
    token: String,
    ca_hash: [u8; 32],
}

/// The credentials of a joined host, as its network half has them.
struct JoinedHost {
    key: Vec<u8>,
    chain: Vec<Vec<u8>>,
    root: Vec<u8>,
    fleet: FleetName,
}

impl JoinedHost {
    fn tls(&self) -> Result<Arc<ClientConfig>> {
        let chain = self.chain.iter().cloned().map(CertificateDer::from).collect();
        let own = ClientIdentity { chain, key: PrivatePkcs8KeyDer::from(self.key.clone()).into() };
        let pin = Pin::Roots(vec![CertificateDer::from(self.root.clone())]);
        Ok(Arc::new(client_config(&pin, Some(self.fleet.clone()), Some(own), Arc::new(SystemClock))?))
    }
}

impl ProxiedController {
    fn new() -> Result<Self> {
        let fleet = TempFleet::start()?;
        let manifest = fleet.dir().join("site.yaml");
        std::fs::write(&manifest, FILE_TASK)?;
        std::fs::write(fleet.dir().join("body"), "a line of a file's body\n".repeat(40))?;
        fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
        let proxy = Proxy::start(fleet.addresses().agents.trim_start_matches("https://").parse()?, SeededRng::new(1))?;
        let token = fleet.stemma(&["token", "create", "--nodegroup", "c/g", "--uses", "100000"])?.trim().to_owned();
        let hash = fleet.stemma(&["token", "ca-hash"])?;
        let mut ca_hash = [0; 32];
        for (byte, at) in ca_hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(hash.trim().get(at..at + 2).context("64 digits")?, 16)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { fleet, proxy, runtime, token, ca_hash })
    }

    /// Runs an exchange with its connection cut at each byte of a shard: first of what the client sends, then of what
    /// the server sends. `try_one` gets the number of the cut, and whether the connection is cut. Returns the number of
    /// cuts.
    fn cut_at_each_byte(
        &self,
        what: &str,
        share: TestShard,
        from: [usize; 2],
        mut try_one: impl FnMut(usize, bool) -> Result<()>,
    ) -> Result<usize> {
        try_one(0, false).context("without a cut")?;
        let total = [Direction::Up, Direction::Down].map(|way| self.proxy.transferred_bytes(way));
        let (mut number, mut whole) = (0, 0);
        for way in [Direction::Up, Direction::Down] {
            let (mut whole_in_a_row, begun) = (0, self.proxy.cuts());
            let bytes = share.select(from[way as usize]..total[way as usize]);
            let planned = bytes.clone().count();
            ensure!(planned > 0, "{what}: no byte in {share:?} of {total:?}, {way:?}");
            for after in bytes {
                // The exchange has become shorter than this byte, as an answer does when its news were already
                // delivered.
                if whole_in_a_row > HANDSHAKE_VARIATION_BYTES {
                    break;
                }
                number += 1;
                let before = self.proxy.cuts();
                self.proxy.cut_next(way, after);
                try_one(number, true).with_context(|| format!("{what} cut at byte {after}, {way:?}, of {total:?}"))?;
                whole_in_a_row = if self.proxy.cuts() > before { 0 } else { whole_in_a_row + 1 };
                whole += usize::from(whole_in_a_row > 0);
            }
            // An answer without news is shorter than the first one, but it still has most of its bytes.
            let cuts = usize::try_from(self.proxy.cuts() - begun)?;
            print_log(&format!("{what}, {share:?}: {cuts} of {planned} bytes, {way:?}"));
            ensure!(cuts >= planned / 4 * 3, "{way:?}: {cuts} connections were cut at {planned} bytes");
        }
        let cuts = usize::try_from(self.proxy.cuts())?;
        // The last bytes of a connection are its closing message, whose length varies. A connection that is cut there
        // may be counted as cut only after its exchange succeeded.
        ensure!(
            cuts + whole >= number && cuts <= number && whole <= 4 * HANDSHAKE_VARIATION_BYTES,
            "{cuts} of {number} connections were cut"
        );
        print_log(&format!("{what}, {share:?}: {cuts} of {number} connections cut, each at another byte of {total:?}"));
        Ok(number)
    }

    /// Returns the minimum number of bytes that client and server have sent when the handshake is complete. Returns
    /// zeros in a long run, where the handshakes of all exchanges are cut at each byte, not only those of joins.
    fn handshake_bytes(&self, member: &JoinedHost) -> Result<[usize; 2]> {
        if is_long() {
            return Ok([0, 0]);
        }
        let mut stream = TcpStream::connect(self.proxy.address())?;
        let name = ServerName::from(self.proxy.address().ip());
        let (read, written) = ClientConnection::new(member.tls()?, name)?.complete_io(&mut stream)?;
        Ok([written, read].map(|bytes| bytes.saturating_sub(HANDSHAKE_VARIATION_BYTES)))
    }

    fn target(&self) -> Result<stemma_wire::client::Target> {
        Ok(format!("https://{}", self.proxy.address()).parse()?)
    }

    /// Joins a host without the agent's files, which cost more than the exchange.
    fn join_host(&self, name: &str) -> Result<JoinedHost> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let request = EnrollRequest { token: self.token.clone(), csr: csr(&key)?, seal_key: [7; 32], name: name.to_owned() };
        let tls = client_config(&Pin::KeyHash(self.ca_hash), None, None, Arc::new(SystemClock))?;
        let mut client = Client::new(self.target()?, Some(Arc::new(tls)), ClientLimits::default());
        let answer = self.post(&mut client, "/agent/v1/enroll", encode(&request))?;
        let EnrollResponse { fleet, chain, root, .. } = decode(answer.body())?;
        Ok(JoinedHost { key: key.serialize_der(), chain, root, fleet: fleet.parse()? })
    }

    fn client(&self, member: &JoinedHost) -> Result<Client> {
        Ok(Client::new(self.target()?, Some(member.tls()?), ClientLimits::default()))
    }

    fn post(&self, client: &mut Client, path: &str, body: Vec<u8>) -> Result<Response<Bytes>, ClientError> {
        let request = Request::post(path).body(Bytes::from(body)).expect("the path is a path");
        self.runtime.block_on(client.send(request))
    }
}

#[allow(clippy::print_stdout, reason = "what was counted")]
fn print_log(line: &str) {
    println!("{line}");
}

/// Creates a certificate request with an empty subject.
pub(crate) fn csr(key: &KeyPair) -> Result<Vec<u8>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

fn sample_check_in() -> CheckIn {
    let observation = Observation::default();
    let observation_digest: PartDigest = digest_part(WireVersion::CURRENT, &encode_part(WireVersion::CURRENT, &observation));
    CheckIn {
        boot_id: [1; 16],
        held_desired: None,
        results: Vec::new(),
        observation_digest,
        observation: Some(observation),
        report: None,
        requested_leases: Vec::new(),
        returned_items: Vec::new(),
        local: LocalState::default(),
        wait_ms: 0,
    }
}

/// Returns the body of a successful answer, or `None` if there was no answer. Only a cut connection may have none.
fn check_answer(answer: Result<Response<Bytes>, ClientError>, is_cut: bool) -> Result<Option<Bytes>> {
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

/// Returns the names of the files that an unanswered join leaves on a host.
fn leftover_files(at: &Path) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for entry in std::fs::read_dir(at)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            left.extend(leftover_files(&entry.path())?);
        } else {
            left.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(left)
}

fn retry_join(share: TestShard) -> Result<()> {
    let line = ProxiedController::new()?;
    let (root, nobody) = (tempfile::tempdir()?, ClosedPort::new()?);
    let (mut joined, mut again, mut left_out) = (0, 0, 0);
    let invite = |name: String| -> Result<JoinOptions> {
        Ok(JoinOptions {
            controllers: vec![line.target()?],
            ca_hash: line.ca_hash,
            token: line.token.clone(),
            name,
            seal_key: [7; 32],
        })
    };
    let tries = line.cut_at_each_byte("a join", share, [0, 0], |number, is_cut| {
        let at = root.path().join(number.to_string());
        std::fs::create_dir(&at)?;
        let host = RealHost::new(&at)?;
        let invited = || -> Result<_> {
            let invitation = invite(format!("n{number}"))?;
            Ok(line.runtime.block_on(join(&host, invitation, Arc::new(SystemClock))))
        };
        match invited()? {
            Ok(_) => joined += 1,
            Err(JoinError::Client(_)) if is_cut => {
                let left = leftover_files(&at)?;
                ensure!(left.iter().all(|file| file == "joining-key"), "left on a host that has not joined: {left:?}");
                if !is_long() && number % REJOIN_INTERVAL != 0 {
                    left_out += 1;
                    return Ok(std::fs::remove_dir_all(&at)?);
                }
                let nobody = format!("https://{}", nobody.address()).parse()?;
                for (controller, ca_hash) in [(nobody, line.ca_hash), (line.target()?, [0; 32])] {
                    let meanwhile = JoinOptions { controllers: vec![controller], ca_hash, ..invite(format!("n{number}"))? };
                    ensure!(line.runtime.block_on(join(&host, meanwhile, Arc::new(SystemClock))).is_err(), "it joined");
                }
                invited()??;
                again += 1;
            }
            Err(error) => return Err(error.into()),
        }
        ensure!(at.join("var/lib/stemma-agent/identity.json").exists(), "n{number} has joined");
        ensure!(!leftover_files(&at)?.contains(&"joining-key".to_owned()), "the key is among the credentials now");
        Ok(std::fs::remove_dir_all(&at)?)
    })?;
    print_log(&format!("{joined} joins were answered, {again} were made again, {left_out} were left as they were"));
    let refused = again + left_out;
    ensure!(joined + refused == tries + 1 && refused > tries / 2 && again + joined >= refused / REJOIN_INTERVAL, "of {tries}");
    // Each use of the token has a node, and no other node exists. A node is complete or absent. A join that was not
    // tried again may have created its node.
    let token = line.token.split('.').next().context("a token's id")?.to_owned();
    let token: Value = serde_json::from_str(&line.fleet.stemma(&["get", "--raw", &format!("/v1/join-tokens/{token}")])?)?;
    let left = token["uses_left"].as_u64().with_context(|| token.to_string())?;
    let nodes = line.fleet.stemma(&["get", "nodes", "-o", "name"])?.lines().count();
    ensure!(100_000 - left == nodes as u64, "{left} uses are left, and there are {nodes} nodes");
    ensure!((joined + again..=tries + 1).contains(&nodes), "{nodes} nodes of {} hosts that joined", joined + again);
    Ok(())
}

fn retry_check_in(share: TestShard) -> Result<()> {
    let line = ProxiedController::new()?;
    let member = line.join_host("web-1")?;
    let mut client = line.client(&member)?;
    let ask = |client: &mut Client, is_cut| -> Result<Option<CheckInResponse>> {
        let body = check_answer(line.post(client, "/agent/v1/checkin", encode(&sample_check_in())), is_cut)?;
        Ok(body.map(|body| decode(&body)).transpose()?)
    };
    eventually("a desired state", || match ask(&mut client, false)? {
        Some(CheckInResponse::Current(news)) if news.desired.is_some() => Ok(()),
        other => anyhow::bail!("{other:?}"),
    })?;
    let from = line.handshake_bytes(&member)?;
    line.cut_at_each_byte("a check-in", share, from, |_, is_cut| {
        for is_cut in [is_cut, false] {
            client.close();
            match ask(&mut client, is_cut)? {
                Some(CheckInResponse::Current(news)) => {
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

fn retry_renewal(share: TestShard) -> Result<()> {
    let line = ProxiedController::new()?;
    let mut members = vec![line.join_host("n0")?];
    let from = line.handshake_bytes(&members[0])?;
    // One node can get only this number of certificates.
    let most = 100;
    line.cut_at_each_byte("a renewal", share, from, |number, is_cut| {
        if number / most >= members.len() {
            // No host may join here, because its connection would take the cut that is planned for the renewal.
            anyhow::bail!("no member for {number}");
        }
        let mut client = line.client(&members[number / most])?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let renew = |client: &mut Client, is_cut| -> Result<Option<RenewResponse>> {
            let body = check_answer(line.post(client, "/agent/v1/renew", encode(&RenewRequest { csr: csr(&key)? })), is_cut)?;
            Ok(body.map(|body| decode(&body)).transpose()?)
        };
        let first = renew(&mut client, is_cut)?;
        let renewed = match first {
            Some(renewed) => renewed,
            None => renew(&mut client, false)?.context("the second try is answered")?,
        };
        ensure!(renewed.chain.len() > 1, "a chain without its issuer");
        if (number + 1) % most == 0 {
            members.push(line.join_host(&format!("n{number}"))?);
        }
        Ok(())
    })?;
    Ok(())
}

fn retry_blob(share: TestShard) -> Result<()> {
    let line = ProxiedController::new()?;
    let member = line.join_host("web-1")?;
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
        let came = check_answer(answer, is_cut)?;
        anyhow::Ok(came.map(|_| pieces))
    };
    eventually("the desired state names it", || fetch(&mut client, false).map(drop))?;
    let from = line.handshake_bytes(&member)?;
    line.cut_at_each_byte("a blob", share, from, |_, is_cut| {
        client.close();
        match fetch(&mut client, is_cut)? {
            Some(came) => ensure!(came == body, "{} bytes of {} are taken for all", came.len(), body.len()),
            None => ensure!(fetch(&mut client, false)?.is_some_and(|came| came == body), "the next try is served"),
        }
        Ok(())
    })?;
    Ok(())
}

sharded_tests! { retry_join, JOINS:
    f17_join_succeeds_with_same_token_when_cut_1 0,
    f17_join_succeeds_with_same_token_when_cut_2 1,
    f17_join_succeeds_with_same_token_when_cut_3 2,
    f17_join_succeeds_with_same_token_when_cut_4 3,
}

sharded_tests! { retry_check_in, CHECK_INS:
    f17_check_in_answer_is_complete_or_absent_when_cut 0,
}

sharded_tests! { retry_renewal, RENEWALS:
    f17_renewal_retries_with_same_key_when_cut 0,
}

sharded_tests! { retry_blob, BLOBS:
    f17_blob_is_rejected_when_cut 0,
}

#[test]
fn host_loses_and_tears_nothing_when_connections_are_cut() -> Result<()> {
    let mut chance = SeededRng::from_env()?;
    let mut fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let controller = fleet.addresses().agents.trim_start_matches("https://").parse()?;
    let proxy = Proxy::start(controller, chance.clone())?;
    fleet.set_agent_address(proxy.address());
    let web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || check_files(&web))?;

    proxy.set_random_cuts(true);
    // Replaces the connection that was open before the cuts began.
    fleet.crash_controller()?;
    let (mut edits, until) = (0, std::time::Instant::now() + 2 * MAX_WAIT);
    while edits < EDIT_COUNT || proxy.cuts() < CUT_COUNT {
        edits += 1;
        fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier=t{edits}")])?;
        std::thread::sleep(Duration::from_millis(chance.next_below(MAX_EDIT_INTERVAL_MS) as u64));
        check_files(&web)?;
        ensure!(std::time::Instant::now() < until, "only {} connections were cut", proxy.cuts());
    }
    print_log(&format!("{edits} edits, {} connections cut", proxy.cuts()));
    proxy.set_random_cuts(false);
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=last"])?;
    eventually("the last edit on the host", || {
        check_file_contains(&web.path("run/stemma/labels.json"), "\"tier\":\"last\"").with_context(|| web.log())?;
        check_file_contains(&web.path("etc/nginx/conf.d/site.conf"), "tier last").with_context(|| web.log())
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
