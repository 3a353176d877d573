//! Parses a map of labels, annotations or parameters as its author writes it. Each key has a value, or `null`, which
//! means "not inherited here".

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::parameter::{InvalidParameter, ParameterValue};
use crate::json;
use crate::key::{AnnotationValue, InvalidValue, LabelValue, scalar_text};
use crate::name::truncated;
use crate::ownership::{Intent, ProvidedValue};

/// A type of the values in a map that an author sends: a label value, an annotation value or a parameter.
pub trait FromJson: Sized {
    /// The error for an invalid JSON value.
    type Error: fmt::Display;

    /// Parses a value as it was sent. Returns `None` for `null`.
    ///
    /// # Errors
    /// [`Self::Error`] if the JSON is not a valid value of this type.
    fn from_json(raw: &RawValue) -> Result<Option<Self>, Self::Error>;

    /// Returns the path of an error within the value, such as `.a[0]`. Empty if the error concerns the value as a
    /// whole.
    fn error_path(_error: &Self::Error) -> String {
        String::new()
    }
}

/// A map that was parsed from a JSON object: each key has a value, or a tombstone for `null`. Duplicate keys are
/// refused.
///
/// A number as a label or annotation keeps the text that was sent. This needs `serde_json`'s own deserializers (from
/// text, or from a [`serde_json::Value`]). Within flattened fields and internally tagged enums, parsing fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentJson<K, V>(
    /// The entries of the object.
    pub Intent<K, V>,
);

/// The error for an invalid entry of a map that an author sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEntry {
    /// The JSON is not an object, or has a key that is not valid Unicode.
    #[error("a map of keys and values is needed here, not {found}")]
    NotAMap {
        /// The JSON that was found, cut at 64 characters.
        found: String,
    },
    /// The key is invalid.
    #[error("{reason}")]
    Key {
        /// The reason.
        reason: String,
    },
    /// The value is invalid.
    #[error("{key}: {reason}")]
    Value {
        /// The key, followed by the path of the error within the value, as `p.a[1]`.
        key: String,
        /// The reason.
        reason: String,
    },
    /// The object has the key twice.
    #[error("key {key:?} occurs twice")]
    Duplicate {
        /// The key.
        key: String,
    },
}

impl InvalidEntry {
    /// Returns the path of the invalid field, such as `labels.a`. `map` is the name of the map. For an invalid key, the
    /// path is that of the map.
    pub fn field(&self, map: &str) -> String {
        match self {
            Self::Value { key, .. } | Self::Duplicate { key } => format!("{map}.{key}"),
            Self::NotAMap { .. } | Self::Key { .. } => map.to_owned(),
        }
    }

    /// Returns the reason, as a text that follows the name of the field in a message.
    pub fn reason(&self) -> String {
        match self {
            Self::Value { reason, .. } => reason.clone(),
            Self::Duplicate { .. } => "occurs twice: remove one of them".to_owned(),
            Self::NotAMap { .. } | Self::Key { .. } => self.to_string(),
        }
    }
}

impl FromJson for LabelValue {
    type Error = InvalidValue;
    fn from_json(raw: &RawValue) -> Result<Option<Self>, InvalidValue> {
        scalar_text(raw)?.map(|text| Self::new(&text)).transpose()
    }
}

impl FromJson for AnnotationValue {
    type Error = InvalidValue;
    fn from_json(raw: &RawValue) -> Result<Option<Self>, InvalidValue> {
        scalar_text(raw)?.map(|text| Self::new(&text)).transpose()
    }
}

impl FromJson for ParameterValue {
    type Error = InvalidParameter;
    fn from_json(raw: &RawValue) -> Result<Option<Self>, InvalidParameter> {
        Self::from_json(raw)
    }

    /// Returns the path of an integer that hosts would receive as another number. For other errors, the path is empty.
    fn error_path(error: &InvalidParameter) -> String {
        match error {
            InvalidParameter::Inexact { place, .. } => place.clone(),
            InvalidParameter::TooDeep | InvalidParameter::Null | InvalidParameter::Unreadable(_) => String::new(),
        }
    }
}

impl<K: Ord + FromStr<Err: fmt::Display>, V: FromJson> IntentJson<K, V> {
    /// Parses a JSON text. Returns `None` for `null`, which means that the author did not provide the map.
    ///
    /// # Errors
    /// [`InvalidEntry`] for the first invalid entry.
    pub fn from_json(raw: &RawValue) -> Result<Option<Self>, InvalidEntry> {
        match raw.get().as_bytes().first() {
            Some(b'n') => return Ok(None),
            Some(b'{') => {}
            _ => return Err(InvalidEntry::NotAMap { found: truncated(raw.get()) }),
        }
        let members = json::members(raw).map_err(|_| InvalidEntry::NotAMap { found: truncated(raw.get()) })?;
        let mut intent = Intent::new();
        for (key_text, raw) in members {
            let key: K = key_text.parse().map_err(|error: K::Err| InvalidEntry::Key { reason: error.to_string() })?;
            let invalid = |error: V::Error| {
                let (path, reason) = (V::error_path(&error), error.to_string());
                InvalidEntry::Value { key: format!("{key_text}{path}"), reason }
            };
            let value = V::from_json(raw).map_err(invalid)?;
            if intent.insert(key, ProvidedValue::from(value)).is_some() {
                return Err(InvalidEntry::Duplicate { key: truncated(&key_text) });
            }
        }
        Ok(Some(Self(intent)))
    }
}

/// Converts a map that was sent as a merge patch to changes by key. `null` was parsed as a tombstone, but in a merge
/// patch it means that the entry of this level is removed. The change of such a key is `None`.
pub fn to_merge_patch<K: Ord, V>(intent: Intent<K, V>) -> BTreeMap<K, Option<ProvidedValue<V>>> {
    intent.into_iter().map(|(key, value)| (key, if value.is_tombstone() { None } else { Some(value) })).collect()
}

impl<'de, K: Ord + FromStr<Err: fmt::Display>, V: FromJson> Deserialize<'de> for IntentJson<K, V> {
    /// Parses a map. `null` is refused, because the result cannot express that no map was provided.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let not_a_map = || D::Error::custom(InvalidEntry::NotAMap { found: truncated(raw.get()) });
        Self::from_json(&raw).map_err(D::Error::custom)?.ok_or_else(not_a_map)
    }
}

impl<K: Serialize, V: Serialize> Serialize for IntentJson<K, V> {
    /// Writes each key with its value, or with `null` for a tombstone.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value.value())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LabelKey;

    type LabelsJson = IntentJson<LabelKey, LabelValue>;

    fn read(text: &str) -> Result<Option<LabelsJson>, InvalidEntry> {
        let raw: Box<RawValue> = serde_json::from_str(text).unwrap();
        LabelsJson::from_json(&raw)
    }

    #[test]
    fn intent_json_keeps_map_as_sent() {
        let IntentJson(labels) = read(r#"{"a": 1.0, "b": null, "c": true, "d": ""}"#).unwrap().unwrap();
        let texts: Vec<_> =
            labels.iter().map(|(key, provided)| (key.as_str(), provided.value().map(LabelValue::as_str))).collect();
        assert_eq!(texts, [("a", Some("1.0")), ("b", None), ("c", Some("true")), ("d", Some(""))]);
        assert_eq!(read("null"), Ok(None));
        assert_eq!(read("{}").unwrap().unwrap().0.len(), 0);
    }

    #[test]
    fn labels_json_error_describes_invalid_entry() {
        for (sent, expected) in [
            ("[\"a\"]", "a map of keys and values is needed here, not [\"a\"]"),
            ("{\"a\": [1]}", "a: a label's value is text, a number, true, false or null, not a list"),
            ("{\"a\": \"1\", \"a\": \"2\"}", "key \"a\" occurs twice"),
            ("{\"a/b/c\": \"1\"}", "key \"a/b/c\" has more than one slash: write PREFIX/NAME or NAME"),
        ] {
            assert_eq!(read(sent).unwrap_err().to_string(), expected);
        }
    }

    /// The path of the error begins with the name of the map, which is `m` here.
    #[test]
    fn y05_invalid_entry_names_field_of_map() {
        type ParametersJson = IntentJson<LabelKey, ParameterValue>;
        let labels = |text: &str| read(text).unwrap_err();
        let parameters = |text: &str| {
            let raw: Box<RawValue> = serde_json::from_str(text).unwrap();
            ParametersJson::from_json(&raw).unwrap_err()
        };
        for (error, field) in [
            (labels(r#"{"b": "1", "a": [1]}"#), "m.a"),
            (labels(r#"{"a": "1", "a": "2"}"#), "m.a"),
            (labels(r#"["a"]"#), "m"),
            (labels(r#"{"a b": "1"}"#), "m"),
            (parameters(r#"{"p": 9007199254740993}"#), "m.p"),
            (parameters(r#"{"p": {"a": [0, 9007199254740993]}}"#), "m.p.a[1]"),
        ] {
            assert_eq!(error.field("m"), field, "{error}");
        }
    }

    #[test]
    fn intent_json_keeps_nulls_and_numbers_in_struct_field() {
        #[derive(Deserialize, Serialize)]
        struct ManifestBody {
            labels: Option<LabelsJson>,
        }
        let text = r#"{"labels":{"a":"1e+21","b":null}}"#;
        let body: ManifestBody = serde_json::from_str(r#"{"labels": {"a": 1e+21, "b": null}}"#).unwrap();
        assert_eq!(serde_json::to_string(&body).unwrap(), text);
        let body: ManifestBody = serde_json::from_value(serde_json::json!({"labels": {"a": 7}})).unwrap();
        assert_eq!(serde_json::to_string(&body).unwrap(), r#"{"labels":{"a":"7"}}"#);
    }
}
