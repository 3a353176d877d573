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

/// Sends an example with additional headers. Returns the status, media type and body of the response. curl prints the
/// status and media type in a last line after the body.
fn send_example(
    address: &str,
    example: &Example,
    path: &str,
    additional_headers: &[(&str, &str)],
) -> Result<(u16, String, Vec<u8>)> {
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
    let has_content_type = example.headers.iter().any(|(name, _)| *name == "Content-Type");
    let default_content_type =
        [("Content-Type", "application/json")].into_iter().filter(|_| !has_content_type && !example.body.is_empty());
    for (name, value) in additional_headers.iter().chain(&example.headers).copied().chain(default_content_type) {
        curl.args(["-H", &format!("{name}: {value}")]);
    }
    if !example.body.is_empty() {
        curl.args(["--data-binary", example.body]);
    }
    let output = curl.arg(format!("{address}{path}")).output()?;
    let line_end = output.stdout.iter().rposition(|byte| *byte == b'\n').context("a status")?;
    let (status, content_type) = std::str::from_utf8(&output.stdout[line_end + 1..])?.split_once(' ').context("a media type")?;
    let media_type = content_type.split(';').next().unwrap_or_default().to_owned();
    Ok((status.parse()?, media_type, output.stdout[..line_end].to_vec()))
}

/// Sends an example whose response is an endless stream of events. Reads only the head of the response. Returns its
/// status and media type, and an empty body.
fn send_events_example(address: &str, path: &str) -> Result<(u16, String, Vec<u8>)> {
    let address = address.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(MAX_WAIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n")?;
    let head = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let head: Vec<String> = head.collect();
    let status = head.first().and_then(|line| line.split(' ').nth(1)).context("a status")?;
    let media_type = head.iter().find_map(|line| line.strip_prefix("content-type: ")).context("a media type")?;
    Ok((status.parse()?, media_type.to_owned(), Vec::new()))
}

/// Returns whether a response contains the expected values. An object may have more fields than expected, but an array
/// must have the expected number of elements. The expected text `…` matches any value. An expected text such as `<ID>`
/// is a placeholder: it matches any text, which is stored in `placeholders`.
fn matches(expected: &Value, answer: &Value, placeholders: &mut BTreeMap<String, String>) -> bool {
    match (expected, answer) {
        (Value::String(text), _) if text == "…" => true,
        (Value::String(text), Value::String(value)) if text.starts_with('<') => {
            placeholders.insert(text.clone(), value.clone());
            true
        }
        (Value::Object(expected), Value::Object(answer)) => {
            expected.iter().all(|(name, value)| answer.get(name).is_some_and(|actual| matches(value, actual, placeholders)))
        }
        (Value::Array(expected), Value::Array(answer)) => {
            expected.len() == answer.len()
                && expected.iter().zip(answer).all(|(expected_item, item)| matches(expected_item, item, placeholders))
        }
        _ => expected == answer,
    }
}

#[test]
fn api_examples_match_answers() -> Result<()> {
    let controller = PlainController::start()?;
    let address = controller.addresses.admin.clone();
    let description = openapi("");
    let (mut placeholders, mut failures) = (BTreeMap::new(), Vec::new());
    for example in examples() {
        let insert_value = |path: String, (name, value): (&String, &String)| path.replace(name, value);
        let path = placeholders.iter().fold(example.path.to_owned(), insert_value);
        if example.endpoint.route().headers.contains(&RouteHeader::IfMatch) && example.status < 300 {
            let (status, ..) = send_example(&address, example, &path, &[("If-Match", UNKNOWN_VERSION_TAG)])?;
            failures.extend((status != 412).then(|| format!("{} {path}: If-Match is ignored ({status})", example.method)));
        }
        let (status, media_type, body) = send_example(&address, example, &path, &[])?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let is_match = example.response.as_ref().is_none_or(|expected| matches(expected, &answer, &mut placeholders));
        if status != example.status || !is_match {
            failures.push(format!("{} {path}: {status} {}", example.method, String::from_utf8_lossy(&body)));
        }
        let schema_errors = body_errors(&description, example.endpoint, status, &media_type, &answer);
        failures.extend(schema_errors.into_iter().map(|error| format!("{} {path}: {error}", example.method)));
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    controller.stop()
}

#[test]
fn matches_accepts_additional_fields_and_rejects_differences() {
    let is_match = |expected: Value, answer: Value| matches(&expected, &answer, &mut BTreeMap::new());
    let parse = |text: &str| serde_json::from_str(text).expect("JSON");
    assert!(is_match(parse(r#"{"a": ["…", {"b": 1}]}"#), parse(r#"{"a": [7, {"b": 1, "c": 2}], "d": 3}"#)));
    for (expected, answer) in [(r#"{"a": 1}"#, r#"{"a": 2}"#), (r#"{"a": 1}"#, "{}"), ("[1]", "[1, 2]"), ("{}", "[]")] {
        assert!(!is_match(parse(expected), parse(answer)), "{expected} {answer}");
    }
}
