//! The changes that the response to a write lists, the content of documents and lists, and the methods that a path
//! accepts.

use serde_json::{Value, json};

use crate::served::TestApi;

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];

async fn apply(served: &TestApi, objects: Value, query: &str) -> Value {
    served.expect("POST", &format!("/v1/apply?manager=git{query}"), &json!({"objects": objects}), 200).await
}

/// Creates a template, a cluster of it, a group, and two nodes in the group.
async fn site(served: &TestApi) {
    let objects = json!([
        {"kind": "ClusterTemplate", "name": "base", "labels": {"ntp": "a", "tier": "standard"}},
        {"kind": "Cluster", "name": "eu", "cluster_template": "base"},
        {"kind": "NodeGroup", "cluster": "eu", "name": "web", "roles": [], "labels": {"rack": "7"}, "description": "x"},
        {"kind": "Node", "name": "n1", "nodegroup": "eu/web"},
        {"kind": "Node", "name": "n2", "nodegroup": "eu/web"},
        {"kind": "Cluster", "name": "us"}, {"kind": "NodeGroup", "cluster": "us", "name": "web"},
        {"kind": "Node", "name": "n3", "nodegroup": "us/web"},
    ]);
    apply(served, objects, "").await;
}

fn names(list: &Value, kind: &str) -> Vec<String> {
    list[kind].as_array().expect("a list").iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn w05_cluster_filter_returns_nodes_or_fails_when_cluster_is_unknown() {
    let served = TestApi::start().await;
    site(&served).await;
    assert_eq!(names(&served.get("/v1/nodes?cluster=us").await, "nodes"), ["n3"]);
    assert_eq!(names(&served.get("/v1/nodes/detail?cluster=eu").await, "nodes"), ["n1", "n2"]);
    let missing = served.send("GET", "/v1/nodes?cluster=nosuch", &[], None).await;
    assert_eq!((missing.status, missing.kind()), (404, "object.not_found"), "{}", missing.body);
}

#[tokio::test]
async fn w05_group_filter_returns_nodes_or_fails_when_group_is_unknown() {
    let served = TestApi::start().await;
    site(&served).await;
    let group = served.get("/v1/clusters/us/nodegroups/web").await["uuid"].as_str().unwrap_or_default().to_owned();
    for (query, found) in [
        ("nodegroup=eu/web", &["n1", "n2"][..]),
        ("nodegroup=us/web", &["n3"]),
        (&format!("nodegroup={group}"), &["n3"]),
        ("nodegroup=web&cluster=us", &["n3"]),
    ] {
        assert_eq!(names(&served.get(&format!("/v1/nodes?{query}")).await, "nodes"), found, "{query}");
    }
    for (query, status, said) in [
        ("nodegroup=web", 400, "several clusters have a group of this name: write CLUSTER/GROUP"),
        ("nodegroup=us/nosuch", 404, "could not be found"),
        ("nodegroup=nosuch", 404, "could not be found"),
    ] {
        let answer = served.send("GET", &format!("/v1/nodes?{query}"), &[], None).await;
        assert!(answer.status == status && answer.message().contains(said), "{query}: {}", answer.body);
    }
    for (group, said) in [
        ("us/wbe", "cluster us has no node group 'wbe' (did you mean \"web\"?)"),
        ("us/nosuch", "cluster us has no node group 'nosuch'"),
        ("nosuch/web", "there is no cluster 'nosuch'"),
        ("nosuch", "write CLUSTER/GROUP"),
    ] {
        for path in ["nodes", "join-tokens"] {
            let answer = served.send("GET", &format!("/v1/{path}?nodegroup={group}"), &[], None).await;
            assert_eq!(answer.body["error"]["detail"], said, "{path} {group}: {}", answer.body);
        }
        let answer = served.send("POST", "/v1/join-tokens", &[], Some(&json!({"nodegroup": group}))).await;
        assert_eq!(answer.body["error"]["detail"], said, "{group}: {}", answer.body);
    }
}

#[tokio::test]
async fn w05_group_list_filters_by_role() {
    let served = TestApi::start().await;
    site(&served).await;
    let release = json!({"name": "r", "roles": {"web": {}}});
    served.expect("POST", "/v1/releases", &release, 201).await;
    let roles = json!({"release": "r", "roles": ["web"]});
    let answer = served.send("PATCH", "/v1/clusters/eu/nodegroups/web", MERGE, Some(&roles)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (role, found) in [("web", &["web"][..]), ("worker", &["web"]), ("db", &[])] {
        let list = served.get(&format!("/v1/clusters/eu/nodegroups?role={role}")).await;
        assert_eq!(names(&list, "nodegroups"), found, "{role}");
    }
    // If the release itself declares a role with the name of Magnum's default, groups without that role are not listed.
    let release = json!({"name": "r2", "roles": {"web": {}, "worker": {}}});
    served.expect("POST", "/v1/releases", &release, 201).await;
    apply(&served, json!([{"kind": "NodeGroup", "cluster": "eu", "name": "jobs", "roles": ["worker"]}]), "").await;
    let answer = served.send("PATCH", "/v1/clusters/eu", MERGE, Some(&json!({"release": "r2"}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (role, found) in [("worker", "jobs"), ("web", "web")] {
        let list = served.get(&format!("/v1/clusters/eu/nodegroups?role={role}")).await;
        assert_eq!(names(&list, "nodegroups"), [found], "{role}");
    }
}

#[tokio::test]
async fn w05_group_shows_node_count() {
    let served = TestApi::start().await;
    site(&served).await;
    assert_eq!(served.get("/v1/clusters/eu/nodegroups/web").await["node_count"], 2);
    apply(&served, json!([{"kind": "NodeGroup", "cluster": "eu", "name": "empty"}]), "").await;
    assert_eq!(served.get("/v1/clusters/eu/nodegroups/empty").await["node_count"], 0);
    apply(&served, json!([{"kind": "Cluster", "name": "bare"}]), "").await;
    for (cluster, nodes) in [("eu", 2), ("us", 1), ("bare", 0)] {
        assert_eq!(served.get(&format!("/v1/clusters/{cluster}")).await["node_count"], nodes, "{cluster}");
    }
    // The count from Magnum's client is shown for a new cluster until it has a node.
    let magnums = json!({"name": "big", "cluster_template_id": "base", "node_count": 3});
    served.expect("POST", "/v1/clusters", &magnums, 202).await;
    assert_eq!(served.get("/v1/clusters/big").await["node_count"], 3);
    served.expect("POST", "/v1/clusters", &json!({"name": "one", "cluster_template_id": "base"}), 202).await;
    assert_eq!(served.get("/v1/clusters/one").await["node_count"], 1, "as Magnum makes it");
    let nodes = json!([{"kind": "Node", "name": "n8", "nodegroup": "big/default-worker"},
        {"kind": "Node", "name": "n9", "nodegroup": "big/default-master"}]);
    apply(&served, nodes, "").await;
    let big = served.get("/v1/clusters/big").await;
    assert_eq!((&big["node_count"], &big["master_count"]), (&json!(1), &json!(1)), "masters are counted apart");
    let listed = served.get("/v1/clusters").await;
    let row = listed["clusters"].as_array().unwrap().iter().find(|row| row["name"] == "eu").unwrap().clone();
    assert_eq!(row["node_count"], 2);
}

#[tokio::test]
async fn w06_apply_names_changed_fields_and_lost_labels() {
    let served = TestApi::start().await;
    site(&served).await;
    let paused = json!([{"kind": "Cluster", "name": "eu", "paused": true}]);
    for query in ["&dry_run=true", ""] {
        let answer = apply(&served, paused.clone(), query).await;
        assert_eq!(
            answer["objects"][0]["changes"],
            json!([{"field": "cluster_template", "old": "base"}, {"field": "paused", "new": true}]),
            "{query}"
        );
        assert_eq!(answer["lost_labels"], json!({"ntp": 2, "tier": 2}), "{query}");
    }
    let again = apply(&served, paused, "").await;
    assert_eq!((&again["objects"][0]["changes"], &again["lost_labels"]), (&json!([]), &json!({})));
    let made = apply(&served, json!([{"kind": "Cluster", "name": "new", "labels": {"a": "b"}}]), "").await;
    assert_eq!(made["objects"][0].get("changes"), None, "a new object is new as a whole");
}

#[tokio::test]
async fn w12_level_shows_inherited_release_and_mode() {
    let served = TestApi::start().await;
    site(&served).await;
    served.expect("POST", "/v1/releases", &json!({"name": "r"}), 201).await;
    let named = json!([{"kind": "ClusterTemplate", "name": "base", "release": "r", "labels": {"ntp": "a"}}]);
    served.expect("POST", "/v1/apply?manager=git&force=true", &json!({"objects": named}), 200).await;
    for (path, release) in [("/v1/clusters/eu", json!("r")), ("/v1/clusters/us", Value::Null)] {
        assert_eq!(served.get(path).await["effective_release"], release, "{path}");
        let group = served.get(&format!("{path}/nodegroups/web")).await;
        assert_eq!((&group["effective_release"], &group["effective_mode"]), (&release, &json!("apply")), "{path}");
    }
}

#[tokio::test]
async fn w06_apply_reports_ownership_change_when_values_are_equal() {
    let served = TestApi::start().await;
    site(&served).await;
    let same = json!({"objects": [{"kind": "ClusterTemplate", "name": "base", "labels": {"ntp": "a"}}, {"kind": "Cluster", "name": "us"}]});
    let answer = served.expect("POST", "/v1/apply?manager=ops", &same, 200).await;
    let owners = json!([{"field": "owners", "old": ["git:apply"], "new": ["git:apply", "ops:apply"]}]);
    assert_eq!((&answer["objects"][0]["action"], &answer["objects"][0]["changes"]), (&json!("updated"), &owners));
    assert_eq!((&answer["objects"][1]["action"], &answer["objects"][1]["changes"]), (&json!("unchanged"), &json!([])));
}

#[tokio::test]
async fn w06_single_write_names_changed_fields() {
    let served = TestApi::start().await;
    site(&served).await;
    let cut = json!({"merge_labels": false, "description": null});
    for path in ["/v1/clusters/eu/nodegroups/web?dry_run=true", "/v1/clusters/eu/nodegroups/web"] {
        let answer = served.send("PATCH", path, MERGE, Some(&cut)).await;
        assert_eq!(
            answer.body["changes"],
            json!([{"field": "description", "old": "x"}, {"field": "merge_labels", "old": true, "new": false}])
        );
        assert_eq!(answer.body["lost_labels"], json!({"ntp": 2, "tier": 2}), "{path}");
    }
    let moved = served.send("PATCH", "/v1/nodes/n1", MERGE, Some(&json!({"nodegroup": "us/web"}))).await;
    assert_eq!(moved.body["changes"], json!([{"field": "nodegroup", "old": "eu/web", "new": "us/web"}]));
    assert_eq!(moved.body["lost_labels"], json!({"rack": 1}));
    let stopped = served.expect("POST", "/v1/nodes/n2/labels/tombstones", &json!({"keys": ["rack"]}), 200).await;
    assert_eq!(stopped["lost_labels"], json!({"rack": 1}));
    let upstream = [("openstack-api-version", "container-infra 1.14"), MERGE[0]];
    let answer = served.send("PATCH", "/v1/clusters/eu/nodegroups/web", &upstream, Some(&json!({"paused": true}))).await;
    assert_eq!((answer.status, answer.body.get("changes")), (200, None), "Magnum's clients get Magnum's fields");
}

#[tokio::test]
async fn y05_default_value_is_owned_by_author_when_reset() {
    let served = TestApi::start().await;
    site(&served).await;
    let patch = async |manager: &str, body: &Value| {
        served.send("PATCH", &format!("/v1/clusters/eu?force=false&manager={manager}"), MERGE, Some(body)).await.status
    };
    let generation = async || served.get("/v1/clusters/eu").await["generation"].as_u64().unwrap();
    let (set, back) = (json!({"paused": true}), json!({"paused": false}));
    let before = generation().await;
    assert_eq!((patch("ann", &back).await, generation().await), (200, before), "it changes nothing");
    assert_eq!((patch("ann", &set).await, patch("bob", &back).await), (200, 409), "what is set has an owner");
    assert_eq!(patch("ann", &back).await, 200);
    assert_eq!(patch("bob", &back).await, 200, "it changes nothing");
    let stated = |paused: bool| json!({"objects": [{"kind": "Cluster", "name": "eu", "paused": paused}]});
    let refused = served.send("POST", "/v1/apply?manager=git", &[], Some(&stated(true))).await;
    assert_eq!((refused.status, refused.kind()), (409, "label.conflict"), "{}", refused.body);
    served.expect("POST", "/v1/apply?manager=git", &stated(false), 200).await;
    served.expect("POST", "/v1/apply?manager=git&force=true", &stated(true), 200).await;
    assert_eq!(patch("ann", &back).await, 409, "it was taken over");
}

/// Returns the fields that a response lists.
fn changed_fields(answer: &Value) -> Vec<&str> {
    answer["changes"].as_array().expect("a list").iter().map(|row| row["field"].as_str().expect("a field")).collect()
}

#[tokio::test]
async fn w06_subresource_writes_name_changed_fields() {
    let served = TestApi::start().await;
    site(&served).await;
    let release = json!({"name": "r", "roles": {"db": {"tags": ["mysql"]}}, "tags": {"mysql": {}}});
    served.expect("POST", "/v1/releases", &release, 201).await;
    let answer = served.send("PATCH", "/v1/clusters/eu", MERGE, Some(&json!({"release": "r"}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (method, path, body, listed, status) in [
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
        let tried = served.expect(method, &format!("{path}?dry_run=true"), &body, status).await;
        let found: Vec<&str> = changed_fields(&tried);
        assert!(listed.iter().all(|field| found.iter().any(|one| one.starts_with(field))), "{method} {path}: {found:?}");
        assert_eq!(tried["lost_labels"], json!({}), "{method} {path}");
        let made = served.expect(method, path, &body, status).await;
        assert_eq!(made["changes"], tried["changes"], "{method} {path}");
    }
    let ironic = [("x-openstack-ironic-api-version", "1.37")];
    let answer = served.send("PUT", "/v1/nodes/n1/traits", &ironic, Some(&json!({"traits": ["CUSTOM_C"]}))).await;
    assert_eq!(answer.body, json!({"traits": ["CUSTOM_C"]}), "Ironic's clients get Ironic's fields");
}

#[tokio::test]
async fn w06_write_returns_changes_when_representation_is_preferred() {
    let served = TestApi::start().await;
    site(&served).await;
    served.expect("POST", "/v1/releases", &json!({"name": "r"}), 201).await;
    let answer = served.send("PATCH", "/v1/clusters/eu", MERGE, Some(&json!({"release": "r"}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    served.expect("POST", "/v1/clusters/eu/tags", &json!({"name": "own"}), 201).await;
    served.expect("POST", "/v1/clusters/eu/tags", &json!({"name": "other"}), 201).await;
    let n1: String = served.get("/v1/nodes/n1").await["uuid"].as_str().expect("a uuid").to_owned();
    let traits = |old: &[&str], new: &[&str]| json!([{"field": "traits", "old": old, "new": new}]);
    let tags = |old: &[&str], new: &[&str]| json!([{"field": "tags.assigned", "old": old, "new": new}, {"field": "tags.effective", "old": old, "new": new}]);
    for (method, path, listed) in [
        ("PUT", "/v1/nodes/n1/traits/CUSTOM_A", traits(&[], &["CUSTOM_A"])),
        ("PUT", "/v1/nodes/n1/traits/CUSTOM_B", traits(&["CUSTOM_A"], &["CUSTOM_A", "CUSTOM_B"])),
        ("DELETE", "/v1/nodes/n1/traits/CUSTOM_A", traits(&["CUSTOM_A", "CUSTOM_B"], &["CUSTOM_B"])),
        ("DELETE", "/v1/nodes/n1/traits", traits(&["CUSTOM_B"], &[])),
        ("PUT", "/v1/nodes/n1/tags/own", tags(&[], &["own"])),
        ("DELETE", "/v1/nodes/n1/tags/own", tags(&["own"], &[])),
        ("DELETE", "/v1/clusters/eu/tags/other", json!([{"field": "tags.other", "old": {}}])),
    ] {
        let prefers = &[("prefer", r#"respond-async, Return="representation""#)];
        let tried = served.send(method, &format!("{path}?dry_run=true"), prefers, None).await;
        assert_eq!(tried.status, 200, "{method} {path}: {}", tried.body);
        let hosts = tried.body["hosts"].as_array().expect("a list");
        assert!(!path.contains("nodes/n1/") || hosts == &[json!(n1)], "{path}: {hosts:?}");
        let made = served.send(method, path, prefers, None).await;
        assert_eq!((made.status, made.body.get("hosts")), (200, None), "{method} {path}");
        let told = (&made.body["changes"], &made.body["lost_labels"]);
        assert_eq!(told, (&tried.body["changes"], &json!({})), "{method} {path}");
        assert_eq!(told.0, &listed, "{method} {path}");
        let applied = (tried.preference_applied.as_deref(), made.preference_applied.as_deref());
        assert_eq!(applied, (Some("return=representation"), Some("return=representation")), "{method} {path}");
    }
    let plain = served.send("PUT", "/v1/nodes/n1/traits/CUSTOM_A", &[], None).await;
    assert_eq!((plain.status, plain.body, plain.preference_applied), (204, Value::Null, None), "nobody else gets a body");
    let gone = served.send("DELETE", "/v1/nodes/n1", &[("prefer", "return=representation")], None).await;
    let found: Vec<&str> = changed_fields(&gone.body);
    assert!(["name", "nodegroup", "traits"].iter().all(|field| found.contains(field)), "{found:?}");
    assert!(gone.body["changes"].as_array().expect("a list").iter().all(|one| one.get("new").is_none()), "{}", gone.body);
    assert_eq!(served.send("DELETE", "/v1/nodes/n2", &[], None).await.status, 204);
}

#[tokio::test]
async fn w07_version_document_names_newest_version_of_requested_api() {
    let served = TestApi::start().await;
    for (headers, newest) in [
        (&[][..], "1.115"),
        (&[("x-openstack-ironic-api-version", "1.37")], "1.115"),
        (&[("openstack-api-version", "baremetal 1.37")], "1.115"),
        (&[("openstack-api-version", "container-infra latest")], "1.14"),
    ] {
        let document = served.send("GET", "/v1", headers, None).await.body;
        let version = &document["version"];
        assert_eq!((&version["version"], &version["max_version"]), (&json!("1.115"), &json!(newest)), "{headers:?}");
        let listed = served.send("GET", "/", headers, None).await.body;
        assert_eq!((&listed["default_version"], &listed["versions"][0]), (version, version), "{headers:?}");
    }
}

#[tokio::test]
async fn w07_patch_replaces_field_when_at_default() {
    let served = TestApi::start().await;
    site(&served).await;
    for (path, field, value) in [
        ("/v1/nodes/n1", "description", json!("x")),
        ("/v1/nodes/n1", "properties", json!({"memory_mb": 1})),
        ("/v1/nodes/n1", "mode", json!("noop")),
        ("/v1/clusters/eu/nodegroups/web", "min_ready_seconds", json!(5)),
        ("/v1/clusters/eu/nodegroups/web", "merge_labels", json!(false)),
        ("/v1/clustertemplates/base", "description", json!("y")),
    ] {
        let patch = json!([{"op": "replace", "path": format!("/{field}"), "value": value}]);
        let answer = served.send("PATCH", path, &[], Some(&patch)).await;
        assert!(answer.status < 300, "{path} {field}: {}", answer.body);
        assert_eq!(served.get(path).await[field], value, "{path} {field}");
    }
    for wrong in ["/nosuch", "/properties/cpus"] {
        let patch = json!([{"op": "replace", "path": wrong, "value": 1}]);
        assert_eq!(served.send("PATCH", "/v1/nodes/n1", &[], Some(&patch)).await.status, 400, "{wrong}");
    }
    let patch = json!([{"op": "remove", "path": "/hold"}]);
    assert_eq!(served.send("PATCH", "/v1/nodes/n1", &[], Some(&patch)).await.status, 400, "nothing is there to remove");
}

#[tokio::test]
async fn w07_allow_header_names_methods_of_path() {
    let served = TestApi::start().await;
    site(&served).await;
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
        let answer = served.send(method, path, &[], None).await;
        let told = allow.map(|allow| format!("this path takes {allow}"));
        let expected = (if allow.is_some() { 405 } else { 404 }, told.as_deref());
        assert_eq!((answer.status, told.as_ref().map(|_| answer.message())), expected, "{method} {path}");
        assert_eq!(answer.allow.as_deref(), allow, "{method} {path}");
    }
}

#[tokio::test]
async fn w11_warning_stays_short_when_edit_affects_many_tasks() {
    let served = TestApi::start().await;
    let task = |n: usize| {
        let parameters = json!({"path": format!("/etc/a-task-with-a-long-name-{n:04}"), "template": "{{ labels.tier }}"});
        json!({"id": format!("a-task-with-a-long-name-{n:04}"), "type": "file", "roles": ["web"], "parameters": parameters})
    };
    let tasks: Vec<Value> = (0..600).map(task).collect();
    let objects = json!([
        {"kind": "Release", "name": "r", "roles": {"web": {}}, "tasks": tasks},
        {"kind": "Cluster", "name": "eu", "release": "r"},
        {"kind": "NodeGroup", "cluster": "eu", "name": "web", "roles": ["web"], "labels": {"tier": "gold"}},
        {"kind": "Node", "name": "n1", "nodegroup": "eu/web"},
    ]);
    apply(&served, objects, "").await;
    let without = json!({"labels": {"tier": null}});
    let path = "/v1/clusters/eu/nodegroups/web/labels";
    let plain = served.send("PATCH", &format!("{path}?dry_run=true&manager=git"), MERGE, Some(&without["labels"])).await;
    assert_eq!(plain.status, 200, "{}", plain.body);
    let warning = plain.warning.expect("what hosts lack is told");
    assert!(warning.contains("lacks `labels.tier`") && warning.contains("and 597 more fail"), "{warning}");
    // Proxies refuse or cut a response whose headers exceed 4 KiB.
    assert!(warning.len() < 1_000, "{} bytes", warning.len());
}

/// An unassignment ends when the node loses the last role that produces the tag, by any kind of write. An unassignment
/// of a tag that no role produced before remains.
#[tokio::test]
async fn unassignment_ends_by_same_rule_in_call_and_manifest() {
    let served = TestApi::start().await;
    site(&served).await;
    let release = json!({"name": "r", "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["http"]}},
        "tags": {"mysql": {}, "http": {}}});
    served.expect("POST", "/v1/releases", &release, 201).await;
    let answer = served.send("PATCH", "/v1/clusters/eu", MERGE, Some(&json!({"release": "r"}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let node = |name: &str, roles: &[&str]| json!({"kind": "Node", "name": name, "nodegroup": "eu/web", "tags": {"unassigned": ["mysql"]}, "roles": roles});
    apply(&served, json!([node("n1", &[]), node("n2", &[])]), "").await;
    served.expect("POST", "/v1/nodes/n1/roles", &json!({"roles": ["web"]}), 200).await;
    apply(&served, json!([node("n2", &["web"])]), "").await;
    for name in ["n1", "n2"] {
        let tags = served.get(&format!("/v1/nodes/{name}/tags")).await;
        assert_eq!(tags["unassigned"], json!(["mysql"]), "{name}");
    }
    served.expect("POST", "/v1/nodes/n1/roles", &json!({"roles": ["db"]}), 200).await;
    served.expect("DELETE", "/v1/nodes/n1/roles", &json!({"roles": ["db"]}), 200).await;
    assert_eq!(served.get("/v1/nodes/n1/tags").await["unassigned"], json!([]), "it ends with the role");
}

#[tokio::test]
async fn node_has_ironic_fields_with_either_client_header() {
    let served = TestApi::start().await;
    site(&served).await;
    for header in [("x-openstack-ironic-api-version", "1.50"), ("openstack-api-version", "baremetal 1.50")] {
        let answer = served.send("GET", "/v1/nodes/n1", &[header], None).await;
        assert_eq!((answer.status, answer.body.get("connection")), (200, None), "{header:?}");
        let answer = served.send("GET", "/v1/nodes/n1/traits", &[header], None).await;
        assert_eq!(answer.body, json!({"traits": []}), "{header:?}");
    }
    assert!(served.get("/v1/nodes/n1").await.get("connection").is_some());
}

/// Regression: an apply of one node also listed findings of its cluster about other objects.
#[tokio::test]
async fn w11_apply_warns_only_about_findings_of_own_objects() {
    let served = TestApi::start().await;
    let found = |applied: &Value| -> Vec<(String, String)> {
        let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        let found = applied["findings"].as_array().unwrap().iter();
        found.map(|finding| (text(finding, "object"), text(finding, "written"))).collect()
    };
    let pair = |object: &str, written: &str| (object.to_owned(), written.to_owned());
    let group = |name: &str, roles: Value| json!({"kind": "NodeGroup", "cluster": "c", "name": name, "roles": roles, "mend_offline": true});
    let node = |name: &str, group: &str, roles: Value| json!({"kind": "Node", "name": name, "nodegroup": group, "roles": roles});
    let site = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"rx": {"tags": ["x"]}, "ry": {"tags": ["y"]}},
         "tags": {"x": {}, "y": {}}, "tasks": [{"id": "t", "type": "shell", "tags": ["y"], "parameters": {"script": "true"}}]},
        {"kind": "Cluster", "name": "c", "release": "site@1"}, group("g", json!(["rx"])),
    ]);
    let first = apply(&served, site, "").await;
    assert_eq!(found(&first), [pair("nodegroup/c/g mend_offline", "")]);
    for name in ["n1", "n2"] {
        let applied = apply(&served, json!([node(name, "c/g", json!([]))]), "").await;
        assert_eq!(found(&applied), [], "what was so before, or has nobody yet, is not of {name}");
    }
    let odd = apply(&served, json!([node("n3", "c/g", json!(["nosuch"]))]), "").await;
    assert_eq!(found(&odd), [pair("node/n3", "")]);
    let caused = apply(&served, json!([group("g", json!(["ry"]))]), "").await;
    let caused = found(&caused);
    assert!(caused.contains(&pair("cluster/c tag/x", "nodegroup/c/g")), "nobody holds x now, by this group: {caused:?}");
    assert!(caused.contains(&pair("nodegroup/c/g mend_offline", "")), "{caused:?}");
    assert!(!caused.contains(&pair("node/n3", "")), "{caused:?}");
    let all = served.get("/v1/clusters/c/validate").await;
    let all = found(&all);
    assert!(all.contains(&pair("node/n3", "")) && all.contains(&pair("cluster/c tag/x", "")), "{all:?}");
}

/// Regression: the response to an edit of a release did not mention groups without hosts, or roles that produce
/// nothing.
#[tokio::test]
async fn release_edit_warns_about_lost_labels_and_referring_groups() {
    let served = TestApi::start().await;
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
    apply(&served, objects, "").await;
    let orphaned =
        |tasks: &str, run: &str| format!("node/n1: {tasks} no longer {run} on it and on 1 other node: what was done there stays");
    let unheld = "cluster/eu tag/http: no node holds tag http, which release r declares".to_owned();
    let undeclared = "nodegroup/us/empty: has role bare, which release r does not declare: it produces no tag".to_owned();
    let patch = |field: &str, value: Value| json!([{"op": "replace", "path": format!("/{field}"), "value": value}]);
    let fewer = json!({"web": {"tags": ["base"]}, "bare": {"tags": []}});
    for (content, body, expected) in [
        ("merge-patch", json!({"tasks": [tasks[1]]}), vec![orphaned("task conf", "runs")]),
        ("merge-patch", json!({"tasks": []}), vec![orphaned("tasks conf, site", "run")]),
        ("json-patch", patch("roles", fewer.clone()), vec![orphaned("task conf", "runs"), unheld]),
        ("json-patch", json!([{"op": "remove", "path": "/roles/bare"}]), vec![undeclared.clone()]),
        ("merge-patch", json!({"roles": {"bare": null}}), vec![undeclared]),
        ("merge-patch", json!({"description": "as it was"}), vec![]),
    ] {
        let headers = [("content-type", &*format!("application/{content}+json"))];
        let told = served.send("PATCH", "/v1/releases/r?dry_run=true", &headers, Some(&body)).await;
        assert_eq!(told.status, 200, "{body}: {}", told.body);
        let found = told.body["findings"].as_array().expect("a list");
        let text = |one: &Value, field: &str| one[field].as_str().expect("a text").to_owned();
        let found: Vec<String> = found.iter().map(|one| text(one, "object") + ": " + &text(one, "message")).collect();
        let warning = told.warning.unwrap_or_default();
        for one in &expected {
            assert!(found.contains(one), "{body}: {found:?}");
            assert!(warning.contains(one), "{body}: {warning}");
        }
        assert_eq!((expected.is_empty(), found.is_empty()), (warning.is_empty(), warning.is_empty()), "{body}: {found:?}");
    }
    // An apply reports the same.
    let applied =
        json!([{"kind": "Release", "name": "r", "roles": {"web": {"tags": ["http", "base"]}}, "tags": tags, "tasks": tasks}]);
    let applied = apply(&served, applied, "&dry_run=true").await;
    let found = applied["findings"].as_array().expect("a list");
    assert!(found.iter().any(|one| one["object"] == "nodegroup/us/empty" && one["code"] == "role.unknown"), "{found:?}");
}
