//! The thin line and the check-in: init, run, token, enrol, a signed desired state, parking, superseding, content.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use stemma_controller::intake::{Confirmed, Intake as _, ToldParts};
use stemma_controller::records::key;
use stemma_controller::store::{Query, Transaction};
use stemma_core::epoch::HeldRevision;
use stemma_core::object::Kind;
use stemma_core::shares::Holder;
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::desired::{Known, Profile, ProfileTask};
use stemma_wire::message::observed::{Observation, ReportedLabel};
use stemma_wire::message::signed::SignedDesired;
use stemma_wire::message::{Hash, PartDigest, WireVersion, hash_content};
use stemma_wire::sign::Verifier;
use uuid::Uuid;

use crate::fleet::{Fleet, Host, PATIENCE, call, check_in, refused, send, state, wait_until};
use crate::reported::observe;

#[tokio::test]
async fn a_host_joins_and_is_told_a_signed_state_once() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.publish(host.node, 5, state("gold", None, &[]));
    let news = host.news(0).await;
    let desired = news.desired.expect("it holds nothing yet");
    let root = fleet.parts().authority.root().clone();
    let verifier = Verifier::new(fleet.parts().fleet.clone(), &[root]).unwrap();
    verifier.check_desired(host.node, WireVersion::FIRST, &desired, SystemClock.unix_seconds()).unwrap();
    let known: Known = postcard::from_bytes(&desired.known.unwrap()).unwrap();
    assert_eq!(known.labels["tier"].value, "gold");
    let news = host.news(0).await;
    assert_eq!(news.desired, None, "equal digests are never sent");
    assert!(news.observation.is_some(), "the observation is stored by now");
    fleet.controller.stop().await;
}

#[tokio::test]
async fn a_parked_check_in_is_answered_when_the_state_changes_and_only_then() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    fleet.reach(7).await;
    fleet.publish(host.node, 5, state("gold", None, &[]));
    host.news(0).await;
    let began = Instant::now();
    host.news(300).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "nothing changed, so it was held");
    let node = host.node;
    let waiting = tokio::spawn(async move { host.news(30_000).await });
    wait_until(|| fleet.parts().desired.parked() == 1).await;
    fleet.publish(node, 6, state("gold", None, &[]));
    fleet.publish(node, 7, state("silver", None, &[]));
    let news = waiting.await.unwrap();
    let desired = news.desired.unwrap();
    assert_eq!(desired.revision.0, 7);
    assert!(desired.known.is_some() && desired.task_set.is_none(), "the part that it holds is left out");
    wait_until(|| fleet.parts().desired.parked() == 0).await;
}

#[tokio::test]
async fn a_second_check_in_supersedes_the_parked_one() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.news(0).await;
    let mut second = fleet.client(host.chain.clone(), host.key.clone_key());
    let first = tokio::spawn(async move { host.check_in(30_000).await });
    wait_until(|| fleet.parts().desired.parked() == 1).await;
    let answer: CheckInAnswer = call(&mut second, "/agent/v1/checkin", &check_in(None, 0)).await.unwrap();
    assert!(matches!(answer, CheckInAnswer::Current(_)));
    assert_eq!(first.await.unwrap(), Ok(CheckInAnswer::Superseded));
}

#[tokio::test]
async fn stopping_answers_what_is_parked() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    host.news(0).await;
    let waiting = tokio::spawn(async move { host.check_in(30_000).await });
    wait_until(|| fleet.parts().desired.parked() == 1).await;
    // Its own time is longer than the listener waits for answers before it cuts them.
    fleet.controller.stop().await;
    assert!(matches!(waiting.await.unwrap(), Ok(CheckInAnswer::Current(_))));
}

#[tokio::test]
async fn profiles_and_blobs_are_given_while_the_own_state_names_them() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let mut other = fleet.join("web-2").await;
    let body = vec![42; 200_000];
    let blob = hash_content(&body);
    let sender = Holder { name: "root".into(), within: None, is_fleet_admin: true };
    fleet.parts().blobs.put(blob, &body, &sender).unwrap();
    let task = ProfileTask {
        id: "site-conf".into(),
        definition: "{}".into(),
        references: Vec::new(),
        after: Vec::new(),
        barriers: Vec::new(),
    };
    let profile = Profile { tasks: vec![task] };
    let named = state("gold", Some(&profile), &[blob]);
    let hash = named.profile.as_ref().unwrap().form(WireVersion::FIRST).name;
    fleet.publish(host.node, 5, named);
    let (profile_path, blob_path) = (path("profiles", hash), path("blobs", blob));
    let got = send(&mut host.client, Method::GET, &profile_path, "").await;
    assert_eq!(postcard::from_bytes::<Profile>(got.body()).unwrap(), profile);
    let got = send(&mut host.client, Method::GET, &blob_path, "").await;
    assert_eq!(got.body().as_ref(), body.as_slice());
    for path in [&profile_path, &blob_path] {
        let got = refused(&send(&mut other.client, Method::GET, path, "").await);
        assert_eq!((got.status, got.kind.as_str()), (404, "object.not_found"), "another node's state names it");
    }
    fleet.publish(host.node, 6, state("gold", None, &[]));
    for path in [&profile_path, &blob_path] {
        assert_eq!(send(&mut host.client, Method::GET, path, "").await.status(), 404, "nothing names it any more");
    }
}

fn path(kind: &str, hash: Hash) -> String {
    format!("/agent/v1/{kind}/{hash}")
}

/// Whether a host is silent is up to the test, however long each of its steps takes.
const NEVER: Duration = Duration::from_hours(1);
const AT_ONCE: Duration = Duration::from_millis(1);

/// Publishes that a host is silent after this time.
fn silent_after(fleet: &Fleet, node: Uuid, revision: u64, silent_after: Duration) {
    let mut released = state("gold", None, &[]);
    released.silent_after = silent_after;
    fleet.publish(node, revision, released);
}

/// What is written of a host's silence, if anything is.
fn is_lost(fleet: &Fleet, node: Uuid) -> Option<bool> {
    fleet.parts().registry.cache().model().seen.get(&node).map(|seen| seen.lost)
}

#[tokio::test]
async fn a_silence_is_written_when_it_begins_and_when_it_ends_and_at_no_other_time() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let node = host.node;
    silent_after(&fleet, node, 5, NEVER);
    host.news(0).await;
    let before = fleet.revision().await;
    assert_eq!(is_lost(&fleet, node), None, "one that was never silent has no record");
    silent_after(&fleet, node, 6, AT_ONCE);
    wait_until(|| is_lost(&fleet, node) == Some(true)).await;
    assert_eq!(fleet.revision().await, before + 1);
    silent_after(&fleet, node, 7, NEVER);
    for _ in 0..3 {
        host.news(0).await;
    }
    assert_eq!(is_lost(&fleet, node), Some(false));
    assert_eq!(fleet.revision().await, before + 2);
}

/// All hosts are looked at in turn: between two silences of one host, each other one was looked at.
#[tokio::test]
async fn y06_a_host_whose_check_in_is_held_is_never_written_as_silent() {
    let fleet = Fleet::start().await;
    fleet.reach(20).await;
    let (mut host, mut other) = (fleet.join("web-1").await, fleet.join("web-2").await);
    let (node, other_node) = (host.node, other.node);
    silent_after(&fleet, node, 5, NEVER);
    silent_after(&fleet, other_node, 6, NEVER);
    host.news(0).await;
    other.news(0).await;
    let waiting = tokio::spawn(async move { host.news(60_000).await });
    wait_until(|| fleet.parts().desired.is_parked(node)).await;
    silent_after(&fleet, node, 7, AT_ONCE);
    for revision in [8, 10] {
        silent_after(&fleet, other_node, revision, AT_ONCE);
        wait_until(|| is_lost(&fleet, other_node) == Some(true)).await;
        silent_after(&fleet, other_node, revision + 1, NEVER);
        other.news(0).await;
        assert_eq!(is_lost(&fleet, other_node), Some(false));
    }
    // On a machine that takes a minute for this, it is held no longer.
    let (written, is_held) = (is_lost(&fleet, node), fleet.parts().desired.is_parked(node));
    assert!(written.is_none() || !is_held, "{written:?}");
    waiting.abort();
}

#[tokio::test]
async fn a_desired_state_that_the_agent_would_refuse_is_not_published_and_is_a_finding() {
    let fleet = Fleet::start_reconciled().await;
    let annotations = |bytes: usize| (0..50).map(|n| (format!("a{n}"), "v".repeat(bytes))).collect::<BTreeMap<_, _>>();
    let accepted: Vec<String> = (0..15).map(|n| format!("l{n}")).collect();
    let cluster = |bytes: usize| json!([{"kind": "Cluster", "name": "c", "annotations": annotations(bytes), "host_labels": {"accept": accepted}}]);
    fleet.apply(cluster(4094)).await;
    fleet.apply(json!([{"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    wait_until(|| fleet.parts().desired.published.get() > 0).await;
    // No write of an operator made it so: the host's own labels do.
    let label = ReportedLabel { value: "v".repeat(4090), source: "labels.d/x:1".into() };
    let labels = (0..15).map(|n| (format!("l{n}"), label.clone())).collect();
    assert!(observe(&mut host, &Observation { labels, ..Observation::default() }).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(node["findings"].to_string().contains("desired.too_large"), "{}", node["findings"]);
    let known: Known = postcard::from_bytes(&desired(&mut host).await.known.unwrap()).unwrap();
    assert_eq!(known.labels.len(), 0, "what was published before it became too large");
    fleet.apply(cluster(2000)).await;
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(!node["findings"].to_string().contains("desired.too_large"), "{}", node["findings"]);
    let known: Known = postcard::from_bytes(&desired(&mut host).await.known.unwrap()).unwrap();
    assert_eq!(known.labels.len(), 15);
}

/// The next desired state that it is told; a check-in may be answered before it for something else.
async fn desired(host: &mut Host) -> SignedDesired {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(desired) = host.news(500).await.desired {
            return desired;
        }
    }
    panic!("it is told nothing");
}

#[tokio::test]
async fn what_is_released_fixes_its_versions_and_a_node_that_is_deleted_leaves_nothing_it_said() {
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
    desired(&mut host).await;
    let keys = async |prefix: &'static str| {
        let snapshot = fleet.parts().registry.store().snapshot().await.unwrap();
        let list = snapshot.list(&Query::prefix(prefix)).await.unwrap();
        list.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys("fixed/").await, ["fixed/lib@1", "fixed/site@1"]);
    assert_eq!((keys("observation/").await.len(), keys("observed/").await.len()), (1, 1));
    let (status, body) = fleet.ask(Method::DELETE, "/v1/nodes/web-1", &Value::Null).await;
    assert_eq!(status, 204, "{body}");
    assert_eq!((keys("observation/").await, keys("observed/").await), (vec![], vec![]));
    let edit =
        json!({"objects": [release("lib", json!({"roles": {"late": {"tags": ["late"]}}, "tags": {"late": {}}}))]});
    let (status, body) = fleet.ask(Method::POST, "/v1/apply?force=true", &edit).await;
    assert_eq!((status, &body["error"]["type"]), (409, &json!("object.in_use")), "also when it runs nowhere: {body}");
    fleet.apply(json!([release("unused", json!({"tags": {"late": {}}}))])).await;
}

#[tokio::test]
async fn w09_two_hosts_with_one_identity_are_told_of() {
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
        assert_eq!(fleet.rejected("identity_doubled"), 0);
        host.news(0).await;
        let said = CheckIn { boot_id: [2; 16], ..check_in(None, 0) };
        let _told: CheckInAnswer = call(&mut copy, "/agent/v1/checkin", &said).await.unwrap();
    }
    fleet.audited(&principal, "identity_doubled", 1).await;
    assert_eq!(fleet.rejected("identity_doubled"), 1, "it is told once, with both addresses");
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
    // Whoever tells of the node's findings tells all of them.
    let labelled = json!([{"kind": "Node", "name": "web-1", "nodegroup": "c/g", "labels": {"a": "b"}}]);
    let (_, written) = fleet.ask(Method::POST, "/v1/apply", &json!({ "objects": labelled })).await;
    let resolved = fleet.read(&format!("/v1/nodes/{node}/resolved")).await;
    for told in [written, resolved, fleet.read("/v1/clusters/c/validate").await] {
        assert_eq!(told["findings"][0]["code"], "identity.doubled", "{told}");
    }
    assert!(fleet.parts().metrics.text_within(None).contains("stemma_nodes_doubled 1\n"));
    host.news(0).await;
    // Also where the node's group is not there, as no write leaves it.
    let group = fleet.read("/v1/clusters/c/nodegroups/g").await["uuid"].as_str().unwrap().parse().unwrap();
    let gone = Transaction::new().delete(key::object(Kind::NodeGroup, group));
    let revision = fleet.parts().registry.store().commit(gone).await.unwrap();
    fleet.parts().registry.cache().reached(revision).await;
    let shown = fleet.read(&format!("/v1/nodes/{node}")).await;
    let codes: Vec<_> = shown["findings"].as_array().unwrap().iter().map(|found| &found["code"]).collect();
    assert_eq!(codes, ["node.incomplete", "identity.doubled"]);
}

#[tokio::test]
async fn what_a_host_was_refused_is_found_by_its_node_also_when_that_is_gone() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let odd = CheckIn { observation_digest: PartDigest([9; 32]), ..check_in(None, 0) };
    call::<_, CheckInAnswer>(&mut host.client, "/agent/v1/checkin", &odd).await.unwrap_err();
    let node = host.node;
    fleet.audited(&format!("node/{node}"), "message.malformed", 1).await;
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
        let deleted = fleet.ask(Method::DELETE, "/v1/nodes/web-1", &Value::Null).await;
        assert_eq!(deleted.0, if is_there { 204 } else { 404 }, "{deleted:?}");
    }
}

/// What was said before the host was told something else confirms nothing of that; and hosts that are gone, more than one commit has, keep nobody's
/// confirmation from being stored.
#[tokio::test]
async fn y06_a_host_confirms_what_is_recorded_that_it_was_told_and_nothing_else() {
    let fleet = Fleet::start().await;
    let (one, other) = (fleet.join("web-1").await.node, fleet.join("web-2").await.node);
    let (intake, registry) = (&fleet.parts().intake, &fleet.parts().registry);
    let epoch: Uuid = fleet.read("/v1/fleet").await["epoch"].as_str().unwrap().parse().unwrap();
    let told = |revision: u64| HeldRevision { epoch, revision };
    let parts = |digest: u8| ToldParts { known: PartDigest([digest; 32]), task_set: PartDigest([9; 32]) };
    for node in [one, other] {
        intake.told(node, told(5), parts(1)).await.unwrap();
    }
    let unconfirmed = async |revision: u64, digest: u8| {
        let of = |node| Confirmed { node, told: told(revision), parts: parts(digest) };
        let mut confirmed = vec![of(Uuid::from_u128(1)); 1000];
        confirmed.push(of(one));
        intake.confirmed(confirmed).await.unwrap();
        registry.cache().reached(registry.store().head().await.unwrap()).await;
        let model = registry.cache().model();
        [one, other].map(|node| model.told.get(&node).unwrap().unconfirmed)
    };
    assert_eq!(unconfirmed(4, 1).await, [true, true], "another revision");
    assert_eq!(unconfirmed(5, 2).await, [true, true], "other parts");
    assert_eq!(unconfirmed(5, 1).await, [false, true]);
    intake.told(one, told(6), parts(2)).await.unwrap();
    assert_eq!(unconfirmed(5, 1).await, [true, true], "it was told another thing meanwhile");
    assert_eq!(unconfirmed(6, 2).await, [false, true]);
}
