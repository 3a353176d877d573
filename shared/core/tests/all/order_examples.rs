//! Cases that the order's vectors and property lack: groups of one cluster with different releases, and tasks that wait
//! for themselves. The expected pairs are handwritten.

use serde_json::{Value, json};
use stemma_core::graph::ClusterGraph;

use crate::fleet_fixture::{FleetFixture, site_manifests};

fn build_graph(documents: &[Value]) -> ClusterGraph {
    let made = FleetFixture::from_manifests(documents);
    ClusterGraph::from_fleet(&made.fleet, made.cluster_id())
}

/// Returns the pairs as `node/task before node/task`.
fn ordered_pairs(graph: &ClusterGraph) -> Vec<String> {
    let name = |(node, task): &(Option<std::sync::Arc<str>>, std::sync::Arc<str>)| {
        format!("{}/{task}", node.as_deref().unwrap_or("stage"))
    };
    graph.order_pairs().iter().map(|(before, after)| format!("{} before {}", name(before), name(after))).collect()
}

#[test]
fn cross_dependency_finds_task_of_another_release_by_name() {
    let mut documents = site_manifests(
        &json!({}),
        &json!([
            {"id": "ahead", "type": "puppet", "tags": ["mysql"]},
            {"id": "base", "type": "puppet", "tags": ["mysql"]},
        ]),
    );
    let mut other = documents[1].clone();
    other["name"] = json!("web");
    other["tasks"] = json!([
        {"id": "base", "type": "puppet", "tags": ["nginx"]},
        {"id": "late", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "base", "role": "*"}]},
    ]);
    documents[4]["release"] = json!("web@1");
    documents.push(other);
    assert_eq!(
        ordered_pairs(&build_graph(&documents)),
        ["db-10/base before web-1/late", "db-2/base before web-1/late", "web-1/base before web-1/late"]
    );
}

#[test]
fn self_crossing_task_makes_cycle() {
    let waits = json!([{"id": "turn", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "turn", "role": "*"}]}]);
    let mut documents = site_manifests(&json!({}), &waits);
    documents.push(json!({"kind": "Node", "name": "web-2", "nodegroup": "prod/webs"}));
    let both = build_graph(&documents);
    assert_eq!(ordered_pairs(&both), ["web-1/turn before web-2/turn", "web-2/turn before web-1/turn"]);
    assert!(both.check().is_err());
    documents.push(json!({"kind": "Node", "name": "web-3", "nodegroup": "prod/webs"}));
    let three = build_graph(&documents);
    assert_eq!(three.edges.iter().map(|edge| edge.pair_count(&three)).sum::<usize>(), 6, "each of three for two others");
}

#[test]
fn redundant_pair_is_counted_once() {
    let tasks = json!([
        {"id": "base", "type": "puppet", "tags": ["mysql"]},
        {"id": "late", "type": "puppet", "tags": ["nginx"], "cross_depends": [
            {"name": "base", "role": "*"},
            {"name": "base", "tags": ["mysql"], "policy": "any"},
        ]},
    ]);
    let graph = build_graph(&site_manifests(&json!({}), &tasks));
    assert_eq!(ordered_pairs(&graph), ["db-10/base before web-1/late", "db-2/base before web-1/late"]);
    assert!(graph.single_pairs.is_empty(), "the edge stands for it");
    assert_eq!(graph.edges.iter().map(|edge| edge.pair_count(&graph)).sum::<usize>(), 2, "each of two for one other");
}

#[test]
fn policy_any_adds_no_pair_implied_by_node_order() {
    let tasks = json!([
        {"id": "base", "type": "puppet", "tags": ["mysql"]},
        {"id": "late", "type": "puppet", "tags": ["mysql"], "requires": ["base"],
            "cross_depends": [{"name": "base", "tags": ["mysql"], "policy": "any"}]},
    ]);
    let graph = build_graph(&site_manifests(&json!({}), &tasks));
    let singles: Vec<_> = graph.single_pairs.iter().map(|(before, after)| (before.0.as_deref(), after.0.as_deref())).collect();
    assert_eq!(singles, [(Some("db-2"), Some("db-10"))], "on db-2 `requires` has the pair already");
    assert_eq!(
        ordered_pairs(&graph),
        ["db-10/base before db-10/late", "db-2/base before db-10/late", "db-2/base before db-2/late"]
    );
}
