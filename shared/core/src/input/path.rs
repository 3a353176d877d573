//! A path into a value: keys, from the outermost to the innermost.
//!
//! Keys are stored separately and not joined by dots, because a label's key contains dots.

use std::fmt;

use serde_json::{Map, Value};

/// Maximum number of keys in a path. It equals the maximum nesting depth of parameters.
pub const MAX_PATH_KEYS: usize = 16;

/// A path into a JSON value: one or more keys of nested objects, the outermost key first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Box<[Box<str>]>);

impl Path {
    /// Creates a path. Returns `None` if there are no keys or more than [`MAX_PATH_KEYS`].
    pub fn new<K: Into<Box<str>>>(keys: impl IntoIterator<Item = K>) -> Option<Self> {
        let keys: Box<[Box<str>]> = keys.into_iter().map(Into::into).collect();
        (1..=MAX_PATH_KEYS).contains(&keys.len()).then_some(Self(keys))
    }

    /// Returns the keys, the outermost first. There is at least one.
    pub fn keys(&self) -> &[Box<str>] {
        &self.0
    }

    /// Returns the outermost key. In a path into the parameters of a node, this is the key of the parameter. A level
    /// (template, cluster, node group or node) overrides a parameter as a whole.
    pub fn first(&self) -> &str {
        &self.0[0]
    }

    /// Returns whether this path equals `other` or lies within it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Returns the part of `value` at this path, or `None` if `value` has nothing at this path.
    pub fn get<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        get_at(&self.0, value)
    }

    /// Returns the value at this path. `first_value` is the value at the first key of the path.
    pub(crate) fn get_in_first<'a>(&self, first_value: &'a Value) -> Option<&'a Value> {
        get_at(&self.0[1..], first_value)
    }

    /// Returns each way to divide this path into an outer and an inner path. Both have at least one key. The pair with
    /// the longest outer path is first.
    pub(crate) fn splits(&self) -> impl Iterator<Item = (Self, Self)> + '_ {
        (1..self.0.len()).rev().map(|length| (Self(self.0[..length].into()), Self(self.0[length..].into())))
    }

    /// Inserts a value at this path into a map, and creates the missing maps on the path. If `value` is `None`, only
    /// the maps are created. Inserts nothing if the path leads through a value that is not a map.
    pub(super) fn insert_into(&self, value: Option<Value>, map: &mut Map<String, Value>) {
        let (last_key, parents) = self.0.split_last().expect("a path is never empty");
        let mut current = map;
        for key in parents {
            let child = current.entry(&**key).or_insert_with(|| Value::Object(Map::new()));
            match child {
                Value::Object(inner) => current = inner,
                _ => return,
            }
        }
        if let Some(value) = value {
            current.insert(last_key.to_string(), value);
        }
    }
}

/// Returns the value at these keys of nested objects, or `None` if a key is missing.
fn get_at<'a>(keys: &[Box<str>], value: &'a Value) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| value.as_object()?.get(&**key))
}

/// Writes the path as a template has it after a root such as `params` or `facts`, for example `.x['a/b']`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|key| write_key(f, key))
    }
}

/// Returns whether a key is an identifier, so that a template can have it after a dot.
pub(super) fn is_identifier(key: &str) -> bool {
    let mut bytes = key.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_') && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Writes a key of a path as in a template: `.x` for an identifier, `['a/b']` for any other key.
pub(super) fn write_key(out: &mut impl fmt::Write, key: &str) -> fmt::Result {
    if is_identifier(key) {
        return write!(out, ".{key}");
    }
    out.write_char('[')?;
    write_literal(out, key)?;
    out.write_char(']')
}

/// Writes a text in single quotes, with quotes and backslashes escaped.
pub(super) fn write_literal(out: &mut impl fmt::Write, text: &str) -> fmt::Result {
    out.write_char('\'')?;
    for character in text.chars() {
        if matches!(character, '\'' | '\\') {
            out.write_char('\\')?;
        }
        out.write_char(character)?;
    }
    out.write_char('\'')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A path finds a value in nested maps only, not in a list or a number. A path has at least one key, and at most
    /// [`MAX_PATH_KEYS`].
    #[test]
    fn path_descends_only_into_maps() {
        let value = json!({"a": {"b/c": 1, "list": [7], "none": null}});
        for (keys, expected) in [
            (vec!["a", "b/c"], Some(json!(1))),
            (vec!["a", "none"], Some(json!(null))),
            (vec!["a", "x"], None),
            (vec!["a", "list", "0"], None),
            (vec!["a", "b/c", "d"], None),
        ] {
            assert_eq!(Path::new(keys.clone()).unwrap().get(&value).cloned(), expected, "{keys:?}");
        }
        assert!(Path::new(Vec::<String>::new()).is_none());
        assert!(Path::new(vec!["k"; MAX_PATH_KEYS + 1]).is_none());
    }
}
