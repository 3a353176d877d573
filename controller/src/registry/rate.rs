//! Limits the rate at which each key (a principal, cluster or node) stores bytes: a burst at once, and a number of
//! bytes per second.
//!
//! Stored bytes are a debt that is paid off over time. If the debt is as large as the burst, the key stores nothing
//! until a part of it is paid. One write may be larger than the rest of the burst, because its size is known only when
//! it is made. The next writes then wait longer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A limit for stored bytes: a burst, and a rate after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate {
    /// Bytes that may be stored at once.
    pub burst_bytes: u64,
    /// Bytes that may be stored per second after that, at least one.
    pub bytes_per_second: u64,
}

/// Limits the bytes that each key stores.
pub(super) struct ByteRateLimiter<K> {
    rate: ByteRate,
    buckets: Mutex<ByteBuckets<K>>,
}

/// The keys that have stored bytes recently.
struct ByteBuckets<K> {
    /// The time at which each key's debt will be paid.
    full_at: HashMap<K, Instant>,
    /// When keys without debt were last removed.
    swept_at: Option<Instant>,
}

impl ByteRate {
    /// The rate for the results of one node.
    pub(super) const RESULTS: Self = Self { burst_bytes: 8 << 20, bytes_per_second: 32 << 10 };
    /// The rate for the writes of one principal.
    pub const WRITES: Self = Self { burst_bytes: 32 << 20, bytes_per_second: 256 << 10 };

    /// Returns the time after which a debt of these bytes is paid.
    const fn refill_time(self, bytes: u64) -> Duration {
        let per_second = if self.bytes_per_second == 0 { 1 } else { self.bytes_per_second };
        Duration::from_micros(bytes.saturating_mul(1_000_000) / per_second)
    }
}

impl<K: Eq + Hash> ByteRateLimiter<K> {
    /// Creates a limiter for which no bytes are stored yet.
    pub(super) fn new(rate: ByteRate) -> Self {
        Self { rate, buckets: Mutex::new(ByteBuckets { full_at: HashMap::new(), swept_at: None }) }
    }

    /// Returns how long a key must wait before it may store again, or `None` if it may store now.
    pub(super) fn wait_time(&self, key: &K, now: Instant) -> Option<Duration> {
        let full_at = self.lock().full_at.get(key).copied()?;
        full_at.saturating_duration_since(now).checked_sub(self.rate.refill_time(self.rate.burst_bytes))
    }

    /// Counts bytes that a key has stored.
    pub(super) fn spend(&self, key: K, bytes: u64, now: Instant) {
        let mut buckets = self.lock();
        let burst_time = self.rate.refill_time(self.rate.burst_bytes);
        if buckets.swept_at.is_none_or(|at| now.saturating_duration_since(at) >= burst_time) {
            buckets.full_at.retain(|_, at| *at > now);
            buckets.swept_at = Some(now);
        }
        let at = buckets.full_at.entry(key).or_insert(now);
        *at = (*at).max(now) + self.rate.refill_time(bytes);
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
        let (pace, began) = (ByteRateLimiter::new(ByteRate::RESULTS), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        let stored = (0..100).take_while(|_| {
            let is_admitted = pace.wait_time(&1, began).is_none();
            pace.spend(1, MIB, began);
            is_admitted
        });
        assert_eq!(stored.count(), 8, "mebibytes at once");
        assert!(pace.wait_time(&2, began).is_none(), "another node waits for nobody");
        for (seconds, is_admitted) in [(0, false), (31, false), (33, true), (34, true)] {
            assert_eq!(pace.wait_time(&1, after(seconds)).is_none(), is_admitted, "{seconds} s");
        }
        pace.spend(2, 1, after(1000));
        assert_eq!(pace.lock().full_at.len(), 1, "nothing is left of who is quiet");
    }

    #[test]
    fn w10_01_limiter_refills_equally_when_reports_are_frequent() {
        let (pace, began) = (ByteRateLimiter::new(ByteRate::RESULTS), Instant::now());
        for tenths in 0..10_000_u64 {
            let now = began + Duration::from_millis(100 * tenths);
            assert!(pace.wait_time(&1, now).is_none(), "after {tenths} tenths of a second");
            pace.spend(1, ByteRate::RESULTS.bytes_per_second / 10, now);
        }
    }

    #[test]
    fn x03_f04_write_rate_allows_forty_megabytes_in_thirty_seconds() {
        // As in the attack: 600 KiB per write, 100 writes a second, 1.9 GB in all.
        let (pace, began, write) = (ByteRateLimiter::new(ByteRate::WRITES), Instant::now(), 600 * 1024);
        let mut stored = 0;
        for hundredths in 0..3_000_u64 {
            let now = began + Duration::from_millis(10 * hundredths);
            if pace.wait_time(&"otto", now).is_none() {
                pace.spend("otto", write, now);
                stored += write;
            }
        }
        // 32 MiB at once, 256 KiB for each second, and the excess of the last write.
        assert!((39 * MIB..41 * MIB).contains(&stored), "{stored}");
        assert!(pace.wait_time(&"other", began).is_none(), "others wait for nobody");
    }

    #[test]
    fn wait_time_returns_duration_when_bucket_is_empty() {
        let (pace, began) = (ByteRateLimiter::new(ByteRate { burst_bytes: 100, bytes_per_second: 10 }), Instant::now());
        pace.spend((), 100, began);
        assert_eq!(pace.wait_time(&(), began), Some(Duration::ZERO), "all is spent");
        pace.spend((), 50, began);
        assert_eq!(pace.wait_time(&(), began), Some(Duration::from_secs(5)));
        assert_eq!(pace.wait_time(&(), began + Duration::from_secs(6)), None);
    }
}
