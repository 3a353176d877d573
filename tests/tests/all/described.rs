//! Checks that a response matches the API's description and contains nothing else. Validators of JSON Schema ignore
//! members that a schema does not name, but a client generated from the description cannot.

use serde_json::{Map, Value};
use stemma_wire::endpoint::Endpoint;

/// Returns the differences between a response and its description. The list is empty if there are none.
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

/// The description in which references are looked up.
struct SchemaResolver<'a>(&'a Value);

impl<'a> SchemaResolver<'a> {
    /// Resolves references.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let path = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        path.and_then(|path| self.0.pointer(path)).map_or(schema, |found| self.resolve(found))
    }

    /// Returns the schemas that must all match.
    fn all_of(&self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        let all = schema["allOf"].as_array().into_iter().flatten().flat_map(|one| self.all_of(one));
        std::iter::once(schema).chain(all).collect()
    }

    fn check_value(&self, schema: &'a Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        let parts = self.all_of(schema);
        if parts.iter().all(|part| is_unrestricted(part)) {
            faults.push(format!("{at}: nothing is said of {value}"));
        }
        for part in &parts {
            if let Some(one_of) = part["anyOf"].as_array() {
                let holds = |one: &&Value| {
                    let mut wrong = Vec::new();
                    self.check_value(one, value, at, &mut wrong);
                    wrong.is_empty()
                };
                if !one_of.iter().any(|one| holds(&one)) {
                    faults.push(format!("{at}: {value} is none of what is said"));
                }
                return;
            }
            if !has_type(&part["type"], value) || part["enum"].as_array().is_some_and(|known| !known.contains(value)) {
                faults.push(format!("{at}: {value} is not {} {}", part["type"], part["enum"]));
            }
        }
        match value {
            Value::Object(members) => self.check_members(&parts, members, at, faults),
            Value::Array(items) => {
                let of_items: Vec<_> = parts.iter().filter_map(|part| part.get("items")).collect();
                let typed = parts.iter().any(|part| !part["type"].is_null());
                if typed && of_items.is_empty() {
                    faults.push(format!("{at}: nothing is said of its items"));
                }
                for (schema, item) in of_items.iter().flat_map(|schema| items.iter().map(move |item| (schema, item))) {
                    self.check_value(schema, item, &format!("{at}[]"), faults);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn check_members(&self, parts: &[&'a Value], members: &Map<String, Value>, at: &str, faults: &mut Vec<String>) {
        let required = parts.iter().flat_map(|part| part["required"].as_array().into_iter().flatten());
        for name in required.filter_map(Value::as_str).filter(|name| !members.contains_key(*name)) {
            faults.push(format!("{at}/{name}: is required and not there"));
        }
        if parts.iter().all(|part| part["type"].is_null()) {
            return;
        }
        for (name, value) in members {
            let at = format!("{at}/{name}");
            let named: Vec<_> = parts.iter().filter_map(|part| part["properties"].get(name)).collect();
            let others: Vec<_> = parts.iter().filter_map(|part| part.get("additionalProperties")).collect();
            match (&named[..], &others[..]) {
                ([], []) => faults.push(format!("{at}: is not described ({value})")),
                ([], others) if others.contains(&&Value::Bool(true)) => {}
                ([], schemas) | (schemas, _) => {
                    for schema in schemas {
                        self.check_value(schema, value, &at, faults);
                    }
                }
            }
        }
    }
}

/// Returns whether a schema accepts any value and has no description that explains it.
fn is_unrestricted(schema: &Value) -> bool {
    let words = ["type", "enum", "anyOf", "allOf", "description"];
    words.iter().all(|word| schema.get(word).is_none())
}

fn has_type(types: &Value, value: &Value) -> bool {
    let is = |name: &Value| match (name.as_str(), value) {
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
        Value::Array(types) => types.iter().any(is),
        one => is(one),
    }
}

#[test]
fn body_errors_finds_missing_and_undescribed_members() {
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
