//! JSON patches (RFC 6902), with the rules of Ironic's and Magnum's clients where those are stricter.
//!
//! Labels are not part of the document that a patch edits: they have owners, so an operation on a label is an
//! update by its caller. So what tests, copies or moves is first written out ([`Patch::written_out`]) as what it comes to in
//! additions, removals and replacements. [`Patch::split`] takes those of labels out, and the rest edits the object's other fields.

use serde_json::{Map, Value};
use stemma_core::digest::canonical_json;

use super::json::MAX_DEPTH;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Sets a member, or inserts into a list.
    Add,
    /// Takes a member away that is there.
    Remove,
    /// Sets a member that is there.
    Replace,
    /// Sets a member to what another one is.
    Copy,
    /// The same, and takes the other one away.
    Move,
    /// Changes nothing; the patch fits only where the member has this value.
    Test,
}

const VERBS: [(&str, Verb); 6] = [
    ("add", Verb::Add),
    ("remove", Verb::Remove),
    ("replace", Verb::Replace),
    ("copy", Verb::Copy),
    ("move", Verb::Move),
    ("test", Verb::Test),
];

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// What it does.
    pub verb: Verb,
    /// The members on the way, unescaped, at least one.
    pub path: Vec<String>,
    /// What is set or expected; `None` for what takes no value.
    pub value: Option<Value>,
    /// Where a copy or a move finds its value; empty for the others.
    from: Vec<String>,
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
    #[error("the patch copies more than {MOST_COPIED} bytes")]
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

const MOST_OPERATIONS: usize = 512;
/// The longest path, in bytes.
const MAX_PATH: usize = 1024;
/// What the copies and moves of one patch may write together, in bytes of JSON text.
const MOST_COPIED: usize = 1024 * 1024;

impl Operation {
    /// The path as text.
    pub(crate) fn pointer(&self) -> String {
        pointer(&self.path)
    }

    fn read(value: Value) -> Result<Self, BadPatch> {
        let Value::Object(mut fields) = value else { return Err(malformed("an operation is an object")) };
        let mut text = |name: &str| match fields.remove(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(malformed(format!("{name:?} is missing or no text"))),
        };
        let (word, path) = (text("op")?, text("path")?);
        let unknown = || malformed(format!("the operation {:?} is not taken", beginning(&word)));
        let verb = VERBS.iter().find(|(name, _)| *name == word).map(|(_, verb)| *verb).ok_or_else(unknown)?;
        let from = if matches!(verb, Verb::Copy | Verb::Move) { read_pointer(&text("from")?)? } else { Vec::new() };
        let value = fields.remove("value");
        if let Some(other) = fields.keys().next() {
            return Err(malformed(format!("it has no field {other:?}")));
        }
        let value = match (verb, value) {
            (Verb::Remove | Verb::Copy | Verb::Move, _) => None,
            (_, Some(value)) => Some(value),
            (_, None) => return Err(malformed(format!("the operation on {path:?} has no value"))),
        };
        Ok(Self { verb, path: read_pointer(&path)?, value, from })
    }

    /// Numbers are equal by what they are worth, and the order of an object's members means nothing.
    fn test(&self, document: &Value) -> Result<(), BadPatch> {
        let found = document.pointer(&self.pointer()).ok_or_else(|| self.missing())?;
        let expected = self.value.as_ref().unwrap_or(&Value::Null);
        if canonical_json(found) == canonical_json(expected) {
            return Ok(());
        }
        let [found, expected] = [found, expected].map(|value| beginning(&value.to_string()));
        Err(BadPatch::Differs { path: self.pointer(), found, expected })
    }

    /// The value that a copy or a move is of.
    fn take(&self, document: &Value) -> Result<Value, BadPatch> {
        let missing = || BadPatch::Missing { path: pointer(&self.from), done: self.done() };
        document.pointer(&pointer(&self.from)).cloned().ok_or_else(missing)
    }

    /// Makes a copy or a move of a value, and gives what it comes to in removals, additions and replacements.
    fn put(self, value: Value, document: &mut Value) -> Result<Vec<Self>, BadPatch> {
        let Self { verb, path, from, .. } = self;
        let is_item =
            from.split_last().is_some_and(|(_, way)| document.pointer(&pointer(way)).is_some_and(Value::is_array));
        if path == from && !(is_item && verb == Verb::Copy) {
            return Ok(Vec::new());
        }
        if path.starts_with(&from) && verb == Verb::Move {
            return Err(BadPatch::IntoItself { from: pointer(&from), path: pointer(&path) });
        }
        let mut written = Vec::new();
        if verb == Verb::Move {
            let taken = Self { verb: Verb::Remove, path: from, value: None, from: Vec::new() };
            taken.apply(document)?;
            written.push(taken);
        }
        // A member that is there is replaced, where an addition of Magnum's clients would be refused.
        let (last, way) = path.split_last().expect("a pointer has at least one member");
        let is_member =
            document.pointer(&pointer(way)).is_some_and(|within| within.is_object() && within.get(last).is_some());
        let verb = if is_member { Verb::Replace } else { Verb::Add };
        let put = Self { verb, path, value: Some(value), from: Vec::new() };
        put.apply(document)?;
        written.push(put);
        Ok(written)
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

    fn done(&self) -> &'static str {
        match self.verb {
            Verb::Add | Verb::Replace => "replaced",
            Verb::Remove => "removed",
            Verb::Copy => "copied",
            Verb::Move => "moved",
            Verb::Test => "tested",
        }
    }

    fn missing(&self) -> BadPatch {
        BadPatch::Missing { path: self.pointer(), done: self.done() }
    }
}

/// A list of operations, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Patch(pub Vec<Operation>);

impl Patch {
    /// Reads a body.
    ///
    /// # Errors
    /// [`BadPatch::Malformed`].
    pub(crate) fn read(body: Value) -> Result<Self, BadPatch> {
        let Value::Array(operations) = body else { return Err(malformed("this is no list")) };
        if operations.len() > MOST_OPERATIONS {
            return Err(malformed(format!("at most {MOST_OPERATIONS} operations are taken at once")));
        }
        operations.into_iter().map(Operation::read).collect::<Result<_, _>>().map(Self)
    }

    /// What the patch comes to on a document in additions, removals and replacements. The document is asked for only where an
    /// operation looks at it.
    ///
    /// # Errors
    /// [`BadPatch`], of the first operation that does not fit.
    pub(crate) fn written_out(self, document: impl FnOnce() -> Map<String, Value>) -> Result<Self, BadPatch> {
        if self.0.iter().all(|operation| matches!(operation.verb, Verb::Add | Verb::Remove | Verb::Replace)) {
            return Ok(self);
        }
        let mut document = Value::Object(document());
        let (mut written, mut copied) = (Vec::new(), 0);
        for operation in self.0 {
            match operation.verb {
                Verb::Add | Verb::Remove | Verb::Replace => {
                    operation.apply(&mut document)?;
                    written.push(operation);
                }
                Verb::Test => operation.test(&document)?,
                Verb::Copy | Verb::Move => {
                    let value = operation.take(&document)?;
                    copied += value.to_string().len();
                    if copied > MOST_COPIED {
                        return Err(BadPatch::TooLarge);
                    }
                    written.extend(operation.put(value, &mut document)?);
                }
            }
        }
        Ok(Self(written))
    }

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

/// Reads a whole map that came as text: JSON, or Python's form of a dictionary, which is what Magnum's
/// command line makes of `replace labels=a=1,b=2`. Only strings, numbers and booleans stand in it.
pub(crate) fn map_from_text(text: &str) -> Option<Map<String, Value>> {
    if let Ok(Value::Object(map)) = super::json::parse(format!("{{\"labels\":{text}}}").as_bytes())
        && let Some(Value::Object(labels)) = map.get("labels")
    {
        return Some(labels.clone());
    }
    PythonDict { rest: text.trim() }.read()
}

struct PythonDict<'a> {
    rest: &'a str,
}

impl PythonDict<'_> {
    fn read(mut self) -> Option<Map<String, Value>> {
        let mut map = Map::new();
        self.token("{")?;
        while !self.rest.starts_with('}') {
            let key = self.quoted()?;
            self.token(":")?;
            let value = if self.rest.starts_with(['\'', '"']) { self.quoted()? } else { self.bare()? };
            if map.insert(key, Value::String(value)).is_some() {
                return None;
            }
            if self.token(",").is_none() {
                break;
            }
        }
        self.token("}")?;
        self.rest.is_empty().then_some(map)
    }

    fn token(&mut self, token: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(token)?.trim_start();
        Some(())
    }

    fn quoted(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let mut text = String::new();
        let mut chars = self.rest[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = self.rest[at + 2..].trim_start();
                    return Some(text);
                }
                '\\' => text.push(match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    c @ ('\\' | '\'' | '"') => c,
                    _ => return None,
                }),
                c => text.push(c),
            }
        }
        None
    }

    fn bare(&mut self) -> Option<String> {
        let end = self.rest.find([',', '}'])?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let word = word.trim_end();
        match word {
            "True" => Some("true".to_owned()),
            "False" => Some("false".to_owned()),
            _ => word.parse::<f64>().is_ok_and(f64::is_finite).then(|| word.to_owned()),
        }
    }
}

/// Reads a JSON pointer (RFC 6901): an empty member is the key "", and the whole document has no path here.
fn read_pointer(text: &str) -> Result<Vec<String>, BadPatch> {
    let wrong = |why: String| malformed(format!("the path {:?} {why}", beginning(text)));
    if text.len() > MAX_PATH {
        return Err(wrong(format!("is longer than {MAX_PATH} bytes")));
    }
    let Some(inner) = text.strip_prefix('/').filter(|inner| !inner.is_empty()) else {
        return Err(wrong("does not begin with a slash and a name".to_owned()));
    };
    let members: Option<Vec<String>> = inner.split('/').map(unescaped).collect();
    members.ok_or_else(|| wrong("has a ~ that is neither ~0 nor ~1".to_owned()))
}

/// A member of a pointer; nothing where an escape in it is none.
fn unescaped(member: &str) -> Option<String> {
    let mut escapes = member.split('~').skip(1);
    escapes.all(|rest| rest.starts_with(['0', '1'])).then(|| member.replace("~1", "/").replace("~0", "~"))
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

fn beginning(text: &str) -> String {
    text.chars().take(64).collect()
}

/// The text of a JSON pointer (RFC 6901).
fn pointer(path: &[String]) -> String {
    let escaped = path.iter().map(|part| part.replace('~', "~0").replace('/', "~1"));
    escaped.fold(String::new(), |text, part| text + "/" + &part)
}

fn malformed(what: impl Into<String>) -> BadPatch {
    BadPatch::Malformed { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(document: &Value, patch: Value) -> Result<Value, BadPatch> {
        let document = document.as_object().unwrap();
        Patch::read(patch)?.written_out(|| document.clone())?.apply(document.clone()).map(Value::Object)
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

    #[test]
    fn a_map_comes_as_json_or_as_python_writes_it() {
        for (text, expected) in [
            ("{'a': '7'}", Some(json!({"a": "7"}))),
            (r#"{"y": "2"}"#, Some(json!({"y": "2"}))),
            (r#"{"y": 1.50}"#, Some(json!({"y": "1.50"}))),
            (
                r#"{'a': "it's", 'b': 'q\'x', 'c': 1, 'd': True, }"#,
                Some(json!({"a": "it's", "b": "q'x", "c": "1", "d": "true"})),
            ),
            ("{}", Some(json!({}))),
            ("notadict", None),
            ("{'a': ['x']}", None),
            ("{'a': '1'} x", None),
            ("{'a': None}", None),
        ] {
            assert_eq!(map_from_text(text).map(Value::Object), expected, "{text}");
        }
    }
}
