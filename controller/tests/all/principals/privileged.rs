//! Privileged tasks: by no way does anybody below admin bring one to a node. What an operator may do all the same is done.

use hyper::Method;
use serde_json::{Value, json};
use stemma_wire::client::Client;

use crate::fleet::{Fleet, Refused, asking};
use crate::principals::people::{JSON, Told, ask, principal};

const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

/// A write: how it is sent, and the privileged task that it would bring to a node.
type Way = (&'static str, &'static str, Value, &'static str);

/// A release of these versions. The task `keys` is privileged, and another one in version 2; so are `crown` and `extra`.
fn release(version: &str) -> Value {
    let privileged = |id: &str, tag: &str, content: &str| {
        json!({"id": id, "type": "file", "tags": [tag], "privileged": true,
            "parameters": {"path": format!("/etc/{id}"), "content": content}})
    };
    let conf =
        json!({"id": "conf", "type": "file", "tags": ["app"], "parameters": {"path": "/etc/conf", "content": version}});
    let keys = privileged("keys", "nginx", if version == "2" { "two" } else { "one" });
    let tasks = match version {
        "0" => json!([conf]),
        _ => json!([conf, keys, privileged("crown", "primary-seat", "x"), privileged("extra", "extra", "x")]),
    };
    json!({"kind": "Release", "name": "site", "version": version, "tasks": tasks,
        "roles": {"app": {"tags": ["app"]}, "web": {"tags": ["nginx"]}},
        "tags": {"app": {}, "nginx": {}, "seat": {"has_primary": true}}})
}

/// Cluster `own` runs the privileged tasks, on w1 and, of the tag with a primary, on a1; clusters `old` and `below` run none.
async fn site() -> Fleet {
    let fleet = Fleet::start().await;
    let group =
        |cluster: &str, name: &str| json!({"kind": "NodeGroup", "cluster": cluster, "name": name, "roles": [name]});
    let node =
        |name: &str, group: &str, tags: Value| json!({"kind": "Node", "name": name, "nodegroup": group, "tags": tags});
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

async fn send(client: &mut Client, method: &str, path: &str, body: &Value, tried: bool) -> Told {
    let media = if method == "PATCH" { MERGE } else { JSON };
    let joined = if path.contains('?') { "&" } else { "?" };
    let path = if tried { format!("{path}{joined}dry_run=true") } else { path.to_owned() };
    match body {
        Value::Null => ask(client, method, &path, &[], "").await,
        body => ask(client, method, &path, &[media], &body.to_string()).await,
    }
}

fn message(told: &Told) -> String {
    told.body["error"]["message"].as_str().unwrap_or_default().to_owned()
}

/// The ways in cluster `own`, and those by which other clusters come to run such a task.
fn ways() -> (Vec<Way>, Vec<Way>) {
    let web = json!({"roles": ["web"]});
    let apply = |objects: Value| json!({ "objects": objects });
    let own = vec![
        ("PUT", "/v1/nodes/a1/roles", web.clone(), "keys"),
        ("POST", "/v1/nodes/a1/roles", web, "keys"),
        ("PUT", "/v1/nodes/a1/tags/nginx", Value::Null, "keys"),
        ("POST", "/v1/nodes/a1/tags", json!({"assign": ["nginx"]}), "keys"),
        // It was unassigned, and is given back.
        ("PUT", "/v1/nodes/w2/tags/nginx", Value::Null, "keys"),
        ("PATCH", "/v1/nodes/a1", json!({"nodegroup": "own/web"}), "keys"),
        ("POST", "/v1/nodes", json!({"name": "new", "nodegroup": "own/web"}), "keys"),
        ("PATCH", "/v1/clusters/own/nodegroups/app", json!({"roles": ["app", "web"]}), "keys"),
        ("PUT", "/v1/clusters/own/roles", json!({"roles": {"app": {"add_tags": ["nginx"]}}}), "keys"),
        ("POST", "/v1/clusters/own/tags", json!({"name": "extra", "role": "app"}), "extra"),
        // Another one of the same id.
        ("PATCH", "/v1/clusters/own", json!({"release": "site@2"}), "keys"),
        // A primary that moves.
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
        // A host that joins in the place of a node.
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
async fn x04_a_privileged_task_is_brought_to_a_node_by_an_admin_alone_whichever_way() {
    let fleet = site().await;
    let mut admin = principal(&fleet, "ada", "admin", None).await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    let mut bound = principal(&fleet, "bo", "operator", Some("own")).await;
    let (own, elsewhere) = ways();
    let revision = fleet.revision().await;
    for (is_own, (method, path, body, task)) in
        own.iter().map(|way| (true, way)).chain(elsewhere.iter().map(|way| (false, way)))
    {
        let of_bound = is_own.then_some(&mut bound);
        for client in [Some(&mut operator), of_bound].into_iter().flatten() {
            let mut said = Vec::new();
            for tried in [true, false] {
                let told = send(client, method, path, body, tried).await;
                assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "{method} {path}: {}", told.body);
                said.push(message(&told));
            }
            let begins = format!("task {task} is privileged, and an admin alone places it on ");
            assert!(said[0].starts_with(&begins), "{method} {path}: {}", said[0]);
            assert!(said[0].ends_with("; nothing was changed"), "{method} {path}: {}", said[0]);
            assert_eq!(said[0], said[1], "{method} {path}: it is said alike where it is tried out");
        }
        let told = send(&mut admin, method, path, body, true).await;
        assert!(told.status < 300, "{method} {path} as an admin: {}", told.body);
    }
    assert_eq!(fleet.revision().await, revision, "nothing was written");
}

#[tokio::test]
async fn x04_who_is_refused_a_privileged_task_is_told_of_which_node_and_by_which_object() {
    let fleet = site().await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    let body = json!({"objects": [{"kind": "Node", "name": "new", "nodegroup": "own/web"}]});
    let told = send(&mut operator, "POST", "/v1/apply", &body, false).await;
    let says = "task keys is privileged, and an admin alone places it on node new; nothing was changed";
    assert_eq!(message(&told), says);
    assert_eq!((&told.body["object"], &told.body["written"]), (&json!("node/new"), &json!("node/new")));
    let body = json!({"roles": ["app", "web"]});
    let told = send(&mut operator, "PATCH", "/v1/clusters/own/nodegroups/app", &body, false).await;
    assert!(message(&told).ends_with(" and 1 more; nothing was changed"), "{}", told.body);
    assert_eq!(told.body["written"], json!("nodegroup/own/app"), "{}", told.body);
}

#[tokio::test]
async fn x04_an_operator_goes_on_where_a_privileged_task_stands_already() {
    let fleet = site().await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    for (method, path, body) in [
        ("PATCH", "/v1/nodes/w1", json!({"description": "x"})),
        ("POST", "/v1/clusters/own/nodegroups", json!({"name": "spare", "roles": ["web"]})),
        // It keeps the task there.
        ("PATCH", "/v1/nodes/w1", json!({"nodegroup": "own/spare"})),
        // Another version, in which the task is the same.
        ("PATCH", "/v1/clusters/own", json!({"release": "site@3"})),
        ("POST", "/v1/nodes", json!({"name": "a3", "nodegroup": "own/app"})),
        ("POST", "/v1/join-tokens", json!({"nodegroup": "own/app"})),
        ("POST", "/v1/join-tokens", json!({"node": "a2"})),
        ("DELETE", "/v1/nodes/w1/tags/nginx", Value::Null),
    ] {
        let told = send(&mut operator, method, path, &body, false).await;
        assert!(told.status < 300, "{method} {path}: {}", told.body);
    }
    // What was taken away is brought back by an admin.
    let told = send(&mut operator, "PUT", "/v1/nodes/w1/tags/nginx", &Value::Null, false).await;
    assert_eq!((told.status, &*told.kind), (403, "auth.forbidden"), "{}", told.body);
}

/// Cluster `own` runs a privileged task on a1 under a condition that nothing meets. An operator set a label, and it began to run.
#[tokio::test]
async fn x04_a_write_that_meets_the_condition_of_a_privileged_task_is_an_admins() {
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
    let mut admin = principal(&fleet, "ada", "admin", None).await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    let mut bound = principal(&fleet, "bo", "operator", Some("own")).await;
    let says = "task keys is privileged, and an admin alone lets it run on node a1, where this write meets its condition; nothing was changed";
    let revision = fleet.revision().await;
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
                let told = send(client, method, path, &body, tried).await;
                assert_eq!((told.status, &*message(&told)), (403, says), "{method} {path}: {}", told.body);
            }
        }
        let told = send(&mut admin, method, path, &body, true).await;
        assert!(told.status < 300, "{method} {path} as an admin: {}", told.body);
    }
    assert_eq!(fleet.revision().await, revision, "nothing was written");

    // What an admin let run is taken away by an operator, and is brought back by an admin.
    let told = send(&mut admin, "PATCH", "/v1/nodes/a1", &label, false).await;
    assert_eq!(told.status, 200, "{}", told.body);
    for (body, status) in [(json!({"labels": {"go": null}}), 200), (label, 403)] {
        let told = send(&mut operator, "PATCH", "/v1/nodes/a1", &body, false).await;
        assert_eq!(told.status, status, "{body}: {}", told.body);
    }

    // A host that joined there would get the task, whatever the condition says: the refusal says what to do instead.
    let told = send(&mut operator, "POST", "/v1/join-tokens", &json!({"nodegroup": "own/app"}), false).await;
    let says = "task keys is privileged, and an admin alone places it on hosts that join node group own/app; nothing was changed";
    assert_eq!((told.status, &*message(&told)), (403, says), "{}", told.body);
    let detail = told.body["error"]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("an admin makes this token"), "{}", told.body);
}

#[tokio::test]
async fn x04_a_host_joins_with_the_rights_that_the_maker_of_its_token_has_now() {
    let fleet = site().await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    let body = json!({"nodegroup": "own/app", "uses": 3});
    let made = send(&mut operator, "POST", "/v1/join-tokens", &body, false).await;
    let token = made.body["token"].as_str().unwrap().to_owned();
    fleet.enrol(&token, "h1", &asking().csr).await.unwrap();
    // An admin has the group's nodes run the task from now on.
    let change = async |path: &str, body: Value| {
        let (status, told) = fleet.ask(Method::PATCH, path, &body).await;
        assert!(status < 300, "{told}");
    };
    let roles = json!([{"kind": "NodeGroup", "cluster": "own", "name": "app", "roles": ["app", "web"]}]);
    fleet.apply(roles).await;
    let refused = || Refused {
        status: 403,
        kind: "auth.forbidden".into(),
        message: "task keys is privileged, and an admin alone places it on node h2; nothing was changed".into(),
    };
    let revision = fleet.revision().await;
    assert_eq!(fleet.enrol(&token, "h2", &asking().csr).await.unwrap_err(), refused());
    assert_eq!(fleet.revision().await, revision, "nothing was written, and the token is not used up");
    change("/v1/principals/otto", json!({"role": "admin"})).await;
    fleet.enrol(&token, "h2", &asking().csr).await.unwrap();
    change("/v1/principals/otto", json!({"role": "operator"})).await;
    let message = refused().message.replace("h2", "h3");
    assert_eq!(fleet.enrol(&token, "h3", &asking().csr).await.unwrap_err(), Refused { message, ..refused() });
    // The first admin's token is good for it.
    fleet.join_group("own/app", "h4").await;
}

/// An operator made a token for a node on which an admin had placed the task, or one for its group, and a host of theirs joined as that node.
#[tokio::test]
async fn x04_a_host_takes_the_place_of_a_node_with_a_privileged_task_by_an_admins_token_alone() {
    let fleet = site().await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    let mut token = async |body: Value| {
        let made = send(&mut operator, "POST", "/v1/join-tokens", &body, false).await;
        made.body["token"].as_str().unwrap_or_default().to_owned()
    };
    let of_group = token(json!({"nodegroup": "own/app"})).await;
    let of_node = token(json!({"node": "a2"})).await;
    // No group gives it: it is the node's own.
    let assigned = json!({"assigned": ["nginx", "seat"]});
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": assigned}])).await;
    assert_eq!(token(json!({"node": "a2"})).await, "", "no other one is made");
    let refused = Refused {
        status: 403,
        kind: "auth.forbidden".into(),
        message:
            "task keys is privileged, and an admin alone places it on a host that joins as node a2; nothing was changed"
                .into(),
    };
    let revision = fleet.revision().await;
    for token in [&of_group, &of_node] {
        assert_eq!(fleet.enrol(token, "a2", &asking().csr).await.unwrap_err(), refused);
    }
    assert_eq!(fleet.revision().await, revision, "nothing was written, and no token is used up");
    // An admin takes the task from it.
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": {"assigned": ["seat"]}}])).await;
    fleet.enrol(&of_node, "a2", &asking().csr).await.unwrap();
    // Where a host has joined, a second token is no other matter.
    fleet.apply(json!([{"kind": "Node", "name": "a2", "nodegroup": "own/app", "tags": assigned}])).await;
    assert_eq!(token(json!({"node": "a2"})).await, "");
}

/// The field was taken on a group, and restricted nobody: an operator gave a node the role, and the task of the group ran.
#[tokio::test]
async fn x04_what_a_privileged_group_places_is_brought_by_an_admin_alone() {
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
    let mut admin = principal(&fleet, "ada", "admin", None).await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    let body = json!({"roles": ["web"]});
    let told = send(&mut operator, "PUT", "/v1/nodes/a1/roles", &body, false).await;
    let says = "task keys is privileged, and an admin alone places it on node a1; nothing was changed";
    assert_eq!((told.status, &*message(&told)), (403, says), "{}", told.body);
    let told = send(&mut admin, "PUT", "/v1/nodes/a1/roles", &body, false).await;
    assert!(told.status < 300, "{}", told.body);
}

/// An operator named a primary that was not there yet, and a host that joined by an admin's token got the privileged task by its name.
#[tokio::test]
async fn x04_a_primary_that_is_still_to_come_is_named_by_an_admin_where_a_privileged_task_goes_by_it() {
    let fleet = site().await;
    let mut admin = principal(&fleet, "ada", "admin", None).await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    let mut bound = principal(&fleet, "bo", "operator", Some("own")).await;
    let named = |name: &str| json!({"primaries": {"seat": name}});
    let says = |name: &str| {
        format!(
            "task crown is privileged and goes by who holds tag seat of cluster own as primary, and an admin alone gives that to node '{name}' in \
             its field primaries: there is no node of that name in the cluster; nothing was changed"
        )
    };
    let own = "/v1/clusters/own";
    for tried in [true, false] {
        let told = send(&mut operator, "PATCH", own, &named("zz9"), tried).await;
        assert_eq!((told.status, message(&told)), (403, says("zz9")), "{}", told.body);
        for name in ["zz9", "o1"] {
            let told = send(&mut bound, "PATCH", own, &named(name), tried).await;
            assert_eq!((told.status, message(&told)), (403, says(name)), "{}", told.body);
        }
        // Who sees the node that stands elsewhere is told so.
        let told = send(&mut operator, "PATCH", own, &named("o1"), tried).await;
        assert_eq!((told.status, &*told.kind), (400, "field.invalid"), "{}", told.body);
    }
    // A tag becomes that of a privileged task by the release.
    let told = send(&mut operator, "PATCH", "/v1/clusters/old", &named("zz9"), false).await;
    assert_eq!(told.status, 200, "no task is privileged there: {}", told.body);
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "old", "name": "web", "roles": []}])).await;
    let told = send(&mut operator, "PATCH", "/v1/clusters/old", &json!({"release": "site@1"}), false).await;
    assert_eq!(
        (told.status, message(&told)),
        (403, says("zz9").replace("cluster own", "cluster old")),
        "{}",
        told.body
    );
    // What an admin wrote is in nobody's way, and taking it away is free.
    let told = send(&mut admin, "PATCH", own, &named("zz9"), false).await;
    assert_eq!(told.status, 200, "{}", told.body);
    for body in [json!({"description": "x"}), json!({"primaries": null})] {
        let told = send(&mut operator, "PATCH", own, &body, false).await;
        assert_eq!(told.status, 200, "{body}: {}", told.body);
    }
    let told = send(&mut operator, "PATCH", own, &named("zz9"), false).await;
    assert_eq!(told.status, 403, "{}", told.body);
}

/// A cluster without groups was passed over where its template was given a release, and the group that was made then brought nothing new.
#[tokio::test]
async fn x04_a_primary_that_is_still_to_come_in_a_cluster_without_groups_is_seen_when_its_template_is_written() {
    let fleet = site().await;
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    fleet
        .apply(json!([
            {"kind": "ClusterTemplate", "name": "bare", "release": "site@0"},
            {"kind": "Cluster", "name": "bare", "cluster_template": "bare"},
        ]))
        .await;
    let named = json!({"primaries": {"seat": "zz9"}});
    let told = send(&mut operator, "PATCH", "/v1/clusters/bare", &named, false).await;
    assert_eq!(told.status, 200, "no task is privileged there: {}", told.body);
    let told = send(&mut operator, "PATCH", "/v1/clustertemplates/bare", &json!({"release": "site@1"}), false).await;
    let says = "task crown is privileged and goes by who holds tag seat of cluster bare as primary, and an admin alone gives that to node 'zz9' in \
                its field primaries: there is no node of that name in the cluster; nothing was changed";
    assert_eq!((told.status, &*message(&told)), (403, says), "{}", told.body);
}

/// Names of nodes of other clusters were told from names that nobody has.
#[tokio::test]
async fn x04_a_primary_of_another_cluster_is_told_as_one_that_is_not_there_to_who_is_bound() {
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
    let mut operator = principal(&fleet, "otto", "operator", None).await;
    let mut bound = principal(&fleet, "bo", "operator", Some("own")).await;
    let own = "/v1/clusters/own";
    let lead = |name: &str| json!({"primaries": {"lead": name}});
    let crown = send(&mut bound, "PATCH", own, &json!({"primaries": {"crown": "zz9"}}), false).await;
    assert_eq!((crown.status, &*crown.kind), (403, "auth.forbidden"), "a condition reads it: {}", crown.body);
    let told = send(&mut operator, "PATCH", own, &lead("o1"), false).await;
    assert!(told.status == 400 && message(&told).contains("node 'o1' is not in the cluster"), "{}", told.body);
    let mut said = Vec::new();
    for name in ["o1", "zz"] {
        for tried in [true, false] {
            let told = send(&mut bound, "PATCH", own, &lead(name), tried).await;
            assert_eq!(told.status, 200, "{}", told.body);
        }
        let checked = ask(&mut bound, "GET", "/v1/clusters/own/validate", &[], "").await;
        let found = checked.body["findings"].as_array().unwrap().iter();
        let found: Vec<&Value> = found.filter(|one| one["code"] == "primary.unknown").collect();
        assert_eq!(found.len(), 1, "{name}");
        let told = found[0]["message"].as_str().unwrap();
        assert!(told.contains(&format!("there is no node {name} in the cluster")), "{told}");
        said.push((found[0]["severity"].clone(), told.replace(name, "NAME")));
    }
    assert_eq!(said[0], said[1]);
}
