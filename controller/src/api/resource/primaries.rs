//! Primaries over HTTP: shows which node is the primary of each tag of a cluster and why, and makes another node
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

/// `GET /v1/clusters/{cluster}/primaries`: lists the tags with a primary, each with its node and the reason.
pub(super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let rows: Vec<Value> = primary_tags(&model, &cluster).iter().map(|tag| primary_json(&model, &cluster, tag)).collect();
    Ok(HttpResponse::ok(json!({"primaries": rows})))
}

/// Returns the tags whose primaries a list shows: those that the cluster's release declares with `has_primary`, even if
/// no node has the tag, those that have a primary now, and those in `primaries:` of the cluster.
fn primary_tags(model: &Model, cluster: &Cluster) -> BTreeSet<TagName> {
    let id = ClusterId(cluster.meta.uuid);
    let table = model.fleet.role_table(cluster);
    let declared = table.tags().filter(|(_, tag)| tag.has_primary).map(|(name, _)| name);
    let held = model.fleet.holders(id).map(|(tag, _)| tag);
    declared.chain(held).chain(cluster.spec.primaries.keys()).cloned().collect()
}

/// Returns the row of a tag: which node is its primary, and why.
fn primary_json(model: &Model, cluster: &Cluster, tag: &TagName) -> Value {
    let (fleet, id) = (&model.fleet, ClusterId(cluster.meta.uuid));
    let holder = fleet.holder(id, tag.as_str());
    let node = holder.and_then(|holder| fleet.node(holder));
    let named = fleet.named_primary(id, tag.as_str());
    let is_named = named.and_then(|named| fleet.primary_node(named)).is_some_and(|named| Some(named.id()) == holder);
    let stored = fleet.primaries(id).find(|stored| stored.meta.name == *tag);
    let stored = stored.filter(|stored| Some(stored.spec.node) == holder);
    let chosen_by = match (node, &stored) {
        (None, _) => None,
        (Some(_), _) if is_named => Some("cluster"),
        (Some(_), Some(_)) => Some("choice"),
        (Some(_), None) => Some("name"),
    };
    json!({
        "tag": tag, "node": node.map(|node| node.display_name()), "node_uuid": node.map(|node| node.meta.uuid),
        "parked": node.is_some_and(|node| fleet.parked_by(node).is_some()), "chosen_by": chosen_by, "named": named,
        "since": stored.map(|stored| view::format_time(stored.spec.since)), "epoch": stored.map(|stored| stored.spec.epoch),
    })
}

/// `PUT /v1/clusters/{cluster}/primaries/{tag}` with `{"node": NODE}`: makes the node the primary of the tag.
pub(super) async fn choose(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, wanted) = (request.caller()?, read_node(request)?);
    let tag = TagName::new(request.param("tag"))
        .map_err(|error| ApiError::new(ErrorType::FieldInvalid, format!("{error}; nothing was changed")).field("tag"))?;
    writes::commit(api, request, &caller, |work| {
        let cluster = ClusterSpec::locate(&work.model, request)?;
        let node = work.model.nodes.find(None, &wanted).cloned().ok_or_else(|| {
            let message = format!("there is no node {}; nothing was changed", quote(&wanted));
            ApiError::new(ErrorType::ReferenceDangling, message).field("node")
        })?;
        let id = ClusterId(cluster.meta.uuid);
        let before = holder_name(&work.model, id, &tag);
        work.choose_primary(id, &tag, &node)?;
        work.resolve_tags()?;
        let after = holder_name(&work.model, id, &tag);
        let held = |name: Option<String>| match name {
            Some(name) => json!({"primaries": {tag.as_str(): name}}),
            None => json!({}),
        };
        let changes = Changes::default().field_changes(&held(before), &held(after));
        let answer = StoredAnswer::json(200, primary_json(&work.model, &cluster, &tag));
        Ok(writes::with_warnings(answer, None, request, changes, &LostLabels::from_write(work), work))
    })
    .await
}

fn holder_name(model: &Model, cluster: ClusterId, tag: &TagName) -> Option<String> {
    let holder: NodeId = model.fleet.holder(cluster, tag.as_str())?;
    Some(model.fleet.node(holder)?.display_name())
}

/// Returns the name or uuid of the node in a body.
fn read_node(request: &HttpRequest) -> Result<String, ApiError> {
    let mut body = request.object()?;
    let node = body.remove("node");
    if let Some(other) = body.keys().next() {
        let message = format!("this call takes {{\"node\": NODE}}, not {}; nothing was changed", quote(other));
        return Err(ApiError::new(ErrorType::FieldUnknown, message).field(other.clone()));
    }
    match node {
        Some(Value::String(name)) if !is_blank(&name) => Ok(name),
        None | Some(Value::Null) => {
            let message = "this call takes {\"node\": NODE}, the name or uuid of the node that is to hold the tag";
            Err(ApiError::new(ErrorType::FieldMissing, message).field("node"))
        }
        Some(_) => {
            let message = "node is the name or uuid of a node; nothing was changed";
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("node"))
        }
    }
}
