//! What many clients that ask for much and take nothing cost a controller: its memory at the highest, as the kernel counts it.
//!
//! Each test has the number under which an attack found the fault.

mod answers;
mod bodies;
mod rights;
mod stored;
mod streams;

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use stemma_tests::plain::Plain;
use stemma_tests::program::PATIENCE;

use crate::description::post;

const MIB: u64 = 1024 * 1024;

const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// How much of a body is sent with its head: so much the system takes at once, whatever the controller does with it.
const WITH_HEAD: usize = 16 * 1024;

/// A whole answer.
struct Told {
    status: u16,
    head: String,
    body: String,
}

impl Told {
    /// In how many seconds the request is to be sent again.
    fn retry_after(&self) -> Option<u64> {
        self.head.lines().find_map(|line| line.strip_prefix("retry-after: ")?.parse().ok())
    }

    /// Whether it says why the request is not served now, and when to send it again.
    fn is_busy(&self) -> bool {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let has_reason = body["error"]["message"].as_str().is_some_and(|reason| !reason.is_empty());
        let has_time = self.retry_after().is_some_and(|seconds| seconds > 0);
        self.status == 503 && body["error"]["type"] == "server.busy" && has_reason && has_time
    }
}

/// A token of a new principal that sees the whole fleet.
fn token(site: &str, name: &str, role: &str) -> Result<String> {
    token_within(site, name, role, None)
}

/// A token of a new principal of one cluster, or of the whole fleet.
fn token_within(site: &str, name: &str, role: &str, cluster: Option<&str>) -> Result<String> {
    post(site, "/v1/principals", &json!({"name": name, "role": role, "cluster": cluster}))?;
    let made = post(site, &format!("/v1/principals/{name}/tokens"), &json!({}))?;
    Ok(made["token"].as_str().with_context(|| made.to_string())?.to_owned())
}

/// Tokens of new principals of the whole fleet.
fn tokens(site: &str, names: &[&str], role: &str) -> Result<Vec<String>> {
    names.iter().map(|name| token(site, name, role)).collect()
}

/// Begins a request, and reads no more of its answer than the status.
fn begin(site: &str, token: &str, request: &str, body: &[u8]) -> Result<(TcpStream, u16)> {
    let mut stream = send(site, token, request, (JSON, body), body.len())?;
    let status = status(&mut stream)?;
    Ok((stream, status))
}

/// Sends a request in one piece, of whose body of `length` bytes only the beginning may be there. The body goes with what it is said to be.
fn send(site: &str, token: &str, request: &str, (kind, body): (&str, &[u8]), length: usize) -> Result<TcpStream> {
    let address = site.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = if length == 0 { String::new() } else { format!("content-length: {length}\r\n") };
    // A header with nothing in it is no token's absence.
    let token = if token.is_empty() { String::new() } else { format!("x-auth-token: {token}\r\n") };
    let head = format!("{request} HTTP/1.1\r\nhost: {address}\r\n{token}content-type: {kind}\r\n{length}\r\n");
    stream.write_all(&[head.as_bytes(), body].concat())?;
    Ok(stream)
}

/// Sends a request and reads its answer. It is read while the body is sent, as clients do that may be answered before all of it was taken.
fn ask(site: &str, token: &str, request: &str, (kind, body): (&str, &[u8])) -> Result<Told> {
    let (first, rest) = body.split_at(body.len().min(WITH_HEAD));
    let stream = send(site, token, request, (kind, first), body.len())?;
    let mut writing = stream.try_clone()?;
    std::thread::scope(|scope| {
        // The answer says what became of it where it is not taken to its end.
        scope.spawn(move || writing.write_all(rest).is_ok());
        let told = told(&stream);
        // So that nothing goes on to be written. The other end may have closed it.
        let _closed = stream.shutdown(Shutdown::Both);
        told
    })
}

/// The statuses of so many requests that are sent at once, of these principals and with these bodies in turns. An admin is served meanwhile.
fn at_once(
    site: &str,
    tokens: &[String],
    request: &str,
    (kind, bodies): (&str, &[Vec<u8>]),
    count: usize,
) -> Result<Vec<u16>> {
    std::thread::scope(|scope| {
        let each = tokens.iter().cycle().zip(bodies.iter().cycle()).take(count);
        let asked: Vec<_> =
            each.map(|(token, body)| scope.spawn(move || ask(site, token, request, (kind, body)))).collect();
        is_served(site)?;
        let told = asked.into_iter().map(|one| one.join().expect("it does not panic"));
        told.map(|told| told.map(|told| told.status)).collect()
    })
}

/// Reads the status of an answer.
fn status(stream: &mut impl Read) -> Result<u16> {
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    Ok(std::str::from_utf8(&head)?.strip_prefix("HTTP/1.1 ").context("a status")?.parse()?)
}

/// Reads an answer that says how long it is.
fn told(stream: impl Read) -> Result<Told> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let bytes = reader.read_line(&mut head).context("no answer")?;
        ensure!(bytes > 0, "the connection ended without an answer: {head:?}");
    }
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).context("a status")?.parse()?;
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0").parse()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Told { status, head, body: String::from_utf8(body)? })
}

/// Asks so often for what is held until its client takes it, and takes nothing. Gives what is held; all others were told to wait, and why.
fn held(site: &str, token: &str, request: &str, count: usize) -> Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for nth in 0..count {
        let (stream, status) = begin(site, token, request, &[])?;
        if status == 200 {
            held.push(stream);
            continue;
        }
        let refused = told(format!("HTTP/1.1 {status}").as_bytes().chain(stream))?;
        ensure!(refused.is_busy(), "{request}, number {nth}: {} {}", refused.head, refused.body);
    }
    Ok(held)
}

/// What an admin asks meanwhile is answered.
fn is_served(site: &str) -> Result<()> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", &format!("{site}/v1/nodes?limit=1")]);
    let output = curl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Waits until all nodes are resolved as of what was written last.
fn until_resolved(site: &str, token: &str) -> Result<()> {
    let began = Instant::now();
    let mut revisions = (None, None);
    while began.elapsed() < PATIENCE {
        let metrics = ask(site, token, "GET /metrics", (JSON, b""))?.body;
        let of = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        revisions = (of("stemma_store_revision "), of("stemma_desired_revision "));
        if revisions.0.is_some() && revisions.0 == revisions.1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the store's revision, and that as of which all nodes are resolved: {revisions:?}")
}

/// The body of an apply of so many nodes, each of about `bytes` bytes.
fn nodes(prefix: &str, count: usize, bytes: usize) -> Value {
    let note = "x".repeat(bytes.saturating_sub(100));
    let node = |at: usize| json!({"kind": "Node", "name": format!("{prefix}-{at}"), "annotations": {"note": note}});
    json!({"objects": (0..count).map(node).collect::<Vec<_>>()})
}

/// A release of about 5 MiB, version 1.
fn large_release(name: &str) -> Value {
    let content = "x".repeat(1_400);
    let task = |nth: usize| {
        json!({"id": format!("t{nth}"), "type": "file", "tags": ["a"],
            "parameters": {"path": format!("/etc/f{nth}"), "content": content}})
    };
    let tasks: Vec<Value> = (0..3_800).map(task).collect();
    json!({"name": name, "version": "1", "roles": {"a": {"tags": ["a"]}}, "tags": {"a": {}}, "tasks": tasks})
}

/// An admin is answered meanwhile, and since `before` the controller came to need less than `most` more memory.
fn is_served_within(site: &Plain, before: u64, most: u64) -> Result<()> {
    is_served(&site.bound.admin)?;
    has_grown_within(before, site.most_memory()?, most)
}

/// From `before` a controller came to need less than `most` more memory. Says how much, for docs/performance.md.
fn has_grown_within(before: u64, now: u64, most: u64) -> Result<()> {
    let grown = now.saturating_sub(before);
    let said = format!("it came to need {} MiB beside {} MiB", grown / MIB, before / MIB);
    say(&said);
    ensure!(grown < most, "{said}, and may {} MiB", most / MIB);
    Ok(())
}

/// Says a figure of the documentation.
#[allow(clippy::print_stdout, reason = "the figure of the documentation")]
fn say(figure: &str) {
    println!("{figure}");
}
