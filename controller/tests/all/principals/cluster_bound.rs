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

fn names_in(list: &Value, key: &str, field: &str) -> Vec<String> {
    list[key].as_array().unwrap().iter().map(|one| one[field].as_str().unwrap_or_default().to_owned()).collect()
}

fn node(name: &str, group: &str) -> Value {
    json!({"kind": "Node", "name": name, "nodegroup": group})
}

fn apply(objects: &Value) -> String {
    json!({ "objects": objects }).to_string()
}

#[tokio::test]
async fn bound_principal_lists_only_own_cluster() {
    let fleet = Fleet::start().await;
    let [_, far] = two_clusters(&fleet).await;
    let mut bound = create_principal(&fleet, "otto", "operator", Some("own")).await;
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
        let told = send(&mut bound, "GET", path, &[], "").await;
        assert_eq!(told.status, 200, "{path}: {}", told.body);
        assert_eq!(names_in(&told.body, key, field), expected, "{path}");
    }
    for path in ["/v1/nodes?nodegroup=far/web", "/v1/nodes?cluster=far", "/v1/nodes/validate?node=far-node"] {
        let (told, none) = (send(&mut bound, "GET", path, &[], "").await, path.replace("far", "nil"));
        let of_none = send(&mut bound, "GET", &none, &[], "").await;
        let nil: Vec<_> = far.iter().map(|(name, value)| (*name, value.replace("far", "nil"))).collect();
        assert_eq!(comparable_answer(&told, &far), comparable_answer(&of_none, &nil), "{path}");
    }
}

#[tokio::test]
async fn bound_principal_sees_metrics_and_audit_of_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let request = Request::get("/metrics").body(Bytes::new()).unwrap();
    let metrics = String::from_utf8(bound.send(request).await.unwrap().body().to_vec()).unwrap();
    assert!(metrics.contains("principal=\"otto\"") && !metrics.contains("far") && !metrics.contains("\"admin\""));
    let nodes = metrics.lines().filter(|line| line.starts_with("stemma_nodes{"));
    let nodes: u64 = nodes.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert!(nodes <= 1, "{metrics}");
    let audit = send(&mut bound, "GET", "/v1/audit", &[], "").await.body.to_string();
    assert!(audit.contains("own-node") && !audit.contains("far"), "{audit}");
    let (_, whole) = fleet.request(Method::GET, "/v1/audit?principal=admin", &Value::Null).await;
    assert!(whole.to_string().contains("far-node"));
    // Also for deleted objects.
    for cluster in ["own", "far"] {
        fleet.request(Method::DELETE, &format!("/v1/allocations/{cluster}-allocation"), &Value::Null).await;
        let (status, told) = fleet.request(Method::DELETE, &format!("/v1/nodes/{cluster}-node"), &Value::Null).await;
        assert_eq!(status, 204, "{told}");
    }
    let audit = send(&mut bound, "GET", "/v1/audit?object=node/own-node", &[], "").await.body.to_string();
    assert!(audit.contains("deleted"), "{audit}");
    let audit = send(&mut bound, "GET", "/v1/audit?object=node/far-node", &[], "").await.body;
    assert_eq!(audit["audit"], json!([]));
}

#[tokio::test]
async fn bound_principal_cannot_write_other_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let revision = fleet.last_revision().await;
    for (method, path, body, status, kind) in [
        ("POST", "/v1/nodes", json!({"name": "stray"}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/nodes", json!({"name": "n", "nodegroup": "far/web"}).to_string(), 400, "reference.dangling"),
        ("POST", "/v1/apply", apply(&json!([{"kind": "Cluster", "name": "far"}])), 403, "auth.forbidden"),
        ("POST", "/v1/apply", apply(&json!([{"kind": "Cluster", "name": "new"}])), 403, "auth.forbidden"),
        ("POST", "/v1/apply", apply(&json!([{"kind": "ClusterTemplate", "name": "t"}])), 403, "auth.forbidden"),
        ("POST", "/v1/apply", apply(&json!([{"kind": "NodeGroup", "cluster": "far", "name": "web"}])), 400, "reference.dangling"),
        ("POST", "/v1/apply", apply(&json!([node("own-node", "far/web")])), 400, "reference.dangling"),
        ("PATCH", "/v1/nodes/far-node", json!([]).to_string(), 404, "object.not_found"),
        ("DELETE", "/v1/nodes/far-node", String::new(), 404, "object.not_found"),
        ("POST", "/v1/join-tokens", json!({}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/join-tokens", json!({"nodegroup": "far/web"}).to_string(), 400, "reference.dangling"),
        ("POST", "/v1/clustertemplates", json!({"name": "t"}).to_string(), 403, "auth.forbidden"),
        ("POST", "/v1/principals", json!({"name": "p", "role": "viewer"}).to_string(), 403, "auth.forbidden"),
    ] {
        let told = send(&mut bound, method, path, &[JSON], &body).await;
        assert_eq!((told.status, &*told.kind), (status, kind), "{method} {path} {body}: {}", told.body);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

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
        let told = send(&mut admin, "POST", "/v1/principals", &[JSON], &body.to_string()).await;
        assert_eq!((told.status, &*told.kind), (status, kind), "{body}: {}", told.body);
    }
    let told = send(&mut admin, "PATCH", "/v1/principals/ada", &[JSON], &json!({"cluster": null}).to_string()).await;
    assert_eq!(told.kind, "auth.forbidden", "nobody frees themselves: {}", told.body);
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
    let body = json!({"name": "p", "role": "viewer"}).to_string();
    let told = send(&mut admin, "POST", "/v1/principals", &[JSON], &body).await;
    assert_eq!((told.status, &told.body["cluster"]), (201, &json!("own")), "{}", told.body);
}

/// The names that the audit uses for parties that are not principals, in three letter cases, by each way to set a name.
/// A principal is never renamed, and no manifest creates one.
#[tokio::test]
async fn x04_principal_rejects_reserved_audit_names() {
    let fleet = Fleet::start().await;
    let (status, made) = fleet.request(Method::POST, "/v1/principals", &json!({"name": "p", "role": "viewer"})).await;
    assert_eq!(status, 201, "{made}");
    let revision = fleet.last_revision().await;
    for name in [
        ["root", "Root", "ROOT"],
        ["nobody", "Nobody", "NOBODY"],
        ["stemma-controller", "Stemma-Controller", "STEMMA-CONTROLLER"],
        ["others", "Others", "OTHERS"],
    ]
    .concat()
    {
        let named = json!({"name": name, "role": "viewer"});
        let (status, told) = fleet.request(Method::POST, "/v1/principals", &named).await;
        let (kind, field) = (&told["error"]["type"], &told["error"]["field"]);
        assert_eq!((status, kind, field), (400, &json!("field.invalid"), &json!("name")), "{name}: {told}");
        for renamed in [json!({"name": name}), json!([{"op": "replace", "path": "/name", "value": name}])] {
            let (status, told) = fleet.request(Method::PATCH, "/v1/principals/p", &renamed).await;
            assert!((400..500).contains(&status), "{renamed}: {status} {told}");
        }
        let applied = json!({"objects": [{"kind": "Principal", "name": name, "role": "viewer"}]});
        let (status, told) = fleet.request(Method::POST, "/v1/apply", &applied).await;
        assert!((400..500).contains(&status), "{name}: {status} {told}");
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn bound_principal_writes_and_allocates_in_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let taken = json!({"name": "x", "resource_class": "far"}).to_string();
    let told = send(&mut bound, "POST", "/v1/apply", &[JSON], &apply(&json!([node("own-2", "own/web")]))).await;
    assert_eq!(told.status, 200, "{}", told.body);
    let told = send(&mut bound, "POST", "/v1/join-tokens", &[JSON], &json!({"nodegroup": "own/web"}).to_string()).await;
    assert_eq!(told.status, 201, "{}", told.body);
    // A bound principal gets nodes of its own cluster only. A free node of the class exists, but in another cluster.
    let (status, _) = fleet.request(Method::DELETE, "/v1/allocations/far-allocation", &Value::Null).await;
    assert_eq!(status, 204);
    let told = send(&mut bound, "POST", "/v1/allocations", &[JSON], &taken).await;
    assert_eq!((told.status, &told.body["state"]), (201, &json!("error")), "{}", told.body);
    let told = send(&mut bound, "GET", "/v1/allocations/x", &[], "").await;
    assert_eq!(told.status, 200, "it sees what it asked for: {}", told.body);
}

#[tokio::test]
async fn bound_metrics_hide_controller_totals() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound = create_principal(&fleet, "otto", "viewer", Some("own")).await;
    let text = async |client: &mut Client| {
        let request = Request::get("/metrics").header("accept", "application/openmetrics-text");
        let request = request.body(Bytes::new()).unwrap();
        String::from_utf8(client.send(request).await.unwrap().body().to_vec()).unwrap()
    };
    let names = |text: &str| -> Vec<String> {
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned));
        names.collect()
    };
    let (of_bound, of_all) = (text(&mut bound).await, text(&mut fleet.admin_client()).await);
    assert_eq!(
        names(&of_bound),
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
    assert!(of_bound.ends_with("# EOF\n"));
    assert!(names(&of_all).iter().any(|name| name == "stemma_store_commits"), "{of_all}");
}

#[tokio::test]
async fn bound_dry_run_names_hosts_of_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut bound = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let own = fleet.read("/v1/nodes/own-node").await["uuid"].clone();
    let headers = [("content-type", "application/merge-patch+json"), ("prefer", "return=representation")];
    let body = json!({"labels": {"a": "b"}}).to_string();
    let told = send(&mut bound, "PATCH", "/v1/clusters/own?dry_run=true", &headers, &body).await;
    assert_eq!((told.status, &told.body["hosts"]), (200, &json!([own])), "{}", told.body);
}

#[tokio::test]
async fn fleet_allocation_hides_nodes_of_other_clusters() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    for cluster in ["own", "far"] {
        fleet.apply(json!([node(&format!("{cluster}-2"), &format!("{cluster}/web"))])).await;
        let set = json!([{"op": "add", "path": "/resource_class", "value": "big"}]);
        fleet.request(Method::PATCH, &format!("/v1/nodes/{cluster}-2"), &set).await;
    }
    let (own, far) = (fleet.read("/v1/nodes/own-2").await, fleet.read("/v1/nodes/far-2").await);
    // Of two nodes that match equally, the first by name would be in the other cluster.
    let (status, _) = fleet.request(Method::PUT, "/v1/nodes/far-2/maintenance", &json!({})).await;
    assert_eq!(status, 202);
    let wanted = json!({"name": "x", "resource_class": "big", "candidate_nodes": ["own-2", "far-2"]});
    let (status, made) = fleet.request(Method::POST, "/v1/allocations", &wanted).await;
    assert_eq!((status, &made["node_uuid"]), (201, &own["uuid"]), "{made}");
    assert_eq!(made["candidate_nodes"], json!([own["uuid"], far["uuid"]]));
    assert_eq!(made["explanation"]["candidates"], 1);
    let mut bound = create_principal(&fleet, "otto", "viewer", Some("own")).await;
    let audit = send(&mut bound, "GET", "/v1/audit?object=allocation/x", &[], "").await.body.to_string();
    assert!(audit.contains("candidate_nodes") && !audit.contains(far["uuid"].as_str().unwrap()), "{audit}");
    for path in ["/v1/allocations/x", "/v1/nodes/own-2/allocation", "/v1/allocations"] {
        let told = send(&mut bound, "GET", path, &[], "").await.body;
        let one = if path == "/v1/allocations" { &told["allocations"][1] } else { &told };
        assert_eq!(one["candidate_nodes"], json!([own["uuid"]]), "{path}: {told}");
        assert_eq!(one["explanation"]["candidates"], Value::Null, "{path}: {told}");
        assert!(!told.to_string().contains(far["uuid"].as_str().unwrap()), "{path}: {told}");
    }
}

#[tokio::test]
async fn small_cluster_list_has_same_order_in_large_fleet() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let far: Vec<Value> = (0..40).map(|n| node(&format!("far-{n}"), "far/web")).collect();
    fleet.apply(far[..20].into()).await;
    fleet.apply(json!([node("own-z", "own/web"), node("own-a", "own/web")])).await;
    fleet.apply(far[20..].into()).await;
    let mut bound = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let marker = fleet.read("/v1/nodes/own-z").await["uuid"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("", &["own-node", "own-z", "own-a"][..]),
        ("?sort_dir=desc", &["own-a", "own-z", "own-node"]),
        ("?sort_key=name", &["own-a", "own-node", "own-z"]),
        ("?limit=1", &["own-node"]),
        (&format!("?marker={marker}"), &["own-a"]),
    ] {
        let told = send(&mut bound, "GET", &format!("/v1/nodes{query}"), &[], "").await;
        assert_eq!(names_in(&told.body, "nodes", "name"), expected, "{query}");
    }
    // It sees its own writes at once in the responses.
    let body = apply(&json!([node("own-new", "own/web"), node("own-newer", "own/web")]));
    let told = send(&mut bound, "POST", "/v1/apply", &[JSON], &body).await;
    assert_eq!(names_in(&told.body, "objects", "action"), ["created", "created"], "{}", told.body);
    let told = send(&mut bound, "GET", "/v1/nodes", &[], "").await;
    assert_eq!(told.body["nodes"].as_array().unwrap().len(), 5, "{}", told.body);
}

/// Regression: a principal that was bound to a cluster in the meantime still got its earlier response about other
/// clusters.
#[tokio::test]
async fn stored_answer_is_returned_only_to_same_rights() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let key = "0198c0de-0000-7000-8000-000000000016";
    let (path, body) = (format!("/v1/requests/{key}"), json!({"name": "n", "nodegroup": "far/web"}).to_string());
    let post = async |client: &mut Client| send(client, "POST", "/v1/nodes", &[JSON, ("idempotency-key", key)], &body).await;
    let otto = json!({"name": "otto", "role": "operator"});
    let mut client = create_principal(&fleet, "otto", "operator", None).await;
    let made = post(&mut client).await;
    assert_eq!((made.status, post(&mut client).await.body), (201, made.body.clone()));
    let change_to = async |fields: Value| {
        let (status, told) = fleet.request(Method::PATCH, "/v1/principals/otto", &fields).await;
        assert_eq!(status, 200, "{told}");
    };
    for other in [json!({"cluster": "own"}), json!({"cluster": null, "role": "viewer"})] {
        change_to(other.clone()).await;
        let revision = fleet.last_revision().await;
        for told in [post(&mut client).await, send(&mut client, "GET", &path, &[], "").await] {
            assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "{other}: {}", told.body);
            let text = told.body.to_string();
            // A principal that may no longer write at all does not get the result.
            let is_told = text.contains("was made") || text.contains("Permission denied: otto (viewer) cannot do this: ");
            assert!(is_told && !text.contains("far"), "{other}: {text}");
        }
        let asked = send(&mut client, "GET", &path, &[], "").await.body.to_string();
        assert!(asked.contains("was made"), "{other}: {asked}");
        assert_eq!(fleet.last_revision().await, revision, "{other}: nothing is written");
    }
    for role in ["operator", "admin"] {
        change_to(json!({"role": role})).await;
        assert_eq!(post(&mut client).await.body, made.body, "{role}: it may do the same again, or more");
    }
    // Another principal with the same name has not sent the request.
    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/otto", &Value::Null).await;
    assert_eq!(status, 204);
    let (status, _) = fleet.request(Method::POST, "/v1/principals", &otto).await;
    assert_eq!(status, 201);
    let mut client = client_with_certificate(&fleet, "otto").await.0;
    let (posted, asked) = (post(&mut client).await, send(&mut client, "GET", &path, &[], "").await);
    assert_eq!((posted.status, &*posted.kind), (409, "object.exists"), "{}", posted.body);
    assert_eq!((asked.status, &*asked.kind), (404, "object.not_found"), "{}", asked.body);
}

/// Regression: a principal that is bound to a cluster saw the later name of a node that had left the cluster.
#[tokio::test]
async fn x04_f15_audit_shows_old_name_when_object_leaves_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut vera = create_principal(&fleet, "vera", "viewer", Some("own")).await;
    let mut wim = create_principal(&fleet, "wim", "viewer", Some("far")).await;
    fleet.apply(json!([node("mover", "own/web"), node("stray", "own/web")])).await;
    let mut uuids = Vec::new();
    let elsewhere = json!({"op": "replace", "path": "/nodegroup", "value": "far/web"});
    for (name, leaves) in [("mover", elsewhere), ("stray", json!({"op": "remove", "path": "/nodegroup"}))] {
        uuids.push(fleet.read(&format!("/v1/nodes/{name}")).await["uuid"].as_str().unwrap().to_owned());
        let patch = json!([{"op": "replace", "path": "/name", "value": format!("{name}-anew")}, leaves]);
        let (status, told) = fleet.request(Method::PATCH, &format!("/v1/nodes/{name}"), &patch).await;
        assert_eq!(status, 200, "{told}");
    }
    let names = async |client: &mut Client, object: &str| -> Vec<String> {
        let audit = send(client, "GET", &format!("/v1/audit?object=node/{object}"), &[], "").await.body;
        let entries = audit["audit"].as_array().unwrap().iter();
        let objects = entries.flat_map(|entry| entry["objects"].as_array().unwrap());
        let own = objects.filter(|one| one["kind"] == "node" && uuids.iter().any(|uuid| one["uuid"] == **uuid));
        own.map(|one| format!("{} {}", one["action"].as_str().unwrap(), one["name"].as_str().unwrap())).collect()
    };
    let of_vera = ["created mover", "created stray", "updated mover"];
    assert_eq!(names(&mut vera, &uuids[0]).await, of_vera, "the entry that made both has both");
    assert_eq!(names(&mut vera, "mover").await, of_vera);
    assert_eq!(names(&mut vera, &uuids[1]).await, ["created mover", "created stray", "updated stray"]);
    for unseen in ["mover-anew", "stray-anew"] {
        assert_eq!(names(&mut vera, unseen).await, Vec::<String>::new(), "a guessed name is not confirmed");
    }
    assert_eq!(names(&mut wim, "mover-anew").await, ["updated mover-anew"]);
    assert_eq!(names(&mut wim, "mover").await, Vec::<String>::new());
    let of_all = ["created mover", "created stray", "updated mover-anew"];
    assert_eq!(names(&mut fleet.admin_client(), "mover-anew").await, of_all, "who sees all sees what it was before");
    let whole = send(&mut vera, "GET", "/v1/audit", &[], "").await.body.to_string();
    assert!(whole.contains("mover") && !whole.contains("-anew"), "{whole}");
}

/// The values of a node from one cluster are hidden in another, and those from the new cluster are hidden in the first.
#[tokio::test]
async fn y09_bound_audit_shows_values_of_own_cluster() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut vera = create_principal(&fleet, "vera", "viewer", Some("own")).await;
    let mut wim = create_principal(&fleet, "wim", "viewer", Some("far")).await;
    fleet.apply(json!([node("mover", "own/web")])).await;
    let described = |text: &str| json!({"op": "add", "path": "/description", "value": text});
    let elsewhere = json!({"op": "replace", "path": "/nodegroup", "value": "far/web"});
    for patch in [json!([described("first")]), json!([described("second"), elsewhere]), json!([described("third")])] {
        let (status, told) = fleet.request(Method::PATCH, "/v1/nodes/mover", &patch).await;
        assert_eq!(status, 200, "{told}");
    }
    let uuid = fleet.read("/v1/nodes/mover").await["uuid"].as_str().unwrap().to_owned();
    let first = json!([{"field": "description", "after": "first"}]);
    let third = json!([{"field": "description", "before": "second", "after": "third"}]);
    let not_shown = json!("not_shown");
    for (client, expected, unseen) in [
        (&mut vera, [(&first, &Value::Null), (&Value::Null, &not_shown)], ["second", "third"]),
        (&mut wim, [(&Value::Null, &not_shown), (&third, &Value::Null)], ["first", "own/web"]),
    ] {
        let audit = send(client, "GET", &format!("/v1/audit?object=node/{uuid}"), &[], "").await.body;
        let objects = audit["audit"].as_array().unwrap().iter().flat_map(|one| one["objects"].as_array().unwrap());
        let updates = objects.filter(|one| one["action"] == "updated" && one["uuid"] == *uuid);
        let told: Vec<_> = updates.map(|one| (&one["changes"], &one["changes_left_out"])).collect();
        assert_eq!(told, expected, "{audit}");
        for text in unseen {
            assert!(!audit.to_string().contains(text), "{text}: {audit}");
        }
    }
}

/// Regression: a principal that was created again under a name saw the reasons, addresses and requests of the previous
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
    let mut first = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let forbidden = send(&mut first, "POST", "/v1/clustertemplates", &[JSON], &template).await;
    assert_eq!((forbidden.status, &*forbidden.kind), (403, "auth.forbidden"), "{}", forbidden.body);
    fleet.wait_until_audited("otto", "auth.forbidden", 1).await;
    let headers = [JSON, ("idempotency-key", key), ("stemma-reason", "ticket seven")];
    let body = json!({"nodegroup": "own/web"}).to_string();
    let told = send(&mut first, "POST", "/v1/join-tokens", &headers, &body).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let of_otto = async |client: &mut Client| {
        let audit = send(client, "GET", "/v1/audit", &[], "").await.body;
        let entries = audit["audit"].as_array().unwrap().iter().filter(|one| one["principal"] == "otto");
        let said: Vec<String> = entries.map(|one| format!("{} {}", one["refused"], one["reason"])).collect();
        said
    };
    let all = [r#""auth.forbidden" null"#, r#"null "ticket seven""#];
    assert_eq!(of_otto(&mut vera).await, all, "who sees its principal sees what it did");
    assert_eq!(of_otto(&mut wim).await, Vec::<String>::new());

    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/otto", &Value::Null).await;
    assert_eq!(status, 204);
    let mut second = create_principal(&fleet, "otto", "operator", Some("far")).await;
    for client in [&mut wim, &mut second] {
        assert_eq!(of_otto(client).await, Vec::<String>::new());
    }
    assert_eq!(of_otto(&mut fleet.admin_client()).await, all, "who sees all sees it still");
    let told = send(&mut second, "GET", &format!("/v1/requests/{key}"), &[], "").await;
    assert_eq!((told.status, &*told.kind), (404, "object.not_found"), "{}", told.body);
    let body = json!({"nodegroup": "far/web"}).to_string();
    let told = send(&mut second, "POST", "/v1/join-tokens", &[JSON, ("idempotency-key", key)], &body).await;
    assert_eq!(told.status, 201, "its key is its own: {}", told.body);
    // The certificate of the previous principal does not authenticate the new one with the same name.
    let told = send(&mut first, "GET", "/v1/nodes", &[], "").await;
    assert_eq!((told.status, &*told.kind), (403, "auth.revoked"), "{}", told.body);
    fleet.wait_until_audited("otto", "auth.revoked", 1).await;
    assert_eq!(of_otto(&mut wim).await, ["null null"], "the join token of the second one and no more");
    let forbidden = send(&mut second, "POST", "/v1/clustertemplates", &[JSON], &template).await;
    assert_eq!(forbidden.status, 403, "{}", forbidden.body);
    fleet.wait_until_audited("otto", "auth.forbidden", 2).await;
    assert_eq!(of_otto(&mut wim).await, ["null null", r#""auth.forbidden" null"#]);
    // The join token of the second principal is deleted with it.
    let (status, _) = fleet.request(Method::DELETE, "/v1/principals/otto", &Value::Null).await;
    assert_eq!(status, 204);
    let left = fleet.read("/v1/join-tokens").await;
    assert!(!left.to_string().contains("otto"), "{left}");
}

/// An earlier version recorded names only, and stored requests under them.
#[tokio::test]
async fn x04_f11_old_records_belong_to_principal_of_record_time() {
    let fleet = Fleet::start().await;
    two_clusters(&fleet).await;
    let mut otto = create_principal(&fleet, "otto", "operator", Some("own")).await;
    let stored = fleet.read("/v1/principals/otto").await;
    let uuid: Uuid = stored["uuid"].as_str().unwrap().parse().unwrap();
    let made = fleet.parts().registry.cache().model().principals.get(uuid).unwrap().meta.created_at.0;
    let refusal = |at: u64| {
        let address = format!("192.0.2.1:{at}");
        codec::encode(&json!({"at": at, "principal": "otto", "address": address, "refused": "x", "unsaid": 0}))
    };
    let cluster = fleet.read("/v1/clusters/own").await["uuid"].clone();
    let record = |at: u64| {
        let asked_by = json!({"role": "operator", "within": cluster});
        codec::encode(&json!({"at": at, "hash": "h", "answer": {"status": 201}, "asked_by": asked_by}))
    };
    let written = Transaction::new()
        .put_at_revision(key::AUDIT, refusal(made - 1000))
        .put(key::request("otto", Uuid::from_u128(1)), record(made - 1000))
        .put(key::request("otto", Uuid::from_u128(2)), record(made));
    let store = fleet.parts().registry.store();
    store.commit(written).await.unwrap();
    let written = store.commit(Transaction::new().put_at_revision(key::AUDIT, refusal(made))).await.unwrap();
    fleet.parts().registry.cache().wait_for(written).await;
    let audit = send(&mut otto, "GET", "/v1/audit?refused=true", &[], "").await.body;
    let addresses: Vec<&Value> = audit["audit"].as_array().unwrap().iter().map(|one| &one["address"]).collect();
    assert_eq!(addresses, [&json!(format!("192.0.2.1:{made}"))], "{audit}");
    for (id, status) in [(1, 404), (2, 200)] {
        let told = send(&mut otto, "GET", &format!("/v1/requests/{}", Uuid::from_u128(id)), &[], "").await;
        assert_eq!(told.status, status, "{}", told.body);
    }
}
