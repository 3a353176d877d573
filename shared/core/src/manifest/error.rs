//! Errors in a body: the field, the kind of error for programs, and a sentence for people.
//!
//! The handler of a request maps the kind to the error types of its API. It does not parse the sentence.

use std::fmt;

use super::NameResolver;
use crate::name::{closest_match, did_you_mean, truncated};
use crate::object::Kind;

/// An error in a body, with its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct BodyError {
    /// The field, such as `tasks[2].requires`; empty for the body as a whole.
    pub field: String,
    /// The kind of error, for programs.
    pub kind: BodyErrorKind,
    /// What is wrong and what to do. The sentence follows the name of the field.
    pub reason: String,
}

/// The kinds of errors in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyErrorKind {
    /// No field has this name.
    UnknownField,
    /// A required field is missing.
    MissingField,
    /// The field names an object that does not exist.
    MissingObject,
    /// A label's key or value has an invalid form.
    Label,
    /// A trait is malformed or unknown, or the value is not a trait.
    Trait,
    /// A requirement cannot be read.
    Requirement,
    /// Another system supports this, but it has no meaning here.
    Unsupported,
    /// Any other invalid value, or text that is not a JSON object.
    Value,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.field, self.reason) }
    }
}

impl BodyError {
    /// Creates an error about a field's value.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::with_kind(BodyErrorKind::Value, field, reason)
    }

    /// Creates an error of another kind.
    pub(super) fn with_kind(kind: BodyErrorKind, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), kind, reason: reason.into() }
    }

    /// Changes the kind of an error about an invalid value, for a field whose values have their own kind of error.
    pub(super) fn with_value_kind(self, kind: BodyErrorKind) -> Self {
        Self { kind: if self.kind == BodyErrorKind::Value { kind } else { self.kind }, ..self }
    }

    /// Places the error within an outer field: `outer` is put before the field.
    #[must_use]
    pub fn prefixed(self, outer: &str) -> Self {
        let field = match self.field.as_str() {
            "" => outer.to_owned(),
            inner if inner.starts_with('[') => format!("{outer}{inner}"),
            inner => format!("{outer}.{inner}"),
        };
        Self { field, ..self }
    }

    /// Places the error at this item of a list.
    #[must_use]
    pub(super) fn at_index(self, index: usize) -> Self {
        self.prefixed(&format!("[{index}]"))
    }
}

/// Checks the items of a list. The error names the first item that is refused.
pub(super) fn check_each<T>(
    list: impl IntoIterator<Item = T>,
    check: impl Fn(T) -> Result<(), BodyError>,
) -> Result<(), BodyError> {
    list.into_iter().enumerate().try_for_each(|(at, one)| check(one).map_err(|error| error.at_index(at)))
}

/// Creates the error of a field that names an object that does not exist. `what` is the object's kind in words.
pub(super) fn missing_object(field: &str, (kind, what): (Kind, &str), name: &str, names: &dyn NameResolver) -> BodyError {
    let (name, all) = (truncated(name), names.all_names(kind));
    let meant = did_you_mean(closest_match(&name, all.iter().map(String::as_str)));
    let reason = format!("there is no {what} {name:?}{meant}: create it first, or name another");
    BodyError::with_kind(BodyErrorKind::MissingObject, field, reason)
}

/// Returns the message about a field that does not exist. It suggests the closest name, or lists the existing fields.
pub(super) fn unknown_field(place: &str, name: &str, known: &[&str]) -> String {
    match closest_match(name, known.iter().copied()) {
        Some(near) => format!("is not a field {place} (did you mean {near:?}?): correct its spelling, or remove it"),
        None if known.is_empty() => format!("is not a field {place}: remove it"),
        None => format!("is not a field {place}: remove it, or use one of {}", known.join(", ")),
    }
}
