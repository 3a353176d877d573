//! The commands `stemma get` and `stemma explain`, and the functions that other commands use to read and print objects.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Error, Result, bail};
use serde_json::Value;
use stemma_core::catalog::KeyKind;
use stemma_core::name::closest_match;
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::{Endpoint, escape};

use crate::api::ApiClient;
use crate::args::{ExplainTopic, FilterArgs, KindArg, Output, SelectionArgs};
use crate::command::{manifest, owned};
use crate::exit::Exit;
use crate::output::{cell_text, pretty_json, printable, table, time_with_age};
use crate::yaml::to_block;

/// Runs `stemma get`: prints a list, or some objects by name.
pub(crate) async fn get(api: &mut ApiClient, kind: KindArg, names: &[String], filter: &FilterArgs, output: Output) -> Result<()> {
    let objects = read_objects(api, kind, names, filter, false).await?;
    if objects.is_empty() {
        // The list is correct without the warning, so an error of its requests is ignored.
        drop(warn_of_unused_names(api, kind, filter).await);
    }
    print_objects(api, kind, names, &objects, filter, output).await
}

/// Warns of each role and tag in the filter that no object of the kind has, because it may be misspelled.
async fn warn_of_unused_names(api: &mut ApiClient, kind: KindArg, filter: &FilterArgs) -> Result<()> {
    let role = |name: &String| ("role", name.clone(), FilterArgs { role: vec![name.clone()], ..FilterArgs::default() });
    let tag = |name: &String| ("tag", name.clone(), FilterArgs { tag: vec![name.clone()], ..FilterArgs::default() });
    let filters: Vec<_> = filter.role.iter().map(role).chain(filter.tag.iter().map(tag)).collect();
    for (noun, name, filter) in filters {
        let objects = match kind {
            // A fleet may have many nodes, so only their names are read.
            KindArg::Node => read_pages(api, kind.names_path(&filter)?).await?,
            _ => list_all(api, kind, &filter).await?,
        };
        if objects.is_empty() {
            errln!("warning: no {} has {noun} {name:?}", kind.name());
        }
    }
    Ok(())
}

/// Prints objects in the requested format. In JSON and YAML, a single object that the user named is not in a list.
pub(crate) async fn print_objects(
    api: &mut ApiClient,
    kind: KindArg,
    names: &[String],
    objects: &[Value],
    filter: &FilterArgs,
    output: Output,
) -> Result<()> {
    check_fields(kind.name(), objects, &filter.fields)?;
    match output {
        Output::Json | Output::Yaml => {
            let visible = |object: &Value| visible_fields(kind, object, &filter.fields);
            let value = match (names.len(), objects.len()) {
                (1, 1) => visible(&objects[0]),
                _ => Value::Array(objects.iter().map(visible).collect()),
            };
            print_value(&value, output)?;
        }
        Output::Name => {
            for object in objects {
                outln!("{}/{}", kind.name(), printable(&object_name(kind, object)));
            }
        }
        Output::Manifest => out!("{}", manifest_texts(api, kind, names, objects).await?),
        Output::Table | Output::Wide => outln!("{}", object_table(kind, objects, &filter.fields, output)),
    }
    Ok(())
}

/// Returns the manifests of objects, or with `--manager` the part of each that this manager applies. An object without
/// either is an error if the user named it. Otherwise a comment above the manifests names it. The comment also names
/// the tags that users created for releases, which no manifest contains.
async fn manifest_texts(api: &mut ApiClient, kind: KindArg, names: &[String], objects: &[Value]) -> Result<String> {
    manifest::check_exportable(kind)?;
    if objects.is_empty() {
        errln!("no {} is listed, so no manifest is printed", kind.name());
    }
    let manager = api.manager().map(Manager::new_visible).transpose();
    let manager = manager.map_err(|error| Exit::Usage.with_message(format!("--manager: {error}")))?;
    let (mut omissions, mut not_applied) = (Vec::new(), Vec::new());
    let (mut manifests, mut releases) = (Vec::new(), BTreeSet::new());
    for object in objects {
        // A list shows less of an object than its own path does.
        let stored = manifest::read_stored(api, kind, &object_name(kind, object)).await?;
        match (manifest::not_exported_reason(kind, &object_name(kind, &stored), &stored), &manager) {
            (None, None) => manifests.push(manifest::manifest_text(api, kind, &stored).await?),
            (None, Some(manager)) => match manifest::managed_part(api, kind, &stored, manager).await? {
                Some(part) => manifests.push(part),
                None => not_applied.push(object_name(kind, &stored)),
            },
            (Some(reason), _) if names.is_empty() => omissions.push(reason),
            (Some(reason), _) => bail!("{reason}"),
        }
        // The tags of a release belong to all of its versions, so each release name is handled once.
        let release = object.get("name").and_then(Value::as_str).filter(|_| kind == KindArg::Release);
        if release.is_some_and(|release| releases.insert(release)) {
            omissions.extend(omitted_tags_comment(api, &object_name(kind, object)).await?);
        }
    }
    match owned::not_applied_message(manager.as_ref(), kind, &not_applied) {
        // As for an object without a manifest, this is an error only for objects that the user named.
        Some(reason) if !names.is_empty() => bail!("{reason}"),
        reason => omissions.extend(reason),
    }
    for reason in &omissions {
        errln!("warning: left out: {reason}");
    }
    let omissions: String = omissions.iter().map(|reason| manifest::omission_comment(reason)).collect();
    Ok(omissions + &manifests.join("---\n"))
}

/// Returns a comment about the tags that users created for a release, or `None` if there are none. Such tags are in no
/// manifest.
async fn omitted_tags_comment(api: &mut ApiClient, release: &str) -> Result<Option<String>> {
    let tags = api.get(&KindArg::Release.endpoint_path(Endpoint::ListReleaseTags, release, &[])?).await?;
    let user_tags = list_items(&tags).filter(|tag| tag.get("predefined") == Some(&Value::Bool(false)));
    let user_tags: Vec<String> = user_tags.map(|tag| printable(&cell_text(tag.get("name")))).collect();
    let release = printable(release);
    Ok((!user_tags.is_empty()).then(|| {
        format!(
            "the tags created for release/{release}, in any version: {}; no manifest contains them: `stemma tag list --release {release}` shows \
             them, `stemma tag create NAME --release {release}` makes them",
            user_tags.join(", ")
        )
    }))
}

/// Fails for a requested field that none of the objects has, because an empty column would hide a typing error. Without
/// objects, every field is accepted.
pub(crate) fn check_fields(kind: &str, objects: &[Value], requested: &[String]) -> Result<()> {
    let present: BTreeSet<&str> =
        objects.iter().filter_map(Value::as_object).flat_map(|map| map.keys().map(String::as_str)).collect();
    let mut unknown = requested.iter().filter(|field| !present.is_empty() && !present.contains(field.as_str()));
    if let Some(field) = unknown.next() {
        let hint = stemma_core::name::did_you_mean(closest_match(field, present.iter().copied()));
        bail!("--fields: a {kind} has no field {field:?}{hint}; `-o json` shows all of them");
    }
    Ok(())
}

/// Reads the named objects, or all objects of the kind if no name is given. Returns only objects that match the filter.
///
/// # Errors
/// With status 3 if a named object does not exist, unless `skips_missing` is true.
pub(crate) async fn read_objects(
    api: &mut ApiClient,
    kind: KindArg,
    names: &[String],
    filter: &FilterArgs,
    skips_missing: bool,
) -> Result<Vec<Value>> {
    match names {
        [] => list_all(api, kind, filter).await,
        _ => read_by_names(api, kind, names, filter, skips_missing).await,
    }
}

/// Runs `stemma get --raw`: prints the unchanged response to a path of the API.
pub(crate) async fn get_raw(api: &mut ApiClient, path: &str) -> Result<()> {
    out!("{}", String::from_utf8_lossy(&api.get_bytes(path).await?));
    Ok(())
}

/// Runs `stemma explain node NAME` for a label, a tag, a task or a trait.
pub(crate) async fn explain(
    api: &mut ApiClient,
    kind: KindArg,
    name: &str,
    query: Option<(ExplainTopic, &str)>,
    output: Output,
) -> Result<()> {
    let Some((topic, subject)) = query.filter(|_| kind == KindArg::Node) else {
        bail!(
            "explain asks about a node: stemma explain node NAME label|tag|task|trait …; or about a key: stemma explain label KEY"
        );
    };
    let parameter = match topic {
        ExplainTopic::Label => "label",
        ExplainTopic::Tag => "tag",
        ExplainTopic::Task => "task",
        ExplainTopic::Trait => "trait",
    };
    let name = kind.bare_name(name);
    let path = kind.endpoint_path(Endpoint::ExplainNode, name, &[])?;
    let explained = match api.get(&format!("{path}?{parameter}={}", escape(subject))).await {
        Err(error) if Exit::from_error(&error) == Exit::NotFound => {
            return Err(with_suggestion(api, kind, name, error).await);
        }
        explained => explained?,
    };
    if matches!(output, Output::Json | Output::Yaml) {
        return print_value(&explained, output);
    }
    let text = match topic {
        ExplainTopic::Label => crate::explain::explain_label(name, subject, &explained),
        ExplainTopic::Task => crate::explain::explain_task(name, subject, &explained),
        ExplainTopic::Tag => crate::explain::explain_tag(name, subject, &explained),
        ExplainTopic::Trait => crate::explain::explain_trait(name, subject, &explained),
    };
    outln!("{text}\n{}", crate::explain::contact_line(&explained));
    Ok(())
}

/// Runs `stemma explain` for the key of a label, a parameter, a property or a fact: prints what the catalogue defines
/// for the key.
pub(crate) async fn explain_key(api: &mut ApiClient, kind: KeyKind, key: &str, output: Output) -> Result<()> {
    let path = format!("{}?{}={}", Endpoint::ExplainKey.path(&[]), kind.description(), escape(key));
    let explained = api.get(&path).await?;
    match output {
        Output::Json | Output::Yaml => print_value(&explained, output)?,
        _ => outln!("{}", crate::explain::explain_key(kind, key, &explained)),
    }
    Ok(())
}

/// Lists all objects of a kind that match the filter. The API lists node groups only for one cluster, so without a
/// cluster in the filter, the groups of each cluster are listed.
pub(crate) async fn list_all(api: &mut ApiClient, kind: KindArg, filter: &FilterArgs) -> Result<Vec<Value>> {
    if kind != KindArg::Nodegroup || filter.selection.cluster.is_some() {
        return read_pages(api, kind.list_path(filter)?).await;
    }
    let mut groups = Vec::new();
    for cluster in read_pages(api, KindArg::Cluster.list_path(&FilterArgs::default())?).await? {
        let selection = SelectionArgs { cluster: Some(object_name(KindArg::Cluster, &cluster)), ..filter.selection.clone() };
        match read_pages(api, kind.list_path(&FilterArgs { selection, ..filter.clone() })?).await {
            Ok(cluster_groups) => groups.extend(cluster_groups),
            // The cluster was deleted after the clusters were listed.
            Err(error) if Exit::from_error(&error) == Exit::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(groups)
}

/// Returns the names of all objects of a kind.
pub(crate) async fn object_names(api: &mut ApiClient, kind: KindArg) -> Result<Vec<String>> {
    let objects = match kind {
        KindArg::Node => read_pages(api, kind.names_path(&FilterArgs::default())?).await?,
        _ => list_all(api, kind, &FilterArgs::default()).await?,
    };
    Ok(objects.iter().map(|object| object_name(kind, object)).collect())
}

/// Reads one object. If the object does not exist, the error suggests the most similar name.
pub(crate) async fn read_object(api: &mut ApiClient, kind: KindArg, name: &str) -> Result<Value> {
    match manifest::read_with_owners(api, kind, name).await {
        Err(error) if Exit::from_error(&error) == Exit::NotFound => Err(with_suggestion(api, kind, name, error).await),
        result => result,
    }
}

/// Adds the most similar name to the error for an object that does not exist. The error is unchanged if the names can't
/// be read, if the name exists after all, or if no name is similar.
pub(crate) async fn with_suggestion(api: &mut ApiClient, kind: KindArg, requested_name: &str, error: Error) -> Error {
    let Ok(names) = object_names(api, kind).await else { return error };
    let requested_name = kind.bare_name(requested_name);
    let exists = names.iter().any(|name| name == requested_name);
    match closest_match(requested_name, names.iter().map(String::as_str)).filter(|_| !exists) {
        Some(similar) => Exit::NotFound.with_message(format!("{error:#}\n  did you mean {}?", printable(similar))),
        None => error,
    }
}

/// Returns the revision of the store that last wrote an object, for a write with `If-Match`.
pub(crate) fn object_revision(object: &Value) -> Option<u64> {
    object.get("resource_version").and_then(Value::as_u64)
}

/// Reads all pages of the list at a path.
pub(crate) async fn read_pages(api: &mut ApiClient, mut path: String) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    loop {
        let page = api.get(&path).await?;
        objects.extend(list_items(&page).cloned());
        match next_page_path(&page) {
            Some(next) => path = next,
            None => return Ok(objects),
        }
    }
}

/// Returns the path of the page after a given page, or `None` for the last page.
pub(crate) fn next_page_path(page: &Value) -> Option<String> {
    page.get("next").and_then(Value::as_str).and_then(link_path)
}

/// Returns the items of a list response. The list is the only array in the response.
pub(crate) fn list_items(response: &Value) -> impl Iterator<Item = &Value> {
    response.as_object().and_then(|response| response.values().find_map(Value::as_array)).into_iter().flatten()
}

/// Returns the path and query of a link, without scheme and host.
fn link_path(link: &str) -> Option<String> {
    let address = link.split_once("://").map_or(link, |(_, rest)| rest);
    address.find('/').map(|start| address[start..].to_owned())
}

/// Returns the objects with these names that match the filter. The controller evaluates the filter: an object matches
/// if the controller's list for the cluster of the filter, or else of the object, contains it. Each list is read once.
async fn read_by_names(
    api: &mut ApiClient,
    kind: KindArg,
    names: &[String],
    filter: &FilterArgs,
    skips_missing: bool,
) -> Result<Vec<Value>> {
    let mut lists: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut objects = Vec::new();
    let mut unique_names = BTreeSet::new();
    for requested_name in names.iter().filter(|name| unique_names.insert(*name)) {
        let object = match manifest::read_with_owners(api, kind, requested_name).await {
            Err(error) if Exit::from_error(&error) == Exit::NotFound => {
                if skips_missing {
                    continue;
                }
                return Err(with_suggestion(api, kind, requested_name, error).await);
            }
            result => result?,
        };
        if kind.is_filtered(filter) {
            let own_cluster = object.get("cluster").and_then(Value::as_str).map(str::to_owned);
            let cluster = filter.selection.cluster.clone().or(own_cluster);
            let selection = SelectionArgs { cluster, ..filter.selection.clone() };
            let path = kind.names_path(&FilterArgs { selection, ..filter.clone() })?;
            if !lists.contains_key(&path) {
                let matches = read_pages(api, path.clone()).await?;
                lists.insert(path.clone(), matches.iter().map(|object| object_name(kind, object)).collect());
            }
            if !lists[&path].contains(&object_name(kind, &object)) {
                continue;
            }
        }
        objects.push(object);
    }
    Ok(objects)
}

/// Prints a value as YAML or JSON.
pub(crate) fn print_value(value: &Value, output: Output) -> Result<()> {
    match output {
        Output::Yaml => out!("{}", to_block(value)),
        _ => outln!("{}", pretty_json(value)?),
    }
    Ok(())
}

/// Prints a list of named items that have no [`KindArg`], such as tags or principals, in the requested format. The
/// closure `table` returns the table for people. Fails for `-o manifest`.
pub(crate) fn print_list<'a>(
    value: &Value,
    (kind, names): (&str, impl Iterator<Item = &'a str>),
    table: impl FnOnce() -> String,
    output: Output,
) -> Result<()> {
    match output {
        Output::Json | Output::Yaml => print_value(value, output)?,
        Output::Name => names.into_iter().for_each(|name| outln!("{kind}/{}", printable(name))),
        Output::Manifest => return Err(manifest::no_manifest_error(kind)),
        Output::Table | Output::Wide => outln!("{}", table()),
    }
    Ok(())
}

/// Returns an object with only the requested fields, or the whole object if no field is requested. A missing field is
/// `null`.
pub(crate) fn select_fields(object: &Value, requested: &[String]) -> Value {
    match object {
        Value::Object(map) if !requested.is_empty() => {
            Value::Object(requested.iter().map(|name| (name.clone(), map.get(name).cloned().unwrap_or(Value::Null))).collect())
        }
        other => other.clone(),
    }
}

/// Returns an object with only the requested fields. If no field is requested, returns all fields except those for
/// clients of other systems (such as Ironic) that are `null` and have no owner.
pub(crate) fn visible_fields(kind: KindArg, object: &Value, requested: &[String]) -> Value {
    if requested.is_empty() { manifest::without_unset_fields(kind, object) } else { select_fields(object, requested) }
}

/// Returns the name with which the API can read the object, such as `CLUSTER/GROUP` for a node group. An object without
/// a name is read by its uuid.
pub(crate) fn object_name(kind: KindArg, object: &Value) -> String {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    match kind {
        KindArg::Nodegroup => format!("{}/{}", text("cluster"), text("name")),
        KindArg::Release if !text("version").is_empty() => format!("{}@{}", text("name"), text("version")),
        KindArg::Token => text("id").to_owned(),
        KindArg::Namespace => text("namespace").to_owned(),
        KindArg::Node | KindArg::Allocation | KindArg::Inspectionrule if text("name").is_empty() => text("uuid").to_owned(),
        _ => text("name").to_owned(),
    }
}

/// Returns a table of objects, with the requested fields as columns, or else the default columns of the kind. The
/// default table of nodes has a column with notes if a node has a note.
pub(crate) fn object_table(kind: KindArg, objects: &[Value], requested: &[String], output: Output) -> String {
    let mut head: Vec<&str> =
        if requested.is_empty() { table_columns(kind, output).to_vec() } else { requested.iter().map(String::as_str).collect() };
    let has_notes = |object: &Value| object.get("notes").and_then(Value::as_array).is_some_and(|notes| !notes.is_empty());
    let state_index = head.iter().position(|column| *column == "state").filter(|_| kind == KindArg::Node && requested.is_empty());
    if let Some(state_index) = state_index.filter(|_| objects.iter().any(has_notes)) {
        head.insert(state_index + 1, "notes");
    }
    let cell = |object: &Value, column: &str| match column {
        "traits" if requested.is_empty() => count_with_first(object.get(column)),
        // For a level that inherits the field, show the effective value.
        "release" | "mode" if requested.is_empty() => {
            cell_text(object.get(format!("effective_{column}")).or_else(|| object.get(column)))
        }
        _ => column_cell(kind, object, column),
    };
    table(&head, objects.iter().map(|object| head.iter().map(|column| cell(object, column)).collect()))
}

/// Returns the text of one table cell: the field with the name of the column, formatted for people.
fn column_cell(kind: KindArg, object: &Value, column: &str) -> String {
    match column {
        "name" => object_name(kind, object),
        "resource_type_associations" => {
            let names = object.get(column).and_then(Value::as_array).into_iter().flatten();
            names.map(|item| cell_text(item.get("name"))).collect::<Vec<_>>().join(",")
        }
        time if is_time(time) => time_with_age(object.get(time)),
        other => cell_text(object.get(other)),
    }
}

/// Returns whether a field contains a time, by its name.
pub(crate) fn is_time(field: &str) -> bool {
    field.ends_with("_at") || field == "last_seen"
}

/// Returns the number of items, and the first [`MAX_SHOWN`] items. A short list is returned whole. A host may have more
/// items than fit on a line.
fn count_with_first(items: Option<&Value>) -> String {
    match items.and_then(Value::as_array) {
        Some(list) if list.len() > MAX_SHOWN => {
            let first: Vec<String> = list.iter().take(MAX_SHOWN).map(|item| cell_text(Some(item))).collect();
            format!("{}: {},…", list.len(), first.join(","))
        }
        _ => cell_text(items),
    }
}

/// Maximum number of items that [`count_with_first`] shows of a list, such as the traits of a node in a table.
const MAX_SHOWN: usize = 2;

/// Returns the default columns of a kind's table.
fn table_columns(kind: KindArg, output: Output) -> &'static [&'static str] {
    match (kind, output) {
        (KindArg::Node, Output::Wide) => {
            &["name", "nodegroup", "mode", "roles", "tags", "state", "release", "last_seen", "traits", "labels", "state_reason"]
        }
        (KindArg::Node, _) => &["name", "nodegroup", "mode", "roles", "state"],
        (KindArg::Nodegroup, _) => &["name", "roles", "mode", "release", "node_states", "labels"],
        (KindArg::Cluster, _) => &["name", "cluster_template", "release", "node_states", "labels"],
        (KindArg::Clustertemplate, _) => &["name", "release", "labels"],
        (KindArg::Release, _) => &["name", "task_count", "created_at"],
        (KindArg::Allocation, _) => &["name", "state", "node_uuid", "resource_class", "traits", "created_at"],
        (KindArg::Namespace, _) => &["name", "display_name", "visibility", "protected", "resource_type_associations"],
        (KindArg::Inspectionrule, _) => &["name", "priority", "description"],
        (KindArg::Token, _) => &["id", "nodegroup", "node", "uses_left", "expires_at"],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The group inherits both fields, so the table shows their effective values. The node has values of its own.
    #[test]
    fn object_table_shows_inherited_release_and_mode() {
        let group = json!({"name": "g", "cluster": "c", "effective_release": "site@1", "effective_mode": "apply"});
        let shown = object_table(KindArg::Nodegroup, &[group], &[], Output::Table);
        assert!(shown.contains("site@1") && shown.contains("apply"), "{shown}");
        let node = json!({"name": "n", "mode": "noop", "release": "site@2"});
        let shown = object_table(KindArg::Node, &[node], &[], Output::Wide);
        assert!(shown.contains("site@2") && shown.contains("noop"), "{shown}");
    }

    /// A null field of Ironic is left out, unless it is requested or has an owner. `last_seen` is a field of Stemma.
    #[test]
    fn y09_visible_fields_omit_null_fields_of_ironic() {
        let node = json!({"name": "n", "allocation_uuid": null, "description": null, "fault": null, "last_seen": null});
        let set_node = json!({"name": "n", "allocation_uuid": "7", "description": "d", "fault": null});
        let owned_node = json!({"name": "n", "description": null, "field_owners": {"description": "git:apply"}});
        for (kind, object, requested, expected) in [
            (KindArg::Node, &node, &["fault", "description"][..], json!({"fault": null, "description": null})),
            (KindArg::Node, &node, &[], json!({"name": "n", "last_seen": null})),
            (KindArg::Node, &set_node, &[], json!({"name": "n", "allocation_uuid": "7", "description": "d"})),
            (KindArg::Node, &owned_node, &[], owned_node.clone()),
            (KindArg::Inspectionrule, &node, &["name"], json!({"name": "n"})),
        ] {
            let requested: Vec<String> = requested.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(visible_fields(kind, object, &requested), expected, "{object} {requested:?}");
        }
    }

    /// `owner` is null too, but a manager owns it. `last_error` of a node and `reservation` of a cluster are not
    /// passthrough fields.
    #[test]
    fn y09_without_unset_fields_omits_null_passthrough_fields() {
        let node = json!({
            "name": "n", "state": "idle", "last_error": null, "power_state": null, "boot_mode": null, "rescue_interface": null,
            "driver": "ipmi", "owner": null, "extra": {}, "field_owners": {"owner": "git:apply"}
        });
        let shown = manifest::without_unset_fields(KindArg::Node, &node);
        let mut names: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["driver", "extra", "field_owners", "last_error", "name", "owner", "state"]);
        let cluster = json!({"name": "c", "reservation": null});
        assert_eq!(manifest::without_unset_fields(KindArg::Cluster, &cluster), cluster, "reservation is not a field of Magnum");
    }

    #[test]
    fn count_with_first_shortens_long_list() {
        let node = |traits: Value| json!({"name": "web-1", "traits": traits});
        let few = object_table(KindArg::Node, &[node(json!(["CUSTOM_A", "CUSTOM_B"]))], &[], Output::Wide);
        assert!(few.contains("CUSTOM_A,CUSTOM_B") && !few.contains('…'), "{few}");
        let many = node(json!(["CUSTOM_A", "CUSTOM_B", "CUSTOM_C"]));
        let shown = object_table(KindArg::Node, std::slice::from_ref(&many), &[], Output::Wide);
        assert!(shown.contains("3: CUSTOM_A,CUSTOM_B,…"), "{shown}");
        let requested = object_table(KindArg::Node, &[many], &["traits".to_owned()], Output::Wide);
        assert!(requested.contains("CUSTOM_A,CUSTOM_B,CUSTOM_C"), "a requested field is shown whole: {requested}");
    }
}
