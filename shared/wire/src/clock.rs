//! The time of day, as a parameter of the code that needs it. The time decides whether a certificate is valid, so a
//! test must be able to set it.

use std::fmt;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of the time, passed to all code that compares dates.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the seconds since 1970-01-01T00:00:00Z.
    fn unix_seconds(&self) -> u64;

    /// Returns the seconds since an arbitrary start, by a clock that nobody can set. A comparison with `unix_seconds`
    /// shows when the time of day jumps.
    fn monotonic_seconds(&self) -> u64 {
        static STARTED_AT: LazyLock<Instant> = LazyLock::new(Instant::now);
        STARTED_AT.elapsed().as_secs()
    }
}

/// The clock of the machine on which the program runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn unix_seconds(&self) -> u64 {
        // With a clock before 1970, no certificate is valid yet. That is the safe interpretation.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// A clock that never advances, for tests and simulations.
#[derive(Clone, Copy, Debug)]
pub struct FixedClock(
    /// Seconds since 1970-01-01T00:00:00Z.
    pub u64,
);

impl Clock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        self.0
    }

    fn monotonic_seconds(&self) -> u64 {
        0
    }
}
