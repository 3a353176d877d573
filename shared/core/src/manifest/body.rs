//! A body's top-level members as they were sent, and what may be wrong with one.
//!
//! Members are kept as JSON text until the field that takes them reads them: a label's number keeps the text that
//! its author sent, and an error can name the field that it stands in.

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::name::cut;

/// The deepest nesting of a body.
pub const MAX_DEPTH: usize = 64;

/// What is wrong with a body, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct BodyError {
    /// The field, as `tasks[2].requires`; empty for the body as a whole.
    pub field: String,
    /// What is wrong and what to do.
    pub reason: String,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.field, self.reason) }
    }
}

impl BodyError {
    /// An error of a field.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    /// The same, seen from around: `outer` is put before the field.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        let field = match self.field.as_str() {
            "" => outer.to_owned(),
            inner if inner.starts_with('[') => format!("{outer}{inner}"),
            inner => format!("{outer}.{inner}"),
        };
        Self { field, reason: self.reason }
    }
}

/// The members of a JSON object, in order, each name once.
#[derive(Clone, Debug, Default)]
pub struct Body {
    members: Vec<(String, Box<RawValue>)>,
}

impl Body {
    /// Reads a JSON text.
    ///
    /// # Errors
    /// [`BodyError`] when it is no JSON object, is nested deeper than [`MAX_DEPTH`], or has a name twice.
    pub fn parse(json: &str) -> Result<Self, BodyError> {
        if nesting(json) > MAX_DEPTH {
            return Err(BodyError::new("", format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let Members(members) =
            serde_json::from_str(json).map_err(|why| BodyError::new("", format!("no JSON object: {why}")))?;
        for (at, (name, _)) in members.iter().enumerate() {
            if members[..at].iter().any(|(before, _)| before == name) {
                return Err(BodyError::new(cut(name), "stands there twice: keep one of them"));
            }
        }
        Ok(Self { members })
    }

    /// A member's JSON text.
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.members.iter().find(|(own, _)| own == name).map(|(_, raw)| &**raw)
    }

    /// Takes a member out.
    pub fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        let at = self.members.iter().position(|(own, _)| own == name)?;
        Some(self.members.remove(at).1)
    }

    /// The members in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.members.iter().map(|(name, raw)| (name.as_str(), &**raw))
    }

    /// A member that is text; `null` and absent are `None`.
    ///
    /// # Errors
    /// [`BodyError`] for anything else.
    pub fn text(&self, name: &str) -> Result<Option<String>, BodyError> {
        self.get(name).map_or(Ok(None), read::<Option<String>>).map_err(|error| error.within(name))
    }
}

/// Whether a member is `null`.
pub fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

/// Reads a value of a known form; the error names the place within it.
///
/// # Errors
/// [`BodyError`].
pub fn read<T: DeserializeOwned>(raw: &RawValue) -> Result<T, BodyError> {
    let mut text = serde_json::Deserializer::from_str(raw.get());
    serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let path = error.path().to_string();
        let reason = error.inner().to_string();
        let reason = reason.rsplit_once(" at line ").map_or(reason.as_str(), |(sentence, _)| sentence);
        let reason = unknown_member(reason).or_else(|| wrong_type(reason)).unwrap_or_else(|| reason.to_owned());
        BodyError::new(if path == "." { "" } else { &path }, reason)
    })
}

/// serde's sentence about an unknown member, in ours: what was meant stands first.
fn unknown_member(reason: &str) -> Option<String> {
    let (name, known) = reason.strip_prefix("unknown field `")?.split_once('`')?;
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    Some(no_field("here", name, &known))
}

/// serde's sentence about a value of another type, without Rust's names for types.
fn wrong_type(reason: &str) -> Option<String> {
    let told = reason.strip_prefix("invalid type: ").or_else(|| reason.strip_prefix("invalid value: "))?;
    let (found, expected) = told.rsplit_once(", expected ")?;
    let quoted = |text: &str| text.trim_matches('`').to_owned();
    let (found, is_bare) = match found.split_once(' ') {
        Some(("integer", number)) => (format!("the number {}", quoted(number)), true),
        Some(("floating", number)) => (format!("the number {}", quoted(number.trim_start_matches("point "))), true),
        Some(("boolean", flag)) => (quoted(flag), true),
        Some(("string", text)) => (format!("the text {text}"), false),
        _ => match found {
            "sequence" => ("a list".to_owned(), false),
            "unit value" => ("null".to_owned(), false),
            "map" => ("a map".to_owned(), false),
            other => (other.to_owned(), false),
        },
    };
    let wanted = match expected {
        "a string" | "string" if is_bare => "a text is meant: quote it",
        "a string" | "string" => "a text is meant",
        "u8" => "a whole number from 0 to 255 is meant",
        "u16" => "a whole number from 0 to 65535 is meant",
        "u32" => "a whole number from 0 to 4294967295 is meant",
        "u64" | "usize" => "a whole number from 0 on is meant",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number is meant",
        "f32" | "f64" => "a number is meant",
        "a boolean" => "true or false is meant",
        "a sequence" => "a list is meant",
        _ if expected.starts_with("struct ") => "a map of its fields is meant",
        other => return Some(format!("is {found}, and {other} is meant")),
    };
    Some(format!("is {found}, and {wanted}"))
}

/// The sentence about a field that is not there: what was meant, else those that are.
pub(super) fn no_field(place: &str, name: &str, known: &[&str]) -> String {
    match crate::name::near(name, known.iter().copied()) {
        Some(near) => format!("is no field {place} (did you mean {near:?}?): mend its spelling, or take it out"),
        None if known.is_empty() => format!("is no field {place}: take it out"),
        None => format!("is no field {place}: take it out, or take one of {}", known.join(", ")),
    }
}

/// How deep the text is nested, strings left out. Counted before anything is parsed.
fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_text, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of fields")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_text_and_stand_once() {
        let body = Body::parse(r#"{"a": 1.10, "b": null}"#).unwrap();
        assert_eq!(body.get("a").unwrap().get(), "1.10");
        assert_eq!(body.text("b"), Ok(None));
        for (json, says) in [
            (r#"{"a": 1, "a": 2}"#, "a: stands there twice: keep one of them"),
            ("[1]", "no JSON object: invalid type: sequence, expected an object of fields at line 1 column 0"),
            (&"[".repeat(70), "nested deeper than 64 levels"),
        ] {
            assert_eq!(Body::parse(json).unwrap_err().to_string(), says);
        }
        assert_eq!(body.text("a").unwrap_err().to_string(), "a: is the number 1.1, and a text is meant: quote it");
    }

    #[test]
    fn a_value_of_another_type_is_told_of_in_a_persons_words() {
        #[derive(Debug, serde::Deserialize)]
        struct Hold {
            #[expect(dead_code, reason = "what is read is of no matter here")]
            until: String,
        }
        fn says<T: DeserializeOwned + fmt::Debug>(json: &str) -> String {
            read::<T>(&RawValue::from_string(json.to_owned()).unwrap()).unwrap_err().to_string()
        }
        for (said, expected) in [
            (says::<Hold>("true"), "is true, and a map of its fields is meant"),
            (says::<u32>("-1"), "is the number -1, and a whole number from 0 to 4294967295 is meant"),
            (says::<u32>("\"a\""), "is the text \"a\", and a whole number from 0 to 4294967295 is meant"),
            (says::<i64>("{}"), "is a map, and a whole number is meant"),
            (says::<String>("123"), "is the number 123, and a text is meant: quote it"),
            (says::<Vec<String>>("[false]"), "[0]: is false, and a text is meant: quote it"),
            (says::<bool>("[]"), "is a list, and true or false is meant"),
            (says::<Vec<u8>>("null"), "is null, and a list is meant"),
        ] {
            assert_eq!(said, expected);
        }
    }
}
