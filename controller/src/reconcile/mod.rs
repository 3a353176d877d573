//! Computes the desired state of each node from the stored objects. A change of the cache, the end of a hold, a retry
//! or a slow timer starts a pass, and so does a node that begins or ceases to hold up others. A pass reads the changes
//! since the last pass and resolves the affected nodes. It then publishes all nodes with a different result as one
//! batch. The first start, a restart and a repair use the same pass.
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
mod progress;
pub(crate) mod state_inputs;
#[cfg(test)]
pub(crate) mod tests;
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
use progress::ReconcileProgress;
use waves::{PassChanges, Waves};

/// Interval of the full resolve, which checks the other passes and should find nothing to do.
const FULL_RESOLVE_INTERVAL: Duration = Duration::from_mins(10);
/// Minimum number of common values that must be added to the store after a sweep (a deletion of unused values) before
/// the next sweep. If the last sweep left more values than this, as many as it left must be added.
const MIN_NEW_VALUES_FOR_SWEEP: usize = 64;
/// Delay before the next pass if nodes are left for it, for example because the store failed to write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum time between two comparisons of the clock with the next end of a hold. The clock is compared often, because
/// it may be set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The reconciler: the loop that publishes the desired state of nodes.
pub struct Reconciler {
    registry: Arc<Registry>,
    cache: Arc<Cache>,
    table: Arc<DesiredTable>,
    counters: Arc<Counters>,
    pass_state: Mutex<PassState>,
    waves: Mutex<Waves>,
    /// The sender of requests for a full resolve. Each request has a sender for its result, the number of nodes that
    /// earlier passes had missed.
    full_requests: mpsc::Sender<oneshot::Sender<usize>>,
    /// The receiver of the requests for a full resolve. Only [`Reconciler::run`] locks it.
    full_request_queue: tokio::sync::Mutex<mpsc::Receiver<oneshot::Sender<usize>>>,
    progress: ReconcileProgress,
}

/// The state that one pass leaves for the next one.
#[derive(Default)]
struct PassState {
    profiles: ProfileCache,
    /// The nodes that the next pass resolves again. Either the store failed to write in a pass over these nodes, or
    /// their cluster has room for their records again.
    unpublished: BTreeSet<Uuid>,
    /// The nodes whose task results arrived in a pass that failed, with the ids of the tasks.
    unpublished_results: BTreeMap<Uuid, BTreeSet<String>>,
    /// The time at which the first hold of each node ends.
    hold_ends: BTreeMap<NodeId, Timestamp>,
    /// The reason why a node cannot get a new desired state, for each such node.
    undecided_reasons: HashMap<Uuid, String>,
    /// The number of common values in the store after the last sweep.
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
    /// Records why a node cannot get a new desired state. Returns whether the reason is new.
    fn note_undecided(&mut self, node: Uuid, reason: &str) -> bool {
        let previous_reason = self.undecided_reasons.insert(node, reason.to_owned());
        previous_reason.is_none_or(|previous_reason| previous_reason != reason)
    }

    /// Returns the decision for a node. If the desired state is too large, records this and returns `None`. The node
    /// then keeps its present desired state.
    fn accept_or_note_undecided(
        &mut self,
        model: &Model,
        node: NodeId,
        decision: Result<NodeDecision, TooLarge>,
    ) -> Option<(Uuid, NodeDecision)> {
        match &decision {
            Ok(_) => drop(self.undecided_reasons.remove(&node.0)),
            Err(error) if self.note_undecided(node.0, &error.to_string()) => {
                warn!(node:%, name = model.node_name(node.0), error:%; "the desired state of a node is too large and is not sent; the node keeps its state");
            }
            Err(_) => {}
        }
        Some((node.0, decision.ok()?))
    }
}

impl Reconciler {
    /// Creates a reconciler over the registry's cache. Nothing is resolved before [`Reconciler::run`] is called.
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
            progress: ReconcileProgress::default(),
        }
    }

    /// Waits until [`Reconciler::run`] makes progress: until its loop makes a turn, or a pass handles a node. An idle
    /// loop makes a turn for this. A loop that waits for the store also counts as making progress, because a restart
    /// does not help against a disk that does not respond.
    pub async fn wait_for_progress(&self) {
        self.progress.wait().await;
    }

    /// Requests a full resolve, and waits until [`Reconciler::run`] has done it, after its first pass. Without a
    /// request, a full resolve runs every ten minutes. Returns the number of nodes that earlier passes had missed, or
    /// `None` if the future of [`Reconciler::run`] was dropped during the full resolve.
    pub async fn resolve_all_now(&self) -> Option<usize> {
        let (sender, receiver) = oneshot::channel();
        self.full_requests.send(sender).await.ok()?;
        receiver.await.ok()
    }

    /// Returns the barriers that are closed for a node according to a model, with the nodes that they wait for. If the
    /// last pass was for this model, the result is from that pass. Otherwise, or while the waves are locked, the result
    /// is computed from the model.
    pub(crate) fn closed_barriers(&self, model: &Model, node: NodeId) -> Vec<waves::ClosedBarrier> {
        self.closed_barriers_in_last_pass(model, node)
            .unwrap_or_else(|| waves::closed_barriers(waves::TaskOutcomes { table: &self.table, model }, node))
    }

    /// Returns the barriers that are closed for a node, as the last pass computed them. Returns `None` if that pass has
    /// no result for this model and node, or while the waves are locked.
    pub(crate) fn closed_barriers_in_last_pass(&self, model: &Model, node: NodeId) -> Option<Vec<waves::ClosedBarrier>> {
        self.waves.try_lock().ok().and_then(|mut waves| waves.closed_barriers(model, node))
    }

    /// Resolves all nodes once, and then the nodes that change, until the future is dropped.
    pub async fn run(&self) -> Infallible {
        let mut requests = self.full_request_queue.lock().await;
        self.run_first_pass().await;
        let mut full_resolve_timer = tokio::time::interval(FULL_RESOLVE_INTERVAL);
        // The first tick is immediate. The first pass has just resolved all nodes.
        full_resolve_timer.tick().await;
        loop {
            self.progress.record_step();
            tokio::select! {
                () = self.cache.changed() => self.run_pass().await,
                // A node has begun or ceased to hold up the nodes that wait for its tasks.
                () = self.table.status().blocking_changed() => self.run_pass().await,
                _ = full_resolve_timer.tick() => {
                    self.resolve_all().await;
                }
                Some(answer) = requests.recv() => {
                    let _nobody_waits = answer.send(self.resolve_all().await);
                }
                () = self.wait_to_retry() => self.run_pass().await,
                () = self.wait_for_hold_end() => self.run_pass().await,
                () = self.progress.requested() => {}
            }
        }
    }

    /// Runs the first pass, which resolves all stored nodes.
    async fn run_first_pass(&self) {
        let (model, _) = self.cache.take_changes();
        let nodes = model.nodes.iter().map(|node| node.meta.uuid).collect();
        let (count, revision) = (model.nodes.len(), model.revision);
        self.publish(&model, nodes, BTreeMap::new(), self.registry.now()).await;
        info!(nodes = count, revision = revision.get(); "fleet resolved");
    }

    /// Runs a pass over the nodes that changed since the last pass, that earlier passes left, or whose hold has ended.
    async fn run_pass(&self) {
        let (model, affected) = self.cache.take_changes();
        let now = self.registry.now();
        let mut dirty: BTreeSet<Uuid> = std::mem::take(&mut self.lock_state().unpublished);
        dirty.extend(self.take_expired_holds(now));
        dirty.extend(affected_nodes(&model, &affected));
        // If all nodes are affected, the new results are not known, and the waves are built again from the store.
        if affected.all {
            self.lock_waves().clear();
        }
        let mut new_results = std::mem::take(&mut self.lock_state().unpublished_results);
        for (node, tasks) in affected.new_results {
            new_results.entry(node).or_default().extend(tasks);
        }
        self.publish(&model, dirty, new_results, now).await;
        let (value_count, values_after_sweep) = (stored_value_count(&self.cache.model()), self.lock_state().values_after_sweep);
        if value_count >= values_after_sweep + values_after_sweep.max(MIN_NEW_VALUES_FOR_SWEEP) {
            self.sweep().await;
        }
    }

    /// Runs a pass, and then resolves and publishes every node. If the result of a node still differs from the
    /// published one, an earlier pass missed that node. Logs and returns the number of such nodes, without those for
    /// which a difference is expected.
    async fn resolve_all(&self) -> usize {
        let now = self.registry.now();
        self.run_pass().await;
        // The waves are built again from the store, to find a result that never reached a wave.
        self.lock_waves().clear();
        // Nodes that changed since that pass are expected to differ, and are not counted. `now` was read before the
        // pass, so a node whose hold has ended since is not counted either.
        let (model, affected) = self.cache.take_changes();
        let mut expected: BTreeSet<Uuid> =
            affected_nodes(&model, &affected).chain(self.lock_state().unpublished.iter().copied()).collect();
        let mut changed_clusters = self.affected_clusters(&model, &affected);
        // A release that the store refused is tried again in each full resolve.
        let refused_nodes = self.table.status().nodes_with_refused_release();
        changed_clusters.extend(self.lock_waves().clusters_of(&model.fleet, refused_nodes.iter().copied()));
        expected.extend(refused_nodes);
        let nodes = model.nodes.iter().map(|node| node.meta.uuid).chain(affected.deleted.iter().copied()).collect();
        let changes = self.publish(&model, nodes, affected.new_results, now).await;
        // The next pass handles the changes since then, but this pass may already have read their results.
        let (later_model, affected) = self.cache.peek_changes();
        changed_clusters.extend(self.affected_clusters(&later_model, &affected));
        // Barriers follow from what is stored and published, and not from the time. If a node changed, the barriers of
        // every node of its cluster may have changed. So no change of barriers is counted in such a cluster.
        let is_excluded = |node: &Uuid| !self.lock_waves().clusters_of(&model.fleet, [*node]).is_disjoint(&changed_clusters);
        let desired = changes.desired.into_iter().filter(|node| !expected.contains(node));
        let barriers = changes.barriers.into_iter().filter(|node| !is_excluded(node));
        let missed_count = desired.chain(barriers).collect::<BTreeSet<_>>().len();
        if missed_count > 0 {
            self.counters.missed.inc();
            warn!(nodes = missed_count; "a full resolve found something to do");
        }
        self.sweep().await;
        missed_count
    }

    /// Returns the clusters of three kinds of nodes: nodes that changed, nodes with new results, and nodes that an
    /// earlier pass could not publish.
    fn affected_clusters(&self, model: &Model, affected: &AffectedNodes) -> BTreeSet<ClusterId> {
        let mut nodes: BTreeSet<Uuid> = affected_nodes(model, affected).chain(affected.new_results.keys().copied()).collect();
        let state = self.lock_state();
        nodes.extend(state.unpublished.iter().chain(state.unpublished_results.keys()));
        drop(state);
        self.lock_waves().clusters_of(&model.fleet, nodes)
    }

    /// Deletes stored profiles, common values and chunks of texts that no released task set names.
    async fn sweep(&self) {
        for transaction in decision::sweep_transactions(&self.cache.model()) {
            match self.progress.wait_for_store(self.registry.store().commit(transaction)).await {
                // The next pass must not rely on a deleted value, so this waits until the cache has the deletion.
                Ok(revision) => self.cache.wait_for(revision).await,
                Err(failure) => {
                    warn!(error:err = failure; "unused profiles and common values could not be deleted");
                    break;
                }
            }
        }
        self.lock_state().values_after_sweep = stored_value_count(&self.cache.model());
    }

    /// Returns the nodes whose hold has ended, and forgets the end of that hold. When such a node is decided again, the
    /// end of its next hold is recorded, if there is one.
    fn take_expired_holds(&self, now: Timestamp) -> Vec<Uuid> {
        let mut state = self.lock_state();
        let nodes: Vec<NodeId> = state.hold_ends.iter().filter(|(_, end)| **end <= now).map(|(node, _)| *node).collect();
        for node in &nodes {
            state.hold_ends.remove(node);
        }
        nodes.into_iter().map(|node| node.0).collect()
    }

    /// Resolves nodes, stores what is released to them, and publishes their desired states. Returns the nodes for which
    /// the desired state or the barriers changed. If the store fails, leaves all nodes for the next pass.
    async fn publish(
        &self,
        model: &Model,
        nodes: BTreeSet<Uuid>,
        new_results: BTreeMap<Uuid, BTreeSet<String>>,
        now: Timestamp,
    ) -> NodeChanges {
        let (revision, fleet) = (model.revision, &model.fleet);
        let (resolved, deleted_nodes) = self.resolve(model, &nodes);
        let decided = self.decide(model, &resolved, now);
        self.counters.resolved.inc_by(decided.len() as u64);
        let (decided, over_budget) = self.limit_to_quota(model, (decided, &nodes, &deleted_nodes), &resolved, now);
        let refused_nodes = match self.store_released(&decided, &deleted_nodes).await {
            Ok(refused_nodes) => refused_nodes,
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
        self.admit_records(model, &decision::record_sizes(model, refused_nodes.keys().copied(), &[]), &[]);
        let decided = self.drop_refused(decided, &refused_nodes, &over_budget);
        let with_changed_obsolete =
            decided.iter().filter(|(uuid, decision)| self.lock_waves().set_obsolete_barriers(*uuid, &decision.obsolete_barriers));
        let with_changed_obsolete = with_changed_obsolete.map(|(uuid, _)| *uuid).collect();
        let changes = decided.into_iter().map(|(uuid, decision)| (uuid, DesiredChange::Release(Box::new(decision.desired))));
        let changes = changes.chain(deleted_nodes.into_iter().map(|uuid| (uuid, DesiredChange::Deleted))).collect();
        let desired = self.table.publish(PassResult { revision: message::Revision(revision.get()), changes });
        if let Some(epochs) = model.epoch_history.as_ref().filter(|epochs| self.table.change_epoch(&epochs.record)) {
            info!(epoch:% = epochs.record.now, revision = epochs.record.at; "another epoch of the store began; hosts are moved to this epoch");
        }
        // This model contains what this pass has just stored.
        let stored = self.cache.model();
        self.update_status(&stored, &resolved, &new_results, now);
        // Other nodes may also have begun or ceased to hold up the nodes that wait for them.
        let changed_blocking = self.table.status().take_blocking_changes();
        let changes = PassChanges {
            nodes: &nodes,
            with_changed_blocking: &changed_blocking,
            results: &new_results,
            with_changed_obsolete: &with_changed_obsolete,
        };
        let results = waves::TaskOutcomes { table: &self.table, model: &stored };
        let (barriers, blocked) = self.lock_waves().apply_changes(fleet, results, &changes, message::Revision(revision.get()));
        self.table.status().set_blocked(blocked);
        self.table.status().set_revision(revision);
        self.choose_primaries(fleet).await;
        NodeChanges { desired, barriers }
    }

    /// Returns the resolved nodes, and the nodes that were deleted. A node that cannot be resolved keeps its desired
    /// state, and the reason is recorded.
    fn resolve(&self, model: &Model, nodes: &BTreeSet<Uuid>) -> (Vec<Arc<ResolvedNode>>, Vec<Uuid>) {
        let (mut resolved, mut deleted_nodes) = (Vec::new(), Vec::new());
        for &uuid in nodes {
            self.progress.record_step();
            let resolution = model.resolve(uuid);
            match (&resolution, model.nodes.get(uuid)) {
                (Resolution::Complete(resolved_node), _) => resolved.push(Arc::clone(resolved_node)),
                (Resolution::Incomplete(_), None) => {
                    let mut state = self.lock_state();
                    state.undecided_reasons.remove(&uuid);
                    state.hold_ends.remove(&NodeId(uuid));
                    deleted_nodes.push(uuid);
                }
                (Resolution::Incomplete(missing), Some(node)) => {
                    let (table, now) = (Some(&*self.table), self.registry.now());
                    self.table.set_state_inputs(uuid, state_inputs::state_inputs(model, table, (node, &resolution), now));
                    let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    if self.lock_state().note_undecided(uuid, &missing) {
                        let name = model.node_name(uuid);
                        warn!(node:% = uuid, name, missing; "a node cannot be resolved and keeps its state");
                    }
                }
            }
        }
        (resolved, deleted_nodes)
    }

    /// Returns the decision for each resolved node: which desired state it gets, and whether its new task set is
    /// released. A node whose desired state is too large has none. Also records when the hold of each node ends.
    fn decide(&self, model: &Model, resolved: &[Arc<ResolvedNode>], now: Timestamp) -> Vec<(Uuid, NodeDecision)> {
        let mut state = self.lock_state();
        let (mut decided, mut groups) = (Vec::new(), GroupInputCache::new(model.resolve_cache.texts()));
        for node in resolved {
            self.progress.record_step();
            let (candidate, context) = (candidate(model, node), decision::NodeResolution { model, resolved: node, now });
            // This includes a hold that withholds no task set, because the host shows the hold until it ends.
            match candidate.hold_ends_at(now) {
                Some(end) => drop(state.hold_ends.insert(candidate.node, end)),
                None => drop(state.hold_ends.remove(&candidate.node)),
            }
            let decision = match candidate.state(now) {
                ReleaseState::Due => context.release(&mut state.profiles, &mut groups),
                other @ (ReleaseState::Current | ReleaseState::Withheld(_)) => context.keep_task_set(&mut state.profiles, other),
            };
            decided.extend(state.accept_or_note_undecided(model, candidate.node, decision));
        }
        decided
    }

    /// Returns the decisions whose records fit into the quota of their cluster. Also returns the nodes whose record
    /// does not fit, each with the reason. Such a node gets a decision to keep its present task set. A node whose
    /// record did not fit before and fits now is left for the next pass.
    fn limit_to_quota(
        &self,
        model: &Model,
        (mut decided, nodes, deleted_nodes): (Vec<(Uuid, NodeDecision)>, &BTreeSet<Uuid>, &[Uuid]),
        resolved: &[Arc<ResolvedNode>],
        now: Timestamp,
    ) -> (Vec<(Uuid, NodeDecision)>, BTreeMap<Uuid, String>) {
        let existing = nodes.iter().copied().filter(|node| model.nodes.get(*node).is_some());
        // The quota withholds the task sets of these nodes, until a time that is not known (`Withheld(None)`).
        let refused_nodes = self.admit_records(model, &decision::record_sizes(model, existing, &decided), deleted_nodes);
        decided.retain(|(node, _)| !refused_nodes.contains(&NodeId(*node)));
        let mut state = self.lock_state();
        for node in resolved.iter().filter(|node| refused_nodes.contains(&node.id())) {
            let decision = decision::NodeResolution { model, resolved: node, now }
                .keep_task_set(&mut state.profiles, ReleaseState::Withheld(None));
            decided.extend(state.accept_or_note_undecided(model, node.id(), decision));
        }
        drop(state);
        let reason = |node: NodeId| {
            let cluster = model.fleet.cluster_of_node(node).and_then(|cluster| model.clusters.get(cluster.0));
            (node.0, decision::over_budget_reason(&cluster.map_or_else(String::new, |cluster| cluster.meta.name.to_string())))
        };
        (decided, refused_nodes.into_iter().map(reason).collect())
    }

    /// Counts the sizes of records in the quota of each cluster. Returns the nodes whose next record does not fit. A
    /// node whose record did not fit before and fits now is left for the next pass.
    fn admit_records(&self, model: &Model, sizes: &[RecordSize], deleted_nodes: &[Uuid]) -> BTreeSet<NodeId> {
        let deleted_nodes: Vec<NodeId> = deleted_nodes.iter().copied().map(NodeId).collect();
        let admitted = self.registry.record_quota().update_and_decide(sizes, &deleted_nodes, |id| model.count_nodes_in(id));
        let QuotaDecision { refused, retry } = admitted;
        self.lock_state().unpublished.extend(retry.into_iter().map(|node| node.0));
        refused
    }

    /// Updates the status table for the resolved nodes of a pass, and for the nodes with new results. `stored` is the
    /// model with what the pass has stored.
    fn update_status(
        &self,
        stored: &Model,
        resolved: &[Arc<ResolvedNode>],
        new_results: &BTreeMap<Uuid, BTreeSet<String>>,
        now: Timestamp,
    ) {
        for resolved_node in resolved {
            self.progress.record_step();
            let node = resolved_node.node().meta.uuid;
            let resolution = Resolution::Complete(Arc::clone(resolved_node));
            self.table.set_state_inputs(
                node,
                state_inputs::state_inputs(stored, Some(&*self.table), (resolved_node.node(), &resolution), now),
            );
        }
        for node in new_results.keys() {
            self.table.status().set_tasks(*node, state_inputs::task_summary(stored, *node));
            self.table.status().set_host_awaited(*node, state_inputs::is_host_awaited(stored, *node));
            let is_orphaned = !state_inputs::orphans(stored, *node).is_empty();
            self.table.status().set_reported(*node, state_inputs::stuck_reason(stored, *node).as_ref(), is_orphaned);
        }
    }

    /// Stores the newly released task sets, before anything is sent, and deletes the entries of deleted nodes. Returns
    /// the nodes whose release the store refuses because it exceeds a limit of the store, with the reason.
    ///
    /// # Errors
    /// An error of the store other than such a refusal. The same write may succeed later.
    async fn store_released(
        &self,
        decided: &[(Uuid, NodeDecision)],
        deleted_nodes: &[Uuid],
    ) -> Result<BTreeMap<Uuid, Refusal>, StoreError> {
        let store = self.registry.store();
        let mut refused_nodes = BTreeMap::new();
        let mut batches = VecDeque::from(decision::new_records(decided));
        while let Some(mut batch) = batches.pop_front() {
            // The cache already has the previous commit, so what that commit stored is not stored again.
            let transactions = decision::transactions_for(&self.cache.model(), &batch);
            let bytes_by_node = decision::bytes_by_node(&transactions);
            match self.commit_in_turn(transactions).await {
                Ok(()) => self.record_released_bytes(&bytes_by_node),
                // The refused release of one node must not hold back the others. So the batch is divided until only
                // refused nodes remain.
                Err(StoreError::Refused(_)) if batch.len() > 1 => {
                    batches.push_front(batch.split_off(batch.len() / 2));
                    batches.push_front(batch);
                }
                Err(StoreError::Refused(refusal)) => refused_nodes.extend(batch.first().map(|(node, _)| (*node, refusal))),
                Err(failure) => return Err(failure),
            }
        }
        let deletions = self.progress.wait_for_store(decision::deletion_transactions(&**store, deleted_nodes)).await?;
        self.commit_in_turn(deletions).await?;
        Ok(refused_nodes)
    }

    /// Commits transactions one after another. Waits after each until the cache has its changes.
    async fn commit_in_turn(&self, transactions: Vec<Transaction>) -> Result<(), StoreError> {
        for transaction in transactions {
            let revision = self.progress.wait_for_store(self.registry.store().commit(transaction)).await?;
            self.cache.wait_for(revision).await;
        }
        Ok(())
    }

    /// Charges the bytes that were stored for each node to its cluster, which limits how fast its principals may store.
    fn record_released_bytes(&self, stored: &[(Uuid, u64)]) {
        let model = self.cache.model();
        for (node, bytes) in stored {
            if let Some(cluster) = model.fleet.cluster_of_node(NodeId(*node)) {
                self.registry.record_released(cluster, *bytes);
            }
        }
    }

    /// Records the reason for each node whose release is not stored, which is then a finding of the node. Removes the
    /// reason if the release is stored now. Returns the decisions without those that the store refused. A refused node
    /// keeps its state, and is tried again when it changes and in each full resolve.
    fn drop_refused(
        &self,
        mut decided: Vec<(Uuid, NodeDecision)>,
        refused_nodes: &BTreeMap<Uuid, Refusal>,
        over_budget: &BTreeMap<Uuid, String>,
    ) -> Vec<(Uuid, NodeDecision)> {
        for (node, reason) in over_budget {
            self.report_refusal(*node, Some(reason));
        }
        decided.retain(|(node, _)| {
            let refusal = refused_nodes.get(node).map(decision::refused_reason);
            if !over_budget.contains_key(node) {
                self.report_refusal(*node, refusal.as_deref());
            }
            refusal.is_none()
        });
        decided
    }

    /// Records the reason why the release of a node is not stored, or with `None` that it is stored. Logs this if it
    /// changed.
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

    /// Stores the primaries that are not stored yet. Logs a failure.
    async fn choose_primaries(&self, fleet: &Fleet) {
        if let Err(failure) = self.progress.wait_for_store(primaries::choose_primaries(&self.registry, fleet)).await {
            warn!(error = failure.message; "a primary could not be stored");
        }
    }

    /// Waits for [`RETRY_DELAY`] if nodes are left for the next pass. Otherwise waits forever.
    async fn wait_to_retry(&self) {
        if self.lock_state().unpublished.is_empty() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }

    /// Waits until the next hold ends, or forever if no hold has a time at which it ends.
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

/// Returns the number of stored common values. Lists of values, their parts, and chunks of texts are each counted.
fn stored_value_count(model: &Model) -> usize {
    model.value_lists.len() + model.common_parts.len() + model.common_chunks.len()
}

/// Returns the nodes that the changes in `affected` concern: changed nodes, deleted nodes and, if all nodes count as
/// affected, every node. A node may be returned several times.
fn affected_nodes<'a>(model: &'a Model, affected: &'a AffectedNodes) -> impl Iterator<Item = Uuid> + 'a {
    let all_nodes = affected.all.then(|| model.nodes.iter().map(|node| node.meta.uuid));
    let changed_nodes = affected.dirty.nodes(&model.fleet).map(|id| id.0);
    changed_nodes.chain(affected.deleted.iter().copied()).chain(all_nodes.into_iter().flatten())
}
