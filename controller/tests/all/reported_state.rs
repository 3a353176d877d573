//! Pause, hold and park as set on a host: their effect, the responses that show them, and their end by a removal or by
//! the deletion of the node.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::agents::store_confirmations;
use stemma_controller::cache::Model;
use stemma_controller::run::Options;
use stemma_controller::store::ListQuery;
use stemma_core::object::ClusterId;
use stemma_wire::clock::Clock as _;
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::observed::{LocalState, Observation, ReportedLabel};
use stemma_wire::message::signed::Grant;

use crate::fleet::{self, Fleet, Host, TIMEOUT, TestClock, call, idle_check_in, read_until, reconciled_options};
use crate::states::{self, shell_task, site_with_tasks};

/// Builds a site in which task b of tag y waits for task a on all nodes of tag x. Tag x has a primary.
fn site() -> Value {
    with_primary(states::site("1"))
}

/// Gives tag x of a site a primary.
fn with_primary(mut site: Value) -> Value {
    site[0]["tags"]["x"]["has_primary"] = json!(true);
    site
}

/// Checks in until the last list of open barriers from the controller has this length, and the host has a desired
/// state. Returns, for each of these barriers, the task that had to succeed on other hosts.
async fn wait_for_barriers(host: &mut Host, count: usize) -> Vec<String> {
    let (mut open_tasks, deadline) = (Vec::new(), Instant::now() + TIMEOUT);
    while Instant::now() < deadline {
        let update = host.next_update(50).await;
        for signed in update.grants {
            if let Grant::Barriers { open: barriers, .. } = signed.grant {
                open_tasks = barriers.into_iter().map(|barrier| barrier.task).collect();
            }
        }
        if host.held_desired.is_some() && open_tasks.len() == count {
            return open_tasks;
        }
    }
    panic!("{count} barriers are not open: {open_tasks:?}");
}

/// Reads a path until the body meets the condition, and returns the body.
async fn wait_until(fleet: &Fleet, path: &str, is_met: impl Fn(&Value) -> bool) -> Value {
    read_until(path, async || fleet.read(path).await, is_met).await
}

/// Returns the local state of a host that root parked on the host.
fn parked_state() -> LocalState {
    LocalState { parked: Some("repair".to_owned()), ..LocalState::default() }
}

/// Returns the number of hosts whose local state (pause, hold and park that root set on the host) is stored.
async fn stored_state_count(fleet: &Fleet) -> usize {
    let snapshot = fleet.components().registry.store().snapshot().await.unwrap();
    snapshot.list(&ListQuery::prefix("said/")).await.unwrap().entries.len()
}

#[tokio::test]
async fn w08_explain_names_awaited_node_when_barrier_is_closed() {
    let fleet = Fleet::start_reconciled().await;
    let after_b = shell_task("d", "y", json!({"requires": ["b"]}));
    fleet.apply(with_primary(site_with_tasks([after_b]))).await;
    let (mut first_host, mut second_host) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    for host in [&mut first_host, &mut second_host] {
        host.next_update(0).await;
    }
    for task in ["b", "d"] {
        let path = format!("/v1/nodes/n2/explain?task={task}");
        let waits = wait_until(&fleet, &path, |body| body["waits"][0]["count"] == 1).await["waits"].clone();
        let expected_waits = json!([{"node": "n1", "why": "a has not succeeded there"}]);
        assert_eq!(waits, json!([{"here": "b", "task": "a", "selector": "tags x", "count": 1, "waits_for": expected_waits}]));
    }
    assert_eq!(fleet.read("/v1/nodes/n1/explain?task=a").await["waits"], json!([]));
    let reason = "b waits for a on tags x: n1 (a has not succeeded there)";
    wait_until(&fleet, "/v1/nodes/n2", |node| node["state"] == "waiting" && node["state_reason"] == reason).await;
    let first_node = fleet.read("/v1/nodes/n1").await;
    assert_eq!(first_node["state_reason"], "no result of its tasks was reported yet", "n1 waits for no other host");
}

/// A released state counts as sent to a host only when its agent has confirmed it. Nothing is sent to a node without an
/// agent.
#[tokio::test]
async fn w08_explain_reports_sent_state_only_when_host_confirmed() {
    let fleet = Fleet::start_reconciled().await;
    let mut site = site();
    site.as_array_mut().unwrap().push(json!({"kind": "Node", "name": "never", "nodegroup": "c/gx"}));
    fleet.apply(site).await;
    let explain_path = |name: &str| format!("/v1/nodes/{name}/explain?task=a");
    let agentless = wait_until(&fleet, &explain_path("never"), |body| body["released"] == true).await;
    assert_eq!(
        (&agentless["told"], &agentless["connection"], &agentless["last_seen"]),
        (&json!(false), &json!("absent"), &Value::Null)
    );
    let mut host = fleet.join_group("c/gx", "n1").await;
    wait_until(&fleet, &explain_path("n1"), |body| body["released"] == true && body["told"] == false).await;
    // A released state is stored before it is published.
    host.first_state().await;
    host.next_update(0).await;
    // The reconciler publishes the state of a host before it updates the connection that is shown.
    let explanation =
        wait_until(&fleet, &explain_path("n1"), |body| body["told"] == true && body["connection"] == "connected").await;
    assert!(explanation["last_seen"].is_string(), "{explanation}");
    assert_eq!(fleet.read(&explain_path("never")).await["told"], false);
}

/// Regression: the reason said that the node keeps its task set, but it had never had one.
#[tokio::test]
async fn y06_node_reports_no_task_set_when_held_before_first() {
    let fleet = Fleet::start_reconciled().await;
    let mut site = site();
    let node = json!({"kind": "Node", "name": "n1", "nodegroup": "c/gx", "hold": {"reason": "a disk"}});
    site.as_array_mut().unwrap().push(node);
    fleet.apply(site).await;
    let reasons = fleet.read("/v1/nodes/n1/explain?task=a").await["set_aside"].clone();
    assert_eq!(reasons, json!(["it is held (a disk), and no task set was released yet"]));
    fleet.controller.stop().await;
}

/// The node has a hold of an operator and a hold that its host reports. Both expire.
#[tokio::test]
async fn expired_hold_is_absent_from_explain_and_findings() {
    let clock = Arc::new(TestClock::default());
    let test_clock = Arc::clone(&clock);
    let fleet = Fleet::start_with(|options| *options = Options { clock: test_clock, ..reconciled_options() }).await;
    fleet.apply(site()).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    host.next_update(0).await;
    let end_s = clock.unix_seconds() + 3600;
    let until = jiff::Timestamp::from_second(end_s.try_into().unwrap()).unwrap().to_string();
    let held_node = json!({"kind": "Node", "name": "n1", "nodegroup": "c/gx", "hold": {"until": until, "reason": "a disk"}});
    fleet.apply(json!([held_node])).await;
    host.local = LocalState { hold: Some((end_s, "a fan".to_owned())), ..LocalState::default() };
    host.next_update(0).await;
    let path = "/v1/nodes/n1/explain?task=a";
    let reasons = wait_until(&fleet, path, |body| body["set_aside"].as_array().unwrap().len() == 2).await["set_aside"].clone();
    let sentence = |hold: &str| format!("it is {hold}: it keeps the task set that it has");
    assert_eq!(reasons, json!([sentence("held (a disk)"), sentence("held on its host (a fan)")]));
    let finding = "it is held on its host (a fan)";
    for read in ["/v1/nodes/n1", "/v1/nodes/n1/resolved", "/v1/clusters/c/validate"] {
        assert!(fleet.read(read).await["findings"].to_string().contains(finding), "{read}");
    }
    clock.advance(3600);
    assert_eq!(fleet.read(path).await["set_aside"], json!([]));
    for read in ["/v1/nodes/n1", "/v1/nodes/n1/resolved", "/v1/clusters/c/validate"] {
        assert!(!fleet.read(read).await["findings"].to_string().contains("is held"), "{read}");
    }
    fleet.controller.stop().await;
}

#[tokio::test]
async fn s39_reported_state_is_throttled_and_stores_last_value() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site()).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    host.next_update(0).await;
    let revision_before = fleet.last_revision().await;
    for switch in 0..61 {
        host.local = if switch % 2 == 0 { parked_state() } else { LocalState::default() };
        host.next_update(0).await;
    }
    let commit_count = fleet.last_revision().await - revision_before;
    assert!(commit_count < 40, "{commit_count} commits of 61 switches");
    host.local = LocalState { paused: true, ..parked_state() };
    host.next_update(0).await;
    let expected_state = json!({"paused": true, "hold": null, "parked": {"reason": "repair"}});
    // The last report is stored.
    wait_until(&fleet, "/v1/nodes/n1", |node| node["reported_state"] == expected_state).await;
}

#[tokio::test]
async fn x07_barriers_skip_node_but_primary_stays_when_parked_on_host() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(site()).await;
    let (mut first_host, mut second_host) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    let mut third_host = fleet.join_group("c/gx", "n3").await;
    for host in [&mut first_host, &mut second_host, &mut third_host] {
        host.next_update(0).await;
    }
    wait_until(&fleet, "/v1/nodes/n1", |node| node["primary_tags"] == json!(["x"])).await;
    let waits = wait_until(&fleet, "/v1/nodes/n2/resolved", |node| node["waits"][0]["count"] == 2).await["waits"].clone();
    let expected_wait = |node: &str| json!({"node": node, "why": "a has not succeeded there"});
    assert_eq!((&waits[0]["task"], &waits[0]["selector"]), (&json!("a"), &json!("tags x")));
    let waits_for = waits[0]["waits_for"].as_array().unwrap();
    assert!(waits_for.contains(&expected_wait("n1")) && waits_for.contains(&expected_wait("n3")), "{waits}");
    wait_until_settled(&fleet).await;

    for (host, reason) in [(&mut first_host, "repair"), (&mut third_host, "move")] {
        host.local = LocalState { parked: Some(reason.to_owned()), ..LocalState::default() };
        host.next_update(0).await;
    }
    assert_eq!(wait_for_barriers(&mut second_host, 1).await, ["a"]);
    let node = fleet.read("/v1/nodes/n1").await;
    assert_eq!(node["reported_state"], json!({"paused": false, "hold": null, "parked": {"reason": "repair"}}));
    assert_eq!(node["parked"], json!(false), "the operator's field is unchanged");
    assert!(node["findings"].to_string().contains("it is parked on its host (repair)"), "{node}");
    third_host.local = LocalState::default();
    third_host.next_update(0).await;
    wait_until_settled(&fleet).await;
    let (first_node, third_node) = (fleet.read("/v1/nodes/n1").await, fleet.read("/v1/nodes/n3").await);
    assert_eq!(
        (&first_node["primary_tags"], &third_node["primary_tags"]),
        (&json!(["x"]), &json!([])),
        "the parked node remains primary"
    );
    assert!(first_node["findings"].to_string().contains("primary.parked"), "{first_node}");
    third_host.local = LocalState { parked: Some("move".to_owned()), ..LocalState::default() };
    third_host.next_update(0).await;
    assert_eq!(wait_for_barriers(&mut second_host, 1).await, ["a"]);

    // A repeat of the same report writes nothing and has the same effect, also after a restart.
    wait_until_settled(&fleet).await;
    for host in [&mut first_host, &mut second_host, &mut third_host] {
        host.next_update(0).await;
        host.next_update(0).await;
    }
    store_confirmations(&fleet.components().desired, &*fleet.components().intake).await;
    let revision_before = fleet.last_revision().await;
    first_host.next_update(0).await;
    fleet = fleet.restart(reconciled_options()).await;
    for host in [&mut first_host, &mut second_host, &mut third_host] {
        host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    }
    assert_eq!(wait_for_barriers(&mut second_host, 1).await, ["a"], "the barrier is open before the parked hosts check in");
    for host in [&mut first_host, &mut third_host] {
        host.next_update(0).await;
    }
    wait_until_settled(&fleet).await;
    assert_eq!(fleet.last_revision().await, revision_before, "a restart without a change writes nothing");

    assert_eq!(stored_state_count(&fleet).await, 2);
    let (status, body) = fleet.request(Method::DELETE, "/v1/nodes/n1", &Value::Null).await;
    assert_eq!((status, stored_state_count(&fleet).await), (204, 1), "{body}");
    third_host.local = LocalState::default();
    third_host.next_update(0).await;
    assert_eq!(stored_state_count(&fleet).await, 0, "the state is deleted when the host no longer reports it");
    fleet.controller.stop().await;
}

/// Waits until the reconciler has resolved the last commit and has nothing left to write: the primary of each tag is
/// stored.
async fn wait_until_settled(fleet: &Fleet) {
    let cache = fleet.components().registry.cache();
    let are_primaries_stored = |model: &Model| {
        let mut clusters = model.fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid));
        clusters.all(|cluster| model.fleet.unstored_holders(cluster).is_empty())
    };
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let head = fleet.components().registry.store().head().await.unwrap();
        let model = cache.model();
        if fleet.components().desired.resolved_revision().0 >= head.get()
            && model.revision >= head
            && are_primaries_stored(&model)
        {
            return;
        }
        assert!(Instant::now() < deadline, "the reconciler still has something to write");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn barrier_waits_when_node_is_paused_on_host() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site()).await;
    let (mut first_host, mut second_host) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    first_host.local = LocalState { paused: true, ..LocalState::default() };
    first_host.next_update(0).await;
    second_host.next_update(0).await;
    let expected_waits = json!([{"node": "n1", "why": "it was paused on its host"}]);
    let body = wait_until(&fleet, "/v1/nodes/n2/resolved", |node| node["waits"][0]["waits_for"] == expected_waits).await;
    assert_eq!(body["waits"][0]["count"], json!(1));
    let node = fleet.read("/v1/nodes/n1").await;
    assert!(node["findings"].to_string().contains("it was paused on its host: nothing is applied there"), "{node}");

    // After a resume the host runs its task, and the result opens the barrier.
    first_host.local = LocalState::default();
    // The result must be for the task set that the controller publishes now.
    while first_host.held_desired.is_none_or(|held_state| {
        fleet.components().desired.digests(first_host.node).is_none_or(|(_, task_set)| task_set != held_state.task_set)
    }) {
        first_host.next_update(50).await;
    }
    first_host.report_success("a").await;
    assert_eq!(wait_for_barriers(&mut second_host, 1).await, ["a"]);
    let body = fleet.read("/v1/nodes/n2/resolved").await;
    assert_eq!(body["waits"], json!([]));
    fleet.controller.stop().await;
}

/// A host reports a hold of its own. A change of the node's roles does not change its task set until the host reports
/// no hold.
#[tokio::test]
async fn task_set_changes_only_without_hold_on_host() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site()).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    while host.held_desired.is_none() {
        host.next_update(50).await;
    }
    host.local = LocalState { hold: Some((u64::MAX, "freeze".to_owned())), ..LocalState::default() };
    host.next_update(0).await;
    wait_until(&fleet, "/v1/nodes/n1", |node| node["reported_state"]["hold"]["reason"] == "freeze").await;
    wait_until_settled(&fleet).await;
    let (_, digest_before) = fleet.components().desired.digests(host.node).unwrap();
    let roles = json!({"roles": ["rx", "ry"]});
    let (status, body) = fleet.request(Method::PUT, "/v1/nodes/n1/roles", &roles).await;
    assert_eq!(status, 200, "{body}");
    wait_until_settled(&fleet).await;
    assert_eq!(
        fleet.components().desired.digests(host.node).unwrap().1,
        digest_before,
        "the hold on the host withholds the new task set"
    );
    // This local state has no hold.
    host.local = parked_state();
    host.next_update(0).await;
    wait_until_settled(&fleet).await;
    assert_ne!(
        fleet.components().desired.digests(host.node).unwrap().1,
        digest_before,
        "without the hold, the new task set is released"
    );
    fleet.controller.stop().await;
}

/// A host reports the labels `zone` and `rack`, which its cluster accepts. A write lists such a label in `lost_labels`
/// if the node lacks it afterwards, and not if only its value is replaced.
#[tokio::test]
async fn w06_write_names_lost_labels_when_hosts_filled_values() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site()).await;
    fleet
        .apply(json!([{"kind": "Cluster", "name": "c", "release": "site@1", "host_labels": {"accept": ["zone", "rack"]}}]))
        .await;
    let mut host = fleet.join_group("c/gx", "x1").await;
    let label = |value: &str| ReportedLabel { value: value.into(), source: "labels.d/x:1".into() };
    let labels = [("zone".to_owned(), label("a")), ("rack".to_owned(), label("7"))].into();
    let observation = Observation { labels, ..Observation::default() };
    let digest = fleet::observation_digest(&observation);
    let check_in = CheckIn { observation_digest: digest, observation: Some(observation), ..idle_check_in(host.held_desired, 0) };
    let answer: CheckInResponse = call(&mut host.client, "/agent/v1/checkin", &check_in).await.unwrap();
    assert!(
        matches!(answer, CheckInResponse::Current(update) if update.observation == Some(digest)),
        "the observation is stored"
    );
    for (kind, fields, lost_labels) in [
        ("Cluster", json!({"release": "site@1", "host_labels": {"accept": ["rack"]}}), json!({"zone": 1})),
        ("NodeGroup", json!({"cluster": "c", "roles": ["rx"], "labels": {"rack": null}}), json!({"rack": 1})),
        ("NodeGroup", json!({"cluster": "c", "roles": ["rx"], "labels": {"rack": "8"}}), json!({})),
    ] {
        let mut object = fields;
        object["kind"] = json!(kind);
        object["name"] = json!(if kind == "Cluster" { "c" } else { "gx" });
        let (status, answer) = fleet.request(Method::POST, "/v1/apply?dry_run=true", &json!({"objects": [object]})).await;
        assert_eq!((status, &answer["lost_labels"]), (200, &lost_labels), "{object}: {answer}");
    }
}
