//! The contract of the store: one ordered map of bytes that contains the whole state of a fleet.
//!
//! The semantics are etcd's, because an embedded engine can imitate etcd, but etcd cannot imitate another engine. The
//! whole store has one [`Revision`]. Entries contain the revisions that created and last wrote them. Commits are atomic
//! under [`Precondition`]s. Lists return the revision at which they were read. A [`Watch`] returns every change in the
//! order of revisions, or reports that it was compacted. The registry defines what keys mean. Nothing here knows a
//! domain type, so one suite (`conformance`) tests every engine, and no engine can add rules of its own.
//!
//! Every call that may reach the engine is asynchronous, since an engine may be across a network. A caller must not
//! block a thread or hold a lock while it waits. Decisions therefore use the cache, and read the rest before they
//! start. A commit returns when it is durable, and an engine may make many concurrent commits durable at once. There is
//! no write that returns earlier: a caller that acknowledges a write must be able to rely on it.

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(test)]
mod delayed;
mod entry;
mod error;
#[cfg(test)]
pub(crate) mod faulty;
pub mod redb;
mod sizes;
mod stats;
mod sweep;
mod transaction;
mod watch;

use std::future::Future;
use std::pin::Pin;

pub use entry::{Entry, EntryList, Epoch, KeyRange, ListQuery, Revision, SortOrder};
pub use error::{EngineError, OpenError, StoreError, WatchError};
pub use redb::{CreateOptions, RedbOptions, RedbStore};
pub use stats::Stats;
pub use sweep::{ExpiredEntry, drop_if_unchanged, sweep};
pub use transaction::{KeyDisplay, Op, Precondition, Refusal, Transaction, TransactionLimits, UnmetPrecondition};
pub use watch::{Change, ChangeSource, Event, EventKind, Watch};

use bytes::Bytes;

/// The version of the schema: of the engine's layout and of the records that it stores. Every change that an older
/// program would misread raises the version. A program opens every version up to its own, and refuses a newer one
/// without changing it.
pub const SCHEMA_VERSION: u32 = 1;

/// The name and version of this program. A store records the program that last wrote to it.
pub const PROGRAM_VERSION: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A storage engine.
///
/// A store is shared as `Arc<dyn Store>`. The tests in the module `conformance` check the rules below for every engine.
pub trait Store: Send + Sync + 'static {
    /// Returns the identity of this store.
    fn identity(&self) -> &StoreIdentity;

    /// Returns the last durable revision. It never decreases, and every later read is at this revision or a newer one.
    ///
    /// # Errors
    /// [`StoreError::Read`] or [`StoreError::Closed`].
    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// Commits a transaction, all of it or nothing. Returns its revision when it is durable.
    ///
    /// Transactions are ordered. The preconditions of a transaction are checked against the result of all transactions
    /// before it. A transaction that changes nothing (it has no operations, or only deletes absent keys) creates no
    /// revision, and returns the revision at which it was checked. If the future is dropped before it is ready, the
    /// transaction is committed as a whole or not at all.
    ///
    /// # Errors
    /// [`StoreError::Refused`], [`StoreError::PreconditionFailed`] or [`StoreError::Closed`]: nothing was written.
    /// [`StoreError::OutcomeUnknown`]: the engine failed during the write. Only a read after the store was reopened
    /// shows the outcome. [`StoreError::ReadOnly`]: nothing was written. The store accepts no writes until it is
    /// reopened.
    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// Returns a consistent view of the whole store at one revision. Later commits do not change it.
    ///
    /// A caller must drop a snapshot when the request that it serves ends, or earlier. Until then, the engine retains
    /// all old data that the snapshot can read.
    ///
    /// # Errors
    /// [`StoreError::Read`], [`StoreError::Corrupt`] or [`StoreError::Closed`].
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>>;

    /// Returns a watch of every change from the revision `from` on, with the change of `from` itself. `from` may be in
    /// the future. To continue after a list, watch from the revision after that of the list. [`Watch::next`] fails if
    /// the change was compacted.
    fn watch(&self, from: Revision) -> Watch;

    /// Returns the statistics of this store: its last revision, sizes, and counters since it was opened.
    fn stats(&self) -> &Stats;

    /// Returns whether the store accepts commits. `/readyz` reports the result.
    fn health(&self) -> Health;
}

/// A consistent view of a store at one revision.
pub trait Snapshot: Send + Sync {
    /// Returns the revision at which the snapshot reads.
    fn revision(&self) -> Revision;

    /// Returns the entry at `key`, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Read`] or [`StoreError::Corrupt`].
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Entry>, StoreError>>;

    /// Returns the entries that a query selects, in its order and up to its limits, and whether more entries exist.
    ///
    /// # Errors
    /// [`StoreError::Read`] or [`StoreError::Corrupt`].
    fn list<'a>(&'a self, query: &'a ListQuery) -> BoxFuture<'a, Result<EntryList, StoreError>>;
}

/// The properties of a store that identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreIdentity {
    /// The first epoch of the fleet. A restored store has the same first epoch. If the store has a record of the
    /// history of epochs, that record contains the current epoch.
    pub epoch: Epoch,
    /// The revision after which the revisions of the store start. It is zero for a new fleet. A restored store has the
    /// base of the store that was backed up, although the first commit after the restore gets a later revision.
    pub base: Revision,
    /// The schema version of the store, see [`SCHEMA_VERSION`].
    pub schema: u32,
    /// The name and version of the program that last wrote to the store before it was opened, or `None` if none is
    /// recorded.
    pub written_by: Option<String>,
    /// Data about the fleet, which the creator of the store supplied. The store itself does not read these bytes.
    pub fleet: Bytes,
}

/// The ability of a store to accept commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Commits are accepted.
    Writable,
    /// A write failed earlier. Reads succeed, and commits are refused until the store is reopened.
    ReadOnly {
        /// The failure, as text for people.
        reason: String,
    },
}
