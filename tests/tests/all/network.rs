//! Connections that are cut during the handshake or in the middle of a message (F17). A receiver never accepts a part
//! of a message as the whole message, no object is created in part, and the next attempt succeeds. If the connections
//! of an agent are cut at random, its host still receives every edit. No file is written in part, and no command runs
//! twice for one value.

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

/// Minimum number of edits in the test that cuts connections at random.
const MIN_EDITS: usize = 40;
/// Minimum number of connections that are cut in the test that cuts connections at random.
const MIN_CUTS: u64 = 25;
/// Maximum delay between two edits in the test that cuts connections at random, in milliseconds.
const MAX_EDIT_INTERVAL_MS: usize = 200;
/// Maximum variation in the length of a TLS handshake, in bytes for each direction. The signatures in a handshake have
/// no fixed length.
const HANDSHAKE_VARIATION_BYTES: usize = 16;
/// Interval of retries in a short run: one cut join of eight is retried, because a retry takes longer than the cut
/// join. A long run retries every cut join.
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

/// The share of one test in the bytes of an exchange (a request and its response). The test cuts the connection at each
/// byte of its shard. Of `tests` concurrent tests, the test `number` has every `tests`-th byte, beginning with the byte
/// of that number.
#[derive(Clone, Copy, Debug)]
struct TestShard {
    number: usize,
    tests: usize,
}

impl TestShard {
    /// Returns the bytes of a range that belong to this shard.
    fn select(self, bytes: Range<usize>) -> impl Iterator<Item = usize> + Clone {
        bytes.skip(self.number).step_by(self.tests)
    }
}

/// Defines several tests that together cut an exchange at each byte. Each test has the number of its shard. It also
/// checks that the numbers of all shards count up from 0, so that no byte is omitted.
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

/// A controller behind a proxy that cuts connections on request. Hosts join it with the token and the hash of its
/// root's key.
struct ProxiedController {
    fleet: TempFleet,
    proxy: Proxy,
    runtime: Runtime,
    token: String,
    ca_hash: [u8; 32],
}

/// The credentials of a joined host: its key and certificate chain, and the fleet's root and name.
struct JoinedHost {
    key: Vec<u8>,
    chain: Vec<Vec<u8>>,
    root: Vec<u8>,
    fleet: FleetName,
}

impl JoinedHost {
    /// Returns the TLS configuration of the host, which trusts only the root of its fleet.
    fn tls(&self) -> Result<Arc<ClientConfig>> {
        let chain = self.chain.iter().cloned().map(CertificateDer::from).collect();
        let identity = ClientIdentity { chain, key: PrivatePkcs8KeyDer::from(self.key.clone()).into() };
        let pin = Pin::Roots(vec![CertificateDer::from(self.root.clone())]);
        Ok(Arc::new(client_config(&pin, Some(self.fleet.clone()), Some(identity), Arc::new(SystemClock))?))
    }
}

impl ProxiedController {
    /// Starts a controller with the site of [`FILE_TASK`], a proxy for its agents' port, and a token for joins.
    fn new() -> Result<Self> {
        let fleet = TempFleet::start()?;
        let manifest = fleet.dir().join("site.yaml");
        std::fs::write(&manifest, FILE_TASK)?;
        std::fs::write(fleet.dir().join("body"), "a line of a file's body\n".repeat(40))?;
        fleet.stemma(&["apply", "-f", &manifest.to_string_lossy()])?;
        let proxy = Proxy::start(fleet.addresses().agents.trim_start_matches("https://").parse()?, SeededRng::new(1))?;
        let token = fleet.stemma(&["token", "create", "--nodegroup", "c/g", "--uses", "100000"])?.trim().to_owned();
        let hash_digits = fleet.stemma(&["token", "ca-hash"])?;
        let mut ca_hash = [0; 32];
        for (byte, start) in ca_hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(hash_digits.trim().get(start..start + 2).context("64 digits")?, 16)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { fleet, proxy, runtime, token, ca_hash })
    }

    /// Runs an exchange without a cut, and then once for each byte of a shard with a cut there: first of the client's
    /// bytes, then of the server's. Omits the bytes before `first_bytes`. `run_exchange` gets the number of the run,
    /// and whether a cut is planned. Returns the number of planned cuts. Fails if too few connections were cut.
    fn cut_at_each_byte(
        &self,
        exchange_name: &str,
        shard: TestShard,
        first_bytes: [usize; 2],
        mut run_exchange: impl FnMut(usize, bool) -> Result<()>,
    ) -> Result<usize> {
        run_exchange(0, false).context("without a cut")?;
        let total_bytes = [Direction::Up, Direction::Down].map(|direction| self.proxy.transferred_bytes(direction));
        let (mut number, mut uncut_count) = (0, 0);
        for direction in [Direction::Up, Direction::Down] {
            let (mut consecutive_uncut, cuts_at_start) = (0, self.proxy.cuts());
            let bytes = shard.select(first_bytes[direction as usize]..total_bytes[direction as usize]);
            let planned = bytes.clone().count();
            ensure!(planned > 0, "{exchange_name}: no byte in {shard:?} of {total_bytes:?}, {direction:?}");
            for byte in bytes {
                // The exchange now ends before this byte. For example, an answer is shorter if its update was already
                // delivered.
                if consecutive_uncut > HANDSHAKE_VARIATION_BYTES {
                    break;
                }
                number += 1;
                let cuts_before = self.proxy.cuts();
                self.proxy.cut_next(direction, byte);
                run_exchange(number, true)
                    .with_context(|| format!("{exchange_name} cut at byte {byte}, {direction:?}, of {total_bytes:?}"))?;
                consecutive_uncut = if self.proxy.cuts() > cuts_before { 0 } else { consecutive_uncut + 1 };
                uncut_count += usize::from(consecutive_uncut > 0);
            }
            // An answer without an update is shorter than the first answer, but has at least three quarters of its
            // bytes.
            let cuts = usize::try_from(self.proxy.cuts() - cuts_at_start)?;
            print_log(&format!("{exchange_name}, {shard:?}: {cuts} of {planned} bytes, {direction:?}"));
            ensure!(cuts >= planned / 4 * 3, "{direction:?}: {cuts} connections were cut at {planned} bytes");
        }
        let cuts = usize::try_from(self.proxy.cuts())?;
        // The last bytes of a connection are its closing message, whose length varies. A connection that is cut there
        // may be counted as cut only after its exchange succeeded.
        ensure!(
            cuts + uncut_count >= number && cuts <= number && uncut_count <= 4 * HANDSHAKE_VARIATION_BYTES,
            "{cuts} of {number} connections were cut"
        );
        print_log(&format!(
            "{exchange_name}, {shard:?}: {cuts} of {number} connections cut, each at another byte of {total_bytes:?}"
        ));
        Ok(number)
    }

    /// Returns the minimum number of bytes that client and server send in a handshake. The test of joins cuts at each
    /// byte of a handshake, so the tests of other exchanges cut only after these bytes. Returns zeros in a long run,
    /// which cuts the handshakes of all exchanges.
    fn handshake_bytes(&self, host: &JoinedHost) -> Result<[usize; 2]> {
        if is_long() {
            return Ok([0, 0]);
        }
        let mut stream = TcpStream::connect(self.proxy.address())?;
        let name = ServerName::from(self.proxy.address().ip());
        let (read, written) = ClientConnection::new(host.tls()?, name)?.complete_io(&mut stream)?;
        Ok([written, read].map(|bytes| bytes.saturating_sub(HANDSHAKE_VARIATION_BYTES)))
    }

    /// Returns the address of the proxy, to which clients connect instead of the controller.
    fn target(&self) -> Result<stemma_wire::client::Target> {
        Ok(format!("https://{}", self.proxy.address()).parse()?)
    }

    /// Joins a host by one request, without an agent. An agent would also write its files, which takes longer than the
    /// request.
    fn join_host(&self, name: &str) -> Result<JoinedHost> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let request = EnrollRequest { token: self.token.clone(), csr: csr(&key)?, seal_key: [7; 32], name: name.to_owned() };
        let tls = client_config(&Pin::KeyHash(self.ca_hash), None, None, Arc::new(SystemClock))?;
        let mut client = Client::new(self.target()?, Some(Arc::new(tls)), ClientLimits::default());
        let answer = self.post(&mut client, "/agent/v1/enroll", encode(&request))?;
        let EnrollResponse { fleet, chain, root, .. } = decode(answer.body())?;
        Ok(JoinedHost { key: key.serialize_der(), chain, root, fleet: fleet.parse()? })
    }

    /// Returns a client with the credentials of a host, which connects to the proxy.
    fn client(&self, host: &JoinedHost) -> Result<Client> {
        Ok(Client::new(self.target()?, Some(host.tls()?), ClientLimits::default()))
    }

    fn post(&self, client: &mut Client, path: &str, body: Vec<u8>) -> Result<Response<Bytes>, ClientError> {
        let request = Request::post(path).body(Bytes::from(body)).expect("a valid path");
        self.runtime.block_on(client.send(request))
    }
}

#[allow(clippy::print_stdout, reason = "prints the counts of the test")]
fn print_log(line: &str) {
    println!("{line}");
}

/// Creates a certificate request for a key, with an empty subject. Returns the request as DER.
pub(crate) fn csr(key: &KeyPair) -> Result<Vec<u8>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// Returns a check-in of a host that has no desired state yet, with an empty observation.
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

/// Returns the body of a successful answer, or `None` if the connection was cut before the answer. Fails on an error
/// status, and if a connection that is not cut has no answer.
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

/// Returns the names of all files below a directory of a host. After an unanswered join, they are its leftovers.
fn leftover_files(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(leftover_files(&entry.path())?);
        } else {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// Cuts the connection of a join at each byte of a shard. An unanswered join leaves only its key on the host. A join
/// that is retried with the same token succeeds, also after joins that failed for another reason.
fn retry_join(shard: TestShard) -> Result<()> {
    let proxied = ProxiedController::new()?;
    let (hosts_dir, closed_port) = (tempfile::tempdir()?, ClosedPort::new()?);
    let (mut joined_count, mut retried_count, mut abandoned_count) = (0, 0, 0);
    let join_options = |name: String| -> Result<JoinOptions> {
        Ok(JoinOptions {
            controllers: vec![proxied.target()?],
            ca_hash: proxied.ca_hash,
            token: proxied.token.clone(),
            name,
            seal_key: [7; 32],
        })
    };
    let tries = proxied.cut_at_each_byte("a join", shard, [0, 0], |number, is_cut| {
        let host_dir = hosts_dir.path().join(number.to_string());
        std::fs::create_dir(&host_dir)?;
        let host = RealHost::new(&host_dir)?;
        let try_join = || -> Result<_> {
            let options = join_options(format!("n{number}"))?;
            Ok(proxied.runtime.block_on(join(&host, options, Arc::new(SystemClock))))
        };
        match try_join()? {
            Ok(_) => joined_count += 1,
            Err(JoinError::Client(_)) if is_cut => {
                let remaining = leftover_files(&host_dir)?;
                ensure!(remaining.iter().all(|file| file == "joining-key"), "files on a host that has not joined: {remaining:?}");
                if !is_long() && number % REJOIN_INTERVAL != 0 {
                    abandoned_count += 1;
                    return Ok(std::fs::remove_dir_all(&host_dir)?);
                }
                let closed_port = format!("https://{}", closed_port.address()).parse()?;
                for (controller, ca_hash) in [(closed_port, proxied.ca_hash), (proxied.target()?, [0; 32])] {
                    let wrong_options =
                        JoinOptions { controllers: vec![controller], ca_hash, ..join_options(format!("n{number}"))? };
                    ensure!(
                        proxied.runtime.block_on(join(&host, wrong_options, Arc::new(SystemClock))).is_err(),
                        "a join with a wrong address or a wrong hash of the CA succeeded"
                    );
                }
                try_join()??;
                retried_count += 1;
            }
            Err(error) => return Err(error.into()),
        }
        ensure!(host_dir.join("var/lib/stemma-agent/identity.json").exists(), "n{number} has joined");
        ensure!(!leftover_files(&host_dir)?.contains(&"joining-key".to_owned()), "the file joining-key remains after the join");
        Ok(std::fs::remove_dir_all(&host_dir)?)
    })?;
    print_log(&format!("{joined_count} joins were answered, {retried_count} were retried, {abandoned_count} were not retried"));
    let failed_count = retried_count + abandoned_count;
    ensure!(
        joined_count + failed_count == tries + 1
            && failed_count > tries / 2
            && retried_count + joined_count >= failed_count / REJOIN_INTERVAL,
        "{tries} tries"
    );
    // Each use of the token created one node, and no other node exists. So each node is either complete or absent. A
    // cut join that was not retried may have created its node too.
    let token = proxied.token.split('.').next().context("a token's id")?.to_owned();
    let token: Value = serde_json::from_str(&proxied.fleet.stemma(&["get", "--raw", &format!("/v1/join-tokens/{token}")])?)?;
    let remaining = token["uses_left"].as_u64().with_context(|| token.to_string())?;
    let nodes = proxied.fleet.stemma(&["get", "nodes", "-o", "name"])?.lines().count();
    ensure!(100_000 - remaining == nodes as u64, "{remaining} uses are left, and there are {nodes} nodes");
    ensure!(
        (joined_count + retried_count..=tries + 1).contains(&nodes),
        "{nodes} nodes of {} hosts that joined",
        joined_count + retried_count
    );
    Ok(())
}

/// Cuts the connection of a check-in at each byte of a shard. The answer is complete or absent, and the next check-in
/// is answered.
fn retry_check_in(shard: TestShard) -> Result<()> {
    let proxied = ProxiedController::new()?;
    let host = proxied.join_host("web-1")?;
    let mut client = proxied.client(&host)?;
    let check_in = |client: &mut Client, is_cut| -> Result<Option<CheckInResponse>> {
        let body = check_answer(proxied.post(client, "/agent/v1/checkin", encode(&sample_check_in())), is_cut)?;
        Ok(body.map(|body| decode(&body)).transpose()?)
    };
    eventually("a desired state", || match check_in(&mut client, false)? {
        Some(CheckInResponse::Current(update)) if update.desired.is_some() => Ok(()),
        other => anyhow::bail!("{other:?}"),
    })?;
    let first_bytes = proxied.handshake_bytes(&host)?;
    proxied.cut_at_each_byte("a check-in", shard, first_bytes, |_, is_cut| {
        // After a cut check-in, the same check-in is sent again without a cut.
        for is_cut in [is_cut, false] {
            client.close();
            match check_in(&mut client, is_cut)? {
                // The check-in states that the host holds no desired state, so each response contains it.
                Some(CheckInResponse::Current(update)) => {
                    let desired = update.desired.context("a response without the desired state")?;
                    let known = desired.known.context("its known part")?;
                    ensure!(PartDigest(sha256(&known)) == desired.known_digest, "the known part is incomplete");
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

/// Cuts the connection of a renewal at each byte of a shard. The renewal is answered, or it succeeds when it is
/// retried.
fn retry_renewal(shard: TestShard) -> Result<()> {
    let proxied = ProxiedController::new()?;
    let mut hosts = vec![proxied.join_host("n0")?];
    let first_bytes = proxied.handshake_bytes(&hosts[0])?;
    // Each cut may create two certificates, and the number of certificates of one node is limited.
    let cuts_per_host = 100;
    proxied.cut_at_each_byte("a renewal", shard, first_bytes, |number, is_cut| {
        if number / cuts_per_host >= hosts.len() {
            // No host can join here, because its connection would be cut instead of that of the renewal.
            anyhow::bail!("no host is left for cut {number}");
        }
        let mut client = proxied.client(&hosts[number / cuts_per_host])?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let renew = |client: &mut Client, is_cut| -> Result<Option<RenewResponse>> {
            let body = check_answer(proxied.post(client, "/agent/v1/renew", encode(&RenewRequest { csr: csr(&key)? })), is_cut)?;
            Ok(body.map(|body| decode(&body)).transpose()?)
        };
        let first_response = renew(&mut client, is_cut)?;
        let response = match first_response {
            Some(response) => response,
            None => renew(&mut client, false)?.context("the second try is answered")?,
        };
        ensure!(response.chain.len() > 1, "a chain without its issuer");
        if (number + 1) % cuts_per_host == 0 {
            hosts.push(proxied.join_host(&format!("n{number}"))?);
        }
        Ok(())
    })?;
    Ok(())
}

/// Cuts the connection of a blob's download at each byte of a shard. A part of the blob is never accepted as the whole
/// blob, and the next download succeeds.
fn retry_blob(shard: TestShard) -> Result<()> {
    let proxied = ProxiedController::new()?;
    let host = proxied.join_host("web-1")?;
    let mut client = proxied.client(&host)?;
    let body = std::fs::read(proxied.fleet.dir().join("body"))?;
    let path = format!("/agent/v1/blobs/{}", Hash(sha256(&body)));
    let fetch = |client: &mut Client, is_cut| {
        let mut pieces = Vec::new();
        let request = Request::get(&path).body(Bytes::new())?;
        let sink = async |piece: Bytes| {
            pieces.extend(piece);
            Ok(())
        };
        let answer = proxied.runtime.block_on(client.stream(request, sink));
        let received = check_answer(answer, is_cut)?;
        anyhow::Ok(received.map(|_| pieces))
    };
    eventually("the desired state names the blob", || fetch(&mut client, false).map(drop))?;
    let first_bytes = proxied.handshake_bytes(&host)?;
    proxied.cut_at_each_byte("a blob", shard, first_bytes, |_, is_cut| {
        client.close();
        match fetch(&mut client, is_cut)? {
            Some(received) => {
                ensure!(received == body, "{} bytes of {} are accepted as the whole blob", received.len(), body.len());
            }
            None => ensure!(fetch(&mut client, false)?.is_some_and(|received| received == body), "the next try gets the blob"),
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

/// Edits a label again and again while the proxy cuts connections at random times. No file may be incomplete. When the
/// cuts end, the last edit must reach the host. The command of a task must not run twice for one value.
#[test]
fn host_applies_last_edit_when_connections_were_cut() -> Result<()> {
    let mut rng = SeededRng::from_env()?;
    let mut fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let controller = fleet.addresses().agents.trim_start_matches("https://").parse()?;
    let proxy = Proxy::start(controller, rng.clone())?;
    fleet.set_agent_address(proxy.address());
    let agent = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || check_files(&agent))?;

    proxy.set_random_cuts(true);
    // The crash makes the agent connect again. Only connections that begin from now on are cut.
    fleet.crash_controller()?;
    let (mut edit_count, deadline) = (0, std::time::Instant::now() + 2 * MAX_WAIT);
    while edit_count < MIN_EDITS || proxy.cuts() < MIN_CUTS {
        edit_count += 1;
        fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier=t{edit_count}")])?;
        std::thread::sleep(Duration::from_millis(rng.next_below(MAX_EDIT_INTERVAL_MS) as u64));
        check_files(&agent)?;
        ensure!(std::time::Instant::now() < deadline, "only {} connections were cut", proxy.cuts());
    }
    print_log(&format!("{edit_count} edits, {} connections cut", proxy.cuts()));
    proxy.set_random_cuts(false);
    fleet.stemma(&["label", "nodegroup", "prod/frontends", "tier=last"])?;
    eventually("the last edit on the host", || {
        check_file_contains(&agent.path("run/stemma/labels.json"), "\"tier\":\"last\"").with_context(|| agent.log())?;
        check_file_contains(&agent.path("etc/nginx/conf.d/site.conf"), "tier last").with_context(|| agent.log())
    })?;
    let command_log = eventually("the command that reads the label, run for its last value", || {
        let command_log = std::fs::read_to_string(agent.path("var/log/site.log"))?;
        ensure!(command_log.ends_with("serves last\n"), "{command_log}\n{}", agent.log());
        Ok(command_log)
    })?;
    let mut lines: Vec<&str> = command_log.lines().collect();
    let line_count = lines.len();
    lines.dedup();
    ensure!(lines.len() == line_count, "a command ran twice for one value:\n{command_log}");
    Ok(())
}
