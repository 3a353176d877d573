//! JSON patches (RFC 6902), with the rules of Ironic's and Magnum's clients where those are stricter.
//!
//! Labels are not part of the document that a patch edits: they have owners, so an operation on a label is an
//! update by its caller. So what was sent is first written out ([`SentPatch::written_out`]) as what it comes to in
//! additions, removals and replacements. [`Patch::split`] takes those of labels out, and the rest edits the object's other fields.

mod python;
mod sent;

use serde_json::{Map, Value};
use stemma_core::manifest::MAX_DEPTH;

use crate::api::http::json::unescaped;

pub(crate) use python::map_from_text;
pub(crate) use sent::SentPatch;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Sets a member, or inserts into a list.
    Add,
    /// Takes a member away that is there.
    Remove,
    /// Sets a member that is there.
    Replace,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// What it does.
    pub verb: Verb,
    /// The members on the way, unescaped, at least one.
    pub path: Vec<String>,
    /// What is set; `None` for a removal.
    pub value: Option<Value>,
}

/// A patch that cannot be read, or does not fit the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPatch {
    /// It has another form.
    #[error(
        "a JSON patch is a list of {{\"op\": \"add\"|\"remove\"|\"replace\"|\"test\", \"path\": \"/…\", \"value\": …}} and of {{\"op\": \"copy\"|\"move\", \"from\": \"/…\", \"path\": \"/…\"}}; {what}"
    )]
    Malformed {
        /// What is wrong.
        what: String,
    },
    /// It names what is not there.
    #[error("the patch does not fit the object: there is no {path}, so it can't be {done}")]
    Missing {
        /// The path, as it was sent.
        path: String,
        /// What cannot be done to it: `removed`, `replaced`, …
        done: &'static str,
    },
    /// A test that does not hold.
    #[error("{path} is {found} and not {expected}, as the patch's test asks")]
    Differs {
        /// The path, as it was sent.
        path: String,
        /// The beginning of the value that is there.
        found: String,
        /// That of the one that was sent.
        expected: String,
    },
    /// Copies make more of the object than a body may hold.
    #[error("the patch copies more than {} bytes", sent::MOST_COPIED)]
    TooLarge,
    /// A value would be nested too deep.
    #[error("{path} would be nested deeper than the {MAX_DEPTH} levels that an object may have")]
    TooDeep {
        /// The path, as it was sent.
        path: String,
    },
    /// A value would be moved into itself.
    #[error("{from} can't be moved to {path}, which is within it")]
    IntoItself {
        /// Whence.
        from: String,
        /// Where to.
        path: String,
    },
    /// What names the object for good.
    #[error("{path} never changes: an object keeps it for as long as it is there; make another object in its place")]
    Fixed {
        /// The path, as it was sent.
        path: String,
    },
    /// An attribute that is set cannot be added (as Magnum).
    #[error("{path} is set already; use \"replace\" in place of \"add\"")]
    Existing {
        /// The path, as it was sent.
        path: String,
    },
    /// The path leads through something that has no members.
    #[error("the patch does not fit the object: {path} leads through a value that has no such member")]
    NoContainer {
        /// The path, as it was sent.
        path: String,
    },
}

impl BadPatch {
    /// The field that it is about, as other refusals name it; none where it is about the patch itself.
    pub(crate) fn field(&self) -> Option<String> {
        let path = match self {
            Self::Missing { path, .. }
            | Self::Differs { path, .. }
            | Self::TooDeep { path }
            | Self::IntoItself { path, .. }
            | Self::Fixed { path }
            | Self::Existing { path }
            | Self::NoContainer { path } => path.strip_prefix('/')?,
            Self::Malformed { .. } | Self::TooLarge => return None,
        };
        let members: Vec<String> = path.split('/').map(unescaped).collect();
        Some(members.join("."))
    }
}

impl Operation {
    /// The path as text.
    pub(crate) fn pointer(&self) -> String {
        pointer(&self.path)
    }

    fn apply(&self, document: &mut Value) -> Result<(), BadPatch> {
        if self.path.first().is_some_and(|root| root == "uuid") {
            return Err(BadPatch::Fixed { path: self.pointer() });
        }
        if self.path.len() + self.value.as_ref().map_or(0, depth) > MAX_DEPTH {
            return Err(BadPatch::TooDeep { path: self.pointer() });
        }
        let (last, way) = self.path.split_last().expect("a pointer has at least one member");
        if let Some(root) = way.first().filter(|_| self.verb == Verb::Add) {
            // Ironic and Magnum let a first member be added to a map that was never set.
            let root = &mut document[root.as_str()];
            if root.is_null() {
                *root = Value::Object(Map::new());
            }
        }
        match document.pointer_mut(&pointer(way)).ok_or_else(|| self.missing())? {
            Value::Object(object) => self.on_object(object, last),
            Value::Array(list) => self.on_list(list, last),
            _ => Err(BadPatch::NoContainer { path: self.pointer() }),
        }
    }

    fn on_object(&self, object: &mut Map<String, Value>, key: &str) -> Result<(), BadPatch> {
        if self.verb != Verb::Add && !object.contains_key(key) {
            return Err(self.missing());
        }
        match &self.value {
            Some(value) => object.insert(key.to_owned(), value.clone()),
            None => object.remove(key),
        };
        Ok(())
    }

    fn on_list(&self, list: &mut Vec<Value>, key: &str) -> Result<(), BadPatch> {
        let index = if key == "-" { Some(list.len()) } else { read_index(key) };
        let end = if self.verb == Verb::Add { list.len() + 1 } else { list.len() };
        let index = index.filter(|index| *index < end).ok_or_else(|| self.missing())?;
        match (self.verb, &self.value) {
            (Verb::Add, Some(value)) => list.insert(index, value.clone()),
            (Verb::Replace, Some(value)) => list[index] = value.clone(),
            _ => drop(list.remove(index)),
        }
        Ok(())
    }

    fn missing(&self) -> BadPatch {
        let done = if self.verb == Verb::Remove { "removed" } else { "replaced" };
        BadPatch::Missing { path: self.pointer(), done }
    }
}

/// A list of operations, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Patch(pub Vec<Operation>);

impl Patch {
    /// Takes out the operations on one root attribute.
    pub(crate) fn split(&mut self, root: &str) -> Vec<Operation> {
        let (taken, kept) = std::mem::take(&mut self.0).into_iter().partition(|o| o.path[0] == root);
        self.0 = kept;
        taken
    }

    /// The document that a patch makes of this one.
    ///
    /// # Errors
    /// [`BadPatch`], of the first operation that does not fit.
    pub(crate) fn apply(&self, document: Map<String, Value>) -> Result<Map<String, Value>, BadPatch> {
        let mut document = Value::Object(document);
        self.0.iter().try_for_each(|operation| operation.apply(&mut document))?;
        Ok(std::mem::take(document.as_object_mut().expect("an operation changes members of the document")))
    }
}

/// A place in a list: digits without a zero before them (RFC 6901).
fn read_index(key: &str) -> Option<usize> {
    let is_index = key == "0" || !key.starts_with('0') && key.bytes().all(|byte| byte.is_ascii_digit());
    if is_index { key.parse().ok() } else { None }
}

/// How many lists and objects stand within each other in a value.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// The text of a JSON pointer (RFC 6901).
fn pointer(path: &[String]) -> String {
    let escaped = path.iter().map(|part| part.replace('~', "~0").replace('/', "~1"));
    escaped.fold(String::new(), |text, part| text + "/" + &part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(document: &Value, patch: Value) -> Result<Value, BadPatch> {
        let document = document.as_object().unwrap();
        SentPatch::read(patch)?.written_out(|| document.clone())?.apply(document.clone()).map(Value::Object)
    }

    #[test]
    fn operations_edit_members_and_lists() {
        for (before, patch, after) in [
            (
                json!({}),
                json!([{"op": "add", "path": "/extra/foo", "value": {"a": [1, null]}}]),
                json!({"extra": {"foo": {"a": [1, null]}}}),
            ),
            (
                json!({"extra": {"a": [1, null]}}),
                json!([{"op": "add", "path": "/extra/a/0", "value": 2}]),
                json!({"extra": {"a": [2, 1, null]}}),
            ),
            (json!({"extra": {"a": 1}}), json!([{"op": "remove", "path": "/extra/a"}]), json!({"extra": {}})),
            (json!({"name": "a"}), json!([{"op": "replace", "path": "/name", "value": "b"}]), json!({"name": "b"})),
            (json!({"x": null}), json!([{"op": "add", "path": "/x/a~1b", "value": 1}]), json!({"x": {"a/b": 1}})),
            (json!({"x": 1}), json!([]), json!({"x": 1})),
            // RFC 6901: what stands behind the last slash is a key, also where it is empty; ~01 is the text ~1.
            (
                json!({"x": {"": 1, "a": 2}}),
                json!([{"op": "remove", "path": "/x/"}, {"op": "add", "path": "/x/~01", "value": 3}]),
                json!({"x": {"a": 2, "~1": 3}}),
            ),
            // The examples of RFC 6902's appendix, a level down where they are at the root of a list.
            (
                json!({"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}}),
                json!([{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}]),
                json!({"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}}),
            ),
            (
                json!({"foo": ["all", "grass", "cows", "eat"]}),
                json!([{"op": "move", "from": "/foo/1", "path": "/foo/3"}]),
                json!({"foo": ["all", "cows", "eat", "grass"]}),
            ),
            (
                json!({"baz": "qux", "foo": ["a", 2, "c"]}),
                json!([{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2.0}]),
                json!({"baz": "qux", "foo": ["a", 2, "c"]}),
            ),
            (
                json!({"x": {"a": 1}, "y": {"b": 2}}),
                json!([{"op": "copy", "from": "/x", "path": "/y"}, {"op": "remove", "path": "/x/a"}]),
                json!({"x": {}, "y": {"a": 1}}),
            ),
            (
                json!({"x": {"a": 1}}),
                json!([{"op": "add", "path": "/x/b", "value": 2}, {"op": "move", "from": "/x/b", "path": "/x/a"}]),
                json!({"x": {"a": 2}}),
            ),
            (json!({"x": 1}), json!([{"op": "move", "from": "/x", "path": "/x"}]), json!({"x": 1})),
            (json!({"l": [1, 2]}), json!([{"op": "copy", "from": "/l/0", "path": "/l/0"}]), json!({"l": [1, 1, 2]})),
            // What stands behind a member that is taken away has moved up when it is put.
            (
                json!({"l": [9, {"x": 1}, {}]}),
                json!([{"op": "move", "from": "/l/0", "path": "/l/1/x"}]),
                json!({"l": [{"x": 1}, {"x": 9}]}),
            ),
        ] {
            assert_eq!(patched(&before, patch.clone()).unwrap(), after, "{patch}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for patch in [
            json!({}),
            json!([{"op": "move", "path": "/name"}]),
            json!([{"op": "swap", "path": "/name", "value": 1}]),
            json!([{"op": "copy", "from": "/nope", "path": "/name"}]),
            json!([{"op": "move", "from": "/l", "path": "/l/0"}]),
            json!([{"op": "test", "path": "/name", "value": "other"}]),
            json!([{"op": "test", "path": "/nope", "value": null}]),
            json!([{"op": "test", "path": "/name"}]),
            json!([{"op": "add", "path": "/l/00", "value": 1}]),
            json!([{"op": "add", "path": "/l/+0", "value": 1}]),
            json!([{"op": "add", "path": "name", "value": 1}]),
            json!([{"op": "add", "path": "", "value": {}}]),
            json!([{"op": "add", "path": "/a~2", "value": 1}]),
            json!([{"op": "add", "path": "/a~", "value": 1}]),
            json!([{"op": "remove", "path": "/name/"}]),
            json!([{"op": "remove", "path": "/l/"}]),
            json!([{"op": "add", "path": "/name"}]),
            json!([{"op": "remove", "path": "/nope"}]),
            json!([{"op": "replace", "path": "/a/b", "value": 1}]),
            json!([{"op": "add", "path": "/name/x", "value": 1}]),
            json!([{"op": "add", "path": "/l/5", "value": 1}]),
        ] {
            assert!(patched(&json!({"name": "n", "l": []}), patch.clone()).is_err(), "{patch}");
        }
    }

    #[test]
    fn y05_a_refusal_names_the_field_as_those_of_other_forms_do() {
        for (patch, field) in [
            (json!([{"op": "remove", "path": "/labels/tier"}]), Some("labels.tier")),
            (json!([{"op": "remove", "path": "/labels/a~1b.c~0d"}]), Some("labels.a/b.c~d")),
            (json!([{"op": "add", "path": "/uuid", "value": "x"}]), Some("uuid")),
            (json!([{"op": "move", "from": "/labels", "path": "/labels/a"}]), Some("labels.a")),
            (json!([{"op": "test", "path": "/name", "value": "other"}]), Some("name")),
            (json!({}), None),
        ] {
            let refused = patched(&json!({"name": "n", "labels": {}}), patch.clone()).unwrap_err();
            assert_eq!(refused.field().as_deref(), field, "{patch}: {refused}");
        }
    }

    #[test]
    fn copies_are_bounded_in_bytes_and_in_depth() {
        let doubled: Vec<Value> =
            (0..40).map(|n| json!({"op": "copy", "from": "/extra", "path": format!("/extra/b{n}")})).collect();
        let refused = patched(&json!({"extra": {"a": "x"}}), doubled.into()).unwrap_err();
        assert_eq!(refused, BadPatch::TooLarge);
        let nested: Vec<Value> = (0..200)
            .map(|n| json!({"op": "copy", "from": "/extra", "path": format!("/extra{}", "/a".repeat(n.min(400) + 1))}))
            .collect();
        let refused = patched(&json!({"extra": {}}), nested.into()).unwrap_err();
        assert!(matches!(refused, BadPatch::TooDeep { .. } | BadPatch::TooLarge), "{refused}");
        // As deep as a body may be, and one deeper.
        let nested = |levels: usize| (0..levels).fold(json!(1), |within, _| json!([within]));
        let add = |levels: usize| json!([{"op": "add", "path": "/extra/a", "value": nested(levels)}]);
        assert!(patched(&json!({"extra": {}}), add(MAX_DEPTH - 2)).is_ok());
        let refused = patched(&json!({"extra": {}}), add(MAX_DEPTH - 1)).unwrap_err();
        assert!(matches!(refused, BadPatch::TooDeep { .. }), "{refused}");
        let mut added = json!({});
        for _ in 0..20 {
            added = json!({"a": added});
        }
        let adds: Vec<Value> = (0..10)
            .map(|n| json!({"op": "add", "path": format!("/extra{}", "/a".repeat(20 * n + 1)), "value": added}))
            .collect();
        let refused = patched(&json!({"extra": {}}), adds.into()).unwrap_err();
        assert!(matches!(refused, BadPatch::TooDeep { .. }), "{refused}");
    }
}
