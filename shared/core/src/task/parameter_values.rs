//! The values of a task's parameters, as a rule about several parameters reads them.

use serde_json::{Map, Value};

use super::path::is_template;

/// Returns whether a parameter has another value than `null` and `false`.
pub(super) fn is_set(values: &Map<String, Value>, name: &str) -> bool {
    !matches!(values.get(name), None | Some(Value::Null | Value::Bool(false)))
}

/// Returns whether a parameter is `true`.
pub(super) fn is_true(values: &Map<String, Value>, name: &str) -> bool {
    values.get(name) == Some(&Value::Bool(true))
}

/// Returns the text of a parameter that is no template. `None` for any other value.
pub(super) fn literal_text<'a>(values: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    values.get(name).and_then(Value::as_str).filter(|text| !is_template(text))
}

/// Returns the error of a parameter: the path of its field, and a message.
pub(super) fn error_at(name: &str, message: impl Into<String>) -> (String, String) {
    (format!("parameters.{name}"), message.into())
}
