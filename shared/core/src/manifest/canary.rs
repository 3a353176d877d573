//! Checks a canary: the hosts of a node group to which a new task set is rolled out first. A canary is a number of
//! hosts or a selector. A canary is stored, but no rollout uses it yet.

use serde_json::Value;

use super::error::BodyError;
use super::reader::read_value;
use crate::name::truncated;
use crate::selector::{LabelSelector, Selector};

/// The accepted forms of a canary, as the end of an error message.
const EXPECTED: &str =
    "write how many hosts go first, a whole number from 0 to 4294967295, or a selector of their labels, as \"tier=gold\"";

/// Checks a canary that a body sets: a number of hosts, a selector, or an object with the member `selector`. An empty
/// selector is refused, because it would match all hosts of the group.
///
/// # Errors
/// [`BodyError`] with the path of the error within the canary.
pub(super) fn check_canary(canary: &Value) -> Result<(), BodyError> {
    match canary {
        // The number of hosts must fit into 32 bits.
        Value::Number(count) if count.as_u64().is_some_and(|count| u32::try_from(count).is_ok()) => Ok(()),
        Value::Object(map) if map.len() == 1 && map.contains_key("selector") => {
            check_selector(&map["selector"]).map_err(|error| error.prefixed("selector"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            check_selector(canary)
        }
    }
}

/// Checks a selector of hosts, as text or as an object. Fails if the selector is invalid or matches every host.
fn check_selector(selector: &Value) -> Result<(), BodyError> {
    let body_error = |reason: String| BodyError::new("", reason);
    let parsed = match selector {
        Value::String(text) if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => {
            return Err(body_error(format!("{:?} is a number in quotes: remove the quotes", truncated(text))));
        }
        Value::String(text) => Selector::parse(text),
        Value::Object(_) => LabelSelector::compile(Some(&read_value(selector)?)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err(body_error(format!(
                "{} is neither a number of hosts nor a selector: {EXPECTED}",
                truncated(&selector.to_string())
            )));
        }
    };
    let parsed = parsed.map_err(|reason| body_error(reason.to_string()))?;
    if parsed.terms().is_empty() {
        return Err(body_error(format!("selects every host of the group: {EXPECTED}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn y04_canary_accepts_only_whole_number_or_selector() {
        for canary in [
            json!(0),
            json!(1),
            json!(4_294_967_295_u32),
            json!("tier=gold"),
            json!("a in (b, c), !d"),
            json!({"matchLabels": {"tier": "gold"}}),
            json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
            json!({"selector": "tier=gold"}),
        ] {
            assert_eq!(check_canary(&canary), Ok(()), "{canary}");
        }
        for (canary, expected) in [
            (json!(-1), "-1 is neither a number of hosts nor a selector"),
            (json!(1.5), "1.5 is neither"),
            (json!(1.0), "1.0 is neither"),
            (json!(4_294_967_296_u64), "4294967296 is neither"),
            (json!(true), "true is neither"),
            (json!([1]), "[1] is neither"),
            (json!({"a": 1}), "a: "),
            (json!({}), "selects every host"),
            (json!({"matchLabels": {}}), "selects every host"),
            (json!("a in (b"), "selector: "),
            (json!("25%"), "selector: "),
            (json!("1"), "\"1\" is a number in quotes: remove the quotes"),
            (json!({"selector": 1}), "selector: 1 is neither"),
            (json!(""), "selects every host"),
        ] {
            let error = check_canary(&canary).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{canary}: {error}");
        }
    }
}
