//! Privileged tasks: no principal below admin can bring one to a node by any write. Other writes of an operator are
//! accepted.

use hyper::Method;
use serde_json::{Value, json};
use stemma_wire::client::Client;

use crate::fleet::{ErrorResponse, Fleet, new_request};
use crate::principals::clients::{ApiAnswer, JSON, create_principal, send};

const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

/// A write: method, path and body, and the privileged task that it would bring to a node.
type PrivilegedWrite = (&'static str, &'static str, Value, &'static str);

/// Builds a version of the release. The tasks `keys`, `crown` and `extra` are privileged, and `keys` has another
/// content in version 2.
fn release(version: &str) -> Value {
    let privileged = |id: &str, tag: &str, content: &str| {
        json!({"id": id, "type": "file", "tags": [tag], "privileged": true,
            "parameters": {"path": format!("/etc/{id}"), "content": content}})
    };
    let conf = json!({"id": "conf", "type": "file", "tags": ["app"], "parameters": {"path": "/etc/conf", "content": version}});
    let keys = privileged("keys", "nginx", if version == "2" { "two" } else { "one" });
    let tasks = match version {
        "0" => json!([conf]),
        _ => json!([conf, keys, privileged("crown", "primary-seat", "x"), privileged("extra", "extra", "x")]),
    };
    json!({"kind": "Release", "name": "site", "version": version, "tasks": tasks,
        "roles": {"app": {"tags": ["app"]}, "web": {"tags": ["nginx"]}},
        "tags": {"app": {}, "nginx": {}, "seat": {"has_primary": true}}})
}

/// Starts with a cluster `own` that runs the privileged tasks: on w1, and on a1 by a tag with a primary. Clusters `old`
/// and `below` run none.
async fn site() -> Fleet {
    let fleet = Fleet::start().await;
    let group = |cluster: &str, name: &str| json!({"kind": "NodeGroup", "cluster": cluster, "name": name, "roles": [name]});
    let node = |name: &str, group: &str, tags: Value| json!({"kind": "Node", "name": name, "nodegroup": group, "tags": tags});
    let seat = json!({"assigned": ["seat"]});
    fleet.apply(["0", "1", "2", "3"].map(release).to_vec().into()).await;
    fleet
        .apply(json!([
            {"kind": "ClusterTemplate", "name": "base", "release": "site@0"},
            {"kind": "ClusterTemplate", "name": "next", "release": "site@1"},
            {"kind": "Cluster", "name": "own", "release": "site@1"},
            {"kind": "Cluster", "name": "old", "release": "site@0"},
            {"kind": "Cluster", "name": "below", "cluster_template": "base"},
            group("own", "web"), group("own", "app"), group("old", "web"), group("below", "web"),
            node("w1", "own/web", json!({})), node("w2", "own/web", json!({"unassigned": ["nginx"]})),
            node("a1", "own/app", seat.clone()), node("a2", "own/app", seat),
            node("o1", "old/web", json!({})), node("b1", "below/web", json!({})),
        ]))
        .await;
    fleet
}

async fn write(client: &mut Client, method: &str, path: &str, body: &Value, tried: bool) -> ApiAnswer {
    let media = if method == "PATCH" { MERGE } else { JSON };
    let joined = if path.contains('?') { "&" } else { "?" };
    let path = if tried { format!("{path}{joined}dry_run=true") } else { path.to_owned() };
    match body {
        Value::Null => send(client, method, &path, &[], "").await,
        body => send(client, method, &path, &[media], &body.to_string()).await,
    }
}

fn message(told: &ApiAnswer) -> String {
    told.body["error"]["message"].as_str().unwrap_or_default().to_owned()
}

/// Returns the writes in cluster `own`, and those that bring such a task to other clusters.
fn privileged_writes() -> (Vec<PrivilegedWrite>, Vec<PrivilegedWrite>) {
    let web = json!({"roles": ["web"]});
    let apply = |objects: Value| json!({ "objects": objects });
    let own = vec![
        ("PUT", "/v1/nodes/a1/roles", web.clone(), "keys"),
        ("POST", "/v1/nodes/a1/roles", web, "keys"),
        ("PUT", "/v1/nodes/a1/tags/nginx", Value::Null, "keys"),
        ("POST", "/v1/nodes/a1/tags", json!({"assign": ["nginx"]}), "keys"),
        // The tag was unassigned, and is assigned again.
        ("PUT", "/v1/nodes/w2/tags/nginx", Value::Null, "keys"),
        ("PATCH", "/v1/nodes/a1", json!({"nodegroup": "own/web"}), "keys"),
        ("POST", "/v1/nodes", json!({"name": "new", "nodegroup": "own/web"}), "keys"),
        ("PATCH", "/v1/clusters/own/nodegroups/app", json!({"roles": ["app", "web"]}), "keys"),
        ("PUT", "/v1/clusters/own/roles", json!({"roles": {"app": {"add_tags": ["nginx"]}}}), "keys"),
        ("POST", "/v1/clusters/own/tags", json!({"name": "extra", "role": "app"}), "extra"),
        // A task with the same id and another content.
        ("PATCH", "/v1/clusters/own", json!({"release": "site@2"}), "keys"),
        // A primary moves.
        ("DELETE", "/v1/nodes/a1/tags/seat", Value::Null, "crown"),
        ("DELETE", "/v1/nodes/a1", Value::Null, "crown"),
        ("PATCH", "/v1/nodes/a1?release_primary=true", json!({"parked": true}), "crown"),
        ("PUT", "/v1/clusters/own/primaries/seat", json!({"node": "a2"}), "crown"),
        ("PATCH", "/v1/clusters/own", json!({"primaries": {"seat": "a2"}}), "crown"),
        ("POST", "/v1/apply", apply(json!([{"kind": "Node", "name": "new", "nodegroup": "own/web"}])), "keys"),
        (
            "POST",
            "/v1/apply?force=true",
            apply(json!([{"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["web"]}])),
            "keys",
        ),
        ("POST", "/v1/join-tokens", json!({"nodegroup": "own/web"}), "keys"),
        // A host joins as an existing node.
        ("POST", "/v1/join-tokens", json!({"node": "w1"}), "keys"),
        ("POST", "/v1/join-tokens", json!({"node": "a1"}), "crown"),
    ];
    let elsewhere = vec![
        ("PATCH", "/v1/clusters/old", json!({"release": "site@1"}), "keys"),
        ("PATCH", "/v1/clusters/old/nodegroups/web", json!({"release": "site@1"}), "keys"),
        ("PATCH", "/v1/nodes/o1", json!({"nodegroup": "own/web"}), "keys"),
        ("PATCH", "/v1/clustertemplates/base", json!({"release": "site@1"}), "keys"),
        ("POST", "/v1/clusters/below/actions/upgrade", json!({"cluster_template": "next"}), "keys"),
        (
            "POST",
            "/v1/apply",
            apply(json!([
                {"kind": "Cluster", "name": "fresh", "release": "site@1"},
                {"kind": "NodeGroup", "cluster": "fresh", "name": "web", "roles": ["web"]},
                {"kind": "Node", "name": "new", "nodegroup": "fresh/web"},
            ])),
            "keys",
        ),
    ];
    (own, elsewhere)
}

#[tokio::test]
async fn x04_privileged_task_requires_admin_in_every_write() {
    let fleet = site().await;
    let mut admin = create_principal(&fleet, "ada", "admin", None).await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let mut bound = create_principal(&fleet, "bo", "operator", Some("own")).await;
    let (own, elsewhere) = privileged_writes();
    let revision = fleet.last_revision().await;
    for (is_own, (method, path, body, task)) in own.iter().map(|way| (true, way)).chain(elsewhere.iter().map(|way| (false, way)))
    {
        let of_bound = is_own.then_some(&mut bound);
        for client in [Some(&mut operator), of_bound].into_iter().flatten() {
            let mut said = Vec::new();
            for tried in [true, false] {
                let told = write(client, method, path, body, tried).await;
                assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "{method} {path}: {}", told.body);
                said.push(message(&told));
            }
            let begins = format!("task {task} is privileged, and an admin alone places it on ");
            assert!(said[0].starts_with(&begins), "{method} {path}: {}", said[0]);
            assert!(said[0].ends_with("; nothing was changed"), "{method} {path}: {}", said[0]);
            assert_eq!(said[0], said[1], "{method} {path}: it is said alike where it is tried out");
        }
        let told = write(&mut admin, method, path, body, true).await;
        assert!(told.status < 300, "{method} {path} as an admin: {}", told.body);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn x04_privileged_error_names_node_and_object() {
    let fleet = site().await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let body = json!({"objects": [{"kind": "Node", "name": "new", "nodegroup": "own/web"}]});
    let told = write(&mut operator, "POST", "/v1/apply", &body, false).await;
    let says = "task keys is privileged, and an admin alone places it on node new; nothing was changed";
    assert_eq!(message(&told), says);
    assert_eq!((&told.body["object"], &told.body["written"]), (&json!("node/new"), &json!("node/new")));
    let body = json!({"roles": ["app", "web"]});
    let told = write(&mut operator, "PATCH", "/v1/clusters/own/nodegroups/app", &body, false).await;
    assert!(message(&told).ends_with(" and 1 more; nothing was changed"), "{}", told.body);
    assert_eq!(told.body["written"], json!("nodegroup/own/app"), "{}", told.body);
}

#[tokio::test]
async fn x04_operator_write_succeeds_when_privileged_task_already_runs() {
    let fleet = site().await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    for (method, path, body) in [
        ("PATCH", "/v1/nodes/w1", json!({"description": "x"})),
        ("POST", "/v1/clusters/own/nodegroups", json!({"name": "spare", "roles": ["web"]})),
        // The node keeps the task in the new group.
        ("PATCH", "/v1/nodes/w1", json!({"nodegroup": "own/spare"})),
        // Another version, in which the task is the same.
        ("PATCH", "/v1/clusters/own", json!({"release": "site@3"})),
        ("POST", "/v1/nodes", json!({"name": "a3", "nodegroup": "own/app"})),
        ("POST", "/v1/join-tokens", json!({"nodegroup": "own/app"})),
        ("POST", "/v1/join-tokens", json!({"node": "a2"})),
        ("DELETE", "/v1/nodes/w1/tags/nginx", Value::Null),
    ] {
        let told = write(&mut operator, method, path, &body, false).await;
        assert!(told.status < 300, "{method} {path}: {}", told.body);
    }
    // After it was removed, only an admin can bring the task back.
    let told = write(&mut operator, "PUT", "/v1/nodes/w1/tags/nginx", &Value::Null, false).await;
    assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "{}", told.body);
}

/// Cluster `own` has a privileged task on a1 with a condition that nothing meets. Regression: an operator set a label,
/// and the task began to run.
#[tokio::test]
async fn x04_write_meeting_privileged_condition_requires_admin() {
    let fleet = Fleet::start().await;
    let keys = json!({"id": "keys", "type": "file", "tags": ["app"], "privileged": true,
        "condition": "has(labels.go) || has(params.go) || 'nginx' in tags",
        "parameters": {"path": "/etc/keys", "content": "x"}});
    fleet
        .apply(json!([
            {"kind": "Release", "name": "site", "version": "1", "tasks": [keys],
                "roles": {"app": {"tags": ["app"]}, "web": {"tags": ["nginx"]}}, "tags": {"app": {}, "nginx": {}}},
            {"kind": "Cluster", "name": "own", "release": "site@1"},
            {"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["app"]},
            {"kind": "Node", "name": "a1", "nodegroup": "own/app"},
        ]))
        .await;
    let mut admin = create_principal(&fleet, "ada", "admin", None).await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let mut bound = create_principal(&fleet, "bo", "operator", Some("own")).await;
    let says = "task keys is privileged, and an admin alone lets it run on node a1, where this write meets its condition; nothing was changed";
    let revision = fleet.last_revision().await;
    let node = |more: Value| {
        let mut node = json!({"kind": "Node", "name": "a1", "nodegroup": "own/app"});
        node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "objects": [node] })
    };
    let label = json!({"labels": {"go": "yes"}});
    for (method, path, body) in [
        ("PATCH", "/v1/nodes/a1", label.clone()),
        ("PATCH", "/v1/nodes/a1", json!({"parameters": {"go": true}})),
        ("PATCH", "/v1/clusters/own/nodegroups/app", label.clone()),
        ("PATCH", "/v1/clusters/own", label.clone()),
        ("PUT", "/v1/nodes/a1/tags/nginx", Value::Null),
        ("POST", "/v1/nodes/a1/roles", json!({"roles": ["web"]})),
        ("POST", "/v1/apply?force=true", node(label.clone())),
    ] {
        for client in [&mut operator, &mut bound] {
            for tried in [true, false] {
                let told = write(client, method, path, &body, tried).await;
                assert_eq!((told.status, &*message(&told)), (403, says), "{method} {path}: {}", told.body);
            }
        }
        let told = write(&mut admin, method, path, &body, true).await;
        assert!(told.status < 300, "{method} {path} as an admin: {}", told.body);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");

    // An operator may stop a task that an admin started, but only an admin can start it again.
    let told = write(&mut admin, "PATCH", "/v1/nodes/a1", &label, false).await;
    assert_eq!(told.status, 200, "{}", told.body);
    for (body, status) in [(json!({"labels": {"go": null}}), 200), (label, 403)] {
        let told = write(&mut operator, "PATCH", "/v1/nodes/a1", &body, false).await;
        assert_eq!(told.status, status, "{body}: {}", told.body);
    }

    // A joining host would get the task, whatever the condition is. The error says what to do instead.
    let told = write(&mut operator, "POST", "/v1/join-tokens", &json!({"nodegroup": "own/app"}), false).await;
    let says = "task keys is privileged, and an admin alone places it on hosts that join node group own/app; nothing was changed";
    assert_eq!((told.status, &*message(&told)), (403, says), "{}", told.body);
    let detail = told.body["error"]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("an admin must create this token"), "{}", told.body);
}

#[tokio::test]
async fn x04_join_uses_current_rights_of_token_maker() {
    let fleet = site().await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let body = json!({"nodegroup": "own/app", "uses": 3});
    let made = write(&mut operator, "POST", "/v1/join-tokens", &body, false).await;
    let token = made.body["token"].as_str().unwrap().to_owned();
    fleet.enrol(&token, "h1", &new_request().csr).await.unwrap();
    // An admin now makes the group's nodes run the task.
    let change = async |path: &str, body: Value| {
        let (status, told) = fleet.request(Method::PATCH, path, &body).await;
        assert!(status < 300, "{told}");
    };
    let roles = json!([{"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["app", "web"]}]);
    fleet.apply(roles).await;
    let refused = || ErrorResponse {
        status: 403,
        kind: "auth.forbidden".into(),
        message: "task keys is privileged, and an admin alone places it on node h2; nothing was changed".into(),
    };
    let revision = fleet.last_revision().await;
    assert_eq!(fleet.enrol(&token, "h2", &new_request().csr).await.unwrap_err(), refused());
    assert_eq!(fleet.last_revision().await, revision, "nothing was written, and the token is not used up");
    change("/v1/principals/otto", json!({"role": "admin"})).await;
    fleet.enrol(&token, "h2", &new_request().csr).await.unwrap();
    change("/v1/principals/otto", json!({"role": "operator"})).await;
    let message = refused().message.replace("h2", "h3");
    assert_eq!(fleet.enrol(&token, "h3", &new_request().csr).await.unwrap_err(), ErrorResponse { message, ..refused() });
    // A token of the first admin is accepted.
    fleet.join_group("own/app", "h4").await;
}

/// Regression: an operator created a token for a node on which an admin had placed the task, or for its group. A host
/// of the operator joined as that node.
#[tokio::test]
async fn x04_takeover_of_privileged_node_requires_admin_token() {
    let fleet = site().await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let mut token = async |body: Value| {
        let made = write(&mut operator, "POST", "/v1/join-tokens", &body, false).await;
        made.body["token"].as_str().unwrap_or_default().to_owned()
    };
    let of_group = token(json!({"nodegroup": "own/app"})).await;
    let of_node = token(json!({"node": "a2"})).await;
    // The task comes from the node's own tags, not from its group.
    let assigned = json!({"assigned": ["nginx", "seat"]});
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": assigned}])).await;
    assert_eq!(token(json!({"node": "a2"})).await, "", "no other one is made");
    let refused = ErrorResponse {
        status: 403,
        kind: "auth.forbidden".into(),
        message: "task keys is privileged, and an admin alone places it on a host that joins as node a2; nothing was changed"
            .into(),
    };
    let revision = fleet.last_revision().await;
    for token in [&of_group, &of_node] {
        assert_eq!(fleet.enrol(token, "a2", &new_request().csr).await.unwrap_err(), refused);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written, and no token is used up");
    // An admin removes the task from the node.
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": {"assigned": ["seat"]}}])).await;
    fleet.enrol(&of_node, "a2", &new_request().csr).await.unwrap();
    // Also after a host has joined, a second token is refused.
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": assigned}])).await;
    assert_eq!(token(json!({"node": "a2"})).await, "");
}

/// Regression: the field was accepted on a group task without effect. An operator gave a node the role, and the tasks
/// in it ran.
#[tokio::test]
async fn x04_privileged_group_placement_requires_admin() {
    let fleet = Fleet::start().await;
    fleet
        .apply(json!([
            {"kind": "Release", "name": "site", "version": "1", "tasks": [
                {"id": "all", "type": "group", "roles": ["web"], "tasks": ["keys"], "privileged": true},
                {"id": "keys", "type": "file", "parameters": {"path": "/etc/keys", "content": "x"}}],
                "roles": {"app": {"tags": ["app"]}, "web": {"tags": ["nginx"]}}, "tags": {"app": {}, "nginx": {}}},
            {"kind": "Cluster", "name": "own", "release": "site@1"},
            {"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["app"]},
            {"kind": "Node", "name": "a1", "nodegroup": "own/app"},
        ]))
        .await;
    let mut admin = create_principal(&fleet, "ada", "admin", None).await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let body = json!({"roles": ["web"]});
    let told = write(&mut operator, "PUT", "/v1/nodes/a1/roles", &body, false).await;
    let says = "task keys is privileged, and an admin alone places it on node a1; nothing was changed";
    assert_eq!((told.status, &*message(&told)), (403, says), "{}", told.body);
    let told = write(&mut admin, "PUT", "/v1/nodes/a1/roles", &body, false).await;
    assert!(told.status < 300, "{}", told.body);
}

/// Regression: an operator named a primary that did not exist yet. A host that joined with an admin's token under that
/// name got the privileged task.
#[tokio::test]
async fn x04_future_primary_requires_admin_when_privileged_task_follows() {
    let fleet = site().await;
    let mut admin = create_principal(&fleet, "ada", "admin", None).await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let mut bound = create_principal(&fleet, "bo", "operator", Some("own")).await;
    let named = |name: &str| json!({"primaries": {"seat": name}});
    let says = |name: &str| {
        format!(
            "task crown is privileged and depends on the primary of tag seat of cluster own, and only an admin may give the tag to node '{name}' in \
             its field primaries: there is no node of that name in the cluster; nothing was changed"
        )
    };
    let own = "/v1/clusters/own";
    for tried in [true, false] {
        let told = write(&mut operator, "PATCH", own, &named("zz9"), tried).await;
        assert_eq!((told.status, message(&told)), (403, says("zz9")), "{}", told.body);
        for name in ["zz9", "o1"] {
            let told = write(&mut bound, "PATCH", own, &named(name), tried).await;
            assert_eq!((told.status, message(&told)), (403, says(name)), "{}", told.body);
        }
        // A caller that can see the node in the other cluster gets that as the reason.
        let told = write(&mut operator, "PATCH", own, &named("o1"), tried).await;
        assert_eq!((told.status, &*told.kind), (400, "field.invalid"), "{}", told.body);
    }
    // The new release makes the tag one of a privileged task.
    let told = write(&mut operator, "PATCH", "/v1/clusters/old", &named("zz9"), false).await;
    assert_eq!(told.status, 200, "no task is privileged there: {}", told.body);
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "old", "name": "web", "roles": []}])).await;
    let told = write(&mut operator, "PATCH", "/v1/clusters/old", &json!({"release": "site@1"}), false).await;
    assert_eq!((told.status, message(&told)), (403, says("zz9").replace("cluster own", "cluster old")), "{}", told.body);
    // An entry that an admin wrote does not block other writes, and anyone may remove it.
    let told = write(&mut admin, "PATCH", own, &named("zz9"), false).await;
    assert_eq!(told.status, 200, "{}", told.body);
    for body in [json!({"description": "x"}), json!({"primaries": null})] {
        let told = write(&mut operator, "PATCH", own, &body, false).await;
        assert_eq!(told.status, 200, "{body}: {}", told.body);
    }
    let told = write(&mut operator, "PATCH", own, &named("zz9"), false).await;
    assert_eq!(told.status, 403, "{}", told.body);
}

/// Regression: a cluster without groups was skipped when its template got a release. The group that was created later
/// then caused no check.
#[tokio::test]
async fn x04_future_primary_is_checked_when_template_is_written() {
    let fleet = site().await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    fleet
        .apply(json!([
            {"kind": "ClusterTemplate", "name": "bare", "release": "site@0"},
            {"kind": "Cluster", "name": "bare", "cluster_template": "bare"},
        ]))
        .await;
    let named = json!({"primaries": {"seat": "zz9"}});
    let told = write(&mut operator, "PATCH", "/v1/clusters/bare", &named, false).await;
    assert_eq!(told.status, 200, "no task is privileged there: {}", told.body);
    let told = write(&mut operator, "PATCH", "/v1/clustertemplates/bare", &json!({"release": "site@1"}), false).await;
    let says = "task crown is privileged and depends on the primary of tag seat of cluster bare, and only an admin may give the tag to node 'zz9' in \
                its field primaries: there is no node of that name in the cluster; nothing was changed";
    assert_eq!((told.status, &*message(&told)), (403, says), "{}", told.body);
}

/// Regression: the response distinguished names of nodes in other clusters from names that do not exist.
#[tokio::test]
async fn x04_primary_of_other_cluster_is_not_found_when_bound() {
    let fleet = Fleet::start().await;
    let keys = json!({"id": "keys", "type": "file", "tags": ["app"], "privileged": true,
        "condition": "nodes(tag='primary-crown').size() > 5", "parameters": {"path": "/etc/keys", "content": "x"}});
    let held = json!({"assigned": ["lead", "crown"]});
    fleet
        .apply(json!([
            {"kind": "Release", "name": "site", "version": "1", "tasks": [keys], "roles": {"app": {"tags": ["app"]}},
                "tags": {"app": {}, "lead": {"has_primary": true}, "crown": {"has_primary": true}}},
            {"kind": "Cluster", "name": "own", "release": "site@1"},
            {"kind": "Cluster", "name": "other", "release": "site@1"},
            {"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["app"]},
            {"kind": "NodeGroup", "cluster": "other", "name": "app", "roles": ["app"]},
            {"kind": "Node", "name": "a1", "nodegroup": "own/app", "tags": held},
            {"kind": "Node", "name": "o1", "nodegroup": "other/app", "tags": held},
        ]))
        .await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let mut bound = create_principal(&fleet, "bo", "operator", Some("own")).await;
    let own = "/v1/clusters/own";
    let lead = |name: &str| json!({"primaries": {"lead": name}});
    let crown = write(&mut bound, "PATCH", own, &json!({"primaries": {"crown": "zz9"}}), false).await;
    assert_eq!((crown.status, &*crown.kind), (403, "auth.forbidden"), "a condition reads it: {}", crown.body);
    let told = write(&mut operator, "PATCH", own, &lead("o1"), false).await;
    assert!(told.status == 400 && message(&told).contains("node 'o1' is not in the cluster"), "{}", told.body);
    let mut said = Vec::new();
    for name in ["o1", "zz"] {
        for tried in [true, false] {
            let told = write(&mut bound, "PATCH", own, &lead(name), tried).await;
            assert_eq!(told.status, 200, "{}", told.body);
        }
        let checked = send(&mut bound, "GET", "/v1/clusters/own/validate", &[], "").await;
        let found = checked.body["findings"].as_array().unwrap().iter();
        let found: Vec<&Value> = found.filter(|one| one["code"] == "primary.unknown").collect();
        assert_eq!(found.len(), 1, "{name}");
        let told = found[0]["message"].as_str().unwrap();
        assert!(told.contains(&format!("there is no node {name} in the cluster")), "{told}");
        said.push((found[0]["severity"].clone(), told.replace(name, "NAME")));
    }
    assert_eq!(said[0], said[1]);
}
