//! Who waits for which task of which other host, and who waits in vain, as every answer says it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use serde_json::{Value, json};
use stemma_wire::message::observed::{Outcome, Report};

use crate::fleet::{Fleet, Host};
use crate::states::{
    everywhere, fleet_of, result, result_saying, say, shell, site, site_and, take, until, until_shown, until_stands,
    with_two,
};

/// n2 waits in this state until a is done on n1, and is blocked once a fails there.
async fn until_a_failure_blocks(fleet: &Fleet, first: &mut Host, state: &str, awaited: &str) {
    until_stands(fleet, "n2", state, &format!("b waits for {awaited}: n1 (a has not succeeded there)")).await;
    result(first, 1, "a", Outcome::Failed).await;
    until_stands(fleet, "n2", "blocked", &format!("b waits for {awaited}: n1 (a failed there)")).await;
}

#[tokio::test]
async fn y06_who_waits_for_a_host_that_will_not_do_it_is_blocked_in_every_answer() {
    let (fleet, mut first, _second) = with_two(site("1")).await;
    until(&fleet, "n2", |node| node["state"] == "waiting").await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    let reason = "b waits for a on tags x: n1 (a failed there)";
    until_stands(&fleet, "n2", "blocked", reason).await;
    assert_eq!(everywhere(&fleet, "n2", "blocked").await, [true; 5]);
    let list = fleet.read("/v1/nodes?fields=name,state_reason&state=blocked").await;
    assert_eq!(list["nodes"][0]["state_reason"], reason, "the list says what the node says");
    let failed = fleet.read("/v1/nodes?fields=name,state_reason&state=failed").await;
    assert_eq!(failed["nodes"][0]["state_reason"], "task a failed");
    // It is mended, and nobody keeps n2 any more.
    result(&mut first, 2, "a", Outcome::Changed).await;
    until(&fleet, "n2", |node| node["state"] == "waiting").await;
    assert_eq!(everywhere(&fleet, "n2", "blocked").await, [false; 5]);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y09_the_task_that_waits_for_another_host_is_named() {
    let mut site = site_and([shell("c", "y", json!({}))]);
    site[0]["tasks"][1]["requires"] = json!(["c"]);
    let (fleet, mut first, mut second) = with_two(site).await;
    result(&mut second, 1, "c", Outcome::Changed).await;
    until_a_failure_blocks(&fleet, &mut first, "changing", "a on tags x").await;
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_a_task_that_drifted_hides_neither_whom_its_host_waits_for_nor_what_runs() {
    let (fleet, mut first, mut second) = with_two(site_and([shell("c", "y", json!({}))])).await;
    result(&mut second, 1, "c", Outcome::Drifted).await;
    until_a_failure_blocks(&fleet, &mut first, "changing", "a on tags x").await;
    assert_eq!(everywhere(&fleet, "n2", "blocked").await, [true; 5]);
    result(&mut first, 2, "a", Outcome::Changed).await;
    result(&mut second, 2, "b", Outcome::Changed).await;
    until(&fleet, "n2", |node| node["state"] == "drifted").await;
    assert_eq!(everywhere(&fleet, "n2", "drifted").await, [true; 5]);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_who_waits_for_a_host_that_is_paused_is_blocked_until_it_goes_on() {
    let (fleet, mut first, _second) = with_two(site("1")).await;
    first.local.paused = true;
    say(&mut first, |_| {}).await;
    let reason = "b waits for a on tags x: n1 (it was paused on its host)";
    until_stands(&fleet, "n2", "blocked", reason).await;
    first.local.paused = false;
    say(&mut first, |_| {}).await;
    until(&fleet, "n2", |node| node["state"] == "waiting").await;
    fleet.controller.stop().await;
}

/// Task a of tag x, b of tag y behind it, and e of tag z behind b; the group of x with more.
fn long_site(version: &str, tasks: &[&str], of_x: &Value) -> Value {
    let task = |id: &str| {
        let (tag, after) = match id {
            "b" => ("y", json!([{"name": "a", "tags": ["x"]}])),
            "e" => ("z", json!([{"name": "b", "tags": ["y"]}])),
            "x0" | "a" => ("x", json!([])),
            other => (&other[..1], json!([])),
        };
        json!({"id": id, "type": "shell", "tags": [tag], "cross_depends": after, "parameters": {"script": format!("echo {version}")}})
    };
    let tasks: Vec<Value> = tasks.iter().map(|id| task(id)).collect();
    let group = |tag: &str| json!({"kind": "NodeGroup", "cluster": "c", "name": format!("g{tag}"), "roles": [format!("r{tag}")]});
    let mut first = group("x");
    first.as_object_mut().unwrap().extend(of_x.as_object().unwrap().clone());
    json!([
        {"kind": "Release", "name": "site", "version": version, "tags": {"x": {}, "y": {}, "z": {}}, "tasks": tasks,
         "roles": {"rx": {"tags": ["x"]}, "ry": {"tags": ["y"]}, "rz": {"tags": ["z"]}}},
        {"kind": "Cluster", "name": "c", "release": format!("site@{version}")}, first, group("y"), group("z"),
    ])
}

/// The states of n2 and n3 with their reasons, once they are blocked.
async fn until_blocked(fleet: &Fleet, reasons: [&str; 2]) {
    for (name, reason) in ["n2", "n3"].into_iter().zip(reasons) {
        until_stands(fleet, name, "blocked", reason).await;
        assert_eq!(everywhere(fleet, name, "blocked").await, [true; 5]);
    }
}

const BEHIND: &str = "e waits for b on tags y: n2 (it is blocked itself)";

#[tokio::test]
async fn y06_a_chain_of_hosts_behind_one_that_failed_is_blocked_to_its_end() {
    let fleet = fleet_of(long_site("1", &["a", "b", "e"], &json!({}))).await;
    let mut first = fleet.join_group("c/gx", "n1").await;
    let mut others = [fleet.join_group("c/gy", "n2").await, fleet.join_group("c/gz", "n3").await];
    take(&mut first).await;
    for host in &mut others {
        take(host).await;
    }
    until(&fleet, "n3", |node| node["state"] == "waiting").await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    until_blocked(&fleet, ["b waits for a on tags x: n1 (a failed there)", BEHIND]).await;
    result(&mut first, 2, "a", Outcome::Changed).await;
    for name in ["n2", "n3"] {
        until(&fleet, name, |node| node["state"] == "waiting").await;
        assert_eq!(everywhere(&fleet, name, "blocked").await, [false; 5]);
    }
    fleet.controller.stop().await;
}

/// The stage was named, or that the host is blocked: which task keeps the others had to be looked for.
#[tokio::test]
async fn y06_who_waits_at_a_stage_is_told_the_task_before_it_that_failed_or_is_not_done() {
    let mut site = site("1");
    let stage = |id: &str, requires: &str| json!({"id": id, "type": "stage", "requires": [requires]});
    let b = shell("b", "y", json!({"requires": ["st2"]}));
    site[0]["tasks"] = json!([shell("a", "x", json!({})), stage("st", "a"), stage("st2", "st"), b]);
    let (fleet, mut first, _second) = with_two(site).await;
    until_a_failure_blocks(&fleet, &mut first, "waiting", "stage st2").await;
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_who_waits_for_a_host_that_never_joined_or_meets_no_requirement_is_blocked() {
    for (of_x, joins, reason) in [
        (json!({}), false, "b waits for a on tags x: n1 (its agent has not joined)"),
        (
            json!({"requirements": {"trait:CUSTOM_NOPE": "required"}}),
            true,
            "b waits for a on tags x: n1 (it does not meet what its next task set requires, and has no task a)",
        ),
    ] {
        let fleet = fleet_of(long_site("1", &["a", "b", "e"], &of_x)).await;
        if joins {
            let mut first = fleet.join_group("c/gx", "n1").await;
            first.news(0).await;
            let failed = until(&fleet, "n1", |node| node["state"] == "failed").await;
            assert_eq!(failed["state_reason"], "there is an error among its findings: requirement.unmet");
        } else {
            fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx"}])).await;
            assert_eq!(fleet.read("/v1/nodes/n1").await["state"], "waiting", "of itself it waits");
        }
        for (group, name) in [("c/gy", "n2"), ("c/gz", "n3")] {
            take(&mut fleet.join_group(group, name).await).await;
        }
        until_blocked(&fleet, [reason, BEHIND]).await;
        fleet.controller.stop().await;
    }
}

#[tokio::test]
async fn y06_who_waits_for_a_task_that_a_held_or_paused_host_lacks_is_blocked() {
    let fleet = fleet_of(long_site("1", &["x0", "y0", "z0"], &json!({}))).await;
    let mut hosts = Vec::new();
    for (group, name) in [("c/gx", "n1"), ("c/gy", "n2"), ("c/gz", "n3")] {
        let mut host = fleet.join_group(group, name).await;
        take(&mut host).await;
        result(&mut host, 1, &format!("{}0", &group[3..]), Outcome::Changed).await;
        hosts.push(host);
    }
    let node = |hold: Value| json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx", "hold": hold}]);
    fleet.apply(node(json!({"reason": "a disk"}))).await;
    fleet.apply(long_site("2", &["a", "b", "e"], &json!({}))).await;
    for host in &mut hosts[1..] {
        take(host).await;
    }
    until_blocked(&fleet, ["b waits for a on tags x: n1 (it is held, and has no task a)", BEHIND]).await;
    let list = fleet.read("/v1/nodes?fields=name,state_reason&state=blocked").await;
    assert!(
        list.to_string().contains("n1 (it is held, and has no task a)"),
        "the list says what the node says: {list}"
    );
    fleet.apply(long_site("2", &["a", "b", "e"], &json!({"paused": true}))).await;
    let paused = "b waits for a on tags x: n1 (its nodegroup or cluster is paused)";
    until_stands(&fleet, "n2", "blocked", paused).await;
    fleet.apply(long_site("2", &["a", "b", "e"], &json!({"paused": false}))).await;
    fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx"}])).await;
    for name in ["n2", "n3"] {
        until(&fleet, name, |node| node["state"] == "changing").await;
    }
    fleet.controller.stop().await;
}

/// A marker runs nowhere: who waits for it waits for what is before it.
#[tokio::test]
async fn y06_who_waits_behind_a_marker_reads_which_task_is_not_done() {
    let mut site = site_and([json!({"id": "m", "type": "skipped", "tags": ["x"], "requires": ["a"]})]);
    site[0]["tasks"][1]["cross_depends"] = json!([{"name": "m", "tags": ["x"]}]);
    let (fleet, mut first, _second) = with_two(site).await;
    until_shown(&fleet, "n2", "waiting", "b waits for m on tags x: n1 (a has not succeeded there)").await;
    until_a_failure_blocks(&fleet, &mut first, "waiting", "m on tags x").await;
    fleet.controller.stop().await;
}

/// The marker stands on a host between the two. The reason named the marker, as a task of the host that is waited for.
#[tokio::test]
async fn y06_who_waits_for_a_marker_of_another_host_reads_the_task_before_it() {
    let site = |version: &str, first: &str| {
        let mut site = long_site(version, &[first, "b", "e"], &json!({}));
        let after = json!([{"name": first, "tags": ["x"]}]);
        site[0]["tasks"][1] = json!({"id": "b", "type": "skipped", "tags": ["y"], "cross_depends": after});
        site
    };
    let fleet = fleet_of(site("1", "a")).await;
    let mut hosts = Vec::new();
    for (group, name) in [("c/gx", "n1"), ("c/gy", "n2"), ("c/gz", "n3")] {
        let mut host = fleet.join_group(group, name).await;
        take(&mut host).await;
        hosts.push(host);
    }
    for (said, state, why) in [
        (None, "waiting", "a has not succeeded there"),
        (Some((1, Outcome::WouldChange)), "blocked", "a was only checked or observed there"),
        (Some((2, Outcome::Failed)), "blocked", "a failed there"),
    ] {
        if let Some((sequence, outcome)) = said {
            result(&mut hosts[0], sequence, "a", outcome).await;
        }
        let reason = format!("e waits for b on tags y: n1 ({why})");
        until_shown(&fleet, "n3", state, &reason).await;
    }
    fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx", "hold": {"reason": "a disk"}}])).await;
    fleet.apply(site("2", "x0")).await;
    until_stands(&fleet, "n3", "blocked", "e waits for b on tags y: n1 (it is held, and has no task x0)").await;
    fleet.controller.stop().await;
}

/// It was said to have failed, and nobody ran it.
#[tokio::test]
async fn y06_who_waits_for_a_task_that_did_not_run_reads_what_that_one_requires() {
    let mut site = site_and([shell("a2", "x", json!({"requires": ["a"]}))]);
    site[0]["tasks"][1]["cross_depends"] = json!([{"name": "a2", "tags": ["x"]}]);
    let (fleet, mut first, _second) = with_two(site).await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    let why = "Not run: a, which it requires, failed.";
    result_saying(&mut first, 2, ("a2", Outcome::DependencyFailed), (why, "")).await;
    let reason = "b waits for a2 on tags x: n1 (a2 did not run there: a, which it requires, failed)";
    until_shown(&fleet, "n2", "blocked", reason).await;
    fleet.controller.stop().await;
}

/// The marker of its own host was named, which does nothing and waits for nobody.
#[tokio::test]
async fn y06_who_waits_behind_a_marker_of_its_own_host_is_named_and_not_the_marker() {
    let after_a = json!([{"name": "a", "tags": ["x"]}]);
    let mut site = site_and([json!({"id": "k", "type": "skipped", "tags": ["y"], "cross_depends": after_a})]);
    site[0]["tasks"][1]["cross_depends"] = json!([]);
    site[0]["tasks"][1]["requires"] = json!(["k"]);
    let (fleet, mut first, _second) = with_two(site).await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    let reason = "b waits for a on tags x: n1 (a failed there)";
    until_shown(&fleet, "n2", "blocked", reason).await;
    fleet.controller.stop().await;
}

/// It was said to begin nothing, and those that wait for it were blocked, while it ran its tasks.
#[tokio::test]
async fn y06_who_waits_for_a_host_that_is_stuck_by_its_labels_alone_is_not_blocked() {
    let (fleet, mut first, _second) = with_two(site("1")).await;
    let why = "cannot replace /run/stemma/labels.json";
    let report = |runs_on: bool| {
        let stuck = ("agent.stuck".to_owned(), json!(why).to_string());
        let runs_on = runs_on.then(|| ("agent.runs_on".to_owned(), "true".to_owned()));
        let facts = [stuck].into_iter().chain(runs_on).collect();
        Some(Report { agent_version: "1".into(), facts, findings: vec![why.to_owned()], ..Report::default() })
    };
    for (runs_on, state, waits, finding, aside) in [
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
            "its agent cannot keep or apply what it is told, and begins nothing",
            "its agent is stuck, and begins nothing until that is mended",
        ),
    ] {
        say(&mut first, |said| said.report = report(runs_on)).await;
        let has_found = |node: &Value| {
            let mut all = node["findings"].as_array().into_iter().flatten();
            all.any(|one| one["code"] == "host.stuck" && one["message"] == format!("{finding}: {why}"))
        };
        until(&fleet, "n1", |node| node["state"] == "stuck" && has_found(node)).await;
        until_stands(&fleet, "n2", state, &format!("b waits for a on tags x: n1 ({waits})")).await;
        assert_eq!(everywhere(&fleet, "n2", "blocked").await, [!runs_on; 5]);
        let explained = fleet.read("/v1/nodes/n1/explain?task=a").await;
        assert_eq!(explained["set_aside"], json!([format!("{aside}: {why}")]));
    }
    fleet.controller.stop().await;
}
