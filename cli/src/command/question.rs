//! Questions: `get`, `describe`, `explain`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Error, Result, bail};
use serde_json::Value;
use stemma_core::catalog::Bound;
use stemma_core::name::near;
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::{Endpoint, escape};

use crate::api::Api;
use crate::args::{Filter, Kind, Output, Question, Selection};
use crate::command::{owned, written};
use crate::exit::Exit;
use crate::output::{cell, json, printable, since, table};
use crate::yaml::block;

/// `get`: a list, or some objects by name.
pub(crate) async fn get(api: &mut Api, kind: Kind, names: &[String], filter: &Filter, output: Output) -> Result<()> {
    let objects = objects(api, kind, names, filter).await?;
    if objects.is_empty() {
        // The answer stands, whatever becomes of the advice.
        drop(warn_of_names(api, kind, filter).await);
    }
    show(api, kind, names, &objects, filter, output).await
}

/// Warns of roles and tags that nothing has, where a list is empty: one of them may be misspelled.
async fn warn_of_names(api: &mut Api, kind: Kind, filter: &Filter) -> Result<()> {
    let role = |name: &String| ("role", name.clone(), Filter { role: vec![name.clone()], ..Filter::default() });
    let tag = |name: &String| ("tag", name.clone(), Filter { tag: vec![name.clone()], ..Filter::default() });
    let alone: Vec<_> = filter.role.iter().map(role).chain(filter.tag.iter().map(tag)).collect();
    for (what, name, filter) in alone {
        let listed = match kind {
            Kind::Node => pages(api, kind.names_path(&filter)?).await?,
            _ => list(api, kind, &filter).await?,
        };
        if listed.is_empty() {
            tell!("warning: no {} has {what} {name:?}", kind.name());
        }
    }
    Ok(())
}

/// Prints objects that were asked for.
pub(crate) async fn show(
    api: &mut Api,
    kind: Kind,
    names: &[String],
    objects: &[Value],
    filter: &Filter,
    output: Output,
) -> Result<()> {
    check_fields(kind.name(), objects, &filter.fields)?;
    match output {
        Output::Json | Output::Yaml => {
            let shown = |object: &Value| shown(kind, object, &filter.fields);
            let value = match (names.len(), objects.len()) {
                (1, 1) => shown(&objects[0]),
                _ => Value::Array(objects.iter().map(shown).collect()),
            };
            print(&value, output)?;
        }
        Output::Name => objects.iter().for_each(|object| say!("{}/{}", kind.name(), printable(&name(kind, object)))),
        Output::Manifest => say_part!("{}", manifests(api, kind, names, objects).await?),
        Output::Table | Output::Wide => say!("{}", rows(kind, objects, &filter.fields, output)),
    }
    Ok(())
}

/// The manifests of objects, or what a manager that is named applies of each, behind comments on what is in none. Of nothing there is none, which
/// is told beside what is printed.
async fn manifests(api: &mut Api, kind: Kind, names: &[String], objects: &[Value]) -> Result<String> {
    written::check_exported(kind)?;
    if objects.is_empty() {
        tell!("no {} is listed, so no manifest is printed", kind.name());
    }
    let manager = api.manager().map(Manager::of_new).transpose();
    let manager = manager.map_err(|error| Exit::Usage.because(format!("--manager: {error}")))?;
    let (mut left_out, mut not_applied) = (Vec::new(), Vec::new());
    let (mut manifests, mut releases) = (Vec::new(), BTreeSet::new());
    for object in objects {
        // A list shows less than an object of its own.
        let stored = written::stored(api, kind, &name(kind, object)).await?;
        match (written::not_exported(kind, &name(kind, &stored), &stored), &manager) {
            (None, None) => manifests.push(written::text(api, kind, &stored).await?),
            (None, Some(manager)) => match written::part(api, kind, &stored, manager).await? {
                Some(part) => manifests.push(part),
                None => not_applied.push(name(kind, &stored)),
            },
            (Some(why), _) if names.is_empty() => left_out.push(why),
            (Some(why), _) => bail!("{why}"),
        }
        let release = object.get("name").and_then(Value::as_str).filter(|_| kind == Kind::Release);
        if release.is_some_and(|release| releases.insert(release)) {
            left_out.extend(tags_beside(api, &name(kind, object)).await?);
        }
    }
    match owned::not_applied(manager.as_ref(), kind, &not_applied) {
        Some(why) if !names.is_empty() => bail!("{why}"),
        why => left_out.extend(why),
    }
    for why in &left_out {
        tell!("warning: left out: {why}");
    }
    let left_out: String = left_out.iter().map(|why| written::left_out(why)).collect();
    Ok(left_out + &manifests.join("---\n"))
}

/// What to say of the tags that people declared beside a release, which no manifest has; `None` where there are none.
async fn tags_beside(api: &mut Api, release: &str) -> Result<Option<String>> {
    let tags = api.get(&Kind::Release.path_of(Endpoint::ListReleaseTags, release, &[])?).await?;
    let beside = items(&tags).filter(|tag| tag.get("predefined") == Some(&Value::Bool(false)));
    let beside: Vec<String> = beside.map(|tag| printable(&cell(tag.get("name")))).collect();
    let release = printable(release);
    Ok((!beside.is_empty()).then(|| {
        format!(
            "the tags beside release/{release}, whatever its version: {}; no manifest has them: `stemma tag list --release {release}` shows \
             them, `stemma tag create NAME --release {release}` makes them",
            beside.join(", ")
        )
    }))
}

/// Refuses fields that no object of the kind has: a column of nothing would hide a slip.
pub(crate) fn check_fields(kind: &str, objects: &[Value], wanted: &[String]) -> Result<()> {
    let known: BTreeSet<&str> =
        objects.iter().filter_map(Value::as_object).flat_map(|map| map.keys().map(String::as_str)).collect();
    let mut unknown = wanted.iter().filter(|field| !known.is_empty() && !known.contains(field.as_str()));
    if let Some(field) = unknown.next() {
        let near = stemma_core::name::suggest(near(field, known.iter().copied()));
        bail!("--fields: a {kind} has no field {field:?}{near}; `-o json` shows all of them");
    }
    Ok(())
}

/// The objects that are asked for.
pub(crate) async fn objects(api: &mut Api, kind: Kind, names: &[String], filter: &Filter) -> Result<Vec<Value>> {
    if names.is_empty() { list(api, kind, filter).await } else { each(api, kind, names, filter).await }
}

/// `get --raw`: a path's answer as it is.
pub(crate) async fn raw(api: &mut Api, path: &str) -> Result<()> {
    say_part!("{}", String::from_utf8_lossy(&api.get_raw(path).await?));
    Ok(())
}

/// `explain node N label K`, and the like for a tag, a task and a trait.
pub(crate) async fn explain(
    api: &mut Api,
    kind: Kind,
    name: &str,
    asked: Option<(Question, &str)>,
    output: Output,
) -> Result<()> {
    let Some((question, about)) = asked.filter(|_| kind == Kind::Node) else {
        bail!(
            "explain asks about a node: stemma explain node NAME label|tag|task|trait …; or about a key: stemma explain label KEY"
        );
    };
    let what = match question {
        Question::Label => "label",
        Question::Tag => "tag",
        Question::Task => "task",
        Question::Trait => "trait",
    };
    let name = kind.bare(name);
    let path = kind.path_of(Endpoint::ExplainNode, name, &[])?;
    let explained = match api.get(&format!("{path}?{what}={}", escape(about))).await {
        Err(error) if Exit::of(&error) == Exit::NotFound => return Err(nearest(api, kind, name, error).await),
        explained => explained?,
    };
    if matches!(output, Output::Json | Output::Yaml) {
        return print(&explained, output);
    }
    let text = match question {
        Question::Label => crate::explain::label(name, about, &explained),
        Question::Task => crate::explain::task(name, about, &explained),
        Question::Tag => crate::explain::tag(name, about, &explained),
        Question::Trait => crate::explain::node_trait(name, about, &explained),
    };
    say!("{text}\n{}", crate::explain::contact(&explained));
    Ok(())
}

/// `explain label KEY`, and the like for a parameter, a property and a fact: what the catalogue says of it.
pub(crate) async fn explain_key(api: &mut Api, bound: Bound, key: &str, output: Output) -> Result<()> {
    let path = format!("{}?{}={}", Endpoint::ExplainKey.path(&[]), bound.word(), escape(key));
    let explained = api.get(&path).await?;
    match output {
        Output::Json | Output::Yaml => print(&explained, output)?,
        _ => say!("{}", crate::explain::key(bound, key, &explained)),
    }
    Ok(())
}

/// Every object of a list. Node groups are listed cluster by cluster, where none is named.
pub(crate) async fn list(api: &mut Api, kind: Kind, filter: &Filter) -> Result<Vec<Value>> {
    if kind != Kind::Nodegroup || filter.selection.cluster.is_some() {
        return pages(api, kind.list_path(filter)?).await;
    }
    let mut groups = Vec::new();
    for cluster in pages(api, Kind::Cluster.list_path(&Filter::default())?).await? {
        let selection = Selection { cluster: Some(name(Kind::Cluster, &cluster)), ..filter.selection.clone() };
        match pages(api, kind.list_path(&Filter { selection, ..filter.clone() })?).await {
            Ok(own) => groups.extend(own),
            // It was deleted since the clusters were listed.
            Err(error) if Exit::of(&error) == Exit::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(groups)
}

/// The names of all objects of a kind.
pub(crate) async fn names(api: &mut Api, kind: Kind) -> Result<Vec<String>> {
    let listed = match kind {
        Kind::Node => pages(api, kind.names_path(&Filter::default())?).await?,
        _ => list(api, kind, &Filter::default()).await?,
    };
    Ok(listed.iter().map(|object| name(kind, object)).collect())
}

/// One object. The error of one that is not there names the nearest.
pub(crate) async fn one(api: &mut Api, kind: Kind, name: &str) -> Result<Value> {
    match written::whole(api, kind, name).await {
        Err(error) if Exit::of(&error) == Exit::NotFound => Err(nearest(api, kind, name, error).await),
        found => found,
    }
}

/// The error of an object that is not there, with the name that may have been meant.
pub(crate) async fn nearest(api: &mut Api, kind: Kind, wanted: &str, error: Error) -> Error {
    let Ok(names) = names(api, kind).await else { return error };
    let wanted = kind.bare(wanted);
    let is_there = names.iter().any(|name| name == wanted);
    match near(wanted, names.iter().map(String::as_str)).filter(|_| !is_there) {
        Some(near) => Exit::NotFound.because(format!("{error:#}\n  did you mean {}?", printable(near))),
        None => error,
    }
}

/// The revision that an object was read at.
pub(crate) fn revision(object: &Value) -> Option<u64> {
    object.get("resource_version").and_then(Value::as_u64)
}

/// Every object of the list at a path, page by page.
pub(crate) async fn pages(api: &mut Api, mut path: String) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    loop {
        let page = api.get(&path).await?;
        objects.extend(items(&page).cloned());
        match next(&page) {
            Some(next) => path = next,
            None => return Ok(objects),
        }
    }
}

/// The path of the page behind this one.
pub(crate) fn next(page: &Value) -> Option<String> {
    page.get("next").and_then(Value::as_str).and_then(path_of)
}

/// The objects of a list's answer.
pub(crate) fn items(answer: &Value) -> impl Iterator<Item = &Value> {
    answer.as_object().and_then(|answer| answer.values().find_map(Value::as_array)).into_iter().flatten()
}

/// The path and query of a link.
fn path_of(link: &str) -> Option<String> {
    let after = link.split_once("://").map_or(link, |(_, rest)| rest);
    after.find('/').map(|start| after[start..].to_owned())
}

/// The objects of these names, without those that the filter leaves out of their list.
async fn each(api: &mut Api, kind: Kind, names: &[String], filter: &Filter) -> Result<Vec<Value>> {
    let mut lists: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut objects = Vec::new();
    let mut seen = BTreeSet::new();
    for asked in names.iter().filter(|name| seen.insert(*name)) {
        let object = one(api, kind, asked).await?;
        if kind.is_narrowed_by(filter) {
            let own = object.get("cluster").and_then(Value::as_str).map(str::to_owned);
            let cluster = filter.selection.cluster.clone().or(own);
            let selection = Selection { cluster, ..filter.selection.clone() };
            let path = kind.names_path(&Filter { selection, ..filter.clone() })?;
            if !lists.contains_key(&path) {
                let listed = pages(api, path.clone()).await?;
                lists.insert(path.clone(), listed.iter().map(|object| name(kind, object)).collect());
            }
            if !lists[&path].contains(&name(kind, &object)) {
                continue;
            }
        }
        objects.push(object);
    }
    Ok(objects)
}

/// Prints a value for programs.
pub(crate) fn print(value: &Value, output: Output) -> Result<()> {
    match output {
        Output::Yaml => say_part!("{}", block(value)),
        _ => say!("{}", json(value)?),
    }
    Ok(())
}

/// Prints a list of what has names of its own and is no object: as a value, as names, or as a table.
pub(crate) fn print_list<'a>(
    value: &Value,
    (kind, names): (&str, impl Iterator<Item = &'a str>),
    table: impl FnOnce() -> String,
    output: Output,
) -> Result<()> {
    match output {
        Output::Json | Output::Yaml => print(value, output)?,
        Output::Name => names.into_iter().for_each(|name| say!("{kind}/{}", printable(name))),
        Output::Manifest => return Err(written::no_manifest(kind)),
        Output::Table | Output::Wide => say!("{}", table()),
    }
    Ok(())
}

/// Of an object the fields that were asked for; all of them where none were.
pub(crate) fn fields(object: &Value, wanted: &[String]) -> Value {
    match object {
        Value::Object(map) if !wanted.is_empty() => Value::Object(
            wanted.iter().map(|name| (name.clone(), map.get(name).cloned().unwrap_or(Value::Null))).collect(),
        ),
        other => other.clone(),
    }
}

/// The same of an object of a kind; where no field was asked for, all that a program is shown.
pub(crate) fn shown(kind: Kind, object: &Value, wanted: &[String]) -> Value {
    if wanted.is_empty() { written::told(kind, object) } else { fields(object, wanted) }
}

/// The name by which the object is asked for again.
pub(crate) fn name(kind: Kind, object: &Value) -> String {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    match kind {
        Kind::Nodegroup => format!("{}/{}", text("cluster"), text("name")),
        Kind::Release if !text("version").is_empty() => format!("{}@{}", text("name"), text("version")),
        Kind::Token => text("id").to_owned(),
        Kind::Namespace => text("namespace").to_owned(),
        Kind::Node | Kind::Allocation | Kind::Inspectionrule if text("name").is_empty() => text("uuid").to_owned(),
        _ => text("name").to_owned(),
    }
}

/// A table of objects.
pub(crate) fn rows(kind: Kind, objects: &[Value], wanted: &[String], output: Output) -> String {
    let mut head: Vec<&str> =
        if wanted.is_empty() { columns(kind, output).to_vec() } else { wanted.iter().map(String::as_str).collect() };
    let is_noted = |object: &Value| object.get("notes").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    let state = head.iter().position(|column| *column == "state").filter(|_| kind == Kind::Node && wanted.is_empty());
    if let Some(state) = state.filter(|_| objects.iter().any(is_noted)) {
        head.insert(state + 1, "notes");
    }
    let shown = |object: &Value, column: &str| match column {
        "traits" if wanted.is_empty() => first_few(object.get(column)),
        // Of a level that inherits it, what comes down to it.
        "release" | "mode" if wanted.is_empty() => {
            cell(object.get(format!("effective_{column}")).or_else(|| object.get(column)))
        }
        _ => column_cell(kind, object, column),
    };
    table(&head, objects.iter().map(|object| head.iter().map(|column| shown(object, column)).collect()))
}

fn column_cell(kind: Kind, object: &Value, column: &str) -> String {
    match column {
        "name" => name(kind, object),
        "resource_type_associations" => {
            let names = object.get(column).and_then(Value::as_array).into_iter().flatten();
            names.map(|one| cell(one.get("name"))).collect::<Vec<_>>().join(",")
        }
        time if is_time(time) => since(object.get(time)),
        other => cell(object.get(other)),
    }
}

/// Whether a field is a time.
pub(crate) fn is_time(field: &str) -> bool {
    field.ends_with("_at") || field == "last_seen"
}

/// How many there are, and the first ones: a host may have more than a terminal has columns.
fn first_few(items: Option<&Value>) -> String {
    match items.and_then(Value::as_array) {
        Some(all) if all.len() > FEW => {
            let first: Vec<String> = all.iter().take(FEW).map(|item| cell(Some(item))).collect();
            format!("{}: {},…", all.len(), first.join(","))
        }
        _ => cell(items),
    }
}

/// How many entries of a long list a table shows.
const FEW: usize = 2;

fn columns(kind: Kind, output: Output) -> &'static [&'static str] {
    match (kind, output) {
        (Kind::Node, Output::Wide) => &[
            "name",
            "nodegroup",
            "mode",
            "roles",
            "tags",
            "state",
            "release",
            "last_seen",
            "traits",
            "labels",
            "state_reason",
        ],
        (Kind::Node, _) => &["name", "nodegroup", "mode", "roles", "state"],
        (Kind::Nodegroup, _) => &["name", "roles", "mode", "release", "node_states", "labels"],
        (Kind::Cluster, _) => &["name", "cluster_template", "release", "node_states", "labels"],
        (Kind::Clustertemplate, _) => &["name", "release", "labels"],
        (Kind::Release, _) => &["name", "task_count", "created_at"],
        (Kind::Allocation, _) => &["name", "state", "node_uuid", "resource_class", "traits", "created_at"],
        (Kind::Namespace, _) => &["name", "display_name", "visibility", "protected", "resource_type_associations"],
        (Kind::Inspectionrule, _) => &["name", "priority", "description"],
        (Kind::Token, _) => &["id", "nodegroup", "node", "uses_left", "expires_at"],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_level_that_inherits_its_release_and_mode_is_shown_with_them() {
        let group = json!({"name": "g", "cluster": "c", "effective_release": "site@1", "effective_mode": "apply"});
        let shown = rows(Kind::Nodegroup, &[group], &[], Output::Table);
        assert!(shown.contains("site@1") && shown.contains("apply"), "{shown}");
        let node = json!({"name": "n", "mode": "noop", "release": "site@2"});
        let shown = rows(Kind::Node, &[node], &[], Output::Wide);
        assert!(shown.contains("site@2") && shown.contains("noop"), "{shown}");
    }

    #[test]
    fn y09_a_program_is_shown_what_somebody_set_or_what_it_asked_for() {
        let node = json!({"name": "n", "allocation_uuid": null, "description": null, "fault": null, "parked_by": null});
        let set = json!({"name": "n", "allocation_uuid": "7", "description": "d", "fault": null});
        let owned = json!({"name": "n", "description": null, "field_owners": {"description": "git:apply"}});
        for (kind, object, wanted, expected) in [
            (Kind::Node, &node, &["fault", "description"][..], json!({"fault": null, "description": null})),
            (Kind::Node, &node, &[], json!({"name": "n", "parked_by": null})),
            (Kind::Node, &set, &[], json!({"name": "n", "allocation_uuid": "7", "description": "d"})),
            (Kind::Node, &owned, &[], owned.clone()),
            (Kind::Inspectionrule, &node, &["name"], json!({"name": "n"})),
        ] {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(shown(kind, object, &wanted), expected, "{object} {wanted:?}");
        }
    }

    #[test]
    fn y09_what_nobody_set_of_other_systems_fields_is_not_shown() {
        let node = json!({
            "name": "n", "state": "idle", "last_error": null, "power_state": null, "boot_mode": null, "rescue_interface": null,
            "driver": "ipmi", "owner": null, "extra": {}, "field_owners": {"owner": "git:apply"}
        });
        let shown = written::told(Kind::Node, &node);
        let mut names: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["driver", "extra", "field_owners", "last_error", "name", "owner", "state"]);
        let cluster = json!({"name": "c", "reservation": null});
        assert_eq!(written::told(Kind::Cluster, &cluster), cluster, "it is no field of Magnum's");
    }

    #[test]
    fn a_long_list_of_traits_is_counted() {
        let node = |traits: Value| json!({"name": "web-1", "traits": traits});
        let few = rows(Kind::Node, &[node(json!(["CUSTOM_A", "CUSTOM_B"]))], &[], Output::Wide);
        assert!(few.contains("CUSTOM_A,CUSTOM_B") && !few.contains('…'), "{few}");
        let many = node(json!(["CUSTOM_A", "CUSTOM_B", "CUSTOM_C"]));
        let shown = rows(Kind::Node, std::slice::from_ref(&many), &[], Output::Wide);
        assert!(shown.contains("3: CUSTOM_A,CUSTOM_B,…"), "{shown}");
        let asked = rows(Kind::Node, &[many], &["traits".to_owned()], Output::Wide);
        assert!(asked.contains("CUSTOM_A,CUSTOM_B,CUSTOM_C"), "who asks for the field has all of it: {asked}");
    }
}
