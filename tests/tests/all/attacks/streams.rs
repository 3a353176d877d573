//! Streams of events, and connections that only sit there.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::json;
use stemma_tests::fleet::Fleet;
use stemma_tests::plain::Plain;
use stemma_tests::program::{PATIENCE, memory};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{Pin, client_config};

use super::{MIB, begin, has_grown_within, held, is_served_within, nodes, status, token, tokens};
use crate::description::post;

/// Reads a stream of events until it tells of something.
fn tells_of(stream: impl Read, what: &str) -> Result<()> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        ensure!(!line.starts_with("event: end"), "the stream ends before it tells of {what}");
        if line.contains(what) {
            return Ok(());
        }
    }
    bail!("the stream was cut before it told of {what}")
}

#[test]
fn x03_f01_streams_of_events_that_nobody_reads_take_no_more_than_their_room() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    // What each stream is to be told: 10,000 events.
    for batch in 0..20 {
        post(&at, "/v1/apply", &nodes(&format!("n{batch}"), 500, 300))?;
    }
    let slow = tokens(&at, &["one", "two"], "viewer")?;
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

/// A quarter of the 1,000 places is the most of one principal. A quiet stream takes some 100 KiB with its connection; the bound is twice
/// what 250 of them take.
#[test]
fn x03_f14_who_asks_for_all_places_of_streams_shuts_out_nobody_else() -> Result<()> {
    let site = Plain::start()?;
    let at = site.bound.admin.clone();
    let viewers = tokens(&at, &["crowd", "other"], "viewer")?;
    let boss = token(&at, "boss", "admin")?;
    let before = site.most_memory()?;
    let request = "GET /v1/events";
    let streams = held(&at, &viewers[0], request, 1_000)?;
    ensure!(streams.len() == 250, "{} streams of one principal", streams.len());
    let mut others = Vec::new();
    for token in [&viewers[1], &boss] {
        let (stream, status) = begin(&at, token, request, &[])?;
        ensure!(status == 200, "others have places: {status}");
        others.push(stream);
    }
    post(&at, "/v1/nodes", &json!({"name": "late"}))?;
    for stream in others {
        tells_of(stream, "\"late\"")?;
    }
    is_served_within(&site, before, 56 * MIB)?;
    drop(streams);
    site.stop()
}

/// A connection to the operators' port of a fleet, without a certificate.
type Connection = StreamOwned<ClientConnection, TcpStream>;

/// Asks for something on a connection of its own, by a token or by nothing. The connection stays open; of the answer the status is read.
fn connect(fleet: &Fleet, tls: &Arc<ClientConfig>, path: &str, token: Option<&str>) -> Result<(Connection, u16)> {
    let address: SocketAddr = fleet.bound().admin.trim_start_matches("https://").parse()?;
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let client = ClientConnection::new(Arc::clone(tls), ServerName::from(address.ip()))?;
    let mut stream = StreamOwned::new(client, stream);
    let token = token.map(|token| format!("x-auth-token: {token}\r\n")).unwrap_or_default();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n{token}\r\n")?;
    stream.flush()?;
    let status = status(&mut stream)?;
    Ok((stream, status))
}

/// A connection with TLS takes some 60 KiB, a stream as much again; the bound is three times what 100 of each take.
#[test]
fn x04_f13_neither_strangers_nor_streams_by_token_lock_a_good_token_out() -> Result<()> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["principal", "create", "robot", "--role", "viewer"])?;
    let printed = fleet.stemma(&["principal", "token", "create", "robot"])?;
    let token = Some(printed.trim());
    let root = CertificateDer::from_pem_file(&fleet.bound().ca)?;
    let tls = Arc::new(client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock))?);
    let id = fleet.controller_id().context("the controller runs")?;
    let before = memory(id, "VmHWM:")?;
    let (mut strangers, mut streams) = (Vec::new(), Vec::new());
    for nth in 0..100 {
        let (stream, status) = connect(&fleet, &tls, "/v1/nodes", None)?;
        ensure!(status == 401, "stranger {nth}: {status}");
        strangers.push(stream);
    }
    for nth in 0..100 {
        let (stream, status) = connect(&fleet, &tls, "/v1/events", token)?;
        ensure!(status == 200, "stream {nth}: {status}");
        streams.push(stream);
    }
    let (_, status) = connect(&fleet, &tls, "/v1/nodes", token)?;
    ensure!(status == 200, "a good token is let in from the same address: {status}");
    fleet.stemma(&["create", "cluster", "prod"])?;
    for stream in streams {
        tells_of(stream, "\"prod\"")?;
    }
    has_grown_within(before, memory(id, "VmHWM:")?, 56 * MIB)?;
    drop(strangers);
    Ok(())
}
