//! A change or a read in a cluster whose nodes wait for each other takes as much work in a large cluster as in a small one, counted in
//! allocations of the whole process: no clock and no other program has a part in it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;
mod grown;

use grown::{Cluster, MEASURED};
use stemma_counting::allocations;

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn counted() -> [f64; 1] {
    [allocations() as f64]
}

#[tokio::test]
async fn a_change_and_a_read_take_the_same_work_in_a_cluster_of_any_size() {
    let mut cluster = Cluster::start(counted).await;
    cluster.fill(100).await;
    let small = cluster.costs().await;
    cluster.fill(3_000).await;
    let large = cluster.costs().await;
    for ((what, [small]), [large]) in MEASURED.into_iter().zip(small).zip(large) {
        // A cost for each node would show as the ratio of the sizes, thirty.
        assert!(large < small * 1.2, "{what}: {large:.0} allocations among 3,000 nodes, {small:.0} among 100");
    }
    let [.., [names], [details], _] = large;
    assert!(
        details > names * 3.0,
        "names cost little beside all details, since nothing else is made: {names}, {details}"
    );
}
