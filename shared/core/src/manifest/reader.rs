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

/// Reads a typed value from JSON. An error contains the path of the field within the value.
///
/// # Errors
/// [`BodyError`] for the first invalid field or number ([`json::parse_number`]), or if the depth exceeds [`MAX_DEPTH`].
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

/// Fails if lists and maps in a JSON text are nested deeper than [`MAX_DEPTH`]. The text need not be valid JSON,
/// because this check runs before any parsing.
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

/// The items of a list that are not read yet, with their indexes.
struct JsonItems<'de>(std::iter::Enumerate<std::vec::IntoIter<&'de RawValue>>);

/// The members of a map that are not read yet. `current_member` is the member whose key was read, but not yet its
/// value.
struct JsonMembers<'de> {
    unread: std::vec::IntoIter<(String, &'de RawValue)>,
    current_member: Option<(String, &'de RawValue)>,
}

impl<'de> JsonReader<'de> {
    /// Parses the outermost level of the value. Items of a list and members of a map remain JSON texts.
    fn token(&self) -> Result<JsonToken<'de>, BodyError> {
        let text = self.0.get();
        Ok(match text.as_bytes().first() {
            Some(b'n') => JsonToken::Null,
            Some(b't' | b'f') => JsonToken::Flag(text == "true"),
            Some(b'"') => JsonToken::Text(json::parse_string(text).map_err(BodyError::custom)?),
            Some(b'[') => JsonToken::List(JsonItems(json::items(self.0).into_iter().enumerate())),
            Some(b'{') => {
                let members = json::members(self.0).map_err(BodyError::custom)?;
                JsonToken::Map(JsonMembers { unread: members.into_iter(), current_member: None })
            }
            _ => {
                let number = json::parse_number(text).map_err(BodyError::custom)?;
                number.as_i128().map_or_else(|| JsonToken::Float(number.as_f64().unwrap_or_default()), JsonToken::Whole)
            }
        })
    }
}

impl<'de> JsonToken<'de> {
    /// Passes the value to the method of a serde visitor for its JSON type.
    fn visit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Flag(flag) => visitor.visit_bool(flag),
            Self::Whole(number) => match u64::try_from(number) {
                Ok(number) => visitor.visit_u64(number),
                Err(_) => visitor.visit_i64(i64::try_from(number).expect("a negative number has 64 bits")),
            },
            Self::Float(number) => visitor.visit_f64(number),
            Self::Text(text) => visitor.visit_string(text),
            Self::List(items) => visitor.visit_seq(items),
            Self::Map(members) => visitor.visit_map(members),
        }
    }

    /// Returns the error about a value that is not of the type `expected`, such as `a list`. If a text is expected, and
    /// the value is a number or boolean, the error advises quotes.
    fn type_error(&self, expected: &str) -> BodyError {
        let (description, is_unquoted) = match self {
            Self::Null => ("null".to_owned(), false),
            Self::Flag(flag) => (flag.to_string(), true),
            Self::Whole(number) => (format!("the number {number}"), true),
            Self::Float(number) => (format!("the number {number:?}"), true),
            Self::Text(text) => (format!("the text {:?}", truncated(text)), false),
            Self::List(_) => ("a list".to_owned(), false),
            Self::Map(_) => ("a map".to_owned(), false),
        };
        let advice = if is_unquoted && expected == TEXT_TYPE { ": quote it" } else { "" };
        BodyError::new("", format!("must be {expected}, not {description}{advice}"))
    }
}

/// The name of the text type in errors.
const TEXT_TYPE: &str = "a text";

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
        deserialize_str: JsonToken::Text(_), TEXT_TYPE;
        deserialize_string: JsonToken::Text(_), TEXT_TYPE;
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

    /// Reads a struct from a map. A list, which serde would accept as the fields in order, is refused.
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

    /// Reads an enum. A text is the name of a variant. A map with a single member is a variant with its value.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        match self.token()? {
            JsonToken::Text(variant) => visitor.visit_enum(variant.into_deserializer()),
            JsonToken::Map(members) if members.unread.len() == 1 => visitor.visit_enum(MapAccessDeserializer::new(members)),
            JsonToken::Map(members) => {
                let (count, names) = (members.unread.len(), variants.join(", "));
                Err(BodyError::new("", format!("must be one of {names}, not a map of {count} members")))
            }
            other => Err(other.type_error(TEXT_TYPE)),
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for JsonItems<'de> {
    type Error = BodyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, BodyError> {
        let read = |(index, raw)| seed.deserialize(JsonReader(raw)).map_err(|error| error.at_index(index));
        self.0.next().map(read).transpose()
    }
}

impl<'de> MapAccess<'de> for JsonMembers<'de> {
    type Error = BodyError;

    /// Reads the key of the next member, and stores the member until its value is read. An error contains the key as
    /// its path.
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, BodyError> {
        self.current_member = self.unread.next();
        let Some((name, _)) = &self.current_member else { return Ok(None) };
        let key = seed.deserialize(name.as_str().into_deserializer());
        key.map(Some).map_err(|error: BodyError| error.prefixed(&truncated(name)))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, BodyError> {
        let (name, raw) = self.current_member.take().expect("serde requests a value after its key");
        seed.deserialize(JsonReader(raw)).map_err(|error| error.prefixed(&name))
    }
}

impl Error for BodyError {
    fn custom<T: std::fmt::Display>(reason: T) -> Self {
        Self::new("", reason.to_string())
    }

    /// Converts serde's description of a value of the wrong type to an error in plain words. The message shows no items
    /// of a list or map, so the token of a list or map is empty. Any other unexpected value counts as a map.
    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let token = match unexpected {
            Unexpected::Bool(flag) => JsonToken::Flag(flag),
            Unexpected::Unsigned(number) => JsonToken::Whole(number.into()),
            Unexpected::Signed(number) => JsonToken::Whole(number.into()),
            Unexpected::Float(number) => JsonToken::Float(number),
            Unexpected::Str(text) => JsonToken::Text(text.to_owned()),
            Unexpected::Unit | Unexpected::Option => JsonToken::Null,
            Unexpected::Seq => JsonToken::List(JsonItems(Vec::new().into_iter().enumerate())),
            _ => JsonToken::Map(JsonMembers { unread: Vec::new().into_iter(), current_member: None }),
        };
        token.type_error(&expected.to_string())
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(unexpected, expected)
    }

    fn unknown_variant(variant: &str, variants: &'static [&'static str]) -> Self {
        let suggestion = did_you_mean(closest_match(variant, variants.iter().copied()));
        Self::new("", format!("must be one of {}, not the text {:?}{suggestion}", variants.join(", "), truncated(variant)))
    }

    fn unknown_field(name: &str, fields: &'static [&'static str]) -> Self {
        Self::with_kind(BodyErrorKind::UnknownField, "", unknown_field("here", name, fields))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::with_kind(BodyErrorKind::MissingField, name, "is missing")
    }

    fn duplicate_field(name: &'static str) -> Self {
        Self::new(name, "occurs twice: remove one of them")
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

    /// Returns the message of the error about a JSON text that is not a valid `T`.
    fn read_error<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        read_json::<T>(&RawValue::from_string(json.to_owned()).unwrap()).unwrap_err().to_string()
    }

    /// The message describes a value of the wrong type, a misspelled variant, and a missing or repeated field.
    #[test]
    fn read_json_error_describes_wrong_value() {
        for (message, expected) in [
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
            (read_error::<TestHold>(r#"{"until": "x", "level": "hihg"}"#), MISSPELLED_LEVEL_ERROR),
            (read_error::<TestHold>(r#"{"level": "low"}"#), "until: is missing"),
            (read_error::<TestHold>(r#"{"until": "a", "until": "b"}"#), "until: occurs twice: remove one of them"),
        ] {
            assert_eq!(message, expected);
        }
    }

    const MISSPELLED_LEVEL_ERROR: &str = "level: must be one of low, high, not the text \"hihg\" (did you mean \"high\"?)";

    #[test]
    fn read_json_error_has_path_and_kind() {
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
    fn reader_rejects_number_out_of_range() {
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
