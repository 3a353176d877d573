//! Responses that the client does not read.

use std::io::Read as _;
use std::net::TcpStream;

use anyhow::{Result, ensure};
use stemma_tests::plain_controller::PlainController;

use super::{MIB, begin_request, check_memory_of_site, create_token, create_tokens, held_streams, large_release, nodes_body};

/// Reads a chunked response to its end. Returns its size in bytes.
fn read_chunked(mut stream: TcpStream) -> Result<usize> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    while !all.ends_with(b"\r\n0\r\n\r\n") {
        let bytes = stream.read(&mut buffer)?;
        ensure!(bytes > 0, "it was cut after {} bytes", all.len());
        all.extend_from_slice(&buffer[..bytes]);
    }
    Ok(all.len())
}

#[test]
fn x03_f02_unread_answers_take_bounded_memory() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let body = serde_json::to_vec(&large_release("big"))?;
    let admin = create_token(&at, "author", "admin")?;
    let (_, status) = begin_request(&at, &admin, "POST /v1/releases", &body)?;
    ensure!(status == 201, "{status}");
    let slow = create_token(&at, "slow", "viewer")?;
    let before = site.peak_memory_bytes()?;
    let given = held_streams(&at, &slow, "GET /v1/releases/big@1", 300)?;
    ensure!((1..100).contains(&given.len()), "{} are given, the others are told to wait", given.len());
    check_memory_of_site(&site, before, 64 * MIB)?;
    drop(given);
    site.stop()
}

/// One principal gets at most a quarter of the 64 places. Each place holds one or two chunks of 64 KiB and the data in
/// its connection, about 8 MiB in total with the lists that the others read. The limit in this test is three to four
/// times that.
#[test]
fn x03_f03_chunked_lists_leave_places_for_other_principals() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let author = create_token(&at, "author", "admin")?;
    // A list of 20 MB is much more than the kernel buffers for a client that reads nothing.
    for batch in 0..3 {
        let body = serde_json::to_vec(&nodes_body(&format!("n{batch}"), 340, 20_000))?;
        let (_, status) = begin_request(&at, &author, "POST /v1/apply", &body)?;
        ensure!(status == 200, "{status}");
    }
    let readers = create_tokens(&at, &["slow", "other"], "viewer")?;
    let before = site.peak_memory_bytes()?;
    let request = "GET /v1/nodes/detail";
    let places = held_streams(&at, &readers[0], request, 64)?;
    ensure!(places.len() == 16, "{} lists in pieces of one principal", places.len());
    for token in [&readers[1], &author] {
        let (stream, status) = begin_request(&at, token, request, &[])?;
        ensure!(status == 200, "others have places: {status}");
        let bytes = read_chunked(stream)?;
        ensure!(bytes > 15_000_000, "a thousand nodes of 20 kB, not {bytes} bytes");
    }
    check_memory_of_site(&site, before, 32 * MIB)?;
    drop(places);
    site.stop()
}
