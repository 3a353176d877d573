//! How long a request is sent again to a controller that has too much to do.
//!
//! Such an answer says that nothing was done and when to ask again: what a script would do then, we do.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Response, StatusCode, header};
use serde_json::Value;

/// How long all the waiting for one request may take together.
const MOST: Duration = Duration::from_secs(30);

/// What is left of the waiting for one request.
#[derive(Debug)]
pub(super) struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(MOST)
    }
}

impl Patience {
    /// How long to wait before the request is sent again; `None`: this answer is the last.
    pub(super) fn wait(&mut self, answer: &Response<Bytes>) -> Option<Duration> {
        if answer.status() != StatusCode::SERVICE_UNAVAILABLE {
            return None;
        }
        let body: Value = serde_json::from_slice(answer.body()).ok()?;
        if body["error"]["type"] != "server.busy" {
            return None;
        }
        let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        let wait = Duration::from_secs(seconds).max(Duration::from_millis(100));
        self.0 = self.0.checked_sub(wait)?;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, kind: &str, after: Option<&str>) -> Response<Bytes> {
        let body = Bytes::from(format!(r#"{{"error": {{"type": "{kind}"}}}}"#));
        let response = Response::builder().status(status);
        after.into_iter().fold(response, |response, after| response.header("retry-after", after)).body(body).unwrap()
    }

    #[test]
    fn only_what_is_busy_and_says_until_when_is_asked_again_for_a_while() {
        for other in [
            answer(200, "", Some("1")),
            answer(503, "store.read_only", Some("1")),
            answer(503, "store.outcome_unknown", Some("1")),
            answer(503, "server.busy", None),
            answer(503, "server.busy", Some("soon")),
            answer(503, "server.busy", Some("31")),
        ] {
            assert_eq!(Patience::default().wait(&other), None, "{other:?}");
        }
        let (mut patience, busy) = (Patience::default(), answer(503, "server.busy", Some("10")));
        let waits: Vec<_> = std::iter::from_fn(|| patience.wait(&busy)).collect();
        assert_eq!(waits, [Duration::from_secs(10); 3]);
    }
}
