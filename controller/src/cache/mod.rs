//! The whole fleet in memory, kept up to date by a watch of the store. The store is authoritative, but requests are
//! answered from this cache.
//!
//! Readers share a pointer to an unchanging [`Model`]. A change builds the next model and then replaces the pointer, so
//! readers never wait. A writer waits until the cache has applied its commit, so that it then reads what it wrote.

pub mod model;
pub(crate) mod released;

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use log::error;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

pub use model::{AffectedNodes, Model};

use crate::store::{Change, EventKind, ListQuery, Revision, Store, StoreError, WatchError};
use model::{StoredValue, prefixes};

/// The fleet in memory.
pub struct Cache {
    model: ArcSwap<Model>,
    revision: watch::Sender<Revision>,
    changes: Mutex<AffectedNodes>,
    notify: Notify,
}

impl Cache {
    /// Loads the fleet from the store.
    ///
    /// # Errors
    /// The error of the store, or [`StoreError::Corrupt`] if a record cannot be read.
    pub async fn load(store: &dyn Store) -> Result<Self, StoreError> {
        let model = load_model(store).await?;
        let (reached, _) = watch::channel(model.revision);
        Ok(Self { model: ArcSwap::from_pointee(model), revision: reached, changes: Mutex::default(), notify: Notify::new() })
    }

    /// Returns the fleet as of the last revision that was applied.
    pub fn model(&self) -> Arc<Model> {
        self.model.load_full()
    }

    /// Waits until the fleet has reached this revision or a later one.
    pub async fn wait_for(&self, revision: Revision) {
        let mut reached = self.revision.subscribe();
        // The wait cannot fail: it would only if the sender were dropped, and this cache owns the sender.
        let _result = reached.wait_for(|seen| *seen >= revision).await;
    }

    /// Returns the present fleet, and the nodes that the changes since the last call affect. Clears these nodes, so
    /// there can be only one caller.
    pub fn take_changes(&self) -> (Arc<Model>, AffectedNodes) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        (self.model(), std::mem::take(&mut *changes))
    }

    /// Returns what [`Self::take_changes`] would return, without clearing the affected nodes.
    pub fn peek_changes(&self) -> (Arc<Model>, AffectedNodes) {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        (self.model(), changes.clone())
    }

    /// Waits until a change was applied since the last call.
    pub async fn changed(&self) {
        self.notify.notified().await;
    }

    /// Applies every change of the store to this cache, until the store is closed.
    ///
    /// # Errors
    /// Fails if a record or the store cannot be read. The controller must not continue with half a fleet.
    pub async fn follow(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut changes = store.watch(self.model.load().revision.next());
        loop {
            match changes.next().await {
                Ok(change) => self.apply_change(&change)?,
                Err(WatchError::Compacted { .. }) => changes = store.watch(self.reload(store).await?.next()),
                Err(WatchError::Store(StoreError::Closed)) => return Ok(()),
                Err(WatchError::Store(failure)) => {
                    error!(error:err = failure; "the store can no longer be followed");
                    return Err(failure);
                }
            }
        }
    }

    /// Reads the whole store again after a gap in the watch. Returns the revision that was read.
    pub(crate) async fn reload(&self, store: &dyn Store) -> Result<Revision, StoreError> {
        let model = load_model(store).await?;
        let revision = model.revision;
        self.replace(model);
        Ok(revision)
    }

    /// Builds the next model from the present one and a change of the store, and publishes it.
    fn apply_change(&self, change: &Change) -> Result<(), StoreError> {
        let mut model = Model::clone(&self.model.load());
        let mut affected = AffectedNodes::default();
        // The events are sorted by key, because a start reads the objects in this order too. So objects that one commit
        // creates have the same order in lists before and after a restart.
        let mut events: Vec<_> = change.events.iter().collect();
        events.sort_by(|a, b| a.key.cmp(&b.key));
        for event in events {
            let stored = match &event.kind {
                EventKind::Put { value, create_revision, .. } => {
                    StoredValue { value: Some(value.as_ref()), mod_revision: change.revision, create_revision: *create_revision }
                }
                EventKind::Delete => StoredValue { value: None, mod_revision: change.revision, create_revision: change.revision },
            };
            affected.extend(model.apply_entry(&event.key, &stored)?);
        }
        model.revision = change.revision;
        self.publish(model, affected);
        Ok(())
    }

    /// Replaces the model after a gap in the watch. What changed is unknown, so every node counts as affected.
    fn replace(&self, model: Model) {
        let is_gone = |node: &Uuid| model.nodes.get(*node).is_none();
        let affected = AffectedNodes {
            deleted: self.model.load().nodes.iter().map(|node| node.meta.uuid).filter(is_gone).collect(),
            all: true,
            ..AffectedNodes::default()
        };
        self.publish(model, affected);
    }

    /// Makes a model the present one, and adds the affected nodes to those that [`Self::take_changes`] returns.
    fn publish(&self, model: Model, affected: AffectedNodes) {
        let revision = model.revision;
        {
            // The model is replaced under the lock of the changes, so that `take_changes` never returns affected nodes
            // with a model from before their change.
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            self.model.store(Arc::new(model));
            changes.extend(affected);
        }
        self.revision.send_replace(revision);
        // The reconciler is also notified if no node is affected, because it reports the revision that it has reached.
        self.notify.notify_one();
    }
}

/// Builds a model from everything in the store that a model holds.
async fn load_model(store: &dyn Store) -> Result<Model, StoreError> {
    let snapshot = store.snapshot().await?;
    let mut model = Model { revision: snapshot.revision(), ..Model::default() };
    for prefix in prefixes() {
        let list = snapshot.list(&ListQuery::prefix(prefix)).await?;
        for entry in list.entries {
            let stored = StoredValue {
                value: Some(&entry.value),
                mod_revision: entry.mod_revision,
                create_revision: entry.create_revision,
            };
            model.read_entry(&entry.key, &stored)?;
        }
    }
    model.finish_load();
    Ok(model)
}
