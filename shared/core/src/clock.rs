//! Decides whether the machine's clock can be trusted.
//!
//! Data that is deleted because it expired does not come back when the clock is correct again. So a controller compares
//! its clock with a monotonic clock, and at its start with the last recorded time. While the clock differs from the
//! expected time, nothing is deleted. The controller cannot distinguish a clock that jumped from one that was wrong
//! before and was corrected, or from a machine that slept. So the clock is trusted again after a day without a jump.
//!
//! ```text
//!             it shows the expected time
//!                 ┌─────────┐
//!                 ▼         │         it shows another time
//!   start ────▶ Good ───────┴────────────────────────────▶ Suspect ◀──┐
//!     │           ▲                                        ▲  │   │    │ it jumps to yet another time:
//!     │           └────────────────────────────────────────┼──┘   └────┘ the day starts again
//!     │             it shows the expected time,            │
//!     │             or has run on for a day                │
//!     └────────────────────────────────────────────────────┘
//!       it is before the recorded time, or more than 30 days after it
//! ```

use serde::{Deserialize, Serialize};

use crate::finding::{Finding, rule};
use crate::object::Timestamp;
use crate::time;

/// Maximum difference between the clock and its expected time in both directions, in milliseconds: more than time
/// synchronization usually moves a clock at once. At a start, the clock may be ahead by [`MAX_DOWNTIME_MS`].
const TOLERANCE_MS: u64 = 5 * 60 * 1000;
/// Maximum time that a controller may have been stopped, in milliseconds. After a longer time, its clock is suspect at
/// the start.
const MAX_DOWNTIME_MS: u64 = 30 * 24 * 3600 * 1000;
/// Time that a suspect clock must run without another jump before it is trusted again, in seconds.
const SETTLING_SECONDS: u64 = 24 * 3600;

/// Maximum number of doubts (periods in which the clock was not trusted) that a store records.
const MAX_CLOCK_DOUBTS: usize = 64;

/// The wall clock and the monotonic clock, read at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The time of the wall clock.
    pub wall: Timestamp,
    /// The time of the monotonic clock, in seconds since an arbitrary start.
    pub monotonic_seconds: u64,
}

/// The times that the wall clock may show, computed from an earlier reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedTime {
    /// The earlier reading, from which the clock should have run on. The monotonic clock gives the time that has passed
    /// since this reading. At the start of a controller, its wall time is the last recorded time.
    start: ClockReading,
    /// Maximum time that the clock may be ahead of the expected time, in milliseconds.
    max_ahead_ms: u64,
}

/// The trust in the controller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockTrust {
    /// The clock shows the expected time, or has run on for a day since its last jump, or no earlier time is recorded.
    Good {
        /// The times that the clock may show at the next reading.
        expected: ExpectedTime,
    },
    /// The clock does not show the expected time.
    Suspect {
        /// The times that the clock should show.
        expected: ExpectedTime,
        /// The reading after the last jump. The clock has run on from this reading without another jump.
        since: ClockReading,
    },
}

/// A period in which the clock was not trusted. The revisions of the store mark its start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockDoubt {
    /// The revision of the record by which the store noted first that the clock was not trusted.
    pub from: u64,
    /// The last revision that the store wrote in this period. `None` in the record that stores the doubt first: the
    /// doubt ends with the revision of that record. [`ClockDoubts::set_last_revision`] sets this revision afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// The time at which the clock was trusted again.
    pub until: Timestamp,
    /// Maximum time by which the clock may have been behind before the doubt, in milliseconds. It is the time by which
    /// the clock was ahead of its expected time when the doubt ended, and 0 if the clock was not ahead. If the doubt
    /// ended while the controller was stopped, it is the time since the last recorded time. If one record stands for
    /// several doubts, it is the sum.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ahead_ms: u64,
}

/// The doubts of a store, oldest first. If there are more than [`MAX_CLOCK_DOUBTS`], the two oldest are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockDoubts(Vec<ClockDoubt>);

/// A jump of the clock: the time that it should have shown, and the time that it showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    /// The time that the clock should have shown.
    pub expected: Timestamp,
    /// The time that the clock showed.
    pub actual: Timestamp,
}

/// Returns whether a duration is zero. Serde then omits the field.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(milliseconds: &u64) -> bool {
    *milliseconds == 0
}

/// Formats a time for people, in UTC. A time after the year 9999 is written as milliseconds after 1970.
pub fn format_time(timestamp: Timestamp) -> String {
    time::format(timestamp.0).unwrap_or_else(|| format!("{} ms after 1970", timestamp.0))
}

impl ExpectedTime {
    /// Returns the expected times of a clock that is correct at this reading and runs on from it.
    fn from_reading(reading: ClockReading) -> Self {
        Self { start: reading, max_ahead_ms: TOLERANCE_MS }
    }

    /// Returns the time that the wall clock should show at a reading, computed from the monotonic clock.
    fn time_at(self, now: ClockReading) -> Timestamp {
        let elapsed_s = now.monotonic_seconds.saturating_sub(self.start.monotonic_seconds);
        Timestamp(self.start.wall.0.saturating_add(elapsed_s.saturating_mul(1000)))
    }

    /// Returns whether the wall clock of a reading shows one of the expected times.
    fn allows(self, now: ClockReading) -> bool {
        let Timestamp(expected_ms) = self.time_at(now);
        (expected_ms.saturating_sub(TOLERANCE_MS)..=expected_ms.saturating_add(self.max_ahead_ms)).contains(&now.wall.0)
    }
}

impl ClockDoubts {
    /// Returns whether there are no doubts.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the newest doubt, which has ended. If there are then too many, merges the two oldest doubts into one. The
    /// time between the two then counts as a doubt as well.
    pub fn add(&mut self, doubt: ClockDoubt) {
        self.0.push(doubt);
        if let [first, second, ..] = self.0[..]
            && self.0.len() > MAX_CLOCK_DOUBTS
        {
            let ahead_ms = first.ahead_ms.saturating_add(second.ahead_ms);
            self.0.splice(..2, [ClockDoubt { from: first.from, ahead_ms, ..second }]);
        }
    }

    /// Sets the last revision of the newest doubt, unless it is set. `revision` is the revision of the store at which
    /// the doubt was stored first.
    pub fn set_last_revision(&mut self, revision: u64) {
        if let Some(last) = self.0.last_mut() {
            last.to.get_or_insert(revision);
        }
    }

    /// Returns the time at which the newest doubt ended, or `None` if there are no doubts.
    pub fn last_end(&self) -> Option<Timestamp> {
        self.0.last().map(|doubt| doubt.until)
    }

    /// Returns the time from which the age of a stored object counts. `written_at` is the time in the object, and
    /// `revision` is the revision of the store that wrote it.
    ///
    /// A doubt is a period in which the clock was not trusted. It covers the revisions from `from` to `to`, and ends at
    /// the time `until`. The cases are these:
    /// - The object was written during a doubt. Its age counts from the end of the doubt.
    /// - The object was written before a doubt that began with a jump ahead. The clock may have been behind until the
    ///   jump. So the age counts from the object's own time plus the jump, or from the end of the doubt if that is
    ///   earlier.
    /// - The object was written before a doubt, and its time is later than `now`, because the clock was ahead at the
    ///   write. The age counts from the end of the doubt at the latest.
    pub fn age_start(&self, written_at: Timestamp, revision: u64, now: Timestamp) -> Timestamp {
        self.0.iter().fold(written_at, |start, doubt| {
            if revision < doubt.from {
                let latest = doubt.until.min(Timestamp(start.0.saturating_add(doubt.ahead_ms)));
                if start > now { latest } else { start.max(latest) }
            } else if doubt.to.is_none_or(|to| revision <= to) {
                doubt.until
            } else {
                start
            }
        })
    }
}

impl ClockTrust {
    /// Returns the trust in the clock at a start of the controller, judged by the last time that the store recorded.
    /// Without such a time, the clock is good, because nothing exists yet that could expire.
    pub fn at_start(last_recorded: Option<Timestamp>, now: ClockReading) -> Self {
        let good = Self::Good { expected: ExpectedTime::from_reading(now) };
        let Some(last_recorded) = last_recorded else { return good };
        // The monotonic clock does not show how long the controller was stopped. So any time up to the maximum is
        // allowed.
        let expected = ExpectedTime { start: ClockReading { wall: last_recorded, ..now }, max_ahead_ms: MAX_DOWNTIME_MS };
        if expected.allows(now) { good } else { Self::Suspect { expected, since: now } }
    }

    /// Returns the trust after another reading. The clock becomes suspect if it does not show the expected time. A
    /// suspect clock becomes good if it shows the expected time again, or has run for a day without another jump.
    #[must_use]
    pub fn next(self, now: ClockReading) -> Self {
        let good = Self::Good { expected: ExpectedTime::from_reading(now) };
        match self {
            Self::Good { expected } | Self::Suspect { expected, .. } if expected.allows(now) => good,
            Self::Good { expected } => Self::Suspect { expected, since: now },
            Self::Suspect { expected, since } if !ExpectedTime::from_reading(since).allows(now) => {
                Self::Suspect { expected, since: now }
            }
            Self::Suspect { since, .. } if now.monotonic_seconds.saturating_sub(since.monotonic_seconds) >= SETTLING_SECONDS => {
                good
            }
            Self::Suspect { .. } => self,
        }
    }

    /// Returns the time by which a suspect clock is ahead of its expected time, in milliseconds, at the reading `now`,
    /// at which it is trusted again. Returns 0 if the clock shows its expected or an earlier time, or was not suspect.
    pub fn ahead_at_end(self, now: ClockReading) -> u64 {
        match self {
            Self::Suspect { expected, .. } if !expected.allows(now) => now.wall.0.saturating_sub(expected.time_at(now).0),
            Self::Suspect { .. } | Self::Good { .. } => 0,
        }
    }

    /// Returns the jump because of which the clock is suspect, or `None` if the clock is trusted.
    pub fn jump(self) -> Option<ClockJump> {
        match self {
            Self::Good { .. } => None,
            Self::Suspect { expected, since } => Some(ClockJump { expected: expected.time_at(since), actual: since.wall }),
        }
    }

    /// Returns the finding for a suspect clock, or `None` if the clock is trusted.
    pub fn finding(self) -> Option<Finding> {
        let ClockJump { expected: from, actual: to } = self.jump()?;
        let message = format!(
            "the controller's clock went from {} to {}, or the controller was stopped for that time: until the clock is correct again, or has \
             run on for 24 hours, nothing that has expired is deleted; check the clock (timedatectl), and replace certificates and \
             tokens that were issued while it was wrong",
            format_time(from),
            format_time(to)
        );
        Some(Finding::new(rule::CLOCK_JUMPED, "fleet", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_S: u64 = 3600;
    const DAY_S: u64 = 24 * HOUR_S;
    /// A time in November 2026, in seconds since 1970.
    const NOW_S: u64 = 1_795_000_000;

    /// Returns a reading `steady_s` seconds after the start of the process. The wall clock of the reading is ahead by
    /// `off_s` seconds.
    fn reading(off_s: i64, steady_s: u64) -> ClockReading {
        ClockReading {
            wall: Timestamp((NOW_S + steady_s).checked_add_signed(off_s).unwrap() * 1000),
            monotonic_seconds: steady_s,
        }
    }

    const fn days(count: i64) -> i64 {
        count * 24 * 3600
    }

    /// A reading is the number of seconds by which the wall clock is ahead, and the number of seconds since the start.
    /// The list after the readings shows for each of them whether the clock is trusted.
    #[test]
    fn x04_f12_clock_is_suspect_until_correct_or_settled_for_a_day() {
        for (case, readings, expected) in [
            ("the clock runs normally", &[(0, 10), (0, HOUR_S), (0, 30 * DAY_S)][..], &[true, true, true][..]),
            ("the clock is corrected in small steps", &[(240, 10), (480, 20), (200, 30)], &[true, true, true]),
            ("400 days ahead, and then correct", &[(days(400), 10), (days(400), 20), (0, 30)], &[false, false, true]),
            ("100 days back, and then correct", &[(days(-100), 10), (days(-100), 20), (0, 30)], &[false, false, true]),
            ("three hours ahead", &[(3 * 3600, 10)], &[false]),
            ("three hours back", &[(-3 * 3600, 10)], &[false]),
            ("ten minutes ahead", &[(600, 10)], &[false]),
            (
                "400 days ahead for more than a day",
                &[(days(400), 10), (days(400), DAY_S), (days(400), DAY_S + 10), (days(400), 2 * DAY_S)],
                &[false, false, true, true],
            ),
            (
                "the clock jumps a second time within a day",
                &[(days(400), 10), (days(40), DAY_S), (days(40), DAY_S + 10), (days(40), 2 * DAY_S)],
                &[false, false, false, true],
            ),
            (
                "the clock is corrected after it was trusted",
                &[(days(400), 0), (days(400), DAY_S), (0, DAY_S + 10), (0, 2 * DAY_S + 10)],
                &[false, true, false, true],
            ),
        ] {
            let mut trust = ClockTrust::at_start(None, reading(0, 0));
            assert!(trust.jump().is_none(), "{case}");
            for ((off_s, steady_s), is_trusted) in readings.iter().zip(expected) {
                trust = trust.next(reading(*off_s, *steady_s));
                assert_eq!(trust.jump().is_none(), *is_trusted, "{case}: {off_s} after {steady_s}: {trust:?}");
            }
        }
    }

    #[test]
    fn x04_f12_age_counts_from_end_of_doubt_when_written_during_doubt() {
        let doubt = |from, to, until, ahead_ms| ClockDoubt { from, to, until: Timestamp(until), ahead_ms };
        let counted_from = |doubts: &ClockDoubts, at, revision| doubts.age_start(Timestamp(at), revision, Timestamp(1_000_000)).0;
        let mut doubts = ClockDoubts::default();
        assert!(doubts.is_empty());
        doubts.add(doubt(10, Some(12), 1000, 0));
        doubts.add(doubt(20, None, 2000, 0));
        for (at, revision, expected) in [
            (5, 9, 5),
            (900, 9, 900),
            (5, 10, 1000),
            (5, 12, 1000),
            (1500, 13, 1500),
            (5, 20, 2000),
            (9_000_000, 25, 2000),
            // The record was written by a clock that was ahead and trusted.
            (9_000_000, 9, 1000),
            (9_000_000, 13, 2000),
        ] {
            assert_eq!(counted_from(&doubts, at, revision), expected, "{at} at revision {revision}");
        }
        doubts.set_last_revision(22);
        assert_eq!(counted_from(&doubts, 9_000_000, 25), 9_000_000, "the revision is after the doubt");
        assert_eq!(doubts.last_end(), Some(Timestamp(2000)));
        // The clock jumps 500 ms ahead and runs on from there. It may have been behind by 500 ms before.
        doubts.add(doubt(30, Some(31), 3000, 500));
        for (at, revision, expected) in [(5, 9, 505), (5, 10, 1500), (5, 21, 2500), (2800, 25, 3000), (2800, 32, 2800)] {
            assert_eq!(counted_from(&doubts, at, revision), expected, "{at} at revision {revision}");
        }
        // A clock that is ahead is trusted after a day, and put back later.
        let mut put_back = doubts.clone();
        put_back.add(doubt(40, Some(41), 900_000, 800_000));
        put_back.add(doubt(50, Some(51), 5000, 0));
        for (at, revision, expected) in [(2800, 25, 5000), (850_000, 40, 5000), (899_000, 45, 5000), (4990, 50, 5000)] {
            let counted_from = put_back.age_start(Timestamp(at), revision, Timestamp(6000)).0;
            assert_eq!(counted_from, expected, "{at} at revision {revision}");
        }
        // A correct clock is put back and is trusted. It is correct again at a later start, and no check notices that
        // jump.
        let mut corrected_doubts = ClockDoubts::default();
        corrected_doubts.add(doubt(10, Some(11), 1000, 0));
        for (now, expected) in [(1000, 1000), (1500, 1000), (20_000, 20_000), (21_000, 20_000)] {
            let counted_from = corrected_doubts.age_start(Timestamp(20_000), 9, Timestamp(now)).0;
            assert_eq!(counted_from, expected, "at {now}: no older than it is");
        }
        for nth in 4..=100 {
            doubts.add(doubt(nth * 10, Some(nth * 10 + 1), nth * 1000, 0));
        }
        assert_eq!(doubts.0.len(), MAX_CLOCK_DOUBTS);
        let starts = [9, 10, 370, 380, 1000].map(|revision| counted_from(&doubts, 5, revision));
        assert_eq!(starts, [505, 37_000, 37_000, 38_000, 100_000], "the oldest doubts are merged into one");
    }

    /// Each case has the last recorded time and then readings, of which the first is that of the start. A reading is
    /// the number of seconds by which the wall clock is ahead, and the number of seconds since the start. The last list
    /// shows for each reading whether the clock is trusted.
    #[test]
    fn x04_f12_clock_at_start_is_compared_with_last_known_time() {
        let time_with_offset = |off_s: i64| Some(reading(off_s, 0).wall);
        for (case, last, readings, expected) in [
            ("no time was recorded", None, &[(0, 0)][..], &[true][..]),
            ("the controller ran a minute ago", time_with_offset(-60), &[(0, 0)], &[true]),
            ("the controller ran 29 days ago", time_with_offset(days(-29)), &[(0, 0)], &[true]),
            (
                "the controller ran 31 days ago",
                time_with_offset(days(-31)),
                &[(0, 0), (0, 10), (0, DAY_S - 1), (0, DAY_S)],
                &[false, false, false, true],
            ),
            ("the recorded time is four minutes later", time_with_offset(240), &[(0, 0)], &[true]),
            ("the recorded time is an hour later", time_with_offset(3600), &[(0, 0), (0, 10)], &[false, false]),
            (
                "400 days ahead, and then correct",
                time_with_offset(-60),
                &[(days(400), 0), (days(400), 10), (0, 20)],
                &[false, false, true],
            ),
            ("400 days ahead, and then another 40", time_with_offset(-60), &[(days(400), 0), (days(440), 10)], &[false, false]),
        ] {
            let (first_reading, later_readings) = readings.split_first().unwrap();
            let mut trust = ClockTrust::at_start(last, reading(first_reading.0, first_reading.1));
            assert_eq!(trust.jump().is_none(), expected[0], "{case}");
            for ((off_s, steady_s), is_trusted) in later_readings.iter().zip(&expected[1..]) {
                trust = trust.next(reading(*off_s, *steady_s));
                assert_eq!(trust.jump().is_none(), *is_trusted, "{case}: {off_s} after {steady_s}: {trust:?}");
            }
        }
    }

    #[test]
    fn x04_f12_jump_finding_names_both_times() {
        let good = ClockTrust::at_start(None, reading(0, 0));
        assert_eq!(good.finding(), None);
        let suspect = good.next(reading(days(400), 100));
        let jump = suspect.jump().unwrap();
        assert_eq!((jump.expected, jump.actual), (reading(0, 100).wall, reading(days(400), 100).wall));
        let finding = suspect.finding().unwrap().to_string();
        // The two times are 1795000100 and 1829560100 seconds after 1970.
        let begins =
            "warning clock.jumped fleet: the controller's clock went from 2026-11-18T11:08:20Z to 2027-12-23T11:08:20Z, ";
        assert!(finding.starts_with(begins), "{finding}");
        assert!(finding.contains("nothing that has expired is deleted"), "{finding}");
    }
}
