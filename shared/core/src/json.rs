//! Parses JSON without loss: object members in their order, with repeated names, and numbers as written.
//!
//! `serde_json` drops the first of two members with the same name, and rounds an integer that does not fit into 64 bits
//! to a float.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::digest::canonical_json;
use crate::name::truncated;

/// The error for a JSON text that is not the object that is needed, or that cannot be represented exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJson {
    /// The value is not an object, but the caller needs the members of one.
    #[error("the value has another type")]
    NoObject,
    /// A string has an escape that is not valid Unicode: half of a surrogate pair.
    #[error("has an escape that is not a valid character")]
    Escape,
    /// An integer does not fit into 64 bits, or a float is not a finite double or would be rounded to 0.
    #[error("number out of range: {number} does not fit into 64 bits; if the field accepts text, put it in quotes")]
    Number {
        /// The number as written, truncated.
        number: String,
    },
    /// A number of 2^53 or more would be another number on hosts, because hosts receive canonical JSON, which prints
    /// numbers as doubles.
    #[error(
        "number out of range: hosts would receive another number than {number}, because it is past 2^53; write it as text, in quotes"
    )]
    Inexact {
        /// The number as written, truncated.
        number: String,
    },
}

/// The error for the bytes of a file that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUtf8 {
    /// The bytes are UTF-16, as some Windows programs write it.
    #[error("it is a text in UTF-16: save it in UTF-8")]
    Utf16,
    /// Some of the bytes are not valid UTF-8.
    #[error("it is no text in UTF-8")]
    Invalid,
}

/// Converts the bytes of a text file, such as a file in JSON, YAML or TOML, to text.
///
/// # Errors
/// [`NotUtf8`] if the bytes are UTF-16 or not valid UTF-8.
pub fn decode_utf8(bytes: Vec<u8>) -> Result<String, NotUtf8> {
    if is_utf16(&bytes) {
        return Err(NotUtf8::Utf16);
    }
    String::from_utf8(bytes).map_err(|_| NotUtf8::Invalid)
}

/// Returns whether bytes are UTF-16, as some Windows programs write it: with a byte order mark, or with ASCII
/// characters in two bytes each. JSON, YAML or TOML in UTF-8 never begins in one of these ways. UTF-32 is excluded,
/// although the byte order mark of UTF-32 begins with that of UTF-16.
pub fn is_utf16(bytes: &[u8]) -> bool {
    let has_byte_order_mark = matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) && !bytes.starts_with(&[0xff, 0xfe, 0, 0]);
    has_byte_order_mark || matches!(bytes, [1..=0x7f, 0, 1..=0x7f, 0, ..] | [0, 1..=0x7f, 0, 1..=0x7f, ..])
}

/// Parses a JSON value. Of several members of an object with the same name, the last one remains. The function is
/// recursive, so the caller must first limit the nesting depth of the text ([`nesting_depth`]).
///
/// # Errors
/// [`InvalidJson`] for the first invalid part.
pub fn parse_value(raw: &RawValue) -> Result<Value, InvalidJson> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => members(raw)?.into_iter().map(|(name, raw)| Ok((name, parse_value(raw)?))).collect(),
        Some(b'[') => items(raw).into_iter().map(parse_value).collect(),
        Some(b'"') => parse_string(text).map(Value::String),
        Some(b'-' | b'0'..=b'9') => parse_number(text).map(Value::Number),
        _ => Ok(serde_json::from_str(text).expect("a raw value is JSON")),
    }
}

/// Parses a JSON value and never fails. A number or string that [`parse_value`] refuses is replaced by its JSON text.
/// An object with a name that is not valid Unicode becomes empty. As in [`parse_value`], the caller must first limit
/// the nesting depth.
pub fn parse_value_with_inexact_texts(raw: &RawValue) -> Value {
    match raw.get().as_bytes().first() {
        Some(b'{') => {
            let members = members(raw).unwrap_or_default();
            members.into_iter().map(|(name, raw)| (name, parse_value_with_inexact_texts(raw))).collect()
        }
        Some(b'[') => items(raw).into_iter().map(parse_value_with_inexact_texts).collect(),
        _ => parse_value(raw).unwrap_or_else(|_| raw.get().into()),
    }
}

/// Returns a JSON object in which `rewrite` replaced the value of each member. The order and repeated names are
/// preserved. Any other value, and an object with a name that is not valid Unicode, is returned unchanged.
pub fn rewrite_members(raw: &RawValue, rewrite: impl Fn(&str, &RawValue) -> Box<RawValue>) -> Box<RawValue> {
    let Ok(members) = members(raw) else { return raw.to_owned() };
    let member = |(name, raw): (String, &RawValue)| format!("{}:{}", Value::from(name.as_str()), rewrite(&name, raw).get());
    let members: Vec<String> = members.into_iter().map(member).collect();
    raw_value(format!("{{{}}}", members.join(",")))
}

/// Returns a JSON list in which `rewrite` replaced each item. A value that is not a list is returned unchanged.
pub fn rewrite_items(raw: &RawValue, rewrite: impl Fn(&RawValue) -> Box<RawValue>) -> Box<RawValue> {
    if !raw.get().starts_with('[') {
        return raw.to_owned();
    }
    let items: Vec<String> = items(raw).into_iter().map(|item| rewrite(item).get().to_owned()).collect();
    raw_value(format!("[{}]", items.join(",")))
}

/// Returns the text of a number as a JSON string. Any other value is returned unchanged.
pub fn number_to_string(raw: &RawValue) -> Box<RawValue> {
    if is_number(raw) { raw_value(format!("\"{}\"", raw.get())) } else { raw.to_owned() }
}

/// Returns whether a value is a number that [`parse_number`] refuses.
pub fn is_inexact(raw: &RawValue) -> bool {
    is_number(raw) && parse_number(raw.get()).is_err()
}

fn is_number(raw: &RawValue) -> bool {
    raw.get().starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

/// Returns a text that is known to be JSON as a raw value.
fn raw_value(json: String) -> Box<RawValue> {
    RawValue::from_string(json).expect("the text is JSON")
}

/// Returns the members of an object in their order, including repeated names.
///
/// # Errors
/// [`InvalidJson`] if the value is not an object, or a name is not valid Unicode.
pub fn members(raw: &RawValue) -> Result<Vec<(String, &RawValue)>, InvalidJson> {
    let invalid = |_| if raw.get().starts_with('{') { InvalidJson::Escape } else { InvalidJson::NoObject };
    serde_json::from_str(raw.get()).map(|ObjectMembers(members)| members).map_err(invalid)
}

/// Returns the items of a list, or an empty list for any other value.
pub fn items(raw: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

/// Returns the number of items of a list or members of an object, and 0 for any other value. Needs no memory for the
/// items, because they are not parsed.
pub fn item_count(raw: &RawValue) -> usize {
    if !raw.get().starts_with(['[', '{']) {
        return 0;
    }
    serde_json::from_str(raw.get()).map_or(0, |ElementCount(count)| count)
}

/// Estimates the memory that a JSON text needs after it is parsed, in addition to the text, in bytes. The estimate is
/// the length of the text, plus a fixed amount for each value, list and object. The length alone is not an estimate,
/// because a text may consist of a single value, or of one value for every two bytes.
pub fn parse_memory_bytes(json: &[u8]) -> usize {
    let (mut memory, mut is_in_string, mut remaining) = (json.len(), false, json);
    while let [byte, rest @ ..] = remaining {
        remaining = rest;
        match byte {
            b'"' => is_in_string = !is_in_string,
            b'\\' if is_in_string => remaining = rest.get(1..).unwrap_or_default(),
            _ if is_in_string => {}
            // Each further value of a list or object has a comma or colon before it.
            b',' | b':' => memory += VALUE_BYTES,
            b'[' => memory += LIST_BYTES,
            b'{' => memory += OBJECT_BYTES,
            _ => {}
        }
    }
    memory
}

/// Estimates the memory that a parsed value needs, in bytes, as [`parse_memory_bytes`] does for a text.
pub fn value_memory_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE_BYTES,
        Value::String(text) => VALUE_BYTES + text.len(),
        Value::Array(items) => LIST_BYTES + items.iter().map(value_memory_bytes).sum::<usize>(),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| VALUE_BYTES + name.len() + value_memory_bytes(value);
            OBJECT_BYTES + members.iter().map(member).sum::<usize>()
        }
    }
}

/// The size of a value or of a member's name, with the overhead of its allocation, in bytes.
const VALUE_BYTES: usize = 64;
/// The size of a list with capacity for four values, in bytes. A list has this capacity after its first value.
const LIST_BYTES: usize = 128;
/// The size of an object with capacity for eleven members, in bytes. An object has this capacity after its first
/// member.
const OBJECT_BYTES: usize = 640;

/// Returns the length that a JSON text would have without white space and unnecessary escapes, in bytes.
pub fn compact_bytes(json: &str) -> usize {
    let (mut length, mut is_in_string, mut remaining) = (0, false, json.as_bytes());
    while let [byte, rest @ ..] = remaining {
        remaining = rest;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' if !is_in_string => {}
            b'\\' => {
                let (skipped, bytes) = escape_sizes(rest);
                remaining = rest.get(skipped..).unwrap_or_default();
                length += bytes;
            }
            b'"' => {
                is_in_string = !is_in_string;
                length += 1;
            }
            _ => length += 1,
        }
    }
    length
}

/// Returns the number of bytes of an escape after its backslash, and the length of its character in compact JSON, in
/// bytes. `tail` is the text after the backslash. Compact JSON escapes a character only if this is necessary.
fn escape_sizes(tail: &[u8]) -> (usize, usize) {
    match tail.first() {
        Some(b'u') => {}
        Some(b'/') => return (1, 1),
        Some(_) | None => return (1, 2),
    }
    let digits = tail.get(1..5).and_then(|digits| std::str::from_utf8(digits).ok());
    let bytes = match digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
        // A control character or invalid escape counts as `\u` and four digits, although some, such as `\n`, are
        // shorter.
        Some(0..0x20) | None => 6,
        // A quote, a backslash, a character of two bytes, or half of a surrogate pair. The pair takes four bytes.
        Some(0x22 | 0x5c | 0x80..0x800 | 0xd800..0xe000) => 2,
        Some(0x20..0x80) => 1,
        Some(_) => 3,
    };
    (5, bytes)
}

/// Parses the text of a JSON number. A number without a point or an exponent becomes a 64-bit integer, signed or
/// unsigned. Any other number, and `-0`, becomes a float. A float below 2^53 may be rounded.
///
/// # Errors
/// [`InvalidJson::Number`] if the integer does not fit into 64 bits, or the float is not finite or would be rounded to
/// 0. [`InvalidJson::Inexact`] if the float is 2^53 or more, and its double is printed as another number.
pub fn parse_number(text: &str) -> Result<Number, InvalidJson> {
    let is_integer = text.bytes().skip(1).all(|byte| byte.is_ascii_digit()) && text != "-0";
    let out_of_range = || InvalidJson::Number { number: truncated(text) };
    let parsed: Number = serde_json::from_str(text).map_err(|_| out_of_range())?;
    // A 64-bit integer is exact.
    if !parsed.is_f64() {
        return Ok(parsed);
    }
    let decimal = Decimal::parse(text);
    // An integer that was parsed as a float does not fit into 64 bits. A float of 0 with other digits was rounded to 0.
    if is_integer || parsed.as_f64() == Some(0.0) && !decimal.digits.is_empty() {
        return Err(out_of_range());
    }
    if decimal.is_changed_by(&parsed) { Err(InvalidJson::Inexact { number: truncated(text) }) } else { Ok(parsed) }
}

/// The magnitude of a number as exact decimal digits, for a comparison without rounding.
#[derive(PartialEq, Eq)]
struct Decimal {
    /// The digits from the first digit that is not zero to the last digit that is not zero. Empty for the number zero.
    digits: String,
    /// The number of digits before the decimal point. Negative if zeros precede the digits after the point.
    point: isize,
}

impl Decimal {
    /// Parses the text of a JSON number.
    fn parse(text: &str) -> Self {
        let text = text.trim_start_matches('-');
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = [whole, fraction].concat();
        let digits = all_digits.trim_start_matches('0');
        if digits.is_empty() {
            return Self { digits: String::new(), point: 0 };
        }
        // An exponent that does not fit belongs to a number that is refused in any case.
        let exponent: isize = exponent.parse().unwrap_or_default();
        let point = exponent.saturating_add_unsigned(whole.len()).saturating_sub_unsigned(all_digits.len() - digits.len());
        Self { digits: digits.trim_end_matches('0').to_owned(), point }
    }

    /// Returns whether this number is 2^53 or more, and `parsed` is printed as another number. Numbers below 2^53 are
    /// not compared, because doubles represent every integer below 2^53 exactly.
    fn is_changed_by(&self, parsed: &Number) -> bool {
        // The digits of 2^53. Digits of two numbers with the same point are in the order of their texts.
        const MIN_INEXACT_INTEGER: &str = "9007199254740992";
        let digit_count = MIN_INEXACT_INTEGER.len().cast_signed();
        let is_large = self.point > digit_count || self.point == digit_count && self.digits.as_str() >= MIN_INEXACT_INTEGER;
        is_large && *self != Self::parse(&parsed.to_string())
    }
}

/// Finds the first number in a value that hosts would receive as another number. Returns the path of the number, such
/// as `.a[0]`, and the error. Hosts receive canonical JSON (RFC 8785), which prints numbers as doubles.
pub fn find_inexact(value: &Value) -> Option<(String, InvalidJson)> {
    let nested = |step: String, item| find_inexact(item).map(|(path, error)| (step + &path, error));
    match value {
        Value::Number(number) => {
            // Only integers can differ: a float is already a double.
            let differs = number.as_i128().is_some() && canonical_json(value) != number.to_string();
            differs.then(|| (String::new(), InvalidJson::Inexact { number: number.to_string() }))
        }
        Value::Array(list) => list.iter().enumerate().find_map(|(index, item)| nested(format!("[{index}]"), item)),
        Value::Object(map) => map.iter().find_map(|(key, item)| nested(format!(".{}", truncated(key)), item)),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

/// Converts each whole number in a value to an integer: `1e2` and `100.0` become `100`, and `-0` becomes `0`. Canonical
/// JSON (RFC 8785), which hosts receive, prints these numbers in the same way. A number that does not fit into a 64-bit
/// integer remains a float.
pub fn normalize_integers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(integer) = to_integer(number) {
                *number = integer;
            }
        }
        Value::Array(list) => list.iter_mut().for_each(normalize_integers),
        Value::Object(map) => map.values_mut().for_each(normalize_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Returns the integer that canonical JSON prints for a float. Returns `None` if canonical JSON prints no 64-bit
/// integer, or if the number is not a float.
fn to_integer(number: &Number) -> Option<Number> {
    if !number.is_f64() {
        return None;
    }
    let text = canonical_json(&Value::Number(number.clone()));
    let unsigned = text.parse::<u64>().ok().map(Number::from);
    unsigned.or_else(|| text.parse::<i64>().ok().map(Number::from))
}

/// Deserializes an object with any JSON values, from the body of a request or from the store. Whole numbers become
/// integers, because older versions stored them as floats.
pub(crate) fn deserialize_free_object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    let mut object: Map<String, Value> = Map::deserialize(deserializer)?;
    object.values_mut().for_each(normalize_integers);
    Ok(object)
}

/// Returns the text of a number as Python prints it: `1.0`, `1e-07`, `1e+16`.
pub fn python_number(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent of a double is a small whole number");
    // Python prints a number in this range without an exponent.
    if (-4..16).contains(&exponent) {
        let text = float.to_string();
        return if text.contains('.') { text } else { text + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// Parses a JSON string, with its quotes.
///
/// # Errors
/// [`InvalidJson::Escape`] if an escape is not valid Unicode.
pub fn parse_string(json: &str) -> Result<String, InvalidJson> {
    serde_json::from_str(json).map_err(|_| InvalidJson::Escape)
}

/// Returns the nesting depth of the lists and objects in a JSON text. The text need not be valid JSON.
pub fn nesting_depth(json: &str) -> usize {
    let (mut depth, mut max_depth, mut is_in_string, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            b'[' | b'{' if !is_in_string => {
                depth += 1;
                max_depth = max_depth.max(depth);
            }
            b']' | b'}' if !is_in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    max_depth
}

/// Returns whether lists and maps in a value are nested at most `depth` deep. The recursion is bounded, because the
/// function looks no deeper than `depth`.
pub(crate) fn is_within_depth(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(list) => depth > 0 && list.iter().all(|item| is_within_depth(item, depth - 1)),
        Value::Object(map) => depth > 0 && map.values().all(|item| is_within_depth(item, depth - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// The number of items of a list or members of an object. The items are not stored.
struct ElementCount(usize);

impl<'de> Deserialize<'de> for ElementCount {
    /// Counts the items of a list or the members of an object, without storing any of them.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementCounter;
        impl<'de> Visitor<'de> for ElementCounter {
            type Value = ElementCount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list or an object")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ElementCount, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(ElementCount(count))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ElementCount, A::Error> {
                let mut count = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(ElementCount(count))
            }
        }
        deserializer.deserialize_any(ElementCounter)
    }
}

/// The members of a JSON object in their order, including repeated names.
struct ObjectMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for ObjectMembers<'de> {
    /// Reads the members of an object in their order. A repeated name is a further member. Values remain JSON text.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = ObjectMembers<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectMembers<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(ObjectMembers(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UTF-16 is refused with the error `Utf16`. UTF-32 and other bytes that are not UTF-8 are refused with the error
    /// `Invalid`. The byte order marks are from the Unicode Standard, section 23.8, table 23-6.
    #[test]
    fn y09_decode_utf8_recognizes_utf16() {
        let utf_16 = |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        for text in ["\u{feff}a = 1\n", "a = 1\n", "\u{feff}"] {
            for bytes in [utf_16(text, u16::to_le_bytes), utf_16(text, u16::to_be_bytes)] {
                assert_eq!(decode_utf8(bytes), Err(NotUtf8::Utf16), "{text:?}");
            }
        }
        for bytes in [&[0xff, 0xfe, 0, 0, b'a', 0, 0, 0][..], &[0, 0, 0xfe, 0xff, 0, 0, 0, b'a'], &[b'a', 0xff], &[0xc3]] {
            assert_eq!(decode_utf8(bytes.to_vec()), Err(NotUtf8::Invalid), "{bytes:?}");
        }
        for text in ["", "a", "a = 1\n", "\u{feff}a", "\u{e9}", "\0", "a\0"] {
            assert_eq!(decode_utf8(text.as_bytes().to_vec()).as_deref(), Ok(text));
        }
    }

    /// The estimate from a JSON text is at least the memory of the parsed values. It counts no bracket, comma or colon
    /// within a string as a value. The estimate from a parsed value differs from it by at most two values.
    #[test]
    fn x03_f05_memory_estimate_covers_parsed_values() {
        let value = size_of::<Value>();
        // The smallest map of the standard library has memory for eleven keys and values.
        let object = 11 * (size_of::<String>() + value);
        // A list has capacity for four values. With the list itself, that makes five.
        for (item, min_bytes) in [("1", value), ("\"a\"", value + 1), ("[1]", 5 * value), ("{\"a\":1}", value + object)] {
            let text = format!("[{}]", vec![item; 1000].join(","));
            assert!(parse_memory_bytes(text.as_bytes()) >= 1000 * min_bytes, "{item}");
        }
        // Brackets and commas within a string are not counted. The second text is an object with one member.
        for text in [r#""{[,:,{\",{[""#, r#"{"a\\":"[,"}"#] {
            let extra_bytes = parse_memory_bytes(text.as_bytes()) - text.len();
            assert!(extra_bytes == 0 || extra_bytes == OBJECT_BYTES + VALUE_BYTES, "{text}: {extra_bytes}");
        }
        assert_eq!(parse_memory_bytes(b""), 0);
        // The estimate from a text and the estimate from its parsed value differ by at most two values.
        for text in [r#"{"a":[1,2,{"b":"c"}],"d":null}"#, "[[],[]]"] {
            let (text_estimate, value_estimate) =
                (parse_memory_bytes(text.as_bytes()), value_memory_bytes(&serde_json::from_str(text).unwrap()));
            assert!(value_estimate.abs_diff(text_estimate) <= 2 * VALUE_BYTES, "{text}: {text_estimate} {value_estimate}");
        }
    }

    #[test]
    fn parse_number_rejects_number_out_of_range() {
        for text in ["0", "-0", "-0.0", "18446744073709551615", "-9223372036854775808", "1.5", "1e20", "-1E-7"] {
            assert_eq!(parse_number(text).map(|number| number.as_f64()), Ok(text.parse().ok()), "{text}");
        }
        for text in ["18446744073709551616", "-9223372036854775809", "1e999"] {
            let expected =
                format!("number out of range: {text} does not fit into 64 bits; if the field accepts text, put it in quotes");
            assert_eq!(parse_number(text).unwrap_err().to_string(), expected);
        }
    }

    /// A float of 2^53 or more is accepted if its digits are those with which its double is printed: the shortest
    /// digits that parse to the double. Otherwise it is refused. IEEE 754 defines which doubles exist.
    #[test]
    fn y04_parse_number_rejects_large_float_when_rounded() {
        for text in [
            "9007199254740992.0",
            "9007199254740992e0",
            "900719925474099.2e1",
            "9007199254740994.00",
            "-0.9007199254740994E16",
            "9007199254740991.5",
            "4503599627370497.5",
            "1e21",
            "1E+21",
            "1000000000000000000000.0",
            "1e23",
            "1e300",
            "-1.7976931348623157e308",
            "1.2345678901234568e+26",
            "0.12345678901234567890123",
            "0e99999999999999999999",
            "0.0000000000000000000000000000000001e50",
        ] {
            assert_eq!(parse_number(text).map(|number| number.as_f64()), Ok(text.parse().ok()), "{text}");
        }
        for text in [
            "9007199254740993.0",
            "9007199254740993e0",
            "-9007199254740993.0",
            "9007199254740992.5",
            "900719925474099.3E1",
            "90071992547409930e-1",
            "123456789012345678e3",
            "1.23456789012345678e26",
            "1000000000000000000001.0",
            "1.00000000000000000001e300",
        ] {
            assert_eq!(parse_number(text), Err(InvalidJson::Inexact { number: text.to_owned() }), "{text}");
        }
    }

    /// The expected texts are from RFC 8785, section 3.2.2.3 and appendix B. 2^63 - 1 and 2^64 - 1 are the largest
    /// 64-bit integers. A whole number that does not fit into 64 bits remains a float.
    #[test]
    fn y04_normalize_integers_yields_one_integer_for_any_notation() {
        for (written, integer) in [
            ("1e2", "100"),
            ("100.0", "100"),
            ("1.0E+2", "100"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("-25e1", "-250"),
            ("9007199254740992.0", "9007199254740992"),
            ("-9007199254740992.0", "-9007199254740992"),
            ("1e16", "10000000000000000"),
            ("1e19", "10000000000000000000"),
            ("{\"a\": [1.0, {\"b\": -2e0}]}", "{\"a\":[1,{\"b\":-2}]}"),
            ("[9223372036854775807, 18446744073709551615, 7]", "[9223372036854775807,18446744073709551615,7]"),
            ("[1.5, -0.25, \"1.0\", true, null]", "[1.5,-0.25,\"1.0\",true,null]"),
        ] {
            let mut value: Value = serde_json::from_str(written).unwrap();
            normalize_integers(&mut value);
            assert_eq!(value.to_string(), integer, "{written}");
        }
        for text in ["1e20", "-1e19", "1e300"] {
            let mut value: Value = serde_json::from_str(text).unwrap();
            normalize_integers(&mut value);
            assert!(value.is_f64(), "{text}");
        }
    }

    /// The texts are those of `repr` in Python 3.
    #[test]
    fn y04_python_number_matches_python() {
        for (json, text) in [
            ("7", "7"),
            ("-7", "-7"),
            ("1.0", "1.0"),
            ("-0.0", "-0.0"),
            ("1.50", "1.5"),
            ("1e3", "1000.0"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-5", "1.5e-05"),
            ("1e-7", "1e-07"),
            ("-2.5e-300", "-2.5e-300"),
            ("1234567890123456.7", "1234567890123456.8"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("1.2345678901234568e+17", "1.2345678901234568e+17"),
            ("5e-324", "5e-324"),
        ] {
            assert_eq!(python_number(&serde_json::from_str(json).unwrap()), text, "{json}");
        }
    }

    #[test]
    fn compact_bytes_measures_text_as_stored() {
        let sent = "{ \"a\" : [ 1 ,\n\t\"x y\" ], \"\\u00e9\\u0041\" : \"\\ud83d\\ude00 \\\" \\u0001 \\u20ac \\/\" }";
        let stored = serde_json::from_str::<Value>(sent).unwrap().to_string();
        assert_eq!((compact_bytes(sent), compact_bytes(&stored)), (stored.len(), stored.len()), "{stored}");
        assert_eq!([compact_bytes("\"\\"), compact_bytes("\"\\u00"), compact_bytes("")], [3, 7, 0], "text that is not JSON");
    }

    #[test]
    fn item_count_counts_items_and_members() {
        let counted = |json: &str| item_count(&RawValue::from_string(json.to_owned()).unwrap());
        for (json, expected) in
            [("[]", 0), ("[[1, 2], {}, null]", 3), ("{\"a\": [1, 2], \"a\": 2}", 2), ("\"[1, 2]\"", 0), ("7", 0), ("null", 0)]
        {
            assert_eq!(counted(json), expected, "{json}");
        }
    }

    #[test]
    fn find_inexact_returns_path_of_number_changed_by_canonical_json() {
        for text in ["9007199254740992", "-9007199254740992", "9007199254740994", "1.5", "-0", "1e20", "[{\"a\": null}]"] {
            assert_eq!(find_inexact(&serde_json::from_str(text).unwrap()), None, "{text}");
        }
        for (value, path, number) in [
            ("9007199254740993", "", "9007199254740993"),
            ("[0, -9007199254740993]", "[1]", "-9007199254740993"),
            ("{\"a\": {\"b\": [18446744073709551615]}}", ".a.b[0]", "18446744073709551615"),
        ] {
            let result = find_inexact(&serde_json::from_str(value).unwrap());
            assert_eq!(result, Some((path.to_owned(), InvalidJson::Inexact { number: number.to_owned() })), "{value}");
        }
    }
}
