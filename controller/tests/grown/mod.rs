//! A cluster of so many nodes, half of which wait for tasks of the other half, and what changes in it cost: in CPU for the bench of growth,
//! in allocations for the test that gates its ratios.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_controller::intake::Intake as _;
use stemma_controller::run::{Options, Publishing};
use stemma_wire::client::Client;
use stemma_wire::message::enroll::EnrollRequest;
use stemma_wire::message::observed::{Outcome, TaskResult};
use uuid::Uuid;

use crate::fleet::{Fleet, asking};

/// Objects to an apply.
const CHUNK: usize = 250;
/// Changes in a round. The cheapest round counts: whatever else the machine does only adds to a round.
const IN_ROUND: u32 = 8;
const ROUNDS: u32 = 8;

/// What is measured: changes, then reads.
pub(crate) const MEASURED: [&str; 8] = [
    "label of one node",
    "result of one node",
    "node that is applied",
    "host that joins with a token",
    "100 nodes as listed",
    "100 nodes by name",
    "100 nodes in detail",
    "resolved of one node",
];

/// What was spent so far, in a unit of the caller: CPU of each thread, or allocations.
pub(crate) type Meter<const PARTS: usize> = fn() -> [f64; PARTS];

/// A cluster that runs.
pub(crate) struct Cluster<const PARTS: usize> {
    meter: Meter<PARTS>,
    fleet: Fleet,
    client: Client,
    nodes: usize,
    hosts: u32,
    edits: u32,
    sequences: BTreeMap<Uuid, u64>,
}

fn site() -> Value {
    let task = |id: &str, tag: &str, after: Value| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}, "cross_depends": after});
    json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}}, "tasks": [
            task("a", "x", json!([])),
            task("b", "y", json!([{"name": "a", "tags": ["x"]}])),
            task("c", "y", json!([{"name": "a", "tags": ["x"], "policy": "any"}])),
            task("d", "x", json!([{"name": "a", "tags": ["x"]}, {"name": "b", "tags": ["y"]}])),
        ]},
        {"kind": "Cluster", "name": "c", "release": "site@1"},
        {"kind": "NodeGroup", "cluster": "c", "name": "x", "roles": ["x"]},
        {"kind": "NodeGroup", "cluster": "c", "name": "y", "roles": ["y"]},
    ])
}

fn node(n: usize) -> Value {
    let group = if n.is_multiple_of(2) { "c/x" } else { "c/y" };
    json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": group})
}

impl<const PARTS: usize> Cluster<PARTS> {
    pub(crate) async fn start(meter: Meter<PARTS>) -> Self {
        let options = Options { publishing: Publishing::Reconciled, ..Options::default() };
        let fleet = Fleet::start_with(|own| *own = options).await;
        let client = fleet.operator();
        let mut cluster = Self { meter, fleet, client, nodes: 0, hosts: 0, edits: 0, sequences: BTreeMap::new() };
        cluster.send(Method::POST, "/v1/apply?force=true", json!({"objects": site()})).await;
        cluster
    }

    /// Adds nodes until there are so many, in a few writes.
    pub(crate) async fn fill(&mut self, nodes: usize) {
        while self.nodes < nodes {
            let end = nodes.min(self.nodes + CHUNK);
            let objects: Vec<Value> = (self.nodes..end).map(node).collect();
            self.send(Method::POST, "/v1/apply?force=true", json!({ "objects": objects })).await;
            self.nodes = end;
        }
        self.settled().await;
    }

    /// What each of [`MEASURED`] costs.
    pub(crate) async fn costs(&mut self) -> [[f64; PARTS]; MEASURED.len()] {
        [
            self.edit().await,
            self.result().await,
            self.apply().await,
            self.enrol().await,
            self.read("/v1/nodes?limit=100").await,
            self.read("/v1/nodes?fields=name,uuid&limit=100").await,
            self.read("/v1/nodes/detail?limit=100").await,
            self.read("/v1/nodes/n2/resolved").await,
        ]
    }

    /// What a node costs that is applied.
    async fn apply(&mut self) -> [f64; PARTS] {
        self.cheapest(async |cluster, _| {
            cluster.send(Method::POST, "/v1/apply?force=true", json!({"objects": [node(cluster.nodes)]})).await;
            cluster.nodes += 1;
        })
        .await
    }

    /// What a host costs that joins with a token: its request is checked, its certificate issued, its node made. Its key, and the
    /// handshake before, are not counted.
    async fn enrol(&mut self) -> [f64; PARTS] {
        let token = self.fleet.token(json!({"nodegroup": "c/x", "uses": ROUNDS * IN_ROUND})).await;
        let mut csrs: Vec<Vec<u8>> = (0..ROUNDS * IN_ROUND).map(|_| asking().csr).collect();
        self.cheapest(async |cluster, _| {
            cluster.hosts += 1;
            let (name, csr) = (format!("h{}", cluster.hosts), csrs.pop().unwrap());
            let request = EnrollRequest { token: token.clone(), csr, seal_key: [7; 32], name };
            let from = SocketAddr::from(([127, 0, 0, 1], 1));
            cluster.fleet.parts().enrolment.enrol(from, request).await.unwrap();
        })
        .await
    }

    /// What the edit of a label of one node costs.
    async fn edit(&mut self) -> [f64; PARTS] {
        self.cheapest(async |cluster, _| {
            cluster.edits += 1;
            let body = json!({"labels": {"edited": cluster.edits.to_string()}});
            let path = format!("/v1/nodes/n{}/labels?manager=test", cluster.nodes / 2);
            cluster.send(Method::PUT, &path, body).await;
        })
        .await
    }

    /// What a result of one node costs that opens nothing: others are still waited for, and the barrier that any node opens is open.
    async fn result(&mut self) -> [f64; PARTS] {
        self.report("n2", "a", true).await;
        self.settled().await;
        self.cheapest(async |cluster, round| cluster.report("n0", "a", round.is_multiple_of(2)).await).await
    }

    /// What a read costs.
    async fn read(&mut self, path: &str) -> [f64; PARTS] {
        self.cheapest(async |cluster, _| cluster.send(Method::GET, path, Value::Null).await).await
    }

    /// What one of many such changes costs, in the cheapest round.
    async fn cheapest(&mut self, mut change: impl AsyncFnMut(&mut Self, u32)) -> [f64; PARTS] {
        let mut least = [f64::INFINITY; PARTS];
        for round in 0..ROUNDS {
            let before = (self.meter)();
            for _ in 0..IN_ROUND {
                change(self, round).await;
                self.settled().await;
            }
            let after = (self.meter)();
            least = std::array::from_fn(|part| least[part].min((after[part] - before[part]) / f64::from(IN_ROUND)));
        }
        least
    }

    async fn report(&mut self, name: &str, task: &str, is_done: bool) {
        let parts = self.fleet.parts();
        let uuid = parts.registry.cache().model().nodes.named(None, name).unwrap().meta.uuid;
        let (_, task_set) = parts.desired.digests(uuid).unwrap();
        let sequence = self.sequences.entry(uuid).or_default();
        *sequence += 1;
        let result = TaskResult {
            sequence: *sequence,
            task_set,
            task: task.to_owned(),
            outcome: if is_done { Outcome::Changed } else { Outcome::Failed },
            message: String::new(),
            output: String::new(),
            diff: String::new(),
            duration_ms: 0,
        };
        parts.intake.results(uuid, vec![result]).await.unwrap();
    }

    async fn send(&mut self, method: Method, path: &str, body: Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = request.body(body).unwrap();
        let answer = self.client.send_within(request, Duration::from_mins(2)).await.unwrap();
        assert!(answer.status().is_success(), "{path}: {:?}", answer.body());
    }

    /// Waits until all that is stored is resolved and published.
    async fn settled(&self) {
        let parts = self.fleet.parts();
        let head = parts.registry.store().head().await.unwrap().get();
        while parts.desired.resolved().0 < head {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    }
}
