//! How long a request is sent again to a controller that has too much to do.
//!
//! Such an answer says that nothing was done and when to ask again: what a script would do then, we do.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Response, StatusCode, header};
use serde_json::Value;

/// For how long a request is sent again, the waiting for its answers counted.
const MOST: Duration = Duration::from_secs(30);

/// Until when one request is sent again.
#[derive(Debug)]
pub(super) struct Patience(Instant);

impl Patience {
    /// From now on.
    pub(super) fn new(now: Instant) -> Self {
        Self(now + MOST)
    }

    /// How long to wait before the request is sent again; `None`: this answer is the last.
    pub(super) fn wait(&self, answer: &Response<Bytes>, now: Instant) -> Option<Duration> {
        if answer.status() != StatusCode::SERVICE_UNAVAILABLE {
            return None;
        }
        let body: Value = serde_json::from_slice(answer.body()).ok()?;
        if body["error"]["type"] != "server.busy" {
            return None;
        }
        let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        let wait = Duration::from_secs(seconds).max(Duration::from_millis(100));
        (now + wait <= self.0).then_some(wait)
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
        let start = Instant::now();
        let patience = Patience::new(start);
        for other in [
            answer(200, "", Some("1")),
            answer(503, "store.read_only", Some("1")),
            answer(503, "store.outcome_unknown", Some("1")),
            answer(503, "server.busy", None),
            answer(503, "server.busy", Some("soon")),
            answer(503, "server.busy", Some("31")),
        ] {
            assert_eq!(patience.wait(&other, start), None, "{other:?}");
        }
        let busy = answer(503, "server.busy", Some("10"));
        for (after, waits) in [(0, true), (20, true), (21, false), (40, false)] {
            let wait = patience.wait(&busy, start + Duration::from_secs(after));
            assert_eq!(wait, waits.then_some(Duration::from_secs(10)), "after {after} s, however they went by");
        }
    }
}
