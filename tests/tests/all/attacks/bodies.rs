//! Bodies that cost more than their length, and those that never come to their end.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use stemma_tests::plain::Plain;
use stemma_tests::program::eventually;

use super::{
    JSON, JSON_PATCH, MERGE_PATCH, MIB, WITH_HEAD, ask, at_once, begin, is_served_within, large_release, nodes, send,
    token, tokens,
};
use crate::description::post;

/// The most memory that bodies take together, whatever is in them and however many come: those that arrive have 64 MiB, and the rest is for
/// what is read from them and decided, and for the pages of the store.
const MOST: u64 = 320 * MIB;

/// Bodies of about eight megabytes, each an apply of nodes.
fn large_bodies(count: usize) -> Result<Vec<Vec<u8>>> {
    let bodies: Vec<Vec<u8>> =
        (0..count).map(|nth| serde_json::to_vec(&nodes(&format!("n{nth}"), 950, 8_100))).collect::<Result<_, _>>()?;
    ensure!(bodies.iter().all(|body| (7 << 20..8 << 20).contains(&body.len())), "about eight megabytes");
    Ok(bodies)
}

/// Whether a write was made, refused for what it says, or put off.
fn is_decided(status: u16) -> bool {
    [200, 201, 400, 409, 413, 503].contains(&status)
}

/// So many applies are tried out at once: each is decided or put off, one is decided, and memory stays within its bound.
fn are_tried_within(site: &Plain, writers: &[String], bodies: &[Vec<u8>], count: usize) -> Result<()> {
    let before = site.most_memory()?;
    let statuses = at_once(&site.bound.admin, writers, "POST /v1/apply?dry_run=true", (JSON, bodies), count)?;
    ensure!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    ensure!(statuses.contains(&200), "one of them is decided: {statuses:?}");
    is_served_within(site, before, MOST)
}

#[test]
fn x03_f05_large_bodies_that_come_at_once_are_decided_one_after_another() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let writers = tokens(&at, &["writer"], "operator")?;
    let bodies = large_bodies(12)?;
    are_tried_within(&site, &writers, &bodies, 12)?;
    site.stop()
}

#[test]
fn x03_f05_on_a_large_fleet_large_bodies_take_no_more() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    for batch in 0..10 {
        post(&at, "/v1/apply", &nodes(&format!("fleet{batch}"), 1_000, 110))?;
    }
    let author = token(&at, "author", "admin")?;
    for name in ["one", "two", "three"] {
        let body = serde_json::to_vec(&large_release(name))?;
        let told = ask(&at, &author, "POST /v1/releases", (JSON, &body))?;
        ensure!(told.status == 201, "{name}: {} {}", told.status, told.body);
    }
    let writers = tokens(&at, &["otto", "ada"], "operator")?;
    let bodies = large_bodies(4)?;
    are_tried_within(&site, &writers, &bodies, 40)?;
    site.stop()
}

#[test]
fn x03_f05_small_patches_that_copy_take_no_more_than_their_room() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let writers = tokens(&at, &["otto", "ada"], "operator")?;
    // A value takes many times the two bytes that it has in a text.
    post(&at, "/v1/nodes", &json!({"name": "n", "extra": {"a": vec![7; 14_000]}}))?;
    let copy = |nth: usize| json!({"op": "copy", "from": "/extra/a", "path": format!("/extra/a{nth}")});
    let patch = serde_json::to_vec(&(0..30).map(copy).collect::<Vec<Value>>())?;
    let before = site.most_memory()?;
    let statuses = at_once(&at, &writers, "PATCH /v1/nodes/n", (JSON_PATCH, &[patch]), 100)?;
    ensure!(statuses.iter().all(|status| is_decided(*status)), "{statuses:?}");
    is_served_within(&site, before, MOST)?;
    site.stop()
}

#[test]
fn x03_f05_small_bodies_that_are_dense_with_objects_take_no_more_than_their_room() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let writers = tokens(&at, &["a", "b", "c", "d"], "operator")?;
    post(&at, "/v1/nodes", &json!({"name": "n"}))?;
    let dense = |digit: usize| serde_json::to_vec(&json!({"extra": {"a": vec![json!({"a": digit}); 7_500]}}));
    let bodies: Vec<Vec<u8>> = (0..4).map(dense).collect::<Result<_, _>>()?;
    ensure!(bodies.iter().all(|body| (58 << 10..64 << 10).contains(&body.len())), "about 60 KiB");
    let before = site.most_memory()?;
    let statuses = at_once(&at, &writers, "PATCH /v1/nodes/n", (MERGE_PATCH, &bodies), 200)?;
    ensure!(statuses.iter().all(|status| is_decided(*status)), "{statuses:?}");
    ensure!(statuses.contains(&200), "one of them is made: {statuses:?}");
    is_served_within(&site, before, MOST)?;
    site.stop()
}

#[test]
fn x03_f05_a_large_body_that_is_dense_with_objects_takes_no_more_than_its_room() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let writer = token(&at, "writer", "operator")?;
    let dense = vec![r#"{"a":1}"#; 980_000].join(",");
    ensure!((7 << 20..8 << 20).contains(&dense.len()), "about 7.5 MiB");
    let before = site.most_memory()?;
    for (request, body) in [
        ("POST /v1/apply", format!(r#"{{"objects":[{dense}]}}"#)),
        ("POST /v1/nodes", format!(r#"{{"name":"n","extra":{{"a":[{dense}]}}}}"#)),
    ] {
        let told = ask(&at, &writer, request, (JSON, body.as_bytes()))?;
        ensure!([400, 413].contains(&told.status), "{request}: {} {}", told.status, told.body);
    }
    is_served_within(&site, before, MOST)?;
    site.stop()
}

#[test]
fn x03_f05_a_small_write_is_made_while_large_bodies_stand_still() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let slow = tokens(&at, &["a", "b", "c", "d"], "operator")?;
    let other = token(&at, "other", "operator")?;
    let body = serde_json::to_vec(&nodes("n", 950, 8_100))?;
    let beginning = &body[..body.len() - 10];
    // Together as much as operators may have of bodies that arrive, but for less than a body may have at most.
    let stalled = slow.iter().cycle().take(7);
    let stalled: Vec<TcpStream> = stalled
        .map(|token| send(&at, token, "POST /v1/apply", (JSON, beginning), body.len()))
        .collect::<Result<_>>()?;
    let small = serde_json::to_vec(&json!({"name": "small"}))?;
    let (_, status) = begin(&at, &other, "POST /v1/nodes", &small)?;
    ensure!(status == 201, "{status}");
    drop(stalled);
    site.stop()
}

/// Begins a body, sends as much of it as is taken, but for its last bytes, and then nothing. Each that came so far is counted.
fn stall(site: &str, token: &str, body: &Arc<[u8]>, came: &Arc<AtomicUsize>) -> Result<TcpStream> {
    let stream = send(site, token, "POST /v1/apply", (JSON, &body[..WITH_HEAD]), body.len())?;
    let (mut writing, body, came) = (stream.try_clone()?, Arc::clone(body), Arc::clone(came));
    std::thread::spawn(move || {
        if writing.write_all(&body[WITH_HEAD..body.len() - 10]).is_ok() {
            came.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(stream)
}

/// A request is answered as one that was made, within the time that a body waits for room.
fn is_made_in_time(site: &str, token: &str, request: &str, body: &[u8]) -> Result<()> {
    let began = Instant::now();
    let told = ask(site, token, request, (JSON, body))?;
    let took = began.elapsed();
    let is_made = [200, 201].contains(&told.status) && took < Duration::from_secs(20);
    ensure!(is_made, "{request} of {} bytes: {} {} after {took:?}", body.len(), told.status, told.body);
    Ok(())
}

#[test]
fn x03_f05_writes_of_others_are_made_while_sixteen_large_bodies_stand_still() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let slow = tokens(&at, &["a", "b", "c", "d"], "operator")?;
    let (other, boss) = (token(&at, "other", "operator")?, token(&at, "boss", "admin")?);
    let body: Arc<[u8]> = serde_json::to_vec(&nodes("n", 950, 8_100))?.into();
    let medium = serde_json::to_vec(&nodes("medium", 25, 8_100))?;
    ensure!(medium.len() > 190 * 1024, "{} bytes are about 200 KiB", medium.len());
    let large = serde_json::to_vec(&nodes("large", 870, 8_100))?;
    ensure!(large.len() > 7_000_000, "{} bytes are seven megabytes", large.len());
    let before = site.most_memory()?;
    let came = Arc::new(AtomicUsize::new(0));
    let stalled = slow.iter().cycle().take(16);
    let stalled: Vec<TcpStream> = stalled.map(|token| stall(&at, token, &body, &came)).collect::<Result<_>>()?;
    eventually("bodies have come but for their last bytes", || {
        let came = came.load(Ordering::Relaxed);
        ensure!(came >= 4, "{came} came");
        Ok(())
    })?;
    std::thread::scope(|scope| -> Result<()> {
        // Whole bodies of the same principals wait for the room that those hold.
        let (at, body) = (&at, &body);
        let wait = slow
            .iter()
            .map(|token| scope.spawn(move || ask(at, token, "POST /v1/apply?dry_run=true", (JSON, &body[..]))));
        let waiting: Vec<_> = wait.collect();
        is_made_in_time(at, &other, "POST /v1/apply", &medium)?;
        is_made_in_time(at, &boss, "POST /v1/apply", &large)?;
        for one in waiting {
            let told = one.join().expect("it does not panic")?;
            ensure!(told.status == 200 || told.is_busy(), "{} {}", told.head, told.body);
        }
        Ok(())
    })?;
    for stream in stalled {
        // The controller may have closed it.
        let _closed = stream.shutdown(Shutdown::Both);
    }
    is_served_within(&site, before, MOST)?;
    site.stop()
}
