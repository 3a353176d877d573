//! The changes that the response to a write lists, the content of documents and lists, and the methods that a path
//! accepts.

use serde_json::{Value, json};

use crate::served::TestApi;

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];

/// Applies objects as manager `git`, with these further query parameters. Returns the response.
async fn apply(api: &TestApi, objects: Value, query: &str) -> Value {
    api.expect("POST", &format!("/v1/apply?manager=git{query}"), &json!({"objects": objects}), 200).await
}

/// Creates the template `base`, the cluster `eu` from the template with nodes n1 and n2 in group `eu/web`, and the
/// cluster `us` with node n3 in group `us/web`.
async fn create_site(api: &TestApi) {
    let objects = json!([
        {"kind": "ClusterTemplate", "name": "base", "labels": {"ntp": "a", "tier": "standard"}},
        {"kind": "Cluster", "name": "eu", "cluster_template": "base"},
        {"kind": "NodeGroup", "cluster": "eu", "name": "web", "roles": [], "labels": {"rack": "7"}, "description": "x"},
        {"kind": "Node", "name": "n1", "nodegroup": "eu/web"},
        {"kind": "Node", "name": "n2", "nodegroup": "eu/web"},
        {"kind": "Cluster", "name": "us"}, {"kind": "NodeGroup", "cluster": "us", "name": "web"},
        {"kind": "Node", "name": "n3", "nodegroup": "us/web"},
    ]);
    apply(api, objects, "").await;
}

/// Returns the names of the objects in a response. `kind` is the field with the objects, such as `nodes`.
fn names(list: &Value, kind: &str) -> Vec<String> {
    list[kind].as_array().expect("a list").iter().map(|object| object["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn w05_cluster_filter_returns_nodes_or_fails_when_cluster_is_unknown() {
    let api = TestApi::start().await;
    create_site(&api).await;
    assert_eq!(names(&api.get("/v1/nodes?cluster=us").await, "nodes"), ["n3"]);
    assert_eq!(names(&api.get("/v1/nodes/detail?cluster=eu").await, "nodes"), ["n1", "n2"]);
    let refusal = api.send("GET", "/v1/nodes?cluster=nosuch", &[], None).await;
    assert_eq!((refusal.status, refusal.kind()), (404, "object.not_found"), "{}", refusal.body);
}

#[tokio::test]
async fn w05_group_filter_returns_nodes_or_fails_when_group_is_unknown() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let group = api.get("/v1/clusters/us/nodegroups/web").await["uuid"].as_str().unwrap_or_default().to_owned();
    for (query, expected) in [
        ("nodegroup=eu/web", &["n1", "n2"][..]),
        ("nodegroup=us/web", &["n3"]),
        (&format!("nodegroup={group}"), &["n3"]),
        ("nodegroup=web&cluster=us", &["n3"]),
    ] {
        assert_eq!(names(&api.get(&format!("/v1/nodes?{query}")).await, "nodes"), expected, "{query}");
    }
    for (query, status, message) in [
        ("nodegroup=web", 400, "several clusters have a group of this name: write CLUSTER/GROUP"),
        ("nodegroup=us/nosuch", 404, "could not be found"),
        ("nodegroup=nosuch", 404, "could not be found"),
    ] {
        let response = api.send("GET", &format!("/v1/nodes?{query}"), &[], None).await;
        assert!(response.status == status && response.message().contains(message), "{query}: {}", response.body);
    }
    for (group, message) in [
        ("us/wbe", "cluster us has no node group 'wbe' (did you mean \"web\"?)"),
        ("us/nosuch", "cluster us has no node group 'nosuch'"),
        ("nosuch/web", "there is no cluster 'nosuch'"),
        ("nosuch", "write CLUSTER/GROUP"),
    ] {
        for path in ["nodes", "join-tokens"] {
            let response = api.send("GET", &format!("/v1/{path}?nodegroup={group}"), &[], None).await;
            assert_eq!(response.body["error"]["detail"], message, "{path} {group}: {}", response.body);
        }
        let response = api.send("POST", "/v1/join-tokens", &[], Some(&json!({"nodegroup": group}))).await;
        assert_eq!(response.body["error"]["detail"], message, "{group}: {}", response.body);
    }
}

/// The filter `role` selects groups by their role in Magnum's API, or by a role that they give to their nodes. As in
/// Magnum, a group for which no role was set in that API is a `worker`.
#[tokio::test]
async fn w05_group_list_filters_by_role() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let release = json!({"name": "r", "roles": {"web": {}}});
    api.expect("POST", "/v1/releases", &release, 201).await;
    let roles = json!({"release": "r", "roles": ["web"]});
    let response = api.send("PATCH", "/v1/clusters/eu/nodegroups/web", MERGE, Some(&roles)).await;
    assert_eq!(response.status, 200, "{}", response.body);
    for (role, expected) in [("web", &["web"][..]), ("worker", &["web"]), ("db", &[])] {
        let list = api.get(&format!("/v1/clusters/eu/nodegroups?role={role}")).await;
        assert_eq!(names(&list, "nodegroups"), expected, "{role}");
    }
    // If the release itself declares a role with the name of Magnum's default, groups without that role are not listed.
    let release = json!({"name": "r2", "roles": {"web": {}, "worker": {}}});
    api.expect("POST", "/v1/releases", &release, 201).await;
    apply(&api, json!([{"kind": "NodeGroup", "cluster": "eu", "name": "jobs", "roles": ["worker"]}]), "").await;
    let response = api.send("PATCH", "/v1/clusters/eu", MERGE, Some(&json!({"release": "r2"}))).await;
    assert_eq!(response.status, 200, "{}", response.body);
    for (role, expected) in [("worker", "jobs"), ("web", "web")] {
        let list = api.get(&format!("/v1/clusters/eu/nodegroups?role={role}")).await;
        assert_eq!(names(&list, "nodegroups"), [expected], "{role}");
    }
}

/// As in Magnum, the `node_count` of a cluster does not include masters (nodes in groups with Magnum's role `master`).
/// A cluster that was created by Magnum's API shows the requested count until it has a node.
#[tokio::test]
async fn w05_group_shows_node_count() {
    let api = TestApi::start().await;
    create_site(&api).await;
    assert_eq!(api.get("/v1/clusters/eu/nodegroups/web").await["node_count"], 2);
    apply(&api, json!([{"kind": "NodeGroup", "cluster": "eu", "name": "empty"}]), "").await;
    assert_eq!(api.get("/v1/clusters/eu/nodegroups/empty").await["node_count"], 0);
    apply(&api, json!([{"kind": "Cluster", "name": "bare"}]), "").await;
    for (cluster, nodes) in [("eu", 2), ("us", 1), ("bare", 0)] {
        assert_eq!(api.get(&format!("/v1/clusters/{cluster}")).await["node_count"], nodes, "{cluster}");
    }
    // A new cluster shows the count that Magnum's client sent, until the cluster has a node.
    let magnum_body = json!({"name": "big", "cluster_template_id": "base", "node_count": 3});
    api.expect("POST", "/v1/clusters", &magnum_body, 202).await;
    assert_eq!(api.get("/v1/clusters/big").await["node_count"], 3);
    api.expect("POST", "/v1/clusters", &json!({"name": "one", "cluster_template_id": "base"}), 202).await;
    assert_eq!(api.get("/v1/clusters/one").await["node_count"], 1, "the default of Magnum is one");
    let nodes = json!([{"kind": "Node", "name": "n8", "nodegroup": "big/default-worker"},
        {"kind": "Node", "name": "n9", "nodegroup": "big/default-master"}]);
    apply(&api, nodes, "").await;
    let big_cluster = api.get("/v1/clusters/big").await;
    assert_eq!(
        (&big_cluster["node_count"], &big_cluster["master_count"]),
        (&json!(1), &json!(1)),
        "masters are counted separately"
    );
    let list = api.get("/v1/clusters").await;
    let summary = list["clusters"].as_array().unwrap().iter().find(|summary| summary["name"] == "eu").unwrap().clone();
    assert_eq!(summary["node_count"], 2);
}

/// The manifest leaves out the template, so the cluster and its two nodes lose the labels of the template. A dry run
/// lists the same changes as the apply.
#[tokio::test]
async fn w06_apply_names_changed_fields_and_lost_labels() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let manifest = json!([{"kind": "Cluster", "name": "eu", "paused": true}]);
    for query in ["&dry_run=true", ""] {
        let response = apply(&api, manifest.clone(), query).await;
        assert_eq!(
            response["objects"][0]["changes"],
            json!([{"field": "cluster_template", "old": "base"}, {"field": "paused", "new": true}]),
            "{query}"
        );
        assert_eq!(response["lost_labels"], json!({"ntp": 2, "tier": 2}), "{query}");
    }
    let repeated = apply(&api, manifest, "").await;
    assert_eq!((&repeated["objects"][0]["changes"], &repeated["lost_labels"]), (&json!([]), &json!({})));
    let created = apply(&api, json!([{"kind": "Cluster", "name": "new", "labels": {"a": "b"}}]), "").await;
    assert_eq!(created["objects"][0].get("changes"), None, "the response lists no changes of a new object");
}

#[tokio::test]
async fn w12_level_shows_inherited_release_and_mode() {
    let api = TestApi::start().await;
    create_site(&api).await;
    api.expect("POST", "/v1/releases", &json!({"name": "r"}), 201).await;
    let template_with_release = json!([{"kind": "ClusterTemplate", "name": "base", "release": "r", "labels": {"ntp": "a"}}]);
    api.expect("POST", "/v1/apply?manager=git&force=true", &json!({"objects": template_with_release}), 200).await;
    for (path, release) in [("/v1/clusters/eu", json!("r")), ("/v1/clusters/us", Value::Null)] {
        assert_eq!(api.get(path).await["effective_release"], release, "{path}");
        let group = api.get(&format!("{path}/nodegroups/web")).await;
        assert_eq!((&group["effective_release"], &group["effective_mode"]), (&release, &json!("apply")), "{path}");
    }
}

/// A second manager applies the same values. It becomes an owner of the label, which is the only change. The cluster
/// `us` has no field to own.
#[tokio::test]
async fn w06_apply_reports_ownership_change_when_values_are_equal() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let same_values = json!({"objects": [{"kind": "ClusterTemplate", "name": "base", "labels": {"ntp": "a"}}, {"kind": "Cluster", "name": "us"}]});
    let response = api.expect("POST", "/v1/apply?manager=ops", &same_values, 200).await;
    let owners = json!([{"field": "owners", "old": ["git:apply"], "new": ["git:apply", "ops:apply"]}]);
    assert_eq!((&response["objects"][0]["action"], &response["objects"][0]["changes"]), (&json!("updated"), &owners));
    assert_eq!((&response["objects"][1]["action"], &response["objects"][1]["changes"]), (&json!("unchanged"), &json!([])));
}

/// A dry run lists the same changes as the write. `lost_labels` has the number of nodes that lose each label.
#[tokio::test]
async fn w06_single_write_names_changed_fields() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let body = json!({"merge_labels": false, "description": null});
    for path in ["/v1/clusters/eu/nodegroups/web?dry_run=true", "/v1/clusters/eu/nodegroups/web"] {
        let response = api.send("PATCH", path, MERGE, Some(&body)).await;
        assert_eq!(
            response.body["changes"],
            json!([{"field": "description", "old": "x"}, {"field": "merge_labels", "old": true, "new": false}])
        );
        assert_eq!(response.body["lost_labels"], json!({"ntp": 2, "tier": 2}), "{path}");
    }
    let move_response = api.send("PATCH", "/v1/nodes/n1", MERGE, Some(&json!({"nodegroup": "us/web"}))).await;
    assert_eq!(move_response.body["changes"], json!([{"field": "nodegroup", "old": "eu/web", "new": "us/web"}]));
    assert_eq!(move_response.body["lost_labels"], json!({"rack": 1}));
    let tombstone_response = api.expect("POST", "/v1/nodes/n2/labels/tombstones", &json!({"keys": ["rack"]}), 200).await;
    assert_eq!(tombstone_response["lost_labels"], json!({"rack": 1}));
    let magnum_headers = [("openstack-api-version", "container-infra 1.14"), MERGE[0]];
    let response = api.send("PATCH", "/v1/clusters/eu/nodegroups/web", &magnum_headers, Some(&json!({"paused": true}))).await;
    assert_eq!((response.status, response.body.get("changes")), (200, None), "Magnum's clients get only Magnum's fields");
}

/// A manager that returns a field to its default owns the field. An apply with another value is then a conflict. A
/// plain write of the default by another manager is not a conflict, until an apply with `force` sets another value.
#[tokio::test]
async fn y05_default_value_is_owned_by_author_when_reset() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let patch = async |manager: &str, body: &Value| {
        api.send("PATCH", &format!("/v1/clusters/eu?force=false&manager={manager}"), MERGE, Some(body)).await.status
    };
    let generation = async || api.get("/v1/clusters/eu").await["generation"].as_u64().unwrap();
    let (pause, resume) = (json!({"paused": true}), json!({"paused": false}));
    let generation_before = generation().await;
    assert_eq!((patch("ann", &resume).await, generation().await), (200, generation_before), "the field has this value already");
    assert_eq!((patch("ann", &pause).await, patch("bob", &resume).await), (200, 409), "a field that was changed has an owner");
    assert_eq!(patch("ann", &resume).await, 200);
    assert_eq!(patch("bob", &resume).await, 200, "the field has this value already");
    let manifest = |paused: bool| json!({"objects": [{"kind": "Cluster", "name": "eu", "paused": paused}]});
    let refusal = api.send("POST", "/v1/apply?manager=git", &[], Some(&manifest(true))).await;
    assert_eq!((refusal.status, refusal.kind()), (409, "label.conflict"), "{}", refusal.body);
    api.expect("POST", "/v1/apply?manager=git", &manifest(false), 200).await;
    api.expect("POST", "/v1/apply?manager=git&force=true", &manifest(true), 200).await;
    assert_eq!(patch("ann", &resume).await, 409, "git owns the field now");
}

/// Returns the names of the changed fields that a response lists.
fn changed_fields(response: &Value) -> Vec<&str> {
    response["changes"].as_array().expect("a list").iter().map(|change| change["field"].as_str().expect("a field")).collect()
}

/// Each expected text begins the name of a changed field. A dry run lists the same changes as the write.
#[tokio::test]
async fn w06_subresource_writes_name_changed_fields() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let release = json!({"name": "r", "roles": {"db": {"tags": ["mysql"]}}, "tags": {"mysql": {}}});
    api.expect("POST", "/v1/releases", &release, 201).await;
    let response = api.send("PATCH", "/v1/clusters/eu", MERGE, Some(&json!({"release": "r"}))).await;
    assert_eq!(response.status, 200, "{}", response.body);
    for (method, path, body, expected, status) in [
        ("POST", "/v1/nodes/n1/roles", json!({"roles": ["db"]}), &["roles", "tags.effective"][..], 200),
        ("POST", "/v1/nodes/n1/tags", json!({"assign": ["mysql"]}), &["tags.assigned"], 200),
        ("DELETE", "/v1/nodes/n1/tags", json!({"tags": ["mysql"]}), &["tags.assigned", "tags.unassigned"], 200),
        ("PUT", "/v1/nodes/n1/traits", json!({"traits": ["CUSTOM_A"]}), &["traits"], 200),
        ("PUT", "/v1/clusters/eu/roles", json!({"roles": {"db": {"add_tags": ["x"]}}}), &["roles.db"], 200),
        ("POST", "/v1/clusters/eu/tags", json!({"name": "own", "title": "o"}), &["tags.own"], 201),
        ("POST", "/v1/releases/r/tags", json!({"name": "beside"}), &["tags.beside"], 201),
        ("PUT", "/v1/releases/r/tags/beside", json!({"title": "b"}), &["tags.beside.title"], 200),
        ("DELETE", "/v1/nodes/n1/roles", json!({"roles": ["db"]}), &["roles", "tags.effective"], 200),
    ] {
        let dry_run = api.expect(method, &format!("{path}?dry_run=true"), &body, status).await;
        let fields: Vec<&str> = changed_fields(&dry_run);
        assert!(expected.iter().all(|field| fields.iter().any(|name| name.starts_with(field))), "{method} {path}: {fields:?}");
        assert_eq!(dry_run["lost_labels"], json!({}), "{method} {path}");
        let write_response = api.expect(method, path, &body, status).await;
        assert_eq!(write_response["changes"], dry_run["changes"], "{method} {path}");
    }
    let ironic = [("x-openstack-ironic-api-version", "1.37")];
    let response = api.send("PUT", "/v1/nodes/n1/traits", &ironic, Some(&json!({"traits": ["CUSTOM_C"]}))).await;
    assert_eq!(response.body, json!({"traits": ["CUSTOM_C"]}), "Ironic's clients get only Ironic's fields");
}

#[tokio::test]
async fn w06_write_returns_changes_when_representation_is_preferred() {
    let api = TestApi::start().await;
    create_site(&api).await;
    api.expect("POST", "/v1/releases", &json!({"name": "r"}), 201).await;
    let response = api.send("PATCH", "/v1/clusters/eu", MERGE, Some(&json!({"release": "r"}))).await;
    assert_eq!(response.status, 200, "{}", response.body);
    api.expect("POST", "/v1/clusters/eu/tags", &json!({"name": "own"}), 201).await;
    api.expect("POST", "/v1/clusters/eu/tags", &json!({"name": "other"}), 201).await;
    let n1: String = api.get("/v1/nodes/n1").await["uuid"].as_str().expect("a uuid").to_owned();
    let traits = |old: &[&str], new: &[&str]| json!([{"field": "traits", "old": old, "new": new}]);
    let tags = |old: &[&str], new: &[&str]| json!([{"field": "tags.assigned", "old": old, "new": new}, {"field": "tags.effective", "old": old, "new": new}]);
    for (method, path, expected) in [
        ("PUT", "/v1/nodes/n1/traits/CUSTOM_A", traits(&[], &["CUSTOM_A"])),
        ("PUT", "/v1/nodes/n1/traits/CUSTOM_B", traits(&["CUSTOM_A"], &["CUSTOM_A", "CUSTOM_B"])),
        ("DELETE", "/v1/nodes/n1/traits/CUSTOM_A", traits(&["CUSTOM_A", "CUSTOM_B"], &["CUSTOM_B"])),
        ("DELETE", "/v1/nodes/n1/traits", traits(&["CUSTOM_B"], &[])),
        ("PUT", "/v1/nodes/n1/tags/own", tags(&[], &["own"])),
        ("DELETE", "/v1/nodes/n1/tags/own", tags(&["own"], &[])),
        ("DELETE", "/v1/clusters/eu/tags/other", json!([{"field": "tags.other", "old": {}}])),
    ] {
        let headers = &[("prefer", r#"respond-async, Return="representation""#)];
        let dry_run = api.send(method, &format!("{path}?dry_run=true"), headers, None).await;
        assert_eq!(dry_run.status, 200, "{method} {path}: {}", dry_run.body);
        let hosts = dry_run.body["hosts"].as_array().expect("a list");
        assert!(!path.contains("nodes/n1/") || hosts == &[json!(n1)], "{path}: {hosts:?}");
        let write_response = api.send(method, path, headers, None).await;
        assert_eq!((write_response.status, write_response.body.get("hosts")), (200, None), "{method} {path}");
        let actual = (&write_response.body["changes"], &write_response.body["lost_labels"]);
        assert_eq!(actual, (&dry_run.body["changes"], &json!({})), "{method} {path}");
        assert_eq!(actual.0, &expected, "{method} {path}");
        let preferences = (dry_run.preference_applied.as_deref(), write_response.preference_applied.as_deref());
        assert_eq!(preferences, (Some("return=representation"), Some("return=representation")), "{method} {path}");
    }
    let without_preference = api.send("PUT", "/v1/nodes/n1/traits/CUSTOM_A", &[], None).await;
    assert_eq!(
        (without_preference.status, without_preference.body, without_preference.preference_applied),
        (204, Value::Null, None),
        "without the preference, the response has no body"
    );
    let deletion = api.send("DELETE", "/v1/nodes/n1", &[("prefer", "return=representation")], None).await;
    let fields: Vec<&str> = changed_fields(&deletion.body);
    assert!(["name", "nodegroup", "traits"].iter().all(|field| fields.contains(field)), "{fields:?}");
    assert!(
        deletion.body["changes"].as_array().expect("a list").iter().all(|change| change.get("new").is_none()),
        "{}",
        deletion.body
    );
    assert_eq!(api.send("DELETE", "/v1/nodes/n2", &[], None).await.status, 204);
}

/// Clients of Ironic (`baremetal`) and of Magnum (`container-infra`) name their API in a header. Without the header,
/// the document is for Ironic.
#[tokio::test]
async fn w07_version_document_names_newest_version_of_requested_api() {
    let api = TestApi::start().await;
    for (headers, newest) in [
        (&[][..], "1.115"),
        (&[("x-openstack-ironic-api-version", "1.37")], "1.115"),
        (&[("openstack-api-version", "baremetal 1.37")], "1.115"),
        (&[("openstack-api-version", "container-infra latest")], "1.14"),
    ] {
        let document = api.send("GET", "/v1", headers, None).await.body;
        let version = &document["version"];
        assert_eq!((&version["version"], &version["max_version"]), (&json!("1.115"), &json!(newest)), "{headers:?}");
        let root_document = api.send("GET", "/", headers, None).await.body;
        assert_eq!((&root_document["default_version"], &root_document["versions"][0]), (version, version), "{headers:?}");
    }
}

/// A JSON patch replaces only what exists. A field of the object exists also while it has its default value.
#[tokio::test]
async fn w07_patch_replaces_field_when_at_default() {
    let api = TestApi::start().await;
    create_site(&api).await;
    for (path, field, value) in [
        ("/v1/nodes/n1", "description", json!("x")),
        ("/v1/nodes/n1", "properties", json!({"memory_mb": 1})),
        ("/v1/nodes/n1", "mode", json!("noop")),
        ("/v1/clusters/eu/nodegroups/web", "min_ready_seconds", json!(5)),
        ("/v1/clusters/eu/nodegroups/web", "merge_labels", json!(false)),
        ("/v1/clustertemplates/base", "description", json!("y")),
    ] {
        let patch = json!([{"op": "replace", "path": format!("/{field}"), "value": value}]);
        let response = api.send("PATCH", path, &[], Some(&patch)).await;
        assert!(response.status < 300, "{path} {field}: {}", response.body);
        assert_eq!(api.get(path).await[field], value, "{path} {field}");
    }
    for invalid_path in ["/nosuch", "/properties/cpus"] {
        let patch = json!([{"op": "replace", "path": invalid_path, "value": 1}]);
        assert_eq!(api.send("PATCH", "/v1/nodes/n1", &[], Some(&patch)).await.status, 400, "{invalid_path}");
    }
    let patch = json!([{"op": "remove", "path": "/hold"}]);
    assert_eq!(api.send("PATCH", "/v1/nodes/n1", &[], Some(&patch)).await.status, 400, "the node has no hold");
}

#[tokio::test]
async fn w07_allow_header_names_methods_of_path() {
    let api = TestApi::start().await;
    create_site(&api).await;
    for (method, path, allow) in [
        ("POST", "/v1/nodes/n1/traits", Some("GET, PUT, DELETE")),
        ("PATCH", "/v1/nodes/n1/roles", Some("GET, POST, PUT, DELETE")),
        ("PATCH", "/v1/clusters/eu/tags", Some("GET, POST")),
        ("PUT", "/v1/clusters/eu/nodegroups", Some("GET, POST")),
        ("GET", "/v1/nodes/n1/labels", Some("PUT, PATCH")),
        ("DELETE", "/v1/nodes/n1/resolved", Some("GET")),
        ("POST", "/v1/nodes/n1", Some("GET, PATCH, DELETE")),
        ("POST", "/v1/clusters/detail", Some("GET")),
        ("POST", "/v1/nodes/detail", Some("GET")),
        ("DELETE", "/v1/nodes/n1/nosuch", None),
        ("GET", "/v1/clusters/eu/nosuch", None),
    ] {
        let response = api.send(method, path, &[], None).await;
        let message = allow.map(|allow| format!("this path takes {allow}"));
        let expected = (if allow.is_some() { 405 } else { 404 }, message.as_deref());
        assert_eq!((response.status, message.as_ref().map(|_| response.message())), expected, "{method} {path}");
        assert_eq!(response.allow.as_deref(), allow, "{method} {path}");
    }
}

/// The warning describes three of 600 tasks, and counts the others.
#[tokio::test]
async fn w11_warning_stays_short_when_edit_affects_many_tasks() {
    let api = TestApi::start().await;
    let task = |number: usize| {
        let parameters = json!({"path": format!("/etc/a-task-with-a-long-name-{number:04}"), "template": "{{ labels.tier }}"});
        json!({"id": format!("a-task-with-a-long-name-{number:04}"), "type": "file", "roles": ["web"], "parameters": parameters})
    };
    let tasks: Vec<Value> = (0..600).map(task).collect();
    let objects = json!([
        {"kind": "Release", "name": "r", "roles": {"web": {}}, "tasks": tasks},
        {"kind": "Cluster", "name": "eu", "release": "r"},
        {"kind": "NodeGroup", "cluster": "eu", "name": "web", "roles": ["web"], "labels": {"tier": "gold"}},
        {"kind": "Node", "name": "n1", "nodegroup": "eu/web"},
    ]);
    apply(&api, objects, "").await;
    let body = json!({"labels": {"tier": null}});
    let path = "/v1/clusters/eu/nodegroups/web/labels";
    let response = api.send("PATCH", &format!("{path}?dry_run=true&manager=git"), MERGE, Some(&body["labels"])).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let warning = response.warning.expect("a warning about the missing label");
    assert!(warning.contains("lacks `labels.tier`") && warning.contains("and 597 more fail"), "{warning}");
    // Proxies refuse or cut a response whose headers exceed 4 KiB.
    assert!(warning.len() < 1_000, "{} bytes", warning.len());
}

/// An unassignment of a tag ends when the node loses the last role that produces the tag. This test removes the role by
/// a call. An unassignment of a tag that no role produced before the write remains, after a call and after an apply.
#[tokio::test]
async fn unassignment_ends_only_when_role_of_tag_is_removed() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let release = json!({"name": "r", "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["http"]}},
        "tags": {"mysql": {}, "http": {}}});
    api.expect("POST", "/v1/releases", &release, 201).await;
    let response = api.send("PATCH", "/v1/clusters/eu", MERGE, Some(&json!({"release": "r"}))).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let node = |name: &str, roles: &[&str]| json!({"kind": "Node", "name": name, "nodegroup": "eu/web", "tags": {"unassigned": ["mysql"]}, "roles": roles});
    apply(&api, json!([node("n1", &[]), node("n2", &[])]), "").await;
    api.expect("POST", "/v1/nodes/n1/roles", &json!({"roles": ["web"]}), 200).await;
    apply(&api, json!([node("n2", &["web"])]), "").await;
    for name in ["n1", "n2"] {
        let tags = api.get(&format!("/v1/nodes/{name}/tags")).await;
        assert_eq!(tags["unassigned"], json!(["mysql"]), "{name}");
    }
    api.expect("POST", "/v1/nodes/n1/roles", &json!({"roles": ["db"]}), 200).await;
    api.expect("DELETE", "/v1/nodes/n1/roles", &json!({"roles": ["db"]}), 200).await;
    assert_eq!(api.get("/v1/nodes/n1/tags").await["unassigned"], json!([]), "the unassignment ends with the role");
}

/// `connection` is not a field of Ironic, so only a client that sends none of Ironic's version headers gets this field.
#[tokio::test]
async fn node_has_ironic_fields_with_either_client_header() {
    let api = TestApi::start().await;
    create_site(&api).await;
    for header in [("x-openstack-ironic-api-version", "1.50"), ("openstack-api-version", "baremetal 1.50")] {
        let response = api.send("GET", "/v1/nodes/n1", &[header], None).await;
        assert_eq!((response.status, response.body.get("connection")), (200, None), "{header:?}");
        let response = api.send("GET", "/v1/nodes/n1/traits", &[header], None).await;
        assert_eq!(response.body, json!({"traits": []}), "{header:?}");
    }
    assert!(api.get("/v1/nodes/n1").await.get("connection").is_some());
}

/// Regression: an apply of one node also listed findings of its cluster about other objects. Each finding is shown as
/// its object, and the written object that caused it, if that is another one.
#[tokio::test]
async fn w11_apply_warns_only_about_findings_of_own_objects() {
    let api = TestApi::start().await;
    let finding_pairs = |response: &Value| -> Vec<(String, String)> {
        let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        let finding_pairs = response["findings"].as_array().unwrap().iter();
        finding_pairs.map(|finding| (text(finding, "object"), text(finding, "written"))).collect()
    };
    let pair = |object: &str, written: &str| (object.to_owned(), written.to_owned());
    let group = |name: &str, roles: Value| json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": roles, "mend_offline": true});
    let node = |name: &str, group: &str, roles: Value| json!({"kind": "Node", "name": name, "nodegroup": group, "roles": roles});
    let site = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"rx": {"tags": ["x"]}, "ry": {"tags": ["y"]}},
         "tags": {"x": {}, "y": {}}, "tasks": [{"id": "t", "type": "shell", "tags": ["y"], "parameters": {"script": "true"}}]},
        {"kind": "Cluster", "name": "c", "release": "site@1"}, group("g", json!(["rx"])),
    ]);
    let site_response = apply(&api, site, "").await;
    assert_eq!(finding_pairs(&site_response), [pair("nodegroup/c/g mend_offline", "")]);
    for name in ["n1", "n2"] {
        let response = apply(&api, json!([node(name, "c/g", json!([]))]), "").await;
        assert_eq!(finding_pairs(&response), [], "earlier findings, and a tag without a holder, are not findings of {name}");
    }
    let n3_response = apply(&api, json!([node("n3", "c/g", json!(["nosuch"]))]), "").await;
    assert_eq!(finding_pairs(&n3_response), [pair("node/n3", "")]);
    let group_findings = apply(&api, json!([group("g", json!(["ry"]))]), "").await;
    let group_findings = finding_pairs(&group_findings);
    assert!(
        group_findings.contains(&pair("cluster/c tag/x", "nodegroup/c/g")),
        "the edit of the group left tag x without a holder: {group_findings:?}"
    );
    assert!(group_findings.contains(&pair("nodegroup/c/g mend_offline", "")), "{group_findings:?}");
    assert!(!group_findings.contains(&pair("node/n3", "")), "{group_findings:?}");
    let cluster_findings = api.get("/v1/clusters/c/validate").await;
    let cluster_findings = finding_pairs(&cluster_findings);
    assert!(
        cluster_findings.contains(&pair("node/n3", "")) && cluster_findings.contains(&pair("cluster/c tag/x", "")),
        "{cluster_findings:?}"
    );
}

/// Regression: the response to an edit of a release did not mention groups without hosts, or roles that produce
/// nothing.
#[tokio::test]
async fn release_edit_warns_about_orphaned_tasks_and_lost_tags() {
    let api = TestApi::start().await;
    let tasks = json!([
        {"id": "conf", "type": "shell", "tags": ["http"], "parameters": {"script": "true"}},
        {"id": "site", "type": "shell", "tags": ["base"], "parameters": {"script": "true"}},
    ]);
    let (tags, roles) = (json!({"http": {}, "base": {}}), json!({"web": {"tags": ["http", "base"]}, "bare": {"tags": []}}));
    let objects = json!([
        {"kind": "Release", "name": "r", "roles": roles, "tags": tags, "tasks": tasks},
        {"kind": "Cluster", "name": "eu", "release": "r"},
        {"kind": "NodeGroup", "cluster": "eu", "name": "web", "roles": ["web"]},
        {"kind": "Node", "name": "n1", "nodegroup": "eu/web"},
        {"kind": "Node", "name": "n2", "nodegroup": "eu/web"},
        {"kind": "Cluster", "name": "us", "release": "r"},
        {"kind": "NodeGroup", "cluster": "us", "name": "empty", "roles": ["bare"]},
    ]);
    apply(&api, objects, "").await;
    let orphaned_message =
        |tasks: &str, run: &str| format!("node/n1: {tasks} no longer {run} on it and on 1 other node: the changes there remain");
    let no_holder_message = "cluster/eu tag/http: no node holds tag http, which release r declares".to_owned();
    let undeclared_message = "nodegroup/us/empty: has role bare, which release r does not declare: it produces no tag".to_owned();
    let patch = |field: &str, value: Value| json!([{"op": "replace", "path": format!("/{field}"), "value": value}]);
    let fewer_tags = json!({"web": {"tags": ["base"]}, "bare": {"tags": []}});
    for (content, body, expected) in [
        ("merge-patch", json!({"tasks": [tasks[1]]}), vec![orphaned_message("task conf", "runs")]),
        ("merge-patch", json!({"tasks": []}), vec![orphaned_message("tasks conf, site", "run")]),
        ("json-patch", patch("roles", fewer_tags.clone()), vec![orphaned_message("task conf", "runs"), no_holder_message]),
        ("json-patch", json!([{"op": "remove", "path": "/roles/bare"}]), vec![undeclared_message.clone()]),
        ("merge-patch", json!({"roles": {"bare": null}}), vec![undeclared_message]),
        ("merge-patch", json!({"description": "as it was"}), vec![]),
    ] {
        let headers = [("content-type", &*format!("application/{content}+json"))];
        let response = api.send("PATCH", "/v1/releases/r?dry_run=true", &headers, Some(&body)).await;
        assert_eq!(response.status, 200, "{body}: {}", response.body);
        let findings = response.body["findings"].as_array().expect("a list");
        let text = |finding: &Value, field: &str| finding[field].as_str().expect("a text").to_owned();
        let findings: Vec<String> =
            findings.iter().map(|finding| text(finding, "object") + ": " + &text(finding, "message")).collect();
        let warning = response.warning.unwrap_or_default();
        for message in &expected {
            assert!(findings.contains(message), "{body}: {findings:?}");
            assert!(warning.contains(message), "{body}: {warning}");
        }
        assert_eq!((expected.is_empty(), findings.is_empty()), (warning.is_empty(), warning.is_empty()), "{body}: {findings:?}");
    }
    // An apply lists the same findings.
    let manifest =
        json!([{"kind": "Release", "name": "r", "roles": {"web": {"tags": ["http", "base"]}}, "tags": tags, "tasks": tasks}]);
    let apply_response = apply(&api, manifest, "&dry_run=true").await;
    let findings = apply_response["findings"].as_array().expect("a list");
    assert!(
        findings.iter().any(|finding| finding["object"] == "nodegroup/us/empty" && finding["code"] == "role.unknown"),
        "{findings:?}"
    );
}
