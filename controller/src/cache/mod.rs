//! The cache: the whole fleet in memory, updated by a watch of the store. The store is authoritative, but requests are
//! answered from the cache.
//!
//! Readers share a pointer to an immutable [`Model`]. A change builds the next model and then replaces the pointer, so
//! readers never wait. A request that commits a write waits until the cache has applied the commit. So it then reads
//! what it wrote.

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
    /// Fails with the error of the store, or for a bad record with [`StoreError::Corrupt`] or [`StoreError::Newer`].
    pub async fn load(store: &dyn Store) -> Result<Self, StoreError> {
        let model = load_model(store).await?;
        let (sender, _) = watch::channel(model.revision);
        Ok(Self { model: ArcSwap::from_pointee(model), revision: sender, changes: Mutex::default(), notify: Notify::new() })
    }

    /// Returns the fleet at the last revision that the cache has applied.
    pub fn model(&self) -> Arc<Model> {
        self.model.load_full()
    }

    /// Waits until the cache has applied this revision or a later one.
    pub async fn wait_for(&self, revision: Revision) {
        let mut revisions = self.revision.subscribe();
        // The wait fails only if the sender is dropped, and this cache owns the sender. So the result needs no check.
        let _result = revisions.wait_for(|applied| *applied >= revision).await;
    }

    /// Returns the present fleet, and the nodes that were affected by changes since the last call. The list of these
    /// nodes is then cleared, so only one caller may use this function.
    pub fn take_changes(&self) -> (Arc<Model>, AffectedNodes) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        (self.model(), std::mem::take(&mut *changes))
    }

    /// Returns the same as [`Self::take_changes`], but does not clear the list of affected nodes.
    pub fn peek_changes(&self) -> (Arc<Model>, AffectedNodes) {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        (self.model(), changes.clone())
    }

    /// Waits until the cache has applied a change. Returns at once if it has applied one since the last call. A change
    /// ends the wait of only one caller, so only one caller may use this function.
    pub async fn changed(&self) {
        self.notify.notified().await;
    }

    /// Applies each change of the store to this cache. Returns when the store is closed.
    ///
    /// # Errors
    /// Fails if the store or a record cannot be read. The controller must then stop, because the cache is incomplete.
    pub async fn follow(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut changes = store.watch(self.model.load().revision.next());
        loop {
            match changes.next().await {
                Ok(change) => self.apply_change(&change)?,
                // The watch missed changes, so the whole store is read again.
                Err(WatchError::Compacted { .. }) => changes = store.watch(self.reload(store).await?.next()),
                Err(WatchError::Store(StoreError::Closed)) => return Ok(()),
                Err(WatchError::Store(failure)) => {
                    error!(error:err = failure; "the store can no longer be followed");
                    return Err(failure);
                }
            }
        }
    }

    /// Reads the whole store again, because the watch has missed changes. Returns the revision of the new model.
    pub(crate) async fn reload(&self, store: &dyn Store) -> Result<Revision, StoreError> {
        let model = load_model(store).await?;
        let revision = model.revision;
        self.replace(model);
        Ok(revision)
    }

    /// Builds the next model from the present model and one change of the store, and publishes it.
    fn apply_change(&self, change: &Change) -> Result<(), StoreError> {
        let previous = self.model.load();
        let mut model = Model::clone(&previous);
        let mut affected = AffectedNodes::default();
        // The events are applied in the order of their keys. So the common values of a commit are in the model before
        // the task sets that refer to them.
        let mut events: Vec<_> = change.events.iter().collect();
        events.sort_by(|left, right| left.key.cmp(&right.key));
        for event in events {
            let stored_value = match &event.kind {
                EventKind::Put { value, create_revision, .. } => {
                    StoredValue { value: Some(value.as_ref()), mod_revision: change.revision, create_revision: *create_revision }
                }
                // A deleted key has no creation, so this revision is only a placeholder.
                EventKind::Delete => StoredValue { value: None, mod_revision: change.revision, create_revision: change.revision },
            };
            affected.extend(model.apply_entry(&event.key, &stored_value)?);
        }
        model.revision = change.revision;
        model.log_broken_releases(&previous);
        self.publish(model, affected);
        Ok(())
    }

    /// Publishes a model that was read again after missed changes. It is not known which nodes changed, so all nodes
    /// count as affected.
    fn replace(&self, model: Model) {
        let is_deleted = |node: &Uuid| model.nodes.get(*node).is_none();
        let affected = AffectedNodes {
            deleted: self.model.load().nodes.iter().map(|node| node.meta.uuid).filter(is_deleted).collect(),
            all: true,
            ..AffectedNodes::default()
        };
        self.publish(model, affected);
    }

    /// Replaces the present model by this one, and adds the affected nodes to the list that [`Self::take_changes`]
    /// returns. Then wakes the waiting callers.
    fn publish(&self, model: Model, affected: AffectedNodes) {
        let revision = model.revision;
        {
            // The model is replaced while the lock of the affected nodes is held. So `take_changes` never returns an
            // affected node with a model that does not have the change yet.
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            self.model.store(Arc::new(model));
            changes.extend(affected);
        }
        self.revision.send_replace(revision);
        // The reconciler is notified even if no node is affected, because it reports the revision that it has reached.
        self.notify.notify_one();
    }
}

/// Builds a model from all entries of the store that a model contains.
async fn load_model(store: &dyn Store) -> Result<Model, StoreError> {
    let snapshot = store.snapshot().await?;
    let mut model = Model { revision: snapshot.revision(), ..Model::default() };
    for prefix in prefixes() {
        let list = snapshot.list(&ListQuery::prefix(prefix)).await?;
        for entry in list.entries {
            let stored_value = StoredValue {
                value: Some(&entry.value),
                mod_revision: entry.mod_revision,
                create_revision: entry.create_revision,
            };
            model.read_entry(&entry.key, &stored_value)?;
        }
    }
    // The entries are only in the indexes so far. This call computes the fleet from them.
    model.finish_load();
    model.log_broken_releases(&Model::default());
    Ok(model)
}
