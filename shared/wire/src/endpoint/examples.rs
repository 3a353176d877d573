//! The examples of `docs/api.md`, at least one for each route of the admin listener. A test sends them as they are
//! written, and the API's description includes them.

use std::sync::LazyLock;

use serde_json::Value;

use super::{Endpoint, RouteMatch, SocketKind, find};

/// An example of a request and its response.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The endpoint that the request calls.
    pub endpoint: Endpoint,
    /// The method.
    pub method: &'static str,
    /// The path with its query. A name in angle brackets stands for a value from an earlier response.
    pub path: &'static str,
    /// Headers in addition to those that every request has.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body, or an empty text if there is none.
    pub body: &'static str,
    /// The status of the response.
    pub status: u16,
    /// The minimum content of the response. `…` matches anything, and a name in angle brackets stores the value for
    /// later examples.
    pub response: Option<Value>,
}

/// The examples, parsed once.
static EXAMPLES: LazyLock<Vec<Example>> = LazyLock::new(|| parse_page(include_str!("../../../../docs/api.md")));

/// Returns all examples, in an order in which each finds the objects that it requires.
pub fn examples() -> &'static [Example] {
    &EXAMPLES
}

/// Parses all code blocks `http` of the page. Panics if a block is not an example.
fn parse_page(page: &'static str) -> Vec<Example> {
    let blocks = page.split("```http\n").skip(1).filter_map(|block| block.split_once("\n```"));
    blocks.map(|(block, _)| parse_block(block).unwrap_or_else(|| panic!("docs/api.md has no example here: {block}"))).collect()
}

/// Parses a block: request line, headers, body, and after an arrow the status and the body of the response.
fn parse_block(block: &'static str) -> Option<Example> {
    let (request, response) = block.split_once("\n\n→ ")?;
    let (line, rest) = request.split_once('\n').unwrap_or((request, ""));
    let (method, path) = line.split_once(' ')?;
    let bare = path.split('?').next()?;
    let RouteMatch::Route(endpoint, _) = find(SocketKind::Admin, method, bare) else { return None };
    let mut headers = Vec::new();
    let mut body = rest;
    while let Some((header, below)) = parse_header(body) {
        headers.push(header);
        body = below;
    }
    let (status, response) = response.split_once('\n').unwrap_or((response, ""));
    let response = if response.is_empty() { None } else { Some(serde_json::from_str(response).ok()?) };
    Some(Example { endpoint, method, path, headers, body, status: status.parse().ok()?, response })
}

/// Returns the header in the first line, and the text below it.
fn parse_header(text: &str) -> Option<((&str, &str), &str)> {
    let (line, below) = text.split_once('\n').unwrap_or((text, ""));
    let (name, value) = line.split_once(": ")?;
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-').then_some(((name, value), below))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn examples_cover_each_endpoint_with_documented_status() {
        let shown: BTreeSet<_> = examples().iter().map(|example| example.endpoint).collect();
        let rows = Endpoint::ALL.iter().copied().filter(|row| row.route().listener == SocketKind::Admin);
        let without: Vec<_> = rows.filter(|row| !shown.contains(row)).collect();
        assert!(without.is_empty(), "docs/api.md has no example of {without:?}");
        for example in examples() {
            let described = super::super::openapi::response_statuses(example.endpoint);
            assert!(described.contains(&example.status), "{} {}: {}", example.method, example.path, example.status);
        }
    }

    #[test]
    fn parse_block_reads_headers_and_multiline_body() {
        let block = "PUT /v1/nodes/a/labels?force=true\nContent-Type: x/y\n{\"a\":\n 1}\n\n→ 200\n{\"b\": \"…\"}";
        let read = parse_block(block).unwrap();
        assert_eq!((read.endpoint, read.status, read.body), (Endpoint::PutNodeMap, 200, "{\"a\":\n 1}"));
        assert_eq!((read.path, &read.headers[..]), ("/v1/nodes/a/labels?force=true", &[("Content-Type", "x/y")][..]));
        assert_eq!(read.response, Some(serde_json::json!({"b": "…"})));
    }
}
