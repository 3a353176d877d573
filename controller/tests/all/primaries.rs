//! Primaries: which node keeps a primary, which node gets one, and that no write moves one without reporting it.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];

/// Creates cluster `eu` with three nodes of tag mysql and a web server, and cluster `us` without a release. No choice
/// of a primary is stored.
async fn site(server: &TestApi) {
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
    let answer = server.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
    assert_eq!(answer["moved_primaries"], json!([]), "no node was primary before");
}

/// Sends a write that requests the changed object in the response, as the command line does. A PATCH is a merge patch.
async fn write(server: &TestApi, method: &str, path: &str, body: &Value) -> ApiResponse {
    let prefer = ("prefer", "return=representation");
    let headers = if method == "PATCH" { vec![MERGE[0], prefer] } else { vec![prefer] };
    server.send(method, path, &headers, Some(body).filter(|body| !body.is_null())).await
}

/// Returns the entry of tag mysql in the list of primaries of cluster eu. Checks that the list has no other entry.
async fn primary(server: &TestApi) -> Value {
    let list = server.get("/v1/clusters/eu/primaries").await;
    let entries = list["primaries"].as_array().expect("a list");
    assert_eq!((entries.len(), &entries[0]["tag"]), (1, &json!("mysql")), "{list}");
    entries[0].clone()
}

/// Returns the object of each finding `primary.parked` in a response, such as `node/db-1`.
fn parked_findings(answer: &Value) -> Vec<String> {
    let findings = answer["findings"].as_array().expect("a list").iter();
    let selected = findings.filter(|finding| finding["code"] == "primary.parked");
    selected.map(|finding| finding["object"].as_str().expect("an object").to_owned()).collect()
}

/// Node db-1 is primary, and is parked first in a dry run.
#[tokio::test]
async fn x07_park_keeps_primary_and_reports_finding() {
    let server = TestApi::start().await;
    site(&server).await;
    for query in ["?dry_run=true", ""] {
        assert_eq!(primary(&server).await["node"], "db-1");
        let answer = write(&server, "PATCH", &format!("/v1/nodes/db-1{query}"), &json!({"parked": true})).await;
        assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &json!([])), "{}", answer.body);
        assert_eq!(parked_findings(&answer.body), ["node/db-1"]);
        assert!(answer.warning.expect("a warning").contains("stemma node park db-1 --release-primary"));
    }
    let entry = primary(&server).await;
    assert_eq!([&entry["node"], &entry["parked"], &entry["chosen_by"]], [&json!("db-1"), &json!(true), &json!("choice")]);
    assert_eq!(server.get("/v1/nodes/db-1").await["primary_tags"], json!(["mysql"]));
    let mut finding_objects = parked_findings(&server.get("/v1/clusters/eu/validate").await);
    finding_objects.sort();
    assert_eq!(finding_objects, ["cluster/eu", "node/db-1"]);
    let answer = write(&server, "PATCH", "/v1/nodes/db-1", &json!({"parked": false})).await;
    assert_eq!((&answer.body["moved_primaries"], parked_findings(&answer.body)), (&json!([]), vec![]));
    assert_eq!(primary(&server).await["node"], "db-1");
    // Ironic's clients can park a node too.
    let answer = server.send("PUT", "/v1/nodes/db-1/maintenance", &[], Some(&json!({"reason": "a disk"}))).await;
    assert_eq!((answer.status, primary(&server).await["node"].clone()), (202, json!("db-1")));
}

/// Regression: the audit named a primary by its tag only, not by `CLUSTER/TAG`. A query for the tag still finds it.
#[tokio::test]
async fn y09_audit_finds_primary_by_cluster_and_tag() {
    let server = TestApi::start().await;
    site(&server).await;
    for node in ["db-1", "db-2"] {
        server.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": node}), 200).await;
    }
    let both_changes = [json!(["created", "eu/mysql"]), json!(["updated", "eu/mysql"])];
    for (object, expected) in [
        ("primary/eu/mysql", &both_changes[..]),
        ("PRIMARY/eu/mysql", &both_changes),
        ("primary/mysql", &both_changes),
        ("primary/us/mysql", &[]),
        ("primary/eu/nginx", &[]),
        ("nodegroup/eu/mysql", &[]),
    ] {
        let audit = server.get(&format!("/v1/audit?object={object}")).await;
        let entries = audit["audit"].as_array().expect("a list").iter();
        let objects = entries.flat_map(|entry| entry["objects"].as_array().expect("a list"));
        let primaries = objects.filter(|object| object["kind"] == "primary");
        let changes: Vec<Value> = primaries.map(|object| json!([object["action"], object["name"]])).collect();
        assert_eq!(changes, expected, "{object}: {audit}");
    }
}

#[tokio::test]
async fn x07_write_reports_moved_primary() {
    let server = TestApi::start().await;
    site(&server).await;
    server.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-1"}), 200).await;
    let move_manifest = json!({"objects": [{"kind": "Node", "name": "db-1", "nodegroup": "eu/web"}]});
    let remove_tag = json!({"roles": {"db": {"remove_tags": ["mysql"]}}});
    for (method, path, body, new_primary) in [
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
        ("POST", "/v1/apply?manager=git", move_manifest, Some("db-2")),
        ("PUT", "/v1/clusters/eu/roles", remove_tag, None),
        ("PATCH", "/v1/clusters/eu/nodegroups/db", json!({"roles": []}), None),
        ("PATCH", "/v1/clusters/eu", json!({"release": "plain"}), None),
    ] {
        let dry_run_path = format!("{path}{}dry_run=true", if path.contains('?') { '&' } else { '?' });
        let answer = write(&server, method, &dry_run_path, &body).await;
        let expected = json!([{"cluster": "eu", "tag": "mysql", "from": "db-1", "to": new_primary}]);
        assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &expected), "{method} {path} {body}: {}", answer.body);
        assert_eq!(primary(&server).await["node"], "db-1", "a dry run changes nothing");
    }
    // If the response has no body, a header reports the move.
    let answer = server.send("DELETE", "/v1/nodes/db-1/tags/mysql", &[], None).await;
    let expected_warning = "info: the primary of tag mysql in cluster eu moves from db-1 to db-2";
    assert!(answer.status == 204 && answer.warning.expect("a warning").contains(expected_warning));
    assert_eq!(primary(&server).await["node"], "db-2");
    // A new node whose name sorts before the primary does not become primary.
    for body in [json!({"name": "db-0", "nodegroup": "eu/db"}), json!({"name": "a", "nodegroup": "eu/db"})] {
        let create_answer = write(&server, "POST", "/v1/nodes", &body).await;
        assert_eq!((create_answer.status, create_answer.body.get("moved_primaries")), (201, None), "{}", create_answer.body);
        assert_eq!(primary(&server).await["node"], "db-2");
    }
    // The exception is a node that the cluster names.
    let patch_answer = write(&server, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": "db-9"}})).await;
    assert_eq!((patch_answer.status, &patch_answer.body["moved_primaries"]), (200, &json!([])), "{}", patch_answer.body);
    let create_answer = write(&server, "POST", "/v1/nodes?dry_run=true", &json!({"name": "db-9", "nodegroup": "eu/db"})).await;
    let expected = json!([{"cluster": "eu", "tag": "mysql", "from": "db-2", "to": "db-9"}]);
    assert_eq!((create_answer.status, &create_answer.body["moved_primaries"]), (201, &expected), "{}", create_answer.body);
}

/// While `primaries` of the cluster names db-3, the choice of another node and `release_primary` of db-3 are refused.
#[tokio::test]
async fn x07_cluster_primaries_take_precedence_over_other_writes() {
    let server = TestApi::start().await;
    site(&server).await;
    server.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-1"}), 200).await;
    let primaries_patch = json!({"primaries": {"mysql": "db-3"}});
    let answer = write(&server, "PATCH", "/v1/clusters/eu?manager=facility", &primaries_patch).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let entry = primary(&server).await;
    assert_eq!([&entry["node"], &entry["chosen_by"], &entry["named"]], [&json!("db-3"), &json!("cluster"), &json!("db-3")]);
    let set_answer = write(&server, "PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-2"})).await;
    assert_eq!((set_answer.status, set_answer.kind()), (409, "primary.kept"));
    assert!(set_answer.message().contains("'db-3'") && set_answer.message().contains("facility"), "{}", set_answer.body);
    let release_answer = write(&server, "PATCH", "/v1/nodes/db-3?release_primary=true", &json!({"parked": true})).await;
    assert_eq!((release_answer.status, release_answer.kind()), (409, "primary.kept"), "{}", release_answer.body);
    assert_eq!(server.get("/v1/nodes/db-3").await["parked"], json!(false), "nothing was changed");
    server.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-3"}), 200).await;
    // The node keeps the primary when the cluster no longer names it.
    let answer = write(&server, "PATCH", "/v1/clusters/eu?manager=facility", &json!({"primaries": null})).await;
    assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &json!([])), "{}", answer.body);
    let entry = primary(&server).await;
    assert_eq!([&entry["node"], &entry["chosen_by"], &entry["named"]], [&json!("db-3"), &json!("choice"), &Value::Null]);
}

/// Regression: an invalid entry in a cluster's `primaries` was accepted without effect. At most a warning reported it.
#[tokio::test]
async fn x07_primary_write_is_applied_or_rejected() {
    let server = TestApi::start().await;
    site(&server).await;
    let uuid = server.get("/v1/nodes/db-3").await["uuid"].as_str().expect("a uuid").to_owned();
    let stray_answer = write(&server, "POST", "/v1/nodes", &json!({"name": "stray"})).await;
    assert_eq!(stray_answer.status, 201, "{}", stray_answer.body);
    let manifest = |primaries: &Value| {
        let cluster = json!({"kind": "Cluster", "name": "eu", "release": "r", "primaries": primaries});
        json!({"objects": [cluster]})
    };
    for (tag, node, reason) in [
        ("nginx", "web-1", "tag nginx has no primary there (its has_primary is false)"),
        ("nosuch", "db-1", "the cluster's release has no tag nosuch"),
        ("mysql", "web-1", "node 'web-1' does not have the tag"),
        ("mysql", "stray", "node 'stray' is not in the cluster"),
    ] {
        let primaries = json!({tag: node});
        let merge_patch = json!({"primaries": primaries});
        let json_patch = json!([{"op": "add", "path": "/primaries", "value": primaries}]);
        let new_cluster = json!({"name": "new", "release": "r", "primaries": {tag: node}});
        for query in ["", "?dry_run=true"] {
            let merge_answer = write(&server, "PATCH", &format!("/v1/clusters/eu{query}"), &merge_patch).await;
            let patch_answer = server.send("PATCH", &format!("/v1/clusters/eu{query}"), &[], Some(&json_patch)).await;
            let apply_answer = write(&server, "POST", &format!("/v1/apply{query}"), &manifest(&primaries)).await;
            for refusal in [merge_answer, patch_answer, apply_answer] {
                assert_eq!((refusal.status, refusal.kind()), (400, "field.invalid"), "{primaries}: {}", refusal.body);
                let message = refusal.message();
                assert!(message.contains(reason) && message.ends_with("nothing was changed"), "{primaries}: {message}");
            }
        }
        let create_answer = write(&server, "POST", "/v1/clusters", &new_cluster).await;
        assert_eq!((create_answer.status, create_answer.kind()), (400, "field.invalid"), "{primaries}: {}", create_answer.body);
    }
    assert_eq!(primary(&server).await["named"], Value::Null);
    // A node can be named before it is created. Until then there is a finding on the cluster.
    let early_answer = write(&server, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": "db-9"}})).await;
    assert_eq!(early_answer.status, 200, "{}", early_answer.body);
    let validation = server.get("/v1/clusters/eu/validate").await;
    let finding = validation["findings"].as_array().expect("a list").iter().find(|finding| finding["code"] == "primary.unknown");
    assert_eq!(finding.expect("a finding")["severity"], "warning");
    // A uuid refers to its node, also after a rename. An entry that is stored already does not block other writes.
    let by_uuid = json!({"primaries": {"mysql": uuid}});
    let answer = write(&server, "PATCH", "/v1/clusters/eu", &by_uuid).await;
    let expected_move = json!([{"cluster": "eu", "tag": "mysql", "from": "db-1", "to": "db-3"}]);
    assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &expected_move), "{}", answer.body);
    let rename_answer = write(&server, "PATCH", "/v1/nodes/db-3", &json!({"name": "db-7"})).await;
    assert_eq!(rename_answer.status, 200, "{}", rename_answer.body);
    let entry = primary(&server).await;
    assert_eq!([&entry["node"], &entry["chosen_by"]], [&json!("db-7"), &json!("cluster")]);
    for query in ["", "?dry_run=true"] {
        write(&server, "DELETE", &format!("/v1/nodes/db-7/tags/mysql{query}"), &Value::Null).await;
        let patch = json!({"description": "x", "primaries": {"mysql": uuid}});
        let answer = write(&server, "PATCH", &format!("/v1/clusters/eu{query}"), &patch).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let validation = server.get("/v1/clusters/eu/validate").await;
    let finding = validation["findings"].as_array().expect("a list").iter().find(|finding| finding["code"] == "primary.unknown");
    assert_eq!(finding.expect("the node lost the tag")["severity"], "error");
}

/// One apply writes the cluster before its nodes and their tags, and `primaries` is checked at the end.
#[tokio::test]
async fn x07_apply_names_primary_created_by_same_apply() {
    let server = TestApi::start().await;
    site(&server).await;
    let objects = json!([
        {"kind": "Cluster", "name": "asia", "release": "r", "primaries": {"mysql": "as-2", "seat": "as-1"}, "tags": {"seat": {"has_primary": true}}},
        {"kind": "NodeGroup", "cluster": "asia", "name": "db", "roles": ["db"]},
        {"kind": "Node", "name": "as-1", "nodegroup": "asia/db", "tags": {"assigned": ["seat"]}},
        {"kind": "Node", "name": "as-2", "nodegroup": "asia/db"},
    ]);
    server.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    assert_eq!(server.get("/v1/nodes/as-2").await["primary_tags"], json!(["mysql"]));
    assert_eq!(server.get("/v1/nodes/as-1").await["primary_tags"], json!(["seat"]));
}

/// While `primaries` of the cluster names db-3, the errors of writes that contradict this entry, and the finding about
/// the parked db-3, contain the commands that edit `primaries`.
#[tokio::test]
async fn x07_primary_error_says_how_to_change_cluster_primaries() {
    let server = TestApi::start().await;
    site(&server).await;
    let primaries_patch = |name: &str| json!({"primaries": {"mysql": name}});
    let answer = write(&server, "PATCH", "/v1/clusters/eu?manager=facility", &primaries_patch("db-3")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let commands = ["stemma get cluster eu -o manifest > cluster.yaml", "stemma apply --force -f cluster.yaml"];
    let park_patch = json!({"parked": true});
    for (method, path, body) in [
        ("PUT", "/v1/clusters/eu/primaries/mysql", json!({"node": "db-2"})),
        ("PATCH", "/v1/nodes/db-3?release_primary=true", park_patch.clone()),
        ("PATCH", "/v1/nodes/db-3", json!({"name": "db-4"})),
    ] {
        let refusal = write(&server, method, path, &body).await;
        assert_eq!((refusal.status, refusal.kind()), (409, "primary.kept"), "{method} {path}: {}", refusal.body);
        let detail = refusal.body["error"]["detail"].as_str().expect("what to do");
        assert!(commands.iter().all(|command| detail.contains(command)), "{method} {path}: {detail}");
    }
    // The finding about a parked primary advises only commands that succeed here.
    let answer = write(&server, "PATCH", "/v1/nodes/db-3", &park_patch).await;
    let findings = answer.body["findings"].as_array().expect("a list").iter();
    let messages: Vec<&str> = findings
        .filter(|finding| finding["code"] == "primary.parked")
        .filter_map(|finding| finding["message"].as_str())
        .collect();
    assert_eq!((answer.status, messages.len()), (200, 1), "{}", answer.body);
    assert!(commands.iter().all(|command| messages[0].contains(command)), "{}", messages[0]);
    assert!(messages[0].contains("stemma node unpark db-3") && !messages[0].contains("--release-primary"), "{}", messages[0]);
    let answer = write(&server, "PATCH", "/v1/clusters/eu", &primaries_patch("db-2")).await;
    let expected_move = json!([{"cluster": "eu", "tag": "mysql", "from": "db-3", "to": "db-2"}]);
    assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &expected_move), "{}", answer.body);
}

/// A node cannot be renamed while `primaries` of its cluster contains its name.
#[tokio::test]
async fn x07_node_keeps_name_when_cluster_names_node() {
    let server = TestApi::start().await;
    site(&server).await;
    let primaries_patch = |name: Value| json!({"primaries": {"mysql": name}});
    write(&server, "PATCH", "/v1/clusters/eu?manager=facility", &primaries_patch(json!("db-3"))).await;
    let json_patch = json!([{"op": "replace", "path": "/name", "value": "db-4"}]);
    let remove_name = json!([{"op": "remove", "path": "/name"}]);
    for query in ["", "?dry_run=true"] {
        let path = format!("/v1/nodes/db-3{query}");
        let merge_answer = write(&server, "PATCH", &path, &json!({"name": "db-4"})).await;
        let patch_answer = server.send("PATCH", &path, &[], Some(&json_patch)).await;
        let remove_answer = server.send("PATCH", &path, &[], Some(&remove_name)).await;
        for refusal in [merge_answer, patch_answer, remove_answer] {
            assert_eq!((refusal.status, refusal.kind()), (409, "primary.kept"), "{}", refusal.body);
            let message = refusal.message();
            assert!(message.contains("node 'db-3' cannot be renamed") && message.contains("facility"), "{message}");
            assert!(message.ends_with("nothing was changed"), "{message}");
        }
    }
    assert_eq!(primary(&server).await["node"], "db-3");
    // Other nodes can be renamed, and so can this one in the way that the error describes.
    let answer = write(&server, "PATCH", "/v1/nodes/db-2", &json!({"name": "db-5"})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (path, body) in [
        ("/v1/clusters/eu", primaries_patch(Value::Null)),
        ("/v1/nodes/db-3", json!({"name": "db-4"})),
        ("/v1/clusters/eu", primaries_patch(json!("db-4"))),
    ] {
        let answer = write(&server, "PATCH", path, &body).await;
        assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &json!([])), "{path} {body}: {}", answer.body);
    }
    let entry = primary(&server).await;
    assert_eq!([&entry["node"], &entry["chosen_by"], &entry["named"]], [&json!("db-4"), &json!("cluster"), &json!("db-4")]);
}

/// `primaries` of the cluster names the deleted node. The response warns of this, and lists the move of the primary.
#[tokio::test]
async fn x07_node_deletion_reports_moved_primary() {
    let server = TestApi::start().await;
    site(&server).await;
    write(&server, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": "db-3"}})).await;
    for query in ["?dry_run=true", ""] {
        let answer = write(&server, "DELETE", &format!("/v1/nodes/db-3{query}"), &Value::Null).await;
        let expected_move = json!([{"cluster": "eu", "tag": "mysql", "from": "db-3", "to": "db-1"}]);
        assert_eq!((answer.status, &answer.body["moved_primaries"]), (200, &expected_move), "{}", answer.body);
        let warning = answer.warning.expect("a warning");
        assert!(warning.contains("mysql names db-3, which is ignored: there is no node db-3"), "{warning}");
        assert!(warning.contains("or leave mysql out"), "{warning}");
    }
}

/// `release_primary` is allowed only in a write after which the node is parked. The last node that is not parked cannot
/// release its primary.
#[tokio::test]
async fn x07_release_primary_moves_to_next_node_or_fails() {
    let server = TestApi::start().await;
    site(&server).await;
    let park = async |name: &str, query: &str| {
        write(&server, "PATCH", &format!("/v1/nodes/{name}{query}"), &json!({"parked": true})).await
    };
    let answer_without_park = write(&server, "PATCH", "/v1/nodes/db-1?release_primary=true", &json!({"description": "x"})).await;
    assert_eq!((answer_without_park.status, answer_without_park.kind()), (400, "request.query"), "{}", answer_without_park.body);
    // The primary also moves if no choice was stored yet.
    let release_answer = park("db-1", "?release_primary=true").await;
    let expected_move = json!([{"cluster": "eu", "tag": "mysql", "from": "db-1", "to": "db-2"}]);
    assert_eq!(
        (release_answer.status, &release_answer.body["moved_primaries"]),
        (200, &expected_move),
        "{}",
        release_answer.body
    );
    assert_eq!(parked_findings(&release_answer.body), [""; 0]);
    let entry = primary(&server).await;
    assert_eq!([&entry["node"], &entry["parked"], &entry["chosen_by"]], [&json!("db-2"), &json!(false), &json!("choice")]);
    // A node that is already parked can release the primary that it keeps.
    assert_eq!(park("db-2", "").await.status, 200);
    assert_eq!(park("db-2", "?release_primary=true").await.status, 200);
    assert_eq!(primary(&server).await["node"], "db-3");
    let last_answer = park("db-3", "?release_primary=true").await;
    assert_eq!((last_answer.status, last_answer.kind()), (409, "primary.kept"), "all others are parked: {}", last_answer.body);
    assert_eq!(server.get("/v1/nodes/db-3").await["parked"], json!(false));
    assert_eq!(park("web-1", "?release_primary=true").await.status, 200, "web-1 is not a primary");
}

/// The first loop lists invalid requests, the second valid ones. A repetition changes nothing.
#[tokio::test]
async fn x07_set_primary_requires_node_with_tag() {
    let server = TestApi::start().await;
    site(&server).await;
    let set_primary = async |path: &str, body: Value| write(&server, "PUT", path, &body).await;
    let mysql = "/v1/clusters/eu/primaries/mysql";
    for (path, body, status, kind, expected_text) in [
        (mysql, json!({"node": "db-9"}), 400, "reference.dangling", "there is no node 'db-9'"),
        (mysql, json!({"node": "web-1"}), 400, "field.invalid", "node 'web-1' does not have tag 'mysql' in cluster eu"),
        (mysql, json!({"node": ""}), 400, "field.invalid", "the name or uuid of a node"),
        (mysql, json!({"node": 7}), 400, "field.invalid", "the name or uuid of a node"),
        (mysql, json!({}), 400, "field.missing", "this call accepts"),
        (mysql, json!({"node": "db-2", "force": true}), 400, "field.unknown", "'force'"),
        ("/v1/clusters/eu/primaries/nginx", json!({"node": "web-1"}), 400, "field.invalid", "has no primary"),
        ("/v1/clusters/eu/primaries/none", json!({"node": "db-2"}), 400, "field.invalid", "does not have tag 'none'"),
        ("/v1/clusters/us/primaries/mysql", json!({"node": "db-2"}), 400, "field.invalid", "in cluster us"),
        ("/v1/clusters/no/primaries/mysql", json!({"node": "db-2"}), 404, "object.not_found", "could not be found"),
    ] {
        let answer = set_primary(path, body.clone()).await;
        assert_eq!((answer.status, answer.kind()), (status, kind), "{path} {body}: {}", answer.body);
        assert!(answer.message().contains(expected_text), "{path} {body}: {}", answer.body);
    }
    assert_eq!(primary(&server).await["node"], "db-1");
    let uuid = server.get("/v1/nodes/db-3").await["uuid"].clone();
    for (node, name) in [(json!("db-2"), "db-2"), (uuid, "db-3")] {
        let answer = set_primary(mysql, json!({"node": node})).await;
        assert_eq!((answer.status, &answer.body["node"]), (200, &json!(name)), "{}", answer.body);
        assert_eq!(answer.body["changes"][0]["new"], json!(name), "{}", answer.body);
        assert_eq!(primary(&server).await["node"], name);
    }
    let repeated_answer = set_primary(mysql, json!({"node": "db-3"})).await;
    assert_eq!((repeated_answer.status, &repeated_answer.body["changes"]), (200, &json!([])), "{}", repeated_answer.body);
    // A parked node can be set. The response reports that it is parked.
    server.send("PATCH", "/v1/nodes/db-1", MERGE, Some(&json!({"parked": true}))).await;
    let answer = set_primary(mysql, json!({"node": "db-1"})).await;
    assert_eq!((answer.status, &answer.body["parked"]), (200, &json!(true)), "{}", answer.body);
    assert_eq!(parked_findings(&answer.body), ["cluster/eu", "node/db-1"]);
}

/// The cluster names an existing node, or a node that is created later. Regression: when a cluster stopped naming a
/// node, the choice of that node was not stored, and another node became primary.
#[tokio::test]
async fn x07_node_keeps_primary_tag_when_cluster_stops_naming_node() {
    let json_patch = json!([{"op": "remove", "path": "/primaries/mysql"}]);
    for (is_existing, is_json_patch) in [(true, false), (true, true), (false, false)] {
        let server = TestApi::start().await;
        site(&server).await;
        server.expect("PUT", "/v1/clusters/eu/primaries/mysql", &json!({"node": "db-1"}), 200).await;
        let name = if is_existing { "db-3" } else { "db-9" };
        let patch_answer = write(&server, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": name}})).await;
        assert_eq!(patch_answer.status, 200, "{}", patch_answer.body);
        if !is_existing {
            let create_answer = write(&server, "POST", "/v1/nodes", &json!({"name": name, "nodegroup": "eu/db"})).await;
            assert_eq!(create_answer.status, 201, "{}", create_answer.body);
        }
        for query in ["?dry_run=true", ""] {
            let path = format!("/v1/clusters/eu{query}");
            let answer = if is_json_patch {
                server.send("PATCH", &path, &[], Some(&json_patch)).await
            } else {
                let answer = write(&server, "PATCH", &path, &json!({"primaries": null})).await;
                assert_eq!(answer.body["moved_primaries"], json!([]), "{name}: {}", answer.body);
                answer
            };
            let warning = answer.warning.unwrap_or_default();
            assert!(answer.status < 300 && !warning.contains("moves from"), "{name}: {warning} {}", answer.body);
        }
        let entry = primary(&server).await;
        assert_eq!([&entry["node"], &entry["chosen_by"], &entry["named"]], [&json!(name), &json!("choice"), &Value::Null]);
    }
}

/// The node that `primaries` of the cluster names is stored as the choice in the same write.
#[tokio::test]
async fn x07_primary_write_stores_choice() {
    let server = TestApi::start().await;
    site(&server).await;
    for name in ["db-2", "db-3"] {
        let first_answer = write(&server, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": name}})).await;
        assert_eq!(first_answer.status, 200, "{}", first_answer.body);
        // The cluster now names a node that does not exist, and the previous node keeps the tag.
        let second_answer = write(&server, "PATCH", "/v1/clusters/eu", &json!({"primaries": {"mysql": "db-9"}})).await;
        assert_eq!((second_answer.status, &second_answer.body["moved_primaries"]), (200, &json!([])), "{}", second_answer.body);
        let entry = primary(&server).await;
        assert_eq!([&entry["node"], &entry["chosen_by"]], [&json!(name), &json!("choice")]);
    }
}
