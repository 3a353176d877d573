//! Reconcile: from what is stored to what each node is told. It takes no arguments: woken by the cache or a slow timer,
//! it takes what was touched, resolves the nodes that this reaches, leaves alone those whose answer is equal, and publishes
//! the rest as one batch. The same pass serves the first start, the restart and the repair.
//!
//! ```text
//!   cache ──changes──▶ fleet ──dirty──▶ resolve ──▶ known ─────────────────────────────▶ publish ──▶ parked check-ins
//!                                          │                                              ▲
//!                                          └──▶ task set ──policy──▶ released (stored) ──┘
//! ```
//!
//! *Known* goes out as it is. A *task set* goes out only when the policy releases it, and is stored first: what was
//! released holds until another is, also over a restart, whatever has changed in the model meanwhile.

pub(crate) mod barrier;
mod encode;
mod policy;
mod primary;
mod released;
pub(crate) mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use log::{error, info, warn};
use stemma_core::fleet::Fleet;
use stemma_core::object::NodeId;
use stemma_core::resolve::{Answer, Outcome, ResolveCache, resolve_node};
use stemma_wire::message;
use tokio::sync::watch;
use uuid::Uuid;

pub use policy::{AtOnce, Candidate, ReleasePolicy, Verdict};

use crate::cache::{Cache, Model};
use crate::desired::{Batch, Change, DesiredTable, Released};
use crate::metrics::Counters;
use crate::registry::Registry;
use crate::store::{Revision, StoreError};
use barrier::{Touched, Waves};
use encode::Profiles;

/// A full resolve, which must find nothing to do.
const FULL: Duration = Duration::from_mins(10);
/// After a store that did not take a write.
const AGAIN: Duration = Duration::from_secs(1);

/// The fleet as resolve sees it, as of one revision.
pub struct Snapshot {
    /// The store's revision.
    pub revision: Revision,
    /// The model with what follows from it.
    pub fleet: Fleet,
}

/// Drives nodes to what the store says.
pub struct Reconciler {
    registry: Arc<Registry>,
    cache: Arc<Cache>,
    table: Arc<DesiredTable>,
    policy: Arc<dyn ReleasePolicy>,
    counters: Arc<Counters>,
    snapshot: ArcSwap<Snapshot>,
    reached: watch::Sender<Revision>,
    memory: Mutex<Memory>,
}

/// What passes leave for the next one.
#[derive(Default)]
struct Memory {
    profiles: Profiles,
    resolve: ResolveCache,
    /// Nodes that a store which took no write left undone.
    left: BTreeSet<Uuid>,
    /// Nodes whose results came meanwhile, with the tasks.
    left_moved: BTreeMap<Uuid, BTreeSet<String>>,
    waves: Waves,
}

impl Reconciler {
    /// A reconciler over the registry's cache; nothing is resolved before [`Reconciler::run`].
    pub fn new(
        registry: Arc<Registry>,
        table: Arc<DesiredTable>,
        policy: Arc<dyn ReleasePolicy>,
        counters: Arc<Counters>,
    ) -> Self {
        let cache = Arc::clone(registry.cache());
        let snapshot = ArcSwap::from_pointee(Snapshot { revision: Revision::default(), fleet: Fleet::new() });
        let (reached, _) = watch::channel(Revision::default());
        Self { registry, cache, table, policy, counters, snapshot, reached, memory: Mutex::default() }
    }

    /// The fleet as of the last pass.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The fleet as of a revision or a later one.
    pub async fn at_least(&self, revision: Revision) -> Arc<Snapshot> {
        let mut reached = self.reached.subscribe();
        let _sender_is_ours = reached.wait_for(|seen| *seen >= revision).await;
        self.snapshot()
    }

    /// What a node is to be by now; `None` while something is missing.
    pub fn resolved(&self, node: Uuid) -> Option<Arc<Answer>> {
        let snapshot = self.snapshot();
        let cache = ResolveCache::new();
        resolve_node(&snapshot.fleet, &cache, NodeId(node)).answer().cloned()
    }

    /// Resolves everything once, then what is touched, until it is dropped.
    pub async fn run(&self) -> Infallible {
        self.start().await;
        let mut full = tokio::time::interval(FULL);
        full.tick().await;
        loop {
            tokio::select! {
                () = self.cache.changed() => self.pass().await,
                _ = full.tick() => self.full().await,
                () = self.again() => self.pass().await,
            }
        }
    }

    /// The first pass: everything that is stored.
    async fn start(&self) {
        let (model, _) = self.cache.take_changes();
        let nodes = model.nodes.iter().map(|node| node.meta.uuid).collect();
        let (count, revision) = (model.nodes.len(), model.revision);
        self.publish(&model, nodes, BTreeMap::new()).await;
        info!(nodes = count, revision = revision.get(); "fleet resolved");
    }

    /// What was touched since the last pass.
    async fn pass(&self) {
        let (model, reach) = self.cache.take_changes();
        let mut dirty: BTreeSet<Uuid> = std::mem::take(&mut self.memory().left);
        dirty.extend(reach.dirty.nodes().map(|id| id.0).chain(reach.gone));
        if reach.everything {
            dirty.extend(model.nodes.iter().map(|node| node.meta.uuid));
        }
        let mut moved = std::mem::take(&mut self.memory().left_moved);
        for (node, tasks) in reach.moved {
            moved.entry(node).or_default().extend(tasks);
        }
        self.publish(&model, dirty, moved).await;
    }

    /// Everything again; to find something is a fault of the dirty set, and is counted.
    async fn full(&self) {
        // What was touched by now is no find.
        self.pass().await;
        let before = self.table.published();
        let model = self.cache.model();
        let nodes = model.nodes.iter().map(|node| node.meta.uuid).collect();
        self.publish(&model, nodes, BTreeMap::new()).await;
        let found = self.table.published() - before;
        if found > 0 {
            self.counters.missed.inc();
            warn!(nodes = found; "a full resolve found something to do");
        }
        if let Err(failure) = self.sweep().await {
            warn!(error:err = failure; "profiles that nobody has any more could not be taken away");
        }
    }

    /// Takes away stored profiles that no released task set names.
    async fn sweep(&self) -> Result<(), StoreError> {
        for transaction in released::sweep(&self.cache.model()) {
            self.registry.store().commit(transaction).await?;
        }
        Ok(())
    }

    /// Resolves nodes, stores what is released, and publishes.
    async fn publish(&self, model: &Model, nodes: BTreeSet<Uuid>, moved: BTreeMap<Uuid, BTreeSet<String>>) {
        let (revision, fleet) = (model.revision, model.fleet.clone());
        let mut decided = Vec::new();
        let mut gone = Vec::new();
        for uuid in nodes {
            // By itself, so that the memory is not held while it is decided.
            let outcome = resolve_node(&fleet, &self.memory().resolve, NodeId(uuid));
            match outcome {
                Outcome::Complete(answer) => match self.decide(model, &answer, revision) {
                    Ok(decision) => decided.push((uuid, decision)),
                    Err(error) => warn!(node:% = uuid, error:% = error; "a node is not told and stays as it is"),
                },
                Outcome::Incomplete(_) if model.nodes.get(uuid).is_none() => gone.push(uuid),
                Outcome::Incomplete(missing) => {
                    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
                    warn!(node:% = uuid, missing = missing.join("; "); "a node cannot be resolved and stays as it is");
                }
            }
        }
        self.counters.resolved.inc_by(decided.len() as u64);
        if let Err(failure) = self.store_released(&decided, &gone).await {
            error!(error:err = failure; "what is released could not be stored; nothing is sent");
            let mut memory = self.memory();
            memory.left.extend(decided.iter().map(|(uuid, _)| *uuid).chain(gone));
            memory.left_moved = moved;
            drop(memory);
            self.set_snapshot(revision, fleet);
            return;
        }
        let resolved: BTreeSet<Uuid> = decided.iter().map(|(uuid, _)| *uuid).chain(gone.iter().copied()).collect();
        let changes = decided.into_iter().map(|(uuid, decision)| (uuid, Change::Release(Box::new(decision.released))));
        let changes = changes.chain(gone.into_iter().map(|uuid| (uuid, Change::Gone))).collect();
        self.table.publish(Batch { revision: message::Revision(revision.get()), changes });
        let touched = Touched { resolved: &resolved, results: &moved };
        // With what was just stored.
        let sight = barrier::Sight { table: &self.table, model: &self.cache.model(), fleet: &fleet };
        self.memory().waves.open(sight, &touched, message::Revision(revision.get()));
        self.set_snapshot(revision, fleet);
        self.choose_primaries().await;
    }

    fn decide(&self, model: &Model, answer: &Answer, revision: Revision) -> Result<released::Decision, size::TooLarge> {
        let mut memory = self.memory();
        released::decide(&*self.policy, &mut memory.profiles, model, answer, revision, self.registry.now())
    }

    /// What was newly released is durable before anybody is told.
    async fn store_released(&self, decided: &[(Uuid, released::Decision)], gone: &[Uuid]) -> Result<(), StoreError> {
        let store = self.registry.store();
        for transaction in released::transactions(&**store, decided, gone)? {
            let revision = store.commit(transaction).await?;
            self.cache.reached(revision).await;
        }
        Ok(())
    }

    async fn choose_primaries(&self) {
        let snapshot = self.snapshot();
        if let Err(failure) = primary::choose(&self.registry, &snapshot.fleet).await {
            warn!(error = failure.message; "a primary could not be stored");
        }
    }

    fn set_snapshot(&self, revision: Revision, fleet: Fleet) {
        self.snapshot.store(Arc::new(Snapshot { revision, fleet }));
        self.reached.send_replace(revision);
    }

    async fn again(&self) {
        if self.memory().left.is_empty() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(AGAIN).await;
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of a published state, as [`Released`] has them.
fn assembled(
    revision: Revision,
    answer: &Answer,
    known: &message::desired::Known,
    task_set: &message::desired::TaskSet,
    profile: Option<&encode::EncodedProfile>,
) -> Released {
    use crate::desired::Encoded;
    Released {
        revision: message::Revision(revision.get()),
        known: Arc::new(Encoded::part(known)),
        task_set: Arc::new(Encoded::part(task_set)),
        profile: profile.map(|profile| Arc::clone(&profile.encoded)),
        blobs: profile.map_or_else(|| Arc::from([]), |profile| Arc::clone(&profile.blobs)),
        silent_after: Duration::from_secs(answer.silent_after_seconds().into()),
    }
}
