//! Fields of Ironic's and Magnum's bodies that mean nothing here: what is shown where they were never set.

use serde_json::{Map, Value};
use stemma_core::manifest::Kept;

/// Gives a body the defaults of its kind's kept fields, where it has none.
pub(super) fn fill(fields: &[Kept], body: &mut Map<String, Value>) {
    for (name, default) in fields.iter().filter_map(|kept| Some((kept.name, kept.default?))) {
        let default = || serde_json::from_str(default).expect("the tables of kept fields hold JSON texts");
        body.entry(name.to_owned()).or_insert_with(default);
    }
}

#[cfg(test)]
mod tests {
    use stemma_core::manifest::Fields;
    use stemma_core::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec};

    use super::*;

    #[test]
    fn every_default_is_json() {
        for fields in [ClusterTemplateSpec::EXTRA, ClusterSpec::EXTRA, NodeGroupSpec::EXTRA, NodeSpec::EXTRA] {
            let mut body = Map::new();
            fill(fields, &mut body);
            assert_eq!(body.len(), fields.iter().filter(|kept| kept.default.is_some()).count());
        }
    }
}
