//! Writes to a store that is slow, and who is served beside them.

mod served;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use served::Served;
use tokio::task::JoinSet;

/// How late the store answers a commit.
const LATE: Duration = Duration::from_secs(4);

/// More than the threads that the runtime has for what may compute.
const WRITES: usize = 600;

#[tokio::test]
async fn who_reads_does_not_wait_for_the_store_behind_those_who_write() {
    let served = Arc::new(Served::start_over(Some(LATE)).await);
    let mut writes = JoinSet::new();
    for n in 0..WRITES {
        let served = Arc::clone(&served);
        writes.spawn(async move {
            served.send("POST", "/v1/nodes", &[], Some(&json!({"name": format!("n{n}")}))).await.status
        });
    }
    // All of them have asked, and none is answered yet.
    tokio::time::sleep(LATE / 4).await;
    let asked = Instant::now();
    served.get("/v1/nodes").await;
    let took = asked.elapsed();
    assert!(took < LATE / 2, "a read waited {took:?} beside writes");
    while let Some(status) = writes.join_next().await {
        assert_eq!(status.expect("it ends"), 201, "who waited for its turn writes all the same");
    }
}
