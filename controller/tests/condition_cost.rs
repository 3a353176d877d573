//! The cost of conditions over a whole fleet, and that other requests do not wait for it.

mod served;

use serde_json::{Value, json};
use served::TestApi;
use stemma_counting::{allocations, held_bytes, peak_bytes, reset_peak};
use tokio::sync::Mutex;

/// Runs one test at a time, because the allocations of the whole process are counted.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// Builds a condition that looks for a node in the same zone.
fn zone_lookup(name: &str) -> String {
    format!("nodes(tag='web').exists(n, n.name=='{name}' && n.labels.zone==labels.zone)")
}

fn task(id: &str, condition: &str) -> Value {
    json!({"id": id, "type": "shell", "tags": ["web"], "condition": condition, "parameters": {"script": "true"}})
}

/// Starts a fleet of this many nodes, each in its own zone.
async fn fleet(nodes: usize, tasks: &[Value]) -> TestApi {
    let served = TestApi::start().await;
    let site = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}}, "tasks": tasks},
        {"kind": "Cluster", "name": "c", "release": "site@1"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]},
    ]);
    served.expect("POST", "/v1/apply", &json!({"objects": site}), 200).await;
    let node =
        |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "labels": {"zone": format!("zone-{n:040}")}});
    let nodes: Vec<Value> = (0..nodes).map(node).collect();
    served.expect("POST", "/v1/apply", &json!({"objects": nodes}), 200).await;
    served
}

/// Requests a list of all nodes, and the health of the process in the meantime.
async fn list_during_health_checks(served: &TestApi) {
    let asking = std::sync::Arc::clone(&served.api());
    let list = tokio::spawn(async move {
        let request = hyper::Request::builder().uri("/v1/nodes").header("host", "localhost");
        let request = request.body(http_body_util::Full::new(bytes::Bytes::new())).expect("a request");
        stemma_controller::api::respond(asking, None, request).await.status().as_u16()
    });
    tokio::task::yield_now().await;
    served.get_text("/healthz").await;
    assert!(!list.is_finished(), "/healthz is answered while the list is made");
    assert_eq!(list.await.expect("no panic"), 200);
}

#[tokio::test]
async fn w10_05_condition_cost_is_bounded_and_excess_conditions_are_named() {
    let _alone = SERIAL.lock().await;
    // Each condition may cost a scan of all nodes, but matches at the first node.
    let condition = |n| format!("nodes(tag='web').exists(n, n.labels.zone==labels.zone || n.name!='nobody-{n}')");
    let mut tasks: Vec<Value> = (0..64).map(|n| task(&format!("t-{n:02}"), &condition(n))).collect();
    tasks.push(task("z", "labels.zone != ''"));
    let served = fleet(200, &tasks).await;
    list_during_health_checks(&served).await;
    let node = served.get("/v1/nodes/n7").await;
    let findings = node["findings"].as_array().expect("findings");
    assert!(findings.len() > 32 && findings.len() < 64, "{} of 64 are too many", findings.len());
    let first = &findings[0];
    assert_eq!((&first["code"], &first["severity"]), (&json!("condition.failed"), &json!("warning")));
    let said = first["message"].as_str().unwrap_or_default();
    assert!(said.contains("more than the conditions of the tasks before it leave"), "{said}");
    let is_of_others = said.contains("250000") || said.contains("fleet");
    assert!(!is_of_others, "who is bound to a cluster learns nothing of others: {said}");
    assert!(said.contains("place the task by a tag"), "{said}");
    let resolved = served.get("/v1/nodes/n7/resolved").await;
    let tasks: Vec<&str> = resolved["tasks"].as_array().expect("tasks").iter().filter_map(Value::as_str).collect();
    assert_eq!((tasks.first(), tasks.last()), (Some(&"t-00"), Some(&"z")), "the first, and what costs little");
    assert_eq!(resolved["skipped"].as_object().map(serde_json::Map::len), Some(findings.len()), "{resolved}");
}

#[tokio::test]
async fn w10_05_condition_cost_over_nodes_is_bounded_without_delaying_health() {
    let _alone = SERIAL.lock().await;
    let tasks = [task("zone", &zone_lookup("nobody")), task("many", "size(nodes(tag='web')) > 2")];
    let served = fleet(1000, &tasks).await;
    list_during_health_checks(&served).await;

    let node = served.get("/v1/nodes/n7").await;
    let said = node["findings"][0]["message"].as_str().unwrap_or_default();
    assert_eq!(node["findings"][0]["code"], "condition.failed", "{node}");
    assert!(said.contains("more than 62500 steps over its inputs, the limit in a cluster of this size"), "{said}");
    assert!(said.contains("look up fewer nodes"), "{said}");
    let resolved = served.get("/v1/nodes/n7/resolved").await;
    let skipped = resolved["skipped"].to_string();
    assert!(skipped.contains("zone") && !skipped.contains("many"), "what all nodes share is decided once: {resolved}");
}

#[tokio::test]
async fn w10_05_condition_with_large_text_is_bounded() {
    const TEXT_BYTES: usize = 60_000;
    let _alone = SERIAL.lock().await;
    let condition = |n: usize| format!("params.big != '' && node.name != 'q{n:03}'");
    let tasks: Vec<Value> = (0..100).map(|n| task(&format!("t-{n:03}"), &condition(n))).collect();
    let text = "x".repeat(TEXT_BYTES);
    for (case, of_cluster, of_node) in
        [("one text for all", json!({"big": text}), json!({})), ("a text each", json!({}), json!({"big": text}))]
    {
        let served = fleet(0, &tasks).await;
        served.expect("PATCH", "/v1/clusters/c/parameters", &of_cluster, 200).await;
        let node = |n| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "parameters": of_node});
        let nodes: Vec<Value> = (0..100).map(node).collect();
        let (before, held) = (allocations(), held_bytes());
        reset_peak();
        let answer = served.expect("POST", "/v1/apply?dry_run=true", &json!({"objects": nodes}), 200).await;
        let (work, bytes) = (allocations() - before, peak_bytes() - held);
        assert_eq!(answer["objects"].as_array().map(Vec::len), Some(100), "{case}");
        let undecided = answer["findings"].to_string().contains("steps over its inputs");
        assert!(!undecided, "{case}: each condition is decided: {}", answer["findings"][0]);
        // A hundred nodes with a text each are 6 MB, which are read, stored and resolved. Ten thousand conditions are
        // evaluated for them.
        assert!(work < 1_000_000, "{case}: {work} allocations");
        assert!(bytes < 100_000_000, "{case}: {bytes} bytes");
    }
}
