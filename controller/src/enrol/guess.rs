//! How often somebody may be wrong about a token (S27).
//!
//! A secret is 256 random bits, so no rate makes guessing hopeful; the limit is for the noise and the work that guessing makes. Wrong
//! ones count alone: a thousand hosts that join behind one address are never slowed down by each other.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// How many wrong tokens are looked at before more are refused unseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuessLimits {
    /// From one address at once.
    pub of_one_address: u32,
    /// From all addresses at once.
    pub of_all: u32,
    /// One more is allowed after so many seconds, each for itself.
    pub refill_s: u64,
}

impl Default for GuessLimits {
    fn default() -> Self {
        Self { of_one_address: 20, of_all: 1000, refill_s: 3 }
    }
}

/// How many addresses are remembered.
const MOST_ADDRESSES: usize = 10_000;

/// Who was wrong how often.
#[derive(Debug)]
pub(super) struct Guesses {
    limits: GuessLimits,
    wrong: Mutex<Wrong>,
}

#[derive(Debug, Default)]
struct Wrong {
    all: Bucket,
    by_address: HashMap<IpAddr, Bucket>,
}

/// Wrong guesses that are not forgiven yet.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    level: u32,
    since_s: u64,
}

impl Bucket {
    /// Forgives one for each `refill_s` that went by.
    fn drain(&mut self, now_s: u64, refill_s: u64) {
        let refill_s = refill_s.max(1);
        let forgiven = now_s.saturating_sub(self.since_s) / refill_s;
        self.level = self.level.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        self.since_s = if self.level == 0 { now_s } else { self.since_s + forgiven * refill_s };
    }
}

impl Guesses {
    pub(super) fn new(limits: GuessLimits) -> Self {
        Self { limits, wrong: Mutex::default() }
    }

    /// Whether a token from this address is looked at now.
    pub(super) fn allowed(&self, from: IpAddr, now_s: u64) -> bool {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.all.drain(now_s, self.limits.refill_s);
        let of_address = wrong.by_address.get_mut(&from).map_or(0, |bucket| {
            bucket.drain(now_s, self.limits.refill_s);
            bucket.level
        });
        wrong.all.level < self.limits.of_all && of_address < self.limits.of_one_address
    }

    /// Notes a wrong one.
    pub(super) fn note(&self, from: IpAddr, now_s: u64) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.all.level += 1;
        if wrong.by_address.len() >= MOST_ADDRESSES {
            let refill_s = self.limits.refill_s;
            wrong.by_address.retain(|_, bucket| {
                bucket.drain(now_s, refill_s);
                bucket.level > 0
            });
        }
        // With the memory full of the guilty, the measure for all is what holds.
        if wrong.by_address.len() < MOST_ADDRESSES || wrong.by_address.contains_key(&from) {
            wrong.by_address.entry(from).or_insert(Bucket { level: 0, since_s: now_s }).level += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s27_guessing_is_slowed_down_and_forgiven() {
        let guesses = Guesses::new(GuessLimits { of_one_address: 3, of_all: 5, refill_s: 10 });
        let (one, other, third) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [10, 0, 0, 3].into());
        for _ in 0..3 {
            assert!(guesses.allowed(one, 1000));
            guesses.note(one, 1000);
        }
        assert!(!guesses.allowed(one, 1009), "three wrong ones are enough");
        assert!(guesses.allowed(other, 1009), "another address has its own measure");
        guesses.note(other, 1009);
        guesses.note(other, 1009);
        assert!(!guesses.allowed(third, 1009), "five in all are enough");
        assert!(guesses.allowed(one, 1010), "one is forgiven after ten seconds");
    }
}
