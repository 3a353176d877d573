//! `-o manifest`: an object as its author would write it, so that it goes back in as it came out.
//!
//! An answer shows more than was said: effective maps, what a host reported, counts of nodes, what comes from the levels above, defaults of
//! fields that other systems' clients look for. So the controller is asked for the fields as they are stored; what an older one, which does
//! not tell, computed is left out as far as can be seen. Core's table of each kind says which fields an author has.

use anyhow::{Error, Result, anyhow, bail};
use serde_json::{Map, Value, json};
use stemma_core::catalog::as_written;
use stemma_core::field::Form;
use stemma_core::manifest::{Fields, Kept, UNDRIVEN};
use stemma_core::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, NamespaceSpec, NodeGroupSpec, NodeSpec,
    ReleaseSpec,
};
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::Endpoint;

use crate::api::{Api, Refusal};
use crate::args::Kind;
use crate::command::owned;
use crate::output::printable;
use crate::yaml::block;

/// Fields that Magnum computes and its clients send back. An older controller shows them as if they were stored.
const COMPUTED: &[&str] = &[
    "id",
    "is_default",
    "master_count",
    "node_addresses",
    "node_count",
    "stack_id",
    "status",
    "status_reason",
    "uuid",
];

/// Fields of Ironic's node that are `null` until somebody sets them, and stand in no table of what is kept or undriven.
const NODES_UNSET: &[&str] = &["allocation_uuid", "description"];

/// The parameter that asks what is stored of an object, and the field that has it.
const STORED: &str = "stored";

/// The text of the manifest of an object that was written; where none is printed, the comment that says why.
///
/// # Errors
/// When it can't be read.
pub(crate) async fn by_name(api: &mut Api, kind: Kind, name: &str) -> Result<String> {
    let object = stored(api, kind, name).await?;
    match not_exported(kind, name, &object) {
        None => text(api, kind, &object).await,
        Some(why) => Ok(left_out(&why)),
    }
}

/// The comment among manifests that says of one why it is not there.
pub(crate) fn left_out(why: &str) -> String {
    format!("# Left out: {why}\n")
}

/// Refuses the manifest of a kind that no apply reads.
///
/// # Errors
/// With what shows its objects, and what makes them.
pub(crate) fn check_exported(kind: Kind) -> Result<()> {
    if kind.has_manifest() {
        return Ok(());
    }
    let makes = if kind == Kind::Token { "stemma token create" } else { "stemma create allocation" };
    let word = kind.name();
    bail!("-o manifest: apply makes no {word}: -o yaml or -o json shows it, and `{makes}` makes one")
}

/// Why no manifest of an object is printed; `None` where all is shown that its author said. One without what an answer hides would take
/// that away where it is applied, and one without a name would be refused there.
pub(crate) fn not_exported(kind: Kind, name: &str, object: &Value) -> Option<String> {
    let (word, name) = (kind.name(), printable(name));
    let is_true = |field: &str| object.get(field) == Some(&Value::Bool(true));
    match kind {
        Kind::Inspectionrule if is_true("sensitive") => Some(format!(
            "{word}/{name} is sensitive: its conditions and actions are shown to nobody, and a manifest without them would take them \
             away where it is applied; keep the manifest that made it (-o yaml shows the rest)"
        )),
        Kind::Node | Kind::Inspectionrule if object.get("name").is_none_or(Value::is_null) => Some(format!(
            "{word}/{name} has no name, by which a manifest says whose it is: give it one (-o yaml shows the rest)"
        )),
        _ => None,
    }
}

/// The refusal of the manifest of what is no object, as a tag or a task: it stands in those of others.
pub(crate) fn no_manifest(what: &str) -> Error {
    anyhow!("-o manifest: a {what} has no manifest of its own: -o yaml or -o json shows it")
}

/// One object as it is shown, with what is stored of it (`stored`); of a kind whose body makes nothing of that, and by an older
/// controller, as [`whole`].
///
/// # Errors
/// When it can't be read.
pub(crate) async fn stored(api: &mut Api, kind: Kind, name: &str) -> Result<Value> {
    if !matches!(kind, Kind::Node | Kind::Nodegroup | Kind::Cluster | Kind::Clustertemplate) {
        return whole(api, kind, name).await;
    }
    match api.get(&format!("{}?{STORED}=true", kind.path(name)?)).await {
        Err(error) if error.downcast_ref::<Refusal>().is_some_and(Refusal::is_of_query) => whole(api, kind, name).await,
        answer => answer,
    }
}

/// One object as it is shown, with who owns what of it. Of a namespace that is asked for: Glance's answer has it not, nor has an older
/// controller's.
pub(crate) async fn whole(api: &mut Api, kind: Kind, name: &str) -> Result<Value> {
    let path = kind.path(name)?;
    if kind == Kind::Namespace
        && let Ok(whole) = api.get(&format!("{path}?owners=true")).await
    {
        return Ok(whole);
    }
    api.get(&path).await
}

/// The text of the manifest of an object that [`stored`] has shown, behind a comment on its owners where not one manager applied all of it.
///
/// # Errors
/// As [`manifest`].
pub(crate) async fn text(api: &mut Api, kind: Kind, object: &Value) -> Result<String> {
    let manifest = manifest(api, kind, object).await?;
    Ok(owned::comment(&manifest, object) + &block(&manifest))
}

/// The text of what a manager applies of it; `None`: nothing.
///
/// # Errors
/// As [`manifest`]; where a controller does not tell who owns what.
pub(crate) async fn part(api: &mut Api, kind: Kind, object: &Value, manager: &Manager) -> Result<Option<String>> {
    let mut manifest = manifest(api, kind, object).await?;
    Ok(owned::cut(&mut manifest, object, manager)?.then(|| block(&manifest)))
}

/// The manifest of an object that [`stored`] has shown.
///
/// # Errors
/// For a node of an older controller, when what only other paths tell can't be read.
async fn manifest(api: &mut Api, kind: Kind, object: &Value) -> Result<Value> {
    let mut manifest = written(kind, object);
    if let Some(stored) = object.get(STORED) {
        by_hand(&mut manifest, stored);
    } else if kind == Kind::Node {
        let name =
            object.get("name").and_then(Value::as_str).or_else(|| object.get("uuid")?.as_str()).unwrap_or_default();
        let roles = api.get(&kind.path_of(Endpoint::ListNodeRoles, name, &[])?).await?;
        let resolved = kind.path_of(Endpoint::ResolvedNode, name, &[])?;
        let resolved = api.find(&resolved).await.unwrap_or_default().unwrap_or_default();
        own(&mut manifest, object, &roles, &resolved);
    }
    Ok(Value::Object(manifest))
}

/// The fields that an author of a kind has, and those of other systems that are kept.
pub(crate) fn known_of(kind: Kind) -> (Vec<(&'static str, Form)>, &'static [Kept]) {
    match kind {
        Kind::Node => known::<NodeSpec>(),
        Kind::Nodegroup => known::<NodeGroupSpec>(),
        Kind::Cluster => known::<ClusterSpec>(),
        Kind::Clustertemplate => known::<ClusterTemplateSpec>(),
        Kind::Release => known::<ReleaseSpec>(),
        Kind::Allocation => known::<AllocationSpec>(),
        Kind::Namespace => known::<NamespaceSpec>(),
        Kind::Inspectionrule => known::<InspectionRuleSpec>(),
        Kind::Token => (vec![("nodegroup", Form::Text), ("node", Form::Text)], &[]),
    }
}

/// Whether a field of another system's stands as it is given back where nobody set it, or is computed.
pub(crate) fn is_filled(field: &Kept, value: &Value) -> bool {
    field.default.is_some_and(|default| serde_json::from_str(default).is_ok_and(|default: Value| default == *value))
        || COMPUTED.contains(&field.name)
}

/// An object as a program is shown it: without fields of other systems' bodies that are `null` because nobody set them.
pub(crate) fn told(kind: Kind, object: &Value) -> Value {
    let Some(map) = object.as_object() else { return object.clone() };
    let (_, extra) = known_of(kind);
    let is_of_node = |name: &str| UNDRIVEN.contains(&name) || NODES_UNSET.contains(&name);
    let is_theirs = |name: &str| kind == Kind::Node && is_of_node(name) || extra.iter().any(|kept| kept.name == name);
    let is_shown = |name: &str, value: &Value| !value.is_null() || !is_theirs(name) || is_owned(object, name);
    let shown = map.iter().filter(|(name, value)| is_shown(name, value));
    Value::Object(shown.map(|(name, value)| (name.clone(), value.clone())).collect())
}

fn written(kind: Kind, object: &Value) -> Map<String, Value> {
    if kind == Kind::Namespace {
        return namespace(object);
    }
    let (fields, extra) = known_of(kind);
    let mut to = Map::from_iter([("kind".to_owned(), Value::from(kind.manifest_name()))]);
    let text = |field: &str| object.get(field).filter(|value| value.is_string());
    for field in ["name", "version", "cluster"] {
        to.extend(text(field).map(|value| (field.to_owned(), value.clone())));
    }
    let stored = object.get(STORED);
    let value = |field: &str| stored.unwrap_or(object).get(field).filter(|value| !value.is_null());
    let says = |field: &str, value: &Value| is_said(value) && !is_default(kind, field, value);
    for (field, form) in fields.into_iter().filter(|(field, _)| *field != "name") {
        let value = value(field);
        let is_owned = is_owned(object, field);
        let value = match value.filter(|value| is_owned || says(field, value) || is_bare(form, value)) {
            Some(value) => Some(value.clone()),
            None if is_owned => default_of(object, field, form),
            None => None,
        };
        to.extend(value.map(|value| (field.to_owned(), value)));
    }
    for field in extra {
        let says = |value: &&Value| {
            stored.is_some() || is_owned(object, field.name) || is_said(value) && !is_filled(field, value)
        };
        to.extend(value(field.name).filter(says).map(|value| (field.name.to_owned(), value.clone())));
    }
    if !matches!(kind, Kind::Release | Kind::Inspectionrule) {
        maps(&mut to, object);
    }
    to
}

/// Whether somebody owns a field, as who said it does also where it stands at its default.
fn is_owned(object: &Value, field: &str) -> bool {
    object.get("field_owners").is_some_and(|owners| owners.get(field).is_some())
}

/// Whether a value is an object with fields of its own of which none is given: that it is there says something.
pub(crate) fn is_bare(form: Form, value: &Value) -> bool {
    matches!(form.plain(), Form::Object(_)) && value.as_object().is_some_and(Map::is_empty)
}

/// Whether an apply owns a field: a manifest said it as it stands.
fn is_applied(object: &Value, field: &str) -> bool {
    owned::texts(object.get("field_owners").and_then(|owners| owners.get(field))).any(owned::is_by_apply)
}

/// How a manifest says that a field is at its default, where it can. The empty text refers to nothing, and an object without a member may
/// say something by being there, as `hold: {}` does: these are a field's default only where a manifest has said so.
fn default_of(object: &Value, field: &str, form: Form) -> Option<Value> {
    match form.plain() {
        Form::Text => is_applied(object, field).then(|| "".into()),
        Form::Object(_) => is_applied(object, field).then(|| json!({})),
        other => other.empty(),
    }
}

/// Glance's body without what an answer adds to it.
fn namespace(object: &Value) -> Map<String, Value> {
    let mut to = as_written(object.as_object().cloned().unwrap_or_default());
    to.retain(|name, value| is_owned(object, name) || is_said(value) && !is_default(Kind::Namespace, name, value));
    let (fields, _) = known_of(Kind::Namespace);
    let unshown = fields.into_iter().filter(|(field, _)| is_owned(object, field) && !to.contains_key(*field));
    let unshown = unshown.filter_map(|(field, form)| Some((field.to_owned(), default_of(object, field, form)?)));
    let unshown: Vec<_> = unshown.collect();
    to.extend(unshown);
    to.insert("kind".to_owned(), Kind::Namespace.manifest_name().into());
    to
}

/// Whether a field stands at a default that an answer shows where nobody gave it.
fn is_default(kind: Kind, name: &str, value: &Value) -> bool {
    match (kind, name) {
        (Kind::Namespace, "visibility") => value == "private",
        (Kind::Inspectionrule, "phase") => value == "main",
        (Kind::Inspectionrule, "priority") => *value == 0,
        _ => false,
    }
}

fn known<S: Fields>() -> (Vec<(&'static str, Form)>, &'static [Kept]) {
    (S::FIELDS.iter().map(|field| (field.name, field.form)).collect(), S::EXTRA)
}

/// What was provided here, `{}` and `null` among it.
fn maps(to: &mut Map<String, Value>, object: &Value) {
    for map in ["labels", "annotations", "parameters"] {
        let provided = object.get(format!("provided_{map}")).filter(|map| map.is_object());
        to.extend(provided.map(|provided| (map.to_owned(), provided.clone())));
    }
    let merges = object.get("merge_labels") == Some(&Value::Bool(true));
    // Somebody left it open again, which a manifest says by leaving it out.
    let is_open = object.get(STORED).and_then(|stored| stored.get("merge_labels")) == Some(&Value::Null);
    if to.contains_key("labels") || merges || (is_owned(object, "merge_labels") && !is_open) {
        to.insert("merge_labels".to_owned(), object.get("merge_labels").cloned().unwrap_or(Value::Bool(true)));
    }
}

/// What operators gave a node entry by entry.
fn by_hand(to: &mut Map<String, Value>, stored: &Value) {
    let given = |names: &Value| names.as_array().is_some_and(|names| !names.is_empty());
    to.extend(stored.get("traits").filter(|traits| given(traits)).map(|traits| ("traits".to_owned(), traits.clone())));
    let tags = stored.get("tags").and_then(Value::as_object).into_iter().flatten().filter(|(_, tags)| given(tags));
    let tags: Map<_, _> = tags.map(|(which, tags)| (which.clone(), tags.clone())).collect();
    if !tags.is_empty() {
        to.insert("tags".to_owned(), tags.into());
    }
}

/// A node shows what its group and its host give it too: here stands what its operators said, as far as an older controller tells.
fn own(to: &mut Map<String, Value>, object: &Value, roles: &Value, resolved: &Value) {
    let mut put =
        |field: &str, value: Option<Value>| match value.filter(|value| is_said(value) || is_owned(object, field)) {
            Some(value) => drop(to.insert(field.to_owned(), value)),
            None => drop(to.remove(field)),
        };
    put("roles", roles.get("own").cloned());
    if resolved.pointer("/mode/origin").and_then(Value::as_str) != Some("node") {
        put("mode", None);
    }
    let sources = object.get("trait_sources").and_then(Value::as_object).into_iter().flatten();
    let given = |sources: &Value| sources.as_array().into_iter().flatten().any(|source| source == "operator");
    put("traits", Some(sources.filter(|(_, sources)| given(sources)).map(|(name, _)| name.as_str()).collect()));
    let hand = |field: &str| object.get(field).cloned().filter(is_said);
    let tags = [("assigned", hand("assigned_tags")), ("unassigned", hand("unassigned_tags"))];
    let tags: Map<_, _> = tags.into_iter().filter_map(|(field, tags)| Some((field.to_owned(), tags?))).collect();
    put("tags", Some(json!(tags)));
}

/// Whether a value says anything: absent, false and empty are what stands where nobody set it.
pub(crate) fn is_said(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_computed_is_left_out_and_what_was_provided_stays() {
        let group = json!({"uuid": "u", "id": 7, "name": "web", "cluster": "prod", "generation": 3, "links": [], "node_count": 1,
            "status": "CREATE_COMPLETE", "roles": ["web"], "labels": {"a": "1", "b": "2"}, "provided_labels": {"b": "2", "c": null},
            "merge_labels": true, "provided_annotations": null, "flavor_id": "m1", "requirements": {"trait:X": "required"}});
        assert_eq!(
            Value::Object(written(Kind::Nodegroup, &group)),
            json!({"kind": "NodeGroup", "name": "web", "cluster": "prod", "roles": ["web"], "labels": {"b": "2", "c": null},
                "merge_labels": true, "flavor_id": "m1", "requirements": {"trait:X": "required"}})
        );
    }

    #[test]
    fn a_node_gives_back_what_its_operators_said() {
        let node = json!({"name": "n", "nodegroup": "c/g", "roles": ["web", "db"], "mode": "noop", "tags": ["x", "y"],
            "assigned_tags": ["x"], "unassigned_tags": [], "traits": ["A", "B"], "parked": false,
            "trait_sources": {"A": ["detected"], "B": ["operator", "detected"]}, "provided_labels": {}, "merge_labels": false});
        let mut manifest = written(Kind::Node, &node);
        own(&mut manifest, &node, &json!({"own": ["db"]}), &json!({"mode": {"value": "noop", "origin": "nodegroup"}}));
        assert_eq!(
            Value::Object(manifest),
            json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "roles": ["db"], "traits": ["B"], "tags": {"assigned": ["x"]},
                "labels": {}, "merge_labels": false})
        );
    }

    #[test]
    fn y05_a_default_that_somebody_owns_is_written_where_a_manifest_can_say_it() {
        let owners = json!({"roles": ["ann:update"], "parked": ["ann:update"], "hold": ["ann:update"], "nodegroup": ["ann:update"],
            "description": ["git:apply"], "mode": ["ann:update"], "merge_labels": ["ann:update"]});
        let node = json!({"name": "n", "roles": ["web"], "merge_labels": false, "provided_labels": null, "field_owners": owners,
            "stored": {"merge_labels": null, "traits": [], "tags": {"assigned": [], "unassigned": []}}});
        assert_eq!(
            Value::Object(written(Kind::Node, &node)),
            json!({"kind": "Node", "name": "n", "roles": [], "parked": false, "description": ""})
        );
    }

    #[test]
    fn y07_what_is_stored_is_written_and_nothing_that_an_answer_makes_of_it() {
        let cluster = json!({"name": "c", "cluster_template": "t", "flavor_id": "f1", "node_count": 1, "master_count": 1, "is_default": false,
            "provided_labels": null, "merge_labels": false, "field_owners": {"node_count": ["git:apply"], "paused": ["git:apply"]},
            "stored": {"cluster_template": "t", "node_count": 3, "is_default": true, "create_timeout": 60}});
        assert_eq!(
            Value::Object(written(Kind::Cluster, &cluster)),
            json!({"kind": "Cluster", "name": "c", "cluster_template": "t", "node_count": 3, "create_timeout": 60, "paused": false})
        );
        let node = json!({"name": "n", "nodegroup": "c/g", "roles": ["web", "db"], "mode": "noop", "traits": ["A", "B"], "tags": ["x", "y"],
            "provided_labels": {}, "merge_labels": true,
            "stored": {"nodegroup": "c/g", "roles": ["db"], "traits": ["B"], "tags": {"assigned": [], "unassigned": ["z"]}}});
        let mut manifest = written(Kind::Node, &node);
        by_hand(&mut manifest, &node["stored"]);
        assert_eq!(
            Value::Object(manifest),
            json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "roles": ["db"], "traits": ["B"], "tags": {"unassigned": ["z"]},
                "labels": {}, "merge_labels": true})
        );
    }
}
