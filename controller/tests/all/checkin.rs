//! The thin line and the check-in: init, run, token, enrol, a signed desired state, parking, superseding, content.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_controller::intake::{Confirmed, Intake as _, ToldParts};
use stemma_controller::records::key;
use stemma_controller::run::{Options, Parts, Publishing, start};
use stemma_controller::store::{Query, Transaction};
use stemma_core::epoch::HeldRevision;
use stemma_core::object::Kind;
use stemma_core::shares::Holder;
use stemma_wire::clock::{Clock as _, SystemClock};
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer};
use stemma_wire::message::desired::{Known, Profile, ProfileTask};
use stemma_wire::message::observed::{Observation, Outcome, Report, ReportedLabel, TaskResult};
use stemma_wire::message::signed::SignedDesired;
use stemma_wire::message::{Hash, PartDigest, WireVersion, encode, hash_content};
use stemma_wire::sign::Verifier;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::fleet::{self, Fleet, PATIENCE, call, check_in, config, refused, send, state, wait_until};

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

#[tokio::test]
async fn a_silence_is_written_when_it_begins_and_when_it_ends_and_at_no_other_time() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    // Whether it is silent is up to the test, however long each of its steps takes.
    let node = host.node;
    let silent_after = |revision: u64, silent_after: Duration| {
        let mut released = state("gold", None, &[]);
        released.silent_after = silent_after;
        fleet.publish(node, revision, released);
    };
    silent_after(5, Duration::from_hours(1));
    host.news(0).await;
    let seen = |fleet: &Fleet, node| fleet.parts().registry.cache().model().seen.get(&node).map(|seen| seen.lost);
    let before = fleet.revision().await;
    assert_eq!(seen(&fleet, host.node), None, "one that was never silent has no record");
    silent_after(6, Duration::from_millis(1));
    wait_until(|| seen(&fleet, host.node) == Some(true)).await;
    assert_eq!(fleet.revision().await, before + 1);
    silent_after(7, Duration::from_hours(1));
    for _ in 0..3 {
        host.news(0).await;
    }
    assert_eq!(seen(&fleet, host.node), Some(false));
    assert_eq!(fleet.revision().await, before + 2);
}

/// All hosts are looked at in turn: between two silences of one host, each other one was looked at.
#[tokio::test]
async fn y06_a_host_whose_check_in_is_held_is_never_written_as_silent() {
    let fleet = Fleet::start().await;
    fleet.reach(20).await;
    let (mut host, mut other) = (fleet.join("web-1").await, fleet.join("web-2").await);
    let (node, other_node) = (host.node, other.node);
    let silent_after = |node: Uuid, revision: u64, silent_after: Duration| {
        let mut released = state("gold", None, &[]);
        released.silent_after = silent_after;
        fleet.publish(node, revision, released);
    };
    let (never, at_once) = (Duration::from_hours(1), Duration::from_millis(1));
    let seen = |node: Uuid| fleet.parts().registry.cache().model().seen.get(&node).map(|seen| seen.lost);
    silent_after(node, 5, never);
    silent_after(other_node, 6, never);
    host.news(0).await;
    other.news(0).await;
    let waiting = tokio::spawn(async move { host.news(60_000).await });
    wait_until(|| fleet.parts().desired.is_parked(node)).await;
    silent_after(node, 7, at_once);
    for revision in [8, 10] {
        silent_after(other_node, revision, at_once);
        wait_until(|| seen(other_node) == Some(true)).await;
        silent_after(other_node, revision + 1, never);
        other.news(0).await;
        assert_eq!(seen(other_node), Some(false));
    }
    // On a machine that takes a minute for this, it is held no longer.
    let (written, is_held) = (seen(node), fleet.parts().desired.is_parked(node));
    assert!(written.is_none() || !is_held, "{written:?}");
    waiting.abort();
}

/// Says an Observation, and gives back whether it was taken.
async fn observe(host: &mut fleet::Host, observation: &Observation) -> bool {
    let mut said = check_in(host.held, 0);
    said.observation_digest = fleet::digest_of(observation);
    said.observation = Some(observation.clone());
    match call(&mut host.client, "/agent/v1/checkin", &said).await.unwrap() {
        CheckInAnswer::Current(news) => news.observation == Some(said.observation_digest),
        CheckInAnswer::Superseded => panic!("superseded by nobody"),
    }
}

#[tokio::test]
async fn s38_of_what_a_host_detects_the_good_is_taken_and_the_rest_is_told() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let traits = [
        "HW_CPU_X86_AVX2",
        "HW_CPU_X86_NO_SUCH",
        "CUSTOM_OK",
        "CUSTOM_\u{1b}[2J",
        &format!("CUSTOM_{}", "A".repeat(249)),
    ];
    let traits = traits.map(str::to_owned).to_vec();
    assert!(observe(&mut host, &Observation { traits, ..Observation::default() }).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    assert_eq!(node["traits"], json!(["CUSTOM_OK", "HW_CPU_X86_AVX2"]));
    let longest = format!("'CUSTOM_{}…'", "A".repeat(57));
    let message = format!(
        "its host reports traits that are not taken: 'CUSTOM_\\u{{1b}}[2J', {longest}, 'HW_CPU_X86_NO_SUCH' (a standard name, or CUSTOM_ and \
         then capitals, digits and '_', at most 255 characters)"
    );
    let principal = format!("node/{}", host.node);
    fleet.audited(&principal, "trait.invalid", 1).await;
    let finding = json!({"severity": "warning", "code": "trait.refused", "object": "node/web-1", "message": message});
    assert!(node["findings"].as_array().unwrap().contains(&finding), "{}", node["findings"]);
}

/// The host has what its group requires by a rule alone.
#[tokio::test]
async fn w07_a_write_of_a_rule_says_whom_it_reaches_and_what_it_takes_from_them() {
    let fleet = Fleet::start().await;
    fleet
        .apply(json!([
            {"kind": "Cluster", "name": "prod"},
            {"kind": "NodeGroup", "cluster": "prod", "name": "web", "requirements": {"trait:CUSTOM_A": "required"}},
        ]))
        .await;
    let mut host = fleet.join_group("prod/web", "web-1").await;
    assert!(observe(&mut host, &Observation::default()).await);
    let act = |op: &str, args: Value| json!({"op": op, "args": args});
    let actions = |name: &str| {
        let rack = json!({"path": "labels/rack", "value": "r1"});
        json!([act("add-trait", json!({"name": name})), act("set-attribute", rack)])
    };
    let rule = json!({"kind": "InspectionRule", "name": "a", "actions": actions("CUSTOM_A")});
    let hosts = |answer: &hyper::Response<Bytes>| answer.headers()["stemma-hosts"].to_str().unwrap().to_owned();
    let tried = fleet.answer(Method::POST, "/v1/apply?dry_run=true", &json!({"objects": [rule]})).await;
    assert_eq!((tried.status().as_u16(), &*hosts(&tried)), (200, "1"), "{tried:?}");
    fleet.apply(json!([rule])).await;
    assert_eq!(fleet.read("/v1/nodes/web-1").await["labels"]["rack"], "r1");

    // An edit that takes the trait is an error among the findings, and a strict one is refused.
    let other = json!({"objects": [{"kind": "InspectionRule", "name": "a", "actions": [actions("CUSTOM_B")[0]]}]});
    let (status, told) = fleet.ask(Method::POST, "/v1/apply?force=true&dry_run=true", &other).await;
    assert_eq!((status, &told["lost_labels"]), (200, &json!({"rack": 1})), "{told}");
    let found = |told: &Value| {
        let found = told["findings"].as_array().unwrap().iter().find(|one| one["code"] == "requirement.unmet");
        found.map(|one| (one["object"].clone(), one["written"].clone()))
    };
    assert_eq!(found(&told), Some((json!("node/web-1"), json!("inspectionrule/a"))), "{told}");
    let (status, refused) = fleet.ask(Method::POST, "/v1/apply?force=true&strict=true", &other).await;
    assert_eq!((status, &refused["error"]["type"]), (400, &json!("finding.strict")), "{refused}");

    // So is its end.
    let gone = fleet.answer(Method::DELETE, "/v1/inspection_rules/a?dry_run=true", &Value::Null).await;
    assert_eq!((gone.status().as_u16(), &*hosts(&gone)), (204, "1"), "{gone:?}");
    let warning = gone.headers()["warning"].to_str().unwrap();
    assert!(warning.contains("CUSTOM_A"), "{warning}");
}

#[tokio::test]
async fn s38_51_detected_traits_block_no_operator_and_cost_no_host_its_fleet() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let mut traits: Vec<String> = (0..50).map(|n| format!("CUSTOM_{n:02}")).collect();
    traits.push("HW_CPU_X86_AVX2".to_owned());
    let observation =
        Observation { traits, facts: [("cpu.count".to_owned(), "4".to_owned())].into(), ..Observation::default() };
    fleet.publish(host.node, 5, state("gold", None, &[]));
    assert!(observe(&mut host, &observation).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    let taken = node["traits"].as_array().unwrap();
    assert_eq!(taken.len(), 50, "the limit of a source");
    assert!(taken.contains(&json!("HW_CPU_X86_AVX2")), "a standard name goes before made up ones");
    assert!(node["findings"].to_string().contains("1 beyond the 50 that one source may give"), "{}", node["findings"]);
    let own: Vec<String> = (0..50).map(|n| format!("CUSTOM_OWN_{n:02}")).collect();
    let (status, body) = fleet.ask(Method::PUT, "/v1/nodes/web-1/traits", &json!({"traits": own})).await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = fleet.ask(Method::PUT, "/v1/nodes/web-1/traits/CUSTOM_OWN_50", &Value::Null).await;
    assert_eq!((status, &body["error"]["type"]), (400, &json!("trait.invalid")), "an operator's own limit is his own");
    assert!(host.news(0).await.desired.is_some(), "the next good request");
    fleet.audited(&format!("node/{}", host.node), "trait.invalid", 1).await;
}

/// Hosts report for months: the last images of what each said are kept, and the oldest of them go.
#[tokio::test]
async fn x01_a_thousand_observations_of_one_node_and_those_of_a_hundred_at_once_are_kept_over_a_restart() {
    const OF_ONE: usize = 1000;
    const OF_EACH: usize = 15;
    let mut fleet = Fleet::start().await;
    let names: Vec<String> = (0..100).map(|at| format!("web-{at}")).collect();
    let nodes = names.iter().map(|name| json!({"kind": "Node", "name": name, "nodegroup": "c/g"}));
    let above = [json!({"kind": "Cluster", "name": "c"}), json!({"kind": "NodeGroup", "cluster": "c", "name": "g"})];
    fleet.apply(above.into_iter().chain(nodes).collect()).await;
    let observation = |count: usize| {
        let facts = [("boots".to_owned(), count.to_string())].into();
        Observation { facts, ..Observation::default() }
    };
    let say = move |parts: Arc<Parts>, node: Uuid, counts: std::ops::Range<usize>| async move {
        for count in counts {
            let said = observation(count);
            parts.intake.observed(node, fleet::digest_of(&said), said).await.unwrap();
        }
    };
    for half in 0..2 {
        let mut uuids = Vec::new();
        for name in &names {
            uuids.push(fleet.read(&format!("/v1/nodes/{name}")).await["uuid"].as_str().unwrap().parse().unwrap());
        }
        let parts = fleet.parts();
        say(Arc::clone(parts), uuids[0], half * OF_ONE / 2..(half + 1) * OF_ONE / 2).await;
        let of_each = |node: &Uuid| say(Arc::clone(parts), *node, half * OF_EACH..(half + 1) * OF_EACH);
        uuids.iter().map(of_each).collect::<JoinSet<_>>().join_all().await;
        fleet.controller.stop().await;
        fleet.controller = start(config(fleet.directory.path().join("data")), Options::default()).await.unwrap();
        for (name, node) in names.iter().zip(uuids) {
            let report = fleet.read(&format!("/v1/nodes/{name}/report")).await;
            let last = json!((half + 1) * OF_EACH - 1);
            assert_eq!(report["observation"]["facts"]["boots"], last, "{name}: {report}");
            let snapshot = fleet.parts().registry.store().snapshot().await.unwrap();
            let images = snapshot.list(&Query::prefix(key::observed(node))).await.unwrap().entries;
            assert_eq!(images.len(), 10, "{name}");
        }
    }
    fleet.controller.stop().await;
}

#[tokio::test]
async fn x01_a_check_in_that_is_refused_whole_is_a_finding_until_the_next_is_taken() {
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    let stands = async |refused: Option<&str>| {
        let node = fleet.read("/v1/nodes/web-1").await;
        let mut findings = node["findings"].as_array().into_iter().flatten();
        let finding = findings.find(|one| one["code"] == "report.refused");
        let begins =
            refused.map(|why| format!("the controller refused what its host reported last (check-in): {why}; "));
        let message = finding.map(|one| one["message"].as_str().unwrap());
        match (message, begins) {
            (Some(message), Some(begins)) => assert!(message.starts_with(&begins), "{message}"),
            (message, begins) => assert_eq!(message.is_some(), begins.is_some(), "{node}"),
        }
        assert_eq!(node["state"] == "failed", refused.is_some(), "{node}");
        let metrics = fleet.parts().metrics.text_within(None);
        let line = format!("\nstemma_nodes_report_refused {}\n", usize::from(refused.is_some()));
        assert!(metrics.contains(&line), "{metrics}");
    };
    host.news(0).await;
    stands(None).await;
    let mut more = encode(&check_in(None, 0));
    more.extend(b"more");
    let answer = send(&mut host.client, Method::POST, "/agent/v1/checkin", more).await;
    assert_eq!((answer.status().as_u16(), refused(&answer).kind.as_str()), (400, "message.malformed"));
    stands(Some(refused(&answer).message.trim_end_matches('.'))).await;
    // What was refused may have cost the connection.
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.news(0).await;
    stands(None).await;
    // A version that nobody speaks yet.
    let mut newer = encode(&check_in(host.held, 0));
    newer[0] = 9;
    let answer = send(&mut host.client, Method::POST, "/agent/v1/checkin", newer).await;
    assert_eq!((answer.status().as_u16(), refused(&answer).kind.as_str()), (400, "message.version"));
    stands(Some(refused(&answer).message.trim_end_matches('.'))).await;
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.news(0).await;
    stands(None).await;
    // What never comes to whoever reads check-ins.
    let request = Request::post("/agent/v1/checkin").header("host", "localhost").header("content-encoding", "gzip");
    let request = request.body(Bytes::from_static(b"x")).unwrap();
    let answer = host.client.send_within(request, PATIENCE).await.unwrap();
    assert_eq!((answer.status().as_u16(), refused(&answer).kind.as_str()), (415, "request.encoding"));
    stands(Some("Compressed bodies are not taken")).await;
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.news(0).await;
    stands(None).await;
    // The node's turn has begun by then.
    let mut said = check_in(host.held, 0);
    said.observation_digest = PartDigest([9; 32]);
    let answer: Result<CheckInAnswer, _> = call(&mut host.client, "/agent/v1/checkin", &said).await;
    assert_eq!(answer.unwrap_err().status, 400);
    stands(Some("the observation does not have the digest that was named")).await;
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.news(0).await;
    stands(None).await;
}

/// A node of which results were held back was called as it was before them, and nothing said so.
#[tokio::test]
async fn x01_what_a_host_reports_too_fast_is_a_finding_and_a_metric() {
    // A read of a node waits for the reconciler.
    let fleet = Fleet::start_with(|own| own.publishing = Publishing::Reconciled).await;
    let host = fleet.join("web-1").await;
    let results = |sequence: u64| {
        let result = |sequence| TaskResult {
            sequence,
            task_set: PartDigest([1; 32]),
            task: "t".to_owned(),
            outcome: Outcome::Changed,
            message: String::new(),
            output: "x".repeat(4 * 1024),
            diff: "x".repeat(16 * 1024),
            duration_ms: 1,
        };
        (sequence..sequence + 64).map(result).collect::<Vec<_>>()
    };
    let mut sequence = 1;
    // The bound is 8 MiB at once.
    while sequence < 2_000 && fleet.parts().intake.results(host.node, results(sequence)).await.is_ok() {
        sequence += 64;
    }
    assert!(sequence < 2_000, "nothing was held back");
    let node = fleet.read("/v1/nodes/web-1").await;
    let findings = node["findings"].as_array().unwrap();
    let finding = findings.iter().find(|one| one["code"] == "report.waiting").unwrap();
    assert_eq!(finding["severity"], "warning");
    let says = "the controller has not kept yet what its host reported last (results): the host sends more than is stored of a host in so short a time; ";
    assert!(finding["message"].as_str().unwrap().starts_with(says), "{finding}");
    let metric = || fleet.parts().metrics.text_within(None);
    assert!(metric().contains("\nstemma_nodes_report_waiting 1\n"), "{}", metric());
}

/// So many labels of 4,000 bytes each.
fn large_labels(count: usize) -> Observation {
    let label = |at: usize| ReportedLabel { value: format!("{at:04000}"), source: "labels.d/x:1".into() };
    Observation { labels: (0..count).map(|at| (format!("l{at}"), label(at))).collect(), ..Observation::default() }
}

#[tokio::test]
async fn x01_a_refused_report_is_a_finding_a_state_and_a_metric_until_the_host_reports_something_else() {
    let limits = |own: &mut Options| own.store.limits.max_bytes = 100_000;
    let fleet = Fleet::start_with(limits).await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    let metric = async |count: usize| {
        let metrics = fleet.parts().metrics.text_within(None);
        let line = format!("\nstemma_nodes_report_refused {count}\n");
        assert!(metrics.contains(&line), "{metrics}");
    };
    metric(0).await;
    // Kept before the host's first check-in, so that its next Observation need not wait for its turn.
    let kept = large_labels(1);
    fleet.parts().intake.observed(host.node, fleet::digest_of(&kept), kept.clone()).await.unwrap();
    // Stored twice, as what is known now and as an image.
    assert!(!observe(&mut host, &large_labels(15)).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    let findings = node["findings"].as_array().unwrap();
    let finding = findings.iter().find(|one| one["code"] == "report.refused").unwrap();
    assert_eq!((&finding["severity"], &finding["object"]), (&json!("error"), &json!("node/web-1")));
    let message = finding["message"].as_str().unwrap();
    assert!(message.starts_with("the controller refused what its host reported last (observation): "), "{message}");
    assert!(
        message.contains(" bytes in one transaction, the limit max_bytes is 100000; the node stands as"),
        "{message}"
    );
    assert_eq!(
        (&node["state"], &node["state_reason"]),
        (&json!("failed"), &json!("there is an error among its findings: report.refused"))
    );
    metric(1).await;
    // The surplus labels are taken away again, so the host says what is stored, and sends its digest alone.
    assert!(observe(&mut host, &kept).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(!node["findings"].to_string().contains("report.refused"), "{}", node["findings"]);
    assert_ne!(node["state"], "failed");
    metric(0).await;
}

#[tokio::test]
async fn x01_what_is_not_kept_of_a_report_is_a_finding_and_a_metric_and_the_rest_is_kept() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let label = ReportedLabel { value: "v".into(), source: "labels.d/x:1".into() };
    let labels = (0..260).map(|at| (format!("l{at:03}"), label.clone())).collect();
    assert!(observe(&mut host, &Observation { labels, ..Observation::default() }).await);
    let metric = |count: usize| {
        let metrics = fleet.parts().metrics.text_within(None);
        let line = format!("\nstemma_nodes_report_left_out {count}\n");
        assert!(metrics.contains(&line), "{metrics}");
    };
    let left_out = async || {
        let node = fleet.read("/v1/nodes/web-1").await;
        let findings = node["findings"].as_array().unwrap().clone();
        let of_rule = findings.into_iter().filter(|one| one["code"] == "report.left_out");
        let messages: Vec<String> = of_rule.map(|one| one["message"].as_str().unwrap().to_owned()).collect();
        messages
    };
    let of_labels = "its host reports more than is taken; left out: 4 labels (at most 256 are taken; a value has at most 4096 bytes, \
                     all together 65536)";
    assert_eq!(left_out().await, [of_labels]);
    metric(1);
    let report = fleet.read("/v1/nodes/web-1/report").await;
    assert_eq!(report["observation"]["labels"].as_object().map(serde_json::Map::len), Some(256));

    let intake = &fleet.parts().intake;
    let said = Report { findings: vec!["f".repeat(1025)], ..Report::default() };
    intake.report(host.node, said).await.unwrap();
    let result = TaskResult {
        sequence: 1,
        task_set: PartDigest([1; 32]),
        task: "x".repeat(1025),
        outcome: Outcome::Changed,
        message: String::new(),
        output: String::new(),
        diff: String::new(),
        duration_ms: 0,
    };
    assert_eq!(intake.results(host.node, vec![result]).await.unwrap(), 1);
    let of_report = "its host reports more than is kept; left out: 1 results of tasks (at most 4096 are kept; a task's id has at most 1024 \
                     bytes); a part of 1 texts (a sentence has at most 1024 bytes, all that its tasks say together 1048576)";
    assert_eq!(left_out().await, [of_labels, of_report]);
    metric(1);
}

/// What an agent leaves out by itself stood in the report of its host alone.
#[tokio::test]
async fn x01_what_a_host_says_that_it_could_not_use_is_one_finding_of_its_node_and_a_metric() {
    let fleet = Fleet::start().await;
    let host = fleet.join("web-1").await;
    let stands = async |findings: &[&str], message: Option<&str>| {
        let findings = findings.iter().map(|one| (*one).to_owned()).collect();
        fleet.parts().intake.report(host.node, Report { findings, ..Report::default() }).await.unwrap();
        let expected = message.map(|message| {
            json!({"severity": "warning", "code": "report.findings", "object": "node/web-1", "message": message})
        });
        let node = fleet.read("/v1/nodes/web-1").await;
        let found = node["findings"].as_array().unwrap().iter().filter(|one| one["code"] == "report.findings");
        assert_eq!(found.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        let metrics = fleet.parts().metrics.text_within(None);
        let line = format!("\nstemma_nodes_report_findings {}\n", usize::from(message.is_some()));
        assert!(metrics.contains(&line), "{metrics}");
    };
    stands(&[], None).await;
    let said = ["labels.d/x:4: a line is KEY=VALUE", "/etc/stemma/labels.d: 2712 more lines or files cannot be used"];
    let message = "its host reports what it could not use or do, findings of its own: 2; the first: labels.d/x:4: a line is KEY=VALUE; all of \
                   them are in its report (GET /v1/nodes/web-1/report) and in `stemma-agent status` there";
    stands(&said, Some(message)).await;
    stands(&[], None).await;
}

#[tokio::test]
async fn s39_facts_as_deep_as_a_check_in_carries_end_no_controller() {
    let options = || Options { publishing: Publishing::Reconciled, ..Options::default() };
    let mut fleet = Fleet::start_with(|own| *own = options()).await;
    let task = json!({"id": "a", "type": "file", "tags": ["x"], "parameters": {"path": "/a", "template": "{{ facts.cpu.count }}"}});
    fleet
        .apply(json!([
            {"kind": "Release", "name": "site", "roles": {"r": {"tags": ["x"]}}, "tags": {"x": {}}, "tasks": [task]},
            {"kind": "Cluster", "name": "c", "release": "site"},
            {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["r"]},
        ]))
        .await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    let facts = [(format!("cpu.count{}", ".a".repeat(1_000_000)), "1".to_owned())].into();
    assert!(observe(&mut host, &Observation { facts, ..Observation::default() }).await);
    for _ in 0..2 {
        let node = fleet.read("/v1/nodes/web-1").await;
        let message = "its host reports more than is taken; left out: 1 facts (a path has at most 16 names and 255 bytes, a value 16384 \
                       bytes, all together 262144)";
        let finding =
            json!({"severity": "warning", "code": "report.left_out", "object": "node/web-1", "message": message});
        assert!(node["findings"].as_array().unwrap().contains(&finding), "{}", node["findings"]);
        fleet.controller.stop().await;
        fleet.controller = start(config(fleet.directory.path().join("data")), options()).await.unwrap();
    }
}

#[tokio::test]
async fn a_desired_state_that_the_agent_would_refuse_is_not_published_and_is_a_finding() {
    let fleet =
        Fleet::start_with(|own| *own = Options { publishing: Publishing::Reconciled, ..Options::default() }).await;
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
async fn desired(host: &mut fleet::Host) -> SignedDesired {
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
    let fleet =
        Fleet::start_with(|own| *own = Options { publishing: Publishing::Reconciled, ..Options::default() }).await;
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
async fn an_observation_with_too_many_labels_is_taken_up_to_the_bound_and_its_digest_is_checked() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let label = ReportedLabel { value: "v".into(), source: "labels.d/x:1".into() };
    let labels = (0..257).map(|n| (format!("l{n}"), label.clone())).collect();
    let observation = Observation { labels, ..Observation::default() };
    assert!(observe(&mut host, &observation).await, "it is not told again and again");
    let report = fleet.read("/v1/nodes/web-1/report").await;
    assert_eq!(report["observation"]["labels"].as_object().map(serde_json::Map::len), Some(256));
    let mut said = check_in(None, 0);
    said.observation_digest = fleet::digest_of(&observation);
    said.observation_digest.0[0] ^= 1;
    said.observation = Some(observation);
    let got = call::<_, CheckInAnswer>(&mut host.client, "/agent/v1/checkin", &said).await.unwrap_err();
    assert_eq!((got.status, got.kind.as_str()), (400, "message.malformed"), "a digest must be its own");
}

/// Results with long differences, numbered on.
fn results(from: u64, count: u64) -> Vec<TaskResult> {
    let result = |sequence| TaskResult {
        sequence,
        task_set: PartDigest([1; 32]),
        task: format!("t{}", sequence % 256),
        outcome: Outcome::Changed,
        message: String::new(),
        output: String::new(),
        diff: "d".repeat(16_000),
        duration_ms: 1,
    };
    (from..from + count).map(result).collect()
}

#[tokio::test]
async fn w10_01_a_host_that_floods_results_is_told_to_wait_and_keeps_them() {
    let fleet = Fleet::start().await;
    let (mut host, mut other) = (fleet.join("web-1").await, fleet.join("web-2").await);
    let mut acknowledged = 0;
    let mut waits = Vec::new();
    for _ in 0..20 {
        let said = CheckIn { results: results(acknowledged + 1, 64), ..check_in(None, 0) };
        let answer = call(&mut host.client, "/agent/v1/checkin", &said).await.unwrap();
        let CheckInAnswer::Current(news) = answer else { panic!("superseded by nobody") };
        if news.acknowledged == acknowledged {
            waits.push(news.next_ms);
        }
        acknowledged = news.acknowledged;
    }
    assert!(acknowledged * 16_000 < 12 << 20, "{acknowledged} were stored");
    assert!(waits.len() > 5 && waits.iter().all(|wait| *wait == 10_000), "{waits:?}");
    assert_eq!(fleet.rejected("results_too_fast"), waits.len() as u64);
    let odd = CheckIn { observation_digest: PartDigest([9; 32]), ..check_in(None, 0) };
    call::<_, CheckInAnswer>(&mut host.client, "/agent/v1/checkin", &odd).await.unwrap_err();
    let principal = format!("node/{}", host.node);
    fleet.audited(&principal, "message.malformed", 1).await;
    assert_eq!(fleet.accused(&principal).await, ["message.malformed"], "what waits is no refusal");
    let said = CheckIn { results: results(1, 64), ..check_in(None, 0) };
    let answer = call(&mut other.client, "/agent/v1/checkin", &said).await.unwrap();
    assert!(matches!(answer, CheckInAnswer::Current(news) if news.acknowledged == 64), "others are unharmed");
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
