//! The traits that an instance (in Ironic's sense: the workload deployed on a node) requires of its node. The list is
//! `instance_info.traits` of the node, with Ironic's rules and messages.

use serde_json::{Map, Value};
use uuid::Uuid;

/// The error if `instance_info.traits` of a node is not a list of texts, or has a trait that the node lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstanceTraitsError {
    /// The value of `instance_info.traits` is not a list of texts.
    #[error("Error parsing traits from Node {node} instance_info field. A list of strings is expected.")]
    NoList {
        /// The node.
        node: Uuid,
    },
    /// The node lacks some of the required traits.
    #[error("Cannot specify instance traits that are not also set on the node. Node {node} is missing traits {}", missing.join(", "))]
    Missing {
        /// The node.
        node: Uuid,
        /// The missing traits, each once, in the order of `instance_info.traits`.
        missing: Vec<String>,
    },
}

/// Checks that a node has the traits in `instance_info.traits`. `has_trait` returns whether the node has a trait. As in
/// Ironic, a value that Python treats as false (such as 0 or an empty list) requires nothing. A required text that is
/// not a valid trait is reported as missing.
///
/// # Errors
/// Fails with [`InstanceTraitsError`] if the value is not a list of texts, or if the node lacks a trait.
pub fn check_instance_traits(
    node: Uuid,
    instance_info: &Map<String, Value>,
    has_trait: impl Fn(&str) -> bool,
) -> Result<(), InstanceTraitsError> {
    let Some(required_list) = instance_info.get("traits").filter(|value| !is_false_in_python(value)) else { return Ok(()) };
    let required_names: Option<Vec<&str>> = required_list.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    let mut missing = Vec::new();
    for name in required_names.ok_or(InstanceTraitsError::NoList { node })? {
        if !has_trait(name) && !missing.iter().any(|missing_name| missing_name == name) {
            missing.push(name.to_owned());
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(InstanceTraitsError::Missing { node, missing }) }
}

/// Returns whether Python treats a value as false: null, false, 0, or an empty text, list or map.
fn is_false_in_python(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}
