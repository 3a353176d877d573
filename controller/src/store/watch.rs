//! Changes in the order of revisions, pulled by the watcher.
//!
//! A watcher has a position, not a queue. Recent changes are in memory once, for all watchers. Older ones are read from
//! what the engine keeps. So a slow watcher needs no memory of its own. The engine may retain old values longer for a
//! slow watcher, up to a limit. A watcher that needs changes that were dropped gets an error.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::BoxFuture;
use super::entry::Revision;
use super::error::WatchError;

/// The changes of one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The revision.
    pub revision: Revision,
    /// The changes of single keys, in the order in which the operations were done: deletes first. A delete of a missing
    /// entry changes nothing and has no event.
    pub events: Vec<Event>,
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Bytes,
    /// The kind of the change.
    pub kind: EventKind,
}

/// The kind of a change of one key: a put or a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// An entry was written at the key.
    Put {
        /// The value as of this revision.
        value: Bytes,
        /// The revision that created the entry. It is this revision if the entry is new.
        create_revision: Revision,
        /// Number of writes of the entry since its creation. The creation is the first write.
        version: u64,
    },
    /// The entry at the key existed and was deleted.
    Delete,
}

impl Change {
    /// Returns the approximate size of the change in memory, in bytes.
    fn size_bytes(&self) -> usize {
        let event = |event: &Event| {
            let value = if let EventKind::Put { value, .. } = &event.kind { value.len() } else { 0 };
            size_of::<Event>() + event.key.len() + value
        };
        size_of::<Self>() + self.events.iter().map(event).sum::<usize>()
    }
}

/// The last changes of the store, in memory once for all watches. Their number and their total size are limited.
#[derive(Debug)]
pub(super) struct RecentBuffer {
    max_changes: usize,
    max_bytes: usize,
    changes: Mutex<RecentChanges>,
}

#[derive(Debug, Default)]
struct RecentChanges {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
}

impl RecentBuffer {
    pub(super) fn new(max_changes: usize, max_bytes: usize) -> Self {
        Self { max_changes, max_bytes, changes: Mutex::default() }
    }

    /// Adds changes, and drops the oldest ones until the limits hold.
    pub(super) fn push(&self, changes: impl IntoIterator<Item = Change>) {
        // No critical section below leaves the deque partly changed, so a poisoned lock is ignored.
        let mut recent = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            recent.bytes += change.size_bytes();
            recent.changes.push_back(Arc::new(change));
            while recent.changes.len() > self.max_changes || recent.bytes > self.max_bytes {
                let Some(oldest) = recent.changes.pop_front() else { break };
                recent.bytes -= oldest.size_bytes();
            }
        }
    }

    /// Returns the change of a revision, or `None` if it is not in memory. Revisions have no gaps, so the index of the
    /// change follows from the revision of the oldest one.
    pub(super) fn get(&self, revision: Revision) -> Option<Arc<Change>> {
        let recent = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest_revision = recent.changes.front()?.revision.get();
        let index = usize::try_from(revision.get().checked_sub(oldest_revision)?).ok()?;
        recent.changes.get(index).cloned()
    }
}

/// The source of a watch's changes, implemented by an engine.
pub trait ChangeSource: Send + Sync {
    /// Waits until a revision is durable, and returns its change. A caller can drop the future and request the change
    /// again.
    ///
    /// # Errors
    /// [`WatchError`] if the change was compacted or cannot be read, or if the store is closed.
    fn change(&self, revision: Revision) -> BoxFuture<'_, Result<Arc<Change>, WatchError>>;
}

/// A reader of the changes of a store, one revision after the other.
pub struct Watch {
    source: Box<dyn ChangeSource>,
    next: Revision,
}

impl Watch {
    /// Creates a watch whose first change is that of the revision `from`, or of revision 1 if `from` is zero.
    pub fn new(source: Box<dyn ChangeSource>, from: Revision) -> Self {
        // Revision zero has no change, so a watch from zero starts at the first change.
        Self { source, next: from.max(Revision::ZERO.next()) }
    }

    /// Waits until the next change is durable, and returns it. If the future is dropped before it is ready, the next
    /// call returns the same change.
    ///
    /// # Errors
    /// [`WatchError`] if the change was compacted or cannot be read, or if the store is closed. After an error, the
    /// next call tries to read the same change.
    pub async fn next(&mut self) -> Result<Arc<Change>, WatchError> {
        let change = self.source.change(self.next).await?;
        self.next = self.next.next();
        Ok(change)
    }
}
