//! Measures the CPU time of a label change, a result, a joining node and a read, by the size of the cluster. The nodes
//! of the cluster wait for each other. All sizes are measured in one run. The speed of a shared machine drifts, but the
//! ratio of the results stays the same.
//!
//! `cargo bench -p stemma-controller --bench growth`

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot continue may panic")]

#[path = "../tests/fleet/mod.rs"]
mod fleet;
#[path = "../tests/grown/mod.rs"]
mod grown;

use grown::{MEASURED_OPERATIONS, MeasuredCluster};

const SIZES: [usize; 3] = [100, 1_000, 10_000];

/// Returns two CPU times in microseconds since the start of the process: that of the thread `reconcile`, which resolves
/// nodes, releases task sets and signs desired states, and that of all threads together.
fn cpu_us() -> [f64; 2] {
    let (mut reconcile, mut process) = (0.0, 0.0);
    for entry in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read_file = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let thread_us = read_file("schedstat").split_whitespace().next().map_or(0.0, |ns| ns.parse::<f64>().unwrap() / 1000.0);
        process += thread_us;
        if read_file("comm").trim_end() == "reconcile" {
            reconcile += thread_us;
        }
    }
    [reconcile, process]
}

/// Returns the ratio of `cost` to `other`, or 1 if `other` is zero, as for the thread `reconcile` if it has no work.
fn cost_ratio(cost: f64, other: f64) -> f64 {
    if other > 0.0 { cost / other } else { 1.0 }
}

/// Measures operations in a cluster of growing size. Prints the CPU time of each, and its ratio to the time at the
/// smallest size.
#[expect(clippy::print_stdout, reason = "a benchmark prints its results")]
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
    for (index, operation) in MEASURED_OPERATIONS.into_iter().enumerate() {
        for (size, row) in SIZES.iter().zip(&rows) {
            let ([reconcile, process], smallest_size_costs) = (row[index], rows[0][index]);
            let (reconcile_ratio, process_ratio) =
                (cost_ratio(reconcile, smallest_size_costs[0]), cost_ratio(process, smallest_size_costs[1]));
            println!(
                "{operation}, {size:>6} nodes: reconcile {reconcile:7.0} us ({reconcile_ratio:5.2} times), process {process:7.0} us ({process_ratio:5.2} times)"
            );
        }
    }
}
