//! The check-in: heartbeat, pull and report in one request, which waits until there is something to send.
//!
//! ```text
//!            store: results, observation, report, local state
//!   begin ─────────────────────────────────────────────────▶ poll ──▶ news? ──▶ reply
//!     │ supersedes the previous one                           ▲         │ none
//!     ▼                                                       └── wake ─┘ park, until the wait is over
//!  (its turn is over: `Superseded`)
//! ```
//!
//! A host's report is stored before it is acknowledged. The news is computed at each wakeup, so a wakeup without news,
//! or a duplicate one, costs a poll and has no other effect.

use std::sync::Arc;
use std::time::Duration;

use stemma_core::epoch::{EpochHistory, HeldRevision, HostEpochState, HostRevisions};
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::checkin::{CheckIn, CheckInResponse, CheckInUpdate, HeldDesired};
use stemma_wire::message::observed::{Observation, Report};
use stemma_wire::message::{PartDigest, WireVersion, digest_part, encode_part};
use stemma_wire::serve::{Peer, RejectionCounter};
use tokio::time::{Instant, timeout_at};

use super::liveness::store_liveness;
use crate::desired::duplicates::HostAddresses;
use crate::desired::slot::{CheckInNumber, CheckInStart, NodeSlot, PendingUpdate, PollResult};
use crate::desired::{DesiredTable, SignedState, held_revision};
use crate::intake::{Acceptance, AgentState, Intake, IntakeError, ReportPart, SentParts, StoredReports};

/// The longest wait of a check-in, whatever the agent requests. A connection that broke unnoticed is detected when the
/// next check-in does not arrive.
pub(super) const MAX_WAIT: Duration = Duration::from_mins(1);

/// Minimum interval between two stored Observations of a node.
const MIN_OBSERVATION_INTERVAL: Duration = Duration::from_secs(10);

/// Delay after which a host shall send again results that arrived too fast.
const RESULTS_RETRY_MS: u32 = 10_000;

/// The reason under which two hosts with one identity are counted and reported.
const DUPLICATE_REASON: &str = "identity_doubled";

/// Handles check-ins of agents.
pub(super) struct CheckInHandler {
    pub(super) desired: Arc<DesiredTable>,
    pub(super) intake: Arc<dyn Intake>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) rejected: Arc<RejectionCounter>,
}

/// The response to a check-in, and whether the connection is closed.
#[derive(Debug)]
pub(super) struct CheckInReply {
    pub(super) response: CheckInResponse,
    /// True if the connection is closed after the response.
    pub(super) should_close: bool,
}

/// The result of a poll: what a check-in does next.
#[derive(Debug)]
enum PollOutcome {
    /// There is nothing to send yet.
    Pending,
    /// A state with this epoch and revision shall be sent, and this must be stored first.
    StoreFirst(HeldRevision, SentParts),
    /// The response is to be sent.
    Reply(CheckInReply),
}

impl PollOutcome {
    fn new(answer: CheckInResponse, close: bool) -> Self {
        Self::Reply(CheckInReply { response: answer, should_close: close })
    }
}

/// A running check-in: what is to be acknowledged, and what is still to be stored.
struct CheckInSession {
    slot: Arc<NodeSlot>,
    number: CheckInNumber,
    held: Option<HeldDesired>,
    /// The agent's wire version, in which it is answered.
    version: WireVersion,
    /// The digest of the host's current Observation. `observation` holds the Observation until it is stored.
    digest: PartDigest,
    observation: Option<Observation>,
    /// True if something was stored that the agent expects to be acknowledged.
    has_stored: bool,
    /// True if an Observation that is neither stored nor received may be requested.
    may_request: bool,
    /// True if news may be sent. False after the record of what is to be sent could not be stored.
    may_send: bool,
    /// Delay before the host's next check-in, in milliseconds. If it is not 0, the check-in is answered at once.
    retry_after_ms: u32,
}

/// The result of storing a part of a report.
enum StoreOutcome<T> {
    /// The part is stored, with this result.
    Stored(T),
    /// The store accepts no writes at the moment. The host sends the part again, and is still sent news.
    Unavailable,
    /// The part violates a rule, and always will.
    Rejected,
}

impl CheckInHandler {
    /// Handles a check-in, and responds at once or when there is something to send.
    ///
    /// # Errors
    /// The error for the agent: its node was deleted, or the check-in is invalid.
    pub(super) async fn handle(
        &self,
        slot: Arc<NodeSlot>,
        peer: &Arc<Peer>,
        version: WireVersion,
        check_in: CheckIn,
    ) -> Result<CheckInReply, ApiError> {
        let now = Instant::now();
        let deadline = now + Duration::from_millis(check_in.wait_ms.into()).min(MAX_WAIT);
        let mut session = self.begin(slot, peer, (version, check_in), now).await?;
        self.desired.status().record_report(session.slot.node(), ReportPart::CheckIn, &Ok(()));
        // Most check-ins are answered at once. For these, no future is allocated that waits and has the state of rare
        // cases.
        if session.observation.is_none()
            && let PollOutcome::Reply(reply) = self.poll(&mut session, peer, now >= deadline)?
        {
            return Ok(reply);
        }
        Box::pin(self.wait(session, peer, deadline)).await
    }

    /// Records as a finding of the node that a check-in of its host was refused as a whole. A check-in of a deleted
    /// node, or on a broken connection, does not count, but one in an unsupported version does. An agent that supports
    /// an earlier version retries in that version at once, which ends the finding. Any other agent can never report
    /// anything.
    pub(super) fn record_refusal(&self, slot: &NodeSlot, error: &ApiError) {
        let is_expected = matches!(error.kind, ErrorType::AuthRevoked | ErrorType::RequestMalformed);
        if error.status() < 500 && !is_expected {
            let reason = error.message.trim_end_matches('.').to_owned();
            let result = Err::<(), _>(IntakeError::Refused(reason));
            self.desired.status().record_report(slot.node(), ReportPart::CheckIn, &result);
        }
    }

    /// Begins a check-in, and stores what the host reports, if that is new.
    async fn begin(
        &self,
        slot: Arc<NodeSlot>,
        peer: &Peer,
        (version, mut check_in): (WireVersion, CheckIn),
        now: Instant,
    ) -> Result<CheckInSession, ApiError> {
        let state = AgentState {
            boot_id: check_in.boot_id,
            local_state: std::mem::take(&mut check_in.local),
            requested_leases: std::mem::take(&mut check_in.requested_leases),
            returned_items: std::mem::take(&mut check_in.returned_items),
        };
        let StoredReports { sent_revision: sent, observation: stored, .. } =
            slot.stored_or_read(|| self.intake.stored_reports(slot.node()));
        let host_state = self.host_state(&self.desired.epoch_line(), check_in.held_desired.as_ref(), sent);
        let held_ahead = check_in.held_desired.filter(|_| !host_state.can_send());
        let has_news = !check_in.results.is_empty() || check_in.observation.is_some() || check_in.report.is_some();
        let opening = CheckInStart {
            state: &state,
            held: check_in.held_desired,
            held_ahead,
            observation_digest: check_in.observation_digest,
            has_news,
            address: peer.address,
        };
        let begun = slot.begin_check_in(now, &opening, || self.intake.stored_reports(slot.node()));
        if let Some(addresses) = begun.duplicate_hosts {
            self.report_duplicate(&slot, peer, addresses);
        }
        if begun.has_ahead_changed {
            self.desired.status().set_ahead(slot.node(), host_revisions(held_ahead.as_ref(), sent));
        }
        // An Observation that waits to be stored is outdated if the host reports again the one that is stored.
        let is_outdated =
            || stored == Some(check_in.observation_digest) && self.desired.status().waiting_reports().contains(slot.node());
        if begun.has_refusal_ended || is_outdated() {
            self.desired.status().record_report(slot.node(), ReportPart::Observation, &Ok(()));
        }
        if begun.is_back {
            self.desired.status().set_liveness(slot.node(), || slot.liveness(Instant::now()));
        }
        if begun.has_held_changed {
            self.desired.status().set_confirmation(slot.node(), || slot.confirmation());
        }
        let mut session = CheckInSession {
            slot,
            number: begun.number,
            held: check_in.held_desired,
            version,
            digest: check_in.observation_digest,
            observation: None,
            has_stored: false,
            may_request: true,
            may_send: true,
            retry_after_ms: 0,
        };
        let state = begun.has_new_state.then_some(state);
        if begun.has_silence_ended || state.is_some() || has_news {
            Box::pin(self.store_parts(&mut session, peer, check_in, state, begun.has_silence_ended)).await?;
        }
        Ok(session)
    }

    /// Reports two hosts with one identity (S19): in the journal and the audit, each with both addresses, and in the
    /// node's status.
    fn report_duplicate(&self, slot: &NodeSlot, peer: &Peer, [first, second]: HostAddresses) {
        let name = self.intake.node_name(slot.node());
        log::warn!(node:% = slot.node(), name, peer:% = second, address:% = first; "two hosts check in with one node's identity");
        self.rejected.record_pair(DUPLICATE_REASON, &Peer::new(second, peer.identity.clone()), first);
        self.desired.status().set_duplicated(slot.node(), true);
    }

    /// Parks a check-in until there is something to send.
    async fn wait(&self, mut session: CheckInSession, peer: &Arc<Peer>, deadline: Instant) -> Result<CheckInReply, ApiError> {
        let _waiting = session.slot.begin_wait(session.number);
        loop {
            let slot = Arc::clone(&session.slot);
            let mut waking = std::pin::pin!(slot.notified());
            waking.as_mut().enable();
            if session.observation.is_some() && session.observation_due_at().is_none_or(|due| Instant::now() >= due) {
                self.store_observation(&mut session, peer).await?;
            }
            match self.poll(&mut session, peer, Instant::now() >= deadline)? {
                PollOutcome::Reply(reply) => return Ok(reply),
                PollOutcome::StoreFirst(sent, parts) => {
                    self.store_sent(&mut session, sent, parts).await?;
                    continue;
                }
                PollOutcome::Pending => {}
            }
            let until = session.observation_due_at().map_or(deadline, |due| due.min(deadline));
            // Polls again, after a timeout or a wakeup alike.
            let _woken = timeout_at(until, waking).await;
        }
    }

    /// Stores what the host reports except its Observation, which is retained until it may be stored.
    async fn store_parts(
        &self,
        session: &mut CheckInSession,
        peer: &Peer,
        check_in: CheckIn,
        state: Option<AgentState>,
        silence_ended: bool,
    ) -> Result<(), ApiError> {
        let (slot, node) = (Arc::clone(&session.slot), session.slot.node());
        let CheckIn { results, observation, report, .. } = check_in;
        if silence_ended {
            store_liveness(&slot, self.intake.as_ref(), || self.clock.unix_seconds()).await;
        }
        if let Some(state) = state {
            // A part that could not be stored is stored with the next check-in.
            self.handle_store_result(peer, &slot, ReportPart::Local, self.store_state(&slot, session.number, state).await)?;
        }
        if !results.is_empty() {
            let last = results.iter().map(|result| result.sequence).max();
            let stored = self.intake.store_results(node, results).await;
            if let Err(IntakeError::TooFast) = stored {
                session.retry_after_ms = RESULTS_RETRY_MS;
            }
            let acknowledged = match self.handle_store_result(peer, &slot, ReportPart::Results, stored)? {
                StoreOutcome::Stored(acknowledged) => Some(acknowledged),
                // Acknowledged nevertheless, or the host would send it forever.
                StoreOutcome::Rejected => last,
                StoreOutcome::Unavailable => None,
            };
            if let Some(acknowledged) = acknowledged {
                slot.note_acknowledged(acknowledged);
                session.has_stored = true;
            }
        }
        if let Some(report) = report {
            self.handle_store_result(peer, &slot, ReportPart::Report, self.store_report(&slot, session.number, report).await)?;
        }
        if let Some(observation) = &observation {
            check_digest(session.version, observation, session.digest)?;
        }
        session.observation = observation.filter(|_| !slot.has_observation(session.digest));
        Ok(())
    }

    /// Returns what to send, if anything. `is_due` means that the check-in must be answered in any case.
    fn poll(&self, session: &mut CheckInSession, peer: &Arc<Peer>, is_due: bool) -> Result<PollOutcome, ApiError> {
        let PendingUpdate { desired, grants, has_new_grants, stored, needs_observation } =
            match session.slot.poll(session.number, peer, session.digest) {
                PollResult::Superseded => return Ok(PollOutcome::new(CheckInResponse::Superseded, true)),
                PollResult::Deleted => return Err(deleted_node_error()),
                PollResult::Update(update) => update,
            };
        // A host that is ahead keeps what another store sent it. The whole response uses one epoch history, because
        // another epoch may begin before the published states are signed in it.
        let line = self.desired.epoch_line();
        let can_send = session.may_send && self.host_state(&line, session.held.as_ref(), stored.sent_revision).can_send();
        let desired = desired.filter(|_| can_send).and_then(|signed| self.unsent_state(session, signed));
        let desired = desired.filter(|signed| signed.epoch.0 == *line.now.as_bytes());
        if let Some(signed) = &desired {
            let (state, parts) = (signed.sent_revision(), signed.sent_parts());
            let covering = stored.sent_revision.filter(|sent| sent.covers(state));
            // A record without parts is not written again for the parts alone.
            if covering.is_none() || stored.sent_parts.is_some_and(|sent| sent != parts) {
                return Ok(PollOutcome::StoreFirst(covering.unwrap_or(state), parts));
            }
        }
        let has_new_grants = has_new_grants && can_send;
        let is_stopping = self.desired.is_stopping();
        // The response requests an Observation that is neither stored nor received.
        let must_request = session.may_request && session.observation.is_none() && needs_observation;
        let is_to_wait = session.retry_after_ms > 0;
        if !(is_due || is_stopping || must_request || is_to_wait || session.has_stored || desired.is_some() || has_new_grants) {
            return Ok(PollOutcome::Pending);
        }
        // When a state is signed again, so are its grants.
        let grants = if desired.is_some() { session.slot.grants() } else { grants };
        let sendable = grants.iter().filter(|_| can_send);
        if has_new_grants {
            session.slot.note_grants_sent(peer);
        }
        if desired.is_some() {
            self.desired.sent_count.inc();
        }
        let news = CheckInUpdate {
            acknowledged: stored.acknowledged_sequence,
            observation: stored.observation,
            desired: desired.map(|signed| {
                let held = session.held.as_ref();
                signed.message(session.version, held, self.desired.epoch_change(&line, held, signed.epoch))
            }),
            grants: sendable.map(|grant| grant.for_version(session.version).clone()).collect(),
            next_check_in_ms: session.retry_after_ms,
        };
        Ok(PollOutcome::new(CheckInResponse::Current(Box::new(news)), is_stopping))
    }

    /// Returns the relation between the state that an agent holds and the store, where `sent` is the last state that
    /// the store sent to the agent.
    fn host_state(&self, line: &EpochHistory, held: Option<&HeldDesired>, sent: Option<HeldRevision>) -> HostEpochState {
        line.host_state(host_revisions(held, sent), self.intake.head_revision())
    }

    /// Records the state that is about to be sent to the host. If this fails, nothing new is sent to the host, and the
    /// host checks in again later.
    async fn store_sent(&self, session: &mut CheckInSession, sent: HeldRevision, parts: SentParts) -> Result<(), ApiError> {
        let slot = &session.slot;
        let _guard = slot.lock_writes().await;
        match self.intake.store_sent(slot.node(), sent, parts).await {
            Ok(()) => slot.note_sent(sent, parts),
            Err(IntakeError::NoSuchNode) => return Err(deleted_node_error()),
            Err(error) => {
                let name = self.intake.node_name(slot.node());
                log::warn!(node:% = slot.node(), name, error:% = error; "what a host is to be sent could not be recorded; it is sent later");
                (session.may_send, session.retry_after_ms) = (false, RESULTS_RETRY_MS);
            }
        }
        Ok(())
    }

    /// Returns the desired state to send now. Returns `None` if the host holds it, or holds a revision that this
    /// controller has not reached yet.
    fn unsent_state(&self, session: &CheckInSession, signed: Arc<SignedState>) -> Option<Arc<SignedState>> {
        let Some(held) = &session.held else { return Some(signed) };
        if signed.is_held(session.version, held) {
            return None;
        }
        if held.epoch != signed.epoch {
            return Some(signed);
        }
        if self.desired.wait_for_revision(&session.slot, held.revision) {
            // This controller knows less than the one that sent the agent its state. The check-in waits until this
            // controller has caught up.
            return None;
        }
        if held.revision > signed.desired.revision {
            self.desired.sign_again(&session.slot);
            return session.slot.desired();
        }
        Some(signed)
    }

    /// Stores the retained Observation of the host, if there is one.
    async fn store_observation(&self, session: &mut CheckInSession, peer: &Peer) -> Result<(), ApiError> {
        let Some(observation) = session.observation.take() else { return Ok(()) };
        let result = self.intake.store_observation(session.slot.node(), session.digest, observation).await;
        match self.handle_store_result(peer, &session.slot, ReportPart::Observation, result)? {
            StoreOutcome::Stored(acceptance) => {
                if acceptance == Acceptance::Partial {
                    self.rejected.record_peer(ErrorType::TraitInvalid.name(), peer);
                }
                session.slot.note_observation(session.digest, true);
                session.has_stored = true;
            }
            // The host stays in the fleet. Its Observation is not requested again until it changes.
            StoreOutcome::Rejected => session.slot.note_observation(session.digest, false),
            StoreOutcome::Unavailable => session.may_request = false,
        }
        Ok(())
    }

    /// Maps the result of storing a part to the result of the check-in.
    fn handle_store_result<T>(
        &self,
        peer: &Peer,
        slot: &NodeSlot,
        part: ReportPart,
        result: Result<T, IntakeError>,
    ) -> Result<StoreOutcome<T>, ApiError> {
        let error = match result {
            Ok(value) => return Ok(StoreOutcome::Stored(value)),
            Err(IntakeError::TooFast) => {
                // This is not a refusal: a correct host retains the results and sends them again. It is counted,
                // without an entry in the audit.
                self.rejected.record("results_too_fast", Some(peer.address.ip()));
                return Ok(StoreOutcome::Unavailable);
            }
            Err(error) => error,
        };
        let name = self.intake.node_name(slot.node());
        log::warn!(node:% = slot.node(), name, kind = part.name(), error:% = error; "a host's report was not stored");
        match error {
            IntakeError::Unavailable | IntakeError::TooFast => Ok(StoreOutcome::Unavailable),
            IntakeError::Refused(_) => {
                self.rejected.record_peer("report_refused", peer);
                Ok(StoreOutcome::Rejected)
            }
            IntakeError::NoSuchNode => Err(deleted_node_error()),
        }
    }

    /// Stores the agent's state, without results, unless a later check-in has replaced it. Runs as a task of its own,
    /// so that the slot records the state as stored exactly when it is, even if the connection breaks before.
    async fn store_state(&self, slot: &Arc<NodeSlot>, turn: CheckInNumber, state: AgentState) -> Result<(), IntakeError> {
        let (slot, intake) = (Arc::clone(slot), Arc::clone(&self.intake));
        let task = tokio::spawn(async move {
            let _guard = slot.lock_writes().await;
            if !slot.begin_state_write(turn, &state) {
                return Ok(());
            }
            let result = intake.store_state(slot.node(), state.clone()).await;
            if matches!(result, Ok(()) | Err(IntakeError::Refused(_))) {
                slot.note_state_stored(state);
            }
            result
        });
        task.await.unwrap_or(Err(IntakeError::Unavailable))
    }

    /// Stores a Report, unless a later check-in's Report was stored first. A check-in with slow results can be
    /// overtaken by one on another connection. Its outdated Report would then remain until the host has something new
    /// to report.
    async fn store_report(&self, slot: &NodeSlot, number: CheckInNumber, report: Report) -> Result<(), IntakeError> {
        let _guard = slot.lock_writes().await;
        if !slot.begin_report_write(number) {
            return Ok(());
        }
        self.intake.store_report(slot.node(), report).await
    }
}

impl CheckInSession {
    /// Returns when the retained Observation may be stored, or `None` if there is none or it may be stored at once.
    fn observation_due_at(&self) -> Option<Instant> {
        self.observation.as_ref()?;
        self.slot.observation_due(MIN_OBSERVATION_INTERVAL)
    }
}

/// Returns the state that a host holds with the one that it was last sent, or `None` if it holds none.
fn host_revisions(held: Option<&HeldDesired>, sent: Option<HeldRevision>) -> Option<HostRevisions> {
    held.map(|held| HostRevisions { held: held_revision(held), sent })
}

fn deleted_node_error() -> ApiError {
    ApiError::new(ErrorType::AuthRevoked, "the node was deleted")
}

/// Fails if the digest is not that of the Observation. Both ends identify the Observation by its digest from now on.
fn check_digest(version: WireVersion, observation: &Observation, digest: PartDigest) -> Result<(), ApiError> {
    if digest_part(version, &encode_part(version, observation)) == digest {
        return Ok(());
    }
    Err(ApiError::new(ErrorType::MessageMalformed, "the digest of the observation is not the one in observation_digest")
        .field("observation_digest"))
}

#[cfg(test)]
mod tests;
