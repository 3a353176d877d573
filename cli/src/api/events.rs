//! Receives the controller's events on a separate connection, as server-sent events. Each event is passed on as soon as
//! it arrives.

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

/// Maximum time without data, after which a stream is treated as broken. A controller sends data at least every 30
/// seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(90);
/// The minimum delay before a broken connection is opened again. A random time of at most about one second is added.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of received bytes of an event whose end has not arrived yet.
const MAX_EVENT_BYTES: usize = 64 * 1024 * 1024;

/// An event of the controller: a change of an object, or of the status of a node.
#[derive(Debug, PartialEq)]
pub(crate) struct ServerEvent {
    /// The class of the event: `object` or `status`.
    pub(crate) class: String,
    /// The JSON content of the event, as the controller sent it.
    pub(crate) data: Value,
}

/// A stream of events that reconnects after its connection has broken.
pub(crate) struct EventSource {
    client: Client,
    token: Option<header::HeaderValue>,
    /// The path and query of the stream in the API.
    path: String,
    /// The id after which the next connection continues. `None` if the stream begins with new events.
    last_id: Option<String>,
    /// True if a lost connection should be reported on standard error.
    should_warn: bool,
}

/// An item that is passed to the receiver of a stream: the start of a connection, or an event.
#[derive(Debug, PartialEq)]
pub(crate) enum StreamItem {
    /// The stream was opened, or was opened again after a break.
    Connected,
    /// An event.
    Event(ServerEvent),
}

impl ApiClient {
    /// Creates a stream of the events at a path. The stream begins with the event of the revision `from`, or with new
    /// events if `from` is `None`. No request is sent yet.
    pub(crate) fn events(&self, path: String, from: Option<u64>) -> EventSource {
        let limits = ClientLimits { body_timeout: SILENCE_TIMEOUT, max_body_bytes: u64::MAX, ..ClientLimits::default() };
        let client = Client::new(self.client.target().clone(), self.tls.clone(), limits);
        // A stream continues after its last id, so the event before `from` counts as received.
        let previous_id = from.map(|from| from.saturating_sub(1).to_string());
        EventSource { client, token: self.token.clone(), path, last_id: previous_id, should_warn: true }
    }
}

impl EventSource {
    /// Turns off warnings about a lost connection, for callers that report it themselves.
    pub(crate) fn without_warnings(self) -> Self {
        Self { should_warn: false, ..self }
    }

    /// Passes events to `sink` until `sink` fails. A broken stream is opened again and continues after the last
    /// received event. If the controller no longer stores the next events, the stream continues with new events.
    ///
    /// # Errors
    /// The error of `sink`. Also the error of the stream, if the stream must not be opened again. If it was never open,
    /// each error except a server error (5xx) ends it.
    pub(crate) async fn follow(&mut self, mut sink: impl FnMut(StreamItem) -> Result<()>) -> Result<Infallible> {
        let (mut was_ever_open, mut is_outage_reported) = (false, false);
        loop {
            let (was_opened, stream_error) = self.follow_once(&mut sink).await;
            was_ever_open |= was_opened;
            is_outage_reported &= !was_opened;
            match stream_error {
                StreamError::Fatal(error) => return Err(error),
                StreamError::Retry(error) | StreamError::Compacted(error) if !was_ever_open => return Err(error),
                // Without an id, the next connection begins with new events.
                StreamError::Compacted(error) => {
                    self.last_id = None;
                    self.warn(&error.context("events were missed"));
                }
                StreamError::Retry(error) | StreamError::Busy(error) if !is_outage_reported => self.warn(&error),
                StreamError::Retry(_) | StreamError::Busy(_) => {}
            }
            is_outage_reported = true;
            // The delay contains a random part, so that not all clients reconnect at once after a controller has
            // restarted.
            let random_ms = super::random_bytes::<1>().map_or(0, |[byte]| u64::from(byte) * 4);
            tokio::time::sleep(RECONNECT_DELAY + Duration::from_millis(random_ms)).await;
        }
    }

    /// Prints a warning with the error, unless warnings are turned off.
    fn warn(&self, error: &Error) {
        if self.should_warn {
            errln!("warning: {error:#}");
        }
    }

    /// Opens the stream once and passes its events to `sink` until the stream ends. Returns whether data arrived, and
    /// the reason for the end.
    async fn follow_once(&mut self, sink: &mut impl FnMut(StreamItem) -> Result<()>) -> (bool, StreamError) {
        let request = match self.request() {
            Ok(request) => request,
            Err(error) => return (false, StreamError::Fatal(error)),
        };
        let (mut parser, mut sink_error, mut is_open) = (EventParser::default(), None, false);
        let last_id = &mut self.last_id;
        let response = self.client.stream(request, async |chunk| {
            let mut handle_chunk = || {
                if !std::mem::replace(&mut is_open, true) {
                    sink(StreamItem::Connected)?;
                }
                parser.push(&chunk, last_id, &mut *sink)
            };
            handle_chunk().map_err(|error| {
                sink_error = Some(error);
                io::Error::other("the event was not accepted")
            })
        });
        let response = response.await;
        let stream_error = match response {
            // `handle_chunk` failed, so `sink_error` contains the reason.
            Err(ClientError::NotTaken { .. }) => {
                sink_error.map_or_else(|| StreamError::Fatal(Error::msg("not taken")), to_stream_error)
            }
            Err(error) => {
                let sentence = network::error_message(&error, &self.client.target().to_string());
                StreamError::Retry(Exit::Error.with_message(sentence))
            }
            // The response has ended normally. Its events were already passed to `sink`.
            Ok(reply) if reply.status().is_success() => StreamError::Retry(Error::msg("the controller ended the event stream")),
            Ok(reply) => {
                let error = Error::from(ApiRefusal::from_response(&reply, "GET", &self.path));
                match reply.status() {
                    StatusCode::GONE => StreamError::Compacted(error),
                    status if status.is_server_error() => StreamError::Busy(error),
                    _ => StreamError::Fatal(error),
                }
            }
        };
        (is_open, stream_error)
    }

    /// Returns the request that opens the stream after the last received event.
    fn request(&self) -> Result<Request<Bytes>> {
        let mut request = Request::get(&self.path).header(header::ACCEPT, "text/event-stream");
        if let Some(last_id) = &self.last_id {
            request = request.header("Last-Event-ID", last_id);
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        Ok(request.body(Bytes::new())?)
    }
}

/// The reason why a stream ended.
enum StreamError {
    /// The stream can be opened again if it was open before. A stream that was never open ends with this error.
    Retry(Error),
    /// The controller responded with a server error (5xx). The stream is opened again even if it was never open before.
    Busy(Error),
    /// The controller no longer stores some events after the last received one. Otherwise as [`Self::Retry`].
    Compacted(Error),
    /// The stream must not be opened again.
    Fatal(Error),
}

/// Converts an error of the function that handles the received data. After an `end` event of the controller, the stream
/// can be opened again. Any other error is fatal.
fn to_stream_error(error: Error) -> StreamError {
    match error.downcast::<EndEvent>() {
        Ok(EndEvent { kind, message }) if kind == "events.compacted" => StreamError::Compacted(Error::msg(message)),
        Ok(EndEvent { message, .. }) => StreamError::Retry(Error::msg(message)),
        Err(error) => StreamError::Fatal(error),
    }
}

/// The `end` event, which a controller sends before it closes a stream. It contains the reason.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct EndEvent {
    kind: String,
    message: String,
}

impl EndEvent {
    /// Reads the error type and the message from the JSON content of an `end` event.
    fn from_body(body: &Value) -> Self {
        let text = |field: &str| body.pointer(&format!("/error/{field}")).and_then(Value::as_str).unwrap_or_default();
        Self { kind: text("type").to_owned(), message: printable(text("message")) }
    }
}

/// A parser of server-sent events that arrive in pieces of any length (WHATWG HTML, 9.2).
#[derive(Default)]
struct EventParser {
    /// The received bytes after the last complete event.
    text: Vec<u8>,
    /// The length of the prefix of `text` that was searched and contains no end of an event.
    searched_len: usize,
}

impl EventParser {
    /// Adds a piece of the stream. Passes each complete event to `sink`, and stores its id, if it has one, in `last`.
    /// Fails for an `end` event, for an event that is not JSON or exceeds [`MAX_EVENT_BYTES`], and if `sink` fails.
    fn push(&mut self, chunk: &[u8], last: &mut Option<String>, sink: &mut impl FnMut(StreamItem) -> Result<()>) -> Result<()> {
        self.text.extend_from_slice(chunk);
        while let Some(event_length) = self.text[self.searched_len..].windows(2).position(|window| window == b"\n\n") {
            let event_bytes: Vec<u8> = self.text.drain(..self.searched_len + event_length + 2).collect();
            self.searched_len = 0;
            let event_bytes = String::from_utf8_lossy(&event_bytes);
            let field = |name: &str| event_bytes.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let id = field("id").map(str::to_owned);
            // A comment (`: keep-alive`) or an id without data is not passed on.
            let Some(data) = field("data") else {
                *last = id.or(last.take());
                continue;
            };
            let (class, data) = (field("event").unwrap_or_default(), serde_json::from_str(data)?);
            if class == "end" {
                return Err(EndEvent::from_body(&data).into());
            }
            sink(StreamItem::Event(ServerEvent { class: class.to_owned(), data }))?;
            *last = id.or(last.take());
        }
        // The last byte may be the first half of the empty line that ends an event.
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
        // The `end` event becomes an error, and the others are passed on. The result is the same for pieces of any
        // size.
        let text = b": begins\nid: 3\n\nevent: status\ndata: {\"state\":\"failed\"}\n\nid: 7\nevent: object\ndata: {\"a\":1}\n\n: keep-alive\n\nevent: end\ndata: {\"error\":{\"type\":\"events.slow\",\"message\":\"m\"}}\n\n";
        for size in 1..text.len() {
            let (mut parser, mut last_id, mut items) = (EventParser::default(), None, Vec::new());
            let mut error = None;
            for piece in text.chunks(size) {
                let result = parser.push(piece, &mut last_id, &mut |item| {
                    items.push(item);
                    Ok(())
                });
                error = error.or(result.err());
            }
            let event = |class: &str, data| StreamItem::Event(ServerEvent { class: class.to_owned(), data });
            assert_eq!(items, [event("status", json!({"state": "failed"})), event("object", json!({"a": 1}))]);
            assert_eq!(last_id.as_deref(), Some("7"), "the id of the last event with an id");
            let error = error.unwrap().downcast::<EndEvent>().unwrap();
            assert_eq!((error.kind.as_str(), error.message.as_str()), ("events.slow", "m"));
        }
    }
}
