//! The references without which a template fails.

use serde_json::Value;

use super::{FieldSet, Input, Read, Reference};

/// A reference without which a template fails, because the template does not test whether the value is present.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequiredReference {
    /// A label, a parameter, or a look-up with one field. `nodes(…)` without a field means that the look-up must find
    /// at least one node.
    pub reference: Reference,
    /// True if each rendering of the template reads the reference. A label of the nodes of a look-up also counts as
    /// read by each rendering if a loop over all these nodes always reads it. False if only some renderings read the
    /// reference, for example inside an `if`.
    pub is_unconditional: bool,
}

impl RequiredReference {
    /// Returns whether `input`, the input of this reference, lacks the value, so that rendering would fail. Of the
    /// fields of looked-up nodes, only labels are checked. An unconditional read of a label of `nodes(…)` fails if one
    /// node lacks the label. A conditional read is assumed to fail only if all nodes lack the label.
    pub fn is_missing(&self, input: &Input) -> bool {
        match self.reference.read() {
            Read::Nodes { fields, .. } => {
                let value = input.value();
                let nodes = value.as_deref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                if fields.is_empty() {
                    return nodes.is_empty();
                }
                let mut results = nodes.iter().map(|node| lacks_label(node, fields));
                if self.is_unconditional { results.any(|lacks| lacks) } else { !nodes.is_empty() && results.all(|lacks| lacks) }
            }
            Read::Primary { fields, .. } => input.value().is_none_or(|node| lacks_label(&node, fields)),
            _ => *input == Input::Absent,
        }
    }
}

/// Returns whether a node lacks one of the labels in `fields`. Other fields are not checked, because they may be facts
/// that the host has not reported yet.
fn lacks_label(node: &Value, fields: &FieldSet) -> bool {
    fields.iter().any(|field| field.first() == "labels" && field.get(node).is_none())
}
