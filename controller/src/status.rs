//! The current status of each node, in a table that can be watched.
//!
//! A client that waits for nodes need not read all of them repeatedly. Each change of a node's state or liveness has a
//! number in one sequence, and the last changes are kept. A client that was away for a while reads the changes that it
//! missed. A client that was away for too long, or since before a restart, gets an error and reads everything. Nothing
//! here is stored. A restarted controller computes it again.
//!
//! The liveness of agents is recorded here only, and every response reads it here. The state of a node follows from its
//! liveness and the model, by one function of `stemma_core::status`. This table has the states as of the last pass of
//! the reconciler. A response computes the states again for the model that it shows, so the author of a write sees its
//! effect at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stemma_core::epoch::HostRevisions;
use stemma_core::status::{HostConfirmation, Liveness, State, StateInputs, Status, StatusNote, StuckAgent, TaskSummary};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use uuid::Uuid;

use crate::intake::{IntakeError, ReportPart, UnstoredParts};
use crate::store::Revision;

/// Maximum number of changes that are kept for later readers.
const MAX_CHANGES: usize = 16 * 1024;
/// Maximum time for which a read waits until this table has the effect of earlier writes.
const REACH_TIMEOUT: Duration = Duration::from_secs(2);

/// The status of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The state, with its reason.
    pub status: Status,
    /// The liveness of its agent.
    pub liveness: Liveness,
}

/// A position in the sequence of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{sequence} of {epoch}")]
pub struct StatusPosition {
    /// Identifies the start of the controller. Each start counts from 1.
    pub epoch: Uuid,
    /// The number of the last change before this position, or 0 at the start.
    pub sequence: u64,
}

/// One change of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusChange {
    /// The number of the change.
    pub sequence: u64,
    /// The node.
    pub node: Uuid,
    /// The new status, or `None` if the node was deleted.
    pub status: Option<NodeStatus>,
}

/// Error for a position whose following changes are no longer kept, or that is of another start of the controller. The
/// client has to read everything again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the changes since {0} are no longer kept")]
pub struct ChangesLost(pub StatusPosition);

/// The status of all nodes.
#[derive(Debug)]
pub struct StatusTable {
    inner: Mutex<StatusState>,
    refused_parts: UnstoredParts,
    waiting_parts: UnstoredParts,
    /// The reasons why the store refuses the next task set of nodes, by node.
    refused_releases: Mutex<HashMap<Uuid, String>>,
    /// Revisions of hosts that are ahead of the store, and the revisions last sent to them, by node.
    ahead: Mutex<HashMap<Uuid, HostRevisions>>,
    /// Notified when a host becomes ahead of the store or no longer is, and when the revisions of such a host change.
    ahead_changed: Notify,
    /// Notified when a node starts or stops holding others up: making the nodes that wait for its tasks `blocked`.
    blocking_changed: Notify,
    /// The revision up to which all nodes are reconciled. Zero before the first pass.
    revision: watch::Sender<Revision>,
    last: watch::Sender<StatusPosition>,
}

#[derive(Debug, Default)]
struct StatusState {
    inputs: HashMap<Uuid, StateInputs>,
    /// True if the store waits after a restore, so nothing is sent to any host.
    is_store_waiting: bool,
    /// The nodes that started or stopped holding others up since the last call of `take_blocking_changes`.
    blocking_changes: BTreeSet<Uuid>,
    changes: VecDeque<StatusChange>,
}

impl Default for StatusTable {
    fn default() -> Self {
        let start = StatusPosition { epoch: Uuid::new_v4(), sequence: 0 };
        Self {
            inner: Mutex::default(),
            refused_parts: UnstoredParts::default(),
            waiting_parts: UnstoredParts::default(),
            refused_releases: Mutex::default(),
            ahead: Mutex::default(),
            ahead_changed: Notify::new(),
            blocking_changed: Notify::new(),
            revision: watch::Sender::new(Revision::ZERO),
            last: watch::Sender::new(start),
        }
    }
}

impl StatusTable {
    /// Stores the inputs that decide a node's state. `inputs` is called under the lock of the table, so that a check-in
    /// cannot be lost between reading and storing. The inputs that only this table records are kept: of `inputs`, these
    /// are ignored.
    pub fn set_inputs(&self, node: Uuid, inputs: impl FnOnce() -> StateInputs) {
        let mut inner = self.lock();
        let before = inner.inputs.get(&node);
        let is_duplicated = before.is_some_and(|before| before.is_duplicated);
        let is_blocked = before.is_some_and(|before| before.is_blocked);
        let is_report_refused = self.refused_parts.contains(node);
        let is_release_refused = self.lock_refused_releases().contains_key(&node);
        let is_ahead = self.lock_ahead().contains_key(&node);
        let is_store_waiting = inner.is_store_waiting;
        let inputs = StateInputs {
            is_duplicated,
            is_blocked,
            is_ahead,
            is_store_waiting,
            is_report_refused,
            is_release_refused,
            ..inputs()
        };
        self.set(&mut inner, node, inputs);
    }

    /// Stores the task outcomes of a node.
    pub fn set_tasks(&self, node: Uuid, tasks: TaskSummary) {
        self.update(node, |before| StateInputs { tasks, ..before });
    }

    /// Stores whether a node's host has not checked in since the present epoch of the store began.
    pub fn set_host_awaited(&self, node: Uuid, is_host_awaited: bool) {
        self.update(node, |before| StateInputs { is_host_awaited, ..before });
    }

    /// Stores the liveness of a node's agent. Does nothing for a node without inputs: a deleted node must not appear
    /// again, and the inputs of a new node will contain its liveness.
    pub fn set_liveness(&self, node: Uuid, liveness: impl FnOnce() -> Liveness) {
        self.update(node, |before| StateInputs { liveness: liveness(), ..before });
    }

    /// Records that a node's host has enrolled.
    pub(crate) fn set_enrolled(&self, node: Uuid) {
        self.update(node, |before| StateInputs { has_enrolled: true, ..before });
    }

    /// Stores whether a node's host confirmed its desired state. [`HostConfirmation::Unknown`] changes nothing.
    pub(crate) fn set_confirmation(&self, node: Uuid, confirmation: impl FnOnce() -> HostConfirmation) {
        self.update(node, |before| match confirmation() {
            HostConfirmation::Unknown => before,
            confirmation => StateInputs { confirmation, ..before },
        });
    }

    /// Stores what a node's agent reports about itself: whether it is stuck, and whether its host has paths that no
    /// task manages any more.
    pub(crate) fn set_reported(&self, node: Uuid, stuck: Option<&StuckAgent>, is_orphaned: bool) {
        let (is_stuck, can_run_tasks) = (stuck.is_some(), stuck.is_some_and(|stuck| stuck.can_run_tasks));
        self.update(node, |before| StateInputs { is_stuck, can_run_tasks, is_orphaned, ..before });
    }

    /// Stores for each node whether it waits for a host that holds it up.
    pub(crate) fn set_blocked(&self, nodes: impl IntoIterator<Item = (Uuid, bool)>) {
        for (node, is_blocked) in nodes {
            self.update(node, |before| StateInputs { is_blocked, ..before });
        }
    }

    /// Returns whether a node waited, in the last pass, for a host that holds it up.
    pub(crate) fn is_blocked(&self, node: Uuid) -> bool {
        self.lock().inputs.get(&node).is_some_and(|inputs| inputs.is_blocked)
    }

    /// Returns whether a node holds up the nodes that wait for it.
    pub(crate) fn is_holding_others_up(&self, node: Uuid) -> bool {
        self.lock().inputs.get(&node).is_some_and(StateInputs::is_holding_others_up)
    }

    /// Returns whether a node keeps its task set, whatever its next one is.
    pub(crate) fn is_withheld(&self, node: Uuid) -> bool {
        self.lock().inputs.get(&node).is_some_and(StateInputs::is_withheld)
    }

    /// Returns the inputs of a node's state as of the last pass, or `None` if the node is not known yet.
    pub(crate) fn inputs(&self, node: Uuid) -> Option<StateInputs> {
        self.lock().inputs.get(&node).copied()
    }

    /// Returns and clears the nodes that started or stopped holding others up since the last call.
    pub(crate) fn take_blocking_changes(&self) -> BTreeSet<Uuid> {
        std::mem::take(&mut self.lock().blocking_changes)
    }

    /// Waits until [`Self::take_blocking_changes`] has nodes to return. Only one task may wait.
    pub(crate) async fn blocking_changed(&self) {
        loop {
            self.blocking_changed.notified().await;
            // A reconciler pass changes nodes and takes these changes itself, so none may be left.
            if !self.lock().blocking_changes.is_empty() {
                return;
            }
        }
    }

    /// Stores whether two hosts use a node's identity.
    pub fn set_duplicated(&self, node: Uuid, is_duplicated: bool) {
        self.update(node, |before| StateInputs { is_duplicated, ..before });
    }

    /// Records the result of storing one part of a host's report.
    pub(crate) fn record_report<T>(&self, node: Uuid, part: ReportPart, result: &Result<T, IntakeError>) {
        let is_changed = match result {
            Ok(_) => {
                self.waiting_parts.record(node, part, None);
                self.refused_parts.record(node, part, None)
            }
            Err(IntakeError::Refused(reason)) => {
                self.waiting_parts.record(node, part, None);
                self.refused_parts.record(node, part, Some(reason.as_str()))
            }
            // The host sends the report again.
            Err(error @ (IntakeError::Unavailable | IntakeError::TooFast)) => {
                let reason = error.to_string();
                self.waiting_parts.record(node, part, Some(reason.as_str()));
                false
            }
            Err(IntakeError::NoSuchNode) => {
                self.waiting_parts.remove(node);
                self.refused_parts.remove(node)
            }
        };
        if is_changed {
            self.update(node, |before| StateInputs { is_report_refused: self.refused_parts.contains(node), ..before });
        }
    }

    /// Returns the last reported parts that are not stored yet and that hosts send again.
    pub(crate) fn waiting_reports(&self) -> &UnstoredParts {
        &self.waiting_parts
    }

    /// Returns the last reported parts that were refused.
    pub(crate) fn refused_reports(&self) -> &UnstoredParts {
        &self.refused_parts
    }

    /// Stores whether the store refuses the next task set of a node, and why. Returns whether this changed.
    pub(crate) fn set_refused_release(&self, node: Uuid, refusal: Option<&str>) -> bool {
        let mut refused = self.lock_refused_releases();
        let before = match refusal {
            Some(refusal) => refused.insert(node, refusal.to_owned()),
            None => refused.remove(&node),
        };
        drop(refused);
        if before.is_some() != refusal.is_some() {
            self.update(node, |before| StateInputs { is_release_refused: refusal.is_some(), ..before });
        }
        before.as_deref() != refusal
    }

    /// Stores whether a node's host is ahead of the store, and its revisions.
    pub(crate) fn set_ahead(&self, node: Uuid, host: Option<HostRevisions>) {
        match host {
            Some(host) => drop(self.lock_ahead().insert(node, host)),
            None => drop(self.lock_ahead().remove(&node)),
        }
        self.ahead_changed.notify_one();
        self.update(node, |before| StateInputs { is_ahead: host.is_some(), ..before });
    }

    /// Stores whether the store waits after a restore from a backup, so that nothing is sent to any host.
    pub(crate) fn set_store_waiting(&self, is_store_waiting: bool) {
        let mut inner = self.lock();
        if inner.is_store_waiting == is_store_waiting {
            return;
        }
        inner.is_store_waiting = is_store_waiting;
        let inputs = |(node, inputs): (&Uuid, &StateInputs)| (*node, StateInputs { is_store_waiting, ..*inputs });
        let updated: Vec<_> = inner.inputs.iter().map(inputs).collect();
        for (node, inputs) in updated {
            self.set(&mut inner, node, inputs);
        }
    }

    /// Returns the revisions of a node's host if it is ahead of the store.
    pub(crate) fn ahead(&self, node: Uuid) -> Option<HostRevisions> {
        self.lock_ahead().get(&node).copied()
    }

    /// Returns the revisions of all hosts that are ahead of the store, by node.
    pub(crate) fn all_ahead(&self) -> HashMap<Uuid, HostRevisions> {
        self.lock_ahead().clone()
    }

    /// Waits until the hosts that are ahead, or their revisions, changed since the last call. Only one task may wait.
    pub(crate) async fn ahead_changed(&self) {
        self.ahead_changed.notified().await;
    }

    /// Returns why the store refuses the next task set of a node, or `None` if it does not.
    pub(crate) fn refused_release(&self, node: Uuid) -> Option<String> {
        self.lock_refused_releases().get(&node).cloned()
    }

    /// Returns the nodes whose next task set the store refuses.
    pub(crate) fn nodes_with_refused_release(&self) -> Vec<Uuid> {
        self.lock_refused_releases().keys().copied().collect()
    }

    /// Removes a deleted node.
    pub fn remove(&self, node: Uuid) {
        self.refused_parts.remove(node);
        self.waiting_parts.remove(node);
        self.lock_refused_releases().remove(&node);
        if self.lock_ahead().remove(&node).is_some() {
            self.ahead_changed.notify_one();
        }
        let mut inner = self.lock();
        inner.blocking_changes.remove(&node);
        if inner.inputs.remove(&node).is_some() {
            self.record_change(&mut inner, node, None);
        }
    }

    /// Returns the status of a node, or `None` if it is not known yet.
    pub fn get(&self, node: Uuid) -> Option<NodeStatus> {
        self.lock().inputs.get(&node).copied().map(NodeStatus::from_inputs)
    }

    /// Records that the status of all nodes is up to date with this revision of the store.
    pub fn set_revision(&self, revision: Revision) {
        self.revision.send_replace(revision);
    }

    /// Waits up to two seconds until the status of all nodes is up to date with this revision of the store. Returns
    /// whether it is. Returns at once before the first pass.
    pub(crate) async fn wait_for_revision(&self, revision: Revision) -> bool {
        let mut as_of = self.revision.subscribe();
        if *as_of.borrow() == Revision::ZERO {
            return revision == Revision::ZERO;
        }
        // The channel cannot close, because the table owns the sender.
        matches!(timeout(REACH_TIMEOUT, as_of.wait_for(|seen| *seen >= revision)).await, Ok(Ok(_)))
    }

    /// Returns the nodes in any of these states, and the number of all nodes. Returns `None` if this revision is not
    /// reached yet.
    pub fn nodes_in_states(&self, states: &[State], revision: Revision) -> Option<(Vec<Uuid>, usize)> {
        let inner = self.lock();
        let is_selected = |inputs: &StateInputs| states.contains(&inputs.status().state);
        let nodes = || inner.inputs.iter().filter(|(_, inputs)| is_selected(inputs)).map(|(node, _)| *node).collect();
        (*self.revision.borrow() >= revision).then(|| (nodes(), inner.inputs.len()))
    }

    /// Counts these nodes by state. Nodes that are not known yet are not counted.
    pub fn count_states(&self, nodes: impl IntoIterator<Item = Uuid>) -> BTreeMap<State, usize> {
        let inner = self.lock();
        state_counts(nodes.into_iter().filter_map(|node| inner.inputs.get(&node)))
    }

    /// Counts these nodes, or all nodes with `None`, by note.
    pub(crate) fn count_notes(&self, nodes: Option<&[Uuid]>) -> BTreeMap<StatusNote, usize> {
        let inner = self.lock();
        match nodes {
            None => note_counts(inner.inputs.values()),
            Some(nodes) => note_counts(nodes.iter().filter_map(|node| inner.inputs.get(node))),
        }
    }

    /// Counts all nodes by state.
    pub fn count_all_states(&self) -> BTreeMap<State, usize> {
        state_counts(self.lock().inputs.values())
    }

    /// Returns a receiver of the position of the last change.
    pub fn subscribe(&self) -> watch::Receiver<StatusPosition> {
        self.last.subscribe()
    }

    /// Returns the changes after a position, in order.
    ///
    /// # Errors
    /// [`ChangesLost`].
    pub fn changes_since(&self, from: StatusPosition) -> Result<Vec<StatusChange>, ChangesLost> {
        let inner = self.lock();
        let last = *self.last.borrow();
        let first = inner.changes.front().map_or(last.sequence + 1, |change| change.sequence);
        if from.epoch != last.epoch || from.sequence + 1 < first {
            return Err(ChangesLost(from));
        }
        let start = usize::try_from(from.sequence + 1 - first).unwrap_or(usize::MAX).min(inner.changes.len());
        Ok(inner.changes.range(start..).copied().collect())
    }

    fn lock_ahead(&self) -> MutexGuard<'_, HashMap<Uuid, HostRevisions>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_refused_releases(&self) -> MutexGuard<'_, HashMap<Uuid, String>> {
        self.refused_releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the inputs of a node by `change`. Does nothing for a node that is not known, or if nothing changes.
    fn update(&self, node: Uuid, change: impl FnOnce(StateInputs) -> StateInputs) {
        let mut inner = self.lock();
        let Some(before) = inner.inputs.get(&node).copied() else { return };
        let now = change(before);
        // Most nodes that are checked every few seconds did not change.
        if now != before {
            self.set(&mut inner, node, now);
        }
    }

    /// Stores the inputs of a node, and notifies watchers if its state, or whether it holds others up, changes by them.
    fn set(&self, inner: &mut StatusState, node: Uuid, inputs: StateInputs) {
        let now = NodeStatus::from_inputs(inputs);
        let before = inner.inputs.insert(node, inputs);
        let holds_up = |inputs: StateInputs| (inputs.is_holding_others_up(), inputs.is_withheld());
        if before.map(holds_up).unwrap_or_default() != holds_up(inputs) {
            inner.blocking_changes.insert(node);
            self.blocking_changed.notify_one();
        }
        if before.map(NodeStatus::from_inputs) != Some(now) {
            self.record_change(inner, node, Some(now));
        }
    }

    /// Appends a change of a node to the sequence of changes, and drops the oldest one if there are too many.
    fn record_change(&self, inner: &mut StatusState, node: Uuid, now: Option<NodeStatus>) {
        let last = *self.last.borrow();
        let sequence = last.sequence + 1;
        if inner.changes.len() == MAX_CHANGES {
            inner.changes.pop_front();
        }
        inner.changes.push_back(StatusChange { sequence, node, status: now });
        // The caller holds the lock of `inner`, so the numbers are in the order of the changes.
        self.last.send_replace(StatusPosition { sequence, ..last });
    }

    fn lock(&self) -> MutexGuard<'_, StatusState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn state_counts<'a>(inputs: impl Iterator<Item = &'a StateInputs>) -> BTreeMap<State, usize> {
    let mut counts = BTreeMap::new();
    inputs.for_each(|inputs| *counts.entry(inputs.status().state).or_default() += 1);
    counts
}

pub(crate) fn note_counts<'a>(inputs: impl Iterator<Item = &'a StateInputs>) -> BTreeMap<StatusNote, usize> {
    let mut counts = BTreeMap::new();
    inputs.flat_map(StateInputs::notes).for_each(|note| *counts.entry(note).or_default() += 1);
    counts
}

impl NodeStatus {
    fn from_inputs(inputs: StateInputs) -> Self {
        Self { status: inputs.status(), liveness: inputs.liveness }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(tasks: TaskSummary) -> StateInputs {
        StateInputs { is_placed: true, tasks, ..StateInputs::default() }
    }

    fn connected(inputs: StateInputs) -> StateInputs {
        StateInputs { liveness: Liveness::Connected, ..inputs }
    }

    #[test]
    fn status_change_gets_next_number_when_status_differs() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        let watched = table.subscribe();
        let at = |sequence| StatusPosition { sequence, ..*watched.borrow() };
        table.set_inputs(node, || connected(StateInputs::default()));
        table.set_inputs(node, || connected(placed(TaskSummary::Incomplete)));
        table.set_inputs(node, || connected(placed(TaskSummary::Incomplete)));
        table.set_tasks(node, TaskSummary::Succeeded);
        assert_eq!(table.count_states([node, Uuid::from_u128(2)]), BTreeMap::from([(State::Converged, 1)]));
        table.set_liveness(node, || Liveness::Silent);
        assert_eq!(table.count_all_states(), BTreeMap::from([(State::Silent, 1)]));
        table.set_revision(Revision::new(7));
        assert_eq!(table.nodes_in_states(&[State::Failed, State::Silent], Revision::new(7)), Some((vec![node], 1)));
        assert_eq!(table.nodes_in_states(&[State::Failed], Revision::new(7)), Some((Vec::new(), 1)));
        assert_eq!(
            table.nodes_in_states(&[State::Silent], Revision::new(8)),
            None,
            "a change that was not taken in may have made others silent"
        );
        table.remove(node);
        table.remove(node);
        let changes = table.changes_since(at(0)).unwrap();
        let states: Vec<_> = changes.iter().map(|change| change.status.map(|now| now.status.state)).collect();
        let states_expected = [State::Unplaced, State::Changing, State::Converged, State::Silent].map(Some);
        assert_eq!(states, [&states_expected[..], &[None]].concat());
        assert!(changes.iter().zip(1..).all(|(change, number)| change.sequence == number));
        assert_eq!(watched.borrow().sequence, 5);
        assert_eq!(table.changes_since(at(3)).unwrap().len(), 2);
        assert_eq!(table.changes_since(at(5)), Ok(Vec::new()));
        table.set_liveness(node, || Liveness::Connected);
        table.set_tasks(node, TaskSummary::Succeeded);
        assert_eq!(watched.borrow().sequence, 5, "who is gone does not come back with its last check-in");
        assert_eq!(table.inputs(node), None);
    }

    #[test]
    fn x02_nodes_wait_while_store_waits() {
        let (table, [first, second]) = (StatusTable::default(), [1, 2].map(Uuid::from_u128));
        let state = |node| table.get(node).map(|now| now.status.state);
        table.set_inputs(first, || connected(placed(TaskSummary::Succeeded)));
        table.set_store_waiting(true);
        table.set_inputs(second, || connected(placed(TaskSummary::Incomplete)));
        assert_eq!([first, second].map(state), [Some(State::Waiting); 2]);
        assert_eq!(table.nodes_in_states(&[State::Waiting], Revision::ZERO).map(|(nodes, _)| nodes.len()), Some(2));
        let told = table.subscribe().borrow().sequence;
        table.set_store_waiting(true);
        assert_eq!(table.subscribe().borrow().sequence, told, "nothing changed");
        table.set_store_waiting(false);
        assert_eq!([first, second].map(state), [Some(State::Converged), Some(State::Changing)]);
        assert_eq!(table.subscribe().borrow().sequence, told + 2, "whoever watches is told");
    }

    #[tokio::test(start_paused = true)]
    async fn y06_blocking_changed_waits_until_pass_takes_changes() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        table.set_inputs(node, || placed(TaskSummary::Incomplete));
        assert_eq!(table.take_blocking_changes(), BTreeSet::from([node]), "without an agent it holds others up");
        assert!(timeout(Duration::from_secs(1), table.blocking_changed()).await.is_err(), "it was taken");
        table.set_liveness(node, || Liveness::Connected);
        table.blocking_changed().await;
        assert_eq!(table.take_blocking_changes(), BTreeSet::from([node]));
    }

    #[test]
    fn changes_since_fails_when_position_is_too_old() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        for n in 0..MAX_CHANGES + 2 {
            let liveness = if n % 2 == 0 { Liveness::Connected } else { Liveness::Silent };
            table.set_inputs(node, || StateInputs { liveness, ..StateInputs::default() });
        }
        let at = |sequence| StatusPosition { sequence, ..*table.subscribe().borrow() };
        assert_eq!(table.changes_since(at(1)), Err(ChangesLost(at(1))));
        assert_eq!(table.changes_since(at(2)).unwrap().len(), MAX_CHANGES);
    }

    #[test]
    fn changes_since_fails_when_position_is_from_before_restart() {
        let (before, after, node) = (StatusTable::default(), StatusTable::default(), Uuid::from_u128(1));
        for (table, changes) in [(&before, 3), (&after, 1)] {
            for n in 0..changes {
                let liveness = if n % 2 == 0 { Liveness::Connected } else { Liveness::Silent };
                table.set_inputs(node, || StateInputs { liveness, ..StateInputs::default() });
            }
        }
        for sequence in 0..=3 {
            let of_before = StatusPosition { sequence, ..*before.subscribe().borrow() };
            assert_eq!(after.changes_since(of_before), Err(ChangesLost(of_before)));
        }
    }
}
