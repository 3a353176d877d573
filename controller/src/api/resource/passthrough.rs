//! The defaults of passthrough fields: fields of Ironic and Magnum that Stemma stores and returns without reading them.

use serde_json::{Map, Value};
use stemma_core::manifest::PassthroughField;

/// Adds the defaults of a kind's passthrough fields to a body that lacks them. Stemma stores and returns a passthrough
/// field without reading it.
pub(super) fn fill_defaults(fields: &[PassthroughField], body: &mut Map<String, Value>) {
    for (name, default) in fields.iter().filter_map(|field| Some((field.name, field.default?))) {
        let default = || serde_json::from_str(default).expect("the defaults of passthrough fields are valid JSON");
        body.entry(name.to_owned()).or_insert_with(default);
    }
}

#[cfg(test)]
mod tests {
    use stemma_core::manifest::SpecFields;
    use stemma_core::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec};

    use super::*;

    /// `fill_defaults` panics if a default is not valid JSON.
    #[test]
    fn passthrough_defaults_are_json() {
        for fields in [
            ClusterTemplateSpec::PASSTHROUGH_FIELDS,
            ClusterSpec::PASSTHROUGH_FIELDS,
            NodeGroupSpec::PASSTHROUGH_FIELDS,
            NodeSpec::PASSTHROUGH_FIELDS,
        ] {
            let mut body = Map::new();
            fill_defaults(fields, &mut body);
            assert_eq!(body.len(), fields.iter().filter(|field| field.default.is_some()).count());
        }
    }
}
