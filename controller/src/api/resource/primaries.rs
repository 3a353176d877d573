//! Primaries over HTTP: who holds which tag of a cluster and why, and who is to hold one.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemma_core::name::{TagName, is_blank};
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, NodeId};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::changes::{Changes, LostLabels};
use super::objects::Shown;
use super::{view, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;

/// `GET /v1/clusters/{cluster}/primaries`.
pub(super) fn list(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let rows: Vec<Value> = tags(&model, &cluster).iter().map(|tag| shown(&model, &cluster, tag)).collect();
    Ok(Reply::ok(json!({"primaries": rows})))
}

/// The tags of a cluster that have a primary, whether or not anybody holds it, and those for which the cluster names one.
fn tags(model: &Model, cluster: &Cluster) -> BTreeSet<TagName> {
    let id = ClusterId(cluster.meta.uuid);
    let table = model.fleet.cluster_table(cluster);
    let declared = table.tags().filter(|(_, tag)| tag.has_primary).map(|(name, _)| name);
    let held = model.fleet.holders(id).map(|(tag, _)| tag);
    declared.chain(held).chain(cluster.spec.primaries.keys()).cloned().collect()
}

/// Who holds a tag, and why.
fn shown(model: &Model, cluster: &Cluster, tag: &TagName) -> Value {
    let (fleet, id) = (&model.fleet, ClusterId(cluster.meta.uuid));
    let holder = fleet.holder(id, tag.as_str());
    let node = holder.and_then(|holder| fleet.node(holder));
    let named = fleet.named_primary(id, tag.as_str());
    let is_named = named.and_then(|named| fleet.node_meant(named)).is_some_and(|named| Some(named.id()) == holder);
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
        "parked": node.is_some_and(|node| fleet.parked(node).is_some()), "chosen_by": chosen_by, "named": named,
        "since": stored.map(|stored| view::time(stored.spec.since)), "epoch": stored.map(|stored| stored.spec.epoch),
    })
}

/// `PUT /v1/clusters/{cluster}/primaries/{tag}`: `{"node": NODE}`.
pub(super) async fn choose(api: &Api, request: &Request) -> HandlerResult {
    let (caller, wanted) = (request.caller()?, read_node(request)?);
    let tag = TagName::new(request.part("tag")).map_err(|error| {
        ApiError::new(ErrorType::FieldInvalid, format!("{error}; nothing was changed")).field("tag")
    })?;
    writes::commit(api, request, &caller, |work| {
        let cluster = ClusterSpec::locate(&work.model, request)?;
        let node = work.model.nodes.find(None, &wanted).cloned().ok_or_else(|| {
            let message = format!("there is no node {}; nothing was changed", quote(&wanted));
            ApiError::new(ErrorType::ReferenceDangling, message).field("node")
        })?;
        let id = ClusterId(cluster.meta.uuid);
        let before = holder_name(&work.model, id, &tag);
        work.choose_primary(id, &tag, &node)?;
        work.settle_tags()?;
        let after = holder_name(&work.model, id, &tag);
        let held = |name: Option<String>| match name {
            Some(name) => json!({"primaries": {tag.as_str(): name}}),
            None => json!({}),
        };
        let changes = Changes::default().between(&held(before), &held(after));
        let answer = Answer::json(200, shown(&work.model, &cluster, &tag));
        Ok(writes::warn(answer, None, request, changes, &LostLabels::by(work), work))
    })
    .await
}

fn holder_name(model: &Model, cluster: ClusterId, tag: &TagName) -> Option<String> {
    let holder: NodeId = model.fleet.holder(cluster, tag.as_str())?;
    Some(model.fleet.node(holder)?.display_name())
}

/// The node that a body names, by name or by uuid.
fn read_node(request: &Request) -> Result<String, ApiError> {
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
