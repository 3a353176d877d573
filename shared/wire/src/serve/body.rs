//! The body of a request, with its size limit. A body whose declared length is too large is refused before any byte is
//! stored (S43).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::connections::ConnectionMonitor;
use crate::error::ErrorType;

/// The body of a request that a listener accepted. Reading the body fails with [`BodyError::TooLarge`] once more bytes
/// have arrived than its limit allows, with or without a `Content-Length`.
#[derive(Debug)]
pub struct RequestBody {
    source: BodyOrigin,
    /// The number of bytes that may still be read.
    remaining: u64,
}

/// The source from which a body is read.
#[derive(Debug)]
enum BodyOrigin {
    /// The whole body, which arrived in one read with its head.
    Buffered(Bytes),
    /// A body that hyper reads from the connection, with the state of that connection.
    Incoming(Incoming, Arc<ConnectionMonitor>),
}

/// The reason why a body could not be read completely.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is larger than the limit.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The connection ended, or the body's framing is broken.
    #[error("the body could not be read")]
    Broken(#[source] hyper::Error),
}

impl BodyError {
    /// Returns the error type to respond with.
    pub fn kind(&self) -> ErrorType {
        match self {
            Self::TooLarge { .. } => ErrorType::RequestTooLarge,
            Self::Broken(_) => ErrorType::RequestMalformed,
        }
    }
}

impl RequestBody {
    /// Creates the body of a request: `buffered` if the body arrived in one read with its head, or else `incoming`. At
    /// most `limit` bytes can be read.
    pub(super) fn new(incoming: Incoming, buffered: Option<Bytes>, monitor: Arc<ConnectionMonitor>, limit: u64) -> Self {
        let source = buffered.map_or_else(|| BodyOrigin::Incoming(incoming, monitor), BodyOrigin::Buffered);
        Self { source, remaining: limit }
    }

    /// Reads the whole body. Fails if the body has more than `limit` bytes. A body with a larger declared length is
    /// refused before a byte is read.
    ///
    /// # Errors
    /// [`BodyError`].
    pub async fn collect(mut self, limit: u64) -> Result<Bytes, BodyError> {
        if self.size_hint().lower() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        if let BodyOrigin::Buffered(body) = self.source {
            return Ok(body);
        }
        self.remaining = self.remaining.min(limit);
        let mut pieces = BodyPieces::None;
        while let Some(frame) = self.frame().await {
            if let Ok(data) = frame.map_err(|error| error.with_limit(limit))?.into_data() {
                pieces.push(data);
            }
        }
        Ok(pieces.into_bytes())
    }
}

impl BodyError {
    /// Returns the error with the limit of the whole body. The limit in the original error is the number of bytes that
    /// were still allowed before the last read.
    fn with_limit(self, limit: u64) -> Self {
        match self {
            Self::TooLarge { .. } => Self::TooLarge { limit },
            Self::Broken(_) => self,
        }
    }
}

/// The pieces of a body that were read so far. A single piece is stored without a copy, and several pieces are copied
/// into one buffer.
enum BodyPieces {
    None,
    Single(Bytes),
    Joined(BytesMut),
}

impl BodyPieces {
    /// Adds a piece. The second piece creates a buffer with copies of both pieces. Later pieces are appended to the
    /// buffer.
    fn push(&mut self, data: Bytes) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::Single(data),
            Self::Single(first) => {
                let mut buffer = BytesMut::with_capacity(first.len() + data.len());
                buffer.extend_from_slice(&first);
                buffer.extend_from_slice(&data);
                Self::Joined(buffer)
            }
            Self::Joined(mut buffer) => {
                buffer.extend_from_slice(&data);
                Self::Joined(buffer)
            }
        };
    }

    /// Returns the whole body.
    fn into_bytes(self) -> Bytes {
        match self {
            Self::None => Bytes::new(),
            Self::Single(data) => data,
            Self::Joined(buffer) => buffer.freeze(),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    /// Returns the next piece of the body. Fails if the piece exceeds the remaining limit. At the end of the body,
    /// informs the connection's monitor, which then no longer waits for the body.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match &mut self.source {
            BodyOrigin::Buffered(body) if body.is_empty() => None,
            BodyOrigin::Buffered(body) => Some(Frame::data(std::mem::take(body))),
            BodyOrigin::Incoming(incoming, monitor) => match ready!(Pin::new(incoming).poll_frame(cx)) {
                Some(frame) => Some(frame.map_err(BodyError::Broken)?),
                None => {
                    // The end of a chunked body is known only here, because `HeadReader` does not parse chunks.
                    monitor.is_body_open.store(false, Ordering::Relaxed);
                    monitor.clear_deadline();
                    None
                }
            },
        };
        let Some(frame) = frame else { return Poll::Ready(None) };
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let remaining = self.remaining.checked_sub(bytes).ok_or(BodyError::TooLarge { limit: self.remaining })?;
        self.remaining = remaining;
        Poll::Ready(Some(Ok(frame)))
    }

    /// Returns whether no more data follows.
    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodyOrigin::Buffered(body) => body.is_empty(),
            BodyOrigin::Incoming(incoming, _) => incoming.is_end_stream(),
        }
    }

    /// Returns the size of the rest of the body, as far as it is known.
    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodyOrigin::Buffered(body) => SizeHint::with_exact(body.len() as u64),
            BodyOrigin::Incoming(incoming, _) => incoming.size_hint(),
        }
    }
}
