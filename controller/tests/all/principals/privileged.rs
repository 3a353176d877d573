//! Privileged tasks: no principal below admin can bring one to a node by any write. Other writes of an operator are
//! accepted.

use hyper::Method;
use serde_json::{Value, json};
use stemma_wire::client::Client;

use crate::fleet::{ErrorResponse, Fleet, new_key_and_request};
use crate::principals::clients::{ApiAnswer, JSON, create_principal, send};

const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

/// A write that a principal below admin must not do: method, path, body, and the privileged task that it would bring to
/// a node.
type PrivilegedWrite = (&'static str, &'static str, Value, &'static str);

/// Builds a version of the release `site`. The tasks `keys`, `crown` and `extra` are privileged, and `crown` runs on
/// the primary of tag `seat`. Version 0 has none of them, and version 2 has another content of `keys`.
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

/// Starts a fleet with three clusters. Cluster `own` runs the privileged tasks: `keys` on w1 by the role web, and
/// `crown` on a1 as the primary of tag seat. Clusters `old` and `below` run none.
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

/// Sends a write, as a dry run if `is_dry_run` is true. A PATCH is a merge patch. A body that is `null` is not sent.
async fn write(client: &mut Client, method: &str, path: &str, body: &Value, is_dry_run: bool) -> ApiAnswer {
    let media_type = if method == "PATCH" { MERGE } else { JSON };
    let separator = if path.contains('?') { "&" } else { "?" };
    let path = if is_dry_run { format!("{path}{separator}dry_run=true") } else { path.to_owned() };
    match body {
        Value::Null => send(client, method, &path, &[], "").await,
        body => send(client, method, &path, &[media_type], &body.to_string()).await,
    }
}

/// Returns the message of an error, or an empty text.
fn message(answer: &ApiAnswer) -> String {
    answer.body["error"]["message"].as_str().unwrap_or_default().to_owned()
}

/// Returns two lists of writes that bring a privileged task to a node: to objects of cluster `own`, and to others.
fn privileged_writes() -> (Vec<PrivilegedWrite>, Vec<PrivilegedWrite>) {
    let web_role = json!({"roles": ["web"]});
    let apply_body = |objects: Value| json!({ "objects": objects });
    let own_writes = vec![
        ("PUT", "/v1/nodes/a1/roles", web_role.clone(), "keys"),
        ("POST", "/v1/nodes/a1/roles", web_role, "keys"),
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
        ("POST", "/v1/apply", apply_body(json!([{"kind": "Node", "name": "new", "nodegroup": "own/web"}])), "keys"),
        (
            "POST",
            "/v1/apply?force=true",
            apply_body(json!([{"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["web"]}])),
            "keys",
        ),
        ("POST", "/v1/join-tokens", json!({"nodegroup": "own/web"}), "keys"),
        // A host joins as an existing node.
        ("POST", "/v1/join-tokens", json!({"node": "w1"}), "keys"),
        ("POST", "/v1/join-tokens", json!({"node": "a1"}), "crown"),
    ];
    let other_writes = vec![
        ("PATCH", "/v1/clusters/old", json!({"release": "site@1"}), "keys"),
        ("PATCH", "/v1/clusters/old/nodegroups/web", json!({"release": "site@1"}), "keys"),
        ("PATCH", "/v1/nodes/o1", json!({"nodegroup": "own/web"}), "keys"),
        ("PATCH", "/v1/clustertemplates/base", json!({"release": "site@1"}), "keys"),
        ("POST", "/v1/clusters/below/actions/upgrade", json!({"cluster_template": "next"}), "keys"),
        (
            "POST",
            "/v1/apply",
            apply_body(json!([
                {"kind": "Cluster", "name": "fresh", "release": "site@1"},
                {"kind": "NodeGroup", "cluster": "fresh", "name": "web", "roles": ["web"]},
                {"kind": "Node", "name": "new", "nodegroup": "fresh/web"},
            ])),
            "keys",
        ),
    ];
    (own_writes, other_writes)
}

/// An operator of the fleet is refused each write that brings a privileged task to a node. An operator of cluster `own`
/// is refused those in its own cluster. An admin may do all of them.
#[tokio::test]
async fn x04_privileged_task_requires_admin_in_every_write() {
    let fleet = site().await;
    let mut admin = create_principal(&fleet, "ada", "admin", None).await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let mut bound_client = create_principal(&fleet, "bo", "operator", Some("own")).await;
    let (own_writes, other_writes) = privileged_writes();
    let revision = fleet.last_revision().await;
    for (is_own, (method, path, body, task)) in
        own_writes.iter().map(|case| (true, case)).chain(other_writes.iter().map(|case| (false, case)))
    {
        let bound_if_own = is_own.then_some(&mut bound_client);
        for client in [Some(&mut operator), bound_if_own].into_iter().flatten() {
            let mut messages = Vec::new();
            for is_dry_run in [true, false] {
                let answer = write(client, method, path, body, is_dry_run).await;
                assert_eq!((answer.status, &*answer.kind), (403, "auth.forbidden"), "{method} {path}: {}", answer.body);
                messages.push(message(&answer));
            }
            let prefix = format!("task {task} is privileged, and only an admin places it on ");
            assert!(messages[0].starts_with(&prefix), "{method} {path}: {}", messages[0]);
            assert!(messages[0].ends_with("; nothing was changed"), "{method} {path}: {}", messages[0]);
            assert_eq!(messages[0], messages[1], "{method} {path}: a dry run returns the same message");
        }
        let answer = write(&mut admin, method, path, body, true).await;
        assert!(answer.status < 300, "{method} {path} as an admin: {}", answer.body);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn x04_privileged_error_names_node_and_object() {
    let fleet = site().await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let body = json!({"objects": [{"kind": "Node", "name": "new", "nodegroup": "own/web"}]});
    let answer = write(&mut operator, "POST", "/v1/apply", &body, false).await;
    let expected_message = "task keys is privileged, and only an admin places it on node new; nothing was changed";
    assert_eq!(message(&answer), expected_message);
    assert_eq!((&answer.body["object"], &answer.body["written"]), (&json!("node/new"), &json!("node/new")));
    let body = json!({"roles": ["app", "web"]});
    let answer = write(&mut operator, "PATCH", "/v1/clusters/own/nodegroups/app", &body, false).await;
    assert!(message(&answer).ends_with(" and 1 more; nothing was changed"), "{}", answer.body);
    assert_eq!(answer.body["written"], json!("nodegroup/own/app"), "{}", answer.body);
}

#[tokio::test]
async fn x04_operator_write_succeeds_without_new_privileged_task() {
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
        let answer = write(&mut operator, method, path, &body, false).await;
        assert!(answer.status < 300, "{method} {path}: {}", answer.body);
    }
    // After the operator removed the task, only an admin can bring the task back.
    let answer = write(&mut operator, "PUT", "/v1/nodes/w1/tags/nginx", &Value::Null, false).await;
    assert_eq!((answer.status, &*answer.kind), (403, "auth.forbidden"), "{}", answer.body);
}

/// In cluster `own`, node a1 has a privileged task whose condition is not met. Regression: an operator set a label that
/// met the condition, and the task began to run.
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
    let mut bound_client = create_principal(&fleet, "bo", "operator", Some("own")).await;
    let expected_message = "task keys is privileged, and only an admin lets it run on node a1, where this write meets its condition; nothing was changed";
    let revision = fleet.last_revision().await;
    let node = |fields: Value| {
        let mut node = json!({"kind": "Node", "name": "a1", "nodegroup": "own/app"});
        node.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
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
        for client in [&mut operator, &mut bound_client] {
            for is_dry_run in [true, false] {
                let answer = write(client, method, path, &body, is_dry_run).await;
                assert_eq!((answer.status, &*message(&answer)), (403, expected_message), "{method} {path}: {}", answer.body);
            }
        }
        let answer = write(&mut admin, method, path, &body, true).await;
        assert!(answer.status < 300, "{method} {path} as an admin: {}", answer.body);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written");

    // An operator may stop a task that an admin started, but only an admin can start it again.
    let answer = write(&mut admin, "PATCH", "/v1/nodes/a1", &label, false).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (body, status) in [(json!({"labels": {"go": null}}), 200), (label, 403)] {
        let answer = write(&mut operator, "PATCH", "/v1/nodes/a1", &body, false).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
    }

    // A joining host would get the task, whatever the condition is. The error says what to do instead.
    let answer = write(&mut operator, "POST", "/v1/join-tokens", &json!({"nodegroup": "own/app"}), false).await;
    let expected_message =
        "task keys is privileged, and only an admin places it on hosts that join node group own/app; nothing was changed";
    assert_eq!((answer.status, &*message(&answer)), (403, expected_message), "{}", answer.body);
    let detail = answer.body["error"]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("an admin must create this token"), "{}", answer.body);
}

/// An operator creates a join token, and then an admin gives the group a role with a privileged task. From then on, the
/// token is accepted only while its creator is an admin.
#[tokio::test]
async fn x04_join_uses_current_rights_of_token_maker() {
    let fleet = site().await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let body = json!({"nodegroup": "own/app", "uses": 3});
    let creation = write(&mut operator, "POST", "/v1/join-tokens", &body, false).await;
    let token = creation.body["token"].as_str().unwrap().to_owned();
    fleet.enrol(&token, "h1", &new_key_and_request().csr).await.unwrap();
    // An admin now makes the group's nodes run the task.
    let change = async |path: &str, body: Value| {
        let (status, answer) = fleet.request(Method::PATCH, path, &body).await;
        assert!(status < 300, "{answer}");
    };
    let roles = json!([{"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["app", "web"]}]);
    fleet.apply(roles).await;
    let expected_error = || ErrorResponse {
        status: 403,
        kind: "auth.forbidden".into(),
        message: "task keys is privileged, and only an admin places it on node h2; nothing was changed".into(),
    };
    let revision = fleet.last_revision().await;
    assert_eq!(fleet.enrol(&token, "h2", &new_key_and_request().csr).await.unwrap_err(), expected_error());
    assert_eq!(fleet.last_revision().await, revision, "nothing was written, and the token is not used up");
    change("/v1/principals/otto", json!({"role": "admin"})).await;
    fleet.enrol(&token, "h2", &new_key_and_request().csr).await.unwrap();
    change("/v1/principals/otto", json!({"role": "operator"})).await;
    let message = expected_error().message.replace("h2", "h3");
    assert_eq!(
        fleet.enrol(&token, "h3", &new_key_and_request().csr).await.unwrap_err(),
        ErrorResponse { message, ..expected_error() }
    );
    // A token of the first admin is accepted.
    fleet.join_group("own/app", "h4").await;
}

/// Regression: an operator created a join token for a node on which an admin had placed a privileged task, or for the
/// group of the node. A host of the operator joined as that node.
#[tokio::test]
async fn x04_takeover_of_privileged_node_requires_admin_token() {
    let fleet = site().await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    // Returns the new token, or an empty text if the operator may not create it.
    let mut token = async |body: Value| {
        let answer = write(&mut operator, "POST", "/v1/join-tokens", &body, false).await;
        answer.body["token"].as_str().unwrap_or_default().to_owned()
    };
    let group_token = token(json!({"nodegroup": "own/app"})).await;
    let node_token = token(json!({"node": "a2"})).await;
    // The task comes from the node's own tags, not from its group.
    let assigned = json!({"assigned": ["nginx", "seat"]});
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": assigned}])).await;
    assert_eq!(token(json!({"node": "a2"})).await, "", "no further token is created");
    let expected_error = ErrorResponse {
        status: 403,
        kind: "auth.forbidden".into(),
        message: "task keys is privileged, and only an admin places it on a host that joins as node a2; nothing was changed"
            .into(),
    };
    let revision = fleet.last_revision().await;
    for token in [&group_token, &node_token] {
        assert_eq!(fleet.enrol(token, "a2", &new_key_and_request().csr).await.unwrap_err(), expected_error);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing was written, and no token is used up");
    // An admin removes the task from the node.
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": {"assigned": ["seat"]}}])).await;
    fleet.enrol(&node_token, "a2", &new_key_and_request().csr).await.unwrap();
    // An admin brings the task back. A second token is refused, also after a host has joined as the node.
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": assigned}])).await;
    assert_eq!(token(json!({"node": "a2"})).await, "");
}

/// Regression: `privileged` was accepted without effect on a task of type `group`, which contains other tasks. An
/// operator gave a node the role of such a task, and the tasks in it ran.
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
    let answer = write(&mut operator, "PUT", "/v1/nodes/a1/roles", &body, false).await;
    let expected_message = "task keys is privileged, and only an admin places it on node a1; nothing was changed";
    assert_eq!((answer.status, &*message(&answer)), (403, expected_message), "{}", answer.body);
    let answer = write(&mut admin, "PUT", "/v1/nodes/a1/roles", &body, false).await;
    assert!(answer.status < 300, "{}", answer.body);
}

/// Regression: an operator named a node that did not exist yet as primary of a tag. A host that joined with an admin's
/// token under that name got the privileged task of the primary.
#[tokio::test]
async fn x04_future_primary_requires_admin_when_privileged_task_follows() {
    let fleet = site().await;
    let mut admin = create_principal(&fleet, "ada", "admin", None).await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let mut bound_client = create_principal(&fleet, "bo", "operator", Some("own")).await;
    let primaries_patch = |name: &str| json!({"primaries": {"seat": name}});
    let expected_message = |name: &str| {
        format!(
            "task crown is privileged and depends on the primary of tag seat of cluster own, and only an admin may give the tag to node '{name}' in \
             its field primaries: there is no node of that name in the cluster; nothing was changed"
        )
    };
    let own_path = "/v1/clusters/own";
    for is_dry_run in [true, false] {
        let answer = write(&mut operator, "PATCH", own_path, &primaries_patch("zz9"), is_dry_run).await;
        assert_eq!((answer.status, message(&answer)), (403, expected_message("zz9")), "{}", answer.body);
        // Node zz9 does not exist, and o1 is in another cluster.
        for name in ["zz9", "o1"] {
            let answer = write(&mut bound_client, "PATCH", own_path, &primaries_patch(name), is_dry_run).await;
            assert_eq!((answer.status, message(&answer)), (403, expected_message(name)), "{}", answer.body);
        }
        // A principal that can see the other cluster gets the reason that the node is not in this cluster.
        let answer = write(&mut operator, "PATCH", own_path, &primaries_patch("o1"), is_dry_run).await;
        assert_eq!((answer.status, &*answer.kind), (400, "field.invalid"), "{}", answer.body);
    }
    // Later, a new release brings a privileged task that depends on the tag of the named primary.
    let answer = write(&mut operator, "PATCH", "/v1/clusters/old", &primaries_patch("zz9"), false).await;
    assert_eq!(answer.status, 200, "no task is privileged there: {}", answer.body);
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "old", "name": "web", "roles": []}])).await;
    let answer = write(&mut operator, "PATCH", "/v1/clusters/old", &json!({"release": "site@1"}), false).await;
    assert_eq!(
        (answer.status, message(&answer)),
        (403, expected_message("zz9").replace("cluster own", "cluster old")),
        "{}",
        answer.body
    );
    // An entry that an admin wrote does not block other writes, and anyone may remove it.
    let answer = write(&mut admin, "PATCH", own_path, &primaries_patch("zz9"), false).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for body in [json!({"description": "x"}), json!({"primaries": null})] {
        let answer = write(&mut operator, "PATCH", own_path, &body, false).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    }
    let answer = write(&mut operator, "PATCH", own_path, &primaries_patch("zz9"), false).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
}

/// Regression: when a template got a release, `primaries` of its clusters without groups were not checked. The later
/// creation of a group was not checked either.
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
    let primaries_patch = json!({"primaries": {"seat": "zz9"}});
    let answer = write(&mut operator, "PATCH", "/v1/clusters/bare", &primaries_patch, false).await;
    assert_eq!(answer.status, 200, "no task is privileged there: {}", answer.body);
    let answer = write(&mut operator, "PATCH", "/v1/clustertemplates/bare", &json!({"release": "site@1"}), false).await;
    let expected_message = "task crown is privileged and depends on the primary of tag seat of cluster bare, and only an admin may give the tag to node 'zz9' in \
                its field primaries: there is no node of that name in the cluster; nothing was changed";
    assert_eq!((answer.status, &*message(&answer)), (403, expected_message), "{}", answer.body);
}

/// Regression: a principal that is bound to a cluster named a node as primary. The response differed between a node in
/// another cluster and a node that does not exist.
#[tokio::test]
async fn x04_primary_of_other_cluster_is_not_found_when_bound() {
    let fleet = Fleet::start().await;
    let keys = json!({"id": "keys", "type": "file", "tags": ["app"], "privileged": true,
        "condition": "nodes(tag='primary-crown').size() > 5", "parameters": {"path": "/etc/keys", "content": "x"}});
    let tags = json!({"assigned": ["lead", "crown"]});
    fleet
        .apply(json!([
            {"kind": "Release", "name": "site", "version": "1", "tasks": [keys], "roles": {"app": {"tags": ["app"]}},
                "tags": {"app": {}, "lead": {"has_primary": true}, "crown": {"has_primary": true}}},
            {"kind": "Cluster", "name": "own", "release": "site@1"},
            {"kind": "Cluster", "name": "other", "release": "site@1"},
            {"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["app"]},
            {"kind": "NodeGroup", "cluster": "other", "name": "app", "roles": ["app"]},
            {"kind": "Node", "name": "a1", "nodegroup": "own/app", "tags": tags},
            {"kind": "Node", "name": "o1", "nodegroup": "other/app", "tags": tags},
        ]))
        .await;
    let mut operator = create_principal(&fleet, "otto", "operator", None).await;
    let mut bound_client = create_principal(&fleet, "bo", "operator", Some("own")).await;
    let own_path = "/v1/clusters/own";
    let name_lead = |name: &str| json!({"primaries": {"lead": name}});
    let crown = write(&mut bound_client, "PATCH", own_path, &json!({"primaries": {"crown": "zz9"}}), false).await;
    assert_eq!(
        (crown.status, &*crown.kind),
        (403, "auth.forbidden"),
        "a privileged task's condition reads the primary: {}",
        crown.body
    );
    let answer = write(&mut operator, "PATCH", own_path, &name_lead("o1"), false).await;
    assert!(answer.status == 400 && message(&answer).contains("node 'o1' is not in the cluster"), "{}", answer.body);
    let mut severities_and_texts = Vec::new();
    for name in ["o1", "zz"] {
        for is_dry_run in [true, false] {
            let answer = write(&mut bound_client, "PATCH", own_path, &name_lead(name), is_dry_run).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
        let validation = send(&mut bound_client, "GET", "/v1/clusters/own/validate", &[], "").await;
        let findings = validation.body["findings"].as_array().unwrap().iter();
        let findings: Vec<&Value> = findings.filter(|finding| finding["code"] == "primary.unknown").collect();
        assert_eq!(findings.len(), 1, "{name}");
        let text = findings[0]["message"].as_str().unwrap();
        assert!(text.contains(&format!("there is no node {name} in the cluster")), "{text}");
        severities_and_texts.push((findings[0]["severity"].clone(), text.replace(name, "NAME")));
    }
    assert_eq!(severities_and_texts[0], severities_and_texts[1]);
}
