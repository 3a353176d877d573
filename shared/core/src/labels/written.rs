//! A map as its author writes it: each key a value, or `null` for "not inherited here".

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::parameter::{InvalidParameter, ParameterValue};
use crate::json;
use crate::key::{AnnotationValue, InvalidValue, LabelValue, scalar_text};
use crate::name::cut;
use crate::ownership::{Intent, Said};

/// A value that can stand in such a map. `null` is `None`.
pub trait FromJson: Sized {
    /// Why a JSON value is none.
    type Error: fmt::Display;

    /// Reads it as it was sent.
    ///
    /// # Errors
    /// Where it is no value of this kind.
    fn from_json(raw: &RawValue) -> Result<Option<Self>, Self::Error>;

    /// Where within the value an error is, as `.a[0]`; empty for the value as a whole.
    fn place(_error: &Self::Error) -> String {
        String::new()
    }
}

/// A JSON object, read into an [`Intent`]. Doubled keys are refused.
///
/// The texts of numbers are kept as they were sent. That needs `serde_json`'s own deserializers (from text, or from a
/// [`serde_json::Value`]); within flattened fields and internally tagged enums serde can't hand them on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<K, V>(
    /// What was written.
    pub Intent<K, V>,
);

/// An entry that can't be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEntry {
    /// Something else than an object.
    #[error("a map of keys and values is needed here, not {found}")]
    NotAMap {
        /// The JSON that was found, cut at 64 characters.
        found: String,
    },
    /// A key that is none.
    #[error("{reason}")]
    Key {
        /// Why.
        reason: String,
    },
    /// A value that is none.
    #[error("{key}: {reason}")]
    Value {
        /// Its key, and where within the value it is wrong.
        key: String,
        /// Why.
        reason: String,
    },
    /// A key that stands there twice.
    #[error("key {key:?} stands there twice")]
    Twice {
        /// The key.
        key: String,
    },
}

impl InvalidEntry {
    /// The field that it is about, in the map of this name. A key that is none stands in no field.
    pub fn field(&self, map: &str) -> String {
        match self {
            Self::Value { key, .. } | Self::Twice { key } => format!("{map}.{key}"),
            Self::NotAMap { .. } | Self::Key { .. } => map.to_owned(),
        }
    }

    /// What is wrong, as a sentence that the field stands before.
    pub fn reason(&self) -> String {
        match self {
            Self::Value { reason, .. } => reason.clone(),
            Self::Twice { .. } => "stands there twice: keep one of them".to_owned(),
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

    fn place(error: &InvalidParameter) -> String {
        match error {
            InvalidParameter::Inexact { place, .. } => place.clone(),
            InvalidParameter::TooDeep | InvalidParameter::Null | InvalidParameter::Unreadable(_) => String::new(),
        }
    }
}

impl<K: Ord + FromStr<Err: fmt::Display>, V: FromJson> Written<K, V> {
    /// Reads a JSON text; `null` is `None`: not provided.
    ///
    /// # Errors
    /// [`InvalidEntry`], of the first entry that is wrong.
    pub fn from_json(raw: &RawValue) -> Result<Option<Self>, InvalidEntry> {
        match raw.get().as_bytes().first() {
            Some(b'n') => return Ok(None),
            Some(b'{') => {}
            _ => return Err(InvalidEntry::NotAMap { found: cut(raw.get()) }),
        }
        let members = json::members(raw).map_err(|_| InvalidEntry::NotAMap { found: cut(raw.get()) })?;
        let mut intent = Intent::new();
        for (text, raw) in members {
            let key: K = text.parse().map_err(|why: K::Err| InvalidEntry::Key { reason: why.to_string() })?;
            let wrong = |why: V::Error| {
                let (place, reason) = (V::place(&why), why.to_string());
                InvalidEntry::Value { key: format!("{text}{place}"), reason }
            };
            let said = V::from_json(raw).map_err(wrong)?;
            if intent.insert(key, Said::from(said)).is_some() {
                return Err(InvalidEntry::Twice { key: cut(&text) });
            }
        }
        Ok(Some(Self(intent)))
    }
}

/// What a merge patch means by the same map: `null` takes away what is provided here, value or tombstone.
pub fn removing<K: Ord, V>(written: Intent<K, V>) -> BTreeMap<K, Option<Said<V>>> {
    written.into_iter().map(|(key, said)| (key, if said.is_tombstone() { None } else { Some(said) })).collect()
}

impl<'de, K: Ord + FromStr<Err: fmt::Display>, V: FromJson> Deserialize<'de> for Written<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let no_map = || D::Error::custom(InvalidEntry::NotAMap { found: cut(raw.get()) });
        Self::from_json(&raw).map_err(D::Error::custom)?.ok_or_else(no_map)
    }
}

impl<K: Serialize, V: Serialize> Serialize for Written<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, said)| (key, said.value())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LabelKey;

    type Labels = Written<LabelKey, LabelValue>;

    fn read(text: &str) -> Result<Option<Labels>, InvalidEntry> {
        let raw: Box<RawValue> = serde_json::from_str(text).unwrap();
        Labels::from_json(&raw)
    }

    #[test]
    fn a_map_is_read_as_it_was_sent() {
        let Written(labels) = read(r#"{"a": 1.0, "b": null, "c": true, "d": ""}"#).unwrap().unwrap();
        let texts: Vec<_> =
            labels.iter().map(|(key, said)| (key.as_str(), said.value().map(LabelValue::as_str))).collect();
        assert_eq!(texts, [("a", Some("1.0")), ("b", None), ("c", Some("true")), ("d", Some(""))]);
        assert_eq!(read("null"), Ok(None));
        assert_eq!(read("{}").unwrap().unwrap().0.len(), 0);
    }

    #[test]
    fn an_error_says_where() {
        for (sent, says) in [
            ("[\"a\"]", "a map of keys and values is needed here, not [\"a\"]"),
            ("{\"a\": [1]}", "a: a label's value is text, a number, true, false or null, not a list"),
            ("{\"a\": \"1\", \"a\": \"2\"}", "key \"a\" stands there twice"),
            ("{\"a/b/c\": \"1\"}", "key \"a/b/c\" has more than one slash: write PREFIX/NAME or NAME"),
        ] {
            assert_eq!(read(sent).unwrap_err().to_string(), says);
        }
    }

    #[test]
    fn y05_an_error_names_the_field_that_it_is_about() {
        type Parameters = Written<LabelKey, ParameterValue>;
        let labels = |text: &str| read(text).unwrap_err();
        let parameters = |text: &str| {
            let raw: Box<RawValue> = serde_json::from_str(text).unwrap();
            Parameters::from_json(&raw).unwrap_err()
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
    fn a_field_of_a_body_keeps_its_nulls_and_numbers() {
        #[derive(Deserialize, Serialize)]
        struct Body {
            labels: Option<Labels>,
        }
        let text = r#"{"labels":{"a":"1e+21","b":null}}"#;
        let body: Body = serde_json::from_str(r#"{"labels": {"a": 1e+21, "b": null}}"#).unwrap();
        assert_eq!(serde_json::to_string(&body).unwrap(), text);
        let body: Body = serde_json::from_value(serde_json::json!({"labels": {"a": 7}})).unwrap();
        assert_eq!(serde_json::to_string(&body).unwrap(), r#"{"labels":{"a":"7"}}"#);
    }
}
