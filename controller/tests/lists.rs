//! The work for a page of a list and for a quiet event stream. It is counted, not timed: allocations, and wakeups of
//! the thread that serves.

mod listed;
mod served;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use served::TestApi;
use stemma_controller::api::respond;
use stemma_counting::{allocations, thread_allocations};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

/// A full page.
const NODES: usize = 1_000;
const ROUNDS: u32 = 5;

/// Runs one test at a time, because the allocations of the whole process are counted.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// Returns the allocations for one page, of the whole process and of the thread that serves: the minimum of some
/// rounds.
async fn count_page_allocations(served: &TestApi, path: &str) -> (u64, u64) {
    let (mut process, mut thread) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let (all, own) = (allocations(), thread_allocations());
        std::hint::black_box(served.get_text(path).await);
        process = process.min(allocations() - all);
        thread = thread.min(thread_allocations() - own);
    }
    (process, thread)
}

#[tokio::test]
async fn page_is_encoded_off_serving_thread() {
    let _alone = SERIAL.lock().await;
    let served = TestApi::start().await;
    listed::add_nodes(&served, NODES).await;
    let (process, thread) = count_page_allocations(&served, "/v1/nodes/detail").await;
    assert!(process > 50 * NODES as u64, "a page in detail takes {process} allocations");
    assert!(thread < process / 20, "{thread} of the {process} allocations of a page are on the thread that serves");
}

/// The limits are one and a half times the counted values: 7 by name, 18 as listed, 52 in detail.
#[tokio::test]
async fn row_allocations_are_bounded() {
    let _alone = SERIAL.lock().await;
    let served = TestApi::start().await;
    listed::add_nodes(&served, NODES).await;
    for (path, most) in [("/v1/nodes?fields=name,uuid", 12), ("/v1/nodes", 30), ("/v1/nodes/detail", 90)] {
        let (found, _) = count_page_allocations(&served, path).await;
        let a_row = found / NODES as u64;
        assert!(a_row < most, "a row of {path} takes {a_row} allocations, at most {most} are allowed");
    }
}

/// A page of 20 takes as many allocations in a fleet that is eight times as large, by every filter that the index
/// supports. By any other filter each node is checked: that is eight times as many, and at most ten times.
#[tokio::test]
async fn page_cost_is_independent_of_fleet_size() {
    let _alone = SERIAL.lock().await;
    let (small, large) = (TestApi::start().await, TestApi::start().await);
    listed::add_nodes_with(&small, 500, listed::varied_fields).await;
    listed::add_nodes_with(&large, 4_000, listed::varied_fields).await;
    let path = |query: &str| format!("/v1/nodes?limit=20&fields=name&{query}");
    let (whole, _) = count_page_allocations(&small, &path("")).await;
    for (query, is_indexed) in listed::FILTERS {
        let ((few, _), (many, _)) =
            (count_page_allocations(&small, &path(query)).await, count_page_allocations(&large, &path(query)).await);
        // A page with few rows in the small fleet has more rows in the large one. So the cost of a full page is the
        // minimum to compare with.
        let (least, times) = (whole.max(few), if *is_indexed { 2 } else { 10 });
        assert!(many < least * times, "{query}: {many} allocations among 4,000 nodes, {few} among 500");
    }
}

const STREAMS: usize = 100;
const QUIET_TIME: Duration = Duration::from_mins(1);

/// Returns how often the thread that serves wakes up in a quiet minute. The clock is paused, so the minute takes only
/// as long as its wakeups.
async fn count_wake_ups() -> u64 {
    let before = Handle::current().metrics().worker_park_count(0);
    tokio::time::sleep(QUIET_TIME).await;
    Handle::current().metrics().worker_park_count(0) - before
}

#[tokio::test]
async fn quiet_stream_wakes_only_for_keep_alive() {
    let _alone = SERIAL.lock().await;
    let served = TestApi::start().await;
    listed::add_nodes(&served, 20).await;
    tokio::time::pause();
    let without = count_wake_ups().await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let request = Request::get("/v1/events").header("host", "localhost").body(Full::new(Bytes::new()));
        let mut stream = respond(served.api(), None, request.expect("a request")).await.into_body();
        stream.frame().await.expect("a beginning").expect("a stream that goes on");
        streams.push(stream);
    }
    let with = count_wake_ups().await;
    // A keep-alive every 30 s wakes all streams twice. A stream that polls every second would wake up sixty times.
    assert!(with < without + 20, "{with} wake-ups in a minute with {STREAMS} streams, {without} without");
}
