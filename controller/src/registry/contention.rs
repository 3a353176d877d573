//! Orders writes that compete for the same entries.
//!
//! A write is decided without a lock. If several writes were decided at one revision and depend on one entry, the store
//! commits only one of them. If all others tried again at once, most would fail again. So each entry over which a write
//! failed has a queue, and the write waits in it. When the write is the first in the queue, it is decided again, before
//! later writes to the entry. Writes to other entries do not wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

use crate::store::{Precondition, Transaction};

/// Number of queues at which the creation of another one removes those in which no write waits or has its turn.
const MAX_IDLE_QUEUES: usize = 1024;

/// The entries over which writes failed recently, each with the queue of the writes that try again.
#[derive(Default)]
pub(super) struct ContentionQueues(Mutex<HashMap<Bytes, Weak<Queue<()>>>>);

/// The turn of a write: the first place in the queues of some entries. When the guard is dropped, the next write
/// continues.
pub(super) struct QueueGuard {
    _guards: Vec<OwnedMutexGuard<()>>,
}

impl ContentionQueues {
    /// Waits until the write is the first in the queue of each of these entries. Writes enter a queue in order of
    /// arrival. All writes enter the queues in the order of the keys, so two writes never wait for each other.
    pub(super) async fn wait_turn(&self, entries: &BTreeSet<Bytes>) -> QueueGuard {
        let mut guards = Vec::with_capacity(entries.len());
        for entry in entries {
            guards.push(self.queue(entry).lock_owned().await);
        }
        QueueGuard { _guards: guards }
    }

    /// Returns the entries over which the transaction can fail and in whose queues a write (perhaps the one of this
    /// transaction) waits or has its turn. An entry that the transaction only requires to be present is left out,
    /// because a change of the entry by another write does not break that precondition.
    pub(super) fn contended_entries(&self, transaction: &Transaction) -> BTreeSet<Bytes> {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.is_empty() {
            return BTreeSet::new();
        }
        let can_fail = |precondition: &&Precondition| !matches!(precondition, Precondition::Present { .. });
        let keys = transaction.preconditions.iter().filter(can_fail).map(Precondition::key);
        keys.filter(|key| queues.get(*key).is_some_and(|queue| queue.strong_count() > 0)).cloned().collect()
    }

    /// Returns the queue of an entry. Creates the queue if the entry has none, and then removes unused queues if there
    /// are many.
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

    /// The first write has its turn for the entry `a`. Five later writes wait for `a` and `b`, which they name in
    /// different orders. A transaction on `a` is contended if it requires the entry to be absent.
    #[tokio::test]
    async fn contention_queue_serves_in_order_when_entry_is_contended() {
        let queues = Arc::new(ContentionQueues::default());
        let entries = |keys: &[&'static str]| keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect();
        let first_turn = queues.wait_turn(&entries(&["a"])).await;
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        for n in 0..5 {
            let (queues, sender) = (Arc::clone(&queues), sender.clone());
            let entry_keys: BTreeSet<Bytes> = entries(if n % 2 == 0 { &["a", "b"] } else { &["b", "a"] });
            tokio::spawn(async move {
                let _turn = queues.wait_turn(&entry_keys).await;
                sender.send(n).unwrap();
            });
        }
        tokio::task::yield_now().await;
        let _turn_of_free_entry = queues.wait_turn(&entries(&["c"])).await;
        let transaction_on_absent = |key: &'static str| Transaction::new().require(Precondition::absent(key));
        assert_eq!(queues.contended_entries(&transaction_on_absent("a")).len(), 1);
        assert_eq!(queues.contended_entries(&transaction_on_absent("d")).len(), 0);
        assert_eq!(queues.contended_entries(&Transaction::new().require(Precondition::present("a"))).len(), 0);
        drop(first_turn);
        for n in 0..5 {
            assert_eq!(receiver.recv().await, Some(n));
        }
        assert_eq!(queues.contended_entries(&transaction_on_absent("a")).len(), 0, "no write waits for `a` any more");
    }
}
