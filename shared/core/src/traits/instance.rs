//! What an instance wants of its node: `instance_info.traits`, by Ironic's rule and in its words.

use serde_json::{Map, Value};
use uuid::Uuid;

/// Why a node cannot be put to use for its instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstanceTraits {
    /// The wish cannot be read.
    #[error("Error parsing traits from Node {node} instance_info field. A list of strings is expected.")]
    NoList {
        /// The node.
        node: Uuid,
    },
    /// The node lacks some of them.
    #[error("Cannot specify instance traits that are not also set on the node. Node {node} is missing traits {}", missing.join(", "))]
    Missing {
        /// The node.
        node: Uuid,
        /// What it lacks, each once, in the order of the wish.
        missing: Vec<String>,
    },
}

/// Checks that a node has what its instance wants. What is empty in Python's sense wants nothing; a wish that is no trait's name is one
/// that no node has.
///
/// # Errors
/// [`InstanceTraits`].
pub fn check_instance(
    node: Uuid,
    instance_info: &Map<String, Value>,
    has: impl Fn(&str) -> bool,
) -> Result<(), InstanceTraits> {
    let Some(wanted) = instance_info.get("traits").filter(|wanted| !is_empty(wanted)) else { return Ok(()) };
    let names: Option<Vec<&str>> = wanted.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    let mut missing = Vec::new();
    for name in names.ok_or(InstanceTraits::NoList { node })? {
        if !has(name) && !missing.iter().any(|known| known == name) {
            missing.push(name.to_owned());
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(InstanceTraits::Missing { node, missing }) }
}

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
