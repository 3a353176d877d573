//! The manifest reference as JSON Schema. It finds only errors of form; `stemma validate` finds more.

use serde_json::{Map, Value, json};

use super::{KindFields, child_path, field_meaning, kinds};
use crate::field::{FieldDef, FieldType};
use crate::task::{Parameter, ParameterForm, ParameterPresence, TASK_TYPES, TaskType};

/// Returns the JSON Schema of one document of a manifest, for editors.
pub fn schema() -> Value {
    let kinds = kinds();
    let names: Vec<&str> = kinds.iter().map(|one| one.kind).collect();
    let of_kind = |one: &KindFields| {
        json!({
            "if": {"properties": {"kind": {"const": one.kind}}, "required": ["kind"]},
            "then": {"$ref": format!("#/$defs/{}", one.kind)},
        })
    };
    let definitions: Map<String, Value> = kinds.iter().map(|one| (one.kind.to_owned(), kind_schema(one))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A manifest of Stemma",
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"description": "Which kind of object it is.", "enum": names}},
        "allOf": kinds.iter().map(of_kind).collect::<Vec<_>>(),
        "$defs": definitions,
    })
}

/// Returns the schema of a field of this type, at this path of its kind. `null` is allowed and is the default.
pub fn type_schema(path: &str, form: FieldType) -> Value {
    match form {
        FieldType::Text => json!({"type": ["string", "null"]}),
        FieldType::Time => json!({"type": ["string", "null"], "format": "date-time"}),
        FieldType::Seconds(least, most) => json!({"type": ["integer", "null"], "minimum": least, "maximum": most}),
        FieldType::Flag => json!({"type": ["boolean", "null"]}),
        FieldType::Count => json!({"type": ["integer", "null"], "minimum": 0}),
        FieldType::Number => json!({"type": ["number", "null"]}),
        FieldType::Map | FieldType::Parameters => json!({"type": ["object", "null"], "additionalProperties": true}),
        FieldType::Object(parts) => {
            let mut schema = object_schema(path, parts);
            schema["type"] = json!(["object", "null"]);
            schema
        }
        FieldType::MapOf(parts) => {
            json!({"type": ["object", "null"], "additionalProperties": object_schema(path, parts)})
        }
        FieldType::Objects => {
            json!({"type": ["array", "null"], "items": {"type": "object", "additionalProperties": true}})
        }
        FieldType::ListOf(parts) => json!({"type": ["array", "null"], "items": object_schema(path, parts)}),
        FieldType::Names => json!({"type": ["array", "null"], "items": {"type": "string"}}),
        FieldType::TextOrList => json!({"type": ["string", "array", "null"], "items": {"type": "string"}}),
        FieldType::MapOrList => {
            json!({"type": ["object", "array", "null"], "additionalProperties": true, "items": {"description": "One of them."}})
        }
        FieldType::Share => {
            json!({"type": ["integer", "string", "null"], "minimum": 1, "pattern": "^([1-9][0-9]?|100)%$"})
        }
        FieldType::OneOf(texts) => {
            let values: Vec<Value> = texts.iter().map(|text| json!(text)).chain([Value::Null]).collect();
            json!({"enum": values})
        }
        FieldType::Any => json!({"description": "Any value."}),
        FieldType::UpTo(_, inner) => type_schema(path, *inner),
    }
}

fn kind_schema(kind: &KindFields) -> Value {
    let mut schema = object_schema("", &kind.fields);
    schema["properties"]["kind"] = json!({"const": kind.kind});
    for name in &kind.passthrough {
        schema["properties"][*name] = json!({"description": "Accepted, stored and shown, but without effect."});
    }
    schema
}

/// Returns the schema of an object with these members and no others. If it is a task, its parameters depend on its
/// type.
fn object_schema(path: &str, fields: &[FieldDef]) -> Value {
    let named = |field: &FieldDef| {
        let names = std::iter::once(&field.name).chain(field.aliases);
        let described = field_schema(&child_path(path, field), field);
        names.map(|name| ((*name).to_owned(), described.clone())).collect::<Vec<_>>()
    };
    let properties: Map<String, Value> = fields.iter().flat_map(named).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    let required: Vec<&str> = fields.iter().filter(|part| part.is_required()).map(|part| part.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if fields.iter().any(|part| part.field_type.plain() == FieldType::Parameters) {
        schema["allOf"] = TASK_TYPES.iter().filter_map(task_schema).collect();
    }
    schema
}

/// Returns the schema of a field, with its meaning, default and example.
fn field_schema(path: &str, field: &FieldDef) -> Value {
    let default = match field.help.default {
        "" => String::new(),
        _ if field.is_required() => " It is required.".to_owned(),
        _ => format!(" Default: {}.", field.help.default_text()),
    };
    let mut schema = type_schema(path, field.field_type);
    schema["description"] = format!("{}{default}", field_meaning(path, field)).into();
    let example: Value = serde_json::from_str(field.help.example).expect("a test reads every example");
    schema["examples"] = json!([example]);
    schema
}

/// Returns the schema of the parameters of a task type. Tasks with untranslated parts of Fuel's are not checked.
fn task_schema(kind: &TaskType) -> Option<Value> {
    let names = std::iter::once(&kind.name).chain(kind.aliases).collect::<Vec<_>>();
    let written = kind.manifest_parameters()?;
    let named = |parameter: &Parameter| {
        let names = std::iter::once(parameter.name).chain(parameter.alias);
        let mut schema = parameter_schema(parameter.parameter_type);
        schema["description"] = parameter.meaning.into();
        names.map(|name| (name.to_owned(), schema.clone())).collect::<Vec<_>>()
    };
    let properties: Map<String, Value> = written.iter().flat_map(named).collect();
    let needed = written.iter().filter(|one| one.presence == ParameterPresence::Needed);
    let required: Vec<&str> = needed.map(|one| one.name).collect();
    let parameters = json!({"properties": properties, "required": required, "additionalProperties": false});
    Some(json!({
        "if": {"properties": {"type": {"enum": names}, "foreign": false}, "required": ["type"]},
        "then": {"properties": {"parameters": parameters}},
    }))
}

/// Returns the schema of a path whose segments are neither empty nor `.` nor `..`, or of a template. `or` is the
/// beginning of another accepted pattern.
fn path_schema(or: &str) -> Value {
    json!({"type": ["string", "null"], "pattern": format!(r"{or}^(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+$|\{{[{{%#]")})
}

/// Returns the schema of a parameter of this type. `null` is allowed and counts as absent.
fn parameter_schema(form: ParameterForm) -> Value {
    match form {
        ParameterForm::Text | ParameterForm::Script | ParameterForm::ShellText | ParameterForm::Account => {
            json!({"type": ["string", "null"]})
        }
        ParameterForm::File | ParameterForm::Path => path_schema(""),
        ParameterForm::Directory => path_schema("^/$|"),
        ParameterForm::Words => json!({"type": ["array", "null"], "items": {"type": "string"}, "minItems": 1}),
        ParameterForm::WordsOrText => {
            json!({"type": ["array", "string", "null"], "items": {"type": "string"}, "minItems": 1})
        }
        ParameterForm::Env => json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}}),
        ParameterForm::Mode => json!({"type": ["string", "null"], "pattern": "^0?[0-7]{3,4}$"}),
        ParameterForm::Flag => json!({"type": ["boolean", "null"]}),
        ParameterForm::Always => json!({"enum": [true, null]}),
        ParameterForm::Count => json!({"type": ["integer", "null"], "minimum": 0}),
        ParameterForm::Seconds => json!({"type": ["integer", "null"], "minimum": 1}),
    }
}
