//! One node's slot: its desired state, what it last reported, and which of its check-ins is the latest.
//!
//! A slot has a few hundred bytes and its own lock. So 100,000 nodes need some tens of megabytes, and check-ins of
//! different nodes never wait for one lock. A `Notify` wakes every waiting check-in of the node. Each woken check-in
//! polls the slot again, and continues to wait if the slot has nothing for it. The wakeup carries no data.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use stemma_core::epoch::HeldRevision;
use stemma_core::object::NodeGroupSpec;
use stemma_core::status::{HostConfirmation, Liveness, LivenessInputs, StateInputs};
use stemma_wire::message::PartDigest;
use stemma_wire::message::checkin::HeldDesired;
use stemma_wire::message::signed::{Grant, LeaseKind};
use stemma_wire::serve::Peer;
use tokio::sync::futures::Notified;
use tokio::sync::{MutexGuard, Notify};
use tokio::time::Instant;
use uuid::Uuid;

use super::duplicates::{CheckInOrigin, DuplicateDetector, HostAddresses};
use super::{DesiredState, GrantForms, PUBLISHED_VERSION, SignedState, held_revision, lock};
use crate::intake::{AgentState, ConfirmedState, SentParts, StoredReports};

/// The number of a check-in among those of its node since the controller started. A later check-in supersedes an
/// earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckInNumber(u64);

/// The slot of one node: its desired state and grants, and what the controller remembers of its check-ins.
#[derive(Debug)]
pub(crate) struct NodeSlot {
    node: Uuid,
    wake: Notify,
    /// Locked while a record of this node, except results, Observations and confirmations, is written to the store. So
    /// an older record cannot overwrite a newer one.
    write_lock: tokio::sync::Mutex<()>,
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    latest_check_in: u64,
    /// The number of the latest check-in whose `Report` (about the agent itself) the controller has begun to store.
    reported_check_in: u64,
    is_waiting: bool,
    is_deleted: bool,
    has_enrolled: bool,
    desired: Option<Arc<SignedState>>,
    /// The grants in force, at most one for each [`GrantKey`]. A new grant replaces only the grant of the same kind.
    grants: Arc<[GrantForms]>,
    /// The connection on which the present grants were sent. If the connection broke, the host may not have received
    /// them.
    grants_sent_on: Weak<Peer>,
    silent_after: Duration,
    /// The time at which the last check-in began or its wait ended. At first, the time at which the slot was created.
    last_contact: Instant,
    stored_silence: StoredSilence,
    /// A copy of what the store contains about the reports of the node, or `None` if that was not read yet. Its field
    /// `is_silent` keeps the value that was read first. `stored_silence` has the later values.
    stored: Option<StoredReports>,
    /// The digest of the last `Observation` (the facts, traits and labels that the host reports), if it was refused.
    refused_observation: Option<PartDigest>,
    /// The time at which an `Observation` was last stored or refused.
    observed_at: Option<Instant>,
    /// The agent's state, without results, that was stored or refused last. `None` if it is unknown which one that is.
    stored_state: Option<Box<AgentState>>,
    /// The desired state that the node's agent last reported to hold.
    held: Option<HeldDesired>,
    /// The same as `held` if nothing may be sent to an agent with that state (it is ahead of the store), else `None`.
    held_ahead: Option<HeldDesired>,
    duplicates: DuplicateDetector,
    /// The lease for a reboot that an operator requested, as long as it is sent.
    reboot: Option<RebootLease>,
}

/// The validity of a lease for a reboot of a node's host.
#[derive(Clone, Copy, Debug)]
struct RebootLease {
    /// The boot of the host that the reboot ends. The lease is not sent in a later boot.
    boot_id: [u8; 16],
    /// The time after which the lease is not sent any more.
    ends_at: Instant,
}

/// The revision of the desired state that is published for a node, and of the one that its host holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeRevisions {
    /// The revision at which the node's desired state was published; `None` if nothing was published for the node.
    pub(crate) published: Option<u64>,
    /// The revision of the desired state that the host held at its last check-in since the controller started. `None`
    /// if there is none, or if that state is not of the epoch of `published`.
    pub(crate) confirmed: Option<u64>,
}

/// The value of the stored record that states whether the node is silent, as far as the controller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredSilence {
    /// The record was not read yet.
    Unread,
    /// The record is being written, or its write ended with an unknown result.
    Unknown,
    /// The record states that the node is silent (true), or that it is not (false).
    Silent(bool),
}

impl StoredSilence {
    /// Sets the value from what was read from the store, unless it was set before.
    fn set_if_unread(&mut self, stored: StoredReports) {
        if *self == Self::Unread {
            *self = Self::Silent(stored.is_silent);
        }
    }
}

/// The kind of a grant. A node has at most one grant of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GrantKey {
    /// The barriers that are open for the node's task set.
    Barriers,
    /// Permission to do something that only a limited number of hosts may do at the same time, such as a reboot.
    Lease(LeaseKind),
}

impl GrantKey {
    fn for_grant(grant: &Grant) -> Self {
        match grant {
            Grant::Barriers { .. } => Self::Barriers,
            Grant::Lease { kind, .. } => Self::Lease(*kind),
        }
    }
}

impl SlotState {
    /// Returns the inputs from which the liveness of the node's agent is computed.
    fn liveness_inputs(&self, now: Instant) -> LivenessInputs {
        LivenessInputs {
            is_silent_at_start: self.stored.map(|stored| stored.is_silent),
            has_waiting_check_in: self.is_waiting,
            had_contact_since_start: self.latest_check_in > 0,
            time_without_contact: now.saturating_duration_since(self.last_contact),
            silent_after: self.silent_after,
        }
    }

    /// Ends the lease for a reboot if `is_over` returns true for it.
    fn end_reboot_lease(&mut self, is_over: impl FnOnce(&RebootLease) -> bool) {
        if self.reboot.take_if(|lease| is_over(lease)).is_some() {
            let key = GrantKey::Lease(LeaseKind::Reboot);
            self.grants = self.grants.iter().filter(|forms| GrantKey::for_grant(forms.grant()) != key).cloned().collect();
        }
    }

    /// Returns whether the store contains the `Observation` with this digest.
    fn has_stored_observation(&self, digest: PartDigest) -> bool {
        self.stored.is_some_and(|stored| stored.observation == Some(digest))
    }
}

/// The data of a check-in that the slot records, or compares with its own data, when the check-in begins.
#[derive(Debug)]
pub(crate) struct CheckInStart<'a> {
    /// The state of the agent, without results.
    pub(crate) state: &'a AgentState,
    /// The desired state that the agent holds.
    pub(crate) held: Option<HeldDesired>,
    /// The same as `held` if nothing may be sent to an agent with that state, otherwise `None`. Such an agent counts as
    /// ahead of the store. It holds a later revision than the store sent, or a state of an epoch that the store does
    /// not know, or the store was restored and waits for an admin.
    pub(crate) held_ahead: Option<HeldDesired>,
    /// The digest of the host's present `Observation`.
    pub(crate) observation_digest: PartDigest,
    /// True if the check-in contains task results, an `Observation` or a `Report`.
    pub(crate) has_news: bool,
    /// The other end of the connection.
    pub(crate) address: SocketAddr,
}

/// The result of [`NodeSlot::begin_check_in`]: the changes since the previous check-in of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckInStarted {
    pub(crate) number: CheckInNumber,
    /// True if the agent's state, without results, differs from the one stored or refused last, or if that is unknown.
    pub(crate) has_new_state: bool,
    /// True if the agent is now ahead of the store, or no longer ahead, or ahead with another desired state than
    /// before.
    pub(crate) has_ahead_changed: bool,
    /// True if the agent holds another desired state than before, or if this is its first check-in.
    pub(crate) has_held_changed: bool,
    /// True if the store has the node as silent, or may have it so. The end of the silence must then be stored.
    pub(crate) must_store_silence_end: bool,
    /// True if an `Observation` was refused earlier, and the host now reports the stored one again.
    pub(crate) has_refusal_ended: bool,
    /// True if this is the first check-in of the node's agent since the controller started, or if the agent was silent
    /// before this check-in. A new connection alone does not count.
    pub(crate) is_back: bool,
    /// The addresses of two hosts with the node's identity, if this check-in is the first to show them.
    pub(crate) duplicate_hosts: Option<HostAddresses>,
}

/// The result of a check-in's poll of its slot.
#[derive(Debug)]
pub(crate) enum PollResult {
    /// A later check-in of the same node has begun.
    Superseded,
    /// The node was deleted.
    Deleted,
    /// The check-in is the latest.
    Update(PendingUpdate),
}

/// The data from which the response to the latest check-in of a node is built.
#[derive(Debug)]
pub(crate) struct PendingUpdate {
    /// The node's desired state.
    pub(crate) desired: Option<Arc<SignedState>>,
    /// The grants of the node that are in force.
    pub(crate) grants: Arc<[GrantForms]>,
    /// True if there are grants that were not sent on this connection yet.
    pub(crate) has_new_grants: bool,
    /// A copy of what the store contains about the reports of the node.
    pub(crate) stored: StoredReports,
    /// True if the controller must request the host's `Observation`, because that is neither stored nor refused.
    pub(crate) needs_observation: bool,
}

impl NodeSlot {
    /// Creates the slot of a node that has no desired state and has not checked in.
    pub(crate) fn new(node: Uuid) -> Self {
        let state = SlotState {
            latest_check_in: 0,
            reported_check_in: 0,
            is_waiting: false,
            is_deleted: false,
            has_enrolled: false,
            desired: None,
            grants: Arc::new([]),
            grants_sent_on: Weak::new(),
            silent_after: Duration::from_secs(NodeGroupSpec::DEFAULT_SILENT_AFTER_SECONDS.into()),
            last_contact: Instant::now(),
            stored_silence: StoredSilence::Unread,
            stored: None,
            refused_observation: None,
            observed_at: None,
            stored_state: None,
            held: None,
            held_ahead: None,
            duplicates: DuplicateDetector::default(),
            reboot: None,
        };
        Self { node, wake: Notify::new(), write_lock: tokio::sync::Mutex::default(), state: Mutex::new(state) }
    }

    pub(crate) fn node(&self) -> Uuid {
        self.node
    }

    /// Returns the desired state that the agent held at its last check-in.
    pub(crate) fn held(&self) -> Option<HeldDesired> {
        lock(&self.state).held
    }

    /// Returns whether the agent holds the node's desired state. The answer is unknown before the agent's first
    /// check-in since the controller started, or if nothing is published for the node.
    pub(crate) fn confirmation(&self) -> HostConfirmation {
        let state = lock(&self.state);
        match (&state.desired, state.held) {
            (None, _) => HostConfirmation::Unknown,
            (Some(_), None) if state.latest_check_in == 0 => HostConfirmation::Unknown,
            (Some(signed), Some(agent)) if signed.matches_agent_state_in_any_version(&agent) => HostConfirmation::Confirmed,
            (Some(_), _) => HostConfirmation::Unconfirmed,
        }
    }

    /// Returns the revision of the node's desired state, and the revision of the state that its agent held at the last
    /// check-in.
    pub(crate) fn revisions(&self) -> NodeRevisions {
        let state = lock(&self.state);
        let published = state.desired.as_ref().map(|signed| signed.sent_revision());
        let revision = state.held.map(|agent| held_revision(&agent));
        // A revision of another epoch is not comparable.
        let confirmed = revision.filter(|revision| published.is_some_and(|published| published.epoch == revision.epoch));
        NodeRevisions { published: published.map(|state| state.revision), confirmed: confirmed.map(|state| state.revision) }
    }

    /// Begins a check-in, and ends an earlier check-in that waits. Returns what has changed since the previous
    /// check-in. `read_stored` returns what the store contains about the reports of the node, and is called at most
    /// once.
    ///
    /// All changes are found under one lock. The agent's state is not recorded here but after it was stored
    /// ([`NodeSlot::note_state_stored`]), because the connection may break before that.
    pub(crate) fn begin_check_in(
        &self,
        now: Instant,
        start: &CheckInStart<'_>,
        read_stored: impl FnOnce() -> StoredReports,
    ) -> CheckInStarted {
        let mut state = lock(&self.state);
        let is_first = state.latest_check_in == 0;
        let is_back = is_first || state.liveness_inputs(now).liveness() != Liveness::Connected;
        state.latest_check_in += 1;
        state.last_contact = now;
        let stored = *state.stored.get_or_insert_with(read_stored);
        state.stored_silence.set_if_unread(stored);
        // The host reports the stored `Observation` again, so the refusal of another one ends. While the host reports
        // the refused one, the refusal stays, because the store would refuse it again.
        let has_refusal_ended =
            state.has_stored_observation(start.observation_digest) && state.refused_observation.take().is_some();
        let has_new_state = state.stored_state.as_deref() != Some(start.state);
        let must_store_silence_end = state.stored_silence != StoredSilence::Silent(false);
        state.end_reboot_lease(|lease| lease.boot_id != start.state.boot_id || now >= lease.ends_at);
        let has_ahead_changed = std::mem::replace(&mut state.held_ahead, start.held_ahead) != start.held_ahead;
        let has_held_changed = std::mem::replace(&mut state.held, start.held) != start.held || is_first;
        let has_same_requests = state.stored_state.as_deref().is_some_and(|last| last.has_same_requests(start.state));
        // A change of the held state, or of the requested or returned leases, counts as news too.
        let has_news = start.has_news || has_held_changed || !has_same_requests;
        let has_replaced = std::mem::take(&mut state.is_waiting);
        let origin = CheckInOrigin::new(start.state, start.address, has_news);
        let duplicate_hosts = state.duplicates.observe(origin, has_replaced, now);
        let number = CheckInNumber(state.latest_check_in);
        let started = CheckInStarted {
            number,
            has_new_state,
            has_ahead_changed,
            has_held_changed,
            must_store_silence_end,
            has_refusal_ended,
            is_back,
            duplicate_hosts,
        };
        if has_replaced {
            drop(state);
            self.wake.notify_waiters();
        }
        started
    }

    /// Returns the data for a response to this check-in, or that the check-in has ended. `digest` is the digest of
    /// the host's present `Observation`.
    pub(crate) fn poll(&self, number: CheckInNumber, peer: &Arc<Peer>, digest: PartDigest) -> PollResult {
        let state = lock(&self.state);
        // The grants are new for this connection (`peer`) if they were last sent on another one.
        let stored = state.stored.unwrap_or_default();
        if state.is_deleted {
            PollResult::Deleted
        } else if state.latest_check_in != number.0 {
            PollResult::Superseded
        } else {
            PollResult::Update(PendingUpdate {
                desired: state.desired.clone(),
                grants: Arc::clone(&state.grants),
                has_new_grants: !state.grants.is_empty() && !std::ptr::eq(state.grants_sent_on.as_ptr(), Arc::as_ptr(peer)),
                stored,
                needs_observation: stored.observation != Some(digest) && state.refused_observation != Some(digest),
            })
        }
    }

    /// Returns a future that completes at the next wakeup of the node's check-ins after this call.
    pub(crate) fn notified(&self) -> Notified<'_> {
        self.wake.notified()
    }

    /// Records that this check-in waits, unless a later one has begun. Dropping the returned guard ends the wait.
    pub(crate) fn begin_wait(self: &Arc<Self>, number: CheckInNumber) -> WaitingCheckIn {
        let mut state = lock(&self.state);
        if state.latest_check_in == number.0 {
            state.is_waiting = true;
        }
        WaitingCheckIn { slot: Arc::clone(self), number }
    }

    /// Records that the present grants are sent on this connection.
    pub(crate) fn note_grants_sent(&self, peer: &Arc<Peer>) {
        lock(&self.state).grants_sent_on = Arc::downgrade(peer);
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_waiters();
    }

    pub(crate) fn is_waiting(&self) -> bool {
        lock(&self.state).is_waiting
    }

    pub(crate) fn mark_deleted(&self) {
        lock(&self.state).is_deleted = true;
        self.wake();
    }

    pub(crate) fn desired(&self) -> Option<Arc<SignedState>> {
        lock(&self.state).desired.clone()
    }

    /// Returns whether this desired state must be signed and published, because its content differs from the published
    /// state. In any case, stores the time after which the node is silent, which is not sent to agents. If the content
    /// is equal, also stores the new source of the content.
    pub(crate) fn should_publish(&self, new_state: &DesiredState) -> bool {
        let mut state = lock(&self.state);
        state.silent_after = new_state.silent_after;
        let equivalent = state.desired.as_ref().filter(|signed| signed.desired.is_equivalent(new_state));
        let Some(equivalent) = equivalent.map(|signed| Arc::new(signed.with_content(new_state))) else { return true };
        state.desired = Some(equivalent);
        false
    }

    /// Replaces the desired state, and also the grants of barriers. `barriers` are those that stay in force. Leases of the same
    /// epoch stay unchanged. They are not signed again, because an agent recognizes a lease that it has used by its revision.
    pub(crate) fn set_desired(&self, signed: Arc<SignedState>, barriers: Vec<GrantForms>) {
        let mut state = lock(&self.state);
        let is_lease = |forms: &&GrantForms| {
            matches!(forms.grant(), Grant::Lease { .. }) && forms.for_version(PUBLISHED_VERSION).epoch == signed.epoch
        };
        state.grants = barriers.into_iter().chain(state.grants.iter().filter(is_lease).cloned()).collect();
        state.desired = Some(signed);
    }

    /// Returns whether the node has exactly this grant. A grant of barriers that opens none equals a missing grant.
    pub(crate) fn has_grant(&self, grant: &Grant) -> bool {
        let state = lock(&self.state);
        let current = state.grants.iter().find(|forms| GrantKey::for_grant(forms.grant()) == GrantKey::for_grant(grant));
        match (current, grant) {
            (None, Grant::Barriers { open, .. }) => open.is_empty(),
            (None, Grant::Lease { .. }) => false,
            (Some(current), grant) => current.grant() == grant,
        }
    }

    pub(crate) fn grants(&self) -> Arc<[GrantForms]> {
        Arc::clone(&lock(&self.state).grants)
    }

    /// Sets a grant in place of the grant of the same kind, and wakes the waiting check-ins so that they send it.
    pub(crate) fn set_grant(&self, grant: GrantForms) {
        let mut state = lock(&self.state);
        let key = GrantKey::for_grant(grant.grant());
        let other_grants = state.grants.iter().filter(|other| GrantKey::for_grant(other.grant()) != key).cloned();
        state.grants = other_grants.chain([grant]).collect();
        // The new grant was not sent on any connection yet.
        state.grants_sent_on = Weak::new();
        drop(state);
        self.wake();
    }

    /// Sets a lease for a reboot in place of an earlier one. It is sent until `ends_at`, and only in this boot of the host.
    pub(crate) fn set_reboot_lease(&self, grant: GrantForms, boot_id: [u8; 16], ends_at: Instant) {
        lock(&self.state).reboot = Some(RebootLease { boot_id, ends_at });
        self.set_grant(grant);
    }

    /// Records that the node's host has enrolled, so that its agent is expected.
    pub(crate) fn note_enrolled(&self) {
        lock(&self.state).has_enrolled = true;
    }

    /// Returns what the store contains about the reports of the node. Calls `read_stored` only if this was not read
    /// before.
    pub(crate) fn stored_or_read(&self, read_stored: impl FnOnce() -> StoredReports) -> StoredReports {
        let mut state = lock(&self.state);
        let stored = *state.stored.get_or_insert_with(read_stored);
        state.stored_silence.set_if_unread(stored);
        stored
    }

    /// Records that the store has the revision and the digests of what is sent to the node's host. The host has not
    /// confirmed this state yet.
    pub(crate) fn note_sent(&self, sent: HeldRevision, parts: SentParts) {
        if let Some(stored) = &mut lock(&self.state).stored {
            (stored.sent_revision, stored.sent_parts, stored.is_unconfirmed) = (Some(sent), Some(parts), true);
        }
    }

    /// Returns what was last sent to the host, if the host reports to hold it and this confirmation is not stored yet.
    pub(crate) fn unrecorded_confirmation(&self) -> Option<ConfirmedState> {
        let state = lock(&self.state);
        let stored = state.stored.filter(|stored| stored.is_unconfirmed)?;
        let (signed, agent_state) = (state.desired.as_ref()?, state.held?);
        let (sent_revision, parts) = (stored.sent_revision?, stored.sent_parts?);
        let is_confirmed = parts == signed.sent_parts() && signed.matches_agent_state_in_any_version(&agent_state);
        is_confirmed.then_some(ConfirmedState { node: self.node, sent_revision, parts })
    }

    /// Records that the host's confirmation is stored, unless another state was sent to the host in the meantime.
    pub(crate) fn note_confirmed(&self, confirmed: &ConfirmedState) {
        if let Some(stored) = &mut lock(&self.state).stored
            && (stored.sent_revision, stored.sent_parts) == (Some(confirmed.sent_revision), Some(confirmed.parts))
        {
            stored.is_unconfirmed = false;
        }
    }

    /// Records that the host's results up to this sequence number are stored, or are refused and not to be sent again.
    pub(crate) fn note_acknowledged(&self, sequence: u64) {
        if let Some(stored) = &mut lock(&self.state).stored {
            stored.acknowledged_sequence = sequence;
        }
    }

    /// Waits until no other asynchronous task has this lock, and holds the lock until the returned guard is dropped.
    /// The field `write_lock` lists the records that are written under it.
    pub(crate) async fn lock_writes(&self) -> MutexGuard<'_, ()> {
        self.write_lock.lock().await
    }

    /// Returns whether this state of the agent must be stored, because it is from the latest check-in and differs from
    /// the stored state. If so, the stored state is unknown until [`NodeSlot::note_state_stored`].
    pub(crate) fn begin_state_write(&self, number: CheckInNumber, agent_state: &AgentState) -> bool {
        let mut state = lock(&self.state);
        let must_store = state.latest_check_in == number.0 && state.stored_state.as_deref() != Some(agent_state);
        if must_store {
            state.stored_state = None;
        }
        must_store
    }

    /// Returns whether the `Report` of this check-in must be stored. If so, records that storing it has begun. Returns
    /// false if storing the `Report` of a later check-in has begun.
    pub(crate) fn begin_report_write(&self, number: CheckInNumber) -> bool {
        let mut state = lock(&self.state);
        let is_latest = state.reported_check_in <= number.0;
        if is_latest {
            state.reported_check_in = number.0;
        }
        is_latest
    }

    /// Records that this state of the agent is stored now, or that the store refused it and would refuse it again.
    pub(crate) fn note_state_stored(&self, state: AgentState) {
        lock(&self.state).stored_state = Some(Box::new(state));
    }

    /// Records that an `Observation` was stored (`accepted` is true) or permanently refused. The controller does not
    /// request that `Observation` again.
    pub(crate) fn note_observation(&self, digest: PartDigest, accepted: bool) {
        let mut state = lock(&self.state);
        state.observed_at = Some(Instant::now());
        state.refused_observation = (!accepted).then_some(digest);
        if accepted && let Some(stored) = &mut state.stored {
            stored.observation = Some(digest);
        }
    }

    /// Returns whether this `Observation` is already stored or refused, so that it need not be handled again.
    pub(crate) fn has_observation(&self, digest: PartDigest) -> bool {
        let state = lock(&self.state);
        state.refused_observation == Some(digest) || state.has_stored_observation(digest)
    }

    /// Returns the time from which the next `Observation` may be stored: `interval` after one was last stored or
    /// refused. Returns `None` if none was stored or refused since the controller started.
    pub(crate) fn observation_due(&self, interval: Duration) -> Option<Instant> {
        lock(&self.state).observed_at.map(|observed_at| observed_at + interval)
    }

    /// Returns the time since the node's last check-in began or, if that one waited, since its wait ended. Returns
    /// `None` if the node has not checked in since this process started.
    pub(crate) fn time_since_contact(&self, now: Instant) -> Option<Duration> {
        let state = lock(&self.state);
        (state.latest_check_in > 0).then(|| now.saturating_duration_since(state.last_contact))
    }

    /// Returns the time since the node's last contact if the node is silent, otherwise `None`. Before the first
    /// check-in since the controller started, the time counts from the creation of this slot.
    pub(crate) fn silent_for(&self, now: Instant) -> Option<Duration> {
        lock(&self.state).liveness_inputs(now).silence()
    }

    /// Returns whether the beginning (`is_silent` is true) or the end of the node's silence must be stored, because the
    /// store has another value. If so, the stored value is unknown until [`NodeSlot::note_silence_stored`].
    pub(crate) fn begin_silence_write(&self, is_silent: bool) -> bool {
        let mut state = lock(&self.state);
        let must_store = state.stored_silence != StoredSilence::Silent(is_silent);
        if must_store {
            state.stored_silence = StoredSilence::Unknown;
        }
        must_store
    }

    /// Returns the liveness of the node's agent as this slot shows it, even if that is not stored yet.
    pub(crate) fn liveness(&self, now: Instant) -> Liveness {
        lock(&self.state).liveness_inputs(now).liveness()
    }

    /// Returns `inputs`, the inputs of the node's state, with the liveness, enrolment and confirmation of this slot.
    pub(crate) fn state_inputs(&self, inputs: StateInputs, now: Instant) -> StateInputs {
        // Before the host's first check-in since the start, the given confirmation stays. It is from the store.
        let confirmation = match self.confirmation() {
            HostConfirmation::Unknown => inputs.confirmation,
            reported => reported,
        };
        let state = lock(&self.state);
        StateInputs { liveness: state.liveness_inputs(now).liveness(), has_enrolled: state.has_enrolled, confirmation, ..inputs }
    }

    /// Returns the addresses from which two hosts check in with this node's identity, if there are two.
    pub(crate) fn duplicate_hosts(&self, now: Instant) -> Option<HostAddresses> {
        lock(&self.state).duplicates.duplicate_addresses(now)
    }

    /// Records that the store now has this value for the node's silence.
    pub(crate) fn note_silence_stored(&self, is_silent: bool) {
        lock(&self.state).stored_silence = StoredSilence::Silent(is_silent);
    }
}

/// A guard for a waiting check-in. It is dropped when the response is ready, or when the connection breaks. The
/// check-in then no longer waits, and the time of the node's last contact is set to that moment.
#[derive(Debug)]
pub(crate) struct WaitingCheckIn {
    slot: Arc<NodeSlot>,
    number: CheckInNumber,
}

impl Drop for WaitingCheckIn {
    /// Ends the wait of the check-in. Does nothing if a later check-in has begun, because that has replaced this one.
    fn drop(&mut self) {
        let mut state = lock(&self.slot.state);
        if state.latest_check_in == self.number.0 {
            state.is_waiting = false;
            state.last_contact = Instant::now();
        }
    }
}
