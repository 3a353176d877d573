//! The current status of each node, in a table that can be watched.
//!
//! A client that waits for nodes need not read all of them repeatedly. Each change of a node's state or liveness has a
//! number in one sequence, and the last changes are retained. A client that was away for a while reads the changes that
//! it missed. A client that was away for too long, or since before a restart, gets an error and reads everything.
//! Nothing here is stored. A restarted controller computes it again.
//!
//! Every response reads the liveness of an agent here, as soon as the table has the node. The state of a node follows
//! from its liveness and the model, by one function of `stemma_core::status`. This table has the states as of the last
//! pass of the reconciler. A response about single nodes computes their states again for the model that it shows, so
//! the author of a write sees its effect at once. A response with the numbers of nodes by state takes them from this
//! table, and first waits until the table is up to date.

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

/// Maximum number of status changes, of all nodes together, that the table retains for clients that read them later.
const MAX_CHANGES: usize = 16 * 1024;
/// Maximum time for which a read waits until the table of nodes' states includes the effect of earlier writes.
const REACH_TIMEOUT: Duration = Duration::from_secs(2);

/// The status of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The state, with its reason.
    pub status: Status,
    /// The liveness of the node's agent: whether the agent checks in.
    pub liveness: Liveness,
}

/// A position in the sequence of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{sequence} of {epoch}")]
pub struct StatusPosition {
    /// The random identity of one start of the controller (not the store's epoch). Each start numbers changes from 1.
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

/// The error for a position in the sequence of changes, with this position. Changes after it were dropped, or it
/// belongs to another start of the controller. The client has to read everything again.
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
    /// Notified when a node begins or ceases to hold others up, or to lack its next task set. While it holds others up,
    /// the nodes that wait for its tasks are `blocked`.
    blocking_changed: Notify,
    /// The revision of the store up to which this table includes the effect of all writes. Zero before the first pass
    /// of the reconciler.
    revision: watch::Sender<Revision>,
    last: watch::Sender<StatusPosition>,
}

#[derive(Debug, Default)]
struct StatusState {
    inputs: HashMap<Uuid, StateInputs>,
    /// True if the store was restored and waits for an admin to resume the fleet. Until then nothing is sent to any
    /// host.
    is_store_waiting: bool,
    /// The nodes that the next call of `take_blocking_changes` returns.
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
    /// Stores the inputs that decide a node's state. `inputs` is called under the lock of the table, so that no
    /// check-in is lost between the call and the write. This table is the only source of some inputs, for example
    /// `is_blocked`. In the result of `inputs`, these fields are ignored.
    pub fn set_inputs(&self, node: Uuid, inputs: impl FnOnce() -> StateInputs) {
        let mut inner = self.lock();
        let old_inputs = inner.inputs.get(&node);
        let is_duplicated = old_inputs.is_some_and(|old_inputs| old_inputs.has_duplicate_identity);
        let is_blocked = old_inputs.is_some_and(|old_inputs| old_inputs.is_blocked);
        let is_report_refused = self.refused_parts.contains(node);
        let is_release_refused = self.lock_refused_releases().contains_key(&node);
        let is_ahead = self.lock_ahead().contains_key(&node);
        let is_store_waiting = inner.is_store_waiting;
        let inputs = StateInputs {
            has_duplicate_identity: is_duplicated,
            is_blocked,
            is_host_ahead: is_ahead,
            is_store_waiting,
            is_report_refused,
            is_release_refused,
            ..inputs()
        };
        self.set(&mut inner, node, inputs);
    }

    /// Stores the summary of the outcomes of a node's tasks.
    pub fn set_tasks(&self, node: Uuid, tasks: TaskSummary) {
        self.update(node, |old_inputs| StateInputs { tasks, ..old_inputs });
    }

    /// Stores whether the controller waits for a node's host: something was sent to the host in an earlier epoch, and
    /// nothing in the present epoch.
    pub fn set_host_awaited(&self, node: Uuid, is_host_awaited: bool) {
        self.update(node, |old_inputs| StateInputs { is_host_awaited, ..old_inputs });
    }

    /// Stores the liveness of a node's agent. Does nothing for a node without inputs. A deleted node must not appear
    /// again, and the first inputs of a new node will contain its liveness.
    pub fn set_liveness(&self, node: Uuid, liveness: impl FnOnce() -> Liveness) {
        self.update(node, |old_inputs| StateInputs { liveness: liveness(), ..old_inputs });
    }

    /// Records that a node's host has enrolled.
    pub(crate) fn set_enrolled(&self, node: Uuid) {
        self.update(node, |old_inputs| StateInputs { has_enrolled: true, ..old_inputs });
    }

    /// Stores whether a node's host confirmed its desired state. [`HostConfirmation::Unknown`] changes nothing.
    pub(crate) fn set_confirmation(&self, node: Uuid, confirmation: impl FnOnce() -> HostConfirmation) {
        self.update(node, |old_inputs| match confirmation() {
            HostConfirmation::Unknown => old_inputs,
            confirmation => StateInputs { confirmation, ..old_inputs },
        });
    }

    /// Stores a report of a node's agent about itself. `stuck` is the reason why the agent is stuck, if it is.
    /// `is_orphaned` is true if the host has objects that no task manages any more, or a clean-up that has yet to succeed.
    pub(crate) fn set_reported(&self, node: Uuid, stuck: Option<&StuckAgent>, is_orphaned: bool) {
        let (is_stuck, can_run_tasks_when_stuck) = (stuck.is_some(), stuck.is_some_and(|stuck| stuck.can_run_tasks));
        self.update(node, |old| StateInputs { is_stuck, can_run_tasks_when_stuck, has_orphans: is_orphaned, ..old });
    }

    /// Stores for each of these nodes whether it is blocked. A node is blocked if its tasks wait for a task of another
    /// host that will not do that task by itself.
    pub(crate) fn set_blocked(&self, nodes: impl IntoIterator<Item = (Uuid, bool)>) {
        for (node, is_blocked) in nodes {
            self.update(node, |old_inputs| StateInputs { is_blocked, ..old_inputs });
        }
    }

    /// Returns whether the last pass of the reconciler found a node to be blocked. A node is blocked if its tasks wait
    /// for a task of another host that will not do that task by itself.
    pub(crate) fn is_blocked(&self, node: Uuid) -> bool {
        self.lock().inputs.get(&node).is_some_and(|inputs| inputs.is_blocked)
    }

    /// Returns whether a node holds up the nodes that wait for its tasks, so that those nodes are `blocked`.
    pub(crate) fn is_holding_others_up(&self, node: Uuid) -> bool {
        self.lock().inputs.get(&node).is_some_and(StateInputs::is_blocking_others)
    }

    /// Returns whether a node has a next task set that was not released to it: the task set is withheld, its release is
    /// due at the next reconcile, or the store refuses the release. Other nodes that wait for a task that only the next
    /// task set has are then `blocked`. Returns false for a parked node, because no node waits for it.
    pub(crate) fn is_withheld(&self, node: Uuid) -> bool {
        self.lock().inputs.get(&node).is_some_and(StateInputs::is_task_set_withheld)
    }

    /// Returns the present inputs of a node's state, or `None` if the table does not have the node.
    pub(crate) fn inputs(&self, node: Uuid) -> Option<StateInputs> {
        self.lock().inputs.get(&node).copied()
    }

    /// Returns the nodes that began or ceased to hold others up, or to lack their next task set, since the last call,
    /// and removes them from the list of such changes.
    pub(crate) fn take_blocking_changes(&self) -> BTreeSet<Uuid> {
        std::mem::take(&mut self.lock().blocking_changes)
    }

    /// Waits until [`Self::take_blocking_changes`] has nodes to return. Only one async task may wait at a time.
    pub(crate) async fn blocking_changed(&self) {
        loop {
            self.blocking_changed.notified().await;
            // A pass of the reconciler may have removed the changes since the notification. Then the wait continues.
            if !self.lock().blocking_changes.is_empty() {
                return;
            }
        }
    }

    /// Stores whether two hosts use a node's identity.
    pub fn set_duplicated(&self, node: Uuid, is_duplicated: bool) {
        self.update(node, |old_inputs| StateInputs { has_duplicate_identity: is_duplicated, ..old_inputs });
    }

    /// Records the result of an attempt to store one part of a host's report. A refused part becomes an input of the
    /// node's state. A part that the host will send again is only added to the waiting parts.
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
            self.update(node, |old_inputs| StateInputs { is_report_refused: self.refused_parts.contains(node), ..old_inputs });
        }
    }

    /// Returns the parts of reports that could not be stored yet, by node. Hosts will send these parts again.
    pub(crate) fn waiting_reports(&self) -> &UnstoredParts {
        &self.waiting_parts
    }

    /// Returns the parts of reports that were refused, by node, with the reasons.
    pub(crate) fn refused_reports(&self) -> &UnstoredParts {
        &self.refused_parts
    }

    /// Stores the reason why the store refuses the next task set of a node, or `None` if the store accepts it. Returns
    /// whether the reason changed.
    pub(crate) fn set_refused_release(&self, node: Uuid, refusal: Option<&str>) -> bool {
        let mut refusals = self.lock_refused_releases();
        let previous = match refusal {
            Some(refusal) => refusals.insert(node, refusal.to_owned()),
            None => refusals.remove(&node),
        };
        drop(refusals);
        if previous.is_some() != refusal.is_some() {
            self.update(node, |previous| StateInputs { is_release_refused: refusal.is_some(), ..previous });
        }
        previous.as_deref() != refusal
    }

    /// Stores the revisions of a node's host that is ahead of the store, or with `None` that the host is not ahead.
    pub(crate) fn set_ahead(&self, node: Uuid, host_revisions: Option<HostRevisions>) {
        match host_revisions {
            Some(host_revisions) => drop(self.lock_ahead().insert(node, host_revisions)),
            None => drop(self.lock_ahead().remove(&node)),
        }
        self.ahead_changed.notify_one();
        self.update(node, |old_inputs| StateInputs { is_host_ahead: host_revisions.is_some(), ..old_inputs });
    }

    /// Stores whether the store waits for an admin after a restore from a backup. While it waits, nothing is sent to
    /// any host. Updates the state of every node if this changes.
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

    /// Returns the revisions of a node's host if the host is ahead of the store, otherwise `None`.
    pub(crate) fn host_ahead(&self, node: Uuid) -> Option<HostRevisions> {
        self.lock_ahead().get(&node).copied()
    }

    /// Returns the revisions of all hosts that are ahead of the store, by node.
    pub(crate) fn hosts_ahead(&self) -> HashMap<Uuid, HostRevisions> {
        self.lock_ahead().clone()
    }

    /// Waits until the set of hosts that are ahead of the store, or their revisions, changed since the last call. Only
    /// one async task may wait at a time.
    pub(crate) async fn ahead_changed(&self) {
        self.ahead_changed.notified().await;
    }

    /// Returns the reason why the store refuses the next task set of a node, or `None` if the store accepts it.
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

    /// Returns the status of a node, or `None` if the table does not have the node.
    pub fn get(&self, node: Uuid) -> Option<NodeStatus> {
        self.lock().inputs.get(&node).copied().map(NodeStatus::from_inputs)
    }

    /// Records that the status of all nodes is up to date with this revision of the store.
    pub fn set_revision(&self, revision: Revision) {
        self.revision.send_replace(revision);
    }

    /// Waits up to two seconds until the status of all nodes is up to date with this revision of the store. Returns
    /// whether the status is up to date. Does not wait before the first pass of the reconciler, which may take long.
    pub(crate) async fn wait_for_revision(&self, revision: Revision) -> bool {
        let mut table_revision = self.revision.subscribe();
        // Before the first pass, the table includes no write.
        if *table_revision.borrow() == Revision::ZERO {
            return revision == Revision::ZERO;
        }
        // The channel cannot close, because the table owns the sender.
        matches!(timeout(REACH_TIMEOUT, table_revision.wait_for(|current| *current >= revision)).await, Ok(Ok(_)))
    }

    /// Returns the nodes that are in any of these states, and the number of all nodes. Returns `None` if the table is
    /// not up to date with this revision of the store yet.
    pub fn nodes_in_states(&self, states: &[State], revision: Revision) -> Option<(Vec<Uuid>, usize)> {
        let inner = self.lock();
        let is_selected = |inputs: &StateInputs| states.contains(&inputs.status().state);
        let nodes = || inner.inputs.iter().filter(|(_, inputs)| is_selected(inputs)).map(|(node, _)| *node).collect();
        (*self.revision.borrow() >= revision).then(|| (nodes(), inner.inputs.len()))
    }

    /// Returns the number of these nodes in each state. Ignores nodes that the table does not have yet.
    pub fn count_states(&self, nodes: impl IntoIterator<Item = Uuid>) -> BTreeMap<State, usize> {
        let inner = self.lock();
        state_counts(nodes.into_iter().filter_map(|node| inner.inputs.get(&node)))
    }

    /// Returns the number of nodes with each note. Counts only the given nodes, or all nodes if `nodes` is `None`.
    pub(crate) fn count_notes(&self, nodes: Option<&[Uuid]>) -> BTreeMap<StatusNote, usize> {
        let inner = self.lock();
        match nodes {
            None => note_counts(inner.inputs.values()),
            Some(nodes) => note_counts(nodes.iter().filter_map(|node| inner.inputs.get(node))),
        }
    }

    /// Returns the number of all nodes in each state.
    pub fn count_all_states(&self) -> BTreeMap<State, usize> {
        state_counts(self.lock().inputs.values())
    }

    /// Returns a receiver that always has the position of the last status change.
    pub fn subscribe(&self) -> watch::Receiver<StatusPosition> {
        self.last.subscribe()
    }

    /// Returns the status changes after a position, in order.
    ///
    /// # Errors
    /// [`ChangesLost`] if the position is of another start of the controller, or changes after the position were
    /// dropped.
    pub fn changes_since(&self, position: StatusPosition) -> Result<Vec<StatusChange>, ChangesLost> {
        let inner = self.lock();
        let last_position = *self.last.borrow();
        let oldest_sequence = inner.changes.front().map_or(last_position.sequence + 1, |change| change.sequence);
        if position.epoch != last_position.epoch || position.sequence + 1 < oldest_sequence {
            return Err(ChangesLost(position));
        }
        let start = usize::try_from(position.sequence + 1 - oldest_sequence).unwrap_or(usize::MAX).min(inner.changes.len());
        Ok(inner.changes.range(start..).copied().collect())
    }

    fn lock_ahead(&self) -> MutexGuard<'_, HashMap<Uuid, HostRevisions>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_refused_releases(&self) -> MutexGuard<'_, HashMap<Uuid, String>> {
        self.refused_releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the values from which the state of a node is computed by the result of `change`. Does nothing if the
    /// table does not have the node, or if the values stay the same.
    fn update(&self, node: Uuid, change: impl FnOnce(StateInputs) -> StateInputs) {
        let mut inner = self.lock();
        let Some(old_inputs) = inner.inputs.get(&node).copied() else { return };
        let new_inputs = change(old_inputs);
        // Most calls change nothing. They come from checks of all nodes every few seconds.
        if new_inputs != old_inputs {
            self.set(&mut inner, node, new_inputs);
        }
    }

    /// Stores the inputs of a node. If its status changes, appends the change to the sequence that clients watch. If it
    /// begins or ceases to hold others up, or to lack its next task set, notifies the reconciler.
    fn set(&self, inner: &mut StatusState, node: Uuid, inputs: StateInputs) {
        let new_status = NodeStatus::from_inputs(inputs);
        let old_inputs = inner.inputs.insert(node, inputs);
        let blocking_flags = |inputs: StateInputs| (inputs.is_blocking_others(), inputs.is_task_set_withheld());
        if old_inputs.map(blocking_flags).unwrap_or_default() != blocking_flags(inputs) {
            inner.blocking_changes.insert(node);
            self.blocking_changed.notify_one();
        }
        if old_inputs.map(NodeStatus::from_inputs) != Some(new_status) {
            self.record_change(inner, node, Some(new_status));
        }
    }

    /// Appends a change of a node's status to the sequence of changes. Drops the oldest change at the maximum number.
    /// `new_status` is `None` for a deleted node.
    fn record_change(&self, inner: &mut StatusState, node: Uuid, new_status: Option<NodeStatus>) {
        let last_position = *self.last.borrow();
        let sequence = last_position.sequence + 1;
        if inner.changes.len() == MAX_CHANGES {
            inner.changes.pop_front();
        }
        inner.changes.push_back(StatusChange { sequence, node, status: new_status });
        // The caller holds the lock of `inner`, so the numbers are in the order of the changes.
        self.last.send_replace(StatusPosition { sequence, ..last_position });
    }

    fn lock(&self) -> MutexGuard<'_, StatusState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of nodes in each state, from the inputs of the nodes.
pub(crate) fn state_counts<'a>(inputs: impl Iterator<Item = &'a StateInputs>) -> BTreeMap<State, usize> {
    let mut counts = BTreeMap::new();
    inputs.for_each(|inputs| *counts.entry(inputs.status().state).or_default() += 1);
    counts
}

/// Returns the number of nodes with each note, from the inputs of the nodes.
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

    /// Returns the inputs of a node that is in a group and whose tasks have these outcomes.
    fn placed(tasks: TaskSummary) -> StateInputs {
        StateInputs { is_placed: true, tasks, ..StateInputs::default() }
    }

    /// Returns the inputs of the same node with an agent that is connected.
    fn connected(inputs: StateInputs) -> StateInputs {
        StateInputs { liveness: Liveness::Connected, ..inputs }
    }

    /// Inputs that change the status of a node add a numbered change. The counts and lists of nodes by state follow the
    /// inputs. A removed node does not appear again.
    #[test]
    fn status_table_numbers_changes_and_lists_nodes_by_state() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        let position_receiver = table.subscribe();
        let position_at = |sequence| StatusPosition { sequence, ..*position_receiver.borrow() };
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
            "a write that the table does not include yet may have made other nodes silent"
        );
        table.remove(node);
        table.remove(node);
        let changes = table.changes_since(position_at(0)).unwrap();
        let states: Vec<_> = changes.iter().map(|change| change.status.map(|new_status| new_status.status.state)).collect();
        let expected_states = [State::Unplaced, State::Changing, State::Converged, State::Silent].map(Some);
        assert_eq!(states, [&expected_states[..], &[None]].concat());
        assert!(changes.iter().zip(1..).all(|(change, number)| change.sequence == number));
        assert_eq!(position_receiver.borrow().sequence, 5);
        assert_eq!(table.changes_since(position_at(3)).unwrap().len(), 2);
        assert_eq!(table.changes_since(position_at(5)), Ok(Vec::new()));
        table.set_liveness(node, || Liveness::Connected);
        table.set_tasks(node, TaskSummary::Succeeded);
        assert_eq!(position_receiver.borrow().sequence, 5, "a check-in does not restore a removed node");
        assert_eq!(table.inputs(node), None);
    }

    #[test]
    fn x02_nodes_wait_while_store_waits() {
        let (table, [first, second]) = (StatusTable::default(), [1, 2].map(Uuid::from_u128));
        let state = |node| table.get(node).map(|node_status| node_status.status.state);
        table.set_inputs(first, || connected(placed(TaskSummary::Succeeded)));
        table.set_store_waiting(true);
        table.set_inputs(second, || connected(placed(TaskSummary::Incomplete)));
        assert_eq!([first, second].map(state), [Some(State::Waiting); 2]);
        assert_eq!(table.nodes_in_states(&[State::Waiting], Revision::ZERO).map(|(nodes, _)| nodes.len()), Some(2));
        let sequence = table.subscribe().borrow().sequence;
        table.set_store_waiting(true);
        assert_eq!(table.subscribe().borrow().sequence, sequence, "nothing changed");
        table.set_store_waiting(false);
        assert_eq!([first, second].map(state), [Some(State::Converged), Some(State::Changing)]);
        assert_eq!(table.subscribe().borrow().sequence, sequence + 2, "watchers get one change for each node");
    }

    /// `blocking_changed` does not return for a change that `take_blocking_changes` has already removed.
    #[tokio::test(start_paused = true)]
    async fn y06_blocking_changed_ignores_removed_change() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        table.set_inputs(node, || placed(TaskSummary::Incomplete));
        assert_eq!(table.take_blocking_changes(), BTreeSet::from([node]), "a node without an agent holds others up");
        assert!(timeout(Duration::from_secs(1), table.blocking_changed()).await.is_err(), "no change is left");
        table.set_liveness(node, || Liveness::Connected);
        table.blocking_changed().await;
        assert_eq!(table.take_blocking_changes(), BTreeSet::from([node]));
    }

    #[test]
    fn changes_since_fails_when_position_is_too_old() {
        let (table, node) = (StatusTable::default(), Uuid::from_u128(1));
        for round in 0..MAX_CHANGES + 2 {
            let liveness = if round % 2 == 0 { Liveness::Connected } else { Liveness::Silent };
            table.set_inputs(node, || StateInputs { liveness, ..StateInputs::default() });
        }
        // The first two changes were dropped. A client at position 2 has both of them already.
        let position_at = |sequence| StatusPosition { sequence, ..*table.subscribe().borrow() };
        assert_eq!(table.changes_since(position_at(1)), Err(ChangesLost(position_at(1))));
        assert_eq!(table.changes_since(position_at(2)).unwrap().len(), MAX_CHANGES);
    }

    /// Each table belongs to one start of the controller. In this test, the old table has three changes and the new
    /// table has one.
    #[test]
    fn changes_since_fails_when_position_is_from_before_restart() {
        let (old_table, new_table, node) = (StatusTable::default(), StatusTable::default(), Uuid::from_u128(1));
        for (table, change_count) in [(&old_table, 3), (&new_table, 1)] {
            for round in 0..change_count {
                let liveness = if round % 2 == 0 { Liveness::Connected } else { Liveness::Silent };
                table.set_inputs(node, || StateInputs { liveness, ..StateInputs::default() });
            }
        }
        for sequence in 0..=3 {
            let old_position = StatusPosition { sequence, ..*old_table.subscribe().borrow() };
            assert_eq!(new_table.changes_since(old_position), Err(ChangesLost(old_position)));
        }
    }
}
