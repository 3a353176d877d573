//! The schemas of the API's main bodies. What fields a kind has, and what each is like, is core's reference of manifests, made
//! from the tables by which bodies are read.

use serde_json::{Map, Value, json};
use stemma_core::field::{Form, Part};
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
    for (name, schema) in [
        ("Error", error()),
        ("ApplyPatch", object(&[("labels", map()), ("annotations", map()), ("parameters", map())], &[])),
        ("JsonPatch", json_patch()),
        ("Apply", apply()),
        ("Applied", applied()),
        ("Changed", changed()),
    ] {
        schemas.insert(name.to_owned(), schema);
    }
    schemas
}

/// What the command alone reads of a manifest.
const OF_THE_COMMAND: &[&str] = &["include", "reports"];

/// The two schemas of a kind.
fn kind(schemas: &mut Map<String, Value>, kind: &KindFields) {
    let name = kind.kind;
    let taken = kind.parts.iter().filter(|part| !OF_THE_COMMAND.contains(&part.name));
    let of_part = |part: &Part| (part.name.to_owned(), of_form(part.name, part.form));
    let mut properties: Map<String, Value> = taken.map(of_part).collect();
    let kept = json!({"description": "Taken, kept and shown, and given no meaning."});
    properties.extend(kind.kept.iter().map(|field| ((*field).to_owned(), kept.clone())));
    schemas.insert(name.to_owned(), json!({"type": "object", "properties": properties}));
    let shown = object(
        &[
            ("uuid", json!({"type": "string", "format": "uuid"})),
            ("generation", json!({"type": "integer"})),
            ("resource_version", json!({"type": "integer"})),
        ],
        &["uuid", "resource_version"],
    );
    schemas.insert(format!("Shown{name}"), json!({"allOf": [named(name), shown]}));
}

fn map() -> Value {
    of_form("", Form::Map)
}

fn object(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

fn error() -> Value {
    let text = json!({"type": "string"});
    let error = object(
        &[
            ("code", json!({"type": "integer"})),
            ("type", text.clone()),
            ("title", text.clone()),
            ("message", text.clone()),
            ("detail", text.clone()),
            ("field", text.clone()),
            ("request_id", text),
        ],
        &["code", "type", "title", "message"],
    );
    object(&[("error", error)], &["error"])
}

fn json_patch() -> Value {
    let operation = object(
        &[
            ("op", json!({"enum": ["add", "remove", "replace"]})),
            ("path", json!({"type": "string"})),
            ("value", json!({})),
        ],
        &["op", "path"],
    );
    json!({"type": "array", "items": operation})
}

fn apply() -> Value {
    let kinds = kinds().map(|one| one.kind);
    let kind = json!({"type": "object", "required": ["kind"], "properties": {"kind": {"enum": kinds}}});
    let of_any = kinds.map(named);
    let objects = json!({"type": "array", "items": {"allOf": [kind, {"anyOf": of_any}]}});
    object(&[("objects", objects)], &["objects"])
}

fn applied() -> Value {
    let text = json!({"type": "string"});
    let row = object(
        &[
            ("kind", text.clone()),
            ("name", text.clone()),
            ("uuid", text.clone()),
            ("action", text),
            ("changes", changes()),
        ],
        &["kind", "name", "uuid", "action"],
    );
    let rows = json!({"type": "array", "items": row});
    let findings = json!({"type": "array", "items": {"type": "object"}});
    object(
        &[
            ("revision", json!({"type": "integer"})),
            ("objects", rows),
            ("lost_labels", lost_labels()),
            ("findings", findings),
        ],
        &["revision", "objects", "lost_labels", "findings"],
    )
}

/// What a write changes, where it answers with nothing else.
fn changed() -> Value {
    let hosts = json!({"type": "array", "items": {"type": "string", "format": "uuid"}});
    let findings = json!({"type": "array", "items": {"type": "object"}});
    object(&[("changes", changes()), ("lost_labels", lost_labels()), ("hosts", hosts), ("findings", findings)], &[])
}

fn changes() -> Value {
    let field = json!({"type": "string"});
    json!({"type": "array", "items": object(&[("field", field), ("old", json!({})), ("new", json!({}))], &["field"])})
}

fn lost_labels() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "integer"}})
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
