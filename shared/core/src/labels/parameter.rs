//! Parameters: inherited values of any JSON type.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::{self, InvalidJson};
use crate::key::LabelKey;
use crate::ownership::OwnedMap;

/// Maximum nesting depth of lists and objects in a parameter.
pub const MAX_PARAMETER_DEPTH: usize = 16;
/// Maximum size of the parameters of one level, in bytes: the keys, and the values as JSON text.
pub const MAX_PARAMETERS_BYTES: usize = 64 * 1024;

/// The value of a parameter: any JSON value except `null`. As in canonical JSON (RFC 8785), `1` and `1.0` are equal,
/// and the order of an object's keys has no meaning.
#[derive(Clone, PartialEq, Eq, Serialize, derive_more::Deref, derive_more::Debug)]
#[debug("{_0:?}")]
#[deref(forward)]
#[serde(transparent)]
pub struct ParameterValue(Arc<Value>);

/// The error for a JSON value that is not a valid parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidParameter {
    /// Lists and objects in the value are nested more than [`MAX_PARAMETER_DEPTH`] deep.
    #[error("lists and objects in a parameter may be nested at most {MAX_PARAMETER_DEPTH} deep")]
    TooDeep,
    /// The value is `null`, but a value is required.
    #[error("null is not a parameter value: it means that the key is not inherited")]
    Null,
    /// A part of the value cannot be represented exactly.
    #[error("this parameter can't be read: {0}")]
    Unreadable(InvalidJson),
    /// The value contains an integer that hosts would receive as another number. A float of this kind is `Unreadable`.
    #[error("this parameter can't be read: {why}")]
    Inexact {
        /// The path of the number within the value, such as `.a[0]`. Empty if the value itself is the number.
        place: String,
        /// The number, and how to write it instead.
        why: InvalidJson,
    },
}

/// The error for the parameters of a level that exceed [`MAX_PARAMETERS_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameters of one level have at most {MAX_PARAMETERS_BYTES} bytes together, these {bytes}")]
pub struct ParametersTooLarge {
    /// Size of the keys and of the values as JSON text together, in bytes.
    pub bytes: usize,
}

impl ParameterValue {
    /// Converts a JSON value. Whole numbers become integers.
    ///
    /// # Errors
    /// [`InvalidParameter`] if the value is `null` or nested too deep.
    pub fn new(mut value: Value) -> Result<Self, InvalidParameter> {
        if value.is_null() {
            return Err(InvalidParameter::Null);
        }
        if !json::is_within_depth(&value, MAX_PARAMETER_DEPTH) {
            return Err(InvalidParameter::TooDeep);
        }
        json::normalize_integers(&mut value);
        Ok(Self(Arc::new(value)))
    }

    /// Parses a JSON value that an author sent. Returns `None` for `null`.
    ///
    /// # Errors
    /// [`InvalidParameter`] if the value is nested too deep, or a number or text cannot be represented exactly.
    pub fn from_json(raw: &RawValue) -> Result<Option<Self>, InvalidParameter> {
        let value = json::parse_value(raw).map_err(InvalidParameter::Unreadable)?;
        // Values in the store are not checked in this way, because older versions accepted such numbers.
        if let Some((path, error)) = json::find_inexact(&value) {
            return Err(InvalidParameter::Inexact { place: path, why: error });
        }
        if value.is_null() { Ok(None) } else { Self::new(value).map(Some) }
    }
}

impl<'de> Deserialize<'de> for ParameterValue {
    /// Reads a value from the store. Numbers are not checked, because older versions accepted any number.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Checks the size of one level's parameters.
///
/// # Errors
/// [`ParametersTooLarge`] if the size exceeds [`MAX_PARAMETERS_BYTES`].
pub fn check_parameters(provided: &OwnedMap<LabelKey, ParameterValue>) -> Result<(), ParametersTooLarge> {
    let size = |value: &ParameterValue| value.to_string().len();
    let bytes = provided.iter().map(|(key, entry)| key.len() + entry.value.value().map_or(0, size)).sum();
    if bytes > MAX_PARAMETERS_BYTES { Err(ParametersTooLarge { bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ownership::{Manager, ProvidedValue};

    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!(1), |inner, _| json!([inner]))
    }

    #[test]
    fn parameter_equality_ignores_number_form_and_key_order() {
        let value = |value| ParameterValue::new(value).unwrap();
        for (left, right, expected) in [
            (json!(1), json!(1.0), true),
            (json!(-0.0), json!(0), true),
            (json!({"a": 1, "b": [2.0]}), json!({"b": [2], "a": 1}), true),
            (json!([1, 2]), json!([2, 1]), false),
            (json!("1"), json!(1), false),
            (json!({"a": null}), json!({}), false),
            (json!({"a": 1}), json!({"a": 2}), false),
            (json!({"a": 1}), json!({"a": 1, "b": 2}), false),
            (json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992_u64), false),
        ] {
            assert_eq!(value(left.clone()) == value(right.clone()), expected, "{left} {right}");
        }
    }

    /// The integers are those of canonical JSON (RFC 8785), which is sent to hosts.
    #[test]
    fn y04_parameter_stores_integer_when_number_is_whole() {
        for (written, integer) in [("1e2", "100"), ("-0", "0"), ("1e16", "10000000000000000"), ("[2.0]", "[2]")] {
            let raw = RawValue::from_string(written.to_owned()).unwrap();
            let parameter = ParameterValue::from_json(&raw).unwrap().unwrap();
            assert_eq!(serde_json::to_string(&parameter).unwrap(), integer, "{written}");
            let stored: ParameterValue = serde_json::from_str(written).unwrap();
            assert_eq!(stored.to_string(), integer, "{written}, as an older program stored it");
        }
    }

    #[test]
    fn check_parameters_limits_bytes_of_keys_and_values() {
        let check_size = |bytes: usize| {
            let value = ParameterValue::new(json!("v".repeat(bytes - "size".len() - "\"\"".len()))).unwrap();
            let intent = [(LabelKey::new("size").unwrap(), ProvidedValue::Value(value))].into_iter().collect();
            check_parameters(&OwnedMap::default().update(&Manager::new("m").unwrap(), &intent))
        };
        assert_eq!(check_size(MAX_PARAMETERS_BYTES), Ok(()));
        assert_eq!(check_size(MAX_PARAMETERS_BYTES + 1), Err(ParametersTooLarge { bytes: MAX_PARAMETERS_BYTES + 1 }));
        assert_eq!(check_size(MAX_PARAMETERS_BYTES + 9), Err(ParametersTooLarge { bytes: MAX_PARAMETERS_BYTES + 9 }));
    }

    /// A number that hosts would receive as another number is refused in a request, but not in the store.
    #[test]
    fn parameter_rejects_deep_inexact_and_null_values() {
        assert!(ParameterValue::new(nested(16)).is_ok());
        let raw = RawValue::from_string("{\"a\": [9007199254740993]}".to_owned()).unwrap();
        let message = ParameterValue::from_json(&raw).unwrap_err().to_string();
        assert!(message.ends_with("than 9007199254740993, because it is past 2^53; write it as text, in quotes"), "{message}");
        assert!(serde_json::from_str::<ParameterValue>(raw.get()).is_ok(), "the value is accepted from the store");
        assert_eq!(ParameterValue::new(nested(17)), Err(InvalidParameter::TooDeep));
        assert_eq!(ParameterValue::new(Value::Null), Err(InvalidParameter::Null));
    }
}
