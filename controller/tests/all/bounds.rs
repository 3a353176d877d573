//! Size limits of one object: of each field by its type, and of the whole by its kind.

use serde_json::{Map, Value, json};
use stemma_wire::endpoint::{Endpoint, RouteMatch, SocketKind, find};
use stemma_wire::message::hash_content;

use crate::served::{ApiResponse, TestApi};

async fn apply(served: &TestApi, object: &Value) -> ApiResponse {
    served.send("POST", "/v1/apply", &[], Some(&json!({"objects": [object]}))).await
}

/// Returns a map with `count` values of `bytes` bytes each.
fn text_map(count: usize, bytes: usize) -> Value {
    (0..count).map(|n| (format!("k{n}"), "v".repeat(bytes).into())).collect::<Map<String, Value>>().into()
}

#[tokio::test]
async fn x03_f04_object_size_is_limited() {
    let served = TestApi::start().await;
    let filled = json!({"a": "x".repeat(60_000)});
    let mut node = json!({"kind": "Node", "name": "n"});
    for field in ["clean_step", "deploy_step", "driver_info", "driver_internal_info", "extra", "network_data"] {
        node[field] = filled.clone();
    }
    node["properties"] = filled.clone();
    node["instance_info"] = filled.clone();
    let made = apply(&served, &node).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let before = served.get("/v1/nodes/n").await;
    let large = json!({"annotations": filled});
    let refused = served.send("PATCH", "/v1/nodes/n", &[MERGE], Some(&large)).await;
    assert_eq!((refused.status, refused.kind()), (413, "object.too_large"), "{}", refused.body);
    let message = refused.message();
    assert!(message.starts_with("node n would take ") && message.ends_with("; nothing was changed"), "{message}");
    assert!(message.contains("and the limit is 524288"), "{message}");
    assert_eq!(served.get("/v1/nodes/n").await, before);
    let smaller = json!({"annotations": filled, "extra": null});
    let taken = served.send("PATCH", "/v1/nodes/n", &[MERGE], Some(&smaller)).await;
    assert_eq!(taken.status, 200, "{}", taken.body);
}

const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

#[tokio::test]
async fn cluster_accepts_maps_up_to_limits() {
    let served = TestApi::start().await;
    let cluster = json!({
        "kind": "Cluster", "name": "c", "labels": text_map(15, 4_000), "annotations": text_map(250, 1_000),
        "parameters": text_map(60, 1_000),
    });
    let made = apply(&served, &cluster).await;
    assert_eq!(made.status, 200, "{}", made.body);
}

#[tokio::test]
async fn x03_f07_tag_count_is_limited_when_added_singly() {
    let served = TestApi::start().await;
    let tags: Map<String, Value> = (0..256).map(|n| (format!("t{n}"), json!({}))).collect();
    let made = apply(&served, &json!({"kind": "Cluster", "name": "c", "tags": tags})).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let path = "/v1/clusters/c/tags";
    let refused = served.send("POST", path, &[], Some(&json!({"name": "more"}))).await;
    assert_eq!((refused.status, refused.kind()), (400, "field.invalid"), "{}", refused.body);
    assert!(refused.message().contains("tags: it has 257 entries, and the most are 256"), "{}", refused.body);
    assert_eq!(served.send("DELETE", &format!("{path}/t7"), &[], None).await.status, 204);
    served.expect("POST", path, &json!({"name": "more"}), 201).await;
}

#[tokio::test]
async fn x03_f08_allocation_rejects_too_many_traits() {
    let served = TestApi::start().await;
    let traits: Vec<String> = (0..200_000).map(|n| format!("CUSTOM_{n}")).collect();
    let body = json!({"resource_class": "small", "traits": traits});
    let refused = served.send("POST", "/v1/allocations", &[], Some(&body)).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.message().contains("traits: it has 200000 entries, and the most are 50"), "{}", refused.body);
}

#[tokio::test]
async fn x06_empty_trait_name_is_rejected() {
    let served = TestApi::start().await;
    let made = apply(&served, &json!({"kind": "Node", "name": "n", "traits": ["CUSTOM_A"]})).await;
    assert_eq!(made.status, 200, "{}", made.body);
    for method in ["PUT", "DELETE"] {
        let answer = served.send(method, "/v1/nodes/n/traits/", &[], Some(&json!({"traits": []}))).await;
        assert_eq!((answer.status, answer.kind()), (404, "path.unknown"), "{method}: {}", answer.body);
    }
    assert_eq!(served.get("/v1/nodes/n/traits").await["traits"], json!(["CUSTOM_A"]));
}

/// Regression: all traits were deleted, whatever the body named.
#[tokio::test]
async fn x06_delete_rejects_body() {
    let served = TestApi::start().await;
    let node = json!({"kind": "Node", "name": "n", "traits": ["CUSTOM_A", "CUSTOM_B"]});
    assert_eq!(apply(&served, &node).await.status, 200);
    for body in [json!({"traits": ["CUSTOM_A"]}), json!({"traits": []}), json!([]), json!("CUSTOM_A")] {
        for path in ["/v1/nodes/n/traits", "/v1/nodes/n", "/v1/inspection_rules", "/v1/nodes/n/traits/CUSTOM_B"] {
            let answer = served.send("DELETE", path, &[], Some(&body)).await;
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{path} {body}: {}", answer.body);
        }
    }
    assert_eq!(served.get("/v1/nodes/n/traits").await["traits"], json!(["CUSTOM_A", "CUSTOM_B"]));
    served.expect("DELETE", "/v1/nodes/n/traits", &json!({}), 204).await;
}

#[tokio::test]
async fn x06_blank_namespace_name_is_rejected() {
    let served = TestApi::start().await;
    for name in [" ", "\u{200b}", "\u{2800}", "\u{3164}"] {
        let made = served.send("POST", "/v2/metadefs/namespaces", &[], Some(&json!({"namespace": name}))).await;
        let applied = apply(&served, &json!({"kind": "Namespace", "namespace": name})).await;
        for answer in [made, applied] {
            let says = answer.body.to_string();
            assert!(answer.status == 400 && says.contains("or blanks alone"), "{name:?}: {says}");
        }
    }
    served.expect("POST", "/v2/metadefs/namespaces", &json!({"namespace": "a b"}), 201).await;
}

#[tokio::test]
async fn x06_filter_rejects_empty_value() {
    let served = TestApi::start().await;
    let made = apply(&served, &json!({"kind": "Node", "name": "n"})).await;
    assert_eq!(made.status, 200, "{}", made.body);
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
        let refused = served.send("GET", path, &[], None).await;
        assert_eq!((refused.status, refused.kind()), (400, "request.query"), "{path}: {}", refused.body);
    }
    // As Ironic responds to its own clients: empty field names are ignored, and no node has the class "".
    let of_ironic = [("x-openstack-ironic-api-version", "1.37")];
    let listed = served.send("GET", "/v1/nodes?resource_class=", &of_ironic, None).await;
    assert_eq!((listed.status, &listed.body["nodes"]), (200, &json!([])), "{}", listed.body);
    let chosen = served.send("GET", "/v1/nodes/n?fields=uuid,", &of_ironic, None).await;
    assert_eq!(chosen.status, 200, "{}", chosen.body);
    assert!(chosen.body["uuid"].is_string() && chosen.body.get("name").is_none(), "{}", chosen.body);
}

/// Returns a path of the endpoint. Each part in braces becomes a name, and `{map}` the name of a map.
fn endpoint_path(endpoint: Endpoint) -> String {
    let route = endpoint.route();
    let part = |part: &str| match part {
        "{map}" => "labels".to_owned(),
        part if part.starts_with('{') => "x".to_owned(),
        part => part.to_owned(),
    };
    let path = route.path.split('/').map(part).collect::<Vec<_>>().join("/");
    let is_found = matches!(find(route.listener, route.method.as_str(), &path), RouteMatch::Route(found, _) if found == endpoint);
    assert!(is_found, "{path}");
    path
}

/// Tests every parameter of every endpoint, for operators and for the clients of Ironic. The constant lists the
/// parameters that Ironic's clients may leave empty.
#[tokio::test]
async fn x06_every_query_parameter_rejects_empty_value() {
    const MAY_BE_EMPTY_IN_IRONIC: [&str; 8] =
        ["fields", "resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];
    let served = TestApi::start().await;
    let of_ironic = [("x-openstack-ironic-api-version", "1.96")];
    let mut tried = 0;
    for endpoint in Endpoint::ALL.iter().copied().filter(|row| row.route().listener == SocketKind::Admin) {
        let (path, method) = (endpoint_path(endpoint), endpoint.route().method.as_str());
        let dry_run = endpoint.has_dry_run().then_some("dry_run");
        for name in endpoint.route().query.parameter_names().chain(dry_run) {
            for value in ["", "%20", "+", "%09", "%E2%80%8B"] {
                let asked = format!("{path}?{name}={value}");
                let refused = served.send(method, &asked, &[], None).await;
                assert_eq!((refused.status, refused.kind()), (400, "request.query"), "{method} {asked}: {}", refused.body);
            }
            if path.starts_with("/v1/nodes") && !MAY_BE_EMPTY_IN_IRONIC.contains(&name) {
                let asked = format!("{path}?{name}=");
                let refused = served.send(method, &asked, &of_ironic, None).await;
                assert_eq!(refused.status, 400, "{method} {asked}: {}", refused.body);
            }
            tried += 1;
        }
    }
    assert!(tried > 300, "{tried} parameters: the table has more");
}

#[tokio::test]
async fn x06_map_call_rejects_empty_keys() {
    let served = TestApi::start().await;
    let made = apply(&served, &json!({"kind": "Cluster", "name": "c"})).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let before = served.get("/v1/clusters/c").await;
    for map in ["labels", "annotations", "parameters"] {
        for (call, keys) in [("owners", json!([])), ("tombstones", json!([])), ("tombstones", json!([""]))] {
            let body = match call {
                "owners" => json!({"from": "a", "to": "b", "keys": keys}),
                _ => json!({"keys": keys}),
            };
            let path = format!("/v1/clusters/c/{map}/{call}");
            let refused = served.send("POST", &path, &[], Some(&body)).await;
            assert_eq!(refused.status, 400, "{path} {body}: {}", refused.body);
        }
    }
    assert_eq!(served.get("/v1/clusters/c").await, before);
}

#[tokio::test]
async fn x06_ironic_fields_reject_empty_name_and_key() {
    let served = TestApi::start().await;
    let made = apply(&served, &json!({"kind": "Node", "name": "n"})).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let before = served.get("/v1/nodes/n").await;
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
            let refused = served.send(method, path, &[("content-type", header)], Some(&body)).await;
            assert_eq!((refused.status, refused.kind()), (400, "field.invalid"), "{method} {body}: {}", refused.body);
        }
    }
    let key = json!([{"op": "add", "path": "/extra/", "value": 1}]);
    let refused = served.send("PATCH", "/v1/nodes/n", &[("content-type", "application/json")], Some(&key)).await;
    assert_eq!((refused.status, refused.kind()), (400, "field.invalid"), "{}", refused.body);
    assert_eq!(served.get("/v1/nodes/n").await, before);
}

#[tokio::test]
async fn x06_empty_list_entry_is_rejected_in_every_form() {
    let served = TestApi::start().await;
    for object in
        [json!({"kind": "Cluster", "name": "c", "tags": {"t": {}}}), json!({"kind": "NodeGroup", "cluster": "c", "name": "g"})]
    {
        let made = apply(&served, &object).await;
        assert_eq!(made.status, 200, "{}", made.body);
    }
    let path = "/v1/clusters/c/nodegroups/g";
    let merge = json!({"host_labels": {"patterns": [""]}});
    let patch = json!([{"op": "add", "path": "/host_labels", "value": {"patterns": [""]}}]);
    let named = json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "host_labels": {"patterns": [""]}});
    let new = json!({"name": "h", "host_labels": {"patterns": [""]}});
    for (method, path, header, body) in [
        ("PATCH", path, "application/merge-patch+json", merge),
        ("PATCH", path, "application/json-patch+json", patch),
        ("POST", "/v1/clusters/c/nodegroups", "application/json", new),
        ("POST", "/v1/apply", "application/json", json!({"objects": [named]})),
    ] {
        let refused = served.send(method, path, &[("content-type", header)], Some(&body)).await;
        assert_eq!((refused.status, refused.kind()), (400, "field.invalid"), "{method} {path}: {}", refused.body);
        assert!(refused.message().contains("host_labels.patterns[0]: is empty"), "{}", refused.body);
    }
}

/// Regression: file bodies had no limit, so any principal that may send them could fill the disk.
#[tokio::test]
async fn x03_unnamed_file_bodies_are_limited() {
    let served = TestApi::start().await;
    let mebibyte = 1 << 20;
    let [first, second, third] = ["a", "b", "c"].map(|letter| letter.repeat(mebibyte));
    let put = async |body: &str| {
        let path = format!("/v1/blobs/{}", hash_content(body.as_bytes()));
        served.send_text("PUT", &path, &[("content-type", "application/octet-stream")], body).await
    };
    assert_eq!((put(&first).await.status, put(&second).await.status), (204, 204));
    let refused = put(&third).await;
    assert_eq!((refused.status, &refused.body["error"]["type"]), (413, &json!("blob.no_room")), "{}", refused.body);
    let says = "a file body of 1048576 bytes exceeds the limit for bodies that no release and no released task set names: your bodies take 2097152 bytes of 2097152; nothing was kept";
    assert_eq!(refused.message(), says);
    assert!(refused.body["error"]["detail"].as_str().is_some_and(|text| text.contains("unnamed_files_mebibytes")));
    assert_eq!(put(&first).await.status, 204, "it is here already");
    let source = format!("sha256:{}", hash_content(first.as_bytes()));
    let task = json!({"id": "f", "type": "file", "tags": ["t"], "parameters": {"path": "/etc/f", "source": source}});
    let release = json!({"kind": "Release", "name": "site", "version": "1", "tasks": [task],
        "roles": {"r": {"tags": ["t"]}}, "tags": {"t": {}}});
    assert_eq!(apply(&served, &release).await.status, 200);
    assert_eq!(put(&third).await.status, 204, "what is named has made room");
}

/// Regression: an operator that was bound to a cluster created 24,000 nodes in a minute, without any limit.
#[tokio::test]
async fn x03_object_count_is_limited_for_each_kind() {
    let served = TestApi::start_with_max_nodes(4).await;
    let node = |name: &str, group: &str| json!({"kind": "Node", "name": name, "nodegroup": group});
    let send = async |objects: Value| served.send("POST", "/v1/apply", &[], Some(&json!({"objects": objects}))).await;
    let made = send(json!([
        {"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Cluster", "name": "d"}, {"kind": "NodeGroup", "cluster": "d", "name": "g"},
        node("n1", "c/g"),
    ]))
    .await;
    assert_eq!(made.status, 200, "{}", made.body);
    // One cluster may have half of the four. The objects of one apply are counted together.
    let refused = send(json!([node("n2", "c/g"), node("n3", "c/g")])).await;
    assert_eq!((refused.status, refused.kind()), (409, "object.too_many"), "{}", refused.body);
    assert_eq!(refused.message(), "cluster c would have 3 nodes (1 now), and the limit is 2; nothing was changed");
    assert_eq!(served.get("/v1/nodes").await["nodes"].as_array().map(Vec::len), Some(1));
    let made = send(json!([node("n2", "c/g"), node("n3", "d/g"), node("n4", "d/g")])).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let refused = served.send("POST", "/v1/nodes", &[], Some(&json!({"name": "n5"}))).await;
    assert_eq!((refused.status, refused.kind()), (409, "object.too_many"), "{}", refused.body);
    assert_eq!(refused.message(), "the fleet would have 5 nodes (4 now), and the limit is 4; nothing was changed");
    let detail = refused.body["error"]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("most_nodes in the controller's configuration"), "{}", refused.body);
    // A move adds a node to the new cluster. A node without a cluster can still be created.
    let refused = send(json!([node("n4", "c/g")])).await;
    assert_eq!((refused.status, refused.kind()), (409, "object.too_many"), "{}", refused.body);
    let changed = send(json!([{"kind": "Node", "name": "n4", "nodegroup": "d/g", "description": "x"}])).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert_eq!(served.send("DELETE", "/v1/nodes/n4", &[], None).await.status, 204);
    let made = send(json!([node("n5", "d/g")])).await;
    assert_eq!(made.status, 200, "{}", made.body);
}

#[tokio::test]
async fn x03_token_count_is_limited_to_node_count() {
    let served = TestApi::start_with_max_nodes(2).await;
    let create_token = async || served.send("POST", "/v1/join-tokens", &[], Some(&json!({}))).await;
    assert_eq!((create_token().await.status, create_token().await.status), (201, 201));
    let refused = create_token().await;
    assert_eq!((refused.status, refused.kind()), (409, "object.too_many"), "{}", refused.body);
    let says = "the fleet would have 3 join tokens (2 now), and the limit is 2; nothing was changed";
    assert_eq!(refused.message(), says);
}
