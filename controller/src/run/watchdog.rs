//! Pings the service manager's watchdog if the threads that serve and decide still make progress.
//!
//! A timer alone would keep pinging while agents get no responses. So each thread is given a task that does nothing,
//! and the watchdog is pinged when all of them have run it. If a thread hangs, the watchdog expires and the controller
//! is restarted.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};

/// Pings the watchdog of the service manager (systemd) for as long as every thread makes progress. Pings four times
/// within the timeout of the watchdog. Waits for ever if the unit sets no watchdog.
pub(super) async fn feed_watchdog(threads: Vec<Handle>) -> String {
    let Some(watchdog_timeout) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    ping_threads(&threads, watchdog_timeout / 4, || {
        if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
            log::warn!(error:% = error; "the service manager could not be notified");
        }
    })
    .await
}

/// Calls `ping` once in each period, after every thread has run an empty task. While a thread hangs, `ping` is not
/// called. Never returns.
async fn ping_threads(threads: &[Handle], period: Duration, ping: impl Fn()) -> String {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for runtime in threads {
            // A thread that has ended is reported by its `ThreadEnd`.
            let _done_or_ended = runtime.spawn(async {}).await;
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

    /// The future of the thread blocks until the test sends a message. `ping` is called only after that.
    #[tokio::test]
    async fn ping_threads_pings_only_when_no_thread_hangs() {
        let (release, receiver) = mpsc::channel::<()>();
        let (worker, _ended) = thread::start("still", move || async move {
            let _released_or_dropped = receiver.recv();
        })
        .unwrap();
        let (ping_notify, threads) = (Notify::new(), [worker.runtime()]);
        let pinging = ping_threads(&threads, Duration::from_millis(1), || ping_notify.notify_one());
        let checks = async {
            let early_ping = tokio::time::timeout(Duration::from_millis(200), ping_notify.notified()).await;
            assert!(early_ping.is_err(), "the watchdog was pinged although a thread hangs");
            release.send(()).unwrap();
            ping_notify.notified().await;
        };
        tokio::select! {
            end_message = pinging => panic!("{end_message}"),
            () = checks => {}
        }
        worker.join().await;
    }
}
