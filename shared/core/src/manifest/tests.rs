//! Compares the tables with the readers: every field is tested in a manifest, down to its innermost parts.

use serde_json::{Map, Value, json};

use super::testing::AnyNameResolver;
use super::write::{WriteError, write_body};
use super::write_mode::WriteMode;
use super::{BodyError, JsonBody, KindFields, api_only_kinds, assemble, kinds, read_document, schema};
use crate::field::{FieldDef, FieldType};
use crate::labels::BodyShape;
use crate::object::AllocationSpec;
use crate::ownership::Manager;

/// Returns whether JSON has this type, regardless of its content.
fn matches_type(form: FieldType, value: &Value) -> bool {
    match form {
        FieldType::Text | FieldType::Time | FieldType::OneOf(_) => value.is_string(),
        FieldType::Flag => value.is_boolean(),
        FieldType::Count | FieldType::Seconds(..) => value.is_u64(),
        FieldType::Number => value.is_number(),
        FieldType::Map | FieldType::Object(_) | FieldType::MapOf(_) | FieldType::Parameters => value.is_object(),
        FieldType::MapOrList => value.is_object() || value.is_array(),
        FieldType::Objects | FieldType::ListOf(_) | FieldType::Names => value.is_array(),
        FieldType::TextOrList => value.is_string() || value.is_array(),
        FieldType::Share => value.is_u64() || value.is_string(),
        FieldType::Any => true,
        FieldType::UpTo(_, of) => matches_type(*of, value),
    }
}

fn example_value(part: &FieldDef) -> Value {
    serde_json::from_str(part.help.example).unwrap_or_else(|why| panic!("{}: {why}", part.name))
}

/// Returns a manifest with its required fields only.
fn minimal_manifest(kind: &KindFields) -> Value {
    let needed = kind.fields.iter().filter(|part| part.is_required());
    let mut manifest: Map<String, Value> = needed.map(|part| (part.name.to_owned(), example_value(part))).collect();
    manifest.insert("kind".to_owned(), kind.kind.into());
    manifest.into()
}

/// Reads these manifests together.
fn read_manifests(manifests: &[Value]) -> Result<(), BodyError> {
    let documents: Result<Vec<_>, _> = manifests.iter().map(|one| read_document(&one.to_string())).collect();
    let assembled = assemble(&documents?, &Manager::new("test").expect("a name"));
    assembled.map(drop).map_err(|mut errors| errors.remove(0).1)
}

/// Reads one manifest of this kind together with the minimal one of every other kind.
fn read_with_minimal(kind: &KindFields, manifest: Value) -> Result<(), BodyError> {
    let others = kinds();
    let others = others.iter().filter(|other| other.kind != kind.kind).map(minimal_manifest);
    read_manifests(&others.chain([manifest]).collect::<Vec<_>>())
}

/// Returns the object within a field's value that contains the parts of the field.
fn innermost_object(form: FieldType, whole: &mut Value) -> &mut Map<String, Value> {
    let one = match form.plain() {
        FieldType::MapOf(_) => whole.as_object_mut().and_then(|map| map.values_mut().next()),
        FieldType::ListOf(_) => whole.as_array_mut().and_then(|list| list.first_mut()),
        _ => Some(whole),
    };
    one.and_then(Value::as_object_mut).expect("the example of a field shows what stands in it")
}

/// Tests a field and all of its parts. `take` reads a manifest with this value of the field.
fn check_described(path: &str, part: &FieldDef, take: &dyn Fn(&Value) -> Result<(), BodyError>) {
    let (form, example) = (part.field_type, example_value(part));
    assert!(matches_type(form, &example), "{path}: {example}");
    assert_eq!(take(&example), Ok(()), "{path}: {example}");
    assert!(part.help.meaning.ends_with('.'), "{path}: {}", part.help.meaning);
    for other in [json!(true), json!(7), json!("?"), json!([7]), json!([[]]), json!({"?": [[7]]})] {
        assert!(matches_type(form, &other) || take(&other).is_err(), "{path} takes {other}");
    }
    if let FieldType::OneOf(texts) = form {
        for text in texts {
            assert_eq!(take(&json!(text)), Ok(()), "{path}: {text}");
        }
        let refused = take(&json!("?")).expect_err(path).reason;
        assert!(refused.contains(&format!("must be one of {}, not ", texts.join(", "))), "{path}: {refused}");
    }
    for inner in form.members() {
        let with = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut whole = example.clone();
            change(innermost_object(form, &mut whole));
            take(&whole)
        };
        let called = |name: &str, value: &Value| {
            with(&|members| {
                members.remove(inner.name);
                members.insert(name.to_owned(), value.clone());
            })
        };
        check_described(&format!("{path}.{}", inner.name), inner, &|value| called(inner.name, value));
        for alias in inner.aliases {
            assert_eq!(called(alias, &example_value(inner)), Ok(()), "{path}.{alias}");
        }
        let without = with(&|members| drop(members.remove(inner.name)));
        assert_eq!(without.is_err(), inner.is_required(), "{path} without {}: {without:?}", inner.name);
    }
}

#[test]
fn every_described_field_is_read() {
    for kind in kinds() {
        assert_eq!(read_with_minimal(&kind, minimal_manifest(&kind)), Ok(()), "{}", kind.kind);
        // Only the command reads `include`.
        for part in kind.fields.iter().filter(|part| part.name != "include") {
            let with = |value: &Value| {
                let mut manifest = minimal_manifest(&kind);
                manifest[part.name] = value.clone();
                read_with_minimal(&kind, manifest)
            };
            let path = format!("{}.{}", kind.kind, part.name);
            // A name may be any text, and other manifests of the set refer to the example.
            if !part.is_required() {
                assert_eq!(with(&Value::Null), Ok(()), "{path}: null is the default");
            }
            check_described(&path, part, &with);
        }
    }
}

/// Identifying fields are not entries of the table. They are bounded when they are read as names.
const IDENTITY_NAMES: [&str; 6] = ["name", "version", "include", "namespace", "cluster", "uuid"];

/// Returns values at the bounds of a field of this type, each with one just beyond.
fn boundary_values(form: FieldType) -> Vec<(Value, Value)> {
    let bound = form.bound();
    let text = |bytes: usize| json!("x".repeat(bytes));
    let texts = |count: usize| (0..count).map(|n| json!(format!("e{n}"))).collect::<Value>();
    let map = |count: usize| Value::Object((0..count).map(|n| (format!("e{n}"), json!({}))).collect());
    let list = |count: usize| json!(vec![json!({}); count]);
    let keyed = |bytes: usize| json!({("x".repeat(bytes)): {}});
    let filled = |bytes: usize| json!({"e": "x".repeat(bytes - 8)});
    let both = |of: &dyn Fn(usize) -> Value, most: usize| (of(most), of(most + 1));
    match form.plain() {
        FieldType::Text
        | FieldType::Time
        | FieldType::Seconds(..)
        | FieldType::Flag
        | FieldType::Count
        | FieldType::Number
        | FieldType::Share
        | FieldType::OneOf(_) => {
            vec![both(&text, bound.max_bytes)]
        }
        FieldType::Names => {
            vec![both(&texts, bound.max_entries), both(&|bytes| json!([text(bytes)]), bound.max_entry_bytes)]
        }
        FieldType::TextOrList => {
            vec![
                both(&texts, bound.max_entries),
                both(&|bytes| json!([text(bytes)]), bound.max_entry_bytes),
                both(&text, bound.max_entry_bytes),
            ]
        }
        FieldType::Map | FieldType::MapOrList => {
            vec![both(&map, bound.max_entries), both(&keyed, bound.max_entry_bytes), both(&filled, bound.max_bytes)]
        }
        FieldType::MapOf(_) => vec![both(&map, bound.max_entries), both(&keyed, bound.max_entry_bytes)],
        FieldType::ListOf(_) => vec![both(&list, bound.max_entries)],
        FieldType::Objects | FieldType::Any => vec![both(&list, bound.max_entries), both(&filled, bound.max_bytes)],
        FieldType::Parameters => vec![both(&map, bound.max_entries), both(&filled, bound.max_bytes)],
        // Its members have their own bounds.
        FieldType::Object(_) | FieldType::UpTo(..) => Vec::new(),
    }
}

fn is_bound_error(error: &BodyError) -> bool {
    error.reason.ends_with(": leave some out") || error.reason.ends_with(": make it shorter")
}

/// Tests a field and all of its parts at the bound and just beyond. `take` reads a body with this value of the field.
fn check_described_bounds(path: &str, part: &FieldDef, take: &dyn Fn(&Value) -> Result<(), BodyError>) {
    for (at, (within, beyond)) in boundary_values(part.field_type).into_iter().enumerate() {
        // It may be refused for its content, but not for its size.
        let refused = take(&within).err();
        assert!(!refused.as_ref().is_some_and(is_bound_error), "{path}, {at}: {refused:?}");
        let refused = take(&beyond).err();
        assert!(refused.as_ref().is_some_and(is_bound_error), "{path}, {at}: {refused:?}");
    }
    for inner in part.field_type.members() {
        let with = |value: &Value| {
            let mut whole = example_value(part);
            innermost_object(part.field_type, &mut whole).insert(inner.name.to_owned(), value.clone());
            take(&whole)
        };
        check_described_bounds(&format!("{path}.{}", inner.name), inner, &with);
    }
}

#[test]
fn x03_every_field_has_a_bound() {
    for kind in kinds() {
        for part in kind.fields.iter().filter(|part| !IDENTITY_NAMES.contains(&part.name)) {
            let with = |value: &Value| {
                let mut manifest = minimal_manifest(&kind);
                manifest[part.name] = value.clone();
                read_with_minimal(&kind, manifest)
            };
            check_described_bounds(&format!("{}.{}", kind.kind, part.name), part, &with);
        }
    }
    for kind in api_only_kinds() {
        for part in kind.fields.iter().filter(|part| !IDENTITY_NAMES.contains(&part.name)) {
            check_described_bounds(&format!("{}.{}", kind.kind, part.name), part, &|value| read_allocation(part.name, value));
        }
    }
}

/// Reads a body of an allocation, the only kind without a manifest, with one field.
fn read_allocation(field: &str, value: &Value) -> Result<(), BodyError> {
    let manager = Manager::new("test").expect("a name");
    let author = WriteMode::Update { manager: &manager, shape: BodyShape::Native };
    let body = JsonBody::parse(&json!({(field): value}).to_string())?;
    match write_body(&mut AllocationSpec::default(), &body, author, &AnyNameResolver::default(), 0) {
        Ok(()) => Ok(()),
        Err(WriteError::Body(error)) => Err(error),
        Err(WriteError::Conflicts(conflicts)) => panic!("{conflicts:?}"),
    }
}

/// Tests every list and map of names with an empty entry, down to the innermost parts of a field.
fn check_empty_entries(path: &str, part: &FieldDef, take: &dyn Fn(&Value) -> Result<(), BodyError>) {
    let empty = match part.field_type.plain() {
        FieldType::Names => vec![json!([""]), json!([" "])],
        FieldType::TextOrList => vec![json!([""]), json!("")],
        FieldType::Map | FieldType::MapOf(_) | FieldType::MapOrList => vec![json!({"": {}})],
        FieldType::Text if part.is_required() => vec![json!(""), json!(" ")],
        FieldType::Text
        | FieldType::Time
        | FieldType::Seconds(..)
        | FieldType::Flag
        | FieldType::Count
        | FieldType::Number
        | FieldType::Object(_)
        | FieldType::Parameters
        | FieldType::Objects
        | FieldType::ListOf(_)
        | FieldType::Share
        | FieldType::OneOf(_)
        | FieldType::Any
        | FieldType::UpTo(..) => Vec::new(),
    };
    for value in empty.into_iter().filter(|_| !part.field_type.bound().allows_empty) {
        let refused = take(&value).expect_err(path);
        assert!(refused.reason.contains("is empty"), "{path}: {refused}");
    }
    for inner in part.field_type.members() {
        let with = |value: &Value| {
            let mut whole = example_value(part);
            innermost_object(part.field_type, &mut whole).insert(inner.name.to_owned(), value.clone());
            take(&whole)
        };
        check_empty_entries(&format!("{path}.{}", inner.name), inner, &with);
    }
}

#[test]
fn x06_every_field_rejects_empty_entry() {
    for kind in kinds() {
        for part in kind.fields.iter().filter(|part| !IDENTITY_NAMES.contains(&part.name)) {
            let with = |value: &Value| {
                let mut manifest = minimal_manifest(&kind);
                manifest[part.name] = value.clone();
                read_with_minimal(&kind, manifest)
            };
            check_empty_entries(&format!("{}.{}", kind.kind, part.name), part, &with);
        }
    }
    for field in ["traits", "candidate_nodes"] {
        let refused = read_allocation(field, &json!([""])).expect_err(field);
        assert_eq!(refused.to_string(), format!("{field}[0]: is empty: name something, or leave it out"));
    }
    let refused = read_allocation("resource_class", &json!("")).expect_err("a class of nothing");
    assert_eq!(refused.to_string(), "resource_class: is empty, and is needed");
}

#[test]
fn field_examples_build_one_fleet() {
    let manifest = |kind: &KindFields| {
        let parts = kind.fields.iter().filter(|part| part.name != "include");
        let mut manifest: Map<String, Value> = parts.map(|part| (part.name.to_owned(), example_value(part))).collect();
        manifest.insert("kind".to_owned(), kind.kind.into());
        Value::Object(manifest)
    };
    assert_eq!(read_manifests(&kinds().each_ref().map(manifest)), Ok(()));
}

#[test]
fn schema_agrees_with_field_table() {
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
