//! JSON patches of real objects with all operations of RFC 6902, and Magnum's actions on a cluster.

use serde_json::{Value, json};
use stemma_controller::records::{codec, key};
use stemma_controller::store::Transaction;
use stemma_core::object::Kind;

use crate::served::TestApi;

const PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];
const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];

/// Creates two versions of a release, three templates, the cluster `eu`, its group `web` and the node `n1`.
async fn create_site(api: &TestApi) {
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1"},
        {"kind": "Release", "name": "site", "version": "2"},
        {"kind": "ClusterTemplate", "name": "v1", "release": "site@1"},
        {"kind": "ClusterTemplate", "name": "v2", "release": "site@2"},
        {"kind": "ClusterTemplate", "name": "bare"},
        {"kind": "Cluster", "name": "eu", "cluster_template": "v1", "release": "site@1", "merge_labels": true,
         "labels": {"tier": "gold", "ntp.example.org/pool": "a"}, "parameters": {"web": {"port": 80}}},
        {"kind": "NodeGroup", "cluster": "eu", "name": "web"},
        {"kind": "Node", "name": "n1", "nodegroup": "eu/web", "properties": {"racks": ["a", "b"], "memory_mb": 64}},
    ]);
    api.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
}

/// Sends a JSON patch. Returns the status and the body of the response.
async fn patch(api: &TestApi, path: &str, operations: &Value) -> (u16, Value) {
    let response = api.send("PATCH", path, PATCH, Some(operations)).await;
    (response.status, response.body)
}

/// The operation `test` compares numbers by value, so 80.0 equals 80, and takes the default of an unset field.
#[tokio::test]
async fn json_patch_tests_copies_and_moves_fields_and_keys() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let operations = json!([
        {"op": "test", "path": "/labels/tier", "value": "gold"},
        {"op": "test", "path": "/labels/ntp.example.org~1pool", "value": "a"},
        {"op": "test", "path": "/parameters/web", "value": {"port": 80.0}},
        {"op": "test", "path": "/description", "value": null},
        {"op": "move", "from": "/labels/tier", "path": "/labels/class"},
        {"op": "copy", "from": "/labels/class", "path": "/labels/ntp.example.org~1pool"},
        {"op": "copy", "from": "/labels/class", "path": "/description"},
        {"op": "add", "path": "/labels/new", "value": "1"},
        {"op": "test", "path": "/labels/new", "value": "1"},
    ]);
    let (status, body) = patch(&api, "/v1/clusters/eu", &operations).await;
    assert_eq!(status, 202, "{body}");
    let cluster = api.get("/v1/clusters/eu").await;
    assert_eq!(cluster["labels"], json!({"class": "gold", "new": "1", "ntp.example.org/pool": "gold"}));
    assert_eq!(cluster["description"], "gold");
    let operations = json!([
        {"op": "test", "path": "/properties/memory_mb", "value": 64},
        {"op": "test", "path": "/parked", "value": false},
        {"op": "test", "path": "/roles", "value": []},
        {"op": "test", "path": "/instance_info", "value": {}},
        {"op": "test", "path": "/merge_labels", "value": false},
        {"op": "add", "path": "/suppressed_traits/-", "value": "HW_CPU_X86_AVX"},
        {"op": "move", "from": "/properties/racks/0", "path": "/properties/racks/1"},
        {"op": "copy", "from": "/properties/racks/0", "path": "/properties/first"},
    ]);
    let (status, node) = patch(&api, "/v1/nodes/n1", &operations).await;
    assert_eq!(status, 200, "{node}");
    assert_eq!(node["properties"], json!({"racks": ["b", "a"], "first": "b", "memory_mb": 64}));
    assert_eq!(node["suppressed_traits"], json!(["HW_CPU_X86_AVX"]));
    let operations =
        json!([{"op": "test", "path": "/parked", "value": false}, {"op": "replace", "path": "/merge_labels", "value": true}]);
    assert_eq!(patch(&api, "/v1/nodes/n1", &operations).await.0, 200);
}

/// Each patch edits the result of the patch before it.
#[tokio::test]
async fn json_patch_adds_to_unset_field_and_resets_default() {
    let api = TestApi::start().await;
    create_site(&api).await;
    for (operations, field, expected) in [
        (json!([{"op": "add", "path": "/roles/-", "value": "web"}]), "roles", json!(["web"])),
        (
            json!([{"op": "copy", "from": "/roles/0", "path": "/roles/0"}, {"op": "remove", "path": "/roles/1"}]),
            "roles",
            json!(["web"]),
        ),
        (json!([{"op": "remove", "path": "/roles/0"}]), "roles", json!([])),
        (json!([{"op": "replace", "path": "/merge_labels", "value": true}]), "merge_labels", json!(true)),
        (
            json!([{"op": "test", "path": "/merge_labels", "value": true}, {"op": "remove", "path": "/merge_labels"}]),
            "merge_labels",
            json!(false),
        ),
    ] {
        let (status, node) = patch(&api, "/v1/nodes/n1", &operations).await;
        // A list that has its default value is not shown.
        let value = node.get(field).cloned().unwrap_or(json!([]));
        assert_eq!((status, value), (200, expected), "{operations}: {node}");
    }
}

/// Each patch has a valid operation before the failing one.
#[tokio::test]
async fn json_patch_names_failed_operation_and_changes_nothing() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let cluster_before = api.get("/v1/clusters/eu").await;
    let valid_operation = json!({"op": "add", "path": "/labels/new", "value": "1"});
    for (operation, status, kind, message_part) in [
        (
            json!({"op": "test", "path": "/labels/tier", "value": "silver"}),
            412,
            "precondition.failed",
            "/labels/tier is \"gold\", but the patch's test expects \"silver\"",
        ),
        (json!({"op": "test", "path": "/labels/none", "value": "x"}), 400, "field.invalid", "no /labels/none"),
        (json!({"op": "copy", "from": "/labels/none", "path": "/labels/x"}), 400, "field.invalid", "no /labels/none"),
        (json!({"op": "move", "path": "/labels/x"}), 400, "field.invalid", "\"from\" is missing"),
        (json!({"op": "move", "from": "/uuid", "path": "/labels/x"}), 400, "field.invalid", "no /uuid"),
        (json!({"op": "move", "from": "/parameters/web", "path": "/parameters/web/x"}), 400, "field.invalid", "within"),
        // The path means the key "" of the map, never the map itself (RFC 6901).
        (json!({"op": "remove", "path": "/labels/"}), 400, "field.invalid", "no /labels/,"),
        (json!({"op": "replace", "path": "/labels/", "value": "x"}), 400, "field.invalid", "no /labels/,"),
        (json!({"op": "add", "path": "/labels/", "value": "x"}), 400, "label.invalid", "label"),
        (json!({"op": "add", "path": "/labels/x~2", "value": "x"}), 400, "field.invalid", "neither ~0 nor ~1"),
        (json!({"op": "add", "path": "/labels/x", "value": null}), 400, "label.invalid", "null is not allowed"),
        (json!({"op": "replace", "path": "/labels", "value": 5}), 400, "label.invalid", "must be a map"),
        (json!({"op": "replace", "path": "/name", "value": "us"}), 400, "field.invalid", "cannot change"),
        (json!({"op": "add", "path": "/uuid", "value": "x"}), 400, "field.invalid", "cannot be changed"),
    ] {
        let (actual_status, body) = patch(&api, "/v1/clusters/eu", &json!([valid_operation, operation])).await;
        assert_eq!((actual_status, body["error"]["type"].as_str()), (status, Some(kind)), "{operation}: {body}");
        let message = body["error"]["message"].as_str().expect("a message");
        assert!(message.contains(message_part), "{operation}: {message}");
        assert!(message.ends_with("nothing was changed") || body["error"]["type"] == "label.invalid", "{operation}: {message}");
    }
    assert_eq!(api.get("/v1/clusters/eu").await, cluster_before);
}

/// Magnum's action `upgrade` gives a cluster another template, and removes its own release if the template has one.
#[tokio::test]
async fn cluster_upgrade_sets_release_of_template() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let path = "/v1/clusters/eu/actions/upgrade";
    let body = json!({"cluster_template": "v2", "max_batch_size": 1, "nodegroup": null});
    let response = api.expect("POST", path, &body, 202).await;
    let cluster = api.get("/v1/clusters/eu").await;
    assert_eq!(response["uuid"], cluster["uuid"]);
    assert_eq!(api.get("/v1/nodes/n1/resolved").await["release"]["name"], "site@2");
    // An upgrade to a template without a release leaves the cluster's own release unchanged, like every other field of
    // the cluster.
    let own_release = json!([{"op": "replace", "path": "/release", "value": "site@1"}]);
    assert_eq!(patch(&api, "/v1/clusters/eu", &own_release).await.0, 202);
    api.expect("POST", path, &json!({"cluster_template": "bare"}), 202).await;
    assert_eq!(api.get("/v1/clusters/eu").await["release"], "site@1");
}

/// Magnum's `upgrade` is supported only for a whole cluster with a batch size of 1, and Magnum's `resize` not at all.
#[tokio::test]
async fn unsupported_action_is_rejected() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let cluster_before = api.get("/v1/clusters/eu").await;
    for (action, body, status, kind) in [
        ("upgrade", json!({"cluster_template": "v2", "nodegroup": "web"}), 400, "action.unsupported"),
        ("upgrade", json!({"cluster_template": "v2", "max_batch_size": 3}), 400, "action.unsupported"),
        ("upgrade", json!({"cluster_template": "v2", "labels": {"a": "1"}}), 400, "field.unknown"),
        ("upgrade", json!({}), 400, "field.missing"),
        ("upgrade", json!({"cluster_template": 5}), 400, "field.invalid"),
        ("upgrade", json!({"cluster_template": "nosuch"}), 404, "object.not_found"),
        ("resize", json!({"node_count": 2}), 400, "action.unsupported"),
    ] {
        let response = api.send("POST", &format!("/v1/clusters/eu/actions/{action}"), &[], Some(&body)).await;
        assert_eq!((response.status, response.kind()), (status, kind), "{action} {body}: {}", response.body);
    }
    assert_eq!(api.get("/v1/clusters/eu").await, cluster_before);
    let response = api.send("POST", "/v1/clusters/nosuch/actions/resize", &[], Some(&json!({}))).await;
    assert_eq!(response.status, 404);
    let old_version = [("openstack-api-version", "container-infra 1.6")];
    let refusal = api.send("POST", "/v1/clusters/eu/actions/upgrade", &old_version, Some(&json!({}))).await;
    assert_eq!(refusal.status, 406, "{}", refusal.body);
}

/// Regression: a field was accepted under another system's name only in an `add` operation.
#[tokio::test]
async fn patch_accepts_field_name_of_other_system() {
    let api = TestApi::start().await;
    create_site(&api).await;
    for (operation, parked) in [
        (json!({"op": "test", "path": "/maintenance", "value": false}), false),
        (json!({"op": "replace", "path": "/maintenance", "value": true}), true),
        (json!({"op": "test", "path": "/maintenance", "value": true}), true),
        (json!({"op": "remove", "path": "/maintenance"}), false),
        (json!({"op": "add", "path": "/maintenance", "value": true}), true),
        (json!({"op": "replace", "path": "/parked", "value": false}), false),
    ] {
        let (status, node) = patch(&api, "/v1/nodes/n1", &json!([operation])).await;
        assert_eq!((status, &node["maintenance"], &node["parked"]), (200, &json!(parked), &json!(parked)), "{operation}: {node}");
    }
    let template_id = api.get("/v1/clusters/eu").await["cluster_template_id"].clone();
    for (operation, template) in [
        (json!({"op": "test", "path": "/cluster_template_id", "value": "v1"}), "v1"),
        (json!({"op": "test", "path": "/cluster_template_id", "value": template_id}), "v1"),
        (json!({"op": "test", "path": "/cluster_template", "value": template_id}), "v1"),
        (json!({"op": "replace", "path": "/cluster_template_id", "value": "v2"}), "v2"),
        (json!({"op": "replace", "path": "/cluster_template", "value": "v1"}), "v1"),
    ] {
        let (status, body) = patch(&api, "/v1/clusters/eu", &json!([operation])).await;
        assert_eq!(status, 202, "{operation}: {body}");
        assert_eq!(api.get("/v1/clusters/eu").await["cluster_template"], template, "{operation}");
    }
    let failing_test = json!([{"op": "test", "path": "/cluster_template_id", "value": "v2"}]);
    let (status, body) = patch(&api, "/v1/clusters/eu", &failing_test).await;
    let expected = "/cluster_template_id is \"v1\", but the patch's test expects \"v2\"";
    assert!(status == 412 && body["error"]["message"].as_str().unwrap().starts_with(expected), "{body}");
    let both_names =
        json!([{"op": "add", "path": "/parked", "value": true}, {"op": "add", "path": "/maintenance", "value": false}]);
    let (status, body) = patch(&api, "/v1/nodes/n1", &both_names).await;
    assert_eq!(
        (status, &body["parked"]),
        (200, &json!(false)),
        "both names are one field, and the last operation decides: {body}"
    );
}

/// As in Ironic, a uuid cannot be the instance of two nodes, or of a node and an allocation of another node.
#[tokio::test]
async fn instance_uuid_is_unique_among_nodes_and_allocations() {
    let api = TestApi::start().await;
    let [first_node, second_node, third_node] = ["one", "other", "third"].map(|name| json!({"kind": "Node", "name": name}));
    api.expect("POST", "/v1/apply", &json!({"objects": [first_node, second_node, third_node]}), 200).await;
    let uuid = "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6";
    let set_instance = json!([{"op": "add", "path": "/instance_uuid", "value": uuid}]);
    let assert_conflict = async |path: &str, method: &str, body: &Value| {
        let revision = api.api().cache().model().revision;
        let response = api.send(method, path, &[], Some(body)).await;
        assert_eq!((response.status, response.kind()), (409, "object.exists"), "{method} {path} {body}: {}", response.body);
        let expected = format!("Instance {uuid} is already associated with a node, it cannot be associated with");
        assert!(
            response.message().starts_with(&expected) && response.message().ends_with("nothing was changed"),
            "{}",
            response.message()
        );
        assert_eq!(api.api().cache().model().revision, revision);
    };
    assert_eq!(patch(&api, "/v1/nodes/one", &set_instance).await.0, 200);
    assert_eq!(patch(&api, "/v1/nodes/one", &set_instance).await.0, 200, "the node has the instance already");
    assert_conflict("/v1/nodes/other", "PATCH", &set_instance).await;
    let class = json!([{"op": "add", "path": "/resource_class", "value": "small"}]);
    assert_eq!(patch(&api, "/v1/nodes/other", &class).await.0, 200);
    assert_conflict("/v1/allocations", "POST", &json!({"resource_class": "small", "uuid": uuid})).await;
    assert_conflict("/v1/allocations", "POST", &json!({"resource_class": "none", "uuid": uuid})).await;
    // Two nodes get the same instance in one write.
    let manifest = json!({"objects": [
        {"kind": "Node", "name": "other", "instance_uuid": "1d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"},
        {"kind": "Node", "name": "third", "instance_uuid": "1d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"},
    ]});
    let response = api.send("POST", "/v1/apply?manager=admin&force=true", &[], Some(&manifest)).await;
    assert_eq!((response.status, response.kind()), (409, "object.exists"), "{}", response.body);
    // The uuid is free again. A node may have the uuid of its own allocation.
    assert_eq!(patch(&api, "/v1/nodes/one", &json!([{"op": "remove", "path": "/instance_uuid"}])).await.0, 200);
    let created = api.expect("POST", "/v1/allocations", &json!({"resource_class": "small", "uuid": uuid}), 201).await;
    assert_eq!((&created["state"], &created["uuid"]), (&json!("active"), &json!(uuid)), "{created}");
    assert_eq!(api.get("/v1/nodes/other").await["instance_uuid"], uuid);
    assert_conflict("/v1/nodes/one", "PATCH", &set_instance).await;
    // The uuid of an allocation that found no node is in use too.
    let failed_allocation = json!({"resource_class": "none", "uuid": "2d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"});
    assert_eq!(api.expect("POST", "/v1/allocations", &failed_allocation, 201).await["state"], "error");
    let operations = json!([{"op": "add", "path": "/instance_uuid", "value": failed_allocation["uuid"]}]);
    let (status, response) = patch(&api, "/v1/nodes/third", &operations).await;
    assert_eq!(status, 409, "{response}");
    let expected = "is the uuid of an allocation already, it cannot be associated with this other node third";
    assert!(response["error"]["message"].as_str().unwrap().contains(expected), "{response}");
}

/// As in Ironic, any form of a uuid is accepted. Only one form is stored, so two forms of a uuid are one instance.
#[tokio::test]
async fn instance_uuid_is_stored_in_one_form() {
    let api = TestApi::start().await;
    let nodes = ["one", "other"].map(|name| json!({"kind": "Node", "name": name}));
    api.expect("POST", "/v1/apply", &json!({"objects": nodes}), 200).await;
    let uuid = "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6";
    let set_instance = |value: &str| json!([{"op": "add", "path": "/instance_uuid", "value": value}]);
    assert_eq!(patch(&api, "/v1/nodes/one", &set_instance("0D8E1F4A5B6C4D7E8F90A1B2C3D4E5F6")).await.0, 200);
    assert_eq!(api.get("/v1/nodes/one").await["instance_uuid"], uuid);
    let list = api.get("/v1/nodes?instance_uuid=0D8E1F4A-5B6C-4D7E-8F90-A1B2C3D4E5F6").await;
    assert_eq!(list["nodes"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(patch(&api, "/v1/nodes/other", &set_instance(&uuid.to_uppercase())).await.0, 409);
    let (status, body) = patch(&api, "/v1/nodes/other", &set_instance("my-vm")).await;
    assert_eq!((status, &body["error"]["type"]), (400, &json!("field.invalid")), "{body}");
    let manifest = json!({"objects": [{"kind": "Node", "name": "other", "instance_uuid": "my-vm"}]});
    assert_eq!(api.send("POST", "/v1/apply", &[], Some(&manifest)).await.status, 400);
    assert_eq!(patch(&api, "/v1/nodes/one", &set_instance("")).await.0, 400, "an empty text does not remove the instance");
    assert_eq!(api.get("/v1/nodes/one").await["instance_uuid"], uuid);
    let remove = json!([{"op": "remove", "path": "/instance_uuid"}]);
    assert_eq!(patch(&api, "/v1/nodes/one", &remove).await.0, 200);
    assert_eq!(api.get("/v1/nodes/one").await["instance_uuid"], Value::Null);
}

/// In a store that an older version of Stemma wrote, several nodes may have the same instance. A write that leaves the
/// instance as it is, or removes it from a node, is accepted.
#[tokio::test]
async fn write_accepts_shared_instance_only_when_unchanged() {
    let api = TestApi::start().await;
    let nodes = ["one", "other", "third"].map(|name| json!({"kind": "Node", "name": name}));
    api.expect("POST", "/v1/apply", &json!({"objects": nodes}), 200).await;
    let uuid = "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6";
    let mut write = Transaction::new();
    for (name, form) in [("one", uuid.to_owned()), ("other", uuid.to_uppercase()), ("third", uuid.to_owned())] {
        let mut node = api.api().cache().model().nodes.get_by_name(None, name).unwrap().as_ref().clone();
        node.spec.extra.insert("instance_uuid".to_owned(), form.into());
        write = write.put(key::object(Kind::Node, node.meta.uuid), codec::encode(&node));
    }
    api.api().registry.store().commit(write).await.unwrap();
    while api.get("/v1/nodes/third").await["instance_uuid"] == Value::Null {
        tokio::task::yield_now().await;
    }
    let label = json!([{"op": "add", "path": "/labels/a", "value": "b"}]);
    assert_eq!(patch(&api, "/v1/nodes/other", &label).await.0, 200, "an unchanged instance is not checked");
    let remove = json!([{"op": "remove", "path": "/instance_uuid"}]);
    let (status, response) = patch(&api, "/v1/nodes/other", &remove).await;
    assert_eq!(status, 200, "{response}");
    let response = api.send("DELETE", "/v1/nodes/third", &[], None).await;
    assert_eq!(response.status, 204, "{}", response.body);
    let operations = json!([{"op": "add", "path": "/instance_uuid", "value": uuid}]);
    assert_eq!(patch(&api, "/v1/nodes/other", &operations).await.0, 409, "the instance still belongs to node one");
}

/// Regression: a merge patch returned 200 and moved nothing, while a JSON patch was refused.
#[tokio::test]
async fn x04_patch_rejects_move_of_group_to_other_cluster() {
    let api = TestApi::start().await;
    create_site(&api).await;
    api.expect("POST", "/v1/clusters", &json!({"name": "us"}), 202).await;
    let merge = &[("content-type", "application/merge-patch+json")];
    let path = "/v1/clusters/eu/nodegroups/web";
    let uuid = api.get("/v1/clusters/us").await["uuid"].clone();
    for (field, value) in [("cluster", json!("us")), ("cluster_id", uuid), ("cluster", json!(null))] {
        let refusal = api.send("PATCH", path, merge, Some(&json!({field: value, "description": "x"}))).await;
        assert_eq!((refusal.status, refusal.kind()), (400, "field.invalid"), "{}", refusal.body);
        let operations = json!([{"op": "replace", "path": format!("/{field}"), "value": value}]);
        assert_eq!(patch(&api, path, &operations).await.0, 400, "as a JSON patch");
    }
    // Unchanged values may be sent back.
    let group = api.get(path).await;
    let unchanged = json!({"cluster": group["cluster"], "cluster_id": group["cluster_id"], "description": "x"});
    let response = api.send("PATCH", path, merge, Some(&unchanged)).await;
    assert_eq!((response.status, &response.body["description"]), (200, &json!("x")), "{}", response.body);
}

/// Regression: a patch that sent back the shown name removed the version, and references to the release then pointed
/// nowhere.
#[tokio::test]
async fn y05_patch_accepts_shown_release_name_and_version() {
    let api = TestApi::start().await;
    create_site(&api).await;
    api.expect("POST", "/v1/releases", &json!({"name": "lib", "version": "1"}), 201).await;
    api.expect("POST", "/v1/releases", &json!({"name": "own", "imports": ["lib@1"]}), 201).await;
    for path in ["/v1/releases/site@1", "/v1/releases/lib@1", "/v1/releases/own"] {
        let release = api.get(path).await;
        let [name, version] = ["name", "version"].map(|field| release[field].clone());
        let unchanged = json!({"name": name, "version": version, "description": "x"});
        for body in [unchanged, json!({"name": name, "description": "y"}), json!({"version": version})] {
            let response = api.send("PATCH", path, MERGE, Some(&body)).await;
            assert_eq!(response.status, 200, "{path} {body}: {}", response.body);
        }
        let operations = json!([
            {"op": "test", "path": "/name", "value": name},
            {"op": "test", "path": "/version", "value": version},
            {"op": "replace", "path": "/name", "value": name},
            {"op": "replace", "path": "/version", "value": version},
        ]);
        let (status, patched) = patch(&api, path, &operations).await;
        assert_eq!(status, 200, "{path}: {patched}");
        let release_after = api.get(path).await;
        assert_eq!(
            (&release_after["uuid"], &release_after["name"], &release_after["version"]),
            (&release["uuid"], &name, &version)
        );
    }
}

#[tokio::test]
async fn y05_release_rename_fails_when_release_is_referenced() {
    let api = TestApi::start().await;
    create_site(&api).await;
    api.expect("POST", "/v1/releases", &json!({"name": "lib", "version": "1"}), 201).await;
    api.expect("POST", "/v1/releases", &json!({"name": "own", "imports": ["lib@1"]}), 201).await;
    for path in ["/v1/releases/site@1", "/v1/releases/site@2", "/v1/releases/lib@1"] {
        let deletion = api.send("DELETE", path, &[], None).await;
        assert_eq!(deletion.kind(), "object.in_use", "{}", deletion.body);
        for body in [json!({"name": "x"}), json!({"version": "9"}), json!({"version": null}), json!({"name": "x@9"})] {
            for query in ["", "?dry_run=true", "?force=true"] {
                let refusal = api.send("PATCH", &format!("{path}{query}"), MERGE, Some(&body)).await;
                let actual = (refusal.status, refusal.kind(), &refusal.body["used_by"]);
                assert_eq!(actual, (deletion.status, "object.in_use", &deletion.body["used_by"]), "{path} {body}");
                assert!(refusal.message().contains("nothing was changed"), "{}", refusal.body);
            }
        }
        let operations = json!([{"op": "replace", "path": "/version", "value": "9"}]);
        assert_eq!(patch(&api, path, &operations).await.0, deletion.status, "{path}");
        api.get(path).await;
    }
}

#[tokio::test]
async fn y05_release_rename_succeeds_when_release_is_unreferenced() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/releases", &json!({"name": "free", "version": "1"}), 201).await;
    let mut reference = "free@1";
    for (body, new_reference, name, version) in [
        (json!({"version": "2"}), "free@2", "free", json!("2")),
        (json!({"name": "bare"}), "bare@2", "bare", json!("2")),
        (json!({"version": null}), "bare", "bare", json!(null)),
        (json!({"name": "free@3"}), "free@3", "free", json!("3")),
        (json!({"name": "last", "version": "4"}), "last@4", "last", json!("4")),
    ] {
        let response = api.send("PATCH", &format!("/v1/releases/{reference}"), MERGE, Some(&body)).await;
        assert_eq!((response.status, &response.body["name"]), (200, &json!(name)), "{body}: {}", response.body);
        let release = api.get(&format!("/v1/releases/{new_reference}")).await;
        assert_eq!((&release["name"], &release["version"]), (&json!(name), &version), "{body}");
        assert_eq!(api.send("GET", &format!("/v1/releases/{reference}"), &[], None).await.status, 404, "{reference}");
        let cluster = |release: &str| json!({"objects": [{"kind": "Cluster", "name": "c", "release": release}]});
        let path = "/v1/apply?dry_run=true";
        let apply_response = api.send("POST", path, &[], Some(&cluster(reference))).await;
        assert_eq!(
            (apply_response.status, apply_response.kind()),
            (400, "reference.dangling"),
            "{reference}: {}",
            apply_response.body
        );
        api.expect("POST", path, &cluster(new_reference), 200).await;
        reference = new_reference;
    }
    for (body, field) in [(json!({"version": 5}), "version"), (json!({"name": null}), "name")] {
        let refusal = api.send("PATCH", "/v1/releases/last@4", MERGE, Some(&body)).await;
        assert_eq!((refusal.status, &refusal.body["error"]["field"]), (400, &json!(field)), "{body}");
    }
}

/// The call `PUT /v1/nodes/{node}/maintenance` names the field `reason`, and other forms of a write name the field
/// `maintenance_reason`. An error of this call names `reason`. docs/api.md has the table of such names.
#[tokio::test]
async fn y05_maintenance_error_names_reason_when_invalid() {
    let api = TestApi::start().await;
    create_site(&api).await;
    for reason in [json!(" "), json!("\u{200b}"), json!(5), json!("x".repeat(256))] {
        let body = json!({"reason": reason});
        let refusal = api.send("PUT", "/v1/nodes/n1/maintenance", &[], Some(&body)).await;
        assert_eq!((refusal.status, refusal.kind()), (400, "field.invalid"), "{reason}: {}", refusal.body);
        assert_eq!(refusal.body["error"]["field"], "reason", "{reason}");
        assert!(!refusal.message().contains("maintenance_reason"), "{reason}: {}", refusal.body);
    }
    assert_eq!(api.get("/v1/nodes/n1").await["parked"], false);
}
