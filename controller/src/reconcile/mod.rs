//! Computes the desired state of each node from the stored objects. The cache or a slow timer starts a pass, which has
//! no arguments. A pass takes the changes, resolves the affected nodes, skips those with an equal result, and publishes
//! the rest as one batch. The same pass serves the first start, a restart and a repair.
//!
//! ```text
//!   cache ──changes──▶ fleet ──dirty──▶ resolve ──▶ known ─────────────────────────────▶ publish ──▶ waiting check-ins
//!                                          │                                              ▲
//!                                          └──▶ task set ──plan──▶ released (stored) ───┘
//! ```
//!
//! *Known* is sent at once. A *task set* is sent only when `stemma_core::rollout` plans its release, and it is stored
//! first. A released task set stays in effect until another one is released, also after a restart or a change of the
//! model.

pub(crate) mod decision;
mod group;
mod primaries;
pub(crate) mod state_inputs;
#[cfg(test)]
mod tests;
pub(crate) mod waves;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use log::{error, info, warn};
use stemma_core::fleet::Fleet;
use stemma_core::object::{ClusterId, NodeId, Timestamp};
use stemma_core::resolve::{Resolution, ResolvedNode};
use stemma_core::rollout::{QuotaDecision, RecordSize, ReleaseState};
use stemma_wire::message;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::cache::released::candidate;
use crate::cache::{AffectedNodes, Cache, Model};
use crate::desired::encode::ProfileCache;
use crate::desired::size::TooLarge;
use crate::desired::{DesiredChange, DesiredTable, PassResult};
use crate::metrics::Counters;
use crate::registry::Registry;
use crate::store::{Refusal, StoreError, Transaction};
use decision::NodeDecision;
use group::GroupInputCache;
use waves::{PassChanges, Waves};

/// Interval of the full resolve, which must find nothing to do.
const FULL_RESOLVE_INTERVAL: Duration = Duration::from_mins(10);
/// Minimum number of common values of released task sets that are added between two sweeps. If the last sweep left more
/// values than this, at least as many must be added.
const MIN_NEW_VALUES_FOR_SWEEP: usize = 64;
/// Delay before the next pass after the store failed to write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How often the clock is compared with the next end of a hold, because the clock may be set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The loop that publishes the desired state of nodes.
pub struct Reconciler {
    registry: Arc<Registry>,
    cache: Arc<Cache>,
    table: Arc<DesiredTable>,
    counters: Arc<Counters>,
    pass_state: Mutex<PassState>,
    waves: Mutex<Waves>,
    /// Requests for a full resolve, each with the sender for its result.
    full_requests: mpsc::Sender<oneshot::Sender<usize>>,
    /// The receiver of these requests. Only [`Reconciler::run`] locks it.
    full_request_queue: tokio::sync::Mutex<mpsc::Receiver<oneshot::Sender<usize>>>,
}

/// The state that a pass leaves for the next one.
#[derive(Default)]
struct PassState {
    profiles: ProfileCache,
    /// Nodes for the next pass, because the store failed to write, or because their cluster has room for their records
    /// again.
    unpublished: BTreeSet<Uuid>,
    /// Nodes whose results arrived in a pass that failed, with the tasks.
    unpublished_results: BTreeMap<Uuid, BTreeSet<String>>,
    /// When the first hold of each node ends.
    hold_ends: BTreeMap<NodeId, Timestamp>,
    /// For each node that cannot get a new desired state, the reason.
    blocked_reasons: HashMap<Uuid, String>,
    /// The number of common values that were stored after the last sweep.
    values_after_sweep: usize,
}

/// The nodes for which a pass changed something.
#[derive(Default)]
struct NodeChanges {
    /// Nodes whose desired state changed.
    desired: Vec<Uuid>,
    /// Nodes whose open barriers changed.
    barriers: Vec<Uuid>,
}

impl PassState {
    /// Records why a node keeps its state. Returns whether the reason is new.
    fn note_blocked(&mut self, node: Uuid, reason: &str) -> bool {
        let before = self.blocked_reasons.insert(node, reason.to_owned());
        before.is_none_or(|before| before != reason)
    }

    /// Returns the decision for a node. If its desired state is too large, records this and returns `None`: the node
    /// keeps its state.
    fn decide_or_block(
        &mut self,
        model: &Model,
        node: NodeId,
        decision: Result<NodeDecision, TooLarge>,
    ) -> Option<(Uuid, NodeDecision)> {
        match &decision {
            Ok(_) => drop(self.blocked_reasons.remove(&node.0)),
            Err(error) if self.note_blocked(node.0, &error.to_string()) => {
                warn!(node:%, name = model.node_name(node.0), error:%; "the desired state of a node is too large and is not sent; the node keeps its state");
            }
            Err(_) => {}
        }
        Some((node.0, decision.ok()?))
    }
}

impl Reconciler {
    /// Creates a reconciler over the registry's cache. Nothing is resolved before [`Reconciler::run`].
    pub fn new(registry: Arc<Registry>, table: Arc<DesiredTable>, counters: Arc<Counters>) -> Self {
        let cache = Arc::clone(registry.cache());
        let (sender, receiver) = mpsc::channel(1);
        let (pass_state, waves) = (Mutex::default(), Mutex::default());
        Self {
            registry,
            cache,
            table,
            counters,
            pass_state,
            waves,
            full_requests: sender,
            full_request_queue: tokio::sync::Mutex::new(receiver),
        }
    }

    /// Runs the full resolve that is otherwise run every ten minutes, after the first pass of [`Reconciler::run`].
    /// Returns the number of nodes that earlier passes had missed, or `None` if the reconciler was stopped in the
    /// meantime.
    pub async fn resolve_all_now(&self) -> Option<usize> {
        let (sender, receiver) = oneshot::channel();
        self.full_requests.send(sender).await.ok()?;
        receiver.await.ok()
    }

    /// Returns the barriers that are shut for a node, and the nodes that they wait for, as of a model. If the last pass
    /// was for this model, the result is from its wave. Otherwise, and while a pass holds the lock, the wave is
    /// computed from the model.
    pub(crate) fn shut_barriers(&self, model: &Model, node: NodeId) -> Vec<waves::ShutBarrier> {
        self.shut_barriers_in_last_pass(model, node)
            .unwrap_or_else(|| waves::shut_barriers(waves::TaskOutcomes { table: &self.table, model }, node))
    }

    /// Returns the barriers that are shut for a node, from the wave of the last pass. Returns `None` if that pass was
    /// for another model, or if a pass holds the lock.
    pub(crate) fn shut_barriers_in_last_pass(&self, model: &Model, node: NodeId) -> Option<Vec<waves::ShutBarrier>> {
        self.waves.try_lock().ok().and_then(|mut waves| waves.shut_barriers(model, node))
    }

    /// Resolves everything once, then what changes, until the future is dropped.
    pub async fn run(&self) -> Infallible {
        let mut requests = self.full_request_queue.lock().await;
        self.run_first_pass().await;
        let mut full = tokio::time::interval(FULL_RESOLVE_INTERVAL);
        full.tick().await;
        loop {
            tokio::select! {
                () = self.cache.changed() => self.run_pass().await,
                () = self.table.status().blocking_changed() => self.run_pass().await,
                _ = full.tick() => {
                    self.resolve_all().await;
                }
                Some(answer) = requests.recv() => {
                    let _nobody_waits = answer.send(self.resolve_all().await);
                }
                () = self.wait_to_retry() => self.run_pass().await,
                () = self.wait_for_hold_end() => self.run_pass().await,
            }
        }
    }

    /// Runs the first pass, over everything that is stored.
    async fn run_first_pass(&self) {
        let (model, _) = self.cache.take_changes();
        let nodes = model.nodes.iter().map(|node| node.meta.uuid).collect();
        let (count, revision) = (model.nodes.len(), model.revision);
        self.publish(&model, nodes, BTreeMap::new(), self.registry.now()).await;
        info!(nodes = count, revision = revision.get(); "fleet resolved");
    }

    /// Runs a pass over what changed since the last pass, and the nodes whose hold has ended.
    async fn run_pass(&self) {
        let (model, affected) = self.cache.take_changes();
        let now = self.registry.now();
        let mut dirty: BTreeSet<Uuid> = std::mem::take(&mut self.lock_state().unpublished);
        dirty.extend(self.take_expired_holds(now));
        dirty.extend(touched_nodes(&model, &affected));
        if affected.all {
            self.lock_waves().clear();
        }
        let mut new_results = std::mem::take(&mut self.lock_state().unpublished_results);
        for (node, tasks) in affected.new_results {
            new_results.entry(node).or_default().extend(tasks);
        }
        self.publish(&model, dirty, new_results, now).await;
        let (values, swept) = (stored_value_count(&self.cache.model()), self.lock_state().values_after_sweep);
        if values >= swept + swept.max(MIN_NEW_VALUES_FOR_SWEEP) {
            self.sweep().await;
        }
    }

    /// Resolves every node. If the result of a node differs, an earlier pass missed the node. Counts and returns the
    /// number of such nodes.
    async fn resolve_all(&self) -> usize {
        let now = self.registry.now();
        self.run_pass().await;
        // The waves are built again, so that a result is found that never reached a wave.
        self.lock_waves().clear();
        // Nodes that changed since that pass are expected, and not counted. `now` was read before the pass, so a hold
        // that has ended since is not counted either.
        let (model, affected) = self.cache.take_changes();
        let mut expected: BTreeSet<Uuid> =
            touched_nodes(&model, &affected).chain(self.lock_state().unpublished.iter().copied()).collect();
        let mut changed_clusters = self.touched_clusters(&model, &affected);
        // What the store refused is tried again in a full resolve.
        let refused = self.table.status().nodes_with_refused_release();
        changed_clusters.extend(self.lock_waves().clusters_of(&model.fleet, refused.iter().copied()));
        expected.extend(refused);
        let nodes = model.nodes.iter().map(|node| node.meta.uuid).chain(affected.deleted.iter().copied()).collect();
        let changed = self.publish(&model, nodes, affected.new_results, now).await;
        // The next pass handles later changes, but this one may already have read the results among them.
        let (later, affected) = self.cache.peek_changes();
        changed_clusters.extend(self.touched_clusters(&later, &affected));
        // Barriers follow from what is stored and published, and not from the time. A node that changed may open or
        // shut barriers of every node of its cluster, so in such a cluster no change of barriers is counted.
        let is_expected = |node: &Uuid| !self.lock_waves().clusters_of(&model.fleet, [*node]).is_disjoint(&changed_clusters);
        let desired = changed.desired.into_iter().filter(|node| !expected.contains(node));
        let barriers = changed.barriers.into_iter().filter(|node| !is_expected(node));
        let found = desired.chain(barriers).collect::<BTreeSet<_>>().len();
        if found > 0 {
            self.counters.missed.inc();
            warn!(nodes = found; "a full resolve found something to do");
        }
        self.sweep().await;
        found
    }

    /// Returns the clusters of the nodes that changed or have new results, and of the nodes that an earlier pass could
    /// not publish.
    fn touched_clusters(&self, model: &Model, affected: &AffectedNodes) -> BTreeSet<ClusterId> {
        let mut nodes: BTreeSet<Uuid> = touched_nodes(model, affected).chain(affected.new_results.keys().copied()).collect();
        let state = self.lock_state();
        nodes.extend(state.unpublished.iter().chain(state.unpublished_results.keys()));
        drop(state);
        self.lock_waves().clusters_of(&model.fleet, nodes)
    }

    /// Deletes stored profiles and common values that no released task set names.
    async fn sweep(&self) {
        for transaction in decision::sweep_transactions(&self.cache.model()) {
            match self.registry.store().commit(transaction).await {
                // The next pass must not rely on a value that was deleted.
                Ok(revision) => self.cache.wait_for(revision).await,
                Err(failure) => {
                    warn!(error:err = failure; "unused profiles and common values could not be deleted");
                    break;
                }
            }
        }
        self.lock_state().values_after_sweep = stored_value_count(&self.cache.model());
    }

    /// Returns the nodes whose hold has ended. Each is returned once: its next decision finds whether there is another
    /// end to wait for.
    fn take_expired_holds(&self, now: Timestamp) -> Vec<Uuid> {
        let mut state = self.lock_state();
        let ended: Vec<NodeId> = state.hold_ends.iter().filter(|(_, end)| **end <= now).map(|(node, _)| *node).collect();
        for node in &ended {
            state.hold_ends.remove(node);
        }
        ended.into_iter().map(|node| node.0).collect()
    }

    /// Resolves nodes, stores what is released, and publishes. Returns the nodes for which this changed something.
    async fn publish(
        &self,
        model: &Model,
        nodes: BTreeSet<Uuid>,
        new_results: BTreeMap<Uuid, BTreeSet<String>>,
        now: Timestamp,
    ) -> NodeChanges {
        let (revision, fleet) = (model.revision, &model.fleet);
        let (resolved, gone) = self.resolve(model, &nodes);
        let decided = self.decide(model, &resolved, now);
        self.counters.resolved.inc_by(decided.len() as u64);
        let (decided, over_budget) = self.limit_to_room(model, (decided, &nodes, &gone), &resolved, now);
        let refused = match self.store_released(&decided, &gone).await {
            Ok(refused) => refused,
            Err(failure) => {
                error!(error:err = failure; "released task sets could not be stored; nothing is sent");
                let mut state = self.lock_state();
                state.unpublished.extend(nodes);
                for (node, tasks) in new_results {
                    state.unpublished_results.entry(node).or_default().extend(tasks);
                }
                drop(state);
                return NodeChanges::default();
            }
        };
        // The room of a record that the store refused is free for other nodes.
        self.admit_records(model, &decision::record_sizes(model, refused.keys().copied(), &[]), &[]);
        let decided = self.drop_refused(decided, &refused, &over_budget);
        let obsolete =
            decided.iter().filter(|(uuid, decision)| self.lock_waves().set_obsolete_barriers(*uuid, &decision.obsolete_barriers));
        let obsolete = obsolete.map(|(uuid, _)| *uuid).collect();
        let changes = decided.into_iter().map(|(uuid, decision)| (uuid, DesiredChange::Release(Box::new(decision.desired))));
        let changes = changes.chain(gone.into_iter().map(|uuid| (uuid, DesiredChange::Deleted))).collect();
        let desired = self.table.publish(PassResult { revision: message::Revision(revision.get()), changes });
        if let Some(line) = model.epoch_line.as_ref().filter(|line| self.table.change_epoch(&line.record)) {
            info!(epoch:% = line.record.now, revision = line.record.at; "another epoch of the store began; hosts are led to it");
        }
        // The model with what was just stored.
        let stored = self.cache.model();
        self.update_status(&stored, &resolved, &new_results, now);
        // A node without a new desired state may have joined or left a wave too.
        let changed_blocking = self.table.status().take_blocking_changes();
        let changes = PassChanges {
            nodes: &nodes,
            with_changed_blocking: &changed_blocking,
            results: &new_results,
            with_changed_obsolete: &obsolete,
        };
        let results = waves::TaskOutcomes { table: &self.table, model: &stored };
        let (barriers, blocked) = self.lock_waves().update(fleet, results, &changes, message::Revision(revision.get()));
        self.table.status().set_blocked(blocked);
        self.table.status().set_revision(revision);
        self.choose_primaries(fleet).await;
        NodeChanges { desired, barriers }
    }

    /// Returns the resolved nodes, and the nodes that were deleted. A node that cannot be resolved keeps its state.
    fn resolve(&self, model: &Model, nodes: &BTreeSet<Uuid>) -> (Vec<Arc<ResolvedNode>>, Vec<Uuid>) {
        let (mut resolved, mut gone) = (Vec::new(), Vec::new());
        for &uuid in nodes {
            let resolution = model.resolve(uuid);
            match (&resolution, model.nodes.get(uuid)) {
                (Resolution::Complete(answer), _) => resolved.push(Arc::clone(answer)),
                (Resolution::Incomplete(_), None) => {
                    let mut state = self.lock_state();
                    state.blocked_reasons.remove(&uuid);
                    state.hold_ends.remove(&NodeId(uuid));
                    gone.push(uuid);
                }
                (Resolution::Incomplete(missing), Some(node)) => {
                    let (table, now) = (Some(&*self.table), self.registry.now());
                    self.table.set_state_inputs(uuid, state_inputs::state_inputs(model, table, (node, &resolution), now));
                    let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    if self.lock_state().note_blocked(uuid, &missing) {
                        let name = model.node_name(uuid);
                        warn!(node:% = uuid, name, missing; "a node cannot be resolved and keeps its state");
                    }
                }
            }
        }
        (resolved, gone)
    }

    /// Returns the decision for each node.
    fn decide(&self, model: &Model, resolved: &[Arc<ResolvedNode>], now: Timestamp) -> Vec<(Uuid, NodeDecision)> {
        let mut state = self.lock_state();
        let (mut decided, mut groups) = (Vec::new(), GroupInputCache::new(model.resolve_cache.texts()));
        for node in resolved {
            let (candidate, resolution) = (candidate(model, node), decision::NodeResolution { model, resolved: node, now });
            // A hold that withholds no task set is included, because the known part shows the hold until it ends.
            match candidate.hold_ends_at(now) {
                Some(end) => drop(state.hold_ends.insert(candidate.node, end)),
                None => drop(state.hold_ends.remove(&candidate.node)),
            }
            let decision = match candidate.state(now) {
                ReleaseState::Due => resolution.release(&mut state.profiles, &mut groups),
                standing @ (ReleaseState::Current | ReleaseState::Withheld(_)) => resolution.keep(&mut state.profiles, standing),
            };
            decided.extend(state.decide_or_block(model, candidate.node, decision));
        }
        decided
    }

    /// Returns the decisions for which the clusters have room, and the nodes without room, each with the reason. Nodes
    /// without room keep what they have. Nodes that were refused before and have room now are left for the next pass.
    fn limit_to_room(
        &self,
        model: &Model,
        (mut decided, nodes, gone): (Vec<(Uuid, NodeDecision)>, &BTreeSet<Uuid>, &[Uuid]),
        resolved: &[Arc<ResolvedNode>],
        now: Timestamp,
    ) -> (Vec<(Uuid, NodeDecision)>, BTreeMap<Uuid, String>) {
        let existing = nodes.iter().copied().filter(|node| model.nodes.get(*node).is_some());
        let refused = self.admit_records(model, &decision::record_sizes(model, existing, &decided), gone);
        decided.retain(|(node, _)| !refused.contains(&NodeId(*node)));
        let mut state = self.lock_state();
        for node in resolved.iter().filter(|answer| refused.contains(&answer.id())) {
            let decision =
                decision::NodeResolution { model, resolved: node, now }.keep(&mut state.profiles, ReleaseState::Withheld(None));
            decided.extend(state.decide_or_block(model, node.id(), decision));
        }
        drop(state);
        let reason = |node: NodeId| {
            let cluster = model.fleet.cluster_of_node(node).and_then(|cluster| model.clusters.get(cluster.0));
            (node.0, decision::over_budget_reason(&cluster.map_or_else(String::new, |one| one.meta.name.to_string())))
        };
        (decided, refused.into_iter().map(reason).collect())
    }

    /// Counts the sizes of records in the quota of each cluster. Returns the nodes whose record has no room. Nodes that
    /// have room again are left for the next pass.
    fn admit_records(&self, model: &Model, sizes: &[RecordSize], gone: &[Uuid]) -> BTreeSet<NodeId> {
        let gone: Vec<NodeId> = gone.iter().copied().map(NodeId).collect();
        let admitted = self.registry.record_quota().admit(sizes, &gone, |cluster| model.count_nodes_in(cluster));
        let QuotaDecision { refused, retry } = admitted;
        self.lock_state().unpublished.extend(retry.into_iter().map(|node| node.0));
        refused
    }

    /// Updates the status of the nodes of a pass.
    fn update_status(
        &self,
        stored: &Model,
        resolved: &[Arc<ResolvedNode>],
        new_results: &BTreeMap<Uuid, BTreeSet<String>>,
        now: Timestamp,
    ) {
        for resolved_node in resolved {
            let node = resolved_node.node().meta.uuid;
            let resolution = Resolution::Complete(Arc::clone(resolved_node));
            self.table.set_state_inputs(
                node,
                state_inputs::state_inputs(stored, Some(&*self.table), (resolved_node.node(), &resolution), now),
            );
        }
        for node in new_results.keys() {
            self.table.status().set_tasks(*node, state_inputs::tasks(stored, *node));
            self.table.status().set_host_awaited(*node, state_inputs::is_host_awaited(stored, *node));
            let is_orphaned = !state_inputs::orphans(stored, *node).is_empty();
            self.table.status().set_reported(*node, state_inputs::stuck_reason(stored, *node).as_ref(), is_orphaned);
        }
    }

    /// Stores the newly released task sets before anything is sent. Returns the nodes whose release the store can never
    /// accept, with the reason.
    ///
    /// # Errors
    /// The error of the store for a write that may succeed later.
    async fn store_released(
        &self,
        decided: &[(Uuid, NodeDecision)],
        gone: &[Uuid],
    ) -> Result<BTreeMap<Uuid, Refusal>, StoreError> {
        let store = self.registry.store();
        let mut refused = BTreeMap::new();
        let mut parts = VecDeque::from(decision::new_records(decided));
        while let Some(mut part) = parts.pop_front() {
            // Built from the model as the previous commit left it.
            let transactions = decision::transactions_for(&self.cache.model(), &part);
            let stored = decision::bytes_by_node(&transactions);
            match self.commit_in_turn(transactions).await {
                Ok(()) => self.record_released_bytes(&stored),
                // The release of one node must not hold back those of the others.
                Err(StoreError::Refused(_)) if part.len() > 1 => {
                    parts.push_front(part.split_off(part.len() / 2));
                    parts.push_front(part);
                }
                Err(StoreError::Refused(refusal)) => refused.extend(part.first().map(|(node, _)| (*node, refusal))),
                Err(failure) => return Err(failure),
            }
        }
        for transaction in decision::deletion_transactions(&**store, gone).await? {
            self.cache.wait_for(store.commit(transaction).await?).await;
        }
        Ok(refused)
    }

    /// Commits transactions, each after the one before it.
    async fn commit_in_turn(&self, transactions: Vec<Transaction>) -> Result<(), StoreError> {
        for transaction in transactions {
            self.cache.wait_for(self.registry.store().commit(transaction).await?).await;
        }
        Ok(())
    }

    /// Records the bytes that were stored for nodes. Each counts for its node's cluster.
    fn record_released_bytes(&self, stored: &[(Uuid, u64)]) {
        let model = self.cache.model();
        for (node, bytes) in stored {
            if let Some(cluster) = model.fleet.cluster_of_node(NodeId(*node)) {
                self.registry.record_released(cluster, *bytes);
            }
        }
    }

    /// Returns the decisions whose release is stored. A node whose release was refused keeps its state and gets a
    /// finding. It is tried again when it changes, and in each full resolve.
    fn drop_refused(
        &self,
        mut decided: Vec<(Uuid, NodeDecision)>,
        refused: &BTreeMap<Uuid, Refusal>,
        over_budget: &BTreeMap<Uuid, String>,
    ) -> Vec<(Uuid, NodeDecision)> {
        for (node, reason) in over_budget {
            self.report_refusal(*node, Some(reason));
        }
        decided.retain(|(node, _)| {
            let refusal = refused.get(node).map(decision::refused_reason);
            if !over_budget.contains_key(node) {
                self.report_refusal(*node, refusal.as_deref());
            }
            refusal.is_none()
        });
        decided
    }

    /// Records why the release of a node is not stored, or `None` if it is.
    fn report_refusal(&self, node: Uuid, refusal: Option<&str>) {
        if self.table.status().set_refused_release(node, refusal) {
            let model = self.cache.model();
            let name = model.node_name(node);
            match refusal {
                Some(refusal) => {
                    error!(node:%, name, refusal; "the release for a node is not stored; the node keeps its state");
                }
                None => info!(node:%, name; "the release for a node is stored again"),
            }
        }
    }

    async fn choose_primaries(&self, fleet: &Fleet) {
        if let Err(failure) = primaries::choose_primaries(&self.registry, fleet).await {
            warn!(error = failure.message; "a primary could not be stored");
        }
    }

    /// Waits for [`RETRY_DELAY`] if nodes are left for the next pass, otherwise forever.
    async fn wait_to_retry(&self) {
        if self.lock_state().unpublished.is_empty() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }

    /// Waits until the next end of a hold.
    async fn wait_for_hold_end(&self) {
        loop {
            let Some(end) = self.lock_state().hold_ends.values().min().copied() else {
                return std::future::pending().await;
            };
            let remaining = end.0.saturating_sub(self.registry.now().0);
            if remaining == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(remaining).min(CLOCK_CHECK_INTERVAL)).await;
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, PassState> {
        self.pass_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_waves(&self) -> MutexGuard<'_, Waves> {
        self.waves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of stored common values: the lists of values, their parts, and the chunks of texts.
fn stored_value_count(model: &Model) -> usize {
    model.common.len() + model.common_parts.len() + model.common_chunks.len()
}

/// Returns the nodes that a change affects.
fn touched_nodes<'a>(model: &'a Model, affected: &'a AffectedNodes) -> impl Iterator<Item = Uuid> + 'a {
    let all = affected.all.then(|| model.nodes.iter().map(|node| node.meta.uuid));
    let dirty = affected.dirty.nodes(&model.fleet).map(|id| id.0);
    dirty.chain(affected.deleted.iter().copied()).chain(all.into_iter().flatten())
}
