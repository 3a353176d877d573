//! Reads a typed value from JSON text, with errors that name the place within it.
//!
//! `serde_json`'s own errors are sentences about Rust's types, which would have to be taken apart to say where and what
//! is wrong. Here the error is a [`BodyError`] from the start: each form that a type asks for is compared with what is
//! there before the type sees it.

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::{BodyError, BodyErrorKind, no_field};
use crate::json;
use crate::name::{cut, near, suggest};

/// How deep lists and maps of a body may stand in each other, wherever it is read: by the command, by the API, after a patch. The deepest
/// thing that an author writes is a parameter (depth 16) in a task in a release in an apply.
pub const MAX_DEPTH: usize = 24;

/// Reads a value of a known form. The error names the place within it.
///
/// # Errors
/// [`BodyError`], of the first place that is wrong; also for a number that does not fit into 64 bits.
pub fn read<T: DeserializeOwned>(raw: &RawValue) -> Result<T, BodyError> {
    check_depth(raw.get())?;
    T::deserialize(Reader(raw))
}

/// The same, of a value that is parsed already.
///
/// # Errors
/// As [`read`].
pub fn read_value<T: DeserializeOwned>(value: &Value) -> Result<T, BodyError> {
    read(&RawValue::from_string(value.to_string()).expect("a value's text is JSON"))
}

/// Checks that a text is nested at most [`MAX_DEPTH`] deep, before anything is parsed.
pub(super) fn check_depth(text: &str) -> Result<(), BodyError> {
    if json::nesting(text) <= MAX_DEPTH {
        return Ok(());
    }
    Err(BodyError::new("", format!("nested deeper than {MAX_DEPTH} levels")))
}

struct Reader<'de>(&'de RawValue);

/// What a JSON text holds, one level deep.
enum Part<'de> {
    Null,
    Flag(bool),
    Whole(i128),
    Float(f64),
    Text(String),
    List(Items<'de>),
    Map(Members<'de>),
}

struct Items<'de>(std::iter::Enumerate<std::vec::IntoIter<&'de RawValue>>);

struct Members<'de> {
    left: std::vec::IntoIter<(String, &'de RawValue)>,
    value: Option<(String, &'de RawValue)>,
}

impl<'de> Reader<'de> {
    fn part(&self) -> Result<Part<'de>, BodyError> {
        let text = self.0.get();
        Ok(match text.as_bytes().first() {
            Some(b'n') => Part::Null,
            Some(b't' | b'f') => Part::Flag(text == "true"),
            Some(b'"') => Part::Text(json::text(text).map_err(BodyError::custom)?),
            Some(b'[') => Part::List(Items(json::items(self.0).into_iter().enumerate())),
            Some(b'{') => {
                let members = json::members(self.0).map_err(BodyError::custom)?;
                Part::Map(Members { left: members.into_iter(), value: None })
            }
            _ => {
                let number = json::number(text).map_err(BodyError::custom)?;
                number.as_i128().map_or_else(|| Part::Float(number.as_f64().unwrap_or_default()), Part::Whole)
            }
        })
    }
}

impl<'de> Part<'de> {
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

    fn is_not(&self, wanted: &str) -> BodyError {
        let (found, is_bare) = match self {
            Self::Null => ("null".to_owned(), false),
            Self::Flag(flag) => (flag.to_string(), true),
            Self::Whole(number) => (format!("the number {number}"), true),
            Self::Float(number) => (format!("the number {number:?}"), true),
            Self::Text(text) => (format!("the text {:?}", cut(text)), false),
            Self::List(_) => ("a list".to_owned(), false),
            Self::Map(_) => ("a map".to_owned(), false),
        };
        let advice = if is_bare && wanted == TEXT { ": quote it" } else { "" };
        BodyError::new("", format!("is {found}, and {wanted} is meant{advice}"))
    }
}

const TEXT: &str = "a text";

/// One method for each form: what may be there, and what it is called.
macro_rules! forms {
    ($($method:ident: $pattern:pat, $wanted:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
            match self.part()? {
                part @ $pattern => part.visit(visitor),
                other => Err(other.is_not($wanted)),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = BodyError;

    forms! {
        deserialize_bool: Part::Flag(_), "true or false";
        deserialize_u8: Part::Whole(0..=0xFF), "a whole number from 0 to 255";
        deserialize_u16: Part::Whole(0..=0xFFFF), "a whole number from 0 to 65535";
        deserialize_u32: Part::Whole(0..=0xFFFF_FFFF), "a whole number from 0 to 4294967295";
        deserialize_u64: Part::Whole(0..), "a whole number from 0 on";
        deserialize_i64: Part::Whole(_), "a whole number";
        deserialize_f64: Part::Whole(_) | Part::Float(_), "a number";
        deserialize_str: Part::Text(_), TEXT;
        deserialize_string: Part::Text(_), TEXT;
        deserialize_seq: Part::List(_), "a list";
        deserialize_map: Part::Map(_), "a map";
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        self.part()?.visit(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        if self.0.get() == "null" { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        match self.part()? {
            part @ Part::Map(_) => part.visit(visitor),
            other => Err(other.is_not("a map of its fields")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        match self.part()? {
            Part::Text(variant) => visitor.visit_enum(variant.into_deserializer()),
            Part::Map(members) if members.left.len() == 1 => visitor.visit_enum(MapAccessDeserializer::new(members)),
            Part::Map(members) => {
                let (count, one_of) = (members.left.len(), variants.join(", "));
                Err(BodyError::new("", format!("is a map of {count} members, and one of {one_of} is meant")))
            }
            other => Err(other.is_not(TEXT)),
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = BodyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, BodyError> {
        let read = |(at, raw)| seed.deserialize(Reader(raw)).map_err(|error| error.at(at));
        self.0.next().map(read).transpose()
    }
}

impl<'de> MapAccess<'de> for Members<'de> {
    type Error = BodyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, BodyError> {
        self.value = self.left.next();
        let Some((name, _)) = &self.value else { return Ok(None) };
        let key = seed.deserialize(name.as_str().into_deserializer());
        key.map(Some).map_err(|error: BodyError| error.within(&cut(name)))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, BodyError> {
        let (name, raw) = self.value.take().expect("a value is asked for after its key");
        seed.deserialize(Reader(raw)).map_err(|error| error.within(&name))
    }
}

impl Error for BodyError {
    fn custom<T: std::fmt::Display>(reason: T) -> Self {
        Self::new("", reason.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        let part = match found {
            Unexpected::Bool(flag) => Part::Flag(flag),
            Unexpected::Unsigned(number) => Part::Whole(number.into()),
            Unexpected::Signed(number) => Part::Whole(number.into()),
            Unexpected::Float(number) => Part::Float(number),
            Unexpected::Str(text) => Part::Text(text.to_owned()),
            Unexpected::Unit | Unexpected::Option => Part::Null,
            Unexpected::Seq => Part::List(Items(Vec::new().into_iter().enumerate())),
            _ => Part::Map(Members { left: Vec::new().into_iter(), value: None }),
        };
        part.is_not(&wanted.to_string())
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::invalid_type(found, wanted)
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        let near = suggest(near(found, known.iter().copied()));
        Self::new("", format!("is the text {:?}, and one of {} is meant{near}", cut(found), known.join(", ")))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::of(BodyErrorKind::UnknownField, "", no_field("here", name, known))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::of(BodyErrorKind::MissingField, name, "is missing")
    }

    fn duplicate_field(name: &'static str) -> Self {
        Self::new(name, "stands there twice: keep one of them")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Hold {
        until: String,
        #[serde(default)]
        level: Option<Level>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Level {
        Low,
        High,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Choice {
        Nodes(u32),
        Percent(u32),
    }

    fn says<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        read::<T>(&RawValue::from_string(json.to_owned()).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn a_value_of_another_type_is_told_of_in_a_persons_words() {
        for (said, expected) in [
            (says::<Hold>("true"), "is true, and a map of its fields is meant"),
            (says::<Hold>(r#"["x", "low", 7]"#), "is a list, and a map of its fields is meant"),
            (
                says::<Choice>(r#"{"nodes": 1, "percent": 2}"#),
                "is a map of 2 members, and one of nodes, percent is meant",
            ),
            (says::<Choice>("{}"), "is a map of 0 members, and one of nodes, percent is meant"),
            (says::<u32>("-1"), "is the number -1, and a whole number from 0 to 4294967295 is meant"),
            (says::<u32>("\"a\""), "is the text \"a\", and a whole number from 0 to 4294967295 is meant"),
            (says::<i64>("{}"), "is a map, and a whole number is meant"),
            (says::<String>("123"), "is the number 123, and a text is meant: quote it"),
            (says::<Vec<String>>("[false]"), "[0]: is false, and a text is meant: quote it"),
            (says::<bool>("[]"), "is a list, and true or false is meant"),
            (says::<Vec<u8>>("null"), "is null, and a list is meant"),
            (says::<Vec<String>>(r#"["\ud800"]"#), "[0]: has an escape that stands for no character"),
            (says::<Hold>(r#"{"until": "x", "level": "hihg"}"#), HIGH),
            (says::<Hold>(r#"{"level": "low"}"#), "until: is missing"),
            (says::<Hold>(r#"{"until": "a", "until": "b"}"#), "until: stands there twice: keep one of them"),
        ] {
            assert_eq!(said, expected);
        }
    }

    const HIGH: &str = "level: is the text \"hihg\", and one of low, high is meant (did you mean \"high\"?)";

    #[test]
    fn the_kind_of_an_error_is_told_apart_from_its_sentence() {
        for (json, field, kind) in [
            (r#"{"a": [{"until": "x", "untill": 1}]}"#, "a[0].untill", BodyErrorKind::UnknownField),
            (r#"{"a": [{"until": "x"}, {}]}"#, "a[1].until", BodyErrorKind::MissingField),
            (r#"{"a": [{"until": 7}]}"#, "a[0].until", BodyErrorKind::Value),
        ] {
            let raw = RawValue::from_string(json.to_owned()).unwrap();
            let error = read::<BTreeMap<String, Vec<Hold>>>(&raw).unwrap_err();
            assert_eq!((error.field.as_str(), error.kind), (field, kind), "{json}");
        }
    }

    #[test]
    fn no_number_is_rounded() {
        let read = |json: &str| read::<Value>(&RawValue::from_string(json.to_owned()).unwrap());
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
