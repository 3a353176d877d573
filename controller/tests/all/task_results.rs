//! Results of tasks: in the reasons of the nodes, and in the list of tasks over all hosts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use hyper::Method;
use serde_json::{Value, json};
use stemma_wire::message::observed::Outcome;

use crate::fleet::{Fleet, read_until};
use crate::principals::clients::{create_principal, send};
use crate::states::{
    is_state_in_answers, report_result, report_result_with_diff, report_result_with_message, shell_task, site, site_with_tasks,
    start_fleet, start_with_one_host, start_with_two_hosts, take_over_next, wait_until, wait_until_shown, wait_until_state,
};

/// Waits until the list of tasks counts this number of results, and returns the list.
async fn wait_for_results(fleet: &Fleet, count: u64) -> Value {
    let number = |entry: &Value, field: &str| entry[field].as_u64().unwrap();
    let result_count = |entry: &Value| number(entry, "nodes") - number(entry, "waiting") - number(entry, "blocked");
    let is_complete = |list: &Value| list["tasks"].as_array().unwrap().iter().map(result_count).sum::<u64>() == count;
    read_until("/v1/tasks", async || fleet.read("/v1/tasks").await, is_complete).await
}

/// Regression: the state reason of a node with missing results did not name the first task without a result.
#[tokio::test]
async fn y09_reason_names_task_with_missing_result() {
    let after = |required_task: &str, id: &str| shell_task(id, "x", json!({"requires": [required_task]}));
    let (fleet, mut host) = start_with_one_host(site_with_tasks([after("a", "c"), after("c", "d")]), "n1").await;
    for (sequence, task, reason) in [
        (1, "a", "the results of task c and of 1 more have not arrived yet"),
        (2, "c", "the result of task d has not arrived yet"),
    ] {
        report_result(&mut host, sequence, task, Outcome::Changed).await;
        wait_until_shown(&fleet, "n1", "changing", reason).await;
    }
    fleet.controller.stop().await;
}

/// Builds the site with task a in mode `observe`, and another task.
fn site_with_observed(task: Value) -> Value {
    let mut site = site_with_tasks([task]);
    site[0]["tasks"][0]["mode"] = json!("observe");
    site
}

/// A node is converged without a result of task a, whose mode is `observe`. Task b of another host waits for a, so that
/// host is blocked. The second result, of an older agent that checked a, does not change the first node.
#[tokio::test]
async fn y06_observed_task_is_awaited_only_across_hosts() {
    let (fleet, mut first_host, _second_host) =
        start_with_two_hosts(site_with_observed(shell_task("more", "x", json!({})))).await;
    report_result(&mut first_host, 1, "more", Outcome::Changed).await;
    wait_until(&fleet, "n1", |node| node["state"] == "converged").await;
    report_result(&mut first_host, 2, "a", Outcome::WouldChange).await;
    let reason = "b waits for a on tags x: n1 (a was only checked or observed there)";
    wait_until_state(&fleet, "n2", "blocked", reason).await;
    assert_eq!(is_state_in_answers(&fleet, "n1", "converged").await, [true; 5]);
    let explanation = fleet.read("/v1/nodes/n1/explain?task=a").await;
    let expected_reasons = json!(["the task's mode is observe: it is neither run nor checked"]);
    assert_eq!((&explanation["runs"], &explanation["set_aside"]), (&json!(true), &expected_reasons), "{explanation}");
    fleet.controller.stop().await;
}

/// Regression: the list showed an observed task as one that would change something, and a task that requires it as one
/// with a failed requirement. Nothing had been checked, and nothing had failed.
#[tokio::test]
async fn y06_observed_task_is_shown_and_named_by_dependents() {
    let dependent = shell_task("dep", "x", json!({"requires": ["a"]}));
    let (fleet, mut host) = start_with_one_host(site_with_observed(dependent), "n1").await;
    let observed_message = "its mode is observe: it is neither run nor checked";
    report_result_with_message(&mut host, 1, ("a", Outcome::WouldChange), (observed_message, "")).await;
    let dependent_message = "Not run: a, which it requires, is neither run nor checked, since its mode is observe.";
    report_result_with_message(&mut host, 2, ("dep", Outcome::DependencyFailed), (dependent_message, "")).await;
    let reason = "task dep did not run: a, which it requires, is neither run nor checked, since its mode is observe";
    wait_until_shown(&fleet, "n1", "failed", reason).await;
    let list = wait_for_results(&fleet, 2).await;
    let entry = list["tasks"].as_array().unwrap().iter().find(|entry| entry["task"] == "a").unwrap();
    let counts = ["nodes", "observed", "would_change", "different_changes"].map(|field| entry[field].as_u64().unwrap());
    assert_eq!(counts, [1, 1, 0, 0], "{entry}");
    assert_eq!(fleet.read("/v1/tasks/a").await["releases"][0]["differences"], json!([]));
    let report = fleet.read("/v1/nodes/n1/report").await;
    let results: Vec<_> =
        report["results"].as_array().unwrap().iter().map(|result| (&result["task"], &result["is_observed"])).collect();
    assert_eq!(results, [(&json!("a"), &json!(true)), (&json!("dep"), &json!(false))]);
    assert_eq!(fleet.read("/v1/nodes/n1/explain?task=a").await["last"]["is_observed"], true);
    // An agent of an older version checks the task as in mode `noop`, and its result is shown.
    report_result_with_diff(&mut host, 3, ("a", Outcome::WouldChange), "-a\n+b\n").await;
    let is_found = |task: &Value| task["releases"][0]["would_change"] == 1;
    let task = read_until("/v1/tasks/a", async || fleet.read("/v1/tasks/a").await, is_found).await;
    assert_eq!(
        (&task["releases"][0]["observed"], &task["releases"][0]["differences"][0]["diff"]),
        (&json!(0), &json!("-a\n+b\n"))
    );
    fleet.controller.stop().await;
}

/// In this test, both a task in mode `observe` and a task in mode `noop` report that they would change something. The
/// state reason names only the task in mode `noop`, because a task in mode `observe` is not checked.
#[tokio::test]
async fn y06_noop_reason_omits_observed_task() {
    let noop_task = shell_task("z", "x", json!({"mode": "noop"}));
    let (fleet, mut host) = start_with_one_host(site_with_observed(noop_task), "n1").await;
    report_result(&mut host, 1, "a", Outcome::WouldChange).await;
    report_result(&mut host, 2, "z", Outcome::WouldChange).await;
    let reason = "task z was checked and would change something";
    wait_until_state(&fleet, "n1", "noop", reason).await;
    fleet.controller.stop().await;
}

/// A task that did not run because of another failed task does not count as failed, so that the list points at the one
/// to repair.
#[tokio::test]
async fn y09_skipped_task_is_not_counted_as_failed() {
    let after_a = shell_task("c", "x", json!({"requires": ["a"]}));
    let (fleet, mut host) = start_with_one_host(site_with_tasks([after_a]), "n1").await;
    report_result(&mut host, 1, "a", Outcome::Failed).await;
    report_result(&mut host, 2, "c", Outcome::DependencyFailed).await;
    let list = wait_for_results(&fleet, 2).await;
    let entries = list["tasks"].as_array().unwrap();
    let fields =
        |entry: &Value| (entry["id"].clone(), entry["failed"].clone(), entry["not_run"].clone(), entry["failed_on"].clone());
    assert_eq!(fields(&entries[0]), (json!("site@1/a"), json!(1), json!(0), json!(["n1"])));
    assert_eq!(fields(&entries[1]), (json!("site@1/c"), json!(0), json!(1), json!([])));
    let task = fleet.read("/v1/tasks/c").await["releases"][0].clone();
    assert_eq!((&task["failures"], &task["not_run_because"][0]["nodes"]), (&json!([]), &json!(["n1"])));
    wait_until_state(&fleet, "n1", "failed", "task a failed").await;
    fleet.controller.stop().await;
}

/// Regression: for the state `failed`, the state reason of a node named the task that caused the state. For the states
/// `drifted` and `noop`, it named no task.
#[tokio::test]
async fn y06_state_reason_names_causing_task() {
    let fleet = start_fleet(site("1")).await;
    for (name, outcome, state, reason) in [
        ("n1", Outcome::Failed, "failed", "task a failed"),
        ("n2", Outcome::Drifted, "drifted", "task a is not in its desired state and is left so"),
        ("n3", Outcome::WouldChange, "noop", "task a was checked and would change something"),
    ] {
        let mut host = fleet.join_group("c/gx", name).await;
        take_over_next(&mut host).await;
        report_result(&mut host, 1, "a", outcome).await;
        wait_until_state(&fleet, name, state, reason).await;
        let list = fleet.read(&format!("/v1/nodes?fields=name,state_reason&state={state}")).await;
        assert_eq!(list["nodes"][0]["state_reason"], reason, "the list shows the same reason as the node");
    }
    fleet.controller.stop().await;
}

/// Two long differences may begin alike and end differently, and differences of sensitive tasks are not sent.
#[tokio::test]
async fn y09_hosts_are_not_compared_when_diff_is_truncated_or_missing() {
    let fleet = start_fleet(site("1")).await;
    let (truncated_diff, mut hosts) = ("--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n… 900 more lines\n", Vec::new());
    for (name, diff) in [("n1", truncated_diff), ("n2", truncated_diff), ("n3", ""), ("n4", "-a\n+b\n")] {
        let mut host = fleet.join_group("c/gx", name).await;
        take_over_next(&mut host).await;
        report_result_with_diff(&mut host, 1, ("a", Outcome::WouldChange), diff).await;
        hosts.push(host);
    }
    let list = wait_for_results(&fleet, 4).await;
    assert_eq!((&list["tasks"][0]["would_change"], &list["tasks"][0]["different_changes"]), (&json!(4), &json!(1)));
    let task = fleet.read("/v1/tasks/a").await;
    for group in task["releases"][0]["differences"].as_array().unwrap() {
        let is_comparable = group["nodes"] == json!(["n4"]);
        assert_eq!((&group["comparable"], group["digest"].is_null()), (&json!(is_comparable), !is_comparable), "{group}");
    }
    fleet.controller.stop().await;
}

/// Regression: what `noop` would change could only be read host by host.
#[tokio::test]
async fn y09_task_list_groups_hosts_by_diff() {
    let fleet = start_fleet(site("1")).await;
    fleet.apply(json!([{"kind": "Cluster", "name": "d"}])).await;
    let (shared_diff, mut hosts) = ("-a\n+b\n", Vec::new());
    for (name, outcome, diff) in [
        ("n1", Outcome::WouldChange, shared_diff),
        ("n2", Outcome::WouldChange, shared_diff),
        ("n3", Outcome::WouldChange, "-a\n+c\n"),
        ("n4", Outcome::Failed, ""),
        ("n5", Outcome::Changed, ""),
        ("n6", Outcome::Unchanged, ""),
    ] {
        let mut host = fleet.join_group("c/gx", name).await;
        take_over_next(&mut host).await;
        report_result_with_diff(&mut host, 1, ("a", outcome), diff).await;
        hosts.push(host);
    }
    let mut last_host = fleet.join_group("c/gy", "n7").await;
    take_over_next(&mut last_host).await;
    wait_until(&fleet, "n4", |node| node["state"] == "failed").await;
    let list = wait_for_results(&fleet, 6).await;
    let counts = |entry: &Value| {
        let fields = ["nodes", "converged", "changed", "would_change", "drifted", "failed", "different_changes"];
        fields.map(|field| entry[field].as_u64().unwrap())
    };
    let entries = list["tasks"].as_array().unwrap();
    let ids: Vec<&str> = entries.iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["site@1/a", "site@1/b"]);
    assert_eq!((counts(&entries[0]), &entries[0]["failed_on"]), ([6, 2, 1, 3, 0, 1, 2], &json!(["n4"])));
    assert_eq!(counts(&entries[1]), [1, 0, 0, 0, 0, 0, 0]);
    let unended = |entry: &Value| entry["waiting"].as_u64().unwrap() + entry["blocked"].as_u64().unwrap();
    assert_eq!((unended(&entries[0]), unended(&entries[1])), (0, 1));

    let task = fleet.read("/v1/tasks/a").await;
    let summary = |group: &Value| (group["count"].clone(), group["nodes"].clone(), group["diff"].clone());
    let differences: Vec<_> = task["releases"][0]["differences"].as_array().unwrap().iter().map(summary).collect();
    let expected = [(json!(2), json!(["n1", "n2"]), json!(shared_diff)), (json!(1), json!(["n3"]), json!("-a\n+c\n"))];
    assert_eq!(differences, expected);
    // The SHA-256 of the difference, as computed by sha256sum.
    assert_eq!(task["releases"][0]["differences"][0]["digest"], "be5a392951db");
    assert_eq!(task["releases"][0]["failures"][0]["nodes"], json!(["n4"]));
    assert_eq!(fleet.read("/v1/tasks/b").await["releases"][0]["unended_on"], json!(["n7"]));

    let failed_tasks = fleet.read("/v1/tasks/a?state=failed").await;
    assert_eq!(failed_tasks["releases"][0]["nodes"], 1);
    let page = fleet.read("/v1/tasks?limit=1").await;
    assert!(page["tasks"].as_array().unwrap().len() == 1 && page["next"].as_str().unwrap().contains("marker="), "{page}");
    for (path, expected_text) in [
        ("/v1/tasks/x", "Task 'x' runs on no node."),
        ("/v1/tasks/b?nodegroup=c/gx", "Task 'b' runs on none of the selected nodes."),
        ("/v1/tasks?cluster=nowhere", "nowhere"),
    ] {
        let (status, body) = fleet.request(Method::GET, path, &Value::Null).await;
        assert!(status == 404 && body["error"]["message"].as_str().unwrap().contains(expected_text), "{path}: {body}");
    }
    let mut vera = create_principal(&fleet, "vera", "viewer", Some("d")).await;
    assert_eq!(send(&mut vera, "GET", "/v1/tasks", &[], "").await.body["tasks"], json!([]));
    let refusal = send(&mut vera, "GET", "/v1/tasks/a", &[], "").await;
    assert_eq!((refusal.status, &refusal.body["error"]["message"]), (404, &json!("Task 'a' runs on no node.")));
    fleet.controller.stop().await;
}
