//! The traits that an instance requires of its node: `instance_info.traits`, with Ironic's rules and messages.

use serde_json::{Map, Value};
use uuid::Uuid;

/// The reason why a node cannot be used for its instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstanceTraits {
    /// The list of required traits is not a list of texts.
    #[error("Error parsing traits from Node {node} instance_info field. A list of strings is expected.")]
    NoList {
        /// The node.
        node: Uuid,
    },
    /// The node lacks some of the traits.
    #[error("Cannot specify instance traits that are not also set on the node. Node {node} is missing traits {}", missing.join(", "))]
    Missing {
        /// The node.
        node: Uuid,
        /// The missing traits, each once, in the order of the list.
        missing: Vec<String>,
    },
}

/// Checks that a node has the traits that its instance requires. As in Ironic, a value that is false in Python requires
/// nothing. A required text that is not a valid trait counts as missing.
///
/// # Errors
/// [`InstanceTraits`].
pub fn check_instance_traits(
    node: Uuid,
    instance_info: &Map<String, Value>,
    has: impl Fn(&str) -> bool,
) -> Result<(), InstanceTraits> {
    let Some(required) = instance_info.get("traits").filter(|wanted| !is_empty(wanted)) else { return Ok(()) };
    let names: Option<Vec<&str>> = required.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    let mut missing = Vec::new();
    for name in names.ok_or(InstanceTraits::NoList { node })? {
        if !has(name) && !missing.iter().any(|known| known == name) {
            missing.push(name.to_owned());
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(InstanceTraits::Missing { node, missing }) }
}

/// Returns whether a value is false in Python.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}
