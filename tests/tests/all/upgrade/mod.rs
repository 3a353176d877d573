//! An upgrade changes nothing: in a fleet that had converged under an earlier version, no task runs, nothing is
//! released, and no file is written, whichever side is upgraded first.
//!
//! The stored data of that version are its store, the state of its hosts, the messages of its agents, and the answers
//! of its controller. `tests/data/118d023` describes how they were created. The certificates were valid for a day, so
//! controller and agent run in this process with a clock that shows that time.

mod agent;
mod names;
mod recorded;
mod stored_fleet;
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
use stemma_tests::program::MAX_WAIT;
use stemma_wire::client::{Client, ClientLimits};
use stemma_wire::message::checkin::{CheckIn, CheckInResponse, CheckInUpdate};
use stemma_wire::message::decode;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};
use tokio::time::sleep;

use crate::in_process::{self, InProcessController};
use crate::upgrade::stored_fleet::{RecordedTime, StoredFleet, changed_files};

/// The hosts of the stored fleet `held`: one without restrictions, and four to which no new task set is released.
const HELD_HOSTS: [&str; 5] = ["free-1", "held-1", "parked-1", "paused-1", "lab-1"];

/// Time for which a host with nothing left to do is observed. No event shows that the host stays idle, so the test has
/// to wait. This time is long enough even on a busy machine, and a longer one would find no other defect.
const QUIET_PERIOD: Duration = Duration::from_secs(1);

/// Starts a controller on the data directory of a stored fleet, with the recorded time as its clock.
fn serve_fleet(stored: &StoredFleet, time: RecordedTime) -> Result<InProcessController> {
    in_process::serve(&stored.path("data"), Options { clock: Arc::new(time), ..Options::default() })
}

/// Creates a client of the stored fleet's controller. `credentials` contains the stored certificate of a host or an
/// operator, or is `None` for a client without a certificate, such as a host that joins.
fn connect(served: &InProcessController, url: &str, credentials: Option<ClientIdentity>, time: RecordedTime) -> Result<Client> {
    let root = CertificateDer::from_pem_file(&served.addresses.ca)?;
    let tls = client_config(&Pin::Roots(vec![root]), None, credentials, Arc::new(time))?;
    Ok(Client::new(url.parse()?, Some(Arc::new(tls)), ClientLimits::default()))
}

/// Sends a request. Returns the status and the body of the answer. Returns `None` as soon as `is_parked` returns true:
/// the controller then holds the request open, and sends no answer.
fn send_request(client: &mut Client, request: Request<Bytes>, is_parked: impl Fn() -> bool) -> Result<Option<(u16, Bytes)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wait_until_parked = async {
        while !is_parked() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let answer = async {
        tokio::select! {
            answer = client.send_with_timeout(request, MAX_WAIT) => Some(answer),
            () = wait_until_parked => None,
        }
    };
    let Some(answer) = runtime.block_on(answer).transpose()? else { return Ok(None) };
    Ok(Some((answer.status().as_u16(), answer.into_body())))
}

/// Reads a path as an operator. Returns the status and the body.
fn operator_get(stored: &StoredFleet, served: &InProcessController, path: &str, time: RecordedTime) -> Result<(u16, Bytes)> {
    operator_send(stored, served, Request::get(path).body(Bytes::new())?, time)
}

/// Sends a request as an operator. Returns the status and the body.
fn operator_send(
    stored: &StoredFleet,
    served: &InProcessController,
    request: Request<Bytes>,
    time: RecordedTime,
) -> Result<(u16, Bytes)> {
    let chain = CertificateDer::pem_file_iter(stored.path("data/admin/admin.pem"))?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(stored.path("data/admin/admin.key"))?;
    let mut client = connect(served, &served.addresses.admin, Some(ClientIdentity { chain, key }), time)?;
    let message = format!("{} {} was not answered", request.method(), request.uri());
    send_request(&mut client, request, || false)?.context(message)
}

/// Returns the key and the certificate chain of a stored host.
fn client_identity(stored: &StoredFleet, host: &str) -> Result<ClientIdentity> {
    let (key, chain) = stored.credentials(host)?;
    let key = PrivateKeyDer::try_from(key).map_err(anyhow::Error::msg)?;
    Ok(ClientIdentity { chain: chain.into_iter().map(CertificateDer::from).collect(), key })
}

/// Returns the state of a host's node.
fn node_state(stored: &StoredFleet, served: &InProcessController, host: &str, time: RecordedTime) -> Result<String> {
    let path = format!("/v1/nodes/{host}");
    // The request runs on its own thread, because the caller may be inside the agent's event loop.
    let answer = std::thread::scope(|scope| scope.spawn(|| operator_get(stored, served, &path, time)).join());
    let (status, body) = answer.map_err(|_| anyhow::anyhow!("the operator's thread panicked"))??;
    ensure!(status == 200, "{status}");
    let node: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(node["state"].as_str().context("a node has a state")?.to_owned())
}

/// Sets the label `tier` of a host. Tasks of the host read it.
fn set_tier(stored: &StoredFleet, served: &InProcessController, host: &str, time: RecordedTime, value: &str) -> Result<()> {
    let body = serde_json::json!({ "tier": value }).to_string();
    let request = Request::patch(format!("/v1/nodes/{host}/labels"))
        .header("content-type", "application/merge-patch+json")
        .body(Bytes::from(body))?;
    let (status, body) = operator_send(stored, served, request, time)?;
    ensure!(status == 200, "{status} {}", String::from_utf8_lossy(&body));
    Ok(())
}

/// Sends the first recorded check-in of a stored host to the controller. Returns the update in the answer, or `None` if
/// the controller holds the check-in open, because nothing has changed.
fn send_check_in(
    stored: &StoredFleet,
    served: &InProcessController,
    host: &str,
    time: RecordedTime,
) -> Result<Option<CheckInUpdate>> {
    let mut client = connect(served, &served.addresses.agents, Some(client_identity(stored, host)?), time)?;
    let message = Request::post("/agent/v1/checkin").body(Bytes::from(stored.first_check_in(host)?))?;
    let (node, check_in): (_, CheckIn) = (stored.node_uuid(host)?, decode(&stored.first_check_in(host)?)?);
    let held_digests = check_in.held_desired.map(|held_digests| (held_digests.known, held_digests.task_set));
    let Some((status, body)) = send_request(&mut client, message, || served.is_waiting_unchanged(node, held_digests))? else {
        return Ok(None);
    };
    ensure!(status == 200, "{host}: {status} {}", String::from_utf8_lossy(&body));
    match decode(&body)? {
        CheckInResponse::Current(update) => Ok(Some(*update)),
        CheckInResponse::Superseded => bail!("another agent has the identity of {host}"),
    }
}

/// Checks that the controller has made this number of commits and has sent no desired state. Also checks that a full
/// resolve of all nodes finds no change that the controller missed.
fn check_quiet(served: &InProcessController, commits: u64) -> Result<()> {
    check_nothing_missed(served)?;
    for (metric, expected) in
        [("stemma_store_commits_total", commits), ("stemma_desired_sent_total", 0), ("stemma_reconcile_missed_total", 0)]
    {
        let value = served.metric(metric);
        ensure!(value == expected, "{metric} is {value} and not {expected}");
    }
    Ok(())
}

/// Checks that a full resolve of all nodes finds no change that the controller missed.
fn check_nothing_missed(served: &InProcessController) -> Result<()> {
    let missed = served.missed_count()?;
    ensure!(missed == 0, "the controller missed changes of {missed} nodes");
    Ok(())
}

/// Serves a stored fleet to hosts that have nothing new to report. Checks that the controller sends no desired state,
/// makes no commit, and changes no file other than the store's file and the admin's context.
fn check_upgraded_controller(name: &'static str, hosts: &[&str]) -> Result<()> {
    let (stored, time) = (StoredFleet::unpack(name)?, RecordedTime::now());
    let mut files_before = stored.files("data")?;
    let served = serve_fleet(&stored, time)?;
    let revision = served.metric("stemma_store_revision");
    for host in hosts {
        let update = send_check_in(&stored, &served, host, time)?;
        ensure!(update.is_none_or(|answer| answer.desired.is_none()), "{host} gets another desired state");
    }
    check_quiet(&served, 0)?;
    ensure!(served.metric("stemma_checkins_total") == u64::try_from(hosts.len())?);
    ensure!(served.metric("stemma_store_revision") == revision);
    drop(served);
    let mut files_after = stored.files("data")?;
    // Two files differ. The storage engine writes into its file when the file is opened, but the revision above shows
    // that no entry was written. The admin's context contains the port, which is different in this test.
    for name in ["store.redb", "admin/context.toml"] {
        ensure!(files_before.remove(Path::new(name)).is_some() && files_after.remove(Path::new(name)).is_some());
    }
    ensure!(files_before == files_after, "{:?} became {:?}", files_before.keys(), files_after.keys());
    Ok(())
}

#[test]
fn upgraded_controller_writes_and_releases_nothing() -> Result<()> {
    check_upgraded_controller("kept", &["web-2", "db-1"])
}

#[test]
fn upgraded_controller_releases_nothing_to_held_hosts() -> Result<()> {
    check_upgraded_controller("held", &HELD_HOSTS)
}

#[test]
fn upgraded_controller_accepts_results_of_old_agent_once() -> Result<()> {
    let (stored, time) = (StoredFleet::unpack("kept")?, RecordedTime::now());
    let served = serve_fleet(&stored, time)?;
    let check_in: CheckIn = decode(&stored.first_check_in("web-1")?)?;
    let last_sequence = check_in.results.last().context("it has results")?.sequence;
    let update = send_check_in(&stored, &served, "web-1", time)?.context("results are answered at once")?;
    ensure!(update.acknowledged == last_sequence && update.desired.is_none(), "{update:?}");
    // The first check-in makes one commit. The second contains the same results, and makes none.
    check_quiet(&served, 1)?;
    let update = send_check_in(&stored, &served, "web-1", time)?.context("results are answered at once")?;
    ensure!(update.acknowledged == last_sequence && update.desired.is_none(), "{update:?}");
    check_quiet(&served, 1)
}

/// The files that an agent writes if only the traits of its host change: the traits, the desired state that contains
/// them, and the two records that the agent stores with each desired state.
const TRAIT_FILES: [&str; 4] = [
    "run/stemma/traits",
    "var/lib/stemma-agent/apply/accepted",
    "var/lib/stemma-agent/apply/told",
    "var/lib/stemma-agent/apply/open-barriers",
];

/// Runs the agent on the files of a stored host, with a current controller, until `is_done` returns true, and for
/// [`QUIET_PERIOD`] more. Returns the names of the changed files. Fails if the controller sent a desired state. But if
/// this processor has other traits than the recorded one, the agent reports its traits and the controller sends a
/// desired state with them. The files of traits are then omitted.
fn run_both_upgraded(
    stored: &StoredFleet,
    host: &str,
    time: RecordedTime,
    is_done: impl Fn(&InProcessController) -> bool,
) -> Result<Vec<String>> {
    let served = serve_fleet(stored, time)?;
    stored.set_controller_url(host, &served.addresses.agents)?;
    let files_before = stored.files(host)?;
    agent::run_until(&stored.path(host), time, QUIET_PERIOD, || is_done(&served))?;
    check_nothing_missed(&served)?;
    let files_after = stored.files(host)?;
    let has_same_traits = has_recorded_traits(stored, host)?;
    let comparison = if has_same_traits {
        "and the sent states were compared".to_owned()
    } else {
        format!("except {TRAIT_FILES:?} were compared: this processor has other traits than the recorded one")
    };
    print_log(&format!("{host}: {} files {comparison}", files_before.len()));
    ensure!(served.metric("stemma_desired_sent_total") == 0 || !has_same_traits);
    let changed_names = changed_files(&files_before, &files_after).into_iter();
    Ok(changed_names.filter(|name| has_same_traits || !TRAIT_FILES.contains(&name.as_str())).collect())
}

#[allow(clippy::print_stdout, reason = "prints what the test compared")]
fn print_log(line: &str) {
    println!("{line}");
}

/// Returns whether this machine has the traits of the machine on which the fleet was recorded.
fn has_recorded_traits(stored: &StoredFleet, host: &str) -> Result<bool> {
    let check_in: CheckIn = decode(&stored.first_check_in(host)?)?;
    let observation = check_in.observation.context("it has an observation")?;
    Ok(observation.traits == stemma_agent::facts::observe().traits)
}

#[test]
fn upgraded_host_sends_pending_results_and_runs_nothing() -> Result<()> {
    let stored = StoredFleet::unpack("kept")?;
    let results_path = stored.path("web-1/var/lib/stemma-agent/apply/results");
    let is_sent = || std::fs::read_dir(&results_path).is_ok_and(|mut files| files.next().is_none());
    ensure!(!is_sent(), "results wait to be sent");
    let changed_names = run_both_upgraded(&stored, "web-1", RecordedTime::now(), |_| is_sent())?;
    let results_dir = "var/lib/stemma-agent/apply/results/";
    // The only change is the removal of the file with the sent results.
    ensure!(changed_names.len() == 1 && changed_names[0].starts_with(results_dir), "{changed_names:?}");
    Ok(())
}

/// The agent of a converged host checks in, until the controller holds a check-in open. The agent changes no file.
#[test]
fn upgraded_converged_host_writes_no_file() -> Result<()> {
    let stored = StoredFleet::unpack("kept")?;
    let changed_names = run_both_upgraded(&stored, "web-2", RecordedTime::now(), |served| {
        served.metric("stemma_checkins_total") > 1 && served.metric("stemma_checkins_parked") == 1
    })?;
    ensure!(changed_names.is_empty(), "{changed_names:?}");
    Ok(())
}

/// In this test, the task `site-conf` of the web hosts waits for the task `schema` of db-1, which gets a new task set.
/// The controller must notice that the results of this task set open the barrier.
#[test]
fn upgraded_controller_misses_no_barrier_opened_by_results() -> Result<()> {
    let (stored, time, host) = (StoredFleet::unpack("kept")?, RecordedTime::now(), "db-1");
    let served = serve_fleet(&stored, time)?;
    stored.set_controller_url(host, &served.addresses.agents)?;
    set_tier(&stored, &served, host, time, "silver")?;
    agent::run_until(&stored.path(host), time, QUIET_PERIOD, || {
        served.metric("stemma_checkins_parked") == 1
            && std::fs::read_to_string(stored.path("db-1/etc/motd")).is_ok_and(|text| text.ends_with(": tier silver\n"))
            && node_state(&stored, &served, host, time).is_ok_and(|state| state == "converged")
    })?;
    check_nothing_missed(&served)
}

#[test]
fn upgraded_held_host_writes_no_file() -> Result<()> {
    let stored = StoredFleet::unpack("held")?;
    for host in HELD_HOSTS {
        let changed_names = run_both_upgraded(&stored, host, RecordedTime::now(), |served| {
            served.metric("stemma_checkins_total") > 0 && served.metric("stemma_checkins_parked") == 1
        })?;
        ensure!(changed_names.is_empty(), "{host}: {changed_names:?}");
    }
    Ok(())
}
