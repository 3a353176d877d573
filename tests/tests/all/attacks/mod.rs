//! Measures the peak memory of a controller, as the kernel counts it, with many clients that send large requests and
//! read no response.
//!
//! Each test has the number of the attack that found the fault.

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
use stemma_tests::plain_controller::PlainController;
use stemma_tests::program::MAX_WAIT;

use crate::description::post;

const MIB: u64 = 1024 * 1024;

const JSON_TYPE: &str = "application/json";
const JSON_PATCH_TYPE: &str = "application/json-patch+json";
const MERGE_PATCH_TYPE: &str = "application/merge-patch+json";

/// The part of a body that is sent with its head, in bytes. The kernel buffers this much, whatever the controller does
/// with it.
const MAX_FIRST_BYTES: usize = 16 * 1024;

/// A complete response.
struct RawResponse {
    status: u16,
    head: String,
    body: String,
}

impl RawResponse {
    /// Returns the value of `retry-after`, in seconds.
    fn retry_after(&self) -> Option<u64> {
        self.head.lines().find_map(|line| line.strip_prefix("retry-after: ")?.parse().ok())
    }

    /// Returns whether the response is `server.busy` with a reason and a retry time.
    fn is_busy(&self) -> bool {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let has_reason = body["error"]["message"].as_str().is_some_and(|reason| !reason.is_empty());
        let has_time = self.retry_after().is_some_and(|seconds| seconds > 0);
        self.status == 503 && body["error"]["type"] == "server.busy" && has_reason && has_time
    }
}

/// Creates a principal with fleet scope. Returns its token.
fn create_token(site: &str, name: &str, role: &str) -> Result<String> {
    create_cluster_token(site, name, role, None)
}

/// Creates a principal that is bound to a cluster, or has fleet scope. Returns its token.
fn create_cluster_token(site: &str, name: &str, role: &str, cluster: Option<&str>) -> Result<String> {
    post(site, "/v1/principals", &json!({"name": name, "role": role, "cluster": cluster}))?;
    let created = post(site, &format!("/v1/principals/{name}/tokens"), &json!({}))?;
    Ok(created["token"].as_str().with_context(|| created.to_string())?.to_owned())
}

/// Creates principals with fleet scope. Returns their tokens.
fn create_tokens(site: &str, names: &[&str], role: &str) -> Result<Vec<String>> {
    names.iter().map(|name| create_token(site, name, role)).collect()
}

/// Starts a request, and reads only the status of its response.
fn begin_request(site: &str, token: &str, request: &str, body: &[u8]) -> Result<(TcpStream, u16)> {
    let mut stream = send_request(site, token, request, (JSON_TYPE, body), body.len())?;
    let status = read_status(&mut stream)?;
    Ok((stream, status))
}

/// Sends a request in one write. Its body has `length` bytes, of which `body` may be only the first part. `kind` is its
/// media type.
fn send_request(site: &str, token: &str, request: &str, (kind, body): (&str, &[u8]), length: usize) -> Result<TcpStream> {
    let address = site.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(MAX_WAIT))?;
    stream.set_write_timeout(Some(MAX_WAIT))?;
    let length = if length == 0 { String::new() } else { format!("content-length: {length}\r\n") };
    // An empty header is not the same as no token.
    let token = if token.is_empty() { String::new() } else { format!("x-auth-token: {token}\r\n") };
    let head = format!("{request} HTTP/1.1\r\nhost: {address}\r\n{token}content-type: {kind}\r\n{length}\r\n");
    stream.write_all(&[head.as_bytes(), body].concat())?;
    Ok(stream)
}

/// Sends a request and reads its response while it sends the body. The controller may respond before it has read the
/// whole body.
fn call(site: &str, token: &str, request: &str, (kind, body): (&str, &[u8])) -> Result<RawResponse> {
    let (first, rest) = body.split_at(body.len().min(MAX_FIRST_BYTES));
    let stream = send_request(site, token, request, (kind, first), body.len())?;
    let mut writing = stream.try_clone()?;
    std::thread::scope(|scope| {
        // The response shows the result if the body is not read to its end.
        scope.spawn(move || writing.write_all(rest).is_ok());
        let response = read_response(&stream);
        // Ends the writing thread. The controller may have closed the connection.
        let _closed = stream.shutdown(Shutdown::Both);
        response
    })
}

/// Sends `count` requests at the same time, with these tokens and bodies in rotation, and a request of an admin.
/// Returns the statuses.
fn concurrent_statuses(
    site: &str,
    tokens: &[String],
    request: &str,
    (kind, bodies): (&str, &[Vec<u8>]),
    count: usize,
) -> Result<Vec<u16>> {
    std::thread::scope(|scope| {
        let each = tokens.iter().cycle().zip(bodies.iter().cycle()).take(count);
        let calls: Vec<_> = each.map(|(token, body)| scope.spawn(move || call(site, token, request, (kind, body)))).collect();
        check_admin_is_served(site)?;
        let responses = calls.into_iter().map(|one| one.join().expect("it does not panic"));
        responses.map(|told| told.map(|told| told.status)).collect()
    })
}

/// Reads the status of a response.
fn read_status(stream: &mut impl Read) -> Result<u16> {
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    Ok(std::str::from_utf8(&head)?.strip_prefix("HTTP/1.1 ").context("a status")?.parse()?)
}

/// Reads a response with a `content-length`.
fn read_response(stream: impl Read) -> Result<RawResponse> {
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
    Ok(RawResponse { status, head, body: String::from_utf8(body)? })
}

/// Sends a request `count` times and does not read the responses, which occupy their places. Returns those that were
/// accepted. All others must be `server.busy`.
fn held_streams(site: &str, token: &str, request: &str, count: usize) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for nth in 0..count {
        let (stream, status) = begin_request(site, token, request, &[])?;
        if status == 200 {
            streams.push(stream);
            continue;
        }
        let refused = read_response(format!("HTTP/1.1 {status}").as_bytes().chain(stream))?;
        ensure!(refused.is_busy(), "{request}, number {nth}: {} {}", refused.head, refused.body);
    }
    Ok(streams)
}

/// Checks that a request of an admin is answered.
fn check_admin_is_served(site: &str) -> Result<()> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", &format!("{site}/v1/nodes?limit=1")]);
    let output = curl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Waits until all nodes are resolved at the newest revision.
fn wait_until_resolved(site: &str, token: &str) -> Result<()> {
    let began = Instant::now();
    let mut revisions = (None, None);
    while began.elapsed() < MAX_WAIT {
        let metrics = call(site, token, "GET /metrics", (JSON_TYPE, b""))?.body;
        let metric = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        revisions = (metric("stemma_store_revision "), metric("stemma_desired_revision "));
        if revisions.0.is_some() && revisions.0 == revisions.1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the store's revision, and that as of which all nodes are resolved: {revisions:?}")
}

/// Returns the body of an apply of `count` nodes, each of about `bytes` bytes.
fn nodes_body(prefix: &str, count: usize, bytes: usize) -> Value {
    let note = "x".repeat(bytes.saturating_sub(100));
    let node = |at: usize| json!({"kind": "Node", "name": format!("{prefix}-{at}"), "annotations": {"note": note}});
    json!({"objects": (0..count).map(node).collect::<Vec<_>>()})
}

/// Returns version 1 of a release of about 5 MiB.
fn large_release(name: &str) -> Value {
    let content = "x".repeat(1_400);
    let task = |nth: usize| {
        json!({"id": format!("t{nth}"), "type": "file", "tags": ["a"],
            "parameters": {"path": format!("/etc/f{nth}"), "content": content}})
    };
    let tasks: Vec<Value> = (0..3_800).map(task).collect();
    json!({"name": name, "version": "1", "roles": {"a": {"tags": ["a"]}}, "tags": {"a": {}}, "tasks": tasks})
}

/// Checks that an admin is served, and that the controller's peak memory has grown by less than `most` since `before`.
fn check_memory_of_site(site: &PlainController, before: u64, most: u64) -> Result<()> {
    check_admin_is_served(&site.addresses.admin)?;
    check_memory_growth(before, site.peak_memory_bytes()?, most)
}

/// Checks that the peak memory has grown by less than `most`, and prints the growth for docs/performance.md.
fn check_memory_growth(before: u64, now: u64, most: u64) -> Result<()> {
    let grown = now.saturating_sub(before);
    let message = format!("it came to need {} MiB beside {} MiB", grown / MIB, before / MIB);
    print_figure(&message);
    ensure!(grown < most, "{message}, and may {} MiB", most / MIB);
    Ok(())
}

/// Prints a figure for the documentation.
#[allow(clippy::print_stdout, reason = "the figure of the documentation")]
fn print_figure(figure: &str) {
    println!("{figure}");
}
