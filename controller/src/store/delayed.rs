//! A wrapper around an engine that delays each answer, by 5 ms for reads, as an engine across a network does.
//!
//! The operation is done at once and its answer arrives later. This finds callers that treat an answer as current.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{
    BoxFuture, Change, ChangeSource, Entry, EntryList, Health, ListQuery, Revision, Snapshot, Stats, Store, StoreError,
    StoreIdentity, Transaction, Watch, WatchError,
};

/// The delay of every answer except those to commits.
pub(crate) const READ_DELAY: Duration = Duration::from_millis(5);

/// An engine whose answers are delayed. The delay of commits is set separately.
pub(crate) struct DelayedStore(Arc<dyn Store>, Duration);

struct DelayedSnapshot(Box<dyn Snapshot>);

struct DelayedChanges(Weak<dyn Store>);

impl DelayedStore {
    pub(crate) fn new(inner: Arc<dyn Store>, commits: Duration) -> Self {
        Self(inner, commits)
    }
}

fn delayed<'a, T: Send + 'a>(answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    delayed_by(READ_DELAY, answer)
}

fn delayed_by<'a, T: Send + 'a>(by: Duration, answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    Box::pin(async move {
        let answer = answer.await;
        tokio::time::sleep(by).await;
        answer
    })
}

impl Store for DelayedStore {
    fn identity(&self) -> &StoreIdentity {
        self.0.identity()
    }

    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        delayed(self.0.head())
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>> {
        delayed_by(self.1, self.0.commit(transaction))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>> {
        let inner = delayed(self.0.snapshot());
        Box::pin(async move { Ok(Box::new(DelayedSnapshot(inner.await?)) as Box<dyn Snapshot>) })
    }

    fn watch(&self, from: Revision) -> Watch {
        Watch::new(Box::new(DelayedChanges(Arc::downgrade(&self.0))), from)
    }

    fn stats(&self) -> &Stats {
        self.0.stats()
    }

    fn health(&self) -> Health {
        self.0.health()
    }
}

impl Snapshot for DelayedSnapshot {
    fn revision(&self) -> Revision {
        self.0.revision()
    }

    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        delayed(self.0.get(key))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> BoxFuture<'a, Result<EntryList, StoreError>> {
        delayed(self.0.list(query))
    }
}

impl ChangeSource for DelayedChanges {
    fn change(&self, revision: Revision) -> BoxFuture<'_, Result<Arc<Change>, WatchError>> {
        delayed(Box::pin(async move {
            // The store is referenced only until the read has begun, because a watcher must not keep it open.
            let mut watch = self.0.upgrade().ok_or(StoreError::Closed)?.watch(revision);
            watch.next().await
        }))
    }
}
