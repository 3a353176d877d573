//! Measures the CPU of a label change, a result, a joining node and a read, by the size of the cluster. The cluster's
//! nodes wait for each other. All sizes are measured in one run: the speed of a shared machine drifts, a ratio holds.
//!
//! `cargo bench -p stemma-controller --bench growth`

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends")]

#[path = "../tests/fleet/mod.rs"]
mod fleet;
#[path = "../tests/grown/mod.rs"]
mod grown;

use grown::{MEASURED, MeasuredCluster};

const SIZES: [usize; 3] = [100, 1_000, 10_000];

/// Returns CPU times in microseconds: of the thread that resolves, decides and signs, and of the whole process.
fn cpu_us() -> [f64; 2] {
    let (mut reconcile, mut process) = (0.0, 0.0);
    for entry in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let of = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let used = of("schedstat").split_whitespace().next().map_or(0.0, |ns| ns.parse::<f64>().unwrap() / 1000.0);
        process += used;
        if of("comm").trim_end() == "reconcile" {
            reconcile += used;
        }
    }
    [reconcile, process]
}

/// Returns the ratio of two costs. If both are zero, because reconcile does no work for it, the ratio is 1.
fn cost_ratio(cost: f64, other: f64) -> f64 {
    if other > 0.0 { cost / other } else { 1.0 }
}

#[expect(clippy::print_stdout, reason = "a bench tells its figures there")]
fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rows = Vec::new();
    runtime.block_on(async {
        let mut cluster = MeasuredCluster::start(cpu_us).await;
        for size in SIZES {
            cluster.add_nodes(size).await;
            rows.push(cluster.measure_all().await);
        }
    });
    for (at, what) in MEASURED.into_iter().enumerate() {
        for (size, row) in SIZES.iter().zip(&rows) {
            let ([reconcile, process], least) = (row[at], rows[0][at]);
            let (of_reconcile, of_process) = (cost_ratio(reconcile, least[0]), cost_ratio(process, least[1]));
            println!(
                "{what}, {size:>6} nodes: reconcile {reconcile:7.0} us ({of_reconcile:5.2} times), process {process:7.0} us ({of_process:5.2} times)"
            );
        }
    }
}
