//! Tests that a change or a read costs as much in a large cluster as in a small cluster, if nodes wait for each other.
//! The cost is the number of allocations of the whole process, so the clock and other programs have no influence.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;
mod grown;

use grown::{MEASURED_OPERATIONS, MeasuredCluster};
use stemma_counting::allocations;

/// Returns the number of allocations of this process so far, as a meter with one part.
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
    for ((operation, [small]), [large]) in MEASURED_OPERATIONS.into_iter().zip(small).zip(large) {
        // A cost for each node would make the large cluster 30 times as expensive.
        assert!(large < small * 1.2, "{operation}: {large:.0} allocations among 3,000 nodes, {small:.0} among 100");
    }
    // The operations before the last one are the list of names and the list in detail.
    let [.., [names], [details], _] = large;
    assert!(
        details > names * 3.0,
        "a list of names is much cheaper than a list in detail, because only the names are built: {names}, {details}"
    );
}
