//! The selector that matches every tag. Authors write the text `*`, and responses show that text. Hosts get a list with
//! one special item instead, and digests are computed from this list. In the field `role` of a dependency on tasks of
//! other nodes, the same text and the same list match every role.
//!
//! The selector is stored as a list of names, so that code that reads tags handles one form only. The single item of
//! the list is the pattern `/`. An author cannot write this pattern, because a request with a pattern that matches the
//! empty text is rejected. A release that an older version stored with this list is still read.

use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
use serde_json::{Value, json};

/// The special list of tags that matches every tag has this text as its only item.
pub(crate) const ANY_TAG: &str = "/";

/// The text that an author writes in place of a list of tags, to select every tag.
pub(crate) const ANY_TAG_INPUT: &str = "*";

/// The value of a tag selector in a request: a list of names, or the text `*`.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum TagsInput {
    Names(Vec<String>),
    Text(String),
}

/// Returns whether a list of tag names is the special list that matches every tag.
fn is_any_tag(names: &[String]) -> bool {
    *names == [ANY_TAG]
}

/// Serializes a list of tag names. The special list that matches every tag is serialized as the text `*`.
pub(super) fn serialize_names<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if is_any_tag(names) { serializer.serialize_str(ANY_TAG_INPUT) } else { names.serialize(serializer) }
}

/// Deserializes a tag selector: a list of names, or the text `*`, which gives the special list that matches every tag.
/// Returns `None` for `null`, and fails for any other text.
pub(super) fn deserialize_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    match Option::<TagsInput>::deserialize(deserializer)? {
        None => Ok(None),
        Some(TagsInput::Names(names)) => Ok(Some(names)),
        Some(TagsInput::Text(text)) if text == ANY_TAG_INPUT => Ok(Some(vec![ANY_TAG.to_owned()])),
        Some(TagsInput::Text(_)) => Err(serde::de::Error::custom("must be a list of names, or the text *")),
    }
}

/// The functions with which serde serializes and deserializes the field `tags` of a task.
pub(super) mod field {
    use super::{Deserializer, Serializer};

    /// Serializes the tags of a task: `null`, the text `*`, or a list of names.
    #[allow(clippy::ref_option, reason = "serde calls it with a reference")]
    pub(crate) fn serialize<S: Serializer>(names: &Option<Vec<String>>, serializer: S) -> Result<S::Ok, S::Error> {
        match names {
            None => serializer.serialize_none(),
            Some(names) => super::serialize_names(names, serializer),
        }
    }

    /// Deserializes the tags of a task: `null`, the text `*`, or a list of names.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
        super::deserialize_names(deserializer)
    }
}

/// Replaces each tag selector `*` in a task's JSON by the special list that matches every tag or role. Agents of every
/// version read this list, and stored digests were computed from it.
pub(super) fn replace_any_tag_texts(task: &mut Value) {
    let replace = |value: Option<&mut Value>| {
        if let Some(value) = value.filter(|value| **value == ANY_TAG_INPUT) {
            *value = json!([ANY_TAG]);
        }
    };
    replace(task.get_mut("tags"));
    for field in ["cross_depends", "cross_depended_by"] {
        for entry in task.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            replace(entry.get_mut("role"));
            replace(entry.get_mut("tags"));
        }
    }
}
