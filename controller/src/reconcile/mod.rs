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
pub(crate) mod waves;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use log::{error, info, warn};
use stemma_core::fleet::Fleet;
use stemma_core::object::{ClusterId, NodeId, Timestamp};
use stemma_core::resolve::{Answer, Resolution};
use stemma_core::rollout::{Action, Standing, plan_releases};
use stemma_wire::message;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::cache::{Cache, Model, Reach};
use crate::desired::encode::Profiles;
use crate::desired::size::TooLarge;
use crate::desired::{Batch, Change, DesiredTable};
use crate::metrics::Counters;
use crate::registry::Registry;
use crate::registry::released::most_of_records;
use crate::store::{Refusal, StoreError, Transaction};
use group::Groups;
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
    /// When the holds end that keep a task set from a node.
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
        let kept = self.waves.try_lock().ok().and_then(|waves| waves.shut(model, node));
        kept.unwrap_or_else(|| waves::shut(waves::Results { table: &self.table, model }, node))
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
        let (decided, over) = self.within_budgets(model, (decided, &gone), &answers, now);
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
        let decided = self.without_refused(decided, &refused, &over);
        let dropped = decided.iter().filter(|(uuid, decision)| self.waves().set_dropped(*uuid, &decision.dropped));
        let dropped = dropped.map(|(uuid, _)| *uuid).collect();
        let changes = decided.into_iter().map(|(uuid, decision)| (uuid, Change::Release(Box::new(decision.released))));
        let changes = changes.chain(gone.into_iter().map(|uuid| (uuid, Change::Gone))).collect();
        let desired = self.table.publish(Batch { revision: message::Revision(revision.get()), changes });
        if let Some(line) = model.epoch_line.as_ref().filter(|line| self.table.change_epoch(&line.record)) {
            info!(epoch:% = line.record.now, revision = line.record.at; "another epoch of the store began; hosts are led there");
        }
        // Also a node that is not told anything new may have come to a wave, or left one.
        let touched = Touched { nodes: &nodes, results: &moved, dropped: &dropped };
        // With what was just stored.
        let stored = self.cache.model();
        self.update_status(&stored, &answers, &moved, now);
        self.table.status().reach(revision);
        let results = waves::Results { table: &self.table, model: &stored };
        let barriers = self.waves().update(fleet, results, &touched, message::Revision(revision.get()));
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
                    self.table.set_facts(uuid, facts::facts(model, node, &resolution, self.registry.now()));
                    let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    if self.memory().note_untold(uuid, &missing) {
                        warn!(node:% = uuid, missing; "a node cannot be resolved and stays as it is");
                    }
                }
            }
        }
        (answers, gone)
    }

    /// What each node is told, by the plan for all of them.
    fn decide(&self, model: &Model, answers: &[Arc<Answer>], now: Timestamp) -> Vec<(Uuid, released::Decision)> {
        let mut known = released::Untranslated::new();
        let candidates: Vec<_> = answers.iter().map(|one| released::candidate(model, one, &mut known)).collect();
        let plan = plan_releases(&candidates, now);
        let mut memory = self.memory();
        let mut is_released = BTreeSet::new();
        for candidate in &candidates {
            memory.hold_ends.remove(&candidate.node);
        }
        for action in plan.actions {
            match action {
                Action::Release(node) => drop(is_released.insert(node)),
                Action::LookAgain(node, end) => drop(memory.hold_ends.insert(node, end)),
            }
        }
        let (mut decided, mut groups) = (Vec::new(), Groups::new(model.memo.texts()));
        for (answer, candidate) in answers.iter().zip(&candidates) {
            let resolved = released::Resolved { model, answer, now };
            let decision: Result<_, TooLarge> = if is_released.contains(&candidate.node) {
                resolved.release(&mut memory.profiles, &mut groups)
            } else {
                resolved.keep(&mut memory.profiles, candidate.standing(now))
            };
            match decision {
                Ok(decision) => {
                    memory.untold.remove(&candidate.node.0);
                    decided.push((candidate.node.0, decision));
                }
                Err(error) if memory.note_untold(candidate.node.0, &error.to_string()) => {
                    warn!(node:% = candidate.node, error:% = error; "a node is not told and stays as it is");
                }
                Err(_) => {}
            }
        }
        decided
    }

    /// The decisions by which no cluster goes beyond what its nodes' records may take, and the nodes that keep what they have for that, each with the
    /// reason. Where there is room again, those are left for the next pass that were refused before.
    fn within_budgets(
        &self,
        model: &Model,
        (mut decided, gone): (Vec<(Uuid, released::Decision)>, &[Uuid]),
        answers: &[Arc<Answer>],
        now: Timestamp,
    ) -> (Vec<(Uuid, released::Decision)>, BTreeMap<Uuid, String>) {
        let (held, mut over) = (self.registry.released(), BTreeMap::new());
        let cluster_of = |node: Uuid| model.fleet.cluster_of_node(NodeId(node));
        let nodes = decided.iter().map(|(node, _)| *node).chain(gone.iter().copied());
        let clusters: BTreeSet<ClusterId> =
            nodes.flat_map(|node| [held.cluster_of(node), cluster_of(node)]).flatten().collect();
        let before: Vec<(ClusterId, u64)> = clusters.into_iter().map(|one| (one, held.of_cluster(one))).collect();
        for node in gone {
            held.set(*node, None);
        }
        let mut grow = Vec::new();
        for (node, decision) in &decided {
            let stored = model.released.get(node).map_or(0, |record| record.stored_bytes());
            let Some(cluster) = cluster_of(*node) else {
                held.set(*node, None);
                continue;
            };
            match decision.record_bytes() {
                // Those that take no more than before make room for the others.
                Some(next) if next > held.of_node_in(cluster, *node) => grow.push((*node, cluster, stored, next)),
                next => held.set(*node, Some((cluster, next.unwrap_or(stored)))),
            }
        }
        for (node, cluster, stored, next) in grow {
            held.set(node, Some((cluster, next)));
            let (together, most) = (held.of_cluster(cluster), most_of_records(model.fleet.count_of(cluster)));
            if together > most {
                held.set(node, Some((cluster, stored)));
                let name = model.clusters.get(cluster.0).map_or_else(String::new, |one| one.meta.name.to_string());
                over.insert(node, released::beyond_budget(&name, together, most));
            }
        }
        let answers = answers.iter().map(|answer| (answer.id().0, answer));
        let answers: BTreeMap<Uuid, &Arc<Answer>> = answers.filter(|(node, _)| over.contains_key(node)).collect();
        for (node, decision) in &mut decided {
            let Some(answer) = answers.get(node) else { continue };
            let resolved = released::Resolved { model, answer, now };
            if let Ok(kept) = resolved.keep(&mut self.memory().profiles, Standing::Kept(None)) {
                *decision = kept;
            }
        }
        let has_room: BTreeSet<ClusterId> =
            before.into_iter().filter(|(one, sum)| held.of_cluster(*one) < *sum).map(|(one, _)| one).collect();
        if !has_room.is_empty() {
            let refused = self.table.status().nodes_with_refused_release().into_iter();
            let waits = refused.filter(|node| cluster_of(*node).is_some_and(|one| has_room.contains(&one)));
            self.memory().left.extend(waits);
        }
        (decided, over)
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
            self.table.set_facts(node, facts::facts(stored, answer.node(), &resolution, now));
        }
        for node in moved.keys() {
            self.table.status().set_tasks(*node, facts::tasks(stored, *node));
            self.table.status().set_host_awaited(*node, facts::is_host_awaited(stored, *node));
        }
    }

    /// Stores what was newly released, before anybody is told. Returns the nodes whose release the store can never take, with the reason.
    ///
    /// # Errors
    /// What the store says of a write that it may take later.
    async fn store_released(
        &self,
        decided: &[(Uuid, released::Decision)],
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
        mut decided: Vec<(Uuid, released::Decision)>,
        refused: &BTreeMap<Uuid, Refusal>,
        over: &BTreeMap<Uuid, String>,
    ) -> Vec<(Uuid, released::Decision)> {
        decided.retain(|(node, _)| {
            let refusal = refused.get(node).map(released::refused_by_store);
            self.note_refused(*node, refusal.as_ref().or_else(|| over.get(node)).map(String::as_str));
            refusal.is_none()
        });
        decided
    }

    /// Notes why what is released to a node is not stored; `None`: it is.
    fn note_refused(&self, node: Uuid, refusal: Option<&str>) {
        if self.table.status().note_release(node, refusal) {
            match refusal {
                Some(refusal) => {
                    error!(node:%, refusal; "what is released to a node is not stored; it stays as it is");
                }
                None => info!(node:%; "what is released to a node is stored again"),
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

    /// Waits until a hold is over that keeps a task set from a node.
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde::Serialize;
    use serde_json::json;
    use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
    use stemma_core::object::{ClusterSpec, GroupId, Meta, NodeGroupSpec, NodeSpec, Object, ReleaseSpec, Spec};
    use stemma_wire::clock::FixedClock;
    use stemma_wire::message::observed::{Outcome, TaskResult};

    use super::*;
    use crate::records::reported::{ResultsRecord, StoredResult};
    use crate::records::{codec, key};
    use crate::store::faulty::{Fault, FaultyStore};
    use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision, Store, Transaction};

    const CLUSTER: Uuid = Uuid::from_u128(1);
    const FIRST: Uuid = Uuid::from_u128(2);
    const SECOND: Uuid = Uuid::from_u128(3);
    const NODE: Uuid = Uuid::from_u128(4);
    const WAITS: Uuid = Uuid::from_u128(5);
    const STAYS: Uuid = Uuid::from_u128(7);
    const OTHER_CLUSTER: Uuid = Uuid::from_u128(8);
    const FAR: Uuid = Uuid::from_u128(9);

    /// A reconciler over a store of its own, that nobody runs.
    struct Small {
        _directory: tempfile::TempDir,
        store: Arc<FaultyStore>,
        cache: Arc<Cache>,
        counters: Arc<Counters>,
        reconciler: Arc<Reconciler>,
    }

    impl Small {
        async fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
            let path = directory.path().join("store.redb");
            let inner = RedbStore::create(&path, &create, RedbOptions::default()).unwrap();
            let store = Arc::new(FaultyStore::new(Arc::new(inner)));
            let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
            let (following, followed) = (Arc::clone(&cache), Arc::clone(&store));
            tokio::spawn(async move { following.follow(followed.as_ref()).await });
            let registry =
                Registry::new(Arc::clone(&store) as Arc<dyn Store>, Arc::clone(&cache), Arc::new(FixedClock(3600)));
            let (counters, table) = (Arc::new(Counters::default()), crate::desired::tests::table());
            let reconciler = Arc::new(Reconciler::new(Arc::new(registry), table, Arc::clone(&counters)));
            Self { _directory: directory, store, cache, counters, reconciler }
        }

        async fn put<S: Spec>(&self, id: Uuid, name: S::Name, spec: S)
        where
            Object<S>: Serialize,
        {
            let object = Object { meta: Meta::new(id, name, Timestamp(0)), spec };
            let put = Transaction::new().put(key::object(S::KIND, id), codec::encode(&object));
            self.cache.reached(self.store.commit(put).await.unwrap()).await;
        }

        async fn put_node(&self, id: Uuid, group: Option<Uuid>) {
            let name = NodeName::new(&format!("n{}", id.as_u128())).ok();
            self.put(id, name, NodeSpec { nodegroup: group.map(GroupId), ..NodeSpec::default() }).await;
        }

        /// Puts a cluster whose second group waits for what the first one runs, with two nodes in the first and one in the second; and
        /// another cluster, whose group is as the first one and has no node. The first group keeps its profile when one of its nodes goes,
        /// so that the wave is not built again for that.
        async fn put_waiting(&self) {
            let task = |id: &str, more: serde_json::Value| {
                let mut task = json!({"id": id, "type": "shell", "tags": [id], "parameters": {"script": "true"}});
                task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                task
            };
            let release: ReleaseSpec = serde_json::from_value(json!({
                "roles": {"a": {}, "b": {}}, "tags": {"a": {}, "b": {}},
                "tasks": [task("a", json!({})), task("b", json!({"cross_depends": [{"name": "a", "tags": ["a"]}]}))],
            }))
            .unwrap();
            let (own, name) = (ReleaseRef::new("site").unwrap(), |text| ObjectName::new(text).unwrap());
            self.put(Uuid::from_u128(10), own.clone(), release).await;
            for (cluster, text) in [(CLUSTER, "c"), (OTHER_CLUSTER, "d")] {
                self.put(cluster, name(text), ClusterSpec { release: Some(own.clone()), ..ClusterSpec::default() })
                    .await;
            }
            for (group, cluster, role, nodes) in [
                (FIRST, CLUSTER, "a", &[NODE, STAYS][..]),
                (SECOND, CLUSTER, "b", &[WAITS]),
                (FAR, OTHER_CLUSTER, "a", &[]),
            ] {
                let roles = vec![Name::new(role).unwrap()];
                let spec = NodeGroupSpec { roles, ..NodeGroupSpec::new(ClusterId(cluster)) };
                self.put(group, name(role), spec).await;
                for node in nodes {
                    self.put_node(*node, Some(group)).await;
                }
            }
        }

        /// One in which the second group's node waits, and nothing is left to do.
        async fn waiting() -> Self {
            let small = Self::new().await;
            small.put_waiting().await;
            small.reconciler.start().await;
            small.reconciler.pass().await;
            small
        }

        /// Puts that a node has succeeded in task a of what it is to have.
        async fn put_result(&self, node: Uuid) {
            let (_, task_set) = self.reconciler.table.digests(node).unwrap();
            let result = TaskResult {
                sequence: 1,
                task_set,
                task: "a".to_owned(),
                outcome: Outcome::Changed,
                message: String::new(),
                output: String::new(),
                diff: String::new(),
                duration_ms: 1,
            };
            let tasks = BTreeMap::from([("a".to_owned(), StoredResult { at: Timestamp(0), result, is_cut: false })]);
            let record = ResultsRecord { acknowledged: 1, tasks, left_out: 0 };
            let put = Transaction::new().put(key::of_node(key::RESULTS, node), codec::encode(&record));
            self.cache.reached(self.store.commit(put).await.unwrap()).await;
        }

        /// The nodes for which the second group's node waits, by the last pass.
        fn waited_for(&self) -> Vec<NodeId> {
            let shut = self.reconciler.waves().shut(&self.cache.model(), NodeId(WAITS));
            shut.expect("the last pass was for this model").into_iter().flat_map(|shut| shut.nodes).collect()
        }
    }

    #[tokio::test]
    async fn a_node_that_moved_in_a_pass_that_could_not_store_leaves_no_barrier_shut() {
        let nowhere = Uuid::from_u128(99);
        for to in [None, Some(SECOND), Some(FAR), Some(nowhere)] {
            let small = Small::waiting().await;
            assert_eq!(small.waited_for(), [NodeId(NODE), NodeId(STAYS)]);
            small.put_node(NODE, to).await;
            // One that is new has something to store.
            small.put_node(Uuid::from_u128(6), Some(SECOND)).await;
            small.store.plan_commits([Some(Fault::CommitLost)]);
            small.reconciler.pass().await;
            assert!(small.reconciler.memory().left.contains(&NODE), "it is left to do");
            small.reconciler.pass().await;
            small.reconciler.pass().await;
            assert_eq!(small.waited_for(), [NodeId(STAYS)], "it moved to {to:?}");
        }
    }

    #[tokio::test]
    async fn results_that_come_in_a_pass_that_cannot_store_open_a_barrier_in_the_next_one() {
        let small = Small::waiting().await;
        small.put_result(NODE).await;
        small.put_result(STAYS).await;
        // A node of another cluster has something to store.
        small.put_node(Uuid::from_u128(6), Some(FAR)).await;
        small.store.plan_commits([Some(Fault::CommitLost)]);
        small.reconciler.pass().await;
        assert!(small.reconciler.memory().left_moved.contains_key(&NODE), "they are left to do");
        small.reconciler.pass().await;
        small.reconciler.pass().await;
        assert_eq!(small.waited_for(), []);
    }

    #[tokio::test]
    async fn a_result_opens_a_barrier_in_the_pass_that_hears_of_it_and_else_in_a_full_one_that_counts_it() {
        for (is_heard_of, found) in [(true, 0), (false, 1)] {
            let small = Small::waiting().await;
            let missed = || small.counters.missed.get();
            small.put_result(NODE).await;
            small.put_result(STAYS).await;
            if !is_heard_of {
                // Somebody else is told, so that no pass is.
                drop(small.cache.take_changes());
            }
            assert_eq!((small.reconciler.full().await, missed()), (found, found as u64), "heard of: {is_heard_of}");
            assert_eq!(small.waited_for(), []);
            assert_eq!((small.reconciler.full().await, missed()), (0, found as u64), "it is mended");
        }
    }

    #[tokio::test]
    async fn results_that_came_in_a_gap_of_the_watch_open_a_barrier_in_the_pass_behind_it() {
        let small = Small::waiting().await;
        small.put_result(NODE).await;
        small.put_result(STAYS).await;
        // Nobody is told which nodes had results: all is read again.
        drop(small.cache.take_changes());
        small.cache.read_again(small.store.as_ref()).await.unwrap();
        small.reconciler.pass().await;
        assert_eq!(small.waited_for(), []);
    }

    #[tokio::test]
    async fn barriers_that_come_of_what_was_touched_meanwhile_are_not_counted_as_missed() {
        let small = Small::waiting().await;
        small.put_result(STAYS).await;
        small.reconciler.pass().await;
        small.put_node(NODE, None).await;
        // One of another cluster has something to store: of this one's nodes only the one that left it was touched.
        small.put_node(Uuid::from_u128(6), Some(FAR)).await;
        // The pass before the full one stores nothing, and leaves it what opens the barrier.
        small.store.plan_commits([Some(Fault::CommitLost)]);
        assert_eq!((small.reconciler.full().await, small.counters.missed.get()), (0, 0));
        small.reconciler.pass().await;
        assert_eq!(small.waited_for(), [], "nobody is left who has not succeeded");
    }

    #[tokio::test]
    async fn what_no_pass_was_told_of_is_found_by_a_full_one_and_counted() {
        let small = Small::new().await;
        let (reconciler, missed) = (&small.reconciler, || small.counters.missed.get());
        reconciler.start().await;
        small.put_node(Uuid::from_u128(1), None).await;
        assert_eq!((reconciler.full().await, missed()), (0, 0), "a full pass hears of it as any other does");
        small.put_node(Uuid::from_u128(2), None).await;
        // Somebody else is told, so that no pass is.
        drop(small.cache.take_changes());
        reconciler.pass().await;
        assert_eq!((reconciler.full().await, missed()), (1, 1));
        assert_eq!((reconciler.full().await, missed()), (0, 1), "it is mended");
    }

    #[tokio::test]
    async fn x01_a_release_that_the_store_refuses_holds_back_no_other_node() {
        let small = Small::new().await;
        let (reconciler, table) = (&small.reconciler, &small.reconciler.table);
        let refusal = |node| table.status().refused_release(node);
        small.put_waiting().await;
        small.store.set_refused(Some(key::of_node(key::RELEASED, NODE)));
        reconciler.start().await;
        let is_refused = || refusal(NODE).is_some_and(|why| why.contains(" the limit max_bytes is 7;"));
        assert!(is_refused(), "{:?}", refusal(NODE));
        assert_eq!(table.status().nodes_with_refused_release(), [NODE]);
        let told = |node| table.digests(node).is_some();
        assert_eq!([NODE, STAYS, WAITS].map(told), [false, true, true]);
        assert!(reconciler.memory().left.is_empty(), "nothing is tried again each second");
        // It is tried again in a full resolve, and when the node changes.
        assert_eq!((reconciler.full().await, is_refused()), (0, true));
        small.store.set_refused(None);
        assert_eq!((reconciler.full().await, small.counters.missed.get()), (0, 0), "it was not missed");
        assert_eq!((refusal(NODE), told(NODE)), (None, true));
    }

    #[tokio::test]
    async fn x03_f07_what_goes_beyond_the_budget_of_a_cluster_is_released_to_no_node_until_there_is_room() {
        let small = Small::new().await;
        let (reconciler, table) = (&small.reconciler, &small.reconciler.table);
        small.put_waiting().await;
        let elsewhere = Uuid::from_u128(6);
        small.put_node(elsewhere, Some(FAR)).await;
        let (held, full) = (reconciler.registry.released(), Uuid::from_u128(77));
        held.set(full, Some((ClusterId(CLUSTER), most_of_records(3))));
        reconciler.start().await;
        let refusal = |node| table.status().refused_release(node);
        for node in [NODE, STAYS, WAITS] {
            let why = refusal(node).unwrap_or_default();
            assert!(why.starts_with("with it what is released to the nodes of cluster c would take "), "{why}");
            assert!(why.contains(" bytes together, and the most are 33603584;"), "32 MiB and 16 KiB for each: {why}");
        }
        let told = || [NODE, elsewhere].map(|node| table.digests(node).unwrap().1);
        assert_ne!(told()[0], told()[1], "another cluster has room");
        assert_eq!(refusal(elsewhere), None);
        assert_eq!(held.of_cluster(ClusterId(CLUSTER)), most_of_records(3), "nothing was taken");
        let empty = told()[0];
        // The node that had it all goes.
        small.cache.reached(small.store.commit(Transaction::new().put("x", Bytes::new())).await.unwrap()).await;
        drop(reconciler.publish(&small.cache.model(), BTreeSet::from([full]), BTreeMap::new(), Timestamp(0)).await);
        assert!(reconciler.memory().left.contains(&NODE), "it is tried again at once");
        reconciler.pass().await;
        assert_eq!((refusal(NODE), reconciler.full().await), (None, 0));
        assert!(told()[0] != empty && told()[0] == told()[1], "they are released alike");
        let (all, one) = (held.of_cluster(ClusterId(CLUSTER)), small.cache.model().released[&NODE].stored_bytes());
        assert!(one > 100 && all > 2 * one && held.of_node_in(ClusterId(CLUSTER), NODE) == one, "{one} of {all} bytes");
    }

    #[tokio::test]
    async fn a_full_resolve_that_is_asked_for_before_the_first_pass_follows_it() {
        let small = Small::new().await;
        small.put_node(Uuid::from_u128(1), None).await;
        let found = tokio::select! {
            biased;
            found = small.reconciler.check_now() => found,
            never = small.reconciler.run() => match never {},
        };
        assert_eq!((found, small.counters.missed.get()), (Some(0), 0));
    }

    #[test]
    fn why_a_node_is_not_told_is_news_once() {
        let (mut memory, node) = (Memory::default(), Uuid::from_u128(1));
        let news = ["no release", "no release", "no cluster"].map(|why| memory.note_untold(node, why));
        assert_eq!(news, [true, false, true]);
    }
}
