//! The audit read back over HTTP: in pages, and narrowed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};

use crate::served::Served;

/// Two clusters with a group of the same name, and writes by two managers.
async fn filled() -> Served {
    let served = Served::start().await;
    for cluster in ["eu", "us"] {
        let objects =
            json!([{"kind": "Cluster", "name": cluster}, {"kind": "NodeGroup", "cluster": cluster, "name": "web"}]);
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

/// The revisions of a list.
fn revisions(list: &Value) -> Vec<u64> {
    list["audit"].as_array().unwrap().iter().map(|entry| entry["revision"].as_u64().unwrap()).collect()
}

/// What a list's entries did, each in a line.
fn said(list: &Value) -> Vec<String> {
    let objects = list["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    objects.map(|one| format!("{} {}/{}", text(&one["action"]), text(&one["kind"]), text(&one["name"]))).collect()
}

/// It was taken, and stood in the audit as no text.
#[tokio::test]
async fn x06_a_reason_of_nothing_is_refused() {
    let served = Served::start().await;
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
async fn each_write_is_found_by_object_manager_and_time() {
    let served = filled().await;
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
        // An entry is a commit: what else it did is said with it, and the other cluster's group is none of it.
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
        assert_eq!(said(&found), expected, "{query}");
    }
}

#[tokio::test]
async fn a_group_is_found_by_its_cluster_after_both_are_gone() {
    let served = filled().await;
    served.send("DELETE", "/v1/clusters/eu", &[], None).await;
    let found = served.get("/v1/audit?object=nodegroup/eu/web").await;
    let first = ["created cluster/eu", "created nodegroup/eu/web"];
    assert_eq!(said(&found), [first[0], first[1], "deleted nodegroup/eu/web", "deleted cluster/eu"]);
    // One that is made anew under both names has the history of these names.
    let objects = json!([{"kind": "Cluster", "name": "eu"}, {"kind": "NodeGroup", "cluster": "eu", "name": "web"}]);
    served.expect("POST", "/v1/apply", &json!({"objects": objects}), 200).await;
    let again = served.get("/v1/audit?object=nodegroup/eu/web").await;
    assert_eq!(said(&again)[4..], first);
    let other = served.get("/v1/audit?object=nodegroup/us/web").await;
    assert_eq!(said(&other), ["created cluster/us", "created nodegroup/us/web"]);
    assert_eq!(said(&served.get("/v1/audit?object=nodegroup/xx/web").await), Vec::<String>::new());
}

#[tokio::test]
async fn pages_give_each_entry_once_in_either_direction() {
    let served = filled().await;
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
async fn what_cannot_be_asked_is_refused_by_its_name() {
    let served = Served::start().await;
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
