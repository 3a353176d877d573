//! Responses that the client does not read.

use std::io::Read as _;
use std::net::TcpStream;

use anyhow::{Result, ensure};
use stemma_tests::plain_controller::PlainController;

use super::{
    MIB, begin_request, check_controller_memory, create_token, create_tokens, large_release, nodes_body, open_unread_streams,
};

/// Reads the rest of a chunked response to its end. Returns the number of bytes read, with head and chunk headers.
fn read_chunked(mut stream: TcpStream) -> Result<usize> {
    let (mut response_bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    while !response_bytes.ends_with(b"\r\n0\r\n\r\n") {
        let bytes = stream.read(&mut buffer)?;
        ensure!(bytes > 0, "the response was cut off after {} bytes", response_bytes.len());
        response_bytes.extend_from_slice(&buffer[..bytes]);
    }
    Ok(response_bytes.len())
}

/// One principal requests a large release 300 times, and reads only the status of each response with the release. The
/// controller sends only some of these responses at the same time, and refuses the other requests as `server.busy`.
#[test]
fn x03_f02_unread_answers_take_bounded_memory() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let body = serde_json::to_vec(&large_release("big"))?;
    let author_token = create_token(&url, "author", "admin")?;
    let (_, status) = begin_request(&url, &author_token, "POST /v1/releases", &body)?;
    ensure!(status == 201, "{status}");
    let slow_token = create_token(&url, "slow", "viewer")?;
    let memory_before = controller.peak_memory_bytes()?;
    let streams = open_unread_streams(&url, &slow_token, "GET /v1/releases/big@1", 300)?;
    ensure!((1..100).contains(&streams.len()), "{} responses were sent, the other clients must wait", streams.len());
    check_controller_memory(&controller, memory_before, 64 * MIB)?;
    drop(streams);
    controller.stop()
}

/// The controller sends at most 64 chunked lists at the same time, and at most a quarter of them to one principal. Each
/// list has one or two chunks of 64 KiB in memory, and the data in its connection. With the lists that the other
/// principals read, this is about 8 MiB in total. The limit in this test is three to four times that size.
#[test]
fn x03_f03_chunked_lists_leave_slots_for_other_principals() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let author_token = create_token(&url, "author", "admin")?;
    // A list of 20 MB is much more than the kernel buffers for a client that reads nothing.
    for batch in 0..3 {
        let body = serde_json::to_vec(&nodes_body(&format!("n{batch}"), 340, 20_000))?;
        let (_, status) = begin_request(&url, &author_token, "POST /v1/apply", &body)?;
        ensure!(status == 200, "{status}");
    }
    let reader_tokens = create_tokens(&url, &["slow", "other"], "viewer")?;
    let memory_before = controller.peak_memory_bytes()?;
    let request = "GET /v1/nodes/detail";
    let streams = open_unread_streams(&url, &reader_tokens[0], request, 64)?;
    ensure!(streams.len() == 16, "{} chunked lists of one principal", streams.len());
    for token in [&reader_tokens[1], &author_token] {
        let (stream, status) = begin_request(&url, token, request, &[])?;
        ensure!(status == 200, "another principal is served: {status}");
        let bytes = read_chunked(stream)?;
        ensure!(bytes > 15_000_000, "expected a thousand nodes of 20 kB, got {bytes} bytes");
    }
    check_controller_memory(&controller, memory_before, 32 * MIB)?;
    drop(streams);
    controller.stop()
}
