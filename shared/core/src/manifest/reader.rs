//! Reads a typed value from JSON text. An error names the place within the value.
//!
//! The errors of `serde_json` are sentences about Rust's types, and the place and cause would have to be parsed from
//! them. This reader returns a [`BodyError`] instead: it compares the JSON with the requested type before the visitor
//! of that type receives the value.

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::{BodyError, BodyErrorKind, unknown_field};
use crate::json;
use crate::name::{closest_match, did_you_mean, truncated};

/// Maximum nesting of lists and maps in a body, wherever it is read: by the command, by the API, after a patch. The
/// deepest value that an author writes is a parameter (depth 16) in a task in a release in an apply.
pub const MAX_DEPTH: usize = 24;

/// Reads a typed value. The error names the place within it.
///
/// # Errors
/// [`BodyError`] for the first place that is wrong, also for a number that does not fit into 64 bits.
pub fn read_json<T: DeserializeOwned>(raw: &RawValue) -> Result<T, BodyError> {
    check_depth(raw.get())?;
    T::deserialize(JsonReader(raw))
}

/// Reads a typed value from parsed JSON.
///
/// # Errors
/// As [`read_json`].
pub fn read_value<T: DeserializeOwned>(value: &Value) -> Result<T, BodyError> {
    read_json(&RawValue::from_string(value.to_string()).expect("a value's text is JSON"))
}

/// Fails if a text is nested deeper than [`MAX_DEPTH`]. Runs before anything is parsed.
pub(super) fn check_depth(text: &str) -> Result<(), BodyError> {
    if json::nesting_depth(text) <= MAX_DEPTH {
        return Ok(());
    }
    Err(BodyError::new("", format!("nested deeper than {MAX_DEPTH} levels")))
}

/// A deserializer for a JSON text.
struct JsonReader<'de>(&'de RawValue);

/// A JSON value, parsed one level deep.
enum JsonToken<'de> {
    Null,
    Flag(bool),
    Whole(i128),
    Float(f64),
    Text(String),
    List(JsonItems<'de>),
    Map(JsonMembers<'de>),
}

struct JsonItems<'de>(std::iter::Enumerate<std::vec::IntoIter<&'de RawValue>>);

struct JsonMembers<'de> {
    rest: std::vec::IntoIter<(String, &'de RawValue)>,
    value: Option<(String, &'de RawValue)>,
}

impl<'de> JsonReader<'de> {
    /// Parses the outermost level of the value.
    fn token(&self) -> Result<JsonToken<'de>, BodyError> {
        let text = self.0.get();
        Ok(match text.as_bytes().first() {
            Some(b'n') => JsonToken::Null,
            Some(b't' | b'f') => JsonToken::Flag(text == "true"),
            Some(b'"') => JsonToken::Text(json::parse_string(text).map_err(BodyError::custom)?),
            Some(b'[') => JsonToken::List(JsonItems(json::items(self.0).into_iter().enumerate())),
            Some(b'{') => {
                let members = json::members(self.0).map_err(BodyError::custom)?;
                JsonToken::Map(JsonMembers { rest: members.into_iter(), value: None })
            }
            _ => {
                let number = json::parse_number(text).map_err(BodyError::custom)?;
                number.as_i128().map_or_else(|| JsonToken::Float(number.as_f64().unwrap_or_default()), JsonToken::Whole)
            }
        })
    }
}

impl<'de> JsonToken<'de> {
    /// Passes the value to a visitor of serde.
    fn visit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Flag(flag) => visitor.visit_bool(flag),
            Self::Whole(number) => match u64::try_from(number) {
                Ok(number) => visitor.visit_u64(number),
                Err(_) => visitor.visit_i64(i64::try_from(number).expect("a number of 64 bits below 0")),
            },
            Self::Float(number) => visitor.visit_f64(number),
            Self::Text(text) => visitor.visit_string(text),
            Self::List(items) => visitor.visit_seq(items),
            Self::Map(members) => visitor.visit_map(members),
        }
    }

    /// Returns the error for a value of another type than `wanted`.
    fn type_error(&self, wanted: &str) -> BodyError {
        let (found, is_bare) = match self {
            Self::Null => ("null".to_owned(), false),
            Self::Flag(flag) => (flag.to_string(), true),
            Self::Whole(number) => (format!("the number {number}"), true),
            Self::Float(number) => (format!("the number {number:?}"), true),
            Self::Text(text) => (format!("the text {:?}", truncated(text)), false),
            Self::List(_) => ("a list".to_owned(), false),
            Self::Map(_) => ("a map".to_owned(), false),
        };
        let advice = if is_bare && wanted == A_TEXT { ": quote it" } else { "" };
        BodyError::new("", format!("must be {wanted}, not {found}{advice}"))
    }
}

const A_TEXT: &str = "a text";

/// Generates one method per row: the JSON that it accepts, and the name of that type in errors.
macro_rules! deserialize_methods {
    ($($method:ident: $pattern:pat, $wanted:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
            match self.token()? {
                part @ $pattern => part.visit(visitor),
                other => Err(other.type_error($wanted)),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for JsonReader<'de> {
    type Error = BodyError;

    deserialize_methods! {
        deserialize_bool: JsonToken::Flag(_), "true or false";
        deserialize_u8: JsonToken::Whole(0..=0xFF), "a whole number from 0 to 255";
        deserialize_u16: JsonToken::Whole(0..=0xFFFF), "a whole number from 0 to 65535";
        deserialize_u32: JsonToken::Whole(0..=0xFFFF_FFFF), "a whole number from 0 to 4294967295";
        deserialize_u64: JsonToken::Whole(0..), "a whole number from 0 on";
        deserialize_i64: JsonToken::Whole(_), "a whole number";
        deserialize_f64: JsonToken::Whole(_) | JsonToken::Float(_), "a number";
        deserialize_str: JsonToken::Text(_), A_TEXT;
        deserialize_string: JsonToken::Text(_), A_TEXT;
        deserialize_seq: JsonToken::List(_), "a list";
        deserialize_map: JsonToken::Map(_), "a map";
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        self.token()?.visit(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        if self.0.get() == "null" { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, BodyError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        match self.token()? {
            part @ JsonToken::Map(_) => part.visit(visitor),
            other => Err(other.type_error("a map of its fields")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        match self.token()? {
            JsonToken::Text(variant) => visitor.visit_enum(variant.into_deserializer()),
            JsonToken::Map(members) if members.rest.len() == 1 => visitor.visit_enum(MapAccessDeserializer::new(members)),
            JsonToken::Map(members) => {
                let (count, one_of) = (members.rest.len(), variants.join(", "));
                Err(BodyError::new("", format!("must be one of {one_of}, not a map of {count} members")))
            }
            other => Err(other.type_error(A_TEXT)),
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for JsonItems<'de> {
    type Error = BodyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, BodyError> {
        let read = |(at, raw)| seed.deserialize(JsonReader(raw)).map_err(|error| error.at_index(at));
        self.0.next().map(read).transpose()
    }
}

impl<'de> MapAccess<'de> for JsonMembers<'de> {
    type Error = BodyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, BodyError> {
        self.value = self.rest.next();
        let Some((name, _)) = &self.value else { return Ok(None) };
        let key = seed.deserialize(name.as_str().into_deserializer());
        key.map(Some).map_err(|error: BodyError| error.prefixed(&truncated(name)))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, BodyError> {
        let (name, raw) = self.value.take().expect("a value is asked for after its key");
        seed.deserialize(JsonReader(raw)).map_err(|error| error.prefixed(&name))
    }
}

impl Error for BodyError {
    fn custom<T: std::fmt::Display>(reason: T) -> Self {
        Self::new("", reason.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        let part = match found {
            Unexpected::Bool(flag) => JsonToken::Flag(flag),
            Unexpected::Unsigned(number) => JsonToken::Whole(number.into()),
            Unexpected::Signed(number) => JsonToken::Whole(number.into()),
            Unexpected::Float(number) => JsonToken::Float(number),
            Unexpected::Str(text) => JsonToken::Text(text.to_owned()),
            Unexpected::Unit | Unexpected::Option => JsonToken::Null,
            Unexpected::Seq => JsonToken::List(JsonItems(Vec::new().into_iter().enumerate())),
            _ => JsonToken::Map(JsonMembers { rest: Vec::new().into_iter(), value: None }),
        };
        part.type_error(&wanted.to_string())
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::invalid_type(found, wanted)
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        let near = did_you_mean(closest_match(found, known.iter().copied()));
        Self::new("", format!("must be one of {}, not the text {:?}{near}", known.join(", "), truncated(found)))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::with_kind(BodyErrorKind::UnknownField, "", unknown_field("here", name, known))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::with_kind(BodyErrorKind::MissingField, name, "is missing")
    }

    fn duplicate_field(name: &'static str) -> Self {
        Self::new(name, "is there twice: keep one of them")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TestHold {
        until: String,
        #[serde(default)]
        level: Option<TestLevel>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum TestLevel {
        Low,
        High,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum TestChoice {
        Nodes(u32),
        Percent(u32),
    }

    fn read_error<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        read_json::<T>(&RawValue::from_string(json.to_owned()).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn reader_names_wrong_type_in_plain_words() {
        for (said, expected) in [
            (read_error::<TestHold>("true"), "must be a map of its fields, not true"),
            (read_error::<TestHold>(r#"["x", "low", 7]"#), "must be a map of its fields, not a list"),
            (read_error::<TestChoice>(r#"{"nodes": 1, "percent": 2}"#), "must be one of nodes, percent, not a map of 2 members"),
            (read_error::<TestChoice>("{}"), "must be one of nodes, percent, not a map of 0 members"),
            (read_error::<u32>("-1"), "must be a whole number from 0 to 4294967295, not the number -1"),
            (read_error::<u32>("\"a\""), "must be a whole number from 0 to 4294967295, not the text \"a\""),
            (read_error::<i64>("{}"), "must be a whole number, not a map"),
            (read_error::<String>("123"), "must be a text, not the number 123: quote it"),
            (read_error::<Vec<String>>("[false]"), "[0]: must be a text, not false: quote it"),
            (read_error::<bool>("[]"), "must be true or false, not a list"),
            (read_error::<Vec<u8>>("null"), "must be a list, not null"),
            (read_error::<Vec<String>>(r#"["\ud800"]"#), "[0]: has an escape that is not a valid character"),
            (read_error::<TestHold>(r#"{"until": "x", "level": "hihg"}"#), HIGH),
            (read_error::<TestHold>(r#"{"level": "low"}"#), "until: is missing"),
            (read_error::<TestHold>(r#"{"until": "a", "until": "b"}"#), "until: is there twice: keep one of them"),
        ] {
            assert_eq!(said, expected);
        }
    }

    const HIGH: &str = "level: must be one of low, high, not the text \"hihg\" (did you mean \"high\"?)";

    #[test]
    fn error_kind_is_separate_from_message() {
        for (json, field, kind) in [
            (r#"{"a": [{"until": "x", "untill": 1}]}"#, "a[0].untill", BodyErrorKind::UnknownField),
            (r#"{"a": [{"until": "x"}, {}]}"#, "a[1].until", BodyErrorKind::MissingField),
            (r#"{"a": [{"until": 7}]}"#, "a[0].until", BodyErrorKind::Value),
        ] {
            let raw = RawValue::from_string(json.to_owned()).unwrap();
            let error = read_json::<BTreeMap<String, Vec<TestHold>>>(&raw).unwrap_err();
            assert_eq!((error.field.as_str(), error.kind), (field, kind), "{json}");
        }
    }

    #[test]
    fn reader_rejects_number_when_not_exact() {
        let read = |json: &str| read_json::<Value>(&RawValue::from_string(json.to_owned()).unwrap());
        for text in [r#"{"a":[18446744073709551615,-9223372036854775808,1.5,-0.0],"b":{"c":null,"d":true}}"#, "[]"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        for (json, field) in [(r#"{"a": [1, 18446744073709551616]}"#, "a[1]"), (r#"{"b": {"c": 1e999}}"#, "b.c")] {
            let error = read(json).unwrap_err();
            assert_eq!(error.field, field);
            assert!(error.reason.starts_with("number out of range: "), "{error}");
        }
    }
}
