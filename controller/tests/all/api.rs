//! The operators' API at its handlers, with a real store in a temporary directory and no socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::served::{self, TestApi};

/// Loads shared test vectors. If they do not exist, prints that they are skipped.
#[allow(clippy::print_stderr)] // The reader of a test's output must see that it was skipped.
fn load_vectors(name: &str) -> Option<Value> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../shared/vectors", name].iter().collect();
    if !path.exists() {
        assert!(std::env::var_os("STEMMA_REQUIRE_SHARED").is_none(), "{} is absent", path.display());
        eprintln!("skipped: {} is absent", path.display());
        return None;
    }
    let text = std::fs::read_to_string(&path).expect("vectors that are there can be read");
    Some(serde_json::from_str(&text).expect("vectors are JSON"))
}

fn owners_by_key(value: &Value) -> BTreeMap<String, Vec<String>> {
    serde_json::from_value(value.clone()).expect("owners by key")
}

/// Returns the keys in conflict, each with an owner as in `label_owners`, sorted.
fn conflict_pairs(conflicts: &Value) -> Vec<(String, String)> {
    let text = |one: &Value, field: &str| one[field].as_str().expect("text").to_owned();
    let all = conflicts.as_array().into_iter().flatten();
    let mut all: Vec<_> = all.map(|one| (text(one, "key"), text(one, "manager"))).collect();
    all.sort();
    all
}

/// Runs every scenario on its own object. Each operation becomes the corresponding call of the API.
async fn run_scenarios(file: &str) {
    let Some(vectors) = load_vectors(file) else { return };
    let served = TestApi::start().await;
    for case in vectors["cases"].as_array().expect("cases") {
        let name = case["name"].as_str().expect("a name").replace('_', "-");
        served.expect("POST", "/v1/clustertemplates", &json!({"name": name}), 201).await;
        let at = format!("/v1/clustertemplates/{name}");
        for (step, expected) in case["ops"].as_array().expect("ops").iter().zip(case["expect"].as_array().expect("expect")) {
            let manager = step["manager"].as_str().expect("a manager");
            let force = step["force"].as_bool().unwrap_or(false);
            let body = json!({"labels": step["labels"]});
            let answer = match step["op"].as_str() {
                Some("apply") => {
                    let path = format!("{at}?manager={manager}&force={force}");
                    served.send("PATCH", &path, &[("content-type", "application/apply-patch+json")], Some(&body)).await
                }
                _ => served.send("PUT", &format!("{at}/labels?manager={manager}"), &[], Some(&body)).await,
            };
            check_answer(&served, &at, &answer, expected, &format!("{name}: {step}")).await;
        }
    }
}

async fn check_answer(served: &TestApi, at: &str, answer: &served::ApiResponse, expected: &Value, what: &str) {
    let wanted = conflict_pairs(&expected["conflict"]);
    assert_eq!(answer.status, if wanted.is_empty() { 200 } else { 409 }, "{what}: {}", answer.body);
    assert_eq!(conflict_pairs(&answer.body["conflicts"]), wanted, "{what}");
    let object = served.get(at).await;
    assert_eq!(object["labels"], expected["labels"], "{what}");
    assert_eq!(owners_by_key(&object["label_owners"]), owners_by_key(&expected["owners"]), "{what}");
}

#[tokio::test]
async fn apply_matches_given_ownership_scenarios() {
    run_scenarios("propagation/ssa_map.json").await;
}

#[tokio::test]
async fn apply_matches_random_ownership_scenarios() {
    run_scenarios("propagation/ssa_map_fuzz.json").await;
}

#[tokio::test]
async fn node_list_filters_by_traits_per_guideline() {
    let Some(vectors) = load_vectors("traits/trait_filter.json") else { return };
    for (set, nodes) in vectors["node_sets"].as_object().expect("sets") {
        let served = TestApi::start().await;
        for node in nodes.as_array().expect("nodes") {
            let name = node["name"].as_str().expect("a name");
            served.expect("POST", "/v1/nodes", &json!({"name": name, "driver": "fake"}), 201).await;
            served.expect("PUT", &format!("/v1/nodes/{name}/traits"), &json!({"traits": node["traits"]}), 200).await;
        }
        for case in vectors["cases"].as_array().expect("cases").iter().filter(|case| case["nodes"] == *set) {
            let query = case["query_string"].as_str().expect("a query");
            let list = served.get(&format!("/v1/nodes?{query}")).await;
            assert_eq!(names(&list), case["expected"], "{query}");
        }
        for case in vectors["pagination_cases"].as_array().expect("cases").iter().filter(|case| case["nodes"] == *set) {
            all_pages(&served, case).await;
        }
    }
}

fn names(list: &Value) -> Value {
    list["nodes"].as_array().expect("nodes").iter().map(|node| node["name"].clone()).collect()
}

/// Follows `next`, which must contain every filter, and compares the pages.
async fn all_pages(served: &TestApi, case: &Value) {
    let (query, limit) = (case["query_string"].as_str().expect("a query"), &case["limit"]);
    let mut at = Some(format!("/v1/nodes?{query}&limit={limit}"));
    let mut pages = Vec::new();
    while let Some(path) = at {
        let list = served.get(&path).await;
        let page = names(&list);
        // A full last page has a `next` that leads to an empty page.
        if pages.is_empty() || page.as_array().is_some_and(|page| !page.is_empty()) {
            pages.push(page);
        }
        at = list["next"].as_str().map(|next| next.trim_start_matches("http://localhost").to_owned());
    }
    assert_eq!(Value::from(pages), case["expected_pages"], "{query} by {limit}");
}

#[tokio::test]
async fn write_returns_same_response_when_repeated() {
    let served = TestApi::start().await;
    let key = [("idempotency-key", "0198c0de-0000-7000-8000-000000000001")];
    let body = json!({"name": "base", "labels": {"a": "1"}});
    let first = served.send("POST", "/v1/clustertemplates", &key, Some(&body)).await;
    let again = served.send("POST", "/v1/clustertemplates", &key, Some(&body)).await;
    assert_eq!((first.status, &first.body), (201, &again.body));
    assert_eq!(served.get("/v1/clustertemplates").await["clustertemplates"].as_array().map(Vec::len), Some(1));
    let other = served.send("POST", "/v1/clustertemplates", &key, Some(&json!({"name": "other"}))).await;
    assert_eq!((other.status, other.kind()), (409, "request.reused"));
    let told = served.get("/v1/requests/0198c0de-0000-7000-8000-000000000001").await;
    assert_eq!((&told["status"], &told["body"]), (&json!(201), &first.body));
}

#[tokio::test]
async fn write_fails_when_etag_is_stale() {
    let served = TestApi::start().await;
    let made = served.expect("POST", "/v1/clustertemplates", &json!({"name": "base"}), 201).await;
    let tag = format!("\"{}\"", made["resource_version"]);
    let merge = ("content-type", "application/merge-patch+json");
    let edit = |label: &str| json!({"labels": {"a": label}});
    let first = served.send("PATCH", "/v1/clustertemplates/base", &[merge, ("if-match", &tag)], Some(&edit("1"))).await;
    assert_eq!(first.status, 200);
    let second = served.send("PATCH", "/v1/clustertemplates/base", &[merge, ("if-match", &tag)], Some(&edit("2"))).await;
    assert_eq!((second.status, second.kind()), (412, "precondition.failed"));
    assert_eq!(served.get("/v1/clustertemplates/base").await["labels"], json!({"a": "1"}));
}

/// Creates a cluster with one web group and a release.
async fn site(served: &TestApi) {
    let objects = json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["nginx"]}}, "tags": {"nginx": {"has_primary": true}},
         "tasks": [{"id": "conf", "type": "file", "tags": ["nginx"], "parameters": {"path": "/etc/site.conf", "template": "tier {{ labels.tier }}"}}]},
        {"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "standard", "debug": "true"}},
        {"kind": "Cluster", "name": "prod", "cluster_template": "base", "labels": {"site": "fra1"}},
        {"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"], "labels": {"tier": "gold", "debug": null}},
        {"kind": "Node", "name": "web-1", "nodegroup": "prod/web"},
    ]);
    let applied = served.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
    assert_eq!(applied["objects"].as_array().map(Vec::len), Some(5), "{applied}");
}

#[tokio::test]
async fn node_resolution_shows_origin_of_each_value() {
    let served = TestApi::start().await;
    site(&served).await;
    let resolved = served.get("/v1/nodes/web-1/resolved").await;
    assert_eq!(resolved["labels"], json!({"site": "fra1", "tier": "gold"}));
    assert_eq!(resolved["origins"]["labels"], json!({"site": "cluster", "tier": "nodegroup"}));
    assert_eq!(resolved["tasks"], json!(["conf"]));
    assert_eq!(resolved["inputs"], json!({"labels.tier": {"value": "gold"}}));
    let explained = served.get("/v1/nodes/web-1/explain?label=debug").await;
    let results: Vec<&str> =
        explained["levels"].as_array().expect("levels").iter().filter_map(|level| level["result"].as_str()).collect();
    assert_eq!(explained["value"], Value::Null);
    assert_eq!(results, ["stopped by the nodegroup", "says nothing", "stops what is above", "says nothing"]);
    let explained = served.get("/v1/nodes/web-1/explain?label=tier").await;
    assert_eq!((&explained["value"], &explained["used_by"]), (&json!("gold"), &json!(["conf"])));
}

#[tokio::test]
async fn apply_is_atomic() {
    let served = TestApi::start().await;
    site(&served).await;
    let again = json!({"objects": [{"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "standard", "debug": "true"}}]});
    let unchanged = served.expect("POST", "/v1/apply?manager=git", &again, 200).await;
    assert_eq!(unchanged["objects"][0]["action"], "unchanged");
    let half = json!({"objects": [{"kind": "ClusterTemplate", "name": "base", "labels": {"tier": "other"}}, {"kind": "Cluster", "name": "x", "cluster_template": "nope"}]});
    let refused = served.send("POST", "/v1/apply?manager=git", &[], Some(&half)).await;
    assert_eq!((refused.status, refused.kind()), (400, "reference.dangling"));
    assert_eq!(served.get("/v1/clustertemplates/base").await["labels"]["tier"], "standard");
    let by_another = json!({"objects": [{"kind": "ClusterTemplate", "name": "base", "labels": {"tier": "bronze"}}]});
    let conflict = served.send("POST", "/v1/apply?manager=hand", &[], Some(&by_another)).await;
    assert_eq!((conflict.status, conflict.kind()), (409, "label.conflict"));
    assert_eq!(
        conflict.body["conflicts"],
        json!([{"map": "labels", "key": "tier", "manager": "git:apply", "value": "standard"}])
    );
}

#[tokio::test]
async fn delete_fails_when_object_is_referenced() {
    let served = TestApi::start().await;
    site(&served).await;
    for (path, part) in [
        ("/v1/releases/site@1", "clustertemplate base"),
        ("/v1/clustertemplates/base", "cluster prod"),
        ("/v1/clusters/prod", "node web-1"),
        ("/v1/clusters/prod/nodegroups/web", "node web-1"),
    ] {
        let refused = served.send("DELETE", path, &[], None).await;
        assert_eq!((refused.status, refused.kind()), (409, "object.in_use"), "{path}");
        assert!(refused.message().contains(part), "{path}: {}", refused.message());
    }
    for path in ["/v1/nodes/web-1", "/v1/clusters/prod", "/v1/clustertemplates/base", "/v1/releases/site@1"] {
        let gone = served.send("DELETE", path, &[], None).await;
        assert_eq!(gone.status, 204, "{path}: {}", gone.body);
        assert_eq!(served.send("GET", path, &[], None).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn node_tags_follow_roles_and_manual_assignment() {
    let served = TestApi::start().await;
    site(&served).await;
    assert_eq!(served.get("/v1/nodes/web-1").await["tags"], json!(["nginx"]));
    served.expect("POST", "/v1/clusters/prod/tags", &json!({"name": "canary"}), 201).await;
    let assign = served.send("PUT", "/v1/nodes/web-1/tags/canary", &[], None).await;
    assert_eq!(assign.status, 204, "{}", assign.body);
    assert_eq!(served.get("/v1/nodes/web-1").await["tags"], json!(["canary", "nginx"]));
    let both = served.expect("POST", "/v1/nodes/web-1/tags", &json!({"unassign": ["nginx"]}), 200).await;
    assert_eq!(both["effective"], json!(["canary"]));
    let in_use = served.send("DELETE", "/v1/clusters/prod/tags/canary", &[], None).await;
    assert_eq!((in_use.status, in_use.kind()), (409, "object.in_use"));
    let unknown = served.send("PUT", "/v1/nodes/web-1/tags/nope", &[], None).await;
    assert_eq!((unknown.status, unknown.kind()), (400, "tag.unknown"));
    let role = served.send("POST", "/v1/nodes/web-1/roles", &[], Some(&json!({"roles": ["db"]}))).await;
    assert_eq!((role.status, role.kind()), (400, "role.invalid"));
}

#[tokio::test]
async fn api_error_names_field_cause_and_fix() {
    let served = TestApi::start().await;
    site(&served).await;
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
            "of task 'a': it names no blob: write sha256: and 64 hexadecimal digits in small letters",
        ),
    ] {
        let refused = served.send("POST", "/v1/apply", &[], Some(&body)).await;
        assert_eq!((refused.status, refused.kind()), (400, kind), "{}", refused.body);
        assert!(refused.message().contains(message), "{}\nwants: {message}", refused.message());
    }
}

#[tokio::test]
async fn plain_listener_rejects_foreign_client_and_origin() {
    let served = TestApi::start().await;
    for (headers, status, kind) in [
        (vec![("host", "evil.example:80")], 400, "request.host"),
        (vec![("origin", "http://evil.example")], 403, "request.origin"),
        (vec![("origin", "http://localhost")], 200, ""),
    ] {
        let answer = served.send("GET", "/v1/clusters", &headers, None).await;
        assert_eq!(answer.status, status, "{headers:?}");
        assert_eq!(answer.kind(), kind, "{headers:?}");
    }
}

#[tokio::test]
async fn json_body_is_bounded() {
    let served = TestApi::start().await;
    let deep = format!("{{\"name\":\"x\",\"extra\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    for body in ["{\"name\":\"a\",\"name\":\"b\"}", "{\"name\":", "[]", "\"x\"", "{\"name\":\"\\ud800\"}", deep.as_str()] {
        let refused = served.send_text("POST", "/v1/nodes", &[], body).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert!(refused.body["error_message"].is_string(), "Ironic's clients read it: {}", refused.body);
    }
}

#[tokio::test]
async fn nil_uuid_is_rejected_as_node() {
    let served = TestApi::start().await;
    let nil = "00000000-0000-0000-0000-000000000000";
    let why = "the nil uuid cannot identify a host: omit uuid, and the node gets a generated one";
    for uuid in [nil, "00000000000000000000000000000000", &format!("urn:uuid:{nil}")] {
        let refused = served.send("POST", "/v1/nodes", &[], Some(&json!({"name": "web-1", "uuid": uuid}))).await;
        assert_eq!((refused.status, refused.kind()), (400, "field.invalid"), "{}", refused.body);
        assert_eq!(refused.body["error"]["detail"], json!(why));
        let objects = json!([{"kind": "Node", "name": "web-1", "uuid": uuid}]);
        let refused = served.send("POST", "/v1/apply?manager=git", &[], Some(&json!({"objects": objects}))).await;
        assert_eq!((refused.status, &refused.body["error"]["field"]), (400, &json!("objects[0].uuid")));
        assert!(refused.message().ends_with(why), "{}", refused.body);
    }
    let none: Vec<Value> = Vec::new();
    assert_eq!(served.get("/v1/nodes").await["nodes"], json!(none));
}

/// Returns labels `KEY00`, `KEY01`, …, each with a value of this size.
fn labels(key: &str, count: usize, bytes: usize) -> Value {
    (0..count).map(|n| (format!("{key}{n:02}"), json!("v".repeat(bytes)))).collect::<serde_json::Map<_, _>>().into()
}

#[tokio::test]
async fn write_fails_when_desired_state_would_be_too_large() {
    let served = TestApi::start().await;
    let apply = async |objects: Value| served.send("POST", "/v1/apply?force=true", &[], Some(&json!({"objects": objects}))).await;
    let refused = async |objects: Value, kind: &str, message: &str| {
        let answer = apply(objects).await;
        assert_eq!((answer.status, answer.kind(), answer.message()), (400, kind, message));
        assert!(
            answer.body["error"]["detail"]
                .as_str()
                .is_some_and(|detail| detail.contains("smaller") || detail.contains("shorter"))
        );
    };
    let cluster = |labels: Value| json!({"kind": "Cluster", "name": "c", "labels": labels});
    let group = |labels: Value| json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": labels});
    let node = |more: Value| {
        let mut node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g"});
        node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node
    };
    let limit = |bytes: usize, level: &str| {
        format!("the effective labels have at most 65536 bytes together, these {bytes} of {level} would; nothing was changed")
    };
    refused(json!([cluster(labels("c", 99, 4096))]), "label.invalid", &limit(99 * 4099, "cluster c")).await;
    assert_eq!(apply(json!([cluster(labels("c", 10, 4093)), group(json!({})), node(json!({}))])).await.status, 200);
    refused(json!([group(labels("g", 10, 4093))]), "label.invalid", &limit(20 * 4096, "nodegroup c/g")).await;
    refused(json!([node(json!({"labels": labels("n", 7, 4093)}))]), "label.invalid", &limit(17 * 4096, "node n")).await;
    assert_eq!(apply(json!([group(labels("c", 10, 4094))])).await.status, 200, "what overrides adds nothing");
    assert_eq!(apply(json!([node(json!({"labels": labels("n", 5, 4093)}))])).await.status, 200);
    refused(json!([cluster(labels("x", 10, 2048))]), "label.invalid", &limit(10 * 2051 + 10 * 4097 + 5 * 4096, "node n")).await;

    let annotations = labels("a", 50, 4093);
    let mut large = cluster(labels("c", 10, 4093));
    large["annotations"] = annotations;
    let answer = apply(json!([large])).await;
    assert_eq!((answer.status, answer.kind()), (400, "object.invalid"));
    assert!(answer.message().starts_with("node n: the desired state has 2"), "{}", answer.message());
    assert!(answer.message().ends_with("at most 262144 are allowed; nothing was changed"), "{}", answer.message());
    assert_eq!(served.get("/v1/clusters/c").await["annotations"], json!({}), "nothing was changed");
}

#[tokio::test]
async fn map_writes_apply_same_bounds_and_merge_in_every_form() {
    let served = TestApi::start().await;
    let apply = [("content-type", "application/apply-patch+json")];
    let merge = [("content-type", "application/merge-patch+json")];
    served.expect("POST", "/v1/clustertemplates", &json!({"name": "t"}), 201).await;
    let at = "/v1/clustertemplates/t";
    for (sent, stored) in [
        (r#"{"v": 1.50, "b": true}"#, json!({"v": "1.50", "b": "true"})),
        (r#"{"labels": {"v": 2.50}}"#, json!({"v": "2.50", "b": "true"})),
    ] {
        let answer = served.send_text("PATCH", &format!("{at}/labels"), &merge, sent).await;
        assert_eq!((answer.status, &answer.body["labels"]), (200, &stored), "{sent}: {}", answer.body);
    }
    let large = labels("a", 70, 4096);
    let answer = served.send("POST", "/v1/clustertemplates", &[], Some(&json!({"name": "u", "annotations": large}))).await;
    assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{}", answer.body);
    assert_eq!(answer.body["error"]["field"], "annotations");
    let body = json!({"objects": [{"kind": "Cluster", "name": "c"}]});
    served.expect("POST", "/v1/apply", &body, 200).await;
    let at = "/v1/clusters/c";
    for (sent, merges) in [(json!(false), false), (json!(true), true)] {
        let body = json!({"labels": {"v": "3"}, "merge_labels": sent});
        let answer = served.send("PATCH", &format!("{at}?force=true"), &apply, Some(&body)).await;
        assert_eq!((answer.status, &answer.body["merge_labels"]), (200, &json!(merges)), "{}", answer.body);
    }
    let body = json!({"labels": {"v": "3"}, "merge_labels": "perhaps"});
    let answer = served.send("PATCH", &format!("{at}?force=true"), &apply, Some(&body)).await;
    assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{}", answer.body);
}

#[tokio::test]
async fn registry_answers_each_when_forty_writers_share_object() {
    let served = std::sync::Arc::new(TestApi::start().await);
    served.expect("POST", "/v1/clustertemplates", &json!({"name": "busy"}), 201).await;
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..40 {
        let served = std::sync::Arc::clone(&served);
        writers.spawn(async move {
            let body = json!({format!("w{n}"): n.to_string()});
            let headers = [("content-type", "application/merge-patch+json")];
            served.send("PATCH", "/v1/clustertemplates/busy/labels", &headers, Some(&body)).await
        });
    }
    for answer in writers.join_all().await {
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let labels = served.get("/v1/clustertemplates/busy").await["labels"].clone();
    assert_eq!(labels.as_object().map(serde_json::Map::len), Some(40), "{labels}");
}

#[tokio::test]
async fn head_returns_headers_of_get() {
    let served = TestApi::start().await;
    for (path, status) in [("/v1/nodes", 200), ("/healthz", 200), ("/v1/nodes/absent", 404)] {
        let get = served.send("GET", path, &[], None).await;
        let head = served.send("HEAD", path, &[], None).await;
        assert_eq!((get.status, head.status), (status, status), "{path}");
        assert!(head.body.is_null(), "{path}: {}", head.body);
    }
    assert_eq!(served.send("HEAD", "/v1/apply", &[], None).await.status, 405);
}

#[tokio::test]
async fn patch_rejects_change_of_uuid() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/nodes", &json!({"name": "n1"}), 201).await;
    let patch = json!([{"op": "replace", "path": "/uuid", "value": "6f1e2b1e-0000-4000-8000-000000000001"}]);
    let headers = [("content-type", "application/json-patch+json")];
    let answer = served.send("PATCH", "/v1/nodes/n1", &headers, Some(&patch)).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.message().starts_with("/uuid cannot be changed"), "{}", answer.message());
}

#[tokio::test]
async fn node_list_is_empty_when_filtering_for_deleting() {
    let served = TestApi::start().await;
    for name in ["goes", "stays"] {
        served.expect("POST", "/v1/nodes", &json!({"name": name}), 201).await;
    }
    let listed = async |filter: &str| {
        let nodes = served.get(&format!("/v1/nodes?{filter}")).await["nodes"].clone();
        let mut names: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["name"].clone()).collect();
        names.sort_by_key(ToString::to_string);
        json!(names)
    };
    assert_eq!(listed("deleting=false").await, json!(["goes", "stays"]));
    assert_eq!(listed("deleting=true").await, json!([]));
    served.expect("DELETE", "/v1/nodes/goes", &Value::Null, 204).await;
    assert_eq!(served.send("GET", "/v1/nodes/goes", &[], None).await.status, 404);
    assert_eq!(listed("deleting=true").await, json!([]), "nothing of it is left to be done");
    assert_eq!(listed("deleting=false").await, json!(["stays"]));
    let refused = served.send("GET", "/v1/nodes?deleting=maybe", &[], None).await;
    assert_eq!((refused.status, refused.kind()), (400, "request.query"));
}

#[tokio::test]
async fn trait_filters_require_version_1_37() {
    let served = TestApi::start().await;
    for name in ["traits", "traits-any", "not-traits", "not-traits-any"] {
        for (version, status) in [("1.36", 406), ("1.37", 200)] {
            let headers = [("x-openstack-ironic-api-version", version)];
            let answer = served.send("GET", &format!("/v1/nodes?{name}=CUSTOM_A"), &headers, None).await;
            assert_eq!(answer.status, status, "{name} at {version}: {}", answer.body);
        }
        assert_eq!(served.send("GET", &format!("/v1/nodes?{name}=CUSTOM_A"), &[], None).await.status, 200);
    }
}
