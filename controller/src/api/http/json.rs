//! Reading JSON from outside: bounded in depth, no key twice, and a number in a label map kept as it was sent.
//!
//! `serde_json` alone takes the last of two equal keys, and turns `1.50` into a float whose text is `1.5`. A
//! label's value is text, and a number there means its JSON text, so the maps of text are
//! read from the raw document. Elsewhere a number is a number.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// How deep arrays and objects may stand in each other. The deepest thing that an author writes is a
/// parameter (depth 16) in a task in a release in an apply.
pub(crate) const MAX_DEPTH: u16 = 24;

/// The maps whose values are text, where they stand directly in an object's body.
const TEXT_MAPS: [&str; 2] = ["labels", "annotations"];

/// The body is no JSON document that is taken.
#[derive(Debug, thiserror::Error)]
#[error("the body is not JSON that can be taken: {reason}")]
pub(crate) struct BadJson {
    /// What is wrong and, where known, the line and column.
    pub reason: String,
}

/// Reads one document.
///
/// # Errors
/// [`BadJson`] for a syntax error, a key twice in one object, more than [`MAX_DEPTH`] levels, a number that no
/// 64-bit float holds, or text after the document.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, BadJson> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let seed = Strict { depth: 0, place: Place::Body };
    let value = seed.deserialize(&mut reader).map_err(|e| BadJson { reason: e.to_string() })?;
    reader.end().map_err(|e| BadJson { reason: e.to_string() })?;
    Ok(value)
}

/// Reads one document that is a map of text itself: numbers and booleans become their text.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_texts(bytes: &[u8]) -> Result<Value, BadJson> {
    let raw: &RawValue = serde_json::from_slice(bytes).map_err(|e| BadJson { reason: e.to_string() })?;
    text_map(raw).map_err(|e| BadJson { reason: e.to_string() })
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

struct Strict {
    depth: u16,
    place: Place,
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let depth = deeper(self.depth).map_err(A::Error::custom)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict { depth, place: self.place.of_item() })? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let depth = deeper(self.depth).map_err(A::Error::custom)?;
        let mut object = Map::new();
        let mut seen = BTreeSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format_args!("the key {key:?} stands twice in one object")));
            }
            let value = if self.place == Place::Body && TEXT_MAPS.contains(&key.as_str()) {
                text_map(&entries.next_value::<Box<RawValue>>()?).map_err(A::Error::custom)?
            } else if self.place == Place::Operation && key == "value" {
                operand(&entries.next_value::<Box<RawValue>>()?, depth).map_err(A::Error::custom)?
            } else {
                entries.next_value_seed(Strict { depth, place: self.place.of_key(&key) })?
            };
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

fn deeper(depth: u16) -> Result<u16, String> {
    if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(format!("more than {MAX_DEPTH} levels of nesting")) }
}

/// Reads what stands where a map of text is expected: numbers and booleans of an object become their text.
fn text_map(raw: &RawValue) -> Result<Value, serde_json::Error> {
    let mut value = nested(raw, 1)?;
    if let Value::Object(map) = &mut value {
        let texts: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(raw.get())?;
        for (key, text) in texts {
            if let Some(slot @ (Value::Number(_) | Value::Bool(_))) = map.get_mut(&key) {
                *slot = Value::String(text.get().to_owned());
            }
        }
    }
    Ok(value)
}

/// The value of a patch operation: whole numbers stay numbers, any other number keeps its text, since what the
/// path names decides whether a number or a label's text is meant.
fn operand(raw: &RawValue, depth: u16) -> Result<Value, serde_json::Error> {
    let value = nested(raw, depth)?;
    Ok(match &value {
        Value::Number(n) if n.to_string() != raw.get() => Value::String(raw.get().to_owned()),
        _ => value,
    })
}

fn nested(raw: &RawValue, depth: u16) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(raw.get());
    Strict { depth, place: Place::Inside }.deserialize(&mut reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_in_label_maps_keep_their_text() {
        for (text, expected) in [
            (
                r#"{"labels":{"a":1.50,"b":true,"c":-0.0,"d":12345678901234567890,"e":"x","f":null}}"#,
                json!({"labels": {"a": "1.50", "b": "true", "c": "-0.0", "d": "12345678901234567890", "e": "x", "f": null}}),
            ),
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
            (r#"{"a":"\ud800"}"#, "hex escape"),
            (r"{} {}", "trailing"),
            ("{", "EOF"),
            (deep.as_str(), "24 levels"),
        ] {
            let refused = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
