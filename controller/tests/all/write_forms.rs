//! Tests of one intent in several forms of a write (POST, PUT, merge patch, JSON patch, apply): the values that each
//! form accepts, their effect, and the errors.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

pub(crate) const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];
pub(crate) const PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];
const APPLY: &[(&str, &str)] = &[("content-type", "application/apply-patch+json")];
pub(crate) const PLAIN: &[(&str, &str)] = &[];
const MAGNUM: (&str, &str) = ("openstack-api-version", "container-infra latest");

/// Applies objects, and checks that the status is 200.
pub(crate) async fn apply(api: &TestApi, objects: &Value) {
    api.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
}

/// Sends a JSON patch.
pub(crate) async fn send_patch(api: &TestApi, path: &str, operations: &Value) -> ApiResponse {
    api.send("PATCH", path, PATCH, Some(operations)).await
}

/// By RFC 6902, an `add` of a member that exists replaces the member. Magnum refuses such an `add`, so the controller
/// refuses it from Magnum's clients.
#[tokio::test]
async fn y05_json_patch_add_replaces_and_edits_parameter() {
    let api = TestApi::start().await;
    let fields = json!({"labels": {"a": "1"}, "parameters": {"p": {"q": 1}}});
    let object = |kind: &str, name: &str| {
        let mut object = fields.clone();
        object["kind"] = kind.into();
        object["name"] = name.into();
        object
    };
    apply(&api, &json!([object("ClusterTemplate", "t"), object("Cluster", "c"), object("Node", "n")])).await;
    for path in ["/v1/clustertemplates/t", "/v1/clusters/c", "/v1/nodes/n"] {
        let add = json!([{"op": "add", "path": "/labels", "value": {"b": "2"}},
            {"op": "add", "path": "/parameters/p/r", "value": [2]}, {"op": "add", "path": "/parameters/p/r/-", "value": 3}]);
        let answer = send_patch(&api, path, &add).await;
        assert!(answer.status < 300, "{path}: {}", answer.body);
        let shown = api.get(path).await;
        assert_eq!(shown["provided_labels"], json!({"b": "2"}), "{path}");
        assert_eq!(shown["provided_parameters"], json!({"p": {"q": 1, "r": [2, 3]}}), "{path}");
        let remove =
            json!([{"op": "remove", "path": "/parameters/p/r/0"}, {"op": "replace", "path": "/parameters/p/q", "value": 4}]);
        assert!(send_patch(&api, path, &remove).await.status < 300, "{path}");
        assert_eq!(api.get(path).await["provided_parameters"], json!({"p": {"q": 4, "r": [3]}}), "{path}");
        for (verb, place) in [("replace", "/parameters/p/none"), ("add", "/labels/b/x"), ("add", "/parameters/no/x")] {
            let answer = send_patch(&api, path, &json!([{"op": verb, "path": place, "value": 1}])).await;
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{path} {place}: {}", answer.body);
        }
    }
    let add = json!([{"op": "add", "path": "/labels", "value": "{'x': '1'}"}]);
    let answer = api.send("PATCH", "/v1/clustertemplates/t", &[PATCH[0], MAGNUM], Some(&add)).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.message().contains("is set already"), "{}", answer.body);
}

#[tokio::test]
async fn y05_merge_labels_has_default_after_reset() {
    let api = TestApi::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "labels": {"a": "1"}, "merge_labels": false});
    apply(&api, &json!([node("n1"), node("n2")])).await;
    let answer = send_patch(&api, "/v1/nodes/n1", &json!([{"op": "remove", "path": "/merge_labels"}])).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = api.send("PATCH", "/v1/nodes/n2", MERGE, Some(&json!({"merge_labels": null}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let [json_patched, merge_patched] = [api.get("/v1/nodes/n1").await, api.get("/v1/nodes/n2").await];
    // For a new node with labels, the default is true.
    assert_eq!((&json_patched["merge_labels"], &merge_patched["merge_labels"]), (&json!(true), &json!(true)));
    assert_eq!(json_patched["field_owners"], merge_patched["field_owners"]);
}

/// The value `null` for the field `merge_labels` sets nothing, so nobody owns the field after the write.
#[tokio::test]
async fn y05_merge_labels_null_has_no_owner_in_each_form() {
    let api = TestApi::start().await;
    let group = |name: &str| json!({"kind": "NodeGroup", "cluster": "c1", "name": name});
    let cluster = |name: &str| json!({"kind": "Cluster", "name": name});
    apply(&api, &json!([cluster("c1"), cluster("c2"), cluster("c3"), group("g1"), group("g2"), group("g3")])).await;
    for (list, names) in [("/v1/clusters", ["c1", "c2", "c3"]), ("/v1/clusters/c1/nodegroups", ["g1", "g2", "g3"])] {
        let [merge, add, replace] = names.map(|name| format!("{list}/{name}"));
        let answer = api.send("PATCH", &merge, MERGE, Some(&json!({"merge_labels": null}))).await;
        assert!(answer.status < 300, "{}", answer.body);
        for (path, verb) in [(&add, "add"), (&replace, "replace")] {
            let answer = send_patch(&api, path, &json!([{"op": verb, "path": "/merge_labels", "value": null}])).await;
            assert!(answer.status < 300, "{}", answer.body);
        }
        for path in [merge, add, replace] {
            let owners = api.get(&path).await["field_owners"].clone();
            assert!(owners.get("merge_labels").is_none(), "{path}: {owners}");
        }
    }
}

/// A parameter may have the name `parameters`. In a write to the map of a node, the body is then still the parameters
/// themselves.
#[tokio::test]
async fn y05_parameter_accepts_name_of_map() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "Node", "name": "n1"}, {"kind": "Node", "name": "n2"}])).await;
    let parameters = json!({"parameters": {"x": 1}});
    api.expect("PATCH", "/v1/nodes/n1/parameters", &parameters, 200).await;
    let answer = api.send("PATCH", "/v1/nodes/n2", MERGE, Some(&json!({"parameters": parameters}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for path in ["/v1/nodes/n1", "/v1/nodes/n2"] {
        assert_eq!(api.get(path).await["provided_parameters"], parameters, "{path}");
    }
    // The value of a label is never an object, so `{"labels": {…}}` is the map and `{"labels": "2"}` is one label.
    api.expect("PATCH", "/v1/nodes/n1/labels", &json!({"labels": {"x": "1"}}), 200).await;
    api.expect("PATCH", "/v1/nodes/n1/labels", &json!({"labels": "2"}), 200).await;
    assert_eq!(api.get("/v1/nodes/n1").await["provided_labels"], json!({"x": "1", "labels": "2"}));
}

/// A release refers to a file whose content was never sent. Only a write that is no dry run is refused.
#[tokio::test]
async fn y05_dry_run_needs_no_file_body() {
    let api = TestApi::start().await;
    let source = format!("sha256:{}", "ab".repeat(32));
    let task = json!({"id": "a", "type": "file", "roles": ["*"], "parameters": {"path": "/etc/a", "source": source}});
    let body = json!({"name": "r", "version": "1", "tasks": [task]});
    let mut manifest = body.clone();
    manifest["kind"] = "Release".into();
    let objects = json!({"objects": [manifest]});
    for (path, body, dry_run_status) in [("/v1/releases", &body, 201), ("/v1/apply", &objects, 200)] {
        api.expect("POST", &format!("{path}?dry_run=true"), body, dry_run_status).await;
        let answer = api.send("POST", path, &[], Some(body)).await;
        assert_eq!((answer.status, answer.kind()), (400, "blob.missing"), "{path}: {}", answer.body);
    }
}

/// In Magnum, the name of a cluster begins with a letter. Only Magnum's clients must follow this rule.
#[tokio::test]
async fn y05_cluster_name_is_restricted_only_for_magnum_clients() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "ClusterTemplate", "name": "t"}, {"kind": "Cluster", "name": "1a"}])).await;
    api.expect("POST", "/v1/clusters", &json!({"name": "1b"}), 202).await;
    let body = json!({"name": "1c", "cluster_template_id": "t"});
    let answer = api.send("POST", "/v1/clusters", &[MAGNUM], Some(&body)).await;
    assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{}", answer.body);
    assert_eq!(answer.body["error"]["field"], "name");
}

#[tokio::test]
async fn y05_conflict_names_same_field_in_each_form() {
    let api = TestApi::start().await;
    for (field, value, expected_field) in
        [("labels", json!({"tier": "gold"}), "labels.tier"), ("description", json!("a"), "description")]
    {
        let object = |value: &Value| json!({"objects": [{"kind": "Cluster", "name": "c", field: value}]});
        api.expect("POST", "/v1/apply?manager=git", &object(&value), 200).await;
        let other_value = if field == "labels" { json!({"tier": "iron"}) } else { json!("b") };
        let mut answers = vec![
            api.send("POST", "/v1/apply?manager=bob", &[], Some(&object(&other_value))).await,
            api.send("PATCH", "/v1/clusters/c?manager=bob&force=false", MERGE, Some(&json!({field: other_value}))).await,
        ];
        if field == "labels" {
            let body = json!({"labels": other_value});
            answers.push(api.send("PATCH", "/v1/clusters/c?manager=bob", APPLY, Some(&body)).await);
            answers.push(api.send("PUT", "/v1/clusters/c/labels?manager=bob&force=false", &[], Some(&body)).await);
        }
        for answer in answers {
            assert_eq!((answer.status, answer.kind()), (409, "label.conflict"), "{}", answer.body);
            let error_field = answer.body["error"]["field"].as_str().expect("a field");
            assert_eq!(error_field.trim_start_matches("objects[0]."), expected_field, "{}", answer.body);
        }
    }
}

#[tokio::test]
async fn y05_principal_role_cannot_be_null() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/principals", &json!({"name": "ada", "role": "viewer"}), 201).await;
    let creation = api.send("POST", "/v1/principals", &[], Some(&json!({"name": "eve", "role": null}))).await;
    let change = api.send("PATCH", "/v1/principals/ada", MERGE, Some(&json!({"role": null}))).await;
    assert_eq!((creation.status, change.status), (400, 400), "{} {}", creation.body, change.body);
    let error = |answer: &ApiResponse| (answer.kind().to_owned(), answer.body["error"]["field"].clone());
    assert_eq!(error(&creation), error(&change));
    assert_eq!(api.get("/v1/principals/ada").await["role"], "viewer");
}

/// A node edit that gives a node two tasks with the same path is accepted, because a host that joins may cause the same
/// conflict. The response lists the conflict as a finding.
#[tokio::test]
async fn y05_node_edit_lists_path_conflict_of_two_tasks() {
    let api = TestApi::start().await;
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
    apply(&api, &objects).await;
    let move_answer = api.send("PATCH", "/v1/nodes/n1", MERGE, Some(&json!({"nodegroup": "c/both"}))).await;
    let role_answer = api.send("POST", "/v1/nodes/n2/roles", &[], Some(&json!({"roles": ["one"]}))).await;
    for (name, answer) in [("n1", move_answer), ("n2", role_answer)] {
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        let findings = answer.body["findings"].as_array().expect("findings");
        let conflict = findings.iter().find(|finding| finding["object"] == "release/r@1 task b").expect("a finding");
        assert_eq!((&conflict["code"], &conflict["severity"]), (&json!("task.path"), &json!("error")), "{conflict}");
        let message = conflict["message"].as_str().expect("a message");
        assert!(message.starts_with(&format!("on 1 host ({name}): ")), "{message}");
    }
}

/// Two labels can become the same variable of `labels.env`. The write that combines such labels reports it, even if no
/// node exists yet.
#[tokio::test]
async fn y08_each_form_reports_labels_sharing_variable_without_nodes() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "Cluster", "name": "c"}, {"kind": "Cluster", "name": "f"}])).await;
    let colliding_labels = json!({"a": "1", "A": "2"});
    let reports_collision = |text: &str| text.contains("labels A, a would all be STEMMA_LABEL_A");
    for (path, name) in [("/v1/clusters/c/nodegroups", "g"), ("/v1/clustertemplates", "t"), ("/v1/clusters", "d")] {
        let answer = api.send("POST", path, &[], Some(&json!({"name": name, "labels": colliding_labels}))).await;
        assert!(
            answer.status < 300 && answer.warning.as_deref().is_some_and(reports_collision),
            "{path}: {:?} {}",
            answer.warning,
            answer.body
        );
    }
    let prefer_body = ("prefer", "return=representation");
    let patch_answer =
        api.send("PATCH", "/v1/clusters/c", &[MERGE[0], prefer_body], Some(&json!({"labels": colliding_labels}))).await;
    assert!(reports_collision(&patch_answer.body["findings"].to_string()), "{}", patch_answer.body);
    for object in [
        json!({"kind": "ClusterTemplate", "name": "u", "labels": colliding_labels}),
        json!({"kind": "Cluster", "name": "e", "labels": colliding_labels}),
        json!({"kind": "NodeGroup", "cluster": "f", "name": "h", "labels": colliding_labels}),
    ] {
        let apply_body = api.expect("POST", "/v1/apply", &json!({"objects": [object]}), 200).await;
        assert!(reports_collision(&apply_body["findings"].to_string()), "{object}: {apply_body}");
    }
}

/// A manifest that sets a read-only field is refused, unless the value is `null`. A merge patch with the field is
/// refused or ignores the field, because a client of Magnum may send back a whole response. No form stores the field.
#[tokio::test]
async fn y05_read_only_field_is_not_stored_by_any_form() {
    let api = TestApi::start().await;
    let objects = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Node", "name": "n"}]);
    apply(&api, &objects).await;
    for (object, list, field) in [
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "api_address"),
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "stack_id"),
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "status"),
        (json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}), "/v1/clusters/c/nodegroups", "status_reason"),
        (json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}), "/v1/clusters/c/nodegroups", "stack_id"),
        (json!({"kind": "Node", "name": "n"}), "/v1/nodes", "boot_mode"),
        (json!({"kind": "Node", "name": "n"}), "/v1/nodes", "secure_boot"),
    ] {
        let manifest_with = |value: Value| {
            let mut object = object.clone();
            object[field] = value;
            json!({"objects": [object]})
        };
        let answer = api.send("POST", "/v1/apply", &[], Some(&manifest_with(json!("x")))).await;
        assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{field}: {}", answer.body);
        assert_eq!(answer.body["error"]["field"], format!("objects[0].{field}"));
        api.expect("POST", "/v1/apply", &manifest_with(Value::Null), 200).await;
        let path = format!("{list}/{}", object["name"].as_str().expect("a name"));
        api.send("PATCH", &path, MERGE, Some(&json!({field: "x"}))).await;
        let shown = api.get(&path).await;
        assert!(shown[field] != "x" && shown["field_owners"].get(field).is_none(), "{field}: {shown}");
    }
}

/// A call that only sets a role or tag is refused if the role or tag is unknown. A write of an object is accepted with
/// a finding, because its role or tag may be created later. docs/api.md has the table.
#[tokio::test]
async fn y05_unknown_role_is_rejected_by_call_and_found_by_write() {
    let api = TestApi::start().await;
    let node = |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": "c/g"});
    let mut objects = vec![
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}}}),
        json!({"kind": "Cluster", "name": "c", "release": "r@1"}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}),
    ];
    objects.extend((0..4).map(node));
    apply(&api, &json!(objects)).await;
    for (method, path, body, expected) in [
        ("POST", "/v1/nodes/n0/roles", json!({"roles": ["nope"]}), (400, "role.invalid")),
        ("PUT", "/v1/nodes/n0/roles", json!({"roles": ["nope"]}), (400, "role.invalid")),
        ("PUT", "/v1/nodes/n0/tags/nope", Value::Null, (400, "tag.unknown")),
        ("POST", "/v1/nodes/n0/tags", json!({"assign": ["nope"]}), (404, "object.not_found")),
    ] {
        let answer = api.send(method, path, &[], Some(&body).filter(|body| !body.is_null())).await;
        assert_eq!((answer.status, answer.kind()), expected, "{method} {path}: {}", answer.body);
    }
    for (field, value, code) in
        [("roles", json!(["nope"]), "role.unknown"), ("tags", json!({"assigned": ["nope"]}), "tag.unknown")]
    {
        let manifest = |number: usize| {
            let mut node = node(number);
            node[field] = value.clone();
            json!({"objects": [node]})
        };
        let add = json!([{"op": "add", "path": format!("/{field}"), "value": value}]);
        let answers = [
            api.send("PATCH", "/v1/nodes/n1", MERGE, Some(&json!({field: value}))).await,
            api.send("PATCH", "/v1/nodes/n2", PATCH, Some(&add)).await,
            api.send("POST", "/v1/apply", &[], Some(&manifest(3))).await,
        ];
        for answer in answers {
            let has_finding =
                answer.body["findings"].as_array().is_some_and(|findings| findings.iter().any(|finding| finding["code"] == code));
            assert!(answer.status == 200 && has_finding, "{field}: {} {}", answer.status, answer.body);
        }
        let strict = api.send("POST", "/v1/apply?strict=true", &[], Some(&manifest(0))).await;
        assert_eq!((strict.status, strict.kind()), (400, "finding.strict"), "{field}: {}", strict.body);
    }
}

/// Ironic reads `boot_mode` and `secure_boot` from the machine, so a client cannot set them. A response contains `null`
/// for both fields, and a client may send the response back.
#[tokio::test]
async fn y07_node_rejects_boot_mode_and_secure_boot() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "Node", "name": "n"}])).await;
    for field in ["boot_mode", "secure_boot"] {
        let new_node = json!({"name": "new", field: "x"});
        let add = json!([{"op": "add", "path": format!("/{field}"), "value": "x"}]);
        for answer in [
            api.send("POST", "/v1/nodes", &[], Some(&new_node)).await,
            api.send("PATCH", "/v1/nodes/n", MERGE, Some(&json!({field: "x"}))).await,
            send_patch(&api, "/v1/nodes/n", &add).await,
        ] {
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{field}: {}", answer.body);
            assert_eq!(answer.body["error"]["field"], field);
        }
        let answer = api.send("PATCH", "/v1/nodes/n", MERGE, Some(&json!({field: null}))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(api.get("/v1/nodes/n").await[field], Value::Null);
    }
}

/// The field `stored` contains the values that clients sent, and the owners of a node's traits and tags. Other fields
/// of a response may be derived, as a number of nodes, or a value of the template if the cluster has none.
#[tokio::test]
async fn y05_y07_stored_fields_are_shown_apart_from_derived() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "ClusterTemplate", "name": "t", "flavor_id": "f", "docker_volume_size": 5, "image_id": "i"}]))
        .await;
    api.expect("POST", "/v1/clusters", &json!({"name": "c", "cluster_template_id": "t", "node_count": 3}), 202).await;
    api.expect("POST", "/v1/clusters/c/nodegroups", &json!({"name": "g", "node_count": 2}), 202).await;
    let node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "traits": ["CUSTOM_A"], "tags": {"unassigned": ["x"]}, "mode": "noop"});
    let objects = json!([{"kind": "NodeGroup", "cluster": "c", "name": "roles", "roles": ["web"]}, node]);
    api.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
    let shown = api.get("/v1/clusters/c").await;
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
        assert_eq!(api.get(&format!("{path}?stored=true")).await["stored"], stored, "{path}");
    }
    // A field that was given up is shown as if it had never been set.
    let reduced_node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "mode": "noop"});
    api.expect("POST", "/v1/apply?manager=git", &json!({"objects": [reduced_node]}), 200).await;
    let remaining = json!({"nodegroup": "c/g", "mode": "noop"});
    assert_eq!(api.get("/v1/nodes/n?stored=true").await["stored"], remaining);
    // Only single objects of the four levels have the field `stored`.
    for path in ["/v1/inspection_rules/r", "/v1/releases/r", "/v1/nodes"] {
        let answer = api.send("GET", &format!("{path}?stored=true"), &[], None).await;
        assert_eq!((answer.status, answer.kind()), (400, "request.query"), "{path}: {}", answer.body);
    }
}

/// Returns the status, the type and the field of an error, without the prefix `objects[0].` of an apply.
pub(crate) fn error_parts(answer: &ApiResponse) -> (u16, String, String) {
    let field = answer.body["error"]["field"].as_str().unwrap_or_default().trim_start_matches("objects[0].");
    (answer.status, answer.kind().to_owned(), field.to_owned())
}

/// Sets one entry of a map of node `n` by each form of a write, and returns the responses. The form POST creates a node
/// `new` with the entry instead. `value` is JSON text, because the type `Value` cannot contain every number.
async fn write_in_each_form(api: &TestApi, map: &str, key: &str, value: &str) -> Vec<ApiResponse> {
    let node = "/v1/nodes/n";
    let merge_body = format!(r#"{{"{map}": {{"{key}": {value}}}}}"#);
    let new_node = format!(r#"{{"name": "new", "{map}": {{"{key}": {value}}}}}"#);
    let manifest = format!(r#"{{"objects": [{{"kind": "Node", "name": "n", "{map}": {{"{key}": {value}}}}}]}}"#);
    let map_patch = format!(r#"[{{"op": "add", "path": "/{map}", "value": {{"{key}": {value}}}}}]"#);
    let key_patch = format!(r#"[{{"op": "add", "path": "/{map}/{key}", "value": {value}}}]"#);
    let map_path = format!("{node}/{map}");
    let mut answers = Vec::new();
    for (method, path, headers, body) in [
        ("POST", "/v1/nodes", &[][..], new_node),
        ("POST", "/v1/apply", &[], manifest),
        ("PATCH", node, MERGE, merge_body.clone()),
        ("PATCH", node, APPLY, merge_body.clone()),
        ("PATCH", node, PATCH, map_patch),
        ("PATCH", node, PATCH, key_patch),
        ("PUT", map_path.as_str(), &[], merge_body),
        ("PATCH", map_path.as_str(), MERGE, format!(r#"{{"{key}": {value}}}"#)),
    ] {
        answers.push(api.send_text(method, path, headers, &body).await);
    }
    answers
}

#[tokio::test]
async fn y05_map_error_names_key_in_each_form() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "Node", "name": "n"}])).await;
    for (map, key, value, kind, field) in [
        ("labels", "a", r#"["x"]"#, "label.invalid", "labels.a"),
        ("labels", "a", r#""x\ny""#, "label.invalid", "labels.a"),
        ("annotations", "a", r#"{"b": 1}"#, "field.invalid", "annotations.a"),
        // 2^53 + 1, which canonical JSON does not preserve, and numbers that do not fit into 64 bits or a double.
        ("parameters", "p", "9007199254740993", "field.invalid", "parameters.p"),
        ("parameters", "p", r#"{"q": [0, 9007199254740993]}"#, "field.invalid", "parameters.p.q[1]"),
        ("parameters", "p", "18446744073709551616", "field.invalid", "parameters.p"),
        ("parameters", "p", r#"{"q": [0, 1e400]}"#, "field.invalid", "parameters.p.q[1]"),
    ] {
        for (form, answer) in write_in_each_form(&api, map, key, value).await.iter().enumerate() {
            let expected = (400, kind.to_owned(), field.to_owned());
            assert_eq!(error_parts(answer), expected, "form {form} of {map} {value}: {}", answer.body);
        }
    }
}

/// Regression: the error about a number that is refused, for example because a double cannot hold it exactly, named the
/// field `parameters.a.1` instead of `parameters.a[1]`.
#[tokio::test]
async fn y05_json_patch_number_error_names_field_in_any_notation() {
    let api = TestApi::start().await;
    let node =
        json!({"kind": "Node", "name": "n", "parameters": {"a": [1, 2], "b": {"c": [[0]]}}, "extra": {"f": [1], "m": {"1": 0}}});
    apply(&api, &json!([node])).await;
    let node_before = api.get("/v1/nodes/n").await;
    for number in ["9007199254740993", "9007199254740993.0", "18446744073709551616", "1e400", "1e-400"] {
        // In each value, `N` is replaced by the number.
        for (path, value, field) in [
            ("/parameters/a/1", "N", "parameters.a[1]"),
            ("/parameters/a", "[1, N]", "parameters.a[1]"),
            ("/parameters/b/c/0", r#"[1, {"q": N}]"#, "parameters.b.c[0][1].q"),
            ("/extra/f/-", "N", "extra.f[1]"),
            ("/extra/f/0", "N", "extra.f[0]"),
            // Here `1` is a key of a map, although it has the form of a list index.
            ("/extra/m/1", "N", "extra.m.1"),
            // A list that the patch itself creates.
            ("/extra/new/-", "N", "extra.new[0]"),
        ] {
            let add = |path: &str, value: &str| format!(r#"{{"op": "add", "path": "{path}", "value": {value}}}"#);
            let body = format!("[{}, {}]", add("/extra/new", "[]"), add(path, &value.replace('N', number)));
            let answer = api.send_text("PATCH", "/v1/nodes/n", PATCH, &body).await;
            let expected = (400, "field.invalid".to_owned(), field.to_owned());
            assert_eq!(error_parts(&answer), expected, "{number} at {path}: {}", answer.body);
        }
    }
    assert_eq!(api.get("/v1/nodes/n").await, node_before);
}

/// Magnum's command line sends the labels of cluster templates, clusters and node groups as the text of a map. The
/// controller parses no other map from text.
#[tokio::test]
async fn y05_map_text_is_parsed_only_for_magnum_labels() {
    let api = TestApi::start().await;
    let objects = json!([{"kind": "ClusterTemplate", "name": "t"}, {"kind": "Cluster", "name": "c"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g"}, {"kind": "Node", "name": "n"}]);
    apply(&api, &objects).await;
    for path in ["/v1/clustertemplates/t", "/v1/clusters/c", "/v1/clusters/c/nodegroups/g", "/v1/nodes/n"] {
        for (map, text) in [("labels", "{'a': '1'}"), ("annotations", r#"{"a": "1"}"#), ("parameters", r#"{"a": {"b": 1}}"#)] {
            let answer = send_patch(&api, path, &json!([{"op": "add", "path": format!("/{map}"), "value": text}])).await;
            if map == "labels" && path != "/v1/nodes/n" {
                assert!(answer.status < 300, "{path}: {}", answer.body);
                assert_eq!(api.get(path).await["provided_labels"], json!({"a": "1"}), "{path}");
                continue;
            }
            // A merge patch with the same text causes the same error.
            let merge_answer = api.send("PATCH", path, MERGE, Some(&json!({map: text}))).await;
            assert_eq!((answer.status, error_parts(&answer)), (400, error_parts(&merge_answer)), "{path} {map}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn y05_json_patch_null_clears_map_as_merge_patch_does() {
    let api = TestApi::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "labels": {"a": "1"}, "annotations": {"a": "1"}, "parameters": {"p": 1}});
    apply(&api, &json!([node("merge"), node("add"), node("replace")])).await;
    let mut shown_fields = Vec::new();
    for name in ["merge", "add", "replace"] {
        let path = format!("/v1/nodes/{name}");
        for map in ["labels", "annotations", "parameters"] {
            let answer = if name == "merge" {
                api.send("PATCH", &path, MERGE, Some(&json!({map: null}))).await
            } else {
                send_patch(&api, &path, &json!([{"op": name, "path": format!("/{map}"), "value": null}])).await
            };
            assert_eq!(answer.status, 200, "{name} {map}: {}", answer.body);
        }
        let node = api.get(&path).await;
        let fields = ["provided_labels", "provided_annotations", "provided_parameters", "merge_labels", "field_owners"];
        shown_fields.push(fields.map(|field| node[field].clone()));
    }
    assert_eq!((&shown_fields[1], &shown_fields[2]), (&shown_fields[0], &shown_fields[0]));
}

/// A response shows a `node_count` for a new group, although nobody set the field. A patch with the same value stores
/// the value and its owner.
#[tokio::test]
async fn y05_json_patch_writes_shown_but_unstored_field() {
    let api = TestApi::start().await;
    let group = |name: &str| json!({"kind": "NodeGroup", "cluster": "c", "name": name});
    apply(&api, &json!([{"kind": "Cluster", "name": "c"}, group("g1"), group("g2"), group("g3")])).await;
    let path = |name: &str| format!("/v1/clusters/c/nodegroups/{name}");
    let merge_answer = api.send("PATCH", &path("g1"), MERGE, Some(&json!({"node_count": 1}))).await;
    assert!(merge_answer.status < 300, "{}", merge_answer.body);
    for (name, verb) in [("g2", "add"), ("g3", "replace")] {
        let answer = send_patch(&api, &path(name), &json!([{"op": verb, "path": "/node_count", "value": 1}])).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    let merge_group = api.get(&path("g1")).await;
    assert!(merge_group["field_owners"].get("node_count").is_some(), "{merge_group}");
    for name in ["g2", "g3"] {
        let shown = api.get(&path(name)).await;
        assert_eq!((&shown["node_count"], &shown["field_owners"]), (&json!(1), &merge_group["field_owners"]));
    }
}

/// A manifest must use the name `parked`. A patch also accepts Ironic's name `maintenance`, for Ironic's clients
/// (docs/api.md).
#[tokio::test]
async fn y05_manifest_has_one_name_for_parked() {
    let api = TestApi::start().await;
    let manifest = json!({"objects": [{"kind": "Node", "name": "n", "maintenance": true}]});
    let answer = api.send("POST", "/v1/apply", &[], Some(&manifest)).await;
    assert_eq!(error_parts(&answer), (400, "field.unknown".to_owned(), "maintenance".to_owned()));
    assert!(answer.message().contains("is called parked"), "{}", answer.body);
    apply(&api, &json!([{"kind": "Node", "name": "n"}])).await;
    let answer = api.send("PATCH", "/v1/nodes/n", MERGE, Some(&json!({"maintenance": true}))).await;
    assert_eq!((answer.status, &answer.body["maintenance"]), (200, &json!(true)), "{}", answer.body);
}

/// The error about a declared tag names the same field in each form of a write of the cluster. A merge patch removes a
/// tag whose value is `null`, and a JSON patch refuses the `null` (docs/api.md).
#[tokio::test]
async fn y05_declared_tag_error_names_field() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "Cluster", "name": "c"}])).await;
    for (tags, field) in [
        (json!({"Self": {}}), "tags.Self"),
        (json!({" ": {}}), "tags"),
        (json!({"a\nb": {}}), "tags"),
        (json!({"q": 5}), "tags.q"),
    ] {
        let manifest = json!({"objects": [{"kind": "Cluster", "name": "c", "tags": tags}]});
        for answer in [
            api.send("PATCH", "/v1/clusters/c", MERGE, Some(&json!({"tags": tags}))).await,
            send_patch(&api, "/v1/clusters/c", &json!([{"op": "add", "path": "/tags", "value": tags}])).await,
            api.send("POST", "/v1/clusters", &[], Some(&json!({"name": "d", "tags": tags}))).await,
            api.send("POST", "/v1/apply", &[], Some(&manifest)).await,
        ] {
            assert_eq!(error_parts(&answer), (400, "field.invalid".to_owned(), field.to_owned()), "{}", answer.body);
        }
    }
    for name in ["Self", " ", "a\nb"] {
        let answer = api.send("POST", "/v1/clusters/c/tags", &[], Some(&json!({"name": name}))).await;
        assert_eq!(error_parts(&answer), (400, "field.invalid".to_owned(), "name".to_owned()), "{}", answer.body);
    }
    let null = json!({"tags": {"q": null}});
    assert_eq!(api.send("PATCH", "/v1/clusters/c", MERGE, Some(&null)).await.status, 200);
    let add = json!([{"op": "add", "path": "/tags", "value": {"q": null}}]);
    assert_eq!(error_parts(&send_patch(&api, "/v1/clusters/c", &add).await).2, "tags.q");
}

/// As in Ironic's conductor, `maintenance_reason` is cleared when `maintenance` becomes false. Regression: the old
/// reason was shown again when the node was parked the next time.
#[tokio::test]
async fn y05_maintenance_reason_is_cleared_when_maintenance_ends() {
    const NODE: &str = "/v1/nodes/n";
    let api = TestApi::start().await;
    api.expect("POST", "/v1/nodes", &json!({"name": "n"}), 201).await;
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
        api.expect("PUT", "/v1/nodes/n/maintenance", &json!({"reason": "disk"}), 202).await;
        assert_eq!(api.get(NODE).await["maintenance_reason"], "disk", "{form}");
        let answer = api.send(method, path, headers, body.as_ref()).await;
        assert!(answer.status < 300, "{form}: {}", answer.body);
        let shown = api.get(NODE).await;
        assert_eq!([&shown["parked"], &shown["maintenance_reason"]], [&json!(false), &Value::Null], "{form}");
    }
}

/// By RFC 7396, a merge patch that is not an object replaces the whole document. So `null` clears a map.
#[tokio::test]
async fn y05_map_body_null_clears_map_as_merge_patch_does() {
    let api = TestApi::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "labels": {"a": "1"}, "annotations": {"a": "1"}, "parameters": {"p": 1}});
    let release = |version: &str| json!({"kind": "Release", "name": "r", "version": version, "labels": {"a": "1"}, "annotations": {"a": "1"}});
    apply(&api, &json!([node("n1"), node("n2"), release("1"), release("2")])).await;
    for (by_object, by_map, maps) in [
        ("/v1/nodes/n1", "/v1/nodes/n2", &["labels", "annotations", "parameters"][..]),
        ("/v1/releases/r@1", "/v1/releases/r@2", &["labels", "annotations"]),
    ] {
        for map in maps {
            let object_answer = api.send("PATCH", by_object, MERGE, Some(&json!({*map: null}))).await;
            let map_answer = api.send("PATCH", &format!("{by_map}/{map}"), MERGE, Some(&Value::Null)).await;
            assert_eq!(
                (object_answer.status, map_answer.status),
                (200, 200),
                "{map}: {} {}",
                object_answer.body,
                map_answer.body
            );
        }
        let [by_object, by_map] = [api.get(by_object).await, api.get(by_map).await];
        for field in ["provided_labels", "provided_annotations", "provided_parameters", "labels", "field_owners"] {
            assert_eq!(by_map[field], by_object[field], "{field}");
        }
        assert!(by_map["labels"].get("a").is_none(), "{by_map}");
    }
}

/// The own labels of a release, rule or namespace follow the rules of a node's labels.
#[tokio::test]
async fn y05_label_follows_node_rules_in_every_kind() {
    let api = TestApi::start().await;
    let actions = json!([{"op": "log", "args": {"msg": "x"}}]);
    api.expect("POST", "/v1/inspection_rules", &json!({"name": "r", "actions": actions}), 201).await;
    apply(&api, &json!([{"kind": "Node", "name": "n"}, {"kind": "Release", "name": "r", "version": "1"}])).await;
    for (labels, field) in [
        (json!({"k": "a\nb"}), "labels.k"),
        (json!({"k": "\u{0}"}), "labels.k"),
        (json!({"a b": "x"}), "labels"),
        (json!({"": "x"}), "labels"),
    ] {
        let mut answers = Vec::new();
        for (kind, path, mut new_object) in [
            ("Node", "/v1/nodes", json!({"name": "new"})),
            ("Release", "/v1/releases", json!({"name": "new", "version": "1"})),
            ("InspectionRule", "/v1/inspection_rules", json!({"name": "new", "actions": actions})),
            ("Namespace", "/v2/metadefs/namespaces", json!({"namespace": "new"})),
        ] {
            new_object["labels"] = labels.clone();
            answers.push(api.send("POST", path, &[], Some(&new_object)).await);
            new_object["kind"] = kind.into();
            answers.push(api.send("POST", "/v1/apply", &[], Some(&json!({"objects": [new_object]}))).await);
        }
        for path in ["/v1/nodes/n", "/v1/releases/r@1", "/v1/inspection_rules/r"] {
            answers.push(api.send("PATCH", path, MERGE, Some(&json!({"labels": labels}))).await);
            answers.push(send_patch(&api, path, &json!([{"op": "add", "path": "/labels", "value": labels}])).await);
        }
        for path in ["/v1/nodes/n/labels", "/v1/releases/r@1/labels"] {
            answers.push(api.send("PATCH", path, MERGE, Some(&labels)).await);
            answers.push(api.send("PUT", path, &[], Some(&json!({"labels": labels}))).await);
        }
        for answer in answers {
            let expected = (400, "label.invalid".to_owned(), field.to_owned());
            assert_eq!(error_parts(&answer), expected, "{labels}: {}", answer.body);
        }
    }
}

/// The end of the maintenance also clears `maintenance_reason`, which another manager owns. The conflict names only
/// `parked`, because no form contains the reason.
#[tokio::test]
async fn y05_maintenance_conflict_names_field_in_each_form() {
    const NODE: &str = "/v1/nodes/n";
    let api = TestApi::start().await;
    let node = json!({"kind": "Node", "name": "n", "parked": true, "maintenance_reason": "disk"});
    api.expect("POST", "/v1/apply?manager=git", &json!({"objects": [node]}), 200).await;
    let object = json!({"objects": [{"kind": "Node", "name": "n", "parked": false}]});
    let replace = json!([{"op": "replace", "path": "/parked", "value": false}]);
    for (form, method, path, headers, body) in [
        ("DELETE", "DELETE", "/v1/nodes/n/maintenance", PLAIN, None),
        ("merge patch", "PATCH", NODE, MERGE, Some(json!({"parked": false}))),
        ("JSON patch", "PATCH", NODE, PATCH, Some(replace)),
        ("apply", "POST", "/v1/apply", PLAIN, Some(object)),
    ] {
        let force = if form == "apply" { "" } else { "&force=false" };
        let answer = api.send(method, &format!("{path}?manager=ann{force}"), headers, body.as_ref()).await;
        let expected = (409, "label.conflict".to_owned(), "parked".to_owned());
        assert_eq!(error_parts(&answer), expected, "{form}: {}", answer.body);
        assert_eq!(answer.body["conflicts"].as_array().map(Vec::len), Some(1), "{form}: {}", answer.body);
    }
    assert_eq!(api.get(NODE).await["maintenance_reason"], "disk");
}

#[tokio::test]
async fn y05_trait_error_names_index_in_each_form() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "Node", "name": "n"}])).await;
    let traits = json!(["CUSTOM_A", "NOPE"]);
    let object = json!({"objects": [{"kind": "Node", "name": "n", "traits": traits}]});
    for answer in [
        api.send("PUT", "/v1/nodes/n/traits", &[], Some(&json!({"traits": traits}))).await,
        api.send("POST", "/v1/apply", &[], Some(&object)).await,
    ] {
        let expected = (400, "trait.invalid".to_owned(), "traits[1]".to_owned());
        assert_eq!(error_parts(&answer), expected, "{}", answer.body);
    }
}

/// Regression: a release accepted `null` as an empty map. If the body had an unknown field, the error named the labels
/// instead.
#[tokio::test]
async fn y05_map_put_rejects_same_bodies_for_release_and_node() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "Node", "name": "n"}, {"kind": "Release", "name": "r", "version": "1"}])).await;
    for map in ["labels", "annotations"] {
        for (body, kind, field) in [
            (json!({map: null}), "field.missing", map),
            (json!({}), "field.missing", map),
            (json!({"b": "1"}), "field.unknown", "b"),
            (json!({map: {}, "b": "1"}), "field.unknown", "b"),
        ] {
            for path in ["/v1/nodes/n", "/v1/releases/r@1"] {
                let answer = api.send("PUT", &format!("{path}/{map}"), &[], Some(&body)).await;
                assert_eq!(error_parts(&answer), (400, kind.to_owned(), field.to_owned()), "{path}: {}", answer.body);
            }
        }
    }
}

#[tokio::test]
async fn y05_release_annotation_key_follows_node_rules() {
    let api = TestApi::start().await;
    apply(&api, &json!([{"kind": "Node", "name": "n"}, {"kind": "Release", "name": "r", "version": "1"}])).await;
    for (key, status) in [("a b", 400), ("", 400), ("/x", 400), (&*"k".repeat(300), 400), ("Example.Org/x", 200)] {
        for path in ["/v1/nodes/n", "/v1/releases/r@1"] {
            let body = json!({"annotations": {key: "any\ntext"}});
            let merge_answer = api.send("PATCH", path, MERGE, Some(&body)).await;
            let put_answer = api.send("PUT", &format!("{path}/annotations"), &[], Some(&body)).await;
            for answer in [merge_answer, put_answer] {
                assert_eq!(answer.status, status, "{path} {key}: {}", answer.body);
                let expected = (400, "field.invalid".to_owned(), "annotations".to_owned());
                assert!(status == 200 || error_parts(&answer) == expected, "{path} {key}: {}", answer.body);
            }
        }
    }
}

#[tokio::test]
async fn y05_json_patch_rejects_read_only_field_of_every_kind() {
    let api = TestApi::start().await;
    let actions = json!([{"op": "log", "args": {"msg": "x"}}]);
    api.expect("POST", "/v1/inspection_rules", &json!({"name": "r", "actions": actions}), 201).await;
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "1"}, {"kind": "Cluster", "name": "c"}, {"kind": "Node", "name": "n"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g"}, {"kind": "ClusterTemplate", "name": "t"},
    ]);
    apply(&api, &objects).await;
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
            let answer = send_patch(&api, path, &operations).await;
            assert_eq!((answer.status, &answer.body["error"]["field"]), (400, &json!(field)), "{path}");
        }
    }
}
