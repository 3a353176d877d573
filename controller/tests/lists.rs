//! How much work a page of a list and a quiet stream of events are, counted and not timed: allocations, and wake-ups of the thread that serves.

mod listed;
mod served;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use served::Served;
use stemma_controller::api::answer;
use stemma_counting::{allocations, allocations_of_thread};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

/// A whole page.
const NODES: usize = 1_000;
const ROUNDS: u32 = 5;

/// One test at a time: the allocations of the whole process are counted.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The allocations of one page by the whole process and by the thread that serves: the least of some rounds.
async fn page(served: &Served, path: &str) -> (u64, u64) {
    let (mut process, mut thread) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let (all, own) = (allocations(), allocations_of_thread());
        std::hint::black_box(served.text(path).await);
        process = process.min(allocations() - all);
        thread = thread.min(allocations_of_thread() - own);
    }
    (process, thread)
}

#[tokio::test]
async fn a_page_is_written_off_the_thread_that_serves() {
    let _alone = ALONE.lock().await;
    let served = Served::start().await;
    listed::fill(&served, NODES).await;
    let (process, thread) = page(&served, "/v1/nodes/detail").await;
    assert!(process > 50 * NODES as u64, "a page in detail takes {process} allocations");
    assert!(thread < process / 20, "{thread} of the {process} allocations of a page are on the thread that serves");
}

/// The bounds lie half as high again as what was counted: 7 by name, 18 as listed, 52 in detail.
#[tokio::test]
async fn a_row_takes_a_bounded_number_of_allocations() {
    let _alone = ALONE.lock().await;
    let served = Served::start().await;
    listed::fill(&served, NODES).await;
    for (path, most) in [("/v1/nodes?fields=name,uuid", 12), ("/v1/nodes", 30), ("/v1/nodes/detail", 90)] {
        let (found, _) = page(&served, path).await;
        let a_row = found / NODES as u64;
        assert!(a_row < most, "a row of {path} takes {a_row} allocations, at most {most} are allowed");
    }
}

/// A page of 20 takes as many allocations in a fleet that is eight times as large, by every filter that the index knows. By any other
/// each node is looked at: that is eight times as many, and no more than ten.
#[tokio::test]
async fn a_page_takes_as_much_work_in_a_large_fleet_as_in_a_small_one() {
    let _alone = ALONE.lock().await;
    let (small, large) = (Served::start().await, Served::start().await);
    listed::fill_with(&small, 500, listed::varied).await;
    listed::fill_with(&large, 4_000, listed::varied).await;
    let path = |query: &str| format!("/v1/nodes?limit=20&fields=name&{query}");
    let (whole, _) = page(&small, &path("")).await;
    for (query, is_indexed) in listed::FILTERS {
        let ((few, _), (many, _)) = (page(&small, &path(query)).await, page(&large, &path(query)).await);
        // A page of few rows in the small fleet has more of them in the large one: a page of all is the least that is compared with.
        let (least, times) = (whole.max(few), if *is_indexed { 2 } else { 10 });
        assert!(many < least * times, "{query}: {many} allocations among 4,000 nodes, {few} among 500");
    }
}

const STREAMS: usize = 100;
const QUIET: Duration = Duration::from_mins(1);

/// How often the thread that serves wakes up in a quiet minute. The clock is paused, so the minute is as long as its wake-ups.
async fn wake_ups() -> u64 {
    let before = Handle::current().metrics().worker_park_count(0);
    tokio::time::sleep(QUIET).await;
    Handle::current().metrics().worker_park_count(0) - before
}

#[tokio::test]
async fn a_quiet_stream_wakes_up_for_its_keep_alive_alone() {
    let _alone = ALONE.lock().await;
    let served = Served::start().await;
    listed::fill(&served, 20).await;
    tokio::time::pause();
    let without = wake_ups().await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let request = Request::get("/v1/events").header("host", "localhost").body(Full::new(Bytes::new()));
        let mut stream = answer(served.api(), None, request.expect("a request")).await.into_body();
        stream.frame().await.expect("a beginning").expect("a stream that goes on");
        streams.push(stream);
    }
    let with = wake_ups().await;
    // A keep-alive every 30 s wakes all streams twice. A stream that looks every second would wake up sixty times.
    assert!(with < without + 20, "{with} wake-ups in a minute with {STREAMS} streams, {without} without");
}
