//! The clock, as a parameter of the code that reads the time. The time decides whether a certificate is valid, so a
//! test must be able to set the time.

use std::fmt;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of the current time. Code that decides by the time gets it as a parameter, so that a test can set the time.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time, in seconds since 1970-01-01T00:00:00Z.
    fn unix_seconds(&self) -> u64;

    /// Returns the seconds since an arbitrary start, by a clock that nobody can set. If this clock and `unix_seconds`
    /// advance differently, somebody has set the clock of the machine, or the machine slept.
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
        // A clock before 1970 is treated as 1970, when no certificate is valid yet. So nothing is trusted by mistake.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time_since_epoch| time_since_epoch.as_secs())
    }
}

/// A clock that never advances.
#[derive(Clone, Copy, Debug)]
pub struct FixedClock(
    /// The time that the clock always shows, in seconds since 1970-01-01T00:00:00Z.
    pub u64,
);

impl Clock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        self.0
    }

    /// Returns 0, because this clock never advances.
    fn monotonic_seconds(&self) -> u64 {
        0
    }
}
