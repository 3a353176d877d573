//! Limits how often the Reports and the reported states (pause, hold, park) of a node are written: a few at once, then
//! one every ten seconds. A newer record replaces a record that still waits.
//!
//! Each Report or state that differs from the last one is a commit. A host that reports something else at every
//! check-in must not fill the store. A host that joins or converges reports a few things in a row while people watch,
//! so these are written at once. The next record is deferred, and later records replace it. The last record is
//! therefore always written, and an agent need not send it again. A deferred record is lost when the controller stops.
//! A lost Report does no harm, and the host sends its state again to the next controller.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// Interval between two deferred writes of a node.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Number of records that a node may write at once. The node regains one of these writes for each interval without a
/// deferred write.
const REPORT_BURST: u32 = 6;

/// The function that writes a deferred record. Its arguments are the node, the record, and whether this is a retry. It
/// returns `false` if the write must be tried again.
type WriteReportFn<T> = dyn Fn(Uuid, T, bool) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync;

/// Decides when a node's record may be written, and holds the deferred records.
pub(super) struct ReportThrottle<T> {
    nodes: Arc<Mutex<BudgetByNode<T>>>,
    write: Arc<WriteReportFn<T>>,
}

/// The nodes that have used some of their immediate writes and not regained all of them.
type BudgetByNode<T> = HashMap<Uuid, ReportBudget<T>>;

/// The number of records that a node may still write at once, and the deferred record if there is one.
struct ReportBudget<T> {
    remaining: u32,
    pending: Option<T>,
}

/// The decision about a new record: write it now or later.
pub(super) enum Admission<T> {
    /// The caller has to write the record now.
    Now(T),
    /// The throttle writes the record later, unless a newer record replaces it.
    Later,
}

impl<T: Clone + Send + 'static> ReportThrottle<T> {
    /// Creates a throttle. It calls `write` for each deferred record when the record is due.
    pub(super) fn new(
        write: impl Fn(Uuid, T, bool) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync + 'static,
    ) -> Self {
        Self { nodes: Arc::default(), write: Arc::new(write) }
    }

    /// Returns whether a node has regained all of its immediate writes. If so, no deferred record of the node waits or
    /// is being written.
    pub(super) fn is_idle(&self, node: Uuid) -> bool {
        !lock(&self.nodes).contains_key(&node)
    }

    /// Decides whether a record is written now or later. If the node has no immediate write left, the record replaces
    /// the node's deferred record. Must be called within a Tokio runtime.
    pub(super) fn admit(&self, node: Uuid, record: T) -> Admission<T> {
        match lock(&self.nodes).entry(node) {
            Entry::Occupied(mut budget) if budget.get().remaining == 0 => {
                budget.get_mut().pending = Some(record);
                return Admission::Later;
            }
            Entry::Occupied(mut budget) => {
                budget.get_mut().remaining -= 1;
                return Admission::Now(record);
            }
            Entry::Vacant(vacant) => drop(vacant.insert(ReportBudget { remaining: REPORT_BURST - 1, pending: None })),
        }
        self.spawn_writer(node);
        Admission::Now(record)
    }

    /// Defers a record after its immediate write failed. If a later record is already deferred, this record is dropped.
    /// Must be called within a Tokio runtime.
    pub(super) fn defer(&self, node: Uuid, record: T) {
        match lock(&self.nodes).entry(node) {
            Entry::Occupied(mut budget) => {
                budget.get_mut().pending.get_or_insert(record);
                return;
            }
            Entry::Vacant(vacant) => _ = vacant.insert(ReportBudget { remaining: REPORT_BURST - 1, pending: Some(record) }),
        }
        self.spawn_writer(node);
    }

    /// Starts the task that writes the deferred records of a node. A node has one such task while it is not idle.
    fn spawn_writer(&self, node: Uuid) {
        tokio::spawn(write_deferred(node, Arc::clone(&self.nodes), Arc::clone(&self.write)));
    }
}

/// Writes the node's deferred record at the end of each interval. An interval without a deferred record returns one
/// immediate write to the node. Ends when the node has regained all of them.
async fn write_deferred<T: Clone>(node: Uuid, nodes: Arc<Mutex<BudgetByNode<T>>>, write: Arc<WriteReportFn<T>>) {
    let (mut due, mut is_retry) = (Instant::now(), false);
    loop {
        due += REPORT_INTERVAL;
        tokio::time::sleep_until(due).await;
        let deferred = {
            let mut nodes = lock(&nodes);
            let Some(budget) = nodes.get_mut(&node) else { return };
            let deferred = budget.pending.take();
            budget.remaining += u32::from(deferred.is_none());
            if budget.remaining == REPORT_BURST {
                nodes.remove(&node);
                return;
            }
            deferred
        };
        let Some(record) = deferred else { continue };
        is_retry = !write(node, record.clone(), is_retry).await;
        if is_retry && let Some(budget) = lock(&nodes).get_mut(&node) {
            budget.pending.get_or_insert(record);
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

    /// A node may write six records at once. Later records are deferred, and every ten seconds the last one is written.
    #[tokio::test(start_paused = true)]
    async fn s39_report_throttle_writes_last_report_when_ten_seconds_pass() {
        let written: Arc<Mutex<Vec<(u128, u64)>>> = Arc::default();
        let log = Arc::clone(&written);
        let throttle = ReportThrottle::new(move |node, n: u64, _| {
            log.lock().unwrap().push((node.as_u128(), n));
            Box::pin(async { true })
        });
        let is_admitted = |node: u128, n| matches!(throttle.admit(Uuid::from_u128(node), n), Admission::Now(_));
        assert!((0..u64::from(REPORT_BURST)).all(|n| is_admitted(1, n)), "the first writes are immediate");
        assert!(!is_admitted(1, 12) && !is_admitted(1, 13));
        assert!(is_admitted(2, 14), "another node has its own immediate writes");
        tokio::time::sleep(Duration::from_millis(9_900)).await;
        assert_eq!(*written.lock().unwrap(), []);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(*written.lock().unwrap(), [(1, 13)]);
        assert!(!is_admitted(1, 15), "an interval with a deferred write regains no immediate write");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(*written.lock().unwrap(), [(1, 13), (1, 15)]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(is_admitted(1, 16) && !is_admitted(1, 17), "an interval without a deferred write regains one");
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(written.lock().unwrap().last(), Some(&(1, 17)));
        assert!(lock(&throttle.nodes).is_empty(), "an idle node has no entry");
    }

    /// The immediate write of a record fails, and `defer` stores the record for later. For node 2, a newer record is
    /// already deferred, so the failed record is dropped.
    #[tokio::test(start_paused = true)]
    async fn x01_deferred_report_is_written_later_unless_newer_arrives() {
        let written: Arc<Mutex<Vec<(u128, u64)>>> = Arc::default();
        let log = Arc::clone(&written);
        let throttle = ReportThrottle::new(move |node, n: u64, _| {
            lock(&log).push((node.as_u128(), n));
            Box::pin(async { true })
        });
        let node = Uuid::from_u128;
        let _ = throttle.admit(node(1), 1);
        throttle.defer(node(1), 1);
        for n in 2..=u64::from(REPORT_BURST) + 2 {
            let _ = throttle.admit(node(2), n);
        }
        throttle.defer(node(2), 2);
        throttle.defer(node(3), 9);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(*lock(&written), [(1, 1), (2, u64::from(REPORT_BURST) + 2), (3, 9)]);
        assert!(lock(&throttle.nodes).is_empty());
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
