//! Hosts that join and check in: signed desired states, waiting and superseded check-ins, content by its hash, silence.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::intake::{ConfirmedState, Intake as _, SentParts};
use stemma_controller::records::key;
use stemma_controller::store::{ListQuery, Transaction};
use stemma_core::epoch::HeldRevision;
use stemma_core::object::Kind;
use stemma_core::shares::ShareHolder;
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::desired::{Known, Profile, ProfileTask};
use stemma_wire::message::observed::{Observation, ReportedLabel};
use stemma_wire::message::signed::SignedDesired;
use stemma_wire::message::{Hash, PartDigest, WireVersion, hash_content};
use stemma_wire::sign::Verifier;
use uuid::Uuid;

use crate::fleet::{Fleet, Host, TIMEOUT, call, desired_state, error_response, idle_check_in, send_request, wait_until};
use crate::reported::observe;

/// The host checks the signature of the state with the fleet's root key. The next check-in gets no state.
#[tokio::test]
async fn check_in_returns_signed_state_once_after_join() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    let update = host.next_update(0).await;
    let desired = update.desired.expect("a state for a host that has none");
    let root = fleet.components().authority.root().clone();
    let verifier = Verifier::new(fleet.components().fleet.clone(), &[root]).unwrap();
    verifier.check_desired(host.node, WireVersion::FIRST, &desired, SystemClock.unix_seconds()).unwrap();
    let known: Known = postcard::from_bytes(&desired.known.unwrap()).unwrap();
    assert_eq!(known.labels["tier"].value, "gold");
    let update = host.next_update(0).await;
    assert_eq!(update.desired, None, "a state that the host has is not sent again");
    assert!(update.observation.is_some(), "the controller confirms that the observation is stored");
    fleet.controller.stop().await;
}

/// The state of revision 6 equals that of revision 5, so it does not end the wait. The state of revision 7 ends the
/// wait.
#[tokio::test]
async fn waiting_check_in_returns_only_when_state_changes() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.advance_revision(7).await;
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    host.next_update(0).await;
    let start_time = Instant::now();
    host.next_update(300).await;
    assert!(start_time.elapsed() >= Duration::from_millis(300), "the controller holds the check-in while nothing changes");
    let node = host.node;
    let waiting_check_in = tokio::spawn(async move { host.next_update(30_000).await });
    wait_until(|| fleet.components().desired.waiting_check_ins() == 1).await;
    fleet.publish(node, 6, desired_state("gold", None, &[]));
    fleet.publish(node, 7, desired_state("silver", None, &[]));
    let update = waiting_check_in.await.unwrap();
    let desired = update.desired.unwrap();
    assert_eq!(desired.revision.0, 7);
    assert!(desired.known.is_some() && desired.task_set.is_none(), "the task set that the host has is left out");
    wait_until(|| fleet.components().desired.waiting_check_ins() == 0).await;
}

/// A host sends a second check-in on another connection. The first one then ends at once.
#[tokio::test]
async fn check_in_supersedes_waiting_one() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    let mut second_client = fleet.client(host.chain.clone(), host.key.clone_key());
    let first_check_in = tokio::spawn(async move { host.check_in(30_000).await });
    wait_until(|| fleet.components().desired.waiting_check_ins() == 1).await;
    let answer: CheckInResponse = call(&mut second_client, "/agent/v1/checkin", &idle_check_in(None, 0)).await.unwrap();
    assert!(matches!(answer, CheckInResponse::Current(_)));
    assert_eq!(first_check_in.await.unwrap(), Ok(CheckInResponse::Superseded));
}

/// A controller that stops answers a check-in that it holds open, and does not cut the connection.
#[tokio::test]
async fn stop_answers_waiting_check_in() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    let waiting_check_in = tokio::spawn(async move { host.check_in(30_000).await });
    wait_until(|| fleet.components().desired.waiting_check_ins() == 1).await;
    // The requested wait is longer than a stopping listener waits for responses before it closes connections.
    fleet.controller.stop().await;
    assert!(matches!(waiting_check_in.await.unwrap(), Ok(CheckInResponse::Current(_))));
}

/// A host can fetch a profile and a blob only while its own desired state names them.
#[tokio::test]
async fn content_is_served_while_desired_state_names_hash() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let mut other_host = fleet.join("web-2").await;
    let body = vec![42; 200_000];
    let blob = hash_content(&body);
    let sender = ShareHolder { name: "root".into(), cluster: None, is_fleet_admin: true };
    fleet.components().blobs.put(blob, &body, &sender).unwrap();
    let task = ProfileTask {
        id: "site-conf".into(),
        definition: "{}".into(),
        references: Vec::new(),
        after: Vec::new(),
        barriers: Vec::new(),
    };
    let profile = Profile { tasks: vec![task] };
    let state = desired_state("gold", Some(&profile), &[blob]);
    let hash = state.profile.as_ref().unwrap().for_version(WireVersion::FIRST).name;
    fleet.publish(host.node, 5, state);
    let (profile_path, blob_path) = (content_path("profiles", hash), content_path("blobs", blob));
    let answer = send_request(&mut host.client, Method::GET, &profile_path, "").await;
    assert_eq!(postcard::from_bytes::<Profile>(answer.body()).unwrap(), profile);
    let answer = send_request(&mut host.client, Method::GET, &blob_path, "").await;
    assert_eq!(answer.body().as_ref(), body.as_slice());
    for path in [&profile_path, &blob_path] {
        let answer = error_response(&send_request(&mut other_host.client, Method::GET, path, "").await);
        assert_eq!((answer.status, answer.kind.as_str()), (404, "object.not_found"), "only another node's state names the hash");
    }
    fleet.publish(host.node, 6, desired_state("gold", None, &[]));
    for path in [&profile_path, &blob_path] {
        assert_eq!(
            send_request(&mut host.client, Method::GET, path, "").await.status(),
            404,
            "no desired state names the hash any more"
        );
    }
}

fn content_path(kind: &str, hash: Hash) -> String {
    format!("/agent/v1/{kind}/{hash}")
}

/// Time without a check-in after which a host is silent. No host reaches it in a test, however slow the machine is.
const LONG_SILENCE: Duration = Duration::from_hours(1);
/// Time without a check-in after which a host is silent. Each host reaches it at once.
const SHORT_SILENCE: Duration = Duration::from_millis(1);

/// Publishes a desired state for the node. Its host counts as silent after `silent_after` without a check-in.
fn publish_silence_limit(fleet: &Fleet, node: Uuid, revision: u64, silent_after: Duration) {
    let mut state = desired_state("gold", None, &[]);
    state.silent_after = silent_after;
    fleet.publish(node, revision, state);
}

/// Returns whether the store records the host as lost, or `None` if it has no record about silence of the host.
fn is_recorded_lost(fleet: &Fleet, node: Uuid) -> Option<bool> {
    fleet.components().registry.cache().model().silence.get(&node).map(|record| record.lost)
}

/// The start and the end of a silence are one commit each. Other check-ins without news write nothing.
#[tokio::test]
async fn liveness_is_stored_only_when_silence_starts_or_ends() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let node = host.node;
    publish_silence_limit(&fleet, node, 5, LONG_SILENCE);
    host.next_update(0).await;
    let revision_before = fleet.last_revision().await;
    assert_eq!(is_recorded_lost(&fleet, node), None, "a host that was never silent has no record");
    publish_silence_limit(&fleet, node, 6, SHORT_SILENCE);
    wait_until(|| is_recorded_lost(&fleet, node) == Some(true)).await;
    assert_eq!(fleet.last_revision().await, revision_before + 1);
    publish_silence_limit(&fleet, node, 7, LONG_SILENCE);
    for _ in 0..3 {
        host.next_update(0).await;
    }
    assert_eq!(is_recorded_lost(&fleet, node), Some(false));
    // The check that stored the silence then stores what hosts have confirmed. If a check-in here came first, this is a
    // commit too.
    let commits = fleet.last_revision().await - revision_before;
    assert!((2..=3).contains(&commits), "{commits} commits");
}

/// A host whose check-in is held open is not silent. The controller checks all hosts in turn, so between two silences
/// of the other host, the controller also checked this host.
#[tokio::test]
async fn y06_liveness_ignores_host_when_check_in_waits() {
    let fleet = Fleet::start().await;
    fleet.advance_revision(20).await;
    let (mut host, mut other_host) = (fleet.join("web-1").await, fleet.join("web-2").await);
    let (node, other_node) = (host.node, other_host.node);
    publish_silence_limit(&fleet, node, 5, LONG_SILENCE);
    publish_silence_limit(&fleet, other_node, 6, LONG_SILENCE);
    host.next_update(0).await;
    other_host.next_update(0).await;
    let waiting_check_in = tokio::spawn(async move { host.next_update(60_000).await });
    wait_until(|| fleet.components().desired.is_waiting(node)).await;
    publish_silence_limit(&fleet, node, 7, SHORT_SILENCE);
    for revision in [8, 10] {
        publish_silence_limit(&fleet, other_node, revision, SHORT_SILENCE);
        wait_until(|| is_recorded_lost(&fleet, other_node) == Some(true)).await;
        publish_silence_limit(&fleet, other_node, revision + 1, LONG_SILENCE);
        other_host.next_update(0).await;
        assert_eq!(is_recorded_lost(&fleet, other_node), Some(false));
    }
    // On a machine that needs more than a minute for the steps above, the check-in has ended, and the host may be lost.
    let (lost_record, is_check_in_waiting) = (is_recorded_lost(&fleet, node), fleet.components().desired.is_waiting(node));
    assert!(lost_record.is_none() || !is_check_in_waiting, "{lost_record:?}");
    waiting_check_in.abort();
}

/// A desired state has at most 256 KiB. Fifty annotations of 4 KiB fit, but not together with 15 reported labels of 4
/// KiB.
#[tokio::test]
async fn oversized_desired_state_is_a_finding_and_unpublished() {
    let fleet = Fleet::start_reconciled().await;
    let annotations = |bytes: usize| (0..50).map(|n| (format!("a{n}"), "v".repeat(bytes))).collect::<BTreeMap<_, _>>();
    let accepted_keys: Vec<String> = (0..15).map(|n| format!("l{n}")).collect();
    let cluster = |bytes: usize| json!([{"kind": "Cluster", "name": "c", "annotations": annotations(bytes), "host_labels": {"accept": accepted_keys}}]);
    fleet.apply(cluster(4094)).await;
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    wait_until(|| fleet.components().desired.published_count.get() > 0).await;
    // The labels that the host reports make the state too large, not a write of an operator.
    let label = ReportedLabel { value: "v".repeat(4090), source: "labels.d/x:1".into() };
    let labels = (0..15).map(|n| (format!("l{n}"), label.clone())).collect();
    assert!(observe(&mut host, &Observation { labels, ..Observation::default() }).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(node["findings"].to_string().contains("desired.too_large"), "{}", node["findings"]);
    let known: Known = postcard::from_bytes(&next_desired(&mut host).await.known.unwrap()).unwrap();
    assert_eq!(known.labels.len(), 0, "the host gets the state from before it became too large");
    fleet.apply(cluster(2000)).await;
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(!node["findings"].to_string().contains("desired.too_large"), "{}", node["findings"]);
    let known: Known = postcard::from_bytes(&next_desired(&mut host).await.known.unwrap()).unwrap();
    assert_eq!(known.labels.len(), 15);
}

/// Checks in until a response contains a desired state, and returns that state. A response without one may only confirm
/// a report.
async fn next_desired(host: &mut Host) -> SignedDesired {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if let Some(desired) = host.next_update(500).await.desired {
            return desired;
        }
    }
    panic!("no desired state arrives");
}

/// A release that a released task set uses is pinned below `fixed/` with its imports, and cannot be edited, also after
/// the deletion of the node. A release that no task set uses can be edited. The deletion removes the observation.
#[tokio::test]
async fn release_pins_versions_and_node_deletion_removes_records() {
    let fleet = Fleet::start_reconciled().await;
    let release = |name: &str, fields: Value| {
        let mut release = json!({"kind": "Release", "name": name, "version": "1"});
        release.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        release
    };
    fleet
        .apply(json!([
            release("lib", json!({})),
            release("unused", json!({})),
            release("site", json!({"imports": ["lib@1"], "roles": {"r": {"tags": ["x"]}}, "tags": {"x": {}}})),
            {"kind": "Cluster", "name": "c", "release": "site@1"},
            {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["r"]},
        ]))
        .await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    assert!(observe(&mut host, &Observation::default()).await);
    next_desired(&mut host).await;
    let keys = async |prefix: &'static str| {
        let snapshot = fleet.components().registry.store().snapshot().await.unwrap();
        let list = snapshot.list(&ListQuery::prefix(prefix)).await.unwrap();
        list.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys("fixed/").await, ["fixed/lib@1", "fixed/site@1"]);
    assert_eq!((keys("observation/").await.len(), keys("observed/").await.len()), (1, 1));
    let (status, body) = fleet.request(Method::DELETE, "/v1/nodes/web-1", &Value::Null).await;
    assert_eq!(status, 204, "{body}");
    assert_eq!((keys("observation/").await, keys("observed/").await), (vec![], vec![]));
    let edit = json!({"objects": [release("lib", json!({"roles": {"late": {"tags": ["late"]}}, "tags": {"late": {}}}))]});
    let (status, body) = fleet.request(Method::POST, "/v1/apply?force=true", &edit).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (409, &json!("object.in_use")),
        "a version that was run stays pinned without its node: {body}"
    );
    fleet.apply(json!([release("unused", json!({"tags": {"late": {}}}))])).await;
}

#[tokio::test]
async fn w09_two_hosts_with_one_identity_are_reported() {
    let fleet = Fleet::start().await;
    fleet
        .apply(json!([
            {"kind": "Cluster", "name": "c"},
            {"kind": "NodeGroup", "cluster": "c", "name": "g"},
        ]))
        .await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    let mut copy_client = fleet.client(host.chain.clone(), host.key.clone_key());
    let (node, principal) = (host.node, format!("node/{}", host.node));
    for _ in 0..3 {
        assert_eq!(fleet.refused_count("identity_doubled"), 0);
        host.next_update(0).await;
        let check_in = CheckIn { boot_id: [2; 16], ..idle_check_in(None, 0) };
        let _answer: CheckInResponse = call(&mut copy_client, "/agent/v1/checkin", &check_in).await.unwrap();
    }
    fleet.wait_until_audited(&principal, "identity_doubled", 1).await;
    assert_eq!(fleet.refused_count("identity_doubled"), 1, "the copy is reported once");
    let entry = &fleet.read("/v1/audit?refused=true").await["audit"][0];
    let port = |field: &str| entry[field].as_str().and_then(|address| address.strip_prefix("127.0.0.1:")).map(str::to_owned);
    assert!(port("address").is_some() && port("other_address").is_some(), "{entry}");
    assert_ne!(port("address"), port("other_address"));
    let shown_node = fleet.read(&format!("/v1/nodes/{node}")).await;
    assert_eq!(shown_node["state"], "failed");
    let finding = &shown_node["findings"][0];
    assert_eq!((&finding["code"], &finding["severity"]), (&json!("identity.doubled"), &json!("error")));
    let message = finding["message"].as_str().unwrap();
    assert_eq!(message.matches("127.0.0.1:").count(), 2, "both addresses: {message}");
    // Every response that lists the node's findings lists all of them.
    let objects = json!([{"kind": "Node", "name": "web-1", "nodegroup": "c/g", "labels": {"a": "b"}}]);
    let (_, apply_answer) = fleet.request(Method::POST, "/v1/apply", &json!({ "objects": objects })).await;
    let resolved_answer = fleet.read(&format!("/v1/nodes/{node}/resolved")).await;
    for answer in [apply_answer, resolved_answer, fleet.read("/v1/clusters/c/validate").await] {
        assert_eq!(answer["findings"][0]["code"], "identity.doubled", "{answer}");
    }
    assert!(fleet.components().metrics.text_for_cluster(None).contains("stemma_nodes_doubled 1\n"));
    host.next_update(0).await;
    // The finding is also shown if the node's group does not exist. No write of the API leads to that state.
    let group = fleet.read("/v1/clusters/c/nodegroups/g").await["uuid"].as_str().unwrap().parse().unwrap();
    let deletion = Transaction::new().delete(key::object(Kind::NodeGroup, group));
    let revision = fleet.components().registry.store().commit(deletion).await.unwrap();
    fleet.components().registry.cache().wait_for(revision).await;
    let shown_node = fleet.read(&format!("/v1/nodes/{node}")).await;
    let codes: Vec<_> = shown_node["findings"].as_array().unwrap().iter().map(|finding| &finding["code"]).collect();
    assert_eq!(codes, ["node.incomplete", "identity.doubled"]);
}

/// The check-in has a wrong digest. The audit finds its refusal by the name and the uuid of the node, also after the
/// deletion of the node.
#[tokio::test]
async fn audit_finds_refused_check_in_of_deleted_node() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let malformed_check_in = CheckIn { observation_digest: PartDigest([9; 32]), ..idle_check_in(None, 0) };
    call::<_, CheckInResponse>(&mut host.client, "/agent/v1/checkin", &malformed_check_in).await.unwrap_err();
    let node = host.node;
    fleet.wait_until_audited(&format!("node/{node}"), "message.malformed", 1).await;
    for is_existing in [true, false] {
        for (object, expected) in [
            ("node/web-1".to_owned(), 1),
            (format!("node/{node}"), 1),
            (node.to_string(), 1),
            (format!("cluster/{node}"), 0),
            ("node/web-2".to_owned(), 0),
        ] {
            let list = fleet.read(&format!("/v1/audit?refused=true&object={object}")).await;
            assert_eq!(list["audit"].as_array().unwrap().len(), expected, "{object}, node exists: {is_existing}");
        }
        let delete_answer = fleet.request(Method::DELETE, "/v1/nodes/web-1", &Value::Null).await;
        assert_eq!(delete_answer.0, if is_existing { 204 } else { 404 }, "{delete_answer:?}");
    }
}

/// A confirmation of an earlier state does not confirm a newer one. The 1000 confirmations of an unknown host fill one
/// commit, so the confirmation of the known host is in a second commit. It must be stored nevertheless.
#[tokio::test]
async fn y06_confirmation_is_stored_only_for_recorded_state() {
    let fleet = Fleet::start().await;
    let (first_node, second_node) = (fleet.join("web-1").await.node, fleet.join("web-2").await.node);
    let (intake, registry) = (&fleet.components().intake, &fleet.components().registry);
    let epoch: Uuid = fleet.read("/v1/fleet").await["epoch"].as_str().unwrap().parse().unwrap();
    let sent_revision = |revision: u64| HeldRevision { epoch, revision };
    let parts = |digest: u8| SentParts { known: PartDigest([digest; 32]), task_set: PartDigest([9; 32]) };
    for node in [first_node, second_node] {
        intake.store_sent(node, sent_revision(5), parts(1)).await.unwrap();
    }
    let unconfirmed = async |revision: u64, digest: u8| {
        let confirmation = |node| ConfirmedState { node, sent_revision: sent_revision(revision), parts: parts(digest) };
        let mut confirmed = vec![confirmation(Uuid::from_u128(1)); 1000];
        confirmed.push(confirmation(first_node));
        intake.store_confirmations(confirmed).await.unwrap();
        registry.cache().wait_for(registry.store().head().await.unwrap()).await;
        let model = registry.cache().model();
        [first_node, second_node].map(|node| model.sent_records.get(&node).unwrap().unconfirmed)
    };
    assert_eq!(unconfirmed(4, 1).await, [true, true], "the revision differs");
    assert_eq!(unconfirmed(5, 2).await, [true, true], "the digest of the known part differs");
    assert_eq!(unconfirmed(5, 1).await, [false, true]);
    intake.store_sent(first_node, sent_revision(6), parts(2)).await.unwrap();
    assert_eq!(unconfirmed(5, 1).await, [true, true], "a newer state was sent after the confirmed one");
    assert_eq!(unconfirmed(6, 2).await, [false, true]);
}
