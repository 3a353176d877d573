//! Sends the examples of `docs/api.md`, unchanged and in order, to a new controller.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::plain_controller::PlainController;
use stemma_tests::program::MAX_WAIT;
use stemma_wire::endpoint::examples::{Example, examples};
use stemma_wire::endpoint::{Endpoint, RouteHeader, openapi};

use crate::described::body_errors;

/// An entity tag that no object has.
const UNKNOWN_VERSION_TAG: &str = "\"4611686018427387904\"";

/// Sends an example with additional headers. Returns the status, media type and body of the response.
fn send_example(address: &str, example: &Example, path: &str, more: &[(&str, &str)]) -> Result<(u16, String, Vec<u8>)> {
    if example.endpoint == Endpoint::WatchEvents {
        return send_events_example(address, path);
    }
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--globoff",
        "--max-time",
        "120",
        "--write-out",
        "\n%{http_code} %{content_type}",
        "-X",
        example.method,
    ]);
    let has_type = example.headers.iter().any(|(name, _)| *name == "Content-Type");
    let usual = [("Content-Type", "application/json")].into_iter().filter(|_| !has_type && !example.body.is_empty());
    for (name, value) in more.iter().chain(&example.headers).copied().chain(usual) {
        curl.args(["-H", &format!("{name}: {value}")]);
    }
    if !example.body.is_empty() {
        curl.args(["--data-binary", example.body]);
    }
    let output = curl.arg(format!("{address}{path}")).output()?;
    let at = output.stdout.iter().rposition(|byte| *byte == b'\n').context("a status")?;
    let (status, content) = std::str::from_utf8(&output.stdout[at + 1..])?.split_once(' ').context("a media type")?;
    let media = content.split(';').next().unwrap_or_default().to_owned();
    Ok((status.parse()?, media, output.stdout[..at].to_vec()))
}

/// Returns the status and media type of a response that never ends. It reads the head only.
fn send_events_example(address: &str, path: &str) -> Result<(u16, String, Vec<u8>)> {
    let address = address.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(MAX_WAIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n")?;
    let head = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let head: Vec<String> = head.collect();
    let status = head.first().and_then(|line| line.split(' ').nth(1)).context("a status")?;
    let media = head.iter().find_map(|line| line.strip_prefix("content-type: ")).context("a media type")?;
    Ok((status.parse()?, media.to_owned(), Vec::new()))
}

/// Returns whether a response contains the expected values. Stores the values of placeholders in `given`.
fn matches(expected: &Value, answer: &Value, given: &mut BTreeMap<String, String>) -> bool {
    match (expected, answer) {
        (Value::String(text), _) if text == "…" => true,
        (Value::String(text), Value::String(value)) if text.starts_with('<') => {
            given.insert(text.clone(), value.clone());
            true
        }
        (Value::Object(expected), Value::Object(answer)) => {
            expected.iter().all(|(name, value)| answer.get(name).is_some_and(|found| matches(value, found, given)))
        }
        (Value::Array(expected), Value::Array(answer)) => {
            expected.len() == answer.len() && expected.iter().zip(answer).all(|(one, other)| matches(one, other, given))
        }
        _ => expected == answer,
    }
}

#[test]
fn api_examples_match_answers() -> Result<()> {
    let controller = PlainController::start()?;
    let address = controller.addresses.admin.clone();
    let description = openapi("");
    let (mut given, mut wrong) = (BTreeMap::new(), Vec::new());
    for example in examples() {
        let named = |path: String, (name, value): (&String, &String)| path.replace(name, value);
        let path = given.iter().fold(example.path.to_owned(), named);
        if example.endpoint.route().headers.contains(&RouteHeader::IfMatch) && example.status < 300 {
            let (status, ..) = send_example(&address, example, &path, &[("If-Match", UNKNOWN_VERSION_TAG)])?;
            wrong.extend((status != 412).then(|| format!("{} {path}: If-Match is passed over ({status})", example.method)));
        }
        let (status, media, body) = send_example(&address, example, &path, &[])?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let is_held = example.response.as_ref().is_none_or(|expected| matches(expected, &answer, &mut given));
        if status != example.status || !is_held {
            wrong.push(format!("{} {path}: {status} {}", example.method, String::from_utf8_lossy(&body)));
        }
        let undescribed = body_errors(&description, example.endpoint, status, &media, &answer);
        wrong.extend(undescribed.into_iter().map(|fault| format!("{} {path}: {fault}", example.method)));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    controller.stop()
}

#[test]
fn example_check_can_fail() {
    let holds = |expected: Value, answer: Value| matches(&expected, &answer, &mut BTreeMap::new());
    let json = |text: &str| serde_json::from_str(text).expect("JSON");
    assert!(holds(json(r#"{"a": ["…", {"b": 1}]}"#), json(r#"{"a": [7, {"b": 1, "c": 2}], "d": 3}"#)));
    for (expected, answer) in [(r#"{"a": 1}"#, r#"{"a": 2}"#), (r#"{"a": 1}"#, "{}"), ("[1]", "[1, 2]"), ("{}", "[]")] {
        assert!(!holds(json(expected), json(answer)), "{expected} {answer}");
    }
}
