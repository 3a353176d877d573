//! What feeds the service manager's watchdog: the threads that serve and decide, by coming round.
//!
//! A timer of its own would go on beside agents that nobody answers. Here each thread is given a task that does nothing: once all have
//! done it, the watchdog is told; a thread that stands still lets it run out, and the controller is started again.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};

/// Feeds it for as long as every thread comes round; there is none unless the unit says so.
pub(super) async fn feed(threads: Vec<Handle>) -> String {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    come_round(&threads, limit / 4, || {
        if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
            log::warn!(error:% = error; "the service manager cannot be told");
        }
    })
    .await
}

async fn come_round(threads: &[Handle], every: Duration, tell: impl Fn()) -> String {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for thread in threads {
            // One that has ended is told of by itself (`Ended`).
            let _done_or_ended = thread.spawn(async {}).await;
        }
        tell();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::Notify;

    use super::*;
    use crate::run::thread;

    #[tokio::test]
    async fn a_thread_that_stands_still_lets_the_watchdog_run_out() {
        let (release, held) = mpsc::channel::<()>();
        let (worker, _ended) = thread::start("still", move || async move {
            let _released_or_dropped = held.recv();
        })
        .unwrap();
        let (told, threads) = (Notify::new(), [worker.runtime()]);
        let feeding = come_round(&threads, Duration::from_millis(1), || told.notify_one());
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
