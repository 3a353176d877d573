//! Where nodes stand, as every answer says it: what was written is in it at once, and each word is the same in all of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_controller::agents::store_confirmed;
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::observed::{Outcome, Report, TaskResult};

use crate::fleet::{Fleet, Host, call, check_in, read_until, reconciled, result_of};
use crate::held::told;

/// Task a of tag x, and b of tag y, which waits for a on all of x.
pub(crate) fn site(version: &str) -> Value {
    let parameters = json!({"script": format!("echo {version}")});
    let after_a = json!([{"name": "a", "tags": ["x"]}]);
    json!([
        {"kind": "Release", "name": "site", "version": version, "roles": {"rx": {"tags": ["x"]}, "ry": {"tags": ["y"]}},
         "tags": {"x": {}, "y": {}},
         "tasks": [shell("a", "x", json!({"parameters": parameters})),
             shell("b", "y", json!({"parameters": parameters, "cross_depends": after_a}))]},
        {"kind": "Cluster", "name": "c", "release": format!("site@{version}")},
        {"kind": "NodeGroup", "cluster": "c", "name": "gx", "roles": ["rx"]},
        {"kind": "NodeGroup", "cluster": "c", "name": "gy", "roles": ["ry"]},
    ])
}

/// A task of one script, with more fields.
pub(crate) fn shell(id: &str, tag: &str, more: Value) -> Value {
    let Value::Object(fields) = more else { panic!("{more} is no object") };
    let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    task.as_object_mut().unwrap().extend(fields);
    task
}

/// The first version of the site with more tasks.
pub(crate) fn site_and(tasks: impl IntoIterator<Item = Value>) -> Value {
    let mut site = site("1");
    site[0]["tasks"].as_array_mut().unwrap().extend(tasks);
    site
}

/// A fleet of this site, without hosts.
pub(crate) async fn fleet_of(site: Value) -> Fleet {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site).await;
    fleet
}

/// Checks in once, with more than an idle host says.
pub(crate) async fn say(host: &mut Host, change: impl FnOnce(&mut CheckIn)) {
    let mut said = CheckIn { local: host.local.clone(), ..check_in(host.held, 0) };
    change(&mut said);
    let _taken: CheckInAnswer = call(&mut host.client, "/agent/v1/checkin", &said).await.unwrap();
}

/// Says what became of a task of what the host holds, as its result of that number.
pub(crate) async fn result(host: &mut Host, sequence: u64, task: &str, outcome: Outcome) {
    result_with(host, sequence, (task, outcome), "").await;
}

/// The same with what the task would change.
pub(crate) async fn result_with(host: &mut Host, sequence: u64, of: (&str, Outcome), diff: &str) {
    result_saying(host, sequence, of, ("", diff)).await;
}

/// The same with what the host said of it.
pub(crate) async fn result_saying(
    host: &mut Host,
    sequence: u64,
    (task, outcome): (&str, Outcome),
    (message, diff): (&str, &str),
) {
    let of = result_of(sequence, host.held.unwrap().task_set, task, outcome);
    let result = TaskResult { message: message.to_owned(), diff: diff.to_owned(), ..of };
    say(host, |said| said.results = vec![result]).await;
}

/// Takes over what the host is told next, and says that it holds it.
pub(crate) async fn take(host: &mut Host) {
    told(host).await;
    host.news(0).await;
}

async fn metrics(fleet: &Fleet) -> String {
    let answer = fleet.answer(Method::GET, "/metrics", &Value::Null).await;
    String::from_utf8(answer.body().to_vec()).unwrap()
}

#[tokio::test]
async fn y09_metrics_come_in_the_form_that_is_accepted_and_counters_keep_their_type() {
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
pub(crate) async fn everywhere(fleet: &Fleet, name: &str, state: &str) -> [bool; 5] {
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
pub(crate) async fn until(fleet: &Fleet, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/nodes/{name}");
    read_until(name, async || fleet.read(&path).await, holds).await
}

/// Asks until a node has this state with this reason.
pub(crate) async fn until_stands(fleet: &Fleet, name: &str, state: &str, reason: &str) {
    until(fleet, name, |node| node["state"] == state && node["state_reason"] == reason).await;
}

/// Reads the list until a row of it has this reason, as the node says it.
async fn until_listed(fleet: &Fleet, name: &str, reason: &str) {
    let is_listed = |list: &Value| {
        let mut rows = list["nodes"].as_array().unwrap().iter();
        rows.any(|row| row["name"] == name && row["state_reason"] == reason)
    };
    read_until(name, async || fleet.read("/v1/nodes?fields=name,state_reason").await, is_listed).await;
}

/// Asks until a node has this state with this reason, and the list this reason of it.
pub(crate) async fn until_shown(fleet: &Fleet, name: &str, state: &str, reason: &str) {
    until_stands(fleet, name, state, reason).await;
    until_listed(fleet, name, reason).await;
}

/// A fleet of this site with one host, of tag x, which holds what it was told.
pub(crate) async fn with_one(site: Value, name: &str) -> (Fleet, Host) {
    let fleet = fleet_of(site).await;
    let mut host = fleet.join_group("c/gx", name).await;
    take(&mut host).await;
    (fleet, host)
}

/// The same with two hosts: n1 of tag x, and n2 of tag y.
pub(crate) async fn with_two(site: Value) -> (Fleet, Host, Host) {
    let fleet = fleet_of(site).await;
    let (mut first, mut second) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    take(&mut first).await;
    take(&mut second).await;
    (fleet, first, second)
}

/// A fleet of one host that has converged.
async fn converged() -> (Fleet, Host) {
    let (fleet, mut host) = with_one(site("1"), "n").await;
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

/// The state of a node that a stream of events begins with.
async fn first_told(fleet: &Fleet, name: &str) -> String {
    let request = Request::get("/v1/events?class=status").header("accept", "text/event-stream");
    let (mut text, mut told) = (String::new(), None);
    let mut client = fleet.operator();
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

/// `stemma wait` reads the object and follows the events. Begun right behind a write that ends what it waits for, it is met by neither as it
/// was before that write.
#[tokio::test]
async fn y06_a_wait_right_behind_a_write_is_not_met_by_what_stood_before_it() {
    let (fleet, mut host) = converged().await;
    for round in 2..8_u64 {
        fleet.apply(site(&round.to_string())).await;
        if round % 2 == 0 {
            assert_ne!(fleet.read("/v1/nodes/n").await["state"], "converged", "round {round}");
        } else {
            assert_ne!(first_told(&fleet, "n").await, "converged", "round {round}");
        }
        take(&mut host).await;
        result(&mut host, round, "a", Outcome::Changed).await;
        until(&fleet, "n", |node| node["state"] == "converged").await;
    }
    // A label, and whether it is there at all, are so at once.
    for value in ["1", "2", "3"] {
        fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "labels": {"at": value}}])).await;
        assert_eq!(fleet.read("/v1/nodes/n").await["labels"]["at"], value);
    }
    let (status, gone) = fleet.ask(Method::DELETE, "/v1/nodes/n", &Value::Null).await;
    assert!(status < 300, "{gone}");
    assert_eq!(fleet.ask(Method::GET, "/v1/nodes/n", &Value::Null).await.0, 404);
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

/// It was failed, since what it does not meet is an error among its findings, as that of a host which has no task set.
#[tokio::test]
async fn y06_a_host_that_keeps_its_task_set_since_it_does_not_meet_the_next_one_is_held_in_every_answer() {
    let (fleet, _host) = converged().await;
    let mut next = site("2");
    next[2]["requirements"] = json!({"trait:CUSTOM_NOPE": "required"});
    fleet.apply(next).await;
    assert_eq!(everywhere(&fleet, "n", "held").await, [true; 5]);
    assert_eq!(everywhere(&fleet, "n", "failed").await, [false; 5]);
    let held = "it does not meet what its next task set requires, and keeps the one that it has (it runs site@1)";
    until_listed(&fleet, "n", held).await;
    let node = fleet.read("/v1/nodes/n").await;
    assert_eq!(node["state_reason"], held);
    assert!(node["findings"].to_string().contains("requirement.unmet"), "{node}");
    // An error that keeps nothing from it by itself comes first, and is the one that is named.
    let instance = |traits: Value| json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "instance_info": {"traits": traits}}]);
    fleet.apply(instance(json!(["CUSTOM_ALSO"]))).await;
    let error = "there is an error among its findings: instance.traits";
    until_shown(&fleet, "n", "failed", error).await;
    assert_eq!(everywhere(&fleet, "n", "failed").await, [true; 5]);
    fleet.apply(instance(json!([]))).await;
    until_stands(&fleet, "n", "held", held).await;
    fleet.apply(json!([{"kind": "Node", "name": "n", "nodegroup": "c/gx", "traits": ["CUSTOM_NOPE"]}])).await;
    until(&fleet, "n", |node| node["state"] == "changing").await;
    assert_eq!(everywhere(&fleet, "n", "held").await, [false; 5]);
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
        fleet = fleet.restart(reconciled()).await;
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
    fleet = fleet.restart(reconciled()).await;
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
