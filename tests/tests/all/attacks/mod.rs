//! Attacks on a controller: large requests, unread responses, streams, stored data, and attacks on the rights of other
//! principals. Most tests also measure the peak memory of the controller, as the kernel counts it.
//!
//! The prefix of each test name is the number of the attack that found the fault.

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

/// Size of the part of a body that is sent together with the head, in bytes. The kernel buffers this much even if the
/// controller reads nothing.
const MAX_FIRST_BYTES: usize = 16 * 1024;

/// A complete HTTP response.
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

    /// Returns whether the response is the error `server.busy` with a reason and a time for a retry.
    fn is_busy(&self) -> bool {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let has_reason = body["error"]["message"].as_str().is_some_and(|reason| !reason.is_empty());
        let has_time = self.retry_after().is_some_and(|seconds| seconds > 0);
        self.status == 503 && body["error"]["type"] == "server.busy" && has_reason && has_time
    }
}

/// Creates a principal with rights in the whole fleet. Returns its token.
fn create_token(url: &str, name: &str, role: &str) -> Result<String> {
    create_cluster_token(url, name, role, None)
}

/// Creates a principal with rights in `cluster`, or with `None` in the whole fleet. Returns the principal's token.
fn create_cluster_token(url: &str, name: &str, role: &str, cluster: Option<&str>) -> Result<String> {
    post(url, "/v1/principals", &json!({"name": name, "role": role, "cluster": cluster}))?;
    let created = post(url, &format!("/v1/principals/{name}/tokens"), &json!({}))?;
    Ok(created["token"].as_str().with_context(|| created.to_string())?.to_owned())
}

/// Creates principals with rights in the whole fleet. Returns their tokens.
fn create_tokens(url: &str, names: &[&str], role: &str) -> Result<Vec<String>> {
    names.iter().map(|name| create_token(url, name, role)).collect()
}

/// Sends a request, and reads only the status of its response. The stream contains the rest of the response.
fn begin_request(url: &str, token: &str, request: &str, body: &[u8]) -> Result<(TcpStream, u16)> {
    let mut stream = send_request(url, token, request, (JSON_TYPE, body), body.len())?;
    let status = read_status(&mut stream)?;
    Ok((stream, status))
}

/// Sends a request in one write. The body is announced with `length` bytes, of which `body` may be only the first part.
/// An empty token sends no token.
fn send_request(url: &str, token: &str, request: &str, (media_type, body): (&str, &[u8]), length: usize) -> Result<TcpStream> {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(MAX_WAIT))?;
    stream.set_write_timeout(Some(MAX_WAIT))?;
    let length = if length == 0 { String::new() } else { format!("content-length: {length}\r\n") };
    // An empty header is not the same as no token.
    let token = if token.is_empty() { String::new() } else { format!("x-auth-token: {token}\r\n") };
    let head = format!("{request} HTTP/1.1\r\nhost: {address}\r\n{token}content-type: {media_type}\r\n{length}\r\n");
    stream.write_all(&[head.as_bytes(), body].concat())?;
    Ok(stream)
}

/// Sends a request, and reads the response while the rest of the body is sent. The controller may respond before it has
/// read the whole body.
fn call(url: &str, token: &str, request: &str, (media_type, body): (&str, &[u8])) -> Result<RawResponse> {
    let (first_part, rest_of_body) = body.split_at(body.len().min(MAX_FIRST_BYTES));
    let stream = send_request(url, token, request, (media_type, first_part), body.len())?;
    let mut writer = stream.try_clone()?;
    std::thread::scope(|scope| {
        // A failed write is ignored, because the response shows the result.
        scope.spawn(move || writer.write_all(rest_of_body).is_ok());
        let response = read_response(&stream);
        // The shutdown ends the writing thread. It fails if the controller has already closed the connection.
        let _closed = stream.shutdown(Shutdown::Both);
        response
    })
}

/// Sends `count` requests at the same time, with these tokens and bodies in rotation. During these requests, an admin
/// must be served. Returns the statuses.
fn concurrent_statuses(
    url: &str,
    tokens: &[String],
    request: &str,
    (media_type, bodies): (&str, &[Vec<u8>]),
    count: usize,
) -> Result<Vec<u16>> {
    std::thread::scope(|scope| {
        let requests = tokens.iter().cycle().zip(bodies.iter().cycle()).take(count);
        let calls: Vec<_> =
            requests.map(|(token, body)| scope.spawn(move || call(url, token, request, (media_type, body)))).collect();
        check_admin_is_served(url)?;
        let responses = calls.into_iter().map(|thread| thread.join().expect("the thread does not panic"));
        responses.map(|response| response.map(|response| response.status)).collect()
    })
}

/// Reads the status from the beginning of a response.
fn read_status(stream: &mut impl Read) -> Result<u16> {
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    Ok(std::str::from_utf8(&head)?.strip_prefix("HTTP/1.1 ").context("a status")?.parse()?)
}

/// Reads a response whose length is in `content-length`. Without that header, the body is empty.
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

/// Sends a request `count` times and reads only the statuses. The controller sends a limited number of responses at the
/// same time, and each unread response counts. Returns the connections with status 200. All other responses must be
/// `server.busy`.
fn open_unread_streams(url: &str, token: &str, request: &str, count: usize) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for number in 0..count {
        let (stream, status) = begin_request(url, token, request, &[])?;
        if status == 200 {
            streams.push(stream);
            continue;
        }
        // The status was already read from the stream, so it is inserted before the rest of the response.
        let response = read_response(format!("HTTP/1.1 {status}").as_bytes().chain(stream))?;
        ensure!(response.is_busy(), "{request}, number {number}: {} {}", response.head, response.body);
    }
    Ok(streams)
}

/// Checks that a request of an admin succeeds. On a listener without TLS, a request without a token is an admin's.
fn check_admin_is_served(url: &str) -> Result<()> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", &format!("{url}/v1/nodes?limit=1")]);
    let output = curl.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Waits until all nodes are resolved at the newest revision of the store.
fn wait_until_resolved(url: &str, token: &str) -> Result<()> {
    let start_time = Instant::now();
    // The newest revision of the store, and the revision at which all nodes are resolved.
    let mut revisions = (None, None);
    while start_time.elapsed() < MAX_WAIT {
        let metrics = call(url, token, "GET /metrics", (JSON_TYPE, b""))?.body;
        let metric = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        revisions = (metric("stemma_store_revision "), metric("stemma_desired_revision "));
        if revisions.0.is_some() && revisions.0 == revisions.1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the revisions of the store and of the resolved nodes differ: {revisions:?}")
}

/// Returns the body of an apply of `count` nodes. Each node has about `bytes` bytes.
fn nodes_body(prefix: &str, count: usize, bytes: usize) -> Value {
    // The other fields of a node take about 100 bytes.
    let note = "x".repeat(bytes.saturating_sub(100));
    let node = |index: usize| json!({"kind": "Node", "name": format!("{prefix}-{index}"), "annotations": {"note": note}});
    json!({"objects": (0..count).map(node).collect::<Vec<_>>()})
}

/// Returns version 1 of a release with about 5 MiB of tasks.
fn large_release(name: &str) -> Value {
    let content = "x".repeat(1_400);
    let task = |number: usize| {
        json!({"id": format!("t{number}"), "type": "file", "tags": ["a"],
            "parameters": {"path": format!("/etc/f{number}"), "content": content}})
    };
    let tasks: Vec<Value> = (0..3_800).map(task).collect();
    json!({"name": name, "version": "1", "roles": {"a": {"tags": ["a"]}}, "tags": {"a": {}}, "tasks": tasks})
}

/// Checks that an admin is served, and that the controller's peak memory has grown by less than `max_growth` bytes
/// since `memory_before`.
fn check_controller_memory(controller: &PlainController, memory_before: u64, max_growth: u64) -> Result<()> {
    check_admin_is_served(&controller.addresses.admin)?;
    check_memory_growth(memory_before, controller.peak_memory_bytes()?, max_growth)
}

/// Checks the memory of the controller, restarts it, and waits until it has resolved all nodes. The memory of the new
/// process is not checked here.
fn check_memory_and_restart(
    controller: PlainController,
    token: &str,
    memory_before: u64,
    max_growth: u64,
) -> Result<PlainController> {
    check_controller_memory(&controller, memory_before, max_growth)?;
    let controller = controller.restart()?;
    wait_until_resolved(&controller.addresses.admin, token)?;
    Ok(controller)
}

/// Checks that the peak memory has grown by less than `max_growth` bytes. Prints the growth for docs/performance.md.
fn check_memory_growth(memory_before: u64, memory_now: u64, max_growth: u64) -> Result<()> {
    let growth = memory_now.saturating_sub(memory_before);
    let message = format!("the peak memory grew by {} MiB from {} MiB", growth / MIB, memory_before / MIB);
    print_figure(&message);
    ensure!(growth < max_growth, "{message}, and the limit is {} MiB", max_growth / MIB);
    Ok(())
}

/// Prints a figure for the documentation.
#[allow(clippy::print_stdout, reason = "the figure of the documentation")]
fn print_figure(figure: &str) {
    println!("{figure}");
}
