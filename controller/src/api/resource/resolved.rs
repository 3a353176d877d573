//! What resolve computes for a node, with the origin of each value. The form is that in which the tests compare several
//! programs that resolve nodes.

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

/// `GET /v1/nodes/{node}/resolved`: shows all that resolve computes for the node, its findings, and what its tasks wait
/// for.
pub(super) fn get(api: &Api, request: &HttpRequest) -> request::HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let resolution = model.resolve(node.meta.uuid);
    match &resolution {
        Resolution::Complete(answer) => {
            let mut body = resolved_json(&model, answer);
            body["findings"] = json!(state::findings(api, &model, &node, &resolution, &SuggestionCache::default()));
            body["waits"] = shut_barriers(api, &model, answer.id()).into();
            Ok(HttpResponse::ok(body))
        }
        Resolution::Incomplete(missing) => Err(incomplete_error(missing)),
    }
}

/// Returns the error for a node with a missing parent. Without the parent, resolve has no complete result that could be
/// shown or sent to the host.
pub(super) fn incomplete_error(missing: &[MissingParent]) -> ApiError {
    let listed: Vec<String> = missing.iter().map(ToString::to_string).collect();
    ApiError::new(
        ErrorType::ObjectInvalid,
        format!("the node can't be resolved: {}; its host is left unchanged", listed.join("; ")),
    )
}

/// Returns what resolve computed for a node, as the API shows it.
fn resolved_json(model: &Model, answer: &ResolvedNode) -> Value {
    let mut body = json!(NodeOutput::from_node(answer));
    body["node"] = answer.node().display_name().into();
    body["uuid"] = answer.node().meta.uuid.to_string().into();
    body["revision"] = model.revision.get().into();
    body["nodegroup"] = json!(answer.group_path());
    body["mode"] = json!({"value": answer.mode().value, "origin": answer.mode().origin.to_string()});
    body["parameters"] = json!(view::effective_values(&answer.parameters()));
    body["origins"] = origins_json(answer);
    body["lifecycle"] = limits(answer);
    body["trait_sources"] = json!(state::trait_sources(&answer.traits()));
    body["host_labels"] = json!(answer.host_labels().map_labels(&answer.labels()).exported);
    body["unmet"] =
        answer.unmet_requirements().iter().map(|unmet| json!({"key": unmet.key, "expression": unmet.expression})).collect();
    let release = answer.resolved_group().and_then(|fold| fold.release.as_ref());
    body["release"] =
        json!(release.map(|release| json!({"name": release.value.name.to_string(), "origin": release.origin.to_string()})));
    if let Some(set) = answer.task_set() {
        body["inputs"] = json!(set.inputs());
        body["digest_version"] = DigestVersion::LATEST.number().into();
    }
    body["released"] = json!(model.released.get(&answer.node().meta.uuid).map(|released| json!({
        "revision": released.revision, "at": view::format_time(released.at), "release": released.release, "tasks": released::task_ids(model, released).collect::<Vec<_>>(),
        "task_digest": TaskDigest(released.base().task_digest),
    })));
    body
}

/// Returns the closed barriers of a node, each with the nodes that it waits for, and why each of those nodes has not
/// completed what the barrier waits for.
pub(super) fn shut_barriers(api: &Api, model: &Model, node: NodeId) -> Vec<Value> {
    let shut = api.reconciler.as_ref().map(|reconciler| reconciler.shut_barriers(model, node)).unwrap_or_default();
    let node_json = |barrier: &waves::ShutBarrier, awaited: &waves::AwaitedNode| {
        let name = state::node_name(model, awaited.node);
        json!({"node": name, "why": state::awaited_reason(api, model, barrier, awaited)})
    };
    let row = |one: &waves::ShutBarrier| {
        let nodes: Vec<Value> = one.awaited_nodes.iter().map(|awaited| node_json(one, awaited)).collect();
        json!({"task": one.barrier.task, "selector": one.barrier.selector, "waits_for": nodes, "count": one.awaited_count})
    };
    shut.iter().map(row).collect()
}

/// Returns the origin of each effective label, annotation, parameter and tag of a node.
fn origins_json(answer: &ResolvedNode) -> Value {
    fn map_origins<K: Ord + Clone + Display, V: Clone + PartialEq>(map: &EffectiveMap<K, V>) -> Map<String, Value> {
        map.iter().map(|(key, entry)| (key.to_string(), entry.origin.to_string().into())).collect()
    }
    json!({
        "labels": map_origins(&answer.labels()), "annotations": map_origins(&answer.annotations()), "parameters": map_origins(&answer.parameters()),
        "tags": tag_origins(answer),
    })
}

fn tag_origins(answer: &ResolvedNode) -> Value {
    let Some(table) = answer.resolved_group().and_then(|fold| fold.role_table.as_ref()) else { return json!({}) };
    let tags = table.effective_tags(&answer.roles(), &answer.node().spec.tags);
    tags.iter().map(|(tag, origin)| (tag.to_string(), explain::tag_origin_json(origin))).collect::<Map<_, _>>().into()
}

/// Returns the lifecycle limits of a node, each in seconds and with its origin. `null` means no limit.
fn limits(answer: &ResolvedNode) -> Value {
    let seconds = |limit| match limit {
        lifecycle::Limit::Forever => Value::Null,
        lifecycle::Limit::Within(time) => time.as_secs().into(),
    };
    let rows = answer.lifecycle_limits().by_field().into_iter().map(|(field, limit)| {
        let origin = match limit.origin {
            lifecycle::LimitOrigin::Default => "default".to_owned(),
            lifecycle::LimitOrigin::Level(level) => level.to_string(),
        };
        (field.name().to_owned(), json!({"seconds": seconds(limit.value), "origin": origin}))
    });
    rows.collect::<Map<_, _>>().into()
}

/// `GET /v1/clusters/{cluster}/validate`: checks a cluster before its tasks run. The check fails if tasks wait for each
/// other or a finding is an error.
pub(super) fn validate_cluster(api: &Api, request: &HttpRequest) -> request::HandlerResult {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let findings = super::findings::for_cluster(api, &model, ClusterId(cluster.meta.uuid));
    let order = ClusterGraph::from_fleet(&model.fleet, ClusterId(cluster.meta.uuid)).check();
    let result = order.is_ok() && !has_error(&findings);
    let reason = order.err().map(|cycle| cycle.to_string());
    Ok(HttpResponse::ok(json!({"cluster": cluster.meta.name, "result": result, "reason": reason, "findings": findings})))
}
