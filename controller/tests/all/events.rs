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

/// One event: its id, its class and its data.
type SentEvent = (Option<String>, String, Value);

struct EventReader {
    body: BoxedBody,
    text: String,
}

impl EventReader {
    async fn open(api: Arc<Api>, path: &str, last: Option<u64>) -> Self {
        let last = last.map(|last| ("last-event-id", last.to_string()));
        Self::open_with(api, path, last.as_ref().map(|(name, value)| (*name, &**value))).await
    }

    async fn open_with(api: Arc<Api>, path: &str, header: Option<(&str, &str)>) -> Self {
        let request = Request::get(path).header("host", "localhost");
        let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        let response = respond(api, None, request.body(Full::new(Bytes::new())).unwrap()).await;
        assert_eq!(response.status().as_u16(), 200, "GET {path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new() }
    }

    /// Reads the next event. Returns `None` at the end of the stream.
    async fn next(&mut self) -> Option<SentEvent> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                let Some(data) = field("data") else { continue };
                let class = field("event").unwrap().to_owned();
                return Some((field("id").map(str::to_owned), class, serde_json::from_str(data).unwrap()));
            }
            let text = timeout(TIMEOUT, self.next_text()).await.expect("an event in time")?;
            self.text.push_str(&text);
        }
    }

    /// Reads the next text as it was sent, which may be a comment. Returns `None` at the end of the stream.
    async fn next_text(&mut self) -> Option<String> {
        let frame = timeout(TIMEOUT, self.body.frame()).await.expect("something is sent in time");
        let data = frame?.unwrap().into_data().unwrap();
        Some(std::str::from_utf8(&data).unwrap().to_owned())
    }

    /// Reads the next change of an object. Returns its id, and `ACTION KIND/NAME in CLUSTER`.
    async fn next_change(&mut self) -> (Option<u64>, String) {
        let (id, class, data) = self.next().await.unwrap();
        assert_eq!(class, "object", "{data}");
        let text = |field: &str| data[field].as_str().unwrap_or("-").to_owned();
        let what = format!("{} {}/{} in {}", text("action"), text("kind"), text("name"), text("cluster"));
        (id.map(|id| id.parse().unwrap()), what)
    }
}

async fn site() -> TestApi {
    let served = TestApi::start().await;
    let objects = json!({"objects": [
        {"kind": "Cluster", "name": "prod", "labels": {"tier": "gold"}},
        {"kind": "NodeGroup", "cluster": "prod", "name": "web"},
        {"kind": "Node", "name": "n1", "nodegroup": "prod/web"},
        {"kind": "Node", "name": "loose"},
    ]});
    served.expect("POST", "/v1/apply", &objects, 200).await;
    served
}

#[tokio::test]
async fn event_id_is_set_on_last_event_of_revision() {
    let served = site().await;
    let mut stream = EventReader::open(served.api(), "/v1/events?class=object&from=1", None).await;
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(stream.next_change().await);
    }
    let names: Vec<&str> = told.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(
        names,
        ["created cluster/prod in prod", "created nodegroup/web in prod", "created node/n1 in prod", "created node/loose in -"]
    );
    let ids: Vec<Option<u64>> = told.iter().map(|(id, _)| *id).collect();
    assert!(ids[..3].iter().all(Option::is_none), "{ids:?}");
    let last = ids[3].unwrap();
    served.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "add", "path": "/labels/a", "value": "b"}]), 200).await;
    let (id, class, data) = stream.next().await.unwrap();
    assert_eq!((class.as_str(), &data["object"]["labels"]), ("object", &json!({"a": "b"})));
    assert_eq!(data["object"]["resource_version"], data["revision"]);
    assert_eq!(id.unwrap(), data["revision"].to_string());
    served.expect("DELETE", "/v1/nodes/loose", &Value::Null, 204).await;
    let (_, _, gone) = stream.next().await.unwrap();
    assert_eq!(
        json!([gone["action"], gone["name"], gone["object"]]),
        json!(["deleted", "loose", null]),
        "of what is gone its name is told"
    );
    // A client that was disconnected continues after the last event it has seen.
    let mut again = EventReader::open(served.api(), "/v1/events?class=object", Some(last)).await;
    assert_eq!(again.next_change().await.1, "updated node/n1 in prod");
    assert_eq!(again.next_change().await.1, "deleted node/loose in -");
}

#[tokio::test]
async fn event_filter_reports_object_when_leaving_selection() {
    let served = site().await;
    let mut nodes = EventReader::open(served.api(), "/v1/events?class=object&kind=node&from=1", None).await;
    let mut gold = EventReader::open(served.api(), "/v1/events?class=object&kind=node&selector=tier%3Dgold&from=1", None).await;
    assert_eq!(nodes.next_change().await.1, "created node/n1 in prod");
    assert_eq!(nodes.next_change().await.1, "created node/loose in -");
    assert_eq!(gold.next_change().await.1, "created node/n1 in prod", "its label is the cluster's");
    served.expect("PATCH", "/v1/nodes/loose", &json!([{"op": "add", "path": "/labels/tier", "value": "silver"}]), 200).await;
    served.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "add", "path": "/labels/tier", "value": "silver"}]), 200).await;
    served.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "add", "path": "/labels/other", "value": "x"}]), 200).await;
    served.expect("DELETE", "/v1/nodes/loose", &Value::Null, 204).await;
    served.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "remove", "path": "/labels/tier"}]), 200).await;
    assert_eq!(gold.next_change().await.1, "updated node/n1 in prod", "it had the label before");
    let (_, _, back) = gold.next().await.unwrap();
    assert!(back["object"]["labels"].get("tier").is_none(), "what came between was another's: {back}");
}

#[tokio::test]
async fn event_stream_rejects_invalid_parameters() {
    let served = site().await;
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
        let refused = served.send("GET", path, &[], None).await;
        assert_eq!((refused.status, &refused.body["error"]["type"]), (status, &json!(kind)), "{path}");
    }
    let refused = served.send("GET", "/v1/events", &[("last-event-id", "x")], None).await;
    assert_eq!(refused.status, 400);
}

async fn is_admitted(served: &TestApi) -> bool {
    let request = Request::get("/v1/events").header("host", "localhost").body(Full::new(Bytes::new())).unwrap();
    respond(served.api(), None, request).await.status() == 200
}

#[tokio::test]
async fn event_stream_starts_with_current_id_when_nothing_matches() {
    let served = site().await;
    let mut stream = EventReader::open(served.api(), "/v1/events?kind=release", None).await;
    let first = timeout(TIMEOUT, stream.next_text()).await.unwrap().unwrap();
    let head = served.api().cache().model().revision;
    assert_eq!(first, format!(": begins\nid: {head}\n\n"), "the id of what is not told, without an event");
}

#[tokio::test]
async fn event_stream_sends_keep_alive_after_30_seconds() {
    let served = site().await;
    let mut stream = EventReader::open(served.api(), "/v1/events?class=object&kind=cluster", None).await;
    served.expect("DELETE", "/v1/nodes/loose", &Value::Null, 204).await;
    served.expect("POST", "/v1/clusters", &json!({"name": "far"}), 202).await;
    let (last, what) = stream.next_change().await;
    assert_eq!(what, "created cluster/far in far");
    // From here on the test's clock is paused. When no task has work left, it jumps to the next timer.
    tokio::time::pause();
    let (round, rounding) = (Duration::from_secs(30), Duration::from_millis(5));
    let comment = format!(": keep-alive\nid: {}\n\n", last.unwrap());
    let mut before = Instant::now();
    assert_eq!(stream.next_text().await.unwrap(), comment);
    assert!(before.elapsed() < round + rounding, "the first comes within a round of any time: {:?}", before.elapsed());
    for _ in 0..3 {
        before = Instant::now();
        assert_eq!(stream.next_text().await.unwrap(), comment);
        assert!(before.elapsed().abs_diff(round) < rounding, "{:?}", before.elapsed());
    }
}

/// Nothing is written when a token expires, so no change ends its stream.
#[tokio::test]
async fn event_stream_closes_at_keep_alive_when_token_expired() {
    let served = site().await;
    served.expect("POST", "/v1/principals", &json!({"name": "vera", "role": "viewer"}), 201).await;
    let made = served.expect("POST", "/v1/principals/vera/tokens", &json!({"ttl_seconds": 3600}), 201).await;
    let clock = Arc::new(TestClock::default());
    let (store, cache) = (Arc::clone(served.api().registry.store()), Arc::clone(served.api().cache()));
    let registry = Arc::new(Registry::new(store, cache, Arc::clone(&clock) as _));
    let api = Arc::new(Api { registry, ..Api::clone(&served.api()) });
    let token = ("x-auth-token", made["token"].as_str().unwrap());
    let mut stream = EventReader::open_with(api, "/v1/events?class=object", Some(token)).await;
    let begins = timeout(TIMEOUT, stream.next_text()).await.unwrap().unwrap();
    assert!(begins.starts_with(": begins\n"), "{begins}");
    tokio::time::pause();
    let good = stream.next_text().await.unwrap();
    assert!(good.starts_with(": keep-alive\n"), "{good}");
    clock.advance(3600);
    let ended = stream.next_text().await.unwrap();
    assert!(ended.starts_with("event: end\n") && ended.contains("auth.required"), "{ended}");
    assert_eq!(stream.next_text().await, None);
}

#[tokio::test]
async fn event_stream_closes_when_client_reads_nothing_for_ten_seconds() {
    let served = TestApi::start().await;
    let names: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
    for name in &names {
        served.expect("POST", "/v1/clusters", &json!({"name": name}), 202).await;
    }
    tokio::time::pause();
    for (waits_s, is_cut) in [(9, false), (11, true)] {
        let mut stream = EventReader::open(served.api(), "/v1/events?class=object&kind=cluster&from=1", None).await;
        tokio::time::sleep(Duration::from_secs(waits_s)).await;
        let mut told = Vec::new();
        let end = loop {
            match stream.next().await {
                Some((_, class, data)) if class == "object" => told.push(data["name"].as_str().unwrap().to_owned()),
                end => break end,
            }
            if told.len() == names.len() {
                break None;
            }
        };
        assert!(names.starts_with(&told), "what is told is told in order: {told:?}");
        assert_eq!(told.len() < names.len(), is_cut, "after {waits_s} s: {told:?}");
        let why = end.map(|(_, class, data)| (class, data["error"]["type"].clone()));
        assert_eq!(why, is_cut.then(|| ("end".to_owned(), json!("events.slow"))));
        if is_cut {
            assert!(stream.next().await.is_none(), "it has ended");
        }
    }
}

#[tokio::test]
async fn event_stream_sends_all_states_when_changes_are_dropped() {
    let (served, fleet) = (site().await, Fleet::start().await);
    let table = Arc::clone(&fleet.parts().desired);
    let nodes = served.api().cache().model().nodes.iter().map(|node| node.meta.uuid).collect::<Vec<_>>();
    let stand = |node: usize, is_placed| {
        table.status().set_inputs(nodes[node], || StateInputs { is_placed, ..StateInputs::default() });
    };
    (0..nodes.len()).for_each(|node| stand(node, true));
    let api = Arc::new(Api { desired: Some(Arc::clone(&table)), ..Api::clone(&served.api()) });
    let mut stream = EventReader::open(api, "/v1/events?class=status", None).await;
    let told = async |stream: &mut EventReader| {
        let mut told = BTreeMap::new();
        while told.len() < nodes.len() {
            let (_, _, data) = stream.next().await.unwrap();
            told.insert(data["name"].as_str().unwrap().to_owned(), data["state"].as_str().unwrap().to_owned());
        }
        told
    };
    let before = timeout(TIMEOUT, told(&mut stream)).await.expect("it is told at first");
    // More changes than are retained, all of one node, after the last change of another node. Without an await, the
    // stream cannot read in between.
    stand(0, false);
    (0..=16 * 1024).for_each(|n| stand(1, n % 2 == 1));
    let after = timeout(TIMEOUT, told(&mut stream)).await.expect("it is told again");
    assert_eq!(before.into_values().filter(|state| state == "unplaced").count(), 0);
    assert_eq!(
        after.into_values().collect::<Vec<_>>(),
        ["unplaced", "unplaced"],
        "also of the node whose change is no longer kept"
    );
}

/// If the store accepts no writes, the reconciler is delayed, and its table contains the states from before the last
/// write.
#[tokio::test]
async fn y06_event_stream_starts_after_own_write() {
    let (served, fleet) = (site().await, Fleet::start().await);
    let table = Arc::clone(&fleet.parts().desired);
    let model = served.api().cache().model();
    let stand = |name: &str, is_placed| {
        let node = model.nodes.find(None, name).unwrap().meta.uuid;
        table.status().set_inputs(node, || StateInputs { is_placed, ..StateInputs::default() });
    };
    // As if `loose` had been in a group until now.
    for name in ["n1", "loose"] {
        stand(name, true);
    }
    let api = Api { desired: Some(Arc::clone(&table)), is_stale: true, ..Api::clone(&served.api()) };
    let mut stream = EventReader::open(Arc::new(api), "/v1/events?class=status", None).await;
    let mut told = BTreeMap::new();
    for _ in 0..2 {
        let (_, _, data) = stream.next().await.unwrap();
        told.insert(data["name"].as_str().unwrap().to_owned(), data["state"] == "unplaced");
    }
    assert_eq!(told, BTreeMap::from([("loose".to_owned(), true), ("n1".to_owned(), false)]));
    // From here on the stream follows the table.
    stand("n1", false);
    let (_, _, data) = stream.next().await.unwrap();
    assert_eq!((&data["name"], &data["state"]), (&json!("n1"), &json!("unplaced")));
}

#[tokio::test]
async fn event_stream_rejects_compacted_revision() {
    let few = RedbOptions { kept_changes: 8, recent_changes: 8, ..RedbOptions::default() };
    let served = TestApi::start_on_store(None, few).await;
    for n in 0..32 {
        served.expect("POST", "/v1/clusters", &json!({"name": format!("c{n}")}), 202).await;
    }
    let refused = served.send("GET", "/v1/events?from=1", &[], None).await;
    assert_eq!((refused.status, &refused.body["error"]["type"]), (410, &json!("events.compacted")));
    let detail = refused.body["error"]["detail"].as_str().unwrap();
    assert!(detail.contains("list the objects again"), "{detail}");
}

#[tokio::test]
async fn event_stream_hides_other_clusters_when_principal_is_bound() {
    let served = site().await;
    served.expect("POST", "/v1/clusters", &json!({"name": "far", "labels": {"zone": "far"}}), 202).await;
    served.expect("POST", "/v1/clusters/far/nodegroups", &json!({"name": "web"}), 202).await;
    let place = |group: Option<&str>| json!([{"op": "add", "path": "/nodegroup", "value": group}]);
    let secret = json!([{"op": "add", "path": "/labels/secret", "value": "far"}]);
    // First in no cluster, then in this one, then in another.
    served.expect("PATCH", "/v1/nodes/loose", &secret, 200).await;
    served.expect("PATCH", "/v1/nodes/loose", &place(Some("prod/web")), 200).await;
    served.expect("PATCH", "/v1/nodes/loose", &place(Some("far/web")), 200).await;
    served.expect("PATCH", "/v1/nodes/loose", &json!([{"op": "add", "path": "/labels/secret", "value": "more"}]), 200).await;
    served.expect("PATCH", "/v1/clusters/prod", &json!([{"op": "add", "path": "/labels/last", "value": "x"}]), 202).await;
    served.expect("PATCH", "/v1/nodes/n1", &json!([{"op": "add", "path": "/labels/zone", "value": "far"}]), 200).await;
    let model = served.api().cache().model();
    let within = model.clusters.find(None, "prod").unwrap().meta.uuid;
    let bound = Api { visible_cluster: Some(ClusterId(within)), ..Api::clone(&served.api()) };
    let bound = Arc::new(bound);
    let mut selected = EventReader::open(Arc::clone(&bound), "/v1/events?class=object&from=1&selector=zone%3Dfar", None).await;
    assert_eq!(selected.next_change().await.1, "updated node/n1 in prod", "what a node inherits elsewhere selects nothing");
    let mut stream = EventReader::open(bound, "/v1/events?class=object&from=1", None).await;
    let mut loose = Vec::new();
    loop {
        let (_, _, data) = stream.next().await.unwrap();
        if data["name"] == "loose" {
            loose.push((data["cluster"].clone(), data["object"]["labels"]["secret"].clone()));
        }
        assert_ne!(data["name"], "far", "{data}");
        if data["object"]["labels"]["last"] == "x" {
            break;
        }
    }
    assert_eq!(loose, [(json!("prod"), json!("far")), (json!("prod"), Value::Null)], "it came, and it went");
}

/// Regression: a principal that is bound to a cluster was sent the later name of a node that had left the cluster.
#[tokio::test]
async fn x04_f15_event_stream_shows_old_name_when_object_leaves_cluster() {
    let served = site().await;
    served.expect("POST", "/v1/clusters", &json!({"name": "far"}), 202).await;
    served.expect("POST", "/v1/clusters/far/nodegroups", &json!({"name": "web"}), 202).await;
    let from = served.api().cache().model().revision.next();
    let renamed = |name: &str| json!({"op": "replace", "path": "/name", "value": name});
    let to_far = json!([renamed("n2"), {"op": "replace", "path": "/nodegroup", "value": "far/web"}]);
    served.expect("PATCH", "/v1/nodes/n1", &to_far, 200).await;
    served.expect("PATCH", "/v1/nodes/n2", &json!([renamed("n3")]), 200).await;
    let to_nowhere = json!([renamed("n4"), {"op": "remove", "path": "/nodegroup"}]);
    served.expect("PATCH", "/v1/nodes/n3", &to_nowhere, 200).await;
    let label = json!([{"op": "add", "path": "/labels/last", "value": "x"}]);
    for cluster in ["prod", "far"] {
        served.expect("PATCH", &format!("/v1/clusters/{cluster}"), &label, 202).await;
    }
    for (cluster, expected) in [
        (Some("prod"), &["updated node/n1 in prod", "updated cluster/prod in prod"][..]),
        (
            Some("far"),
            &["updated node/n2 in far", "updated node/n3 in far", "updated node/n3 in far", "updated cluster/far in far"],
        ),
        (None, &["updated node/n2 in far", "updated node/n3 in far", "updated node/n4 in -"]),
    ] {
        let model = served.api().cache().model();
        let within = cluster.map(|name| ClusterId(model.clusters.find(None, name).unwrap().meta.uuid));
        let bound = Arc::new(Api { visible_cluster: within, ..Api::clone(&served.api()) });
        let mut stream = EventReader::open(bound, &format!("/v1/events?class=object&from={from}"), None).await;
        let mut told = Vec::new();
        while told.len() < expected.len() {
            told.push(stream.next_change().await.1);
        }
        assert_eq!(told, expected, "{cluster:?}");
    }
}

#[tokio::test]
async fn event_streams_have_own_limit_and_final_event() {
    let served = site().await;
    let mut streams = Vec::new();
    for _ in 0..250 {
        streams.push(EventReader::open(served.api(), "/v1/events", None).await);
    }
    assert_eq!(served.send("GET", "/v1/events", &[], None).await.status, 503);
    served.get("/v1/nodes").await;
    drop(streams.pop());
    // A place becomes free when the stream has noticed that its client is gone.
    timeout(TIMEOUT, async {
        while !is_admitted(&served).await {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    served.api().streams.close();
    for stream in &mut streams {
        let (_, class, data) = stream.next().await.unwrap();
        assert_eq!((class.as_str(), &data["error"]["type"]), ("end", &json!("server.stopping")));
        assert!(stream.next().await.is_none());
    }
}

/// Regression: a selector did not consider what a host reports, and a label that a host provides did not exist for it.
#[tokio::test]
async fn event_filter_matches_reported_values_as_lists_do() {
    let served = site().await;
    let accepts = json!({"objects": [{"kind": "Cluster", "name": "prod", "labels": {"tier": "gold"}, "host_labels": {"accept": ["rack"]}}]});
    served.expect("POST", "/v1/apply?force=true", &accepts, 200).await;
    let uuid = served.get("/v1/nodes/n1").await["uuid"].as_str().unwrap().parse().unwrap();
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
    let store = Arc::clone(served.api().registry.store());
    let written = Transaction::default().put(key::node_entry(key::OBSERVATIONS, uuid), codec::encode(&record));
    let revision = store.commit(written).await.unwrap();
    served.api().cache().wait_for(revision).await;
    for (selector, is_listed) in
        [("reported:slot%3Ds1", true), ("rack%3Dr1", true), ("reported:!slot", false), ("reported:slot%3Ds2", false)]
    {
        let listed = served.get(&format!("/v1/nodes?selector={selector}")).await;
        let is_n1 = |row: &Value| row["name"] == "n1";
        assert_eq!(listed["nodes"].as_array().unwrap().iter().any(is_n1), is_listed, "{selector}");
    }
    let open = async |selector: &str| {
        EventReader::open(served.api(), &format!("/v1/events?class=object&kind=node&selector={selector}"), None).await
    };
    let (mut slot, mut rack, mut none) =
        (open("reported:slot%3Ds1").await, open("rack%3Dr1").await, open("reported:!slot").await);
    for (node, value) in [("loose", "1"), ("n1", "2")] {
        let set = json!([{"op": "add", "path": "/extra/n", "value": value}]);
        served.expect("PATCH", &format!("/v1/nodes/{node}"), &set, 200).await;
    }
    served.expect("DELETE", "/v1/nodes/n1", &Value::Null, 204).await;
    for stream in [&mut slot, &mut rack] {
        assert_eq!(stream.next_change().await.1, "updated node/n1 in prod");
    }
    for stream in [&mut slot, &mut rack] {
        assert_eq!(stream.next_change().await.1, "deleted node/n1 in prod", "nobody knows any more what it reported");
    }
    assert_eq!(none.next_change().await.1, "updated node/loose in -");
}
