//! Reproducible random numbers. A test prints its seed, and the same seed gives the same numbers again.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use uuid::Uuid;

/// Returns whether a long test run is requested (`cargo xtask test --long`).
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("STEMMA_TEST_LONG").is_some()
}

/// Returns a seed from the run id of cargo-nextest, which is unique to each run. Returns `None` if nextest does not run
/// the test.
fn run_seed() -> Option<u64> {
    let run: Uuid = std::env::var("NEXTEST_RUN_ID").ok()?.parse().ok()?;
    Some(run.as_u64_pair().1)
}

/// Returns the time since 1970 in milliseconds, as a seed.
fn time_seed() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

/// A `SplitMix64` random number generator (Steele, Lea, Flood 2014). It is small, and good enough to draw test cases.
#[derive(Clone, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// Creates a generator from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates a generator from `STEMMA_SEED`, or else from the id of this run of cargo-nextest or from the time, and
    /// prints the seed. A retry in the same run of nextest uses the same seed, so the retry repeats a failure.
    ///
    /// # Errors
    /// When `STEMMA_SEED` is not a number.
    #[allow(clippy::print_stdout, reason = "whoever reads a failed test's output needs it")]
    pub fn from_env() -> Result<Self> {
        let seed = match std::env::var("STEMMA_SEED") {
            Ok(seed) => seed.parse().context("STEMMA_SEED is not a number")?,
            Err(_) => run_seed().map_or_else(time_seed, Ok)?,
        };
        println!("STEMMA_SEED={seed}");
        Ok(Self::new(seed))
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `limit`, which must not be 0.
    pub fn next_below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next_u64() % limit as u64).expect("it is below a usize")
    }

    /// Returns true in `percent` of 100 calls on average.
    pub fn is_within_percent(&mut self, percent: usize) -> bool {
        self.next_below(100) < percent
    }

    /// Returns a random element.
    ///
    /// # Panics
    /// When the slice is empty.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.next_below(items.len())]
    }

    /// Returns a random subset of the elements, in the same order. Each element is included with a probability of
    /// `percent`.
    pub fn sample<T: Clone>(&mut self, items: &[T], percent: usize) -> Vec<T> {
        items.iter().filter(|_| self.is_within_percent(percent)).cloned().collect()
    }
}
