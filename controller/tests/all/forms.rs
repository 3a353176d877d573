//! One intent in several forms of a write: what each form takes, what it makes, and what it refuses.

use serde_json::{Value, json};

use crate::served::{Answer, Served};

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];
const PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];
const APPLY: &[(&str, &str)] = &[("content-type", "application/apply-patch+json")];
const MAGNUM: (&str, &str) = ("openstack-api-version", "container-infra latest");

async fn apply(served: &Served, objects: &Value) {
    served.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
}

async fn patched(served: &Served, path: &str, operations: &Value) -> Answer {
    served.send("PATCH", path, PATCH, Some(operations)).await
}

/// RFC 6902: an addition of a member that is there replaces it. Magnum refuses that to its clients.
#[tokio::test]
async fn y05_a_json_patch_adds_over_what_is_there_and_reaches_into_a_parameter() {
    let served = Served::start().await;
    let fields = json!({"labels": {"a": "1"}, "parameters": {"p": {"q": 1}}});
    let object = |kind: &str, name: &str| {
        let mut object = fields.clone();
        object["kind"] = kind.into();
        object["name"] = name.into();
        object
    };
    apply(&served, &json!([object("ClusterTemplate", "t"), object("Cluster", "c"), object("Node", "n")])).await;
    for path in ["/v1/clustertemplates/t", "/v1/clusters/c", "/v1/nodes/n"] {
        let add = json!([{"op": "add", "path": "/labels", "value": {"b": "2"}},
            {"op": "add", "path": "/parameters/p/r", "value": [2]}, {"op": "add", "path": "/parameters/p/r/-", "value": 3}]);
        let answer = patched(&served, path, &add).await;
        assert!(answer.status < 300, "{path}: {}", answer.body);
        let shown = served.get(path).await;
        assert_eq!(shown["provided_labels"], json!({"b": "2"}), "{path}");
        assert_eq!(shown["provided_parameters"], json!({"p": {"q": 1, "r": [2, 3]}}), "{path}");
        let remove = json!([{"op": "remove", "path": "/parameters/p/r/0"}, {"op": "replace", "path": "/parameters/p/q", "value": 4}]);
        assert!(patched(&served, path, &remove).await.status < 300, "{path}");
        assert_eq!(served.get(path).await["provided_parameters"], json!({"p": {"q": 4, "r": [3]}}), "{path}");
        for (verb, place) in [("replace", "/parameters/p/none"), ("add", "/labels/b/x"), ("add", "/parameters/no/x")] {
            let answer = patched(&served, path, &json!([{"op": verb, "path": place, "value": 1}])).await;
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{path} {place}: {}", answer.body);
        }
    }
    let add = json!([{"op": "add", "path": "/labels", "value": "{'x': '1'}"}]);
    let answer = served.send("PATCH", "/v1/clustertemplates/t", &[PATCH[0], MAGNUM], Some(&add)).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.message().contains("is set already"), "{}", answer.body);
}

#[tokio::test]
async fn y05_merge_labels_taken_away_is_what_it_is_where_nobody_says_it() {
    let served = Served::start().await;
    let node = |name: &str| json!({"kind": "Node", "name": name, "labels": {"a": "1"}, "merge_labels": false});
    apply(&served, &json!([node("n1"), node("n2")])).await;
    let answer = patched(&served, "/v1/nodes/n1", &json!([{"op": "remove", "path": "/merge_labels"}])).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = served.send("PATCH", "/v1/nodes/n2", MERGE, Some(&json!({"merge_labels": null}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let [one, other] = [served.get("/v1/nodes/n1").await, served.get("/v1/nodes/n2").await];
    // As of a new node with labels.
    assert_eq!((&one["merge_labels"], &other["merge_labels"]), (&json!(true), &json!(true)));
    assert_eq!(one["field_owners"], other["field_owners"]);
}

#[tokio::test]
async fn y05_a_parameter_may_be_called_as_the_map() {
    let served = Served::start().await;
    apply(&served, &json!([{"kind": "Node", "name": "n1"}, {"kind": "Node", "name": "n2"}])).await;
    let parameters = json!({"parameters": {"x": 1}});
    served.expect("PATCH", "/v1/nodes/n1/parameters", &parameters, 200).await;
    let answer = served.send("PATCH", "/v1/nodes/n2", MERGE, Some(&json!({"parameters": parameters}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for path in ["/v1/nodes/n1", "/v1/nodes/n2"] {
        assert_eq!(served.get(path).await["provided_parameters"], parameters, "{path}");
    }
    // No label's value is an object.
    served.expect("PATCH", "/v1/nodes/n1/labels", &json!({"labels": {"x": "1"}}), 200).await;
    served.expect("PATCH", "/v1/nodes/n1/labels", &json!({"labels": "2"}), 200).await;
    assert_eq!(served.get("/v1/nodes/n1").await["provided_labels"], json!({"x": "1", "labels": "2"}));
}

#[tokio::test]
async fn y05_a_write_that_is_tried_out_needs_no_file_body() {
    let served = Served::start().await;
    let source = format!("sha256:{}", "ab".repeat(32));
    let task = json!({"id": "a", "type": "file", "roles": ["*"], "parameters": {"path": "/etc/a", "source": source}});
    let body = json!({"name": "r", "version": "1", "tasks": [task]});
    let mut manifest = body.clone();
    manifest["kind"] = "Release".into();
    let objects = json!({"objects": [manifest]});
    for (path, body, tried) in [("/v1/releases", &body, 201), ("/v1/apply", &objects, 200)] {
        served.expect("POST", &format!("{path}?dry_run=true"), body, tried).await;
        let answer = served.send("POST", path, &[], Some(body)).await;
        assert_eq!((answer.status, answer.kind()), (400, "blob.missing"), "{path}: {}", answer.body);
    }
}

/// Magnum's names of clusters begin with a letter, which its clients are told.
#[tokio::test]
async fn y05_a_cluster_has_any_name_in_each_form_but_for_magnums_clients() {
    let served = Served::start().await;
    apply(&served, &json!([{"kind": "ClusterTemplate", "name": "t"}, {"kind": "Cluster", "name": "1a"}])).await;
    served.expect("POST", "/v1/clusters", &json!({"name": "1b"}), 202).await;
    let body = json!({"name": "1c", "cluster_template_id": "t"});
    let answer = served.send("POST", "/v1/clusters", &[MAGNUM], Some(&body)).await;
    assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{}", answer.body);
    assert_eq!(answer.body["error"]["field"], "name");
}

#[tokio::test]
async fn y05_a_conflict_names_the_same_field_in_each_form() {
    let served = Served::start().await;
    for (field, value, named) in
        [("labels", json!({"tier": "gold"}), "labels.tier"), ("description", json!("a"), "description")]
    {
        let object = |value: &Value| json!({"objects": [{"kind": "Cluster", "name": "c", field: value}]});
        served.expect("POST", "/v1/apply?manager=git", &object(&value), 200).await;
        let other = if field == "labels" { json!({"tier": "iron"}) } else { json!("b") };
        let mut answers = vec![
            served.send("POST", "/v1/apply?manager=bob", &[], Some(&object(&other))).await,
            served.send("PATCH", "/v1/clusters/c?manager=bob&force=false", MERGE, Some(&json!({field: other}))).await,
        ];
        if field == "labels" {
            let body = json!({"labels": other});
            answers.push(served.send("PATCH", "/v1/clusters/c?manager=bob", APPLY, Some(&body)).await);
            answers.push(served.send("PUT", "/v1/clusters/c/labels?manager=bob&force=false", &[], Some(&body)).await);
        }
        for answer in answers {
            assert_eq!((answer.status, answer.kind()), (409, "label.conflict"), "{}", answer.body);
            let found = answer.body["error"]["field"].as_str().expect("a field");
            assert_eq!(found.trim_start_matches("objects[0]."), named, "{}", answer.body);
        }
    }
}

#[tokio::test]
async fn y05_a_principals_role_is_changed_and_never_taken_away() {
    let served = Served::start().await;
    served.expect("POST", "/v1/principals", &json!({"name": "ada", "role": "viewer"}), 201).await;
    let new = served.send("POST", "/v1/principals", &[], Some(&json!({"name": "eve", "role": null}))).await;
    let changed = served.send("PATCH", "/v1/principals/ada", MERGE, Some(&json!({"role": null}))).await;
    assert_eq!((new.status, changed.status), (400, 400), "{} {}", new.body, changed.body);
    let said = |answer: &Answer| (answer.kind().to_owned(), answer.body["error"]["field"].clone());
    assert_eq!(said(&new), said(&changed));
    assert_eq!(served.get("/v1/principals/ada").await["role"], "viewer");
}

/// Paths that meet by an edit of a node refuse nothing, since a host that joins may be who makes it. Its answer says so.
#[tokio::test]
async fn y05_an_edit_of_a_node_lists_paths_that_meet_as_the_write_of_a_release_does() {
    let served = Served::start().await;
    let file = |id: &str, tag: &str| json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": "/etc/z", "content": id}});
    let objects = json!([
        {"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}, "one": {"tags": ["y"]}},
         "tags": {"x": {}, "y": {}}, "tasks": [file("a", "x"), file("b", "y")]},
        {"kind": "Cluster", "name": "c", "release": "r@1"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
        {"kind": "NodeGroup", "cluster": "c", "name": "both", "roles": ["all", "one"]},
        {"kind": "Node", "name": "n1", "nodegroup": "c/g"}, {"kind": "Node", "name": "n2", "nodegroup": "c/g"},
    ]);
    apply(&served, &objects).await;
    let moved = served.send("PATCH", "/v1/nodes/n1", MERGE, Some(&json!({"nodegroup": "c/both"}))).await;
    let given = served.send("POST", "/v1/nodes/n2/roles", &[], Some(&json!({"roles": ["one"]}))).await;
    for (name, answer) in [("n1", moved), ("n2", given)] {
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        let findings = answer.body["findings"].as_array().expect("findings");
        let found = findings.iter().find(|one| one["object"] == "release/r@1 task b").expect("a finding");
        assert_eq!((&found["code"], &found["severity"]), (&json!("task.path"), &json!("error")), "{found}");
        let message = found["message"].as_str().expect("a message");
        assert!(message.starts_with(&format!("on 1 host ({name}): ")), "{message}");
    }
}

/// Labels that would be one variable of `labels.env` are said by the write that brings them together, before any node is there to have them.
#[tokio::test]
async fn y08_each_form_says_which_labels_are_one_variable_where_no_node_is_below() {
    let served = Served::start().await;
    apply(&served, &json!([{"kind": "Cluster", "name": "c"}, {"kind": "Cluster", "name": "f"}])).await;
    let both = json!({"a": "1", "A": "2"});
    let says = |text: &str| text.contains("labels A, a would all be STEMMA_LABEL_A");
    for (path, name) in [("/v1/clusters/c/nodegroups", "g"), ("/v1/clustertemplates", "t"), ("/v1/clusters", "d")] {
        let made = served.send("POST", path, &[], Some(&json!({"name": name, "labels": both}))).await;
        assert!(
            made.status < 300 && made.warning.as_deref().is_some_and(says),
            "{path}: {:?} {}",
            made.warning,
            made.body
        );
    }
    let body = ("prefer", "return=representation");
    let edited = served.send("PATCH", "/v1/clusters/c", &[MERGE[0], body], Some(&json!({"labels": both}))).await;
    assert!(says(&edited.body["findings"].to_string()), "{}", edited.body);
    for object in [
        json!({"kind": "ClusterTemplate", "name": "u", "labels": both}),
        json!({"kind": "Cluster", "name": "e", "labels": both}),
        json!({"kind": "NodeGroup", "cluster": "f", "name": "h", "labels": both}),
    ] {
        let applied = served.expect("POST", "/v1/apply", &json!({"objects": [object]}), 200).await;
        assert!(says(&applied["findings"].to_string()), "{object}: {applied}");
    }
}

/// What a client of Magnum's sends back of an answer means nothing; in a manifest it is a slip.
#[tokio::test]
async fn y05_what_the_controller_alone_says_is_set_by_no_form() {
    let served = Served::start().await;
    apply(&served, &json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}]))
        .await;
    for (object, list, field) in [
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "api_address"),
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "stack_id"),
        (json!({"kind": "Cluster", "name": "c"}), "/v1/clusters", "status"),
        (json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}), "/v1/clusters/c/nodegroups", "status_reason"),
    ] {
        let with = |value: Value| {
            let mut object = object.clone();
            object[field] = value;
            json!({"objects": [object]})
        };
        let answer = served.send("POST", "/v1/apply", &[], Some(&with(json!("x")))).await;
        assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{field}: {}", answer.body);
        assert_eq!(answer.body["error"]["field"], format!("objects[0].{field}"));
        served.expect("POST", "/v1/apply", &with(Value::Null), 200).await;
        let path = format!("{list}/{}", object["name"].as_str().expect("a name"));
        served.send("PATCH", &path, MERGE, Some(&json!({field: "x"}))).await;
        let shown = served.get(&path).await;
        assert!(shown[field] != "x" && shown["field_owners"].get(field).is_none(), "{field}: {shown}");
    }
}

/// A call that names a role or tag alone means nothing else; what an object refers to may come later. docs/api.md has the table.
#[tokio::test]
async fn y05_an_unknown_role_or_tag_is_refused_by_its_own_call_and_found_of_the_write_of_an_object() {
    let served = Served::start().await;
    let node = |at: usize| json!({"kind": "Node", "name": format!("n{at}"), "nodegroup": "c/g"});
    let mut objects = vec![
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}}}),
        json!({"kind": "Cluster", "name": "c", "release": "r@1"}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}),
    ];
    objects.extend((0..4).map(node));
    apply(&served, &json!(objects)).await;
    for (method, path, body, refused) in [
        ("POST", "/v1/nodes/n0/roles", json!({"roles": ["nope"]}), (400, "role.invalid")),
        ("PUT", "/v1/nodes/n0/roles", json!({"roles": ["nope"]}), (400, "role.invalid")),
        ("PUT", "/v1/nodes/n0/tags/nope", Value::Null, (400, "tag.unknown")),
        ("POST", "/v1/nodes/n0/tags", json!({"assign": ["nope"]}), (404, "object.not_found")),
    ] {
        let answer = served.send(method, path, &[], Some(&body).filter(|body| !body.is_null())).await;
        assert_eq!((answer.status, answer.kind()), refused, "{method} {path}: {}", answer.body);
    }
    for (field, value, code) in
        [("roles", json!(["nope"]), "role.unknown"), ("tags", json!({"assigned": ["nope"]}), "tag.unknown")]
    {
        let manifest = |at: usize| {
            let mut node = node(at);
            node[field] = value.clone();
            json!({"objects": [node]})
        };
        let add = json!([{"op": "add", "path": format!("/{field}"), "value": value}]);
        let answers = [
            served.send("PATCH", "/v1/nodes/n1", MERGE, Some(&json!({field: value}))).await,
            served.send("PATCH", "/v1/nodes/n2", PATCH, Some(&add)).await,
            served.send("POST", "/v1/apply", &[], Some(&manifest(3))).await,
        ];
        for answer in answers {
            let found = answer.body["findings"].as_array().is_some_and(|all| all.iter().any(|one| one["code"] == code));
            assert!(answer.status == 200 && found, "{field}: {} {}", answer.status, answer.body);
        }
        let strict = served.send("POST", "/v1/apply?strict=true", &[], Some(&manifest(0))).await;
        assert_eq!((strict.status, strict.kind()), (400, "finding.strict"), "{field}: {}", strict.body);
    }
}
