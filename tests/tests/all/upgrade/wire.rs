//! Tests of wire versions, with the stored fleet: either the agent or the controller speaks a later version than the
//! other. The later version is for tests only. Its messages exist only in builds with debug assertions.
//!
//! The hosts of the stored fleet hold the state that a controller of commit 118d023 sent them, in a ledger without
//! versions. A command without a guard (`reload`) appends a line to the file `ran` whenever it runs. An upgrade of
//! either side adds no line.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hyper::Request;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use stemma_agent::apply::ledger::Ledger;
use stemma_agent::host::real::RealHost;
use stemma_agent::sync::join::{JoinOptions, join_with_version};
use stemma_controller::run::Options;
use stemma_wire::client::Client;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::message::enroll::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse};
use stemma_wire::message::{Message, WireVersion, decode_up_to, encode_as};
use stemma_wire::tls::spki_sha256;

use crate::in_process::{self, InProcessController};
use crate::network::csr;
use crate::upgrade::agent;
use crate::upgrade::stored_fleet::{FileMap, RecordedTime, StoredFleet, changed_files};
use crate::upgrade::{QUIET_PERIOD, TRAIT_FILES, client_identity, connect, node_state, operator_send, send_request, set_tier};

const OLD_VERSION: WireVersion = WireVersion::CURRENT;
const NEW_VERSION: WireVersion = WireVersion::NEXT;

/// A converged host of the stored fleet. Its task `site-conf` waits for another host, which has already run the
/// required task.
const HOST_NAME: &str = "web-2";

/// The latest wire version that each side speaks.
#[derive(Clone, Copy, Debug)]
struct SideVersions {
    agent: WireVersion,
    controller: WireVersion,
}

/// A request that an operator sends to the controller of the test, such as the change of a label.
type OperatorAction<'a> = &'a dyn Fn(&InProcessController) -> Result<()>;

impl SideVersions {
    /// Returns the latest version that both sides speak.
    fn common_version(self) -> WireVersion {
        self.agent.min(self.controller)
    }

    /// Returns whether the agent's first request is refused, because its version is later than the controller reads.
    fn is_agent_refused(self) -> bool {
        self.agent > self.controller
    }
}

/// Runs the agent and a controller in their versions. Ends when the host has its desired state in the common version,
/// its node has converged, and `done` returns true. `action` runs before the agent starts. Checks that the controller
/// refuses requests for their version if the agent speaks a later version, and only then.
fn run_sides(
    stored: &StoredFleet,
    time: RecordedTime,
    sides: SideVersions,
    action: OperatorAction<'_>,
    done: impl Fn() -> bool,
) -> Result<()> {
    let served = serve_with_version(sides.controller, stored, time)?;
    stored.set_controller_url(HOST_NAME, &served.addresses.agents)?;
    if held_version(stored)? > sides.agent {
        // A real agent of the earlier version could not read the file. The agent in this test could, whichever version
        // it speaks, so the file is renamed.
        let path = stored.path(HOST_NAME).join("var/lib/stemma-agent/apply/accepted");
        std::fs::rename(&path, path.with_extension("set-aside"))?;
    }
    action(&served)?;
    let is_finished = || {
        served.metric("stemma_checkins_parked") == 1
            && held_version(stored).is_ok_and(|version| version == sides.common_version())
            && done()
            && node_state(stored, &served, HOST_NAME, time).is_ok_and(|state| state == "converged")
    };
    agent::run_with_version(sides.agent, &stored.path(HOST_NAME), time, QUIET_PERIOD, is_finished)
        .with_context(|| format!("{sides:?}: {}", state_summary(stored, &served, time)))?;
    let refusals = refusal_count(&served);
    ensure!((refusals > 0) == sides.is_agent_refused(), "{sides:?}: refused {refusals} times for the version");
    Ok(())
}

/// Serves the stored fleet with a controller that speaks wire versions up to `newest`.
fn serve_with_version(newest: WireVersion, stored: &StoredFleet, time: RecordedTime) -> Result<InProcessController> {
    let options = Options { clock: Arc::new(time), newest_wire: newest, ..Options::default() };
    in_process::serve(&stored.path("data"), options)
}

/// Returns the number of requests that the controller refused because of their wire version.
fn refusal_count(served: &InProcessController) -> u64 {
    let (text, metric) = (served.metrics_text(), r#"stemma_rejected_total{reason="message.version"} "#);
    text.lines().find_map(|line| line.strip_prefix(metric)?.parse().ok()).unwrap_or_default()
}

/// Returns the wire version of the desired state that the host has stored.
fn held_version(stored: &StoredFleet) -> Result<WireVersion> {
    let ledger = Ledger::open(Rc::new(RealHost::new(&stored.path(HOST_NAME))?))?;
    Ok(ledger.accepted()?.context("it holds a state")?.version)
}

/// Describes the present state of the host [`HOST_NAME`] and of its node, for the error after a wait that failed.
fn state_summary(stored: &StoredFleet, served: &InProcessController, time: RecordedTime) -> String {
    let (version, state) = (held_version(stored), node_state(stored, served, HOST_NAME, time));
    let counts: Vec<_> = ["stemma_checkins_total", "stemma_desired_sent_total"].map(|name| served.metric(name)).into();
    let tasks = file_text(stored, "etc/nginx/site.conf") + &file_text(stored, "ran");
    format!("held in {version:?}, state {state:?}, check-ins and states sent {counts:?}, files {tasks:?}")
}

/// Creates a token with which two hosts can join.
fn create_token(stored: &StoredFleet, served: &InProcessController, time: RecordedTime) -> Result<String> {
    let body = serde_json::json!({ "uses": 2 }).to_string();
    let request = Request::post("/v1/join-tokens").header("content-type", "application/json").body(Bytes::from(body))?;
    let (status, body) = operator_send(stored, served, request, time)?;
    ensure!(status == 201, "{status} {}", String::from_utf8_lossy(&body));
    let created: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(created["token"].as_str().context("the answer contains no token")?.to_owned())
}

/// Creates a certificate request for a new key.
fn create_csr() -> Result<Vec<u8>> {
    csr(&KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

/// Sends a message in a wire version. Returns the version of its answer.
fn fetch_answer_version<A: Message>(
    mut client: Client,
    endpoint: Endpoint,
    version: WireVersion,
    message: &impl Message,
) -> Result<WireVersion> {
    let request = endpoint.request(&[], encode_as(version, message));
    let (status, body) = send_request(&mut client, request, || false)?.context("it is answered at once")?;
    ensure!(status == 200, "{version}: {status} {}", String::from_utf8_lossy(&body));
    Ok(decode_up_to::<A>(NEW_VERSION, &body)?.0)
}

/// Returns the changed files outside the agent's own directory. Files of traits do not count, because this machine may
/// have other traits than the recorded one.
fn changed_task_files(old_files: &FileMap, new_files: &FileMap) -> Vec<String> {
    let names = changed_files(old_files, new_files).into_iter();
    names.filter(|name| !name.starts_with("var/lib/stemma-agent/") && !TRAIT_FILES.contains(&name.as_str())).collect()
}

/// Returns the text of a file of the host, or an empty text if it cannot be read.
fn file_text(stored: &StoredFleet, path: &str) -> String {
    std::fs::read_to_string(stored.path(HOST_NAME).join(path)).unwrap_or_default()
}

/// Each pair has the wire version of the agent and that of the controller. The two sides are upgraded one after the
/// other, and then downgraded. No step changes a file of a task.
#[test]
fn upgrade_reruns_no_task_when_one_side_is_newer() -> Result<()> {
    let orders = [
        (
            "the controller first",
            [(OLD_VERSION, NEW_VERSION), (NEW_VERSION, NEW_VERSION), (OLD_VERSION, NEW_VERSION), (OLD_VERSION, OLD_VERSION)],
        ),
        (
            "the agent first",
            [(NEW_VERSION, OLD_VERSION), (NEW_VERSION, NEW_VERSION), (NEW_VERSION, OLD_VERSION), (OLD_VERSION, OLD_VERSION)],
        ),
    ];
    for (name, steps) in orders {
        let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
        let files_before = stored.files(HOST_NAME)?;
        for (agent, controller) in steps {
            let sides = SideVersions { agent, controller };
            run_sides(&stored, time, sides, &|_| Ok(()), || true).with_context(|| name)?;
            let changed_names = changed_task_files(&files_before, &stored.files(HOST_NAME)?);
            ensure!(changed_names.is_empty(), "{name}, {sides:?}: {changed_names:?}");
        }
    }
    Ok(())
}

/// A new task set is sent in the latest version that both sides speak. The host writes the changed files, and runs the
/// reload command once.
#[test]
fn release_uses_common_version() -> Result<()> {
    for (agent, controller) in [(OLD_VERSION, NEW_VERSION), (NEW_VERSION, OLD_VERSION), (NEW_VERSION, NEW_VERSION)] {
        let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
        let sides = SideVersions { agent, controller };
        let runs_before = file_text(&stored, "ran");
        let set_silver = |served: &InProcessController| set_tier(&stored, served, HOST_NAME, time, "silver");
        run_sides(&stored, time, sides, &set_silver, || file_text(&stored, "etc/nginx/site.conf") == "tier silver\n")?;
        ensure!(file_text(&stored, "etc/motd").ends_with(": tier silver\n"), "{sides:?}");
        ensure!(file_text(&stored, "ran") == format!("{runs_before}reload silver\n"), "{sides:?}: {}", file_text(&stored, "ran"));
        ensure!(file_text(&stored, "run/stemma/labels.json").contains(r#""tier":"silver""#), "{sides:?}");
    }
    Ok(())
}

/// A host joins in the latest version that both sides speak. Only an agent that is newer than the controller is refused
/// first, and this once.
#[test]
fn join_uses_common_version() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (agent, controller) in [(OLD_VERSION, NEW_VERSION), (NEW_VERSION, OLD_VERSION), (NEW_VERSION, NEW_VERSION)] {
        let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
        let sides = SideVersions { agent, controller };
        let served = serve_with_version(controller, &stored, time)?;
        let root = stored.path("new-1");
        std::fs::create_dir(&root)?;
        let options = JoinOptions {
            controllers: vec![served.addresses.agents.parse()?],
            ca_hash: spki_sha256(&CertificateDer::from_pem_file(&served.addresses.ca)?)?,
            token: create_token(&stored, &served, time)?,
            name: "new-1".to_owned(),
            seal_key: [7; 32],
        };
        let host = RealHost::new(&root)?;
        let result = runtime.block_on(join_with_version(agent, &host, options, Arc::new(time)));
        result.with_context(|| format!("{sides:?}"))?;
        let refusals = refusal_count(&served);
        ensure!(refusals == u64::from(sides.is_agent_refused()), "{sides:?}: refused {refusals} times for the version");
    }
    Ok(())
}

/// A certificate is renewed in the latest version that both sides speak.
#[test]
fn renewal_uses_common_version() -> Result<()> {
    for (agent, controller) in [(OLD_VERSION, NEW_VERSION), (NEW_VERSION, OLD_VERSION), (NEW_VERSION, NEW_VERSION)] {
        // An agent renews an expired certificate before it sends anything else. The time at which it renews a valid
        // certificate is not fixed.
        let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now().plus(Duration::from_hours(25)));
        let sides = SideVersions { agent, controller };
        let served = serve_with_version(controller, &stored, time)?;
        stored.set_controller_url(HOST_NAME, &served.addresses.agents)?;
        let old_credentials = stored.credentials(HOST_NAME)?;
        let is_renewed = || {
            let is_replaced = stored.credentials(HOST_NAME).is_ok_and(|current| current != old_credentials);
            is_replaced && served.metric("stemma_checkins_total") > 0
        };
        agent::run_with_version(agent, &stored.path(HOST_NAME), time, Duration::ZERO, is_renewed)
            .with_context(|| format!("{sides:?}\n{}", served.metrics_text()))?;
        let refusals = refusal_count(&served);
        // The renewal is refused first, and then the check-in after it. No check-in with the old certificate is read.
        let is_as_expected = if sides.is_agent_refused() { refusals >= 2 } else { refusals == 0 };
        ensure!(is_as_expected, "{sides:?}: refused {refusals} times for the version");
    }
    Ok(())
}

/// The test sends the requests without an agent: an agent also accepts an answer in an earlier version, so it would not
/// show the version of the answer.
#[test]
fn join_and_renewal_answers_use_version_of_request() -> Result<()> {
    let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
    let served = serve_with_version(NEW_VERSION, &stored, time)?;
    let token = create_token(&stored, &served, time)?;
    let connect_agent = |credentials| connect(&served, &served.addresses.agents, credentials, time);
    for version in [OLD_VERSION, NEW_VERSION] {
        let name = format!("new-{version}");
        let request = EnrollRequest { token: token.clone(), csr: create_csr()?, seal_key: [7; 32], name };
        let join_version = fetch_answer_version::<EnrollResponse>(connect_agent(None)?, Endpoint::Enroll, version, &request)?;
        let credentials = client_identity(&stored, HOST_NAME)?;
        let request = RenewRequest { csr: create_csr()? };
        let renewal_version =
            fetch_answer_version::<RenewResponse>(connect_agent(Some(credentials))?, Endpoint::Renew, version, &request)?;
        ensure!((join_version, renewal_version) == (version, version), "sent in {version}: {join_version} and {renewal_version}");
    }
    Ok(())
}
