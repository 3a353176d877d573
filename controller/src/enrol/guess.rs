//! How often somebody may be wrong about a token (S27).
//!
//! A secret is 256 random bits, so no rate makes guessing hopeful; the limit is for the noise and the work that guessing makes. Wrong
//! ones count alone: a thousand hosts that join behind one address are never slowed down by each other. One network that guesses is
//! refused unseen. All of them together are not: whoever has enough networks would keep every new host out, and a look at a token
//! (one hash, one read) costs a fiftieth of the handshake before it. So when too many guess, a wrong token is answered
//! with "come back later" instead of "wrong", and a right one is accepted (S29).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stemma_wire::net::network;

/// How many wrong tokens are forgiven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuessLimits {
    /// From one network at once: an IPv4 address, or the 64 bits of an IPv6 one that a site has for itself.
    pub of_one_network: u32,
    /// From all networks at once.
    pub of_all: u32,
    /// One more is allowed after so many seconds, each for itself.
    pub refill_s: u64,
}

impl Default for GuessLimits {
    fn default() -> Self {
        Self { of_one_network: 20, of_all: 1000, refill_s: 3 }
    }
}

/// How many networks are remembered.
const MOST_NETWORKS: usize = 10_000;

/// Who was wrong how often.
#[derive(Debug, Default)]
pub struct Guesses {
    limits: GuessLimits,
    wrong: Mutex<Wrong>,
}

#[derive(Debug, Default)]
struct Wrong {
    all: Bucket,
    by_network: HashMap<IpAddr, Bucket>,
    /// When those that are forgiven were last taken out.
    cleared_s: u64,
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
        // A clock that was set back must not keep anybody waiting for the time that it had.
        self.since_s = self.since_s.min(now_s);
        let forgiven = now_s.saturating_sub(self.since_s) / refill_s;
        self.level = self.level.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        self.since_s = if self.level == 0 { now_s } else { self.since_s + forgiven * refill_s };
    }

    /// Counts one more, to the measure and no further: what a flood did is forgiven as soon as what a few did.
    fn add(&mut self, most: u32) {
        self.level = self.level.saturating_add(1).min(most);
    }
}

impl Guesses {
    /// Nobody was wrong yet.
    pub fn new(limits: GuessLimits) -> Self {
        Self { limits, wrong: Mutex::default() }
    }

    /// Whether a token from this address is looked at now.
    pub(crate) fn allowed(&self, from: IpAddr, now_s: u64) -> bool {
        let mut wrong = self.lock();
        let level = wrong.by_network.get_mut(&network(from)).map_or(0, |bucket| {
            bucket.drain(now_s, self.limits.refill_s);
            bucket.level
        });
        level < self.limits.of_one_network
    }

    /// Whether somebody may be told that a token is no good any more: not where too many were wrong lately, as for those.
    pub(super) fn may_tell(&self, now_s: u64) -> bool {
        let mut wrong = self.lock();
        wrong.all.drain(now_s, self.limits.refill_s);
        wrong.all.level < self.limits.of_all
    }

    /// Notes a wrong one. Whether it may be told that it is wrong: not where too many were lately.
    pub(crate) fn note(&self, from: IpAddr, now_s: u64) -> bool {
        let GuessLimits { of_one_network, of_all, refill_s } = self.limits;
        let mut wrong = self.lock();
        wrong.all.drain(now_s, refill_s);
        let told = wrong.all.level < of_all;
        wrong.all.add(of_all);
        wrong.make_room(now_s, refill_s);
        // When the table of networks is full, only the limit for all networks applies.
        let from = network(from);
        if wrong.by_network.len() < MOST_NETWORKS || wrong.by_network.contains_key(&from) {
            wrong.by_network.entry(from).or_insert(Bucket { level: 0, since_s: now_s }).add(of_one_network);
        }
        told
    }

    fn lock(&self) -> MutexGuard<'_, Wrong> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wrong {
    /// Takes out those that are forgiven, when the memory is full; no oftener than one can be, since it looks at all of them.
    fn make_room(&mut self, now_s: u64, refill_s: u64) {
        let is_cleared = (self.cleared_s..self.cleared_s.saturating_add(refill_s)).contains(&now_s);
        if self.by_network.len() < MOST_NETWORKS || is_cleared {
            return;
        }
        self.cleared_s = now_s;
        self.by_network.retain(|_, bucket| {
            bucket.drain(now_s, refill_s);
            bucket.level > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s27_guessing_is_slowed_down_and_forgiven() {
        let guesses = Guesses::new(GuessLimits { of_one_network: 3, of_all: 5, refill_s: 10 });
        let (one, other, third) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [10, 0, 0, 3].into());
        for _ in 0..3 {
            assert!(guesses.allowed(one, 1000));
            assert!(guesses.note(one, 1000));
        }
        assert!(!guesses.allowed(one, 1009), "three wrong ones are enough");
        assert!(guesses.allowed(other, 1009), "another network has its own measure");
        assert!(guesses.note(other, 1009) && guesses.may_tell(1009) && guesses.note(other, 1009));
        assert!(!guesses.may_tell(1009) && !guesses.note(third, 1009), "five in all are enough: the sixth is not told");
        assert!(guesses.allowed(third, 1009), "and whoever else comes is looked at all the same");
        assert!(guesses.allowed(one, 1010), "one is forgiven after ten seconds");
        assert!(guesses.note(third, 1010), "of all as well");
    }

    #[test]
    fn f24_a_clock_that_was_set_back_keeps_nobody_waiting() {
        let guesses = Guesses::new(GuessLimits { of_one_network: 3, of_all: 5, refill_s: 10 });
        let one = [10, 0, 0, 1].into();
        for _ in 0..3 {
            guesses.note(one, 100_000);
        }
        assert!(!guesses.allowed(one, 1000));
        assert!(guesses.allowed(one, 1010), "one is forgiven after ten seconds of the new time");
    }

    #[test]
    fn s27_a_site_has_one_measure_however_many_addresses_it_has() {
        let guesses = Guesses::new(GuessLimits { of_one_network: 3, of_all: 1000, refill_s: 10 });
        for host in 1..=3 {
            guesses.note(format!("2001:db8:0:7::{host:x}").parse().unwrap(), 1000);
        }
        for (from, allowed) in [
            ("2001:db8:0:7:ffff:ffff:ffff:ffff", false),
            ("2001:db8:0:8::1", true),
            ("2001:db8:0:6:ffff:ffff:ffff:ffff", true),
        ] {
            assert_eq!(guesses.allowed(from.parse().unwrap(), 1000), allowed, "{from}");
        }
        for _ in 0..3 {
            guesses.note("::ffff:10.0.0.1".parse().unwrap(), 1000);
        }
        assert!(!guesses.allowed([10, 0, 0, 1].into(), 1000), "the same address in its other form");
        assert!(guesses.allowed([10, 0, 0, 2].into(), 1000), "an IPv4 address stands for itself");
    }

    #[test]
    fn s29_a_flood_is_remembered_in_bounds_and_forgiven_as_soon_as_a_few() {
        let guesses = Guesses::new(GuessLimits { of_one_network: 3, of_all: 5, refill_s: 10 });
        let of = |n: u32| IpAddr::from(n.to_be_bytes());
        for n in 0..50_000 {
            guesses.note(of(n), 1000);
        }
        assert_eq!(guesses.lock().by_network.len(), MOST_NETWORKS);
        guesses.note(of(60_000), 1011);
        assert_eq!(guesses.lock().by_network.len(), 1, "those that are forgiven make room");
        assert!(guesses.note(of(60_001), 1031), "a hundred thousand more than the measure are no debt");
    }
}
