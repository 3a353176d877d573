//! A measured rate of bytes for each of those who store: so much at once, and so much more with each second.
//!
//! What is stored is a debt that time pays. Who owes as much as may be stored at once stores nothing until a part of it is paid. One write
//! may be more than was left, since its size is known when it is made: then the next ones wait for longer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How much may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate {
    /// So many bytes at once.
    pub at_once: u64,
    /// So many more with each second; at least one.
    pub a_second: u64,
}

/// Who stored how much lately.
pub(super) struct BytePace<K> {
    rate: ByteRate,
    debts: Mutex<Debts<K>>,
}

/// Who stored what is not earned yet.
struct Debts<K> {
    /// When all that somebody stored will be earned.
    earned: HashMap<K, Instant>,
    /// When those that owe nothing were last forgotten.
    swept: Option<Instant>,
}

impl ByteRate {
    /// Results of one node.
    pub(super) const OF_RESULTS: Self = Self { at_once: 8 << 20, a_second: 32 << 10 };
    /// Writes of one principal.
    pub const OF_WRITES: Self = Self { at_once: 32 << 20, a_second: 256 << 10 };

    /// How long it takes to earn bytes.
    const fn time_of(self, bytes: u64) -> Duration {
        let a_second = if self.a_second == 0 { 1 } else { self.a_second };
        Duration::from_micros(bytes.saturating_mul(1_000_000) / a_second)
    }
}

impl<K: Eq + Hash> BytePace<K> {
    /// Nobody has stored anything yet.
    pub(super) fn new(rate: ByteRate) -> Self {
        Self { rate, debts: Mutex::new(Debts { earned: HashMap::new(), swept: None }) }
    }

    /// How long somebody has to wait until they may store something; `None`: they may now.
    pub(super) fn wait(&self, who: &K, now: Instant) -> Option<Duration> {
        let earned = self.lock().earned.get(who).copied()?;
        earned.saturating_duration_since(now).checked_sub(self.rate.time_of(self.rate.at_once))
    }

    /// Notes what was stored.
    pub(super) fn spend(&self, who: K, bytes: u64, now: Instant) {
        let mut debts = self.lock();
        let all = self.rate.time_of(self.rate.at_once);
        if debts.swept.is_none_or(|at| now.saturating_duration_since(at) >= all) {
            debts.earned.retain(|_, at| *at > now);
            debts.swept = Some(now);
        }
        let at = debts.earned.entry(who).or_insert(now);
        *at = (*at).max(now) + self.rate.time_of(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Debts<K>> {
        self.debts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn w10_01_results_are_stored_at_a_measured_rate_for_each_node() {
        let (pace, began) = (BytePace::new(ByteRate::OF_RESULTS), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        let stored = (0..100).take_while(|_| {
            let is_admitted = pace.wait(&1, began).is_none();
            pace.spend(1, MIB, began);
            is_admitted
        });
        assert_eq!(stored.count(), 8, "mebibytes at once");
        assert!(pace.wait(&2, began).is_none(), "another node waits for nobody");
        for (seconds, is_admitted) in [(0, false), (31, false), (33, true), (34, true)] {
            assert_eq!(pace.wait(&1, after(seconds)).is_none(), is_admitted, "{seconds} s");
        }
        pace.spend(2, 1, after(1000));
        assert_eq!(pace.lock().earned.len(), 1, "nothing is left of who is quiet");
    }

    #[test]
    fn w10_01_a_host_that_reports_several_times_a_second_earns_as_one_that_reports_seldom() {
        let (pace, began) = (BytePace::new(ByteRate::OF_RESULTS), Instant::now());
        for tenths in 0..10_000_u64 {
            let now = began + Duration::from_millis(100 * tenths);
            assert!(pace.wait(&1, now).is_none(), "after {tenths} tenths of a second");
            pace.spend(1, ByteRate::OF_RESULTS.a_second / 10, now);
        }
    }

    #[test]
    fn x03_f04_who_writes_as_fast_as_they_can_for_thirty_seconds_stores_forty_megabytes() {
        // As the attacker did: 600 KiB a write, 100 writes a second, 1.9 GB in all.
        let (pace, began, write) = (BytePace::new(ByteRate::OF_WRITES), Instant::now(), 600 * 1024);
        let mut stored = 0;
        for hundredths in 0..3_000_u64 {
            let now = began + Duration::from_millis(10 * hundredths);
            if pace.wait(&"otto", now).is_none() {
                pace.spend("otto", write, now);
                stored += write;
            }
        }
        // 32 MiB at once, 256 KiB for each second, and what the last write was more than was left.
        assert!((39 * MIB..41 * MIB).contains(&stored), "{stored}");
        assert!(pace.wait(&"other", began).is_none(), "others wait for nobody");
    }

    #[test]
    fn who_has_to_wait_is_told_how_long() {
        let (pace, began) = (BytePace::new(ByteRate { at_once: 100, a_second: 10 }), Instant::now());
        pace.spend((), 100, began);
        assert_eq!(pace.wait(&(), began), Some(Duration::ZERO), "all is spent");
        pace.spend((), 50, began);
        assert_eq!(pace.wait(&(), began), Some(Duration::from_secs(5)));
        assert_eq!(pace.wait(&(), began + Duration::from_secs(6)), None);
    }
}
