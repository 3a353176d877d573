//! The stream between TLS and hyper. It shows each received byte to the [`HeadReader`], sets the connection's
//! deadlines, and responds instead of hyper when a head is refused.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::connections::{AwaitedEvent, ConnectionMonitor};
use super::head::{HeadError, HeadReader, ParsePhase};
use super::rate::{MinRate, RateTracker};
use super::{Peer, ServerShared};
use crate::net::ByteStream;

/// Maximum number of bytes that are read and discarded after a refusal, or after a response that was sent before the
/// end of the body. If unread bytes remained, closing the connection would reset it before the peer has read the
/// response.
const MAX_LINGER_BYTES: usize = 256 * 1024;
/// Maximum time for which bytes are read and discarded before the connection is closed.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The stream of one connection, with the state that its checks and deadlines need.
pub(super) struct GuardedStream<S> {
    inner: S,
    heads: HeadReader,
    monitor: Arc<ConnectionMonitor>,
    server: Arc<ServerShared>,
    peer: Arc<Peer>,
    /// The rate of the body that is being received.
    body_rate_tracker: Option<RateTracker>,
    /// The rate at which the peer reads a response, once a write had to wait.
    write_rate_tracker: Option<RateTracker>,
    pending_refusal: Option<Box<PendingRefusal>>,
    lingered_bytes: usize,
}

/// The response to a refused head, which is written instead of a response of hyper.
struct PendingRefusal {
    response: Vec<u8>,
    written_bytes: usize,
    is_closed: bool,
}

impl<S: ByteStream> GuardedStream<S> {
    pub(super) fn new(inner: S, monitor: Arc<ConnectionMonitor>, server: Arc<ServerShared>, peer: Arc<Peer>) -> Self {
        Self {
            inner,
            heads: HeadReader::default(),
            monitor,
            server,
            peer,
            body_rate_tracker: None,
            write_rate_tracker: None,
            pending_refusal: None,
            lingered_bytes: 0,
        }
    }

    /// Parses the received bytes, and sets the deadline for what must arrive next.
    fn inspect(&mut self, bytes: &[u8]) -> Result<(), HeadError> {
        let previous = self.heads.phase();
        self.heads.feed(bytes)?;
        match self.heads.phase() {
            ParsePhase::Idle => {
                self.body_rate_tracker = None;
                self.monitor.is_body_open.store(false, Ordering::Relaxed);
                if self.is_answered() { self.expect_request() } else { self.monitor.clear_deadline() }
            }
            ParsePhase::Head if previous == ParsePhase::Head => {}
            ParsePhase::Head => self.monitor.expect(AwaitedEvent::Head, self.server.limits.header_timeout),
            ParsePhase::Body(_) | ParsePhase::Chunked => self.count_body(bytes.len() as u64),
        }
        Ok(())
    }

    /// Takes the body out of a request that arrived in one read, and gives hyper the head with a length of 0.
    ///
    /// hyper passes a body to its handler through a channel, and polls the connection once more for it. That is a third
    /// of the cost of a check-in. It is done only if this is the connection's only request that hyper has not passed on
    /// yet (`heads_before` is how many heads had ended before). So a body never ends up with another request.
    fn buffer_whole_body(&self, heads_before: u32, start: usize, buf: &mut ReadBuf<'_>) {
        let Some(last) = self.heads.last_head().filter(|last| last.content_length > 0) else { return };
        let bytes = buf.filled_mut().get_mut(start..).unwrap_or_default();
        let is_single = self.heads.phase() == ParsePhase::Idle && self.heads.head_count() == heads_before.wrapping_add(1);
        let is_complete = bytes.len() as u64 == last.bytes as u64 + last.content_length;
        if is_single && is_complete && self.monitor.request_count.load(Ordering::Relaxed) == heads_before {
            bytes[last.length_range.clone()].fill(b'0');
            self.monitor.buffer_body(Bytes::copy_from_slice(&bytes[last.bytes..]));
            buf.set_filled(start + last.bytes);
        }
    }

    /// Records received bytes of a body. The deadline is cleared until more is read, because the handler may be waiting
    /// for room.
    fn count_body(&mut self, bytes: u64) {
        let (rate, monitor) = (self.min_body_rate(), &self.monitor);
        let tracker = self.body_rate_tracker.get_or_insert_with(|| {
            monitor.is_body_open.store(true, Ordering::Relaxed);
            RateTracker::default()
        });
        tracker.record(bytes, rate, Instant::now());
        if monitor.is_body_open.load(Ordering::Relaxed) {
            monitor.clear_deadline();
        }
    }

    /// Sets the deadline when more of a body is read and has not arrived. The peer has 15 s, and longer only at the
    /// minimum rate.
    fn expect_body(&mut self) {
        let rate = self.min_body_rate();
        let Some(tracker) = self.body_rate_tracker.as_mut().filter(|_| self.monitor.is_body_open.load(Ordering::Relaxed)) else {
            return;
        };
        self.monitor.expect_until(AwaitedEvent::Body, tracker.wait(rate, Instant::now()));
    }

    fn min_body_rate(&self) -> MinRate {
        let limits = &self.server.limits;
        MinRate { period: limits.body_timeout, bytes_per_second: limits.min_body_bytes_per_second }
    }

    /// Counts a refused head, and prepares the response that is written instead of hyper's.
    fn refuse(&mut self, head_error: HeadError) {
        self.server.rejections.record_peer(head_error.rejection_reason(), &self.peer);
        let error = head_error.error_type();
        let (status, body) = (error.status(), error.fixed_body());
        let response = format!(
            "HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.monitor.expect(AwaitedEvent::Close, LINGER_TIMEOUT);
        self.pending_refusal =
            Some(Box::new(PendingRefusal { response: response.into_bytes(), written_bytes: 0, is_closed: false }));
    }

    /// Writes the response to a refused head, closes this side, and discards the bytes that still arrive. Then returns
    /// an error, so that hyper drops the connection.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(pending) = self.pending_refusal.as_mut() else { return Poll::Ready(io::ErrorKind::Other.into()) };
        while pending.written_bytes < pending.response.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &pending.response[pending.written_bytes..])) {
                Ok(0) => return Poll::Ready(io::ErrorKind::WriteZero.into()),
                Ok(written) => pending.written_bytes += written,
                Err(error) => return Poll::Ready(error),
            }
        }
        if !pending.is_closed {
            if let Err(error) = ready!(Pin::new(&mut self.inner).poll_shutdown(cx)) {
                return Poll::Ready(error);
            }
            pending.is_closed = true;
        }
        ready!(self.poll_linger(cx));
        Poll::Ready(io::ErrorKind::InvalidData.into())
    }

    /// Reads and discards bytes up to the end of the stream or the maximum.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0_u8; 1024];
        while self.lingered_bytes < MAX_LINGER_BYTES {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.lingered_bytes += buffer.filled().len(),
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }

    /// Records whether the peer reads what is written. A pending write may wait for 15 s, and longer if the peer reads
    /// at the minimum rate or faster.
    fn note_write(&mut self, written: &Poll<io::Result<usize>>) {
        let limits = &self.server.limits;
        let rate = MinRate { period: limits.write_timeout, bytes_per_second: limits.min_write_bytes_per_second };
        match (written, &mut self.write_rate_tracker) {
            (Poll::Pending, tracker) => {
                let deadline = tracker.get_or_insert_default().wait(rate, Instant::now());
                self.monitor.expect_until(AwaitedEvent::WriteProgress, deadline);
            }
            (Poll::Ready(result), Some(tracker)) => {
                tracker.record(result.as_ref().map_or(0, |bytes| *bytes as u64), rate, Instant::now());
            }
            (Poll::Ready(_), None) => self.expect_request(),
        }
    }

    /// Returns whether hyper has started the response to the last request. If the handler did not read the body, the
    /// end of the body may arrive only after the response.
    fn is_answered(&self) -> bool {
        self.monitor.request_count.load(Ordering::Relaxed) == self.heads.head_count()
            && self.monitor.is_answering.load(Ordering::Relaxed)
    }

    /// Sets the idle deadline once a response is written completely.
    fn expect_request(&self) {
        if self.monitor.is_answering.load(Ordering::Relaxed) && !self.monitor.is_body_open.load(Ordering::Relaxed) {
            let swept_ms = self.server.connections.last_sweep_ms();
            self.monitor.expect_after_sweep(AwaitedEvent::Request, swept_ms, self.server.limits.idle_timeout);
        }
    }
}

impl<S: ByteStream> AsyncRead for GuardedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.pending_refusal.is_none() {
            let before = buf.filled().len();
            let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
            if polled.is_pending() {
                self.expect_body();
            }
            ready!(polled)?;
            let heads = self.heads.head_count();
            let is_idle = self.heads.phase() == ParsePhase::Idle;
            let Err(head_error) = self.inspect(&buf.filled()[before..]) else {
                if is_idle {
                    self.buffer_whole_body(heads, before, buf);
                }
                return Poll::Ready(Ok(()));
            };
            buf.set_filled(before);
            self.refuse(head_error);
        }
        self.poll_refusal(cx).map(Err)
    }
}

impl<S: ByteStream> AsyncWrite for GuardedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.note_write(&poll);
        poll
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        if poll.is_pending() {
            self.note_write(&Poll::Pending);
        } else if self.write_rate_tracker.take().is_some() {
            self.expect_request();
        }
        poll
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
        if self.body_rate_tracker.is_some() && self.lingered_bytes == 0 {
            self.monitor.expect(AwaitedEvent::Close, LINGER_TIMEOUT);
        }
        if self.body_rate_tracker.is_some() {
            // The response was sent before the end of the body: let the peer read it before the reset.
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}
