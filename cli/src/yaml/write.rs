//! Writes JSON values as block YAML. Every reader reads the same value back: this program, readers of YAML 1.1
//! (`PyYAML`, libyaml) and readers of YAML 1.2 (ruamel.yaml, go-yaml).
//!
//! The readers do not agree about every text. A word that is text for one reader is a boolean, a number or a time for
//! another. A character that one reader accepts is a line end for another. So a text is written without quotes only if
//! no reader gives it another type. Within quotes, a character is written as itself only if every reader accepts the
//! character.

use serde_json::{Number, Value};
use stemma_wire::error::is_format_character;

/// The maximum length of a key that readers accept without a `?` before it (YAML 1.2.2, section 7.4.2: 1,024
/// characters). The length is counted in bytes of the written key, which are never fewer than its characters.
const MAX_SIMPLE_KEY_BYTES: usize = 1_024;
/// Words that are not text in YAML 1.1, whether in upper or lower case.
const TYPED_WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// Returns block YAML from which readers get the same value.
#[must_use]
pub fn to_block(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value, 0, LineStart::OwnLine);
    text
}

/// The place at which the first line of a value begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineStart {
    /// On its own line.
    OwnLine,
    /// After the dash of a list or the colon of a key.
    Inline,
}

/// Writes a value as block YAML, indented by `indent` levels of two spaces. `start` is the place of its first line.
fn write_value(output: &mut String, value: &Value, indent: usize, start: LineStart) {
    let pad = |output: &mut String, index: usize| {
        if start == LineStart::OwnLine || index > 0 {
            output.push_str(&"  ".repeat(indent));
        }
    };
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (index, (key, value)) in members.iter().enumerate() {
                pad(output, index);
                write_key(output, key, indent);
                write_nested(output, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                pad(output, index);
                output.push_str("- ");
                write_value(output, item, indent + 1, LineStart::Inline);
            }
        }
        Value::String(text) => push_line(output, &string_text(text)),
        Value::Number(number) => push_line(output, &number_text(number)),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => push_line(output, &value.to_string()),
    }
}

fn push_line(output: &mut String, text: &str) {
    output.push_str(text);
    output.push('\n');
}

/// Writes a key with its colon. A key over [`MAX_SIMPLE_KEY_BYTES`] gets a `?`, and its colon is on the next line.
fn write_key(output: &mut String, key: &str, indent: usize) {
    let written = string_text(key);
    if written.len() > MAX_SIMPLE_KEY_BYTES {
        output.push_str("? ");
        push_line(output, &written);
        output.push_str(&"  ".repeat(indent));
    } else {
        output.push_str(&written);
    }
    output.push(':');
}

/// Writes the value after a key's colon. A map or list that is not empty begins on its own line.
fn write_nested(output: &mut String, value: &Value, indent: usize) {
    let is_nested = match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    output.push(if is_nested { '\n' } else { ' ' });
    write_value(output, value, indent + 1, if is_nested { LineStart::OwnLine } else { LineStart::Inline });
}

/// Returns the text of a number. A number with an exponent gets a decimal point and a sign of the exponent, because
/// `1e21` is text in YAML 1.1.
fn number_text(number: &Number) -> String {
    let text = number.to_string();
    let Some((digits, exponent)) = text.split_once(['e', 'E']) else { return text };
    let point = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
    format!("{digits}{point}e{sign}{exponent}")
}

/// Returns a text as YAML. The quotes are left out only if every reader reads the bare text as text.
fn string_text(text: &str) -> String {
    let is_bare = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-./@".contains(letter))
        && !TYPED_WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_bare { text.to_owned() } else { double_quoted(text) }
}

/// Returns a text in double quotes, on one line.
fn double_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if !is_printable(letter) && u32::from(letter) > 0xFFFF => {
                quoted.push_str(&format!("\\U{:08x}", u32::from(letter)));
            }
            _ if !is_printable(letter) => quoted.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns whether every reader accepts the character as itself. False for control and formatting characters: YAML 1.1
/// allows no control characters except tab and line ends. It counts U+0085, U+2028 and U+2029 as line ends, and U+FEFF
/// as a byte order mark. Also false for Unicode's noncharacters: U+FDD0 to U+FDEF, and all whose last four digits are
/// FFFE or FFFF.
pub(crate) fn is_printable(letter: char) -> bool {
    let is_noncharacter = u32::from(letter) & 0xFFFE == 0xFFFE || matches!(letter, '\u{FDD0}'..='\u{FDEF}');
    !(letter.is_control() || is_format_character(letter) || is_noncharacter)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::*;
    use crate::yaml::read_documents;

    /// Writes a value as YAML, and returns the value that [`read_documents`] reads from the text.
    fn read_back(value: &Value) -> Value {
        let text = to_block(value);
        let documents = read_documents(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(documents.len(), 1, "{text}");
        serde_json::from_str(&documents[0].json).unwrap()
    }

    #[test]
    fn to_block_is_read_back_equal() {
        for value in [
            json!({"a": {"b": [1, "2", null, {"c": "x: y", "d": []}], "e": {}}, "on": "yes"}),
            json!([[1, 2], [{"a": "line\nbreak"}], "0x1F", "-", "#", ""]),
            json!("text"),
            json!({"<<": {"a": 1}, "b": {"<<": "x"}}),
        ] {
            assert_eq!(read_back(&value), value, "{}", to_block(&value));
        }
    }

    /// The maximum length is from YAML 1.2.2, section 7.4.2, and counts the written key. A key of digits is written
    /// with two quotes, and a control character as six characters.
    #[test]
    fn y07_key_has_question_mark_when_over_1024_characters() {
        for (key, has_mark) in [
            ("x".repeat(1_024), false),
            ("x".repeat(1_025), true),
            ("1".repeat(1_022), false),
            ("1".repeat(1_023), true),
            ("\u{1}".repeat(170), false),
            ("\u{1}".repeat(171), true),
        ] {
            for value in [json!({&key: 1}), json!({"a": {&key: {"b": 1}}}), json!([{&key: [1], "z": 2}, {"y": {&key: []}}])] {
                let text = to_block(&value);
                assert_eq!(text.contains("? "), has_mark, "{} characters: {text}", key.len());
                assert_eq!(read_back(&value), value);
            }
        }
        assert_eq!(to_block(&json!({"x".repeat(1_025): {"a": 1}})), format!("? {}\n:\n  a: 1\n", "x".repeat(1_025)));
    }

    /// The words and numbers are from the types of YAML 1.1 (yaml.org/type) and of YAML 1.2's core schema.
    #[test]
    fn y07_string_text_quotes_text_with_other_yaml_type() {
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
            assert_eq!(to_block(&json!(text)), format!("{}\n", json!(text)));
        }
        for (text, expected) in [
            ("a\r\n\tb", r#""a\r\n\tb""#),
            ("\0\u{7f}", r#""\u0000\u007f""#),
            ("\u{85}\u{2028}\u{2029}", r#""\u0085\u2028\u2029""#),
            ("\u{feff}\u{fffe}\u{ffff}", r#""\ufeff\ufffe\uffff""#),
            ("\u{1fffe}😀", r#""\U0001fffe😀""#),
        ] {
            assert_eq!(string_text(text), expected);
        }
    }

    /// The words that go-yaml reads as another type than text: `resolveTable`'s `resolveMapList` in `resolve.go` of
    /// gopkg.in/yaml.v2. In v3, its booleans apply only to fields of the type `bool` (`isOldBool` in its `encode.go`).
    const GO_YAML_WORDS: &[&str] = &[
        "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n", "N", "no", "No", "NO", "false", "False",
        "FALSE", "off", "Off", "OFF", "", "~", "null", "Null", "NULL", ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf",
        "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF", "<<",
    ];

    /// Returns whether go-yaml may give an unquoted text another type than text. Its function `resolveTable` checks the
    /// words. If the text begins with a digit, a sign or a point, it also tries numbers and times.
    fn may_be_typed_by_go_yaml(text: &str) -> bool {
        GO_YAML_WORDS.contains(&text) || text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first))
    }

    /// The numbers are forms of `resolve` and `isBase60Float` in go-yaml, and the times are from its
    /// `allowedTimestampFormats`. The last, `=`, is YAML 1.1's own (yaml.org/type/value.html).
    #[test]
    fn y07_string_text_quotes_text_with_go_yaml_type() {
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
        for text in GO_YAML_WORDS.iter().copied().chain(numbers).chain(times) {
            let quoted = json!(text);
            assert_eq!(to_block(&json!(text)), format!("{quoted}\n"));
            assert_eq!(to_block(&json!([text])), format!("- {quoted}\n"));
            assert_eq!(to_block(&json!({text: 1})), format!("{quoted}: 1\n"));
        }
    }

    #[test]
    fn y07_number_text_is_number_in_yaml_1_1() {
        for (number, expected) in [
            (json!(1e21), "1.0e+21\n"),
            (json!(-1.5e300), "-1.5e+300\n"),
            (json!(1e-7), "1.0e-7\n"),
            (json!(2.5e-7), "2.5e-7\n"),
            (json!(u64::MAX), "18446744073709551615\n"),
            (json!(i64::MIN), "-9223372036854775808\n"),
            (json!(1.0), "1.0\n"),
        ] {
            assert_eq!(to_block(&number), expected);
            assert_eq!(read_back(&number), number);
        }
    }

    /// Generates texts: any text, texts of parts that have a meaning in YAML, and texts about as long as
    /// [`MAX_SIMPLE_KEY_BYTES`].
    fn any_text() -> impl Strategy<Value = String> {
        let parts = prop::sample::select(vec![
            "a", "1", "e", ".", "-", ":", " ", "\t", "\n", "\r", "#", "\"", "'", "\\", "<<", "---", "...", "? ", "%", "&", "*",
            "!", "\u{0}", "\u{7f}", "\u{85}", "\u{a0}", "\u{2028}", "\u{feff}", "\u{ffff}", "😀", "{", "}", "[", "]", ",",
        ]);
        prop_oneof![
            4 => any::<String>(),
            4 => prop::collection::vec(parts, 0..8).prop_map(|parts| parts.concat()),
            1 => (1_000_usize..1_100, "[a-z\"\u{1}😀]").prop_map(|(length, letter)| letter.repeat(length)),
        ]
    }

    /// Generates a value of at most 6 levels, with about 40 values in it, and fewer than 6 items in each list or map.
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
                prop::collection::hash_map(any_text(), value, 0..6).prop_map(|members| Value::Object(Map::from_iter(members))),
            ]
        })
    }

    proptest! {
        #[test]
        fn y07_string_text_quotes_random_text_with_go_yaml_type(
            text in prop_oneof![any_text(), "[a-zA-Z0-9_.~<=:+-]{0,6}"]
        ) {
            if string_text(&text) == text {
                prop_assert!(!may_be_typed_by_go_yaml(&text), "{}", text);
            }
        }

        #[test]
        fn y07_to_block_is_read_back_equal_for_random_value(value in any_value()) {
            // A null document is empty and is skipped.
            let value = json!({"value": value});
            prop_assert_eq!(read_back(&value), value);
        }
    }
}
