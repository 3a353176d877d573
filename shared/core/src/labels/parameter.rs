//! Parameters: what is inherited and is no string.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::{self, InvalidJson};
use crate::key::LabelKey;
use crate::ownership::OwnedMap;

/// How deep a parameter may be nested: lists and objects within each other.
pub const MAX_PARAMETER_DEPTH: usize = 16;
/// What the parameters of one level may have together, as JSON text, in bytes.
pub const MAX_PARAMETERS: usize = 64 * 1024;

/// A parameter: any JSON value but `null`. `1` and `1.0` are one number, and the order of an object's keys means nothing, as in canonical
/// JSON (RFC 8785).
#[derive(Clone, PartialEq, Eq, Serialize, derive_more::Deref, derive_more::Debug)]
#[debug("{_0:?}")]
#[deref(forward)]
#[serde(transparent)]
pub struct ParameterValue(Arc<Value>);

/// A JSON value that is no parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidParameter {
    /// Nested too deep.
    #[error("a parameter has at most {MAX_PARAMETER_DEPTH} lists and objects within each other")]
    TooDeep,
    /// `null`, where only a value can stand.
    #[error("null is no parameter: it says that the key is not inherited")]
    Null,
    /// A part of it has no exact value.
    #[error("this parameter can't be read: {0}")]
    Unreadable(InvalidJson),
    /// A number in it would be another one on hosts.
    #[error("this parameter can't be read: {why}")]
    Inexact {
        /// Where within the value, as `.a[0]`; empty for the value itself.
        place: String,
        /// Which number, and what to do.
        why: InvalidJson,
    },
}

/// A level's parameters are more than [`MAX_PARAMETERS`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameters of one level have at most {MAX_PARAMETERS} bytes together, these {bytes}")]
pub struct ParametersTooLarge {
    /// Keys and values together.
    pub bytes: usize,
}

impl ParameterValue {
    /// Takes a value, its whole numbers as integers.
    ///
    /// # Errors
    /// [`InvalidParameter`]: `null`, or nested too deep.
    pub fn new(mut value: Value) -> Result<Self, InvalidParameter> {
        if value.is_null() {
            return Err(InvalidParameter::Null);
        }
        if !json::is_within_depth(&value, MAX_PARAMETER_DEPTH) {
            return Err(InvalidParameter::TooDeep);
        }
        json::whole_to_integers(&mut value);
        Ok(Self(Arc::new(value)))
    }

    /// Reads a JSON value; `null` is `None`.
    ///
    /// # Errors
    /// [`InvalidParameter`].
    pub fn from_json(raw: &RawValue) -> Result<Option<Self>, InvalidParameter> {
        let value = json::value(raw).map_err(InvalidParameter::Unreadable)?;
        // Of what is written alone: one that is stored is read as it is.
        if let Some((place, why)) = json::inexact(&value) {
            return Err(InvalidParameter::Inexact { place, why });
        }
        if value.is_null() { Ok(None) } else { Self::new(value).map(Some) }
    }
}

impl<'de> Deserialize<'de> for ParameterValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Checks the sum of one level's parameters.
///
/// # Errors
/// [`ParametersTooLarge`] past [`MAX_PARAMETERS`].
pub fn check_parameters(provided: &OwnedMap<LabelKey, ParameterValue>) -> Result<(), ParametersTooLarge> {
    let size = |value: &ParameterValue| value.to_string().len();
    let bytes = provided.iter().map(|(key, entry)| key.len() + entry.said.value().map_or(0, size)).sum();
    if bytes > MAX_PARAMETERS { Err(ParametersTooLarge { bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ownership::{Manager, Said};

    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!(1), |inner, _| json!([inner]))
    }

    #[test]
    fn equality_is_that_of_canonical_json() {
        let value = |value| ParameterValue::new(value).unwrap();
        for (one, other, same) in [
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
            assert_eq!(value(one.clone()) == value(other.clone()), same, "{one} {other}");
        }
    }

    /// The integers are what canonical JSON prints (RFC 8785), which hosts are given.
    #[test]
    fn y04_a_whole_number_is_one_value_in_the_store_and_on_hosts() {
        for (written, integer) in [("1e2", "100"), ("-0", "0"), ("1e16", "10000000000000000"), ("[2.0]", "[2]")] {
            let raw = RawValue::from_string(written.to_owned()).unwrap();
            let read = ParameterValue::from_json(&raw).unwrap().unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), integer, "{written}");
            let stored: ParameterValue = serde_json::from_str(written).unwrap();
            assert_eq!(stored.to_string(), integer, "{written}, as an older program stored it");
        }
    }

    #[test]
    fn what_a_level_has_is_bounded_by_its_keys_and_values_together() {
        let of = |bytes: usize| {
            let value = ParameterValue::new(json!("v".repeat(bytes - "size".len() - "\"\"".len()))).unwrap();
            let intent = [(LabelKey::new("size").unwrap(), Said::Value(value))].into_iter().collect();
            check_parameters(&OwnedMap::default().update(&Manager::new("m").unwrap(), &intent))
        };
        assert_eq!(of(MAX_PARAMETERS), Ok(()));
        assert_eq!(of(MAX_PARAMETERS + 1), Err(ParametersTooLarge { bytes: MAX_PARAMETERS + 1 }));
        assert_eq!(of(MAX_PARAMETERS + 9), Err(ParametersTooLarge { bytes: MAX_PARAMETERS + 9 }));
    }

    #[test]
    fn depth_is_bounded() {
        assert!(ParameterValue::new(nested(16)).is_ok());
        let raw = RawValue::from_string("{\"a\": [9007199254740993]}".to_owned()).unwrap();
        let refused = ParameterValue::from_json(&raw).unwrap_err().to_string();
        assert!(refused.ends_with("than 9007199254740993: write it as text, in quotes"), "{refused}");
        assert!(serde_json::from_str::<ParameterValue>(raw.get()).is_ok(), "it is stored");
        assert_eq!(ParameterValue::new(nested(17)), Err(InvalidParameter::TooDeep));
        assert_eq!(ParameterValue::new(Value::Null), Err(InvalidParameter::Null));
    }
}
