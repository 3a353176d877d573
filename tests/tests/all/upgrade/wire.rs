//! Wire versions: an agent and a controller of which one speaks a later version than the other, over the kept fleet. The later one is a
//! throw-away, of which builds with debug assertions have forms.
//!
//! Its hosts hold what 118d023 gave them, in a ledger that says nothing of versions. A command without a guard (`reload`) writes a line
//! into `ran` whenever it runs: an upgrade of either side adds none.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hyper::Request;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stemma_agent::apply::ledger::Ledger;
use stemma_agent::host::real::RealHost;
use stemma_controller::run::Options;
use stemma_wire::message::WireVersion;
use stemma_wire::tls::ClientIdentity;

use crate::served::{self, Served};
use crate::upgrade::agent;
use crate::upgrade::kept::{Files, Kept, Then, changed};
use crate::upgrade::{OF_TRAITS, QUIET, ask, client, operator};

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
}

/// Runs both sides until the host holds its state in the version that both speak, all that became of its tasks is told, and `done`.
fn run(kept: &Kept, time: Then, sides: Sides, told: Told<'_>, done: impl Fn() -> bool) -> Result<()> {
    let options = Options { clock: std::sync::Arc::new(time), wire: sides.controller, ..Options::default() };
    let served = served::serve(&kept.path("data"), options)?;
    kept.point(HOST, &served.bound.agents)?;
    told(&served)?;
    let is_done = || {
        served.counted("stemma_checkins_parked") == 1
            && held_in(kept).is_ok_and(|version| version == sides.common())
            && done()
            && state(kept, &served, time).is_ok_and(|state| state == "converged")
    };
    agent::run_speaking(sides.agent, &kept.path(HOST), time, QUIET, is_done)
        .with_context(|| format!("{sides:?}: {}", account(kept, &served, time)))?;
    let is_refused = sides.agent > sides.controller;
    let refused = served.metrics().contains(r#"stemma_rejected_total{reason="message.version"}"#);
    ensure!(refused == is_refused, "{sides:?}: who speaks a later version is refused first\n{}", served.metrics());
    Ok(())
}

/// The wire version of what the host holds.
fn held_in(kept: &Kept) -> Result<WireVersion> {
    let ledger = Ledger::open(Rc::new(RealHost::new(&kept.path(HOST))?))?;
    Ok(ledger.accepted()?.context("it holds a state")?.version)
}

/// Where the host's node stands.
fn state(kept: &Kept, served: &Served, time: Then) -> Result<String> {
    let path = format!("/v1/nodes/{HOST}");
    // On a thread of its own: this one may be in the midst of the agent's loop.
    let asked = std::thread::scope(|scope| scope.spawn(|| operator(kept, served, &path, time)).join());
    let (status, body) = asked.map_err(|_| anyhow::anyhow!("the operator's thread panicked"))??;
    ensure!(status == 200, "{status}");
    let node: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(node["state"].as_str().context("a node has a state")?.to_owned())
}

/// What is so, where something else was waited for.
fn account(kept: &Kept, served: &Served, time: Then) -> String {
    let (held, state) = (held_in(kept), state(kept, served, time));
    let counted: Vec<_> =
        ["stemma_checkins_total", "stemma_desired_sent_total"].map(|name| served.counted(name)).into();
    let tasks = text(kept, "etc/nginx/site.conf") + &text(kept, "ran");
    format!("held in {held:?}, state {state:?}, check-ins and states sent {counted:?}, files {tasks:?}")
}

/// Sets a label of the host, which its tasks read.
fn set_tier(kept: &Kept, served: &Served, time: Then, value: &str) -> Result<()> {
    let chain = CertificateDer::pem_file_iter(kept.path("data/admin/admin.pem"))?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(kept.path("data/admin/admin.key"))?;
    let mut client = client(served, &served.bound.admin, ClientIdentity { chain, key }, time)?;
    let body = serde_json::json!({ "tier": value }).to_string();
    let request = Request::patch(format!("/v1/nodes/{HOST}/labels"))
        .header("content-type", "application/merge-patch+json")
        .body(Bytes::from(body))?;
    let (status, body) = ask(&mut client, request, || false)?.context("the label is set at once")?;
    ensure!(status == 200, "{status} {}", String::from_utf8_lossy(&body));
    Ok(())
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
        let set = |served: &Served| set_tier(&kept, served, time, "silver");
        run(&kept, time, sides, &set, || text(&kept, "etc/nginx/site.conf") == "tier silver\n")?;
        ensure!(text(&kept, "etc/motd").ends_with(": tier silver\n"), "{sides:?}");
        ensure!(text(&kept, "ran") == format!("{ran}reload silver\n"), "{sides:?}: {}", text(&kept, "ran"));
        ensure!(text(&kept, "run/stemma/labels.json").contains(r#""tier":"silver""#), "{sides:?}");
    }
    Ok(())
}
