//! A JSON patch as the client sent it, with all operations of RFC 6902, and its expansion to additions, removals and
//! replacements.

use serde_json::{Map, Value};
use stemma_core::digest::canonical_json;

use super::{BadPatch, Patch, PatchOperation, PatchVerb, pointer, read_index};
use crate::api::http::json;

/// Maximum number of operations in one patch.
const MAX_OPERATIONS: usize = 512;
/// Maximum length of a path, in bytes.
const MAX_PATH_BYTES: usize = 1024;
/// Maximum total size of all values that the copies and moves of one patch read, in bytes of JSON text. A value that is
/// read several times counts each time.
pub(super) const MAX_COPIED_BYTES: usize = 256 * 1024;

/// A JSON patch as the client sent it.
#[derive(Clone, Debug)]
pub(crate) struct JsonPatch(Vec<JsonPatchOperation>);

/// An operation of a JSON patch as the client sent it.
#[derive(Clone, Debug)]
enum JsonPatchOperation {
    /// An addition, a removal or a replacement.
    Edit(PatchOperation),
    /// A test: the patch applies only if the value at the path equals this value.
    Test {
        /// The path as the client sent it.
        sent: String,
        path: Vec<String>,
        value: Value,
    },
    /// A copy of the value at `from` to `path`.
    Copy { from: Vec<String>, path: Vec<String> },
    /// A move of the value at `from` to `path`, which removes the value at `from`.
    Move { from: Vec<String>, path: Vec<String> },
}

impl JsonPatch {
    /// Reads the patch from a body.
    ///
    /// # Errors
    /// [`BadPatch::Malformed`].
    pub(crate) fn read(body: Value) -> Result<Self, BadPatch> {
        let Value::Array(operations) = body else { return Err(malformed("this is not a list")) };
        if operations.len() > MAX_OPERATIONS {
            return Err(malformed(format!("at most {MAX_OPERATIONS} operations are accepted in one patch")));
        }
        operations.into_iter().map(read_operation).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the patch without its `test` operations.
    pub(crate) fn without_tests(mut self) -> Self {
        self.0.retain(|operation| !matches!(operation, JsonPatchOperation::Test { .. }));
        self
    }

    /// Returns the patch with Stemma's names of fields. `names` contains pairs of another system's name and Stemma's
    /// name.
    pub(crate) fn rename_fields(mut self, names: &[(&str, &str)]) -> Self {
        for name in self.0.iter_mut().flat_map(JsonPatchOperation::paths_mut).filter_map(|path| path.first_mut()) {
            if let Some((_, our_name)) = names.iter().find(|(their_name, _)| their_name == name) {
                *name = (*our_name).to_owned();
            }
        }
        self
    }

    /// Returns the patch with converted values in its `test` operations on whole fields. `convert` gets the field and
    /// the value, and returns the value as the API shows it, or `None` to leave the value unchanged.
    pub(crate) fn map_tests(mut self, convert: impl Fn(&str, &Value) -> Option<Value>) -> Self {
        for operation in &mut self.0 {
            if let JsonPatchOperation::Test { path, value, .. } = operation
                && let [field] = &path[..]
                && let Some(api_value) = convert(field, value)
            {
                *value = api_value;
            }
        }
        self
    }

    /// Returns the field of the last operation, as errors name fields, such as `rules[2].name`. Only the document shows
    /// whether a member of a path is a key or an index. So the earlier operations are applied to the document first, up
    /// to the first one that fails.
    pub(crate) fn last_field(mut self, document: Map<String, Value>) -> String {
        let Some(mut last_operation) = self.0.pop() else { return String::new() };
        let mut expanded_patch = ExpandedPatch::new(document);
        for operation in self.without_tests().0 {
            if expanded_patch.apply(operation).is_err() {
                break;
            }
        }
        // The last path of an operation is the one that it changes or tests.
        last_operation.paths_mut().pop().map(|path| field_path(path, &expanded_patch.document)).unwrap_or_default()
    }

    /// Expands the patch to additions, removals and replacements. Calls `document` for the patched object only if the
    /// patch has a test, a copy or a move, because only these operations read from the object.
    ///
    /// # Errors
    /// [`BadPatch`], for the first operation that fails.
    pub(crate) fn expand(self, document: impl FnOnce() -> Map<String, Value>) -> Result<Patch, BadPatch> {
        if self.0.iter().all(|operation| matches!(operation, JsonPatchOperation::Edit(_))) {
            let edits = self
                .0
                .into_iter()
                .filter_map(|operation| if let JsonPatchOperation::Edit(edit) = operation { Some(edit) } else { None });
            return Ok(Patch(edits.collect()));
        }
        let mut expanded_patch = ExpandedPatch::new(document());
        self.0.into_iter().try_for_each(|operation| expanded_patch.apply(operation))?;
        Ok(Patch(expanded_patch.operations))
    }
}

impl JsonPatchOperation {
    /// Returns all paths in the operation. The last one is the path that the operation changes or tests.
    fn paths_mut(&mut self) -> Vec<&mut Vec<String>> {
        match self {
            Self::Edit(PatchOperation { path, .. }) | Self::Test { path, .. } => vec![path],
            Self::Copy { from, path } | Self::Move { from, path } => vec![from, path],
        }
    }
}

/// A document, and the expanded operations of a patch that were applied to it so far.
struct ExpandedPatch {
    document: Value,
    operations: Vec<PatchOperation>,
    /// Total size of the values that the copies and moves have read so far, in bytes of JSON text.
    copied_bytes: usize,
}

impl ExpandedPatch {
    fn new(document: Map<String, Value>) -> Self {
        Self { document: Value::Object(document), operations: Vec::new(), copied_bytes: 0 }
    }

    /// Applies an operation to the document, and appends it to the expanded patch as additions, removals and
    /// replacements.
    fn apply(&mut self, operation: JsonPatchOperation) -> Result<(), BadPatch> {
        match operation {
            JsonPatchOperation::Edit(edit) => self.edit(edit),
            JsonPatchOperation::Test { sent, path, value } => self.test(sent, &path, &value),
            JsonPatchOperation::Copy { from, path } => {
                let value = self.copy(&from, "copied")?;
                // A member that is copied to itself does not change. An item that is copied to its own index is
                // inserted again.
                if path == from && !self.is_item(&from) { Ok(()) } else { self.put(path, value) }
            }
            JsonPatchOperation::Move { from, path } => {
                let value = self.copy(&from, "moved")?;
                if path == from {
                    return Ok(());
                }
                if path.starts_with(&from) {
                    return Err(BadPatch::IntoItself { from: pointer(&from), path: pointer(&path) });
                }
                self.edit(PatchOperation { verb: PatchVerb::Remove, path: from, value: None })?;
                self.put(path, value)
            }
        }
    }

    /// Applies an addition, removal or replacement to the document, and appends it to the expanded patch.
    fn edit(&mut self, edit: PatchOperation) -> Result<(), BadPatch> {
        edit.apply(&mut self.document)?;
        self.operations.push(edit);
        Ok(())
    }

    /// Fails if the value at a path is not the expected one. Numbers are compared by value: 2 equals 2.0. The order of
    /// members in an object does not matter.
    fn test(&self, sent_path: String, path: &[String], expected: &Value) -> Result<(), BadPatch> {
        let Some(found) = self.document.pointer(&pointer(path)) else {
            return Err(BadPatch::Missing { path: sent_path, done: "tested" });
        };
        if canonical_json(found) == canonical_json(expected) {
            return Ok(());
        }
        let [found, expected] = [found, expected].map(|value| truncate(&value.to_string()));
        Err(BadPatch::TestFailed { path: sent_path, found, expected })
    }

    /// Returns the value at a path. `done` names the attempted action in the error, such as `copied`.
    fn find(&self, path: &[String], done: &'static str) -> Result<&Value, BadPatch> {
        self.document.pointer(&pointer(path)).ok_or_else(|| BadPatch::Missing { path: pointer(path), done })
    }

    /// Returns the value that a copy or a move reads, and counts its size. `done` names the attempted action in the
    /// error.
    fn copy(&mut self, from: &[String], done: &'static str) -> Result<Value, BadPatch> {
        let value = self.find(from, done)?.clone();
        self.copied_bytes += value.to_string().len();
        if self.copied_bytes > MAX_COPIED_BYTES { Err(BadPatch::TooLarge) } else { Ok(value) }
    }

    /// Returns whether a path is that of an item in a list. The item need not exist.
    fn is_item(&self, path: &[String]) -> bool {
        path.split_last().is_some_and(|(_, list)| self.document.pointer(&pointer(list)).is_some_and(Value::is_array))
    }

    /// Writes a copied or moved value to a path. In a list, the value is inserted. An existing member of an object is
    /// replaced. To add it again would be an error for clients of Magnum (`OpenStack`'s cluster service).
    fn put(&mut self, path: Vec<String>, value: Value) -> Result<(), BadPatch> {
        let exists = !self.is_item(&path) && self.document.pointer(&pointer(&path)).is_some();
        let verb = if exists { PatchVerb::Replace } else { PatchVerb::Add };
        self.edit(PatchOperation { verb, path, value: Some(value) })
    }
}

/// Reads one operation of a JSON patch. Fails for an unknown operation or field, and for a missing field.
fn read_operation(value: Value) -> Result<JsonPatchOperation, BadPatch> {
    let Value::Object(mut fields) = value else { return Err(malformed("an operation is an object")) };
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(malformed(format!("{name:?} is missing or not text"))),
    };
    let (op, path) = (text("op")?, text("path")?);
    let from = if matches!(&*op, "copy" | "move") { read_pointer(&text("from")?)? } else { Vec::new() };
    let value = fields.remove("value");
    if let Some(unknown_field) = fields.keys().next() {
        return Err(malformed(format!("an operation has no field {unknown_field:?}")));
    }
    let require_value = || value.ok_or_else(|| malformed(format!("the operation on {path:?} has no value")));
    let value = if matches!(&*op, "add" | "replace" | "test") { require_value()? } else { Value::Null };
    let path = read_pointer(&path)?;
    let value = text_map_value(&path, value);
    Ok(match &*op {
        "add" => JsonPatchOperation::Edit(PatchOperation { verb: PatchVerb::Add, value: Some(value), path }),
        "replace" => JsonPatchOperation::Edit(PatchOperation { verb: PatchVerb::Replace, value: Some(value), path }),
        "remove" => JsonPatchOperation::Edit(PatchOperation { verb: PatchVerb::Remove, value: None, path }),
        "test" => JsonPatchOperation::Test { sent: pointer(&path), path, value },
        "copy" => JsonPatchOperation::Copy { from, path },
        "move" => JsonPatchOperation::Move { from, path },
        _ => return Err(malformed(format!("the operation {:?} is unknown", truncate(&op)))),
    })
}

/// Converts a value that an operation sets or tests in a map of text, such as `labels`. A number or boolean becomes its
/// text, as in a request with the whole map.
fn text_map_value(path: &[String], value: Value) -> Value {
    match path {
        [map, _] if json::is_text_map(map) && (value.is_number() || value.is_boolean()) => value.to_string().into(),
        _ => value,
    }
}

/// Parses a JSON pointer (RFC 6901) into its members. An empty member is the key "". Fails for the pointer to the whole
/// document, for `/` alone, for an invalid escape, and for a text longer than [`MAX_PATH_BYTES`].
fn read_pointer(text: &str) -> Result<Vec<String>, BadPatch> {
    let path_error = |why: String| malformed(format!("the path {:?} {why}", truncate(text)));
    if text.len() > MAX_PATH_BYTES {
        return Err(path_error(format!("is longer than {MAX_PATH_BYTES} bytes")));
    }
    let Some(without_slash) = text.strip_prefix('/').filter(|without_slash| !without_slash.is_empty()) else {
        return Err(path_error("does not begin with a slash and a name".to_owned()));
    };
    let members: Option<Vec<String>> = without_slash.split('/').map(unescape).collect();
    members.ok_or_else(|| path_error("has a ~ that is neither ~0 nor ~1".to_owned()))
}

/// Returns a member of a pointer without its escapes. Returns `None` if an escape is invalid.
fn unescape(member: &str) -> Option<String> {
    let mut escapes = member.split('~').skip(1);
    escapes.all(|after_tilde| after_tilde.starts_with(['0', '1'])).then(|| json::unescape(member))
}

/// Returns the field at a path of a document, as errors name fields, such as `rules[2].name`. A member of the path is
/// an index if the value before it is a list, and else a key.
fn field_path(path: &[String], document: &Value) -> String {
    let mut current = Some(document);
    let mut field = String::new();
    for member in path {
        let items = current.and_then(Value::as_array);
        let index = items.and_then(|items| if member == "-" { Some(items.len()) } else { read_index(member) });
        if let Some(index) = index {
            field += &format!("[{index}]");
            current = items.and_then(|items| items.get(index));
        } else {
            let dot = if field.is_empty() { "" } else { "." };
            field += &format!("{dot}{}", json::path_segment(member));
            current = current.and_then(|value| value.get(member));
        }
    }
    field
}

/// Returns the first 64 characters of a text, for an error message.
fn truncate(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Returns the error for a body that is not a JSON patch.
fn malformed(what: impl Into<String>) -> BadPatch {
    BadPatch::Malformed { what: what.into() }
}
