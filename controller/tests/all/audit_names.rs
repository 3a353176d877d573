//! What the audit calls the objects that values name: as they were called when the values were written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_controller::records::key;
use stemma_controller::store::{Revision, Transaction};
use stemma_core::object::Kind;
use uuid::Uuid;

use crate::audit::{PATCH, apply};
use crate::served::Served;

async fn patch(served: &Served, path: &str, operation: Value) {
    let told = served.send("PATCH", path, PATCH, Some(&json!([operation]))).await;
    assert!(told.status < 300, "{path}: {}", told.body);
}

async fn rename(served: &Served, path: &str, name: &str) {
    patch(served, path, json!({"op": "replace", "path": "/name", "value": name})).await;
}

async fn delete(served: &Served, path: &str) {
    let told = served.send("DELETE", path, &[], None).await;
    assert!(told.status < 300, "{path}: {}", told.body);
}

/// What each write of an object changed of one of its fields, as the value before and after.
async fn values(served: &Served, object: &str, field: &str) -> Vec<[Value; 2]> {
    let list = served.get(&format!("/v1/audit?object={object}")).await;
    let (kind, _) = object.split_once('/').unwrap();
    let objects = list["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    let of_kind = objects.filter(|one| one["kind"] == kind);
    let changes = of_kind.filter_map(|one| one["changes"].as_array()).flatten();
    changes
        .filter(|change| change["field"] == field)
        .map(|change| [change["before"].clone(), change["after"].clone()])
        .collect()
}

/// A cluster of a template with a group, and a node that is moved into the group.
async fn filled() -> Served {
    let served = Served::start().await;
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

/// The row of before the rename had the name of after it, and a uuid once the group was gone.
#[tokio::test]
async fn y09_a_value_names_a_group_as_it_was_called_then() {
    let served = filled().await;
    rename(&served, "/v1/clusters/prod/nodegroups/reqs", "reqs2").await;
    let into = [Value::Null, json!("prod/reqs")];
    assert_eq!(values(&served, "node/p1", "nodegroup").await, std::slice::from_ref(&into));
    patch(&served, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    rename(&served, "/v1/clusters/prod/nodegroups/reqs2", "reqs3").await;
    let both = [into, [json!("prod/reqs2"), Value::Null]];
    assert_eq!(values(&served, "node/p1", "nodegroup").await, both);
    delete(&served, "/v1/clusters/prod/nodegroups/reqs3").await;
    assert_eq!(values(&served, "node/p1", "nodegroup").await, both, "the group is gone");
    delete(&served, "/v1/clusters/prod").await;
    assert_eq!(values(&served, "node/p1", "nodegroup").await, both, "its cluster is gone too");
    // Others that have the names by now change nothing.
    apply(&served, json!([{"kind": "Cluster", "name": "prod"}, {"kind": "NodeGroup", "cluster": "prod", "name": "x"}]))
        .await;
    assert_eq!(values(&served, "node/p1", "nodegroup").await, both);
}

#[tokio::test]
async fn y09_a_value_names_a_template_as_it_was_called_then() {
    let served = filled().await;
    rename(&served, "/v1/clustertemplates/ta", "tb").await;
    let made = [Value::Null, json!("ta")];
    assert_eq!(values(&served, "cluster/prod", "cluster_template").await, std::slice::from_ref(&made));
    patch(&served, "/v1/clusters/prod", json!({"op": "remove", "path": "/cluster_template"})).await;
    let both = [made, [json!("tb"), Value::Null]];
    assert_eq!(values(&served, "cluster/prod", "cluster_template").await, both);
    delete(&served, "/v1/clustertemplates/tb").await;
    assert_eq!(values(&served, "cluster/prod", "cluster_template").await, both, "the template is gone");
}

#[tokio::test]
async fn y09_a_value_names_the_holder_of_a_tag_as_it_was_called_then() {
    let served = Served::start().await;
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
    assert_eq!(values(&served, "primary/prod/pg", "node").await, all);
    delete(&served, "/v1/nodes/q9").await;
    assert_eq!(values(&served, "primary/prod/pg", "node").await, all, "the node is gone");
}

/// Its cluster was left out once that was gone.
#[tokio::test]
async fn y09_a_value_names_the_cluster_of_a_principal_that_is_gone() {
    let served = filled().await;
    let vera = json!({"name": "vera", "role": "viewer", "cluster": "prod"});
    served.expect("POST", "/v1/principals", &vera, 201).await;
    patch(&served, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    for path in ["/v1/principals/vera", "/v1/clusters/prod/nodegroups/reqs", "/v1/clusters/prod"] {
        delete(&served, path).await;
    }
    let [prod, none] = [json!("prod"), Value::Null];
    let expected = [[none.clone(), prod.clone()], [prod, none]];
    assert_eq!(values(&served, "principal/vera", "cluster").await, expected);
}

#[tokio::test]
async fn y09_a_value_has_the_uuid_where_the_history_does_not_reach_back_to_the_name() {
    let served = filled().await;
    let made = served.get("/v1/audit?object=nodegroup/prod/reqs").await["audit"][0]["revision"].as_u64().unwrap();
    rename(&served, "/v1/clusters/prod/nodegroups/reqs", "reqs2").await;
    patch(&served, "/v1/nodes/p1", json!({"op": "remove", "path": "/nodegroup"})).await;
    let group = served.get("/v1/clusters/prod/nodegroups/reqs2").await["uuid"].as_str().unwrap().to_owned();
    let uuid: Uuid = group.parse().unwrap();
    let image = [key::history(Kind::NodeGroup, uuid).as_bytes(), &Revision::new(made).to_key()].concat();
    served.api().registry.store().commit(Transaction::new().delete(image)).await.unwrap();
    let expected = [[Value::Null, json!(group)], [json!("prod/reqs2"), Value::Null]];
    assert_eq!(values(&served, "node/p1", "nodegroup").await, expected);
}
