//! The schemas of the API's main bodies. What fields a kind has, and what each is like, is core's reference of manifests, made
//! from the tables by which bodies are read.

use serde_json::{Map, Value, json};
use stemma_core::field::Part;
use stemma_core::manifest::{KindFields, kinds, kinds_of_api, of_form};

/// A reference to a schema.
pub(super) fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// All schemas, by name. What a kind's write takes has the kind's name; what is shown of it begins with `Shown`.
pub(super) fn all() -> Map<String, Value> {
    let mut schemas = Map::new();
    for one in kinds().into_iter().chain(kinds_of_api()) {
        kind(&mut schemas, &one);
    }
    let others: Map<String, Value> =
        serde_json::from_str(include_str!("schemas.json")).expect("schemas.json is a JSON object");
    schemas.extend(others);
    schemas.insert("Apply".to_owned(), apply());
    schemas
}

/// What the command alone reads of a manifest.
const OF_THE_COMMAND: &[&str] = &["include", "reports"];

/// Fields that are shown in another form than they are written in: a node's tags with those that its roles give.
const SHOWN_OTHERWISE: &[(&str, &str)] = &[("Node", "tags")];

/// The two schemas of a kind.
fn kind(schemas: &mut Map<String, Value>, kind: &KindFields) {
    let name = kind.kind;
    let taken = kind.parts.iter().filter(|part| !OF_THE_COMMAND.contains(&part.name));
    let of_part = |part: &Part| (part.name.to_owned(), of_form(part.name, part.form));
    let mut properties: Map<String, Value> = taken.map(of_part).collect();
    let kept = json!({"description": "Taken, kept and shown, and given no meaning."});
    properties.extend(kind.kept.iter().map(|field| ((*field).to_owned(), kept.clone())));
    let mut shown = properties.clone();
    shown.retain(|field, _| !SHOWN_OTHERWISE.contains(&(name, field)));
    shown.insert("uuid".to_owned(), json!({"type": "string", "format": "uuid"}));
    shown.extend(["generation", "resource_version"].map(|field| (field.to_owned(), json!({"type": "integer"}))));
    schemas.insert(name.to_owned(), json!({"type": "object", "properties": properties}));
    schemas.insert(format!("Shown{name}"), json!({"type": "object", "properties": shown}));
}

fn apply() -> Value {
    let kinds = kinds().map(|one| one.kind);
    let presumed =
        "The revision that the object is at, as its ETag has it; 0: it is not there yet. Refused where it is another.";
    let presumed = json!({"description": presumed, "type": ["integer", "null"], "minimum": 0});
    let common = json!({"kind": {"enum": kinds}, "resource_version": presumed});
    let kind = json!({"type": "object", "required": ["kind"], "properties": common});
    let of_any = kinds.map(named);
    let objects = json!({"type": "array", "items": {"allOf": [kind, {"anyOf": of_any}]}});
    json!({"type": "object", "required": ["objects"], "properties": {"objects": objects}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;

    #[test]
    fn a_kinds_schema_has_the_fields_that_its_parser_takes() {
        let schemas = all();
        let group = &schemas["NodeGroup"]["properties"];
        for (field, schema) in [
            ("splay", json!({"type": ["integer", "null"], "minimum": 0})),
            ("mode", json!({"enum": ["observe", "noop", "apply", null]})),
            ("requirements", json!({"type": ["object", "array", "null"]})),
            ("roles", json!({"type": ["array", "null"], "items": {"type": "string"}})),
            ("merge_labels", json!({"type": ["boolean", "null"]})),
        ] {
            assert_eq!(group[field], schema, "{field}");
        }
        assert!(group["flavor_id"].is_object() && group["rollout"].is_null());
        assert_eq!(schemas["Release"]["properties"]["tasks"]["items"]["type"], "object");
        assert!(schemas["Release"]["properties"]["merge_labels"].is_null(), "a release stands on no level");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let schemas = all();
        let text = serde_json::to_string(&schemas).expect("JSON");
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap_or_default();
            assert!(schemas.contains_key(name), "{name}");
        }
        let routes = Endpoint::ALL.iter().map(|endpoint| endpoint.route());
        for name in routes.flat_map(|route| [route.request_schema, route.answer_schema]).flatten() {
            assert!(schemas.contains_key(name), "{name}");
        }
    }
}
