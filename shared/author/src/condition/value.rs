//! Conversion of JSON values to CEL values.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value;
use cel::objects::{Key, Map};
use serde_json::Value as Json;

/// The size of a JSON value, with all values in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueSize {
    /// Number of members of the largest list or map.
    pub(super) max_length: usize,
    /// Bytes of all texts and keys, plus 8 for each number, boolean and null.
    pub(super) bytes: usize,
    /// Number of values, including nested ones.
    value_count: usize,
}

/// Approximate memory of a value without its text, in bytes.
const VALUE_OVERHEAD_BYTES: usize = 96;

impl ValueSize {
    /// Returns the size of a value, with all values in it.
    pub(super) fn from_json(value: &Json) -> Self {
        let mut size = Self::default();
        size.add(value);
        size
    }

    /// Returns the approximate memory of the measured values in CEL form, in bytes.
    pub(super) fn memory_bytes(self) -> usize {
        self.bytes + self.value_count * VALUE_OVERHEAD_BYTES
    }

    /// Adds the size of a value, with all values in it.
    fn add(&mut self, value: &Json) {
        self.value_count += 1;
        match value {
            Json::String(text) => self.bytes += text.len(),
            Json::Array(items) => {
                self.max_length = self.max_length.max(items.len());
                for item in items {
                    self.add(item);
                }
            }
            Json::Object(fields) => {
                self.max_length = self.max_length.max(fields.len());
                for (key, value) in fields {
                    self.bytes += key.len();
                    self.add(value);
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => self.bytes += 8,
        }
    }
}

/// Converts a JSON value. A whole number becomes a signed integer, or an unsigned integer if it is too large for `i64`.
/// Any other number becomes a double.
pub(super) fn to_cel(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(signed), _) => Value::Int(signed),
            (None, Some(unsigned)) => Value::UInt(unsigned),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Json::Object(fields) => {
            let map: HashMap<Key, Value> =
                fields.iter().map(|(key, value)| (Key::String(Arc::new(key.clone())), to_cel(value))).collect();
            Value::Map(Map { map: Arc::new(map) })
        }
    }
}

/// Returns the name of a value's type, as an error message writes it.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::List(_) => "a list",
        Value::Map(_) | Value::Struct(_) => "a map",
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => "a number",
        Value::String(_) => "text",
        Value::Bytes(_) => "bytes",
        Value::Bool(_) => "a boolean",
        Value::Null => "null",
        Value::Function(..) | Value::Opaque(_) => "something else",
    }
}
