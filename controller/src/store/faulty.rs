//! A wrapper around an engine that fails on demand. It tests what callers do after a failure.
//!
//! It produces outcomes that an engine rarely has: a commit that succeeded but whose answer was lost, one that failed
//! with the same error, and a store that becomes read-only in the middle of a test.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{
    BoxFuture, EngineError, Entry, EntryList, Health, ListQuery, Op, Refusal, Revision, Snapshot, Stats, Store, StoreError,
    StoreIdentity, Transaction, Watch,
};

/// A fault of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// The commit is written, but its caller gets the error `OutcomeUnknown`.
    AnswerLost,
    /// The commit is not written, and its caller gets the error `OutcomeUnknown`.
    CommitLost,
    /// The store becomes read-only. Neither this commit nor a later commit is written.
    BecomesReadOnly,
}

/// An engine whose commits and reads can be made to fail.
pub(crate) struct FaultyStore {
    inner: Arc<dyn Store>,
    commit_faults: Mutex<VecDeque<Option<InjectedFault>>>,
    read_only: AtomicBool,
    unreadable: AtomicBool,
    refused_key: Mutex<Option<Vec<u8>>>,
    damaged_key: Mutex<Option<Vec<u8>>>,
}

/// A snapshot in which reads of one key fail, as if its entry was damaged.
struct DamagedSnapshot {
    inner: Box<dyn Snapshot>,
    damaged: Vec<u8>,
}

impl FaultyStore {
    /// Wraps an engine. Nothing fails until a fault is injected.
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        let (read_only, unreadable) = (AtomicBool::new(false), AtomicBool::new(false));
        let (refused_key, damaged_key) = (Mutex::default(), Mutex::default());
        Self { inner, commit_faults: Mutex::default(), read_only, unreadable, refused_key, damaged_key }
    }

    /// Adds faults for the next commits, after the pending ones: one for each commit, in order. `None` means a commit
    /// without a fault. After [`InjectedFault::BecomesReadOnly`], all commits fail.
    pub(crate) fn inject_faults(&self, faults: impl IntoIterator<Item = Option<InjectedFault>>) {
        self.commit_faults.lock().unwrap().extend(faults);
    }

    /// Sets whether requests for a snapshot fail from now on.
    pub(crate) fn set_unreadable(&self, unreadable: bool) {
        self.unreadable.store(unreadable, Ordering::SeqCst);
    }

    /// Makes the store refuse every later commit that puts this key, with the error `TooLarge`. `None` ends this.
    pub(crate) fn refuse_key(&self, key: Option<String>) {
        *self.refused_key.lock().unwrap() = key.map(String::into_bytes);
    }

    /// Makes reads of this key fail in later snapshots, as if its entry was damaged. `None` ends this.
    pub(crate) fn damage_key(&self, key: Option<String>) {
        *self.damaged_key.lock().unwrap() = key.map(String::into_bytes);
    }

    /// Returns whether a transaction puts the key that [`Self::refuse_key`] set.
    fn is_refused(&self, transaction: &Transaction) -> bool {
        let refused_key = self.refused_key.lock().unwrap();
        let writes_refused_key = |op: &Op| matches!(op, Op::Put { key, .. } if Some(&key[..]) == refused_key.as_deref());
        transaction.ops.iter().any(writes_refused_key)
    }

    /// Commits a transaction, or performs the fault that is injected for this commit. Refuses a commit without a fault
    /// if it puts the key that [`Self::refuse_key`] set. A store that became read-only refuses every commit.
    async fn commit_with(&self, fault: Option<InjectedFault>, transaction: Transaction) -> Result<Revision, StoreError> {
        match fault {
            _ if self.read_only.load(Ordering::SeqCst) => Err(StoreError::ReadOnly { cause: injected_error() }),
            None if self.is_refused(&transaction) => {
                // The maximum is an arbitrary number for the message.
                Err(Refusal::TooLarge { bytes: transaction.size_bytes(), max: 7, raised_by: None }.into())
            }
            None => self.inner.commit(transaction).await,
            Some(InjectedFault::CommitLost) => Err(StoreError::OutcomeUnknown { cause: injected_error() }),
            Some(InjectedFault::AnswerLost) => {
                self.inner.commit(transaction).await?;
                Err(StoreError::OutcomeUnknown { cause: injected_error() })
            }
            Some(InjectedFault::BecomesReadOnly) => {
                self.read_only.store(true, Ordering::SeqCst);
                Err(StoreError::ReadOnly { cause: injected_error() })
            }
        }
    }
}

fn injected_error() -> EngineError {
    Arc::new(io::Error::other("planned by the test"))
}

impl Store for FaultyStore {
    fn identity(&self) -> &StoreIdentity {
        self.inner.identity()
    }

    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.inner.head()
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>> {
        let fault = self.commit_faults.lock().unwrap().pop_front().flatten();
        Box::pin(self.commit_with(fault, transaction))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>> {
        if self.unreadable.load(Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::Read { cause: injected_error() }) });
        }
        let damaged_key = self.damaged_key.lock().unwrap().clone();
        Box::pin(async move {
            let inner = self.inner.snapshot().await?;
            Ok(match damaged_key {
                Some(damaged_key) => Box::new(DamagedSnapshot { inner, damaged: damaged_key }) as Box<dyn Snapshot>,
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
            return Health::ReadOnly { reason: injected_error().to_string() };
        }
        self.inner.health()
    }
}

impl DamagedSnapshot {
    fn damage_error() -> StoreError {
        StoreError::Corrupt { what: injected_error().to_string() }
    }
}

impl Snapshot for DamagedSnapshot {
    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        if key == self.damaged {
            return Box::pin(async { Err(Self::damage_error()) });
        }
        self.inner.get(key)
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> BoxFuture<'a, Result<EntryList, StoreError>> {
        Box::pin(async move {
            let list = self.inner.list(query).await?;
            let is_damaged = list.entries.iter().any(|entry| entry.key[..] == self.damaged[..]);
            if is_damaged { Err(Self::damage_error()) } else { Ok(list) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redb::testing::memory_store;

    /// In this test, only the keys `a` and `b` are written, and the answer to the commit of `b` is lost.
    #[tokio::test]
    async fn faulty_store_injects_faults_in_order() {
        let store = FaultyStore::new(memory_store());
        store.inject_faults([
            None,
            Some(InjectedFault::AnswerLost),
            Some(InjectedFault::CommitLost),
            Some(InjectedFault::BecomesReadOnly),
        ]);
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
