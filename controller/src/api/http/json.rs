//! Parses JSON from outside: of limited depth, without duplicate keys, and with the text of each number in a label map
//! unchanged.
//!
//! `serde_json` alone uses the last of two equal keys, turns `1.50` into a float whose text is `1.5`, and rounds an
//! integer of more than 64 bits. A label's value is text, and a number there means its JSON text, so maps of text are
//! read from the raw document. So are requirements, whose expressions are text, and the arguments of an inspection
//! rule's actions, which may be the value of a label. Elsewhere a number is a number, and one that would be rounded is
//! refused.

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stemma_core::inspection::sets_label;
use stemma_core::json::{self, InvalidJson};
use stemma_core::manifest::{MAX_DEPTH, TEXT_MAPS};
use stemma_core::name::truncated;
use stemma_wire::error::{ApiError, ErrorType};

/// The name of the field with the requirements of a group or an allocation.
const REQUIREMENTS: &str = "requirements";
/// The name of the field with the actions of an inspection rule.
const ACTIONS: &str = "actions";

/// The error for a body that is not an acceptable JSON document.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the body is not acceptable JSON: {}{}{reason}", self.field, if self.field.is_empty() { "" } else { ": " })]
pub(crate) struct BadJson {
    /// The field, such as `objects[2].parameters.size`. Empty for the body as a whole.
    pub field: String,
    /// The problem, with line and column if they are known.
    pub reason: String,
    /// True if the document is valid JSON, but contains a number that no field can have without rounding.
    is_bad_number: bool,
}

/// A JSON patch that was read from a body.
pub(crate) enum PatchBody {
    /// A patch. If it changes the actions of an inspection rule, the second value is the same patch with the numbers of
    /// actions read with [`number_or_text`]. Only the patched object shows whether a number is the value of a label. If
    /// so, the second value has the correct form of that number. [`check_numbers`] checks the other numbers.
    Valid(Value, Option<Value>),
    /// A number in the patch that no field can have without rounding. The name of its field depends on the patched
    /// object, which shows whether a path segment is the key of a map or the index of a list.
    BadNumber {
        /// The operations up to the one with the number, in which the number is 0.
        operations: Value,
        /// The path of the number in the value of the last of these operations, such as `.q[0]`.
        within: String,
        /// The error.
        bad: BadJson,
    },
}

impl BadJson {
    /// Returns the error for the body as a whole.
    fn new(reason: &dyn ToString) -> Self {
        Self { field: String::new(), reason: reason.to_string(), is_bad_number: false }
    }

    /// Returns the error with its field moved below the field `outer`: `a` becomes `outer.a`.
    fn in_field(self, outer: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Self { field: format!("{outer}{dot}{}", self.field), ..self }
    }

    /// Returns the error for an operation of a patch. `index` is the operation's index. If the problem is in the
    /// operation's value and the operation has a path, the error names the field of that path, and otherwise the index.
    fn in_operation(self, index: usize, operation: &RawValue) -> Self {
        let field = self.path_in_value().zip(operation_field(operation)).map(|(value_path, field)| field + value_path);
        match field {
            Some(field) => self.with_field(field),
            None => self.in_field(&format!("[{index}]")),
        }
    }

    /// Returns the path of the problem within the value of a patch operation, such as `.q[0]`. Returns `None` if the
    /// problem is not in that value.
    fn path_in_value(&self) -> Option<&str> {
        self.field.strip_prefix("value").filter(|suffix| suffix.is_empty() || suffix.starts_with(['.', '[']))
    }

    /// Returns the error with this field in place of its own field.
    pub(crate) fn with_field(self, field: String) -> Self {
        Self { field, ..self }
    }
}

impl From<InvalidJson> for BadJson {
    /// Returns the error for the body as a whole, and notes whether a number is the problem.
    fn from(error: InvalidJson) -> Self {
        let is_bad_number = match error {
            InvalidJson::Number { .. } | InvalidJson::Inexact { .. } => true,
            InvalidJson::NoObject | InvalidJson::Escape => false,
        };
        Self { is_bad_number, ..Self::new(&error) }
    }
}

impl From<BadJson> for ApiError {
    /// Returns the response for the error, with the field that has the problem.
    fn from(bad_json: BadJson) -> Self {
        // A client gets the same error type for a bad number, whether the parser or the check of the field refuses it.
        let is_of_field = bad_json.is_bad_number && !bad_json.field.is_empty();
        let kind = if is_of_field { ErrorType::FieldInvalid } else { ErrorType::RequestMalformed };
        let error = Self::new(kind, bad_json.to_string()).reason(bad_json.reason);
        if bad_json.field.is_empty() { error } else { error.field(bad_json.field) }
    }
}

/// Returns whether a map with this name, such as `labels`, has text values.
pub(crate) fn is_text_map(name: &str) -> bool {
    TEXT_MAPS.contains(&name)
}

/// Returns a key as the path in an error shows it. A long key is truncated.
pub(crate) fn path_segment(key: &str) -> String {
    truncated(key).escape_debug().to_string()
}

/// Parses a body as one JSON document. In a map of text such as `labels`, and in `requirements`, each number and
/// boolean becomes its text. The numbers of an action that sets a label are read with [`number_or_text`].
///
/// # Errors
/// [`BadJson`] for a syntax error, a duplicate key in one object, more than [`MAX_DEPTH`] levels, a number that would
/// be rounded, or text after the document.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, BadJson> {
    read_body(raw_document(bytes)?)
}

/// Parses a body that is itself a map of text. Each number and boolean becomes its text.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_texts(bytes: &[u8]) -> Result<Value, BadJson> {
    read_text_map(raw_document(bytes)?)
}

/// Parses a body that is itself a map of JSON values. Its keys are not fields, so no number becomes text.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_values(bytes: &[u8]) -> Result<Value, BadJson> {
    read_plain(raw_document(bytes)?)
}

/// Parses a body that is a JSON patch. `has_actions` is true if the patched object is an inspection rule, which has
/// actions. A number of an action that no field can have without rounding is 0 in the first form of the patch, and its
/// text in the second form ([`PatchBody::Valid`]). The caller refuses a body that is not a list.
///
/// # Errors
/// As [`parse`], except for a number that no field can hold in the value of an operation with a path. Outside of the
/// actions of a rule, the result is then [`PatchBody::BadNumber`].
pub(crate) fn read_patch(bytes: &[u8], has_actions: bool) -> Result<PatchBody, BadJson> {
    let raw = raw_document(bytes)?;
    if !raw.get().starts_with('[') {
        return Ok(PatchBody::Valid(read_body(raw)?, None));
    }
    let items = json::items(raw);
    let text_forms: Vec<Option<Value>> =
        items.iter().map(|item| has_actions.then(|| with_number_texts(item)).flatten()).collect();
    let mut operations = Vec::new();
    for (index, (item, text_form)) in items.into_iter().zip(&text_forms).enumerate() {
        let result = match read_operation(item) {
            // The number may be the value of a label, so it is not an error yet.
            Err(error) if error.is_bad_number && text_form.is_some() => read_operation_with(item, read_rounded_as_zero),
            result => result,
        };
        match result {
            Ok(operation) => operations.push(operation),
            Err(error) => {
                // For a number of a field, the caller finds the name of the field in the patched object. Other errors
                // are complete.
                let is_of_field = error.is_bad_number && operation_field(item).is_some();
                let value_path = error.path_in_value().filter(|_| is_of_field).map(str::to_owned);
                let Some(value_path) = value_path else { return Err(error.in_operation(index, item)) };
                operations.push(read_operation_with(item, read_rounded_as_zero)?);
                return Ok(PatchBody::BadNumber { operations: operations.into(), within: value_path, bad: error });
            }
        }
    }
    let text_form = text_forms.iter().any(Option::is_some).then(|| {
        operations.iter().zip(text_forms).map(|(operation, text_form)| text_form.unwrap_or_else(|| operation.clone())).collect()
    });
    Ok(PatchBody::Valid(operations.into(), text_form))
}

/// Checks each number in the value of a patched field. `texts` is the same value in the second form of the patch
/// ([`PatchBody::Valid`]). A text in both forms is not checked: it was sent as text, or is the value of a label.
///
/// # Errors
/// [`BadJson`] for the first number that would be rounded.
pub(crate) fn check_numbers(field: &str, value: &Value, texts: &Value) -> Result<(), BadJson> {
    let result = match (value, texts) {
        (Value::Number(_), Value::String(text)) => json::parse_number(text).map(drop).map_err(BadJson::from),
        (Value::Array(values), Value::Array(texts)) => {
            let mut pairs = values.iter().zip(texts).enumerate();
            pairs.try_for_each(|(index, (value, texts))| check_numbers(&format!("[{index}]"), value, texts))
        }
        (Value::Object(values), Value::Object(texts)) => {
            let mut pairs = values.iter().filter_map(|(key, value)| Some((key, value, texts.get(key)?)));
            pairs.try_for_each(|(key, value, texts)| check_numbers(&path_segment(key), value, texts))
        }
        _ => Ok(()),
    };
    result.map_err(|error| error.in_field(field))
}

/// Returns a body as one JSON document, whose values are not parsed yet. Fails for a syntax error, for more than
/// [`MAX_DEPTH`] levels, and for any encoding but UTF-8 without a byte order mark.
fn raw_document(bytes: &[u8]) -> Result<&RawValue, BadJson> {
    if bytes.starts_with("\u{feff}".as_bytes()) {
        return Err(BadJson::new(
            &"it begins with a byte order mark, which JSON must not have (RFC 8259, section 8.1): send it without",
        ));
    }
    if json::is_utf16(bytes) {
        return Err(BadJson::new(&"it is encoded in UTF-16, and JSON must be sent in UTF-8 (RFC 8259, section 8.1)"));
    }
    let raw: &RawValue = serde_json::from_slice(bytes).map_err(|error| BadJson::new(&error))?;
    if json::nesting_depth(raw.get()) > MAX_DEPTH {
        return Err(BadJson::new(&format_args!("more than {MAX_DEPTH} levels of nesting")));
    }
    Ok(raw)
}

/// Reads a body: an object of the API, the objects of an apply (`{"objects": […]}`), or a list of patch operations.
fn read_body(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => read_object(raw, read_member),
        Some(b'[') => {
            let item = |(index, item)| read_operation(item).map_err(|error| error.in_operation(index, item));
            json::items(raw).into_iter().enumerate().map(item).collect()
        }
        _ => read_plain(raw),
    }
}

/// Reads a member of an API object. Its key decides whether numbers in it become their text.
fn read_member(key: &str, raw: &RawValue) -> Result<Value, BadJson> {
    match key {
        REQUIREMENTS => read_expressions(raw),
        ACTIONS => read_actions(raw),
        _ if is_text_map(key) => read_text_map(raw),
        // The objects of an apply.
        "objects" if raw.get().starts_with('[') => read_list(raw, read_body),
        _ => read_plain(raw),
    }
}

/// Reads a patch operation. The path of the operation decides how its value is read ([`read_operand`]).
fn read_operation(raw: &RawValue) -> Result<Value, BadJson> {
    match operation_path(raw) {
        Some(path) => read_object(raw, |key, raw| if key == "value" { read_operand(&path, raw) } else { read_plain(raw) }),
        None => read_plain(raw),
    }
}

/// Reads a value without maps of text. Its keys are not fields, so each number in it remains a number.
fn read_plain(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => read_object(raw, |_, raw| read_plain(raw)),
        Some(b'[') => read_list(raw, read_plain),
        _ => Ok(json::parse_value(raw)?),
    }
}

/// Reads a list, and each of its items with `read`. An error names the index of the item.
fn read_list(raw: &RawValue, read: impl Fn(&RawValue) -> Result<Value, BadJson>) -> Result<Value, BadJson> {
    let item = |(index, item)| read(item).map_err(|error| error.in_field(&format!("[{index}]")));
    json::items(raw).into_iter().enumerate().map(item).collect()
}

/// Reads an object, and each of its members with `read`. A repeated key is refused, and an error names the member as
/// its field.
fn read_object(raw: &RawValue, read: impl Fn(&str, &RawValue) -> Result<Value, BadJson>) -> Result<Value, BadJson> {
    let mut object = Map::new();
    for (key, raw) in json::members(raw)? {
        let value = read(&key, raw).map_err(|error| error.in_field(&path_segment(&key)))?;
        if object.insert(key.clone(), value).is_some() {
            return Err(BadJson::new(&format_args!("the key {key:?} is repeated in one object")));
        }
    }
    Ok(Value::Object(object))
}

/// Reads the value of a field that should be a map of text. In an object, numbers and booleans become their text. Any
/// other value is read unchanged, and refused later.
fn read_text_map(raw: &RawValue) -> Result<Value, BadJson> {
    if raw.get().starts_with('{') { read_object(raw, |_, raw| read_text(raw)) } else { read_plain(raw) }
}

/// Reads a number or a boolean as its text, and any other value unchanged.
fn read_text(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'-' | b'0'..=b'9' | b't' | b'f') => Ok(Value::String(raw.get().to_owned())),
        _ => read_plain(raw),
    }
}

/// Reads requirements, or a part of them. Numbers and booleans at any depth become their text.
fn read_expressions(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => read_object(raw, |_, raw| read_expressions(raw)),
        Some(b'[') => read_list(raw, read_expressions),
        _ => read_text(raw),
    }
}

/// Reads the actions of an inspection rule, or one of them. Only the arguments of the action `set-attribute` can have
/// the value of a label, so only their numbers can become text.
fn read_actions(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') if is_set_attribute(raw) => {
            read_object(raw, |key, raw| if key == "args" { read_arguments(raw) } else { read_plain(raw) })
        }
        Some(b'[') => read_list(raw, read_actions),
        _ => read_plain(raw),
    }
}

/// Returns whether an action is `set-attribute`, the only one that can set a label.
fn is_set_attribute(action: &RawValue) -> bool {
    text_member(action, "op").as_deref() == Some("set-attribute")
}

/// Reads the arguments of a `set-attribute` action. If the action sets a label, its numbers are read with
/// [`number_or_text`].
fn read_arguments(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') if sets_label(raw) => read_object(raw, |_, raw| number_or_text(raw)),
        Some(b'[') if sets_label(raw) => read_list(raw, number_or_text),
        _ => read_plain(raw),
    }
}

/// Returns the path of a patch operation, or `None` if it has no path that is text.
fn operation_path(operation: &RawValue) -> Option<String> {
    text_member(operation, "path")
}

/// Returns the member `name` of an object. Returns `None` if it is missing or not text.
fn text_member(object: &RawValue, name: &str) -> Option<String> {
    let members = json::members(object).ok()?;
    members.iter().find(|(key, _)| key == name).and_then(|(_, raw)| json::parse_string(raw.get()).ok())
}

/// If the operation changes the actions of an inspection rule, returns it with each number of its value read with
/// [`number_or_text`], because a float could not hold every number exactly. Returns `None` for any other operation, and
/// if the value cannot be read.
fn with_number_texts(operation: &RawValue) -> Option<Value> {
    let is_of_actions = operation_path(operation)?.split('/').nth(1) == Some(ACTIONS);
    // The value of a test is not the value of an action.
    let is_change = is_of_actions && text_member(operation, "op")? != "test";
    if is_change { read_operation_with(operation, read_numbers_as_text).ok() } else { None }
}

/// Reads a patch operation. Its value is read with `read`.
fn read_operation_with(operation: &RawValue, read: fn(&RawValue) -> Result<Value, BadJson>) -> Result<Value, BadJson> {
    read_object(operation, |key, raw| if key == "value" { read(raw) } else { read_plain(raw) })
}

/// Reads a value. Each number in it, at any depth, is read with [`number_or_text`].
fn read_numbers_as_text(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => read_object(raw, |_, raw| read_numbers_as_text(raw)),
        Some(b'[') => read_list(raw, read_numbers_as_text),
        _ => number_or_text(raw),
    }
}

/// Reads a value. Each number in it that would be rounded becomes 0.
fn read_rounded_as_zero(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => read_object(raw, |_, raw| read_rounded_as_zero(raw)),
        Some(b'[') => read_list(raw, read_rounded_as_zero),
        _ => match read_plain(raw) {
            Err(error) if error.is_bad_number => Ok(0.into()),
            result => result,
        },
    }
}

/// Returns the field that a patch operation sets, as errors name fields: `labels.a` for the path `/labels/a`.
fn operation_field(operation: &RawValue) -> Option<String> {
    let path = operation_path(operation)?;
    let members = path.strip_prefix('/')?.split('/').map(|member| path_segment(&unescape(member)));
    Some(members.collect::<Vec<_>>().join(".")).filter(|field| !field.is_empty())
}

/// Returns a member of a JSON pointer without its escapes `~0` and `~1`.
pub(crate) fn unescape(member: &str) -> String {
    member.replace("~1", "/").replace("~0", "~")
}

/// Reads the value of a patch operation. Its path decides how. In requirements and in a whole map of text, each number
/// and boolean becomes its text. A single value of a map of text is read with [`number_or_text`], and so are the
/// arguments of an action that sets a label. Any other number remains a number.
fn read_operand(path: &str, raw: &RawValue) -> Result<Value, BadJson> {
    match path.split('/').nth(1).unwrap_or_default() {
        REQUIREMENTS => read_expressions(raw),
        ACTIONS if path.ends_with("/args") => read_arguments(raw),
        ACTIONS => read_actions(raw),
        field if !is_text_map(field) => read_plain(raw),
        _ if raw.get().starts_with('{') => read_text_map(raw),
        _ => number_or_text(raw),
    }
}

/// Reads a number. If the parsed number prints as the same text again, as `5` and `1.5` do, it remains a number. Any
/// other number, such as `1.50`, becomes its text. A value that is not a number is read unchanged.
fn number_or_text(raw: &RawValue) -> Result<Value, BadJson> {
    let text = raw.get();
    if !text.starts_with(|character: char| character == '-' || character.is_ascii_digit()) {
        return read_plain(raw);
    }
    let number = json::parse_number(text).ok().filter(|number| number.to_string() == text);
    Ok(number.map_or_else(|| Value::String(text.to_owned()), Value::Number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parse_keeps_number_text_in_label_maps() {
        for (text, expected) in [
            (
                r#"{"labels":{"a":1.50,"b":true,"c":-0.0,"d":12345678901234567890,"e":"x","f":null}}"#,
                json!({"labels": {"a": "1.50", "b": "true", "c": "-0.0", "d": "12345678901234567890", "e": "x", "f": null}}),
            ),
            (
                r#"[{"value":18446744073709551616,"path":"/labels/a"},{"value":"x"}]"#,
                json!([{"value": "18446744073709551616", "path": "/labels/a"}, {"value": "x"}]),
            ),
            (
                r#"[{"path":"/labels","value":{"a":9007199254740993}},{"path":"/parameters/a","value":1.50}]"#,
                json!([{"path": "/labels", "value": {"a": "9007199254740993"}}, {"path": "/parameters/a", "value": 1.5}]),
            ),
            (r#"{"labels":{"a":18446744073709551616}}"#, json!({"labels": {"a": "18446744073709551616"}})),
            (r#"{"objects":[{"annotations":{"a":1e21}}]}"#, json!({"objects": [{"annotations": {"a": "1e21"}}]})),
            (r#"{"parameters":{"labels":{"a":1.5}}}"#, json!({"parameters": {"labels": {"a": 1.5}}})),
            (r#"{"labels":5}"#, json!({"labels": 5})),
            (
                r#"[{"op":"add","path":"/labels/a","value":5},{"op":"add","path":"/labels/b","value":1.50}]"#,
                json!([{"op": "add", "path": "/labels/a", "value": 5}, {"op": "add", "path": "/labels/b", "value": "1.50"}]),
            ),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn y04_parse_keeps_number_text_in_requirements_and_rule_labels() {
        let action_text =
            |path: &str, value: &str| format!(r#"{{"op":"set-attribute","args":{{"path":"{path}","value":{value}}}}}"#);
        let action_value = |path: &str, value: Value| json!({"op": "set-attribute", "args": {"path": path, "value": value}});
        for (text, expected) in [
            (
                r#"{"requirements":{"a":1.50,"b":[1e3,true,"<= 2"],"c":18446744073709551616}}"#.to_owned(),
                json!({"requirements": {"a": "1.50", "b": ["1e3", "true", "<= 2"], "c": "18446744073709551616"}}),
            ),
            (
                r#"{"objects":[{"requirements":[{"a":1.10},"b 1"]}]}"#.to_owned(),
                json!({"objects": [{"requirements": [{"a": "1.10"}, "b 1"]}]}),
            ),
            (
                r#"[{"op":"add","path":"/requirements","value":{"a":1.10}},{"op":"add","path":"/requirements/a","value":1.10}]"#
                    .to_owned(),
                json!([{"op": "add", "path": "/requirements", "value": {"a": "1.10"}}, {"op": "add", "path": "/requirements/a", "value": "1.10"}]),
            ),
            (
                format!(r#"{{"actions":[{},{}]}}"#, action_text("labels/a", "1.50"), action_text("properties/a", "1.50")),
                json!({"actions": [action_value("labels/a", json!("1.50")), action_value("properties/a", json!(1.5))]}),
            ),
            (
                format!(r#"[{{"op":"add","path":"/actions/-","value":{}}}]"#, action_text("/labels/a", "1e3")),
                json!([{"op": "add", "path": "/actions/-", "value": action_value("/labels/a", json!("1e3"))}]),
            ),
            (
                r#"{"actions":[{"op":"set-attribute","args":["labels/a",1.50]}]}"#.to_owned(),
                json!({"actions": [{"op": "set-attribute", "args": ["labels/a", "1.50"]}]}),
            ),
            (
                r#"[{"op":"replace","path":"/actions/0/args","value":{"path":"labels/a","value":1.50}}]"#.to_owned(),
                json!([{"op": "replace", "path": "/actions/0/args", "value": {"path": "labels/a", "value": "1.50"}}]),
            ),
            (
                r#"[{"op":"add","path":"/actions/0/args","value":["labels/a",1.50]}]"#.to_owned(),
                json!([{"op": "add", "path": "/actions/0/args", "value": ["labels/a", "1.50"]}]),
            ),
            (
                r#"[{"op":"add","path":"/actions/0/args","value":["properties/a",1.50]}]"#.to_owned(),
                json!([{"op": "add", "path": "/actions/0/args", "value": ["properties/a", 1.5]}]),
            ),
            // An older version stored such a number as a number.
            (
                format!(r#"{{"actions":[{}]}}"#, action_text("labels/a", "1.5")),
                json!({"actions": [action_value("labels/a", json!(1.5))]}),
            ),
            (r#"{"parameters":{"requirements":{"a":1.50}}}"#.to_owned(), json!({"parameters": {"requirements": {"a": 1.5}}})),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    /// Whether a number is a label's value is known only after the patch is applied.
    #[test]
    fn y04_read_patch_returns_both_forms_when_path_enters_action() {
        let value = |path: &str, value: &str| format!(r#"[{{"op":"replace","path":"{path}","value":{value}}}]"#);
        let operation_value = |value: &Value| value[0]["value"].clone();
        for (path, sent, number, text) in [
            ("/actions/0/args/value", "1.50", json!(1.5), Some(json!("1.50"))),
            ("/actions/0/args/value", "5", json!(5), Some(json!(5))),
            ("/actions/0/args/1", "1e3", json!(1000.0), Some(json!("1e3"))),
            ("/actions/0/args/value", "18446744073709551616", json!(0), Some(json!("18446744073709551616"))),
            ("/actions/0/args", r#"{"value":[1.50]}"#, json!({"value": [1.5]}), Some(json!({"value": ["1.50"]}))),
            ("/conditions/0/args/value", "1.50", json!(1.5), None),
        ] {
            let PatchBody::Valid(first_form, texts) = read_patch(value(path, sent).as_bytes(), true).unwrap() else {
                panic!("the patch of {path} with {sent} is valid")
            };
            assert_eq!((operation_value(&first_form), texts.as_ref().map(operation_value)), (number, text), "{path} {sent}");
        }
        let bad_number = read_patch(value("/conditions/0/args/value", "1e400").as_bytes(), true).unwrap();
        assert!(matches!(bad_number, PatchBody::BadNumber { bad, .. } if bad.is_bad_number));
        assert_eq!(
            check_numbers("actions", &json!([{"args": [1.5]}]), &json!([{"args": ["1.50"]}])).map_err(|e| e.field),
            Ok(())
        );
        let error = check_numbers("actions", &json!([{"args": [0]}]), &json!([{"args": ["1e400"]}])).unwrap_err();
        assert_eq!((error.field.as_str(), error.is_bad_number), ("actions[0].args[0]", true));
    }

    #[test]
    fn y04_parse_reads_number_when_action_sets_no_attribute() {
        let data = r#"{"op":"set-plugin-data","args":{"path":"labels/a","value":1.50}}"#;
        let expected = json!({"op": "set-plugin-data", "args": {"path": "labels/a", "value": 1.5}});
        let whole = parse(format!(r#"{{"actions":[{data}]}}"#).as_bytes()).unwrap();
        assert_eq!(whole, json!({"actions": [expected]}));
    }

    #[test]
    fn y09_parse_rejects_byte_order_mark() {
        let error = parse("\u{feff}{}".as_bytes()).unwrap_err();
        assert!(error.reason.starts_with("it begins with a byte order mark"), "{error}");
    }

    #[test]
    fn y09_parse_rejects_utf_16() {
        for text in ["{}", "\u{feff}{}", "\u{feff}", "[{\"kind\": \"Node\"}]"] {
            for bytes in [
                text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
                text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
            ] {
                let error = parse(&bytes).unwrap_err();
                assert!(error.reason.starts_with("it is encoded in UTF-16"), "{bytes:?}: {error}");
            }
        }
    }

    #[test]
    fn parse_names_field_when_value_is_malformed() {
        for (text, field) in [
            (r#"{"parameters":{"a":[0,18446744073709551616]}}"#, "parameters.a[1]"),
            (r#"{"objects":[{},{"parameters":{"a":{"b":-9223372036854775809}}}]}"#, "objects[1].parameters.a.b"),
            (r#"[{"op":"add","value":{"a":1e999}}]"#, "[0].value.a"),
            (r#"[{"op":"add","path":"/parameters/a~1b","value":{"c":[1e999]}}]"#, "parameters.a/b.c[0]"),
            (r#"{"labels":{"a":["\ud800"]}}"#, "labels.a[0]"),
            (r#"{"a\n":{"b":1,"b":2}}"#, "a\\n"),
            (r#"{"a":1} {}"#, ""),
        ] {
            let error = ApiError::from(parse(text.as_bytes()).unwrap_err());
            let (error_field, reason) = (error.field.clone().unwrap_or_default(), error.reason.clone().unwrap());
            let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
            assert_eq!(error.message, format!("the body is not acceptable JSON: {field}{reason}"), "{text}");
            assert_eq!(field.trim_end_matches(": "), error_field, "{text}");
        }
    }

    /// A number that no field can hold is refused with the same error type and field in each form of a write.
    #[test]
    fn y05_parse_names_field_when_number_does_not_fit() {
        for number in ["1e400", "-1e400", "18446744073709551616"] {
            for (field, merge, patch) in [
                ("splay", r#"{"splay":N}"#, r#"[{"op":"add","path":"/splay","value":N}]"#),
                ("properties.p", r#"{"properties":{"p":N}}"#, r#"[{"op":"add","path":"/properties/p","value":N}]"#),
                ("properties.p", r#"{"properties":{"p":N}}"#, r#"[{"op":"add","path":"/properties","value":{"p":N}}]"#),
            ] {
                for text in [merge, patch] {
                    let refused = ApiError::from(parse(text.replace('N', number).as_bytes()).unwrap_err());
                    assert_eq!((refused.kind, refused.field.as_deref()), (ErrorType::FieldInvalid, Some(field)), "{text}");
                }
            }
        }
        // Invalid JSON is still reported as such, and an error about a body that is only such a number has no field.
        for text in [r#"{"a":1,"a":2}"#, r#"{"a":"\ud800"}"#, "1e400", "{"] {
            assert_eq!(ApiError::from(parse(text.as_bytes()).unwrap_err()).kind, ErrorType::RequestMalformed, "{text}");
        }
    }

    #[test]
    fn parse_states_reason_when_body_is_refused() {
        let deep = format!("{}{}", "[".repeat(25), "]".repeat(25));
        for (text, part) in [
            (r#"{"a":1,"a":2}"#, "the key \"a\" is repeated in one object"),
            (r#"{"labels":{"a":"1","a":"2"}}"#, "is repeated in one object"),
            (r#"{"a":1e999}"#, "is not acceptable JSON: a: number out of range"),
            (
                r#"{"objects":[{"parameters":{"a":[0,18446744073709551616]}}]}"#,
                ": objects[0].parameters.a[1]: number out of range: 18446744073709551616 does not fit into 64 bits",
            ),
            (
                r#"[{"path":"/parameters/a","value":18446744073709551616}]"#,
                ": parameters.a: number out of range: 18446744073709551616",
            ),
            (r#"{"parameters":{"a":-9223372036854775809}}"#, "number out of range"),
            (r#"{"a":"\ud800"}"#, "an escape that is not a valid character"),
            (r"{} {}", "trailing"),
            ("{", "EOF"),
            (deep.as_str(), "24 levels"),
        ] {
            let message = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
