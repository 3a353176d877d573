//! Stores the values that actions set on labels exactly as their author sent them. The value of a label is text, so a
//! number is replaced by its text, for example `1.50` by `"1.50"`.

use serde_json::Value;
use serde_json::value::RawValue;

use super::limits::InvalidRule;
use super::path::FilledPath;
use crate::json::{is_inexact, items, members, number_to_string, parse_value_with_inexact_texts, rewrite_items, rewrite_members};
use crate::key::scalar_text;
use crate::object::RuleAction;

/// The name of the action of rules that sets an attribute: a label or a property of a node.
const SET_ATTRIBUTE: &str = "set-attribute";

/// Returns the actions of a rule as their author sent them, except for a number that an action sets on a label and that
/// parsing would refuse ([`is_inexact`]). Such a number is replaced by its text. [`convert_label_values_to_text`]
/// replaces the other numbers later, because it needs the stored actions.
pub fn with_inexact_label_texts(sent: &RawValue) -> Box<RawValue> {
    rewrite_items(sent, |action| {
        if json_label_value_mut(&mut parse_value_with_inexact_texts(action)).is_none() {
            return action.to_owned();
        }
        rewrite_members(action, |name, raw| match name {
            // The arguments are a list in order, or a map by name.
            "args" if raw.get().starts_with('[') => rewrite_items(raw, inexact_as_text),
            "args" => rewrite_members(raw, |name, raw| if name == "value" { inexact_as_text(raw) } else { raw.to_owned() }),
            _ => raw.to_owned(),
        })
    })
}

/// Returns the text of a number, as a JSON string, if parsing the number would fail (`is_inexact`). Any other value is
/// returned unchanged.
fn inexact_as_text(raw: &RawValue) -> Box<RawValue> {
    if is_inexact(raw) { number_to_string(raw) } else { raw.to_owned() }
}

/// Returns whether the arguments of a `set-attribute` action, as sent, set a label.
pub fn sets_label(args: &RawValue) -> bool {
    label_argument_mut(&mut parse_value_with_inexact_texts(args)).is_some()
}

/// Replaces the value of each action that sets a label by its text: the digits of a number as sent, `true` or `false`.
/// `sent` contains the same actions as their author sent them. `old` are the actions that were stored before. An action
/// that equals one of them is unchanged, because an older version may have stored a number.
///
/// # Errors
/// [`InvalidRule`] for the first value that is not a text, a number or a boolean.
pub fn convert_label_values_to_text(actions: &mut [RuleAction], sent: &RawValue, old: &[RuleAction]) -> Result<(), InvalidRule> {
    for (index, (action, sent)) in actions.iter_mut().zip(items(sent)).enumerate() {
        if old.contains(action) {
            continue;
        }
        let Some(value) = label_value_mut(action).filter(|value| !value.is_string()) else { continue };
        let text = raw_label_value(sent).and_then(|raw| scalar_text(raw).ok().flatten());
        let Some(text) = text else {
            let reason = "a label is a text: write one, or a number, true or false";
            return Err(InvalidRule::new(&format!("[{index}].args.value"), reason));
        };
        *value = Value::String(text);
    }
    Ok(())
}

/// Replaces each number that an action sets on a label by its text, if `texts` has a text in its place. `texts` are the
/// same actions after a second form of the patch, in which numbers are texts. The caller calls this function after the
/// whole patch: before that, a later operation of the patch could still change which values belong to labels.
pub fn apply_label_texts(actions: &mut Value, texts: &Value) {
    let (Some(actions), Some(texts)) = (actions.as_array_mut(), texts.as_array()) else { return };
    for (action, texts) in actions.iter_mut().zip(texts) {
        let mut texts = texts.clone();
        let pair = json_label_value_mut(action).zip(json_label_value_mut(&mut texts));
        if let Some((value, text)) = pair.filter(|(value, text)| value.is_number() && text.is_string()) {
            *value = text.take();
        }
    }
}

/// Returns the value that an action sets on a label, or `None` if the action does not set a label.
fn label_value_mut(action: &mut RuleAction) -> Option<&mut Value> {
    if action.op == SET_ATTRIBUTE { label_argument_mut(&mut action.args) } else { None }
}

/// Returns the value that an action in JSON sets on a label, or `None` if the action does not set a label.
fn json_label_value_mut(action: &mut Value) -> Option<&mut Value> {
    let is_set = action.get("op").and_then(Value::as_str) == Some(SET_ATTRIBUTE);
    action.get_mut("args").filter(|_| is_set).and_then(label_argument_mut)
}

/// Returns the value in the arguments of a `set-attribute` action, or `None` if their path is not that of a label. The
/// arguments are a map by name, or a list of path and value.
fn label_argument_mut(args: &mut Value) -> Option<&mut Value> {
    match args {
        Value::Object(args) if args.get("path").and_then(Value::as_str).is_some_and(is_label_path) => args.get_mut("value"),
        Value::Array(args) => match args.as_mut_slice() {
            [path, value] if path.as_str().is_some_and(is_label_path) => Some(value),
            _ => None,
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
    }
}

/// Returns whether the path of an attribute is that of a label, such as `labels/rack`.
fn is_label_path(path: &str) -> bool {
    FilledPath::literal(path).split_first().0 == "labels"
}

/// Returns the value argument of an action as sent: the member `value`, or the second item of a list of arguments.
fn raw_label_value(action: &RawValue) -> Option<&RawValue> {
    let args = raw_member(action, "args")?;
    if args.get().starts_with('[') { items(args).get(1).copied() } else { raw_member(args, "value") }
}

/// Returns the value of a member of a JSON object, as sent.
fn raw_member<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    members(object).ok()?.into_iter().find(|(key, _)| key == name).map(|(_, raw)| raw)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the arguments of an action as they are stored. `stored` are the actions that were stored before.
    fn stored_arguments(action: &str, stored: &[RuleAction]) -> Result<Value, String> {
        let sent = RawValue::from_string(format!("[{action}]")).unwrap();
        let mut actions: Vec<RuleAction> = serde_json::from_str(sent.get()).unwrap();
        convert_label_values_to_text(&mut actions, &sent, stored)
            .map_err(|error| format!("{}: {}", error.field, error.reason))?;
        Ok(actions.remove(0).args)
    }

    fn set_action(path: &str, value: &str) -> String {
        format!(r#"{{"op": "set-attribute", "args": {{"path": "{path}", "value": {value}}}}}"#)
    }

    /// The value of a label is stored as the text that was sent. A number of a property remains a number. A label's
    /// value that is `null`, a list or a map is refused.
    #[test]
    fn y04_label_value_is_stored_as_sent() {
        for (value, text) in
            [("1.50", "1.50"), ("1e3", "1e3"), ("-0", "-0"), ("5", "5"), ("true", "true"), (r#""{node.name}""#, "{node.name}")]
        {
            for path in ["labels/a", "/labels/example.net/a", "labels.a", "labels/{item}"] {
                assert_eq!(
                    stored_arguments(&set_action(path, value), &[]).unwrap(),
                    json!({"path": path, "value": text}),
                    "{path} {value}"
                );
            }
            let in_order = format!(r#"{{"op": "set-attribute", "args": ["labels/a", {value}]}}"#);
            assert_eq!(stored_arguments(&in_order, &[]).unwrap(), json!(["labels/a", text]), "{value}");
        }
        assert_eq!(stored_arguments(&set_action("properties/a", "1.50"), &[]).unwrap()["value"], 1.5, "a property is not a text");
        for value in ["null", "[1]", "{}"] {
            let error = stored_arguments(&set_action("labels/a", value), &[]).unwrap_err();
            assert!(error.starts_with("[0].args.value: a label is a text"), "{value}: {error}");
        }
    }

    #[test]
    fn y04_apply_label_texts_replaces_only_label_values() {
        let action = |op: &str, args: Value| json!([{"op": op, "args": args}]);
        let argument_forms: [fn(&str, Value) -> Value; 2] =
            [|path, value| json!({"path": path, "value": value}), |path, value| json!([path, value])];
        for (op, path, expected) in [
            ("set-attribute", "labels/a", json!("1.50")),
            ("set-attribute", "/labels/a", json!("1.50")),
            ("set-attribute", "properties/a", json!(1.5)),
            ("set-plugin-data", "labels/a", json!(1.5)),
        ] {
            for args in argument_forms {
                let mut actions = action(op, args(path, json!(1.5)));
                apply_label_texts(&mut actions, &action(op, args(path, json!("1.50"))));
                assert_eq!(actions, action(op, args(path, expected.clone())), "{op} {path}");
            }
        }
    }

    /// An older version may have stored an action that sets a label to a value other than a text.
    #[test]
    fn y04_stored_action_is_unchanged_when_sent_back() {
        for value in ["1.5", "true", "null"] {
            let action = set_action("labels/a", value);
            let existing: [RuleAction; 1] = [serde_json::from_str(&action).unwrap()];
            assert_eq!(stored_arguments(&action, &existing).unwrap(), existing[0].args, "{value}");
        }
    }
}
