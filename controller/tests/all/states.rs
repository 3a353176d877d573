//! The states of nodes in every response: a write is visible in them at once, and all of them agree.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_controller::agents::store_confirmations;
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::observed::{Outcome, Report, TaskResult};

use crate::fleet::{Fleet, Host, call, idle_check_in, read_until, reconciled_options, task_result};
use crate::held_task_set::new_parts;

/// Builds a site with task a of tag x, and task b of tag y, which waits for a on all nodes of x.
pub(crate) fn site(version: &str) -> Value {
    let parameters = json!({"script": format!("echo {version}")});
    let after_a = json!([{"name": "a", "tags": ["x"]}]);
    json!([
        {"kind": "Release", "name": "site", "version": version, "roles": {"rx": {"tags": ["x"]}, "ry": {"tags": ["y"]}},
         "tags": {"x": {}, "y": {}},
         "tasks": [shell_task("a", "x", json!({"parameters": parameters})),
             shell_task("b", "y", json!({"parameters": parameters, "cross_depends": after_a}))]},
        {"kind": "Cluster", "name": "c", "release": format!("site@{version}")},
        {"kind": "NodeGroup", "cluster": "c", "name": "gx", "roles": ["rx"]},
        {"kind": "NodeGroup", "cluster": "c", "name": "gy", "roles": ["ry"]},
    ])
}

/// Builds a shell task with additional fields.
pub(crate) fn shell_task(id: &str, tag: &str, more: Value) -> Value {
    let Value::Object(fields) = more else { panic!("{more} is no object") };
    let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    task.as_object_mut().unwrap().extend(fields);
    task
}

/// Builds the first version of the site with additional tasks.
pub(crate) fn site_with_tasks(tasks: impl IntoIterator<Item = Value>) -> Value {
    let mut site = site("1");
    site[0]["tasks"].as_array_mut().unwrap().extend(tasks);
    site
}

/// Starts a fleet with this site, without hosts.
pub(crate) async fn start_fleet(site: Value) -> Fleet {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site).await;
    fleet
}

/// Checks in once, with changes to the check-in of an idle host.
pub(crate) async fn check_in_with(host: &mut Host, change: impl FnOnce(&mut CheckIn)) {
    let mut said = CheckIn { local: host.local.clone(), ..idle_check_in(host.held_desired, 0) };
    change(&mut said);
    let _taken: CheckInResponse = call(&mut host.client, "/agent/v1/checkin", &said).await.unwrap();
}

/// Reports the outcome of a task of the host's task set, as the result with this number.
pub(crate) async fn report_result(host: &mut Host, sequence: u64, task: &str, outcome: Outcome) {
    report_result_with_diff(host, sequence, (task, outcome), "").await;
}

/// Reports the same with the difference that the task would make.
pub(crate) async fn report_result_with_diff(host: &mut Host, sequence: u64, of: (&str, Outcome), diff: &str) {
    report_result_with_message(host, sequence, of, ("", diff)).await;
}

/// Reports the same with the host's message.
pub(crate) async fn report_result_with_message(
    host: &mut Host,
    sequence: u64,
    (task, outcome): (&str, Outcome),
    (message, diff): (&str, &str),
) {
    let of = task_result(sequence, host.held_desired.unwrap().task_set, task, outcome);
    let result = TaskResult { message: message.to_owned(), diff: diff.to_owned(), ..of };
    check_in_with(host, |said| said.results = vec![result]).await;
}

/// Takes over the next desired state, and confirms it.
pub(crate) async fn take_over_next(host: &mut Host) {
    new_parts(host).await;
    host.next_update(0).await;
}

async fn metrics(fleet: &Fleet) -> String {
    let answer = fleet.request_raw(Method::GET, "/metrics", &Value::Null).await;
    String::from_utf8(answer.body().to_vec()).unwrap()
}

#[tokio::test]
async fn y09_metrics_use_accepted_format_and_keep_counter_type() {
    let fleet = Fleet::start_reconciled().await;
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
        let answer = fleet.admin_client().send(request.body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["content-type"]), (200, &content_type.parse().unwrap()));
        let text = String::from_utf8(answer.body().to_vec()).unwrap();
        assert!(text.contains(counter), "{accept:?}: {text}");
        assert_eq!(text.ends_with("# EOF\n"), content_type.starts_with("application/"), "{accept:?}");
    }
    fleet.controller.stop().await;
}

/// Returns whether each response shows this state: the node, its row in the list, the filter, the counts, and the
/// metrics.
pub(crate) async fn states_in_answers(fleet: &Fleet, name: &str, state: &str) -> [bool; 5] {
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

/// Reads a node until the condition holds.
pub(crate) async fn wait_until(fleet: &Fleet, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/nodes/{name}");
    read_until(name, async || fleet.read(&path).await, holds).await
}

/// Waits until a node has this state with this reason.
pub(crate) async fn wait_until_state(fleet: &Fleet, name: &str, state: &str, reason: &str) {
    wait_until(fleet, name, |node| node["state"] == state && node["state_reason"] == reason).await;
}

/// Waits until the list has a row with this reason.
async fn wait_until_listed(fleet: &Fleet, name: &str, reason: &str) {
    let is_listed = |list: &Value| {
        let mut rows = list["nodes"].as_array().unwrap().iter();
        rows.any(|row| row["name"] == name && row["state_reason"] == reason)
    };
    read_until(name, async || fleet.read("/v1/nodes?fields=name,state_reason").await, is_listed).await;
}

/// Waits until a node has this state with this reason, and the list has the same reason.
pub(crate) async fn wait_until_shown(fleet: &Fleet, name: &str, state: &str, reason: &str) {
    wait_until_state(fleet, name, state, reason).await;
    wait_until_listed(fleet, name, reason).await;
}

/// Starts a fleet of this site with one host, of tag x, which holds its desired state.
pub(crate) async fn start_with_one(site: Value, name: &str) -> (Fleet, Host) {
    let fleet = start_fleet(site).await;
    let mut host = fleet.join_group("c/gx", name).await;
    take_over_next(&mut host).await;
    (fleet, host)
}

/// Starts the same with two hosts: n1 of tag x, and n2 of tag y.
pub(crate) async fn start_with_two(site: Value) -> (Fleet, Host, Host) {
    let fleet = start_fleet(site).await;
    let (mut first, mut second) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take_over_next(&mut first).await;
    take_over_next(&mut second).await;
    (fleet, first, second)
}

/// Starts a fleet with one host that has converged.
async fn start_converged() -> (Fleet, Host) {
    let (fleet, mut host) = start_with_one(site("1"), "n").await;
    report_result(&mut host, 1, "a", Outcome::Changed).await;
    wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!(states_in_answers(&fleet, "n", "converged").await, [true; 5]);
    (fleet, host)
}

#[tokio::test]
async fn y06_read_after_write_sees_write() {
    let (fleet, mut host) = start_converged().await;
    for round in 2..12_u64 {
        fleet.apply(site(&round.to_string())).await;
        assert_eq!(states_in_answers(&fleet, "n", "converged").await, [false; 5], "round {round}");
        take_over_next(&mut host).await;
        report_result(&mut host, round, "a", Outcome::Changed).await;
        wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    }
    fleet.controller.stop().await;
}

/// Returns the state of a node at the beginning of an event stream.
async fn first_event_state(fleet: &Fleet, name: &str) -> String {
    let request = Request::get("/v1/events?class=status").header("accept", "text/event-stream");
    let (mut text, mut told) = (String::new(), None);
    let mut client = fleet.admin_client();
    let stream = client.stream(request.body(Bytes::new()).unwrap(), async |piece| {
        text.push_str(&String::from_utf8_lossy(&piece));
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_prefix("data: ")?.strip_suffix('\n'));
        let node = lines.find_map(|data| serde_json::from_str::<Value>(data).ok().filter(|data| data["name"] == name));
        told = node.map(|data| data["state"].as_str().unwrap().to_owned());
        if told.is_some() { Err(std::io::Error::other("it was told")) } else { Ok(()) }
    });
    assert!(stream.await.is_err(), "it ends where the node was told of");
    told.unwrap()
}

/// `stemma wait` reads the object and follows the events. If it starts right after a write that ends the awaited state,
/// neither may still show the state from before that write.
#[tokio::test]
async fn y06_wait_after_write_ignores_earlier_state() {
    let (fleet, mut host) = start_converged().await;
    for round in 2..8_u64 {
        fleet.apply(site(&round.to_string())).await;
        if round % 2 == 0 {
            assert_ne!(fleet.read("/v1/nodes/n").await["state"], "converged", "round {round}");
        } else {
            assert_ne!(first_event_state(&fleet, "n").await, "converged", "round {round}");
        }
        take_over_next(&mut host).await;
        report_result(&mut host, round, "a", Outcome::Changed).await;
        wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    }
    // A label, and the deletion of the node, are visible at once.
    for value in ["1", "2", "3"] {
        fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"at": value}}])).await;
        assert_eq!(fleet.read("/v1/nodes/n").await["labels"]["at"], value);
    }
    let (status, gone) = fleet.request(Method::DELETE, "/v1/nodes/n", &Value::Null).await;
    assert!(status < 300, "{gone}");
    assert_eq!(fleet.request(Method::GET, "/v1/nodes/n", &Value::Null).await.0, 404);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_node_is_held_in_answers_when_task_set_is_kept() {
    let (fleet, mut host) = start_converged().await;
    let node = |hold: Value| json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "hold": hold}]);
    fleet.apply(node(json!({"reason": "a disk"}))).await;
    take_over_next(&mut host).await;
    let held = wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!(held["notes"], json!(["held"]), "nothing waits yet");
    fleet.apply(site("2")).await;
    assert_eq!(states_in_answers(&fleet, "n", "held").await, [true; 5]);
    assert_eq!(states_in_answers(&fleet, "n", "converged").await, [false; 5]);
    let list = fleet.read("/v1/nodes?fields=name,state_reason,notes").await;
    let reason = "an operator holds it: it keeps its task set, and a newer one waits (it runs site@1)";
    assert_eq!((&list["nodes"][0]["state_reason"], &list["nodes"][0]["notes"][0]), (&json!(reason), &json!("held")));
    assert_eq!(fleet.read("/v1/nodes/n").await["state_reason"], reason);
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"held\"} 1\n"));
    let explained = fleet.read("/v1/nodes/n/explain?task=a").await;
    assert_eq!((&explained["released"], &explained["keeps"]), (&json!(false), &json!("site@1")), "{explained}");
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx"}])).await;
    assert_eq!(states_in_answers(&fleet, "n", "held").await, [false; 5]);
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"held\"} 0\n"));
    fleet.controller.stop().await;
}

/// Regression: the host was `failed`, because the unmet requirement is an error finding, as for a host without a task
/// set.
#[tokio::test]
async fn y06_node_is_held_in_each_answer_when_requirement_is_unmet() {
    let (fleet, _host) = start_converged().await;
    let mut next = site("2");
    next[2]["requirements"] = json!({"trait:CUSTOM_NOPE": "required"});
    fleet.apply(next).await;
    assert_eq!(states_in_answers(&fleet, "n", "held").await, [true; 5]);
    assert_eq!(states_in_answers(&fleet, "n", "failed").await, [false; 5]);
    let held = "it does not meet what its next task set requires, and keeps the one that it has (it runs site@1)";
    wait_until_listed(&fleet, "n", held).await;
    let node = fleet.read("/v1/nodes/n").await;
    assert_eq!(node["state_reason"], held);
    assert!(node["findings"].to_string().contains("requirement.unmet"), "{node}");
    // Another error, which does not itself withhold the task set, has priority and is named.
    let instance =
        |traits: Value| json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "instance_info": {"traits": traits}}]);
    fleet.apply(instance(json!(["CUSTOM_ALSO"]))).await;
    let error = "there is an error among its findings: instance.traits";
    wait_until_shown(&fleet, "n", "failed", error).await;
    assert_eq!(states_in_answers(&fleet, "n", "failed").await, [true; 5]);
    fleet.apply(instance(json!([]))).await;
    wait_until_state(&fleet, "n", "held", held).await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "traits": ["CUSTOM_NOPE"]}])).await;
    wait_until(&fleet, "n", |node| node["state"] == "changing").await;
    assert_eq!(states_in_answers(&fleet, "n", "held").await, [false; 5]);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_node_has_note_when_host_has_not_confirmed_label() {
    let (fleet, mut host) = start_converged().await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}])).await;
    assert_eq!(states_in_answers(&fleet, "n", "converged").await, [false; 5], "no task reads it, and the host has not got it");
    let node = fleet.read("/v1/nodes/n").await;
    assert_eq!((&node["state"], &node["notes"]), (&json!("changing"), &json!(["untold"])));
    assert_eq!(fleet.read("/v1/nodes/n/explain?label=rack").await["confirmed"], false);
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"untold\"} 1\n"));
    take_over_next(&mut host).await;
    let node = wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!(node["notes"], json!([]));
    assert_eq!(fleet.read("/v1/nodes/n/explain?label=rack").await["confirmed"], true);
    fleet.controller.stop().await;
}

/// The host gets the label in the response to its check-in, and hangs before it confirms it. The other host has
/// confirmed it, and that is stored when the controller stops in order.
#[tokio::test]
async fn y06_unconfirmed_node_stays_so_after_restart() {
    let (mut fleet, mut host) = start_converged().await;
    let mut other = fleet.join_group("c/gx", "m").await;
    take_over_next(&mut other).await;
    report_result(&mut other, 1, "a", Outcome::Changed).await;
    wait_until(&fleet, "m", |node| node["state"] == "converged").await;
    let group = json!([{"kind": "NodeGroup", "cluster": "c", "name": "gx", "roles": ["rx"], "labels": {"rack": "7"}}]);
    fleet.apply(group).await;
    new_parts(&mut host).await;
    take_over_next(&mut other).await;
    wait_until(&fleet, "n", |node| node["state"] == "changing" && node["notes"] == json!(["untold"])).await;
    wait_until(&fleet, "m", |node| node["state"] == "converged").await;
    for _ in 0..2 {
        fleet = fleet.restart(reconciled_options()).await;
        for (name, state, notes) in [("n", "changing", json!(["untold"])), ("m", "converged", json!([]))] {
            let node = fleet.read(&format!("/v1/nodes/{name}")).await;
            assert_eq!((&node["state"], &node["notes"]), (&json!(state), &notes), "{node}");
        }
        wait_until_metric(&fleet, "stemma_nodes_noted{note=\"untold\"} 1\n").await;
        assert_eq!(states_in_answers(&fleet, "n", "changing").await, [true; 5]);
    }
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.next_update(0).await;
    wait_until(&fleet, "n", |node| node["state"] == "converged" && node["notes"] == json!([])).await;
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_restart_preserves_confirmation_of_each_node() {
    let (mut fleet, mut host) = start_converged().await;
    let mut other = fleet.join_group("c/gx", "m").await;
    take_over_next(&mut other).await;
    report_result(&mut other, 1, "a", Outcome::Changed).await;
    wait_until(&fleet, "m", |node| node["state"] == "converged").await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}])).await;
    wait_until(&fleet, "n", |node| node["state"] == "changing" && node["notes"] == json!(["untold"])).await;
    store_confirmations(&fleet.parts().desired, &*fleet.parts().intake).await;
    let before = fleet.last_revision().await;
    fleet = fleet.restart(reconciled_options()).await;
    // No host has checked in since.
    for (name, state, notes) in [("n", "changing", json!(["untold"])), ("m", "converged", json!([]))] {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        assert_eq!((&node["state"], &node["notes"]), (&json!(state), &notes), "before the first pass or after it: {node}");
    }
    wait_until_metric(&fleet, "stemma_nodes_noted{note=\"untold\"} 1\n").await;
    assert_eq!(states_in_answers(&fleet, "n", "changing").await, [true; 5]);
    assert_eq!(fleet.read("/v1/nodes/n/explain?label=rack").await["confirmed"], false);
    assert_eq!(fleet.last_revision().await, before, "a restart writes nothing");
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    take_over_next(&mut host).await;
    wait_until(&fleet, "n", |node| node["state"] == "converged" && node["notes"] == json!([])).await;
    fleet.controller.stop().await;
}

/// Waits until the metrics contain a line.
async fn wait_until_metric(fleet: &Fleet, line: &str) {
    read_until(line, async || metrics(fleet).await, |text: &String| text.contains(line)).await;
}

#[tokio::test]
async fn y09_explain_shows_published_and_confirmed_state() {
    let (fleet, mut host) = start_converged().await;
    let account = async || {
        let account = fleet.read("/v1/nodes/n/explain?task=a").await;
        let revision = |field: &str| account[field].as_u64().unwrap();
        (account["confirmed"].clone(), revision("published_revision"), revision("confirmed_revision"))
    };
    let (is_confirmed, _, held) = account().await;
    assert_eq!(is_confirmed, true);
    let node = json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}]);
    fleet.apply(node).await;
    assert_eq!(states_in_answers(&fleet, "n", "converged").await, [false; 5]);
    let (is_confirmed, published, confirmed) = account().await;
    assert_eq!((is_confirmed, confirmed), (json!(false), held));
    assert!(published > held, "{published} {held}");
    take_over_next(&mut host).await;
    let (is_confirmed, _, confirmed) = account().await;
    assert!(is_confirmed == true && confirmed >= published, "{is_confirmed} {confirmed} {published}");
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_agent_report_is_in_each_answer_until_cleared() {
    let (fleet, mut host) = start_converged().await;
    let report = |facts: Value| {
        let facts = facts.as_object().unwrap().iter().map(|(path, fact)| (path.clone(), fact.to_string())).collect();
        Report { agent_version: "1".into(), facts, ..Report::default() }
    };
    let path = "/root/.ssh/authorized_keys";
    let full = "cannot write /var/lib/stemma-agent (No space left on device)";
    let facts = report(json!({"agent.stuck": full, "agent.orphans": [{"task": "key", "path": path}, {"more": 3}]}));
    let both = Report { findings: vec![full.into(), "cannot read hooks.d".into()], ..facts };
    check_in_with(&mut host, |said| said.report = Some(both)).await;
    let stuck = wait_until(&fleet, "n", |node| node["state"] == "stuck").await;
    assert_eq!(states_in_answers(&fleet, "n", "stuck").await, [true; 5]);
    let aside = fleet.read("/v1/nodes/n/explain?task=a").await["set_aside"].to_string();
    assert!(aside.contains("its agent is stuck") && aside.contains("No space left on device"), "{aside}");
    assert_eq!(stuck["notes"], json!(["orphaned"]));
    let found = |code: &str| {
        let all = stuck["findings"].as_array().unwrap().iter().filter(|one| one["code"] == code);
        all.map(|one| one["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(found("host.stuck")[0].ends_with("(No space left on device)"), "{stuck}");
    assert!(
        found("report.findings")[0]
            .contains("findings of its own, about what it could not use or do: 1; the first: cannot read hooks.d;"),
        "{stuck}"
    );
    let orphaned = found("task.orphaned");
    assert!(orphaned.len() == 2 && orphaned[0].contains(path) && orphaned[1].starts_with("3 more"), "{stuck}");
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"orphaned\"} 1\n"));
    assert!(metrics(&fleet).await.contains("stemma_nodes_report_findings 1\n"));
    let alone = report(json!({"agent.stuck": full}));
    check_in_with(&mut host, |said| said.report = Some(Report { findings: vec![full.into()], ..alone })).await;
    let stuck = wait_until(&fleet, "n", |node| node["notes"] == json!([])).await;
    assert_eq!((&stuck["state"], stuck["findings"].to_string().contains("report.findings")), (&json!("stuck"), false));
    assert!(metrics(&fleet).await.contains("stemma_nodes_report_findings 0\n"));
    check_in_with(&mut host, |said| said.report = Some(report(json!({})))).await;
    let over = wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!((&over["notes"], over["findings"].to_string().contains("host.stuck")), (&json!([]), false));
    fleet.controller.stop().await;
}
