//! Writes to a store that is slow, and who is served beside them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stemma_controller::store::RedbOptions;
use tokio::task::JoinSet;

use crate::served::Served;

/// How late the store answers a commit: later than a read is answered on any machine.
const LATE: Duration = Duration::from_secs(30);

/// More than the threads that the runtime has for what may compute.
const WRITES: usize = 600;

#[tokio::test]
async fn who_reads_does_not_wait_for_the_store_behind_those_who_write() {
    let served = Arc::new(Served::start_over(Some(LATE), RedbOptions::default()).await);
    let mut writes = JoinSet::new();
    for n in 0..WRITES {
        let served = Arc::clone(&served);
        writes.spawn(async move {
            served.send("POST", "/v1/nodes", &[], Some(&json!({"name": format!("n{n}")}))).await.status
        });
    }
    // All of them ask meanwhile.
    tokio::time::sleep(LATE / 20).await;
    served.get("/v1/nodes").await;
    assert!(
        writes.try_join_next().is_none(),
        "the read was answered after a write, for whose commit the store takes {LATE:?}"
    );
}
