//! Who writes next where many write to one object.
//!
//! A write is decided without a lock. Of several writes that were decided on one revision, the store commits one. If the others
//! all tried again at once, most would lose again. So a write that lost waits in the queue of the entry it lost over. It is decided
//! again when its turn comes, and goes before later writes. Writes of other entries meet no queue.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

use crate::store::{Precondition, Transaction};

/// How many queues are kept before those that nobody stands in are let go.
const MOST_IDLE: usize = 1024;

/// The entries over which writes were lost lately, each with the queue of those who try again.
#[derive(Default)]
pub(super) struct Contended(Mutex<HashMap<Bytes, Weak<Queue<()>>>>);

/// The place at the head of some queues. Dropping it lets the next write go on.
pub(super) struct Turn {
    _held: Vec<OwnedMutexGuard<()>>,
}

impl Contended {
    /// Waits for the turn in the queues of these entries, first come, first served. The queues are entered in the order of their
    /// keys, so two writes never wait for each other.
    pub(super) async fn turn(&self, entries: &BTreeSet<Bytes>) -> Turn {
        let mut held = Vec::with_capacity(entries.len());
        for entry in entries {
            held.push(self.queue(entry).lock_owned().await);
        }
        Turn { _held: held }
    }

    /// The entries that a transaction can lose over and that other writes wait for. A precondition that an entry is present cannot
    /// be lost to another write of the entry, so it does not count.
    pub(super) fn met(&self, transaction: &Transaction) -> BTreeSet<Bytes> {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.is_empty() {
            return BTreeSet::new();
        }
        let can_lose = |precondition: &&Precondition| !matches!(precondition, Precondition::Present { .. });
        let keys = transaction.preconditions.iter().filter(can_lose).map(Precondition::key);
        keys.filter(|key| queues.get(*key).is_some_and(|queue| queue.strong_count() > 0)).cloned().collect()
    }

    fn queue(&self, entry: &Bytes) -> Arc<Queue<()>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(entry).and_then(Weak::upgrade) {
            return queue;
        }
        if queues.len() >= MOST_IDLE {
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
    async fn whoever_comes_first_goes_first_and_other_entries_wait_for_nobody() {
        let contended = Arc::new(Contended::default());
        let entries = |keys: &[&'static str]| keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect();
        let first = contended.turn(&entries(&["a"])).await;
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        for n in 0..5 {
            let (contended, order) = (Arc::clone(&contended), order.clone());
            let both: BTreeSet<Bytes> = entries(if n % 2 == 0 { &["a", "b"] } else { &["b", "a"] });
            tokio::spawn(async move {
                let _turn = contended.turn(&both).await;
                order.send(n).unwrap();
            });
        }
        tokio::task::yield_now().await;
        let _nobody_waits = contended.turn(&entries(&["c"])).await;
        let depends = |key: &'static str| Transaction::new().require(Precondition::absent(key));
        assert_eq!(contended.met(&depends("a")).len(), 1);
        assert_eq!(contended.met(&depends("d")).len(), 0);
        assert_eq!(contended.met(&Transaction::new().require(Precondition::present("a"))).len(), 0);
        drop(first);
        for n in 0..5 {
            assert_eq!(came.recv().await, Some(n));
        }
        assert_eq!(contended.met(&depends("a")).len(), 0, "the queue has gone with the last");
    }
}
