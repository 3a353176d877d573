//! Reports, and what is said on hosts, are written at most once a node in ten seconds, after a few at once, and the last one wins.
//!
//! Each that differs is a commit: a host that says something else with every check-in must not write the store full. A host that joins or converges says a few things in a row, and people watch: those are written at
//! once. One that comes too soon after them waits for its turn, and what comes meanwhile takes its place; so the last one is
//! always written, and an agent need not say it again. What waits when the controller stops is lost, as a Report may be; what is
//! said on a host is said again to the next one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// Between two written Reports of a node.
const INTERVAL: Duration = Duration::from_secs(10);

/// How many are written at once; one more for each interval without any.
const AT_ONCE: u32 = 6;

/// Writes what waited, and says whether that came to an end; otherwise it waits on. It is told whether this is tried again.
type Write<T> = dyn Fn(Uuid, T, bool) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync;

/// When which node's Report may be written next, and what waits.
pub(super) struct Pace<T> {
    nodes: Arc<Mutex<Nodes<T>>>,
    write: Arc<Write<T>>,
}

/// The nodes that have not all of their Reports at once.
type Nodes<T> = HashMap<Uuid, Budget<T>>;

/// What a node may write: how many Reports may still be written at once, and the one that waits.
struct Budget<T> {
    left: u32,
    waiting: Option<T>,
}

/// What becomes of a Report.
pub(super) enum Turn<T> {
    /// It is to be written now.
    Now(T),
    /// It will be written, unless another takes its place.
    Later,
}

impl<T: Clone + Send + 'static> Pace<T> {
    /// `write` is called for those that waited.
    pub(super) fn new(
        write: impl Fn(Uuid, T, bool) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync + 'static,
    ) -> Self {
        Self { nodes: Arc::default(), write: Arc::new(write) }
    }

    /// Whether a node has all at once that it may write: nothing of it waits, and nothing that waited is being written.
    pub(super) fn is_quiet(&self, node: Uuid) -> bool {
        !lock(&self.nodes).contains_key(&node)
    }

    /// Admits a Report, now or later. Within a runtime.
    pub(super) fn admit(&self, node: Uuid, record: T) -> Turn<T> {
        match lock(&self.nodes).entry(node) {
            Entry::Occupied(mut place) if place.get().left == 0 => {
                place.get_mut().waiting = Some(record);
                return Turn::Later;
            }
            Entry::Occupied(mut place) => {
                place.get_mut().left -= 1;
                return Turn::Now(record);
            }
            Entry::Vacant(free) => drop(free.insert(Budget { left: AT_ONCE - 1, waiting: None })),
        }
        self.follow(node);
        Turn::Now(record)
    }

    /// Has a Report wait that could not be written in its turn, unless a later one waits. Within a runtime.
    pub(super) fn put_off(&self, node: Uuid, record: T) {
        match lock(&self.nodes).entry(node) {
            Entry::Occupied(mut place) => {
                place.get_mut().waiting.get_or_insert(record);
                return;
            }
            Entry::Vacant(free) => drop(free.insert(Budget { left: AT_ONCE - 1, waiting: Some(record) })),
        }
        self.follow(node);
    }

    fn follow(&self, node: Uuid) {
        tokio::spawn(follow(node, Arc::clone(&self.nodes), Arc::clone(&self.write)));
    }
}

/// Writes what waits at the end of each interval, until a node has all of its Reports at once again.
async fn follow<T: Clone>(node: Uuid, nodes: Arc<Mutex<Nodes<T>>>, write: Arc<Write<T>>) {
    let (mut due, mut is_again) = (Instant::now(), false);
    loop {
        due += INTERVAL;
        tokio::time::sleep_until(due).await;
        let waited = {
            let mut nodes = lock(&nodes);
            let Some(place) = nodes.get_mut(&node) else { return };
            let waited = place.waiting.take();
            place.left += u32::from(waited.is_none());
            if place.left == AT_ONCE {
                nodes.remove(&node);
                return;
            }
            waited
        };
        let Some(record) = waited else { continue };
        is_again = !write(node, record.clone(), is_again).await;
        if is_again && let Some(place) = lock(&nodes).get_mut(&node) {
            place.waiting.get_or_insert(record);
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
    async fn s39_reports_are_written_at_most_each_ten_seconds_and_the_last_one_wins() {
        let written: Arc<Mutex<Vec<(u128, u64)>>> = Arc::default();
        let log = Arc::clone(&written);
        let pace = Pace::new(move |node, n: u64, _| {
            log.lock().unwrap().push((node.as_u128(), n));
            Box::pin(async { true })
        });
        let say = |node: u128, n| matches!(pace.admit(Uuid::from_u128(node), n), Turn::Now(_));
        assert!((0..u64::from(AT_ONCE)).all(|n| say(1, n)), "a few at once");
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
    async fn x01_what_could_not_be_written_at_once_is_written_later_unless_something_newer_is() {
        let written: Arc<Mutex<Vec<(u128, u64)>>> = Arc::default();
        let log = Arc::clone(&written);
        let pace = Pace::new(move |node, n: u64, _| {
            lock(&log).push((node.as_u128(), n));
            Box::pin(async { true })
        });
        let node = Uuid::from_u128;
        let _ = pace.admit(node(1), 1);
        pace.put_off(node(1), 1);
        for n in 2..=u64::from(AT_ONCE) + 2 {
            let _ = pace.admit(node(2), n);
        }
        pace.put_off(node(2), 2);
        pace.put_off(node(3), 9);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(*lock(&written), [(1, 1), (2, u64::from(AT_ONCE) + 2), (3, 9)]);
        assert!(lock(&pace.nodes).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn s39_what_could_not_be_written_waits_on_unless_something_later_does() {
        let written: Arc<Mutex<Vec<(u64, bool)>>> = Arc::default();
        let log = Arc::clone(&written);
        let pace = Pace::new(move |_, n: u64, is_again| {
            let mut written = lock(&log);
            written.push((n, is_again));
            let is_taken = written.len() > 2;
            Box::pin(async move { is_taken })
        });
        let node = Uuid::from_u128(1);
        for n in 0..=u64::from(AT_ONCE) {
            let _ = pace.admit(node, n);
        }
        assert!(!pace.is_quiet(node));
        tokio::time::sleep(Duration::from_secs(21)).await;
        assert!(matches!(pace.admit(node, 99), Turn::Later));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(*lock(&written), [(6, false), (6, true), (99, true)]);
        assert!(pace.is_quiet(node));
    }
}
