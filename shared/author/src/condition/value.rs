//! JSON values as CEL sees them.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value;
use cel::objects::{Key, Map};
use serde_json::Value as Json;

/// How large the values of a condition's inputs are together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Members of the largest list or map.
    pub(super) longest: usize,
    /// Bytes of all texts, and eight for anything else.
    pub(super) bytes: usize,
    /// How many values there are, those within others too.
    values: usize,
}

/// What a value takes in memory beside its text, about.
const VALUE_BYTES: usize = 96;

impl Size {
    /// The size of one value.
    pub(super) fn of(value: &Json) -> Self {
        let mut size = Self::default();
        size.add(value);
        size
    }

    /// Bytes of memory that it takes as CEL sees it, about.
    pub(super) fn memory(self) -> usize {
        self.bytes + self.values * VALUE_BYTES
    }

    fn add(&mut self, value: &Json) {
        self.values += 1;
        match value {
            Json::String(text) => self.bytes += text.len(),
            Json::Array(items) => {
                self.longest = self.longest.max(items.len());
                for item in items {
                    self.add(item);
                }
            }
            Json::Object(fields) => {
                self.longest = self.longest.max(fields.len());
                for (key, value) in fields {
                    self.bytes += key.len();
                    self.add(value);
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => self.bytes += 8,
        }
    }
}

/// A whole number is an integer, unsigned only where it must be; anything else with a point is a double.
pub(super) fn of(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(signed), _) => Value::Int(signed),
            (None, Some(unsigned)) => Value::UInt(unsigned),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(of).collect())),
        Json::Object(fields) => {
            let map: HashMap<Key, Value> =
                fields.iter().map(|(key, value)| (Key::String(Arc::new(key.clone())), of(value))).collect();
            Value::Map(Map { map: Arc::new(map) })
        }
    }
}

/// What a value is, for an error.
pub(super) fn kind(value: &Value) -> &'static str {
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
