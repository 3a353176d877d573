//! Tests of strict writes, of the hosts that a dry run lists, and of applies that adopt what another manager owns.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];

/// Creates two nodes with a task that reads the label `tier`. Only their cluster template provides this label.
async fn site(server: &TestApi) {
    let task = json!({"id": "conf", "type": "file", "tags": ["nginx"],
        "parameters": {"path": "/etc/conf", "template": "tier {{ labels.tier }}\n"}});
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["nginx"]}}, "tags": {"nginx": {}}, "tasks": [task]},
        {"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "gold"}},
        {"kind": "Cluster", "name": "prod", "cluster_template": "base"},
        {"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"]},
        {"kind": "Node", "name": "web-1", "nodegroup": "prod/web"},
        {"kind": "Node", "name": "web-2", "nodegroup": "prod/web"},
    ]);
    server.expect("POST", "/v1/apply?manager=git&strict=true", &json!({"objects": objects}), 200).await;
}

/// Sends a write. A PATCH is a merge patch. A body that is `null` is not sent.
async fn write(server: &TestApi, method: &str, path: &str, body: &Value) -> ApiResponse {
    let headers = if method == "PATCH" { MERGE } else { &[] };
    server.send(method, path, headers, Some(body).filter(|body| !body.is_null())).await
}

/// Returns the labels of both nodes and of the cluster template.
async fn labels(server: &TestApi) -> Value {
    let mut labels = Vec::new();
    for path in ["/v1/nodes/web-1", "/v1/nodes/web-2", "/v1/clustertemplates/base"] {
        labels.push(server.get(path).await["labels"].clone());
    }
    labels.into()
}

#[tokio::test]
async fn y09_strict_write_fails_in_each_form_when_finding_is_new() {
    let server = TestApi::start().await;
    site(&server).await;
    let labels_before = labels(&server).await;
    let group = "/v1/clusters/prod/nodegroups/web";
    for (method, path, body) in [
        ("PUT", "/v1/clustertemplates/base/labels".to_owned(), json!({"labels": {"other": "x"}})),
        ("PATCH", "/v1/clustertemplates/base/labels".to_owned(), json!({"tier": null})),
        ("PATCH", "/v1/clustertemplates/base".to_owned(), json!({"labels": {"tier": null}})),
        ("POST", format!("{group}/labels/tombstones"), json!({"keys": ["tier"]})),
        ("POST", "/v1/nodes/web-1/labels/tombstones".to_owned(), json!({"keys": ["tier"]})),
    ] {
        for query in ["?strict=true", "?strict=true&dry_run=true"] {
            let refusal = write(&server, method, &format!("{path}{query}"), &body).await;
            let message = refusal.message();
            assert_eq!((refusal.status, refusal.kind()), (400, "finding.strict"), "{method} {path}: {}", refusal.body);
            assert!(message.starts_with("a strict write, and 1 warning among the findings"), "{message}");
            assert!(message.ends_with("nothing was changed"), "{message}");
            let findings = refusal.body["findings"].to_string();
            assert!(findings.contains("reference.unset") && findings.contains("labels.tier"), "{findings}");
            assert_eq!(labels(&server).await, labels_before, "{method} {path}{query}");
        }
        // Without `strict`, the same write succeeds in spite of the finding.
        let answer = write(&server, method, &format!("{path}?dry_run=true&strict=false"), &body).await;
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
    }
    let bad_query_answer = write(&server, "PATCH", "/v1/nodes/web-1/labels?strict=perhaps", &json!({"a": "b"})).await;
    assert_eq!((bad_query_answer.status, bad_query_answer.kind()), (400, "request.query"), "{}", bad_query_answer.body);
}

/// Manager `team` owns keys and fields of a node, and another manager adopts them (`adopt=team`). An apply that adopts
/// from a manager that owns nothing has a warning.
#[tokio::test]
async fn y09_apply_reports_when_adopted_manager_owns_nothing() {
    let server = TestApi::start().await;
    site(&server).await;
    let node = |fields: Value| {
        let mut node = json!({"kind": "Node", "name": "web-1", "nodegroup": "prod/web"});
        node.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"objects": [node]})
    };
    for fields in [
        json!({"labels": {"a": "b"}}),
        json!({"annotations": {"a": "b"}}),
        json!({"parameters": {"a": "b"}}),
        json!({"traits": ["CUSTOM_A"]}),
        json!({"parked": true}),
    ] {
        server.expect("POST", "/v1/apply?manager=team", &node(fields.clone()), 200).await;
        for (adopted_manager, expected_warning) in [
            ("team", None),
            ("team:apply", None),
            ("nobody", Some("nobody owns nothing of these objects")),
            ("Team", Some("Team owns nothing of these objects, so nothing was taken over from it (did you mean 'team'?)")),
        ] {
            let path = format!("/v1/apply?manager=other&dry_run=true&adopt={adopted_manager}");
            let answer = server.send("POST", &path, &[], Some(&node(fields.clone()))).await;
            assert_eq!(answer.status, 200, "{adopted_manager}: {}", answer.body);
            let warning = answer.warning.unwrap_or_default();
            assert_eq!(warning.contains("owns nothing"), expected_warning.is_some(), "{fields} {adopted_manager}: {warning}");
            assert!(warning.contains(expected_warning.unwrap_or_default()), "{fields} {adopted_manager}: {warning}");
        }
        server.expect("POST", "/v1/apply?manager=team", &node(json!({})), 200).await;
    }
}

/// Manager `team` owns a label that another manager applies with another value. An apply that adopts from a manager
/// that owns nothing has a conflict and a warning. A text that is not `MANAGER` or `MANAGER:OPERATION` is refused.
#[tokio::test]
async fn y09_conflict_names_empty_adoption_and_rejects_bad_manager() {
    let server = TestApi::start().await;
    site(&server).await;
    let node =
        |value: &str| json!({"objects": [{"kind": "Node", "name": "web-1", "nodegroup": "prod/web", "labels": {"a": value}}]});
    server.expect("POST", "/v1/apply?manager=team", &node("b"), 200).await;
    let suffix = "owns nothing of these objects, so nothing was taken over from it";
    let (nobody_warning, tema_warning) =
        (format!("nobody {suffix}; nothing was changed"), format!("tema {suffix} (did you mean \"team\"?); nothing was changed"));
    for (adopted_manager, status, kind, expected_warning) in [
        ("nobody", 409, "label.conflict", Some(nobody_warning.as_str())),
        ("tema", 409, "label.conflict", Some(tema_warning.as_str())),
        ("team:", 400, "request.query", None),
        ("team%20", 400, "request.query", None),
        ("team,nobody", 400, "request.query", None),
        ("team:updat", 400, "request.query", None),
        ("nobody:aply", 400, "request.query", None),
    ] {
        let path = format!("/v1/apply?manager=other&adopt={adopted_manager}");
        let refusal = server.send("POST", &path, &[], Some(&node("c"))).await;
        assert_eq!((refusal.status, refusal.kind()), (status, kind), "{adopted_manager}: {}", refusal.body);
        assert_eq!(refusal.body["warning"].as_str(), expected_warning, "{adopted_manager}: {}", refusal.body);
    }
    server.expect("POST", "/v1/apply?manager=other&adopt=team:apply", &node("c"), 200).await;
}

#[tokio::test]
async fn y09_strict_write_succeeds_when_finding_is_old() {
    let server = TestApi::start().await;
    site(&server).await;
    let path = "/v1/clustertemplates/base/labels";
    assert_eq!(write(&server, "PATCH", &format!("{path}?strict=true"), &json!({"ntp": "a"})).await.status, 200);
    assert_eq!(write(&server, "PATCH", path, &json!({"tier": null})).await.status, 200);
    // Both nodes lack the label already, so none of these writes makes the finding new.
    for (method, path, body, status) in [
        ("PATCH", "/v1/clustertemplates/base/labels", json!({"ntp": "b"}), 200),
        ("PATCH", "/v1/nodes/web-1/labels", json!({"rack": "7"}), 200),
        ("PATCH", "/v1/nodes/web-2", json!({"name": "web-9"}), 200),
        ("DELETE", "/v1/nodes/web-9", Value::Null, 204),
    ] {
        let answer = write(&server, method, &format!("{path}?strict=true"), &body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
    }
    // For a node that is new, the missing label is a new finding.
    let node = json!({"name": "web-3", "nodegroup": "prod/web"});
    let refusal = write(&server, "POST", "/v1/nodes?strict=true", &node).await;
    assert_eq!((refusal.status, refusal.kind()), (400, "finding.strict"), "{}", refusal.body);
    assert_eq!(server.send("GET", "/v1/nodes/web-3", &[], None).await.status, 404);
    assert_eq!(write(&server, "POST", "/v1/nodes", &node).await.status, 201);
}

/// A dry run lists the hosts that the write affects (`hosts`), and those whose task set it changes
/// (`changed_task_sets`). A write that is no dry run lists neither.
#[tokio::test]
async fn y09_dry_run_names_hosts_with_changed_task_sets() {
    let server = TestApi::start().await;
    site(&server).await;
    let label = json!({"tier": "own"});
    assert_eq!(write(&server, "PATCH", "/v1/nodes/web-2/labels", &label).await.status, 200);
    let mut uuids = Vec::new();
    for node in ["web-1", "web-2"] {
        uuids.push(server.get(&format!("/v1/nodes/{node}")).await["uuid"].clone());
    }
    // The task set contains the only label that its template reads, `tier`. web-2 has its own value of that label.
    // `max_hosts` is the number of nodes below the object. `changed_indexes` are indexes of `uuids`.
    for (method, path, body, max_hosts, changed_indexes) in [
        ("PATCH", "/v1/clustertemplates/base/labels", json!({"unused": "1"}), 2, vec![]),
        ("PATCH", "/v1/clustertemplates/base/labels", json!({"tier": "silver"}), 2, vec![0]),
        ("PATCH", "/v1/nodes/web-2/labels", json!({"tier": "other"}), 1, vec![1]),
        ("PATCH", "/v1/nodes/web-2/labels", json!({"tier": null}), 1, vec![1]),
        ("PATCH", "/v1/nodes/web-1/labels", json!({"rack": "7"}), 1, vec![]),
        ("PATCH", "/v1/nodes/web-1", json!({"nodegroup": null}), 1, vec![0]),
    ] {
        let dry_run_answer = write(&server, method, &format!("{path}?dry_run=true"), &body).await;
        assert_eq!(dry_run_answer.status, 200, "{path} {body}: {}", dry_run_answer.body);
        let hosts = dry_run_answer.body["hosts"].as_array().expect("a list");
        let expected: Vec<&Value> = changed_indexes.iter().map(|index: &usize| &uuids[*index]).collect();
        let changed_nodes: Vec<&Value> = dry_run_answer.body["changed_task_sets"].as_array().expect("a list").iter().collect();
        assert_eq!(changed_nodes, expected, "{path} {body}");
        assert!(hosts.len() <= max_hosts && changed_nodes.iter().all(|node| hosts.contains(node)), "{path} {body}: {hosts:?}");
    }
    let answer = write(&server, "PATCH", "/v1/nodes/web-1/labels", &json!({"rack": "7"})).await;
    assert_eq!((answer.body.get("hosts"), answer.body.get("changed_task_sets")), (None, None));
    let template = json!({"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "silver"}});
    let manifest = json!({"objects": [template]});
    let dry_run_answer = server.expect("POST", "/v1/apply?manager=git&dry_run=true", &manifest, 200).await;
    assert_eq!(dry_run_answer["changed_task_sets"], json!([uuids[0]]), "{dry_run_answer}");
}
