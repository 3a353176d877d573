//! How much one principal may write, and the sizes of the store in the metrics.

use bytes::Bytes;
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use stemma_controller::registry::ByteRate;
use stemma_controller::run::PublishMode;
use stemma_wire::client::Client;
use stemma_wire::message::hash_content;

use crate::fleet::{Fleet, wait_until};
use crate::principals::clients::{create_principal, two_clusters};

/// The length of the text that each write changes, in bytes.
const TEXT_BYTES: usize = 50_000;
/// The number of bytes that a principal may write at once.
const BURST_BYTES: usize = 2 << 20;

/// The size of a file body in bytes. It exceeds the burst, so one body uses the burst up.
const FILE_BYTES: usize = BURST_BYTES + 1000;

/// Returns the body of a write that changes a text of a node. The text ends with this number, so that it differs each
/// time.
fn change_body(number: usize) -> Value {
    json!([{"op": "add", "path": "/extra/text", "value": format!("{number:0>TEXT_BYTES$}")}])
}

/// Changes the text of the node at this path.
async fn patch(client: &mut Client, path: &str, number: usize) -> Response<Bytes> {
    let request = Request::patch(path).header("content-type", "application/json");
    client.send(request.body(change_body(number).to_string().into()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn x03_f04_writer_is_throttled_without_delaying_others() {
    const NODE: &str = "/v1/nodes/own-node";
    // At this rate practically nothing is refilled during the test, however long it takes.
    let rate = ByteRate { burst_bytes: BURST_BYTES as u64, bytes_per_second: 1 };
    let fleet = Fleet::start_with(|options| options.write_rate = rate).await;
    two_clusters(&fleet).await;
    let [mut otto, mut ada] = [
        create_principal(&fleet, "otto", "operator", Some("own")).await,
        create_principal(&fleet, "ada", "operator", Some("own")).await,
    ];
    let mut write_count = 0;
    let refusal = loop {
        let answer = patch(&mut otto, NODE, write_count).await;
        if !answer.status().is_success() {
            break answer;
        }
        write_count += 1;
        assert!(write_count < 100, "no write is throttled");
    };
    // Each write stores the text twice, in the object and in its history.
    // An object has other fields too, and a write is refused only after the limit is exceeded. So the range has a
    // margin.
    let stored_bytes = write_count * 2 * TEXT_BYTES;
    assert!(
        (BURST_BYTES - 4 * TEXT_BYTES..BURST_BYTES + 2 * TEXT_BYTES).contains(&stored_bytes),
        "{write_count} writes, {stored_bytes} bytes"
    );
    let body: Value = serde_json::from_slice(refusal.body()).unwrap();
    assert_eq!((refusal.status().as_u16(), &body["error"]["type"]), (503, &json!("server.busy")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("'otto'"), "{body}");
    let seconds: u64 = refusal.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    // At one byte per second, the wait in seconds is the number of bytes above the burst.
    assert!((1..200_000).contains(&seconds), "{seconds}");
    let revision = fleet.last_revision().await;
    for number in 0..3 {
        assert_eq!(patch(&mut otto, NODE, number).await.status().as_u16(), 503);
    }
    assert_eq!(fleet.last_revision().await, revision, "nothing is written");

    let dry_run_answer = patch(&mut otto, &format!("{NODE}?dry_run=true"), 0).await;
    assert_eq!(dry_run_answer.status().as_u16(), 200, "a dry run stores nothing");
    assert_eq!(otto.send(Request::get(NODE).body(Bytes::new()).unwrap()).await.unwrap().status().as_u16(), 200);
    assert_eq!(patch(&mut ada, NODE, 1_000).await.status().as_u16(), 200, "another principal is not throttled");
    let (status, admin_answer) = fleet.request(Method::PATCH, NODE, &change_body(1_001)).await;
    assert_eq!(status, 200, "an admin of the fleet is not throttled: {admin_answer}");
    let file = std::fs::metadata(fleet.directory.path().join("data/store.redb")).unwrap();
    assert!(file.len() < 64 << 20, "{} bytes on disk", file.len());
}

/// The creation of a node with a long text increases the sizes of objects and history by the text. The audit grows by
/// less, and the stored requests do not grow.
#[tokio::test]
async fn x03_metrics_show_store_size() {
    let fleet = Fleet::start().await;
    let store = fleet.components().registry.store();
    wait_until(|| store.stats().prefix_bytes("history/").is_some()).await;
    let metric = |name: &str| {
        let text = fleet.components().metrics.text_for_cluster(None);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("the metric {name} is missing:\n{text}"))
    };
    let stored_bytes = |part: &str| metric(&format!("stemma_store_bytes{{of=\"{part}\"}}"));
    let bytes_before = ["objects", "history", "audit", "requests"].map(stored_bytes);
    let node = json!({"name": "n", "extra": {"text": "x".repeat(TEXT_BYTES)}});
    let (status, answer) = fleet.request(Method::POST, "/v1/nodes", &node).await;
    assert_eq!(status, 201, "{answer}");
    let bytes_after = ["objects", "history", "audit", "requests"].map(stored_bytes);
    let text_bytes = TEXT_BYTES as u64;
    assert!(
        bytes_after[0] >= bytes_before[0] + text_bytes && bytes_after[1] >= bytes_before[1] + text_bytes,
        "{bytes_before:?} {bytes_after:?}"
    );
    assert!(
        bytes_after[2] > bytes_before[2] && bytes_after[2] < bytes_before[2] + text_bytes,
        "{bytes_before:?} {bytes_after:?}"
    );
    assert_eq!(bytes_after[3], bytes_before[3], "the request had no idempotency key");
    assert!(metric("stemma_store_file_bytes") > bytes_after.iter().sum::<u64>());
}

/// Regression: file bodies did not count as writes, so a principal could store them without a limit on the rate.
#[tokio::test]
async fn x03_file_bodies_count_against_principal() {
    let rate = ByteRate { burst_bytes: BURST_BYTES as u64, bytes_per_second: 1 };
    let fleet = Fleet::start_with(|options| options.write_rate = rate).await;
    let mut otto = create_principal(&fleet, "otto", "operator", None).await;
    let mut put = async |letter: &str| {
        let body = letter.repeat(FILE_BYTES);
        let path = format!("/v1/blobs/{}", hash_content(body.as_bytes()));
        let request = Request::put(path).header("content-type", "application/octet-stream");
        otto.send(request.body(Bytes::from(body)).unwrap()).await.unwrap()
    };
    assert_eq!(put("a").await.status().as_u16(), 204);
    assert_eq!(put("a").await.status().as_u16(), 204, "a body that is stored already does not count");
    let refusal = put("b").await;
    let body: Value = serde_json::from_slice(refusal.body()).unwrap();
    assert_eq!((refusal.status().as_u16(), &body["error"]["type"]), (503, &json!("server.busy")), "{body}");
    assert!(refusal.headers().contains_key("retry-after"));
    let metrics = fleet.components().metrics.text_for_cluster(None);
    for name in ["stemma_blobs_bytes", "stemma_blobs_unnamed_bytes"] {
        assert!(metrics.lines().any(|line| line == format!("{name} {FILE_BYTES}")), "{name}:\n{metrics}");
    }
}

/// Regression: an admin of a cluster could create principals there, and each of them had the full limit. In this test,
/// six principals that are bound to one cluster may together store four times the limit of one principal.
#[tokio::test]
async fn x03_cluster_principals_share_fourfold_quota() {
    let rate = ByteRate { burst_bytes: BURST_BYTES as u64, bytes_per_second: 1 };
    let fleet = Fleet::start_with(|options| options.write_rate = rate).await;
    two_clusters(&fleet).await;
    let mut write_count = 0;
    let mut refusal_message = String::new();
    for number in 0..6 {
        let mut client = create_principal(&fleet, &format!("p{number}"), "operator", Some("own")).await;
        refusal_message = loop {
            let answer = patch(&mut client, "/v1/nodes/own-node", write_count).await;
            if !answer.status().is_success() {
                assert_eq!(answer.status().as_u16(), 503);
                let body: Value = serde_json::from_slice(answer.body()).unwrap();
                break body["error"]["message"].as_str().unwrap().to_owned();
            }
            write_count += 1;
            assert!(write_count < 1000, "no write is throttled");
        };
    }
    // Each write stores the text twice, in the object and in its history.
    // The range has a margin for the other fields of the object, and for the last write before each refusal.
    let stored_bytes = write_count * 2 * TEXT_BYTES;
    assert!(
        (4 * BURST_BYTES - 16 * TEXT_BYTES..4 * BURST_BYTES + 8 * TEXT_BYTES).contains(&stored_bytes),
        "{write_count} writes, {stored_bytes} bytes"
    );
    assert!(refusal_message.contains("together with the other principals of its cluster"), "{refusal_message}");
    let mut other_client = create_principal(&fleet, "other", "operator", None).await;
    assert_eq!(
        patch(&mut other_client, "/v1/nodes/own-node", 2_000).await.status().as_u16(),
        200,
        "a principal without a cluster is not throttled"
    );
}

/// One small write to a group changes an effective value on each of its nodes. If each node adds its own entry to the
/// value, the controller stores the value once per node.
#[tokio::test]
async fn x03_f04_released_bytes_count_against_bound_principals() {
    let rate = ByteRate { burst_bytes: BURST_BYTES as u64, bytes_per_second: 1 };
    let fleet = Fleet::start_with(|options| {
        (options.write_rate, options.publishing) = (rate, PublishMode::Reconciler);
    })
    .await;
    let task = json!({"id": "t", "type": "file", "tags": ["web"],
        "parameters": {"path": "/etc/t", "template": "{{ labels_with_prefix('x/') }}"}});
    let release = json!({"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}},
        "tags": {"web": {}}, "tasks": [task]});
    let node =
        |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "own/web", "labels": {"x/own": format!("{n}")}});
    let site_objects = json!([release, {"kind": "Cluster", "name": "own", "release": "site@1"},
        {"kind": "NodeGroup", "cluster": "own", "name": "web", "roles": ["web"]}]);
    let objects = site_objects.as_array().unwrap().iter().cloned().chain((0..200).map(node)).collect::<Vec<_>>();
    fleet.apply(Value::Array(objects)).await;
    let [mut otto, mut ada, mut fred] = [
        create_principal(&fleet, "otto", "operator", Some("own")).await,
        create_principal(&fleet, "ada", "operator", Some("own")).await,
        create_principal(&fleet, "fred", "operator", None).await,
    ];
    // Each node has its own map of about 2 KiB, which is stored again with each change. The 200 maps are about a
    // twentieth of what all principals of the cluster may store at once. The write to the group itself stores about a
    // hundredth of the size of the maps.
    let mut refusal = None;
    for change in 0..20 {
        let labels: serde_json::Map<_, _> = (0..13).map(|n| (format!("x/{n}"), format!("{change:0>140}").into())).collect();
        let labels_patch = json!({"labels": labels});
        let request = Request::patch("/v1/clusters/own/nodegroups/web").header("content-type", "application/merge-patch+json");
        let answer = otto.send(request.body(labels_patch.to_string().into()).unwrap()).await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
        let revision = fleet.last_revision().await;
        wait_until(|| fleet.components().desired.resolved_revision().0 >= revision).await;
        let small_patch = json!([{"op": "add", "path": "/extra/text", "value": change.to_string()}]).to_string();
        let request = Request::patch("/v1/nodes/n0").header("content-type", "application/json");
        let ada_answer = ada.send(request.body(small_patch.into()).unwrap()).await.unwrap();
        if ada_answer.status().as_u16() == 503 {
            refusal = Some(ada_answer);
            break;
        }
    }
    let refusal = refusal.expect("twenty writes store twice the limit of the cluster");
    let body: Value = serde_json::from_slice(refusal.body()).unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("together with the other principals of its cluster"), "{body}");
    assert_eq!(
        patch(&mut fred, "/v1/nodes/n0", 1).await.status().as_u16(),
        200,
        "a principal without a cluster is not throttled"
    );
}
