//! Every tag: the text `*`, which authors write and every answer shows, and what hosts and digests have in its place.
//!
//! A list of names is kept for it, so that code which reads tags reads one form. Its only item is a pattern that no author can write:
//! a body with it is refused, since an empty text must not mean everything. A release that was stored with that list is still read.

use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
use serde_json::{Value, json};

/// The only item of the list that means every tag.
pub(crate) const ANY: &str = "/";

/// What an author writes for it.
pub(crate) const STAR: &str = "*";

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Written {
    Names(Vec<String>),
    Text(String),
}

/// Whether these are the names that mean every tag.
fn is_any(names: &[String]) -> bool {
    *names == [ANY]
}

/// Writes names of tags.
pub(super) fn serialize_names<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if is_any(names) { serializer.serialize_str(STAR) } else { names.serialize(serializer) }
}

/// Reads names of tags, where there are any.
pub(super) fn deserialize_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    match Option::<Written>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Written::Names(names)) => Ok(Some(names)),
        Some(Written::Text(text)) if text == STAR => Ok(Some(vec![ANY.to_owned()])),
        Some(Written::Text(_)) => Err(serde::de::Error::custom("takes a list of names, or the text *")),
    }
}

/// The field `tags` of a task.
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

/// Puts the list in the place of the text in a task's JSON: agents of every version read it, and digests were taken of it.
pub(super) fn list_any(task: &mut Value) {
    let list = |value: Option<&mut Value>| {
        if let Some(value) = value.filter(|value| **value == STAR) {
            *value = json!([ANY]);
        }
    };
    list(task.get_mut("tags"));
    for field in ["cross_depends", "cross_depended_by"] {
        for entry in task.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            list(entry.get_mut("role"));
            list(entry.get_mut("tags"));
        }
    }
}
