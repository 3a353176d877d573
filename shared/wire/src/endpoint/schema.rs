//! The schemas of the API's main bodies. What fields a kind has, and what each is like, is core's reference of manifests, made
//! from the tables by which bodies are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use stemma_core::catalog;
use stemma_core::field::Part;
use stemma_core::manifest::{KindFields, kinds, kinds_of_api, of_form};

use super::{Endpoint, Fields, PAGE};

/// A reference to a schema.
pub(super) fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// All schemas, by name. What a kind's write takes has the kind's name; what is shown of it begins with `Shown`, and what answers a
/// change of it with `Changed`.
pub(super) fn all() -> Map<String, Value> {
    let mut schemas = Map::new();
    for one in kinds().into_iter().chain(kinds_of_api()) {
        kind(&mut schemas, &one);
    }
    let others: Map<String, Value> =
        serde_json::from_str(include_str!("schemas.json")).expect("schemas.json is a JSON object");
    schemas.extend(others);
    schemas.extend(of_catalog());
    schemas.insert("Apply".to_owned(), apply());
    let tasks = &schemas["Release"]["properties"]["tasks"];
    let tasks = json!({"type": "object", "required": ["tasks"], "properties": {"tasks": tasks}});
    schemas.insert("TaskList".to_owned(), tasks);
    schemas
}

/// What the command alone reads of a manifest.
const OF_THE_COMMAND: &[&str] = &["include", "reports"];

/// What is shown of every kind, of a kind on whose level labels live, and of one kind alone, with what each is like.
static SHOWN: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("shown.json")).expect("shown.json is JSON"));

/// What is shown of a kind beside what is written of it, or in another form.
fn made(kind: &str) -> impl Iterator<Item = (&'static String, &'static Value)> {
    let is_level = matches!(kind, "ClusterTemplate" | "Cluster" | "NodeGroup" | "Node");
    let sets = [Some("every"), is_level.then_some("level"), Some(kind)];
    sets.into_iter().flatten().filter_map(|set| SHOWN[set].as_object()).flatten()
}

/// The fields that can be chosen of each answer: those that its schema says, or that of its rows.
pub(super) fn fields() -> BTreeMap<Endpoint, Fields> {
    let schemas = all();
    let names = |schema: &Value| -> BTreeSet<String> {
        let parts = parts(&schemas, schema);
        let all = parts.iter().filter_map(|part| part["properties"].as_object()).flat_map(Map::keys);
        // Links stand beside whatever is chosen, and are no field (as Ironic); what is stored is asked for by itself.
        all.filter(|name| !["links", "stored"].contains(&name.as_str())).cloned().collect()
    };
    let of = |endpoint: &Endpoint| {
        let route = endpoint.route();
        let schema = &schemas[route.answer_schema.filter(|_| route.query.names().any(|name| name == "fields"))?];
        let is_list = |(_, one): &(&String, &Value)| one["type"] == "array";
        let lists = route.query.names().any(|name| name == PAGE[0]);
        let list = schema["properties"].as_object()?.iter().find(is_list).filter(|_| lists);
        let fields = match list {
            Some((name, rows)) => Fields { list: Some(name.clone()), names: names(&rows["items"]) },
            None => Fields { list: None, names: names(schema) },
        };
        Some((*endpoint, fields))
    };
    Endpoint::ALL.iter().filter_map(of).collect()
}

/// A schema, and all that it is made of (`allOf`), with references followed.
fn parts<'a>(schemas: &'a Map<String, Value>, schema: &'a Value) -> Vec<&'a Value> {
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    let schema = name.map_or(schema, |name| &schemas[name]);
    let of = schema["allOf"].as_array().into_iter().flatten().flat_map(|part| parts(schemas, part));
    std::iter::once(schema).chain(of).collect()
}

/// The three schemas of a kind.
fn kind(schemas: &mut Map<String, Value>, kind: &KindFields) {
    let name = kind.kind;
    let taken = kind.parts.iter().filter(|part| !OF_THE_COMMAND.contains(&part.name));
    let of_part = |part: &Part| (part.name.to_owned(), of_form(part.name, part.form));
    let mut properties: Map<String, Value> = taken.map(of_part).collect();
    let kept = json!({"description": "Taken, kept and shown, and given no meaning."});
    properties.extend(kind.kept.iter().map(|field| ((*field).to_owned(), kept.clone())));
    let mut shown = properties.clone();
    shown.extend(made(name).map(|(field, schema)| (field.clone(), schema.clone())));
    schemas.insert(name.to_owned(), json!({"type": "object", "properties": properties}));
    schemas.insert(format!("Shown{name}"), json!({"type": "object", "properties": shown}));
    schemas.insert(format!("Changed{name}"), json!({"allOf": [named(&format!("Shown{name}")), named("Changed")]}));
}

/// What is in the catalogue, by the schemas that Glance's clients are given of it.
fn of_catalog() -> impl Iterator<Item = (String, Value)> {
    let names = [("CatalogNamespace", "namespace"), ("NamespaceProperty", "property"), ("NamespaceObject", "object")];
    let whole = names.map(|(name, given)| (name, catalog::schema(given).expect("it has this name there")));
    let fields = whole[0].1["properties"]["properties"]["additionalProperties"].clone();
    let all = whole.into_iter().chain([("NamespacePropertyFields", fields)]);
    all.map(|(name, mut schema)| {
        // Its name is no word of JSON Schema, and what else a body of these may have is for the controller to refuse.
        schema
            .as_object_mut()
            .expect("a schema is an object")
            .retain(|word, _| word != "name" && word != "additionalProperties");
        if name == "CatalogNamespace" {
            schema["properties"]["field_owners"] = named("Owners");
        }
        (name.to_owned(), schema)
    })
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
    use stemma_core::field::Form;

    use super::*;

    #[test]
    fn a_kinds_schema_has_the_fields_that_its_parser_takes() {
        let schemas = all();
        let group = &schemas["NodeGroup"]["properties"];
        for (field, schema) in [
            ("splay", json!({"type": ["integer", "null"], "minimum": 0, "maximum": 31_622_400})),
            ("mode", json!({"enum": ["observe", "noop", "apply", null]})),
            ("requirements", of_form("requirements", Form::MapOrList)),
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
        for name in
            routes.flat_map(|route| [route.request_schema, route.answer_schema, route.accepted_schema]).flatten()
        {
            assert!(schemas.contains_key(name), "{name}");
        }
    }

    /// A client that is made of the description reads what stands there alone.
    #[test]
    fn every_answer_is_described_down_to_its_values() {
        fn walk(at: &str, schema: &Value, thin: &mut Vec<String>) {
            let has = |word: &str| schema.get(word).is_some();
            let is = |name: &str| {
                schema["type"] == name || schema["type"].as_array().is_some_and(|all| all.contains(&name.into()))
            };
            let says = ["type", "enum", "anyOf", "allOf", "if", "$ref", "description"].into_iter().any(has);
            if !says
                || (is("object") && !has("properties") && !has("additionalProperties"))
                || (is("array") && !has("items"))
            {
                thin.push(format!("{at}: {schema}"));
            }
            let properties = schema["properties"].as_object().into_iter().flatten();
            properties.for_each(|(name, schema)| walk(&format!("{at}.{name}"), schema, thin));
            let below =
                ["items", "additionalProperties"].map(|word| &schema[word]).into_iter().filter(|one| one.is_object());
            below.for_each(|schema| walk(&format!("{at}[]"), schema, thin));
            ["allOf", "anyOf"]
                .map(|word| &schema[word])
                .into_iter()
                .filter_map(Value::as_array)
                .flatten()
                .for_each(|schema| walk(at, schema, thin));
        }
        let (schemas, mut thin) = (all(), Vec::new());
        schemas.iter().for_each(|(name, schema)| walk(name, schema, &mut thin));
        assert!(thin.is_empty(), "{}", thin.join("\n"));
    }

    /// A body with chosen fields has no others: so no schema of one may require any.
    #[test]
    fn no_schema_requires_a_field_that_can_be_left_out() {
        let schemas = all();
        for endpoint in Endpoint::ALL {
            let Some(fields) = endpoint.fields() else { continue };
            let schema = &schemas[endpoint.route().answer_schema.expect("an answer in JSON")];
            let schema = fields.list.as_ref().map_or(schema, |list| &schema["properties"][list]["items"]);
            for part in parts(&schemas, schema) {
                assert!(part["required"].is_null(), "{endpoint:?}: {}", part["required"]);
            }
            assert!(fields.names.len() > 3, "{endpoint:?}: {:?}", fields.names);
        }
    }
}
