//! JSON patches of real objects with all operations of RFC 6902, and Magnum's actions on a cluster.

mod served;

use serde_json::{Value, json};
use served::Served;

const PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];

async fn site(served: &Served) {
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1"},
        {"kind": "Release", "name": "site", "version": "2"},
        {"kind": "ClusterTemplate", "name": "v1", "release": "site@1"},
        {"kind": "ClusterTemplate", "name": "v2", "release": "site@2"},
        {"kind": "ClusterTemplate", "name": "bare"},
        {"kind": "Cluster", "name": "eu", "cluster_template": "v1", "release": "site@1", "merge_labels": true,
         "labels": {"tier": "gold", "ntp.example.org/pool": "a"}, "parameters": {"web": {"port": 80}}},
        {"kind": "NodeGroup", "cluster": "eu", "name": "web"},
        {"kind": "Node", "name": "n1", "nodegroup": "eu/web", "properties": {"racks": ["a", "b"], "memory_mb": 64}},
    ]);
    served.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
}

async fn patch(served: &Served, path: &str, operations: &Value) -> (u16, Value) {
    let answer = served.send("PATCH", path, PATCH, Some(operations)).await;
    (answer.status, answer.body)
}

#[tokio::test]
async fn what_a_patch_tests_copies_and_moves_are_fields_and_keys_alike() {
    let served = Served::start().await;
    site(&served).await;
    let operations = json!([
        {"op": "test", "path": "/labels/tier", "value": "gold"},
        {"op": "test", "path": "/labels/ntp.example.org~1pool", "value": "a"},
        {"op": "test", "path": "/parameters/web", "value": {"port": 80.0}},
        {"op": "test", "path": "/description", "value": null},
        {"op": "move", "from": "/labels/tier", "path": "/labels/class"},
        {"op": "copy", "from": "/labels/class", "path": "/labels/ntp.example.org~1pool"},
        {"op": "copy", "from": "/labels/class", "path": "/description"},
        {"op": "add", "path": "/labels/new", "value": "1"},
        {"op": "test", "path": "/labels/new", "value": "1"},
    ]);
    let (status, body) = patch(&served, "/v1/clusters/eu", &operations).await;
    assert_eq!(status, 202, "{body}");
    let cluster = served.get("/v1/clusters/eu").await;
    assert_eq!(cluster["labels"], json!({"class": "gold", "new": "1", "ntp.example.org/pool": "gold"}));
    assert_eq!(cluster["description"], "gold");
    let operations = json!([
        {"op": "test", "path": "/properties/memory_mb", "value": 64},
        {"op": "test", "path": "/parked", "value": false},
        {"op": "test", "path": "/roles", "value": []},
        {"op": "test", "path": "/instance_info", "value": {}},
        {"op": "test", "path": "/merge_labels", "value": false},
        {"op": "add", "path": "/suppressed_traits/-", "value": "HW_CPU_X86_AVX"},
        {"op": "move", "from": "/properties/racks/0", "path": "/properties/racks/1"},
        {"op": "copy", "from": "/properties/racks/0", "path": "/properties/first"},
    ]);
    let (status, node) = patch(&served, "/v1/nodes/n1", &operations).await;
    assert_eq!(status, 200, "{node}");
    assert_eq!(node["properties"], json!({"racks": ["b", "a"], "first": "b", "memory_mb": 64}));
    assert_eq!(node["suppressed_traits"], json!(["HW_CPU_X86_AVX"]));
    let operations = json!([{"op": "test", "path": "/parked", "value": false}, {"op": "replace", "path": "/merge_labels", "value": true}]);
    assert_eq!(patch(&served, "/v1/nodes/n1", &operations).await.0, 200);
}

#[tokio::test]
async fn what_nobody_set_can_be_added_to_and_returned_to_its_default() {
    let served = Served::start().await;
    site(&served).await;
    for (operations, field, expected) in [
        (json!([{"op": "add", "path": "/roles/-", "value": "web"}]), "roles", json!(["web"])),
        (
            json!([{"op": "copy", "from": "/roles/0", "path": "/roles/0"}, {"op": "remove", "path": "/roles/1"}]),
            "roles",
            json!(["web"]),
        ),
        (json!([{"op": "remove", "path": "/roles/0"}]), "roles", json!([])),
        (json!([{"op": "replace", "path": "/merge_labels", "value": true}]), "merge_labels", json!(true)),
        (
            json!([{"op": "test", "path": "/merge_labels", "value": true}, {"op": "remove", "path": "/merge_labels"}]),
            "merge_labels",
            json!(false),
        ),
    ] {
        let (status, node) = patch(&served, "/v1/nodes/n1", &operations).await;
        // A list at its default is not shown.
        let found = node.get(field).cloned().unwrap_or(json!([]));
        assert_eq!((status, found), (200, expected), "{operations}: {node}");
    }
}

#[tokio::test]
async fn a_patch_that_does_not_fit_changes_nothing_and_says_which_operation() {
    let served = Served::start().await;
    site(&served).await;
    let before = served.get("/v1/clusters/eu").await;
    let first = json!({"op": "add", "path": "/labels/new", "value": "1"});
    for (operation, status, kind, said) in [
        (
            json!({"op": "test", "path": "/labels/tier", "value": "silver"}),
            412,
            "precondition.failed",
            "/labels/tier is \"gold\" and not \"silver\"",
        ),
        (json!({"op": "test", "path": "/labels/none", "value": "x"}), 400, "field.invalid", "no /labels/none"),
        (json!({"op": "copy", "from": "/labels/none", "path": "/labels/x"}), 400, "field.invalid", "no /labels/none"),
        (json!({"op": "move", "path": "/labels/x"}), 400, "field.invalid", "\"from\" is missing"),
        (json!({"op": "move", "from": "/uuid", "path": "/labels/x"}), 400, "field.invalid", "no /uuid"),
        (json!({"op": "move", "from": "/parameters/web", "path": "/parameters/web/x"}), 400, "field.invalid", "within"),
        // The key "" of the map, and never the map itself (RFC 6901).
        (json!({"op": "remove", "path": "/labels/"}), 400, "field.invalid", "no /labels/,"),
        (json!({"op": "replace", "path": "/labels/", "value": "x"}), 400, "field.invalid", "no /labels/,"),
        (json!({"op": "add", "path": "/labels/", "value": "x"}), 400, "label.invalid", "label"),
        (json!({"op": "add", "path": "/labels/x~2", "value": "x"}), 400, "field.invalid", "neither ~0 nor ~1"),
        (json!({"op": "add", "path": "/labels/x", "value": null}), 400, "label.invalid", "null is not taken"),
        (json!({"op": "replace", "path": "/labels", "value": 5}), 400, "field.invalid", "takes a map"),
        (json!({"op": "replace", "path": "/name", "value": "us"}), 400, "field.invalid", "cannot change"),
        (json!({"op": "add", "path": "/uuid", "value": "x"}), 400, "field.invalid", "never changes"),
    ] {
        let (found, body) = patch(&served, "/v1/clusters/eu", &json!([first, operation])).await;
        assert_eq!((found, body["error"]["type"].as_str()), (status, Some(kind)), "{operation}: {body}");
        let message = body["error"]["message"].as_str().expect("a message");
        assert!(message.contains(said), "{operation}: {message}");
        assert!(
            message.ends_with("nothing was changed") || body["error"]["type"] == "label.invalid",
            "{operation}: {message}"
        );
    }
    assert_eq!(served.get("/v1/clusters/eu").await, before);
}

#[tokio::test]
async fn an_upgrade_gives_a_cluster_the_release_of_a_template() {
    let served = Served::start().await;
    site(&served).await;
    let path = "/v1/clusters/eu/actions/upgrade";
    let sent = json!({"cluster_template": "v2", "max_batch_size": 1, "nodegroup": null});
    let answer = served.expect("POST", path, &sent, 202).await;
    let cluster = served.get("/v1/clusters/eu").await;
    assert_eq!(answer["uuid"], cluster["uuid"]);
    assert_eq!(served.get("/v1/nodes/n1/resolved").await["release"]["name"], "site@2");
    // A template without a release takes the cluster's own from it no more than another field would.
    let own = json!([{"op": "replace", "path": "/release", "value": "site@1"}]);
    assert_eq!(patch(&served, "/v1/clusters/eu", &own).await.0, 202);
    served.expect("POST", path, &json!({"cluster_template": "bare"}), 202).await;
    assert_eq!(served.get("/v1/clusters/eu").await["release"], "site@1");
}

#[tokio::test]
async fn actions_without_a_meaning_are_refused_and_change_nothing() {
    let served = Served::start().await;
    site(&served).await;
    let before = served.get("/v1/clusters/eu").await;
    for (action, body, status, kind) in [
        ("upgrade", json!({"cluster_template": "v2", "nodegroup": "web"}), 400, "action.unsupported"),
        ("upgrade", json!({"cluster_template": "v2", "max_batch_size": 3}), 400, "action.unsupported"),
        ("upgrade", json!({"cluster_template": "v2", "labels": {"a": "1"}}), 400, "field.unknown"),
        ("upgrade", json!({}), 400, "field.missing"),
        ("upgrade", json!({"cluster_template": 5}), 400, "field.invalid"),
        ("upgrade", json!({"cluster_template": "nosuch"}), 404, "object.not_found"),
        ("resize", json!({"node_count": 2}), 400, "action.unsupported"),
    ] {
        let answer = served.send("POST", &format!("/v1/clusters/eu/actions/{action}"), &[], Some(&body)).await;
        assert_eq!((answer.status, answer.kind()), (status, kind), "{action} {body}: {}", answer.body);
    }
    assert_eq!(served.get("/v1/clusters/eu").await, before);
    let missing = served.send("POST", "/v1/clusters/nosuch/actions/resize", &[], Some(&json!({}))).await;
    assert_eq!(missing.status, 404);
    let old = [("openstack-api-version", "container-infra 1.6")];
    let refused = served.send("POST", "/v1/clusters/eu/actions/upgrade", &old, Some(&json!({}))).await;
    assert_eq!(refused.status, 406, "{}", refused.body);
}
