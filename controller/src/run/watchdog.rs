//! Pings the service manager's watchdog if the agents' thread and the reconciler still make progress.
//!
//! A timer alone would keep pinging while agents get no responses. So before each ping, the thread that serves agents
//! must run an empty task, and the loop of the reconciler must make a step of its work. A runtime whose other tasks
//! still run does not suffice for the reconciler, because its loop may wait for something that never happens. The
//! pinging task itself runs on the main thread, which serves operators. If one of the three hangs, the watchdog expires
//! and the controller is restarted.
//!
//! The watchdog does not cover the disk. A reconciler that only waits for the store counts as working. After a restart,
//! the controller would wait for the same disk, and would not even answer from memory. A store that fails is
//! not affected: it becomes read-only, and the controller then ends by itself.

use std::sync::Arc;

use stemma_wire::watchdog::Watchdog;
use tokio::runtime::Handle;

use crate::reconcile::Reconciler;

/// Pings the watchdog whenever a ping is due, after the agents' thread has run an empty task and the reconciler, if there
/// is one, has made progress. While one of them hangs, no ping is sent. Never returns.
pub(super) async fn feed_watchdog(mut watchdog: Watchdog, agents_thread: Handle, reconciler: Option<Arc<Reconciler>>) -> String {
    loop {
        watchdog.wait_until_due().await;
        // A thread that has ended is reported by its `ThreadEnd`.
        let _done_or_ended = agents_thread.spawn(async {}).await;
        if let Some(reconciler) = &reconciler {
            reconciler.wait_for_progress().await;
        }
        watchdog.ping_if_due();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::Notify;
    use tokio::time::timeout;

    use super::*;
    use crate::reconcile::tests::ReconcilerSite;
    use crate::run::thread;

    /// Creates a watchdog with this timeout, and a value that is notified of each ping.
    fn observed_watchdog(timeout: Duration) -> (Watchdog, Arc<Notify>) {
        let ping_notify = Arc::new(Notify::new());
        let notify_of_ping = Arc::clone(&ping_notify);
        (Watchdog::new(Some(timeout), move || notify_of_ping.notify_one()), ping_notify)
    }

    /// The future of the thread blocks until the test sends a message. The watchdog is pinged only after that.
    #[tokio::test]
    async fn feed_watchdog_pings_only_when_no_thread_hangs() {
        let (release, receiver) = mpsc::channel::<()>();
        let (worker, _ended) = thread::start("still", move || async move {
            let _released_or_dropped = receiver.recv();
        })
        .unwrap();
        let (watchdog, ping_notify) = observed_watchdog(Duration::from_millis(4));
        let feeding = feed_watchdog(watchdog, worker.runtime(), None);
        let checks = async {
            let early_ping = timeout(Duration::from_millis(200), ping_notify.notified()).await;
            assert!(early_ping.is_err(), "the watchdog was pinged although a thread hangs");
            release.send(()).unwrap();
            ping_notify.notified().await;
        };
        tokio::select! {
            end_message = feeding => panic!("{end_message}"),
            () = checks => {}
        }
        worker.join().await;
    }

    /// The loop of the reconciler waits for a lock that the test holds. Other tasks of its runtime still run. After
    /// that, the loop has nothing to do, and the watchdog is pinged nevertheless.
    #[tokio::test(start_paused = true)]
    async fn watchdog_stops_pings_when_reconcile_loop_hangs() {
        let site = ReconcilerSite::new().await;
        let requests_lock = site.lock_requests().await;
        let (watchdog, ping_notify) = observed_watchdog(Duration::from_mins(1));
        let reconciler = Arc::clone(site.reconciler());
        let feeding = feed_watchdog(watchdog, Handle::current(), Some(Arc::clone(&reconciler)));
        let checks = async {
            let early_ping = timeout(Duration::from_hours(1), ping_notify.notified()).await;
            assert!(early_ping.is_err(), "the watchdog was pinged although the reconciler hangs");
            tokio::spawn(async {}).await.expect("the runtime runs other tasks");
            drop(requests_lock);
            for _ in 0..8 {
                let ping = timeout(Duration::from_secs(16), ping_notify.notified()).await;
                ping.expect("the watchdog is pinged in time when the reconciler turns");
            }
        };
        tokio::select! {
            end_message = feeding => panic!("{end_message}"),
            never = reconciler.run() => match never {},
            () = checks => {}
        }
    }
}
