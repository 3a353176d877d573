//! The API's form of what Stemma resolves for a node: all effective values, with their origins. A test compares it with
//! the results of `stemma resolve` and of a host. The module also contains the check of a whole cluster.

use std::fmt::Display;

use serde_json::{Map, Value, json};
use stemma_core::catalog::SuggestionCache;
use stemma_core::digest::{DigestVersion, TaskDigest};
use stemma_core::explain;
use stemma_core::finding::has_error;
use stemma_core::fleet::MissingParent;
use stemma_core::graph::ClusterGraph;
use stemma_core::labels::EffectiveMap;
use stemma_core::lifecycle;
use stemma_core::object::{ClusterId, ClusterSpec, NodeId, NodeSpec};
use stemma_core::resolve::{NodeOutput, Resolution, ResolvedNode};
use stemma_wire::error::{ApiError, ErrorType};

use super::objects::ApiResource;
use super::{state, view};
use crate::api::Api;
use crate::api::http::request;
use crate::api::http::request::{HttpRequest, HttpResponse};
use crate::cache::{Model, released};
use crate::reconcile::waves;

/// Handles `GET /v1/nodes/{node}/resolved`: returns the effective values of the node, its findings, and its closed
/// barriers. Fails if a parent of the node is missing.
pub(super) fn get(api: &Api, request: &HttpRequest) -> request::HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let resolution = model.resolve(node.meta.uuid);
    match &resolution {
        Resolution::Complete(resolved_node) => {
            let mut body = resolved_json(&model, resolved_node);
            body["findings"] = json!(state::findings(api, &model, &node, &resolution, &SuggestionCache::default()));
            body["waits"] = closed_barriers(api, &model, resolved_node.id()).into();
            Ok(HttpResponse::ok(body))
        }
        Resolution::Incomplete(missing) => Err(incomplete_error(missing)),
    }
}

/// Returns the error for a node with missing parents. The effective values of such a node are incomplete, so they are
/// neither shown nor sent to its host.
pub(super) fn incomplete_error(missing: &[MissingParent]) -> ApiError {
    let descriptions: Vec<String> = missing.iter().map(ToString::to_string).collect();
    ApiError::new(
        ErrorType::ObjectInvalid,
        format!("the node can't be resolved: {}; its host is left unchanged", descriptions.join("; ")),
    )
}

/// Returns the effective values of a node as the API shows them, with their origins and the task set that was released
/// to the node.
fn resolved_json(model: &Model, resolved_node: &ResolvedNode) -> Value {
    let mut body = json!(NodeOutput::from_node(resolved_node));
    body["node"] = resolved_node.node().display_name().into();
    body["uuid"] = resolved_node.node().meta.uuid.to_string().into();
    body["revision"] = model.revision.get().into();
    body["nodegroup"] = json!(resolved_node.group_path());
    body["mode"] = json!({"value": resolved_node.mode().value, "origin": resolved_node.mode().origin.to_string()});
    body["parameters"] = json!(view::effective_values(&resolved_node.parameters()));
    body["origins"] = origins_json(resolved_node);
    body["lifecycle"] = lifecycle_json(resolved_node);
    body["trait_sources"] = json!(state::trait_sources(&resolved_node.traits()));
    body["host_labels"] = json!(resolved_node.host_labels().map_labels(&resolved_node.labels()).exported);
    body["unmet"] =
        resolved_node.unmet_requirements().iter().map(|item| json!({"key": item.key, "expression": item.expression})).collect();
    let release = resolved_node.resolved_group().and_then(|group| group.release.as_ref());
    body["release"] =
        json!(release.map(|release| json!({"name": release.value.name.to_string(), "origin": release.origin.to_string()})));
    if let Some(task_set) = resolved_node.task_set() {
        body["inputs"] = json!(task_set.inputs());
        body["digest_version"] = DigestVersion::LATEST.number().into();
    }
    body["released"] = json!(model.released.get(&resolved_node.node().meta.uuid).map(|released| json!({
        "revision": released.revision, "at": view::format_time(released.at), "release": released.release, "tasks": released::task_ids(model, released).collect::<Vec<_>>(),
        "task_digest": TaskDigest(released.base().task_digest),
    })));
    body
}

/// Returns the closed barriers of a node. Each entry lists the first few nodes that the barrier waits for, with the
/// reason why each of them has not completed its task yet. `count` is the number of all nodes that it waits for.
pub(super) fn closed_barriers(api: &Api, model: &Model, node: NodeId) -> Vec<Value> {
    let barriers = api.reconciler.as_ref().map(|reconciler| reconciler.closed_barriers(model, node)).unwrap_or_default();
    let node_json = |barrier: &waves::ClosedBarrier, awaited: &waves::AwaitedNode| {
        let name = state::node_name(model, awaited.node);
        json!({"node": name, "why": state::awaited_reason(api, model, barrier, awaited)})
    };
    let barrier_json = |barrier: &waves::ClosedBarrier| {
        let nodes: Vec<Value> = barrier.awaited_nodes.iter().map(|awaited| node_json(barrier, awaited)).collect();
        json!({"task": barrier.barrier.task, "selector": barrier.barrier.selector, "waits_for": nodes, "count": barrier.awaited_count})
    };
    barriers.iter().map(barrier_json).collect()
}

/// Returns the origin of each effective label, annotation, parameter and tag of a node.
fn origins_json(resolved_node: &ResolvedNode) -> Value {
    fn map_origins<K: Ord + Clone + Display, V: Clone + PartialEq>(map: &EffectiveMap<K, V>) -> Map<String, Value> {
        map.iter().map(|(key, entry)| (key.to_string(), entry.origin.to_string().into())).collect()
    }
    json!({
        "labels": map_origins(&resolved_node.labels()), "annotations": map_origins(&resolved_node.annotations()), "parameters": map_origins(&resolved_node.parameters()),
        "tags": tag_origins(resolved_node),
    })
}

/// Returns the origin of each effective tag of a node as JSON, by tag. The result is empty if the node has no release.
fn tag_origins(resolved_node: &ResolvedNode) -> Value {
    let Some(table) = resolved_node.resolved_group().and_then(|group| group.role_table.as_ref()) else { return json!({}) };
    let tags = table.effective_tags(&resolved_node.roles(), &resolved_node.node().spec.tags);
    tags.iter().map(|(tag, origin)| (tag.to_string(), explain::tag_origin_json(origin))).collect::<Map<_, _>>().into()
}

/// Returns the time limits of a node (such as `silent_after`), by field: each in seconds and with its origin. `null`
/// means no limit.
fn lifecycle_json(resolved_node: &ResolvedNode) -> Value {
    let seconds = |limit| match limit {
        lifecycle::Limit::Forever => Value::Null,
        lifecycle::Limit::Within(time) => time.as_secs().into(),
    };
    let entries = resolved_node.lifecycle_limits().by_field().into_iter().map(|(field, limit)| {
        let origin = match limit.origin {
            lifecycle::LimitOrigin::Default => "default".to_owned(),
            lifecycle::LimitOrigin::Level(level) => level.to_string(),
        };
        (field.name().to_owned(), json!({"seconds": seconds(limit.value), "origin": origin}))
    });
    entries.collect::<Map<_, _>>().into()
}

/// Handles `GET /v1/clusters/{cluster}/validate`: checks a cluster before its tasks run. The field `result` is false if
/// tasks wait for each other in a circle, or if a finding is an error.
pub(super) fn validate_cluster(api: &Api, request: &HttpRequest) -> request::HandlerResult {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let findings = super::findings::for_cluster(api, &model, ClusterId(cluster.meta.uuid));
    let order = ClusterGraph::from_fleet(&model.fleet, ClusterId(cluster.meta.uuid)).check();
    let result = order.is_ok() && !has_error(&findings);
    let reason = order.err().map(|cycle| cycle.to_string());
    Ok(HttpResponse::ok(json!({"cluster": cluster.meta.name, "result": result, "reason": reason, "findings": findings})))
}
