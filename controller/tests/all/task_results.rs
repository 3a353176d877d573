//! What became of tasks: in the reasons of the nodes, and in the list of tasks over all hosts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use hyper::Method;
use serde_json::{Value, json};
use stemma_wire::message::observed::Outcome;

use crate::fleet::{Fleet, read_until};
use crate::principals::people::{ask, principal};
use crate::states::{
    everywhere, fleet_of, result, result_saying, result_with, shell, site, site_and, take, until, until_shown,
    until_stands, with_one, with_two,
};

/// The list of tasks, when so many results are in it.
async fn until_told_of(fleet: &Fleet, count: u64) -> Value {
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    let told = |row: &Value| number(row, "nodes") - number(row, "waiting") - number(row, "blocked");
    let are_told = |list: &Value| list["tasks"].as_array().unwrap().iter().map(told).sum::<u64>() == count;
    read_until("/v1/tasks", async || fleet.read("/v1/tasks").await, are_told).await
}

/// "Results are still to come" said nothing of the task that runs.
#[tokio::test]
async fn y09_the_task_whose_result_has_not_come_is_named() {
    let after = |before: &str, id: &str| shell(id, "x", json!({"requires": [before]}));
    let (fleet, mut host) = with_one(site_and([after("a", "c"), after("c", "d")]), "n1").await;
    for (sequence, task, reason) in [
        (1, "a", "the results of task c and of 1 more have not come yet"),
        (2, "c", "the result of task d has not come yet"),
    ] {
        result(&mut host, sequence, task, Outcome::Changed).await;
        until_shown(&fleet, "n1", "changing", reason).await;
    }
    fleet.controller.stop().await;
}

/// The site of which task a is only observed, with another task.
fn observed_and(task: Value) -> Value {
    let mut site = site_and([task]);
    site[0]["tasks"][0]["mode"] = json!("observe");
    site
}

/// An agent of now tells that it was not checked, one of before that it would change something.
#[tokio::test]
async fn y06_nobody_waits_for_a_task_that_is_only_observed_but_who_waits_for_it_on_another_host() {
    let (fleet, mut first, _second) = with_two(observed_and(shell("more", "x", json!({})))).await;
    result(&mut first, 1, "more", Outcome::Changed).await;
    until(&fleet, "n1", |node| node["state"] == "converged").await;
    result(&mut first, 2, "a", Outcome::WouldChange).await;
    let reason = "b waits for a on tags x: n1 (a was only checked or observed there)";
    until_stands(&fleet, "n2", "blocked", reason).await;
    assert_eq!(everywhere(&fleet, "n1", "converged").await, [true; 5]);
    let explained = fleet.read("/v1/nodes/n1/explain?task=a").await;
    let says = json!(["the task's mode is observe: it is neither run nor checked"]);
    assert_eq!((&explained["runs"], &explained["set_aside"]), (&json!(true), &says), "{explained}");
    fleet.controller.stop().await;
}

/// It was said that it would change something, and of what requires it that a task failed, where nobody looked and none did.
#[tokio::test]
async fn y06_a_task_that_is_only_observed_is_said_so_and_what_requires_it_names_it() {
    let dep = shell("dep", "x", json!({"requires": ["a"]}));
    let (fleet, mut host) = with_one(observed_and(dep), "n1").await;
    let observed = "its mode is observe: it is neither run nor checked";
    result_saying(&mut host, 1, ("a", Outcome::WouldChange), (observed, "")).await;
    let why = "Not run: a, which it requires, is neither run nor checked, since its mode is observe.";
    result_saying(&mut host, 2, ("dep", Outcome::DependencyFailed), (why, "")).await;
    let reason = "task dep did not run: a, which it requires, is neither run nor checked, since its mode is observe";
    until_shown(&fleet, "n1", "failed", reason).await;
    let list = until_told_of(&fleet, 2).await;
    let row = list["tasks"].as_array().unwrap().iter().find(|row| row["task"] == "a").unwrap();
    let counts = ["nodes", "observed", "would_change", "different_changes"].map(|field| row[field].as_u64().unwrap());
    assert_eq!(counts, [1, 1, 0, 0], "{row}");
    assert_eq!(fleet.read("/v1/tasks/a").await["releases"][0]["differences"], json!([]));
    let report = fleet.read("/v1/nodes/n1/report").await;
    let results: Vec<_> =
        report["results"].as_array().unwrap().iter().map(|one| (&one["task"], &one["is_observed"])).collect();
    assert_eq!(results, [(&json!("a"), &json!(true)), (&json!("dep"), &json!(false))]);
    assert_eq!(fleet.read("/v1/nodes/n1/explain?task=a").await["last"]["is_observed"], true);
    // An agent of before this version looks, as in mode `noop`, and what it found is shown.
    result_with(&mut host, 3, ("a", Outcome::WouldChange), "-a\n+b\n").await;
    let is_found = |task: &Value| task["releases"][0]["would_change"] == 1;
    let task = read_until("/v1/tasks/a", async || fleet.read("/v1/tasks/a").await, is_found).await;
    assert_eq!(
        (&task["releases"][0]["observed"], &task["releases"][0]["differences"][0]["diff"]),
        (&json!(0), &json!("-a\n+b\n"))
    );
    fleet.controller.stop().await;
}

/// A task in mode `noop` comes after one that is only observed, of which nobody knows whether it would change something.
#[tokio::test]
async fn y06_the_reason_of_a_node_in_noop_names_no_task_that_is_only_observed() {
    let in_noop = shell("z", "x", json!({"mode": "noop"}));
    let (fleet, mut host) = with_one(observed_and(in_noop), "n1").await;
    result(&mut host, 1, "a", Outcome::WouldChange).await;
    result(&mut host, 2, "z", Outcome::WouldChange).await;
    let reason = "task z was checked and would change something";
    until_stands(&fleet, "n1", "noop", reason).await;
    fleet.controller.stop().await;
}

/// What did not run since another task failed is no failure of its own: who looks for what to mend is led to the one that failed.
#[tokio::test]
async fn y09_a_task_that_did_not_run_is_not_counted_as_failed() {
    let after_a = shell("c", "x", json!({"requires": ["a"]}));
    let (fleet, mut host) = with_one(site_and([after_a]), "n1").await;
    result(&mut host, 1, "a", Outcome::Failed).await;
    result(&mut host, 2, "c", Outcome::DependencyFailed).await;
    let list = until_told_of(&fleet, 2).await;
    let rows = list["tasks"].as_array().unwrap();
    let of = |row: &Value| (row["id"].clone(), row["failed"].clone(), row["not_run"].clone(), row["failed_on"].clone());
    assert_eq!(of(&rows[0]), (json!("site@1/a"), json!(1), json!(0), json!(["n1"])));
    assert_eq!(of(&rows[1]), (json!("site@1/c"), json!(0), json!(1), json!([])));
    let task = fleet.read("/v1/tasks/c").await["releases"][0].clone();
    assert_eq!((&task["failures"], &task["not_run_because"][0]["nodes"]), (&json!([]), &json!(["n1"])));
    until_stands(&fleet, "n1", "failed", "task a failed").await;
    fleet.controller.stop().await;
}

/// A failed node's reason named its task, and that of a drifted node and of one in noop did not.
#[tokio::test]
async fn y06_the_reason_of_a_state_that_a_task_makes_names_the_task() {
    let fleet = fleet_of(site("1")).await;
    for (name, outcome, state, reason) in [
        ("n1", Outcome::Failed, "failed", "task a failed"),
        ("n2", Outcome::Drifted, "drifted", "task a is not as it should be and is left so"),
        ("n3", Outcome::WouldChange, "noop", "task a was checked and would change something"),
    ] {
        let mut host = fleet.join_group("c/gx", name).await;
        take(&mut host).await;
        result(&mut host, 1, "a", outcome).await;
        until_stands(&fleet, name, state, reason).await;
        let list = fleet.read(&format!("/v1/nodes?fields=name,state_reason&state={state}")).await;
        assert_eq!(list["nodes"][0]["state_reason"], reason, "the list says what the node says");
    }
    fleet.controller.stop().await;
}

/// The beginnings of two long differences may be the same where their ends are not, and of sensitive tasks nothing is known.
#[tokio::test]
async fn y09_hosts_whose_differences_are_cut_or_not_sent_are_not_compared() {
    let fleet = fleet_of(site("1")).await;
    let (cut, mut hosts) = ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n… 900 more lines\n", Vec::new());
    for (name, diff) in [("n1", cut), ("n2", cut), ("n3", ""), ("n4", "-a\n+b\n")] {
        let mut host = fleet.join_group("c/gx", name).await;
        take(&mut host).await;
        result_with(&mut host, 1, ("a", Outcome::WouldChange), diff).await;
        hosts.push(host);
    }
    let list = until_told_of(&fleet, 4).await;
    assert_eq!((&list["tasks"][0]["would_change"], &list["tasks"][0]["different_changes"]), (&json!(4), &json!(1)));
    let task = fleet.read("/v1/tasks/a").await;
    for group in task["releases"][0]["differences"].as_array().unwrap() {
        let is_comparable = group["nodes"] == json!(["n4"]);
        assert_eq!(
            (&group["comparable"], group["digest"].is_null()),
            (&json!(is_comparable), !is_comparable),
            "{group}"
        );
    }
    fleet.controller.stop().await;
}

/// What `noop` would change was to be read host by host.
#[tokio::test]
async fn y09_tasks_are_seen_over_hosts_with_what_they_would_change_on_which() {
    let fleet = fleet_of(site("1")).await;
    fleet.apply(json!([{"kind": "Cluster", "name": "d"}])).await;
    let (same, mut hosts) = ("-a\n+b\n", Vec::new());
    for (name, outcome, diff) in [
        ("n1", Outcome::WouldChange, same),
        ("n2", Outcome::WouldChange, same),
        ("n3", Outcome::WouldChange, "-a\n+c\n"),
        ("n4", Outcome::Failed, ""),
        ("n5", Outcome::Changed, ""),
        ("n6", Outcome::Unchanged, ""),
    ] {
        let mut host = fleet.join_group("c/gx", name).await;
        take(&mut host).await;
        result_with(&mut host, 1, ("a", outcome), diff).await;
        hosts.push(host);
    }
    let mut last = fleet.join_group("c/gy", "n7").await;
    take(&mut last).await;
    until(&fleet, "n4", |node| node["state"] == "failed").await;
    let list = until_told_of(&fleet, 6).await;
    let counts = |row: &Value| {
        let fields = ["nodes", "converged", "changed", "would_change", "drifted", "failed", "different_changes"];
        fields.map(|field| row[field].as_u64().unwrap())
    };
    let rows = list["tasks"].as_array().unwrap();
    let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["site@1/a", "site@1/b"]);
    assert_eq!((counts(&rows[0]), &rows[0]["failed_on"]), ([6, 2, 1, 3, 0, 1, 2], &json!(["n4"])));
    assert_eq!(counts(&rows[1]), [1, 0, 0, 0, 0, 0, 0]);
    let unended = |row: &Value| row["waiting"].as_u64().unwrap() + row["blocked"].as_u64().unwrap();
    assert_eq!((unended(&rows[0]), unended(&rows[1])), (0, 1));

    let task = fleet.read("/v1/tasks/a").await;
    let of = |group: &Value| (group["count"].clone(), group["nodes"].clone(), group["diff"].clone());
    let differences: Vec<_> = task["releases"][0]["differences"].as_array().unwrap().iter().map(of).collect();
    let expected = [(json!(2), json!(["n1", "n2"]), json!(same)), (json!(1), json!(["n3"]), json!("-a\n+c\n"))];
    assert_eq!(differences, expected);
    // The SHA-256 of the difference, as sha256sum gives it.
    assert_eq!(task["releases"][0]["differences"][0]["digest"], "be5a392951db");
    assert_eq!(task["releases"][0]["failures"][0]["nodes"], json!(["n4"]));
    assert_eq!(fleet.read("/v1/tasks/b").await["releases"][0]["unended_on"], json!(["n7"]));

    let some = fleet.read("/v1/tasks/a?state=failed").await;
    assert_eq!(some["releases"][0]["nodes"], 1);
    let page = fleet.read("/v1/tasks?limit=1").await;
    assert!(
        page["tasks"].as_array().unwrap().len() == 1 && page["next"].as_str().unwrap().contains("marker="),
        "{page}"
    );
    for (path, says) in [
        ("/v1/tasks/x", "Task 'x' runs on no node."),
        ("/v1/tasks/b?nodegroup=c/gx", "Task 'b' runs on none of the nodes that are asked for."),
        ("/v1/tasks?cluster=nowhere", "nowhere"),
    ] {
        let (status, body) = fleet.ask(Method::GET, path, &Value::Null).await;
        assert!(status == 404 && body["error"]["message"].as_str().unwrap().contains(says), "{path}: {body}");
    }
    let mut vera = principal(&fleet, "vera", "viewer", Some("d")).await;
    assert_eq!(ask(&mut vera, "GET", "/v1/tasks", &[], "").await.body["tasks"], json!([]));
    let refused = ask(&mut vera, "GET", "/v1/tasks/a", &[], "").await;
    assert_eq!((refused.status, &refused.body["error"]["message"]), (404, &json!("Task 'a' runs on no node.")));
    fleet.controller.stop().await;
}
