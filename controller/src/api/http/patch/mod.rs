//! JSON patches (RFC 6902), with the rules of Ironic's and Magnum's clients where those are stricter.
//!
//! Labels are not part of the document that a patch edits. Labels have owners, so an operation on a label is an update
//! by the caller of the request. Therefore a patch is first expanded ([`JsonPatch::expand`]) to additions, removals and
//! replacements. [`Patch::take_operations_on`] then removes the operations on labels, and the remaining ones edit the
//! object's other fields.

mod json_patch;
mod python;

use serde_json::{Map, Value};
use stemma_core::manifest::MAX_DEPTH;

use crate::api::http::json::unescape;

pub(crate) use json_patch::JsonPatch;
pub(crate) use python::map_from_text;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchVerb {
    /// Sets a member of an object, or inserts an item into a list.
    Add,
    /// Removes an existing member or item.
    Remove,
    /// Sets an existing member or item.
    Replace,
}

/// One operation of an expanded patch: an addition, a removal or a replacement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PatchOperation {
    /// The kind of the operation.
    pub verb: PatchVerb,
    /// The members of the path, unescaped. There is at least one.
    pub path: Vec<String>,
    /// The new value. `None` for a removal.
    pub value: Option<Value>,
}

/// The error for a patch that cannot be parsed, or cannot be applied to the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPatch {
    /// The body is not a JSON patch, has more operations than one patch may have, or has a path that is too long.
    #[error(
        "a JSON patch is a list of {{\"op\": \"add\"|\"remove\"|\"replace\"|\"test\", \"path\": \"/…\", \"value\": …}} and of {{\"op\": \"copy\"|\"move\", \"from\": \"/…\", \"path\": \"/…\"}}; {what}"
    )]
    Malformed {
        /// The problem.
        what: String,
    },
    /// A path that does not exist.
    #[error("the patch does not fit the object: there is no {path}, so it can't be {done}")]
    Missing {
        /// The path, as the client sent it for a `test` operation. For any other operation, Ironic's and Magnum's names
        /// of fields are replaced by Stemma's.
        path: String,
        /// The action that the patch attempted on the path, such as `removed`.
        done: &'static str,
    },
    /// The object does not have the value that a `test` operation expects.
    #[error("{path} is {found}, but the patch's test expects {expected}")]
    TestFailed {
        /// The path, as the client sent it.
        path: String,
        /// The actual value, truncated.
        found: String,
        /// The expected value, truncated.
        expected: String,
    },
    /// The values that the patch copies and moves are larger than the limit.
    #[error("the patch copies more than {} bytes", json_patch::MAX_COPIED_BYTES)]
    TooLarge,
    /// A value would be nested too deeply.
    #[error("{path} would be nested deeper than the {MAX_DEPTH} levels that an object may have")]
    TooDeep {
        /// The path of the operation. Ironic's and Magnum's names of fields are replaced by Stemma's.
        path: String,
    },
    /// A value would be moved into itself.
    #[error("{from} can't be moved to {path}, which is within it")]
    IntoItself {
        /// The path from which the value would be moved.
        from: String,
        /// The path to which the value would be moved.
        path: String,
    },
    /// The patch would change a field that identifies the object.
    #[error("{path} cannot be changed; create another object instead")]
    Immutable {
        /// The path of the operation. Ironic's and Magnum's names of fields are replaced by Stemma's.
        path: String,
    },
    /// An attribute that is already set cannot be added, as in Magnum's API.
    #[error("{path} is set already; use \"replace\" in place of \"add\"")]
    AlreadySet {
        /// The path of the operation. Ironic's and Magnum's names of fields are replaced by Stemma's.
        path: String,
    },
    /// The value that the last member of the path would be in is neither an object nor a list.
    #[error("the patch does not fit the object: {path} leads through a value that has no such member")]
    NoContainer {
        /// The path of the operation. Ironic's and Magnum's names of fields are replaced by Stemma's.
        path: String,
    },
}

impl BadPatch {
    /// Returns the field of the error, as other errors name fields: `labels.a` for the path `/labels/a`. Returns `None`
    /// if the error is about the patch itself.
    pub(crate) fn field(&self) -> Option<String> {
        let path = match self {
            Self::Missing { path, .. }
            | Self::TestFailed { path, .. }
            | Self::TooDeep { path }
            | Self::IntoItself { path, .. }
            | Self::Immutable { path }
            | Self::AlreadySet { path }
            | Self::NoContainer { path } => path.strip_prefix('/')?,
            Self::Malformed { .. } | Self::TooLarge => return None,
        };
        let members: Vec<String> = path.split('/').map(unescape).collect();
        Some(members.join("."))
    }
}

impl PatchOperation {
    /// Returns the path as a JSON pointer.
    pub(crate) fn pointer(&self) -> String {
        pointer(&self.path)
    }

    /// Applies the operation to a document. An addition to a map that was never set creates the map first.
    fn apply(&self, document: &mut Value) -> Result<(), BadPatch> {
        if self.path.first().is_some_and(|root| root == "uuid") {
            return Err(BadPatch::Immutable { path: self.pointer() });
        }
        if self.path.len() + self.value.as_ref().map_or(0, nesting_depth) > MAX_DEPTH {
            return Err(BadPatch::TooDeep { path: self.pointer() });
        }
        let (last_member, parent) = self.path.split_last().expect("a pointer has at least one member");
        if let Some(root) = parent.first().filter(|_| self.verb == PatchVerb::Add) {
            // Ironic and Magnum accept a first member of a map that was never set.
            // The index creates a missing member as null.
            let root = &mut document[root.as_str()];
            if root.is_null() {
                *root = Value::Object(Map::new());
            }
        }
        match document.pointer_mut(&pointer(parent)).ok_or_else(|| self.missing())? {
            Value::Object(object) => self.apply_to_object(object, last_member),
            Value::Array(list) => self.apply_to_list(list, last_member),
            _ => Err(BadPatch::NoContainer { path: self.pointer() }),
        }
    }

    /// Applies the operation to the member `key` of an object.
    fn apply_to_object(&self, object: &mut Map<String, Value>, key: &str) -> Result<(), BadPatch> {
        if self.verb != PatchVerb::Add && !object.contains_key(key) {
            return Err(self.missing());
        }
        match &self.value {
            Some(value) => object.insert(key.to_owned(), value.clone()),
            None => object.remove(key),
        };
        Ok(())
    }

    /// Applies the operation to the item of a list with the index `key`. An addition inserts before that item, or at
    /// the end for `-`.
    fn apply_to_list(&self, list: &mut Vec<Value>, key: &str) -> Result<(), BadPatch> {
        let index = if key == "-" { Some(list.len()) } else { read_index(key) };
        let end = if self.verb == PatchVerb::Add { list.len() + 1 } else { list.len() };
        let index = index.filter(|index| *index < end).ok_or_else(|| self.missing())?;
        match (self.verb, &self.value) {
            (PatchVerb::Add, Some(value)) => list.insert(index, value.clone()),
            (PatchVerb::Replace, Some(value)) => list[index] = value.clone(),
            _ => drop(list.remove(index)),
        }
        Ok(())
    }

    /// Returns the error for a path that does not exist.
    fn missing(&self) -> BadPatch {
        let done = if self.verb == PatchVerb::Remove { "removed" } else { "replaced" };
        BadPatch::Missing { path: self.pointer(), done }
    }
}

/// An expanded patch: additions, removals and replacements in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Patch(pub Vec<PatchOperation>);

impl Patch {
    /// Removes the operations whose path begins with `root` from the patch, and returns them.
    pub(crate) fn take_operations_on(&mut self, root: &str) -> Vec<PatchOperation> {
        let (matching, others) = std::mem::take(&mut self.0).into_iter().partition(|operation| operation.path[0] == root);
        self.0 = others;
        matching
    }

    /// Applies the patch to a document.
    ///
    /// # Errors
    /// [`BadPatch`], for the first operation that fails.
    pub(crate) fn apply(&self, document: Map<String, Value>) -> Result<Map<String, Value>, BadPatch> {
        let mut document = Value::Object(document);
        self.0.iter().try_for_each(|operation| operation.apply(&mut document))?;
        Ok(std::mem::take(document.as_object_mut().expect("an operation changes members of the document")))
    }
}

/// Parses a list index: digits without a leading zero (RFC 6901).
fn read_index(key: &str) -> Option<usize> {
    let is_index = key == "0" || !key.starts_with('0') && key.bytes().all(|byte| byte.is_ascii_digit());
    if is_index { key.parse().ok() } else { None }
}

/// Returns the nesting depth of a value: 0 for a number or text, 1 for a list of numbers.
fn nesting_depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nesting_depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(nesting_depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Returns a path as the text of a JSON pointer (RFC 6901), with its members escaped.
fn pointer(path: &[String]) -> String {
    let escaped = path.iter().map(|member| member.replace('~', "~0").replace('/', "~1"));
    escaped.fold(String::new(), |text, member| text + "/" + &member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply_patch(document: &Value, patch: Value) -> Result<Value, BadPatch> {
        let document = document.as_object().unwrap();
        JsonPatch::read(patch)?.expand(|| document.clone())?.apply(document.clone()).map(Value::Object)
    }

    #[test]
    fn patch_edits_members_and_lists() {
        for (original, patch, expected) in [
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
            // RFC 6901: the text after the last slash is a key, even if it is empty. ~01 is the text ~1.
            (
                json!({"x": {"": 1, "a": 2}}),
                json!([{"op": "remove", "path": "/x/"}, {"op": "add", "path": "/x/~01", "value": 3}]),
                json!({"x": {"a": 2, "~1": 3}}),
            ),
            // The examples of RFC 6902's appendix. Those with a list at the root are one level deeper here.
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
            // Removing a list item moves the later ones up before the value is written.
            (
                json!({"l": [9, {"x": 1}, {}]}),
                json!([{"op": "move", "from": "/l/0", "path": "/l/1/x"}]),
                json!({"l": [{"x": 1}, {"x": 9}]}),
            ),
        ] {
            assert_eq!(apply_patch(&original, patch.clone()).unwrap(), expected, "{patch}");
        }
    }

    #[test]
    fn patch_fails_when_operation_is_invalid() {
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
            assert!(apply_patch(&json!({"name": "n", "l": []}), patch.clone()).is_err(), "{patch}");
        }
    }

    #[test]
    fn y05_bad_patch_names_field_with_dots() {
        for (patch, field) in [
            (json!([{"op": "remove", "path": "/labels/tier"}]), Some("labels.tier")),
            (json!([{"op": "remove", "path": "/labels/a~1b.c~0d"}]), Some("labels.a/b.c~d")),
            (json!([{"op": "add", "path": "/uuid", "value": "x"}]), Some("uuid")),
            (json!([{"op": "move", "from": "/labels", "path": "/labels/a"}]), Some("labels.a")),
            (json!([{"op": "test", "path": "/name", "value": "other"}]), Some("name")),
            (json!({}), None),
        ] {
            let error = apply_patch(&json!({"name": "n", "labels": {}}), patch.clone()).unwrap_err();
            assert_eq!(error.field().as_deref(), field, "{patch}: {error}");
        }
    }

    /// Copies that grow too large, and values that would be nested too deeply, are refused.
    #[test]
    fn json_patch_limits_copied_bytes_and_depth() {
        let doubled: Vec<Value> =
            (0..40).map(|n| json!({"op": "copy", "from": "/extra", "path": format!("/extra/b{n}")})).collect();
        let error = apply_patch(&json!({"extra": {"a": "x"}}), doubled.into()).unwrap_err();
        assert_eq!(error, BadPatch::TooLarge);
        // Each copy is one level deeper than the copy before it.
        let nested: Vec<Value> = (0..200)
            .map(|n| json!({"op": "copy", "from": "/extra", "path": format!("/extra{}", "/a".repeat(n.min(400) + 1))}))
            .collect();
        let error = apply_patch(&json!({"extra": {}}), nested.into()).unwrap_err();
        assert!(matches!(error, BadPatch::TooDeep { .. } | BadPatch::TooLarge), "{error}");
        // Exactly the maximum depth, and one more.
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        let add = |levels: usize| json!([{"op": "add", "path": "/extra/a", "value": nested(levels)}]);
        assert!(apply_patch(&json!({"extra": {}}), add(MAX_DEPTH - 2)).is_ok());
        let error = apply_patch(&json!({"extra": {}}), add(MAX_DEPTH - 1)).unwrap_err();
        assert!(matches!(error, BadPatch::TooDeep { .. }), "{error}");
        // Ten additions of a value with 20 levels, each at the deepest place of the one before it.
        let mut deep_value = json!({});
        for _ in 0..20 {
            deep_value = json!({"a": deep_value});
        }
        let adds: Vec<Value> = (0..10)
            .map(|n| json!({"op": "add", "path": format!("/extra{}", "/a".repeat(20 * n + 1)), "value": deep_value}))
            .collect();
        let error = apply_patch(&json!({"extra": {}}), adds.into()).unwrap_err();
        assert!(matches!(error, BadPatch::TooDeep { .. }), "{error}");
    }
}
