//! What a label, a result and a node that joins cost in a cluster whose nodes wait for each other, in CPU, by the cluster's size. All
//! in one run: the speed of a shared machine drifts, a ratio holds.
//!
//! `cargo bench -p stemma-controller --bench growth`

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends")]

#[path = "../tests/fleet/mod.rs"]
mod fleet;
#[path = "../tests/grown/mod.rs"]
mod grown;

use grown::{Cluster, Cost};

const SIZES: [usize; 3] = [100, 1_000, 10_000];
/// Nodes that join one after the other at each size.
const JOINS: usize = 50;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut cluster = Cluster::start().await;
        let mut rows = Vec::new();
        for size in SIZES {
            cluster.fill(size).await;
            rows.push([cluster.edit().await, cluster.result().await, cluster.join(JOINS).await]);
        }
        for (at, what) in ["label of one node", "result of one node", "node that joins"].into_iter().enumerate() {
            for (size, row) in SIZES.iter().zip(&rows) {
                show(what, *size, row[at], rows[0][at]);
            }
        }
    });
}

#[expect(clippy::print_stdout, reason = "a bench tells its figures there")]
fn show(what: &str, size: usize, cost: Cost, first: Cost) {
    println!(
        "{what}, {size:>6} nodes: reconcile {:7.0} us ({:5.2} times), process {:7.0} us ({:5.2} times)",
        cost.reconcile,
        cost.reconcile / first.reconcile,
        cost.process,
        cost.process / first.process
    );
}
