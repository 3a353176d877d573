//! One intent in several forms of a write: what each form accepts, what it does, and what it refuses.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

pub(crate) const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];
pub(crate) const PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];
const APPLY: &[(&str, &str)] = &[("content-type", "application/apply-patch+json")];
pub(crate) const PLAIN: &[(&str, &str)] = &[];
const MAGNUM: (&str, &str) = ("openstack-api-version", "container-infra latest");

pub(crate) async fn apply(served: &TestApi, objects: &Value) {
    served.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
}

pub(crate) async fn send_patch(served: &TestApi, path: &str, operations: &Value) -> ApiResponse {
    served.send("PATCH", path, PATCH, Some(operations)).await
}

/// RFC 6902: adding a member that exists replaces it. Magnum refuses that for its clients.
#[tokio::test]
async fn y05_json_patch_add_replaces_and_edits_parameter() {
    let served = TestApi::start().await;
    let fields = json!({"labels": {"a": "1"}, "parameters": {"p": {"q": 1}}});
    let object = |kind: &str, name: &str| {
        let mut object = fields.clone();
        object["kind"] = kind.into();
        object["name"] = name.into();
        object
    };
    apply(&served, &json!([object("ClusterTemplate", "t"), object("Cluster", "c"), object("Node", "n")])).await;
    for path in ["/v1/clustertemplates/t", "/v1/clusters/c", "/v1/nodes/n"] {
        let add = json!([{"op": "add", "path": "/labels", "value": {"b": "2"}},
            {"op": "add", "path": "/parameters/p/r", "value": [2]}, {"op": "add", "path": "/parameters/p/r/-", "value": 3}]);
        let answer = send_patch(&served, path, &add).await;
        assert!(answer.status < 300, "{path}: {}", answer.body);
        let shown = served.get(path).await;
        assert_eq!(shown["provided_labels"], json!({"b": "2"}), "{path}");
        assert_eq!(shown["provided_parameters"], json!({"p": {"q": 1, "r": [2, 3]}}), "{path}");
        let remove =
            json!([{"op": "remove", "path": "/parameters/p/r/0"}, {"op": "replace", "path": "/parameters/p/q", "value": 4}]);
        assert!(send_patch(&served, path, &remove).await.status < 300, "{path}");
        assert_eq!(served.get(path).await["provided_parameters"], json!({"p": {"q": 4, "r": [3]}}), "{path}");
        for (verb, place) in [("replace", "/parameters/p/none"), ("add", "/labels/b/x"), ("add", "/parameters/no/x")] {
            let answer = send_patch(&served, path, &json!([{"op": verb, "path": place, "value": 1}])).await;
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{path} {place}: {}", answer.body);
        }
    }
    let add = json!([{"op": "add", "path": "/labels", "value": "{'x': '1'}"}]);
    let answer = served.send("PATCH", "/v1/clustertemplates/t", &[PATCH[0], MAGNUM], Some(&add)).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.message().contains("is set already"), "{}", answer.body);
}

#[tokio::test]
async fn y05_merge_labels_returns_default_when_reset() {
    let served = TestApi::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "labels": {"a": "1"}, "merge_labels": false});
    apply(&served, &json!([node("n1"), node("n2")])).await;
    let answer = send_patch(&served, "/v1/nodes/n1", &json!([{"op": "remove", "path": "/merge_labels"}])).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = served.send("PATCH", "/v1/nodes/n2", MERGE, Some(&json!({"merge_labels": null}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let [one, other] = [served.get("/v1/nodes/n1").await, served.get("/v1/nodes/n2").await];
    // The default of a new node with labels.
    assert_eq!((&one["merge_labels"], &other["merge_labels"]), (&json!(true), &json!(true)));
    assert_eq!(one["field_owners"], other["field_owners"]);
}

/// `null` provides no value, so nobody owns the field.
#[tokio::test]
async fn y05_merge_labels_null_has_no_owner_in_each_form() {
    let served = TestApi::start().await;
    let group = |name: &str| json!({"kind": "NodeGroup", "cluster": "c1", "name": name});
    let cluster = |name: &str| json!({"kind": "Cluster", "name": name});
    apply(&served, &json!([cluster("c1"), cluster("c2"), cluster("c3"), group("g1"), group("g2"), group("g3")])).await;
    for (list, names) in [("/v1/clusters", ["c1", "c2", "c3"]), ("/v1/clusters/c1/nodegroups", ["g1", "g2", "g3"])] {
        let [merge, add, replace] = names.map(|name| format!("{list}/{name}"));
        let merged = served.send("PATCH", &merge, MERGE, Some(&json!({"merge_labels": null}))).await;
        assert!(merged.status < 300, "{}", merged.body);
        for (path, verb) in [(&add, "add"), (&replace, "replace")] {
            let answer = send_patch(&served, path, &json!([{"op": verb, "path": "/merge_labels", "value": null}])).await;
            assert!(answer.status < 300, "{}", answer.body);
        }
        for path in [merge, add, replace] {
            let owners = served.get(&path).await["field_owners"].clone();
            assert!(owners.get("merge_labels").is_none(), "{path}: {owners}");
        }
    }
}

#[tokio::test]
async fn y05_parameter_accepts_name_of_map() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "Node", "name": "n1"}, {"kind": "Node", "name": "n2"}])).await;
    let parameters = json!({"parameters": {"x": 1}});
    served.expect("PATCH", "/v1/nodes/n1/parameters", &parameters, 200).await;
    let answer = served.send("PATCH", "/v1/nodes/n2", MERGE, Some(&json!({"parameters": parameters}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for path in ["/v1/nodes/n1", "/v1/nodes/n2"] {
        assert_eq!(served.get(path).await["provided_parameters"], parameters, "{path}");
    }
    // The value of a label is never an object, so `{"labels": {…}}` is the map and `{"labels": "2"}` is one label.
    served.expect("PATCH", "/v1/nodes/n1/labels", &json!({"labels": {"x": "1"}}), 200).await;
    served.expect("PATCH", "/v1/nodes/n1/labels", &json!({"labels": "2"}), 200).await;
    assert_eq!(served.get("/v1/nodes/n1").await["provided_labels"], json!({"x": "1", "labels": "2"}));
}

#[tokio::test]
async fn y05_dry_run_needs_no_file_body() {
    let served = TestApi::start().await;
    let source = format!("sha256:{}", "ab".repeat(32));
    let task = json!({"id": "a", "type": "file", "roles": ["*"], "parameters": {"path": "/etc/a", "source": source}});
    let body = json!({"name": "r", "version": "1", "tasks": [task]});
    let mut manifest = body.clone();
    manifest["kind"] = "Release".into();
    let objects = json!({"objects": [manifest]});
    for (path, body, tried) in [("/v1/releases", &body, 201), ("/v1/apply", &objects, 200)] {
        served.expect("POST", &format!("{path}?dry_run=true"), body, tried).await;
        let answer = served.send("POST", path, &[], Some(body)).await;
        assert_eq!((answer.status, answer.kind()), (400, "blob.missing"), "{path}: {}", answer.body);
    }
}

/// Magnum's cluster names begin with a letter, and only its clients are held to that.
#[tokio::test]
async fn y05_cluster_name_is_restricted_only_for_magnum_clients() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "ClusterTemplate", "name": "t"}, {"kind": "Cluster", "name": "1a"}])).await;
    served.expect("POST", "/v1/clusters", &json!({"name": "1b"}), 202).await;
    let body = json!({"name": "1c", "cluster_template_id": "t"});
    let answer = served.send("POST", "/v1/clusters", &[MAGNUM], Some(&body)).await;
    assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{}", answer.body);
    assert_eq!(answer.body["error"]["field"], "name");
}

#[tokio::test]
async fn y05_conflict_names_same_field_in_each_form() {
    let served = TestApi::start().await;
    for (field, value, named) in [("labels", json!({"tier": "gold"}), "labels.tier"), ("description", json!("a"), "description")]
    {
        let object = |value: &Value| json!({"objects": [{"kind": "Cluster", "name": "c", field: value}]});
        served.expect("POST", "/v1/apply?manager=git", &object(&value), 200).await;
        let other = if field == "labels" { json!({"tier": "iron"}) } else { json!("b") };
        let mut answers = vec![
            served.send("POST", "/v1/apply?manager=bob", &[], Some(&object(&other))).await,
            served.send("PATCH", "/v1/clusters/c?manager=bob&force=false", MERGE, Some(&json!({field: other}))).await,
        ];
        if field == "labels" {
            let body = json!({"labels": other});
            answers.push(served.send("PATCH", "/v1/clusters/c?manager=bob", APPLY, Some(&body)).await);
            answers.push(served.send("PUT", "/v1/clusters/c/labels?manager=bob&force=false", &[], Some(&body)).await);
        }
        for answer in answers {
            assert_eq!((answer.status, answer.kind()), (409, "label.conflict"), "{}", answer.body);
            let found = answer.body["error"]["field"].as_str().expect("a field");
            assert_eq!(found.trim_start_matches("objects[0]."), named, "{}", answer.body);
        }
    }
}

#[tokio::test]
async fn y05_principal_role_is_changed_and_never_removed() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/principals", &json!({"name": "ada", "role": "viewer"}), 201).await;
    let new = served.send("POST", "/v1/principals", &[], Some(&json!({"name": "eve", "role": null}))).await;
    let changed = served.send("PATCH", "/v1/principals/ada", MERGE, Some(&json!({"role": null}))).await;
    assert_eq!((new.status, changed.status), (400, 400), "{} {}", new.body, changed.body);
    let said = |answer: &ApiResponse| (answer.kind().to_owned(), answer.body["error"]["field"].clone());
    assert_eq!(said(&new), said(&changed));
    assert_eq!(served.get("/v1/principals/ada").await["role"], "viewer");
}

/// An edit of a node is not refused for path conflicts, because a joining host may cause the same. The response lists
/// them.
#[tokio::test]
async fn y05_node_edit_lists_path_conflicts_as_release_write() {
    let served = TestApi::start().await;
    let file =
        |id: &str, tag: &str| json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": "/etc/z", "content": id}});
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}, "one": {"tags": ["y"]}},
         "tags": {"x": {}, "y": {}}, "tasks": [file("a", "x"), file("b", "y")]},
        {"kind": "Cluster", "name": "c", "release": "r@1"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
        {"kind": "NodeGroup", "cluster": "c", "name": "both", "roles": ["all", "one"]},
        {"kind": "Node", "name": "n1", "nodegroup": "c/g"}, {"kind": "Node", "name": "n2", "nodegroup": "c/g"},
    ]);
    apply(&served, &objects).await;
    let moved = served.send("PATCH", "/v1/nodes/n1", MERGE, Some(&json!({"nodegroup": "c/both"}))).await;
    let given = served.send("POST", "/v1/nodes/n2/roles", &[], Some(&json!({"roles": ["one"]}))).await;
    for (name, answer) in [("n1", moved), ("n2", given)] {
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        let findings = answer.body["findings"].as_array().expect("findings");
        let found = findings.iter().find(|one| one["object"] == "release/r@1 task b").expect("a finding");
        assert_eq!((&found["code"], &found["severity"]), (&json!("task.path"), &json!("error")), "{found}");
        let message = found["message"].as_str().expect("a message");
        assert!(message.starts_with(&format!("on 1 host ({name}): ")), "{message}");
    }
}

/// If labels would become one variable of `labels.env`, the write that brings them together reports it, even before
/// there is a node.
#[tokio::test]
async fn y08_each_form_reports_labels_sharing_variable_without_nodes() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "Cluster", "name": "c"}, {"kind": "Cluster", "name": "f"}])).await;
    let both = json!({"a": "1", "A": "2"});
    let says = |text: &str| text.contains("labels A, a would all be STEMMA_LABEL_A");
    for (path, name) in [("/v1/clusters/c/nodegroups", "g"), ("/v1/clustertemplates", "t"), ("/v1/clusters", "d")] {
        let made = served.send("POST", path, &[], Some(&json!({"name": name, "labels": both}))).await;
        assert!(made.status < 300 && made.warning.as_deref().is_some_and(says), "{path}: {:?} {}", made.warning, made.body);
    }
    let body = ("prefer", "return=representation");
    let edited = served.send("PATCH", "/v1/clusters/c", &[MERGE[0], body], Some(&json!({"labels": both}))).await;
    assert!(says(&edited.body["findings"].to_string()), "{}", edited.body);
    for object in [
        json!({"kind": "ClusterTemplate", "name": "u", "labels": both}),
        json!({"kind": "Cluster", "name": "e", "labels": both}),
        json!({"kind": "NodeGroup", "cluster": "f", "name": "h", "labels": both}),
    ] {
        let applied = served.expect("POST", "/v1/apply", &json!({"objects": [object]}), 200).await;
        assert!(says(&applied["findings"].to_string()), "{object}: {applied}");
    }
}

/// Such a field is ignored if a client of Magnum sends back a response. In a manifest it is a mistake.
#[tokio::test]
async fn y05_read_only_field_is_rejected_in_each_form() {
    let served = TestApi::start().await;
    let objects = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Node", "name": "n"}]);
    apply(&served, &objects).await;
    for (object, list, field) in [
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "api_address"),
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "stack_id"),
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "status"),
        (json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}), "/v1/clusters/c/nodegroups", "status_reason"),
        (json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}), "/v1/clusters/c/nodegroups", "stack_id"),
        (json!({"kind": "Node", "name": "n"}), "/v1/nodes", "boot_mode"),
        (json!({"kind": "Node", "name": "n"}), "/v1/nodes", "secure_boot"),
    ] {
        let with = |value: Value| {
            let mut object = object.clone();
            object[field] = value;
            json!({"objects": [object]})
        };
        let answer = served.send("POST", "/v1/apply", &[], Some(&with(json!("x")))).await;
        assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{field}: {}", answer.body);
        assert_eq!(answer.body["error"]["field"], format!("objects[0].{field}"));
        served.expect("POST", "/v1/apply", &with(Value::Null), 200).await;
        let path = format!("{list}/{}", object["name"].as_str().expect("a name"));
        served.send("PATCH", &path, MERGE, Some(&json!({field: "x"}))).await;
        let shown = served.get(&path).await;
        assert!(shown[field] != "x" && shown["field_owners"].get(field).is_none(), "{field}: {shown}");
    }
}

/// A call whose only content is a role or tag cannot mean anything else. An object may refer to something that is
/// created later. docs/api.md has the table.
#[tokio::test]
async fn y05_unknown_role_is_rejected_by_call_and_found_by_write() {
    let served = TestApi::start().await;
    let node = |at: usize| json!({"kind": "Node", "name": format!("n{at}"), "nodegroup": "c/g"});
    let mut objects = vec![
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}}}),
        json!({"kind": "Cluster", "name": "c", "release": "r@1"}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}),
    ];
    objects.extend((0..4).map(node));
    apply(&served, &json!(objects)).await;
    for (method, path, body, refused) in [
        ("POST", "/v1/nodes/n0/roles", json!({"roles": ["nope"]}), (400, "role.invalid")),
        ("PUT", "/v1/nodes/n0/roles", json!({"roles": ["nope"]}), (400, "role.invalid")),
        ("PUT", "/v1/nodes/n0/tags/nope", Value::Null, (400, "tag.unknown")),
        ("POST", "/v1/nodes/n0/tags", json!({"assign": ["nope"]}), (404, "object.not_found")),
    ] {
        let answer = served.send(method, path, &[], Some(&body).filter(|body| !body.is_null())).await;
        assert_eq!((answer.status, answer.kind()), refused, "{method} {path}: {}", answer.body);
    }
    for (field, value, code) in
        [("roles", json!(["nope"]), "role.unknown"), ("tags", json!({"assigned": ["nope"]}), "tag.unknown")]
    {
        let manifest = |at: usize| {
            let mut node = node(at);
            node[field] = value.clone();
            json!({"objects": [node]})
        };
        let add = json!([{"op": "add", "path": format!("/{field}"), "value": value}]);
        let answers = [
            served.send("PATCH", "/v1/nodes/n1", MERGE, Some(&json!({field: value}))).await,
            served.send("PATCH", "/v1/nodes/n2", PATCH, Some(&add)).await,
            served.send("POST", "/v1/apply", &[], Some(&manifest(3))).await,
        ];
        for answer in answers {
            let found = answer.body["findings"].as_array().is_some_and(|all| all.iter().any(|one| one["code"] == code));
            assert!(answer.status == 200 && found, "{field}: {} {}", answer.status, answer.body);
        }
        let strict = served.send("POST", "/v1/apply?strict=true", &[], Some(&manifest(0))).await;
        assert_eq!((strict.status, strict.kind()), (400, "finding.strict"), "{field}: {}", strict.body);
    }
}

/// Ironic reads these from the machine and shows them as states. A body that was read contains `null` for them, and may
/// be sent back.
#[tokio::test]
async fn y07_node_rejects_boot_mode_and_secure_boot() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "Node", "name": "n"}])).await;
    for field in ["boot_mode", "secure_boot"] {
        let said = json!({"name": "new", field: "x"});
        let add = json!([{"op": "add", "path": format!("/{field}"), "value": "x"}]);
        for answer in [
            served.send("POST", "/v1/nodes", &[], Some(&said)).await,
            served.send("PATCH", "/v1/nodes/n", MERGE, Some(&json!({field: "x"}))).await,
            send_patch(&served, "/v1/nodes/n", &add).await,
        ] {
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{field}: {}", answer.body);
            assert_eq!(answer.body["error"]["field"], field);
        }
        let back = served.send("PATCH", "/v1/nodes/n", MERGE, Some(&json!({field: null}))).await;
        assert_eq!(back.status, 200, "{}", back.body);
        assert_eq!(served.get("/v1/nodes/n").await[field], Value::Null);
    }
}

/// `stored` contains the values that were sent. A response also counts nodes, and shows the template's values where the
/// cluster has none.
#[tokio::test]
async fn y05_y07_stored_fields_are_shown_apart_from_derived() {
    let served = TestApi::start().await;
    apply(
        &served,
        &json!([{"kind": "ClusterTemplate", "name": "t", "flavor_id": "f", "docker_volume_size": 5, "image_id": "i"}]),
    )
    .await;
    served.expect("POST", "/v1/clusters", &json!({"name": "c", "cluster_template_id": "t", "node_count": 3}), 202).await;
    served.expect("POST", "/v1/clusters/c/nodegroups", &json!({"name": "g", "node_count": 2}), 202).await;
    let node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "traits": ["CUSTOM_A"], "tags": {"unassigned": ["x"]}, "mode": "noop"});
    let objects = json!([{"kind": "NodeGroup", "cluster": "c", "name": "roles", "roles": ["web"]}, node]);
    served.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
    let shown = served.get("/v1/clusters/c").await;
    assert_eq!((&shown["flavor_id"], &shown["stored"]), (&json!("f"), &Value::Null));
    for (path, stored) in [
        ("/v1/clustertemplates/t", json!({"flavor_id": "f", "docker_volume_size": 5, "image_id": "i"})),
        ("/v1/clusters/c", json!({"cluster_template": "t", "node_count": 3})),
        ("/v1/clusters/c/nodegroups/g", json!({"node_count": 2})),
        ("/v1/clusters/c/nodegroups/roles", json!({"roles": ["web"]})),
        (
            "/v1/nodes/n",
            json!({"nodegroup": "c/g", "mode": "noop", "traits": ["CUSTOM_A"], "tags": {"assigned": [], "unassigned": ["x"]},
                "trait_owners": {"CUSTOM_A": ["git:apply"]}, "tag_owners": {"assigned": {}, "unassigned": {"x": ["git:apply"]}}}),
        ),
    ] {
        assert_eq!(served.get(&format!("{path}?stored=true")).await["stored"], stored, "{path}");
    }
    // A field that was given up is shown as if it had never been set.
    let given_up = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "mode": "noop"});
    served.expect("POST", "/v1/apply?manager=git", &json!({"objects": [given_up]}), 200).await;
    let left = json!({"nodegroup": "c/g", "mode": "noop"});
    assert_eq!(served.get("/v1/nodes/n?stored=true").await["stored"], left);
    for path in ["/v1/inspection_rules/r", "/v1/releases/r", "/v1/nodes"] {
        let answer = served.send("GET", &format!("{path}?stored=true"), &[], None).await;
        assert_eq!((answer.status, answer.kind()), (400, "request.query"), "{path}: {}", answer.body);
    }
}

/// Returns the status, the type and the field of an error. An apply puts `objects[0].` before the field.
pub(crate) fn error_parts(answer: &ApiResponse) -> (u16, String, String) {
    let field = answer.body["error"]["field"].as_str().unwrap_or_default().trim_start_matches("objects[0].");
    (answer.status, answer.kind().to_owned(), field.to_owned())
}

/// Sets one entry of a node's map by each form of a write, and returns the responses. The value is JSON text, because
/// `Value` cannot hold every number.
async fn write_in_each_form(served: &TestApi, map: &str, key: &str, value: &str) -> Vec<ApiResponse> {
    let node = "/v1/nodes/n";
    let whole = format!(r#"{{"{map}": {{"{key}": {value}}}}}"#);
    let named = format!(r#"{{"name": "new", "{map}": {{"{key}": {value}}}}}"#);
    let manifest = format!(r#"{{"objects": [{{"kind": "Node", "name": "n", "{map}": {{"{key}": {value}}}}}]}}"#);
    let of_map = format!(r#"[{{"op": "add", "path": "/{map}", "value": {{"{key}": {value}}}}}]"#);
    let of_key = format!(r#"[{{"op": "add", "path": "/{map}/{key}", "value": {value}}}]"#);
    let below = format!("{node}/{map}");
    let mut answers = Vec::new();
    for (method, path, headers, body) in [
        ("POST", "/v1/nodes", &[][..], named),
        ("POST", "/v1/apply", &[], manifest),
        ("PATCH", node, MERGE, whole.clone()),
        ("PATCH", node, APPLY, whole.clone()),
        ("PATCH", node, PATCH, of_map),
        ("PATCH", node, PATCH, of_key),
        ("PUT", below.as_str(), &[], whole),
        ("PATCH", below.as_str(), MERGE, format!(r#"{{"{key}": {value}}}"#)),
    ] {
        answers.push(served.send_text(method, path, headers, &body).await);
    }
    answers
}

#[tokio::test]
async fn y05_map_error_names_key_in_each_form() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "Node", "name": "n"}])).await;
    for (map, key, value, kind, field) in [
        ("labels", "a", r#"["x"]"#, "label.invalid", "labels.a"),
        ("labels", "a", r#""x\ny""#, "label.invalid", "labels.a"),
        ("annotations", "a", r#"{"b": 1}"#, "field.invalid", "annotations.a"),
        // One more than canonical JSON preserves, and a number that does not fit into 64 bits.
        ("parameters", "p", "9007199254740993", "field.invalid", "parameters.p"),
        ("parameters", "p", r#"{"q": [0, 9007199254740993]}"#, "field.invalid", "parameters.p.q[1]"),
        ("parameters", "p", "18446744073709551616", "field.invalid", "parameters.p"),
        ("parameters", "p", r#"{"q": [0, 1e400]}"#, "field.invalid", "parameters.p.q[1]"),
    ] {
        for (at, answer) in write_in_each_form(&served, map, key, value).await.iter().enumerate() {
            let expected = (400, kind.to_owned(), field.to_owned());
            assert_eq!(error_parts(answer), expected, "form {at} of {map} {value}: {}", answer.body);
        }
    }
}

/// Regression: a number that does not fit into 64 bits or a double was reported with its pointer as the field:
/// `parameters.a.1`.
#[tokio::test]
async fn y05_json_patch_number_error_names_field_in_any_notation() {
    let served = TestApi::start().await;
    let node =
        json!({"kind": "Node", "name": "n", "parameters": {"a": [1, 2], "b": {"c": [[0]]}}, "extra": {"f": [1], "m": {"1": 0}}});
    apply(&served, &json!([node])).await;
    let before = served.get("/v1/nodes/n").await;
    for number in ["9007199254740993", "9007199254740993.0", "18446744073709551616", "1e400", "1e-400"] {
        for (path, value, field) in [
            ("/parameters/a/1", "N", "parameters.a[1]"),
            ("/parameters/a", "[1, N]", "parameters.a[1]"),
            ("/parameters/b/c/0", r#"[1, {"q": N}]"#, "parameters.b.c[0][1].q"),
            ("/extra/f/-", "N", "extra.f[1]"),
            ("/extra/f/0", "N", "extra.f[0]"),
            // A key of a map, although it looks like an index of a list.
            ("/extra/m/1", "N", "extra.m.1"),
            // A list that the patch itself creates.
            ("/extra/new/-", "N", "extra.new[0]"),
        ] {
            let add = |path: &str, value: &str| format!(r#"{{"op": "add", "path": "{path}", "value": {value}}}"#);
            let body = format!("[{}, {}]", add("/extra/new", "[]"), add(path, &value.replace('N', number)));
            let answer = served.send_text("PATCH", "/v1/nodes/n", PATCH, &body).await;
            let expected = (400, "field.invalid".to_owned(), field.to_owned());
            assert_eq!(error_parts(&answer), expected, "{number} at {path}: {}", answer.body);
        }
    }
    assert_eq!(served.get("/v1/nodes/n").await, before);
}

/// Magnum's command line writes the labels of its own kinds as the text of a map, and nothing else.
#[tokio::test]
async fn y05_map_text_is_parsed_only_for_magnum_labels() {
    let served = TestApi::start().await;
    let objects = json!([{"kind": "ClusterTemplate", "name": "t"}, {"kind": "Cluster", "name": "c"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g"}, {"kind": "Node", "name": "n"}]);
    apply(&served, &objects).await;
    for path in ["/v1/clustertemplates/t", "/v1/clusters/c", "/v1/clusters/c/nodegroups/g", "/v1/nodes/n"] {
        for (map, text) in [("labels", "{'a': '1'}"), ("annotations", r#"{"a": "1"}"#), ("parameters", r#"{"a": {"b": 1}}"#)] {
            let answer = send_patch(&served, path, &json!([{"op": "add", "path": format!("/{map}"), "value": text}])).await;
            if map == "labels" && path != "/v1/nodes/n" {
                assert!(answer.status < 300, "{path}: {}", answer.body);
                assert_eq!(served.get(path).await["provided_labels"], json!({"a": "1"}), "{path}");
                continue;
            }
            // The error is that of a merge patch.
            let merged = served.send("PATCH", path, MERGE, Some(&json!({map: text}))).await;
            assert_eq!((answer.status, error_parts(&answer)), (400, error_parts(&merged)), "{path} {map}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn y05_json_patch_null_clears_map_as_merge_patch_does() {
    let served = TestApi::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "labels": {"a": "1"}, "annotations": {"a": "1"}, "parameters": {"p": 1}});
    apply(&served, &json!([node("merge"), node("add"), node("replace")])).await;
    let mut shown = Vec::new();
    for name in ["merge", "add", "replace"] {
        let path = format!("/v1/nodes/{name}");
        for map in ["labels", "annotations", "parameters"] {
            let answer = if name == "merge" {
                served.send("PATCH", &path, MERGE, Some(&json!({map: null}))).await
            } else {
                send_patch(&served, &path, &json!([{"op": name, "path": format!("/{map}"), "value": null}])).await
            };
            assert_eq!(answer.status, 200, "{name} {map}: {}", answer.body);
        }
        let node = served.get(&path).await;
        let fields = ["provided_labels", "provided_annotations", "provided_parameters", "merge_labels", "field_owners"];
        shown.push(fields.map(|field| node[field].clone()));
    }
    assert_eq!((&shown[1], &shown[2]), (&shown[0], &shown[0]));
}

/// A new group is shown with a count that nobody set. A patch with the same value sets it.
#[tokio::test]
async fn y05_json_patch_writes_shown_but_unstored_field() {
    let served = TestApi::start().await;
    let group = |name: &str| json!({"kind": "NodeGroup", "cluster": "c", "name": name});
    apply(&served, &json!([{"kind": "Cluster", "name": "c"}, group("g1"), group("g2"), group("g3")])).await;
    let path = |name: &str| format!("/v1/clusters/c/nodegroups/{name}");
    let merge = served.send("PATCH", &path("g1"), MERGE, Some(&json!({"node_count": 1}))).await;
    assert!(merge.status < 300, "{}", merge.body);
    for (name, verb) in [("g2", "add"), ("g3", "replace")] {
        let answer = send_patch(&served, &path(name), &json!([{"op": verb, "path": "/node_count", "value": 1}])).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    let merged = served.get(&path("g1")).await;
    assert!(merged["field_owners"].get("node_count").is_some(), "{merged}");
    for name in ["g2", "g3"] {
        let shown = served.get(&path(name)).await;
        assert_eq!((&shown["node_count"], &shown["field_owners"]), (&json!(1), &merged["field_owners"]));
    }
}

/// Only Ironic's clients may use Ironic's name for `parked`, as docs/api.md says.
#[tokio::test]
async fn y05_manifest_has_one_name_for_parked() {
    let served = TestApi::start().await;
    let manifest = json!({"objects": [{"kind": "Node", "name": "n", "maintenance": true}]});
    let answer = served.send("POST", "/v1/apply", &[], Some(&manifest)).await;
    assert_eq!(error_parts(&answer), (400, "field.unknown".to_owned(), "maintenance".to_owned()));
    assert!(answer.message().contains("is called parked"), "{}", answer.body);
    apply(&served, &json!([{"kind": "Node", "name": "n"}])).await;
    let answer = served.send("PATCH", "/v1/nodes/n", MERGE, Some(&json!({"maintenance": true}))).await;
    assert_eq!((answer.status, &answer.body["maintenance"]), (200, &json!(true)), "{}", answer.body);
}

/// An entry in a map of declared tags is named the same way in each form. docs/api.md says what `null` means for it in
/// each form.
#[tokio::test]
async fn y05_declared_tag_error_names_field() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "Cluster", "name": "c"}])).await;
    for (tags, field) in [
        (json!({"Self": {}}), "tags.Self"),
        (json!({" ": {}}), "tags"),
        (json!({"a\nb": {}}), "tags"),
        (json!({"q": 5}), "tags.q"),
    ] {
        let manifest = json!({"objects": [{"kind": "Cluster", "name": "c", "tags": tags}]});
        for answer in [
            served.send("PATCH", "/v1/clusters/c", MERGE, Some(&json!({"tags": tags}))).await,
            send_patch(&served, "/v1/clusters/c", &json!([{"op": "add", "path": "/tags", "value": tags}])).await,
            served.send("POST", "/v1/clusters", &[], Some(&json!({"name": "d", "tags": tags}))).await,
            served.send("POST", "/v1/apply", &[], Some(&manifest)).await,
        ] {
            assert_eq!(error_parts(&answer), (400, "field.invalid".to_owned(), field.to_owned()), "{}", answer.body);
        }
    }
    for name in ["Self", " ", "a\nb"] {
        let answer = served.send("POST", "/v1/clusters/c/tags", &[], Some(&json!({"name": name}))).await;
        assert_eq!(error_parts(&answer), (400, "field.invalid".to_owned(), "name".to_owned()), "{}", answer.body);
    }
    let null = json!({"tags": {"q": null}});
    assert_eq!(served.send("PATCH", "/v1/clusters/c", MERGE, Some(&null)).await.status, 200);
    let add = json!([{"op": "add", "path": "/tags", "value": {"q": null}}]);
    assert_eq!(error_parts(&send_patch(&served, "/v1/clusters/c", &add).await).2, "tags.q");
}

/// As in Ironic's conductor, the reason ends when `maintenance` becomes false. Regression: it was shown again when the
/// node was parked the next time.
#[tokio::test]
async fn y05_maintenance_reason_is_cleared_when_maintenance_ends() {
    const NODE: &str = "/v1/nodes/n";
    let served = TestApi::start().await;
    served.expect("POST", "/v1/nodes", &json!({"name": "n"}), 201).await;
    let replace = |path: &str| json!([{"op": "replace", "path": path, "value": false}]);
    let object = json!({"objects": [{"kind": "Node", "name": "n", "parked": false}]});
    for (form, method, path, headers, body) in [
        ("DELETE", "DELETE", "/v1/nodes/n/maintenance", PLAIN, None),
        ("merge patch", "PATCH", NODE, MERGE, Some(json!({"parked": false}))),
        ("merge patch of null", "PATCH", NODE, MERGE, Some(json!({"parked": null}))),
        ("JSON patch", "PATCH", NODE, PATCH, Some(replace("/parked"))),
        ("JSON patch of Ironic's", "PATCH", NODE, PATCH, Some(replace("/maintenance"))),
        ("apply", "POST", "/v1/apply?force=true", PLAIN, Some(object)),
    ] {
        served.expect("PUT", "/v1/nodes/n/maintenance", &json!({"reason": "disk"}), 202).await;
        assert_eq!(served.get(NODE).await["maintenance_reason"], "disk", "{form}");
        let answer = served.send(method, path, headers, body.as_ref()).await;
        assert!(answer.status < 300, "{form}: {}", answer.body);
        let shown = served.get(NODE).await;
        assert_eq!([&shown["parked"], &shown["maintenance_reason"]], [&json!(false), &Value::Null], "{form}");
    }
}

/// RFC 7396: a patch that is not an object replaces the whole document.
#[tokio::test]
async fn y05_map_body_null_clears_map_as_merge_patch_does() {
    let served = TestApi::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "labels": {"a": "1"}, "annotations": {"a": "1"}, "parameters": {"p": 1}});
    let release = |version: &str| json!({"kind": "Release", "name": "r", "version": version, "labels": {"a": "1"}, "annotations": {"a": "1"}});
    apply(&served, &json!([node("n1"), node("n2"), release("1"), release("2")])).await;
    for (one, other, maps) in [
        ("/v1/nodes/n1", "/v1/nodes/n2", &["labels", "annotations", "parameters"][..]),
        ("/v1/releases/r@1", "/v1/releases/r@2", &["labels", "annotations"]),
    ] {
        for map in maps {
            let whole = served.send("PATCH", one, MERGE, Some(&json!({*map: null}))).await;
            let of_map = served.send("PATCH", &format!("{other}/{map}"), MERGE, Some(&Value::Null)).await;
            assert_eq!((whole.status, of_map.status), (200, 200), "{map}: {} {}", whole.body, of_map.body);
        }
        let [one, other] = [served.get(one).await, served.get(other).await];
        for field in ["provided_labels", "provided_annotations", "provided_parameters", "labels", "field_owners"] {
            assert_eq!(other[field], one[field], "{field}");
        }
        assert!(other["labels"].get("a").is_none(), "{other}");
    }
}

/// A label that the levels refuse is also refused among an object's own labels.
#[tokio::test]
async fn y05_label_key_follows_node_rules_in_every_kind() {
    let served = TestApi::start().await;
    let actions = json!([{"op": "log", "args": {"msg": "x"}}]);
    served.expect("POST", "/v1/inspection_rules", &json!({"name": "r", "actions": actions}), 201).await;
    apply(&served, &json!([{"kind": "Node", "name": "n"}, {"kind": "Release", "name": "r", "version": "1"}])).await;
    for (labels, field) in [
        (json!({"k": "a\nb"}), "labels.k"),
        (json!({"k": "\u{0}"}), "labels.k"),
        (json!({"a b": "x"}), "labels"),
        (json!({"": "x"}), "labels"),
    ] {
        let mut answers = Vec::new();
        for (kind, path, mut new) in [
            ("Node", "/v1/nodes", json!({"name": "new"})),
            ("Release", "/v1/releases", json!({"name": "new", "version": "1"})),
            ("InspectionRule", "/v1/inspection_rules", json!({"name": "new", "actions": actions})),
            ("Namespace", "/v2/metadefs/namespaces", json!({"namespace": "new"})),
        ] {
            new["labels"] = labels.clone();
            answers.push(served.send("POST", path, &[], Some(&new)).await);
            new["kind"] = kind.into();
            answers.push(served.send("POST", "/v1/apply", &[], Some(&json!({"objects": [new]}))).await);
        }
        for path in ["/v1/nodes/n", "/v1/releases/r@1", "/v1/inspection_rules/r"] {
            answers.push(served.send("PATCH", path, MERGE, Some(&json!({"labels": labels}))).await);
            answers.push(send_patch(&served, path, &json!([{"op": "add", "path": "/labels", "value": labels}])).await);
        }
        for path in ["/v1/nodes/n/labels", "/v1/releases/r@1/labels"] {
            answers.push(served.send("PATCH", path, MERGE, Some(&labels)).await);
            answers.push(served.send("PUT", path, &[], Some(&json!({"labels": labels}))).await);
        }
        for answer in answers {
            let expected = (400, "label.invalid".to_owned(), field.to_owned());
            assert_eq!(error_parts(&answer), expected, "{labels}: {}", answer.body);
        }
    }
}

/// The reason ends with the maintenance, so a form that does not name it gets no conflict about it.
#[tokio::test]
async fn y05_maintenance_conflict_names_field_in_each_form() {
    const NODE: &str = "/v1/nodes/n";
    let served = TestApi::start().await;
    let node = json!({"kind": "Node", "name": "n", "parked": true, "maintenance_reason": "disk"});
    served.expect("POST", "/v1/apply?manager=git", &json!({"objects": [node]}), 200).await;
    let object = json!({"objects": [{"kind": "Node", "name": "n", "parked": false}]});
    let replace = json!([{"op": "replace", "path": "/parked", "value": false}]);
    for (form, method, path, headers, body) in [
        ("DELETE", "DELETE", "/v1/nodes/n/maintenance", PLAIN, None),
        ("merge patch", "PATCH", NODE, MERGE, Some(json!({"parked": false}))),
        ("JSON patch", "PATCH", NODE, PATCH, Some(replace)),
        ("apply", "POST", "/v1/apply", PLAIN, Some(object)),
    ] {
        let force = if form == "apply" { "" } else { "&force=false" };
        let answer = served.send(method, &format!("{path}?manager=ann{force}"), headers, body.as_ref()).await;
        let expected = (409, "label.conflict".to_owned(), "parked".to_owned());
        assert_eq!(error_parts(&answer), expected, "{form}: {}", answer.body);
        assert_eq!(answer.body["conflicts"].as_array().map(Vec::len), Some(1), "{form}: {}", answer.body);
    }
    assert_eq!(served.get(NODE).await["maintenance_reason"], "disk");
}

#[tokio::test]
async fn y05_trait_error_names_index_in_each_form() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "Node", "name": "n"}])).await;
    let traits = json!(["CUSTOM_A", "NOPE"]);
    let object = json!({"objects": [{"kind": "Node", "name": "n", "traits": traits}]});
    for answer in [
        served.send("PUT", "/v1/nodes/n/traits", &[], Some(&json!({"traits": traits}))).await,
        served.send("POST", "/v1/apply", &[], Some(&object)).await,
    ] {
        let expected = (400, "trait.invalid".to_owned(), "traits[1]".to_owned());
        assert_eq!(error_parts(&answer), expected, "{}", answer.body);
    }
}

/// Regression: a release accepted `null` as an empty map, and an error named its labels when the body had another
/// field.
#[tokio::test]
async fn y05_map_call_accepts_same_bodies_for_release_and_node() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "Node", "name": "n"}, {"kind": "Release", "name": "r", "version": "1"}])).await;
    for map in ["labels", "annotations"] {
        for (body, kind, field) in [
            (json!({map: null}), "field.missing", map),
            (json!({}), "field.missing", map),
            (json!({"b": "1"}), "field.unknown", "b"),
            (json!({map: {}, "b": "1"}), "field.unknown", "b"),
        ] {
            for path in ["/v1/nodes/n", "/v1/releases/r@1"] {
                let refused = served.send("PUT", &format!("{path}/{map}"), &[], Some(&body)).await;
                assert_eq!(error_parts(&refused), (400, kind.to_owned(), field.to_owned()), "{path}: {}", refused.body);
            }
        }
    }
}

#[tokio::test]
async fn y05_release_annotation_key_follows_node_rules() {
    let served = TestApi::start().await;
    apply(&served, &json!([{"kind": "Node", "name": "n"}, {"kind": "Release", "name": "r", "version": "1"}])).await;
    for (key, status) in [("a b", 400), ("", 400), ("/x", 400), (&*"k".repeat(300), 400), ("Example.Org/x", 200)] {
        for path in ["/v1/nodes/n", "/v1/releases/r@1"] {
            let body = json!({"annotations": {key: "any\ntext"}});
            let merged = served.send("PATCH", path, MERGE, Some(&body)).await;
            let put = served.send("PUT", &format!("{path}/annotations"), &[], Some(&body)).await;
            for answer in [merged, put] {
                assert_eq!(answer.status, status, "{path} {key}: {}", answer.body);
                let expected = (400, "field.invalid".to_owned(), "annotations".to_owned());
                assert!(status == 200 || error_parts(&answer) == expected, "{path} {key}: {}", answer.body);
            }
        }
    }
}

#[tokio::test]
async fn y05_json_patch_rejects_read_only_field_of_every_kind() {
    let served = TestApi::start().await;
    let actions = json!([{"op": "log", "args": {"msg": "x"}}]);
    served.expect("POST", "/v1/inspection_rules", &json!({"name": "r", "actions": actions}), 201).await;
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "1"}, {"kind": "Cluster", "name": "c"}, {"kind": "Node", "name": "n"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g"}, {"kind": "ClusterTemplate", "name": "t"},
    ]);
    apply(&served, &objects).await;
    for path in [
        "/v1/inspection_rules/r",
        "/v1/releases/r@1",
        "/v1/clusters/c",
        "/v1/nodes/n",
        "/v1/clusters/c/nodegroups/g",
        "/v1/clustertemplates/t",
    ] {
        for field in ["created_at", "updated_at", "links"] {
            let operations = json!([{"op": "add", "path": format!("/{field}"), "value": "x"}]);
            let refused = send_patch(&served, path, &operations).await;
            assert_eq!((refused.status, &refused.body["error"]["field"]), (400, &json!(field)), "{path}");
        }
    }
}
