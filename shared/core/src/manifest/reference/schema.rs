//! The reference as JSON Schema. It marks what is wrong by its form alone: `stemma validate` knows more.

use serde_json::{Map, Value, json};

use super::{KindFields, below, kinds, meaning};
use crate::field::{Form, Part};
use crate::task::{Parameter, ParameterForm, Presence, TASK_TYPES, TaskType};

/// The JSON Schema of one document of a manifest, as editors use it.
pub fn schema() -> Value {
    let kinds = kinds();
    let names: Vec<&str> = kinds.iter().map(|one| one.kind).collect();
    let of_kind = |one: &KindFields| {
        json!({
            "if": {"properties": {"kind": {"const": one.kind}}, "required": ["kind"]},
            "then": {"$ref": format!("#/$defs/{}", one.kind)},
        })
    };
    let definitions: Map<String, Value> = kinds.iter().map(|one| (one.kind.to_owned(), definition(one))).collect();
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

/// A field of this form, as it is at this path of its kind; or `null`, which is the default.
pub fn of_form(path: &str, form: Form) -> Value {
    match form {
        Form::Text => json!({"type": ["string", "null"]}),
        Form::Time => json!({"type": ["string", "null"], "format": "date-time"}),
        Form::Seconds(least, most) => json!({"type": ["integer", "null"], "minimum": least, "maximum": most}),
        Form::Flag => json!({"type": ["boolean", "null"]}),
        Form::Count => json!({"type": ["integer", "null"], "minimum": 0}),
        Form::Number => json!({"type": ["number", "null"]}),
        Form::Map | Form::Parameters => json!({"type": ["object", "null"], "additionalProperties": true}),
        Form::Object(parts) => {
            let mut schema = object(path, parts);
            schema["type"] = json!(["object", "null"]);
            schema
        }
        Form::MapOf(parts) => json!({"type": ["object", "null"], "additionalProperties": object(path, parts)}),
        Form::Objects => json!({"type": ["array", "null"], "items": {"type": "object", "additionalProperties": true}}),
        Form::ListOf(parts) => json!({"type": ["array", "null"], "items": object(path, parts)}),
        Form::Names => json!({"type": ["array", "null"], "items": {"type": "string"}}),
        Form::TextOrList => json!({"type": ["string", "array", "null"], "items": {"type": "string"}}),
        Form::MapOrList => {
            json!({"type": ["object", "array", "null"], "additionalProperties": true, "items": {"description": "One of them."}})
        }
        Form::Share => json!({"type": ["integer", "string", "null"], "minimum": 1, "pattern": "^([1-9][0-9]?|100)%$"}),
        Form::OneOf(texts) => {
            let values: Vec<Value> = texts.iter().map(|text| json!(text)).chain([Value::Null]).collect();
            json!({"enum": values})
        }
        Form::Any => json!({"description": "Any value."}),
        Form::UpTo(_, of) => of_form(path, *of),
    }
}

fn definition(kind: &KindFields) -> Value {
    let mut schema = object("", &kind.parts);
    schema["properties"]["kind"] = json!({"const": kind.kind});
    for name in &kind.kept {
        schema["properties"][*name] = json!({"description": "Taken, kept and shown, and given no meaning."});
    }
    schema
}

/// An object with these members and no others.
fn object(path: &str, parts: &[Part]) -> Value {
    let named = |part: &Part| {
        let names = std::iter::once(&part.name).chain(part.aliases);
        let described = described(&below(path, part), part);
        names.map(|name| ((*name).to_owned(), described.clone())).collect::<Vec<_>>()
    };
    let properties: Map<String, Value> = parts.iter().flat_map(named).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    let required: Vec<&str> = parts.iter().filter(|part| part.is_required()).map(|part| part.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if parts.iter().any(|part| part.form.plain() == Form::Parameters) {
        schema["allOf"] = TASK_TYPES.iter().filter_map(of_type).collect();
    }
    schema
}

fn described(path: &str, part: &Part) -> Value {
    let default = match part.help.default {
        "" => String::new(),
        _ if part.is_required() => " It is required.".to_owned(),
        _ => format!(" Default: {}.", part.help.default_text()),
    };
    let mut schema = of_form(path, part.form);
    schema["description"] = format!("{}{default}", meaning(path, part)).into();
    let example: Value = serde_json::from_str(part.help.example).expect("a test reads every example");
    schema["examples"] = json!([example]);
    schema
}

/// What a task of this type takes. Fuel's tasks with something untranslated are not judged.
fn of_type(kind: &TaskType) -> Option<Value> {
    let names = std::iter::once(&kind.name).chain(kind.aliases).collect::<Vec<_>>();
    let written = kind.written()?;
    let named = |one: &Parameter| {
        let names = std::iter::once(one.name).chain(one.alias);
        let mut schema = of_parameter(one.form);
        schema["description"] = one.meaning.into();
        names.map(|name| (name.to_owned(), schema.clone())).collect::<Vec<_>>()
    };
    let properties: Map<String, Value> = written.iter().flat_map(named).collect();
    let needed = written.iter().filter(|one| one.presence == Presence::Needed);
    let required: Vec<&str> = needed.map(|one| one.name).collect();
    let parameters = json!({"properties": properties, "required": required, "additionalProperties": false});
    Some(json!({
        "if": {"properties": {"type": {"enum": names}, "foreign": false}, "required": ["type"]},
        "then": {"properties": {"parameters": parameters}},
    }))
}

/// A plain path, whose parts are neither empty nor `.` nor `..`, or a template.
fn of_path(or: &str) -> Value {
    json!({"type": ["string", "null"], "pattern": format!(r"{or}^(/([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))+$|\{{[{{%#]")})
}

fn of_parameter(form: ParameterForm) -> Value {
    match form {
        ParameterForm::Text | ParameterForm::Script | ParameterForm::ShellText | ParameterForm::Account => {
            json!({"type": ["string", "null"]})
        }
        ParameterForm::File | ParameterForm::Path => of_path(""),
        ParameterForm::Directory => of_path("^/$|"),
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
