//! Where each node stands now, as one value that can be watched.
//!
//! Whoever waits for nodes would else ask for all of them again and again. Here each change of a node's state or liveness has a number
//! in one sequence, and the last changes are kept: who was away for a while reads what it missed, and who was away for too long is told
//! so and reads everything. Nothing here is stored; a restarted controller finds it out again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stemma_core::status::{Facts, Liveness, Status, Tasks};
use tokio::sync::watch;
use uuid::Uuid;

/// How many changes are kept for those who read them later.
const KEPT: usize = 16 * 1024;

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The word, with its reason.
    pub status: Status,
    /// Whether its agent is there.
    pub liveness: Liveness,
}

/// One change of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its number; each change has the next one.
    pub sequence: u64,
    /// The node.
    pub node: Uuid,
    /// Where it stands since then; `None`: it is gone.
    pub now: Option<NodeStatus>,
}

/// Changes after that number are no longer kept: everything is to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the changes since {0} are no longer kept")]
pub struct Missed(pub u64);

/// Where all nodes stand.
#[derive(Debug)]
pub struct StatusTable {
    inner: Mutex<Inner>,
    sequence: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    facts: HashMap<Uuid, Facts>,
    changes: VecDeque<Change>,
}

impl Default for StatusTable {
    fn default() -> Self {
        Self { inner: Mutex::default(), sequence: watch::Sender::new(0) }
    }
}

impl StatusTable {
    /// Takes in what decides a node's state. Its liveness is that of its agent's check-ins.
    pub fn set_facts(&self, node: Uuid, facts: Facts) {
        let mut inner = self.lock();
        let liveness = inner.facts.get(&node).map_or(facts.liveness, |before| before.liveness);
        self.set(&mut inner, node, Facts { liveness, ..facts });
    }

    /// Takes in what became of a node's tasks.
    pub fn set_tasks(&self, node: Uuid, tasks: Tasks) {
        let mut inner = self.lock();
        if let Some(before) = inner.facts.get(&node).copied() {
            self.set(&mut inner, node, Facts { tasks, ..before });
        }
    }

    /// Takes in whether a node's agent is there.
    pub fn set_liveness(&self, node: Uuid, liveness: Liveness) {
        let mut inner = self.lock();
        let before = inner.facts.get(&node).copied().unwrap_or_default();
        self.set(&mut inner, node, Facts { liveness, ..before });
    }

    /// Forgets a node that is gone.
    pub fn remove(&self, node: Uuid) {
        let mut inner = self.lock();
        if inner.facts.remove(&node).is_some() {
            self.note(&mut inner, node, None);
        }
    }

    /// Where a node stands; `None`: nothing is known of it.
    pub fn get(&self, node: Uuid) -> Option<NodeStatus> {
        self.lock().facts.get(&node).copied().map(NodeStatus::of)
    }

    /// The number of the last change, to be watched.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.sequence.subscribe()
    }

    /// The changes after that number, in order.
    ///
    /// # Errors
    /// [`Missed`].
    pub fn since(&self, sequence: u64) -> Result<Vec<Change>, Missed> {
        let inner = self.lock();
        let first = inner.changes.front().map_or(*self.sequence.borrow() + 1, |change| change.sequence);
        if sequence + 1 < first {
            return Err(Missed(sequence));
        }
        Ok(inner.changes.iter().filter(|change| change.sequence > sequence).copied().collect())
    }

    fn set(&self, inner: &mut Inner, node: Uuid, facts: Facts) {
        let now = NodeStatus::of(facts);
        let before = inner.facts.insert(node, facts);
        if before.map(NodeStatus::of) != Some(now) {
            self.note(inner, node, Some(now));
        }
    }

    fn note(&self, inner: &mut Inner, node: Uuid, now: Option<NodeStatus>) {
        let sequence = *self.sequence.borrow() + 1;
        if inner.changes.len() == KEPT {
            inner.changes.pop_front();
        }
        inner.changes.push_back(Change { sequence, node, now });
        // Under the lock, so that numbers are given one after the other.
        self.sequence.send_replace(sequence);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeStatus {
    fn of(facts: Facts) -> Self {
        Self { status: facts.status(), liveness: facts.liveness }
    }
}

#[cfg(test)]
mod tests {
    use stemma_core::status::State;

    use super::*;

    fn placed(tasks: Tasks) -> Facts {
        Facts { is_placed: true, tasks, ..Facts::default() }
    }

    #[test]
    fn a_change_has_the_next_number_and_what_is_equal_has_none() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        let watched = table.subscribe();
        table.set_liveness(node, Liveness::Connected);
        table.set_facts(node, placed(Tasks::Incomplete));
        table.set_facts(node, placed(Tasks::Incomplete));
        table.set_facts(node, placed(Tasks::Succeeded));
        table.set_liveness(node, Liveness::Silent);
        table.remove(node);
        table.remove(node);
        let changes = table.since(0).unwrap();
        let states: Vec<_> = changes.iter().map(|change| change.now.map(|now| now.status.state)).collect();
        let states_expected = [State::Unplaced, State::Changing, State::Converged, State::Silent].map(Some);
        assert_eq!(states, [&states_expected[..], &[None]].concat());
        assert!(changes.iter().zip(1..).all(|(change, number)| change.sequence == number));
        assert_eq!(*watched.borrow(), 5);
        assert_eq!(table.since(3).unwrap().len(), 2);
        assert_eq!(table.since(5), Ok(Vec::new()));
        assert_eq!(table.get(node), None);
    }

    #[test]
    fn who_was_away_for_too_long_is_told_so() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        for n in 0..KEPT + 2 {
            let liveness = if n % 2 == 0 { Liveness::Connected } else { Liveness::Silent };
            table.set_liveness(node, liveness);
        }
        assert_eq!(table.since(1), Err(Missed(1)));
        assert_eq!(table.since(2).unwrap().len(), KEPT);
    }
}
