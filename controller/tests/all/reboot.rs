//! The request for a reboot of a host: when it is refused, and that its lease is sent only in the boot that it ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use hyper::Method;
use serde_json::{Value, json};
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::observed::{LocalState, Report};
use stemma_wire::message::signed::{Grant, LeaseKind, SignedGrant};
use uuid::Uuid;

use crate::fleet::{Fleet, Host, call, idle_check_in, read_until};
use crate::states::{site, start_fleet};

/// The id of the boot in which the hosts of these tests are.
const BOOT: [u8; 16] = [1; 16];

/// Checks in with a report in this boot, and returns the leases for a reboot in the response.
async fn check_in_at(host: &mut Host, boot_id: [u8; 16], report: Option<Report>) -> Vec<SignedGrant> {
    let message = CheckIn { boot_id, report, local: host.local.clone(), ..idle_check_in(host.held_desired, 0) };
    match call(&mut host.client, "/agent/v1/checkin", &message).await.unwrap() {
        CheckInResponse::Current(update) => update.grants.into_iter().filter(is_reboot).collect(),
        CheckInResponse::Superseded => panic!("no other check-in exists"),
    }
}

fn is_reboot(grant: &SignedGrant) -> bool {
    matches!(grant.grant, Grant::Lease { kind: LeaseKind::Reboot, .. })
}

/// Returns the report of an agent in this boot that waits for a reboot.
fn report(boot_id: [u8; 16]) -> Report {
    report_of_task(boot_id, "kernel")
}

/// As [`report`], for a reboot that this task asks for.
fn report_of_task(boot_id: [u8; 16], task: &str) -> Report {
    let boot = json!(Uuid::from_bytes(boot_id)).to_string();
    let wish = json!({"since": 1_700_000_000, "tasks": [{"task": task, "reason": "a new kernel"}]}).to_string();
    let facts = [("agent.boot".to_owned(), boot), ("agent.reboot".to_owned(), wish)];
    Report { agent_version: "0.1.0".into(), facts: facts.into(), ..Report::default() }
}

/// Requests a reboot of the node `n1`. Returns the status, and the message of the error.
async fn request(fleet: &Fleet) -> (u16, String) {
    let (status, body) = fleet.request(Method::POST, "/v1/nodes/n1/reboot", &Value::Null).await;
    (status, body["error"]["message"].as_str().unwrap_or_default().to_owned())
}

/// Reads the node `n1` until the condition is true.
async fn node_when(fleet: &Fleet, is_met: impl Fn(&Value) -> bool) -> Value {
    read_until("/v1/nodes/n1", async || fleet.read("/v1/nodes/n1").await, is_met).await
}

#[tokio::test]
async fn reboot_lease_is_sent_only_in_requested_boot() {
    let fleet = start_fleet(site("1")).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    host.first_state().await;
    assert_eq!(check_in_at(&mut host, BOOT, Some(report(BOOT))).await, []);
    let node = node_when(&fleet, |node| node["reboot"].is_object() && node["connection"] == "connected").await;
    assert_eq!(node["reboot"]["tasks"], json!([{"task": "kernel", "reason": "a new kernel"}]));
    assert_eq!(node["reboot"]["since"], "2023-11-14T22:13:20+00:00");
    let findings = node["findings"].as_array().unwrap().iter().find(|finding| finding["code"] == "reboot.wanted");
    let message = findings.unwrap()["message"].as_str().unwrap();
    assert!(
        message.contains("task kernel waits for a reboot: run `stemma node reboot n1`; the reason: a new kernel"),
        "{message}"
    );

    assert_eq!(request(&fleet).await, (202, String::new()));
    let first = check_in_at(&mut host, BOOT, None).await;
    assert_eq!(first.len(), 1, "the lease is sent");
    // A change of a label signs the state again, and not the lease.
    fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx", "labels": {"a": "b"}}])).await;
    host.first_state().await;
    assert_eq!(request(&fleet).await.0, 202);
    let second = check_in_at(&mut host, BOOT, None).await;
    assert!(second[0].revision > first[0].revision, "each request has a later revision");
    assert_eq!(check_in_at(&mut host, [2; 16], None).await, [], "the host has booted");
    assert_eq!(check_in_at(&mut host, BOOT, None).await, [], "the lease does not come back");

    let audit = fleet.read("/v1/audit?object=node/n1").await;
    let parts = audit["audit"].as_array().unwrap().iter().flat_map(|entry| entry["objects"].as_array().unwrap());
    let requests = parts.filter(|object| object["part"] == "reboot" && object["part_action"] == "requested").count();
    assert_eq!(requests, 2, "{audit}");
}

#[tokio::test]
async fn explained_task_names_awaited_reboot() {
    let fleet = start_fleet(site("1")).await;
    let mut host = fleet.join_group("c/gx", "n1").await;
    host.first_state().await;
    assert_eq!(check_in_at(&mut host, BOOT, Some(report_of_task(BOOT, "a"))).await, []);
    node_when(&fleet, |node| node["reboot"].is_object()).await;
    let explanation = fleet.read("/v1/nodes/n1/explain?task=a").await;
    let expected = "it waits for a reboot of its host, for which it has asked: a new kernel: run `stemma node reboot n1`";
    assert_eq!(explanation["set_aside"], json!([expected]), "{explanation}");
}

#[tokio::test]
async fn reboot_is_refused_when_host_is_absent_old_or_frozen() {
    let fleet = start_fleet(site("1")).await;
    fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx"}])).await;
    let refused = |reason: &str| (400, format!("the host of node n1 cannot be rebooted now: {reason}; nothing was requested"));
    assert_eq!(request(&fleet).await, refused("its agent is not connected"));
    fleet.request(Method::DELETE, "/v1/nodes/n1", &Value::Null).await;

    let mut host = fleet.join_group("c/gx", "n1").await;
    host.first_state().await;
    check_in_at(&mut host, BOOT, Some(Report { agent_version: "0.0.9".into(), ..Report::default() })).await;
    node_when(&fleet, |node| node["connection"] == "connected").await;
    assert_eq!(request(&fleet).await, refused("its agent is of an older version, which does not reboot its host"));

    host.local = LocalState { paused: true, ..LocalState::default() };
    check_in_at(&mut host, BOOT, Some(report(BOOT))).await;
    node_when(&fleet, |node| node["reported_state"]["paused"] == true).await;
    assert_eq!(request(&fleet).await, refused("it is paused on its host"));
    host.local = LocalState::default();
    check_in_at(&mut host, BOOT, None).await;
    node_when(&fleet, |node| node["reported_state"]["paused"] != true).await;

    fleet.apply(json!([{"kind": "Node", "name": "n1", "nodegroup": "c/gx", "mode": "noop"}])).await;
    node_when(&fleet, |node| node["mode"] == "noop").await;
    assert_eq!(request(&fleet).await, refused("its mode is not apply"));
    assert_eq!(check_in_at(&mut host, BOOT, None).await, [], "nothing was requested");
    assert_eq!(fleet.request(Method::POST, "/v1/nodes/nobody/reboot", &Value::Null).await.0, 404);
}
