//! Waits after failures: exponential backoff with full jitter, which means a random wait up to the current upper bound.

use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::Instant;

/// Upper bound of the wait after the first of several consecutive failures.
const INITIAL_WAIT: Duration = Duration::from_millis(500);
/// Upper bound of the wait after a failure, for any number of consecutive failures.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// Time after which another host with this identity counts as stopped, if it has not replaced a check-in since. It is
/// longer than that between two check-ins that replace each other, even if both hosts wait [`MAX_WAIT`] each time.
const RECENT_DUPLICATE: Duration = Duration::from_mins(10);

/// The number of consecutive failures, which determines the next wait.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Resets the number of failures after a success.
    pub(super) fn succeed(&mut self) {
        self.failures = 0;
    }

    /// Records a failure. Returns the wait before the next attempt, a random time up to the current bound.
    pub(super) fn fail(&mut self) -> Duration {
        let bound = max_wait(self.failures);
        self.failures = self.failures.saturating_add(1);
        random_below(bound)
    }
}

/// The record of another host with this host's identity. Each check-in of one host replaces the pending check-in of the
/// other host.
#[derive(Debug, Default)]
pub(super) struct DuplicateHost {
    backoff: Backoff,
    recorded_at: Option<Instant>,
}

impl DuplicateHost {
    /// Records that the other host replaced this host's check-in. Returns true if this had not happened for
    /// [`RECENT_DUPLICATE`], and the wait before this host checks in again.
    /// A successful check-in does not prove that the other host has stopped. So the backoff is reset only if the other
    /// host has not replaced a check-in for that time.
    pub(super) fn record(&mut self) -> (bool, Duration) {
        let is_new = !self.is_recent();
        self.recorded_at = Some(Instant::now());
        if is_new {
            self.backoff.succeed();
        }
        (is_new, self.backoff.fail())
    }

    /// Returns whether the other host replaced a check-in within the last [`RECENT_DUPLICATE`].
    pub(super) fn is_recent(&self) -> bool {
        self.recorded_at.is_some_and(|at| at.elapsed() <= RECENT_DUPLICATE)
    }
}

/// Returns the upper bound of the wait after this number of earlier failures. Each failure doubles the bound, up to
/// [`MAX_WAIT`].
fn max_wait(failures: u32) -> Duration {
    INITIAL_WAIT.saturating_mul(1 << failures.min(16)).min(MAX_WAIT)
}

/// Returns a random time from zero up to the bound.
pub(super) fn random_below(bound: Duration) -> Duration {
    let mut bytes = [0; 4];
    // If the system provides no random numbers, the wait is the whole bound. This is safe, because it is the longest
    // wait.
    let fraction = if SystemRandom::new().fill(&mut bytes).is_ok() { u32::from_be_bytes(bytes) } else { u32::MAX };
    bound.mul_f64(f64::from(fraction) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_wait_doubles_up_to_a_minute() {
        for (failures, seconds) in [(0, 0.5), (1, 1.0), (5, 16.0), (7, 60.0), (40, 60.0)] {
            assert!((max_wait(failures).as_secs_f64() - seconds).abs() < 1e-9, "{failures}");
        }
        let mut backoff = Backoff::default();
        assert!((0..100).all(|_| backoff.fail() <= MAX_WAIT));
    }
}
