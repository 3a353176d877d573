//! The examples of requests in `docs/api.md`, at least one for each route of the admin listener. A test sends each
//! example as it is written, and the `OpenAPI` description of the API includes the examples.

use std::sync::LazyLock;

use serde_json::Value;

use super::{Endpoint, RouteMatch, SocketKind, find_route};

/// An example of `docs/api.md`: a request to the admin listener, and the expected response.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The endpoint that the request calls.
    pub endpoint: Endpoint,
    /// The HTTP method.
    pub method: &'static str,
    /// The path with its query. A name in angle brackets, such as `<ID>`, stands for a value of an earlier response.
    pub path: &'static str,
    /// The headers that the example shows, each as name and value. A body without `Content-Type` is JSON.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body of the request, or an empty text if there is none.
    pub body: &'static str,
    /// The status of the response.
    pub status: u16,
    /// The members that the JSON of the response must contain, or `None` for any body. `…` matches any value. A name in
    /// angle brackets matches any text, which is stored under this name for the paths of later examples.
    pub response: Option<Value>,
}

/// The examples of `docs/api.md`, which are parsed at the first use.
static EXAMPLES: LazyLock<Vec<Example>> = LazyLock::new(|| parse_page(include_str!("../../../../docs/api.md")));

/// Returns all examples, in the order of the page. Each example needs only objects that earlier examples create.
pub fn examples() -> &'static [Example] {
    &EXAMPLES
}

/// Returns the examples in all code blocks of the page that have the language `http`. Panics if a block is not a valid
/// example, so that a test fails.
fn parse_page(page: &'static str) -> Vec<Example> {
    let blocks = page.split("```http\n").skip(1).filter_map(|block| block.split_once("\n```"));
    blocks.map(|(block, _)| parse_block(block).unwrap_or_else(|| panic!("docs/api.md has no example here: {block}"))).collect()
}

/// Parses a code block into an example. The block has the request line (`GET /v1/nodes`), headers and a body. After an
/// empty line and an arrow the block has the status and the body of the response. Returns `None` for any other text,
/// and for a request that no route of the admin listener matches.
fn parse_block(block: &'static str) -> Option<Example> {
    let (request, response) = block.split_once("\n\n→ ")?;
    let (request_line, headers_and_body) = request.split_once('\n').unwrap_or((request, ""));
    let (method, path) = request_line.split_once(' ')?;
    let path_without_query = path.split('?').next()?;
    let RouteMatch::Route(endpoint, _) = find_route(SocketKind::Admin, method, path_without_query) else { return None };
    let mut headers = Vec::new();
    let mut body = headers_and_body;
    while let Some((header, text_below)) = parse_header(body) {
        headers.push(header);
        body = text_below;
    }
    let (status, response) = response.split_once('\n').unwrap_or((response, ""));
    let response = if response.is_empty() { None } else { Some(serde_json::from_str(response).ok()?) };
    Some(Example { endpoint, method, path, headers, body, status: status.parse().ok()?, response })
}

/// Returns the name and value of the header in the first line, and the text below this line. Returns `None` if the
/// first line is not a header.
fn parse_header(text: &str) -> Option<((&str, &str), &str)> {
    let (line, text_below) = text.split_once('\n').unwrap_or((text, ""));
    let (name, value) = line.split_once(": ")?;
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-').then_some(((name, value), text_below))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn examples_cover_each_admin_endpoint_with_documented_status() {
        let endpoints_with_example: BTreeSet<_> = examples().iter().map(|example| example.endpoint).collect();
        let admin_endpoints = Endpoint::ALL.iter().copied().filter(|endpoint| endpoint.route().listener == SocketKind::Admin);
        let endpoints_without_example: Vec<_> =
            admin_endpoints.filter(|endpoint| !endpoints_with_example.contains(endpoint)).collect();
        assert!(endpoints_without_example.is_empty(), "docs/api.md has no example of {endpoints_without_example:?}");
        for example in examples() {
            let documented_statuses = super::super::openapi::response_statuses(example.endpoint);
            assert!(documented_statuses.contains(&example.status), "{} {}: {}", example.method, example.path, example.status);
        }
    }

    #[test]
    fn parse_block_reads_headers_and_multiline_body() {
        let block = "PUT /v1/nodes/a/labels?force=true\nContent-Type: x/y\n{\"a\":\n 1}\n\n→ 200\n{\"b\": \"…\"}";
        let example = parse_block(block).unwrap();
        assert_eq!((example.endpoint, example.status, example.body), (Endpoint::PutNodeMap, 200, "{\"a\":\n 1}"));
        assert_eq!((example.path, &example.headers[..]), ("/v1/nodes/a/labels?force=true", &[("Content-Type", "x/y")][..]));
        assert_eq!(example.response, Some(serde_json::json!({"b": "…"})));
    }
}
