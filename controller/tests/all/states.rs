//! Where nodes stand, as every answer says it: what was written is in it at once, and each word is the same in all of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_controller::agents::store_confirmed;
use stemma_controller::run::{Options, Publishing, start};
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::observed::{Outcome, Report, TaskResult};

use crate::fleet::{Fleet, Host, call, check_in, config, read_until};
use crate::held::told;
use crate::principals::people::{ask, principal};

fn options() -> Options {
    Options { publishing: Publishing::Reconciled, ..Options::default() }
}

/// Task a of tag x, and b of tag y, which waits for a on all of x.
fn site(version: &str) -> Value {
    let task = |id: &str, tag: &str, more: Value| {
        let script = format!("echo {version}");
        let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": script}});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    json!([
        {"kind": "Release", "name": "site", "version": version, "roles": {"rx": {"tags": ["x"]}, "ry": {"tags": ["y"]}},
         "tags": {"x": {}, "y": {}},
         "tasks": [task("a", "x", json!({})), task("b", "y", json!({"cross_depends": [{"name": "a", "tags": ["x"]}]}))]},
        {"kind": "Cluster", "name": "c", "release": format!("site@{version}")},
        {"kind": "NodeGroup", "cluster": "c", "name": "gx", "roles": ["rx"]},
        {"kind": "NodeGroup", "cluster": "c", "name": "gy", "roles": ["ry"]},
    ])
}

/// Checks in once, with more than an idle host says.
async fn say(host: &mut Host, change: impl FnOnce(&mut CheckIn)) {
    let mut said = CheckIn { local: host.local.clone(), ..check_in(host.held, 0) };
    change(&mut said);
    let _taken: CheckInAnswer = call(&mut host.client, "/agent/v1/checkin", &said).await.unwrap();
}

/// Says what became of a task of what the host holds, as its result of that number.
async fn result(host: &mut Host, sequence: u64, task: &str, outcome: Outcome) {
    result_with(host, sequence, (task, outcome), "").await;
}

/// The same with what the task would change.
async fn result_with(host: &mut Host, sequence: u64, of: (&str, Outcome), diff: &str) {
    result_saying(host, sequence, of, ("", diff)).await;
}

/// The same with what the host said of it.
async fn result_saying(
    host: &mut Host,
    sequence: u64,
    (task, outcome): (&str, Outcome),
    (message, diff): (&str, &str),
) {
    let task_set = host.held.unwrap().task_set;
    let result = TaskResult {
        sequence,
        task_set,
        task: task.to_owned(),
        outcome,
        message: message.to_owned(),
        output: String::new(),
        diff: diff.to_owned(),
        duration_ms: 1,
    };
    say(host, |said| said.results = vec![result]).await;
}

/// Takes over what the host is told next, and says that it holds it.
async fn take(host: &mut Host) {
    told(host).await;
    host.news(0).await;
}

async fn metrics(fleet: &Fleet) -> String {
    let answer = fleet.answer(Method::GET, "/metrics", &Value::Null).await;
    String::from_utf8(answer.body().to_vec()).unwrap()
}

#[tokio::test]
async fn y09_metrics_come_in_the_form_that_is_accepted_and_counters_keep_their_type() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    for (accept, content_type, counter) in [
        (None, "text/plain; version=0.0.4; charset=utf-8", "# TYPE stemma_rejected_total counter\n"),
        (Some("text/plain"), "text/plain; version=0.0.4; charset=utf-8", "# TYPE stemma_rejected_total counter\n"),
        (
            Some("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2"),
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "# TYPE stemma_rejected counter\n",
        ),
    ] {
        let request = Request::get("/metrics");
        let request = accept.into_iter().fold(request, |request, accept| request.header("accept", accept));
        let answer = fleet.operator().send(request.body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["content-type"]),
            (200, &content_type.parse().unwrap())
        );
        let text = String::from_utf8(answer.body().to_vec()).unwrap();
        assert!(text.contains(counter), "{accept:?}: {text}");
        assert_eq!(text.ends_with("# EOF\n"), content_type.starts_with("application/"), "{accept:?}");
    }
    fleet.controller.stop().await;
}

/// What each answer says of a node: the state of itself, of its row in the list, of the filter, of the counts and of the metrics.
async fn everywhere(fleet: &Fleet, name: &str, state: &str) -> [bool; 5] {
    let node = fleet.read(&format!("/v1/nodes/{name}")).await;
    let list = fleet.read("/v1/nodes?fields=name,state,state_reason,notes").await;
    let row = list["nodes"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone();
    let filtered = fleet.read(&format!("/v1/nodes?state={state}")).await;
    let counts = fleet.read("/v1/clusters/c").await["node_states"].clone();
    let metrics = metrics(fleet).await;
    let sample = format!("stemma_nodes{{state=\"{state}\"}} ");
    let counted = metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok());
    [
        node["state"] == state,
        row["state"] == state,
        filtered["nodes"].as_array().unwrap().iter().any(|row| row["name"] == name),
        counts[state].as_u64().unwrap_or_default() > 0,
        counted.is_some_and(|count| count > 0),
    ]
}

/// Asks until something holds of a node.
async fn until(fleet: &Fleet, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/nodes/{name}");
    read_until(name, async || fleet.read(&path).await, holds).await
}

/// A fleet of one host that has converged.
async fn converged() -> (Fleet, Host) {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    fleet.apply(site("1")).await;
    let mut host = fleet.join_group("c/gx", "n").await;
    take(&mut host).await;
    result(&mut host, 1, "a", Outcome::Changed).await;
    until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!(everywhere(&fleet, "n", "converged").await, [true; 5]);
    (fleet, host)
}

#[tokio::test]
async fn y06_every_read_after_a_write_sees_at_least_that_write() {
    let (fleet, mut host) = converged().await;
    for round in 2..12_u64 {
        fleet.apply(site(&round.to_string())).await;
        assert_eq!(everywhere(&fleet, "n", "converged").await, [false; 5], "round {round}");
        take(&mut host).await;
        result(&mut host, round, "a", Outcome::Changed).await;
        until(&fleet, "n", |node| node["state"] == "converged").await;
    }
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_a_node_that_keeps_an_old_task_set_is_held_in_every_answer() {
    let (fleet, mut host) = converged().await;
    let node = |hold: Value| json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "hold": hold}]);
    fleet.apply(node(json!({"reason": "a disk"}))).await;
    take(&mut host).await;
    let held = until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!(held["notes"], json!(["held"]), "nothing waits yet");
    fleet.apply(site("2")).await;
    assert_eq!(everywhere(&fleet, "n", "held").await, [true; 5]);
    assert_eq!(everywhere(&fleet, "n", "converged").await, [false; 5]);
    let list = fleet.read("/v1/nodes?fields=name,state_reason,notes").await;
    let reason = "an operator holds it: it keeps its task set, and a newer one waits (it runs site@1)";
    assert_eq!((&list["nodes"][0]["state_reason"], &list["nodes"][0]["notes"][0]), (&json!(reason), &json!("held")));
    assert_eq!(fleet.read("/v1/nodes/n").await["state_reason"], reason);
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"held\"} 1\n"));
    let explained = fleet.read("/v1/nodes/n/explain?task=a").await;
    assert_eq!((&explained["released"], &explained["keeps"]), (&json!(false), &json!("site@1")), "{explained}");
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx"}])).await;
    assert_eq!(everywhere(&fleet, "n", "held").await, [false; 5]);
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"held\"} 0\n"));
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_a_host_that_has_not_confirmed_a_label_is_noted_and_has_not_converged() {
    let (fleet, mut host) = converged().await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}])).await;
    assert_eq!(everywhere(&fleet, "n", "converged").await, [false; 5], "no task reads it, and the host has not got it");
    let node = fleet.read("/v1/nodes/n").await;
    assert_eq!((&node["state"], &node["notes"]), (&json!("changing"), &json!(["untold"])));
    assert_eq!(fleet.read("/v1/nodes/n/explain?label=rack").await["confirmed"], false);
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"untold\"} 1\n"));
    take(&mut host).await;
    let node = until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!(node["notes"], json!([]));
    assert_eq!(fleet.read("/v1/nodes/n/explain?label=rack").await["confirmed"], true);
    fleet.controller.stop().await;
}

/// The host hears of the label in the answer to its check-in, and hangs before it says that it took it. The other host took it, which the orderly
/// stop keeps.
#[tokio::test]
async fn y06_a_host_that_was_told_and_never_confirmed_is_untold_after_a_restart_too() {
    let (mut fleet, mut host) = converged().await;
    let mut other = fleet.join_group("c/gx", "m").await;
    take(&mut other).await;
    result(&mut other, 1, "a", Outcome::Changed).await;
    until(&fleet, "m", |node| node["state"] == "converged").await;
    let group = json!([{"kind": "NodeGroup", "cluster": "c", "name": "gx", "roles": ["rx"], "labels": {"rack": "7"}}]);
    fleet.apply(group).await;
    told(&mut host).await;
    take(&mut other).await;
    until(&fleet, "n", |node| node["state"] == "changing" && node["notes"] == json!(["untold"])).await;
    until(&fleet, "m", |node| node["state"] == "converged").await;
    for _ in 0..2 {
        fleet.controller.stop().await;
        fleet.controller = start(config(fleet.directory.path().join("data")), options()).await.unwrap();
        for (name, state, notes) in [("n", "changing", json!(["untold"])), ("m", "converged", json!([]))] {
            let node = fleet.read(&format!("/v1/nodes/{name}")).await;
            assert_eq!((&node["state"], &node["notes"]), (&json!(state), &notes), "{node}");
        }
        until_metric(&fleet, "stemma_nodes_noted{note=\"untold\"} 1\n").await;
        assert_eq!(everywhere(&fleet, "n", "changing").await, [true; 5]);
    }
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.news(0).await;
    until(&fleet, "n", |node| node["state"] == "converged" && node["notes"] == json!([])).await;
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_a_restart_turns_nobody_untold_and_forgets_nobody_who_is() {
    let (mut fleet, mut host) = converged().await;
    let mut other = fleet.join_group("c/gx", "m").await;
    take(&mut other).await;
    result(&mut other, 1, "a", Outcome::Changed).await;
    until(&fleet, "m", |node| node["state"] == "converged").await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}])).await;
    until(&fleet, "n", |node| node["state"] == "changing" && node["notes"] == json!(["untold"])).await;
    store_confirmed(&fleet.parts().desired, &*fleet.parts().intake).await;
    let before = fleet.revision().await;
    fleet.controller.stop().await;
    fleet.controller = start(config(fleet.directory.path().join("data")), options()).await.unwrap();
    // Nobody has checked in since.
    for (name, state, notes) in [("n", "changing", json!(["untold"])), ("m", "converged", json!([]))] {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        assert_eq!(
            (&node["state"], &node["notes"]),
            (&json!(state), &notes),
            "before the first pass or after it: {node}"
        );
    }
    until_metric(&fleet, "stemma_nodes_noted{note=\"untold\"} 1\n").await;
    assert_eq!(everywhere(&fleet, "n", "changing").await, [true; 5]);
    assert_eq!(fleet.read("/v1/nodes/n/explain?label=rack").await["confirmed"], false);
    assert_eq!(fleet.revision().await, before, "a restart writes nothing");
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    take(&mut host).await;
    until(&fleet, "n", |node| node["state"] == "converged" && node["notes"] == json!([])).await;
    fleet.controller.stop().await;
}

/// Waits until the metrics have a line.
async fn until_metric(fleet: &Fleet, line: &str) {
    read_until(line, async || metrics(fleet).await, |text: &String| text.contains(line)).await;
}

#[tokio::test]
async fn y09_an_account_says_what_is_published_and_what_the_host_confirmed() {
    let (fleet, mut host) = converged().await;
    let account = async || {
        let account = fleet.read("/v1/nodes/n/explain?task=a").await;
        let revision = |field: &str| account[field].as_u64().unwrap();
        (account["confirmed"].clone(), revision("published_revision"), revision("confirmed_revision"))
    };
    let (is_confirmed, _, held) = account().await;
    assert_eq!(is_confirmed, true);
    let node = json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}]);
    fleet.apply(node).await;
    assert_eq!(everywhere(&fleet, "n", "converged").await, [false; 5]);
    let (is_confirmed, published, confirmed) = account().await;
    assert_eq!((is_confirmed, confirmed), (json!(false), held));
    assert!(published > held, "{published} {held}");
    take(&mut host).await;
    let (is_confirmed, _, confirmed) = account().await;
    assert!(is_confirmed == true && confirmed >= published, "{is_confirmed} {confirmed} {published}");
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_who_waits_for_a_host_that_will_not_do_it_is_blocked_in_every_answer() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    fleet.apply(site("1")).await;
    let (mut first, mut second) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take(&mut first).await;
    take(&mut second).await;
    until(&fleet, "n2", |node| node["state"] == "waiting").await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    let reason = "b waits for a on tags x: n1 (a failed there)";
    until(&fleet, "n2", |node| node["state"] == "blocked" && node["state_reason"] == reason).await;
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
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = site("1");
    site[0]["tasks"][1]["requires"] = json!(["c"]);
    let before_b = json!({"id": "c", "type": "shell", "tags": ["y"], "parameters": {"script": "true"}});
    site[0]["tasks"].as_array_mut().unwrap().push(before_b);
    fleet.apply(site).await;
    let (mut first, mut second) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take(&mut first).await;
    take(&mut second).await;
    result(&mut second, 1, "c", Outcome::Changed).await;
    let reason = "b waits for a on tags x: n1 (a has not succeeded there)";
    until(&fleet, "n2", |node| node["state"] == "changing" && node["state_reason"] == reason).await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    let reason = "b waits for a on tags x: n1 (a failed there)";
    until(&fleet, "n2", |node| node["state"] == "blocked" && node["state_reason"] == reason).await;
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_a_task_that_drifted_hides_neither_whom_its_host_waits_for_nor_what_runs() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = site("1");
    let beside_b = json!({"id": "c", "type": "shell", "tags": ["y"], "parameters": {"script": "true"}});
    site[0]["tasks"].as_array_mut().unwrap().push(beside_b);
    fleet.apply(site).await;
    let (mut first, mut second) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take(&mut first).await;
    take(&mut second).await;
    result(&mut second, 1, "c", Outcome::Drifted).await;
    let reason = "b waits for a on tags x: n1 (a has not succeeded there)";
    until(&fleet, "n2", |node| node["state"] == "changing" && node["state_reason"] == reason).await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    let reason = "b waits for a on tags x: n1 (a failed there)";
    until(&fleet, "n2", |node| node["state"] == "blocked" && node["state_reason"] == reason).await;
    assert_eq!(everywhere(&fleet, "n2", "blocked").await, [true; 5]);
    result(&mut first, 2, "a", Outcome::Changed).await;
    result(&mut second, 2, "b", Outcome::Changed).await;
    until(&fleet, "n2", |node| node["state"] == "drifted").await;
    assert_eq!(everywhere(&fleet, "n2", "drifted").await, [true; 5]);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_who_waits_for_a_host_that_is_paused_is_blocked_until_it_goes_on() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    fleet.apply(site("1")).await;
    let (mut first, mut second) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take(&mut first).await;
    take(&mut second).await;
    first.local.paused = true;
    say(&mut first, |_| {}).await;
    let reason = "b waits for a on tags x: n1 (it was paused on its host)";
    until(&fleet, "n2", |node| node["state"] == "blocked" && node["state_reason"] == reason).await;
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
        until(fleet, name, |node| node["state"] == "blocked" && node["state_reason"] == reason).await;
        assert_eq!(everywhere(fleet, name, "blocked").await, [true; 5]);
    }
}

const BEHIND: &str = "e waits for b on tags y: n2 (it is blocked itself)";

#[tokio::test]
async fn y06_a_chain_of_hosts_behind_one_that_failed_is_blocked_to_its_end() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    fleet.apply(long_site("1", &["a", "b", "e"], &json!({}))).await;
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
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = long_site("1", &["a", "b", "e"], &json!({}));
    let task = |id: &str, tag: &str, requires: Value| json!({"id": id, "type": "shell", "tags": [tag], "requires": requires, "parameters": {"script": "true"}});
    let stage = |id: &str, requires: &str| json!({"id": id, "type": "stage", "requires": [requires]});
    site[0]["tasks"] =
        json!([task("a", "x", json!([])), stage("st", "a"), stage("st2", "st"), task("b", "y", json!(["st2"]))]);
    fleet.apply(site).await;
    let mut first = fleet.join_group("c/gx", "n1").await;
    let mut other = fleet.join_group("c/gy", "n2").await;
    take(&mut first).await;
    take(&mut other).await;
    let open = "b waits for stage st2: n1 (a has not succeeded there)";
    until(&fleet, "n2", |node| node["state"] == "waiting" && node["state_reason"] == open).await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    let failed = "b waits for stage st2: n1 (a failed there)";
    until(&fleet, "n2", |node| node["state"] == "blocked" && node["state_reason"] == failed).await;
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
        let fleet = Fleet::start_with(|own| *own = options()).await;
        fleet.apply(long_site("1", &["a", "b", "e"], &of_x)).await;
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
    let fleet = Fleet::start_with(|own| *own = options()).await;
    fleet.apply(long_site("1", &["x0", "y0", "z0"], &json!({}))).await;
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
    until(&fleet, "n2", |node| node["state"] == "blocked" && node["state_reason"] == paused).await;
    fleet.apply(long_site("2", &["a", "b", "e"], &json!({"paused": false}))).await;
    fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx"}])).await;
    for name in ["n2", "n3"] {
        until(&fleet, name, |node| node["state"] == "changing").await;
    }
    fleet.controller.stop().await;
}

/// Reads the list until a row of it has this reason, as the node says it.
async fn until_listed(fleet: &Fleet, name: &str, reason: &str) {
    let is_listed = |list: &Value| {
        let mut rows = list["nodes"].as_array().unwrap().iter();
        rows.any(|row| row["name"] == name && row["state_reason"] == reason)
    };
    read_until(name, async || fleet.read("/v1/nodes?fields=name,state_reason").await, is_listed).await;
}

/// A marker runs nowhere: who waits for it waits for what is before it.
#[tokio::test]
async fn y06_who_waits_behind_a_marker_reads_which_task_is_not_done() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = site("1");
    let marker = json!({"id": "m", "type": "skipped", "tags": ["x"], "requires": ["a"]});
    site[0]["tasks"].as_array_mut().unwrap().push(marker);
    site[0]["tasks"][1]["cross_depends"] = json!([{"name": "m", "tags": ["x"]}]);
    fleet.apply(site).await;
    let (mut first, mut second) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take(&mut first).await;
    take(&mut second).await;
    let reason = "b waits for m on tags x: n1 (a has not succeeded there)";
    until(&fleet, "n2", |node| node["state"] == "waiting" && node["state_reason"] == reason).await;
    until_listed(&fleet, "n2", reason).await;
    result(&mut first, 1, "a", Outcome::Failed).await;
    let reason = "b waits for m on tags x: n1 (a failed there)";
    until(&fleet, "n2", |node| node["state"] == "blocked" && node["state_reason"] == reason).await;
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_what_an_agent_reports_of_itself_is_in_every_answer_until_it_is_over() {
    let (fleet, mut host) = converged().await;
    let report = |facts: Value| {
        let facts = facts.as_object().unwrap().iter().map(|(path, fact)| (path.clone(), fact.to_string())).collect();
        Report { agent_version: "1".into(), facts, ..Report::default() }
    };
    let path = "/root/.ssh/authorized_keys";
    let full = "cannot write /var/lib/stemma-agent (No space left on device)";
    let facts = report(json!({"agent.stuck": full, "agent.orphans": [{"task": "key", "path": path}, {"more": 3}]}));
    let both = Report { findings: vec![full.into(), "cannot read hooks.d".into()], ..facts };
    say(&mut host, |said| said.report = Some(both)).await;
    let stuck = until(&fleet, "n", |node| node["state"] == "stuck").await;
    assert_eq!(everywhere(&fleet, "n", "stuck").await, [true; 5]);
    let aside = fleet.read("/v1/nodes/n/explain?task=a").await["set_aside"].to_string();
    assert!(aside.contains("its agent is stuck") && aside.contains("No space left on device"), "{aside}");
    assert_eq!(stuck["notes"], json!(["orphaned"]));
    let found = |code: &str| {
        let all = stuck["findings"].as_array().unwrap().iter().filter(|one| one["code"] == code);
        all.map(|one| one["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(found("host.stuck")[0].ends_with("(No space left on device)"), "{stuck}");
    assert!(found("report.findings")[0].contains("findings of its own: 1; the first: cannot read hooks.d;"), "{stuck}");
    let orphaned = found("task.orphaned");
    assert!(orphaned.len() == 2 && orphaned[0].contains(path) && orphaned[1].starts_with("3 more"), "{stuck}");
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"orphaned\"} 1\n"));
    assert!(metrics(&fleet).await.contains("stemma_nodes_report_findings 1\n"));
    let alone = report(json!({"agent.stuck": full}));
    say(&mut host, |said| said.report = Some(Report { findings: vec![full.into()], ..alone })).await;
    let stuck = until(&fleet, "n", |node| node["notes"] == json!([])).await;
    assert_eq!((&stuck["state"], stuck["findings"].to_string().contains("report.findings")), (&json!("stuck"), false));
    assert!(metrics(&fleet).await.contains("stemma_nodes_report_findings 0\n"));
    say(&mut host, |said| said.report = Some(report(json!({})))).await;
    let over = until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!((&over["notes"], over["findings"].to_string().contains("host.stuck")), (&json!([]), false));
    fleet.controller.stop().await;
}

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
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = site("1");
    let after = |before: &str, id: &str| json!({"id": id, "type": "shell", "tags": ["x"], "requires": [before], "parameters": {"script": "true"}});
    site[0]["tasks"].as_array_mut().unwrap().extend([after("a", "c"), after("c", "d")]);
    fleet.apply(site).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    take(&mut host).await;
    for (sequence, task, reason) in [
        (1, "a", "the results of task c and of 1 more have not come yet"),
        (2, "c", "the result of task d has not come yet"),
    ] {
        result(&mut host, sequence, task, Outcome::Changed).await;
        until(&fleet, "n1", |node| node["state"] == "changing" && node["state_reason"] == reason).await;
        until_listed(&fleet, "n1", reason).await;
    }
    fleet.controller.stop().await;
}

/// An agent of now tells that it was not checked, one of before that it would change something.
#[tokio::test]
async fn y06_nobody_waits_for_a_task_that_is_only_observed_but_who_waits_for_it_on_another_host() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = site("1");
    let more = json!({"id": "more", "type": "shell", "tags": ["x"], "parameters": {"script": "true"}});
    let tasks = site[0]["tasks"].as_array_mut().unwrap();
    tasks[0]["mode"] = json!("observe");
    tasks.push(more);
    fleet.apply(site).await;
    let (mut first, mut second) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take(&mut first).await;
    take(&mut second).await;
    result(&mut first, 1, "more", Outcome::Changed).await;
    until(&fleet, "n1", |node| node["state"] == "converged").await;
    result(&mut first, 2, "a", Outcome::WouldChange).await;
    let reason = "b waits for a on tags x: n1 (a was only checked or observed there)";
    until(&fleet, "n2", |node| node["state"] == "blocked" && node["state_reason"] == reason).await;
    assert_eq!(everywhere(&fleet, "n1", "converged").await, [true; 5]);
    let explained = fleet.read("/v1/nodes/n1/explain?task=a").await;
    let says = json!(["the task's mode is observe: it is neither run nor checked"]);
    assert_eq!((&explained["runs"], &explained["set_aside"]), (&json!(true), &says), "{explained}");
    fleet.controller.stop().await;
}

/// It was said that it would change something, and of what requires it that a task failed, where nobody looked and none did.
#[tokio::test]
async fn y06_a_task_that_is_only_observed_is_said_so_and_what_requires_it_names_it() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = site("1");
    let tasks = site[0]["tasks"].as_array_mut().unwrap();
    tasks[0]["mode"] = json!("observe");
    tasks.push(
        json!({"id": "dep", "type": "shell", "tags": ["x"], "requires": ["a"], "parameters": {"script": "true"}}),
    );
    fleet.apply(site).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    take(&mut host).await;
    let observed = "its mode is observe: it is neither run nor checked";
    result_saying(&mut host, 1, ("a", Outcome::WouldChange), (observed, "")).await;
    let why = "Not run: a, which it requires, is neither run nor checked, since its mode is observe.";
    result_saying(&mut host, 2, ("dep", Outcome::DependencyFailed), (why, "")).await;
    let reason = "task dep did not run: a, which it requires, is neither run nor checked, since its mode is observe";
    until(&fleet, "n1", |node| node["state"] == "failed" && node["state_reason"] == reason).await;
    until_listed(&fleet, "n1", reason).await;
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
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = site("1");
    let tasks = site[0]["tasks"].as_array_mut().unwrap();
    tasks[0]["mode"] = json!("observe");
    tasks.push(json!({"id": "z", "type": "shell", "tags": ["x"], "mode": "noop", "parameters": {"script": "true"}}));
    fleet.apply(site).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    take(&mut host).await;
    result(&mut host, 1, "a", Outcome::WouldChange).await;
    result(&mut host, 2, "z", Outcome::WouldChange).await;
    let reason = "task z was checked and would change something";
    until(&fleet, "n1", |node| node["state"] == "noop" && node["state_reason"] == reason).await;
    fleet.controller.stop().await;
}

/// What did not run since another task failed is no failure of its own: who looks for what to mend is led to the one that failed.
#[tokio::test]
async fn y09_a_task_that_did_not_run_is_not_counted_as_failed() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    let mut site = site("1");
    let after_a =
        json!({"id": "c", "type": "shell", "tags": ["x"], "requires": ["a"], "parameters": {"script": "true"}});
    site[0]["tasks"].as_array_mut().unwrap().push(after_a);
    fleet.apply(site).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    take(&mut host).await;
    result(&mut host, 1, "a", Outcome::Failed).await;
    result(&mut host, 2, "c", Outcome::DependencyFailed).await;
    let list = until_told_of(&fleet, 2).await;
    let rows = list["tasks"].as_array().unwrap();
    let of = |row: &Value| (row["id"].clone(), row["failed"].clone(), row["not_run"].clone(), row["failed_on"].clone());
    assert_eq!(of(&rows[0]), (json!("site@1/a"), json!(1), json!(0), json!(["n1"])));
    assert_eq!(of(&rows[1]), (json!("site@1/c"), json!(0), json!(1), json!([])));
    let task = fleet.read("/v1/tasks/c").await["releases"][0].clone();
    assert_eq!((&task["failures"], &task["not_run_because"][0]["nodes"]), (&json!([]), &json!(["n1"])));
    until(&fleet, "n1", |node| node["state"] == "failed" && node["state_reason"] == "task a failed").await;
    fleet.controller.stop().await;
}

/// A failed node's reason named its task, and that of a drifted node and of one in noop did not.
#[tokio::test]
async fn y06_the_reason_of_a_state_that_a_task_makes_names_the_task() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    fleet.apply(site("1")).await;
    for (name, outcome, state, reason) in [
        ("n1", Outcome::Failed, "failed", "task a failed"),
        ("n2", Outcome::Drifted, "drifted", "task a is not as it should be and is left so"),
        ("n3", Outcome::WouldChange, "noop", "task a was checked and would change something"),
    ] {
        let mut host = fleet.join_group("c/gx", name).await;
        take(&mut host).await;
        result(&mut host, 1, "a", outcome).await;
        until(&fleet, name, |node| node["state"] == state && node["state_reason"] == reason).await;
        let list = fleet.read(&format!("/v1/nodes?fields=name,state_reason&state={state}")).await;
        assert_eq!(list["nodes"][0]["state_reason"], reason, "the list says what the node says");
    }
    fleet.controller.stop().await;
}

/// The beginnings of two long differences may be the same where their ends are not, and of sensitive tasks nothing is known.
#[tokio::test]
async fn y09_hosts_whose_differences_are_cut_or_not_sent_are_not_compared() {
    let fleet = Fleet::start_with(|own| *own = options()).await;
    fleet.apply(site("1")).await;
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
    let fleet = Fleet::start_with(|own| *own = options()).await;
    fleet.apply(site("1")).await;
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
