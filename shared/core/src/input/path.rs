//! A path into a value: keys, the outermost first.
//!
//! Keys are kept apart and not joined by dots, since a label's key has dots of its own.

use std::fmt;

use serde_json::{Map, Value};

/// The most keys in a path: the depth that parameters may have.
pub const MAX_DEPTH: usize = 16;

/// One or more keys into a value. Built by [`Path::new`] or as part of a reference's text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Box<[Box<str>]>);

impl Path {
    /// A path of these keys; `None` for none at all or more than [`MAX_DEPTH`].
    pub fn new<K: Into<Box<str>>>(keys: impl IntoIterator<Item = K>) -> Option<Self> {
        let keys: Box<[Box<str>]> = keys.into_iter().map(Into::into).collect();
        (1..=MAX_DEPTH).contains(&keys.len()).then_some(Self(keys))
    }

    /// The keys, the outermost first; never empty.
    pub fn keys(&self) -> &[Box<str>] {
        &self.0
    }

    /// The outermost key: of a parameter, the one by which levels override each other.
    pub fn first(&self) -> &str {
        &self.0[0]
    }

    /// Whether this path is `other` or leads to something within it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// What stands at this path below `value`; `None` where it leads nowhere.
    pub fn walk<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        walk(&self.0, value)
    }

    /// What stands at the rest of this path below the value of its first key.
    pub(crate) fn walk_rest<'a>(&self, first: &'a Value) -> Option<&'a Value> {
        walk(&self.0[1..], first)
    }

    /// Each way to cut this path in two, the longest first part first.
    pub(crate) fn splits(&self) -> impl Iterator<Item = (Self, Self)> + '_ {
        (1..self.0.len()).rev().map(|at| (Self(self.0[..at].into()), Self(self.0[at..].into())))
    }

    /// Puts a value at this path of a map, making the maps on the way; without a value only those are made.
    pub(super) fn place(&self, value: Option<Value>, map: &mut Map<String, Value>) {
        let (last, way) = self.0.split_last().expect("a path is never empty");
        let mut here = map;
        for key in way {
            let next = here.entry(&**key).or_insert_with(|| Value::Object(Map::new()));
            match next {
                Value::Object(inner) => here = inner,
                _ => return,
            }
        }
        if let Some(value) = value {
            here.insert(last.to_string(), value);
        }
    }
}

fn walk<'a>(keys: &[Box<str>], value: &'a Value) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| value.as_object()?.get(&**key))
}

/// As in a template after the root: `.x['a/b']`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|key| write_key(f, key))
    }
}

/// Whether a key can stand after a dot.
pub(super) fn is_identifier(key: &str) -> bool {
    let mut bytes = key.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

pub(super) fn write_key(out: &mut impl fmt::Write, key: &str) -> fmt::Result {
    if is_identifier(key) {
        return write!(out, ".{key}");
    }
    out.write_char('[')?;
    write_literal(out, key)?;
    out.write_char(']')
}

pub(super) fn write_literal(out: &mut impl fmt::Write, text: &str) -> fmt::Result {
    out.write_char('\'')?;
    for c in text.chars() {
        if matches!(c, '\'' | '\\') {
            out.write_char('\\')?;
        }
        out.write_char(c)?;
    }
    out.write_char('\'')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_leads_through_maps_only() {
        let value = json!({"a": {"b/c": 1, "list": [7], "none": null}});
        for (keys, found) in [
            (vec!["a", "b/c"], Some(json!(1))),
            (vec!["a", "none"], Some(json!(null))),
            (vec!["a", "x"], None),
            (vec!["a", "list", "0"], None),
            (vec!["a", "b/c", "d"], None),
        ] {
            assert_eq!(Path::new(keys.clone()).unwrap().walk(&value).cloned(), found, "{keys:?}");
        }
        assert!(Path::new(Vec::<String>::new()).is_none());
        assert!(Path::new(vec!["k"; MAX_DEPTH + 1]).is_none());
    }
}
