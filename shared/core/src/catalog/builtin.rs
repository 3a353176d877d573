//! The namespaces that come with the program: those of stable facts and of Ironic's machine properties. They are stored
//! only if an operator imports them.

use serde_json::{Map, Value, json};

use super::KeyKind;
use crate::input::facts::{Fact, FactType as FactKind, STABLE_FACTS};

/// Returns the namespaces that come with the program, each as the JSON body of Glance's API.
pub fn builtin_namespaces() -> Vec<Value> {
    vec![fact_namespace(), machine_namespace()]
}

/// Returns the namespace of the facts that hosts report. Facts with the name of a device in their key (`*` in their
/// path) are omitted.
fn fact_namespace() -> Value {
    let facts_with_fixed_path = STABLE_FACTS.iter().filter(|fact| !fact.path.contains('*'));
    let properties: Map<String, Value> = facts_with_fixed_path.map(|fact| (fact.path.to_owned(), fact_property(fact))).collect();
    json!({
        "namespace": "Stemma::Facts",
        "display_name": "Facts",
        "description": "What hosts report of themselves.",
        "visibility": "public",
        "resource_type_associations": [{"name": KeyKind::Fact.resource_type()}],
        "properties": properties,
    })
}

/// Returns the definition of a fact as a read-only property of a namespace.
fn fact_property(fact: &Fact) -> Value {
    let mut property = match fact.fact_type {
        FactKind::Number => json!({"type": "integer"}),
        FactKind::Boolean => json!({"type": "boolean"}),
        FactKind::Addresses => json!({"type": "array", "items": {"type": "string"}}),
        FactKind::Address | FactKind::HostName | FactKind::Text => json!({"type": "string"}),
        FactKind::Name => json!({"type": "string", "enum": fact.allowed_names()}),
    };
    property["title"] = fact.title.into();
    property["readonly"] = true.into();
    property
}

/// Returns the definition of the namespace `Stemma::Machine`. It describes the properties of a node, such as the number
/// of processors, that clients of Ironic write.
fn machine_namespace() -> Value {
    let count = |title: &str| json!({"title": title, "type": "integer", "minimum": 0});
    json!({
        "namespace": "Stemma::Machine",
        "display_name": "Machine",
        "description": "Properties of nodes that Ironic's clients write.",
        "visibility": "public",
        "resource_type_associations": [{"name": KeyKind::Property.resource_type()}],
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
    fn builtin_namespaces_parse_as_namespace_specs() {
        let bodies = builtin_namespaces();
        let names: Vec<_> = bodies.iter().map(|body| body["namespace"].as_str().unwrap()).collect();
        assert_eq!(names, ["Stemma::Facts", "Stemma::Machine"]);
        for mut body in bodies {
            body.as_object_mut().unwrap().remove("namespace");
            let spec: NamespaceSpec = serde_json::from_value(body).unwrap();
            assert!(!spec.properties.is_empty());
        }
    }

    #[test]
    fn fact_namespace_contains_facts_with_fixed_key() {
        let facts = &fact_namespace()["properties"];
        assert_eq!(facts["memory.total_bytes"]["type"], "integer");
        let keys = facts.as_object().unwrap().keys();
        assert_eq!(keys.filter(|key| key.contains('*')).count(), 0, "no key contains the name of a device");
    }
}
