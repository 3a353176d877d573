//! How long to wait after a failure: exponential, with full jitter.

use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};

/// The first wait is somewhere below this.
const FIRST: Duration = Duration::from_millis(500);
/// No wait is longer.
const LONGEST: Duration = Duration::from_mins(1);

/// Failures in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It worked: the next failure waits little again.
    pub(super) fn succeed(&mut self) {
        self.failures = 0;
    }

    /// Whether nothing has failed since it last worked.
    pub(super) fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    /// One more failure; how long to wait, anywhere between nothing and the bound.
    pub(super) fn fail(&mut self) -> Duration {
        let bound = bound(self.failures);
        self.failures = self.failures.saturating_add(1);
        within(bound)
    }
}

fn bound(failures: u32) -> Duration {
    FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST)
}

/// A random time below the bound.
pub(super) fn within(bound: Duration) -> Duration {
    let mut bytes = [0; 4];
    // Without randomness the whole bound is waited, which is safe.
    let share = if SystemRandom::new().fill(&mut bytes).is_ok() { u32::from_be_bytes(bytes) } else { u32::MAX };
    bound.mul_f64(f64::from(share) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_up_to_a_minute() {
        for (failures, seconds) in [(0, 0.5), (1, 1.0), (5, 16.0), (7, 60.0), (40, 60.0)] {
            assert!((bound(failures).as_secs_f64() - seconds).abs() < 1e-9, "{failures}");
        }
        let mut backoff = Backoff::default();
        assert!((0..100).all(|_| backoff.fail() <= LONGEST));
    }
}
