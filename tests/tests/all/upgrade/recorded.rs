//! The agent first: the agent of today meets the controller of that version, as what it answered was written down. A check-in
//! must be what the agent of then would have said, byte for byte, but for what is of the machine or of the moment.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response};
use stemma_tests::stand_in;
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::observed::{Observation, Report};
use stemma_wire::message::{Message as _, decode, encode};
use stemma_wire::serve::{Peer, RequestBody};

use crate::upgrade::kept::{Kept, Then, changed};
use crate::upgrade::{HELD, QUIET, agent};

/// A check-in of a host in the words of then, and what it was answered.
struct Exchange {
    asked: Vec<u8>,
    answered: Vec<u8>,
}

/// What was written down of a host, and what its agent says now.
struct Conversation {
    /// What the agent of then said first, after a start.
    then: CheckIn,
    exchanges: Vec<Exchange>,
    said: Mutex<Said>,
}

/// What the agent said.
#[derive(Default)]
struct Said {
    /// How often it said what was asked in each exchange.
    times: Vec<usize>,
    /// The sequence numbers of the results that it sent.
    results: Vec<u64>,
    /// What the agent of then would not have said.
    otherwise: Vec<String>,
}

impl Conversation {
    fn of(kept: &Kept, host: &str) -> Result<Arc<Self>> {
        let dir = kept.recorded(host);
        let read = |name: String| std::fs::read(dir.join(&name)).with_context(|| format!("{host}: {name}"));
        let count = std::fs::read_dir(&dir)?.count() / 2;
        let exchanges = (1..=count)
            .map(|at| Ok(Exchange { asked: read(format!("{at}.asked"))?, answered: read(format!("{at}.answered"))? }));
        let exchanges = exchanges.collect::<Result<Vec<_>>>()?;
        let first = kept.message(host)?;
        ensure!(
            exchanges.first().is_some_and(|one| one.asked == first),
            "{host}: it begins as the agent of then began"
        );
        let said = Said { times: vec![0; exchanges.len()], ..Said::default() };
        Ok(Arc::new(Self { then: decode(&first)?, exchanges, said: Mutex::new(said) }))
    }

    /// What a check-in is answered. `None`: it was answered before, and nothing has happened since.
    fn answer(&self, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut check_in: CheckIn = decode(body)?;
        let digest = check_in.observation_digest;
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.results.extend(check_in.results.iter().map(|result| result.sequence));
        in_words_of(&self.then, &mut check_in);
        let asked = encode(&check_in);
        let Some(at) = self.exchanges.iter().position(|one| one.asked == asked) else {
            bail!("the agent of then did not say {check_in:?}");
        };
        said.times[at] += 1;
        if said.times[at] > 1 {
            return Ok(None);
        }
        let mut answer: CheckInAnswer = decode(&self.exchanges[at].answered)?;
        ensure!(encode(&answer) == self.exchanges[at].answered, "an answer of then is read in another form");
        if let CheckInAnswer::Current(news) = &mut answer {
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
                self.said.lock().unwrap_or_else(PoisonError::into_inner).otherwise.push(format!("{error:#}"));
                Response::builder().status(500).body(Full::default()).expect("a response")
            }
        }
    }

    /// Whether all that was written down has come about, and the agent waits again or says what it should not.
    fn is_over(&self) -> bool {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let is_parked = said.times.last().is_some_and(|times| *times > 1);
        !said.otherwise.is_empty() || is_parked && said.times.iter().all(|times| *times > 0)
    }
}

/// Puts what is of the machine and of the moment as a host said it then: its boot, what was observed of it and the version of its agent.
/// What its own files say, what it holds, and what became of its tasks stay as they are.
pub(crate) fn in_words_of(then: &CheckIn, check_in: &mut CheckIn) {
    check_in.boot_id = then.boot_id;
    check_in.observation_digest = then.observation_digest;
    if let (Some(Observation { facts, traits, labels: _ }), Some(then)) = (&mut check_in.observation, &then.observation)
    {
        facts.clone_from(&then.facts);
        traits.clone_from(&then.traits);
    }
    if let (Some(report), Some(then)) = (&mut check_in.report, &then.report) {
        let Report { agent_version, facts, findings: _, progress: _, local: _ } = report;
        agent_version.clone_from(&then.agent_version);
        facts.clone_from(&then.facts);
    }
}

/// Runs the agent over a kept host against what was written down; gives the results that it sent, and the files that are not as they were.
fn agent_first(kept: &Kept, host: &str) -> Result<(Vec<u64>, Vec<String>)> {
    let time = Then::now();
    let conversation = Conversation::of(kept, host)?;
    let fleet = kept.fleet(host)?;
    let answering = Arc::clone(&conversation);
    let handler = move |_: &Arc<Peer>, request: Request<RequestBody>| Arc::clone(&answering).respond(request);
    let address = stand_in::serve(&kept.path("data"), &fleet, &fleet, Arc::new(time), handler)?;
    kept.point(host, &format!("https://{address}"))?;
    let before = kept.files(host)?;
    agent::run_until(&kept.path(host), time, QUIET, || conversation.is_over())?;
    let said = conversation.said.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(said.otherwise.is_empty(), "{host}: {:?}", said.otherwise);
    Ok((said.results.clone(), changed(&before, &kept.files(host)?)))
}

#[test]
fn the_agent_first_sends_the_controller_of_then_what_was_not_sent_once() -> Result<()> {
    let kept = Kept::unpack("kept")?;
    let unsent = kept.path("web-1/var/lib/stemma-agent/apply/results");
    let wait: CheckIn = decode(&kept.message("web-1")?)?;
    let wait: Vec<u64> = wait.results.iter().map(|result| result.sequence).collect();
    ensure!(!wait.is_empty() && std::fs::read_dir(&unsent)?.next().is_some(), "results wait to be sent");
    let (sent, changed) = agent_first(&kept, "web-1")?;
    ensure!(sent == wait, "{sent:?} were sent of {wait:?}");
    let taken = "var/lib/stemma-agent/apply/results/";
    ensure!(changed.len() == 1 && changed[0].starts_with(taken), "{changed:?}");
    ensure!(std::fs::read_dir(&unsent)?.next().is_none(), "what was sent is taken away");
    Ok(())
}

/// That hosts which have nothing new to say write nothing.
fn writes_nothing(name: &'static str, hosts: &[&str]) -> Result<()> {
    let kept = Kept::unpack(name)?;
    for host in hosts {
        let told = agent_first(&kept, host)?;
        ensure!(told == (vec![], vec![]), "{host}: {told:?}");
    }
    Ok(())
}

#[test]
fn the_agent_first_of_a_converged_host_writes_nothing_under_the_controller_of_then() -> Result<()> {
    writes_nothing("kept", &["web-2", "db-1"])
}

#[test]
fn the_agent_first_of_who_is_held_parked_or_paused_writes_nothing_under_the_controller_of_then() -> Result<()> {
    writes_nothing("held", &HELD)
}
