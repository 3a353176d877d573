//! Writes with `strict=true`, which are refused for the findings that they cause, and the number of task sets that a
//! write changes.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];

/// Creates two hosts that read the label `tier` of their template, and nothing else.
async fn site(served: &TestApi) {
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
    served.expect("POST", "/v1/apply?manager=git&strict=true", &json!({"objects": objects}), 200).await;
}

async fn write(served: &TestApi, method: &str, path: &str, body: &Value) -> ApiResponse {
    let headers = if method == "PATCH" { MERGE } else { &[] };
    served.send(method, path, headers, Some(body).filter(|body| !body.is_null())).await
}

/// Returns the labels of the hosts and of the template.
async fn labels(served: &TestApi) -> Value {
    let mut labels = Vec::new();
    for path in ["/v1/nodes/web-1", "/v1/nodes/web-2", "/v1/clustertemplates/base"] {
        labels.push(served.get(path).await["labels"].clone());
    }
    labels.into()
}

#[tokio::test]
async fn y09_strict_write_fails_in_each_form_when_finding_is_new() {
    let served = TestApi::start().await;
    site(&served).await;
    let before = labels(&served).await;
    let group = "/v1/clusters/prod/nodegroups/web";
    for (method, path, body) in [
        ("PUT", "/v1/clustertemplates/base/labels".to_owned(), json!({"labels": {"other": "x"}})),
        ("PATCH", "/v1/clustertemplates/base/labels".to_owned(), json!({"tier": null})),
        ("PATCH", "/v1/clustertemplates/base".to_owned(), json!({"labels": {"tier": null}})),
        ("POST", format!("{group}/labels/tombstones"), json!({"keys": ["tier"]})),
        ("POST", "/v1/nodes/web-1/labels/tombstones".to_owned(), json!({"keys": ["tier"]})),
    ] {
        for query in ["?strict=true", "?strict=true&dry_run=true"] {
            let refused = write(&served, method, &format!("{path}{query}"), &body).await;
            let said = refused.message();
            assert_eq!((refused.status, refused.kind()), (400, "finding.strict"), "{method} {path}: {}", refused.body);
            assert!(said.starts_with("a strict write, and 1 warning among the findings"), "{said}");
            assert!(said.ends_with("nothing was changed"), "{said}");
            let found = refused.body["findings"].to_string();
            assert!(found.contains("reference.unset") && found.contains("labels.tier"), "{found}");
            assert_eq!(labels(&served).await, before, "{method} {path}{query}");
        }
        let plain = write(&served, method, &format!("{path}?dry_run=true&strict=false"), &body).await;
        assert_eq!(plain.status, 200, "{method} {path}: {}", plain.body);
    }
    let odd = write(&served, "PATCH", "/v1/nodes/web-1/labels?strict=perhaps", &json!({"a": "b"})).await;
    assert_eq!((odd.status, odd.kind()), (400, "request.query"), "{}", odd.body);
}

#[tokio::test]
async fn y09_apply_reports_when_adopted_manager_owns_nothing() {
    let served = TestApi::start().await;
    site(&served).await;
    let node = |more: Value| {
        let mut node = json!({"kind": "Node", "name": "web-1", "nodegroup": "prod/web"});
        node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"objects": [node]})
    };
    for more in [
        json!({"labels": {"a": "b"}}),
        json!({"annotations": {"a": "b"}}),
        json!({"parameters": {"a": "b"}}),
        json!({"traits": ["CUSTOM_A"]}),
        json!({"parked": true}),
    ] {
        served.expect("POST", "/v1/apply?manager=team", &node(more.clone()), 200).await;
        for (from, said) in [
            ("team", None),
            ("team:apply", None),
            ("nobody", Some("nobody owns nothing of these objects")),
            ("Team", Some("Team owns nothing of these objects, so nothing was taken over from it (did you mean 'team'?)")),
        ] {
            let path = format!("/v1/apply?manager=other&dry_run=true&adopt={from}");
            let applied = served.send("POST", &path, &[], Some(&node(more.clone()))).await;
            assert_eq!(applied.status, 200, "{from}: {}", applied.body);
            let warning = applied.warning.unwrap_or_default();
            assert_eq!(warning.contains("owns nothing"), said.is_some(), "{more} {from}: {warning}");
            assert!(warning.contains(said.unwrap_or_default()), "{more} {from}: {warning}");
        }
        served.expect("POST", "/v1/apply?manager=team", &node(json!({})), 200).await;
    }
}

#[tokio::test]
async fn y09_conflict_names_empty_adoption_and_rejects_bad_manager() {
    let served = TestApi::start().await;
    site(&served).await;
    let node =
        |value: &str| json!({"objects": [{"kind": "Node", "name": "web-1", "nodegroup": "prod/web", "labels": {"a": value}}]});
    served.expect("POST", "/v1/apply?manager=team", &node("b"), 200).await;
    let nothing = "owns nothing of these objects, so nothing was taken over from it";
    let (of_nobody, of_tema) = (
        format!("nobody {nothing}; nothing was changed"),
        format!("tema {nothing} (did you mean \"team\"?); nothing was changed"),
    );
    for (from, status, kind, said) in [
        ("nobody", 409, "label.conflict", Some(of_nobody.as_str())),
        ("tema", 409, "label.conflict", Some(of_tema.as_str())),
        ("team:", 400, "request.query", None),
        ("team%20", 400, "request.query", None),
        ("team,nobody", 400, "request.query", None),
        ("team:updat", 400, "request.query", None),
        ("nobody:aply", 400, "request.query", None),
    ] {
        let path = format!("/v1/apply?manager=other&adopt={from}");
        let refused = served.send("POST", &path, &[], Some(&node("c"))).await;
        assert_eq!((refused.status, refused.kind()), (status, kind), "{from}: {}", refused.body);
        assert_eq!(refused.body["warning"].as_str(), said, "{from}: {}", refused.body);
    }
    served.expect("POST", "/v1/apply?manager=other&adopt=team:apply", &node("c"), 200).await;
}

#[tokio::test]
async fn y09_strict_write_succeeds_when_finding_is_old() {
    let served = TestApi::start().await;
    site(&served).await;
    let path = "/v1/clustertemplates/base/labels";
    assert_eq!(write(&served, "PATCH", &format!("{path}?strict=true"), &json!({"ntp": "a"})).await.status, 200);
    assert_eq!(write(&served, "PATCH", path, &json!({"tier": null})).await.status, 200);
    // Both hosts lack the label already. A change of another label or of a name does not make that new.
    for (method, path, body, status) in [
        ("PATCH", "/v1/clustertemplates/base/labels", json!({"ntp": "b"}), 200),
        ("PATCH", "/v1/nodes/web-1/labels", json!({"rack": "7"}), 200),
        ("PATCH", "/v1/nodes/web-2", json!({"name": "web-9"}), 200),
        ("DELETE", "/v1/nodes/web-9", Value::Null, 204),
    ] {
        let made = write(&served, method, &format!("{path}?strict=true"), &body).await;
        assert_eq!(made.status, status, "{method} {path}: {}", made.body);
    }
    // A host that lacks it for the first time is new.
    let node = json!({"name": "web-3", "nodegroup": "prod/web"});
    let refused = write(&served, "POST", "/v1/nodes?strict=true", &node).await;
    assert_eq!((refused.status, refused.kind()), (400, "finding.strict"), "{}", refused.body);
    assert_eq!(served.send("GET", "/v1/nodes/web-3", &[], None).await.status, 404);
    assert_eq!(write(&served, "POST", "/v1/nodes", &node).await.status, 201);
}

#[tokio::test]
async fn y09_dry_run_names_hosts_with_changed_task_sets() {
    let served = TestApi::start().await;
    site(&served).await;
    let own = json!({"tier": "own"});
    assert_eq!(write(&served, "PATCH", "/v1/nodes/web-2/labels", &own).await.status, 200);
    let mut uuids = Vec::new();
    for node in ["web-1", "web-2"] {
        uuids.push(served.get(&format!("/v1/nodes/{node}")).await["uuid"].clone());
    }
    // The task set contains what its template reads of the host: `tier` alone. web-2 sets its own.
    for (method, path, body, reached, changed) in [
        ("PATCH", "/v1/clustertemplates/base/labels", json!({"unused": "1"}), 2, vec![]),
        ("PATCH", "/v1/clustertemplates/base/labels", json!({"tier": "silver"}), 2, vec![0]),
        ("PATCH", "/v1/nodes/web-2/labels", json!({"tier": "other"}), 1, vec![1]),
        ("PATCH", "/v1/nodes/web-2/labels", json!({"tier": null}), 1, vec![1]),
        ("PATCH", "/v1/nodes/web-1/labels", json!({"rack": "7"}), 1, vec![]),
        ("PATCH", "/v1/nodes/web-1", json!({"nodegroup": null}), 1, vec![0]),
    ] {
        let tried = write(&served, method, &format!("{path}?dry_run=true"), &body).await;
        assert_eq!(tried.status, 200, "{path} {body}: {}", tried.body);
        let hosts = tried.body["hosts"].as_array().expect("a list");
        let expected: Vec<&Value> = changed.iter().map(|at: &usize| &uuids[*at]).collect();
        let told: Vec<&Value> = tried.body["changed_task_sets"].as_array().expect("a list").iter().collect();
        assert_eq!(told, expected, "{path} {body}");
        assert!(hosts.len() <= reached && told.iter().all(|node| hosts.contains(node)), "{path} {body}: {hosts:?}");
    }
    let made = write(&served, "PATCH", "/v1/nodes/web-1/labels", &json!({"rack": "7"})).await;
    assert_eq!((made.body.get("hosts"), made.body.get("changed_task_sets")), (None, None));
    let template = json!({"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "silver"}});
    let applied = json!({"objects": [template]});
    let tried = served.expect("POST", "/v1/apply?manager=git&dry_run=true", &applied, 200).await;
    assert_eq!(tried["changed_task_sets"], json!([uuids[0]]), "{tried}");
}
