//! Whether a peer keeps the least rate at which it has to send a body, or to take an answer.

use std::time::Duration;

use tokio::time::Instant;

/// The least rate of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeastRate {
    /// For how long the peer may be waited for until it has moved the bytes of this time.
    pub(super) within: Duration,
    /// Bytes a second.
    pub(super) bytes_per_second: u64,
}

/// How a peer moves what it sends or takes.
///
/// Only the time in which the peer is waited for counts: while this side is busy, nothing is owed. Once the peer moved the bytes of the
/// whole time, the time begins anew, so a burst buys no standstill that is longer than that.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Since when the peer is waited for.
    since: Option<Instant>,
    /// For how long it was waited for before that.
    waited: Duration,
    /// What it moved meanwhile, in bytes.
    moved: u64,
}

impl Pace {
    /// The peer is waited for, until the time that this returns at the latest.
    pub(super) fn wait(&mut self, rate: LeastRate, now: Instant) -> Instant {
        let since = *self.since.get_or_insert(now);
        since + rate.within.saturating_sub(self.waited)
    }

    /// The peer moved some bytes.
    pub(super) fn note(&mut self, bytes: u64, rate: LeastRate, now: Instant) {
        if let Some(since) = self.since.take() {
            self.waited += now.saturating_duration_since(since);
        }
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= rate.bytes_per_second.saturating_mul(rate.within.as_secs()) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: LeastRate = LeastRate { within: Duration::from_secs(15), bytes_per_second: 10 };

    #[test]
    fn a_burst_earns_the_time_once() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.note(1_000_000, RATE, start);
        assert_eq!(pace.wait(RATE, start), start + RATE.within);
    }

    #[test]
    fn drops_below_the_rate_use_up_the_time() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for second in 0..15 {
            let now = start + Duration::from_secs(second);
            assert_eq!(pace.wait(RATE, now), start + RATE.within, "after {second} s");
            pace.note(9, RATE, now + Duration::from_secs(1));
        }
    }

    #[test]
    fn the_rate_earns_the_time_anew() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for second in 0..15 {
            pace.wait(RATE, start + Duration::from_secs(second));
            pace.note(10, RATE, start + Duration::from_secs(second + 1));
        }
        let later = start + Duration::from_secs(15);
        assert_eq!(pace.wait(RATE, later), later + RATE.within);
    }

    #[test]
    fn time_in_which_the_peer_is_not_waited_for_does_not_count() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.wait(RATE, start);
        pace.note(1, RATE, start + Duration::from_secs(2));
        let later = start + Duration::from_mins(10);
        assert_eq!(pace.wait(RATE, later), later + Duration::from_secs(13));
    }
}
