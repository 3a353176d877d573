//! Everything a fleet is stands in one ordered map of bytes, and this is the contract of that map.
//!
//! The semantics are etcd's, because an embedded engine can imitate etcd and etcd can imitate nothing else: one
//! [`Revision`] for the whole store, entries that say which revision made and last wrote them, commits that are atomic
//! under [`Precondition`]s, lists that return the revision they were read at, and a [`Watch`] that gives every change in
//! the order of revisions or says that it was compacted away. What keys mean is the registry's affair: nothing here knows
//! a domain type, so that every engine can be held to one suite (`conformance`) and none can grow rules of its own.
//!
//! Every call that may have to ask the engine is asynchronous, since an engine may stand across a network: nobody may hold a thread
//! or a lock for an answer. A decision therefore reads the cache, and asks for the rest before it is made. A commit is answered when
//! it is durable, and an engine may make many concurrent ones durable at once. There is no "write without waiting": who acknowledges
//! must be able to stand by it.

#[cfg(test)]
pub(crate) mod conformance;
mod entry;
mod error;
#[cfg(test)]
pub(crate) mod faulty;
#[cfg(test)]
mod late;
pub mod redb;
mod sizes;
mod stats;
mod sweep;
mod transaction;
mod watch;

use std::future::Future;
use std::pin::Pin;

pub use entry::{Entry, Epoch, KeyRange, List, Order, Query, Revision};
pub use error::{Cause, OpenError, StoreError, WatchError};
pub use redb::{CreateOptions, RedbOptions, RedbStore};
pub use stats::Stats;
pub use sweep::{Over, drop_unchanged, sweep};
pub use transaction::{Limits, Op, Precondition, Refusal, ShownKey, Transaction, Unmet};
pub use watch::{Change, ChangeSource, Event, EventKind, Watch};

use bytes::Bytes;

/// The version of what stands in a store: the engine's layout and the records above it. It is raised by every change
/// that an older program would misread; a program opens every version up to its own and refuses a later one untouched.
pub const SCHEMA: u32 = 1;

/// The name and version that a store keeps of the program that wrote to it.
pub const PROGRAM: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An engine under the store contract.
///
/// Shared as `Arc<dyn Store>`. What each method promises is tested for every engine by `conformance`.
pub trait Store: Send + Sync + 'static {
    /// What this store says of itself.
    fn identity(&self) -> &Identity;

    /// The last durable revision. It never falls, and every read begun afterwards is at this revision or a later one.
    ///
    /// # Errors
    /// [`StoreError::Read`] or [`StoreError::Closed`].
    fn head(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// Commits a transaction: all of it or nothing, and answers when it is durable, with the revision it got.
    ///
    /// Transactions are ordered: each is judged against what those before it left. One that changes nothing (no
    /// operations, or only deletes of absent keys) gets no revision of its own and answers the one it was judged at.
    /// Dropping the future does not take a transaction back.
    ///
    /// # Errors
    /// [`StoreError::Refused`] and [`StoreError::PreconditionFailed`]: nothing was written. [`StoreError::OutcomeUnknown`]:
    /// the engine failed in the middle, and only a read after reopening tells. [`StoreError::ReadOnly`]: nothing was
    /// written, nor will be until the store is opened again.
    fn commit(&self, transaction: Transaction) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// A consistent view of the whole store as of one revision, which stays as it is while commits go on.
    ///
    /// Keep it for a request, not longer: an engine keeps what a snapshot can see.
    ///
    /// # Errors
    /// [`StoreError::Read`] or [`StoreError::Closed`].
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>, StoreError>>;

    /// Every change from `from` on, which itself is included; `from` may be yet to come. After a list at revision r, watch from
    /// `r.next()`.
    fn watch(&self, from: Revision) -> Watch;

    /// Counters since this store was opened.
    fn stats(&self) -> &Stats;

    /// Whether commits can succeed; `/readyz` says so.
    fn health(&self) -> Health;
}

/// A consistent view of a store as of one revision.
pub trait Snapshot: Send + Sync {
    /// The revision that is seen.
    fn revision(&self) -> Revision;

    /// The entry at `key`, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Read`] or [`StoreError::Corrupt`].
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Entry>, StoreError>>;

    /// The entries of a range in the order of their keys, as many as the limits of number and bytes allow, and whether there are more.
    ///
    /// # Errors
    /// [`StoreError::Read`] or [`StoreError::Corrupt`].
    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<List, StoreError>>;
}

/// What a store says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Tells this line of revisions from every other: agents refuse another without a signed change of epoch.
    pub epoch: Epoch,
    /// What this store's revisions start above; not zero in one that carries on another's line.
    pub base: Revision,
    /// The version of what stands in the store, see [`SCHEMA`].
    pub schema: u32,
    /// The name and version of the program that wrote it last, before it was opened; `None` where that program kept none.
    pub written_by: Option<String>,
    /// What the creator wrote about the fleet; not read here.
    pub fleet: Bytes,
}

/// Whether a store takes commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Commits are taken.
    Writable,
    /// An earlier write failed; reads go on, commits are refused until the store is opened again.
    ReadOnly {
        /// The failure, for people.
        reason: String,
    },
}
