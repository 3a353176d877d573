//! Orders writes that conflict over the same entries.
//!
//! A write is decided without a lock. Of several writes that were decided on one revision, the store commits one. If
//! the others all tried again at once, most would lose again. So each entry over which a write lost has a queue, and
//! the write waits there. When its turn comes, it is decided again, before later writes of the entry. Writes of other
//! entries do not wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

use crate::store::{Precondition, Transaction};

/// Maximum number of queues before those without a waiting write are removed.
const MAX_IDLE_QUEUES: usize = 1024;

/// The entries over which writes recently lost, each with the queue of the writes that try again.
#[derive(Default)]
pub(super) struct ContentionQueues(Mutex<HashMap<Bytes, Weak<Queue<()>>>>);

/// The turn of a write: the first place in the queues of some entries. Dropping it lets the next write continue.
pub(super) struct QueueGuard {
    _guards: Vec<OwnedMutexGuard<()>>,
}

impl ContentionQueues {
    /// Waits for the turn in the queues of these entries. Each queue is served in order of arrival. All writes enter
    /// the queues in the order of the keys, so no two writes wait for each other.
    pub(super) async fn wait_turn(&self, entries: &BTreeSet<Bytes>) -> QueueGuard {
        let mut guards = Vec::with_capacity(entries.len());
        for entry in entries {
            guards.push(self.queue(entry).lock_owned().await);
        }
        QueueGuard { _guards: guards }
    }

    /// Returns the entries that other writes wait for and over which the transaction can lose. A precondition that an
    /// entry is present cannot fail because another write changed the entry, so it does not count.
    pub(super) fn contended_entries(&self, transaction: &Transaction) -> BTreeSet<Bytes> {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.is_empty() {
            return BTreeSet::new();
        }
        let can_lose = |precondition: &&Precondition| !matches!(precondition, Precondition::Present { .. });
        let keys = transaction.preconditions.iter().filter(can_lose).map(Precondition::key);
        keys.filter(|key| queues.get(*key).is_some_and(|queue| queue.strong_count() > 0)).cloned().collect()
    }

    /// Returns the queue of an entry, and creates it if there is none.
    fn queue(&self, entry: &Bytes) -> Arc<Queue<()>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(entry).and_then(Weak::upgrade) {
            return queue;
        }
        if queues.len() >= MAX_IDLE_QUEUES {
            queues.retain(|_, queue| queue.strong_count() > 0);
        }
        let queue = Arc::new(Queue::new(()));
        queues.insert(entry.clone(), Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn contention_queue_serves_in_order_when_entry_is_contended() {
        let contended = Arc::new(ContentionQueues::default());
        let entries = |keys: &[&'static str]| keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect();
        let first = contended.wait_turn(&entries(&["a"])).await;
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        for n in 0..5 {
            let (contended, order) = (Arc::clone(&contended), order.clone());
            let both: BTreeSet<Bytes> = entries(if n % 2 == 0 { &["a", "b"] } else { &["b", "a"] });
            tokio::spawn(async move {
                let _turn = contended.wait_turn(&both).await;
                order.send(n).unwrap();
            });
        }
        tokio::task::yield_now().await;
        let _nobody_waits = contended.wait_turn(&entries(&["c"])).await;
        let depends = |key: &'static str| Transaction::new().require(Precondition::absent(key));
        assert_eq!(contended.contended_entries(&depends("a")).len(), 1);
        assert_eq!(contended.contended_entries(&depends("d")).len(), 0);
        assert_eq!(contended.contended_entries(&Transaction::new().require(Precondition::present("a"))).len(), 0);
        drop(first);
        for n in 0..5 {
            assert_eq!(came.recv().await, Some(n));
        }
        assert_eq!(contended.contended_entries(&depends("a")).len(), 0, "the queue has gone with the last");
    }
}
