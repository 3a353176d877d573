//! Reading JSON from outside: bounded in depth, no key twice, and a number in a label map kept as it was sent.
//!
//! `serde_json` alone takes the last of two equal keys, turns `1.50` into a float whose text is `1.5`, and rounds an integer
//! of more than 64 bits. A label's value is text, and a number there means its JSON text, so the maps of text are
//! read from the raw document. Elsewhere a number is a number, and one that would be rounded is refused.

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stemma_core::json;
use stemma_core::manifest::MAX_DEPTH;

/// The maps whose values are text, where they stand directly in an object's body.
const TEXT_MAPS: [&str; 2] = ["labels", "annotations"];

/// The body is no JSON document that is taken.
#[derive(Debug, thiserror::Error)]
#[error("the body is not JSON that can be taken: {reason}")]
pub(crate) struct BadJson {
    /// What is wrong and, where known, the line and column.
    pub reason: String,
}

impl BadJson {
    fn new(reason: &dyn ToString) -> Self {
        Self { reason: reason.to_string() }
    }
}

/// Reads one document.
///
/// # Errors
/// [`BadJson`] for a syntax error, a key twice in one object, more than [`MAX_DEPTH`] levels, a number that does
/// not fit into 64 bits, or text after the document.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, BadJson> {
    read(document(bytes)?, Place::Body)
}

/// Reads one document that is a map of text itself: numbers and booleans become their text.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_texts(bytes: &[u8]) -> Result<Value, BadJson> {
    text_map(document(bytes)?)
}

fn document(bytes: &[u8]) -> Result<&RawValue, BadJson> {
    let raw: &RawValue = serde_json::from_slice(bytes).map_err(|error| BadJson::new(&error))?;
    if json::nesting(raw.get()) > MAX_DEPTH {
        return Err(BadJson::new(&format_args!("more than {MAX_DEPTH} levels of nesting")));
    }
    Ok(raw)
}

/// Where a value stands, as far as the maps of text are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The body itself: an object of the API, `{"objects": […]}`, or a list of patch operations.
    Body,
    /// The list of an apply.
    Objects,
    /// A patch operation: its `value` may be a label's.
    Operation,
    /// Anywhere else.
    Inside,
}

impl Place {
    fn of_key(self, key: &str) -> Self {
        match (self, key) {
            (Self::Body, "objects") => Self::Objects,
            _ => Self::Inside,
        }
    }

    fn of_item(self) -> Self {
        match self {
            Self::Body => Self::Operation,
            Self::Objects => Self::Body,
            Self::Operation | Self::Inside => Self::Inside,
        }
    }
}

fn read(raw: &RawValue, place: Place) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => object(raw, |key, raw| match place {
            Place::Body if TEXT_MAPS.contains(&key) => text_map(raw),
            Place::Operation if key == "value" => operand(raw),
            _ => read(raw, place.of_key(key)),
        }),
        Some(b'[') => json::items(raw).into_iter().map(|item| read(item, place.of_item())).collect(),
        _ => json::value(raw).map_err(|error| BadJson::new(&error)),
    }
}

fn object(raw: &RawValue, read: impl Fn(&str, &RawValue) -> Result<Value, BadJson>) -> Result<Value, BadJson> {
    let mut object = Map::new();
    for (key, raw) in json::members(raw).map_err(|error| BadJson::new(&error))? {
        let value = read(&key, raw)?;
        if object.insert(key.clone(), value).is_some() {
            return Err(BadJson::new(&format_args!("the key {key:?} stands twice in one object")));
        }
    }
    Ok(Value::Object(object))
}

/// Reads what stands where a map of text is expected: numbers and booleans of an object become their text.
fn text_map(raw: &RawValue) -> Result<Value, BadJson> {
    if !raw.get().starts_with('{') {
        return read(raw, Place::Inside);
    }
    object(raw, |_, raw| match raw.get().as_bytes().first() {
        Some(b'-' | b'0'..=b'9' | b't' | b'f') => Ok(Value::String(raw.get().to_owned())),
        _ => read(raw, Place::Inside),
    })
}

/// The value of a patch operation: whole numbers stay numbers, any other number keeps its text, since what the
/// path names decides whether a number or a label's text is meant.
fn operand(raw: &RawValue) -> Result<Value, BadJson> {
    let text = raw.get();
    if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return read(raw, Place::Inside);
    }
    let number = json::number(text).ok().filter(|number| number.to_string() == text);
    Ok(number.map_or_else(|| Value::String(text.to_owned()), Value::Number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_in_label_maps_keep_their_text() {
        for (text, expected) in [
            (
                r#"{"labels":{"a":1.50,"b":true,"c":-0.0,"d":12345678901234567890,"e":"x","f":null}}"#,
                json!({"labels": {"a": "1.50", "b": "true", "c": "-0.0", "d": "12345678901234567890", "e": "x", "f": null}}),
            ),
            (
                r#"[{"value":18446744073709551616},{"value":"x"}]"#,
                json!([{"value": "18446744073709551616"}, {"value": "x"}]),
            ),
            (r#"{"labels":{"a":18446744073709551616}}"#, json!({"labels": {"a": "18446744073709551616"}})),
            (r#"{"objects":[{"annotations":{"a":1e21}}]}"#, json!({"objects": [{"annotations": {"a": "1e21"}}]})),
            (r#"{"parameters":{"labels":{"a":1.5}}}"#, json!({"parameters": {"labels": {"a": 1.5}}})),
            (r#"{"labels":5}"#, json!({"labels": 5})),
            (
                r#"[{"op":"add","path":"/labels/a","value":5},{"op":"add","path":"/labels/b","value":1.50}]"#,
                json!([{"op": "add", "path": "/labels/a", "value": 5}, {"op": "add", "path": "/labels/b", "value": "1.50"}]),
            ),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_refused_says_why() {
        let deep = format!("{}{}", "[".repeat(25), "]".repeat(25));
        for (text, part) in [
            (r#"{"a":1,"a":2}"#, "the key \"a\" stands twice"),
            (r#"{"labels":{"a":"1","a":"2"}}"#, "stands twice"),
            (r#"{"a":1e999}"#, "number out of range"),
            (
                r#"{"parameters":{"a":[18446744073709551616]}}"#,
                "number out of range: 18446744073709551616 does not fit",
            ),
            (r#"{"parameters":{"a":-9223372036854775809}}"#, "number out of range"),
            (r#"{"a":"\ud800"}"#, "an escape that stands for no character"),
            (r"{} {}", "trailing"),
            ("{", "EOF"),
            (deep.as_str(), "24 levels"),
        ] {
            let refused = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
