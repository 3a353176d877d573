//! Reading the audit over HTTP: in pages, and with filters.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_controller::records::key;
use stemma_controller::store::{Revision, Transaction};
use stemma_core::object::Kind;
use uuid::Uuid;

use crate::served::TestApi;

/// Starts with two clusters that each have a group of the same name, and writes by two managers.
async fn start_filled() -> TestApi {
    let served = TestApi::start().await;
    for cluster in ["eu", "us"] {
        let objects = json!([{"kind": "Cluster", "name": cluster}, {"kind": "NodeGroup", "cluster": cluster, "name": "web"}]);
        served.expect("POST", "/v1/apply?manager=setup", &json!({"objects": objects}), 200).await;
    }
    let node = json!({"name": "web-1"});
    served.expect("POST", "/v1/nodes", &node, 201).await;
    let reason = [("stemma-reason", "ticket 7")];
    let label = json!({"labels": {"a": "b"}});
    served.send("PATCH", "/v1/nodes/web-1/labels?manager=ops", &reason, Some(&label)).await;
    served.send("DELETE", "/v1/nodes/web-1", &[], None).await;
    served
}

/// Returns the revisions of a list.
fn revisions(list: &Value) -> Vec<u64> {
    list["audit"].as_array().unwrap().iter().map(|entry| entry["revision"].as_u64().unwrap()).collect()
}

/// Returns the changes in a list's entries, one line for each.
fn entry_lines(list: &Value) -> Vec<String> {
    let objects = list["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    objects.map(|one| format!("{} {}/{}", text(&one["action"]), text(&one["kind"]), text(&one["name"]))).collect()
}

/// Regression: a blank reason was accepted, and the audit showed an empty text.
#[tokio::test]
async fn x06_write_rejects_empty_reason() {
    let served = TestApi::start().await;
    let node = json!({"name": "web-1"});
    for reason in ["", " ", "\t", "\u{a0}", "\u{200b}"] {
        let headers = [("stemma-reason", reason), ("content-type", "application/json")];
        assert_eq!(served.send("POST", "/v1/nodes", &headers, Some(&node)).await.status, 400, "{reason:?}");
    }
    served.expect("GET", "/v1/nodes/web-1", &json!(null), 404).await;
    let headers = [("stemma-reason", "ticket 7"), ("content-type", "application/json")];
    assert_eq!(served.send("POST", "/v1/nodes", &headers, Some(&node)).await.status, 201);
}

#[tokio::test]
async fn audit_list_filters_by_object_manager_and_time() {
    let served = start_filled().await;
    let all = served.get("/v1/audit").await;
    assert_eq!(revisions(&all), [1, 2, 3, 4, 5]);
    let labelled = &all["audit"][3];
    assert_eq!(
        (&labelled["manager"], &labelled["reason"], &labelled["refused"]),
        (&json!("ops"), &json!("ticket 7"), &Value::Null)
    );
    let life = ["created node/web-1", "updated node/web-1", "deleted node/web-1"];
    let node = all["audit"][2]["objects"][0]["uuid"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("object=node/web-1", &life[..]),
        ("object=NODE/web-1", &life),
        (&format!("object={node}"), &life),
        (&format!("object=node/{node}"), &life),
        (&format!("object=cluster/{node}"), &[]),
        ("object=node/web-2", &[]),
        ("object=cluster/web-1", &[]),
        // An entry is a commit, so the other changes of that commit are listed too. The other cluster's group is not
        // one of them.
        ("object=nodegroup/eu/web", &["created cluster/eu", "created nodegroup/eu/web"]),
        (
            "object=nodegroup/web",
            &["created cluster/eu", "created nodegroup/eu/web", "created cluster/us", "created nodegroup/us/web"],
        ),
        ("principal=nobody", &[]),
        ("principal=admin&object=node/web-1&sort_dir=desc&limit=1", &life[2..]),
        ("since=2100-01-01T00:00:00Z", &[]),
        ("until=2000-01-01T00:00:00Z", &[]),
        ("since=2000-01-01T00:00:00Z&until=2100-01-01T00:00:00Z&object=node/web-1", &life),
        ("refused=true", &[]),
        ("refused=false&object=node/web-1", &life),
    ] {
        let found = served.get(&format!("/v1/audit?{query}")).await;
        assert_eq!(entry_lines(&found), expected, "{query}");
    }
}

/// Regression: both entries were `unchanged`, and nothing distinguished them.
#[tokio::test]
async fn y09_audit_list_distinguishes_token_creation_and_deletion() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/nodes", &json!({"name": "web-1"}), 201).await;
    let token = served.expect("POST", "/v1/join-tokens", &json!({"node": "web-1"}), 201).await;
    let id = token["id"].as_str().unwrap();
    served.expect("DELETE", &format!("/v1/join-tokens/{id}"), &Value::Null, 204).await;
    let found = served.get("/v1/audit?object=node/web-1").await;
    let of_entry = |number: usize| {
        let object = &found["audit"][number]["objects"][0];
        [&object["action"], &object["part"], &object["part_action"]].map(Clone::clone)
    };
    let part = format!("join-tokens.{id}");
    assert_eq!(of_entry(0), [json!("created"), Value::Null, Value::Null]);
    assert_eq!(of_entry(1), [json!("unchanged"), json!(part), json!("made")]);
    assert_eq!(of_entry(2), [json!("unchanged"), json!(part), json!("deleted")]);
}

#[tokio::test]
async fn audit_list_finds_group_by_cluster_when_both_are_deleted() {
    let served = start_filled().await;
    served.send("DELETE", "/v1/clusters/eu", &[], None).await;
    let found = served.get("/v1/audit?object=nodegroup/eu/web").await;
    let first = ["created cluster/eu", "created nodegroup/eu/web"];
    assert_eq!(entry_lines(&found), [first[0], first[1], "deleted nodegroup/eu/web", "deleted cluster/eu"]);
    // A group that is created again under both names shares the history of these names.
    let objects = json!([{"kind": "Cluster", "name": "eu"}, {"kind": "NodeGroup", "cluster": "eu", "name": "web"}]);
    served.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    let again = served.get("/v1/audit?object=nodegroup/eu/web").await;
    assert_eq!(entry_lines(&again)[4..], first);
    let other = served.get("/v1/audit?object=nodegroup/us/web").await;
    assert_eq!(entry_lines(&other), ["created cluster/us", "created nodegroup/us/web"]);
    assert_eq!(entry_lines(&served.get("/v1/audit?object=nodegroup/xx/web").await), Vec::<String>::new());
}

#[tokio::test]
async fn audit_pages_return_each_entry_once_in_both_directions() {
    let served = start_filled().await;
    for (direction, expected) in [("asc", [1, 2, 3, 4, 5]), ("desc", [5, 4, 3, 2, 1])] {
        let mut found = Vec::new();
        let mut path = format!("/v1/audit?limit=2&sort_dir={direction}");
        loop {
            let page = served.get(&path).await;
            found.extend(revisions(&page));
            let Some(next) = page["next"].as_str() else { break };
            path = next.strip_prefix("http://localhost").unwrap().to_owned();
        }
        assert_eq!(found, expected);
    }
    let none = served.get("/v1/audit?marker=5").await;
    assert_eq!((revisions(&none), &none["next"]), (Vec::new(), &Value::Null));
}

#[tokio::test]
async fn audit_list_names_parameter_when_rejected() {
    let served = TestApi::start().await;
    for (query, field) in [
        ("object=web-1", "object"),
        ("object=nodes/web-1", "object"),
        ("since=yesterday", "since"),
        ("until=1960-01-01T00:00:00Z", "until"),
        ("marker=x", "marker"),
        ("sort_key=name", "sort_key"),
        ("refused=maybe", "refused"),
        ("action=created", "action"),
        ("limit=0", "limit"),
    ] {
        let answer = served.send("GET", &format!("/v1/audit?{query}"), &[], None).await;
        let (status, kind, of) = (answer.status, answer.kind().to_owned(), &answer.body["error"]["field"]);
        assert_eq!((status, &*kind, of), (400, "request.query", &json!(field)), "{query}: {}", answer.body);
    }
}

pub(crate) const PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];

pub(crate) async fn apply(served: &TestApi, objects: Value) {
    served.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
}

async fn rename(served: &TestApi, node: &str, name: &str) {
    let patch = json!([{"op": "replace", "path": "/name", "value": name}]);
    let told = served.send("PATCH", &format!("/v1/nodes/{node}"), PATCH, Some(&patch)).await;
    assert_eq!(told.status, 200, "{}", told.body);
}

/// Returns the objects of one kind in a list's commits.
fn parts_of_kind<'v>(list: &'v Value, kind: &str) -> Vec<&'v Value> {
    let objects = list["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    objects.filter(|one| one["kind"] == kind).collect()
}

/// Regression: an entry contained "updated", but not what had changed.
#[tokio::test]
async fn y09_audit_entry_shows_old_and_new_values() {
    let served = TestApi::start().await;
    let group = |fields: Value| {
        let mut group = json!({"kind": "NodeGroup", "cluster": "eu", "name": "web"});
        group.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        group
    };
    let first = group(json!({"description": "x", "labels": {"rack": "a", "zone": "1"}}));
    apply(&served, json!([{"kind": "Cluster", "name": "eu"}, first])).await;
    let second = json!({"description": "z", "labels": {"rack": "b"}, "annotations": {"note": "y".repeat(600)}});
    apply(&served, json!([group(second)])).await;
    served.send("DELETE", "/v1/clusters/eu/nodegroups/web", &[], None).await;
    let list = served.get("/v1/audit?object=nodegroup/eu/web").await;
    let told = parts_of_kind(&list, "nodegroup");
    let done: Vec<&Value> = told.iter().map(|one| &one["action"]).collect();
    assert_eq!(done, ["created", "updated", "deleted"]);
    let note = format!("{}… (600 characters)", "y".repeat(500));
    assert_eq!(
        told[1]["changes"],
        json!([
            {"field": "annotations.note", "after": note},
            {"field": "description", "before": "x", "after": "z"},
            {"field": "labels.rack", "before": "a", "after": "b"},
            {"field": "labels.zone", "before": "1"},
        ])
    );
    for (at, change) in [
        (0, json!({"field": "labels.zone", "after": "1"})),
        (0, json!({"field": "name", "after": "web"})),
        (2, json!({"field": "labels.rack", "before": "b"})),
        (2, json!({"field": "description", "before": "z"})),
    ] {
        assert!(told[at]["changes"].as_array().unwrap().contains(&change), "{change}: {}", told[at]);
    }
    assert!(told.iter().all(|one| one["changes_left_out"].is_null()), "{list}");
    let of_cluster = parts_of_kind(&list, "cluster");
    assert_eq!(
        (&of_cluster[0]["changes"], &of_cluster[0]["changes_left_out"]),
        (&Value::Null, &json!("not_asked")),
        "who asks for the group is told of the group"
    );
}

#[tokio::test]
async fn y09_audit_entry_omits_values_when_field_is_secret() {
    let served = TestApi::start().await;
    let rule = |tag: &str, sensitive: bool| {
        let actions = json!([{"op": "add-trait", "args": {"name": format!("CUSTOM_{tag}")}}]);
        json!([{"kind": "InspectionRule", "name": "r", "sensitive": sensitive, "actions": actions}])
    };
    for (tag, sensitive) in [("FIRST", false), ("FIRST", true), ("SECOND", true)] {
        apply(&served, rule(tag, sensitive)).await;
    }
    let list = served.get("/v1/audit?object=inspectionrule/r").await;
    let told = parts_of_kind(&list, "inspectionrule");
    assert_eq!(told[1]["changes"], json!([{"field": "sensitive", "after": true}]), "{list}");
    assert_eq!(told[2]["changes"], json!([{"field": "actions", "sensitive": true}]), "{list}");
    for hidden in ["CUSTOM_FIRST", "CUSTOM_SECOND"] {
        assert!(!list.to_string().contains(hidden), "{list}");
    }
}

#[tokio::test]
async fn y09_audit_entry_says_history_is_gone_when_compacted() {
    let served = start_filled().await;
    let list = served.get("/v1/audit?object=node/web-1").await;
    let uuid: Uuid = parts_of_kind(&list, "node")[0]["uuid"].as_str().unwrap().parse().unwrap();
    let image = [key::history(Kind::Node, uuid).as_bytes(), &Revision::new(revisions(&list)[0]).to_key()].concat();
    served.api().registry.store().commit(Transaction::new().delete(image)).await.unwrap();
    let list = served.get("/v1/audit?object=node/web-1").await;
    let told: Vec<(&Value, bool)> =
        parts_of_kind(&list, "node").iter().map(|one| (&one["changes_left_out"], one["changes"].is_array())).collect();
    let gone = json!("not_kept");
    assert_eq!(told, [(&gone, false), (&gone, false), (&Value::Null, true)], "the deletion has what it was last");
}

/// The values of a write of many objects would otherwise fill the memory.
#[tokio::test]
async fn y09_audit_entry_limits_changes_unless_object_is_selected() {
    const NODES: usize = 120;
    let served = TestApi::start().await;
    let nodes: Vec<Value> = (0..NODES).map(|n| json!({"kind": "Node", "name": format!("n-{n}")})).collect();
    apply(&served, nodes.into()).await;
    let list = served.get("/v1/audit").await;
    let told = parts_of_kind(&list, "node");
    let with = |told: &[&Value]| told.iter().filter(|one| one["changes"].is_array()).count();
    assert_eq!((told.len(), with(&told)), (NODES, 100));
    assert_eq!(told.iter().filter(|one| one["changes_left_out"] == "no_room").count(), 20);
    let last = told[NODES - 1]["name"].as_str().unwrap();
    let list = served.get(&format!("/v1/audit?object=node/{last}")).await;
    let told = parts_of_kind(&list, "node");
    assert_eq!((told.len(), with(&told)), (NODES, 1));
    assert!(told[NODES - 1]["changes"].is_array(), "{}", told[NODES - 1]);
}

/// Regression: changes of a node before its rename were found by the old name only, and later changes by the new name
/// only.
#[tokio::test]
async fn y09_audit_list_finds_renamed_object_by_each_name() {
    let served = TestApi::start().await;
    served.expect("POST", "/v1/nodes", &json!({"name": "a"}), 201).await;
    rename(&served, "a", "b").await;
    served.expect("POST", "/v1/nodes", &json!({"name": "a"}), 201).await;
    rename(&served, "b", "c").await;
    let uuid = async |name: &str| served.get(&format!("/v1/nodes/{name}")).await["uuid"].as_str().unwrap().to_owned();
    let (first, second) = (uuid("c").await, uuid("a").await);
    let of_first = [("created node/a", &first), ("updated node/b", &first), ("updated node/c", &first)];
    let of_both = [of_first[0], of_first[1], ("created node/a", &second), of_first[2]];
    let deleted = [("deleted node/c", &first), ("deleted node/a", &second)];
    for is_there in [true, false] {
        for (name, expected, ends) in [
            ("c", &of_first[..], &deleted[..1]),
            ("b", &of_first, &deleted[..1]),
            ("a", &of_both, &deleted[..]),
            (&first, &of_first, &deleted[..1]),
            (&second, &of_both[2..3], &deleted[1..]),
        ] {
            let list = served.get(&format!("/v1/audit?object=node/{name}")).await;
            let uuids: Vec<&str> = parts_of_kind(&list, "node").iter().map(|one| one["uuid"].as_str().unwrap()).collect();
            let told: Vec<(String, &str)> = entry_lines(&list).into_iter().zip(uuids).collect();
            let expected = expected.iter().chain(ends.iter().filter(|_| !is_there));
            let expected: Vec<(String, &str)> = expected.map(|(said, uuid)| ((*said).to_owned(), &***uuid)).collect();
            assert_eq!(told, expected, "{name}, there: {is_there}");
        }
        let list = served.get("/v1/audit?object=node/c").await;
        let renamed: Vec<&Value> = parts_of_kind(&list, "node")[1..3].iter().map(|one| &one["changes"]).collect();
        let change = |before: &str, after: &str| json!([{"field": "name", "before": before, "after": after}]);
        assert_eq!(renamed, [&change("a", "b"), &change("b", "c")]);
        for name in ["c", "a"] {
            served.send("DELETE", &format!("/v1/nodes/{name}"), &[], None).await;
        }
    }
}

/// Regression: each row had the present name of its group, even if the row was older than that name. Only a deleted
/// group had the name of that time.
#[tokio::test]
async fn y09_audit_row_shows_group_name_at_write_time() {
    let served = TestApi::start().await;
    let group = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "ga"}]);
    apply(&served, group).await;
    let patch = json!([{"op": "replace", "path": "/name", "value": "gb"}]);
    let told = served.send("PATCH", "/v1/clusters/c/nodegroups/ga", PATCH, Some(&patch)).await;
    assert_eq!(told.status, 202, "{}", told.body);
    let of_first = ["created cluster/c", "created nodegroup/c/ga", "updated nodegroup/c/gb"];
    assert_eq!(entry_lines(&served.get("/v1/audit?object=nodegroup/c/gb").await), of_first);
    served.send("DELETE", "/v1/clusters/c/nodegroups/gb", &[], None).await;
    apply(&served, json!([{"kind": "NodeGroup", "cluster": "c", "name": "gb"}])).await;
    let list = served.get("/v1/audit?object=nodegroup/c/gb").await;
    let of_both = [&of_first[..], &["deleted nodegroup/c/gb", "created nodegroup/c/gb"]].concat();
    assert_eq!(entry_lines(&list), of_both);
    // A later group with the same name has another uuid, as with nodes.
    let uuids: Vec<&str> = parts_of_kind(&list, "nodegroup").iter().map(|one| one["uuid"].as_str().unwrap()).collect();
    assert_eq!(uuids[..3], [uuids[0]; 3]);
    assert_ne!(uuids[3], uuids[0]);
}
