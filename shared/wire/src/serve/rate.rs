//! Checks that a peer sends a body, or reads a response, at the minimum rate.

use std::time::Duration;

use tokio::time::Instant;

/// The minimum rate at which a peer must send or read.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinRate {
    /// The maximum total time of waiting for the peer until it has moved the bytes that the rate requires for this
    /// time.
    pub(super) period: Duration,
    /// The rate, in bytes per second.
    pub(super) bytes_per_second: u64,
}

/// Measures how fast a peer sends or reads.
///
/// Only the time spent waiting for the peer counts, not the time while this side is busy. Once the peer has
/// moved the bytes of the whole period, the period restarts. So a burst never allows a stall longer than one period.
#[derive(Debug, Default)]
pub(super) struct RateTracker {
    /// The start of the current wait for the peer.
    waiting_since: Option<Instant>,
    /// The time spent waiting in this period before `waiting_since`.
    waited: Duration,
    /// The bytes moved in this period.
    moved_bytes: u64,
}

impl RateTracker {
    /// Starts waiting for the peer, if not waiting already. Returns the deadline.
    pub(super) fn wait(&mut self, rate: MinRate, now: Instant) -> Instant {
        let start = *self.waiting_since.get_or_insert(now);
        start + rate.period.saturating_sub(self.waited)
    }

    /// Records bytes that the peer moved.
    pub(super) fn record(&mut self, bytes: u64, rate: MinRate, now: Instant) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += now.saturating_duration_since(since);
        }
        self.moved_bytes = self.moved_bytes.saturating_add(bytes);
        if self.moved_bytes >= rate.bytes_per_second.saturating_mul(rate.period.as_secs()) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: MinRate = MinRate { period: Duration::from_secs(15), bytes_per_second: 10 };

    #[test]
    fn rate_tracker_extends_deadline_once_when_burst_arrives() {
        let (mut pace, start) = (RateTracker::default(), Instant::now());
        pace.record(1_000_000, RATE, start);
        assert_eq!(pace.wait(RATE, start), start + RATE.period);
    }

    #[test]
    fn rate_tracker_keeps_deadline_when_rate_is_too_low() {
        let (mut pace, start) = (RateTracker::default(), Instant::now());
        for second in 0..15 {
            let now = start + Duration::from_secs(second);
            assert_eq!(pace.wait(RATE, now), start + RATE.period, "after {second} s");
            pace.record(9, RATE, now + Duration::from_secs(1));
        }
    }

    #[test]
    fn rate_tracker_restarts_period_when_rate_is_met() {
        let (mut pace, start) = (RateTracker::default(), Instant::now());
        for second in 0..15 {
            pace.wait(RATE, start + Duration::from_secs(second));
            pace.record(10, RATE, start + Duration::from_secs(second + 1));
        }
        let later = start + Duration::from_secs(15);
        assert_eq!(pace.wait(RATE, later), later + RATE.period);
    }

    #[test]
    fn rate_tracker_ignores_time_when_peer_owes_nothing() {
        let (mut pace, start) = (RateTracker::default(), Instant::now());
        pace.wait(RATE, start);
        pace.record(1, RATE, start + Duration::from_secs(2));
        let later = start + Duration::from_mins(10);
        assert_eq!(pace.wait(RATE, later), later + Duration::from_secs(13));
    }
}
