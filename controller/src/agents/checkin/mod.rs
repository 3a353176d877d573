//! The check-in: heartbeat, pull and report in one, held until there is something to say.
//!
//! ```text
//!            say: results, observation, report, local state
//!   begin ─────────────────────────────────────────────────▶ look ──▶ news? ──▶ answer
//!     │ supersedes the one before                             ▲         │ none
//!     ▼                                                       └── wake ─┘ park, until the wait is over
//!  (its turn is over: `Superseded`)
//! ```
//!
//! What a host says is handed on and stored before it is acknowledged. What it is told is looked up at each waking, so a waking that
//! was for something else, or came twice, costs a look and nothing more.

use std::sync::Arc;
use std::time::Duration;

use stemma_core::epoch::{EpochLine, HeldAndTold, HeldRevision, Standing};
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer, Held, News};
use stemma_wire::message::observed::{Observation, Report};
use stemma_wire::message::{PartDigest, WireVersion, digest_part, encode_part};
use stemma_wire::serve::{Peer, Rejected};
use tokio::time::{Instant, timeout_at};

use super::liveness::write_silence;
use crate::desired::hosts::Addresses;
use crate::desired::slot::{Here, Look, Opening, Slot, Turn};
use crate::desired::{DesiredTable, Signed, held_revision};
use crate::intake::{Intake, IntakeError, Part, Said, Stored, Taken, ToldParts};

/// The longest that a check-in is held, whatever the agent asks for: a connection that died without a word is found out by the
/// next one not coming.
pub(super) const MAX_WAIT: Duration = Duration::from_mins(1);

/// A node's Observations are stored at least so far apart.
const OBSERVATION_INTERVAL: Duration = Duration::from_secs(10);

/// After so long a host sends results again that came too fast.
const SLOWER_MS: u32 = 10_000;

/// The reason under which two hosts with one identity are counted and told of.
const DOUBLED: &str = "identity_doubled";

/// What answers check-ins.
pub(super) struct CheckIns {
    pub(super) desired: Arc<DesiredTable>,
    pub(super) intake: Arc<dyn Intake>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) rejected: Arc<Rejected>,
}

/// An answer with what becomes of the connection.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) answer: CheckInAnswer,
    /// Close the connection after it.
    pub(super) close: bool,
}

/// What a look finds.
#[derive(Debug)]
enum Looked {
    /// There is nothing to say yet.
    Nothing,
    /// The host is to be told a state of this epoch and revision, and that has to be stored first.
    ToTell(HeldRevision, ToldParts),
    /// What there is to say.
    Answer(Answered),
}

impl Looked {
    fn answer(answer: CheckInAnswer, close: bool) -> Self {
        Self::Answer(Answered { answer, close })
    }
}

/// What is to be acknowledged, and what is still to be stored.
struct Conversation {
    slot: Arc<Slot>,
    turn: Turn,
    held: Option<Held>,
    /// In which the agent speaks, and is told everything.
    version: WireVersion,
    /// The host's present Observation: its digest, and the whole of it until it is stored.
    digest: PartDigest,
    observation: Option<Observation>,
    /// Something was stored that the agent waits to hear.
    stored_something: bool,
    /// An Observation that is not here is asked for.
    may_ask: bool,
    /// What is new is told now; not where the record of that cannot be stored.
    may_be_told: bool,
    /// How long the host is to wait before its next check-in, which it is told at once; 0: it need not.
    next_ms: u32,
}

/// What became of something that a host said.
enum Kept<T> {
    /// It is stored.
    Yes(T),
    /// The store takes no writes at the moment: the host sends it again, and is told what there is meanwhile.
    NotNow,
    /// It breaks a rule, and always will.
    Never,
}

impl CheckIns {
    /// Takes a check-in and answers it, at once or when there is something to say.
    ///
    /// # Errors
    /// What the agent is told in place of an answer: its node is gone, or what it said cannot be.
    pub(super) async fn answer(
        &self,
        slot: Arc<Slot>,
        peer: &Arc<Peer>,
        version: WireVersion,
        said: CheckIn,
    ) -> Result<Answered, ApiError> {
        let now = Instant::now();
        let deadline = now + Duration::from_millis(said.wait_ms.into()).min(MAX_WAIT);
        let mut talk = self.begin(slot, peer, (version, said), now).await?;
        self.desired.status().note_report(talk.slot.node(), Part::CheckIn, &Ok(()));
        // The usual answer is at once: nothing is set up for a wait that does not come, nor carried for what is seldom said.
        if talk.observation.is_none()
            && let Looked::Answer(answered) = self.look(&mut talk, peer, now >= deadline)?
        {
            return Ok(answered);
        }
        Box::pin(self.wait(talk, peer, deadline)).await
    }

    /// Notes that a check-in of a node's host was refused whole, as a finding of the node. One of a node that is gone and one that broke on its way
    /// are none. One of a version that is not spoken here is: an agent that knows an earlier one comes in that at once, which ends it, and
    /// another one never says anything.
    pub(super) fn note_refused(&self, slot: &Slot, error: &ApiError) {
        let is_none = matches!(error.kind, ErrorType::AuthRevoked | ErrorType::RequestMalformed);
        if error.status() < 500 && !is_none {
            let reason = error.message.trim_end_matches('.').to_owned();
            let refused = Err::<(), _>(IntakeError::Refused(reason));
            self.desired.status().note_report(slot.node(), Part::CheckIn, &refused);
        }
    }

    /// Begins the node's turn, and takes in what the host says, if it says anything new.
    async fn begin(
        &self,
        slot: Arc<Slot>,
        peer: &Peer,
        (version, mut said): (WireVersion, CheckIn),
        now: Instant,
    ) -> Result<Conversation, ApiError> {
        let words = Said {
            boot_id: said.boot_id,
            local: std::mem::take(&mut said.local),
            wants: std::mem::take(&mut said.wants),
            gives_back: std::mem::take(&mut said.gives_back),
        };
        let Stored { told, observation: stored, .. } = slot.stored(|| self.intake.stored(slot.node()));
        let standing = self.standing(&self.desired.epoch_line(), said.held.as_ref(), told);
        let ahead = said.held.filter(|_| !standing.can_be_told());
        let is_more = !said.results.is_empty() || said.observation.is_some() || said.report.is_some();
        let opening = Opening {
            said: &words,
            held: said.held,
            ahead,
            observation: said.observation_digest,
            says_more: is_more,
            from: peer.address,
        };
        let begun = slot.begin(now, &opening, || self.intake.stored(slot.node()));
        if let Some(addresses) = begun.two_hosts {
            self.alarm(&slot, peer, addresses);
        }
        if begun.ahead_changed {
            self.desired.status().note_ahead(slot.node(), held_and_told(ahead.as_ref(), told));
        }
        // One that waits to be kept is over where the host says again what is.
        let waits_no_more =
            || stored == Some(said.observation_digest) && self.desired.status().waiting_reports().has(slot.node());
        if begun.refusal_ended || waits_no_more() {
            self.desired.status().note_report(slot.node(), Part::Observation, &Ok(()));
        }
        if begun.is_back {
            self.desired.status().set_liveness(slot.node(), || slot.liveness(Instant::now()));
        }
        if begun.holds_other {
            self.desired.status().set_told(slot.node(), || slot.confirmed());
        }
        let mut talk = Conversation {
            slot,
            turn: begun.turn,
            held: said.held,
            version,
            digest: said.observation_digest,
            observation: None,
            stored_something: false,
            may_ask: true,
            may_be_told: true,
            next_ms: 0,
        };
        let words = begun.says_news.then_some(words);
        if begun.silence_ended || words.is_some() || is_more {
            Box::pin(self.take_in(&mut talk, peer, said, words, begun.silence_ended)).await?;
        }
        Ok(talk)
    }

    /// Tells of two hosts with one identity (S19): in the journal and the audit, each with both addresses, and in the node's state.
    fn alarm(&self, slot: &Slot, peer: &Peer, [one, other]: Addresses) {
        let name = self.intake.name(slot.node());
        log::warn!(node:% = slot.node(), name, peer:% = other, address:% = one; "two hosts check in with one node's identity");
        self.rejected.refuse_pair(DOUBLED, &Peer::new(other, peer.identity.clone()), one);
        self.desired.status().set_doubled(slot.node(), true);
    }

    /// Holds a check-in until there is something to say.
    async fn wait(&self, mut talk: Conversation, peer: &Arc<Peer>, deadline: Instant) -> Result<Answered, ApiError> {
        let _held = talk.slot.park(talk.turn);
        loop {
            let slot = Arc::clone(&talk.slot);
            let mut waking = std::pin::pin!(slot.waiting());
            waking.as_mut().enable();
            if talk.observation.is_some() && talk.observation_due().is_none_or(|due| Instant::now() >= due) {
                self.store_observation(&mut talk, peer).await?;
            }
            match self.look(&mut talk, peer, Instant::now() >= deadline)? {
                Looked::Answer(answered) => return Ok(answered),
                Looked::ToTell(told, parts) => {
                    self.store_told(&mut talk, told, parts).await?;
                    continue;
                }
                Looked::Nothing => {}
            }
            let until = talk.observation_due().map_or(deadline, |due| due.min(deadline));
            // Over or woken: either way it is looked at again.
            let _woken = timeout_at(until, waking).await;
        }
    }

    /// Hands on what the host says beside its Observation, and keeps that until it may be stored.
    async fn take_in(
        &self,
        talk: &mut Conversation,
        peer: &Peer,
        said: CheckIn,
        words: Option<Said>,
        silence_ended: bool,
    ) -> Result<(), ApiError> {
        let (slot, node) = (Arc::clone(&talk.slot), talk.slot.node());
        let CheckIn { results, observation, report, .. } = said;
        if silence_ended {
            write_silence(&slot, self.intake.as_ref(), || self.clock.unix_seconds()).await;
        }
        if let Some(words) = words {
            // What could not be kept is taken in with the next check-in.
            self.kept(peer, &slot, Part::Local, self.store_said(&slot, talk.turn, words).await)?;
        }
        if !results.is_empty() {
            let last = results.iter().map(|result| result.sequence).max();
            let stored = self.intake.results(node, results).await;
            if let Err(IntakeError::TooFast) = stored {
                talk.next_ms = SLOWER_MS;
            }
            let acknowledged = match self.kept(peer, &slot, Part::Results, stored)? {
                Kept::Yes(acknowledged) => Some(acknowledged),
                // Acknowledged all the same, or the host would send it for ever.
                Kept::Never => last,
                Kept::NotNow => None,
            };
            if let Some(acknowledged) = acknowledged {
                slot.acknowledge(acknowledged);
                talk.stored_something = true;
            }
        }
        if let Some(report) = report {
            self.kept(peer, &slot, Part::Report, self.store_report(&slot, talk.turn, report).await)?;
        }
        if let Some(observation) = &observation {
            check_digest(talk.version, observation, talk.digest)?;
        }
        talk.observation = observation.filter(|_| !slot.knows(talk.digest));
        Ok(())
    }

    /// Looks whether there is something to say; `over` says that an answer is due either way.
    fn look(&self, talk: &mut Conversation, peer: &Arc<Peer>, over: bool) -> Result<Looked, ApiError> {
        let Here { desired, grants, grants_are_new, stored, lacks_observation } =
            match talk.slot.look(talk.turn, peer, talk.digest) {
                Look::Superseded => return Ok(Looked::answer(CheckInAnswer::Superseded, true)),
                Look::Ended => return Err(gone()),
                Look::Here(here) => here,
            };
        // What a host that is ahead was told elsewhere is not undone here. All of an answer goes by one state of the epochs: another one begins before
        // what is published is signed in it.
        let line = self.desired.epoch_line();
        let can_be_told = talk.may_be_told && self.standing(&line, talk.held.as_ref(), stored.told).can_be_told();
        let desired = desired.filter(|_| can_be_told).and_then(|signed| self.to_send(talk, signed));
        let desired = desired.filter(|signed| signed.epoch.0 == *line.now.as_bytes());
        if let Some(signed) = &desired {
            let (state, parts) = (signed.told(), signed.told_parts());
            let covering = stored.told.filter(|told| told.covers(state));
            // One that recorded no parts is not written for these alone.
            if covering.is_none() || stored.told_parts.is_some_and(|told| told != parts) {
                return Ok(Looked::ToTell(covering.unwrap_or(state), parts));
            }
        }
        let grants_are_new = grants_are_new && can_be_told;
        let stopping = self.desired.is_stopping();
        // An Observation that is neither stored nor here is asked for by answering.
        let asks = talk.may_ask && talk.observation.is_none() && lacks_observation;
        let is_to_wait = talk.next_ms > 0;
        if !(over || stopping || asks || is_to_wait || talk.stored_something || desired.is_some() || grants_are_new) {
            return Ok(Looked::Nothing);
        }
        // A state that was signed again has its grants signed with it.
        let grants = if desired.is_some() { talk.slot.grants() } else { grants };
        let given = grants.iter().filter(|_| can_be_told);
        if grants_are_new {
            talk.slot.told(peer);
        }
        if desired.is_some() {
            self.desired.sent.inc();
        }
        let news = News {
            acknowledged: stored.acknowledged,
            observation: stored.observation,
            desired: desired.map(|signed| {
                let held = talk.held.as_ref();
                signed.message(talk.version, held, self.desired.epoch_change(&line, held, signed.epoch))
            }),
            grants: given.map(|given| given.form(talk.version).clone()).collect(),
            next_ms: talk.next_ms,
        };
        Ok(Looked::answer(CheckInAnswer::Current(Box::new(news)), stopping))
    }

    /// How what an agent holds stands to the store, which told it this last.
    fn standing(&self, line: &EpochLine, held: Option<&Held>, told: Option<HeldRevision>) -> Standing {
        line.standing(held_and_told(held, told), self.intake.head())
    }

    /// Stores what the host is told last, before it is told. Where that cannot be stored now the host is told nothing new and comes again.
    async fn store_told(&self, talk: &mut Conversation, told: HeldRevision, parts: ToldParts) -> Result<(), ApiError> {
        let slot = &talk.slot;
        let _alone = slot.writing().await;
        match self.intake.told(slot.node(), told, parts).await {
            Ok(()) => slot.note_told(told, parts),
            Err(IntakeError::NoSuchNode) => return Err(gone()),
            Err(error) => {
                let name = self.intake.name(slot.node());
                log::warn!(node:% = slot.node(), name, error:% = error; "what a host is to be told could not be recorded; it is told later");
                (talk.may_be_told, talk.next_ms) = (false, SLOWER_MS);
            }
        }
        Ok(())
    }

    /// What of a desired state is to be sent now, if anything.
    fn to_send(&self, talk: &Conversation, signed: Arc<Signed>) -> Option<Arc<Signed>> {
        let Some(held) = &talk.held else { return Some(signed) };
        if signed.is_held(talk.version, held) {
            return None;
        }
        if held.epoch != signed.epoch {
            return Some(signed);
        }
        if self.desired.is_behind(&talk.slot, held.revision) {
            // This controller knows less than the agent was told by another: it waits until it does not.
            return None;
        }
        if held.revision > signed.released.revision {
            self.desired.restamp(&talk.slot);
            return talk.slot.desired();
        }
        Some(signed)
    }

    async fn store_observation(&self, talk: &mut Conversation, peer: &Peer) -> Result<(), ApiError> {
        let Some(observation) = talk.observation.take() else { return Ok(()) };
        let observed = self.intake.observed(talk.slot.node(), talk.digest, observation).await;
        match self.kept(peer, &talk.slot, Part::Observation, observed)? {
            Kept::Yes(taken) => {
                if taken == Taken::InPart {
                    self.rejected.refuse_peer(ErrorType::TraitInvalid.name(), peer);
                }
                talk.slot.note_observed(talk.digest, true);
                talk.stored_something = true;
            }
            // The host stays in the fleet; what it says of itself is not asked for until it says something else.
            Kept::Never => talk.slot.note_observed(talk.digest, false),
            Kept::NotNow => talk.may_ask = false,
        }
        Ok(())
    }

    /// What becomes of the check-in by what became of a part of it.
    fn kept<T>(
        &self,
        peer: &Peer,
        slot: &Slot,
        part: Part,
        result: Result<T, IntakeError>,
    ) -> Result<Kept<T>, ApiError> {
        let error = match result {
            Ok(kept) => return Ok(Kept::Yes(kept)),
            Err(IntakeError::TooFast) => {
                // Nothing is refused: an honest host keeps them and sends them again. It is counted, and accuses nobody in the audit.
                self.rejected.refuse("results_too_fast", Some(peer.address.ip()));
                return Ok(Kept::NotNow);
            }
            Err(error) => error,
        };
        let name = self.intake.name(slot.node());
        log::warn!(node:% = slot.node(), name, kind = part.name(), error:% = error; "what a host said was not kept");
        match error {
            IntakeError::Unavailable | IntakeError::TooFast => Ok(Kept::NotNow),
            IntakeError::Refused(_) => {
                self.rejected.refuse_peer("report_refused", peer);
                Ok(Kept::Never)
            }
            IntakeError::NoSuchNode => Err(gone()),
        }
    }

    /// Stores what is said beside results, unless a later check-in says it by now. It is a task of its own, so that it is noted as
    /// stored when it is, and not before, also where the connection breaks meanwhile.
    async fn store_said(&self, slot: &Arc<Slot>, turn: Turn, words: Said) -> Result<(), IntakeError> {
        let (slot, intake) = (Arc::clone(slot), Arc::clone(&self.intake));
        let written = tokio::spawn(async move {
            let _alone = slot.writing().await;
            if !slot.begin_said(turn, &words) {
                return Ok(());
            }
            let written = intake.said(slot.node(), words.clone()).await;
            if matches!(written, Ok(()) | Err(IntakeError::Refused(_))) {
                slot.note_said(words);
            }
            written
        });
        written.await.unwrap_or(Err(IntakeError::Unavailable))
    }

    /// Stores a Report, unless that of a later check-in came first. A check-in whose results take their time is passed by one on another
    /// connection; its Report would then stand for as long as the host has nothing new to say.
    async fn store_report(&self, slot: &Slot, turn: Turn, report: Report) -> Result<(), IntakeError> {
        let _alone = slot.writing().await;
        if !slot.begin_report(turn) {
            return Ok(());
        }
        self.intake.report(slot.node(), report).await
    }
}

impl Conversation {
    /// When the Observation at hand may be stored; `None`: at once, or there is none.
    fn observation_due(&self) -> Option<Instant> {
        self.observation.as_ref()?;
        self.slot.observation_due(OBSERVATION_INTERVAL)
    }
}

/// What a host holds, beside what it was told last; `None`: it holds nothing.
fn held_and_told(held: Option<&Held>, told: Option<HeldRevision>) -> Option<HeldAndTold> {
    held.map(|held| HeldAndTold { held: held_revision(held), told })
}

fn gone() -> ApiError {
    ApiError::new(ErrorType::AuthRevoked, "the node was deleted")
}

/// The digest is what both ends will know the Observation by, so it must be its own.
fn check_digest(version: WireVersion, observation: &Observation, digest: PartDigest) -> Result<(), ApiError> {
    if digest_part(version, &encode_part(version, observation)) == digest {
        return Ok(());
    }
    Err(ApiError::new(ErrorType::MessageMalformed, "the observation does not have the digest that was named")
        .field("observation_digest"))
}

#[cfg(test)]
mod tests;
