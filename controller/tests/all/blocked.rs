//! Tests of the states `waiting` and `blocked`, and of their reason: the task and the host that a node waits for. All
//! responses of the API must agree.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_wire::message::observed::{Outcome, Report};

use crate::fleet::{Fleet, Host};
use crate::states::{
    check_in_with, is_state_in_answers, report_result, report_result_with_message, shell_task, site, site_with_tasks,
    start_fleet, start_with_two_hosts, take_over_next, wait_until, wait_until_shown, wait_until_state,
};

/// Waits until n2 is in this state, because its task b waits for task a on n1. Then reports that a failed on n1, and
/// waits until n2 is blocked. `awaited` is the awaited task or stage in the wording of the reason.
async fn wait_until_failure_blocks(fleet: &Fleet, first_host: &mut Host, state: &str, awaited: &str) {
    wait_until_state(fleet, "n2", state, &format!("b waits for {awaited}: n1 (a has not succeeded there)")).await;
    report_result(first_host, 1, "a", Outcome::Failed).await;
    wait_until_state(fleet, "n2", "blocked", &format!("b waits for {awaited}: n1 (a failed there)")).await;
}

/// Task b of n2 waits for task a of n1. When a fails, each of the five responses with the state of n2 shows `blocked`.
#[tokio::test]
async fn y06_node_is_blocked_in_each_answer_when_awaited_host_fails() {
    let (fleet, mut first_host, _second) = start_with_two_hosts(site("1")).await;
    wait_until(&fleet, "n2", |node| node["state"] == "waiting").await;
    report_result(&mut first_host, 1, "a", Outcome::Failed).await;
    let reason = "b waits for a on tags x: n1 (a failed there)";
    wait_until_state(&fleet, "n2", "blocked", reason).await;
    assert_eq!(is_state_in_answers(&fleet, "n2", "blocked").await, [true; 5]);
    let list = fleet.read("/v1/nodes?fields=name,state_reason&state=blocked").await;
    assert_eq!(list["nodes"][0]["state_reason"], reason, "the list has the same reason as the node");
    let failed = fleet.read("/v1/nodes?fields=name,state_reason&state=failed").await;
    assert_eq!(failed["nodes"][0]["state_reason"], "task a failed");
    // The failure is repaired, so n2 is no longer blocked.
    report_result(&mut first_host, 2, "a", Outcome::Changed).await;
    wait_until(&fleet, "n2", |node| node["state"] == "waiting").await;
    assert_eq!(is_state_in_answers(&fleet, "n2", "blocked").await, [false; 5]);
    fleet.controller.stop().await;
}

/// Task b of n2 requires task c, which has run. The reason names b, because b waits for n1.
#[tokio::test]
async fn y09_blocked_reason_names_waiting_task() {
    let mut site = site_with_tasks([shell_task("c", "y", json!({}))]);
    site[0]["tasks"][1]["requires"] = json!(["c"]);
    let (fleet, mut first_host, mut second_host) = start_with_two_hosts(site).await;
    report_result(&mut second_host, 1, "c", Outcome::Changed).await;
    wait_until_failure_blocks(&fleet, &mut first_host, "changing", "a on tags x").await;
    fleet.controller.stop().await;
}

/// A drifted task makes n2 `drifted` only after its other tasks have run. Until then, n2 is `changing`, or `blocked`
/// once task a, for which its task b waits, has failed on n1.
#[tokio::test]
async fn y06_drifted_task_hides_no_blocking_host_or_running_task() {
    let (fleet, mut first_host, mut second_host) = start_with_two_hosts(site_with_tasks([shell_task("c", "y", json!({}))])).await;
    report_result(&mut second_host, 1, "c", Outcome::Drifted).await;
    wait_until_failure_blocks(&fleet, &mut first_host, "changing", "a on tags x").await;
    assert_eq!(is_state_in_answers(&fleet, "n2", "blocked").await, [true; 5]);
    report_result(&mut first_host, 2, "a", Outcome::Changed).await;
    report_result(&mut second_host, 2, "b", Outcome::Changed).await;
    wait_until(&fleet, "n2", |node| node["state"] == "drifted").await;
    assert_eq!(is_state_in_answers(&fleet, "n2", "drifted").await, [true; 5]);
    fleet.controller.stop().await;
}

/// Task b of n2 waits for task a of n1, which is paused on its host.
#[tokio::test]
async fn y06_node_is_blocked_until_awaited_host_resumes() {
    let (fleet, mut first_host, _second) = start_with_two_hosts(site("1")).await;
    first_host.local.paused = true;
    check_in_with(&mut first_host, |_| {}).await;
    let reason = "b waits for a on tags x: n1 (it was paused on its host)";
    wait_until_state(&fleet, "n2", "blocked", reason).await;
    first_host.local.paused = false;
    check_in_with(&mut first_host, |_| {}).await;
    wait_until(&fleet, "n2", |node| node["state"] == "waiting").await;
    fleet.controller.stop().await;
}

/// Returns the objects of a site with these tasks. Task a has tag x. Task b has tag y and waits for a. Task e has tag z
/// and waits for b. The first letter of any other task is its tag. The group of tag x gets the fields of `x_fields`.
fn site_with_chain(version: &str, tasks: &[&str], x_fields: &Value) -> Value {
    let task = |id: &str| {
        let (tag, after) = match id {
            "b" => ("y", json!([{"name": "a", "tags": ["x"]}])),
            "e" => ("z", json!([{"name": "b", "tags": ["y"]}])),
            "x0" | "a" => ("x", json!([])),
            other_id => (&other_id[..1], json!([])),
        };
        json!({"id": id, "type": "shell", "tags": [tag], "cross_depends": after, "parameters": {"script": format!("echo {version}")}})
    };
    let tasks: Vec<Value> = tasks.iter().map(|id| task(id)).collect();
    let group = |tag: &str| json!({"kind": "NodeGroup", "cluster": "c", "name": format!("g{tag}"), "roles": [format!("r{tag}")]});
    let mut x_group = group("x");
    x_group.as_object_mut().unwrap().extend(x_fields.as_object().unwrap().clone());
    json!([
        {"kind": "Release", "name": "site", "version": version, "tags": {"x": {}, "y": {}, "z": {}}, "tasks": tasks,
         "roles": {"rx": {"tags": ["x"]}, "ry": {"tags": ["y"]}, "rz": {"tags": ["z"]}}},
        {"kind": "Cluster", "name": "c", "release": format!("site@{version}")}, x_group, group("y"), group("z"),
    ])
}

/// Waits until n2 and n3 are blocked for these reasons.
async fn wait_until_blocked(fleet: &Fleet, reasons: [&str; 2]) {
    for (name, reason) in ["n2", "n3"].into_iter().zip(reasons) {
        wait_until_state(fleet, name, "blocked", reason).await;
        assert_eq!(is_state_in_answers(fleet, name, "blocked").await, [true; 5]);
    }
}

/// The reason for which n3 is blocked while n2 is blocked: task e of n3 waits for task b of n2.
const BLOCKED_BEHIND: &str = "e waits for b on tags y: n2 (it is blocked itself)";

/// Task e of n3 waits for task b of n2, which waits for task a of n1.
#[tokio::test]
async fn y06_chain_of_nodes_is_blocked_when_first_host_fails() {
    let fleet = start_fleet(site_with_chain("1", &["a", "b", "e"], &json!({}))).await;
    let mut first_host = fleet.join_group("c/gx", "n1").await;
    let mut other_hosts = [fleet.join_group("c/gy", "n2").await, fleet.join_group("c/gz", "n3").await];
    take_over_next(&mut first_host).await;
    for host in &mut other_hosts {
        take_over_next(host).await;
    }
    wait_until(&fleet, "n3", |node| node["state"] == "waiting").await;
    report_result(&mut first_host, 1, "a", Outcome::Failed).await;
    wait_until_blocked(&fleet, ["b waits for a on tags x: n1 (a failed there)", BLOCKED_BEHIND]).await;
    report_result(&mut first_host, 2, "a", Outcome::Changed).await;
    for name in ["n2", "n3"] {
        wait_until(&fleet, name, |node| node["state"] == "waiting").await;
        assert_eq!(is_state_in_answers(&fleet, name, "blocked").await, [false; 5]);
    }
    fleet.controller.stop().await;
}

/// Task b waits for stage st2, which waits for stage st, which waits for task a. Regression: the reason named the
/// stage, or that the host is blocked, but not the task that blocks the others.
#[tokio::test]
async fn y06_blocked_reason_names_earlier_task_when_stage_is_incomplete() {
    let mut site = site("1");
    let stage = |id: &str, requires: &str| json!({"id": id, "type": "stage", "requires": [requires]});
    let task_b = shell_task("b", "y", json!({"requires": ["st2"]}));
    site[0]["tasks"] = json!([shell_task("a", "x", json!({})), stage("st", "a"), stage("st2", "st"), task_b]);
    let (fleet, mut first_host, _second) = start_with_two_hosts(site).await;
    wait_until_failure_blocks(&fleet, &mut first_host, "waiting", "stage st2").await;
    fleet.controller.stop().await;
}

/// Task e of n3 waits for task b of n2, which waits for task a of n1. Node n1 has not joined, or does not meet the
/// requirements of its group.
#[tokio::test]
async fn y06_node_is_blocked_when_awaited_host_cannot_run() {
    for (x_fields, has_joined, reason) in [
        (json!({}), false, "b waits for a on tags x: n1 (its agent has not joined)"),
        (
            json!({"requirements": {"trait:CUSTOM_NOPE": "required"}}),
            true,
            "b waits for a on tags x: n1 (it does not meet what its next task set requires, and has no task a)",
        ),
    ] {
        let fleet = start_fleet(site_with_chain("1", &["a", "b", "e"], &x_fields)).await;
        if has_joined {
            let mut first_host = fleet.join_group("c/gx", "n1").await;
            first_host.next_update(0).await;
            let failed_node = wait_until(&fleet, "n1", |node| node["state"] == "failed").await;
            assert_eq!(failed_node["state_reason"], "there is an error among its findings: requirement.unmet");
        } else {
            fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx"}])).await;
            assert_eq!(fleet.read("/v1/nodes/n1").await["state"], "waiting", "the node itself waits for its agent");
        }
        for (group, name) in [("c/gy", "n2"), ("c/gz", "n3")] {
            take_over_next(&mut fleet.join_group(group, name).await).await;
        }
        wait_until_blocked(&fleet, [reason, BLOCKED_BEHIND]).await;
        fleet.controller.stop().await;
    }
}

/// Task e of n3 waits for task b of n2, which waits for task a of n1. Node n1 still has the task set of version 1,
/// which lacks task a.
#[tokio::test]
async fn y06_node_is_blocked_when_held_or_paused_host_lacks_task() {
    let fleet = start_fleet(site_with_chain("1", &["x0", "y0", "z0"], &json!({}))).await;
    let mut hosts = Vec::new();
    for (group, name) in [("c/gx", "n1"), ("c/gy", "n2"), ("c/gz", "n3")] {
        let mut host = fleet.join_group(group, name).await;
        take_over_next(&mut host).await;
        report_result(&mut host, 1, &format!("{}0", &group[3..]), Outcome::Changed).await;
        hosts.push(host);
    }
    let node = |hold: Value| json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx", "hold": hold}]);
    fleet.apply(node(json!({"reason": "a disk"}))).await;
    fleet.apply(site_with_chain("2", &["a", "b", "e"], &json!({}))).await;
    for host in &mut hosts[1..] {
        take_over_next(host).await;
    }
    wait_until_blocked(&fleet, ["b waits for a on tags x: n1 (it is held, and has no task a)", BLOCKED_BEHIND]).await;
    let list = fleet.read("/v1/nodes?fields=name,state_reason&state=blocked").await;
    assert!(list.to_string().contains("n1 (it is held, and has no task a)"), "the list has the same reason as the node: {list}");
    fleet.apply(site_with_chain("2", &["a", "b", "e"], &json!({"paused": true}))).await;
    let paused = "b waits for a on tags x: n1 (its nodegroup or cluster is paused)";
    wait_until_state(&fleet, "n2", "blocked", paused).await;
    fleet.apply(site_with_chain("2", &["a", "b", "e"], &json!({"paused": false}))).await;
    fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx"}])).await;
    for name in ["n2", "n3"] {
        wait_until(&fleet, name, |node| node["state"] == "changing").await;
    }
    fleet.controller.stop().await;
}

/// A marker runs on no host. So a task that waits for the marker waits for the tasks that the marker requires.
#[tokio::test]
async fn y06_reason_names_incomplete_task_before_marker() {
    let mut site = site_with_tasks([json!({"id": "m", "type": "skipped", "tags": ["x"], "requires": ["a"]})]);
    site[0]["tasks"][1]["cross_depends"] = json!([{"name": "m", "tags": ["x"]}]);
    let (fleet, mut first_host, _second) = start_with_two_hosts(site).await;
    wait_until_shown(&fleet, "n2", "waiting", "b waits for m on tags x: n1 (a has not succeeded there)").await;
    wait_until_failure_blocks(&fleet, &mut first_host, "waiting", "m on tags x").await;
    fleet.controller.stop().await;
}

/// Task e on n3 waits for marker b on n2, which waits for task a on n1. Regression: the reason of n3 named the marker
/// as if it were a task of n1.
#[tokio::test]
async fn y06_reason_names_task_before_marker_of_other_host() {
    let site = |version: &str, first_task: &str| {
        let mut site = site_with_chain(version, &[first_task, "b", "e"], &json!({}));
        let after = json!([{"name": first_task, "tags": ["x"]}]);
        site[0]["tasks"][1] = json!({"id": "b", "type": "skipped", "tags": ["y"], "cross_depends": after});
        site
    };
    let fleet = start_fleet(site("1", "a")).await;
    let mut hosts = Vec::new();
    for (group, name) in [("c/gx", "n1"), ("c/gy", "n2"), ("c/gz", "n3")] {
        let mut host = fleet.join_group(group, name).await;
        take_over_next(&mut host).await;
        hosts.push(host);
    }
    for (result, state, cause) in [
        (None, "waiting", "a has not succeeded there"),
        (Some((1, Outcome::WouldChange)), "blocked", "a was only checked or observed there"),
        (Some((2, Outcome::Failed)), "blocked", "a failed there"),
    ] {
        if let Some((sequence, outcome)) = result {
            report_result(&mut hosts[0], sequence, "a", outcome).await;
        }
        let reason = format!("e waits for b on tags y: n1 ({cause})");
        wait_until_shown(&fleet, "n3", state, &reason).await;
    }
    fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx", "hold": {"reason": "a disk"}}])).await;
    fleet.apply(site("2", "x0")).await;
    wait_until_state(&fleet, "n3", "blocked", "e waits for b on tags y: n1 (it is held, and has no task x0)").await;
    fleet.controller.stop().await;
}

/// Task b of n2 waits for task a2 of n1, which requires task a. Regression: the reason was that a2 had failed, but it
/// had never run.
#[tokio::test]
async fn y06_reason_names_requirement_when_awaited_task_was_skipped() {
    let mut site = site_with_tasks([shell_task("a2", "x", json!({"requires": ["a"]}))]);
    site[0]["tasks"][1]["cross_depends"] = json!([{"name": "a2", "tags": ["x"]}]);
    let (fleet, mut first_host, _second) = start_with_two_hosts(site).await;
    report_result(&mut first_host, 1, "a", Outcome::Failed).await;
    let message = "Not run: a, which it requires, failed.";
    report_result_with_message(&mut first_host, 2, ("a2", Outcome::DependencyFailed), (message, "")).await;
    let reason = "b waits for a2 on tags x: n1 (a2 did not run there: a, which it requires, failed)";
    wait_until_shown(&fleet, "n2", "blocked", reason).await;
    fleet.controller.stop().await;
}

/// Task b of n2 requires marker k of the same node, which waits for task a of n1. Regression: the reason named the
/// marker, which does nothing and waits for nothing.
#[tokio::test]
async fn y06_reason_names_awaited_task_behind_own_marker() {
    let after_a = json!([{"name": "a", "tags": ["x"]}]);
    let mut site = site_with_tasks([json!({"id": "k", "type": "skipped", "tags": ["y"], "cross_depends": after_a})]);
    site[0]["tasks"][1]["cross_depends"] = json!([]);
    site[0]["tasks"][1]["requires"] = json!(["k"]);
    let (fleet, mut first_host, _second) = start_with_two_hosts(site).await;
    report_result(&mut first_host, 1, "a", Outcome::Failed).await;
    let reason = "b waits for a on tags x: n1 (a failed there)";
    wait_until_shown(&fleet, "n2", "blocked", reason).await;
    fleet.controller.stop().await;
}

/// Regression: an agent that cannot write its labels runs its tasks nevertheless. The controller assumed that it begins
/// no task, so nodes that wait for its tasks were blocked.
#[tokio::test]
async fn y06_node_is_not_blocked_when_awaited_agent_cannot_write_labels() {
    let (fleet, mut first_host, _second) = start_with_two_hosts(site("1")).await;
    let cause = "cannot replace /run/stemma/labels.json";
    let report = |runs_on: bool| {
        let stuck = ("agent.stuck".to_owned(), json!(cause).to_string());
        let runs_on = runs_on.then(|| ("agent.runs_on".to_owned(), "true".to_owned()));
        let facts = [stuck].into_iter().chain(runs_on).collect();
        Some(Report { agent_version: "1".into(), facts, findings: vec![cause.to_owned()], ..Report::default() })
    };
    for (runs_on, state, wait_reason, finding, explanation) in [
        (
            true,
            "waiting",
            "a has not succeeded there",
            "its agent cannot write all of what services and people read on its host, and its tasks run on",
            "its agent cannot write all of what services and people read on its host, and its tasks run on",
        ),
        (
            false,
            "blocked",
            "its agent is stuck",
            "its agent cannot store or apply its desired state, and begins no task",
            "its agent is stuck, and begins no task until that is corrected",
        ),
    ] {
        check_in_with(&mut first_host, |check_in| check_in.report = report(runs_on)).await;
        let has_found = |node: &Value| {
            let mut entries = node["findings"].as_array().into_iter().flatten();
            entries.any(|entry| entry["code"] == "host.stuck" && entry["message"] == format!("{finding}: {cause}"))
        };
        wait_until(&fleet, "n1", |node| node["state"] == "stuck" && has_found(node)).await;
        wait_until_state(&fleet, "n2", state, &format!("b waits for a on tags x: n1 ({wait_reason})")).await;
        assert_eq!(is_state_in_answers(&fleet, "n2", "blocked").await, [!runs_on; 5]);
        let response = fleet.read("/v1/nodes/n1/explain?task=a").await;
        assert_eq!(response["set_aside"], json!([format!("{explanation}: {cause}")]));
    }
    fleet.controller.stop().await;
}
