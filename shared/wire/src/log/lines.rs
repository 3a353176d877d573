//! Formats a log line for standard error: as text with its fields after the message (logfmt), or as a JSON object.
//!
//! A record is always one line, whatever text from a host, a command or a library it contains. A program that reads
//! the log line by line would treat a second line as another record.

use std::fmt::Write as _;

use log::Record;
use log::kv::{Error, Key, Value as FieldValue, VisitSource, VisitValue};
use serde_json::Value;

use super::error_chain;

/// Formats a record as text: `[TIME LEVEL] message key=value key="a value with spaces"`.
pub(super) fn format_text(time: &str, record: &Record<'_>) -> String {
    let mut line = format!("[{time} {:<5}] ", record.level());
    // `false`: the message is not inside quotes, so its own quotes are not escaped.
    push_escaped_text(&mut line, &record.args().to_string(), false);
    for (key, value) in typed_fields(record) {
        let _infallible = write!(line, " {key}=");
        match value {
            Value::String(text) if is_unquoted(&text) => line.push_str(&text),
            Value::String(text) => {
                line.push('"');
                push_escaped_text(&mut line, &text, true);
                line.push('"');
            }
            number_or_bool => line.push_str(&number_or_bool.to_string()),
        }
    }
    line
}

/// Formats a record as a JSON object: `time`, `level`, `message`, then its fields. Numbers and booleans are written as
/// such in JSON, and other values as strings.
pub(super) fn format_json(time: &str, record: &Record<'_>) -> String {
    let level = record.level().as_str().to_ascii_lowercase();
    let first = [("time", time.to_owned()), ("level", level), ("message", record.args().to_string())];
    let mut members: Vec<(String, Value)> = first.into_iter().map(|(key, text)| (key.to_owned(), Value::from(text))).collect();
    for (key, value) in typed_fields(record) {
        // Parsers disagree about a duplicate name in an object, so only the first one is written.
        if members.iter().all(|(existing, _)| *existing != key) {
            members.push((key, value));
        }
    }
    let members: Vec<_> = members.into_iter().map(|(key, value)| format!("{}:{value}", Value::from(key))).collect();
    format!("{{{}}}", members.join(","))
}

/// Returns whether a field has no value (null). Log lines omit such a field.
pub(super) fn is_empty_value(value: &FieldValue<'_>) -> bool {
    let mut check = EmptyCheck(false);
    let _infallible = value.visit(&mut check);
    check.0
}

/// Returns the fields of a record in their order, each with its [`typed_value`]. Omits fields without a value.
fn typed_fields(record: &Record<'_>) -> Vec<(String, Value)> {
    let mut fields = FieldCollector(Vec::new());
    let _infallible = record.key_values().visit(&mut fields);
    fields.0
}

/// Returns the value of a field as JSON. A number or boolean keeps its type, and any other value becomes a string. The
/// string of an error also contains the causes of the error.
fn typed_value(value: &FieldValue<'_>) -> Value {
    let mut typed = TypedValue(Value::Null);
    let _infallible = value.visit(&mut typed);
    typed.0
}

/// A visitor that sets its flag to true if the visited value is null.
struct EmptyCheck(bool);

impl VisitValue<'_> for EmptyCheck {
    fn visit_any(&mut self, _: FieldValue<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn visit_null(&mut self) -> Result<(), Error> {
        self.0 = true;
        Ok(())
    }
}

/// A visitor that collects the key and the JSON value of each field, except fields without a value.
struct FieldCollector(Vec<(String, Value)>);

impl<'kvs> VisitSource<'kvs> for FieldCollector {
    fn visit_pair(&mut self, key: Key<'kvs>, value: FieldValue<'kvs>) -> Result<(), Error> {
        if !is_empty_value(&value) {
            self.0.push((key.as_str().to_owned(), typed_value(&value)));
        }
        Ok(())
    }
}

/// A visitor that converts the value of a field to JSON, and stores the result in itself.
struct TypedValue(Value);

impl VisitValue<'_> for TypedValue {
    /// Stores a value without a JSON type as text: in its `Debug` form if it was logged with `:?`, else as `Display`.
    fn visit_any(&mut self, value: FieldValue<'_>) -> Result<(), Error> {
        let mut text = String::new();
        // If formatting fails, the text up to that point is logged.
        let _shown = write!(text, "{value}");
        self.0 = text.into();
        Ok(())
    }

    fn visit_u64(&mut self, value: u64) -> Result<(), Error> {
        self.0 = value.into();
        Ok(())
    }

    fn visit_i64(&mut self, value: i64) -> Result<(), Error> {
        self.0 = value.into();
        Ok(())
    }

    fn visit_f64(&mut self, value: f64) -> Result<(), Error> {
        self.0 = value.into();
        Ok(())
    }

    fn visit_bool(&mut self, value: bool) -> Result<(), Error> {
        self.0 = value.into();
        Ok(())
    }

    fn visit_str(&mut self, value: &str) -> Result<(), Error> {
        self.0 = value.into();
        Ok(())
    }

    fn visit_error(&mut self, error: &(dyn std::error::Error + 'static)) -> Result<(), Error> {
        self.0 = error_chain(error).into();
        Ok(())
    }

    fn visit_borrowed_error(&mut self, error: &(dyn std::error::Error + 'static)) -> Result<(), Error> {
        self.visit_error(error)
    }
}

/// Returns whether a text can be written without quotes: it is not empty, and contains no whitespace, control
/// character, `=`, double quote, or character that changes the display order of text.
fn is_unquoted(text: &str) -> bool {
    let needs_quotes = |character: char| {
        character.is_whitespace() || character.is_control() || is_bidi_control(character) || matches!(character, '=' | '"')
    };
    !text.is_empty() && !text.contains(needs_quotes)
}

/// Appends a text to a line. Escapes control characters (so that the result is one line) and those that change the
/// display order, as JSON does. Escapes quotes and backslashes only inside quotes (`is_quoted`).
fn push_escaped_text(line: &mut String, text: &str, is_quoted: bool) {
    for character in text.chars() {
        match character {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            '"' | '\\' if is_quoted => line.extend(['\\', character]),
            // Some programs treat these separators as the end of a line too.
            '\u{2028}' | '\u{2029}' => push_escape(line, character),
            bidi_control if is_bidi_control(bidi_control) => push_escape(line, bidi_control),
            control_character if control_character.is_control() => push_escape(line, control_character),
            other => line.push(other),
        }
    }
}

/// Returns whether a character changes the display order of the text after it.
const fn is_bidi_control(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Appends a character as a JSON escape, for example `\u001b`.
fn push_escape(line: &mut String, character: char) {
    let _infallible = write!(line, "\\u{:04x}", u32::from(character));
}

#[cfg(test)]
mod tests {
    use log::Level;
    use log::kv::Source;

    use super::*;

    const TIME: &str = "2026-11-29T03:00:00Z";

    /// Returns a record with this message and these fields, formatted by one of the two formatters.
    fn format_line(message: &str, fields: &dyn Source, format_record: fn(&str, &Record<'_>) -> String) -> String {
        format_record(TIME, &Record::builder().level(Level::Warn).args(format_args!("{message}")).key_values(fields).build())
    }

    /// Parses a line of logfmt into pairs. A quoted value is parsed as a JSON string.
    fn parse_logfmt(line: &str) -> Vec<(String, String)> {
        let (mut pairs, mut rest) = (Vec::new(), line);
        while let Some((key, value)) = rest.trim_start().split_once('=') {
            let end = if let Some(inner) = value.strip_prefix('"') {
                let mut previous = ' ';
                let mut is_escaped = false;
                let closing_quote = inner.find(|character: char| {
                    is_escaped = previous == '\\' && !is_escaped;
                    previous = character;
                    character == '"' && !is_escaped
                });
                // The index counts from the character after the opening quote. The end includes both quotes.
                closing_quote.unwrap() + 2
            } else {
                value.find(' ').unwrap_or(value.len())
            };
            let text = &value[..end];
            let text = if text.starts_with('"') { serde_json::from_str(text).unwrap() } else { text.to_owned() };
            pairs.push((key.to_owned(), text));
            rest = &value[end..];
        }
        pairs
    }

    #[test]
    fn y09_format_text_quotes_value_when_ambiguous() {
        for (value, shown) in [
            ("web-1", "web-1"),
            ("/etc/motd", "/etc/motd"),
            ("C:\\x", "C:\\x"),
            ("é", "é"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("a=b", "\"a=b\""),
            ("say \"no\"", "\"say \\\"no\\\"\""),
            ("a \\ b", "\"a \\\\ b\""),
            ("one\ntwo", "\"one\\ntwo\""),
            ("one\r\n\ttwo", "\"one\\r\\n\\ttwo\""),
            ("\u{1b}[31m", "\"\\u001b[31m\""),
            ("a\u{85}b\u{2028}c", "\"a\\u0085b\\u2028c\""),
            ("a \u{202a}\u{202e}b", "\"a \\u202a\\u202eb\""),
            ("\u{2066}a\u{2069}", "\"\\u2066a\\u2069\""),
        ] {
            let line = format_line("task ended", &[("error", value), ("task", "t")], format_text);
            assert_eq!(line, format!("[{TIME} WARN ] task ended error={shown} task=t"));
            assert_eq!(line.lines().count(), 1, "{value:?}");
            let pairs = parse_logfmt(line.split_once("] task ended ").unwrap().1);
            assert_eq!(pairs, [("error", value), ("task", "t")].map(|(key, text)| (key.to_owned(), text.to_owned())));
        }
    }

    #[test]
    fn y09_format_text_escapes_line_breaks_in_message() {
        for (message, shown) in [("odd\nthing", "odd\\nthing"), ("say \"no\" \\", "say \"no\" \\")] {
            assert_eq!(format_line(message, &[("count", 1)], format_text), format!("[{TIME} WARN ] {shown} count=1"));
            let object: Value = serde_json::from_str(&format_line(message, &[("count", 1)], format_json)).unwrap();
            assert_eq!(object["message"], message);
        }
    }

    #[test]
    fn y09_format_json_keeps_numbers_and_booleans() {
        let path = std::path::Path::new("/a b");
        let fields: Vec<(&str, FieldValue<'_>)> = vec![
            ("count", FieldValue::from(7_u64)),
            ("late", FieldValue::from(-1_i64)),
            ("is_first", FieldValue::from(true)),
            ("name", FieldValue::from("web \"1\"\n")),
            ("path", FieldValue::from_debug(&path)),
            ("missing", FieldValue::null()),
            // A field cannot overwrite `time`, `level` or `message`.
            ("level", FieldValue::from("none")),
        ];
        let line = format_line("m", &fields, format_json);
        assert_eq!(line.lines().count(), 1);
        assert!(line.starts_with(&format!("{{\"time\":\"{TIME}\",\"level\":\"warn\",\"message\":\"m\",\"count\":7,")));
        let object: Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "time": TIME, "level": "warn", "message": "m", "count": 7, "late": -1, "is_first": true, "name": "web \"1\"\n",
            "path": "\"/a b\"",
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn y09_format_text_omits_field_when_value_is_null() {
        let fields = [("name", None), ("node", Some("n1"))];
        assert_eq!(format_line("node is back", &fields, format_text), format!("[{TIME} WARN ] node is back node=n1"));
    }

    #[test]
    fn y09_format_text_appends_error_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct WriteFailure(#[source] std::fmt::Error);
        let outer = WriteFailure(std::fmt::Error);
        let line = format_line("m", &[("error", FieldValue::from_dyn_error(&outer))], format_text);
        assert_eq!(line, format!("[{TIME} WARN ] m error=\"outer: {}\"", std::fmt::Error));
    }
}
