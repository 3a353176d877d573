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
    MIB, begin_request, check_controller_memory, check_memory_growth, create_token, create_tokens, nodes_body,
    open_unread_streams, read_status,
};
use crate::description::post;

/// Reads a stream of events until an event contains this text. Fails if the stream ends first.
fn read_until_event(stream: impl Read, text: &str) -> Result<()> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        ensure!(!line.starts_with("event: end"), "the stream ends before an event contains {text}");
        if line.contains(text) {
            return Ok(());
        }
    }
    bail!("the stream was cut off before an event contained {text}")
}

/// Two principals open 480 streams of 10,000 events each, and read nothing. A third principal reads all 10,000 events
/// of its stream.
#[test]
fn x03_f01_unread_event_streams_take_bounded_memory() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    // Creates the 10,000 events that each stream gets.
    for batch in 0..20 {
        post(&url, "/v1/apply", &nodes_body(&format!("n{batch}"), 500, 300))?;
    }
    let slow_tokens = create_tokens(&url, &["one", "two"], "viewer")?;
    let reader_token = create_token(&url, "honest", "viewer")?;
    let memory_before = controller.peak_memory_bytes()?;
    let request = "GET /v1/events?class=object&kind=node&from=1";
    let mut streams = Vec::new();
    for token in slow_tokens.iter().cycle().take(480) {
        let (stream, status) = begin_request(&url, token, request, &[])?;
        ensure!(status == 200, "stream {}: {status}", streams.len());
        streams.push(stream);
    }
    // At the same time, a client that reads gets all events.
    let (stream, status) = begin_request(&url, &reader_token, request, &[])?;
    ensure!(status == 200, "{status}");
    let mut event_count = 0;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        ensure!(!line.starts_with("event: end"), "a client that reads is not cut off, after {event_count} events");
        event_count += usize::from(line.starts_with("event: object"));
        if event_count == 10_000 {
            break;
        }
    }
    ensure!(event_count == 10_000, "{event_count} events");
    check_controller_memory(&controller, memory_before, 128 * MIB)?;
    drop(streams);
    controller.stop()
}

/// The controller serves at most 1,000 streams of events, and at most a quarter of them to one principal. An idle
/// stream takes about 100 KiB with its connection. The memory limit is twice the memory of 250 streams.
#[test]
fn x03_f14_event_streams_leave_slots_for_other_principals() -> Result<()> {
    let controller = PlainController::start()?;
    let url = controller.addresses.admin.clone();
    let viewer_tokens = create_tokens(&url, &["crowd", "other"], "viewer")?;
    let admin_token = create_token(&url, "boss", "admin")?;
    let memory_before = controller.peak_memory_bytes()?;
    let request = "GET /v1/events";
    let streams = open_unread_streams(&url, &viewer_tokens[0], request, 1_000)?;
    ensure!(streams.len() == 250, "{} streams of one principal", streams.len());
    let mut other_streams = Vec::new();
    for token in [&viewer_tokens[1], &admin_token] {
        let (stream, status) = begin_request(&url, token, request, &[])?;
        ensure!(status == 200, "another principal is served: {status}");
        other_streams.push(stream);
    }
    post(&url, "/v1/nodes", &json!({"name": "late"}))?;
    for stream in other_streams {
        read_until_event(stream, "\"late\"")?;
    }
    check_controller_memory(&controller, memory_before, 56 * MIB)?;
    drop(streams);
    controller.stop()
}

/// A TLS connection to the listener for operators, without a client certificate.
type AdminStream = StreamOwned<ClientConnection, TcpStream>;

/// Sends a GET on a new connection, with or without a token. Returns the connection, which remains open, and the status
/// of the response.
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

/// A TLS connection takes about 60 KiB, and a stream of events takes as much again. The memory limit is three times the
/// memory of 100 connections without a token and 100 streams.
#[test]
fn x04_f13_strangers_and_streams_leave_room_for_valid_token() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["principal", "create", "robot", "--role", "viewer"])?;
    let token_output = fleet.stemma(&["principal", "token", "create", "robot"])?;
    let token = Some(token_output.trim());
    let root = CertificateDer::from_pem_file(&fleet.addresses().ca)?;
    let tls = Arc::new(client_config(&Pin::Roots(vec![root]), None, None, Arc::new(SystemClock))?);
    let controller_id = fleet.controller_id().context("the controller runs")?;
    let memory_before = memory_bytes(controller_id, "VmHWM:")?;
    let (mut strangers, mut streams) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let (stream, status) = connect(&fleet, &tls, "/v1/nodes", None)?;
        ensure!(status == 401, "stranger {number}: {status}");
        strangers.push(stream);
    }
    for number in 0..100 {
        let (stream, status) = connect(&fleet, &tls, "/v1/events", token)?;
        ensure!(status == 200, "stream {number}: {status}");
        streams.push(stream);
    }
    let (_, status) = connect(&fleet, &tls, "/v1/nodes", token)?;
    ensure!(status == 200, "a valid token is accepted from the same address: {status}");
    fleet.stemma(&["create", "cluster", "prod"])?;
    for stream in streams {
        read_until_event(stream, "\"prod\"")?;
    }
    check_memory_growth(memory_before, memory_bytes(controller_id, "VmHWM:")?, 56 * MIB)?;
    drop(strangers);
    Ok(())
}
