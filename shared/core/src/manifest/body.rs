//! The top-level members of the body of a request, as its author sent them.
//!
//! A member remains JSON text until the function that reads its field parses the text. So a number in a label has the
//! text that its author sent, and an error can name its field.

use serde_json::value::RawValue;

use super::error::BodyError;
use super::reader::{check_depth, read_json};
use crate::json;
use crate::name::truncated;

/// Maximum number of fields in a body. No kind of object has this number of fields.
const MAX_FIELDS: usize = 256;

/// The body of a write: the members of a JSON object as text, in order. Each name occurs once.
#[derive(Clone, Debug, Default)]
pub struct JsonBody {
    members: Vec<(String, Box<RawValue>)>,
}

impl JsonBody {
    /// Parses a JSON text.
    ///
    /// # Errors
    /// [`BodyError`] if the text is not a JSON object, is nested deeper than [`super::MAX_DEPTH`], has more than 256
    /// members, or has a name twice.
    pub fn parse(json: &str) -> Result<Self, BodyError> {
        check_depth(json)?;
        let not_an_object = |error: String| BodyError::new("", format!("not a JSON object: {error}"));
        let raw = serde_json::from_str(json).map_err(|error| not_an_object(error.to_string()))?;
        let field_count = json::item_count(raw);
        if field_count > MAX_FIELDS {
            let reason =
                format!("it has {field_count} fields, and no kind has more than {MAX_FIELDS}: remove those that are not fields");
            return Err(BodyError::new("", reason));
        }
        let members = json::members(raw).map_err(|error| not_an_object(error.to_string()))?;
        for (index, (name, _)) in members.iter().enumerate() {
            if members[..index].iter().any(|(earlier_name, _)| earlier_name == name) {
                return Err(BodyError::new(truncated(name), "occurs twice: remove one of them"));
            }
        }
        Ok(Self { members: members.into_iter().map(|(name, raw)| (name, raw.to_owned())).collect() })
    }

    /// Returns the JSON text of the member with this name.
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.members.iter().find(|(member_name, _)| member_name == name).map(|(_, raw)| &**raw)
    }

    /// Returns whether the body has a value for a field. `null` is not a value.
    pub(super) fn has_value(&self, name: &str) -> bool {
        self.get(name).is_some_and(|raw| !is_null(raw))
    }

    /// Removes a member and returns its JSON text.
    pub fn remove(&mut self, name: &str) -> Option<Box<RawValue>> {
        let index = self.members.iter().position(|(member_name, _)| member_name == name)?;
        Some(self.members.remove(index).1)
    }

    /// Returns a copy of the body that has only the member with this name. Empty if the body lacks the member.
    pub(super) fn with_only(&self, name: &str) -> Self {
        Self { members: self.members.iter().filter(|(member_name, _)| member_name == name).cloned().collect() }
    }

    /// Returns the name and JSON text of each member, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.members.iter().map(|(name, raw)| (name.as_str(), &**raw))
    }

    /// Returns the text in a member, or `None` if the member is `null` or absent.
    ///
    /// # Errors
    /// [`BodyError`] if the member has another type.
    pub fn text(&self, name: &str) -> Result<Option<String>, BodyError> {
        self.get(name).map_or(Ok(None), read_json::<Option<String>>).map_err(|error| error.prefixed(name))
    }
}

/// The names of the maps of a body in which a number is read as a text, with the digits that its author wrote.
pub const TEXT_MAPS: [&str; 2] = ["labels", "annotations"];

/// Returns a body in which each number in `labels` and `annotations` is a text with the digits that its author wrote. A
/// later parser of the body would otherwise change `1.10` to `1.1`. A value that is not an object is returned
/// unchanged.
pub fn with_label_texts(body: &RawValue) -> Box<RawValue> {
    json::rewrite_members(body, |name, raw| {
        if !TEXT_MAPS.contains(&name) {
            return raw.to_owned();
        }
        json::rewrite_members(raw, |_, value| json::number_to_string(value))
    })
}

/// Returns whether a JSON value is `null`.
pub fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x03_f08_body_rejects_fields_beyond_maximum() {
        let body = |count: usize| {
            let fields: Vec<String> = (0..count).map(|n| format!("\"f{n}\": 1")).collect();
            JsonBody::parse(&format!("{{{}}}", fields.join(", "))).map(|body| body.iter().count())
        };
        assert_eq!(body(256), Ok(256));
        let expected = "it has 300000 fields, and no kind has more than 256: remove those that are not fields";
        assert_eq!(body(300_000).unwrap_err().to_string(), expected);
    }

    #[test]
    fn y04_with_label_texts_keeps_text_of_any_number() {
        let body = |json: &str| with_label_texts(&RawValue::from_string(json.to_owned()).unwrap()).get().to_owned();
        for (sent, expected) in [
            (r#"{"b":1.10,"labels":{"a":1.10,"z":-0,"c":1e400}}"#, r#"{"b":1.10,"labels":{"a":"1.10","z":"-0","c":"1e400"}}"#),
            (
                r#"{"annotations": {"a\"b": 18446744073709551616, "c": true, "d": null, "e": "1.0", "f": [1.0]}}"#,
                r#"{"annotations":{"a\"b":"18446744073709551616","c":true,"d":null,"e":"1.0","f":[1.0]}}"#,
            ),
            (r#"{"extra":{"labels":{"a":1.10}},"labels":1.10}"#, r#"{"extra":{"labels":{"a":1.10}},"labels":1.10}"#),
            (r#"[{"labels":{"a":1.10}}]"#, r#"[{"labels":{"a":1.10}}]"#),
        ] {
            assert_eq!(body(sent), expected, "{sent}");
        }
    }

    /// A body preserves the JSON text of its members. A duplicate name, JSON that is not an object, and too deep
    /// nesting are refused.
    #[test]
    fn body_keeps_member_text_and_rejects_invalid_json() {
        let body = JsonBody::parse(r#"{"a": 1.10, "b": null}"#).unwrap();
        assert_eq!(body.get("a").unwrap().get(), "1.10");
        assert_eq!(body.text("b"), Ok(None));
        for (json, expected) in [
            (r#"{"a": 1, "a": 2}"#, "a: occurs twice: remove one of them"),
            ("[1]", "not a JSON object: the value has another type"),
            (&"[".repeat(25), "nested deeper than 24 levels"),
        ] {
            assert_eq!(JsonBody::parse(json).unwrap_err().to_string(), expected);
        }
        assert_eq!(body.text("a").unwrap_err().to_string(), "a: must be a text, not the number 1.1: quote it");
    }
}
