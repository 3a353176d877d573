//! The operators' API at its handlers, with a real store in a temporary directory and no socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::served::{self, TestApi};

/// Loads a file of shared test vectors. If the file does not exist, prints that the test is skipped, and returns
/// `None`. Panics instead if `STEMMA_REQUIRE_SHARED` is set.
#[allow(clippy::print_stderr)] // The reader of a test's output must see that it was skipped.
fn load_vectors(name: &str) -> Option<Value> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../shared/vectors", name].iter().collect();
    if !path.exists() {
        assert!(std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "{} is absent", path.display());
        eprintln!("skipped: {} is absent", path.display());
        return None;
    }
    let text = std::fs::read_to_string(&path).expect("existing vectors are readable");
    Some(serde_json::from_str(&text).expect("vectors are JSON"))
}

/// Parses a map from keys to the managers that own them.
fn owners_by_key(value: &Value) -> BTreeMap<String, Vec<String>> {
    serde_json::from_value(value.clone()).expect("owners by key")
}

/// Returns the key and the owner of each conflict, sorted. Returns no pairs if `conflicts` is null.
fn conflict_pairs(conflicts: &Value) -> Vec<(String, String)> {
    let text = |conflict: &Value, field: &str| conflict[field].as_str().expect("text").to_owned();
    let pairs = conflicts.as_array().into_iter().flatten();
    let mut pairs: Vec<_> = pairs.map(|conflict| (text(conflict, "key"), text(conflict, "manager"))).collect();
    pairs.sort();
    pairs
}

/// Runs each scenario of a vector file on an object of its own. Each operation becomes the corresponding API call, and
/// the response and the object must be as the scenario expects.
async fn run_scenarios(file: &str) {
    let Some(vectors) = load_vectors(file) else { return };
    let api = TestApi::start().await;
    for case in vectors["cases"].as_array().expect("cases") {
        let name = case["name"].as_str().expect("a name").replace('_', "-");
        api.expect("POST", "/v1/clustertemplates", &json!({"name": name}), 201).await;
        let object_path = format!("/v1/clustertemplates/{name}");
        for (step, expected) in case["ops"].as_array().expect("ops").iter().zip(case["expect"].as_array().expect("expect")) {
            let manager = step["manager"].as_str().expect("a manager");
            let force = step["force"].as_bool().unwrap_or(false);
            let body = json!({"labels": step["labels"]});
            let response = match step["op"].as_str() {
                Some("apply") => {
                    let path = format!("{object_path}?manager={manager}&force={force}");
                    api.send("PATCH", &path, &[("content-type", "application/apply-patch+json")], Some(&body)).await
                }
                _ => api.send("PUT", &format!("{object_path}/labels?manager={manager}"), &[], Some(&body)).await,
            };
            assert_response_and_object(&api, &object_path, &response, expected, &format!("{name}: {step}")).await;
        }
    }
}

/// Asserts that a response has the expected conflicts, and that the object at this path has the expected labels and
/// owners.
async fn assert_response_and_object(api: &TestApi, path: &str, response: &served::ApiResponse, expected: &Value, context: &str) {
    let expected_conflicts = conflict_pairs(&expected["conflict"]);
    assert_eq!(response.status, if expected_conflicts.is_empty() { 200 } else { 409 }, "{context}: {}", response.body);
    assert_eq!(conflict_pairs(&response.body["conflicts"]), expected_conflicts, "{context}");
    let object = api.get(path).await;
    assert_eq!(object["labels"], expected["labels"], "{context}");
    assert_eq!(owners_by_key(&object["label_owners"]), owners_by_key(&expected["owners"]), "{context}");
}

#[tokio::test]
async fn apply_matches_given_ownership_scenarios() {
    run_scenarios("propagation/ssa_map.json").await;
}

#[tokio::test]
async fn apply_matches_random_ownership_scenarios() {
    run_scenarios("propagation/ssa_map_fuzz.json").await;
}

/// The vectors follow `OpenStack`'s guideline for filters by tags: `traits`, `traits-any`, `not-traits` and
/// `not-traits-any`.
#[tokio::test]
async fn node_list_filters_by_traits_per_guideline() {
    let Some(vectors) = load_vectors("traits/trait_filter.json") else { return };
    for (set_name, nodes) in vectors["node_sets"].as_object().expect("sets") {
        let api = TestApi::start().await;
        for node in nodes.as_array().expect("nodes") {
            let name = node["name"].as_str().expect("a name");
            api.expect("POST", "/v1/nodes", &json!({"name": name, "driver": "fake"}), 201).await;
            api.expect("PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": node["traits"]}), 200).await;
        }
        for case in vectors["cases"].as_array().expect("cases").iter().filter(|case| case["nodes"] == *set_name) {
            let query = case["query_string"].as_str().expect("a query");
            let list = api.get(&format!("/v1/nodes?{query}")).await;
            assert_eq!(names(&list), case["expected"], "{query}");
        }
        for case in vectors["pagination_cases"].as_array().expect("cases").iter().filter(|case| case["nodes"] == *set_name) {
            assert_pages(&api, case).await;
        }
    }
}

/// Returns the names of the nodes in a list.
fn names(list: &Value) -> Value {
    list["nodes"].as_array().expect("nodes").iter().map(|node| node["name"].clone()).collect()
}

/// Reads all pages of a list by following `next`, which must repeat every filter. Asserts that the pages are as the
/// case expects.
async fn assert_pages(api: &TestApi, case: &Value) {
    let (query, limit) = (case["query_string"].as_str().expect("a query"), &case["limit"]);
    let mut next_path = Some(format!("/v1/nodes?{query}&limit={limit}"));
    let mut pages = Vec::new();
    while let Some(path) = next_path {
        let list = api.get(&path).await;
        let page = names(&list);
        // A full last page has a `next` that leads to an empty page.
        if pages.is_empty() || page.as_array().is_some_and(|page| !page.is_empty()) {
            pages.push(page);
        }
        next_path = list["next"].as_str().map(|next| next.trim_start_matches("http://localhost").to_owned());
    }
    assert_eq!(Value::from(pages), case["expected_pages"], "{query} by {limit}");
}

/// A request with the same idempotency key and body is a repetition. With the same key and another body, it is refused.
/// The first response can also be read by the key.
#[tokio::test]
async fn write_returns_same_response_when_repeated() {
    let api = TestApi::start().await;
    let key = [("idempotency-key", "0198c0de-0000-7000-8000-000000000001")];
    let body = json!({"name": "base", "labels": {"a": "1"}});
    let response = api.send("POST", "/v1/clustertemplates", &key, Some(&body)).await;
    let repeated = api.send("POST", "/v1/clustertemplates", &key, Some(&body)).await;
    assert_eq!((response.status, &response.body), (201, &repeated.body));
    assert_eq!(api.get("/v1/clustertemplates").await["clustertemplates"].as_array().map(Vec::len), Some(1));
    let other_response = api.send("POST", "/v1/clustertemplates", &key, Some(&json!({"name": "other"}))).await;
    assert_eq!((other_response.status, other_response.kind()), (409, "request.reused"));
    let recorded = api.get("/v1/requests/0198c0de-0000-7000-8000-000000000001").await;
    assert_eq!((&recorded["status"], &recorded["body"]), (&json!(201), &response.body));
}

/// Two edits send the same `If-Match`. The first changes the object, so the second is refused.
#[tokio::test]
async fn write_fails_when_etag_is_stale() {
    let api = TestApi::start().await;
    let created = api.expect("POST", "/v1/clustertemplates", &json!({"name": "base"}), 201).await;
    let tag = format!("\"{}\"", created["resource_version"]);
    let merge = ("content-type", "application/merge-patch+json");
    let edit = |label: &str| json!({"labels": {"a": label}});
    let first = api.send("PATCH", "/v1/clustertemplates/base", &[merge, ("if-match", &tag)], Some(&edit("1"))).await;
    assert_eq!(first.status, 200);
    let second = api.send("PATCH", "/v1/clustertemplates/base", &[merge, ("if-match", &tag)], Some(&edit("2"))).await;
    assert_eq!((second.status, second.kind()), (412, "precondition.failed"));
    assert_eq!(api.get("/v1/clustertemplates/base").await["labels"], json!({"a": "1"}));
}

/// Creates a release, a template, a cluster, the group `prod/web` and the node `web-1`.
async fn create_site(api: &TestApi) {
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["nginx"]}}, "tags": {"nginx": {"has_primary": true}},
         "tasks": [{"id": "conf", "type": "file", "tags": ["nginx"], "parameters": {"path": "/etc/site.conf", "template": "tier {{ labels.tier }}"}}]},
        {"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "standard", "debug": "true"}},
        {"kind": "Cluster", "name": "prod", "cluster_template": "base", "labels": {"site": "fra1"}},
        {"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"], "labels": {"tier": "gold", "debug": null}},
        {"kind": "Node", "name": "web-1", "nodegroup": "prod/web"},
    ]);
    let response = api.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
    assert_eq!(response["objects"].as_array().map(Vec::len), Some(5), "{response}");
}

/// The group's tombstone of the label `debug` ends the inheritance of the template's value. The levels are listed from
/// the template to the node.
#[tokio::test]
async fn node_resolution_shows_origin_of_each_value() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let resolution = api.get("/v1/nodes/web-1/resolved").await;
    assert_eq!(resolution["labels"], json!({"site": "fra1", "tier": "gold"}));
    assert_eq!(resolution["origins"]["labels"], json!({"site": "cluster", "tier": "nodegroup"}));
    assert_eq!(resolution["tasks"], json!(["conf"]));
    assert_eq!(resolution["inputs"], json!({"labels.tier": {"value": "gold"}}));
    let explanation = api.get("/v1/nodes/web-1/explain?label=debug").await;
    let results: Vec<&str> =
        explanation["levels"].as_array().expect("levels").iter().filter_map(|level| level["result"].as_str()).collect();
    assert_eq!(explanation["value"], Value::Null);
    assert_eq!(results, ["stopped by the nodegroup", "says nothing", "stops what is above", "says nothing"]);
    let explanation = api.get("/v1/nodes/web-1/explain?label=tier").await;
    assert_eq!((&explanation["value"], &explanation["used_by"]), (&json!("gold"), &json!(["conf"])));
}

/// A repeated manifest changes nothing. An apply with one invalid object changes none of its objects. An apply of
/// another value for a label that another manager owns is a conflict.
#[tokio::test]
async fn apply_is_atomic() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let same_manifest = json!({"objects": [{"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "standard", "debug": "true"}}]});
    let unchanged = api.expect("POST", "/v1/apply?manager=git", &same_manifest, 200).await;
    assert_eq!(unchanged["objects"][0]["action"], "unchanged");
    let half_valid = json!({"objects": [{"kind": "ClusterTemplate", "name": "base", "labels": {"tier": "other"}}, {"kind": "Cluster", "name": "x", "cluster_template": "nope"}]});
    let refusal = api.send("POST", "/v1/apply?manager=git", &[], Some(&half_valid)).await;
    assert_eq!((refusal.status, refusal.kind()), (400, "reference.dangling"));
    assert_eq!(api.get("/v1/clustertemplates/base").await["labels"]["tier"], "standard");
    let other_manifest = json!({"objects": [{"kind": "ClusterTemplate", "name": "base", "labels": {"tier": "bronze"}}]});
    let conflict = api.send("POST", "/v1/apply?manager=hand", &[], Some(&other_manifest)).await;
    assert_eq!((conflict.status, conflict.kind()), (409, "label.conflict"));
    assert_eq!(
        conflict.body["conflicts"],
        json!([{"map": "labels", "key": "tier", "manager": "git:apply", "value": "standard"}])
    );
}

/// Each refusal names an object that refers to the object. The second loop deletes the referring objects first.
#[tokio::test]
async fn delete_fails_when_object_is_referenced() {
    let api = TestApi::start().await;
    create_site(&api).await;
    for (path, user) in [
        ("/v1/releases/site@1", "clustertemplate base"),
        ("/v1/clustertemplates/base", "cluster prod"),
        ("/v1/clusters/prod", "node web-1"),
        ("/v1/clusters/prod/nodegroups/web", "node web-1"),
    ] {
        let refusal = api.send("DELETE", path, &[], None).await;
        assert_eq!((refusal.status, refusal.kind()), (409, "object.in_use"), "{path}");
        assert!(refusal.message().contains(user), "{path}: {}", refusal.message());
    }
    for path in ["/v1/nodes/web-1", "/v1/clusters/prod", "/v1/clustertemplates/base", "/v1/releases/site@1"] {
        let deletion = api.send("DELETE", path, &[], None).await;
        assert_eq!(deletion.status, 204, "{path}: {}", deletion.body);
        assert_eq!(api.send("GET", path, &[], None).await.status, 404, "{path}");
    }
}

/// The role of the group gives the node the tag `nginx`. A tag in use cannot be deleted. An unknown tag or role is
/// refused.
#[tokio::test]
async fn node_tags_follow_roles_and_manual_assignment() {
    let api = TestApi::start().await;
    create_site(&api).await;
    assert_eq!(api.get("/v1/nodes/web-1").await["tags"], json!(["nginx"]));
    api.expect("POST", "/v1/clusters/prod/tags", &json!({"name": "canary"}), 201).await;
    let assignment = api.send("PUT", "/v1/nodes/web-1/tags/canary", &[], None).await;
    assert_eq!(assignment.status, 204, "{}", assignment.body);
    assert_eq!(api.get("/v1/nodes/web-1").await["tags"], json!(["canary", "nginx"]));
    let tags = api.expect("POST", "/v1/nodes/web-1/tags", &json!({"unassign": ["nginx"]}), 200).await;
    assert_eq!(tags["effective"], json!(["canary"]));
    let deletion = api.send("DELETE", "/v1/clusters/prod/tags/canary", &[], None).await;
    assert_eq!((deletion.status, deletion.kind()), (409, "object.in_use"));
    let unknown_tag = api.send("PUT", "/v1/nodes/web-1/tags/nope", &[], None).await;
    assert_eq!((unknown_tag.status, unknown_tag.kind()), (400, "tag.unknown"));
    let invalid_role = api.send("POST", "/v1/nodes/web-1/roles", &[], Some(&json!({"roles": ["db"]}))).await;
    assert_eq!((invalid_role.status, invalid_role.kind()), (400, "role.invalid"));
}

#[tokio::test]
async fn api_error_names_field_cause_and_fix() {
    let api = TestApi::start().await;
    create_site(&api).await;
    let release = |tasks: Value| json!({"objects": [{"kind": "Release", "name": "bad", "version": "1", "tasks": tasks}]});
    for (body, kind, message) in [
        (
            json!({"objects": [{"kind": "ClusterTemplate", "name": "t", "lables": {}}]}),
            "field.unknown",
            "clustertemplate/t: Unknown attribute for clustertemplate: 'lables': is not a field of this kind (did you mean \"labels\"?): correct its spelling, or remove it",
        ),
        (
            json!({"objects": [{"kind": "Cluster", "name": "c", "cluster_template": "nope"}]}),
            "reference.dangling",
            "cluster/c: Invalid input for cluster: cluster_template: there is no cluster template \"nope\": create it first, or name another",
        ),
        (
            json!({"objects": [{"kind": "Cluster", "name": "c", "release": "nope@1"}]}),
            "reference.dangling",
            "cluster/c: there is no release 'nope@1'",
        ),
        (
            json!({"objects": [{"kind": "Klaster", "name": "c"}]}),
            "field.invalid",
            "object 0: kind: unknown kind \"Klaster\" (did you mean \"Cluster\"?): it is one of Release, ClusterTemplate, Cluster, NodeGroup, Node, Namespace",
        ),
        (
            release(json!([{"id": "a", "type": "shell", "tags": ["x"], "requires": ["b"], "parameters": {"command": ["true"]}},
                        {"id": "b", "type": "shell", "tags": ["x"], "requires": ["a"], "parameters": {"command": ["true"]}}])),
            "object.invalid",
            "tasks wait for each other: a -> b -> a; remove one of these dependencies",
        ),
        (
            release(
                json!([{"id": "a", "type": "file", "tags": ["x"], "parameters": {"path": "/x", "template": "{{ labels[params.key] }}"}}]),
            ),
            "object.invalid",
            "line 1, column 4: `labels[params.key]`: the key is computed",
        ),
        (
            release(
                json!([{"id": "a", "type": "upload_file", "tags": ["x"], "parameters": {"path": "/x", "source": "ab".repeat(32)}}]),
            ),
            "field.invalid",
            "of task 'a': it does not name a blob: write sha256: and 64 hexadecimal digits in lower case",
        ),
    ] {
        let refusal = api.send("POST", "/v1/apply", &[], Some(&body)).await;
        assert_eq!((refusal.status, refusal.kind()), (400, kind), "{}", refusal.body);
        assert!(refusal.message().contains(message), "{}\nexpected: {message}", refusal.message());
    }
}

#[tokio::test]
async fn plain_listener_rejects_foreign_host_and_origin() {
    let api = TestApi::start().await;
    for (headers, status, kind) in [
        (vec![("host", "evil.example:80")], 400, "request.host"),
        (vec![("origin", "http://evil.example")], 403, "request.origin"),
        (vec![("origin", "http://localhost")], 200, ""),
    ] {
        let response = api.send("GET", "/v1/clusters", &headers, None).await;
        assert_eq!(response.status, status, "{headers:?}");
        assert_eq!(response.kind(), kind, "{headers:?}");
    }
}

#[tokio::test]
async fn json_body_is_rejected_when_malformed_or_deep() {
    let api = TestApi::start().await;
    let deep = format!("{{\"name\":\"x\",\"extra\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    for body in ["{\"name\":\"a\",\"name\":\"b\"}", "{\"name\":", "[]", "\"x\"", "{\"name\":\"\\ud800\"}", deep.as_str()] {
        let refusal = api.send_text("POST", "/v1/nodes", &[], body).await;
        assert_eq!(refusal.status, 400, "{body}: {}", refusal.body);
        assert!(refusal.body["error_message"].is_string(), "Ironic's clients read it: {}", refusal.body);
    }
}

#[tokio::test]
async fn nil_uuid_is_rejected_as_node() {
    let api = TestApi::start().await;
    let nil = "00000000-0000-0000-0000-000000000000";
    let detail = "the nil uuid cannot identify a host: omit uuid, and the node gets a generated one";
    for uuid in [nil, "00000000000000000000000000000000", &format!("urn:uuid:{nil}")] {
        let refusal = api.send("POST", "/v1/nodes", &[], Some(&json!({"name": "web-1", "uuid": uuid}))).await;
        assert_eq!((refusal.status, refusal.kind()), (400, "field.invalid"), "{}", refusal.body);
        assert_eq!(refusal.body["error"]["detail"], json!(detail));
        let objects = json!([{"kind": "Node", "name": "web-1", "uuid": uuid}]);
        let refusal = api.send("POST", "/v1/apply?manager=git", &[], Some(&json!({"objects": objects}))).await;
        assert_eq!((refusal.status, &refusal.body["error"]["field"]), (400, &json!("objects[0].uuid")));
        assert!(refusal.message().ends_with(detail), "{}", refusal.body);
    }
    let no_nodes: Vec<Value> = Vec::new();
    assert_eq!(api.get("/v1/nodes").await["nodes"], json!(no_nodes));
}

/// Regression: labels were checked only for the first node of a group. In this test, the group has 50 KiB of labels,
/// and only the second node has 20 KiB of its own, which exceed the limit of 64 KiB together.
#[tokio::test]
async fn write_fails_when_labels_of_second_node_are_too_large() {
    let api = TestApi::start().await;
    let cluster = json!({"kind": "Cluster", "name": "c"});
    let group = json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": labels("g", 50, 1021)});
    let node = |name: &str, labels: Value| json!({"kind": "Node", "name": name, "nodegroup": "c/g", "labels": labels});
    let objects = json!([cluster, group, node("a", json!({})), node("b", labels("b", 20, 1021))]);
    let response = api.send("POST", "/v1/apply", &[], Some(&json!({"objects": objects}))).await;
    let expected = "the effective labels have at most 65536 bytes together, these 71680 of node b would; nothing was changed";
    assert_eq!((response.status, response.message()), (400, expected));
    let no_nodes: Vec<Value> = Vec::new();
    assert_eq!(api.get("/v1/nodes").await["nodes"], json!(no_nodes));
}

/// Returns `count` labels. Each key is `key` with a number from `00` on, and each value has `bytes` bytes.
fn labels(key: &str, count: usize, bytes: usize) -> Value {
    (0..count).map(|n| (format!("{key}{n:02}"), json!("v".repeat(bytes)))).collect::<serde_json::Map<_, _>>().into()
}

#[tokio::test]
async fn write_fails_when_desired_state_would_be_too_large() {
    let api = TestApi::start().await;
    let apply = async |objects: Value| api.send("POST", "/v1/apply?force=true", &[], Some(&json!({"objects": objects}))).await;
    let assert_refused = async |objects: Value, kind: &str, message: &str| {
        let response = apply(objects).await;
        assert_eq!((response.status, response.kind(), response.message()), (400, kind, message));
        assert!(
            response.body["error"]["detail"]
                .as_str()
                .is_some_and(|detail| detail.contains("smaller") || detail.contains("shorter"))
        );
    };
    let cluster = |labels: Value| json!({"kind": "Cluster", "name": "c", "labels": labels});
    let group = |labels: Value| json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": labels});
    let node = |fields: Value| {
        let mut node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g"});
        node.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        node
    };
    let limit_message = |bytes: usize, level: &str| {
        format!("the effective labels have at most 65536 bytes together, these {bytes} of {level} would; nothing was changed")
    };
    assert_refused(json!([cluster(labels("c", 99, 4096))]), "label.invalid", &limit_message(99 * 4099, "cluster c")).await;
    assert_eq!(apply(json!([cluster(labels("c", 10, 4093)), group(json!({})), node(json!({}))])).await.status, 200);
    assert_refused(json!([group(labels("g", 10, 4093))]), "label.invalid", &limit_message(20 * 4096, "nodegroup c/g")).await;
    assert_refused(json!([node(json!({"labels": labels("n", 7, 4093)}))]), "label.invalid", &limit_message(17 * 4096, "node n"))
        .await;
    assert_eq!(
        apply(json!([group(labels("c", 10, 4094))])).await.status,
        200,
        "an overriding label replaces the bytes of the other"
    );
    assert_eq!(apply(json!([node(json!({"labels": labels("n", 5, 4093)}))])).await.status, 200);
    assert_refused(
        json!([cluster(labels("x", 10, 2048))]),
        "label.invalid",
        &limit_message(10 * 2051 + 10 * 4097 + 5 * 4096, "node n"),
    )
    .await;

    let annotations = labels("a", 50, 4093);
    let mut large_cluster = cluster(labels("c", 10, 4093));
    large_cluster["annotations"] = annotations;
    let response = apply(json!([large_cluster])).await;
    assert_eq!((response.status, response.kind()), (400, "object.invalid"));
    assert!(response.message().starts_with("node n: the desired state has 2"), "{}", response.message());
    assert!(response.message().ends_with("at most 262144 are allowed; nothing was changed"), "{}", response.message());
    assert_eq!(api.get("/v1/clusters/c").await["annotations"], json!({}), "nothing was changed");
}

/// A number is stored as the text that was sent, as in `1.50`. Annotations over the limit of size are refused. An
/// apply sets `merge_labels` to true or false, and a text in this field is refused.
#[tokio::test]
async fn writes_keep_text_of_numbers_and_reject_invalid_map_fields() {
    let api = TestApi::start().await;
    let apply = [("content-type", "application/apply-patch+json")];
    let merge = [("content-type", "application/merge-patch+json")];
    api.expect("POST", "/v1/clustertemplates", &json!({"name": "t"}), 201).await;
    let object_path = "/v1/clustertemplates/t";
    for (sent, stored) in [
        (r#"{"v": 1.50, "b": true}"#, json!({"v": "1.50", "b": "true"})),
        (r#"{"labels": {"v": 2.50}}"#, json!({"v": "2.50", "b": "true"})),
    ] {
        let response = api.send_text("PATCH", &format!("{object_path}/labels"), &merge, sent).await;
        assert_eq!((response.status, &response.body["labels"]), (200, &stored), "{sent}: {}", response.body);
    }
    let annotations = labels("a", 70, 4096);
    let response = api.send("POST", "/v1/clustertemplates", &[], Some(&json!({"name": "u", "annotations": annotations}))).await;
    assert_eq!((response.status, response.kind()), (400, "field.invalid"), "{}", response.body);
    assert_eq!(response.body["error"]["field"], "annotations");
    let body = json!({"objects": [{"kind": "Cluster", "name": "c"}]});
    api.expect("POST", "/v1/apply", &body, 200).await;
    let object_path = "/v1/clusters/c";
    for (sent, merges) in [(json!(false), false), (json!(true), true)] {
        let body = json!({"labels": {"v": "3"}, "merge_labels": sent});
        let response = api.send("PATCH", &format!("{object_path}?force=true"), &apply, Some(&body)).await;
        assert_eq!((response.status, &response.body["merge_labels"]), (200, &json!(merges)), "{}", response.body);
    }
    let body = json!({"labels": {"v": "3"}, "merge_labels": "perhaps"});
    let response = api.send("PATCH", &format!("{object_path}?force=true"), &apply, Some(&body)).await;
    assert_eq!((response.status, response.kind()), (400, "field.invalid"), "{}", response.body);
}

/// Forty concurrent writes add one label each. All succeed, and no label is lost.
#[tokio::test]
async fn registry_answers_each_when_forty_writers_share_object() {
    let api = std::sync::Arc::new(TestApi::start().await);
    api.expect("POST", "/v1/clustertemplates", &json!({"name": "busy"}), 201).await;
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..40 {
        let api = std::sync::Arc::clone(&api);
        writers.spawn(async move {
            let body = json!({format!("w{number}"): number.to_string()});
            let headers = [("content-type", "application/merge-patch+json")];
            api.send("PATCH", "/v1/clustertemplates/busy/labels", &headers, Some(&body)).await
        });
    }
    for response in writers.join_all().await {
        assert_eq!(response.status, 200, "{}", response.body);
    }
    let labels = api.get("/v1/clustertemplates/busy").await["labels"].clone();
    assert_eq!(labels.as_object().map(serde_json::Map::len), Some(40), "{labels}");
}

#[tokio::test]
async fn head_returns_status_of_get_without_body() {
    let api = TestApi::start().await;
    for (path, status) in [("/v1/nodes", 200), ("/healthz", 200), ("/v1/nodes/absent", 404)] {
        let get = api.send("GET", path, &[], None).await;
        let head = api.send("HEAD", path, &[], None).await;
        assert_eq!((get.status, head.status), (status, status), "{path}");
        assert!(head.body.is_null(), "{path}: {}", head.body);
    }
    assert_eq!(api.send("HEAD", "/v1/apply", &[], None).await.status, 405);
}

#[tokio::test]
async fn patch_rejects_change_of_uuid() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/nodes", &json!({"name": "n1"}), 201).await;
    let patch = json!([{"op": "replace", "path": "/uuid", "value": "6f1e2b1e-0000-4000-8000-000000000001"}]);
    let headers = [("content-type", "application/json-patch+json")];
    let response = api.send("PATCH", "/v1/nodes/n1", &headers, Some(&patch)).await;
    assert_eq!(response.status, 400, "{}", response.body);
    assert!(response.message().starts_with("/uuid cannot be changed"), "{}", response.message());
}

/// The filter `deleting` selects nodes whose deletion is not complete. Here each deletion is complete at once.
#[tokio::test]
async fn node_list_is_empty_when_filtering_for_deleting() {
    let api = TestApi::start().await;
    for name in ["goes", "stays"] {
        api.expect("POST", "/v1/nodes", &json!({"name": name}), 201).await;
    }
    let list_names = async |filter: &str| {
        let nodes = api.get(&format!("/v1/nodes?{filter}")).await["nodes"].clone();
        let mut names: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["name"].clone()).collect();
        names.sort_by_key(ToString::to_string);
        json!(names)
    };
    assert_eq!(list_names("deleting=false").await, json!(["goes", "stays"]));
    assert_eq!(list_names("deleting=true").await, json!([]));
    api.expect("DELETE", "/v1/nodes/goes", &Value::Null, 204).await;
    assert_eq!(api.send("GET", "/v1/nodes/goes", &[], None).await.status, 404);
    assert_eq!(list_names("deleting=true").await, json!([]), "a deletion is complete at once");
    assert_eq!(list_names("deleting=false").await, json!(["stays"]));
    let refusal = api.send("GET", "/v1/nodes?deleting=maybe", &[], None).await;
    assert_eq!((refusal.status, refusal.kind()), (400, "request.query"));
}

/// Version 1.37 of Ironic's API introduced these filters. A client that names no version may use them.
#[tokio::test]
async fn trait_filters_require_version_1_37() {
    let api = TestApi::start().await;
    for name in ["traits", "traits-any", "not-traits", "not-traits-any"] {
        for (version, status) in [("1.36", 406), ("1.37", 200)] {
            let headers = [("x-openstack-ironic-api-version", version)];
            let response = api.send("GET", &format!("/v1/nodes?{name}=CUSTOM_A"), &headers, None).await;
            assert_eq!(response.status, status, "{name} at {version}: {}", response.body);
        }
        assert_eq!(api.send("GET", &format!("/v1/nodes?{name}=CUSTOM_A"), &[], None).await.status, 200);
    }
}
