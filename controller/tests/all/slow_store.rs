//! Writes to a slow store, and that reads are served in the meantime.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use stemma_controller::store::RedbOptions;
use tokio::task::JoinSet;

use crate::fleet::TIMEOUT;
use crate::served::TestApi;

/// How late the store answers a commit. It is longer than any read takes on any machine.
const COMMIT_DELAY: Duration = Duration::from_hours(1);

/// The number of writes of one principal that run at the same time: half of the maximum.
const MAX_CONCURRENT_WRITES: u64 = 128;

/// More than the number of the runtime's blocking threads.
const WRITES: usize = 600;

#[tokio::test]
async fn read_does_not_wait_when_writers_wait_for_store() {
    let served = Arc::new(TestApi::start_on_store(Some(COMMIT_DELAY), RedbOptions::default()).await);
    let mut writes = JoinSet::new();
    for n in 0..WRITES {
        let served = Arc::clone(&served);
        writes.spawn(async move { served.send("POST", "/v1/nodes", &[], Some(&json!({"name": format!("n{n}")}))).await.status });
    }
    // The writes with a permit are committed and wait for the store. All others wait for a permit.
    let (store, deadline) = (Arc::clone(served.api().registry.store()), Instant::now() + TIMEOUT);
    while store.head().await.expect("a store").get() < MAX_CONCURRENT_WRITES {
        assert!(Instant::now() < deadline, "not so many are worked on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served.get("/v1/nodes").await;
    // A write that has waited too long for a permit is refused.
    while let Some(answered) = writes.try_join_next() {
        assert_eq!(
            answered.expect("it ends"),
            503,
            "the read was answered after a write, for whose commit the store takes {COMMIT_DELAY:?}"
        );
    }
}
