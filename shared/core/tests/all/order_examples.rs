//! Cases of the order of tasks that other tests lack: groups of one cluster with different releases, tasks that wait
//! for the same task on other nodes, and pairs that two dependencies give. The expected pairs are handwritten.

use serde_json::{Value, json};
use stemma_core::graph::ClusterGraph;

use crate::fleet_fixture::{FleetFixture, site_manifests};

/// Builds the graph of the order of tasks of the first cluster.
fn build_graph(documents: &[Value]) -> ClusterGraph {
    let fixture = FleetFixture::from_manifests(documents);
    ClusterGraph::from_fleet(&fixture.fleet, fixture.cluster_id())
}

/// Returns the pairs of the order as `node/task before node/task`. A stage is on no node and is shown as `stage/task`.
fn ordered_pairs(graph: &ClusterGraph) -> Vec<String> {
    let name = |(node, task): &(Option<std::sync::Arc<str>>, std::sync::Arc<str>)| {
        format!("{}/{task}", node.as_deref().unwrap_or("stage"))
    };
    graph.order_pairs().iter().map(|(first, second)| format!("{} before {}", name(first), name(second))).collect()
}

/// Document 1 is the release of the databases. Document 4 is the group of web-1, which gets the other release.
#[test]
fn cross_dependency_finds_task_of_another_release_by_name() {
    let mut documents = site_manifests(
        &json!({}),
        &json!([
            {"id": "ahead", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"]},
            {"id": "base", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"]},
        ]),
    );
    let mut web_release = documents[1].clone();
    web_release["name"] = json!("web");
    web_release["tasks"] = json!([
        {"id": "base", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"]},
        {"id": "late", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "cross_depends": [{"name": "base", "role": "*"}]},
    ]);
    documents[4]["release"] = json!("web@1");
    documents.push(web_release);
    assert_eq!(
        ordered_pairs(&build_graph(&documents)),
        ["db-10/base before web-1/late", "db-2/base before web-1/late", "web-1/base before web-1/late"]
    );
}

/// The task waits for itself on all other nodes with a role. Only the nodes of group `webs` have the task.
#[test]
fn cross_dependency_on_same_task_makes_cycle() {
    let tasks = json!([{"id": "turn", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "cross_depends": [{"name": "turn", "role": "*"}]}]);
    let mut documents = site_manifests(&json!({}), &tasks);
    documents.push(json!({"kind": "Node", "name": "web-2", "nodegroup": "prod/webs"}));
    let two_nodes = build_graph(&documents);
    assert_eq!(ordered_pairs(&two_nodes), ["web-1/turn before web-2/turn", "web-2/turn before web-1/turn"]);
    assert!(two_nodes.check().is_err());
    documents.push(json!({"kind": "Node", "name": "web-3", "nodegroup": "prod/webs"}));
    let three_nodes = build_graph(&documents);
    assert_eq!(
        three_nodes.edges.iter().map(|edge| edge.pair_count(&three_nodes)).sum::<usize>(),
        6,
        "each of three nodes waits for two others"
    );
}

/// An edge orders a task on all nodes of one class (nodes with the same profile) before a task on other nodes.
/// `single_pairs` contains only the pairs from policy `any` that no edge contains.
#[test]
fn pair_of_two_dependencies_is_counted_once() {
    let tasks = json!([
        {"id": "base", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"]},
        {"id": "late", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "cross_depends": [
            {"name": "base", "role": "*"},
            {"name": "base", "tags": ["mysql"], "policy": "any"},
        ]},
    ]);
    let graph = build_graph(&site_manifests(&json!({}), &tasks));
    assert_eq!(ordered_pairs(&graph), ["db-10/base before web-1/late", "db-2/base before web-1/late"]);
    assert!(graph.single_pairs.is_empty(), "an edge contains the pair of policy any");
    assert_eq!(graph.edges.iter().map(|edge| edge.pair_count(&graph)).sum::<usize>(), 2, "web-1 waits for two nodes");
}

/// With policy `any`, a task waits only for the first node by name, here db-2. `single_pairs` contains the pairs of
/// policy `any` that no other dependency gives.
#[test]
fn policy_any_adds_no_pair_implied_by_node_order() {
    let tasks = json!([
        {"id": "base", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"]},
        {"id": "late", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"], "requires": ["base"],
            "cross_depends": [{"name": "base", "tags": ["mysql"], "policy": "any"}]},
    ]);
    let graph = build_graph(&site_manifests(&json!({}), &tasks));
    let single_pairs: Vec<_> =
        graph.single_pairs.iter().map(|(first, second)| (first.0.as_deref(), second.0.as_deref())).collect();
    assert_eq!(single_pairs, [(Some("db-2"), Some("db-10"))], "on db-2, `requires` already gives the pair");
    assert_eq!(
        ordered_pairs(&graph),
        ["db-10/base before db-10/late", "db-2/base before db-10/late", "db-2/base before db-2/late"]
    );
}
