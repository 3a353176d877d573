//! Tests that the cost of conditions over a whole fleet is bounded, and that other requests do not wait for their
//! evaluation.

mod served;

use serde_json::{Value, json};
use served::TestApi;
use stemma_counting::{allocated_bytes, allocations, peak_bytes, reset_peak};
use tokio::sync::Mutex;

/// The lock of the running test. One test runs at a time, because the allocations of the whole process are counted.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// Builds a condition that looks for a node of this name in the zone of the evaluated node.
fn zone_lookup(name: &str) -> String {
    format!("nodes(tag='web').exists(n, n.name=='{name}' && n.labels.zone==labels.zone)")
}

/// Builds a task of the tag `web` with this condition.
fn task(id: &str, condition: &str) -> Value {
    json!({"id": id, "type": "shell", "tags": ["web"], "condition": condition, "parameters": {"script": "true"}})
}

/// Starts an API with a cluster of `nodes` nodes, each in its own zone. The release of the cluster has these tasks.
async fn fleet(nodes: usize, tasks: &[Value]) -> TestApi {
    let api = TestApi::start().await;
    let site = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}}, "tasks": tasks},
        {"kind": "Cluster", "name": "c", "release": "site@1"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]},
    ]);
    api.expect("POST", "/v1/apply", &json!({"objects": site}), 200).await;
    let node =
        |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "labels": {"zone": format!("zone-{n:040}")}});
    let nodes: Vec<Value> = (0..nodes).map(node).collect();
    api.expect("POST", "/v1/apply", &json!({"objects": nodes}), 200).await;
    api
}

/// Requests a list of all nodes, and checks that `/healthz` is served before the list is complete.
async fn list_during_health_checks(api: &TestApi) {
    let shared_api = std::sync::Arc::clone(&api.api());
    let list = tokio::spawn(async move {
        let request = hyper::Request::builder().uri("/v1/nodes").header("host", "localhost");
        let request = request.body(http_body_util::Full::new(bytes::Bytes::new())).expect("a request");
        stemma_controller::api::respond(shared_api, None, request).await.status().as_u16()
    });
    tokio::task::yield_now().await;
    api.get_text("/healthz").await;
    assert!(!list.is_finished(), "/healthz is served while the list is built");
    assert_eq!(list.await.expect("no panic"), 200);
}

#[tokio::test]
async fn w10_05_condition_cost_is_bounded_and_excess_conditions_are_named() {
    let _guard = SERIAL.lock().await;
    // Each condition costs as much as a scan of all nodes, although it is true for the first node.
    let condition = |n| format!("nodes(tag='web').exists(n, n.labels.zone==labels.zone || n.name!='nobody-{n}')");
    let mut tasks: Vec<Value> = (0..64).map(|n| task(&format!("t-{n:02}"), &condition(n))).collect();
    tasks.push(task("z", "labels.zone != ''"));
    let api = fleet(200, &tasks).await;
    list_during_health_checks(&api).await;
    let node = api.get("/v1/nodes/n7").await;
    let findings = node["findings"].as_array().expect("findings");
    assert!(findings.len() > 32 && findings.len() < 64, "{} of 64 conditions exceed the limit", findings.len());
    let first_finding = &findings[0];
    assert_eq!((&first_finding["code"], &first_finding["severity"]), (&json!("condition.failed"), &json!("warning")));
    let message = first_finding["message"].as_str().unwrap_or_default();
    assert!(message.contains("more than the conditions of the tasks before it leave"), "{message}");
    // The number is the limit for the whole fleet.
    let reveals_fleet = message.contains("250000") || message.contains("fleet");
    assert!(!reveals_fleet, "a caller that is bound to a cluster learns nothing about the fleet: {message}");
    assert!(message.contains("place the task by a tag"), "{message}");
    let resolved = api.get("/v1/nodes/n7/resolved").await;
    let tasks: Vec<&str> = resolved["tasks"].as_array().expect("tasks").iter().filter_map(Value::as_str).collect();
    assert_eq!((tasks.first(), tasks.last()), (Some(&"t-00"), Some(&"z")), "the first task, and the task of low cost");
    assert_eq!(resolved["skipped"].as_object().map(serde_json::Map::len), Some(findings.len()), "{resolved}");
}

/// For each of 1000 nodes, the condition of task `zone` scans all nodes, so it exceeds the limit and stays undecided.
/// The condition of task `many` has the same inputs for all nodes, so it is decided once.
#[tokio::test]
async fn w10_05_condition_cost_over_nodes_is_bounded_without_delaying_health() {
    let _guard = SERIAL.lock().await;
    let tasks = [task("zone", &zone_lookup("nobody")), task("many", "size(nodes(tag='web')) > 2")];
    let api = fleet(1000, &tasks).await;
    list_during_health_checks(&api).await;

    let node = api.get("/v1/nodes/n7").await;
    let message = node["findings"][0]["message"].as_str().unwrap_or_default();
    assert_eq!(node["findings"][0]["code"], "condition.failed", "{node}");
    assert!(message.contains("more than 62500 steps over its inputs, the limit in a cluster of this size"), "{message}");
    assert!(message.contains("look up fewer nodes"), "{message}");
    let resolved = api.get("/v1/nodes/n7/resolved").await;
    let skipped = resolved["skipped"].to_string();
    assert!(
        skipped.contains("zone") && !skipped.contains("many"),
        "a condition with the same inputs for all nodes is decided once: {resolved}"
    );
}

#[tokio::test]
async fn w10_05_condition_with_large_text_is_bounded() {
    const TEXT_BYTES: usize = 60_000;
    let _guard = SERIAL.lock().await;
    let condition = |n: usize| format!("params.big != '' && node.name != 'q{n:03}'");
    let tasks: Vec<Value> = (0..100).map(|n| task(&format!("t-{n:03}"), &condition(n))).collect();
    let text = "x".repeat(TEXT_BYTES);
    for (case, cluster_parameters, node_parameters) in
        [("one text for all nodes", json!({"big": text}), json!({})), ("one text for each node", json!({}), json!({"big": text}))]
    {
        let api = fleet(0, &tasks).await;
        api.expect("PATCH", "/v1/clusters/c/parameters", &cluster_parameters, 200).await;
        let node = |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "parameters": node_parameters});
        let nodes: Vec<Value> = (0..100).map(node).collect();
        let (allocations_before, bytes_before) = (allocations(), allocated_bytes());
        reset_peak();
        let answer = api.expect("POST", "/v1/apply?dry_run=true", &json!({"objects": nodes}), 200).await;
        let (allocated_count, bytes) = (allocations() - allocations_before, peak_bytes() - bytes_before);
        assert_eq!(answer["objects"].as_array().map(Vec::len), Some(100), "{case}");
        let has_undecided = answer["findings"].to_string().contains("steps over its inputs");
        assert!(!has_undecided, "{case}: each condition is decided: {}", answer["findings"][0]);
        // A hundred nodes with a text each are 6 MB, which are read and resolved. Ten thousand conditions are evaluated
        // for them.
        assert!(allocated_count < 1_000_000, "{case}: {allocated_count} allocations");
        assert!(bytes < 100_000_000, "{case}: {bytes} bytes");
    }
}
