//! The agent is upgraded first: the current agent gets the recorded answers of the earlier controller, of commit
//! 118d023. Each check-in must equal a check-in that the earlier agent sent, byte for byte. Only values of the machine
//! and of the moment may differ.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response};
use stemma_tests::stand_in;
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::observed::{Observation, Report};
use stemma_wire::message::{Message as _, decode, encode};
use stemma_wire::serve::{Peer, RequestBody};

use crate::upgrade::stored_fleet::{RecordedTime, StoredFleet, changed_files};
use crate::upgrade::{HELD_HOSTS, QUIET_PERIOD, agent};

/// A recorded check-in of the earlier agent, and the answer of the earlier controller. Each is an encoded message.
struct Exchange {
    request: Vec<u8>,
    response: Vec<u8>,
}

/// The recorded exchanges of a host, and a log of what the current agent sends.
struct Conversation {
    /// The first check-in of the earlier agent after its start.
    first_check_in: CheckIn,
    exchanges: Vec<Exchange>,
    log: Mutex<AgentLog>,
}

/// A log of what the current agent sent.
#[derive(Default)]
struct AgentLog {
    /// The number of times that the agent sent the check-in of each exchange.
    counts: Vec<usize>,
    /// The sequence numbers of the results that the agent sent.
    results: Vec<u64>,
    /// Errors about requests that the earlier agent did not send.
    unexpected: Vec<String>,
}

impl Conversation {
    /// Reads the recorded exchanges of a host.
    fn for_host(stored: &StoredFleet, host: &str) -> Result<Arc<Self>> {
        let dir = stored.recording_dir(host);
        let read = |name: String| std::fs::read(dir.join(&name)).with_context(|| format!("{host}: {name}"));
        let count = std::fs::read_dir(&dir)?.count() / 2;
        let exchanges = (1..=count).map(|number| {
            Ok(Exchange { request: read(format!("{number}.asked"))?, response: read(format!("{number}.answered"))? })
        });
        let exchanges = exchanges.collect::<Result<Vec<_>>>()?;
        let first_request = stored.first_check_in(host)?;
        ensure!(
            exchanges.first().is_some_and(|exchange| exchange.request == first_request),
            "{host}: the recording does not begin with the first check-in"
        );
        let log = AgentLog { counts: vec![0; exchanges.len()], ..AgentLog::default() };
        Ok(Arc::new(Self { first_check_in: decode(&first_request)?, exchanges, log: Mutex::new(log) }))
    }

    /// Returns the recorded answer to a check-in, or `None` if the same check-in was already answered. The answer
    /// confirms the observation of the current agent. Fails if the earlier agent did not send this check-in.
    fn answer(&self, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut check_in: CheckIn = decode(body)?;
        let digest = check_in.observation_digest;
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.results.extend(check_in.results.iter().map(|result| result.sequence));
        replace_machine_values(&self.first_check_in, &mut check_in);
        let request = encode(&check_in);
        let Some(index) = self.exchanges.iter().position(|exchange| exchange.request == request) else {
            bail!("the earlier agent did not send {check_in:?}");
        };
        log.counts[index] += 1;
        if log.counts[index] > 1 {
            return Ok(None);
        }
        let mut answer: CheckInResponse = decode(&self.exchanges[index].response)?;
        ensure!(encode(&answer) == self.exchanges[index].response, "a recorded answer changes when it is decoded and encoded");
        if let CheckInResponse::Current(update) = &mut answer {
            // The answer confirms the observation that this agent sent.
            update.observation = update.observation.map(|_| digest);
        }
        Ok(Some(encode(&answer)))
    }

    /// Answers a request of the agent. A repeated check-in gets no answer, as if the controller held it open. A request
    /// that the earlier agent did not send is logged and gets status 500.
    async fn respond(self: Arc<Self>, request: Request<RequestBody>) -> Response<Full<Bytes>> {
        let request_line = format!("{} {}", request.method(), request.uri().path());
        let is_check_in = (request.method(), request.uri().path()) == (&Method::POST, "/agent/v1/checkin");
        let body = request.into_body().collect(CheckIn::MAX_BYTES as u64).await;
        let answer = match body {
            Ok(body) if is_check_in => self.answer(&body),
            _ => Err(anyhow::anyhow!("the earlier agent did not send {request_line}")),
        };
        match answer {
            Ok(Some(answer)) => Response::new(Full::new(answer.into())),
            Ok(None) => std::future::pending().await,
            Err(error) => {
                self.log.lock().unwrap_or_else(PoisonError::into_inner).unexpected.push(format!("{error:#}"));
                Response::builder().status(500).body(Full::default()).expect("a response")
            }
        }
    }

    /// Returns whether all recorded exchanges have happened and the agent waits again. Also returns true if the agent
    /// sent something unexpected, so that the test ends.
    fn is_complete(&self) -> bool {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // The agent waits when it has sent the last check-in again.
        let is_parked = log.counts.last().is_some_and(|times| *times > 1);
        !log.unexpected.is_empty() || is_parked && log.counts.iter().all(|times| *times > 0)
    }
}

/// Replaces values of the machine and of the moment with the recorded ones: the boot id, the observed facts and traits,
/// the digest of the observation, and the agent's version and facts in the report. The labels in the host's files, its
/// desired state and the results of its tasks stay unchanged.
pub(crate) fn replace_machine_values(recorded: &CheckIn, check_in: &mut CheckIn) {
    check_in.boot_id = recorded.boot_id;
    check_in.observation_digest = recorded.observation_digest;
    if let (Some(Observation { facts, traits, labels: _ }), Some(recorded)) = (&mut check_in.observation, &recorded.observation) {
        facts.clone_from(&recorded.facts);
        traits.clone_from(&recorded.traits);
    }
    if let (Some(report), Some(recorded)) = (&mut check_in.report, &recorded.report) {
        let Report { agent_version, facts, findings: _, progress: _, local: _ } = report;
        agent_version.clone_from(&recorded.agent_version);
        facts.clone_from(&recorded.facts);
    }
}

/// Runs the current agent on the files of a stored host, against the recorded answers. Returns the sequence numbers of
/// the results that the agent sent, and the names of the changed files.
fn run_upgraded_agent(stored: &StoredFleet, host: &str) -> Result<(Vec<u64>, Vec<String>)> {
    let time = RecordedTime::now();
    let conversation = Conversation::for_host(stored, host)?;
    let fleet = stored.fleet_name(host)?;
    let server_conversation = Arc::clone(&conversation);
    let handler = move |_: &Arc<Peer>, request: Request<RequestBody>| Arc::clone(&server_conversation).respond(request);
    let address = stand_in::serve(&stored.path("data"), &fleet, &fleet, Arc::new(time), handler)?;
    stored.set_controller_url(host, &format!("https://{address}"))?;
    let files_before = stored.files(host)?;
    agent::run_until(&stored.path(host), time, QUIET_PERIOD, || conversation.is_complete())?;
    let log = conversation.log.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(log.unexpected.is_empty(), "{host}: {:?}", log.unexpected);
    Ok((log.results.clone(), changed_files(&files_before, &stored.files(host)?)))
}

#[test]
fn upgraded_agent_sends_pending_results_once() -> Result<()> {
    let stored = StoredFleet::unpack("kept")?;
    let results_path = stored.path("web-1/var/lib/stemma-agent/apply/results");
    let check_in: CheckIn = decode(&stored.first_check_in("web-1")?)?;
    let pending: Vec<u64> = check_in.results.iter().map(|result| result.sequence).collect();
    ensure!(!pending.is_empty() && std::fs::read_dir(&results_path)?.next().is_some(), "results wait to be sent");
    let (sent_results, changed_names) = run_upgraded_agent(&stored, "web-1")?;
    ensure!(sent_results == pending, "{sent_results:?} were sent of {pending:?}");
    let results_dir = "var/lib/stemma-agent/apply/results/";
    // The only change is the removal of the file with the sent results.
    ensure!(changed_names.len() == 1 && changed_names[0].starts_with(results_dir), "{changed_names:?}");
    ensure!(std::fs::read_dir(&results_path)?.next().is_none(), "a sent result was not deleted");
    Ok(())
}

/// Checks that agents of hosts with nothing new to report send no result and write no file.
fn check_hosts_write_nothing(name: &'static str, hosts: &[&str]) -> Result<()> {
    let stored = StoredFleet::unpack(name)?;
    for host in hosts {
        let results_and_files = run_upgraded_agent(&stored, host)?;
        ensure!(results_and_files == (vec![], vec![]), "{host}: {results_and_files:?}");
    }
    Ok(())
}

#[test]
fn upgraded_agent_of_converged_host_writes_nothing() -> Result<()> {
    check_hosts_write_nothing("kept", &["web-2", "db-1"])
}

#[test]
fn upgraded_agent_of_held_host_writes_nothing() -> Result<()> {
    check_hosts_write_nothing("held", &HELD_HOSTS)
}
