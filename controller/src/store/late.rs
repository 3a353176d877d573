//! An engine that answers each call 5 ms late, around any other: as one across a network does.
//!
//! What is asked for happens at once and the answer comes late, so whoever trusts an answer to be of now is found out.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{
    BoxFuture, Change, ChangeSource, Entry, Health, Identity, List, Query, Revision, Snapshot, Stats, Store,
    StoreError, Transaction, Watch, WatchError,
};

/// How late.
pub(crate) const LATE: Duration = Duration::from_millis(5);

/// An engine whose answers are late, those to commits as late as is wanted.
pub(crate) struct LateStore(Arc<dyn Store>, Duration);

struct LateSnapshot(Box<dyn Snapshot>);

struct LateChanges(Weak<dyn Store>);

impl LateStore {
    pub(crate) fn new(inner: Arc<dyn Store>, commits: Duration) -> Self {
        Self(inner, commits)
    }
}

fn late<'a, T: Send + 'a>(answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    late_by(LATE, answer)
}

fn late_by<'a, T: Send + 'a>(by: Duration, answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    Box::pin(async move {
        let answer = answer.await;
        tokio::time::sleep(by).await;
        answer
    })
}

impl Store for LateStore {
    fn identity(&self) -> &Identity {
        self.0.identity()
    }

    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        late(self.0.head())
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>> {
        late_by(self.1, self.0.commit(transaction))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>> {
        let inner = late(self.0.snapshot());
        Box::pin(async move { Ok(Box::new(LateSnapshot(inner.await?)) as Box<dyn Snapshot>) })
    }

    fn watch(&self, from: Revision) -> Watch {
        Watch::new(Box::new(LateChanges(Arc::downgrade(&self.0))), from)
    }

    fn stats(&self) -> &Stats {
        self.0.stats()
    }

    fn health(&self) -> Health {
        self.0.health()
    }
}

impl Snapshot for LateSnapshot {
    fn revision(&self) -> Revision {
        self.0.revision()
    }

    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        late(self.0.get(key))
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<List, StoreError>> {
        late(self.0.list(query))
    }
}

impl ChangeSource for LateChanges {
    fn change(&self, revision: Revision) -> BoxFuture<'_, Result<Arc<Change>, WatchError>> {
        late(Box::pin(async move {
            // Held no longer than it takes to ask: a watcher does not keep its store open.
            let mut watch = self.0.upgrade().ok_or(StoreError::Closed)?.watch(revision);
            watch.next().await
        }))
    }
}
