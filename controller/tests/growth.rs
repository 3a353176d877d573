//! A change or a read in a cluster whose nodes wait for each other costs as much in a large cluster as in a small one, in CPU: of the
//! thread that resolves, decides and signs, and of the whole process. Ratios within one run: the speed of a shared machine drifts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;
mod grown;

use grown::{Cluster, MEASURED};

#[tokio::test]
async fn a_change_and_a_read_cost_the_same_in_a_cluster_of_any_size() {
    let mut cluster = Cluster::start().await;
    cluster.fill(100).await;
    let small = cluster.costs().await;
    cluster.fill(3_000).await;
    let large = cluster.costs().await;
    for ((what, small), large) in MEASURED.into_iter().zip(small).zip(large) {
        let (reconcile, process) = large.times(small);
        // A cost for each node would show as the ratio of the sizes.
        let (most_of_reconcile, most) = if what == MEASURED[0] { (2.0, 2.0) } else { (3.0, 2.5) };
        let is_within = reconcile < most_of_reconcile && process < most;
        assert!(is_within, "{what}: {reconcile:.1} and {process:.1} times: {small:?} {large:?}");
    }
    let [.., names, details, _] = large;
    let (_, times) = details.times(names);
    assert!(times > 3.0, "names cost little beside all details, since nothing else is made: {times:.1} times");
}
