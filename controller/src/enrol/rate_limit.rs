//! Limits how often clients can present wrong tokens (S27).
//!
//! A secret has 256 random bits, so it cannot be guessed at any rate. The limit is for the log entries and the work
//! that guesses cause. Only wrong tokens count: a thousand hosts that join behind one address never slow each other
//! down. If one network sends too many, its requests are refused without a check. All networks together are not
//! refused: an attacker with enough networks could then keep every new host out, and a token check (one hash, one read)
//! costs a fiftieth of the handshake before it. Instead, if there are too many failures in all, a wrong token is
//! answered with "come back later" instead of "wrong", and a valid one is accepted (S29).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stemma_wire::net::network_prefix;

/// How many wrong tokens are tolerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptLimits {
    /// Maximum number from one network: an IPv4 address, or the 64-bit prefix that a site has in IPv6.
    pub per_network: u32,
    /// Maximum number from all networks together.
    pub total: u32,
    /// Seconds after which one failure is forgiven, for each limit separately.
    pub refill_s: u64,
}

impl Default for AttemptLimits {
    fn default() -> Self {
        Self { per_network: 20, total: 1000, refill_s: 3 }
    }
}

/// Maximum number of networks whose failures are stored.
const MAX_NETWORKS: usize = 10_000;

/// The recent failures, by network and in total.
#[derive(Debug, Default)]
pub struct TokenAttempts {
    limits: AttemptLimits,
    failures: Mutex<FailureBuckets>,
}

#[derive(Debug, Default)]
struct FailureBuckets {
    total: Bucket,
    by_network: HashMap<IpAddr, Bucket>,
    /// The last time at which forgiven networks were removed.
    pruned_s: u64,
}

/// A count of failures that are not forgiven yet.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// The number of failures.
    level: u32,
    /// The time from which the next forgiven failure is counted, in seconds.
    since_s: u64,
}

impl Bucket {
    /// Forgives one failure for each `refill_s` that has passed.
    fn drain(&mut self, now_s: u64, refill_s: u64) {
        let refill_s = refill_s.max(1);
        // After the clock was set back, nobody must wait until the earlier time is reached again.
        self.since_s = self.since_s.min(now_s);
        let forgiven = now_s.saturating_sub(self.since_s) / refill_s;
        self.level = self.level.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        self.since_s = if self.level == 0 { now_s } else { self.since_s + forgiven * refill_s };
    }

    /// Adds a failure, up to the limit. So a flood is forgiven as soon as a few failures are.
    fn add(&mut self, limit: u32) {
        self.level = self.level.saturating_add(1).min(limit);
    }
}

impl TokenAttempts {
    /// Creates the state with these limits and without failures.
    pub fn new(limits: AttemptLimits) -> Self {
        Self { limits, failures: Mutex::default() }
    }

    /// Returns whether a token from this address may be checked now.
    pub(crate) fn is_allowed(&self, from: IpAddr, now_s: u64) -> bool {
        let mut failures = self.lock();
        let level = failures.by_network.get_mut(&network_prefix(from)).map_or(0, |bucket| {
            bucket.drain(now_s, self.limits.refill_s);
            bucket.level
        });
        level < self.limits.per_network
    }

    /// Returns whether a response may reveal that a token is used up or expired. False after too many recent failures,
    /// as for wrong tokens.
    pub(super) fn may_reveal(&self, now_s: u64) -> bool {
        let mut failures = self.lock();
        failures.total.drain(now_s, self.limits.refill_s);
        failures.total.level < self.limits.total
    }

    /// Counts a wrong token. Returns whether the response may reveal that it is wrong, which is false after too many
    /// recent failures.
    pub(crate) fn record_failure(&self, from: IpAddr, now_s: u64) -> bool {
        let AttemptLimits { per_network, total, refill_s } = self.limits;
        let mut failures = self.lock();
        failures.total.drain(now_s, refill_s);
        let may_reveal = failures.total.level < total;
        failures.total.add(total);
        failures.prune(now_s, refill_s);
        // When the table of networks is full, only the total limit applies.
        let from = network_prefix(from);
        if failures.by_network.len() < MAX_NETWORKS || failures.by_network.contains_key(&from) {
            failures.by_network.entry(from).or_insert(Bucket { level: 0, since_s: now_s }).add(per_network);
        }
        may_reveal
    }

    fn lock(&self) -> MutexGuard<'_, FailureBuckets> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FailureBuckets {
    /// Removes the networks whose failures are forgiven, if the table is full. It visits every network, so it runs at
    /// most once per `refill_s`, the time in which one failure is forgiven.
    fn prune(&mut self, now_s: u64, refill_s: u64) {
        let is_cleared = (self.pruned_s..self.pruned_s.saturating_add(refill_s)).contains(&now_s);
        if self.by_network.len() < MAX_NETWORKS || is_cleared {
            return;
        }
        self.pruned_s = now_s;
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
    fn s27_token_attempts_slow_down_after_failures_and_recover() {
        let guesses = TokenAttempts::new(AttemptLimits { per_network: 3, total: 5, refill_s: 10 });
        let (one, other, third) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [10, 0, 0, 3].into());
        for _ in 0..3 {
            assert!(guesses.is_allowed(one, 1000));
            assert!(guesses.record_failure(one, 1000));
        }
        assert!(!guesses.is_allowed(one, 1009), "three wrong ones are enough");
        assert!(guesses.is_allowed(other, 1009), "another network has its own measure");
        assert!(guesses.record_failure(other, 1009) && guesses.may_reveal(1009) && guesses.record_failure(other, 1009));
        assert!(
            !guesses.may_reveal(1009) && !guesses.record_failure(third, 1009),
            "five in all are enough: the sixth is not told"
        );
        assert!(guesses.is_allowed(third, 1009), "and whoever else comes is looked at all the same");
        assert!(guesses.is_allowed(one, 1010), "one is forgiven after ten seconds");
        assert!(guesses.record_failure(third, 1010), "of all as well");
    }

    #[test]
    fn f24_token_attempts_recover_when_clock_is_set_back() {
        let guesses = TokenAttempts::new(AttemptLimits { per_network: 3, total: 5, refill_s: 10 });
        let one = [10, 0, 0, 1].into();
        for _ in 0..3 {
            guesses.record_failure(one, 100_000);
        }
        assert!(!guesses.is_allowed(one, 1000));
        assert!(guesses.is_allowed(one, 1010), "one is forgiven after ten seconds of the new time");
    }

    #[test]
    fn s27_token_attempts_share_limit_when_addresses_are_in_one_network() {
        let guesses = TokenAttempts::new(AttemptLimits { per_network: 3, total: 1000, refill_s: 10 });
        for host in 1..=3 {
            guesses.record_failure(format!("2001:db8:0:7::{host:x}").parse().unwrap(), 1000);
        }
        for (from, allowed) in
            [("2001:db8:0:7:ffff:ffff:ffff:ffff", false), ("2001:db8:0:8::1", true), ("2001:db8:0:6:ffff:ffff:ffff:ffff", true)]
        {
            assert_eq!(guesses.is_allowed(from.parse().unwrap(), 1000), allowed, "{from}");
        }
        for _ in 0..3 {
            guesses.record_failure("::ffff:10.0.0.1".parse().unwrap(), 1000);
        }
        assert!(!guesses.is_allowed([10, 0, 0, 1].into(), 1000), "the same address in its other form");
        assert!(guesses.is_allowed([10, 0, 0, 2].into(), 1000), "an IPv4 address stands for itself");
    }

    #[test]
    fn s29_token_attempts_stay_bounded_when_flooded() {
        let guesses = TokenAttempts::new(AttemptLimits { per_network: 3, total: 5, refill_s: 10 });
        let of = |n: u32| IpAddr::from(n.to_be_bytes());
        for n in 0..50_000 {
            guesses.record_failure(of(n), 1000);
        }
        assert_eq!(guesses.lock().by_network.len(), MAX_NETWORKS);
        guesses.record_failure(of(60_000), 1011);
        assert_eq!(guesses.lock().by_network.len(), 1, "those that are forgiven make room");
        assert!(guesses.record_failure(of(60_001), 1031), "a hundred thousand over the limit are not a debt");
    }
}
