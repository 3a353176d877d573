//! Edits by which two tasks of a node get the same path. If a template gives one of the paths, each call that can cause
//! this reports the conflict, in a dry run and in a real run. A release that newly brings two equal literal paths to a
//! node is refused.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

const JSON: (&str, &str) = ("content-type", "application/json");
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");
const PATCH: (&str, &str) = ("content-type", "application/json-patch+json");
const BODY: (&str, &str) = ("prefer", "return=representation");

/// A call: method, path, content type, body.
type EditCall = (&'static str, &'static str, (&'static str, &'static str), Value);

/// Builds a task that writes this path, and runs on nodes with this tag.
fn file(id: &str, path: &str, tag: &str) -> Value {
    json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": path, "content": id}})
}

/// Builds a site with the node n, whose task a writes `/etc/z`. An edit can change a label or parameter in the path of
/// another task of n, or bring a task with this path to n. All paths but that of task a are templates, because a write
/// of a level that brings two equal literal paths to a node is refused.
fn site() -> Value {
    // A level has a label and a parameter whose value is their own name. An edit sets one of them to `z`.
    let level = |name: &str| json!({name: name});
    let params = |name: &str| json!({(format!("p{name}")): format!("p{name}")});
    let mut conditional = file("conditional", "/etc/{{ 'z' }}", "x");
    conditional["condition"] = json!("labels.on == '1'");
    let label = |name: &str| file(&format!("label-{name}"), &format!("/etc/{{{{ labels.{name} }}}}"), "x");
    let param = |name: &str| file(&format!("param-{name}"), &format!("/etc/{{{{ params.p{name} }}}}"), "x");
    let mut tasks = vec![file("a", "/etc/z", "x"), file("b", "/etc/{{ 'z' }}", "y"), conditional];
    tasks.extend(["t", "c", "g", "n"].map(label));
    tasks.extend(["t", "c", "g"].map(param));
    let mut tasks_of_next_version = tasks.clone();
    tasks_of_next_version.push(file("later", "/etc/{{ 'z' }}", "x"));
    let roles = json!({"all": {"tags": ["x"]}, "one": {"tags": ["y"]}});
    let release = |version: &str, tasks: &[Value]| json!({"kind": "Release", "name": "r", "version": version, "roles": roles, "tags": {"x": {}, "y": {}}, "tasks": tasks});
    let mut labels = level("n");
    labels["on"] = json!("0");
    json!([
        release("1", &tasks),
        release("2", &tasks_of_next_version),
        {"kind": "ClusterTemplate", "name": "t", "release": "r@1", "labels": level("t"), "parameters": params("t")},
        {"kind": "Cluster", "name": "c", "cluster_template": "t", "merge_labels": true, "labels": level("c"), "parameters": params("c")},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"], "merge_labels": true, "labels": level("g"), "parameters": params("g")},
        {"kind": "NodeGroup", "cluster": "c", "name": "both", "roles": ["all", "one"], "merge_labels": true, "labels": level("g"), "parameters": params("g")},
        {"kind": "Node", "name": "n", "nodegroup": "c/g", "merge_labels": true, "labels": labels},
    ])
}

/// Returns edits of the objects of [`site`]. Each edit alone gives two tasks of node n the same path.
fn edits() -> Vec<EditCall> {
    let (node, group, cluster, template) =
        ("/v1/nodes/n", "/v1/clusters/c/nodegroups/g", "/v1/clusters/c", "/v1/clustertemplates/t");
    let set_to_z = |field: &str, name: &str| json!({field: {name: "z"}});
    vec![
        ("POST", "/v1/nodes/n/roles", JSON, json!({"roles": ["one"]})),
        ("PUT", "/v1/nodes/n/roles", JSON, json!({"roles": ["one"]})),
        ("PATCH", node, MERGE, json!({"roles": ["one"]})),
        ("PATCH", node, PATCH, json!([{"op": "add", "path": "/roles", "value": ["one"]}])),
        ("POST", "/v1/nodes/n/tags", JSON, json!({"assign": ["y"]})),
        ("PUT", "/v1/nodes/n/tags/y", JSON, Value::Null),
        ("PATCH", node, MERGE, json!({"nodegroup": "c/both"})),
        ("PATCH", node, MERGE, set_to_z("labels", "n")),
        ("PATCH", node, MERGE, json!({"labels": {"on": "1"}})),
        ("PATCH", "/v1/nodes/n/labels", JSON, json!({"n": "z"})),
        ("PATCH", group, MERGE, set_to_z("labels", "g")),
        ("PATCH", group, MERGE, set_to_z("parameters", "pg")),
        ("PATCH", group, MERGE, json!({"roles": ["all", "one"]})),
        ("PATCH", group, MERGE, json!({"release": "r@2"})),
        ("PATCH", "/v1/clusters/c/nodegroups/g/labels", JSON, json!({"g": "z"})),
        ("PATCH", cluster, MERGE, set_to_z("labels", "c")),
        ("PATCH", cluster, MERGE, set_to_z("parameters", "pc")),
        ("PATCH", cluster, MERGE, json!({"release": "r@2"})),
        ("PATCH", "/v1/clusters/c/labels", JSON, json!({"c": "z"})),
        ("PUT", "/v1/clusters/c/roles", JSON, json!({"roles": {"all": {"add_tags": ["y"]}}})),
        ("PATCH", template, MERGE, set_to_z("labels", "t")),
        ("PATCH", template, MERGE, set_to_z("parameters", "pt")),
        ("PATCH", template, MERGE, json!({"release": "r@2"})),
        ("PATCH", "/v1/clustertemplates/t/labels", JSON, json!({"t": "z"})),
    ]
}

/// Sends a call with this query, and requests the changed object in the response. A body that is `null` is not sent.
async fn send_call(server: &TestApi, (method, path, content_type, body): &EditCall, query: &str) -> ApiResponse {
    server.send(method, &format!("{path}{query}"), &[*content_type, BODY], Some(body).filter(|body| !body.is_null())).await
}

fn has_path_conflict(answer: &ApiResponse) -> bool {
    let findings = answer.body["findings"].as_array();
    findings.is_some_and(|list| list.iter().any(|finding| finding["code"] == "task.path" && finding["severity"] == "error"))
}

#[tokio::test]
async fn y01_edit_lists_path_conflict_and_fails_when_strict() {
    for call in edits() {
        let server = TestApi::start().await;
        let apply_answer = server.expect("POST", "/v1/apply", &json!({"objects": site()}), 200).await;
        assert!(!apply_answer.to_string().contains("task.path"), "no two tasks have the same path yet: {apply_answer}");
        let dry_run_answer = send_call(&server, &call, "?dry_run=true").await;
        assert!(
            dry_run_answer.status < 300 && has_path_conflict(&dry_run_answer),
            "{call:?} as a dry run: {} {}",
            dry_run_answer.status,
            dry_run_answer.body
        );
        let strict_answer = send_call(&server, &call, "?strict=true").await;
        assert_eq!((strict_answer.status, strict_answer.kind()), (400, "finding.strict"), "{call:?}: {}", strict_answer.body);
        let answer = send_call(&server, &call, "").await;
        assert!(answer.status < 300 && has_path_conflict(&answer), "{call:?}: {} {}", answer.status, answer.body);
        let node = server.get("/v1/nodes/n").await;
        assert!(node["findings"].to_string().contains("task.path"), "{call:?}: {node}");
    }
}

/// Two tasks of one node have the same path. Regression: the write was refused, although a task in mode `observe`
/// writes nothing.
#[tokio::test]
async fn y01_write_accepts_observed_task_at_same_path() {
    for (first_mode, second_mode, status) in [
        ("apply", "apply", 400),
        ("observe", "apply", 200),
        ("apply", "observe", 200),
        ("observe", "observe", 200),
        ("noop", "apply", 400),
    ] {
        let task_in_mode = |id: &str, mode: &str| json!({"id": id, "type": "file", "tags": ["x"], "mode": mode, "parameters": {"path": "/etc/z", "content": id}});
        let objects = json!([
            {"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}}, "tasks": [task_in_mode("a", first_mode), task_in_mode("b", second_mode)]},
            {"kind": "Cluster", "name": "c", "release": "r@1"},
            {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
            {"kind": "Node", "name": "n", "nodegroup": "c/g"},
        ]);
        let server = TestApi::start().await;
        let answer = server.expect("POST", "/v1/apply", &json!({"objects": objects}), status).await;
        let is_refused = answer["error"]["field"] == "task b parameters.path";
        assert_eq!(is_refused, status == 400, "{first_mode} {second_mode}: {answer}");
        if !is_refused {
            let node = server.get("/v1/nodes/n").await;
            assert!(!node["findings"].to_string().contains("task.path"), "{first_mode} {second_mode}: {node}");
        }
    }
}

/// Task a has tag x, and all other tasks have tag y. The paths `/bin/1` and `/usr/bin/1` count as one. Regression: two
/// tasks that already conflict at one path could conflict at any other path too. A new version that moved both tasks to
/// another path was accepted.
#[tokio::test]
async fn y01_conflicting_tasks_keep_path_and_reject_new_conflict() {
    let objects = |version: &str, tasks: &[Value]| {
        json!([
            {"kind": "Release", "name": "q", "version": version, "roles": {"all": {"tags": ["x"]}, "one": {"tags": ["y"]}},
                "tags": {"x": {}, "y": {}}, "tasks": tasks},
            {"kind": "Cluster", "name": "c", "release": format!("q@{version}")},
        ])
    };
    let build_tasks = |paths: &[(&str, &str)]| -> Vec<Value> {
        paths.iter().map(|(id, path)| file(id, path, if *id == "a" { "x" } else { "y" })).collect()
    };
    for (old_paths, new_paths, refused_task) in [
        (&[("a", "/etc/1"), ("b", "/etc/1")][..], &[("a", "/etc/2"), ("b", "/etc/2")][..], Some("b")),
        (&[("a", "/etc/1"), ("b", "/etc/1")], &[("a", "/etc/1"), ("b", "/etc/1/z")], Some("b")),
        (&[("a", "/etc/1"), ("b", "/etc/1")], &[("a", "/etc/1"), ("b", "/etc/1"), ("c", "/etc/1")], Some("c")),
        (&[("a", "/etc/1"), ("b", "/etc/1")], &[("a", "/etc/1"), ("b", "/etc/1"), ("c", "/etc/3")], None),
        (&[("a", "/bin/1"), ("b", "/bin/1")], &[("a", "/usr/bin/1"), ("b", "/usr/bin/1")], None),
        (&[("a", "/etc/1"), ("b", "/etc/1"), ("c", "/etc/1")], &[("b", "/etc/1"), ("c", "/etc/1")], None),
    ] {
        let server = TestApi::start().await;
        server.expect("POST", "/v1/apply", &json!({"objects": objects("1", &build_tasks(old_paths))}), 200).await;
        let group = json!([
            {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
            {"kind": "Node", "name": "n", "nodegroup": "c/g"},
        ]);
        server.expect("POST", "/v1/apply", &json!({"objects": group}), 200).await;
        let assign_answer = send_call(&server, &("PUT", "/v1/nodes/n/tags/y", JSON, Value::Null), "").await;
        assert!(
            assign_answer.status < 300 && has_path_conflict(&assign_answer),
            "{old_paths:?}: {} {}",
            assign_answer.status,
            assign_answer.body
        );
        let status = if refused_task.is_some() { 400 } else { 200 };
        let answer = server.expect("POST", "/v1/apply", &json!({"objects": objects("2", &build_tasks(new_paths))}), status).await;
        let field = refused_task.map(|task| format!("task {task} parameters.path"));
        assert_eq!(answer["error"]["field"].as_str(), field.as_deref(), "{old_paths:?} {new_paths:?}: {answer}");
    }
}
