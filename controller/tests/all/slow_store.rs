//! Reads are served while writes wait for a slow store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use stemma_controller::store::RedbOptions;
use tokio::task::JoinSet;

use crate::fleet::TIMEOUT;
use crate::served::TestApi;

/// The delay with which the store answers a commit. The test ends long before.
const COMMIT_DELAY: Duration = Duration::from_hours(1);

/// The maximum number of writes of one principal at the same time, which is half of the limit for all.
const MAX_CONCURRENT_WRITES: u64 = 128;

/// The number of writes that the test sends. It exceeds the number of blocking threads of the runtime (512).
const WRITES: usize = 600;

/// Many writes wait for a store that answers a commit after an hour. A read is answered at once.
#[tokio::test]
async fn read_does_not_wait_when_writers_wait_for_store() {
    let server = Arc::new(TestApi::start_on_store(Some(COMMIT_DELAY), RedbOptions::default()).await);
    let mut writes = JoinSet::new();
    for n in 0..WRITES {
        let server = Arc::clone(&server);
        writes.spawn(async move { server.send("POST", "/v1/nodes", &[], Some(&json!({"name": format!("n{n}")}))).await.status });
    }
    // The writes with a permit are committed and wait for the store. All others wait for a permit.
    let (store, deadline) = (Arc::clone(server.api().registry.store()), Instant::now() + TIMEOUT);
    while store.head().await.expect("the store returns its revision").get() < MAX_CONCURRENT_WRITES {
        assert!(Instant::now() < deadline, "fewer writes are committed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.get("/v1/nodes").await;
    // A write that has waited too long for a permit is refused.
    while let Some(status) = writes.try_join_next() {
        assert_eq!(
            status.expect("the task of a write ends"),
            503,
            "the read was answered after a write, for whose commit the store takes {COMMIT_DELAY:?}"
        );
    }
}
