//! Pings the service manager's watchdog if the threads that serve and decide still make progress.
//!
//! A timer alone would keep pinging while agents get no responses. So each thread is given a task that does nothing,
//! and the watchdog is pinged when all of them have run it. If a thread hangs, the watchdog expires and the controller
//! is restarted.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};

/// Pings the watchdog for as long as every thread makes progress. Never returns if the unit does not set a watchdog.
pub(super) async fn feed_watchdog(threads: Vec<Handle>) -> String {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    ping_threads(&threads, limit / 4, || {
        if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
            log::warn!(error:% = error; "the service manager could not be notified");
        }
    })
    .await
}

/// Calls `ping` in each period, after every thread has run an empty task.
async fn ping_threads(threads: &[Handle], period: Duration, ping: impl Fn()) -> String {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for thread in threads {
            // A thread that has ended is reported by its `ThreadEnd`.
            let _done_or_ended = thread.spawn(async {}).await;
        }
        ping();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::Notify;

    use super::*;
    use crate::run::thread;

    #[tokio::test]
    async fn watchdog_expires_when_thread_is_stuck() {
        let (release, held) = mpsc::channel::<()>();
        let (worker, _ended) = thread::start("still", move || async move {
            let _released_or_dropped = held.recv();
        })
        .unwrap();
        let (told, threads) = (Notify::new(), [worker.runtime()]);
        let feeding = ping_threads(&threads, Duration::from_millis(1), || told.notify_one());
        let looking = async {
            let early = tokio::time::timeout(Duration::from_millis(200), told.notified()).await;
            assert!(early.is_err(), "nobody came round");
            release.send(()).unwrap();
            told.notified().await;
        };
        tokio::select! {
            ended = feeding => panic!("{ended}"),
            () = looking => {}
        }
        worker.join().await;
    }
}
