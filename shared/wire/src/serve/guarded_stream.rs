//! The stream between TLS and hyper. It passes each received byte to the [`HeadReader`], sets the connection's
//! deadlines, and writes the response itself when a head is refused.

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
use super::{Peer, ServerState};
use crate::net::ByteStream;

/// Maximum number of bytes (plus one read) that are discarded before the close, if a head was refused or a body is
/// chunked or incomplete. With unread bytes, the kernel would reset the connection before the peer has read the
/// response.
const MAX_LINGER_BYTES: usize = 256 * 1024;
/// Maximum time for which bytes are read and discarded before the connection is closed.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The stream of one connection, with the state that its checks and deadlines need.
pub(super) struct GuardedStream<S> {
    inner: S,
    head_reader: HeadReader,
    monitor: Arc<ConnectionMonitor>,
    server: Arc<ServerState>,
    peer: Arc<Peer>,
    /// The rate of the body that is being received.
    body_rate_tracker: Option<RateTracker>,
    /// The rate at which the peer reads a response, once a write had to wait.
    write_rate_tracker: Option<RateTracker>,
    /// The response to a refused head. If it is set, hyper gets no more bytes.
    pending_refusal: Option<Box<PendingRefusal>>,
    /// The number of bytes that were read and discarded before the connection is closed.
    lingered_bytes: usize,
}

/// The response to a refused head, and the progress of writing it. hyper writes no response to such a head.
struct PendingRefusal {
    response: Vec<u8>,
    written_bytes: usize,
    is_closed: bool,
}

impl<S: ByteStream> GuardedStream<S> {
    pub(super) fn new(inner: S, monitor: Arc<ConnectionMonitor>, server: Arc<ServerState>, peer: Arc<Peer>) -> Self {
        Self {
            inner,
            head_reader: HeadReader::default(),
            monitor,
            server,
            peer,
            body_rate_tracker: None,
            write_rate_tracker: None,
            pending_refusal: None,
            lingered_bytes: 0,
        }
    }

    /// Passes received bytes to the parser of heads, and sets or clears the deadline. The deadline of a head counts
    /// from its first byte, so more bytes of the same head leave it unchanged.
    fn inspect(&mut self, bytes: &[u8]) -> Result<(), HeadError> {
        let previous_phase = self.head_reader.phase();
        self.head_reader.feed(bytes)?;
        match self.head_reader.phase() {
            ParsePhase::Idle => {
                self.body_rate_tracker = None;
                self.monitor.is_body_open.store(false, Ordering::Relaxed);
                // Until the response begins, the peer has no deadline.
                if self.is_answered() { self.set_idle_deadline() } else { self.monitor.clear_deadline() }
            }
            ParsePhase::Head if previous_phase == ParsePhase::Head => {}
            ParsePhase::Head => self.monitor.set_timeout(AwaitedEvent::Head, self.server.limits.header_timeout),
            ParsePhase::Body(_) | ParsePhase::Chunked => self.record_body_bytes(bytes.len() as u64),
        }
        Ok(())
    }

    /// Moves the body of a request that arrived in one read to the monitor's buffer. hyper then gets the head alone,
    /// with a content length of 0.
    ///
    /// The reason is speed: hyper passes a body to its handler through a channel and polls the connection once more,
    /// which is a third of the cost of a check-in. The body is moved only if hyper has already passed on all earlier
    /// requests, so that the body cannot be given to another request. `heads` is the number of earlier requests, and
    /// `start` is the position in `buf` at which the read begins.
    fn buffer_whole_body(&self, heads: u32, start: usize, buf: &mut ReadBuf<'_>) {
        let Some(head) = self.head_reader.last_head().filter(|head| head.content_length > 0) else { return };
        let bytes = buf.filled_mut().get_mut(start..).unwrap_or_default();
        let is_single = self.head_reader.phase() == ParsePhase::Idle && self.head_reader.head_count() == heads.wrapping_add(1);
        let is_complete = bytes.len() as u64 == head.bytes as u64 + head.content_length;
        if is_single && is_complete && self.monitor.request_count.load(Ordering::Relaxed) == heads {
            bytes[head.length_range.clone()].fill(b'0');
            self.monitor.buffer_body(Bytes::copy_from_slice(&bytes[head.bytes..]));
            buf.set_filled(start + head.bytes);
        }
    }

    /// Records received bytes of a body, and marks the body as open. While it is open, clears the deadline until the
    /// next read, because the peer is not to blame while the handler does not read.
    fn record_body_bytes(&mut self, bytes: u64) {
        let (rate, monitor) = (self.min_body_rate(), &self.monitor);
        let tracker = self.body_rate_tracker.get_or_insert_with(|| {
            monitor.is_body_open.store(true, Ordering::Relaxed);
            RateTracker::default()
        });
        tracker.record_bytes(bytes, rate, Instant::now());
        if monitor.is_body_open.load(Ordering::Relaxed) {
            monitor.clear_deadline();
        }
    }

    /// Sets the deadline when this side waits for more bytes of a body. The peer has [`body_timeout`], or longer if it
    /// sends at the minimum rate. Does nothing if no body is expected.
    ///
    /// [`body_timeout`]: super::ListenerLimits::body_timeout
    fn set_body_deadline(&mut self) {
        let rate = self.min_body_rate();
        let Some(tracker) = self.body_rate_tracker.as_mut().filter(|_| self.monitor.is_body_open.load(Ordering::Relaxed)) else {
            return;
        };
        self.monitor.set_deadline(AwaitedEvent::Body, tracker.start_wait(rate, Instant::now()));
    }

    /// Returns the minimum rate at which the peer must send a body.
    fn min_body_rate(&self) -> MinRate {
        let limits = &self.server.limits;
        MinRate { period: limits.body_timeout, bytes_per_second: limits.min_body_bytes_per_second }
    }

    /// Counts a refused head, prepares the response to it, and sets the deadline for the end of the connection.
    /// [`Self::poll_refusal`] then writes the response.
    fn refuse(&mut self, head_error: HeadError) {
        self.server.rejections.record_peer(head_error.rejection_reason(), &self.peer);
        let error = head_error.error_type();
        let (status, body) = (error.status(), error.fixed_body());
        let response = format!(
            "HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.monitor.set_timeout(AwaitedEvent::Close, LINGER_TIMEOUT);
        self.pending_refusal =
            Some(Box::new(PendingRefusal { response: response.into_bytes(), written_bytes: 0, is_closed: false }));
    }

    /// Writes the response to a refused head, closes the sending side, and discards the bytes that still arrive. Then
    /// returns an error, so that hyper drops the connection. Each call continues where the previous call had to wait.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        // The caller has set the refusal, so the `else` branch is never used.
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

    /// Reads and discards bytes until the peer closes its side, or [`MAX_LINGER_BYTES`] have been read.
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

    /// Sets the deadline after an attempt to write. A write may wait for `write_timeout`, or longer while the peer
    /// reads at the minimum rate. If no write had to wait since the last flush, sets the idle deadline.
    fn track_write(&mut self, write_result: &Poll<io::Result<usize>>) {
        let limits = &self.server.limits;
        let rate = MinRate { period: limits.write_timeout, bytes_per_second: limits.min_write_bytes_per_second };
        match (write_result, &mut self.write_rate_tracker) {
            (Poll::Pending, tracker) => {
                let deadline = tracker.get_or_insert_default().start_wait(rate, Instant::now());
                self.monitor.set_deadline(AwaitedEvent::WriteProgress, deadline);
            }
            (Poll::Ready(result), Some(tracker)) => {
                tracker.record_bytes(result.as_ref().map_or(0, |bytes| *bytes as u64), rate, Instant::now());
            }
            (Poll::Ready(_), None) => self.set_idle_deadline(),
        }
    }

    /// Returns whether hyper has already started the response to the last request. This is possible before the end of
    /// the request's body has arrived, if the handler did not read the body.
    fn is_answered(&self) -> bool {
        self.monitor.request_count.load(Ordering::Relaxed) == self.head_reader.head_count()
            && self.monitor.is_answering.load(Ordering::Relaxed)
    }

    /// Sets the deadline for the next request. Does nothing if no response was started since the last request, or if
    /// the body of the last request is still arriving.
    fn set_idle_deadline(&self) {
        if self.monitor.is_answering.load(Ordering::Relaxed) && !self.monitor.is_body_open.load(Ordering::Relaxed) {
            let sweep_time_ms = self.server.connections.last_sweep_ms();
            self.monitor.set_timeout_after_sweep(AwaitedEvent::Request, sweep_time_ms, self.server.limits.idle_timeout);
        }
    }
}

impl<S: ByteStream> AsyncRead for GuardedStream<S> {
    /// Reads bytes for hyper, after the parser of heads has accepted them. If the parser refuses a head, hyper gets
    /// none of these bytes, and the peer gets an error response.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.pending_refusal.is_none() {
            let filled_before = buf.filled().len();
            let read_result = Pin::new(&mut self.inner).poll_read(cx, buf);
            if read_result.is_pending() {
                self.set_body_deadline();
            }
            ready!(read_result)?;
            let heads_before = self.head_reader.head_count();
            let is_idle = self.head_reader.phase() == ParsePhase::Idle;
            let Err(head_error) = self.inspect(&buf.filled()[filled_before..]) else {
                // The head was accepted, so hyper gets the bytes. Only a request that begins in this read can be whole.
                if is_idle {
                    self.buffer_whole_body(heads_before, filled_before, buf);
                }
                return Poll::Ready(Ok(()));
            };
            buf.set_filled(filled_before);
            self.refuse(head_error);
        }
        self.poll_refusal(cx).map(Err)
    }
}

impl<S: ByteStream> AsyncWrite for GuardedStream<S> {
    /// Writes bytes of a response, and sets the deadline for the peer to read them.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let write_result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.track_write(&write_result);
        write_result
    }

    /// Flushes the stream. A flush that must wait for the peer counts as a write that must wait.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush_result = Pin::new(&mut self.inner).poll_flush(cx);
        if flush_result.is_pending() {
            self.track_write(&Poll::Pending);
        } else if self.write_rate_tracker.take().is_some() {
            self.set_idle_deadline();
        }
        flush_result
    }

    /// Closes the sending side. If the body of the last request is chunked or has not arrived completely, then discards
    /// the bytes that still arrive ([`MAX_LINGER_BYTES`]).
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
        // No byte was discarded yet, so the time for the peer to read the response begins now.
        if self.body_rate_tracker.is_some() && self.lingered_bytes == 0 {
            self.monitor.set_timeout(AwaitedEvent::Close, LINGER_TIMEOUT);
        }
        if self.body_rate_tracker.is_some() {
            // The response may have been sent before the end of the body. The peer gets time to read the response.
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}
