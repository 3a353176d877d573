//! The states of nodes in every response: a write is visible in the states at once, and all responses agree.

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

/// Builds a shell task with this tag and these additional fields.
pub(crate) fn shell_task(id: &str, tag: &str, extra_fields: Value) -> Value {
    let Value::Object(fields) = extra_fields else { panic!("{extra_fields} is not an object") };
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

/// Checks in once. `change` edits the check-in of an idle host before it is sent.
pub(crate) async fn check_in_with(host: &mut Host, change: impl FnOnce(&mut CheckIn)) {
    let mut check_in = CheckIn { local: host.local.clone(), ..idle_check_in(host.held_desired, 0) };
    change(&mut check_in);
    let _answer: CheckInResponse = call(&mut host.client, "/agent/v1/checkin", &check_in).await.unwrap();
}

/// Reports the outcome of a task of the host's task set. The result has this sequence number.
pub(crate) async fn report_result(host: &mut Host, sequence: u64, task: &str, outcome: Outcome) {
    report_result_with_diff(host, sequence, (task, outcome), "").await;
}

/// Reports the outcome of a task, with the difference that the task would cause.
pub(crate) async fn report_result_with_diff(host: &mut Host, sequence: u64, task_and_outcome: (&str, Outcome), diff: &str) {
    report_result_with_message(host, sequence, task_and_outcome, ("", diff)).await;
}

/// Reports the outcome of a task, with a message and the difference that the task would cause.
pub(crate) async fn report_result_with_message(
    host: &mut Host,
    sequence: u64,
    (task, outcome): (&str, Outcome),
    (message, diff): (&str, &str),
) {
    let plain_result = task_result(sequence, host.held_desired.unwrap().task_set, task, outcome);
    let result = TaskResult { message: message.to_owned(), diff: diff.to_owned(), ..plain_result };
    check_in_with(host, |check_in| check_in.results = vec![result]).await;
}

/// Waits for the next desired state of the host, and confirms it with another check-in.
pub(crate) async fn take_over_next(host: &mut Host) {
    new_parts(host).await;
    host.next_update(0).await;
}

/// Returns the metrics of the controller as text.
async fn metrics(fleet: &Fleet) -> String {
    let answer = fleet.request_raw(Method::GET, "/metrics", &Value::Null).await;
    String::from_utf8(answer.body().to_vec()).unwrap()
}

/// The request header `accept` selects the format of the metrics. In each format the type of a counter is declared, and
/// only `OpenMetrics` ends with `# EOF`.
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

/// Returns for each of five responses whether it shows this state: the node `name`, its entry in the list, the list
/// filtered by the state, and the counts of cluster c and the metrics, which count all nodes.
pub(crate) async fn is_state_in_answers(fleet: &Fleet, name: &str, state: &str) -> [bool; 5] {
    let node = fleet.read(&format!("/v1/nodes/{name}")).await;
    let list = fleet.read("/v1/nodes?fields=name,state,state_reason,notes").await;
    let entry = list["nodes"].as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap().clone();
    let filtered_list = fleet.read(&format!("/v1/nodes?state={state}")).await;
    let counts = fleet.read("/v1/clusters/c").await["node_states"].clone();
    let metrics = metrics(fleet).await;
    let sample = format!("stemma_nodes{{state=\"{state}\"}} ");
    let sample_value = metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok());
    [
        node["state"] == state,
        entry["state"] == state,
        filtered_list["nodes"].as_array().unwrap().iter().any(|entry| entry["name"] == name),
        counts[state].as_u64().unwrap_or_default() > 0,
        sample_value.is_some_and(|count| count > 0),
    ]
}

/// Reads a node until it meets the condition, and returns it.
pub(crate) async fn wait_until(fleet: &Fleet, name: &str, is_met: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/nodes/{name}");
    read_until(name, async || fleet.read(&path).await, is_met).await
}

/// Waits until a node has this state, for this reason.
pub(crate) async fn wait_until_state(fleet: &Fleet, name: &str, state: &str, reason: &str) {
    wait_until(fleet, name, |node| node["state"] == state && node["state_reason"] == reason).await;
}

/// Waits until the list of nodes shows this reason for the node.
async fn wait_until_listed(fleet: &Fleet, name: &str, reason: &str) {
    let is_listed = |list: &Value| {
        let mut entries = list["nodes"].as_array().unwrap().iter();
        entries.any(|entry| entry["name"] == name && entry["state_reason"] == reason)
    };
    read_until(name, async || fleet.read("/v1/nodes?fields=name,state_reason").await, is_listed).await;
}

/// Waits until a node has this state and reason, and the list of nodes shows the same reason.
pub(crate) async fn wait_until_shown(fleet: &Fleet, name: &str, state: &str, reason: &str) {
    wait_until_state(fleet, name, state, reason).await;
    wait_until_listed(fleet, name, reason).await;
}

/// Starts a fleet of this site with one host of tag x. The host has confirmed its desired state.
pub(crate) async fn start_with_one_host(site: Value, name: &str) -> (Fleet, Host) {
    let fleet = start_fleet(site).await;
    let mut host = fleet.join_group("c/gx", name).await;
    take_over_next(&mut host).await;
    (fleet, host)
}

/// Starts a fleet of this site with two hosts: n1 of tag x, and n2 of tag y. Both have confirmed their desired states.
pub(crate) async fn start_with_two_hosts(site: Value) -> (Fleet, Host, Host) {
    let fleet = start_fleet(site).await;
    let (mut first_host, mut second_host) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take_over_next(&mut first_host).await;
    take_over_next(&mut second_host).await;
    (fleet, first_host, second_host)
}

/// Starts a fleet with one host, n, whose state is `converged`.
async fn start_converged() -> (Fleet, Host) {
    let (fleet, mut host) = start_with_one_host(site("1"), "n").await;
    report_result(&mut host, 1, "a", Outcome::Changed).await;
    wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!(is_state_in_answers(&fleet, "n", "converged").await, [true; 5]);
    (fleet, host)
}

/// Each write of a new release version changes the state of the node. The next read of each kind does not show the old
/// state `converged`.
#[tokio::test]
async fn y06_read_after_write_sees_write() {
    let (fleet, mut host) = start_converged().await;
    for round in 2..12_u64 {
        fleet.apply(site(&round.to_string())).await;
        assert_eq!(is_state_in_answers(&fleet, "n", "converged").await, [false; 5], "round {round}");
        take_over_next(&mut host).await;
        report_result(&mut host, round, "a", Outcome::Changed).await;
        wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    }
    fleet.controller.stop().await;
}

/// Returns the first state of a node that an event stream sends.
async fn first_event_state(fleet: &Fleet, name: &str) -> String {
    let request = Request::get("/v1/events?class=status").header("accept", "text/event-stream");
    let (mut text, mut found_state) = (String::new(), None);
    let mut client = fleet.admin_client();
    let stream = client.stream(request.body(Bytes::new()).unwrap(), async |piece| {
        text.push_str(&String::from_utf8_lossy(&piece));
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_prefix("data: ")?.strip_suffix('\n'));
        let node = lines.find_map(|data| serde_json::from_str::<Value>(data).ok().filter(|data| data["name"] == name));
        found_state = node.map(|data| data["state"].as_str().unwrap().to_owned());
        if found_state.is_some() { Err(std::io::Error::other("the state was found")) } else { Ok(()) }
    });
    assert!(stream.await.is_err(), "the reader stops at the first state of the node");
    found_state.unwrap()
}

/// A client waits for a state by reads, as `stemma wait` does, or by the events. In this test, a write ends the state
/// `converged`. Then neither the next read nor the first event of a new stream shows that state.
#[tokio::test]
async fn y06_read_and_events_after_write_omit_earlier_state() {
    let (fleet, mut host) = start_converged().await;
    for round in 2..8_u64 {
        fleet.apply(site(&round.to_string())).await;
        // Even rounds check the read, and odd rounds check the events.
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
    let (status, body) = fleet.request(Method::DELETE, "/v1/nodes/n", &Value::Null).await;
    assert!(status < 300, "{body}");
    assert_eq!(fleet.request(Method::GET, "/v1/nodes/n", &Value::Null).await.0, 404);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_node_is_held_in_answers_when_task_set_is_kept() {
    let (fleet, mut host) = start_converged().await;
    let node = |hold: Value| json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "hold": hold}]);
    fleet.apply(node(json!({"reason": "a disk"}))).await;
    take_over_next(&mut host).await;
    let held_node = wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!(held_node["notes"], json!(["held"]), "no newer task set waits yet");
    fleet.apply(site("2")).await;
    assert_eq!(is_state_in_answers(&fleet, "n", "held").await, [true; 5]);
    assert_eq!(is_state_in_answers(&fleet, "n", "converged").await, [false; 5]);
    let list = fleet.read("/v1/nodes?fields=name,state_reason,notes").await;
    let reason = "an operator holds it: it keeps its task set, and a newer one waits (it runs site@1)";
    assert_eq!((&list["nodes"][0]["state_reason"], &list["nodes"][0]["notes"][0]), (&json!(reason), &json!("held")));
    assert_eq!(fleet.read("/v1/nodes/n").await["state_reason"], reason);
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"held\"} 1\n"));
    let explanation = fleet.read("/v1/nodes/n/explain?task=a").await;
    assert_eq!((&explanation["released"], &explanation["keeps"]), (&json!(false), &json!("site@1")), "{explanation}");
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx"}])).await;
    assert_eq!(is_state_in_answers(&fleet, "n", "held").await, [false; 5]);
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"held\"} 0\n"));
    fleet.controller.stop().await;
}

/// Regression: a node that kept its task set because of an unmet requirement of the next one was `failed`. That state
/// is right only for a node that has no task set, or for which no newer one waits.
#[tokio::test]
async fn y06_node_is_held_in_each_answer_when_requirement_is_unmet() {
    let (fleet, _host) = start_converged().await;
    let mut next_site = site("2");
    next_site[2]["requirements"] = json!({"trait:CUSTOM_NOPE": "required"});
    fleet.apply(next_site).await;
    assert_eq!(is_state_in_answers(&fleet, "n", "held").await, [true; 5]);
    assert_eq!(is_state_in_answers(&fleet, "n", "failed").await, [false; 5]);
    let held_reason = "it does not meet what its next task set requires, and keeps the one that it has (it runs site@1)";
    wait_until_listed(&fleet, "n", held_reason).await;
    let node = fleet.read("/v1/nodes/n").await;
    assert_eq!(node["state_reason"], held_reason);
    assert!(node["findings"].to_string().contains("requirement.unmet"), "{node}");
    // Another error, which does not itself withhold the task set, has priority and is named.
    let node_with_instance =
        |traits: Value| json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "instance_info": {"traits": traits}}]);
    fleet.apply(node_with_instance(json!(["CUSTOM_ALSO"]))).await;
    let error_reason = "there is an error among its findings: instance.traits";
    wait_until_shown(&fleet, "n", "failed", error_reason).await;
    assert_eq!(is_state_in_answers(&fleet, "n", "failed").await, [true; 5]);
    fleet.apply(node_with_instance(json!([]))).await;
    wait_until_state(&fleet, "n", "held", held_reason).await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "traits": ["CUSTOM_NOPE"]}])).await;
    wait_until(&fleet, "n", |node| node["state"] == "changing").await;
    assert_eq!(is_state_in_answers(&fleet, "n", "held").await, [false; 5]);
    fleet.controller.stop().await;
}

#[tokio::test]
async fn y06_node_has_note_when_host_has_not_confirmed_label() {
    let (fleet, mut host) = start_converged().await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}])).await;
    assert_eq!(
        is_state_in_answers(&fleet, "n", "converged").await,
        [false; 5],
        "no task reads the label, but the host has not confirmed it"
    );
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

/// In this test, two hosts get a new label. One host hangs before it confirms the label. The other host confirms the
/// label, and an orderly stop of the controller stores the confirmation.
#[tokio::test]
async fn y06_unconfirmed_node_stays_unconfirmed_after_restart() {
    let (mut fleet, mut host) = start_converged().await;
    let mut other_host = fleet.join_group("c/gx", "m").await;
    take_over_next(&mut other_host).await;
    report_result(&mut other_host, 1, "a", Outcome::Changed).await;
    wait_until(&fleet, "m", |node| node["state"] == "converged").await;
    let group = json!([{"kind": "NodeGroup", "cluster": "c", "name": "gx", "roles": ["rx"], "labels": {"rack": "7"}}]);
    fleet.apply(group).await;
    // `new_parts` receives the label, but makes no further check-in that would confirm the label.
    new_parts(&mut host).await;
    take_over_next(&mut other_host).await;
    wait_until(&fleet, "n", |node| node["state"] == "changing" && node["notes"] == json!(["untold"])).await;
    wait_until(&fleet, "m", |node| node["state"] == "converged").await;
    for _ in 0..2 {
        fleet = fleet.restart(reconciled_options()).await;
        for (name, state, notes) in [("n", "changing", json!(["untold"])), ("m", "converged", json!([]))] {
            let node = fleet.read(&format!("/v1/nodes/{name}")).await;
            assert_eq!((&node["state"], &node["notes"]), (&json!(state), &notes), "{node}");
        }
        wait_until_metric(&fleet, "stemma_nodes_noted{note=\"untold\"} 1\n").await;
        assert_eq!(is_state_in_answers(&fleet, "n", "changing").await, [true; 5]);
    }
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.next_update(0).await;
    wait_until(&fleet, "n", |node| node["state"] == "converged" && node["notes"] == json!([])).await;
    fleet.controller.stop().await;
}

/// Node m has confirmed its desired state, and node n has not. Both facts are stored, and are shown after a restart
/// before any host checks in.
#[tokio::test]
async fn y06_restart_preserves_confirmation_of_each_node() {
    let (mut fleet, mut host) = start_converged().await;
    let mut other_host = fleet.join_group("c/gx", "m").await;
    take_over_next(&mut other_host).await;
    report_result(&mut other_host, 1, "a", Outcome::Changed).await;
    wait_until(&fleet, "m", |node| node["state"] == "converged").await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}])).await;
    wait_until(&fleet, "n", |node| node["state"] == "changing" && node["notes"] == json!(["untold"])).await;
    store_confirmations(&fleet.components().desired, &*fleet.components().intake).await;
    let revision_before = fleet.last_revision().await;
    fleet = fleet.restart(reconciled_options()).await;
    // No host has checked in since the restart.
    for (name, state, notes) in [("n", "changing", json!(["untold"])), ("m", "converged", json!([]))] {
        let node = fleet.read(&format!("/v1/nodes/{name}")).await;
        assert_eq!((&node["state"], &node["notes"]), (&json!(state), &notes), "before or after the reconciler's pass: {node}");
    }
    wait_until_metric(&fleet, "stemma_nodes_noted{note=\"untold\"} 1\n").await;
    assert_eq!(is_state_in_answers(&fleet, "n", "changing").await, [true; 5]);
    assert_eq!(fleet.read("/v1/nodes/n/explain?label=rack").await["confirmed"], false);
    assert_eq!(fleet.last_revision().await, revision_before, "a restart writes nothing");
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
    let read_confirmation = async || {
        let explanation = fleet.read("/v1/nodes/n/explain?task=a").await;
        let revision = |field: &str| explanation[field].as_u64().unwrap();
        (explanation["confirmed"].clone(), revision("published_revision"), revision("confirmed_revision"))
    };
    let (is_confirmed, _, first_revision) = read_confirmation().await;
    assert_eq!(is_confirmed, true);
    let node = json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"rack": "7"}}]);
    fleet.apply(node).await;
    assert_eq!(is_state_in_answers(&fleet, "n", "converged").await, [false; 5]);
    let (is_confirmed, published, confirmed) = read_confirmation().await;
    assert_eq!((is_confirmed, confirmed), (json!(false), first_revision));
    assert!(published > first_revision, "{published} {first_revision}");
    take_over_next(&mut host).await;
    let (is_confirmed, _, confirmed) = read_confirmation().await;
    assert!(is_confirmed == true && confirmed >= published, "{is_confirmed} {confirmed} {published}");
    fleet.controller.stop().await;
}

/// The agent reports that it is stuck, two findings (the first repeats why it is stuck), and orphaned paths. The second
/// report has only the stuck agent and the first finding. The third report has none of these.
#[tokio::test]
async fn y06_agent_report_is_in_each_answer_until_cleared() {
    let (fleet, mut host) = start_converged().await;
    let build_report = |facts: Value| {
        let facts = facts.as_object().unwrap().iter().map(|(path, fact)| (path.clone(), fact.to_string())).collect();
        Report { agent_version: "1".into(), facts, ..Report::default() }
    };
    let path = "/root/.ssh/authorized_keys";
    let stuck_message = "cannot write /var/lib/stemma-agent (No space left on device)";
    let facts =
        build_report(json!({"agent.stuck": stuck_message, "agent.orphans": [{"task": "key", "path": path}, {"more": 3}]}));
    let full_report = Report { findings: vec![stuck_message.into(), "cannot read hooks.d".into()], ..facts };
    check_in_with(&mut host, |check_in| check_in.report = Some(full_report)).await;
    let stuck_node = wait_until(&fleet, "n", |node| node["state"] == "stuck").await;
    assert_eq!(is_state_in_answers(&fleet, "n", "stuck").await, [true; 5]);
    let set_aside = fleet.read("/v1/nodes/n/explain?task=a").await["set_aside"].to_string();
    assert!(set_aside.contains("its agent is stuck") && set_aside.contains("No space left on device"), "{set_aside}");
    assert_eq!(stuck_node["notes"], json!(["orphaned"]));
    let messages_of = |code: &str| {
        let findings = stuck_node["findings"].as_array().unwrap().iter().filter(|finding| finding["code"] == code);
        findings.map(|finding| finding["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(messages_of("host.stuck")[0].ends_with("(No space left on device)"), "{stuck_node}");
    assert!(
        messages_of("report.findings")[0]
            .contains("findings of its own, about what it could not use or do: 1; the first: cannot read hooks.d;"),
        "{stuck_node}"
    );
    let orphaned = messages_of("task.orphaned");
    assert!(orphaned.len() == 2 && orphaned[0].contains(path) && orphaned[1].starts_with("3 more"), "{stuck_node}");
    assert!(metrics(&fleet).await.contains("stemma_nodes_noted{note=\"orphaned\"} 1\n"));
    assert!(metrics(&fleet).await.contains("stemma_nodes_report_findings 1\n"));
    let stuck_report = build_report(json!({"agent.stuck": stuck_message}));
    check_in_with(&mut host, |check_in| check_in.report = Some(Report { findings: vec![stuck_message.into()], ..stuck_report }))
        .await;
    let stuck_node = wait_until(&fleet, "n", |node| node["notes"] == json!([])).await;
    assert_eq!((&stuck_node["state"], stuck_node["findings"].to_string().contains("report.findings")), (&json!("stuck"), false));
    assert!(metrics(&fleet).await.contains("stemma_nodes_report_findings 0\n"));
    check_in_with(&mut host, |check_in| check_in.report = Some(build_report(json!({})))).await;
    let recovered_node = wait_until(&fleet, "n", |node| node["state"] == "converged").await;
    assert_eq!((&recovered_node["notes"], recovered_node["findings"].to_string().contains("host.stuck")), (&json!([]), false));
    fleet.controller.stop().await;
}
