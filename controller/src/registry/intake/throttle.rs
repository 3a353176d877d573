//! Limits how often Reports and reported states (pause, hold, park) of a node are written: a few at once, then one
//! every ten seconds. The last one wins.
//!
//! Each Report or state that differs from the last one is a commit, and a host that reports something else at every
//! check-in must not fill the store. A host that joins or converges reports a few things in a row while people watch.
//! Those are written at once. The next record is deferred, and later records replace it. So the last record is always
//! written, and an agent need not send it again. A deferred record is lost when the controller stops. A lost Report
//! does no harm, and a reported state is sent again to the next controller.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// The time between two deferred writes of a node.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The number of Reports that a node may write at once. It regains one for each interval without a write.
const REPORT_BURST: u32 = 6;

/// Writes a deferred record. Returns `false` if the write has to be tried again. The last argument is true if this is
/// such a retry.
type WriteReportFn<T> = dyn Fn(Uuid, T, bool) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync;

/// Decides when a node's record may be written, and holds deferred records.
pub(super) struct ReportThrottle<T> {
    nodes: Arc<Mutex<BudgetByNode<T>>>,
    write: Arc<WriteReportFn<T>>,
}

/// The nodes that have not regained all of their writes.
type BudgetByNode<T> = HashMap<Uuid, ReportBudget<T>>;

/// The number of Reports that a node may still write at once, and the deferred one.
struct ReportBudget<T> {
    remaining: u32,
    pending: Option<T>,
}

/// The result of admitting a Report.
pub(super) enum Admission<T> {
    /// The caller has to write the record now.
    Now(T),
    /// The throttle writes the record later, unless a newer record replaces it.
    Later,
}

impl<T: Clone + Send + 'static> ReportThrottle<T> {
    /// Creates a throttle. `write` is called for deferred records.
    pub(super) fn new(
        write: impl Fn(Uuid, T, bool) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync + 'static,
    ) -> Self {
        Self { nodes: Arc::default(), write: Arc::new(write) }
    }

    /// Returns whether a node has regained all of its writes. If so, no record of the node is deferred or being written
    /// after it was deferred.
    pub(super) fn is_idle(&self, node: Uuid) -> bool {
        !lock(&self.nodes).contains_key(&node)
    }

    /// Admits a Report, now or later. Must be called within a Tokio runtime.
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

    /// Defers a record that could not be written at once, unless a later record is already deferred. Must be called
    /// within a Tokio runtime.
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

    fn spawn_writer(&self, node: Uuid) {
        tokio::spawn(write_deferred(node, Arc::clone(&self.nodes), Arc::clone(&self.write)));
    }
}

/// Writes the deferred record at the end of each interval, until the node has regained all of its writes.
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

fn lock<T>(nodes: &Mutex<T>) -> MutexGuard<'_, T> {
    nodes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn s39_report_throttle_writes_last_report_when_ten_seconds_pass() {
        let written: Arc<Mutex<Vec<(u128, u64)>>> = Arc::default();
        let log = Arc::clone(&written);
        let pace = ReportThrottle::new(move |node, n: u64, _| {
            log.lock().unwrap().push((node.as_u128(), n));
            Box::pin(async { true })
        });
        let say = |node: u128, n| matches!(pace.admit(Uuid::from_u128(node), n), Admission::Now(_));
        assert!((0..u64::from(REPORT_BURST)).all(|n| say(1, n)), "a few at once");
        assert!(!say(1, 12) && !say(1, 13));
        assert!(say(2, 14), "another node waits for nobody");
        tokio::time::sleep(Duration::from_millis(9_900)).await;
        assert_eq!(*written.lock().unwrap(), []);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(*written.lock().unwrap(), [(1, 13)]);
        assert!(!say(1, 15), "also after one that waited");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(*written.lock().unwrap(), [(1, 13), (1, 15)]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(say(1, 16) && !say(1, 17), "one more for an interval without any");
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(written.lock().unwrap().last(), Some(&(1, 17)));
        assert!(lock(&pace.nodes).is_empty(), "nothing is left of who is quiet");
    }

    #[tokio::test(start_paused = true)]
    async fn x01_deferred_report_is_written_later_unless_newer_arrives() {
        let written: Arc<Mutex<Vec<(u128, u64)>>> = Arc::default();
        let log = Arc::clone(&written);
        let pace = ReportThrottle::new(move |node, n: u64, _| {
            lock(&log).push((node.as_u128(), n));
            Box::pin(async { true })
        });
        let node = Uuid::from_u128;
        let _ = pace.admit(node(1), 1);
        pace.defer(node(1), 1);
        for n in 2..=u64::from(REPORT_BURST) + 2 {
            let _ = pace.admit(node(2), n);
        }
        pace.defer(node(2), 2);
        pace.defer(node(3), 9);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(*lock(&written), [(1, 1), (2, u64::from(REPORT_BURST) + 2), (3, 9)]);
        assert!(lock(&pace.nodes).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn s39_deferred_report_waits_until_write_succeeds_unless_newer_arrives() {
        let written: Arc<Mutex<Vec<(u64, bool)>>> = Arc::default();
        let log = Arc::clone(&written);
        let pace = ReportThrottle::new(move |_, n: u64, is_again| {
            let mut written = lock(&log);
            written.push((n, is_again));
            let is_taken = written.len() > 2;
            Box::pin(async move { is_taken })
        });
        let node = Uuid::from_u128(1);
        for n in 0..=u64::from(REPORT_BURST) {
            let _ = pace.admit(node, n);
        }
        assert!(!pace.is_idle(node));
        tokio::time::sleep(Duration::from_secs(21)).await;
        assert!(matches!(pace.admit(node, 99), Admission::Later));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(*lock(&written), [(6, false), (6, true), (99, true)]);
        assert!(pace.is_idle(node));
    }
}
