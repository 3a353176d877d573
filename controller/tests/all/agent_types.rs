//! A host whose agent does not know a task gets no task set with the task until its agent is upgraded. Findings say so
//! before the release.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::intake::Intake as _;
use stemma_core::task::declared_task_types;
use stemma_wire::message::observed::Observation;

use crate::fleet::{Fleet, observation_digest, read_until};
use crate::held_task_set::new_parts;
use crate::reported::observe;
use crate::states::wait_until_state;

/// Returns a release with a file task. Version 2 also has a command.
fn release(version: &str) -> Value {
    let file = json!({"id": "conf", "type": "file", "tags": ["x"], "parameters": {"path": "/etc/conf", "content": version}});
    let command = json!({"id": "dump", "type": "shell", "tags": ["x"], "parameters": {"command": ["true"]}});
    let tasks = if version == "1" { vec![file] } else { vec![file, command] };
    json!({"kind": "Release", "name": "site", "version": version, "roles": {"all": {"tags": ["x"]}}, "tags": {"x": {}}, "tasks": tasks})
}

/// Returns the objects of a site whose cluster has the release in this version.
fn site(version: &str) -> Value {
    json!([
        release("1"),
        release("2"),
        {"kind": "Cluster", "name": "c", "release": format!("site@{version}")},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ])
}

/// Returns the observation of a host whose agent has this version and declares these types (JSON).
fn observation(version: &str, task_types: &str) -> Observation {
    let facts = [("agent.task_types", task_types.to_owned()), ("agent.version", format!("{version:?}"))];
    Observation { facts: facts.map(|(path, text)| (path.to_owned(), text)).into(), ..Observation::default() }
}

/// Returns the messages of the findings about task types in a response.
fn messages(body: &Value) -> Vec<&str> {
    let findings = body["findings"].as_array().unwrap_or_else(|| panic!("{body}")).iter();
    findings.filter(|finding| finding["code"] == "task.type").map(|finding| finding["message"].as_str().unwrap()).collect()
}

/// The host keeps release 1, also after the controller was restarted. The upgraded agent gets release 2 by itself.
#[tokio::test]
async fn task_set_is_withheld_until_agent_declares_types() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site("1")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert!(observe(&mut host, &observation("0.4.1", r#"["file path content"]"#)).await);
    assert!(new_parts(&mut host).await.1.is_some());
    host.next_update(0).await;

    let message = "1 host with agent 0.4.1 does not know type \"shell\" (n): it gets no task set with such a task before its agent is upgraded";
    let apply = async |query: &str| {
        let path = format!("/v1/apply?force=true{query}");
        fleet.request(Method::POST, &path, &json!({"objects": site("2")})).await
    };
    let (status, body) = apply("&strict=true").await;
    assert_eq!((status, messages(&body)), (400, vec![message]), "{body}");
    let (status, body) = apply("&dry_run=true").await;
    assert_eq!((status, messages(&body)), (200, vec![message]), "{body}");
    let patch = json!([{"op": "replace", "path": "/release", "value": "site@2"}]);
    let edited = fleet.request(Method::PATCH, "/v1/clusters/c?dry_run=true", &patch).await;
    assert_eq!((edited.0, messages(&edited.1)), (202, vec![message]), "{edited:?}");

    assert_eq!(apply("").await.0, 200);
    let held_reason =
        "its agent does not know all task types of its next task set, and it keeps the one that it has (it runs site@1)";
    wait_until_state(&fleet, "n", "held", held_reason).await;
    assert_eq!(messages(&fleet.read("/v1/clusters/c/validate").await), [message]);
    let node_message = "its host has agent 0.4.1 and does not know type \"shell\", as in dump: it gets no task set with such a task before \
                        its agent is upgraded";
    assert_eq!(messages(&fleet.read("/v1/nodes/n").await), [node_message]);
    let explanation = fleet.read("/v1/nodes/n/explain?task=dump").await;
    assert!(explanation.to_string().contains("no new task set is released before the agent is upgraded"), "{explanation}");
    assert_eq!(fleet.read("/v1/nodes/n/resolved").await["released"]["release"], "site@1");

    // A check-in stores an observation at most every ten seconds, so this one is stored directly.
    let upgraded = observation("0.5.0", declared_task_types());
    fleet.components().intake.store_observation(host.node, observation_digest(&upgraded), upgraded).await.unwrap();
    assert!(new_parts(&mut host).await.1.is_some(), "the next task set is released");
    let read_findings = async || fleet.read("/v1/clusters/c/validate").await;
    read_until("no finding", read_findings, |body| messages(body).is_empty()).await;
    fleet.controller.stop().await;
}
