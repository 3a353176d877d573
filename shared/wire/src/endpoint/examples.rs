//! The examples of `docs/api.md`: one or more of each row of the admin listener, which a test sends as they stand and the API's
//! description shows.

use std::sync::LazyLock;

use serde_json::Value;

use super::{Endpoint, Found, Listener, find};

/// One example.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The row.
    pub endpoint: Endpoint,
    /// The method.
    pub method: &'static str,
    /// The path with its query. A name in angle brackets stands for what an answer before it gave.
    pub path: &'static str,
    /// Headers beside those that every request has.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body; empty for none.
    pub body: &'static str,
    /// The status of the answer.
    pub status: u16,
    /// What the answer holds at least; `…` is anything, and a name in angle brackets is the value from then on.
    pub answer: Option<Value>,
}

static EXAMPLES: LazyLock<Vec<Example>> = LazyLock::new(|| read(include_str!("../../../../docs/api.md")));

/// All of them, in an order in which each finds what it needs.
pub fn examples() -> &'static [Example] {
    &EXAMPLES
}

fn read(page: &'static str) -> Vec<Example> {
    let blocks = page.split("```http\n").skip(1).filter_map(|block| block.split_once("\n```"));
    blocks
        .map(|(block, _)| example(block).unwrap_or_else(|| panic!("docs/api.md has no example here: {block}")))
        .collect()
}

fn example(block: &'static str) -> Option<Example> {
    let (request, answer) = block.split_once("\n\n→ ")?;
    let (line, rest) = request.split_once('\n').unwrap_or((request, ""));
    let (method, path) = line.split_once(' ')?;
    let bare = path.split('?').next()?;
    let Found::Route(endpoint, _) = find(Listener::Admin, method, bare) else { return None };
    let mut headers = Vec::new();
    let mut body = rest;
    while let Some((header, below)) = header(body) {
        headers.push(header);
        body = below;
    }
    let (status, answer) = answer.split_once('\n').unwrap_or((answer, ""));
    let answer = if answer.is_empty() { None } else { Some(serde_json::from_str(answer).ok()?) };
    Some(Example { endpoint, method, path, headers, body, status: status.parse().ok()?, answer })
}

/// The header that stands first, and what stands below it.
fn header(text: &str) -> Option<((&str, &str), &str)> {
    let (line, below) = text.split_once('\n').unwrap_or((text, ""));
    let (name, value) = line.split_once(": ")?;
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-').then_some(((name, value), below))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_row_has_an_example_with_a_status_that_is_described() {
        let shown: BTreeSet<_> = examples().iter().map(|example| example.endpoint).collect();
        let rows = Endpoint::ALL.iter().copied().filter(|row| row.route().listener == Listener::Admin);
        let without: Vec<_> = rows.filter(|row| !shown.contains(row)).collect();
        assert!(without.is_empty(), "docs/api.md has no example of {without:?}");
        for example in examples() {
            let described = super::super::openapi::statuses(example.endpoint);
            assert!(described.contains(&example.status), "{} {}: {}", example.method, example.path, example.status);
        }
    }

    #[test]
    fn an_example_has_headers_and_a_body_of_lines() {
        let block = "PUT /v1/nodes/a/labels?force=true\nContent-Type: x/y\n{\"a\":\n 1}\n\n→ 200\n{\"b\": \"…\"}";
        let read = example(block).unwrap();
        assert_eq!((read.endpoint, read.status, read.body), (Endpoint::PutNodeMap, 200, "{\"a\":\n 1}"));
        assert_eq!((read.path, &read.headers[..]), ("/v1/nodes/a/labels?force=true", &[("Content-Type", "x/y")][..]));
        assert_eq!(read.answer, Some(serde_json::json!({"b": "…"})));
    }
}
