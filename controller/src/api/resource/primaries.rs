//! Primaries over HTTP: shows which node is the primary of each tag of a cluster and the reason, and makes another node
//! primary.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemma_core::name::{TagName, is_blank};
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, NodeId};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::changes::{Changes, LostLabels};
use super::objects::ApiResource;
use super::{view, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::records::request::StoredAnswer;

/// `GET /v1/clusters/{cluster}/primaries`: lists the [`primary_tags`], each with its primary, if any, and the reason.
pub(super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let rows: Vec<Value> = primary_tags(&model, &cluster).iter().map(|tag| primary_json(&model, &cluster, tag)).collect();
    Ok(HttpResponse::ok(json!({"primaries": rows})))
}

/// Returns the tags whose primaries a list shows. These are the tags that are declared with `has_primary` by the
/// cluster's release, by users for the release, or by the cluster (even if no node has the tag), the tags that have a
/// primary now, and the tags in `primaries:` of the cluster.
fn primary_tags(model: &Model, cluster: &Cluster) -> BTreeSet<TagName> {
    let id = ClusterId(cluster.meta.uuid);
    let table = model.fleet.role_table(cluster);
    let declared = table.tags().filter(|(_, tag)| tag.has_primary).map(|(name, _)| name);
    let tags_with_primary = model.fleet.holders(id).map(|(tag, _)| tag);
    declared.chain(tags_with_primary).chain(cluster.spec.primaries.keys()).cloned().collect()
}

/// Returns the row of a tag: the node that is its primary, and the reason in `chosen_by`. The reason is `cluster` if
/// `primaries:` of the cluster names the node, `choice` if the node is stored as the chosen one, and `name` if it is
/// the first node by name. `epoch` starts at 1, and grows when the stored choice moves to another node. `since` and
/// `epoch` are `null` if the primary is not that choice. `named` is the entry in `primaries:`, also one without effect.
fn primary_json(model: &Model, cluster: &Cluster, tag: &TagName) -> Value {
    let (fleet, id) = (&model.fleet, ClusterId(cluster.meta.uuid));
    let holder = fleet.holder(id, tag.as_str());
    let node = holder.and_then(|holder| fleet.node(holder));
    let named = fleet.named_primary(id, tag.as_str());
    let is_named = named.and_then(|named| fleet.primary_node(named)).is_some_and(|named| Some(named.id()) == holder);
    let choice = fleet.primaries(id).find(|choice| choice.meta.name == *tag);
    let choice = choice.filter(|choice| Some(choice.spec.node) == holder);
    let chosen_by = match (node, &choice) {
        (None, _) => None,
        (Some(_), _) if is_named => Some("cluster"),
        (Some(_), Some(_)) => Some("choice"),
        (Some(_), None) => Some("name"),
    };
    json!({
        "tag": tag, "node": node.map(|node| node.display_name()), "node_uuid": node.map(|node| node.meta.uuid),
        "parked": node.is_some_and(|node| fleet.parked_by(node).is_some()), "chosen_by": chosen_by, "named": named,
        "since": choice.map(|choice| view::format_time(choice.spec.since)), "epoch": choice.map(|choice| choice.spec.epoch),
    })
}

/// `PUT /v1/clusters/{cluster}/primaries/{tag}` with `{"node": NODE}`: makes the node the primary of the tag. Fails if
/// it lacks the tag, if the tag lacks `has_primary`, or if `primaries:` of the cluster names another node.
pub(super) async fn choose(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, node_id) = (request.caller()?, read_node(request)?);
    let tag = TagName::new(request.param("tag"))
        .map_err(|error| ApiError::new(ErrorType::FieldInvalid, format!("{error}; nothing was changed")).field("tag"))?;
    writes::commit(api, request, &caller, |work| {
        let cluster = ClusterSpec::locate(&work.model, request)?;
        let node = work.model.nodes.find(None, &node_id).cloned().ok_or_else(|| {
            let message = format!("there is no node {}; nothing was changed", quote(&node_id));
            ApiError::new(ErrorType::ReferenceDangling, message).field("node")
        })?;
        let id = ClusterId(cluster.meta.uuid);
        let before = holder_name(&work.model, id, &tag);
        work.choose_primary(id, &tag, &node)?;
        work.resolve_tags()?;
        let after = holder_name(&work.model, id, &tag);
        let to_json = |name: Option<String>| match name {
            Some(name) => json!({"primaries": {tag.as_str(): name}}),
            None => json!({}),
        };
        let changes = Changes::default().field_changes(&to_json(before), &to_json(after));
        let answer = StoredAnswer::json(200, primary_json(&work.model, &cluster, &tag));
        Ok(writes::with_warnings(answer, None, request, changes, &LostLabels::from_write(work), work))
    })
    .await
}

/// Returns the name of the node that is the primary of a tag.
fn holder_name(model: &Model, cluster: ClusterId, tag: &TagName) -> Option<String> {
    let holder: NodeId = model.fleet.holder(cluster, tag.as_str())?;
    Some(model.fleet.node(holder)?.display_name())
}

/// Returns the name or uuid of the node in a body `{"node": NODE}`. Fails if the body has another field.
fn read_node(request: &HttpRequest) -> Result<String, ApiError> {
    let mut body = request.object()?;
    let node = body.remove("node");
    if let Some(unknown_field) = body.keys().next() {
        let message = format!("this call accepts {{\"node\": NODE}}, not {}; nothing was changed", quote(unknown_field));
        return Err(ApiError::new(ErrorType::FieldUnknown, message).field(unknown_field.clone()));
    }
    match node {
        Some(Value::String(name)) if !is_blank(&name) => Ok(name),
        None | Some(Value::Null) => {
            let message = "this call accepts {\"node\": NODE}, the name or uuid of the node that becomes the primary of the tag";
            Err(ApiError::new(ErrorType::FieldMissing, message).field("node"))
        }
        Some(_) => {
            let message = "node is the name or uuid of a node; nothing was changed";
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("node"))
        }
    }
}
