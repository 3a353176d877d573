//! `-o manifest`: prints an object as its author would write it, so that an apply of the manifest changes nothing.
//!
//! A response contains more than the author provided: effective maps, values reported by a host, counts of nodes,
//! values from the levels above, and defaults of fields that clients of other systems expect. So the stored fields are
//! requested. An older controller does not send the stored fields. Its computed fields are then left out as far as they
//! can be recognized. The field tables in the crate `stemma-core` list the fields that an author may set.

use anyhow::{Error, Result, anyhow, bail};
use serde_json::{Map, Value, json};
use stemma_core::catalog::to_authored;
use stemma_core::field::FieldType;
use stemma_core::manifest::{ALWAYS_NULL, PassthroughField, SpecFields};
use stemma_core::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, NamespaceSpec, NodeGroupSpec, NodeSpec, ReleaseSpec,
};
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::Endpoint;

use crate::api::{ApiClient, ApiRefusal};
use crate::args::KindArg;
use crate::command::owned;
use crate::output::printable;
use crate::yaml::to_block;

/// Fields that Magnum (`OpenStack`'s cluster service) computes and its clients send back. An older controller returns
/// these fields as if they were stored.
const COMPUTED_FIELDS: &[&str] =
    &["id", "is_default", "master_count", "node_addresses", "node_count", "stack_id", "status", "status_reason", "uuid"];

/// Fields of a node in the API of Ironic (`OpenStack`'s bare-metal service) that are `null` until somebody sets them.
/// [`ALWAYS_NULL`] and the passthrough fields are not repeated here.
const NULL_NODE_FIELDS: &[&str] = &["allocation_uuid", "description"];

/// The query parameter that requests the stored fields of an object, and the field of the response that contains them.
const STORED_PARAMETER: &str = "stored";

/// Returns the manifest of an object as text. If the object can't be exported, returns a comment with the reason.
///
/// # Errors
/// If the object can't be read.
pub(crate) async fn manifest_by_name(api: &mut ApiClient, kind: KindArg, name: &str) -> Result<String> {
    let object = read_stored(api, kind, name).await?;
    match not_exported_reason(kind, name, &object) {
        None => manifest_text(api, kind, &object).await,
        Some(reason) => Ok(omission_comment(&reason)),
    }
}

/// Returns the YAML comment that is printed in place of a manifest. `reason` is the reason why the manifest is left
/// out.
pub(crate) fn omission_comment(reason: &str) -> String {
    format!("# Left out: {reason}\n")
}

/// Fails if `apply` does not accept the kind, so that its objects have no manifest.
///
/// # Errors
/// The error names the output formats that show objects of the kind, and the command that creates one.
pub(crate) fn check_exportable(kind: KindArg) -> Result<()> {
    if kind.has_manifest() {
        return Ok(());
    }
    let command = if kind == KindArg::Token { "stemma token create" } else { "stemma create allocation" };
    let kind_name = kind.name();
    bail!("-o manifest: apply can't create this kind ({kind_name}): -o yaml or -o json shows it, and `{command}` creates one")
}

/// Returns why no manifest of an object can be printed, or `None` if it can. If the fields of a sensitive object are
/// hidden, applying a manifest without these fields would remove them. A manifest without a name would be refused.
pub(crate) fn not_exported_reason(kind: KindArg, name: &str, object: &Value) -> Option<String> {
    let (kind_name, name) = (kind.name(), printable(name));
    let is_true = |field: &str| object.get(field) == Some(&Value::Bool(true));
    match kind {
        KindArg::Inspectionrule if is_true("sensitive") => Some(format!(
            "{kind_name}/{name} is sensitive: its conditions and actions are shown to nobody, and applying a manifest without them would take them \
             away; keep the manifest that created it (-o yaml shows the rest)"
        )),
        KindArg::Node | KindArg::Inspectionrule if object.get("name").is_none_or(Value::is_null) => {
            Some(format!("{kind_name}/{name} has no name, and a manifest needs one: give it a name (-o yaml shows the rest)"))
        }
        _ => None,
    }
}

/// Returns the error for something without a manifest of its own, such as a tag, a task or a principal. `noun` is the
/// name of its kind for people.
pub(crate) fn no_manifest_error(noun: &str) -> Error {
    anyhow!("-o manifest: a {noun} has no manifest of its own: -o yaml or -o json shows it")
}

/// Reads an object with its stored fields, in the member `stored` of the response. Some kinds and older controllers do
/// not support this. The object is then read as by [`read_with_owners`].
///
/// # Errors
/// If the object can't be read.
pub(crate) async fn read_stored(api: &mut ApiClient, kind: KindArg, name: &str) -> Result<Value> {
    if !matches!(kind, KindArg::Node | KindArg::Nodegroup | KindArg::Cluster | KindArg::Clustertemplate) {
        return read_with_owners(api, kind, name).await;
    }
    match api.get(&format!("{}?{STORED_PARAMETER}=true", kind.path(name)?)).await {
        Err(error) if error.downcast_ref::<ApiRefusal>().is_some_and(ApiRefusal::is_query_refusal) => {
            read_with_owners(api, kind, name).await
        }
        result => result,
    }
}

/// Reads an object with the owners of its fields. For a namespace, the owners must be requested, because Glance's
/// response does not contain them. If that fails, as with an older controller, it is read without owners.
pub(crate) async fn read_with_owners(api: &mut ApiClient, kind: KindArg, name: &str) -> Result<Value> {
    let path = kind.path(name)?;
    if kind == KindArg::Namespace
        && let Ok(namespace) = api.get(&format!("{path}?owners=true")).await
    {
        return Ok(namespace);
    }
    api.get(&path).await
}

/// Returns the manifest of an object from [`read_stored`] as text. Unless one manager applied all of the manifest, a
/// comment above it lists the owners.
///
/// # Errors
/// As [`build_manifest`].
pub(crate) async fn manifest_text(api: &mut ApiClient, kind: KindArg, object: &Value) -> Result<String> {
    let manifest = build_manifest(api, kind, object).await?;
    Ok(owned::owners_comment(&manifest, object) + &to_block(&manifest))
}

/// Returns the part of an object's manifest that a manager applies, as text. Returns `None` if the manager applies
/// nothing. Exception: a manifest that contains only the object's name is returned whatever the manager is.
///
/// # Errors
/// As [`build_manifest`], and if the controller does not send the owners.
pub(crate) async fn managed_part(
    api: &mut ApiClient,
    kind: KindArg,
    object: &Value,
    manager: &Manager,
) -> Result<Option<String>> {
    let mut manifest = build_manifest(api, kind, object).await?;
    Ok(owned::cut_to_manager(&mut manifest, object, manager)?.then(|| to_block(&manifest)))
}

/// Builds the manifest of an object from [`read_stored`]. For a node of an older controller, more is read: its own
/// roles, and the sources of its resolved values.
///
/// # Errors
/// For a node of an older controller, if its roles can't be read.
async fn build_manifest(api: &mut ApiClient, kind: KindArg, object: &Value) -> Result<Value> {
    let mut manifest = manifest_fields(kind, object);
    if let Some(stored) = object.get(STORED_PARAMETER) {
        add_node_lists(&mut manifest, stored);
    } else if kind == KindArg::Node {
        let name = object.get("name").and_then(Value::as_str).or_else(|| object.get("uuid")?.as_str()).unwrap_or_default();
        let roles = api.get(&kind.endpoint_path(Endpoint::ListNodeRoles, name, &[])?).await?;
        let resolved = kind.endpoint_path(Endpoint::ResolvedNode, name, &[])?;
        // If the resolved values cannot be read, the manifest has no `mode`, because its origin is then unknown.
        let resolved = api.find(&resolved).await.unwrap_or_default().unwrap_or_default();
        add_old_node_fields(&mut manifest, object, &roles, &resolved);
    }
    Ok(Value::Object(manifest))
}

/// Returns the fields of a kind that an author may set, with their types, and its passthrough fields. Passthrough
/// fields are stored for clients of Ironic and Magnum. Only a few of them, such as `resource_class`, have an effect.
pub(crate) fn kind_fields(kind: KindArg) -> (Vec<(&'static str, FieldType)>, &'static [PassthroughField]) {
    match kind {
        KindArg::Node => spec_fields::<NodeSpec>(),
        KindArg::Nodegroup => spec_fields::<NodeGroupSpec>(),
        KindArg::Cluster => spec_fields::<ClusterSpec>(),
        KindArg::Clustertemplate => spec_fields::<ClusterTemplateSpec>(),
        KindArg::Release => spec_fields::<ReleaseSpec>(),
        KindArg::Allocation => spec_fields::<AllocationSpec>(),
        KindArg::Namespace => spec_fields::<NamespaceSpec>(),
        KindArg::Inspectionrule => spec_fields::<InspectionRuleSpec>(),
        KindArg::Token => (vec![("nodegroup", FieldType::Text), ("node", FieldType::Text)], &[]),
    }
}

/// Returns whether a passthrough field (stored for clients of other systems) has its default value or is computed.
pub(crate) fn is_unset_passthrough(field: &PassthroughField, value: &Value) -> bool {
    field.default.is_some_and(|default| serde_json::from_str(default).is_ok_and(|default: Value| default == *value))
        || COMPUTED_FIELDS.contains(&field.name)
}

/// Returns an object as `-o json` prints it: without fields for clients of other systems that are `null` because nobody
/// set them.
pub(crate) fn without_unset_fields(kind: KindArg, object: &Value) -> Value {
    let Some(map) = object.as_object() else { return object.clone() };
    let (_, passthrough) = kind_fields(kind);
    let is_nullable = |name: &str| ALWAYS_NULL.contains(&name) || NULL_NODE_FIELDS.contains(&name);
    let is_external = |name: &str| kind == KindArg::Node && is_nullable(name) || passthrough.iter().any(|item| item.name == name);
    let is_shown = |name: &str, value: &Value| !value.is_null() || !is_external(name) || is_owned(object, name);
    let shown_fields = map.iter().filter(|(name, value)| is_shown(name, value));
    Value::Object(shown_fields.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Returns the manifest of an object, for a node without its traits and tags. The manifest contains the fields that the
/// author set, and the fields that have an owner although their value is the default.
fn manifest_fields(kind: KindArg, object: &Value) -> Map<String, Value> {
    if kind == KindArg::Namespace {
        return namespace_body(object);
    }
    let (fields, passthrough_fields) = kind_fields(kind);
    let mut manifest = Map::from_iter([("kind".to_owned(), Value::from(kind.manifest_name()))]);
    let text = |field: &str| object.get(field).filter(|value| value.is_string());
    for field in ["name", "version", "cluster"] {
        manifest.extend(text(field).map(|value| (field.to_owned(), value.clone())));
    }
    // The stored fields have the values of the author. An older controller sends only the fields of the response, which
    // may also be inherited or computed.
    let stored = object.get(STORED_PARAMETER);
    let value = |field: &str| stored.unwrap_or(object).get(field).filter(|value| !value.is_null());
    let is_explicit = |field: &str, value: &Value| is_set(value) && !is_default(kind, field, value);
    for (field, field_type) in fields.into_iter().filter(|(field, _)| *field != "name") {
        let value = value(field);
        let is_owned = is_owned(object, field);
        let value = match value.filter(|value| is_owned || is_explicit(field, value) || is_empty_object(field_type, value)) {
            Some(value) => Some(value.clone()),
            None if is_owned => default_value(object, field, field_type),
            None => None,
        };
        manifest.extend(value.map(|value| (field.to_owned(), value)));
    }
    for field in passthrough_fields {
        let is_exported = |value: &&Value| {
            // A stored passthrough field was set by its author. Without stored fields, a default value cannot be told
            // from an unset field.
            stored.is_some() || is_owned(object, field.name) || is_set(value) && !is_unset_passthrough(field, value)
        };
        manifest.extend(value(field.name).filter(is_exported).map(|value| (field.name.to_owned(), value.clone())));
    }
    if !matches!(kind, KindArg::Release | KindArg::Inspectionrule) {
        add_maps(&mut manifest, object);
    }
    manifest
}

/// Returns whether a field has an owner. A manager that set a field to its default value owns the field too.
fn is_owned(object: &Value, field: &str) -> bool {
    object.get("field_owners").is_some_and(|owners| owners.get(field).is_some())
}

/// Returns whether a value is an empty object whose type has fields. Such a value differs from an unset field, as
/// `hold: {}` does.
pub(crate) fn is_empty_object(field_type: FieldType, value: &Value) -> bool {
    matches!(field_type.plain(), FieldType::Object(_)) && value.as_object().is_some_and(Map::is_empty)
}

/// Returns whether a manager owns a field because of an apply. The manager's manifest then contains the field.
fn is_applied(object: &Value, field: &str) -> bool {
    owned::owner_names(object.get("field_owners").and_then(|owners| owners.get(field))).any(owned::is_by_apply)
}

/// Returns the value with which a manifest sets a field to its default, or `None` if there is no such value. An empty
/// text refers to nothing, and an empty object may have a meaning, as `hold: {}` does. So these two values are returned
/// only if an apply owns the field.
fn default_value(object: &Value, field: &str, field_type: FieldType) -> Option<Value> {
    match field_type.plain() {
        FieldType::Text => is_applied(object, field).then(|| "".into()),
        FieldType::Object(_) => is_applied(object, field).then(|| json!({})),
        other => other.empty_value(),
    }
}

/// Returns the manifest of a namespace: the fields that its author set, and the fields that have an owner although
/// their value is the default. Fields that only a response contains are left out.
fn namespace_body(object: &Value) -> Map<String, Value> {
    let mut body = to_authored(object.as_object().cloned().unwrap_or_default());
    body.retain(|name, value| is_owned(object, name) || is_set(value) && !is_default(KindArg::Namespace, name, value));
    let (fields, _) = kind_fields(KindArg::Namespace);
    let missing = fields.into_iter().filter(|(field, _)| is_owned(object, field) && !body.contains_key(*field));
    let missing = missing.filter_map(|(field, field_type)| Some((field.to_owned(), default_value(object, field, field_type)?)));
    let missing: Vec<_> = missing.collect();
    body.extend(missing);
    body.insert("kind".to_owned(), KindArg::Namespace.manifest_name().into());
    body
}

/// Returns whether a field has the default value that a response shows if nobody set the field.
fn is_default(kind: KindArg, name: &str, value: &Value) -> bool {
    match (kind, name) {
        (KindArg::Namespace, "visibility") => value == "private",
        (KindArg::Inspectionrule, "phase") => value == "main",
        (KindArg::Inspectionrule, "priority") => *value == 0,
        _ => false,
    }
}

/// Returns the fields of a spec with their types, and its passthrough fields.
fn spec_fields<S: SpecFields>() -> (Vec<(&'static str, FieldType)>, &'static [PassthroughField]) {
    (S::FIELDS.iter().map(|field| (field.name, field.kind)).collect(), S::PASSTHROUGH_FIELDS)
}

/// Adds the labels, annotations and parameters that this object itself provides, also empty maps and `null` values.
/// Also adds `merge_labels` if the object provides labels, if the field is true, or if it has an owner and is set.
fn add_maps(manifest: &mut Map<String, Value>, object: &Value) {
    for map in ["labels", "annotations", "parameters"] {
        let provided = object.get(format!("provided_{map}")).filter(|map| map.is_object());
        manifest.extend(provided.map(|provided| (map.to_owned(), provided.clone())));
    }
    let is_merging = object.get("merge_labels") == Some(&Value::Bool(true));
    // If `merge_labels` was reset to unset, a manifest must leave it out.
    let is_unset = object.get(STORED_PARAMETER).and_then(|stored| stored.get("merge_labels")) == Some(&Value::Null);
    if manifest.contains_key("labels") || is_merging || (is_owned(object, "merge_labels") && !is_unset) {
        manifest.insert("merge_labels".to_owned(), object.get("merge_labels").cloned().unwrap_or(Value::Bool(true)));
    }
}

/// Adds the traits that operators set on a node, and the tags that they assigned or unassigned, from its stored fields.
fn add_node_lists(manifest: &mut Map<String, Value>, stored: &Value) {
    let has_items = |names: &Value| names.as_array().is_some_and(|names| !names.is_empty());
    manifest.extend(stored.get("traits").filter(|traits| has_items(traits)).map(|traits| ("traits".to_owned(), traits.clone())));
    let tags = stored.get("tags").and_then(Value::as_object).into_iter().flatten().filter(|(_, tags)| has_items(tags));
    let tags: Map<_, _> = tags.map(|(list_name, tags)| (list_name.clone(), tags.clone())).collect();
    if !tags.is_empty() {
        manifest.insert("tags".to_owned(), tags.into());
    }
}

/// Reduces the roles, traits, tags and mode in the manifest of a node to what operators set on the node itself. The
/// response of an older controller also contains values of the node's group and host.
fn add_old_node_fields(manifest: &mut Map<String, Value>, object: &Value, roles: &Value, resolved: &Value) {
    let mut set_field = |field: &str, value: Option<Value>| match value.filter(|value| is_set(value) || is_owned(object, field)) {
        Some(value) => drop(manifest.insert(field.to_owned(), value)),
        None => drop(manifest.remove(field)),
    };
    set_field("roles", roles.get("own").cloned());
    if resolved.pointer("/mode/origin").and_then(Value::as_str) != Some("node") {
        set_field("mode", None);
    }
    let sources = object.get("trait_sources").and_then(Value::as_object).into_iter().flatten();
    let is_by_operator = |sources: &Value| sources.as_array().into_iter().flatten().any(|source| source == "operator");
    set_field("traits", Some(sources.filter(|(_, sources)| is_by_operator(sources)).map(|(name, _)| name.as_str()).collect()));
    let tag_list = |field: &str| object.get(field).cloned().filter(is_set);
    let tags = [("assigned", tag_list("assigned_tags")), ("unassigned", tag_list("unassigned_tags"))];
    let tags: Map<_, _> = tags.into_iter().filter_map(|(field, tags)| Some((field.to_owned(), tags?))).collect();
    set_field("tags", Some(json!(tags)));
}

/// Returns whether a value is set. Null, false and empty values are unset. Every number is set.
pub(crate) fn is_set(value: &Value) -> bool {
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

    /// The manifest has the labels that the group itself provides, and no inherited ones.
    #[test]
    fn manifest_fields_omit_computed_and_inherited_values() {
        let group = json!({"uuid": "u", "id": 7, "name": "web", "cluster": "prod", "generation": 3, "links": [], "node_count": 1,
            "status": "CREATE_COMPLETE", "roles": ["web"], "labels": {"a": "1", "b": "2"}, "provided_labels": {"b": "2", "c": null},
            "merge_labels": true, "provided_annotations": null, "flavor_id": "m1", "requirements": {"trait:X": "required"}});
        assert_eq!(
            Value::Object(manifest_fields(KindArg::Nodegroup, &group)),
            json!({"kind": "NodeGroup", "name": "web", "cluster": "prod", "roles": ["web"], "labels": {"b": "2", "c": null},
                "merge_labels": true, "flavor_id": "m1", "requirements": {"trait:X": "required"}})
        );
    }

    /// An older controller sends no stored fields. The role `web`, the mode, the tag `y` and the trait `A` come from
    /// the group or the host, so the manifest does not contain them.
    #[test]
    fn add_old_node_fields_keeps_only_fields_set_on_node() {
        let node = json!({"name": "n", "nodegroup": "c/g", "roles": ["web", "db"], "mode": "noop", "tags": ["x", "y"],
            "assigned_tags": ["x"], "unassigned_tags": [], "traits": ["A", "B"], "parked": false,
            "trait_sources": {"A": ["detected"], "B": ["operator", "detected"]}, "provided_labels": {}, "merge_labels": false});
        let mut manifest = manifest_fields(KindArg::Node, &node);
        add_old_node_fields(
            &mut manifest,
            &node,
            &json!({"own": ["db"]}),
            &json!({"mode": {"value": "noop", "origin": "nodegroup"}}),
        );
        assert_eq!(
            Value::Object(manifest),
            json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "roles": ["db"], "traits": ["B"], "tags": {"assigned": ["x"]},
                "labels": {}, "merge_labels": false})
        );
    }

    /// Each owned field has its default value. A default text or object is only in the manifest if an apply owns the
    /// field, as for `description`. A manifest has no value for the default of `mode` and `merge_labels`.
    #[test]
    fn y05_manifest_fields_contain_owned_default_when_expressible() {
        let owners = json!({"roles": ["ann:update"], "parked": ["ann:update"], "hold": ["ann:update"], "nodegroup": ["ann:update"],
            "description": ["git:apply"], "mode": ["ann:update"], "merge_labels": ["ann:update"]});
        let node = json!({"name": "n", "roles": ["web"], "merge_labels": false, "provided_labels": null, "field_owners": owners,
            "stored": {"merge_labels": null, "traits": [], "tags": {"assigned": [], "unassigned": []}}});
        assert_eq!(
            Value::Object(manifest_fields(KindArg::Node, &node)),
            json!({"kind": "Node", "name": "n", "roles": [], "parked": false, "description": ""})
        );
    }

    /// The response also has fields outside `stored`, with computed or inherited values. The manifest does not contain
    /// them.
    #[test]
    fn y07_manifest_contains_only_stored_values() {
        let cluster = json!({"name": "c", "cluster_template": "t", "flavor_id": "f1", "node_count": 1, "master_count": 1, "is_default": false,
            "provided_labels": null, "merge_labels": false, "field_owners": {"node_count": ["git:apply"], "paused": ["git:apply"]},
            "stored": {"cluster_template": "t", "node_count": 3, "is_default": true, "create_timeout": 60}});
        assert_eq!(
            Value::Object(manifest_fields(KindArg::Cluster, &cluster)),
            json!({"kind": "Cluster", "name": "c", "cluster_template": "t", "node_count": 3, "create_timeout": 60, "paused": false})
        );
        let node = json!({"name": "n", "nodegroup": "c/g", "roles": ["web", "db"], "mode": "noop", "traits": ["A", "B"], "tags": ["x", "y"],
            "provided_labels": {}, "merge_labels": true,
            "stored": {"nodegroup": "c/g", "roles": ["db"], "traits": ["B"], "tags": {"assigned": [], "unassigned": ["z"]}}});
        let mut manifest = manifest_fields(KindArg::Node, &node);
        add_node_lists(&mut manifest, &node["stored"]);
        assert_eq!(
            Value::Object(manifest),
            json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "roles": ["db"], "traits": ["B"], "tags": {"unassigned": ["z"]},
                "labels": {}, "merge_labels": true})
        );
    }
}
