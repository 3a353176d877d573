//! Tests of the catalogue over HTTP: requests for which the real Glance fails or reports no error, and the effect of a
//! namespace that binds keys on other writes. All other responses are compared with recorded responses of Glance, and
//! tested with its clients (tests/tests/all/clients.rs).

use serde_json::{Value, json};

use crate::served::TestApi;

const NAMESPACES: &str = "/v2/metadefs/namespaces";

/// Returns the namespace `Site`, which restricts `tier` and `memory_mb` in labels, properties and parameters.
fn site_namespace() -> Value {
    json!({
        "namespace": "Site", "visibility": "public",
        "resource_type_associations": [{"name": "Stemma::Label"}, {"name": "Stemma::Property"}, {"name": "Stemma::Parameter"}],
        "properties": {
            "tier": {"title": "Tier", "description": "How soon it is mended.", "type": "string", "enum": ["gold", "silver"], "operators": ["<or>"]},
            "memory_mb": {"title": "Memory", "type": "integer", "minimum": 1, "operators": []},
        },
    })
}

/// Sends a request, and asserts the status and the error type of the response. Sends no body if `body` is null. Returns
/// the error message.
async fn expect_error(api: &TestApi, method: &str, path: &str, body: Value, status: u16, kind: &str) -> String {
    let response = api.send(method, path, &[], Some(&body).filter(|body| !body.is_null())).await;
    assert_eq!((response.status, response.kind()), (status, kind), "{method} {path} {body}: {}", response.body);
    response.body["error"]["message"].as_str().unwrap_or_default().to_owned()
}

/// The catalogue has the API of `OpenStack`'s Glance. Glance fails with status 500 on these requests. Here the response
/// is 400, or 409 for a name that is in use.
#[tokio::test]
async fn catalog_returns_400_when_glance_fails_on_bad_input() {
    let api = TestApi::start().await;
    api.expect("POST", NAMESPACES, &json!({"namespace": "N"}), 201).await;
    let (properties, objects) = (format!("{NAMESPACES}/N/properties"), format!("{NAMESPACES}/N/objects"));
    for (path, name) in [(&properties, "a"), (&properties, "b"), (&objects, "a"), (&objects, "b")] {
        let body =
            if path == &properties { json!({"name": name, "title": "T", "type": "string"}) } else { json!({"name": name}) };
        api.expect("POST", path, &body, 201).await;
    }
    let property_with = |part: Value| {
        let mut property = json!({"name": "p", "title": "T", "type": "string"});
        property.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        property
    };
    for (method, path, body, status, kind) in [
        ("PUT", format!("{properties}/a"), json!({"name": "b", "title": "T", "type": "string"}), 409, "object.exists"),
        ("PUT", format!("{objects}/a"), json!({"name": "b"}), 409, "object.exists"),
        ("POST", NAMESPACES.to_owned(), json!([]), 400, "request.malformed"),
        ("POST", properties.clone(), json!([]), 400, "request.malformed"),
        ("POST", properties.clone(), property_with(json!({"enum": [1]})), 400, "field.invalid"),
        ("POST", properties.clone(), property_with(json!({"items": {}})), 400, "field.missing"),
        ("POST", properties.clone(), property_with(json!({"items": {"type": "string", "x": 1}})), 400, "field.unknown"),
        ("POST", properties.clone(), property_with(json!({"required": ["a"]})), 400, "field.unknown"),
        ("POST", properties.clone(), property_with(json!({"title": null})), 400, "field.invalid"),
        (
            "PUT",
            format!("{objects}/a"),
            json!({"name": "a", "properties": {"p": property_with(json!({"x": 1}))}}),
            400,
            "field.unknown",
        ),
        ("POST", NAMESPACES.to_owned(), json!({"namespace": "a/b"}), 400, "field.invalid"),
        ("POST", NAMESPACES.to_owned(), json!({"namespace": ""}), 400, "field.invalid"),
    ] {
        expect_error(&api, method, &path, body, status, kind).await;
    }
    for path in [format!("{NAMESPACES}?limit=x"), format!("{NAMESPACES}?sort_key=nosuch"), format!("{properties}/a?nosuch=1")] {
        let response = api.send("GET", &path, &[], None).await;
        assert_eq!((response.status, response.kind()), (400, "request.query"), "{path}");
    }
    let list_response = api.send("GET", &format!("{NAMESPACES}?nosuch=1"), &[], None).await;
    assert_eq!(list_response.status, 200, "like Glance, which ignores unknown parameters of this list");
}

/// Clients remove `.` and `..` from a URL before they send it (RFC 3986, 5.2.4). So a member with such a name would
/// have no usable URL.
#[tokio::test]
async fn y04_catalog_rejects_dots_as_name_of_namespace_member() {
    let api = TestApi::start().await;
    api.expect("POST", NAMESPACES, &json!({"namespace": "N", "tags": [{"name": "t"}]}), 201).await;
    let member_path = |below: &str| format!("{NAMESPACES}/N/{below}");
    for dots in [".", ".."] {
        let member = json!({"name": dots});
        let property = json!({"name": dots, "title": "T", "type": "string"});
        for (method, path, body) in [
            ("POST", member_path("tags"), json!({"tags": [member]})),
            ("PUT", member_path("tags/t"), member.clone()),
            ("POST", member_path("objects"), member.clone()),
            ("POST", member_path("properties"), property),
            ("POST", member_path("resource_types"), member.clone()),
            ("POST", NAMESPACES.to_owned(), json!({"namespace": "M", "objects": [member]})),
            ("POST", "/v1/apply".to_owned(), json!({"objects": [{"kind": "Namespace", "namespace": "M", "tags": [member]}]})),
        ] {
            let message = expect_error(&api, method, &path, body, 400, "field.invalid").await;
            assert!(message.contains(&format!("{dots:?} has a special meaning in a path")), "{method} {path}: {message}");
        }
    }
}

#[tokio::test]
async fn catalog_not_found_error_suggests_closest_name() {
    let api = TestApi::start().await;
    api.expect("POST", NAMESPACES, &site_namespace(), 201).await;
    let response = api.send("GET", &format!("{NAMESPACES}/Site/properties/teir"), &[], None).await;
    let message = response.body["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(message, "404 Not Found: Namespace Site has no property 'teir' (did you mean \"tier\"?).");
}

/// A tag is created once by two requests with one idempotency key. A write with an outdated `If-Match` is refused.
#[tokio::test]
async fn tag_is_created_once_and_stale_namespace_write_fails() {
    let api = TestApi::start().await;
    api.expect("POST", NAMESPACES, &site_namespace(), 201).await;
    let key = [("idempotency-key", "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6")];
    for _ in 0..2 {
        let response = api.send("POST", &format!("{NAMESPACES}/Site/tags/a"), &key, None).await;
        assert_eq!((response.status, response.body["name"].as_str()), (201, Some("a")), "{}", response.body);
    }
    let body = json!({"namespace": "Site"});
    let refusal = api.send("PUT", &format!("{NAMESPACES}/Site"), &[("if-match", "\"1\"")], Some(&body)).await;
    assert_eq!((refusal.status, refusal.kind()), (412, "precondition.failed"));
}

/// While `protected` is true, no write may remove a part of the namespace.
#[tokio::test]
async fn protected_namespace_rejects_removal_of_parts() {
    let api = TestApi::start().await;
    let mut namespace = site_namespace();
    for (field, value) in
        [("protected", json!(true)), ("tags", json!([{"name": "a"}, {"name": "b"}])), ("objects", json!([{"name": "o"}]))]
    {
        namespace[field] = value;
    }
    api.expect("POST", NAMESPACES, &namespace, 201).await;
    let member_path = |path: &str| format!("{NAMESPACES}/Site/{path}");
    let namespace_before = api.get(&format!("{NAMESPACES}/Site")).await;
    namespace["kind"] = "Namespace".into();
    let manifest_with = |field: &str, value: Value| {
        let mut smaller = namespace.clone();
        smaller[field] = value;
        json!({"objects": [smaller]})
    };
    for (method, path, body) in [
        ("POST", member_path("tags"), json!({"tags": [{"name": "c"}]})),
        ("POST", "/v1/apply?force=true".to_owned(), manifest_with("tags", json!([{"name": "a"}]))),
        ("POST", "/v1/apply?force=true".to_owned(), manifest_with("objects", json!([]))),
        ("POST", "/v1/apply?force=true".to_owned(), manifest_with("resource_type_associations", json!([]))),
        ("POST", "/v1/apply?force=true".to_owned(), manifest_with("properties", json!({}))),
        ("DELETE", member_path("tags/a"), Value::Null),
        ("DELETE", member_path("properties/tier"), Value::Null),
        ("DELETE", member_path("objects"), Value::Null),
    ] {
        let message = expect_error(&api, method, &path, body, 403, "object.protected").await;
        assert!(message.contains("is protected and cannot be deleted"), "{message}");
    }
    assert_eq!(api.get(&format!("{NAMESPACES}/Site")).await, namespace_before);
    // A protected namespace can be extended and changed, and its members can be renamed.
    api.expect("PUT", &member_path("tags/a"), &json!({"name": "z"}), 200).await;
    api.expect("POST", &member_path("objects"), &json!({"name": "p"}), 201).await;
    api.expect("POST", &member_path("tags"), &json!({"tags": [{"name": "z"}, {"name": "b"}, {"name": "c"}]}), 201).await;
    api.expect("PUT", &format!("{NAMESPACES}/Site"), &json!({"namespace": "Site", "protected": false}), 200).await;
    api.expect("POST", &member_path("tags"), &json!({"tags": [{"name": "c"}]}), 201).await;
}

/// Regression: 400 nodes have 100 labels each, and none of these labels is in a catalogue of 2,000 keys. The comparison
/// of each label of each node with all keys took minutes. Now each label key is compared once, however many nodes have
/// it. The number of listed findings and the number of tags in a namespace are limited too.
#[tokio::test]
async fn catalog_findings_are_bounded_when_objects_are_many() {
    let api = TestApi::start().await;
    let labels: serde_json::Map<String, Value> = (0..100).map(|n| (format!("some-unknown-label-{n:03}"), json!("x"))).collect();
    for part in 0..4 {
        let nodes: Vec<Value> =
            (0..100).map(|n| json!({"kind": "Node", "name": format!("n{part}-{n}"), "labels": labels})).collect();
        api.expect("POST", "/v1/apply", &json!({"objects": nodes}), 200).await;
    }
    let namespace = |name: &str, count: usize| {
        let property = json!({"title": "T", "type": "string"});
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|n| (format!("some-known-{name}-label-{n:04}"), property.clone())).collect();
        json!({"kind": "Namespace", "namespace": name, "properties": properties, "resource_type_associations": [{"name": "Stemma::Label"}]})
    };
    let response = api.expect("POST", "/v1/apply", &json!({"objects": [namespace("a", 1_000), namespace("b", 999)]}), 200).await;
    assert_eq!(response["findings"], json!([]), "no label key is similar to a catalogue key");
    let mut similar_namespace = namespace("c", 0);
    similar_namespace["properties"] = json!({"some-unknown-label-00": {"title": "T", "type": "string"}});
    let response = api.expect("POST", "/v1/apply", &json!({"objects": [similar_namespace]}), 200).await;
    let findings = response["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), 501, "a response lists 500 findings, and one that counts the others");
    let tags: Vec<Value> = (0..1_001).map(|n| json!({"name": format!("t{n}")})).collect();
    let path = format!("{NAMESPACES}/a/tags");
    let message = expect_error(&api, "POST", &path, json!({"tags": tags}), 400, "field.invalid").await;
    assert!(message.contains("it has 1001 entries, and the maximum is 1000"), "{message}");
    api.expect("POST", &path, &json!({"tags": tags[1..]}), 201).await;
}

/// The `resource_version` in a manifest is the revision that the object must have. Zero means that the object must not
/// exist, and null means no check.
#[tokio::test]
async fn apply_fails_when_object_revision_differs() {
    let api = TestApi::start().await;
    let namespace = |revision: Value, title: &str| json!({"kind": "Namespace", "namespace": "Site", "display_name": title, "resource_version": revision});
    let apply = async |objects: Value, status: u16| {
        let response = api.send("POST", "/v1/apply?force=true", &[], Some(&json!({"objects": objects}))).await;
        assert_eq!(response.status, status, "{objects}: {}", response.body);
        response
    };
    let missing_object = apply(json!([namespace(json!(7), "A")]), 412).await;
    let message = missing_object.body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("the object does not exist") && message.ends_with("nothing was changed"), "{message}");
    let created = apply(json!([namespace(json!(0), "A")]), 200).await;
    let revision = created.body["revision"].as_u64().expect("a revision");
    apply(json!([namespace(json!(0), "B")]), 412).await;
    // If one of several objects has changed since it was read, none of them is written.
    let cluster = json!({"kind": "Cluster", "name": "c"});
    apply(json!([cluster, namespace(json!(revision + 1), "B")]), 412).await;
    assert_eq!(api.send("GET", "/v1/clusters/c", &[], None).await.status, 404);
    apply(json!([cluster, namespace(json!(revision), "B")]), 200).await;
    apply(json!([namespace(json!(revision), "C")]), 412).await;
    assert_eq!(api.get(&format!("{NAMESPACES}/Site")).await["display_name"], "B");
    for invalid_revision in [json!("7"), json!(-1), json!(1.5), json!([])] {
        let refusal = apply(json!([namespace(invalid_revision.clone(), "C")]), 400).await;
        assert_eq!(refusal.body["error"]["field"], "objects[0].resource_version", "{invalid_revision}");
    }
    apply(json!([namespace(Value::Null, "C")]), 200).await;
}

/// The catalogue allows gold and silver for `tier`, and whole numbers for `memory_mb`. A property of a node may have
/// the number as a text, and a parameter may not. A requirement may use only the operators that a key allows.
#[tokio::test]
async fn catalog_rejects_disallowed_values_and_requirements() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/nodes", &json!({"name": "old", "labels": {"tier": "iron"}}), 201).await;
    api.expect("POST", NAMESPACES, &site_namespace(), 201).await;
    let node_with_typo = json!({"name": "n", "labels": {"tier": "sliver"}});
    let message = expect_error(&api, "POST", "/v1/nodes", node_with_typo, 400, "label.invalid").await;
    let expected = "label tier: \"sliver\" is not one of gold, silver (did you mean \"silver\"?), according to namespace Site of the catalogue";
    assert!(message.starts_with(expected), "{message}");
    for (body, kind) in [
        (json!({"name": "n", "properties": {"memory_mb": "x"}}), "field.invalid"),
        (json!({"name": "n", "parameters": {"memory_mb": "8"}}), "field.invalid"),
    ] {
        expect_error(&api, "POST", "/v1/nodes", body, 400, kind).await;
    }
    api.expect("POST", "/v1/nodes", &json!({"name": "n", "labels": {"tier": "gold"}, "properties": {"memory_mb": "8"}}), 201)
        .await;
    // A node that existed before the catalogue may retain its values, and its other fields can be changed.
    let patch = [("content-type", "application/merge-patch+json")];
    let response = api.send("PATCH", "/v1/nodes/old", &patch, Some(&json!({"description": "x"}))).await;
    assert_eq!(response.status, 200, "{}", response.body);
    api.expect("POST", "/v1/clusters", &json!({"name": "c"}), 202).await;
    for (requirement, expected) in [
        (json!({"tier": "<in> gold"}), "the property does not allow <in>: it allows <or>"),
        (json!({"property:memory_mb": "<or> 1 <or> 2"}), "it allows none of <or>, <in> and <all-in>"),
        (json!({"property:memory_mb": ">> 3"}), "\">> 3\" is not a whole number"),
    ] {
        let body = json!({"name": "g", "requirements": requirement});
        let message = expect_error(&api, "POST", "/v1/clusters/c/nodegroups", body, 400, "requirement.invalid").await;
        assert!(message.contains(expected), "{message}");
    }
    let body = json!({"name": "g", "requirements": {"tier": "<or> gold", "property:memory_mb": ">= 3"}});
    api.expect("POST", "/v1/clusters/c/nodegroups", &body, 202).await;
}

/// A change of the catalogue turns disallowed existing values into findings. A later write of such a value is refused.
#[tokio::test]
async fn apply_rejects_only_new_disallowed_values_when_catalog_changes() {
    let api = TestApi::start().await;
    let labels = json!({"kind": "ClusterTemplate", "name": "t", "labels": {"tier": "iron", "teir": "gold"}});
    api.expect("POST", "/v1/apply", &json!({"objects": [labels]}), 200).await;
    let mut namespace = site_namespace();
    namespace["kind"] = "Namespace".into();
    let response = api.expect("POST", "/v1/apply", &json!({"objects": [namespace]}), 200).await;
    let findings: Vec<String> = response["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .map(|finding| format!("{} {} {}", finding["severity"], finding["code"], finding["object"]).replace('"', ""))
        .collect();
    let expected = ["warning catalog.value clustertemplate/t labels.tier", "info catalog.key clustertemplate/t labels"];
    assert_eq!(findings, expected);
    // If one apply contains both, the value is checked against the new catalogue.
    namespace["properties"]["tier"]["enum"] = json!(["iron"]);
    let cluster = json!({"kind": "Cluster", "name": "c", "labels": {"tier": "iron"}});
    api.expect("POST", "/v1/apply", &json!({"objects": [cluster, namespace]}), 200).await;
    let gold = json!({"kind": "Cluster", "name": "d", "labels": {"tier": "gold"}});
    expect_error(&api, "POST", "/v1/apply", json!({"objects": [gold]}), 400, "label.invalid").await;
}

/// The catalogue has the key `tier`, and not `teir`. A caller that creates or changes an object gets the warning once,
/// like a caller that applies the object.
#[tokio::test]
async fn unknown_key_warning_appears_when_operator_writes_key() {
    let api = TestApi::start().await;
    api.expect("POST", NAMESPACES, &site_namespace(), 201).await;
    let cluster = json!({"name": "c", "labels": {"teir": "gold"}});
    let warning = api.send("POST", "/v1/clusters", &[], Some(&cluster)).await.warning.expect("a warning");
    assert!(warning.contains("cluster/c labels") && warning.contains("tier"), "{warning}");
    api.expect("POST", "/v1/clusters", &json!({"name": "d"}), 202).await;
    let patch = [("content-type", "application/merge-patch+json")];
    for (body, expected) in [
        (json!({"labels": {"teir": "gold"}}), vec!["catalog.key"]),
        // A finding that existed before this write is reported by `validate` only.
        (json!({"labels": {"teir": "gold", "tier": "silver"}}), vec![]),
    ] {
        let response = api.send("PATCH", "/v1/clusters/d", &patch, Some(&body)).await;
        let findings = response.body["findings"].as_array().expect("findings");
        let codes: Vec<_> = findings.iter().filter_map(|finding| finding["code"].as_str()).collect();
        assert_eq!((response.status, codes), (200, expected), "{body}: {}", response.body);
        assert_eq!(response.warning.is_some(), !findings.is_empty(), "{:?}", response.warning);
    }
}

/// A finding from a change of a node remains on the node, and the response contains it once. The value `iron` is not
/// allowed for `tier`. The unknown key `teir` is similar to `tier`.
#[tokio::test]
async fn node_findings_list_disallowed_values() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/nodes", &json!({"name": "n", "labels": {"tier": "iron"}}), 201).await;
    api.expect("POST", NAMESPACES, &site_namespace(), 201).await;
    let codes = |object: &Value| -> Vec<String> {
        let findings = object["findings"].as_array().expect("findings");
        findings.iter().map(|finding| finding["code"].as_str().unwrap_or_default().to_owned()).collect()
    };
    for path in ["/v1/nodes/n", "/v1/nodes/n/resolved"] {
        assert_eq!(codes(&api.get(path).await), ["catalog.value"], "{path}");
    }
    let patch = [("content-type", "application/merge-patch+json")];
    let body = json!({"labels": {"tier": "iron", "teir": "gold"}});
    let response = api.send("PATCH", "/v1/nodes/n", &patch, Some(&body)).await;
    assert_eq!((response.status, &codes(&response.body)[..]), (200, &["catalog.value".to_owned(), "catalog.key".to_owned()][..]));
    assert_eq!(codes(&api.get("/v1/nodes/detail").await["nodes"][0]), codes(&response.body));
}

/// The query must name exactly one key.
#[tokio::test]
async fn key_explanation_suggests_closest_key_when_unknown() {
    let api = TestApi::start().await;
    api.expect("POST", NAMESPACES, &site_namespace(), 201).await;
    let explanation = api.get("/v1/explain?label=tier").await;
    assert_eq!(explanation["bindings"][0]["namespace"], "Site");
    assert_eq!(explanation["bindings"][0]["property"]["operators"], json!(["<or>"]));
    for (query, status, kind) in [
        ("label=teir", 404, "object.not_found"),
        ("fact=tier", 404, "object.not_found"),
        ("", 400, "request.query"),
        ("label=tier&fact=tier", 400, "request.query"),
    ] {
        let response = api.send("GET", &format!("/v1/explain?{query}"), &[], None).await;
        assert_eq!((response.status, response.kind()), (status, kind), "{query}: {}", response.body);
    }
    let refusal = api.send("GET", "/v1/explain?label=teir", &[], None).await;
    assert!(refusal.body["error"]["message"].as_str().unwrap().ends_with("(did you mean \"tier\"?)"), "{}", refusal.body);
}

#[tokio::test]
async fn glance_version_two_is_listed_as_clients_expect() {
    let api = TestApi::start().await;
    for path in ["/versions"] {
        let versions = api.get(path).await;
        let ids: Vec<&str> = versions["versions"].as_array().unwrap().iter().filter_map(|entry| entry["id"].as_str()).collect();
        assert_eq!(ids, ["v1", "v2.17"], "{path}");
    }
    let version = api.get("/v2").await["version"].clone();
    assert_eq!((version["id"].as_str(), version["status"].as_str()), (Some("v2.17"), Some("CURRENT")));
    assert!(version["links"][0]["href"].as_str().unwrap().ends_with("/v2/"));
}

/// Regression: a header that was neither true nor false replaced all tags of the namespace. The expected result of each
/// case is true (append), false (replace) or `None` (refuse).
#[tokio::test]
async fn y09_tag_write_appends_when_append_header_is_true() {
    let api = TestApi::start().await;
    api.expect("POST", NAMESPACES, &json!({"namespace": "N"}), 201).await;
    let path = format!("{NAMESPACES}/N/tags");
    let mut tags: Vec<String> = Vec::new();
    for (header_value, should_append) in [
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
        let response = api.send("POST", &path, &[("x-openstack-append", header_value)], Some(&body)).await;
        match should_append {
            Some(_) => assert_eq!(response.status, 201, "{header_value:?}: {}", response.body),
            None => {
                assert_eq!((response.status, response.kind()), (400, "request.malformed"), "{header_value:?}");
                assert!(response.message().contains("neither true nor false; nothing was changed"), "{}", response.body);
            }
        }
        if should_append == Some(false) {
            tags.clear();
        }
        tags.extend(should_append.map(|_| name));
        let stored = api.get(&path).await;
        let stored = stored["tags"].as_array().into_iter().flatten();
        let mut stored: Vec<&str> = stored.filter_map(|tag| tag["name"].as_str()).collect();
        stored.sort_unstable();
        let mut expected = tags.clone();
        expected.sort_unstable();
        assert_eq!(stored, expected, "{header_value:?}");
    }
}

/// The limit of 80 characters is that of Glance's schema of a property.
#[tokio::test]
async fn y05_namespace_member_name_has_at_most_80_characters() {
    let api = TestApi::start().await;
    let (longest_name, too_long_name) = ("n".repeat(80), "n".repeat(81));
    let property = |name: &str| json!({"name": name, "title": "T", "type": "string"});
    let map = |name: &str| json!({name: {"title": "T", "type": "string"}});
    let manifest = |properties: Value| json!({"objects": [{"kind": "Namespace", "namespace": "M", "properties": properties}]});
    let member_path = |below: &str| format!("{NAMESPACES}/N/{below}");
    let first_namespace = json!({"namespace": "N", "properties": map("a"), "tags": [{"name": "t"}]});
    api.expect("POST", NAMESPACES, &first_namespace, 201).await;
    for (method, path, body, field) in [
        ("POST", member_path("properties"), property(&too_long_name), "name"),
        ("PUT", member_path("properties/a"), property(&too_long_name), "name"),
        ("POST", member_path("objects"), json!({"name": too_long_name}), "name"),
        ("PUT", member_path("tags/t"), json!({"name": too_long_name}), "name"),
        ("POST", member_path("resource_types"), json!({"name": too_long_name}), "name"),
        ("POST", member_path("tags"), json!({"tags": [{"name": too_long_name}]}), "tags[0].name"),
        ("POST", member_path("objects"), json!({"name": "o", "properties": map(&too_long_name)}), "properties"),
        ("POST", NAMESPACES.to_owned(), json!({"namespace": "M", "properties": map(&too_long_name)}), "properties"),
        ("PUT", format!("{NAMESPACES}/N"), json!({"namespace": "N", "properties": map(&too_long_name)}), "properties"),
        ("POST", "/v1/apply".to_owned(), manifest(map(&too_long_name)), "objects[0].properties"),
    ] {
        let response = api.send(method, &path, &[], Some(&body)).await;
        assert_eq!((response.status, response.kind()), (400, "field.invalid"), "{method} {path}: {}", response.body);
        assert_eq!(response.body["error"]["field"], field, "{method} {path}: {}", response.body);
        assert!(response.message().contains("is longer than 80 characters"), "{}", response.body);
    }
    api.expect("POST", &member_path("properties"), &property(&longest_name), 201).await;
    api.expect("POST", "/v1/apply", &manifest(map(&longest_name)), 200).await;
    for namespace in ["N", "M"] {
        api.expect("PUT", &format!("{NAMESPACES}/{namespace}/properties/{longest_name}"), &property(&longest_name), 200).await;
    }
}

/// Glance stores the name within a property that is created by itself, but not within one that is created with its
/// namespace. Glance's clients see the name in the responses of the property calls. Stemma stores the name in neither
/// case, and adds it to the responses of the property calls.
#[tokio::test]
async fn y05_property_is_equal_when_written_by_call_or_manifest() {
    let api = TestApi::start().await;
    let property = json!({"name": "p", "title": "T", "type": "string"});
    let without_name = json!({"title": "T", "type": "string"});
    let manifest = |content: &Value| json!({"objects": [{"kind": "Namespace", "namespace": "M", "properties": {"p": content}}]});
    let git = "/v1/apply?manager=git";
    api.expect("POST", NAMESPACES, &json!({"namespace": "N"}), 201).await;
    api.expect("POST", &format!("{NAMESPACES}/N/properties"), &property, 201).await;
    api.expect("POST", git, &manifest(&without_name), 200).await;
    for namespace in ["N", "M"] {
        let path = format!("{NAMESPACES}/{namespace}");
        assert_eq!(api.get(&path).await["properties"], json!({"p": without_name}), "{namespace}");
        assert_eq!(api.get(&format!("{path}/properties")).await["properties"], json!({"p": property}), "{namespace}");
        assert_eq!(api.get(&format!("{path}/properties/p")).await, property, "{namespace}");
    }
    // A write of the values that were read changes nothing, and does not change the owner. The same holds for a
    // manifest that contains the name.
    let path = format!("{NAMESPACES}/M/properties/p?manager=ann&force=false");
    api.expect("PUT", &path, &property, 200).await;
    let response = api.expect("POST", git, &manifest(&property), 200).await;
    assert_eq!(response["objects"][0]["action"], "unchanged", "{response}");
    let owners = api.get(&format!("{NAMESPACES}/M?owners=true")).await["field_owners"].clone();
    assert_eq!(owners, json!({"properties": ["git:apply"]}));
}

/// For a duplicate tag, Glance's call fails with 409, and an apply with 400. Both errors name the second of the tags.
#[tokio::test]
async fn y05_duplicate_tag_error_names_index() {
    let api = TestApi::start().await;
    api.expect("POST", NAMESPACES, &json!({"namespace": "N"}), 201).await;
    let tags = json!([{"name": "z"}, {"name": "z"}]);
    let namespace = json!({"kind": "Namespace", "namespace": "M", "tags": tags});
    for (path, body, status, kind, field) in [
        (format!("{NAMESPACES}/N/tags"), json!({"tags": tags}), 409, "object.exists", "tags[1].name"),
        ("/v1/apply".to_owned(), json!({"objects": [namespace]}), 400, "field.invalid", "objects[0].tags[1].name"),
    ] {
        let response = api.send("POST", &path, &[], Some(&body)).await;
        assert_eq!((response.status, response.kind()), (status, kind), "{path}: {}", response.body);
        assert_eq!(response.body["error"]["field"], field, "{path}: {}", response.body);
    }
}

/// Regression: a write of the tags that were read reversed their stored order, and changed the owner of the field. A
/// write of fewer tags by another manager is a conflict.
#[tokio::test]
async fn y05_tag_write_changes_nothing_when_tags_are_unchanged() {
    let api = TestApi::start().await;
    let tags = json!([{"name": "t1"}, {"name": "t2"}, {"name": "a"}]);
    let manifest = json!({"objects": [{"kind": "Namespace", "namespace": "N", "tags": tags}]});
    api.expect("POST", "/v1/apply?manager=git", &manifest, 200).await;
    let (path, namespace_path) = (format!("{NAMESPACES}/N/tags"), format!("{NAMESPACES}/N"));
    let listed_tags = api.get(&path).await;
    assert_eq!(
        listed_tags["tags"],
        json!([{"name": "a"}, {"name": "t2"}, {"name": "t1"}]),
        "the last tag is listed first, as in Glance"
    );
    let namespace_before = api.get(&namespace_path).await;
    api.expect("POST", &format!("{path}?force=false&manager=ops"), &listed_tags, 201).await;
    assert_eq!((api.get(&path).await, api.get(&namespace_path).await), (listed_tags.clone(), namespace_before.clone()));
    let reversed_manifest = json!({"objects": [{"kind": "Namespace", "namespace": "N", "tags": listed_tags["tags"]}]});
    let response = api.expect("POST", "/v1/apply?manager=git", &reversed_manifest, 200).await;
    assert_eq!(response["objects"][0]["action"], "unchanged", "{response}");
    assert_eq!(api.get(&namespace_path).await, namespace_before);
    let fewer_tags = json!({"tags": [{"name": "t2"}, {"name": "t1"}]});
    let refusal = api.send("POST", &format!("{path}?force=false&manager=ops"), &[], Some(&fewer_tags)).await;
    assert_eq!((refusal.status, refusal.kind()), (409, "label.conflict"), "{}", refusal.body);
}

/// Each request has one invalid field, in a member of a namespace or in the namespace itself.
#[tokio::test]
async fn y05_member_error_names_field_of_sent_body() {
    let api = TestApi::start().await;
    let namespace = json!({
        "namespace": "N", "objects": [{"name": "o"}], "resource_type_associations": [{"name": "OS::A"}],
        "properties": {"p": {"title": "T", "type": "string"}},
    });
    api.expect("POST", NAMESPACES, &namespace, 201).await;
    let member_path = |below: &str| format!("{NAMESPACES}/N/{below}");
    let (long_name, long_text) = ("x".repeat(81), "x".repeat(4_097));
    let with_long_name = json!({long_name: {"title": "T", "type": "string"}});
    for (method, path, body, status, field) in [
        ("POST", member_path("resource_types"), json!({"name": "Stemma::label"}), 400, "name"),
        ("POST", member_path("resource_types"), json!({"name": "OS::B", "prefix": " "}), 400, "prefix"),
        ("POST", member_path("objects"), json!({"name": "other", "description": long_text}), 400, "description"),
        ("POST", member_path("objects"), json!({"name": "other", "properties": with_long_name}), 400, "properties"),
        ("PUT", member_path("objects/o"), json!({"name": "o", "description": long_text}), 400, "description"),
        ("POST", member_path("properties"), json!({"name": "dl", "title": long_text, "type": "string"}), 400, "title"),
        ("PUT", member_path("properties/p"), json!({"name": "p", "title": long_text, "type": "string"}), 400, "title"),
        ("POST", NAMESPACES.to_owned(), json!({"namespace": "N"}), 409, "namespace"),
    ] {
        let response = api.send(method, &path, &[], Some(&body)).await;
        assert_eq!(response.status, status, "{method} {path} {body}: {}", response.body);
        assert_eq!(response.body["error"]["field"], field, "{method} {path} {body}: {}", response.body);
    }
    api.expect("POST", NAMESPACES, &json!({"namespace": "M"}), 201).await;
    let rename_response = api.send("PUT", &format!("{NAMESPACES}/M"), &[], Some(&json!({"namespace": "N"}))).await;
    assert_eq!(
        (rename_response.status, &rename_response.body["error"]["field"]),
        (409, &json!("namespace")),
        "{}",
        rename_response.body
    );
}
