//! What a condition may cost over a whole fleet, and who waits for it.

mod served;

use serde_json::{Value, json};
use served::Served;

const NODES: usize = 1000;

/// A fleet whose nodes all look for a node of their own zone.
async fn fleet() -> Served {
    let served = Served::start().await;
    let condition = "nodes(tag='web').exists(n, n.name=='nobody' && n.labels.zone==labels.zone)";
    let tasks = json!([
        {"id": "zone", "type": "shell", "tags": ["web"], "condition": condition, "parameters": {"script": "true"}},
        {"id": "many", "type": "shell", "tags": ["web"], "condition": "size(nodes(tag='web')) > 2", "parameters": {"script": "true"}},
    ]);
    let site = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}}, "tasks": tasks},
        {"kind": "Cluster", "name": "c", "release": "site@1"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]},
    ]);
    served.expect("POST", "/v1/apply", &json!({"objects": site}), 200).await;
    let node = |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "labels": {"zone": format!("zone-{n:040}")}});
    let nodes: Vec<Value> = (0..NODES).map(node).collect();
    served.expect("POST", "/v1/apply", &json!({"objects": nodes}), 200).await;
    served
}

#[tokio::test]
async fn w10_05_a_condition_over_many_nodes_is_bounded_for_all_of_them_and_health_does_not_wait() {
    let served = fleet().await;
    let asking = std::sync::Arc::clone(&served.api());
    let list = tokio::spawn(async move {
        let request = hyper::Request::builder().uri("/v1/nodes").header("host", "localhost");
        let request = request.body(http_body_util::Full::new(bytes::Bytes::new())).expect("a request");
        stemma_controller::api::answer(asking, None, request).await.status().as_u16()
    });
    tokio::task::yield_now().await;
    served.text("/healthz").await;
    assert!(!list.is_finished(), "/healthz is answered while the list is made");
    assert_eq!(list.await.expect("no panic"), 200);

    let node = served.get("/v1/nodes/n7").await;
    let said = node["findings"][0]["message"].as_str().unwrap_or_default();
    assert_eq!(node["findings"][0]["code"], "condition.failed", "{node}");
    assert!(said.contains("takes more than 62500 steps over its inputs, the most in a cluster of this size"), "{said}");
    assert!(said.contains("look up fewer nodes"), "{said}");
    let resolved = served.get("/v1/nodes/n7/resolved").await;
    let skipped = resolved["skipped"].to_string();
    assert!(skipped.contains("zone") && !skipped.contains("many"), "what all nodes share is decided once: {resolved}");
}
