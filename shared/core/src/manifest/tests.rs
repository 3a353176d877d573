//! What the tables say of a field is what its reader does: every field is tried in a manifest, down to the last part of it.

use serde_json::{Map, Value, json};

use super::author::Author;
use super::testing::Anybody;
use super::write::{WriteError, write};
use super::{Body, BodyError, KindFields, assemble, kinds, kinds_of_api, read_document, schema};
use crate::field::{Form, Part};
use crate::labels::BodyShape;
use crate::object::AllocationSpec;
use crate::ownership::Manager;

/// Whether JSON of this form may be so, by its kind alone.
fn is_of(form: Form, value: &Value) -> bool {
    match form {
        Form::Text | Form::Time | Form::OneOf(_) => value.is_string(),
        Form::Flag => value.is_boolean(),
        Form::Count | Form::Seconds(..) => value.is_u64(),
        Form::Number => value.is_number(),
        Form::Map | Form::Object(_) | Form::MapOf(_) | Form::Parameters => value.is_object(),
        Form::MapOrList => value.is_object() || value.is_array(),
        Form::Objects | Form::ListOf(_) | Form::Names => value.is_array(),
        Form::TextOrList => value.is_string() || value.is_array(),
        Form::Share => value.is_u64() || value.is_string(),
        Form::Any => true,
        Form::UpTo(_, of) => is_of(*of, value),
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
    let one = match form.plain() {
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

/// What names an object is bounded where it is read as a name, and is no field.
const NAMING: [&str; 6] = ["name", "version", "include", "namespace", "cluster", "uuid"];

/// Values at what a field of this form may hold at most, each with one that is just beyond.
fn bounds(form: Form) -> Vec<(Value, Value)> {
    let bound = form.bound();
    let text = |bytes: usize| json!("x".repeat(bytes));
    let texts = |count: usize| (0..count).map(|n| json!(format!("e{n}"))).collect::<Value>();
    let map = |count: usize| Value::Object((0..count).map(|n| (format!("e{n}"), json!({}))).collect());
    let list = |count: usize| json!(vec![json!({}); count]);
    let keyed = |bytes: usize| json!({("x".repeat(bytes)): {}});
    let filled = |bytes: usize| json!({"e": "x".repeat(bytes - 8)});
    let both = |of: &dyn Fn(usize) -> Value, most: usize| (of(most), of(most + 1));
    match form.plain() {
        Form::Text
        | Form::Time
        | Form::Seconds(..)
        | Form::Flag
        | Form::Count
        | Form::Number
        | Form::Share
        | Form::OneOf(_) => {
            vec![both(&text, bound.bytes)]
        }
        Form::Names => vec![both(&texts, bound.entries), both(&|bytes| json!([text(bytes)]), bound.each)],
        Form::TextOrList => {
            vec![both(&texts, bound.entries), both(&|bytes| json!([text(bytes)]), bound.each), both(&text, bound.each)]
        }
        Form::Map | Form::MapOrList => {
            vec![both(&map, bound.entries), both(&keyed, bound.each), both(&filled, bound.bytes)]
        }
        Form::MapOf(_) => vec![both(&map, bound.entries), both(&keyed, bound.each)],
        Form::ListOf(_) => vec![both(&list, bound.entries)],
        Form::Objects | Form::Any => vec![both(&list, bound.entries), both(&filled, bound.bytes)],
        Form::Parameters => vec![both(&map, bound.entries), both(&filled, bound.bytes)],
        // Its members have theirs.
        Form::Object(_) | Form::UpTo(..) => Vec::new(),
    }
}

fn is_of_bound(error: &BodyError) -> bool {
    error.reason.ends_with(": leave some out") || error.reason.ends_with(": make it shorter")
}

/// Tries a field and all of its parts at the bound and one beyond; `take` reads a body with this value of the field.
fn try_bounds(path: &str, part: &Part, take: &dyn Fn(&Value) -> Result<(), BodyError>) {
    for (at, (within, beyond)) in bounds(part.form).into_iter().enumerate() {
        // It may be refused for what it is, and not for how much it is.
        let refused = take(&within).err();
        assert!(!refused.as_ref().is_some_and(is_of_bound), "{path}, {at}: {refused:?}");
        let refused = take(&beyond).err();
        assert!(refused.as_ref().is_some_and(is_of_bound), "{path}, {at}: {refused:?}");
    }
    for inner in part.form.parts() {
        let with = |value: &Value| {
            let mut whole = example(part);
            innermost(part.form, &mut whole).insert(inner.name.to_owned(), value.clone());
            take(&whole)
        };
        try_bounds(&format!("{path}.{}", inner.name), inner, &with);
    }
}

#[test]
fn x03_every_field_has_a_bound() {
    for kind in kinds() {
        for part in kind.parts.iter().filter(|part| !NAMING.contains(&part.name)) {
            let with = |value: &Value| {
                let mut manifest = least(&kind);
                manifest[part.name] = value.clone();
                take(&kind, manifest)
            };
            try_bounds(&format!("{}.{}", kind.kind, part.name), part, &with);
        }
    }
    for kind in kinds_of_api() {
        for part in kind.parts.iter().filter(|part| !NAMING.contains(&part.name)) {
            try_bounds(&format!("{}.{}", kind.kind, part.name), part, &|value| allocate(part.name, value));
        }
    }
}

/// Reads a body of an allocation, the one kind that has no manifest, with one field.
fn allocate(field: &str, value: &Value) -> Result<(), BodyError> {
    let manager = Manager::new("test").expect("a name");
    let author = Author::Update { manager: &manager, shape: BodyShape::Own };
    let body = Body::parse(&json!({(field): value}).to_string())?;
    match write(&mut AllocationSpec::default(), &body, author, &Anybody::default(), 0) {
        Ok(()) => Ok(()),
        Err(WriteError::Body(error)) => Err(error),
        Err(WriteError::Conflicts(conflicts)) => panic!("{conflicts:?}"),
    }
}

/// Tries every list and map of names, down to the last part of a field, with an entry of nothing.
fn try_empty(path: &str, part: &Part, take: &dyn Fn(&Value) -> Result<(), BodyError>) {
    let empty = match part.form.plain() {
        Form::Names => vec![json!([""]), json!([" "])],
        Form::TextOrList => vec![json!([""]), json!("")],
        Form::Map | Form::MapOf(_) | Form::MapOrList => vec![json!({"": {}})],
        Form::Text if part.is_required() => vec![json!(""), json!(" ")],
        Form::Text
        | Form::Time
        | Form::Seconds(..)
        | Form::Flag
        | Form::Count
        | Form::Number
        | Form::Object(_)
        | Form::Parameters
        | Form::Objects
        | Form::ListOf(_)
        | Form::Share
        | Form::OneOf(_)
        | Form::Any
        | Form::UpTo(..) => Vec::new(),
    };
    for value in empty.into_iter().filter(|_| !part.form.bound().takes_empty) {
        let refused = take(&value).expect_err(path);
        assert!(refused.reason.contains("is empty"), "{path}: {refused}");
    }
    for inner in part.form.parts() {
        let with = |value: &Value| {
            let mut whole = example(part);
            innermost(part.form, &mut whole).insert(inner.name.to_owned(), value.clone());
            take(&whole)
        };
        try_empty(&format!("{path}.{}", inner.name), inner, &with);
    }
}

#[test]
fn x06_an_empty_entry_is_refused_in_every_field() {
    for kind in kinds() {
        for part in kind.parts.iter().filter(|part| !NAMING.contains(&part.name)) {
            let with = |value: &Value| {
                let mut manifest = least(&kind);
                manifest[part.name] = value.clone();
                take(&kind, manifest)
            };
            try_empty(&format!("{}.{}", kind.kind, part.name), part, &with);
        }
    }
    for field in ["traits", "candidate_nodes"] {
        let refused = allocate(field, &json!([""])).expect_err(field);
        assert_eq!(refused.to_string(), format!("{field}[0]: is empty: name something, or leave it out"));
    }
    let refused = allocate("resource_class", &json!("")).expect_err("a class of nothing");
    assert_eq!(refused.to_string(), "resource_class: is empty, and is needed");
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
