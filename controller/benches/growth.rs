//! What a label, a result, a node that joins and a read cost in a cluster whose nodes wait for each other, in CPU, by the cluster's
//! size. All in one run: the speed of a shared machine drifts, a ratio holds.
//!
//! `cargo bench -p stemma-controller --bench growth`

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends")]

#[path = "../tests/fleet/mod.rs"]
mod fleet;
#[path = "../tests/grown/mod.rs"]
mod grown;

use grown::{Cluster, Cost};

const SIZES: [usize; 3] = [100, 1_000, 10_000];
const CHANGES: [&str; 4] =
    ["label of one node", "result of one node", "node that is applied", "host that joins with a token"];
const READS: [&str; 3] =
    ["/v1/nodes?fields=name,uuid&limit=100", "/v1/nodes/detail?limit=100", "/v1/nodes/n2/resolved"];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut cluster = Cluster::start().await;
        let mut rows = Vec::new();
        for size in SIZES {
            cluster.fill(size).await;
            let mut row =
                vec![cluster.edit().await, cluster.result().await, cluster.join().await, cluster.enrol().await];
            for path in READS {
                row.push(cluster.read(path).await);
            }
            rows.push(row);
        }
        for (at, what) in CHANGES.into_iter().chain(READS).enumerate() {
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
