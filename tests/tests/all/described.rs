//! Checks that a response matches the API's description and contains nothing else. Validators of JSON Schema ignore
//! members that a schema does not name, but a client generated from the description cannot.

use serde_json::{Map, Value};
use stemma_wire::endpoint::Endpoint;

/// Returns the differences between a response and its description in an `OpenAPI` document. `media` is the media type
/// of the response, and empty if the response has no body. The body is compared only if `media` is `application/json`.
pub(crate) fn body_errors(description: &Value, endpoint: Endpoint, status: u16, media: &str, body: &Value) -> Vec<String> {
    let route = endpoint.route();
    let operation = &description["paths"][route.path][route.method.as_str().to_ascii_lowercase()];
    let responses = SchemaResolver(description).resolve(&operation["responses"][status.to_string()]);
    if media.is_empty() && responses["content"].as_object().is_none_or(Map::is_empty) {
        return Vec::new();
    }
    let Some(content) = responses["content"].get(media) else {
        return vec![format!("{status} {media:?} is not there")];
    };
    let mut faults = Vec::new();
    if media == "application/json" {
        SchemaResolver(description).check_value(&content["schema"], body, "", &mut faults);
    }
    faults
}

/// Checks values against the schemas of an `OpenAPI` document, in which it looks up references.
struct SchemaResolver<'a>(&'a Value);

impl<'a> SchemaResolver<'a> {
    /// Follows a reference (`$ref`) until a schema that is not a reference. Returns this schema.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let pointer = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        pointer.and_then(|pointer| self.0.pointer(pointer)).map_or(schema, |target| self.resolve(target))
    }

    /// Returns the schema itself and all schemas that its `allOf` contains, with resolved references. A value that
    /// matches the schema matches each of them.
    fn all_of(&self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        let parts = schema["allOf"].as_array().into_iter().flatten().flat_map(|part| self.all_of(part));
        std::iter::once(schema).chain(parts).collect()
    }

    /// Adds the differences between a value and its schema to `faults`. `path` is the path of the value in the body.
    fn check_value(&self, schema: &'a Value, value: &Value, path: &str, faults: &mut Vec<String>) {
        let parts = self.all_of(schema);
        if parts.iter().all(|part| is_unrestricted(part)) {
            faults.push(format!("{path}: nothing is said of {value}"));
        }
        for part in &parts {
            // The alternatives describe the whole value, so the parts after this one are not checked.
            if let Some(alternatives) = part["anyOf"].as_array() {
                let matches_schema = |alternative: &&Value| {
                    let mut differences = Vec::new();
                    self.check_value(alternative, value, path, &mut differences);
                    differences.is_empty()
                };
                if !alternatives.iter().any(|alternative| matches_schema(&alternative)) {
                    faults.push(format!("{path}: {value} matches no alternative"));
                }
                return;
            }
            if !has_type(&part["type"], value) || part["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
                faults.push(format!("{path}: {value} is not {} {}", part["type"], part["enum"]));
            }
        }
        match value {
            Value::Object(members) => self.check_members(&parts, members, path, faults),
            Value::Array(items) => {
                let item_schemas: Vec<_> = parts.iter().filter_map(|part| part.get("items")).collect();
                let is_typed = parts.iter().any(|part| !part["type"].is_null());
                if is_typed && item_schemas.is_empty() {
                    faults.push(format!("{path}: nothing is said of its items"));
                }
                for (schema, item) in item_schemas.iter().flat_map(|schema| items.iter().map(move |item| (schema, item))) {
                    self.check_value(schema, item, &format!("{path}[]"), faults);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Adds the differences between the members of an object and its schema to `faults`. The object must match each of
    /// `parts`. `path` is the path of the object in the body.
    fn check_members(&self, parts: &[&'a Value], members: &Map<String, Value>, path: &str, faults: &mut Vec<String>) {
        let required = parts.iter().flat_map(|part| part["required"].as_array().into_iter().flatten());
        for name in required.filter_map(Value::as_str).filter(|name| !members.contains_key(*name)) {
            faults.push(format!("{path}/{name}: is required and not there"));
        }
        // A schema without a type has a description in words, and accepts all members.
        if parts.iter().all(|part| part["type"].is_null()) {
            return;
        }
        for (name, value) in members {
            let path = format!("{path}/{name}");
            let property_schemas: Vec<_> = parts.iter().filter_map(|part| part["properties"].get(name)).collect();
            let additional_schemas: Vec<_> = parts.iter().filter_map(|part| part.get("additionalProperties")).collect();
            match (&property_schemas[..], &additional_schemas[..]) {
                ([], []) => faults.push(format!("{path}: is not described ({value})")),
                ([], additional_schemas) if additional_schemas.contains(&&Value::Bool(true)) => {}
                ([], schemas) | (schemas, _) => {
                    for schema in schemas {
                        self.check_value(schema, value, &path, faults);
                    }
                }
            }
        }
    }
}

/// Returns whether a schema accepts any value and has no description that explains it.
fn is_unrestricted(schema: &Value) -> bool {
    let keywords = ["type", "enum", "anyOf", "allOf", "description"];
    keywords.iter().all(|keyword| schema.get(keyword).is_none())
}

/// Returns whether a value has a type of `types`, which is the `type` of a schema: null for any, a name, or a list.
fn has_type(types: &Value, value: &Value) -> bool {
    let is_type = |name: &Value| match (name.as_str(), value) {
        (Some("integer"), Value::Number(number)) => number.is_i64() || number.is_u64(),
        (Some(name), value) => {
            name == match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            }
        }
        (None, _) => false,
    };
    match types {
        Value::Null => true,
        Value::Array(types) => types.iter().any(is_type),
        name => is_type(name),
    }
}

#[test]
fn check_value_finds_missing_undescribed_and_mistyped_members() {
    let description = serde_json::json!({"components": {
        "A": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}},
        "B": {"allOf": [{"$ref": "#/components/A"}, {"type": "object", "properties": {"b": {"type": ["string", "null"]}, "c": {}}}]},
    }});
    let found = |body: &str| {
        let mut faults = Vec::new();
        let body = serde_json::from_str(body).expect("JSON");
        SchemaResolver(&description).check_value(&description["components"]["B"], &body, "", &mut faults);
        faults
    };
    assert_eq!(found(r#"{"a": 1, "b": null}"#), [""; 0]);
    assert_eq!(found(r#"{"a": 1, "d": 2}"#), ["/d: is not described (2)"]);
    assert_eq!(found(r#"{"b": "x"}"#), ["/a: is required and not there"]);
    assert_eq!(found(r#"{"a": "1"}"#), [r#"/a: "1" is not "integer" null"#]);
    assert_eq!(found(r#"{"a": 1, "c": 2}"#), ["/c: nothing is said of 2"]);
}
