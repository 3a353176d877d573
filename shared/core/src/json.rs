//! JSON texts taken apart without a change: members in their order, with repeated names, and numbers as they are written.
//!
//! `serde_json` keeps the last of two equal members, and rounds an integer that does not fit into 64 bits to a float.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::digest::canonical_json;
use crate::name::cut;

/// A JSON text that has no exact value here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJson {
    /// No object, where one is needed.
    #[error("it is another value")]
    NoObject,
    /// A text with half of a surrogate pair.
    #[error("has an escape that stands for no character")]
    Escape,
    /// A number that no 64-bit integer and no finite 64-bit float holds.
    #[error("number out of range: {number} does not fit into 64 bits; where a text will do, quote it")]
    Number {
        /// As it is written, cut.
        number: String,
    },
    /// A number of 2^53 or more that canonical JSON prints as another one ([`number`], [`inexact`]).
    #[error(
        "number out of range: past 2^53 hosts would be given another number than {number}: write it as text, in quotes"
    )]
    Inexact {
        /// As it is written, cut.
        number: String,
    },
}

/// Why bytes are no text in UTF-8, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUtf8 {
    /// Some programs of Windows save a text so.
    #[error("it is a text in UTF-16: save it in UTF-8")]
    Utf16,
    /// Some of the bytes stand for no character.
    #[error("it is no text in UTF-8")]
    Other,
}

/// The text of a file that is JSON, YAML or TOML, or has lines of its own.
///
/// # Errors
/// [`NotUtf8`].
pub fn utf_8(bytes: Vec<u8>) -> Result<String, NotUtf8> {
    if is_utf_16(&bytes) {
        return Err(NotUtf8::Utf16);
    }
    String::from_utf8(bytes).map_err(|_| NotUtf8::Other)
}

/// Whether bytes are a text in UTF-16, as some programs of Windows save one: with its mark, or with characters of ASCII in two bytes each. No
/// text in UTF-8 begins with the mark, and none that is JSON, YAML or TOML has such bytes. The mark of UTF-32 begins with the same bytes.
pub fn is_utf_16(bytes: &[u8]) -> bool {
    let is_marked = matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) && !bytes.starts_with(&[0xff, 0xfe, 0, 0]);
    is_marked || matches!(bytes, [1..=0x7f, 0, 1..=0x7f, 0, ..] | [0, 1..=0x7f, 0, 1..=0x7f, ..])
}

/// Reads a value. The caller bounds its depth ([`nesting`]).
///
/// # Errors
/// [`InvalidJson`], of the first part that is wrong.
pub fn value(raw: &RawValue) -> Result<Value, InvalidJson> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => members(raw)?.into_iter().map(|(name, raw)| Ok((name, value(raw)?))).collect(),
        Some(b'[') => items(raw).into_iter().map(value).collect(),
        Some(b'"') => self::text(text).map(Value::String),
        Some(b'-' | b'0'..=b'9') => number(text).map(Value::Number),
        _ => Ok(serde_json::from_str(text).expect("a raw value is JSON")),
    }
}

/// Reads a value of which no number is asked for: one that has no exact value stands there as its text. The caller bounds its depth.
pub fn value_or_texts(raw: &RawValue) -> Value {
    match raw.get().as_bytes().first() {
        Some(b'{') => {
            let members = members(raw).unwrap_or_default();
            members.into_iter().map(|(name, raw)| (name, value_or_texts(raw))).collect()
        }
        Some(b'[') => items(raw).into_iter().map(value_or_texts).collect(),
        _ => value(raw).unwrap_or_else(|_| raw.get().into()),
    }
}

/// An object with each member's value as `rewrite` makes it of the member's name and value; what is no object stays as it is. The order, names
/// that stand there twice and the texts of numbers are kept.
pub fn rewrite_members(raw: &RawValue, rewrite: impl Fn(&str, &RawValue) -> Box<RawValue>) -> Box<RawValue> {
    let Ok(members) = members(raw) else { return raw.to_owned() };
    let member =
        |(name, raw): (String, &RawValue)| format!("{}:{}", Value::from(name.as_str()), rewrite(&name, raw).get());
    let members: Vec<String> = members.into_iter().map(member).collect();
    raw_of(format!("{{{}}}", members.join(",")))
}

/// A list with each item as `rewrite` makes it; what is no list stays as it is.
pub fn rewrite_items(raw: &RawValue, rewrite: impl Fn(&RawValue) -> Box<RawValue>) -> Box<RawValue> {
    if !raw.get().starts_with('[') {
        return raw.to_owned();
    }
    let items: Vec<String> = items(raw).into_iter().map(|item| rewrite(item).get().to_owned()).collect();
    raw_of(format!("[{}]", items.join(",")))
}

/// The text of a number, as a JSON string; any other value as it is.
pub fn quoted_number(raw: &RawValue) -> Box<RawValue> {
    if is_number(raw) { raw_of(format!("\"{}\"", raw.get())) } else { raw.to_owned() }
}

/// Whether a value is a number that has no exact value ([`number`]).
pub fn is_inexact(raw: &RawValue) -> bool {
    is_number(raw) && number(raw.get()).is_err()
}

fn is_number(raw: &RawValue) -> bool {
    raw.get().starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

fn raw_of(json: String) -> Box<RawValue> {
    RawValue::from_string(json).expect("it is made of JSON")
}

/// The members of an object in their order. A name may stand there twice.
///
/// # Errors
/// [`InvalidJson`] when the text is no object, or a name is no Unicode text.
pub fn members(raw: &RawValue) -> Result<Vec<(String, &RawValue)>, InvalidJson> {
    let invalid = |_| if raw.get().starts_with('{') { InvalidJson::Escape } else { InvalidJson::NoObject };
    serde_json::from_str(raw.get()).map(|Members(members)| members).map_err(invalid)
}

/// The items of a list; of anything else none.
pub fn items(raw: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

/// How many items a list has, or members an object; anything else has none. Nothing of them is kept.
pub fn count(raw: &RawValue) -> usize {
    if !raw.get().starts_with(['[', '{']) {
        return 0;
    }
    serde_json::from_str(raw.get()).map_or(0, |Count(count)| count)
}

/// About how much memory a JSON text takes beside itself while it is read, in bytes: as much once more, and what each value, list and object takes
/// by itself. A text of the same length has between none of them and one in two bytes, so its length alone says little.
pub fn weight(json: &[u8]) -> usize {
    let (mut weight, mut in_text, mut left) = (json.len(), false, json);
    while let [byte, rest @ ..] = left {
        left = rest;
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => left = rest.get(1..).unwrap_or_default(),
            _ if in_text => {}
            b',' | b':' => weight += VALUE_BYTES,
            b'[' => weight += LIST_BYTES,
            b'{' => weight += OBJECT_BYTES,
            _ => {}
        }
    }
    weight
}

/// About how much memory a value takes, in bytes, estimated as by [`weight`].
pub fn weight_of(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE_BYTES,
        Value::String(text) => VALUE_BYTES + text.len(),
        Value::Array(items) => LIST_BYTES + items.iter().map(weight_of).sum::<usize>(),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| VALUE_BYTES + name.len() + weight_of(value);
            OBJECT_BYTES + members.iter().map(member).sum::<usize>()
        }
    }
}

/// A value, or the name of a member, with what its text is allocated with.
const VALUE_BYTES: usize = 64;
/// A list with room for its first four values.
const LIST_BYTES: usize = 128;
/// An object with room for its first eleven members.
const OBJECT_BYTES: usize = 640;

/// How long a JSON text is without white space and without escapes that need not be, in bytes.
pub fn compact_len(json: &str) -> usize {
    let (mut length, mut in_text, mut left) = (0, false, json.as_bytes());
    while let [byte, rest @ ..] = left {
        left = rest;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' if !in_text => {}
            b'\\' => {
                let (taken, bytes) = of_escape(rest);
                left = rest.get(taken..).unwrap_or_default();
                length += bytes;
            }
            b'"' => {
                in_text = !in_text;
                length += 1;
            }
            _ => length += 1,
        }
    }
    length
}

/// How many bytes stand behind the backslash of an escape, and how many the character takes where it is escaped no more than it must be.
fn of_escape(behind: &[u8]) -> (usize, usize) {
    match behind.first() {
        Some(b'u') => {}
        Some(b'/') => return (1, 1),
        Some(_) | None => return (1, 2),
    }
    let digits = behind.get(1..5).and_then(|digits| std::str::from_utf8(digits).ok());
    let bytes = match digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
        Some(0..0x20) | None => 6,
        // A quote, a backslash, and half of a pair, which takes four bytes together.
        Some(0x22 | 0x5c | 0x80..0x800 | 0xd800..0xe000) => 2,
        Some(0x20..0x80) => 1,
        Some(_) => 3,
    };
    (5, bytes)
}

/// Reads the text of a JSON number. An integer is one of 64 bits, signed or not; anything else is a float, and none that would be read as 0,
/// or from 2^53 on as another number.
///
/// # Errors
/// [`InvalidJson::Number`], [`InvalidJson::Inexact`].
pub fn number(text: &str) -> Result<Number, InvalidJson> {
    let is_integer = text.bytes().skip(1).all(|byte| byte.is_ascii_digit()) && text != "-0";
    let refused = || InvalidJson::Number { number: cut(text) };
    let read: Number = serde_json::from_str(text).map_err(|_| refused())?;
    // An integer of 64 bits is kept as it is.
    if !read.is_f64() {
        return Ok(read);
    }
    let written = Decimal::of(text);
    if is_integer || read.as_f64() == Some(0.0) && !written.digits.is_empty() {
        return Err(refused());
    }
    if written.is_changed(&read) { Err(InvalidJson::Inexact { number: cut(text) }) } else { Ok(read) }
}

/// How great a number is, by its digits: a float would not tell.
#[derive(PartialEq, Eq)]
struct Decimal {
    /// From the first to the last that is no zero; of zero none.
    digits: String,
    /// How many of them stand before the decimal point.
    point: isize,
}

impl Decimal {
    /// Of the text of a JSON number.
    fn of(text: &str) -> Self {
        let text = text.trim_start_matches('-');
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole, fraction].concat();
        let digits = all.trim_start_matches('0');
        if digits.is_empty() {
            return Self { digits: String::new(), point: 0 };
        }
        // What is beyond it is no number that is held.
        let exponent: isize = exponent.parse().unwrap_or_default();
        let point = exponent.saturating_add_unsigned(whole.len()).saturating_sub_unsigned(all.len() - digits.len());
        Self { digits: digits.trim_end_matches('0').to_owned(), point }
    }

    /// Whether it is 2^53 or more, from where on doubles have not every whole number, and read as another one.
    fn is_changed(&self, read: &Number) -> bool {
        const FIRST: &str = "9007199254740992";
        let digits = FIRST.len().cast_signed();
        let is_past = self.point > digits || self.point == digits && self.digits.as_str() >= FIRST;
        is_past && *self != Self::of(&read.to_string())
    }
}

/// The first number of a value that hosts would be given as another one, with its path from the value on: they are given canonical JSON
/// (RFC 8785), which prints numbers as doubles.
pub fn inexact(value: &Value) -> Option<(String, InvalidJson)> {
    let within = |step: String, one| inexact(one).map(|(path, why)| (step + &path, why));
    match value {
        Value::Number(number) => {
            let differs = number.as_i128().is_some() && canonical_json(value) != number.to_string();
            differs.then(|| (String::new(), InvalidJson::Inexact { number: number.to_string() }))
        }
        Value::Array(list) => list.iter().enumerate().find_map(|(at, one)| within(format!("[{at}]"), one)),
        Value::Object(map) => map.iter().find_map(|(key, one)| within(format!(".{}", cut(key)), one)),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

/// Makes each whole number of a value the integer that it is, however its author wrote it: `1e2` and `100.0` are `100`, and `-0` is `0`. Hosts
/// read it so, since canonical JSON (RFC 8785) prints it so. One that no integer of 64 bits holds stays a float.
pub fn whole_to_integers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(integer) = integer(number) {
                *number = integer;
            }
        }
        Value::Array(list) => list.iter_mut().for_each(whole_to_integers),
        Value::Object(map) => map.values_mut().for_each(whole_to_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The integer as which canonical JSON prints a float; nothing of any other number.
fn integer(number: &Number) -> Option<Number> {
    if !number.is_f64() {
        return None;
    }
    let text = canonical_json(&Value::Number(number.clone()));
    let unsigned = text.parse::<u64>().ok().map(Number::from);
    unsigned.or_else(|| text.parse::<i64>().ok().map(Number::from))
}

/// Reads free JSON that is an object: of a body, or of the store, where an older program left whole numbers as floats.
pub(crate) fn free_object<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    let mut object: Map<String, Value> = Map::deserialize(from)?;
    object.values_mut().for_each(whole_to_integers);
    Ok(object)
}

/// The text that Python has for a number: `1.0`, `1e-07`, `1e+16`.
pub fn python_number(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("it is written with an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent of a double is a small whole number");
    if (-4..16).contains(&exponent) {
        let text = float.to_string();
        return if text.contains('.') { text } else { text + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// Reads a JSON string.
///
/// # Errors
/// [`InvalidJson::Escape`].
pub fn text(json: &str) -> Result<String, InvalidJson> {
    serde_json::from_str(json).map_err(|_| InvalidJson::Escape)
}

/// How deep lists and objects of a JSON text stand in each other. Nothing else of it is checked.
pub fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_text, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Whether lists and maps stand in each other at most so deep. What was read as JSON nests at most 128 deep.
pub(crate) fn is_within_depth(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(list) => depth > 0 && list.iter().all(|one| is_within_depth(one, depth - 1)),
        Value::Object(map) => depth > 0 && map.values().all(|one| is_within_depth(one, depth - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

struct Count(usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting;
        impl<'de> Visitor<'de> for Counting {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list or an object")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }
        deserializer.deserialize_any(Counting)
    }
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The marks are those of the Unicode Standard, section 23.8, table 23-6.
    #[test]
    fn y09_a_text_in_utf_16_is_told_from_one_in_utf_32_and_from_what_is_no_text() {
        let utf_16 = |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        for text in ["\u{feff}a = 1\n", "a = 1\n", "\u{feff}"] {
            for bytes in [utf_16(text, u16::to_le_bytes), utf_16(text, u16::to_be_bytes)] {
                assert_eq!(utf_8(bytes), Err(NotUtf8::Utf16), "{text:?}");
            }
        }
        for bytes in
            [&[0xff, 0xfe, 0, 0, b'a', 0, 0, 0][..], &[0, 0, 0xfe, 0xff, 0, 0, 0, b'a'], &[b'a', 0xff], &[0xc3]]
        {
            assert_eq!(utf_8(bytes.to_vec()), Err(NotUtf8::Other), "{bytes:?}");
        }
        for text in ["", "a", "a = 1\n", "\u{feff}a", "\u{e9}", "\0", "a\0"] {
            assert_eq!(utf_8(text.as_bytes().to_vec()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn x03_f05_the_weight_of_a_text_is_no_less_than_the_values_that_it_is_read_to() {
        let value = size_of::<Value>();
        // A node of the standard library's map has eleven keys and values.
        let object = 11 * (size_of::<String>() + value);
        for (item, least) in [("1", value), ("\"a\"", value + 1), ("[1]", 5 * value), ("{\"a\":1}", value + object)] {
            let text = format!("[{}]", vec![item; 1000].join(","));
            assert!(weight(text.as_bytes()) >= 1000 * least, "{item}");
        }
        // What stands within a text is no value.
        for text in [r#""{[,:,{\",{[""#, r#"{"a\\":"[,"}"#] {
            let beside = weight(text.as_bytes()) - text.len();
            assert!(beside == 0 || beside == OBJECT_BYTES + VALUE_BYTES, "{text}: {beside}");
        }
        assert_eq!(weight(b""), 0);
        // Of a value it is estimated alike.
        for text in [r#"{"a":[1,2,{"b":"c"}],"d":null}"#, "[[],[]]"] {
            let (of_text, of_value) = (weight(text.as_bytes()), weight_of(&serde_json::from_str(text).unwrap()));
            assert!(of_value.abs_diff(of_text) <= 2 * VALUE_BYTES, "{text}: {of_text} {of_value}");
        }
    }

    #[test]
    fn numbers_are_read_exactly_or_refused() {
        for text in ["0", "-0", "-0.0", "18446744073709551615", "-9223372036854775808", "1.5", "1e20", "-1E-7"] {
            assert_eq!(number(text).map(|number| number.as_f64()), Ok(text.parse().ok()), "{text}");
        }
        for text in ["18446744073709551616", "-9223372036854775809", "1e999"] {
            let says = format!("number out of range: {text} does not fit into 64 bits; where a text will do, quote it");
            assert_eq!(number(text).unwrap_err().to_string(), says);
        }
    }

    /// Which doubles there are is IEEE 754's; a float is shown by the shortest text that it is read from.
    #[test]
    fn y04_a_number_past_2_53_is_read_as_it_is_written_or_refused_however_it_is_written() {
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
            assert_eq!(number(text).map(|number| number.as_f64()), Ok(text.parse().ok()), "{text}");
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
            assert_eq!(number(text), Err(InvalidJson::Inexact { number: text.to_owned() }), "{text}");
        }
    }

    /// What RFC 8785 prints of each, in section 3.2.2.3 and appendix B; 2^63 - 1 and 2^64 - 1 are the greatest integers of 64 bits.
    #[test]
    fn y04_a_whole_number_is_one_integer_however_it_is_written() {
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
            whole_to_integers(&mut value);
            assert_eq!(value.to_string(), integer, "{written}");
        }
        for too_large in ["1e20", "-1e19", "1e300"] {
            let mut value: Value = serde_json::from_str(too_large).unwrap();
            whole_to_integers(&mut value);
            assert!(value.is_f64(), "{too_large}");
        }
    }

    /// The texts are those of `repr` in Python 3.
    #[test]
    fn y04_a_number_has_the_text_of_python() {
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
    fn a_text_is_measured_as_it_would_be_stored() {
        let sent = "{ \"a\" : [ 1 ,\n\t\"x y\" ], \"\\u00e9\\u0041\" : \"\\ud83d\\ude00 \\\" \\u0001 \\u20ac \\/\" }";
        let stored = serde_json::from_str::<Value>(sent).unwrap().to_string();
        assert_eq!((compact_len(sent), compact_len(&stored)), (stored.len(), stored.len()), "{stored}");
        assert_eq!([compact_len("\"\\"), compact_len("\"\\u00"), compact_len("")], [3, 7, 0], "what is no JSON");
    }

    #[test]
    fn what_stands_in_a_list_or_an_object_is_counted() {
        let counted = |json: &str| count(&RawValue::from_string(json.to_owned()).unwrap());
        for (json, expected) in [
            ("[]", 0),
            ("[[1, 2], {}, null]", 3),
            ("{\"a\": [1, 2], \"a\": 2}", 2),
            ("\"[1, 2]\"", 0),
            ("7", 0),
            ("null", 0),
        ] {
            assert_eq!(counted(json), expected, "{json}");
        }
    }

    #[test]
    fn a_number_that_canonical_json_prints_as_another_one_is_found_by_its_path() {
        for exact in
            ["9007199254740992", "-9007199254740992", "9007199254740994", "1.5", "-0", "1e20", "[{\"a\": null}]"]
        {
            assert_eq!(inexact(&serde_json::from_str(exact).unwrap()), None, "{exact}");
        }
        for (value, path, number) in [
            ("9007199254740993", "", "9007199254740993"),
            ("[0, -9007199254740993]", "[1]", "-9007199254740993"),
            ("{\"a\": {\"b\": [18446744073709551615]}}", ".a.b[0]", "18446744073709551615"),
        ] {
            let found = inexact(&serde_json::from_str(value).unwrap());
            assert_eq!(found, Some((path.to_owned(), InvalidJson::Inexact { number: number.to_owned() })), "{value}");
        }
    }
}
