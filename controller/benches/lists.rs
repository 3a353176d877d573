//! What a page of 1,000 nodes costs in a fleet of 10,000, in CPU of the whole process: by name, and in detail; beside each,
//! what `serde_json` needs to write the same page again. `resolved` of one node. And a write beside a reader of
//! everything, over the write alone, in turns in one run: the speed of a shared machine drifts, a ratio holds.
//!
//! And what a page of 100 nodes costs by each filter, among 10,000 and among 100,000: that part alone with `-- filters`.
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
use served::Served;

const NODES: usize = 10_000;
const FLEETS: [usize; 2] = [10_000, 100_000];
const ROUNDS: u32 = 20;
const WRITES: u32 = 60;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let filters_alone = std::env::args().any(|argument| argument == "filters");
    runtime.block_on(async {
        filters().await;
        if filters_alone {
            return;
        }
        let served = Arc::new(Served::start().await);
        listed::fill(&served, NODES).await;
        settle().await;
        page(&served, "by name", "/v1/nodes?fields=name,uuid").await;
        page(&served, "as listed", "/v1/nodes").await;
        page(&served, "in detail", "/v1/nodes/detail").await;
        let one = cost(&served, "/v1/nodes/n05000/resolved").await;
        println!("resolved of one node of {NODES}: {:.3} ms of CPU", ms(one));
        beside_reader(&served).await;
    });
}

/// A page of 100 by each filter, in two fleets.
async fn filters() {
    let mut columns = Vec::new();
    for nodes in FLEETS {
        let served = Served::start().await;
        listed::fill_with(&served, nodes, listed::varied).await;
        settle().await;
        let mut costs = Vec::new();
        for (query, _) in listed::FILTERS {
            costs.push(cost(&served, &format!("/v1/nodes?limit=100&{query}")).await);
        }
        let behind = served.text(&format!("/v1/nodes/n{:05}?fields=uuid", nodes - nodes / 10)).await;
        let behind: Value = serde_json::from_slice(&behind).expect("JSON");
        let marker = behind["uuid"].as_str().expect("a uuid");
        costs.push(cost(&served, &format!("/v1/nodes?limit=100&marker={marker}&cluster=prod")).await);
        columns.push(costs);
    }
    let queries = listed::FILTERS.iter().map(|(query, _)| *query).chain(["marker=…&cluster=prod"]);
    println!("| filter | {} nodes, ms | {} nodes, ms | times |", FLEETS[0], FLEETS[1]);
    for (query, (few, many)) in queries.zip(columns[0].iter().zip(&columns[1])) {
        println!("| `{query}` | {:.2} | {:.2} | {:.1} |", ms(*few), ms(*many), many.as_secs_f64() / few.as_secs_f64());
    }
}

async fn page(served: &Served, name: &str, path: &str) {
    let of_page = cost(served, path).await;
    let body: Value = serde_json::from_slice(&served.text(path).await).expect("JSON");
    let began = cpu();
    for _ in 0..ROUNDS {
        std::hint::black_box(serde_json::to_vec(&body).expect("JSON"));
    }
    let again = cpu().saturating_sub(began) / ROUNDS;
    let rows = body["nodes"].as_array().map_or(0, Vec::len);
    let ratio = of_page.as_secs_f64() / again.as_secs_f64();
    println!(
        "{rows} of {NODES} nodes {name}: {:.2} ms of CPU; serde_json writes them in {:.2} ms, {ratio:.1} times",
        ms(of_page),
        ms(again)
    );
}

/// Waits until the process has done what the writes left to do: its CPU is not the reads'.
async fn settle() {
    let mut before = Duration::ZERO;
    while cpu().saturating_sub(before) > Duration::from_millis(3) {
        before = cpu();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// The CPU that a read costs.
async fn cost(served: &Served, path: &str) -> Duration {
    served.text(path).await;
    let began = cpu();
    for _ in 0..ROUNDS {
        std::hint::black_box(served.text(path).await);
    }
    cpu().saturating_sub(began) / ROUNDS
}

async fn beside_reader(served: &Arc<Served>) {
    let (mut alone, mut beside) = (Duration::ZERO, Duration::ZERO);
    for round in 0..3 {
        let first = writes(served, round * 2).await;
        let stop = Arc::new(AtomicBool::new(false));
        let reader = tokio::spawn(read_everything(Arc::clone(served), Arc::clone(&stop)));
        let second = writes(served, round * 2 + 1).await;
        stop.store(true, Ordering::Relaxed);
        let pages = reader.await.expect("the reader ends");
        println!("write alone {:.2} ms, beside a reader of everything ({pages} pages) {:.2} ms", ms(first), ms(second));
        (alone, beside) = (alone + first, beside + second);
    }
    println!(
        "a write beside a reader of everything, over the write alone: {:.2}",
        beside.as_secs_f64() / alone.as_secs_f64()
    );
}

/// The mean time of a write.
async fn writes(served: &Served, round: u32) -> Duration {
    let began = Instant::now();
    edit(served, WRITES as usize, &round.to_string()).await;
    began.elapsed() / WRITES
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Edits a label of so many nodes, one after the other.
async fn edit(served: &Served, nodes: usize, value: &str) {
    for node in 0..nodes {
        let body = json!({"labels": {"edit": value}});
        served.expect("PATCH", &format!("/v1/nodes/n{node:05}/labels"), &body, 200).await;
    }
}

/// Reads all nodes in detail, page by page and again, until it is told to stop; gives how many pages.
async fn read_everything(served: Arc<Served>, stop: Arc<AtomicBool>) -> u32 {
    let mut pages = 0;
    let mut path = "/v1/nodes/detail".to_owned();
    while !stop.load(Ordering::Relaxed) {
        let text = served.text(&path).await;
        pages += 1;
        // As text: reading it as JSON would be the client's work, and runs here.
        let next =
            text.strip_prefix(b"{\"next\":\"http://localhost").and_then(|rest| rest.split(|byte| *byte == b'"').next());
        path = next.map_or_else(|| "/v1/nodes/detail".to_owned(), |next| String::from_utf8_lossy(next).into_owned());
    }
    pages
}
