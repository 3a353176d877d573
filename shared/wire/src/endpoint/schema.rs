//! The schemas of the bodies in the API's description. The fields of each kind come from `stemma_core::manifest`, which
//! reads them from the tables by which the controller parses bodies. So these schemas agree with the parser.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use stemma_core::catalog;
use stemma_core::field::FieldDef;
use stemma_core::manifest::{KindFields, api_only_kinds, kinds, type_schema};

use super::{Endpoint, PAGING_PARAMETERS, SelectableFields};

/// Returns a JSON object that refers (`$ref`) to a schema of the API's description, by the schema's name.
pub(super) fn schema_reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Returns all schemas of the API's description, by name. Each kind has three schemas, for example `Node` for the body
/// of a write, `ShownNode` for the response to a read, and `ChangedNode` for the response to a change.
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

/// The fields of a manifest that only the command-line tool reads. Bodies of requests do not have them.
const CLI_ONLY_FIELDS: &[&str] = &["include", "reports"];

/// The schemas of fields that only responses contain, or contain in another form than requests. The group `every` is
/// for all kinds, `level` is for all levels, and each other group is for the kind of that name.
static RESPONSE_FIELDS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("shown.json")).expect("shown.json is JSON"));

/// Returns the fields of a kind whose schema is for responses only, each with this schema. A request either does not
/// contain such a field, or contains it in another form.
fn response_fields(kind: &str) -> impl Iterator<Item = (&'static String, &'static Value)> {
    let is_level = matches!(kind, "ClusterTemplate" | "Cluster" | "NodeGroup" | "Node");
    let group_names = [Some("every"), is_level.then_some("level"), Some(kind)];
    group_names.into_iter().flatten().filter_map(|group_name| RESPONSE_FIELDS[group_name].as_object()).flatten()
}

/// Returns the fields that a query can choose with the parameter `fields`, for each endpoint that has this parameter.
/// If the response is a list, they are the fields of its entries.
pub(super) fn selectable_fields() -> BTreeMap<Endpoint, SelectableFields> {
    let schemas = all_schemas();
    let property_names = |schema: &Value| -> BTreeSet<String> {
        let parts = flatten_schema(&schemas, schema);
        let properties = parts.iter().filter_map(|part| part["properties"].as_object()).flat_map(Map::keys);
        // As in Ironic, `links` is always shown and cannot be chosen. The query parameter `stored` requests `stored`.
        properties.filter(|name| !["links", "stored"].contains(&name.as_str())).cloned().collect()
    };
    let fields_of = |endpoint: &Endpoint| {
        let route = endpoint.route();
        let schema = &schemas[route.response_schema.filter(|_| route.query.parameter_names().any(|name| name == "fields"))?];
        let is_array = |(_, property): &(&String, &Value)| property["type"] == "array";
        // Only lists have paging parameters.
        let is_list_endpoint = route.query.parameter_names().any(|name| name == PAGING_PARAMETERS[0]);
        let list_property = schema["properties"].as_object()?.iter().find(is_array).filter(|_| is_list_endpoint);
        let fields = match list_property {
            Some((name, list)) => SelectableFields { list_name: Some(name.clone()), names: property_names(&list["items"]) },
            None => SelectableFields { list_name: None, names: property_names(schema) },
        };
        Some((*endpoint, fields))
    };
    Endpoint::ALL.iter().filter_map(fields_of).collect()
}

/// Returns a schema and, at any depth, the schemas of which it is composed (`allOf`). A reference (`$ref`) is replaced
/// by the schema that it names.
fn flatten_schema<'a>(schemas: &'a Map<String, Value>, schema: &'a Value) -> Vec<&'a Value> {
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    let schema = name.map_or(schema, |name| &schemas[name]);
    let nested = schema["allOf"].as_array().into_iter().flatten().flat_map(|part| flatten_schema(schemas, part));
    std::iter::once(schema).chain(nested).collect()
}

/// Adds the three schemas of a kind: the body of a write, the response to a read (`Shown…`), and the response to a
/// change (`Changed…`).
fn add_kind_schemas(schemas: &mut Map<String, Value>, kind: &KindFields) {
    let name = kind.kind;
    let api_fields = kind.fields.iter().filter(|field_def| !CLI_ONLY_FIELDS.contains(&field_def.name));
    let to_property = |field_def: &FieldDef| (field_def.name.to_owned(), type_schema(field_def.name, field_def.field_type));
    let mut properties: Map<String, Value> = api_fields.map(to_property).collect();
    let passthrough_schema = json!({"description": "Accepted, stored and shown, but without effect."});
    properties.extend(kind.passthrough.iter().map(|field| ((*field).to_owned(), passthrough_schema.clone())));
    let mut response_properties = properties.clone();
    response_properties.extend(response_fields(name).map(|(field, schema)| (field.clone(), schema.clone())));
    schemas.insert(name.to_owned(), json!({"type": "object", "properties": properties}));
    schemas.insert(format!("Shown{name}"), json!({"type": "object", "properties": response_properties}));
    schemas.insert(
        format!("Changed{name}"),
        json!({"allOf": [schema_reference(&format!("Shown{name}")), schema_reference("Changed")]}),
    );
}

/// Returns the schemas of the bodies of the catalogue (namespaces, properties and objects, as in Glance's metadata
/// definitions). They are derived from the schemas that the API serves to Glance's clients.
fn catalog_schemas() -> impl Iterator<Item = (String, Value)> {
    let names = [("CatalogNamespace", "namespace"), ("NamespaceProperty", "property"), ("NamespaceObject", "object")];
    let schemas = names.map(|(name, catalog_name)| (name, catalog::schema(catalog_name).expect("it has this name there")));
    let fields = schemas[0].1["properties"]["properties"]["additionalProperties"].clone();
    let named_schemas = schemas.into_iter().chain([("NamespacePropertyFields", fields)]);
    named_schemas.map(|(name, mut schema)| {
        // `name` is not a keyword of JSON Schema. The schemas of the other kinds have no `additionalProperties` at the
        // top level either, although the controller refuses additional fields.
        schema.as_object_mut().expect("a schema is an object").retain(|key, _| key != "name" && key != "additionalProperties");
        if name == "CatalogNamespace" {
            schema["properties"]["field_owners"] = schema_reference("Owners");
        }
        (name.to_owned(), schema)
    })
}

/// Returns the schema of the body of an apply: a list of objects of any kind that has manifests.
fn apply_schema() -> Value {
    let kinds = kinds().map(|fields| fields.kind);
    let revision_schema = "The revision of the object, as in its ETag; 0 if it does not exist yet. The apply is refused if the object has another revision.";
    let revision_schema = json!({"description": revision_schema, "type": ["integer", "null"], "minimum": 0});
    let common_properties = json!({"kind": {"enum": kinds}, "resource_version": revision_schema});
    let object_schema = json!({"type": "object", "required": ["kind"], "properties": common_properties});
    let kind_references = kinds.map(schema_reference);
    let objects = json!({"type": "array", "items": {"allOf": [object_schema, {"anyOf": kind_references}]}});
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
        // `flavor_id` of Magnum is stored without effect. Only a cluster has the field `rollout`.
        assert!(group["flavor_id"].is_object() && group["rollout"].is_null());
        assert_eq!(schemas["Release"]["properties"]["tasks"]["items"]["type"], "object");
        assert!(schemas["Release"]["properties"]["merge_labels"].is_null(), "a release is not a level");
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
    fn schemas_describe_every_value() {
        /// Adds the path of each schema that lacks a type, its fields or its entries to `incomplete`, at any depth.
        fn walk(path: &str, schema: &Value, incomplete: &mut Vec<String>) {
            let has_keyword = |keyword: &str| schema.get(keyword).is_some();
            let has_type = |name: &str| {
                schema["type"] == name || schema["type"].as_array().is_some_and(|types| types.contains(&name.into()))
            };
            let is_described = ["type", "enum", "anyOf", "allOf", "if", "$ref", "description"].into_iter().any(has_keyword);
            if !is_described
                || (has_type("object") && !has_keyword("properties") && !has_keyword("additionalProperties"))
                || (has_type("array") && !has_keyword("items"))
            {
                incomplete.push(format!("{path}: {schema}"));
            }
            let properties = schema["properties"].as_object().into_iter().flatten();
            properties.for_each(|(name, schema)| walk(&format!("{path}.{name}"), schema, incomplete));
            let nested_schemas =
                ["items", "additionalProperties"].map(|keyword| &schema[keyword]).into_iter().filter(|nested| nested.is_object());
            nested_schemas.for_each(|schema| walk(&format!("{path}[]"), schema, incomplete));
            ["allOf", "anyOf"]
                .map(|keyword| &schema[keyword])
                .into_iter()
                .filter_map(Value::as_array)
                .flatten()
                .for_each(|schema| walk(path, schema, incomplete));
        }
        let (schemas, mut incomplete) = (all_schemas(), Vec::new());
        schemas.iter().for_each(|(name, schema)| walk(name, schema, &mut incomplete));
        assert!(incomplete.is_empty(), "{}", incomplete.join("\n"));
    }

    /// A response with chosen fields (`fields`) lacks all others, so its schema must not require any.
    #[test]
    fn schemas_require_no_selectable_field() {
        let schemas = all_schemas();
        for endpoint in Endpoint::ALL {
            let Some(fields) = endpoint.selectable_fields() else { continue };
            let schema = &schemas[endpoint.route().response_schema.expect("an answer in JSON")];
            let schema = fields.list_name.as_ref().map_or(schema, |list| &schema["properties"][list]["items"]);
            for part in flatten_schema(&schemas, schema) {
                assert!(part["required"].is_null(), "{endpoint:?}: {}", part["required"]);
            }
            // The fields were found: every object has more than three.
            assert!(fields.names.len() > 3, "{endpoint:?}: {:?}", fields.names);
        }
    }
}
