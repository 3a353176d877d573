//! Server-sent events: changes of objects by revision, the states of nodes, and which client sees what.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use serde_json::{Value, json};
use stemma_controller::api::{Api, BoxedBody, respond};
use stemma_controller::records::reported::ObservationRecord;
use stemma_controller::records::{codec, key};
use stemma_controller::registry::Registry;
use stemma_controller::store::{RedbOptions, Transaction};
use stemma_core::object::{ClusterId, Observation, ReportedLabel, Timestamp};
use stemma_core::status::StateInputs;
use tokio::time::{Instant, timeout};

use crate::fleet::{Fleet, TIMEOUT, TestClock, observation_digest};
use crate::served::TestApi;

/// One event of a stream: its id if any, its class, and its data.
type SentEvent = (Option<String>, String, Value);

/// The receiving end of an event stream.
struct EventReader {
    body: BoxedBody,
    /// The received text that is not yet returned as an event.
    text: String,
}

impl EventReader {
    /// Opens the stream at this path. With `last_event_id`, the stream continues after the event with that id.
    async fn open(api: Arc<Api>, path: &str, last_event_id: Option<u64>) -> Self {
        let last_event_id = last_event_id.map(|last_event_id| ("last-event-id", last_event_id.to_string()));
        Self::open_with(api, path, last_event_id.as_ref().map(|(name, value)| (*name, &**value))).await
    }

    /// Opens the stream at this path with one more header, if any. Checks the status and the content type.
    async fn open_with(api: Arc<Api>, path: &str, header: Option<(&str, &str)>) -> Self {
        let request = Request::get(path).header("host", "localhost");
        let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        let response = respond(api, None, request.body(Full::new(Bytes::new())).unwrap()).await;
        assert_eq!(response.status().as_u16(), 200, "GET {path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new() }
    }

    /// Reads the next event, and skips comments. Returns `None` at the end of the stream.
    async fn next(&mut self) -> Option<SentEvent> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                // A comment has no data.
                let Some(data) = field("data") else { continue };
                let class = field("event").unwrap().to_owned();
                return Some((field("id").map(str::to_owned), class, serde_json::from_str(data).unwrap()));
            }
            let text = timeout(TIMEOUT, self.next_text()).await.expect("an event in time")?;
            self.text.push_str(&text);
        }
    }

    /// Reads the next part of the body as text. It may be a comment of the stream. Returns `None` at the end of the
    /// stream.
    async fn next_text(&mut self) -> Option<String> {
        let frame = timeout(TIMEOUT, self.body.frame()).await.expect("something is sent in time");
        let data = frame?.unwrap().into_data().unwrap();
        Some(std::str::from_utf8(&data).unwrap().to_owned())
    }

    /// Reads the next event, which must be a change of an object. Returns the id of the event, if any, and the text
    /// `ACTION KIND/NAME in CLUSTER`.
    async fn next_change(&mut self) -> (Option<u64>, String) {
        let (id, class, data) = self.next().await.unwrap();
        assert_eq!(class, "object", "{data}");
        let text = |field: &str| data[field].as_str().unwrap_or("-").to_owned();
        let summary = format!("{} {}/{} in {}", text("action"), text("kind"), text("name"), text("cluster"));
        (id.map(|id| id.parse().unwrap()), summary)
    }
}

/// Starts an API with cluster prod, its group web, node n1 in that group, and node loose in no group.
async fn site() -> TestApi {
    let server = TestApi::start().await;
    let objects = json!({"objects": [
        {"kind": "Cluster", "name": "prod", "labels": {"tier": "gold"}},
        {"kind": "NodeGroup", "cluster": "prod", "name": "web"},
        {"kind": "Node", "name": "n1", "nodegroup": "prod/web"},
        {"kind": "Node", "name": "loose"},
    ]});
    server.expect("POST", "/v1/apply", &objects, 200).await;
    server
}

/// One write created the four objects, so their events have one revision. Only the last event has an id, from which a
/// client can continue.
#[tokio::test]
async fn event_id_is_set_on_last_event_of_revision() {
    let server = site().await;
    let mut stream = EventReader::open(server.api(), "/v1/events?class=object&from=1", None).await;
    let mut changes = Vec::new();
    for _ in 0..4 {
        changes.push(stream.next_change().await);
    }
    let names: Vec<&str> = changes.iter().map(|(_, summary)| summary.as_str()).collect();
    assert_eq!(
        names,
        ["created cluster/prod in prod", "created nodegroup/web in prod", "created node/n1 in prod", "created node/loose in -"]
    );
    let ids: Vec<Option<u64>> = changes.iter().map(|(id, _)| *id).collect();
    assert!(ids[..3].iter().all(Option::is_none), "{ids:?}");
    let last_id = ids[3].unwrap();
    server.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "add", "path": "/labels/a", "value": "b"}]), 200).await;
    let (id, class, data) = stream.next().await.unwrap();
    assert_eq!((class.as_str(), &data["object"]["labels"]), ("object", &json!({"a": "b"})));
    assert_eq!(data["object"]["resource_version"], data["revision"]);
    assert_eq!(id.unwrap(), data["revision"].to_string());
    server.expect("DELETE", "/v1/nodes/loose", &Value::Null, 204).await;
    let (_, _, deletion) = stream.next().await.unwrap();
    assert_eq!(
        json!([deletion["action"], deletion["name"], deletion["object"]]),
        json!(["deleted", "loose", null]),
        "the event of a deletion contains the name and no object"
    );
    // A client that was disconnected continues after the last event it has seen.
    let mut resumed_stream = EventReader::open(server.api(), "/v1/events?class=object", Some(last_id)).await;
    assert_eq!(resumed_stream.next_change().await.1, "updated node/n1 in prod");
    assert_eq!(resumed_stream.next_change().await.1, "deleted node/loose in -");
}

/// The second stream selects nodes with the label `tier=gold`. Node n1 loses and regains this label.
#[tokio::test]
async fn event_filter_reports_object_when_leaving_selection() {
    let server = site().await;
    let mut node_stream = EventReader::open(server.api(), "/v1/events?class=object&kind=node&from=1", None).await;
    let mut gold_stream =
        EventReader::open(server.api(), "/v1/events?class=object&kind=node&selector=tier%3Dgold&from=1", None).await;
    assert_eq!(node_stream.next_change().await.1, "created node/n1 in prod");
    assert_eq!(node_stream.next_change().await.1, "created node/loose in -");
    assert_eq!(gold_stream.next_change().await.1, "created node/n1 in prod", "n1 inherits the label of the cluster");
    server.expect("PATCH", "/v1/nodes/loose", &json!([{"op": "add", "path": "/labels/tier", "value": "silver"}]), 200).await;
    server.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "add", "path": "/labels/tier", "value": "silver"}]), 200).await;
    server.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "add", "path": "/labels/other", "value": "x"}]), 200).await;
    server.expect("DELETE", "/v1/nodes/loose", &Value::Null, 204).await;
    server.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "remove", "path": "/labels/tier"}]), 200).await;
    assert_eq!(gold_stream.next_change().await.1, "updated node/n1 in prod", "n1 had the label before this update");
    let (_, _, data) = gold_stream.next().await.unwrap();
    assert!(data["object"]["labels"].get("tier").is_none(), "no event is sent while n1 does not match: {data}");
}

#[tokio::test]
async fn event_stream_rejects_invalid_parameters() {
    let server = site().await;
    for (path, status, kind) in [
        ("/v1/events?from=1000000", 409, "revision.ahead"),
        ("/v1/events?from=x", 400, "request.query"),
        ("/v1/events?class=none", 400, "request.query"),
        ("/v1/events?kind=nodes", 400, "request.query"),
        ("/v1/events?kind=token", 400, "request.query"),
        ("/v1/events?kind=node,secret", 400, "request.query"),
        ("/v1/events?selector=%2C%2C", 400, "selector.invalid"),
        ("/v1/events?since=1", 400, "request.query"),
    ] {
        let answer = server.send("GET", path, &[], None).await;
        assert_eq!((answer.status, &answer.body["error"]["type"]), (status, &json!(kind)), "{path}");
    }
    let answer = server.send("GET", "/v1/events", &[("last-event-id", "x")], None).await;
    assert_eq!(answer.status, 400);
}

/// Returns whether the controller accepts one more event stream.
async fn is_admitted(server: &TestApi) -> bool {
    let request = Request::get("/v1/events").header("host", "localhost").body(Full::new(Bytes::new())).unwrap();
    respond(server.api(), None, request).await.status() == 200
}

#[tokio::test]
async fn event_stream_starts_with_current_id_when_nothing_matches() {
    let server = site().await;
    let mut stream = EventReader::open(server.api(), "/v1/events?kind=release", None).await;
    let first_text = timeout(TIMEOUT, stream.next_text()).await.unwrap().unwrap();
    let head = server.api().cache().model().revision;
    assert_eq!(first_text, format!(": begins\nid: {head}\n\n"), "a comment has the current id, though no event matches");
}

#[tokio::test]
async fn event_stream_sends_keep_alive_after_30_seconds() {
    let server = site().await;
    let mut stream = EventReader::open(server.api(), "/v1/events?class=object&kind=cluster", None).await;
    server.expect("DELETE", "/v1/nodes/loose", &Value::Null, 204).await;
    server.expect("POST", "/v1/clusters", &json!({"name": "far"}), 202).await;
    let (last_id, summary) = stream.next_change().await;
    assert_eq!(summary, "created cluster/far in far");
    // From here on the test's clock is paused. When no task has work left, it jumps to the next timer.
    tokio::time::pause();
    let (interval, tolerance) = (Duration::from_secs(30), Duration::from_millis(5));
    let comment = format!(": keep-alive\nid: {}\n\n", last_id.unwrap());
    let mut last_read_time = Instant::now();
    assert_eq!(stream.next_text().await.unwrap(), comment);
    assert!(
        last_read_time.elapsed() < interval + tolerance,
        "the first comment is sent within 30 seconds: {:?}",
        last_read_time.elapsed()
    );
    for _ in 0..3 {
        last_read_time = Instant::now();
        assert_eq!(stream.next_text().await.unwrap(), comment);
        assert!(last_read_time.elapsed().abs_diff(interval) < tolerance, "{:?}", last_read_time.elapsed());
    }
}

/// A token expires without a write. Without other writes, the stream checks the token only before a keep-alive comment.
#[tokio::test]
async fn event_stream_closes_at_keep_alive_when_token_expired() {
    let server = site().await;
    server.expect("POST", "/v1/principals", &json!({"name": "vera", "role": "viewer"}), 201).await;
    let token_answer = server.expect("POST", "/v1/principals/vera/tokens", &json!({"ttl_seconds": 3600}), 201).await;
    let clock = Arc::new(TestClock::default());
    let (store, cache) = (Arc::clone(server.api().registry.store()), Arc::clone(server.api().cache()));
    let registry = Arc::new(Registry::new(store, cache, Arc::clone(&clock) as _));
    let api = Arc::new(Api { registry, ..Api::clone(&server.api()) });
    let token = ("x-auth-token", token_answer["token"].as_str().unwrap());
    let mut stream = EventReader::open_with(api, "/v1/events?class=object", Some(token)).await;
    let first_text = timeout(TIMEOUT, stream.next_text()).await.unwrap().unwrap();
    assert!(first_text.starts_with(": begins\n"), "{first_text}");
    tokio::time::pause();
    let second_text = stream.next_text().await.unwrap();
    assert!(second_text.starts_with(": keep-alive\n"), "{second_text}");
    clock.advance(3600);
    let last_text = stream.next_text().await.unwrap();
    assert!(last_text.starts_with("event: end\n") && last_text.contains("auth.required"), "{last_text}");
    assert_eq!(stream.next_text().await, None);
}

/// A client that begins to read after nine seconds gets all 20 events, and one after eleven seconds only a part.
#[tokio::test]
async fn event_stream_closes_when_client_reads_nothing_for_ten_seconds() {
    let server = TestApi::start().await;
    let names: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
    for name in &names {
        server.expect("POST", "/v1/clusters", &json!({"name": name}), 202).await;
    }
    tokio::time::pause();
    for (wait_s, is_closed) in [(9, false), (11, true)] {
        let mut stream = EventReader::open(server.api(), "/v1/events?class=object&kind=cluster&from=1", None).await;
        tokio::time::sleep(Duration::from_secs(wait_s)).await;
        let mut received_names = Vec::new();
        let end = loop {
            match stream.next().await {
                Some((_, class, data)) if class == "object" => received_names.push(data["name"].as_str().unwrap().to_owned()),
                end => break end,
            }
            if received_names.len() == names.len() {
                break None;
            }
        };
        assert!(names.starts_with(&received_names), "events are sent in order: {received_names:?}");
        assert_eq!(received_names.len() < names.len(), is_closed, "after {wait_s} s: {received_names:?}");
        let end_reason = end.map(|(_, class, data)| (class, data["error"]["type"].clone()));
        assert_eq!(end_reason, is_closed.then(|| ("end".to_owned(), json!("events.slow"))));
        if is_closed {
            assert!(stream.next().await.is_none(), "the stream has ended");
        }
    }
}

/// A node that is not placed in a group has the state `unplaced`. The stream sends the states of all nodes again,
/// because it lost some changes.
#[tokio::test]
async fn event_stream_sends_all_states_when_changes_are_dropped() {
    let (server, fleet) = (site().await, Fleet::start().await);
    let table = Arc::clone(&fleet.components().desired);
    let nodes = server.api().cache().model().nodes.iter().map(|node| node.meta.uuid).collect::<Vec<_>>();
    let set_placed = |node: usize, is_placed| {
        table.status().set_inputs(nodes[node], || StateInputs { is_placed, ..StateInputs::default() });
    };
    (0..nodes.len()).for_each(|node| set_placed(node, true));
    let api = Arc::new(Api { desired: Some(Arc::clone(&table)), ..Api::clone(&server.api()) });
    let mut stream = EventReader::open(api, "/v1/events?class=status", None).await;
    let read_states = async |stream: &mut EventReader| {
        let mut states = BTreeMap::new();
        while states.len() < nodes.len() {
            let (_, _, data) = stream.next().await.unwrap();
            states.insert(data["name"].as_str().unwrap().to_owned(), data["state"].as_str().unwrap().to_owned());
        }
        states
    };
    let first_states = timeout(TIMEOUT, read_states(&mut stream)).await.expect("the states at the start of the stream");
    // Node 0 changes once. Then node 1 changes more often than the table of states retains changes. Without an await,
    // the stream cannot read in between.
    set_placed(0, false);
    (0..=16 * 1024).for_each(|n| set_placed(1, n % 2 == 1));
    let later_states = timeout(TIMEOUT, read_states(&mut stream)).await.expect("the states after the lost changes");
    assert_eq!(first_states.into_values().filter(|state| state == "unplaced").count(), 0);
    assert_eq!(
        later_states.into_values().collect::<Vec<_>>(),
        ["unplaced", "unplaced"],
        "also of the node whose change was dropped"
    );
}

/// While the reconciler is delayed, its table contains the states from before the last write. The caller's stream then
/// starts with states that are computed from the model (`is_stale`).
#[tokio::test]
async fn y06_event_stream_starts_after_own_write() {
    let (server, fleet) = (site().await, Fleet::start().await);
    let table = Arc::clone(&fleet.components().desired);
    let model = server.api().cache().model();
    let set_placed = |name: &str, is_placed| {
        let node = model.nodes.find(None, name).unwrap().meta.uuid;
        table.status().set_inputs(node, || StateInputs { is_placed, ..StateInputs::default() });
    };
    // As if `loose` had been in a group until now.
    for name in ["n1", "loose"] {
        set_placed(name, true);
    }
    let api = Api { desired: Some(Arc::clone(&table)), is_stale: true, ..Api::clone(&server.api()) };
    let mut stream = EventReader::open(Arc::new(api), "/v1/events?class=status", None).await;
    let mut is_unplaced_by_name = BTreeMap::new();
    for _ in 0..2 {
        let (_, _, data) = stream.next().await.unwrap();
        is_unplaced_by_name.insert(data["name"].as_str().unwrap().to_owned(), data["state"] == "unplaced");
    }
    assert_eq!(is_unplaced_by_name, BTreeMap::from([("loose".to_owned(), true), ("n1".to_owned(), false)]));
    // From here on the stream follows the table.
    set_placed("n1", false);
    let (_, _, data) = stream.next().await.unwrap();
    assert_eq!((&data["name"], &data["state"]), (&json!("n1"), &json!("unplaced")));
}

/// The store retains eight changes of 32.
#[tokio::test]
async fn event_stream_rejects_compacted_revision() {
    let options = RedbOptions { kept_changes: 8, recent_changes: 8, ..RedbOptions::default() };
    let server = TestApi::start_on_store(None, options).await;
    for n in 0..32 {
        server.expect("POST", "/v1/clusters", &json!({"name": format!("c{n}")}), 202).await;
    }
    let answer = server.send("GET", "/v1/events?from=1", &[], None).await;
    assert_eq!((answer.status, &answer.body["error"]["type"]), (410, &json!("events.compacted")));
    let detail = answer.body["error"]["detail"].as_str().unwrap();
    assert!(detail.contains("list the objects again"), "{detail}");
}

/// The principal is bound to the cluster prod.
#[tokio::test]
async fn event_stream_hides_other_clusters_when_principal_is_bound() {
    let server = site().await;
    server.expect("POST", "/v1/clusters", &json!({"name": "far", "labels": {"zone": "far"}}), 202).await;
    server.expect("POST", "/v1/clusters/far/nodegroups", &json!({"name": "web"}), 202).await;
    let move_to = |group: Option<&str>| json!([{"op": "add", "path": "/nodegroup", "value": group}]);
    let add_secret = json!([{"op": "add", "path": "/labels/secret", "value": "far"}]);
    // The node loose is first in no cluster, then in prod, and then in far.
    server.expect("PATCH", "/v1/nodes/loose", &add_secret, 200).await;
    server.expect("PATCH", "/v1/nodes/loose", &move_to(Some("prod/web")), 200).await;
    server.expect("PATCH", "/v1/nodes/loose", &move_to(Some("far/web")), 200).await;
    server.expect("PATCH", "/v1/nodes/loose", &json!([{"op": "add", "path": "/labels/secret", "value": "more"}]), 200).await;
    server.expect("PATCH", "/v1/clusters/prod", &json!([{"op": "add", "path": "/labels/last", "value": "x"}]), 202).await;
    server.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "add", "path": "/labels/zone", "value": "far"}]), 200).await;
    let model = server.api().cache().model();
    let cluster_uuid = model.clusters.find(None, "prod").unwrap().meta.uuid;
    let bound_api = Api { visible_cluster: Some(ClusterId(cluster_uuid)), ..Api::clone(&server.api()) };
    let bound_api = Arc::new(bound_api);
    let mut selecting_stream =
        EventReader::open(Arc::clone(&bound_api), "/v1/events?class=object&from=1&selector=zone%3Dfar", None).await;
    assert_eq!(
        selecting_stream.next_change().await.1,
        "updated node/n1 in prod",
        "the label that loose inherits in far does not match here"
    );
    let mut stream = EventReader::open(bound_api, "/v1/events?class=object&from=1", None).await;
    let mut loose_events = Vec::new();
    loop {
        let (_, _, data) = stream.next().await.unwrap();
        if data["name"] == "loose" {
            loose_events.push((data["cluster"].clone(), data["object"]["labels"]["secret"].clone()));
        }
        assert_ne!(data["name"], "far", "{data}");
        if data["object"]["labels"]["last"] == "x" {
            break;
        }
    }
    assert_eq!(
        loose_events,
        [(json!("prod"), json!("far")), (json!("prod"), Value::Null)],
        "one event with the object on entry, and one without it on exit"
    );
}

/// A principal that is bound to a cluster sees the name that the node had in that cluster, and not the name that the
/// node gets when it leaves. Regression: such a principal was sent the later name of a node that had left the cluster.
#[tokio::test]
async fn x04_f15_event_stream_shows_old_name_when_object_leaves_cluster() {
    let server = site().await;
    server.expect("POST", "/v1/clusters", &json!({"name": "far"}), 202).await;
    server.expect("POST", "/v1/clusters/far/nodegroups", &json!({"name": "web"}), 202).await;
    let first_revision = server.api().cache().model().revision.next();
    let rename = |name: &str| json!({"op": "replace", "path": "/name", "value": name});
    let move_to_far = json!([rename("n2"), {"op": "replace", "path": "/nodegroup", "value": "far/web"}]);
    server.expect("PATCH", "/v1/nodes/n1", &move_to_far, 200).await;
    server.expect("PATCH", "/v1/nodes/n2", &json!([rename("n3")]), 200).await;
    let leave_group = json!([rename("n4"), {"op": "remove", "path": "/nodegroup"}]);
    server.expect("PATCH", "/v1/nodes/n3", &leave_group, 200).await;
    let label = json!([{"op": "add", "path": "/labels/last", "value": "x"}]);
    for cluster in ["prod", "far"] {
        server.expect("PATCH", &format!("/v1/clusters/{cluster}"), &label, 202).await;
    }
    for (cluster, expected) in [
        (Some("prod"), &["updated node/n1 in prod", "updated cluster/prod in prod"][..]),
        (
            Some("far"),
            &["updated node/n2 in far", "updated node/n3 in far", "updated node/n3 in far", "updated cluster/far in far"],
        ),
        (None, &["updated node/n2 in far", "updated node/n3 in far", "updated node/n4 in -"]),
    ] {
        let model = server.api().cache().model();
        let cluster_id = cluster.map(|name| ClusterId(model.clusters.find(None, name).unwrap().meta.uuid));
        let bound_api = Arc::new(Api { visible_cluster: cluster_id, ..Api::clone(&server.api()) });
        let mut stream = EventReader::open(bound_api, &format!("/v1/events?class=object&from={first_revision}"), None).await;
        let mut changes = Vec::new();
        while changes.len() < expected.len() {
            changes.push(stream.next_change().await.1);
        }
        assert_eq!(changes, expected, "{cluster:?}");
    }
}

/// One principal can have 250 streams. Other requests still succeed then. When the controller stops, each stream ends
/// with an event.
#[tokio::test]
async fn event_streams_have_own_limit_and_final_event() {
    let server = site().await;
    let mut streams = Vec::new();
    for _ in 0..250 {
        streams.push(EventReader::open(server.api(), "/v1/events", None).await);
    }
    assert_eq!(server.send("GET", "/v1/events", &[], None).await.status, 503);
    server.get("/v1/nodes").await;
    drop(streams.pop());
    // A stream counts against the limit until the controller notices that its client has disconnected.
    timeout(TIMEOUT, async {
        while !is_admitted(&server).await {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    server.api().streams.close();
    for stream in &mut streams {
        let (_, class, data) = stream.next().await.unwrap();
        assert_eq!((class.as_str(), &data["error"]["type"]), ("end", &json!("server.stopping")));
        assert!(stream.next().await.is_none());
    }
}

/// Host n1 reports the labels `rack` and `slot`, and the cluster accepts only `rack`. So `slot` is selected as
/// `reported:slot`. Regression: the selector of an event stream ignored reported values, and ignored the labels that
/// hosts provide.
#[tokio::test]
async fn event_filter_matches_reported_values_as_lists_do() {
    let server = site().await;
    let accepting_cluster = json!({"objects": [{"kind": "Cluster", "name": "prod", "labels": {"tier": "gold"}, "host_labels": {"accept": ["rack"]}}]});
    server.expect("POST", "/v1/apply?force=true", &accepting_cluster, 200).await;
    let uuid = server.get("/v1/nodes/n1").await["uuid"].as_str().unwrap().parse().unwrap();
    let label = |key: &str, value: &str| ReportedLabel { key: key.into(), value: value.into(), source: "node-labels".into() };
    let record = ObservationRecord {
        at: Timestamp(0),
        digest: observation_digest(&stemma_wire::message::observed::Observation::default()),
        observation: Observation {
            labels: [label("rack", "r1"), label("slot", "s1")].into_iter().collect(),
            ..Observation::default()
        },
        label_sources: BTreeMap::new(),
    };
    let store = Arc::clone(server.api().registry.store());
    let write = Transaction::default().put(key::node_entry(key::OBSERVATIONS, uuid), codec::encode(&record));
    let revision = store.commit(write).await.unwrap();
    server.api().cache().wait_for(revision).await;
    for (selector, is_listed) in
        [("reported:slot%3Ds1", true), ("rack%3Dr1", true), ("reported:!slot", false), ("reported:slot%3Ds2", false)]
    {
        let node_list = server.get(&format!("/v1/nodes?selector={selector}")).await;
        let is_n1 = |node: &Value| node["name"] == "n1";
        assert_eq!(node_list["nodes"].as_array().unwrap().iter().any(is_n1), is_listed, "{selector}");
    }
    let open = async |selector: &str| {
        EventReader::open(server.api(), &format!("/v1/events?class=object&kind=node&selector={selector}"), None).await
    };
    let (mut slot_stream, mut rack_stream, mut slotless_stream) =
        (open("reported:slot%3Ds1").await, open("rack%3Dr1").await, open("reported:!slot").await);
    for (node, value) in [("loose", "1"), ("n1", "2")] {
        let set = json!([{"op": "add", "path": "/extra/n", "value": value}]);
        server.expect("PATCH", &format!("/v1/nodes/{node}"), &set, 200).await;
    }
    server.expect("DELETE", "/v1/nodes/n1", &Value::Null, 204).await;
    for stream in [&mut slot_stream, &mut rack_stream] {
        assert_eq!(stream.next_change().await.1, "updated node/n1 in prod");
    }
    for stream in [&mut slot_stream, &mut rack_stream] {
        assert_eq!(stream.next_change().await.1, "deleted node/n1 in prod", "the reported values are unknown after the deletion");
    }
    assert_eq!(slotless_stream.next_change().await.1, "updated node/loose in -");
}
