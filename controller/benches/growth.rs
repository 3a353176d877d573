//! What a label, a result, a node that joins and a read cost in a cluster whose nodes wait for each other, in CPU, by the cluster's
//! size. All in one run: the speed of a shared machine drifts, a ratio holds.
//!
//! `cargo bench -p stemma-controller --bench growth`

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends")]

#[path = "../tests/fleet/mod.rs"]
mod fleet;
#[path = "../tests/grown/mod.rs"]
mod grown;

use grown::{Cluster, MEASURED};

const SIZES: [usize; 3] = [100, 1_000, 10_000];

#[expect(clippy::print_stdout, reason = "a bench tells its figures there")]
fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rows = Vec::new();
    runtime.block_on(async {
        let mut cluster = Cluster::start().await;
        for size in SIZES {
            cluster.fill(size).await;
            rows.push(cluster.costs().await);
        }
    });
    for (at, what) in MEASURED.into_iter().enumerate() {
        for (size, row) in SIZES.iter().zip(&rows) {
            let (reconcile, process) = row[at].times(rows[0][at]);
            println!(
                "{what}, {size:>6} nodes: reconcile {:7.0} us ({reconcile:5.2} times), process {:7.0} us ({process:5.2} times)",
                row[at].reconcile, row[at].process
            );
        }
    }
}
