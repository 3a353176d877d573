//! Shows the watchdog of the controller that the reconciler makes progress.

use std::future::Future;
use std::pin::pin;

use tokio::sync::Notify;

/// The progress of the reconciler. The watchdog waits for a step of it, and the reconciler records its steps.
///
/// A step is a turn of the loop, or a node that a pass has handled. So a pass over many nodes counts as progress for as
/// long as it takes, and a loop or a pass that waits for ever does not.
#[derive(Default)]
pub(super) struct ReconcileProgress {
    /// Wakes the loop when the watchdog waits for a step, because an idle loop makes none by itself.
    request: Notify,
    /// Wakes the watchdog at each step.
    step: Notify,
}

impl ReconcileProgress {
    /// Waits for the next step of the reconciler.
    pub(super) async fn wait(&self) {
        // A step that is made after this call is not missed, although the future is polled later.
        let step = self.step.notified();
        self.request.notify_one();
        step.await;
    }

    /// Records that the reconciler has made a step.
    pub(super) fn record_step(&self) {
        self.step.notify_waiters();
    }

    /// Waits until the watchdog waits for a step. The loop of the reconciler then makes a turn.
    pub(super) async fn requested(&self) {
        self.request.notified().await;
    }

    /// Waits for the response of the store to a request. Until then, the reconciler counts as working, because a
    /// restart of the controller does not help against a disk that does not respond.
    pub(super) async fn wait_for_store<T>(&self, store_request: impl Future<Output = T>) -> T {
        let mut store_request = pin!(store_request);
        loop {
            tokio::select! {
                biased;
                response = &mut store_request => return response,
                () = self.requested() => self.record_step(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// A step that was made earlier does not end the wait.
    #[tokio::test(start_paused = true)]
    async fn wait_ends_only_at_later_step() {
        let progress = ReconcileProgress::default();
        progress.record_step();
        assert!(timeout(Duration::from_hours(1), progress.wait()).await.is_err(), "no step was made after the call");
        let record_later = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            progress.record_step();
        };
        tokio::join!(progress.wait(), record_later);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_ends_while_store_does_not_respond() {
        let progress = ReconcileProgress::default();
        let checks = async {
            for _ in 0..3 {
                timeout(Duration::from_secs(1), progress.wait()).await.expect("a wait for the store counts as working");
            }
        };
        tokio::select! {
            () = progress.wait_for_store(std::future::pending::<()>()) => unreachable!(),
            () = checks => {}
        }
        assert_eq!(progress.wait_for_store(async { 7 }).await, 7);
    }
}
