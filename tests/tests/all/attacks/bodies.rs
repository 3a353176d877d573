//! Request bodies that need more memory than their length, and bodies that never end.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use stemma_tests::plain_controller::PlainController;
use stemma_tests::program::eventually;

use super::{
    JSON_PATCH_TYPE, JSON_TYPE, MAX_FIRST_BYTES, MERGE_PATCH_TYPE, MIB, begin_request, call, check_controller_memory,
    concurrent_statuses, create_token, create_tokens, large_release, nodes_body, send_request,
};
use crate::description::post;

/// The number of bytes by which the controller's peak memory may grow in a test that measures it, whatever the content
/// and number of the request bodies. The large bodies that are being received may take 64 MiB, and the small ones 32
/// MiB. The rest is for parsed bodies, decisions and the pages of the store.
const MAX_BODY_MEMORY: u64 = 320 * MIB;

/// Returns bodies of about eight megabytes. Each is an apply of 950 nodes with different names.
fn large_bodies(count: usize) -> Result<Vec<Vec<u8>>> {
    let bodies: Vec<Vec<u8>> =
        (0..count).map(|number| serde_json::to_vec(&nodes_body(&format!("n{number}"), 950, 8_100))).collect::<Result<_, _>>()?;
    ensure!(bodies.iter().all(|body| (7 << 20..8 << 20).contains(&body.len())), "about eight megabytes");
    Ok(bodies)
}

/// Returns whether a status means that a write was made, refused for its content, or postponed.
fn is_decided_or_postponed(status: u16) -> bool {
    [200, 201, 400, 409, 413, 503].contains(&status)
}

/// Sends `count` dry-run applies at the same time. The controller must decide (200) or postpone (503) each apply, and
/// decide at least one. Its memory must stay within the limit.
fn check_applies(controller: &PlainController, tokens: &[String], bodies: &[Vec<u8>], count: usize) -> Result<()> {
    let memory_before = controller.peak_memory_bytes()?;
    let statuses =
        concurrent_statuses(&controller.addresses.admin, tokens, "POST /v1/apply?dry_run=true", (JSON_TYPE, bodies), count)?;
    ensure!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    ensure!(statuses.contains(&200), "at least one apply is decided: {statuses:?}");
    check_controller_memory(controller, memory_before, MAX_BODY_MEMORY)
}

#[test]
fn x03_f05_large_bodies_take_bounded_memory() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let writers = create_tokens(&url, &["writer"], "operator")?;
    let bodies = large_bodies(12)?;
    check_applies(&controller, &writers, &bodies, 12)?;
    controller.stop()
}

#[test]
fn x03_f05_large_bodies_take_bounded_memory_on_large_fleet() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    for batch in 0..10 {
        post(&url, "/v1/apply", &nodes_body(&format!("fleet{batch}"), 1_000, 110))?;
    }
    let author_token = create_token(&url, "author", "admin")?;
    for name in ["one", "two", "three"] {
        let body = serde_json::to_vec(&large_release(name))?;
        let response = call(&url, &author_token, "POST /v1/releases", (JSON_TYPE, &body))?;
        ensure!(response.status == 201, "{name}: {} {}", response.status, response.body);
    }
    let writers = create_tokens(&url, &["otto", "ada"], "operator")?;
    let bodies = large_bodies(4)?;
    check_applies(&controller, &writers, &bodies, 40)?;
    controller.stop()
}

/// A hundred JSON patches at the same time copy one list of 14,000 numbers 30 times each.
#[test]
fn x03_f05_copy_patches_take_bounded_memory() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let writers = create_tokens(&url, &["otto", "ada"], "operator")?;
    // A parsed number takes many times more memory than its two bytes of text.
    post(&url, "/v1/nodes", &json!({"name": "n", "extra": {"a": vec![7; 14_000]}}))?;
    let copy_operation = |number: usize| json!({"op": "copy", "from": "/extra/a", "path": format!("/extra/a{number}")});
    let patch = serde_json::to_vec(&(0..30).map(copy_operation).collect::<Vec<Value>>())?;
    let memory_before = controller.peak_memory_bytes()?;
    let statuses = concurrent_statuses(&url, &writers, "PATCH /v1/nodes/n", (JSON_PATCH_TYPE, &[patch]), 100)?;
    ensure!(statuses.iter().all(|status| is_decided_or_postponed(*status)), "{statuses:?}");
    check_controller_memory(&controller, memory_before, MAX_BODY_MEMORY)?;
    controller.stop()
}

/// A dense body has many small values. Its parsed form takes much more memory than its text.
#[test]
fn x03_f05_small_dense_bodies_take_bounded_memory() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let writers = create_tokens(&url, &["a", "b", "c", "d"], "operator")?;
    post(&url, "/v1/nodes", &json!({"name": "n"}))?;
    let dense_body = |digit: usize| serde_json::to_vec(&json!({"extra": {"a": vec![json!({"a": digit}); 7_500]}}));
    let bodies: Vec<Vec<u8>> = (0..4).map(dense_body).collect::<Result<_, _>>()?;
    ensure!(bodies.iter().all(|body| (58 << 10..64 << 10).contains(&body.len())), "about 60 KiB");
    let memory_before = controller.peak_memory_bytes()?;
    let statuses = concurrent_statuses(&url, &writers, "PATCH /v1/nodes/n", (MERGE_PATCH_TYPE, &bodies), 200)?;
    ensure!(statuses.iter().all(|status| is_decided_or_postponed(*status)), "{statuses:?}");
    ensure!(statuses.contains(&200), "at least one write is made: {statuses:?}");
    check_controller_memory(&controller, memory_before, MAX_BODY_MEMORY)?;
    controller.stop()
}

/// A dense body has many small values. Its parsed form takes much more memory than its text.
#[test]
fn x03_f05_large_dense_body_takes_bounded_memory() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let writer_token = create_token(&url, "writer", "operator")?;
    let dense_list = vec![r#"{"a":1}"#; 980_000].join(",");
    ensure!((7 << 20..8 << 20).contains(&dense_list.len()), "about 7.5 MiB");
    let memory_before = controller.peak_memory_bytes()?;
    for (request, body) in [
        ("POST /v1/apply", format!(r#"{{"objects":[{dense_list}]}}"#)),
        ("POST /v1/nodes", format!(r#"{{"name":"n","extra":{{"a":[{dense_list}]}}}}"#)),
    ] {
        let response = call(&url, &writer_token, request, (JSON_TYPE, body.as_bytes()))?;
        ensure!([400, 413].contains(&response.status), "{request}: {} {}", response.status, response.body);
    }
    check_controller_memory(&controller, memory_before, MAX_BODY_MEMORY)?;
    controller.stop()
}

/// Seven large bodies stop shortly before their end. A small write of another principal succeeds at the same time.
#[test]
fn x03_f05_small_write_succeeds_when_large_bodies_stall() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let slow_tokens = create_tokens(&url, &["a", "b", "c", "d"], "operator")?;
    let other_token = create_token(&url, "other", "operator")?;
    let body = serde_json::to_vec(&nodes_body("n", 950, 8_100))?;
    let body_start = &body[..body.len() - 10];
    // The remaining capacity for the bodies of operators is smaller than one body of maximum size.
    let stalled_streams = slow_tokens.iter().cycle().take(7);
    let stalled_streams: Vec<TcpStream> = stalled_streams
        .map(|token| send_request(&url, token, "POST /v1/apply", (JSON_TYPE, body_start), body.len()))
        .collect::<Result<_>>()?;
    let small_body = serde_json::to_vec(&json!({"name": "small"}))?;
    let (_, status) = begin_request(&url, &other_token, "POST /v1/nodes", &small_body)?;
    ensure!(status == 201, "{status}");
    drop(stalled_streams);
    controller.stop()
}

/// Sends a body except for its last 10 bytes, and then nothing. A thread writes as fast as the controller reads, and
/// increments `sent_bodies` when it has written all but the last bytes.
fn stall_body(url: &str, token: &str, body: &Arc<[u8]>, sent_bodies: &Arc<AtomicUsize>) -> Result<TcpStream> {
    let stream = send_request(url, token, "POST /v1/apply", (JSON_TYPE, &body[..MAX_FIRST_BYTES]), body.len())?;
    let (mut writer, body, sent_bodies) = (stream.try_clone()?, Arc::clone(body), Arc::clone(sent_bodies));
    std::thread::spawn(move || {
        if writer.write_all(&body[MAX_FIRST_BYTES..body.len() - 10]).is_ok() {
            sent_bodies.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(stream)
}

/// Checks that a write succeeds within 20 seconds. A body waits for at most that time until the controller has capacity
/// to read it.
fn check_request_in_time(url: &str, token: &str, request: &str, body: &[u8]) -> Result<()> {
    let start_time = Instant::now();
    let response = call(url, token, request, (JSON_TYPE, body))?;
    let duration = start_time.elapsed();
    let is_success = [200, 201].contains(&response.status) && duration < Duration::from_secs(20);
    ensure!(is_success, "{request} of {} bytes: {} {} after {duration:?}", body.len(), response.status, response.body);
    Ok(())
}

#[test]
fn x03_f05_writes_succeed_when_sixteen_bodies_of_others_stall() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let slow_tokens = create_tokens(&url, &["a", "b", "c", "d"], "operator")?;
    let (other_token, admin_token) = (create_token(&url, "other", "operator")?, create_token(&url, "boss", "admin")?);
    let body: Arc<[u8]> = serde_json::to_vec(&nodes_body("n", 950, 8_100))?.into();
    let medium_body = serde_json::to_vec(&nodes_body("medium", 25, 8_100))?;
    ensure!(medium_body.len() > 190 * 1024, "the medium body has {} bytes", medium_body.len());
    let large_body = serde_json::to_vec(&nodes_body("large", 870, 8_100))?;
    ensure!(large_body.len() > 7_000_000, "the large body has {} bytes", large_body.len());
    let memory_before = controller.peak_memory_bytes()?;
    let sent_bodies = Arc::new(AtomicUsize::new(0));
    // The controller has capacity for only some of these bodies at the same time.
    let stalled_streams = slow_tokens.iter().cycle().take(16);
    let stalled_streams: Vec<TcpStream> =
        stalled_streams.map(|token| stall_body(&url, token, &body, &sent_bodies)).collect::<Result<_>>()?;
    eventually("bodies are sent except for their last bytes", || {
        let sent_bodies = sent_bodies.load(Ordering::Relaxed);
        ensure!(sent_bodies >= 4, "{sent_bodies} bodies are sent");
        Ok(())
    })?;
    std::thread::scope(|scope| -> Result<()> {
        // The same principals also send complete bodies. These wait, because the stalled bodies occupy the capacity of
        // their principals.
        let (url, body) = (&url, &body);
        let threads = slow_tokens
            .iter()
            .map(|token| scope.spawn(move || call(url, token, "POST /v1/apply?dry_run=true", (JSON_TYPE, &body[..]))));
        let waiting_threads: Vec<_> = threads.collect();
        check_request_in_time(url, &other_token, "POST /v1/apply", &medium_body)?;
        check_request_in_time(url, &admin_token, "POST /v1/apply", &large_body)?;
        for thread in waiting_threads {
            let response = thread.join().expect("the thread does not panic")?;
            ensure!(response.status == 200 || response.is_busy(), "{} {}", response.head, response.body);
        }
        Ok(())
    })?;
    for stream in stalled_streams {
        // The controller may have closed the connection.
        let _closed = stream.shutdown(Shutdown::Both);
    }
    check_controller_memory(&controller, memory_before, MAX_BODY_MEMORY)?;
    controller.stop()
}
