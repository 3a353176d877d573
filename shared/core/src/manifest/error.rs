//! What may be wrong with a body: the field, the kind of error for programs, and a sentence for people.
//!
//! Whoever answers a request maps the kind to its own types of errors, and needs no look at the sentence.

use std::fmt;

use super::Names;
use crate::name::{cut, near, suggest};
use crate::object::Kind;

/// What is wrong with a body, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct BodyError {
    /// The field, as `tasks[2].requires`; empty for the body as a whole.
    pub field: String,
    /// What kind of error it is, for programs.
    pub kind: BodyErrorKind,
    /// What is wrong and what to do, as a sentence that the field stands before.
    pub reason: String,
}

/// The kinds of errors in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyErrorKind {
    /// There is no field of that name.
    UnknownField,
    /// A field that is needed is not there.
    MissingField,
    /// The field names an object that does not exist.
    MissingObject,
    /// A label's key or value is not of the allowed form.
    Label,
    /// A trait is malformed, unknown, or no trait at all.
    Trait,
    /// A requirement can't be read.
    Requirement,
    /// Another system has it, and it means nothing here.
    Unsupported,
    /// Any other value that the field can't have, or text that is no JSON object.
    Value,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.field, self.reason) }
    }
}

impl BodyError {
    /// An error of a field's value.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::of(BodyErrorKind::Value, field, reason)
    }

    /// An error of another kind.
    pub(super) fn of(kind: BodyErrorKind, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), kind, reason: reason.into() }
    }

    /// The same in a field whose values have a kind of error of their own.
    pub(super) fn in_value_of(self, kind: BodyErrorKind) -> Self {
        Self { kind: if self.kind == BodyErrorKind::Value { kind } else { self.kind }, ..self }
    }

    /// The same, seen from around: `outer` is put before the field.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        let field = match self.field.as_str() {
            "" => outer.to_owned(),
            inner if inner.starts_with('[') => format!("{outer}{inner}"),
            inner => format!("{outer}.{inner}"),
        };
        Self { field, ..self }
    }

    /// The same in a list, seen from around: the error is in this item of it.
    #[must_use]
    pub(super) fn at(self, index: usize) -> Self {
        self.within(&format!("[{index}]"))
    }
}

/// Checks the items of a list. The error is placed at the first that is refused.
pub(super) fn check_each<T>(
    list: impl IntoIterator<Item = T>,
    check: impl Fn(T) -> Result<(), BodyError>,
) -> Result<(), BodyError> {
    list.into_iter().enumerate().try_for_each(|(at, one)| check(one).map_err(|error| error.at(at)))
}

/// The error of a field that names an object that is not there; `what` is the object's kind in words.
pub(super) fn no_object(field: &str, (kind, what): (Kind, &str), name: &str, names: &dyn Names) -> BodyError {
    let (name, all) = (cut(name), names.all(kind));
    let meant = suggest(near(&name, all.iter().map(String::as_str)));
    let reason = format!("there is no {what} {name:?}{meant}: make it first, or name another");
    BodyError::of(BodyErrorKind::MissingObject, field, reason)
}

/// The sentence about a field that is not there: what was meant, else those that are.
pub(super) fn no_field(place: &str, name: &str, known: &[&str]) -> String {
    match near(name, known.iter().copied()) {
        Some(near) => format!("is no field {place} (did you mean {near:?}?): mend its spelling, or take it out"),
        None if known.is_empty() => format!("is no field {place}: take it out"),
        None => format!("is no field {place}: take it out, or take one of {}", known.join(", ")),
    }
}
