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
    /// The path of the field, such as `tasks[2].requires`. Empty if the error is about the whole body.
    pub field: String,
    /// The kind of error, for programs.
    pub kind: BodyErrorKind,
    /// The message for people: the fault, and in most cases a correction. It is printed after the path of the field.
    pub reason: String,
}

/// The kinds of errors in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyErrorKind {
    /// A field that this kind of object does not have, or that an object nested in a field does not have.
    UnknownField,
    /// A required field that is missing or blank.
    MissingField,
    /// A field that refers to an object that does not exist.
    MissingObject,
    /// A label with an invalid key or value, or a field `labels` that is invalid as a whole.
    Label,
    /// A trait that is malformed or unknown, or a value that is not a trait.
    Trait,
    /// A requirement that cannot be parsed, has an invalid name, or needs an unknown trait.
    Requirement,
    /// A feature of Ironic's inspection rules that Stemma does not support.
    Unsupported,
    /// Any other error, such as an invalid value, a field that occurs twice, or text that is not a JSON object.
    Value,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.field, self.reason) }
    }
}

impl BodyError {
    /// Creates an error about the value of a field, with the kind [`BodyErrorKind::Value`].
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::with_kind(BodyErrorKind::Value, field, reason)
    }

    pub(super) fn with_kind(kind: BodyErrorKind, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), kind, reason: reason.into() }
    }

    /// Returns the error with this kind in place of [`BodyErrorKind::Value`]. An error of another kind is unchanged.
    /// Fields such as labels and traits have their own kind of error for an invalid value.
    pub(super) fn with_value_kind(self, kind: BodyErrorKind) -> Self {
        Self { kind: if self.kind == BodyErrorKind::Value { kind } else { self.kind }, ..self }
    }

    /// Returns the error with `outer` before the path of its field. For example, the field `id` within the field `task`
    /// becomes `task.id`.
    #[must_use]
    pub fn prefixed(self, outer: &str) -> Self {
        let field = match self.field.as_str() {
            "" => outer.to_owned(),
            inner if inner.starts_with('[') => format!("{outer}{inner}"),
            inner => format!("{outer}.{inner}"),
        };
        Self { field, ..self }
    }

    /// Returns the error with the index of a list item before the path of its field, such as `[2].id`.
    #[must_use]
    pub(super) fn at_index(self, index: usize) -> Self {
        self.prefixed(&format!("[{index}]"))
    }
}

/// Checks the items of a list. Fails at the first item that `check` refuses, with the index of the item.
pub(super) fn check_each<T>(
    list: impl IntoIterator<Item = T>,
    check: impl Fn(T) -> Result<(), BodyError>,
) -> Result<(), BodyError> {
    list.into_iter().enumerate().try_for_each(|(index, item)| check(item).map_err(|error| error.at_index(index)))
}

/// Creates the error about a field that refers to an object that does not exist. It suggests the most similar existing
/// name. `kind_text` is the object's kind in words.
pub(super) fn missing_object(field: &str, (kind, kind_text): (Kind, &str), name: &str, names: &dyn NameResolver) -> BodyError {
    let (name, existing_names) = (truncated(name), names.all_names(kind));
    let suggestion = did_you_mean(closest_match(&name, existing_names.iter().map(String::as_str)));
    let reason = format!("there is no {kind_text} {name:?}{suggestion}: create it first, or name another");
    BodyError::with_kind(BodyErrorKind::MissingObject, field, reason)
}

/// Returns the message about a field that does not exist. It suggests the most similar of `field_names`, or lists all
/// of them. `place` is a phrase such as `of this kind`.
pub(super) fn unknown_field(place: &str, name: &str, field_names: &[&str]) -> String {
    match closest_match(name, field_names.iter().copied()) {
        Some(suggestion) => format!("is not a field {place} (did you mean {suggestion:?}?): correct its spelling, or remove it"),
        None if field_names.is_empty() => format!("is not a field {place}: remove it"),
        None => format!("is not a field {place}: remove it, or use one of {}", field_names.join(", ")),
    }
}
