//! The check-in: heartbeat, pull and report in one request, which waits until there is something to send.
//!
//! ```text
//!            store: results, observation, report, local state
//!   begin ─────────────────────────────────────────────────▶ poll ──▶ update? ──▶ reply
//!     │ supersedes the previous one                           ▲         │ no
//!     ▼                                                       └── wake ─┘ wait for a wakeup or the deadline
//!  (the previous one gets the response `Superseded`)
//! ```
//!
//! A host's report is stored before it is acknowledged, except results that the store refuses. An *update* is anything
//! that the controller must send now, such as a new desired state or new grants. Each wakeup polls again whether there
//! is an update. So a wakeup without an update, or a duplicate wakeup, costs a poll and has no other effect.

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

/// Maximum wait of a check-in, even if the agent requests a longer one. If a connection breaks unnoticed, the
/// controller detects that because the next check-in does not arrive.
pub(super) const MAX_WAIT: Duration = Duration::from_mins(1);

/// Minimum interval between two stored Observations of one node. An Observation has the facts, traits and labels that a
/// host reports.
const MIN_OBSERVATION_INTERVAL: Duration = Duration::from_secs(10);

/// Delay before the next check-in, in milliseconds, of a host whose results came too fast to be stored, or whose new
/// desired state was not sent because the store failed to record that.
const RESULTS_RETRY_MS: u32 = 10_000;

/// The reason under which check-ins of two hosts with one identity are counted and audited.
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
    /// A state is to be sent. Before it is sent, the store must record this epoch and revision, and the digests of the
    /// state. The revision is that of the state, or a later one that the store already has on record.
    StoreFirst(HeldRevision, SentParts),
    /// The response is to be sent.
    Reply(CheckInReply),
}

impl PollOutcome {
    /// Returns the outcome with a response. `is_last` is true if the connection is closed after the response.
    fn new(check_in_response: CheckInResponse, is_last: bool) -> Self {
        Self::Reply(CheckInReply { response: check_in_response, should_close: is_last })
    }
}

/// A running check-in, with its data that is still to be stored.
struct CheckInSession {
    slot: Arc<NodeSlot>,
    /// The number of the check-in. A later check-in of the node supersedes it.
    number: CheckInNumber,
    /// The desired state that the agent holds, if any.
    held_desired: Option<HeldDesired>,
    /// The agent's wire version, in which it is answered.
    version: WireVersion,
    /// The digest of the host's current Observation.
    observation_digest: PartDigest,
    /// The new Observation that the check-in contained, until the controller tries to store it.
    observation: Option<Observation>,
    /// True if the response must acknowledge results that were stored or refused, or an Observation that was stored.
    /// The controller then responds at once, because the agent waits for the acknowledgement.
    has_stored: bool,
    /// True if the controller may request an Observation. False after it could not store the received one.
    may_request_observation: bool,
    /// True if the response can contain a new state. False after the store failed to record that the state is sent.
    may_send: bool,
    /// Delay before the host's next check-in, in milliseconds. If it is not 0, the controller responds at once.
    retry_after_ms: u32,
}

/// The outcome of storing one part of a host's report.
enum StoreOutcome<T> {
    /// The part is stored, with this result.
    Stored(T),
    /// The part cannot be stored at the moment: the store accepts no writes, or the host has sent too many bytes of
    /// results in a short time. The host sends the part again, and the check-in continues without it.
    Unavailable,
    /// The part violates a rule. The store would reject it at each attempt.
    Rejected,
}

impl CheckInHandler {
    /// Handles a check-in. Responds at once if there is something to send, and else when there is, or after the wait
    /// that the agent requests, which is at most [`MAX_WAIT`]. The response has the wire version of the request.
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
        // If the first poll answers the check-in, the large future of `wait` is not allocated.
        if session.observation.is_none()
            && let PollOutcome::Reply(reply) = self.poll(&mut session, peer, now >= deadline)?
        {
            return Ok(reply);
        }
        Box::pin(self.wait(session, peer, deadline)).await
    }

    /// Records as a finding of the node that a whole check-in of its host was refused. Has no effect for a deleted
    /// node, for a broken connection, and for an error of the controller. A check-in in an unsupported wire version is
    /// recorded: an agent that supports an earlier version retries at once, which ends the finding, and any other agent
    /// can never report.
    pub(super) fn record_refusal(&self, slot: &NodeSlot, error: &ApiError) {
        // The node was deleted (`AuthRevoked`), or the body is incomplete because the connection broke.
        let is_expected = matches!(error.kind, ErrorType::AuthRevoked | ErrorType::RequestMalformed);
        if error.status() < 500 && !is_expected {
            let reason = error.message.trim_end_matches('.').to_owned();
            let result = Err::<(), _>(IntakeError::Refused(reason));
            self.desired.status().record_report(slot.node(), ReportPart::CheckIn, &result);
        }
    }

    /// Begins a check-in: records it in the slot (the node's data in memory), updates the node's status, and stores new
    /// reports of the host. A new Observation is not stored yet, and the session retains it.
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
        let StoredReports { sent_revision: last_sent, observation: digest, .. } =
            slot.stored_or_read(|| self.intake.stored_reports(slot.node()));
        let host_state = self.host_state(&self.desired.epoch_line(), check_in.held_desired.as_ref(), last_sent);
        let held_ahead = check_in.held_desired.filter(|_| !host_state.can_send());
        let has_reports = !check_in.results.is_empty() || check_in.observation.is_some() || check_in.report.is_some();
        let start = CheckInStart {
            state: &state,
            held: check_in.held_desired,
            held_ahead,
            observation_digest: check_in.observation_digest,
            has_news: has_reports,
            address: peer.address,
        };
        let started = slot.begin_check_in(now, &start, || self.intake.stored_reports(slot.node()));
        if let Some(addresses) = started.duplicate_hosts {
            self.report_duplicate(&slot, peer, addresses);
        }
        if started.has_ahead_changed {
            self.desired.status().set_ahead(slot.node(), host_revisions(held_ahead.as_ref(), last_sent));
        }
        // If the host reports the Observation that is already stored, a newer Observation that waits to be stored is
        // outdated.
        let is_outdated =
            || digest == Some(check_in.observation_digest) && self.desired.status().waiting_reports().contains(slot.node());
        if started.has_refusal_ended || is_outdated() {
            self.desired.status().record_report(slot.node(), ReportPart::Observation, &Ok(()));
        }
        if started.is_back {
            self.desired.status().set_liveness(slot.node(), || slot.liveness(Instant::now()));
        }
        if started.has_held_changed {
            self.desired.status().set_confirmation(slot.node(), || slot.confirmation());
        }
        let mut session = CheckInSession {
            slot,
            number: started.number,
            held_desired: check_in.held_desired,
            version,
            observation_digest: check_in.observation_digest,
            observation: None,
            has_stored: false,
            may_request_observation: true,
            may_send: true,
            retry_after_ms: 0,
        };
        let state = started.has_new_state.then_some(state);
        if started.must_store_silence_end || state.is_some() || has_reports {
            Box::pin(self.store_parts(&mut session, peer, check_in, state, started.must_store_silence_end)).await?;
        }
        Ok(session)
    }

    /// Reports that two hosts check in with one identity. Each address is written to the journal and the audit, and the
    /// node's status shows the duplicate.
    fn report_duplicate(&self, slot: &NodeSlot, peer: &Peer, [first, second]: HostAddresses) {
        let name = self.intake.node_name(slot.node());
        log::warn!(node:% = slot.node(), name, peer:% = second, address:% = first; "two hosts check in with one node's identity");
        self.rejected.record_pair(DUPLICATE_REASON, &Peer::new(second, peer.identity.clone()), first);
        self.desired.status().set_duplicated(slot.node(), true);
    }

    /// Holds a check-in open until there is something to send, or until the deadline. Stores the retained Observation
    /// when that is due. Records a desired state in the store before it is sent.
    async fn wait(&self, mut session: CheckInSession, peer: &Arc<Peer>, deadline: Instant) -> Result<CheckInReply, ApiError> {
        // The slot counts the check-in as waiting until this guard is dropped.
        let _wait_guard = session.slot.begin_wait(session.number);
        loop {
            let slot = Arc::clone(&session.slot);
            let mut wakeup = std::pin::pin!(slot.notified());
            // The wakeup is registered before the state is read, so that no change between the two is missed.
            wakeup.as_mut().enable();
            if session.observation.is_some() && session.observation_due_at().is_none_or(|due_at| Instant::now() >= due_at) {
                self.store_observation(&mut session, peer).await?;
            }
            match self.poll(&mut session, peer, Instant::now() >= deadline)? {
                PollOutcome::Reply(reply) => return Ok(reply),
                PollOutcome::StoreFirst(state, parts) => {
                    self.store_sent(&mut session, state, parts).await?;
                    continue;
                }
                PollOutcome::Pending => {}
            }
            let wait_end = session.observation_due_at().map_or(deadline, |due_at| due_at.min(deadline));
            // The loop polls again, no matter whether the wait ended by a timeout or by a wakeup.
            let _result = timeout_at(wait_end, wakeup).await;
        }
    }

    /// Stores the end of the host's silence, and what the host reports: the agent's state, the results of tasks, and
    /// its `Report`, which is data that is only shown. A new Observation is retained in the session, because
    /// Observations are stored at a limited rate. Fails if the node was deleted or the Observation's digest is wrong.
    async fn store_parts(
        &self,
        session: &mut CheckInSession,
        peer: &Peer,
        check_in: CheckIn,
        state: Option<AgentState>,
        must_store_silence_end: bool,
    ) -> Result<(), ApiError> {
        let (slot, node) = (Arc::clone(&session.slot), session.slot.node());
        let CheckIn { results, observation, report, .. } = check_in;
        if must_store_silence_end {
            store_liveness(&slot, self.intake.as_ref(), || self.clock.unix_seconds()).await;
        }
        if let Some(state) = state {
            // A part that could not be stored is stored with the next check-in.
            self.handle_store_result(peer, &slot, ReportPart::Local, self.store_state(&slot, session.number, state).await)?;
        }
        if !results.is_empty() {
            let last_sequence = results.iter().map(|result| result.sequence).max();
            let stored = self.intake.store_results(node, results).await;
            if let Err(IntakeError::TooFast) = stored {
                session.retry_after_ms = RESULTS_RETRY_MS;
            }
            let acknowledged_sequence = match self.handle_store_result(peer, &slot, ReportPart::Results, stored)? {
                StoreOutcome::Stored(acknowledged_sequence) => Some(acknowledged_sequence),
                // Results that violate a rule are acknowledged too, because the host would otherwise send them forever.
                StoreOutcome::Rejected => last_sequence,
                StoreOutcome::Unavailable => None,
            };
            if let Some(acknowledged_sequence) = acknowledged_sequence {
                slot.note_acknowledged(acknowledged_sequence);
                session.has_stored = true;
            }
        }
        if let Some(report) = report {
            self.handle_store_result(peer, &slot, ReportPart::Report, self.store_report(&slot, session.number, report).await)?;
        }
        if let Some(observation) = &observation {
            check_digest(session.version, observation, session.observation_digest)?;
        }
        session.observation = observation.filter(|_| !slot.has_observation(session.observation_digest));
        Ok(())
    }

    /// Returns the next action of a check-in: respond, record in the store what is to be sent, or wait. `is_due` is
    /// true if the controller must respond even if there is nothing to send.
    fn poll(&self, session: &mut CheckInSession, peer: &Arc<Peer>, is_due: bool) -> Result<PollOutcome, ApiError> {
        let PendingUpdate { desired, grants, has_new_grants, stored, needs_observation } =
            match session.slot.poll(session.number, peer, session.observation_digest) {
                PollResult::Superseded => return Ok(PollOutcome::new(CheckInResponse::Superseded, true)),
                PollResult::Deleted => return Err(deleted_node_error()),
                PollResult::Update(update) => update,
            };
        // A host that is ahead of this store retains the state that another store sent to it. The whole response uses
        // one epoch history, because a new epoch may begin before the published states are signed in it.
        let line = self.desired.epoch_line();
        let can_send = session.may_send && self.host_state(&line, session.held_desired.as_ref(), stored.sent_revision).can_send();
        let desired = desired.filter(|_| can_send).and_then(|signed| self.unsent_state(session, signed));
        let desired = desired.filter(|signed| signed.epoch.0 == *line.now.as_bytes());
        if let Some(signed) = &desired {
            let (state, parts) = (signed.sent_revision(), signed.sent_parts());
            let recorded_state = stored.sent_revision.filter(|recorded| recorded.covers(state));
            // A record of an older version has no parts. It is not written again only to add them.
            if recorded_state.is_none() || stored.sent_parts.is_some_and(|recorded| recorded != parts) {
                return Ok(PollOutcome::StoreFirst(recorded_state.unwrap_or(state), parts));
            }
        }
        let has_new_grants = has_new_grants && can_send;
        let is_stopping = self.desired.is_stopping();
        // The response requests an Observation that is neither stored nor refused, nor retained by this check-in.
        let must_request = session.may_request_observation && session.observation.is_none() && needs_observation;
        let has_delay = session.retry_after_ms > 0;
        if !(is_due || is_stopping || must_request || has_delay || session.has_stored || desired.is_some() || has_new_grants) {
            return Ok(PollOutcome::Pending);
        }
        // When a state is signed again, its grants (permissions for the host) are signed again too.
        let grants = if desired.is_some() { session.slot.grants() } else { grants };
        let sendable_grants = grants.iter().filter(|_| can_send);
        if has_new_grants {
            session.slot.note_grants_sent(peer);
        }
        if desired.is_some() {
            self.desired.sent_count.inc();
        }
        let check_in_update = CheckInUpdate {
            acknowledged: stored.acknowledged_sequence,
            observation: stored.observation,
            desired: desired.map(|signed| {
                let held = session.held_desired.as_ref();
                signed.message(session.version, held, self.desired.epoch_change(&line, held, signed.epoch))
            }),
            grants: sendable_grants.map(|grant| grant.for_version(session.version).clone()).collect(),
            next_check_in_ms: session.retry_after_ms,
        };
        Ok(PollOutcome::new(CheckInResponse::Current(Box::new(check_in_update)), is_stopping))
    }

    /// Returns how the state that an agent holds relates to this store. `sent` is the last state that the store sent to
    /// the agent.
    fn host_state(&self, epoch_history: &EpochHistory, held: Option<&HeldDesired>, sent: Option<HeldRevision>) -> HostEpochState {
        epoch_history.host_state(host_revisions(held, sent), self.intake.head_revision())
    }

    /// Records the state that is about to be sent to the host. If this fails, no new state is sent to the host, and the
    /// host shall check in again later.
    async fn store_sent(&self, session: &mut CheckInSession, sent: HeldRevision, parts: SentParts) -> Result<(), ApiError> {
        let slot = &session.slot;
        let _guard = slot.lock_writes().await;
        match self.intake.store_sent(slot.node(), sent, parts).await {
            Ok(()) => slot.note_sent(sent, parts),
            Err(IntakeError::NoSuchNode) => return Err(deleted_node_error()),
            Err(error) => {
                let name = self.intake.node_name(slot.node());
                log::warn!(node:% = slot.node(), name, error:% = error; "the state to send to a host could not be recorded; it is sent later");
                (session.may_send, session.retry_after_ms) = (false, RESULTS_RETRY_MS);
            }
        }
        Ok(())
    }

    /// Returns the desired state to send now. Returns `None` if the agent already holds that state, or if it holds a
    /// later revision than this controller has resolved. If the agent holds another state of a later revision than
    /// `signed` in the same epoch, the desired state is first signed again with the newest revision.
    fn unsent_state(&self, session: &CheckInSession, signed: Arc<SignedState>) -> Option<Arc<SignedState>> {
        let Some(held) = &session.held_desired else { return Some(signed) };
        if signed.matches_agent_state(session.version, held) {
            return None;
        }
        if held.epoch != signed.epoch {
            return Some(signed);
        }
        if self.desired.wait_for_revision(&session.slot, held.revision) {
            // Another controller sent a later revision to the agent. The check-in waits until this controller has
            // resolved that revision too.
            return None;
        }
        // The agent would refuse a state of an earlier revision. So the state is signed again with the newest revision.
        if held.revision > signed.desired.revision {
            self.desired.sign_again(&session.slot);
            return session.slot.desired();
        }
        Some(signed)
    }

    /// Stores the retained Observation of the host, if there is one.
    async fn store_observation(&self, session: &mut CheckInSession, peer: &Peer) -> Result<(), ApiError> {
        let Some(observation) = session.observation.take() else { return Ok(()) };
        let result = self.intake.store_observation(session.slot.node(), session.observation_digest, observation).await;
        match self.handle_store_result(peer, &session.slot, ReportPart::Observation, result)? {
            StoreOutcome::Stored(acceptance) => {
                // The host reported some traits that are not accepted.
                if acceptance == Acceptance::Partial {
                    self.rejected.record_peer(ErrorType::TraitInvalid.name(), peer);
                }
                // `true`: the Observation is stored. `false` below: it is permanently refused.
                session.slot.note_observation(session.observation_digest, true);
                session.has_stored = true;
            }
            // The check-in continues without the Observation. It is not requested again until the host reports another
            // one.
            StoreOutcome::Rejected => session.slot.note_observation(session.observation_digest, false),
            StoreOutcome::Unavailable => session.may_request_observation = false,
        }
        Ok(())
    }

    /// Returns the outcome of storing one part of a report. Counts refused parts, and results that came too fast. Logs
    /// each part that was not stored, except results that came too fast. Fails only if the node was deleted.
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
                // The host is not at fault, because it sends the results again later. So this is counted without an
                // entry in the audit.
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

    /// Stores the agent's state, unless it is stored already or a later check-in has begun. Runs in a separate task, so
    /// that the slot records the write even if the connection breaks during it.
    async fn store_state(&self, slot: &Arc<NodeSlot>, number: CheckInNumber, state: AgentState) -> Result<(), IntakeError> {
        let (slot, intake) = (Arc::clone(slot), Arc::clone(&self.intake));
        let task = tokio::spawn(async move {
            let _guard = slot.lock_writes().await;
            if !slot.begin_state_write(number, &state) {
                return Ok(());
            }
            let result = intake.store_state(slot.node(), state.clone()).await;
            // A refused state counts as stored, because the store would refuse it each time.
            if matches!(result, Ok(()) | Err(IntakeError::Refused(_))) {
                slot.note_state_stored(state);
            }
            result
        });
        task.await.unwrap_or(Err(IntakeError::Unavailable))
    }

    /// Stores a Report, unless the Report of a later check-in was stored first. A later check-in on another connection
    /// can overtake one that stores many results. Without this rule, the outdated Report would remain until the host
    /// has something new to report.
    async fn store_report(&self, slot: &NodeSlot, number: CheckInNumber, report: Report) -> Result<(), IntakeError> {
        let _guard = slot.lock_writes().await;
        if !slot.begin_report_write(number) {
            return Ok(());
        }
        self.intake.store_report(slot.node(), report).await
    }
}

impl CheckInSession {
    /// Returns when the retained Observation may be stored, possibly in the past. Returns `None` if there is none, or
    /// if it may be stored at once, because none was stored or refused since the controller started.
    fn observation_due_at(&self) -> Option<Instant> {
        self.observation.as_ref()?;
        self.slot.observation_due(MIN_OBSERVATION_INTERVAL)
    }
}

/// Returns the state that a host holds, combined with the state that was last sent to it. Returns `None` if the host
/// holds no state.
fn host_revisions(held: Option<&HeldDesired>, sent: Option<HeldRevision>) -> Option<HostRevisions> {
    held.map(|held| HostRevisions { held: held_revision(held), sent })
}

/// Returns the error for an agent whose node was deleted.
fn deleted_node_error() -> ApiError {
    ApiError::new(ErrorType::AuthRevoked, "the node was deleted")
}

/// Fails if the digest is not that of the Observation. Afterwards, the controller and the agent identify the
/// Observation by its digest.
fn check_digest(version: WireVersion, observation: &Observation, digest: PartDigest) -> Result<(), ApiError> {
    if digest_part(version, &encode_part(version, observation)) == digest {
        return Ok(());
    }
    Err(ApiError::new(ErrorType::MessageMalformed, "the digest of the observation is not the one in observation_digest")
        .field("observation_digest"))
}

#[cfg(test)]
mod tests;
