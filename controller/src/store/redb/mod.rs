//! The embedded engine: one redb file, one writer thread, and any number of readers.
//!
//! With one fsync for each commit, a disk's flush rate would limit the whole fleet. So commits that arrive while
//! another is made durable share the next flush (`writer`). Each has its own revision and its own check of
//! preconditions. What redb does on a failing disk or a file that is not a store was measured, and is handled here.
//! Opening a store never creates a file, writes nothing to a file that it refuses (`deferred`), and survives a panic of
//! redb (`open`). After a failed write the store is read-only until it is reopened.

mod apply;
mod changes;
mod deferred;
mod open;
mod schema;
mod snapshot;
mod writer;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;

use ::redb::Database;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};

use super::entry::{Entry, Epoch, Revision};
use super::error::{EngineError, OpenError, StoreError};
use super::stats::Stats;
use super::transaction::{Transaction, TransactionLimits};
use super::watch::{RecentBuffer, Watch};
use super::{BoxFuture, Health, PROGRAM_VERSION, SCHEMA_VERSION, Snapshot, Store, StoreIdentity};
use changes::StoreChangeSource;
use schema::SupersededWindow;
use snapshot::RedbSnapshot;
use writer::{BatchWriter, CommitRequest};

/// The properties that a store gets once, when it is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// The epoch of the new store, see [`StoreIdentity::epoch`].
    pub epoch: Epoch,
    /// The revision after which an empty new store starts: zero for a new fleet. See [`StoreIdentity::base`].
    pub base: Revision,
    /// The record of the fleet in the new store, see [`StoreIdentity::fleet`].
    pub fleet: Bytes,
}

/// The settings of an open store. Only [`RedbOptions::kept_changes`] and [`RedbOptions::kept_bytes`] affect the content
/// of the file: they decide which old changes are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedbOptions {
    /// The limits of one transaction.
    pub limits: TransactionLimits,
    /// Number of the last revisions whose changes the file retains for watches, unless [`RedbOptions::kept_bytes`]
    /// drops them earlier. Changes of older revisions are compacted (dropped) in steps of a sixteenth of this number.
    pub kept_changes: u64,
    /// Maximum size of superseded records (old values that watches may still read), in bytes. When the newer records
    /// reach half of this size, the older ones are dropped, and with them all changes of their revisions. The limit is
    /// four times as high while an open watch has not read the older ones.
    pub kept_bytes: u64,
    /// Maximum number of recent changes that are held in memory for watches.
    pub recent_changes: usize,
    /// Maximum size of the recent changes in memory, in bytes.
    pub recent_bytes: usize,
    /// Maximum number of commits in the queue of the writer. Further callers wait until the queue has room.
    pub queued_commits: usize,
    /// Size at which the writer adds no further queued commit to one flush, in bytes. The last one can exceed it.
    pub full_batch_bytes: usize,
    /// Size of the page cache in memory, in bytes.
    pub cache_bytes: usize,
    /// Maximum size of a file that is verified when it is opened, in bytes. The verification reads the whole file, and
    /// compares every page with its checksum. Without the verification, redb trusts a file that was closed or was
    /// complete at a crash, and returns pages that a bad disk has changed. The verification takes 0.4 s for 257 MB,
    /// which is the size of 100,000 objects with one stored version each. A file above the maximum opens at once,
    /// without verification.
    pub verified_bytes: u64,
}

impl Default for RedbOptions {
    fn default() -> Self {
        let limits = TransactionLimits {
            max_ops: 65_536,
            max_bytes: 64 << 20,
            max_key_bytes: 1024,
            // No flag of another program raises these limits.
            ops_raised_by: None,
            bytes_raised_by: None,
        };
        Self {
            limits,
            kept_changes: 10_000,
            kept_bytes: 128 << 20,
            recent_changes: 4096,
            recent_bytes: 16 << 20,
            queued_commits: 1024,
            full_batch_bytes: 8 << 20,
            cache_bytes: 64 << 20,
            verified_bytes: 256 << 20,
        }
    }
}

/// A store in one redb file.
pub struct RedbStore {
    shared: Arc<StoreShared>,
    /// `None` only while the store is dropped. The writer ends when the last sender is dropped.
    queue: Option<mpsc::Sender<CommitRequest>>,
    writer: Option<JoinHandle<()>>,
}

/// The state that readers, watchers and the writer share.
struct StoreShared {
    database: Database,
    identity: StoreIdentity,
    options: RedbOptions,
    head: watch::Sender<Revision>,
    /// The last compacted revision. The store has the changes of all later revisions.
    compacted: AtomicU64,
    /// A revision, and the total size of the records that were superseded (replaced or deleted) after it.
    superseded: Mutex<SupersededWindow>,
    /// The revision that each open watch (follower) reads next. The weak references of closed watches are dead.
    followers: Mutex<Vec<Weak<AtomicU64>>>,
    recent: RecentBuffer,
    stats: Stats,
    /// True if the file names this version of the program as its last writer. If false, the next commit that changes
    /// something writes this name.
    is_program_written: AtomicBool,
    /// The error of the first failed write. While it is set, the store is read-only. Only reopening the store clears
    /// it.
    failure: OnceLock<EngineError>,
}

impl RedbStore {
    /// Creates a new store at `path` and opens it. A crash leaves a complete store at `path`, or none.
    ///
    /// # Errors
    /// [`OpenError::Exists`] if anything is at `path` already. [`OpenError::Io`].
    pub fn create(path: &Path, create: &CreateOptions, options: RedbOptions) -> Result<Self, OpenError> {
        Self::start(open::create_file(path, create, &options)?, options, path)
    }

    /// Creates a new store at `path` with the entries of the iterator, and closes the store. The first commit in it
    /// gets the revision after `revision`. A crash leaves a complete store at `path`, or none.
    ///
    /// # Errors
    /// [`OpenError::Exists`] if anything is at `path` already. [`OpenError::Io`], also if the iterator fails, or if an
    /// entry is newer than `revision`, is otherwise invalid, or occurs twice.
    pub fn import(
        path: &Path,
        create: &CreateOptions,
        revision: Revision,
        entries: &mut dyn Iterator<Item = io::Result<Entry>>,
    ) -> Result<(), OpenError> {
        let options = RedbOptions::default();
        open::create_with_entries(path, create, &options, |database| schema::write_entries(database, revision, entries)).map(drop)
    }

    /// Opens the store at `path`. Never creates one.
    ///
    /// # Errors
    /// Every [`OpenError`] except `Exists`. After an error other than `Io` the file is unchanged, byte for byte.
    pub fn open(path: &Path, options: RedbOptions) -> Result<Self, OpenError> {
        Self::start(open::open_file(path, SCHEMA_VERSION, &options)?, options, path)
    }

    /// Reads the properties of an opened store, and starts its writer thread.
    fn start(database: Database, options: RedbOptions, path: &Path) -> Result<Self, OpenError> {
        let meta =
            schema::read_meta(&database).map_err(|cause| OpenError::Damaged { path: path.to_owned(), cause: cause.into() })?;
        // A store has no window before its first commit, or if an older version of the program wrote it. The file is
        // then treated as if half of the limit was reached, so older records are dropped with the next commits.
        let window = meta.superseded.unwrap_or(SupersededWindow { since: meta.revision, bytes: options.kept_bytes / 2 });
        let (sender, queue) = mpsc::channel(options.queued_commits.max(1));
        let shared = Arc::new(StoreShared {
            database,
            is_program_written: AtomicBool::new(meta.identity.written_by.as_deref() == Some(PROGRAM_VERSION)),
            identity: meta.identity,
            head: watch::Sender::new(meta.revision),
            compacted: AtomicU64::new(meta.compacted.get()),
            superseded: Mutex::new(window),
            followers: Mutex::default(),
            recent: RecentBuffer::new(options.recent_changes, options.recent_bytes),
            stats: Stats::new(meta.revision),
            failure: OnceLock::new(),
            options,
        });
        let writer = BatchWriter::new(Arc::clone(&shared), queue)
            .spawn()
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        Ok(Self { shared, queue: Some(sender), writer: Some(writer) })
    }

    /// Checks a transaction, queues it for the writer, and waits for the result.
    async fn enqueue(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        transaction.check(&self.shared.options.limits)?;
        self.shared.check_writable()?;
        let queue = self.queue.as_ref().ok_or(StoreError::Closed)?;
        let (answer, receiver) = oneshot::channel();
        queue.send(CommitRequest { transaction, answer }).await.map_err(|_| StoreError::Closed)?;
        // The writer answers every request, unless its thread dies. Then the outcome is unknown.
        receiver.await.unwrap_or_else(|error| Err(StoreError::OutcomeUnknown { cause: Arc::new(error) }))
    }
}

impl Store for RedbStore {
    fn identity(&self) -> &StoreIdentity {
        &self.shared.identity
    }

    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(async { Ok(self.shared.head()) })
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(self.enqueue(transaction))
    }

    /// Returns a future that is ready at its first poll, as are the futures of the snapshot. A read takes microseconds
    /// if its pages are in memory, and otherwise blocks the thread while it reads the file.
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>> {
        Box::pin(async { Ok(Box::new(RedbSnapshot::begin(&self.shared.database)?) as Box<dyn Snapshot>) })
    }

    fn watch(&self, from: Revision) -> Watch {
        // Revision zero has no change, so a watch from zero starts at revision one.
        Watch::new(Box::new(StoreChangeSource::new(&self.shared, from.max(Revision::ZERO.next()))), from)
    }

    fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    fn health(&self) -> Health {
        match self.shared.failure.get() {
            None => Health::Writable,
            Some(cause) => Health::ReadOnly { reason: format!("a write failed: {cause}") },
        }
    }
}

impl Drop for RedbStore {
    /// Waits until queued commits are durable, and closes the file.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has reported it, and has answered or dropped all requests.
            let _ = writer.join();
        }
    }
}

impl StoreShared {
    fn head(&self) -> Revision {
        *self.head.borrow()
    }

    fn window(&self) -> MutexGuard<'_, SupersededWindow> {
        self.superseded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn followers(&self) -> MutexGuard<'_, Vec<Weak<AtomicU64>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an open watch (follower), by the revision that it reads next. Removes closed watches.
    fn add_follower(&self, next: &Arc<AtomicU64>) {
        let mut followers = self.followers();
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(Arc::downgrade(next));
    }

    /// Returns the revision that the slowest open watch (follower) reads next. Ignores watches that need compacted
    /// changes, because these must list everything again anyway. Returns `None` if no other watch is open.
    fn slowest_follower(&self) -> Option<Revision> {
        let next = |follower: &Weak<AtomicU64>| follower.upgrade().map(|next| Revision::new(next.load(Ordering::Acquire)));
        let compacted = self.compacted();
        self.followers().iter().filter_map(next).filter(|next| *next > compacted).min()
    }

    fn compacted(&self) -> Revision {
        Revision::new(self.compacted.load(Ordering::Acquire))
    }

    /// Fails with [`StoreError::ReadOnly`] if an earlier write failed.
    fn check_writable(&self) -> Result<(), StoreError> {
        match self.failure.get() {
            None => Ok(()),
            Some(cause) => Err(StoreError::ReadOnly { cause: Arc::clone(cause) }),
        }
    }
}
