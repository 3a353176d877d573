//! How a line of the log is written on standard error: as text with its fields behind the message (logfmt), or as an object of JSON.
//!
//! A line is one line, whatever a host, a command or a library has put into it: else a reader of lines takes the rest for another.

use std::fmt::Write as _;

use log::Record;
use log::kv::{Error, Key, Value as Given, VisitSource, VisitValue};
use serde_json::Value;

use super::chain;

/// A record as text: `[TIME LEVEL] message key=value key="a value with blanks"`.
pub(super) fn text(time: &str, record: &Record<'_>) -> String {
    let mut line = format!("[{time} {:<5}] ", record.level());
    escape(&mut line, &record.args().to_string(), false);
    for (key, value) in fields(record) {
        let _infallible = write!(line, " {key}=");
        match value {
            Value::String(text) if is_bare(&text) => line.push_str(&text),
            Value::String(text) => {
                line.push('"');
                escape(&mut line, &text, true);
                line.push('"');
            }
            number_or_bool => line.push_str(&number_or_bool.to_string()),
        }
    }
    line
}

/// A record as an object of JSON: `time`, `level`, `message`, then its fields, numbers and truth values as such.
pub(super) fn json(time: &str, record: &Record<'_>) -> String {
    let level = record.level().as_str().to_ascii_lowercase();
    let head = [("time", time.to_owned()), ("level", level), ("message", record.args().to_string())];
    let mut members: Vec<(String, Value)> =
        head.into_iter().map(|(key, text)| (key.to_owned(), Value::from(text))).collect();
    for (key, value) in fields(record) {
        // A name that stands twice in an object is read as either of the two.
        if members.iter().all(|(there, _)| *there != key) {
            members.push((key, value));
        }
    }
    let members: Vec<_> = members.into_iter().map(|(key, value)| format!("{}:{value}", Value::from(key))).collect();
    format!("{{{}}}", members.join(","))
}

/// Whether a field has no value: it says nothing, and is left out.
pub(super) fn is_nothing(value: &Given<'_>) -> bool {
    let mut nothing = Nothing(false);
    let _infallible = value.visit(&mut nothing);
    nothing.0
}

/// The fields of a record in their order, each of the type that it was logged with.
fn fields(record: &Record<'_>) -> Vec<(String, Value)> {
    let mut fields = Fields(Vec::new());
    let _infallible = record.key_values().visit(&mut fields);
    fields.0
}

fn typed(value: &Given<'_>) -> Value {
    let mut typed = Typed(Value::Null);
    let _infallible = value.visit(&mut typed);
    typed.0
}

struct Nothing(bool);

impl VisitValue<'_> for Nothing {
    fn visit_any(&mut self, _: Given<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn visit_null(&mut self) -> Result<(), Error> {
        self.0 = true;
        Ok(())
    }
}

struct Fields(Vec<(String, Value)>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Given<'kvs>) -> Result<(), Error> {
        if !is_nothing(&value) {
            self.0.push((key.as_str().to_owned(), typed(&value)));
        }
        Ok(())
    }
}

struct Typed(Value);

impl VisitValue<'_> for Typed {
    fn visit_any(&mut self, value: Given<'_>) -> Result<(), Error> {
        let mut text = String::new();
        // What fails in the middle is shown as far as it came.
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
        self.0 = chain(error).into();
        Ok(())
    }

    fn visit_borrowed_error(&mut self, error: &(dyn std::error::Error + 'static)) -> Result<(), Error> {
        self.visit_error(error)
    }
}

/// Whether a text stands without quotes: it is not empty, and nothing in it ends a value or a line, begins another, or is written as an escape.
fn is_bare(text: &str) -> bool {
    let ends = |character: char| {
        character.is_whitespace() || character.is_control() || is_ordering(character) || matches!(character, '=' | '"')
    };
    !text.is_empty() && !text.contains(ends)
}

/// Writes a text so that it stays on its line: with the escapes of JSON, those of quotes and backslashes where it stands in quotes.
fn escape(line: &mut String, text: &str, is_quoted: bool) {
    for character in text.chars() {
        match character {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            '"' | '\\' if is_quoted => line.extend(['\\', character]),
            // What some readers take for the end of a line too.
            '\u{2028}' | '\u{2029}' => push_code(line, character),
            ordering if is_ordering(ordering) => push_code(line, ordering),
            control if control.is_control() => push_code(line, control),
            other => line.push(other),
        }
    }
}

/// Whether a character makes what is behind it be shown in another order.
const fn is_ordering(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn push_code(line: &mut String, character: char) {
    let _infallible = write!(line, "\\u{:04x}", u32::from(character));
}

#[cfg(test)]
mod tests {
    use log::Level;
    use log::kv::Source;

    use super::*;

    const TIME: &str = "2026-11-29T03:00:00Z";

    fn written(message: &str, fields: &dyn Source, write: fn(&str, &Record<'_>) -> String) -> String {
        write(TIME, &Record::builder().level(Level::Warn).args(format_args!("{message}")).key_values(fields).build())
    }

    /// What a reader of logfmt finds in a line: pairs, where a value in quotes is read as JSON reads a string.
    fn read(line: &str) -> Vec<(String, String)> {
        let (mut pairs, mut rest) = (Vec::new(), line);
        while let Some((key, value)) = rest.trim_start().split_once('=') {
            let end = if let Some(inner) = value.strip_prefix('"') {
                let mut before = ' ';
                let mut is_escaped = false;
                let close = inner.find(|character: char| {
                    is_escaped = before == '\\' && !is_escaped;
                    before = character;
                    character == '"' && !is_escaped
                });
                close.unwrap() + 2
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
    fn y09_values_are_quoted_where_a_reader_would_lose_them() {
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
            let line = written("task ended", &[("error", value), ("task", "t")], text);
            assert_eq!(line, format!("[{TIME} WARN ] task ended error={shown} task=t"));
            assert_eq!(line.lines().count(), 1, "{value:?}");
            let pairs = read(line.split_once("] task ended ").unwrap().1);
            assert_eq!(pairs, [("error", value), ("task", "t")].map(|(key, text)| (key.to_owned(), text.to_owned())));
        }
    }

    #[test]
    fn y09_a_message_of_a_library_stays_on_one_line() {
        for (message, shown) in [("odd\nthing", "odd\\nthing"), ("say \"no\" \\", "say \"no\" \\")] {
            assert_eq!(written(message, &[("count", 1)], text), format!("[{TIME} WARN ] {shown} count=1"));
            let object: Value = serde_json::from_str(&written(message, &[("count", 1)], json)).unwrap();
            assert_eq!(object["message"], message);
        }
    }

    #[test]
    fn y09_an_object_has_numbers_and_truth_values_as_such() {
        let path = std::path::Path::new("/a b");
        let fields: Vec<(&str, Given<'_>)> = vec![
            ("count", Given::from(7_u64)),
            ("late", Given::from(-1_i64)),
            ("is_first", Given::from(true)),
            ("name", Given::from("web \"1\"\n")),
            ("path", Given::from_debug(&path)),
            ("missing", Given::null()),
            // The head is not written over.
            ("level", Given::from("none")),
        ];
        let line = written("m", &fields, json);
        assert_eq!(line.lines().count(), 1);
        assert!(line.starts_with(&format!("{{\"time\":\"{TIME}\",\"level\":\"warn\",\"message\":\"m\",\"count\":7,")));
        let object: Value = serde_json::from_str(&line).unwrap();
        let wanted = serde_json::json!({
            "time": TIME, "level": "warn", "message": "m", "count": 7, "late": -1, "is_first": true, "name": "web \"1\"\n",
            "path": "\"/a b\"",
        });
        assert_eq!(object, wanted);
    }

    #[test]
    fn y09_a_field_without_a_value_is_left_out() {
        let fields = [("name", None), ("node", Some("n1"))];
        assert_eq!(written("node is back", &fields, text), format!("[{TIME} WARN ] node is back node=n1"));
    }

    #[test]
    fn y09_an_error_is_shown_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::fmt::Error);
        let outer = Outer(std::fmt::Error);
        let line = written("m", &[("error", Given::from_dyn_error(&outer))], text);
        assert_eq!(line, format!("[{TIME} WARN ] m error=\"outer: {}\"", std::fmt::Error));
    }
}
