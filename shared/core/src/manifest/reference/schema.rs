//! The manifest reference as JSON Schema. It finds only errors of form; `stemma validate` finds more.

use serde_json::{Map, Value, json};

use super::{KindFields, child_path, field_meaning, kinds};
use crate::field::{FieldDef, FieldType};
use crate::task::{Parameter, ParameterForm, ParameterPresence, TASK_TYPES, TaskType};

/// Returns the JSON Schema of one document of a manifest. Editors use it to check and complete manifests.
pub fn schema() -> Value {
    let kinds = kinds();
    let names: Vec<&str> = kinds.iter().map(|fields| fields.kind).collect();
    let kind_rule = |fields: &KindFields| {
        json!({
            "if": {"properties": {"kind": {"const": fields.kind}}, "required": ["kind"]},
            "then": {"$ref": format!("#/$defs/{}", fields.kind)},
        })
    };
    let definitions: Map<String, Value> = kinds.iter().map(|fields| (fields.kind.to_owned(), kind_schema(fields))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A manifest of Stemma",
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"description": "Which kind of object it is.", "enum": names}},
        "allOf": kinds.iter().map(kind_rule).collect::<Vec<_>>(),
        "$defs": definitions,
    })
}

/// Returns the JSON Schema of a field. `path` is its path within its kind, such as `tasks.parameters`, and selects the
/// help texts of its members. Every field accepts `null`, which means its default.
pub fn type_schema(path: &str, field_type: FieldType) -> Value {
    match field_type {
        FieldType::Text => json!({"type": ["string", "null"]}),
        FieldType::Time => json!({"type": ["string", "null"], "format": "date-time"}),
        FieldType::Seconds(min, max) => json!({"type": ["integer", "null"], "minimum": min, "maximum": max}),
        FieldType::Flag => json!({"type": ["boolean", "null"]}),
        FieldType::Count => json!({"type": ["integer", "null"], "minimum": 0}),
        FieldType::Number => json!({"type": ["number", "null"]}),
        FieldType::Map | FieldType::Parameters => json!({"type": ["object", "null"], "additionalProperties": true}),
        FieldType::Object(members) => {
            let mut schema = object_schema(path, members);
            schema["type"] = json!(["object", "null"]);
            schema
        }
        FieldType::MapOf(members) => {
            json!({"type": ["object", "null"], "additionalProperties": object_schema(path, members)})
        }
        FieldType::Objects => {
            json!({"type": ["array", "null"], "items": {"type": "object", "additionalProperties": true}})
        }
        FieldType::ListOf(members) => json!({"type": ["array", "null"], "items": object_schema(path, members)}),
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
        FieldType::UpTo(_, inner_type) => type_schema(path, *inner_type),
    }
}

/// Returns the JSON Schema of a kind: its fields, the constant `kind`, and its passthrough fields, which accept any
/// value.
fn kind_schema(kind: &KindFields) -> Value {
    let mut schema = object_schema("", &kind.fields);
    schema["properties"]["kind"] = json!({"const": kind.kind});
    for name in &kind.passthrough {
        schema["properties"][*name] = json!({"description": "Accepted, stored and shown, but without effect."});
    }
    schema
}

/// Returns the JSON Schema of an object with these members and no others. If the object is a task, the schema has a
/// rule for each task type that agents of this version run, because the type decides which parameters are valid. Only a
/// task has a field of type `Parameters`.
fn object_schema(path: &str, fields: &[FieldDef]) -> Value {
    let properties_of = |field: &FieldDef| {
        let names = std::iter::once(&field.name).chain(field.aliases);
        let member_schema = field_schema(&child_path(path, field), field);
        names.map(|name| ((*name).to_owned(), member_schema.clone())).collect::<Vec<_>>()
    };
    let properties: Map<String, Value> = fields.iter().flat_map(properties_of).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    let required: Vec<&str> = fields.iter().filter(|field| field.is_required()).map(|field| field.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if fields.iter().any(|field| field.field_type.plain() == FieldType::Parameters) {
        schema["allOf"] = TASK_TYPES.iter().filter_map(task_schema).collect();
    }
    schema
}

/// Returns the JSON Schema of a field, with its meaning, default and example. An empty default is not mentioned.
fn field_schema(path: &str, field: &FieldDef) -> Value {
    let default = match field.help.default {
        "" => String::new(),
        _ if field.is_required() => " It is required.".to_owned(),
        _ => format!(" Default: {}.", field.help.default_text()),
    };
    let mut schema = type_schema(path, field.field_type);
    schema["description"] = format!("{}{default}", field_meaning(path, field)).into();
    let example: Value = serde_json::from_str(field.help.example).expect("an example is JSON, as a test checks");
    schema["examples"] = json!([example]);
    schema
}

/// Returns a rule of JSON Schema for the parameters of tasks of a type. Returns `None` for a marker, which has no
/// parameters. The rule skips tasks with the field `foreign`, which may have parameters of Fuel that were not
/// translated.
fn task_schema(kind: &TaskType) -> Option<Value> {
    let names = std::iter::once(&kind.name).chain(kind.aliases).collect::<Vec<_>>();
    let parameter_list = kind.manifest_parameters()?;
    let properties_of = |parameter: &Parameter| {
        let names = std::iter::once(parameter.name).chain(parameter.alias);
        let mut schema = parameter_schema(parameter.parameter_type);
        schema["description"] = parameter.meaning.into();
        names.map(|name| (name.to_owned(), schema.clone())).collect::<Vec<_>>()
    };
    let properties: Map<String, Value> = parameter_list.iter().flat_map(properties_of).collect();
    let required_parameters = parameter_list.iter().filter(|parameter| parameter.presence == ParameterPresence::Needed);
    let required: Vec<&str> = required_parameters.map(|parameter| parameter.name).collect();
    let parameters = json!({"properties": properties, "required": required, "additionalProperties": false});
    Some(json!({
        // The schema `false` accepts no value, so the rule applies only if `foreign` is absent.
        "if": {"properties": {"type": {"enum": names}, "foreign": false}, "required": ["type"]},
        "then": {"properties": {"parameters": parameters}},
    }))
}

/// Returns the JSON Schema of an absolute path without empty, `.` and `..` segments. A text with a template, such as
/// `{{ x }}`, is accepted too, because its value is not known. `alternative` is another accepted regular expression,
/// followed by `|`, or empty.
fn path_schema(alternative: &str) -> Value {
    json!({"type": ["string", "null"], "pattern": format!(r"{alternative}^(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+$|\{{[{{%#]")})
}

/// Returns the JSON Schema of a parameter of this type. Every parameter accepts `null`, which means that it is absent.
fn parameter_schema(parameter_type: ParameterForm) -> Value {
    match parameter_type {
        ParameterForm::Text
        | ParameterForm::Source
        | ParameterForm::Script
        | ParameterForm::ShellText
        | ParameterForm::Account => {
            json!({"type": ["string", "null"]})
        }
        ParameterForm::File | ParameterForm::Path => path_schema(""),
        ParameterForm::Directory => path_schema("^/$|"),
        ParameterForm::Words => json!({"type": ["array", "null"], "items": {"type": "string"}, "minItems": 1}),
        ParameterForm::WordsOrText | ParameterForm::PackageNames | ParameterForm::Patterns => {
            json!({"type": ["array", "string", "null"], "items": {"type": "string"}, "minItems": 1})
        }
        ParameterForm::Env | ParameterForm::Facts => {
            json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}})
        }
        ParameterForm::Mode => json!({"type": ["string", "null"], "pattern": "^0?[0-7]{3,4}$"}),
        ParameterForm::Flag | ParameterForm::Switch => json!({"type": ["boolean", "null"]}),
        ParameterForm::Always => json!({"enum": [true, null]}),
        ParameterForm::Count => json!({"type": ["integer", "null"], "minimum": 0}),
        ParameterForm::AccountName
        | ParameterForm::Comment
        | ParameterForm::Unit
        | ParameterForm::PackageVersion
        | ParameterForm::LinkTarget => {
            json!({"type": ["string", "null"], "pattern": "."})
        }
        ParameterForm::AccountNames => json!({"type": ["array", "string", "null"], "items": {"type": "string"}}),
        ParameterForm::Choice(texts) => {
            json!({"enum": texts.iter().map(|text| json!(text)).chain([Value::Null]).collect::<Vec<_>>()})
        }
        ParameterForm::Seconds | ParameterForm::AccountId => json!({"type": ["integer", "null"], "minimum": 1}),
        ParameterForm::Data => json!({"type": ["object", "null"]}),
        ParameterForm::PathList => json!({"type": ["string", "null"], "pattern": "^/"}),
        ParameterForm::Files => {
            json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}, "minProperties": 1})
        }
        ParameterForm::CopyList => {
            let text = json!({"type": "string", "pattern": "."});
            let item = json!({"type": "object", "properties": {"src": text, "dst": text}, "required": ["src", "dst"], "additionalProperties": false});
            json!({"type": ["array", "null"], "items": item, "minItems": 1})
        }
    }
}
