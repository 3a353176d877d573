//! The controller's events, over a connection of their own: server-sent events, each as soon as it comes.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use anyhow::{Error, Result};
use bytes::Bytes;
use hyper::{Request, StatusCode, header};
use serde_json::Value;
use stemma_wire::client::{Client, ClientError, ClientLimits};

use super::{Api, Refusal, network};
use crate::exit::Exit;
use crate::output::printable;

/// A controller says something every half minute.
const SILENCE: Duration = Duration::from_secs(90);
/// How long after a connection that broke another one is opened.
const PAUSE: Duration = Duration::from_secs(2);
/// The largest event that is taken, in bytes.
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// One event.
#[derive(Debug, PartialEq)]
pub(crate) struct Event {
    /// `object` or `status`.
    pub(crate) class: String,
    /// What it tells.
    pub(crate) data: Value,
}

/// A stream of events that goes on where it broke.
pub(crate) struct Events {
    client: Client,
    token: Option<header::HeaderValue>,
    path: String,
    /// The last id that was seen.
    last: Option<String>,
    /// Whether it is said that the controller is away.
    warns: bool,
}

/// What is said once the stream is there, and then of each event.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    /// The stream is there, or there again.
    Begins,
    /// An event.
    Event(Event),
}

impl Api {
    /// The events at a path, from a revision on or from now on. Nothing is sent yet.
    pub(crate) fn events(&self, path: String, from: Option<u64>) -> Events {
        let limits = ClientLimits { body: SILENCE, body_bytes: u64::MAX, ..ClientLimits::default() };
        let client = Client::new(self.client.target().clone(), self.tls.clone(), limits);
        let last = from.map(|from| from.saturating_sub(1).to_string());
        Events { client, token: self.token.clone(), path, last, warns: true }
    }
}

impl Events {
    /// The same, for who says by itself that the controller is away.
    pub(crate) fn quietly(self) -> Self {
        Self { warns: false, ..self }
    }

    /// Gives what is told to `sink` until that fails. A stream that breaks is opened again, behind the last event that was seen.
    ///
    /// # Errors
    /// What `sink` says; why the stream could not be opened the first time, or may not be opened again.
    pub(crate) async fn follow(&mut self, mut sink: impl FnMut(Told) -> Result<()>) -> Result<Infallible> {
        let (mut was_open, mut is_away) = (false, false);
        loop {
            let (is_open, broken) = self.once(&mut sink).await;
            was_open |= is_open;
            is_away &= !is_open;
            match broken {
                Broken::ForGood(error) => return Err(error),
                Broken::ForNow(error) | Broken::Missed(error) if !was_open => return Err(error),
                Broken::Missed(error) => {
                    self.last = None;
                    self.warn(&error.context("events were missed"));
                }
                Broken::ForNow(error) | Broken::Busy(error) if !is_away => self.warn(&error),
                Broken::ForNow(_) | Broken::Busy(_) => {}
            }
            is_away = true;
            // Not all clients of a controller that was away come back at once.
            let spread = super::random::<1>().map_or(0, |[byte]| u64::from(byte) * 4);
            tokio::time::sleep(PAUSE + Duration::from_millis(spread)).await;
        }
    }

    fn warn(&self, error: &Error) {
        if self.warns {
            tell!("warning: {error:#}");
        }
    }

    /// One stream, to its end; whether it was there at all.
    async fn once(&mut self, sink: &mut impl FnMut(Told) -> Result<()>) -> (bool, Broken) {
        let request = match self.request() {
            Ok(request) => request,
            Err(error) => return (false, Broken::ForGood(error)),
        };
        let (mut parser, mut failed, mut is_open) = (Parser::default(), None, false);
        let last = &mut self.last;
        let answer = self.client.stream(request, async |piece| {
            let mut take = || {
                if !std::mem::replace(&mut is_open, true) {
                    sink(Told::Begins)?;
                }
                parser.take(&piece, last, &mut *sink)
            };
            take().map_err(|error| {
                failed = Some(error);
                io::Error::other("it was not taken")
            })
        });
        let answer = answer.await;
        let broken = match answer {
            Err(ClientError::NotTaken { .. }) => {
                failed.map_or_else(|| Broken::ForGood(Error::msg("not taken")), of_sink)
            }
            Err(error) => {
                let sentence = network::sentence(&error, &self.client.target().to_string());
                Broken::ForNow(Exit::Error.because(sentence))
            }
            Ok(answer) if answer.status().is_success() => Broken::ForNow(Error::msg("the controller ended the events")),
            Ok(answer) => {
                let error = Error::from(Refusal::of(&answer, "GET", &self.path));
                match answer.status() {
                    StatusCode::GONE => Broken::Missed(error),
                    status if status.is_server_error() => Broken::Busy(error),
                    _ => Broken::ForGood(error),
                }
            }
        };
        (is_open, broken)
    }

    fn request(&self) -> Result<Request<Bytes>> {
        let mut request = Request::get(&self.path).header(header::ACCEPT, "text/event-stream");
        if let Some(last) = &self.last {
            request = request.header("Last-Event-ID", last);
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        Ok(request.body(Bytes::new())?)
    }
}

/// Why a stream ended.
enum Broken {
    /// It can be opened again.
    ForNow(Error),
    /// The controller is there, and has no room.
    Busy(Error),
    /// The same, but for what came in between.
    Missed(Error),
    /// It is not to be opened again.
    ForGood(Error),
}

/// What the sink refused ends all; what the controller said at the end of a stream ends that one.
fn of_sink(error: Error) -> Broken {
    match error.downcast::<Ended>() {
        Ok(Ended { kind, message }) if kind == "events.compacted" => Broken::Missed(Error::msg(message)),
        Ok(Ended { message, .. }) => Broken::ForNow(Error::msg(message)),
        Err(error) => Broken::ForGood(error),
    }
}

/// The last word of a controller.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Ended {
    kind: String,
    message: String,
}

impl Ended {
    fn of(body: &Value) -> Self {
        let text = |field: &str| body.pointer(&format!("/error/{field}")).and_then(Value::as_str).unwrap_or_default();
        Self { kind: text("type").to_owned(), message: printable(text("message")) }
    }
}

/// Server-sent events as they arrive, in pieces of any length (WHATWG HTML, 9.2).
#[derive(Default)]
struct Parser {
    text: Vec<u8>,
    /// How much of it has no end of an event.
    searched: usize,
}

impl Parser {
    fn take(
        &mut self,
        piece: &[u8],
        last: &mut Option<String>,
        sink: &mut impl FnMut(Told) -> Result<()>,
    ) -> Result<()> {
        self.text.extend_from_slice(piece);
        while let Some(end) = self.text[self.searched..].windows(2).position(|two| two == b"\n\n") {
            let block: Vec<u8> = self.text.drain(..self.searched + end + 2).collect();
            self.searched = 0;
            let block = String::from_utf8_lossy(&block);
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let id = field("id").map(str::to_owned);
            let Some(data) = field("data") else {
                *last = id.or(last.take());
                continue;
            };
            let (class, data) = (field("event").unwrap_or_default(), serde_json::from_str(data)?);
            if class == "end" {
                return Err(Ended::of(&data).into());
            }
            sink(Told::Event(Event { class: class.to_owned(), data }))?;
            *last = id.or(last.take());
        }
        self.searched = self.text.len().saturating_sub(1);
        if self.text.len() > MOST_BYTES {
            return Err(Exit::Error.because(format!("an event is larger than {MOST_BYTES} bytes")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let text = b": begins\nid: 3\n\nevent: status\ndata: {\"state\":\"failed\"}\n\nid: 7\nevent: object\ndata: {\"a\":1}\n\n: keep-alive\n\nevent: end\ndata: {\"error\":{\"type\":\"events.slow\",\"message\":\"m\"}}\n\n";
        for size in 1..text.len() {
            let (mut parser, mut last, mut told) = (Parser::default(), None, Vec::new());
            let mut ended = None;
            for piece in text.chunks(size) {
                let taken = parser.take(piece, &mut last, &mut |one| {
                    told.push(one);
                    Ok(())
                });
                ended = ended.or(taken.err());
            }
            let event = |class: &str, data| Told::Event(Event { class: class.to_owned(), data });
            assert_eq!(told, [event("status", json!({"state": "failed"})), event("object", json!({"a": 1}))]);
            assert_eq!(last.as_deref(), Some("7"), "the id of the last one that had one");
            let ended = ended.unwrap().downcast::<Ended>().unwrap();
            assert_eq!((ended.kind.as_str(), ended.message.as_str()), ("events.slow", "m"));
        }
    }
}
