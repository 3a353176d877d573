//! Whether the machine's clock can be believed.
//!
//! What is dropped because its time is over does not come back when the clock is right again. So a controller looks at its clock beside
//! one that nobody sets, and at its start beside the time that it noted last; while the clock says something else than was to be
//! expected, nothing is dropped. A clock that was wrong before and was corrected looks the same from here, and so does a machine that
//! slept: then a day without another jump is what makes it good.
//!
//! ```text
//!             it says what was expected
//!                 ┌─────────┐
//!                 ▼         │         it says something else
//!   start ────▶ Good ───────┴────────────────────────────▶ Suspect ◀──┐
//!     │           ▲                                        ▲  │   │    │ it is set again, to something else:
//!     │           └────────────────────────────────────────┼──┘   └────┘ the day begins anew
//!     │             it says what was expected,             │
//!     │             or has gone on for a day               │
//!     └────────────────────────────────────────────────────┘
//!       it is before the time that was noted, or more than 30 days after it
//! ```

use serde::{Deserialize, Serialize};

use crate::finding::{Finding, rule};
use crate::object::Timestamp;
use crate::time;

/// By how much the clock may be put forward or back between two looks: more than what keeps it right ever does at once.
const TOLERANCE_MS: u64 = 5 * 60 * 1000;
/// For how long a controller may have been stopped without a doubt about its clock.
const STOPPED_MS: u64 = 30 * 24 * 3600 * 1000;
/// For how long a clock that jumped must go on from there.
const SETTLED_S: u64 = 24 * 3600;

/// The most times of doubt that are known apart.
const MOST_DOUBTS: usize = 64;

/// What the clock says, and what one that nobody sets has counted since some beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What the clock says.
    pub at: Timestamp,
    /// What the other one has counted, in seconds.
    pub steady_s: u64,
}

/// What the clock may say from some moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    from: Moment,
    /// How far beyond it may be.
    ahead_ms: u64,
}

/// Whether the clock can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It says what was expected.
    Good {
        /// What it may say next.
        expected: Expected,
    },
    /// It does not.
    Suspect {
        /// What it might have said.
        expected: Expected,
        /// Since when it goes on from where it is.
        since: Moment,
    },
}

/// A time in which the clock was not believed, by revisions of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// The first one that was written then.
    pub from: u64,
    /// The last one; `None`: that of the record which says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// When the clock was believed again.
    pub until: Timestamp,
    /// By how much it is ahead of what it said before, where it was not put back: it may have been behind until then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ahead_ms: u64,
}

/// Those of a store, in their order. Of more than [`MOST_DOUBTS`] the first two become one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubts(Vec<Doubt>);

/// From where to where a clock jumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// What it should have said.
    pub from: Timestamp,
    /// What it said.
    pub to: Timestamp,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(milliseconds: &u64) -> bool {
    *milliseconds == 0
}

/// A time, for people.
pub fn spelled(at: Timestamp) -> String {
    time::spell(at.0).unwrap_or_else(|| format!("{} ms after 1970", at.0))
}

impl Expected {
    fn going_on(from: Moment) -> Self {
        Self { from, ahead_ms: TOLERANCE_MS }
    }

    /// What a clock says that has gone on.
    fn at(self, now: Moment) -> Timestamp {
        let passed_s = now.steady_s.saturating_sub(self.from.steady_s);
        Timestamp(self.from.at.0.saturating_add(passed_s.saturating_mul(1000)))
    }

    fn allows(self, now: Moment) -> bool {
        let Timestamp(at) = self.at(now);
        (at.saturating_sub(TOLERANCE_MS)..=at.saturating_add(self.ahead_ms)).contains(&now.at.0)
    }
}

impl Doubts {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds one that is over, the last.
    pub fn add(&mut self, doubt: Doubt) {
        self.0.push(doubt);
        if let [first, second, ..] = self.0[..]
            && self.0.len() > MOST_DOUBTS
        {
            let ahead_ms = first.ahead_ms.saturating_add(second.ahead_ms);
            self.0.splice(..2, [Doubt { from: first.from, ahead_ms, ..second }]);
        }
    }

    /// Takes in which revision the record has that says so of the last one.
    pub fn set_recorded(&mut self, revision: u64) {
        if let Some(last) = self.0.last_mut() {
            last.to.get_or_insert(revision);
        }
    }

    /// When the last one was over.
    pub fn last_until(&self) -> Option<Timestamp> {
        self.0.last().map(|doubt| doubt.until)
    }

    /// From when the age counts of what has this time and was written at this revision. What was written in a doubt counts from its end. What was
    /// written before one that began by a jump ahead is as much younger, since the clock may have been behind: no younger than its end. So does what is still
    /// to come: a clock that was ahead was believed before the doubt, and put back in it.
    pub fn counts_from(&self, at: Timestamp, revision: u64, now: Timestamp) -> Timestamp {
        self.0.iter().fold(at, |at, doubt| {
            if revision < doubt.from {
                let latest = doubt.until.min(Timestamp(at.0.saturating_add(doubt.ahead_ms)));
                if at > now { latest } else { at.max(latest) }
            } else if doubt.to.is_none_or(|to| revision <= to) {
                doubt.until
            } else {
                at
            }
        })
    }
}

impl Trust {
    /// Judges the clock at a start, by the latest time that is known from before. Where none is, there is nothing yet that it could end.
    pub fn begin(last: Option<Timestamp>, now: Moment) -> Self {
        let good = Self::Good { expected: Expected::going_on(now) };
        let Some(last) = last else { return good };
        let expected = Expected { from: Moment { at: last, ..now }, ahead_ms: STOPPED_MS };
        if expected.allows(now) { good } else { Self::Suspect { expected, since: now } }
    }

    /// Judges it by the next look.
    #[must_use]
    pub fn step(self, now: Moment) -> Self {
        let good = Self::Good { expected: Expected::going_on(now) };
        match self {
            Self::Good { expected } | Self::Suspect { expected, .. } if expected.allows(now) => good,
            Self::Good { expected } => Self::Suspect { expected, since: now },
            Self::Suspect { expected, since } if !Expected::going_on(since).allows(now) => {
                Self::Suspect { expected, since: now }
            }
            Self::Suspect { since, .. } if now.steady_s.saturating_sub(since.steady_s) >= SETTLED_S => good,
            Self::Suspect { .. } => self,
        }
    }

    /// By how much the clock is ahead of what it might have said, in milliseconds, where it was suspect and the next look makes it good; 0 where it was put
    /// back.
    pub fn ahead_at_end(self, now: Moment) -> u64 {
        match self {
            Self::Suspect { expected, .. } if !expected.allows(now) => now.at.0.saturating_sub(expected.at(now).0),
            Self::Suspect { .. } | Self::Good { .. } => 0,
        }
    }

    /// The jump for which it is not believed; `None`: it is.
    pub fn jump(self) -> Option<Jump> {
        match self {
            Self::Good { .. } => None,
            Self::Suspect { expected, since } => Some(Jump { from: expected.at(since), to: since.at }),
        }
    }

    /// What a person should know of it.
    pub fn finding(self) -> Option<Finding> {
        let Jump { from, to } = self.jump()?;
        let message = format!(
            "the controller's clock went from {} to {}, or the controller did not run for so long: until the clock is right again, or has \
             gone on for 24 hours, nothing is dropped because its time is over; look at the clock (timedatectl), and make certificates and \
             tokens anew that were made by a wrong one",
            spelled(from),
            spelled(to)
        );
        Some(Finding::of(rule::CLOCK_JUMPED, "fleet", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_S: u64 = 3600;
    const DAY_S: u64 = 24 * HOUR_S;
    /// A day in 2026.
    const NOW_S: u64 = 1_795_000_000;

    /// A look: how far the clock is put off by then, and how long the process runs.
    fn look(off_s: i64, steady_s: u64) -> Moment {
        Moment { at: Timestamp((NOW_S + steady_s).checked_add_signed(off_s).unwrap() * 1000), steady_s }
    }

    const fn days(count: i64) -> i64 {
        count * 24 * 3600
    }

    #[test]
    fn x04_f12_a_clock_that_is_set_is_suspect_until_it_is_right_or_has_gone_on_for_a_day() {
        for (what, looks, expected) in [
            ("it goes on", &[(0, 10), (0, HOUR_S), (0, 30 * DAY_S)][..], &[true, true, true][..]),
            ("it is kept right in small steps", &[(240, 10), (480, 20), (200, 30)], &[true, true, true]),
            ("400 days ahead, and right again", &[(days(400), 10), (days(400), 20), (0, 30)], &[false, false, true]),
            ("100 days back, and right again", &[(days(-100), 10), (days(-100), 20), (0, 30)], &[false, false, true]),
            ("three hours ahead", &[(3 * 3600, 10)], &[false]),
            ("three hours back", &[(-3 * 3600, 10)], &[false]),
            ("ten minutes ahead", &[(600, 10)], &[false]),
            (
                "it goes on from there for a day",
                &[(days(400), 10), (days(400), DAY_S), (days(400), DAY_S + 10), (days(400), 2 * DAY_S)],
                &[false, false, true, true],
            ),
            (
                "it is set again before the day is over",
                &[(days(400), 10), (days(40), DAY_S), (days(40), DAY_S + 10), (days(40), 2 * DAY_S)],
                &[false, false, false, true],
            ),
            (
                "it is corrected after it was believed",
                &[(days(400), 0), (days(400), DAY_S), (0, DAY_S + 10), (0, 2 * DAY_S + 10)],
                &[false, true, false, true],
            ),
        ] {
            let mut trust = Trust::begin(None, look(0, 0));
            assert!(trust.jump().is_none(), "{what}");
            for ((off_s, steady_s), good) in looks.iter().zip(expected) {
                trust = trust.step(look(*off_s, *steady_s));
                assert_eq!(trust.jump().is_none(), *good, "{what}: {off_s} after {steady_s}: {trust:?}");
            }
        }
    }

    #[test]
    fn x04_f12_what_a_doubted_clock_wrote_is_as_old_as_the_end_of_the_doubt() {
        let doubt = |from, to, until, ahead_ms| Doubt { from, to, until: Timestamp(until), ahead_ms };
        let counted =
            |doubts: &Doubts, at, revision| doubts.counts_from(Timestamp(at), revision, Timestamp(1_000_000)).0;
        let mut doubts = Doubts::default();
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
            // By a clock that was ahead and was believed.
            (9_000_000, 9, 1000),
            (9_000_000, 13, 2000),
        ] {
            assert_eq!(counted(&doubts, at, revision), expected, "{at} at revision {revision}");
        }
        doubts.set_recorded(22);
        assert_eq!(counted(&doubts, 9_000_000, 25), 9_000_000, "it is after it");
        assert_eq!(doubts.last_until(), Some(Timestamp(2000)));
        // The clock goes on from 500 later: what it said before may have been so much behind.
        doubts.add(doubt(30, Some(31), 3000, 500));
        for (at, revision, expected) in [(5, 9, 505), (5, 10, 1500), (5, 21, 2500), (2800, 25, 3000), (2800, 32, 2800)]
        {
            assert_eq!(counted(&doubts, at, revision), expected, "{at} at revision {revision}");
        }
        // A clock that is ahead is believed after a day, and put back later.
        let mut put_back = doubts.clone();
        put_back.add(doubt(40, Some(41), 900_000, 800_000));
        put_back.add(doubt(50, Some(51), 5000, 0));
        for (at, revision, expected) in [(2800, 25, 5000), (850_000, 40, 5000), (899_000, 45, 5000), (4990, 50, 5000)] {
            let counted = put_back.counts_from(Timestamp(at), revision, Timestamp(6000)).0;
            assert_eq!(counted, expected, "{at} at revision {revision}");
        }
        // One that was right is put back and believed, and is right again at a start: nobody sees that it was put forward.
        let mut wrong = Doubts::default();
        wrong.add(doubt(10, Some(11), 1000, 0));
        for (now, expected) in [(1000, 1000), (1500, 1000), (20_000, 20_000), (21_000, 20_000)] {
            let counted = wrong.counts_from(Timestamp(20_000), 9, Timestamp(now)).0;
            assert_eq!(counted, expected, "at {now}: no older than it is");
        }
        for nth in 4..=100 {
            doubts.add(doubt(nth * 10, Some(nth * 10 + 1), nth * 1000, 0));
        }
        assert_eq!(doubts.0.len(), MOST_DOUBTS);
        let all = [9, 10, 370, 380, 1000].map(|revision| counted(&doubts, 5, revision));
        assert_eq!(all, [505, 37_000, 37_000, 38_000, 100_000], "the first ones are one");
    }

    #[test]
    fn x04_f12_a_start_is_judged_by_the_time_that_is_known_from_before() {
        let at = |off_s: i64| Some(look(off_s, 0).at);
        for (what, last, looks, expected) in [
            ("nothing is known", None, &[(0, 0)][..], &[true][..]),
            ("it ran a minute ago", at(-60), &[(0, 0)], &[true]),
            ("it ran 29 days ago", at(days(-29)), &[(0, 0)], &[true]),
            (
                "it ran 31 days ago",
                at(days(-31)),
                &[(0, 0), (0, 10), (0, DAY_S - 1), (0, DAY_S)],
                &[false, false, false, true],
            ),
            ("it ran four minutes later", at(240), &[(0, 0)], &[true]),
            ("it ran an hour later", at(3600), &[(0, 0), (0, 10)], &[false, false]),
            (
                "400 days ahead, and right again",
                at(-60),
                &[(days(400), 0), (days(400), 10), (0, 20)],
                &[false, false, true],
            ),
            ("400 days ahead, and another 40", at(-60), &[(days(400), 0), (days(440), 10)], &[false, false]),
        ] {
            let (first, later) = looks.split_first().unwrap();
            let mut trust = Trust::begin(last, look(first.0, first.1));
            assert_eq!(trust.jump().is_none(), expected[0], "{what}");
            for ((off_s, steady_s), good) in later.iter().zip(&expected[1..]) {
                trust = trust.step(look(*off_s, *steady_s));
                assert_eq!(trust.jump().is_none(), *good, "{what}: {off_s} after {steady_s}: {trust:?}");
            }
        }
    }

    #[test]
    fn x04_f12_a_jump_is_found_and_says_from_where_to_where() {
        let good = Trust::begin(None, look(0, 0));
        assert_eq!(good.finding(), None);
        let suspect = good.step(look(days(400), 100));
        let jump = suspect.jump().unwrap();
        assert_eq!((jump.from, jump.to), (look(0, 100).at, look(days(400), 100).at));
        let finding = suspect.finding().unwrap().to_string();
        // date -u -d @1795000100 and @1829560100
        let begins = "warning clock.jumped fleet: the controller's clock went from 2026-11-18T11:08:20Z to 2027-12-23T11:08:20Z, ";
        assert!(finding.starts_with(begins), "{finding}");
        assert!(finding.contains("nothing is dropped because its time is over"), "{finding}");
    }
}
