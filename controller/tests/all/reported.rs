//! What hosts report: what is accepted and stored, and how the rest is reported.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_controller::intake::Intake as _;
use stemma_controller::records::key;
use stemma_controller::run::{Components, Options, PublishMode};
use stemma_controller::store::ListQuery;
use stemma_wire::message::checkin::{CheckIn, CheckInResponse};
use stemma_wire::message::observed::{Observation, Outcome, Report, ReportedLabel, TaskResult};
use stemma_wire::message::{PartDigest, encode};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::fleet::{
    Fleet, Host, TIMEOUT, call, desired_state, error_response, idle_check_in, observation_digest, reconciled_options,
    send_request, task_result,
};

/// Reports an observation in a check-in. Returns whether the controller confirms that it is stored.
pub(crate) async fn observe(host: &mut Host, observation: &Observation) -> bool {
    let mut check_in = idle_check_in(host.held_desired, 0);
    check_in.observation_digest = observation_digest(observation);
    check_in.observation = Some(observation.clone());
    match call(&mut host.client, "/agent/v1/checkin", &check_in).await.unwrap() {
        CheckInResponse::Current(update) => update.observation == Some(check_in.observation_digest),
        CheckInResponse::Superseded => panic!("no other check-in exists that could supersede this check-in"),
    }
}

#[tokio::test]
async fn s38_observation_keeps_valid_traits_and_reports_rest() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let traits =
        ["HW_CPU_X86_AVX2", "HW_CPU_X86_NO_SUCH", "CUSTOM_OK", "CUSTOM_\u{1b}[2J", &format!("CUSTOM_{}", "A".repeat(249))];
    let traits = traits.map(str::to_owned).to_vec();
    assert!(observe(&mut host, &Observation { traits, ..Observation::default() }).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    assert_eq!(node["traits"], json!(["CUSTOM_OK", "HW_CPU_X86_AVX2"]));
    let longest = format!("'CUSTOM_{}…'", "A".repeat(57));
    let message = format!(
        "its host reports traits that are refused: 'CUSTOM_\\u{{1b}}[2J', {longest}, 'HW_CPU_X86_NO_SUCH' (a standard name, or CUSTOM_ and \
         then capitals, digits and '_', at most 255 characters)"
    );
    let principal = format!("node/{}", host.node);
    fleet.wait_until_audited(&principal, "trait.invalid", 1).await;
    let finding = json!({"severity": "warning", "code": "trait.refused", "object": "node/web-1", "message": message});
    assert!(node["findings"].as_array().unwrap().contains(&finding), "{}", node["findings"]);
}

/// The trait that the group requires comes only from an inspection rule, which also sets the label `rack`.
#[tokio::test]
async fn w07_rule_write_names_affected_nodes_and_lost_values() {
    let fleet = Fleet::start().await;
    fleet
        .apply(json!([
            {"kind": "Cluster", "name": "prod"},
            {"kind": "NodeGroup", "cluster": "prod", "name": "web", "requirements": {"trait:CUSTOM_A": "required"}},
        ]))
        .await;
    let mut host = fleet.join_group("prod/web", "web-1").await;
    assert!(observe(&mut host, &Observation::default()).await);
    let action = |op: &str, args: Value| json!({"op": op, "args": args});
    let actions = |name: &str| {
        let rack = json!({"path": "labels/rack", "value": "r1"});
        json!([action("add-trait", json!({"name": name})), action("set-attribute", rack)])
    };
    let rule = json!({"kind": "InspectionRule", "name": "a", "actions": actions("CUSTOM_A")});
    // Returns the response header with the number of hosts that the write affects.
    let hosts = |answer: &hyper::Response<Bytes>| answer.headers()["stemma-hosts"].to_str().unwrap().to_owned();
    let dry_run_answer = fleet.request_raw(Method::POST, "/v1/apply?dry_run=true", &json!({"objects": [rule]})).await;
    assert_eq!((dry_run_answer.status().as_u16(), &*hosts(&dry_run_answer)), (200, "1"), "{dry_run_answer:?}");
    fleet.apply(json!([rule])).await;
    assert_eq!(fleet.read("/v1/nodes/web-1").await["labels"]["rack"], "r1");

    // An edit that removes the trait causes an error finding. With `strict=true` it is refused.
    let other_rule = json!({"objects": [{"kind": "InspectionRule", "name": "a", "actions": [actions("CUSTOM_B")[0]]}]});
    let (status, answer) = fleet.request(Method::POST, "/v1/apply?force=true&dry_run=true", &other_rule).await;
    assert_eq!((status, &answer["lost_labels"]), (200, &json!({"rack": 1})), "{answer}");
    let unmet_finding = |answer: &Value| {
        let finding = answer["findings"].as_array().unwrap().iter().find(|finding| finding["code"] == "requirement.unmet");
        finding.map(|finding| (finding["object"].clone(), finding["written"].clone()))
    };
    assert_eq!(unmet_finding(&answer), Some((json!("node/web-1"), json!("inspectionrule/a"))), "{answer}");
    let (status, refusal) = fleet.request(Method::POST, "/v1/apply?force=true&strict=true", &other_rule).await;
    assert_eq!((status, &refusal["error"]["type"]), (400, &json!("finding.strict")), "{refusal}");

    // Deleting the rule has the same effect.
    let delete_answer = fleet.request_raw(Method::DELETE, "/v1/inspection_rules/a?dry_run=true", &Value::Null).await;
    assert_eq!((delete_answer.status().as_u16(), &*hosts(&delete_answer)), (204, "1"), "{delete_answer:?}");
    let warning = delete_answer.headers()["warning"].to_str().unwrap();
    assert!(warning.contains("CUSTOM_A"), "{warning}");
}

/// Regression: a finding that an inspection rule causes on a node was reported twice, for the node and for the rule.
#[tokio::test]
async fn y08_rule_effect_is_reported_once_in_each_answer() {
    let fleet = Fleet::start().await;
    let group = json!({"kind": "NodeGroup", "cluster": "prod", "name": "web", "requirements": {"trait:CUSTOM_A": "forbidden"}});
    fleet.apply(json!([{"kind": "Cluster", "name": "prod"}, group])).await;
    let mut host = fleet.join_group("prod/web", "web-1").await;
    assert!(observe(&mut host, &Observation::default()).await);
    // The rule has two effects that are findings. Both labels would be the variable `STEMMA_LABEL_TIER`, and the group
    // forbids the trait.
    let label = |key: &str| json!({"op": "set-attribute", "args": {"path": format!("labels/{key}"), "value": "x"}});
    let actions = json!([label("tier"), label("TIER"), {"op": "add-trait", "args": {"name": "CUSTOM_A"}}]);
    let assert_named_once = |source: &str, text: &str| {
        for part in ["STEMMA_LABEL_TIER", "trait:CUSTOM_A"] {
            let count = text.matches(part).count();
            assert_eq!(count, 1, "{source} of {part}: {text}");
        }
    };
    let header = |answer: &hyper::Response<Bytes>| answer.headers()["warning"].to_str().unwrap().to_owned();

    let body = json!({"name": "a", "actions": actions});
    let post_answer = fleet.request_raw(Method::POST, "/v1/inspection_rules?dry_run=true", &body).await;
    assert_named_once("POST", &header(&post_answer));
    let strict_answer = fleet.request_raw(Method::POST, "/v1/inspection_rules?strict=true", &body).await;
    let refusal: Value = serde_json::from_slice(strict_answer.body()).unwrap();
    assert_named_once("strict", &refusal["findings"].to_string());
    let mut rule = body.clone();
    rule["kind"] = "InspectionRule".into();
    let objects = json!({"objects": [rule]});
    let (status, apply_answer) = fleet.request(Method::POST, "/v1/apply?dry_run=true", &objects).await;
    assert_eq!(status, 200, "{apply_answer}");
    assert_named_once("apply", &apply_answer["findings"].to_string());
    // An edit of an existing rule.
    let empty = json!({"name": "a", "actions": [{"op": "log", "args": {"msg": "x"}}]});
    let (status, _) = fleet.request(Method::POST, "/v1/inspection_rules", &empty).await;
    assert_eq!(status, 201);
    let edit = json!([{"op": "replace", "path": "/actions", "value": actions}]);
    let patch_answer = fleet.request_raw(Method::PATCH, "/v1/inspection_rules/a", &edit).await;
    assert_named_once("PATCH", &header(&patch_answer));
}

/// A host reports one trait more than the maximum of 50. An operator can still set 50 traits, and the host gets its
/// desired state.
#[tokio::test]
async fn s38_51_detected_traits_block_no_operator_or_host() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let mut traits: Vec<String> = (0..50).map(|n| format!("CUSTOM_{n:02}")).collect();
    traits.push("HW_CPU_X86_AVX2".to_owned());
    let observation = Observation { traits, facts: [("cpu.count".to_owned(), "4".to_owned())].into(), ..Observation::default() };
    fleet.publish(host.node, 5, desired_state("gold", None, &[]));
    assert!(observe(&mut host, &observation).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    let shown_traits = node["traits"].as_array().unwrap();
    assert_eq!(shown_traits.len(), 50, "the maximum number of traits of one source");
    assert!(shown_traits.contains(&json!("HW_CPU_X86_AVX2")), "a standard trait has priority over custom traits");
    assert!(node["findings"].to_string().contains("1 beyond the 50 that one source may give"), "{}", node["findings"]);
    let operator_traits: Vec<String> = (0..50).map(|n| format!("CUSTOM_OWN_{n:02}")).collect();
    let (status, body) = fleet.request(Method::PUT, "/v1/nodes/web-1/traits", &json!({"traits": operator_traits})).await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = fleet.request(Method::PUT, "/v1/nodes/web-1/traits/CUSTOM_OWN_50", &Value::Null).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (400, &json!("trait.invalid")),
        "the traits from operators have their own limit"
    );
    assert!(host.next_update(0).await.desired.is_some(), "the host still gets its desired state");
    fleet.wait_until_audited(&format!("node/{}", host.node), "trait.invalid", 1).await;
}

/// Many observations of each node are stored, in two halves with a restart after each. The last one survives, and the
/// store has the last ten observations of each node as images (stored versions).
#[tokio::test]
async fn x01_observations_survive_restart_when_sent_in_bulk() {
    const OBSERVATIONS: usize = 1000;
    const OBSERVATIONS_PER_NODE: usize = 15;
    let mut fleet = Fleet::start().await;
    let names: Vec<String> = (0..100).map(|index| format!("web-{index}")).collect();
    let nodes = names.iter().map(|name| json!({"kind": "Node", "name": name, "nodegroup": "c/g"}));
    let parents = [json!({"kind": "Cluster", "name": "c"}), json!({"kind": "NodeGroup", "cluster": "c", "name": "g"})];
    fleet.apply(parents.into_iter().chain(nodes).collect()).await;
    let observation = |count: usize| {
        let facts = [("boots".to_owned(), count.to_string())].into();
        Observation { facts, ..Observation::default() }
    };
    let store_observations = move |parts: Arc<Components>, node: Uuid, counts: std::ops::Range<usize>| async move {
        for count in counts {
            let next_observation = observation(count);
            parts.intake.store_observation(node, observation_digest(&next_observation), next_observation).await.unwrap();
        }
    };
    for half in 0..2 {
        let mut uuids = Vec::new();
        for name in &names {
            uuids.push(fleet.read(&format!("/v1/nodes/{name}")).await["uuid"].as_str().unwrap().parse().unwrap());
        }
        // The first node gets many observations in sequence. Then all nodes get some at the same time.
        let parts = fleet.components();
        store_observations(Arc::clone(parts), uuids[0], half * OBSERVATIONS / 2..(half + 1) * OBSERVATIONS / 2).await;
        let store_for_node = |node: &Uuid| {
            store_observations(Arc::clone(parts), *node, half * OBSERVATIONS_PER_NODE..(half + 1) * OBSERVATIONS_PER_NODE)
        };
        uuids.iter().map(store_for_node).collect::<JoinSet<_>>().join_all().await;
        fleet = fleet.restart(Options::default()).await;
        for (name, node) in names.iter().zip(uuids) {
            let report = fleet.read(&format!("/v1/nodes/{name}/report")).await;
            let last_count = json!((half + 1) * OBSERVATIONS_PER_NODE - 1);
            assert_eq!(report["observation"]["facts"]["boots"], last_count, "{name}: {report}");
            let snapshot = fleet.components().registry.store().snapshot().await.unwrap();
            let images = snapshot.list(&ListQuery::prefix(key::observation_images(node))).await.unwrap().entries;
            assert_eq!(images.len(), 10, "{name}");
        }
    }
    fleet.controller.stop().await;
}

#[tokio::test]
async fn x01_refused_check_in_is_a_finding_until_next_succeeds() {
    let fleet = Fleet::start().await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    let assert_refused = async |expected_reason: Option<&str>| {
        let node = fleet.read("/v1/nodes/web-1").await;
        let mut findings = node["findings"].as_array().into_iter().flatten();
        let finding = findings.find(|finding| finding["code"] == "report.refused");
        let prefix =
            expected_reason.map(|reason| format!("the controller refused what its host reported last (check-in): {reason}; "));
        let message = finding.map(|finding| finding["message"].as_str().unwrap());
        match (message, prefix) {
            (Some(message), Some(prefix)) => assert!(message.starts_with(&prefix), "{message}"),
            (message, prefix) => assert_eq!(message.is_some(), prefix.is_some(), "{node}"),
        }
        assert_eq!(node["state"] == "failed", expected_reason.is_some(), "{node}");
        let metrics = fleet.components().metrics.text_for_cluster(None);
        let line = format!("\nstemma_nodes_report_refused {}\n", usize::from(expected_reason.is_some()));
        assert!(metrics.contains(&line), "{metrics}");
    };
    host.next_update(0).await;
    assert_refused(None).await;
    let mut trailing_bytes = encode(&idle_check_in(None, 0));
    trailing_bytes.extend(b"more");
    let answer = send_request(&mut host.client, Method::POST, "/agent/v1/checkin", trailing_bytes).await;
    assert_eq!((answer.status().as_u16(), error_response(&answer).kind.as_str()), (400, "message.malformed"));
    assert_refused(Some(error_response(&answer).message.trim_end_matches('.'))).await;
    // The refusal may have closed the connection.
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.next_update(0).await;
    assert_refused(None).await;
    // The first byte of the check-in is an unknown version.
    let mut newer_version = encode(&idle_check_in(host.held_desired, 0));
    newer_version[0] = 9;
    let answer = send_request(&mut host.client, Method::POST, "/agent/v1/checkin", newer_version).await;
    assert_eq!((answer.status().as_u16(), error_response(&answer).kind.as_str()), (400, "message.version"));
    assert_refused(Some(error_response(&answer).message.trim_end_matches('.'))).await;
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.next_update(0).await;
    assert_refused(None).await;
    // A request that is refused before the check-in is read.
    let request = Request::post("/agent/v1/checkin").header("host", "localhost").header("content-encoding", "gzip");
    let request = request.body(Bytes::from_static(b"x")).unwrap();
    let answer = host.client.send_with_timeout(request, TIMEOUT).await.unwrap();
    assert_eq!((answer.status().as_u16(), error_response(&answer).kind.as_str()), (415, "request.encoding"));
    assert_refused(Some("Compressed bodies are not accepted")).await;
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.next_update(0).await;
    assert_refused(None).await;
    // This error is found after the check-in has begun.
    let mut check_in = idle_check_in(host.held_desired, 0);
    check_in.observation_digest = PartDigest([9; 32]);
    let answer: Result<CheckInResponse, _> = call(&mut host.client, "/agent/v1/checkin", &check_in).await;
    assert_eq!(answer.unwrap_err().status, 400);
    assert_refused(Some("the digest of the observation is not the one in observation_digest")).await;
    host.client = fleet.client(host.chain.clone(), host.key.clone_key());
    host.next_update(0).await;
    assert_refused(None).await;
}

/// Regression: a node whose results were delayed kept its earlier state, and nothing reported the delay.
#[tokio::test]
async fn x01_too_frequent_reports_are_a_finding_and_metric() {
    // A read of a node waits for the reconciler, so this fleet runs one.
    let fleet = Fleet::start_with(|options| options.publishing = PublishMode::Reconciler).await;
    let host = fleet.join("web-1").await;
    let results = |sequence: u64| {
        let result = |sequence| TaskResult {
            output: "x".repeat(4 * 1024),
            diff: "x".repeat(16 * 1024),
            ..task_result(sequence, PartDigest([1; 32]), "t", Outcome::Changed)
        };
        (sequence..sequence + 64).map(result).collect::<Vec<_>>()
    };
    let mut sequence = 1;
    // The controller delays results of a host after 8 MiB at once. Each result has 20 KiB.
    while sequence < 2_000 && fleet.components().intake.store_results(host.node, results(sequence)).await.is_ok() {
        sequence += 64;
    }
    assert!(sequence < 2_000, "no report was delayed");
    let node = fleet.read("/v1/nodes/web-1").await;
    let findings = node["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["code"] == "report.waiting").unwrap();
    assert_eq!(finding["severity"], "warning");
    let expected_text = "the controller has not stored yet what its host reported last (results): the host sends more than may be stored in this time; ";
    assert!(finding["message"].as_str().unwrap().starts_with(expected_text), "{finding}");
    let metrics = || fleet.components().metrics.text_for_cluster(None);
    assert!(metrics().contains("\nstemma_nodes_report_waiting 1\n"), "{}", metrics());
}

/// Builds an observation with this many labels of 4,000 bytes each.
fn large_labels(count: usize) -> Observation {
    let label = |index: usize| ReportedLabel { value: format!("{index:04000}"), source: "labels.d/x:1".into() };
    Observation { labels: (0..count).map(|index| (format!("l{index}"), label(index))).collect(), ..Observation::default() }
}

#[tokio::test]
async fn x01_refused_report_is_a_finding_until_report_changes() {
    let limits = |options: &mut Options| options.store.limits.max_bytes = 100_000;
    let fleet = Fleet::start_with(limits).await;
    fleet.apply(json!([{"kind": "Cluster", "name": "c"}, {"kind": "NodeGroup", "cluster": "c", "name": "g"}])).await;
    let mut host = fleet.join_group("c/g", "web-1").await;
    let assert_refused_count = async |count: usize| {
        let metrics = fleet.components().metrics.text_for_cluster(None);
        let line = format!("\nstemma_nodes_report_refused {count}\n");
        assert!(metrics.contains(&line), "{metrics}");
    };
    assert_refused_count(0).await;
    // The observation is stored before the host's first check-in, so that the next observation of the host is not
    // delayed.
    let small_observation = large_labels(1);
    fleet
        .components()
        .intake
        .store_observation(host.node, observation_digest(&small_observation), small_observation.clone())
        .await
        .unwrap();
    // The store would contain the observation twice, as the current value and as an image (a stored version). Both
    // together exceed the limit of one transaction.
    assert!(!observe(&mut host, &large_labels(15)).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    let findings = node["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["code"] == "report.refused").unwrap();
    assert_eq!((&finding["severity"], &finding["object"]), (&json!("error"), &json!("node/web-1")));
    let message = finding["message"].as_str().unwrap();
    assert!(message.starts_with("the controller refused what its host reported last (observation): "), "{message}");
    assert!(message.contains(" bytes in one transaction, the limit max_bytes is 100000; the node is shown as"), "{message}");
    assert_eq!(
        (&node["state"], &node["state_reason"]),
        (&json!("failed"), &json!("there is an error among its findings: report.refused"))
    );
    assert_refused_count(1).await;
    // The host removes the surplus labels, so it again reports the observation that is stored.
    assert!(observe(&mut host, &small_observation).await);
    let node = fleet.read("/v1/nodes/web-1").await;
    assert!(!node["findings"].to_string().contains("report.refused"), "{}", node["findings"]);
    assert_ne!(node["state"], "failed");
    assert_refused_count(0).await;
}

#[tokio::test]
async fn x01_dropped_report_parts_are_a_finding_and_metric() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let label = ReportedLabel { value: "v".into(), source: "labels.d/x:1".into() };
    let labels = (0..260).map(|index| (format!("l{index:03}"), label.clone())).collect();
    assert!(observe(&mut host, &Observation { labels, ..Observation::default() }).await);
    let assert_left_out_count = |count: usize| {
        let metrics = fleet.components().metrics.text_for_cluster(None);
        let line = format!("\nstemma_nodes_report_left_out {count}\n");
        assert!(metrics.contains(&line), "{metrics}");
    };
    let left_out_messages = async || {
        let node = fleet.read("/v1/nodes/web-1").await;
        let findings = node["findings"].as_array().unwrap().clone();
        let matching = findings.into_iter().filter(|finding| finding["code"] == "report.left_out");
        let messages: Vec<String> = matching.map(|finding| finding["message"].as_str().unwrap().to_owned()).collect();
        messages
    };
    let labels_message = "its host reports more than is accepted; dropped: 4 labels (at most 256 are accepted; a value has at most 4096 bytes, \
                     all together 65536)";
    assert_eq!(left_out_messages().await, [labels_message]);
    assert_left_out_count(1);
    let report = fleet.read("/v1/nodes/web-1/report").await;
    assert_eq!(report["observation"]["labels"].as_object().map(serde_json::Map::len), Some(256));

    let intake = &fleet.components().intake;
    let report = Report { findings: vec!["f".repeat(1025)], ..Report::default() };
    intake.store_report(host.node, report).await.unwrap();
    let result = task_result(1, PartDigest([1; 32]), &"x".repeat(1025), Outcome::Changed);
    assert_eq!(intake.store_results(host.node, vec![result]).await.unwrap(), 1);
    let report_message = "its host reports more than is stored; dropped: 1 results of tasks (at most 4096 are stored; a task's id has at most 1024 \
                     bytes); a part of 1 texts (a sentence has at most 1024 bytes, all messages of its tasks together 1048576)";
    assert_eq!(left_out_messages().await, [labels_message, report_message]);
    assert_left_out_count(1);
}

/// Regression: findings of an agent about its own input were shown only in the report of its host.
#[tokio::test]
async fn x01_unusable_input_of_host_is_one_finding_and_metric() {
    let fleet = Fleet::start().await;
    let host = fleet.join("web-1").await;
    let assert_findings = async |findings: &[&str], message: Option<&str>| {
        let findings = findings.iter().map(|finding| (*finding).to_owned()).collect();
        fleet.components().intake.store_report(host.node, Report { findings, ..Report::default() }).await.unwrap();
        // Without a message, no finding of this code is expected.
        let expected = message
            .map(|message| json!({"severity": "warning", "code": "report.findings", "object": "node/web-1", "message": message}));
        let node = fleet.read("/v1/nodes/web-1").await;
        let shown_findings = node["findings"].as_array().unwrap().iter().filter(|finding| finding["code"] == "report.findings");
        assert_eq!(shown_findings.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        let metrics = fleet.components().metrics.text_for_cluster(None);
        let line = format!("\nstemma_nodes_report_findings {}\n", usize::from(message.is_some()));
        assert!(metrics.contains(&line), "{metrics}");
    };
    assert_findings(&[], None).await;
    let agent_findings = ["labels.d/x:4: a line is KEY=VALUE", "/etc/stemma/labels.d: 2712 more lines or files cannot be used"];
    let message = "its host reports findings of its own, about what it could not use or do: 2; the first: labels.d/x:4: a line is KEY=VALUE; all of \
                   them are in its report (GET /v1/nodes/web-1/report) and in `stemma-agent status` there";
    assert_findings(&agent_findings, Some(message)).await;
    assert_findings(&[], None).await;
}

/// A task reads a fact that would be a map with a million levels. The observation is stored without this fact, and the
/// finding is shown also after a restart.
#[tokio::test]
async fn s39_deeply_nested_fact_is_dropped_with_finding() {
    let mut fleet = Fleet::start_reconciled().await;
    let task =
        json!({"id": "a", "type": "file", "tags": ["x"], "parameters": {"path": "/a", "template": "{{ facts.cpu.count }}"}});
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
        let message = "its host reports more than is accepted; dropped: 1 facts (a path has at most 16 names and 255 bytes, a value 16384 \
                       bytes, all together 262144)";
        let finding = json!({"severity": "warning", "code": "report.left_out", "object": "node/web-1", "message": message});
        assert!(node["findings"].as_array().unwrap().contains(&finding), "{}", node["findings"]);
        fleet = fleet.restart(reconciled_options()).await;
    }
}

#[tokio::test]
async fn observation_is_truncated_at_label_limit_and_digest_is_checked() {
    let fleet = Fleet::start().await;
    let mut host = fleet.join("web-1").await;
    let label = ReportedLabel { value: "v".into(), source: "labels.d/x:1".into() };
    let labels = (0..257).map(|n| (format!("l{n}"), label.clone())).collect();
    let observation = Observation { labels, ..Observation::default() };
    assert!(observe(&mut host, &observation).await, "the host need not send it again");
    let report = fleet.read("/v1/nodes/web-1/report").await;
    assert_eq!(report["observation"]["labels"].as_object().map(serde_json::Map::len), Some(256));
    let mut check_in = idle_check_in(None, 0);
    check_in.observation_digest = observation_digest(&observation);
    check_in.observation_digest.0[0] ^= 1;
    check_in.observation = Some(observation);
    let error = call::<_, CheckInResponse>(&mut host.client, "/agent/v1/checkin", &check_in).await.unwrap_err();
    assert_eq!((error.status, error.kind.as_str()), (400, "message.malformed"), "the digest must match the observation");
}

/// Builds `count` results of tasks, numbered consecutively from `from`, each with a difference of 16,000 bytes.
fn results(from: u64, count: u64) -> Vec<TaskResult> {
    let result = |sequence| TaskResult {
        diff: "d".repeat(16_000),
        ..task_result(sequence, PartDigest([1; 32]), &format!("t{}", sequence % 256), Outcome::Changed)
    };
    (from..from + count).map(result).collect()
}

/// The controller stores results of a host up to a limit. It does not acknowledge more, and requests a wait of ten
/// seconds, so the host keeps them.
#[tokio::test]
async fn w10_01_host_keeps_results_when_controller_requests_wait() {
    let fleet = Fleet::start().await;
    let (mut host, mut other_host) = (fleet.join("web-1").await, fleet.join("web-2").await);
    let mut acknowledged = 0;
    let mut waits = Vec::new();
    for _ in 0..20 {
        let check_in = CheckIn { results: results(acknowledged + 1, 64), ..idle_check_in(None, 0) };
        let answer = call(&mut host.client, "/agent/v1/checkin", &check_in).await.unwrap();
        let CheckInResponse::Current(update) = answer else { panic!("another check-in superseded this one") };
        if update.acknowledged == acknowledged {
            waits.push(update.next_check_in_ms);
        }
        acknowledged = update.acknowledged;
    }
    // The limit is 8 MiB at once and 32 KiB per second after that.
    assert!(acknowledged * 16_000 < 12 << 20, "{acknowledged} results were stored");
    assert!(waits.len() > 5 && waits.iter().all(|wait| *wait == 10_000), "{waits:?}");
    assert_eq!(fleet.refused_count("results_too_fast"), waits.len() as u64);
    // A refused check-in is audited. The delays before it are not.
    let malformed_check_in = CheckIn { observation_digest: PartDigest([9; 32]), ..idle_check_in(None, 0) };
    call::<_, CheckInResponse>(&mut host.client, "/agent/v1/checkin", &malformed_check_in).await.unwrap_err();
    let principal = format!("node/{}", host.node);
    fleet.wait_until_audited(&principal, "message.malformed", 1).await;
    assert_eq!(fleet.refusal_reasons(&principal).await, ["message.malformed"], "a delay is not a refusal");
    let check_in = CheckIn { results: results(1, 64), ..idle_check_in(None, 0) };
    let answer = call(&mut other_host.client, "/agent/v1/checkin", &check_in).await.unwrap();
    assert!(matches!(answer, CheckInResponse::Current(update) if update.acknowledged == 64), "other hosts are not delayed");
}
