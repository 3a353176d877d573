//! The references without which a template fails.

use serde_json::Value;

use super::{FieldSet, Input, Read, Reference};

/// A reference without which a template fails, because the template does not test whether it is present.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequiredReference {
    /// A label, a parameter, or one field of a look-up's result. `nodes(…)` without a field means that it finds at
    /// least one node.
    pub reference: Reference,
    /// True if every path through the template reads the reference. Otherwise the read is inside an `if` or a loop.
    pub is_unconditional: bool,
}

impl RequiredReference {
    /// Returns whether the input is missing, so that rendering would fail. For a field of `nodes(…)` that is read
    /// unconditionally, one node without the field is enough. If it is read conditionally, all nodes must lack it.
    pub fn is_missing(&self, input: &Input) -> bool {
        match self.reference.read() {
            Read::Nodes { fields, .. } => {
                let value = input.value();
                let nodes = value.as_deref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                if fields.is_empty() {
                    return nodes.is_empty();
                }
                let mut lack = nodes.iter().map(|node| lacks_label(node, fields));
                if self.is_unconditional { lack.any(|lacks| lacks) } else { !nodes.is_empty() && lack.all(|lacks| lacks) }
            }
            Read::Primary { fields, .. } => input.value().is_none_or(|node| lacks_label(&node, fields)),
            _ => *input == Input::Absent,
        }
    }
}

/// Returns whether a node lacks one of these labels. Other fields are not checked: their facts may be unknown.
fn lacks_label(node: &Value, fields: &FieldSet) -> bool {
    fields.iter().any(|field| field.first() == "labels" && field.get(node).is_none())
}
