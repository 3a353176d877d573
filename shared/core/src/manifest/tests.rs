//! Tests that the tables of fields agree with the readers of manifests. Every field is tested, down to its innermost
//! members.

use serde_json::{Map, Value, json};

use super::testing::AnyNameResolver;
use super::write::{WriteError, write_body};
use super::write_mode::WriteMode;
use super::{BodyError, JsonBody, KindFields, api_only_kinds, assemble, kinds, read_document, schema};
use crate::field::{FieldDef, FieldType};
use crate::labels::BodyShape;
use crate::object::AllocationSpec;
use crate::ownership::Manager;

/// Returns whether a value has the JSON type of this field type. The content of the value is not checked.
fn matches_type(field_type: FieldType, value: &Value) -> bool {
    match field_type {
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
        FieldType::UpTo(_, base) => matches_type(*base, value),
    }
}

/// Returns the example in the help of a field.
fn example_value(field: &FieldDef) -> Value {
    serde_json::from_str(field.help.example).unwrap_or_else(|error| panic!("{}: {error}", field.name))
}

/// Returns a manifest with its required fields only.
fn minimal_manifest(kind: &KindFields) -> Value {
    let required_fields = kind.fields.iter().filter(|field| field.is_required());
    let mut manifest: Map<String, Value> = required_fields.map(|field| (field.name.to_owned(), example_value(field))).collect();
    manifest.insert("kind".to_owned(), kind.kind.into());
    manifest.into()
}

/// Reads these manifests together, as one apply. Returns the first error.
fn read_manifests(manifests: &[Value]) -> Result<(), BodyError> {
    let documents: Result<Vec<_>, _> = manifests.iter().map(|manifest| read_document(&manifest.to_string())).collect();
    let assembled = assemble(&documents?, &Manager::new("test").expect("a name"));
    assembled.map(drop).map_err(|mut errors| errors.remove(0).1)
}

/// Reads a manifest of this kind together with the minimal manifest of every other kind, to which it may refer.
fn read_with_minimal(kind: &KindFields, manifest: Value) -> Result<(), BodyError> {
    let others = kinds();
    let others = others.iter().filter(|other| other.kind != kind.kind).map(minimal_manifest);
    read_manifests(&others.chain([manifest]).collect::<Vec<_>>())
}

/// Returns the object with the members of a field: the value itself, or the first entry of the value's map or list.
fn innermost_object(field_type: FieldType, value: &mut Value) -> &mut Map<String, Value> {
    let object = match field_type.plain() {
        FieldType::MapOf(_) => value.as_object_mut().and_then(|map| map.values_mut().next()),
        FieldType::ListOf(_) => value.as_array_mut().and_then(|list| list.first_mut()),
        _ => Some(value),
    };
    object.and_then(Value::as_object_mut).expect("the example of a field contains the members of the field")
}

/// Checks that a field accepts its example and refuses values of other types, then checks its members, their aliases
/// and whether they are required. `read` reads a manifest in which the field has the given value.
fn check_example_and_types(path: &str, field: &FieldDef, read: &dyn Fn(&Value) -> Result<(), BodyError>) {
    let (field_type, example) = (field.field_type, example_value(field));
    assert!(matches_type(field_type, &example), "{path}: {example}");
    assert_eq!(read(&example), Ok(()), "{path}: {example}");
    assert!(field.help.meaning.ends_with('.'), "{path}: {}", field.help.meaning);
    // A value of each JSON type. The field must refuse the values of the other types.
    for other in [json!(true), json!(7), json!("?"), json!([7]), json!([[]]), json!({"?": [[7]]})] {
        assert!(matches_type(field_type, &other) || read(&other).is_err(), "{path} accepts {other}");
    }
    if let FieldType::OneOf(texts) = field_type {
        for text in texts {
            assert_eq!(read(&json!(text)), Ok(()), "{path}: {text}");
        }
        let error = read(&json!("?")).expect_err(path).reason;
        assert!(error.contains(&format!("must be one of {}, not ", texts.join(", "))), "{path}: {error}");
    }
    // The members are checked within the example: each with its name and its aliases, and the example without it.
    for member in field_type.members() {
        let read_changed = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut changed = example.clone();
            change(innermost_object(field_type, &mut changed));
            read(&changed)
        };
        let read_member = |name: &str, value: &Value| {
            read_changed(&|members| {
                members.remove(member.name);
                members.insert(name.to_owned(), value.clone());
            })
        };
        check_example_and_types(&format!("{path}.{}", member.name), member, &|value| read_member(member.name, value));
        for alias in member.aliases {
            assert_eq!(read_member(alias, &example_value(member)), Ok(()), "{path}.{alias}");
        }
        let result = read_changed(&|members| drop(members.remove(member.name)));
        assert_eq!(result.is_err(), member.is_required(), "{path} without {}: {result:?}", member.name);
    }
}

#[test]
fn every_described_field_is_read() {
    for kind in kinds() {
        assert_eq!(read_with_minimal(&kind, minimal_manifest(&kind)), Ok(()), "{}", kind.kind);
        // Only the command `stemma` reads `include`, before it sends the manifest to the controller.
        for field in kind.fields.iter().filter(|field| field.name != "include") {
            let read_with = |value: &Value| {
                let mut manifest = minimal_manifest(&kind);
                manifest[field.name] = value.clone();
                read_with_minimal(&kind, manifest)
            };
            let path = format!("{}.{}", kind.kind, field.name);
            // A required field has no default.
            if !field.is_required() {
                assert_eq!(read_with(&Value::Null), Ok(()), "{path}: null is the default");
            }
            check_example_and_types(&path, field, &read_with);
        }
    }
}

/// Names of the fields that identify an object, and `include`, which only the command `stemma` reads. The table of
/// fields has no bounds for them. The identifying fields are limited in length when they are parsed.
const FIELDS_WITHOUT_BOUND: [&str; 6] = ["name", "version", "include", "namespace", "cluster", "uuid"];

/// Returns pairs of values for a field of this type: a value at a bound of the type, and a value just beyond the bound.
fn boundary_values(field_type: FieldType) -> Vec<(Value, Value)> {
    let bound = field_type.bound();
    let text = |bytes: usize| json!("x".repeat(bytes));
    let texts = |count: usize| (0..count).map(|n| json!(format!("e{n}"))).collect::<Value>();
    let map = |count: usize| Value::Object((0..count).map(|n| (format!("e{n}"), json!({}))).collect());
    let list = |count: usize| json!(vec![json!({}); count]);
    let map_with_key = |bytes: usize| json!({("x".repeat(bytes)): {}});
    // The braces, the key and the quotes of this map are 8 bytes.
    let map_with_text = |bytes: usize| json!({"e": "x".repeat(bytes - 8)});
    let pair = |build: &dyn Fn(usize) -> Value, max: usize| (build(max), build(max + 1));
    match field_type.plain() {
        FieldType::Text
        | FieldType::Time
        | FieldType::Seconds(..)
        | FieldType::Flag
        | FieldType::Count
        | FieldType::Number
        | FieldType::Share
        | FieldType::OneOf(_) => {
            vec![pair(&text, bound.max_bytes)]
        }
        FieldType::Names => {
            vec![pair(&texts, bound.max_entries), pair(&|bytes| json!([text(bytes)]), bound.max_entry_bytes)]
        }
        FieldType::TextOrList => {
            vec![
                pair(&texts, bound.max_entries),
                pair(&|bytes| json!([text(bytes)]), bound.max_entry_bytes),
                pair(&text, bound.max_entry_bytes),
            ]
        }
        FieldType::Map | FieldType::MapOrList => {
            vec![pair(&map, bound.max_entries), pair(&map_with_key, bound.max_entry_bytes), pair(&map_with_text, bound.max_bytes)]
        }
        FieldType::MapOf(_) => vec![pair(&map, bound.max_entries), pair(&map_with_key, bound.max_entry_bytes)],
        FieldType::ListOf(_) => vec![pair(&list, bound.max_entries)],
        FieldType::Objects | FieldType::Any => vec![pair(&list, bound.max_entries), pair(&map_with_text, bound.max_bytes)],
        FieldType::Parameters => vec![pair(&map, bound.max_entries), pair(&map_with_text, bound.max_bytes)],
        // The members of an object have their own bounds.
        FieldType::Object(_) | FieldType::UpTo(..) => Vec::new(),
    }
}

/// Returns whether a value was refused because of its size.
fn is_bound_error(error: &BodyError) -> bool {
    error.reason.ends_with(": leave some out") || error.reason.ends_with(": make it shorter")
}

/// Checks that a field accepts the size of values at its bounds and refuses larger values, then checks its members.
/// `read` reads a body in which the field has the given value.
fn check_bounds(path: &str, field: &FieldDef, read: &dyn Fn(&Value) -> Result<(), BodyError>) {
    for (index, (within, beyond)) in boundary_values(field.field_type).into_iter().enumerate() {
        // A value at the bound may be refused for its content, but not for its size.
        let error = read(&within).err();
        assert!(!error.as_ref().is_some_and(is_bound_error), "{path}, {index}: {error:?}");
        let error = read(&beyond).err();
        assert!(error.as_ref().is_some_and(is_bound_error), "{path}, {index}: {error:?}");
    }
    for member in field.field_type.members() {
        let read_member = |value: &Value| {
            let mut changed = example_value(field);
            innermost_object(field.field_type, &mut changed).insert(member.name.to_owned(), value.clone());
            read(&changed)
        };
        check_bounds(&format!("{path}.{}", member.name), member, &read_member);
    }
}

#[test]
fn x03_every_field_has_a_bound() {
    for kind in kinds() {
        for field in kind.fields.iter().filter(|field| !FIELDS_WITHOUT_BOUND.contains(&field.name)) {
            let read_with = |value: &Value| {
                let mut manifest = minimal_manifest(&kind);
                manifest[field.name] = value.clone();
                read_with_minimal(&kind, manifest)
            };
            check_bounds(&format!("{}.{}", kind.kind, field.name), field, &read_with);
        }
    }
    for kind in api_only_kinds() {
        for field in kind.fields.iter().filter(|field| !FIELDS_WITHOUT_BOUND.contains(&field.name)) {
            check_bounds(&format!("{}.{}", kind.kind, field.name), field, &|value| read_allocation(field.name, value));
        }
    }
}

/// Reads the body of an allocation with one field. An allocation is the only kind without a manifest.
fn read_allocation(field: &str, value: &Value) -> Result<(), BodyError> {
    let manager = Manager::new("test").expect("a name");
    let mode = WriteMode::Update { manager: &manager, shape: BodyShape::Native };
    let body = JsonBody::parse(&json!({(field): value}).to_string())?;
    match write_body(&mut AllocationSpec::default(), &body, mode, &AnyNameResolver::default(), 0) {
        Ok(()) => Ok(()),
        Err(WriteError::Body(error)) => Err(error),
        Err(WriteError::Conflicts(conflicts)) => panic!("{conflicts:?}"),
    }
}

/// Checks that a field and its members refuse an empty entry in a list or map of names, and an empty required text,
/// unless the bound of the field allows empty entries. `read` reads a body in which the field has the given value.
fn check_empty_entries(path: &str, field: &FieldDef, read: &dyn Fn(&Value) -> Result<(), BodyError>) {
    let empty_values = match field.field_type.plain() {
        FieldType::Names => vec![json!([""]), json!([" "])],
        FieldType::TextOrList => vec![json!([""]), json!("")],
        FieldType::Map | FieldType::MapOf(_) | FieldType::MapOrList => vec![json!({"": {}})],
        FieldType::Text if field.is_required() => vec![json!(""), json!(" ")],
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
    for value in empty_values.into_iter().filter(|_| !field.field_type.bound().allows_empty) {
        let error = read(&value).expect_err(path);
        assert!(error.reason.contains("is empty"), "{path}: {error}");
    }
    for member in field.field_type.members() {
        let read_member = |value: &Value| {
            let mut changed = example_value(field);
            innermost_object(field.field_type, &mut changed).insert(member.name.to_owned(), value.clone());
            read(&changed)
        };
        check_empty_entries(&format!("{path}.{}", member.name), member, &read_member);
    }
}

#[test]
fn x06_every_field_rejects_empty_entry() {
    for kind in kinds() {
        for field in kind.fields.iter().filter(|field| !FIELDS_WITHOUT_BOUND.contains(&field.name)) {
            let read_with = |value: &Value| {
                let mut manifest = minimal_manifest(&kind);
                manifest[field.name] = value.clone();
                read_with_minimal(&kind, manifest)
            };
            check_empty_entries(&format!("{}.{}", kind.kind, field.name), field, &read_with);
        }
    }
    for field in ["traits", "candidate_nodes"] {
        let error = read_allocation(field, &json!([""])).expect_err(field);
        assert_eq!(error.to_string(), format!("{field}[0]: is empty: name something, or leave it out"));
    }
    let error = read_allocation("resource_class", &json!("")).expect_err("an empty resource class");
    assert_eq!(error.to_string(), "resource_class: is empty, but is required");
}

#[test]
fn field_examples_build_one_fleet() {
    let manifest = |kind: &KindFields| {
        let fields = kind.fields.iter().filter(|field| field.name != "include");
        let mut manifest: Map<String, Value> = fields.map(|field| (field.name.to_owned(), example_value(field))).collect();
        manifest.insert("kind".to_owned(), kind.kind.into());
        Value::Object(manifest)
    };
    assert_eq!(read_manifests(&kinds().each_ref().map(manifest)), Ok(()));
}

/// Samples of the schema: the required fields and allowed values of a node group, and the aliases and parameters of a
/// task. The first rule for the parameters of tasks is that of the type `file`.
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
