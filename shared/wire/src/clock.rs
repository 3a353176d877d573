//! The time of day, handed in: a certificate's validity is decided by it, and a test must be able to say what it is.

use std::fmt;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time. Given to whatever compares a date.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Seconds since 1970-01-01T00:00:00Z.
    fn unix_seconds(&self) -> u64;

    /// Seconds that have passed since some moment, by a clock that nobody sets: beside it the other one is seen to jump.
    fn steady_seconds(&self) -> u64 {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGAN.elapsed().as_secs()
    }
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn unix_seconds(&self) -> u64 {
        // A clock before 1970 makes every certificate not yet valid, which is the safe reading of it.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// A clock that stands still, for tests and simulations.
#[derive(Clone, Copy, Debug)]
pub struct FixedClock(
    /// Seconds since 1970-01-01T00:00:00Z.
    pub u64,
);

impl Clock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        self.0
    }

    fn steady_seconds(&self) -> u64 {
        0
    }
}
