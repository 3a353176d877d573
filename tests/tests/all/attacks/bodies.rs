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
    JSON_PATCH_TYPE, JSON_TYPE, MAX_FIRST_BYTES, MERGE_PATCH_TYPE, MIB, begin_request, call, check_memory_of_site,
    concurrent_statuses, create_token, create_tokens, large_release, nodes_body, send_request,
};
use crate::description::post;

/// Maximum memory of all request bodies together, whatever their content and number. Bodies being received have 64 MiB.
/// The rest is for parsed bodies, decisions and the pages of the store.
const MAX_BODY_MEMORY: u64 = 320 * MIB;

/// Returns bodies of about eight megabytes, each an apply of nodes.
fn large_bodies(count: usize) -> Result<Vec<Vec<u8>>> {
    let bodies: Vec<Vec<u8>> =
        (0..count).map(|nth| serde_json::to_vec(&nodes_body(&format!("n{nth}"), 950, 8_100))).collect::<Result<_, _>>()?;
    ensure!(bodies.iter().all(|body| (7 << 20..8 << 20).contains(&body.len())), "about eight megabytes");
    Ok(bodies)
}

/// Returns whether a write was made, refused for its content, or postponed.
fn has_decision(status: u16) -> bool {
    [200, 201, 400, 409, 413, 503].contains(&status)
}

/// Sends this number of dry-run applies at the same time. Each must be decided or postponed, at least one decided, and
/// memory must stay within the limit.
fn check_applies(site: &PlainController, writers: &[String], bodies: &[Vec<u8>], count: usize) -> Result<()> {
    let before = site.peak_memory_bytes()?;
    let statuses =
        concurrent_statuses(&site.addresses.admin, writers, "POST /v1/apply?dry_run=true", (JSON_TYPE, bodies), count)?;
    ensure!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    ensure!(statuses.contains(&200), "one of them is decided: {statuses:?}");
    check_memory_of_site(site, before, MAX_BODY_MEMORY)
}

#[test]
fn x03_f05_large_bodies_are_decided_in_sequence() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let writers = create_tokens(&at, &["writer"], "operator")?;
    let bodies = large_bodies(12)?;
    check_applies(&site, &writers, &bodies, 12)?;
    site.stop()
}

#[test]
fn x03_f05_large_bodies_take_bounded_memory_on_large_fleet() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    for batch in 0..10 {
        post(&at, "/v1/apply", &nodes_body(&format!("fleet{batch}"), 1_000, 110))?;
    }
    let author = create_token(&at, "author", "admin")?;
    for name in ["one", "two", "three"] {
        let body = serde_json::to_vec(&large_release(name))?;
        let told = call(&at, &author, "POST /v1/releases", (JSON_TYPE, &body))?;
        ensure!(told.status == 201, "{name}: {} {}", told.status, told.body);
    }
    let writers = create_tokens(&at, &["otto", "ada"], "operator")?;
    let bodies = large_bodies(4)?;
    check_applies(&site, &writers, &bodies, 40)?;
    site.stop()
}

#[test]
fn x03_f05_copy_patches_take_bounded_memory() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let writers = create_tokens(&at, &["otto", "ada"], "operator")?;
    // A value in memory is many times larger than its two bytes of text.
    post(&at, "/v1/nodes", &json!({"name": "n", "extra": {"a": vec![7; 14_000]}}))?;
    let copy = |nth: usize| json!({"op": "copy", "from": "/extra/a", "path": format!("/extra/a{nth}")});
    let patch = serde_json::to_vec(&(0..30).map(copy).collect::<Vec<Value>>())?;
    let before = site.peak_memory_bytes()?;
    let statuses = concurrent_statuses(&at, &writers, "PATCH /v1/nodes/n", (JSON_PATCH_TYPE, &[patch]), 100)?;
    ensure!(statuses.iter().all(|status| has_decision(*status)), "{statuses:?}");
    check_memory_of_site(&site, before, MAX_BODY_MEMORY)?;
    site.stop()
}

#[test]
fn x03_f05_small_dense_bodies_take_bounded_memory() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let writers = create_tokens(&at, &["a", "b", "c", "d"], "operator")?;
    post(&at, "/v1/nodes", &json!({"name": "n"}))?;
    let dense = |digit: usize| serde_json::to_vec(&json!({"extra": {"a": vec![json!({"a": digit}); 7_500]}}));
    let bodies: Vec<Vec<u8>> = (0..4).map(dense).collect::<Result<_, _>>()?;
    ensure!(bodies.iter().all(|body| (58 << 10..64 << 10).contains(&body.len())), "about 60 KiB");
    let before = site.peak_memory_bytes()?;
    let statuses = concurrent_statuses(&at, &writers, "PATCH /v1/nodes/n", (MERGE_PATCH_TYPE, &bodies), 200)?;
    ensure!(statuses.iter().all(|status| has_decision(*status)), "{statuses:?}");
    ensure!(statuses.contains(&200), "one of them is made: {statuses:?}");
    check_memory_of_site(&site, before, MAX_BODY_MEMORY)?;
    site.stop()
}

#[test]
fn x03_f05_large_dense_body_takes_bounded_memory() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let writer = create_token(&at, "writer", "operator")?;
    let dense = vec![r#"{"a":1}"#; 980_000].join(",");
    ensure!((7 << 20..8 << 20).contains(&dense.len()), "about 7.5 MiB");
    let before = site.peak_memory_bytes()?;
    for (request, body) in [
        ("POST /v1/apply", format!(r#"{{"objects":[{dense}]}}"#)),
        ("POST /v1/nodes", format!(r#"{{"name":"n","extra":{{"a":[{dense}]}}}}"#)),
    ] {
        let told = call(&at, &writer, request, (JSON_TYPE, body.as_bytes()))?;
        ensure!([400, 413].contains(&told.status), "{request}: {} {}", told.status, told.body);
    }
    check_memory_of_site(&site, before, MAX_BODY_MEMORY)?;
    site.stop()
}

#[test]
fn x03_f05_small_write_succeeds_when_large_bodies_stall() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let slow = create_tokens(&at, &["a", "b", "c", "d"], "operator")?;
    let other = create_token(&at, "other", "operator")?;
    let body = serde_json::to_vec(&nodes_body("n", 950, 8_100))?;
    let beginning = &body[..body.len() - 10];
    // The remaining capacity for the bodies of operators is smaller than one body of maximum size.
    let stalled = slow.iter().cycle().take(7);
    let stalled: Vec<TcpStream> = stalled
        .map(|token| send_request(&at, token, "POST /v1/apply", (JSON_TYPE, beginning), body.len()))
        .collect::<Result<_>>()?;
    let small = serde_json::to_vec(&json!({"name": "small"}))?;
    let (_, status) = begin_request(&at, &other, "POST /v1/nodes", &small)?;
    ensure!(status == 201, "{status}");
    drop(stalled);
    site.stop()
}

/// Sends a body except for its last bytes, as far as the controller reads it, and then nothing. `came` counts the
/// bodies sent so far.
fn stall_body(site: &str, token: &str, body: &Arc<[u8]>, came: &Arc<AtomicUsize>) -> Result<TcpStream> {
    let stream = send_request(site, token, "POST /v1/apply", (JSON_TYPE, &body[..MAX_FIRST_BYTES]), body.len())?;
    let (mut writing, body, came) = (stream.try_clone()?, Arc::clone(body), Arc::clone(came));
    std::thread::spawn(move || {
        if writing.write_all(&body[MAX_FIRST_BYTES..body.len() - 10]).is_ok() {
            came.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(stream)
}

/// Checks that a request succeeds within the time that a body waits for capacity.
fn check_request_in_time(site: &str, token: &str, request: &str, body: &[u8]) -> Result<()> {
    let began = Instant::now();
    let told = call(site, token, request, (JSON_TYPE, body))?;
    let took = began.elapsed();
    let is_made = [200, 201].contains(&told.status) && took < Duration::from_secs(20);
    ensure!(is_made, "{request} of {} bytes: {} {} after {took:?}", body.len(), told.status, told.body);
    Ok(())
}

#[test]
fn x03_f05_writes_succeed_when_sixteen_bodies_of_others_stall() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let slow = create_tokens(&at, &["a", "b", "c", "d"], "operator")?;
    let (other, boss) = (create_token(&at, "other", "operator")?, create_token(&at, "boss", "admin")?);
    let body: Arc<[u8]> = serde_json::to_vec(&nodes_body("n", 950, 8_100))?.into();
    let medium = serde_json::to_vec(&nodes_body("medium", 25, 8_100))?;
    ensure!(medium.len() > 190 * 1024, "{} bytes are about 200 KiB", medium.len());
    let large = serde_json::to_vec(&nodes_body("large", 870, 8_100))?;
    ensure!(large.len() > 7_000_000, "{} bytes are seven megabytes", large.len());
    let before = site.peak_memory_bytes()?;
    let came = Arc::new(AtomicUsize::new(0));
    let stalled = slow.iter().cycle().take(16);
    let stalled: Vec<TcpStream> = stalled.map(|token| stall_body(&at, token, &body, &came)).collect::<Result<_>>()?;
    eventually("bodies have come but for their last bytes", || {
        let came = came.load(Ordering::Relaxed);
        ensure!(came >= 4, "{came} came");
        Ok(())
    })?;
    std::thread::scope(|scope| -> Result<()> {
        // Complete bodies of the same principals wait for the capacity that the stalled ones hold.
        let (at, body) = (&at, &body);
        let wait =
            slow.iter().map(|token| scope.spawn(move || call(at, token, "POST /v1/apply?dry_run=true", (JSON_TYPE, &body[..]))));
        let waiting: Vec<_> = wait.collect();
        check_request_in_time(at, &other, "POST /v1/apply", &medium)?;
        check_request_in_time(at, &boss, "POST /v1/apply", &large)?;
        for one in waiting {
            let told = one.join().expect("it does not panic")?;
            ensure!(told.status == 200 || told.is_busy(), "{} {}", told.head, told.body);
        }
        Ok(())
    })?;
    for stream in stalled {
        // The controller may have closed the connection.
        let _closed = stream.shutdown(Shutdown::Both);
    }
    check_memory_of_site(&site, before, MAX_BODY_MEMORY)?;
    site.stop()
}
