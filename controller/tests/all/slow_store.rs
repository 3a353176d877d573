//! Writes to a store that is slow, and who is served beside them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use stemma_controller::store::RedbOptions;
use tokio::task::JoinSet;

use crate::fleet::PATIENCE;
use crate::served::Served;

/// How late the store answers a commit: later than a read is answered on any machine.
const LATE: Duration = Duration::from_hours(1);

/// So many writes of one principal are worked on at the same time: half of all that are.
const WORKED_ON: u64 = 128;

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
    // Those that have their turn are committed, and wait for the store's word; all others wait for a turn.
    let (store, deadline) = (Arc::clone(served.api().registry.store()), Instant::now() + PATIENCE);
    while store.head().await.expect("a store").get() < WORKED_ON {
        assert!(Instant::now() < deadline, "not so many are worked on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served.get("/v1/nodes").await;
    // Who has waited for a turn for too long is refused.
    while let Some(answered) = writes.try_join_next() {
        assert_eq!(
            answered.expect("it ends"),
            503,
            "the read was answered after a write, for whose commit the store takes {LATE:?}"
        );
    }
}
