//! What an action gives a label, kept as its author sent it: a label is text, and so is a number there.

use serde_json::Value;
use serde_json::value::RawValue;

use super::limits::InvalidRule;
use super::path::Path;
use crate::json::{is_inexact, items, members, quoted_number, rewrite_items, rewrite_members, value_or_texts};
use crate::key::scalar_text;
use crate::object::RuleAction;

/// What gives an attribute a value.
const SET: &str = "set-attribute";

/// Actions as they were sent, in a form in which they can be read as values: a label's number that has no exact value stands there as its text.
/// [`keep_label_texts`] gives the others theirs, once it is known what stood there.
pub fn with_inexact_label_texts(sent: &RawValue) -> Box<RawValue> {
    rewrite_items(sent, |action| {
        if json_label_value(&mut value_or_texts(action)).is_none() {
            return action.to_owned();
        }
        rewrite_members(action, |name, raw| match name {
            "args" if raw.get().starts_with('[') => rewrite_items(raw, with_inexact_text),
            "args" => {
                rewrite_members(raw, |name, raw| if name == "value" { with_inexact_text(raw) } else { raw.to_owned() })
            }
            _ => raw.to_owned(),
        })
    })
}

/// The text of a number that has no exact value; any other value as it is.
fn with_inexact_text(raw: &RawValue) -> Box<RawValue> {
    if is_inexact(raw) { quoted_number(raw) } else { raw.to_owned() }
}

/// Whether arguments, as they were sent, give a label a value, where their action gives an attribute one.
pub fn are_of_label(args: &RawValue) -> bool {
    label_argument(&mut value_or_texts(args)).is_some()
}

/// Gives each action that sets a label its value as text: the digits of a number as they were sent, `true` or `false`. What stood there
/// already, as an older program took it, stays as it is.
///
/// # Errors
/// The first value that is no label's.
pub fn keep_label_texts(actions: &mut [RuleAction], sent: &RawValue, stood: &[RuleAction]) -> Result<(), InvalidRule> {
    for (at, (action, sent)) in actions.iter_mut().zip(items(sent)).enumerate() {
        if stood.contains(action) {
            continue;
        }
        let Some(value) = label_value(action).filter(|value| !value.is_string()) else { continue };
        let text = sent_value(sent).and_then(|raw| scalar_text(raw).ok().flatten());
        let Some(text) = text else {
            let why = "a label is a text: write one, or a number, true or false";
            return Err(InvalidRule::new(&format!("[{at}].args.value"), why));
        };
        *value = Value::String(text);
    }
    Ok(())
}

/// Gives each label in patched actions the text of its number. `texts` are the same actions with each number as its text: which of them is a
/// label's is known once all of the patch is done.
pub fn take_label_texts(actions: &mut Value, texts: &Value) {
    let (Some(actions), Some(texts)) = (actions.as_array_mut(), texts.as_array()) else { return };
    for (action, texts) in actions.iter_mut().zip(texts) {
        let mut texts = texts.clone();
        let both = json_label_value(action).zip(json_label_value(&mut texts));
        if let Some((value, text)) = both.filter(|(value, text)| value.is_number() && text.is_string()) {
            *value = text.take();
        }
    }
}

/// The value that an action gives a label; nothing of another action.
fn label_value(action: &mut RuleAction) -> Option<&mut Value> {
    if action.op == SET { label_argument(&mut action.args) } else { None }
}

/// The same of an action in JSON.
fn json_label_value(action: &mut Value) -> Option<&mut Value> {
    let is_set = action.get("op").and_then(Value::as_str) == Some(SET);
    action.get_mut("args").filter(|_| is_set).and_then(label_argument)
}

/// The value among arguments of what gives a label one.
fn label_argument(args: &mut Value) -> Option<&mut Value> {
    match args {
        Value::Object(args) if args.get("path").and_then(Value::as_str).is_some_and(is_label) => args.get_mut("value"),
        Value::Array(args) => match args.as_mut_slice() {
            [path, value] if path.as_str().is_some_and(is_label) => Some(value),
            _ => None,
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
    }
}

fn is_label(path: &str) -> bool {
    Path::written(path).first().0 == "labels"
}

/// The value as it was sent: by its name, or behind the path.
fn sent_value(action: &RawValue) -> Option<&RawValue> {
    let args = member(action, "args")?;
    if args.get().starts_with('[') { items(args).get(1).copied() } else { member(args, "value") }
}

fn member<'a>(of: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    members(of).ok()?.into_iter().find(|(own, _)| own == name).map(|(_, raw)| raw)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What an action is given once it is read.
    fn kept(action: &str, stood: &[RuleAction]) -> Result<Value, String> {
        let sent = RawValue::from_string(format!("[{action}]")).unwrap();
        let mut actions: Vec<RuleAction> = serde_json::from_str(sent.get()).unwrap();
        keep_label_texts(&mut actions, &sent, stood).map_err(|wrong| format!("{}: {}", wrong.field, wrong.reason))?;
        Ok(actions.remove(0).args)
    }

    fn set(path: &str, value: &str) -> String {
        format!(r#"{{"op": "set-attribute", "args": {{"path": "{path}", "value": {value}}}}}"#)
    }

    #[test]
    fn y04_a_label_of_a_rule_keeps_the_text_of_its_number() {
        for (value, text) in [
            ("1.50", "1.50"),
            ("1e3", "1e3"),
            ("-0", "-0"),
            ("5", "5"),
            ("true", "true"),
            (r#""{node.name}""#, "{node.name}"),
        ] {
            for path in ["labels/a", "/labels/example.net/a", "labels.a", "labels/{item}"] {
                assert_eq!(
                    kept(&set(path, value), &[]).unwrap(),
                    json!({"path": path, "value": text}),
                    "{path} {value}"
                );
            }
            let in_order = format!(r#"{{"op": "set-attribute", "args": ["labels/a", {value}]}}"#);
            assert_eq!(kept(&in_order, &[]).unwrap(), json!(["labels/a", text]), "{value}");
        }
        assert_eq!(kept(&set("properties/a", "1.50"), &[]).unwrap()["value"], 1.5, "a property is no text");
        for value in ["null", "[1]", "{}"] {
            let refused = kept(&set("labels/a", value), &[]).unwrap_err();
            assert!(refused.starts_with("[0].args.value: a label is a text"), "{value}: {refused}");
        }
    }

    #[test]
    fn y04_a_patched_label_takes_the_text_and_anything_else_the_number() {
        let action = |op: &str, args: Value| json!([{"op": op, "args": args}]);
        let forms: [fn(&str, Value) -> Value; 2] =
            [|path, value| json!({"path": path, "value": value}), |path, value| json!([path, value])];
        for (op, path, expected) in [
            ("set-attribute", "labels/a", json!("1.50")),
            ("set-attribute", "/labels/a", json!("1.50")),
            ("set-attribute", "properties/a", json!(1.5)),
            ("set-plugin-data", "labels/a", json!(1.5)),
        ] {
            for args in forms {
                let mut actions = action(op, args(path, json!(1.5)));
                take_label_texts(&mut actions, &action(op, args(path, json!("1.50"))));
                assert_eq!(actions, action(op, args(path, expected.clone())), "{op} {path}");
            }
        }
    }

    #[test]
    fn y04_a_rule_of_an_older_program_is_sent_back_as_it_is() {
        for value in ["1.5", "true", "null"] {
            let action = set("labels/a", value);
            let stood: [RuleAction; 1] = [serde_json::from_str(&action).unwrap()];
            assert_eq!(kept(&action, &stood).unwrap(), stood[0].args, "{value}");
        }
    }
}
