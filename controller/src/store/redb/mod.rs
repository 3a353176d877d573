//! The embedded engine: one redb file, one writer thread, as many readers as there are.
//!
//! One fsync each would hold a fleet to what a disk can flush; so commits that arrive while another is being made durable
//! share the next one (`writer`), each with a revision and a judgement of its own. What redb does on a failing or
//! foreign file was measured, and is answered here: opening never creates, writes nothing to a file that it refuses
//! (`deferred`), and survives a panic (`open`); after a write that failed the store is read-only until it is reopened.

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
use super::error::{Cause, OpenError, StoreError};
use super::stats::Stats;
use super::transaction::{Limits, Transaction};
use super::watch::{Recent, Watch};
use super::{BoxFuture, Health, Identity, PROGRAM, SCHEMA, Snapshot, Store};
use changes::KeptChanges;
use schema::Window;
use snapshot::RedbSnapshot;
use writer::{Request, Writer};

/// What is said once, when a store is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// See [`Identity::epoch`].
    pub epoch: Epoch,
    /// The last revision of the store that this one carries on; zero for a new fleet.
    pub base: Revision,
    /// See [`Identity::fleet`].
    pub fleet: Bytes,
}

/// The bounds that one opening of a store works within. None of them changes what the file holds, but for
/// [`RedbOptions::kept_changes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedbOptions {
    /// The bounds of one transaction.
    pub limits: Limits,
    /// How many revisions can be watched from after a restart; older ones are compacted.
    pub kept_changes: u64,
    /// How many bytes of what they superseded; what is older than half of it goes when there is as much again, and followers have
    /// read it.
    pub kept_bytes: u64,
    /// How many of the last changes are held in memory for watchers.
    pub recent_changes: usize,
    /// How many bytes they may take.
    pub recent_bytes: usize,
    /// How many commits may wait; further callers wait for a place.
    pub queued_commits: usize,
    /// How many bytes of waiting commits are made durable at once. A single larger one goes alone.
    pub batch_bytes: usize,
    /// How many bytes of pages are held in memory.
    pub cache_bytes: usize,
    /// A file up to this size is read whole when it is opened, and every page compared with its checksum: redb itself trusts
    /// a file that was closed, or was whole when it crashed, and gives out what a bad disk made of it. It costs 0.4 s for the
    /// 257 MB of 100,000 objects with an after-image each; a larger file opens at once, and trusted.
    pub verified_bytes: u64,
}

impl Default for RedbOptions {
    fn default() -> Self {
        let limits = Limits {
            max_ops: 65_536,
            max_bytes: 64 << 20,
            max_key_bytes: 1024,
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
            batch_bytes: 8 << 20,
            cache_bytes: 64 << 20,
            verified_bytes: 256 << 20,
        }
    }
}

/// A store in one redb file.
pub struct RedbStore {
    shared: Arc<Shared>,
    /// `None` only while being dropped: the writer leaves when the last sender is gone.
    queue: Option<mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
}

/// What readers, watchers and the writer have in common.
struct Shared {
    database: Database,
    identity: Identity,
    options: RedbOptions,
    head: watch::Sender<Revision>,
    /// The last revision whose change is no longer kept.
    compacted: AtomicU64,
    /// The writer's own account of what it superseded.
    window: Mutex<Window>,
    /// What each follower reads next.
    followers: Mutex<Vec<Weak<AtomicU64>>>,
    recent: Recent,
    stats: Stats,
    /// Whether the file says that this program wrote to it. What only opens it leaves that as it is.
    is_signed: AtomicBool,
    /// The first failure of a write. Set once: only reopening clears it.
    failure: OnceLock<Cause>,
}

impl RedbStore {
    /// Makes a new store at `path` and opens it. It appears there whole, or not at all.
    ///
    /// # Errors
    /// [`OpenError::Exists`] when anything is there already, [`OpenError::Io`].
    pub fn create(path: &Path, create: &CreateOptions, options: RedbOptions) -> Result<Self, OpenError> {
        Self::start(open::create_file(path, create, &options)?, options, path)
    }

    /// Makes a new store at `path` that holds these entries, and goes on behind this revision. It appears there whole, or not at all.
    ///
    /// # Errors
    /// [`OpenError::Exists`] when anything is there already, [`OpenError::Io`].
    pub fn import(
        path: &Path,
        create: &CreateOptions,
        revision: Revision,
        entries: &mut dyn Iterator<Item = io::Result<Entry>>,
    ) -> Result<(), OpenError> {
        let options = RedbOptions::default();
        open::create_filled(path, create, &options, |database| schema::fill(database, revision, entries)).map(drop)
    }

    /// Opens the store at `path`. Never makes one.
    ///
    /// # Errors
    /// Every [`OpenError`] but `Exists`; the file is then byte for byte as it was.
    pub fn open(path: &Path, options: RedbOptions) -> Result<Self, OpenError> {
        Self::start(open::open_file(path, SCHEMA, &options)?, options, path)
    }

    fn start(database: Database, options: RedbOptions, path: &Path) -> Result<Self, OpenError> {
        let meta = schema::read_meta(&database)
            .map_err(|cause| OpenError::Damaged { path: path.to_owned(), cause: cause.into() })?;
        // How much was superseded by a version that did not count it is not known: it goes with the next commits.
        let window = meta.superseded.unwrap_or(Window { since: meta.revision, bytes: options.kept_bytes / 2 });
        let (sender, queue) = mpsc::channel(options.queued_commits.max(1));
        let shared = Arc::new(Shared {
            database,
            is_signed: AtomicBool::new(meta.identity.written_by.as_deref() == Some(PROGRAM)),
            identity: meta.identity,
            head: watch::Sender::new(meta.revision),
            compacted: AtomicU64::new(meta.compacted.get()),
            window: Mutex::new(window),
            followers: Mutex::default(),
            recent: Recent::new(options.recent_changes, options.recent_bytes),
            stats: Stats::at(meta.revision),
            failure: OnceLock::new(),
            options,
        });
        let writer = Writer::new(Arc::clone(&shared), queue)
            .spawn()
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        Ok(Self { shared, queue: Some(sender), writer: Some(writer) })
    }

    async fn enqueue(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        transaction.check(&self.shared.options.limits)?;
        self.shared.check_writable()?;
        let queue = self.queue.as_ref().ok_or(StoreError::Closed)?;
        let (answer, answered) = oneshot::channel();
        queue.send(Request { transaction, answer }).await.map_err(|_| StoreError::Closed)?;
        // The writer answers whatever it takes, unless its thread dies; what it then did is not known.
        answered.await.unwrap_or_else(|gone| Err(StoreError::OutcomeUnknown { cause: Arc::new(gone) }))
    }
}

impl Store for RedbStore {
    fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(async { Ok(self.shared.head()) })
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(self.enqueue(transaction))
    }

    /// Answered at once, as are the reads of a snapshot: they cost microseconds where the pages are in memory.
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>> {
        Box::pin(async { Ok(Box::new(RedbSnapshot::begin(&self.shared.database)?) as Box<dyn Snapshot>) })
    }

    fn watch(&self, from: Revision) -> Watch {
        Watch::new(Box::new(KeptChanges::of(&self.shared, from.max(Revision::ZERO.next()))), from)
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
    /// Waits for what was asked to be durable, and lets go of the file.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has said so, and has answered or dropped everyone who waited.
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn head(&self) -> Revision {
        *self.head.borrow()
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn followers(&self) -> MutexGuard<'_, Vec<Weak<AtomicU64>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_follower(&self, next: &Arc<AtomicU64>) {
        let mut followers = self.followers();
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(Arc::downgrade(next));
    }

    /// What the slowest follower reads next, of those for whom it is still there.
    fn followed(&self) -> Option<Revision> {
        let next =
            |follower: &Weak<AtomicU64>| follower.upgrade().map(|next| Revision::new(next.load(Ordering::Acquire)));
        let compacted = self.compacted();
        self.followers().iter().filter_map(next).filter(|next| *next > compacted).min()
    }

    fn compacted(&self) -> Revision {
        Revision::new(self.compacted.load(Ordering::Acquire))
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        match self.failure.get() {
            None => Ok(()),
            Some(cause) => Err(StoreError::ReadOnly { cause: Arc::clone(cause) }),
        }
    }
}
