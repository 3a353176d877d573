//! In a cluster whose nodes wait for each other, a change or a read takes as much work in a large cluster as in a small
//! one. The work is counted in allocations of the whole process, so the clock and other programs do not matter.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;
mod grown;

use grown::{MEASURED, MeasuredCluster};
use stemma_counting::allocations;

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn allocation_count() -> [f64; 1] {
    [allocations() as f64]
}

#[tokio::test]
async fn change_and_read_cost_is_independent_of_cluster_size() {
    let mut cluster = MeasuredCluster::start(allocation_count).await;
    cluster.add_nodes(100).await;
    let small = cluster.measure_all().await;
    cluster.add_nodes(3_000).await;
    let large = cluster.measure_all().await;
    for ((what, [small]), [large]) in MEASURED.into_iter().zip(small).zip(large) {
        // A cost per node would make the ratio as large as that of the sizes, thirty.
        assert!(large < small * 1.2, "{what}: {large:.0} allocations among 3,000 nodes, {small:.0} among 100");
    }
    let [.., [names], [details], _] = large;
    assert!(details > names * 3.0, "names cost little beside all details, since nothing else is made: {names}, {details}");
}
