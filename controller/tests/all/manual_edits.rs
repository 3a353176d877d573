//! Manual writes over a manifest: who owns the field afterwards, and who gets the conflict.

use serde_json::{Value, json};

use crate::served::TestApi;
use crate::write_forms::{MERGE, PATCH, PLAIN, apply, error_parts, send_patch};

/// A plain write that resets a field to its default: field, previous value, method, path, headers and body.
type ResetCase = (&'static str, Value, &'static str, &'static str, &'static [(&'static str, &'static str)], Value);

/// Returns a case for each way to reset a field to its default by a plain write.
fn reset_cases() -> Vec<ResetCase> {
    let (node, cluster, group) = ("/v1/nodes/n", "/v1/clusters/c", "/v1/clusters/c/nodegroups/h");
    let op = |verb: &str, path: &str| json!([{"op": verb, "path": path}]);
    let set = |path: &str, value: Value| json!([{"op": "replace", "path": path, "value": value}]);
    vec![
        ("roles", json!(["ra"]), "DELETE", "/v1/nodes/n/roles", PLAIN, json!({"roles": ["ra"]})),
        ("roles", json!(["ra"]), "PUT", "/v1/nodes/n/roles", PLAIN, json!({"roles": []})),
        ("roles", json!(["ra"]), "PATCH", node, MERGE, json!({"roles": null})),
        ("roles", json!(["ra"]), "PATCH", node, PATCH, op("remove", "/roles/0")),
        ("parked", json!(true), "DELETE", "/v1/nodes/n/maintenance", PLAIN, Value::Null),
        ("parked", json!(true), "PATCH", node, MERGE, json!({"parked": false})),
        ("parked", json!(true), "PATCH", node, MERGE, json!({"maintenance": null})),
        ("parked", json!(true), "PATCH", node, PATCH, set("/parked", json!(false))),
        ("parked", json!(true), "PATCH", node, PATCH, op("remove", "/parked")),
        ("parked", json!(true), "PATCH", node, PATCH, op("remove", "/maintenance")),
        ("description", json!("x"), "PATCH", node, MERGE, json!({"description": null})),
        ("description", json!("x"), "PATCH", node, MERGE, json!({"description": ""})),
        ("hold", json!({"reason": "x"}), "PATCH", node, MERGE, json!({"hold": null})),
        ("nodegroup", json!("c/g"), "PATCH", node, MERGE, json!({"nodegroup": null})),
        ("suppressed_traits", json!(["HW_CPU_X86_AVX2"]), "PATCH", node, MERGE, json!({"suppressed_traits": []})),
        ("roles", json!({"web": {"add_tags": ["x"]}}), "PUT", "/v1/clusters/c/roles", PLAIN, json!({"roles": {}})),
        ("tags", json!({"x": {}}), "DELETE", "/v1/clusters/c/tags/x", PLAIN, Value::Null),
        ("tags", json!({"x": {}}), "PATCH", cluster, MERGE, json!({"tags": null})),
        ("rollout", json!({"max_groups": 1}), "PATCH", cluster, MERGE, json!({"rollout": null})),
        ("paused", json!(true), "PATCH", group, MERGE, json!({"paused": false})),
        ("merge_labels", json!(false), "PATCH", group, MERGE, json!({"merge_labels": null})),
    ]
}

/// The manager that changes a field by a plain write owns the field, also if the new value is the default. The manifest
/// of another manager with the previous value is then a conflict.
#[tokio::test]
async fn y05_manual_reset_conflicts_with_manifest_of_same_field() {
    let server = TestApi::start().await;
    let minimal_object = |path: &str| match path.split('/').nth(2) {
        Some("nodes") => json!({"kind": "Node", "name": "n"}),
        _ if path.contains("nodegroups") => json!({"kind": "NodeGroup", "cluster": "c", "name": "h"}),
        _ => json!({"kind": "Cluster", "name": "c"}),
    };
    apply(&server, &json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    for (field, value, method, path, headers, body) in reset_cases() {
        let mut object = minimal_object(path);
        object[field] = value;
        let manifest = json!({"objects": [object]});
        server.expect("POST", "/v1/apply?manager=git&force=true", &manifest, 200).await;
        let path_as_ann = format!("{path}?manager=ann");
        let answer = server.send(method, &path_as_ann, headers, Some(&body).filter(|body| !body.is_null())).await;
        assert!(answer.status < 300, "{method} {path} {body}: {}", answer.body);
        let apply_answer = server.send("POST", "/v1/apply?manager=git", &[], Some(&manifest)).await;
        let expected = (409, "label.conflict".to_owned(), field.to_owned());
        assert_eq!(error_parts(&apply_answer), expected, "{method} {path} {body}: {}", apply_answer.body);
        server.expect("POST", "/v1/apply?manager=git&force=true", &manifest, 200).await;
        let manifest_without_field = json!({"objects": [minimal_object(path)]});
        server.expect("POST", "/v1/apply?manager=git", &manifest_without_field, 200).await;
    }
}

/// The creator of an object owns each field that the request provides with a value, even the default. A `POST` and a
/// manifest do the same.
#[tokio::test]
async fn y05_creator_owns_written_fields_when_at_default() {
    let server = TestApi::start().await;
    let fields = json!({"description": "", "roles": [], "parked": false, "hold": null, "retired": false, "mode": "apply"});
    let object_with = |name: &str, value: &str| {
        let mut object = fields.clone();
        object[name] = value.into();
        object
    };
    server.expect("POST", "/v1/nodes?manager=one", &object_with("name", "posted"), 201).await;
    let mut object = object_with("name", "applied");
    object["kind"] = "Node".into();
    server.expect("POST", "/v1/apply?manager=one", &json!({"objects": [object]}), 200).await;
    let owners = async |node: &str| server.get(&format!("/v1/nodes/{node}")).await["field_owners"].to_string();
    let [posted_owners, applied_owners] = [owners("posted").await, owners("applied").await];
    assert_eq!(posted_owners.replace("one:update", "one:apply"), applied_owners);
    // Of the six fields, `hold` has no value.
    assert_eq!(posted_owners.matches("one:update").count(), 5, "{posted_owners}");
}

/// Providing `null` in an update, or a default value, does not take ownership of a field that nobody set.
#[tokio::test]
async fn y05_unowned_default_gets_no_owner_when_unchanged() {
    let server = TestApi::start().await;
    server.expect("POST", "/v1/nodes", &json!({"name": "n", "hold": null}), 201).await;
    for body in [json!({"parked": false, "hold": null}), json!({"roles": [], "description": null, "resource_class": null})] {
        assert_eq!(server.send("PATCH", "/v1/nodes/n", MERGE, Some(&body)).await.status, 200, "{body}");
    }
    assert_eq!(server.get("/v1/nodes/n").await["field_owners"], json!({}));
}

/// Creates a cluster whose group gives its node `n` the tag `x` by a role.
async fn create_tagged_node(server: &TestApi) {
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}, "y": {}}},
        {"kind": "Cluster", "name": "c", "release": "r@1"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
        {"kind": "Node", "name": "n", "nodegroup": "c/g"},
    ]);
    apply(server, &objects).await;
}

/// Returns the tags that operators assigned to the node and unassigned from it.
async fn stored_tags(server: &TestApi) -> Value {
    let stored_node = server.get("/v1/nodes/n?stored=true").await["stored"].clone();
    stored_node.get("tags").cloned().unwrap_or_else(|| json!({"assigned": [], "unassigned": []}))
}

/// A tag of a node has one owner, whether the tag is assigned or unassigned (docs/concepts.md). An apply with `force`,
/// or with `adopt` and the name of the owner, overrules the owner.
#[tokio::test]
async fn y05_manual_tag_removal_conflicts_with_manifest() {
    let server = TestApi::start().await;
    create_tagged_node(&server).await;
    let manifest = json!({"objects": [{"kind": "Node", "name": "n", "nodegroup": "c/g", "tags": {"assigned": ["x"]}}]});
    let assigned = json!({"assigned": ["x"], "unassigned": []});
    for query in ["force=true", "adopt=ann", "adopt=ann:update"] {
        server.expect("POST", "/v1/apply?manager=git&force=true", &manifest, 200).await;
        let answer = server.send("DELETE", "/v1/nodes/n/tags/x?manager=ann", &[], None).await;
        assert_eq!(answer.status, 204, "{}", answer.body);
        assert_eq!(stored_tags(&server).await, json!({"assigned": [], "unassigned": ["x"]}));
        let refusal = server.send("POST", "/v1/apply?manager=git", &[], Some(&manifest)).await;
        assert_eq!(error_parts(&refusal), (409, "label.conflict".to_owned(), "tags.x".to_owned()), "{}", refusal.body);
        let conflict = json!([{"map": "tags", "key": "x", "manager": "ann:update", "value": "unassigned"}]);
        assert_eq!(refusal.body["conflicts"], conflict, "{}", refusal.body);
        server.expect("POST", &format!("/v1/apply?manager=git&{query}"), &manifest, 200).await;
        assert_eq!(stored_tags(&server).await, assigned, "{query}");
    }
    let unassign_manifest =
        json!({"objects": [{"kind": "Node", "name": "n", "nodegroup": "c/g", "tags": {"unassigned": ["x"]}}]});
    let refusal = server.send("POST", "/v1/apply?manager=ops", &[], Some(&unassign_manifest)).await;
    assert_eq!(error_parts(&refusal), (409, "label.conflict".to_owned(), "tags.x".to_owned()), "{}", refusal.body);
    server.expect("POST", "/v1/apply?manager=ops&force=true", &unassign_manifest, 200).await;
    assert_eq!(stored_tags(&server).await, json!({"assigned": [], "unassigned": ["x"]}));
    for (headers, body) in [
        (MERGE, json!({"tags": {"assigned": ["x"]}})),
        (PATCH, json!([{"op": "add", "path": "/tags", "value": {"assigned": ["x"]}}])),
    ] {
        server.expect("POST", "/v1/apply?manager=ops&force=true", &unassign_manifest, 200).await;
        let answer = server.send("PATCH", "/v1/nodes/n?manager=ann", headers, Some(&body)).await;
        assert_eq!((answer.status, stored_tags(&server).await), (200, assigned.clone()), "{body}: {}", answer.body);
    }
}

#[tokio::test]
async fn y05_write_rejects_assigning_and_unassigning_same_tag() {
    let server = TestApi::start().await;
    create_tagged_node(&server).await;
    let tags = json!({"assigned": ["x"], "unassigned": ["x"]});
    let manifest = json!({"objects": [{"kind": "Node", "name": "n", "tags": tags}]});
    let json_patch = json!([{"op": "add", "path": "/tags", "value": tags}]);
    for (method, path, headers, body) in [
        ("PATCH", "/v1/nodes/n", MERGE, json!({"tags": tags})),
        ("PATCH", "/v1/nodes/n", PATCH, json_patch),
        ("POST", "/v1/nodes", PLAIN, json!({"name": "new", "tags": tags})),
        ("POST", "/v1/apply?force=true", PLAIN, manifest),
    ] {
        let answer = server.send(method, path, headers, Some(&body)).await;
        assert_eq!(error_parts(&answer), (400, "field.invalid".to_owned(), "tags".to_owned()), "{}", answer.body);
    }
}

/// A merge patch (RFC 7396) and a JSON patch (RFC 6902) edit the tags that are stored with the node. A read of the node
/// also shows tags from other sources.
#[tokio::test]
async fn y05_patch_edits_tags_of_node() {
    let server = TestApi::start().await;
    create_tagged_node(&server).await;
    let tags = json!({"assigned": ["y"], "unassigned": ["x"]});
    let manifest = json!({"objects": [{"kind": "Node", "name": "n", "nodegroup": "c/g", "tags": tags}]});
    let remove = |path: &str| json!([{"op": "remove", "path": path}]);
    let set = |verb: &str, path: &str, value: Value| json!([{"op": verb, "path": path, "value": value}]);
    let test_and_remove =
        json!([{"op": "test", "path": "/tags/unassigned", "value": ["x"]}, {"op": "remove", "path": "/tags/unassigned"}]);
    for (headers, body, assigned, unassigned) in [
        (MERGE, json!({"tags": null}), json!([]), json!([])),
        (MERGE, json!({"tags": {"assigned": null}}), json!([]), json!(["x"])),
        (MERGE, json!({"tags": {"unassigned": null}}), json!(["y"]), json!([])),
        (MERGE, json!({"tags": {"nosuch": null}}), json!(["y"]), json!(["x"])),
        (MERGE, json!({"tags": {"assigned": ["x"]}}), json!(["x"]), json!([])),
        (PATCH, remove("/tags"), json!([]), json!([])),
        (PATCH, remove("/tags/assigned"), json!([]), json!(["x"])),
        (PATCH, remove("/tags/assigned/0"), json!([]), json!(["x"])),
        (PATCH, set("replace", "/tags", Value::Null), json!([]), json!([])),
        (PATCH, set("replace", "/tags", json!({"assigned": ["y"]})), json!(["y"]), json!([])),
        (PATCH, set("replace", "/tags/assigned/0", json!("x")), json!(["x"]), json!([])),
        (PATCH, set("add", "/tags/assigned/-", json!("x")), json!(["x", "y"]), json!([])),
        (PATCH, set("add", "/tags/unassigned", json!(["y"])), json!([]), json!(["y"])),
        (PATCH, test_and_remove, json!(["y"]), json!([])),
    ] {
        server.expect("POST", "/v1/apply?manager=git&force=true", &manifest, 200).await;
        let answer = server.send("PATCH", "/v1/nodes/n?manager=ann", headers, Some(&body)).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        assert_eq!(stored_tags(&server).await, json!({"assigned": assigned, "unassigned": unassigned}), "{body}");
    }
    server.expect("POST", "/v1/apply?manager=git&force=true", &manifest, 200).await;
    for (headers, body, field) in [
        (MERGE, json!({"tags": null}), "tags.x"),
        (MERGE, json!({"tags": {"assigned": []}}), "tags.y"),
        (PATCH, remove("/tags/assigned"), "tags.y"),
        (PATCH, set("add", "/tags/assigned/-", json!("x")), "tags.x"),
    ] {
        let answer = server.send("PATCH", "/v1/nodes/n?manager=ann&force=false", headers, Some(&body)).await;
        assert_eq!(error_parts(&answer), (409, "label.conflict".to_owned(), field.to_owned()), "{body}: {}", answer.body);
        assert_eq!(stored_tags(&server).await, tags, "{body}");
    }
    // If a node has no tags, they behave like any other field at its default.
    apply(&server, &json!([{"kind": "Node", "name": "bare", "nodegroup": "c/g"}])).await;
    let bare = "/v1/nodes/bare";
    let [tags_answer, roles_answer] =
        [send_patch(&server, bare, &remove("/tags")).await, send_patch(&server, bare, &remove("/roles")).await];
    assert_eq!((tags_answer.status, tags_answer.kind()), (roles_answer.status, roles_answer.kind()), "{}", tags_answer.body);
    for tag_path in ["/tags/assigned", "/tags/unassigned"] {
        let set_answer = send_patch(&server, bare, &remove(tag_path)).await;
        assert_eq!(
            (set_answer.status, set_answer.kind()),
            (tags_answer.status, tags_answer.kind()),
            "{tag_path}: {}",
            set_answer.body
        );
    }
    assert_eq!(send_patch(&server, bare, &set("add", "/tags/assigned/-", json!("y"))).await.status, 200);
    assert_eq!(server.get(&format!("{bare}?stored=true")).await["stored"]["tags"]["assigned"], json!(["y"]));
}
