//! Pause, hold and park as set on a host: their effect, where they are shown, and that they last until they are removed
//! or the node is deleted.

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

/// Builds a site in which b on the y nodes waits for a on the x nodes, and tag x has a primary.
fn site() -> Value {
    with_primary(states::site("1"))
}

fn with_primary(mut site: Value) -> Value {
    site[0]["tags"]["x"]["has_primary"] = json!(true);
    site
}

/// Waits until this number of barriers is open for a host. Returns their tasks.
async fn wait_for_barriers(host: &mut Host, count: usize) -> Vec<String> {
    let (mut open, deadline) = (Vec::new(), Instant::now() + TIMEOUT);
    while Instant::now() < deadline {
        let news = host.next_update(50).await;
        for signed in news.grants {
            if let Grant::Barriers { open: barriers, .. } = signed.grant {
                open = barriers.into_iter().map(|barrier| barrier.task).collect();
            }
        }
        if host.held_desired.is_some() && open.len() == count {
            return open;
        }
    }
    panic!("{count} barriers are not open: {open:?}");
}

/// Reads until the condition holds.
async fn wait_until(fleet: &Fleet, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
    read_until(path, async || fleet.read(path).await, holds).await
}

fn parked_state() -> LocalState {
    LocalState { parked: Some("repair".to_owned()), ..LocalState::default() }
}

async fn stored_state_count(fleet: &Fleet) -> usize {
    let snapshot = fleet.parts().registry.store().snapshot().await.unwrap();
    snapshot.list(&ListQuery::prefix("said/")).await.unwrap().entries.len()
}

#[tokio::test]
async fn w08_explain_names_awaited_node_when_barrier_is_closed() {
    let fleet = Fleet::start_reconciled().await;
    let after_b = shell_task("d", "y", json!({"requires": ["b"]}));
    fleet.apply(with_primary(site_with_tasks([after_b]))).await;
    let (mut one, mut two) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    for host in [&mut one, &mut two] {
        host.next_update(0).await;
    }
    for task in ["b", "d"] {
        let path = format!("/v1/nodes/n2/explain?task={task}");
        let waits = wait_until(&fleet, &path, |body| body["waits"][0]["count"] == 1).await["waits"].clone();
        let why = json!([{"node": "n1", "why": "a has not succeeded there"}]);
        assert_eq!(waits, json!([{"here": "b", "task": "a", "selector": "tags x", "count": 1, "waits_for": why}]));
    }
    assert_eq!(fleet.read("/v1/nodes/n1/explain?task=a").await["waits"], json!([]));
    let reason = "b waits for a on tags x: n1 (a has not succeeded there)";
    wait_until(&fleet, "/v1/nodes/n2", |node| node["state"] == "waiting" && node["state_reason"] == reason).await;
    let other = fleet.read("/v1/nodes/n1").await;
    assert_eq!(other["state_reason"], "no result of its tasks was reported yet", "nobody keeps it");
}

/// A released state counts as sent to a host only when its agent holds it. A node without an agent is sent nothing.
#[tokio::test]
async fn w08_explain_reports_sent_state_only_when_host_confirmed() {
    let fleet = Fleet::start_reconciled().await;
    let mut site = site();
    site.as_array_mut().unwrap().push(json!({"kind": "Node", "name": "never", "nodegroup": "c/gx"}));
    fleet.apply(site).await;
    let of = |name: &str| format!("/v1/nodes/{name}/explain?task=a");
    let never = wait_until(&fleet, &of("never"), |body| body["released"] == true).await;
    assert_eq!((&never["told"], &never["connection"], &never["last_seen"]), (&json!(false), &json!("absent"), &Value::Null));
    let mut host = fleet.join_group("c/gx", "n1").await;
    wait_until(&fleet, &of("n1"), |body| body["released"] == true && body["told"] == false).await;
    // A released state is stored before it is published.
    host.first_state().await;
    host.next_update(0).await;
    // A pass publishes the state of a host before it updates the connection that is shown.
    let told = wait_until(&fleet, &of("n1"), |body| body["told"] == true && body["connection"] == "connected").await;
    assert!(told["last_seen"].is_string(), "{told}");
    assert_eq!(fleet.read(&of("never")).await["told"], false);
}

/// Regression: the reason said that the node keeps its task set, but it had never had one.
#[tokio::test]
async fn y06_node_reports_no_task_set_when_held_before_first() {
    let fleet = Fleet::start_reconciled().await;
    let mut site = site();
    let node = json!({"kind": "Node", "name": "n1", "nodegroup": "c/gx", "hold": {"reason": "a disk"}});
    site.as_array_mut().unwrap().push(node);
    fleet.apply(site).await;
    let why = fleet.read("/v1/nodes/n1/explain?task=a").await["set_aside"].clone();
    assert_eq!(why, json!(["it is held (a disk), and no task set was released yet"]));
    fleet.controller.stop().await;
}

/// An expired hold withholds nothing and is not reported.
#[tokio::test]
async fn expired_hold_is_absent_from_explain_and_findings() {
    let clock = Arc::new(TestClock::default());
    let test_clock = Arc::clone(&clock);
    let fleet = Fleet::start_with(|all| *all = Options { clock: test_clock, ..reconciled_options() }).await;
    fleet.apply(site()).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    host.next_update(0).await;
    let end = clock.unix_seconds() + 3600;
    let until_then = jiff::Timestamp::from_second(end.try_into().unwrap()).unwrap().to_string();
    let held = json!({"kind": "Node", "name": "n1", "nodegroup": "c/gx", "hold": {"until": until_then, "reason": "a disk"}});
    fleet.apply(json!([held])).await;
    host.local = LocalState { hold: Some((end, "a fan".to_owned())), ..LocalState::default() };
    host.next_update(0).await;
    let path = "/v1/nodes/n1/explain?task=a";
    let told = wait_until(&fleet, path, |body| body["set_aside"].as_array().unwrap().len() == 2).await["set_aside"].clone();
    let sentence = |held: &str| format!("it is {held}: it keeps the task set that it has");
    assert_eq!(told, json!([sentence("held (a disk)"), sentence("held on its host (a fan)")]));
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
    let before = fleet.last_revision().await;
    for switch in 0..61 {
        host.local = if switch % 2 == 0 { parked_state() } else { LocalState::default() };
        host.next_update(0).await;
    }
    let written = fleet.last_revision().await - before;
    assert!(written < 40, "{written} commits of 61 switches");
    host.local = LocalState { paused: true, ..parked_state() };
    host.next_update(0).await;
    let says = json!({"paused": true, "hold": null, "parked": {"reason": "repair"}});
    // The last report is stored.
    wait_until(&fleet, "/v1/nodes/n1", |node| node["reported_state"] == says).await;
}

#[tokio::test]
async fn x07_barriers_skip_node_but_primary_stays_when_parked_on_host() {
    let mut fleet = Fleet::start_reconciled().await;
    fleet.apply(site()).await;
    let (mut one, mut two) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    let mut three = fleet.join_group("c/gx", "n3").await;
    for host in [&mut one, &mut two, &mut three] {
        host.next_update(0).await;
    }
    wait_until(&fleet, "/v1/nodes/n1", |node| node["primary_tags"] == json!(["x"])).await;
    let waits = wait_until(&fleet, "/v1/nodes/n2/resolved", |node| node["waits"][0]["count"] == 2).await["waits"].clone();
    let why = |node: &str| json!({"node": node, "why": "a has not succeeded there"});
    assert_eq!((&waits[0]["task"], &waits[0]["selector"]), (&json!("a"), &json!("tags x")));
    let named = waits[0]["waits_for"].as_array().unwrap();
    assert!(named.contains(&why("n1")) && named.contains(&why("n3")), "{waits}");
    wait_until_settled(&fleet).await;

    for (host, reason) in [(&mut one, "repair"), (&mut three, "move")] {
        host.local = LocalState { parked: Some(reason.to_owned()), ..LocalState::default() };
        host.next_update(0).await;
    }
    assert_eq!(wait_for_barriers(&mut two, 1).await, ["a"]);
    let node = fleet.read("/v1/nodes/n1").await;
    assert_eq!(node["reported_state"], json!({"paused": false, "hold": null, "parked": {"reason": "repair"}}));
    assert_eq!(node["parked"], json!(false), "what operators say is theirs");
    assert!(node["findings"].to_string().contains("it is parked on its host (repair)"), "{node}");
    three.local = LocalState::default();
    three.next_update(0).await;
    wait_until_settled(&fleet).await;
    let (first, third) = (fleet.read("/v1/nodes/n1").await, fleet.read("/v1/nodes/n3").await);
    assert_eq!((&first["primary_tags"], &third["primary_tags"]), (&json!(["x"]), &json!([])), "it keeps what it holds");
    assert!(first["findings"].to_string().contains("primary.parked"), "{first}");
    three.local = LocalState { parked: Some("move".to_owned()), ..LocalState::default() };
    three.next_update(0).await;
    assert_eq!(wait_for_barriers(&mut two, 1).await, ["a"]);

    // Repeating the same report writes nothing and has the same effect, also after a restart.
    wait_until_settled(&fleet).await;
    for host in [&mut one, &mut two, &mut three] {
        host.next_update(0).await;
        host.next_update(0).await;
    }
    store_confirmations(&fleet.parts().desired, &*fleet.parts().intake).await;
    let before = fleet.last_revision().await;
    one.next_update(0).await;
    fleet = fleet.restart(reconciled_options()).await;
    for host in [&mut one, &mut two, &mut three] {
        host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    }
    assert_eq!(wait_for_barriers(&mut two, 1).await, ["a"], "open before the parked hosts are heard again");
    for host in [&mut one, &mut three] {
        host.next_update(0).await;
    }
    wait_until_settled(&fleet).await;
    assert_eq!(fleet.last_revision().await, before, "a quiet restart writes nothing");

    assert_eq!(stored_state_count(&fleet).await, 2);
    let (status, body) = fleet.request(Method::DELETE, "/v1/nodes/n1", &Value::Null).await;
    assert_eq!((status, stored_state_count(&fleet).await), (204, 1), "{body}");
    three.local = LocalState::default();
    three.next_update(0).await;
    assert_eq!(stored_state_count(&fleet).await, 0, "kept for as long as it is said");
    fleet.controller.stop().await;
}

/// Waits until the reconciler has resolved the last commit and has nothing more to write: each primary that it found is
/// stored.
async fn wait_until_settled(fleet: &Fleet) {
    let cache = fleet.parts().registry.cache();
    let are_stored = |model: &Model| {
        let mut clusters = model.fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid));
        clusters.all(|cluster| model.fleet.unstored_holders(cluster).is_empty())
    };
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let head = fleet.parts().registry.store().head().await.unwrap();
        let model = cache.model();
        if fleet.parts().desired.resolved_revision().0 >= head.get() && model.revision >= head && are_stored(&model) {
            return;
        }
        assert!(Instant::now() < deadline, "the reconciler does not come to an end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn barrier_waits_when_node_is_paused_on_host() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site()).await;
    let (mut one, mut two) = (fleet.join_group("c/gx", "n1").await, fleet.join_group("c/gy", "n2").await);
    one.local = LocalState { paused: true, ..LocalState::default() };
    one.next_update(0).await;
    two.next_update(0).await;
    let why = json!([{"node": "n1", "why": "it was paused on its host"}]);
    let body = wait_until(&fleet, "/v1/nodes/n2/resolved", |node| node["waits"][0]["waits_for"] == why).await;
    assert_eq!(body["waits"][0]["count"], json!(1));
    let node = fleet.read("/v1/nodes/n1").await;
    assert!(node["findings"].to_string().contains("it was paused on its host: nothing is applied there"), "{node}");

    // After a resume the host runs its task, and the result opens the barrier.
    one.local = LocalState::default();
    while one
        .held_desired
        .is_none_or(|held| fleet.parts().desired.digests(one.node).is_none_or(|(_, task_set)| task_set != held.task_set))
    {
        one.next_update(50).await;
    }
    one.report_success("a").await;
    assert_eq!(wait_for_barriers(&mut two, 1).await, ["a"]);
    let body = fleet.read("/v1/nodes/n2/resolved").await;
    assert_eq!(body["waits"], json!([]));
    fleet.controller.stop().await;
}

#[tokio::test]
async fn host_hold_keeps_task_set_while_labels_change() {
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
    let (_, before) = fleet.parts().desired.digests(host.node).unwrap();
    let roles = json!({"roles": ["rx", "ry"]});
    let (status, body) = fleet.request(Method::PUT, "/v1/nodes/n1/roles", &roles).await;
    assert_eq!(status, 200, "{body}");
    wait_until_settled(&fleet).await;
    assert_eq!(fleet.parts().desired.digests(host.node).unwrap().1, before, "held");
    host.local = parked_state();
    host.next_update(0).await;
    wait_until_settled(&fleet).await;
    assert_ne!(fleet.parts().desired.digests(host.node).unwrap().1, before, "no longer held");
    fleet.controller.stop().await;
}

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
    assert!(matches!(answer, CheckInResponse::Current(news) if news.observation == Some(digest)), "it is stored");
    for (kind, narrowed, lost) in [
        ("Cluster", json!({"release": "site@1", "host_labels": {"accept": ["rack"]}}), json!({"zone": 1})),
        ("NodeGroup", json!({"cluster": "c", "roles": ["rx"], "labels": {"rack": null}}), json!({"rack": 1})),
        ("NodeGroup", json!({"cluster": "c", "roles": ["rx"], "labels": {"rack": "8"}}), json!({})),
    ] {
        let mut object = narrowed;
        object["kind"] = json!(kind);
        object["name"] = json!(if kind == "Cluster" { "c" } else { "gx" });
        let (status, answer) = fleet.request(Method::POST, "/v1/apply?dry_run=true", &json!({"objects": [object]})).await;
        assert_eq!((status, &answer["lost_labels"]), (200, &lost), "{object}: {answer}");
    }
}
