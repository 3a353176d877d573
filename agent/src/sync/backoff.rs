//! How long to wait after a failure: exponential, with full jitter.

use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::Instant;

/// The first wait is somewhere below this.
const FIRST: Duration = Duration::from_millis(500);
/// No wait is longer.
const LONGEST: Duration = Duration::from_mins(1);
/// A rival that was not met for so long is gone. Two who both wait their longest meet sooner.
const PEACE: Duration = Duration::from_mins(10);

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

    /// One more failure; how long to wait, anywhere between nothing and the bound.
    pub(super) fn fail(&mut self) -> Duration {
        let bound = bound(self.failures);
        self.failures = self.failures.saturating_add(1);
        within(bound)
    }
}

/// Another host with this host's identity: each check-in of the one takes the place of the other's.
#[derive(Debug, Default)]
pub(super) struct Rival {
    backoff: Backoff,
    met_at: Option<Instant>,
}

impl Rival {
    /// Its check-in has taken the place of ours. Whether that is news, and how long to wait: an answer in between is no sign
    /// that it is gone, so only time makes the next wait a short one.
    pub(super) fn meet(&mut self) -> (bool, Duration) {
        let is_news = !self.is_about();
        self.met_at = Some(Instant::now());
        if is_news {
            self.backoff.succeed();
        }
        (is_news, self.backoff.fail())
    }

    /// Whether it was met not long ago.
    pub(super) fn is_about(&self) -> bool {
        self.met_at.is_some_and(|at| at.elapsed() <= PEACE)
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
