//! Questions: `get`, `describe`, `explain`.

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::api::{Api, escaped};
use crate::args::{Filter, Kind, Output};
use crate::output::{cell, json, table, yaml};

/// `get`: a list, or some objects by name.
pub(crate) async fn get(api: &mut Api, kind: Kind, names: &[String], filter: &Filter, output: Output) -> Result<()> {
    let objects = if names.is_empty() { list(api, kind, filter).await? } else { each(api, kind, names).await? };
    match output {
        Output::Json | Output::Yaml => {
            let value = match (names.len(), objects.len()) {
                (1, 1) => fields(&objects[0], &filter.fields),
                _ => Value::Array(objects.iter().map(|object| fields(object, &filter.fields)).collect()),
            };
            print(&value, output)?;
        }
        Output::Name => objects.iter().for_each(|object| say!("{}", name(kind, object))),
        Output::Manifest => {
            let manifests: Vec<String> = objects.iter().map(|object| yaml(&manifest(kind, object))).collect();
            say_part!("{}", manifests.join("---\n"));
        }
        Output::Table | Output::Wide => say!("{}", rows(kind, &objects, &filter.fields, output)),
    }
    Ok(())
}

/// `get --raw`: a path's answer as it is.
pub(crate) async fn raw(api: &mut Api, path: &str) -> Result<()> {
    say_part!("{}", String::from_utf8_lossy(&api.get_raw(path).await?));
    Ok(())
}

/// `describe`: every field of one object, with the owners of its labels beside them.
pub(crate) async fn describe(api: &mut Api, kind: Kind, name: &str, output: Output) -> Result<()> {
    let object = api.get(&kind.path(name)?).await?;
    if matches!(output, Output::Json | Output::Yaml) {
        return print(&object, output);
    }
    let Some(object) = object.as_object() else { bail!("{} {name} is no object", kind.name()) };
    let (plain, maps): (Vec<_>, Vec<_>) = object.iter().partition(|(_, value)| !is_section(value));
    say!("{}", table(&[kind.name(), ""], plain.into_iter().map(|(key, value)| vec![key.clone(), cell(Some(value))])));
    for (section, value) in maps.into_iter().filter(|(section, _)| !section.ends_with("_owners") && *section != "links")
    {
        say!("\n{}", section.to_uppercase());
        say!("{}", indented(&describe_section(object, section, value)));
    }
    Ok(())
}

/// `explain node N label K`.
pub(crate) async fn explain_label(api: &mut Api, kind: Kind, name: &str, key: &str, output: Output) -> Result<()> {
    if kind != Kind::Node {
        bail!("explain asks about a node: stemma explain node NAME label {key}");
    }
    let explained = api.get(&format!("{}/explain?label={}", kind.path(name)?, escaped(key))).await?;
    match output {
        Output::Json | Output::Yaml => print(&explained, output),
        _ => {
            say!("{}", crate::explain::label(name, key, &explained));
            Ok(())
        }
    }
}

/// Every page of a list.
pub(crate) async fn list(api: &mut Api, kind: Kind, filter: &Filter) -> Result<Vec<Value>> {
    let mut path = kind.list_path(filter)?;
    let mut objects = Vec::new();
    loop {
        let page = api.get(&path).await?;
        let items = page.as_object().and_then(|page| page.values().find_map(Value::as_array));
        objects.extend(items.into_iter().flatten().cloned());
        match page.get("next").and_then(Value::as_str).and_then(path_of) {
            Some(next) => path = next,
            None => return Ok(objects),
        }
    }
}

/// The path and query of a link.
fn path_of(link: &str) -> Option<String> {
    let after = link.split_once("://").map_or(link, |(_, rest)| rest);
    after.find('/').map(|start| after[start..].to_owned())
}

async fn each(api: &mut Api, kind: Kind, names: &[String]) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for name in names {
        objects.push(api.get(&kind.path(name)?).await?);
    }
    Ok(objects)
}

/// Prints a value for programs.
pub(crate) fn print(value: &Value, output: Output) -> Result<()> {
    match output {
        Output::Yaml => say_part!("{}", yaml(value)),
        _ => say!("{}", json(value)?),
    }
    Ok(())
}

fn fields(object: &Value, wanted: &[String]) -> Value {
    match object {
        Value::Object(map) if !wanted.is_empty() => Value::Object(
            wanted.iter().map(|name| (name.clone(), map.get(name).cloned().unwrap_or(Value::Null))).collect(),
        ),
        other => other.clone(),
    }
}

/// The name by which the object is asked for again.
fn name(kind: Kind, object: &Value) -> String {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    match kind {
        Kind::Nodegroup => format!("{}/{}", text("cluster"), text("name")),
        Kind::Release if !text("version").is_empty() => format!("{}@{}", text("name"), text("version")),
        Kind::Token => text("id").to_owned(),
        _ => text("name").to_owned(),
    }
}

fn rows(kind: Kind, objects: &[Value], wanted: &[String], output: Output) -> String {
    let head: Vec<&str> =
        if wanted.is_empty() { columns(kind, output).to_vec() } else { wanted.iter().map(String::as_str).collect() };
    table(&head, objects.iter().map(|object| head.iter().map(|column| column_cell(kind, object, column)).collect()))
}

fn column_cell(kind: Kind, object: &Value, column: &str) -> String {
    if column == "name" { name(kind, object) } else { cell(object.get(column)) }
}

fn columns(kind: Kind, output: Output) -> &'static [&'static str] {
    match (kind, output) {
        (Kind::Node, Output::Wide) => &["name", "nodegroup", "mode", "roles", "tags", "state", "traits", "labels"],
        (Kind::Node, _) => &["name", "nodegroup", "mode", "roles", "state"],
        (Kind::Nodegroup, _) => &["name", "roles", "mode", "release", "labels"],
        (Kind::Cluster, _) => &["name", "cluster_template", "release", "labels"],
        (Kind::Clustertemplate, _) => &["name", "release", "labels"],
        (Kind::Release, _) => &["name", "generation", "created_at"],
        (Kind::Token, _) => &["id", "nodegroup", "node", "uses_left", "expires_at"],
    }
}

fn is_section(value: &Value) -> bool {
    matches!(value, Value::Object(map) if !map.is_empty())
}

/// A map as rows; of labels, annotations and parameters also the owners.
fn describe_section(object: &Map<String, Value>, section: &str, value: &Value) -> String {
    let singular = section.trim_start_matches("provided_").trim_end_matches('s');
    let owners = object.get(&format!("{singular}_owners"));
    let map = value.as_object().into_iter().flatten();
    match owners {
        Some(owners) => table(
            &["key", "value", "owner"],
            map.map(|(key, value)| vec![key.clone(), cell(Some(value)), cell(owners.get(key))]),
        ),
        None => table(&["key", "value"], map.map(|(key, value)| vec![key.clone(), cell(Some(value))])),
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// An object as its author would write it: what was provided, without what was computed or observed.
fn manifest(kind: Kind, object: &Value) -> Value {
    const COMPUTED: &[&str] = &[
        "uuid",
        "generation",
        "resource_version",
        "created_at",
        "updated_at",
        "links",
        "annotations",
        "labels",
        "parameters",
        "labels_overridden",
        "labels_added",
        "labels_skipped",
        "merge_labels",
        "connected",
        "state",
        "id",
    ];
    let mut to = Map::new();
    let kind_name = match kind {
        Kind::Node => "Node",
        Kind::Nodegroup => "NodeGroup",
        Kind::Cluster => "Cluster",
        Kind::Clustertemplate => "ClusterTemplate",
        Kind::Release => "Release",
        Kind::Token => "JoinToken",
    };
    to.insert("kind".to_owned(), Value::from(kind_name));
    let Some(map) = object.as_object() else { return Value::Object(to) };
    for (field, value) in map {
        if let Some(provided) = field.strip_prefix("provided_").filter(|_| !value.is_null()) {
            to.insert(provided.to_owned(), value.clone());
        } else if !COMPUTED.contains(&field.as_str()) && is_said(field, value) {
            to.insert(field.clone(), value.clone());
        }
    }
    if to.contains_key("labels") {
        to.insert("merge_labels".to_owned(), object.get("merge_labels").cloned().unwrap_or(Value::Bool(true)));
    }
    Value::Object(to)
}

fn is_said(field: &str, value: &Value) -> bool {
    let empty = match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    !empty && !field.starts_with("provided_") && !field.ends_with("_owners") && !field.starts_with("reported_")
}
