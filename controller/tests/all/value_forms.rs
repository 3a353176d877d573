//! Tests that an invalid time, number or name causes the same error in each form of a write (POST, PUT, merge patch,
//! JSON patch and apply), and that each form stores a valid value in the same way.

use serde_json::{Value, json};

use crate::served::{ApiResponse, TestApi};

const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");
const PATCH: (&str, &str) = ("content-type", "application/json-patch+json");

/// An object's kind, the path of the list of this kind, and the path of the object.
type KindPaths = (&'static str, &'static str, &'static str);

const NODE: KindPaths = ("Node", "/v1/nodes", "/v1/nodes/n");
const CLUSTER: KindPaths = ("Cluster", "/v1/clusters", "/v1/clusters/c");
const GROUP: KindPaths = ("NodeGroup", "/v1/clusters/c/nodegroups", "/v1/clusters/c/nodegroups/g");

/// Starts an API with the cluster `c`, its group `g`, and the node `n` of that group.
async fn site() -> TestApi {
    let api = TestApi::start().await;
    let objects = json!([
        {"kind": "Cluster", "name": "c"},
        {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        {"kind": "Node", "name": "n", "nodegroup": "c/g"},
    ]);
    api.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    api
}

/// Writes one value of a field by POST, merge patch, JSON patch and apply. POST creates an object named `new`, and the
/// other forms change the object at the path. Returns the name of each form with its response.
async fn write_in_each_form(
    api: &TestApi,
    (kind, list, path): KindPaths,
    field: &str,
    value: &Value,
) -> Vec<(&'static str, ApiResponse)> {
    let new_object = json!({"name": "new", field: value});
    let mut manifest = json!({"kind": kind, "name": path.rsplit('/').next(), field: value});
    if kind == "NodeGroup" {
        manifest["cluster"] = "c".into();
    }
    let patch = json!([{"op": "add", "path": format!("/{field}"), "value": value}]);
    vec![
        ("POST", api.send("POST", list, &[], Some(&new_object)).await),
        ("merge patch", api.send("PATCH", path, &[MERGE], Some(&json!({field: value}))).await),
        ("JSON patch", api.send("PATCH", path, &[PATCH], Some(&patch)).await),
        ("apply", api.send("POST", "/v1/apply", &[], Some(&json!({"objects": [manifest]}))).await),
    ]
}

#[tokio::test]
async fn y04_impossible_value_is_rejected_in_every_form() {
    let api = site().await;
    let window = json!({"days": ["Mon"], "start": "22:00", "duration": "4h"});
    let strategy_with = |name: &str, value: Value| {
        let mut window = window.clone();
        window[name] = value;
        json!({"windows": [window]})
    };
    for (kind, field, value, expected_field) in [
        (NODE, "hold", json!({"until": "2026-12-31T23:59:60Z", "reason": "x"}), "hold.until"),
        (NODE, "hold", json!({"until": "2026-12-31T23:59:59+25:00", "reason": "x"}), "hold.until"),
        (NODE, "hold", json!({"until": "2026-12-31t23:59:59z", "reason": "x"}), "hold.until"),
        (NODE, "hold", json!({"reason": ""}), "hold.reason"),
        (NODE, "properties", json!({"a": 9_007_199_254_740_993_u64}), "properties.a"),
        (NODE, "extra", json!({"a": {"b": [9_007_199_254_740_993_u64]}}), "extra.a.b[0]"),
        (NODE, "extra", json!({"a\nb": 1}), "extra"),
        (NODE, "resource_class", json!("a\nb"), "resource_class"),
        (NODE, "conductor_group", json!("a\u{0}"), "conductor_group"),
        (CLUSTER, "rollout", json!({"freeze": "soon"}), "rollout.freeze"),
        (CLUSTER, "rollout", json!({"freeze": "10000-01-01T00:00:00Z"}), "rollout.freeze"),
        (GROUP, "splay", json!(31_622_401), "splay"),
        (GROUP, "silent_after", json!(0), "silent_after"),
        (GROUP, "min_ready_seconds", json!(31_622_401), "min_ready_seconds"),
        (GROUP, "strategy", strategy_with("days", json!(["Xyz"])), "strategy.windows[0].days[0]"),
        (GROUP, "strategy", strategy_with("start", json!("25:99")), "strategy.windows[0].start"),
        (GROUP, "strategy", strategy_with("duration", json!("soon")), "strategy.windows[0].duration"),
        (GROUP, "strategy", strategy_with("time_zone", json!("Europe/Atlantis")), "strategy.windows[0].time_zone"),
        (GROUP, "strategy", json!({"canary": -1}), "strategy.canary"),
        (GROUP, "strategy", json!({"canary": "a in (b"}), "strategy.canary"),
        (GROUP, "splay", json!(true), "splay"),
        (GROUP, "docker_volume_size", json!("+1"), "docker_volume_size"),
        (GROUP, "roles", json!(["web", "MASTER"]), "roles[1]"),
        (NODE, "roles", json!(["Self"]), "roles[0]"),
        (CLUSTER, "roles", json!({"Self": {"add_tags": ["a"]}}), "roles.Self"),
        (CLUSTER, "tags", json!({"a": {"role": "null"}}), "tags.a.role"),
        (CLUSTER, "primaries", json!({"Self": "n"}), "primaries.Self"),
        (CLUSTER, "primaries", json!({"w": "a\u{2028}b"}), "primaries.w"),
        (CLUSTER, "rollout", json!({"order": ["a\nb"]}), "rollout.order[0]"),
        (CLUSTER, "primaries", json!({"w": "a/b"}), "primaries.w"),
        (CLUSTER, "rollout", json!({"order": ["*"]}), "rollout.order[0]"),
    ] {
        for (form, answer) in write_in_each_form(&api, kind, field, &value).await {
            let context = format!("{form} of {value}: {}", answer.body);
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{context}");
            let error_field = answer.body["error"]["field"].as_str().unwrap_or_default();
            assert_eq!(error_field.trim_start_matches("objects[0]."), expected_field, "{context}");
        }
    }
    assert_eq!(api.send("GET", "/v1/nodes/new", &[], None).await.status, 404);
}

/// The number 2^53 + 1 is one that a float cannot hold exactly. A map of a level (here `parameters`) can also be
/// written by apply patch, and through its own path.
#[tokio::test]
async fn y04_number_above_2_53_is_rejected_in_every_form() {
    const APPLY: (&str, &str) = ("content-type", "application/apply-patch+json");
    let api = site().await;
    let value = json!({"a": [9_007_199_254_740_993_u64]});
    let mut answers = write_in_each_form(&api, NODE, "parameters", &value).await;
    let body = json!({"parameters": value});
    answers.push(("apply-patch", api.send("PATCH", NODE.2, &[APPLY], Some(&body)).await));
    let path = "/v1/nodes/n/parameters";
    answers.push(("PUT of the map", api.send("PUT", path, &[], Some(&body)).await));
    answers.push(("PATCH of the map", api.send("PATCH", path, &[], Some(&value)).await));
    for (form, answer) in answers {
        assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{form}: {}", answer.body);
        assert!(answer.message().contains("past 2^53"), "{form}: {}", answer.body);
    }
}

/// Regression: a number above 2^53 that a double cannot hold was changed if it had a point or an exponent.
#[tokio::test]
async fn y04_inexact_number_is_rejected_in_any_notation() {
    let api = site().await;
    for number in ["9007199254740993.0", "9007199254740993e0", "9007199254740992.5", "123456789012345678e3"] {
        for field in ["parameters", "properties", "extra"] {
            let map = format!(r#"{{"{field}": {{"a": [{number}]}}}}"#);
            let patch = format!(r#"[{{"op": "add", "path": "/{field}", "value": {{"a": [{number}]}}}}]"#);
            let object = format!(r#"{{"kind": "Node", "name": "n", {}"#, &map[1..]);
            for (form, answer) in [
                ("POST", api.send_text("POST", NODE.1, &[], &map).await),
                ("merge patch", api.send_text("PATCH", NODE.2, &[MERGE], &map).await),
                ("JSON patch", api.send_text("PATCH", NODE.2, &[PATCH], &patch).await),
                ("apply", api.send_text("POST", "/v1/apply", &[], &format!(r#"{{"objects": [{object}]}}"#)).await),
            ] {
                assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{form} {number}: {}", answer.body);
                assert!(answer.message().contains("past 2^53"), "{form} {number}: {}", answer.body);
            }
        }
    }
    // The double of each of these numbers is printed with the same digits, so the numbers are accepted repeatedly.
    let body = r#"{"properties": {"a": [1e21, 9007199254740992.0, 1e300, 1.5]}}"#;
    for _ in 0..2 {
        let answer = api.send_text("PATCH", NODE.2, &[MERGE], body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let properties = api.get(NODE.2).await["properties"].clone();
    let answer = api.send("PATCH", NODE.2, &[MERGE], Some(&json!({"properties": properties}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Regression: `100` and `100.0` were two values in `properties` and similar fields. In `parameters` the notation of
/// the first write remained.
#[tokio::test]
async fn y04_whole_number_is_equal_in_every_form() {
    const JSON: (&str, &str) = ("content-type", "application/json");
    let api = site().await;
    for field in ["parameters", "properties", "extra", "instance_info"] {
        for (number, integer) in [("1e2", "100"), ("100.0", "100"), ("-0", "0"), ("1e16", "10000000000000000")] {
            let map = |number: &str| format!(r#"{{"{field}": {{"a": [{number}]}}}}"#);
            let patch = format!(r#"[{{"op": "add", "path": "/{field}", "value": {{"a": [{number}]}}}}]"#);
            let object = format!(r#"{{"objects": [{{"kind": "Node", "name": "n", {}]}}"#, &map(number)[1..]);
            for (form, method, path, header, body) in [
                ("merge patch", "PATCH", NODE.2, MERGE, map(number)),
                ("JSON patch", "PATCH", NODE.2, PATCH, patch.clone()),
                ("apply", "POST", "/v1/apply?force=true&manager=one", JSON, object.clone()),
            ] {
                let reset = api.send_text("PATCH", NODE.2, &[MERGE], &map("1.5")).await;
                assert_eq!(reset.status, 200, "{}", reset.body);
                let answer = api.send_text(method, path, &[header], &body).await;
                assert_eq!(answer.status, 200, "{form} of {field} {number}: {}", answer.body);
                let stored_text = api.get(NODE.2).await[field]["a"].to_string();
                assert_eq!(stored_text, format!("[{integer}]"), "{form} of {field} {number}");
            }
            let same_object = object.replace(number, integer);
            let answer = api.send_text("POST", "/v1/apply?manager=other", &[JSON], &same_object).await;
            assert_eq!(answer.status, 200, "two managers agree on {field} {number}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn y04_bad_rule_value_is_rejected_in_every_form() {
    const RULE: KindPaths = ("InspectionRule", "/v1/inspection_rules", "/v1/inspection_rules/r");
    let api = TestApi::start().await;
    let rule = json!({"name": "r", "actions": [{"op": "log", "args": {"msg": "x"}}]});
    api.expect("POST", RULE.1, &rule, 201).await;
    for (op, args, argument) in [
        ("set-attribute", json!({"path": "properties/p", "value": 9_007_199_254_740_993_u64}), "value"),
        ("set-attribute", json!({"path": "properties/a\nb", "value": 1}), "path"),
        ("set-capability", json!({"name": " ", "value": "1"}), "name"),
        ("set-plugin-data", json!({"path": "", "value": 1}), "path"),
    ] {
        let actions = json!([{"op": op, "args": args}]);
        for (form, answer) in write_in_each_form(&api, RULE, "actions", &actions).await {
            let context = format!("{form} of {actions}: {}", answer.body);
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{context}");
            let error_field = answer.body["error"]["field"].as_str().unwrap_or_default();
            assert_eq!(error_field.trim_start_matches("objects[0]."), format!("actions[0].args.{argument}"), "{context}");
        }
    }
}

#[tokio::test]
async fn y04_value_is_stored_as_written_in_every_form() {
    let api = site().await;
    for (kind, field, value) in [
        (NODE, "hold", json!({"until": "9999-12-31T23:59:59Z", "reason": "x"})),
        (NODE, "hold", json!({"until": "2999-12-31T23:59:59.500+01:00", "reason": "x"})),
        (CLUSTER, "rollout", json!({"freeze": "2026-12-31T00:00:00Z"})),
        (GROUP, "strategy", json!({"type": "RollingUpdate", "windows": [{"start": "22:00", "duration": "4h"}]})),
    ] {
        for (form, answer) in write_in_each_form(&api, kind, field, &value).await {
            assert!(answer.status < 300, "{form} of {value}: {}", answer.body);
            let path = if form == "POST" { format!("{}/new", kind.1) } else { kind.2.to_owned() };
            let stored = api.get(&path).await[field].clone();
            let is_same = value.as_object().unwrap().iter().all(|(name, expected)| stored[name] == *expected);
            assert!(is_same, "{form} of {value}: {stored}");
            if form == "POST" {
                assert!(api.send("DELETE", &path, &[], None).await.status < 300, "{path}");
            }
        }
    }
}

/// Regression: a requirement for version 1.10 became one for 1.1.
#[tokio::test]
async fn y04_requirement_number_keeps_text_in_every_form() {
    const JSON: (&str, &str) = ("content-type", "application/json");
    let api = site().await;
    for number in ["1.10", "1e3", "true", "18446744073709551616"] {
        let map = format!(r#"{{"property:a": {number}}}"#);
        let group = format!(r#"{{"kind": "NodeGroup", "cluster": "c", "name": "g", "requirements": {map}}}"#);
        for (form, method, path, header, body) in [
            ("merge patch", "PATCH", GROUP.2, MERGE, format!(r#"{{"requirements": {map}}}"#)),
            ("JSON patch", "PATCH", GROUP.2, PATCH, format!(r#"[{{"op": "add", "path": "/requirements", "value": {map}}}]"#)),
            (
                "JSON patch of a member",
                "PATCH",
                GROUP.2,
                PATCH,
                format!(r#"[{{"op": "replace", "path": "/requirements/property:a", "value": {number}}}]"#),
            ),
            ("apply", "POST", "/v1/apply?force=true", JSON, format!(r#"{{"objects": [{group}]}}"#)),
        ] {
            let reset = api.send_text("PATCH", GROUP.2, &[MERGE], r#"{"requirements": {"property:a": "x"}}"#).await;
            assert!(reset.status < 300, "{}", reset.body);
            let answer = api.send_text(method, path, &[header], &body).await;
            assert!(answer.status < 300, "{form} of {number}: {}", answer.body);
            assert_eq!(api.get(GROUP.2).await["requirements"], json!({"property:a": number}), "{form}");
        }
    }
}

/// A number to which an action of a rule sets a label is stored as text, also if a patch changes only this value.
#[tokio::test]
async fn y04_rule_number_keeps_text_as_label_in_every_form() {
    const RULE: &str = "/v1/inspection_rules/r";
    let api = TestApi::start().await;
    let actions = |path: &str, value: &str| {
        format!(
            r#"[{{"op": "log", "args": {{"msg": "x"}}}}, {{"op": "set-attribute", "args": {{"path": "{path}", "value": {value}}}}}]"#
        )
    };
    let replace = |place: &str, value: &str| format!(r#"{{"op": "replace", "path": "{place}", "value": {value}}}"#);
    for (number, text) in [
        ("1.50", "1.50"),
        ("1e3", "1e3"),
        ("-0", "-0"),
        ("5", "5"),
        ("true", "true"),
        ("18446744073709551616", "18446744073709551616"),
    ] {
        let (all_actions, args) = (actions("labels/a", number), format!(r#"{{"path": "labels/a", "value": {number}}}"#));
        let value = replace("/actions/1/args/value", number);
        let (to_label, to_property) =
            (replace("/actions/1/args/path", r#""labels/a""#), replace("/actions/1/args/path", r#""properties/a""#));
        for (form, header, body, first_path) in [
            ("merge patch", MERGE, format!(r#"{{"actions": {all_actions}}}"#), "labels/a"),
            ("JSON patch of all", PATCH, format!("[{}]", replace("/actions", &all_actions)), "labels/a"),
            ("JSON patch of arguments", PATCH, format!("[{}]", replace("/actions/1/args", &args)), "labels/a"),
            ("JSON patch of the value", PATCH, format!("[{value}]"), "labels/a"),
            ("JSON patch of the value, then the path", PATCH, format!("[{value}, {to_label}]"), "properties/a"),
            ("JSON patch of the path, then the value", PATCH, format!("[{to_label}, {value}]"), "properties/a"),
            (
                "JSON patch of the path, the value, and the path again",
                PATCH,
                format!("[{to_property}, {value}, {to_label}]"),
                "labels/a",
            ),
        ] {
            api.send("DELETE", RULE, &[], None).await;
            let new_rule = format!(r#"{{"name": "r", "actions": {}}}"#, actions(first_path, r#""x""#));
            let created = api.send_text("POST", "/v1/inspection_rules", &[], &new_rule).await;
            assert_eq!(created.status, 201, "{}", created.body);
            let answer = api.send_text("PATCH", RULE, &[header], &body).await;
            assert_eq!(answer.status, 200, "{form} of {number}: {}", answer.body);
            let stored_args = api.get(RULE).await["actions"][1]["args"].clone();
            assert_eq!(stored_args, json!({"path": "labels/a", "value": text}), "{form} of {number}");
        }
    }
    // The value of a property is a number. A number that no field can hold is refused, as in a write of the whole rule.
    let new_rule = format!(r#"{{"name": "p", "actions": {}}}"#, actions("properties/a", "1"));
    assert_eq!(api.send_text("POST", "/v1/inspection_rules", &[], &new_rule).await.status, 201);
    let patch = |number: &str| format!("[{}]", replace("/actions/1/args/value", number));
    let rule = "/v1/inspection_rules/p";
    assert_eq!(api.send_text("PATCH", rule, &[PATCH], &patch("1.50")).await.status, 200);
    assert_eq!(api.get(rule).await["actions"][1]["args"]["value"], json!(1.5));
    let all_actions = format!(r#"{{"actions": {}}}"#, actions("properties/a", "18446744073709551616"));
    for (header, body) in [(PATCH, patch("18446744073709551616")), (MERGE, all_actions)] {
        let error = api.send_text("PATCH", rule, &[header], &body).await;
        assert_eq!((error.status, error.kind()), (400, "field.invalid"), "{}", error.body);
        assert_eq!(error.body["error"]["field"], "actions[1].args.value", "{}", error.body);
    }
    assert_eq!(api.get(rule).await["actions"][1]["args"]["value"], json!(1.5));
}

/// A number as the value of an object's own label or annotation becomes text in each form, as in the labels of a node.
#[tokio::test]
async fn y05_label_number_keeps_text_in_every_form() {
    let api = TestApi::start().await;
    let rule = json!({"name": "r", "actions": [{"op": "log", "args": {"msg": "x"}}]});
    api.expect("POST", "/v1/inspection_rules", &rule, 201).await;
    api.expect("POST", "/v1/releases", &json!({"name": "r", "version": "1"}), 201).await;
    for (path, map) in [("/v1/inspection_rules/r", "labels"), ("/v1/releases/r@1", "labels"), ("/v1/releases/r@1", "annotations")]
    {
        for value in ["5", "1.50", "true", "18446744073709551616"] {
            for (form, header, body) in [
                ("merge patch", MERGE, format!(r#"{{"{map}": {{"a": {value}}}}}"#)),
                ("JSON patch of the map", PATCH, format!(r#"[{{"op": "add", "path": "/{map}", "value": {{"a": {value}}}}}]"#)),
                ("JSON patch of a key", PATCH, format!(r#"[{{"op": "add", "path": "/{map}/a", "value": {value}}}]"#)),
            ] {
                let answer = api.send_text("PATCH", path, &[header], &body).await;
                assert_eq!(answer.status, 200, "{form} of {value} in {path} {map}: {}", answer.body);
                assert_eq!(api.get(path).await[map], json!({"a": value}), "{form} in {path} {map}");
                let reset = api.send_text("PATCH", path, &[MERGE], &format!(r#"{{"{map}": null}}"#)).await;
                assert_eq!(reset.status, 200, "{}", reset.body);
            }
        }
        // The operation `test` finds the stored text `5` equal to the number 5 and to the text `5`.
        let test_patch = format!(
            r#"[{{"op": "add", "path": "/{map}/a", "value": 5}}, {{"op": "test", "path": "/{map}", "value": {{"a": 5}}}},
                {{"op": "test", "path": "/{map}/a", "value": 5}}, {{"op": "test", "path": "/{map}/a", "value": "5"}},
                {{"op": "remove", "path": "/{map}/a"}}]"#
        );
        let answer = api.send_text("PATCH", path, &[PATCH], &test_patch).await;
        assert_eq!(answer.status, 200, "{path} {map}: {}", answer.body);
        let list = format!(r#"[{{"op": "add", "path": "/{map}/a", "value": [1]}}]"#);
        let error = api.send_text("PATCH", path, &[PATCH], &list).await;
        assert_eq!((error.status, &error.body["error"]["field"]), (400, &json!(format!("{map}.a"))), "{map}");
    }
}

#[tokio::test]
async fn y04_reserved_word_is_rejected_as_role() {
    let api = site().await;
    for (method, word) in [("POST", "self"), ("POST", "Master"), ("PUT", "NULL")] {
        let body = json!({"roles": ["web", word]});
        let error = api.send(method, "/v1/nodes/n/roles", &[], Some(&body)).await;
        assert_eq!((error.status, error.kind()), (400, "role.invalid"), "{word}: {}", error.body);
        assert!(error.message().contains("is reserved"), "{word}: {}", error.body);
    }
    api.expect("POST", "/v1/nodes/n/roles", &json!({"roles": ["primary-web"]}), 200).await;
    let error = api.send("POST", "/v1/clusters/c/tags", &[], Some(&json!({"name": "a", "role": "Self"}))).await;
    assert_eq!((error.status, error.kind()), (400, "field.invalid"), "{}", error.body);
}

/// A cluster named `detail` could not be read, because `/v1/clusters/detail` is a list. The commands would read a name
/// such as `-x` as an option.
#[tokio::test]
async fn y04_unreachable_name_is_rejected_for_each_object() {
    let api = site().await;
    for (kind, name) in [(CLUSTER, "detail"), (CLUSTER, "Detail"), (GROUP, "-x")] {
        let mut manifest = json!({"kind": kind.0, "name": name});
        if kind.0 == "NodeGroup" {
            manifest["cluster"] = "c".into();
        }
        for (form, answer) in [
            ("POST", api.send("POST", kind.1, &[], Some(&json!({"name": name}))).await),
            ("merge patch", api.send("PATCH", kind.2, &[MERGE], Some(&json!({"name": name}))).await),
            ("apply", api.send("POST", "/v1/apply", &[], Some(&json!({"objects": [manifest]}))).await),
        ] {
            assert_eq!((answer.status, answer.kind()), (400, "field.invalid"), "{form} of {name}: {}", answer.body);
        }
    }
    let principal = json!({"name": "-x", "role": "viewer"});
    let error = api.send("POST", "/v1/principals", &[], Some(&principal)).await;
    assert_eq!((error.status, error.kind()), (400, "field.invalid"), "{}", error.body);
}

/// A namespace refuses names, property keys and prefixes with a control character, and an empty prefix.
#[tokio::test]
async fn y04_catalog_rejects_unreachable_name() {
    let api = TestApi::start().await;
    api.expect("POST", "/v2/metadefs/namespaces", &json!({"namespace": "Site"}), 201).await;
    for (list, body) in [
        ("objects", json!({"name": "a\nb"})),
        ("objects", json!({"name": "o", "properties": {"a\nb": {"title": "A", "type": "string"}}})),
        ("properties", json!({"name": "a\u{7f}", "title": "A", "type": "string"})),
        ("tags", json!({"tags": [{"name": "a\nb"}]})),
        ("resource_types", json!({"name": "a\u{85}b"})),
        ("resource_types", json!({"name": "Stemma::Label", "prefix": ""})),
        ("resource_types", json!({"name": "Stemma::Label", "prefix": "a\nb"})),
    ] {
        let error = api.send("POST", &format!("/v2/metadefs/namespaces/Site/{list}"), &[], Some(&body)).await;
        assert_eq!(error.status, 400, "{list} {body}: {}", error.body);
    }
    let objects = json!([{"name": "a\nb"}]);
    let namespace = json!({"kind": "Namespace", "namespace": "Site", "objects": objects});
    let error = api.send("POST", "/v1/apply", &[], Some(&json!({"objects": [namespace]}))).await;
    assert_eq!((error.status, error.kind()), (400, "field.invalid"), "{}", error.body);
}

/// An owner is shown as `MANAGER:apply` or `MANAGER:update`, so a manager's name must not end like this.
#[tokio::test]
async fn y04_manager_rejects_name_invalid_for_owner() {
    let api = site().await;
    for name in ["admin:update", "a:apply", "%20", "a%E2%80%A8b"] {
        let path = format!("/v1/nodes/n?manager={name}");
        let error = api.send("PATCH", &path, &[MERGE], Some(&json!({"description": "x"}))).await;
        assert_eq!((error.status, error.kind()), (400, "request.query"), "{name}: {}", error.body);
        assert_eq!(error.body["error"]["field"], "manager");
    }
    let accepted = api.send("PATCH", "/v1/nodes/n?manager=ci:prod", &[MERGE], Some(&json!({"description": "x"}))).await;
    assert_eq!(accepted.status, 200, "{}", accepted.body);
}
