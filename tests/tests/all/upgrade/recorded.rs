//! The agent is upgraded first: the current agent meets the recorded answers of the controller of that version. A
//! check-in must be what the agent of that version would have sent, byte for byte. Only values of the machine and of
//! the moment may differ.

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

/// A check-in of a host in the form of that version, and its recorded answer.
struct Exchange {
    request: Vec<u8>,
    response: Vec<u8>,
}

/// The recorded exchanges of a host, and what its agent sends now.
struct Conversation {
    /// The first check-in of the agent of that version after a start.
    first_check_in: CheckIn,
    exchanges: Vec<Exchange>,
    log: Mutex<AgentLog>,
}

/// What the agent sent.
#[derive(Default)]
struct AgentLog {
    /// The number of times that the request of each exchange was sent.
    counts: Vec<usize>,
    /// The sequence numbers of the results that it sent.
    results: Vec<u64>,
    /// Requests that the agent of that version would not have sent.
    unexpected: Vec<String>,
}

impl Conversation {
    fn for_host(stored: &StoredFleet, host: &str) -> Result<Arc<Self>> {
        let dir = stored.recording_dir(host);
        let read = |name: String| std::fs::read(dir.join(&name)).with_context(|| format!("{host}: {name}"));
        let count = std::fs::read_dir(&dir)?.count() / 2;
        let exchanges = (1..=count)
            .map(|at| Ok(Exchange { request: read(format!("{at}.asked"))?, response: read(format!("{at}.answered"))? }));
        let exchanges = exchanges.collect::<Result<Vec<_>>>()?;
        let first = stored.last_check_in(host)?;
        ensure!(
            exchanges.first().is_some_and(|exchange| exchange.request == first),
            "{host}: it begins as the agent of then began"
        );
        let log = AgentLog { counts: vec![0; exchanges.len()], ..AgentLog::default() };
        Ok(Arc::new(Self { first_check_in: decode(&first)?, exchanges, log: Mutex::new(log) }))
    }

    /// Returns the answer to a check-in, or `None` if it was answered before and nothing has happened since.
    fn answer(&self, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut check_in: CheckIn = decode(body)?;
        let digest = check_in.observation_digest;
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.results.extend(check_in.results.iter().map(|result| result.sequence));
        replace_machine_values(&self.first_check_in, &mut check_in);
        let request = encode(&check_in);
        let Some(at) = self.exchanges.iter().position(|exchange| exchange.request == request) else {
            bail!("the agent of then did not say {check_in:?}");
        };
        log.counts[at] += 1;
        if log.counts[at] > 1 {
            return Ok(None);
        }
        let mut answer: CheckInResponse = decode(&self.exchanges[at].response)?;
        ensure!(encode(&answer) == self.exchanges[at].response, "an answer of then is read in another form");
        if let CheckInResponse::Current(news) = &mut answer {
            news.observation = news.observation.map(|_| digest);
        }
        Ok(Some(encode(&answer)))
    }

    async fn respond(self: Arc<Self>, request: Request<RequestBody>) -> Response<Full<Bytes>> {
        let asked = format!("{} {}", request.method(), request.uri().path());
        let is_check_in = (request.method(), request.uri().path()) == (&Method::POST, "/agent/v1/checkin");
        let body = request.into_body().collect(CheckIn::MAX_BYTES as u64).await;
        let answer = match body {
            Ok(body) if is_check_in => self.answer(&body),
            _ => Err(anyhow::anyhow!("{asked} was not asked then")),
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

    /// Returns whether all recorded exchanges have happened and the agent waits again, or whether it sent something
    /// unexpected.
    fn is_complete(&self) -> bool {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let is_parked = log.counts.last().is_some_and(|times| *times > 1);
        !log.unexpected.is_empty() || is_parked && log.counts.iter().all(|times| *times > 0)
    }
}

/// Replaces values of the machine and of the moment with the recorded ones: the boot id, the observed facts and traits,
/// and the version of the agent. The contents of the host's own files, the state it holds and the results of its tasks
/// stay unchanged.
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

/// Runs the agent over a stored host against the recorded answers. Returns the results that it sent, and the names of
/// the changed files.
fn run_upgraded_agent(stored: &StoredFleet, host: &str) -> Result<(Vec<u64>, Vec<String>)> {
    let time = RecordedTime::now();
    let conversation = Conversation::for_host(stored, host)?;
    let fleet = stored.fleet_name(host)?;
    let answering = Arc::clone(&conversation);
    let handler = move |_: &Arc<Peer>, request: Request<RequestBody>| Arc::clone(&answering).respond(request);
    let address = stand_in::serve(&stored.path("data"), &fleet, &fleet, Arc::new(time), handler)?;
    stored.set_controller_url(host, &format!("https://{address}"))?;
    let before = stored.files(host)?;
    agent::run_until(&stored.path(host), time, QUIET_PERIOD, || conversation.is_complete())?;
    let log = conversation.log.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(log.unexpected.is_empty(), "{host}: {:?}", log.unexpected);
    Ok((log.results.clone(), changed_files(&before, &stored.files(host)?)))
}

#[test]
fn upgraded_agent_sends_pending_results_once() -> Result<()> {
    let stored = StoredFleet::unpack("kept")?;
    let unsent = stored.path("web-1/var/lib/stemma-agent/apply/results");
    let check_in: CheckIn = decode(&stored.last_check_in("web-1")?)?;
    let wait: Vec<u64> = check_in.results.iter().map(|result| result.sequence).collect();
    ensure!(!wait.is_empty() && std::fs::read_dir(&unsent)?.next().is_some(), "results wait to be sent");
    let (sent, changed) = run_upgraded_agent(&stored, "web-1")?;
    ensure!(sent == wait, "{sent:?} were sent of {wait:?}");
    let results_dir = "var/lib/stemma-agent/apply/results/";
    ensure!(changed.len() == 1 && changed[0].starts_with(results_dir), "{changed:?}");
    ensure!(std::fs::read_dir(&unsent)?.next().is_none(), "what was sent is taken away");
    Ok(())
}

/// Checks that hosts with nothing new to report write nothing.
fn check_hosts_write_nothing(name: &'static str, hosts: &[&str]) -> Result<()> {
    let stored = StoredFleet::unpack(name)?;
    for host in hosts {
        let told = run_upgraded_agent(&stored, host)?;
        ensure!(told == (vec![], vec![]), "{host}: {told:?}");
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
