//! A body's top-level members as they were sent, and what may be wrong with one.
//!
//! Members are kept as JSON text until the field that takes them reads them: a label's number keeps the text that
//! its author sent, and an error can name the field that it stands in.

use serde_json::value::RawValue;

use super::error::BodyError;
use super::reader::{check_depth, read};
use crate::json;
use crate::name::cut;

/// The most fields of a body: more than any kind has.
const MAX_FIELDS: usize = 256;

/// The members of a JSON object, in order, each name once.
#[derive(Clone, Debug, Default)]
pub struct Body {
    members: Vec<(String, Box<RawValue>)>,
}

impl Body {
    /// Reads a JSON text.
    ///
    /// # Errors
    /// [`BodyError`] when it is no JSON object, is nested deeper than [`super::MAX_DEPTH`], or has a name twice.
    pub fn parse(json: &str) -> Result<Self, BodyError> {
        check_depth(json)?;
        let no_object = |why: String| BodyError::new("", format!("no JSON object: {why}"));
        let raw = serde_json::from_str(json).map_err(|why| no_object(why.to_string()))?;
        let fields = json::count(raw);
        if fields > MAX_FIELDS {
            let reason =
                format!("it has {fields} fields, and no kind has more than {MAX_FIELDS}: take out what is none");
            return Err(BodyError::new("", reason));
        }
        let members = json::members(raw).map_err(|why| no_object(why.to_string()))?;
        for (at, (name, _)) in members.iter().enumerate() {
            if members[..at].iter().any(|(before, _)| before == name) {
                return Err(BodyError::new(cut(name), "stands there twice: keep one of them"));
            }
        }
        Ok(Self { members: members.into_iter().map(|(name, raw)| (name, raw.to_owned())).collect() })
    }

    /// A member's JSON text.
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.members.iter().find(|(own, _)| own == name).map(|(_, raw)| &**raw)
    }

    /// Whether it says something of a name; `null` is left out.
    pub(super) fn says(&self, name: &str) -> bool {
        self.get(name).is_some_and(|raw| !is_null(raw))
    }

    /// Takes a member out.
    pub fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        let at = self.members.iter().position(|(own, _)| own == name)?;
        Some(self.members.remove(at).1)
    }

    /// A body of one of its members alone.
    pub(super) fn only(&self, name: &str) -> Self {
        Self { members: self.members.iter().filter(|(own, _)| own == name).cloned().collect() }
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

/// The maps of texts that an object has itself.
pub const TEXT_MAPS: [&str; 2] = ["labels", "annotations"];

/// An object's body, to be read as a value and written again: the numbers of its labels and annotations stand there as texts, as they were
/// written. What is no object stays as it is.
pub fn with_label_texts(body: &RawValue) -> Box<RawValue> {
    json::rewrite_members(body, |name, raw| {
        if !TEXT_MAPS.contains(&name) {
            return raw.to_owned();
        }
        json::rewrite_members(raw, |_, value| json::quoted_number(value))
    })
}

/// Whether a member is `null`.
pub fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x03_f08_a_body_of_more_fields_than_any_kind_has_is_refused_unread() {
        let body = |count: usize| {
            let fields: Vec<String> = (0..count).map(|n| format!("\"f{n}\": 1")).collect();
            Body::parse(&format!("{{{}}}", fields.join(", "))).map(|body| body.iter().count())
        };
        assert_eq!(body(256), Ok(256));
        let says = "it has 300000 fields, and no kind has more than 256: take out what is none";
        assert_eq!(body(300_000).unwrap_err().to_string(), says);
    }

    #[test]
    fn y04_labels_and_annotations_keep_the_text_of_any_number() {
        let body = |json: &str| with_label_texts(&RawValue::from_string(json.to_owned()).unwrap()).get().to_owned();
        for (sent, kept) in [
            (
                r#"{"b":1.10,"labels":{"a":1.10,"z":-0,"c":1e400}}"#,
                r#"{"b":1.10,"labels":{"a":"1.10","z":"-0","c":"1e400"}}"#,
            ),
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
    fn members_keep_their_text_and_stand_once() {
        let body = Body::parse(r#"{"a": 1.10, "b": null}"#).unwrap();
        assert_eq!(body.get("a").unwrap().get(), "1.10");
        assert_eq!(body.text("b"), Ok(None));
        for (json, says) in [
            (r#"{"a": 1, "a": 2}"#, "a: stands there twice: keep one of them"),
            ("[1]", "no JSON object: it is another value"),
            (&"[".repeat(25), "nested deeper than 24 levels"),
        ] {
            assert_eq!(Body::parse(json).unwrap_err().to_string(), says);
        }
        assert_eq!(body.text("a").unwrap_err().to_string(), "a: is the number 1.1, and a text is meant: quote it");
    }
}
