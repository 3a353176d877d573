//! What the tables say of a field is what its reader does: every field is tried in a manifest, down to the last part of it.

use serde_json::{Map, Value, json};

use super::{BodyError, KindFields, assemble, kinds, read_document, schema};
use crate::field::{Form, Part};
use crate::ownership::Manager;

/// Whether JSON of this form may be so, by its kind alone.
fn is_of(form: Form, value: &Value) -> bool {
    match form {
        Form::Text | Form::OneOf(_) => value.is_string(),
        Form::Flag => value.is_boolean(),
        Form::Count => value.is_u64(),
        Form::Number => value.is_number(),
        Form::Map | Form::Object(_) | Form::MapOf(_) | Form::Parameters => value.is_object(),
        Form::MapOrList => value.is_object() || value.is_array(),
        Form::Objects | Form::ListOf(_) | Form::Names => value.is_array(),
        Form::TextOrList => value.is_string() || value.is_array(),
        Form::Share => value.is_u64() || value.is_string(),
        Form::Any => true,
    }
}

fn example(part: &Part) -> Value {
    serde_json::from_str(part.help.example).unwrap_or_else(|why| panic!("{}: {why}", part.name))
}

/// A manifest with what it needs and nothing more.
fn least(kind: &KindFields) -> Value {
    let needed = kind.parts.iter().filter(|part| part.is_required());
    let mut manifest: Map<String, Value> = needed.map(|part| (part.name.to_owned(), example(part))).collect();
    manifest.insert("kind".to_owned(), kind.kind.into());
    manifest.into()
}

/// Reads these manifests together.
fn read(manifests: &[Value]) -> Result<(), BodyError> {
    let documents: Result<Vec<_>, _> = manifests.iter().map(|one| read_document(&one.to_string())).collect();
    let assembled = assemble(&documents?, &Manager::new("test").expect("a name"));
    assembled.map(drop).map_err(|mut errors| errors.remove(0).1)
}

/// Reads one manifest of this kind beside the least of every other.
fn take(kind: &KindFields, manifest: Value) -> Result<(), BodyError> {
    let others = kinds();
    let others = others.iter().filter(|other| other.kind != kind.kind).map(least);
    read(&others.chain([manifest]).collect::<Vec<_>>())
}

/// The object that the parts of a field stand in, of a value of the field.
fn innermost(form: Form, whole: &mut Value) -> &mut Map<String, Value> {
    let one = match form {
        Form::MapOf(_) => whole.as_object_mut().and_then(|map| map.values_mut().next()),
        Form::ListOf(_) => whole.as_array_mut().and_then(|list| list.first_mut()),
        _ => Some(whole),
    };
    one.and_then(Value::as_object_mut).expect("the example of a field shows what stands in it")
}

/// Tries a field and all of its parts; `take` reads a manifest with this value of the field.
fn try_part(path: &str, part: &Part, take: &dyn Fn(&Value) -> Result<(), BodyError>) {
    let (form, example) = (part.form, example(part));
    assert!(is_of(form, &example), "{path}: {example}");
    assert_eq!(take(&example), Ok(()), "{path}: {example}");
    assert!(part.help.meaning.ends_with('.'), "{path}: {}", part.help.meaning);
    for other in [json!(true), json!(7), json!("?"), json!([7]), json!([[]]), json!({"?": [[7]]})] {
        assert!(is_of(form, &other) || take(&other).is_err(), "{path} takes {other}");
    }
    if let Form::OneOf(texts) = form {
        for text in texts {
            assert_eq!(take(&json!(text)), Ok(()), "{path}: {text}");
        }
        let refused = take(&json!("?")).expect_err(path).reason;
        assert!(refused.contains(&format!("one of {} is meant", texts.join(", "))), "{path}: {refused}");
    }
    for inner in form.parts() {
        let with = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut whole = example.clone();
            change(innermost(form, &mut whole));
            take(&whole)
        };
        let called = |name: &str, value: &Value| {
            with(&|members| {
                members.remove(inner.name);
                members.insert(name.to_owned(), value.clone());
            })
        };
        try_part(&format!("{path}.{}", inner.name), inner, &|value| called(inner.name, value));
        for alias in inner.aliases {
            assert_eq!(called(alias, &self::example(inner)), Ok(()), "{path}.{alias}");
        }
        let without = with(&|members| drop(members.remove(inner.name)));
        assert_eq!(without.is_err(), inner.is_required(), "{path} without {}: {without:?}", inner.name);
    }
}

#[test]
fn every_field_and_part_is_read_as_the_tables_say() {
    for kind in kinds() {
        assert_eq!(take(&kind, least(&kind)), Ok(()), "{}", kind.kind);
        // `include` is the command's alone.
        for part in kind.parts.iter().filter(|part| part.name != "include") {
            let with = |value: &Value| {
                let mut manifest = least(&kind);
                manifest[part.name] = value.clone();
                take(&kind, manifest)
            };
            let path = format!("{}.{}", kind.kind, part.name);
            // A name may be any; others of the set refer to the example.
            if !part.is_required() {
                assert_eq!(with(&Value::Null), Ok(()), "{path}: null is the default");
            }
            try_part(&path, part, &with);
        }
    }
}

#[test]
fn the_examples_of_all_fields_of_all_kinds_make_one_fleet() {
    let manifest = |kind: &KindFields| {
        let parts = kind.parts.iter().filter(|part| part.name != "include");
        let mut manifest: Map<String, Value> = parts.map(|part| (part.name.to_owned(), example(part))).collect();
        manifest.insert("kind".to_owned(), kind.kind.into());
        Value::Object(manifest)
    };
    assert_eq!(read(&kinds().each_ref().map(manifest)), Ok(()));
}

#[test]
fn the_schema_says_of_a_field_what_the_table_does() {
    let schema = schema();
    let group = &schema["$defs"]["NodeGroup"];
    assert_eq!(group["required"], json!(["name", "cluster"]));
    assert_eq!(group["additionalProperties"], json!(false));
    let strategy = &group["properties"]["strategy"];
    assert_eq!(strategy["properties"]["type"]["enum"], json!(["RollingUpdate", "OnDelete", null]));
    assert!(strategy["description"].as_str().is_some_and(|text| text.contains("Nothing acts on it yet")), "{strategy}");
    let task = &schema["$defs"]["Release"]["properties"]["tasks"]["items"];
    assert_eq!(task["required"], json!(["id", "type"]));
    assert_eq!(task["properties"]["groups"], task["properties"]["roles"]);
    let file = &task["allOf"][0]["then"]["properties"]["parameters"];
    assert_eq!(file["required"], json!(["path"]));
    assert!(file["properties"]["template_file"].is_object() && file["properties"]["data"].is_object(), "{file}");
}
