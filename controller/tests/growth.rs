//! One change in a cluster whose nodes wait for each other costs as much in a large cluster as in a small one, in CPU of the thread
//! that resolves, decides and signs. A ratio within one run: the speed of a shared machine drifts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod fleet;
mod grown;

use grown::Cluster;

#[tokio::test]
async fn a_label_a_result_and_a_join_cost_the_same_in_a_cluster_of_any_size() {
    let mut cluster = Cluster::start().await;
    cluster.fill(100).await;
    let small = (cluster.edit().await, cluster.result().await, cluster.join().await, cluster.enrol().await);
    cluster.fill(3_000).await;
    let large = (cluster.edit().await, cluster.result().await, cluster.join().await, cluster.enrol().await);
    for (what, small, large) in [("edit", small.0, large.0), ("result", small.1, large.1), ("join", small.2, large.2)] {
        let ratio = large.reconcile / small.reconcile;
        // 30 times as many nodes: a cost for each of them would be a ratio near 30.
        assert!(ratio < 3.0, "{what}: {ratio:.1} times: {small:?} {large:?}");
    }
}
