//! A store that fails on demand, around any engine: what a caller does after a failure is tested with this.
//!
//! The outcomes that matter are those an engine gives rarely: a commit that was made and whose answer was lost, one
//! that was not made and says the same, a store that turns read-only under way.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{
    BoxFuture, Cause, Entry, Health, Identity, List, Op, Query, Refusal, Revision, Snapshot, Stats, Store, StoreError,
    Transaction, Watch,
};

/// What becomes of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is made, and its caller is told that the outcome is unknown.
    AnswerLost,
    /// It is not made, and its caller is told that the outcome is unknown.
    CommitLost,
    /// It is not made, nor is any after it: the store has become read-only.
    BecomesReadOnly,
}

/// An engine whose commits and reads can be made to fail.
pub(crate) struct FaultyStore {
    inner: Arc<dyn Store>,
    commits: Mutex<VecDeque<Option<Fault>>>,
    read_only: AtomicBool,
    unreadable: AtomicBool,
    refused: Mutex<Option<Vec<u8>>>,
    damaged: Mutex<Option<Vec<u8>>>,
}

/// A view in which one entry cannot be read.
struct DamagedSnapshot {
    inner: Box<dyn Snapshot>,
    damaged: Vec<u8>,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        let (read_only, unreadable) = (AtomicBool::new(false), AtomicBool::new(false));
        let (refused, damaged) = (Mutex::default(), Mutex::default());
        Self { inner, commits: Mutex::default(), read_only, unreadable, refused, damaged }
    }

    /// What becomes of the next commits, in turn; `None` is none of this store's doing. Those after them succeed.
    pub(crate) fn plan_commits(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.commits.lock().unwrap().extend(faults);
    }

    /// Whether snapshots fail from here on.
    pub(crate) fn set_unreadable(&self, unreadable: bool) {
        self.unreadable.store(unreadable, Ordering::SeqCst);
    }

    /// Which key no commit may write from here on: whichever does is refused as too large. `None`: all may be written.
    pub(crate) fn set_refused(&self, key: Option<String>) {
        *self.refused.lock().unwrap() = key.map(String::into_bytes);
    }

    /// Which entry is damaged in snapshots that are taken from here on; `None`: all can be read.
    pub(crate) fn set_damaged(&self, key: Option<String>) {
        *self.damaged.lock().unwrap() = key.map(String::into_bytes);
    }

    fn is_refused(&self, transaction: &Transaction) -> bool {
        let refused = self.refused.lock().unwrap();
        let writes = |op: &Op| matches!(op, Op::Put { key, .. } if Some(&key[..]) == refused.as_deref());
        transaction.ops.iter().any(writes)
    }

    async fn commit_with(&self, fault: Option<Fault>, transaction: Transaction) -> Result<Revision, StoreError> {
        match fault {
            _ if self.read_only.load(Ordering::SeqCst) => Err(StoreError::ReadOnly { cause: planned() }),
            None if self.is_refused(&transaction) => {
                Err(Refusal::TooLarge { bytes: transaction.size_bytes(), max: 7, raised_by: None }.into())
            }
            None => self.inner.commit(transaction).await,
            Some(Fault::CommitLost) => Err(StoreError::OutcomeUnknown { cause: planned() }),
            Some(Fault::AnswerLost) => {
                self.inner.commit(transaction).await?;
                Err(StoreError::OutcomeUnknown { cause: planned() })
            }
            Some(Fault::BecomesReadOnly) => {
                self.read_only.store(true, Ordering::SeqCst);
                Err(StoreError::ReadOnly { cause: planned() })
            }
        }
    }
}

fn planned() -> Cause {
    Arc::new(io::Error::other("planned by the test"))
}

impl Store for FaultyStore {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.inner.head()
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>> {
        let fault = self.commits.lock().unwrap().pop_front().flatten();
        Box::pin(self.commit_with(fault, transaction))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>> {
        if self.unreadable.load(Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::Read { cause: planned() }) });
        }
        let damaged = self.damaged.lock().unwrap().clone();
        Box::pin(async move {
            let inner = self.inner.snapshot().await?;
            Ok(match damaged {
                Some(damaged) => Box::new(DamagedSnapshot { inner, damaged }) as Box<dyn Snapshot>,
                None => inner,
            })
        })
    }

    fn watch(&self, from: Revision) -> Watch {
        self.inner.watch(from)
    }

    fn stats(&self) -> &Stats {
        self.inner.stats()
    }

    fn health(&self) -> Health {
        if self.read_only.load(Ordering::SeqCst) {
            return Health::ReadOnly { reason: planned().to_string() };
        }
        self.inner.health()
    }
}

impl DamagedSnapshot {
    fn damage() -> StoreError {
        StoreError::Corrupt { what: planned().to_string() }
    }
}

impl Snapshot for DamagedSnapshot {
    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        if key == self.damaged {
            return Box::pin(async { Err(Self::damage()) });
        }
        self.inner.get(key)
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<List, StoreError>> {
        Box::pin(async move {
            let list = self.inner.list(query).await?;
            let is_damaged = list.entries.iter().any(|entry| entry.key[..] == self.damaged[..]);
            if is_damaged { Err(Self::damage()) } else { Ok(list) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redb::testing::memory_store;

    #[tokio::test]
    async fn what_is_planned_happens_in_turn() {
        let store = FaultyStore::new(memory_store());
        store.plan_commits([None, Some(Fault::AnswerLost), Some(Fault::CommitLost), Some(Fault::BecomesReadOnly)]);
        let mut results = Vec::new();
        for key in ["a", "b", "c", "d", "e"] {
            results.push(store.commit(Transaction::new().put(key, "")).await);
        }
        assert!(matches!(
            results.as_slice(),
            [
                Ok(_),
                Err(StoreError::OutcomeUnknown { .. }),
                Err(StoreError::OutcomeUnknown { .. }),
                Err(StoreError::ReadOnly { .. }),
                Err(StoreError::ReadOnly { .. }),
            ]
        ));
        assert_eq!(store.head().await.unwrap(), Revision::new(2));
        assert!(matches!(store.health(), Health::ReadOnly { .. }));
        store.set_unreadable(true);
        assert!(matches!(store.snapshot().await, Err(StoreError::Read { .. })));
        store.set_unreadable(false);
        assert!(store.snapshot().await.unwrap().get(b"b").await.unwrap().is_some());
    }
}
