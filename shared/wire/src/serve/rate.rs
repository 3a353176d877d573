//! Checks that a peer sends a body, or reads a response, at the minimum rate.

use std::time::Duration;

use tokio::time::Instant;

/// The minimum rate at which a peer must send or read.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinRate {
    /// The maximum total time that this side waits for the peer in one period. A period ends when the peer has sent or
    /// read `period` times `bytes_per_second` bytes.
    pub(super) period: Duration,
    /// The rate, in bytes per second.
    pub(super) bytes_per_second: u64,
}

/// Measures how fast a peer sends or reads.
///
/// It measures only the time during which this side waits for the peer, not the time during which this side is busy.
/// Once the peer has sent or read the bytes of a whole period, the next period begins. So a peer that sends a burst
/// still cannot pause for longer than one period.
#[derive(Debug, Default)]
pub(super) struct RateTracker {
    /// The start of the current wait for the peer. `None` while this side does not wait.
    waiting_since: Option<Instant>,
    /// The total time of the earlier waits in this period.
    waited: Duration,
    /// The number of bytes that the peer sent or read in this period.
    moved_bytes: u64,
}

impl RateTracker {
    /// Starts a wait for the peer, unless one is in progress. Returns the time at which the waits of this period are as
    /// long as the period.
    pub(super) fn start_wait(&mut self, rate: MinRate, now: Instant) -> Instant {
        let start = *self.waiting_since.get_or_insert(now);
        start + rate.period.saturating_sub(self.waited)
    }

    /// Records bytes that the peer sent or read, and ends the wait. Begins the next period if the peer has sent or read
    /// the bytes of a whole period.
    pub(super) fn record_bytes(&mut self, bytes: u64, rate: MinRate, now: Instant) {
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

    /// `RATE` requires 10 bytes per second, in periods of 15 s. A burst of more bytes begins only one period.
    #[test]
    fn rate_tracker_extends_deadline_once_when_burst_arrives() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        tracker.record_bytes(1_000_000, RATE, start);
        assert_eq!(tracker.start_wait(RATE, start), start + RATE.period);
    }

    /// `RATE` requires 10 bytes per second, in periods of 15 s. The peer sends 9 bytes per second.
    #[test]
    fn rate_tracker_keeps_deadline_when_rate_is_too_low() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        for second in 0..15 {
            let now = start + Duration::from_secs(second);
            assert_eq!(tracker.start_wait(RATE, now), start + RATE.period, "after {second} s");
            tracker.record_bytes(9, RATE, now + Duration::from_secs(1));
        }
    }

    /// `RATE` requires 10 bytes per second, in periods of 15 s. The peer sends exactly at this rate for 15 s.
    #[test]
    fn rate_tracker_restarts_period_when_rate_is_met() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        for second in 0..15 {
            tracker.start_wait(RATE, start + Duration::from_secs(second));
            tracker.record_bytes(10, RATE, start + Duration::from_secs(second + 1));
        }
        let later = start + Duration::from_secs(15);
        assert_eq!(tracker.start_wait(RATE, later), later + RATE.period);
    }

    /// `RATE` has periods of 15 s. The peer sends a byte after 2 s. Then nothing is awaited for almost 10 minutes, and
    /// this time does not count. So 13 s of the period remain.
    #[test]
    fn rate_tracker_ignores_time_when_nothing_is_awaited() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        tracker.start_wait(RATE, start);
        tracker.record_bytes(1, RATE, start + Duration::from_secs(2));
        let later = start + Duration::from_mins(10);
        assert_eq!(tracker.start_wait(RATE, later), later + Duration::from_secs(13));
    }
}
