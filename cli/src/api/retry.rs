//! Limits how long a request is repeated while the controller is busy.
//!
//! A busy response means that the controller did nothing. Its `retry-after` header gives the seconds to wait before the
//! next attempt.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Response, StatusCode, header};
use serde_json::Value;

/// Maximum time from the first attempt of a request to its last attempt.
const MAX_RETRY_TIME: Duration = Duration::from_secs(30);

/// The time until which one request may be repeated.
#[derive(Debug)]
pub(super) struct RetryDeadline(Instant);

impl RetryDeadline {
    /// Returns the deadline of a request that is first sent at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self(now + MAX_RETRY_TIME)
    }

    /// Returns the time to wait before the next attempt, which is at least 100 ms. Returns `None` if this response is
    /// final: it is not a busy error, it has no valid `retry-after`, or the wait would end after the deadline.
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

    /// Returns a response with this status, error type and `retry-after` header.
    fn response(status: u16, error_type: &str, after: Option<&str>) -> Response<Bytes> {
        let body = Bytes::from(format!(r#"{{"error": {{"type": "{error_type}"}}}}"#));
        let response = Response::builder().status(status);
        after.into_iter().fold(response, |response, after| response.header("retry-after", after)).body(body).unwrap()
    }

    #[test]
    fn retry_deadline_allows_retry_when_busy_with_retry_after() {
        let start = Instant::now();
        let deadline = RetryDeadline::new(start);
        // The wait of 31 s in the last response would end after the deadline (30 s).
        for final_response in [
            response(200, "", Some("1")),
            response(503, "store.read_only", Some("1")),
            response(503, "store.outcome_unknown", Some("1")),
            response(503, "server.busy", None),
            response(503, "server.busy", Some("soon")),
            response(503, "server.busy", Some("31")),
        ] {
            assert_eq!(deadline.delay(&final_response, start), None, "{final_response:?}");
        }
        let busy = response(503, "server.busy", Some("10"));
        // A wait of 10 s that begins after 21 s would end after the deadline.
        for (elapsed_s, is_retried) in [(0, true), (20, true), (21, false), (40, false)] {
            let delay = deadline.delay(&busy, start + Duration::from_secs(elapsed_s));
            assert_eq!(delay, is_retried.then_some(Duration::from_secs(10)), "after {elapsed_s} s");
        }
    }
}
