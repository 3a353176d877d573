//! What a template fails without.

use serde_json::Value;

use super::{Fields, Input, Read, Reference};

/// A read that nothing in its template asks for, and without which the template fails.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Need {
    /// What is read: a label, a parameter, or one field of what a look-up finds; of `nodes(…)` without a field, that it finds a node.
    pub reference: Reference,
    /// Whether every way through the template reads it; if not, it stands in an `if` or a loop.
    pub is_certain: bool,
}

impl Need {
    /// Whether it is not there. Where the template reads every node of a look-up, one node that lacks the field is enough.
    pub fn is_missing(&self, input: &Input) -> bool {
        match self.reference.read() {
            Read::Nodes { fields, .. } => {
                let found = input.value();
                let nodes = found.as_deref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                if fields.is_empty() {
                    return nodes.is_empty();
                }
                let mut lack = nodes.iter().map(|node| lacks(node, fields));
                if self.is_certain { lack.any(|lacks| lacks) } else { !nodes.is_empty() && lack.all(|lacks| lacks) }
            }
            Read::Primary { fields, .. } => input.value().is_none_or(|node| lacks(&node, fields)),
            _ => *input == Input::Absent,
        }
    }
}

/// Whether a node lacks a label of these. Other fields come with its facts, which may not be known yet.
fn lacks(node: &Value, fields: &Fields) -> bool {
    fields.iter().any(|field| field.first() == "labels" && field.walk(node).is_none())
}
