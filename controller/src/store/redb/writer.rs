//! The only thread that writes to a store. It makes queued commits durable together, and then answers their callers.
//!
//! A flush costs the same for one transaction as for a hundred, and the next ones arrive while it runs. So a batch
//! consists of the commits that are queued when the last flush ends, without a timer. A single caller never waits for
//! others.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use log::error;
use tokio::sync::{mpsc, oneshot};

use super::StoreShared;
use super::apply::{BatchTables, TransactionResult};
use super::schema::{self, DamagedRecord, RedbError, SupersededWindow};
use crate::store::entry::Revision;
use crate::store::error::{EngineError, StoreError};
use crate::store::sizes::SizeChanges;
use crate::store::transaction::Transaction;
use crate::store::watch::{Change, EventKind};

/// A queued commit, and the channel for its answer.
pub(super) struct CommitRequest {
    pub(super) transaction: Transaction,
    pub(super) answer: oneshot::Sender<Result<Revision, StoreError>>,
}

/// The state of the writer thread, which commits the queued transactions in batches.
pub(super) struct BatchWriter {
    shared: Arc<StoreShared>,
    queue: mpsc::Receiver<CommitRequest>,
}

/// The results of the transactions of a batch that became durable or changed nothing, and what changed in the store.
struct CommittedBatch {
    results: Vec<TransactionResult>,
    compacted: Revision,
    window: SupersededWindow,
    sizes: SizeChanges,
}

/// The stage at which a batch failed, which decides what its callers can conclude.
enum BatchFailure {
    /// Nothing of the batch was written. Its callers get [`StoreError::ReadOnly`], which states this.
    BeforeCommit(EngineError),
    /// Only reopening the store shows whether the batch was written. Its callers get [`StoreError::OutcomeUnknown`].
    DuringCommit(EngineError),
}

impl BatchWriter {
    pub(super) fn new(shared: Arc<StoreShared>, queue: mpsc::Receiver<CommitRequest>) -> Self {
        Self { shared, queue }
    }

    pub(super) fn spawn(self) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("store-writer".to_owned()).spawn(move || self.run())
    }

    /// Commits batches until all senders of the queue are dropped.
    fn run(mut self) {
        while let Some(first_request) = self.queue.blocking_recv() {
            let (transactions, answers) = self.gather_batch(first_request);
            // The caller may no longer wait for the answer. Its commit is still durable.
            for (answer, result) in answers.into_iter().zip(self.commit(&transactions)) {
                let _ = answer.send(result);
            }
        }
    }

    /// Removes further requests from the queue until it is empty or the batch has at least `full_batch_bytes`. Returns
    /// the transactions of all requests, `first` included, and the channels for their answers in the same order.
    fn gather_batch(&mut self, first: CommitRequest) -> (Vec<Transaction>, Vec<oneshot::Sender<Result<Revision, StoreError>>>) {
        let mut bytes = first.transaction.size_bytes();
        // The pair has the transactions, and the channels for their answers.
        let mut batch = (vec![first.transaction], vec![first.answer]);
        while bytes < self.shared.options.full_batch_bytes {
            let Ok(request) = self.queue.try_recv() else { break };
            bytes += request.transaction.size_bytes();
            batch.0.push(request.transaction);
            batch.1.push(request.answer);
        }
        batch
    }

    /// Makes a batch durable, and publishes it to watches. Returns one result for each transaction, in their order. If
    /// the batch fails, the store becomes read-only, and all transactions get the same error.
    fn commit(&self, transactions: &[Transaction]) -> Vec<Result<Revision, StoreError>> {
        if let Err(read_only) = self.shared.check_writable() {
            return transactions.iter().map(|_| Err(read_only.clone())).collect();
        }
        // Unwinding is safe here: what was partly written is in a redb transaction, which is dropped, and the store
        // then becomes read-only.
        let batch = catch_unwind(AssertUnwindSafe(|| write_batch(&self.shared, transactions)))
            .unwrap_or_else(|panic| Err(BatchFailure::DuringCommit(Arc::new(DamagedRecord(panic_text(panic.as_ref()))))));
        match batch {
            Ok(batch) => self.publish(batch),
            Err(failure) => {
                let error = self.become_read_only(failure);
                transactions.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    /// Publishes a durable batch to watches and statistics, and returns the answers for its callers. Watches get the
    /// batch before the callers get their answers, so that each caller can watch its own change.
    fn publish(&self, batch: CommittedBatch) -> Vec<Result<Revision, StoreError>> {
        let shared = &self.shared;
        let mut changes = Vec::new();
        let results = batch.results.into_iter().map(|result| match result {
            TransactionResult::Unchanged { at } => Ok(at),
            TransactionResult::Unmet(unmet) => {
                shared.stats.conflicts.inc();
                Err(StoreError::PreconditionFailed(unmet))
            }
            TransactionResult::Changed(change) => {
                let revision = change.revision;
                changes.push(change);
                Ok(revision)
            }
        });
        let results = results.collect();
        if let Some(last) = changes.last().map(|change| change.revision) {
            let (puts, deletes) = count_operations(&changes);
            shared.stats.count_batch(last, changes.len() as u64, puts, deletes, batch.sizes);
            shared.is_program_written.store(true, Ordering::Relaxed);
            shared.compacted.store(batch.compacted.get(), Ordering::Release);
            *shared.window() = batch.window;
            // The changes are in memory before the new revision wakes the watches.
            shared.recent.push(changes);
            shared.head.send_replace(last);
        }
        results
    }

    /// Records that a batch failed. From then on the store accepts no commits. Returns the error for the callers of the
    /// batch.
    fn become_read_only(&self, failure: BatchFailure) -> StoreError {
        let (cause, error) = match failure {
            BatchFailure::BeforeCommit(cause) => (Arc::clone(&cause), StoreError::ReadOnly { cause }),
            BatchFailure::DuringCommit(cause) => (Arc::clone(&cause), StoreError::OutcomeUnknown { cause }),
        };
        error!(cause:% = cause, outcome:% = error; "store write failed, the store is read-only until it is reopened");
        // Only this thread sets the failure, and `commit` has checked that none is set.
        let _ = self.shared.failure.set(cause);
        error
    }
}

/// Applies the transactions in one redb transaction, and makes it durable. Writes nothing if none of them changes
/// anything.
fn write_batch(shared: &StoreShared, transactions: &[Transaction]) -> Result<CommittedBatch, BatchFailure> {
    let before_commit = |fault: RedbError| BatchFailure::BeforeCommit(Arc::from(fault));
    let batch = schema::begin_durable(&shared.database).map_err(before_commit)?;
    let result = fill_batch(shared, &batch, transactions).map_err(before_commit)?;
    if result.results.iter().any(|transaction_result| matches!(transaction_result, TransactionResult::Changed(_))) {
        batch.commit().map_err(|error| BatchFailure::DuringCommit(Arc::new(error)))?;
    } else {
        batch.abort().map_err(|error| BatchFailure::BeforeCommit(Arc::new(error)))?;
    }
    Ok(result)
}

/// Applies the transactions, one after the other, within one redb transaction. Also drops changes that are too old for
/// watches. The caller commits or aborts the redb transaction.
fn fill_batch(
    shared: &StoreShared,
    batch: &::redb::WriteTransaction,
    transactions: &[Transaction],
) -> Result<CommittedBatch, RedbError> {
    let mut tables = BatchTables::open(batch, shared.head(), shared.compacted())?;
    if !shared.is_program_written.load(Ordering::Relaxed) {
        tables.write_program()?;
    }
    let transaction_results = transactions.iter().map(|transaction| tables.apply(transaction)).collect::<Result<_, _>>()?;
    let (sizes, window) = (tables.take_sizes(), *shared.window());
    let (compacted, window) = tables.finish(&shared.options, window, shared.slowest_follower())?;
    Ok(CommittedBatch { results: transaction_results, compacted, window, sizes })
}

/// Returns the number of puts and the number of deletes in these changes.
fn count_operations(changes: &[Change]) -> (u64, u64) {
    let events = || changes.iter().flat_map(|change| &change.events);
    let puts = events().filter(|event| matches!(event.kind, EventKind::Put { .. })).count();
    (puts as u64, (events().count() - puts) as u64)
}

/// Returns an error message with the text of a panic of the engine.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the engine panicked: {}", text.unwrap_or("without a message"))
}
