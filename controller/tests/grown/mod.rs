//! A cluster in which half of the nodes wait for tasks of the other half, and the cost of changes and reads in this
//! cluster. The growth bench measures the cost in CPU time. The growth test measures the cost in allocations.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_controller::intake::Intake as _;
use stemma_controller::run::{Options, PublishMode};
use stemma_wire::client::Client;
use stemma_wire::message::enroll::EnrollRequest;
use stemma_wire::message::observed::{Outcome, TaskResult};
use uuid::Uuid;

use crate::fleet::{Fleet, new_key_and_request};

/// The maximum number of nodes that one apply creates.
const APPLY_SIZE: usize = 250;
/// The number of changes or reads in a round. The cheapest round is the result, because other work of the machine only
/// adds cost to a round.
const OPERATIONS_PER_ROUND: u32 = 8;
const ROUNDS: u32 = 8;

/// The measured operations: changes, then reads. [`MeasuredCluster::measure_all`] returns their costs in this order.
pub(crate) const MEASURED_OPERATIONS: [&str; 8] = [
    "label of one node",
    "result of one node",
    "node that is applied",
    "host that joins with a token",
    "100 nodes as listed",
    "100 nodes by name",
    "100 nodes in detail",
    "resolved of one node",
];

/// A function that returns the parts of the cost so far, in the unit of the caller, such as CPU time or allocations.
pub(crate) type Meter<const PARTS: usize> = fn() -> [f64; PARTS];

/// A running cluster whose operations are measured.
pub(crate) struct MeasuredCluster<const PARTS: usize> {
    meter: Meter<PARTS>,
    fleet: Fleet,
    client: Client,
    nodes: usize,
    hosts: u32,
    edits: u32,
    sequences: BTreeMap<Uuid, u64>,
}

/// Returns the objects of a cluster with the groups `x` and `y`. Tasks of `y` wait for tasks of `x`, and task `d` of
/// `x` waits for tasks of both groups.
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

/// Returns a node. Its group is `x` if its number is even, else `y`.
fn node(number: usize) -> Value {
    let group = if number.is_multiple_of(2) { "c/x" } else { "c/y" };
    json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": group})
}

impl<const PARTS: usize> MeasuredCluster<PARTS> {
    /// Starts a controller with a cluster that has no nodes yet.
    pub(crate) async fn start(meter: Meter<PARTS>) -> Self {
        let options = Options { publishing: PublishMode::Reconciler, ..Options::default() };
        let fleet = Fleet::start_with(|defaults| *defaults = options).await;
        let client = fleet.admin_client();
        let mut cluster = Self { meter, fleet, client, nodes: 0, hosts: 0, edits: 0, sequences: BTreeMap::new() };
        cluster.send_request(Method::POST, "/v1/apply?force=true", json!({"objects": site()})).await;
        cluster
    }

    /// Adds nodes in large writes until the cluster has this number of nodes.
    pub(crate) async fn add_nodes(&mut self, nodes: usize) {
        while self.nodes < nodes {
            let end = nodes.min(self.nodes + APPLY_SIZE);
            let objects: Vec<Value> = (self.nodes..end).map(node).collect();
            self.send_request(Method::POST, "/v1/apply?force=true", json!({ "objects": objects })).await;
            self.nodes = end;
        }
        self.wait_until_settled().await;
    }

    /// Measures each operation of [`MEASURED_OPERATIONS`].
    pub(crate) async fn measure_all(&mut self) -> [[f64; PARTS]; MEASURED_OPERATIONS.len()] {
        [
            self.measure_edit().await,
            self.measure_result().await,
            self.measure_apply().await,
            self.measure_enrol().await,
            self.measure_read("/v1/nodes?limit=100").await,
            self.measure_read("/v1/nodes?fields=name,uuid&limit=100").await,
            self.measure_read("/v1/nodes/detail?limit=100").await,
            self.measure_read("/v1/nodes/n2/resolved").await,
        ]
    }

    /// Measures an apply of a new node.
    async fn measure_apply(&mut self) -> [f64; PARTS] {
        self.measure_cheapest(async |cluster, _| {
            cluster.send_request(Method::POST, "/v1/apply?force=true", json!({"objects": [node(cluster.nodes)]})).await;
            cluster.nodes += 1;
        })
        .await
    }

    /// Measures a host that joins with a token: the controller checks the request, issues the certificate and creates
    /// the node. The generation of the host's key and the handshake are not included.
    async fn measure_enrol(&mut self) -> [f64; PARTS] {
        let token = self.fleet.create_token(json!({"nodegroup": "c/x", "uses": ROUNDS * OPERATIONS_PER_ROUND})).await;
        let mut csrs: Vec<Vec<u8>> = (0..ROUNDS * OPERATIONS_PER_ROUND).map(|_| new_key_and_request().csr).collect();
        self.measure_cheapest(async |cluster, _| {
            cluster.hosts += 1;
            let (name, csr) = (format!("h{}", cluster.hosts), csrs.pop().unwrap());
            let request = EnrollRequest { token: token.clone(), csr, seal_key: [7; 32], name };
            let from = SocketAddr::from(([127, 0, 0, 1], 1));
            cluster.fleet.components().enrolment.enrol(from, request).await.unwrap();
        })
        .await
    }

    /// Measures the edit of a label of one node.
    async fn measure_edit(&mut self) -> [f64; PARTS] {
        self.measure_cheapest(async |cluster, _| {
            cluster.edits += 1;
            let body = json!({"labels": {"edited": cluster.edits.to_string()}});
            let path = format!("/v1/nodes/n{}/labels?manager=test", cluster.nodes / 2);
            cluster.send_request(Method::PUT, &path, body).await;
        })
        .await
    }

    /// Measures a result that opens no barrier. The barriers for all nodes of `x` still wait for other nodes, and the
    /// barrier with `policy: any` is already open.
    async fn measure_result(&mut self) -> [f64; PARTS] {
        self.report_result("n2", "a", true).await;
        self.wait_until_settled().await;
        // The outcome differs from that of the previous round, so each round changes the stored result.
        self.measure_cheapest(async |cluster, round| cluster.report_result("n0", "a", round.is_multiple_of(2)).await).await
    }

    /// Measures a read of this path.
    async fn measure_read(&mut self, path: &str) -> [f64; PARTS] {
        self.measure_cheapest(async |cluster, _| cluster.send_request(Method::GET, path, Value::Null).await).await
    }

    /// Measures an operation in [`ROUNDS`] rounds. Returns the cost of one operation. Each part of the cost is that of
    /// its cheapest round, and includes the work until the controller has settled.
    async fn measure_cheapest(&mut self, mut operation: impl AsyncFnMut(&mut Self, u32)) -> [f64; PARTS] {
        let mut minimum = [f64::INFINITY; PARTS];
        for round in 0..ROUNDS {
            let cost_before = (self.meter)();
            for _ in 0..OPERATIONS_PER_ROUND {
                operation(self, round).await;
                self.wait_until_settled().await;
            }
            let cost_after = (self.meter)();
            minimum = std::array::from_fn(|part| {
                minimum[part].min((cost_after[part] - cost_before[part]) / f64::from(OPERATIONS_PER_ROUND))
            });
        }
        minimum
    }

    /// Stores a result of a task, as if the host of the node `name` had sent it.
    async fn report_result(&mut self, name: &str, task: &str, is_success: bool) {
        let parts = self.fleet.components();
        let uuid = parts.registry.cache().model().nodes.get_by_name(None, name).unwrap().meta.uuid;
        let (_, task_set) = parts.desired.digests(uuid).unwrap();
        let sequence = self.sequences.entry(uuid).or_default();
        *sequence += 1;
        let result = TaskResult {
            sequence: *sequence,
            task_set,
            task: task.to_owned(),
            outcome: if is_success { Outcome::Changed } else { Outcome::Failed },
            message: String::new(),
            output: String::new(),
            diff: String::new(),
            duration_ms: 0,
        };
        parts.intake.store_results(uuid, vec![result]).await.unwrap();
    }

    /// Sends a request with the certificate of the first admin, and checks that it succeeds.
    async fn send_request(&mut self, method: Method, path: &str, body: Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = request.body(body).unwrap();
        let answer = self.client.send_with_timeout(request, Duration::from_mins(2)).await.unwrap();
        assert!(answer.status().is_success(), "{path}: {:?}", answer.body());
    }

    /// Waits until the controller has resolved and published every write of the store.
    async fn wait_until_settled(&self) {
        let parts = self.fleet.components();
        let head = parts.registry.store().head().await.unwrap().get();
        while parts.desired.resolved_revision().0 < head {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    }
}
