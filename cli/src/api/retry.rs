//! Limits how long a request is repeated while the controller is busy.
//!
//! A busy response means that the controller did nothing. Its `retry-after` header gives the seconds to wait before the
//! next attempt.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Response, StatusCode, header};
use serde_json::Value;

/// Maximum time in which a request is repeated, including the wait for its responses.
const MAX_RETRY_TIME: Duration = Duration::from_secs(30);

/// The time until which one request may be repeated.
#[derive(Debug)]
pub(super) struct RetryDeadline(Instant);

impl RetryDeadline {
    /// Returns the deadline of a request that is first sent at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self(now + MAX_RETRY_TIME)
    }

    /// Returns the time to wait before the next attempt, or `None` if this response is final.
    pub(super) fn delay(&self, response: &Response<Bytes>, now: Instant) -> Option<Duration> {
        if response.status() != StatusCode::SERVICE_UNAVAILABLE {
            return None;
        }
        let body: Value = serde_json::from_slice(response.body()).ok()?;
        if body["error"]["type"] != "server.busy" {
            return None;
        }
        let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        let delay = Duration::from_secs(seconds).max(Duration::from_millis(100));
        (now + delay <= self.0).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, kind: &str, after: Option<&str>) -> Response<Bytes> {
        let body = Bytes::from(format!(r#"{{"error": {{"type": "{kind}"}}}}"#));
        let response = Response::builder().status(status);
        after.into_iter().fold(response, |response, after| response.header("retry-after", after)).body(body).unwrap()
    }

    #[test]
    fn retry_deadline_allows_retry_when_busy_with_retry_after() {
        let start = Instant::now();
        let deadline = RetryDeadline::new(start);
        for other in [
            response(200, "", Some("1")),
            response(503, "store.read_only", Some("1")),
            response(503, "store.outcome_unknown", Some("1")),
            response(503, "server.busy", None),
            response(503, "server.busy", Some("soon")),
            response(503, "server.busy", Some("31")),
        ] {
            assert_eq!(deadline.delay(&other, start), None, "{other:?}");
        }
        let busy = response(503, "server.busy", Some("10"));
        for (after, is_retried) in [(0, true), (20, true), (21, false), (40, false)] {
            let delay = deadline.delay(&busy, start + Duration::from_secs(after));
            assert_eq!(delay, is_retried.then_some(Duration::from_secs(10)), "after {after} s, however they went by");
        }
    }
}
