//! Stands between TLS and hyper: shows each byte that comes in to the [`HeadReader`], keeps the connection's deadlines, and answers in
//! hyper's place when a head is refused.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::connections::{Awaited, Watch};
use super::head::{Fault, HeadReader, Phase};
use super::pace::{LeastRate, Pace};
use super::{Peer, Shared};
use crate::net::Stream;

/// How much of what a refused peer still sends is read away, so that closing does not reset the answer under its eyes.
const LINGER_BYTES: usize = 256 * 1024;
/// How long that may take.
const LINGER: Duration = Duration::from_secs(2);

pub(super) struct Guard<S> {
    inner: S,
    reader: HeadReader,
    watch: Arc<Watch>,
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    /// How the body in hand comes.
    body: Option<Pace>,
    /// How an answer is taken that had to wait for the peer.
    kept_waiting: Option<Pace>,
    refusal: Option<Box<Refusing>>,
    lingered: usize,
}

/// An answer on its way in hyper's place.
struct Refusing {
    answer: Vec<u8>,
    written: usize,
    closed: bool,
}

impl<S: Stream> Guard<S> {
    pub(super) fn new(inner: S, watch: Arc<Watch>, shared: Arc<Shared>, peer: Arc<Peer>) -> Self {
        Self {
            inner,
            reader: HeadReader::default(),
            watch,
            shared,
            peer,
            body: None,
            kept_waiting: None,
            refusal: None,
            lingered: 0,
        }
    }

    /// Follows the requests, and sets the deadline for what is to come next.
    fn inspect(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let before = self.reader.phase();
        self.reader.feed(bytes)?;
        match self.reader.phase() {
            Phase::Between => {
                self.body = None;
                self.watch.body_open.store(false, Ordering::Relaxed);
                if self.is_answered() { self.expect_request() } else { self.watch.expect_nothing() }
            }
            Phase::Head if before == Phase::Head => {}
            Phase::Head => self.watch.expect(Awaited::Head, self.shared.limits.header),
            Phase::Body(_) | Phase::Chunked => self.count_body(bytes.len() as u64),
        }
        Ok(())
    }

    /// Takes the body out of a request that came in one read, and hands hyper the head with a length of nought.
    ///
    /// hyper gives a body to its handler through a channel, and polls the connection once more for it: a third of what a check-in
    /// costs. It is done only when this is the connection's one request that hyper has not handed over yet (`heads` is how many had
    /// ended before), so that no body is ever another's.
    fn keep_whole(&self, heads: u32, before: usize, buf: &mut ReadBuf<'_>) {
        let Some(last) = self.reader.last().filter(|last| last.length > 0) else { return };
        let bytes = buf.filled_mut().get_mut(before..).unwrap_or_default();
        let is_one = self.reader.phase() == Phase::Between && self.reader.heads() == heads.wrapping_add(1);
        let is_all = bytes.len() as u64 == last.bytes as u64 + last.length;
        if is_one && is_all && self.watch.calls.load(Ordering::Relaxed) == heads {
            bytes[last.length_at.clone()].fill(b'0');
            self.watch.put_whole(Bytes::copy_from_slice(&bytes[last.bytes..]));
            buf.set_filled(before + last.bytes);
        }
    }

    /// Bytes of a body came. Until more of it is read, nothing is owed: its handler may wait for room.
    fn count_body(&mut self, bytes: u64) {
        let (rate, watch) = (self.body_rate(), &self.watch);
        let pace = self.body.get_or_insert_with(|| {
            watch.body_open.store(true, Ordering::Relaxed);
            Pace::default()
        });
        pace.note(bytes, rate, Instant::now());
        if watch.body_open.load(Ordering::Relaxed) {
            watch.expect_nothing();
        }
    }

    /// More of a body is read, and has not come: it has its 15 s, and longer only while it keeps the least rate.
    fn wait_for_body(&mut self) {
        let rate = self.body_rate();
        let Some(pace) = self.body.as_mut().filter(|_| self.watch.body_open.load(Ordering::Relaxed)) else { return };
        self.watch.expect_until(Awaited::Body, pace.wait(rate, Instant::now()));
    }

    fn body_rate(&self) -> LeastRate {
        let limits = &self.shared.limits;
        LeastRate { within: limits.body, bytes_per_second: limits.body_bytes_per_second }
    }

    fn refuse(&mut self, fault: Fault) {
        self.shared.rejected.refuse_peer(fault.reason(), &self.peer);
        let error = fault.error();
        let (status, body) = (error.status(), error.fixed_body());
        let answer = format!(
            "HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.watch.expect(Awaited::Close, LINGER);
        self.refusal = Some(Box::new(Refusing { answer: answer.into_bytes(), written: 0, closed: false }));
    }

    /// Writes the answer, closes this side, reads away what still comes, and ends with an error, at which hyper lets go.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(refusing) = self.refusal.as_mut() else { return Poll::Ready(io::ErrorKind::Other.into()) };
        while refusing.written < refusing.answer.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &refusing.answer[refusing.written..])) {
                Ok(0) => return Poll::Ready(io::ErrorKind::WriteZero.into()),
                Ok(written) => refusing.written += written,
                Err(error) => return Poll::Ready(error),
            }
        }
        if !refusing.closed {
            if let Err(error) = ready!(Pin::new(&mut self.inner).poll_shutdown(cx)) {
                return Poll::Ready(error);
            }
            refusing.closed = true;
        }
        ready!(self.poll_linger(cx));
        Poll::Ready(io::ErrorKind::InvalidData.into())
    }

    /// Reads and drops, to the end or to the measure.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0_u8; 1024];
        while self.lingered < LINGER_BYTES {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.lingered += buffer.filled().len(),
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }

    /// Notes whether the peer takes what is written. A pending write may wait for 15 s, and longer while the peer reads at the least rate or faster.
    fn note_write(&mut self, written: &Poll<io::Result<usize>>) {
        let limits = &self.shared.limits;
        let rate = LeastRate { within: limits.write, bytes_per_second: limits.write_bytes_per_second };
        match (written, &mut self.kept_waiting) {
            (Poll::Pending, waiting) => {
                let deadline = waiting.get_or_insert_default().wait(rate, Instant::now());
                self.watch.expect_until(Awaited::Reader, deadline);
            }
            (Poll::Ready(taken), Some(pace)) => {
                pace.note(taken.as_ref().map_or(0, |bytes| *bytes as u64), rate, Instant::now());
            }
            (Poll::Ready(_), None) => self.expect_request(),
        }
    }

    /// Whether the last request that came has its answer. Its body may end only then, when the handler did not read it.
    fn is_answered(&self) -> bool {
        self.watch.calls.load(Ordering::Relaxed) == self.reader.heads() && self.watch.answering.load(Ordering::Relaxed)
    }

    /// Everything that was written is out.
    fn expect_request(&self) {
        if self.watch.answering.load(Ordering::Relaxed) && !self.watch.body_open.load(Ordering::Relaxed) {
            let swept_ms = self.shared.connections.swept_ms();
            self.watch.expect_about(Awaited::Request, swept_ms, self.shared.limits.idle);
        }
    }
}

impl<S: Stream> AsyncRead for Guard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.refusal.is_none() {
            let before = buf.filled().len();
            let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
            if polled.is_pending() {
                self.wait_for_body();
            }
            ready!(polled)?;
            let heads = self.reader.heads();
            let idle = self.reader.phase() == Phase::Between;
            let Err(fault) = self.inspect(&buf.filled()[before..]) else {
                if idle {
                    self.keep_whole(heads, before, buf);
                }
                return Poll::Ready(Ok(()));
            };
            buf.set_filled(before);
            self.refuse(fault);
        }
        self.poll_refusal(cx).map(Err)
    }
}

impl<S: Stream> AsyncWrite for Guard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.note_write(&poll);
        poll
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        if poll.is_pending() {
            self.note_write(&Poll::Pending);
        } else if self.kept_waiting.take().is_some() {
            self.expect_request();
        }
        poll
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
        if self.body.is_some() && self.lingered == 0 {
            self.watch.expect(Awaited::Close, LINGER);
        }
        if self.body.is_some() {
            // The answer came before the body's end: let the peer read it before the reset.
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}
