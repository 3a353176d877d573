//! What a node is to be, as resolve answers it: in the plain form in which three programs are compared, and with the
//! origin of each value.

use std::fmt::Display;

use serde_json::{Map, Value, json};
use stemma_core::catalog::Meant;
use stemma_core::digest::{DigestVersion, TaskDigest};
use stemma_core::explain;
use stemma_core::finding::has_error;
use stemma_core::fleet::Missing;
use stemma_core::graph::ClusterGraph;
use stemma_core::labels::Folded;
use stemma_core::lifecycle;
use stemma_core::object::{ClusterId, ClusterSpec, NodeId, NodeSpec};
use stemma_core::resolve::{Answer, PlainAnswer, Resolution};
use stemma_wire::error::{ApiError, ErrorType};

use super::objects::Shown;
use super::{state, view};
use crate::api::Api;
use crate::api::http::request;
use crate::api::http::request::{Reply, Request};
use crate::cache::{Model, released};
use crate::reconcile::waves;

/// `GET /v1/nodes/{node}/resolved`.
pub(super) fn get(api: &Api, request: &Request) -> request::HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let resolution = model.resolve(node.meta.uuid);
    match &resolution {
        Resolution::Complete(answer) => {
            let mut body = body(&model, answer);
            body["findings"] = json!(state::findings(api, &model, &node, &resolution, &Meant::default()));
            body["waits"] = waits(api, &model, answer.id()).into();
            Ok(Reply::ok(body))
        }
        Resolution::Incomplete(missing) => Err(incomplete(missing)),
    }
}

/// The refusal where something is missing: such an answer is never sent to a host either.
pub(super) fn incomplete(missing: &[Missing]) -> ApiError {
    let listed: Vec<String> = missing.iter().map(ToString::to_string).collect();
    ApiError::new(
        ErrorType::ObjectInvalid,
        format!("the node can't be resolved: {}; its host stays as it is", listed.join("; ")),
    )
}

fn body(model: &Model, answer: &Answer) -> Value {
    let mut body = json!(PlainAnswer::of(answer));
    body["node"] = answer.node().display_name().into();
    body["uuid"] = answer.node().meta.uuid.to_string().into();
    body["revision"] = model.revision.get().into();
    body["nodegroup"] = json!(answer.place());
    body["mode"] = json!({"value": answer.mode().value, "origin": answer.mode().origin.to_string()});
    body["parameters"] = json!(view::effective(&answer.parameters()));
    body["origins"] = origins(answer);
    body["lifecycle"] = limits(answer);
    body["trait_sources"] = json!(state::trait_sources(&answer.traits()));
    body["host_labels"] = json!(answer.host_labels().decide(&answer.labels()).flows);
    body["unmet"] =
        answer.unmet().iter().map(|unmet| json!({"key": unmet.key, "expression": unmet.expression})).collect();
    let release = answer.fold().and_then(|fold| fold.release.as_ref());
    body["release"] = json!(
        release.map(|release| json!({"name": release.value.name.to_string(), "origin": release.origin.to_string()}))
    );
    if let Some(set) = answer.task_set() {
        body["inputs"] = json!(set.inputs());
        body["digest_version"] = DigestVersion::NEWEST.number().into();
    }
    body["released"] = json!(model.released.get(&answer.node().meta.uuid).map(|released| json!({
        "revision": released.revision, "at": view::time(released.at), "release": released.release, "tasks": released::runs(model, released).collect::<Vec<_>>(),
        "task_digest": TaskDigest(released.head().task_digest),
    })));
    body
}

/// The barriers that are shut for a node, with the nodes that they wait for and why each has not opened them.
pub(super) fn waits(api: &Api, model: &Model, node: NodeId) -> Vec<Value> {
    let shut = api.reconciler.as_ref().map(|reconciler| reconciler.shut(model, node)).unwrap_or_default();
    let of = |one: &waves::Shut, awaited: &waves::AwaitedNode| {
        let name = state::name_of(model, awaited.node);
        json!({"node": name, "why": state::why_not_done(api, model, one, awaited)})
    };
    let row = |one: &waves::Shut| {
        let nodes: Vec<Value> = one.nodes.iter().map(|awaited| of(one, awaited)).collect();
        json!({"task": one.barrier.task, "selector": one.barrier.selector, "waits_for": nodes, "count": one.count})
    };
    shut.iter().map(row).collect()
}

fn origins(answer: &Answer) -> Value {
    fn of<K: Ord + Clone + Display, V: Clone + PartialEq>(map: &Folded<K, V>) -> Map<String, Value> {
        map.iter().map(|(key, said)| (key.to_string(), said.origin.to_string().into())).collect()
    }
    json!({
        "labels": of(&answer.labels()), "annotations": of(&answer.annotations()), "parameters": of(&answer.parameters()),
        "tags": tag_origins(answer),
    })
}

fn tag_origins(answer: &Answer) -> Value {
    let Some(table) = answer.fold().and_then(|fold| fold.table.as_ref()) else { return json!({}) };
    let tags = table.effective_tags(&answer.roles(), &answer.node().spec.tags);
    tags.iter().map(|(tag, origin)| (tag.to_string(), explain::tag_origin(origin))).collect::<Map<_, _>>().into()
}

fn limits(answer: &Answer) -> Value {
    let seconds = |limit| match limit {
        lifecycle::Limit::Forever => Value::Null,
        lifecycle::Limit::Within(time) => time.as_secs().into(),
    };
    let rows = answer.limits().each().into_iter().map(|(field, limit)| {
        let origin = match limit.origin {
            lifecycle::Origin::Default => "default".to_owned(),
            lifecycle::Origin::Level(level) => level.to_string(),
        };
        (field.name().to_owned(), json!({"seconds": seconds(limit.value), "origin": origin}))
    });
    rows.collect::<Map<_, _>>().into()
}

/// `GET /v1/clusters/{cluster}/validate`: the pre-flight check.
pub(super) fn validate_cluster(api: &Api, request: &Request) -> request::HandlerResult {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let findings = super::findings::of_cluster(api, &model, ClusterId(cluster.meta.uuid));
    let order = ClusterGraph::of(&model.fleet, ClusterId(cluster.meta.uuid)).check();
    let result = order.is_ok() && !has_error(&findings);
    let reason = order.err().map(|cycle| cycle.to_string());
    Ok(Reply::ok(json!({"cluster": cluster.meta.name, "result": result, "reason": reason, "findings": findings})))
}
