//! The whole fleet in memory, kept by following the store: the store is the truth, this is what is asked.
//!
//! A snapshot is one pointer, and a change makes the next one beside it, so readers wait for nobody. Writers wait
//! here until their own commit is seen, so that whoever wrote reads what was written.

pub mod model;
pub(crate) mod released;

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use log::error;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

pub use model::{Model, Reach};

use crate::store::{Change, EventKind, Query, Revision, Store, StoreError, WatchError};
use model::{StoredValue, prefixes};

/// The fleet in memory.
pub struct Cache {
    model: ArcSwap<Model>,
    reached: watch::Sender<Revision>,
    changes: Mutex<Reach>,
    nudge: Notify,
}

impl Cache {
    /// Loads the fleet.
    ///
    /// # Errors
    /// What the store says; [`StoreError::Corrupt`] for a record that can't be read.
    pub async fn load(store: &dyn Store) -> Result<Self, StoreError> {
        let model = load(store).await?;
        let (reached, _) = watch::channel(model.revision);
        Ok(Self { model: ArcSwap::from_pointee(model), reached, changes: Mutex::default(), nudge: Notify::new() })
    }

    /// The fleet as of the last revision that was seen.
    pub fn model(&self) -> Arc<Model> {
        self.model.load_full()
    }

    /// Waits until the fleet is that of a revision or of a later one.
    pub async fn reached(&self, revision: Revision) {
        let mut reached = self.reached.subscribe();
        // The sender lives as long as the cache, so this ends by the revision alone.
        let _sender_is_ours = reached.wait_for(|seen| *seen >= revision).await;
    }

    /// Whom the changes reached since this was asked last, and the fleet as of which that is so.
    pub fn take_changes(&self) -> (Arc<Model>, Reach) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        (self.model(), std::mem::take(&mut *changes))
    }

    /// As [`Self::take_changes`], and leaves them for who asks next.
    pub fn look_at_changes(&self) -> (Arc<Model>, Reach) {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        (self.model(), changes.clone())
    }

    /// Waits until something was touched.
    pub async fn changed(&self) {
        self.nudge.notified().await;
    }

    /// Follows the store until it is closed.
    ///
    /// # Errors
    /// A record that can't be read, or a store that can't: the controller must not go on with half a fleet.
    pub async fn follow(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut changes = store.watch(self.model.load().revision.next());
        loop {
            match changes.next().await {
                Ok(change) => self.take(&change)?,
                Err(WatchError::Compacted { .. }) => changes = store.watch(self.read_again(store).await?.next()),
                Err(WatchError::Store(StoreError::Closed)) => return Ok(()),
                Err(WatchError::Store(failure)) => {
                    error!(error:err = failure; "the store can no longer be followed");
                    return Err(failure);
                }
            }
        }
    }

    /// Reads the whole store again, after a gap in what was followed. Returns the revision up to which it was read.
    pub(crate) async fn read_again(&self, store: &dyn Store) -> Result<Revision, StoreError> {
        let model = load(store).await?;
        let revision = model.revision;
        self.replace(model);
        Ok(revision)
    }

    fn take(&self, change: &Change) -> Result<(), StoreError> {
        let mut model = Model::clone(&self.model.load());
        let mut reach = Reach::default();
        // As they are read at a start: objects that one commit makes have the same order in a list then.
        let mut events: Vec<_> = change.events.iter().collect();
        events.sort_by(|one, other| one.key.cmp(&other.key));
        for event in events {
            let now = match &event.kind {
                EventKind::Put { value, create_revision, .. } => {
                    StoredValue { value: Some(value.as_ref()), written: change.revision, made: *create_revision }
                }
                EventKind::Delete => StoredValue { value: None, written: change.revision, made: change.revision },
            };
            reach.extend(model.take(&event.key, &now)?);
        }
        model.revision = change.revision;
        self.show(model, reach);
        Ok(())
    }

    /// After a gap nobody knows what was touched, so everything was.
    fn replace(&self, model: Model) {
        let is_gone = |node: &Uuid| model.nodes.get(*node).is_none();
        let reach = Reach {
            gone: self.model.load().nodes.iter().map(|node| node.meta.uuid).filter(is_gone).collect(),
            everything: true,
            ..Reach::default()
        };
        self.show(model, reach);
    }

    fn show(&self, model: Model, reach: Reach) {
        let revision = model.revision;
        {
            // Together, so that whoever takes the changes sees a fleet that holds them.
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            self.model.store(Arc::new(model));
            changes.extend(reach);
        }
        self.reached.send_replace(revision);
        // Also where nobody is reached: who follows says up to which revision it has followed.
        self.nudge.notify_one();
    }
}

async fn load(store: &dyn Store) -> Result<Model, StoreError> {
    let snapshot = store.snapshot().await?;
    let mut model = Model { revision: snapshot.revision(), ..Model::default() };
    for prefix in prefixes() {
        let list = snapshot.list(&Query::prefix(prefix)).await?;
        for entry in list.entries {
            let now =
                StoredValue { value: Some(&entry.value), written: entry.mod_revision, made: entry.create_revision };
            model.read(&entry.key, &now)?;
        }
    }
    model.settle();
    Ok(model)
}
