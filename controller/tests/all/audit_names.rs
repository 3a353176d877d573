//! The names in audit values of the objects that they refer to: those at the time when the values were written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_controller::records::key;
use stemma_controller::store::{Revision, Transaction};
use stemma_core::object::Kind;
use uuid::Uuid;

use crate::audit::{PATCH, apply};
use crate::served::TestApi;

async fn patch(served: &TestApi, path: &str, operation: Value) {
    let told = served.send("PATCH", path, PATCH, Some(&json!([operation]))).await;
    assert!(told.status < 300, "{path}: {}", told.body);
}

async fn rename(served: &TestApi, path: &str, name: &str) {
    patch(served, path, json!({"op": "replace", "path": "/name", "value": name})).await;
}

async fn delete(served: &TestApi, path: &str) {
    let told = served.send("DELETE", path, &[], None).await;
    assert!(told.status < 300, "{path}: {}", told.body);
}

/// Returns how each write of an object changed one field, as the values before and after.
async fn value_changes(served: &TestApi, object: &str, field: &str) -> Vec<[Value; 2]> {
    let list = served.get(&format!("/v1/audit?object={object}")).await;
    let (kind, _) = object.split_once('/').unwrap();
    let objects = list["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    let of_kind = objects.filter(|one| one["kind"] == kind);
    let changes = of_kind.filter_map(|one| one["changes"].as_array()).flatten();
    changes.filter(|change| change["field"] == field).map(|change| [change["before"].clone(), change["after"].clone()]).collect()
}

/// Starts with a cluster of a template, a group, and a node that is moved into the group.
async fn start_filled() -> TestApi {
    let served = TestApi::start().await;
    let objects = json!([
        {"kind": "ClusterTemplate", "name": "ta"},
        {"kind": "Cluster", "name": "prod", "cluster_template": "ta"},
        {"kind": "NodeGroup", "cluster": "prod", "name": "reqs"},
    ]);
    apply(&served, objects).await;
    served.expect("POST", "/v1/nodes", &json!({"name": "p1"}), 201).await;
    let moved = json!({"op": "add", "path": "/nodegroup", "value": "prod/reqs"});
    patch(&served, "/v1/nodes/p1", moved).await;
    served
}

/// Regression: a row from before a rename showed the new name, and a uuid after the group was deleted.
#[tokio::test]
async fn y09_audit_value_shows_group_name_at_write_time() {
    let served = start_filled().await;
    rename(&served, "/v1/clusters/prod/nodegroups/reqs", "reqs2").await;
    let into = [Value::Null, json!("prod/reqs")];
    assert_eq!(value_changes(&served, "node/p1", "nodegroup").await, std::slice::from_ref(&into));
    patch(&served, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    rename(&served, "/v1/clusters/prod/nodegroups/reqs2", "reqs3").await;
    let both = [into, [json!("prod/reqs2"), Value::Null]];
    assert_eq!(value_changes(&served, "node/p1", "nodegroup").await, both);
    delete(&served, "/v1/clusters/prod/nodegroups/reqs3").await;
    assert_eq!(value_changes(&served, "node/p1", "nodegroup").await, both, "the group is gone");
    delete(&served, "/v1/clusters/prod").await;
    assert_eq!(value_changes(&served, "node/p1", "nodegroup").await, both, "its cluster is gone too");
    // Other objects that have the names now change nothing.
    apply(&served, json!([{"kind": "Cluster", "name": "prod"}, {"kind": "NodeGroup", "cluster": "prod", "name": "x"}])).await;
    assert_eq!(value_changes(&served, "node/p1", "nodegroup").await, both);
}

#[tokio::test]
async fn y09_audit_value_shows_template_name_at_write_time() {
    let served = start_filled().await;
    rename(&served, "/v1/clustertemplates/ta", "tb").await;
    let made = [Value::Null, json!("ta")];
    assert_eq!(value_changes(&served, "cluster/prod", "cluster_template").await, std::slice::from_ref(&made));
    patch(&served, "/v1/clusters/prod", json!({"op": "remove", "path": "/cluster_template"})).await;
    let both = [made, [json!("tb"), Value::Null]];
    assert_eq!(value_changes(&served, "cluster/prod", "cluster_template").await, both);
    delete(&served, "/v1/clustertemplates/tb").await;
    assert_eq!(value_changes(&served, "cluster/prod", "cluster_template").await, both, "the template is gone");
}

#[tokio::test]
async fn y09_audit_value_shows_tag_holder_name_at_write_time() {
    let served = TestApi::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "nodegroup": "prod/db"});
    let tags = json!({"pg": {"has_primary": true}});
    let release = json!({"kind": "Release", "name": "r", "roles": {"db": {"tags": ["pg"]}}, "tags": tags});
    let objects = json!([
        release, {"kind": "Cluster", "name": "prod", "release": "r"},
        {"kind": "NodeGroup", "cluster": "prod", "name": "db", "roles": ["db"]}, node("q1"), node("q2"),
    ]);
    apply(&served, objects).await;
    for holder in ["q2", "q1", "q2"] {
        served.expect("PUT", "/v1/clusters/prod/primaries/pg", &json!({"node": holder}), 200).await;
    }
    rename(&served, "/v1/nodes/q1", "q9").await;
    let [q1, q2] = [json!("q1"), json!("q2")];
    let all = [[Value::Null, q2.clone()], [q2.clone(), q1.clone()], [q1, q2]];
    assert_eq!(value_changes(&served, "primary/prod/pg", "node").await, all);
    delete(&served, "/v1/nodes/q9").await;
    assert_eq!(value_changes(&served, "primary/prod/pg", "node").await, all, "the node is gone");
}

/// Regression: the cluster of a principal was missing after the cluster was deleted.
#[tokio::test]
async fn y09_audit_value_shows_cluster_name_when_principal_is_deleted() {
    let served = start_filled().await;
    let vera = json!({"name": "vera", "role": "viewer", "cluster": "prod"});
    served.expect("POST", "/v1/principals", &vera, 201).await;
    patch(&served, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    for path in ["/v1/principals/vera", "/v1/clusters/prod/nodegroups/reqs", "/v1/clusters/prod"] {
        delete(&served, path).await;
    }
    let [prod, none] = [json!("prod"), Value::Null];
    let expected = [[none.clone(), prod.clone()], [prod, none]];
    assert_eq!(value_changes(&served, "principal/vera", "cluster").await, expected);
}

#[tokio::test]
async fn y09_audit_value_shows_uuid_when_history_lacks_name() {
    let served = start_filled().await;
    let made = served.get("/v1/audit?object=nodegroup/prod/reqs").await["audit"][0]["revision"].as_u64().unwrap();
    rename(&served, "/v1/clusters/prod/nodegroups/reqs", "reqs2").await;
    patch(&served, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    let group = served.get("/v1/clusters/prod/nodegroups/reqs2").await["uuid"].as_str().unwrap().to_owned();
    let uuid: Uuid = group.parse().unwrap();
    let image = [key::history(Kind::NodeGroup, uuid).as_bytes(), &Revision::new(made).to_key()].concat();
    served.api().registry.store().commit(Transaction::new().delete(image)).await.unwrap();
    let expected = [[Value::Null, json!(group)], [json!("prod/reqs2"), Value::Null]];
    assert_eq!(value_changes(&served, "node/p1", "nodegroup").await, expected);
}
