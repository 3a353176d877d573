//! What the order's vectors and its property do not have: groups of one cluster under releases of their own, and tasks that wait for
//! themselves. Expected pairs by hand.

use serde_json::{Value, json};
use stemma_core::graph::ClusterGraph;

use crate::made::{Made, site};

fn graph(documents: &[Value]) -> ClusterGraph {
    let made = Made::of(documents);
    ClusterGraph::of(&made.fleet, made.cluster())
}

/// The pairs as `node/task before node/task`.
fn pairs(graph: &ClusterGraph) -> Vec<String> {
    let name = |(node, task): &(Option<std::sync::Arc<str>>, std::sync::Arc<str>)| {
        format!("{}/{task}", node.as_deref().unwrap_or("stage"))
    };
    graph.order_pairs().iter().map(|(before, after)| format!("{} before {}", name(before), name(after))).collect()
}

#[test]
fn a_task_of_another_release_is_found_by_its_name() {
    let mut documents = site(
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
        pairs(&graph(&documents)),
        ["db-10/base before web-1/late", "db-2/base before web-1/late", "web-1/base before web-1/late"]
    );
}

#[test]
fn a_task_that_waits_for_itself_elsewhere_makes_a_cycle_and_no_pair_of_one() {
    let waits =
        json!([{"id": "turn", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "turn", "role": "*"}]}]);
    let mut documents = site(&json!({}), &waits);
    documents.push(json!({"kind": "Node", "name": "web-2", "nodegroup": "prod/webs"}));
    let both = graph(&documents);
    assert_eq!(pairs(&both), ["web-1/turn before web-2/turn", "web-2/turn before web-1/turn"]);
    assert!(both.check().is_err());
    documents.push(json!({"kind": "Node", "name": "web-3", "nodegroup": "prod/webs"}));
    let three = graph(&documents);
    assert_eq!(
        three.edges.iter().map(|edge| edge.pair_count(&three)).sum::<usize>(),
        6,
        "each of three for two others"
    );
}

#[test]
fn a_pair_that_an_edge_stands_for_anyway_is_counted_once() {
    let tasks = json!([
        {"id": "base", "type": "puppet", "tags": ["mysql"]},
        {"id": "late", "type": "puppet", "tags": ["nginx"], "cross_depends": [
            {"name": "base", "role": "*"},
            {"name": "base", "tags": ["mysql"], "policy": "any"},
        ]},
    ]);
    let graph = graph(&site(&json!({}), &tasks));
    assert_eq!(pairs(&graph), ["db-10/base before web-1/late", "db-2/base before web-1/late"]);
    assert!(graph.singles.is_empty(), "the edge stands for it");
    assert_eq!(graph.edges.iter().map(|edge| edge.pair_count(&graph)).sum::<usize>(), 2, "each of two for one other");
}

#[test]
fn policy_any_adds_no_pair_on_a_node_whose_own_order_has_it() {
    let tasks = json!([
        {"id": "base", "type": "puppet", "tags": ["mysql"]},
        {"id": "late", "type": "puppet", "tags": ["mysql"], "requires": ["base"],
            "cross_depends": [{"name": "base", "tags": ["mysql"], "policy": "any"}]},
    ]);
    let graph = graph(&site(&json!({}), &tasks));
    let singles: Vec<_> =
        graph.singles.iter().map(|(before, after)| (before.0.as_deref(), after.0.as_deref())).collect();
    assert_eq!(singles, [(Some("db-2"), Some("db-10"))], "on db-2 `requires` has the pair already");
    assert_eq!(
        pairs(&graph),
        ["db-10/base before db-10/late", "db-2/base before db-10/late", "db-2/base before db-2/late"]
    );
}
