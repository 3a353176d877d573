//! An upgrade is no event: a fleet that was converged under an earlier version runs no task, is released nothing, and no
//! file of it is written, whichever side is upgraded first.
//!
//! What is kept from that version is its store, the state of its hosts, what their agents said, and what its controller answered;
//! `tests/data/118d023` says how it was made. Its certificates were good for a day, so controller and agent run in this process at that time.

mod agent;
mod kept;
mod names;
mod recorded;
#[cfg(debug_assertions)]
mod wire;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use hyper::Request;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stemma_controller::run::Options;
use stemma_tests::program::PATIENCE;
use stemma_wire::client::{Client, ClientLimits};
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer, News};
use stemma_wire::message::decode;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};
use tokio::time::sleep;

use crate::served::{self, Served};
use crate::upgrade::kept::{Kept, Then, changed};

/// The hosts of the held fleet: one that runs what there is, and those that are released nothing.
const HELD: [&str; 5] = ["free-1", "held-1", "parked-1", "paused-1", "lab-1"];

/// So long a host that has nothing more to do is looked at. Nothing tells that it goes on doing nothing; a longer time would find no other
/// mistake, and no machine is too busy for it.
const QUIET: Duration = Duration::from_secs(1);

fn serve(kept: &Kept, time: Then) -> Result<Served> {
    served::serve(&kept.path("data"), Options { clock: Arc::new(time), ..Options::default() })
}

/// A client of the kept fleet's controller, with a certificate of then or with none.
fn client(served: &Served, url: &str, own: Option<ClientIdentity>, time: Then) -> Result<Client> {
    let root = CertificateDer::from_pem_file(&served.bound.ca)?;
    let tls = client_config(&Pin::Roots(vec![root]), None, own, Arc::new(time))?;
    Ok(Client::new(url.parse()?, Some(Arc::new(tls)), ClientLimits::default()))
}

/// Sends a request; `None`: it is not answered, and will not be.
fn ask(client: &mut Client, request: Request<Bytes>, is_parked: impl Fn() -> bool) -> Result<Option<(u16, Bytes)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let parked = async {
        while !is_parked() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let answered = async {
        tokio::select! {
            answered = client.send_within(request, PATIENCE) => Some(answered),
            () = parked => None,
        }
    };
    let Some(answered) = runtime.block_on(answered).transpose()? else { return Ok(None) };
    Ok(Some((answered.status().as_u16(), answered.into_body())))
}

/// What an operator reads at a path.
fn operator(kept: &Kept, served: &Served, path: &str, time: Then) -> Result<(u16, Bytes)> {
    operate(kept, served, Request::get(path).body(Bytes::new())?, time)
}

/// What an operator is answered.
fn operate(kept: &Kept, served: &Served, request: Request<Bytes>, time: Then) -> Result<(u16, Bytes)> {
    let chain = CertificateDer::pem_file_iter(kept.path("data/admin/admin.pem"))?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(kept.path("data/admin/admin.key"))?;
    let mut client = client(served, &served.bound.admin, Some(ClientIdentity { chain, key }), time)?;
    let what = format!("{} {} was not answered", request.method(), request.uri());
    ask(&mut client, request, || false)?.context(what)
}

/// What a kept host shows of itself.
fn identity(kept: &Kept, host: &str) -> Result<ClientIdentity> {
    let (key, chain) = kept.credentials(host)?;
    let key = PrivateKeyDer::try_from(key).map_err(anyhow::Error::msg)?;
    Ok(ClientIdentity { chain: chain.into_iter().map(CertificateDer::from).collect(), key })
}

/// Where a host's node stands.
fn state(kept: &Kept, served: &Served, host: &str, time: Then) -> Result<String> {
    let path = format!("/v1/nodes/{host}");
    // On a thread of its own: this one may be in the midst of the agent's loop.
    let asked = std::thread::scope(|scope| scope.spawn(|| operator(kept, served, &path, time)).join());
    let (status, body) = asked.map_err(|_| anyhow::anyhow!("the operator's thread panicked"))??;
    ensure!(status == 200, "{status}");
    let node: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(node["state"].as_str().context("a node has a state")?.to_owned())
}

/// Sets a label of a host, which its tasks read.
fn set_tier(kept: &Kept, served: &Served, host: &str, time: Then, value: &str) -> Result<()> {
    let body = serde_json::json!({ "tier": value }).to_string();
    let request = Request::patch(format!("/v1/nodes/{host}/labels"))
        .header("content-type", "application/merge-patch+json")
        .body(Bytes::from(body))?;
    let (status, body) = operate(kept, served, request, time)?;
    ensure!(status == 200, "{status} {}", String::from_utf8_lossy(&body));
    Ok(())
}

/// What the agent of a kept host is answered when it says to this controller what it said last; `None`: it is parked.
fn say(kept: &Kept, served: &Served, host: &str, time: Then) -> Result<Option<News>> {
    let mut client = client(served, &served.bound.agents, Some(identity(kept, host)?), time)?;
    let message = Request::post("/agent/v1/checkin").body(Bytes::from(kept.message(host)?))?;
    let (node, said): (_, CheckIn) = (kept.node(host)?, decode(&kept.message(host)?)?);
    let held = said.held.map(|held| (held.known, held.task_set));
    let Some((status, body)) = ask(&mut client, message, || served.is_content(node, held))? else { return Ok(None) };
    ensure!(status == 200, "{host}: {status} {}", String::from_utf8_lossy(&body));
    match decode(&body)? {
        CheckInAnswer::Current(news) => Ok(Some(*news)),
        CheckInAnswer::Superseded => bail!("nobody else speaks for {host}"),
    }
}

/// That the controller released nothing, sent nothing, has missed nothing, and has committed so often, a full resolve included.
fn is_quiet(served: &Served, commits: u64) -> Result<()> {
    nothing_is_missed(served)?;
    for (metric, expected) in [
        ("stemma_store_commits_total", commits),
        ("stemma_desired_sent_total", 0),
        ("stemma_reconcile_missed_total", 0),
    ] {
        let found = served.counted(metric);
        ensure!(found == expected, "{metric} is {found} and not {expected}");
    }
    Ok(())
}

/// That a full resolve finds nothing to do.
fn nothing_is_missed(served: &Served) -> Result<()> {
    let missed = served.missed()?;
    ensure!(missed == 0, "what was resolved before missed {missed} nodes");
    Ok(())
}

/// Serves a kept fleet to hosts that have nothing new to say.
fn controller_first(name: &'static str, hosts: &[&str]) -> Result<()> {
    let (kept, time) = (Kept::unpack(name)?, Then::now());
    let mut before = kept.files("data")?;
    let served = serve(&kept, time)?;
    let revision = served.counted("stemma_store_revision");
    for host in hosts {
        let news = say(&kept, &served, host, time)?;
        ensure!(news.is_none_or(|news| news.desired.is_none()), "{host} is told to be something else");
    }
    is_quiet(&served, 0)?;
    ensure!(served.counted("stemma_checkins_total") == u64::try_from(hosts.len())?);
    ensure!(served.counted("stemma_store_revision") == revision);
    drop(served);
    let mut after = kept.files("data")?;
    // The engine notes in its file that it was open (that no entry was written is counted above), and an admin's context
    // names the port, which is another one here.
    for name in ["store.redb", "admin/context.toml"] {
        ensure!(before.remove(Path::new(name)).is_some() && after.remove(Path::new(name)).is_some());
    }
    ensure!(before == after, "{:?} became {:?}", before.keys(), after.keys());
    Ok(())
}

#[test]
fn the_controller_first_writes_and_releases_nothing() -> Result<()> {
    controller_first("kept", &["web-2", "db-1"])
}

#[test]
fn the_controller_first_releases_nothing_to_who_is_held_parked_or_paused() -> Result<()> {
    controller_first("held", &HELD)
}

#[test]
fn results_of_an_earlier_agent_are_taken_once_and_answered_with_nothing_new() -> Result<()> {
    let (kept, time) = (Kept::unpack("kept")?, Then::now());
    let served = serve(&kept, time)?;
    let said: CheckIn = decode(&kept.message("web-1")?)?;
    let last = said.results.last().context("it has results")?.sequence;
    let news = say(&kept, &served, "web-1", time)?.context("results are answered at once")?;
    ensure!(news.acknowledged == last && news.desired.is_none(), "{news:?}");
    is_quiet(&served, 1)?;
    let news = say(&kept, &served, "web-1", time)?.context("results are answered at once")?;
    ensure!(news.acknowledged == last && news.desired.is_none(), "{news:?}");
    is_quiet(&served, 1)
}

/// The files that a host writes when its traits alone change: the traits, the state that names them, and what it was told with that state.
const OF_TRAITS: [&str; 4] = [
    "run/stemma/traits",
    "var/lib/stemma-agent/apply/accepted",
    "var/lib/stemma-agent/apply/told",
    "var/lib/stemma-agent/apply/open-barriers",
];

/// Runs the agent over a kept host, under a controller of today, until `done`; gives the files that are not as they were, by name. A machine whose processor has other
/// traits than the one of then reports those, and is told them: files of traits do not count there.
fn both_upgraded(kept: &Kept, host: &str, time: Then, done: impl Fn(&Served) -> bool) -> Result<Vec<String>> {
    let served = serve(kept, time)?;
    kept.point(host, &served.bound.agents)?;
    let before = kept.files(host)?;
    agent::run_until(&kept.path(host), time, QUIET, || done(&served))?;
    nothing_is_missed(&served)?;
    let after = kept.files(host)?;
    let has_traits = has_the_traits_of_then(kept, host)?;
    let compared = if has_traits {
        "and what was sent were compared".to_owned()
    } else {
        format!("but {OF_TRAITS:?} were compared: this processor has other traits than that of then")
    };
    said(&format!("{host}: {} files {compared}", before.len()));
    ensure!(served.counted("stemma_desired_sent_total") == 0 || !has_traits);
    let changed = changed(&before, &after).into_iter();
    Ok(changed.filter(|name| has_traits || !OF_TRAITS.contains(&name.as_str())).collect())
}

#[allow(clippy::print_stdout, reason = "what was compared")]
fn said(line: &str) {
    println!("{line}");
}

/// Whether this machine has the traits of the one on which the fleet was kept; where it has not, a host says other ones.
fn has_the_traits_of_then(kept: &Kept, host: &str) -> Result<bool> {
    let said: CheckIn = decode(&kept.message(host)?)?;
    let observed = said.observation.context("it has an observation")?;
    Ok(observed.traits == stemma_agent::facts::observe().traits)
}

#[test]
fn with_both_upgraded_a_host_sends_what_was_not_sent_and_runs_nothing() -> Result<()> {
    let kept = Kept::unpack("kept")?;
    let unsent = kept.path("web-1/var/lib/stemma-agent/apply/results");
    let is_sent = || std::fs::read_dir(&unsent).is_ok_and(|mut files| files.next().is_none());
    ensure!(!is_sent(), "results wait to be sent");
    let changed = both_upgraded(&kept, "web-1", Then::now(), |_| is_sent())?;
    let taken = "var/lib/stemma-agent/apply/results/";
    ensure!(changed.len() == 1 && changed[0].starts_with(taken), "{changed:?}");
    Ok(())
}

#[test]
fn with_both_upgraded_a_converged_host_writes_no_file() -> Result<()> {
    let kept = Kept::unpack("kept")?;
    let changed = both_upgraded(&kept, "web-2", Then::now(), |served| {
        served.counted("stemma_checkins_total") > 1 && served.counted("stemma_checkins_parked") == 1
    })?;
    ensure!(changed.is_empty(), "{changed:?}");
    Ok(())
}

/// `site-conf` of the web hosts waits for `schema` on this one. What it is to have now is shut until its results come, and open by them.
#[test]
fn with_both_upgraded_no_pass_misses_what_a_hosts_results_open_for_others() -> Result<()> {
    let (kept, time, host) = (Kept::unpack("kept")?, Then::now(), "db-1");
    let served = serve(&kept, time)?;
    kept.point(host, &served.bound.agents)?;
    set_tier(&kept, &served, host, time, "silver")?;
    agent::run_until(&kept.path(host), time, QUIET, || {
        served.counted("stemma_checkins_parked") == 1
            && std::fs::read_to_string(kept.path("db-1/etc/motd")).is_ok_and(|text| text.ends_with(": tier silver\n"))
            && state(&kept, &served, host, time).is_ok_and(|state| state == "converged")
    })?;
    nothing_is_missed(&served)
}

#[test]
fn with_both_upgraded_who_is_held_parked_or_paused_writes_no_file() -> Result<()> {
    let kept = Kept::unpack("held")?;
    for host in HELD {
        let changed = both_upgraded(&kept, host, Then::now(), |served| {
            served.counted("stemma_checkins_total") > 0 && served.counted("stemma_checkins_parked") == 1
        })?;
        ensure!(changed.is_empty(), "{host}: {changed:?}");
    }
    Ok(())
}
