//! Principals that are bound to a cluster: what they see, and what they can write.

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_controller::records::{codec, key};
use stemma_controller::store::Transaction;
use stemma_wire::client::Client;
use uuid::Uuid;

use crate::fleet::Fleet;
use crate::principals::clients::{JSON, client_with_certificate, comparable_answer, create_principal, send, two_clusters};

/// Returns one field of each entry of the list `key` in a response.
fn field_values(list: &Value, key: &str, field: &str) -> Vec<String> {
    list[key].as_array().unwrap().iter().map(|entry| entry[field].as_str().unwrap_or_default().to_owned()).collect()
}

/// Builds the manifest of a node in a group.
fn node(name: &str, group: &str) -> Value {
    json!({"kind": "Node", "name": name, "nodegroup": group})
}

/// Builds the body of an apply of these objects.
fn apply_body(objects: &Value) -> String {
    json!({ "objects": objects }).to_string()
}

/// The responses about objects of another cluster are the same as about objects that do not exist.
#[tokio::test]
async fn bound_principal_lists_only_own_cluster() {
    let fleet = Fleet::start().await;
    let [_, far_values] = two_clusters(&fleet).await;
    let mut bound_client = create_principal(&fleet, "otto", "operator", Some("own")).await;
    for (path, key, field, expected) in [
        ("/v1/nodes", "nodes", "name", vec!["own-node"]),
        ("/v1/nodes/detail", "nodes", "name", vec!["own-node"]),
        ("/v1/nodes?nodegroup=web", "nodes", "name", vec!["own-node"]),
        ("/v1/clusters", "clusters", "name", vec!["own"]),
        ("/v1/clusters/detail", "clusters", "name", vec!["own"]),
        ("/v1/clusters/own/nodegroups", "nodegroups", "name", vec!["web"]),
        ("/v1/allocations", "allocations", "name", vec!["own-allocation"]),
        ("/v1/join-tokens", "tokens", "nodegroup", vec!["own/web"]),
        ("/v1/principals", "principals", "name", vec!["own-principal", "otto"]),
        ("/v1/certificates", "certificates", "principal", vec!["own-principal", "own-principal", "otto"]),
    ] {
        let answer = send(&mut bound_client, "GET", path, &[], "").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(field_values(&answer.body, key, field), expected, "{path}");
    }
    for path in ["/v1/nodes?nodegroup=far/web", "/v1/nodes?cluster=far", "/v1/nodes/validate?node=far-node"] {
        let (answer, missing_path) = (send(&mut bound_client, "GET", path, &[], "").await, path.replace("far", "nil"));
        let missing_answer = send(&mut bound_client, "GET", &missing_path, &[], "").await;
        let missing_values: Vec<_> = far_values.iter().map(|(name, value)| (*name, value.replace("far", "nil"))).collect();
        assert_eq!(comparable_answer(&answer, &far_values), comparable_answer(&missing_answer, &missing_values), "{path}");
    }
}

/// The principal is bound to the cluster `own`.
#[tokio::test]
async fn bound_principal_sees_metrics_and_audit_of_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound_client = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let request = Request::get("/metrics").body(Bytes::new()).unwrap();
    let metrics = String::from_utf8(bound_client.send(request).await.unwrap().body().to_vec()).unwrap();
    assert!(metrics.contains("principal=\"otto\"") && !metrics.contains("far") && !metrics.contains("\"admin\""));
    let nodes = metrics.lines().filter(|line| line.starts_with("stemma_nodes{"));
    let nodes: u64 = nodes.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert!(nodes <= 1, "{metrics}");
    let audit = send(&mut bound_client, "GET", "/v1/audit", &[], "").await.body.to_string();
    assert!(audit.contains("own-node") && !audit.contains("far"), "{audit}");
    let (_, fleet_audit) = fleet.request(Method::GET, "/v1/audit?principal=admin", &Value::Null).await;
    assert!(fleet_audit.to_string().contains("far-node"));
    // For deleted objects too, the audit shows only the entries of the principal's cluster.
    for cluster in ["own", "far"] {
        fleet.request(Method::DELETE, &format!("/v1/allocations/{cluster}-allocation"), &Value::Null).await;
        let (status, answer) = fleet.request(Method::DELETE, &format!("/v1/nodes/{cluster}-node"), &Value::Null).await;
        assert_eq!(status, 204, "{answer}");
    }
    let audit = send(&mut bound_client, "GET", "/v1/audit?object=node/own-node", &[], "").await.body.to_string();
    assert!(audit.contains("deleted"), "{audit}");
    let audit = send(&mut bound_client, "GET", "/v1/audit?object=node/far-node", &[], "").await.body;
    assert_eq!(audit["audit"], json!([]));
}

/// In this test, an operator is bound to the cluster `own`, and sends writes of objects outside of this cluster. All
/// are refused. A reference to an object of another cluster is refused as if the object did not exist.
#[tokio::test]
async fn bound_principal_cannot_write_other_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound_client = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let revision = fleet.last_revision().await;
    for (method, path, body, status, kind) in [
        ("POST", "/v1/nodes", json!({"name": "stray"}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/nodes", json!({"name": "n", "nodegroup": "far/web"}).to_string(), 400, "reference.dangling"),
        ("POST", "/v1/apply", apply_body(&json!([{"kind": "Cluster", "name": "far"}])), 403, "auth.forbidden"),
        ("POST", "/v1/apply", apply_body(&json!([{"kind": "Cluster", "name": "new"}])), 403, "auth.forbidden"),
        ("POST", "/v1/apply", apply_body(&json!([{"kind": "ClusterTemplate", "name": "t"}])), 403, "auth.forbidden"),
        (
            "POST",
            "/v1/apply",
            apply_body(&json!([{"kind": "NodeGroup", "cluster": "far", "name": "web"}])),
            400,
            "reference.dangling",
        ),
        ("POST", "/v1/apply", apply_body(&json!([node("own-node", "far/web")])), 400, "reference.dangling"),
        ("PATCH", "/v1/nodes/far-node", json!([]).to_string(), 404, "object.not_found"),
        ("DELETE", "/v1/nodes/far-node", String::new(), 404, "object.not_found"),
        ("POST", "/v1/join-tokens", json!({}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/join-tokens", json!({"nodegroup": "far/web"}).to_string(), 400, "reference.dangling"),
        ("POST", "/v1/clustertemplates", json!({"name": "t"}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/principals", json!({"name": "p", "role": "viewer"}).to_string(), 403, "auth.forbidden"),
    ] {
        let answer = send(&mut bound_client, method, path, &[JSON], &body).await;
        assert_eq!((answer.status, &*answer.kind), (status, kind), "{method} {path} {body}: {}", answer.body);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

/// An admin who is bound to a cluster creates only principals that are bound to it.
#[tokio::test]
async fn cluster_admin_creates_principals_of_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut admin = create_principal(&fleet, "ada", "admin", Some("own")).await;
    let revision = fleet.last_revision().await;
    for (body, status, kind) in [
        (json!({"name": "p", "role": "viewer", "cluster": "far"}), 400, "reference.dangling"),
        (json!({"name": "root", "role": "viewer"}), 400, "field.invalid"),
        (json!({"name": "a b", "role": "viewer"}), 400, "field.invalid"),
        (json!({"name": "p", "role": "king"}), 400, "field.invalid"),
    ] {
        let answer = send(&mut admin, "POST", "/v1/principals", &[JSON], &body.to_string()).await;
        assert_eq!((answer.status, &*answer.kind), (status, kind), "{body}: {}", answer.body);
    }
    let answer = send(&mut admin, "PATCH", "/v1/principals/ada", &[JSON], &json!({"cluster": null}).to_string()).await;
    assert_eq!(answer.kind, "auth.forbidden", "a principal cannot remove its own binding: {}", answer.body);
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
    let body = json!({"name": "p", "role": "viewer"}).to_string();
    let answer = send(&mut admin, "POST", "/v1/principals", &[JSON], &body).await;
    assert_eq!((answer.status, &answer.body["cluster"]), (201, &json!("own")), "{}", answer.body);
}

/// The audit uses these names for parties that are not principals. The creation of a principal with such a name is
/// refused, in each letter case. No principal can be renamed, and an apply accepts no principals.
#[tokio::test]
async fn x04_principal_rejects_reserved_audit_names() {
    let fleet = Fleet::start().await;
    let (status, answer) = fleet.request(Method::POST, "/v1/principals", &json!({"name": "p", "role": "viewer"})).await;
    assert_eq!(status, 201, "{answer}");
    let revision = fleet.last_revision().await;
    for name in [
        ["root", "Root", "ROOT"],
        ["nobody", "Nobody", "NOBODY"],
        ["stemma-controller", "Stemma-Controller", "STEMMA-CONTROLLER"],
        ["others", "Others", "OTHERS"],
    ]
    .concat()
    {
        let principal = json!({"name": name, "role": "viewer"});
        let (status, answer) = fleet.request(Method::POST, "/v1/principals", &principal).await;
        let (kind, field) = (&answer["error"]["type"], &answer["error"]["field"]);
        assert_eq!((status, kind, field), (400, &json!("field.invalid"), &json!("name")), "{name}: {answer}");
        for rename_patch in [json!({"name": name}), json!([{"op": "replace", "path": "/name", "value": name}])] {
            let (status, answer) = fleet.request(Method::PATCH, "/v1/principals/p", &rename_patch).await;
            assert!((400..500).contains(&status), "{rename_patch}: {status} {answer}");
        }
        let manifest = json!({"objects": [{"kind": "Principal", "name": name, "role": "viewer"}]});
        let (status, answer) = fleet.request(Method::POST, "/v1/apply", &manifest).await;
        assert!((400..500).contains(&status), "{name}: {status} {answer}");
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn bound_principal_writes_and_allocates_only_in_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound_client = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let allocation = json!({"name": "x", "resource_class": "far"}).to_string();
    let answer = send(&mut bound_client, "POST", "/v1/apply", &[JSON], &apply_body(&json!([node("own-2", "own/web")]))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = send(&mut bound_client, "POST", "/v1/join-tokens", &[JSON], &json!({"nodegroup": "own/web"}).to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    // A bound principal gets nodes of its own cluster only. A free node of the class exists, but in another cluster.
    let (status, _) = fleet.request(Method::DELETE, "/v1/allocations/far-allocation", &Value::Null).await;
    assert_eq!(status, 204);
    let answer = send(&mut bound_client, "POST", "/v1/allocations", &[JSON], &allocation).await;
    assert_eq!((answer.status, &answer.body["state"]), (201, &json!("error")), "{}", answer.body);
    let answer = send(&mut bound_client, "GET", "/v1/allocations/x", &[], "").await;
    assert_eq!(answer.status, 200, "the principal can read its own allocation: {}", answer.body);
}

/// A bound principal gets only metrics that are counted for its cluster. The admin gets others too.
#[tokio::test]
async fn bound_metrics_hide_controller_totals() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound_client = create_principal(&fleet, "otto", "viewer", Some("own")).await;
    let read_metrics = async |client: &mut Client| {
        let request = Request::get("/metrics").header("accept", "application/openmetrics-text");
        let request = request.body(Bytes::new()).unwrap();
        String::from_utf8(client.send(request).await.unwrap().body().to_vec()).unwrap()
    };
    let names = |text: &str| -> Vec<String> {
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned));
        names.collect()
    };
    let (bound_metrics, admin_metrics) = (read_metrics(&mut bound_client).await, read_metrics(&mut fleet.admin_client()).await);
    assert_eq!(
        names(&bound_metrics),
        [
            "stemma_nodes_doubled",
            "stemma_nodes_ahead",
            "stemma_nodes_report_refused",
            "stemma_nodes_report_waiting",
            "stemma_nodes_report_left_out",
            "stemma_nodes_report_findings",
            "stemma_nodes_release_refused",
            "stemma_nodes",
            "stemma_nodes_noted",
            "stemma_credential_end_seconds"
        ]
    );
    assert!(bound_metrics.ends_with("# EOF\n"));
    assert!(names(&admin_metrics).iter().any(|name| name == "stemma_store_commits"), "{admin_metrics}");
}

#[tokio::test]
async fn bound_dry_run_names_hosts_of_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound_client = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let own_uuid = fleet.read("/v1/nodes/own-node").await["uuid"].clone();
    let headers = [("content-type", "application/merge-patch+json"), ("prefer", "return=representation")];
    let body = json!({"labels": {"a": "b"}}).to_string();
    let answer = send(&mut bound_client, "PATCH", "/v1/clusters/own?dry_run=true", &headers, &body).await;
    assert_eq!((answer.status, &answer.body["hosts"]), (200, &json!([own_uuid])), "{}", answer.body);
}

/// A fleet admin creates an allocation with candidates in two clusters. A principal of one cluster sees only its own
/// candidate.
#[tokio::test]
async fn fleet_allocation_hides_nodes_of_other_clusters() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    for cluster in ["own", "far"] {
        fleet.apply(json!([node(&format!("{cluster}-2"), &format!("{cluster}/web"))])).await;
        let patch = json!([{"op": "add", "path": "/resource_class", "value": "big"}]);
        fleet.request(Method::PATCH, &format!("/v1/nodes/{cluster}-2"), &patch).await;
    }
    let (own_node, far_node) = (fleet.read("/v1/nodes/own-2").await, fleet.read("/v1/nodes/far-2").await);
    // Of two nodes that match equally, the first by name would be chosen, which is in the other cluster. Maintenance
    // excludes that node.
    let (status, _) = fleet.request(Method::PUT, "/v1/nodes/far-2/maintenance", &json!({})).await;
    assert_eq!(status, 202);
    let allocation = json!({"name": "x", "resource_class": "big", "candidate_nodes": ["own-2", "far-2"]});
    let (status, answer) = fleet.request(Method::POST, "/v1/allocations", &allocation).await;
    assert_eq!((status, &answer["node_uuid"]), (201, &own_node["uuid"]), "{answer}");
    assert_eq!(answer["candidate_nodes"], json!([own_node["uuid"], far_node["uuid"]]));
    assert_eq!(answer["explanation"]["candidates"], 1);
    let mut bound_client = create_principal(&fleet, "otto", "viewer", Some("own")).await;
    let audit = send(&mut bound_client, "GET", "/v1/audit?object=allocation/x", &[], "").await.body.to_string();
    assert!(audit.contains("candidate_nodes") && !audit.contains(far_node["uuid"].as_str().unwrap()), "{audit}");
    for path in ["/v1/allocations/x", "/v1/nodes/own-2/allocation", "/v1/allocations"] {
        let body = send(&mut bound_client, "GET", path, &[], "").await.body;
        let shown_allocation = if path == "/v1/allocations" { &body["allocations"][1] } else { &body };
        assert_eq!(shown_allocation["candidate_nodes"], json!([own_node["uuid"]]), "{path}: {body}");
        assert_eq!(shown_allocation["explanation"]["candidates"], Value::Null, "{path}: {body}");
        assert!(!body.to_string().contains(far_node["uuid"].as_str().unwrap()), "{path}: {body}");
    }
}

/// A bound principal lists three nodes of its cluster. The order of creation is kept, although most nodes of the fleet
/// are in another cluster.
#[tokio::test]
async fn small_cluster_list_has_same_order_in_large_fleet() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let far_nodes: Vec<Value> = (0..40).map(|n| node(&format!("far-{n}"), "far/web")).collect();
    fleet.apply(far_nodes[..20].into()).await;
    fleet.apply(json!([node("own-z", "own/web"), node("own-a", "own/web")])).await;
    fleet.apply(far_nodes[20..].into()).await;
    let mut bound_client = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let marker_uuid = fleet.read("/v1/nodes/own-z").await["uuid"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("", &["own-node", "own-z", "own-a"][..]),
        ("?sort_dir=desc", &["own-a", "own-z", "own-node"]),
        ("?sort_key=name", &["own-a", "own-node", "own-z"]),
        ("?limit=1", &["own-node"]),
        (&format!("?marker={marker_uuid}"), &["own-a"]),
    ] {
        let answer = send(&mut bound_client, "GET", &format!("/v1/nodes{query}"), &[], "").await;
        assert_eq!(field_values(&answer.body, "nodes", "name"), expected, "{query}");
    }
    // A bound principal sees its own writes at once in the responses.
    let body = apply_body(&json!([node("own-new", "own/web"), node("own-newer", "own/web")]));
    let answer = send(&mut bound_client, "POST", "/v1/apply", &[JSON], &body).await;
    assert_eq!(field_values(&answer.body, "objects", "action"), ["created", "created"], "{}", answer.body);
    let answer = send(&mut bound_client, "GET", "/v1/nodes", &[], "").await;
    assert_eq!(answer.body["nodes"].as_array().unwrap().len(), 5, "{}", answer.body);
}

/// A repeated request returns the stored response only while its sender has at least the rights that it had at the
/// first request. Regression: a principal without a cluster wrote to the cluster `far`, and was bound to the cluster
/// `own` later. A repeat of the request still returned the stored response.
#[tokio::test]
async fn stored_answer_is_returned_only_to_same_or_wider_rights() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let key = "0198c0de-0000-7000-8000-000000000016";
    let (path, body) = (format!("/v1/requests/{key}"), json!({"name": "n", "nodegroup": "far/web"}).to_string());
    let post = async |client: &mut Client| send(client, "POST", "/v1/nodes", &[JSON, ("idempotency-key", key)], &body).await;
    let otto = json!({"name": "otto", "role": "operator"});
    let mut client = create_principal(&fleet, "otto", "operator", None).await;
    let first_answer = post(&mut client).await;
    assert_eq!((first_answer.status, post(&mut client).await.body), (201, first_answer.body.clone()));
    let change_to = async |fields: Value| {
        let (status, answer) = fleet.request(Method::PATCH, "/v1/principals/otto", &fields).await;
        assert_eq!(status, 200, "{answer}");
    };
    for fewer_rights in [json!({"cluster": "own"}), json!({"cluster": null, "role": "viewer"})] {
        change_to(fewer_rights.clone()).await;
        let revision = fleet.last_revision().await;
        for answer in [post(&mut client).await, send(&mut client, "GET", &path, &[], "").await] {
            assert_eq!((answer.status, &*answer.kind), (403, "auth.forbidden"), "{fewer_rights}: {}", answer.body);
            let text = answer.body.to_string();
            // The repeated write of a principal that may no longer write gets the usual refusal.
            let has_expected_error =
                text.contains("was made") || text.contains("Permission denied: otto (viewer) cannot do this: ");
            assert!(has_expected_error && !text.contains("far"), "{fewer_rights}: {text}");
        }
        let stored_answer = send(&mut client, "GET", &path, &[], "").await.body.to_string();
        assert!(stored_answer.contains("was made"), "{fewer_rights}: {stored_answer}");
        assert_eq!(fleet.last_revision().await, revision, "{fewer_rights}: nothing is written");
    }
    for role in ["operator", "admin"] {
        change_to(json!({"role": role})).await;
        assert_eq!(post(&mut client).await.body, first_answer.body, "{role}: the rights are the same or wider");
    }
    // Another principal with the same name has not sent the request.
    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/otto", &Value::Null).await;
    assert_eq!(status, 204);
    let (status, _) = fleet.request(Method::POST, "/v1/principals", &otto).await;
    assert_eq!(status, 201);
    let mut client = client_with_certificate(&fleet, "otto").await.0;
    let (post_answer, stored_answer) = (post(&mut client).await, send(&mut client, "GET", &path, &[], "").await);
    assert_eq!((post_answer.status, &*post_answer.kind), (409, "object.exists"), "{}", post_answer.body);
    assert_eq!((stored_answer.status, &*stored_answer.kind), (404, "object.not_found"), "{}", stored_answer.body);
}

/// One node moves from the cluster `own` to `far`, another leaves every cluster, and both are renamed. Regression: a
/// principal that is bound to a cluster saw the later name of a node that had left the cluster.
#[tokio::test]
async fn x04_f15_audit_shows_old_name_when_object_leaves_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut vera = create_principal(&fleet, "vera", "viewer", Some("own")).await;
    let mut wim = create_principal(&fleet, "wim", "viewer", Some("far")).await;
    fleet.apply(json!([node("mover", "own/web"), node("stray", "own/web")])).await;
    let mut uuids = Vec::new();
    let move_to_far = json!({"op": "replace", "path": "/nodegroup", "value": "far/web"});
    for (name, leave_patch) in [("mover", move_to_far), ("stray", json!({"op": "remove", "path": "/nodegroup"}))] {
        uuids.push(fleet.read(&format!("/v1/nodes/{name}")).await["uuid"].as_str().unwrap().to_owned());
        let patch = json!([{"op": "replace", "path": "/name", "value": format!("{name}-anew")}, leave_patch]);
        let (status, answer) = fleet.request(Method::PATCH, &format!("/v1/nodes/{name}"), &patch).await;
        assert_eq!(status, 200, "{answer}");
    }
    let audited_changes = async |client: &mut Client, object: &str| -> Vec<String> {
        let audit = send(client, "GET", &format!("/v1/audit?object=node/{object}"), &[], "").await.body;
        let entries = audit["audit"].as_array().unwrap().iter();
        let objects = entries.flat_map(|entry| entry["objects"].as_array().unwrap());
        let node_changes = objects.filter(|change| change["kind"] == "node" && uuids.iter().any(|uuid| change["uuid"] == **uuid));
        node_changes
            .map(|change| format!("{} {}", change["action"].as_str().unwrap(), change["name"].as_str().unwrap()))
            .collect()
    };
    let vera_entries = ["created mover", "created stray", "updated mover"];
    assert_eq!(
        audited_changes(&mut vera, &uuids[0]).await,
        vera_entries,
        "one apply created both nodes, so its entry lists both"
    );
    assert_eq!(audited_changes(&mut vera, "mover").await, vera_entries);
    assert_eq!(audited_changes(&mut vera, &uuids[1]).await, ["created mover", "created stray", "updated stray"]);
    for hidden_name in ["mover-anew", "stray-anew"] {
        assert_eq!(audited_changes(&mut vera, hidden_name).await, Vec::<String>::new(), "a guessed name is not confirmed");
    }
    assert_eq!(audited_changes(&mut wim, "mover-anew").await, ["updated mover-anew"]);
    assert_eq!(audited_changes(&mut wim, "mover").await, Vec::<String>::new());
    let admin_entries = ["created mover", "created stray", "updated mover-anew"];
    assert_eq!(
        audited_changes(&mut fleet.admin_client(), "mover-anew").await,
        admin_entries,
        "an admin of the fleet also sees the old name"
    );
    let full_audit = send(&mut vera, "GET", "/v1/audit", &[], "").await.body.to_string();
    assert!(full_audit.contains("mover") && !full_audit.contains("-anew"), "{full_audit}");
}

/// A node moves to another cluster. A principal of either cluster sees only the values that the node had in its own
/// cluster.
#[tokio::test]
async fn y09_bound_audit_shows_values_of_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut vera = create_principal(&fleet, "vera", "viewer", Some("own")).await;
    let mut wim = create_principal(&fleet, "wim", "viewer", Some("far")).await;
    fleet.apply(json!([node("mover", "own/web")])).await;
    let describe = |text: &str| json!({"op": "add", "path": "/description", "value": text});
    let move_to_far = json!({"op": "replace", "path": "/nodegroup", "value": "far/web"});
    for patch in [json!([describe("first")]), json!([describe("second"), move_to_far]), json!([describe("third")])] {
        let (status, answer) = fleet.request(Method::PATCH, "/v1/nodes/mover", &patch).await;
        assert_eq!(status, 200, "{answer}");
    }
    let uuid = fleet.read("/v1/nodes/mover").await["uuid"].as_str().unwrap().to_owned();
    let first_change = json!([{"field": "description", "after": "first"}]);
    let third_change = json!([{"field": "description", "before": "second", "after": "third"}]);
    let not_shown = json!("not_shown");
    for (client, expected, hidden_texts) in [
        (&mut vera, [(&first_change, &Value::Null), (&Value::Null, &not_shown)], ["second", "third"]),
        (&mut wim, [(&Value::Null, &not_shown), (&third_change, &Value::Null)], ["first", "own/web"]),
    ] {
        let audit = send(client, "GET", &format!("/v1/audit?object=node/{uuid}"), &[], "").await.body;
        let objects = audit["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
        let updates = objects.filter(|object| object["action"] == "updated" && object["uuid"] == *uuid);
        let shown_changes: Vec<_> = updates.map(|object| (&object["changes"], &object["changes_left_out"])).collect();
        assert_eq!(shown_changes, expected, "{audit}");
        for text in hidden_texts {
            assert!(!audit.to_string().contains(text), "{text}: {audit}");
        }
    }
}

/// Regression: a new principal with the name of a deleted one saw the reasons, addresses and requests of the deleted
/// one.
#[tokio::test]
async fn x04_f11_recreated_principal_sees_nothing_of_predecessor() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let (mut vera, mut wim) = (
        create_principal(&fleet, "vera", "viewer", Some("own")).await,
        create_principal(&fleet, "wim", "viewer", Some("far")).await,
    );
    let key = "0198c0de-0000-7000-8000-000000000011";
    let template = json!({"name": "t"}).to_string();
    let mut first_client = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let forbidden = send(&mut first_client, "POST", "/v1/clustertemplates", &[JSON], &template).await;
    assert_eq!((forbidden.status, &*forbidden.kind), (403, "auth.forbidden"), "{}", forbidden.body);
    fleet.wait_until_audited("otto", "auth.forbidden", 1).await;
    let headers = [JSON, ("idempotency-key", key), ("stemma-reason", "ticket seven")];
    let body = json!({"nodegroup": "own/web"}).to_string();
    let answer = send(&mut first_client, "POST", "/v1/join-tokens", &headers, &body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let otto_entries = async |client: &mut Client| {
        let audit = send(client, "GET", "/v1/audit", &[], "").await.body;
        let entries = audit["audit"].as_array().unwrap().iter().filter(|entry| entry["principal"] == "otto");
        let summaries: Vec<String> = entries.map(|entry| format!("{} {}", entry["refused"], entry["reason"])).collect();
        summaries
    };
    let expected = [r#""auth.forbidden" null"#, r#"null "ticket seven""#];
    assert_eq!(otto_entries(&mut vera).await, expected, "a viewer of the principal's cluster sees its entries");
    assert_eq!(otto_entries(&mut wim).await, Vec::<String>::new());

    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/otto", &Value::Null).await;
    assert_eq!(status, 204);
    let mut second_client = create_principal(&fleet, "otto", "operator", Some("far")).await;
    for client in [&mut wim, &mut second_client] {
        assert_eq!(otto_entries(client).await, Vec::<String>::new());
    }
    assert_eq!(otto_entries(&mut fleet.admin_client()).await, expected, "an admin of the fleet still sees the entries");
    let answer = send(&mut second_client, "GET", &format!("/v1/requests/{key}"), &[], "").await;
    assert_eq!((answer.status, &*answer.kind), (404, "object.not_found"), "{}", answer.body);
    let body = json!({"nodegroup": "far/web"}).to_string();
    let answer = send(&mut second_client, "POST", "/v1/join-tokens", &[JSON, ("idempotency-key", key)], &body).await;
    assert_eq!(answer.status, 201, "the new principal has its own idempotency keys: {}", answer.body);
    // The certificate of the previous principal does not authenticate the new one with the same name.
    let answer = send(&mut first_client, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.revoked"), "{}", answer.body);
    fleet.wait_until_audited("otto", "auth.revoked", 1).await;
    assert_eq!(otto_entries(&mut wim).await, ["null null"], "only the join token of the second principal");
    let forbidden = send(&mut second_client, "POST", "/v1/clustertemplates", &[JSON], &template).await;
    assert_eq!(forbidden.status, 403, "{}", forbidden.body);
    fleet.wait_until_audited("otto", "auth.forbidden", 2).await;
    assert_eq!(otto_entries(&mut wim).await, ["null null", r#""auth.forbidden" null"#]);
    // The join token of the second principal is deleted with it.
    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/otto", &Value::Null).await;
    assert_eq!(status, 204);
    let join_tokens = fleet.read("/v1/join-tokens").await;
    assert!(!join_tokens.to_string().contains("otto"), "{join_tokens}");
}

/// An earlier version recorded the name of a principal without its uuid, and stored requests under the name. Such a
/// record belongs to the principal that had the name at the time of the record.
#[tokio::test]
async fn x04_f11_old_records_belong_to_principal_of_record_time() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut otto = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let principal = fleet.read("/v1/principals/otto").await;
    let uuid: Uuid = principal["uuid"].as_str().unwrap().parse().unwrap();
    let creation_time = fleet.components().registry.cache().model().principals.get(uuid).unwrap().meta.created_at.0;
    let refusal = |time: u64| {
        let address = format!("192.0.2.1:{time}");
        codec::encode(&json!({"at": time, "principal": "otto", "address": address, "refused": "x", "unsaid": 0}))
    };
    let cluster = fleet.read("/v1/clusters/own").await["uuid"].clone();
    let record = |time: u64| {
        let caller = json!({"role": "operator", "within": cluster});
        codec::encode(&json!({"at": time, "hash": "h", "answer": {"status": 201}, "asked_by": caller}))
    };
    let first_records = Transaction::new()
        .put_at_revision(key::AUDIT, refusal(creation_time - 1000))
        .put(key::request("otto", Uuid::from_u128(1)), record(creation_time - 1000))
        .put(key::request("otto", Uuid::from_u128(2)), record(creation_time));
    let store = fleet.components().registry.store();
    store.commit(first_records).await.unwrap();
    let revision = store.commit(Transaction::new().put_at_revision(key::AUDIT, refusal(creation_time))).await.unwrap();
    fleet.components().registry.cache().wait_for(revision).await;
    let audit = send(&mut otto, "GET", "/v1/audit?refused=true", &[], "").await.body;
    let addresses: Vec<&Value> = audit["audit"].as_array().unwrap().iter().map(|entry| &entry["address"]).collect();
    assert_eq!(addresses, [&json!(format!("192.0.2.1:{creation_time}"))], "{audit}");
    for (id, status) in [(1, 404), (2, 200)] {
        let answer = send(&mut otto, "GET", &format!("/v1/requests/{}", Uuid::from_u128(id)), &[], "").await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
}
