//! Chance that a seed repeats: a test that draws prints its seed, and the seed gives the same draw again.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use uuid::Uuid;

/// Whether the full counts are asked for (`cargo xtask test --long`).
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("STEMMA_TEST_LONG").is_some()
}

/// The seed of a run of cargo-nextest, which names each of its runs.
fn of_run() -> Option<u64> {
    let run: Uuid = std::env::var("NEXTEST_RUN_ID").ok()?.parse().ok()?;
    Some(run.as_u64_pair().1)
}

fn of_now() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

/// `SplitMix64` (Steele, Lea, Flood 2014): small, and good enough to draw cases with.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The draws of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The draws of `STEMMA_SEED`, or of this run; the seed is printed. A test that is run again draws the same again: what it found by
    /// chance fails again.
    ///
    /// # Errors
    /// When `STEMMA_SEED` is no number.
    #[allow(clippy::print_stdout, reason = "whoever reads a failed test's output needs it")]
    pub fn seeded() -> Result<Self> {
        let seed = match std::env::var("STEMMA_SEED") {
            Ok(seed) => seed.parse().context("STEMMA_SEED is a number")?,
            Err(_) => of_run().map_or_else(of_now, Ok)?,
        };
        println!("STEMMA_SEED={seed}");
        Ok(Self::new(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.bits() % limit as u64).expect("it is below a usize")
    }

    /// True in so many of a hundred draws.
    pub fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    /// One of several.
    ///
    /// # Panics
    /// When there is none.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Each of several with that share, in their order.
    pub fn some<T: Clone>(&mut self, of: &[T], share: usize) -> Vec<T> {
        of.iter().filter(|_| self.percent(share)).cloned().collect()
    }
}
