//! Measures the CPU time, of the whole process, of reads of lists of nodes. The bench begins with a page of 100 nodes
//! by each filter, among 10,000 and among 100,000 nodes. With `-- filters`, it measures nothing else.
//!
//! Then it measures a page of 1,000 nodes in a fleet of 10,000: by name, as listed, and in detail. The result is
//! compared with the CPU time that `serde_json` needs to write the same page again. After that, the bench measures a
//! read of `resolved` of one node. At last it measures the elapsed time of a write while another client reads all
//! nodes, relative to the write alone. The speed of a shared machine drifts, but the ratio of two results in one run
//! stays the same.
//!
//! `cargo bench -p stemma-controller --bench lists`
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

#[path = "../tests/listed/mod.rs"]
mod listed;
#[path = "../tests/served/mod.rs"]
mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use served::TestApi;

const NODES: usize = 10_000;
const FLEET_SIZES: [usize; 2] = [10_000, 100_000];
const ROUNDS: u32 = 20;
const WRITES: u32 = 60;

/// Measures reads of lists of nodes. With the argument `filters`, measures only the filters.
fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let only_filters = std::env::args().any(|argument| argument == "filters");
    runtime.block_on(async {
        measure_filters().await;
        if only_filters {
            return;
        }
        let api = Arc::new(TestApi::start().await);
        listed::add_nodes(&api, NODES).await;
        wait_until_idle().await;
        measure_page(&api, "by name", "/v1/nodes?fields=name,uuid").await;
        measure_page(&api, "as listed", "/v1/nodes").await;
        measure_page(&api, "in detail", "/v1/nodes/detail").await;
        let resolved_cost = measure_cost(&api, "/v1/nodes/n05000/resolved").await;
        println!("resolved of one node of {NODES}: {:.3} ms of CPU", as_ms(resolved_cost));
        measure_writes_during_reads(&api).await;
    });
}

/// Measures a page of 100 nodes by each filter in two fleets, and prints a table of the CPU times.
async fn measure_filters() {
    let mut costs_by_fleet = Vec::new();
    for node_count in FLEET_SIZES {
        let api = TestApi::start().await;
        listed::add_nodes_with(&api, node_count, listed::varied_fields).await;
        wait_until_idle().await;
        let mut costs = Vec::new();
        for (query, _) in listed::FILTERS {
            costs.push(measure_cost(&api, &format!("/v1/nodes?limit=100&{query}")).await);
        }
        let marker_node = api.get_text(&format!("/v1/nodes/n{:05}?fields=uuid", node_count - node_count / 10)).await;
        let marker_node: Value = serde_json::from_slice(&marker_node).expect("JSON");
        // The page after this node, which is the first node of the last tenth of the list.
        let marker = marker_node["uuid"].as_str().expect("a uuid");
        costs.push(measure_cost(&api, &format!("/v1/nodes?limit=100&marker={marker}&cluster=prod")).await);
        costs_by_fleet.push(costs);
    }
    let queries = listed::FILTERS.iter().map(|(query, _)| *query).chain(["marker=…&cluster=prod"]);
    println!("| filter | {} nodes, ms | {} nodes, ms | times |", FLEET_SIZES[0], FLEET_SIZES[1]);
    for (query, (small_fleet_cost, large_fleet_cost)) in queries.zip(costs_by_fleet[0].iter().zip(&costs_by_fleet[1])) {
        println!(
            "| `{query}` | {:.2} | {:.2} | {:.1} |",
            as_ms(*small_fleet_cost),
            as_ms(*large_fleet_cost),
            large_fleet_cost.as_secs_f64() / small_fleet_cost.as_secs_f64()
        );
    }
}

/// Measures a read of this page, and prints its CPU time in comparison with that of `serde_json` for the same body.
async fn measure_page(api: &TestApi, name: &str, path: &str) {
    let page_cost = measure_cost(api, path).await;
    let body: Value = serde_json::from_slice(&api.get_text(path).await).expect("JSON");
    let start = cpu_time();
    for _ in 0..ROUNDS {
        std::hint::black_box(serde_json::to_vec(&body).expect("JSON"));
    }
    let serialize_cost = cpu_time().saturating_sub(start) / ROUNDS;
    let node_count = body["nodes"].as_array().map_or(0, Vec::len);
    let ratio = page_cost.as_secs_f64() / serialize_cost.as_secs_f64();
    println!(
        "{node_count} of {NODES} nodes {name}: {:.2} ms of CPU; serde_json writes them in {:.2} ms, {ratio:.1} times",
        as_ms(page_cost),
        as_ms(serialize_cost)
    );
}

/// Waits until the process has finished the work that earlier writes caused, so that this work does not count for the
/// reads. The process is idle when it uses at most 3 ms of CPU in 300 ms.
async fn wait_until_idle() {
    let mut last_time = Duration::ZERO;
    while cpu_time().saturating_sub(last_time) > Duration::from_millis(3) {
        last_time = cpu_time();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Returns the mean CPU time of a read of this path, over [`ROUNDS`] reads.
async fn measure_cost(api: &TestApi, path: &str) -> Duration {
    // The first read fills caches and is not counted.
    api.get_text(path).await;
    let start = cpu_time();
    for _ in 0..ROUNDS {
        std::hint::black_box(api.get_text(path).await);
    }
    cpu_time().saturating_sub(start) / ROUNDS
}

/// Measures writes alone, and writes while another client reads all nodes, in three rounds. Prints the times and their
/// ratio.
async fn measure_writes_during_reads(api: &Arc<TestApi>) {
    let (mut total_alone, mut total_with_reader) = (Duration::ZERO, Duration::ZERO);
    for round in 0..3 {
        // Each call has its own number, so that each write changes the label.
        let time_alone = measure_writes(api, round * 2).await;
        let stop = Arc::new(AtomicBool::new(false));
        let reader = tokio::spawn(read_all_pages(Arc::clone(api), Arc::clone(&stop)));
        let time_with_reader = measure_writes(api, round * 2 + 1).await;
        stop.store(true, Ordering::Relaxed);
        let pages = reader.await.expect("the reader ends");
        println!(
            "write alone {:.2} ms, with a concurrent reader of all objects ({pages} pages) {:.2} ms",
            as_ms(time_alone),
            as_ms(time_with_reader)
        );
        (total_alone, total_with_reader) = (total_alone + time_alone, total_with_reader + time_with_reader);
    }
    println!(
        "time of a write with a concurrent reader, relative to a write alone: {:.2}",
        total_with_reader.as_secs_f64() / total_alone.as_secs_f64()
    );
}

/// Writes a label of [`WRITES`] nodes. Returns the mean time of a write.
async fn measure_writes(api: &TestApi, round: u32) -> Duration {
    let start = Instant::now();
    edit_labels(api, WRITES as usize, &round.to_string()).await;
    start.elapsed() / WRITES
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn as_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Edits a label of the given number of nodes, one after the other.
async fn edit_labels(api: &TestApi, nodes: usize, value: &str) {
    for node in 0..nodes {
        let body = json!({"labels": {"edit": value}});
        api.expect("PATCH", &format!("/v1/nodes/n{node:05}/labels"), &body, 200).await;
    }
}

/// Reads all nodes in detail, page by page and repeatedly, until it is stopped. Returns the number of pages.
async fn read_all_pages(api: Arc<TestApi>, stop: Arc<AtomicBool>) -> u32 {
    let mut pages = 0;
    let mut path = "/v1/nodes/detail".to_owned();
    while !stop.load(Ordering::Relaxed) {
        let text = api.get_text(&path).await;
        pages += 1;
        // Searches the text, because parsing it as JSON would be the client's work, which this process would pay for.
        let next = text.strip_prefix(b"{\"next\":\"http://localhost").and_then(|rest| rest.split(|byte| *byte == b'"').next());
        path = next.map_or_else(|| "/v1/nodes/detail".to_owned(), |next| String::from_utf8_lossy(next).into_owned());
    }
    pages
}
