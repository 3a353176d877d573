//! A wrapper around an engine that delays each answer as an engine across a network does. Answers to reads are delayed
//! by 5 ms.
//!
//! The operation is done at once and its answer arrives later. This finds callers that treat an answer as current.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{
    BoxFuture, Change, ChangeSource, Entry, EntryList, Health, ListQuery, Revision, Snapshot, Stats, Store, StoreError,
    StoreIdentity, Transaction, Watch, WatchError,
};

/// Duration by which a [`DelayedStore`] delays its answers to reads and watches.
pub(crate) const ANSWER_DELAY: Duration = Duration::from_millis(5);

/// An engine whose answers are delayed: those to commits by this duration, and others by [`ANSWER_DELAY`].
pub(crate) struct DelayedStore(Arc<dyn Store>, Duration);

/// A snapshot whose reads are delayed.
struct DelayedSnapshot(Box<dyn Snapshot>);

/// The source of the changes for a watch of a delayed engine. The reference to the engine is weak, so it does not
/// prevent the engine from being closed.
struct DelayedChanges(Weak<dyn Store>);

impl DelayedStore {
    pub(crate) fn new(inner: Arc<dyn Store>, commit_delay: Duration) -> Self {
        Self(inner, commit_delay)
    }
}

/// Performs a read at once, and returns its answer after [`ANSWER_DELAY`].
fn delay_read<'a, T: Send + 'a>(answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    delay_answer(ANSWER_DELAY, answer)
}

/// Performs an operation at once, and returns its answer after the delay.
fn delay_answer<'a, T: Send + 'a>(delay: Duration, answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    Box::pin(async move {
        let answer = answer.await;
        tokio::time::sleep(delay).await;
        answer
    })
}

impl Store for DelayedStore {
    fn identity(&self) -> &StoreIdentity {
        self.0.identity()
    }

    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        delay_read(self.0.head())
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>> {
        delay_answer(self.1, self.0.commit(transaction))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>> {
        let inner = delay_read(self.0.snapshot());
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
        delay_read(self.0.get(key))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> BoxFuture<'a, Result<EntryList, StoreError>> {
        delay_read(self.0.list(query))
    }
}

impl ChangeSource for DelayedChanges {
    /// Returns the change of a revision [`ANSWER_DELAY`] after the inner engine has it. Reads it with a new watch.
    fn change(&self, revision: Revision) -> BoxFuture<'_, Result<Arc<Change>, WatchError>> {
        delay_read(Box::pin(async move {
            // The strong reference is dropped before the wait for the change, because a watch must not prevent the
            // store from being closed.
            let mut watch = self.0.upgrade().ok_or(StoreError::Closed)?.watch(revision);
            watch.next().await
        }))
    }
}
