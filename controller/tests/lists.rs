//! Tests that bound the cost of a page of a list and of a quiet event stream. The cost is counted, not timed: it is the
//! number of allocations, or of wake-ups of the thread that serves.

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

/// The number of nodes in the fleet of each test that lists all nodes on one page. It is the size of a full page.
const NODES: usize = 1_000;
const ROUNDS: u32 = 5;

/// The lock of the running test. One test runs at a time, because the allocations of the whole process are counted.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// Returns the number of allocations for one page: of the whole process, and of the thread that serves. Both are the
/// minimum of [`ROUNDS`] rounds.
async fn count_page_allocations(api: &TestApi, path: &str) -> (u64, u64) {
    let (mut process, mut thread) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let (process_before, thread_before) = (allocations(), thread_allocations());
        std::hint::black_box(api.get_text(path).await);
        process = process.min(allocations() - process_before);
        thread = thread.min(thread_allocations() - thread_before);
    }
    (process, thread)
}

#[tokio::test]
async fn page_is_encoded_off_serving_thread() {
    let _guard = SERIAL.lock().await;
    let api = TestApi::start().await;
    listed::add_nodes(&api, NODES).await;
    let (process, thread) = count_page_allocations(&api, "/v1/nodes/detail").await;
    assert!(process > 50 * NODES as u64, "a page in detail takes {process} allocations");
    assert!(thread < process / 20, "{thread} of the {process} allocations of a page are on the thread that serves");
}

/// The limits are about 1.7 times the counted allocations for a node: 7 by name, 18 as listed, 52 in detail.
#[tokio::test]
async fn row_allocations_are_bounded() {
    let _guard = SERIAL.lock().await;
    let api = TestApi::start().await;
    listed::add_nodes(&api, NODES).await;
    for (path, max_allocations) in [("/v1/nodes?fields=name,uuid", 12), ("/v1/nodes", 30), ("/v1/nodes/detail", 90)] {
        let (page_allocations, _) = count_page_allocations(&api, path).await;
        let row_allocations = page_allocations / NODES as u64;
        assert!(
            row_allocations < max_allocations,
            "a row of {path} takes {row_allocations} allocations, at most {max_allocations} are allowed"
        );
    }
}

/// The large fleet has eight times as many nodes. With a filter that the index supports, a page of 20 nodes may need at
/// most twice the allocations there. With any other filter, the controller checks each node, so ten times is the limit.
#[tokio::test]
async fn page_cost_is_independent_of_fleet_size() {
    let _guard = SERIAL.lock().await;
    let (small, large) = (TestApi::start().await, TestApi::start().await);
    listed::add_nodes_with(&small, 500, listed::varied_fields).await;
    listed::add_nodes_with(&large, 4_000, listed::varied_fields).await;
    let path = |query: &str| format!("/v1/nodes?limit=20&fields=name&{query}");
    let (full_page, _) = count_page_allocations(&small, &path("")).await;
    for (query, is_indexed) in listed::FILTERS {
        let ((small_cost, _), (large_cost, _)) =
            (count_page_allocations(&small, &path(query)).await, count_page_allocations(&large, &path(query)).await);
        // A page that is not full in the small fleet may be full in the large fleet. So the cost of a full page in the
        // small fleet is the least value to compare with.
        let (base_cost, max_ratio) = (full_page.max(small_cost), if *is_indexed { 2 } else { 10 });
        assert!(
            large_cost < base_cost * max_ratio,
            "{query}: {large_cost} allocations among 4,000 nodes, {small_cost} among 500"
        );
    }
}

const STREAMS: usize = 100;
const QUIET_TIME: Duration = Duration::from_mins(1);

/// Returns the number of times that the thread that serves wakes up in a quiet minute. The clock of tokio is paused, so
/// the test does not wait a real minute.
async fn count_wake_ups() -> u64 {
    // Worker 0 is the thread that serves. It is parked again after each wake-up.
    let count_before = Handle::current().metrics().worker_park_count(0);
    tokio::time::sleep(QUIET_TIME).await;
    Handle::current().metrics().worker_park_count(0) - count_before
}

#[tokio::test]
async fn quiet_stream_wakes_only_for_keep_alive() {
    let _guard = SERIAL.lock().await;
    let api = TestApi::start().await;
    listed::add_nodes(&api, 20).await;
    tokio::time::pause();
    let wake_ups_without = count_wake_ups().await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let request = Request::get("/v1/events").header("host", "localhost").body(Full::new(Bytes::new()));
        let mut stream = respond(api.api(), None, request.expect("a request")).await.into_body();
        stream.frame().await.expect("a first frame").expect("a frame without an error");
        streams.push(stream);
    }
    let wake_ups_with = count_wake_ups().await;
    // A keep-alive every 30 s wakes all streams twice. A stream that polls every second would wake up sixty times.
    assert!(
        wake_ups_with < wake_ups_without + 20,
        "{wake_ups_with} wake-ups in a minute with {STREAMS} streams, {wake_ups_without} without"
    );
}
