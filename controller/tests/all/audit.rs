//! Reading the audit over HTTP: in pages, and with filters.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_controller::records::key;
use stemma_controller::store::{Revision, Transaction};
use stemma_core::object::Kind;
use uuid::Uuid;

use crate::served::TestApi;

/// Starts the API with the clusters eu and us, which each have a group `web`. Then creates, labels and deletes node
/// web-1. The fleet has five audit entries.
async fn start_filled() -> TestApi {
    let api = TestApi::start().await;
    for cluster in ["eu", "us"] {
        let objects = json!([{"kind": "Cluster", "name": cluster}, {"kind": "NodeGroup", "cluster": cluster, "name": "web"}]);
        api.expect("POST", "/v1/apply?manager=setup", &json!({"objects": objects}), 200).await;
    }
    let node = json!({"name": "web-1"});
    api.expect("POST", "/v1/nodes", &node, 201).await;
    let reason = [("stemma-reason", "ticket 7")];
    let label = json!({"labels": {"a": "b"}});
    api.send("PATCH", "/v1/nodes/web-1/labels?manager=ops", &reason, Some(&label)).await;
    api.send("DELETE", "/v1/nodes/web-1", &[], None).await;
    api
}

/// Returns the revisions of the entries in a list.
fn revisions(list: &Value) -> Vec<u64> {
    list["audit"].as_array().unwrap().iter().map(|entry| entry["revision"].as_u64().unwrap()).collect()
}

/// Returns a line `ACTION KIND/NAME` for each object in the entries of a list.
fn entry_lines(list: &Value) -> Vec<String> {
    let objects = list["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    objects.map(|object| format!("{} {}/{}", text(&object["action"]), text(&object["kind"]), text(&object["name"]))).collect()
}

/// Regression: a blank reason was accepted, and the audit showed an empty text.
#[tokio::test]
async fn x06_write_rejects_empty_reason() {
    let api = TestApi::start().await;
    let node = json!({"name": "web-1"});
    for reason in ["", " ", "\t", "\u{a0}", "\u{200b}"] {
        let headers = [("stemma-reason", reason), ("content-type", "application/json")];
        assert_eq!(api.send("POST", "/v1/nodes", &headers, Some(&node)).await.status, 400, "{reason:?}");
    }
    api.expect("GET", "/v1/nodes/web-1", &json!(null), 404).await;
    let headers = [("stemma-reason", "ticket 7"), ("content-type", "application/json")];
    assert_eq!(api.send("POST", "/v1/nodes", &headers, Some(&node)).await.status, 201);
}

/// Each case is a query, and the lines of the listed entries as `ACTION KIND/NAME`.
#[tokio::test]
async fn audit_list_filters_by_object_manager_and_time() {
    let api = start_filled().await;
    let list = api.get("/v1/audit").await;
    assert_eq!(revisions(&list), [1, 2, 3, 4, 5]);
    let labelled = &list["audit"][3];
    assert_eq!(
        (&labelled["manager"], &labelled["reason"], &labelled["refused"]),
        (&json!("ops"), &json!("ticket 7"), &Value::Null)
    );
    let lifecycle = ["created node/web-1", "updated node/web-1", "deleted node/web-1"];
    let node = list["audit"][2]["objects"][0]["uuid"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("object=node/web-1", &lifecycle[..]),
        ("object=NODE/web-1", &lifecycle),
        (&format!("object={node}"), &lifecycle),
        (&format!("object=node/{node}"), &lifecycle),
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
        ("principal=admin&object=node/web-1&sort_dir=desc&limit=1", &lifecycle[2..]),
        ("since=2100-01-01T00:00:00Z", &[]),
        ("until=2000-01-01T00:00:00Z", &[]),
        ("since=2000-01-01T00:00:00Z&until=2100-01-01T00:00:00Z&object=node/web-1", &lifecycle),
        ("refused=true", &[]),
        ("refused=false&object=node/web-1", &lifecycle),
    ] {
        let filtered_list = api.get(&format!("/v1/audit?{query}")).await;
        assert_eq!(entry_lines(&filtered_list), expected, "{query}");
    }
}

/// The token belongs to a node, so its entries show the node as unchanged, and the token as a part. Regression: the
/// entries of the creation and of the deletion of a token were both `unchanged`, and nothing distinguished them.
#[tokio::test]
async fn y09_audit_list_distinguishes_token_creation_and_deletion() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/nodes", &json!({"name": "web-1"}), 201).await;
    let token = api.expect("POST", "/v1/join-tokens", &json!({"node": "web-1"}), 201).await;
    let id = token["id"].as_str().unwrap();
    api.expect("DELETE", &format!("/v1/join-tokens/{id}"), &Value::Null, 204).await;
    let list = api.get("/v1/audit?object=node/web-1").await;
    let fields_of_entry = |number: usize| {
        let object = &list["audit"][number]["objects"][0];
        [&object["action"], &object["part"], &object["part_action"]].map(Clone::clone)
    };
    let part = format!("join-tokens.{id}");
    assert_eq!(fields_of_entry(0), [json!("created"), Value::Null, Value::Null]);
    assert_eq!(fields_of_entry(1), [json!("unchanged"), json!(part), json!("made")]);
    assert_eq!(fields_of_entry(2), [json!("unchanged"), json!(part), json!("deleted")]);
}

#[tokio::test]
async fn audit_list_finds_group_by_cluster_when_both_are_deleted() {
    let api = start_filled().await;
    api.send("DELETE", "/v1/clusters/eu", &[], None).await;
    let list = api.get("/v1/audit?object=nodegroup/eu/web").await;
    let creation_lines = ["created cluster/eu", "created nodegroup/eu/web"];
    assert_eq!(entry_lines(&list), [creation_lines[0], creation_lines[1], "deleted nodegroup/eu/web", "deleted cluster/eu"]);
    // A group that is created again under both names shares the history of these names.
    let objects = json!([{"kind": "Cluster", "name": "eu"}, {"kind": "NodeGroup", "cluster": "eu", "name": "web"}]);
    api.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    let later_list = api.get("/v1/audit?object=nodegroup/eu/web").await;
    assert_eq!(entry_lines(&later_list)[4..], creation_lines);
    let other_list = api.get("/v1/audit?object=nodegroup/us/web").await;
    assert_eq!(entry_lines(&other_list), ["created cluster/us", "created nodegroup/us/web"]);
    assert_eq!(entry_lines(&api.get("/v1/audit?object=nodegroup/xx/web").await), Vec::<String>::new());
}

#[tokio::test]
async fn audit_pages_return_each_entry_once_in_both_directions() {
    let api = start_filled().await;
    for (direction, expected) in [("asc", [1, 2, 3, 4, 5]), ("desc", [5, 4, 3, 2, 1])] {
        let mut all_revisions = Vec::new();
        let mut path = format!("/v1/audit?limit=2&sort_dir={direction}");
        loop {
            let page = api.get(&path).await;
            all_revisions.extend(revisions(&page));
            let Some(next_url) = page["next"].as_str() else { break };
            path = next_url.strip_prefix("http://localhost").unwrap().to_owned();
        }
        assert_eq!(all_revisions, expected);
    }
    let page_after_end = api.get("/v1/audit?marker=5").await;
    assert_eq!((revisions(&page_after_end), &page_after_end["next"]), (Vec::new(), &Value::Null));
}

#[tokio::test]
async fn audit_list_names_parameter_when_rejected() {
    let api = TestApi::start().await;
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
        let response = api.send("GET", &format!("/v1/audit?{query}"), &[], None).await;
        let (status, kind, error_field) = (response.status, response.kind().to_owned(), &response.body["error"]["field"]);
        assert_eq!((status, &*kind, error_field), (400, "request.query", &json!(field)), "{query}: {}", response.body);
    }
}

pub(crate) const PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];

/// Applies objects as manager `git`.
pub(crate) async fn apply(api: &TestApi, objects: Value) {
    api.expect("POST", "/v1/apply?manager=git", &json!({"objects": objects}), 200).await;
}

async fn rename(api: &TestApi, node: &str, name: &str) {
    let patch = json!([{"op": "replace", "path": "/name", "value": name}]);
    let response = api.send("PATCH", &format!("/v1/nodes/{node}"), PATCH, Some(&patch)).await;
    assert_eq!(response.status, 200, "{}", response.body);
}

/// Returns the objects of one kind in the entries of a list.
fn objects_of_kind<'v>(list: &'v Value, kind: &str) -> Vec<&'v Value> {
    let objects = list["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    objects.filter(|object| object["kind"] == kind).collect()
}

/// Regression: an entry contained "updated", but not what had changed.
#[tokio::test]
async fn y09_audit_entry_shows_old_and_new_values() {
    let api = TestApi::start().await;
    let group = |fields: Value| {
        let mut group = json!({"kind": "NodeGroup", "cluster": "eu", "name": "web"});
        group.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        group
    };
    let first_version = group(json!({"description": "x", "labels": {"rack": "a", "zone": "1"}}));
    apply(&api, json!([{"kind": "Cluster", "name": "eu"}, first_version])).await;
    let second_version = json!({"description": "z", "labels": {"rack": "b"}, "annotations": {"note": "y".repeat(600)}});
    apply(&api, json!([group(second_version)])).await;
    api.send("DELETE", "/v1/clusters/eu/nodegroups/web", &[], None).await;
    let list = api.get("/v1/audit?object=nodegroup/eu/web").await;
    let groups = objects_of_kind(&list, "nodegroup");
    let actions: Vec<&Value> = groups.iter().map(|object| &object["action"]).collect();
    assert_eq!(actions, ["created", "updated", "deleted"]);
    let note = format!("{}… (600 characters)", "y".repeat(500));
    assert_eq!(
        groups[1]["changes"],
        json!([
            {"field": "annotations.note", "after": note},
            {"field": "description", "before": "x", "after": "z"},
            {"field": "labels.rack", "before": "a", "after": "b"},
            {"field": "labels.zone", "before": "1"},
        ])
    );
    for (index, change) in [
        (0, json!({"field": "labels.zone", "after": "1"})),
        (0, json!({"field": "name", "after": "web"})),
        (2, json!({"field": "labels.rack", "before": "b"})),
        (2, json!({"field": "description", "before": "z"})),
    ] {
        assert!(groups[index]["changes"].as_array().unwrap().contains(&change), "{change}: {}", groups[index]);
    }
    assert!(groups.iter().all(|object| object["changes_left_out"].is_null()), "{list}");
    let clusters = objects_of_kind(&list, "cluster");
    assert_eq!(
        (&clusters[0]["changes"], &clusters[0]["changes_left_out"]),
        (&Value::Null, &json!("not_asked")),
        "a list for the group omits the changes of other objects"
    );
}

/// An inspection rule becomes sensitive in its second version. The audit then hides the actions of all versions.
#[tokio::test]
async fn y09_audit_entry_omits_values_when_field_is_secret() {
    let api = TestApi::start().await;
    let rule = |tag: &str, sensitive: bool| {
        let actions = json!([{"op": "add-trait", "args": {"name": format!("CUSTOM_{tag}")}}]);
        json!([{"kind": "InspectionRule", "name": "r", "sensitive": sensitive, "actions": actions}])
    };
    for (tag, sensitive) in [("FIRST", false), ("FIRST", true), ("SECOND", true)] {
        apply(&api, rule(tag, sensitive)).await;
    }
    let list = api.get("/v1/audit?object=inspectionrule/r").await;
    let rules = objects_of_kind(&list, "inspectionrule");
    assert_eq!(rules[1]["changes"], json!([{"field": "sensitive", "after": true}]), "{list}");
    assert_eq!(rules[2]["changes"], json!([{"field": "actions", "sensitive": true}]), "{list}");
    for hidden in ["CUSTOM_FIRST", "CUSTOM_SECOND"] {
        assert!(!list.to_string().contains(hidden), "{list}");
    }
}

/// The first stored version of the node is deleted, as a sweep of the history does. Two entries need this version: the
/// entries of the creation and of the first edit.
#[tokio::test]
async fn y09_audit_entry_reports_missing_values_when_history_lacks_version() {
    let api = start_filled().await;
    let list = api.get("/v1/audit?object=node/web-1").await;
    let uuid: Uuid = objects_of_kind(&list, "node")[0]["uuid"].as_str().unwrap().parse().unwrap();
    let image = [key::history(Kind::Node, uuid).as_bytes(), &Revision::new(revisions(&list)[0]).to_key()].concat();
    api.api().registry.store().commit(Transaction::new().delete(image)).await.unwrap();
    let list = api.get("/v1/audit?object=node/web-1").await;
    let changes: Vec<(&Value, bool)> =
        objects_of_kind(&list, "node").iter().map(|object| (&object["changes_left_out"], object["changes"].is_array())).collect();
    let not_kept = json!("not_kept");
    assert_eq!(
        changes,
        [(&not_kept, false), (&not_kept, false), (&Value::Null, true)],
        "the entry of the deletion still has the last values"
    );
}

/// An entry shows the changes of at most 100 objects. Without this limit, a list of a write of many objects would need
/// too much memory. A list for one object shows only the changes of this object, even if it is the last of the entry.
#[tokio::test]
async fn y09_audit_entry_limits_changes_unless_object_is_selected() {
    const NODES: usize = 120;
    let api = TestApi::start().await;
    let nodes: Vec<Value> = (0..NODES).map(|n| json!({"kind": "Node", "name": format!("n-{n}")})).collect();
    apply(&api, nodes.into()).await;
    let list = api.get("/v1/audit").await;
    let objects = objects_of_kind(&list, "node");
    let count_with_changes = |objects: &[&Value]| objects.iter().filter(|object| object["changes"].is_array()).count();
    assert_eq!((objects.len(), count_with_changes(&objects)), (NODES, 100));
    assert_eq!(objects.iter().filter(|object| object["changes_left_out"] == "no_room").count(), 20);
    let last_name = objects[NODES - 1]["name"].as_str().unwrap();
    let list = api.get(&format!("/v1/audit?object=node/{last_name}")).await;
    let objects = objects_of_kind(&list, "node");
    assert_eq!((objects.len(), count_with_changes(&objects)), (NODES, 1));
    assert!(objects[NODES - 1]["changes"].is_array(), "{}", objects[NODES - 1]);
}

/// The first node is named a, then b, then c. A second node gets the name a later, so the name a finds both.
/// Regression: changes of a node before its rename were found by the old name only, and later changes by the new name
/// only.
#[tokio::test]
async fn y09_audit_list_finds_renamed_object_by_each_name() {
    let api = TestApi::start().await;
    api.expect("POST", "/v1/nodes", &json!({"name": "a"}), 201).await;
    rename(&api, "a", "b").await;
    api.expect("POST", "/v1/nodes", &json!({"name": "a"}), 201).await;
    rename(&api, "b", "c").await;
    let uuid = async |name: &str| api.get(&format!("/v1/nodes/{name}")).await["uuid"].as_str().unwrap().to_owned();
    let (first_uuid, second_uuid) = (uuid("c").await, uuid("a").await);
    let first_lines = [("created node/a", &first_uuid), ("updated node/b", &first_uuid), ("updated node/c", &first_uuid)];
    let both_lines = [first_lines[0], first_lines[1], ("created node/a", &second_uuid), first_lines[2]];
    let deletion_lines = [("deleted node/c", &first_uuid), ("deleted node/a", &second_uuid)];
    for is_existing in [true, false] {
        for (name, expected, deletions) in [
            ("c", &first_lines[..], &deletion_lines[..1]),
            ("b", &first_lines, &deletion_lines[..1]),
            ("a", &both_lines, &deletion_lines[..]),
            (&first_uuid, &first_lines, &deletion_lines[..1]),
            (&second_uuid, &both_lines[2..3], &deletion_lines[1..]),
        ] {
            let list = api.get(&format!("/v1/audit?object=node/{name}")).await;
            let uuids: Vec<&str> = objects_of_kind(&list, "node").iter().map(|object| object["uuid"].as_str().unwrap()).collect();
            let actual: Vec<(String, &str)> = entry_lines(&list).into_iter().zip(uuids).collect();
            let expected = expected.iter().chain(deletions.iter().filter(|_| !is_existing));
            let expected: Vec<(String, &str)> = expected.map(|(line, uuid)| ((*line).to_owned(), &***uuid)).collect();
            assert_eq!(actual, expected, "{name}, existing: {is_existing}");
        }
        let list = api.get("/v1/audit?object=node/c").await;
        let rename_changes: Vec<&Value> = objects_of_kind(&list, "node")[1..3].iter().map(|object| &object["changes"]).collect();
        let change = |before: &str, after: &str| json!([{"field": "name", "before": before, "after": after}]);
        assert_eq!(rename_changes, [&change("a", "b"), &change("b", "c")]);
        for name in ["c", "a"] {
            api.send("DELETE", &format!("/v1/nodes/{name}"), &[], None).await;
        }
    }
}

/// Regression: each entry showed the present name of its group, even if the entry was older than that name. Only the
/// entries of a deleted group showed the name at the time of the write.
#[tokio::test]
async fn y09_audit_entry_shows_group_name_at_write_time() {
    let api = TestApi::start().await;
    let group = json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "ga"}]);
    apply(&api, group).await;
    let patch = json!([{"op": "replace", "path": "/name", "value": "gb"}]);
    let response = api.send("PATCH", "/v1/clusters/c/nodegroups/ga", PATCH, Some(&patch)).await;
    assert_eq!(response.status, 202, "{}", response.body);
    let first_lines = ["created cluster/c", "created nodegroup/c/ga", "updated nodegroup/c/gb"];
    assert_eq!(entry_lines(&api.get("/v1/audit?object=nodegroup/c/gb").await), first_lines);
    api.send("DELETE", "/v1/clusters/c/nodegroups/gb", &[], None).await;
    apply(&api, json!([{"kind": "NodeGroup", "cluster": "c", "name": "gb"}])).await;
    let list = api.get("/v1/audit?object=nodegroup/c/gb").await;
    let both_lines = [&first_lines[..], &["deleted nodegroup/c/gb", "created nodegroup/c/gb"]].concat();
    assert_eq!(entry_lines(&list), both_lines);
    // A later group with the same name has another uuid, as with nodes.
    let uuids: Vec<&str> = objects_of_kind(&list, "nodegroup").iter().map(|object| object["uuid"].as_str().unwrap()).collect();
    assert_eq!(uuids[..3], [uuids[0]; 3]);
    assert_ne!(uuids[3], uuids[0]);
}
