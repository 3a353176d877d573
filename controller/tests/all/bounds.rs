//! Tests of limits: on the size of each field and of a whole object, on empty values, and on the number of objects.

use serde_json::{Map, Value, json};
use stemma_wire::endpoint::{Endpoint, RouteMatch, SocketKind, find_route};
use stemma_wire::message::hash_content;

use crate::served::{ApiResponse, TestApi};

/// Applies one object, and returns the response.
async fn apply(api: &TestApi, object: &Value) -> ApiResponse {
    api.send("POST", "/v1/apply", &[], Some(&json!({"objects": [object]}))).await
}

/// Returns a map with `count` values of `bytes` bytes each.
fn text_map(count: usize, bytes: usize) -> Value {
    (0..count).map(|n| (format!("k{n}"), "v".repeat(bytes).into())).collect::<Map<String, Value>>().into()
}

/// Eight fields of 60,000 bytes are below the limit of 524,288 bytes, and a ninth exceeds it.
#[tokio::test]
async fn x03_f04_object_size_is_limited() {
    let api = TestApi::start().await;
    let large_value = json!({"a": "x".repeat(60_000)});
    let mut node = json!({"kind": "Node", "name": "n"});
    for field in ["clean_step", "deploy_step", "driver_info", "driver_internal_info", "extra", "network_data"] {
        node[field] = large_value.clone();
    }
    node["properties"] = large_value.clone();
    node["instance_info"] = large_value.clone();
    let creation = apply(&api, &node).await;
    assert_eq!(creation.status, 200, "{}", creation.body);
    let node_before = api.get("/v1/nodes/n").await;
    let patch = json!({"annotations": large_value});
    let refusal = api.send("PATCH", "/v1/nodes/n", &[MERGE], Some(&patch)).await;
    assert_eq!((refusal.status, refusal.kind()), (413, "object.too_large"), "{}", refusal.body);
    let message = refusal.message();
    assert!(message.starts_with("node n would take ") && message.ends_with("; nothing was changed"), "{message}");
    assert!(message.contains("and the limit is 524288"), "{message}");
    assert_eq!(api.get("/v1/nodes/n").await, node_before);
    let smaller = json!({"annotations": large_value, "extra": null});
    let response = api.send("PATCH", "/v1/nodes/n", &[MERGE], Some(&smaller)).await;
    assert_eq!(response.status, 200, "{}", response.body);
}

const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

#[tokio::test]
async fn cluster_accepts_maps_up_to_limits() {
    let api = TestApi::start().await;
    let cluster = json!({
        "kind": "Cluster", "name": "c", "labels": text_map(15, 4_000), "annotations": text_map(250, 1_000),
        "parameters": text_map(60, 1_000),
    });
    let response = apply(&api, &cluster).await;
    assert_eq!(response.status, 200, "{}", response.body);
}

/// A cluster has at most 256 tags. After one is deleted, another can be added.
#[tokio::test]
async fn x03_f07_tag_count_is_limited_when_added_singly() {
    let api = TestApi::start().await;
    let tags: Map<String, Value> = (0..256).map(|n| (format!("t{n}"), json!({}))).collect();
    let response = apply(&api, &json!({"kind": "Cluster", "name": "c", "tags": tags})).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let path = "/v1/clusters/c/tags";
    let refusal = api.send("POST", path, &[], Some(&json!({"name": "more"}))).await;
    assert_eq!((refusal.status, refusal.kind()), (400, "field.invalid"), "{}", refusal.body);
    assert!(refusal.message().contains("tags: it has 257 entries, and the maximum is 256"), "{}", refusal.body);
    assert_eq!(api.send("DELETE", &format!("{path}/t7"), &[], None).await.status, 204);
    api.expect("POST", path, &json!({"name": "more"}), 201).await;
}

#[tokio::test]
async fn x03_f08_allocation_rejects_too_many_traits() {
    let api = TestApi::start().await;
    let traits: Vec<String> = (0..200_000).map(|n| format!("CUSTOM_{n}")).collect();
    let body = json!({"resource_class": "small", "traits": traits});
    let refusal = api.send("POST", "/v1/allocations", &[], Some(&body)).await;
    assert_eq!(refusal.status, 400, "{}", refusal.body);
    assert!(refusal.message().contains("traits: it has 200000 entries, and the maximum is 50"), "{}", refusal.body);
}

/// A path that ends after the slash does not name all traits.
#[tokio::test]
async fn x06_empty_trait_name_is_rejected() {
    let api = TestApi::start().await;
    let creation = apply(&api, &json!({"kind": "Node", "name": "n", "traits": ["CUSTOM_A"]})).await;
    assert_eq!(creation.status, 200, "{}", creation.body);
    for method in ["PUT", "DELETE"] {
        let response = api.send(method, "/v1/nodes/n/traits/", &[], Some(&json!({"traits": []}))).await;
        assert_eq!((response.status, response.kind()), (404, "path.unknown"), "{method}: {}", response.body);
    }
    assert_eq!(api.get("/v1/nodes/n/traits").await["traits"], json!(["CUSTOM_A"]));
}

/// A `DELETE` accepts no body but an empty object, which counts as no body. Regression: a `DELETE` of the traits of a
/// node deleted all traits, whatever the body named.
#[tokio::test]
async fn x06_delete_rejects_body() {
    let api = TestApi::start().await;
    let node = json!({"kind": "Node", "name": "n", "traits": ["CUSTOM_A", "CUSTOM_B"]});
    assert_eq!(apply(&api, &node).await.status, 200);
    for body in [json!({"traits": ["CUSTOM_A"]}), json!({"traits": []}), json!([]), json!("CUSTOM_A")] {
        for path in ["/v1/nodes/n/traits", "/v1/nodes/n", "/v1/inspection_rules", "/v1/nodes/n/traits/CUSTOM_B"] {
            let response = api.send("DELETE", path, &[], Some(&body)).await;
            assert_eq!((response.status, response.kind()), (400, "field.invalid"), "{path} {body}: {}", response.body);
        }
    }
    assert_eq!(api.get("/v1/nodes/n/traits").await["traits"], json!(["CUSTOM_A", "CUSTOM_B"]));
    api.expect("DELETE", "/v1/nodes/n/traits", &json!({}), 204).await;
}

/// Each rejected name is a space or a character that shows nothing.
#[tokio::test]
async fn x06_blank_namespace_name_is_rejected() {
    let api = TestApi::start().await;
    for name in [" ", "\u{200b}", "\u{2800}", "\u{3164}"] {
        let post_response = api.send("POST", "/v2/metadefs/namespaces", &[], Some(&json!({"namespace": name}))).await;
        let apply_response = apply(&api, &json!({"kind": "Namespace", "namespace": name})).await;
        for response in [post_response, apply_response] {
            let text = response.body.to_string();
            assert!(response.status == 400 && text.contains("or blanks alone"), "{name:?}: {text}");
        }
    }
    api.expect("POST", "/v2/metadefs/namespaces", &json!({"namespace": "a b"}), 201).await;
}

#[tokio::test]
async fn x06_filter_rejects_empty_value() {
    let api = TestApi::start().await;
    let creation = apply(&api, &json!({"kind": "Node", "name": "n"})).await;
    assert_eq!(creation.status, 200, "{}", creation.body);
    for path in [
        "/v1/nodes?fields=",
        "/v1/nodes?fields=name,",
        "/v1/nodes?fields=,",
        "/v1/nodes/n?fields=name,,uuid",
        "/v1/nodes?resource_class=",
        "/v1/nodes?owner=",
        "/v1/nodes?instance_uuid=",
        "/v1/nodes/n/explain?label=",
        "/v1/nodes/n/explain?tag=%20",
        "/v1/explain?label=",
        "/v1/audit?object=node/",
        "/v1/audit?object=nodegroup/c/",
        "/v1/audit?object=nodegroup//g",
        "/v2/metadefs/namespaces?resource_types=",
    ] {
        let refusal = api.send("GET", path, &[], None).await;
        assert_eq!((refusal.status, refusal.kind()), (400, "request.query"), "{path}: {}", refusal.body);
    }
    // As Ironic responds to its own clients: empty field names are ignored, and no node has the class "".
    let ironic_header = [("x-openstack-ironic-api-version", "1.37")];
    let list = api.send("GET", "/v1/nodes?resource_class=", &ironic_header, None).await;
    assert_eq!((list.status, &list.body["nodes"]), (200, &json!([])), "{}", list.body);
    let selection = api.send("GET", "/v1/nodes/n?fields=uuid,", &ironic_header, None).await;
    assert_eq!(selection.status, 200, "{}", selection.body);
    assert!(selection.body["uuid"].is_string() && selection.body.get("name").is_none(), "{}", selection.body);
}

/// Returns a path of the endpoint, and checks that this path leads to the endpoint. Each part in braces becomes a name,
/// and `{map}` the name of a map.
fn endpoint_path(endpoint: Endpoint) -> String {
    let route = endpoint.route();
    let part = |part: &str| match part {
        "{map}" => "labels".to_owned(),
        part if part.starts_with('{') => "x".to_owned(),
        part => part.to_owned(),
    };
    let path = route.path.split('/').map(part).collect::<Vec<_>>().join("/");
    let is_found = matches!(find_route(route.listener, route.method.as_str(), &path), RouteMatch::Route(route_endpoint, _) if route_endpoint == endpoint);
    assert!(is_found, "{path}");
    path
}

/// Tests every parameter of every endpoint of the admin listener. Parameters of the paths of nodes are also tested for
/// the clients of Ironic, except the parameters in the constant, which these clients may leave empty.
#[tokio::test]
async fn x06_every_query_parameter_rejects_empty_value() {
    const MAY_BE_EMPTY_IN_IRONIC: [&str; 8] =
        ["fields", "resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];
    let api = TestApi::start().await;
    let ironic_header = [("x-openstack-ironic-api-version", "1.96")];
    let mut tested_count = 0;
    for endpoint in Endpoint::ALL.iter().copied().filter(|candidate| candidate.route().listener == SocketKind::Admin) {
        let (path, method) = (endpoint_path(endpoint), endpoint.route().method.as_str());
        let dry_run = endpoint.has_dry_run().then_some("dry_run");
        for name in endpoint.route().query.parameter_names().chain(dry_run) {
            for value in ["", "%20", "+", "%09", "%E2%80%8B"] {
                let address = format!("{path}?{name}={value}");
                let refusal = api.send(method, &address, &[], None).await;
                assert_eq!((refusal.status, refusal.kind()), (400, "request.query"), "{method} {address}: {}", refusal.body);
            }
            if path.starts_with("/v1/nodes") && !MAY_BE_EMPTY_IN_IRONIC.contains(&name) {
                let address = format!("{path}?{name}=");
                let refusal = api.send(method, &address, &ironic_header, None).await;
                assert_eq!(refusal.status, 400, "{method} {address}: {}", refusal.body);
            }
            tested_count += 1;
        }
    }
    assert!(tested_count > 300, "only {tested_count} parameters were tested");
}

/// The call `owners` gives keys to another manager, and `tombstones` ends the inheritance of keys.
#[tokio::test]
async fn x06_map_call_rejects_empty_keys() {
    let api = TestApi::start().await;
    let creation = apply(&api, &json!({"kind": "Cluster", "name": "c"})).await;
    assert_eq!(creation.status, 200, "{}", creation.body);
    let cluster_before = api.get("/v1/clusters/c").await;
    for map in ["labels", "annotations", "parameters"] {
        for (call, keys) in [("owners", json!([])), ("tombstones", json!([])), ("tombstones", json!([""]))] {
            let body = match call {
                "owners" => json!({"from": "a", "to": "b", "keys": keys}),
                _ => json!({"keys": keys}),
            };
            let path = format!("/v1/clusters/c/{map}/{call}");
            let refusal = api.send("POST", &path, &[], Some(&body)).await;
            assert_eq!(refusal.status, 400, "{path} {body}: {}", refusal.body);
        }
    }
    assert_eq!(api.get("/v1/clusters/c").await, cluster_before);
}

/// Regression: the calls `owners` and `tombstones` of a map ignored unknown fields of the body.
#[tokio::test]
async fn map_call_rejects_unknown_field() {
    let api = TestApi::start().await;
    let creation = apply(&api, &json!({"kind": "Cluster", "name": "c", "labels": {"a": "1"}})).await;
    assert_eq!(creation.status, 200, "{}", creation.body);
    let cluster_before = api.get("/v1/clusters/c").await;
    for (call, body) in [
        ("owners", json!({"from": "a", "to": "b", "keys": ["a"], "frce": true})),
        ("tombstones", json!({"keys": ["a"], "reson": "x"})),
    ] {
        let refusal = api.send("POST", &format!("/v1/clusters/c/labels/{call}"), &[], Some(&body)).await;
        assert_eq!(refusal.status, 400, "{call}: {}", refusal.body);
        assert!(refusal.body.to_string().contains("field.unknown"), "{call}: {}", refusal.body);
    }
    assert_eq!(api.get("/v1/clusters/c").await, cluster_before);
}

#[tokio::test]
async fn x06_ironic_fields_reject_empty_name_and_key() {
    let api = TestApi::start().await;
    let creation = apply(&api, &json!({"kind": "Node", "name": "n"})).await;
    assert_eq!(creation.status, 200, "{}", creation.body);
    let node_before = api.get("/v1/nodes/n").await;
    let fields = ["resource_class", "owner", "lessee", "driver", "shard", "instance_uuid"].map(|name| (name, json!("")));
    let maps = ["extra", "properties", "instance_info", "driver_info"].map(|name| (name, json!({"": 1})));
    for (field, value) in fields.into_iter().chain(maps) {
        let patch = json!([{"op": "add", "path": format!("/{field}"), "value": value}]);
        let mut manifest = json!({"kind": "Node", "name": "n"});
        manifest[field] = value.clone();
        for (method, path, header, body) in [
            ("POST", "/v1/nodes", "application/json", json!({"name": "m", field: value})),
            ("PATCH", "/v1/nodes/n", "application/merge-patch+json", json!({field: value})),
            ("PATCH", "/v1/nodes/n", "application/json-patch+json", patch),
            ("POST", "/v1/apply", "application/json", json!({"objects": [manifest]})),
        ] {
            let refusal = api.send(method, path, &[("content-type", header)], Some(&body)).await;
            assert_eq!((refusal.status, refusal.kind()), (400, "field.invalid"), "{method} {body}: {}", refusal.body);
        }
    }
    let key = json!([{"op": "add", "path": "/extra/", "value": 1}]);
    let refusal = api.send("PATCH", "/v1/nodes/n", &[("content-type", "application/json")], Some(&key)).await;
    assert_eq!((refusal.status, refusal.kind()), (400, "field.invalid"), "{}", refusal.body);
    assert_eq!(api.get("/v1/nodes/n").await, node_before);
}

#[tokio::test]
async fn x06_empty_host_label_pattern_is_rejected() {
    let api = TestApi::start().await;
    for object in
        [json!({"kind": "Cluster", "name": "c", "tags": {"t": {}}}), json!({"kind": "NodeGroup", "cluster": "c", "name": "g"})]
    {
        let creation = apply(&api, &object).await;
        assert_eq!(creation.status, 200, "{}", creation.body);
    }
    let path = "/v1/clusters/c/nodegroups/g";
    let merge = json!({"host_labels": {"patterns": [""]}});
    let patch = json!([{"op": "add", "path": "/host_labels", "value": {"patterns": [""]}}]);
    let group = json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "host_labels": {"patterns": [""]}});
    let new_group = json!({"name": "h", "host_labels": {"patterns": [""]}});
    for (method, path, header, body) in [
        ("PATCH", path, "application/merge-patch+json", merge),
        ("PATCH", path, "application/json-patch+json", patch),
        ("POST", "/v1/clusters/c/nodegroups", "application/json", new_group),
        ("POST", "/v1/apply", "application/json", json!({"objects": [group]})),
    ] {
        let refusal = api.send(method, path, &[("content-type", header)], Some(&body)).await;
        assert_eq!((refusal.status, refusal.kind()), (400, "field.invalid"), "{method} {path}: {}", refusal.body);
        assert!(refusal.message().contains("host_labels.patterns[0]: is empty"), "{}", refusal.body);
    }
}

/// In this test, each principal may store 2 MiB of file bodies that neither a release nor a released task set names.
/// Regression: file bodies had no limit, so any principal that may send them could fill the disk.
#[tokio::test]
async fn x03_unnamed_file_bodies_are_limited() {
    let api = TestApi::start().await;
    let mebibyte = 1 << 20;
    let [first, second, third] = ["a", "b", "c"].map(|letter| letter.repeat(mebibyte));
    let put = async |body: &str| {
        let path = format!("/v1/blobs/{}", hash_content(body.as_bytes()));
        api.send_text("PUT", &path, &[("content-type", "application/octet-stream")], body).await
    };
    assert_eq!((put(&first).await.status, put(&second).await.status), (204, 204));
    let refusal = put(&third).await;
    assert_eq!((refusal.status, &refusal.body["error"]["type"]), (413, &json!("blob.no_room")), "{}", refusal.body);
    let expected = "a file body of 1048576 bytes exceeds the limit for bodies that no release and no released task set names: your bodies take 2097152 bytes of 2097152; nothing was stored";
    assert_eq!(refusal.message(), expected);
    assert!(refusal.body["error"]["detail"].as_str().is_some_and(|text| text.contains("unnamed_files_mebibytes")));
    assert_eq!(put(&first).await.status, 204, "the controller has this body already");
    let source = format!("sha256:{}", hash_content(first.as_bytes()));
    let task = json!({"id": "f", "type": "file", "tags": ["t"], "parameters": {"path": "/etc/f", "source": source}});
    let release = json!({"kind": "Release", "name": "site", "version": "1", "tasks": [task],
        "roles": {"r": {"tags": ["t"]}}, "tags": {"t": {}}});
    assert_eq!(apply(&api, &release).await.status, 200);
    assert_eq!(put(&third).await.status, 204, "a body that a release names no longer counts");
}

/// Regression: an operator that was bound to a cluster created 24,000 nodes in a minute, without any limit.
#[tokio::test]
async fn x03_node_count_is_limited_per_fleet_and_cluster() {
    let api = TestApi::start_with_max_nodes(4).await;
    let node = |name: &str, group: &str| json!({"kind": "Node", "name": name, "nodegroup": group});
    let send = async |objects: Value| api.send("POST", "/v1/apply", &[], Some(&json!({"objects": objects}))).await;
    let creation = send(json!([
        {"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Cluster", "name": "d"}, {"kind": "NodeGroup", "cluster": "d", "name": "g"},
        node("n1", "c/g"),
    ]))
    .await;
    assert_eq!(creation.status, 200, "{}", creation.body);
    // A cluster may have half of the four nodes that the fleet may have. The objects of one apply are counted together.
    let refusal = send(json!([node("n2", "c/g"), node("n3", "c/g")])).await;
    assert_eq!((refusal.status, refusal.kind()), (409, "object.too_many"), "{}", refusal.body);
    assert_eq!(refusal.message(), "cluster c would have 3 nodes (1 now), and the limit is 2; nothing was changed");
    assert_eq!(api.get("/v1/nodes").await["nodes"].as_array().map(Vec::len), Some(1));
    let creation = send(json!([node("n2", "c/g"), node("n3", "d/g"), node("n4", "d/g")])).await;
    assert_eq!(creation.status, 200, "{}", creation.body);
    let refusal = api.send("POST", "/v1/nodes", &[], Some(&json!({"name": "n5"}))).await;
    assert_eq!((refusal.status, refusal.kind()), (409, "object.too_many"), "{}", refusal.body);
    assert_eq!(refusal.message(), "the fleet would have 5 nodes (4 now), and the limit is 4; nothing was changed");
    let detail = refusal.body["error"]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("most_nodes in the controller's configuration"), "{}", refusal.body);
    // A move adds a node to the new cluster. An edit adds none, and a deletion makes room for a new node.
    let refusal = send(json!([node("n4", "c/g")])).await;
    assert_eq!((refusal.status, refusal.kind()), (409, "object.too_many"), "{}", refusal.body);
    let update = send(json!([{"kind": "Node", "name": "n4", "nodegroup": "d/g", "description": "x"}])).await;
    assert_eq!(update.status, 200, "{}", update.body);
    assert_eq!(api.send("DELETE", "/v1/nodes/n4", &[], None).await.status, 204);
    let creation = send(json!([node("n5", "d/g")])).await;
    assert_eq!(creation.status, 200, "{}", creation.body);
}

/// A fleet of at most two nodes can have two join tokens.
#[tokio::test]
async fn x03_token_count_is_limited_to_node_count() {
    let api = TestApi::start_with_max_nodes(2).await;
    let create_token = async || api.send("POST", "/v1/join-tokens", &[], Some(&json!({}))).await;
    assert_eq!((create_token().await.status, create_token().await.status), (201, 201));
    let refusal = create_token().await;
    assert_eq!((refusal.status, refusal.kind()), (409, "object.too_many"), "{}", refusal.body);
    let expected = "the fleet would have 3 join tokens (2 now), and the limit is 2; nothing was changed";
    assert_eq!(refusal.message(), expected);
}
