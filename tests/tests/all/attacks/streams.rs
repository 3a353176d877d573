//! Streams of events, and idle connections.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::json;
use stemma_tests::fleet::TempFleet;
use stemma_tests::plain_controller::PlainController;
use stemma_tests::program::{MAX_WAIT, memory_bytes};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{Pin, client_config};

use super::{
    MIB, begin_request, check_memory_growth, check_memory_of_site, create_token, create_tokens, held_streams, nodes_body,
    read_status,
};
use crate::description::post;

/// Reads a stream of events until an event contains this text.
fn read_until_event(stream: impl Read, what: &str) -> Result<()> {
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
fn x03_f01_unread_event_streams_take_bounded_memory() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    // Creates the 10,000 events that each stream gets.
    for batch in 0..20 {
        post(&at, "/v1/apply", &nodes_body(&format!("n{batch}"), 500, 300))?;
    }
    let slow = create_tokens(&at, &["one", "two"], "viewer")?;
    let honest = create_token(&at, "honest", "viewer")?;
    let before = site.peak_memory_bytes()?;
    let request = "GET /v1/events?class=object&kind=node&from=1";
    let mut streams = Vec::new();
    for token in slow.iter().cycle().take(480) {
        let (stream, status) = begin_request(&at, token, request, &[])?;
        ensure!(status == 200, "stream {}: {status}", streams.len());
        streams.push(stream);
    }
    // A client that reads gets all events at the same time.
    let (stream, status) = begin_request(&at, &honest, request, &[])?;
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
    check_memory_of_site(&site, before, 128 * MIB)?;
    drop(streams);
    site.stop()
}

/// One principal gets at most a quarter of the 1,000 places. An idle stream takes about 100 KiB with its connection.
/// The limit is twice the memory of 250 of them.
#[test]
fn x03_f14_event_streams_leave_places_for_other_principals() -> Result<()> {
    let site = PlainController::start()?;
    let at = site.addresses.admin.clone();
    let viewers = create_tokens(&at, &["crowd", "other"], "viewer")?;
    let boss = create_token(&at, "boss", "admin")?;
    let before = site.peak_memory_bytes()?;
    let request = "GET /v1/events";
    let streams = held_streams(&at, &viewers[0], request, 1_000)?;
    ensure!(streams.len() == 250, "{} streams of one principal", streams.len());
    let mut others = Vec::new();
    for token in [&viewers[1], &boss] {
        let (stream, status) = begin_request(&at, token, request, &[])?;
        ensure!(status == 200, "others have places: {status}");
        others.push(stream);
    }
    post(&at, "/v1/nodes", &json!({"name": "late"}))?;
    for stream in others {
        read_until_event(stream, "\"late\"")?;
    }
    check_memory_of_site(&site, before, 56 * MIB)?;
    drop(streams);
    site.stop()
}

/// A connection to the operators' port of a fleet, without a client certificate.
type AdminStream = StreamOwned<ClientConnection, TcpStream>;

/// Sends a request on a new connection, with or without a token. Reads the status of the response, and leaves the
/// connection open.
fn connect(fleet: &TempFleet, tls: &Arc<ClientConfig>, path: &str, token: Option<&str>) -> Result<(AdminStream, u16)> {
    let address: SocketAddr = fleet.addresses().admin.trim_start_matches("https://").parse()?;
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(MAX_WAIT))?;
    stream.set_write_timeout(Some(MAX_WAIT))?;
    let client = ClientConnection::new(Arc::clone(tls), ServerName::from(address.ip()))?;
    let mut stream = StreamOwned::new(client, stream);
    let token = token.map(|token| format!("x-auth-token: {token}\r\n")).unwrap_or_default();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n{token}\r\n")?;
    stream.flush()?;
    let status = read_status(&mut stream)?;
    Ok((stream, status))
}

/// A TLS connection takes about 60 KiB, and a stream the same again. The limit is three times the memory of 100 of
/// each.
#[test]
fn x04_f13_strangers_and_streams_leave_room_for_valid_token() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["principal", "create", "robot", "--role", "viewer"])?;
    let printed = fleet.stemma(&["principal", "token", "create", "robot"])?;
    let token = Some(printed.trim());
    let root = CertificateDer::from_pem_file(&fleet.addresses().ca)?;
    let tls = Arc::new(client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock))?);
    let id = fleet.controller_id().context("the controller runs")?;
    let before = memory_bytes(id, "VmHWM:")?;
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
        read_until_event(stream, "\"prod\"")?;
    }
    check_memory_growth(before, memory_bytes(id, "VmHWM:")?, 56 * MIB)?;
    drop(strangers);
    Ok(())
}
