//! Where each node stands now, as one value that can be watched.
//!
//! A client that waits for nodes need not read all of them again and again. Each change of a node's state or liveness has a number
//! in one sequence, and the last changes are kept: who was away for a while reads what it missed, and who was away for too long, or
//! since before a restart, is told so and reads everything. Nothing here is stored; a restarted controller finds it out again.
//!
//! Whether a node's agent is there stands here alone, and every answer takes it from here. A node's word follows from it and from the
//! model, by the one function of `stemma_core::status`. This table notes the word of the reconciler's last pass. An answer works it out
//! for the model that it is made from, so that whoever wrote something reads what follows from it at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::epoch::HeldAndTold;
use stemma_core::status::{Facts, Liveness, Note, State, Status, Stuck, Tasks, Told};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use uuid::Uuid;

use crate::intake::{IntakeError, Part, PartsNotKept};
use crate::store::Revision;

/// How many changes are kept for those who read them later.
const KEPT: usize = 16 * 1024;
/// How long a read waits at most for what was written before it.
const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The word, with its reason.
    pub status: Status,
    /// Whether its agent is there.
    pub liveness: Liveness,
}

/// A place in the sequence of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{sequence} of {epoch}")]
pub struct Position {
    /// Which start of a controller counts: each begins with 1.
    pub epoch: Uuid,
    /// The number of a change; each has the next one. 0: before the first.
    pub sequence: u64,
}

/// One change of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusChange {
    /// Its number.
    pub sequence: u64,
    /// The node.
    pub node: Uuid,
    /// Where it stands since then; `None`: it is gone.
    pub now: Option<NodeStatus>,
}

/// Changes after that place are no longer kept, or another start of the controller counted them: everything is to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the changes since {0} are no longer kept")]
pub struct Missed(pub Position);

/// Where all nodes stand.
#[derive(Debug)]
pub struct StatusTable {
    inner: Mutex<Inner>,
    refused: PartsNotKept,
    waiting: PartsNotKept,
    /// Why the store refuses what is released to a node, by node.
    refused_releases: Mutex<HashMap<Uuid, String>>,
    /// What hosts hold that are ahead of the store, and what they were told last, by node.
    ahead: Mutex<HashMap<Uuid, HeldAndTold>>,
    /// Notified when other hosts are ahead, or by other revisions.
    ahead_changed: Notify,
    /// Notified when other nodes hold up those that wait for them.
    turned: Notify,
    /// The revision up to which everything is taken in; zero before the first pass.
    as_of: watch::Sender<Revision>,
    last: watch::Sender<Position>,
}

#[derive(Debug, Default)]
struct Inner {
    facts: HashMap<Uuid, Facts>,
    /// Whether the store waits, so that nobody is told anything.
    is_store_waiting: bool,
    /// The nodes that hold others up now and did not before, or the reverse, since it was asked last.
    turned: BTreeSet<Uuid>,
    changes: VecDeque<StatusChange>,
}

impl Default for StatusTable {
    fn default() -> Self {
        let start = Position { epoch: Uuid::new_v4(), sequence: 0 };
        Self {
            inner: Mutex::default(),
            refused: PartsNotKept::default(),
            waiting: PartsNotKept::default(),
            refused_releases: Mutex::default(),
            ahead: Mutex::default(),
            ahead_changed: Notify::new(),
            turned: Notify::new(),
            as_of: watch::Sender::new(Revision::ZERO),
            last: watch::Sender::new(start),
        }
    }
}

impl StatusTable {
    /// Takes in what decides a node's state. It is asked for and noted as of one moment, so that a check-in is not lost between the two. What this
    /// table knows itself is not taken from it.
    pub fn set_facts(&self, node: Uuid, facts: impl FnOnce() -> Facts) {
        let mut inner = self.lock();
        let before = inner.facts.get(&node);
        let is_doubled = before.is_some_and(|before| before.is_doubled);
        let is_blocked = before.is_some_and(|before| before.is_blocked);
        let is_report_refused = self.refused.has(node);
        let is_release_refused = self.refused_releases().contains_key(&node);
        let is_ahead = self.hosts_ahead().contains_key(&node);
        let is_store_waiting = inner.is_store_waiting;
        let facts = Facts {
            is_doubled,
            is_blocked,
            is_ahead,
            is_store_waiting,
            is_report_refused,
            is_release_refused,
            ..facts()
        };
        self.set(&mut inner, node, facts);
    }

    /// Takes in what became of a node's tasks.
    pub fn set_tasks(&self, node: Uuid, tasks: Tasks) {
        self.change(node, |before| Facts { tasks, ..before });
    }

    /// Takes in whether a node's host has not come since the present epoch of the store began.
    pub fn set_host_awaited(&self, node: Uuid, is_host_awaited: bool) {
        self.change(node, |before| Facts { is_host_awaited, ..before });
    }

    /// Takes in whether a node's agent is there. A node without facts stays unknown: it may be gone, and its facts come with their own.
    pub fn set_liveness(&self, node: Uuid, liveness: impl FnOnce() -> Liveness) {
        self.change(node, |before| Facts { liveness: liveness(), ..before });
    }

    /// Takes in that a node's host has enrolled.
    pub(crate) fn set_enrolled(&self, node: Uuid) {
        self.change(node, |before| Facts { has_enrolled: true, ..before });
    }

    /// Takes in whether a node's host holds what it was told; what nobody knows changes nothing.
    pub(crate) fn set_told(&self, node: Uuid, told: impl FnOnce() -> Told) {
        self.change(node, |before| match told() {
            Told::Unknown => before,
            told => Facts { told, ..before },
        });
    }

    /// Takes in what a node's agent says of itself: that it is stuck, and whether paths were left on its host.
    pub(crate) fn set_reported(&self, node: Uuid, stuck: Option<&Stuck>, is_orphaned: bool) {
        let (is_stuck, runs_on) = (stuck.is_some(), stuck.is_some_and(|stuck| stuck.runs_on));
        self.change(node, |before| Facts { is_stuck, runs_on, is_orphaned, ..before });
    }

    /// Takes in whether nodes wait for a host that holds them up.
    pub(crate) fn set_blocked(&self, nodes: impl IntoIterator<Item = (Uuid, bool)>) {
        for (node, is_blocked) in nodes {
            self.change(node, |before| Facts { is_blocked, ..before });
        }
    }

    /// Whether a node waits for a host that holds it up, as of the last pass.
    pub(crate) fn is_blocked(&self, node: Uuid) -> bool {
        self.lock().facts.get(&node).is_some_and(|facts| facts.is_blocked)
    }

    /// Whether others that wait for a node are held up by it.
    pub(crate) fn holds_others_up(&self, node: Uuid) -> bool {
        self.lock().facts.get(&node).is_some_and(Facts::holds_others_up)
    }

    /// Whether a node keeps its task set, whatever it is to have next.
    pub(crate) fn keeps_its_set(&self, node: Uuid) -> bool {
        self.lock().facts.get(&node).is_some_and(Facts::keeps_its_set)
    }

    /// What decides a node's state, as of the last pass; `None`: nothing is known of it yet.
    pub(crate) fn facts(&self, node: Uuid) -> Option<Facts> {
        self.lock().facts.get(&node).copied()
    }

    /// The nodes that hold others up now and did not before, or the reverse, since this was asked last.
    pub(crate) fn take_turned(&self) -> BTreeSet<Uuid> {
        std::mem::take(&mut self.lock().turned)
    }

    /// Waits until there are such nodes. One alone may wait.
    pub(crate) async fn turned(&self) {
        loop {
            self.turned.notified().await;
            // A pass takes those that it turned itself.
            if !self.lock().turned.is_empty() {
                return;
            }
        }
    }

    /// Takes in whether two hosts have a node's identity.
    pub fn set_doubled(&self, node: Uuid, is_doubled: bool) {
        self.change(node, |before| Facts { is_doubled, ..before });
    }

    /// Takes in what became of a part of what a node's host reported.
    pub(crate) fn note_report<T>(&self, node: Uuid, part: Part, result: &Result<T, IntakeError>) {
        let is_changed = match result {
            Ok(_) => {
                self.waiting.note(node, part, None);
                self.refused.note(node, part, None)
            }
            Err(IntakeError::Refused(reason)) => {
                self.waiting.note(node, part, None);
                self.refused.note(node, part, Some(reason.as_str()))
            }
            // The host sends it again.
            Err(error @ (IntakeError::Unavailable | IntakeError::TooFast)) => {
                let reason = error.to_string();
                self.waiting.note(node, part, Some(reason.as_str()));
                false
            }
            Err(IntakeError::NoSuchNode) => {
                self.waiting.forget(node);
                self.refused.forget(node)
            }
        };
        if is_changed {
            self.change(node, |before| Facts { is_report_refused: self.refused.has(node), ..before });
        }
    }

    /// What hosts reported last that is not kept yet, and that they send again.
    pub(crate) fn waiting_reports(&self) -> &PartsNotKept {
        &self.waiting
    }

    /// What hosts reported last that was refused.
    pub(crate) fn refused_reports(&self) -> &PartsNotKept {
        &self.refused
    }

    /// Takes in whether the store refuses what is released to a node, and why. Returns whether that changed.
    pub(crate) fn note_release(&self, node: Uuid, refusal: Option<&str>) -> bool {
        let mut refused = self.refused_releases();
        let before = match refusal {
            Some(refusal) => refused.insert(node, refusal.to_owned()),
            None => refused.remove(&node),
        };
        drop(refused);
        if before.is_some() != refusal.is_some() {
            self.change(node, |before| Facts { is_release_refused: refusal.is_some(), ..before });
        }
        before.as_deref() != refusal
    }

    /// Takes in whether a node's host is ahead of the store, and what it holds.
    pub(crate) fn note_ahead(&self, node: Uuid, host: Option<HeldAndTold>) {
        match host {
            Some(host) => drop(self.hosts_ahead().insert(node, host)),
            None => drop(self.hosts_ahead().remove(&node)),
        }
        self.ahead_changed.notify_one();
        self.change(node, |before| Facts { is_ahead: host.is_some(), ..before });
    }

    /// Takes in whether the store waits, so that nobody is told anything: it was restored from a backup.
    pub(crate) fn note_store_waiting(&self, is_store_waiting: bool) {
        let mut inner = self.lock();
        if inner.is_store_waiting == is_store_waiting {
            return;
        }
        inner.is_store_waiting = is_store_waiting;
        let facts = |(node, facts): (&Uuid, &Facts)| (*node, Facts { is_store_waiting, ..*facts });
        let all: Vec<_> = inner.facts.iter().map(facts).collect();
        for (node, facts) in all {
            self.set(&mut inner, node, facts);
        }
    }

    /// What a node's host holds that is ahead of the store.
    pub(crate) fn ahead(&self, node: Uuid) -> Option<HeldAndTold> {
        self.hosts_ahead().get(&node).copied()
    }

    /// What hosts hold that are ahead of the store, by node.
    pub(crate) fn all_ahead(&self) -> HashMap<Uuid, HeldAndTold> {
        self.hosts_ahead().clone()
    }

    /// Waits until other hosts are ahead than when it was waited for last, or by other revisions. One alone may wait.
    pub(crate) async fn ahead_changed(&self) {
        self.ahead_changed.notified().await;
    }

    /// Why the store refuses what is released to a node; `None`: it does not.
    pub(crate) fn refused_release(&self, node: Uuid) -> Option<String> {
        self.refused_releases().get(&node).cloned()
    }

    /// The nodes whose release the store refuses.
    pub(crate) fn nodes_with_refused_release(&self) -> Vec<Uuid> {
        self.refused_releases().keys().copied().collect()
    }

    /// Forgets a node that is gone.
    pub fn remove(&self, node: Uuid) {
        self.refused.forget(node);
        self.waiting.forget(node);
        self.refused_releases().remove(&node);
        if self.hosts_ahead().remove(&node).is_some() {
            self.ahead_changed.notify_one();
        }
        let mut inner = self.lock();
        inner.turned.remove(&node);
        if inner.facts.remove(&node).is_some() {
            self.note(&mut inner, node, None);
        }
    }

    /// Where a node stands; `None`: nothing is known of it yet.
    pub fn get(&self, node: Uuid) -> Option<NodeStatus> {
        self.lock().facts.get(&node).copied().map(NodeStatus::of)
    }

    /// Notes that all nodes stand as they do at that revision of the store.
    pub fn reach(&self, revision: Revision) {
        self.as_of.send_replace(revision);
    }

    /// Waits until all nodes stand as they do at that revision of the store, for two seconds at most. Returns whether they do; at once where no
    /// pass was made yet.
    pub(crate) async fn reached(&self, revision: Revision) -> bool {
        let mut as_of = self.as_of.subscribe();
        if *as_of.borrow() == Revision::ZERO {
            return revision == Revision::ZERO;
        }
        // The sender lives as long as the table.
        matches!(timeout(REACHED_WITHIN, as_of.wait_for(|seen| *seen >= revision)).await, Ok(Ok(_)))
    }

    /// The nodes in any of these states, and how many nodes there are; `None`: that revision was not reached yet.
    pub fn of_states(&self, states: &[State], revision: Revision) -> Option<(Vec<Uuid>, usize)> {
        let inner = self.lock();
        let is_one = |facts: &Facts| states.contains(&facts.status().state);
        let nodes = || inner.facts.iter().filter(|(_, facts)| is_one(facts)).map(|(node, _)| *node).collect();
        (*self.as_of.borrow() >= revision).then(|| (nodes(), inner.facts.len()))
    }

    /// How many of these nodes stand in each state; of one without facts nothing is known yet.
    pub fn count(&self, nodes: impl IntoIterator<Item = Uuid>) -> BTreeMap<State, usize> {
        let inner = self.lock();
        counted(nodes.into_iter().filter_map(|node| inner.facts.get(&node)))
    }

    /// How many of these nodes have each note; `None`: of all.
    pub(crate) fn count_noted(&self, nodes: Option<&[Uuid]>) -> BTreeMap<Note, usize> {
        let inner = self.lock();
        match nodes {
            None => noted(inner.facts.values()),
            Some(nodes) => noted(nodes.iter().filter_map(|node| inner.facts.get(node))),
        }
    }

    /// How many nodes there are in each state.
    pub fn count_all(&self) -> BTreeMap<State, usize> {
        counted(self.lock().facts.values())
    }

    /// The place of the last change, to be watched.
    pub fn subscribe(&self) -> watch::Receiver<Position> {
        self.last.subscribe()
    }

    /// The changes after that place, in order.
    ///
    /// # Errors
    /// [`Missed`].
    pub fn since(&self, from: Position) -> Result<Vec<StatusChange>, Missed> {
        let inner = self.lock();
        let last = *self.last.borrow();
        let first = inner.changes.front().map_or(last.sequence + 1, |change| change.sequence);
        if from.epoch != last.epoch || from.sequence + 1 < first {
            return Err(Missed(from));
        }
        let known = usize::try_from(from.sequence + 1 - first).unwrap_or(usize::MAX).min(inner.changes.len());
        Ok(inner.changes.range(known..).copied().collect())
    }

    fn hosts_ahead(&self) -> MutexGuard<'_, HashMap<Uuid, HeldAndTold>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused_releases(&self) -> MutexGuard<'_, HashMap<Uuid, String>> {
        self.refused_releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, node: Uuid, change: impl FnOnce(Facts) -> Facts) {
        let mut inner = self.lock();
        let Some(before) = inner.facts.get(&node).copied() else { return };
        let now = change(before);
        // Of most of those that are looked at every few seconds nothing changed.
        if now != before {
            self.set(&mut inner, node, now);
        }
    }

    fn set(&self, inner: &mut Inner, node: Uuid, facts: Facts) {
        let now = NodeStatus::of(facts);
        let before = inner.facts.insert(node, facts);
        let holds_up = |facts: Facts| (facts.holds_others_up(), facts.keeps_its_set());
        if before.map(holds_up).unwrap_or_default() != holds_up(facts) {
            inner.turned.insert(node);
            self.turned.notify_one();
        }
        if before.map(NodeStatus::of) != Some(now) {
            self.note(inner, node, Some(now));
        }
    }

    fn note(&self, inner: &mut Inner, node: Uuid, now: Option<NodeStatus>) {
        let last = *self.last.borrow();
        let sequence = last.sequence + 1;
        if inner.changes.len() == KEPT {
            inner.changes.pop_front();
        }
        inner.changes.push_back(StatusChange { sequence, node, now });
        // Under the lock, so that numbers are given one after the other.
        self.last.send_replace(Position { sequence, ..last });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn counted<'a>(facts: impl Iterator<Item = &'a Facts>) -> BTreeMap<State, usize> {
    let mut counts = BTreeMap::new();
    facts.for_each(|facts| *counts.entry(facts.status().state).or_default() += 1);
    counts
}

pub(crate) fn noted<'a>(facts: impl Iterator<Item = &'a Facts>) -> BTreeMap<Note, usize> {
    let mut counts = BTreeMap::new();
    facts.flat_map(Facts::notes).for_each(|note| *counts.entry(note).or_default() += 1);
    counts
}

impl NodeStatus {
    fn of(facts: Facts) -> Self {
        Self { status: facts.status(), liveness: facts.liveness }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(tasks: Tasks) -> Facts {
        Facts { is_placed: true, tasks, ..Facts::default() }
    }

    fn connected(facts: Facts) -> Facts {
        Facts { liveness: Liveness::Connected, ..facts }
    }

    #[test]
    fn a_change_has_the_next_number_and_what_is_equal_has_none() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        let watched = table.subscribe();
        let at = |sequence| Position { sequence, ..*watched.borrow() };
        table.set_facts(node, || connected(Facts::default()));
        table.set_facts(node, || connected(placed(Tasks::Incomplete)));
        table.set_facts(node, || connected(placed(Tasks::Incomplete)));
        table.set_tasks(node, Tasks::Succeeded);
        assert_eq!(table.count([node, Uuid::from_u128(2)]), BTreeMap::from([(State::Converged, 1)]));
        table.set_liveness(node, || Liveness::Silent);
        assert_eq!(table.count_all(), BTreeMap::from([(State::Silent, 1)]));
        table.reach(Revision::new(7));
        assert_eq!(table.of_states(&[State::Failed, State::Silent], Revision::new(7)), Some((vec![node], 1)));
        assert_eq!(table.of_states(&[State::Failed], Revision::new(7)), Some((Vec::new(), 1)));
        assert_eq!(
            table.of_states(&[State::Silent], Revision::new(8)),
            None,
            "a change that was not taken in may have made others silent"
        );
        table.remove(node);
        table.remove(node);
        let changes = table.since(at(0)).unwrap();
        let states: Vec<_> = changes.iter().map(|change| change.now.map(|now| now.status.state)).collect();
        let states_expected = [State::Unplaced, State::Changing, State::Converged, State::Silent].map(Some);
        assert_eq!(states, [&states_expected[..], &[None]].concat());
        assert!(changes.iter().zip(1..).all(|(change, number)| change.sequence == number));
        assert_eq!(watched.borrow().sequence, 5);
        assert_eq!(table.since(at(3)).unwrap().len(), 2);
        assert_eq!(table.since(at(5)), Ok(Vec::new()));
        table.set_liveness(node, || Liveness::Connected);
        table.set_tasks(node, Tasks::Succeeded);
        assert_eq!(watched.borrow().sequence, 5, "who is gone does not come back with its last check-in");
        assert_eq!(table.facts(node), None);
    }

    #[test]
    fn x02_each_node_waits_while_the_store_does_and_no_longer() {
        let (table, [first, second]) = (StatusTable::default(), [1, 2].map(Uuid::from_u128));
        let state = |node| table.get(node).map(|now| now.status.state);
        table.set_facts(first, || connected(placed(Tasks::Succeeded)));
        table.note_store_waiting(true);
        table.set_facts(second, || connected(placed(Tasks::Incomplete)));
        assert_eq!([first, second].map(state), [Some(State::Waiting); 2]);
        assert_eq!(table.of_states(&[State::Waiting], Revision::ZERO).map(|(nodes, _)| nodes.len()), Some(2));
        let told = table.subscribe().borrow().sequence;
        table.note_store_waiting(true);
        assert_eq!(table.subscribe().borrow().sequence, told, "nothing changed");
        table.note_store_waiting(false);
        assert_eq!([first, second].map(state), [Some(State::Converged), Some(State::Changing)]);
        assert_eq!(table.subscribe().borrow().sequence, told + 2, "whoever watches is told");
    }

    #[tokio::test(start_paused = true)]
    async fn y06_who_turned_is_waited_for_until_a_pass_has_taken_it() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        table.set_facts(node, || placed(Tasks::Incomplete));
        assert_eq!(table.take_turned(), BTreeSet::from([node]), "without an agent it holds others up");
        assert!(timeout(Duration::from_secs(1), table.turned()).await.is_err(), "it was taken");
        table.set_liveness(node, || Liveness::Connected);
        table.turned().await;
        assert_eq!(table.take_turned(), BTreeSet::from([node]));
    }

    #[test]
    fn who_was_away_for_too_long_is_told_so() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        for n in 0..KEPT + 2 {
            let liveness = if n % 2 == 0 { Liveness::Connected } else { Liveness::Silent };
            table.set_facts(node, || Facts { liveness, ..Facts::default() });
        }
        let at = |sequence| Position { sequence, ..*table.subscribe().borrow() };
        assert_eq!(table.since(at(1)), Err(Missed(at(1))));
        assert_eq!(table.since(at(2)).unwrap().len(), KEPT);
    }

    #[test]
    fn a_number_of_before_a_restart_is_told_to_read_everything() {
        let (before, after, node) = (StatusTable::default(), StatusTable::default(), Uuid::from_u128(1));
        for (table, changes) in [(&before, 3), (&after, 1)] {
            for n in 0..changes {
                let liveness = if n % 2 == 0 { Liveness::Connected } else { Liveness::Silent };
                table.set_facts(node, || Facts { liveness, ..Facts::default() });
            }
        }
        for sequence in 0..=3 {
            let of_before = Position { sequence, ..*before.subscribe().borrow() };
            assert_eq!(after.since(of_before), Err(Missed(of_before)));
        }
    }
}
