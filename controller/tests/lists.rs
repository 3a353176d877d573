//! The rows of a list are made off the thread that follows the store and answers writes.

mod listed;
mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use served::Served;

const NODES: usize = 500;
const WRITES: usize = 40;

/// CPU of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[tokio::test]
async fn a_reader_of_everything_takes_no_time_of_the_thread_that_writes() {
    let served = Arc::new(Served::start().await);
    listed::fill(&served, NODES).await;
    let (mut alone, mut beside, mut pages) = (Duration::MAX, Duration::MAX, 0);
    for round in 0..3 {
        let began = cpu();
        listed::edit(&served, WRITES, &format!("{round}-alone")).await;
        alone = alone.min(cpu().saturating_sub(began));
        let stop = Arc::new(AtomicBool::new(false));
        let reader = tokio::spawn(listed::read_everything(Arc::clone(&served), Arc::clone(&stop)));
        let began = cpu();
        listed::edit(&served, WRITES, &format!("{round}-beside")).await;
        beside = beside.min(cpu().saturating_sub(began));
        stop.store(true, Ordering::Relaxed);
        pages += reader.await.expect("the reader ends");
    }
    let times = beside.as_secs_f64() / alone.as_secs_f64();
    assert!(pages > 0 && times < 2.0, "{times:.2} times beside {pages} pages: {beside:?}, {alone:?}");
}
