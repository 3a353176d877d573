//! Reading JSON from outside: bounded in depth, no key twice, and a number in a label map kept as it was sent.
//!
//! `serde_json` alone takes the last of two equal keys, turns `1.50` into a float whose text is `1.5`, and rounds an integer
//! of more than 64 bits. A label's value is text, and a number there means its JSON text, so the maps of text are
//! read from the raw document. So are requirements, whose expressions are text, and what an action of an inspection rule gives, since it may be
//! a label's. Elsewhere a number is a number, and one that would be rounded is refused.

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stemma_core::inspection::are_of_label;
use stemma_core::json::{self, InvalidJson};
use stemma_core::manifest::{MAX_DEPTH, TEXT_MAPS};
use stemma_core::name::cut;
use stemma_wire::error::{ApiError, ErrorType};

/// The requirements of a group or an allocation.
const REQUIREMENTS: &str = "requirements";
/// The actions of an inspection rule.
const ACTIONS: &str = "actions";

/// The body is no JSON document that is taken.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the body is not JSON that can be taken: {}{}{reason}", self.field, if self.field.is_empty() { "" } else { ": " })]
pub(crate) struct BadJson {
    /// The field, as `objects[2].parameters.size`; empty for the body as a whole.
    pub field: String,
    /// What is wrong and, where known, the line and column.
    pub reason: String,
    /// Whether the document is JSON, and a number in it is none that a field holds.
    is_number: bool,
}

/// A JSON patch.
pub(crate) enum PatchBody {
    /// The patch. Where it changes actions also the same with each number there as its text: whether such a number is a label's is known once
    /// the patch is applied, and then [`check_numbers`] looks at those that are not.
    Read(Value, Option<Value>),
    /// A number in it is none that a field holds. What the number's field is called is known with the object: a step of a path is a key of a
    /// map or a place in a list, by what stands there.
    Unfit {
        /// The operations up to the one with the number, in which that is 0.
        operations: Value,
        /// The place of the number in the value of the last of them, as `.q[0]`.
        within: String,
        /// The refusal.
        bad: BadJson,
    },
}

impl BadJson {
    fn new(reason: &dyn ToString) -> Self {
        Self { field: String::new(), reason: reason.to_string(), is_number: false }
    }

    /// The same, of what stands in a field.
    fn within(self, outer: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Self { field: format!("{outer}{dot}{}", self.field), ..self }
    }

    /// The same, of what stands in an operation of a patch. What is wrong with its value is wrong with the field that it sets.
    fn within_operation(self, at: usize, operation: &RawValue) -> Self {
        let field = self.within_value().zip(field_of(operation)).map(|(within, field)| field + within);
        match field {
            Some(field) => self.of(field),
            None => self.within(&format!("[{at}]")),
        }
    }

    /// The place in the value of a patch operation in which it stands, as `.q[0]`.
    fn within_value(&self) -> Option<&str> {
        self.field.strip_prefix("value").filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }

    /// The same, of what stands in this field.
    pub(crate) fn of(self, field: String) -> Self {
        Self { field, ..self }
    }
}

impl From<InvalidJson> for BadJson {
    fn from(error: InvalidJson) -> Self {
        let is_number = match error {
            InvalidJson::Number { .. } | InvalidJson::Inexact { .. } => true,
            InvalidJson::NoObject | InvalidJson::Escape => false,
        };
        Self { is_number, ..Self::new(&error) }
    }
}

impl From<BadJson> for ApiError {
    fn from(bad: BadJson) -> Self {
        // As one that is refused where its field is read.
        let is_of_field = bad.is_number && !bad.field.is_empty();
        let kind = if is_of_field { ErrorType::FieldInvalid } else { ErrorType::RequestMalformed };
        let error = Self::new(kind, bad.to_string()).reason(bad.reason);
        if bad.field.is_empty() { error } else { error.field(bad.field) }
    }
}

/// Whether the values of a map of that name are text.
pub(crate) fn is_text_map(name: &str) -> bool {
    TEXT_MAPS.contains(&name)
}

/// A key as it stands in a path; of a long one its beginning.
pub(crate) fn step(key: &str) -> String {
    cut(key).escape_debug().to_string()
}

/// Reads one document.
///
/// # Errors
/// [`BadJson`] for a syntax error, a key twice in one object, more than [`MAX_DEPTH`] levels, a number that would be
/// rounded, or text after the document.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, BadJson> {
    body(document(bytes)?)
}

/// Reads one document that is a map of text itself: numbers and booleans become their text.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_texts(bytes: &[u8]) -> Result<Value, BadJson> {
    text_map(document(bytes)?)
}

/// Reads one document that is a map of values itself: its keys are no fields, so each number in it is a number.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_values(bytes: &[u8]) -> Result<Value, BadJson> {
    plain(document(bytes)?)
}

/// Reads one document that is a JSON patch, of an object that has actions (`has_actions`) or none. A number that no field holds stands as 0
/// where its action has its text.
///
/// # Errors
/// As [`parse`], but for a number that no field holds in the value of an operation.
pub(crate) fn read_patch(bytes: &[u8], has_actions: bool) -> Result<PatchBody, BadJson> {
    let raw = document(bytes)?;
    if !raw.get().starts_with('[') {
        return Ok(PatchBody::Read(body(raw)?, None));
    }
    let items = json::items(raw);
    let texts: Vec<Option<Value>> = items.iter().map(|item| has_actions.then(|| with_texts(item)).flatten()).collect();
    let mut said = Vec::new();
    for (at, (item, texts)) in items.into_iter().zip(&texts).enumerate() {
        let read = match operation(item) {
            Err(bad) if bad.is_number && texts.is_some() => with_value(item, stand_ins),
            read => read,
        };
        match read {
            Ok(operation) => said.push(operation),
            Err(bad) => {
                let is_of_field = bad.is_number && field_of(item).is_some();
                let within = bad.within_value().filter(|_| is_of_field).map(str::to_owned);
                let Some(within) = within else { return Err(bad.within_operation(at, item)) };
                said.push(with_value(item, stand_ins)?);
                return Ok(PatchBody::Unfit { operations: said.into(), within, bad });
            }
        }
    }
    let whole = texts
        .iter()
        .any(Option::is_some)
        .then(|| said.iter().zip(texts).map(|(said, texts)| texts.unwrap_or_else(|| said.clone())).collect());
    Ok(PatchBody::Read(said.into(), whole))
}

/// Looks at each number of a patched field whose text may have been kept in the other of both.
///
/// # Errors
/// [`BadJson`] for the first that would be rounded.
pub(crate) fn check_numbers(field: &str, value: &Value, texts: &Value) -> Result<(), BadJson> {
    let checked = match (value, texts) {
        (Value::Number(_), Value::String(text)) => json::number(text).map(drop).map_err(BadJson::from),
        (Value::Array(values), Value::Array(texts)) => {
            let mut both = values.iter().zip(texts).enumerate();
            both.try_for_each(|(at, (value, texts))| check_numbers(&format!("[{at}]"), value, texts))
        }
        (Value::Object(values), Value::Object(texts)) => {
            let mut both = values.iter().filter_map(|(key, value)| Some((key, value, texts.get(key)?)));
            both.try_for_each(|(key, value, texts)| check_numbers(&step(key), value, texts))
        }
        _ => Ok(()),
    };
    checked.map_err(|bad| bad.within(field))
}

fn document(bytes: &[u8]) -> Result<&RawValue, BadJson> {
    if bytes.starts_with("\u{feff}".as_bytes()) {
        return Err(BadJson::new(
            &"it begins with a byte order mark, which JSON has not (RFC 8259, section 8.1): send it without",
        ));
    }
    if json::is_utf_16(bytes) {
        return Err(BadJson::new(
            &"it is a text in UTF-16, and JSON that is sent is in UTF-8 (RFC 8259, section 8.1): send it so",
        ));
    }
    let raw: &RawValue = serde_json::from_slice(bytes).map_err(|error| BadJson::new(&error))?;
    if json::nesting(raw.get()) > MAX_DEPTH {
        return Err(BadJson::new(&format_args!("more than {MAX_DEPTH} levels of nesting")));
    }
    Ok(raw)
}

/// The body itself: an object of the API, `{"objects": […]}`, or a list of patch operations.
fn body(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => object(raw, member),
        Some(b'[') => {
            let item = |(at, item)| operation(item).map_err(|bad| bad.within_operation(at, item));
            json::items(raw).into_iter().enumerate().map(item).collect()
        }
        _ => plain(raw),
    }
}

/// A member of an object's body.
fn member(key: &str, raw: &RawValue) -> Result<Value, BadJson> {
    match key {
        REQUIREMENTS => expressions(raw),
        ACTIONS => actions(raw),
        _ if is_text_map(key) => text_map(raw),
        // The list of an apply.
        "objects" if raw.get().starts_with('[') => list(raw, body),
        _ => plain(raw),
    }
}

/// A patch operation. In the value of some fields numbers keep their text.
fn operation(raw: &RawValue) -> Result<Value, BadJson> {
    match path_of(raw) {
        Some(path) => object(raw, |key, raw| if key == "value" { operand(&path, raw) } else { plain(raw) }),
        None => plain(raw),
    }
}

/// What stands anywhere else: its keys are no fields, so each number in it is a number.
fn plain(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => object(raw, |_, raw| plain(raw)),
        Some(b'[') => list(raw, plain),
        _ => Ok(json::value(raw)?),
    }
}

fn list(raw: &RawValue, read: impl Fn(&RawValue) -> Result<Value, BadJson>) -> Result<Value, BadJson> {
    let item = |(at, item)| read(item).map_err(|bad| bad.within(&format!("[{at}]")));
    json::items(raw).into_iter().enumerate().map(item).collect()
}

fn object(raw: &RawValue, read: impl Fn(&str, &RawValue) -> Result<Value, BadJson>) -> Result<Value, BadJson> {
    let mut object = Map::new();
    for (key, raw) in json::members(raw)? {
        let value = read(&key, raw).map_err(|bad| bad.within(&step(&key)))?;
        if object.insert(key.clone(), value).is_some() {
            return Err(BadJson::new(&format_args!("the key {key:?} stands twice in one object")));
        }
    }
    Ok(Value::Object(object))
}

/// Reads what stands where a map of text is expected: numbers and booleans of an object become their text.
fn text_map(raw: &RawValue) -> Result<Value, BadJson> {
    if raw.get().starts_with('{') { object(raw, |_, raw| text(raw)) } else { plain(raw) }
}

/// The text of a number or a boolean; anything else as it is.
fn text(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'-' | b'0'..=b'9' | b't' | b'f') => Ok(Value::String(raw.get().to_owned())),
        _ => plain(raw),
    }
}

/// Reads requirements, or a part of them: numbers and booleans become their text, however deep they stand.
fn expressions(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => object(raw, |_, raw| expressions(raw)),
        Some(b'[') => list(raw, expressions),
        _ => text(raw),
    }
}

/// Reads the actions of an inspection rule, or one of them.
fn actions(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') if sets_attribute(raw) => {
            object(raw, |key, raw| if key == "args" { arguments(raw) } else { plain(raw) })
        }
        Some(b'[') => list(raw, actions),
        _ => plain(raw),
    }
}

/// Whether an action gives an attribute a value. No other one gives a label a value.
fn sets_attribute(action: &RawValue) -> bool {
    text_member(action, "op").as_deref() == Some("set-attribute")
}

/// Reads what an action is given: numbers keep their text where it may be a label's.
fn arguments(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') if are_of_label(raw) => object(raw, |_, raw| number_or_text(raw)),
        Some(b'[') if are_of_label(raw) => list(raw, number_or_text),
        _ => plain(raw),
    }
}

/// The path of a patch operation.
fn path_of(operation: &RawValue) -> Option<String> {
    text_member(operation, "path")
}

/// A member of an object that is a text.
fn text_member(of: &RawValue, name: &str) -> Option<String> {
    let members = json::members(of).ok()?;
    members.iter().find(|(own, _)| own == name).and_then(|(_, raw)| json::text(raw.get()).ok())
}

/// A patch operation that says something of actions, with each number in its value as its text; `None`: it is another one.
fn with_texts(operation: &RawValue) -> Option<Value> {
    let is_of_actions = path_of(operation)?.split('/').nth(1) == Some(ACTIONS);
    // What a test asks is no value of an action.
    let says = is_of_actions && text_member(operation, "op")? != "test";
    if says { with_value(operation, number_texts).ok() } else { None }
}

/// A patch operation, its value read so.
fn with_value(operation: &RawValue, read: fn(&RawValue) -> Result<Value, BadJson>) -> Result<Value, BadJson> {
    object(operation, |key, raw| if key == "value" { read(raw) } else { plain(raw) })
}

/// A value with each number in it as its text, however deep it stands. Whole numbers stay as [`number_or_text`] has them.
fn number_texts(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => object(raw, |_, raw| number_texts(raw)),
        Some(b'[') => list(raw, number_texts),
        _ => number_or_text(raw),
    }
}

/// A value with 0 for each number in it that would be rounded.
fn stand_ins(raw: &RawValue) -> Result<Value, BadJson> {
    match raw.get().as_bytes().first() {
        Some(b'{') => object(raw, |_, raw| stand_ins(raw)),
        Some(b'[') => list(raw, stand_ins),
        _ => match plain(raw) {
            Err(bad) if bad.is_number => Ok(0.into()),
            read => read,
        },
    }
}

/// The field that a patch operation is of, as refusals of other forms name it.
fn field_of(operation: &RawValue) -> Option<String> {
    let path = path_of(operation)?;
    let members = path.strip_prefix('/')?.split('/').map(|member| step(&unescaped(member)));
    Some(members.collect::<Vec<_>>().join(".")).filter(|field| !field.is_empty())
}

/// A member of a JSON pointer without its escapes.
pub(crate) fn unescaped(member: &str) -> String {
    member.replace("~1", "/").replace("~0", "~")
}

/// The value of a patch operation of this path.
fn operand(path: &str, raw: &RawValue) -> Result<Value, BadJson> {
    match path.split('/').nth(1).unwrap_or_default() {
        REQUIREMENTS => expressions(raw),
        ACTIONS if path.ends_with("/args") => arguments(raw),
        ACTIONS => actions(raw),
        field if !is_text_map(field) => plain(raw),
        _ if raw.get().starts_with('{') => text_map(raw),
        _ => number_or_text(raw),
    }
}

/// Whole numbers stay numbers where they are exact, any other number becomes its text.
fn number_or_text(raw: &RawValue) -> Result<Value, BadJson> {
    let text = raw.get();
    if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return plain(raw);
    }
    let number = json::number(text).ok().filter(|number| number.to_string() == text);
    Ok(number.map_or_else(|| Value::String(text.to_owned()), Value::Number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_in_label_maps_keep_their_text() {
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
    fn y04_a_number_of_a_requirement_or_a_rules_label_keeps_its_text() {
        let set =
            |path: &str, value: &str| format!(r#"{{"op":"set-attribute","args":{{"path":"{path}","value":{value}}}}}"#);
        let as_set = |path: &str, value: Value| json!({"op": "set-attribute", "args": {"path": path, "value": value}});
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
                format!(r#"{{"actions":[{},{}]}}"#, set("labels/a", "1.50"), set("properties/a", "1.50")),
                json!({"actions": [as_set("labels/a", json!("1.50")), as_set("properties/a", json!(1.5))]}),
            ),
            (
                format!(r#"[{{"op":"add","path":"/actions/-","value":{}}}]"#, set("/labels/a", "1e3")),
                json!([{"op": "add", "path": "/actions/-", "value": as_set("/labels/a", json!("1e3"))}]),
            ),
            (r#"{"actions":[{"op":"set-attribute","args":["labels/a",1.50]}]}"#.to_owned(),
                json!({"actions": [{"op": "set-attribute", "args": ["labels/a", "1.50"]}]})),
            (r#"[{"op":"replace","path":"/actions/0/args","value":{"path":"labels/a","value":1.50}}]"#.to_owned(),
                json!([{"op": "replace", "path": "/actions/0/args", "value": {"path": "labels/a", "value": "1.50"}}])),
            (r#"[{"op":"add","path":"/actions/0/args","value":["labels/a",1.50]}]"#.to_owned(),
                json!([{"op": "add", "path": "/actions/0/args", "value": ["labels/a", "1.50"]}])),
            (r#"[{"op":"add","path":"/actions/0/args","value":["properties/a",1.50]}]"#.to_owned(),
                json!([{"op": "add", "path": "/actions/0/args", "value": ["properties/a", 1.5]}])),
            // A number that stands there so is what an older program kept.
            (format!(r#"{{"actions":[{}]}}"#, set("labels/a", "1.5")), json!({"actions": [as_set("labels/a", json!(1.5))]})),
            (r#"{"parameters":{"requirements":{"a":1.50}}}"#.to_owned(), json!({"parameters": {"requirements": {"a": 1.5}}})),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    /// Whether a number is a label's is known once the patch is applied.
    #[test]
    fn y04_a_patch_that_reaches_into_an_action_has_its_numbers_in_both_forms() {
        let value = |path: &str, value: &str| format!(r#"[{{"op":"replace","path":"{path}","value":{value}}}]"#);
        let of = |value: &Value| value[0]["value"].clone();
        for (path, sent, number, text) in [
            ("/actions/0/args/value", "1.50", json!(1.5), Some(json!("1.50"))),
            ("/actions/0/args/value", "5", json!(5), Some(json!(5))),
            ("/actions/0/args/1", "1e3", json!(1000.0), Some(json!("1e3"))),
            ("/actions/0/args/value", "18446744073709551616", json!(0), Some(json!("18446744073709551616"))),
            ("/actions/0/args", r#"{"value":[1.50]}"#, json!({"value": [1.5]}), Some(json!({"value": ["1.50"]}))),
            ("/conditions/0/args/value", "1.50", json!(1.5), None),
        ] {
            let PatchBody::Read(said, texts) = read_patch(value(path, sent).as_bytes(), true).unwrap() else {
                panic!("{path} {sent} has a number that fits")
            };
            assert_eq!((of(&said), texts.as_ref().map(of)), (number, text), "{path} {sent}");
        }
        let unfit = read_patch(value("/conditions/0/args/value", "1e400").as_bytes(), true).unwrap();
        assert!(matches!(unfit, PatchBody::Unfit { bad, .. } if bad.is_number));
        assert_eq!(
            check_numbers("actions", &json!([{"args": [1.5]}]), &json!([{"args": ["1.50"]}])).map_err(|e| e.field),
            Ok(())
        );
        let refused = check_numbers("actions", &json!([{"args": [0]}]), &json!([{"args": ["1e400"]}])).unwrap_err();
        assert_eq!((refused.field.as_str(), refused.is_number), ("actions[0].args[0]", true));
    }

    #[test]
    fn y04_only_what_gives_a_label_a_value_has_texts_for_numbers() {
        let data = r#"{"op":"set-plugin-data","args":{"path":"labels/a","value":1.50}}"#;
        let expected = json!({"op": "set-plugin-data", "args": {"path": "labels/a", "value": 1.5}});
        let whole = parse(format!(r#"{{"actions":[{data}]}}"#).as_bytes()).unwrap();
        assert_eq!(whole, json!({"actions": [expected]}));
    }

    #[test]
    fn y09_a_byte_order_mark_is_refused_as_one() {
        let refused = parse("\u{feff}{}".as_bytes()).unwrap_err();
        assert!(refused.reason.starts_with("it begins with a byte order mark"), "{refused}");
    }

    #[test]
    fn y09_a_text_in_utf_16_is_refused_as_one() {
        for text in ["{}", "\u{feff}{}", "\u{feff}", "[{\"kind\": \"Node\"}]"] {
            for bytes in [
                text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
                text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
            ] {
                let refused = parse(&bytes).unwrap_err();
                assert!(refused.reason.starts_with("it is a text in UTF-16"), "{bytes:?}: {refused}");
            }
        }
    }

    #[test]
    fn what_is_wrong_in_a_field_names_it() {
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
            let (named, reason) = (error.field.clone().unwrap_or_default(), error.reason.clone().unwrap());
            let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
            assert_eq!(error.message, format!("the body is not JSON that can be taken: {field}{reason}"), "{text}");
            assert_eq!(field.trim_end_matches(": "), named, "{text}");
        }
    }

    /// A number that no field holds is refused with one type and field, in each form of a write.
    #[test]
    fn y05_a_number_that_does_not_fit_is_told_of_its_field_in_each_form() {
        for number in ["1e400", "-1e400", "18446744073709551616"] {
            for (field, merge, patch) in [
                ("splay", r#"{"splay":N}"#, r#"[{"op":"add","path":"/splay","value":N}]"#),
                ("properties.p", r#"{"properties":{"p":N}}"#, r#"[{"op":"add","path":"/properties/p","value":N}]"#),
                ("properties.p", r#"{"properties":{"p":N}}"#, r#"[{"op":"add","path":"/properties","value":{"p":N}}]"#),
            ] {
                for text in [merge, patch] {
                    let refused = ApiError::from(parse(text.replace('N', number).as_bytes()).unwrap_err());
                    assert_eq!(
                        (refused.kind, refused.field.as_deref()),
                        (ErrorType::FieldInvalid, Some(field)),
                        "{text}"
                    );
                }
            }
        }
        // What is no JSON stays no JSON, and a body that is such a number names no field.
        for text in [r#"{"a":1,"a":2}"#, r#"{"a":"\ud800"}"#, "1e400", "{"] {
            assert_eq!(ApiError::from(parse(text.as_bytes()).unwrap_err()).kind, ErrorType::RequestMalformed, "{text}");
        }
    }

    #[test]
    fn what_is_refused_says_why() {
        let deep = format!("{}{}", "[".repeat(25), "]".repeat(25));
        for (text, part) in [
            (r#"{"a":1,"a":2}"#, "the key \"a\" stands twice"),
            (r#"{"labels":{"a":"1","a":"2"}}"#, "stands twice"),
            (r#"{"a":1e999}"#, "can be taken: a: number out of range"),
            (
                r#"{"objects":[{"parameters":{"a":[0,18446744073709551616]}}]}"#,
                ": objects[0].parameters.a[1]: number out of range: 18446744073709551616 does not fit into 64 bits",
            ),
            (
                r#"[{"path":"/parameters/a","value":18446744073709551616}]"#,
                ": parameters.a: number out of range: 18446744073709551616",
            ),
            (r#"{"parameters":{"a":-9223372036854775809}}"#, "number out of range"),
            (r#"{"a":"\ud800"}"#, "an escape that stands for no character"),
            (r"{} {}", "trailing"),
            ("{", "EOF"),
            (deep.as_str(), "24 levels"),
        ] {
            let refused = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
