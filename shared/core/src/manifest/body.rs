//! The top-level members of a body as its author sent them.
//!
//! Members stay JSON text until the reader of their field parses them. So a number in a label keeps the text that its
//! author sent, and an error can name its field.

use serde_json::value::RawValue;

use super::error::BodyError;
use super::reader::{check_depth, read_json};
use crate::json;
use crate::name::truncated;

/// Maximum number of fields in a body. No kind has as many.
const MAX_FIELDS: usize = 256;

/// The members of a JSON object, in order. Each name occurs once.
#[derive(Clone, Debug, Default)]
pub struct JsonBody {
    members: Vec<(String, Box<RawValue>)>,
}

impl JsonBody {
    /// Parses a JSON text.
    ///
    /// # Errors
    /// [`BodyError`] if it is not a JSON object, is nested deeper than [`super::MAX_DEPTH`], has too many members, or
    /// has a name twice.
    pub fn parse(json: &str) -> Result<Self, BodyError> {
        check_depth(json)?;
        let no_object = |why: String| BodyError::new("", format!("no JSON object: {why}"));
        let raw = serde_json::from_str(json).map_err(|why| no_object(why.to_string()))?;
        let fields = json::item_count(raw);
        if fields > MAX_FIELDS {
            let reason =
                format!("it has {fields} fields, and no kind has more than {MAX_FIELDS}: remove those that are not fields");
            return Err(BodyError::new("", reason));
        }
        let members = json::members(raw).map_err(|why| no_object(why.to_string()))?;
        for (at, (name, _)) in members.iter().enumerate() {
            if members[..at].iter().any(|(before, _)| before == name) {
                return Err(BodyError::new(truncated(name), "is there twice: keep one of them"));
            }
        }
        Ok(Self { members: members.into_iter().map(|(name, raw)| (name, raw.to_owned())).collect() })
    }

    /// Returns a member's JSON text.
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.members.iter().find(|(own, _)| own == name).map(|(_, raw)| &**raw)
    }

    /// Returns whether the body sets a field. `null` counts as left out.
    pub(super) fn has_value(&self, name: &str) -> bool {
        self.get(name).is_some_and(|raw| !is_null(raw))
    }

    /// Removes a member and returns its JSON text.
    pub fn remove(&mut self, name: &str) -> Option<Box<RawValue>> {
        let at = self.members.iter().position(|(own, _)| own == name)?;
        Some(self.members.remove(at).1)
    }

    /// Returns a body that has this member only.
    pub(super) fn with_only(&self, name: &str) -> Self {
        Self { members: self.members.iter().filter(|(own, _)| own == name).cloned().collect() }
    }

    /// Iterates over the members in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.members.iter().map(|(name, raw)| (name.as_str(), &**raw))
    }

    /// Returns a member that is a text, or `None` if it is `null` or absent.
    ///
    /// # Errors
    /// [`BodyError`] for any other type.
    pub fn text(&self, name: &str) -> Result<Option<String>, BodyError> {
        self.get(name).map_or(Ok(None), read_json::<Option<String>>).map_err(|error| error.prefixed(name))
    }
}

/// The names of the maps in an object's body whose values are texts.
pub const TEXT_MAPS: [&str; 2] = ["labels", "annotations"];

/// Quotes the numbers in an object's labels and annotations as they were written, so that parsing and writing the body
/// does not change them. A value that is not an object is returned unchanged.
pub fn with_label_texts(body: &RawValue) -> Box<RawValue> {
    json::rewrite_members(body, |name, raw| {
        if !TEXT_MAPS.contains(&name) {
            return raw.to_owned();
        }
        json::rewrite_members(raw, |_, value| json::number_to_string(value))
    })
}

/// Returns whether a member is `null`.
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
        let says = "it has 300000 fields, and no kind has more than 256: remove those that are not fields";
        assert_eq!(body(300_000).unwrap_err().to_string(), says);
    }

    #[test]
    fn y04_with_label_texts_keeps_text_of_any_number() {
        let body = |json: &str| with_label_texts(&RawValue::from_string(json.to_owned()).unwrap()).get().to_owned();
        for (sent, kept) in [
            (r#"{"b":1.10,"labels":{"a":1.10,"z":-0,"c":1e400}}"#, r#"{"b":1.10,"labels":{"a":"1.10","z":"-0","c":"1e400"}}"#),
            (
                r#"{"annotations": {"a\"b": 18446744073709551616, "c": true, "d": null, "e": "1.0", "f": [1.0]}}"#,
                r#"{"annotations":{"a\"b":"18446744073709551616","c":true,"d":null,"e":"1.0","f":[1.0]}}"#,
            ),
            (r#"{"extra":{"labels":{"a":1.10}},"labels":1.10}"#, r#"{"extra":{"labels":{"a":1.10}},"labels":1.10}"#),
            (r#"[{"labels":{"a":1.10}}]"#, r#"[{"labels":{"a":1.10}}]"#),
        ] {
            assert_eq!(body(sent), kept, "{sent}");
        }
    }

    #[test]
    fn body_keeps_member_text_and_rejects_duplicate_names() {
        let body = JsonBody::parse(r#"{"a": 1.10, "b": null}"#).unwrap();
        assert_eq!(body.get("a").unwrap().get(), "1.10");
        assert_eq!(body.text("b"), Ok(None));
        for (json, says) in [
            (r#"{"a": 1, "a": 2}"#, "a: is there twice: keep one of them"),
            ("[1]", "no JSON object: it is another value"),
            (&"[".repeat(25), "nested deeper than 24 levels"),
        ] {
            assert_eq!(JsonBody::parse(json).unwrap_err().to_string(), says);
        }
        assert_eq!(body.text("a").unwrap_err().to_string(), "a: must be a text, not the number 1.1: quote it");
    }
}
