//! What many clients that ask for much and take nothing cost a controller: its memory at the highest, as the kernel counts it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::plain::Plain;
use stemma_tests::program::PATIENCE;

use crate::description::post;

const MIB: u64 = 1024 * 1024;

/// A token of a new principal that sees the whole fleet.
fn token(site: &str, name: &str, role: &str) -> Result<String> {
    post(site, "/v1/principals", &json!({"name": name, "role": role}))?;
    let made = post(site, &format!("/v1/principals/{name}/tokens"), &json!({}))?;
    Ok(made["token"].as_str().with_context(|| made.to_string())?.to_owned())
}

/// Begins a request, and reads no more of its answer than the status.
fn begin(site: &str, token: &str, request: &str, body: &[u8]) -> Result<(TcpStream, u16)> {
    let mut stream = send(site, token, request, body, body.len())?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    let status = std::str::from_utf8(&head)?.strip_prefix("HTTP/1.1 ").context("a status")?.parse()?;
    Ok((stream, status))
}

/// Sends a request in one piece, of whose body of `length` bytes only the beginning may be there.
fn send(site: &str, token: &str, request: &str, body: &[u8], length: usize) -> Result<TcpStream> {
    let address = site.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = if length == 0 { String::new() } else { format!("content-length: {length}\r\n") };
    let head = format!(
        "{request} HTTP/1.1\r\nhost: {address}\r\nx-auth-token: {token}\r\ncontent-type: application/json\r\n{length}\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    Ok(stream)
}

/// What an admin asks meanwhile is answered.
fn is_served(site: &str) -> Result<()> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", &format!("{site}/v1/nodes?limit=1")]);
    let output = curl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// The body of an apply of so many nodes, each of about `bytes` bytes.
fn nodes(prefix: &str, count: usize, bytes: usize) -> Value {
    let note = "x".repeat(bytes.saturating_sub(100));
    let node = |at: usize| json!({"kind": "Node", "name": format!("{prefix}-{at}"), "annotations": {"note": note}});
    json!({"objects": (0..count).map(node).collect::<Vec<_>>()})
}

/// An admin is answered meanwhile, and since `before` the controller came to need less than `most` more memory. Says how much, for
/// docs/performance.md.
#[allow(clippy::print_stdout, reason = "the figure of the documentation")]
fn is_served_within(site: &Plain, before: u64, most: u64) -> Result<()> {
    is_served(&site.bound.admin)?;
    let grown = site.most_memory()?.saturating_sub(before);
    let said = format!("it came to need {} MiB beside {} MiB", grown / MIB, before / MIB);
    println!("{said}");
    ensure!(grown < most, "{said}, and may {} MiB", most / MIB);
    Ok(())
}

#[test]
fn x03_f01_streams_of_events_that_nobody_reads_take_no_more_than_their_room() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    // What each stream is to be told: 10,000 events.
    for batch in 0..20 {
        post(&at, "/v1/apply", &nodes(&format!("n{batch}"), 500, 300))?;
    }
    let slow: Vec<String> = ["one", "two"].iter().map(|name| token(&at, name, "viewer")).collect::<Result<_>>()?;
    let honest = token(&at, "honest", "viewer")?;
    let before = site.most_memory()?;
    let request = "GET /v1/events?class=object&kind=node&from=1";
    let mut streams = Vec::new();
    for token in slow.iter().cycle().take(480) {
        let (stream, status) = begin(&at, token, request, &[])?;
        ensure!(status == 200, "stream {}: {status}", streams.len());
        streams.push(stream);
    }
    // Who reads is told all of it meanwhile.
    let (stream, status) = begin(&at, &honest, request, &[])?;
    ensure!(status == 200, "{status}");
    let mut told = 0;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        ensure!(!line.starts_with("event: end"), "who reads is not cut, after {told} events");
        told += usize::from(line.starts_with("event: object"));
        if told == 10_000 {
            break;
        }
    }
    ensure!(told == 10_000, "{told} events");
    is_served_within(&site, before, 128 * MIB)?;
    drop(streams);
    site.stop()
}

#[test]
fn x03_f02_answers_that_nobody_reads_take_no_more_than_their_room() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let content = "x".repeat(1_400);
    let task = |nth: usize| {
        json!({"id": format!("t{nth}"), "type": "file", "tags": ["a"],
            "parameters": {"path": format!("/etc/f{nth}"), "content": content}})
    };
    let tasks: Vec<Value> = (0..3_800).map(task).collect();
    let release =
        json!({"name": "big", "version": "1", "roles": {"a": {"tags": ["a"]}}, "tags": {"a": {}}, "tasks": tasks});
    let body = serde_json::to_vec(&release)?;
    let admin = token(&at, "author", "admin")?;
    let (_, status) = begin(&at, &admin, "POST /v1/releases", &body)?;
    ensure!(status == 201, "{status}");
    let slow = token(&at, "slow", "viewer")?;
    let before = site.most_memory()?;
    let mut streams = Vec::new();
    let (mut given, mut refused) = (0, 0);
    for _ in 0..300 {
        let (stream, status) = begin(&at, &slow, "GET /v1/releases/big@1", &[])?;
        match status {
            200 => given += 1,
            503 => refused += 1,
            other => anyhow::bail!("{other}"),
        }
        streams.push(stream);
    }
    ensure!(given > 0 && refused > 200, "{given} are given, {refused} are told to wait");
    is_served_within(&site, before, 64 * MIB)?;
    drop(streams);
    site.stop()
}

#[test]
fn x03_f05_large_bodies_that_come_at_once_are_decided_one_after_another() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let writer = token(&at, "writer", "operator")?;
    let bodies: Vec<Vec<u8>> =
        (0..12).map(|nth| serde_json::to_vec(&nodes(&format!("n{nth}"), 950, 8_100))).collect::<Result<_, _>>()?;
    ensure!(bodies.iter().all(|body| (7 << 20..8 << 20).contains(&body.len())), "about eight megabytes");
    let before = site.most_memory()?;
    let ask = |body| begin(&at, &writer, "POST /v1/apply?dry_run=true", body).map(|(_, status)| status);
    let statuses = std::thread::scope(|scope| {
        let asked: Vec<_> = bodies.iter().map(|body| scope.spawn(move || ask(body))).collect();
        is_served(&at)?;
        let statuses = asked.into_iter().map(|one| one.join().expect("it does not panic"));
        statuses.collect::<Result<Vec<u16>>>()
    })?;
    ensure!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    ensure!(statuses.contains(&200), "one of them is decided: {statuses:?}");
    is_served_within(&site, before, 320 * MIB)?;
    site.stop()
}

#[test]
fn x03_f05_a_small_write_is_made_while_large_bodies_stand_still() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let operators = ["a", "b", "c", "d", "other"].map(|name| token(&at, name, "operator"));
    let operators: Vec<String> = operators.into_iter().collect::<Result<_>>()?;
    let (other, slow) = operators.split_last().context("five operators")?;
    let body = serde_json::to_vec(&nodes("n", 950, 8_100))?;
    let beginning = &body[..body.len() - 10];
    // Together as much as operators may have of bodies that arrive, but for less than a body may have at most.
    let stalled = slow.iter().cycle().take(8);
    let stalled: Vec<TcpStream> =
        stalled.map(|token| send(&at, token, "POST /v1/apply", beginning, body.len())).collect::<Result<_>>()?;
    let small = serde_json::to_vec(&json!({"name": "small"}))?;
    let (_, status) = begin(&at, other, "POST /v1/nodes", &small)?;
    ensure!(status == 201, "{status}");
    drop(stalled);
    site.stop()
}
