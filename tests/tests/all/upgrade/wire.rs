//! Wire versions: an agent and a controller of which one speaks a later version than the other, over the kept fleet. The later one is a
//! throw-away, of which builds with debug assertions have forms.
//!
//! Its hosts hold what 118d023 gave them, in a ledger that says nothing of versions. A command without a guard (`reload`) writes a line
//! into `ran` whenever it runs: an upgrade of either side adds none.

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
use stemma_agent::sync::join::{Invitation, join_up_to};
use stemma_controller::run::Options;
use stemma_wire::client::Client;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::message::enroll::{EnrollAnswer, EnrollRequest, RenewAnswer, RenewRequest};
use stemma_wire::message::{Message, WireVersion, decode_up_to, encode_as};
use stemma_wire::tls::spki_sha256;

use crate::network::csr;
use crate::served::{self, Served};
use crate::upgrade::agent;
use crate::upgrade::kept::{Files, Kept, Then, changed};
use crate::upgrade::{OF_TRAITS, QUIET, ask, client, identity, operate, set_tier, state};

const OLD: WireVersion = WireVersion::CURRENT;
const NEW: WireVersion = WireVersion::THROW_AWAY;

/// A converged host of the kept fleet, whose `site-conf` waits at a barrier that is open.
const HOST: &str = "web-2";

/// Which version each side speaks.
#[derive(Clone, Copy, Debug)]
struct Sides {
    agent: WireVersion,
    controller: WireVersion,
}

/// What a host is told, by its operator, while a controller serves it.
type Told<'a> = &'a dyn Fn(&Served) -> Result<()>;

impl Sides {
    /// The version in which they understand each other.
    fn common(self) -> WireVersion {
        self.agent.min(self.controller)
    }

    /// Whether the agent is refused first, as it speaks a later version than the controller reads.
    fn is_refused(self) -> bool {
        self.agent > self.controller
    }
}

/// Runs both sides until the host holds its state in the version that both speak, all that became of its tasks is told, and `done`.
fn run(kept: &Kept, time: Then, sides: Sides, told: Told<'_>, done: impl Fn() -> bool) -> Result<()> {
    let served = serve_up_to(sides.controller, kept, time)?;
    kept.point(HOST, &served.bound.agents)?;
    if held_in(kept)? > sides.agent {
        // The program of that version could not read it. This one can, whatever it speaks.
        let path = kept.path(HOST).join("var/lib/stemma-agent/apply/accepted");
        std::fs::rename(&path, path.with_extension("set-aside"))?;
    }
    told(&served)?;
    let is_done = || {
        served.counted("stemma_checkins_parked") == 1
            && held_in(kept).is_ok_and(|version| version == sides.common())
            && done()
            && state(kept, &served, HOST, time).is_ok_and(|state| state == "converged")
    };
    agent::run_speaking(sides.agent, &kept.path(HOST), time, QUIET, is_done)
        .with_context(|| format!("{sides:?}: {}", account(kept, &served, time)))?;
    let refused = refused(&served);
    ensure!((refused > 0) == sides.is_refused(), "{sides:?}: refused {refused} times for the version");
    Ok(())
}

/// Serves the kept fleet with a controller that speaks wire versions up to this one.
fn serve_up_to(newest: WireVersion, kept: &Kept, time: Then) -> Result<Served> {
    let options = Options { clock: Arc::new(time), wire: newest, ..Options::default() };
    served::serve(&kept.path("data"), options)
}

/// How many requests were refused for their version.
fn refused(served: &Served) -> u64 {
    let (text, metric) = (served.metrics(), r#"stemma_rejected_total{reason="message.version"} "#);
    text.lines().find_map(|line| line.strip_prefix(metric)?.parse().ok()).unwrap_or_default()
}

/// The wire version of what the host holds.
fn held_in(kept: &Kept) -> Result<WireVersion> {
    let ledger = Ledger::open(Rc::new(RealHost::new(&kept.path(HOST))?))?;
    Ok(ledger.accepted()?.context("it holds a state")?.version)
}

/// What is so, where something else was waited for.
fn account(kept: &Kept, served: &Served, time: Then) -> String {
    let (held, state) = (held_in(kept), state(kept, served, HOST, time));
    let counted: Vec<_> =
        ["stemma_checkins_total", "stemma_desired_sent_total"].map(|name| served.counted(name)).into();
    let tasks = text(kept, "etc/nginx/site.conf") + &text(kept, "ran");
    format!("held in {held:?}, state {state:?}, check-ins and states sent {counted:?}, files {tasks:?}")
}

/// A token by which two hosts can join.
fn token(kept: &Kept, served: &Served, time: Then) -> Result<String> {
    let body = serde_json::json!({ "uses": 2 }).to_string();
    let request =
        Request::post("/v1/join-tokens").header("content-type", "application/json").body(Bytes::from(body))?;
    let (status, body) = operate(kept, served, request, time)?;
    ensure!(status == 201, "{status} {}", String::from_utf8_lossy(&body));
    let made: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(made["token"].as_str().context("a token is told when it is made")?.to_owned())
}

/// A request for a certificate, for a key that nobody has asked with.
fn new_csr() -> Result<Vec<u8>> {
    csr(&KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

/// In which version a message of a version is answered.
fn answered_in<A: Message>(
    mut client: Client,
    endpoint: Endpoint,
    version: WireVersion,
    message: &impl Message,
) -> Result<WireVersion> {
    let request = endpoint.request(&[], encode_as(version, message));
    let (status, body) = ask(&mut client, request, || false)?.context("it is answered at once")?;
    ensure!(status == 200, "{version}: {status} {}", String::from_utf8_lossy(&body));
    Ok(decode_up_to::<A>(NEW, &body)?.0)
}

/// The files that tasks and services have of the agent, and that are not as they were. Files of traits do not count: this machine may have
/// others than the one of then.
fn changed_outside_of_the_ledger(before: &Files, after: &Files) -> Vec<String> {
    let names = changed(before, after).into_iter();
    names.filter(|name| !name.starts_with("var/lib/stemma-agent/") && !OF_TRAITS.contains(&name.as_str())).collect()
}

/// The text of a file of the host.
fn text(kept: &Kept, path: &str) -> String {
    std::fs::read_to_string(kept.path(HOST).join(path)).unwrap_or_default()
}

#[test]
fn no_task_runs_again_whichever_side_speaks_a_later_wire_version_first() -> Result<()> {
    let orders = [
        ("the controller first", [(OLD, NEW), (NEW, NEW), (OLD, NEW), (OLD, OLD)]),
        ("the agent first", [(NEW, OLD), (NEW, NEW), (NEW, OLD), (OLD, OLD)]),
    ];
    for (name, steps) in orders {
        let (kept, time) = (Kept::unpack("kept")?, Then::now());
        let before = kept.files(HOST)?;
        for (agent, controller) in steps {
            let sides = Sides { agent, controller };
            run(&kept, time, sides, &|_| Ok(()), || true).with_context(|| name)?;
            let changed = changed_outside_of_the_ledger(&before, &kept.files(HOST)?);
            ensure!(changed.is_empty(), "{name}, {sides:?}: {changed:?}");
        }
    }
    Ok(())
}

#[test]
fn a_release_reaches_a_host_in_the_version_that_both_sides_speak() -> Result<()> {
    for (agent, controller) in [(OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        let (kept, time) = (Kept::unpack("kept")?, Then::now());
        let sides = Sides { agent, controller };
        let ran = text(&kept, "ran");
        let set = |served: &Served| set_tier(&kept, served, HOST, time, "silver");
        run(&kept, time, sides, &set, || text(&kept, "etc/nginx/site.conf") == "tier silver\n")?;
        ensure!(text(&kept, "etc/motd").ends_with(": tier silver\n"), "{sides:?}");
        ensure!(text(&kept, "ran") == format!("{ran}reload silver\n"), "{sides:?}: {}", text(&kept, "ran"));
        ensure!(text(&kept, "run/stemma/labels.json").contains(r#""tier":"silver""#), "{sides:?}");
    }
    Ok(())
}

#[test]
fn a_host_joins_in_the_version_that_both_sides_speak() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (agent, controller) in [(OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        let (kept, time) = (Kept::unpack("kept")?, Then::now());
        let sides = Sides { agent, controller };
        let served = serve_up_to(controller, &kept, time)?;
        let root = kept.path("new-1");
        std::fs::create_dir(&root)?;
        let invitation = Invitation {
            controllers: vec![served.bound.agents.parse()?],
            ca_hash: spki_sha256(&CertificateDer::from_pem_file(&served.bound.ca)?)?,
            token: token(&kept, &served, time)?,
            name: "new-1".to_owned(),
            seal_key: [7; 32],
        };
        let host = RealHost::new(&root)?;
        let joined = runtime.block_on(join_up_to(agent, &host, invitation, Arc::new(time)));
        joined.with_context(|| format!("{sides:?}"))?;
        let refused = refused(&served);
        ensure!(refused == u64::from(sides.is_refused()), "{sides:?}: refused {refused} times for the version");
    }
    Ok(())
}

#[test]
fn a_certificate_is_renewed_in_the_version_that_both_sides_speak() -> Result<()> {
    for (agent, controller) in [(OLD, NEW), (NEW, OLD), (NEW, NEW)] {
        // A certificate that has expired is renewed before anything else is said. An agent renews one that is still good when it likes.
        let (kept, time) = (Kept::unpack("kept")?, Then::now().later(Duration::from_hours(25)));
        let sides = Sides { agent, controller };
        let served = serve_up_to(controller, &kept, time)?;
        kept.point(HOST, &served.bound.agents)?;
        let before = kept.credentials(HOST)?;
        let is_renewed = || {
            let is_replaced = kept.credentials(HOST).is_ok_and(|present| present != before);
            is_replaced && served.counted("stemma_checkins_total") > 0
        };
        agent::run_speaking(agent, &kept.path(HOST), time, Duration::ZERO, is_renewed)
            .with_context(|| format!("{sides:?}\n{}", served.metrics()))?;
        let refused = refused(&served);
        // The renewal is refused first, and then the check-in after it: no check-in with the old certificate is read.
        let is_as_expected = if sides.is_refused() { refused >= 2 } else { refused == 0 };
        ensure!(is_as_expected, "{sides:?}: refused {refused} times for the version");
    }
    Ok(())
}

/// An agent reads an answer of an earlier version than it has asked in, as it reads all of them: two whole programs do not show this.
#[test]
fn joining_and_renewing_are_answered_in_the_version_of_the_request() -> Result<()> {
    let (kept, time) = (Kept::unpack("kept")?, Then::now());
    let served = serve_up_to(NEW, &kept, time)?;
    let token = token(&kept, &served, time)?;
    let agents = |own| client(&served, &served.bound.agents, own, time);
    for version in [OLD, NEW] {
        let name = format!("new-{version}");
        let request = EnrollRequest { token: token.clone(), csr: new_csr()?, seal_key: [7; 32], name };
        let joined = answered_in::<EnrollAnswer>(agents(None)?, Endpoint::Enroll, version, &request)?;
        let own = identity(&kept, HOST)?;
        let request = RenewRequest { csr: new_csr()? };
        let renewed = answered_in::<RenewAnswer>(agents(Some(own))?, Endpoint::Renew, version, &request)?;
        ensure!((joined, renewed) == (version, version), "asked in {version}: {joined} and {renewed}");
    }
    Ok(())
}
