//! A patch as it was sent, with all operations of RFC 6902, and what it comes to.

use serde_json::{Map, Value};
use stemma_core::digest::canonical_json;

use super::{BadPatch, Operation, Patch, Verb, pointer, read_index};
use crate::api::http::json;

const MOST_OPERATIONS: usize = 512;
/// The longest path, in bytes.
const MAX_PATH: usize = 1024;
/// What the copies and moves of one patch may write together, in bytes of JSON text: as much as an object holds that can be patched so.
pub(super) const MOST_COPIED: usize = 256 * 1024;

/// A patch as it was sent.
#[derive(Clone, Debug)]
pub(crate) struct SentPatch(Vec<Sent>);

#[derive(Clone, Debug)]
enum Sent {
    Edit(Operation),
    /// The patch fits only where the member has this value.
    Test {
        /// The path as it was sent.
        sent: String,
        path: Vec<String>,
        value: Value,
    },
    /// Sets a member to what another one is.
    Copy {
        from: Vec<String>,
        path: Vec<String>,
    },
    /// The same, and takes the other one away.
    Move {
        from: Vec<String>,
        path: Vec<String>,
    },
}

impl SentPatch {
    /// Reads a body.
    ///
    /// # Errors
    /// [`BadPatch::Malformed`].
    pub(crate) fn read(body: Value) -> Result<Self, BadPatch> {
        let Value::Array(operations) = body else { return Err(malformed("this is no list")) };
        if operations.len() > MOST_OPERATIONS {
            return Err(malformed(format!("at most {MOST_OPERATIONS} operations are taken at once")));
        }
        operations.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The same without what it only asks.
    pub(crate) fn without_tests(mut self) -> Self {
        self.0.retain(|sent| !matches!(sent, Sent::Test { .. }));
        self
    }

    /// The same with our own names of fields, each behind the name that another system has for it.
    pub(crate) fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        for field in self.0.iter_mut().flat_map(Sent::paths).filter_map(|path| path.first_mut()) {
            if let Some((_, own)) = names.iter().find(|(other, _)| other == field) {
                *field = (*own).to_owned();
            }
        }
        self
    }

    /// The same with what a test asks of a whole field in the form in which the field is shown, where there is one.
    pub(crate) fn tested_as(mut self, shown: impl Fn(&str, &Value) -> Option<Value>) -> Self {
        for sent in &mut self.0 {
            if let Sent::Test { path, value, .. } = sent
                && let [field] = &path[..]
                && let Some(shown) = shown(field, value)
            {
                *value = shown;
            }
        }
        self
    }

    /// The field of the last operation, as other refusals name it, on a document that those before it edit: as far as they fit.
    pub(crate) fn last_field(mut self, document: Map<String, Value>) -> String {
        let Some(mut last) = self.0.pop() else { return String::new() };
        let mut written = Written::on(document);
        for sent in self.without_tests().0 {
            if written.take(sent).is_err() {
                break;
            }
        }
        last.paths().pop().map(|path| field_at(path, &written.document)).unwrap_or_default()
    }

    /// What the patch comes to on a document. That is asked for only where an operation looks at it.
    ///
    /// # Errors
    /// [`BadPatch`], of the first operation that does not fit.
    pub(crate) fn written_out(self, document: impl FnOnce() -> Map<String, Value>) -> Result<Patch, BadPatch> {
        if self.0.iter().all(|sent| matches!(sent, Sent::Edit(_))) {
            let edits =
                self.0.into_iter().filter_map(|sent| if let Sent::Edit(edit) = sent { Some(edit) } else { None });
            return Ok(Patch(edits.collect()));
        }
        let mut written = Written::on(document());
        self.0.into_iter().try_for_each(|sent| written.take(sent))?;
        Ok(Patch(written.operations))
    }
}

impl Sent {
    fn paths(&mut self) -> Vec<&mut Vec<String>> {
        match self {
            Self::Edit(Operation { path, .. }) | Self::Test { path, .. } => vec![path],
            Self::Copy { from, path } | Self::Move { from, path } => vec![from, path],
        }
    }
}

/// A document as far as a patch was written out on it.
struct Written {
    document: Value,
    operations: Vec<Operation>,
    /// The bytes that were copied.
    copied: usize,
}

impl Written {
    fn on(document: Map<String, Value>) -> Self {
        Self { document: Value::Object(document), operations: Vec::new(), copied: 0 }
    }

    fn take(&mut self, sent: Sent) -> Result<(), BadPatch> {
        match sent {
            Sent::Edit(edit) => self.edit(edit),
            Sent::Test { sent, path, value } => self.test(sent, &path, &value),
            Sent::Copy { from, path } => {
                let value = self.copied(&from, "copied")?;
                if path == from && !self.is_item(&from) { Ok(()) } else { self.put(path, value) }
            }
            Sent::Move { from, path } => {
                let value = self.copied(&from, "moved")?;
                if path == from {
                    return Ok(());
                }
                if path.starts_with(&from) {
                    return Err(BadPatch::IntoItself { from: pointer(&from), path: pointer(&path) });
                }
                self.edit(Operation { verb: Verb::Remove, path: from, value: None })?;
                self.put(path, value)
            }
        }
    }

    fn edit(&mut self, edit: Operation) -> Result<(), BadPatch> {
        edit.apply(&mut self.document)?;
        self.operations.push(edit);
        Ok(())
    }

    /// Numbers are equal by what they are worth, and the order of an object's members means nothing.
    fn test(&self, sent: String, path: &[String], expected: &Value) -> Result<(), BadPatch> {
        let Some(found) = self.document.pointer(&pointer(path)) else {
            return Err(BadPatch::Missing { path: sent, done: "tested" });
        };
        if canonical_json(found) == canonical_json(expected) {
            return Ok(());
        }
        let [found, expected] = [found, expected].map(|value| beginning(&value.to_string()));
        Err(BadPatch::Differs { path: sent, found, expected })
    }

    /// What stands at a path.
    fn find(&self, path: &[String], done: &'static str) -> Result<&Value, BadPatch> {
        self.document.pointer(&pointer(path)).ok_or_else(|| BadPatch::Missing { path: pointer(path), done })
    }

    /// The value that a copy or a move is of.
    fn copied(&mut self, from: &[String], done: &'static str) -> Result<Value, BadPatch> {
        let value = self.find(from, done)?.clone();
        self.copied += value.to_string().len();
        if self.copied > MOST_COPIED { Err(BadPatch::TooLarge) } else { Ok(value) }
    }

    fn is_item(&self, path: &[String]) -> bool {
        path.split_last().is_some_and(|(_, way)| self.document.pointer(&pointer(way)).is_some_and(Value::is_array))
    }

    /// Puts what was copied. A member that is there is replaced, where an addition of Magnum's clients would be refused.
    fn put(&mut self, path: Vec<String>, value: Value) -> Result<(), BadPatch> {
        let is_there = !self.is_item(&path) && self.document.pointer(&pointer(&path)).is_some();
        let verb = if is_there { Verb::Replace } else { Verb::Add };
        self.edit(Operation { verb, path, value: Some(value) })
    }
}

fn read(value: Value) -> Result<Sent, BadPatch> {
    let Value::Object(mut fields) = value else { return Err(malformed("an operation is an object")) };
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(malformed(format!("{name:?} is missing or no text"))),
    };
    let (word, path) = (text("op")?, text("path")?);
    let from = if matches!(&*word, "copy" | "move") { read_pointer(&text("from")?)? } else { Vec::new() };
    let value = fields.remove("value");
    if let Some(other) = fields.keys().next() {
        return Err(malformed(format!("it has no field {other:?}")));
    }
    let valued = || value.ok_or_else(|| malformed(format!("the operation on {path:?} has no value")));
    let value = if matches!(&*word, "add" | "replace" | "test") { valued()? } else { Value::Null };
    let path = read_pointer(&path)?;
    let value = in_map_of_texts(&path, value);
    Ok(match &*word {
        "add" => Sent::Edit(Operation { verb: Verb::Add, value: Some(value), path }),
        "replace" => Sent::Edit(Operation { verb: Verb::Replace, value: Some(value), path }),
        "remove" => Sent::Edit(Operation { verb: Verb::Remove, value: None, path }),
        "test" => Sent::Test { sent: pointer(&path), path, value },
        "copy" => Sent::Copy { from, path },
        "move" => Sent::Move { from, path },
        _ => return Err(malformed(format!("the operation {:?} is not taken", beginning(&word)))),
    })
}

/// What an operation says of a key of a map of text, or asks of it: a number, `true` and `false` are their text, as where the whole map comes.
fn in_map_of_texts(path: &[String], value: Value) -> Value {
    match path {
        [map, _] if json::is_text_map(map) && (value.is_number() || value.is_boolean()) => value.to_string().into(),
        _ => value,
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
    escapes.all(|rest| rest.starts_with(['0', '1'])).then(|| json::unescaped(member))
}

/// The field at a path of a document: a step of it is a place in a list where a list stands there, and else a key.
fn field_at(path: &[String], document: &Value) -> String {
    let mut here = Some(document);
    let mut field = String::new();
    for member in path {
        let items = here.and_then(Value::as_array);
        let place = items.and_then(|items| if member == "-" { Some(items.len()) } else { read_index(member) });
        if let Some(place) = place {
            field += &format!("[{place}]");
            here = items.and_then(|items| items.get(place));
        } else {
            let dot = if field.is_empty() { "" } else { "." };
            field += &format!("{dot}{}", json::step(member));
            here = here.and_then(|value| value.get(member));
        }
    }
    field
}

fn beginning(text: &str) -> String {
    text.chars().take(64).collect()
}

fn malformed(what: impl Into<String>) -> BadPatch {
    BadPatch::Malformed { what: what.into() }
}
