//! Follows the controller's events on a separate connection: server-sent events, each as soon as it arrives.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use anyhow::{Error, Result};
use bytes::Bytes;
use hyper::{Request, StatusCode, header};
use serde_json::Value;
use stemma_wire::client::{Client, ClientError, ClientLimits};

use super::{ApiClient, ApiRefusal, network};
use crate::exit::Exit;
use crate::output::printable;

/// Maximum time without data before a stream counts as broken. A controller sends something every 30 seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(90);
/// The delay before a broken connection is opened again.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// Maximum size of an event, in bytes.
const MAX_EVENT_BYTES: usize = 64 * 1024 * 1024;

/// An event of the controller: a change of an object, or of the status of a node.
#[derive(Debug, PartialEq)]
pub(crate) struct ServerEvent {
    /// `object` or `status`.
    pub(crate) class: String,
    /// The JSON content of the event, as the controller sent it.
    pub(crate) data: Value,
}

/// A stream of events that reconnects after it broke.
pub(crate) struct EventSource {
    client: Client,
    token: Option<header::HeaderValue>,
    path: String,
    /// The id of the last event received.
    last_id: Option<String>,
    /// True if a lost connection is reported on standard error.
    should_warn: bool,
}

/// An item that the sink receives: the connection, then each event.
#[derive(Debug, PartialEq)]
pub(crate) enum StreamItem {
    /// The stream was opened, or opened again.
    Connected,
    /// An event.
    Event(ServerEvent),
}

impl ApiClient {
    /// Creates a stream of the events at a path, from a revision or from now on. Nothing is sent yet.
    pub(crate) fn events(&self, path: String, from: Option<u64>) -> EventSource {
        let limits = ClientLimits { body_timeout: SILENCE_TIMEOUT, max_body_bytes: u64::MAX, ..ClientLimits::default() };
        let client = Client::new(self.client.target().clone(), self.tls.clone(), limits);
        let last = from.map(|from| from.saturating_sub(1).to_string());
        EventSource { client, token: self.token.clone(), path, last_id: last, should_warn: true }
    }
}

impl EventSource {
    /// Turns off warnings, for callers that report a lost connection themselves.
    pub(crate) fn without_warnings(self) -> Self {
        Self { should_warn: false, ..self }
    }

    /// Passes events to `sink` until it fails. A broken stream is opened again after the last event received.
    ///
    /// # Errors
    /// The error of `sink`, or why the stream could not be opened the first time or must not be opened again.
    pub(crate) async fn follow(&mut self, mut sink: impl FnMut(StreamItem) -> Result<()>) -> Result<Infallible> {
        let (mut was_open, mut is_reported) = (false, false);
        loop {
            let (is_open, broken) = self.follow_once(&mut sink).await;
            was_open |= is_open;
            is_reported &= !is_open;
            match broken {
                StreamError::Fatal(error) => return Err(error),
                StreamError::Retry(error) | StreamError::Compacted(error) if !was_open => return Err(error),
                StreamError::Compacted(error) => {
                    self.last_id = None;
                    self.warn(&error.context("events were missed"));
                }
                StreamError::Retry(error) | StreamError::Busy(error) if !is_reported => self.warn(&error),
                StreamError::Retry(_) | StreamError::Busy(_) => {}
            }
            is_reported = true;
            // A random delay, so that not all clients reconnect at once after a restart of the controller.
            let spread = super::random_bytes::<1>().map_or(0, |[byte]| u64::from(byte) * 4);
            tokio::time::sleep(RECONNECT_DELAY + Duration::from_millis(spread)).await;
        }
    }

    fn warn(&self, error: &Error) {
        if self.should_warn {
            errln!("warning: {error:#}");
        }
    }

    /// Follows one stream to its end. Returns whether it was opened, and why it ended.
    async fn follow_once(&mut self, sink: &mut impl FnMut(StreamItem) -> Result<()>) -> (bool, StreamError) {
        let request = match self.request() {
            Ok(request) => request,
            Err(error) => return (false, StreamError::Fatal(error)),
        };
        let (mut parser, mut sink_error, mut is_open) = (EventParser::default(), None, false);
        let last = &mut self.last_id;
        let answer = self.client.stream(request, async |chunk| {
            let mut take = || {
                if !std::mem::replace(&mut is_open, true) {
                    sink(StreamItem::Connected)?;
                }
                parser.push(&chunk, last, &mut *sink)
            };
            take().map_err(|error| {
                sink_error = Some(error);
                io::Error::other("it was not taken")
            })
        });
        let answer = answer.await;
        let broken = match answer {
            Err(ClientError::NotTaken { .. }) => {
                sink_error.map_or_else(|| StreamError::Fatal(Error::msg("not taken")), from_sink)
            }
            Err(error) => {
                let sentence = network::error_message(&error, &self.client.target().to_string());
                StreamError::Retry(Exit::Error.with_message(sentence))
            }
            Ok(answer) if answer.status().is_success() => StreamError::Retry(Error::msg("the controller ended the event stream")),
            Ok(answer) => {
                let error = Error::from(ApiRefusal::from_response(&answer, "GET", &self.path));
                match answer.status() {
                    StatusCode::GONE => StreamError::Compacted(error),
                    status if status.is_server_error() => StreamError::Busy(error),
                    _ => StreamError::Fatal(error),
                }
            }
        };
        (is_open, broken)
    }

    /// Returns the request for the stream, which continues after the last event received.
    fn request(&self) -> Result<Request<Bytes>> {
        let mut request = Request::get(&self.path).header(header::ACCEPT, "text/event-stream");
        if let Some(last) = &self.last_id {
            request = request.header("Last-Event-ID", last);
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        Ok(request.body(Bytes::new())?)
    }
}

/// The reason why a stream ended.
enum StreamError {
    /// The stream can be opened again.
    Retry(Error),
    /// The controller responded with a server error (5xx). The stream is tried again even if it was never open.
    Busy(Error),
    /// The stream can be opened again, but the events since the last one received are lost.
    Compacted(Error),
    /// The stream must not be opened again.
    Fatal(Error),
}

/// Converts the error with which the reading of a stream ended. After an `end` event of the controller, the stream can
/// be opened again. Any other error is fatal.
fn from_sink(error: Error) -> StreamError {
    match error.downcast::<Ended>() {
        Ok(Ended { kind, message }) if kind == "events.compacted" => StreamError::Compacted(Error::msg(message)),
        Ok(Ended { message, .. }) => StreamError::Retry(Error::msg(message)),
        Err(error) => StreamError::Fatal(error),
    }
}

/// The `end` event, with which a controller closes a stream and gives the reason.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Ended {
    kind: String,
    message: String,
}

impl Ended {
    fn from_body(body: &Value) -> Self {
        let text = |field: &str| body.pointer(&format!("/error/{field}")).and_then(Value::as_str).unwrap_or_default();
        Self { kind: text("type").to_owned(), message: printable(text("message")) }
    }
}

/// A parser of server-sent events that arrive in pieces of any length (WHATWG HTML, 9.2).
#[derive(Default)]
struct EventParser {
    text: Vec<u8>,
    /// The length of the prefix of `text` that was searched and contains no end of an event.
    searched_len: usize,
}

impl EventParser {
    /// Adds a piece of the stream. Passes each complete event to `sink`, and stores its id in `last`. Fails for an
    /// `end` event, and for an event that is too large.
    fn push(&mut self, chunk: &[u8], last: &mut Option<String>, sink: &mut impl FnMut(StreamItem) -> Result<()>) -> Result<()> {
        self.text.extend_from_slice(chunk);
        while let Some(end) = self.text[self.searched_len..].windows(2).position(|two| two == b"\n\n") {
            let block: Vec<u8> = self.text.drain(..self.searched_len + end + 2).collect();
            self.searched_len = 0;
            let block = String::from_utf8_lossy(&block);
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let id = field("id").map(str::to_owned);
            let Some(data) = field("data") else {
                *last = id.or(last.take());
                continue;
            };
            let (class, data) = (field("event").unwrap_or_default(), serde_json::from_str(data)?);
            if class == "end" {
                return Err(Ended::from_body(&data).into());
            }
            sink(StreamItem::Event(ServerEvent { class: class.to_owned(), data }))?;
            *last = id.or(last.take());
        }
        self.searched_len = self.text.len().saturating_sub(1);
        if self.text.len() > MAX_EVENT_BYTES {
            return Err(Exit::Error.with_message(format!("an event is larger than {MAX_EVENT_BYTES} bytes")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parser_reads_events_when_input_is_split() {
        let text = b": begins\nid: 3\n\nevent: status\ndata: {\"state\":\"failed\"}\n\nid: 7\nevent: object\ndata: {\"a\":1}\n\n: keep-alive\n\nevent: end\ndata: {\"error\":{\"type\":\"events.slow\",\"message\":\"m\"}}\n\n";
        for size in 1..text.len() {
            let (mut parser, mut last, mut told) = (EventParser::default(), None, Vec::new());
            let mut ended = None;
            for piece in text.chunks(size) {
                let taken = parser.push(piece, &mut last, &mut |one| {
                    told.push(one);
                    Ok(())
                });
                ended = ended.or(taken.err());
            }
            let event = |class: &str, data| StreamItem::Event(ServerEvent { class: class.to_owned(), data });
            assert_eq!(told, [event("status", json!({"state": "failed"})), event("object", json!({"a": 1}))]);
            assert_eq!(last.as_deref(), Some("7"), "the id of the last one that had one");
            let ended = ended.unwrap().downcast::<Ended>().unwrap();
            assert_eq!((ended.kind.as_str(), ended.message.as_str()), ("events.slow", "m"));
        }
    }
}
