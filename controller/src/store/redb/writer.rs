//! The one thread that writes: what waits is made durable together, and answered together.
//!
//! A flush costs the same for one transaction as for a hundred, and while it runs the next ones arrive; so the batch is
//! whatever waits when the last one is done, without a timer. A lone writer never waits for company.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use log::error;
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use super::apply::{Applied, Tables};
use super::schema::{self, Damage, Fault, Window};
use crate::store::entry::Revision;
use crate::store::error::{Cause, StoreError};
use crate::store::sizes::SizeChanges;
use crate::store::transaction::Transaction;
use crate::store::watch::{Change, EventKind};

/// A commit that waits, and who waits for it.
pub(super) struct Request {
    pub(super) transaction: Transaction,
    pub(super) answer: oneshot::Sender<Result<Revision, StoreError>>,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Request>,
}

/// What a batch that is durable has done.
struct Written {
    applied: Vec<Applied>,
    compacted: Revision,
    window: Window,
    sizes: SizeChanges,
}

/// When a batch failed, which decides what may be said of it.
enum Failed {
    /// Nothing that was written is reachable in the file.
    BeforeCommit(Cause),
    /// What is reachable is known after reopening.
    DuringCommit(Cause),
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, queue: mpsc::Receiver<Request>) -> Self {
        Self { shared, queue }
    }

    pub(super) fn spawn(self) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("store-writer".to_owned()).spawn(move || self.run())
    }

    fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let (transactions, answers) = self.gather(first);
            // An answer may have nobody left to hear it: its caller went away, the commit stands.
            for (answer, result) in answers.into_iter().zip(self.commit(&transactions)) {
                let _ = answer.send(result);
            }
        }
    }

    fn gather(&mut self, first: Request) -> (Vec<Transaction>, Vec<oneshot::Sender<Result<Revision, StoreError>>>) {
        let mut bytes = first.transaction.size_bytes();
        let mut batch = (vec![first.transaction], vec![first.answer]);
        while bytes < self.shared.options.batch_bytes {
            let Ok(request) = self.queue.try_recv() else { break };
            bytes += request.transaction.size_bytes();
            batch.0.push(request.transaction);
            batch.1.push(request.answer);
        }
        batch
    }

    /// Makes a batch durable; one result for each transaction, in their order.
    fn commit(&self, transactions: &[Transaction]) -> Vec<Result<Revision, StoreError>> {
        if let Err(read_only) = self.shared.check_writable() {
            return transactions.iter().map(|_| Err(read_only.clone())).collect();
        }
        // What a panic leaves half done is in a redb transaction that is dropped, and no further one is begun.
        let written = catch_unwind(AssertUnwindSafe(|| write(&self.shared, transactions)))
            .unwrap_or_else(|panic| Err(Failed::DuringCommit(Arc::new(Damage(panic_text(panic.as_ref()))))));
        match written {
            Ok(written) => self.publish(written),
            Err(failed) => {
                let error = self.become_read_only(failed);
                transactions.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    /// Lets watchers see a durable batch, before its writers are told: who was answered can watch what it wrote.
    fn publish(&self, written: Written) -> Vec<Result<Revision, StoreError>> {
        let shared = &self.shared;
        let mut changes = Vec::new();
        let results = written.applied.into_iter().map(|applied| match applied {
            Applied::Unchanged { at } => Ok(at),
            Applied::Unmet(unmet) => {
                shared.stats.unmet.inc();
                Err(StoreError::PreconditionFailed(unmet))
            }
            Applied::Changed(change) => {
                let revision = change.revision;
                changes.push(change);
                Ok(revision)
            }
        });
        let results = results.collect();
        if let Some(last) = changes.last().map(|change| change.revision) {
            let (puts, deletes) = count(&changes);
            shared.stats.count_synced(last, changes.len() as u64, puts, deletes, written.sizes);
            shared.is_signed.store(true, Ordering::Relaxed);
            shared.compacted.store(written.compacted.get(), Ordering::Release);
            *shared.window() = written.window;
            shared.recent.push(changes);
            shared.head.send_replace(last);
        }
        results
    }

    fn become_read_only(&self, failed: Failed) -> StoreError {
        let (cause, error) = match failed {
            Failed::BeforeCommit(cause) => (Arc::clone(&cause), StoreError::ReadOnly { cause }),
            Failed::DuringCommit(cause) => (Arc::clone(&cause), StoreError::OutcomeUnknown { cause }),
        };
        error!(cause:% = cause, outcome:% = error; "store write failed, the store is read-only until it is reopened");
        // Only this thread sets it, and only while it is not set: `commit` looked.
        let _ = self.shared.failure.set(cause);
        error
    }
}

fn write(shared: &Shared, transactions: &[Transaction]) -> Result<Written, Failed> {
    let before = |fault: Fault| Failed::BeforeCommit(Arc::from(fault));
    let batch = schema::begin_durable(&shared.database).map_err(before)?;
    let written = fill(shared, &batch, transactions).map_err(before)?;
    if written.applied.iter().any(|applied| matches!(applied, Applied::Changed(_))) {
        batch.commit().map_err(|error| Failed::DuringCommit(Arc::new(error)))?;
    } else {
        batch.abort().map_err(|error| Failed::BeforeCommit(Arc::new(error)))?;
    }
    Ok(written)
}

fn fill(shared: &Shared, batch: &::redb::WriteTransaction, transactions: &[Transaction]) -> Result<Written, Fault> {
    let mut tables = Tables::open(batch, shared.head(), shared.compacted())?;
    if !shared.is_signed.load(Ordering::Relaxed) {
        tables.sign()?;
    }
    let applied = transactions.iter().map(|transaction| tables.apply(transaction)).collect::<Result<_, _>>()?;
    let (sizes, window) = (tables.take_sizes(), *shared.window());
    let (compacted, window) = tables.finish(&shared.options, window, shared.followed())?;
    Ok(Written { applied, compacted, window, sizes })
}

fn count(changes: &[Change]) -> (u64, u64) {
    let events = || changes.iter().flat_map(|change| &change.events);
    let puts = events().filter(|event| matches!(event.kind, EventKind::Put { .. })).count();
    (puts as u64, (events().count() - puts) as u64)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the engine panicked: {}", text.unwrap_or("without a message"))
}
