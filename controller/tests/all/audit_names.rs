//! Tests of references in the values of audit entries. An entry shows the name that the referenced object had when the
//! entry was written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_controller::records::key;
use stemma_controller::store::{Revision, Transaction};
use stemma_core::object::Kind;
use uuid::Uuid;

use crate::audit::{PATCH, apply};
use crate::served::TestApi;

/// Sends a JSON patch with one operation. The patch must succeed.
async fn patch(api: &TestApi, path: &str, operation: Value) {
    let response = api.send("PATCH", path, PATCH, Some(&json!([operation]))).await;
    assert!(response.status < 300, "{path}: {}", response.body);
}

async fn rename(api: &TestApi, path: &str, name: &str) {
    patch(api, path, json!({"op": "replace", "path": "/name", "value": name})).await;
}

/// Deletes an object. The deletion must succeed.
async fn delete(api: &TestApi, path: &str) {
    let response = api.send("DELETE", path, &[], None).await;
    assert!(response.status < 300, "{path}: {}", response.body);
}

/// Returns how each write of an object changed one field, as the values before and after.
async fn value_changes(api: &TestApi, object: &str, field: &str) -> Vec<[Value; 2]> {
    let list = api.get(&format!("/v1/audit?object={object}")).await;
    let (kind, _) = object.split_once('/').unwrap();
    let objects = list["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    let of_kind = objects.filter(|object| object["kind"] == kind);
    let changes = of_kind.filter_map(|object| object["changes"].as_array()).flatten();
    changes.filter(|change| change["field"] == field).map(|change| [change["before"].clone(), change["after"].clone()]).collect()
}

/// Starts the API with cluster `prod` from template `ta`, group `prod/reqs`, and node p1, which is moved into the
/// group.
async fn start_filled() -> TestApi {
    let api = TestApi::start().await;
    let objects = json!([
        {"kind": "ClusterTemplate", "name": "ta"},
        {"kind": "Cluster", "name": "prod", "cluster_template": "ta"},
        {"kind": "NodeGroup", "cluster": "prod", "name": "reqs"},
    ]);
    apply(&api, objects).await;
    api.expect("POST", "/v1/nodes", &json!({"name": "p1"}), 201).await;
    let operation = json!({"op": "add", "path": "/nodegroup", "value": "prod/reqs"});
    patch(&api, "/v1/nodes/p1", operation).await;
    api
}

/// Regression: an entry that is older than a rename showed the new name, and a uuid after the group was deleted.
#[tokio::test]
async fn y09_audit_value_shows_group_name_at_write_time() {
    let api = start_filled().await;
    rename(&api, "/v1/clusters/prod/nodegroups/reqs", "reqs2").await;
    let move_in = [Value::Null, json!("prod/reqs")];
    assert_eq!(value_changes(&api, "node/p1", "nodegroup").await, std::slice::from_ref(&move_in));
    patch(&api, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    rename(&api, "/v1/clusters/prod/nodegroups/reqs2", "reqs3").await;
    let both_moves = [move_in, [json!("prod/reqs2"), Value::Null]];
    assert_eq!(value_changes(&api, "node/p1", "nodegroup").await, both_moves);
    delete(&api, "/v1/clusters/prod/nodegroups/reqs3").await;
    assert_eq!(value_changes(&api, "node/p1", "nodegroup").await, both_moves, "the group is deleted");
    delete(&api, "/v1/clusters/prod").await;
    assert_eq!(value_changes(&api, "node/p1", "nodegroup").await, both_moves, "the cluster is deleted too");
    // Other objects that have the names now change nothing.
    apply(&api, json!([{"kind": "Cluster", "name": "prod"}, {"kind": "NodeGroup", "cluster": "prod", "name": "x"}])).await;
    assert_eq!(value_changes(&api, "node/p1", "nodegroup").await, both_moves);
}

/// The template is renamed between two writes that refer to it, and deleted at the end.
#[tokio::test]
async fn y09_audit_value_shows_template_name_at_write_time() {
    let api = start_filled().await;
    rename(&api, "/v1/clustertemplates/ta", "tb").await;
    let creation = [Value::Null, json!("ta")];
    assert_eq!(value_changes(&api, "cluster/prod", "cluster_template").await, std::slice::from_ref(&creation));
    patch(&api, "/v1/clusters/prod", json!({"op": "remove", "path": "/cluster_template"})).await;
    let both_changes = [creation, [json!("tb"), Value::Null]];
    assert_eq!(value_changes(&api, "cluster/prod", "cluster_template").await, both_changes);
    delete(&api, "/v1/clustertemplates/tb").await;
    assert_eq!(value_changes(&api, "cluster/prod", "cluster_template").await, both_changes, "the template is deleted");
}

/// The primary of a tag changes between two nodes. One of these is then renamed and deleted.
#[tokio::test]
async fn y09_audit_value_shows_primary_node_name_at_write_time() {
    let api = TestApi::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "nodegroup": "prod/db"});
    let tags = json!({"pg": {"has_primary": true}});
    let release = json!({"kind": "Release", "name": "r", "roles": {"db": {"tags": ["pg"]}}, "tags": tags});
    let objects = json!([
        release, {"kind": "Cluster", "name": "prod", "release": "r"},
        {"kind": "NodeGroup", "cluster": "prod", "name": "db", "roles": ["db"]}, node("q1"), node("q2"),
    ]);
    apply(&api, objects).await;
    for primary_node in ["q2", "q1", "q2"] {
        api.expect("PUT", "/v1/clusters/prod/primaries/pg", &json!({"node": primary_node}), 200).await;
    }
    rename(&api, "/v1/nodes/q1", "q9").await;
    let [q1, q2] = [json!("q1"), json!("q2")];
    let changes = [[Value::Null, q2.clone()], [q2.clone(), q1.clone()], [q1, q2]];
    assert_eq!(value_changes(&api, "primary/prod/pg", "node").await, changes);
    delete(&api, "/v1/nodes/q9").await;
    assert_eq!(value_changes(&api, "primary/prod/pg", "node").await, changes, "the node is deleted");
}

/// Regression: the cluster of a principal was missing after the cluster was deleted.
#[tokio::test]
async fn y09_audit_value_shows_principals_cluster_when_both_are_deleted() {
    let api = start_filled().await;
    let vera = json!({"name": "vera", "role": "viewer", "cluster": "prod"});
    api.expect("POST", "/v1/principals", &vera, 201).await;
    patch(&api, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    for path in ["/v1/principals/vera", "/v1/clusters/prod/nodegroups/reqs", "/v1/clusters/prod"] {
        delete(&api, path).await;
    }
    let [prod, null] = [json!("prod"), Value::Null];
    let expected = [[null.clone(), prod.clone()], [prod, null]];
    assert_eq!(value_changes(&api, "principal/vera", "cluster").await, expected);
}

/// The stored version of the group from its creation is deleted, as a sweep of the history does. The earlier name is
/// then unknown.
#[tokio::test]
async fn y09_audit_value_shows_uuid_when_history_lacks_name() {
    let api = start_filled().await;
    let creation_revision = api.get("/v1/audit?object=nodegroup/prod/reqs").await["audit"][0]["revision"].as_u64().unwrap();
    rename(&api, "/v1/clusters/prod/nodegroups/reqs", "reqs2").await;
    patch(&api, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    let group = api.get("/v1/clusters/prod/nodegroups/reqs2").await["uuid"].as_str().unwrap().to_owned();
    let uuid: Uuid = group.parse().unwrap();
    let image = [key::history(Kind::NodeGroup, uuid).as_bytes(), &Revision::new(creation_revision).to_key()].concat();
    api.api().registry.store().commit(Transaction::new().delete(image)).await.unwrap();
    let expected = [[Value::Null, json!(group)], [json!("prod/reqs2"), Value::Null]];
    assert_eq!(value_changes(&api, "node/p1", "nodegroup").await, expected);
}
