//! Questions: `get`, `describe`, `explain`.

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::api::{Api, escaped};
use crate::args::{Filter, Kind, Output, Question};
use crate::command::written;
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
            let mut manifests = Vec::new();
            for object in &objects {
                // A list shows less than an object of its own.
                let whole =
                    if names.is_empty() { api.get(&kind.path(&name(kind, object))?).await? } else { object.clone() };
                manifests.push(yaml(&written::manifest(api, kind, &whole).await?));
            }
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

/// `describe`: what one object says and holds, with the owners of its labels beside them. What is unset is left out.
pub(crate) async fn describe(api: &mut Api, kind: Kind, name: &str, output: Output) -> Result<()> {
    let object = api.get(&kind.path(name)?).await?;
    if matches!(output, Output::Json | Output::Yaml) {
        return print(&object, output);
    }
    let Some(object) = object.as_object() else { bail!("{} {name} is no object", kind.name()) };
    let is_told = |name: &str, value: &Value| name != "links" && !name.ends_with("_owners") && !is_empty(value);
    let told = object.iter().filter(|(name, value)| is_told(name, value));
    let (maps, plain): (Vec<_>, Vec<_>) = told.partition(|(_, value)| value.is_object());
    let rows = plain.into_iter().map(|(key, value)| vec![key.clone(), cell(Some(value))]);
    say!("{}", table(&[kind.name(), ""], rows));
    for (section, value) in maps {
        say!("\n{}", section.to_uppercase());
        say!("{}", indented(&describe_section(object, section, value)));
    }
    Ok(())
}

/// `explain node N label K`, and the like for a tag, a task and a trait.
pub(crate) async fn explain(api: &mut Api, kind: Kind, name: &str, asked: &Question, output: Output) -> Result<()> {
    if kind != Kind::Node {
        bail!("explain asks about a node: stemma explain node NAME label|tag|task|trait …");
    }
    let (what, value) = match asked {
        Question::Label { key } => ("label", key),
        Question::Tag { name } => ("tag", name),
        Question::Task { id } => ("task", id),
        Question::Trait { name } => ("trait", name),
    };
    let explained = api.get(&format!("{}/explain?{what}={}", kind.path(name)?, escaped(value))).await?;
    match (output, asked) {
        (Output::Json | Output::Yaml, _) => print(&explained, output)?,
        (_, Question::Label { key }) => say!("{}", crate::explain::label(name, key, &explained)),
        (_, _) => say!("{}", crate::explain::other(what, &explained)),
    }
    Ok(())
}

/// Every object of a list.
pub(crate) async fn list(api: &mut Api, kind: Kind, filter: &Filter) -> Result<Vec<Value>> {
    pages(api, kind.list_path(filter)?).await
}

/// Every object of the list at a path, page by page.
pub(crate) async fn pages(api: &mut Api, mut path: String) -> Result<Vec<Value>> {
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
        Kind::Node if text("name").is_empty() => text("uuid").to_owned(),
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
        (Kind::Release, _) => &["name", "task_count", "created_at"],
        (Kind::Token, _) => &["id", "nodegroup", "node", "uses_left", "expires_at"],
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A map as rows; of what is provided also the owners, and what is stopped here.
fn describe_section(object: &Map<String, Value>, section: &str, value: &Value) -> String {
    let owners = section.strip_prefix("provided_").map(|map| format!("{}_owners", map.trim_end_matches('s')));
    let owners = owners.and_then(|owners| object.get(&owners));
    let map = value.as_object().into_iter().flatten();
    let Some(owners) = owners else {
        return table(&["key", "value"], map.map(|(key, value)| vec![key.clone(), cell(Some(value))]));
    };
    let said = |value: &Value| if value.is_null() { "null (not inherited)".to_owned() } else { cell(Some(value)) };
    table(&["key", "value", "owner"], map.map(|(key, value)| vec![key.clone(), said(value), cell(owners.get(key))]))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
