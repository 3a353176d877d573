//! Changes in the order of revisions, pulled by whoever watches.
//!
//! A watcher holds a position, not a queue: recent changes stand once in memory for all, older ones are read from what the
//! engine keeps. So a watcher that falls behind costs nothing, and one that falls behind what is kept is told so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::BoxFuture;
use super::entry::Revision;
use super::error::WatchError;

/// What one revision changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which revision.
    pub revision: Revision,
    /// Its events, in the order of its operations.
    pub events: Vec<Event>,
}

/// What became of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Bytes,
    /// What became of it.
    pub kind: EventKind,
}

/// What became of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// It was written.
    Put {
        /// What stands there as of this revision.
        value: Bytes,
        /// The revision that made it: this one, if it is new.
        create_revision: Revision,
        /// How often it was written since.
        version: u64,
    },
    /// It was there, and was taken away.
    Delete,
}

impl Change {
    /// What it holds in memory, roughly.
    fn size_bytes(&self) -> usize {
        let event = |event: &Event| {
            let value = if let EventKind::Put { value, .. } = &event.kind { value.len() } else { 0 };
            size_of::<Event>() + event.key.len() + value
        };
        size_of::<Self>() + self.events.iter().map(event).sum::<usize>()
    }
}

/// The last changes, in memory, bounded in number and bytes.
#[derive(Debug)]
pub(super) struct Recent {
    max_changes: usize,
    max_bytes: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
}

impl Recent {
    pub(super) fn new(max_changes: usize, max_bytes: usize) -> Self {
        Self { max_changes, max_bytes, held: Mutex::default() }
    }

    pub(super) fn push(&self, changes: impl IntoIterator<Item = Change>) {
        // No critical section below leaves the deque half changed, so a poisoned lock is read through.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            held.bytes += change.size_bytes();
            held.changes.push_back(Arc::new(change));
            while held.changes.len() > self.max_changes || held.bytes > self.max_bytes {
                let Some(oldest) = held.changes.pop_front() else { break };
                held.bytes -= oldest.size_bytes();
            }
        }
    }

    /// The change of this very revision. Revisions have no gaps, so its place follows from the first one's.
    pub(super) fn get(&self, revision: Revision) -> Option<Arc<Change>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let first = held.changes.front()?.revision.get();
        let place = usize::try_from(revision.get().checked_sub(first)?).ok()?;
        held.changes.get(place).cloned()
    }
}

/// Where a watch gets its changes: what an engine has to give.
pub trait ChangeSource: Send + Sync {
    /// The change of one revision, as soon as it is durable. It may be asked for again, also after the future was dropped.
    fn change(&self, revision: Revision) -> BoxFuture<'_, Result<Arc<Change>, WatchError>>;
}

/// A position in the changes of a store.
pub struct Watch {
    source: Box<dyn ChangeSource>,
    next: Revision,
}

impl Watch {
    /// A watch from a revision on.
    pub fn new(source: Box<dyn ChangeSource>, from: Revision) -> Self {
        // Nothing ever happened at revision zero, so to watch from there is to watch from the first change.
        Self { source, next: from.max(Revision::ZERO.next()) }
    }

    /// The next change, as soon as it is durable. No revision is left out. Safe to be dropped and called again.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] when it is no longer kept, [`StoreError::Closed`](super::StoreError::Closed) when the store is gone.
    /// The position stays.
    pub async fn next(&mut self) -> Result<Arc<Change>, WatchError> {
        let change = self.source.change(self.next).await?;
        self.next = self.next.next();
        Ok(change)
    }
}
