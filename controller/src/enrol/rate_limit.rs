//! Limits how often clients can present wrong tokens (S27).
//!
//! A secret has 256 random bits, so it cannot be guessed at any rate. The limit is for the log entries and the work
//! that guesses cause. Only wrong tokens count. So a thousand hosts that join behind one address never slow each other
//! down. If one network sends too many wrong tokens, its requests are refused without a check. There is no such refusal
//! for all networks together, because an attacker with enough networks could then keep every new host out. Besides, the
//! check of a token (one hash, one read) costs a fiftieth of the handshake before it. Instead, after too many failures
//! in all networks, the response to a wrong token is "come back later" instead of "wrong", and a valid token is
//! accepted (S29).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stemma_wire::net::network_prefix;

/// The limits for wrong tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptLimits {
    /// Maximum number of wrong tokens from one network: an IPv4 address, or the 64-bit prefix that a site has in IPv6.
    /// At this number, its join requests are refused unchecked, and a wrong token of a principal gets `ServerBusy`.
    pub per_network: u32,
    /// Maximum number of wrong tokens from all networks together. At this number, the response to a wrong, expired or
    /// used-up token is `ServerBusy`. A valid token is still accepted.
    pub total: u32,
    /// Time after which one wrong token is forgiven, in seconds. It applies to each network and to the total
    /// separately.
    pub refill_s: u64,
}

impl Default for AttemptLimits {
    fn default() -> Self {
        Self { per_network: 20, total: 1000, refill_s: 3 }
    }
}

/// Maximum number of networks whose failures are counted separately.
const MAX_NETWORKS: usize = 10_000;

/// The counts of recent failures, by network and in total. A failure is a wrong token.
#[derive(Debug, Default)]
pub struct TokenAttempts {
    limits: AttemptLimits,
    failures: Mutex<FailureBuckets>,
}

#[derive(Debug, Default)]
struct FailureBuckets {
    total: Bucket,
    by_network: HashMap<IpAddr, Bucket>,
    /// The time at which networks without failures were last removed, in seconds since 1970.
    pruned_s: u64,
}

/// A count of failures that are not forgiven yet.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// The number of failures that are not forgiven.
    failure_count: u32,
    /// The time from which the wait for the next forgiven failure counts, in seconds since 1970.
    since_s: u64,
}

impl Bucket {
    /// Forgives one failure for each period of `refill_s` seconds that has passed since `since_s`.
    fn drain(&mut self, now_s: u64, refill_s: u64) {
        // The periods are counted by a division, so their length must not be 0.
        let refill_s = refill_s.max(1);
        // If the clock was set back, `since_s` may be in the future. Then the periods begin now.
        self.since_s = self.since_s.min(now_s);
        let forgiven = now_s.saturating_sub(self.since_s) / refill_s;
        self.failure_count = self.failure_count.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        self.since_s = if self.failure_count == 0 { now_s } else { self.since_s + forgiven * refill_s };
    }

    /// Counts a failure, but never counts more than `limit`. So after a flood of failures, one forgiven failure is
    /// enough to be below the limit again.
    fn add(&mut self, limit: u32) {
        self.failure_count = self.failure_count.saturating_add(1).min(limit);
    }
}

impl TokenAttempts {
    /// Creates the state with these limits and without failures.
    pub fn new(limits: AttemptLimits) -> Self {
        Self { limits, failures: Mutex::default() }
    }

    /// Returns whether a token from this address may be checked now. False if its network has sent too many wrong
    /// tokens.
    pub(crate) fn is_allowed(&self, from: IpAddr, now_s: u64) -> bool {
        let mut failures = self.lock();
        let failure_count = failures.by_network.get_mut(&network_prefix(from)).map_or(0, |bucket| {
            bucket.drain(now_s, self.limits.refill_s);
            bucket.failure_count
        });
        failure_count < self.limits.per_network
    }

    /// Returns whether a response may reveal that a token is used up or expired. False if all networks together have
    /// sent too many wrong tokens, because then no response reveals why a token is refused.
    pub(super) fn may_reveal(&self, now_s: u64) -> bool {
        let mut failures = self.lock();
        failures.total.drain(now_s, self.limits.refill_s);
        failures.total.failure_count < self.limits.total
    }

    /// Counts a wrong token. Returns whether the response may reveal that the token is wrong. False if all networks
    /// together have sent too many wrong tokens before.
    pub(crate) fn record_failure(&self, from: IpAddr, now_s: u64) -> bool {
        let AttemptLimits { per_network, total, refill_s } = self.limits;
        let mut failures = self.lock();
        failures.total.drain(now_s, refill_s);
        let may_reveal = failures.total.failure_count < total;
        failures.total.add(total);
        failures.prune(now_s, refill_s);
        // When the table of networks is full, only the total limit applies.
        let from = network_prefix(from);
        if failures.by_network.len() < MAX_NETWORKS || failures.by_network.contains_key(&from) {
            failures.by_network.entry(from).or_insert(Bucket { failure_count: 0, since_s: now_s }).add(per_network);
        }
        may_reveal
    }

    fn lock(&self) -> MutexGuard<'_, FailureBuckets> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FailureBuckets {
    /// Removes the networks whose failures are all forgiven, if the table of networks is full. It visits every network,
    /// so it runs at most once in `refill_s` seconds, the time in which one failure is forgiven.
    fn prune(&mut self, now_s: u64, refill_s: u64) {
        let was_pruned_recently = (self.pruned_s..self.pruned_s.saturating_add(refill_s)).contains(&now_s);
        if self.by_network.len() < MAX_NETWORKS || was_pruned_recently {
            return;
        }
        self.pruned_s = now_s;
        self.by_network.retain(|_, bucket| {
            bucket.drain(now_s, refill_s);
            bucket.failure_count > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s27_token_attempts_reach_both_limits_and_recover() {
        let attempts = TokenAttempts::new(AttemptLimits { per_network: 3, total: 5, refill_s: 10 });
        let (first, second, third) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [10, 0, 0, 3].into());
        for _ in 0..3 {
            assert!(attempts.is_allowed(first, 1000));
            assert!(attempts.record_failure(first, 1000));
        }
        assert!(!attempts.is_allowed(first, 1009), "three wrong tokens are the limit of a network");
        assert!(attempts.is_allowed(second, 1009), "another network has its own count");
        assert!(attempts.record_failure(second, 1009) && attempts.may_reveal(1009) && attempts.record_failure(second, 1009));
        assert!(
            !attempts.may_reveal(1009) && !attempts.record_failure(third, 1009),
            "five wrong tokens are the total limit, so the sixth response reveals nothing"
        );
        assert!(attempts.is_allowed(third, 1009), "the tokens of another network are still checked");
        assert!(attempts.is_allowed(first, 1010), "one failure of the network is forgiven after ten seconds");
        assert!(attempts.record_failure(third, 1010), "one failure of the total is forgiven too");
    }

    #[test]
    fn f24_token_attempts_recover_when_clock_is_set_back() {
        let attempts = TokenAttempts::new(AttemptLimits { per_network: 3, total: 5, refill_s: 10 });
        let address = [10, 0, 0, 1].into();
        for _ in 0..3 {
            attempts.record_failure(address, 100_000);
        }
        assert!(!attempts.is_allowed(address, 1000));
        assert!(attempts.is_allowed(address, 1010), "one failure is forgiven after ten seconds of the new time");
    }

    #[test]
    fn s27_token_attempts_share_limit_when_addresses_are_in_one_network() {
        let attempts = TokenAttempts::new(AttemptLimits { per_network: 3, total: 1000, refill_s: 10 });
        for host in 1..=3 {
            attempts.record_failure(format!("2001:db8:0:7::{host:x}").parse().unwrap(), 1000);
        }
        for (address, expected) in
            [("2001:db8:0:7:ffff:ffff:ffff:ffff", false), ("2001:db8:0:8::1", true), ("2001:db8:0:6:ffff:ffff:ffff:ffff", true)]
        {
            assert_eq!(attempts.is_allowed(address.parse().unwrap(), 1000), expected, "{address}");
        }
        for _ in 0..3 {
            attempts.record_failure("::ffff:10.0.0.1".parse().unwrap(), 1000);
        }
        assert!(!attempts.is_allowed([10, 0, 0, 1].into(), 1000), "an IPv4-mapped address is the same address");
        assert!(attempts.is_allowed([10, 0, 0, 2].into(), 1000), "each IPv4 address is a network of its own");
    }

    #[test]
    fn s29_token_attempts_stay_bounded_when_flooded() {
        let attempts = TokenAttempts::new(AttemptLimits { per_network: 3, total: 5, refill_s: 10 });
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..50_000 {
            attempts.record_failure(address(number), 1000);
        }
        assert_eq!(attempts.lock().by_network.len(), MAX_NETWORKS);
        attempts.record_failure(address(60_000), 1011);
        assert_eq!(attempts.lock().by_network.len(), 1, "networks without failures are removed when the table is full");
        assert!(attempts.record_failure(address(60_001), 1031), "failures over the limit were not counted");
    }
}
