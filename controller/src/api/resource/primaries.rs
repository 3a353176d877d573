//! Primaries over HTTP: who holds which tag of a cluster and why, who is to hold one, and which of them a write moves.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::fleet::MovedPrimary;
use stemma_core::name::TagName;
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, Node, NodeId};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::changes::{Changes, LostLabels};
use super::objects::Shown;
use super::{view, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::work::Work;

/// How many primaries that a write moves one answer lists.
const MOST_MOVED: usize = 500;

/// The primaries that a write takes from their holders.
pub(super) struct MovedPrimaries {
    rows: Vec<MovedRow>,
    left_out: usize,
}

/// One of them, by names.
struct MovedRow {
    cluster: String,
    tag: TagName,
    from: String,
    to: Option<String>,
}

impl MovedPrimaries {
    /// The member of an answer that lists them. A cluster has a field `primaries` of its own.
    pub(super) const MEMBER: &'static str = "moved_primaries";

    /// Those of a write so far.
    pub(super) fn by(work: &Work<'_>) -> Self {
        let (before, after) = (&work.before().fleet, &work.model.fleet);
        let name = |node: Option<&Arc<Node>>| node.map(|node| node.display_name()).unwrap_or_default();
        let row = |moved: MovedPrimary| {
            let cluster = after.cluster(moved.cluster).or_else(|| before.cluster(moved.cluster));
            MovedRow {
                cluster: cluster.map(|cluster| cluster.meta.name.to_string()).unwrap_or_default(),
                from: name(before.node(moved.from)),
                to: moved.to.map(|to| name(after.node(to))),
                tag: moved.tag,
            }
        };
        let mut all = work.moved_primaries();
        let left_out = all.len().saturating_sub(MOST_MOVED);
        all.truncate(MOST_MOVED);
        Self { rows: all.into_iter().map(row).collect(), left_out }
    }

    /// Whether the write moves none.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As an answer lists them; those beyond what it lists are counted in one entry.
    pub(super) fn to_json(&self) -> Value {
        let row = |row: &MovedRow| json!({"cluster": row.cluster, "tag": row.tag, "from": row.from, "to": row.to});
        let more = (self.left_out > 0).then(|| json!({"left_out": self.left_out}));
        self.rows.iter().map(row).chain(more).collect()
    }

    /// A sentence for each, for who is told of them in no body.
    pub(super) fn sentences(&self, request: &Request) -> Vec<String> {
        let is_in_body = request.prefers_body() && !request.is_of_openstack();
        let sentence = |MovedRow { cluster, tag, from, to }: &MovedRow| match to {
            Some(to) => format!("the primary of tag {tag} in cluster {cluster} moves from {from} to {to}"),
            None => format!("nobody holds tag {tag} of cluster {cluster} as primary any more; {from} did"),
        };
        self.rows.iter().filter(|_| !is_in_body).map(sentence).collect()
    }
}

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
    let is_named = named.and_then(|name| fleet.node_named(name)).is_some_and(|named| Some(named.id()) == holder);
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
        Some(Value::String(name)) if !name.trim().is_empty() => Ok(name),
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
