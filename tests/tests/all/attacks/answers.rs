//! Answers that nobody takes.

use std::io::Read as _;
use std::net::TcpStream;

use anyhow::{Result, ensure};
use stemma_tests::plain::Plain;

use super::{MIB, begin, held, is_served_within, large_release, nodes, token, tokens};

/// Takes an answer that goes in pieces to its end, and says how many bytes it has.
fn taken(mut stream: TcpStream) -> Result<usize> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    while !all.ends_with(b"\r\n0\r\n\r\n") {
        let bytes = stream.read(&mut buffer)?;
        ensure!(bytes > 0, "it was cut after {} bytes", all.len());
        all.extend_from_slice(&buffer[..bytes]);
    }
    Ok(all.len())
}

#[test]
fn x03_f02_answers_that_nobody_reads_take_no_more_than_their_room() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let body = serde_json::to_vec(&large_release("big"))?;
    let admin = token(&at, "author", "admin")?;
    let (_, status) = begin(&at, &admin, "POST /v1/releases", &body)?;
    ensure!(status == 201, "{status}");
    let slow = token(&at, "slow", "viewer")?;
    let before = site.most_memory()?;
    let given = held(&at, &slow, "GET /v1/releases/big@1", 300)?;
    ensure!((1..100).contains(&given.len()), "{} are given, the others are told to wait", given.len());
    is_served_within(&site, before, 64 * MIB)?;
    drop(given);
    site.stop()
}

/// A quarter of the 64 places is the most of one principal. Each holds a piece or two of 64 KiB and what waits in its connection, some 8 MiB
/// together with the lists that others read; the bound is three to four times that.
#[test]
fn x03_f03_who_asks_for_all_places_of_lists_in_pieces_shuts_out_nobody_else() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let author = token(&at, "author", "admin")?;
    // A list of 20 MB: much more than the system holds of it for a client that reads nothing.
    for batch in 0..3 {
        let body = serde_json::to_vec(&nodes(&format!("n{batch}"), 340, 20_000))?;
        let (_, status) = begin(&at, &author, "POST /v1/apply", &body)?;
        ensure!(status == 200, "{status}");
    }
    let readers = tokens(&at, &["slow", "other"], "viewer")?;
    let before = site.most_memory()?;
    let request = "GET /v1/nodes/detail";
    let places = held(&at, &readers[0], request, 64)?;
    ensure!(places.len() == 16, "{} lists in pieces of one principal", places.len());
    for token in [&readers[1], &author] {
        let (stream, status) = begin(&at, token, request, &[])?;
        ensure!(status == 200, "others have places: {status}");
        let bytes = taken(stream)?;
        ensure!(bytes > 15_000_000, "a thousand nodes of 20 kB, not {bytes} bytes");
    }
    is_served_within(&site, before, 32 * MIB)?;
    drop(places);
    site.stop()
}
