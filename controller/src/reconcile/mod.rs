//! Reconcile: from what is stored to what each node is told. It takes no arguments: woken by the cache or a slow timer,
//! it takes what was touched, resolves the nodes that this reaches, leaves alone those whose answer is equal, and publishes
//! the rest as one batch. The same pass serves the first start, the restart and the repair.
//!
//! ```text
//!   cache ──changes──▶ fleet ──dirty──▶ resolve ──▶ known ─────────────────────────────▶ publish ──▶ parked check-ins
//!                                          │                                              ▲
//!                                          └──▶ task set ──plan──▶ released (stored) ───┘
//! ```
//!
//! *Known* goes out as it is. A *task set* goes out only when `stemma_core::rollout` plans its release, and is stored first: what
//! was released holds until another is, also over a restart, whatever has changed in the model meanwhile.

pub(crate) mod facts;
mod group;
mod primary;
pub(crate) mod released;
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
use stemma_core::resolve::{Answer, Resolution};
use stemma_core::rollout::{Admitted, RecordSize, Standing};
use stemma_wire::message;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::cache::released::candidate;
use crate::cache::{Cache, Model, Reach};
use crate::desired::encode::Profiles;
use crate::desired::size::TooLarge;
use crate::desired::{Batch, Change, DesiredTable};
use crate::metrics::Counters;
use crate::registry::Registry;
use crate::store::{Refusal, StoreError, Transaction};
use group::Groups;
use released::Decision;
use waves::{Touched, Waves};

/// A full resolve, which must find nothing to do.
const FULL: Duration = Duration::from_mins(10);
/// So many common values of released task sets may be stored that were not after the last sweep, or as many as there were then, before the next.
const NEW_VALUES: usize = 64;
/// After a store that did not take a write.
const AGAIN: Duration = Duration::from_secs(1);
/// How often the clock is compared with the next end of a hold: it may be set.
const CLOCK: Duration = Duration::from_secs(1);

/// Drives nodes to what the store says.
pub struct Reconciler {
    registry: Arc<Registry>,
    cache: Arc<Cache>,
    table: Arc<DesiredTable>,
    counters: Arc<Counters>,
    memory: Mutex<Memory>,
    waves: Mutex<Waves>,
    ask: mpsc::Sender<oneshot::Sender<usize>>,
    /// Held by [`Reconciler::run`] alone.
    asked: tokio::sync::Mutex<mpsc::Receiver<oneshot::Sender<usize>>>,
}

/// What passes leave for the next one.
#[derive(Default)]
struct Memory {
    profiles: Profiles,
    /// Nodes that a store which took no write left undone.
    left: BTreeSet<Uuid>,
    /// Nodes whose results came meanwhile, with the tasks.
    left_moved: BTreeMap<Uuid, BTreeSet<String>>,
    /// When the first hold of each node ends.
    hold_ends: BTreeMap<NodeId, Timestamp>,
    /// Why nodes stay as they are that cannot be told what they are to be.
    untold: HashMap<Uuid, String>,
    /// How many common values were stored after the last sweep.
    swept_values: usize,
}

/// The nodes for which a pass changed something.
#[derive(Default)]
struct Changed {
    /// Those that are to be something else.
    desired: Vec<Uuid>,
    /// Those for which other barriers are open.
    barriers: Vec<Uuid>,
}

impl Memory {
    /// Notes why a node stays as it is; gives whether that is news.
    fn note_untold(&mut self, node: Uuid, why: &str) -> bool {
        let before = self.untold.insert(node, why.to_owned());
        before.is_none_or(|before| before != why)
    }

    /// What a node is told; notes it where that is too large for it, and the node stays as it is.
    fn told(&mut self, model: &Model, node: NodeId, decision: Result<Decision, TooLarge>) -> Option<(Uuid, Decision)> {
        match &decision {
            Ok(_) => drop(self.untold.remove(&node.0)),
            Err(error) if self.note_untold(node.0, &error.to_string()) => {
                warn!(node:%, name = model.node_name(node.0), error:%; "a node is not told and stays as it is");
            }
            Err(_) => {}
        }
        Some((node.0, decision.ok()?))
    }
}

impl Reconciler {
    /// A reconciler over the registry's cache; nothing is resolved before [`Reconciler::run`].
    pub fn new(registry: Arc<Registry>, table: Arc<DesiredTable>, counters: Arc<Counters>) -> Self {
        let cache = Arc::clone(registry.cache());
        let (ask, asked) = mpsc::channel(1);
        let (memory, waves) = (Mutex::default(), Mutex::default());
        Self { registry, cache, table, counters, memory, waves, ask, asked: tokio::sync::Mutex::new(asked) }
    }

    /// Has the full resolve that runs every ten minutes run now, after the first pass of [`Reconciler::run`]. Returns the number of nodes
    /// that earlier passes had missed; `None`: it was stopped meanwhile.
    pub async fn check_now(&self) -> Option<usize> {
        let (answer, found) = oneshot::channel();
        self.ask.send(answer).await.ok()?;
        found.await.ok()
    }

    /// The barriers that are shut for a node, and for whom they wait, as of a model. If the last pass was for this
    /// model, its wave has the answer. Otherwise, and while a pass holds the lock, the wave is computed from the model.
    pub(crate) fn shut(&self, model: &Model, node: NodeId) -> Vec<waves::Shut> {
        self.shut_in_last_pass(model, node)
            .unwrap_or_else(|| waves::shut(waves::Results { table: &self.table, model }, node))
    }

    /// The same, as the wave of the last pass has it; `None`: that pass was for another model, or one holds the lock.
    pub(crate) fn shut_in_last_pass(&self, model: &Model, node: NodeId) -> Option<Vec<waves::Shut>> {
        self.waves.try_lock().ok().and_then(|mut waves| waves.shut(model, node))
    }

    /// Resolves everything once, then what is touched, until it is dropped.
    pub async fn run(&self) -> Infallible {
        let mut asked = self.asked.lock().await;
        self.start().await;
        let mut full = tokio::time::interval(FULL);
        full.tick().await;
        loop {
            tokio::select! {
                () = self.cache.changed() => self.pass().await,
                () = self.table.status().turned() => self.pass().await,
                _ = full.tick() => {
                    self.full().await;
                }
                Some(answer) = asked.recv() => {
                    let _nobody_waits = answer.send(self.full().await);
                }
                () = self.again() => self.pass().await,
                () = self.hold_end() => self.pass().await,
            }
        }
    }

    /// The first pass: everything that is stored.
    async fn start(&self) {
        let (model, _) = self.cache.take_changes();
        let nodes = model.nodes.iter().map(|node| node.meta.uuid).collect();
        let (count, revision) = (model.nodes.len(), model.revision);
        self.publish(&model, nodes, BTreeMap::new(), self.registry.now()).await;
        info!(nodes = count, revision = revision.get(); "fleet resolved");
    }

    /// What was touched since the last pass, or whose hold is over.
    async fn pass(&self) {
        let (model, reach) = self.cache.take_changes();
        let now = self.registry.now();
        let mut dirty: BTreeSet<Uuid> = std::mem::take(&mut self.memory().left);
        dirty.extend(self.take_ended_holds(now));
        dirty.extend(touched(&model, &reach));
        if reach.everything {
            self.waves().forget();
        }
        let mut moved = std::mem::take(&mut self.memory().left_moved);
        for (node, tasks) in reach.moved {
            moved.entry(node).or_default().extend(tasks);
        }
        self.publish(&model, dirty, moved, now).await;
        let (values, swept) = (stored_values(&self.cache.model()), self.memory().swept_values);
        if values >= swept + swept.max(NEW_VALUES) {
            self.sweep().await;
        }
    }

    /// Resolves everything. What differs then was missed by an earlier pass, and is counted. Returns the number of such nodes.
    async fn full(&self) -> usize {
        let now = self.registry.now();
        self.pass().await;
        // A result that never reached a wave is found here.
        self.waves().forget();
        // Nodes touched since that pass are expected, and not counted. `now` was read before the pass, so a hold that ended since is not
        // counted either.
        let (model, reach) = self.cache.take_changes();
        let mut expected: BTreeSet<Uuid> = touched(&model, &reach).chain(self.memory().left.iter().copied()).collect();
        let mut in_motion = self.touched_clusters(&model, &reach);
        // What the store refused is tried again here.
        let refused = self.table.status().nodes_with_refused_release();
        in_motion.extend(self.waves().clusters_of(&model.fleet, refused.iter().copied()));
        expected.extend(refused);
        let nodes = model.nodes.iter().map(|node| node.meta.uuid).chain(reach.gone.iter().copied()).collect();
        let changed = self.publish(&model, nodes, reach.moved, now).await;
        // The next pass works on what came meanwhile, but this one may have read results of it.
        let (later, reach) = self.cache.look_at_changes();
        in_motion.extend(self.touched_clusters(&later, &reach));
        // Barriers follow from what is stored and published, and not from the time. A node that was touched may open or shut those of every
        // node of its cluster, so in such a cluster none is counted.
        let is_expected = |node: &Uuid| !self.waves().clusters_of(&model.fleet, [*node]).is_disjoint(&in_motion);
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

    /// The clusters of nodes that a change touched, or that have new results; also of those that an earlier pass left.
    fn touched_clusters(&self, model: &Model, reach: &Reach) -> BTreeSet<ClusterId> {
        let mut nodes: BTreeSet<Uuid> = touched(model, reach).chain(reach.moved.keys().copied()).collect();
        let memory = self.memory();
        nodes.extend(memory.left.iter().chain(memory.left_moved.keys()));
        drop(memory);
        self.waves().clusters_of(&model.fleet, nodes)
    }

    /// Takes away stored profiles and common values that no released task set names.
    async fn sweep(&self) {
        for transaction in released::sweep(&self.cache.model()) {
            match self.registry.store().commit(transaction).await {
                // The next pass must not count on one that is gone.
                Ok(revision) => self.cache.reached(revision).await,
                Err(failure) => {
                    warn!(error:err = failure; "profiles and values that nobody has any more could not be taken away");
                    break;
                }
            }
        }
        self.memory().swept_values = stored_values(&self.cache.model());
    }

    /// The nodes whose hold is over. Each is named once: its next decision says whether there is another end to wait for.
    fn take_ended_holds(&self, now: Timestamp) -> Vec<Uuid> {
        let mut memory = self.memory();
        let ended: Vec<NodeId> =
            memory.hold_ends.iter().filter(|(_, end)| **end <= now).map(|(node, _)| *node).collect();
        for node in &ended {
            memory.hold_ends.remove(node);
        }
        ended.into_iter().map(|node| node.0).collect()
    }

    /// Resolves nodes, stores what is released, and publishes. Returns the nodes for which that changed something.
    async fn publish(
        &self,
        model: &Model,
        nodes: BTreeSet<Uuid>,
        moved: BTreeMap<Uuid, BTreeSet<String>>,
        now: Timestamp,
    ) -> Changed {
        let (revision, fleet) = (model.revision, &model.fleet);
        let (answers, gone) = self.resolve(model, &nodes);
        let decided = self.decide(model, &answers, now);
        self.counters.resolved.inc_by(decided.len() as u64);
        let (decided, over) = self.keep_within_room(model, (decided, &nodes, &gone), &answers, now);
        let refused = match self.store_released(&decided, &gone).await {
            Ok(refused) => refused,
            Err(failure) => {
                error!(error:err = failure; "what is released could not be stored; nothing is sent");
                let mut memory = self.memory();
                memory.left.extend(nodes);
                for (node, tasks) in moved {
                    memory.left_moved.entry(node).or_default().extend(tasks);
                }
                drop(memory);
                return Changed::default();
            }
        };
        // What the store does not take leaves its room to others.
        self.admit(model, &released::sizes(model, refused.keys().copied(), &[]), &[]);
        let decided = self.without_refused(decided, &refused, &over);
        let dropped = decided.iter().filter(|(uuid, decision)| self.waves().set_dropped(*uuid, &decision.dropped));
        let dropped = dropped.map(|(uuid, _)| *uuid).collect();
        let changes = decided.into_iter().map(|(uuid, decision)| (uuid, Change::Release(Box::new(decision.released))));
        let changes = changes.chain(gone.into_iter().map(|uuid| (uuid, Change::Gone))).collect();
        let desired = self.table.publish(Batch { revision: message::Revision(revision.get()), changes });
        if let Some(line) = model.epoch_line.as_ref().filter(|line| self.table.change_epoch(&line.record)) {
            info!(epoch:% = line.record.now, revision = line.record.at; "another epoch of the store began; hosts are led there");
        }
        // With what was just stored.
        let stored = self.cache.model();
        self.update_status(&stored, &answers, &moved, now);
        // Also a node that is not told anything new may have come to a wave, or left one.
        let turned = self.table.status().take_turned();
        let touched = Touched { nodes: &nodes, turned: &turned, results: &moved, dropped: &dropped };
        let results = waves::Results { table: &self.table, model: &stored };
        let (barriers, blocked) = self.waves().update(fleet, results, &touched, message::Revision(revision.get()));
        self.table.status().set_blocked(blocked);
        self.table.status().reach(revision);
        self.choose_primaries(fleet).await;
        Changed { desired, barriers }
    }

    /// What nodes are to be, and which of them are gone. One that cannot be resolved stays as it is.
    fn resolve(&self, model: &Model, nodes: &BTreeSet<Uuid>) -> (Vec<Arc<Answer>>, Vec<Uuid>) {
        let (mut answers, mut gone) = (Vec::new(), Vec::new());
        for &uuid in nodes {
            let resolution = model.resolve(uuid);
            match (&resolution, model.nodes.get(uuid)) {
                (Resolution::Complete(answer), _) => answers.push(Arc::clone(answer)),
                (Resolution::Incomplete(_), None) => {
                    let mut memory = self.memory();
                    memory.untold.remove(&uuid);
                    memory.hold_ends.remove(&NodeId(uuid));
                    gone.push(uuid);
                }
                (Resolution::Incomplete(missing), Some(node)) => {
                    let (table, now) = (Some(&*self.table), self.registry.now());
                    self.table.set_facts(uuid, facts::facts(model, table, (node, &resolution), now));
                    let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    if self.memory().note_untold(uuid, &missing) {
                        let name = model.node_name(uuid);
                        warn!(node:% = uuid, name, missing; "a node cannot be resolved and stays as it is");
                    }
                }
            }
        }
        (answers, gone)
    }

    /// What each node is told.
    fn decide(&self, model: &Model, answers: &[Arc<Answer>], now: Timestamp) -> Vec<(Uuid, Decision)> {
        let mut memory = self.memory();
        let (mut decided, mut groups) = (Vec::new(), Groups::new(model.memo.texts()));
        for answer in answers {
            let (candidate, resolved) = (candidate(model, answer), released::Resolved { model, answer, now });
            // Also one that keeps no task set from its node: a hold that is over is no longer said.
            match candidate.hold_end(now) {
                Some(end) => drop(memory.hold_ends.insert(candidate.node, end)),
                None => drop(memory.hold_ends.remove(&candidate.node)),
            }
            let decision = match candidate.standing(now) {
                Standing::Due => resolved.release(&mut memory.profiles, &mut groups),
                standing @ (Standing::Current | Standing::Kept(_)) => resolved.keep(&mut memory.profiles, standing),
            };
            decided.extend(memory.told(model, candidate.node, decision));
        }
        decided
    }

    /// The decisions without those for which a cluster has no room, and the nodes for which there is none: these keep what they have. Nodes that were
    /// refused before and for which there is room now are left for the next pass.
    fn keep_within_room(
        &self,
        model: &Model,
        (mut decided, nodes, gone): (Vec<(Uuid, Decision)>, &BTreeSet<Uuid>, &[Uuid]),
        answers: &[Arc<Answer>],
        now: Timestamp,
    ) -> (Vec<(Uuid, Decision)>, BTreeMap<Uuid, String>) {
        let there = nodes.iter().copied().filter(|node| model.nodes.get(*node).is_some());
        let refused = self.admit(model, &released::sizes(model, there, &decided), gone);
        decided.retain(|(node, _)| !refused.contains(&NodeId(*node)));
        let mut memory = self.memory();
        for answer in answers.iter().filter(|answer| refused.contains(&answer.id())) {
            let kept = released::Resolved { model, answer, now }.keep(&mut memory.profiles, Standing::Kept(None));
            decided.extend(memory.told(model, answer.id(), kept));
        }
        drop(memory);
        let reason = |node: NodeId| {
            let cluster = model.fleet.cluster_of_node(node).and_then(|cluster| model.clusters.get(cluster.0));
            (node.0, released::beyond_budget(&cluster.map_or_else(String::new, |one| one.meta.name.to_string())))
        };
        (decided, refused.into_iter().map(reason).collect())
    }

    /// Takes in what records take, and returns the nodes whose record is not to be stored for want of room.
    fn admit(&self, model: &Model, sizes: &[RecordSize], gone: &[Uuid]) -> BTreeSet<NodeId> {
        let gone: Vec<NodeId> = gone.iter().copied().map(NodeId).collect();
        let admitted = self.registry.room().admit(sizes, &gone, |cluster| model.count_in(cluster));
        let Admitted { refused, again } = admitted;
        self.memory().left.extend(again.into_iter().map(|node| node.0));
        refused
    }

    /// Notes where nodes stand by what a pass has found.
    fn update_status(
        &self,
        stored: &Model,
        answers: &[Arc<Answer>],
        moved: &BTreeMap<Uuid, BTreeSet<String>>,
        now: Timestamp,
    ) {
        for answer in answers {
            let node = answer.node().meta.uuid;
            let resolution = Resolution::Complete(Arc::clone(answer));
            self.table.set_facts(node, facts::facts(stored, Some(&*self.table), (answer.node(), &resolution), now));
        }
        for node in moved.keys() {
            self.table.status().set_tasks(*node, facts::tasks(stored, *node));
            self.table.status().set_host_awaited(*node, facts::is_host_awaited(stored, *node));
            let is_orphaned = !facts::orphans_of(stored, *node).is_empty();
            self.table.status().set_reported(*node, facts::stuck_by(stored, *node).as_ref(), is_orphaned);
        }
    }

    /// Stores what was newly released, before anybody is told. Returns the nodes whose release the store can never take, with the reason.
    ///
    /// # Errors
    /// What the store says of a write that it may take later.
    async fn store_released(
        &self,
        decided: &[(Uuid, Decision)],
        gone: &[Uuid],
    ) -> Result<BTreeMap<Uuid, Refusal>, StoreError> {
        let store = self.registry.store();
        let mut refused = BTreeMap::new();
        let mut parts = VecDeque::from(released::new_records(decided));
        while let Some(mut part) = parts.pop_front() {
            // Of the model as the commit before left it.
            let transactions = released::put(&self.cache.model(), &part);
            let stored = released::bytes_of(&transactions);
            match self.commit_in_turn(transactions).await {
                Ok(()) => self.note_released(&stored),
                // One node's release must not hold back those of the others.
                Err(StoreError::Refused(_)) if part.len() > 1 => {
                    parts.push_front(part.split_off(part.len() / 2));
                    parts.push_front(part);
                }
                Err(StoreError::Refused(refusal)) => refused.extend(part.first().map(|(node, _)| (*node, refusal))),
                Err(failure) => return Err(failure),
            }
        }
        for transaction in released::forget(&**store, gone).await? {
            self.cache.reached(store.commit(transaction).await?).await;
        }
        Ok(refused)
    }

    /// Makes commits, each after the one before it.
    async fn commit_in_turn(&self, transactions: Vec<Transaction>) -> Result<(), StoreError> {
        for transaction in transactions {
            self.cache.reached(self.registry.store().commit(transaction).await?).await;
        }
        Ok(())
    }

    /// Notes what was stored for nodes, each of which is of a cluster that pays for it.
    fn note_released(&self, stored: &[(Uuid, u64)]) {
        let model = self.cache.model();
        for (node, bytes) in stored {
            if let Some(cluster) = model.fleet.cluster_of_node(NodeId(*node)) {
                self.registry.note_released(cluster, *bytes);
            }
        }
    }

    /// The decisions whose release is stored. Each node whose release was refused stays as it is and gets a finding; it is tried again when
    /// it changes, and in each full resolve.
    fn without_refused(
        &self,
        mut decided: Vec<(Uuid, Decision)>,
        refused: &BTreeMap<Uuid, Refusal>,
        over: &BTreeMap<Uuid, String>,
    ) -> Vec<(Uuid, Decision)> {
        for (node, reason) in over {
            self.note_refused(*node, Some(reason));
        }
        decided.retain(|(node, _)| {
            let refusal = refused.get(node).map(released::refused_by_store);
            if !over.contains_key(node) {
                self.note_refused(*node, refusal.as_deref());
            }
            refusal.is_none()
        });
        decided
    }

    /// Notes why what is released to a node is not stored; `None`: it is.
    fn note_refused(&self, node: Uuid, refusal: Option<&str>) {
        if self.table.status().note_release(node, refusal) {
            let model = self.cache.model();
            let name = model.node_name(node);
            match refusal {
                Some(refusal) => {
                    error!(node:%, name, refusal; "what is released to a node is not stored; it stays as it is");
                }
                None => info!(node:%, name; "what is released to a node is stored again"),
            }
        }
    }

    async fn choose_primaries(&self, fleet: &Fleet) {
        if let Err(failure) = primary::choose(&self.registry, fleet).await {
            warn!(error = failure.message; "a primary could not be stored");
        }
    }

    async fn again(&self) {
        if self.memory().left.is_empty() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(AGAIN).await;
    }

    /// Waits until a hold is over.
    async fn hold_end(&self) {
        loop {
            let Some(end) = self.memory().hold_ends.values().min().copied() else {
                return std::future::pending().await;
            };
            let left = end.0.saturating_sub(self.registry.now().0);
            if left == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(left).min(CLOCK)).await;
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waves(&self) -> MutexGuard<'_, Waves> {
        self.waves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many common values are stored: their lists, the parts of these, and the chunks of texts.
fn stored_values(model: &Model) -> usize {
    model.common.len() + model.common_parts.len() + model.common_chunks.len()
}

/// The nodes that a change touched.
fn touched<'a>(model: &'a Model, reach: &'a Reach) -> impl Iterator<Item = Uuid> + 'a {
    let everyone = reach.everything.then(|| model.nodes.iter().map(|node| node.meta.uuid));
    let dirty = reach.dirty.nodes(&model.fleet).map(|id| id.0);
    dirty.chain(reach.gone.iter().copied()).chain(everyone.into_iter().flatten())
}
