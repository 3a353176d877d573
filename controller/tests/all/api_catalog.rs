//! The catalogue over HTTP in cases where the real Glance fails or says nothing, and the effect on other writes of a
//! namespace that binds keys. All other answers of Glance are tested with its recorded answers and its clients
//! (tests/tests/all/clients.rs).

use serde_json::{Value, json};

use crate::served::TestApi;

const NAMESPACES: &str = "/v2/metadefs/namespaces";

/// A namespace that binds labels and properties of nodes.
fn site() -> Value {
    json!({
        "namespace": "Site", "visibility": "public",
        "resource_type_associations": [{"name": "Stemma::Label"}, {"name": "Stemma::Property"}, {"name": "Stemma::Parameter"}],
        "properties": {
            "tier": {"title": "Tier", "description": "How soon it is mended.", "type": "string", "enum": ["gold", "silver"], "operators": ["<or>"]},
            "memory_mb": {"title": "Memory", "type": "integer", "minimum": 1, "operators": []},
        },
    })
}

async fn expect_error(served: &TestApi, method: &str, path: &str, body: Value, status: u16, kind: &str) -> String {
    let answer = served.send(method, path, &[], Some(&body).filter(|body| !body.is_null())).await;
    assert_eq!((answer.status, answer.kind()), (status, kind), "{method} {path} {body}: {}", answer.body);
    answer.body["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn catalog_returns_400_when_glance_fails_on_bad_input() {
    let served = TestApi::start().await;
    served.expect("POST", NAMESPACES, &json!({"namespace": "N"}), 201).await;
    let (properties, objects) = (format!("{NAMESPACES}/N/properties"), format!("{NAMESPACES}/N/objects"));
    for (path, name) in [(&properties, "a"), (&properties, "b"), (&objects, "a"), (&objects, "b")] {
        let body =
            if path == &properties { json!({"name": name, "title": "T", "type": "string"}) } else { json!({"name": name}) };
        served.expect("POST", path, &body, 201).await;
    }
    let with = |part: Value| {
        let mut property = json!({"name": "p", "title": "T", "type": "string"});
        property.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        property
    };
    for (method, path, body, status, kind) in [
        ("PUT", format!("{properties}/a"), json!({"name": "b", "title": "T", "type": "string"}), 409, "object.exists"),
        ("PUT", format!("{objects}/a"), json!({"name": "b"}), 409, "object.exists"),
        ("POST", NAMESPACES.to_owned(), json!([]), 400, "request.malformed"),
        ("POST", properties.clone(), json!([]), 400, "request.malformed"),
        ("POST", properties.clone(), with(json!({"enum": [1]})), 400, "field.invalid"),
        ("POST", properties.clone(), with(json!({"items": {}})), 400, "field.missing"),
        ("POST", properties.clone(), with(json!({"items": {"type": "string", "x": 1}})), 400, "field.unknown"),
        ("POST", properties.clone(), with(json!({"required": ["a"]})), 400, "field.unknown"),
        ("POST", properties.clone(), with(json!({"title": null})), 400, "field.invalid"),
        ("PUT", format!("{objects}/a"), json!({"name": "a", "properties": {"p": with(json!({"x": 1}))}}), 400, "field.unknown"),
        ("POST", NAMESPACES.to_owned(), json!({"namespace": "a/b"}), 400, "field.invalid"),
        ("POST", NAMESPACES.to_owned(), json!({"namespace": ""}), 400, "field.invalid"),
    ] {
        expect_error(&served, method, &path, body, status, kind).await;
    }
    for path in [format!("{NAMESPACES}?limit=x"), format!("{NAMESPACES}?sort_key=nosuch"), format!("{properties}/a?nosuch=1")] {
        let answer = served.send("GET", &path, &[], None).await;
        assert_eq!((answer.status, answer.kind()), (400, "request.query"), "{path}");
    }
    let unknown = served.send("GET", &format!("{NAMESPACES}?nosuch=1"), &[], None).await;
    assert_eq!(unknown.status, 200, "as Glance, which passes over what it does not know there");
}

/// Clients remove `.` and `..` from a URL before they send it (RFC 3986, 5.2.4).
#[tokio::test]
async fn y04_catalog_rejects_path_step_as_name_in_each_form() {
    let served = TestApi::start().await;
    served.expect("POST", NAMESPACES, &json!({"namespace": "N", "tags": [{"name": "t"}]}), 201).await;
    let at = |below: &str| format!("{NAMESPACES}/N/{below}");
    for odd in [".", ".."] {
        let named = json!({"name": odd});
        let property = json!({"name": odd, "title": "T", "type": "string"});
        for (method, path, body) in [
            ("POST", at("tags"), json!({"tags": [named]})),
            ("PUT", at("tags/t"), named.clone()),
            ("POST", at("objects"), named.clone()),
            ("POST", at("properties"), property),
            ("POST", at("resource_types"), named.clone()),
            ("POST", NAMESPACES.to_owned(), json!({"namespace": "M", "objects": [named]})),
            ("POST", "/v1/apply".to_owned(), json!({"objects": [{"kind": "Namespace", "namespace": "M", "tags": [named]}]})),
        ] {
            let said = expect_error(&served, method, &path, body, 400, "field.invalid").await;
            assert!(said.contains(&format!("{odd:?} has a special meaning in a path")), "{method} {path}: {said}");
        }
    }
}

#[tokio::test]
async fn catalog_not_found_error_suggests_closest_name() {
    let served = TestApi::start().await;
    served.expect("POST", NAMESPACES, &site(), 201).await;
    let answer = served.send("GET", &format!("{NAMESPACES}/Site/properties/teir"), &[], None).await;
    let message = answer.body["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(message, "404 Not Found: Namespace Site has no property 'teir' (did you mean \"tier\"?).");
}

#[tokio::test]
async fn namespace_has_etag_and_is_created_once_when_repeated() {
    let served = TestApi::start().await;
    served.expect("POST", NAMESPACES, &site(), 201).await;
    let key = [("idempotency-key", "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6")];
    for _ in 0..2 {
        let made = served.send("POST", &format!("{NAMESPACES}/Site/tags/a"), &key, None).await;
        assert_eq!((made.status, made.body["name"].as_str()), (201, Some("a")), "{}", made.body);
    }
    let body = json!({"namespace": "Site"});
    let stale = served.send("PUT", &format!("{NAMESPACES}/Site"), &[("if-match", "\"1\"")], Some(&body)).await;
    assert_eq!((stale.status, stale.kind()), (412, "precondition.failed"));
}

#[tokio::test]
async fn protected_namespace_rejects_removal_in_each_form() {
    let served = TestApi::start().await;
    let mut namespace = site();
    for (field, value) in
        [("protected", json!(true)), ("tags", json!([{"name": "a"}, {"name": "b"}])), ("objects", json!([{"name": "o"}]))]
    {
        namespace[field] = value;
    }
    served.expect("POST", NAMESPACES, &namespace, 201).await;
    let of = |path: &str| format!("{NAMESPACES}/Site/{path}");
    let before = served.get(&format!("{NAMESPACES}/Site")).await;
    namespace["kind"] = "Namespace".into();
    let without = |field: &str, value: Value| {
        let mut less = namespace.clone();
        less[field] = value;
        json!({"objects": [less]})
    };
    for (method, path, body) in [
        ("POST", of("tags"), json!({"tags": [{"name": "c"}]})),
        ("POST", "/v1/apply?force=true".to_owned(), without("tags", json!([{"name": "a"}]))),
        ("POST", "/v1/apply?force=true".to_owned(), without("objects", json!([]))),
        ("POST", "/v1/apply?force=true".to_owned(), without("resource_type_associations", json!([]))),
        ("POST", "/v1/apply?force=true".to_owned(), without("properties", json!({}))),
        ("DELETE", of("tags/a"), Value::Null),
        ("DELETE", of("properties/tier"), Value::Null),
        ("DELETE", of("objects"), Value::Null),
    ] {
        let message = expect_error(&served, method, &path, body, 403, "object.protected").await;
        assert!(message.contains("is protected and cannot be deleted"), "{message}");
    }
    assert_eq!(served.get(&format!("{NAMESPACES}/Site")).await, before);
    // A protected namespace can be extended and changed, including its names.
    served.expect("PUT", &of("tags/a"), &json!({"name": "z"}), 200).await;
    served.expect("POST", &of("objects"), &json!({"name": "p"}), 201).await;
    served.expect("POST", &of("tags"), &json!({"tags": [{"name": "z"}, {"name": "b"}, {"name": "c"}]}), 201).await;
    served.expect("PUT", &format!("{NAMESPACES}/Site"), &json!({"namespace": "Site", "protected": false}), 200).await;
    served.expect("POST", &of("tags"), &json!({"tags": [{"name": "c"}]}), 201).await;
}

/// 400 nodes have 100 labels each that are not in a catalogue of 2,000 keys. Comparing each label of each node with all
/// keys took minutes. Now each key is looked up once, however many nodes have it.
#[tokio::test]
async fn catalog_findings_are_bounded_when_objects_are_many() {
    let served = TestApi::start().await;
    let labels: serde_json::Map<String, Value> = (0..100).map(|n| (format!("some-unknown-label-{n:03}"), json!("x"))).collect();
    for part in 0..4 {
        let nodes: Vec<Value> =
            (0..100).map(|n| json!({"kind": "Node", "name": format!("n{part}-{n}"), "labels": labels})).collect();
        served.expect("POST", "/v1/apply", &json!({"objects": nodes}), 200).await;
    }
    let namespace = |name: &str, count: usize| {
        let property = json!({"title": "T", "type": "string"});
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|n| (format!("some-known-{name}-label-{n:04}"), property.clone())).collect();
        json!({"kind": "Namespace", "namespace": name, "properties": properties, "resource_type_associations": [{"name": "Stemma::Label"}]})
    };
    let applied =
        served.expect("POST", "/v1/apply", &json!({"objects": [namespace("a", 1_000), namespace("b", 999)]}), 200).await;
    assert_eq!(applied["findings"], json!([]), "none is like another");
    let mut close = namespace("c", 0);
    close["properties"] = json!({"some-unknown-label-00": {"title": "T", "type": "string"}});
    let applied = served.expect("POST", "/v1/apply", &json!({"objects": [close]}), 200).await;
    let found = applied["findings"].as_array().expect("findings");
    assert_eq!(found.len(), 501, "no more than an answer lists, and how many are left");
    let tags: Vec<Value> = (0..1_001).map(|n| json!({"name": format!("t{n}")})).collect();
    let path = format!("{NAMESPACES}/a/tags");
    let message = expect_error(&served, "POST", &path, json!({"tags": tags}), 400, "field.invalid").await;
    assert!(message.contains("it has 1001 entries, and the most are 1000"), "{message}");
    served.expect("POST", &path, &json!({"tags": tags[1..]}), 201).await;
}

#[tokio::test]
async fn apply_fails_when_object_revision_differs() {
    let served = TestApi::start().await;
    let namespace = |revision: Value, title: &str| json!({"kind": "Namespace", "namespace": "Site", "display_name": title, "resource_version": revision});
    let apply = async |objects: Value, status: u16| {
        let answer = served.send("POST", "/v1/apply?force=true", &[], Some(&json!({"objects": objects}))).await;
        assert_eq!(answer.status, status, "{objects}: {}", answer.body);
        answer
    };
    let early = apply(json!([namespace(json!(7), "A")]), 412).await;
    let message = early.body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("the object does not exist") && message.ends_with("nothing was changed"), "{message}");
    let made = apply(json!([namespace(json!(0), "A")]), 200).await;
    let revision = made.body["revision"].as_u64().expect("a revision");
    apply(json!([namespace(json!(0), "B")]), 412).await;
    // If one of several objects has changed since it was read, none of them is written.
    let other = json!({"kind": "Cluster", "name": "c"});
    apply(json!([other, namespace(json!(revision + 1), "B")]), 412).await;
    assert_eq!(served.send("GET", "/v1/clusters/c", &[], None).await.status, 404);
    apply(json!([other, namespace(json!(revision), "B")]), 200).await;
    apply(json!([namespace(json!(revision), "C")]), 412).await;
    assert_eq!(served.get(&format!("{NAMESPACES}/Site")).await["display_name"], "B");
    for wrong in [json!("7"), json!(-1), json!(1.5), json!([])] {
        let refused = apply(json!([namespace(wrong.clone(), "C")]), 400).await;
        assert_eq!(refused.body["error"]["field"], "objects[0].resource_version", "{wrong}");
    }
    apply(json!([namespace(Value::Null, "C")]), 200).await;
}

#[tokio::test]
async fn catalog_rejects_disallowed_values_and_requirements() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/nodes", &json!({"name": "old", "labels": {"tier": "iron"}}), 201).await;
    served.expect("POST", NAMESPACES, &site(), 201).await;
    let unfit = json!({"name": "n", "labels": {"tier": "sliver"}});
    let message = expect_error(&served, "POST", "/v1/nodes", unfit, 400, "label.invalid").await;
    let says = "label tier: \"sliver\" is none of gold, silver (did you mean \"silver\"?), says namespace Site of the catalogue";
    assert!(message.starts_with(says), "{message}");
    for (body, kind) in [
        (json!({"name": "n", "properties": {"memory_mb": "x"}}), "field.invalid"),
        (json!({"name": "n", "parameters": {"memory_mb": "8"}}), "field.invalid"),
    ] {
        expect_error(&served, "POST", "/v1/nodes", body, 400, kind).await;
    }
    served
        .expect("POST", "/v1/nodes", &json!({"name": "n", "labels": {"tier": "gold"}, "properties": {"memory_mb": "8"}}), 201)
        .await;
    // A node that is older than the catalogue keeps its values, and its other fields can be changed.
    let patch = [("content-type", "application/merge-patch+json")];
    let other = served.send("PATCH", "/v1/nodes/old", &patch, Some(&json!({"description": "x"}))).await;
    assert_eq!(other.status, 200, "{}", other.body);
    served.expect("POST", "/v1/clusters", &json!({"name": "c"}), 202).await;
    for (requirement, says) in [
        (json!({"tier": "<in> gold"}), "the property does not allow <in>: it allows <or>"),
        (json!({"property:memory_mb": "<or> 1 <or> 2"}), "it allows none of <or>, <in> and <all-in>"),
        (json!({"property:memory_mb": ">> 3"}), "\">> 3\" is not a whole number"),
    ] {
        let body = json!({"name": "g", "requirements": requirement});
        let message = expect_error(&served, "POST", "/v1/clusters/c/nodegroups", body, 400, "requirement.invalid").await;
        assert!(message.contains(says), "{message}");
    }
    let body = json!({"name": "g", "requirements": {"tier": "<or> gold", "property:memory_mb": ">= 3"}});
    served.expect("POST", "/v1/clusters/c/nodegroups", &body, 202).await;
}

#[tokio::test]
async fn apply_rejects_only_new_findings_when_catalog_changes() {
    let served = TestApi::start().await;
    let labels = json!({"kind": "ClusterTemplate", "name": "t", "labels": {"tier": "iron", "teir": "gold"}});
    served.expect("POST", "/v1/apply", &json!({"objects": [labels]}), 200).await;
    let mut namespace = site();
    namespace["kind"] = "Namespace".into();
    let applied = served.expect("POST", "/v1/apply", &json!({"objects": [namespace]}), 200).await;
    let found: Vec<String> = applied["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .map(|one| format!("{} {} {}", one["severity"], one["code"], one["object"]).replace('"', ""))
        .collect();
    let expected = ["warning catalog.value clustertemplate/t labels.tier", "info catalog.key clustertemplate/t labels"];
    assert_eq!(found, expected);
    // If one apply contains both, the value is checked against the new catalogue.
    namespace["properties"]["tier"]["enum"] = json!(["iron"]);
    let cluster = json!({"kind": "Cluster", "name": "c", "labels": {"tier": "iron"}});
    served.expect("POST", "/v1/apply", &json!({"objects": [cluster, namespace]}), 200).await;
    let gold = json!({"kind": "Cluster", "name": "d", "labels": {"tier": "gold"}});
    expect_error(&served, "POST", "/v1/apply", json!({"objects": [gold]}), 400, "label.invalid").await;
}

/// `teir` is not bound, and `tier` is. A caller that creates or changes an object is warned once, as a caller that
/// applies it is.
#[tokio::test]
async fn unknown_key_warning_appears_when_operator_writes_key() {
    let served = TestApi::start().await;
    served.expect("POST", NAMESPACES, &site(), 201).await;
    let made = json!({"name": "c", "labels": {"teir": "gold"}});
    let warning = served.send("POST", "/v1/clusters", &[], Some(&made)).await.warning.expect("a warning");
    assert!(warning.contains("cluster/c labels") && warning.contains("tier"), "{warning}");
    served.expect("POST", "/v1/clusters", &json!({"name": "d"}), 202).await;
    let patch = [("content-type", "application/merge-patch+json")];
    for (body, expected) in [
        (json!({"labels": {"teir": "gold"}}), vec!["catalog.key"]),
        // A finding that existed before this write is reported by `validate` only.
        (json!({"labels": {"teir": "gold", "tier": "silver"}}), vec![]),
    ] {
        let changed = served.send("PATCH", "/v1/clusters/d", &patch, Some(&body)).await;
        let findings = changed.body["findings"].as_array().expect("findings");
        let codes: Vec<_> = findings.iter().filter_map(|one| one["code"].as_str()).collect();
        assert_eq!((changed.status, codes), (200, expected), "{body}: {}", changed.body);
        assert_eq!(changed.warning.is_some(), !findings.is_empty(), "{:?}", changed.warning);
    }
}

/// A finding from a change of a node remains on the node, and the response contains it once.
#[tokio::test]
async fn node_findings_list_disallowed_values() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/nodes", &json!({"name": "n", "labels": {"tier": "iron"}}), 201).await;
    served.expect("POST", NAMESPACES, &site(), 201).await;
    let codes = |of: &Value| -> Vec<String> {
        let findings = of["findings"].as_array().expect("findings");
        findings.iter().map(|one| one["code"].as_str().unwrap_or_default().to_owned()).collect()
    };
    for path in ["/v1/nodes/n", "/v1/nodes/n/resolved"] {
        assert_eq!(codes(&served.get(path).await), ["catalog.value"], "{path}");
    }
    let patch = [("content-type", "application/merge-patch+json")];
    let body = json!({"labels": {"tier": "iron", "teir": "gold"}});
    let changed = served.send("PATCH", "/v1/nodes/n", &patch, Some(&body)).await;
    assert_eq!((changed.status, &codes(&changed.body)[..]), (200, &["catalog.value".to_owned(), "catalog.key".to_owned()][..]));
    assert_eq!(codes(&served.get("/v1/nodes/detail").await["nodes"][0]), codes(&changed.body));
}

#[tokio::test]
async fn key_explanation_suggests_closest_key_when_unknown() {
    let served = TestApi::start().await;
    served.expect("POST", NAMESPACES, &site(), 201).await;
    let explained = served.get("/v1/explain?label=tier").await;
    assert_eq!(explained["bindings"][0]["namespace"], "Site");
    assert_eq!(explained["bindings"][0]["property"]["operators"], json!(["<or>"]));
    for (query, status, kind) in [
        ("label=teir", 404, "object.not_found"),
        ("fact=tier", 404, "object.not_found"),
        ("", 400, "request.query"),
        ("label=tier&fact=tier", 400, "request.query"),
    ] {
        let answer = served.send("GET", &format!("/v1/explain?{query}"), &[], None).await;
        assert_eq!((answer.status, answer.kind()), (status, kind), "{query}: {}", answer.body);
    }
    let near = served.send("GET", "/v1/explain?label=teir", &[], None).await;
    assert!(near.body["error"]["message"].as_str().unwrap().ends_with("(did you mean \"tier\"?)"), "{}", near.body);
}

#[tokio::test]
async fn glance_version_two_is_listed_as_clients_expect() {
    let served = TestApi::start().await;
    for path in ["/versions"] {
        let versions = served.get(path).await;
        let ids: Vec<&str> = versions["versions"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
        assert_eq!(ids, ["v1", "v2.17"], "{path}");
    }
    let version = served.get("/v2").await["version"].clone();
    assert_eq!((version["id"].as_str(), version["status"].as_str()), (Some("v2.17"), Some("CURRENT")));
    assert!(version["links"][0]["href"].as_str().unwrap().ends_with("/v2/"));
}

/// Regression: a header that was neither true nor false replaced all tags of the namespace.
#[tokio::test]
async fn y09_tag_write_appends_when_append_header_is_true() {
    let served = TestApi::start().await;
    served.expect("POST", NAMESPACES, &json!({"namespace": "N"}), 201).await;
    let path = format!("{NAMESPACES}/N/tags");
    let mut tags: Vec<String> = Vec::new();
    for (said, appends) in [
        ("False", Some(false)),
        ("True", Some(true)),
        ("TRUE", Some(true)),
        (" yes ", Some(true)),
        ("1", Some(true)),
        ("maybe", None),
        ("Ture", None),
        ("", None),
        ("2", None),
        ("true, false", None),
        ("off", Some(false)),
        ("t", Some(true)),
        ("0", Some(false)),
    ] {
        let name = format!("t{}", tags.len());
        let body = json!({"tags": [{"name": name}]});
        let answer = served.send("POST", &path, &[("x-openstack-append", said)], Some(&body)).await;
        match appends {
            Some(_) => assert_eq!(answer.status, 201, "{said:?}: {}", answer.body),
            None => {
                assert_eq!((answer.status, answer.kind()), (400, "request.malformed"), "{said:?}");
                assert!(answer.message().contains("neither true nor false; nothing was changed"), "{}", answer.body);
            }
        }
        if appends == Some(false) {
            tags.clear();
        }
        tags.extend(appends.map(|_| name));
        let stored = served.get(&path).await;
        let stored = stored["tags"].as_array().into_iter().flatten();
        let mut stored: Vec<&str> = stored.filter_map(|tag| tag["name"].as_str()).collect();
        stored.sort_unstable();
        let mut expected = tags.clone();
        expected.sort_unstable();
        assert_eq!(stored, expected, "{said:?}");
    }
}

/// The limit is that of Glance's schema of a property.
#[tokio::test]
async fn y05_namespace_member_name_has_same_limit_in_each_form() {
    let served = TestApi::start().await;
    let (fits, long) = ("n".repeat(80), "n".repeat(81));
    let property = |name: &str| json!({"name": name, "title": "T", "type": "string"});
    let map = |name: &str| json!({name: {"title": "T", "type": "string"}});
    let manifest = |properties: Value| json!({"objects": [{"kind": "Namespace", "namespace": "M", "properties": properties}]});
    let of = |below: &str| format!("{NAMESPACES}/N/{below}");
    let made = json!({"namespace": "N", "properties": map("a"), "tags": [{"name": "t"}]});
    served.expect("POST", NAMESPACES, &made, 201).await;
    for (method, path, body, field) in [
        ("POST", of("properties"), property(&long), "name"),
        ("PUT", of("properties/a"), property(&long), "name"),
        ("POST", of("objects"), json!({"name": long}), "name"),
        ("PUT", of("tags/t"), json!({"name": long}), "name"),
        ("POST", of("resource_types"), json!({"name": long}), "name"),
        ("POST", of("tags"), json!({"tags": [{"name": long}]}), "tags[0].name"),
        ("POST", of("objects"), json!({"name": "o", "properties": map(&long)}), "properties"),
        ("POST", NAMESPACES.to_owned(), json!({"namespace": "M", "properties": map(&long)}), "properties"),
        ("PUT", format!("{NAMESPACES}/N"), json!({"namespace": "N", "properties": map(&long)}), "properties"),
        ("POST", "/v1/apply".to_owned(), manifest(map(&long)), "objects[0].properties"),
    ] {
        let answer = served.send(method, &path, &[], Some(&body)).await;
        assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{method} {path}: {}", answer.body);
        assert_eq!(answer.body["error"]["field"], field, "{method} {path}: {}", answer.body);
        assert!(answer.message().contains("is longer than 80 characters"), "{}", answer.body);
    }
    served.expect("POST", &of("properties"), &property(&fits), 201).await;
    served.expect("POST", "/v1/apply", &manifest(map(&fits)), 200).await;
    for namespace in ["N", "M"] {
        served.expect("PUT", &format!("{NAMESPACES}/{namespace}/properties/{fits}"), &property(&fits), 200).await;
    }
}

/// Glance stores the name within a property that is created by itself, but not within one that is created with its
/// namespace. Its clients see the name in the responses of the property calls.
#[tokio::test]
async fn y05_property_is_equal_when_written_by_call_or_manifest() {
    let served = TestApi::start().await;
    let property = json!({"name": "p", "title": "T", "type": "string"});
    let plain = json!({"title": "T", "type": "string"});
    let manifest = |one: &Value| json!({"objects": [{"kind": "Namespace", "namespace": "M", "properties": {"p": one}}]});
    let git = "/v1/apply?manager=git";
    served.expect("POST", NAMESPACES, &json!({"namespace": "N"}), 201).await;
    served.expect("POST", &format!("{NAMESPACES}/N/properties"), &property, 201).await;
    served.expect("POST", git, &manifest(&plain), 200).await;
    for namespace in ["N", "M"] {
        let path = format!("{NAMESPACES}/{namespace}");
        assert_eq!(served.get(&path).await["properties"], json!({"p": plain}), "{namespace}");
        assert_eq!(served.get(&format!("{path}/properties")).await["properties"], json!({"p": property}), "{namespace}");
        assert_eq!(served.get(&format!("{path}/properties/p")).await, property, "{namespace}");
    }
    // Sending back what was read, or giving the name in a manifest, is no change and takes nothing from the owner.
    let path = format!("{NAMESPACES}/M/properties/p?manager=ann&force=false");
    served.expect("PUT", &path, &property, 200).await;
    let applied = served.expect("POST", git, &manifest(&property), 200).await;
    assert_eq!(applied["objects"][0]["action"], "unchanged", "{applied}");
    let owners = served.get(&format!("{NAMESPACES}/M?owners=true")).await["field_owners"].clone();
    assert_eq!(owners, json!({"properties": ["git:apply"]}));
}

/// Glance responds with 409 (its recorded answers), an apply with 400. Both name the second of the two.
#[tokio::test]
async fn y05_duplicate_tag_error_names_index() {
    let served = TestApi::start().await;
    served.expect("POST", NAMESPACES, &json!({"namespace": "N"}), 201).await;
    let tags = json!([{"name": "z"}, {"name": "z"}]);
    let namespace = json!({"kind": "Namespace", "namespace": "M", "tags": tags});
    for (path, body, status, kind, field) in [
        (format!("{NAMESPACES}/N/tags"), json!({"tags": tags}), 409, "object.exists", "tags[1].name"),
        ("/v1/apply".to_owned(), json!({"objects": [namespace]}), 400, "field.invalid", "objects[0].tags[1].name"),
    ] {
        let answer = served.send("POST", &path, &[], Some(&body)).await;
        assert_eq!((answer.status, answer.kind()), (status, kind), "{path}: {}", answer.body);
        assert_eq!(answer.body["error"]["field"], field, "{path}: {}", answer.body);
    }
}

/// Regression: writing what was read reversed the stored order, and took the field from its owner.
#[tokio::test]
async fn y05_tag_write_changes_nothing_when_tags_are_unchanged() {
    let served = TestApi::start().await;
    let tags = json!([{"name": "t1"}, {"name": "t2"}, {"name": "a"}]);
    let manifest = json!({"objects": [{"kind": "Namespace", "namespace": "N", "tags": tags}]});
    served.expect("POST", "/v1/apply?manager=git", &manifest, 200).await;
    let (path, whole) = (format!("{NAMESPACES}/N/tags"), format!("{NAMESPACES}/N"));
    let shown = served.get(&path).await;
    assert_eq!(shown["tags"], json!([{"name": "a"}, {"name": "t2"}, {"name": "t1"}]), "the last one first, as Glance");
    let before = served.get(&whole).await;
    served.expect("POST", &format!("{path}?force=false&manager=ops"), &shown, 201).await;
    assert_eq!((served.get(&path).await, served.get(&whole).await), (shown.clone(), before.clone()));
    let turned = json!({"objects": [{"kind": "Namespace", "namespace": "N", "tags": shown["tags"]}]});
    let told = served.expect("POST", "/v1/apply?manager=git", &turned, 200).await;
    assert_eq!(told["objects"][0]["action"], "unchanged", "{told}");
    assert_eq!(served.get(&whole).await, before);
    let fewer = json!({"tags": [{"name": "t2"}, {"name": "t1"}]});
    let refused = served.send("POST", &format!("{path}?force=false&manager=ops"), &[], Some(&fewer)).await;
    assert_eq!((refused.status, refused.kind()), (409, "label.conflict"), "{}", refused.body);
}

#[tokio::test]
async fn y05_member_error_names_field_of_sent_body() {
    let served = TestApi::start().await;
    let made = json!({
        "namespace": "N", "objects": [{"name": "o"}], "resource_type_associations": [{"name": "OS::A"}],
        "properties": {"p": {"title": "T", "type": "string"}},
    });
    served.expect("POST", NAMESPACES, &made, 201).await;
    let of = |below: &str| format!("{NAMESPACES}/N/{below}");
    let (name, text) = ("x".repeat(81), "x".repeat(4_097));
    let within = json!({name: {"title": "T", "type": "string"}});
    for (method, path, body, status, field) in [
        ("POST", of("resource_types"), json!({"name": "Stemma::label"}), 400, "name"),
        ("POST", of("resource_types"), json!({"name": "OS::B", "prefix": " "}), 400, "prefix"),
        ("POST", of("objects"), json!({"name": "other", "description": text}), 400, "description"),
        ("POST", of("objects"), json!({"name": "other", "properties": within}), 400, "properties"),
        ("PUT", of("objects/o"), json!({"name": "o", "description": text}), 400, "description"),
        ("POST", of("properties"), json!({"name": "dl", "title": text, "type": "string"}), 400, "title"),
        ("PUT", of("properties/p"), json!({"name": "p", "title": text, "type": "string"}), 400, "title"),
        ("POST", NAMESPACES.to_owned(), json!({"namespace": "N"}), 409, "namespace"),
    ] {
        let answer = served.send(method, &path, &[], Some(&body)).await;
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.body);
        assert_eq!(answer.body["error"]["field"], field, "{method} {path} {body}: {}", answer.body);
    }
    served.expect("POST", NAMESPACES, &json!({"namespace": "M"}), 201).await;
    let taken = served.send("PUT", &format!("{NAMESPACES}/M"), &[], Some(&json!({"namespace": "N"}))).await;
    assert_eq!((taken.status, &taken.body["error"]["field"]), (409, &json!("namespace")), "{}", taken.body);
}
