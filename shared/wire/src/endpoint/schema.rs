//! The schemas of the API's main bodies. The fields of each kind come from core's reference of manifests, which is
//! built from the tables that parse bodies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use stemma_core::catalog;
use stemma_core::field::FieldDef;
use stemma_core::manifest::{KindFields, api_only_kinds, kinds, type_schema};

use super::{Endpoint, PAGE, SelectableFields};

/// Returns a reference to a schema.
pub(super) fn schema_reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Returns all schemas, by name. The body of a write has the kind's name. The schema of a read starts with `Shown`, and
/// that of the response to a change with `Changed`.
pub(super) fn all_schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    for kind_fields in kinds().into_iter().chain(api_only_kinds()) {
        add_kind_schemas(&mut schemas, &kind_fields);
    }
    let others: Map<String, Value> = serde_json::from_str(include_str!("schemas.json")).expect("schemas.json is a JSON object");
    schemas.extend(others);
    schemas.extend(catalog_schemas());
    schemas.insert("Apply".to_owned(), apply_schema());
    let tasks = &schemas["Release"]["properties"]["tasks"];
    let tasks = json!({"type": "object", "required": ["tasks"], "properties": {"tasks": tasks}});
    schemas.insert("TaskList".to_owned(), tasks);
    schemas
}

/// The fields of a manifest that only the command-line tool reads.
const CLI_ONLY_FIELDS: &[&str] = &["include", "reports"];

/// The schemas of fields that only responses have: of every kind, of the kinds that are levels, and of single kinds.
static RESPONSE_FIELDS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("shown.json")).expect("shown.json is JSON"));

/// Returns the fields of a kind that only responses have, or that have another form there.
fn response_fields(kind: &str) -> impl Iterator<Item = (&'static String, &'static Value)> {
    let is_level = matches!(kind, "ClusterTemplate" | "Cluster" | "NodeGroup" | "Node");
    let sets = [Some("every"), is_level.then_some("level"), Some(kind)];
    sets.into_iter().flatten().filter_map(|set| RESPONSE_FIELDS[set].as_object()).flatten()
}

/// Returns the fields of each response that a query can choose: the properties of its schema, or of its entries'
/// schema.
pub(super) fn selectable_fields() -> BTreeMap<Endpoint, SelectableFields> {
    let schemas = all_schemas();
    let names = |schema: &Value| -> BTreeSet<String> {
        let parts = flatten_schema(&schemas, schema);
        let properties = parts.iter().filter_map(|part| part["properties"].as_object()).flat_map(Map::keys);
        // Links are always shown, and are not a field (as in Ironic). `stored` is requested by a parameter of its own.
        properties.filter(|name| !["links", "stored"].contains(&name.as_str())).cloned().collect()
    };
    let fields_of = |endpoint: &Endpoint| {
        let route = endpoint.route();
        let schema = &schemas[route.response_schema.filter(|_| route.query.parameter_names().any(|name| name == "fields"))?];
        let is_list = |(_, property): &(&String, &Value)| property["type"] == "array";
        let lists = route.query.parameter_names().any(|name| name == PAGE[0]);
        let list = schema["properties"].as_object()?.iter().find(is_list).filter(|_| lists);
        let fields = match list {
            Some((name, rows)) => SelectableFields { list_name: Some(name.clone()), names: names(&rows["items"]) },
            None => SelectableFields { list_name: None, names: names(schema) },
        };
        Some((*endpoint, fields))
    };
    Endpoint::ALL.iter().filter_map(fields_of).collect()
}

/// Returns a schema and all that it is composed of (`allOf`), with references resolved.
fn flatten_schema<'a>(schemas: &'a Map<String, Value>, schema: &'a Value) -> Vec<&'a Value> {
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    let schema = name.map_or(schema, |name| &schemas[name]);
    let nested = schema["allOf"].as_array().into_iter().flatten().flat_map(|part| flatten_schema(schemas, part));
    std::iter::once(schema).chain(nested).collect()
}

/// Adds the three schemas of a kind: its write, its read (`Shown…`), and the response to a change (`Changed…`).
fn add_kind_schemas(schemas: &mut Map<String, Value>, kind: &KindFields) {
    let name = kind.kind;
    let accepted = kind.fields.iter().filter(|part| !CLI_ONLY_FIELDS.contains(&part.name));
    let of_part = |part: &FieldDef| (part.name.to_owned(), type_schema(part.name, part.field_type));
    let mut properties: Map<String, Value> = accepted.map(of_part).collect();
    let opaque = json!({"description": "Accepted, stored and shown, but without effect."});
    properties.extend(kind.passthrough.iter().map(|field| ((*field).to_owned(), opaque.clone())));
    let mut shown = properties.clone();
    shown.extend(response_fields(name).map(|(field, schema)| (field.clone(), schema.clone())));
    schemas.insert(name.to_owned(), json!({"type": "object", "properties": properties}));
    schemas.insert(format!("Shown{name}"), json!({"type": "object", "properties": shown}));
    schemas.insert(
        format!("Changed{name}"),
        json!({"allOf": [schema_reference(&format!("Shown{name}")), schema_reference("Changed")]}),
    );
}

/// Returns the schemas of the catalogue, from those that Glance's clients read.
fn catalog_schemas() -> impl Iterator<Item = (String, Value)> {
    let names = [("CatalogNamespace", "namespace"), ("NamespaceProperty", "property"), ("NamespaceObject", "object")];
    let schemas = names.map(|(name, catalog_name)| (name, catalog::schema(catalog_name).expect("it has this name there")));
    let fields = schemas[0].1["properties"]["properties"]["additionalProperties"].clone();
    let all = schemas.into_iter().chain([("NamespacePropertyFields", fields)]);
    all.map(|(name, mut schema)| {
        // `name` is not a keyword of JSON Schema. Additional fields are refused by the controller.
        schema.as_object_mut().expect("a schema is an object").retain(|word, _| word != "name" && word != "additionalProperties");
        if name == "CatalogNamespace" {
            schema["properties"]["field_owners"] = schema_reference("Owners");
        }
        (name.to_owned(), schema)
    })
}

/// Returns the schema of the body of an apply: a list of objects of any kind.
fn apply_schema() -> Value {
    let kinds = kinds().map(|fields| fields.kind);
    let presumed = "The revision of the object, as in its ETag; 0 if it does not exist yet. Refused if it is another one.";
    let presumed = json!({"description": presumed, "type": ["integer", "null"], "minimum": 0});
    let common = json!({"kind": {"enum": kinds}, "resource_version": presumed});
    let kind = json!({"type": "object", "required": ["kind"], "properties": common});
    let of_any = kinds.map(schema_reference);
    let objects = json!({"type": "array", "items": {"allOf": [kind, {"anyOf": of_any}]}});
    json!({"type": "object", "required": ["objects"], "properties": {"objects": objects}})
}

#[cfg(test)]
mod tests {
    use stemma_core::field::FieldType;

    use super::*;

    #[test]
    fn kind_schema_has_fields_of_manifest_parser() {
        let schemas = all_schemas();
        let group = &schemas["NodeGroup"]["properties"];
        for (field, schema) in [
            ("splay", json!({"type": ["integer", "null"], "minimum": 0, "maximum": 31_622_400})),
            ("mode", json!({"enum": ["observe", "noop", "apply", null]})),
            ("requirements", type_schema("requirements", FieldType::MapOrList)),
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
    fn schemas_resolve_every_reference() {
        let schemas = all_schemas();
        let text = serde_json::to_string(&schemas).expect("JSON");
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap_or_default();
            assert!(schemas.contains_key(name), "{name}");
        }
        let routes = Endpoint::ALL.iter().map(|endpoint| endpoint.route());
        for name in routes.flat_map(|route| [route.request_schema, route.response_schema, route.accepted_schema]).flatten() {
            assert!(schemas.contains_key(name), "{name}");
        }
    }

    /// A client that is generated from the description knows only what the description contains.
    #[test]
    fn schemas_describe_every_response_value() {
        fn walk(at: &str, schema: &Value, thin: &mut Vec<String>) {
            let has = |word: &str| schema.get(word).is_some();
            let is =
                |name: &str| schema["type"] == name || schema["type"].as_array().is_some_and(|all| all.contains(&name.into()));
            let says = ["type", "enum", "anyOf", "allOf", "if", "$ref", "description"].into_iter().any(has);
            if !says || (is("object") && !has("properties") && !has("additionalProperties")) || (is("array") && !has("items")) {
                thin.push(format!("{at}: {schema}"));
            }
            let properties = schema["properties"].as_object().into_iter().flatten();
            properties.for_each(|(name, schema)| walk(&format!("{at}.{name}"), schema, thin));
            let below = ["items", "additionalProperties"].map(|word| &schema[word]).into_iter().filter(|one| one.is_object());
            below.for_each(|schema| walk(&format!("{at}[]"), schema, thin));
            ["allOf", "anyOf"]
                .map(|word| &schema[word])
                .into_iter()
                .filter_map(Value::as_array)
                .flatten()
                .for_each(|schema| walk(at, schema, thin));
        }
        let (schemas, mut thin) = (all_schemas(), Vec::new());
        schemas.iter().for_each(|(name, schema)| walk(name, schema, &mut thin));
        assert!(thin.is_empty(), "{}", thin.join("\n"));
    }

    /// A response with chosen fields lacks all others, so its schema must not require any.
    #[test]
    fn schemas_require_no_optional_field() {
        let schemas = all_schemas();
        for endpoint in Endpoint::ALL {
            let Some(fields) = endpoint.selectable_fields() else { continue };
            let schema = &schemas[endpoint.route().response_schema.expect("an answer in JSON")];
            let schema = fields.list_name.as_ref().map_or(schema, |list| &schema["properties"][list]["items"]);
            for part in flatten_schema(&schemas, schema) {
                assert!(part["required"].is_null(), "{endpoint:?}: {}", part["required"]);
            }
            assert!(fields.names.len() > 3, "{endpoint:?}: {:?}", fields.names);
        }
    }
}
