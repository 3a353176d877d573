//! The selector of every tag. Authors write the text `*`, and responses show that text. Hosts and digests get a list
//! instead.
//!
//! The selector is stored as a list of names, so that code which reads tags handles one form only. The single item of
//! the list is a pattern that no author can write: a request with it is rejected, because it matches the empty text. A
//! release that was stored with this list by an older version is still read.

use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
use serde_json::{Value, json};

/// The single item of the list that matches every tag.
pub(crate) const ANY_TAG: &str = "/";

/// The text that authors write for every tag.
pub(crate) const ANY_TAG_TEXT: &str = "*";

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum TagsInput {
    Names(Vec<String>),
    Text(String),
}

/// Returns whether these names match every tag.
fn is_any_tag(names: &[String]) -> bool {
    *names == [ANY_TAG]
}

/// Serializes the names of a tag selector, as the text `*` if they match every tag.
pub(super) fn serialize_names<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if is_any_tag(names) { serializer.serialize_str(ANY_TAG_TEXT) } else { names.serialize(serializer) }
}

/// Deserializes the names of a tag selector: a list, or the text `*`. Returns `None` for `null`.
pub(super) fn deserialize_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    match Option::<TagsInput>::deserialize(deserializer)? {
        None => Ok(None),
        Some(TagsInput::Names(names)) => Ok(Some(names)),
        Some(TagsInput::Text(text)) if text == ANY_TAG_TEXT => Ok(Some(vec![ANY_TAG.to_owned()])),
        Some(TagsInput::Text(_)) => Err(serde::de::Error::custom("takes a list of names, or the text *")),
    }
}

/// Serialization of the field `tags` of a task.
pub(super) mod field {
    use super::{Deserializer, Serializer};

    #[allow(clippy::ref_option, reason = "serde calls it with a reference")]
    pub(crate) fn serialize<S: Serializer>(names: &Option<Vec<String>>, serializer: S) -> Result<S::Ok, S::Error> {
        match names {
            None => serializer.serialize_none(),
            Some(names) => super::serialize_names(names, serializer),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
        super::deserialize_names(deserializer)
    }
}

/// Replaces the text `*` in a task's JSON by the list, because agents of every version read the list, and stored
/// digests were computed from it.
pub(super) fn any_tag_to_list(task: &mut Value) {
    let replace = |value: Option<&mut Value>| {
        if let Some(value) = value.filter(|value| **value == ANY_TAG_TEXT) {
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
