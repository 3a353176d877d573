//! The namespaces that come with the program, made from its own registries. They are stored when somebody imports them, and then
//! alone.

use serde_json::{Map, Value, json};

use super::Bound;
use crate::input::facts::{Fact, Kind as FactKind, STABLE};

/// Bodies of the namespaces.
pub fn builtin() -> Vec<Value> {
    vec![facts(), machine()]
}

/// What hosts report, but for what has the name of a device in its key.
fn facts() -> Value {
    let fixed = STABLE.iter().filter(|fact| !fact.path.contains('*'));
    let properties: Map<String, Value> = fixed.map(|fact| (fact.path.to_owned(), of_fact(fact))).collect();
    json!({
        "namespace": "Stemma::Facts",
        "display_name": "Facts",
        "description": "What hosts report of themselves.",
        "visibility": "public",
        "resource_type_associations": [{"name": Bound::Fact.resource_type()}],
        "properties": properties,
    })
}

fn of_fact(fact: &Fact) -> Value {
    let mut property = match fact.kind {
        FactKind::Number => json!({"type": "integer"}),
        FactKind::Boolean => json!({"type": "boolean"}),
        FactKind::Addresses => json!({"type": "array", "items": {"type": "string"}}),
        FactKind::Address | FactKind::HostName | FactKind::Text => json!({"type": "string"}),
        FactKind::Name => json!({"type": "string", "enum": fact.names()}),
    };
    property["title"] = fact.title.into();
    property["readonly"] = true.into();
    property
}

/// What Ironic's inspection says of a machine.
fn machine() -> Value {
    let count = |title: &str| json!({"title": title, "type": "integer", "minimum": 0});
    json!({
        "namespace": "Stemma::Machine",
        "display_name": "Machine",
        "description": "Properties of nodes that Ironic's clients write.",
        "visibility": "public",
        "resource_type_associations": [{"name": Bound::Property.resource_type()}],
        "properties": {
            "cpus": count("Logical processors"),
            "memory_mb": count("Memory in MiB"),
            "local_gb": count("Size of the disk in GiB"),
            "cpu_arch": {"title": "Machine name as of uname", "type": "string"},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::NamespaceSpec;

    #[test]
    fn what_comes_with_the_program_can_be_stored() {
        let all = builtin();
        let names: Vec<_> = all.iter().map(|body| body["namespace"].as_str().unwrap()).collect();
        assert_eq!(names, ["Stemma::Facts", "Stemma::Machine"]);
        for mut body in all {
            body.as_object_mut().unwrap().remove("namespace");
            let spec: NamespaceSpec = serde_json::from_value(body).unwrap();
            assert!(!spec.properties.is_empty());
        }
    }

    #[test]
    fn the_namespace_of_facts_has_those_whose_key_is_fixed() {
        let facts = &facts()["properties"];
        assert_eq!(facts["memory.total_bytes"]["type"], "integer");
        let keys = facts.as_object().unwrap().keys();
        assert_eq!(keys.filter(|key| key.contains('*')).count(), 0, "a device's name stands in no key");
    }
}
