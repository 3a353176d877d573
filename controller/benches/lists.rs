//! Measures what a page of 1,000 nodes costs in a fleet of 10,000, in CPU of the whole process: by name, and in detail.
//! Each is compared with the CPU that `serde_json` needs to write the same page again. Then it measures `resolved` of
//! one node. Then it measures a write while another client reads everything, relative to the write alone, in turns in
//! one run: the speed of a shared machine drifts, a ratio holds.
//!
//! With `-- filters` it measures only what a page of 100 nodes costs by each filter, among 10,000 and among 100,000
//! nodes.
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

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let filters_alone = std::env::args().any(|argument| argument == "filters");
    runtime.block_on(async {
        measure_filters().await;
        if filters_alone {
            return;
        }
        let served = Arc::new(TestApi::start().await);
        listed::add_nodes(&served, NODES).await;
        wait_until_idle().await;
        measure_page(&served, "by name", "/v1/nodes?fields=name,uuid").await;
        measure_page(&served, "as listed", "/v1/nodes").await;
        measure_page(&served, "in detail", "/v1/nodes/detail").await;
        let one = measure_cost(&served, "/v1/nodes/n05000/resolved").await;
        println!("resolved of one node of {NODES}: {:.3} ms of CPU", as_ms(one));
        measure_writes_during_reads(&served).await;
    });
}

/// Measures a page of 100 nodes by each filter, in two fleets.
async fn measure_filters() {
    let mut columns = Vec::new();
    for nodes in FLEET_SIZES {
        let served = TestApi::start().await;
        listed::add_nodes_with(&served, nodes, listed::varied_fields).await;
        wait_until_idle().await;
        let mut costs = Vec::new();
        for (query, _) in listed::FILTERS {
            costs.push(measure_cost(&served, &format!("/v1/nodes?limit=100&{query}")).await);
        }
        let behind = served.get_text(&format!("/v1/nodes/n{:05}?fields=uuid", nodes - nodes / 10)).await;
        let behind: Value = serde_json::from_slice(&behind).expect("JSON");
        let marker = behind["uuid"].as_str().expect("a uuid");
        costs.push(measure_cost(&served, &format!("/v1/nodes?limit=100&marker={marker}&cluster=prod")).await);
        columns.push(costs);
    }
    let queries = listed::FILTERS.iter().map(|(query, _)| *query).chain(["marker=…&cluster=prod"]);
    println!("| filter | {} nodes, ms | {} nodes, ms | times |", FLEET_SIZES[0], FLEET_SIZES[1]);
    for (query, (few, many)) in queries.zip(columns[0].iter().zip(&columns[1])) {
        println!("| `{query}` | {:.2} | {:.2} | {:.1} |", as_ms(*few), as_ms(*many), many.as_secs_f64() / few.as_secs_f64());
    }
}

async fn measure_page(served: &TestApi, name: &str, path: &str) {
    let of_page = measure_cost(served, path).await;
    let body: Value = serde_json::from_slice(&served.get_text(path).await).expect("JSON");
    let began = cpu_time();
    for _ in 0..ROUNDS {
        std::hint::black_box(serde_json::to_vec(&body).expect("JSON"));
    }
    let again = cpu_time().saturating_sub(began) / ROUNDS;
    let rows = body["nodes"].as_array().map_or(0, Vec::len);
    let ratio = of_page.as_secs_f64() / again.as_secs_f64();
    println!(
        "{rows} of {NODES} nodes {name}: {:.2} ms of CPU; serde_json writes them in {:.2} ms, {ratio:.1} times",
        as_ms(of_page),
        as_ms(again)
    );
}

/// Waits until the process has finished the work that the writes caused, so that it is not counted for the reads.
async fn wait_until_idle() {
    let mut before = Duration::ZERO;
    while cpu_time().saturating_sub(before) > Duration::from_millis(3) {
        before = cpu_time();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Returns the CPU time of one read.
async fn measure_cost(served: &TestApi, path: &str) -> Duration {
    served.get_text(path).await;
    let began = cpu_time();
    for _ in 0..ROUNDS {
        std::hint::black_box(served.get_text(path).await);
    }
    cpu_time().saturating_sub(began) / ROUNDS
}

async fn measure_writes_during_reads(served: &Arc<TestApi>) {
    let (mut alone, mut beside) = (Duration::ZERO, Duration::ZERO);
    for round in 0..3 {
        let first = measure_writes(served, round * 2).await;
        let stop = Arc::new(AtomicBool::new(false));
        let reader = tokio::spawn(read_all_pages(Arc::clone(served), Arc::clone(&stop)));
        let second = measure_writes(served, round * 2 + 1).await;
        stop.store(true, Ordering::Relaxed);
        let pages = reader.await.expect("the reader ends");
        println!("write alone {:.2} ms, beside a reader of everything ({pages} pages) {:.2} ms", as_ms(first), as_ms(second));
        (alone, beside) = (alone + first, beside + second);
    }
    println!("a write beside a reader of everything, over the write alone: {:.2}", beside.as_secs_f64() / alone.as_secs_f64());
}

/// Returns the mean time of a write.
async fn measure_writes(served: &TestApi, round: u32) -> Duration {
    let began = Instant::now();
    edit_labels(served, WRITES as usize, &round.to_string()).await;
    began.elapsed() / WRITES
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn as_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Edits a label of the given number of nodes, one after the other.
async fn edit_labels(served: &TestApi, nodes: usize, value: &str) {
    for node in 0..nodes {
        let body = json!({"labels": {"edit": value}});
        served.expect("PATCH", &format!("/v1/nodes/n{node:05}/labels"), &body, 200).await;
    }
}

/// Reads all nodes in detail, page by page and repeatedly, until it is stopped. Returns the number of pages.
async fn read_all_pages(served: Arc<TestApi>, stop: Arc<AtomicBool>) -> u32 {
    let mut pages = 0;
    let mut path = "/v1/nodes/detail".to_owned();
    while !stop.load(Ordering::Relaxed) {
        let text = served.get_text(&path).await;
        pages += 1;
        // Searches the text, because parsing it as JSON would be the client's work, which this process would pay for.
        let next = text.strip_prefix(b"{\"next\":\"http://localhost").and_then(|rest| rest.split(|byte| *byte == b'"').next());
        path = next.map_or_else(|| "/v1/nodes/detail".to_owned(), |next| String::from_utf8_lossy(next).into_owned());
    }
    pages
}
