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
