//! One node's place: what it is to be told, what it said last, and which of its check-ins is the latest.
//!
//! A place is a few hundred bytes and a lock of its own, so 100,000 nodes are some tens of megabytes and ten thousand check-ins never
//! meet in one lock. Whoever is parked is woken by a `Notify`, looks again, and sleeps on if it was not for them: nothing
//! is handed over in the waking, so nothing can be lost in it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use stemma_core::epoch::HeldRevision;
use stemma_core::object::NodeGroupSpec;
use stemma_core::status::{Facts, Heard, Liveness, Told};
use stemma_wire::message::PartDigest;
use stemma_wire::message::checkin::Held;
use stemma_wire::message::signed::{Grant, LeaseKind};
use stemma_wire::serve::Peer;
use tokio::sync::futures::Notified;
use tokio::sync::{MutexGuard, Notify};
use tokio::time::Instant;
use uuid::Uuid;

use super::hosts::{Addresses, Hosts, Speaker};
use super::{GivenGrant, Released, Signed, held_revision, lock};
use crate::intake::{Confirmed, Said, Stored, ToldParts};

/// Which check-in of a node this is; a later one supersedes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(u64);

/// One node's place.
#[derive(Debug)]
pub(crate) struct Slot {
    node: Uuid,
    wake: Notify,
    /// Held while a record of this node is stored, so that an older one never overwrites a newer one.
    writing: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    turn: u64,
    /// The check-in whose Report was stored last.
    reported: u64,
    parked: bool,
    ended: bool,
    has_enrolled: bool,
    desired: Option<Arc<Signed>>,
    /// By key, so that one kind of grant replaces only itself.
    grants: Arc<[GivenGrant]>,
    /// The connection on which the present grants were told. One that broke may have lost them.
    told: Weak<Peer>,
    silent_after: Duration,
    /// When its last check-in began, or, where that was held, when it ended.
    heard: Instant,
    silence: Written,
    stored: Option<Stored>,
    refused: Option<PartDigest>,
    observed: Option<Instant>,
    /// What is stored of its words beside results; `None`: nobody knows.
    said: Option<Box<Said>>,
    /// What its agent holds, as it said last.
    held: Option<Held>,
    /// The same, where it is ahead of the store.
    ahead: Option<Held>,
    hosts: Hosts,
}

/// How far a node has come, by revisions of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Revisions {
    /// The revision of what it is to hold; `None`: nothing was released to it.
    pub(crate) published: Option<u64>,
    /// The revision that its host said last that it holds; `None`: none of this epoch, since the controller started.
    pub(crate) confirmed: Option<u64>,
}

/// Whether the store says that the node is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// It was not looked at yet.
    Unasked,
    /// It is being written, or its write ended nobody knows how.
    Unknown,
    /// It says so, or the contrary.
    Silent(bool),
}

impl Written {
    fn or_ask(&mut self, stored: Stored) {
        if *self == Self::Unasked {
            *self = Self::Silent(stored.silent);
        }
    }
}

/// Which grants replace each other: at most one of a key is given to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GrantKey {
    /// The barriers that are open for its task set.
    Barriers,
    /// Leave to do something that takes from a budget.
    Lease(LeaseKind),
}

impl GrantKey {
    fn of(grant: &Grant) -> Self {
        match grant {
            Grant::Barriers { .. } => Self::Barriers,
            Grant::Lease { kind, .. } => Self::Lease(*kind),
        }
    }
}

impl State {
    fn heard(&self, now: Instant) -> Heard {
        Heard {
            was_silent: self.stored.map(|stored| stored.silent),
            is_parked: self.parked,
            since_start: self.turn > 0,
            quiet: now.saturating_duration_since(self.heard),
            silent_after: self.silent_after,
        }
    }

    fn has_stored(&self, digest: PartDigest) -> bool {
        self.stored.is_some_and(|stored| stored.observation == Some(digest))
    }
}

/// How a check-in begins.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    /// What it says beside results.
    pub(crate) said: &'a Said,
    /// What the agent holds.
    pub(crate) held: Option<Held>,
    /// The same, where it is ahead of the store.
    pub(crate) ahead: Option<Held>,
    /// The digest of the host's present Observation.
    pub(crate) observation: PartDigest,
    /// It has results, an Observation or a Report.
    pub(crate) says_more: bool,
    /// The other end of the connection.
    pub(crate) from: SocketAddr,
}

/// What is known of a check-in at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) turn: Turn,
    /// What it says beside results differs from what was said last.
    pub(crate) says_news: bool,
    /// Whether the host is ahead of the store, or by what, is other than before.
    pub(crate) ahead_changed: bool,
    /// Whether its agent holds something else than it said before, or says it for the first time.
    pub(crate) holds_other: bool,
    /// The node was silent until now, or nobody knows.
    pub(crate) silence_ended: bool,
    /// An Observation was refused, and the host says again what is stored.
    pub(crate) refusal_ended: bool,
    /// The node's agent was not there before it, or was not heard of since the controller started.
    pub(crate) is_back: bool,
    /// It first tells that two hosts have the node's identity, and from where.
    pub(crate) two_hosts: Option<Addresses>,
}

/// What a check-in finds.
#[derive(Debug)]
pub(crate) enum Look {
    /// A later check-in of the same node is here.
    Superseded,
    /// The node is gone.
    Ended,
    /// It is the latest.
    Here(Here),
}

/// What there is for the latest check-in of a node.
#[derive(Debug)]
pub(crate) struct Here {
    /// What the node is to be.
    pub(crate) desired: Option<Arc<Signed>>,
    /// What is given to it.
    pub(crate) grants: Arc<[GivenGrant]>,
    /// The grants were not told on this connection.
    pub(crate) grants_are_new: bool,
    /// What of the node's words is stored.
    pub(crate) stored: Stored,
    /// The host's Observation is to be had: it is neither stored nor refused.
    pub(crate) lacks_observation: bool,
}

impl Slot {
    pub(crate) fn new(node: Uuid) -> Self {
        let state = State {
            turn: 0,
            reported: 0,
            parked: false,
            ended: false,
            has_enrolled: false,
            desired: None,
            grants: Arc::new([]),
            told: Weak::new(),
            silent_after: Duration::from_secs(NodeGroupSpec::SILENT_AFTER_SECONDS.into()),
            heard: Instant::now(),
            silence: Written::Unasked,
            stored: None,
            refused: None,
            observed: None,
            said: None,
            held: None,
            ahead: None,
            hosts: Hosts::default(),
        };
        Self { node, wake: Notify::new(), writing: tokio::sync::Mutex::default(), state: Mutex::new(state) }
    }

    pub(crate) fn node(&self) -> Uuid {
        self.node
    }

    /// What the agent holds, as its last check-in said.
    pub(crate) fn held(&self) -> Option<Held> {
        lock(&self.state).held
    }

    /// Whether the agent holds what it is to hold. Nobody knows before its first check-in.
    pub(crate) fn confirmed(&self) -> Told {
        let state = lock(&self.state);
        match (&state.desired, state.held) {
            (None, _) => Told::Unknown,
            (Some(_), None) if state.turn == 0 => Told::Unknown,
            (Some(signed), Some(held)) if signed.is_held_in_any(&held) => Told::Yes,
            (Some(_), _) => Told::No,
        }
    }

    /// How far it has come: what it is to hold, and what its agent held at its last check-in.
    pub(crate) fn revisions(&self) -> Revisions {
        let state = lock(&self.state);
        let published = state.desired.as_ref().map(|signed| signed.told());
        let held = state.held.map(|held| held_revision(&held));
        // Of another epoch it is another count.
        let confirmed = held.filter(|held| published.is_some_and(|published| published.epoch == held.epoch));
        Revisions { published: published.map(|one| one.revision), confirmed: confirmed.map(|one| one.revision) }
    }

    /// Begins a check-in; one that is parked is answered. `ask` reads what is stored of the node, once for each start of the controller.
    ///
    /// Everything that a check-in decides is decided under one lock; a check-in in which nothing changed takes the lock twice. What the
    /// agent says is noted only when it is stored ([`Slot::note_said`]), since a connection may break before.
    pub(crate) fn begin(&self, now: Instant, opening: &Opening<'_>, ask: impl FnOnce() -> Stored) -> Begun {
        let mut state = lock(&self.state);
        let is_first = state.turn == 0;
        let is_back = is_first || state.heard(now).liveness() != Liveness::Connected;
        state.turn += 1;
        state.heard = now;
        let stored = *state.stored.get_or_insert_with(ask);
        state.silence.or_ask(stored);
        // Should the host say once more what was refused, it is refused once more.
        let refusal_ended = state.has_stored(opening.observation) && state.refused.take().is_some();
        let says_news = state.said.as_deref() != Some(opening.said);
        let silence_ended = state.silence != Written::Silent(false);
        let ahead_changed = std::mem::replace(&mut state.ahead, opening.ahead) != opening.ahead;
        let holds_other = std::mem::replace(&mut state.held, opening.held) != opening.held || is_first;
        let asks_as_before = state.said.as_deref().is_some_and(|last| last.asks_as(opening.said));
        let says_more = opening.says_more || holds_other || !asks_as_before;
        let took_place = std::mem::take(&mut state.parked);
        let speaker = Speaker::new(opening.said, opening.from, says_more);
        let two_hosts = state.hosts.hear(speaker, took_place, now);
        let turn = Turn(state.turn);
        let begun =
            Begun { turn, says_news, ahead_changed, holds_other, silence_ended, refusal_ended, is_back, two_hosts };
        if took_place {
            drop(state);
            self.wake.notify_waiters();
        }
        begun
    }

    /// What is there for this check-in now.
    pub(crate) fn look(&self, turn: Turn, peer: &Arc<Peer>, observation: PartDigest) -> Look {
        let state = lock(&self.state);
        let stored = state.stored.unwrap_or_default();
        if state.ended {
            Look::Ended
        } else if state.turn != turn.0 {
            Look::Superseded
        } else {
            Look::Here(Here {
                desired: state.desired.clone(),
                grants: Arc::clone(&state.grants),
                grants_are_new: !state.grants.is_empty() && !std::ptr::eq(state.told.as_ptr(), Arc::as_ptr(peer)),
                stored,
                lacks_observation: stored.observation != Some(observation) && state.refused != Some(observation),
            })
        }
    }

    /// Gets ready to be woken; what changes after this wakes.
    pub(crate) fn waiting(&self) -> Notified<'_> {
        self.wake.notified()
    }

    /// Notes that this check-in is held. Gives back what says that it no longer is.
    pub(crate) fn park(self: &Arc<Self>, turn: Turn) -> Parked {
        let mut state = lock(&self.state);
        if state.turn == turn.0 {
            state.parked = true;
        }
        Parked { slot: Arc::clone(self), turn }
    }

    /// Notes that the present grants go out on this connection.
    pub(crate) fn told(&self, peer: &Arc<Peer>) {
        lock(&self.state).told = Arc::downgrade(peer);
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_waiters();
    }

    pub(crate) fn is_parked(&self) -> bool {
        lock(&self.state).parked
    }

    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.wake();
    }

    pub(crate) fn desired(&self) -> Option<Arc<Signed>> {
        lock(&self.state).desired.clone()
    }

    /// Whether this is other than what is published. What needs no telling is taken over at once.
    pub(crate) fn differs(&self, released: &Released) -> bool {
        let mut state = lock(&self.state);
        state.silent_after = released.silent_after;
        let same = state.desired.as_ref().filter(|signed| signed.released.is_told_as(released));
        let Some(same) = same.map(|signed| Arc::new(signed.with_content_of(released))) else { return true };
        state.desired = Some(same);
        false
    }

    /// Puts a state in the place of the present one, with the grants that the node keeps beside it. They go out with
    /// the state.
    pub(crate) fn set_desired(&self, signed: Arc<Signed>, staying: Vec<GivenGrant>) {
        let mut state = lock(&self.state);
        state.grants = staying.into();
        state.desired = Some(signed);
    }

    /// Whether the node has this very grant; an empty one is as good as none.
    pub(crate) fn has_grant(&self, grant: &Grant) -> bool {
        let state = lock(&self.state);
        let present = state.grants.iter().find(|given| GrantKey::of(given.grant()) == GrantKey::of(grant));
        match (present, grant) {
            (None, Grant::Barriers { open, .. }) => open.is_empty(),
            (None, Grant::Lease { .. }) => false,
            (Some(present), grant) => present.grant() == grant,
        }
    }

    pub(crate) fn grants(&self) -> Arc<[GivenGrant]> {
        Arc::clone(&lock(&self.state).grants)
    }

    /// Gives a grant in place of the one of the same key.
    pub(crate) fn set_grant(&self, grant: GivenGrant) {
        let mut state = lock(&self.state);
        let key = GrantKey::of(grant.grant());
        let others = state.grants.iter().filter(|one| GrantKey::of(one.grant()) != key).cloned();
        state.grants = others.chain([grant]).collect();
        state.told = Weak::new();
        drop(state);
        self.wake();
    }

    /// Its host has enrolled, and its agent is to come.
    pub(crate) fn note_enrolled(&self) {
        lock(&self.state).has_enrolled = true;
    }

    /// What of the node's words is stored; asked of `ask` once.
    pub(crate) fn stored(&self, ask: impl FnOnce() -> Stored) -> Stored {
        let mut state = lock(&self.state);
        let stored = *state.stored.get_or_insert_with(ask);
        state.silence.or_ask(stored);
        stored
    }

    /// What the node's host was told last is stored.
    pub(crate) fn note_told(&self, told: HeldRevision, parts: ToldParts) {
        if let Some(stored) = &mut lock(&self.state).stored {
            (stored.told, stored.told_parts, stored.unconfirmed) = (Some(told), Some(parts), true);
        }
    }

    /// What its host was told last, where it says that it holds this and the record of it does not say so yet.
    pub(crate) fn to_confirm(&self) -> Option<Confirmed> {
        let state = lock(&self.state);
        let stored = state.stored.filter(|stored| stored.unconfirmed)?;
        let (signed, held) = (state.desired.as_ref()?, state.held?);
        let (told, parts) = (stored.told?, stored.told_parts?);
        let is_confirmed = parts == signed.told_parts() && signed.is_held_in_any(&held);
        is_confirmed.then_some(Confirmed { node: self.node, told, parts })
    }

    /// It is recorded that its host holds what it was told last, if that is this still.
    pub(crate) fn note_confirmed(&self, confirmed: &Confirmed) {
        if let Some(stored) = &mut lock(&self.state).stored
            && (stored.told, stored.told_parts) == (Some(confirmed.told), Some(confirmed.parts))
        {
            stored.unconfirmed = false;
        }
    }

    pub(crate) fn acknowledge(&self, sequence: u64) {
        if let Some(stored) = &mut lock(&self.state).stored {
            stored.acknowledged = sequence;
        }
    }

    /// Waits until nobody else stores a record of this node, and keeps others from it.
    pub(crate) async fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    /// Whether this is to be stored: it is the latest that the node says, and differs from what is stored. If so, what is stored counts as
    /// unknown until [`Slot::note_said`].
    pub(crate) fn begin_said(&self, turn: Turn, said: &Said) -> bool {
        let mut state = lock(&self.state);
        let is_news = state.turn == turn.0 && state.said.as_deref() != Some(said);
        if is_news {
            state.said = None;
        }
        is_news
    }

    /// Whether the Report of this check-in is to be stored: that of no later one was begun. One that says no Report takes none away.
    pub(crate) fn begin_report(&self, turn: Turn) -> bool {
        let mut state = lock(&self.state);
        let is_latest = state.reported <= turn.0;
        if is_latest {
            state.reported = turn.0;
        }
        is_latest
    }

    /// What is stored of the node's words now.
    pub(crate) fn note_said(&self, said: Said) {
        lock(&self.state).said = Some(Box::new(said));
    }

    /// An Observation was stored, or refused for good; it is not asked for again.
    pub(crate) fn note_observed(&self, digest: PartDigest, taken: bool) {
        let mut state = lock(&self.state);
        state.observed = Some(Instant::now());
        state.refused = (!taken).then_some(digest);
        if taken && let Some(stored) = &mut state.stored {
            stored.observation = Some(digest);
        }
    }

    /// Whether this Observation is stored, or was refused: neither is stored again.
    pub(crate) fn knows(&self, digest: PartDigest) -> bool {
        let state = lock(&self.state);
        state.refused == Some(digest) || state.has_stored(digest)
    }

    /// When the next Observation may be stored.
    pub(crate) fn observation_due(&self, interval: Duration) -> Option<Instant> {
        lock(&self.state).observed.map(|at| at + interval)
    }

    /// How long ago the node was last heard of; `None`: not since this process has started.
    pub(crate) fn heard(&self, now: Instant) -> Option<Duration> {
        let state = lock(&self.state);
        (state.turn > 0).then(|| now.saturating_duration_since(state.heard))
    }

    /// For how long the node was not heard of, when that is silence.
    pub(crate) fn quiet(&self, now: Instant) -> Option<Duration> {
        lock(&self.state).heard(now).silence()
    }

    /// Whether it is to be written that the node is silent, or no longer. From then on nobody knows what is written, until
    /// [`Slot::note_silence`].
    pub(crate) fn begin_silence(&self, silent: bool) -> bool {
        let mut state = lock(&self.state);
        let is_news = state.silence != Written::Silent(silent);
        if is_news {
            state.silence = Written::Unknown;
        }
        is_news
    }

    /// Whether the node's agent is there, whatever of it could be written.
    pub(crate) fn liveness(&self, now: Instant) -> Liveness {
        lock(&self.state).heard(now).liveness()
    }

    /// The node's facts, with what is known here.
    pub(crate) fn facts(&self, others: Facts, now: Instant) -> Facts {
        let told = match self.confirmed() {
            Told::Unknown => others.told,
            told => told,
        };
        let state = lock(&self.state);
        Facts { liveness: state.heard(now).liveness(), has_enrolled: state.has_enrolled, told, ..others }
    }

    /// From where two hosts check in with this node's identity, if they do.
    pub(crate) fn two_hosts(&self, now: Instant) -> Option<Addresses> {
        lock(&self.state).hosts.two(now)
    }

    /// What is written of the node's silence now.
    pub(crate) fn note_silence(&self, silent: bool) {
        lock(&self.state).silence = Written::Silent(silent);
    }
}

/// A check-in that is held; when it is dropped, by an answer or because its connection broke, it is no longer, and the node's silence counts
/// from then.
#[derive(Debug)]
pub(crate) struct Parked {
    slot: Arc<Slot>,
    turn: Turn,
}

impl Drop for Parked {
    fn drop(&mut self) {
        let mut state = lock(&self.slot.state);
        if state.turn == self.turn.0 {
            state.parked = false;
            state.heard = Instant::now();
        }
    }
}
