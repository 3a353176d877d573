//! JSON values as block YAML that every reader takes for the same value: this program's own, those of YAML 1.1 (`PyYAML`, libyaml) and those of
//! YAML 1.2 (ruamel.yaml, go-yaml).
//!
//! The readers agree on less than JSON has. A word that is text in one is a boolean, a number or a time in the other; a character that one prints is
//! a line's end in the other. So a text is left bare only where no reader has another type for it, and within quotes each character stands as
//! itself only where each reader takes it as that.

use serde_json::{Number, Value};
use stemma_wire::error::is_formatting;

/// The longest key, as it is written, that a reader finds without a `?` before it (YAML 1.2.2, section 7.4.2: 1,024 characters). In
/// bytes, which are never fewer.
const MAX_SIMPLE_KEY: usize = 1_024;
/// Words that are no text in YAML 1.1, in any case.
const TYPED_WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// Block YAML that reads back as the same value.
#[must_use]
pub fn block(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value, 0, Start::Line);
    text
}

/// Where the first line of a value begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// On a line of its own.
    Line,
    /// Behind the dash of a list, or the colon of a key.
    Behind,
}

fn write_value(to: &mut String, value: &Value, indent: usize, start: Start) {
    let pad = |to: &mut String, index: usize| {
        if start == Start::Line || index > 0 {
            to.push_str(&"  ".repeat(indent));
        }
    };
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (index, (key, value)) in members.iter().enumerate() {
                pad(to, index);
                write_key(to, key, indent);
                write_nested(to, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                pad(to, index);
                to.push_str("- ");
                write_value(to, item, indent + 1, Start::Behind);
            }
        }
        Value::String(text) => push_line(to, &written_text(text)),
        Value::Number(number) => push_line(to, &written_number(number)),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => push_line(to, &value.to_string()),
    }
}

fn push_line(to: &mut String, text: &str) {
    to.push_str(text);
    to.push('\n');
}

/// A key with its colon; a long one with its `?`, and the colon on a line of its own.
fn write_key(to: &mut String, key: &str, indent: usize) {
    let written = written_text(key);
    if written.len() > MAX_SIMPLE_KEY {
        to.push_str("? ");
        push_line(to, &written);
        to.push_str(&"  ".repeat(indent));
    } else {
        to.push_str(&written);
    }
    to.push(':');
}

/// What follows a key's colon: a map or list that holds something begins on a line of its own.
fn write_nested(to: &mut String, value: &Value, indent: usize) {
    let is_nested = match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    to.push(if is_nested { '\n' } else { ' ' });
    write_value(to, value, indent + 1, if is_nested { Start::Line } else { Start::Behind });
}

/// A number as JSON has it. In YAML 1.1 one with an exponent has a point too, and the exponent a sign; `1e21` is text there.
fn written_number(number: &Number) -> String {
    let text = number.to_string();
    let Some((digits, exponent)) = text.split_once(['e', 'E']) else { return text };
    let point = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
    format!("{digits}{point}e{sign}{exponent}")
}

/// A text, in quotes unless no reader could take it for anything else.
fn written_text(text: &str) -> String {
    let is_bare = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-./@".contains(letter))
        && !TYPED_WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_bare { text.to_owned() } else { quoted(text) }
}

/// A text in double quotes, on one line.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if !is_printed(letter) && u32::from(letter) > 0xFFFF => {
                quoted.push_str(&format!("\\U{:08x}", u32::from(letter)));
            }
            _ if !is_printed(letter) => quoted.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether every reader takes the character as itself. YAML 1.1 takes no control character but the tab and the ends of lines, counts U+0085, U+2028
/// and U+2029 among those, and a byte order mark for one: all of these are control or formatting characters. No Unicode text has a character whose last four digits are FFFE or FFFF.
pub(crate) fn is_printed(letter: char) -> bool {
    let is_no_character = u32::from(letter) & 0xFFFE == 0xFFFE || matches!(letter, '\u{FDD0}'..='\u{FDEF}');
    !(letter.is_control() || is_formatting(letter) || is_no_character)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::*;
    use crate::yaml::documents;

    fn read_back(value: &Value) -> Value {
        let text = block(value);
        let read = documents(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read.len(), 1, "{text}");
        serde_json::from_str(&read[0].json).unwrap()
    }

    #[test]
    fn yaml_reads_back_as_the_same_value() {
        for value in [
            json!({"a": {"b": [1, "2", null, {"c": "x: y", "d": []}], "e": {}}, "on": "yes"}),
            json!([[1, 2], [{"a": "line\nbreak"}], "0x1F", "-", "#", ""]),
            json!("text"),
            json!({"<<": {"a": 1}, "b": {"<<": "x"}}),
        ] {
            assert_eq!(read_back(&value), value, "{}", block(&value));
        }
    }

    /// The longest key is that of YAML 1.2.2, section 7.4.2, counted as it is written.
    #[test]
    fn y07_a_key_over_1024_characters_is_written_with_a_question_mark() {
        for (key, has_mark) in [
            ("x".repeat(1_024), false),
            ("x".repeat(1_025), true),
            ("1".repeat(1_022), false),
            ("1".repeat(1_023), true),
            ("\u{1}".repeat(170), false),
            ("\u{1}".repeat(171), true),
        ] {
            for value in
                [json!({&key: 1}), json!({"a": {&key: {"b": 1}}}), json!([{&key: [1], "z": 2}, {"y": {&key: []}}])]
            {
                let text = block(&value);
                assert_eq!(text.contains("? "), has_mark, "{} characters: {text}", key.len());
                assert_eq!(read_back(&value), value);
            }
        }
        assert_eq!(block(&json!({"x".repeat(1_025): {"a": 1}})), format!("? {}\n:\n  a: 1\n", "x".repeat(1_025)));
    }

    /// The words are those of the types of YAML 1.1 (yaml.org/type) and of YAML 1.2's core schema.
    #[test]
    fn y07_a_text_that_some_yaml_takes_for_another_type_is_quoted() {
        for text in [
            "",
            "~",
            "null",
            "Null",
            "true",
            "TRUE",
            "False",
            "yes",
            "Yes",
            "NO",
            "on",
            "Off",
            "y",
            "N",
            "0",
            "-1",
            "+1",
            "007",
            "0o17",
            "0x1f",
            "0b1",
            "1_000",
            "1:30",
            "190:20:30.15",
            "1e3",
            "1.5e+3",
            ".5",
            ".inf",
            "-.INF",
            ".NaN",
            "2026-11-28",
            "2001-12-14t21:59:43.10-05:00",
            "=",
            "<<",
            "!",
            "!!str",
            "&a",
            "*a",
            "?",
            ":",
            "-",
            "- a",
            "a: b",
            "a #b",
            "#",
            "%",
            "@a",
            "`",
            "---",
            "...",
            "{",
            "[",
            "]",
            "}",
            ",",
            "|",
            ">",
            "'",
            "\"",
            " a",
            "a ",
            "\ta",
        ] {
            assert_eq!(block(&json!(text)), format!("{}\n", json!(text)));
        }
        for (text, expected) in [
            ("a\r\n\tb", r#""a\r\n\tb""#),
            ("\0\u{7f}", r#""\u0000\u007f""#),
            ("\u{85}\u{2028}\u{2029}", r#""\u0085\u2028\u2029""#),
            ("\u{feff}\u{fffe}\u{ffff}", r#""\ufeff\ufffe\uffff""#),
            ("\u{1fffe}😀", r#""\U0001fffe😀""#),
        ] {
            assert_eq!(written_text(text), expected);
        }
    }

    /// The words that go-yaml takes for another type than text: `resolveTable`'s `resolveMapList` in `resolve.go` of gopkg.in/yaml.v2, whose
    /// booleans v3 has left to typed fields (`isOldBool` in its `encode.go`).
    const WORDS_OF_GO_YAML: &[&str] = &[
        "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n", "N", "no", "No", "NO", "false",
        "False", "FALSE", "off", "Off", "OFF", "", "~", "null", "Null", "NULL", ".nan", ".NaN", ".NAN", ".inf", ".Inf",
        ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF", "<<",
    ];

    /// Whether go-yaml may take a text without quotes for another type: it looks for the words, and for numbers and times in what begins with a
    /// digit, a sign or a point (`resolveTable` there). Anything else is a text.
    fn may_be_typed_by_go_yaml(text: &str) -> bool {
        WORDS_OF_GO_YAML.contains(&text)
            || text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first))
    }

    /// The numbers are forms that `resolve` and `isBase60Float` of go-yaml have, and the times those of its `allowedTimestampFormats`. The last,
    /// `=`, is YAML 1.1's own (yaml.org/type/value.html).
    #[test]
    fn y07_a_text_that_go_yaml_takes_for_another_type_is_quoted() {
        let numbers = [
            "0",
            "-0",
            "+12",
            "012",
            "0o14",
            "0O14",
            "-0o14",
            "0x_1F",
            "0XfF",
            "0b11",
            "-0B11",
            "1_000",
            "685_230.15",
            "1.",
            "+.5",
            "6.8523015e+5",
            "12e03",
            "1:30",
            "190:20:30",
            "190:20:30.15",
            "-1:00",
        ];
        let times = ["2001-1-2", "2001-12-14t21:59:43.10-05:00", "2001-12-14 21:59:43.10", "2001-12-14T21:59:43Z", "="];
        for text in WORDS_OF_GO_YAML.iter().copied().chain(numbers).chain(times) {
            let quoted = json!(text);
            assert_eq!(block(&json!(text)), format!("{quoted}\n"));
            assert_eq!(block(&json!([text])), format!("- {quoted}\n"));
            assert_eq!(block(&json!({text: 1})), format!("{quoted}: 1\n"));
        }
    }

    #[test]
    fn y07_a_number_with_an_exponent_is_a_number_in_yaml_1_1() {
        for (number, expected) in [
            (json!(1e21), "1.0e+21\n"),
            (json!(-1.5e300), "-1.5e+300\n"),
            (json!(1e-7), "1.0e-7\n"),
            (json!(2.5e-7), "2.5e-7\n"),
            (json!(u64::MAX), "18446744073709551615\n"),
            (json!(i64::MIN), "-9223372036854775808\n"),
            (json!(1.0), "1.0\n"),
        ] {
            assert_eq!(block(&number), expected);
            assert_eq!(read_back(&number), number);
        }
    }

    fn any_text() -> impl Strategy<Value = String> {
        let parts = prop::sample::select(vec![
            "a", "1", "e", ".", "-", ":", " ", "\t", "\n", "\r", "#", "\"", "'", "\\", "<<", "---", "...", "? ", "%",
            "&", "*", "!", "\u{0}", "\u{7f}", "\u{85}", "\u{a0}", "\u{2028}", "\u{feff}", "\u{ffff}", "😀", "{", "}",
            "[", "]", ",",
        ]);
        prop_oneof![
            4 => any::<String>(),
            4 => prop::collection::vec(parts, 0..8).prop_map(|parts| parts.concat()),
            1 => (1_000_usize..1_100, "[a-z\"\u{1}😀]").prop_map(|(length, letter)| letter.repeat(length)),
        ]
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any_text().prop_map(Value::from),
        ];
        scalar.prop_recursive(6, 40, 6, |value| {
            prop_oneof![
                prop::collection::vec(value.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(any_text(), value, 0..6)
                    .prop_map(|members| Value::Object(Map::from_iter(members))),
            ]
        })
    }

    proptest! {
        #[test]
        fn y07_no_text_stands_without_quotes_that_go_yaml_may_take_for_another_type(
            text in prop_oneof![any_text(), "[a-zA-Z0-9_.~<=:+-]{0,6}"]
        ) {
            if written_text(&text) == text {
                prop_assert!(!may_be_typed_by_go_yaml(&text), "{}", text);
            }
        }

        #[test]
        fn y07_what_is_written_is_read_back_equal(value in any_value()) {
            // A document of null says nothing, and is left out.
            let value = json!({"value": value});
            prop_assert_eq!(read_back(&value), value);
        }
    }
}
