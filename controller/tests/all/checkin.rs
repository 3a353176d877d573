//! The whole path of a host: init, run, token, enrolment, a signed desired state, waiting check-ins, superseded
//! check-ins, content.

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

#[tokio::test]
async fn check_in_returns_signed_state_once_after_join() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    let news = host.next_update(0).await;
    let desired = news.desired.expect("it holds nothing yet");
    let root = fleet.parts().authority.root().clone();
    let verifier = Verifier::new(fleet.parts().fleet.clone(), &[root]).unwrap();
    verifier.check_desired(host.node, WireVersion::FIRST, &desired, SystemClock.unix_seconds()).unwrap();
    let known: Known = postcard::from_bytes(&desired.known.unwrap()).unwrap();
    assert_eq!(known.labels["tier"].value, "gold");
    let news = host.next_update(0).await;
    assert_eq!(news.desired, None, "equal digests are never sent");
    assert!(news.observation.is_some(), "the observation is stored by now");
    fleet.controller.stop().await;
}

#[tokio::test]
async fn waiting_check_in_returns_only_when_state_changes() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.advance_revision(7).await;
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    host.next_update(0).await;
    let began = Instant::now();
    host.next_update(300).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "nothing changed, so it was held");
    let node = host.node;
    let waiting = tokio::spawn(async move { host.next_update(30_000).await });
    wait_until(|| fleet.parts().desired.waiting_check_ins() == 1).await;
    fleet.publish(node, 6, desired_state("gold", None, &[]));
    fleet.publish(node, 7, desired_state("silver", None, &[]));
    let news = waiting.await.unwrap();
    let desired = news.desired.unwrap();
    assert_eq!(desired.revision.0, 7);
    assert!(desired.known.is_some() && desired.task_set.is_none(), "the part that it holds is left out");
    wait_until(|| fleet.parts().desired.waiting_check_ins() == 0).await;
}

#[tokio::test]
async fn check_in_supersedes_waiting_one() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    let mut second = fleet.client(host.chain.clone(), host.key.clone_key());
    let first = tokio::spawn(async move { host.check_in(30_000).await });
    wait_until(|| fleet.parts().desired.waiting_check_ins() == 1).await;
    let answer: CheckInResponse = call(&mut second, "/agent/v1/checkin", &idle_check_in(None, 0)).await.unwrap();
    assert!(matches!(answer, CheckInResponse::Current(_)));
    assert_eq!(first.await.unwrap(), Ok(CheckInResponse::Superseded));
}

#[tokio::test]
async fn stop_answers_waiting_check_in() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.next_update(0).await;
    let waiting = tokio::spawn(async move { host.check_in(30_000).await });
    wait_until(|| fleet.parts().desired.waiting_check_ins() == 1).await;
    // The check-in asks to wait longer than a stopping listener waits for responses before it closes their connections.
    fleet.controller.stop().await;
    assert!(matches!(waiting.await.unwrap(), Ok(CheckInResponse::Current(_))));
}

#[tokio::test]
async fn content_is_served_while_desired_state_names_hash() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let mut other = fleet.join("web-2").await;
    let body = vec![42; 200_000];
    let blob = hash_content(&body);
    let sender = ShareHolder { name: "root".into(), cluster: None, is_fleet_admin: true };
    fleet.parts().blobs.put(blob, &body, &sender).unwrap();
    let task = ProfileTask {
        id: "site-conf".into(),
        definition: "{}".into(),
        references: Vec::new(),
        after: Vec::new(),
        barriers: Vec::new(),
    };
    let profile = Profile { tasks: vec![task] };
    let named = desired_state("gold", Some(&profile), &[blob]);
    let hash = named.profile.as_ref().unwrap().for_version(WireVersion::FIRST).name;
    fleet.publish(host.node, 5, named);
    let (profile_path, blob_path) = (content_path("profiles", hash), content_path("blobs", blob));
    let got = send_request(&mut host.client, Method::GET, &profile_path, "").await;
    assert_eq!(postcard::from_bytes::<Profile>(got.body()).unwrap(), profile);
    let got = send_request(&mut host.client, Method::GET, &blob_path, "").await;
    assert_eq!(got.body().as_ref(), body.as_slice());
    for path in [&profile_path, &blob_path] {
        let got = error_response(&send_request(&mut other.client, Method::GET, path, "").await);
        assert_eq!((got.status, got.kind.as_str()), (404, "object.not_found"), "another node's state names it");
    }
    fleet.publish(host.node, 6, desired_state("gold", None, &[]));
    for path in [&profile_path, &blob_path] {
        assert_eq!(send_request(&mut host.client, Method::GET, path, "").await.status(), 404, "nothing names it any more");
    }
}

fn content_path(kind: &str, hash: Hash) -> String {
    format!("/agent/v1/{kind}/{hash}")
}

/// Long enough that the test alone decides whether a host is silent, however long its steps take.
const LONG_SILENCE: Duration = Duration::from_hours(1);
const AT_ONCE: Duration = Duration::from_millis(1);

/// Publishes a state in which the host counts as silent after this time.
fn publish_silence_limit(fleet: &Fleet, node: Uuid, revision: u64, silent_after: Duration) {
    let mut released = desired_state("gold", None, &[]);
    released.silent_after = silent_after;
    fleet.publish(node, revision, released);
}

/// Returns what is stored about a host's silence, if anything is.
fn is_recorded_lost(fleet: &Fleet, node: Uuid) -> Option<bool> {
    fleet.parts().registry.cache().model().silence.get(&node).map(|seen| seen.lost)
}

#[tokio::test]
async fn liveness_is_stored_only_when_silence_starts_or_ends() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let node = host.node;
    publish_silence_limit(&fleet, node, 5, LONG_SILENCE);
    host.next_update(0).await;
    let before = fleet.last_revision().await;
    assert_eq!(is_recorded_lost(&fleet, node), None, "one that was never silent has no record");
    publish_silence_limit(&fleet, node, 6, AT_ONCE);
    wait_until(|| is_recorded_lost(&fleet, node) == Some(true)).await;
    assert_eq!(fleet.last_revision().await, before + 1);
    publish_silence_limit(&fleet, node, 7, LONG_SILENCE);
    for _ in 0..3 {
        host.next_update(0).await;
    }
    assert_eq!(is_recorded_lost(&fleet, node), Some(false));
    assert_eq!(fleet.last_revision().await, before + 2);
}

/// All hosts are checked in turn. So between two silences of one host, every other host was checked.
#[tokio::test]
async fn y06_liveness_ignores_host_when_check_in_waits() {
    let fleet = Fleet::start().await;
    fleet.advance_revision(20).await;
    let (mut host, mut other) = (fleet.join("web-1").await, fleet.join("web-2").await);
    let (node, other_node) = (host.node, other.node);
    publish_silence_limit(&fleet, node, 5, LONG_SILENCE);
    publish_silence_limit(&fleet, other_node, 6, LONG_SILENCE);
    host.next_update(0).await;
    other.next_update(0).await;
    let waiting = tokio::spawn(async move { host.next_update(60_000).await });
    wait_until(|| fleet.parts().desired.is_waiting(node)).await;
    publish_silence_limit(&fleet, node, 7, AT_ONCE);
    for revision in [8, 10] {
        publish_silence_limit(&fleet, other_node, revision, AT_ONCE);
        wait_until(|| is_recorded_lost(&fleet, other_node) == Some(true)).await;
        publish_silence_limit(&fleet, other_node, revision + 1, LONG_SILENCE);
        other.next_update(0).await;
        assert_eq!(is_recorded_lost(&fleet, other_node), Some(false));
    }
    // On a machine that needs more than a minute for this, the check-in is no longer waiting.
    let (written, is_held) = (is_recorded_lost(&fleet, node), fleet.parts().desired.is_waiting(node));
    assert!(written.is_none() || !is_held, "{written:?}");
    waiting.abort();
}

#[tokio::test]
async fn oversized_desired_state_is_a_finding_and_unpublished() {
    let fleet = Fleet::start_reconciled().await;
    let annotations = |bytes: usize| (0..50).map(|n| (format!("a{n}"), "v".repeat(bytes))).collect::<BTreeMap<_, _>>();
    let accepted: Vec<String> = (0..15).map(|n| format!("l{n}")).collect();
    let cluster = |bytes: usize| json!([{"kind": "Cluster", "name": "c", "annotations": annotations(bytes), "host_labels": {"accept": accepted}}]);
    fleet.apply(cluster(4094)).await;
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    wait_until(|| fleet.parts().desired.published_count.get() > 0).await;
    // The host's own labels cause this, not a write of an operator.
    let label = ReportedLabel { value: "v".repeat(4090), source: "labels.d/x:1".into() };
    let labels = (0..15).map(|n| (format!("l{n}"), label.clone())).collect();
    assert!(observe(&mut host, &Observation { labels, ..Observation::default() }).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(node["findings"].to_string().contains("desired.too_large"), "{}", node["findings"]);
    let known: Known = postcard::from_bytes(&next_desired(&mut host).await.known.unwrap()).unwrap();
    assert_eq!(known.labels.len(), 0, "what was published before it became too large");
    fleet.apply(cluster(2000)).await;
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(!node["findings"].to_string().contains("desired.too_large"), "{}", node["findings"]);
    let known: Known = postcard::from_bytes(&next_desired(&mut host).await.known.unwrap()).unwrap();
    assert_eq!(known.labels.len(), 15);
}

/// Returns the next desired state. A check-in may first be answered for another reason.
async fn next_desired(host: &mut Host) -> SignedDesired {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if let Some(desired) = host.next_update(500).await.desired {
            return desired;
        }
    }
    panic!("it is told nothing");
}

#[tokio::test]
async fn release_pins_versions_and_node_deletion_removes_records() {
    let fleet = Fleet::start_reconciled().await;
    let release = |name: &str, more: Value| {
        let mut release = json!({"kind": "Release", "name": name, "version": "1"});
        release.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
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
        let snapshot = fleet.parts().registry.store().snapshot().await.unwrap();
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
    assert_eq!((status, &body["error"]["type"]), (409, &json!("object.in_use")), "also when it runs nowhere: {body}");
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
    let mut copy = fleet.client(host.chain.clone(), host.key.clone_key());
    let (node, principal) = (host.node, format!("node/{}", host.node));
    for _ in 0..3 {
        assert_eq!(fleet.refused_count("identity_doubled"), 0);
        host.next_update(0).await;
        let said = CheckIn { boot_id: [2; 16], ..idle_check_in(None, 0) };
        let _told: CheckInResponse = call(&mut copy, "/agent/v1/checkin", &said).await.unwrap();
    }
    fleet.wait_until_audited(&principal, "identity_doubled", 1).await;
    assert_eq!(fleet.refused_count("identity_doubled"), 1, "it is told once, with both addresses");
    let entry = &fleet.read("/v1/audit?refused=true").await["audit"][0];
    let port = |field: &str| entry[field].as_str().and_then(|at| at.strip_prefix("127.0.0.1:")).map(str::to_owned);
    assert!(port("address").is_some() && port("other_address").is_some(), "{entry}");
    assert_ne!(port("address"), port("other_address"));
    let shown = fleet.read(&format!("/v1/nodes/{node}")).await;
    assert_eq!(shown["state"], "failed");
    let found = &shown["findings"][0];
    assert_eq!((&found["code"], &found["severity"]), (&json!("identity.doubled"), &json!("error")));
    let message = found["message"].as_str().unwrap();
    assert_eq!(message.matches("127.0.0.1:").count(), 2, "both addresses: {message}");
    // Every response that lists the node's findings lists all of them.
    let labelled = json!([{"kind": "Node", "name": "web-1", "nodegroup": "c/g", "labels": {"a": "b"}}]);
    let (_, written) = fleet.request(Method::POST, "/v1/apply", &json!({ "objects": labelled })).await;
    let resolved = fleet.read(&format!("/v1/nodes/{node}/resolved")).await;
    for told in [written, resolved, fleet.read("/v1/clusters/c/validate").await] {
        assert_eq!(told["findings"][0]["code"], "identity.doubled", "{told}");
    }
    assert!(fleet.parts().metrics.text_for_cluster(None).contains("stemma_nodes_doubled 1\n"));
    host.next_update(0).await;
    // Also if the node's group does not exist, a state in which no write leaves it.
    let group = fleet.read("/v1/clusters/c/nodegroups/g").await["uuid"].as_str().unwrap().parse().unwrap();
    let gone = Transaction::new().delete(key::object(Kind::NodeGroup, group));
    let revision = fleet.parts().registry.store().commit(gone).await.unwrap();
    fleet.parts().registry.cache().wait_for(revision).await;
    let shown = fleet.read(&format!("/v1/nodes/{node}")).await;
    let codes: Vec<_> = shown["findings"].as_array().unwrap().iter().map(|found| &found["code"]).collect();
    assert_eq!(codes, ["node.incomplete", "identity.doubled"]);
}

#[tokio::test]
async fn refused_check_in_is_found_by_node_when_deleted() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let odd = CheckIn { observation_digest: PartDigest([9; 32]), ..idle_check_in(None, 0) };
    call::<_, CheckInResponse>(&mut host.client, "/agent/v1/checkin", &odd).await.unwrap_err();
    let node = host.node;
    fleet.wait_until_audited(&format!("node/{node}"), "message.malformed", 1).await;
    for is_there in [true, false] {
        for (object, expected) in [
            ("node/web-1".to_owned(), 1),
            (format!("node/{node}"), 1),
            (node.to_string(), 1),
            (format!("cluster/{node}"), 0),
            ("node/web-2".to_owned(), 0),
        ] {
            let list = fleet.read(&format!("/v1/audit?refused=true&object={object}")).await;
            assert_eq!(list["audit"].as_array().unwrap().len(), expected, "{object}, there: {is_there}");
        }
        let deleted = fleet.request(Method::DELETE, "/v1/nodes/web-1", &Value::Null).await;
        assert_eq!(deleted.0, if is_there { 204 } else { 404 }, "{deleted:?}");
    }
}

/// A confirmation that was sent before the host got a newer state does not confirm the newer one. And confirmations of
/// deleted hosts, more than fit into one commit, must not prevent those of other hosts from being stored.
#[tokio::test]
async fn y06_confirmation_is_stored_only_for_recorded_state() {
    let fleet = Fleet::start().await;
    let (one, other) = (fleet.join("web-1").await.node, fleet.join("web-2").await.node);
    let (intake, registry) = (&fleet.parts().intake, &fleet.parts().registry);
    let epoch: Uuid = fleet.read("/v1/fleet").await["epoch"].as_str().unwrap().parse().unwrap();
    let told = |revision: u64| HeldRevision { epoch, revision };
    let parts = |digest: u8| SentParts { known: PartDigest([digest; 32]), task_set: PartDigest([9; 32]) };
    for node in [one, other] {
        intake.store_sent(node, told(5), parts(1)).await.unwrap();
    }
    let unconfirmed = async |revision: u64, digest: u8| {
        let of = |node| ConfirmedState { node, sent_revision: told(revision), parts: parts(digest) };
        let mut confirmed = vec![of(Uuid::from_u128(1)); 1000];
        confirmed.push(of(one));
        intake.store_confirmations(confirmed).await.unwrap();
        registry.cache().wait_for(registry.store().head().await.unwrap()).await;
        let model = registry.cache().model();
        [one, other].map(|node| model.sent_records.get(&node).unwrap().unconfirmed)
    };
    assert_eq!(unconfirmed(4, 1).await, [true, true], "another revision");
    assert_eq!(unconfirmed(5, 2).await, [true, true], "other parts");
    assert_eq!(unconfirmed(5, 1).await, [false, true]);
    intake.store_sent(one, told(6), parts(2)).await.unwrap();
    assert_eq!(unconfirmed(5, 1).await, [true, true], "it was told another thing meanwhile");
    assert_eq!(unconfirmed(6, 2).await, [false, true]);
}
