//! Limits how often the Reports and the reported states (pause, hold, park) of a node are written: a few at once, then
//! one every ten seconds. A newer record replaces a record that still waits.
//!
//! Each Report or state that differs from the last one is a commit. A host that reports something else at every
//! check-in must not fill the store. A host that joins or converges reports a few things in a row while people watch,
//! so these are written at once. The next record is deferred, and later records replace it. An agent need not send a
//! deferred record again. A deferred record is lost when the controller stops. A lost Report does no harm, and the host
//! sends its state again to the next controller.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// Interval between two writes of deferred records of one node and kind (Report or reported state).
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Number of records of a node that are written without delay, for Reports and for reported states each. The node
/// regains one of these writes for each [`REPORT_INTERVAL`] without a deferred write.
const REPORT_BURST: u32 = 6;

/// The function that writes a deferred record. Its arguments are the node, the record, and whether the node's previous
/// deferred write failed. The function returns `false` if the write must be tried again.
type WriteReportFn<T> = dyn Fn(Uuid, T, bool) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync;

/// Decides when a node's Report or reported state may be written to the store, and holds the deferred records.
pub(super) struct ReportThrottle<T> {
    nodes: Arc<Mutex<BudgetByNode<T>>>,
    /// The number of the next record of any node. It is not in [`ReportBudget`], because an idle node has no budget, and
    /// a number must not occur twice. It is changed only while `nodes` is locked, so numbers follow the order of arrival.
    next_number: AtomicU64,
    write: Arc<WriteReportFn<T>>,
}

/// The nodes that have used some of their immediate writes and not regained all of them.
type BudgetByNode<T> = HashMap<Uuid, ReportBudget<T>>;

/// The number of records that a node may still write at once, and the deferred record if there is one.
struct ReportBudget<T> {
    remaining: u32,
    /// The number of the newest record of the node. The records are numbered in the order of their arrival.
    newest: u64,
    /// The deferred record. It is the newest record of the node.
    pending: Option<T>,
}

/// The decision about a new record: write it now or later.
pub(super) enum Admission<T> {
    /// The caller has to write the record now. The number is for [`ReportThrottle::defer`], if the write fails.
    Now(T, u64),
    /// The throttle writes the record later, unless a newer record replaces it.
    Later,
}

impl<T: Clone + Send + 'static> ReportThrottle<T> {
    /// Creates a throttle. It calls `write` for a deferred record when the record is due.
    pub(super) fn new(
        write: impl Fn(Uuid, T, bool) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync + 'static,
    ) -> Self {
        Self { nodes: Arc::default(), next_number: AtomicU64::new(0), write: Arc::new(write) }
    }

    /// Returns whether a node has regained all of its immediate writes. If so, no deferred record of the node waits or
    /// is being written.
    pub(super) fn is_idle(&self, node: Uuid) -> bool {
        !lock(&self.nodes).contains_key(&node)
    }

    /// Decides whether a record is written now or later. If the node has no immediate write left, the record replaces
    /// the node's deferred record. Must be called within a Tokio runtime.
    pub(super) fn admit(&self, node: Uuid, record: T) -> Admission<T> {
        let mut nodes = lock(&self.nodes);
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        match nodes.entry(node) {
            Entry::Occupied(mut occupied) => {
                let budget = occupied.get_mut();
                budget.newest = number;
                if budget.remaining == 0 {
                    budget.pending = Some(record);
                    return Admission::Later;
                }
                budget.remaining -= 1;
                // A deferred record is older and must not be written over this one.
                budget.pending = None;
                return Admission::Now(record, number);
            }
            Entry::Vacant(vacant) => {
                vacant.insert(ReportBudget { remaining: REPORT_BURST - 1, newest: number, pending: None });
            }
        }
        self.spawn_writer(node);
        Admission::Now(record, number)
    }

    /// Defers a record after its immediate write failed. `number` is from [`Admission::Now`]. If the node has sent a
    /// newer record since, this record is dropped. Must be called within a Tokio runtime.
    pub(super) fn defer(&self, node: Uuid, record: T, number: u64) {
        match lock(&self.nodes).entry(node) {
            Entry::Occupied(mut budget) => {
                budget.get_mut().put_back(record, number);
                return;
            }
            Entry::Vacant(vacant) => {
                vacant.insert(ReportBudget { remaining: REPORT_BURST - 1, newest: number, pending: Some(record) });
            }
        }
        self.spawn_writer(node);
    }

    /// Starts the task that writes the deferred records of a node. A node has one such task while it is not idle.
    fn spawn_writer(&self, node: Uuid) {
        tokio::spawn(write_deferred(node, Arc::clone(&self.nodes), Arc::clone(&self.write)));
    }
}

impl<T> ReportBudget<T> {
    /// Defers a record whose write failed, unless the node has sent a newer record since.
    fn put_back(&mut self, record: T, number: u64) {
        if number == self.newest {
            self.pending = Some(record);
        }
    }
}

/// Writes the node's deferred record at the end of each interval. An interval without a deferred record returns one
/// immediate write to the node. A failed write is tried again after the next interval, unless a newer record of the
/// node has arrived by then. Ends when the node has regained all immediate writes.
async fn write_deferred<T: Clone>(node: Uuid, nodes: Arc<Mutex<BudgetByNode<T>>>, write: Arc<WriteReportFn<T>>) {
    let (mut due, mut is_retry) = (Instant::now(), false);
    loop {
        due += REPORT_INTERVAL;
        tokio::time::sleep_until(due).await;
        let (deferred, number) = {
            let mut nodes = lock(&nodes);
            let Some(budget) = nodes.get_mut(&node) else { return };
            let deferred = budget.pending.take();
            budget.remaining += u32::from(deferred.is_none());
            if budget.remaining == REPORT_BURST {
                nodes.remove(&node);
                return;
            }
            (deferred, budget.newest)
        };
        let Some(record) = deferred else { continue };
        is_retry = !write(node, record.clone(), is_retry).await;
        if is_retry && let Some(budget) = lock(&nodes).get_mut(&node) {
            budget.put_back(record, number);
        }
    }
}

/// Locks the nodes. A poisoned lock is used as it is.
fn lock<T>(nodes: &Mutex<T>) -> MutexGuard<'_, T> {
    nodes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The written records, in order, each with its node.
    type WrittenRecords = Arc<Mutex<Vec<(u128, u64)>>>;

    /// Returns a throttle whose deferred writes succeed, and the records that it writes.
    fn recording_throttle() -> (ReportThrottle<u64>, WrittenRecords) {
        let written = WrittenRecords::default();
        let log = Arc::clone(&written);
        let throttle = ReportThrottle::new(move |node, record, _| {
            lock(&log).push((node.as_u128(), record));
            Box::pin(async { true })
        });
        (throttle, written)
    }

    /// A node may write six records at once. Later records are deferred, and every ten seconds the last one is written.
    #[tokio::test(start_paused = true)]
    async fn s39_report_throttle_writes_last_report_when_ten_seconds_pass() {
        let (throttle, written) = recording_throttle();
        let is_admitted = |node: u128, n| matches!(throttle.admit(Uuid::from_u128(node), n), Admission::Now(..));
        assert!((0..u64::from(REPORT_BURST)).all(|n| is_admitted(1, n)), "the first writes are immediate");
        assert!(!is_admitted(1, 12) && !is_admitted(1, 13));
        assert!(is_admitted(2, 14), "another node has its own immediate writes");
        tokio::time::sleep(Duration::from_millis(9_900)).await;
        assert_eq!(*lock(&written), []);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(*lock(&written), [(1, 13)]);
        assert!(!is_admitted(1, 15), "an interval with a deferred write regains no immediate write");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(*lock(&written), [(1, 13), (1, 15)]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(is_admitted(1, 16) && !is_admitted(1, 17), "an interval without a deferred write regains one");
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(lock(&written).last(), Some(&(1, 17)));
        assert!(lock(&throttle.nodes).is_empty(), "an idle node has no entry");
    }

    /// In this test, the immediate write of a record fails, and `defer` holds the record for later. For node 2, a newer
    /// record is already deferred, so the failed record is dropped. Node 3 is idle when `defer` is called.
    #[tokio::test(start_paused = true)]
    async fn x01_deferred_report_is_written_later_unless_newer_arrives() {
        let (throttle, written) = recording_throttle();
        let node = Uuid::from_u128;
        let _ = throttle.admit(node(1), 1);
        throttle.defer(node(1), 1, 0);
        for n in 2..=u64::from(REPORT_BURST) + 2 {
            let _ = throttle.admit(node(2), n);
        }
        throttle.defer(node(2), 2, 0);
        throttle.defer(node(3), 9, 0);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(*lock(&written), [(1, 1), (2, u64::from(REPORT_BURST) + 2), (3, 9)]);
        assert!(lock(&throttle.nodes).is_empty());
    }

    /// The write of record 1 fails. Record 2 arrives, and is written at once for node 1, or fails too for node 2. For
    /// node 3, record 1 fails after record 2 was written.
    #[tokio::test(start_paused = true)]
    async fn x01_failed_report_is_not_written_over_newer() {
        let (throttle, written) = recording_throttle();
        let admit = |node: u128, record| match throttle.admit(Uuid::from_u128(node), record) {
            Admission::Now(_, number) => number,
            Admission::Later => panic!("the node has immediate writes left"),
        };
        let defer = |node: u128, record, number| throttle.defer(Uuid::from_u128(node), record, number);
        for node in [1, 2] {
            defer(node, 1, admit(node, 1));
        }
        let _number = admit(1, 2);
        defer(2, 2, admit(2, 2));
        let first = admit(3, 1);
        let _number = admit(3, 2);
        defer(3, 1, first);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(*lock(&written), [(2, 2)]);
    }

    /// The first two writes of the deferred record 6 fail. Then the newer record 99 replaces it and is written.
    #[tokio::test(start_paused = true)]
    async fn s39_deferred_report_waits_until_write_succeeds_unless_newer_arrives() {
        let written: Arc<Mutex<Vec<(u64, bool)>>> = Arc::default();
        let log = Arc::clone(&written);
        let throttle = ReportThrottle::new(move |_, n: u64, is_retry| {
            let mut written = lock(&log);
            written.push((n, is_retry));
            let is_successful = written.len() > 2;
            Box::pin(async move { is_successful })
        });
        let node = Uuid::from_u128(1);
        for n in 0..=u64::from(REPORT_BURST) {
            let _ = throttle.admit(node, n);
        }
        assert!(!throttle.is_idle(node));
        tokio::time::sleep(Duration::from_secs(21)).await;
        assert!(matches!(throttle.admit(node, 99), Admission::Later));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(*lock(&written), [(6, false), (6, true), (99, true)]);
        assert!(throttle.is_idle(node));
    }
}
