//! Primaries: which node keeps a primary, which node gets one, and that no write moves one without reporting it.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];

/// Creates three databases of which one is primary, a web server, and a cluster without tasks. No choice is stored.
async fn site(served: &TestApi) {
    let release = |name: &str, has_primary: bool| {
        json!({"kind": "Release", "name": name, "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx"]}},
            "tags": {"mysql": {"has_primary": has_primary}, "nginx": {}}})
    };
    let node = |name: &str, group: &str| json!({"kind": "Node", "name": name, "nodegroup": group});
    let objects = json!([
        release("r", true), release("plain", false),
        {"kind": "Cluster", "name": "eu", "release": "r"},
        {"kind": "NodeGroup", "cluster": "eu", "name": "db", "roles": ["db"]},
        {"kind": "NodeGroup", "cluster": "eu", "name": "web", "roles": ["web"]},
        {"kind": "Cluster", "name": "us"}, {"kind": "NodeGroup", "cluster": "us", "name": "db"},
        node("db-1", "eu/db"), node("db-2", "eu/db"), node("db-3", "eu/db"), node("web-1", "eu/web"),
    ]);
    let applied = served.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
    assert_eq!(applied["moved_primaries"], json!([]), "nobody held one before");
}

/// Sends a write as the command line does, with a request for the changes in the response.
async fn write(served: &TestApi, method: &str, path: &str, body: &Value) -> ApiResponse {
    let prefer = ("prefer", "return=representation");
    let headers = if method == "PATCH" { vec![MERGE[0], prefer] } else { vec![prefer] };
    served.send(method, path, &headers, Some(body).filter(|body| !body.is_null())).await
}

/// Returns the row of mysql.
async fn primary(served: &TestApi) -> Value {
    let list = served.get("/v1/clusters/eu/primaries").await;
    let rows = list["primaries"].as_array().expect("a list");
    assert_eq!((rows.len(), &rows[0]["tag"]), (1, &json!("mysql")), "{list}");
    rows[0].clone()
}

/// Returns the objects of those findings that are about parked primaries.
fn parked_findings(answer: &Value) -> Vec<String> {
    let findings = answer["findings"].as_array().expect("a list").iter();
    let parked = findings.filter(|one| one["code"] == "primary.parked");
    parked.map(|one| one["object"].as_str().expect("an object").to_owned()).collect()
}

#[tokio::test]
async fn x07_park_keeps_primary_and_reports_finding() {
    let served = TestApi::start().await;
    site(&served).await;
    for query in ["?dry_run=true", ""] {
        assert_eq!(primary(&served).await["node"], "db-1");
        let answer = write(&served, "PATCH", &format!("/v1/nodes/db-1{query}"), &json!({"parked": true})).await;
        assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &json!([])), "{}", answer.body);
        assert_eq!(parked_findings(&answer.body), ["node/db-1"]);
        assert!(answer.warning.expect("a warning").contains("stemma node park db-1 --release-primary"));
    }
    let row = primary(&served).await;
    assert_eq!([&row["node"], &row["parked"], &row["chosen_by"]], [&json!("db-1"), &json!(true), &json!("choice")]);
    assert_eq!(served.get("/v1/nodes/db-1").await["primary_tags"], json!(["mysql"]));
    let mut found = parked_findings(&served.get("/v1/clusters/eu/validate").await);
    found.sort();
    assert_eq!(found, ["cluster/eu", "node/db-1"]);
    let answer = write(&served, "PATCH", "/v1/nodes/db-1", &json!({"parked": false})).await;
    assert_eq!((&answer.body["moved_primaries"], parked_findings(&answer.body)), (&json!([]), vec![]));
    assert_eq!(primary(&served).await["node"], "db-1");
    // Ironic's clients can park a node too.
    let answer = served.send("PUT", "/v1/nodes/db-1/maintenance", &[], Some(&json!({"reason": "a disk"}))).await;
    assert_eq!((answer.status, primary(&served).await["node"].clone()), (202, json!("db-1")));
}

/// Regression: a primary was named by its tag only, which other clusters have too.
#[tokio::test]
async fn y09_audit_finds_primary_by_cluster_name() {
    let served = TestApi::start().await;
    site(&served).await;
    for node in ["db-1", "db-2"] {
        served.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": node}), 200).await;
    }
    let both = [json!(["created", "eu/mysql"]), json!(["updated", "eu/mysql"])];
    for (object, expected) in [
        ("primary/eu/mysql", &both[..]),
        ("PRIMARY/eu/mysql", &both),
        ("primary/mysql", &both),
        ("primary/us/mysql", &[]),
        ("primary/eu/nginx", &[]),
        ("nodegroup/eu/mysql", &[]),
    ] {
        let found = served.get(&format!("/v1/audit?object={object}")).await;
        let entries = found["audit"].as_array().expect("a list").iter();
        let objects = entries.flat_map(|entry| entry["objects"].as_array().expect("a list"));
        let primaries = objects.filter(|one| one["kind"] == "primary");
        let told: Vec<Value> = primaries.map(|one| json!([one["action"], one["name"]])).collect();
        assert_eq!(told, expected, "{object}: {found}");
    }
}

#[tokio::test]
async fn x07_node_write_reports_moved_primary() {
    let served = TestApi::start().await;
    site(&served).await;
    served.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-1"}), 200).await;
    let moved_node = json!({"objects": [{"kind": "Node", "name": "db-1", "nodegroup": "eu/web"}]});
    let no_tag = json!({"roles": {"db": {"remove_tags": ["mysql"]}}});
    for (method, path, body, to) in [
        ("PATCH", "/v1/nodes/db-1?release_primary=true", json!({"parked": true}), Some("db-2")),
        ("PATCH", "/v1/nodes/db-1", json!({"nodegroup": "eu/web"}), Some("db-2")),
        ("PATCH", "/v1/nodes/db-1", json!({"nodegroup": "us/db"}), Some("db-2")),
        ("PATCH", "/v1/nodes/db-1", json!({"nodegroup": null}), Some("db-2")),
        ("POST", "/v1/nodes/db-1/tags", json!({"unassign": ["mysql"]}), Some("db-2")),
        ("DELETE", "/v1/nodes/db-1/tags", json!({"tags": ["mysql"]}), Some("db-2")),
        ("DELETE", "/v1/nodes/db-1/tags/mysql", Value::Null, Some("db-2")),
        ("DELETE", "/v1/nodes/db-1", Value::Null, Some("db-2")),
        ("PUT", "/v1/clusters/eu/primaries/mysql", json!({"node": "db-3"}), Some("db-3")),
        ("PATCH", "/v1/clusters/eu", json!({"primaries": {"mysql": "db-3"}}), Some("db-3")),
        ("POST", "/v1/apply?manager=git", moved_node, Some("db-2")),
        ("PUT", "/v1/clusters/eu/roles", no_tag, None),
        ("PATCH", "/v1/clusters/eu/nodegroups/db", json!({"roles": []}), None),
        ("PATCH", "/v1/clusters/eu", json!({"release": "plain"}), None),
    ] {
        let tried = format!("{path}{}dry_run=true", if path.contains('?') { '&' } else { '?' });
        let answer = write(&served, method, &tried, &body).await;
        let expected = json!([{"cluster": "eu", "tag": "mysql", "from": "db-1", "to": to}]);
        assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &expected), "{method} {path} {body}: {}", answer.body);
        assert_eq!(primary(&served).await["node"], "db-1", "it was only tried out");
    }
    // If the response has no body, a header reports the move.
    let answer = served.send("DELETE", "/v1/nodes/db-1/tags/mysql", &[], None).await;
    let said = "info: the primary of tag mysql in cluster eu moves from db-1 to db-2";
    assert!(answer.status == 204 && answer.warning.expect("a warning").contains(said));
    assert_eq!(primary(&served).await["node"], "db-2");
    // A later node that sorts first takes over nothing, also if no choice was stored yet.
    for body in [json!({"name": "db-0", "nodegroup": "eu/db"}), json!({"name": "a", "nodegroup": "eu/db"})] {
        let made = write(&served, "POST", "/v1/nodes", &body).await;
        assert_eq!((made.status, made.body.get("moved_primaries")), (201, None), "{}", made.body);
        assert_eq!(primary(&served).await["node"], "db-2");
    }
    // The exception is a node that the cluster names.
    let named = write(&served, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": "db-9"}})).await;
    assert_eq!((named.status, &named.body["moved_primaries"]), (200, &json!([])), "{}", named.body);
    let made = write(&served, "POST", "/v1/nodes?dry_run=true", &json!({"name": "db-9", "nodegroup": "eu/db"})).await;
    let expected = json!([{"cluster": "eu", "tag": "mysql", "from": "db-2", "to": "db-9"}]);
    assert_eq!((made.status, &made.body["moved_primaries"]), (201, &expected), "{}", made.body);
}

#[tokio::test]
async fn x07_cluster_primaries_take_precedence_over_other_writes() {
    let served = TestApi::start().await;
    site(&served).await;
    served.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-1"}), 200).await;
    let named = json!({"primaries": {"mysql": "db-3"}});
    let answer = write(&served, "PATCH", "/v1/clusters/eu?manager=facility", &named).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let row = primary(&served).await;
    assert_eq!([&row["node"], &row["chosen_by"], &row["named"]], [&json!("db-3"), &json!("cluster"), &json!("db-3")]);
    let set = write(&served, "PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-2"})).await;
    assert_eq!((set.status, set.kind()), (409, "primary.kept"));
    assert!(set.message().contains("'db-3'") && set.message().contains("facility"), "{}", set.body);
    let released = write(&served, "PATCH", "/v1/nodes/db-3?release_primary=true", &json!({"parked": true})).await;
    assert_eq!((released.status, released.kind()), (409, "primary.kept"), "{}", released.body);
    assert_eq!(served.get("/v1/nodes/db-3").await["parked"], json!(false), "nothing was changed");
    served.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-3"}), 200).await;
    // The node keeps the primary when the cluster no longer names it.
    let answer = write(&served, "PATCH", "/v1/clusters/eu?manager=facility", &json!({"primaries": null})).await;
    assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &json!([])), "{}", answer.body);
    let row = primary(&served).await;
    assert_eq!([&row["node"], &row["chosen_by"], &row["named"]], [&json!("db-3"), &json!("choice"), &Value::Null]);
}

/// Regression: a cluster's `primaries` were accepted without effect, and at most a warning said so.
#[tokio::test]
async fn x07_primary_write_is_applied_or_rejected() {
    let served = TestApi::start().await;
    site(&served).await;
    let uuid = served.get("/v1/nodes/db-3").await["uuid"].as_str().expect("a uuid").to_owned();
    let stray = write(&served, "POST", "/v1/nodes", &json!({"name": "stray"})).await;
    assert_eq!(stray.status, 201, "{}", stray.body);
    let apply = |named: &Value| {
        let cluster = json!({"kind": "Cluster", "name": "eu", "release": "r", "primaries": named});
        json!({"objects": [cluster]})
    };
    for (tag, node, why) in [
        ("nginx", "web-1", "tag nginx has no primary there (its has_primary is false)"),
        ("nosuch", "db-1", "the cluster's release has no tag nosuch"),
        ("mysql", "web-1", "node 'web-1' does not have the tag"),
        ("mysql", "stray", "node 'stray' is not in the cluster"),
    ] {
        let named = json!({tag: node});
        let in_patch = json!({"primaries": named});
        let json_patch = json!([{"op": "add", "path": "/primaries", "value": named}]);
        let new = json!({"name": "new", "release": "r", "primaries": {tag: node}});
        for query in ["", "?dry_run=true"] {
            let merged = write(&served, "PATCH", &format!("/v1/clusters/eu{query}"), &in_patch).await;
            let patched = served.send("PATCH", &format!("/v1/clusters/eu{query}"), &[], Some(&json_patch)).await;
            let applied = write(&served, "POST", &format!("/v1/apply{query}"), &apply(&named)).await;
            for refused in [merged, patched, applied] {
                assert_eq!((refused.status, refused.kind()), (400, "field.invalid"), "{named}: {}", refused.body);
                let message = refused.message();
                assert!(message.contains(why) && message.ends_with("nothing was changed"), "{named}: {message}");
            }
        }
        let made = write(&served, "POST", "/v1/clusters", &new).await;
        assert_eq!((made.status, made.kind()), (400, "field.invalid"), "{named}: {}", made.body);
    }
    assert_eq!(primary(&served).await["named"], Value::Null);
    // A node can be named before it is created. Until then there is a finding on the cluster.
    let early = write(&served, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": "db-9"}})).await;
    assert_eq!(early.status, 200, "{}", early.body);
    let found = served.get("/v1/clusters/eu/validate").await;
    let found = found["findings"].as_array().expect("a list").iter().find(|one| one["code"] == "primary.unknown");
    assert_eq!(found.expect("a finding")["severity"], "warning");
    // A uuid refers to its node, also after a rename. An entry that is stored already does not block other writes.
    let by_uuid = json!({"primaries": {"mysql": uuid}});
    let answer = write(&served, "PATCH", "/v1/clusters/eu", &by_uuid).await;
    let moved = json!([{"cluster": "eu", "tag": "mysql", "from": "db-1", "to": "db-3"}]);
    assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &moved), "{}", answer.body);
    let renamed = write(&served, "PATCH", "/v1/nodes/db-3", &json!({"name": "db-7"})).await;
    assert_eq!(renamed.status, 200, "{}", renamed.body);
    let row = primary(&served).await;
    assert_eq!([&row["node"], &row["chosen_by"]], [&json!("db-7"), &json!("cluster")]);
    for query in ["", "?dry_run=true"] {
        write(&served, "DELETE", &format!("/v1/nodes/db-7/tags/mysql{query}"), &Value::Null).await;
        let other = json!({"description": "x", "primaries": {"mysql": uuid}});
        let other = write(&served, "PATCH", &format!("/v1/clusters/eu{query}"), &other).await;
        assert_eq!(other.status, 200, "{}", other.body);
    }
    let found = served.get("/v1/clusters/eu/validate").await;
    let found = found["findings"].as_array().expect("a list").iter().find(|one| one["code"] == "primary.unknown");
    assert_eq!(found.expect("the node lost the tag")["severity"], "error");
}

/// In one apply, the cluster comes before its nodes and their tags.
#[tokio::test]
async fn x07_apply_names_primary_created_by_same_apply() {
    let served = TestApi::start().await;
    site(&served).await;
    let objects = json!([
        {"kind": "Cluster", "name": "asia", "release": "r", "primaries": {"mysql": "as-2", "seat": "as-1"}, "tags": {"seat": {"has_primary": true}}},
        {"kind": "NodeGroup", "cluster": "asia", "name": "db", "roles": ["db"]},
        {"kind": "Node", "name": "as-1", "nodegroup": "asia/db", "tags": {"assigned": ["seat"]}},
        {"kind": "Node", "name": "as-2", "nodegroup": "asia/db"},
    ]);
    served.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    assert_eq!(served.get("/v1/nodes/as-2").await["primary_tags"], json!(["mysql"]));
    assert_eq!(served.get("/v1/nodes/as-1").await["primary_tags"], json!(["seat"]));
}

#[tokio::test]
async fn x07_primary_error_says_how_to_change_cluster_primaries() {
    let served = TestApi::start().await;
    site(&served).await;
    let named = |name: &str| json!({"primaries": {"mysql": name}});
    let answer = write(&served, "PATCH", "/v1/clusters/eu?manager=facility", &named("db-3")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let commands = ["stemma get cluster eu -o manifest > cluster.yaml", "stemma apply --force -f cluster.yaml"];
    let parked_now = json!({"parked": true});
    for (method, path, body) in [
        ("PUT", "/v1/clusters/eu/primaries/mysql", json!({"node": "db-2"})),
        ("PATCH", "/v1/nodes/db-3?release_primary=true", parked_now.clone()),
        ("PATCH", "/v1/nodes/db-3", json!({"name": "db-4"})),
    ] {
        let refused = write(&served, method, path, &body).await;
        assert_eq!((refused.status, refused.kind()), (409, "primary.kept"), "{method} {path}: {}", refused.body);
        let detail = refused.body["error"]["detail"].as_str().expect("what to do");
        assert!(commands.iter().all(|command| detail.contains(command)), "{method} {path}: {detail}");
    }
    // The finding about a parked primary advises only what is accepted.
    let answer = write(&served, "PATCH", "/v1/nodes/db-3", &parked_now).await;
    let found = answer.body["findings"].as_array().expect("a list").iter();
    let said: Vec<&str> = found.filter(|one| one["code"] == "primary.parked").filter_map(|one| one["message"].as_str()).collect();
    assert_eq!((answer.status, said.len()), (200, 1), "{}", answer.body);
    assert!(commands.iter().all(|command| said[0].contains(command)), "{}", said[0]);
    assert!(said[0].contains("stemma node unpark db-3") && !said[0].contains("--release-primary"), "{}", said[0]);
    let answer = write(&served, "PATCH", "/v1/clusters/eu", &named("db-2")).await;
    let moved = json!([{"cluster": "eu", "tag": "mysql", "from": "db-3", "to": "db-2"}]);
    assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &moved), "{}", answer.body);
}

#[tokio::test]
async fn x07_node_keeps_name_when_cluster_names_node() {
    let served = TestApi::start().await;
    site(&served).await;
    let named = |name: Value| json!({"primaries": {"mysql": name}});
    write(&served, "PATCH", "/v1/clusters/eu?manager=facility", &named(json!("db-3"))).await;
    let json_patch = json!([{"op": "replace", "path": "/name", "value": "db-4"}]);
    let unnamed = json!([{"op": "remove", "path": "/name"}]);
    for query in ["", "?dry_run=true"] {
        let path = format!("/v1/nodes/db-3{query}");
        let merged = write(&served, "PATCH", &path, &json!({"name": "db-4"})).await;
        let patched = served.send("PATCH", &path, &[], Some(&json_patch)).await;
        let taken = served.send("PATCH", &path, &[], Some(&unnamed)).await;
        for refused in [merged, patched, taken] {
            assert_eq!((refused.status, refused.kind()), (409, "primary.kept"), "{}", refused.body);
            let message = refused.message();
            assert!(message.contains("node 'db-3' cannot be renamed") && message.contains("facility"), "{message}");
            assert!(message.ends_with("nothing was changed"), "{message}");
        }
    }
    assert_eq!(primary(&served).await["node"], "db-3");
    // Other nodes can be renamed, and so can this one in the way that the error describes.
    let other = write(&served, "PATCH", "/v1/nodes/db-2", &json!({"name": "db-5"})).await;
    assert_eq!(other.status, 200, "{}", other.body);
    for (path, body) in [
        ("/v1/clusters/eu", named(Value::Null)),
        ("/v1/nodes/db-3", json!({"name": "db-4"})),
        ("/v1/clusters/eu", named(json!("db-4"))),
    ] {
        let done = write(&served, "PATCH", path, &body).await;
        assert_eq!((done.status, &done.body["moved_primaries"]), (200, &json!([])), "{path} {body}: {}", done.body);
    }
    let row = primary(&served).await;
    assert_eq!([&row["node"], &row["chosen_by"], &row["named"]], [&json!("db-4"), &json!("cluster"), &json!("db-4")]);
}

#[tokio::test]
async fn x07_node_deletion_reports_empty_primary() {
    let served = TestApi::start().await;
    site(&served).await;
    write(&served, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": "db-3"}})).await;
    for query in ["?dry_run=true", ""] {
        let gone = write(&served, "DELETE", &format!("/v1/nodes/db-3{query}"), &Value::Null).await;
        let moved = json!([{"cluster": "eu", "tag": "mysql", "from": "db-3", "to": "db-1"}]);
        assert_eq!((gone.status, &gone.body["moved_primaries"]), (200, &moved), "{}", gone.body);
        let warning = gone.warning.expect("a warning");
        assert!(warning.contains("mysql names db-3, which is ignored: there is no node db-3"), "{warning}");
        assert!(warning.contains("or leave mysql out"), "{warning}");
    }
}

#[tokio::test]
async fn x07_release_primary_moves_to_next_node_or_fails() {
    let served = TestApi::start().await;
    site(&served).await;
    let park = async |name: &str, query: &str| {
        write(&served, "PATCH", &format!("/v1/nodes/{name}{query}"), &json!({"parked": true})).await
    };
    let unparked = write(&served, "PATCH", "/v1/nodes/db-1?release_primary=true", &json!({"description": "x"})).await;
    assert_eq!((unparked.status, unparked.kind()), (400, "request.query"), "{}", unparked.body);
    // Also if no choice was stored yet.
    let released = park("db-1", "?release_primary=true").await;
    let moved = json!([{"cluster": "eu", "tag": "mysql", "from": "db-1", "to": "db-2"}]);
    assert_eq!((released.status, &released.body["moved_primaries"]), (200, &moved), "{}", released.body);
    assert_eq!(parked_findings(&released.body), [""; 0]);
    let row = primary(&served).await;
    assert_eq!([&row["node"], &row["parked"], &row["chosen_by"]], [&json!("db-2"), &json!(false), &json!("choice")]);
    // A node that is already parked can release the primary that it keeps.
    assert_eq!(park("db-2", "").await.status, 200);
    assert_eq!(park("db-2", "?release_primary=true").await.status, 200);
    assert_eq!(primary(&served).await["node"], "db-3");
    let last = park("db-3", "?release_primary=true").await;
    assert_eq!((last.status, last.kind()), (409, "primary.kept"), "all others are parked: {}", last.body);
    assert_eq!(served.get("/v1/nodes/db-3").await["parked"], json!(false));
    assert_eq!(park("web-1", "?release_primary=true").await.status, 200, "it holds nothing");
}

#[tokio::test]
async fn x07_set_primary_requires_node_with_tag() {
    let served = TestApi::start().await;
    site(&served).await;
    let set = async |path: &str, body: Value| write(&served, "PUT", path, &body).await;
    let mysql = "/v1/clusters/eu/primaries/mysql";
    for (path, body, status, kind, says) in [
        (mysql, json!({"node": "db-9"}), 400, "reference.dangling", "there is no node 'db-9'"),
        (mysql, json!({"node": "web-1"}), 400, "field.invalid", "node 'web-1' does not have tag 'mysql' in cluster eu"),
        (mysql, json!({"node": ""}), 400, "field.invalid", "the name or uuid of a node"),
        (mysql, json!({"node": 7}), 400, "field.invalid", "the name or uuid of a node"),
        (mysql, json!({}), 400, "field.missing", "this call takes"),
        (mysql, json!({"node": "db-2", "force": true}), 400, "field.unknown", "'force'"),
        ("/v1/clusters/eu/primaries/nginx", json!({"node": "web-1"}), 400, "field.invalid", "has no primary"),
        ("/v1/clusters/eu/primaries/none", json!({"node": "db-2"}), 400, "field.invalid", "does not have tag 'none'"),
        ("/v1/clusters/us/primaries/mysql", json!({"node": "db-2"}), 400, "field.invalid", "in cluster us"),
        ("/v1/clusters/no/primaries/mysql", json!({"node": "db-2"}), 404, "object.not_found", "could not be found"),
    ] {
        let answer = set(path, body.clone()).await;
        assert_eq!((answer.status, answer.kind()), (status, kind), "{path} {body}: {}", answer.body);
        assert!(answer.message().contains(says), "{path} {body}: {}", answer.body);
    }
    assert_eq!(primary(&served).await["node"], "db-1");
    let uuid = served.get("/v1/nodes/db-3").await["uuid"].clone();
    for (node, name) in [(json!("db-2"), "db-2"), (uuid, "db-3")] {
        let answer = set(mysql, json!({"node": node})).await;
        assert_eq!((answer.status, &answer.body["node"]), (200, &json!(name)), "{}", answer.body);
        assert_eq!(answer.body["changes"][0]["new"], json!(name), "{}", answer.body);
        assert_eq!(primary(&served).await["node"], name);
    }
    let again = set(mysql, json!({"node": "db-3"})).await;
    assert_eq!((again.status, &again.body["changes"]), (200, &json!([])), "{}", again.body);
    // A parked node can be set. The response reports that it is parked.
    served.send("PATCH", "/v1/nodes/db-1", MERGE, Some(&json!({"parked": true}))).await;
    let answer = set(mysql, json!({"node": "db-1"})).await;
    assert_eq!((answer.status, &answer.body["parked"]), (200, &json!(true)), "{}", answer.body);
    assert_eq!(parked_findings(&answer.body), ["cluster/eu", "node/db-1"]);
}

/// Regression: no other write stores a choice here, so the cluster's last choice was lost.
#[tokio::test]
async fn x07_node_keeps_primary_tag_when_cluster_stops_naming_node() {
    let json_patch = json!([{"op": "remove", "path": "/primaries/mysql"}]);
    for (is_there, by_json_patch) in [(true, false), (true, true), (false, false)] {
        let served = TestApi::start().await;
        site(&served).await;
        served.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-1"}), 200).await;
        let name = if is_there { "db-3" } else { "db-9" };
        let named = write(&served, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": name}})).await;
        assert_eq!(named.status, 200, "{}", named.body);
        if !is_there {
            let made = write(&served, "POST", "/v1/nodes", &json!({"name": name, "nodegroup": "eu/db"})).await;
            assert_eq!(made.status, 201, "{}", made.body);
        }
        for query in ["?dry_run=true", ""] {
            let path = format!("/v1/clusters/eu{query}");
            let answer = if by_json_patch {
                served.send("PATCH", &path, &[], Some(&json_patch)).await
            } else {
                let answer = write(&served, "PATCH", &path, &json!({"primaries": null})).await;
                assert_eq!(answer.body["moved_primaries"], json!([]), "{name}: {}", answer.body);
                answer
            };
            let warning = answer.warning.unwrap_or_default();
            assert!(answer.status < 300 && !warning.contains("moves from"), "{name}: {warning} {}", answer.body);
        }
        let row = primary(&served).await;
        assert_eq!([&row["node"], &row["chosen_by"], &row["named"]], [&json!(name), &json!("choice"), &Value::Null]);
    }
}

/// The node that the cluster names is stored as the choice in the same write.
#[tokio::test]
async fn x07_primary_write_stores_choice() {
    let served = TestApi::start().await;
    site(&served).await;
    for name in ["db-2", "db-3"] {
        let named = write(&served, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": name}})).await;
        assert_eq!(named.status, 200, "{}", named.body);
        // The cluster now names a node that does not exist, and the previous node keeps the tag.
        let other = write(&served, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": "db-9"}})).await;
        assert_eq!((other.status, &other.body["moved_primaries"]), (200, &json!([])), "{}", other.body);
        let row = primary(&served).await;
        assert_eq!([&row["node"], &row["chosen_by"]], [&json!(name), &json!("choice")]);
    }
}
