//! Calls that change one part of an object that another manager owns. They take over the part, unless `force=false`
//! forbids that.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

const SITE: &str = "/v2/metadefs/namespaces/Site";

/// Starts an API, and applies objects as manager `git`, which then owns what they provide.
async fn start_owned() -> TestApi {
    let server = TestApi::start().await;
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "1", "roles": {"web": {"tags": ["x"]}, "db": {"tags": ["y"]}},
         "tags": {"x": {}, "y": {}, "z": {}}},
        {"kind": "ClusterTemplate", "name": "t", "release": "r@1"},
        {"kind": "ClusterTemplate", "name": "u", "release": "r@1"},
        {"kind": "Cluster", "name": "c", "cluster_template": "t", "tags": {"own": {}}, "roles": {"db": {"add_tags": ["z"]}}},
        {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Node", "name": "n", "nodegroup": "c/g", "roles": ["web"], "traits": ["CUSTOM_A"], "parked": true,
         "tags": {"assigned": ["y"], "unassigned": ["x"]}},
        {"kind": "Node", "name": "bare", "nodegroup": "c/g"},
        {"kind": "Cluster", "name": "d"},
        {"kind": "Namespace", "namespace": "Site", "properties": {"p": {"title": "P", "type": "string"}},
         "resource_type_associations": [{"name": "Stemma::Property"}], "objects": [{"name": "o"}], "tags": [{"name": "a"}]},
    ]);
    server.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
    server
}

/// Sends a call with this query. A body that is `null` is not sent.
async fn send_call(server: &TestApi, (method, path, body): (&str, &str, &Value), query: &str) -> ApiResponse {
    let body = Some(body).filter(|body| !body.is_null());
    server.send(method, &format!("{path}?{query}"), &[], body).await
}

#[tokio::test]
async fn y05_single_call_respects_other_owner_when_force_is_false() {
    let server = start_owned().await;
    let [properties, objects, tags, associations] =
        ["properties", "objects", "tags", "resource_types"].map(|part| format!("{SITE}/{part}"));
    let [one_property, one_object, one_tag, new_tag] =
        ["properties/p", "objects/o", "tags/a", "tags/b"].map(|part| format!("{SITE}/{part}"));
    let one_association = format!("{associations}/Stemma::Property");
    let no_body = Value::Null;
    for (method, path, body, field) in [
        ("POST", "/v1/nodes/n/roles", json!({"roles": ["db"]}), "roles"),
        ("PUT", "/v1/nodes/n/roles", json!({"roles": []}), "roles"),
        ("DELETE", "/v1/nodes/n/roles", json!({"roles": ["web"]}), "roles"),
        ("PUT", "/v1/nodes/n/traits", json!({"traits": ["CUSTOM_B"]}), "traits.CUSTOM_A"),
        ("DELETE", "/v1/nodes/n/traits", no_body.clone(), "traits.CUSTOM_A"),
        ("DELETE", "/v1/nodes/n/traits/CUSTOM_A", no_body.clone(), "traits.CUSTOM_A"),
        ("POST", "/v1/nodes/n/tags", json!({"assign": ["x"]}), "tags.x"),
        ("POST", "/v1/nodes/n/tags", json!({"unassign": ["y"]}), "tags.y"),
        ("DELETE", "/v1/nodes/n/tags", json!({"tags": ["y"]}), "tags.y"),
        ("PUT", "/v1/nodes/n/tags/x", no_body.clone(), "tags.x"),
        ("DELETE", "/v1/nodes/n/tags/y", no_body.clone(), "tags.y"),
        ("DELETE", "/v1/nodes/n/maintenance", no_body.clone(), "parked"),
        ("POST", "/v1/clusters/c/tags", json!({"name": "more"}), "tags"),
        ("PUT", "/v1/clusters/c/tags/own", json!({"title": "T"}), "tags"),
        ("DELETE", "/v1/clusters/c/tags/own", no_body.clone(), "tags"),
        ("PUT", "/v1/clusters/c/roles", json!({"roles": {}}), "roles"),
        ("POST", "/v1/clusters/c/actions/upgrade", json!({"cluster_template": "u"}), "cluster_template"),
        ("POST", &properties, json!({"name": "q", "title": "Q", "type": "string"}), "properties"),
        ("PUT", &one_property, json!({"name": "p", "title": "Q", "type": "string"}), "properties"),
        ("DELETE", &one_property, no_body.clone(), "properties"),
        ("DELETE", &properties, no_body.clone(), "properties"),
        ("POST", &objects, json!({"name": "more"}), "objects"),
        ("PUT", &one_object, json!({"name": "other"}), "objects"),
        ("DELETE", &one_object, no_body.clone(), "objects"),
        ("DELETE", &objects, no_body.clone(), "objects"),
        ("POST", &tags, json!({"tags": [{"name": "b"}]}), "tags"),
        ("POST", &new_tag, no_body.clone(), "tags"),
        ("PUT", &one_tag, json!({"name": "b"}), "tags"),
        ("DELETE", &one_tag, no_body.clone(), "tags"),
        ("DELETE", &tags, no_body.clone(), "tags"),
        ("POST", &associations, json!({"name": "Stemma::Label"}), "resource_type_associations"),
        ("DELETE", &one_association, no_body.clone(), "resource_type_associations"),
    ] {
        let call = (method, path, &body);
        let refusal = send_call(&server, call, "manager=ann&force=false").await;
        assert_eq!((refusal.status, refusal.kind()), (409, "label.conflict"), "{call:?}: {}", refusal.body);
        assert_eq!(refusal.body["error"]["field"], field, "{call:?}: {}", refusal.body);
        assert_eq!(refusal.body["conflicts"][0]["manager"], "git:apply", "{call:?}: {}", refusal.body);
        for query in ["manager=git&force=false", "manager=ann&force=true", "manager=ann"] {
            let answer = send_call(&server, call, &format!("{query}&dry_run=true")).await;
            assert!(answer.status < 300, "{query} {call:?}: {}", answer.body);
        }
    }
}

/// Each call adds a value, or repeats a value that `git` owns.
#[tokio::test]
async fn y05_single_call_succeeds_when_change_touches_no_owned_value() {
    let server = start_owned().await;
    for (method, path, body) in [
        ("PUT", "/v1/nodes/n/traits/CUSTOM_B", Value::Null),
        ("PUT", "/v1/nodes/n/traits/CUSTOM_A", Value::Null),
        ("POST", "/v1/nodes/n/tags", json!({"assign": ["z"]})),
        ("POST", "/v1/nodes/n/roles", json!({"roles": ["web"]})),
        ("PUT", "/v1/nodes/n/maintenance", Value::Null),
        ("POST", "/v1/nodes/bare/roles", json!({"roles": ["db"]})),
        ("PUT", "/v1/nodes/bare/maintenance", json!({"reason": "to see"})),
        ("POST", "/v1/clusters/d/tags", json!({"name": "own"})),
    ] {
        let answer = send_call(&server, (method, path, &body), "manager=ann&force=false").await;
        assert!(answer.status < 300, "{method} {path} {body}: {}", answer.body);
    }
}
