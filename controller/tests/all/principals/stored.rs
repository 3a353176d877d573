//! How much one principal may write, and what the store says that it holds.

use bytes::Bytes;
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use stemma_controller::registry::ByteRate;
use stemma_controller::run::Publishing;
use stemma_wire::client::Client;
use stemma_wire::message::hash_content;

use crate::fleet::{Fleet, wait_until};
use crate::principals::people::{principal, two_clusters};

/// How long the text is that each write changes.
const LONG: usize = 50_000;
/// How much may be written at once.
const AT_ONCE: usize = 2 << 20;

/// How large a file body is: more than that, so that nothing is left.
const FILE: usize = AT_ONCE + 1000;

/// The body of a write that changes a text of a node.
fn change(number: usize) -> Value {
    json!([{"op": "add", "path": "/extra/text", "value": format!("{number:0>LONG$}")}])
}

async fn patch(client: &mut Client, path: &str, number: usize) -> Response<Bytes> {
    let request = Request::patch(path).header("content-type", "application/json");
    client.send(request.body(change(number).to_string().into()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn x03_f04_who_writes_without_end_is_told_to_wait_and_others_are_served() {
    const NODE: &str = "/v1/nodes/own-node";
    // What is earned meanwhile is nothing, however long it takes.
    let rate = ByteRate { at_once: AT_ONCE as u64, a_second: 1 };
    let fleet = Fleet::start_with(|options| options.writes = rate).await;
    two_clusters(&fleet).await;
    let [mut otto, mut ada] = [
        principal(&fleet, "otto", "operator", Some("own")).await,
        principal(&fleet, "ada", "operator", Some("own")).await,
    ];
    let mut taken = 0;
    let refused = loop {
        let answer = patch(&mut otto, NODE, taken).await;
        if !answer.status().is_success() {
            break answer;
        }
        taken += 1;
        assert!(taken < 100, "it goes on without end");
    };
    // Each write stores the object and its image.
    let stored = taken * 2 * LONG;
    assert!((AT_ONCE - 4 * LONG..AT_ONCE + 2 * LONG).contains(&stored), "{taken} writes, {stored} bytes");
    let body: Value = serde_json::from_slice(refused.body()).unwrap();
    assert_eq!((refused.status().as_u16(), &body["error"]["type"]), (503, &json!("server.busy")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("'otto'"), "{body}");
    let seconds: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..200_000).contains(&seconds), "{seconds}");
    let revision = fleet.revision().await;
    for number in 0..3 {
        assert_eq!(patch(&mut otto, NODE, number).await.status().as_u16(), 503);
    }
    assert_eq!(fleet.revision().await, revision, "nothing is written");

    let tried = patch(&mut otto, &format!("{NODE}?dry_run=true"), 0).await;
    assert_eq!(tried.status().as_u16(), 200, "what is only tried out stores nothing");
    assert_eq!(otto.send(Request::get(NODE).body(Bytes::new()).unwrap()).await.unwrap().status().as_u16(), 200);
    assert_eq!(patch(&mut ada, NODE, 1_000).await.status().as_u16(), 200, "another principal waits for nobody");
    let (status, told) = fleet.ask(Method::PATCH, NODE, &change(1_001)).await;
    assert_eq!(status, 200, "an admin of the fleet neither: {told}");
    let file = std::fs::metadata(fleet.directory.path().join("data/store.redb")).unwrap();
    assert!(file.len() < 64 << 20, "{} bytes on disk", file.len());
}

#[tokio::test]
async fn x03_metrics_say_what_the_store_takes() {
    let fleet = Fleet::start().await;
    let store = fleet.parts().registry.store();
    wait_until(|| store.stats().bytes_below("history/").is_some()).await;
    let metric = |name: &str| {
        let text = fleet.parts().metrics.text_within(None);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("{name} is no metric:\n{text}"))
    };
    let taken = |of: &str| metric(&format!("stemma_store_bytes{{of=\"{of}\"}}"));
    let before = ["objects", "history", "audit", "requests"].map(taken);
    let node = json!({"name": "n", "extra": {"text": "x".repeat(LONG)}});
    let (status, told) = fleet.ask(Method::POST, "/v1/nodes", &node).await;
    assert_eq!(status, 201, "{told}");
    let after = ["objects", "history", "audit", "requests"].map(taken);
    let long = LONG as u64;
    assert!(after[0] >= before[0] + long && after[1] >= before[1] + long, "{before:?} {after:?}");
    assert!(after[2] > before[2] && after[2] < before[2] + long, "{before:?} {after:?}");
    assert_eq!(after[3], before[3], "the request had no key");
    assert!(metric("stemma_store_file_bytes") > after.iter().sum::<u64>());
}

/// File bodies were no writes, so whoever may send them stored as fast as they came.
#[tokio::test]
async fn x03_file_bodies_count_among_what_a_principal_stores() {
    let rate = ByteRate { at_once: AT_ONCE as u64, a_second: 1 };
    let fleet = Fleet::start_with(|options| options.writes = rate).await;
    let mut otto = principal(&fleet, "otto", "operator", None).await;
    let mut put = async |letter: &str| {
        let body = letter.repeat(FILE);
        let path = format!("/v1/blobs/{}", hash_content(body.as_bytes()));
        let request = Request::put(path).header("content-type", "application/octet-stream");
        otto.send(request.body(Bytes::from(body)).unwrap()).await.unwrap()
    };
    assert_eq!(put("a").await.status().as_u16(), 204);
    assert_eq!(put("a").await.status().as_u16(), 204, "what is here already stores nothing");
    let refused = put("b").await;
    let body: Value = serde_json::from_slice(refused.body()).unwrap();
    assert_eq!((refused.status().as_u16(), &body["error"]["type"]), (503, &json!("server.busy")), "{body}");
    assert!(refused.headers().contains_key("retry-after"));
    let metrics = fleet.parts().metrics.text_within(None);
    for name in ["stemma_blobs_bytes", "stemma_blobs_unnamed_bytes"] {
        assert!(metrics.lines().any(|line| line == format!("{name} {FILE}")), "{name}:\n{metrics}");
    }
}

/// Whoever is an admin of a cluster makes principals there, and each of them stored as much as one may.
#[tokio::test]
async fn x03_principals_of_one_cluster_store_together_four_times_what_one_may() {
    let rate = ByteRate { at_once: AT_ONCE as u64, a_second: 1 };
    let fleet = Fleet::start_with(|options| options.writes = rate).await;
    two_clusters(&fleet).await;
    let mut taken = 0;
    let mut refused = String::new();
    for number in 0..6 {
        let mut one = principal(&fleet, &format!("p{number}"), "operator", Some("own")).await;
        refused = loop {
            let answer = patch(&mut one, "/v1/nodes/own-node", taken).await;
            if !answer.status().is_success() {
                assert_eq!(answer.status().as_u16(), 503);
                let body: Value = serde_json::from_slice(answer.body()).unwrap();
                break body["error"]["message"].as_str().unwrap().to_owned();
            }
            taken += 1;
            assert!(taken < 1000, "it goes on without end");
        };
    }
    // Each write stores the object and its image.
    let stored = taken * 2 * LONG;
    assert!((4 * AT_ONCE - 16 * LONG..4 * AT_ONCE + 8 * LONG).contains(&stored), "{taken} writes, {stored} bytes");
    assert!(refused.contains("together with all who are bound to the same cluster"), "{refused}");
    let mut other = principal(&fleet, "other", "operator", None).await;
    assert_eq!(patch(&mut other, "/v1/nodes/own-node", 2_000).await.status().as_u16(), 200, "who is bound to none");
}

/// One small write to a group changes what each of its nodes has. Where each adds something of its own to the same value, it is stored for each.
#[tokio::test]
async fn x03_f04_what_is_released_to_many_nodes_is_paid_for_by_those_who_are_bound_to_their_cluster() {
    let rate = ByteRate { at_once: AT_ONCE as u64, a_second: 1 };
    let fleet = Fleet::start_with(|options| {
        (options.writes, options.publishing) = (rate, Publishing::Reconciled);
    })
    .await;
    let task = json!({"id": "t", "type": "file", "tags": ["web"],
        "parameters": {"path": "/etc/t", "template": "{{ labels_with_prefix('x/') }}"}});
    let release = json!({"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}},
        "tags": {"web": {}}, "tasks": [task]});
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "own/web", "labels": {"x/own": format!("{n}")}});
    let others = json!([release, {"kind": "Cluster", "name": "own", "release": "site@1"},
        {"kind": "NodeGroup", "cluster": "own", "name": "web", "roles": ["web"]}]);
    let objects = others.as_array().unwrap().iter().cloned().chain((0..200).map(node)).collect::<Vec<_>>();
    fleet.apply(Value::Array(objects)).await;
    let [mut otto, mut ada, mut fred] = [
        principal(&fleet, "otto", "operator", Some("own")).await,
        principal(&fleet, "ada", "operator", Some("own")).await,
        principal(&fleet, "fred", "operator", None).await,
    ];
    // Each node has a map of its own of some 2 KiB, all of which is stored with each change: 200 of them are a tenth of what all who are bound
    // may store at once. What they write themselves is a hundredth of it.
    let mut refused = None;
    for change in 0..20 {
        let labels: serde_json::Map<_, _> =
            (0..13).map(|n| (format!("x/{n}"), format!("{change:0>140}").into())).collect();
        let text = json!({"labels": labels});
        let request =
            Request::patch("/v1/clusters/own/nodegroups/web").header("content-type", "application/merge-patch+json");
        let answer = otto.send(request.body(text.to_string().into()).unwrap()).await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
        let revision = fleet.revision().await;
        wait_until(|| fleet.parts().desired.resolved().0 >= revision).await;
        let small = json!([{"op": "add", "path": "/extra/text", "value": change.to_string()}]).to_string();
        let request = Request::patch("/v1/nodes/n0").header("content-type", "application/json");
        let told = ada.send(request.body(small.into()).unwrap()).await.unwrap();
        if told.status().as_u16() == 503 {
            refused = Some(told);
            break;
        }
    }
    let refused = refused.expect("the changes of twenty writes take twice as much as they may");
    let body: Value = serde_json::from_slice(refused.body()).unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("together with all who are bound to the same cluster"), "{body}");
    assert_eq!(patch(&mut fred, "/v1/nodes/n0", 1).await.status().as_u16(), 200, "who is bound to none");
}
