//! Checks that the JSON schema of manifests agrees with their parser. So an editor with the schema reports no error in
//! any manifest of this repository.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use stemma_core::finding::Severity;
use stemma_core::manifest::schema;

use super::super::{ReadPurpose, load};
use crate::manifest;

const REPOSITORY_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the errors that the schema reports for a value, each as `place: keyword`, or as `place: is not allowed` for
/// the schema `false`. `place` is the path of the value, such as `/tasks/0/id`, and `root` is the schema that
/// references point into. Supports only the keywords that the schema of manifests uses.
fn schema_errors(root: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let Some(keywords) = schema.as_object() else {
        // A schema that is not an object is `true` (all values are valid) or `false` (none is valid).
        return if *schema == json!(false) { vec![format!("{place}: is not allowed")] } else { Vec::new() };
    };
    let mut errors = Vec::new();
    for (keyword, rule) in keywords {
        let is_valid = match keyword.as_str() {
            "type" => has_type(rule, value),
            "enum" => rule.as_array().is_some_and(|allowed| allowed.contains(value)),
            "const" => rule == value,
            "pattern" => value.as_str().is_none_or(|text| compile_pattern(rule).is_match(text)),
            "minimum" => value.as_i64().is_none_or(|number| Some(number) >= rule.as_i64()),
            "maximum" => value.as_i64().is_none_or(|number| Some(number) <= rule.as_i64()),
            "format" => *rule == "date-time" && value.as_str().is_none_or(|text| stemma_core::time::parse(text).is_ok()),
            "minItems" => value.as_array().is_none_or(|items| Some(items.len() as u64) >= rule.as_u64()),
            "required" => value.as_object().is_none_or(|map| text_items(rule).all(|name| map.contains_key(name))),
            _ => {
                errors.extend(subschema_errors(root, keywords, (keyword, rule), value, place));
                true
            }
        };
        if !is_valid {
            errors.push(format!("{place}: {keyword}"));
        }
    }
    errors
}

/// Returns the errors of one keyword that applies other schemas to the value or to its parts, such as `allOf` or
/// `items`. A keyword without a rule, such as `title`, gives no error. Panics for a keyword that is not supported here.
fn subschema_errors(
    root: &Value,
    keywords: &Map<String, Value>,
    (keyword, rule): (&str, &Value),
    value: &Value,
    place: &str,
) -> Vec<String> {
    let member_errors =
        |schema: &Value, value: &Value, name: &str| schema_errors(root, schema, value, &format!("{place}/{name}"));
    let known_members = keywords.get("properties").and_then(Value::as_object);
    match (keyword, value) {
        ("$ref", _) => {
            let path = rule.as_str().and_then(|path| path.strip_prefix('#')).expect("a place in this schema");
            schema_errors(root, root.pointer(path).expect(path), value, place)
        }
        ("allOf", _) => {
            rule.as_array().into_iter().flatten().flat_map(|subschema| schema_errors(root, subschema, value, place)).collect()
        }
        ("if", _) if schema_errors(root, rule, value, place).is_empty() => schema_errors(root, &keywords["then"], value, place),
        ("properties", Value::Object(map)) => map
            .iter()
            .filter_map(|(name, value)| Some(member_errors(&rule[name], value, name)).filter(|_| !rule[name].is_null()))
            .flatten()
            .collect(),
        ("additionalProperties", Value::Object(map)) => {
            let other_members =
                map.iter().filter(|(name, _)| known_members.is_none_or(|known_members| !known_members.contains_key(*name)));
            other_members.flat_map(|(name, value)| member_errors(rule, value, name)).collect()
        }
        ("items", Value::Array(items)) => {
            items.iter().enumerate().flat_map(|(index, item)| member_errors(rule, item, &index.to_string())).collect()
        }
        (
            "if"
            | "then"
            | "properties"
            | "additionalProperties"
            | "items"
            | "description"
            | "examples"
            | "title"
            | "$schema"
            | "$defs",
            _,
        ) => Vec::new(),
        (other, _) => panic!("the schema has a keyword that this test does not support: {other}"),
    }
}

fn compile_pattern(pattern: &Value) -> regex_lite::Regex {
    pattern.as_str().and_then(|pattern| regex_lite::Regex::new(pattern).ok()).expect("a valid pattern")
}

/// Returns whether the value has the JSON type `types`, or one of them if `types` is a list.
fn has_type(types: &Value, value: &Value) -> bool {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        // Every number counts as an integer here, and also as a `number`.
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let matches_kind = |type_name: &str| type_name == kind || (type_name == "number" && value.is_number());
    types.as_str().is_some_and(matches_kind) || text_items(types).any(matches_kind)
}

fn text_items(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn manifest_errors(json: &str) -> Vec<String> {
    let (schema, value) = (schema(), serde_json::from_str(json).expect("JSON"));
    schema_errors(&schema, &schema, &value, "")
}

/// Returns the YAML blocks in a page of the documentation that are manifests (blocks with a line `kind:`).
fn page_manifests(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).expect("a page");
    let blocks =
        text.split("```yaml\n").skip(1).map(|block_and_rest| block_and_rest.split("```").next().unwrap_or_default().to_owned());
    blocks.filter(|block| block.lines().any(|line| line.starts_with("kind: "))).collect()
}

/// Returns the paths of the pages directly in `docs`, and of the README.
fn doc_pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(format!("{REPOSITORY_DIR}/docs")).expect("docs").map(|entry| entry.expect("an entry").path());
    docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .chain([format!("{REPOSITORY_DIR}/README.md").into()])
        .collect()
}

#[test]
fn schema_accepts_manifests_of_repository() {
    let dir = tempfile::tempdir().unwrap();
    let mut files: Vec<PathBuf> = ["site", "nodes.yaml"].map(|name| format!("{REPOSITORY_DIR}/examples/{name}").into()).to_vec();
    for (index, block) in doc_pages().iter().flat_map(|page| page_manifests(page)).enumerate() {
        files.push(dir.path().join(format!("{index}.yaml")));
        std::fs::write(&files[files.len() - 1], block).unwrap();
    }
    let manifests = manifest::read(&files).unwrap().objects;
    // Fewer objects would mean that the blocks of the documentation were not found.
    assert!(manifests.len() > 15, "{}", manifests.len());
    for manifest in manifests {
        assert_eq!(manifest_errors(&manifest.json), Vec::<String>::new(), "{}", manifest.json);
    }
}

#[test]
fn validate_accepts_manifests_of_reference() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.yaml");
    std::fs::write(&file, page_manifests(Path::new(&format!("{REPOSITORY_DIR}/docs/manifests.md"))).join("---\n")).unwrap();
    let findings = load(&[file], ReadPurpose::Check).unwrap_or_else(|error| panic!("{error:#}")).output.findings;
    assert!(findings.iter().all(|finding| finding.severity != Severity::Error), "{findings:#?}");
}

/// Each manifest of the first list has one mistake, and its errors must be at the given place. The tasks of the second
/// list are valid.
#[test]
fn schema_marks_error_at_field() {
    let task = |task: Value| json!({"kind": "Release", "name": "r", "tasks": [task]});
    for (manifest, place) in [
        (json!({"kind": "NodeGruop", "name": "g"}), "/kind"),
        (json!({"name": "g"}), ""),
        (json!({"kind": "NodeGroup", "name": "g"}), ""),
        (json!({"kind": "Node", "name": "n", "nodegruop": "c/g"}), "/nodegruop"),
        (json!({"kind": "Node", "name": "n", "mode": "dry"}), "/mode"),
        (json!({"kind": "NodeGroup", "name": "g", "cluster": "c", "roles": "web"}), "/roles"),
        (
            json!({"kind": "NodeGroup", "name": "g", "cluster": "c", "strategy": {"max_unavailble": 1}}),
            "/strategy/max_unavailble",
        ),
        (
            json!({"kind": "NodeGroup", "name": "g", "cluster": "c", "strategy": {"max_unavailable": 0}}),
            "/strategy/max_unavailable",
        ),
        (task(json!({"id": "a"})), "/tasks/0"),
        (task(json!({"id": "a", "type": "shell", "on_drift": "mned"})), "/tasks/0/on_drift"),
        (task(json!({"id": "a", "type": "shell", "cross_depends": [{"role": "db"}]})), "/tasks/0/cross_depends/0"),
        (task(json!({"id": "a", "type": "file", "parameters": {"path": "/a", "contnet": ""}})), "/tasks/0/parameters/contnet"),
        (task(json!({"id": "a", "type": "upload_file", "parameters": {"path": "/a", "mode": 644}})), "/tasks/0/parameters/mode"),
        (task(json!({"id": "a", "type": "shell", "parameters": {"command": "echo hello"}})), "/tasks/0/parameters/command"),
        (task(json!({"id": "a", "type": "file", "parameters": {"path": "etc/a"}})), "/tasks/0/parameters/path"),
        (task(json!({"id": "a", "type": "shell", "parameters": {"creates": "/a/../b"}})), "/tasks/0/parameters/creates"),
        (task(json!({"id": "a", "type": "shell", "parameters": {"cwd": "/a//b"}})), "/tasks/0/parameters/cwd"),
        (task(json!({"id": "a", "type": "file", "parameters": {"path": "/a", "mode": "0888"}})), "/tasks/0/parameters/mode"),
    ] {
        let errors = manifest_errors(&manifest.to_string());
        assert!(
            !errors.is_empty() && errors.iter().all(|error| error.starts_with(&format!("{place}:"))),
            "{manifest}: {errors:?}"
        );
    }
    for valid_task in [
        json!({"id": "a", "type": "teapot", "parameters": {"any": 1}}),
        json!({"id": "a", "type": "file", "parameters": {"path": "/etc/.a/..b/c..", "content": "x", "mode": "04755"}}),
        json!({"id": "a", "type": "file", "parameters": {"path": "{{ params.root }}/a", "content": "x", "mode": "600"}}),
        json!({"id": "a", "type": "shell", "parameters": {"script": "true", "cwd": "/", "creates": "/dev/vg0/data"}}),
    ] {
        assert_eq!(manifest_errors(&task(valid_task.clone()).to_string()), [""; 0], "{valid_task}");
    }
}
