//! Limits the rate at which each key (a principal, cluster or node) stores bytes. A key may store a burst at once, and
//! then a number of bytes per second.
//!
//! Stored bytes are a debt that is paid off over time. If the debt is as large as the burst, the key may not store
//! anything until a part of the debt is paid. One write may exceed the burst, because its size is known only after its
//! decision. The next writes then wait longer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A limit for stored bytes: a burst at once, and a number of bytes per second after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate {
    /// Size of the burst, in bytes.
    pub burst_bytes: u64,
    /// Bytes that may be stored per second after the burst. The value 0 has the effect of 1.
    pub bytes_per_second: u64,
}

/// Limits the bytes that each key (a principal, cluster or node) stores.
pub(super) struct ByteRateLimiter<K> {
    rate: ByteRate,
    buckets: Mutex<ByteBuckets<K>>,
}

/// The keys that have stored bytes recently, with the debt of each.
struct ByteBuckets<K> {
    /// The time at which each key's debt will be paid off.
    paid_off_at: HashMap<K, Instant>,
    /// The time at which keys without debt were last removed.
    swept_at: Option<Instant>,
}

impl ByteRate {
    /// The rate for the results of one node.
    pub(super) const RESULTS: Self = Self { burst_bytes: 8 << 20, bytes_per_second: 32 << 10 };
    /// The rate for the writes of one principal.
    pub const WRITES: Self = Self { burst_bytes: 32 << 20, bytes_per_second: 256 << 10 };

    /// Returns the time in which a debt of these bytes is paid off.
    const fn refill_time(self, bytes: u64) -> Duration {
        let per_second = if self.bytes_per_second == 0 { 1 } else { self.bytes_per_second };
        Duration::from_micros(bytes.saturating_mul(1_000_000) / per_second)
    }
}

impl<K: Eq + Hash> ByteRateLimiter<K> {
    /// Creates a limiter in which no key has a debt.
    pub(super) fn new(rate: ByteRate) -> Self {
        Self { rate, buckets: Mutex::new(ByteBuckets { paid_off_at: HashMap::new(), swept_at: None }) }
    }

    /// Returns how long a key must wait until it may store again, or `None` if it may store now. A key must wait while
    /// its debt is at least as large as the burst. If the two are equal, the time is zero.
    pub(super) fn wait_time(&self, key: &K, now: Instant) -> Option<Duration> {
        let paid_off_at = self.lock().paid_off_at.get(key).copied()?;
        paid_off_at.saturating_duration_since(now).checked_sub(self.rate.refill_time(self.rate.burst_bytes))
    }

    /// Adds the bytes that a key has stored to its debt. Also removes keys without debt from time to time.
    pub(super) fn spend(&self, key: K, bytes: u64, now: Instant) {
        let mut buckets = self.lock();
        let burst_time = self.rate.refill_time(self.rate.burst_bytes);
        if buckets.swept_at.is_none_or(|swept_at| now.saturating_duration_since(swept_at) >= burst_time) {
            buckets.paid_off_at.retain(|_, paid_off_at| *paid_off_at > now);
            buckets.swept_at = Some(now);
        }
        let paid_off_at = buckets.paid_off_at.entry(key).or_insert(now);
        *paid_off_at = (*paid_off_at).max(now) + self.rate.refill_time(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, ByteBuckets<K>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn w10_01_result_rate_limits_each_node() {
        let (limiter, start) = (ByteRateLimiter::new(ByteRate::RESULTS), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let stored = (0..100).take_while(|_| {
            let is_admitted = limiter.wait_time(&1, start).is_none();
            limiter.spend(1, MIB, start);
            is_admitted
        });
        assert_eq!(stored.count(), 8, "the burst is 8 MiB");
        assert!(limiter.wait_time(&2, start).is_none(), "the rate of another node is separate");
        // The debt is 9 MiB, because the refused attempt was charged too. It is 8 MiB after 32 seconds.
        for (seconds, is_admitted) in [(0, false), (31, false), (33, true), (34, true)] {
            assert_eq!(limiter.wait_time(&1, after(seconds)).is_none(), is_admitted, "{seconds} s");
        }
        limiter.spend(2, 1, after(1000));
        assert_eq!(limiter.lock().paid_off_at.len(), 1, "the entry of node 1, which has no debt, is removed");
    }

    /// A node that stores exactly its rate, in ten small reports per second, never waits.
    #[test]
    fn w10_01_limiter_admits_frequent_small_reports_at_exact_rate() {
        let (limiter, start) = (ByteRateLimiter::new(ByteRate::RESULTS), Instant::now());
        for tenths in 0..10_000_u64 {
            let now = start + Duration::from_millis(100 * tenths);
            assert!(limiter.wait_time(&1, now).is_none(), "after {tenths} tenths of a second");
            limiter.spend(1, ByteRate::RESULTS.bytes_per_second / 10, now);
        }
    }

    #[test]
    fn x03_f04_write_rate_allows_forty_megabytes_in_thirty_seconds() {
        // In a simulated attack, a principal sent 100 writes per second of 600 KiB each, 1.9 GB in total.
        let (limiter, start, write_bytes) = (ByteRateLimiter::new(ByteRate::WRITES), Instant::now(), 600 * 1024);
        let mut stored_bytes = 0;
        for hundredths in 0..3_000_u64 {
            let now = start + Duration::from_millis(10 * hundredths);
            if limiter.wait_time(&"otto", now).is_none() {
                limiter.spend("otto", write_bytes, now);
                stored_bytes += write_bytes;
            }
        }
        // 32 MiB at once, 256 KiB for each second, and the excess of the last write.
        assert!((39 * MIB..41 * MIB).contains(&stored_bytes), "{stored_bytes}");
        assert!(limiter.wait_time(&"other", start).is_none(), "the rate of another principal is separate");
    }

    #[test]
    fn wait_time_returns_duration_when_debt_reaches_burst() {
        let (limiter, start) = (ByteRateLimiter::new(ByteRate { burst_bytes: 100, bytes_per_second: 10 }), Instant::now());
        limiter.spend((), 100, start);
        assert_eq!(limiter.wait_time(&(), start), Some(Duration::ZERO), "the debt is as large as the burst");
        limiter.spend((), 50, start);
        assert_eq!(limiter.wait_time(&(), start), Some(Duration::from_secs(5)));
        assert_eq!(limiter.wait_time(&(), start + Duration::from_secs(6)), None);
    }
}
